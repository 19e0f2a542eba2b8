//! Who writes what: one field manager for every field that CAPT writes.
//!
//! Several controllers report on one object, so a field with two writers would flap for ever. This table is the single
//! place that assigns them; the write protocol restricts each controller to its own rows, and tests hold that no path
//! has two owners and that no status field is without one.
//!
//! A path is dotted, from the root of the object. `[key]` selects one entry: of a list of conditions by its type, of
//! finalizers by name, of labels and annotations by key. A path owns everything below it.

use crate::names::Manager;

/// What a row is about. An apply has three writers, two of which depend on what it is for, so the two roles stand apart
/// from the kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    CaptCluster,
    CaptControlPlane,
    WorkspaceTemplate,
    WorkspaceTemplateApply,
    /// A WorkspaceTemplateApply as the CAPTCluster's child.
    VpcApply,
    /// A WorkspaceTemplateApply as the CAPTControlPlane's child.
    EksApply,
    /// The Terraform provider's Workspace.
    Workspace,
    /// What a Workspace cannot be destroyed without: a Secret or ConfigMap that it reads, or the provider's record of it.
    WorkspaceInput,
    /// A kubeconfig or CA Secret in Cluster API's form.
    ClusterSecret,
    /// Cluster API's Cluster.
    Cluster,
    Tenant,
    /// A Namespace of a Tenant.
    TenantNamespace,
    /// The RoleBinding of a Tenant's administrator.
    TenantBinding,
}

/// One row: this manager, and no other, writes this path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owned {
    pub kind: Kind,
    pub path: &'static str,
    pub manager: Manager,
}

/// The paths that this manager owns on this kind, in the table's order.
pub fn owned(kind: Kind, manager: Manager) -> impl Iterator<Item = &'static str> {
    TABLE
        .iter()
        .filter(move |row| row.kind == kind && row.manager == manager)
        .map(|row| row.path)
}

macro_rules! table {
    ($( $kind:ident, $manager:ident: $( $path:expr ),+ ; )+) => {
        &[$( $( Owned { kind: Kind::$kind, path: $path, manager: Manager::$manager } ),+ ),+]
    };
}

