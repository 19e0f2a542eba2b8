//! Clusters whose Workspaces are in their own namespace (`--workspace-kind tf.m.upbound.io/v1beta1`), in an environment of their
//! own: everything that holds of cluster-scoped ones, and what is different when others can delete a Workspace.

use anyhow::{Context, Result, ensure};
use capt_api::WorkspaceKind;
use capt_api::names::{self, annotation, finalizer};
use capt_e2e::audit;
use capt_e2e::components::{PROVIDER, WORKSPACE_CONTROLLER};
use capt_e2e::testing::bench::{Bench, INFRASTRUCTURE, Wishes};
use capt_e2e::testing::history::History;
use capt_e2e::testing::{Scratch, component, condition, is_true, message, objects, ready_since, text, until_gone};
use kube::ResourceExt;
use kube::api::{DeleteParams, DynamicObject, ListParams};
use serde_json::{Value, json};

use crate::outages::{LEADS, PROGRAM, start_until};
use crate::{NAMES, deletion, ends_well};

const KIND: WorkspaceKind = WorkspaceKind::Namespaced;

#[tokio::test]
async fn clusters_whose_workspaces_are_in_their_namespace() -> Result<()> {
    let scratch = Scratch::named(PROGRAM, "test-namespaced")?;
    scratch.up(&[])?;
    let environment = &scratch.environment;
    let stopped = component::stop(environment, WORKSPACE_CONTROLLER).await?;
    start_until(environment, stopped, &[&format!("--workspace-kind={KIND}")], LEADS).await?;
    let bench = |prefix| async move { anyhow::Ok(Bench::of(environment.clone(), prefix).await?.with_workspaces(KIND)) };
    tokio::try_join!(
        whole_life(bench("life").await?),
        namespace_goes_in_order(bench("all").await?),
        deletion::namespace_with_a_retained_network(bench("space").await?),
        standalone_and_abandoned(bench("alone").await?),
    )?;
    Ok(())
}

fn applies() -> [String; 2] {
    [
        names::vpc_apply_name(NAMES.network),
        names::eks_apply_name(NAMES.control_plane),
    ]
}

fn is_held(workspace: &DynamicObject) -> bool {
    let finalizers = workspace.finalizers();
    finalizers.iter().any(|present| present == finalizer::WORKSPACE_HOLD)
}

/// Made, changed, freed of its applies and then of its Workspaces by somebody's mistake, and deleted.
async fn whole_life(bench: Bench) -> Result<()> {
    bench.cluster(&NAMES, Wishes::default()).await?;
    ends_well(&bench).await?;
    let api = bench.control_planes();
    let newer = json!({"spec": {"version": "1.32"}});
    let generation = bench.patch(&api, NAMES.control_plane, newer).await?;
    bench
        .until(api, NAMES.control_plane, "upgraded", |control_plane| {
            ready_since(generation)(control_plane) && text(control_plane, "/status/version") == "1.32"
        })
        .await?;
    deletion::applies_come_back(&bench).await?;

    let before = bench.workspaces(&NAMES).map(|workspace| bench.entry(&workspace));
    for workspace in bench.workspaces(&NAMES) {
        let workspaces = bench.all_workspaces();
        workspaces.delete(&workspace, &DeleteParams::background()).await?;
    }
    for apply in applies() {
        let told = bench
            .until(bench.applies(), &apply, "telling what was deleted", |apply| {
                condition(apply, "Waiting") == "True/WaitingForOldWorkspace"
            })
            .await?;
        let said = message(&told, "Waiting");
        ensure!(said.contains("Remove its finalizers"), "{said}");
    }
    let control_plane = bench.control_planes().get(NAMES.control_plane).await?;
    ensure!(is_true(&control_plane, "Available"), "the cluster runs on");
    bench.check_access(&NAMES).await?;
    for workspace in bench.workspaces(&NAMES) {
        let free = json!({"metadata": {"finalizers": null}});
        bench.patch(&bench.all_workspaces(), &workspace, free).await?;
    }
    for apply in applies() {
        bench
            .until(bench.applies(), &apply, "Ready again", |apply| is_true(apply, "Ready"))
            .await?;
    }
    for (workspace, before) in bench.workspaces(&NAMES).iter().zip(before) {
        let (before, now) = (before?, bench.entry(workspace)?);
        ensure!(now == before, "{workspace} was {before:?} and is {now:?}");
    }
    deletion::goes_in_order(&bench).await
}

