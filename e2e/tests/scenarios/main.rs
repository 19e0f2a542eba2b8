//! Clusters that are disturbed on the real Cluster API core, the real provider and the real Terraform: what was disturbed
//! ends like what was not, and what is deleted goes without a trace, in order, whatever is in the way.
//!
//! Each scenario has a namespace of its own, and they run at the same time; those that take a part of the environment away
//! have an environment of their own.

mod deletion;
mod meddling;
mod namespaced;
mod orders;
mod outages;
mod pauses;
mod shapes;
mod troubles;

use anyhow::{Context, Result};
use capt_api::WorkspaceKind;
use capt_e2e::testing::bench::{Bench, Names, Wishes};
use capt_e2e::testing::end_state::EndState;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// Every scenario has a namespace of its own, so the names can be the same, and end states can be compared.
const NAMES: Names = Names::same("it");

/// The wish that every apply goes on until the test heals it; the provider itself gives up after twenty minutes.
fn slow() -> Value {
    json!({"spec": {"variables": {"slow_seconds": "1100"}}})
}

/// The module of a template, as a patch that leaves the rest of it alone.
fn module_of(template: &Value) -> Result<Value> {
    let module = template
        .pointer("/spec/template/spec/forProvider/module")
        .context("a template without a module")?;
    Ok(json!({"spec": {"template": {"spec": {"forProvider": {"module": module}}}}}))
}

/// Where a cluster with a VPC of its own ends when nobody disturbs it.
async fn undisturbed() -> Result<&'static EndState> {
    static END: OnceCell<EndState> = OnceCell::const_new();
    END.get_or_try_init(|| run_undisturbed(Wishes::default())).await
}

/// The same in a VPC that exists already.
async fn undisturbed_in_existing_vpc() -> Result<&'static EndState> {
    static END: OnceCell<EndState> = OnceCell::const_new();
    END.get_or_try_init(|| run_undisturbed(Wishes::existing_vpc())).await
}

async fn run_undisturbed(wishes: Wishes) -> Result<EndState> {
    let bench = Bench::new("undisturbed").await?;
    bench.cluster(&NAMES, wishes).await?;
    is_up(&bench).await?;
    let end = EndState::settled(&bench, &NAMES).await?;
    bench.delete_without_a_trace(&NAMES).await?;
    Ok(end)
}

/// The cluster is up and opens.
async fn is_up(bench: &Bench) -> Result<()> {
    bench.available(&NAMES).await?;
    bench.check_access(&NAMES).await?;
    bench.mirrored(&NAMES).await
}

/// The cluster is up, opens, and ends where an undisturbed one does.
async fn ends_like(bench: &Bench, undisturbed: &EndState) -> Result<()> {
    is_up(bench).await?;
    undisturbed.reached(bench, &NAMES).await
}

/// The cluster is up and opens; with cluster-scoped Workspaces, as most scenarios have them, it has ended where an undisturbed one
/// does.
async fn ends_well(bench: &Bench) -> Result<()> {
    match bench.kind {
        WorkspaceKind::ClusterScoped => ends_like(bench, undisturbed().await?).await,
        WorkspaceKind::Namespaced => is_up(bench).await,
    }
}

/// What `clusterctl describe` says, without the drawing and the line breaks of its table.
fn plain(described: &str) -> String {
    let drawn = |c: char| ('\u{2500}'..='\u{257f}').contains(&c);
    let words = described.split(|c: char| c.is_whitespace() || drawn(c));
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}
