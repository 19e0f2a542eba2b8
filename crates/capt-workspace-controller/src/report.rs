//! What is said about an apply: its status, from what was found to be so.

use std::collections::BTreeMap;
use std::sync::Arc;

use capt_api::Workspace;
use capt_api::conditions::{
    self, Reason, Status, bounded,
    workspace_apply::{ApplyReport, Deleting, Paused, Ready, Synced, Waiting},
};
use capt_api::names::{annotation, finalizer, output};
use capt_api::reasons::is_trouble;
use capt_api::workspace::WorkspaceTemplateApplyStatus;
use capt_runtime::controller::settles_at;
use capt_runtime::scope::{foreign_finalizers, left_to_others};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt;

use crate::plan::{Observed, WorkspaceSeen};
use crate::render::{RenderError, revision_of};
use crate::terraform::{Cause, Trouble};
use crate::workspace::{State, external_name, is_held};

/// Declares the reasons that Synced and Ready share, so that none is forgotten on either side.
macro_rules! shared_reasons {
    ($($name:ident),+ $(,)?) => {
        /// Why an apply is not ready; Synced and Ready say the same.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Why { $( $name ),+ }

        impl Why {
            fn reasons(self) -> (Synced, Ready) {
                match self { $( Self::$name => (Synced::$name, Ready::$name) ),+ }
            }
        }
    };
}

shared_reasons! {
    NotApplied,
    WaitingForProvider,
    Applying,
    TerraformFailed,
    CreateInterrupted,
    StateLocked,
    ProviderConfigMissing,
    CredentialsMissing,
    QuotaExceeded,
    TerraformTimeout,
    InvalidModule,
    WorkspacePaused,
    InvalidTemplate,
    UnsafeVariable,
    UnresolvedVariable,
    CrossNamespaceReference,
    AdmissionDenied,
    OwnershipConflict,
    NamespaceTerminating,
    Deleting,
}

impl Why {
    pub(crate) fn of(error: &RenderError) -> Self {
        match error {
            RenderError::Unresolved { .. } => Self::UnresolvedVariable,
            RenderError::Unsafe { .. } => Self::UnsafeVariable,
            RenderError::Invalid { .. } => Self::InvalidTemplate,
            RenderError::CrossNamespace { .. } => Self::CrossNamespaceReference,
        }
    }
}

/// A failure of Terraform in the words of the two conditions that can tell it.
fn words_of(cause: Cause) -> (Why, Deleting) {
    match cause {
        Cause::Failed => (Why::TerraformFailed, Deleting::DestroyFailed),
        Cause::CreateInterrupted => (Why::CreateInterrupted, Deleting::CreateInterrupted),
        Cause::StateLocked => (Why::StateLocked, Deleting::StateLocked),
        Cause::ProviderConfigMissing => (Why::ProviderConfigMissing, Deleting::ProviderConfigMissing),
        Cause::CredentialsMissing => (Why::CredentialsMissing, Deleting::CredentialsMissing),
        Cause::QuotaExceeded => (Why::QuotaExceeded, Deleting::QuotaExceeded),
        Cause::TerraformTimeout => (Why::TerraformTimeout, Deleting::TerraformTimeout),
        Cause::InvalidModule => (Why::InvalidModule, Deleting::InvalidModule),
        Cause::SecretTaken => (Why::OwnershipConflict, Deleting::OwnershipConflict),
    }
}

fn message_of(trouble: &Trouble, seen: &Workspace) -> String {
    let workspace = seen.name_any();
    match trouble.cause {
        Cause::SecretTaken => format!(
            "Secret {}, to which Workspace {workspace} is to write its outputs, belongs to something else: remove it if nobody needs it, or name another in spec.writeConnectionSecretToRef",
            connection_secret(seen)
        ),
        Cause::CreateInterrupted => format!(
            "the Terraform provider was stopped during the first apply of Workspace {workspace} and does not know what became of it: resources may exist that are not in its state, and its state lock may be left behind. Look into the cloud, then annotate this apply with {}: {workspace}",
            annotation::RESUME_CREATE
        ),
        Cause::StateLocked => format!(
            "the Terraform state is locked: if nobody works on it any more, remove the lock. {}",
            trouble.message
        ),
        _ => trouble.message.clone(),
    }
}

