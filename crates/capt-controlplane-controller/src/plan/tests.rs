//! The rows: each transition of a control plane, from a world of plain objects to the step and the report.

mod budget;
mod crash;
mod properties;
mod walk;
mod world;

use capt_api::controlplane::CaptControlPlaneStatus;
use capt_runtime::controller::SETTLE;
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::*;
use crate::observe::Refusal;
use capt_api::conditions::Reason;
use capt_api::conditions::control_plane::{Failed, Ready};
use world::{APPLY, ASTRAY, CLUSTER, CONTROL_PLANE, INFRASTRUCTURE, VPC_APPLY, World};

/// What happens to a world.
type Edit = fn(&mut World);

/// What a row expects.
struct Expected {
    step: &'static str,
    /// Status and reason of Ready.
    ready: &'static str,
    phase: &'static str,
    /// Reason of Failed=True.
    failed: Option<&'static str>,
    failure: Option<&'static str>,
    available: bool,
}

const READY: Expected = Expected {
    ready: "ControlPlaneReady",
    phase: "Ready",
    available: true,
    ..QUIET
};

const QUIET: Expected = Expected {
    step: "Nothing",
    ready: "",
    phase: "Creating",
    failed: None,
    failure: None,
    available: false,
};

fn waiting(step: &'static str, reason: &'static str) -> Expected {
    Expected {
        step,
        ready: reason,
        ..QUIET
    }
}

/// Failed, and only a change helps.
fn terminal(reason: &'static str) -> Expected {
    Expected {
        ready: reason,
        phase: "Failed",
        failed: Some(reason),
        failure: Some(reason),
        ..QUIET
    }
}

/// Failed, and tried again by somebody.
fn failing(reason: &'static str) -> Expected {
    Expected {
        failure: None,
        ..terminal(reason)
    }
}

/// The same, on a cluster that is in use.
fn in_use(expected: Expected) -> Expected {
    Expected {
        available: true,
        failure: None,
        ..expected
    }
}

fn step_name(step: &Step) -> String {
    format!("{step:?}")
        .split(['(', ' '])
        .next()
        .unwrap_or_default()
        .to_owned()
}

fn condition<'a>(status: &'a CaptControlPlaneStatus, type_: &str) -> (&'a str, &'a str, &'a str) {
    let condition = conditions_of(status, type_);
    (&condition.status, &condition.reason, &condition.message)
}

fn conditions_of<'a>(
    status: &'a CaptControlPlaneStatus,
    type_: &str,
) -> &'a k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition {
    capt_api::conditions::find(&status.conditions, type_).unwrap_or_else(|| panic!("no condition {type_}"))
}

#[track_caller]
fn check(what: &str, world: &World, expected: Expected) {
    let plan = world.plan();
    let status = plan.status.as_ref().unwrap_or_else(|| panic!("{what}: no report"));
    let (ready, reason, message) = condition(status, "Ready");
    assert_eq!(reason, expected.ready, "{what}: {message}");
    assert_eq!(ready == "True", expected.phase == "Ready", "{what}");
    assert_eq!(step_name(&plan.step), expected.step, "{what}: {message}");
    assert_eq!(status.phase.map(|phase| phase.as_str()), Some(expected.phase), "{what}");
    let (failed, failed_reason, _) = condition(status, "Failed");
    assert_eq!((failed == "True").then_some(failed_reason), expected.failed, "{what}");
    assert_eq!(status.failure_reason.as_deref(), expected.failure, "{what}");
    assert_eq!(status.failure_message.is_some(), expected.failure.is_some(), "{what}");
    assert_eq!(status.ready, Some(expected.available), "{what}");
    assert_eq!(condition(status, "Available").0 == "True", expected.available, "{what}");
    assert_eq!(
        status.initialization.as_ref().unwrap().control_plane_initialized,
        Some(expected.available),
        "{what}"
    );
    assert_eq!(status.external_managed_control_plane, Some(true), "{what}");
}

/// Nothing is said yet of a stage that may pass; if it lasts, it is told.
#[track_caller]
fn check_silent(what: &str, world: &World, step: &str) {
    let plan = world.plan();
    assert_eq!(plan.status, None, "{what}");
    assert_eq!(step_name(&plan.step), step, "{what}");
    let Wake::At(told) = plan.wake else {
        panic!("{what}: nobody looks again")
    };
    assert!(world.now < told && told <= world.now + SETTLE, "{what}: {told}");
}

/// A step whose own event brings the next pass: nothing else is said.
#[track_caller]
fn check_step(what: &str, world: &World, step: &str) {
    let plan = world.plan();
    assert_eq!(
        (step_name(&plan.step).as_str(), plan.status, plan.wake),
        (step, None, Wake::OnEvent),
        "{what}"
    );
}

#[test]
fn from_nothing_to_an_apply() {
    let mut world = World::new();
    world.remove(CLUSTER);
    world.edit(CONTROL_PLANE, |cp| cp["metadata"]["ownerReferences"] = json!([]));
    check("no owner", &world, waiting("Nothing", "WaitingForCluster"));

    let mut world = World::new();
    world.remove(CLUSTER);
    check("the owner is gone", &world, waiting("Nothing", "WaitingForCluster"));

    let mut world = World::new();
    world.edit(CLUSTER, |cluster| cluster["metadata"]["uid"] = json!("another"));
    check(
        "another Cluster of the same name",
        &world,
        waiting("Nothing", "WaitingForCluster"),
    );

    let mut world = World::new();
    check_step("first the finalizer", &world, "AddFinalizer");
    world.set(INFRASTRUCTURE, "/status", json!({}));
    check_step("also without a network", &world, "AddFinalizer");

    let mut world = World::guarded();
    check_step("then the apply", &world, "CreateApply");
    world.add_apply();
    check_silent("made, and not looked at", &world, "Nothing");
    world.wait_until_settled();
    check("not looked at for long", &world, waiting("Nothing", "Creating"));
    world.apply_says("Applying", "words that change");
    check("Terraform begins", &world, waiting("Nothing", "Creating"));
}

