//! Every name that CAPT's controllers share: API groups, field managers, finalizers, labels, annotations, and the names
//! of the objects they make.
//!
//! Controllers never meet in memory, so a name is their only handshake: it is made here, once, and its exact form is
//! held by golden tests. A derived name always fits Kubernetes' limits; where the user's own name leaves no room, it is
//! cut and a hash of the whole name takes the place of the rest, the same way on every pass.

use std::fmt;

use sha2::{Digest, Sha256};

/// The API group of CAPTCluster, WorkspaceTemplate and WorkspaceTemplateApply.
pub const INFRASTRUCTURE_GROUP: &str = "infrastructure.cluster.x-k8s.io";
/// The API group of CAPTControlPlane.
pub const CONTROL_PLANE_GROUP: &str = "controlplane.cluster.x-k8s.io";
/// The API group of Tenant.
pub const MULTITENANCY_GROUP: &str = "multitenancy.capt.dev";
/// The version in which CAPT serves all of its kinds.
pub const API_VERSION: &str = "v1beta1";

/// Kubernetes' limit for the name of an object.
pub const MAX_OBJECT_NAME: usize = 253;
/// Kubernetes' limit for a label value and for a DNS label.
pub const MAX_LABEL: usize = 63;

/// A controller, as the API server and people see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Manager {
    Cluster,
    ControlPlane,
    Endpoint,
    Secrets,
    Tenant,
    Workspace,
}

impl Manager {
    pub const ALL: [Self; 6] = [
        Self::Cluster,
        Self::ControlPlane,
        Self::Endpoint,
        Self::Secrets,
        Self::Tenant,
        Self::Workspace,
    ];

    /// Those that make clusters, all of which are needed for one.
    pub const OF_CLUSTERS: [Self; 5] = [
        Self::Cluster,
        Self::ControlPlane,
        Self::Endpoint,
        Self::Secrets,
        Self::Workspace,
    ];

    /// The crate's name, which is also its field manager, its Lease and its user agent.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "capt-cluster-controller",
            Self::ControlPlane => "capt-controlplane-controller",
            Self::Endpoint => "capt-endpoint",
            Self::Secrets => "capt-secrets",
            Self::Tenant => "capt-tenant-controller",
            Self::Workspace => "capt-workspace-controller",
        }
    }
}

impl fmt::Display for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Finalizers: what must happen before an object may go.
pub mod finalizer {
    /// On a CAPTCluster, until its VPC is gone or let go.
    pub const CAPT_CLUSTER: &str = "infrastructure.cluster.x-k8s.io/captcluster";
    /// On a CAPTControlPlane, until its Terraform Workspace is gone.
    pub const CAPT_CONTROL_PLANE: &str = "controlplane.cluster.x-k8s.io/captcontrolplane";
    /// On a CAPTControlPlane, until the Cluster's endpoint has been cleared.
    pub const CAPT_ENDPOINT: &str = "controlplane.cluster.x-k8s.io/captendpoint";
    /// On a CAPTControlPlane, until the kubeconfig and CA copies have been removed.
    pub const CAPT_SECRETS: &str = "controlplane.cluster.x-k8s.io/captsecrets";
    /// On a WorkspaceTemplateApply, until its Workspace is gone or let go.
    pub const WORKSPACE_TEMPLATE_APPLY: &str = "infrastructure.cluster.x-k8s.io/workspacetemplateapply";
    /// On the VPC's apply, for as long as the CAPTCluster forbids its destruction.
    pub const CAPT_CLUSTER_HOLD: &str = "infrastructure.cluster.x-k8s.io/captcluster-hold";
    /// On the EKS apply, for as long as the CAPTControlPlane forbids its destruction.
    pub const CAPT_CONTROL_PLANE_HOLD: &str = "controlplane.cluster.x-k8s.io/captcontrolplane-hold";
    /// On a Secret or ConfigMap that Terraform reads, and on the provider's own record of a namespaced Workspace: without them
    /// nothing could be destroyed any more.
    pub const WORKSPACE_INPUT: &str = "infrastructure.cluster.x-k8s.io/workspace-input";
    /// On a namespaced Workspace, until the turn of its apply has come: the deletion of a namespace reaches all Workspaces at
    /// once, and the Terraform provider destroys nothing while there is a finalizer beside its own.
    pub const WORKSPACE_HOLD: &str = "infrastructure.cluster.x-k8s.io/workspace-hold";
    /// On a Tenant, until its namespaces are gone.
    pub const TENANT: &str = "tenant.finalizers.multitenancy.capt.dev";
    /// What the Go version put on its objects; taken over as our own.
    pub const GO_VERSION: &str = "infrastructure.cluster.x-k8s.io/finalizer";
    /// The Terraform provider's own, on a Workspace, until Terraform has nothing left to destroy.
    pub const PROVIDER: &str = "finalizer.managedresource.crossplane.io";
    /// All that CAPT puts on a WorkspaceTemplateApply.
    pub const OF_AN_APPLY: [&str; 4] = [
        WORKSPACE_TEMPLATE_APPLY,
        GO_VERSION,
        CAPT_CLUSTER_HOLD,
        CAPT_CONTROL_PLANE_HOLD,
    ];
}

