//! A Tenant's life: it gets two namespaces, a Cluster in one of them, another namespace instead of the other, another
//! administrator, and goes.

use anyhow::{Context, Result, ensure};
use capt_api::names::label;
use capt_e2e::testing::bench::CORE;
use capt_e2e::testing::{create as make, is_true, objects};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::observer::{Turn, World};
use crate::trial::Run;

const API_VERSION: &str = "multitenancy.capt.dev/v1beta1";
const WITH_CLUSTER: &str = "with-cluster";
const AT_FIRST: &str = "at-first";
const LATER: &str = "later";

/// Namespaces and administrator, and then others: a Tenant with a history.
pub(crate) async fn create(run: &Run<'_>) -> Result<()> {
    let client = &run.bench.client;
    let spec = |other: &str, admin: Value| json!({ "namespaces": [WITH_CLUSTER, other], "admin": admin });
    let tenant = json!({
        "apiVersion": API_VERSION, "kind": "Tenant",
        "metadata": { "name": run.namespace, "labels": { label::WATCH_FILTER: run.namespace } },
        "spec": spec(AT_FIRST, json!({ "kind": "Group", "name": "blue-team" })),
    });
    make(client, None, tenant).await?;
    run.until(|world| is_without(world, [WITH_CLUSTER, AT_FIRST], 0))
        .await
        .context("its first namespaces do not come")?;

    // What Cluster API gives a Cluster whose references lead nowhere is its finalizer.
    let reference = |group: &str, kind: &str| json!({ "apiGroup": group, "kind": kind, "name": "none" });
    let cluster = json!({
        "apiVersion": CORE, "kind": "Cluster", "metadata": { "name": "blue" },
        "spec": {
            "infrastructureRef": reference("infrastructure.cluster.x-k8s.io", "CAPTCluster"),
            "controlPlaneRef": reference("controlplane.cluster.x-k8s.io", "CAPTControlPlane"),
        },
    });
    make(client, Some(&format!("{}-{WITH_CLUSTER}", run.namespace)), cluster).await?;
    run.until(|world| is_without(world, [WITH_CLUSTER, AT_FIRST], 1))
        .await
        .context("its Cluster is not counted")?;

    let wish = json!({ "spec": spec(LATER, json!({ "kind": "User", "name": "ann" })) });
    let tenants = objects(client, API_VERSION, "Tenant", None);
    tenants
        .patch(&run.namespace, &PatchParams::default(), &Patch::Merge(wish))
        .await?;
    Ok(())
}

pub(crate) fn is_not_ready(world: &World) -> Option<String> {
    let dying = world.objects.keys().find(|id| id.name.contains(AT_FIRST));
    let dying = dying.map(|id| format!("{id} is still there"));
    dying.or_else(|| is_without(world, [WITH_CLUSTER, LATER], 1))
}

/// What is missing until a Tenant says that it has these namespaces and so many Clusters.
fn is_without(world: &World, namespaces: [&str; 2], clusters: u64) -> Option<String> {
    let Some((_, tenant)) = world.objects.iter().find(|(id, _)| id.kind == "Tenant") else {
        return Some("there is no Tenant".to_owned());
    };
    let status = tenant.data.get("status").cloned().unwrap_or_default();
    let mut names = namespaces.map(|name| format!("{}-{name}", tenant.name_any()));
    names.sort();
    let is_as_wished = is_true(tenant, "Ready")
        && status.get("observedGeneration").and_then(Value::as_i64) == tenant.metadata.generation
        && status.get("namespaces") == Some(&json!(names))
        && status.get("clusters").and_then(Value::as_u64).unwrap_or_default() == clusters;
    (!is_as_wished).then(|| format!("the Tenant says {status}"))
}

pub(crate) async fn delete(run: &Run<'_>) -> Result<()> {
    let tenants = objects(&run.bench.client, API_VERSION, "Tenant", None);
    tenants.delete(&run.namespace, &DeleteParams::background()).await?;
    run.until(|world| world.left(|_| false)).await.context("it does not go")
}

/// A namespace outlived its Clusters, and the Tenant its namespaces.
pub(crate) fn check_order(world: &World) -> Result<()> {
    let cluster_gone = world.when(Turn::Gone, "Cluster", WITH_CLUSTER)?;
    let namespace_dying = world.when(Turn::Dying, "Namespace", WITH_CLUSTER)?;
    ensure!(
        cluster_gone < namespace_dying,
        "the namespace was to go at {namespace_dying}, before its Cluster had gone at {cluster_gone}"
    );
    let tenant_gone = world.when(Turn::Gone, "Tenant", "")?;
    for name in [WITH_CLUSTER, AT_FIRST, LATER] {
        let namespace_gone = world.when(Turn::Gone, "Namespace", name)?;
        ensure!(
            namespace_gone < tenant_gone,
            "the Tenant was gone at {tenant_gone}, before its namespace {name} at {namespace_gone}"
        );
    }
    Ok(())
}
