//! How applies fare, in numbers: how long each phase took, when they became ready, which deadlines passed.

use capt_api::WorkspaceTemplateApply;
use capt_api::conditions::workspace_apply::{Deleting, Ready, Waiting};
use capt_api::conditions::{self, Reason, Status};
use capt_api::workspace::WorkspaceTemplateApplyStatus;
use capt_runtime::census::{Census, PENDING};
use capt_runtime::metrics::Lives;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

const KIND: &str = "WorkspaceTemplateApply";

/// The provider has not begun yet: it has too much to do, or does not run.
const UNHEARD: &str = "WaitingForProvider";

/// An apply is in a phase while the condition has this status.
const PHASES: [(&str, Status, &str); 3] = [
    (Waiting::TYPE, Status::True, "Waiting"),
    (Ready::TYPE, Status::False, "Applying"),
    (Ready::TYPE, Status::True, "Ready"),
];

const DEADLINE: &str = "deletionTimeout";

/// What is counted from the start.
pub(crate) fn register(lives: &Lives) -> Census<WorkspaceTemplateApply> {
    lives.expect_deadlines(KIND, &[DEADLINE]);
    Census::new(KIND, told)
        .troubles_of::<Ready>()
        .troubles_of::<Deleting>()
        .phases(&["Waiting", UNHEARD, "Applying", "Ready", "Deleting", PENDING], phase)
}

fn told(apply: &WorkspaceTemplateApply) -> &[Condition] {
    apply.status.as_ref().map_or(&[], |status| &status.conditions)
}

fn phase(apply: &WorkspaceTemplateApply) -> &'static str {
    let is_true = |type_| conditions::is_true(told(apply), type_);
    match apply.metadata.deletion_timestamp {
        Some(_) => "Deleting",
        None if is_true(Ready::TYPE) => "Ready",
        None if is_true(Waiting::TYPE) => "Waiting",
        None if is_unheard(told(apply)) => UNHEARD,
        None if conditions::find(told(apply), Ready::TYPE).is_some() => "Applying",
        None => PENDING,
    }
}

fn is_unheard(told: &[Condition]) -> bool {
    let ready = conditions::find(told, Ready::TYPE);
    ready.is_some_and(|ready| ready.reason == Ready::WaitingForProvider.as_str())
}

/// Counts what changed with a report that was written.
pub(crate) fn reported(
    lives: &Lives,
    apply: &WorkspaceTemplateApply,
    after: &WorkspaceTemplateApplyStatus,
    now: Timestamp,
) {
    let none = WorkspaceTemplateApplyStatus::default();
    let before = apply.status.as_ref().unwrap_or(&none);
    for (type_, status, phase) in PHASES {
        let is_in = |told: &&Condition| told.status == status.as_str();
        let was = conditions::find(&before.conditions, type_).filter(is_in);
        let is = conditions::find(&after.conditions, type_).filter(is_in);
        // What is being deleted does not end its last phase by getting ready, or by being ready no longer.
        if let (Some(was), None, None) = (was, is, &apply.metadata.deletion_timestamp) {
            lives.left_phase(KIND, phase, now.duration_since(was.last_transition_time.0));
        }
    }
    let is_first = before.last_applied_time.is_none() && after.last_applied_time.is_some();
    if let Some(created) = apply.metadata.creation_timestamp.as_ref().filter(|_| is_first) {
        lives.became_ready(KIND, now.duration_since(created.0));
    }
    let is_late = |told: &[Condition]| {
        conditions::find(told, Deleting::TYPE).is_some_and(|told| told.reason == Deleting::DeletionTimeout.as_str())
    };
    if is_late(&after.conditions) && !is_late(&before.conditions) {
        lives.missed_deadline(KIND, DEADLINE);
    }
}

