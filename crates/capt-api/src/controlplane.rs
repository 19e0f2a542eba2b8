//! CAPTControlPlane: an EKS control plane, as Cluster API's control plane; and its template for ClusterClasses.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::{ApiEndpoint, TemplateMetadata, TemplateReference};
use crate::machine::Place;
use crate::schema;

/// The EKS control plane that a cluster is to have.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "controlplane.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "CAPTControlPlane",
    root = "CaptControlPlane",
    plural = "captcontrolplanes",
    shortname = "captcp",
    category = "cluster-api",
    category = "capt",
    namespaced,
    status = "CaptControlPlaneStatus",
    derive = "PartialEq",
    doc = "CAPTControlPlane is an EKS control plane that Terraform makes from a WorkspaceTemplate. A Cluster refers to it in spec.controlPlaneRef.",
    // Only a change of the version is judged: a status update, or any other change, must always pass, whatever the two
    // versions are. The patterns keep int() from failing on a version that is refused anyway.
    validation = Rule::new(format!(
        "self.spec.version == oldSelf.spec.version || !has(self.status) || !has(self.status.version) \
         || !self.spec.version.matches('{0}') || !self.status.version.matches('{0}') \
         || {1} >= {2}",
        schema::VERSION,
        ordinal("self.spec.version"),
        ordinal("self.status.version"),
    ))
    .message("spec.version cannot go below the minor version that the control plane runs (status.version), because EKS cannot be downgraded; set it to that minor version or a newer one")
    .field_path(".spec.version"),
    validation = Rule::new(
        "self.spec.controlPlaneConfig.region == oldSelf.spec.controlPlaneConfig.region || !has(self.status) \
         || !has(self.status.workspaceTemplateStatus) || !has(self.status.workspaceTemplateStatus.workspaceName)"
    )
    .message("spec.controlPlaneConfig.region cannot be changed once Terraform works on the EKS cluster, because in another region it finds nothing of what it made and forgets it; delete the Cluster and create another one")
    .field_path(".spec.controlPlaneConfig.region"),
    printcolumn(name = "READY", type_ = "boolean", json_path = ".status.ready", description = "Whether the control plane can be used"),
    printcolumn(name = "PHASE", type_ = "string", json_path = ".status.phase", description = "Creating, Ready, Failed or Deleting"),
    printcolumn(name = "VERSION", type_ = "string", json_path = ".spec.version", description = "Kubernetes version asked for"),
    printcolumn(name = "ENDPOINT", type_ = "string", json_path = ".status.endpoint", description = "Where the API server is reached"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp", description = "Time since creation"),
    printcolumn(name = "CLUSTER", type_ = "string", json_path = r".metadata.labels['cluster\.x-k8s\.io/cluster-name']", description = "The Cluster this belongs to", priority = 1),
    printcolumn(name = "REASON", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason", description = "Why it is ready or not", priority = 1),
    printcolumn(name = "WORKSPACE", type_ = "string", json_path = ".status.workspaceTemplateStatus.workspaceName", description = "The EKS cluster's Terraform Workspace", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct CaptControlPlaneSpec {
    /// Kubernetes version: 1.31, v1.31 or v1.31.2. EKS is given the minor version. It cannot go below the minor version
    /// that is running.
    #[schemars(schema_with = "schema::kubernetes_version")]
    pub version: String,
    /// The WorkspaceTemplate from which the EKS cluster is made.
    pub workspace_template_ref: TemplateReference,
    /// Settings of the EKS control plane.
    pub control_plane_config: ControlPlaneConfig,
    /// AWS tags. The template gets them as the variable tags (JSON) and as tags_<key>.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::tags")]
    pub additional_tags: BTreeMap<String, String>,
    /// Variables handed to the template, besides those that CAPT sets: cluster_name, kubernetes_version, region, vpc_id,
    /// addons, tags, endpoint_*, tags_*, and the VPC's outputs as vpc_<output>.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::control_plane_variables")]
    pub variables: BTreeMap<String, String>,
    /// Address of the API server. CAPT writes it when EKS has made it; do not set it yourself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(merge_strategy = MapMerge::Atomic)]
    pub control_plane_endpoint: Option<ApiEndpoint>,
    /// Accepted so that manifests of earlier versions stay valid. The apply has its usual name; only while one of this name
    /// belongs to this object is it refused, because another EKS cluster would be made beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub workspace_template_apply_name: Option<String>,
}

/// CEL for a version as a number that grows with major and minor version.
fn ordinal(version: &str) -> String {
    let part = |n: u8| format!("int({version}.replace('v', '').split('.')[{n}])");
    format!("{} * 1000 + {}", part(0), part(1))
}

/// Settings of the EKS control plane.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlaneConfig {
    /// AWS region of the EKS cluster, such as eu-west-1.
    #[schemars(schema_with = "schema::region")]
    pub region: String,
    /// From where the API server can be reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint_access: Option<EndpointAccess>,
    /// EKS add-ons, each at most once. The template gets them as the variable addons (JSON).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(
        validation = Rule::new("self.all(a, self.exists_one(b, b.name == a.name))")
            .message("addons must have different names; remove the addon that is listed twice")
    )]
    pub addons: Vec<Addon>,
    /// How long to wait before something counts as failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<ControlPlaneTimeouts>,
}

