//! A Workspace of either group as the provider reads it: its spec, its annotations, its policies.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use kube::api::DynamicObject;
use serde::Deserialize;
use serde_json::Value;

pub(super) const FINALIZER: &str = "finalizer.managedresource.crossplane.io";

pub(super) const EXTERNAL_NAME: &str = "crossplane.io/external-name";
pub(super) const CREATE_PENDING: &str = "crossplane.io/external-create-pending";
pub(super) const CREATE_SUCCEEDED: &str = "crossplane.io/external-create-succeeded";
pub(super) const CREATE_FAILED: &str = "crossplane.io/external-create-failed";
const PAUSED: &str = "crossplane.io/paused";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Spec {
    pub(super) for_provider: ForProvider,
    pub(super) provider_config_ref: Option<ProviderConfigRef>,
    pub(super) write_connection_secret_to_ref: Option<SecretRef>,
    /// Only the cluster-scoped kind has it.
    deletion_policy: Option<String>,
    /// The CRD's default is `["*"]`; empty means paused.
    #[serde(default)]
    management_policies: BTreeSet<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ForProvider {
    pub(super) source: String,
    #[serde(default)]
    pub(super) module: String,
    pub(super) inline_format: Option<String>,
    #[serde(default)]
    pub(super) env: Vec<EnvVar>,
    #[serde(default)]
    pub(super) vars: Vec<Var>,
    pub(super) varmap: Option<serde_json::Map<String, Value>>,
    #[serde(default)]
    pub(super) var_files: Vec<VarFile>,
}

#[derive(Deserialize)]
pub(super) struct Var {
    pub(super) key: String,
    pub(super) value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EnvVar {
    pub(super) name: String,
    #[serde(default)]
    pub(super) value: String,
    pub(super) config_map_key_ref: Option<KeyRef>,
    pub(super) secret_key_ref: Option<KeyRef>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct VarFile {
    pub(super) format: Option<String>,
    pub(super) config_map_key_ref: Option<KeyRef>,
    pub(super) secret_key_ref: Option<KeyRef>,
}

#[derive(Deserialize)]
pub(super) struct KeyRef {
    /// The namespaced kind has none: its references stay in its own namespace.
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    pub(super) key: String,
}

#[derive(Deserialize)]
pub(super) struct ProviderConfigRef {
    /// Only the namespaced kind has it.
    pub(super) kind: Option<String>,
    pub(super) name: String,
}

#[derive(Deserialize)]
pub(super) struct SecretRef {
    pub(super) namespace: Option<String>,
    pub(super) name: String,
}

/// What may be done to the infrastructure.
#[derive(Debug)]
pub(super) struct Policy {
    actions: BTreeSet<String>,
    /// `spec.deletionPolicy`, where the kind has one.
    deletion: Option<String>,
}

/// The combinations that the provider accepts besides all, nothing (paused) and everything spelt out.
const SUPPORTED: &[&[&str]] = &[
    &["*"],
    &[],
    &["Observe"],
    &["Observe", "Create"],
    &["Observe", "Delete"],
    &["Observe", "Update"],
    &["Observe", "LateInitialize"],
    &["Observe", "Create", "Update"],
    &["Observe", "Create", "Delete"],
    &["Observe", "Create", "LateInitialize"],
    &["Observe", "Update", "LateInitialize"],
    &["Observe", "Create", "Update", "Delete"],
    &["Observe", "Create", "Update", "LateInitialize"],
    &["Observe", "Create", "Delete", "LateInitialize"],
    &["Observe", "Create", "Update", "Delete", "LateInitialize"],
];

impl Policy {
    pub(super) fn of(spec: &Spec) -> Self {
        Self {
            actions: spec.management_policies.clone(),
            deletion: spec.deletion_policy.clone(),
        }
    }

    pub(super) fn paused(&self) -> bool {
        self.actions.is_empty()
    }

    pub(super) fn supported(&self) -> bool {
        SUPPORTED
            .iter()
            .any(|set| set.len() == self.actions.len() && set.iter().all(|action| self.actions.contains(*action)))
    }

    pub(super) fn listed(&self) -> String {
        self.actions.iter().map(String::as_str).collect::<Vec<_>>().join(" ")
    }

    pub(super) fn only_observe(&self) -> bool {
        self.actions.len() == 1 && self.actions.contains("Observe")
    }

    pub(super) fn may_create(&self) -> bool {
        self.allows("Create")
    }

    pub(super) fn may_update(&self) -> bool {
        self.allows("Update")
    }

    /// Whichever of the two policies has a value other than its default decides.
    pub(super) fn may_delete(&self) -> bool {
        match self.deletion.as_deref() {
            None | Some("Delete") => self.allows("Delete"),
            Some(_) => self.actions.contains("Delete"),
        }
    }

    fn allows(&self, action: &str) -> bool {
        self.actions.contains("*") || self.actions.contains(action)
    }
}

pub(super) fn spec(object: &DynamicObject) -> Result<Spec, serde_json::Error> {
    Spec::deserialize(object.data.get("spec").unwrap_or(&Value::Null))
}

pub(super) fn annotation<'a>(object: &'a DynamicObject, key: &str) -> Option<&'a str> {
    object.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

pub(super) fn annotate(object: &mut DynamicObject, key: &str, value: impl Into<String>) {
    let annotations = object.metadata.annotations.get_or_insert_default();
    annotations.insert(key.to_owned(), value.into());
}

pub(super) fn external_name(object: &DynamicObject) -> Option<&str> {
    annotation(object, EXTERNAL_NAME).filter(|name| !name.is_empty())
}

pub(super) fn annotated_paused(object: &DynamicObject) -> bool {
    annotation(object, PAUSED) == Some("true")
}

pub(super) fn deleting(object: &DynamicObject) -> bool {
    object.metadata.deletion_timestamp.is_some()
}

pub(super) fn has_finalizer(object: &DynamicObject) -> bool {
    object
        .metadata
        .finalizers
        .iter()
        .flatten()
        .any(|held| held == FINALIZER)
}

/// Creation was begun and neither outcome was recorded after that.
pub(super) fn create_incomplete(object: &DynamicObject) -> bool {
    let Some(pending) = time(object, CREATE_PENDING) else {
        return false;
    };
    let outcome = time(object, CREATE_SUCCEEDED).max(time(object, CREATE_FAILED));
    outcome.is_none_or(|outcome| pending > outcome)
}

pub(super) fn created_within(object: &DynamicObject, period: SignedDuration, now: Timestamp) -> bool {
    time(object, CREATE_SUCCEEDED).is_some_and(|created| now.duration_since(created) < period)
}

fn time(object: &DynamicObject, key: &str) -> Option<Timestamp> {
    annotation(object, key)?.parse().ok()
}