#[test]
fn what_usually_passes_within_moments_is_told_when_it_lasts() {
    let rows: [(&str, &str, Edit); 15] = [
        ("a new object has no owner", "WaitingForCluster", |world| {
            world.edit(CONTROL_PLANE, |cp| cp["metadata"]["ownerReferences"] = json!([]))
        }),
        ("the Cluster is not in the cache yet", "WaitingForCluster", |world| {
            world.remove(CLUSTER)
        }),
        ("the Cluster names nothing yet", "WaitingForCluster", |world| {
            world.set(CLUSTER, "/spec/controlPlaneRef", Value::Null)
        }),
        ("a Cluster that was never built goes", "WaitingForCluster", |world| {
            world.delete(CLUSTER)
        }),
        ("the Cluster names no network yet", "WaitingForVPC", |world| {
            world.set(CLUSTER, "/spec/infrastructureRef", Value::Null)
        }),
        ("the network comes after the control plane", "WaitingForVPC", |world| {
            world.remove(INFRASTRUCTURE)
        }),
        ("the network has no owner yet", "WaitingForVPC", |world| {
            world.set(INFRASTRUCTURE, "/metadata/ownerReferences", json!([]))
        }),
        ("the network has just begun", "WaitingForVPC", |world| {
            world.set(INFRASTRUCTURE, "/status", json!({}))
        }),
        ("the VPC's apply is late in the cache", "WaitingForVPC", |world| {
            world.remove(VPC_APPLY);
            let mut ready = world::condition("Ready", "True", "VPCCreated", "", 1);
            ready["lastTransitionTime"] = json!(world.now.to_string());
            world.set(INFRASTRUCTURE, "/status/conditions", json!([ready]));
        }),
        ("the apply was just made", "Creating", |world| world.add_apply()),
        ("the apply waits for its template", "WaitingForTemplate", |world| {
            apply_waits(world, "WaitingForTemplate")
        }),
        ("the apply waits for something else", "Creating", |world| {
            apply_waits(world, "WaitingForInputs")
        }),
        ("the provider has not looked at it", "WaitingForProvider", |world| {
            world.add_apply();
            world.apply_says("WaitingForProvider", "queueing");
        }),
        ("the endpoint is on its way", "WaitingForEndpoint", |world| {
            world.add_apply();
            world.apply_ready();
            world.say("EndpointReady", "False", "WaitingForWorkspace", "waiting");
        }),
        ("the kubeconfig is on its way", "WaitingForSecrets", |world| {
            world.add_apply();
            world.apply_ready();
            world.wait_minutes(1);
            world.say("EndpointReady", "True", "EndpointPublished", "");
            world.say("SecretsReady", "False", "ValidatingSecret", "");
        }),
    ];
    for (what, reason, edit) in rows {
        let mut world = World::guarded();
        let now = json!(world.now.to_string());
        world.set(CONTROL_PLANE, "/metadata/creationTimestamp", now);
        edit(&mut world);
        check_silent(what, &world, "Nothing");
        let mut standing = world.clone();

        world.wait_until_settled();
        check(what, &world, waiting("Nothing", reason));

        // Another stage that passes may stand meanwhile; what does not pass may not.
        let said = |reason| json!({"conditions": [world::condition("Ready", "False", reason, "words", 1)]});
        let others = standing.status()["conditions"].as_array().cloned().unwrap_or_default();
        for (word, silent) in [("Creating", true), ("TerraformFailed", false), ("ApplyDeleted", false)] {
            let mut status = said(word);
            status["conditions"].as_array_mut().unwrap().extend(others.clone());
            standing.set(CONTROL_PLANE, "/status", status);
            if silent {
                check_silent(what, &standing, "Nothing");
            } else {
                check(what, &standing, waiting("Nothing", reason));
            }
        }
    }
}

/// The apply waits, from now on.
fn apply_waits(world: &mut World, reason: &str) {
    world.add_apply();
    world.apply_says("NotApplied", "not applied");
    let mut waiting = world::condition("Waiting", "True", reason, "WorkspaceTemplate eks does not exist", 1);
    waiting["lastTransitionTime"] = json!(world.now.to_string());
    world.edit(APPLY, |apply| {
        apply["status"]["conditions"].as_array_mut().unwrap().push(waiting)
    });
}

#[test]
fn trouble_readiness_and_terraform_at_work_are_told_at_once() {
    let young = || {
        let mut world = World::young();
        world.set(
            CONTROL_PLANE,
            "/metadata/finalizers",
            json!(["controlplane.cluster.x-k8s.io/captcontrolplane"]),
        );
        world
    };
    let mut world = young();
    world.set(CONTROL_PLANE, "/spec/version", json!("newest"));
    check("a wish that cannot be carried out", &world, terminal("InvalidSpec"));

    let mut world = young();
    let failed = world::condition("Ready", "False", "VPCCreationFailed", "no subnets left", 1);
    world.set(
        INFRASTRUCTURE,
        "/status",
        json!({"ready": false, "conditions": [failed]}),
    );
    check("a network in trouble", &world, waiting("Nothing", "WaitingForVPC"));

    let mut world = young();
    of_another_cluster(&mut world);
    check("another Cluster's network", &world, waiting("Nothing", "WaitingForVPC"));

    let mut world = young();
    world.add_apply();
    world.apply_says("TerraformFailed", "quota");
    check("an error", &world, failing("TerraformFailed"));
    world.apply_says("Applying", "at work");
    check("Terraform at work", &world, waiting("Nothing", "Creating"));
    world.complete();
    check("readiness", &world, READY);

    // A deadline that passes in the middle of a stage that may pass.
    let mut world = young();
    world.add_apply();
    world.apply_says("Applying", "at work");
    world.report();
    world.wait_minutes(30);
    world.apply_ready();
    check("a deadline", &world, terminal("ControlPlaneTimeout"));
}

#[test]
fn a_clock_that_is_far_ahead_of_ours_silences_nobody() {
    let mut world = World::guarded();
    world.set(CLUSTER, "/spec/infrastructureRef", Value::Null);
    for (ahead, silent) in [(0, true), (5, true), (6, false), (3600, false)] {
        let created = world.now + SignedDuration::from_secs(ahead);
        world.set(CONTROL_PLANE, "/metadata/creationTimestamp", json!(created.to_string()));
        assert_eq!(world.plan().status.is_none(), silent, "{ahead} s");
    }
}

#[test]
fn an_apply_is_made_only_for_a_cluster_that_stays_and_names_this_control_plane() {
    for (what, edit, expected) in [
        (
            "the Cluster goes",
            (CLUSTER, "/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z")),
            waiting("Nothing", "WaitingForCluster"),
        ),
        (
            "the network goes",
            (
                INFRASTRUCTURE,
                "/metadata/deletionTimestamp",
                json!("2026-01-01T00:00:00Z"),
            ),
            waiting("Nothing", "WaitingForVPC"),
        ),
        (
            "another is named",
            (CLUSTER, "/spec/controlPlaneRef/name", json!("other")),
            waiting("Nothing", "WaitingForCluster"),
        ),
        (
            "one of another kind is named",
            (CLUSTER, "/spec/controlPlaneRef/kind", json!("KubeadmControlPlane")),
            waiting("Nothing", "WaitingForCluster"),
        ),
    ] {
        let (key, path, value) = edit;
        let mut world = World::guarded();
        world.set(key, path, value);
        check(what, &world, expected);
    }
}

#[test]
fn what_the_cache_does_not_know_yet_stops_a_creation() {
    // The world changes, the caches do not: only the live read can tell.
    for (what, key, path) in [
        ("the Cluster goes", CLUSTER, "/metadata/deletionTimestamp"),
        ("the network goes", INFRASTRUCTURE, "/metadata/deletionTimestamp"),
        ("the control plane goes", CONTROL_PLANE, "/metadata/deletionTimestamp"),
    ] {
        let cached = World::guarded();
        let mut live = cached.clone();
        live.set(key, path, json!("2026-01-01T00:00:00Z"));
        assert_eq!(step_name(&cached.plan_first().step), "Look", "{what}");
        assert_eq!(cached.plan_against(&live).step, Step::Nothing, "{what}");
    }
    let cached = World::guarded();
    let mut live = cached.clone();
    live.remove(CLUSTER);
    assert_eq!(cached.plan_against(&live).step, Step::Nothing);
}

fn of_another_cluster(world: &mut World) {
    world.set(INFRASTRUCTURE, "/metadata/ownerReferences/0/name", json!("other"));
    world.set(INFRASTRUCTURE, "/metadata/ownerReferences/0/uid", json!("another"));
}

