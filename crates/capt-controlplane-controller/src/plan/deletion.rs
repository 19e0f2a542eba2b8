//! A control plane that is to go: first its endpoint and its kubeconfig (others do that), then EKS, then the object.
//!
//! Everything that this needs stands in metadata: a lost status, or a Cluster that is gone already, changes nothing.

use capt_api::WorkspaceTemplateApply;
use capt_api::conditions::control_plane::{Deleting, Ready};
use capt_api::conditions::{self, Reason, Status, workspace_apply};
use capt_api::names::finalizer;
use capt_api::reasons::{self, Weight};
use capt_runtime::apply::is_ours;
use capt_runtime::cache::Found;
use jiff::Timestamp;

use super::status::{self, Departure};
use super::{Plan, Step};
use crate::eks_apply;
use crate::hold::HOLD;
use crate::observe::{Live, Look, Observed};

/// What guards the object in the name of this controller. The Go version's counts as our own.
pub(crate) const FINALIZERS: [&str; 2] = [finalizer::CAPT_CONTROL_PLANE, finalizer::GO_VERSION];

pub(super) fn plan(seen: &Observed, now: Timestamp) -> Plan {
    let Some(begun) = seen.control_plane.metadata.deletion_timestamp.as_ref() else {
        return Plan::leave_alone();
    };
    // Nothing was ever made in its name, or all of it is gone: what else keeps it is not ours to report on.
    if !FINALIZERS.iter().any(|name| seen.has_finalizer(name)) {
        return Plan::leave_alone();
    }
    let (mut step, mut departure) = next(seen, begun.0);
    if let Some(refused) = &seen.refused {
        step = Step::Nothing;
        departure.message.clone_from(&refused.message);
        departure.since = None;
        match refused.reason {
            Some(Ready::OwnershipConflict) => departure.reason = Deleting::OwnershipConflict,
            Some(Ready::AdmissionDenied) => departure.reason = Deleting::AdmissionDenied,
            _ => {}
        }
    }
    let (status, wake) = status::of_deletion(seen, begun.0, departure, now);
    Plan { step, status, wake }
}

fn next(seen: &Observed, begun: Timestamp) -> (Step, Departure) {
    // The two others need no more than a few requests.
    let cleanup = |reason, message: &str| {
        let departure = Departure {
            reason,
            message: message.into(),
            since: Some(begun),
        };
        (Step::Nothing, departure)
    };
    if seen.has_finalizer(finalizer::CAPT_ENDPOINT) {
        return cleanup(
            Deleting::WaitingForEndpointCleanup,
            "waiting for capt-endpoint to clear the Cluster's endpoint",
        );
    }
    if seen.has_finalizer(finalizer::CAPT_SECRETS) {
        return cleanup(
            Deleting::WaitingForSecretCleanup,
            "waiting for capt-secrets to remove the copies of kubeconfig and CA",
        );
    }
    if let Some(Live::LetGo {
        astray: Some(astray), ..
    }) = &seen.live
    {
        let departure = Departure {
            reason: Deleting::WaitingForWorkspace,
            message: format!(
                "WorkspaceTemplateApply {astray} holds an EKS cluster of this object under a name that is not looked after: \
                 delete it, with spec.retainWorkspaceOnDelete if the cluster is to be kept"
            ),
            since: None,
        };
        return (Step::Nothing, departure);
    }
    let name = eks_apply::name(&seen.control_plane.metadata);
    let waiting = |step: Step, reason: Option<Deleting>, what: &str| {
        let departure = Departure {
            reason: reason.unwrap_or(Deleting::WaitingForWorkspace),
            message: format!("waiting for WorkspaceTemplateApply {name} to go{what}"),
            since: None,
        };
        (step, departure)
    };
    match &seen.apply {
        Found::Present(apply) if !is_ours(&apply.metadata, seen.uid()) => waiting(let_go(seen), None, ""),
        // Before the deletion, so that it is never held: an apply tells what holds it, and goes a pass later.
        Found::Present(apply) if HOLD.is_on(&apply.metadata) => waiting(destroy(seen, Step::ReleaseApply), None, ""),
        Found::Present(apply) if apply.metadata.deletion_timestamp.is_none() => {
            waiting(destroy(seen, Step::DeleteApply), None, "")
        }
        Found::Present(apply) => match obstacle(apply) {
            Some((reason, "")) => waiting(Step::Nothing, reason, ""),
            Some((reason, message)) => waiting(Step::Nothing, reason, &format!(": {message}")),
            None => waiting(Step::Nothing, None, ""),
        },
        Found::Unreadable(why) => waiting(Step::Nothing, None, &format!("; it cannot be read: {why}")),
        Found::Absent => waiting(let_go(seen), None, ""),
    }
}

/// A step from which there is no way back. A pause that the caches do not show yet must be able to stop it.
fn destroy(seen: &Observed, step: Step) -> Step {
    match &seen.live {
        Some(Live::Destroy {
            control_plane: Some(live),
            ..
        }) if live.metadata.uid.as_deref() == Some(seen.uid()) => step,
        Some(_) => Step::Nothing,
        None => Step::Look(Look::Destroy),
    }
}

/// The cache shows no apply of ours, which may only mean that it is late.
fn let_go(seen: &Observed) -> Step {
    match &seen.live {
        Some(Live::LetGo { apply, .. }) => match apply {
            Some(apply) if is_ours(&apply.metadata, seen.uid()) => Step::Nothing,
            // Somebody else's, which never was made for this control plane, stays untouched.
            _ => Step::DropFinalizers,
        },
        _ => Step::Look(Look::LetGo),
    }
}

/// What keeps the apply from going, in its own words. While Terraform destroys as it should there is nothing to repeat.
fn obstacle(apply: &WorkspaceTemplateApply) -> Option<(Option<Deleting>, &str)> {
    use workspace_apply::Deleting as Apply;
    let conditions = apply.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let condition =
        conditions::find(conditions, Apply::TYPE).filter(|condition| condition.status == Status::True.as_str())?;
    let word = condition.reason.as_str();
    let reason = match reasons::meaning(word).map(|meaning| meaning.weight) {
        Some(Weight::Fine | Weight::Passing) if word != Apply::Paused.as_str() => return None,
        // Whatever Terraform fails with is a destroy that fails.
        Some(Weight::Trouble) => Deleting::named(word).or(Some(Deleting::DestroyFailed)),
        // Somebody has paused the apply alone; or a later version knows more than this one.
        Some(Weight::Fine | Weight::Passing) | None => None,
    };
    // Its clock and this object's are not the same.
    let reason = reason.filter(|reason| *reason != Deleting::DeletionTimeout);
    Some((reason, &condition.message))
}
