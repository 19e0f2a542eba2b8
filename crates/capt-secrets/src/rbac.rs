//! What this controller may do, and why.

use capt_runtime::rbac::Rule;

/// Wherever it works.
pub const EVERYWHERE: &[Rule] = &[
    Rule {
        groups: &["controlplane.cluster.x-k8s.io"],
        resources: &["captcontrolplanes"],
        names: &[],
        verbs: &["get", "list", "watch", "patch"],
        why: "the control planes to work for; the finalizer that keeps one until its copies are removed, read again before it goes",
    },
    Rule {
        groups: &["controlplane.cluster.x-k8s.io"],
        resources: &["captcontrolplanes/status"],
        names: &[],
        verbs: &["patch"],
        why: "whether kubeconfig and CA are there",
    },
    Rule {
        groups: &["controlplane.cluster.x-k8s.io"],
        resources: &["captcontrolplanes/finalizers"],
        names: &[],
        verbs: &["update"],
        why: "copies block the deletion of their owner in the foreground (OwnerReferencesPermissionEnforcement)",
    },
    Rule {
        groups: &["cluster.x-k8s.io"],
        resources: &["clusters"],
        names: &[],
        verbs: &["list", "watch"],
        why: "whether the owner is there and not paused, and whether an alias would be another Cluster's kubeconfig",
    },
    Rule {
        groups: &["infrastructure.cluster.x-k8s.io"],
        resources: &["workspacetemplateapplies"],
        names: &[],
        verbs: &["list", "watch"],
        why: "whether Terraform is done, and into which Secret it writes",
    },
    Rule {
        groups: &[""],
        resources: &["secrets"],
        names: &[],
        verbs: &["list", "watch"],
        why: "changes of connection secrets and copies, watched as metadata without contents",
    },
    Rule {
        groups: &[""],
        resources: &["secrets"],
        names: &[],
        verbs: &["get", "create", "patch", "delete"],
        why: "connection secrets are read by name; copies are made, compared, repaired and removed",
    },
    Rule {
        groups: &["events.k8s.io"],
        resources: &["events"],
        names: &[],
        verbs: &["create"],
        why: "one Event per transition of SecretsReady",
    },
];