#[test]
fn the_network_gates_the_creation() {
    let rows: [(&str, &str, Edit); 13] = [
        ("none named", "names no CAPTCluster", |world| {
            world.set(CLUSTER, "/spec/infrastructureRef/kind", json!("AWSCluster"))
        }),
        ("absent", "CAPTCluster demo does not exist", |world| {
            world.remove(INFRASTRUCTURE)
        }),
        ("unreadable", "CAPTCluster demo cannot be read", |world| {
            world.set(INFRASTRUCTURE, "/spec", json!({}))
        }),
        ("an earlier Cluster's", "does not belong to Cluster demo yet", |world| {
            world.set(INFRASTRUCTURE, "/metadata/ownerReferences/0/uid", json!("another"));
        }),
        (
            "another Cluster's",
            "CAPTCluster demo belongs to Cluster other, not to Cluster demo: give Cluster demo a CAPTCluster of its own",
            of_another_cluster,
        ),
        ("not ready", "waiting for CAPTCluster demo", |world| {
            let ready = world::condition("Ready", "False", "VPCCreating", "Terraform is at work", 1);
            world.set(
                INFRASTRUCTURE,
                "/status",
                json!({"ready": false, "conditions": [ready]}),
            );
        }),
        ("in trouble", "not ready: VPCCreationFailed: no subnets left", |world| {
            let ready = world::condition("Ready", "False", "VPCCreationFailed", "no subnets left", 1);
            world.set(
                INFRASTRUCTURE,
                "/status",
                json!({"ready": false, "conditions": [ready]}),
            );
        }),
        ("paused alone", "CAPTCluster demo is paused", |world| {
            let paused = world::condition("Paused", "True", "Paused", "", 1);
            world.set(INFRASTRUCTURE, "/status", json!({"conditions": [paused]}));
        }),
        ("no ID", "does not say the ID", |world| {
            world.set(INFRASTRUCTURE, "/status", json!({"ready": true}))
        }),
        ("no apply", "outputs of the VPC are not known", |world| {
            world.remove(VPC_APPLY)
        }),
        (
            "an apply of an earlier network",
            "outputs of the VPC are not known",
            |world| {
                world.set(VPC_APPLY, "/metadata/ownerReferences/0/uid", json!("earlier"));
            },
        ),
        (
            "an ID that is none",
            "the output vpc_id of WorkspaceTemplateApply demo-vpc is a list",
            |world| world.set(VPC_APPLY, "/status/outputs/vpc_id", json!("[\"vpc-0\"]")),
        ),
        (
            "an apply that is being changed",
            "outputs of the VPC are not known",
            |world| world.set(VPC_APPLY, "/metadata/generation", json!(2)),
        ),
    ];
    for (what, words, edit) in rows {
        let mut world = World::guarded();
        edit(&mut world);
        check(what, &world, waiting("Nothing", "WaitingForVPC"));
        let plan = world.plan();
        let status = plan.status.unwrap();
        assert!(
            condition(&status, "Ready").2.contains(words),
            "{what}: {}",
            condition(&status, "Ready").2
        );
        assert!(status.waiting_since.as_ref().unwrap().vpc.is_some(), "{what}");
        assert_eq!(plan.wake, Wake::At(world.now + SignedDuration::from_mins(15)), "{what}");

        world.report();
        world.wait_minutes(15);
        check(what, &world, terminal("VPCReadyTimeout"));
    }
}

#[test]
fn the_variables_come_from_the_network_as_it_is() {
    let made = |world: &World| match world.plan().step {
        Step::CreateApply(apply) => apply.spec.variables,
        other => panic!("{other:?}"),
    };
    let variables = made(&World::guarded());
    assert_eq!(variables["vpc_id"], "vpc-0");
    assert_eq!(variables["vpc_private_subnets"], "[\"s-1\"]");

    let mut world = World::guarded();
    world.remove(VPC_APPLY);
    world.set(
        INFRASTRUCTURE,
        "/spec",
        json!({"region": "eu-west-1", "existingVpcId": "vpc-0"}),
    );
    let variables = made(&world);
    assert_eq!(variables["vpc_id"], "vpc-0");
    assert!(!variables.contains_key("vpc_private_subnets"));

    let mut world = World::guarded();
    world.remove(VPC_APPLY);
    world.set(
        INFRASTRUCTURE,
        "/metadata/annotations",
        json!({"cluster.x-k8s.io/managed-by": "another system"}),
    );
    assert_eq!(
        made(&world)["vpc_id"],
        "vpc-0",
        "a network that another system makes has no apply"
    );
}

#[test]
fn a_wish_that_cannot_be_carried_out() {
    for (path, value, reason) in [
        ("/spec/version", json!("newest"), "InvalidSpec"),
        (
            "/spec/controlPlaneConfig/addons",
            json!([{"name": "a", "configurationValues": "no"}]),
            "InvalidSpec",
        ),
        (
            "/spec/workspaceTemplateRef/namespace",
            json!("other"),
            "CrossNamespaceTemplate",
        ),
    ] {
        let mut world = World::guarded();
        world.set(CONTROL_PLANE, path, value.clone());
        check(path, &world, terminal(reason));

        let mut world = World::ready();
        let before = world.get(APPLY).clone();
        world.set(CONTROL_PLANE, path, value);
        check(path, &world, in_use(terminal(reason)));
        assert_eq!(*world.get(APPLY), before, "the running cluster is left as it is");

        world.settle();
        world.set(
            CONTROL_PLANE,
            "/spec",
            World::ready().get(CONTROL_PLANE)["spec"].clone(),
        );
        check(path, &world, READY);
    }
    let mut world = World::guarded();
    world.settings.allow_cross_namespace_templates = true;
    world.set(CONTROL_PLANE, "/spec/workspaceTemplateRef/namespace", json!("other"));
    check_step("switched on", &world, "CreateApply");
}

#[test]
fn a_step_that_is_refused_is_shown() {
    for (reason, expected) in [
        (Some(Ready::OwnershipConflict), terminal("OwnershipConflict")),
        (Some(Ready::InvalidSpec), terminal("InvalidSpec")),
        (Some(Ready::AdmissionDenied), terminal("AdmissionDenied")),
        (
            Some(Ready::NamespaceTerminating),
            waiting("Nothing", "NamespaceTerminating"),
        ),
        (None, waiting("Nothing", "Creating")),
    ] {
        let mut world = World::guarded();
        world.refused = Some(Refusal {
            reason,
            message: "the server's words".into(),
        });
        check("refused", &world, expected);
        assert_eq!(
            condition(&world.plan().status.unwrap(), "Ready").2,
            "the server's words"
        );
    }
}

#[test]
fn what_the_apply_says_is_repeated_in_the_control_planes_own_words() {
    let rows = [
        ("NotApplied", "Creating", None),
        ("WaitingForProvider", "WaitingForProvider", None),
        ("WorkspacePaused", "WaitingForProvider", None),
        ("Applying", "Creating", None),
        ("TerraformFailed", "TerraformFailed", Some(false)),
        ("CreateInterrupted", "CreateInterrupted", Some(false)),
        ("StateLocked", "StateLocked", Some(false)),
        ("InvalidTemplate", "InvalidTemplate", Some(true)),
        ("UnsafeVariable", "UnsafeVariable", Some(true)),
        ("UnresolvedVariable", "UnresolvedVariable", Some(true)),
        ("CrossNamespaceReference", "CrossNamespaceTemplate", Some(true)),
        ("AdmissionDenied", "AdmissionDenied", Some(true)),
        ("OwnershipConflict", "OwnershipConflict", Some(true)),
        ("NamespaceTerminating", "NamespaceTerminating", None),
        ("Deleting", "ApplyDeleted", None),
        ("a reason of a later version", "Creating", None),
    ];
    for (said, reason, failed) in rows {
        let mut world = World::guarded();
        world.add_apply();
        world.apply_says(said, "Terraform's words");
        let expected = |reason| match failed {
            None => waiting("Nothing", reason),
            Some(false) => failing(reason),
            Some(true) => terminal(reason),
        };
        if failed.is_none() {
            world.wait_until_settled();
        }
        check(said, &world, expected(reason));

        let mut world = World::ready();
        world.apply_says(said, "Terraform's words");
        let reason = if reason == "Creating" { "Updating" } else { reason };
        check(said, &world, in_use(expected(reason)));
        assert_eq!(
            condition(&world.plan().status.unwrap(), "Creating"),
            ("False", "Created", "")
        );
    }
}

