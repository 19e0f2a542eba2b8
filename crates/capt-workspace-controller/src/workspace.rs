//! The Workspace of an apply: its name and kind, whether it is ours, and what it says.

use capt_api::conditions::find;
use capt_api::external::workspace::{Sync, WorkspaceExt};
use capt_api::names::{self, annotation, finalizer, label};
use capt_api::workspace::{DeletionPolicy, ManagementAction};
use capt_api::{Workspace, WorkspaceKind, WorkspaceTemplateApply};
use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::terraform::{self, Trouble};

/// The Workspace that belongs to an apply, whether it exists or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) name: String,
    pub(crate) kind: WorkspaceKind,
    pub(crate) namespace: String,
    pub(crate) apply: String,
    /// The key of the Terraform state, once our own status tells it.
    state: Option<String>,
    /// Whether our own status names the Workspace: users write annotations, but not the status.
    confirmed: bool,
    /// What the apply records as its Workspace's kind, when that is no kind at all.
    pub(crate) unknown_kind: Option<String>,
}

impl Identity {
    /// As recorded on the apply; else as the Go version left it in the status; else derived. Recorded first, because a
    /// lost status or a changed flag must not lose a Workspace.
    pub(crate) fn of(apply: &WorkspaceTemplateApply, default_kind: WorkspaceKind) -> Self {
        let (namespace, name) = (apply.namespace().unwrap_or_default(), apply.name_any());
        let recorded = apply.annotations().get(annotation::WORKSPACE_NAME).cloned();
        let reported = apply.status.as_ref().and_then(|status| status.workspace_name.clone());
        let reported = reported.filter(|name| !name.is_empty());
        let recorded_kind = apply.annotations().get(annotation::WORKSPACE_KIND);
        let kind = recorded_kind.and_then(|text| text.parse().ok());
        // The Go version knew this kind alone, and recorded none.
        let inherited_kind = (recorded.is_none() && reported.is_some()).then_some(WorkspaceKind::ClusterScoped);
        let workspace = recorded.or_else(|| reported.clone());
        let workspace = workspace.unwrap_or_else(|| names::workspace_name(&namespace, &name));
        let state = apply
            .status
            .as_ref()
            .and_then(|status| status.terraform_workspace.clone());
        let confirmed = reported.as_ref() == Some(&workspace);
        Self {
            state: state.filter(|_| confirmed),
            confirmed,
            name: workspace,
            kind: kind.or(inherited_kind).unwrap_or(default_kind),
            unknown_kind: recorded_kind.filter(|_| kind.is_none()).cloned(),
            namespace,
            apply: name,
        }
    }

    /// Whether the name may be used at all. Anybody who may write an apply can write its annotations; without this check
    /// they could name another tenant's Workspace, or the key of another tenant's Terraform state.
    pub(crate) fn is_trusted(&self, workspace: Option<&Workspace>) -> bool {
        self.confirmed
            || self.name == names::workspace_name(&self.namespace, &self.apply)
            || workspace.is_some_and(|workspace| self.marked(workspace))
    }

    /// Whether an apply of the same namespace and name leads to the same Terraform state in any management cluster: nothing
    /// but metadata and spec gets there, and of these only a name that can be derived is trusted.
    pub(crate) fn is_found_elsewhere(&self, workspace: Option<&Workspace>) -> bool {
        let key = workspace.and_then(external_name);
        self.name == names::workspace_name(&self.namespace, &self.apply) && key.is_none_or(|key| key == self.name)
    }

    /// The key of the Terraform state of a Workspace that is made now: the one that there was, or its name.
    pub(crate) fn state_key(&self) -> &str {
        self.state.as_deref().unwrap_or(&self.name)
    }

