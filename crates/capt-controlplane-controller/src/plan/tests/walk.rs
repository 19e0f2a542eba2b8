//! Every way of the tables in `states`, walked; and nothing that is walked is missing there.
//!
//! A scene is something that happens to a control plane. Each happens in every place that the control plane ever gets to,
//! once before it was ever ready and once in use; and then they follow each other at random.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use capt_api::conditions::control_plane::Ready;
use capt_api::controlplane::Phase;
use capt_api::machine::{Machine, Place};
use proptest::prelude::*;

use super::world::{APPLY, CLUSTER, CONTROL_PLANE, INFRASTRUCTURE, VPC_APPLY, World, condition};
use super::*;
use crate::states::{PHASES, READY as REASONS};

type Pair = (Option<&'static str>, &'static str);

/// Made once: they take many passes.
static GUARDED: LazyLock<World> = LazyLock::new(World::guarded);
static READY_WORLD: LazyLock<World> = LazyLock::new(World::ready);

/// Every way that was gone, by what users read.
#[derive(Default)]
struct Walked {
    phases: BTreeSet<Pair>,
    reasons: BTreeSet<Pair>,
}

/// What happens, with the world around it in order.
const SCENES: &[(&str, Edit)] = &[
    ("complete", |world| world.complete()),
    ("the owner is lost", |world| {
        world.set(CONTROL_PLANE, "/metadata/ownerReferences", json!([]))
    }),
    ("the network fails before the apply is made", |world| {
        world.objects.remove(APPLY);
        world.set(INFRASTRUCTURE, "/status", json!({}));
    }),
    ("Terraform works", |world| world.apply_says("Applying", "")),
    ("the template is missing", |world| {
        world.apply_says("NotApplied", "");
        let waiting = condition("Waiting", "True", "WaitingForTemplate", "no template", 1);
        world.edit(APPLY, |apply| {
            apply["status"]["conditions"].as_array_mut().unwrap().push(waiting)
        });
    }),
    ("the provider is busy", |world| {
        world.apply_says("WaitingForProvider", "")
    }),
    ("Terraform fails", |world| world.apply_says("TerraformFailed", "quota")),
    ("a create is cut off", |world| {
        world.apply_says("CreateInterrupted", "look")
    }),
    ("the state is locked", |world| world.apply_says("StateLocked", "by")),
    ("no provider configuration", |world| {
        world.apply_says("ProviderConfigMissing", "which")
    }),
    ("no credentials", |world| {
        world.apply_says("CredentialsMissing", "which")
    }),
    ("the account is full", |world| {
        world.apply_says("QuotaExceeded", "of what")
    }),
    ("the cloud is slow", |world| {
        world.apply_says("TerraformTimeout", "for what")
    }),
    ("the module is wrong", |world| {
        world.apply_says("InvalidModule", "where")
    }),
    ("the template is wrong", |world| {
        world.apply_says("InvalidTemplate", "where")
    }),
    ("a variable is unsafe", |world| {
        world.apply_says("UnsafeVariable", "which")
    }),
    ("a variable is missing", |world| {
        world.apply_says("UnresolvedVariable", "which")
    }),
    ("the wish is wrong", |world| {
        world.set(CONTROL_PLANE, "/spec/version", json!("newest"))
    }),
    ("the template is elsewhere", |world| {
        world.set(CONTROL_PLANE, "/spec/workspaceTemplateRef/namespace", json!("other"))
    }),
    ("the apply is another's", |world| {
        world.set(APPLY, "/metadata/ownerReferences/0/uid", json!("another"))
    }),
    ("a policy refuses", |world| refuse(world, Ready::AdmissionDenied)),
    ("the namespace goes", |world| refuse(world, Ready::NamespaceTerminating)),
    ("the apply is deleted", |world| {
        world.apply_ready();
        world.delete(APPLY);
    }),
    ("no endpoint", |world| {
        world.complete();
        world.say("EndpointReady", "False", "WaitingForWorkspace", "");
    }),
    ("an output is missing", |world| {
        world.complete();
        world.say("EndpointReady", "False", "EndpointMissing", "no output");
    }),
    ("a bad endpoint", |world| {
        world.complete();
        world.say("EndpointReady", "False", "EndpointInvalid", "no host");
    }),
    ("no kubeconfig", |world| {
        world.complete();
        world.say("SecretsReady", "False", "WaitingForSecret", "");
    }),
    ("a bad kubeconfig", |world| {
        world.complete();
        world.say("SecretsReady", "False", "Failed", "no server");
    }),
    ("it takes a minute", |world| world.wait_minutes(1)),
    ("it takes too long", |world| world.wait_minutes(30)),
    ("deleted", |world| {
        world.delete(CONTROL_PLANE);
        for name in ["captendpoint", "captsecrets"] {
            world.drop_finalizer(CONTROL_PLANE, &format!("controlplane.cluster.x-k8s.io/{name}"));
        }
    }),
];

