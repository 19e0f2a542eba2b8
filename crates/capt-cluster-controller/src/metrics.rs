//! How CAPTClusters fare, in numbers: how long each phase took, when they became ready, which deadlines passed.

use capt_api::CaptCluster;
use capt_api::cluster::CaptClusterStatus;
use capt_api::conditions::cluster::{Deleting, VpcCreating, VpcFailed, VpcReady};
use capt_api::conditions::{self, Reason, Status};
use capt_runtime::metrics::Lives;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

const KIND: &str = "CAPTCluster";

/// An object is in a phase while the condition is true.
const PHASES: [(&str, &str); 3] = [
    (VpcCreating::TYPE, "Creating"),
    (VpcReady::TYPE, "Ready"),
    (VpcFailed::TYPE, "Failed"),
];

/// Counts what changed with a report that was written.
pub(crate) fn reported(lives: &Lives, object: &CaptCluster, after: &CaptClusterStatus, now: Timestamp) {
    let none = CaptClusterStatus::default();
    let before = object.status.as_ref().unwrap_or(&none);
    for (type_, phase) in PHASES {
        let was = conditions::find(&before.conditions, type_).filter(|was| was.status == Status::True.as_str());
        if let Some(was) = was.filter(|_| !conditions::is_true(&after.conditions, type_)) {
            lives.left_phase(KIND, phase, now.duration_since(was.last_transition_time.0));
        }
    }
    let created = object.metadata.creation_timestamp.as_ref();
    if let Some(created) = created.filter(|_| before.ready != Some(true) && after.ready == Some(true)) {
        lives.became_ready(KIND, now.duration_since(created.0));
    }
    for (type_, reason, deadline) in [
        (VpcReady::TYPE, VpcReady::VpcReadyTimeout.as_str(), "vpcReadyTimeout"),
        (VpcReady::TYPE, VpcReady::SecretTimeout.as_str(), "secretTimeout"),
        (Deleting::TYPE, Deleting::DeletionTimeout.as_str(), "deletionTimeout"),
    ] {
        let says = |told: &[Condition]| conditions::find(told, type_).is_some_and(|told| told.reason == reason);
        if says(&after.conditions) && !says(&before.conditions) {
            lives.missed_deadline(KIND, deadline);
        }
    }
}

/// Counts the end of a deletion.
pub(crate) fn gone(lives: &Lives, object: &CaptCluster, now: Timestamp) {
    if let Some(asked) = &object.metadata.deletion_timestamp {
        lives.left_phase(KIND, "Deleting", now.duration_since(asked.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use capt_runtime::metrics::Metrics;
    use serde_json::{Value, json};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn status(ready: bool, told: &[(&str, &str, &str, i64)]) -> Value {
        let conditions: Vec<_> = told
            .iter()
            .map(|(type_, status, reason, since)| {
                json!({"type": type_, "status": status, "reason": reason, "message": "", "lastTransitionTime": at(*since).to_string()})
            })
            .collect();
        json!({"ready": ready, "conditions": conditions})
    }

    #[test]
    fn a_life_is_counted_as_it_goes() {
        let metrics = Metrics::new("test").unwrap();
        let lives = metrics.lives();
        let creating = status(
            false,
            &[
                ("VPCCreating", "True", "VPCCreating", 10),
                ("VPCReady", "False", "VPCCreating", 10),
            ],
        );
        let late = status(
            false,
            &[
                ("VPCCreating", "False", "VPCCreationFailed", 40),
                ("VPCReady", "False", "VPCReadyTimeout", 10),
                ("VPCFailed", "True", "VPCReadyTimeout", 40),
            ],
        );
        let ready = status(
            true,
            &[
                ("VPCCreating", "False", "VPCCreated", 40),
                ("VPCReady", "True", "VPCCreated", 60),
                ("VPCFailed", "False", "NoFailure", 60),
            ],
        );
        let mut object: CaptCluster = serde_json::from_value(json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "CAPTCluster",
            "metadata": {"name": "net", "creationTimestamp": at(0).to_string(), "deletionTimestamp": at(100).to_string()},
            "spec": {"region": "eu-west-1"},
        }))
        .unwrap();
        for (second, told) in [
            (10, creating),
            (40, late.clone()),
            (50, late),
            (60, ready.clone()),
            (70, ready),
        ] {
            let told: CaptClusterStatus = serde_json::from_value(told).unwrap();
            reported(&lives, &object, &told, at(second));
            object.status = Some(told);
        }
        gone(&lives, &object, at(107));
        let text = metrics.render().unwrap();
        for line in [
            r#"capt_phase_duration_seconds_sum{kind="CAPTCluster",phase="Creating"} 30"#,
            r#"capt_phase_duration_seconds_sum{kind="CAPTCluster",phase="Failed"} 20"#,
            r#"capt_phase_duration_seconds_sum{kind="CAPTCluster",phase="Deleting"} 7"#,
            r#"capt_ready_duration_seconds_sum{kind="CAPTCluster"} 60"#,
            r#"capt_ready_duration_seconds_count{kind="CAPTCluster"} 1"#,
            r#"capt_deadlines_exceeded_total{deadline="vpcReadyTimeout",kind="CAPTCluster"} 1"#,
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        assert!(!text.contains(r#"phase="Ready""#), "it has not left that phase");
    }
}
