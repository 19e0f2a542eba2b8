//! What the chart's Jobs may do, and why.

use capt_runtime::rbac::Rule;

/// For `crds apply`. The chart's Role names the CRDs as well: these rules hold for them alone.
pub const APPLY_CRDS: &[Rule] = &[Rule {
    groups: &["apiextensions.k8s.io"],
    resources: &["customresourcedefinitions"],
    names: &[],
    verbs: &["get", "list", "watch", "create", "patch"],
    why: "the CRDs are compared, applied, and watched until they are served",
}];

/// For `crds delete`, beside [`GUARD`].
pub const DELETE_CRDS: &[Rule] = &[Rule {
    groups: &["apiextensions.k8s.io"],
    resources: &["customresourcedefinitions"],
    names: &[],
    verbs: &["delete"],
    why: "the CRDs go with the release, because crds.keep is false",
}];

/// For `guard`.
pub const GUARD: &[Rule] = &[
    Rule {
        groups: &["infrastructure.cluster.x-k8s.io"],
        resources: &["captclusters", "workspacetemplateapplies"],
        names: &[],
        verbs: &["list"],
        why: "whether any still has a finalizer that only CAPT removes; metadata only",
    },
    Rule {
        groups: &["controlplane.cluster.x-k8s.io"],
        resources: &["captcontrolplanes"],
        names: &[],
        verbs: &["list"],
        why: "whether any still has a finalizer that only CAPT removes; metadata only",
    },
    Rule {
        groups: &["multitenancy.capt.dev"],
        resources: &["tenants"],
        names: &[],
        verbs: &["list"],
        why: "whether any still has a finalizer that only CAPT removes; metadata only",
    },
];
