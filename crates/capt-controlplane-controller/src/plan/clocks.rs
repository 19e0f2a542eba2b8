//! How long something has been waited for, and when that is too long.
//!
//! The beginning of each wait stands in `status.waitingSince`, so that neither a restart nor a change of leader gives it
//! more time.

use capt_api::conditions::control_plane::Paused;
use capt_api::conditions::{self, Reason, whole_seconds};
use capt_api::controlplane::ControlPlaneWaits;
use capt_runtime::controller::Wake;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::observe::Observed;

/// Something that is waited for, in the order in which an expired one is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    Vpc,
    ControlPlane,
    Workspace,
    Secret,
    Deletion,
}

/// The waits after this pass.
#[derive(Debug, PartialEq)]
pub(super) struct Clocks {
    pub(super) since: Option<ControlPlaneWaits>,
    /// The first that took too long.
    pub(super) expired: Option<Wait>,
    /// The next deadline.
    pub(super) wake: Wake,
}

impl Wait {
    const ALL: [Self; 5] = [
        Self::Vpc,
        Self::ControlPlane,
        Self::Workspace,
        Self::Secret,
        Self::Deletion,
    ];

    fn since(self, waits: &mut ControlPlaneWaits) -> &mut Option<Time> {
        match self {
            Self::Vpc => &mut waits.vpc,
            Self::ControlPlane => &mut waits.control_plane,
            Self::Workspace => &mut waits.workspace,
            Self::Secret => &mut waits.secret,
            Self::Deletion => &mut waits.deletion,
        }
    }

    /// The field that sets the limit, as users write it. A Workspace has its owner's.
    pub(super) const fn limit_name(self) -> &'static str {
        match self {
            Self::Vpc => "vpcReadyTimeout",
            Self::ControlPlane | Self::Workspace => "controlPlaneTimeout",
            Self::Secret => "secretTimeout",
            Self::Deletion => "deletionTimeout",
        }
    }

    fn limit(self, seen: &Observed) -> SignedDuration {
        let given = seen
            .control_plane
            .spec
            .control_plane_config
            .timeouts
            .clone()
            .unwrap_or_default();
        let (minutes, flag) = match self {
            Self::Vpc => (given.vpc_ready_timeout, seen.settings.vpc_ready_timeout),
            Self::ControlPlane | Self::Workspace => (given.control_plane_timeout, seen.settings.control_plane_timeout),
            Self::Secret => (given.secret_timeout, seen.settings.secret_timeout),
            Self::Deletion => (given.deletion_timeout, seen.settings.deletion_timeout),
        };
        minutes
            .filter(|minutes| *minutes > 0)
            .map_or(flag, |minutes| SignedDuration::from_mins(minutes.into()))
    }
}

/// Whether the last report was that of a paused object.
pub(super) fn resumed(seen: &Observed) -> bool {
    seen.control_plane
        .status
        .as_ref()
        .is_some_and(|status| conditions::is_true(&status.conditions, Paused::TYPE))
}

/// Lets the clocks of `running` run and stops all others. A wait that is new begins at `begin`; and so does every wait when
/// the wish is new or a pause has ended, because the time before was spent on something else.
pub(super) fn run(seen: &Observed, running: &[Wait], begin: Timestamp, now: Timestamp) -> Clocks {
    let status = seen.control_plane.status.as_ref();
    let mut before = status
        .and_then(|status| status.waiting_since.clone())
        .unwrap_or_default();
    let anew = resumed(seen) || status.and_then(|status| status.observed_generation) != Some(seen.generation());
    if anew {
        before = ControlPlaneWaits::default();
    }
    since(seen, running, before, begin, now)
}

/// Lets the clocks of `running` begin now, whatever was waited for before.
pub(super) fn begin(seen: &Observed, running: &[Wait], now: Timestamp) -> Clocks {
    since(seen, running, ControlPlaneWaits::default(), now, now)
}

fn since(seen: &Observed, running: &[Wait], mut before: ControlPlaneWaits, begin: Timestamp, now: Timestamp) -> Clocks {
    let mut clocks = Clocks {
        since: None,
        expired: None,
        wake: Wake::OnEvent,
    };
    for wait in Wait::ALL.into_iter().filter(|wait| running.contains(wait)) {
        let known = wait.since(&mut before).take();
        let since = known.unwrap_or_else(|| Time(whole_seconds(begin)));
        // A limit beyond the end of time never ends.
        if let Ok(deadline) = since.0.checked_add(wait.limit(seen)) {
            if deadline <= now {
                clocks.expired = clocks.expired.or(Some(wait));
            } else {
                clocks.wake = earlier(clocks.wake, deadline);
            }
        }
        *wait.since(clocks.since.get_or_insert_default()) = Some(since);
    }
    clocks
}

/// The wake-up that comes first.
pub(super) fn earlier(wake: Wake, deadline: Timestamp) -> Wake {
    match wake {
        Wake::At(other) => Wake::At(other.min(deadline)),
        Wake::OnEvent => Wake::At(deadline),
    }
}
