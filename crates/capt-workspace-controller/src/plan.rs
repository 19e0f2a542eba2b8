//! What to do next for an apply, and what to say about it. No client, no clock, no randomness.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use capt_api::conditions::workspace_apply::{Deleting, Waiting};
use capt_api::names::{annotation, finalizer, label};
use capt_api::workspace::WorkspaceTemplateApplyStatus;
use capt_api::{Workspace, WorkspaceKind, WorkspaceTemplateApply};
use capt_runtime::apply::contains;
use capt_runtime::controller::Wake;
use capt_runtime::error::Failure;
use capt_runtime::scope::{has_paused_annotation, is_being_moved};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::render::{Input, RenderError, Rendered, revision_of};
use crate::report::{Why, Words, paused_status, status};
use crate::terraform::Cause;
use crate::workspace::{
    FINALIZERS, HOLDS, Identity, State, destroyed_since, is_held, is_let_go, labels, needs_hold, was_found,
};

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
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) allow_cross_namespace: bool,
    pub(crate) resume_interrupted_creates: bool,
    pub(crate) shared_backend: bool,
    pub(crate) deletion_timeout: SignedDuration,
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
    /// Keep the provider from destroying what the Workspace made before its turn has come.
    Hold,
    /// The Workspace's turn has come.
    Unhold,
    /// Lead the Workspace back to its own Terraform state, away from this one.
    RestoreKey(String),
    /// Take away what keeps `clusterctl move` waiting.
    AllowMove,
    /// Tell the provider to go on with a create that was cut off.
    Resume {
        /// When that create began.
        begun: String,
        /// What to create, as a revision of its own; nothing when all that follows is a destroy.
        wish: Option<Wish>,
    },
    /// Let the provider look at once at what it has found.
    LookAgain,
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

/// A rendered spec and its revision.
#[derive(Debug, Clone)]
pub(crate) struct Wish {
    pub(crate) spec: Value,
    pub(crate) revision: String,
}

impl Wish {
    fn of(seen: &Observed, rendered: &Rendered, resumed: Option<&str>) -> Self {
        let versions = seen
            .inputs
            .iter()
            .filter_map(|(input, state)| Some((input, state.as_ref()?.version.clone())))
            .collect();
        let revision = rendered.revision(&versions, resumed);
        Self {
            spec: rendered.spec(&revision),
            revision,
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) step: Step,
    /// What to say when there is nothing else to do; `None` leaves the status as it stands.
    pub(crate) status: Option<WorkspaceTemplateApplyStatus>,
    pub(crate) wake: Wake,
}

impl Plan {
    /// Leaves the object entirely alone.
    fn nothing() -> Self {
        Self::step(Step::Report)
    }

    /// The event that the write causes brings the next pass.
    fn step(step: Step) -> Self {
        Self {
            step,
            status: None,
            wake: Wake::OnEvent,
        }
    }

