//! What to do next about a control plane's Secrets, and what to say: a pure function of what was observed.
//!
//! The states of the copies, as reasons of SecretsReady: WaitingForSecret → ValidatingSecret → Ready, or Failed,
//! UnsafeKubeconfig, OwnershipConflict; SourceMissing once good copies outlive their source; SecretsRemoved at the end.
//! Whatever the reason, the status is True for as long as good copies of kubeconfig and CA exist.

use capt_api::CaptControlPlane;
use capt_api::conditions::secrets::{SecretsReady, SecretsReport};
use capt_api::conditions::{self, Reason, State, Status};
use capt_api::controlplane::CaptControlPlaneStatus;
use capt_runtime::error::Failure;
use jiff::Timestamp;

use crate::copies::Which;
use crate::observe::{Apply, CopyState, Drift, Living, Observed, Situation, Source};

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Nothing,
    /// Before the first copy is made, or taken over.
    AddFinalizer,
    /// Independent of each other and each guarded by itself, so they share a pass.
    Write(Vec<(Which, Deed)>),
    DeleteCopies,
    RemoveFinalizer,
}

/// What is to be done with one copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    Create,
    Repair,
    Remake,
    Delete,
}

/// The next step and, unless the object is left alone, the status once it is done.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    pub(crate) step: Step,
    pub(crate) status: Option<CaptControlPlaneStatus>,
}

pub(crate) fn plan(seen: &Observed, now: Timestamp) -> Plan {
    let nothing = Plan {
        step: Step::Nothing,
        status: None,
    };
    let (step, state) = match &seen.situation {
        Situation::LeftAlone | Situation::Deleting { finalizer: false, .. } => return nothing,
        // A control plane that has lost its owner keeps its last word: its copies are as good as before.
        Situation::WithoutCluster if reported(&seen.control_plane).is_some() => return nothing,
        Situation::WithoutCluster => (
            Step::Nothing,
            State::no(
                SecretsReady::WaitingForSecret,
                "waiting for Cluster API to set the owner Cluster",
            ),
        ),
        Situation::Deleting { leftovers, .. } => {
            let held: Vec<&str> = leftovers
                .iter()
                .filter(|left| left.leaving)
                .map(|left| left.name.as_str())
                .collect();
            let step = match leftovers.len() - held.len() {
                0 if held.is_empty() => Step::RemoveFinalizer,
                0 => Step::Nothing,
                _ => Step::DeleteCopies,
            };
            let message = match held.as_slice() {
                [] => "the copies of kubeconfig and CA are removed with the control plane".to_owned(),
                held => format!("waiting until {} is gone: its own finalizers hold it", secrets(held)),
            };
            (step, State::no(SecretsReady::SecretsRemoved, message))
        }
        Situation::Living(living) => (step(living), judge(living)),
    };
    Plan {
        step,
        status: Some(status(&seen.control_plane, state, now)),
    }
}

/// The status when a step, or a read before it, was refused: what is known about the copies stays.
pub(crate) fn refused(
    seen: &CaptControlPlane,
    good: bool,
    failure: &Failure,
    now: Timestamp,
) -> CaptControlPlaneStatus {
    let reason = match failure {
        Failure::OwnershipConflict { .. } => SecretsReady::OwnershipConflict,
        // Nothing failed: everything here is on its way out, and nothing more is made.
        Failure::NamespaceTerminating { .. } => SecretsReady::NamespaceTerminating,
        _ => SecretsReady::Failed,
    };
    status(seen, state(good, reason, failure.to_string()), now)
}

/// Whether good copies exist, by the last report.
pub(crate) fn reported(control_plane: &CaptControlPlane) -> Option<bool> {
    let status = control_plane.status.as_ref()?;
    let condition = conditions::find(&status.conditions, SecretsReady::TYPE)?;
    Some(condition.status == Status::True.as_str())
}

/// Whether kubeconfig and CA can be used as they stand.
pub(crate) fn is_good(living: &Living) -> bool {
    Which::REQUIRED.iter().all(|which| living.copies.of(*which).is_good())
}

fn status(control_plane: &CaptControlPlane, state: State<SecretsReady>, now: Timestamp) -> CaptControlPlaneStatus {
    let before = control_plane
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.conditions);
    let generation = control_plane.metadata.generation.unwrap_or_default();
    CaptControlPlaneStatus {
        secrets_ready: Some(state.status == Status::True),
        conditions: conditions::merge(
            before,
            &SecretsReport {
                secrets_ready: Some(state),
            },
            generation,
            now,
        ),
        ..CaptControlPlaneStatus::default()
    }
}

fn state(good: bool, reason: SecretsReady, message: impl Into<String>) -> State<SecretsReady> {
    if good {
        State::yes(reason, message)
    } else {
        State::no(reason, message)
    }
}

fn step(living: &Living) -> Step {
    let has_material = matches!(living.source, Source::Valid(_));
    let any_ours = living.copies.iter().any(|(_, copy)| copy.is_ours());
    if !living.finalizer {
        return if has_material || any_ours {
            Step::AddFinalizer
        } else {
            Step::Nothing
        };
    }
    let deeds: Vec<_> = living
        .copies
        .iter()
        .filter_map(|(which, copy)| {
            let unwanted = which == Which::Alias && living.rival.is_some();
            let deed = match copy {
                CopyState::Ours { .. } if unwanted => Deed::Delete,
                CopyState::Absent if has_material && !unwanted => Deed::Create,
                CopyState::Ours {
                    drift: Drift::Repair, ..
                } => Deed::Repair,
                CopyState::Ours {
                    drift: Drift::Remake, ..
                } if has_material => Deed::Remake,
                CopyState::Ours { .. } | CopyState::Absent | CopyState::Foreign(_) | CopyState::Leaving => {
                    return None;
                }
            };
            Some((which, deed))
        })
        .collect();
    if deeds.is_empty() {
        Step::Nothing
    } else {
        Step::Write(deeds)
    }
}

