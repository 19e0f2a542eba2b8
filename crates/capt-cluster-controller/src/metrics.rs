//! How CAPTClusters fare, in numbers: how long each phase took, when they became ready, which deadlines passed.

use capt_api::CaptCluster;
use capt_api::cluster::CaptClusterStatus;
use capt_api::conditions::cluster::{Deleting, Ready, VpcCreating, VpcFailed, VpcReady};
use capt_api::conditions::{self, Reason, Status};
use capt_runtime::census::{Census, PENDING};
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

/// What tells that a deadline has passed: the condition, its reason, and the name by which users set the deadline.
fn deadlines() -> [(&'static str, &'static str, &'static str); 3] {
    [
        (VpcReady::TYPE, VpcReady::VpcReadyTimeout.as_str(), "vpcReadyTimeout"),
        (VpcReady::TYPE, VpcReady::SecretTimeout.as_str(), "secretTimeout"),
        (Deleting::TYPE, Deleting::DeletionTimeout.as_str(), "deletionTimeout"),
    ]
}

/// What is counted from the start.
pub(crate) fn register(lives: &Lives) -> Census<CaptCluster> {
    lives.expect_deadlines(KIND, &deadlines().map(|(_, _, deadline)| deadline));
    Census::new(KIND, told)
        .troubles_of::<Ready>()
        .troubles_of::<VpcReady>()
        .troubles_of::<VpcFailed>()
        .troubles_of::<Deleting>()
        .phases(&["Creating", "Ready", "Failed", "Deleting", PENDING], phase)
}

fn told(object: &CaptCluster) -> &[Condition] {
    object.status.as_ref().map_or(&[], |status| &status.conditions)
}

fn phase(object: &CaptCluster) -> &'static str {
    let is_true = |type_| conditions::is_true(told(object), type_);
    match object.metadata.deletion_timestamp {
        Some(_) => "Deleting",
        None if is_true(VpcFailed::TYPE) => "Failed",
        None if is_true(VpcReady::TYPE) => "Ready",
        None if conditions::find(told(object), VpcReady::TYPE).is_some() => "Creating",
        None => PENDING,
    }
}

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
    for (type_, reason, deadline) in deadlines() {
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
    fn every_object_is_in_one_phase() {
        let object = |told: Value, deleting: bool| -> CaptCluster {
            let mut object: CaptCluster = serde_json::from_value(json!({
                "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "CAPTCluster", "metadata": {"name": "net"},
                "spec": {"region": "eu-west-1", "existingVpcId": "vpc-1"}, "status": told,
            }))
            .unwrap();
            object.metadata.deletion_timestamp =
                deleting.then(|| serde_json::from_value(json!(at(0).to_string())).unwrap());
            object
        };
        let ready = status(
            true,
            &[
                ("VPCReady", "True", "VPCCreated", 0),
                ("VPCFailed", "False", "NoFailure", 0),
            ],
        );
        let broken = status(
            true,
            &[
                ("VPCReady", "False", "StateLocked", 0),
                ("VPCFailed", "True", "StateLocked", 0),
            ],
        );
        let creating = status(false, &[("VPCReady", "False", "VPCCreating", 0)]);
        for (told, deleting, expected) in [
            (json!({}), false, PENDING),
            (creating, false, "Creating"),
            (broken, false, "Failed"),
            (ready.clone(), false, "Ready"),
            (ready, true, "Deleting"),
        ] {
            assert_eq!(phase(&object(told, deleting)), expected);
        }
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
