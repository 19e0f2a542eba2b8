//! What changed between two reports, told once: a line in the log and an Event per condition that turned.
//!
//! Every controller calls this after its status was written, so that users read the same story in the log, in the Events
//! and in the conditions.

use capt_api::conditions::find;
use capt_api::reasons::{self, Weight};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::events::{Events, Severity};

/// A condition whose status or reason changed.
#[derive(Debug, Clone, PartialEq)]
pub struct Transition<'a> {
    pub condition: &'a Condition,
    /// Status and reason before; `None` when the condition is new.
    pub from: Option<(&'a str, &'a str)>,
}

/// The conditions of `after` whose status or reason differs from what stood in `before`. A changed message alone is no
/// transition.
pub fn transitions<'a>(before: &'a [Condition], after: &'a [Condition]) -> Vec<Transition<'a>> {
    after
        .iter()
        .filter_map(|condition| {
            let from = find(before, &condition.type_).map(|old| (old.status.as_str(), old.reason.as_str()));
            let turned = from != Some((condition.status.as_str(), condition.reason.as_str()));
            turned.then_some(Transition { condition, from })
        })
        .collect()
}

/// Logs every transition, and publishes an Event for those of the conditions named in `told`: a step of an object usually
/// turns several conditions at once, and people want to read of it once. Troubles are warnings that say what to do, and
/// are counted.
pub fn announce(events: &Events, about: &ObjectReference, before: &[Condition], after: &[Condition], told: &[&str]) {
    for transition in transitions(before, after) {
        let condition = transition.condition;
        // The first word of a condition is news only when it says that something is so.
        if transition.from.is_none() && condition.status == "False" && condition.message.is_empty() {
            continue;
        }
        let from = transition
            .from
            .map_or_else(|| "-".to_owned(), |(status, reason)| format!("{status}/{reason}"));
        tracing::info!(
            condition = condition.type_,
            from,
            to = format!("{}/{}", condition.status, condition.reason),
            reason = condition.reason,
            message = condition.message,
            "transition"
        );
        if told.contains(&condition.type_.as_str()) {
            let meaning = reasons::meaning(&condition.reason).filter(|meaning| meaning.weight == Weight::Trouble);
            let (severity, note) = match meaning {
                None => (Severity::Normal, condition.message.clone()),
                Some(meaning) => {
                    events.count_failure(about.kind.as_deref().unwrap_or_default(), meaning.word);
                    (Severity::Warning, format!("{} ({})", condition.message, meaning.remedy))
                }
            };
            events.publish(about.clone(), severity, &condition.reason, &condition.type_, &note);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Condition {
        Condition {
            type_: type_.into(),
            status: status.into(),
            reason: reason.into(),
            message: message.into(),
            last_transition_time: Time(jiff::Timestamp::UNIX_EPOCH),
            observed_generation: None,
        }
    }

    #[test]
    fn status_and_reason_make_a_transition_and_a_message_does_not() {
        let before = [
            condition("Ready", "False", "Creating", "a"),
            condition("Failed", "False", "NoFailure", ""),
        ];
        let after = [
            condition("Ready", "False", "WaitingForSecrets", "a"),
            condition("Failed", "False", "NoFailure", "changed"),
            condition("Paused", "False", "NotPaused", ""),
        ];
        let told: Vec<_> = transitions(&before, &after)
            .into_iter()
            .map(|t| (t.condition.type_.as_str(), t.from))
            .collect();
        assert_eq!(told, [("Ready", Some(("False", "Creating"))), ("Paused", None)]);
    }
}
