//! The types that several kinds share.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv6Addr;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

/// Names a WorkspaceTemplate.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TemplateReference {
    /// Name of the WorkspaceTemplate.
    #[schemars(schema_with = "schema::object_name")]
    pub name: String,
    /// Namespace of the WorkspaceTemplate; the object's own if left out. Another one works only where the controllers run
    /// with --allow-cross-namespace-templates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::namespace")]
    pub namespace: Option<String>,
}

/// Names an object, in the same namespace unless another is given.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectReference {
    /// Name of the object.
    #[schemars(schema_with = "schema::object_name")]
    pub name: String,
    /// Namespace of the object; the apply's own if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::namespace")]
    pub namespace: Option<String>,
}

/// Where the control plane's API server is reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApiEndpoint {
    /// DNS name or IP address, without scheme and port.
    #[schemars(schema_with = "schema::endpoint_host")]
    pub host: String,
    /// Port, usually 443.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
}

impl ApiEndpoint {
    /// Whether there is an address at all: some writers store an absent one as an empty host and port 0.
    pub fn is_set(&self) -> bool {
        !self.host.is_empty() && self.port > 0
    }
}

/// `host:port`, an IPv6 address in brackets.
impl fmt::Display for ApiEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.parse::<Ipv6Addr>().is_ok() {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Labels and annotations for the objects that Cluster API makes from a template.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TemplateMetadata {
    /// Labels of the new object.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::labels")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the new object.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::annotations")]
    pub annotations: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(host: &str, port: i32) -> ApiEndpoint {
        ApiEndpoint {
            host: host.into(),
            port,
        }
    }

    #[test]
    fn endpoints_as_people_read_them() {
        assert_eq!(endpoint("api.example.com", 443).to_string(), "api.example.com:443");
        assert_eq!(endpoint("10.0.0.1", 6443).to_string(), "10.0.0.1:6443");
        assert_eq!(endpoint("2001:db8::1", 443).to_string(), "[2001:db8::1]:443");
    }

    #[test]
    fn an_endpoint_needs_both_halves() {
        assert!(endpoint("h", 443).is_set());
        assert!(!endpoint("", 443).is_set());
        assert!(!endpoint("h", 0).is_set());
    }
}