/// Labels: what can be selected by.
pub mod label {
    /// Cluster API: the name of the Cluster that an object belongs to.
    pub const CLUSTER_NAME: &str = "cluster.x-k8s.io/cluster-name";
    /// Cluster API: the controllers that a `--watch-filter` lets see an object. Copied to children.
    pub const WATCH_FILTER: &str = "cluster.x-k8s.io/watch-filter";
    /// The UID of the object for which CAPT made this one; on everything that CAPT makes.
    pub const OWNER_UID: &str = "infrastructure.cluster.x-k8s.io/capt-owner-uid";
    /// On a Workspace: its apply's namespace (see [`super::label_value`]; the exact one is in the annotation).
    pub const WTA_NAMESPACE: &str = "infrastructure.cluster.x-k8s.io/wta-namespace";
    /// On a Workspace: its apply's name (see [`super::label_value`]; the exact one is in the annotation).
    pub const WTA_NAME: &str = "infrastructure.cluster.x-k8s.io/wta-name";
    /// On what is made for a Tenant: its name (see [`super::label_value`]).
    pub const TENANT: &str = "multitenancy.capt.dev/tenant";
    /// On what is made for a Tenant: the namespace that it is, or is in, so that a copy is not taken for the original.
    pub const TENANT_NAMESPACE: &str = "multitenancy.capt.dev/namespace";
    /// On what is made for a Tenant: `Block` where it has no ownerReference, so that no garbage collector deletes it.
    pub const TENANT_DELETION_POLICY: &str = "multitenancy.capt.dev/deletion-policy";
    /// On a WorkspaceTemplate, set to `true` by an operator: its Terraform backend is reached from both management clusters
    /// of a move.
    pub const SHARED_BACKEND: &str = "infrastructure.cluster.x-k8s.io/shared-backend";
    /// On a CRD: `clusterctl move` takes its objects along.
    pub const CLUSTERCTL: &str = "clusterctl.cluster.x-k8s.io";
    /// On a CRD: `clusterctl move` takes its objects along although no Cluster owns them.
    pub const CLUSTERCTL_MOVE: &str = "clusterctl.cluster.x-k8s.io/move";
    /// On a CRD: the provider that it belongs to.
    pub const PROVIDER: &str = "cluster.x-k8s.io/provider";
    /// On a CRD: which of its versions follow Cluster API's v1beta2 contract.
    pub const CONTRACT_V1BETA2: &str = "cluster.x-k8s.io/v1beta2";
}