/// Where the outputs go, as `namespace/name`; a namespaced Workspace writes into its own namespace.
fn connection_secret(workspace: &Workspace) -> String {
    let named = |key: &str| {
        workspace
            .spec
            .pointer(&format!("/writeConnectionSecretToRef/{key}"))?
            .as_str()
    };
    let namespace = named("namespace").or(workspace.metadata.namespace.as_deref());
    format!(
        "{}/{}",
        namespace.unwrap_or_default(),
        named("name").unwrap_or_default()
    )
}

const PROVIDERS: &[&str] = &[finalizer::PROVIDER];

/// Why a Workspace that is being deleted does not go, when others than Terraform keep it.
fn kept_by_others(name: &str, workspace: &Workspace) -> Option<String> {
    let finalizers = foreign_finalizers(&workspace.metadata, PROVIDERS)?;
    let why = match left_to_others(&workspace.metadata, PROVIDERS) {
        Some(_) => format!(
            "Terraform has nothing left to do for Workspace {name}, which stays because of the finalizers of others"
        ),
        None => format!("the Terraform provider destroys nothing while Workspace {name} has finalizers of others"),
    };
    Some(format!("{why}: {finalizers}; whoever set them has to remove them"))
}

fn provider_paused(workspace: &str) -> String {
    format!(
        "the annotation {} on Workspace {workspace} stops the Terraform provider: remove it",
        annotation::CROSSPLANE_PAUSED
    )
}

/// What is said about an apply, before it becomes conditions.
pub(crate) struct Words {
    /// `None` leaves Synced and Ready as they stand.
    readiness: Option<Readiness>,
    waiting: Option<(Waiting, String)>,
    /// What the deletion waits for; nothing is being deleted without it.
    deleting: Option<(Deleting, String)>,
    /// Whether it is about the spec as it stands now.
    current: bool,
    /// When a stage began that usually passes within moments.
    passing_since: Option<Timestamp>,
    /// Whether it is an error of Terraform's, in Terraform's words.
    terraforms: bool,
}

struct Readiness {
    /// `None` when it is ready.
    not_ready: Option<Why>,
    message: String,
}

impl Words {
    pub(crate) fn not_ready(why: Why, message: impl Into<String>) -> Self {
        let readiness = Readiness {
            not_ready: Some(why),
            message: message.into(),
        };
        Self {
            readiness: Some(readiness),
            current: true,
            ..Self::keep()
        }
    }

