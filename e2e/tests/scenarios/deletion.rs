//! Deletion: in order, at every moment, whoever asks for it, whatever fails, and what is to be kept is kept.

use anyhow::{Context, Result, bail, ensure};
use capt_api::WorkspaceKind;
use capt_api::names::{self, annotation};
use capt_e2e::audit;
use capt_e2e::components::{
    CLUSTER_CONTROLLER, CONTROL_PLANE_CONTROLLER, CORE, ENDPOINT_CONTROLLER, SECRETS_CONTROLLER, WORKSPACE_CONTROLLER,
};
use capt_e2e::testing::bench::{Bench, Names, Wishes, template, template_with};
use capt_e2e::testing::history::History;
use capt_e2e::testing::{self, condition, is_true, message, text};
use futures::future::try_join_all;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{DeleteParams, DynamicObject, PropagationPolicy};
use serde_json::{Value, json};

use crate::{NAMES, ends_like, ends_well, plain, slow, undisturbed};

fn with_propagation(policy: PropagationPolicy) -> DeleteParams {
    DeleteParams {
        propagation_policy: Some(policy),
        ..DeleteParams::default()
    }
}

async fn control_plane_ready(bench: &Bench) -> Result<DynamicObject> {
    bench
        .until(bench.control_planes(), NAMES.control_plane, "Ready", |c| {
            is_true(c, "Ready")
        })
        .await
}

/// Waits until the control plane, or the network, says this of its deletion.
async fn deleting(bench: &Bench, api: kube::Api<DynamicObject>, said: &str) -> Result<DynamicObject> {
    bench
        .until(api, NAMES.cluster, &format!("Deleting={said}"), |object| {
            condition(object, "Deleting") == said
        })
        .await
}

/// Core deletes the workers first, and waits for them; a cluster whose API server went before them could not let them go.
#[tokio::test]
async fn workers_go_before_their_control_plane() -> Result<()> {
    let bench = Bench::new("workers").await?;
    bench.cluster(&NAMES, Wishes::existing_vpc()).await?;
    bench.available(&NAMES).await?;
    let worker = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": {"name": "worker", "finalizers": ["example.com/still-there"]},
        "spec": {
            "clusterName": NAMES.cluster,
            "bootstrap": {"dataSecretName": "worker"},
            "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "CAPTCluster", "name": "worker"},
        },
    });
    bench.create(worker, &Value::Null).await?;
    bench
        .clusters()
        .delete(NAMES.cluster, &DeleteParams::background())
        .await?;
    bench
        .until(bench.clusters(), NAMES.cluster, "waiting for its workers", |cluster| {
            condition(cluster, "Deleting") == "True/WaitingForWorkersDeletion"
        })
        .await?;
    let control_plane = bench.control_planes().get(NAMES.control_plane).await?;
    assert_eq!(control_plane.metadata.deletion_timestamp, None);
    assert!(is_true(&control_plane, "Ready"));

    let machines = testing::objects(
        &bench.client,
        "cluster.x-k8s.io/v1beta2",
        "Machine",
        Some(&bench.namespace),
    );
    bench
        .patch(&machines, "worker", json!({"metadata": {"finalizers": null}}))
        .await?;
    bench.gone(&NAMES).await?;
    bench.no_trace(&NAMES).await
}

#[tokio::test]
async fn the_audit_log_shows_the_order() -> Result<()> {
    let bench = Bench::new("order").await?;
    bench.cluster(&NAMES, Wishes::default()).await?;
    bench.available(&NAMES).await?;
    goes_in_order(&bench).await
}

