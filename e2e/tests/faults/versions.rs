//! Controllers of two versions: side by side, as when one of them is upgraded alone, and one after the other, as when all
//! are. What they have in common is the API.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use capt_e2e::components::CONTROLLERS;
use capt_e2e::testing::bench::{CONTROL_PLANE, INFRASTRUCTURE};
use capt_e2e::testing::{objects, simulated};
use futures::StreamExt;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::process::Child;

use crate::PARALLEL;
use crate::bench::{Bench, program};
use crate::cluster::{NETWORK, SERVICE};
use crate::life::Life;
use crate::observer::World;
use crate::trial::Run;

/// A variable of both templates that has no effect before the end.
const VARIABLE: &str = "slow_destroy_seconds";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    /// Of this tree.
    Current,
    /// Of the directory that the test was given.
    Previous,
}

/// What is tried.
#[derive(Debug, Clone, Copy)]
enum Mix {
    /// One controller of this version, and all others of the other one.
    Alone(&'static str, Version),
    /// All of the previous version, and then all of the current one.
    Upgrade,
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the programs of another version: make test-versions"]
async fn controllers_of_two_versions_get_along() -> Result<()> {
    let previous = std::env::var_os("CAPT_PREVIOUS").context("no programs of another version: make test-versions")?;
    let previous = PathBuf::from(previous);
    let bench = Bench::new("test-versions").await?;
    let of_one = CONTROLLERS
        .iter()
        .flat_map(|own| [Version::Current, Version::Previous].map(|version| Mix::Alone(own.name, version)));
    let mut ended = futures::stream::iter(of_one.chain([Mix::Upgrade]))
        .map(|mix| {
            let (bench, previous) = (&bench, &previous);
            async move { (mix, live(bench, previous, mix).await) }
        })
        .buffer_unordered(PARALLEL);
    let mut failures = String::new();
    while let Some((mix, end)) = ended.next().await {
        match end {
            Ok(()) => println!("{mix:?}: came and went"),
            Err(error) => failures += &format!("{mix:?}: {error:#}\n"),
        }
    }
    drop(ended);
    ensure!(
        failures.is_empty(),
        "{failures}\nlogs are in {}",
        bench.environment().path("logs/faults").display()
    );
    let leaked = simulated::states_with_resources(&bench.client).await?;
    ensure!(leaked.is_empty(), "Terraform still has resources in {leaked:?}");
    Ok(())
}

/// A cluster's whole life under such controllers.
async fn live(bench: &Bench, previous: &Path, mix: Mix) -> Result<()> {
    let run = Run::begin(
        bench,
        Life::Cluster,
        &format!("{mix:?}").replace(['(', ')', ',', '"'], " "),
    )
    .await?;
    let start = |version_of: &dyn Fn(&str) -> Version| -> Result<Vec<Child>> {
        let started = CONTROLLERS.iter().map(|own| {
            let program = match version_of(own.name) {
                Version::Current => program(own.name),
                Version::Previous => previous.join(own.name),
            };
            bench.start(&program, &run.namespace, &bench.server()?, &run.logs)
        });
        started.collect()
    };
    let mut running = start(&|name| match mix {
        Mix::Alone(one, version) if one == name => version,
        Mix::Alone(_, Version::Current) | Mix::Upgrade => Version::Previous,
        Mix::Alone(_, Version::Previous) => Version::Current,
    })?;
    Life::Cluster.create(&run).await?;
    run.until(|world| Life::Cluster.is_not_up(world))
        .await
        .context("it does not come up")?;
    if matches!(mix, Mix::Upgrade) {
        for mut controller in running.drain(..) {
            controller.kill().await?;
        }
        running = start(&|_| Version::Current)?;
        change_and_change_back(bench, &run).await?;
    }
    Life::Cluster.delete(&run).await?;
    drop(running);
    let check = |world: &World| Life::Cluster.check_history(world);
    bench.observer.look(&run.namespace, check)?;
    std::fs::remove_dir_all(&run.logs)?;
    Ok(())
}

/// The new controllers take over what the old ones have made, and would have made it just so: when a variable is changed and
/// changed back, the Workspaces are what they were. Otherwise Terraform would run for every cluster after an upgrade.
async fn change_and_change_back(bench: &Bench, run: &Run<'_>) -> Result<()> {
    let before = bench.observer.look(&run.namespace, workspaces);
    ensure!(before.len() == 2, "there are {} Workspaces", before.len());
    for value in [Some("1"), None] {
        let wish = Patch::Merge(json!({"spec": {"variables": {VARIABLE: value}}}));
        for (api_version, kind, name) in [
            (INFRASTRUCTURE, "CAPTCluster", NETWORK),
            (CONTROL_PLANE, "CAPTControlPlane", SERVICE),
        ] {
            let api = objects(&bench.client, api_version, kind, Some(&run.namespace));
            api.patch(name, &PatchParams::default(), &wish).await?;
        }
        let unheard = |world: &World| {
            let now = workspaces(world);
            // The templates give it an empty value of their own.
            let unheard = now
                .iter()
                .find(|(_, spec)| variable(spec) != Some(value.unwrap_or_default()));
            unheard.map(|(name, spec)| format!("{VARIABLE} is {:?} in {name}", variable(spec)))
        };
        run.until(unheard).await.context("the change does not arrive")?;
    }
    let after = bench.observer.look(&run.namespace, workspaces);
    for (name, was) in &before {
        let is = after.get(name).with_context(|| format!("{name} is gone"))?;
        ensure!(was == is, "{name} was\n{was:#}\nand is\n{is:#}");
    }
    Ok(())
}

fn workspaces(world: &World) -> BTreeMap<String, Value> {
    let all = world.objects.iter().filter(|(id, _)| id.kind == "Workspace");
    let spec = |object: &DynamicObject| object.data.get("spec").cloned().unwrap_or_default();
    all.map(|(id, object)| (id.name.clone(), spec(object))).collect()
}

fn variable(spec: &Value) -> Option<&str> {
    let all = spec.pointer("/forProvider/vars")?.as_array()?;
    let found = all.iter().find(|entry| entry.get("key") == Some(&json!(VARIABLE)));
    found?.get("value")?.as_str()
}
