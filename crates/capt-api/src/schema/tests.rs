//! The types and the schemas that are generated from them, held against each other: values are made from the schema, and
//! the types must take them without loss.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use proptest::prelude::*;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::crd;

/// Any JSON, for places whose schema takes anything.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-z]{1,4}", inner, 0..3).prop_map(|map| json!(map)),
        ]
    })
}

/// Values that a structural schema accepts, bounds included; CEL rules are not looked at.
fn accepted(schema: &JSONSchemaProps) -> BoxedStrategy<Value> {
    if let Some(values) = &schema.enum_ {
        let values: Vec<Value> = values.iter().map(|value| value.0.clone()).collect();
        return prop::sample::select(values).boxed();
    }
    match schema.type_.as_deref() {
        Some("boolean") => any::<bool>().prop_map(Value::from).boxed(),
        Some("integer") => {
            let widest = if schema.format.as_deref() == Some("int32") {
                i64::from(i32::MAX)
            } else {
                i64::MAX
            };
            let low = schema.minimum.map_or(-widest, |bound| bound as i64);
            let high = schema.maximum.map_or(widest, |bound| bound as i64);
            prop_oneof![low..=high, Just(low), Just(high)]
                .prop_map(Value::from)
                .boxed()
        }
        Some("string") if schema.format.as_deref() == Some("date-time") => (0i64..4_102_444_800)
            .prop_map(|second| json!(jiff::Timestamp::from_second(second).unwrap().to_string()))
            .boxed(),
        Some("string") => {
            if let Some(pattern) = &schema.pattern {
                let unanchored = pattern.trim_start_matches('^').trim_end_matches('$');
                return proptest::string::string_regex(unanchored)
                    .unwrap()
                    .prop_map(Value::from)
                    .boxed();
            }
            let low = schema.min_length.unwrap_or(0) as usize;
            let high = (schema.max_length.unwrap_or(40) as usize).min(low + 40);
            prop::collection::vec(any::<char>(), low..=high)
                .prop_map(|chars| Value::from(chars.into_iter().collect::<String>()))
                .boxed()
        }
        Some("array") => {
            let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items else {
                panic!("an array without items")
            };
            let high = (schema.max_items.unwrap_or(3) as usize).min(3);
            prop::collection::vec(accepted(items), 0..=high)
                .prop_map(Value::from)
                .boxed()
        }
        Some("object") => object(schema),
        other => panic!("type {other:?}"),
    }
}

fn object(schema: &JSONSchemaProps) -> BoxedStrategy<Value> {
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &schema.additional_properties {
        return prop::collection::btree_map("\\PC{0,12}", accepted(values), 0..4)
            .prop_map(|map| json!(map))
            .boxed();
    }
    let required = schema.required.clone().unwrap_or_default();
    let mut fields: BoxedStrategy<Map<String, Value>> = Just(Map::new()).boxed();
    for (name, property) in schema.properties.iter().flatten() {
        let value = accepted(property);
        let value = if required.contains(name) {
            value.prop_map(Some).boxed()
        } else {
            prop::option::weighted(0.4, value).boxed()
        };
        let name = name.clone();
        fields = (fields, value)
            .prop_map(move |(mut fields, value)| {
                fields.extend(value.map(|value| (name.clone(), value)));
                fields
            })
            .boxed();
    }
    if schema.x_kubernetes_preserve_unknown_fields == Some(true) {
        // The prefix keeps them apart from the fields that are known.
        let unknown = prop::collection::btree_map("unknown[A-Z][a-z]{0,4}", any_json(), 0..3);
        fields = (fields, unknown)
            .prop_map(|(mut fields, unknown)| {
                fields.extend(unknown);
                fields
            })
            .boxed();
    }
    fields.prop_map(Value::Object).boxed()
}

/// An object of this kind whose spec and status come from its schema.
fn accepted_object(kind: &str) -> BoxedStrategy<Value> {
    let crd = crd::all().into_iter().find(|crd| crd.spec.names.kind == kind).unwrap();
    let api_version = format!("{}/{}", crd.spec.group, crd.spec.versions[0].name);
    let schema = crd.spec.versions[0].schema.clone().unwrap().open_api_v3_schema.unwrap();
    let kind = kind.to_owned();
    object(&schema)
        .prop_map(move |mut value| {
            value["apiVersion"] = json!(api_version);
            value["kind"] = json!(kind);
            value["metadata"] = json!({ "name": "n", "namespace": "ns" });
            value
        })
        .boxed()
}

