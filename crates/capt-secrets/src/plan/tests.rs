use capt_runtime::error::ObjectRef;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::copies::PerCopy;
use crate::invalid::{Danger, Invalid, Problem};
use crate::observe::Leftover;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn control_plane() -> CaptControlPlane {
    serde_json::from_value(json!({
        "apiVersion": "controlplane.cluster.x-k8s.io/v1beta1", "kind": "CAPTControlPlane",
        "metadata": {"name": "demo-cp", "namespace": "ns", "uid": "cp", "resourceVersion": "1", "generation": 4},
        "spec": {"version": "1.31", "workspaceTemplateRef": {"name": "t"}, "controlPlaneConfig": {"region": "eu-west-1"}},
    }))
    .unwrap()
}

fn observed(situation: Situation) -> Observed {
    Observed {
        control_plane: control_plane().into(),
        situation,
    }
}

const AS_WISHED: CopyState = CopyState::Ours {
    good: true,
    drift: Drift::None,
};
const BROKEN: CopyState = CopyState::Ours {
    good: false,
    drift: Drift::None,
};
const TAMPERED: CopyState = CopyState::Ours {
    good: false,
    drift: Drift::Repair,
};
const STALE: CopyState = CopyState::Ours {
    good: true,
    drift: Drift::Repair,
};
const WRONG_TYPE: CopyState = CopyState::Ours {
    good: true,
    drift: Drift::Remake,
};

fn foreign() -> CopyState {
    CopyState::Foreign("Secret ns/x exists and is not ours".into())
}

fn ready() -> Apply {
    Apply::Present {
        ready: true,
        revision: Some("r1".into()),
    }
}

fn updating() -> Apply {
    Apply::Present {
        ready: false,
        revision: Some("r1".into()),
    }
}

fn valid() -> Source {
    Source::Valid("demo-eks-connection".into())
}

fn invalid() -> Source {
    Source::Invalid(
        "demo-eks-connection".into(),
        Invalid::new("kubeconfig", Problem::Missing),
    )
}

/// Everything is in place: the rows of the table change one thing each.
fn settled() -> Living {
    Living {
        cluster: "demo".into(),
        finalizer: true,
        apply_name: "demo-cp-eks-controlplane-apply".into(),
        apply: ready(),
        endpoint_ready: true,
        source: valid(),
        copies: PerCopy::build(|_| AS_WISHED),
        rival: None,
    }
}

fn with(change: impl FnOnce(&mut Living)) -> Living {
    let mut living = settled();
    change(&mut living);
    living
}

fn without_copies(change: impl FnOnce(&mut Living)) -> Living {
    with(|living| {
        living.copies = PerCopy::build(|_| CopyState::Absent);
        change(living);
    })
}

fn condition(plan: &Plan) -> Condition {
    let status = plan.status.as_ref().expect("a report");
    assert_eq!(status.conditions.len(), 1, "exactly what this controller owns");
    status.conditions[0].clone()
}

const CREATE_ALL: [(Which, Deed); 3] = [
    (Which::Kubeconfig, Deed::Create),
    (Which::Ca, Deed::Create),
    (Which::Alias, Deed::Create),
];

