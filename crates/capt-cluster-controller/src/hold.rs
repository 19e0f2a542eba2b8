//! Holds whose CAPTCluster is gone.
//!
//! A hold keeps the VPC's apply until its CAPTCluster agrees that it may go. When the CAPTCluster vanished without
//! saying so (its finalizer was removed by hand), nobody would ever agree, and the apply would stay for ever.

use capt_api::names::{finalizer, label};
use capt_api::{CaptCluster, Cluster, WorkspaceTemplateApply};
use capt_runtime::apply::{Objects, Planned};
use capt_runtime::cache::{Cache, Index};
use capt_runtime::controller::{Reconciler, Wake};
use capt_runtime::error::Failure;
use capt_runtime::events::{Events, Severity};
use capt_runtime::key::Key;
use capt_runtime::scope::has_paused_annotation;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::PartialObjectMeta;

use crate::observe::{cluster_key, is_being_moved};

/// Releases the applies that a vanished CAPTCluster held.
#[derive(Debug)]
pub(crate) struct Holds {
    pub(crate) applies: Cache<WorkspaceTemplateApply>,
    /// CAPTClusters by their UID.
    pub(crate) owners: Index<CaptCluster, String>,
    pub(crate) clusters: Cache<Cluster>,
    pub(crate) live_applies: Objects<WorkspaceTemplateApply>,
    pub(crate) live_owners: Objects<PartialObjectMeta<CaptCluster>>,
    pub(crate) events: Events,
}

/// The UID of the CAPTCluster that holds this apply; `None` when it is not held, or its holder cannot be told.
pub(crate) fn holder(metadata: &ObjectMeta) -> Option<String> {
    let held = metadata
        .finalizers
        .iter()
        .flatten()
        .any(|present| present == finalizer::CAPT_CLUSTER_HOLD);
    let controller = metadata
        .owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true));
    let labelled = || metadata.labels.as_ref()?.get(label::OWNER_UID).cloned();
    let uid = controller.map(|controller| controller.uid.clone()).or_else(labelled);
    uid.filter(|_| held)
}

impl Holds {
    /// Whether nothing may be done to the apply for now.
    fn is_left_alone(&self, metadata: &ObjectMeta) -> bool {
        let paused_by_cluster = || {
            let cluster = self.clusters.get(&cluster_key(metadata)?)?;
            cluster.spec.paused
        };
        is_being_moved(metadata) || has_paused_annotation(metadata) || paused_by_cluster() == Some(true)
    }

    /// Whether the API server itself knows no CAPTCluster with this UID.
    async fn is_gone(&self, namespace: Option<&str>, uid: &str) -> Result<bool, Failure> {
        let owners = self.live_owners.live_list(namespace, None).await?;
        Ok(owners.iter().all(|owner| owner.metadata.uid.as_deref() != Some(uid)))
    }
}

impl Reconciler for Holds {
    type Error = Failure;

    async fn reconcile(&self, key: &Key) -> Result<Wake, Failure> {
        let Some(apply) = self.applies.get(key) else {
            return Ok(Wake::OnEvent);
        };
        let Some(uid) = holder(&apply.metadata).filter(|_| !self.is_left_alone(&apply.metadata)) else {
            return Ok(Wake::OnEvent);
        };
        if !self.owners.keys(&uid).is_empty() || !self.is_gone(key.namespace(), &uid).await? {
            return Ok(Wake::OnEvent);
        }
        // The cache may be older than the apply's present owner.
        let Some(live) = self.live_applies.live(key.namespace(), key.name()).await? else {
            return Ok(Wake::OnEvent);
        };
        if holder(&live.metadata).as_ref() != Some(&uid) || self.is_left_alone(&live.metadata) {
            return Ok(Wake::OnEvent);
        }
        let why = "the CAPTCluster that held it is gone";
        let released = self
            .live_applies
            .remove_finalizers(&Planned::new(&live)?, &[finalizer::CAPT_CLUSTER_HOLD], why)
            .await?;
        if !released.is_unchanged() {
            tracing::warn!(apply = %key, "{why}; released");
            let note = "the CAPTCluster that held this apply is gone, so it is not held any more";
            self.events
                .publish(live.object_ref(&()), Severity::Warning, "HoldReleased", "Release", note);
        }
        Ok(Wake::OnEvent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn metadata(finalizers: Value, labels: Value, owners: Value) -> ObjectMeta {
        serde_json::from_value(json!({
            "name": "a", "finalizers": finalizers, "labels": labels, "ownerReferences": owners,
        }))
        .unwrap()
    }

    #[test]
    fn the_holder_is_the_controller_or_else_the_label_and_only_of_a_held_apply() {
        let hold = json!([finalizer::CAPT_CLUSTER_HOLD]);
        let label = json!({label::OWNER_UID: "labelled"});
        let owner = |controller: bool| json!([{"apiVersion": "x/v1", "kind": "CAPTCluster", "name": "n", "uid": "controller", "controller": controller}]);
        for (finalizers, labels, owners, expected) in [
            (&hold, &label, owner(true), Some("controller")),
            (&hold, &label, owner(false), Some("labelled")),
            (&hold, &label, json!([]), Some("labelled")),
            (&hold, &json!({}), json!([]), None),
            (&json!(["other"]), &label, owner(true), None),
        ] {
            let metadata = metadata(finalizers.clone(), labels.clone(), owners.clone());
            assert_eq!(holder(&metadata).as_deref(), expected, "{metadata:?}");
        }
    }
}
