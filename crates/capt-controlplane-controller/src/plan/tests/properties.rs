//! What holds for every world, however odd.

use std::sync::LazyLock;

use capt_api::conditions::{Report, control_plane::ControlPlaneReport};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::world::{APPLY, CLUSTER, CONTROL_PLANE, INFRASTRUCTURE, VPC_APPLY, World, apply_status, condition};
use super::*;

/// Something that somebody may have done to a world.
type Edit = (&'static str, &'static str, Value);

fn reasons() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "Available",
        "NotApplied",
        "WaitingForProvider",
        "Applying",
        "TerraformFailed",
        "CreateInterrupted",
        "StateLocked",
        "WorkspacePaused",
        "InvalidTemplate",
        "UnsafeVariable",
        "UnresolvedVariable",
        "CrossNamespaceReference",
        "OwnershipConflict",
        "NamespaceTerminating",
        "Deleting",
        "Unknown",
    ])
}

fn edits() -> impl Strategy<Value = Edit> {
    let gone = "2026-06-01T11:00:00Z";
    let now = "2026-06-01T12:00:00Z";
    let fixed = prop::sample::select(vec![
        (CLUSTER, "/spec/paused", json!(true)),
        (CLUSTER, "/spec/controlPlaneRef/name", json!("other")),
        (CLUSTER, "/metadata/deletionTimestamp", json!(gone)),
        (CLUSTER, "/metadata/uid", json!("another")),
        (CLUSTER, "/spec/infrastructureRef", Value::Null),
        (INFRASTRUCTURE, "/status", Value::Null),
        (INFRASTRUCTURE, "/spec", json!({})),
        (INFRASTRUCTURE, "/metadata/deletionTimestamp", json!(gone)),
        (VPC_APPLY, "/metadata/generation", json!(3)),
        (CONTROL_PLANE, "/metadata/deletionTimestamp", json!(gone)),
        (CONTROL_PLANE, "/metadata/ownerReferences", json!([])),
        (CONTROL_PLANE, "/metadata/finalizers", json!([])),
        (
            CONTROL_PLANE,
            "/metadata/finalizers",
            json!(["controlplane.cluster.x-k8s.io/captcontrolplane"]),
        ),
        (
            CONTROL_PLANE,
            "/metadata/annotations",
            json!({"cluster.x-k8s.io/paused": ""}),
        ),
        (
            CONTROL_PLANE,
            "/metadata/annotations",
            json!({"cluster.x-k8s.io/managed-by": ""}),
        ),
        (CONTROL_PLANE, "/spec/version", json!("v1.32.0")),
        (CONTROL_PLANE, "/spec/version", json!("newest")),
        (CONTROL_PLANE, "/status/ready", json!(true)),
        (CONTROL_PLANE, "/status/ready", Value::Null),
        (CONTROL_PLANE, "/status/observedGeneration", json!(0)),
        (
            CONTROL_PLANE,
            "/status",
            json!({"waitingSince": {"vpc": gone, "controlPlane": gone, "secret": gone, "deletion": gone}}),
        ),
        (CONTROL_PLANE, "/status", Value::Null),
        (CONTROL_PLANE, "/metadata/creationTimestamp", json!(now)),
        (CONTROL_PLANE, "/metadata/deletionTimestamp", json!(now)),
        (APPLY, "/metadata/creationTimestamp", json!(now)),
        (APPLY, "/metadata/deletionTimestamp", json!(gone)),
        (APPLY, "/metadata/ownerReferences", json!([])),
        (APPLY, "/metadata/finalizers", json!(["example.com/x"])),
        (APPLY, "/metadata/generation", json!(9)),
        (APPLY, "/spec", json!(7)),
        (APPLY, "/status", Value::Null),
    ]);
    let apply = (reasons(), any::<bool>(), 0..3i64, any::<bool>()).prop_map(move |(reason, yes, generation, young)| {
        let status = if yes { "True" } else { "False" };
        let mut conditions = json!([
            condition("Ready", status, reason, "words", generation),
            condition("Deleting", "True", "DestroyFailed", "", 1)
        ]);
        if young {
            conditions[0]["lastTransitionTime"] = json!(now);
        }
        (
            APPLY,
            "/status",
            json!({"observedGeneration": generation, "conditions": conditions}),
        )
    });
    let access = (
        prop::sample::select(vec!["EndpointReady", "SecretsReady"]),
        prop::sample::select(vec!["True", "False"]),
        prop::sample::select(vec!["EndpointInvalid", "Failed", "WaitingForSecret", "Odd"]),
        any::<bool>(),
    )
        .prop_map(move |(type_, status, reason, young)| {
            let mut said = condition(type_, status, reason, "words", 1);
            if young {
                said["lastTransitionTime"] = json!(now);
            }
            (CONTROL_PLANE, "/status/conditions", json!([said]))
        });
    prop_oneof![4 => fixed, 2 => apply, 2 => access]
}

/// Made once: it takes many passes.
static READY: LazyLock<World> = LazyLock::new(World::ready);

/// Terraform works on the first creation.
static UNDERWAY: LazyLock<World> = LazyLock::new(|| {
    let mut world = World::guarded();
    world.add_apply();
    world.apply_says("Applying", "at work");
    world.report();
    world
});

fn worlds() -> impl Strategy<Value = World> {
    let start = prop::sample::select(vec![0, 1, 2, 3]);
    (
        start,
        prop::collection::vec(edits(), 0..6),
        prop::collection::vec(
            prop::sample::select(vec![CLUSTER, INFRASTRUCTURE, VPC_APPLY, APPLY]),
            0..2,
        ),
    )
        .prop_map(|(start, edits, removed)| {
            let mut world = match start {
                0 => World::new(),
                1 => World::guarded(),
                2 => UNDERWAY.clone(),
                _ => READY.clone(),
            };
            for (key, path, value) in edits {
                // Straight into the object: what an API server would not do is welcome here.
                if let Some(object) = world.objects.get_mut(key) {
                    let mut here = object;
                    for token in path.split('/').skip(1) {
                        here = &mut here[token];
                    }
                    *here = value;
                }
            }
            for key in removed {
                world.objects.remove(key);
            }
            world
        })
}

