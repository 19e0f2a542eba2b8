//! A row per transition, and what holds for every plan.

use std::sync::Arc;

use capt_api::reasons::is_trouble;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::address::Invalid;

mod walk;

fn endpoint(host: &str) -> ApiEndpoint {
    ApiEndpoint {
        host: host.into(),
        port: 443,
    }
}

/// The time of every plan here, unless it says otherwise.
fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

/// So long before, as objects have it.
fn ago(seconds: i64) -> String {
    (now() - jiff::SignedDuration::from_secs(seconds)).to_string()
}

/// A condition as it stands in an object.
fn stands(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({
        "type": type_, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": ago(60), "observedGeneration": 3,
    })
}

/// Read as: W wanted, C the Cluster's, P the control plane's, I the infrastructure's.
#[derive(Debug)]
struct Scene(Observed);

impl Scene {
    /// A control plane with an owner, whose apply is ready and reports `w`.
    fn new() -> Self {
        Self(Observed {
            control_plane: control_plane(json!({})).into(),
            owner: Owner::Present(Parent {
                name: "demo".into(),
                paused: false,
                endpoint: None,
                other_control_plane: None,
                infrastructure: Infrastructure::WithoutEndpoint,
            }),
            apply: told(Told::Address(endpoint("w"))),
            live: true,
        })
    }

    fn with(mut self, change: impl FnOnce(&mut Observed)) -> Self {
        change(&mut self.0);
        self
    }

    fn parent(self, change: impl FnOnce(&mut Parent)) -> Self {
        self.with(|seen| match &mut seen.owner {
            Owner::Present(parent) => change(parent),
            other => panic!("{other:?}"),
        })
    }

    fn cached(self) -> Self {
        self.with(|seen| seen.live = false)
    }

    fn c(self, host: &str) -> Self {
        self.parent(|parent| parent.endpoint = Some(endpoint(host)))
    }

    fn p(self, host: &str) -> Self {
        self.patched(json!({"spec": {"controlPlaneEndpoint": {"host": host, "port": 443}}}))
    }

    fn i(self, host: &str) -> Self {
        let infrastructure = Infrastructure::WithEndpoint {
            name: "net".into(),
            endpoint: endpoint(host),
        };
        self.parent(|parent| parent.infrastructure = infrastructure)
    }

    fn apply(self, apply: Apply) -> Self {
        self.with(|seen| seen.apply = apply)
    }

    fn finalizer(self) -> Self {
        self.patched(json!({"metadata": {"finalizers": ["controlplane.cluster.x-k8s.io/captendpoint"]}}))
    }

    /// `host` was published before, as far as the control plane knows.
    fn reported(self, host: &str) -> Self {
        self.p(host)
            .finalizer()
            .patched(json!({"status": {"endpoint": format!("{host}:443")}}))
            .said("True", "EndpointPublished", "said before")
    }

    /// EndpointReady stands like this.
    fn said(self, status: &str, reason: &str, message: &str) -> Self {
        let ready = stands("Ready", "False", "Creating", "");
        let endpoint_ready = stands("EndpointReady", status, reason, message);
        self.patched(json!({"status": {"conditions": [ready, endpoint_ready]}}))
    }

    /// capt-controlplane-controller has not said anything yet.
    fn unspoken(self) -> Self {
        self.patched(json!({"status": null}))
    }

    /// Created so many seconds ago.
    fn aged(self, seconds: i64) -> Self {
        self.patched(json!({"metadata": {"creationTimestamp": ago(seconds)}}))
    }

    fn deleting(self) -> Self {
        self.finalizer()
            .patched(json!({"metadata": {"deletionTimestamp": ago(1)}}))
    }

    fn annotated(self, key: &str) -> Self {
        self.patched(json!({"metadata": {"annotations": {key: ""}}}))
    }

    fn patched(self, change: Value) -> Self {
        self.with(|seen| {
            let mut object = serde_json::to_value(&*seen.control_plane).unwrap();
            json_patch::merge(&mut object, &change);
            seen.control_plane = serde_json::from_value::<CaptControlPlane>(object).unwrap().into();
        })
    }

    fn plan(&self) -> Plan {
        plan(&self.0, now())
    }
}

