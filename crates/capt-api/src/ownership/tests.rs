use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;

use super::*;
use crate::conditions::{
    Report, cluster, control_plane, endpoint, secrets, tenant, workspace_apply, workspace_template,
};
use crate::crd;
use crate::names::{annotation, finalizer, label};

/// The kinds with a status of ours, and the names of their CRDs.
const OURS: [(Kind, &str); 5] = [
    (Kind::CaptCluster, "captclusters.infrastructure.cluster.x-k8s.io"),
    (
        Kind::CaptControlPlane,
        "captcontrolplanes.controlplane.cluster.x-k8s.io",
    ),
    (
        Kind::WorkspaceTemplate,
        "workspacetemplates.infrastructure.cluster.x-k8s.io",
    ),
    (
        Kind::WorkspaceTemplateApply,
        "workspacetemplateapplies.infrastructure.cluster.x-k8s.io",
    ),
    (Kind::Tenant, "tenants.multitenancy.capt.dev"),
];

fn schema(name: &str) -> JSONSchemaProps {
    let crd = crd::all()
        .into_iter()
        .find(|crd| crd.metadata.name.as_deref() == Some(name))
        .unwrap();
    crd.spec.versions[0].schema.clone().unwrap().open_api_v3_schema.unwrap()
}

fn child<'a>(schema: &'a JSONSchemaProps, name: &str) -> Option<&'a JSONSchemaProps> {
    schema.properties.as_ref()?.get(name)
}

/// Whether one path lies in the other's territory.
fn overlap(one: &str, other: &str) -> bool {
    let below = |path: &str, parent: &str| {
        path.strip_prefix(parent)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    below(one, other) || below(other, one)
}

#[test]
fn overlapping_paths() {
    assert!(overlap("status.a", "status.a"));
    assert!(overlap("status.a.b", "status.a"));
    assert!(overlap("status.conditions", "status.conditions[Ready]"));
    assert!(!overlap("status.a", "status.ab"));
    assert!(!overlap("status.conditions[Ready]", "status.conditions[ReadyToo]"));
}

#[test]
fn no_path_has_two_owners() {
    // A role's rows and those of its kind meet on the same object.
    let same_object = |one: Kind, other: Kind| {
        let kind = |kind| {
            if matches!(kind, Kind::VpcApply | Kind::EksApply) {
                Kind::WorkspaceTemplateApply
            } else {
                kind
            }
        };
        one == other || (kind(one) == kind(other) && (one == kind(one) || other == kind(other)))
    };
    for (i, one) in TABLE.iter().enumerate() {
        for other in &TABLE[i + 1..] {
            assert!(
                !(same_object(one.kind, other.kind) && overlap(one.path, other.path)),
                "{one:?} and {other:?} overlap"
            );
        }
    }
}

#[test]
fn every_path_is_in_the_schema() {
    for (kind, name) in OURS {
        let root = schema(name);
        for row in TABLE
            .iter()
            .filter(|row| row.kind == kind && !row.path.starts_with("metadata."))
        {
            let path = row.path.split('[').next().unwrap();
            let found = path.split('.').try_fold(&root, child);
            assert!(found.is_some(), "{name} has no {path}");
        }
    }
}

#[test]
fn every_status_field_has_an_owner() {
    for (kind, name) in OURS {
        let root = schema(name);
        for field in child(&root, "status").unwrap().properties.as_ref().unwrap().keys() {
            let path = format!("status.{field}");
            assert!(
                TABLE.iter().any(|row| row.kind == kind && overlap(row.path, &path)),
                "{kind:?}: nobody owns {path}"
            );
        }
    }
}

/// The conditions that a controller can report are exactly those that it owns.
#[test]
fn reports_and_owned_conditions_agree() {
    fn reported<R: Report>() -> BTreeSet<String> {
        R::TYPES
            .iter()
            .map(|type_| format!("status.conditions[{type_}]"))
            .collect()
    }
    let reported: BTreeMap<_, _> = [
        (
            (Kind::CaptCluster, Manager::Cluster),
            reported::<cluster::ClusterReport>(),
        ),
        (
            (Kind::CaptControlPlane, Manager::ControlPlane),
            reported::<control_plane::ControlPlaneReport>(),
        ),
        (
            (Kind::CaptControlPlane, Manager::Endpoint),
            reported::<endpoint::EndpointReport>(),
        ),
        (
            (Kind::CaptControlPlane, Manager::Secrets),
            reported::<secrets::SecretsReport>(),
        ),
        (
            (Kind::WorkspaceTemplate, Manager::Workspace),
            reported::<workspace_template::TemplateReport>(),
        ),
        (
            (Kind::WorkspaceTemplateApply, Manager::Workspace),
            reported::<workspace_apply::ApplyReport>(),
        ),
        ((Kind::Tenant, Manager::Tenant), reported::<tenant::TenantReport>()),
    ]
    .into();
    let mut owned: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
    for row in TABLE.iter().filter(|row| row.path.starts_with("status.conditions[")) {
        owned
            .entry((row.kind, row.manager))
            .or_default()
            .insert(row.path.to_owned());
    }
    assert_eq!(owned, reported);
}

#[test]
fn the_names_in_paths_are_the_shared_ones() {
    let finalizers = [
        finalizer::CAPT_CLUSTER,
        finalizer::CAPT_CONTROL_PLANE,
        finalizer::CAPT_ENDPOINT,
        finalizer::CAPT_SECRETS,
        finalizer::WORKSPACE_TEMPLATE_APPLY,
        finalizer::CAPT_CLUSTER_HOLD,
        finalizer::CAPT_CONTROL_PLANE_HOLD,
        finalizer::WORKSPACE_INPUT,
        finalizer::WORKSPACE_HOLD,
        finalizer::TENANT,
    ];
    let labels = [
        label::CLUSTER_NAME,
        label::WATCH_FILTER,
        label::OWNER_UID,
        label::WTA_NAMESPACE,
        label::WTA_NAME,
        label::TENANT,
        label::TENANT_NAMESPACE,
        label::TENANT_DELETION_POLICY,
    ];
    let annotations = [
        annotation::WORKSPACE_NAME,
        annotation::WORKSPACE_KIND,
        annotation::WORKSPACE_INPUTS,
        annotation::NETWORK_VARIABLES,
        annotation::BLOCK_MOVE,
        annotation::WTA_NAMESPACE,
        annotation::WTA_NAME,
        annotation::REVISION,
        annotation::RESUMED,
        annotation::LOOKED_AGAIN,
        annotation::RELEASED,
        annotation::EXTERNAL_NAME,
    ];
    for (field, known) in [
        ("finalizers", &finalizers[..]),
        ("labels", &labels[..]),
        ("annotations", &annotations[..]),
    ] {
        let prefix = format!("metadata.{field}[");
        let used: BTreeSet<_> = TABLE
            .iter()
            .filter_map(|row| row.path.strip_prefix(prefix.as_str())?.strip_suffix(']'))
            .collect();
        assert_eq!(used, known.iter().copied().collect());
    }
}

#[test]
fn owned_paths_of_one_manager() {
    let paths: Vec<_> = owned(Kind::CaptControlPlane, Manager::Endpoint).collect();
    assert_eq!(
        paths,
        [
            "metadata.finalizers[controlplane.cluster.x-k8s.io/captendpoint]",
            "spec.controlPlaneEndpoint",
            "status.endpoint",
            "status.conditions[EndpointReady]"
        ]
    );
    assert_eq!(owned(Kind::CaptCluster, Manager::Secrets).count(), 0);
}
