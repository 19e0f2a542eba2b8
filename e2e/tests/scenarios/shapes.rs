//! Clusters of other shapes than the example's: long names, a ClusterClass, a network that somebody else manages.

use anyhow::{Context, Result};
use capt_e2e::testing::bench::{Bench, CONTROL_PLANE, CORE, INFRASTRUCTURE, Names, Wishes};
use capt_e2e::testing::{condition, is_true, objects, text};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::NAMES;

#[tokio::test]
async fn names_as_long_as_they_may_be() -> Result<()> {
    let bench = Bench::new("long").await?;
    // A Cluster's name is a label, so it has 63 characters; the others may have 253, and dots.
    let names = Names {
        cluster: "a-cluster-whose-name-takes-all-the-room-that-there-is-for-names",
        network: concat!(
            "network.of-a-cluster.whose-name-is-so-long.that-nothing-can-be-added.network.of-a-cluster.whose-name-is-so-long.",
            "that-nothing-can-be-added.network.of-a-cluster.whose-name-is-so-long.that-nothing-can-be-added.network.of-a-",
            "cluster.with-the-longest-name-ok"
        ),
        control_plane: concat!(
            "service.of-a-cluster.whose-name-is-so-long.that-nothing-can-be-added.service.of-a-cluster.whose-name-is-so-long.",
            "that-nothing-can-be-added.service.of-a-cluster.whose-name-is-so-long.that-nothing-can-be-added.service.of-a-",
            "cluster.with-the-longest-name-ok"
        ),
    };
    assert_eq!(
        (names.cluster.len(), names.network.len(), names.control_plane.len()),
        (63, 252, 252)
    );
    bench.cluster(&names, Wishes::default()).await?;
    bench.available(&names).await?;
    bench.check_access(&names).await?;
    bench.delete_without_a_trace(&names).await
}

#[tokio::test]
async fn a_cluster_of_a_class() -> Result<()> {
    let bench = Bench::new("class").await?;
    let class = [
        json!({
            "apiVersion": INFRASTRUCTURE, "kind": "CAPTClusterTemplate", "metadata": {"name": "networks"},
            "spec": {"template": {"spec": {"region": "eu-west-1", "vpcTemplateRef": {"name": "local-vpc"}}}},
        }),
        json!({
            "apiVersion": CONTROL_PLANE, "kind": "CAPTControlPlaneTemplate", "metadata": {"name": "services"},
            "spec": {"template": {"spec": {
                "version": "v1.31.0", "workspaceTemplateRef": {"name": "local-eks"},
                "controlPlaneConfig": {"region": "eu-west-1"},
            }}},
        }),
        json!({
            "apiVersion": CORE, "kind": "ClusterClass", "metadata": {"name": "local"},
            "spec": {
                "infrastructure": {"templateRef": {
                    "apiVersion": INFRASTRUCTURE, "kind": "CAPTClusterTemplate", "name": "networks",
                }},
                "controlPlane": {"templateRef": {
                    "apiVersion": CONTROL_PLANE, "kind": "CAPTControlPlaneTemplate", "name": "services",
                }},
            },
        }),
        json!({
            "apiVersion": CORE, "kind": "Cluster", "metadata": {"name": NAMES.cluster},
            "spec": {"topology": {"classRef": {"name": "local"}, "version": "v1.31.0"}},
        }),
    ];
    for object in class {
        bench.create(object, &Value::Null).await?;
    }
    let cluster = bench
        .until(bench.clusters(), NAMES.cluster, "Available", |cluster| {
            is_true(cluster, "Available")
        })
        .await?;
    assert_eq!(condition(&cluster, "TopologyReconciled"), "True/ReconcileSucceeded");
    let control_plane = text(&cluster, "/spec/controlPlaneRef/name").to_owned();
    let now = bench.control_planes().get(&control_plane).await?;
    assert_eq!(
        now.data.pointer("/status/versions"),
        Some(&json!([{"version": "v1.31.0"}]))
    );

    // The class's controller rolls a new version out.
    let upgrade = json!({"spec": {"topology": {"version": "v1.32.0"}}});
    bench.patch(&bench.clusters(), NAMES.cluster, upgrade).await?;
    bench
        .until(bench.control_planes(), &control_plane, "upgraded", |c| {
            text(c, "/status/version") == "v1.32.0" && is_true(c, "Ready")
        })
        .await?;
    let applies = bench.applies().list(&ListParams::default()).await?;
    let workspaces: Vec<String> = applies
        .iter()
        .map(|apply| text(apply, "/status/workspaceName").to_owned())
        .collect();
    assert_eq!(workspaces.len(), 2);
    bench
        .clusters()
        .delete(NAMES.cluster, &DeleteParams::background())
        .await?;
    bench.gone(&NAMES).await?;
    for workspace in workspaces {
        bench.no_workspace(&workspace).await?;
    }
    for api in [bench.networks(), bench.control_planes(), bench.applies()] {
        let left = api.list(&ListParams::default()).await?;
        assert_eq!(
            left.items.len(),
            0,
            "{:?}",
            left.iter().map(ResourceExt::name_any).collect::<Vec<_>>()
        );
    }
    bench.invariants_held().await
}

