//! Carries out the plan for an apply: one write, or else the report.

use std::collections::BTreeMap;

use capt_api::names::{annotation, finalizer};
use capt_api::{Workspace, WorkspaceKind, WorkspaceTemplateApply};
use capt_runtime::apply::{
    Bond, Change, Compare, Created, Edit, FinalizerAdded, Objects, Ours, Parent, Planned, Writer,
};
use capt_runtime::controller::{Reconciler, Wake};
use capt_runtime::error::{Class, Classified, Failure, ObjectRef, Race};
use capt_runtime::events::{Events, Severity};
use capt_runtime::key::Key;
use capt_runtime::metrics::Lives;
use capt_runtime::transition::announce;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::PartialObjectMeta;
use kube::{Resource, ResourceExt};

use crate::metrics;
use crate::observe::{Caches, workspace_key};
use crate::plan::{self, Observed, Settings, Step, WorkspaceSeen};
use crate::render::Input;
use crate::workspace::{FINALIZERS, Identity, back_reference, is_held, is_let_go, let_go_spec};

/// Brings applies and their Workspaces together.
#[derive(Debug)]
pub(crate) struct Applies {
    pub(crate) caches: Caches,
    pub(crate) writer: Writer,
    pub(crate) events: Events,
    pub(crate) lives: Lives,
    pub(crate) default_kind: WorkspaceKind,
    pub(crate) settings: Settings,
}

impl Reconciler for Applies {
    type Error = Failure;

    async fn reconcile(&self, key: &Key) -> Result<Wake, Failure> {
        let Some(apply) = self.caches.applies.get(key) else {
            self.let_go_of_orphan(key).await?;
            return Ok(Wake::OnEvent);
        };
        tracing::Span::current().record("generation", apply.metadata.generation);
        let mut seen = self.caches.observe(apply, self.default_kind, self.settings);
        let mut plan = plan::plan(&seen, Timestamp::now());
        let mut outcome = self.perform(&seen, &plan.step).await;
        if let Ok(Effect::None) = outcome {
            // No event will follow that could bring another pass, so what there is to say is said now.
            seen.dropped = true;
            plan = plan::plan(&seen, Timestamp::now());
            outcome = self.perform(&seen, &plan.step).await;
        }
        let status = match &outcome {
            Ok(_) => plan.status,
            // A verdict is shown, and a full namespace, where somebody has to make room; what passes by itself is not.
            Err(failure)
                if matches!(failure.class(), Class::Terminal(_))
                    || matches!(failure, Failure::QuotaExceeded { .. }) =>
            {
                Some(plan::refused(&seen, failure, Timestamp::now()))
            }
            Err(_) => None,
        };
        if let Some(status) = status {
            let planned = Planned::new(&*seen.apply)?;
            let written = self
                .applies()
                .apply_status(&planned, &status, "the apply's state changed")
                .await?;
            if !written.is_unchanged() {
                metrics::reported(&self.lives, &seen.apply, &status, Timestamp::now());
                let before = seen.apply.status.as_ref().map_or(&[][..], |status| &status.conditions);
                announce(
                    &self.events,
                    &seen.apply.object_ref(&()),
                    before,
                    &status.conditions,
                    &["Ready", "Deleting", "Paused"],
                );
            }
        }
        outcome.map(|_| plan.wake)
    }

    fn is_behind(&self, key: &Key) -> bool {
        self.caches.applies.is_behind(key)
            || self.caches.applies.get(key).is_some_and(|apply| {
                let identity = Identity::of(&apply, self.default_kind);
                let workspaces = &self.caches.workspaces.of(identity.kind).all;
                workspaces.is_behind(&workspace_key(&identity))
            })
    }
}

/// What became of a step.
enum Effect {
    /// There was nothing to write, or it was written: the watch brings the result.
    Some,
    /// The API server took the write and changed nothing.
    None,
}

impl Applies {
    fn applies(&self) -> Objects<WorkspaceTemplateApply> {
        self.writer.of().shown_in(&self.caches.applies)
    }

    fn workspaces(&self, kind: WorkspaceKind) -> Objects<Workspace> {
        let cache = &self.caches.workspaces.of(kind).all;
        self.writer.of_dynamic(kind.api_resource()).shown_in(cache)
    }

