//! What to do next about a control plane's Secrets, and what to say: a pure function of what was observed and the time.
//!
//! The states of the copies, as reasons of SecretsReady: WaitingForSecret → ValidatingSecret → Ready, or Failed,
//! UnsafeKubeconfig, OwnershipConflict; SourceMissing once good copies outlive their source. Whatever the reason, the
//! status is True for as long as good copies of kubeconfig and CA exist. `states` has all of it as a table.
//!
//! Work never waits; words do. Failures and ends are told at once, an ordinary wait once and in turn with the other
//! controllers of the same object, and what passes within moments not at all ([`When`]).

use capt_api::CaptControlPlane;
use capt_api::conditions::endpoint::EndpointReady;
use capt_api::conditions::secrets::{SecretsReady, SecretsReport};
use capt_api::conditions::{self, Reason, State, Status};
use capt_api::controlplane::CaptControlPlaneStatus;
use capt_runtime::controller::Wake;
use capt_runtime::error::Failure;
use capt_runtime::words::{When, generation_of_wait};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::copies::Which;
use crate::observe::{Apply, CopyState, Drift, Leftover, Living, Observed, Situation, Source};

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Nothing,
    Write(Writes),
    /// Delete the copies that stand and, when the API server has none any more, drop the finalizer.
    Remove,
}

/// Writes in this order. Those of copies are independent of each other and each guarded by itself, so they share a pass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Writes {
    /// Before the first copy is made, or taken over.
    pub(crate) finalizer: bool,
    pub(crate) copies: Vec<(Which, Deed)>,
}

/// What is to be done with one copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    Create,
    Repair,
    Remake,
    Delete,
}

impl Deed {
    /// Whether there is a new object afterwards.
    pub(crate) fn makes(self) -> bool {
        matches!(self, Self::Create | Self::Remake)
    }
}

/// The next step and what is to be said once it is done; without words the last ones stand.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    pub(crate) step: Step,
    pub(crate) says: Option<State<SecretsReady>>,
    pub(crate) wake: Wake,
}

pub(crate) fn plan(seen: &Observed, now: Timestamp) -> Plan {
    let control_plane = seen.control_plane.as_ref();
    match &seen.situation {
        Situation::LeftAlone => Plan::NOTHING,
        Situation::Deleting { finalizer: false, .. } => removed(control_plane, now),
        // A control plane that has lost its owner keeps its last word: its copies are as good as before.
        Situation::WithoutCluster if said(control_plane).is_some() => Plan::NOTHING,
        Situation::WithoutCluster => {
            let created = control_plane.metadata.creation_timestamp.as_ref();
            let waiting = State::no(
                SecretsReady::WaitingForSecret,
                "waiting for Cluster API to set the owner Cluster",
            );
            Plan::NOTHING.saying(waiting, When::Lasting(created.map(|time| time.0)), control_plane, now)
        }
        Situation::Deleting { leftovers, .. } => removal(control_plane, leftovers, now),
        Situation::Living(living) => {
            let (state, when) = judge(living);
            let mut plan = Plan::doing(step(living)).saying(state, when, control_plane, now);
            if let (Wake::OnEvent, Some(expiry)) = (plan.wake, living.expires) {
                plan.wake = Wake::At(expiry);
            }
            plan
        }
    }
}

/// This controller's part is done. While the rest of the deletion lasts, nobody is to look for the copies.
fn removed(control_plane: &CaptControlPlane, now: Timestamp) -> Plan {
    let is_outdated =
        |said: &Condition| said.status == Status::True.as_str() || said.reason == SecretsReady::Deleting.as_str();
    if !said(control_plane).is_some_and(is_outdated) {
        return Plan::NOTHING;
    }
    let begun = control_plane.metadata.deletion_timestamp.as_ref();
    let why = "the control plane is being deleted, and the copies of its kubeconfig and CA are removed";
    let state = State::no(SecretsReady::Deleting, why);
    Plan::NOTHING.saying(state, When::Undone(begun.map(|time| time.0)), control_plane, now)
}

