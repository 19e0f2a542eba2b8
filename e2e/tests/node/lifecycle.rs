//! A user's first day: install with defaults, make a cluster, delete it, uninstall.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use capt_api::crd;
use capt_e2e::components::CONTROLLER_NAMESPACE;
use capt_e2e::node::install::RELEASE;
use capt_e2e::testing::PATIENCE;
use capt_e2e::testing::bench::{Bench, Names, Wishes};
use capt_e2e::wait;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, ListParams};
use kube::discovery::{Discovery, Scope, verbs};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use crate::security::assert_confined;
use crate::site::{CONTROLLERS, HELM_PATIENCE, Site};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a node: make test-chart"]
async fn a_user_installs_makes_a_cluster_and_goes_again() -> Result<()> {
    let site = Site::build("terraform").await?;
    let namespace = Api::<Namespace>::all(site.client.clone())
        .get(CONTROLLER_NAMESPACE)
        .await?;
    ensure!(
        namespace
            .labels()
            .get("pod-security.kubernetes.io/enforce")
            .map(String::as_str)
            == Some("restricted"),
        "the namespace is not restricted"
    );
    let before = objects(&site.client).await?;

    let notes = site.install(&json!({}))?;
    for controller in CONTROLLERS {
        ensure!(notes.contains(controller), "{notes}");
    }
    site.all_ready(2).await?;
    assert_confined(&site).await?;

    let bench = Bench::of(site.scratch.environment.clone(), "first-day").await?;
    let names = Names::same("first");
    bench.cluster(&names, Wishes::default()).await?;
    bench.available(&names).await?;
    bench.check_access(&names).await?;

    let (success, said) = site.helm(&["uninstall", RELEASE, "--timeout", HELM_PATIENCE]).await?;
    ensure!(!success, "uninstalled in spite of a cluster: {said}");
    let namespace = &bench.namespace;
    for object in [
        format!("CAPTCluster {namespace}/first"),
        format!("CAPTControlPlane {namespace}/first"),
    ] {
        ensure!(said.contains(&object), "{said}");
    }
    site.all_ready(2).await?;

    bench.delete_without_a_trace(&names).await?;
    for controller in CONTROLLERS {
        site.requests(controller)?;
    }

    let (success, said) = site
        .helm(&["uninstall", RELEASE, "--wait", "--timeout", HELM_PATIENCE])
        .await?;
    ensure!(success, "{said}");
    for pod in site.pods().list(&ListParams::default()).await? {
        let name = pod.name_any();
        let gone = wait::until(site.pods(), &name, |pod: Option<&Pod>| pod.is_none());
        timeout(PATIENCE, gone).await.with_context(|| format!("{name} stays"))?;
    }
    let mut expected = before;
    expected.push(format!("Namespace {}", bench.namespace));
    // Kubernetes itself gives these to every namespace, in its own time.
    expected.extend(
        [
            "ConfigMap capt-system/kube-root-ca.crt",
            "ServiceAccount capt-system/default",
        ]
        .map(str::to_owned),
    );
    assert_only_what_is_promised(&site, &expected).await
}

/// The CRDs stay with what users made of them, and the Leases of the controllers, which belong to no release.
async fn assert_only_what_is_promised(site: &Site, expected: &[String]) -> Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(site.client.clone());
    for crd in crd::all() {
        crds.get(&crd.name_any()).await?;
    }
    let promised = |object: &str| {
        object.starts_with("Lease capt-system/capt-")
            || object.starts_with("WorkspaceTemplate ")
            || object.starts_with("CustomResourceDefinition ")
    };
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut left = objects(&site.client).await?;
        left.retain(|object| !expected.contains(object) && !promised(object));
        if left.is_empty() {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "left: {left:#?}");
        // What Kubernetes made for the release, such as its Services' EndpointSlices, it takes away in its own time, each kind by a
        // controller of its own; and nobody tells when the last of them is done.
        sleep(Duration::from_secs(1)).await;
    }
}

/// Every object that the chart could have made: of the cluster, and of the release's namespace.
async fn objects(client: &Client) -> Result<Vec<String>> {
    let discovery = Discovery::new(client.clone()).run().await?;
    let mut found = Vec::new();
    for (resource, capabilities) in discovery.groups().flat_map(|group| group.recommended_resources()) {
        // What happened is told in Events, and what is registered for a CRD follows from it.
        let derived = matches!(resource.kind.as_str(), "Event" | "APIService" | "ComponentStatus");
        if !capabilities.supports_operation(verbs::LIST) || derived {
            continue;
        }
        let api: Api<DynamicObject> = match capabilities.scope {
            Scope::Cluster => Api::all_with(client.clone(), &resource),
            Scope::Namespaced => Api::namespaced_with(client.clone(), CONTROLLER_NAMESPACE, &resource),
        };
        for object in api.list(&ListParams::default()).await? {
            let place = object
                .namespace()
                .map(|namespace| format!("{namespace}/"))
                .unwrap_or_default();
            found.push(format!("{} {place}{}", resource.kind, object.name_any()));
        }
    }
    Ok(found)
}