/// Annotations: what is recorded, and what an operator decides.
pub mod annotation {
    /// Cluster API: leave this object alone.
    pub const PAUSED: &str = "cluster.x-k8s.io/paused";
    /// Cluster API: another system manages this infrastructure.
    pub const MANAGED_BY: &str = "cluster.x-k8s.io/managed-by";
    /// clusterctl: this object is deleted only because it lives on in another management cluster.
    pub const DELETE_FOR_MOVE: &str = "clusterctl.cluster.x-k8s.io/delete-for-move";
    /// clusterctl: not ready to be moved.
    pub const BLOCK_MOVE: &str = "clusterctl.cluster.x-k8s.io/block-move";

    /// On a CRD: the release of CAPT that it is of, so that an older one never replaces it unasked.
    pub const CAPT_VERSION: &str = "infrastructure.cluster.x-k8s.io/capt-version";

    /// On an apply: the name of its Workspace, so that a lost status cannot lose it.
    pub const WORKSPACE_NAME: &str = "infrastructure.cluster.x-k8s.io/workspace-name";
    /// On an apply: `group/version` of its Workspace, so that a changed flag cannot lose it.
    pub const WORKSPACE_KIND: &str = "infrastructure.cluster.x-k8s.io/workspace-kind";
    /// On an apply: the Secrets and ConfigMaps that its Workspace reads.
    pub const WORKSPACE_INPUTS: &str = "infrastructure.cluster.x-k8s.io/workspace-inputs";
    /// On the apply of a control plane: the variables that its network gave, as a JSON list. What is not in it is the user's.
    pub const NETWORK_VARIABLES: &str = "infrastructure.cluster.x-k8s.io/network-variables";
    /// On an apply, set by an operator: go on with the interrupted create of the Workspace named here.
    pub const RESUME_CREATE: &str = "infrastructure.cluster.x-k8s.io/resume-create";
    /// On an apply, set by an operator: let go of the Workspace named here without destroying it.
    pub const ABANDON_WORKSPACE: &str = "infrastructure.cluster.x-k8s.io/abandon-workspace";

    /// On a Workspace: its apply's namespace, exactly.
    pub const WTA_NAMESPACE: &str = "infrastructure.cluster.x-k8s.io/wta-namespace";
    /// On a Workspace: its apply's name, exactly.
    pub const WTA_NAME: &str = "infrastructure.cluster.x-k8s.io/wta-name";
    /// On a Workspace: the revision that was rendered last.
    pub const REVISION: &str = "infrastructure.cluster.x-k8s.io/revision";
    /// On a Workspace: the interrupted create that was resumed last.
    pub const RESUMED: &str = "infrastructure.cluster.x-k8s.io/resumed";
    /// On a Workspace: the provider was asked to look a second time at what it had found.
    pub const LOOKED_AGAIN: &str = "infrastructure.cluster.x-k8s.io/looked-again";
    /// On a Workspace that is being deleted: when its hold was taken away. The provider does not hear of finalizers, but of this.
    pub const RELEASED: &str = "infrastructure.cluster.x-k8s.io/released";

    /// Crossplane: the name outside Kubernetes; here the key of the Terraform state.
    pub const EXTERNAL_NAME: &str = "crossplane.io/external-name";
    /// Crossplane: a create was begun at this time.
    pub const EXTERNAL_CREATE_PENDING: &str = "crossplane.io/external-create-pending";
    /// Crossplane: a create succeeded at this time.
    pub const EXTERNAL_CREATE_SUCCEEDED: &str = "crossplane.io/external-create-succeeded";
    /// Crossplane: a create failed at this time.
    pub const EXTERNAL_CREATE_FAILED: &str = "crossplane.io/external-create-failed";
    /// Crossplane: leave this object alone.
    pub const CROSSPLANE_PAUSED: &str = "crossplane.io/paused";
}