fn control_plane(change: Value) -> CaptControlPlane {
    let mut object = json!({
        "apiVersion": "controlplane.cluster.x-k8s.io/v1beta1", "kind": "CAPTControlPlane",
        "metadata": {
            "name": "demo-cp", "namespace": "ns", "uid": "cp", "resourceVersion": "1", "generation": 4,
            "creationTimestamp": ago(60),
        },
        "spec": {"version": "1.31", "workspaceTemplateRef": {"name": "t"}, "controlPlaneConfig": {"region": "eu-west-1"}},
        "status": {"conditions": [stands("Ready", "False", "WaitingForVPC", "")]},
    });
    json_patch::merge(&mut object, &change);
    serde_json::from_value(object).unwrap()
}

fn told(told: Told) -> Apply {
    Apply::Present {
        ready: true,
        revision: Some("r1".into()),
        told,
    }
}

fn not_ready() -> Apply {
    Apply::Present {
        ready: false,
        revision: Some("r1".into()),
        told: Told::Address(endpoint("w")),
    }
}

fn invalid() -> Apply {
    told(Told::Invalid(Place::Output, Invalid::Scheme))
}

/// The writes as text: F finalizer, C and P with their new value.
fn step(plan: &Plan) -> String {
    match &plan.step {
        Step::Nothing => "-".into(),
        Step::Look => "look".into(),
        Step::LetGo { clear: true } => "clear, let go".into(),
        Step::LetGo { clear: false } => "let go".into(),
        Step::Publish(writes) => {
            let finalizer = writes.finalizer.then(|| "F".to_owned());
            let cluster = writes.cluster.as_ref().map(|endpoint| format!("C={}", endpoint.host));
            let control_plane = writes
                .control_plane
                .as_ref()
                .map(|endpoint| format!("P={}", endpoint.host));
            [finalizer, cluster, control_plane]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join(" ")
        }
    }
}

/// Status, reason, endpoint.
fn said(plan: &Plan) -> (&str, &str, Option<&str>) {
    plan.report.as_ref().map_or(("", "", None), |report| {
        (
            report.ready.status.as_str(),
            report.ready.reason.as_str(),
            report.endpoint.as_deref(),
        )
    })
}

fn message(plan: &Plan) -> &str {
    plan.report.as_ref().map_or("", |report| report.ready.message.as_str())
}

/// The table of who owns the Cluster's endpoint. The first row that matches decides.
#[test]
fn ours_or_theirs_is_decided_by_value() {
    const W: Option<&str> = Some("w:443");
    let scene = || Scene::new().finalizer();
    for (case, scene, writes, reason, words) in [
        (
            "I set",
            scene().i("i"),
            "P=w",
            "UserSupplied",
            "takes i:443 from CAPTCluster net",
        ),
        (
            "I set, C copied from it",
            scene().i("i").c("i").p("w"),
            "-",
            "UserSupplied",
            "w:443",
        ),
        (
            "I set, C ours",
            scene().i("i").c("old").p("old"),
            "P=w",
            "UserSupplied",
            "takes i:443",
        ),
        (
            "C absent",
            scene(),
            "C=w P=w",
            "EndpointPublished",
            "published to Cluster demo",
        ),
        ("C absent, P published", scene().p("w"), "C=w", "EndpointPublished", ""),
        (
            "C absent, P outdated",
            scene().p("old"),
            "C=w P=w",
            "EndpointPublished",
            "",
        ),
        ("C = W", scene().c("w"), "P=w", "EndpointPublished", ""),
        (
            "C = W = P",
            scene().c("w").p("w"),
            "-",
            "EndpointPublished",
            "w:443, revision r1, is published to Cluster demo",
        ),
        (
            "C = W, P a user's",
            scene().c("w").p("user"),
            "P=w",
            "EndpointPublished",
            "",
        ),
        ("C = P", scene().c("old").p("old"), "C=w P=w", "EndpointPublished", ""),
        (
            "C a user's",
            scene().c("user").p("w"),
            "-",
            "UserSupplied",
            "w:443, revision r1, is what EKS reports; Cluster demo has user:443",
        ),
        (
            "C a user's, P absent",
            scene().c("user"),
            "P=w",
            "UserSupplied",
            "user:443",
        ),
        (
            "C a user's, P outdated",
            scene().c("user").p("old"),
            "P=w",
            "UserSupplied",
            "user:443",
        ),
        (
            "another control plane is the Cluster's",
            scene().parent(|parent| parent.other_control_plane = Some("CAPTControlPlane x".into())),
            "P=w",
            "EndpointPublished",
            "Cluster demo is left alone, because its control plane is CAPTControlPlane x",
        ),
    ] {
        let plan = scene.plan();
        assert_eq!(step(&plan), writes, "{case}");
        assert_eq!(said(&plan), ("True", reason, W), "{case}");
        assert!(message(&plan).contains(words), "{case}: {}", message(&plan));
    }
}

