//! Schemas of the values that occur on several kinds, each with its bounds and its CEL rules.
//!
//! Every rule has a message that says what is wrong and what to write instead; the API server puts the path of the field
//! in front of it. A bare `pattern` would answer with a regular expression, so it is used for status fields only, which
//! people do not write. Everything is bounded, because the API server estimates the cost of a rule from the bounds.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::{Value, json};

/// Most entries that users may give in `spec.variables`.
pub const MAX_VARIABLES: u32 = 64;
/// Longest value of a user's variable.
pub const MAX_VARIABLE_VALUE: u32 = 4096;
/// Most variables of an apply: the user's, CAPT's own, the tags and the outputs of the VPC.
pub const MAX_APPLY_VARIABLES: u32 = 256;
/// Longest value of an apply's variable: what Linux takes as one argument of a command, and so what Terraform can be given.
pub const MAX_APPLY_VARIABLE_VALUE: u32 = 131_072;
/// Most Terraform outputs kept in a status.
pub const MAX_OUTPUTS: u32 = 64;
/// Longest Terraform output kept in a status.
pub const MAX_OUTPUT_VALUE: u32 = 4096;
/// Most namespaces of a Tenant.
pub const MAX_TENANT_NAMESPACES: u32 = 64;
/// Most AWS tags on one resource.
pub const MAX_TAGS: u32 = 50;

const DNS_SUBDOMAIN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
const TEMPLATED: &str = r"^([a-z0-9.-]|\\$\\{[^{}]+\\})+$";
const DNS_LABEL: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";

fn rule(rule: String, message: &str) -> Value {
    json!({ "rule": rule, "message": message })
}

/// An AWS region.
pub fn region(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 32,
        "x-kubernetes-validations": [rule(
            "self.matches('^[a-z]{2,4}(-[a-z]+)+-[0-9]+$')".into(),
            "region must be the name of an AWS region, such as eu-west-1 or us-gov-east-1",
        )],
    })
}

/// The ID of a VPC.
pub fn vpc_id(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 32,
        "x-kubernetes-validations": [rule(
            "self.matches('^vpc-[0-9a-f]+$')".into(),
            "existingVpcId must be the ID of a VPC, such as vpc-0a1b2c3d4e5f67890 (not its name or ARN)",
        )],
    })
}

/// The name of a Kubernetes object.
pub fn object_name(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 253,
        "x-kubernetes-validations": [rule(
            format!("self.matches('{DNS_SUBDOMAIN}')"),
            "name must be the name of a Kubernetes object: lower-case letters, digits, dashes and dots, beginning and ending with a letter or digit, such as my-template",
        )],
    })
}

/// The name of a namespace.
pub fn namespace(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 63,
        "x-kubernetes-validations": [rule(
            format!("self.matches('{DNS_LABEL}')"),
            "namespace must be the name of a namespace: lower-case letters, digits and dashes, such as team-a; leave it out for the object's own namespace",
        )],
    })
}

/// The namespace of a ServiceAccount.
pub fn account_namespace(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 63,
        "x-kubernetes-validations": [rule(
            format!("self.matches('{DNS_LABEL}')"),
            "namespace must be that of the ServiceAccount: lower-case letters, digits and dashes, such as team-a-ci",
        )],
    })
}

/// What the names of a Tenant's namespaces begin with.
pub fn namespace_prefix(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 62,
        "x-kubernetes-validations": [rule(
            "self.matches('^([a-z0-9][-a-z0-9]*)?$')".into(),
            "namespacePrefix must be lower-case letters, digits and dashes, beginning with a letter or digit, such as team-a-; it may be empty",
        )],
    })
}

/// The namespaces of a Tenant, without their prefix.
pub fn tenant_namespaces(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": MAX_TENANT_NAMESPACES,
        "x-kubernetes-list-type": "set",
        "items": {
            "type": "string",
            "maxLength": 63,
            "x-kubernetes-validations": [rule(
                format!("self.matches('{DNS_LABEL}')"),
                "namespaces must be lower-case letters, digits and dashes, beginning and ending with a letter or digit, such as dev; the prefix is put before each",
            )],
        },
    })
}