    async fn perform(&self, seen: &Observed, step: &Step) -> Result<Effect, Failure> {
        let apply = Planned::new(&*seen.apply)?;
        let identity = &seen.identity;
        match step {
            Step::Report => {}
            Step::Identify(annotations) => {
                let why = "its Workspace must be found and destroyed before it may go";
                // Refused because it is being deleted: then nothing is made any more, and the watch brings the deletion.
                let (FinalizerAdded::Unchanged | FinalizerAdded::Added(_) | FinalizerAdded::Deleting) = self
                    .applies()
                    .add_finalizer(&apply, finalizer::WORKSPACE_TEMPLATE_APPLY, annotations, why)
                    .await?;
            }
            Step::Protect(inputs) => {
                for input in inputs {
                    self.protect(input).await?;
                }
            }
            Step::Create(workspace) => {
                self.applies().confirm_living(&apply).await?;
                let parent = Parent::of(&apply);
                let owns = |live: &Workspace| identity.owns(live);
                let why = "the template was rendered for the first time";
                // An earlier pass may have made it, or it may be going: the watch brings it either way.
                let (Created::New(_) | Created::Adopted(_) | Created::Deleting(_)) = self
                    .workspaces(identity.kind)
                    .create_identified(&parent, Bond::Label, (**workspace).clone(), owns, why)
                    .await?;
            }
            Step::Change {
                spec,
                exact,
                labels,
                annotations,
            } => {
                let compare = if *exact { Compare::Exact } else { Compare::Contained };
                let mut change = Change::spec(spec.clone(), compare);
                for (key, value) in labels {
                    change = change.label(key, Some(value));
                }
                for (key, value) in annotations {
                    change = change.annotation(key, Some(value));
                }
                let why = "the rendered template changed";
                return self.change_workspace(seen, &change, why).await;
            }
            Step::Hold => {
                if let WorkspaceSeen::Present(workspace) = &seen.workspace {
                    let why = "whoever deletes its namespace must not destroy it out of turn";
                    // Refused because it is being deleted: the watch brings that.
                    let (FinalizerAdded::Unchanged | FinalizerAdded::Added(_) | FinalizerAdded::Deleting) = self
                        .workspaces(identity.kind)
                        .add_finalizer(
                            &Planned::new(&**workspace)?,
                            finalizer::WORKSPACE_HOLD,
                            &Default::default(),
                            why,
                        )
                        .await?;
                }
            }
            Step::Unhold => {
                if let WorkspaceSeen::Present(workspace) = &seen.workspace {
                    self.unhold(identity.kind, workspace, "its apply is being deleted")
                        .await?;
                }
            }
            Step::RestoreKey(strayed) => {
                if let WorkspaceSeen::Present(workspace) = &seen.workspace {
                    let path = ["metadata", "annotations", annotation::EXTERNAL_NAME];
                    let edit = Edit::new()
                        .only_if(&path, Some(strayed.as_str().into()))
                        .set(&path, identity.state_key().into());
                    let why = "somebody changed the key of its Terraform state";
                    let _written = self
                        .workspaces(identity.kind)
                        .patch(&Planned::new(&**workspace)?, edit, why)
                        .await?;
                    let note = format!(
                        "somebody changed {} of Workspace {} from {} to {strayed}, the key of another Terraform state; it was put back. What Terraform made under {strayed} meanwhile is not looked after",
                        annotation::EXTERNAL_NAME,
                        identity.name,
                        identity.state_key(),
                    );
                    self.tell(seen, Severity::Warning, "StateKeyRestored", "Restore", &note);
                }
            }
            Step::AllowMove => {
                let edit = Edit::new().remove(&["metadata", "annotations", annotation::BLOCK_MOVE]);
                let why = "the other management cluster is declared to reach the same Terraform backend";
                let _written = self.applies().patch(&apply, edit, why).await?;
            }
            Step::Resume { begun, wish } => {
                if let WorkspaceSeen::Present(workspace) = &seen.workspace {
                    let path = |key| ["metadata", "annotations", key];
                    let mut edit = Edit::new()
                        .at_version()
                        .only_if(&path(annotation::EXTERNAL_CREATE_PENDING), Some(begun.as_str().into()))
                        .remove(&path(annotation::EXTERNAL_CREATE_PENDING))
                        // The provider does not watch that annotation; this one wakes it.
                        .set(&path(annotation::RESUMED), begun.as_str().into());
                    // In the same patch: a write while the provider works makes it lose its own report.
                    if let Some(wish) = wish {
                        edit = edit
                            .set(&path(annotation::REVISION), wish.revision.as_str().into())
                            .set(&["spec"], wish.spec.clone());
                    }
                    let why = "an operator decided to go on with a create that was cut off";
                    let _written = self
                        .workspaces(identity.kind)
                        .patch(&Planned::new(&**workspace)?, edit, why)
                        .await?;
                    self.take_order(&apply).await?;
                    self.tell(
                        seen,
                        Severity::Warning,
                        "CreateResumed",
                        "Resume",
                        &format!("the interrupted create of Workspace {} goes on", identity.name),
                    );
                }
            }
            Step::LookAgain => {
                if let WorkspaceSeen::Present(workspace) = &seen.workspace {
                    let path = ["metadata", "annotations", annotation::LOOKED_AGAIN];
                    // Every annotation but its own wakes the provider.
                    let edit = Edit::new().set(&path, "true".into());
                    let why = "the provider has not said what it found";
                    let _written = self
                        .workspaces(identity.kind)
                        .patch(&Planned::new(&**workspace)?, edit, why)
                        .await?;
                }
            }
            Step::LetGo { why } => {
                if let WorkspaceSeen::Present(workspace) = &seen.workspace {
                    let change = Change::spec(let_go_spec(workspace, identity.kind), Compare::Exact);
                    let _ = self.change_workspace(seen, &change, why).await?;
                    let (name, uid) = (identity.name.as_str(), workspace.uid().unwrap_or_default());
                    tracing::info!(target: "audit", what = "let go", kind = "Workspace", name, uid, why);
                    let note = format!(
                        "Workspace {} and everything that it made are left in place: {why}",
                        identity.name
                    );
                    self.tell(seen, Severity::Warning, "WorkspaceLetGo", "LetGo", &note);
                }
            }
            Step::Delete => {
                if let WorkspaceSeen::Present(workspace) = &seen.workspace {
                    let workspaces = self.workspaces(identity.kind);
                    let ours = Ours::by_identity(&workspaces, Planned::new(&**workspace)?, identity.owns(workspace))?;
                    let _deleted = workspaces.delete(&ours, "its apply is being deleted").await?;
                }
            }
            Step::ReleaseWhenGone => {
                let live = self
                    .workspaces(identity.kind)
                    .live(identity.workspace_namespace(), &identity.name)
                    .await?;
                if live.is_some_and(|live| identity.owns(&live)) {
                    // The cache has not seen it yet.
                    return Err(Failure::LostRace {
                        object: ObjectRef::new("Workspace", identity.workspace_namespace(), &identity.name),
                        race: Race::Changed,
                    });
                }
                self.release(&apply, "its Workspace is gone").await?;
            }
            Step::Release => {
                self.release(&apply, "no Workspace of its own has to be destroyed")
                    .await?
            }
        }
        Ok(Effect::Some)
    }