/// One row per transition.
#[test]
fn transitions() {
    use Which::{Alias, Ca, Kubeconfig};
    let write = |deeds: &[(Which, Deed)]| Step::Write(deeds.to_vec());
    for (what, living, step, status, reason, words) in [
        (
            "no apply",
            without_copies(|l| {
                l.finalizer = false;
                l.apply = Apply::Absent;
                l.source = Source::NotYet
            }),
            Step::Nothing,
            "False",
            "WaitingForSecret",
            "waiting for WorkspaceTemplateApply demo-cp-eks-controlplane-apply",
        ),
        (
            "an apply of somebody else",
            without_copies(|l| {
                l.finalizer = false;
                l.apply = Apply::Foreign;
                l.source = Source::NotYet
            }),
            Step::Nothing,
            "False",
            "WaitingForSecret",
            "belongs to something else",
        ),
        (
            "an apply that cannot be read",
            without_copies(|l| {
                l.finalizer = false;
                l.apply = Apply::Unreadable;
                l.source = Source::NotYet
            }),
            Step::Nothing,
            "False",
            "WaitingForSecret",
            "cannot be read",
        ),
        (
            "Terraform at work",
            without_copies(|l| {
                l.finalizer = false;
                l.apply = updating();
                l.source = Source::NotYet
            }),
            Step::Nothing,
            "False",
            "WaitingForSecret",
            "is ready",
        ),
        (
            "no endpoint",
            without_copies(|l| {
                l.finalizer = false;
                l.endpoint_ready = false;
                l.source = Source::NotYet
            }),
            Step::Nothing,
            "False",
            "WaitingForSecret",
            "endpoint",
        ),
        (
            "no name",
            without_copies(|l| {
                l.finalizer = false;
                l.source = Source::Unnamed
            }),
            Step::Nothing,
            "False",
            "WaitingForSecret",
            "spec.writeConnectionSecretToRef",
        ),
        (
            "another namespace",
            without_copies(|l| {
                l.finalizer = false;
                l.source = Source::Elsewhere
            }),
            Step::Nothing,
            "False",
            "Failed",
            "another namespace",
        ),
        (
            "no source",
            without_copies(|l| {
                l.finalizer = false;
                l.source = Source::Absent("s".into())
            }),
            Step::Nothing,
            "False",
            "WaitingForSecret",
            "waiting for Secret s",
        ),
        (
            "an empty source",
            without_copies(|l| {
                l.finalizer = false;
                l.source = Source::Empty("s".into())
            }),
            Step::Nothing,
            "False",
            "Failed",
            "Secret s is empty",
        ),
        (
            "an invalid source",
            without_copies(|l| {
                l.finalizer = false;
                l.source = invalid()
            }),
            Step::Nothing,
            "False",
            "Failed",
            "Secret demo-eks-connection: kubeconfig is missing",
        ),
        (
            "an unsafe source",
            without_copies(|l| {
                l.finalizer = false;
                l.source = Source::Invalid("s".into(), Invalid::new("exec", Problem::Unsafe(Danger::RunsProgram)))
            }),
            Step::Nothing,
            "False",
            "UnsafeKubeconfig",
            "exec is refused",
        ),
        (
            "a valid source: first the finalizer",
            without_copies(|l| l.finalizer = false),
            Step::AddFinalizer,
            "False",
            "ValidatingSecret",
            "about to be made",
        ),
        (
            "then the copies",
            without_copies(|_| {}),
            write(&CREATE_ALL),
            "True",
            "Ready",
            "Secret demo-eks-connection, revision r1 are in demo-kubeconfig and demo-ca",
        ),
        ("settled", settled(), Step::Nothing, "True", "Ready", "revision r1"),
        (
            "the finalizer was removed",
            with(|l| l.finalizer = false),
            Step::AddFinalizer,
            "True",
            "Ready",
            "",
        ),
        (
            "copies of an earlier version, and no source yet",
            with(|l| {
                l.finalizer = false;
                l.source = invalid()
            }),
            Step::AddFinalizer,
            "True",
            "Failed",
            "the last good copies stay",
        ),
        (
            "a copy was deleted",
            with(|l| l.copies.kubeconfig = CopyState::Absent),
            write(&[(Kubeconfig, Deed::Create)]),
            "True",
            "Ready",
            "",
        ),
        (
            "a copy was tampered with",
            with(|l| l.copies.ca = TAMPERED),
            write(&[(Ca, Deed::Repair)]),
            "True",
            "Ready",
            "",
        ),
        (
            "a copy has another type",
            with(|l| l.copies.kubeconfig = WRONG_TYPE),
            write(&[(Kubeconfig, Deed::Remake)]),
            "True",
            "Ready",
            "",
        ),
        (
            "the source was rotated",
            with(|l| l.copies = PerCopy::build(|_| STALE)),
            write(&[(Kubeconfig, Deed::Repair), (Ca, Deed::Repair), (Alias, Deed::Repair)]),
            "True",
            "Ready",
            "",
        ),
        (
            "rotated to something invalid",
            with(|l| l.source = invalid()),
            Step::Nothing,
            "True",
            "Failed",
            "the last good copies stay",
        ),
        (
            "invalid, and a copy is gone",
            with(|l| {
                l.source = invalid();
                l.copies.ca = CopyState::Absent
            }),
            Step::Nothing,
            "False",
            "Failed",
            "kubeconfig is missing",
        ),
        (
            "invalid, and a copy is broken",
            with(|l| {
                l.source = invalid();
                l.copies.ca = BROKEN
            }),
            Step::Nothing,
            "False",
            "Failed",
            "",
        ),
        (
            "the source vanished",
            with(|l| l.source = Source::Absent("s".into())),
            Step::Nothing,
            "True",
            "SourceMissing",
            "Secret s does not exist any more",
        ),
        (
            "the source vanished and a label was taken away",
            with(|l| {
                l.source = Source::Absent("s".into());
                l.copies.ca = STALE
            }),
            write(&[(Ca, Deed::Repair)]),
            "True",
            "SourceMissing",
            "",
        ),
        (
            "the source vanished and a copy too",
            with(|l| {
                l.source = Source::Absent("s".into());
                l.copies.ca = CopyState::Absent
            }),
            Step::Nothing,
            "False",
            "WaitingForSecret",
            "waiting for Secret s",
        ),
        (
            "the apply vanished",
            with(|l| {
                l.apply = Apply::Absent;
                l.source = Source::Unnamed
            }),
            Step::Nothing,
            "True",
            "SourceMissing",
            "the copies stay",
        ),
        (
            "an upgrade, with the source as before",
            with(|l| l.apply = updating()),
            Step::Nothing,
            "True",
            "Ready",
            "",
        ),
        (
            "an upgrade into a new, still empty Secret",
            with(|l| {
                l.apply = updating();
                l.source = Source::Empty("s".into())
            }),
            Step::Nothing,
            "True",
            "WaitingForSecret",
            "to fill Secret s",
        ),
        (
            "a kubeconfig of somebody else",
            with(|l| l.copies.kubeconfig = foreign()),
            Step::Nothing,
            "False",
            "OwnershipConflict",
            "not ours",
        ),
        (
            "a CA of somebody else",
            without_copies(|l| l.copies.ca = foreign()),
            write(&[(Kubeconfig, Deed::Create), (Alias, Deed::Create)]),
            "False",
            "OwnershipConflict",
            "not ours",
        ),
        (
            "an alias of somebody else never gates",
            with(|l| l.copies.alias = foreign()),
            Step::Nothing,
            "True",
            "Ready",
            "the alias is not made",
        ),
        (
            "nor a broken one",
            with(|l| l.copies.alias = TAMPERED),
            write(&[(Alias, Deed::Repair)]),
            "True",
            "Ready",
            "",
        ),
        (
            "a Cluster that the alias would belong to: none is made",
            without_copies(|l| l.rival = Some("demo-control-plane".into())),
            write(&CREATE_ALL[..2]),
            "True",
            "Ready",
            "left to Cluster demo-control-plane",
        ),
        (
            "and an existing one goes",
            with(|l| l.rival = Some("demo-control-plane".into())),
            write(&[(Alias, Deed::Delete)]),
            "True",
            "Ready",
            "left to Cluster",
        ),
        (
            "also a tampered one",
            with(|l| {
                l.rival = Some("demo-control-plane".into());
                l.copies.alias = TAMPERED
            }),
            write(&[(Alias, Deed::Delete)]),
            "True",
            "Ready",
            "left to Cluster",
        ),
        (
            "but never somebody else's",
            with(|l| {
                l.rival = Some("demo-control-plane".into());
                l.copies.alias = foreign()
            }),
            Step::Nothing,
            "True",
            "Ready",
            "left to Cluster",
        ),
        (
            "a copy is being deleted",
            with(|l| l.copies.kubeconfig = CopyState::Leaving),
            Step::Nothing,
            "False",
            "ValidatingSecret",
            "demo-kubeconfig is being deleted",
        ),
    ] {
        let plan = plan(&observed(Situation::Living(living.into())), at(1));
        let condition = condition(&plan);
        assert_eq!(plan.step, step, "{what}");
        assert_eq!(
            (condition.status.as_str(), condition.reason.as_str()),
            (status, reason),
            "{what}: {}",
            condition.message
        );
        assert!(condition.message.contains(words), "{what}: {}", condition.message);
        assert_eq!(plan.status.unwrap().secrets_ready, Some(status == "True"), "{what}");
    }
}

