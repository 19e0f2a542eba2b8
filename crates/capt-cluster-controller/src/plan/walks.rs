//! Random lives: one thing after another happens to a CAPTCluster and to what it sees, in any order, and after each there is
//! a pass. Whatever happens, the reports stay within the table of `states`, whole and free of contradiction.

use std::collections::BTreeSet;
use std::sync::Arc;

use capt_api::conditions::{Report, cluster::ClusterReport, find};
use capt_api::machine::Place;
use capt_runtime::error::{Failure, ObjectRef};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::scene::*;
use super::*;
use crate::judge::Trouble;
use crate::observe::FromSecret;
use crate::states::VPC;

/// A die that falls the same way in every run, so that a failure can be looked at again.
struct Die(u64);

impl Die {
    fn roll(&mut self, sides: usize) -> usize {
        // A linear congruential generator; its low bits are poor.
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.roll(from.len())]
    }
}

/// What an apply can say of its current spec.
const WORDS: &[&str] = &[
    "WaitingForProvider",
    "Applying",
    "WorkspacePaused",
    "TerraformFailed",
    "CreateInterrupted",
    "StateLocked",
    "ProviderConfigMissing",
    "CredentialsMissing",
    "QuotaExceeded",
    "TerraformTimeout",
    "InvalidModule",
    "InvalidTemplate",
    "UnsafeVariable",
    "UnresolvedVariable",
    "CrossNamespaceReference",
    "AdmissionDenied",
    "OwnershipConflict",
    "NamespaceTerminating",
];

fn trouble(die: &mut Die) -> Trouble {
    let object = ObjectRef::new("WorkspaceTemplateApply", Some("ns"), "net-vpc");
    let failure = match die.roll(3) {
        0 => Failure::OwnershipConflict {
            object,
            owner: "theirs".into(),
        },
        1 => Failure::Invalid {
            object,
            field: "spec".into(),
            message: "no".into(),
        },
        _ => Failure::NamespaceTerminating { object },
    };
    Trouble::of(&failure).expect("nothing that passes by itself")
}

/// The next thing that happens.
fn happen(scene: Scene, die: &mut Die, now: Timestamp) -> Scene {
    let seconds = now.as_second() - at(0).as_second();
    let mut scene = scene.with(|seen| seen.trouble = None);
    match die.roll(20) {
        0 => scene.with(|seen| seen.owner = Owner::Unnamed),
        1 => scene.with(|seen| seen.owner = Owner::Unseen("demo".into())),
        2 => scene.cluster(json!({"spec": {"paused": true}})),
        3 | 4 => scene.cluster(json!({})),
        5 => scene.capt_cluster(json!({"spec": {"vpcTemplateRef": null, "existingVpcId": "vpc-9"}})),
        6 => scene.capt_cluster(json!({"spec": {"vpcTemplateRef": {"name": "vpc"}, "existingVpcId": "vpc-9"}})),
        7 | 8 => scene.capt_cluster(json!({"spec": {"vpcTemplateRef": {"name": "vpc"}, "existingVpcId": null}})),
        9 => scene.with(|seen| seen.apply = Apply::Absent),
        10 => scene.with(|seen| {
            seen.apply = Apply::Foreign {
                deleting: die.roll(2) == 0,
            }
        }),
        11 => scene.with(|seen| seen.apply = Apply::Unreadable("odd".into())),
        12 => scene.apply(json!({"metadata": {"creationTimestamp": at(seconds).to_string()}})),
        13 => scene.apply(json!({"metadata": {"deletionTimestamp": at(seconds).to_string()}})),
        14 => {
            let waiting = condition(
                "Waiting",
                "True",
                die.pick(&["WaitingForTemplate", "WaitingForInputs"]),
                "m",
            );
            let ready = condition("Ready", "False", "NotApplied", "m");
            scene.apply(json!({"status": {"observedGeneration": 1, "conditions": [ready, waiting]}}))
        }
        15 => {
            scene.0.secret = FromSecret::Read((die.roll(2) == 0).then(|| "vpc-2".to_owned()));
            scene.apply(says("True", "Available", "", json!({})))
        }
        16 => scene.apply(says("True", "Available", "", json!({"vpc_id": "vpc-1"}))),
        17 => {
            let trouble = trouble(die);
            scene.with(|seen| seen.trouble = Some(trouble))
        }
        _ => scene.apply(says("False", die.pick(WORDS), "m", json!({}))),
    }
}

/// The end comes too, and says what it waits for.
fn begin_to_die(scene: Scene, now: Timestamp) -> Scene {
    scene.with(|seen| {
        let mut object = (*seen.capt_cluster).clone();
        object.metadata.deletion_timestamp = Some(Time(now));
        seen.capt_cluster = Arc::new(object);
    })
}