/// Variables that CAPT hands to templates. Users may not set the reserved ones themselves.
pub mod variable {
    /// Known in every template: the name of the Workspace.
    pub const WORKSPACE_NAME: &str = "WORKSPACE_NAME";
    pub const CLUSTER_NAME: &str = "cluster_name";
    pub const REGION: &str = "region";
    pub const VPC_NAME: &str = "vpc_name";
    pub const VPC_ID: &str = "vpc_id";
    pub const ENVIRONMENT: &str = "environment";
    /// The value of [`ENVIRONMENT`] unless the user gives another.
    pub const DEFAULT_ENVIRONMENT: &str = "production";
    pub const KUBERNETES_VERSION: &str = "kubernetes_version";
    pub const ENDPOINT_PUBLIC_ACCESS: &str = "endpoint_public_access";
    pub const ENDPOINT_PRIVATE_ACCESS: &str = "endpoint_private_access";
    pub const ENDPOINT_PUBLIC_ACCESS_CIDRS: &str = "endpoint_public_access_cidrs";
    pub const ADDONS: &str = "addons";
    pub const TAGS: &str = "tags";
    /// Before each key of `spec.additionalTags`.
    pub const TAG_PREFIX: &str = "tags_";
    /// Before each output of the VPC's Workspace.
    pub const VPC_OUTPUT_PREFIX: &str = "vpc_";
    /// The environment variable in a Workspace that carries the revision, so that a change of an input raises the
    /// Workspace's generation and its result can be awaited.
    pub const REVISION_ENV: &str = "CAPT_REVISION";
}

/// Terraform outputs that CAPT reads; the connection secret uses the same names as keys.
pub mod output {
    pub const VPC_ID: &str = "vpc_id";
    pub const AZS: &str = "azs";
    pub const AVAILABILITY_ZONES: &str = "availability_zones";
    pub const CLUSTER_ENDPOINT: &str = "cluster_endpoint";
    pub const KUBECONFIG: &str = "kubeconfig";
    pub const CLUSTER_CERTIFICATE_AUTHORITY_DATA: &str = "cluster_certificate_authority_data";

    /// All of them.
    pub const ALL: [&str; 6] = [
        VPC_ID,
        AZS,
        AVAILABILITY_ZONES,
        CLUSTER_ENDPOINT,
        KUBECONFIG,
        CLUSTER_CERTIFICATE_AUTHORITY_DATA,
    ];
}

/// The form of the Secrets that Cluster API reads.
pub mod secret {
    /// Type of every Secret that belongs to a Cluster.
    pub const CLUSTER_TYPE: &str = "cluster.x-k8s.io/secret";
    /// Key of a kubeconfig.
    pub const KUBECONFIG_KEY: &str = "value";
    /// Key of a CA certificate.
    pub const CA_KEY: &str = "tls.crt";
}

/// The RoleBinding in each namespace of a Tenant that has an administrator.
pub const TENANT_ADMIN_BINDING: &str = "capt-tenant-admin";
/// The ClusterRole that it gives, one that every Kubernetes has.
pub const TENANT_ADMIN_ROLE: &str = "admin";

/// The apply that creates a CAPTCluster's VPC.
pub fn vpc_apply_name(capt_cluster: &str) -> String {
    derived(capt_cluster, "-vpc")
}

/// The apply that creates a CAPTControlPlane's EKS cluster.
pub fn eks_apply_name(control_plane: &str) -> String {
    derived(control_plane, "-eks-controlplane-apply")
}

/// The Secret into which Terraform writes the VPC's outputs.
pub fn vpc_connection_secret(capt_cluster: &str) -> String {
    derived(capt_cluster, "-vpc-connection")
}

/// The Secret into which Terraform writes the EKS cluster's outputs.
pub fn eks_connection_secret(cluster: &str) -> String {
    derived(cluster, "-eks-connection")
}

/// The kubeconfig Secret of Cluster API's contract.
pub fn kubeconfig_secret(cluster: &str) -> String {
    derived(cluster, "-kubeconfig")
}

/// The same kubeconfig under the name that the Go version's users know.
pub fn kubeconfig_alias_secret(cluster: &str) -> String {
    derived(cluster, "-control-plane-kubeconfig")
}

/// The Secret with the CA certificate of the new cluster.
pub fn ca_secret(cluster: &str) -> String {
    derived(cluster, "-ca")
}