/// The name of a Kubernetes object in a template, where `${name}` stands for a variable.
pub fn templated_name(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 253,
        "x-kubernetes-validations": [rule(
            format!("self.matches('{TEMPLATED}')"),
            "name must be the name of a Kubernetes object: lower-case letters, digits, dashes and dots, such as my-secret; a variable is written ${name}",
        )],
    })
}

/// The name of a namespace in a template, where `${name}` stands for a variable.
pub fn templated_namespace(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 253,
        "x-kubernetes-validations": [rule(
            format!("self.matches('{TEMPLATED}')"),
            "namespace must be the name of a namespace: lower-case letters, digits and dashes, such as team-a; a variable is written ${name}; leave it out for the apply's own namespace",
        )],
    })
}

/// The host of an API server.
pub fn endpoint_host(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 512,
        "x-kubernetes-validations": [rule(
            "isIP(self) || self.matches('^[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?$')".into(),
            "host must be a DNS name or an IP address without scheme, port and path: api.example.com, not https://api.example.com:443; the port has a field of its own",
        )],
    })
}

/// A Kubernetes version as EKS knows it.
pub fn kubernetes_version(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 16,
        "x-kubernetes-validations": [rule(
            format!("self.matches('{VERSION}')"),
            "version must be a Kubernetes version such as 1.31, v1.31 or v1.31.2, without build or pre-release suffix",
        )],
    })
}

/// A version that [`kubernetes_version`] accepts; without backslashes, so that it can stand in any CEL string.
pub const VERSION: &str = "^v?[1-9][0-9]?[.](0|[1-9][0-9]{0,2})([.](0|[1-9][0-9]{0,2}))?$";

/// A CIDR block.
pub fn cidr_list(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 40,
        "x-kubernetes-list-type": "set",
        "items": {
            "type": "string",
            "maxLength": 43,
            "x-kubernetes-validations": [rule(
                "isCIDR(self)".into(),
                "publicCIDRs must hold CIDR blocks such as 203.0.113.0/24; a single address is written 203.0.113.7/32",
            )],
        },
    })
}

/// Variables that a user of a CAPTCluster hands to the VPC's template.
pub fn cluster_variables(_: &mut SchemaGenerator) -> Schema {
    user_variables(
        "self.all(k, !(k in ['cluster_name', 'vpc_name', 'region', 'WORKSPACE_NAME']))",
        "variables may not set cluster_name, vpc_name, region or WORKSPACE_NAME: CAPT sets them from the Cluster and from this object's own fields; use those fields, or rename the variable",
    )
}

/// Variables that a user of a CAPTControlPlane hands to the EKS template.
pub fn control_plane_variables(_: &mut SchemaGenerator) -> Schema {
    user_variables(
        "self.all(k, !(k in ['cluster_name', 'kubernetes_version', 'region', 'vpc_id', 'addons', 'tags', 'WORKSPACE_NAME']) && !k.startsWith('endpoint_') && !k.startsWith('tags_'))",
        "variables may not set cluster_name, kubernetes_version, region, vpc_id, addons, tags, WORKSPACE_NAME, or names that begin with endpoint_ or tags_: CAPT sets them from the Cluster and from this object's own fields; use those fields, or rename the variable",
    )
}

fn user_variables(reserved: &str, reserved_message: &str) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": MAX_VARIABLES,
        "additionalProperties": { "type": "string", "maxLength": MAX_VARIABLE_VALUE },
        "x-kubernetes-validations": [
            rule(
                "self.all(k, size(k) <= 128 && k.matches('^[A-Za-z_][A-Za-z0-9_-]*$'))".into(),
                "variables must have names of at most 128 letters, digits, dashes and underscores that begin with a letter or an underscore, such as instance_type",
            ),
            rule(reserved.into(), reserved_message),
        ],
    })
}