    /// Something that others make is not there yet. A new apply often comes together with it.
    pub(crate) fn waiting(seen: &Observed, reason: Waiting, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            waiting: Some((reason, message.clone())),
            passing_since: time(seen.apply.metadata.creation_timestamp.as_ref()),
            ..Self::not_ready(Why::NotApplied, message)
        }
    }

    /// Leaves everything as it stands.
    pub(crate) fn keep() -> Self {
        Self {
            readiness: None,
            waiting: None,
            deleting: None,
            current: false,
            passing_since: None,
            terraforms: false,
        }
    }

    pub(crate) fn deleting(reason: Deleting, message: impl Into<String>) -> Self {
        Self::not_ready(Why::Deleting, "it is being deleted").and_deleting(reason, message)
    }

    pub(crate) fn and_deleting(mut self, reason: Deleting, message: impl Into<String>) -> Self {
        self.deleting = Some((reason, message.into()));
        self
    }

    /// What usually passes within moments of this time.
    pub(crate) fn passing_since(mut self, since: Option<&Time>) -> Self {
        self.passing_since = time(since);
        self
    }

    /// The Workspace goes on as it is, while something keeps its apply from being rendered anew.
    pub(crate) fn and_waiting(mut self, seen: &Observed, reason: Waiting, message: String) -> Self {
        if self.readiness.is_none() {
            return Self::waiting(seen, reason, message);
        }
        self.current = false;
        self.waiting = Some((reason, message));
        self.passing_since = None;
        self
    }

    /// What the Workspace says; nothing when there is none.
    pub(crate) fn of_workspace(seen: &Observed, workspace: Option<&Arc<Workspace>>) -> Self {
        let Some(workspace) = workspace else {
            return Self::keep();
        };
        let name = &seen.identity.name;
        let state = State::of(workspace);
        let terraforms = matches!(state, State::Failed(_));
        let mut passing_since = None;
        let (not_ready, message) = match state {
            State::Applied => (None, format!("Workspace {name} is applied")),
            State::Queued => {
                passing_since = time(workspace.metadata.creation_timestamp.as_ref());
                (
                    Some(Why::WaitingForProvider),
                    format!("Workspace {name} waits for the Terraform provider"),
                )
            }
            State::Applying => (Some(Why::Applying), format!("Terraform applies Workspace {name}")),
            State::Paused => (Some(Why::WorkspacePaused), provider_paused(name)),
            State::Failed(trouble) => (Some(words_of(trouble.cause).0), message_of(&trouble, workspace)),
        };
        let message = if seen.dropped {
            format!("{message}; the API server drops fields of the template that its Workspace CRD does not know")
        } else {
            message
        };
        let message = match (not_ready, left_out(workspace)) {
            (None, left_out) if !left_out.is_empty() => {
                format!("{message}; left out of status.outputs: {}", left_out.join(", "))
            }
            _ => message,
        };
        Self {
            readiness: Some(Readiness { not_ready, message }),
            current: true,
            passing_since,
            terraforms,
            ..Self::keep()
        }
    }

    /// Of a Workspace that somebody deleted although its apply lives.
    pub(crate) fn of_deleted_by_others(seen: &Observed, workspace: &Workspace) -> Self {
        let name = &seen.identity.name;
        let (message, terraforms) = match State::of(workspace) {
            _ if is_held(workspace) => (
                format!(
                    "Workspace {name} was deleted although this apply needs it: nothing is destroyed, and nothing is changed any more. Remove its finalizers, and a new one takes over what it made"
                ),
                false,
            ),
            State::Failed(trouble) if trouble.cause != Cause::SecretTaken => (
                format!(
                    "Workspace {name} is being deleted and cannot be destroyed; a new one is made when it has gone: {}",
                    message_of(&trouble, workspace)
                ),
                true,
            ),
            _ => {
                let what =
                    kept_by_others(name, workspace).unwrap_or_else(|| format!("Workspace {name} is being deleted"));
                (format!("{what}; a new one is made when it has gone"), false)
            }
        };
        Self {
            terraforms,
            ..Self::waiting(seen, Waiting::WaitingForOldWorkspace, message)
        }
    }

    /// What a Workspace that is being destroyed says.
    pub(crate) fn of_destroyed(seen: &Observed, workspace: &Workspace) -> Self {
        let name = &seen.identity.name;
        match State::of(workspace) {
            // Older verdicts: Terraform is done, or is to write to no Secret any more.
            _ if left_to_others(&workspace.metadata, PROVIDERS).is_some() => Self::destroying(name, workspace),
            State::Failed(trouble) if trouble.cause == Cause::SecretTaken => Self::destroying(name, workspace),
            State::Failed(trouble) => {
                let message = match trouble.cause {
                    Cause::Failed => format!("Workspace {name} cannot be destroyed: {}", trouble.message),
                    _ => message_of(&trouble, workspace),
                };
                Self {
                    terraforms: true,
                    ..Self::deleting(words_of(trouble.cause).1, message)
                }
            }
            State::Paused => Self::deleting(Deleting::WorkspacePaused, provider_paused(name)),
            State::Queued | State::Applying | State::Applied => Self::destroying(name, workspace),
        }
    }

    fn destroying(name: &str, workspace: &Workspace) -> Self {
        let (reason, message) = match kept_by_others(name, workspace) {
            Some(message) => (Deleting::ForeignFinalizer, message),
            None => (
                Deleting::WaitingForWorkspace,
                format!("Terraform destroys what Workspace {name} made"),
            ),
        };
        Self::deleting(reason, message).passing_since(workspace.metadata.deletion_timestamp.as_ref())
    }

    /// The same after the deadline of the deletion. What it waits for stays in the message.
    pub(crate) fn overdue(self) -> Self {
        let message = self.deleting.map(|(_, message)| message).unwrap_or_default();
        Self {
            terraforms: self.terraforms,
            ..Self::deleting(
                Deleting::DeletionTimeout,
                format!("the deletion takes longer than it should, and goes on: {message}"),
            )
        }
    }

    /// Until when nothing is said of a stage that may be over in a moment: what stands in the status is still good enough.
    ///
    /// A trouble that stands there is not, nor is a pause: their end is told at once.
    pub(crate) fn silent_until(&self, seen: &Observed, now: Timestamp) -> Option<Timestamp> {
        let standing = seen.apply.status.as_ref().map_or(&[][..], |status| &status.conditions);
        let is_calm = !conditions::is_true(standing, Paused::TYPE) && !standing.iter().any(|c| is_trouble(&c.reason));
        settles_at(self.passing_since, now).filter(|_| is_calm)
    }
}