#[test]
fn what_is_left_alone_is_not_written_to() {
    for situation in [
        Situation::LeftAlone,
        Situation::Deleting {
            finalizer: false,
            leftovers: Vec::new(),
        },
    ] {
        assert_eq!(
            plan(&observed(situation), at(1)),
            Plan {
                step: Step::Nothing,
                status: None
            }
        );
    }
}

#[test]
fn without_a_cluster_nothing_is_done_and_the_last_word_stays() {
    let mut seen = observed(Situation::WithoutCluster);
    let first = plan(&seen, at(1));
    assert_eq!(
        (first.step.clone(), condition(&first).reason.as_str()),
        (Step::Nothing, "WaitingForSecret")
    );

    let mut control_plane = control_plane();
    control_plane.status = plan(&observed(Situation::Living(settled().into())), at(1)).status;
    seen.control_plane = control_plane.into();
    assert_eq!(
        plan(&seen, at(2)),
        Plan {
            step: Step::Nothing,
            status: None
        }
    );
}

#[test]
fn removal_goes_from_the_copies_to_the_finalizer() {
    let leftover = |name: &str, leaving| Leftover {
        name: name.into(),
        leaving,
    };
    for (leftovers, step, words) in [
        (
            vec![leftover("a", false), leftover("b", true)],
            Step::DeleteCopies,
            "Secret b",
        ),
        (vec![leftover("a", false)], Step::DeleteCopies, "are removed"),
        (
            vec![leftover("a", true), leftover("b", true)],
            Step::Nothing,
            "Secrets a, b",
        ),
        (vec![], Step::RemoveFinalizer, "are removed"),
    ] {
        let plan = plan(
            &observed(Situation::Deleting {
                finalizer: true,
                leftovers,
            }),
            at(1),
        );
        let condition = condition(&plan);
        assert_eq!(
            (plan.step, condition.reason.as_str(), condition.status.as_str()),
            (step, "SecretsRemoved", "False")
        );
        assert!(condition.message.contains(words), "{}", condition.message);
    }
}

