//! What this controller may do, and why; and what it gives to others.

use capt_api::names::TENANT_ADMIN_ROLE;
use capt_runtime::rbac::Rule;

/// Wherever it works, which is everywhere: Tenants and Namespaces belong to no namespace.
pub const EVERYWHERE: &[Rule] = &[
    Rule {
        groups: &["multitenancy.capt.dev"],
        resources: &["tenants"],
        names: &[],
        verbs: &["get", "list", "watch", "patch"],
        why: "the tenants to work for, read again before anything is made or deleted, and the finalizer that keeps one until its namespaces are gone",
    },
    Rule {
        groups: &["multitenancy.capt.dev"],
        resources: &["tenants/status"],
        names: &[],
        verbs: &["patch"],
        why: "what a tenant has, and what it waits for",
    },
    Rule {
        groups: &["multitenancy.capt.dev"],
        resources: &["tenants/finalizers"],
        names: &[],
        verbs: &["update"],
        why: "blockOwnerDeletion in the ownerReferences of what it makes, where the API server asks for this",
    },
    Rule {
        groups: &[""],
        resources: &["namespaces"],
        names: &[],
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "the namespaces of tenants; whose one is, is told by its marks, which cannot be known before",
    },
    Rule {
        groups: &["rbac.authorization.k8s.io"],
        resources: &["rolebindings"],
        names: &[],
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        why: "the administrator's RoleBinding in each namespace",
    },
    Rule {
        groups: &["rbac.authorization.k8s.io"],
        resources: &["clusterroles"],
        names: &[TENANT_ADMIN_ROLE],
        verbs: &["bind"],
        why: "the one role that the administrator gets, and no other",
    },
    Rule {
        groups: &["cluster.x-k8s.io"],
        resources: &["clusters"],
        names: &[],
        verbs: &["list", "watch", "delete"],
        why: "what is in a namespace that is to go, metadata only; deleted first where spec.deletionPolicy is Cascade",
    },
    Rule {
        groups: &["infrastructure.cluster.x-k8s.io"],
        resources: &["workspacetemplateapplies"],
        names: &[],
        verbs: &["list", "watch"],
        why: "what Terraform has made in a namespace, which spec.deletionPolicy Block keeps; metadata only",
    },
    Rule {
        groups: &["events.k8s.io"],
        resources: &["events"],
        names: &[],
        verbs: &["create"],
        why: "one Event per transition of a tenant",
    },
];

/// What the roles edit and admin of Kubernetes get in addition, so that those who administer a namespace can make clusters in
/// it. Not among it: templates and applies, because whoever writes Terraform runs it with the provider's credentials.
pub const AGGREGATE_TO_EDIT: &[Rule] = &[
    Rule {
        groups: &["cluster.x-k8s.io"],
        resources: &["clusters"],
        names: &[],
        verbs: &["create", "delete", "deletecollection", "patch", "update"],
        why: "clusters of their own",
    },
    Rule {
        groups: &["infrastructure.cluster.x-k8s.io"],
        resources: &["captclusters"],
        names: &[],
        verbs: &["create", "delete", "deletecollection", "patch", "update"],
        why: "and their networks",
    },
    Rule {
        groups: &["controlplane.cluster.x-k8s.io"],
        resources: &["captcontrolplanes"],
        names: &[],
        verbs: &["create", "delete", "deletecollection", "patch", "update"],
        why: "and their control planes",
    },
];

/// What the role view gets, and with it edit and admin.
pub const AGGREGATE_TO_VIEW: &[Rule] = &[
    Rule {
        groups: &["cluster.x-k8s.io"],
        resources: &["clusters"],
        names: &[],
        verbs: &["get", "list", "watch"],
        why: "how their clusters are",
    },
    Rule {
        groups: &["infrastructure.cluster.x-k8s.io"],
        resources: &[
            "captclusters",
            "captclustertemplates",
            "workspacetemplates",
            "workspacetemplateapplies",
        ],
        names: &[],
        verbs: &["get", "list", "watch"],
        why: "their networks, what they are made from, and what Terraform says",
    },
    Rule {
        groups: &["controlplane.cluster.x-k8s.io"],
        resources: &["captcontrolplanes", "captcontrolplanetemplates"],
        names: &[],
        verbs: &["get", "list", "watch"],
        why: "their control planes",
    },
];
