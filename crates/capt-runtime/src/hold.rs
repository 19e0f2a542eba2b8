//! Holds whose owner is gone.
//!
//! A hold is a finalizer that a parent puts on its WorkspaceTemplateApply, so that nothing is destroyed before the parent
//! agrees. A parent lets go before it goes itself. But its own finalizer can be removed by hand, and an apply can be made a
//! moment after its parent went: then nobody would ever agree, and the apply would stay for ever. [`Holds`] finds such
//! applies and releases them.

use capt_api::names::{label, label_value};
use capt_api::{Cluster, WorkspaceTemplateApply};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::PartialObjectMeta;
use kube::{Resource, ResourceExt};

use crate::apply::{Objects, Planned, controller, is_ours};
use crate::cache::{Cache, Change, Index};
use crate::controller::{Reconciler, Wake};
use crate::error::Failure;
use crate::events::{Events, Severity};
use crate::key::Key;
use crate::scope::{Scope, has_paused_annotation, is_being_moved};

/// What one kind of parent holds.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    pub finalizer: &'static str,
    /// The parent's kind, for people.
    pub parent: &'static str,
    /// The name of the apply that a parent of this name has.
    pub apply_of: fn(&str) -> String,
    /// Tells the applies of the same Cluster that must be gone first, because what they made needs what is held here.
    pub outlives: Option<fn(&ObjectMeta) -> bool>,
}

impl Hold {
    /// Whether the apply is held.
    pub fn is_on(&self, apply: &ObjectMeta) -> bool {
        apply
            .finalizers
            .iter()
            .flatten()
            .any(|present| present == self.finalizer)
    }

    /// The key of the apply that this parent has.
    pub fn apply_key(&self, parent: &ObjectMeta) -> Key {
        let name = (self.apply_of)(parent.name.as_deref().unwrap_or_default());
        Key::namespaced(parent.namespace.as_deref().unwrap_or_default(), &name)
    }

    /// The apply to look at when a parent changed: that of one which is not there any more, also when another has taken its
    /// name.
    pub fn left_behind<K: Resource>(&self, change: &Change<K>) -> Vec<Key> {
        let uid = |parent: Option<&K>| parent.and_then(|parent| parent.meta().uid.clone());
        match change.old.as_deref() {
            Some(old) if uid(Some(old)) != uid(change.new.as_deref()) => vec![self.apply_key(old.meta())],
            _ => Vec::new(),
        }
    }

    /// The apply itself to look at when it changed: one that is held.
    pub fn held(&self, change: &Change<WorkspaceTemplateApply>) -> Vec<Key> {
        let held = change.new.as_ref().is_some_and(|apply| self.is_on(&apply.metadata));
        held.then(|| change.key.clone()).into_iter().collect()
    }

    /// The Cluster whose pause keeps a held apply from being released, to find it from there.
    pub fn cluster_of(&self, apply: &WorkspaceTemplateApply) -> Vec<Key> {
        let held = self.is_on(&apply.metadata);
        cluster_of(&apply.metadata).filter(|_| held).into_iter().collect()
    }

    /// The names of the applies of this Cluster that must be gone before anything held is released. Their parents need not be
    /// there any more: finalizers are removed by hand, and what Terraform made stays until it has destroyed it.
    pub async fn outlived(
        &self,
        applies: &Objects<PartialObjectMeta<WorkspaceTemplateApply>>,
        cluster: &Key,
    ) -> Result<Vec<String>, Failure> {
        let Some(outlives) = self.outlives else {
            return Ok(Vec::new());
        };
        let labelled = format!("{}={}", label::CLUSTER_NAME, label_value(cluster.name()));
        let applies = applies.live_list(cluster.namespace(), Some(&labelled)).await?;
        let applies = applies.iter().filter(|apply| outlives(&apply.metadata));
        Ok(applies.map(ResourceExt::name_any).collect())
    }

    /// Whether the apply was made for this parent: see [`is_ours`]; or it has no controller, but the parent's hold, and the
    /// name that only this parent's can have. So it is when somebody removed the other marks, and when objects were restored
    /// from a backup, where every UID is new: the parent of the old UID is gone then, for this one has its name.
    pub fn is_of(&self, parent: &ObjectMeta, apply: &ObjectMeta) -> bool {
        is_ours(apply, parent.uid.as_deref().unwrap_or_default())
            || (controller(apply).is_none() && self.is_on(apply) && self.apply_key(parent) == key_of(apply))
    }
}