/// From where the API server can be reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.public) && !self.public && has(self.private) && !self.private)")
    .message("endpointAccess must leave a way to the API server: set public or private to true"))]
pub struct EndpointAccess {
    /// Whether the API server can be reached from the internet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public: Option<bool>,
    /// Whether the API server can be reached from within the VPC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub private: Option<bool>,
    /// The CIDR blocks from which the public endpoint can be reached; everywhere if left out.
    #[serde(default, rename = "publicCIDRs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::cidr_list")]
    pub public_cidrs: Vec<String>,
}

/// An EKS add-on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Addon {
    /// Name of the add-on, such as vpc-cni.
    #[schemars(length(min = 1, max = 100))]
    pub name: String,
    /// Version of the add-on; the template's choice if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 100))]
    pub version: Option<String>,
    /// Configuration of the add-on, as JSON text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8192))]
    pub configuration_values: Option<String>,
}

/// Minutes after which a wait counts as failed. What is left out is set by the controller's flags.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlaneTimeouts {
    /// Minutes for the control plane to become ready; 30 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1440))]
    pub control_plane_timeout: Option<i32>,
    /// Minutes to wait for the VPC; 15 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1440))]
    pub vpc_ready_timeout: Option<i32>,
    /// Minutes for a valid kubeconfig once the control plane and its endpoint are there; 5 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1440))]
    pub secret_timeout: Option<i32>,
    /// Minutes for the deletion, after which it is reported as late; nothing is given up. 30 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1440))]
    pub deletion_timeout: Option<i32>,
}

/// Where a control plane stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    Creating,
    Ready,
    Failed,
    Deleting,
}

impl Phase {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "Creating",
            Self::Ready => "Ready",
            Self::Failed => "Failed",
            Self::Deleting => "Deleting",
        }
    }
}

impl Place for Phase {
    const ALL: &'static [Self] = &[Self::Creating, Self::Ready, Self::Failed, Self::Deleting];
    fn label(self) -> &'static str {
        self.as_str()
    }
}