#[test]
fn what_depends_on_the_cluster_is_read_again_first() {
    for (case, scene, expected) in [
        ("to add", Scene::new(), "look"),
        ("to replace", Scene::new().finalizer().c("old").p("old"), "look"),
        (
            "a user's, which may be our own of a moment ago",
            Scene::new().finalizer().c("old").p("w"),
            "look",
        ),
        ("nothing to write there", Scene::new().finalizer().c("w"), "P=w"),
        ("nothing to write at all", Scene::new().reported("w").c("w"), "-"),
        ("the user's infrastructure", Scene::new().finalizer().i("i"), "P=w"),
        ("to clear", Scene::new().deleting().c("w").p("w"), "look"),
        (
            "nothing to clear, as far as the cache knows",
            Scene::new().deleting(),
            "look",
        ),
        (
            "no Cluster, as far as the cache knows",
            Scene::new().deleting().with(|seen| seen.owner = Owner::Gone),
            "look",
        ),
        (
            "no owner: nothing to look at",
            Scene::new().deleting().with(|seen| seen.owner = Owner::NotSet),
            "let go",
        ),
    ] {
        let plan = scene.cached().plan();
        assert_eq!(step(&plan), expected, "{case}");
        let says_nothing = expected == "look" || expected == "let go";
        assert_eq!(
            plan.report.is_none(),
            says_nothing,
            "{case}: nothing is said on doubtful grounds"
        );
    }
}

#[test]
fn a_users_endpoint_is_not_read_again_once_it_was_reported() {
    let scene = Scene::new().finalizer().c("user").p("w");
    let report = scene.plan().report.unwrap();
    let told = scene.cached().with(|seen| {
        let mut control_plane = (*seen.control_plane).clone();
        carry_over(&mut control_plane, &report);
        seen.control_plane = control_plane.into();
    });
    assert_eq!(step(&told.plan()), "-");
    // A new revision is news.
    assert_eq!(
        step(
            &told
                .apply(Apply::Present {
                    ready: true,
                    revision: None,
                    told: Told::Address(endpoint("w"))
                })
                .plan()
        ),
        "look"
    );
}

