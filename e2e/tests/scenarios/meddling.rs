//! Somebody lays hands on what CAPT wrote: it comes back, and the cluster runs on.

use anyhow::{Context, Result};
use capt_api::names::{self, finalizer};
use capt_e2e::testing::bench::{Bench, Wishes};
use capt_e2e::testing::history::History;
use capt_e2e::testing::{condition, is_true, message, observed, ready_since, status, text};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::{NAMES, ends_like, undisturbed, undisturbed_in_existing_vpc};

#[tokio::test]
async fn lost_statuses_are_found_again() -> Result<()> {
    let bench = Bench::new("statuses").await?;
    bench.cluster(&NAMES, Wishes::default()).await?;
    bench.available(&NAMES).await?;
    let mut cluster = History::begin(bench.clusters(), NAMES.cluster).await?;
    // All at once, as a restore from a backup does it: a backup has no statuses.
    let lost = Patch::Merge(json!({"status": null}));
    for (api, name) in [
        (bench.control_planes(), NAMES.control_plane.to_owned()),
        (bench.networks(), NAMES.network.to_owned()),
        (bench.applies(), names::eks_apply_name(NAMES.control_plane)),
        (bench.applies(), names::vpc_apply_name(NAMES.network)),
    ] {
        api.patch_status(&name, &PatchParams::default(), &lost).await?;
    }
    for api in [bench.networks(), bench.control_planes()] {
        bench
            .until(api, NAMES.cluster, "Ready again", |object| is_true(object, "Ready"))
            .await?;
    }
    ends_like(&bench, undisturbed().await?).await?;
    cluster.up_to_now().await?;
    assert_eq!(
        cluster
            .tells(|cluster| cluster.data.pointer("/spec/controlPlaneEndpoint").cloned())
            .len(),
        1,
        "the Cluster's endpoint was never touched"
    );
    bench.delete_without_a_trace(&NAMES).await
}

