//! WorkspaceTemplate, a reusable piece of Terraform, and WorkspaceTemplateApply, one use of it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema, Resource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::common::{ObjectReference, TemplateReference};
use crate::conditions::{self, Reason, workspace_apply};
use crate::schema;

/// A reusable piece of Terraform.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "WorkspaceTemplate",
    plural = "workspacetemplates",
    category = "cluster-api",
    category = "capt",
    namespaced,
    status = "WorkspaceTemplateStatus",
    derive = "PartialEq",
    doc = "WorkspaceTemplate is a reusable piece of Terraform: the spec of a Terraform Workspace in which ${name} stands for a variable. A WorkspaceTemplateApply turns it into a Workspace.",
    printcolumn(
        name = "VERSION",
        type_ = "string",
        json_path = ".spec.template.metadata.version",
        description = "The template's own version"
    ),
    printcolumn(
        name = "VALID",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Valid')].status",
        description = "Whether the template can be rendered"
    ),
    printcolumn(
        name = "AGE",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Time since creation"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceTemplateSpec {
    /// The Workspace to make.
    pub template: WorkspaceDefinition,
    /// The Secret into which Terraform's outputs go, unless the apply names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_connection_secret_to_ref: Option<TemplatedReference>,
}

/// The Workspace to make.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceDefinition {
    /// What people should know about the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<DefinitionMetadata>,
    /// Spec of the Workspace, as the Terraform provider defines it. Fields that are not listed here are passed on to it.
    pub spec: WorkspaceSpec,
}

/// Names a Secret, in the apply's namespace unless another is given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TemplatedReference {
    /// Name of the Secret. May hold variables.
    #[schemars(schema_with = "schema::templated_name")]
    pub name: String,
    /// Namespace of the Secret; the apply's own if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::templated_namespace")]
    pub namespace: Option<String>,
}

/// What people should know about a template.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DefinitionMetadata {
    /// What the template makes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub description: Option<String>,
    /// The template's own version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub version: Option<String>,
    /// Anything to sort templates by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::labels")]
    pub tags: BTreeMap<String, String>,
}

/// Fields that the Terraform provider knows and this API does not; kept and passed on.
pub type Unknown = BTreeMap<String, Value>;

/// Spec of a Workspace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceSpec {
    /// The Terraform to run, and how.
    pub for_provider: WorkspaceParameters,
    /// The provider's configuration: backend and credentials. The one named default if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_config_ref: Option<ProviderConfigReference>,
    /// What Terraform may do; everything ("*") if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 6))]
    pub management_policies: Option<Vec<ManagementAction>>,
    /// What becomes of the resources when the Workspace is deleted: Delete (if left out) destroys them, Orphan keeps them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_policy: Option<DeletionPolicy>,
    /// The Secret into which Terraform's outputs go, unless the apply or spec.writeConnectionSecretToRef names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_connection_secret_to_ref: Option<WorkspaceSecretReference>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// The Terraform to run, and how.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceParameters {
    /// Where the module comes from: Inline (module holds the text), Remote (module holds an address) or Flux.
    pub source: ModuleSource,
    /// The root module: its text, or its address.
    #[schemars(length(max = 1_048_576))]
    pub module: String,
    /// The language of an inline module; HCL if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inline_format: Option<FileFormat>,
    /// The directory within the module in which Terraform runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub entrypoint: Option<String>,
    /// Terraform variables with text values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub vars: Option<Vec<TerraformVariable>>,
    /// Terraform variables with values of any type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub varmap: Option<Map<String, Value>>,
    /// Files of Terraform variables in ConfigMaps and Secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub var_files: Option<Vec<VariableFile>>,
    /// Environment variables for Terraform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub env: Option<Vec<EnvironmentVariable>>,
    /// Arguments added to terraform init.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), inner(length(max = 4096)))]
    pub init_args: Option<Vec<String>>,
    /// Arguments added to terraform plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), inner(length(max = 4096)))]
    pub plan_args: Option<Vec<String>>,
    /// Arguments added to terraform apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), inner(length(max = 4096)))]
    pub apply_args: Option<Vec<String>>,
    /// Arguments added to terraform destroy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), inner(length(max = 4096)))]
    pub destroy_args: Option<Vec<String>>,
    /// Whether the provider logs what Terraform prints.
    #[serde(
        default,
        rename = "enableTerraformCLILogging",
        skip_serializing_if = "Option::is_none"
    )]
    pub enable_terraform_cli_logging: Option<bool>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Where a module comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ModuleSource {
    #[default]
    Remote,
    Inline,
    Flux,
}

