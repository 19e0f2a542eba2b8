//! The hold on an apply whose control plane is gone: released, so that the apply can go too.
//!
//! A control plane lets go of its apply before it goes itself. But its finalizer can be removed by hand, and an apply can
//! be made a moment after its control plane went; then nobody would ever release the hold.

use capt_api::names::{annotation, finalizer, label};
use capt_api::{CaptControlPlane, Cluster, WorkspaceTemplateApply};
use capt_runtime::apply::{Objects, Planned};
use capt_runtime::cache::{Cache, Index};
use capt_runtime::controller::{Reconciler, Wake};
use capt_runtime::error::Failure;
use capt_runtime::key::Key;
use capt_runtime::scope::{Scope, has_paused_annotation};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PartialObjectMeta;

use crate::eks_apply;
use crate::observe::is_paused;

/// Looks after the holds of control planes that are gone.
#[derive(Debug)]
pub(crate) struct Holds {
    pub(crate) scope: Scope,
    pub(crate) applies: Cache<WorkspaceTemplateApply>,
    pub(crate) clusters: Cache<Cluster>,
    /// The control planes, by the key of their apply.
    pub(crate) by_apply: Index<CaptControlPlane, Key>,
    /// Metadata only: a control plane whose spec cannot be read must not count as gone.
    pub(crate) control_planes: Objects<PartialObjectMeta<CaptControlPlane>>,
    pub(crate) live_clusters: Objects<Cluster>,
    pub(crate) objects: Objects<WorkspaceTemplateApply>,
}

impl Reconciler for Holds {
    type Error = Failure;

    async fn reconcile(&self, key: &Key) -> Result<Wake, Failure> {
        let Some(apply) = self.applies.get(key) else {
            return Ok(Wake::OnEvent);
        };
        let metadata = &apply.metadata;
        // The usual case, told from the cache: the control plane is there.
        let holder_is_known = || {
            self.by_apply
                .get(key)
                .iter()
                .any(|holder| is_holder(&holder.metadata, metadata))
        };
        let cluster = cluster_of(metadata).and_then(|key| self.clusters.get(&key));
        if !is_held(metadata)
            || !self.is_in_scope(metadata)
            || is_at_rest(metadata, cluster.as_deref())
            || holder_is_known()
        {
            return Ok(Wake::OnEvent);
        }
        let control_planes = self
            .control_planes
            .live_list(metadata.namespace.as_deref(), None)
            .await?;
        if control_planes
            .iter()
            .any(|control_plane| is_holder(&control_plane.metadata, metadata))
        {
            return Ok(Wake::OnEvent);
        }
        // From here on Terraform may destroy the cluster: a pause that the caches do not show yet must be able to stop it.
        let Some(apply) = self.live_apply(key).await? else {
            return Ok(Wake::OnEvent);
        };
        if is_at_rest(&apply.metadata, self.live_cluster(&apply.metadata).await?.as_ref()) {
            return Ok(Wake::OnEvent);
        }
        let why = "the control plane that held it no longer exists";
        let hold = [finalizer::CAPT_CONTROL_PLANE_HOLD];
        if self
            .objects
            .remove_finalizers(&Planned::new(&apply)?, &hold, why)
            .await?
            .written()
            .is_some()
        {
            tracing::info!(why, "hold released");
        }
        Ok(Wake::OnEvent)
    }
}

impl Holds {
    /// The watch is not filtered, because the network's apply may be somebody else's to look after.
    fn is_in_scope(&self, apply: &ObjectMeta) -> bool {
        self.scope
            .filter()
            .is_none_or(|filter| label_of(apply, label::WATCH_FILTER) == Some(filter))
    }

    async fn live_apply(&self, key: &Key) -> Result<Option<WorkspaceTemplateApply>, Failure> {
        self.objects.live(key.namespace(), key.name()).await
    }

    async fn live_cluster(&self, apply: &ObjectMeta) -> Result<Option<Cluster>, Failure> {
        match cluster_of(apply) {
            Some(key) => self.live_clusters.live(key.namespace(), key.name()).await,
            None => Ok(None),
        }
    }
}

