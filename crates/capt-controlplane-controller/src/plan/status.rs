//! The whole status, from where the last wish stands.
//!
//! Two things are kept apart: Available, `ready` and `initialized` say that users can use the cluster, and once they do they
//! stay; Ready and Failed say whether the last wish was carried out.

use capt_api::WorkspaceTemplateApply;
use capt_api::conditions::control_plane::{
    Available, ControlPlaneReport, Creating, Deleting, Failed, Initialized, Paused, Ready,
};
use capt_api::conditions::{self, Reason, State, workspace_apply};
use capt_api::controlplane::{
    CaptControlPlaneStatus, ControlPlaneInitialization, EksTemplateStatus, Phase, RunningVersion, WorkspaceStatus,
};
use capt_runtime::apply::is_ours;
use capt_runtime::cache::Found;
use capt_runtime::controller::Wake;
use jiff::Timestamp;

use super::clocks::{self, Wait};
use crate::eks_apply;
use crate::observe::Observed;

/// Where the last wish stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Situation {
    pub(super) reason: Ready,
    pub(super) message: String,
    /// What is being waited for, with a deadline.
    pub(super) waits: &'static [Wait],
}

impl Situation {
    pub(super) fn new(reason: Ready, message: impl Into<String>, waits: &'static [Wait]) -> Self {
        Self {
            reason,
            message: message.into(),
            waits,
        }
    }

    /// Nothing runs against a clock: somebody else has to act first.
    pub(super) fn standing(reason: Ready, message: impl Into<String>) -> Self {
        Self::new(reason, message, &[])
    }
}

/// Whether users could use the cluster before this pass.
pub(super) fn was_available(seen: &Observed) -> bool {
    seen.control_plane
        .status
        .as_ref()
        .is_some_and(|status| status.ready == Some(true))
}

/// The status of a control plane that is to be there.
pub(super) fn of(seen: &Observed, situation: Situation, now: Timestamp) -> (CaptControlPlaneStatus, Wake) {
    let clocks = clocks::run(seen, situation.waits, now, now);
    let Situation { reason, message, .. } = match clocks.expired {
        Some(wait) => overdue(wait, situation),
        None => situation,
    };
    let carried_out = reason == Ready::ControlPlaneReady;
    let available = carried_out || was_available(seen);
    let initialized = available || was_initialized(seen);
    let failed = failed(reason);

    let report = ControlPlaneReport {
        ready: Some(if carried_out {
            State::yes(reason, message.clone())
        } else {
            State::no(reason, message.clone())
        }),
        available: Some(match available {
            true => State::yes(Available::Available, "the cluster can be used"),
            false => State::no(Available::NotYetAvailable, "the cluster has not been ready yet"),
        }),
        initialized: Some(initialization(initialized)),
        creating: Some(match creating(reason) {
            _ if available => State::no(Creating::Created, ""),
            _ if failed.is_some() => State::no(Creating::Failed, message.clone()),
            reason => State::yes(reason, message.clone()),
        }),
        failed: Some(match failed {
            Some(reason) => State::yes(reason, message.clone()),
            None => State::no(Failed::NoFailure, ""),
        }),
        deleting: Some(State::no(Deleting::NotDeleting, "")),
        paused: Some(State::no(Paused::NotPaused, "")),
    };
    let terminal = failed.filter(|failed| !available && is_terminal(*failed));
    let mut status = kept(seen);
    status.ready = Some(available);
    status.initialized = Some(initialized);
    status.initialization = Some(ControlPlaneInitialization {
        control_plane_initialized: Some(initialized),
    });
    status.phase = Some(match failed {
        _ if carried_out => Phase::Ready,
        Some(_) => Phase::Failed,
        None => Phase::Creating,
    });
    status.failure_reason = terminal.map(|reason| reason.as_str().to_owned());
    status.failure_message = terminal.map(|_| conditions::bounded(&message));
    status.waiting_since = clocks.since;
    complete(seen, &mut status, &report, now);
    (status, clocks.wake)
}

