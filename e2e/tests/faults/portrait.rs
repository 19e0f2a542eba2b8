//! A namespace without what differs from run to run, so that two runs can be compared.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::DynamicObject;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::observer::World;

/// Every object of a namespace as text, by kind and name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Portrait(BTreeMap<String, Value>);

impl Portrait {
    pub(crate) fn of(namespace: &str, world: &World) -> Self {
        let names = Names::of(namespace, world);
        let objects = world.objects.iter().filter(|(id, _)| !id.is_kubernetes_own());
        Self(
            objects
                .map(|(id, object)| (names.replace(&id.to_string()), names.normal(id.kind, object)))
                .collect(),
        )
    }

    /// Where the two differ, a line each; empty when they do not.
    pub(crate) fn differences(&self, other: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        let all: BTreeSet<&String> = self.0.keys().chain(other.0.keys()).collect();
        for id in all {
            compare(id, self.0.get(id), other.0.get(id), &mut lines);
        }
        lines
    }
}

fn compare(path: &str, expected: Option<&Value>, found: Option<&Value>, lines: &mut Vec<String>) {
    match (expected, found) {
        (Some(expected), Some(found)) if expected == found => {}
        (Some(Value::Object(expected)), Some(Value::Object(found))) => {
            let keys: BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
            for key in keys {
                compare(&format!("{path}.{key}"), expected.get(key), found.get(key), lines);
            }
        }
        (expected, found) => {
            let show = |value: Option<&Value>| value.map_or_else(|| "absent".to_owned(), ToString::to_string);
            lines.push(format!("{path}: expected {}, found {}", show(expected), show(found)));
        }
    }
}

/// What stands for the names that differ from namespace to namespace.
struct Names(Vec<(String, String)>);

impl Names {
    fn of(namespace: &str, world: &World) -> Self {
        let mut names = Vec::new();
        for (id, object) in &world.objects {
            if let Some(uid) = object.uid() {
                names.push((uid, format!("<uid of {id}>")));
            }
            if id.kind == "Workspace" {
                let apply = object.labels().get(capt_api::names::label::WTA_NAME).cloned();
                let apply = apply.unwrap_or_default();
                names.push((id.name.clone(), format!("<workspace of {apply}>")));
                if let Some(revision) = object.annotations().get(capt_api::names::annotation::REVISION) {
                    names.push((revision.clone(), format!("<revision of {apply}>")));
                }
            }
        }
        // The namespace comes last: the names of Workspaces begin with it.
        names.push((namespace.to_owned(), "<namespace>".to_owned()));
        Self(names)
    }

    fn replace(&self, text: &str) -> String {
        let known = self
            .0
            .iter()
            .fold(text.to_owned(), |text, (from, to)| text.replace(from.as_str(), to));
        without_hashes(&known)
    }

    fn normal(&self, kind: &str, object: &DynamicObject) -> Value {
        let mut value = json!({"metadata": object.metadata, "data": object.data});
        if let Some(metadata) = value.pointer_mut("/metadata").and_then(Value::as_object_mut) {
            for key in [
                "uid",
                "resourceVersion",
                "creationTimestamp",
                "managedFields",
                "generation",
            ] {
                metadata.remove(key);
            }
        }
        if kind == "Secret"
            && let Some(data) = value.pointer_mut("/data/data").and_then(Value::as_object_mut)
        {
            data.values_mut().for_each(|value| *value = self.fingerprint(value));
        }
        if kind == "Cluster" {
            simplify_cluster(&mut value);
        }
        self.clean(value)
    }

    /// Secret values are compared, never shown.
    fn fingerprint(&self, value: &Value) -> Value {
        let bytes = STANDARD.decode(value.as_str().unwrap_or_default()).unwrap_or_default();
        let digest = Sha256::digest(self.replace(&String::from_utf8_lossy(&bytes)));
        let hex: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        json!(format!("sha256:{hex}"))
    }

    /// Replaces names and times everywhere, and makes lists of conditions comparable.
    fn clean(&self, value: Value) -> Value {
        match value {
            Value::String(text) if text.parse::<Timestamp>().is_ok() => json!("<time>"),
            Value::String(text) => Value::String(self.replace(&text)),
            Value::Array(items) if items.iter().all(|item| item.get("type").is_some_and(Value::is_string)) => {
                let by_type: Map<String, Value> = items
                    .into_iter()
                    .map(|item| {
                        let type_ = item.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
                        (type_, self.clean(item))
                    })
                    .collect();
                Value::Object(by_type)
            }
            Value::Array(items) => Value::Array(items.into_iter().map(|item| self.clean(item)).collect()),
            Value::Object(mut fields) => {
                // These are sets: their order only tells who was first.
                for set in ["finalizers", "ownerReferences"] {
                    if let Some(Value::Array(items)) = fields.get_mut(set) {
                        items.sort_by_key(ToString::to_string);
                    }
                }
                fields
                .into_iter()
                // Which generation was seen last depends on how many steps there were; that it was the last is what counts,
                // and that shows in the conditions.
                .filter(|(key, _)| key != "observedGeneration")
                .map(|(key, value)| (self.replace(&key), self.clean(value)))
                .collect()
            }
            other => other,
        }
    }
}

/// Core's own words change with what it saw first; its verdicts are compared.
fn simplify_cluster(cluster: &mut Value) {
    for conditions in ["/data/status/conditions", "/data/status/deprecated/v1beta1/conditions"] {
        for condition in cluster
            .pointer_mut(conditions)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            if let Some(fields) = condition.as_object_mut() {
                fields.remove("message");
            }
        }
    }
}

/// The names that the templates make contain hashes of names.
fn without_hashes(text: &str) -> String {
    const SHORTEST: usize = 16;
    let mut clean = String::new();
    let mut run = String::new();
    for c in text.chars().chain(std::iter::once('\0')) {
        if c.is_ascii_hexdigit() && !c.is_ascii_uppercase() {
            run.push(c);
            continue;
        }
        clean.push_str(if run.len() >= SHORTEST { "<hash>" } else { &run });
        run.clear();
        if c != '\0' {
            clean.push(c);
        }
    }
    clean
}

#[test]
fn hashes_are_told_from_words() {
    assert_eq!(without_hashes("vpc-0123456789abcdef0"), "vpc-<hash>");
    assert_eq!(
        without_hashes("subnet-0123456789abcdefb, deadbeef"),
        "subnet-<hash>, deadbeef"
    );
}