#[test]
fn every_end_that_terraform_comes_to_is_a_failure_that_is_tried_again() {
    for said in [
        "ProviderConfigMissing",
        "CredentialsMissing",
        "QuotaExceeded",
        "TerraformTimeout",
        "InvalidModule",
    ] {
        let mut world = World::guarded();
        world.add_apply();
        world.apply_says(said, "Terraform's words");
        check(said, &world, failing(said));
        assert_eq!(
            condition(&world.plan().status.unwrap(), "Failed").2,
            "Terraform's words"
        );

        let mut world = World::ready();
        world.delete(CONTROL_PLANE);
        for name in ["captendpoint", "captsecrets"] {
            world.drop_finalizer(CONTROL_PLANE, &format!("controlplane.cluster.x-k8s.io/{name}"));
        }
        world.delete(APPLY);
        world.drop_finalizer(APPLY, "controlplane.cluster.x-k8s.io/captcontrolplane-hold");
        let says = world::condition("Deleting", "True", said, "Terraform's words", 1);
        world.set(APPLY, "/status/conditions", json!([says]));
        check_deletion(said, &world, "Nothing", said, "to go: Terraform's words");
        let ready = world.plan().status.unwrap();
        assert!(
            condition(&ready, "Ready").2.contains("Terraform's words"),
            "it reaches the Cluster's line"
        );
    }
}

#[test]
fn whatever_asks_somebody_to_look_is_a_failure() {
    for reason in Ready::ALL {
        // The way back from a deleted apply is the user's to choose; the cluster itself is sound.
        let asks = capt_api::reasons::is_trouble(reason.as_str()) && *reason != Ready::ApplyDeleted;
        assert_eq!(Failed::named(reason.as_str()).is_some(), asks, "{reason:?}");
    }
}

#[test]
fn what_an_apply_waits_for_is_named() {
    for (waits, reason) in [
        ("WaitingForTemplate", "WaitingForTemplate"),
        ("WaitingForInputs", "Creating"),
    ] {
        let mut world = World::guarded();
        apply_waits(&mut world, waits);
        world.wait_until_settled();
        check(waits, &world, waiting("Nothing", reason));
        assert_eq!(
            condition(&world.plan().status.unwrap(), "Ready").2,
            "WorkspaceTemplate eks does not exist"
        );
    }
}

#[test]
fn terraforms_own_error_stands_in_for_an_empty_message() {
    let mut world = World::guarded();
    world.add_apply();
    world.apply_says("TerraformFailed", "");
    world.set(APPLY, "/status/lastFailureMessage", json!("quota exceeded"));
    assert_eq!(
        condition(&world.plan().status.unwrap(), "Failed"),
        ("True", "TerraformFailed", "quota exceeded")
    );
}

#[test]
fn an_old_readiness_counts_for_nothing() {
    let mut world = World::ready();
    world.set(APPLY, "/metadata/generation", json!(2));
    check("another generation", &world, in_use(waiting("Nothing", "Updating")));
}

#[test]
fn endpoint_and_kubeconfig_complete_a_control_plane() {
    let mut world = World::guarded();
    world.add_apply();
    world.apply_ready();
    check_silent("EKS is there", &world, "Nothing");
    let mut late = world.clone();
    late.wait_until_settled();
    check("no endpoint for long", &late, waiting("Nothing", "WaitingForEndpoint"));

    world.say(
        "EndpointReady",
        "False",
        "EndpointMissing",
        "no output cluster_endpoint",
    );
    check("no endpoint in it", &world, failing("EndpointMissing"));
    assert_eq!(
        condition(&world.plan().status.unwrap(), "Ready").2,
        "no output cluster_endpoint"
    );
    world.say("EndpointReady", "False", "EndpointInvalid", "no host in it");
    check("a bad endpoint", &world, failing("EndpointInvalid"));
    assert_eq!(condition(&world.plan().status.unwrap(), "Ready").2, "no host in it");

    world.say("EndpointReady", "True", "EndpointPublished", "");
    check_silent("the endpoint is there", &world, "Nothing");
    let mut late = world.clone();
    late.wait_until_settled();
    check("no kubeconfig for long", &late, waiting("Nothing", "WaitingForSecrets"));
    for reason in ["Failed", "UnsafeKubeconfig", "OwnershipConflict"] {
        world.say("SecretsReady", "False", reason, "kubeconfig has no server");
        check(reason, &world, failing("SecretsFailed"));
    }
    world.report();
    world.say("SecretsReady", "False", "ValidatingSecret", "");
    check("checked again", &world, waiting("Nothing", "WaitingForSecrets"));

    world.say("SecretsReady", "True", "Ready", "");
    check("complete", &world, READY);
    world.say(
        "SecretsReady",
        "True",
        "Failed",
        "no certificate in it; the last good copies stay",
    );
    check("published, and outdated", &world, READY);
    let status = world.plan().status.unwrap();
    let said = condition(&status, "Ready").2;
    assert!(
        said.ends_with("condition SecretsReady: no certificate in it; the last good copies stay"),
        "{said}"
    );
}

#[test]
fn deadlines() {
    let applying = |world: &mut World| {
        world.add_apply();
        world.apply_says("Applying", "at work");
    };
    // Minutes, the flag's limit, whether the object sets its own, and what happens then.
    let rows: [(&str, i64, &str, Edit, &str); 4] = [
        (
            "Terraform",
            30,
            "controlPlaneTimeout",
            |world| {
                world.add_apply();
                world.apply_says("Applying", "at work");
            },
            "ControlPlaneTimeout",
        ),
        (
            "a failing Terraform",
            30,
            "controlPlaneTimeout",
            |world| {
                world.add_apply();
                world.apply_says("TerraformFailed", "quota");
            },
            "ControlPlaneTimeout",
        ),
        (
            "the endpoint",
            30,
            "controlPlaneTimeout",
            |world| {
                world.add_apply();
                world.apply_ready();
            },
            "ControlPlaneTimeout",
        ),
        (
            "the kubeconfig",
            5,
            "secretTimeout",
            |world| {
                world.add_apply();
                world.apply_ready();
                world.say("EndpointReady", "True", "EndpointPublished", "");
                world.say("SecretsReady", "False", "Failed", "no server");
            },
            "SecretTimeout",
        ),
    ];
    for (what, minutes, limit, edit, reason) in rows {
        for own in [None, Some(2)] {
            let mut world = World::guarded();
            if let Some(own) = own {
                world.set(CONTROL_PLANE, "/spec/controlPlaneConfig/timeouts", json!({limit: own}));
            }
            let minutes = own.unwrap_or(minutes);
            edit(&mut world);
            world.wait_until_settled();
            assert_eq!(
                world.plan().wake,
                Wake::At(world.now + SignedDuration::from_mins(minutes)),
                "{what}"
            );
            world.report();
            world.wait_minutes(minutes - 1);
            assert_eq!(
                world.plan().status.unwrap().failure_reason,
                None,
                "{what}: still in time"
            );
            world.report();
            world.wait_minutes(1);
            check(what, &world, terminal(reason));
            assert!(
                condition(&world.plan().status.unwrap(), "Ready")
                    .2
                    .starts_with(&format!("{limit} has passed: ")),
                "{what}"
            );
            assert_eq!(world.plan().wake, Wake::OnEvent, "{what}: nothing more to wait for");

            world.report();
            let mut healed = world.clone();
            healed.complete();
            check(what, &healed, READY);

            world.set(CONTROL_PLANE, "/metadata/generation", json!(7));
            assert_eq!(
                world.plan().status.unwrap().failure_reason,
                None,
                "{what}: a new wish has its own time"
            );
        }
    }
    let mut world = World::ready();
    applying(&mut world);
    world.report();
    world.wait_minutes(30);
    check(
        "a change of a cluster in use",
        &world,
        in_use(terminal("ControlPlaneTimeout")),
    );
}