    /// The key that the Workspace has and ought not to have. With it Terraform would make everything a second time, and
    /// destroy nothing of what it made before.
    pub(crate) fn strays<'a>(&self, workspace: &'a Workspace) -> Option<&'a str> {
        let key = external_name(workspace)?;
        self.state.as_ref().is_some_and(|state| state != key).then_some(key)
    }

    fn marked(&self, workspace: &Workspace) -> bool {
        back_reference(workspace).is_some_and(|(namespace, name)| namespace == self.namespace && name == self.apply)
    }

    /// The namespace in which the Workspace is.
    pub(crate) fn workspace_namespace(&self) -> Option<&str> {
        match self.kind {
            WorkspaceKind::ClusterScoped => None,
            WorkspaceKind::Namespaced => Some(&self.namespace),
        }
    }

    /// Whether the Workspace was made for this apply. Namespace and name, not the UID: they survive a move.
    pub(crate) fn owns(&self, workspace: &Workspace) -> bool {
        match back_reference(workspace) {
            Some(_) => self.marked(workspace),
            // The Go version marked nothing; what our status names is taken over, and marked.
            None => self.confirmed && workspace.name_any() == self.name && workspace.owner_references().is_empty(),
        }
    }
}

/// The apply for which a Workspace was made: namespace and name.
pub(crate) fn back_reference(workspace: &Workspace) -> Option<(&str, &str)> {
    let annotations = workspace.metadata.annotations.as_ref()?;
    Some((
        annotations.get(annotation::WTA_NAMESPACE)?,
        annotations.get(annotation::WTA_NAME)?,
    ))
}

/// The key of the Workspace's Terraform state; the provider itself sets one where there is none.
pub(crate) fn external_name(workspace: &Workspace) -> Option<&str> {
    let name = workspace.annotations().get(annotation::EXTERNAL_NAME)?;
    (!name.is_empty()).then_some(name)
}

/// The holds of the parents: while one is there, nothing is destroyed.
pub(crate) const HOLDS: [&str; 2] = [finalizer::CAPT_CLUSTER_HOLD, finalizer::CAPT_CONTROL_PLANE_HOLD];

/// Our finalizers on an apply; the Go version's counts as our own.
pub(crate) const FINALIZERS: [&str; 2] = [finalizer::WORKSPACE_TEMPLATE_APPLY, finalizer::GO_VERSION];

/// Whether a Workspace of this kind is deleted together with its namespace, and so by others than its apply.
pub(crate) fn needs_hold(kind: WorkspaceKind) -> bool {
    kind == WorkspaceKind::Namespaced
}

/// Whether the provider is kept from destroying what the Workspace made, whoever deletes it.
pub(crate) fn is_held(workspace: &Workspace) -> bool {
    let held = |present: &String| present == finalizer::WORKSPACE_HOLD;
    workspace.finalizers().iter().any(held)
}

/// Since when Terraform may destroy what a deleted Workspace made: it may have been held for long before.
pub(crate) fn destroyed_since(workspace: &Workspace) -> Option<Timestamp> {
    let deleted = workspace.metadata.deletion_timestamp.as_ref()?.0;
    let released = workspace.annotations().get(annotation::RELEASED);
    let released = released.and_then(|time| time.parse().ok());
    Some(released.map_or(deleted, |released: Timestamp| released.max(deleted)))
}

/// The labels that a Workspace carries; its exact identity is in the annotations.
pub(crate) fn labels(apply: &WorkspaceTemplateApply, identity: &Identity) -> Vec<(&'static str, String)> {
    let mut labels = vec![
        (label::OWNER_UID, apply.uid().unwrap_or_default()),
        (label::WTA_NAMESPACE, names::label_value(&identity.namespace)),
        (label::WTA_NAME, names::label_value(&identity.apply)),
    ];
    for copied in [label::CLUSTER_NAME, label::WATCH_FILTER] {
        if let Some(value) = apply.labels().get(copied) {
            labels.push((copied, value.clone()));
        }
    }
    labels
}

/// What the provider has to say about the current spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// The provider has not looked at it yet: it may be queueing behind others.
    Queued,
    /// Terraform is at work.
    Applying,
    /// Terraform has applied it, and a plan shows no difference.
    Applied,
    Failed(Trouble),
    /// The provider was told to leave the Workspace alone.
    Paused,
}

const CREATE_TRACES: [&str; 3] = [
    annotation::EXTERNAL_CREATE_PENDING,
    annotation::EXTERNAL_CREATE_SUCCEEDED,
    annotation::EXTERNAL_CREATE_FAILED,
];

