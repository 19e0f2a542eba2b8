//! A row per transition, and what holds for every plan.

use std::sync::Arc;

use capt_api::reasons::is_trouble;
use capt_runtime::error::ObjectRef;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::copies::PerCopy;
use crate::invalid::{Danger, Invalid, Problem};
use crate::observe::Endpoint;

mod walk;

/// The time of every plan here, unless it says otherwise.
const NOW: i64 = 1_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// So long ago.
fn ago(seconds: i64) -> Timestamp {
    at(NOW - seconds)
}

/// capt-endpoint has said its first word.
fn control_plane() -> CaptControlPlane {
    serde_json::from_value(json!({
        "apiVersion": "controlplane.cluster.x-k8s.io/v1beta1", "kind": "CAPTControlPlane",
        "metadata": {
            "name": "demo-cp", "namespace": "ns", "uid": "cp", "resourceVersion": "1", "generation": 4,
            "creationTimestamp": ago(60).to_string(),
        },
        "spec": {"version": "1.31", "workspaceTemplateRef": {"name": "t"}, "controlPlaneConfig": {"region": "eu-west-1"}},
        "status": {"conditions": [{
            "type": "EndpointReady", "status": "False", "reason": "WaitingForWorkspace", "message": "",
            "lastTransitionTime": ago(60).to_string(), "observedGeneration": 3,
        }]},
    }))
    .unwrap()
}

/// Nobody has said anything yet.
fn unspoken(seen: &mut Observed) {
    Arc::make_mut(&mut seen.control_plane).status = None;
}

