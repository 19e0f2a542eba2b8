//! CAPTCluster: the network of an EKS cluster, as Cluster API's infrastructure; and its template for ClusterClasses.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::common::{ApiEndpoint, TemplateMetadata, TemplateReference};
use crate::schema;

/// The network that a cluster is to have: a VPC made from a template, or one that exists.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "CAPTCluster",
    root = "CaptCluster",
    plural = "captclusters",
    shortname = "captc",
    category = "cluster-api",
    category = "capt",
    namespaced,
    status = "CaptClusterStatus",
    derive = "PartialEq",
    doc = "CAPTCluster is the network of an EKS cluster: a VPC that Terraform makes from a WorkspaceTemplate, or one that exists. A Cluster refers to it in spec.infrastructureRef.",
    validation = Rule::new(
        "self.spec.region == oldSelf.spec.region || !has(self.status) || !has(self.status.vpcWorkspaceName)"
    )
    .message("spec.region cannot be changed once Terraform works on the VPC, because in another region it finds nothing of what it made and forgets it; delete the object and create another one")
    .field_path(".spec.region"),
    printcolumn(
        name = "VPC-ID",
        type_ = "string",
        json_path = ".status.vpcId",
        description = "ID of the VPC"
    ),
    printcolumn(
        name = "READY",
        type_ = "boolean",
        json_path = ".status.ready",
        description = "Whether the network can be used"
    ),
    printcolumn(
        name = "ENDPOINT",
        type_ = "string",
        json_path = ".status.endpoint",
        description = "Where the cluster's API server is reached"
    ),
    printcolumn(
        name = "AGE",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Time since creation"
    ),
    printcolumn(
        name = "CLUSTER",
        type_ = "string",
        json_path = r".metadata.labels['cluster\.x-k8s\.io/cluster-name']",
        description = "The Cluster this belongs to",
        priority = 1
    ),
    printcolumn(
        name = "REGION",
        type_ = "string",
        json_path = ".spec.region",
        description = "AWS region",
        priority = 1
    ),
    printcolumn(
        name = "REASON",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].reason",
        description = "Why it is ready or not",
        priority = 1
    ),
    printcolumn(
        name = "WORKSPACE",
        type_ = "string",
        json_path = ".status.vpcWorkspaceName",
        description = "The VPC's Terraform Workspace",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.vpcTemplateRef) != has(self.existingVpcId)")
        .message("set exactly one of vpcTemplateRef (CAPT makes the VPC) and existingVpcId (the VPC exists)"),
    validation = Rule::new("!has(self.retainVpcOnDelete) || !self.retainVpcOnDelete || has(self.vpcTemplateRef)")
        .message("retainVpcOnDelete works only with vpcTemplateRef: a VPC given by existingVpcId is never deleted; remove retainVpcOnDelete")
)]
pub struct CaptClusterSpec {
    /// AWS region of the network, such as eu-west-1.
    #[schemars(schema_with = "schema::region")]
    pub region: String,
    /// The WorkspaceTemplate from which the VPC is made. Exactly one of this and existingVpcId is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vpc_template_ref: Option<TemplateReference>,
    /// ID of a VPC that exists and is only used, never changed or deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::vpc_id")]
    pub existing_vpc_id: Option<String>,
    /// Keep the VPC when this object is deleted. Works only with vpcTemplateRef.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain_vpc_on_delete: Option<bool>,
    /// Settings of the VPC that is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vpc_config: Option<VpcConfig>,
    /// Variables handed to the template, besides cluster_name, vpc_name, region and environment, which CAPT sets (of these,
    /// environment may be given here; it is production otherwise).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::cluster_variables")]
    pub variables: BTreeMap<String, String>,
    /// How long to wait before something counts as failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<CaptClusterTimeouts>,
    /// Address of the API server, if you give the cluster one of your own. Cluster API takes it from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_endpoint: Option<ApiEndpoint>,
    /// Accepted so that manifests of earlier versions stay valid. The apply has its usual name; only while one of this name
    /// belongs to this object is it refused, because another VPC would be made beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub workspace_template_apply_name: Option<String>,
}