/// Nothing is overwritten when there is nothing to write, and what was published before stands.
#[test]
fn without_an_address() {
    type Row = (&'static str, Apply, &'static str, &'static str, &'static str);
    let rows: [Row; 10] = [
        (
            "no apply",
            Apply::Absent,
            "WaitingForWorkspace",
            "EndpointPublished",
            "waiting until WorkspaceTemplateApply demo-cp-eks-controlplane-apply is ready",
        ),
        (
            "unreadable",
            Apply::Unreadable,
            "WaitingForWorkspace",
            "EndpointPublished",
            "cannot be read",
        ),
        (
            "somebody else's",
            Apply::Foreign,
            "WaitingForWorkspace",
            "EndpointPublished",
            "belongs to something else",
        ),
        (
            "not ready",
            not_ready(),
            "WaitingForWorkspace",
            "EndpointPublished",
            "is ready",
        ),
        (
            "too early",
            Apply::Present {
                ready: false,
                revision: None,
                told: Told::NotYet,
            },
            "WaitingForWorkspace",
            "EndpointPublished",
            "is ready",
        ),
        (
            "no secret named",
            told(Told::Missing(Missing::SecretNotNamed)),
            "EndpointMissing",
            "EndpointMissing",
            "no output cluster_endpoint",
        ),
        (
            "no secret",
            told(Told::Missing(Missing::SecretAbsent("s".into()))),
            "EndpointMissing",
            "EndpointMissing",
            "secret s does not exist",
        ),
        (
            "no key",
            told(Told::Missing(Missing::KeyAbsent("s".into()))),
            "EndpointMissing",
            "EndpointMissing",
            "secret s has no such key",
        ),
        (
            "invalid output",
            invalid(),
            "EndpointInvalid",
            "EndpointInvalid",
            "its scheme is not https",
        ),
        (
            "invalid secret",
            told(Told::Invalid(Place::Secret("s".into()), Invalid::NotText)),
            "EndpointInvalid",
            "EndpointInvalid",
            "key cluster_endpoint of Secret s",
        ),
    ];
    for (case, apply, reason, later, words) in rows {
        let first = Scene::new().apply(apply.clone()).plan();
        assert_eq!(
            (step(&first).as_str(), said(&first)),
            ("-", ("False", reason, None)),
            "{case}"
        );
        assert!(message(&first).contains(words), "{case}: {}", message(&first));

        let plan = Scene::new().reported("old").c("old").apply(apply.clone()).plan();
        assert_eq!(
            (step(&plan).as_str(), said(&plan)),
            ("-", ("True", later, Some("old:443"))),
            "{case}, published before"
        );
        let expected = if later == reason {
            "the published endpoint old:443 stays"
        } else {
            "said before"
        };
        assert!(message(&plan).contains(expected), "{case}: {}", message(&plan));

        let lost = Scene::new()
            .reported("old")
            .patched(json!({"spec": {"controlPlaneEndpoint": null}}))
            .apply(apply)
            .plan();
        assert_eq!(said(&lost).0, "False", "{case}, and what was published is gone");
    }
}

#[test]
fn an_endpoint_of_an_earlier_version_gets_its_finalizer() {
    for apply in [Apply::Absent, not_ready(), invalid()] {
        assert_eq!(step(&Scene::new().c("old").p("old").apply(apply.clone()).plan()), "F");
        assert_eq!(
            step(&Scene::new().c("old").p("old").finalizer().apply(apply.clone()).plan()),
            "-"
        );
        assert_eq!(step(&Scene::new().c("user").p("old").apply(apply.clone()).plan()), "-");
        assert_eq!(
            step(&Scene::new().apply(apply).plan()),
            "-",
            "two absences are not equal"
        );
    }
}

#[test]
fn the_finalizer_comes_with_the_first_write_and_comes_back() {
    assert_eq!(step(&Scene::new().plan()), "F C=w P=w");
    assert_eq!(
        step(
            &Scene::new()
                .reported("w")
                .c("w")
                .patched(json!({"metadata": {"finalizers": null}}))
                .plan()
        ),
        "F"
    );
    assert_eq!(
        step(&Scene::new().apply(not_ready()).plan()),
        "-",
        "nothing to protect yet"
    );
}

#[test]
fn a_value_of_somebody_else_is_displaced_and_our_own_is_replaced() {
    let displaced = |scene: &Scene| match scene.plan().step {
        Step::Publish(writes) => writes.displaced,
        _ => None,
    };
    assert_eq!(displaced(&Scene::new().p("user")), Some(endpoint("user")));
    assert_eq!(
        displaced(&Scene::new().reported("w").p("user").c("w")),
        Some(endpoint("user"))
    );
    assert_eq!(
        displaced(&Scene::new().reported("old").c("old")),
        None,
        "ours, and EKS has another now"
    );
    assert_eq!(displaced(&Scene::new()), None);

    // Written while Terraform was at work: it is still told from ours afterwards.
    let busy = Scene::new().reported("w").p("user").c("w").apply(not_ready());
    let later = after(&busy, &busy.plan()).apply(told(Told::Address(endpoint("w"))));
    assert_eq!(displaced(&later), Some(endpoint("user")));
    assert_eq!(displaced(&Scene::new().p("w")), None);
}

#[test]
fn nothing_is_done_before_the_owner_is_there() {
    for owner in [Owner::NotSet, Owner::Gone] {
        let first = Scene::new().with(|seen| seen.owner = owner.clone()).plan();
        assert_eq!(
            (step(&first).as_str(), said(&first)),
            ("-", ("False", "WaitingForCluster", None))
        );
        let later = Scene::new().reported("w").with(|seen| seen.owner = owner).plan();
        assert_eq!(later, Plan::NOTHING, "the last word stays");
    }
}