/// Deletes the Cluster, and looks up in the audit log who did what, and when.
pub(crate) async fn goes_in_order(bench: &Bench) -> Result<()> {
    let vpc_apply = names::vpc_apply_name(NAMES.network);
    let eks_apply = names::eks_apply_name(NAMES.control_plane);
    let mut network = History::begin(bench.applies(), &vpc_apply).await?;
    let begun = Timestamp::now();
    bench.delete_without_a_trace(&NAMES).await?;
    network.until_gone().await?;
    // The cloud refuses to delete a network in which there is a cluster.
    let said = network.tells(|apply| condition(apply, "Deleting"));
    assert!(!said.iter().any(|said| said.contains("Failed")), "{said:?}");

    let [vpc, eks] = bench.workspaces(&NAMES);
    let it = NAMES.cluster;
    let kubeconfig = names::kubeconfig_secret(it);
    // The last request of this kind by this user for this object; only a delete is made once.
    let order = [
        (CORE, "delete", "captcontrolplanes", it),
        (ENDPOINT_CONTROLLER, "patch", "clusters", it),
        (ENDPOINT_CONTROLLER, "patch", "captcontrolplanes", it),
        (
            CONTROL_PLANE_CONTROLLER,
            "patch",
            "workspacetemplateapplies",
            eks_apply.as_str(),
        ),
        (
            CONTROL_PLANE_CONTROLLER,
            "delete",
            "workspacetemplateapplies",
            &eks_apply,
        ),
        (WORKSPACE_CONTROLLER, "delete", "workspaces", &eks),
        (WORKSPACE_CONTROLLER, "patch", "workspacetemplateapplies", &eks_apply),
        (CONTROL_PLANE_CONTROLLER, "patch", "captcontrolplanes", it),
        (CORE, "delete", "captclusters", it),
        (CLUSTER_CONTROLLER, "patch", "workspacetemplateapplies", &vpc_apply),
        (CLUSTER_CONTROLLER, "delete", "workspacetemplateapplies", &vpc_apply),
        (WORKSPACE_CONTROLLER, "delete", "workspaces", &vpc),
        (WORKSPACE_CONTROLLER, "patch", "workspacetemplateapplies", &vpc_apply),
        (CLUSTER_CONTROLLER, "patch", "captclusters", it),
        (CORE, "patch", "clusters", it),
    ];
    let secrets = [
        (CORE, "delete", "captcontrolplanes", it),
        (SECRETS_CONTROLLER, "delete", "secrets", kubeconfig.as_str()),
        (SECRETS_CONTROLLER, "patch", "captcontrolplanes", it),
        (
            CONTROL_PLANE_CONTROLLER,
            "patch",
            "workspacetemplateapplies",
            &eks_apply,
        ),
    ];
    let log = audit::read(&bench.environment)?;
    for chain in [&order[..], &secrets[..]] {
        came_in_order(bench, &log, chain)?;
    }
    // Nobody else deleted anything: garbage collection is only the second net.
    for (resource, name) in [
        ("workspacetemplateapplies", &eks_apply),
        ("workspacetemplateapplies", &vpc_apply),
    ] {
        let deletes = log.0.iter().filter(|request| {
            request.verb == "delete"
                && request.resource_path() == resource
                && request.object() == (bench.namespace.as_str(), name.as_str())
                && request.received() >= begun
        });
        let by: Vec<&str> = deletes.map(audit::Request::user).collect();
        assert_eq!(by.len(), 1, "{name} was deleted by {by:?}");
    }
    Ok(())
}

/// User, verb, resource and name.
type Step<'a> = (&'a str, &'a str, &'a str, &'a str);