/// Whether a scene only goes on with what is there.
fn goes_on(name: &str) -> bool {
    name.starts_with("it takes")
}

fn refuse(world: &mut World, reason: Ready) {
    world.refused = Some(Refusal {
        reason: Some(reason),
        message: "the server's words".into(),
    });
}

/// Everything is as a control plane needs it, but for what Terraform, endpoint and kubeconfig have come to.
fn restore(world: &mut World) {
    let sound = &*GUARDED;
    world.refused = None;
    for key in [CLUSTER, INFRASTRUCTURE, VPC_APPLY] {
        world.objects.insert(key, sound.get(key).clone());
    }
    for path in ["/metadata/ownerReferences", "/spec"] {
        let whole = sound.get(CONTROL_PLANE).pointer(path).unwrap().clone();
        world.set(CONTROL_PLANE, path, whole);
    }
    let lost = world.objects.get(APPLY).is_none_or(|apply| {
        apply.pointer("/metadata/deletionTimestamp").is_some()
            || apply.pointer("/metadata/ownerReferences/0/uid") != Some(&json!("cp-uid"))
    });
    if lost {
        world.objects.remove(APPLY);
        world.add_apply();
    }
}

/// A change that asks nothing else of Terraform.
fn wish(world: &mut World) {
    let generation = world.get(CONTROL_PLANE)["metadata"]["generation"].as_i64().unwrap();
    world.set(CONTROL_PLANE, "/metadata/generation", json!(generation + 1));
}

fn is_gone(world: &World) -> bool {
    let control_plane = world.objects.get(CONTROL_PLANE);
    control_plane.is_none_or(|object| object.pointer("/metadata/deletionTimestamp").is_some())
}

fn play(world: &mut World, (name, scene): &(&str, Edit)) {
    if is_gone(world) {
        return;
    }
    if !goes_on(name) {
        restore(world);
    }
    scene(world);
}

impl Walked {
    /// Lets the control plane say what there is to say now, and notes where that leads.
    fn tell(&mut self, world: &mut World) {
        if !world.objects.contains_key(CONTROL_PLANE) {
            return;
        }
        if world.silent_until().is_some() {
            world.wait_until_settled();
        }
        let Some(status) = world.plan().status else { return };
        check_promises(&status);
        let before = Shown::of(&serde_json::from_value(world.status()).unwrap_or_default());
        let after = Shown::of(&status);
        self.phases
            .insert((before.phase.map(Place::label), after.phase.unwrap().label()));
        self.reasons
            .insert((before.reason.map(Place::label), after.reason.unwrap().label()));
        world.report();
    }
}

/// Where a status is in the two tables.
struct Shown {
    phase: Option<Phase>,
    reason: Option<Ready>,
}

impl Shown {
    fn of(status: &CaptControlPlaneStatus) -> Self {
        let ready = capt_api::conditions::find(&status.conditions, "Ready");
        Self {
            phase: status.phase,
            reason: ready.and_then(|ready| Ready::named(&ready.reason)),
        }
    }
}

/// What users were promised of every status.
fn check_promises(status: &CaptControlPlaneStatus) {
    let is_true = |type_: &str| capt_api::conditions::is_true(&status.conditions, type_);
    assert!(
        status.ready != Some(true) || status.failure_reason.is_none(),
        "ready with a failure"
    );
    assert!(
        status.phase != Some(Phase::Ready) || !is_true("Failed"),
        "phase Ready with Failed=True"
    );
    assert_eq!(status.phase == Some(Phase::Ready), is_true("Ready"));
    assert_eq!(status.phase == Some(Phase::Failed), is_true("Failed"));
    assert_eq!(status.phase == Some(Phase::Deleting), is_true("Deleting"));
}

/// From every place that is ever reached, each scene once, and once more together with a new wish.
fn explore() -> Walked {
    let mut walked = Walked::default();
    let mut known = BTreeSet::new();
    let mut ahead = vec![GUARDED.clone(), READY_WORLD.clone()];
    while let Some(here) = ahead.pop() {
        for (scene, new_wish) in SCENES.iter().flat_map(|scene| [(scene, false), (scene, true)]) {
            let mut there = here.clone();
            if new_wish {
                wish(&mut there);
            }
            play(&mut there, scene);
            walked.tell(&mut there);
            // Before the first word there is only the beginning.
            if is_gone(&there) || there.status().is_null() {
                continue;
            }
            let terraform_works = there.status().pointer("/waitingSince/workspace").is_some();
            if known.insert((
                there.condition("Available").0,
                there.condition("Ready").1,
                terraform_works,
            )) {
                ahead.push(there);
            }
        }
    }
    walked
}