/// Releases the applies of parents of the kind `K` that are gone.
#[derive(Debug)]
pub struct Holds<K: Resource<DynamicType = ()>> {
    pub hold: Hold,
    pub scope: Scope,
    pub applies: Cache<WorkspaceTemplateApply>,
    pub clusters: Cache<Cluster>,
    /// The parents, by the key of their apply.
    pub parents: Index<K, Key>,
    /// Metadata only: a parent whose spec cannot be read must not count as gone.
    pub live_parents: Objects<PartialObjectMeta<K>>,
    pub live_clusters: Objects<Cluster>,
    pub live_applies: Objects<WorkspaceTemplateApply>,
    pub live_neighbours: Objects<PartialObjectMeta<WorkspaceTemplateApply>>,
    pub events: Events,
}

impl<K> Reconciler for Holds<K>
where
    K: Resource<DynamicType = ()> + Send + Sync + 'static,
{
    type Error = Failure;

    async fn reconcile(&self, key: &Key) -> Result<Wake, Failure> {
        let hold = self.hold;
        let Some(apply) = self.applies.get(key).filter(|apply| hold.is_on(&apply.metadata)) else {
            return Ok(Wake::OnEvent);
        };
        // The usual case, told from the caches.
        let cluster = cluster_of(&apply.metadata).and_then(|key| self.clusters.get(&key));
        let parents = self.parents.get(key);
        if !self.is_in_scope(&apply.metadata)
            || is_at_rest(&apply.metadata, cluster.as_deref())
            || parents.iter().any(|parent| hold.is_of(parent.meta(), &apply.metadata))
        {
            return Ok(Wake::OnEvent);
        }
        // What is released may be destroyed, so everything is looked at again where it really is. The apply comes first: its
        // parent was there before it, and a list that is asked for afterwards cannot lack that parent.
        let apply = self.live_applies.live(key.namespace(), key.name()).await?;
        let Some(apply) = apply.filter(|apply| hold.is_on(&apply.metadata)) else {
            return Ok(Wake::OnEvent);
        };
        let cluster = match cluster_of(&apply.metadata) {
            Some(cluster) => self.live_clusters.live(cluster.namespace(), cluster.name()).await?,
            None => None,
        };
        let parents = self.live_parents.live_list(key.namespace(), None).await?;
        if is_at_rest(&apply.metadata, cluster.as_ref())
            || parents
                .iter()
                .any(|parent| hold.is_of(&parent.metadata, &apply.metadata))
        {
            return Ok(Wake::OnEvent);
        }
        let destroys = apply.spec.retain_workspace_on_delete != Some(true);
        let outlived = match cluster_of(&apply.metadata).filter(|_| destroys) {
            Some(cluster) => hold.outlived(&self.live_neighbours, &cluster).await?,
            None => Vec::new(),
        };
        if !outlived.is_empty() {
            let note = format!(
                "the {} that held this apply no longer exists; it stays held until {} is gone, which needs what it made. To keep that \
                 for good, set spec.retainWorkspaceOnDelete",
                hold.parent,
                outlived.join(", ")
            );
            self.tell(&apply, "HoldKept", "Hold", &note);
            return Ok(Wake::OnEvent);
        }
        let why = format!("the {} that held it no longer exists", hold.parent);
        let released = self
            .live_applies
            .remove_finalizers(&Planned::new(&apply)?, &[hold.finalizer], &why)
            .await?;
        if !released.is_unchanged() {
            tracing::warn!(why, "hold released");
            let note = format!(
                "the {} that held this apply no longer exists, so it is not held any more",
                hold.parent
            );
            self.tell(&apply, "HoldReleased", "Release", &note);
        }
        Ok(Wake::OnEvent)
    }
}

impl<K: Resource<DynamicType = ()>> Holds<K> {
    /// A watch of applies need not be filtered: one controller also reads those that another installation looks after.
    fn is_in_scope(&self, apply: &ObjectMeta) -> bool {
        self.scope
            .filter()
            .is_none_or(|filter| label_of(apply, label::WATCH_FILTER) == Some(filter))
    }

    fn tell(&self, apply: &WorkspaceTemplateApply, reason: &str, action: &str, note: &str) {
        self.events
            .publish(apply.object_ref(&()), Severity::Warning, reason, action, note);
    }
}