/// What is being deleted keeps its last word for a while: capt-controlplane-controller says that the deletion waits for the copies.
/// Only which of them is held, and that somebody else holds it, is known here alone.
fn removal(control_plane: &CaptControlPlane, leftovers: &[Leftover], now: Timestamp) -> Plan {
    let held: Vec<&Leftover> = leftovers.iter().filter(|left| left.leaving.is_some()).collect();
    // The cache may show none that the API server has: the finalizer goes when a live read finds none.
    if held.is_empty() || held.len() < leftovers.len() {
        return Plan::doing(Step::Remove);
    }
    let names: Vec<&str> = held.iter().map(|left| left.name.as_str()).collect();
    let message = match names.as_slice() {
        [name] => format!("waiting until Secret {name} is gone: its own finalizers hold it"),
        names => format!(
            "waiting until Secrets {} are gone: their own finalizers hold them",
            names.join(", ")
        ),
    };
    let since = held.iter().filter_map(|left| left.leaving).max();
    Plan::NOTHING.saying(
        State::no(SecretsReady::Deleting, message),
        When::Lasting(since),
        control_plane,
        now,
    )
}

impl Plan {
    const NOTHING: Self = Self::doing(Step::Nothing);

    const fn doing(step: Step) -> Self {
        Self {
            step,
            says: None,
            wake: Wake::OnEvent,
        }
    }

    /// The same step with these words, if it is time for them. Otherwise what was said before stands, as it is.
    fn saying(self, state: State<SecretsReady>, when: When, control_plane: &CaptControlPlane, now: Timestamp) -> Self {
        match when.silence(is_our_turn(control_plane), now) {
            Some(wake) => Self { wake, ..self },
            None => Self {
                says: Some(state),
                ..self
            },
        }
    }
}

/// Whether the first word was said, by this controller or by the one that speaks before it.
fn is_our_turn(control_plane: &CaptControlPlane) -> bool {
    said(control_plane).is_some() || find(control_plane, EndpointReady::TYPE).is_some()
}

fn find<'a>(control_plane: &'a CaptControlPlane, type_: &str) -> Option<&'a Condition> {
    conditions::find(&control_plane.status.as_ref()?.conditions, type_)
}

/// What this controller said last.
fn said(control_plane: &CaptControlPlane) -> Option<&Condition> {
    find(control_plane, SecretsReady::TYPE)
}

/// What is said when a step, or a read before it, was refused: what is known about the copies stays.
pub(crate) fn refused(good: bool, failure: &Failure) -> State<SecretsReady> {
    let reason = match failure {
        Failure::OwnershipConflict { .. } => SecretsReady::OwnershipConflict,
        // Nothing failed: everything here is on its way out, and nothing more is made.
        Failure::NamespaceTerminating { .. } => SecretsReady::NamespaceTerminating,
        _ => SecretsReady::Failed,
    };
    state(good, reason, failure.to_string())
}

/// Whether good copies exist, by the last report.
pub(crate) fn reported(control_plane: &CaptControlPlane) -> bool {
    said(control_plane).is_some_and(|said| said.status == Status::True.as_str())
}

/// Whether kubeconfig and CA can be used as they stand.
pub(crate) fn is_good(living: &Living) -> bool {
    Which::REQUIRED.iter().all(|which| living.copies.of(*which).is_good())
}

/// The status of `control_plane` that says this.
pub(crate) fn status(
    control_plane: &CaptControlPlane,
    state: &State<SecretsReady>,
    now: Timestamp,
) -> CaptControlPlaneStatus {
    let before = control_plane
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.conditions);
    let waits = [SecretsReady::WaitingForSecret, SecretsReady::ValidatingSecret];
    let mut generation = control_plane.metadata.generation.unwrap_or_default();
    if state.status == Status::False && waits.contains(&state.reason) {
        generation = generation_of_wait(said(control_plane), state, generation);
    }
    let report = SecretsReport {
        secrets_ready: Some(state.clone()),
    };
    CaptControlPlaneStatus {
        secrets_ready: Some(state.status == Status::True),
        conditions: conditions::merge(before, &report, generation, now),
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
    let copies = living.copies.iter().filter_map(|(which, copy)| {
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
            CopyState::Ours { .. } | CopyState::Absent | CopyState::Foreign(_) | CopyState::Leaving(_) => {
                return None;
            }
        };
        Some((which, deed))
    });
    let writes = Writes {
        finalizer: !living.finalizer && (has_material || any_ours),
        copies: copies.collect(),
    };
    if writes == Writes::default() {
        Step::Nothing
    } else {
        Step::Write(writes)
    }
}