#[test]
fn queueing_takes_no_time() {
    let mut world = World::guarded();
    world.add_apply();
    world.apply_says("WaitingForProvider", "queueing");
    world.wait_until_settled();
    world.report();
    assert_eq!(world.plan().wake, Wake::OnEvent);
    assert_eq!(world.plan().status.unwrap().waiting_since, None);
    world.wait_minutes(600);
    world.apply_says("Applying", "at work");
    check("it begins", &world, waiting("Nothing", "Creating"));
    assert_eq!(world.plan().wake, Wake::At(world.now + SignedDuration::from_mins(30)));
}

#[test]
fn a_pause_stops_everything_but_its_own_report_and_gives_the_time_back() {
    let paused: [Edit; 2] = [
        |world| world.set(CLUSTER, "/spec/paused", json!(true)),
        |world| {
            world.set(
                CONTROL_PLANE,
                "/metadata/annotations",
                json!({"cluster.x-k8s.io/paused": ""}),
            )
        },
    ];
    for pause in paused {
        let mut world = World::new();
        pause(&mut world);
        let plan = world.plan();
        assert_eq!(plan.step, Step::Nothing, "not even a finalizer");
        let status = plan.status.unwrap();
        assert_eq!(status.conditions.len(), 1);
        assert_eq!(condition(&status, "Paused").0, "True");
        assert_eq!(
            (status.phase, status.ready, status.observed_generation),
            (None, None, None)
        );

        let mut world = World::guarded();
        world.add_apply();
        world.apply_says("Applying", "at work");
        world.report();
        let before = world.status();
        pause(&mut world);
        world.report();
        let during = world.status();
        assert_eq!(during["waitingSince"], before["waitingSince"]);
        assert_eq!(during["phase"], before["phase"]);
        assert_eq!(world.condition("Ready"), ("False".into(), "Creating".into()));

        world.wait_minutes(60);
        world.set(CLUSTER, "/spec/paused", json!(false));
        world.set(CONTROL_PLANE, "/metadata/annotations", json!({}));
        check("resumed", &world, waiting("Nothing", "Creating"));
        assert_eq!(world.plan().wake, Wake::At(world.now + SignedDuration::from_mins(30)));
    }
    let mut world = World::ready();
    world.delete(CONTROL_PLANE);
    world.set(CLUSTER, "/spec/paused", json!(true));
    let plan = world.plan();
    assert_eq!(plan.step, Step::Nothing);
    assert_eq!(condition(&plan.status.unwrap(), "Deleting").1, "Paused");
}

#[test]
fn a_pause_that_only_a_live_read_shows_stops_what_cannot_be_undone() {
    let stops: [(&str, Edit); 3] = [
        ("the Cluster", |world| world.set(CLUSTER, "/spec/paused", json!(true))),
        ("the annotation", |world| {
            world.set(
                CONTROL_PLANE,
                "/metadata/annotations",
                json!({"cluster.x-k8s.io/paused": ""}),
            )
        }),
        ("a move", |world| {
            world.set(
                CONTROL_PLANE,
                "/metadata/annotations",
                json!({"clusterctl.cluster.x-k8s.io/delete-for-move": ""}),
            )
        }),
    ];
    let deleting = |held: bool| {
        let mut world = World::ready();
        world.delete(CONTROL_PLANE);
        for name in ["captendpoint", "captsecrets"] {
            world.drop_finalizer(CONTROL_PLANE, &format!("controlplane.cluster.x-k8s.io/{name}"));
        }
        if !held {
            world.drop_finalizer(APPLY, "controlplane.cluster.x-k8s.io/captcontrolplane-hold");
        }
        world
    };
    let superseded = || {
        let mut world = World::ready();
        world.set(CLUSTER, "/spec/controlPlaneRef/name", json!("other"));
        world.delete(CLUSTER);
        world
    };
    for (what, stop) in stops {
        for (step, cached) in [
            ("CreateApply", World::guarded()),
            ("DeleteApply", deleting(false)),
            ("ReleaseApply", deleting(true)),
            ("DeleteSelf", superseded()),
        ] {
            assert_eq!(step_name(&cached.plan_first().step), "Look", "{what}: {step}");
            assert_eq!(step_name(&cached.plan().step), step, "{what}");
            // Whoever deletes itself because of its Cluster reads that alone.
            if step == "DeleteSelf" && what != "the Cluster" {
                continue;
            }
            let mut live = cached.clone();
            stop(&mut live);
            assert_eq!(cached.plan_against(&live), Plan::leave_alone(), "{what}: {step}");
        }
    }

    let mut cached = World::ready();
    cached.set(CONTROL_PLANE, "/spec/version", json!("v1.32.0"));
    let mut live = cached.clone();
    live.set(
        CONTROL_PLANE,
        "/metadata/annotations",
        json!({"cluster.x-k8s.io/paused": ""}),
    );
    assert_eq!(cached.plan_against(&live), Plan::leave_alone(), "a change");

    // Another Cluster of the same name is nobody's pause.
    let cached = deleting(false);
    let mut live = cached.clone();
    live.set(CLUSTER, "/spec/paused", json!(true));
    live.set(CLUSTER, "/metadata/uid", json!("another"));
    assert_eq!(cached.plan_against(&live).step, Step::DeleteApply);

    // And another control plane of the same name is nobody's order.
    let mut live = cached.clone();
    live.set(CONTROL_PLANE, "/metadata/uid", json!("another"));
    assert_eq!(cached.plan_against(&live).step, Step::Nothing);
}

#[test]
fn a_control_plane_in_use_that_loses_its_owner_says_so_and_is_left_as_it_is() {
    let mut world = World::ready();
    let owner = world.get(CONTROL_PLANE)["metadata"]["ownerReferences"].clone();
    world.set(CONTROL_PLANE, "/metadata/ownerReferences", json!([]));
    // Its Cluster may be paused, or gone: nobody knows which it is.
    world.set(CONTROL_PLANE, "/spec/version", json!("v1.32.0"));
    let apply = world.get(APPLY).clone();
    check("lost", &world, in_use(waiting("Nothing", "WaitingForCluster")));
    assert_eq!(
        world.plan().wake,
        Wake::OnEvent,
        "no deadline takes a running cluster away"
    );
    world.pass();
    world.wait_minutes(600);
    world.pass();
    assert_eq!(*world.get(APPLY), apply, "the wish waits for its owner");
    assert_eq!(world.status()["ready"], json!(true));
    assert_eq!(world.condition("EndpointReady").0, "True");

    let mut deleted = world.clone();
    deleted.delete(CONTROL_PLANE);
    deleted.settle();
    assert!(
        !deleted.objects.contains_key(CONTROL_PLANE) && !deleted.objects.contains_key(APPLY),
        "a deletion needs no owner"
    );

    world.set(CONTROL_PLANE, "/metadata/ownerReferences", owner);
    check("found again", &world, in_use(waiting("ChangeApply", "Updating")));
    world.settle();
    check("and up to date", &world, READY);
}

#[test]
fn others_objects_are_left_alone() {
    for annotation in [
        "cluster.x-k8s.io/managed-by",
        "clusterctl.cluster.x-k8s.io/delete-for-move",
    ] {
        for deleting in [false, true] {
            let mut world = World::ready();
            world.set(CONTROL_PLANE, "/metadata/annotations", json!({annotation: ""}));
            if deleting {
                world.delete(CONTROL_PLANE);
            }
            assert_eq!(world.plan(), Plan::leave_alone(), "{annotation}");
        }
    }
}