/// Counts the end of a deletion.
pub(crate) fn gone(lives: &Lives, apply: &WorkspaceTemplateApply, now: Timestamp) {
    if let Some(asked) = &apply.metadata.deletion_timestamp {
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

    fn status(told: &[(&str, &str, &str, i64)], applied: Option<i64>) -> Value {
        let conditions: Vec<_> = told
            .iter()
            .map(|(type_, status, reason, since)| {
                json!({"type": type_, "status": status, "reason": reason, "message": "", "lastTransitionTime": at(*since).to_string()})
            })
            .collect();
        json!({"conditions": conditions, "lastAppliedTime": applied.map(|second| at(second).to_string())})
    }

    #[test]
    fn every_apply_is_in_one_phase() {
        for (told, deleting, expected) in [
            (&[][..], false, PENDING),
            (
                &[
                    ("Waiting", "True", "WaitingForTemplate", 0),
                    ("Ready", "False", "NotApplied", 0),
                ],
                false,
                "Waiting",
            ),
            (
                &[
                    ("Waiting", "False", "NotWaiting", 0),
                    ("Ready", "False", "StateLocked", 0),
                ],
                false,
                "Applying",
            ),
            // A template that goes later does not take away what is there.
            (
                &[
                    ("Waiting", "True", "WaitingForTemplate", 0),
                    ("Ready", "True", "Available", 0),
                ],
                false,
                "Ready",
            ),
            (&[("Ready", "True", "Available", 0)], true, "Deleting"),
        ] {
            let mut apply = WorkspaceTemplateApply::new("a", Default::default());
            apply.status = serde_json::from_value(status(told, None)).unwrap();
            apply.metadata.deletion_timestamp =
                deleting.then(|| serde_json::from_value(json!(at(0).to_string())).unwrap());
            assert_eq!(phase(&apply), expected);
        }
    }

    #[test]
    fn a_life_is_counted_as_it_goes() {
        let metrics = Metrics::new("test").unwrap();
        let lives = metrics.lives();
        let mut apply = WorkspaceTemplateApply::new("a", Default::default());
        apply.metadata.creation_timestamp = serde_json::from_value(json!(at(0).to_string())).unwrap();
        let waiting = status(
            &[
                ("Waiting", "True", "WaitingForTemplate", 5),
                ("Ready", "False", "NotApplied", 5),
            ],
            None,
        );
        let applying = status(
            &[
                ("Waiting", "False", "NotWaiting", 20),
                ("Ready", "False", "Applying", 5),
            ],
            None,
        );
        let ready = status(
            &[
                ("Waiting", "False", "NotWaiting", 20),
                ("Ready", "True", "Available", 50),
            ],
            Some(50),
        );
        let broken = status(
            &[
                ("Waiting", "False", "NotWaiting", 20),
                ("Ready", "False", "TerraformFailed", 80),
            ],
            Some(50),
        );
        let late = status(
            &[
                ("Ready", "False", "Deleting", 80),
                ("Deleting", "True", "DeletionTimeout", 90),
            ],
            Some(50),
        );
        for (second, told) in [
            (5, waiting),
            (20, applying),
            (50, ready.clone()),
            (60, ready),
            (80, broken),
        ] {
            let told: WorkspaceTemplateApplyStatus = serde_json::from_value(told).unwrap();
            reported(&lives, &apply, &told, at(second));
            apply.status = Some(told);
        }
        apply.metadata.deletion_timestamp = serde_json::from_value(json!(at(85).to_string())).unwrap();
        let late: WorkspaceTemplateApplyStatus = serde_json::from_value(late).unwrap();
        reported(&lives, &apply, &late, at(90));
        gone(&lives, &apply, at(100));
        let text = metrics.render().unwrap();
        for line in [
            r#"capt_phase_duration_seconds_sum{kind="WorkspaceTemplateApply",phase="Waiting"} 15"#,
            r#"capt_phase_duration_seconds_sum{kind="WorkspaceTemplateApply",phase="Applying"} 45"#,
            r#"capt_phase_duration_seconds_sum{kind="WorkspaceTemplateApply",phase="Ready"} 30"#,
            r#"capt_phase_duration_seconds_sum{kind="WorkspaceTemplateApply",phase="Deleting"} 15"#,
            r#"capt_ready_duration_seconds_sum{kind="WorkspaceTemplateApply"} 50"#,
            r#"capt_ready_duration_seconds_count{kind="WorkspaceTemplateApply"} 1"#,
            r#"capt_deadlines_exceeded_total{deadline="deletionTimeout",kind="WorkspaceTemplateApply"} 1"#,
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
