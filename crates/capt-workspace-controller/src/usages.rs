//! The Terraform provider's own records of namespaced Workspaces are kept until nothing is left to destroy.
//!
//! Before it looks at a Workspace, also to destroy, the provider makes sure of a ProviderConfigUsage in the Workspace's
//! namespace. Whoever deletes the namespace deletes these records too, and nobody can make new ones then: Terraform could never
//! destroy anything there, and the namespace would never go. The records of cluster-scoped Workspaces are in no namespace.

use capt_api::names::finalizer;
use capt_api::{Workspace, WorkspaceKind};
use capt_runtime::apply::{FinalizerAdded, Objects, Planned};
use capt_runtime::cache::Cache;
use capt_runtime::controller::{Reconciler, Wake};
use capt_runtime::error::Failure;
use capt_runtime::key::Key;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use kube::api::{DynamicObject, PartialObjectMeta};
use kube::core::{ApiResource, GroupVersionKind};

use crate::inputs::is_protected;
use crate::workspace::{back_reference, is_let_go};

/// A ProviderConfigUsage: which Workspace it is of stands in its metadata.
pub(crate) type Usage = PartialObjectMeta<DynamicObject>;

pub(crate) fn api_resource() -> ApiResource {
    let kind = WorkspaceKind::Namespaced;
    let usage = GroupVersionKind::gvk(kind.group(), kind.version(), "ProviderConfigUsage");
    ApiResource::from_gvk_with_plural(&usage, "providerconfigusages")
}

/// Where the provider keeps the record of a Workspace.
pub(crate) fn usage_key(workspace: &Workspace) -> Option<Key> {
    Some(Key::namespaced(
        workspace.metadata.namespace.as_deref()?,
        workspace.metadata.uid.as_deref()?,
    ))
}

pub(crate) struct Usages {
    pub(crate) cache: Cache<Usage>,
    pub(crate) objects: Objects<Usage>,
    pub(crate) workspaces: Cache<Workspace>,
    pub(crate) live_workspaces: Objects<Workspace>,
}

impl Reconciler for Usages {
    type Error = Failure;

    async fn reconcile(&self, key: &Key) -> Result<Wake, Failure> {
        let Some(usage) = self.cache.get(key) else {
            return Ok(Wake::OnEvent);
        };
        let Some(owner) = workspace_of(&usage) else {
            return Ok(Wake::OnEvent);
        };
        let namespace = key.namespace().unwrap_or_default();
        let workspace = self.workspaces.get(&Key::namespaced(namespace, &owner.name));
        let is_needed = workspace.is_some_and(|workspace| is_needed_by(&workspace, owner));
        if is_needed && !is_protected(&*usage) {
            let why = "the Terraform provider needs it, also to destroy";
            let (FinalizerAdded::Unchanged | FinalizerAdded::Added(_) | FinalizerAdded::Deleting) = self
                .objects
                .add_finalizer(
                    &Planned::new(&*usage)?,
                    finalizer::WORKSPACE_INPUT,
                    &Default::default(),
                    why,
                )
                .await?;
        }
        if !is_needed && is_protected(&*usage) {
            let live = self.live_workspaces.live(Some(namespace), &owner.name).await?;
            if live.is_none_or(|workspace| !is_needed_by(&workspace, owner)) {
                let why = "its Workspace is gone, or was let go";
                let _written = self
                    .objects
                    .remove_finalizers(&Planned::new(&*usage)?, &[finalizer::WORKSPACE_INPUT], why)
                    .await?;
            }
        }
        Ok(Wake::OnEvent)
    }
}

fn workspace_of(usage: &Usage) -> Option<&OwnerReference> {
    let owners = usage.owner_references().iter();
    owners
        .filter(|owner| owner.controller == Some(true))
        .find(|owner| owner.kind == "Workspace")
}

/// Whether this is the Workspace of the record, CAPT made it, and the provider may still have to destroy what it made: it goes
/// without a look when it was let go.
fn is_needed_by(workspace: &Workspace, owner: &OwnerReference) -> bool {
    workspace.metadata.uid.as_ref() == Some(&owner.uid)
        && back_reference(workspace).is_some()
        && !is_let_go(workspace, WorkspaceKind::Namespaced)
}

#[cfg(test)]
mod tests {
    use capt_api::names::annotation;
    use serde_json::json;

    use super::*;

    fn workspace() -> Workspace {
        serde_json::from_value(json!({
            "apiVersion": "tf.m.upbound.io/v1beta1", "kind": "Workspace",
            "metadata": {
                "name": "w", "namespace": "team", "uid": "1",
                "annotations": {annotation::WTA_NAMESPACE: "team", annotation::WTA_NAME: "a"},
            },
            "spec": {"managementPolicies": ["*"]},
        }))
        .unwrap()
    }

    #[test]
    fn a_record_is_needed_while_its_own_workspace_may_have_to_be_destroyed() {
        let usage: Usage = serde_json::from_value(json!({
            "metadata": {"name": "1", "namespace": "team", "ownerReferences": [
                {"apiVersion": "tf.m.upbound.io/v1beta1", "kind": "Workspace", "name": "w", "uid": "1", "controller": true},
            ]},
        }))
        .unwrap();
        let owner = workspace_of(&usage).unwrap();
        assert_eq!(usage_key(&workspace()), Some(Key::namespaced("team", "1")));
        assert!(is_needed_by(&workspace(), owner));

        let mut another = workspace();
        another.metadata.uid = Some("2".into());
        assert!(!is_needed_by(&another, owner), "made again under the same name");
        let mut foreign = workspace();
        foreign.metadata.annotations = None;
        assert!(!is_needed_by(&foreign, owner), "somebody else's");
        let mut let_go = workspace();
        let_go.spec = json!({"managementPolicies": ["Observe"]});
        assert!(!is_needed_by(&let_go, owner), "let go");
    }

    #[test]
    fn a_record_of_something_else_is_nobodys() {
        for owners in [
            json!([]),
            json!([{"apiVersion": "tf.m.upbound.io/v1beta1", "kind": "Workspace", "name": "w", "uid": "1"}]),
            json!([{"apiVersion": "v1", "kind": "Pod", "name": "w", "uid": "1", "controller": true}]),
        ] {
            let usage: Usage = serde_json::from_value(json!({"metadata": {"ownerReferences": owners}})).unwrap();
            assert!(workspace_of(&usage).is_none());
        }
    }
}