/// Each of these came before the next; of several equal ones the last counts.
pub(crate) fn came_in_order(bench: &Bench, log: &audit::Audit, chain: &[Step<'_>]) -> Result<()> {
    let when = |(user, verb, resource, name): Step<'_>| -> Result<Timestamp> {
        let found = log.0.iter().rev().find(|request| {
            let (namespace, object) = request.object();
            request.user() == user
                && request.verb == verb
                && request.resource_path() == resource
                && object == name
                && (namespace == bench.namespace || namespace.is_empty())
                && request.code() < 300
        });
        let request = found.with_context(|| format!("no {user} {verb} {resource} {name} in the audit log"))?;
        Ok(request.received())
    };
    for pair in chain.windows(2) {
        if let [first, second] = pair {
            ensure!(when(*first)? < when(*second)?, "{second:?} came before {first:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn before_anything_has_begun() -> Result<()> {
    // Without a Cluster nothing was made, so nothing holds them.
    let bench = Bench::new("ownerless").await?;
    for kind in ["CAPTControlPlane", "CAPTCluster"] {
        bench.part(kind, &NAMES, &Wishes::default()).await?;
    }
    for api in [bench.control_planes(), bench.networks()] {
        bench
            .until(api.clone(), NAMES.cluster, "looked at", |object| {
                condition(object, "Ready") == "False/WaitingForCluster"
            })
            .await?;
        api.delete(NAMES.cluster, &DeleteParams::background()).await?;
        History::begin(api, NAMES.cluster).await?.until_gone().await?;
    }
    bench.no_trace(&NAMES).await?;

    // In the same breath, again and again, so that it hits other moments. A Cluster that core has not seen yet goes at once
    // and leaves the two behind, as manifests that nobody has begun with.
    for _ in 0..3 {
        bench.cluster(&NAMES, Wishes::default()).await?;
        bench.delete(&NAMES).await?;
        for api in [bench.control_planes(), bench.networks()] {
            if api.get_opt(NAMES.cluster).await?.is_some() {
                api.delete(NAMES.cluster, &DeleteParams::background()).await?;
                History::begin(api, NAMES.cluster).await?.until_gone().await?;
            }
        }
        bench.no_trace(&NAMES).await?;
    }
    Ok(())
}

#[tokio::test]
async fn while_a_template_is_missing() -> Result<()> {
    let bench = Bench::bare(testing::environment()?, "untemplated").await?;
    bench.cluster(&NAMES, Wishes::default()).await?;
    bench
        .until(bench.networks(), NAMES.network, "waiting for its template", |network| {
            condition(network, "VPCReady") == "False/WaitingForTemplate"
        })
        .await?;
    bench.delete_without_a_trace(&NAMES).await?;

    // The same for the control plane's.
    bench.create(template("local-vpc")?, &Value::Null).await?;
    bench.cluster(&NAMES, Wishes::default()).await?;
    bench
        .until(
            bench.control_planes(),
            NAMES.control_plane,
            "waiting for its template",
            |c| condition(c, "Ready") == "False/WaitingForTemplate",
        )
        .await?;
    bench.delete_without_a_trace(&NAMES).await
}

#[tokio::test]
async fn while_terraform_makes_the_network() -> Result<()> {
    let bench = Bench::new("slow-network").await?;
    bench.cluster(&NAMES, Wishes::default().network(slow())).await?;
    let apply = names::vpc_apply_name(NAMES.network);
    bench
        .until(bench.applies(), &apply, "applying", |apply| {
            condition(apply, "Ready") == "False/Applying"
        })
        .await?;
    bench
        .clusters()
        .delete(NAMES.cluster, &DeleteParams::background())
        .await?;
    let waits = deleting(&bench, bench.networks(), "True/WaitingForWorkspace").await?;
    assert!(
        message(&waits, "Deleting").contains(&apply),
        "{}",
        message(&waits, "Deleting")
    );
    let [vpc, eks] = bench.workspaces(&NAMES);
    bench.heal(&vpc).await?;
    bench.gone(&NAMES).await?;
    assert!(
        bench.entry(&eks)?.is_none(),
        "no cluster is begun in a network that goes"
    );
    bench.no_trace(&NAMES).await
}

#[tokio::test]
async fn while_terraform_makes_the_control_plane() -> Result<()> {
    let bench = Bench::new("slow-cluster").await?;
    bench.cluster(&NAMES, Wishes::default().control_plane(slow())).await?;
    let apply = names::eks_apply_name(NAMES.control_plane);
    bench
        .until(bench.applies(), &apply, "applying", |apply| {
            condition(apply, "Ready") == "False/Applying"
        })
        .await?;
    bench
        .clusters()
        .delete(NAMES.cluster, &DeleteParams::background())
        .await?;
    let waits = deleting(&bench, bench.control_planes(), "True/WaitingForWorkspace").await?;
    assert!(
        message(&waits, "Deleting").contains(&apply),
        "{}",
        message(&waits, "Deleting")
    );
    let [vpc, eks] = bench.workspaces(&NAMES);
    assert!(bench.entry(&vpc)?.is_some(), "the network waits");
    bench.heal(&eks).await?;
    bench.gone(&NAMES).await?;
    bench.no_trace(&NAMES).await
}

#[tokio::test]
async fn while_terraform_changes_a_running_cluster() -> Result<()> {
    let bench = Bench::new("slow-change").await?;
    bench.cluster(&NAMES, Wishes::existing_vpc()).await?;
    control_plane_ready(&bench).await?;
    bench
        .patch(&bench.control_planes(), NAMES.control_plane, slow())
        .await?;
    bench
        .until(bench.control_planes(), NAMES.control_plane, "changing", |c| {
            condition(c, "Ready") == "False/Updating" && message(c, "Ready").contains("Terraform is at work")
        })
        .await?;
    bench
        .clusters()
        .delete(NAMES.cluster, &DeleteParams::background())
        .await?;
    deleting(&bench, bench.control_planes(), "True/WaitingForWorkspace").await?;
    let [_, eks] = bench.workspaces(&NAMES);
    bench.heal(&eks).await?;
    bench.gone(&NAMES).await?;
    bench.no_trace(&NAMES).await
}

#[tokio::test]
async fn between_workspace_endpoint_and_secrets() -> Result<()> {
    // Each stands at its point for ever: nothing mends the templates.
    let mute = template_with("local-eks", "value = try(local.access.server, \"\")", "value = \"\"")?;
    let wrong = template_with("local-eks", "value     = local.kubeconfig", "value     = \"nonsense\"")?;
    let stages = [("mute", mute, "EndpointMissing"), ("closed", wrong, "SecretsFailed")];
    try_join_all(stages.into_iter().map(async |(prefix, template, stage)| {
        let bench = Bench::bare(testing::environment()?, prefix).await?;
        bench.create(template, &Value::Null).await?;
        bench.cluster(&NAMES, Wishes::existing_vpc()).await?;
        bench
            .until(bench.control_planes(), NAMES.control_plane, stage, |c| {
                condition(c, "Ready") == format!("False/{stage}")
            })
            .await?;
        bench.delete_without_a_trace(&NAMES).await
    }))
    .await?;
    Ok(())
}

#[tokio::test]
async fn after_a_failure_and_through_a_failed_destroy() -> Result<()> {
    let bench = Bench::new("failures").await?;
    let broken = |message: &str| json!({"spec": {"variables": {"fault_apply": message}}});
    bench
        .cluster(&NAMES, Wishes::default().control_plane(broken("no capacity left")))
        .await?;
    bench
        .until(bench.control_planes(), NAMES.control_plane, "failed", |c| {
            condition(c, "Failed") == "True/TerraformFailed"
        })
        .await?;
    let [vpc, eks] = bench.workspaces(&NAMES);
    for (workspace, why) in [(&eks, "an interface is still in use"), (&vpc, "the account is locked")] {
        bench.fail_destroys(workspace, why).await?;
    }
    bench
        .clusters()
        .delete(NAMES.cluster, &DeleteParams::background())
        .await?;
    let stuck = deleting(&bench, bench.control_planes(), "True/DestroyFailed").await?;
    assert!(
        message(&stuck, "Deleting").contains("an interface is still in use"),
        "{}",
        message(&stuck, "Deleting")
    );
    assert!(
        condition(&stuck, "Failed").starts_with("False/"),
        "{}",
        condition(&stuck, "Failed")
    );
    let described = bench
        .clusterctl(&["describe", "cluster", NAMES.cluster, "--show-conditions", "all"])
        .await?;
    assert!(
        plain(&described).contains("an interface is still in use"),
        "{described}"
    );
    let network = bench.networks().get(NAMES.network).await?;
    assert!(network.metadata.deletion_timestamp.is_none(), "its turn has not come");
    bench.heal(&eks).await?;

    let stuck = deleting(&bench, bench.networks(), "True/DestroyFailed").await?;
    assert!(
        message(&stuck, "Deleting").contains("the account is locked"),
        "{}",
        message(&stuck, "Deleting")
    );
    assert!(bench.control_planes().get_opt(NAMES.control_plane).await?.is_none());
    bench.heal(&vpc).await?;
    bench.gone(&NAMES).await?;
    bench.no_trace(&NAMES).await
}

/// The Terraform provider does not even begin while a Workspace has a finalizer of somebody else's, and an apply whose work is
/// done stays for one: users see whose turn it is, and that endpoint and kubeconfig are gone meanwhile.
#[tokio::test]
async fn finalizers_of_others_are_named_and_waited_for() -> Result<()> {
    const FOREIGN: &str = "example.com/backup";
    let bench = Bench::new("finalizers").await?;
    bench.cluster(&NAMES, Wishes::existing_vpc()).await?;
    control_plane_ready(&bench).await?;
    let [_, eks] = bench.workspaces(&NAMES);
    let apply = names::eks_apply_name(NAMES.control_plane);
    for (api, name) in [(bench.all_workspaces(), &eks), (bench.applies(), &apply)] {
        let mut finalizers = api.get(name).await?.finalizers().to_vec();
        finalizers.push(FOREIGN.to_owned());
        bench
            .patch(&api, name, json!({"metadata": {"finalizers": finalizers}}))
            .await?;
    }
    bench
        .clusters()
        .delete(NAMES.cluster, &DeleteParams::background())
        .await?;
    let says = |words: &str| {
        let words = words.to_owned();
        move |c: &DynamicObject| {
            condition(c, "Deleting") == "True/ForeignFinalizer"
                && message(c, "Deleting").contains(&words)
                && message(c, "Deleting").contains(FOREIGN)
        }
    };
    let control_planes = || bench.control_planes();
    bench
        .until(
            control_planes(),
            NAMES.control_plane,
            "not begun",
            says("destroys nothing while Workspace"),
        )
        .await?;
    let withdrawn = bench
        .until(control_planes(), NAMES.control_plane, "withdrawn", |c| {
            condition(c, "EndpointReady") == "False/Deleting" && condition(c, "SecretsReady") == "False/Deleting"
        })
        .await?;
    assert_eq!(withdrawn.data.pointer("/status/endpoint"), None);
    assert_eq!(withdrawn.data.pointer("/status/secretsReady"), Some(&json!(false)));
    ensure!(bench.entry(&eks)?.is_some(), "destroyed although somebody held it");

    let workspace = bench.all_workspaces().get(&eks).await?;
    let others = |name: &&String| *name != FOREIGN;
    let finalizers: Vec<&String> = workspace.finalizers().iter().filter(others).collect();
    // The provider hears of an annotation, but not of a finalizer.
    let free = json!({"metadata": {"finalizers": finalizers, "annotations": {"example.com/backup": "done"}}});
    bench.patch(&bench.all_workspaces(), &eks, free).await?;
    bench
        .until(
            control_planes(),
            NAMES.control_plane,
            "nothing left",
            says("nothing is left to be done for it"),
        )
        .await?;
    ensure!(bench.entry(&eks)?.is_none(), "said to be done before it was");
    bench
        .patch(&bench.applies(), &apply, json!({"metadata": {"finalizers": null}}))
        .await?;
    bench.gone(&NAMES).await?;
    bench.no_trace(&NAMES).await
}

#[tokio::test]
async fn a_network_that_is_deleted_directly_waits_for_its_control_plane() -> Result<()> {
    let bench = Bench::new("network").await?;
    bench.cluster(&NAMES, Wishes::default()).await?;
    control_plane_ready(&bench).await?;
    bench
        .networks()
        .delete(NAMES.network, &DeleteParams::background())
        .await?;
    let waits = deleting(&bench, bench.networks(), "True/WaitingForControlPlane").await?;
    assert!(
        message(&waits, "Deleting").contains(NAMES.control_plane),
        "{}",
        message(&waits, "Deleting")
    );
    let apply = bench.applies().get(&names::vpc_apply_name(NAMES.network)).await?;
    assert!(apply.metadata.deletion_timestamp.is_none());
    bench.check_access(&NAMES).await?;

    // The control plane goes on being changed, although its network is on the way out.
    let generation = bench
        .patch(
            &bench.control_planes(),
            NAMES.control_plane,
            json!({"spec": {"version": "1.32"}}),
        )
        .await?;
    bench
        .until(bench.control_planes(), NAMES.control_plane, "upgraded", |c| {
            testing::ready_since(generation)(c) && text(c, "/status/version") == "1.32"
        })
        .await?;
    bench.delete_without_a_trace(&NAMES).await
}

#[tokio::test]
async fn a_control_plane_that_is_deleted_directly_can_be_made_again() -> Result<()> {
    let bench = Bench::new("again").await?;
    bench.cluster(&NAMES, Wishes::default()).await?;
    bench.available(&NAMES).await?;
    let [vpc, eks] = bench.workspaces(&NAMES);
    bench
        .control_planes()
        .delete(NAMES.control_plane, &DeleteParams::background())
        .await?;
    History::begin(bench.control_planes(), NAMES.control_plane)
        .await?
        .until_gone()
        .await?;
    bench.no_workspace(&eks).await?;
    assert!(bench.entry(&vpc)?.is_some(), "the network stays");
    for secret in [
        names::kubeconfig_secret(NAMES.cluster),
        names::kubeconfig_alias_secret(NAMES.cluster),
        names::ca_secret(NAMES.cluster),
    ] {
        assert!(bench.secrets().get_opt(&secret).await?.is_none(), "{secret} is left");
    }
    let cluster = bench.clusters().get(NAMES.cluster).await?;
    assert_eq!(cluster.data.pointer("/spec/controlPlaneEndpoint"), None);

    bench.part("CAPTControlPlane", &NAMES, &Wishes::default()).await?;
    control_plane_ready(&bench).await?;
    bench
        .until(bench.clusters(), NAMES.cluster, "led to the new one", |cluster| {
            cluster.data.pointer("/spec/controlPlaneEndpoint").is_some()
        })
        .await?;
    ends_like(&bench, undisturbed().await?).await?;
    bench.delete_without_a_trace(&NAMES).await
}

#[tokio::test]
async fn applies_that_are_deleted_directly_are_held_and_come_back() -> Result<()> {
    let bench = Bench::new("held").await?;
    bench.cluster(&NAMES, Wishes::default()).await?;
    bench.available(&NAMES).await?;
    applies_come_back(&bench).await?;
    ends_like(&bench, undisturbed().await?).await?;
    bench.delete_without_a_trace(&NAMES).await
}

/// Deletes both applies of a cluster, and has them back; their Workspaces are the same as before.
pub(crate) async fn applies_come_back(bench: &Bench) -> Result<()> {
    let applies = [
        names::vpc_apply_name(NAMES.network),
        names::eks_apply_name(NAMES.control_plane),
    ];
    let workspaces = bench.workspaces(&NAMES);
    let uids = try_join_all(
        workspaces
            .iter()
            .map(|name| async { anyhow::Ok(bench.all_workspaces().get(name).await?.uid()) }),
    )
    .await?;
    for apply in &applies {
        bench.applies().delete(apply, &DeleteParams::background()).await?;
    }
    for apply in &applies {
        bench
            .until(bench.applies(), apply, "held", |apply| {
                condition(apply, "Deleting") == "True/Held"
            })
            .await?;
    }
    for api in [bench.networks(), bench.control_planes()] {
        bench
            .until(api, NAMES.cluster, "asking for help", |object| {
                condition(object, "Ready") == "False/ApplyDeleted"
            })
            .await?;
    }
    let control_plane = bench.control_planes().get(NAMES.control_plane).await?;
    assert!(is_true(&control_plane, "Available"), "the cluster runs on");
    bench.check_access(&NAMES).await?;

    // The documented way back.
    for apply in &applies {
        bench
            .patch(&bench.applies(), apply, json!({"metadata": {"finalizers": null}}))
            .await?;
    }
    for api in [bench.networks(), bench.control_planes()] {
        bench
            .until(api, NAMES.cluster, "Ready again", |object| is_true(object, "Ready"))
            .await?;
    }
    for (workspace, uid) in workspaces.iter().zip(uids) {
        assert_eq!(bench.all_workspaces().get(workspace).await?.uid(), uid, "{workspace}");
    }
    Ok(())
}

#[tokio::test]
async fn by_foreground_propagation() -> Result<()> {
    let bench = Bench::new("foreground").await?;
    bench.cluster(&NAMES, Wishes::default()).await?;
    control_plane_ready(&bench).await?;
    let mut network = History::begin(bench.applies(), &names::vpc_apply_name(NAMES.network)).await?;
    bench
        .clusters()
        .delete(NAMES.cluster, &with_propagation(PropagationPolicy::Foreground))
        .await?;
    bench.gone(&NAMES).await?;
    bench.no_trace(&NAMES).await?;
    network.until_gone().await?;
    let said = network.tells(|apply| condition(apply, "Deleting"));
    assert!(
        !said.iter().any(|said| said.contains("Failed")),
        "out of order: {said:?}"
    );
    Ok(())
}

#[tokio::test]
async fn by_orphaning_propagation() -> Result<()> {
    let bench = Bench::new("orphan").await?;
    bench.cluster(&NAMES, Wishes::default()).await?;
    control_plane_ready(&bench).await?;
    // The garbage collector takes the owners out of everything that is owned; what is made must go nevertheless.
    let orphan = with_propagation(PropagationPolicy::Orphan);
    for api in [bench.networks(), bench.control_planes(), bench.clusters()] {
        api.delete(NAMES.cluster, &orphan).await?;
    }
    for api in [bench.clusters(), bench.networks(), bench.control_planes()] {
        History::begin(api, NAMES.cluster).await?.until_gone().await?;
    }
    bench.no_trace(&NAMES).await
}

#[tokio::test]
async fn a_control_plane_that_its_cluster_forgot() -> Result<()> {
    let bench = Bench::new("forgotten").await?;
    bench.cluster(&NAMES, Wishes::default()).await?;
    control_plane_ready(&bench).await?;
    let other = Names {
        control_plane: "other",
        ..NAMES
    };
    bench.part("CAPTControlPlane", &other, &Wishes::default()).await?;
    let reference = json!({"spec": {"controlPlaneRef": {"name": "other"}}});
    bench.patch(&bench.clusters(), NAMES.cluster, reference).await?;
    bench
        .until(bench.control_planes(), "other", "adopted", |c| {
            !c.owner_references().is_empty()
        })
        .await?;
    bench.delete_without_a_trace(&NAMES).await?;
    bench.no_trace(&other).await
}

#[tokio::test]
async fn a_namespace_with_a_retained_network() -> Result<()> {
    namespace_with_a_retained_network(Bench::new("space").await?).await
}

pub(crate) async fn namespace_with_a_retained_network(bench: Bench) -> Result<()> {
    let retain = json!({"spec": {"retainVpcOnDelete": true}});
    bench.cluster(&NAMES, Wishes::default().network(retain)).await?;
    control_plane_ready(&bench).await?;
    let [vpc, eks] = bench.workspaces(&NAMES);
    let before = bench.all_workspaces().get(&vpc).await?.uid();
    let made = bench.entry(&vpc)?.context("no network")?;
    bench
        .namespaces()
        .delete(&bench.namespace, &DeleteParams::background())
        .await?;
    History::begin(bench.namespaces(), &bench.namespace)
        .await?
        .until_gone()
        .await?;
    bench.no_workspace(&eks).await?;
    assert_eq!(
        bench.entry(&vpc)?.as_ref(),
        Some(&made),
        "the network was kept as it was"
    );
    match (bench.kind, bench.all_workspaces().get_opt(&vpc).await?) {
        (WorkspaceKind::ClusterScoped, Some(kept)) => {
            assert!(kept.metadata.deletion_timestamp.is_none());
            assert_eq!(kept.uid(), before);
            assert_eq!(kept.data.pointer("/spec/managementPolicies"), Some(&json!(["Observe"])));
            assert_eq!(kept.data.pointer("/spec/deletionPolicy"), Some(&json!("Orphan")));
        }
        // It was in the namespace. What it knew is in the backend.
        (WorkspaceKind::Namespaced, None) => {}
        (kind, left) => bail!("of the {kind} network there is {left:?}"),
    }
    bench.invariants_held().await?;

    // The same cluster once more takes the network over.
    let space = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": bench.namespace}});
    testing::create(&bench.client, None, space).await?;
    bench.create_templates().await?;
    bench.cluster(&NAMES, Wishes::default()).await?;
    ends_well(&bench).await?;
    if bench.kind == WorkspaceKind::ClusterScoped {
        assert_eq!(bench.all_workspaces().get(&vpc).await?.uid(), before);
    }
    let adopted = bench.entry(&vpc)?.context("no network")?;
    assert_eq!(adopted.created, made.created, "it is still the same network");
    bench.delete_without_a_trace(&NAMES).await
}

#[tokio::test]
async fn a_namespace_in_the_middle_of_a_creation() -> Result<()> {
    let bench = Bench::bare(testing::environment()?, "midway").await?;
    bench.create(template("local-vpc")?, &Value::Null).await?;
    // Terraform reads this also when it destroys, so it has to outlive everything else in the namespace.
    let token =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "token"}, "stringData": {"value": "1"}});
    bench.create(token, &Value::Null).await?;
    let env = json!([{"name": "TOKEN", "secretKeyRef": {"name": "token", "key": "value"}}]);
    let reading = json!({"spec": {"template": {"spec": {"forProvider": {"env": env}}}}});
    bench.create(template("local-eks")?, &reading).await?;
    bench.cluster(&NAMES, Wishes::default().control_plane(slow())).await?;
    bench
        .until(
            bench.applies(),
            &names::eks_apply_name(NAMES.control_plane),
            "applying",
            |apply| condition(apply, "Ready") == "False/Applying",
        )
        .await?;
    bench
        .namespaces()
        .delete(&bench.namespace, &DeleteParams::background())
        .await?;
    deleting(&bench, bench.control_planes(), "True/WaitingForWorkspace").await?;
    bench
        .until(bench.secrets(), "token", "deleted, and kept", |token| {
            token.metadata.deletion_timestamp.is_some()
        })
        .await?;
    let [vpc, eks] = bench.workspaces(&NAMES);
    bench.heal(&eks).await?;
    History::begin(bench.namespaces(), &bench.namespace)
        .await?
        .until_gone()
        .await?;
    for workspace in [&vpc, &eks] {
        bench.no_workspace(workspace).await?;
    }
    bench.invariants_held().await
}

