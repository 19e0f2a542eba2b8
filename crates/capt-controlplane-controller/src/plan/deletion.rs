//! A control plane that is to go: first its endpoint and its kubeconfig (others do that), then EKS, then the object.
//!
//! Everything that this needs stands in metadata: a lost status, or a Cluster that is gone already, changes nothing.

use capt_api::WorkspaceTemplateApply;
use capt_api::conditions::control_plane::{Deleting, Ready};
use capt_api::conditions::{self, Reason, Status, workspace_apply};
use capt_api::names::finalizer;
use capt_api::reasons::{self, Weight};
use capt_runtime::cache::Found;
use capt_runtime::controller::settles_at;
use capt_runtime::scope::left_to_others;
use jiff::{SignedDuration, Timestamp};

use super::status::{self, Departure};
use super::{Plan, Step, upkeep};
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
    let (mut step, mut departure) = next(seen, begun.0, now);
    if let Some(refused) = &seen.refused {
        step = Step::Nothing;
        departure.message.clone_from(&refused.message);
        departure.quiet_until = None;
        match refused.reason {
            Some(Ready::OwnershipConflict) => departure.reason = Deleting::OwnershipConflict,
            Some(Ready::AdmissionDenied) => departure.reason = Deleting::AdmissionDenied,
            _ => {}
        }
    }
    let (status, wake) = status::of_deletion(seen, begun.0, departure, now);
    Plan { step, status, wake }
}

fn next(seen: &Observed, begun: Timestamp, now: Timestamp) -> (Step, Departure) {
    if let Some((reason, message)) = cleanup(seen) {
        let departure = Departure {
            reason,
            message,
            // The two others need no more than a few requests each, so a wait that was told stands for both for a while.
            quiet_until: match cleanup_told(seen) {
                Some(told) => told
                    .checked_add(CORRECTED_AFTER)
                    .ok()
                    .filter(|until| (told..*until).contains(&now)),
                None => settles_at(Some(begun), now),
            },
        };
        return (Step::Nothing, departure);
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
            quiet_until: None,
        };
        return (Step::Nothing, departure);
    }
    let name = eks_apply::name(&seen.control_plane.metadata);
    let waiting = |step: Step, reason: Option<Deleting>, what: &str| {
        let departure = Departure {
            reason: reason.unwrap_or(Deleting::WaitingForWorkspace),
            message: format!("waiting for WorkspaceTemplateApply {name} to go{what}"),
            quiet_until: None,
        };
        (step, departure)
    };
    match &seen.apply {
        Found::Present(apply) if !seen.owns(apply) => waiting(let_go(seen), None, ""),
        // Before the deletion, so that it is never held: an apply tells what holds it, and goes a pass later.
        Found::Present(apply) if HOLD.is_on(&apply.metadata) => waiting(destroy(seen, Step::ReleaseApply), None, ""),
        Found::Present(apply) if apply.metadata.deletion_timestamp.is_none() => {
            waiting(destroy(seen, Step::DeleteApply), None, "")
        }
        Found::Present(apply) => match (
            left_to_others(&apply.metadata, &finalizer::OF_AN_APPLY),
            obstacle(apply),
        ) {
            // Whatever it said while it still had something to do.
            (Some(finalizers), _) => {
                let what = format!(
                    ": nothing is left to be done for it, and it stays because of the finalizers of others: {finalizers}; whoever \
                     set them has to remove them"
                );
                waiting(Step::Nothing, Some(Deleting::ForeignFinalizer), &what)
            }
            (None, Some((reason, ""))) => waiting(upkeep::correction(seen, apply), reason, ""),
            (None, Some((reason, message))) => {
                waiting(upkeep::correction(seen, apply), reason, &format!(": {message}"))
            }
            (None, None) => waiting(Step::Nothing, None, ""),
        },
        Found::Unreadable(why) => waiting(Step::Nothing, None, &format!("; it cannot be read: {why}")),
        Found::Absent => waiting(let_go(seen), None, ""),
    }
}

/// How long a wait for the others has been told before it is corrected to what is left of it.
const CORRECTED_AFTER: SignedDuration = SignedDuration::from_secs(30);

/// What capt-endpoint and capt-secrets still have to do.
fn cleanup(seen: &Observed) -> Option<(Deleting, String)> {
    let endpoint = seen
        .has_finalizer(finalizer::CAPT_ENDPOINT)
        .then_some("capt-endpoint to clear the Cluster's endpoint");
    let secrets = seen
        .has_finalizer(finalizer::CAPT_SECRETS)
        .then_some("capt-secrets to remove the copies of kubeconfig and CA");
    let reason = match (endpoint, secrets) {
        (Some(_), _) => Deleting::WaitingForEndpointCleanup,
        (None, Some(_)) => Deleting::WaitingForSecretCleanup,
        (None, None) => return None,
    };
    let whom: Vec<&str> = endpoint.into_iter().chain(secrets).collect();
    Some((reason, format!("waiting for {}", whom.join(", and for "))))
}

/// When the wait for the others was told, if that is what is told now.
fn cleanup_told(seen: &Observed) -> Option<Timestamp> {
    let status = seen.control_plane.status.as_ref()?;
    let told = conditions::find(&status.conditions, Deleting::TYPE)?;
    let reason = Deleting::named(&told.reason)?;
    matches!(
        reason,
        Deleting::WaitingForEndpointCleanup | Deleting::WaitingForSecretCleanup
    )
    .then_some(told.last_transition_time.0)
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
            Some(apply) if seen.owns(apply) => Step::Nothing,
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
