//! Tenant: the namespaces of one team, and who administers them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

/// The namespaces that a team is to have.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "multitenancy.capt.dev",
    version = "v1beta1",
    kind = "Tenant",
    plural = "tenants",
    category = "capt",
    status = "TenantStatus",
    derive = "PartialEq",
    doc = "Tenant is a team with namespaces of its own. They are made for it, its administrator may do everything in them, and when the Tenant is deleted their Clusters go first and they after.",
    validation = Rule::new(
        "has(self.spec.namespacePrefix) || self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')"
    )
    .message("a Tenant whose name has dots needs spec.namespacePrefix, because the names of its namespaces would begin with its own name, and they may hold lower-case letters, digits and dashes only"),
    validation = Rule::new(
        "!has(self.spec.namespaces) || self.spec.namespaces.all(n, size(n) + (has(self.spec.namespacePrefix) ? size(self.spec.namespacePrefix) : size(self.metadata.name) + 1) <= 63)"
    )
    .message("a namespace may have at most 63 characters, its prefix included, which is the name of the Tenant and a dash unless spec.namespacePrefix is set; shorten one of them")
    .field_path(".spec.namespaces"),
    printcolumn(
        name = "READY",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status",
        description = "Whether all namespaces are there"
    ),
    printcolumn(
        name = "CLUSTERS",
        type_ = "integer",
        json_path = ".status.clusters",
        description = "Clusters in its namespaces"
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
        name = "NAMESPACES",
        type_ = "string",
        json_path = ".status.namespaces",
        description = "Its namespaces",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.namespacePrefix) == has(oldSelf.namespacePrefix) && (!has(self.namespacePrefix) || self.namespacePrefix == oldSelf.namespacePrefix)")
        .message("namespacePrefix cannot be changed, because all namespaces would have to be deleted and made anew; create another Tenant")
)]
pub struct TenantSpec {
    /// What the name of each namespace begins with; the name of the Tenant and a dash if left out. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::namespace_prefix")]
    pub namespace_prefix: Option<String>,
    /// The namespaces, without the prefix. One that is taken away from here is deleted as spec.deletionPolicy says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::tenant_namespaces")]
    pub namespaces: Vec<String>,
    /// Who gets the role admin in every namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin: Option<TenantAdmin>,
    /// What becomes of the Clusters in a namespace that is to go: Cascade (if left out) deletes them first, Block keeps the
    /// namespace for as long as there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_policy: Option<TenantDeletionPolicy>,
}

/// Somebody to whom a role is given, as in a RoleBinding.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.namespace) == (self.kind == 'ServiceAccount')")
        .message("admin must have a namespace when its kind is ServiceAccount, and none when it is User or Group"),
    validation = Rule::new("!has(self.apiGroup) || self.apiGroup == (self.kind == 'ServiceAccount' ? '' : 'rbac.authorization.k8s.io')")
        .message("admin.apiGroup must be rbac.authorization.k8s.io for a User or Group and empty for a ServiceAccount; leave it out")
)]
pub struct TenantAdmin {
    /// User, Group or ServiceAccount.
    pub kind: SubjectKind,
    /// Name of the user, group or account.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Namespace of a ServiceAccount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::account_namespace")]
    pub namespace: Option<String>,
    /// API group of the kind. Follows from it, and may be left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub api_group: Option<String>,
}

/// To whom a role can be given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SubjectKind {
    User,
    #[default]
    Group,
    ServiceAccount,
}

/// What becomes of the Clusters in a namespace that is to go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TenantDeletionPolicy {
    /// They are deleted, and waited for.
    #[default]
    Cascade,
    /// The namespace stays for as long as there are any.
    Block,
}

/// What is known about a Tenant.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantStatus {
    /// The namespaces that belong to the Tenant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 63)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub namespaces: Vec<String>,
    /// How many Clusters are in them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub clusters: Option<i64>,
    /// The metadata.generation that this status was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// Ready, Deleting and Paused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

impl TenantStatus {
    /// Most namespaces that are shown.
    pub const MAX_NAMESPACES: usize = 256;
}

impl Tenant {
    /// Whether a namespace stays for as long as there is something in it.
    pub fn is_blocking(&self) -> bool {
        self.spec.deletion_policy == Some(TenantDeletionPolicy::Block)
    }

    /// The names of the namespaces that it is to have.
    pub fn wished_namespaces(&self) -> impl Iterator<Item = String> + '_ {
        let own = || format!("{}-", self.name_any());
        let prefix = self.spec.namespace_prefix.clone().unwrap_or_else(own);
        self.spec.namespaces.iter().map(move |name| format!("{prefix}{name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_begin_with_the_prefix_or_the_tenants_name() {
        let mut tenant = Tenant::new("team-a", TenantSpec::default());
        assert_eq!(tenant.wished_namespaces().count(), 0);
        tenant.spec.namespaces = vec!["dev".into(), "prod".into()];
        assert!(tenant.wished_namespaces().eq(["team-a-dev", "team-a-prod"]));
        tenant.spec.namespace_prefix = Some("a-".into());
        assert!(tenant.wished_namespaces().eq(["a-dev", "a-prod"]));
        tenant.spec.namespace_prefix = Some(String::new());
        assert!(tenant.wished_namespaces().eq(["dev", "prod"]));
    }
}