#[tokio::test]
async fn a_network_that_is_retained_in_the_same_breath() -> Result<()> {
    let bench = Bench::new("breath").await?;
    bench.cluster(&NAMES, Wishes::default()).await?;
    control_plane_ready(&bench).await?;
    let [vpc, eks] = bench.workspaces(&NAMES);
    let made = bench.entry(&vpc)?.context("no network")?;
    let id = text(&bench.networks().get(NAMES.network).await?, "/status/vpcId").to_owned();
    bench
        .clusters()
        .delete(NAMES.cluster, &DeleteParams::background())
        .await?;
    let retain = json!({"spec": {"retainVpcOnDelete": true}});
    bench.patch(&bench.networks(), NAMES.network, retain).await?;
    bench.gone(&NAMES).await?;
    bench.no_workspace(&eks).await?;
    assert_eq!(
        bench.entry(&vpc)?.as_ref(),
        Some(&made),
        "the network was kept as it was"
    );

    // Another cluster uses it as one that exists, and leaves it alone when it goes.
    let lodger = Names::same("lodger");
    let existing = json!({"spec": {"existingVpcId": id}});
    bench.cluster(&lodger, Wishes::existing_vpc().network(existing)).await?;
    bench
        .until(bench.control_planes(), lodger.control_plane, "Ready", |c| {
            is_true(c, "Ready")
        })
        .await?;
    bench.delete_without_a_trace(&lodger).await?;
    assert_eq!(bench.entry(&vpc)?.as_ref(), Some(&made));

    bench.cluster(&NAMES, Wishes::default()).await?;
    ends_like(&bench, undisturbed().await?).await?;
    let adopted = bench.entry(&vpc)?.context("no network")?;
    assert_eq!(adopted.created, made.created, "it is still the same network");
    bench.delete_without_a_trace(&NAMES).await
}

