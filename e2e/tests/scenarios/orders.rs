//! Clusters whose parts come in unusual orders, with values that users give, or that change underneath.

use anyhow::{Context, Result};
use capt_api::names;
use capt_e2e::cloud;
use capt_e2e::testing::bench::{Bench, Names, Wishes, opens, value};
use capt_e2e::testing::history::History;
use capt_e2e::testing::{self, condition, is_true, message};
use futures::future::try_join;
use kube::ResourceExt;
use kube::api::{DeleteParams, DynamicObject, ListParams};
use serde_json::json;

use crate::{NAMES, ends_like, undisturbed, undisturbed_in_existing_vpc};

#[tokio::test]
async fn templates_that_come_last() -> Result<()> {
    let bench = Bench::bare(testing::environment()?, "late").await?;
    bench.cluster(&NAMES, Wishes::default()).await?;
    let waiting = bench
        .until(bench.networks(), NAMES.network, "waiting for its template", |network| {
            condition(network, "VPCReady") == "False/WaitingForTemplate"
        })
        .await?;
    assert!(
        message(&waiting, "VPCReady").contains("local-vpc"),
        "{}",
        message(&waiting, "VPCReady")
    );
    bench.create_templates().await?;
    ends_like(&bench, undisturbed().await?).await?;
    bench.delete_without_a_trace(&NAMES).await
}

#[tokio::test]
async fn a_network_that_comes_last() -> Result<()> {
    let bench = Bench::new("network-last").await?;
    let wishes = Wishes::existing_vpc();
    for kind in ["Cluster", "CAPTControlPlane"] {
        bench.part(kind, &NAMES, &wishes).await?;
    }
    let waiting = bench
        .until(
            bench.control_planes(),
            NAMES.control_plane,
            "waiting for its network",
            |c| condition(c, "Ready") == "False/WaitingForVPC",
        )
        .await?;
    assert!(
        message(&waiting, "Ready").contains("does not exist"),
        "{}",
        message(&waiting, "Ready")
    );
    bench.part("CAPTCluster", &NAMES, &wishes).await?;
    ends_like(&bench, undisturbed_in_existing_vpc().await?).await?;
    bench.delete_without_a_trace(&NAMES).await
}

#[tokio::test]
async fn a_cluster_that_comes_last() -> Result<()> {
    let bench = Bench::new("cluster-last").await?;
    let wishes = Wishes::existing_vpc();
    for kind in ["CAPTControlPlane", "CAPTCluster"] {
        bench.part(kind, &NAMES, &wishes).await?;
    }
    for (api, name) in [
        (bench.control_planes(), NAMES.control_plane),
        (bench.networks(), NAMES.network),
    ] {
        let waiting = bench
            .until(api, name, "waiting for its Cluster", |object| {
                condition(object, "Ready") == "False/WaitingForCluster"
            })
            .await?;
        assert!(
            waiting.finalizers().is_empty(),
            "nothing was done yet, so nothing guards it"
        );
    }
    bench.part("Cluster", &NAMES, &wishes).await?;
    ends_like(&bench, undisturbed_in_existing_vpc().await?).await?;
    bench.delete_without_a_trace(&NAMES).await
}

#[tokio::test]
async fn a_rotated_kubeconfig_is_followed() -> Result<()> {
    let bench = Bench::new("rotation").await?;
    bench.cluster(&NAMES, Wishes::existing_vpc()).await?;
    bench.available(&NAMES).await?;
    let kubeconfig = names::kubeconfig_secret(NAMES.cluster);
    let mut copies = Vec::new();
    for name in [&kubeconfig, &names::kubeconfig_alias_secret(NAMES.cluster)] {
        copies.push(History::begin(bench.secrets(), name).await?);
    }
    let old = value(&bench.secrets().get(&kubeconfig).await?, names::secret::KUBECONFIG_KEY)?;
    opens(&old).await?;

    let [_, eks] = bench.workspaces(&NAMES);
    let rotate = cloud::ClusterCommand::Rotate { name: eks.clone() };
    cloud::run(&bench.environment, cloud::Command::Cluster(rotate)).await?;
    assert!(opens(&old).await.is_err(), "the old token is over");
    // The provider looks once a minute; it looks now when something is written on the Workspace.
    let touch = json!({"metadata": {"annotations": {"capt.test/look": "again"}}});
    bench.patch(&bench.all_workspaces(), &eks, touch).await?;
    for copy in &mut copies {
        let followed = copy
            .until("the new one", |secret| {
                value(secret, names::secret::KUBECONFIG_KEY).is_ok_and(|text| text != old)
            })
            .await?;
        opens(&value(&followed, names::secret::KUBECONFIG_KEY)?).await?;
        assert!(!copy.was_ever_gone(), "{} was never away", copy.name());
        assert_eq!(
            copy.tells(ResourceExt::uid).len(),
            1,
            "{} is the same Secret",
            copy.name()
        );
        assert_eq!(
            copy.tells(ResourceExt::resource_version).len(),
            2,
            "{} was written once",
            copy.name()
        );
    }
    let forget = json!({"metadata": {"annotations": {"capt.test/look": null}}});
    bench.patch(&bench.all_workspaces(), &eks, forget).await?;
    ends_like(&bench, undisturbed_in_existing_vpc().await?).await?;
    bench.delete_without_a_trace(&NAMES).await
}

