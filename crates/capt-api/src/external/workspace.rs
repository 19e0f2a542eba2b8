//! The Terraform provider's Workspace. It exists twice, cluster-scoped and namespaced, in two API groups with almost the
//! same schema; which one is used is decided at run time, so the type is dynamic.

use std::{fmt, str::FromStr};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::core::{ApiResource, GroupVersionKind, Object};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::conditions;
use crate::names::annotation;
use crate::schema::lenient;

/// Which of the provider's two Workspaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WorkspaceKind {
    /// `tf.upbound.io/v1beta1`.
    ClusterScoped,
    /// `tf.m.upbound.io/v1beta1`.
    Namespaced,
}

impl WorkspaceKind {
    pub const ALL: [Self; 2] = [Self::ClusterScoped, Self::Namespaced];

    pub const fn group(self) -> &'static str {
        match self {
            Self::ClusterScoped => "tf.upbound.io",
            Self::Namespaced => "tf.m.upbound.io",
        }
    }

    pub const fn version(self) -> &'static str {
        "v1beta1"
    }

    pub fn api_resource(self) -> ApiResource {
        let kind = GroupVersionKind::gvk(self.group(), self.version(), "Workspace");
        ApiResource::from_gvk_with_plural(&kind, "workspaces")
    }
}

impl fmt::Display for WorkspaceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.group(), self.version())
    }
}

impl FromStr for WorkspaceKind {
    type Err = UnknownWorkspaceKind;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.to_string() == text)
            .ok_or_else(|| UnknownWorkspaceKind(text.to_owned()))
    }
}

/// A text that names no Workspace kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownWorkspaceKind(String);

impl fmt::Display for UnknownWorkspaceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = WorkspaceKind::ALL.map(|kind| kind.to_string()).join(" or ");
        write!(f, "{:?} is no kind of Workspace; use {known}", self.0)
    }
}

impl std::error::Error for UnknownWorkspaceKind {}

/// A Workspace as read from the API server. The spec stays JSON: what CAPT renders is compared with it as it is, and a
/// field that a newer provider knows must not be lost by reading it.
pub type Workspace = Object<Value, WorkspaceState>;

/// What CAPT reads of a Workspace's status.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkspaceState {
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "lenient")]
    pub conditions: Vec<Condition>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    pub at_provider: Option<WorkspaceObservation>,
}

/// What Terraform reported.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkspaceObservation {
    /// The outputs that are not sensitive, with their JSON types.
    #[serde(skip_serializing_if = "Map::is_empty", deserialize_with = "lenient")]
    pub outputs: Map<String, Value>,
}

/// What the provider says about the last thing it did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sync<'a> {
    /// Nothing yet about the current generation.
    Pending,
    /// The current generation was taken without an error.
    Done,
    /// The last attempt failed. The provider stamps errors with the generation it read, so an error of an older
    /// generation is not one of the current spec.
    Failed(&'a str),
    /// The provider was told to leave the Workspace alone.
    Paused,
}

/// Questions about a Workspace whose answers depend on how the provider really behaves.
pub trait WorkspaceExt {
    /// What the provider says about the current generation.
    fn sync(&self) -> Sync<'_>;
    /// Whether Terraform has applied the current generation and a plan shows no difference.
    ///
    /// Synced decides about the generation, because the provider sets Ready without one and leaves it True for the whole
    /// time in which a change is being applied.
    fn is_applied(&self) -> bool;
    /// Since when a create is going on, or was cut off: it was begun, and neither succeeded nor failed since.
    fn create_pending_since(&self) -> Option<Timestamp>;
}