fn time(time: Option<&Time>) -> Option<Timestamp> {
    time.map(|time| time.0)
}

/// Terraform's outputs as far as they fit into a status.
const MAX_OUTPUTS: usize = 64;
pub(crate) const MAX_OUTPUT: usize = 4096;

fn outputs(workspace: &Workspace) -> impl Iterator<Item = (&String, Option<String>)> {
    let outputs = workspace
        .status
        .as_ref()
        .and_then(|status| status.at_provider.as_ref())
        .map(|seen| &seen.outputs);
    // Without those that CAPT itself reads no cluster comes up.
    let (read, others): (Vec<_>, Vec<_>) = outputs
        .into_iter()
        .flatten()
        .partition(|(name, _)| output::ALL.contains(&name.as_str()));
    read.into_iter()
        .chain(others)
        .enumerate()
        .map(|(index, (name, value))| {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            (
                name,
                Some(text).filter(|text| text.len() <= MAX_OUTPUT && index < MAX_OUTPUTS),
            )
        })
}

fn left_out(workspace: &Workspace) -> Vec<&str> {
    outputs(workspace)
        .filter(|(_, text)| text.is_none())
        .map(|(name, _)| name.as_str())
        .collect()
}

/// The status of a paused apply: as it stands, but for the pause itself.
pub(crate) fn paused_status(seen: &Observed, why: &str, now: Timestamp) -> WorkspaceTemplateApplyStatus {
    let before = seen.apply.status.clone().unwrap_or_default();
    let is_deleting = seen.apply.metadata.deletion_timestamp.is_some();
    let report = ApplyReport {
        paused: Some(conditions::State::yes(Paused::Paused, why)),
        deleting: is_deleting.then(|| conditions::State::yes(Deleting::Paused, format!("nothing is deleted: {why}"))),
        ..ApplyReport::default()
    };
    let generation = seen.apply.metadata.generation.unwrap_or_default();
    WorkspaceTemplateApplyStatus {
        conditions: conditions::merge(&before.conditions, &report, generation, now),
        ..before
    }
}