#[test]
fn infrastructure_that_cannot_be_read_may_hold_a_users_endpoint() {
    let unreadable =
        |scene: Scene| scene.parent(|parent| parent.infrastructure = Infrastructure::Unreadable("net".into()));
    let first = unreadable(Scene::new()).plan();
    assert_eq!(
        (step(&first).as_str(), said(&first)),
        ("-", ("False", "WaitingForCluster", None))
    );
    assert!(message(&first).contains("CAPTCluster net"));
    let later = unreadable(Scene::new().reported("old").c("old")).plan();
    assert_eq!(
        (step(&later).as_str(), said(&later)),
        ("-", ("True", "WaitingForCluster", Some("old:443")))
    );
    let going = unreadable(Scene::new().deleting().c("w").p("w")).plan();
    assert_eq!(step(&going), "let go", "what may be a user's is not cleared");
}

/// What is being deleted keeps its last word, whatever becomes of the Cluster's endpoint.
#[test]
fn deletion() {
    let scene = || Scene::new().deleting();
    for (case, scene, expected) in [
        ("C = P", scene().c("w").p("w"), "clear, let go"),
        (
            "C = P, apply gone",
            scene().c("w").p("w").apply(Apply::Absent),
            "clear, let go",
        ),
        (
            "C = P, invalid source",
            scene().c("old").p("old").apply(invalid()),
            "clear, let go",
        ),
        ("C = P, outdated", scene().c("old").p("old"), "clear, let go"),
        (
            "C = W: a pass was cut off before it wrote P",
            scene().c("w"),
            "clear, let go",
        ),
        (
            "C = W, P outdated: the same",
            scene().c("w").p("old").apply(not_ready()),
            "clear, let go",
        ),
        ("I set", scene().c("w").p("w").i("w"), "let go"),
        ("C absent", scene().p("w"), "let go"),
        ("C and P absent", scene().apply(Apply::Absent), "let go"),
        ("C a user's", scene().c("user").p("w"), "let go"),
        ("no owner", scene().with(|seen| seen.owner = Owner::NotSet), "let go"),
        ("no Cluster", scene().with(|seen| seen.owner = Owner::Gone), "let go"),
    ] {
        let plan = scene.plan();
        assert_eq!(step(&plan), expected, "{case}");
        let done = after(&scene, &plan);
        assert_eq!((plan.report, plan.wake), (None, Wake::OnEvent), "{case}");
        assert_eq!(done.plan(), Plan::NOTHING, "{case}, done");
    }
}

/// Core copies the endpoint of a control plane whose deletion it has not seen yet to a Cluster that has none.
#[test]
fn an_endpoint_that_core_writes_back_is_cleared_again() {
    let cleared = || {
        Scene::new()
            .deleting()
            .p("w")
            .patched(json!({"metadata": {"finalizers": null}}))
    };
    assert_eq!(cleared().plan(), Plan::NOTHING);
    assert_eq!(step(&cleared().c("w").cached().plan()), "look");
    assert_eq!(step(&cleared().c("w").plan()), "clear, let go");
    for (case, scene) in [
        ("C a user's", cleared().c("user")),
        ("I set", cleared().c("w").i("w")),
        ("no Cluster", cleared().c("w").with(|seen| seen.owner = Owner::Gone)),
    ] {
        assert_eq!(scene.plan(), Plan::NOTHING, "{case}");
    }
}

/// Nobody is to think that there is an endpoint while Terraform destroys the cluster, which may take long.
#[test]
fn an_endpoint_that_is_withdrawn_is_told_when_the_deletion_lasts() {
    let gone = |scene: Scene, seconds: i64| {
        scene.patched(json!({"metadata": {"deletionTimestamp": ago(seconds), "finalizers": ["example.com/other"]}}))
    };
    let young = gone(Scene::new().reported("w"), 59).plan();
    let told_at = now() + jiff::SignedDuration::from_secs(1);
    assert_eq!((young.report, young.wake), (None, Wake::At(told_at)));

    let old = gone(Scene::new().reported("w"), 60);
    let plan = old.plan();
    assert_eq!((step(&plan).as_str(), said(&plan)), ("-", ("False", "Deleting", None)));
    assert_eq!(after(&old, &plan).plan(), Plan::NOTHING, "once");

    let never = Scene::new().said("False", "WaitingForWorkspace", "m");
    assert_eq!(gone(never, 60).plan(), Plan::NOTHING, "there was nothing to withdraw");
    let held = Scene::new()
        .reported("w")
        .deleting()
        .c("w")
        .patched(json!({"metadata": {"deletionTimestamp": ago(60)}}));
    assert_eq!(
        (step(&held.plan()).as_str(), held.plan().report),
        ("clear, let go", None)
    );
}