#[tokio::test]
async fn an_endpoint_that_the_user_gives_with_the_network() -> Result<()> {
    let bench = Bench::new("own-endpoint").await?;
    let own = json!({"host": "api.example.com", "port": 6443});
    let mut cluster = History::begin(bench.clusters(), NAMES.cluster).await?;
    let wishes = Wishes::existing_vpc().network(json!({"spec": {"controlPlaneEndpoint": own}}));
    bench.cluster(&NAMES, wishes).await?;
    cluster.until("Available", |c| is_true(c, "Available")).await?;

    let control_plane = bench.control_planes().get(NAMES.control_plane).await?;
    assert_eq!(condition(&control_plane, "EndpointReady"), "True/UserSupplied");
    let truth = bench.truth(&NAMES)?;
    let found = truth.server.strip_prefix("https://").context("a URL")?;
    for endpoint in ["api.example.com:6443", found] {
        assert!(
            message(&control_plane, "EndpointReady").contains(endpoint),
            "{endpoint} is not in: {}",
            message(&control_plane, "EndpointReady")
        );
    }
    let network = bench.networks().get(NAMES.network).await?;
    assert_eq!(testing::text(&network, "/status/endpoint"), "api.example.com:6443");
    bench.check_secrets(&NAMES).await?;

    bench.delete_without_a_trace(&NAMES).await?;
    cluster.until_gone().await?;
    let endpoints = cluster.tells(|c| c.data.pointer("/spec/controlPlaneEndpoint").cloned());
    assert_eq!(endpoints, [None, Some(own)], "set once, by core, and never touched");
    Ok(())
}

#[tokio::test]
async fn an_endpoint_changes_hands_and_comes_back() -> Result<()> {
    let bench = Bench::new("hands").await?;
    bench.cluster(&NAMES, Wishes::existing_vpc()).await?;
    bench.available(&NAMES).await?;
    let mut control_plane = History::begin(bench.control_planes(), NAMES.control_plane).await?;
    let theirs = json!({"spec": {"controlPlaneEndpoint": {"host": "api.example.com", "port": 6443}}});
    let nobodys = json!({"spec": {"controlPlaneEndpoint": null}});
    for (api, name) in [(bench.clusters(), NAMES.cluster), (bench.networks(), NAMES.network)] {
        bench.patch(&api, name, theirs.clone()).await?;
        let supplied = control_plane
            .until("the user's", |c| condition(c, "EndpointReady") == "True/UserSupplied")
            .await?;
        assert!(
            message(&supplied, "EndpointReady").contains("api.example.com:6443"),
            "{}",
            message(&supplied, "EndpointReady")
        );
        assert!(is_true(&supplied, "Ready"), "{}", condition(&supplied, "Ready"));
        bench.patch(&api, name, nobodys.clone()).await?;
        control_plane
            .until("ours again", |c| {
                condition(c, "EndpointReady") == "True/EndpointPublished"
            })
            .await?;
    }
    ends_like(&bench, undisturbed_in_existing_vpc().await?).await?;
    bench.delete_without_a_trace(&NAMES).await
}

#[tokio::test]
async fn rivals_for_a_name_are_deleted_at_the_same_moment() -> Result<()> {
    let bench = Bench::new("rivals").await?;
    // The contract's Secret of the second has the name of the first's alias.
    let rivals = [Names::same("a"), Names::same("a-control-plane")];
    for names in &rivals {
        bench.cluster(names, Wishes::existing_vpc()).await?;
    }
    let [first, second] = &rivals;
    try_join(bench.available(first), bench.available(second)).await?;
    for names in &rivals {
        bench.check_access(names).await?;
    }
    for names in &rivals {
        bench
            .clusters()
            .delete(names.cluster, &DeleteParams::background())
            .await?;
    }
    try_join(bench.gone(first), bench.gone(second)).await?;
    for names in &rivals {
        bench.no_trace(names).await?;
    }
    let left = bench.secrets().list(&ListParams::default()).await?;
    let left: Vec<String> = left.iter().map(DynamicObject::name_any).collect();
    assert!(left.is_empty(), "Secrets are left: {left:?}");
    Ok(())
}
