//! What this controller may do, and why.

use capt_runtime::rbac::Rule;

/// Wherever it works.
pub const EVERYWHERE: &[Rule] = &[
    Rule {
        groups: &["controlplane.cluster.x-k8s.io"],
        resources: &["captcontrolplanes"],
        names: &[],
        verbs: &["list", "watch", "patch"],
        why: "the control planes to work for: spec.controlPlaneEndpoint, and the finalizer that keeps one until the Cluster's endpoint is cleared",
    },
    Rule {
        groups: &["controlplane.cluster.x-k8s.io"],
        resources: &["captcontrolplanes/status"],
        names: &[],
        verbs: &["patch"],
        why: "whether the endpoint is published",
    },
    Rule {
        groups: &["cluster.x-k8s.io"],
        resources: &["clusters"],
        names: &[],
        verbs: &["get", "list", "watch", "patch"],
        why: "the Cluster's endpoint, read again before it is set or cleared, and whether the Cluster is paused",
    },
    Rule {
        groups: &["infrastructure.cluster.x-k8s.io"],
        resources: &["captclusters"],
        names: &[],
        verbs: &["get", "list", "watch"],
        why: "an endpoint that the user gave to the infrastructure has precedence",
    },
    Rule {
        groups: &["infrastructure.cluster.x-k8s.io"],
        resources: &["workspacetemplateapplies"],
        names: &[],
        verbs: &["list", "watch"],
        why: "whether Terraform is done, the endpoint among its outputs, and the name of its connection secret",
    },
    Rule {
        groups: &[""],
        resources: &["secrets"],
        names: &[],
        verbs: &["list", "watch"],
        why: "changes of connection secrets, watched as metadata without contents",
    },
    Rule {
        groups: &[""],
        resources: &["secrets"],
        names: &[],
        verbs: &["get"],
        why: "the connection secret, read by name when the outputs lack the endpoint",
    },
    Rule {
        groups: &["events.k8s.io"],
        resources: &["events"],
        names: &[],
        verbs: &["create"],
        why: "one Event per transition of EndpointReady",
    },
];
