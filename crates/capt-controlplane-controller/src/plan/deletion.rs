//! A control plane that is to go: first its endpoint and its kubeconfig (others do that), then EKS, then the object.
//!
//! Everything that this needs stands in metadata: a lost status, or a Cluster that is gone already, changes nothing.

use capt_api::WorkspaceTemplateApply;
use capt_api::conditions::control_plane::{Deleting, Ready};
use capt_api::conditions::{self, Reason, Status, workspace_apply};
use capt_api::names::finalizer;
use capt_runtime::apply::is_ours;
use capt_runtime::cache::Found;
use jiff::Timestamp;

use super::{Plan, Step, status};
use crate::eks_apply;
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
    let (mut step, mut reason, mut message) = next(seen);
    if let Some(refused) = &seen.refused {
        step = Step::Nothing;
        message.clone_from(&refused.message);
        if refused.reason == Some(Ready::OwnershipConflict) {
            reason = Deleting::OwnershipConflict;
        }
    }
    let (status, wake) = status::of_deletion(seen, begun.0, reason, message, now);
    Plan {
        step,
        status: Some(status),
        wake,
    }
}

fn next(seen: &Observed) -> (Step, Deleting, String) {
    if seen.has_finalizer(finalizer::CAPT_ENDPOINT) {
        return (
            Step::Nothing,
            Deleting::WaitingForEndpointCleanup,
            "waiting for capt-endpoint to clear the Cluster's endpoint".into(),
        );
    }
    if seen.has_finalizer(finalizer::CAPT_SECRETS) {
        return (
            Step::Nothing,
            Deleting::WaitingForSecretCleanup,
            "waiting for capt-secrets to remove the copies of kubeconfig and CA".into(),
        );
    }
    let name = eks_apply::name(&seen.control_plane.metadata);
    let waiting = |step: Step, what: &str| {
        (
            step,
            Deleting::WaitingForWorkspace,
            format!("waiting for WorkspaceTemplateApply {name} to go{what}"),
        )
    };
    match &seen.apply {
        Found::Present(apply) if !is_ours(&apply.metadata, seen.uid()) => waiting(let_go(seen), ""),
        Found::Present(apply) if apply.metadata.deletion_timestamp.is_none() => waiting(Step::DeleteApply, ""),
        Found::Present(apply) if is_held(apply) => waiting(Step::ReleaseApply, ""),
        Found::Present(apply) => {
            let (reason, message) = destroying(apply);
            let (step, otherwise, generic) = waiting(Step::Nothing, "");
            (
                step,
                reason.unwrap_or(otherwise),
                message.map_or(generic.clone(), |message| format!("{generic}: {message}")),
            )
        }
        Found::Unreadable(why) => waiting(Step::Nothing, &format!("; it cannot be read: {why}")),
        Found::Absent => waiting(let_go(seen), ""),
    }
}

/// The cache shows no apply of ours, which may only mean that it is late.
fn let_go(seen: &Observed) -> Step {
    match &seen.live {
        Some(Live::LetGo { apply }) => match apply {
            Some(apply) if is_ours(&apply.metadata, seen.uid()) => Step::Nothing,
            // Somebody else's, which never was made for this control plane, stays untouched.
            _ => Step::DropFinalizers,
        },
        _ => Step::Look(Look::LetGo),
    }
}

fn is_held(apply: &WorkspaceTemplateApply) -> bool {
    apply
        .metadata
        .finalizers
        .iter()
        .flatten()
        .any(|name| name == finalizer::CAPT_CONTROL_PLANE_HOLD)
}

/// What the apply says about its own end.
fn destroying(apply: &WorkspaceTemplateApply) -> (Option<Deleting>, Option<String>) {
    use workspace_apply::Deleting as Apply;
    let conditions = apply.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let Some(condition) =
        conditions::find(conditions, Apply::TYPE).filter(|condition| condition.status == Status::True.as_str())
    else {
        return (None, None);
    };
    let known = Apply::ALL.iter().find(|reason| reason.as_str() == condition.reason);
    let reason = known.and_then(|reason| match reason {
        Apply::DestroyFailed => Some(Deleting::DestroyFailed),
        Apply::CreateInterrupted => Some(Deleting::CreateInterrupted),
        Apply::StateLocked => Some(Deleting::StateLocked),
        Apply::OwnershipConflict => Some(Deleting::OwnershipConflict),
        Apply::NotDeleting
        | Apply::Held
        | Apply::WaitingForWorkspace
        | Apply::Retaining
        | Apply::Abandoning
        | Apply::DeletionTimeout
        | Apply::Paused => None,
    });
    (
        reason,
        Some(condition.message.clone()).filter(|message| !message.is_empty()),
    )
}