/// The name of an apply's Workspace, which is also its external name: the key of the Terraform state.
///
/// Workspaces may be cluster-scoped and all of them share one Terraform backend, so two applies must never get the same
/// name. The hash is therefore always there and covers `namespace/name`, which is unambiguous (neither part can hold a
/// slash), unlike the readable part: `a-b/c` and `a/b-c` read the same. At most 63 characters, a DNS label, because
/// Terraform's kubernetes backend also uses it as a label value.
pub fn workspace_name(namespace: &str, apply: &str) -> String {
    let readable = format!("{namespace}-{apply}");
    with_hash(
        &readable,
        '-',
        &hash(&format!("{namespace}/{apply}")),
        MAX_LABEL,
        dns_label_char,
    )
}

/// A label value that stands for `value`: itself when it is a valid one, else a readable part and a hash.
///
/// Two values never share a label: the separator before the hash cannot occur in a DNS name, and a value that already
/// looks like a hashed one is hashed again.
pub fn label_value(value: &str) -> String {
    if is_label_value(value) && !looks_hashed(value) {
        return value.to_owned();
    }
    with_hash(value, LABEL_HASH_SEPARATOR, &hash(value), MAX_LABEL, label_char)
}

const LABEL_HASH_SEPARATOR: char = '_';

/// `base` + `suffix`, cut and hashed when that would be too long for an object's name. A name that imitates a hashed one
/// can collide with it; the owner's UID on each object then keeps the two apart.
fn derived(base: &str, suffix: &str) -> String {
    if base.len() + suffix.len() <= MAX_OBJECT_NAME {
        return format!("{base}{suffix}");
    }
    let room = MAX_OBJECT_NAME - suffix.len();
    let mut name = with_hash(base, '-', &hash(base), room, |c| c);
    name.push_str(suffix);
    name
}

/// As much of `readable` as leaves room for `separator` and `hash` within `room`, each character made fit for the place.
fn with_hash(readable: &str, separator: char, hash: &str, room: usize, fit: impl Fn(char) -> char) -> String {
    let room = room.saturating_sub(hash.len() + separator.len_utf8());
    let mut name: String = readable
        .chars()
        .map(fit)
        .skip_while(|c| !c.is_ascii_alphanumeric())
        .take(room)
        .collect();
    // A name part may not end in a dash or a dot, and cutting can leave one at the end.
    name.truncate(name.trim_end_matches(|c: char| !c.is_ascii_alphanumeric()).len());
    if name.is_empty() {
        name.push('x');
    }
    name.push(separator);
    name.push_str(hash);
    name
}

fn dns_label_char(c: char) -> char {
    match c {
        'a'..='z' | '0'..='9' | '-' => c,
        'A'..='Z' => c.to_ascii_lowercase(),
        _ => '-',
    }
}

fn label_char(c: char) -> char {
    match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' | '.' => c,
        _ => '-',
    }
}

const HASH_CHARS: usize = 16;
const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// 80 bits of SHA-256 in base32: nobody can construct the name of another tenant's object, and it reads as a DNS label.
fn hash(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    let mut out = String::with_capacity(HASH_CHARS);
    let (mut bits, mut count) = (0u32, 0u32);
    for byte in digest {
        bits = (bits << 8) | u32::from(byte);
        count += 8;
        while count >= 5 {
            count -= 5;
            if out.len() == HASH_CHARS {
                return out;
            }
            if let Some(&c) = BASE32.get(((bits >> count) & 31) as usize) {
                out.push(char::from(c));
            }
        }
    }
    out
}

fn is_label_value(value: &str) -> bool {
    let edge = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    value.len() <= MAX_LABEL
        && value.chars().all(|c| label_char(c) == c)
        && edge(value.chars().next())
        && edge(value.chars().next_back())
}

/// Whether the text has the shape that [`label_value`] gives to hashed values.
fn looks_hashed(value: &str) -> bool {
    value
        .rsplit_once(LABEL_HASH_SEPARATOR)
        .is_some_and(|(_, tail)| tail.len() == HASH_CHARS && tail.bytes().all(|b| BASE32.contains(&b)))
}

#[cfg(test)]
mod tests;