/// What SecretsReady says once the step is done, and when.
fn judge(living: &Living) -> (State<SecretsReady>, When) {
    let good = is_good(living);
    let at_once = |state| (state, When::AtOnce);
    match &living.source {
        Source::NotYet => {
            let (message, when) = waiting_for(living);
            (state(good, SecretsReady::WaitingForSecret, message), when)
        }
        Source::Unnamed if good => at_once(State::yes(
            SecretsReady::SourceMissing,
            format!("{}; the copies stay as they are", unnamed(living)),
        )),
        Source::Unnamed => at_once(State::no(SecretsReady::WaitingForSecret, unnamed(living))),
        Source::Elsewhere => at_once(state(
            good,
            SecretsReady::Failed,
            format!(
                "WorkspaceTemplateApply {} writes its connection secret to another namespace, where it is not read: \
                 leave spec.writeConnectionSecretToRef.namespace out",
                living.apply_name
            ),
        )),
        Source::Absent(name) if good => at_once(State::yes(
            SecretsReady::SourceMissing,
            format!("Secret {name} does not exist any more; the copies stay as they are"),
        )),
        Source::Absent(name) => (
            State::no(SecretsReady::WaitingForSecret, format!("waiting for Secret {name}")),
            When::Lasting(living.gate_opened()),
        ),
        Source::Empty(name) if !living.gate_is_open() => at_once(state(
            good,
            SecretsReady::WaitingForSecret,
            format!("waiting for Terraform to fill Secret {name}"),
        )),
        Source::Empty(name) => at_once(state(
            good,
            SecretsReady::Failed,
            format!(
                "Secret {name} is empty: the template must have the sensitive outputs kubeconfig and cluster_certificate_authority_data"
            ),
        )),
        Source::Invalid(name, invalid) => {
            let reason = if invalid.is_unsafe() {
                SecretsReady::UnsafeKubeconfig
            } else {
                SecretsReady::Failed
            };
            let kept = if good { "; the last good copies stay" } else { "" };
            at_once(state(good, reason, format!("Secret {name}: {invalid}{kept}")))
        }
        Source::Valid(name) => judge_copies(living, name),
    }
}

fn judge_copies(living: &Living, source: &str) -> (State<SecretsReady>, When) {
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
        return (
            State::no(SecretsReady::OwnershipConflict, conflicts.join("; ")),
            When::AtOnce,
        );
    }
    let leaving = required().find_map(|(which, copy)| match copy {
        CopyState::Leaving(since) => Some((which, Some(*since))),
        _ => None,
    });
    if let Some((which, since)) = leaving {
        let name = which.name(&living.cluster);
        let message = format!("Secret {name} is being deleted; it is made anew when it is gone");
        return (State::no(SecretsReady::ValidatingSecret, message), When::Lasting(since));
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
    (State::yes(SecretsReady::Ready, message), When::AtOnce)
}

/// What the source waits for while it is too early to look at it.
fn waiting_for(living: &Living) -> (String, When) {
    let apply = format!("WorkspaceTemplateApply {}", living.apply_name);
    match &living.apply {
        Apply::Unreadable => (format!("{apply} cannot be read by this version"), When::AtOnce),
        Apply::Foreign => (format!("{apply} belongs to something else"), When::AtOnce),
        // One text for all of the ordinary wait, so that it is written once.
        Apply::Absent | Apply::Present { ready: false, .. } => (
            format!("waiting until {apply} is ready and the endpoint is published"),
            When::InTurn,
        ),
        Apply::Present { ready: true, since, .. } => (
            format!("{apply} is ready; waiting until the endpoint is published, see condition EndpointReady"),
            When::Lasting(*since),
        ),
    }
}

fn unnamed(living: &Living) -> String {
    match &living.apply {
        Apply::Present { .. } => format!(
            "WorkspaceTemplateApply {} names no connection secret (spec.writeConnectionSecretToRef)",
            living.apply_name
        ),
        _ => waiting_for(living).0,
    }
}

#[cfg(test)]
mod tests;
