//! What the tests of plans look at: objects as JSON, with the parts that a row wants to be different.

use std::sync::Arc;

use capt_api::{CaptCluster, Cluster, WorkspaceTemplateApply};
use capt_runtime::cache::Found;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::observe::{Apply, FromSecret, Observed, Owner, Settings};

/// Times of the tests: seconds after this one.
pub(super) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

pub(super) fn settings() -> Settings {
    Settings {
        allow_cross_namespace: false,
        clear_cluster_failures: true,
        vpc_ready_timeout: SignedDuration::from_mins(15),
        secret_timeout: SignedDuration::from_mins(5),
        deletion_timeout: SignedDuration::from_mins(30),
    }
}

/// Lays `over` onto `base`: objects are merged, everything else is replaced, `null` removes.
pub(super) fn merge(base: &mut Value, over: Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                if value.is_null() {
                    base.remove(&key);
                } else {
                    merge(base.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        (base, over) => *base = over,
    }
}

/// A CAPTCluster in use, with a template, an owner and its finalizer.
pub(super) fn capt_cluster(over: Value) -> CaptCluster {
    let mut object = json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "CAPTCluster",
        "metadata": {
            "name": "net", "namespace": "ns", "uid": "u-net", "resourceVersion": "1", "generation": 1,
            "finalizers": ["infrastructure.cluster.x-k8s.io/captcluster"],
            "labels": {"cluster.x-k8s.io/cluster-name": "demo"},
            "ownerReferences": [{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "demo", "uid": "u-demo"}],
        },
        "spec": {"region": "eu-west-1", "vpcTemplateRef": {"name": "vpc"}},
    });
    merge(&mut object, over);
    serde_json::from_value(object).unwrap()
}

pub(super) fn cluster(over: Value) -> Cluster {
    let mut object = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": {"name": "demo", "namespace": "ns", "uid": "u-demo", "resourceVersion": "1"},
        "spec": {},
    });
    merge(&mut object, over);
    serde_json::from_value(object).unwrap()
}

/// The VPC's apply exactly as this controller makes it for [`capt_cluster`], before anybody reported on it.
pub(super) fn apply(over: Value) -> WorkspaceTemplateApply {
    let mut object = json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "WorkspaceTemplateApply",
        "metadata": {
            "name": "net-vpc", "namespace": "ns", "uid": "u-apply", "resourceVersion": "1", "generation": 1,
            "finalizers": ["infrastructure.cluster.x-k8s.io/captcluster-hold"],
            "labels": {
                "cluster.x-k8s.io/cluster-name": "demo",
                "infrastructure.cluster.x-k8s.io/capt-owner-uid": "u-net",
            },
            "ownerReferences": [{
                "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "CAPTCluster", "name": "net", "uid": "u-net",
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "templateRef": {"name": "vpc"},
            "variables": {"cluster_name": "demo", "environment": "production", "region": "eu-west-1", "vpc_name": "demo-vpc"},
            "writeConnectionSecretToRef": {"name": "net-vpc-connection"},
        },
    });
    merge(&mut object, over);
    serde_json::from_value(object).unwrap()
}

/// The status of an apply that says this of its current spec, with these outputs.
pub(super) fn says(status: &str, reason: &str, message: &str, outputs: Value) -> Value {
    json!({"status": {
        "observedGeneration": 1, "outputs": outputs, "workspaceName": "ws", "lastAppliedRevision": "r1",
        "conditions": [condition("Ready", status, reason, message)],
    }})
}

pub(super) fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({
        "type": type_, "status": status, "reason": reason, "message": message, "observedGeneration": 1,
        "lastTransitionTime": at(0).to_string(),
    })
}

/// Everything that a plan sees. Each row starts from the usual scene and changes what it is about.
pub(super) struct Scene(pub(super) Observed);

impl Scene {
    pub(super) fn new() -> Self {
        Self(Observed {
            capt_cluster: Arc::new(capt_cluster(json!({}))),
            owner: Owner::Present(Arc::new(cluster(json!({})))),
            apply: Apply::Absent,
            secret: FromSecret::NotRead,
            astray: None,
            control_planes: Vec::new(),
            trouble: None,
            settings: settings(),
        })
    }

    pub(super) fn capt_cluster(mut self, over: Value) -> Self {
        let mut object = serde_json::to_value(&*self.0.capt_cluster).unwrap();
        merge(&mut object, over);
        self.0.capt_cluster = Arc::new(serde_json::from_value(object).unwrap());
        self
    }

    pub(super) fn cluster(mut self, over: Value) -> Self {
        self.0.owner = Owner::Present(Arc::new(cluster(over)));
        self
    }

    pub(super) fn apply(mut self, over: Value) -> Self {
        self.0.apply = Apply::of(Found::Present(Arc::new(apply(over))), &self.0.capt_cluster);
        self
    }

    /// Changes what is none of the above.
    pub(super) fn with(mut self, change: impl FnOnce(&mut Observed)) -> Self {
        change(&mut self.0);
        self
    }

    /// The object was made in this second.
    pub(super) fn born(self, second: i64) -> Self {
        self.capt_cluster(json!({"metadata": {"creationTimestamp": at(second).to_string()}}))
    }

    /// The object is being deleted, since second 0.
    pub(super) fn deleting(self) -> Self {
        self.capt_cluster(json!({"metadata": {"deletionTimestamp": at(0).to_string()}}))
    }

    /// The network has been ready before.
    pub(super) fn ready_before(self) -> Self {
        self.capt_cluster(json!({"status": {
            "ready": true, "initialization": {"provisioned": true}, "vpcId": "vpc-1",
            "workspaceTemplateStatus": {"state": "Available", "lastAppliedRevision": "r1"},
        }}))
    }

    /// A wait that began in this second, with the apply in this state.
    pub(super) fn waiting(self, wait: &str, second: i64, state: &str) -> Self {
        self.capt_cluster(json!({"status": {
            "waitingSince": {wait: at(second).to_string()}, "workspaceTemplateStatus": {"state": state},
        }}))
    }
}