/// Whether the control plane can be read at all, and with it the world.
fn readable(world: &World) -> bool {
    [CONTROL_PLANE]
        .iter()
        .all(|key| serde_json::from_value::<capt_api::CaptControlPlane>(world.objects[key].clone()).is_ok())
        && world
            .objects
            .get(APPLY)
            .is_none_or(|apply| serde_json::from_value::<capt_api::WorkspaceTemplateApply>(apply.clone()).is_ok())
        && world
            .objects
            .get(INFRASTRUCTURE)
            .is_none_or(|object| serde_json::from_value::<capt_api::CaptCluster>(object.clone()).is_ok())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn a_report_is_whole_and_consistent(world in worlds()) {
        prop_assume!(readable(&world));
        let plan = world.plan();
        let Some(status) = plan.status else { return Ok(()) };
        let is_true = |type_: &str| capt_api::conditions::is_true(&status.conditions, type_);
        if is_true("Paused") {
            prop_assert_eq!(plan.step, Step::Nothing);
            return Ok(());
        }
        let types: Vec<&str> = status.conditions.iter().map(|condition| condition.type_.as_str()).collect();
        prop_assert_eq!(types, ControlPlaneReport::TYPES);
        prop_assert!(status.ready != Some(true) || status.failure_reason.is_none(), "ready with a failure");
        prop_assert_eq!(status.failure_reason.is_some(), status.failure_message.is_some());
        prop_assert!(status.failure_reason.is_none() || is_true("Failed"));
        prop_assert!(!(is_true("Ready") && is_true("Failed")));
        prop_assert!(!(is_true("Creating") && is_true("Available")));
        let phase = status.phase.unwrap().as_str();
        let expected = match (is_true("Deleting"), is_true("Ready"), is_true("Failed")) {
            (true, ..) => "Deleting",
            (_, true, _) => "Ready",
            (_, _, true) => "Failed",
            _ => "Creating",
        };
        prop_assert_eq!(phase, expected);
        prop_assert!(!is_true("Available") || (status.ready == Some(true) && is_true("Initialized")));
        prop_assert!(!matches!(plan.step, Step::Look(_)), "a look that was answered is not asked for again");
    }

    /// A plan says nothing only where nothing has failed and nothing is ready, for moments, and over a report that says
    /// neither. When the moments have passed, it says where things stand.
    #[test]
    fn a_silent_plan_hides_nothing(world in worlds()) {
        prop_assume!(readable(&world));
        let plan = world.plan();
        let (None, Wake::At(told)) = (plan.status, plan.wake) else { return Ok(()) };
        prop_assert!(world.now < told && told <= world.now + SETTLE * 2, "{told}");
        let object = &world.objects[CONTROL_PLANE];
        let stands = serde_json::from_value::<capt_api::CaptControlPlane>(object.clone()).unwrap().status.unwrap_or_default();
        let is_deleting = object.pointer("/metadata/deletionTimestamp").is_some_and(|time| !time.is_null());
        if !is_deleting {
            for type_ in ["Ready", "Failed", "Paused"] {
                prop_assert!(!capt_api::conditions::is_true(&stands.conditions, type_), "{type_} stands");
            }
            prop_assert_eq!(stands.failure_reason, None);
        }
        let mut later = world.clone();
        later.now = told;
        let status = later.plan().status;
        prop_assert!(status.is_some(), "still silent");
        let status = status.unwrap();
        prop_assert!(!capt_api::conditions::is_true(&status.conditions, "Ready"));
        if capt_api::conditions::is_true(&status.conditions, "Failed") {
            let (_, reason, _) = super::condition(&status, "Failed");
            prop_assert!(reason.ends_with("Timeout"), "{reason} was hidden");
        }
    }

    /// What was written is what would be written: at the same moment, and at any later one before the next deadline.
    #[test]
    fn a_report_is_written_once(world in worlds(), seconds in 0..3600i64) {
        prop_assume!(readable(&world));
        let first = world.plan();
        let Some(status) = first.status else { return Ok(()) };
        let mut after = world.clone();
        let written = serde_json::to_value(&status).unwrap();
        apply_status(after.objects.get_mut(CONTROL_PLANE).unwrap(), &written);
        // The end of something is told at once; what it gave way to may be a stage that passes.
        prop_assert!(after.plan().status.is_none_or(|again| again == status));

        let later = after.now + SignedDuration::from_secs(seconds);
        let deadline = match first.wake {
            Wake::At(deadline) => deadline,
            Wake::OnEvent => later + SignedDuration::from_secs(1),
        };
        if later < deadline {
            after.now = later;
            prop_assert!(after.plan().status.is_none_or(|again| again == status));
        }
    }

    /// Nothing that is in use is ever taken away by a plan for a control plane that is to stay.
    #[test]
    fn only_a_deletion_deletes(world in worlds()) {
        prop_assume!(readable(&world));
        let deleting = world.objects[CONTROL_PLANE].pointer("/metadata/deletionTimestamp").is_some();
        let step = world.plan().step;
        let destroys = matches!(step, Step::DeleteApply | Step::ReleaseApply | Step::DropFinalizers);
        let neutral = matches!(step, Step::Nothing | Step::ClearClusterFailure(_));
        prop_assert!(neutral || destroys == deleting, "{step:?}");
    }
}