/// The ordinary wait is told once: not before capt-controlplane-controller has spoken, with one text for all its stages,
/// and not again for a new generation.
#[test]
fn the_ordinary_wait_is_told_once_and_in_turn() {
    let too_early = || Apply::Present {
        ready: false,
        revision: None,
        told: Told::NotYet,
    };
    for apply in [Apply::Absent, too_early(), not_ready()] {
        let early = Scene::new().unspoken().apply(apply.clone()).plan();
        assert_eq!((step(&early).as_str(), &early.report), ("-", &None), "{apply:?}");
        assert_eq!(early.wake, Wake::OnEvent, "the other's first word is the event");

        let first = Scene::new().apply(apply.clone());
        let words = first.plan().report.unwrap();
        assert_eq!(words.ready.reason, EndpointReady::WaitingForWorkspace);
        let mut told = after(&first, &first.plan());
        for next in [Apply::Absent, too_early(), not_ready()] {
            told = told
                .apply(next)
                .with(|seen| raise_generation(Arc::make_mut(&mut seen.control_plane)));
            let again = told.plan().report.unwrap();
            assert_eq!(again, words);
            let after = again.status(&told.0.control_plane, now()).conditions;
            assert_eq!(
                after.first(),
                condition(&told.0.control_plane),
                "not even the generation"
            );
        }
    }
    // Nobody speaks first, and this has been said: it is brought up to date all the same.
    let alone = Scene::new()
        .said("False", "EndpointMissing", "")
        .apply(Apply::Absent)
        .plan();
    assert_eq!(said(&alone), ("False", "WaitingForWorkspace", None));
}

fn raise_generation(control_plane: &mut CaptControlPlane) {
    control_plane.metadata.generation = control_plane.metadata.generation.map(|generation| generation + 1);
}

/// At rest the generation is the object's own, also when nothing else changed.
#[test]
fn what_is_no_wait_follows_the_generation() {
    for scene in [
        Scene::new().reported("w").c("w"),
        Scene::new().reported("w").c("w").apply(not_ready()),
        Scene::new().apply(invalid()),
        Scene::new().reported("w").c("w").apply(invalid()),
    ] {
        let mut told = after(&scene, &scene.plan());
        told = told.with(|seen| raise_generation(Arc::make_mut(&mut seen.control_plane)));
        let status = told.plan().report.unwrap().status(&told.0.control_plane, now());
        assert_eq!(
            status.conditions[0].observed_generation,
            told.0.control_plane.metadata.generation
        );
    }
}

/// Cluster API sets the owner within moments: that it is not there yet is told when it lasts.
#[test]
fn a_missing_owner_is_told_when_it_lasts() {
    for owner in [Owner::NotSet, Owner::Gone] {
        let scene = || Scene::new().with(|seen| seen.owner = owner.clone());
        for age in [0, 4] {
            let young = scene().aged(age).plan();
            let at = Wake::At(ago(age - 5).parse().unwrap());
            assert_eq!((young.report, young.wake), (None, at), "{age} s");
        }
        let old = scene().aged(5).plan();
        assert_eq!(said(&old), ("False", "WaitingForCluster", None));
        assert_eq!(old.wake, Wake::OnEvent);
        assert_eq!(scene().aged(5).unspoken().plan(), Plan::NOTHING, "in turn");
    }
}