/// What is known about the control plane.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CaptControlPlaneStatus {
    /// Whether the control plane can be used. Once true it stays true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// Whether the control plane has been usable once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialized: Option<bool>,
    /// How far the first provisioning has come, as Cluster API's contract asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<ControlPlaneInitialization>,
    /// Where the control plane stands.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "schema::lenient"
    )]
    pub phase: Option<Phase>,
    /// The Kubernetes version that runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub version: Option<String>,
    /// The Kubernetes versions that run, oldest first, as Cluster API's contract asks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["version".into()]))]
    pub versions: Vec<RunningVersion>,
    /// Always true: no Machine stands for the control plane, because EKS runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_managed_control_plane: Option<bool>,
    /// Where the API server is reached, as host:port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 520))]
    pub endpoint: Option<String>,
    /// Whether valid kubeconfig and CA Secrets exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets_ready: Option<bool>,
    /// When each wait that is still going on began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_since: Option<ControlPlaneWaits>,
    /// What the EKS apply reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_template_status: Option<EksTemplateStatus>,
    /// What the Terraform Workspace reports, in short.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_status: Option<WorkspaceStatus>,
    /// Why the control plane cannot be made, as one word. Set only while it is not ready, and cleared when the cause is
    /// gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub failure_reason: Option<String>,
    /// Why the control plane cannot be made, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 10240))]
    pub failure_message: Option<String>,
    /// The metadata.generation that this status was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// Ready, Available, Initialized, Creating, Failed, EndpointReady, SecretsReady, Deleting and Paused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// How far the first provisioning has come.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlaneInitialization {
    /// Whether the control plane has been usable once. Cluster API waits for this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_initialized: Option<bool>,
}

/// A Kubernetes version that runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunningVersion {
    /// The version, in the form in which spec.version gives it.
    #[schemars(length(min = 1, max = 256))]
    pub version: String,
}

/// When each wait began. A wait that is over is not listed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlaneWaits {
    /// Since when the VPC is awaited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vpc: Option<Time>,
    /// Since when the control plane is awaited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane: Option<Time>,
    /// Since when a valid kubeconfig is awaited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Time>,
    /// Since when Terraform is at work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<Time>,
    /// Since when the deletion is going on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<Time>,
}

/// What the EKS apply reports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct EksTemplateStatus {
    /// Whether the apply is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// The apply's state, as one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub state: Option<String>,
    /// The Terraform Workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub workspace_name: Option<String>,
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
}

/// What the Terraform Workspace reports, in short.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceStatus {
    /// Whether the Workspace is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// The Workspace's state, as one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub state: Option<String>,
}

/// The CAPTControlPlanes that a ClusterClass makes.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "controlplane.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "CAPTControlPlaneTemplate",
    root = "CaptControlPlaneTemplate",
    plural = "captcontrolplanetemplates",
    category = "cluster-api",
    category = "capt",
    namespaced,
    derive = "PartialEq",
    doc = "CAPTControlPlaneTemplate is what a ClusterClass makes CAPTControlPlanes from.",
    printcolumn(
        name = "AGE",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Time since creation"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct CaptControlPlaneTemplateSpec {
    /// The CAPTControlPlane to make.
    pub template: CaptControlPlaneTemplateResource,
}

/// The CAPTControlPlane to make.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CaptControlPlaneTemplateResource {
    /// Labels and annotations of the new CAPTControlPlane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// Spec of the new CAPTControlPlane. It cannot be changed; make another template instead.
    #[x_kube(
        validation = Rule::new("self == oldSelf")
            .message("spec.template.spec cannot be changed, because clusters were made from it; create a new CAPTControlPlaneTemplate and refer to that"),
        validation = Rule::new("!has(self.controlPlaneEndpoint)")
            .message("controlPlaneEndpoint must be left out of a template: each cluster gets an endpoint of its own from EKS")
    )]
    pub spec: CaptControlPlaneTemplateResourceSpec,
}

/// A CAPTControlPlane's spec but for the version, which Cluster API sets from the Cluster's topology.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CaptControlPlaneTemplateResourceSpec {
    /// The WorkspaceTemplate from which the EKS cluster is made.
    pub workspace_template_ref: TemplateReference,
    /// Settings of the EKS control plane.
    pub control_plane_config: ControlPlaneConfig,
    /// AWS tags. The template gets them as the variable tags (JSON) and as tags_<key>.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::tags")]
    pub additional_tags: BTreeMap<String, String>,
    /// Variables handed to the template, besides those that CAPT sets; as in CAPTControlPlane.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::control_plane_variables")]
    pub variables: BTreeMap<String, String>,
    /// Must be left out: each cluster has an endpoint of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_endpoint: Option<ApiEndpoint>,
}
