//! What this controller may do, and why.

use capt_runtime::rbac::Rule;

/// Wherever it works.
pub const EVERYWHERE: &[Rule] = &[
    Rule {
        groups: &["infrastructure.cluster.x-k8s.io"],
        resources: &["workspacetemplates"],
        names: &[],
        verbs: &["list", "watch"],
        why: "templates are checked and rendered",
    },
    Rule {
        groups: &["infrastructure.cluster.x-k8s.io"],
        resources: &["workspacetemplates/status", "workspacetemplateapplies/status"],
        names: &[],
        verbs: &["patch"],
        why: "what is known about templates and applies",
    },
    Rule {
        groups: &["infrastructure.cluster.x-k8s.io"],
        resources: &["workspacetemplateapplies"],
        names: &[],
        verbs: &["get", "list", "watch", "patch"],
        why: "applies are read, and carry a finalizer with the identity of their Workspace",
    },
    Rule {
        groups: &["tf.upbound.io"],
        resources: &["workspaces"],
        names: &[],
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "the Workspaces that are made from applies; these belong to no namespace",
    },
    Rule {
        groups: &["tf.m.upbound.io"],
        resources: &["workspaces"],
        names: &[],
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "the Workspaces that are made from applies under --workspace-kind tf.m.upbound.io/v1beta1",
    },
    Rule {
        groups: &["tf.m.upbound.io"],
        resources: &["providerconfigusages"],
        names: &[],
        verbs: &["list", "watch", "patch"],
        why: "metadata only: the provider's records of those Workspaces are protected until nobody needs them to destroy",
    },
    Rule {
        groups: &["cluster.x-k8s.io"],
        resources: &["clusters"],
        names: &[],
        verbs: &["list", "watch"],
        why: "a paused Cluster pauses its applies",
    },
    Rule {
        groups: &[""],
        resources: &["secrets", "configmaps"],
        names: &[],
        verbs: &["list", "watch", "patch"],
        why: "metadata only: inputs of Terraform are awaited, and protected by a finalizer until nobody needs them to destroy",
    },
    Rule {
        groups: &["events.k8s.io"],
        resources: &["events"],
        names: &[],
        verbs: &["create"],
        why: "one Event per transition of an apply",
    },
];

#[cfg(test)]
mod tests {
    use capt_runtime::rbac::in_one_namespace;

    use super::*;

    #[test]
    fn in_one_namespace_only_workspaces_without_a_namespace_need_more() {
        let (inside, outside) = in_one_namespace(EVERYWHERE);
        let groups: Vec<_> = outside.iter().flat_map(|rule| rule.groups).collect();
        assert_eq!(groups, [&"tf.upbound.io"]);
        assert_eq!(inside.len() + outside.len(), EVERYWHERE.len());
    }
}
