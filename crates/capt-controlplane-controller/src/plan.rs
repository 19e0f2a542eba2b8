//! From what is known to what is done next: a pure function without client, clock and randomness.
//!
//! A plan has one step and the whole status, or none. Most steps are one write; a crash between step and status, or between two
//! passes, is the same as a fresh start. Before a step that cannot be undone the plan asks for a live read
//! ([`Step::Look`]) and is made again with the answer.

mod clocks;
mod deletion;
mod status;
mod upkeep;

use std::collections::BTreeMap;

use capt_api::WorkspaceTemplateApply;
use capt_api::controlplane::CaptControlPlaneStatus;
use capt_api::external::cluster::ClusterFailure;
use capt_api::workspace::WorkspaceTemplateApplySpec;
use capt_runtime::controller::Wake;
use jiff::Timestamp;

pub(crate) use deletion::FINALIZERS;

use crate::failure;
use crate::observe::{Look, Observed, Owner};

/// What a pass does.
#[derive(Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) step: Step,
    /// Everything that this controller says of the object; `None` leaves it as it stands: it is not ours to speak of, or
    /// what would be said may pass within moments.
    pub(crate) status: Option<CaptControlPlaneStatus>,
    pub(crate) wake: Wake,
}

/// The one thing that is done before the status is written.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    Nothing,
    /// Read this live, then plan again. Never follows an answered look.
    Look(Look),
    AddFinalizer,
    CreateApply(Box<WorkspaceTemplateApply>),
    /// Put the hold (back) on the apply, so that nobody destroys a cluster that is in use.
    HoldApply,
    /// Put the owner's marks (back) on the apply.
    AdoptApply,
    ChangeApply {
        spec: Box<WorkspaceTemplateApplySpec>,
        labels: BTreeMap<&'static str, Option<String>>,
        /// Which variables are the network's; `None` when that is written down already.
        given: Option<String>,
    },
    ClearClusterFailure(ClusterFailure),
    /// Nobody else would: its Cluster goes and names another control plane.
    DeleteSelf,
    DeleteApply,
    /// From here on Terraform may destroy the cluster.
    ReleaseApply,
    /// The object goes.
    DropFinalizers,
}

impl Step {
    /// Whether nothing is said beside the step: the event of its own write brings the next pass, which knows more; or there
    /// is nothing left to speak of.
    fn is_news_enough(&self) -> bool {
        matches!(
            self,
            Self::AddFinalizer | Self::CreateApply(_) | Self::DeleteSelf | Self::DropFinalizers
        )
    }
}

impl Plan {
    fn leave_alone() -> Self {
        Self {
            step: Step::Nothing,
            status: None,
            wake: Wake::OnEvent,
        }
    }
}

/// The next step and the report. `now` is the only time there is.
pub(crate) fn plan(seen: &Observed, now: Timestamp) -> Plan {
    // What only a live read shows is told when the watch brings it.
    if seen.is_left_alone() || seen.is_stopped_live() {
        return Plan::leave_alone();
    }
    if seen.is_paused() {
        return Plan {
            step: Step::Nothing,
            status: Some(status::paused(seen, now)),
            wake: Wake::OnEvent,
        };
    }
    let plan = if seen.control_plane.metadata.deletion_timestamp.is_some() {
        deletion::plan(seen, now)
    } else {
        upkeep::plan(seen, now)
    };
    if plan.step.is_news_enough() {
        return Plan {
            step: plan.step,
            ..Plan::leave_alone()
        };
    }
    clear_cluster_failure(seen, plan)
}

/// When there is nothing else to do, and the control plane shows no failure any more, the copy of it goes too. Not earlier:
/// Cluster API would copy it again from what still stands in the status.
fn clear_cluster_failure(seen: &Observed, mut plan: Plan) -> Plan {
    let recorded = |status: Option<&CaptControlPlaneStatus>| {
        status.is_some_and(|status| status.failure_reason.is_some() || status.failure_message.is_some())
    };
    if plan.step == Step::Nothing
        && seen.settings.clear_cluster_failures
        && !recorded(plan.status.as_ref())
        && !recorded(seen.control_plane.status.as_ref())
        && let Owner::Present(cluster) = &seen.owner
        && let Some(name) = &seen.control_plane.metadata.name
        && let Some(failure) = failure::caused_by(cluster, name)
    {
        plan.step = Step::ClearClusterFailure(failure.clone());
    }
    plan
}

#[cfg(test)]
mod tests;
