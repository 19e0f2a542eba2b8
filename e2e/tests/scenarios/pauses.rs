//! A pause at every stage of one cluster's life: nothing is done while it lasts, and nothing is lost when it ends.

use anyhow::{Context, Result, ensure};
use capt_api::names;
use capt_e2e::audit;
use capt_e2e::components::CONTROLLERS;
use capt_e2e::testing::bench::{Bench, Wishes, template, template_with};
use capt_e2e::testing::{self, condition, is_true, message, text};
use jiff::Timestamp;
use kube::api::{DeleteParams, DynamicObject, ListParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::{NAMES, ends_like, module_of, slow, undisturbed};

/// Pauses the Cluster and waits until everybody has said so; what they write after that is a mistake.
struct Pause<'a> {
    bench: &'a Bench,
    since: Timestamp,
}

impl<'a> Pause<'a> {
    async fn begin(bench: &'a Bench) -> Result<Self> {
        bench
            .patch(&bench.clusters(), NAMES.cluster, json!({"spec": {"paused": true}}))
            .await?;
        for (api, name) in members(bench).await? {
            bench
                .until(api, &name, "paused", |object| {
                    condition(object, "Paused") == "True/Paused"
                })
                .await?;
        }
        Ok(Self {
            bench,
            since: Timestamp::now(),
        })
    }

    /// Ends it, after a look at what was written meanwhile.
    async fn end(self) -> Result<()> {
        let now = Timestamp::now();
        // Of a deletion it may be said that it waits.
        let said = |request: &audit::Request| {
            matches!(request.resource(), "events" | "leases") || request.resource_path().ends_with("/status")
        };
        let written: Vec<String> = audit::read(&self.bench.environment)?
            .0
            .iter()
            .filter(|request| (self.since..now).contains(&request.received()))
            .filter(|request| CONTROLLERS.iter().any(|own| own.name == request.user()))
            .filter(|request| request.is_write() && !said(request))
            .filter(|request| {
                let (namespace, name) = request.object();
                namespace == self.bench.namespace || name.starts_with(&self.bench.namespace)
            })
            .map(ToString::to_string)
            .collect();
        ensure!(written.is_empty(), "written during a pause:\n{}", written.join("\n"));
        self.bench
            .patch(&self.bench.clusters(), NAMES.cluster, json!({"spec": {"paused": null}}))
            .await?;
        Ok(())
    }
}

/// Everything that a pause of the Cluster reaches.
async fn members(bench: &Bench) -> Result<Vec<(Api<DynamicObject>, String)>> {
    let mut members = Vec::new();
    for api in [bench.networks(), bench.control_planes(), bench.applies()] {
        let found = api.list(&ListParams::default()).await?;
        members.extend(found.iter().map(|object| (api.clone(), object.name_any())));
    }
    Ok(members)
}

fn is_applied(workspace: &DynamicObject) -> bool {
    let conditions = workspace.data.pointer("/status/conditions").and_then(Value::as_array);
    let synced = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.get("type").and_then(Value::as_str) == Some("Synced"));
    is_true(workspace, "Ready")
        && is_true(workspace, "Synced")
        && synced.and_then(|synced| synced.get("observedGeneration")?.as_i64()) == workspace.metadata.generation
}