impl WorkspaceExt for Workspace {
    fn sync(&self) -> Sync<'_> {
        let synced = self
            .status
            .as_ref()
            .and_then(|status| conditions::find(&status.conditions, "Synced"));
        match synced {
            Some(synced) if synced.reason == "ReconcilePaused" => Sync::Paused,
            Some(synced)
                if synced.observed_generation.is_some() && synced.observed_generation != self.metadata.generation =>
            {
                Sync::Pending
            }
            Some(synced) if synced.status == "False" => Sync::Failed(&synced.message),
            // Without a generation success proves nothing about the current spec.
            Some(synced) if synced.status == "True" && synced.observed_generation.is_some() => Sync::Done,
            _ => Sync::Pending,
        }
    }

    fn is_applied(&self) -> bool {
        self.sync() == Sync::Done
            && self
                .status
                .as_ref()
                .is_some_and(|status| conditions::is_true(&status.conditions, "Ready"))
    }

    fn create_pending_since(&self) -> Option<Timestamp> {
        let time = |key: &str| {
            self.annotations()
                .get(key)
                .and_then(|text| text.parse::<Timestamp>().ok())
        };
        let pending = time(annotation::EXTERNAL_CREATE_PENDING)?;
        let finished = time(annotation::EXTERNAL_CREATE_SUCCEEDED).max(time(annotation::EXTERNAL_CREATE_FAILED));
        finished.is_none_or(|finished| finished < pending).then_some(pending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn workspace(metadata: Value, conditions: Value) -> Workspace {
        serde_json::from_value(json!({
            "apiVersion": "tf.upbound.io/v1beta1", "kind": "Workspace",
            "metadata": metadata,
            "spec": { "forProvider": { "source": "Inline", "module": "" }, "newField": [1] },
            "status": { "conditions": conditions, "atProvider": { "outputs": { "n": 1 }, "checksum": "c" } },
        }))
        .unwrap()
    }

    fn condition(type_: &str, status: &str, reason: &str, generation: Option<i64>) -> Value {
        json!({
            "type": type_, "status": status, "reason": reason, "message": "m", "observedGeneration": generation,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    }

    #[test]
    fn kinds_are_read_and_printed() {
        for (kind, text) in [
            (WorkspaceKind::ClusterScoped, "tf.upbound.io/v1beta1"),
            (WorkspaceKind::Namespaced, "tf.m.upbound.io/v1beta1"),
        ] {
            assert_eq!(kind.to_string(), text);
            assert_eq!(text.parse(), Ok(kind));
            assert_eq!(kind.api_resource().api_version, text);
        }
        let error = "tf.upbound.io".parse::<WorkspaceKind>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "\"tf.upbound.io\" is no kind of Workspace; use tf.upbound.io/v1beta1 or tf.m.upbound.io/v1beta1"
        );
    }

    /// The rows of the provider's behaviour: (Ready, Synced and its generation) while the object's generation is 2.
    #[test]
    fn what_the_provider_says() {
        let ready = |status| condition("Ready", status, "Available", None);
        let synced = |status, reason, generation| condition("Synced", status, reason, generation);
        let rows = [
            ("nothing yet", json!([]), Sync::Pending, false),
            (
                "applied once, not planned again",
                json!([ready("False"), synced("True", "ReconcileSuccess", Some(2))]),
                Sync::Done,
                false,
            ),
            (
                "in place",
                json!([ready("True"), synced("True", "ReconcileSuccess", Some(2))]),
                Sync::Done,
                true,
            ),
            (
                "a change is being applied",
                json!([ready("True"), synced("True", "ReconcileSuccess", Some(1))]),
                Sync::Pending,
                false,
            ),
            (
                "a change failed",
                json!([ready("True"), synced("False", "ReconcileError", Some(2))]),
                Sync::Failed("m"),
                false,
            ),
            (
                "an older change failed",
                json!([ready("True"), synced("False", "ReconcileError", Some(1))]),
                Sync::Pending,
                false,
            ),
            (
                "failed, generation unknown",
                json!([synced("False", "ReconcileError", None)]),
                Sync::Failed("m"),
                false,
            ),
            (
                "success, generation unknown",
                json!([ready("True"), synced("True", "ReconcileSuccess", None)]),
                Sync::Pending,
                false,
            ),
            (
                "paused",
                json!([ready("True"), synced("False", "ReconcilePaused", Some(1))]),
                Sync::Paused,
                false,
            ),
        ];
        for (case, conditions, sync, applied) in rows {
            let workspace = workspace(json!({ "name": "w", "generation": 2 }), conditions);
            assert_eq!(workspace.sync(), sync, "{case}");
            assert_eq!(workspace.is_applied(), applied, "{case}");
        }
    }

    #[test]
    fn a_create_is_pending_until_it_has_ended() {
        let since = |annotations: Value| {
            workspace(json!({ "name": "w", "annotations": annotations }), json!([])).create_pending_since()
        };
        let (one, two, three) = ("2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z", "2026-01-01T00:00:03Z");
        let (pending, succeeded, failed) = (
            annotation::EXTERNAL_CREATE_PENDING,
            annotation::EXTERNAL_CREATE_SUCCEEDED,
            annotation::EXTERNAL_CREATE_FAILED,
        );
        assert_eq!(since(json!({})), None);
        assert_eq!(since(json!({ pending: two })), two.parse().ok());
        assert_eq!(since(json!({ pending: two, succeeded: three })), None);
        assert_eq!(since(json!({ pending: two, succeeded: two })), None);
        assert_eq!(since(json!({ pending: two, failed: one })), two.parse().ok());
        assert_eq!(since(json!({ pending: two, failed: three, succeeded: one })), None);
        assert_eq!(since(json!({ pending: "not a time" })), None);
    }

    #[test]
    fn unknown_fields_of_the_spec_are_kept() {
        let workspace = workspace(json!({ "name": "w" }), json!("not a list"));
        assert_eq!(workspace.spec["newField"], json!([1]));
        let status = workspace.status.unwrap();
        assert_eq!(status.conditions, []);
        assert_eq!(status.at_provider.unwrap().outputs["n"], json!(1));
    }
}
