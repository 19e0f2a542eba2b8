//! Random lives: one thing after another happens to an apply, its template, its inputs and its Workspace, in any order, and
//! after each there are passes. Whatever happens, the reports stay within the table of `states`, whole and free of
//! contradiction, and nothing is made twice.

use std::collections::BTreeSet;

use capt_api::conditions::workspace_apply::{ApplyReport, Ready};
use capt_api::conditions::{self, Reason, Report};
use capt_api::machine::Place;
use capt_api::reasons::is_trouble;
use capt_runtime::controller::SETTLE;
use capt_runtime::error::{ObjectRef, Verb};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::world::{World, token};
use super::*;
use crate::states::APPLY;

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

/// What the provider can say of a failure.
const TROUBLES: &[&str] = &[
    "something else",
    "Error acquiring the state lock",
    "cannot get provider config: ProviderConfig.tf.upbound.io \"x\" not found",
    "cannot get credentials: cannot get credentials secret: Secret \"gone\" not found",
    "VpcLimitExceeded",
    "timeout while waiting for state to become 'ACTIVE'",
    "cannot get remote Terraform module: source path error",
];

/// What the provider or somebody else does to the Workspace.
fn happen_to_workspace(world: &mut World, die: &mut Die) {
    let Some(workspace) = &mut world.workspace else { return };
    let pending = annotation::EXTERNAL_CREATE_PENDING.to_owned();
    match die.roll(10) {
        0 => drop(
            workspace
                .annotations_mut()
                .insert(pending, "2026-01-01T00:00:00Z".into()),
        ),
        1 => drop(workspace.annotations_mut().remove(&pending)),
        2 => world.provider_says("True", "False", ""),
        3 | 4 => world.provider_says("True", "True", ""),
        5 => world.provider_is_paused(),
        7 => {
            let begun = (pending, "2026-01-01T00:00:00Z".to_owned());
            workspace.annotations_mut().extend([begun]);
            world.provider_says("False", "False", "cannot determine creation result");
        }
        6 => {
            let other = if die.roll(2) == 0 { "other" } else { "team" };
            let mark = (annotation::WTA_NAMESPACE.to_owned(), other.to_owned());
            workspace.annotations_mut().extend([mark]);
        }
        _ => world.provider_says("False", die.pick(&["True", "False"]), die.pick(TROUBLES)),
    }
}

fn change_template(world: &mut World, change: impl FnOnce(&mut capt_api::workspace::WorkspaceParameters)) {
    if let Some(template) = &mut world.template {
        change(&mut template.template.spec.for_provider);
    }
}

/// The next thing that happens.
fn happen(world: &mut World, die: &mut Die) {
    match die.roll(24) {
        0 => world.template = None,
        1 | 2 => world.template = World::new().template,
        3 => change_template(world, |parameters| parameters.module = "a = ${region}".into()),
        4 => change_template(world, |parameters| {
            let env = json!([{"name": "X", "secretKeyRef": {"name": "s", "namespace": "elsewhere", "key": "k"}}]);
            parameters.env = serde_json::from_value(env).unwrap();
        }),
        5 => world.apply.spec.variables.clear(),
        6 => world.apply.spec.variables = World::new().apply.spec.variables,
        7 => drop(world.inputs.remove(&token())),
        8 => world.inputs = World::new().inputs,
        9 => world.missing_secrets = vec!["Secret team/a does not exist".into()],
        10 => world.missing_secrets.clear(),
        11 => world.cluster = ClusterSeen::Absent("demo".into()),
        12 => world.cluster = ClusterSeen::Present { paused: true },
        13 | 14 => world.cluster = ClusterSeen::Standalone,
        15 => world.workspace = None,
        16 => world.settings.resume_interrupted_creates = die.roll(2) == 0,
        _ => happen_to_workspace(world, die),
    }
}

fn refusal(die: &mut Die) -> Failure {
    let object = ObjectRef::new("Workspace", None, "w");
    match die.roll(4) {
        0 => Failure::NamespaceTerminating { object },
        3 => Failure::Denied {
            verb: Verb::Create,
            object,
            message: "no".into(),
        },
        1 => Failure::OwnershipConflict {
            object,
            owner: "theirs".into(),
        },
        _ => Failure::Invalid {
            object,
            field: "spec".into(),
            message: "no".into(),
        },
    }
}

fn reason(status: Option<&WorkspaceTemplateApplyStatus>) -> Option<Ready> {
    let told = conditions::find(&status?.conditions, Ready::TYPE)?;
    Ready::named(&told.reason)
}