impl State {
    pub(crate) fn of(workspace: &Workspace) -> Self {
        // Between the end of the first apply and the first report there is no condition yet, but a trace of the create.
        let untouched = workspace
            .status
            .as_ref()
            .is_none_or(|status| status.conditions.is_empty())
            && CREATE_TRACES
                .iter()
                .all(|trace| !workspace.annotations().contains_key(*trace));
        match workspace.sync() {
            Sync::Failed(message) => {
                let trouble = terraform::explain(message);
                // A healthy create has the same annotation; only together do they mean that it was cut off.
                let interrupted = trouble.cause == terraform::Cause::CreateInterrupted;
                match interrupted && workspace.create_pending_since().is_none() {
                    true => Self::Applying,
                    false => Self::Failed(trouble),
                }
            }
            Sync::Paused => Self::Paused,
            Sync::Done if workspace.is_applied() => Self::Applied,
            Sync::Pending if untouched => Self::Queued,
            Sync::Done | Sync::Pending => Self::Applying,
        }
    }
}

/// Whether the provider has taken over what Terraform made before, and has not said what that is: it forgets what it saw when
/// it puts its finalizer on, and looks again only after its poll interval, ten minutes unless set.
pub(crate) fn was_found(workspace: &Workspace) -> bool {
    let status = workspace.status.as_ref();
    workspace.sync() == Sync::Done && status.is_some_and(|status| find(&status.conditions, "Ready").is_none())
}

/// The policies under which Terraform neither applies nor destroys, and no secret to write: the namespace that it was written
/// to may be somebody else's by and by.
pub(crate) fn let_go_spec(workspace: &Workspace, kind: WorkspaceKind) -> Value {
    let mut spec = workspace.spec.clone();
    if let Some(fields) = spec.as_object_mut() {
        fields.remove("writeConnectionSecretToRef");
        fields.insert("managementPolicies".into(), json!([ManagementAction::Observe]));
        if kind == WorkspaceKind::ClusterScoped {
            fields.insert("deletionPolicy".into(), json!(DeletionPolicy::Orphan));
        }
    }
    spec
}

