use std::collections::BTreeSet;

use super::*;
use crate::conditions::{
    Reason, cluster, control_plane, endpoint, secrets, tenant, workspace_apply, workspace_template,
};

/// Every schema below this one, with its path.
fn walk<'a>(path: String, schema: &'a JSONSchemaProps, visit: &mut impl FnMut(&str, &'a JSONSchemaProps)) {
    visit(&path, schema);
    for (name, property) in schema.properties.iter().flatten() {
        walk(format!("{path}.{name}"), property, visit);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
        walk(format!("{path}[]"), items, visit);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &schema.additional_properties {
        walk(format!("{path}{{}}"), values, visit);
    }
}

fn everywhere(mut visit: impl FnMut(&str, &JSONSchemaProps)) {
    let all = all();
    for crd in &all {
        let schema = crd.spec.versions[0]
            .schema
            .as_ref()
            .unwrap()
            .open_api_v3_schema
            .as_ref()
            .unwrap();
        walk(crd.spec.names.kind.clone(), schema, &mut visit);
    }
}

#[test]
fn the_generated_files_are_up_to_date() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crds");
    let differing = differing(&directory).unwrap();
    assert!(differing.is_empty(), "{differing:?} differ; run `make generate`");
}

#[test]
fn changed_missing_and_superfluous_files_are_named() {
    let directory = std::env::temp_dir().join(format!("capt-crds-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let all = all();
    for crd in &all[2..] {
        std::fs::write(directory.join(file_name(crd)), yaml(crd).unwrap()).unwrap();
    }
    std::fs::write(directory.join(file_name(&all[1])), "changed").unwrap();
    std::fs::write(directory.join("old.yaml"), "").unwrap();
    let differing = differing(&directory);
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!(
        differing.unwrap(),
        [
            "infrastructure.cluster.x-k8s.io_captclusters.yaml",
            "infrastructure.cluster.x-k8s.io_captclustertemplates.yaml",
            "old.yaml"
        ]
    );
}

/// The writer folds long lines; what is read back must be what was meant, CEL rules included.
#[test]
fn the_yaml_says_what_the_crd_says() {
    for crd in all() {
        let text = yaml(&crd).unwrap();
        let back: CustomResourceDefinition = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(back, crd);
        assert!(!text.contains("null"), "{}", file_name(&crd));
    }
}

#[test]
fn every_field_has_a_description() {
    everywhere(|path, schema| {
        let is_field = !path.ends_with("[]") && !path.ends_with("{}");
        assert!(
            !is_field || schema.description.as_ref().is_some_and(|text| text.ends_with('.')),
            "{path}"
        );
    });
}

/// Unbounded values have unbounded costs, and the API server refuses rules over them.
#[test]
fn everything_is_bounded() {
    everywhere(|path, schema| match schema.type_.as_deref() {
        Some("string") => {
            let bounded = schema.max_length.is_some() || schema.enum_.is_some() || schema.format.is_some();
            assert!(bounded, "{path} has no maxLength");
        }
        Some("array") => assert!(schema.max_items.is_some(), "{path} has no maxItems"),
        Some("object") if schema.additional_properties.is_some() => {
            assert!(schema.max_properties.is_some(), "{path} has no maxProperties");
        }
        Some("integer") => assert!(schema.minimum.is_some(), "{path} has no minimum"),
        Some("object" | "boolean") => {}
        other => panic!("{path} has type {other:?}"),
    });
}

/// With a default or null, a field that a controller does not own would appear in its objects all the same.
#[test]
fn nothing_is_defaulted_or_null() {
    everywhere(|path, schema| {
        assert_eq!(schema.default, None, "{path}");
        assert_eq!(schema.nullable, None, "{path}");
    });
}

#[test]
fn every_rule_has_a_message_of_its_own() {
    let mut rules: BTreeMap<String, String> = BTreeMap::new();
    everywhere(|path, schema| {
        for rule in schema.x_kubernetes_validations.iter().flatten() {
            let message = rule.message.clone().unwrap_or_default();
            assert!(message.len() > 20, "{path}: {message:?}");
            let known = rules.entry(message.clone()).or_insert_with(|| rule.rule.clone());
            assert_eq!(*known, rule.rule, "two rules say {message:?}");
        }
    });
}

/// capt-endpoint replaces the address as a whole; merged with a user's, it could be a host of one and a port of the other.
#[test]
fn the_control_planes_endpoint_is_atomic() {
    let mut found = None;
    everywhere(|path, schema| {
        if path == "CAPTControlPlane.spec.controlPlaneEndpoint" {
            found = schema.x_kubernetes_map_type.clone();
        }
    });
    assert_eq!(found.as_deref(), Some("atomic"));
}

/// `docs/api-rules.md` lists the rules for people: every message, and none that no longer exists.
#[test]
fn the_rules_are_documented() {
    let document =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api-rules.md")).unwrap();
    let (refused, checked) = document.split_once("## Checked by the controllers").unwrap();
    let cells = |line: &str| {
        line.trim_matches('|')
            .split(" | ")
            .map(|cell| cell.trim().to_owned())
            .collect::<Vec<_>>()
    };
    let rows = |part: &str| {
        part.lines()
            .filter(|line| line.starts_with("| "))
            .skip(1)
            .map(cells)
            .collect::<Vec<_>>()
    };

    let documented: BTreeSet<String> = rows(refused).into_iter().map(|row| row[1].clone()).collect();
    let mut messages = BTreeSet::new();
    everywhere(|_, schema| {
        messages.extend(
            schema
                .x_kubernetes_validations
                .iter()
                .flatten()
                .filter_map(|rule| rule.message.clone()),
        );
    });
    assert_eq!(documented, messages);

    // What the controllers check is shown in conditions and reasons that exist.
    fn known<R: Reason>(kind: &str) -> Vec<(String, &'static str)> {
        R::ALL
            .iter()
            .map(|reason| (format!("{kind} `{}`", R::TYPE), reason.as_str()))
            .collect()
    }
    let known: BTreeSet<_> = [
        known::<cluster::VpcFailed>("CAPTCluster"),
        known::<cluster::VpcCreating>("CAPTCluster"),
        known::<control_plane::Failed>("CAPTControlPlane"),
        known::<control_plane::Creating>("CAPTControlPlane"),
        known::<endpoint::EndpointReady>("CAPTControlPlane"),
        known::<secrets::SecretsReady>("CAPTControlPlane"),
        known::<workspace_template::Valid>("WorkspaceTemplate"),
        known::<workspace_apply::Synced>("WorkspaceTemplateApply"),
        known::<workspace_apply::Waiting>("WorkspaceTemplateApply"),
        known::<tenant::Ready>("Tenant"),
    ]
    .concat()
    .into_iter()
    .collect();
    let checks = rows(checked);
    assert!(!checks.is_empty());
    for row in checks {
        for condition in row[2].split("; ") {
            let shown = (condition.to_owned(), row[3].trim_matches('`'));
            assert!(known.contains(&shown), "{shown:?}");
        }
    }
}

#[test]
fn groups_names_and_labels() {
    let infrastructure = ("cluster.x-k8s.io/provider", "infrastructure-capt");
    let control_plane = ("cluster.x-k8s.io/provider", "control-plane-capt");
    let contract = ("cluster.x-k8s.io/v1beta2", "v1beta1");
    let clusterctl = ("clusterctl.cluster.x-k8s.io", "");
    let moved = ("clusterctl.cluster.x-k8s.io/move", "");
    type Row<'a> = (&'a str, &'a str, &'a [&'a str], &'a [&'a str], &'a [(&'a str, &'a str)]);
    let expected: [Row<'_>; 7] = [
        (
            "captclusters.infrastructure.cluster.x-k8s.io",
            "CAPTCluster",
            &["captc"],
            &["cluster-api", "capt"],
            &[infrastructure, contract, clusterctl],
        ),
        (
            "captclustertemplates.infrastructure.cluster.x-k8s.io",
            "CAPTClusterTemplate",
            &[],
            &["cluster-api", "capt"],
            &[infrastructure, contract, clusterctl],
        ),
        (
            "captcontrolplanes.controlplane.cluster.x-k8s.io",
            "CAPTControlPlane",
            &["captcp"],
            &["cluster-api", "capt"],
            &[control_plane, contract, clusterctl],
        ),
        (
            "captcontrolplanetemplates.controlplane.cluster.x-k8s.io",
            "CAPTControlPlaneTemplate",
            &[],
            &["cluster-api", "capt"],
            &[control_plane, contract, clusterctl],
        ),
        (
            "workspacetemplates.infrastructure.cluster.x-k8s.io",
            "WorkspaceTemplate",
            &[],
            &["cluster-api", "capt"],
            &[infrastructure, clusterctl, moved],
        ),
        (
            "workspacetemplateapplies.infrastructure.cluster.x-k8s.io",
            "WorkspaceTemplateApply",
            &["wtapply"],
            &["capt", "terraform"],
            &[infrastructure, clusterctl],
        ),
        ("tenants.multitenancy.capt.dev", "Tenant", &[], &["capt"], &[]),
    ];
    for (crd, (name, kind, short, categories, labels)) in all().iter().zip(expected) {
        assert_eq!(crd.metadata.name.as_deref(), Some(name));
        assert_eq!(crd.spec.names.kind, kind);
        assert_eq!(crd.spec.names.short_names.clone().unwrap_or_default(), short, "{kind}");
        assert_eq!(
            crd.spec.names.categories.clone().unwrap_or_default(),
            categories,
            "{kind}"
        );
        let scope = if kind == "Tenant" { "Cluster" } else { "Namespaced" };
        assert_eq!(crd.spec.scope, scope, "{kind}");
        let version = &crd.spec.versions[0];
        assert_eq!(
            (version.name.as_str(), version.served, version.storage),
            ("v1beta1", true, true)
        );
        let has_labels: Vec<_> = crd
            .metadata
            .labels
            .iter()
            .flatten()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        assert_eq!(has_labels, labels, "{kind}");
        let has_status = version.subresources.as_ref().is_some_and(|sub| sub.status.is_some());
        assert_eq!(
            has_status,
            !kind.starts_with("CAPT") || !kind.ends_with("Template"),
            "{kind}"
        );
    }
}