/// The control plane once this was written, beside what others wrote.
fn carry_over(control_plane: &mut CaptControlPlane, says: &State<SecretsReady>, now: Timestamp) {
    let mut written = status(control_plane, says, now);
    let status = control_plane.status.get_or_insert_default();
    status.secrets_ready = written.secrets_ready;
    status.conditions.retain(|other| other.type_ != SecretsReady::TYPE);
    status.conditions.append(&mut written.conditions);
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

/// Ready for so many seconds.
fn ready_for(seconds: i64) -> Apply {
    Apply::Present {
        ready: true,
        since: Some(ago(seconds)),
        revision: Some("r1".into()),
    }
}

fn ready() -> Apply {
    ready_for(60)
}

fn updating() -> Apply {
    Apply::Present {
        ready: false,
        since: Some(ago(60)),
        revision: Some("r1".into()),
    }
}

fn published_for(seconds: i64) -> Endpoint {
    Endpoint {
        ready: true,
        since: Some(ago(seconds)),
    }
}

const UNPUBLISHED: Endpoint = Endpoint {
    ready: false,
    since: None,
};

fn leaving_for(seconds: i64) -> CopyState {
    CopyState::Leaving(ago(seconds))
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
        endpoint: published_for(60),
        source: valid(),
        copies: PerCopy::build(|_| AS_WISHED),
        expires: None,
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

fn plan_of(living: Living) -> Plan {
    plan(&observed(Situation::Living(living.into())), at(NOW))
}

fn words(plan: &Plan) -> (&str, &str, &str) {
    let says = plan.says.as_ref().expect("something is said");
    (says.status.as_str(), says.reason.as_str(), says.message.as_str())
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
    let write = |deeds: &[(Which, Deed)]| {
        Step::Write(Writes {
            finalizer: false,
            copies: deeds.to_vec(),
        })
    };
    let finalizer_and = |deeds: &[(Which, Deed)]| {
        Step::Write(Writes {
            finalizer: true,
            copies: deeds.to_vec(),
        })
    };
    for (what, living, step, status, reason, part) in [
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
            "waiting until WorkspaceTemplateApply demo-cp-eks-controlplane-apply is ready and the endpoint is published",
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
            "waiting until WorkspaceTemplateApply demo-cp-eks-controlplane-apply is ready and the endpoint is published",
        ),
        (
            "no endpoint, for a while",
            without_copies(|l| {
                l.finalizer = false;
                l.endpoint = UNPUBLISHED;
                l.source = Source::NotYet
            }),
            Step::Nothing,
            "False",
            "WaitingForSecret",
            "is ready; waiting until the endpoint is published, see condition EndpointReady",
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
            "a valid source: the finalizer, then the copies",
            without_copies(|l| l.finalizer = false),
            finalizer_and(&CREATE_ALL),
            "True",
            "Ready",
            "Secret demo-eks-connection, revision r1 are in demo-kubeconfig and demo-ca",
        ),
        (
            "the finalizer is there",
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
            finalizer_and(&[]),
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
            finalizer_and(&[]),
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
            "a copy is being deleted, for a while",
            with(|l| l.copies.kubeconfig = leaving_for(60)),
            Step::Nothing,
            "False",
            "ValidatingSecret",
            "demo-kubeconfig is being deleted",
        ),
    ] {
        let plan = plan_of(living);
        assert_eq!(plan.step, step, "{what}");
        let (said_status, said_reason, message) = words(&plan);
        assert_eq!((said_status, said_reason), (status, reason), "{what}: {message}");
        assert!(message.contains(part), "{what}: {message}");
        let written = super::status(&control_plane(), plan.says.as_ref().unwrap(), at(NOW));
        assert_eq!(written.secrets_ready, Some(status == "True"), "{what}");
    }
}

/// What passes within moments is not told while it is young, and when it is told the plan wakes for it. The work goes on.
#[test]
fn what_passes_within_moments_is_told_when_it_lasts() {
    type Row = (&'static str, fn(i64) -> Living, &'static str);
    let rows: [Row; 4] = [
        (
            "ready, and no endpoint yet",
            |age| {
                without_copies(|l| {
                    l.apply = ready_for(age);
                    l.endpoint = UNPUBLISHED;
                    l.source = Source::NotYet
                })
            },
            "WaitingForSecret",
        ),
        (
            "a published endpoint, and no source yet",
            |age| {
                without_copies(|l| {
                    l.endpoint = published_for(age);
                    l.source = Source::Absent("s".into())
                })
            },
            "WaitingForSecret",
        ),
        (
            "an apply that is ready again, and no source yet",
            |age| {
                without_copies(|l| {
                    l.apply = ready_for(age);
                    l.source = Source::Absent("s".into())
                })
            },
            "WaitingForSecret",
        ),
        (
            "a copy on its way out, and another to be made",
            |age| {
                with(|l| {
                    l.copies.kubeconfig = leaving_for(age);
                    l.copies.ca = CopyState::Absent
                })
            },
            "ValidatingSecret",
        ),
    ];
    for (what, living, reason) in rows {
        let (young, old) = (plan_of(living(4)), plan_of(living(5)));
        assert_eq!((&young.says, young.wake), (&None, Wake::At(ago(-1))), "{what}");
        assert_eq!((words(&old).0, words(&old).1), ("False", reason), "{what}");
        assert_eq!((young.step, Wake::OnEvent), (old.step, old.wake), "{what}");
    }
}

/// The ordinary wait is told once: not before capt-endpoint has spoken, with one text for all its stages, and not again
/// for a new generation.
#[test]
fn the_ordinary_wait_is_told_once_and_in_turn() {
    let waiting = |apply: Apply| {
        let living = without_copies(|l| {
            l.finalizer = false;
            l.apply = apply;
            l.source = Source::NotYet
        });
        observed(Situation::Living(living.into()))
    };
    let mut early = waiting(Apply::Absent);
    unspoken(&mut early);
    assert_eq!(
        plan(&early, at(NOW)),
        Plan::NOTHING,
        "the other's first word is the event"
    );

    let mut told = waiting(Apply::Absent);
    let first = plan(&told, at(NOW)).says.unwrap();
    carry_over(Arc::make_mut(&mut told.control_plane), &first, at(NOW));
    for apply in [updating(), Apply::Absent] {
        let mut later = waiting(apply);
        let mut control_plane = (*told.control_plane).clone();
        control_plane.metadata.generation = Some(9);
        later.control_plane = control_plane.into();
        let again = plan(&later, at(NOW + 100)).says.unwrap();
        assert_eq!(again, first);
        let written = status(&later.control_plane, &again, at(NOW + 100));
        assert_eq!(
            written.conditions.first(),
            said(&told.control_plane),
            "not even the generation"
        );
    }
    // What is no wait follows the generation.
    for living in [
        settled(),
        with(|l| l.source = invalid()),
        without_copies(|l| l.source = invalid()),
    ] {
        let says = plan_of(living).says.unwrap();
        let mut control_plane = control_plane();
        carry_over(&mut control_plane, &says, at(NOW));
        control_plane.metadata.generation = Some(9);
        let written = status(&control_plane, &says, at(NOW + 100));
        assert_eq!(written.conditions[0].observed_generation, Some(9));
    }
}

/// A certificate that expires needs no event to be noticed.
#[test]
fn an_expiry_wakes_the_plan() {
    let mut living = settled();
    living.expires = Some(at(NOW + 1));
    assert_eq!(plan_of(living).wake, Wake::At(at(NOW + 1)));
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
        assert_eq!(plan(&observed(situation), at(NOW)), Plan::NOTHING);
    }
}

