//! What the provider does next with a Workspace: pure decisions, in the order in which it takes them.

use jiff::{SignedDuration, Timestamp};
use kube::api::DynamicObject;

use super::workspace::{self, Policy};

/// Decided before Terraform is asked anything.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Gate {
    /// By annotation or by an empty policy; a deletion waits too.
    Paused,
    UnsupportedPolicy,
    /// Deleted, and the infrastructure is to stay: only the finalizer goes.
    Orphan,
    /// The provider died during the first apply: it touches nothing until someone removes the annotation.
    CreateIncomplete,
    Proceed,
}

/// What Terraform said.
#[derive(Debug, Clone, Copy)]
pub(super) struct Observation {
    /// The state has a resource or an output.
    pub(super) exists: bool,
    pub(super) up_to_date: bool,
}

/// Decided after Terraform was asked.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Only observing, and there is nothing to observe.
    ReportAbsent,
    /// Just created, yet nothing is there: perhaps an eventually consistent API. Also delays a young Workspace's end.
    AwaitExistence,
    /// Deleted, but someone else still holds a finalizer.
    AwaitFinalizers,
    Destroy,
    /// Deleted and nothing left: remove the finalizer.
    Release,
    Create,
    Update,
    /// Nothing to do, or not allowed to: report success until the next poll.
    Rest,
}

pub(super) fn gate(object: &DynamicObject, policy: &Policy) -> Gate {
    if workspace::annotated_paused(object) || policy.paused() {
        Gate::Paused
    } else if !policy.supported() {
        Gate::UnsupportedPolicy
    } else if workspace::deleting(object) && !policy.may_delete() {
        Gate::Orphan
    } else if workspace::create_incomplete(object) {
        Gate::CreateIncomplete
    } else {
        Gate::Proceed
    }
}