/// Names stand here in full, because a constant cannot be spliced into another; a test compares them with `names`.
pub const TABLE: &[Owned] = table! {
    CaptCluster, Cluster:
        "metadata.finalizers[infrastructure.cluster.x-k8s.io/captcluster]",
        "status.ready",
        "status.initialization",
        "status.vpcWorkspaceName",
        "status.vpcId",
        "status.failureReason",
        "status.failureMessage",
        "status.failureDomains",
        "status.endpoint",
        "status.waitingSince",
        "status.workspaceTemplateStatus",
        "status.observedGeneration",
        "status.conditions[Ready]",
        "status.conditions[VPCReady]",
        "status.conditions[VPCCreating]",
        "status.conditions[VPCFailed]",
        "status.conditions[Deleting]",
        "status.conditions[Paused]";

    CaptControlPlane, ControlPlane:
        "metadata.finalizers[controlplane.cluster.x-k8s.io/captcontrolplane]",
        "status.ready",
        "status.initialized",
        "status.initialization",
        "status.phase",
        "status.version",
        "status.versions",
        "status.externalManagedControlPlane",
        "status.workspaceTemplateStatus",
        "status.workspaceStatus",
        "status.waitingSince",
        "status.failureReason",
        "status.failureMessage",
        "status.observedGeneration",
        "status.conditions[Ready]",
        "status.conditions[Available]",
        "status.conditions[Initialized]",
        "status.conditions[Creating]",
        "status.conditions[Failed]",
        "status.conditions[Deleting]",
        "status.conditions[Paused]";

    CaptControlPlane, Endpoint:
        "metadata.finalizers[controlplane.cluster.x-k8s.io/captendpoint]",
        "spec.controlPlaneEndpoint",
        "status.endpoint",
        "status.conditions[EndpointReady]";

    CaptControlPlane, Secrets:
        "metadata.finalizers[controlplane.cluster.x-k8s.io/captsecrets]",
        "status.secretsReady",
        "status.conditions[SecretsReady]";

    WorkspaceTemplate, Workspace:
        "status.variables",
        "status.observedGeneration",
        "status.conditions[Valid]";

    WorkspaceTemplateApply, Workspace:
        "metadata.finalizers[infrastructure.cluster.x-k8s.io/workspacetemplateapply]",
        "metadata.annotations[infrastructure.cluster.x-k8s.io/workspace-name]",
        "metadata.annotations[infrastructure.cluster.x-k8s.io/workspace-kind]",
        "metadata.annotations[infrastructure.cluster.x-k8s.io/workspace-inputs]",
        "metadata.annotations[clusterctl.cluster.x-k8s.io/block-move]",
        "status.workspaceName",
        "status.terraformWorkspace",
        "status.applied",
        "status.lastAppliedTime",
        "status.lastAppliedRevision",
        "status.lastFailedRevision",
        "status.lastFailureMessage",
        "status.outputs",
        "status.observedGeneration",
        "status.conditions[Synced]",
        "status.conditions[Ready]",
        "status.conditions[Waiting]",
        "status.conditions[Deleting]",
        "status.conditions[Paused]";

    VpcApply, Cluster:
        "metadata.finalizers[infrastructure.cluster.x-k8s.io/captcluster-hold]",
        "metadata.labels[cluster.x-k8s.io/cluster-name]",
        "metadata.labels[cluster.x-k8s.io/watch-filter]",
        "metadata.labels[infrastructure.cluster.x-k8s.io/capt-owner-uid]",
        "metadata.ownerReferences",
        "spec";

    EksApply, ControlPlane:
        "metadata.finalizers[controlplane.cluster.x-k8s.io/captcontrolplane-hold]",
        "metadata.labels[cluster.x-k8s.io/cluster-name]",
        "metadata.labels[cluster.x-k8s.io/watch-filter]",
        "metadata.labels[infrastructure.cluster.x-k8s.io/capt-owner-uid]",
        "metadata.annotations[infrastructure.cluster.x-k8s.io/network-variables]",
        "metadata.ownerReferences",
        "spec";

    Workspace, Workspace:
        "metadata.finalizers[infrastructure.cluster.x-k8s.io/workspace-hold]",
        "metadata.labels[infrastructure.cluster.x-k8s.io/capt-owner-uid]",
        "metadata.labels[infrastructure.cluster.x-k8s.io/wta-namespace]",
        "metadata.labels[infrastructure.cluster.x-k8s.io/wta-name]",
        "metadata.annotations[infrastructure.cluster.x-k8s.io/wta-namespace]",
        "metadata.annotations[infrastructure.cluster.x-k8s.io/wta-name]",
        "metadata.annotations[infrastructure.cluster.x-k8s.io/revision]",
        "metadata.annotations[infrastructure.cluster.x-k8s.io/resumed]",
        "metadata.annotations[infrastructure.cluster.x-k8s.io/looked-again]",
        "metadata.annotations[infrastructure.cluster.x-k8s.io/released]",
        "metadata.annotations[crossplane.io/external-name]",
        "spec";

    WorkspaceInput, Workspace:
        "metadata.finalizers[infrastructure.cluster.x-k8s.io/workspace-input]";

    ClusterSecret, Secrets:
        "metadata.labels[cluster.x-k8s.io/cluster-name]",
        "metadata.labels[infrastructure.cluster.x-k8s.io/capt-owner-uid]",
        "metadata.ownerReferences",
        "type",
        "data";

    Cluster, Endpoint:
        "spec.controlPlaneEndpoint";

    Tenant, Tenant:
        "metadata.finalizers[tenant.finalizers.multitenancy.capt.dev]",
        "status.namespaces",
        "status.clusters",
        "status.observedGeneration",
        "status.conditions[Ready]",
        "status.conditions[Deleting]",
        "status.conditions[Paused]";

    TenantNamespace, Tenant:
        "metadata.labels[infrastructure.cluster.x-k8s.io/capt-owner-uid]",
        "metadata.labels[multitenancy.capt.dev/tenant]",
        "metadata.labels[multitenancy.capt.dev/namespace]",
        "metadata.labels[multitenancy.capt.dev/deletion-policy]",
        "metadata.ownerReferences";

    TenantBinding, Tenant:
        "metadata.labels[infrastructure.cluster.x-k8s.io/capt-owner-uid]",
        "metadata.labels[multitenancy.capt.dev/tenant]",
        "metadata.labels[multitenancy.capt.dev/namespace]",
        "metadata.labels[multitenancy.capt.dev/deletion-policy]",
        "metadata.ownerReferences",
        "roleRef",
        "subjects";
};

/// Fields of Cluster API's Cluster that a controller clears when its own object caused them. Cluster API writes them, so
/// they are nobody's here: each removal is guarded by a test of the value.
pub const CLEARED: &[Owned] = table! {
    Cluster, Cluster:
        "status.deprecated.v1beta1.failureReason",
        "status.deprecated.v1beta1.failureMessage";

    Cluster, ControlPlane:
        "status.deprecated.v1beta1.failureReason",
        "status.deprecated.v1beta1.failureMessage";
};

#[cfg(test)]
mod tests;