fn missing<S: Place>(machine: &Machine<S>, walked: &BTreeSet<Pair>) -> Vec<String> {
    let mut missing = vec![];
    let begins = machine.begin.iter().map(|to| (None, to.label()));
    let ways = machine.ways.iter().flat_map(|way| {
        let pairs = way
            .from
            .iter()
            .flat_map(|from| way.to.iter().map(move |to| (*from, *to)));
        pairs
            .filter(|(from, to)| from != to)
            .map(|(from, to)| (Some(from.label()), to.label()))
    });
    for pair in begins.chain(ways) {
        if !walked.contains(&pair) {
            missing.push(format!("{pair:?}"));
        }
    }
    missing
}

fn unknown<S: Place>(machine: &Machine<S>, walked: &BTreeSet<Pair>) -> Vec<String> {
    let place = |label: &str| S::ALL.iter().copied().find(|place| place.label() == label);
    walked
        .iter()
        .filter(|(from, to)| !machine.allows(from.and_then(place), place(to).unwrap()))
        .map(|pair| format!("{pair:?}"))
        .collect()
}

#[test]
fn the_tables_say_what_happens_and_nothing_else() {
    let walked = explore();
    assert_eq!(unknown(&PHASES, &walked.phases), [""; 0], "phases that the table lacks");
    assert_eq!(missing(&PHASES, &walked.phases), [""; 0], "phases that never happen");
    assert_eq!(
        unknown(&REASONS, &walked.reasons),
        [""; 0],
        "reasons that the table lacks"
    );
    assert_eq!(missing(&REASONS, &walked.reasons), [""; 0], "reasons that never happen");
}

#[test]
fn there_is_no_dead_end() {
    assert_eq!(PHASES.faults(), [""; 0]);
    assert_eq!(REASONS.faults(), [""; 0]);
    // The good end, too, for whatever lives.
    for phase in Phase::ALL.iter().filter(|phase| **phase != Phase::Deleting) {
        assert!(PHASES.reached_from(&[*phase]).contains(&Phase::Ready), "{phase:?}");
    }
    for reason in <Ready as Place>::ALL
        .iter()
        .filter(|reason| **reason != Ready::Deleting)
    {
        assert!(
            REASONS.reached_from(&[*reason]).contains(&Ready::ControlPlaneReady),
            "{reason:?}"
        );
    }
}

/// Not only in the table: whatever happened, the world can be put in order, and then it comes to its good end.
#[test]
fn every_scene_heals_and_every_scene_can_be_deleted() {
    for start in [&GUARDED, &READY_WORLD] {
        for scene in SCENES.iter().filter(|(name, _)| *name != "deleted") {
            let mut world = World::clone(start);
            play(&mut world, scene);
            Walked::default().tell(&mut world);

            let mut healed = world.clone();
            restore(&mut healed);
            healed.settle();
            assert_eq!(healed.status()["phase"], json!("Ready"), "{}", scene.0);

            world.refused = None;
            world.delete(CONTROL_PLANE);
            world.settle();
            assert!(!world.objects.contains_key(CONTROL_PLANE), "{}", scene.0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// At random, with whole passes and pauses in between.
    #[test]
    fn a_walk_stays_within_the_tables(
        in_use in any::<bool>(),
        scenes in prop::collection::vec((prop::sample::select(SCENES.to_vec()), any::<bool>(), 0..8u8), 1..12),
    ) {
        let mut world = World::clone(if in_use { &READY_WORLD } else { &GUARDED });
        let mut walked = Walked::default();
        for (scene, acts, meanwhile) in scenes {
            play(&mut world, &scene);
            match meanwhile {
                0 if !is_gone(&world) => {
                    world.set(CLUSTER, "/spec/paused", json!(true));
                    world.report();
                    world.set(CLUSTER, "/spec/paused", json!(false));
                }
                1 if !is_gone(&world) => wish(&mut world),
                _ => {}
            }
            walked.tell(&mut world);
            if acts && world.refused.is_none() && world.objects.contains_key(CONTROL_PLANE) {
                world.pass();
                walked.tell(&mut world);
            }
        }
        prop_assert_eq!(unknown(&PHASES, &walked.phases), [""; 0]);
        prop_assert_eq!(unknown(&REASONS, &walked.reasons), [""; 0]);
    }
}