/// Cluster API sets the owner within moments: that it is not there yet is told when it lasts.
#[test]
fn without_a_cluster_nothing_is_done_and_the_last_word_stays() {
    let mut seen = observed(Situation::WithoutCluster);
    let created = |seen: &mut Observed, age: i64| {
        let time = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(ago(age));
        Arc::make_mut(&mut seen.control_plane).metadata.creation_timestamp = Some(time);
    };
    created(&mut seen, 4);
    let young = plan(&seen, at(NOW));
    assert_eq!(
        (young.step, young.says, young.wake),
        (Step::Nothing, None, Wake::At(ago(-1)))
    );
    created(&mut seen, 5);
    let old = plan(&seen, at(NOW));
    assert_eq!((&old.step, words(&old).1), (&Step::Nothing, "WaitingForSecret"));

    let ready = plan_of(settled()).says.unwrap();
    carry_over(Arc::make_mut(&mut seen.control_plane), &ready, at(NOW));
    assert_eq!(plan(&seen, at(NOW + 1)), Plan::NOTHING);
}

#[test]
fn removal_is_silent_unless_somebody_holds_a_copy() {
    let leftover = |name: &str, leaving: Option<i64>| Leftover {
        name: name.into(),
        leaving: leaving.map(ago),
    };
    let removal = |leftovers| {
        let finalizer = true;
        plan(&observed(Situation::Deleting { finalizer, leftovers }), at(NOW))
    };
    for leftovers in [
        vec![leftover("a", None), leftover("b", Some(60))],
        vec![leftover("a", None)],
        vec![],
    ] {
        assert_eq!(removal(leftovers.clone()), Plan::doing(Step::Remove), "{leftovers:?}");
    }
    let young = removal(vec![leftover("a", Some(60)), leftover("b", Some(4))]);
    assert_eq!(
        (young.step, young.says, young.wake),
        (Step::Nothing, None, Wake::At(ago(-1)))
    );
    let old = removal(vec![leftover("a", Some(60)), leftover("b", Some(5))]);
    assert_eq!(old.step, Step::Nothing);
    let message = "waiting until Secrets a, b are gone: their own finalizers hold them";
    assert_eq!(words(&old), ("False", "Deleting", message));
}

#[test]
fn copies_that_are_removed_are_told_when_the_deletion_lasts() {
    let gone = |said: Option<State<SecretsReady>>, seconds: i64| {
        let mut seen = observed(Situation::Deleting {
            finalizer: false,
            leftovers: Vec::new(),
        });
        let control_plane = Arc::make_mut(&mut seen.control_plane);
        let begun = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(ago(seconds));
        control_plane.metadata.deletion_timestamp = Some(begun);
        if let Some(said) = said {
            carry_over(control_plane, &said, ago(seconds));
        }
        seen
    };
    let ready = plan_of(settled()).says;
    let young = plan(&gone(ready.clone(), 59), at(NOW));
    assert_eq!((young.says, young.wake), (None, Wake::At(ago(-1))));
    let old = plan(&gone(ready, 60), at(NOW));
    let message = "the control plane is being deleted, and the copies of its kubeconfig and CA are removed";
    assert_eq!(
        (&old.step, words(&old)),
        (&Step::Nothing, ("False", "Deleting", message))
    );

    // Somebody held one of them before.
    let held = plan(&gone(Some(State::no(SecretsReady::Deleting, "waiting")), 60), at(NOW));
    assert_eq!(words(&held), ("False", "Deleting", message));
    for never in [None, Some(State::no(SecretsReady::WaitingForSecret, "waiting"))] {
        assert_eq!(
            plan(&gone(never, 60), at(NOW)),
            Plan::NOTHING,
            "there was nothing to remove"
        );
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
        let says = refused(good, &failure);
        assert_eq!((says.status == Status::True, says.reason.as_str()), (good, reason));
    }
}

