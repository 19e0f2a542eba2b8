//! What this controller may do, and why.

use capt_runtime::rbac::Rule;

/// Wherever it works.
pub const EVERYWHERE: &[Rule] = &[
    Rule {
        groups: &["infrastructure.cluster.x-k8s.io"],
        resources: &["captclusters"],
        names: &[],
        verbs: &["get", "list", "watch", "patch"],
        why: "what VPCs are wished for; the finalizer on them; whether the owner of a held apply still exists",
    },
    Rule {
        groups: &["infrastructure.cluster.x-k8s.io"],
        resources: &["captclusters/status"],
        names: &[],
        verbs: &["patch"],
        why: "the report on the VPC, which Cluster API reads",
    },
    Rule {
        groups: &["infrastructure.cluster.x-k8s.io"],
        resources: &["captclusters/finalizers"],
        names: &[],
        verbs: &["update"],
        why: "the VPC's apply names its CAPTCluster as an owner whose deletion it blocks",
    },
    Rule {
        groups: &["infrastructure.cluster.x-k8s.io"],
        resources: &["workspacetemplateapplies"],
        names: &[],
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "the VPC's apply: made, kept as wished, held, and deleted with its CAPTCluster",
    },
    Rule {
        groups: &["cluster.x-k8s.io"],
        resources: &["clusters"],
        names: &[],
        verbs: &["get", "list", "watch"],
        why: "the Cluster that a CAPTCluster belongs to: its name, whether it is paused, its endpoint",
    },
    Rule {
        groups: &["cluster.x-k8s.io"],
        resources: &["clusters/status"],
        names: &[],
        verbs: &["patch"],
        why: "a failure that Cluster API copied from a CAPTCluster and never clears itself; unused with --clear-cluster-failures=false",
    },
    Rule {
        groups: &["controlplane.cluster.x-k8s.io"],
        resources: &["captcontrolplanes"],
        names: &[],
        verbs: &["list", "watch"],
        why: "metadata only: a VPC is not destroyed while a control plane of its Cluster exists",
    },
    Rule {
        groups: &[""],
        resources: &["secrets"],
        names: &[],
        verbs: &["get"],
        why: "the VPC's connection secret, by name, when no output tells the VPC's ID",
    },
    Rule {
        groups: &["events.k8s.io"],
        resources: &["events"],
        names: &[],
        verbs: &["create"],
        why: "one Event per transition of a CAPTCluster",
    },
];

#[cfg(test)]
mod tests {
    use capt_runtime::rbac::in_one_namespace;

    use super::*;

    #[test]
    fn in_one_namespace_a_role_is_enough() {
        assert_eq!(in_one_namespace(EVERYWHERE), (EVERYWHERE.to_vec(), Vec::new()));
    }
}
