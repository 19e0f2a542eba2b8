//! Parts of the environment that go away and come back, in environments of their own: controllers, the Terraform provider,
//! the API server, Cluster API itself.

use anyhow::{Context, Result, ensure};
use capt_api::names::{self, annotation};
use capt_e2e::components::{
    API_SERVER, CLUSTER_CONTROLLER, CONTROL_PLANE_CONTROLLER, CONTROLLERS, CORE, OwnController, PROVIDER,
    STATE_NAMESPACE,
};
use capt_e2e::environment::Environment;
use capt_e2e::probe::Probe;
use capt_e2e::testing::bench::{Bench, Wishes, template, template_with};
use capt_e2e::testing::component::{self, Stopped};
use capt_e2e::testing::history::History;
use capt_e2e::testing::{Scratch, condition, is_true, message, objects, observed, ready_since, text};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};

use crate::{NAMES, ends_like, module_of, slow, undisturbed, undisturbed_in_existing_vpc};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_capt-e2e");

/// Takes all five controllers away, in the order in which they stand in the list.
async fn stop_controllers(environment: &Environment) -> Result<Vec<Stopped>> {
    let mut stopped = Vec::new();
    for own in CONTROLLERS {
        stopped.push(component::stop(environment, own.name).await?);
    }
    Ok(stopped)
}

/// The processes of the five.
fn running(environment: &Environment) -> Vec<Option<i32>> {
    let pid = |own: &OwnController| Some(environment.process(own.name)?.process.pid);
    CONTROLLERS.iter().map(pid).collect()
}

/// Starts a component and waits until its log has this line.
pub(crate) async fn start_until(
    environment: &Environment,
    stopped: Stopped,
    flags: &[&str],
    line: &'static str,
) -> Result<()> {
    let name = stopped.name().to_owned();
    let process = stopped.start_with(flags)?;
    Probe::LogLine(line)
        .wait(&name, &process, &environment.log(&name))
        .await
}

pub(crate) const LEADS: &str = "this replica leads now";

#[tokio::test]
async fn controllers_start_in_any_order_and_before_cluster_api() -> Result<()> {
    let scratch = Scratch::named(PROGRAM, "test-orders")?;
    scratch.up(&[])?;
    let environment = &scratch.environment;

    // Cluster API is not installed yet; its Cluster is the one kind of it that the controllers read.
    let bench = Bench::of(environment.clone(), "uninstalled").await?;
    let mut controllers = stop_controllers(environment).await?;
    component::stop(environment, CORE).await?;
    let crds = objects(
        &bench.client,
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        None,
    );
    crds.delete("clusters.cluster.x-k8s.io", &DeleteParams::background())
        .await?;
    History::begin(crds.clone(), "clusters.cluster.x-k8s.io")
        .await?
        .until_gone()
        .await?;
    for stopped in controllers {
        start_until(environment, stopped, &[], "watch=\"Cluster\" error=").await?;
    }
    for own in CONTROLLERS {
        ensure!(environment.process(own.name).is_some(), "{} did not wait", own.name);
    }
    // Brings back what is missing, and waits for everybody.
    let waiting = running(environment);
    scratch.up(&[])?;
    assert_eq!(running(environment), waiting, "nobody had to be started again");
    bench.cluster(&NAMES, Wishes::existing_vpc()).await?;
    ends_like(&bench, undisturbed_in_existing_vpc().await?).await?;

    // In each order the first cluster goes, and another comes, while nobody is there.
    let mut before = bench;
    for (turn, order) in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 4, 0, 3, 1]]
        .into_iter()
        .enumerate()
    {
        controllers = stop_controllers(environment).await?;
        before
            .clusters()
            .delete(NAMES.cluster, &DeleteParams::background())
            .await?;
        let bench = Bench::of(environment.clone(), &format!("order-{turn}")).await?;
        bench.cluster(&NAMES, Wishes::existing_vpc()).await?;
        let mut waiting: Vec<Option<Stopped>> = controllers.into_iter().map(Some).collect();
        for number in order {
            let stopped = waiting.get_mut(number).and_then(Option::take);
            let stopped = stopped.context("an order names each controller once")?;
            start_until(environment, stopped, &[], LEADS).await?;
        }
        before.gone(&NAMES).await?;
        before.no_trace(&NAMES).await?;
        ends_like(&bench, undisturbed_in_existing_vpc().await?).await?;
        before = bench;
    }
    before.delete_without_a_trace(&NAMES).await
}

