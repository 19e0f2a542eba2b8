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
use capt_api::reasons::{self, Weight};
use capt_runtime::cache::Found;
use capt_runtime::controller::{Wake, settles_at};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

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
    /// When a stage began that usually passes within moments, and is told only when it lasts. `None` for what is told at
    /// once.
    pub(super) since: Option<Timestamp>,
    /// Whether nobody else can be waited for yet, because the next step is our own.
    pub(super) is_ours_to_do: bool,
}

impl Situation {
    pub(super) fn new(reason: Ready, message: impl Into<String>, waits: &'static [Wait]) -> Self {
        Self {
            reason,
            message: message.into(),
            waits,
            since: None,
            is_ours_to_do: false,
        }
    }

    /// Nothing runs against a clock: somebody else has to act first.
    pub(super) fn standing(reason: Ready, message: impl Into<String>) -> Self {
        Self::new(reason, message, &[])
    }

    /// What we have to do first. A wait begins when our part is done, and no earlier one is held against it.
    pub(super) fn ours_to_do(self) -> Self {
        Self {
            is_ours_to_do: true,
            ..self
        }
    }

    /// A stage that began at `since` and usually passes within moments.
    pub(super) fn settling(self, since: Option<Timestamp>) -> Self {
        Self { since, ..self }
    }
}

/// Whether users could use the cluster before this pass.
pub(super) fn was_available(seen: &Observed) -> bool {
    seen.control_plane
        .status
        .as_ref()
        .is_some_and(|status| status.ready == Some(true))
}

/// The status of a control plane that is to be there; `None` while the stage it is in may still pass by itself.
pub(super) fn of(seen: &Observed, situation: Situation, now: Timestamp) -> (Option<CaptControlPlaneStatus>, Wake) {
    let clocks = match clocks::run(seen, situation.waits, now, now) {
        clocks if clocks.expired.is_some() && situation.is_ours_to_do => clocks::begin(seen, situation.waits, now),
        clocks => clocks,
    };
    if clocks.expired.is_none()
        && is_passing(seen)
        && let Some(settled) = settles_at(situation.since, now)
    {
        return (None, clocks::earlier(clocks.wake, settled));
    }
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
            // Cluster API shows this one on the Cluster's own line: there, too, users look for what is waited for.
            false => State::no(Available::NotYetAvailable, message.clone()),
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
    follow_apply(seen, &mut status);
    complete(seen, &mut status, &report, now);
    (Some(status), clocks.wake)
}

/// Where a deletion stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Departure {
    pub(super) reason: Deleting,
    pub(super) message: String,
    /// Until when it may pass by itself; `None` for what is told at once.
    pub(super) quiet_until: Option<Timestamp>,
}

/// The status of a control plane that is being deleted; `None` while the stage it is in may still pass by itself. What was
/// true of the running cluster is left as it was, but for Available: endpoint and kubeconfig are being taken away. What the
/// apply says meanwhile is left to the apply: repeating each of its steps here would tell users nothing new.
pub(super) fn of_deletion(
    seen: &Observed,
    begun: Timestamp,
    departure: Departure,
    now: Timestamp,
) -> (Option<CaptControlPlaneStatus>, Wake) {
    let resumed = clocks::resumed(seen);
    let clocks = clocks::run(seen, &[Wait::Deletion], if resumed { now } else { begun }, now);
    if clocks.expired.is_none()
        && !resumed
        && let Some(settled) = departure.quiet_until
    {
        return (None, clocks::earlier(clocks.wake, settled));
    }
    let Departure { reason, message, .. } = departure;
    let (reason, message) = match clocks.expired {
        Some(wait) => (Deleting::DeletionTimeout, passed(wait, &message)),
        None => (reason, message),
    };
    const GOING: &str = "the control plane is being deleted";
    // Cluster API shows this on the Cluster's own line.
    let going = if reasons::is_trouble(reason.as_str()) {
        format!("{GOING}: {message}")
    } else {
        GOING.to_owned()
    };
    let report = ControlPlaneReport {
        ready: Some(State::no(Ready::Deleting, going.clone())),
        available: Some(State::no(Available::Deleting, going)),
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
    (Some(status), clocks.wake)
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

/// Whether what stands in the status is itself a stage that passes, or nothing at all. Only then may it stand in for the
/// next one a little longer: the end of readiness, of trouble and of a pause is told at once.
fn is_passing(seen: &Observed) -> bool {
    let Some(status) = &seen.control_plane.status else {
        return true;
    };
    let passes =
        |ready: &Condition| reasons::meaning(&ready.reason).is_some_and(|meaning| meaning.weight == Weight::Passing);
    !clocks::resumed(seen)
        && status.failure_reason.is_none()
        && conditions::find(&status.conditions, Ready::TYPE).is_none_or(passes)
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

/// The fields that repeat what the apply says.
fn follow_apply(seen: &Observed, status: &mut CaptControlPlaneStatus) {
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
    status.workspace_template_status = apply.map(template_status);
    status.workspace_status = apply.map(workspace_status);
}

/// The fields that are set whatever happens.
fn complete(seen: &Observed, status: &mut CaptControlPlaneStatus, report: &ControlPlaneReport, now: Timestamp) {
    status.external_managed_control_plane = Some(true);
    status.observed_generation = Some(seen.generation());
    status.conditions = merged(seen, report, now);
}

fn merged(seen: &Observed, report: &ControlPlaneReport, now: Timestamp) -> Vec<Condition> {
    let before = seen
        .control_plane
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.conditions);
    conditions::merge(before, report, seen.generation(), now)
}

fn our_apply(seen: &Observed) -> Option<&WorkspaceTemplateApply> {
    match &seen.apply {
        Found::Present(apply) if seen.owns(apply) => Some(apply),
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
        Wait::ControlPlane | Wait::Workspace => Ready::ControlPlaneTimeout,
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

/// The reason of Failed, for what waiting alone does not mend: the same word.
fn failed(reason: Ready) -> Option<Failed> {
    Failed::named(reason.as_str())
}

/// Whether only a change by somebody helps. Terraform's own errors are retried by its provider until the deadline, and what
/// the two other controllers complain of is looked at again by them.
fn is_terminal(failed: Failed) -> bool {
    matches!(
        failed,
        Failed::InvalidSpec
            | Failed::InvalidTemplate
            | Failed::UnsafeVariable
            | Failed::UnresolvedVariable
            | Failed::CrossNamespaceTemplate
            | Failed::AdmissionDenied
            | Failed::ControlPlaneTimeout
            | Failed::VpcReadyTimeout
            | Failed::SecretTimeout
            | Failed::OwnershipConflict
    )
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