/// The value without empty lists and maps, which our types leave out; what stands in a Workspace's spec is untouched.
fn without_empty(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| (name, without_empty(value)))
            .filter(|(_, value)| !value.as_array().is_some_and(Vec::is_empty) && *value != json!({}))
            .collect(),
        Value::Array(items) => items.into_iter().map(without_empty).collect(),
        other => other,
    }
}

fn takes_without_loss<T: serde::de::DeserializeOwned + Serialize>(value: Value) -> Result<(), TestCaseError> {
    let object: T = serde_json::from_value(value.clone()).map_err(|e| TestCaseError::fail(format!("{e}: {value}")))?;
    let written = serde_json::to_value(&object).unwrap();
    prop_assert_eq!(without_empty(written.clone()), without_empty(value));
    let again: T = serde_json::from_value(written.clone()).unwrap();
    prop_assert_eq!(serde_json::to_value(&again).unwrap(), written);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn capt_cluster(value in accepted_object("CAPTCluster")) {
        takes_without_loss::<crate::CaptCluster>(value)?;
    }

    #[test]
    fn capt_cluster_template(value in accepted_object("CAPTClusterTemplate")) {
        takes_without_loss::<crate::CaptClusterTemplate>(value)?;
    }

    #[test]
    fn capt_control_plane(value in accepted_object("CAPTControlPlane")) {
        takes_without_loss::<crate::CaptControlPlane>(value)?;
    }

    #[test]
    fn capt_control_plane_template(value in accepted_object("CAPTControlPlaneTemplate")) {
        takes_without_loss::<crate::CaptControlPlaneTemplate>(value)?;
    }

    #[test]
    fn workspace_template_apply(value in accepted_object("WorkspaceTemplateApply")) {
        takes_without_loss::<crate::WorkspaceTemplateApply>(value)?;
    }

    /// The Workspace's spec comes back exactly, with the fields that we do not know and with empty lists.
    #[test]
    fn workspace_template(value in accepted_object("WorkspaceTemplate")) {
        takes_without_loss::<crate::WorkspaceTemplate>(value.clone())?;
        let template: crate::WorkspaceTemplate = serde_json::from_value(value.clone()).unwrap();
        let written = serde_json::to_value(&template).unwrap();
        prop_assert_eq!(&written["spec"]["template"]["spec"], &value["spec"]["template"]["spec"]);
    }
}

/// What another writer stored in the form of its own version is read as absent where we write the field anew.
#[test]
fn leftovers_of_an_earlier_version_do_not_hide_the_object() {
    let object: crate::CaptControlPlane = serde_json::from_value(json!({
        "apiVersion": "controlplane.cluster.x-k8s.io/v1beta1", "kind": "CAPTControlPlane", "metadata": { "name": "n" },
        "spec": {
            "version": "1.31",
            "workspaceTemplateRef": { "name": "t", "namespace": "default" },
            "controlPlaneConfig": { "region": "eu-west-1" },
            "controlPlaneEndpoint": { "host": "", "port": 0 },
            "workspaceTemplateApplyName": "n-eks-controlplane-apply",
        },
        "status": {
            "phase": "Updating",
            "workspaceStatus": { "ready": true, "state": "Running", "atProvider": { "outputs": { "a": 1 } } },
            "conditions": [{ "type": "Ready", "status": "True", "reason": "R", "lastTransitionTime": "2025-01-01T00:00:00Z" }],
        },
    }))
    .unwrap();
    let status = object.status.unwrap();
    assert_eq!(status.phase, None);
    assert_eq!(status.conditions[0].reason, "R");

    let object: crate::CaptCluster = serde_json::from_value(json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "CAPTCluster", "metadata": { "name": "n" },
        "spec": { "region": "eu-west-1", "existingVpcId": "vpc-1" },
        "status": { "ready": true, "failureDomains": { "eu-west-1a": { "controlPlane": true } } },
    }))
    .unwrap();
    let status = object.status.unwrap();
    assert_eq!((status.ready, status.failure_domains.len()), (Some(true), 0));
}