/// Changes the control plane, and waits until it is as wished.
async fn change_control_plane(bench: &Bench, change: Value) -> Result<()> {
    let api = bench.control_planes();
    let generation = bench.patch(&api, NAMES.control_plane, change).await?;
    bench
        .until(api, NAMES.control_plane, "Ready", ready_since(generation))
        .await
        .map(drop)
}

/// A network that can be used stays Ready also while it is not as wished.
fn network_as_wished_since(generation: i64) -> impl Fn(&DynamicObject) -> bool {
    move |network| is_true(network, "VPCReady") && observed(network) >= generation
}

/// Seconds after which the controllers lose their patience in these tests.
const SHORT: [&str; 4] = [
    "--vpc-ready-timeout=12s",
    "--control-plane-timeout=12s",
    "--secret-timeout=12s",
    "--deletion-timeout=12s",
];

/// Starts the controllers that have deadlines with short ones, the way a crash does: without a warning.
async fn restart_with_short_deadlines(environment: &Environment) -> Result<()> {
    for (name, flags) in [
        (CLUSTER_CONTROLLER, [SHORT[0], SHORT[2], SHORT[3]].as_slice()),
        (CONTROL_PLANE_CONTROLLER, &SHORT),
    ] {
        let killed = component::kill(environment, name).await?;
        start_until(environment, killed, flags, LEADS).await?;
    }
    Ok(())
}

fn since(object: &DynamicObject, wait: &str) -> Option<String> {
    let since = text(object, &format!("/status/waitingSince/{wait}"));
    (!since.is_empty()).then(|| since.to_owned())
}

