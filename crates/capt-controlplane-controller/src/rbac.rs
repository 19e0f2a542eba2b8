//! What this controller may do, and why.

use capt_runtime::rbac::Rule;

/// Wherever it works.
pub const EVERYWHERE: &[Rule] = &[
    Rule {
        groups: &["controlplane.cluster.x-k8s.io"],
        resources: &["captcontrolplanes"],
        names: &[],
        verbs: &["get", "list", "watch"],
        why: "the objects that it works for; read again, live, before an apply is made, changed, deleted or let go",
    },
    Rule {
        groups: &["controlplane.cluster.x-k8s.io"],
        resources: &["captcontrolplanes"],
        names: &[],
        verbs: &["patch"],
        why: "its finalizer, so that no EKS cluster is left behind",
    },
    Rule {
        groups: &["controlplane.cluster.x-k8s.io"],
        resources: &["captcontrolplanes"],
        names: &[],
        verbs: &["delete"],
        why: "a control plane that its deleting Cluster no longer names deletes itself, because nobody else would",
    },
    Rule {
        groups: &["controlplane.cluster.x-k8s.io"],
        resources: &["captcontrolplanes/status"],
        names: &[],
        verbs: &["patch"],
        why: "how far the control plane has come",
    },
    Rule {
        groups: &["controlplane.cluster.x-k8s.io"],
        resources: &["captcontrolplanes/finalizers"],
        names: &[],
        verbs: &["update"],
        why: "the apply names the control plane as an owner whose deletion it blocks",
    },
    Rule {
        groups: &["infrastructure.cluster.x-k8s.io"],
        resources: &["workspacetemplateapplies"],
        names: &[],
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "the EKS apply is made, changed and deleted, its hold set and released; the VPC's apply gives its outputs",
    },
    Rule {
        groups: &["infrastructure.cluster.x-k8s.io"],
        resources: &["captclusters"],
        names: &[],
        verbs: &["get", "list", "watch"],
        why: "the network that the control plane waits for; read again, live, before the apply is made",
    },
    Rule {
        groups: &["cluster.x-k8s.io"],
        resources: &["clusters"],
        names: &[],
        verbs: &["get", "list", "watch"],
        why: "the owner: paused, being deleted, its network, whether it still names this control plane; read again, live, before \
              what cannot be undone",
    },
    Rule {
        groups: &["cluster.x-k8s.io"],
        resources: &["clusters/status"],
        names: &[],
        verbs: &["patch"],
        why: "a failure that Cluster API copied from a control plane and never clears is cleared when it is over",
    },
    Rule {
        groups: &["events.k8s.io"],
        resources: &["events"],
        names: &[],
        verbs: &["create"],
        why: "one Event per transition of a control plane",
    },
];