    /// Says it, now or when it lasts.
    fn say(seen: &Observed, words: Words, now: Timestamp) -> Self {
        match words.silent_until(seen, now) {
            Some(time) => Self {
                wake: Wake::At(time),
                ..Self::nothing()
            },
            None => Self {
                status: Some(status(seen, words, now)),
                ..Self::nothing()
            },
        }
    }
}

pub(crate) fn plan(seen: &Observed, now: Timestamp) -> Plan {
    let apply = &*seen.apply;
    // It lives on in another management cluster; whatever is done here would be done to that one's cloud.
    if is_being_moved(&apply.metadata) {
        return Plan::nothing();
    }
    if let Some(why) = paused(seen) {
        // clusterctl pauses first and waits then: a block that stayed until the Cluster is resumed would never go.
        if is_blocked(apply) && immovable(seen).is_none() {
            return Plan::step(Step::AllowMove);
        }
        return Plan {
            status: Some(paused_status(seen, &why, now)),
            ..Plan::nothing()
        };
    }
    if apply.metadata.deletion_timestamp.is_some() {
        deletion(seen, now)
    } else {
        match next(seen) {
            Next::Step(step) => Plan::step(step),
            Next::Say(words) => Plan::say(seen, *words, now),
        }
    }
}

/// What to say when the step was refused for good.
pub(crate) fn refused(seen: &Observed, failure: &Failure, now: Timestamp) -> WorkspaceTemplateApplyStatus {
    if seen.apply.metadata.deletion_timestamp.is_some() {
        let reason = match (failure, letting_go(seen)) {
            (Failure::OwnershipConflict { .. }, _) => Deleting::OwnershipConflict,
            (Failure::Denied { .. }, _) => Deleting::AdmissionDenied,
            (_, Some(LettingGo::Abandoned)) => Deleting::Abandoning,
            (_, Some(LettingGo::Retained)) => Deleting::Retaining,
            (_, None) => Deleting::WaitingForWorkspace,
        };
        return status(seen, Words::deleting(reason, failure.to_string()), now);
    }
    let why = match failure {
        Failure::OwnershipConflict { .. } => Why::OwnershipConflict,
        Failure::Denied { .. } => Why::AdmissionDenied,
        Failure::NamespaceTerminating { .. } => Why::NamespaceTerminating,
        // Not the cloud's: nothing has reached Terraform yet.
        Failure::QuotaExceeded { .. } => Why::NotApplied,
        _ => Why::InvalidTemplate,
    };
    status(seen, Words::not_ready(why, failure.to_string()), now)
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
            seen,
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
        WorkspaceSeen::Present(workspace) => {
            if let Some(strayed) = identity.strays(workspace) {
                return Next::Step(Step::RestoreKey(strayed.to_owned()));
            }
            if workspace.metadata.deletion_timestamp.is_some() {
                return say(Words::of_deleted_by_others(seen, workspace));
            }
            Some(workspace)
        }
    };
    if let Some(why) = unusable_identity(seen, workspace) {
        return say(Words::not_ready(Why::OwnershipConflict, why));
    }
    match &seen.template {
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
            return say(Words::of_workspace(seen, workspace).and_waiting(seen, Waiting::WaitingForTemplate, message));
        }
        TemplateSeen::Present { .. } => {}
    }
    let rendered = match &seen.rendered {
        Some(Ok(rendered)) => rendered,
        Some(Err(error)) => return say(Words::not_ready(Why::of(error), error.to_string())),
        None => return say(Words::not_ready(Why::NotApplied, "the template was not rendered")),
    };
    // Only before the Workspace is made: a Secret that goes later must not stop the reports.
    if workspace.is_none() && !seen.missing_secrets.is_empty() {
        return say(Words::waiting(
            seen,
            Waiting::WaitingForSecrets,
            seen.missing_secrets.join("; "),
        ));
    }
    if workspace.is_none() && !seen.missing_workspaces.is_empty() {
        return say(Words::waiting(
            seen,
            Waiting::WaitingForWorkspaces,
            seen.missing_workspaces.join("; "),
        ));
    }
    let annotations = identity_annotations(seen, rendered, workspace);
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
        return say(Words::of_workspace(seen, workspace).and_waiting(
            seen,
            Waiting::WaitingForInputs,
            missing.join("; "),
        ));
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
    let wish = |resumed: Option<&str>| Wish::of(seen, rendered, resumed);
    let Some(workspace) = workspace else {
        return Next::Step(Step::Create(Box::new(new_workspace(seen, wish(None)))));
    };
    let resumed = workspace.annotations().get(annotation::RESUMED);
    if let Some(change) = change(seen, workspace, wish(resumed.map(String::as_str)))
        && !seen.dropped
    {
        return Next::Step(change);
    }
    // A new one has it from the beginning; this one was let go once, or is older than the hold.
    if needs_hold(identity.kind) && !is_held(workspace) {
        return Next::Step(Step::Hold);
    }
    if let Some(begun) = resumes(seen, workspace) {
        // The old verdict must not be read as one on the new attempt. Only a new generation tells them apart: the provider
        // repeats it word for word, with its old time, when it is stopped again.
        let wish = Some(wish(Some(&begun)));
        return Next::Step(Step::Resume { begun, wish });
    }
    if was_found(workspace) && !workspace.annotations().contains_key(annotation::LOOKED_AGAIN) {
        return Next::Step(Step::LookAgain);
    }
    say(Words::of_workspace(seen, Some(workspace)))
}