#[tokio::test]
async fn deadlines_pass_across_restarts_and_late_successes_heal() -> Result<()> {
    let scratch = Scratch::named(PROGRAM, "test-deadlines")?;
    scratch.up(&[])?;
    let environment = &scratch.environment;
    let bench = Bench::bare(environment.clone(), "deadlines").await?;
    bench.create(template("local-vpc")?, &Value::Null).await?;
    let closed = template_with("local-eks", "value     = local.kubeconfig", "value     = \"nonsense\"")?;
    bench.create(closed, &Value::Null).await?;
    let [vpc, eks] = bench.workspaces(&NAMES);
    bench
        .cluster(&NAMES, Wishes::default().network(slow()).control_plane(slow()))
        .await?;
    let failure = |cluster: &DynamicObject| text(cluster, "/status/deprecated/v1beta1/failureReason").to_owned();

    // The wait for the network begins under long deadlines, and is judged by short ones: the beginning is not forgotten.
    let waiting = bench
        .until(bench.networks(), NAMES.network, "waiting for Terraform", |network| {
            message(network, "VPCReady").contains("Terraform works on")
        })
        .await?;
    assert!(since(&waiting, "vpc").is_some());
    restart_with_short_deadlines(environment).await?;
    let late = bench
        .until(bench.networks(), NAMES.network, "too late", |network| {
            condition(network, "VPCFailed") == "True/VPCReadyTimeout"
        })
        .await?;
    assert_eq!(since(&late, "vpc"), since(&waiting, "vpc"));
    assert_eq!(text(&late, "/status/failureReason"), "VPCReadyTimeout");
    let late = bench
        .until(bench.control_planes(), NAMES.control_plane, "too late", |c| {
            condition(c, "Failed") == "True/VPCReadyTimeout"
        })
        .await?;
    assert_eq!(text(&late, "/status/failureReason"), "VPCReadyTimeout");
    bench
        .until(bench.clusters(), NAMES.cluster, "told by core", |cluster| {
            !failure(cluster).is_empty()
        })
        .await?;
    // Here, too: it may take longer than that until Terraform is at work.
    let killed = component::kill(environment, CONTROL_PLANE_CONTROLLER).await?;
    start_until(environment, killed, &["--control-plane-timeout=2h"], LEADS).await?;
    bench.heal(&vpc).await?;

    // The network heals, and the control plane's own deadline passes, while its controller is away.
    let waiting = bench
        .until(
            bench.control_planes(),
            NAMES.control_plane,
            "waiting for Terraform",
            |c| condition(c, "Ready") == "False/Creating" && message(c, "Ready").contains("Terraform is at work"),
        )
        .await?;
    assert!(since(&waiting, "controlPlane").is_some());
    let killed = component::kill(environment, CONTROL_PLANE_CONTROLLER).await?;
    start_until(environment, killed, &SHORT, LEADS).await?;
    let late = bench
        .until(bench.control_planes(), NAMES.control_plane, "too late", |c| {
            condition(c, "Failed") == "True/ControlPlaneTimeout"
        })
        .await?;
    assert_eq!(since(&late, "controlPlane"), since(&waiting, "controlPlane"));
    assert_eq!(text(&late, "/status/failureReason"), "ControlPlaneTimeout");
    bench.heal(&eks).await?;

    // Terraform is done at last; now the kubeconfig does not come.
    let late = bench
        .until(bench.control_planes(), NAMES.control_plane, "too late", |c| {
            condition(c, "Failed") == "True/SecretTimeout"
        })
        .await?;
    assert_eq!(text(&late, "/status/failureReason"), "SecretTimeout");
    assert!(since(&late, "secret").is_some());
    bench
        .patch(&bench.templates(), "local-eks", module_of(&template("local-eks")?)?)
        .await?;
    bench.available(&NAMES).await?;
    bench
        .until(bench.clusters(), NAMES.cluster, "free of failures", |cluster| {
            failure(cluster).is_empty()
        })
        .await?;
    // Slowness was only this run's; without it the spec is that of the undisturbed one.
    let quick = json!({"spec": {"variables": {"slow_seconds": null}}});
    let network_generation = bench.patch(&bench.networks(), NAMES.network, quick).await?;
    change_control_plane(&bench, json!({"spec": {"variables": null}})).await?;
    bench
        .until(
            bench.networks(),
            NAMES.network,
            "as wished",
            network_as_wished_since(network_generation),
        )
        .await?;
    ends_like(&bench, undisturbed().await?).await?;

    // A deletion that takes too long says so, and goes on.
    for workspace in [&eks, &vpc] {
        bench.fail_destroys(workspace, "held by somebody").await?;
    }
    bench
        .clusters()
        .delete(NAMES.cluster, &DeleteParams::background())
        .await?;
    for (api, workspace) in [(bench.control_planes(), &eks), (bench.networks(), &vpc)] {
        bench
            .until(api, NAMES.cluster, "too late, and why", |object| {
                condition(object, "Deleting") == "True/DeletionTimeout"
                    && message(object, "Deleting").contains("held by somebody")
            })
            .await?;
        bench.heal(workspace).await?;
    }
    bench.gone(&NAMES).await?;
    bench.no_trace(&NAMES).await?;

    // And one that has failed for good can be deleted.
    bench
        .cluster(&NAMES, Wishes::existing_vpc().control_plane(slow()))
        .await?;
    bench
        .until(bench.control_planes(), NAMES.control_plane, "too late", |c| {
            condition(c, "Failed") == "True/ControlPlaneTimeout"
        })
        .await?;
    bench
        .clusters()
        .delete(NAMES.cluster, &DeleteParams::background())
        .await?;
    bench
        .until(bench.control_planes(), NAMES.control_plane, "going", |c| {
            is_true(c, "Deleting")
        })
        .await?;
    bench.heal(&eks).await?;
    bench.gone(&NAMES).await?;
    bench.no_trace(&NAMES).await
}