#[tokio::test]
async fn a_network_that_somebody_else_manages() -> Result<()> {
    let bench = Bench::new("external").await?;
    let managed = json!({"metadata": {"annotations": {"cluster.x-k8s.io/managed-by": "somebody"}}});
    bench.cluster(&NAMES, Wishes::default().network(managed)).await?;
    bench
        .until(
            bench.control_planes(),
            NAMES.control_plane,
            "waiting for its network",
            |c| condition(c, "Ready") == "False/WaitingForVPC",
        )
        .await?;
    let network = bench.networks().get(NAMES.network).await?;
    assert!(
        network.finalizers().is_empty() && network.data.get("status").is_none(),
        "it is left alone"
    );
    let told = json!({"status": {
        "ready": true, "initialization": {"provisioned": true}, "vpcId": "vpc-0123456789abcdef0",
    }});
    bench
        .networks()
        .patch_status(NAMES.network, &PatchParams::default(), &Patch::Merge(told))
        .await?;
    bench.available(&NAMES).await?;
    bench.check_access(&NAMES).await?;
    let [vpc, eks] = bench.workspaces(&NAMES);
    assert!(bench.entry(&vpc)?.is_none(), "no network of ours");
    let entry = bench.entry(&eks)?.context("no cluster")?;
    assert_eq!(entry.input("vpc_id"), "vpc-0123456789abcdef0");
    bench.delete_without_a_trace(&NAMES).await
}

#[tokio::test]
async fn a_network_that_becomes_one_that_exists() -> Result<()> {
    let bench = Bench::new("handed-over").await?;
    bench.cluster(&NAMES, Wishes::default()).await?;
    bench.available(&NAMES).await?;
    let [vpc, eks] = bench.workspaces(&NAMES);
    let made = bench.entry(&vpc)?.context("no network")?;
    let id = text(&bench.networks().get(NAMES.network).await?, "/status/vpcId").to_owned();
    let existing = json!({"spec": {"vpcTemplateRef": null, "existingVpcId": id}});
    bench.patch(&bench.networks(), NAMES.network, existing).await?;
    bench
        .until(bench.networks(), NAMES.network, "an existing one", |network| {
            condition(network, "VPCReady") == "True/ExistingVPCUsed"
        })
        .await?;
    bench.delete(&NAMES).await?;
    bench.no_workspace(&eks).await?;
    // A VPC that exists is never deleted, also when it was once made here.
    assert_eq!(bench.entry(&vpc)?.as_ref(), Some(&made));
    assert!(
        objects(&bench.client, "tf.upbound.io/v1beta1", "Workspace", None)
            .get_opt(&vpc)
            .await?
            .is_some()
    );

    bench.cluster(&NAMES, Wishes::default()).await?;
    bench
        .until(bench.networks(), NAMES.network, "taken over", |network| {
            is_true(network, "Ready")
        })
        .await?;
    bench.delete_without_a_trace(&NAMES).await
}