pub(super) fn next(
    object: &DynamicObject,
    policy: &Policy,
    seen: Observation,
    grace: SignedDuration,
    now: Timestamp,
) -> Step {
    if !seen.exists && policy.only_observe() {
        return Step::ReportAbsent;
    }
    if !seen.exists && workspace::created_within(object, grace, now) {
        return Step::AwaitExistence;
    }
    if workspace::deleting(object) {
        let held = object.metadata.finalizers.as_ref().map_or(0, Vec::len);
        return if held > 1 {
            Step::AwaitFinalizers
        } else if seen.exists {
            Step::Destroy
        } else {
            Step::Release
        };
    }
    if !seen.exists && policy.may_create() {
        Step::Create
    } else if seen.up_to_date || !policy.may_update() {
        Step::Rest
    } else {
        Step::Update
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const GRACE: SignedDuration = SignedDuration::from_secs(30);

    fn object(metadata: Value, spec: Value) -> DynamicObject {
        let mut merged = json!({"forProvider": {"source": "Inline", "module": "{}"}, "managementPolicies": ["*"]});
        for (key, value) in spec.as_object().expect("an object") {
            merged[key] = value.clone();
        }
        serde_json::from_value(json!({
            "apiVersion": "tf.upbound.io/v1beta1", "kind": "Workspace", "metadata": metadata, "spec": merged,
        }))
        .expect("a Workspace")
    }

    fn policy(object: &DynamicObject) -> Policy {
        Policy::of(&workspace::spec(object).expect("a spec"))
    }

    fn pending(pending: &str, succeeded: Option<&str>, failed: Option<&str>) -> Value {
        let mut annotations = json!({"crossplane.io/external-create-pending": pending});
        for (key, time) in [("succeeded", succeeded), ("failed", failed)] {
            if let Some(time) = time {
                annotations[format!("crossplane.io/external-create-{key}")] = json!(time);
            }
        }
        json!({"name": "w", "annotations": annotations})
    }

    #[test]
    fn the_gate_is_passed_in_the_order_of_the_provider() {
        let deleted = json!({"name": "w", "deletionTimestamp": "2026-01-01T00:00:00Z"});
        let paused = json!({"name": "w", "annotations": {"crossplane.io/paused": "true"}});
        let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:09Z");
        let rows = [
            (json!({"name": "w"}), json!({}), Gate::Proceed),
            (paused, json!({}), Gate::Paused),
            (deleted.clone(), json!({"managementPolicies": []}), Gate::Paused),
            (
                json!({"name": "w"}),
                json!({"managementPolicies": ["Create"]}),
                Gate::UnsupportedPolicy,
            ),
            (
                json!({"name": "w"}),
                json!({"managementPolicies": ["Observe", "*"]}),
                Gate::UnsupportedPolicy,
            ),
            (
                json!({"name": "w"}),
                json!({"managementPolicies": ["Update", "Observe"]}),
                Gate::Proceed,
            ),
            (deleted.clone(), json!({"deletionPolicy": "Delete"}), Gate::Proceed),
            (deleted.clone(), json!({"deletionPolicy": "Orphan"}), Gate::Orphan),
            (
                deleted.clone(),
                json!({"managementPolicies": ["Observe"]}),
                Gate::Orphan,
            ),
            // A policy other than the default that names Delete wins over Orphan.
            (
                deleted,
                json!({"deletionPolicy": "Orphan", "managementPolicies": ["Observe", "Delete"]}),
                Gate::Proceed,
            ),
            (pending(late, None, None), json!({}), Gate::CreateIncomplete),
            (pending(late, Some(early), None), json!({}), Gate::CreateIncomplete),
            (pending(late, None, Some(early)), json!({}), Gate::CreateIncomplete),
            (pending(late, Some(late), None), json!({}), Gate::Proceed),
            (pending(early, Some(early), Some(late)), json!({}), Gate::Proceed),
            (pending("yesterday", None, None), json!({}), Gate::Proceed),
        ];
        for (metadata, spec, expected) in rows {
            let row = format!("{metadata} {spec}");
            let object = object(metadata, spec);
            assert_eq!(gate(&object, &policy(&object)), expected, "{row}");
        }
    }

    #[test]
    fn a_step_follows_from_the_object_and_what_terraform_said() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().expect("a time");
        let plain = || json!({"name": "w"});
        let deleted = |finalizers: Value| json!({"name": "w", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": finalizers});
        let created = |at: &str| json!({"name": "w", "annotations": {"crossplane.io/external-create-succeeded": at}});
        let ours = || deleted(json!([workspace::FINALIZER]));
        let only = |actions: Value| json!({"managementPolicies": actions});
        // metadata, spec, exists, up to date, step
        let rows = [
            (plain(), json!({}), false, false, Step::Create),
            (plain(), json!({}), true, false, Step::Update),
            (plain(), json!({}), true, true, Step::Rest),
            (plain(), only(json!(["Observe"])), false, false, Step::ReportAbsent),
            (plain(), only(json!(["Observe"])), true, false, Step::Rest),
            (plain(), only(json!(["Observe", "Create"])), false, false, Step::Create),
            (plain(), only(json!(["Observe", "Create"])), true, false, Step::Rest),
            (plain(), only(json!(["Observe", "Update"])), false, false, Step::Update),
            (
                created("2026-01-01T00:00:31Z"),
                json!({}),
                false,
                false,
                Step::AwaitExistence,
            ),
            (created("2026-01-01T00:00:31Z"), json!({}), true, false, Step::Update),
            (created("2026-01-01T00:00:30Z"), json!({}), false, false, Step::Create),
            (ours(), json!({}), true, true, Step::Destroy),
            (ours(), json!({}), false, true, Step::Release),
            (
                deleted(json!(["other", workspace::FINALIZER])),
                json!({}),
                true,
                true,
                Step::AwaitFinalizers,
            ),
            (deleted(json!(["other"])), json!({}), true, true, Step::Destroy),
        ];
        for (metadata, spec, exists, up_to_date, expected) in rows {
            let row = format!("{metadata} {spec} exists={exists} up_to_date={up_to_date}");
            let object = object(metadata, spec);
            let seen = Observation { exists, up_to_date };
            assert_eq!(next(&object, &policy(&object), seen, GRACE, now), expected, "{row}");
        }
    }
}