/// Whether nothing that happens to this Workspace can destroy what it made.
pub(crate) fn is_let_go(workspace: &Workspace, kind: WorkspaceKind) -> bool {
    workspace.spec == let_go_spec(workspace, kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace(value: Value) -> Workspace {
        let mut object = json!({"apiVersion": "tf.upbound.io/v1beta1", "kind": "Workspace", "metadata": {"name": "w", "generation": 2}, "spec": {}});
        object
            .as_object_mut()
            .unwrap()
            .extend(value.as_object().unwrap().clone());
        serde_json::from_value(object).unwrap()
    }

    fn conditions(synced: (&str, i64, &str), ready: &str) -> Value {
        let condition = |type_: &str, status: &str, generation: Option<i64>, message: &str| json!({"type": type_, "status": status, "reason": "R", "message": message, "observedGeneration": generation, "lastTransitionTime": "2026-01-01T00:00:00Z"});
        json!({"status": {"conditions": [condition("Synced", synced.0, Some(synced.1), synced.2), condition("Ready", ready, None, "")]}})
    }

    #[test]
    fn the_state_is_that_of_the_current_generation() {
        for (object, state) in [
            (json!({}), State::Queued),
            (
                json!({"metadata": {"name": "w", "annotations": {annotation::EXTERNAL_CREATE_PENDING: "2026-01-01T00:00:00Z"}}}),
                State::Applying,
            ),
            (
                json!({"metadata": {"name": "w", "annotations": {annotation::EXTERNAL_CREATE_PENDING: "2026-01-01T00:00:00Z", annotation::EXTERNAL_CREATE_SUCCEEDED: "2026-01-01T00:00:01Z"}}}),
                State::Applying,
            ),
            (conditions(("True", 2, ""), "True"), State::Applied),
            (conditions(("True", 2, ""), "False"), State::Applying),
            (conditions(("True", 1, ""), "True"), State::Applying),
            (conditions(("False", 1, "old"), "True"), State::Applying),
        ] {
            assert_eq!(State::of(&workspace(object.clone())), state, "{object}");
        }
        assert!(
            matches!(State::of(&workspace(conditions(("False", 2, "boom"), "True"))), State::Failed(trouble) if trouble.message == "boom")
        );
    }

    #[test]
    fn an_interrupted_create_needs_both_signs() {
        let message = "cannot determine creation result";
        let mut cut_off = workspace(conditions(("False", 2, message), "False"));
        assert_eq!(
            State::of(&cut_off),
            State::Applying,
            "the annotation is gone: the provider goes on"
        );
        cut_off.metadata.annotations = Some(
            [(
                annotation::EXTERNAL_CREATE_PENDING.to_owned(),
                "2026-01-01T00:00:00Z".to_owned(),
            )]
            .into(),
        );
        assert!(
            matches!(State::of(&cut_off), State::Failed(trouble) if trouble.cause == terraform::Cause::CreateInterrupted)
        );
    }

    #[test]
    fn what_is_recorded_comes_before_what_is_derived() {
        let mut apply = WorkspaceTemplateApply::new("a", Default::default());
        apply.metadata.namespace = Some("n".into());
        let derived = Identity::of(&apply, WorkspaceKind::Namespaced);
        assert_eq!(
            (derived.name.as_str(), derived.kind),
            (names::workspace_name("n", "a").as_str(), WorkspaceKind::Namespaced)
        );
        apply.status = Some(capt_api::workspace::WorkspaceTemplateApplyStatus {
            workspace_name: Some("go-name".into()),
            ..Default::default()
        });
        let inherited = Identity::of(&apply, WorkspaceKind::ClusterScoped);
        assert_eq!(inherited.name, "go-name");
        assert!(inherited.owns(&workspace(json!({"metadata": {"name": "go-name"}}))));
        assert!(
            !derived.owns(&workspace(json!({"metadata": {"name": derived.name}}))),
            "an unmarked one of our name is not ours"
        );
        // Whoever writes the annotation alone gets nobody else's Workspace.
        let mut thief = apply.clone();
        thief.status = None;
        thief.metadata.annotations = Some([(annotation::WORKSPACE_NAME.to_owned(), "go-name".to_owned())].into());
        let stolen = Identity::of(&thief, WorkspaceKind::ClusterScoped);
        let unmarked = workspace(json!({"metadata": {"name": "go-name"}}));
        assert!(!stolen.owns(&unmarked) && !stolen.is_trusted(Some(&unmarked)) && !stolen.is_trusted(None));
        assert_eq!(
            Identity::of(&apply, WorkspaceKind::Namespaced).kind,
            WorkspaceKind::ClusterScoped,
            "the Go version's kind"
        );
        apply.metadata.annotations = Some(
            [
                (annotation::WORKSPACE_NAME.to_owned(), "kept".to_owned()),
                (
                    annotation::WORKSPACE_KIND.to_owned(),
                    "tf.m.upbound.io/v1beta1".to_owned(),
                ),
            ]
            .into(),
        );
        let recorded = Identity::of(&apply, WorkspaceKind::ClusterScoped);
        assert_eq!(
            (recorded.name.as_str(), recorded.kind),
            ("kept", WorkspaceKind::Namespaced)
        );
    }

    #[test]
    fn letting_go_is_recognised() {
        let made = workspace(
            json!({"spec": {"forProvider": {"source": "Inline", "module": "x"}, "managementPolicies": ["*"], "deletionPolicy": "Delete", "writeConnectionSecretToRef": {"name": "outputs", "namespace": "ns"}}}),
        );
        assert!(!is_let_go(&made, WorkspaceKind::ClusterScoped));
        let mut gone = made.clone();
        gone.spec = let_go_spec(&made, WorkspaceKind::ClusterScoped);
        assert_eq!(gone.spec["managementPolicies"], json!(["Observe"]));
        assert_eq!(gone.spec["deletionPolicy"], json!("Orphan"));
        assert_eq!(gone.spec["forProvider"], made.spec["forProvider"]);
        assert_eq!(gone.spec.get("writeConnectionSecretToRef"), None);
        assert!(is_let_go(&gone, WorkspaceKind::ClusterScoped));
    }
}