#[test]
fn an_apply_is_kept_as_wished() {
    let rows: [(&str, &str, &str, Edit); 8] = [
        ("the version", "ChangeApply", "Updating", |world| {
            world.set(CONTROL_PLANE, "/spec/version", json!("v1.32.0"))
        }),
        ("a variable", "ChangeApply", "Updating", |world| {
            world.set(CONTROL_PLANE, "/spec/variables", json!({"a": "b"}))
        }),
        ("the network's outputs", "ChangeApply", "Updating", |world| {
            world.set(VPC_APPLY, "/status/outputs/private_subnets", json!("[]"))
        }),
        ("somebody's hand", "ChangeApply", "Updating", |world| {
            world.set(APPLY, "/spec/variables/region", json!("us-east-1"))
        }),
        ("the filter", "ChangeApply", "ControlPlaneReady", |world| {
            world.set(
                CONTROL_PLANE,
                "/metadata/labels",
                json!({"cluster.x-k8s.io/watch-filter": "blue"}),
            )
        }),
        ("a removed hold", "HoldApply", "ControlPlaneReady", |world| {
            world.set(APPLY, "/metadata/finalizers", json!([]))
        }),
        ("a removed reference", "AdoptApply", "ControlPlaneReady", |world| {
            world.set(APPLY, "/metadata/ownerReferences", json!([]))
        }),
        ("a removed label", "AdoptApply", "ControlPlaneReady", |world| {
            world.set(APPLY, "/metadata/labels", json!({}))
        }),
    ];
    for (what, step, reason, edit) in rows {
        let mut world = World::ready();
        edit(&mut world);
        let phase = if reason == "ControlPlaneReady" {
            "Ready"
        } else {
            "Creating"
        };
        check(
            what,
            &world,
            Expected {
                step,
                ready: reason,
                phase,
                available: true,
                ..QUIET
            },
        );
    }
}

#[test]
fn a_network_in_trouble_changes_nothing_for_a_cluster_in_use() {
    let troubles: [Edit; 3] = [
        |world| world.set(VPC_APPLY, "/metadata/generation", json!(9)),
        |world| world.remove(VPC_APPLY),
        |world| world.remove(INFRASTRUCTURE),
    ];
    for trouble in troubles {
        let mut world = World::ready();
        trouble(&mut world);
        check("nothing else changed", &world, READY);

        world.set(CONTROL_PLANE, "/spec/version", json!("v1.32.0"));
        let Step::ChangeApply { spec, .. } = world.plan().step else {
            panic!("the version still goes through")
        };
        assert_eq!(spec.variables["kubernetes_version"], "1.32");
        assert_eq!(spec.variables["vpc_private_subnets"], "[\"s-1\"]");
        assert_eq!(spec.variables["vpc_id"], "vpc-0");
    }
}

#[test]
fn nothing_is_made_beside_the_apply_of_an_earlier_version() {
    let mut world = World::guarded();
    world.set(CONTROL_PLANE, "/spec/workspaceTemplateApplyName", json!("mine"));
    assert_eq!(
        step_name(&world.plan().step),
        "CreateApply",
        "no such apply: the field is ignored"
    );
    let mut astray = world.clone();
    astray.add_apply();
    let mut apply = astray.get(APPLY).clone();
    apply["metadata"]["name"] = json!("mine");
    let mut others = apply.clone();
    others["metadata"]["ownerReferences"] = json!([]);
    others["metadata"]["labels"] = json!({});
    world.put(ASTRAY, others);
    assert_eq!(
        step_name(&world.plan().step),
        "CreateApply",
        "somebody else's: the field is ignored"
    );
    world.put(ASTRAY, apply);
    check("refused", &world, terminal("InvalidSpec"));
    world.report();
    let message = world.status()["failureMessage"].to_string();
    assert!(message.contains("spec.workspaceTemplateApplyName") && message.contains("mine"));

    // Its network must not go before it.
    world.delete(CONTROL_PLANE);
    assert_eq!(world.plan().step, Step::Nothing);
    world.remove(ASTRAY);
    assert_eq!(step_name(&world.plan().step), "DropFinalizers");
}

/// The network that CAPT made becomes the user's own: its subnets stay those of the running cluster, whether its apply is
/// still there or not.
#[test]
fn the_same_vpc_by_its_id_keeps_what_the_cluster_was_made_with() {
    let existing = |id: &str| json!({"region": "eu-west-1", "existingVpcId": id});
    for apply_is_gone in [false, true] {
        let mut world = World::ready();
        world.set(CONTROL_PLANE, "/spec/variables", json!({"vpc_mine": "1"}));
        world.settle();
        world.set(INFRASTRUCTURE, "/spec", existing("vpc-0"));
        if apply_is_gone {
            world.remove(VPC_APPLY);
        }
        check("nothing changes", &world, READY);

        world.set(CONTROL_PLANE, "/spec/variables", json!({}));
        world.settle();
        let variables = &world.get(APPLY)["spec"]["variables"];
        assert_eq!(variables["vpc_private_subnets"], "[\"s-1\"]");
        assert_eq!(variables.get("vpc_mine"), None, "what the user takes back goes");
        check("and it rests there", &world, READY);

        world.set(INFRASTRUCTURE, "/spec", existing("vpc-1"));
        world.settle();
        let variables = &world.get(APPLY)["spec"]["variables"];
        assert_eq!(variables["vpc_id"], "vpc-1");
        assert_eq!(variables.get("vpc_private_subnets"), None, "those of another network");
    }
}

#[test]
fn an_apply_of_an_earlier_version_learns_what_its_network_gave() {
    let mut world = World::ready();
    world.set(APPLY, "/metadata/annotations", json!({}));
    check(
        "written down",
        &world,
        Expected {
            step: "ChangeApply",
            ..READY
        },
    );
    world.settle();
    check("once", &world, READY);
}

/// The controller was away, or its requests failed, for longer than the deadline: nobody else had anything to do meanwhile.
#[test]
fn no_deadline_passes_before_our_own_part_is_done() {
    let long_ago = |world: &World| json!((world.now - SignedDuration::from_hours(2)).to_string());
    let waited = |world: &mut World| {
        let since = long_ago(world);
        world.set(CONTROL_PLANE, "/status/waitingSince", json!({"controlPlane": since}));
    };
    let now = |world: &World| json!({"controlPlane": world.now.to_string()});

    // The apply is not made yet. What is told is that of a pass whose live look failed.
    let mut world = World::guarded();
    world.wait_until_settled();
    world.set(CONTROL_PLANE, "/status", json!({"observedGeneration": 1}));
    waited(&mut world);
    let planned = world.plan_first();
    assert_eq!(step_name(&planned.step), "Look");
    let told = serde_json::to_value(planned.status.unwrap()).unwrap();
    assert_eq!(
        (&told["phase"], &told["failureReason"]),
        (&json!("Creating"), &Value::Null)
    );
    assert_eq!(told["waitingSince"], now(&world));

    // The apply is not changed yet, by a wish that is not this object's own: another generation would begin anew anyway.
    let mut world = World::guarded();
    world.add_apply();
    world.apply_says("Applying", "at work");
    world.report();
    waited(&mut world);
    check("Terraform takes too long", &world, terminal("ControlPlaneTimeout"));
    world.set(VPC_APPLY, "/status/outputs/private_subnets", json!("[]"));
    check("not handed over yet", &world, waiting("ChangeApply", "Creating"));
    assert_eq!(
        serde_json::to_value(world.plan().status.unwrap()).unwrap()["waitingSince"],
        now(&world)
    );

    // Somebody else has to act after all.
    world.refused = Some(Refusal {
        reason: None,
        message: "a ResourceQuota refuses it".into(),
    });
    check("refused", &world, terminal("ControlPlaneTimeout"));
}