#[tokio::test]
async fn marks_secrets_and_endpoints_are_put_back() -> Result<()> {
    let bench = Bench::new("marks").await?;
    bench.cluster(&NAMES, Wishes::default()).await?;
    bench.available(&NAMES).await?;
    let eks_apply = names::eks_apply_name(NAMES.control_plane);
    let vpc_apply = names::vpc_apply_name(NAMES.network);

    let bare = json!({"metadata": {"finalizers": null, "ownerReferences": null}});
    // The hold and the name are all that is left; and so it is after a restore from a backup, where every UID is new.
    let [anonymous, restored] = [Value::Null, json!("a-uid-of-another-life")]
        .map(|uid| json!({"metadata": {"ownerReferences": null, "labels": {names::label::OWNER_UID: uid}}}));
    let marked = |apply: &DynamicObject, hold: &str| {
        let label = apply.labels().get(names::label::OWNER_UID);
        let controlled = apply
            .owner_references()
            .iter()
            .any(|owner| owner.controller == Some(true) && Some(&owner.uid) == label);
        let has = |name: &str| apply.finalizers().iter().any(|present| present == name);
        controlled && has(hold) && has(finalizer::WORKSPACE_TEMPLATE_APPLY)
    };
    for (apply, hold) in [
        (&eks_apply, finalizer::CAPT_CONTROL_PLANE_HOLD),
        (&vpc_apply, finalizer::CAPT_CLUSTER_HOLD),
    ] {
        for lost in [&bare, &anonymous, &restored] {
            bench.patch(&bench.applies(), apply, lost.clone()).await?;
            bench
                .until(bench.applies(), apply, "marked again", |apply| marked(apply, hold))
                .await?;
        }
    }
    for (api, wanted) in [
        (bench.networks(), vec![finalizer::CAPT_CLUSTER]),
        (
            bench.control_planes(),
            vec![
                finalizer::CAPT_CONTROL_PLANE,
                finalizer::CAPT_ENDPOINT,
                finalizer::CAPT_SECRETS,
            ],
        ),
    ] {
        bench.patch(&api, NAMES.cluster, bare.clone()).await?;
        bench
            .until(api, NAMES.cluster, "guarded again", |object| {
                let owned = object.owner_references().iter().any(|owner| owner.kind == "Cluster");
                owned
                    && wanted
                        .iter()
                        .all(|name| object.finalizers().iter().any(|present| present == name))
            })
            .await?;
    }

    // A copy that is gone, one that is not what it was, and one that belongs to nobody.
    let kubeconfig = names::kubeconfig_secret(NAMES.cluster);
    let alias = names::kubeconfig_alias_secret(NAMES.cluster);
    let ca = names::ca_secret(NAMES.cluster);
    bench.secrets().delete(&kubeconfig, &DeleteParams::background()).await?;
    let spoiled = json!({"data": {"value": "c3BvaWxlZA=="}, "metadata": {"labels": null}});
    bench.patch(&bench.secrets(), &alias, spoiled).await?;
    bench
        .patch(
            &bench.secrets(),
            &ca,
            json!({"metadata": {"ownerReferences": null}, "data": {"more": "MQ=="}}),
        )
        .await?;
    for name in [&kubeconfig, &alias, &ca] {
        bench
            .until(bench.secrets(), name, "put back", |secret| {
                let keys = secret
                    .data
                    .get("data")
                    .and_then(Value::as_object)
                    .map_or(0, |data| data.len());
                let value = secret.data.pointer("/data/value").and_then(Value::as_str);
                keys == 1
                    && value != Some("c3BvaWxlZA==")
                    && !secret.owner_references().is_empty()
                    && secret.labels().contains_key(names::label::CLUSTER_NAME)
            })
            .await?;
    }

    // The endpoint that was published is published again.
    bench
        .patch(
            &bench.clusters(),
            NAMES.cluster,
            json!({"spec": {"controlPlaneEndpoint": null}}),
        )
        .await?;
    bench
        .until(bench.clusters(), NAMES.cluster, "published again", |cluster| {
            cluster.data.pointer("/spec/controlPlaneEndpoint").is_some()
        })
        .await?;
    let elsewhere = json!({"spec": {"controlPlaneEndpoint": {"host": "elsewhere.example.com", "port": 1}}});
    bench
        .patch(&bench.control_planes(), NAMES.control_plane, elsewhere)
        .await?;
    bench
        .until(bench.control_planes(), NAMES.control_plane, "published again", |c| {
            c.data.pointer("/spec/controlPlaneEndpoint/host") == Some(&json!("127.0.0.1")) && is_true(c, "Ready")
        })
        .await?;
    ends_like(&bench, undisturbed().await?).await?;
    bench.delete_without_a_trace(&NAMES).await
}

#[tokio::test]
async fn a_connection_secret_that_vanishes_takes_nothing_with_it() -> Result<()> {
    let bench = Bench::new("source").await?;
    bench.cluster(&NAMES, Wishes::existing_vpc()).await?;
    bench.available(&NAMES).await?;
    let mut control_plane = History::begin(bench.control_planes(), NAMES.control_plane).await?;
    let mut copy = History::begin(bench.secrets(), &names::kubeconfig_secret(NAMES.cluster)).await?;
    let source = names::eks_connection_secret(NAMES.cluster);
    bench.secrets().delete(&source, &DeleteParams::background()).await?;
    control_plane
        .until("missing its source", |c| {
            condition(c, "SecretsReady") == "True/SourceMissing"
        })
        .await?;
    bench.check_access(&NAMES).await?;
    // The provider writes it again when it looks; it looks now when something is written on the Workspace.
    let [_, eks] = bench.workspaces(&NAMES);
    let touch = |value: Value| json!({"metadata": {"annotations": {"capt.test/look": value}}});
    bench
        .patch(&bench.all_workspaces(), &eks, touch(json!("again")))
        .await?;
    control_plane
        .until("well again", |c| condition(c, "SecretsReady") == "True/Ready")
        .await?;
    bench.patch(&bench.all_workspaces(), &eks, touch(Value::Null)).await?;
    ends_like(&bench, undisturbed_in_existing_vpc().await?).await?;
    assert_eq!(control_plane.tells(|c| status(c, "Ready")), ["True"]);
    copy.up_to_now().await?;
    assert_eq!(
        copy.tells(ResourceExt::resource_version).len(),
        1,
        "nobody touched the copy"
    );
    bench.delete_without_a_trace(&NAMES).await
}

