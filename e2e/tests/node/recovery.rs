//! What an operator does to a running release, and what a machine does to it: controllers are upgraded alone and rolled
//! back, the node, the API server and etcd die and come back, the disk for logs is full, all in the midst of work.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use capt_e2e::components::{API_SERVER, CONTROLLER_NAMESPACE, ETCD, WORKSPACE_CONTROLLER};
use capt_e2e::node::install::RELEASE;
use capt_e2e::node::{self, images};
use capt_e2e::process;
use capt_e2e::testing::bench::INFRASTRUCTURE;
use capt_e2e::testing::component;
use capt_e2e::testing::until;
use capt_e2e::tools::Toolbox;
use futures::future::try_join_all;
use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, ResourceExt};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::disk::LogDisk;
use crate::site::{CONTROLLERS, HELM_PATIENCE, Site, process_of, said};
use crate::wave::Wave;

const NEXT: &str = "9.9.9-next";
/// Longer than a leader that cannot renew goes on, so that all of them have to stop.
const OUTAGE: Duration = Duration::from_secs(12);

/// Installs a release as the chart has it by default.
async fn release(site: &Site) -> Result<()> {
    site.install(&json!({}))?;
    site.all_ready(2).await
}

/// Waits until the first of the clusters is being made.
async fn work_has_begun(wave: &Wave, names: &[String]) -> Result<()> {
    let first = names.first().context("no cluster")?;
    let applies = wave.ours(INFRASTRUCTURE, "WorkspaceTemplateApply");
    until(&applies, &format!("{first}-vpc"), "made", |_| true)
        .await
        .map(drop)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a node: make test-chart"]
async fn a_controller_is_upgraded_alone_and_rolled_back_in_the_midst_of_work() -> Result<()> {
    let site = Site::build("simulator").await?;
    release(&site).await?;
    let environment = &site.scratch.environment;
    let tools = Toolbox::with_node(environment.cache()).await?;
    for controller in CONTROLLERS {
        let image = |tag: &str| format!("ghcr.io/capt-dev/{controller}:{tag}");
        images::tag(environment, &tools, &image(env!("CARGO_PKG_VERSION")), &image(NEXT)).await?;
    }
    let wave = Wave::new(&site, "upgraded").await?;

    let names = wave.create("upgraded", 6, 3).await?;
    work_has_begun(&wave, &names).await?;
    upgrade_alone(&site, "workspace", "capt-workspace-controller").await?;
    upgrade_alone(&site, "controlplane", "capt-controlplane-controller").await?;
    roll_back(&site, "capt-controlplane-controller").await?;
    wave.available(&names).await?;

    wave.delete(&names).await?;
    upgrade_alone(&site, "cluster", "capt-cluster-controller").await?;
    upgrade_alone(&site, "endpoint", "capt-endpoint").await?;
    upgrade_alone(&site, "secrets", "capt-secrets").await?;
    roll_back(&site, "capt-secrets").await?;
    wave.gone(&names).await
}

/// Gives one controller another image, and finds the others' pods as they were.
async fn upgrade_alone(site: &Site, value: &str, controller: &str) -> Result<()> {
    let before = pods(site).await?;
    site.upgrade(&["--set", &format!("controllers.{value}.image.tag={NEXT}")])
        .await?;
    site.ready(controller, 2).await?;
    assert_tag(site, controller, NEXT).await?;
    assert_others_untouched(site, controller, &before).await
}

/// Takes the last upgrade, which was of this controller, back.
async fn roll_back(site: &Site, controller: &str) -> Result<()> {
    let before = pods(site).await?;
    let (success, said) = site
        .helm(&["rollback", RELEASE, "--wait", "--timeout", HELM_PATIENCE])
        .await?;
    ensure!(success, "{said}");
    site.ready(controller, 2).await?;
    assert_tag(site, controller, env!("CARGO_PKG_VERSION")).await?;
    assert_others_untouched(site, controller, &before).await
}

/// The pods of every controller, by name.
async fn pods(site: &Site) -> Result<BTreeMap<&'static str, Vec<String>>> {
    let mut pods = BTreeMap::new();
    for controller in CONTROLLERS {
        let mut names: Vec<String> = site
            .pods_of(controller)
            .await?
            .iter()
            .map(ResourceExt::name_any)
            .collect();
        names.sort();
        pods.insert(controller, names);
    }
    Ok(pods)
}