#[tokio::test]
async fn at_every_stage_of_a_life() -> Result<()> {
    let bench = Bench::bare(testing::environment()?, "pauses").await?;
    bench.create(template("local-vpc")?, &Value::Null).await?;
    let closed = template_with("local-eks", "value     = local.kubeconfig", "value     = \"nonsense\"")?;
    bench.create(closed, &Value::Null).await?;
    let [vpc, eks] = bench.workspaces(&NAMES);
    let workspaces = bench.all_workspaces();
    let eks_apply = names::eks_apply_name(NAMES.control_plane);

    // Before the owner: core itself does not look at a paused Cluster.
    let wishes = Wishes::default()
        .cluster(json!({"spec": {"paused": true}}))
        .network(slow())
        .control_plane(slow())
        .control_plane(json!({"spec": {"version": "1.29"}}));
    bench.cluster(&NAMES, wishes).await?;
    bench
        .until(bench.clusters(), NAMES.cluster, "paused", |cluster| {
            condition(cluster, "Paused") == "True/Paused"
        })
        .await?;
    bench
        .until(bench.control_planes(), NAMES.control_plane, "looked at", |c| {
            condition(c, "Ready") == "False/WaitingForCluster"
        })
        .await?;
    let pause = Pause {
        bench: &bench,
        since: Timestamp::now(),
    };
    pause.end().await?;

    // While Terraform makes the network: it ends, and nobody goes on from there.
    bench
        .until(
            bench.applies(),
            &names::vpc_apply_name(NAMES.network),
            "applying",
            |apply| condition(apply, "Ready") == "False/Applying",
        )
        .await?;
    let pause = Pause::begin(&bench).await?;
    bench.heal(&vpc).await?;
    bench.until(workspaces.clone(), &vpc, "made", is_applied).await?;
    ensure!(
        bench.applies().get_opt(&eks_apply).await?.is_none(),
        "the control plane was begun during a pause"
    );
    let quick = json!({"spec": {"variables": {"slow_seconds": null}}});
    bench.patch(&bench.networks(), NAMES.network, quick).await?;
    pause.end().await?;

    // While Terraform makes the control plane; meanwhile the wish changes.
    bench
        .until(bench.applies(), &eks_apply, "applying", |apply| {
            condition(apply, "Ready") == "False/Applying"
        })
        .await?;
    let pause = Pause::begin(&bench).await?;
    let other = json!({"spec": {"version": "1.30", "variables": null}});
    bench.patch(&bench.control_planes(), NAMES.control_plane, other).await?;
    bench.heal(&eks).await?;
    bench.until(workspaces.clone(), &eks, "made", is_applied).await?;
    let paused = bench.control_planes().get(NAMES.control_plane).await?;
    ensure!(
        paused.data.pointer("/spec/controlPlaneEndpoint").is_none(),
        "published during a pause"
    );
    pause.end().await?;

    // Between endpoint and secrets.
    let closed = bench
        .until(
            bench.control_planes(),
            NAMES.control_plane,
            "without a kubeconfig",
            |c| {
                condition(c, "Ready") == "False/SecretsFailed"
                    && condition(c, "EndpointReady") == "True/EndpointPublished"
            },
        )
        .await?;
    assert_eq!(
        text(&closed, "/status/version"),
        "1.30",
        "the change of the last pause was not lost"
    );
    let pause = Pause::begin(&bench).await?;
    bench
        .patch(&bench.templates(), "local-eks", module_of(&template("local-eks")?)?)
        .await?;
    pause.end().await?;
    bench.available(&NAMES).await?;

    // Of a running cluster; by annotation this time, and only of the control plane.
    let annotate = |value: Value| json!({"metadata": {"annotations": {names::annotation::PAUSED: value}}});
    bench
        .patch(&bench.control_planes(), NAMES.control_plane, annotate(json!("")))
        .await?;
    bench
        .until(bench.control_planes(), NAMES.control_plane, "paused", |c| {
            condition(c, "Paused") == "True/Paused"
        })
        .await?;
    let upgrade = json!({"spec": {"version": "1.31"}});
    let generation = bench
        .patch(&bench.control_planes(), NAMES.control_plane, upgrade)
        .await?;
    bench
        .patch(&bench.control_planes(), NAMES.control_plane, annotate(Value::Null))
        .await?;
    bench
        .until(bench.control_planes(), NAMES.control_plane, "upgraded", |c| {
            testing::ready_since(generation)(c) && text(c, "/status/version") == "1.31"
        })
        .await?;
    ends_like(&bench, undisturbed().await?).await?;

    // Of a deletion.
    let pause = Pause::begin(&bench).await?;
    bench
        .clusters()
        .delete(NAMES.cluster, &DeleteParams::background())
        .await?;
    for api in [bench.control_planes(), bench.networks()] {
        api.delete(NAMES.cluster, &DeleteParams::background()).await?;
        let waits = bench
            .until(api, NAMES.cluster, "waiting", |object| {
                condition(object, "Deleting") == "True/Paused"
            })
            .await?;
        assert!(
            message(&waits, "Deleting").contains("pause"),
            "{}",
            message(&waits, "Deleting")
        );
    }
    pause.end().await?;
    bench.gone(&NAMES).await?;
    bench.no_trace(&NAMES).await
}

#[tokio::test]
async fn of_an_apply_alone() -> Result<()> {
    let bench = Bench::new("paused-apply").await?;
    bench.cluster(&NAMES, Wishes::existing_vpc()).await?;
    bench.available(&NAMES).await?;
    let apply = names::eks_apply_name(NAMES.control_plane);
    let annotate = |value: Value| json!({"metadata": {"annotations": {names::annotation::PAUSED: value}}});
    bench.patch(&bench.applies(), &apply, annotate(json!(""))).await?;
    bench
        .until(bench.applies(), &apply, "paused", |apply| {
            condition(apply, "Paused") == "True/Paused"
        })
        .await?;
    // The wish reaches the apply and no further.
    let tagged = json!({"spec": {"additionalTags": {"paused": "no"}}});
    bench
        .patch(&bench.control_planes(), NAMES.control_plane, tagged)
        .await?;
    let waiting = bench
        .until(bench.applies(), &apply, "changed", |apply| {
            text(apply, "/spec/variables/tags_paused") == "no"
        })
        .await?;
    bench
        .until(bench.control_planes(), NAMES.control_plane, "waiting", |c| {
            condition(c, "Ready") == "False/Updating"
        })
        .await?;
    bench
        .clusters()
        .delete(NAMES.cluster, &DeleteParams::background())
        .await?;
    bench
        .until(bench.applies(), &apply, "waiting to go", |apply| {
            condition(apply, "Deleting") == "True/Paused"
        })
        .await?;
    let said = bench
        .until(bench.control_planes(), NAMES.control_plane, "waiting to go", |c| {
            condition(c, "Deleting") == "True/WaitingForWorkspace" && message(c, "Deleting").contains("pause")
        })
        .await?;
    assert!(
        message(&said, "Deleting").contains(&apply),
        "{}",
        message(&said, "Deleting")
    );
    let [_, eks] = bench.workspaces(&NAMES);
    let entry = bench.entry(&eks)?.context("no cluster")?;
    assert!(!entry.input("tags").contains("paused"), "{}", entry.input("tags"));
    assert!(waiting.metadata.deletion_timestamp.is_none());
    bench.patch(&bench.applies(), &apply, annotate(Value::Null)).await?;
    bench.gone(&NAMES).await?;
    bench.no_trace(&NAMES).await
}