/// Paused, or on its way to another management cluster, where its parent is.
fn is_at_rest(apply: &ObjectMeta, cluster: Option<&Cluster>) -> bool {
    is_being_moved(apply)
        || has_paused_annotation(apply)
        || cluster.is_some_and(|cluster| cluster.spec.paused == Some(true))
}

/// The Cluster that the apply says it belongs to.
pub fn cluster_of(apply: &ObjectMeta) -> Option<Key> {
    let namespace = apply.namespace.as_deref()?;
    Some(Key::namespaced(namespace, label_of(apply, label::CLUSTER_NAME)?))
}

fn key_of(apply: &ObjectMeta) -> Key {
    let name = apply.name.as_deref().unwrap_or_default();
    Key::namespaced(apply.namespace.as_deref().unwrap_or_default(), name)
}

fn label_of<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.labels.as_ref()?.get(key).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use capt_api::CaptCluster;
    use capt_api::names::finalizer;
    use serde_json::{Value, json};

    use super::*;

    const HOLD: Hold = Hold {
        finalizer: finalizer::CAPT_CLUSTER_HOLD,
        parent: "CAPTCluster",
        apply_of: |name| format!("{name}-vpc"),
        outlives: None,
    };

    fn metadata(value: Value) -> ObjectMeta {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_parent_is_known_by_its_uid_and_else_by_its_hold_and_name() {
        let net = metadata(json!({"name": "net", "namespace": "ns", "uid": "u"}));
        let owners = |uid: &str, controller: bool| json!([{"apiVersion": "v1", "kind": "K", "name": "net", "uid": uid, "controller": controller}]);
        let labels = |uid: &str| json!({label::OWNER_UID: uid});
        for (apply, is_of, what) in [
            (
                json!({"ownerReferences": owners("u", true), "labels": labels("v")}),
                true,
                "by reference",
            ),
            (
                json!({"ownerReferences": owners("earlier", true), "labels": labels("u")}),
                false,
                "an earlier one's",
            ),
            (
                json!({"ownerReferences": owners("x", false), "labels": labels("u")}),
                true,
                "by label",
            ),
            (
                json!({"labels": labels("v")}),
                true,
                "a namesake's, which is gone: this one has its name",
            ),
            (json!({}), true, "by hold and name"),
            (
                json!({"finalizers": [], "labels": labels("v")}),
                false,
                "a namesake's, which has let go",
            ),
            (json!({"finalizers": []}), false, "by name alone"),
            (json!({"namespace": "other"}), false, "the same name elsewhere"),
            (json!({"name": "other-vpc"}), false, "another name"),
        ] {
            let mut object = json!({"name": "net-vpc", "namespace": "ns", "finalizers": [HOLD.finalizer]});
            object
                .as_object_mut()
                .unwrap()
                .extend(apply.as_object().unwrap().clone());
            assert_eq!(HOLD.is_of(&net, &metadata(object)), is_of, "{what}");
        }
    }

    #[test]
    fn only_our_own_hold_counts() {
        let held = |names: &[&str]| HOLD.is_on(&metadata(json!({"finalizers": names})));
        assert!(held(&["x", finalizer::CAPT_CLUSTER_HOLD]));
        assert!(!held(&[finalizer::CAPT_CONTROL_PLANE_HOLD]));
        assert!(!held(&[]));
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
    fn a_parent_that_vanished_or_was_replaced_leaves_its_apply_behind() {
        let parent = |uid: &str| -> Option<Arc<CaptCluster>> {
            let object = json!({
                "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "CAPTCluster",
                "metadata": {"name": "net", "namespace": "ns", "uid": uid}, "spec": {"region": "eu-west-1"},
            });
            Some(Arc::new(serde_json::from_value(object).unwrap()))
        };
        let left = [Key::namespaced("ns", "net-vpc")];
        for (old, new, expected) in [
            (parent("u"), None, &left[..]),
            (parent("u"), parent("v"), &left[..]),
            (parent("u"), parent("u"), &[]),
            (None, parent("u"), &[]),
        ] {
            let change = Change {
                key: Key::namespaced("ns", "net"),
                old,
                new,
            };
            assert_eq!(HOLD.left_behind(&change), expected);
        }
    }
}