#[tokio::test]
async fn the_provider_goes_and_comes_back() -> Result<()> {
    let scratch = Scratch::named(PROGRAM, "test-provider")?;
    scratch.up(&[])?;
    let environment = &scratch.environment;
    let bench = Bench::of(environment.clone(), "outages").await?;
    let [_, eks] = bench.workspaces(&NAMES);
    let apply = names::eks_apply_name(NAMES.control_plane);

    // Killed during the first apply: nobody knows what was made.
    bench
        .cluster(&NAMES, Wishes::existing_vpc().control_plane(slow()))
        .await?;
    bench
        .until(bench.applies(), &apply, "applying", |apply| {
            condition(apply, "Ready") == "False/Applying"
        })
        .await?;
    let provider = component::kill(environment, PROVIDER).await?;
    bench.heal(&eks).await?;
    provider.start()?;
    let interrupted = bench
        .until(bench.control_planes(), NAMES.control_plane, "asking for help", |c| {
            condition(c, "Failed") == "True/CreateInterrupted"
        })
        .await?;
    assert!(
        message(&interrupted, "Failed").contains(&eks),
        "{}",
        message(&interrupted, "Failed")
    );
    assert_eq!(text(&interrupted, "/status/failureReason"), "");
    let resume = |value: Value| json!({"metadata": {"annotations": {annotation::RESUME_CREATE: value}}});
    bench.patch(&bench.applies(), &apply, resume(json!(eks))).await?;
    // The Terraform that lost its provider may have kept its lock, which only a person can judge.
    let locked = bench
        .until(bench.control_planes(), NAMES.control_plane, "resumed", |c| {
            condition(c, "Failed") == "True/StateLocked" || is_true(c, "Ready")
        })
        .await?;
    if condition(&locked, "Failed") == "True/StateLocked" {
        let locks: Api<Lease> = Api::namespaced(bench.client.clone(), STATE_NAMESPACE);
        let unlock = json!({
            "metadata": {"annotations": {"app.terraform.io/lock-info": null}}, "spec": {"holderIdentity": null},
        });
        locks
            .patch(
                &format!("lock-tfstate-{eks}-capt"),
                &PatchParams::default(),
                &Patch::Merge(unlock),
            )
            .await?;
    }
    bench
        .until(bench.control_planes(), NAMES.control_plane, "Ready", |c| {
            is_true(c, "Ready")
        })
        .await?;
    bench.patch(&bench.applies(), &apply, resume(Value::Null)).await?;
    change_control_plane(&bench, json!({"spec": {"variables": null}})).await?;
    // What was resumed says so for ever, on the Workspace and in the revision of its spec.
    let applied = |apply: &DynamicObject| text(apply, "/status/lastAppliedRevision").to_owned();
    let resumed = applied(&bench.applies().get(&apply).await?);
    let forget = json!({"metadata": {"annotations": {annotation::RESUMED: null}}});
    bench.patch(&bench.all_workspaces(), &eks, forget).await?;
    bench
        .until(bench.applies(), &apply, "applied anew", |apply| {
            applied(apply) != resumed && is_true(apply, "Ready")
        })
        .await?;
    ends_like(&bench, undisturbed_in_existing_vpc().await?).await?;

    // A deletion while the provider is away waits for it.
    let provider = component::stop(environment, PROVIDER).await?;
    bench
        .clusters()
        .delete(NAMES.cluster, &DeleteParams::background())
        .await?;
    bench
        .until(bench.control_planes(), NAMES.control_plane, "waiting", |c| {
            condition(c, "Deleting") == "True/WaitingForWorkspace"
        })
        .await?;
    provider.start()?;
    bench.gone(&NAMES).await?;
    bench.no_trace(&NAMES).await
}

/// The state and its lock are kept by the same API server, so it goes while Terraform waits for the cloud: when it goes
/// while Terraform asks it for something, the lock is left behind, and only a person can judge that.
#[tokio::test]
async fn the_api_server_dies_in_the_middle_of_a_creation_and_of_a_deletion() -> Result<()> {
    let scratch = Scratch::named(PROGRAM, "test-api-server")?;
    scratch.up(&[])?;
    let environment = &scratch.environment;
    let bench = Bench::of(environment.clone(), "outages").await?;
    let [vpc, eks] = bench.workspaces(&NAMES);
    bench.cluster(&NAMES, Wishes::default().network(slow())).await?;
    bench.until_lingering(&vpc).await?;
    component::kill(environment, API_SERVER).await?;
    scratch.up(&[])?;
    bench.heal(&vpc).await?;
    bench.available(&NAMES).await?;
    let quick = json!({"spec": {"variables": {"slow_seconds": null}}});
    let generation = bench.patch(&bench.networks(), NAMES.network, quick).await?;
    bench
        .until(
            bench.networks(),
            NAMES.network,
            "as wished",
            network_as_wished_since(generation),
        )
        .await?;
    ends_like(&bench, undisturbed().await?).await?;

    let lasting = json!({"spec": {"variables": {"slow_destroy_seconds": "1100"}}});
    change_control_plane(&bench, lasting).await?;
    bench
        .clusters()
        .delete(NAMES.cluster, &DeleteParams::background())
        .await?;
    bench.until_lingering(&eks).await?;
    component::kill(environment, API_SERVER).await?;
    scratch.up(&[])?;
    bench.heal(&eks).await?;
    bench.gone(&NAMES).await?;
    bench.no_trace(&NAMES).await
}