fn reason(status: Option<&CaptClusterStatus>) -> Option<VpcReady> {
    let told = find(&status?.conditions, VpcReady::TYPE)?;
    VpcReady::named(&told.reason)
}

/// Holds of every report, in whatever order things happened.
fn check(case: &str, seen: &Observed, planned: &Plan) {
    let Some(status) = &planned.status else {
        // Silence is for what passes: when it ends, what is told is no trouble, unless that is the deadline's.
        if let Wake::At(time) = planned.wake {
            let next = plan(seen, time);
            let Some(status) = next.status else {
                assert!(
                    matches!(next.wake, Wake::At(later) if later > time),
                    "{case}: silence does not end"
                );
                return check(case, seen, &next);
            };
            for told in &status.conditions {
                let overdue = told.reason == "DeletionTimeout";
                assert!(
                    overdue || !is_trouble(&told.reason),
                    "{case}: silent about {}",
                    told.reason
                );
            }
        }
        return;
    };
    let is = |type_| conditions::is_true(&status.conditions, type_);
    if !is("Paused") {
        let types: Vec<_> = status.conditions.iter().map(|told| told.type_.as_str()).collect();
        assert_eq!(types, ClusterReport::TYPES, "{case}");
        assert_eq!(
            status.initialization.as_ref().and_then(|done| done.provisioned),
            status.ready,
            "{case}"
        );
    }
    assert!(
        !(status.ready == Some(true) && status.failure_reason.is_some()),
        "{case}: ready with a failure"
    );
    assert_eq!(
        status.failure_reason.is_some(),
        status.failure_message.is_some(),
        "{case}"
    );
    assert!(
        !is("Ready") || status.ready == Some(true),
        "{case}: Ready without ready"
    );
    assert!(!(is("VPCReady") && is("VPCFailed")), "{case}: in place and failed");
    assert!(!(is("VPCCreating") && is("VPCFailed")), "{case}: at work and failed");
    for told in &status.conditions {
        let before = find(&seen.before().conditions, &told.type_).cloned();
        let stayed = before.filter(|before| before.status == told.status);
        assert!(
            stayed.is_none_or(|before| before.last_transition_time == told.last_transition_time),
            "{case}: {} was moved without turning",
            told.type_
        );
    }
}

#[test]
fn every_life_keeps_to_the_table() {
    let mut gone: BTreeSet<(Option<&str>, &str)> = BTreeSet::new();
    for seed in 0..400 {
        let mut die = Die(seed);
        let mut scene = Scene::new().born(0);
        let mut now = at(0);
        // The controller may come late to a world in which things have happened already: each word of the apply is the
        // first one in some life.
        match WORDS.get(seed as usize % (2 * WORDS.len())) {
            Some(word) => scene = scene.apply(says("False", word, "m", json!({}))),
            None => scene = happen(scene, &mut die, now),
        }
        for turn in 0..60 {
            let case = format!("seed {seed}, turn {turn}");
            now = later(now, SignedDuration::from_secs(die.pick(&[0, 1, 5, 60, 400, 1000])));
            scene = match die.roll(40) {
                _ if turn == 0 => scene,
                0 if !scene.0.is_being_deleted() => begin_to_die(scene, now),
                1 => scene.with(|seen| seen.control_planes = vec!["cp".into()]),
                2 => scene.with(|seen| seen.control_planes.clear()),
                _ => happen(scene, &mut die, now),
            };
            let planned = plan(&scene.0, now);
            check(&case, &scene.0, &planned);
            if planned.step == Step::RemoveFinalizer {
                break;
            }
            let Some(status) = planned.status else { continue };
            let (from, to) = (reason(scene.0.capt_cluster.status.as_ref()), reason(Some(&status)));
            if let Some(to) = to {
                assert!(VPC.allows(from, to), "{case}: {from:?} → {to:?} is not in the table");
                gone.insert((from.map(Place::label), to.label()));
            }
            scene = scene.with(|seen| {
                let mut object = (*seen.capt_cluster).clone();
                object.status = Some(status);
                seen.capt_cluster = Arc::new(object);
            });
        }
    }
    for place in VPC.begin {
        assert!(
            gone.contains(&(None, place.label())),
            "no life begins with {}",
            place.label()
        );
    }
    for way in VPC.ways {
        for to in way.to {
            let is_gone = way
                .from
                .iter()
                .any(|from| from != to && gone.contains(&(Some(from.label()), to.label())));
            assert!(is_gone, "no life goes to {}: {}", to.label(), way.when);
        }
    }
}