/// Settings of a VPC.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VpcConfig {
    /// Name of the VPC; <cluster>-vpc if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    pub name: Option<String>,
}

/// Minutes after which a wait counts as failed. What is left out is set by the controller's flags.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CaptClusterTimeouts {
    /// Minutes for the VPC to become ready; 15 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1440))]
    pub vpc_ready_timeout: Option<i32>,
    /// Minutes for the VPC's connection secret to show the VPC's ID; 5 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1440))]
    pub secret_timeout: Option<i32>,
    /// Minutes for the deletion, after which it is reported as late; nothing is given up. 30 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1440))]
    pub deletion_timeout: Option<i32>,
}

/// What is known about the network.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CaptClusterStatus {
    /// Whether the network can be used. Once true it stays true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// How far the first provisioning has come, as Cluster API's contract asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<CaptClusterInitialization>,
    /// The Terraform Workspace that makes the VPC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub vpc_workspace_name: Option<String>,
    /// ID of the VPC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub vpc_id: Option<String>,
    /// Why the network cannot be made, as one word. Set only while it is not ready, and cleared when the cause is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub failure_reason: Option<String>,
    /// Why the network cannot be made, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 10240))]
    pub failure_message: Option<String>,
    /// The availability zones of the network.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "schema::lenient")]
    #[schemars(length(max = 100))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub failure_domains: Vec<FailureDomain>,
    /// Where the cluster's API server is reached, as host:port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 520))]
    pub endpoint: Option<String>,
    /// When each wait that is still going on began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_since: Option<CaptClusterWaits>,
    /// What the VPC's apply reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_template_status: Option<VpcTemplateStatus>,
    /// The metadata.generation that this status was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// Ready, VPCReady, VPCCreating, VPCFailed, Deleting and Paused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// How far the first provisioning has come.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CaptClusterInitialization {
    /// Whether the network has been ready once. Cluster API waits for this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioned: Option<bool>,
}

/// An availability zone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailureDomain {
    /// Name of the zone, such as eu-west-1a.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// Whether control planes may use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane: Option<bool>,
}

/// When each wait began. A wait that is over is not listed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CaptClusterWaits {
    /// Since when the VPC is awaited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vpc: Option<Time>,
    /// Since when the VPC's ID is awaited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Time>,
    /// Since when the deletion is going on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<Time>,
}

/// What the VPC's apply reports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VpcTemplateStatus {
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
    /// When Terraform applied it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_applied_time: Option<Time>,
    /// The revision that failed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub last_failed_revision: Option<String>,
    /// Terraform's error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub last_failure_message: Option<String>,
}

/// The CAPTClusters that a ClusterClass makes.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "infrastructure.cluster.x-k8s.io",
    version = "v1beta1",
    kind = "CAPTClusterTemplate",
    root = "CaptClusterTemplate",
    plural = "captclustertemplates",
    category = "cluster-api",
    category = "capt",
    namespaced,
    derive = "PartialEq",
    doc = "CAPTClusterTemplate is what a ClusterClass makes CAPTClusters from.",
    printcolumn(
        name = "AGE",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Time since creation"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct CaptClusterTemplateSpec {
    /// The CAPTCluster to make.
    pub template: CaptClusterTemplateResource,
}

/// The CAPTCluster to make.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CaptClusterTemplateResource {
    /// Labels and annotations of the new CAPTCluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// Spec of the new CAPTCluster. It cannot be changed; make another template instead.
    #[x_kube(
        validation = Rule::new("self == oldSelf")
            .message("spec.template.spec cannot be changed, because clusters were made from it; create a new CAPTClusterTemplate and refer to that"),
        validation = Rule::new("!has(self.controlPlaneEndpoint)")
            .message("controlPlaneEndpoint must be left out of a template: each cluster has an endpoint of its own; set it on the CAPTCluster")
    )]
    pub spec: CaptClusterSpec,
}