    /// The operator's order counts for one interrupted create, not for the next one too.
    async fn take_order(&self, apply: &Planned<'_, WorkspaceTemplateApply>) -> Result<(), Failure> {
        let path = ["metadata", "annotations", annotation::RESUME_CREATE];
        if let Some(order) = apply.object().annotations().get(annotation::RESUME_CREATE) {
            let edit = Edit::new().only_if(&path, Some(order.as_str().into())).remove(&path);
            let _written = self.applies().patch(apply, edit, "the order was carried out").await?;
        }
        Ok(())
    }

    async fn release(&self, apply: &Planned<'_, WorkspaceTemplateApply>, why: &str) -> Result<(), Failure> {
        let released = self.applies().remove_finalizers(apply, &FINALIZERS, why).await?;
        if !released.is_unchanged() {
            metrics::gone(&self.lives, apply.object(), Timestamp::now());
        }
        Ok(())
    }

    /// Lets the provider act on the deletion of a Workspace.
    async fn unhold(&self, kind: WorkspaceKind, workspace: &Workspace, why: &str) -> Result<(), Failure> {
        let mut wake = BTreeMap::new();
        if workspace.metadata.deletion_timestamp.is_some() {
            // It looks again by itself too, but only after a while that has grown with the waiting.
            wake.insert(annotation::RELEASED.to_owned(), Some(Timestamp::now().to_string()));
        }
        let _written = self
            .workspaces(kind)
            .release(&Planned::new(workspace)?, &[finalizer::WORKSPACE_HOLD], &wake, why)
            .await?;
        Ok(())
    }

