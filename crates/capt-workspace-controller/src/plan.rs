//! What to do next for an apply, and what to say about it. No client, no clock, no randomness.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use capt_api::conditions::{
    self, Reason, Status, bounded,
    workspace_apply::{ApplyReport, Deleting, Paused, Ready, Synced, Waiting},
};
use capt_api::names::{annotation, label};
use capt_api::workspace::WorkspaceTemplateApplyStatus;
use capt_api::{Workspace, WorkspaceKind, WorkspaceTemplateApply};
use capt_runtime::apply::contains;
use capt_runtime::error::Failure;
use capt_runtime::scope::has_paused_annotation;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::render::{Input, RenderError, Rendered, revision_of};
use crate::terraform::Cause;
use crate::workspace::{FINALIZERS, HOLDS, Identity, State, is_let_go, labels};

/// Everything that a plan is made from.
#[derive(Debug, Clone)]
pub(crate) struct Observed {
    pub(crate) apply: Arc<WorkspaceTemplateApply>,
    pub(crate) cluster: ClusterSeen,
    pub(crate) identity: Identity,
    pub(crate) template: TemplateSeen,
    /// What template and variables give; nothing without a template.
    pub(crate) rendered: Option<Result<Rendered, RenderError>>,
    /// The Secrets and ConfigMaps that the rendered spec reads.
    pub(crate) inputs: BTreeMap<Input, Option<InputSeen>>,
    /// What `waitForSecrets` names and is not there, described.
    pub(crate) missing_secrets: Vec<String>,
    /// What `waitForWorkspaces` names and is not ready, described.
    pub(crate) missing_workspaces: Vec<String>,
    pub(crate) workspace: WorkspaceSeen,
    /// The API server took the rendered spec and kept the Workspace as it is: it drops what its CRD does not know.
    pub(crate) dropped: bool,
    pub(crate) settings: Settings,
}