/// The status of a control plane that is being deleted. What was true of the running cluster is left as it was, but for
/// Available: endpoint and kubeconfig are being taken away.
pub(super) fn of_deletion(
    seen: &Observed,
    begun: Timestamp,
    reason: Deleting,
    message: String,
    now: Timestamp,
) -> (CaptControlPlaneStatus, Wake) {
    let begin = if clocks::resumed(seen) { now } else { begun };
    let clocks = clocks::run(seen, &[Wait::Deletion], begin, now);
    let (reason, message) = match clocks.expired {
        Some(wait) => (Deleting::DeletionTimeout, passed(wait, &message)),
        None => (reason, message),
    };
    const GOING: &str = "the control plane is being deleted";
    let report = ControlPlaneReport {
        ready: Some(State::no(Ready::Deleting, GOING)),
        available: Some(State::no(Available::Deleting, GOING)),
        initialized: Some(initialization(was_initialized(seen))),
        creating: Some(State::no(Creating::Deleting, GOING)),
        failed: Some(State::no(Failed::NoFailure, "")),
        deleting: Some(State::yes(reason, message)),
        paused: Some(State::no(Paused::NotPaused, "")),
    };
    let mut status = kept(seen);
    status.phase = Some(Phase::Deleting);
    status.failure_reason = None;
    status.failure_message = None;
    status.waiting_since = clocks.since;
    complete(seen, &mut status, &report, now);
    (status, clocks.wake)
}

/// The status of a paused control plane: as it stands, with the pause.
pub(super) fn paused(seen: &Observed, now: Timestamp) -> CaptControlPlaneStatus {
    const PAUSED: &str = "paused by the Cluster's spec.paused or by the annotation cluster.x-k8s.io/paused";
    let deleting = seen.control_plane.metadata.deletion_timestamp.is_some();
    let report = ControlPlaneReport {
        deleting: deleting.then(|| State::yes(Deleting::Paused, "the deletion goes on when the pause ends")),
        paused: Some(State::yes(Paused::Paused, PAUSED)),
        ..ControlPlaneReport::default()
    };
    let mut status = kept(seen);
    status.conditions = merged(seen, &report, now);
    status
}

/// What stands in the fields of this controller now.
fn kept(seen: &Observed) -> CaptControlPlaneStatus {
    CaptControlPlaneStatus {
        // These two are other controllers', and so are conditions that the report does not name.
        endpoint: None,
        secrets_ready: None,
        conditions: Vec::new(),
        ..seen.control_plane.status.clone().unwrap_or_default()
    }
}

/// The fields that follow from the apply and the object, whatever else happens.
fn complete(seen: &Observed, status: &mut CaptControlPlaneStatus, report: &ControlPlaneReport, now: Timestamp) {
    let apply = our_apply(seen);
    if let Some(apply) = apply.filter(|apply| apply.is_ready())
        && eks_apply::runs(&apply.spec, &seen.control_plane.spec.version)
    {
        status.version = Some(seen.control_plane.spec.version.clone());
    }
    status.versions = status
        .version
        .iter()
        .map(|version| RunningVersion {
            version: version.clone(),
        })
        .collect();
    status.external_managed_control_plane = Some(true);
    status.workspace_template_status = apply.map(template_status);
    status.workspace_status = apply.map(workspace_status);
    status.observed_generation = Some(seen.generation());
    status.conditions = merged(seen, report, now);
}

fn merged(
    seen: &Observed,
    report: &ControlPlaneReport,
    now: Timestamp,
) -> Vec<k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition> {
    let before = seen
        .control_plane
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.conditions);
    conditions::merge(before, report, seen.generation(), now)
}

fn our_apply(seen: &Observed) -> Option<&WorkspaceTemplateApply> {
    match &seen.apply {
        Found::Present(apply) if is_ours(&apply.metadata, seen.uid()) => Some(apply),
        _ => None,
    }
}

fn was_initialized(seen: &Observed) -> bool {
    seen.control_plane.status.as_ref().is_some_and(|status| {
        let by_contract = status
            .initialization
            .as_ref()
            .and_then(|initialization| initialization.control_plane_initialized);
        status.initialized == Some(true) || by_contract == Some(true) || status.ready == Some(true)
    })
}

fn initialization(initialized: bool) -> State<Initialized> {
    if initialized {
        State::yes(Initialized::Initialized, "the control plane has been ready once")
    } else {
        State::no(Initialized::NotInitialized, "the control plane has not been ready yet")
    }
}

fn template_status(apply: &WorkspaceTemplateApply) -> EksTemplateStatus {
    let status = apply.status.clone().unwrap_or_default();
    EksTemplateStatus {
        ready: Some(apply.is_ready()),
        state: conditions::find(&status.conditions, workspace_apply::Ready::TYPE).map(|ready| word(&ready.reason)),
        workspace_name: status.workspace_name,
        last_applied_revision: status.last_applied_revision,
        last_failed_revision: status.last_failed_revision,
        last_failure_message: status.last_failure_message,
        outputs: status.outputs,
    }
}