/// What SecretsReady says once the step is done.
fn judge(living: &Living) -> State<SecretsReady> {
    let good = is_good(living);
    match &living.source {
        Source::NotYet => state(good, SecretsReady::WaitingForSecret, waiting_for(living)),
        Source::Unnamed if good => State::yes(
            SecretsReady::SourceMissing,
            format!("{}; the copies stay as they are", unnamed(living)),
        ),
        Source::Unnamed => State::no(SecretsReady::WaitingForSecret, unnamed(living)),
        Source::Elsewhere => state(
            good,
            SecretsReady::Failed,
            format!(
                "WorkspaceTemplateApply {} writes its connection secret to another namespace, where it is not read: \
                 leave spec.writeConnectionSecretToRef.namespace out",
                living.apply_name
            ),
        ),
        Source::Absent(name) if good => State::yes(
            SecretsReady::SourceMissing,
            format!("Secret {name} does not exist any more; the copies stay as they are"),
        ),
        Source::Absent(name) => State::no(SecretsReady::WaitingForSecret, format!("waiting for Secret {name}")),
        Source::Empty(name) if !living.gate_is_open() => state(
            good,
            SecretsReady::WaitingForSecret,
            format!("waiting for Terraform to fill Secret {name}"),
        ),
        Source::Empty(name) => state(
            good,
            SecretsReady::Failed,
            format!(
                "Secret {name} is empty: the template must have the sensitive outputs kubeconfig and cluster_certificate_authority_data"
            ),
        ),
        Source::Invalid(name, invalid) => {
            let reason = if invalid.is_unsafe() {
                SecretsReady::UnsafeKubeconfig
            } else {
                SecretsReady::Failed
            };
            let kept = if good { "; the last good copies stay" } else { "" };
            state(good, reason, format!("Secret {name}: {invalid}{kept}"))
        }
        Source::Valid(name) => judge_copies(living, name, good),
    }
}

fn judge_copies(living: &Living, source: &str, good: bool) -> State<SecretsReady> {
    let required = || {
        Which::REQUIRED
            .into_iter()
            .map(|which| (which, living.copies.of(which)))
    };
    let conflicts: Vec<&str> = required()
        .filter_map(|(_, copy)| match copy {
            CopyState::Foreign(text) => Some(text.as_str()),
            _ => None,
        })
        .collect();
    if !conflicts.is_empty() {
        return State::no(SecretsReady::OwnershipConflict, conflicts.join("; "));
    }
    if let Some((which, _)) = required().find(|(_, copy)| **copy == CopyState::Leaving) {
        let name = which.name(&living.cluster);
        return State::no(
            SecretsReady::ValidatingSecret,
            format!("Secret {name} is being deleted; it is made anew when it is gone"),
        );
    }
    if !living.finalizer && !good {
        return State::no(
            SecretsReady::ValidatingSecret,
            format!("Secret {source} is valid; its copies are about to be made"),
        );
    }
    let [kubeconfig, ca] = Which::REQUIRED.map(|which| which.name(&living.cluster));
    let revision = match &living.apply {
        Apply::Present {
            revision: Some(revision),
            ..
        } => format!(", revision {revision}"),
        _ => String::new(),
    };
    let mut message = format!("kubeconfig and CA of Secret {source}{revision} are in {kubeconfig} and {ca}");
    match (&living.rival, &living.copies.alias) {
        (Some(rival), _) => {
            let alias = Which::Alias.name(&living.cluster);
            message += &format!("; {alias} is left to Cluster {rival}, whose kubeconfig has this name");
        }
        (None, CopyState::Foreign(text)) => message += &format!("; the alias is not made: {text}"),
        (None, _) => {}
    }
    State::yes(SecretsReady::Ready, message)
}

fn waiting_for(living: &Living) -> String {
    let apply = &living.apply_name;
    match &living.apply {
        Apply::Absent => format!("waiting for WorkspaceTemplateApply {apply}"),
        Apply::Unreadable => format!("WorkspaceTemplateApply {apply} cannot be read by this version"),
        Apply::Foreign => format!("WorkspaceTemplateApply {apply} belongs to something else"),
        Apply::Present { ready: false, .. } => format!("waiting until WorkspaceTemplateApply {apply} is ready"),
        Apply::Present { ready: true, .. } => "waiting until the endpoint is published".to_owned(),
    }
}

fn unnamed(living: &Living) -> String {
    match &living.apply {
        Apply::Present { .. } => format!(
            "WorkspaceTemplateApply {} names no connection secret (spec.writeConnectionSecretToRef)",
            living.apply_name
        ),
        _ => waiting_for(living),
    }
}

fn secrets(names: &[&str]) -> String {
    let word = if names.len() == 1 { "Secret" } else { "Secrets" };
    format!("{word} {}", names.join(", "))
}

#[cfg(test)]
mod tests;