/// Variables of an apply: the parents put theirs here too, so only what every template knows is reserved. A variable for
/// an AWS tag carries the tag's own characters.
pub fn apply_variables(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": MAX_APPLY_VARIABLES,
        "additionalProperties": { "type": "string", "maxLength": MAX_APPLY_VARIABLE_VALUE },
        "x-kubernetes-validations": [
            rule(
                r"self.all(k, size(k) <= 256 && k.matches('^([A-Za-z_][A-Za-z0-9_-]*|tags_[\\p{L}\\p{Z}\\p{N}_.:/=+@-]+)$'))".into(),
                "variables must have names of at most 256 letters, digits, dashes and underscores that begin with a letter or an underscore, such as instance_type (tags_<key> may hold the key of an AWS tag)",
            ),
            rule(
                "!('WORKSPACE_NAME' in self)".into(),
                "variables may not set WORKSPACE_NAME: it always is the name of the Workspace; rename the variable",
            ),
        ],
    })
}

/// AWS tags.
pub fn tags(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": MAX_TAGS,
        "additionalProperties": {
            "type": "string",
            "maxLength": 256,
            "x-kubernetes-validations": [rule(
                r"self.matches('^[\\p{L}\\p{Z}\\p{N}_.:/=+@-]*$')".into(),
                "additionalTags must have values that AWS accepts: letters, digits, spaces and _ . : / = + - @",
            )],
        },
        "x-kubernetes-validations": [rule(
            r"self.all(k, size(k) >= 1 && size(k) <= 128 && k.matches('^[\\p{L}\\p{Z}\\p{N}_.:/=+@-]+$') && !k.lowerAscii().startsWith('aws:'))".into(),
            "additionalTags must have keys that AWS accepts: 1 to 128 letters, digits, spaces and _ . : / = + - @, not beginning with aws:",
        )],
    })
}

/// Terraform outputs as they are shown in a status.
pub fn outputs(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": MAX_OUTPUTS,
        "additionalProperties": { "type": "string", "maxLength": MAX_OUTPUT_VALUE },
    })
}

/// Labels to be put on an object made from a template.
pub fn labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 64,
        "additionalProperties": { "type": "string", "maxLength": 63 },
    })
}

/// Annotations to be put on an object made from a template.
pub fn annotations(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 64,
        "additionalProperties": { "type": "string", "maxLength": 65_536 },
    })
}

/// A free-form JSON object.
pub fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// Conditions with the constraints of `metav1.Condition`: core copies some of them to the Cluster, whose schema has the
/// same ones, and would fail there if a bad reason were accepted here.
pub fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 32,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "description": "One aspect of the object's current state.",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "type": {
                    "type": "string",
                    "description": "Which aspect this is about.",
                    "maxLength": 316,
                    "pattern": r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
                },
                "status": {
                    "type": "string",
                    "description": "Whether it holds: True, False or Unknown.",
                    "enum": ["True", "False", "Unknown"],
                },
                "reason": {
                    "type": "string",
                    "description": "Why, as one word for programs.",
                    "minLength": 1,
                    "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                },
                "message": {
                    "type": "string",
                    "description": "Why, for people. May be empty.",
                    "maxLength": 32_768,
                },
                "lastTransitionTime": {
                    "type": "string",
                    "description": "Since when the status is what it is.",
                    "format": "date-time",
                },
                "observedGeneration": {
                    "type": "integer",
                    "description": "The metadata.generation that this was judged from; older than the object's own means out of date.",
                    "format": "int64",
                    "minimum": 0,
                },
            },
        },
    })
}

/// Reads a status field that an earlier version may have stored in another form. What does not parse counts as absent:
/// the field is written anew anyway, and one odd value must not make the whole object unreadable.
pub fn lenient<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned + Default,
{
    let value = Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).unwrap_or_default())
}

#[cfg(test)]
mod tests;