#[test]
fn what_is_left_alone_is_not_written_to() {
    let scenes: [fn() -> Scene; 3] = [
        Scene::new,
        || Scene::new().deleting().c("w").p("w"),
        || Scene::new().reported("old").c("old"),
    ];
    for scene in scenes {
        for left_alone in [
            scene().annotated("cluster.x-k8s.io/paused"),
            scene().annotated("cluster.x-k8s.io/managed-by"),
            scene().annotated("clusterctl.cluster.x-k8s.io/delete-for-move"),
            scene().parent(|parent| parent.paused = true),
            scene().with(|seen| seen.owner = Owner::Unreadable),
        ] {
            assert_eq!(left_alone.plan(), Plan::NOTHING);
            assert_eq!(left_alone.cached().plan(), Plan::NOTHING);
        }
    }
}

#[test]
fn a_refusal_is_shown_and_what_was_published_stands() {
    let first = refused(&control_plane(json!({})), "no".into());
    assert_eq!((first.ready.status, first.endpoint), (Status::False, None));
    let later = refused(&Scene::new().reported("w").0.control_plane, "no".into());
    assert_eq!(
        (later.ready.status, later.endpoint.as_deref()),
        (Status::True, Some("w:443"))
    );
    assert_eq!(later.ready.reason, EndpointReady::EndpointUpdateFailed);
    assert_eq!(later.ready.message, "no; the published endpoint w:443 stays");
}

/// Saying the same thing again must not make the message longer.
#[test]
fn a_message_does_not_grow_from_pass_to_pass() {
    for apply in [invalid(), not_ready(), told(Told::Missing(Missing::SecretNotNamed))] {
        let scene = Scene::new().reported("old").c("old").apply(apply);
        let first = scene.plan();
        let again = after(&scene, &first).plan();
        assert_eq!(first.report, again.report);
    }
}

/// The world after the plan was carried out.
fn after(scene: &Scene, plan: &Plan) -> Scene {
    let mut seen = scene.0.clone();
    let mut control_plane = (*seen.control_plane).clone();
    if let Step::Publish(writes) = &plan.step {
        if writes.finalizer {
            control_plane
                .metadata
                .finalizers
                .get_or_insert_default()
                .push("controlplane.cluster.x-k8s.io/captendpoint".into());
        }
        if let (Some(endpoint), Owner::Present(parent)) = (&writes.cluster, &mut seen.owner) {
            parent.endpoint = Some(endpoint.clone());
        }
        if let Some(endpoint) = &writes.control_plane {
            control_plane.spec.control_plane_endpoint = Some(endpoint.clone());
        }
    }
    if let Step::LetGo { clear } = plan.step {
        control_plane.metadata.finalizers = None;
        if let (true, Owner::Present(parent)) = (clear, &mut seen.owner) {
            parent.endpoint = None;
        }
    }
    if let Some(report) = &plan.report {
        carry_over(&mut control_plane, report);
    }
    seen.control_plane = control_plane.into();
    Scene(seen)
}

/// Writes a report, beside what others wrote.
fn carry_over(control_plane: &mut CaptControlPlane, report: &Report) {
    let mut written = report.status(control_plane, now());
    let status = control_plane.status.get_or_insert_default();
    status.endpoint = written.endpoint;
    status.conditions.retain(|other| other.type_ != EndpointReady::TYPE);
    status.conditions.append(&mut written.conditions);
}

fn maybe(scene: Scene, change: impl FnOnce(Scene, &str) -> Scene, host: Option<&str>) -> Scene {
    match host {
        Some(host) => change(scene, host),
        None => scene,
    }
}

fn any_scene() -> impl Strategy<Value = Scene> {
    let host = || proptest::option::of(proptest::sample::select(vec!["w", "old", "user"]));
    let apply = proptest::sample::select(vec![
        Apply::Absent,
        Apply::Unreadable,
        Apply::Foreign,
        not_ready(),
        invalid(),
        told(Told::Missing(Missing::SecretNotNamed)),
        told(Told::Address(endpoint("w"))),
    ]);
    let owner = 0..6u8;
    (
        host(),
        host(),
        proptest::option::of(Just("i")),
        host(),
        apply,
        owner,
        proptest::sample::select(vec![0, 4, 5, 60]),
        any::<[bool; 4]>(),
    )
        .prop_map(
            |(c, p, i, reported, apply, owner, age, [finalizer, deleting, other, spoken])| {
                let mut scene = Scene::new().apply(apply).aged(age);
                if !spoken {
                    scene = scene.unspoken();
                }
                scene = maybe(scene, Scene::reported, reported);
                scene = maybe(scene, Scene::c, c);
                scene = maybe(scene, Scene::p, p);
                scene = maybe(scene, Scene::i, i);
                if finalizer {
                    scene = scene.finalizer();
                }
                if other {
                    scene = scene.parent(|parent| parent.other_control_plane = Some("CAPTControlPlane x".into()));
                }
                if deleting {
                    scene = scene.deleting();
                }
                scene.with(|seen| match owner {
                    0 => seen.owner = Owner::NotSet,
                    1 => seen.owner = Owner::Gone,
                    _ => {}
                })
            },
        )
}

