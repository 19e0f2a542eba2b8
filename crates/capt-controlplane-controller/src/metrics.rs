//! How CAPTControlPlanes fare, in numbers: how long each phase took, when they became ready, which deadlines passed.

use capt_api::CaptControlPlane;
use capt_api::conditions::control_plane::{Deleting, Failed, Ready};
use capt_api::conditions::{self, Reason};
use capt_api::controlplane::{CaptControlPlaneStatus, Phase};
use capt_runtime::census::{Census, PENDING};
use capt_runtime::metrics::Lives;
use jiff::Timestamp;

const KIND: &str = "CAPTControlPlane";

/// What tells that a deadline has passed: the condition, its reason, and the name by which users set the deadline.
fn deadlines() -> [(&'static str, &'static str, &'static str); 4] {
    [
        (Ready::TYPE, Ready::VpcReadyTimeout.as_str(), "vpcReadyTimeout"),
        (Ready::TYPE, Ready::ControlPlaneTimeout.as_str(), "controlPlaneTimeout"),
        (Ready::TYPE, Ready::SecretTimeout.as_str(), "secretTimeout"),
        (Deleting::TYPE, Deleting::DeletionTimeout.as_str(), "deletionTimeout"),
    ]
}

const PHASES: &[&str] = &[
    Phase::Creating.as_str(),
    Phase::Ready.as_str(),
    Phase::Failed.as_str(),
    Phase::Deleting.as_str(),
    PENDING,
];

/// What is counted from the start.
pub(crate) fn register(lives: &Lives) -> Census<CaptControlPlane> {
    lives.expect_deadlines(KIND, &deadlines().map(|(_, _, deadline)| deadline));
    Census::new(KIND, |object: &CaptControlPlane| {
        object.status.as_ref().map_or(&[], |status| &status.conditions)
    })
    .troubles_of::<Ready>()
    .troubles_of::<Deleting>()
    .phases(PHASES, |object| {
        let told = object.status.as_ref().and_then(|status| status.phase);
        match object.metadata.deletion_timestamp {
            Some(_) => Phase::Deleting.as_str(),
            None => told.map_or(PENDING, Phase::as_str),
        }
    })
}

/// Counts what changed with a report that was written.
pub(crate) fn reported(lives: &Lives, object: &CaptControlPlane, after: &CaptControlPlaneStatus, now: Timestamp) {
    let none = CaptControlPlaneStatus::default();
    let before = object.status.as_ref().unwrap_or(&none);
    if let Some((phase, since)) = phase_since(before).filter(|(phase, _)| after.phase != Some(*phase)) {
        lives.left_phase(KIND, phase.as_str(), now.duration_since(since));
    }
    let created = object.metadata.creation_timestamp.as_ref();
    if let Some(created) = created.filter(|_| before.initialized != Some(true) && after.initialized == Some(true)) {
        lives.became_ready(KIND, now.duration_since(created.0));
    }
    if let Some(deadline) = missed(after).filter(|deadline| missed(before) != Some(*deadline)) {
        lives.missed_deadline(KIND, deadline);
    }
}

/// Counts the end of a deletion.
pub(crate) fn gone(lives: &Lives, object: &CaptControlPlane, now: Timestamp) {
    if let Some(asked) = &object.metadata.deletion_timestamp {
        lives.left_phase(KIND, Phase::Deleting.as_str(), now.duration_since(asked.0));
    }
}

/// The phase, and since when: that of the condition which brought it. `Creating` is where neither readiness nor a failure
/// is, and so began when the last of the two ended.
fn phase_since(status: &CaptControlPlaneStatus) -> Option<(Phase, Timestamp)> {
    let turned = |type_: &str| conditions::find(&status.conditions, type_).map(|told| told.last_transition_time.0);
    let phase = status.phase?;
    let since = match phase {
        Phase::Creating => turned(Ready::TYPE).max(turned(Failed::TYPE)),
        Phase::Ready => turned(Ready::TYPE),
        Phase::Failed => turned(Failed::TYPE),
        // Counted when the object goes.
        Phase::Deleting => None,
    };
    Some((phase, since?))
}

/// The deadline that the status tells of, by the name that users set it with.
fn missed(status: &CaptControlPlaneStatus) -> Option<&'static str> {
    deadlines().into_iter().find_map(|(type_, reason, deadline)| {
        let condition = conditions::find(&status.conditions, type_)?;
        (condition.reason == reason).then_some(deadline)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use capt_runtime::metrics::Metrics;
    use serde_json::{Value, json};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    /// Phase, initialized, and type, status, reason and time of the conditions.
    fn status(phase: &str, initialized: bool, told: &[(&str, &str, &str, i64)]) -> Value {
        let conditions: Vec<_> = told
            .iter()
            .map(|(type_, status, reason, since)| {
                json!({"type": type_, "status": status, "reason": reason, "message": "", "lastTransitionTime": at(*since).to_string()})
            })
            .collect();
        json!({"phase": phase, "initialized": initialized, "conditions": conditions})
    }

    #[test]
    fn every_phase_and_every_deadline_is_known_from_the_start() {
        let metrics = Metrics::new("test").unwrap();
        let _census = register(&metrics.lives());
        let text = metrics.render().unwrap();
        for deadline in [
            "vpcReadyTimeout",
            "controlPlaneTimeout",
            "secretTimeout",
            "deletionTimeout",
        ] {
            let line = format!(r#"capt_deadlines_exceeded_total{{deadline="{deadline}",kind="CAPTControlPlane"}} 0"#);
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
        use capt_api::machine::Place;
        assert_eq!(PHASES.len(), <Phase as Place>::ALL.len() + 1);
    }

    #[test]
    fn a_life_is_counted_as_it_goes() {
        let metrics = Metrics::new("test").unwrap();
        let lives = metrics.lives();
        let failed = |reason, since| ("Failed", "True", reason, since);
        let sound = |since| ("Failed", "False", "NoFailure", since);
        let late = status(
            "Failed",
            false,
            &[
                ("Ready", "False", "ControlPlaneTimeout", 10),
                failed("ControlPlaneTimeout", 40),
            ],
        );
        let ready = status("Ready", true, &[("Ready", "True", "ControlPlaneReady", 60), sound(60)]);
        let deleting = status(
            "Deleting",
            true,
            &[
                ("Ready", "False", "Deleting", 100),
                sound(90),
                ("Deleting", "True", "DeletionTimeout", 100),
            ],
        );
        let mut object: CaptControlPlane = serde_json::from_value(json!({
            "apiVersion": "controlplane.cluster.x-k8s.io/v1beta1", "kind": "CAPTControlPlane",
            "metadata": {"name": "cp", "creationTimestamp": at(0).to_string(), "deletionTimestamp": at(100).to_string()},
            "spec": {"version": "v1.31.0", "workspaceTemplateRef": {"name": "eks"}, "controlPlaneConfig": {"region": "eu-west-1"}},
        }))
        .unwrap();
        for (second, told) in [
            (
                10,
                status("Creating", false, &[("Ready", "False", "WaitingForVPC", 10), sound(10)]),
            ),
            (
                15,
                status("Creating", false, &[("Ready", "False", "Creating", 10), sound(10)]),
            ),
            (40, late.clone()),
            (50, late),
            (60, ready.clone()),
            (70, ready),
            (
                75,
                status("Creating", true, &[("Ready", "False", "Updating", 75), sound(60)]),
            ),
            (
                80,
                status(
                    "Failed",
                    true,
                    &[("Ready", "False", "TerraformFailed", 75), failed("TerraformFailed", 80)],
                ),
            ),
            (
                90,
                status("Creating", true, &[("Ready", "False", "Updating", 75), sound(90)]),
            ),
            (100, deleting.clone()),
            (105, deleting),
        ] {
            let told: CaptControlPlaneStatus = serde_json::from_value(told).unwrap();
            reported(&lives, &object, &told, at(second));
            object.status = Some(told);
        }
        gone(&lives, &object, at(107));
        let text = metrics.render().unwrap();
        for line in [
            // 10 to 40, 75 to 80, 90 to 100.
            r#"capt_phase_duration_seconds_sum{kind="CAPTControlPlane",phase="Creating"} 45"#,
            r#"capt_phase_duration_seconds_count{kind="CAPTControlPlane",phase="Creating"} 3"#,
            r#"capt_phase_duration_seconds_sum{kind="CAPTControlPlane",phase="Failed"} 30"#,
            r#"capt_phase_duration_seconds_sum{kind="CAPTControlPlane",phase="Ready"} 15"#,
            r#"capt_phase_duration_seconds_sum{kind="CAPTControlPlane",phase="Deleting"} 7"#,
            r#"capt_phase_duration_seconds_count{kind="CAPTControlPlane",phase="Deleting"} 1"#,
            r#"capt_ready_duration_seconds_sum{kind="CAPTControlPlane"} 60"#,
            r#"capt_ready_duration_seconds_count{kind="CAPTControlPlane"} 1"#,
            r#"capt_deadlines_exceeded_total{deadline="controlPlaneTimeout",kind="CAPTControlPlane"} 1"#,
            r#"capt_deadlines_exceeded_total{deadline="deletionTimeout",kind="CAPTControlPlane"} 1"#,
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
