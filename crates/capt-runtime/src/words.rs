//! What a controller says about an object that others write to as well, and when.
//!
//! Every word is a write, and every write a race for the other controllers of the object. So work never waits, and words
//! do: failures and ends are told at once, an ordinary wait once and in turn, what passes within moments not at all.

use capt_api::CaptControlPlane;
use capt_api::conditions::{Reason, State};
use capt_api::controlplane::CaptControlPlaneStatus;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Resource;

use crate::apply::{Objects, Planned};
use crate::controller::{Wake, lasts_at, settles_at};
use crate::error::Failure;
use crate::events::Events;
use crate::transition::announce;

/// When something is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// A failure or an end.
    AtOnce,
    /// The ordinary wait: after the first word of the controller before this one, so that the two do not race for theirs.
    InTurn,
    /// What usually passes within moments, and began at this time: in turn, and only when it lasts.
    Lasting(Option<Timestamp>),
    /// What a deletion that began at this time has undone: only when that deletion lasts.
    Undone(Option<Timestamp>),
}

/// Condition Deleting tells what a deletion waits for. That something of the object is gone already is worth one more write
/// only when there is time to read it.
const LINGERING: SignedDuration = SignedDuration::from_mins(1);

impl When {
    /// When to look again if it is not the time to speak; `None` if it is.
    pub fn silence(self, is_our_turn: bool, now: Timestamp) -> Option<Wake> {
        let settles_at = match self {
            Self::AtOnce => return None,
            Self::InTurn => None,
            Self::Lasting(since) => settles_at(since, now),
            Self::Undone(since) => lasts_at(since, LINGERING, now),
        };
        match settles_at {
            Some(at) => Some(Wake::At(at)),
            // The other's first word is an event.
            None if !is_our_turn => Some(Wake::OnEvent),
            None => None,
        }
    }
}

/// The generation to report with a wait: while the same wait is only repeated, that of its first time. A new generation
/// alone is no reason to write, least of all when one of the controllers that are waited for raised it.
pub fn generation_of_wait<R: Reason>(said: Option<&Condition>, wait: &State<R>, current: i64) -> i64 {
    let is_repeated = |said: &&Condition| {
        (said.status.as_str(), said.reason.as_str(), said.message.as_str())
            == (wait.status.as_str(), wait.reason.as_str(), wait.message.as_str())
    };
    let repeated = said.filter(is_repeated).and_then(|said| said.observed_generation);
    repeated.unwrap_or(current)
}

/// Writes a status of which condition `told` is the news, and tells people when it turned.
pub async fn tell(
    control_planes: &Objects<CaptControlPlane>,
    events: &Events,
    control_plane: &CaptControlPlane,
    status: &CaptControlPlaneStatus,
    told: &str,
    why: &str,
) -> Result<(), Failure> {
    let planned = Planned::new(control_plane)?;
    if control_planes.apply_status(&planned, status, why).await?.is_unchanged() {
        return Ok(());
    }
    let before = control_plane
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.conditions);
    announce(
        events,
        &control_plane.object_ref(&()),
        before,
        &status.conditions,
        &[told],
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use capt_api::conditions::endpoint::EndpointReady;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    #[test]
    fn silence_ends_with_time_and_turn() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let young = When::Lasting(Some(at(99)));
        let old = When::Lasting(Some(at(90)));
        for (when, is_our_turn, silence) in [
            (When::AtOnce, false, None),
            (When::InTurn, true, None),
            (When::InTurn, false, Some(Wake::OnEvent)),
            (young, true, Some(Wake::At(at(104)))),
            (young, false, Some(Wake::At(at(104)))),
            (old, true, None),
            (old, false, Some(Wake::OnEvent)),
            (When::Lasting(None), true, None),
            (When::Undone(Some(at(41))), true, Some(Wake::At(at(101)))),
            (When::Undone(Some(at(40))), true, None),
            (When::Undone(None), true, None),
        ] {
            assert_eq!(when.silence(is_our_turn, at(100)), silence, "{when:?}, {is_our_turn}");
        }
    }

    #[test]
    fn a_wait_that_is_only_repeated_keeps_its_generation() {
        let wait = State::no(EndpointReady::WaitingForWorkspace, "for it");
        let said = |reason: &str, message: &str| Condition {
            type_: EndpointReady::TYPE.into(),
            status: "False".into(),
            reason: reason.into(),
            message: message.into(),
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
            observed_generation: Some(1),
        };
        for (said, expected) in [
            (None, 7),
            (Some(said("WaitingForWorkspace", "for it")), 1),
            (Some(said("WaitingForWorkspace", "for another")), 7),
            (Some(said("EndpointMissing", "for it")), 7),
        ] {
            assert_eq!(generation_of_wait(said.as_ref(), &wait, 7), expected, "{said:?}");
        }
    }
}