fn copy() -> impl Strategy<Value = CopyState> {
    prop_oneof![
        Just(CopyState::Absent),
        Just(foreign()),
        Just(leaving_for(4)),
        Just(leaving_for(60)),
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
        endpoint in prop_oneof![Just(UNPUBLISHED), Just(published_for(4)), Just(published_for(60))],
        apply in prop_oneof![
            Just(Apply::Absent), Just(Apply::Foreign), Just(Apply::Unreadable), Just(ready()), Just(ready_for(4)), Just(updating()),
        ],
        source in prop_oneof![
            Just(Source::NotYet), Just(Source::Unnamed), Just(Source::Elsewhere), Just(Source::Absent("s".into())),
            Just(Source::Empty("s".into())), Just(invalid()), Just(valid()),
        ],
        kubeconfig in copy(), ca in copy(), alias in copy(),
        rival in any::<bool>(),
    ) -> Living {
        let copies = PerCopy { kubeconfig, ca, alias };
        // Where copies are, the source is looked at.
        let looks = copies.iter().any(|(_, copy)| copy.is_ours());
        let source = if looks && source == Source::NotYet { Source::Unnamed } else { source };
        Living {
            finalizer, endpoint, apply, source, copies,
            rival: rival.then(|| "demo-control-plane".to_owned()),
            ..settled()
        }
    }
}

proptest! {
    /// A report that was written is not written again, whatever the time.
    #[test]
    fn planning_again_changes_nothing(living in living(), later in NOW + 60..1_000_000) {
        let mut seen = observed(Situation::Living(living.into()));
        let first = plan(&seen, at(NOW + 60));
        let says = first.says.clone().expect("nothing is young any more");
        carry_over(Arc::make_mut(&mut seen.control_plane), &says, at(NOW + 60));
        let again = plan(&seen, at(later));
        prop_assert_eq!(&again, &first);
        let written = status(&seen.control_plane, &says, at(later));
        prop_assert_eq!(written.conditions.first(), said(&seen.control_plane));
        prop_assert_eq!(written.conditions.len(), 1, "exactly what this controller owns");
    }

    /// Silence hides neither a failure nor an end, and does not last: what would be said is a wait, and either somebody
    /// else's first word or the time of waking brings it out. The work goes on meanwhile.
    #[test]
    fn a_silent_plan_hides_nothing_that_matters(living in living(), spoken in any::<bool>()) {
        let mut seen = observed(Situation::Living(living.into()));
        if !spoken {
            unspoken(&mut seen);
        }
        let silent = plan(&seen, at(NOW));
        if silent.says.is_none() {
            prop_assert!(!spoken || silent.wake != Wake::OnEvent);
            let later = match silent.wake {
                Wake::At(at) => at,
                Wake::OnEvent => at(NOW),
            };
            prop_assert!(later >= at(NOW));
            seen.control_plane = control_plane().into();
            let told = plan(&seen, later);
            let says = told.says.expect("it is told then");
            prop_assert!(says.status == Status::False && !is_trouble(says.reason.as_str()), "{:?}", says);
            prop_assert_eq!(silent.step, told.step);
        }
    }

    /// Good copies are never touched without a valid source, except for their labels and an alias in another's way; and
    /// they keep the condition True.
    #[test]
    fn good_copies_outlive_every_trouble_of_the_source(living in living()) {
        let good = is_good(&living);
        let has_material = living.source == valid();
        let plan = plan_of(living);
        if let Step::Write(writes) = &plan.step
            && !has_material
        {
            prop_assert!(writes.copies.iter().all(|(which, deed)| *deed == Deed::Repair || (*deed == Deed::Delete && *which == Which::Alias)));
        }
        if good {
            prop_assert!(plan.says.is_none_or(|says| says.status == Status::True));
        }
    }

    /// Nothing of somebody else's is ever written, and no copy is made without the finalizer.
    #[test]
    fn strangers_are_left_alone_and_the_finalizer_comes_first(living in living()) {
        let (finalizer, copies) = (living.finalizer, living.copies.clone());
        if let Step::Write(writes) = plan_of(living).step {
            prop_assert!(finalizer || writes.finalizer);
            for (which, _) in writes.copies {
                prop_assert!(!matches!(copies.of(which), CopyState::Foreign(_) | CopyState::Leaving(_)));
            }
        }
    }
}