pub(crate) fn status(seen: &Observed, words: Words, now: Timestamp) -> WorkspaceTemplateApplyStatus {
    let before = seen.apply.status.clone().unwrap_or_default();
    let generation = match before.observed_generation {
        // What was rendered last was rendered from an older spec.
        Some(observed) if !words.current => observed,
        _ => seen.apply.metadata.generation.unwrap_or_default(),
    };
    let (waiting_reason, waiting_message) = words.waiting.clone().unwrap_or((Waiting::NotWaiting, String::new()));
    let (deleting_reason, deleting_message) = words.deleting.clone().unwrap_or((Deleting::NotDeleting, String::new()));
    let is = |yes: bool| if yes { Status::True } else { Status::False };
    let revision = match &seen.workspace {
        WorkspaceSeen::Present(workspace) => revision_of(&workspace.spec),
        _ => None,
    };
    let is_repeated = words.terraforms && before.last_failed_revision.as_deref() == revision;
    let standing = if is_repeated { &before.conditions[..] } else { &[] };
    // Synced and Ready turn together: a revision that Terraform took but that a plan still differs from is not in place.
    let readiness = words.readiness.as_ref().map(|readiness| {
        let ready = is(readiness.not_ready.is_none());
        let (synced_reason, ready_reason) = readiness
            .not_ready
            .map_or((Synced::Synced, Ready::Available), Why::reasons);
        let message = steady(standing, ready_reason, &readiness.message);
        (
            conditions::State {
                status: ready,
                reason: synced_reason,
                message: message.clone(),
            },
            conditions::State {
                status: ready,
                reason: ready_reason,
                message,
            },
        )
    });
    let (synced, ready) = readiness.unzip();
    let report = ApplyReport {
        synced,
        ready,
        waiting: Some(conditions::State {
            status: is(words.waiting.is_some()),
            reason: waiting_reason,
            message: steady(standing, waiting_reason, &waiting_message),
        }),
        deleting: Some(conditions::State {
            status: is(words.deleting.is_some()),
            reason: deleting_reason,
            message: steady(standing, deleting_reason, &deleting_message),
        }),
        paused: Some(conditions::State::no(Paused::NotPaused, "")),
    };
    let mut status = WorkspaceTemplateApplyStatus {
        observed_generation: Some(generation),
        conditions: conditions::merge(&before.conditions, &report, generation, now),
        ..before
    };
    if let (Some(readiness), WorkspaceSeen::Present(workspace)) = (&words.readiness, &seen.workspace)
        && seen.identity.owns(workspace)
    {
        describe(&mut status, readiness.not_ready, words.terraforms, workspace, now);
    }
    status
}

/// The message that stands already, when the new one differs from it in numbers and identifiers alone: Terraform's errors
/// carry request ids and times, and each retry of one revision would otherwise be a write, here and on every parent.
fn steady<R: Reason>(before: &[Condition], reason: R, message: &str) -> String {
    let words = |text: &str| -> Vec<String> {
        let plain = |word: &&str| !word.contains(|c: char| c.is_ascii_digit());
        text.split_whitespace().filter(plain).map(str::to_owned).collect()
    };
    match conditions::find(before, R::TYPE) {
        Some(standing)
            if standing.reason == reason.as_str() && words(&standing.message) == words(&bounded(message)) =>
        {
            standing.message.clone()
        }
        _ => message.to_owned(),
    }
}

/// What the status says about the Workspace beside its conditions.
fn describe(
    status: &mut WorkspaceTemplateApplyStatus,
    not_ready: Option<Why>,
    has_failed: bool,
    workspace: &Workspace,
    now: Timestamp,
) {
    status.workspace_name = Some(workspace.name_any());
    if status.terraform_workspace.is_none() {
        status.terraform_workspace = external_name(workspace).map(str::to_owned);
    }
    status.applied = Some(true);
    let revision = revision_of(&workspace.spec).map(str::to_owned);
    match not_ready {
        None => {
            if status.last_applied_revision != revision || status.last_applied_time.is_none() {
                let whole = Timestamp::from_second(now.as_second()).unwrap_or(now);
                status.last_applied_time = Some(Time(whole));
            }
            status.last_applied_revision = revision;
            // Only now: while Terraform is at work the provider may show none, or some, and those of the last apply stand.
            status.outputs = outputs(workspace)
                .filter_map(|(name, text)| Some((name.clone(), text?)))
                .collect::<BTreeMap<_, _>>();
            (status.last_failed_revision, status.last_failure_message) = (None, None);
        }
        Some(why) if has_failed => {
            let told = if why == Why::Deleting {
                Deleting::TYPE
            } else {
                Ready::TYPE
            };
            let message = conditions::find(&status.conditions, told).map(|condition| condition.message.clone());
            (status.last_failed_revision, status.last_failure_message) = (revision, message);
        }
        // What failed before is not wished for any more, and the destroy does not fail.
        Some(Why::Deleting) => (status.last_failed_revision, status.last_failure_message) = (None, None),
        Some(_) => {}
    }
}
