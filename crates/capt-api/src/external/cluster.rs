//! Cluster API's Cluster, v1beta2.

use std::borrow::Cow;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::Resource;
use kube::core::TypeMeta;
use serde::{Deserialize, Serialize};

use crate::common::ApiEndpoint;
use crate::schema::lenient;

/// A Cluster. Not made by the derive macro, which cannot read an object without a spec.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub types: Option<TypeMeta>,
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "lenient")]
    pub spec: ClusterSpec,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub status: Option<ClusterStatus>,
}

impl Resource for Cluster {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind(_: &()) -> Cow<'_, str> {
        "Cluster".into()
    }

    fn group(_: &()) -> Cow<'_, str> {
        "cluster.x-k8s.io".into()
    }

    fn version(_: &()) -> Cow<'_, str> {
        "v1beta2".into()
    }

    fn plural(_: &()) -> Cow<'_, str> {
        "clusters".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// The Cluster that an object belongs to, as Cluster API wrote it into the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterOwner<'a> {
    pub name: &'a str,
    pub uid: &'a str,
}

impl<'a> ClusterOwner<'a> {
    /// The one way to find an object's Cluster: by the ownerReference, never by an equal name, which may be another's.
    pub fn of(metadata: &'a ObjectMeta) -> Option<Self> {
        let owners = metadata.owner_references.iter().flatten();
        owners
            .filter(|owner| owner.kind == "Cluster" && owner.api_version.starts_with("cluster.x-k8s.io/"))
            .map(|owner| Self {
                name: &owner.name,
                uid: &owner.uid,
            })
            .next()
    }
}

/// What CAPT reads of a Cluster's spec.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterSpec {
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub paused: Option<bool>,
    /// Half-filled ones read as absent, as Cluster API itself treats them.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "whole_endpoint")]
    pub control_plane_endpoint: Option<ApiEndpoint>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub infrastructure_ref: Option<ContractReference>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub control_plane_ref: Option<ContractReference>,
}

/// Names a provider's object; its version follows from the CRD's contract label.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContractReference {
    pub api_group: String,
    pub kind: String,
    pub name: String,
}

/// What CAPT reads of a Cluster's status.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterStatus {
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub initialization: Option<ClusterInitialization>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "lenient")]
    pub conditions: Vec<Condition>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub deprecated: Option<ClusterDeprecated>,
}

/// How far Cluster API sees the provisioning.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterInitialization {
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub infrastructure_provisioned: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub control_plane_initialized: Option<bool>,
}

/// Fields that Cluster API keeps for readers of its earlier version.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterDeprecated {
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub v1beta1: Option<ClusterFailure>,
}

/// A provider's failure, which Cluster API copies here and never clears.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterFailure {
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub failure_reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub failure_message: Option<String>,
}

fn whole_endpoint<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<ApiEndpoint>, D::Error> {
    let endpoint: Option<ApiEndpoint> = lenient(deserializer)?;
    Ok(endpoint.filter(ApiEndpoint::is_set))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_full_cluster() {
        let cluster: Cluster = serde_json::from_value(json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": { "name": "demo", "namespace": "ns", "uid": "u" },
            "spec": {
                "paused": true,
                "clusterNetwork": { "pods": { "cidrBlocks": ["10.0.0.0/16"] } },
                "controlPlaneEndpoint": { "host": "h", "port": 443 },
                "infrastructureRef": { "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "CAPTCluster", "name": "demo" },
                "controlPlaneRef": { "apiGroup": "controlplane.cluster.x-k8s.io", "kind": "CAPTControlPlane", "name": "demo-cp" },
            },
            "status": {
                "initialization": { "infrastructureProvisioned": true },
                "deprecated": { "v1beta1": { "failureReason": "CreateError", "failureMessage": "m", "conditions": [] } },
            },
        }))
        .unwrap();
        assert_eq!(cluster.spec.paused, Some(true));
        assert_eq!(
            cluster.spec.control_plane_endpoint,
            Some(ApiEndpoint {
                host: "h".into(),
                port: 443
            })
        );
        assert_eq!(cluster.spec.control_plane_ref.unwrap().name, "demo-cp");
        let failure = cluster.status.unwrap().deprecated.unwrap().v1beta1.unwrap();
        assert_eq!(failure.failure_reason.as_deref(), Some("CreateError"));
    }

    #[test]
    fn the_owner_is_the_cluster_and_nothing_that_is_called_so() {
        let owner = |references: serde_json::Value| -> ObjectMeta {
            serde_json::from_value(json!({ "name": "demo", "ownerReferences": references })).unwrap()
        };
        let cluster = json!({ "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "c", "uid": "u" });
        let other = json!({ "apiVersion": "example.com/v1", "kind": "Cluster", "name": "x", "uid": "y" });
        assert_eq!(
            ClusterOwner::of(&owner(json!([other, cluster]))),
            Some(ClusterOwner { name: "c", uid: "u" })
        );
        assert_eq!(ClusterOwner::of(&owner(json!([other]))), None);
        assert_eq!(ClusterOwner::of(&ObjectMeta::default()), None);
    }

    #[test]
    fn odd_fields_read_as_absent() {
        let cluster: Cluster = serde_json::from_value(json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": { "name": "demo" },
            "spec": {
                "paused": "yes",
                "controlPlaneEndpoint": { "host": "half" },
                "infrastructureRef": "not a reference",
                "topology": { "classRef": { "name": "c" } },
            },
            "status": { "conditions": { "not": "a list" }, "deprecated": 7, "failureDomains": [] },
        }))
        .unwrap();
        assert_eq!(cluster.spec, ClusterSpec::default());
        assert_eq!(cluster.status, Some(ClusterStatus::default()));

        let bare: Cluster = serde_json::from_value(json!({ "metadata": { "name": "demo" } })).unwrap();
        assert_eq!((bare.spec, bare.status), (ClusterSpec::default(), None));
    }

    #[test]
    fn an_endpoint_with_an_empty_half_reads_as_absent() {
        for endpoint in [
            json!({ "host": "", "port": 0 }),
            json!({ "host": "h", "port": 0 }),
            json!({ "host": "", "port": 443 }),
        ] {
            let spec: ClusterSpec = serde_json::from_value(json!({ "controlPlaneEndpoint": endpoint })).unwrap();
            assert_eq!(spec.control_plane_endpoint, None, "{endpoint}");
        }
    }
}