/// What the operator of CAPT decided.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Settings {
    pub(crate) allow_cross_namespace: bool,
    pub(crate) resume_interrupted_creates: bool,
    pub(crate) shared_backend: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ClusterSeen {
    /// The apply belongs to no Cluster.
    Standalone,
    Absent(String),
    Present {
        paused: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TemplateSeen {
    Absent(String),
    Unreadable(String, Arc<str>),
    /// In another namespace, which is not allowed.
    Forbidden(String),
    Present {
        shared_backend: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InputSeen {
    /// Changes whenever the input does; says nothing about its contents.
    pub(crate) version: String,
    /// Whether it carries our finalizer. An input of another namespace never does.
    pub(crate) protected: bool,
    pub(crate) deleting: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum WorkspaceSeen {
    Absent,
    Unreadable(Arc<str>),
    Present(Arc<Workspace>),
}

/// The next write.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// There is nothing to do but to report.
    Report,
    /// Put the finalizer on the apply, together with the identity of the Workspace that it protects.
    Identify(BTreeMap<String, Option<String>>),
    /// Put the protection finalizer on inputs.
    Protect(Vec<Input>),
    Create(Box<Workspace>),
    /// Make the Workspace's spec, labels and annotations these.
    Change {
        spec: Value,
        exact: bool,
        labels: Vec<(&'static str, String)>,
        annotations: Vec<(&'static str, String)>,
    },
    /// Tell the provider to go on with a create that was cut off, begun at this time.
    Resume(String),
    /// Leave the Workspace and what it made to themselves.
    LetGo {
        why: &'static str,
    },
    Delete,
    /// Drop the finalizer, after a live look that the Workspace is really gone.
    ReleaseWhenGone,
    /// Drop the finalizer: there is no Workspace of ours to wait for.
    Release,
}

#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) step: Step,
    /// What to say when there is nothing else to do; `None` leaves the object entirely alone.
    pub(crate) status: Option<WorkspaceTemplateApplyStatus>,
}

pub(crate) fn plan(seen: &Observed, now: Timestamp) -> Plan {
    let apply = &*seen.apply;
    // It lives on in another management cluster; whatever is done here would be done to that one's cloud.
    if apply.annotations().contains_key(annotation::DELETE_FOR_MOVE) {
        return Plan {
            step: Step::Report,
            status: None,
        };
    }
    let deleting = apply.metadata.deletion_timestamp.is_some();
    if let Some(why) = paused(seen) {
        return Plan {
            step: Step::Report,
            status: Some(paused_status(seen, deleting, why, now)),
        };
    }
    if deleting {
        deletion(seen, now)
    } else {
        creation(seen, now)
    }
}

/// What to say when the step was refused for good.
pub(crate) fn refused(seen: &Observed, failure: &Failure, now: Timestamp) -> WorkspaceTemplateApplyStatus {
    let why = match failure {
        Failure::OwnershipConflict { .. } => Why::OwnershipConflict,
        Failure::NamespaceTerminating { .. } => Why::NamespaceTerminating,
        _ => Why::InvalidTemplate,
    };
    let mut words = Words::not_ready(why, failure.to_string());
    if seen.apply.metadata.deletion_timestamp.is_some() {
        words.deleting = Some((Deleting::OwnershipConflict, failure.to_string()));
    }
    status(seen, words, now)
}

fn creation(seen: &Observed, now: Timestamp) -> Plan {
    match next(seen) {
        Next::Step(step) => Plan { step, status: None },
        Next::Say(words) => Plan {
            step: Step::Report,
            status: Some(status(seen, *words, now)),
        },
    }
}

enum Next {
    Step(Step),
    Say(Box<Words>),
}

fn say(words: Words) -> Next {
    Next::Say(Box::new(words))
}

/// The first thing that is not as it should be.
fn next(seen: &Observed) -> Next {
    let identity = &seen.identity;
    if let ClusterSeen::Absent(name) = &seen.cluster {
        return say(Words::waiting(
            Waiting::WaitingForCluster,
            format!("Cluster {name} is not there"),
        ));
    }
    let workspace = match &seen.workspace {
        WorkspaceSeen::Absent => None,
        WorkspaceSeen::Unreadable(why) => {
            return say(Words::not_ready(
                Why::NotApplied,
                format!("Workspace {} cannot be read: {why}", identity.name),
            ));
        }
        WorkspaceSeen::Present(workspace) if !identity.owns(workspace) => {
            return say(Words::not_ready(
                Why::OwnershipConflict,
                format!(
                    "Workspace {} exists and was not made for this apply: delete or rename it",
                    identity.name
                ),
            ));
        }
        WorkspaceSeen::Present(workspace) if workspace.metadata.deletion_timestamp.is_some() => {
            let message = format!(
                "Workspace {} is being deleted; a new one is made when it has gone",
                identity.name
            );
            return say(Words::waiting(Waiting::WaitingForOldWorkspace, message));
        }
        WorkspaceSeen::Present(workspace) => Some(workspace),
    };
    if let Some(why) = unusable_identity(seen, workspace) {
        return say(Words::not_ready(Why::OwnershipConflict, why));
    }
    let shared = match &seen.template {
        TemplateSeen::Forbidden(name) => {
            let message = format!(
                "spec.templateRef names WorkspaceTemplate {name}: only a template of the apply's own namespace is allowed, unless the controller runs with --allow-cross-namespace-templates"
            );
            return say(Words::not_ready(Why::CrossNamespaceReference, message));
        }
        TemplateSeen::Unreadable(name, why) => {
            return say(Words::not_ready(
                Why::InvalidTemplate,
                format!("WorkspaceTemplate {name} cannot be read: {why}"),
            ));
        }
        TemplateSeen::Absent(name) => {
            let message = format!("WorkspaceTemplate {name} does not exist: create it, or correct spec.templateRef");
            return say(Words::of_workspace(seen, workspace).and_waiting(Waiting::WaitingForTemplate, message));
        }
        TemplateSeen::Present { shared_backend } => *shared_backend,
    };
    let rendered = match &seen.rendered {
        Some(Ok(rendered)) => rendered,
        Some(Err(error)) => return say(Words::not_ready(Why::of(error), error.to_string())),
        None => return say(Words::not_ready(Why::NotApplied, "the template was not rendered")),
    };
    // Only before the Workspace is made: a Secret that goes later must not stop the reports.
    if workspace.is_none() && !seen.missing_secrets.is_empty() {
        return say(Words::waiting(
            Waiting::WaitingForSecrets,
            seen.missing_secrets.join("; "),
        ));
    }
    if workspace.is_none() && !seen.missing_workspaces.is_empty() {
        return say(Words::waiting(
            Waiting::WaitingForWorkspaces,
            seen.missing_workspaces.join("; "),
        ));
    }
    let annotations = identity_annotations(seen, rendered, workspace, shared);
    let identified = annotations
        .iter()
        .all(|(key, value)| seen.apply.annotations().get(key) == value.as_ref());
    if !identified || !has_finalizer(&seen.apply, &FINALIZERS[..1]) {
        return Next::Step(Step::Identify(annotations));
    }
    let missing: Vec<String> = seen
        .inputs
        .iter()
        .filter(|(_, input)| input.as_ref().is_none_or(|input| input.deleting && !input.protected))
        .map(|(input, _)| format!("Terraform reads {input}, which does not exist"))
        .collect();
    if !missing.is_empty() {
        return say(Words::of_workspace(seen, workspace).and_waiting(Waiting::WaitingForInputs, missing.join("; ")));
    }
    let unprotected: Vec<Input> = seen
        .inputs
        .iter()
        .filter(|(input, state)| {
            input.namespace() == identity.namespace && state.as_ref().is_some_and(|state| !state.protected)
        })
        .map(|(input, _)| input.clone())
        .collect();
    if !unprotected.is_empty() {
        return Next::Step(Step::Protect(unprotected));
    }
    let versions = seen
        .inputs
        .iter()
        .filter_map(|(input, state)| Some((input, state.as_ref()?.version.clone())))
        .collect();
    let revision = rendered.revision(&versions);
    let spec = rendered.spec(&revision);
    let Some(workspace) = workspace else {
        return Next::Step(Step::Create(Box::new(new_workspace(seen, spec, &revision))));
    };
    if let Some(change) = change(seen, workspace, spec, &revision)
        && !seen.dropped
    {
        return Next::Step(change);
    }
    if let Some(resume) = resume(seen, workspace) {
        return Next::Step(resume);
    }
    say(Words::of_workspace(seen, Some(workspace)))
}

fn deletion(seen: &Observed, now: Timestamp) -> Plan {
    let identity = &seen.identity;
    let step = |step| Plan { step, status: None };
    let say = |words| Plan {
        step: Step::Report,
        status: Some(status(seen, words, now)),
    };
    if !has_finalizer(&seen.apply, &FINALIZERS) {
        return Plan {
            step: Step::Report,
            status: None,
        };
    }
    if has_finalizer(&seen.apply, &HOLDS) {
        let message = "what this apply belongs to still needs it; it goes when that is deleted, or comes back when its finalizers are removed by hand";
        return say(Words::keep().and_deleting(Deleting::Held, message));
    }
    if seen.identity.unknown_kind.is_some() {
        let why = unusable_identity(seen, None).unwrap_or_default();
        return say(Words::deleting(Deleting::OwnershipConflict, why));
    }
    let workspace = match &seen.workspace {
        WorkspaceSeen::Absent => return step(Step::ReleaseWhenGone),
        WorkspaceSeen::Unreadable(why) => {
            return say(Words::deleting(
                Deleting::WaitingForWorkspace,
                format!("Workspace {} cannot be read: {why}", identity.name),
            ));
        }
        WorkspaceSeen::Present(workspace) if !identity.owns(workspace) => {
            let made = seen
                .apply
                .status
                .as_ref()
                .and_then(|status| status.applied)
                .unwrap_or_default();
            if !made {
                return step(Step::ReleaseWhenGone);
            }
            let message = format!(
                "Workspace {} no longer carries the marks of this apply, so it is not deleted: put them back, or annotate this apply with {}: {}",
                identity.name,
                annotation::ABANDON_WORKSPACE,
                identity.name
            );
            let abandoned = seen.apply.annotations().get(annotation::ABANDON_WORKSPACE) == Some(&identity.name);
            return if abandoned {
                step(Step::Release)
            } else {
                say(Words::deleting(Deleting::OwnershipConflict, message))
            };
        }
        WorkspaceSeen::Present(workspace) => workspace,
    };
    let abandoned = seen.apply.annotations().get(annotation::ABANDON_WORKSPACE) == Some(&identity.name);
    let retained = seen.apply.spec.retain_workspace_on_delete.unwrap_or_default();
    if abandoned || retained {
        let why = if abandoned {
            "an operator abandoned it"
        } else {
            "spec.retainWorkspaceOnDelete is set"
        };
        return step(if is_let_go(workspace, identity.kind) {
            Step::Release
        } else {
            Step::LetGo { why }
        });
    }
    if workspace.metadata.deletion_timestamp.is_none() {
        return step(Step::Delete);
    }
    if let Some(resume) = resume(seen, workspace) {
        return step(resume);
    }
    let waiting = format!("Terraform destroys what Workspace {} made", identity.name);
    say(match State::of(workspace) {
        State::Failed(trouble) => {
            let (reason, message) = match trouble.cause {
                Cause::CreateInterrupted => (Deleting::CreateInterrupted, interrupted(&identity.name)),
                Cause::StateLocked => (Deleting::StateLocked, locked(&trouble.message)),
                Cause::Failed => (
                    Deleting::DestroyFailed,
                    format!("Workspace {} cannot be destroyed: {}", identity.name, trouble.message),
                ),
            };
            Words::deleting(reason, message)
        }
        State::Paused => Words::deleting(Deleting::WaitingForWorkspace, provider_paused(&identity.name)),
        State::Queued | State::Applying | State::Applied => Words::deleting(Deleting::WaitingForWorkspace, waiting),
    })
}

fn has_finalizer(apply: &WorkspaceTemplateApply, wanted: &[&str]) -> bool {
    apply
        .finalizers()
        .iter()
        .any(|finalizer| wanted.contains(&finalizer.as_str()))
}

fn paused(seen: &Observed) -> Option<&'static str> {
    match seen.cluster {
        ClusterSeen::Present { paused: true } => Some("the Cluster is paused"),
        _ if has_paused_annotation(&seen.apply.metadata) => Some("the annotation cluster.x-k8s.io/paused is set"),
        _ => None,
    }
}

/// Why what the apply records about its Workspace cannot be used.
fn unusable_identity(seen: &Observed, workspace: Option<&Arc<Workspace>>) -> Option<String> {
    let identity = &seen.identity;
    if let Some(kind) = &identity.unknown_kind {
        return Some(format!(
            "the annotation {} says {kind:?}, which is no kind of Workspace: use {}",
            annotation::WORKSPACE_KIND,
            WorkspaceKind::ALL.map(|kind| kind.to_string()).join(" or ")
        ));
    }
    (!identity.is_trusted(workspace.map(|workspace| &**workspace))).then(|| {
        format!(
            "the annotation {} names Workspace {}, which was not made for this apply: remove the annotation",
            annotation::WORKSPACE_NAME,
            identity.name
        )
    })
}

/// What is recorded on the apply: the Workspace's identity, the inputs it reads, and whether it may be moved.
fn identity_annotations(
    seen: &Observed,
    rendered: &Rendered,
    workspace: Option<&Arc<Workspace>>,
    shared_by_template: bool,
) -> BTreeMap<String, Option<String>> {
    // Those of the spec that Terraform would destroy with today stay listed until the new spec is in place.
    let mut inputs: BTreeSet<String> = workspace
        .map(|workspace| listed(&workspace.spec, &seen.identity))
        .unwrap_or_default();
    inputs.extend(
        rendered
            .inputs
            .iter()
            .filter(|input| input.namespace() == seen.identity.namespace)
            .map(Input::listed),
    );
    let inputs = (!inputs.is_empty()).then(|| json!(inputs).to_string());
    let movable = seen.settings.shared_backend || shared_by_template;
    BTreeMap::from([
        (annotation::WORKSPACE_NAME.to_owned(), Some(seen.identity.name.clone())),
        (
            annotation::WORKSPACE_KIND.to_owned(),
            Some(seen.identity.kind.to_string()),
        ),
        (annotation::WORKSPACE_INPUTS.to_owned(), inputs),
        (annotation::BLOCK_MOVE.to_owned(), (!movable).then(|| "true".to_owned())),
    ])
}

/// The inputs in a Workspace's spec, as the apply's annotation lists them.
fn listed(spec: &Value, identity: &Identity) -> BTreeSet<String> {
    let entries = ["/forProvider/varFiles", "/forProvider/env"]
        .into_iter()
        .filter_map(|pointer| spec.pointer(pointer)?.as_array());
    let mut inputs = BTreeSet::new();
    for entry in entries.flatten() {
        for (key, kind) in [("secretKeyRef", "Secret"), ("configMapKeyRef", "ConfigMap")] {
            let reference = entry.get(key);
            let namespace = reference
                .and_then(|reference| reference.get("namespace"))
                .and_then(Value::as_str);
            let name = reference
                .and_then(|reference| reference.get("name"))
                .and_then(Value::as_str);
            if let Some(name) = name.filter(|_| namespace.is_none_or(|namespace| namespace == identity.namespace)) {
                inputs.insert(format!("{kind}/{name}"));
            }
        }
    }
    inputs
}

fn new_workspace(seen: &Observed, spec: Value, revision: &str) -> Workspace {
    let mut workspace = Workspace::new(&seen.identity.name, &seen.identity.kind.api_resource(), spec);
    workspace.metadata.namespace = seen.identity.workspace_namespace().map(str::to_owned);
    workspace.metadata.labels = Some(
        labels(&seen.apply, &seen.identity)
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect(),
    );
    let mut annotations = marks(seen, revision);
    // The key of the Terraform state; it never changes afterwards.
    annotations.push((annotation::EXTERNAL_NAME, seen.identity.name.clone()));
    workspace.metadata.annotations = Some(
        annotations
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect(),
    );
    workspace
}

fn marks(seen: &Observed, revision: &str) -> Vec<(&'static str, String)> {
    vec![
        (annotation::WTA_NAMESPACE, seen.identity.namespace.clone()),
        (annotation::WTA_NAME, seen.identity.apply.clone()),
        (annotation::REVISION, revision.to_owned()),
    ]
}

fn change(seen: &Observed, workspace: &Workspace, spec: Value, revision: &str) -> Option<Step> {
    let same_revision = revision_of(&workspace.spec) == Some(revision);
    let (labels, annotations) = (labels(&seen.apply, &seen.identity), marks(seen, revision));
    let marked = labels
        .iter()
        .all(|(key, value)| workspace.labels().get(*key) == Some(value))
        && annotations
            .iter()
            .all(|(key, value)| workspace.annotations().get(*key) == Some(value));
    let as_wished = same_revision && contains(&workspace.spec, &spec);
    // A key that is no longer rendered goes only when the whole spec is replaced; the server's own defaults stay otherwise.
    (!as_wished || !marked).then_some(Step::Change {
        spec,
        exact: !same_revision,
        labels,
        annotations,
    })
}

/// Goes on with a create that was cut off, when the operator says so: by annotation, which counts for one time, or by flag,
/// which also counts once per Workspace. A provider that dies in every apply must not make everything again and again.
fn resume(seen: &Observed, workspace: &Workspace) -> Option<Step> {
    let State::Failed(trouble) = State::of(workspace) else {
        return None;
    };
    let begun = workspace.annotations().get(annotation::EXTERNAL_CREATE_PENDING)?;
    let asked = seen.apply.annotations().get(annotation::RESUME_CREATE) == Some(&seen.identity.name);
    let first = !workspace.annotations().contains_key(annotation::RESUMED);
    let wanted = asked || (seen.settings.resume_interrupted_creates && first);
    (trouble.cause == Cause::CreateInterrupted && wanted).then(|| Step::Resume(begun.clone()))
}

fn interrupted(workspace: &str) -> String {
    format!(
        "the Terraform provider was stopped during the first apply of Workspace {workspace} and does not know what became of it: resources may exist that are not in its state, and its state lock may be left behind. Look into the cloud, then annotate this apply with {}: {workspace}",
        annotation::RESUME_CREATE
    )
}

fn locked(message: &str) -> String {
    format!("the Terraform state is locked: if nobody works on it any more, remove the lock. {message}")
}

fn provider_paused(workspace: &str) -> String {
    format!(
        "the annotation {} on Workspace {workspace} stops the Terraform provider: remove it",
        annotation::CROSSPLANE_PAUSED
    )
}

/// Declares the reasons that Synced and Ready share, so that none is forgotten on either side.
macro_rules! shared_reasons {
    ($($name:ident),+ $(,)?) => {
        /// Why an apply is not ready; Synced and Ready say the same.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        enum Why { $( $name ),+ }

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
    WorkspacePaused,
    InvalidTemplate,
    UnsafeVariable,
    UnresolvedVariable,
    CrossNamespaceReference,
    OwnershipConflict,
    NamespaceTerminating,
    Deleting,
}

impl Why {
    fn of(error: &RenderError) -> Self {
        match error {
            RenderError::Unresolved { .. } => Self::UnresolvedVariable,
            RenderError::Unsafe { .. } => Self::UnsafeVariable,
            RenderError::Invalid { .. } => Self::InvalidTemplate,
            RenderError::CrossNamespace { .. } => Self::CrossNamespaceReference,
        }
    }
}

/// What is said about an apply, before it becomes conditions.
struct Words {
    /// `None` leaves Synced and Ready as they stand.
    readiness: Option<Readiness>,
    waiting: Option<(Waiting, String)>,
    /// What the deletion waits for; nothing is being deleted without it.
    deleting: Option<(Deleting, String)>,
    /// Whether it is about the spec as it stands now.
    current: bool,
}

struct Readiness {
    /// `None` when it is ready.
    not_ready: Option<Why>,
    message: String,
}

impl Words {
    fn not_ready(why: Why, message: impl Into<String>) -> Self {
        let readiness = Readiness {
            not_ready: Some(why),
            message: message.into(),
        };
        Self {
            readiness: Some(readiness),
            waiting: None,
            deleting: None,
            current: true,
        }
    }

    fn waiting(reason: Waiting, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            waiting: Some((reason, message.clone())),
            ..Self::not_ready(Why::NotApplied, message)
        }
    }

    /// Leaves everything as it stands.
    fn keep() -> Self {
        Self {
            readiness: None,
            waiting: None,
            deleting: None,
            current: false,
        }
    }

    fn deleting(reason: Deleting, message: impl Into<String>) -> Self {
        let message = message.into();
        Self::not_ready(Why::Deleting, "it is being deleted").and_deleting(reason, message)
    }

    fn and_deleting(mut self, reason: Deleting, message: impl Into<String>) -> Self {
        self.deleting = Some((reason, message.into()));
        self
    }

    /// The Workspace goes on as it is, while something keeps its apply from being rendered anew.
    fn and_waiting(mut self, reason: Waiting, message: String) -> Self {
        if self.readiness.is_none() {
            return Self::waiting(reason, message);
        }
        self.current = false;
        self.waiting = Some((reason, message));
        self
    }

    /// What the Workspace says; nothing when there is none.
    fn of_workspace(seen: &Observed, workspace: Option<&Arc<Workspace>>) -> Self {
        let Some(workspace) = workspace else {
            return Self::keep();
        };
        let name = &seen.identity.name;
        let (not_ready, message) = match State::of(workspace) {
            State::Applied => (None, format!("Workspace {name} is applied")),
            State::Queued => (
                Some(Why::WaitingForProvider),
                format!("Workspace {name} waits for the Terraform provider"),
            ),
            State::Applying => (Some(Why::Applying), format!("Terraform applies Workspace {name}")),
            State::Paused => (Some(Why::WorkspacePaused), provider_paused(name)),
            State::Failed(trouble) => match trouble.cause {
                Cause::Failed => (Some(Why::TerraformFailed), trouble.message),
                Cause::CreateInterrupted => (Some(Why::CreateInterrupted), interrupted(name)),
                Cause::StateLocked => (Some(Why::StateLocked), locked(&trouble.message)),
            },
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
            waiting: None,
            deleting: None,
            current: true,
        }
    }
}

/// Terraform's outputs as far as they fit into a status.
const MAX_OUTPUTS: usize = 64;
const MAX_OUTPUT: usize = 4096;

fn outputs(workspace: &Workspace) -> impl Iterator<Item = (&String, Option<String>)> {
    let outputs = workspace
        .status
        .as_ref()
        .and_then(|status| status.at_provider.as_ref())
        .map(|seen| &seen.outputs);
    outputs.into_iter().flatten().enumerate().map(|(index, (name, value))| {
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

fn paused_status(seen: &Observed, deleting: bool, why: &str, now: Timestamp) -> WorkspaceTemplateApplyStatus {
    let before = seen.apply.status.clone().unwrap_or_default();
    let report = ApplyReport {
        paused: Some(conditions::State::yes(Paused::Paused, why)),
        deleting: deleting.then(|| conditions::State::yes(Deleting::Paused, format!("nothing is deleted: {why}"))),
        ..ApplyReport::default()
    };
    let generation = seen.apply.metadata.generation.unwrap_or_default();
    WorkspaceTemplateApplyStatus {
        conditions: conditions::merge(&before.conditions, &report, generation, now),
        ..before
    }
}

fn status(seen: &Observed, words: Words, now: Timestamp) -> WorkspaceTemplateApplyStatus {
    let before = seen.apply.status.clone().unwrap_or_default();
    let generation = match before.observed_generation {
        // What was rendered last was rendered from an older spec.
        Some(observed) if !words.current => observed,
        _ => seen.apply.metadata.generation.unwrap_or_default(),
    };
    let (waiting_reason, waiting_message) = words.waiting.clone().unwrap_or((Waiting::NotWaiting, String::new()));
    let (deleting_reason, deleting_message) = words.deleting.clone().unwrap_or((Deleting::NotDeleting, String::new()));
    let is = |yes: bool| if yes { Status::True } else { Status::False };
    // Synced and Ready turn together: a revision that Terraform took but that a plan still differs from is not in place.
    let readiness = words.readiness.as_ref().map(|readiness| {
        let ready = is(readiness.not_ready.is_none());
        let (synced_reason, ready_reason) = readiness
            .not_ready
            .map_or((Synced::Synced, Ready::Available), Why::reasons);
        let message = steady(&before.conditions, ready_reason, &readiness.message);
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
            message: waiting_message,
        }),
        deleting: Some(conditions::State {
            status: is(words.deleting.is_some()),
            reason: deleting_reason,
            message: deleting_message,
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
        describe(&mut status, readiness, workspace, now);
    }
    status
}

/// The message that stands already, when the new one differs from it in numbers and identifiers alone: Terraform's errors
/// carry request ids and times, and each retry would otherwise be a write, here and on every parent.
fn steady(before: &[Condition], reason: Ready, message: &str) -> String {
    let words = |text: &str| -> Vec<String> {
        let plain = |word: &&str| !word.contains(|c: char| c.is_ascii_digit());
        text.split_whitespace().filter(plain).map(str::to_owned).collect()
    };
    match conditions::find(before, Ready::TYPE) {
        Some(standing)
            if standing.reason == reason.as_str() && words(&standing.message) == words(&bounded(message)) =>
        {
            standing.message.clone()
        }
        _ => message.to_owned(),
    }
}

/// What the status says about the Workspace beside its conditions.
fn describe(status: &mut WorkspaceTemplateApplyStatus, readiness: &Readiness, workspace: &Workspace, now: Timestamp) {
    status.workspace_name = Some(workspace.name_any());
    status.applied = Some(true);
    let revision = revision_of(&workspace.spec).map(str::to_owned);
    match &readiness.not_ready {
        None => {
            if status.last_applied_revision != revision || status.last_applied_time.is_none() {
                let whole = Timestamp::from_second(now.as_second()).unwrap_or(now);
                status.last_applied_time = Some(Time(whole));
            }
            status.last_applied_revision = revision;
            status.last_failed_revision = None;
            status.last_failure_message = None;
        }
        Some(Why::TerraformFailed | Why::CreateInterrupted | Why::StateLocked) => {
            status.last_failed_revision = revision;
            let said = conditions::find(&status.conditions, Ready::TYPE).map(|ready| ready.message.clone());
            status.last_failure_message = said;
        }
        Some(_) => {}
    }
    let seen: BTreeMap<String, String> = outputs(workspace)
        .filter_map(|(name, text)| Some((name.clone(), text?)))
        .collect();
    // While Terraform is at work the provider may show none; those of the last apply still stand.
    if readiness.not_ready.is_none() || !seen.is_empty() {
        status.outputs = seen;
    }
}

/// Whether the template, or the controller, declares the Terraform backend as shared.
pub(crate) fn declares_shared_backend(labels: &BTreeMap<String, String>) -> bool {
    labels.get(label::SHARED_BACKEND).is_some_and(|value| value == "true")
}

#[cfg(test)]
mod tests;