/// Holds of every report, in whatever order things happened.
fn check(case: &str, before: Option<&WorkspaceTemplateApplyStatus>, status: &WorkspaceTemplateApplyStatus) {
    let is = |type_| conditions::is_true(&status.conditions, type_);
    let types: Vec<_> = status.conditions.iter().map(|told| told.type_.as_str()).collect();
    // A pause, and a hold before anything else was said, leave the rest as it stands.
    if !is("Paused") && conditions::find(&status.conditions, Ready::TYPE).is_some() {
        assert_eq!(types, ApplyReport::TYPES, "{case}");
    }
    assert_eq!(is("Synced"), is("Ready"), "{case}: Synced and Ready differ");
    let ready = conditions::find(&status.conditions, Ready::TYPE);
    assert!(
        !(is("Ready") && status.last_failure_message.is_some()),
        "{case}: ready with a failure"
    );
    assert!(
        !ready.is_some_and(|ready| ready.status == "True" && ready.reason != "Available"),
        "{case}: ready for another reason"
    );
    assert_eq!(
        status.last_failed_revision.is_some(),
        status.last_failure_message.is_some(),
        "{case}"
    );
    for told in &status.conditions {
        let before = before.and_then(|before| conditions::find(&before.conditions, &told.type_));
        let stayed = before.filter(|before| before.status == told.status);
        assert!(
            stayed.is_none_or(|before| before.last_transition_time == told.last_transition_time),
            "{case}: {} was moved without turning",
            told.type_
        );
    }
}

/// Silence is for what passes: when it ends, what is told is no trouble.
fn check_silence(case: &str, world: &World, planned: &Plan) {
    if let (None, Wake::At(time)) = (&planned.status, planned.wake) {
        let status = plan(&world.observe(), time).status.expect("silence ends");
        for told in &status.conditions {
            assert!(!is_trouble(&told.reason), "{case}: silent about {}", told.reason);
        }
    }
}

#[test]
fn every_life_keeps_to_the_table() {
    let mut gone: BTreeSet<(Option<&str>, &str)> = BTreeSet::new();
    for seed in 0..400 {
        let mut die = Die(seed);
        let mut world = World::new();
        world.apply.metadata.creation_timestamp = Some(Time(world.now));
        // The controller may come late to a world in which things have happened already.
        for _ in 0..die.roll(4) {
            happen(&mut world, &mut die);
        }
        // Half of them are quick: the provider has spoken before anything was said.
        if seed % 2 == 0 {
            world = World::new();
            for _ in 0..4 {
                world.perform(world.plan());
            }
            happen_to_workspace(&mut world, &mut die);
        }
        let dies = if seed % 8 == 0 { 0 } else { 10 + die.roll(20) };
        for turn in 0..36 {
            let case = format!("seed {seed}, turn {turn}");
            world.now += SignedDuration::from_secs(die.pick(&[0, 1, 5, 600]));
            if turn == dies {
                world = world.deleting();
                if die.roll(2) == 0 {
                    world.apply.finalizers_mut().push(HOLDS[0].into());
                }
            } else if turn == dies + 4 {
                world.apply.finalizers_mut().retain(|present| present != HOLDS[0]);
            }
            if turn > 0 {
                happen(&mut world, &mut die);
            }
            // Sometimes before a write lands, so that the first report comes at any point.
            for _ in 0..die.roll(5) {
                let planned = world.plan();
                check_silence(&case, &world, &planned);
                let before = world.apply.status.clone();
                let is_write = !matches!(planned.step, Step::Report);
                if is_write && die.roll(12) == 0 {
                    world.apply.status = Some(refused(&world.observe(), &refusal(&mut die), world.now));
                } else {
                    world.perform(planned);
                }
                let Some(status) = &world.apply.status else { continue };
                check(&case, before.as_ref(), status);
                let (from, to) = (reason(before.as_ref()), reason(Some(status)));
                if let Some(to) = to {
                    assert!(APPLY.allows(from, to), "{case}: {from:?} → {to:?} is not in the table");
                    gone.insert((from.map(Place::label), to.label()));
                }
            }
        }
    }
    for place in APPLY.begin {
        assert!(
            gone.contains(&(None, place.label())),
            "no life begins with {}",
            place.label()
        );
    }
    for way in APPLY.ways {
        for to in way.to {
            let is_gone = way
                .from
                .iter()
                .any(|from| from != to && gone.contains(&(Some(from.label()), to.label())));
            assert!(is_gone, "no life goes to {}: {}", to.label(), way.when);
        }
    }
}

/// From wherever a life has come to, what is mended becomes ready, and what is deleted goes.
#[test]
fn every_life_can_be_mended_and_ended() {
    for seed in 0..100 {
        let mut die = Die(seed);
        let mut world = World {
            kind: die.pick(&WorkspaceKind::ALL),
            ..World::new()
        };
        for _ in 0..30 {
            happen(&mut world, &mut die);
            world.perform(world.plan());
        }
        let pristine = World::new();
        world.template = pristine.template;
        world.apply.spec.variables = pristine.apply.spec.variables;
        world.inputs = pristine.inputs;
        (world.cluster, world.missing_secrets) = (ClusterSeen::Standalone, Vec::new());
        if let Some(workspace) = &mut world.workspace {
            let mark = (annotation::WTA_NAMESPACE.to_owned(), super::world::NAMESPACE.to_owned());
            workspace.annotations_mut().extend([mark]);
        }
        world.settle();
        world.provider_says("True", "True", "");
        world.settle();
        assert_eq!(world.said("Ready"), "True/Available", "seed {seed}");
        let workspace = world.workspace.as_ref().unwrap();
        assert_eq!(is_held(workspace), needs_hold(world.kind), "seed {seed}");

        world.now += SETTLE;
        let mut world = world.deleting();
        world.settle();
        world.workspace = None;
        world.settle();
        assert!(world.apply.finalizers().is_empty(), "seed {seed}");
    }
}