fn deletion(seen: &Observed, now: Timestamp) -> Plan {
    let identity = &seen.identity;
    let say = |words| Plan::say(seen, words, now);
    if !has_finalizer(&seen.apply, &FINALIZERS) {
        return Plan::nothing();
    }
    if has_finalizer(&seen.apply, &HOLDS) {
        let message = "what this apply belongs to still needs it; it goes when that is deleted, or comes back when its finalizers are removed by hand";
        let held = Words::keep().and_deleting(Deleting::Held, message);
        return say(held.passing_since(seen.apply.metadata.deletion_timestamp.as_ref()));
    }
    if seen.identity.unknown_kind.is_some() {
        let why = unusable_identity(seen, None).unwrap_or_default();
        return say(Words::deleting(Deleting::OwnershipConflict, why));
    }
    let workspace = match &seen.workspace {
        WorkspaceSeen::Absent => return Plan::step(Step::ReleaseWhenGone),
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
                return Plan::step(Step::ReleaseWhenGone);
            }
            let message = format!(
                "Workspace {} no longer carries the marks of this apply, so it is not deleted: put them back, or annotate this apply with {}: {}",
                identity.name,
                annotation::ABANDON_WORKSPACE,
                identity.name
            );
            return match letting_go(seen) {
                Some(LettingGo::Abandoned) => Plan::step(Step::Release),
                _ => say(Words::deleting(Deleting::OwnershipConflict, message)),
            };
        }
        WorkspaceSeen::Present(workspace) => workspace,
    };
    if let Some(strayed) = identity.strays(workspace) {
        return Plan::step(Step::RestoreKey(strayed.to_owned()));
    }
    let letting_go = letting_go(seen);
    if let Some(why) = letting_go.filter(|_| !is_let_go(workspace, identity.kind)) {
        return Plan::step(Step::LetGo { why: why.reason() });
    }
    if is_held(workspace) {
        return Plan::step(Step::Unhold);
    }
    if letting_go.is_some() {
        return Plan::step(Step::Release);
    }
    let Some(begun) = destroyed_since(workspace) else {
        return Plan::step(Step::Delete);
    };
    if let Some(begun) = resumes(seen, workspace) {
        return Plan::step(Step::Resume { begun, wish: None });
    }
    if let Some(change) = correction(seen, workspace) {
        return Plan::step(change);
    }
    let words = Words::of_destroyed(seen, workspace);
    // Terraform's own time: neither a hold nor a pause before it counts.
    let deadline = begun.checked_add(seen.settings.deletion_timeout);
    let deadline = deadline.unwrap_or(Timestamp::MAX);
    if deadline <= now {
        return say(words.overdue());
    }
    let plan = say(words);
    match plan.wake {
        Wake::OnEvent => Plan {
            wake: Wake::At(deadline),
            ..plan
        },
        Wake::At(_) => plan,
    }
}

/// Why a Workspace outlives its apply.
#[derive(Clone, Copy)]
enum LettingGo {
    Abandoned,
    Retained,
}

impl LettingGo {
    fn reason(self) -> &'static str {
        match self {
            Self::Abandoned => "an operator abandoned it",
            Self::Retained => "spec.retainWorkspaceOnDelete is set",
        }
    }
}

fn letting_go(seen: &Observed) -> Option<LettingGo> {
    let abandoned = seen.apply.annotations().get(annotation::ABANDON_WORKSPACE) == Some(&seen.identity.name);
    let retained = seen.apply.spec.retain_workspace_on_delete.unwrap_or_default();
    match (abandoned, retained) {
        (true, _) => Some(LettingGo::Abandoned),
        (false, true) => Some(LettingGo::Retained),
        (false, false) => None,
    }
}

fn has_finalizer(apply: &WorkspaceTemplateApply, wanted: &[&str]) -> bool {
    apply
        .finalizers()
        .iter()
        .any(|finalizer| wanted.contains(&finalizer.as_str()))
}

fn paused(seen: &Observed) -> Option<Cow<'static, str>> {
    match seen.cluster {
        // So it is when a move has begun, and this is where one looks who is told that it waits for this apply.
        ClusterSeen::Present { paused: true } => Some(match immovable(seen) {
            Some(why) if is_blocked(&seen.apply) && seen.apply.metadata.deletion_timestamp.is_none() => {
                format!("the Cluster is paused; clusterctl move would not go on, because {why}").into()
            }
            _ => "the Cluster is paused".into(),
        }),
        _ if has_paused_annotation(&seen.apply.metadata) => {
            Some("the annotation cluster.x-k8s.io/paused is set".into())
        }
        _ => None,
    }
}

/// Whether `clusterctl move` waits when it comes to this apply.
fn is_blocked(apply: &WorkspaceTemplateApply) -> bool {
    apply.annotations().contains_key(annotation::BLOCK_MOVE)
}