proptest! {
    /// One pass reaches the goal, whatever stands there: a second one finds nothing to write and nothing new to say.
    #[test]
    fn a_plan_that_was_carried_out_is_not_repeated(scene in any_scene()) {
        let first = scene.plan();
        let then = after(&scene, &first);
        let second = then.plan();
        prop_assert_eq!(step(&second), "-");
        if let Some(report) = &second.report {
            prop_assert_eq!(Some(report), first.report.as_ref());
        }
        // Nor does the cache's word, once it has caught up, make it doubtful.
        prop_assert_eq!(step(&then.cached().plan()), "-");
    }

    /// What a user set, on the Cluster or on the infrastructure, is never touched.
    #[test]
    fn a_users_endpoint_is_never_overwritten(scene in any_scene()) {
        let Owner::Present(parent) = &scene.0.owner else { return Ok(()) };
        let p = current(&scene.0.control_plane).map(|endpoint| endpoint.host.as_str());
        let c = parent.endpoint.as_ref().map(|endpoint| endpoint.host.as_str());
        let is_users = c.is_some_and(|c| c != "w" && Some(c) != p) || matches!(parent.infrastructure, Infrastructure::WithEndpoint { .. });
        if is_users {
            let writes_cluster = match scene.plan().step {
                Step::Publish(writes) => writes.cluster.is_some(),
                Step::LetGo { clear } => clear,
                Step::Nothing | Step::Look => false,
            };
            prop_assert!(!writes_cluster);
        }
    }

    /// Silence hides neither a failure nor an end, and does not last: what would be said is a wait, and either somebody
    /// else's first word or the time of waking brings it out.
    #[test]
    fn a_silent_plan_hides_nothing_that_matters(scene in any_scene()) {
        let silent = scene.plan();
        let is_published = Published::of(&scene.0.control_plane).is_some();
        if silent.report.is_some() || scene.0.is_being_deleted() || is_published {
            return Ok(());
        }
        let unspoken = !is_our_turn(&scene.0.control_plane);
        prop_assert!(unspoken || silent.wake != Wake::OnEvent);
        let later = match silent.wake {
            Wake::At(at) => { prop_assert!(at > now()); at }
            Wake::OnEvent => now(),
        };
        let spoken = if unspoken {
            scene.patched(json!({"status": {"conditions": [stands("Ready", "False", "WaitingForVPC", "")]}}))
        } else {
            scene
        };
        let told = plan(&spoken.0, later).report.map(|report| report.ready);
        prop_assert!(told.as_ref().is_some_and(|ready| ready.status == Status::False && !is_trouble(ready.reason.as_str())), "{told:?}");
        // The work is done in silence, too.
        prop_assert_eq!(silent.step, plan(&spoken.0, later).step);
    }

    /// Every report holds exactly the fields of this controller, and says "ready" with an endpoint or not at all.
    #[test]
    fn every_report_is_whole(scene in any_scene()) {
        if let Some(report) = scene.plan().report {
            let status = report.status(&scene.0.control_plane, now());
            prop_assert_eq!(status.conditions.len(), 1);
            prop_assert_eq!(status.conditions[0].status == "True", status.endpoint.is_some());
            prop_assert_eq!(status.conditions[0].observed_generation, Some(4));
            prop_assert!(!status.conditions[0].message.is_empty());
            let told = serde_json::to_value(&status).unwrap();
            let fields: Vec<&String> = told.as_object().unwrap().keys().collect();
            prop_assert!(fields.iter().all(|field| ["endpoint", "conditions"].contains(&field.as_str())), "{:?}", fields);
        }
    }
}