#[tokio::test]
async fn a_network_that_is_abandoned() -> Result<()> {
    let bench = Bench::new("abandoned").await?;
    bench.cluster(&NAMES, Wishes::default()).await?;
    control_plane_ready(&bench).await?;
    let [vpc, eks] = bench.workspaces(&NAMES);
    bench.fail_destroys(&vpc, "nobody will ever mend this").await?;
    bench
        .clusters()
        .delete(NAMES.cluster, &DeleteParams::background())
        .await?;
    deleting(&bench, bench.networks(), "True/DestroyFailed").await?;

    let apply = names::vpc_apply_name(NAMES.network);
    let abandon = |name: &str| json!({"metadata": {"annotations": {annotation::ABANDON_WORKSPACE: name}}});
    // Another name is not this one's.
    bench.patch(&bench.applies(), &apply, abandon("something-else")).await?;
    let mut history = History::begin(bench.applies(), &apply).await?;
    bench.patch(&bench.applies(), &apply, abandon(&vpc)).await?;
    history.until_gone().await?;
    bench.gone(&NAMES).await?;
    bench.no_workspace(&eks).await?;
    assert!(bench.entry(&vpc)?.is_some(), "what was abandoned is left in the cloud");
    // It was being deleted, and the provider lets it go without a destroy.
    History::begin(bench.all_workspaces(), &vpc).await?.until_gone().await?;

    // Its state was kept: the same cluster once more finds the network and can destroy it, now that somebody has mended it.
    let made = bench.entry(&vpc)?.context("no network")?;
    bench.heal(&vpc).await?;
    bench.cluster(&NAMES, Wishes::default()).await?;
    ends_like(&bench, undisturbed().await?).await?;
    assert_eq!(bench.entry(&vpc)?.context("no network")?.created, made.created);
    bench.delete_without_a_trace(&NAMES).await
}