#[tokio::test]
async fn a_workspace_that_is_deleted_by_hand_is_made_again() -> Result<()> {
    let bench = Bench::new("destroyed").await?;
    bench.cluster(&NAMES, Wishes::existing_vpc()).await?;
    bench.available(&NAMES).await?;
    let [_, eks] = bench.workspaces(&NAMES);
    let before = bench.truth(&NAMES)?;
    let workspace = bench.all_workspaces().get(&eks).await?;
    // Terraform destroys the cluster at once: what is left is to make another one, and to hand it out.
    bench.all_workspaces().delete(&eks, &DeleteParams::background()).await?;
    bench
        .until(bench.all_workspaces(), &eks, "another", |now| {
            now.uid() != workspace.uid()
        })
        .await?;
    bench
        .until(bench.control_planes(), NAMES.control_plane, "Ready again", |c| {
            is_true(c, "Ready") && text(c, "/status/endpoint") != before.server.trim_start_matches("https://")
        })
        .await
        .context("the new cluster listens elsewhere, and that was not published")?;
    ends_like(&bench, undisturbed_in_existing_vpc().await?).await?;
    bench.delete_without_a_trace(&NAMES).await
}

#[tokio::test]
async fn a_network_whose_object_was_torn_away_outlives_the_cluster_in_it() -> Result<()> {
    let bench = Bench::new("torn-network").await?;
    bench.cluster(&NAMES, Wishes::default()).await?;
    bench.available(&NAMES).await?;
    let mut network = History::begin(bench.applies(), &names::vpc_apply_name(NAMES.network)).await?;
    tear_away(&bench, bench.networks(), NAMES.network).await?;
    network
        .until("held", |apply| condition(apply, "Deleting") == "True/Held")
        .await?;
    bench.check_access(&NAMES).await?;

    bench.delete(&NAMES).await?;
    network.until_gone().await?;
    bench.no_trace(&NAMES).await?;
    let said = network.tells(|apply| condition(apply, "Deleting"));
    assert!(
        !said.iter().any(|said| said.contains("Failed")),
        "destroyed too early: {said:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_network_outlives_a_cluster_whose_object_was_torn_away() -> Result<()> {
    let bench = Bench::new("torn-cluster").await?;
    bench.cluster(&NAMES, Wishes::default()).await?;
    bench.available(&NAMES).await?;
    let [_, eks] = bench.workspaces(&NAMES);
    bench.fail_destroys(&eks, "not yet").await?;
    tear_away(&bench, bench.control_planes(), NAMES.control_plane).await?;
    bench
        .clusters()
        .delete(NAMES.cluster, &DeleteParams::background())
        .await?;
    let waiting = bench
        .until(bench.networks(), NAMES.network, "waiting", |network| {
            condition(network, "Deleting") == "True/WaitingForControlPlane"
        })
        .await?;
    let apply = names::eks_apply_name(NAMES.control_plane);
    let said = message(&waiting, "Deleting");
    assert!(said.contains(&format!("WorkspaceTemplateApply {apply}")), "{said}");
    bench
        .until(bench.applies(), &apply, "failing", |apply| {
            condition(apply, "Deleting") == "True/DestroyFailed"
        })
        .await?;
    let vpc = bench.applies().get(&names::vpc_apply_name(NAMES.network)).await?;
    assert_eq!(vpc.metadata.deletion_timestamp, None, "the VPC goes before its cluster");
    bench.heal(&eks).await?;
    bench.gone(&NAMES).await?;
    bench.no_trace(&NAMES).await
}

/// Deletes an object, and does not wait for what its finalizers guard.
async fn tear_away(bench: &Bench, api: Api<DynamicObject>, name: &str) -> Result<()> {
    let mut object = History::begin(api.clone(), name).await?;
    api.delete(name, &DeleteParams::background()).await?;
    bench
        .patch(&api, name, json!({"metadata": {"finalizers": null}}))
        .await?;
    object.until_gone().await
}

#[tokio::test]
async fn many_changes_in_a_row_end_in_the_last() -> Result<()> {
    let bench = Bench::new("restless").await?;
    bench.cluster(&NAMES, Wishes::default()).await?;
    let [vpc, eks] = bench.workspaces(&NAMES);
    // Before, during and after the first apply.
    for turn in 0..12 {
        let change = json!({"spec": {"additionalTags": {"turn": turn.to_string()}}});
        bench
            .patch(&bench.control_planes(), NAMES.control_plane, change)
            .await?;
        let change = json!({"spec": {"variables": {"environment": format!("turn-{turn}")}}});
        bench.patch(&bench.networks(), NAMES.network, change).await?;
        if turn % 4 == 3 {
            control_plane_moves(&bench).await?;
        }
    }
    bench
        .until(bench.networks(), NAMES.network, "as wished", |network| {
            is_true(network, "VPCReady") && observed(network) == network.metadata.generation.unwrap_or_default()
        })
        .await?;
    let [_, wanted] = generations(&bench).await?;
    bench
        .until(
            bench.control_planes(),
            NAMES.control_plane,
            "Ready",
            ready_since(wanted),
        )
        .await?;
    let network = bench.entry(&vpc)?.context("no network")?;
    assert_eq!(network.input("environment"), "turn-11");
    let cluster = bench.entry(&eks)?.context("no cluster")?;
    assert!(
        cluster.input("tags").contains("\"turn\":\"11\""),
        "{}",
        cluster.input("tags")
    );

    // And back to where the undisturbed one is.
    bench
        .patch(
            &bench.control_planes(),
            NAMES.control_plane,
            json!({"spec": {"additionalTags": {"turn": null}}}),
        )
        .await?;
    bench
        .patch(
            &bench.networks(),
            NAMES.network,
            json!({"spec": {"variables": {"environment": "demo"}}}),
        )
        .await?;
    let [wanted_network, wanted] = generations(&bench).await?;
    bench
        .until(bench.networks(), NAMES.network, "as wished", |network| {
            is_true(network, "VPCReady") && observed(network) >= wanted_network
        })
        .await?;
    bench
        .until(
            bench.control_planes(),
            NAMES.control_plane,
            "Ready",
            ready_since(wanted),
        )
        .await?;
    ends_like(&bench, undisturbed().await?).await?;
    bench.delete_without_a_trace(&NAMES).await
}

/// What the network and the control plane are wished to be by now.
async fn generations(bench: &Bench) -> Result<[i64; 2]> {
    let network = bench.networks().get(NAMES.network).await?;
    let control_plane = bench.control_planes().get(NAMES.control_plane).await?;
    Ok([network, control_plane].map(|object| object.metadata.generation.unwrap_or_default()))
}

/// Waits until something more has happened to the control plane.
async fn control_plane_moves(bench: &Bench) -> Result<()> {
    let ready = condition(&bench.control_planes().get(NAMES.control_plane).await?, "Ready");
    bench
        .until(bench.control_planes(), NAMES.control_plane, "further", |c| {
            condition(c, "Ready") != ready || is_true(c, "Ready")
        })
        .await
        .map(drop)
}