    async fn change_workspace(&self, seen: &Observed, change: &Change, why: &str) -> Result<Effect, Failure> {
        let WorkspaceSeen::Present(workspace) = &seen.workspace else {
            return Ok(Effect::Some);
        };
        let workspaces = self.workspaces(seen.identity.kind);
        let ours = Ours::by_identity(&workspaces, Planned::new(&**workspace)?, seen.identity.owns(workspace))?;
        let written = workspaces.change(&ours, change, why).await?.written();
        let same = written.is_some_and(|now| now.metadata.resource_version == workspace.metadata.resource_version);
        Ok(if same { Effect::None } else { Effect::Some })
    }

    async fn protect(&self, input: &Input) -> Result<(), Failure> {
        let key = Key::namespaced(input.namespace(), input.name());
        match input {
            Input::Secret { .. } => {
                protect(
                    &self.writer.of::<PartialObjectMeta<Secret>>(),
                    self.caches.secrets.get(&key).as_deref(),
                )
                .await
            }
            Input::ConfigMap { .. } => {
                protect(
                    &self.writer.of::<PartialObjectMeta<ConfigMap>>(),
                    self.caches.config_maps.get(&key).as_deref(),
                )
                .await
            }
        }
    }

    fn tell(&self, seen: &Observed, severity: Severity, reason: &str, action: &str, note: &str) {
        self.events
            .publish(seen.apply.object_ref(&()), severity, reason, action, note);
    }

    /// A Workspace with our marks whose apply is really gone, after a move or a finalizer removed by hand: it must not go on
    /// changing a cloud that now belongs to somebody else.
    async fn let_go_of_orphan(&self, key: &Key) -> Result<(), Failure> {
        for kind in WorkspaceKind::ALL {
            for workspace in self.caches.workspaces.of(kind).by_apply.get(key) {
                let (is_held, is_let_go) = (is_held(&workspace), is_let_go(&workspace, kind));
                if !is_held && (is_let_go || workspace.metadata.deletion_timestamp.is_some()) {
                    continue;
                }
                let namespace = key.namespace().unwrap_or_default();
                if self.applies().live(Some(namespace), key.name()).await?.is_some() {
                    return Ok(());
                }
                if is_let_go {
                    self.unhold(kind, &workspace, "its apply is gone, and it was let go")
                        .await?;
                    continue;
                }
                let workspaces = self.workspaces(kind);
                let marked = back_reference(&workspace) == Some((namespace, key.name()));
                let ours = Ours::by_identity(&workspaces, Planned::new(&*workspace)?, marked)?;
                let change = Change::spec(let_go_spec(&workspace, kind), Compare::Exact);
                let why = "its apply is gone, and so is the right to change what it made";
                if !workspaces.change(&ours, &change, why).await?.is_unchanged() {
                    let workspace = workspace.name_any();
                    tracing::warn!(workspace, "Workspace let go: its apply does not exist any more");
                }
            }
        }
        Ok(())
    }
}

async fn protect<K>(objects: &Objects<K>, input: Option<&K>) -> Result<(), Failure>
where
    K: Resource<DynamicType = ()> + serde::de::DeserializeOwned,
{
    let Some(input) = input else { return Ok(()) };
    let why = "Terraform reads it, also to destroy";
    let (FinalizerAdded::Unchanged | FinalizerAdded::Added(_) | FinalizerAdded::Deleting) = objects
        .add_finalizer(
            &Planned::new(input)?,
            finalizer::WORKSPACE_INPUT,
            &Default::default(),
            why,
        )
        .await?;
    Ok(())
}