/// Paused, or on its way to another management cluster, where its control plane is.
fn is_at_rest(apply: &ObjectMeta, cluster: Option<&Cluster>) -> bool {
    let moves = apply
        .annotations
        .as_ref()
        .is_some_and(|annotations| annotations.contains_key(annotation::DELETE_FOR_MOVE));
    moves || has_paused_annotation(apply) || cluster.is_some_and(is_paused)
}

/// Whether a control plane holds this apply.
pub(crate) fn is_held(apply: &ObjectMeta) -> bool {
    apply
        .finalizers
        .iter()
        .flatten()
        .any(|name| name == finalizer::CAPT_CONTROL_PLANE_HOLD)
}

/// The Cluster that the apply says it belongs to.
pub(crate) fn cluster_of(apply: &ObjectMeta) -> Option<Key> {
    Some(Key::namespaced(
        apply.namespace.as_deref()?,
        label_of(apply, label::CLUSTER_NAME)?,
    ))
}

/// Whether this control plane is the one that holds the apply: by the UID that the apply carries; by the name, where
/// somebody removed all that told the UID.
fn is_holder(control_plane: &ObjectMeta, apply: &ObjectMeta) -> bool {
    let mut owners = apply.owner_references.iter().flatten();
    let controller = owners
        .find(|owner| owner.controller == Some(true))
        .map(|owner| owner.uid.as_str());
    match controller.or(label_of(apply, label::OWNER_UID)) {
        Some(uid) => control_plane.uid.as_deref() == Some(uid),
        None => apply.name.as_deref() == Some(&eks_apply::name(control_plane)),
    }
}

fn label_of<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.labels.as_ref()?.get(key).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn metadata(value: Value) -> ObjectMeta {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_holder_is_known_by_its_uid_and_else_by_its_name() {
        let demo = metadata(json!({"name": "demo", "uid": "u"}));
        let owner =
            |uid: &str| json!([{"apiVersion": "v1", "kind": "K", "name": "demo", "uid": uid, "controller": true}]);
        for (apply, held, what) in [
            (json!({"ownerReferences": owner("u")}), true, "by reference"),
            (
                json!({"ownerReferences": owner("earlier"), "name": "demo-eks-controlplane-apply"}),
                false,
                "an earlier one of the same name",
            ),
            (
                json!({"labels": {"infrastructure.cluster.x-k8s.io/capt-owner-uid": "u"}}),
                true,
                "by label",
            ),
            (
                json!({"labels": {"infrastructure.cluster.x-k8s.io/capt-owner-uid": "v"}}),
                false,
                "another's label",
            ),
            (json!({"name": "demo-eks-controlplane-apply"}), true, "by name alone"),
            (json!({"name": "other-eks-controlplane-apply"}), false, "another name"),
        ] {
            assert_eq!(is_holder(&demo, &metadata(apply)), held, "{what}");
        }
    }

    #[test]
    fn a_hold_rests_while_its_cluster_or_its_apply_does() {
        let apply = |annotation: &str| metadata(json!({"annotations": {annotation: ""}}));
        let cluster = |paused: bool| -> Cluster {
            serde_json::from_value(json!({"metadata": {"name": "demo"}, "spec": {"paused": paused}})).unwrap()
        };
        assert!(!is_at_rest(&apply("a"), None) && !is_at_rest(&apply("a"), Some(&cluster(false))));
        assert!(is_at_rest(&apply("a"), Some(&cluster(true))));
        assert!(is_at_rest(&apply("cluster.x-k8s.io/paused"), None));
        assert!(is_at_rest(&apply("clusterctl.cluster.x-k8s.io/delete-for-move"), None));
    }

    #[test]
    fn only_our_own_hold_counts() {
        let held = |names: &[&str]| is_held(&metadata(json!({"finalizers": names})));
        assert!(held(&["x", "controlplane.cluster.x-k8s.io/captcontrolplane-hold"]));
        assert!(!held(&["infrastructure.cluster.x-k8s.io/captcluster-hold"]));
    }
}