#[test]
fn an_old_wish_is_not_pushed_to_terraform() {
    let mut cached = World::ready();
    cached.set(APPLY, "/spec/variables/kubernetes_version", json!("1.33"));
    let mut live = cached.clone();
    live.set(CONTROL_PLANE, "/spec/version", json!("v1.33.0"));
    assert_eq!(step_name(&cached.plan_first().step), "Look");
    assert_eq!(cached.plan_against(&live).step, Step::Nothing);
}

#[test]
fn a_version_is_reported_once_terraform_runs_it() {
    let mut world = World::guarded();
    world.add_apply();
    world.apply_says("Applying", "at work");
    assert_eq!(world.plan().status.unwrap().version, None);
    world.settle();
    let versions = |world: &World| (world.status()["version"].clone(), world.status()["versions"].clone());
    assert_eq!(versions(&world), (json!("v1.31.0"), json!([{"version": "v1.31.0"}])));

    world.set(CONTROL_PLANE, "/spec/version", json!("v1.31.9"));
    world.settle();
    assert_eq!(
        versions(&world).0,
        json!("v1.31.9"),
        "the same minor version, spelled as the spec does"
    );

    world.set(CONTROL_PLANE, "/spec/version", json!("v1.32.0"));
    world.pass();
    assert_eq!(versions(&world).0, json!("v1.31.9"), "not yet");
    assert_eq!(world.condition("Ready"), ("False".into(), "Updating".into()));
    assert_eq!(world.status()["phase"], json!("Creating"));
    assert_eq!(world.condition("Available").0, "True");
    world.settle();
    assert_eq!(versions(&world), (json!("v1.32.0"), json!([{"version": "v1.32.0"}])));
    assert_eq!(world.status()["phase"], json!("Ready"));
}

#[test]
fn an_apply_that_is_not_ours() {
    for owner in ["another", "earlier"] {
        let mut world = World::guarded();
        world.add_apply();
        world.set(APPLY, "/metadata/ownerReferences/0/uid", json!(owner));
        check(owner, &world, terminal("OwnershipConflict"));
    }
    let mut world = World::guarded();
    world.add_apply();
    world.set(APPLY, "/spec", json!("not a spec"));
    check("unreadable", &world, waiting("Nothing", "Creating"));
}

#[test]
fn an_apply_that_somebody_deleted_is_held_and_not_made_again() {
    let mut world = World::ready();
    world.delete(APPLY);
    check("deleted by hand", &world, in_use(waiting("Nothing", "ApplyDeleted")));
    assert_eq!(world.plan().wake, Wake::OnEvent);
    world.report();
    world.remove(APPLY);
    check_step("its finalizers were removed", &world, "CreateApply");
    world.pass();
    check("and it is made again", &world, in_use(waiting("Nothing", "Updating")));
}

#[test]
fn a_control_plane_that_its_deleting_cluster_does_not_name_deletes_itself() {
    let mut world = World::ready();
    world.set(CLUSTER, "/spec/controlPlaneRef/name", json!("other"));
    assert_eq!(
        world.plan().step,
        Step::Nothing,
        "the Cluster stays: it may be named again"
    );
    world.delete(CLUSTER);
    assert_eq!(world.plan().step, Step::DeleteSelf);

    let mut live = world.clone();
    live.set(CLUSTER, "/spec/controlPlaneRef/name", json!("demo-cp"));
    assert_eq!(world.plan_against(&live).step, Step::Nothing, "named again");

    let mut named = World::ready();
    named.delete(CLUSTER);
    assert_eq!(
        named.plan().step,
        Step::Nothing,
        "Cluster API deletes what the Cluster names"
    );
}

fn failure_on_cluster(world: &mut World, name: &str) {
    let message = format!(
        "Failure detected from referenced resource controlplane.cluster.x-k8s.io/v1beta1, Kind=CAPTControlPlane with name {name:?}: it broke"
    );
    world.set(
        CLUSTER,
        "/status",
        json!({"deprecated": {"v1beta1": {"failureReason": "InvalidSpec", "failureMessage": message}}}),
    );
}

#[test]
fn a_failure_that_is_over_is_cleared_on_the_cluster() {
    let mut world = World::ready();
    failure_on_cluster(&mut world, "demo-cp");
    assert_eq!(step_name(&world.plan().step), "ClearClusterFailure");

    world.settings.clear_cluster_failures = false;
    assert_eq!(world.plan().step, Step::Nothing, "switched off");

    let mut world = World::ready();
    failure_on_cluster(&mut world, "another");
    assert_eq!(world.plan().step, Step::Nothing, "another's");

    let mut world = World::guarded();
    failure_on_cluster(&mut world, "demo-cp");
    world.set(CONTROL_PLANE, "/spec/version", json!("newest"));
    world.report();
    assert_eq!(world.plan().step, Step::Nothing, "it is not over");
    world.set(CLUSTER, "/spec/infrastructureRef/kind", json!("Other"));
    world.set(CONTROL_PLANE, "/spec/version", json!("v1.31.0"));
    assert_eq!(
        world.plan().step,
        Step::Nothing,
        "first the own status, or Cluster API copies it again"
    );
    world.report();
    assert_eq!(step_name(&world.plan().step), "ClearClusterFailure");
}

/// Step, reason of Deleting, words in its message.
#[track_caller]
fn check_deletion(what: &str, world: &World, step: &str, reason: &str, words: &str) {
    let plan = world.plan();
    let status = plan.status.as_ref().unwrap();
    assert_eq!(step_name(&plan.step), step, "{what}");
    let (deleting, deleting_reason, message) = condition(status, "Deleting");
    assert_eq!((deleting, deleting_reason), ("True", reason), "{what}: {message}");
    assert!(message.contains(words), "{what}: {message}");
    assert_eq!(status.phase.unwrap().as_str(), "Deleting", "{what}");
    assert_eq!(status.failure_reason, None, "{what}");
    for type_ in ["Ready", "Available", "Creating"] {
        let (is, reason, _) = condition(status, type_);
        assert_eq!((is, reason), ("False", "Deleting"), "{what}");
    }
}

#[test]
fn a_wait_that_was_told_stands_for_both_of_the_others_for_a_while() {
    let mut world = World::ready();
    world.delete(CONTROL_PLANE);
    world.wait_until_settled();
    let both =
        "capt-endpoint to clear the Cluster's endpoint, and for capt-secrets to remove the copies of kubeconfig and CA";
    check_deletion("both", &world, "Nothing", "WaitingForEndpointCleanup", both);
    world.report();
    let told = world.now;
    world.drop_finalizer(CONTROL_PLANE, "controlplane.cluster.x-k8s.io/captendpoint");
    world.wait_until_settled();
    let corrected = told + SignedDuration::from_secs(30);
    assert_eq!(world.silent_until(), Some(corrected), "the other one is nearly done");
    world.wait_minutes(1);
    check_deletion(
        "or not",
        &world,
        "Nothing",
        "WaitingForSecretCleanup",
        "waiting for capt-secrets",
    );
}