/// Why another management cluster would not find the Terraform state, and would build everything a second time.
fn immovable(seen: &Observed) -> Option<String> {
    let shared = seen.settings.shared_backend
        || matches!(seen.template, TemplateSeen::Present { shared_backend } if shared_backend);
    if !shared {
        return Some(format!(
            "nobody has declared that both management clusters reach the same Terraform backend: if they do, label WorkspaceTemplate {} with {}=true, or run capt-workspace-controller with --shared-terraform-backend",
            seen.apply.spec.template_ref.name,
            label::SHARED_BACKEND
        ));
    }
    let workspace = match &seen.workspace {
        WorkspaceSeen::Present(workspace) => Some(&**workspace),
        WorkspaceSeen::Absent | WorkspaceSeen::Unreadable(_) => None,
    };
    (!seen.identity.is_found_elsewhere(workspace)).then(|| {
        format!(
            "Workspace {} was not named by CAPT or keeps its Terraform state under another name: the other management cluster would not find it",
            seen.identity.name
        )
    })
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
    let blocked = immovable(seen).is_some();
    BTreeMap::from([
        (annotation::WORKSPACE_NAME.to_owned(), Some(seen.identity.name.clone())),
        (
            annotation::WORKSPACE_KIND.to_owned(),
            Some(seen.identity.kind.to_string()),
        ),
        (annotation::WORKSPACE_INPUTS.to_owned(), inputs),
        (annotation::BLOCK_MOVE.to_owned(), blocked.then(|| "true".to_owned())),
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

fn new_workspace(seen: &Observed, wish: Wish) -> Workspace {
    let mut annotations = marks(seen, &wish.revision);
    let mut workspace = Workspace::new(&seen.identity.name, &seen.identity.kind.api_resource(), wish.spec);
    workspace.metadata.namespace = seen.identity.workspace_namespace().map(str::to_owned);
    workspace.metadata.labels = Some(
        labels(&seen.apply, &seen.identity)
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect(),
    );
    workspace.metadata.finalizers = needs_hold(seen.identity.kind).then(|| vec![finalizer::WORKSPACE_HOLD.to_owned()]);
    // The key of the Terraform state; it never changes afterwards.
    annotations.push((annotation::EXTERNAL_NAME, seen.identity.state_key().to_owned()));
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

/// What keeps Terraform from destroying may be what it was given: a module, a variable, a ProviderConfig. What is corrected
/// afterwards still reaches it. Otherwise it destroys by what it has applied: with another region, say, it would find nothing
/// to destroy there, and forget what there is.
fn correction(seen: &Observed, workspace: &Workspace) -> Option<Step> {
    let is_prevented = matches!(State::of(workspace), State::Failed(trouble) if trouble.is_in_the_configuration());
    if !is_prevented || seen.dropped || seen.inputs.values().any(Option::is_none) {
        return None;
    }
    let rendered = seen.rendered.as_ref()?.as_ref().ok()?;
    let resumed = workspace.annotations().get(annotation::RESUMED);
    let wish = Wish::of(seen, rendered, resumed.map(String::as_str));
    change(seen, workspace, wish)
}

fn change(seen: &Observed, workspace: &Workspace, Wish { spec, revision }: Wish) -> Option<Step> {
    let same_revision = revision_of(&workspace.spec) == Some(revision.as_str());
    let (labels, annotations) = (labels(&seen.apply, &seen.identity), marks(seen, &revision));
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

/// When the create began that was cut off and is to go on, because the operator says so: by annotation, which counts for one
/// time, or by flag, which also counts once per Workspace. A provider that dies in every apply must not make everything again
/// and again.
fn resumes(seen: &Observed, workspace: &Workspace) -> Option<String> {
    let State::Failed(trouble) = State::of(workspace) else {
        return None;
    };
    let begun = workspace.annotations().get(annotation::EXTERNAL_CREATE_PENDING)?;
    let asked = seen.apply.annotations().get(annotation::RESUME_CREATE) == Some(&seen.identity.name);
    let first = !workspace.annotations().contains_key(annotation::RESUMED);
    let wanted = asked || (seen.settings.resume_interrupted_creates && first);
    (trouble.cause == Cause::CreateInterrupted && wanted).then(|| begun.clone())
}

/// Whether the template, or the controller, declares the Terraform backend as shared.
pub(crate) fn declares_shared_backend(labels: &BTreeMap<String, String>) -> bool {
    labels.get(label::SHARED_BACKEND).is_some_and(|value| value == "true")
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod walks;
#[cfg(test)]
mod world;