#[test]
fn a_refusal_keeps_what_is_known_about_the_copies() {
    let object = ObjectRef::new("Secret", Some("ns"), "demo-ca");
    let conflict = Failure::OwnershipConflict {
        object: object.clone(),
        owner: "it has no controller".into(),
    };
    let terminating = Failure::NamespaceTerminating { object: object.clone() };
    let broken = Failure::Misuse {
        object,
        what: "x".into(),
    };
    for (failure, good, reason) in [
        (conflict, false, "OwnershipConflict"),
        (terminating, false, "NamespaceTerminating"),
        (broken, true, "Failed"),
    ] {
        let status = refused(&control_plane(), good, &failure, at(1));
        assert_eq!(
            (status.secrets_ready, status.conditions[0].reason.as_str()),
            (Some(good), reason)
        );
    }
}

fn copy() -> impl Strategy<Value = CopyState> {
    prop_oneof![
        Just(CopyState::Absent),
        Just(foreign()),
        Just(CopyState::Leaving),
        (
            any::<bool>(),
            prop_oneof![Just(Drift::None), Just(Drift::Repair), Just(Drift::Remake)]
        )
            .prop_map(|(good, drift)| CopyState::Ours { good, drift }),
    ]
}

prop_compose! {
    fn living()(
        finalizer in any::<bool>(),
        endpoint_ready in any::<bool>(),
        apply in prop_oneof![Just(Apply::Absent), Just(Apply::Foreign), Just(ready()), Just(updating())],
        source in prop_oneof![
            Just(Source::NotYet), Just(Source::Unnamed), Just(Source::Elsewhere), Just(Source::Absent("s".into())),
            Just(Source::Empty("s".into())), Just(invalid()), Just(valid()),
        ],
        kubeconfig in copy(), ca in copy(), alias in copy(),
        rival in any::<bool>(),
    ) -> Living {
        Living {
            finalizer, endpoint_ready, apply, source,
            copies: PerCopy { kubeconfig, ca, alias },
            rival: rival.then(|| "demo-control-plane".to_owned()),
            ..settled()
        }
    }
}

proptest! {
    /// A report that was written is not written again, whatever the time.
    #[test]
    fn planning_again_changes_nothing(living in living(), later in 2i64..1_000_000) {
        let mut seen = observed(Situation::Living(living.into()));
        let first = plan(&seen, at(1));
        let mut reported = control_plane();
        reported.status = first.status.clone();
        seen.control_plane = reported.into();
        prop_assert_eq!(plan(&seen, at(later)), first);
    }

    /// Good copies are never touched without a valid source, except for their labels and an alias in another's way; and
    /// they keep the condition True.
    #[test]
    fn good_copies_outlive_every_trouble_of_the_source(living in living()) {
        let good = is_good(&living);
        let has_material = living.source == valid();
        let plan = plan(&observed(Situation::Living(living.into())), at(1));
        if let Step::Write(deeds) = &plan.step
            && !has_material
        {
            prop_assert!(deeds.iter().all(|(which, deed)| *deed == Deed::Repair || (*deed == Deed::Delete && *which == Which::Alias)));
        }
        if good {
            prop_assert_eq!(plan.status.clone().unwrap().secrets_ready, Some(true));
        }
        let status = plan.status.clone().unwrap();
        prop_assert_eq!(status.secrets_ready, Some(condition(&plan).status == "True"));
    }

    /// Nothing of somebody else's is ever written, and no copy is made before the finalizer is there.
    #[test]
    fn strangers_are_left_alone_and_the_finalizer_comes_first(living in living()) {
        let (finalizer, copies) = (living.finalizer, living.copies.clone());
        let plan = plan(&observed(Situation::Living(living.into())), at(1));
        if let Step::Write(deeds) = plan.step {
            prop_assert!(finalizer);
            for (which, _) in deeds {
                prop_assert!(!matches!(copies.of(which), CopyState::Foreign(_) | CopyState::Leaving));
            }
        }
    }
}