/// The language of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FileFormat {
    #[serde(rename = "HCL")]
    Hcl,
    #[serde(rename = "JSON")]
    Json,
}

/// What becomes of the resources when the Workspace is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DeletionPolicy {
    Delete,
    Orphan,
}

/// What Terraform may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ManagementAction {
    Observe,
    Create,
    Update,
    Delete,
    LateInitialize,
    #[serde(rename = "*")]
    All,
}

/// A Terraform variable with a text value.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TerraformVariable {
    /// Name of the variable.
    #[schemars(length(max = 256))]
    pub key: String,
    /// Its value.
    #[schemars(length(max = 131_072))]
    pub value: String,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A file of Terraform variables.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VariableFile {
    /// What holds the file: ConfigMapKey or SecretKey.
    pub source: VariableFileSource,
    /// The language of the file; HCL if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<FileFormat>,
    /// The ConfigMap's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyReference>,
    /// The Secret's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyReference>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// What holds a file of variables.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VariableFileSource {
    #[default]
    ConfigMapKey,
    SecretKey,
}

/// An environment variable.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvironmentVariable {
    /// Name of the variable.
    #[schemars(length(max = 256))]
    pub name: String,
    /// Its value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 131_072))]
    pub value: Option<String>,
    /// The ConfigMap's key that holds the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyReference>,
    /// The Secret's key that holds the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyReference>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A key of a ConfigMap or Secret.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyReference {
    /// Name of the ConfigMap or Secret. May hold variables.
    #[schemars(schema_with = "schema::templated_name")]
    pub name: String,
    /// Its namespace; the apply's own if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::templated_namespace")]
    pub namespace: Option<String>,
    /// The key.
    #[schemars(length(max = 253))]
    pub key: String,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Names the provider's configuration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderConfigReference {
    /// Name of the ProviderConfig. May hold variables.
    #[schemars(schema_with = "schema::templated_name")]
    pub name: String,
    /// Kind of the configuration, for namespaced Workspaces: ProviderConfig or ClusterProviderConfig, which it is if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub kind: Option<String>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Names the Secret for Terraform's outputs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceSecretReference {
    /// Name of the Secret. May hold variables.
    #[schemars(schema_with = "schema::templated_name")]
    pub name: String,
    /// Namespace of the Secret; the apply's own if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::templated_namespace")]
    pub namespace: Option<String>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// What is known about a template.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceTemplateStatus {
    /// The variables that the template expects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 256)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub variables: Vec<String>,
    /// The metadata.generation that this status was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// Valid: whether the template can be rendered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// One use of a WorkspaceTemplate.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "WorkspaceTemplateApply",
    plural = "workspacetemplateapplies",
    shortname = "wtapply",
    category = "capt",
    category = "terraform",
    namespaced,
    status = "WorkspaceTemplateApplyStatus",
    derive = "PartialEq",
    doc = "WorkspaceTemplateApply is one use of a WorkspaceTemplate: it gives the variables, and a Terraform Workspace is made from both. Deleting it destroys what Terraform made.",
    printcolumn(
        name = "WORKSPACE",
        type_ = "string",
        json_path = ".status.workspaceName",
        description = "The Terraform Workspace"
    ),
    printcolumn(
        name = "APPLIED",
        type_ = "boolean",
        json_path = ".status.applied",
        description = "Whether the Workspace was made"
    ),
    printcolumn(
        name = "READY",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status",
        description = "Whether Terraform has applied the current revision"
    ),
    printcolumn(
        name = "AGE",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Time since creation"
    ),
    printcolumn(
        name = "REASON",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].reason",
        description = "Why it is ready or not",
        priority = 1
    ),
    printcolumn(
        name = "REVISION",
        type_ = "string",
        json_path = ".status.lastAppliedRevision",
        description = "The revision that was applied last",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceTemplateApplySpec {
    /// The template.
    pub template_ref: TemplateReference,
    /// Values for the template's variables.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::apply_variables")]
    pub variables: BTreeMap<String, String>,
    /// The Secret into which Terraform's outputs go; the template's choice if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_connection_secret_to_ref: Option<ObjectReference>,
    /// Secrets that must exist before the Workspace is made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub wait_for_secrets: Vec<ObjectReference>,
    /// Applies, or else Workspaces, that must be ready before the Workspace is made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub wait_for_workspaces: Vec<ObjectReference>,
    /// Keep the Workspace and what Terraform made when this object is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain_workspace_on_delete: Option<bool>,
}

/// What is known about an apply.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceTemplateApplyStatus {
    /// The Terraform Workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub workspace_name: Option<String>,
    /// The Terraform workspace in which the Workspace keeps its state: its external-name, as it was first seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub terraform_workspace: Option<String>,
    /// Whether the Workspace was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<bool>,
    /// When the last revision was applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_applied_time: Option<Time>,
    /// The revision that Terraform applied last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub last_applied_revision: Option<String>,
    /// The revision that failed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub last_failed_revision: Option<String>,
    /// Terraform's error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub last_failure_message: Option<String>,
    /// Terraform's outputs that are not sensitive; what is not a string is JSON text.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::outputs")]
    pub outputs: BTreeMap<String, String>,
    /// The metadata.generation that this status was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// Synced, Ready, Waiting, Deleting and Paused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

impl WorkspaceTemplateApply {
    /// Whether the apply is ready as its spec stands now.
    ///
    /// The one way to ask: a Ready condition of an older generation speaks of variables that have changed since, and a
    /// parent that believed it would report a cluster as upgraded before Terraform had begun.
    pub fn is_ready(&self) -> bool {
        let Some(status) = &self.status else { return false };
        self.meta().deletion_timestamp.is_none()
            && status.observed_generation == self.meta().generation
            && conditions::find(&status.conditions, workspace_apply::Ready::TYPE)
                .is_some_and(|ready| ready.status == "True" && ready.observed_generation == self.meta().generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_apply_is_ready_only_for_its_own_generation() {
        let apply = |generation: i64, observed: i64, status: &str, condition_observed: i64, deleting: bool| {
            let mut value = json!({
                "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "WorkspaceTemplateApply",
                "metadata": { "name": "a", "generation": generation },
                "spec": { "templateRef": { "name": "t" } },
                "status": {
                    "observedGeneration": observed,
                    "conditions": [{
                        "type": "Ready", "status": status, "reason": "Available", "message": "",
                        "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": condition_observed,
                    }],
                },
            });
            if deleting {
                value["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            serde_json::from_value::<WorkspaceTemplateApply>(value).unwrap()
        };
        assert!(apply(2, 2, "True", 2, false).is_ready());
        assert!(!apply(2, 2, "False", 2, false).is_ready());
        assert!(!apply(2, 1, "True", 1, false).is_ready());
        assert!(!apply(2, 2, "True", 1, false).is_ready());
        assert!(!apply(2, 1, "True", 2, false).is_ready());
        assert!(!apply(2, 2, "True", 2, true).is_ready());
        assert!(!WorkspaceTemplateApply::new("a", WorkspaceTemplateApplySpec::default()).is_ready());
    }
}