/// The API server deletes everything in a namespace at once. What Terraform needs stays, what is paused stays, and the network
/// goes after what stands in it.
async fn namespace_goes_in_order(bench: Bench) -> Result<()> {
    let token =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "token"}, "stringData": {"value": "1"}});
    bench.create(token, &Value::Null).await?;
    let env = json!([{"name": "TOKEN", "secretKeyRef": {"name": "token", "key": "value"}}]);
    let reading = json!({"spec": {"template": {"spec": {"forProvider": {"env": env}}}}});
    for template in ["local-vpc", "local-eks"] {
        bench.patch(&bench.templates(), template, reading.clone()).await?;
    }
    bench.cluster(&NAMES, Wishes::default()).await?;
    bench.available(&NAMES).await?;
    let pause = |paused| json!({"spec": {"paused": paused}});
    bench.patch(&bench.clusters(), NAMES.cluster, pause(Some(true))).await?;
    for apply in applies() {
        bench
            .until(bench.applies(), &apply, "paused", |apply| is_true(apply, "Paused"))
            .await?;
    }
    let [vpc, eks] = bench.workspaces(&NAMES);
    let mut network = History::begin(bench.all_workspaces(), &vpc).await?;
    let mut cluster = History::begin(bench.all_workspaces(), &eks).await?;
    let mut space = History::begin(bench.namespaces(), &bench.namespace).await?;
    bench
        .namespaces()
        .delete(&bench.namespace, &DeleteParams::background())
        .await?;

    for apply in applies() {
        bench
            .until(bench.applies(), &apply, "kept from going", |apply| {
                condition(apply, "Deleting") == "True/Paused"
            })
            .await?;
    }
    for history in [&mut network, &mut cluster] {
        let deleted = history
            .until("deleted", |workspace| workspace.metadata.deletion_timestamp.is_some())
            .await?;
        ensure!(is_held(&deleted), "nothing keeps {} from going", history.name());
    }
    // Everything else has been deleted by now: the namespace says what is left in it.
    space
        .until("emptied", |space| is_true(space, "NamespaceContentRemaining"))
        .await?;
    let usages = objects(
        &bench.client,
        &KIND.to_string(),
        "ProviderConfigUsage",
        Some(&bench.namespace),
    );
    for (what, api, number) in [("inputs", bench.secrets(), 1), ("records", usages, 2)] {
        let kept = api.list(&ListParams::default()).await?.items;
        let is_protected =
            |object: &&DynamicObject| object.finalizers().iter().any(|f| f == finalizer::WORKSPACE_INPUT);
        let protected = kept.iter().filter(is_protected).count();
        ensure!(protected == number, "Terraform has {protected} of its {number} {what}");
    }
    for workspace in [&vpc, &eks] {
        ensure!(bench.entry(workspace)?.is_some(), "{workspace} was destroyed");
    }

    bench.patch(&bench.clusters(), NAMES.cluster, pause(None)).await?;
    space.until_gone().await?;
    for (workspace, history) in [(&vpc, &mut network), (&eks, &mut cluster)] {
        bench.no_workspace(workspace).await?;
        history.until_gone().await?;
        // The cloud refuses to delete a network in which there is a cluster. (That the provider may write no Secret into a
        // namespace that goes is another matter.)
        let said = history.tells(|workspace| message(workspace, "Synced").to_owned());
        let is_refusal = |said: &String| said.contains("DependencyViolation");
        ensure!(!said.iter().any(is_refusal), "{workspace}: {said:?}");
    }
    let chain = [
        (WORKSPACE_CONTROLLER, "patch", "workspaces", eks.as_str()),
        (PROVIDER, "update", "workspaces", &eks),
        (WORKSPACE_CONTROLLER, "patch", "workspaces", &vpc),
        (PROVIDER, "update", "workspaces", &vpc),
    ];
    deletion::came_in_order(&bench, &audit::read(&bench.environment)?, &chain)?;
    bench.invariants_held().await
}

/// An apply that belongs to no Cluster, whose destroy can never succeed; and the same once more, when somebody has mended it.
async fn standalone_and_abandoned(bench: Bench) -> Result<()> {
    let apply = json!({
        "apiVersion": INFRASTRUCTURE, "kind": "WorkspaceTemplateApply", "metadata": {"name": "alone"},
        "spec": {
            "templateRef": {"name": "local-vpc"},
            "variables": {"cluster_name": "none", "vpc_name": "alone", "region": "eu-west-1", "environment": "test"},
        },
    });
    let workspace = names::workspace_name(&bench.namespace, "alone");
    let ready = |apply: &DynamicObject| is_true(apply, "Ready");
    bench.create(apply.clone(), &Value::Null).await?;
    bench.until(bench.applies(), "alone", "Ready", ready).await?;
    let made = bench.entry(&workspace)?.context("nothing was made")?;

    bench.fail_destroys(&workspace, "nobody will ever mend this").await?;
    bench.applies().delete("alone", &DeleteParams::background()).await?;
    let stuck = |apply: &DynamicObject| condition(apply, "Deleting") == "True/DestroyFailed";
    bench.until(bench.applies(), "alone", "stuck", stuck).await?;
    let abandon = json!({"metadata": {"annotations": {annotation::ABANDON_WORKSPACE: workspace}}});
    bench.patch(&bench.applies(), "alone", abandon).await?;
    until_gone(&bench.applies(), "alone").await?;
    until_gone(&bench.all_workspaces(), &workspace).await?;
    ensure!(
        bench.entry(&workspace)?.as_ref() == Some(&made),
        "what was abandoned is not left"
    );

    bench.heal(&workspace).await?;
    bench.create(apply, &Value::Null).await?;
    bench.until(bench.applies(), "alone", "Ready", ready).await?;
    let found = bench.entry(&workspace)?.context("it is gone")?;
    ensure!(found.created == made.created, "it was made again");
    bench.applies().delete("alone", &DeleteParams::background()).await?;
    until_gone(&bench.applies(), "alone").await?;
    bench.no_workspace(&workspace).await
}