fn workspace_status(apply: &WorkspaceTemplateApply) -> WorkspaceStatus {
    let conditions = apply.status.as_ref().map_or(&[][..], |status| &status.conditions);
    WorkspaceStatus {
        ready: Some(conditions::is_true(conditions, workspace_apply::Ready::TYPE)),
        state: conditions::find(conditions, workspace_apply::Synced::TYPE).map(|synced| word(&synced.reason)),
    }
}

/// A condition's reason may be longer than the fields that repeat it.
fn word(reason: &str) -> String {
    reason.chars().take(253).collect()
}

/// What a wait that took too long makes of the situation. It heals by itself when that which is waited for still comes.
fn overdue(wait: Wait, situation: Situation) -> Situation {
    let reason = match wait {
        Wait::Vpc => Ready::VpcReadyTimeout,
        Wait::ControlPlane => Ready::ControlPlaneTimeout,
        Wait::Workspace => Ready::WorkspaceTimeout,
        Wait::Secret => Ready::SecretTimeout,
        Wait::Deletion => return situation,
    };
    Situation {
        reason,
        message: passed(wait, &situation.message),
        ..situation
    }
}

fn passed(wait: Wait, message: &str) -> String {
    format!("{} has passed: {message}", wait.limit_name())
}

/// The reason of Failed, for what waiting alone does not mend.
fn failed(reason: Ready) -> Option<Failed> {
    Some(match reason {
        Ready::TerraformFailed => Failed::TerraformFailed,
        Ready::InvalidSpec => Failed::InvalidSpec,
        Ready::InvalidTemplate => Failed::InvalidTemplate,
        Ready::UnsafeVariable => Failed::UnsafeVariable,
        Ready::UnresolvedVariable => Failed::UnresolvedVariable,
        Ready::CrossNamespaceTemplate => Failed::CrossNamespaceTemplate,
        Ready::AdmissionDenied => Failed::AdmissionDenied,
        Ready::CreateInterrupted => Failed::CreateInterrupted,
        Ready::StateLocked => Failed::StateLocked,
        Ready::ControlPlaneTimeout => Failed::ControlPlaneTimeout,
        Ready::VpcReadyTimeout => Failed::VpcReadyTimeout,
        Ready::SecretTimeout => Failed::SecretTimeout,
        Ready::WorkspaceTimeout => Failed::WorkspaceTimeout,
        Ready::EndpointInvalid => Failed::EndpointInvalid,
        Ready::SecretsFailed => Failed::SecretsFailed,
        Ready::OwnershipConflict => Failed::OwnershipConflict,
        Ready::ControlPlaneReady
        | Ready::WaitingForCluster
        | Ready::WaitingForVpc
        | Ready::WaitingForTemplate
        | Ready::WaitingForProvider
        | Ready::WaitingForEndpoint
        | Ready::WaitingForSecrets
        | Ready::Creating
        | Ready::Updating
        | Ready::ApplyDeleted
        | Ready::NamespaceTerminating
        | Ready::Deleting => return None,
    })
}

/// Whether only a change by somebody helps. Terraform's own errors are retried by its provider until the deadline.
fn is_terminal(failed: Failed) -> bool {
    match failed {
        Failed::NoFailure
        | Failed::TerraformFailed
        | Failed::CreateInterrupted
        | Failed::StateLocked
        | Failed::EndpointInvalid
        | Failed::SecretsFailed => false,
        Failed::InvalidSpec
        | Failed::InvalidTemplate
        | Failed::UnsafeVariable
        | Failed::UnresolvedVariable
        | Failed::CrossNamespaceTemplate
        | Failed::AdmissionDenied
        | Failed::ControlPlaneTimeout
        | Failed::VpcReadyTimeout
        | Failed::SecretTimeout
        | Failed::WorkspaceTimeout
        | Failed::OwnershipConflict => true,
    }
}

/// What the creation is at.
fn creating(reason: Ready) -> Creating {
    match reason {
        Ready::WaitingForCluster => Creating::WaitingForCluster,
        Ready::WaitingForVpc => Creating::WaitingForVpc,
        Ready::WaitingForTemplate => Creating::WaitingForTemplate,
        Ready::WaitingForProvider => Creating::WaitingForProvider,
        Ready::WaitingForEndpoint => Creating::WaitingForEndpoint,
        Ready::WaitingForSecrets => Creating::WaitingForSecrets,
        _ => Creating::Creating,
    }
}