async fn assert_others_untouched(site: &Site, controller: &str, before: &BTreeMap<&str, Vec<String>>) -> Result<()> {
    let now = pods(site).await?;
    for (other, pods) in before.iter().filter(|(other, _)| **other != controller) {
        ensure!(
            now.get(other) == Some(pods),
            "{other} was touched: {pods:?}, now {:?}",
            now.get(other)
        );
    }
    Ok(())
}

async fn assert_tag(site: &Site, controller: &str, tag: &str) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(site.client.clone(), CONTROLLER_NAMESPACE);
    let deployment = deployments.get(controller).await?;
    let template = deployment.spec.template.spec.context("a Deployment without pods")?;
    let container = template.containers.into_iter().next().context("no container")?;
    let image = container.image.unwrap_or_default();
    ensure!(image.ends_with(&format!(":{tag}")), "{controller} runs {image}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a node: make test-chart"]
async fn it_comes_back_by_itself() -> Result<()> {
    let site = Site::build("simulator").await?;
    let environment = &site.scratch.environment;
    let logs = LogDisk::mount(environment)?;
    release(&site).await?;
    let wave = Wave::new(&site, "outage").await?;

    // The node loses its power in the midst of creations: kubelet, containerd, and every container with them.
    let mut names = wave.create("power", 4, 3).await?;
    work_has_begun(&wave, &names).await?;
    let killed = [node::KUBELET, node::CONTAINERD].map(|component| async move {
        let record = environment.process(component);
        let record = record.with_context(|| format!("{component} does not run"))?;
        record.process.kill().await;
        anyhow::Ok(())
    });
    // Both are gone before their pods are: until then they could start another.
    try_join_all(killed).await?;
    node::end_pods(environment).await?;
    ensure!(
        !process::marked(environment.dir())
            .iter()
            .any(|process| process.is_named("containerd")),
        "something of the node survived"
    );
    site.scratch.up(&["--provider", "simulator"])?;
    wave.available(&names).await?;
    site.all_ready(2).await?;

    // API server and etcd die in the midst of creations, and stay away for longer than a leader may go on.
    let more = wave.create("store", 4, 3).await?;
    names.extend(more);
    let api_server = component::kill(environment, API_SERVER).await?;
    let etcd = component::kill(environment, ETCD).await?;
    tokio::time::sleep(OUTAGE).await;
    etcd.start()?;
    api_server.start()?;
    site.scratch.up(&["--provider", "simulator"])?;
    wave.available(&names).await?;
    site.all_ready(2).await?;

    // And while they go.
    wave.delete(&names).await?;
    component::kill(environment, API_SERVER).await?.start()?;
    site.scratch.up(&["--provider", "simulator"])?;
    wave.gone(&names).await?;
    site.all_ready(2).await?;

    // Not one line fits on the disk for logs: nobody works less for it, and who dies then begins again.
    let filling = logs.fill()?;
    let names = wave.create("full", 4, 1).await?;
    let (predecessor, leader) = site.leader(WORKSPACE_CONTROLLER).await?;
    kill(Pid::from_raw(process_of(&leader)?), Signal::SIGKILL)?;
    wave.available(&names).await?;
    wave.delete(&names).await?;
    wave.gone(&names).await?;
    site.successor(WORKSPACE_CONTROLLER, &predecessor).await?;
    site.all_ready(2).await?;
    // And when there is room, it is used.
    drop(filling);
    let names = wave.create("room", 1, 0).await?;
    let (_, leader) = site.leader(WORKSPACE_CONTROLLER).await?;
    said(site.follow(&leader).await?, "room-00").await?;
    wave.available(&names).await?;
    wave.delete(&names).await?;
    wave.gone(&names).await
}