#[test]
fn the_order_of_deletion() {
    let mut world = World::ready();
    world.delete(CONTROL_PLANE);
    check_silent("the others clean up", &world, "Nothing");
    world.wait_until_settled();
    check_deletion(
        "first the endpoint",
        &world,
        "Nothing",
        "WaitingForEndpointCleanup",
        "capt-endpoint",
    );
    world.drop_finalizer(CONTROL_PLANE, "controlplane.cluster.x-k8s.io/captendpoint");
    check_deletion(
        "and the secrets",
        &world,
        "Nothing",
        "WaitingForSecretCleanup",
        "capt-secrets",
    );
    world.drop_finalizer(CONTROL_PLANE, "controlplane.cluster.x-k8s.io/captsecrets");
    let mut by_hand = world.clone();
    by_hand.delete(APPLY);
    for (what, world) in [("then EKS is let go", &world), ("also when it is going", &by_hand)] {
        let name = "demo-cp-eks-controlplane-apply";
        check_deletion(what, world, "ReleaseApply", "WaitingForWorkspace", name);
    }
    world.drop_finalizer(APPLY, "controlplane.cluster.x-k8s.io/captcontrolplane-hold");
    check_deletion(
        "and deleted",
        &world,
        "DeleteApply",
        "WaitingForWorkspace",
        "demo-cp-eks-controlplane-apply",
    );
    world.delete(APPLY);
    check_deletion(
        "and which takes its time",
        &world,
        "Nothing",
        "WaitingForWorkspace",
        "demo-cp-eks-controlplane-apply",
    );
    world.report();
    let told = world.status();
    for quiet in ["Held", "WaitingForWorkspace"] {
        let says = world::condition("Deleting", "True", quiet, "words that change", 1);
        let ready = world::condition("Ready", "False", "Deleting", "it is being deleted", 1);
        world.set(APPLY, "/status/conditions", json!([says, ready]));
        world.report();
        assert_eq!(world.status(), told, "{quiet}: nothing new");
    }
    for (reason, shown) in [
        ("DestroyFailed", "DestroyFailed"),
        ("StateLocked", "StateLocked"),
        ("CreateInterrupted", "CreateInterrupted"),
        ("OwnershipConflict", "OwnershipConflict"),
        ("WorkspacePaused", "WorkspacePaused"),
        ("AdmissionDenied", "AdmissionDenied"),
        ("ForeignFinalizer", "ForeignFinalizer"),
        ("Paused", "WaitingForWorkspace"),
        ("a reason of a later version", "WaitingForWorkspace"),
    ] {
        let says = world::condition("Deleting", "True", reason, "the subnet is in use", 1);
        world.set(APPLY, "/status/conditions", json!([says]));
        check_deletion(reason, &world, "Nothing", shown, "to go: the subnet is in use");
    }

    let mut kept = world.clone();
    kept.set(
        APPLY,
        "/metadata/finalizers",
        json!(["example.com/backup", "foregroundDeletion"]),
    );
    check_deletion(
        "somebody else keeps it",
        &kept,
        "Nothing",
        "ForeignFinalizer",
        "because of the finalizers of others: example.com/backup; whoever set them",
    );

    let mut corrected = world.clone();
    corrected.set(CONTROL_PLANE, "/spec/variables", json!({"nodes": "3"}));
    check_deletion(
        "what is corrected then still reaches Terraform",
        &corrected,
        "ChangeApply",
        "WaitingForWorkspace",
        "to go: the subnet is in use",
    );
    corrected.set(APPLY, "/status/conditions", json!([]));
    check_deletion(
        "but not while it destroys",
        &corrected,
        "Nothing",
        "WaitingForWorkspace",
        "demo-cp-eks-controlplane-apply",
    );

    let mut late = world.clone();
    late.remove(APPLY);
    assert_eq!(
        late.plan_against(&world).step,
        Step::Nothing,
        "the cache is ahead of nothing: the apply is still there"
    );
    check_step("and when it is gone", &late, "DropFinalizers");
}

#[test]
fn a_deletion_needs_neither_cluster_nor_status() {
    let mut world = World::ready();
    world.delete(CONTROL_PLANE);
    for name in ["captendpoint", "captsecrets"] {
        world.drop_finalizer(CONTROL_PLANE, &format!("controlplane.cluster.x-k8s.io/{name}"));
    }
    world.remove(CLUSTER);
    world.remove(INFRASTRUCTURE);
    world.set(CONTROL_PLANE, "/status", json!({}));
    assert_eq!(world.plan().step, Step::ReleaseApply);
}

#[test]
fn what_was_never_ours_does_not_hold_up_a_deletion() {
    let mut world = World::guarded();
    world.delete(CONTROL_PLANE);
    assert_eq!(world.plan().step, Step::DropFinalizers, "no apply was ever made");

    let mut world = World::guarded();
    world.add_apply();
    world.set(APPLY, "/metadata/ownerReferences/0/uid", json!("another"));
    world.delete(CONTROL_PLANE);
    assert_eq!(world.plan().step, Step::DropFinalizers, "somebody else's stays");

    let mut bare = World::new();
    bare.set(CONTROL_PLANE, "/metadata/finalizers", json!(["example.com/other"]));
    bare.delete(CONTROL_PLANE);
    assert_eq!(bare.plan(), Plan::leave_alone(), "not guarded by us");
    bare.set(
        CONTROL_PLANE,
        "/metadata/finalizers",
        json!(["infrastructure.cluster.x-k8s.io/finalizer"]),
    );
    assert_eq!(bare.plan().step, Step::DropFinalizers, "guarded by the Go version");
}

#[test]
fn a_late_deletion_is_told_and_goes_on() {
    let mut world = World::ready();
    world.delete(CONTROL_PLANE);
    let begun = world.now;
    world.wait_until_settled();
    assert_eq!(world.plan().wake, Wake::At(begun + SignedDuration::from_mins(30)));
    world.report();
    world.now = begun + SignedDuration::from_mins(30);
    check_deletion(
        "late",
        &world,
        "Nothing",
        "DeletionTimeout",
        "deletionTimeout has passed: waiting for capt-endpoint",
    );
    for name in ["captendpoint", "captsecrets"] {
        world.drop_finalizer(CONTROL_PLANE, &format!("controlplane.cluster.x-k8s.io/{name}"));
    }
    check_deletion("late, but going on", &world, "ReleaseApply", "DeletionTimeout", "");
}

#[test]
fn a_refused_deletion_is_shown() {
    for (reason, shown) in [
        (Some(Ready::OwnershipConflict), "OwnershipConflict"),
        (None, "WaitingForWorkspace"),
    ] {
        let mut world = World::guarded();
        world.add_apply();
        world.delete(CONTROL_PLANE);
        world.refused = Some(Refusal {
            reason,
            message: "not allowed".into(),
        });
        check_deletion("refused", &world, "Nothing", shown, "not allowed");
    }
}

#[test]
fn what_the_go_version_left_is_taken_over() {
    let mut world = World::guarded();
    world.add_apply();
    world.set(
        APPLY,
        "/metadata/finalizers",
        json!(["infrastructure.cluster.x-k8s.io/finalizer"]),
    );
    world.set(APPLY, "/metadata/labels", json!({}));
    world.set(APPLY, "/spec/variables/tags_old", json!("x"));
    world.set(
        CONTROL_PLANE,
        "/status",
        json!({"phase": "Whatever", "ready": true, "initialized": true, "workspaceStatus": {"ready": true}}),
    );
    world.settle();
    assert_eq!(world.status()["phase"], json!("Ready"));
    assert_eq!(world.creates, 0);
    let apply = world.get(APPLY);
    assert_eq!(apply["spec"]["variables"].get("tags_old"), None::<&Value>);
    assert_eq!(
        apply["metadata"]["labels"]["infrastructure.cluster.x-k8s.io/capt-owner-uid"],
        json!("cp-uid")
    );
}
