//! The status of a Workspace, with conditions set exactly as crossplane-runtime sets them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Status {
    /// Always written, also when empty.
    #[serde(default)]
    pub(super) at_provider: Map<String, Value>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) conditions: Vec<Condition>,
    #[serde(flatten)]
    other: Map<String, Value>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    last_transition_time: String,
    reason: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    observed_generation: Option<i64>,
}

/// The conditions that the provider knows.
#[derive(Debug)]
pub(super) enum Report {
    Creating,
    Available,
    Deleting,
    Success,
    Error(String),
    Paused,
}

impl Status {
    pub(super) fn read(object: &Value) -> Result<Self, serde_json::Error> {
        object.get("status").map_or(Ok(Self::default()), Self::deserialize)
    }

    /// `Available` comes from the provider's own code, past the reconciler, and so carries no generation.
    pub(super) fn set_available(&mut self, now: Timestamp) {
        self.mark(Report::Available, None, now);
    }

    /// A condition from the reconciler carries the generation of the object in hand.
    pub(super) fn mark(&mut self, report: Report, generation: Option<i64>, now: Timestamp) {
        let (kind, status, reason, message) = match report {
            Report::Creating => ("Ready", "False", "Creating", String::new()),
            Report::Available => ("Ready", "True", "Available", String::new()),
            Report::Deleting => ("Ready", "False", "Deleting", String::new()),
            Report::Success => ("Synced", "True", "ReconcileSuccess", String::new()),
            Report::Error(message) => ("Synced", "False", "ReconcileError", message),
            Report::Paused => ("Synced", "False", "ReconcilePaused", String::new()),
        };
        let mut condition = Condition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            last_transition_time: seconds(now),
            reason: reason.to_owned(),
            message,
            observed_generation: generation,
        };
        match self.conditions.iter_mut().find(|held| held.kind == condition.kind) {
            None => self.conditions.push(condition),
            Some(held) => {
                // The time moves with any difference: reason, message and generation count like the status does.
                let moved = std::mem::replace(&mut condition.last_transition_time, held.last_transition_time.clone());
                if *held != condition {
                    condition.last_transition_time = moved;
                    *held = condition;
                }
            }
        }
    }
}

/// RFC 3339 with the fraction cut off, as Kubernetes and the provider's annotations write it.
pub(super) fn seconds(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).expect("a time")
    }

    #[test]
    fn a_first_success_looks_as_the_provider_writes_it() {
        let mut status = Status::default();
        status.mark(Report::Creating, Some(1), at(0));
        status.mark(Report::Success, Some(1), at(0));
        assert_eq!(
            serde_json::to_value(&status).expect("JSON"),
            json!({"atProvider": {}, "conditions": [
                {"type": "Ready", "status": "False", "reason": "Creating", "observedGeneration": 1,
                 "lastTransitionTime": "1970-01-01T00:00:00Z"},
                {"type": "Synced", "status": "True", "reason": "ReconcileSuccess", "observedGeneration": 1,
                 "lastTransitionTime": "1970-01-01T00:00:00Z"},
            ]})
        );
        status.set_available(at(5));
        assert_eq!(
            serde_json::to_value(&status.conditions[0]).expect("JSON"),
            json!({"type": "Ready", "status": "True", "reason": "Available", "lastTransitionTime": "1970-01-01T00:00:05Z"})
        );
    }

    #[test]
    fn the_time_moves_with_any_difference_and_only_then() {
        let mut status = Status::default();
        status.mark(Report::Success, Some(1), at(0));
        status.mark(Report::Success, Some(1), at(1));
        assert_eq!(status.conditions[0].last_transition_time, "1970-01-01T00:00:00Z");
        status.mark(Report::Success, Some(2), at(2));
        assert_eq!(status.conditions[0].last_transition_time, "1970-01-01T00:00:02Z");
        status.mark(Report::Error("one".into()), Some(2), at(3));
        status.mark(Report::Error("two".into()), Some(2), at(4));
        assert_eq!(status.conditions[0].last_transition_time, "1970-01-01T00:00:04Z");
        assert_eq!(status.conditions.len(), 1);
    }

    #[test]
    fn fields_that_the_simulator_does_not_know_survive() {
        let object = json!({"status": {"observedGeneration": 4, "atProvider": {"outputs": {"a": 1}}}});
        let status = Status::read(&object).expect("a status");
        assert_eq!(serde_json::to_value(&status).expect("JSON"), object["status"]);
    }
}
