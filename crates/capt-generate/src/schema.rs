//! The types of the chart's values. Names, defaults and descriptions are in `charts/capt/values.yaml`; what stands here is
//! what a value may be.

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{
    Affinity, EnvVar, LocalObjectReference, PodSecurityContext, SecurityContext, Toleration, TopologySpreadConstraint,
};
use k8s_openapi::api::networking::v1::NetworkPolicyPeer;
use k8s_openapi::api::rbac::v1::Subject;
use k8s_openapi::schemars::JsonSchema;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

/// Builds the schema; types of Kubernetes are collected beside it.
pub(crate) struct Builder {
    kubernetes: SchemaGenerator,
}

type Fields = Vec<(&'static str, Value)>;

impl Builder {
    pub(crate) fn new() -> Self {
        // Draft 7 is the newest that every Helm 3 understands.
        Self {
            kubernetes: SchemaSettings::draft07().into_generator(),
        }
    }

    /// The schema of values.yaml.
    pub(crate) fn values(mut self) -> Result<Value> {
        let workload = self.workload();
        let inherited = |name: &str| json!({ "$ref": format!("#/definitions/{INHERITED}/properties/{name}") });
        let controller = |own: Fields| {
            let mut fields: Fields = workload.iter().map(|(name, _)| (*name, inherited(name))).collect();
            fields.extend([
                ("enabled", boolean()),
                ("imageDigest", digest()),
                ("serviceAccountName", text()),
            ]);
            fields.extend(own);
            object(fields)
        };
        let timeouts = |names: &[&'static str]| object(names.iter().map(|name| (*name, duration())).collect());
        let controllers = object(vec![
            (
                "cluster",
                controller(vec![
                    ("timeouts", timeouts(&["vpcReady", "secret", "deletion"])),
                    ("clearClusterFailures", boolean()),
                ]),
            ),
            (
                "controlplane",
                controller(vec![
                    (
                        "timeouts",
                        timeouts(&["controlPlane", "vpcReady", "secret", "deletion"]),
                    ),
                    ("clearClusterFailures", boolean()),
                ]),
            ),
            ("endpoint", controller(vec![])),
            ("secrets", controller(vec![("allowExecKubeconfig", boolean())])),
            ("tenant", controller(vec![("aggregateClusterRoles", boolean())])),
            (
                "workspace",
                controller(vec![
                    (
                        "workspaceKind",
                        one_of(&["tf.upbound.io/v1beta1", "tf.m.upbound.io/v1beta1"]),
                    ),
                    ("timeouts", timeouts(&["deletion"])),
                    ("resumeInterruptedCreates", boolean()),
                    ("sharedTerraformBackend", boolean()),
                ]),
            ),
        ]);
        let mut schema = object(vec![
            ("nameOverride", matching("^([a-z]([-a-z0-9]{0,30}[a-z0-9])?)?$")),
            ("fullnameOverride", matching("^([a-z]([-a-z0-9]{0,30}[a-z0-9])?)?$")),
            ("commonLabels", strings_by_key()),
            ("imagePullSecrets", self.list_of::<LocalObjectReference>()),
            (
                "watch",
                object(vec![
                    ("namespace", matching("^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$")),
                    ("filter", matching("^([A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?)?$")),
                ]),
            ),
            ("allowCrossNamespaceTemplates", boolean()),
            ("common", object(workload)),
            ("controllers", controllers),
            (
                "crds",
                object(vec![
                    ("install", boolean()),
                    ("keep", boolean()),
                    ("allowDowngrade", boolean()),
                ]),
            ),
            ("uninstallGuard", object(vec![("enabled", boolean())])),
            (
                "jobs",
                object(vec![
                    ("image", inherited("image")),
                    ("rbac", inherited("rbac")),
                    ("imageDigest", digest()),
                    ("serviceAccountName", text()),
                    ("podLabels", strings_by_key()),
                    ("podAnnotations", strings_by_key()),
                    ("resources", resources()),
                ]),
            ),
            ("metricsReaders", self.list_of::<Subject>()),
            (
                "prometheusRule",
                object(vec![
                    ("enabled", boolean()),
                    ("labels", strings_by_key()),
                    ("alertLabels", strings_by_key()),
                    (
                        "disabledAlerts",
                        json!({ "type": "array", "items": matching("^Capt[A-Za-z]+$") }),
                    ),
                    ("runbookUrl", text()),
                ]),
            ),
            (
                "dashboards",
                object(vec![
                    ("enabled", boolean()),
                    ("labels", strings_by_key()),
                    ("annotations", strings_by_key()),
                ]),
            ),
            // Helm itself, and charts that have this one as a dependency, set these two.
            ("global", json!({ "type": "object" })),
            ("enabled", boolean()),
        ]);
        let mut definitions = Value::Object(self.kubernetes.take_definitions(true));
        tidy(&mut definitions);
        set(&mut schema, "definitions", definitions)?;
        set(&mut schema, "$schema", json!("http://json-schema.org/draft-07/schema#"))?;
        set(&mut schema, "title", json!("Values of the CAPT chart"))?;
        Ok(schema)
    }

    /// What `common` has, and each controller may have.
    fn workload(&mut self) -> Fields {
        let monitor = object(vec![
            ("enabled", boolean()),
            ("labels", strings_by_key()),
            ("interval", optional_duration()),
            ("scrapeTimeout", optional_duration()),
            // The form is the Prometheus operator's, and its CRD knows it best.
            ("relabelings", json!({ "type": "array", "items": { "type": "object" } })),
            (
                "metricRelabelings",
                json!({ "type": "array", "items": { "type": "object" } }),
            ),
        ]);
        vec![
            ("replicas", json!({ "type": "integer", "minimum": 0, "maximum": 100 })),
            (
                "image",
                object(vec![
                    ("registry", matching("^[^ ]*[^ /]$")),
                    ("tag", matching("^([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?$")),
                    ("pullPolicy", one_of(&["Always", "IfNotPresent", "Never"])),
                ]),
            ),
            (
                "concurrency",
                json!({ "type": "integer", "minimum": 1, "maximum": 1000 }),
            ),
            ("logLevel", json!({ "type": "string", "minLength": 1 })),
            ("logFormat", one_of(&["text", "json"])),
            (
                "leaderElection",
                object(vec![
                    ("leaseDuration", duration()),
                    ("renewDeadline", duration()),
                    ("retryPeriod", duration()),
                ]),
            ),
            (
                "extraArgs",
                json!({ "type": "array", "items": matching("^--[a-z][a-z-]*(=.*)?$") }),
            ),
            ("extraEnv", self.list_of::<EnvVar>()),
            ("resources", resources()),
            ("podLabels", strings_by_key()),
            ("podAnnotations", strings_by_key()),
            ("annotations", strings_by_key()),
            ("nodeSelector", strings_by_key()),
            ("tolerations", self.list_of::<Toleration>()),
            ("affinity", self.kubernetes::<Affinity>()),
            ("topologySpreadConstraints", self.list_of::<TopologySpreadConstraint>()),
            ("priorityClassName", text()),
            (
                "terminationGracePeriodSeconds",
                json!({ "type": "integer", "minimum": 10 }),
            ),
            ("podSecurityContext", self.kubernetes::<PodSecurityContext>()),
            ("securityContext", self.kubernetes::<SecurityContext>()),
            ("livenessProbe", probe()),
            ("readinessProbe", probe()),
            (
                "serviceAccount",
                object(vec![("create", boolean()), ("annotations", strings_by_key())]),
            ),
            ("rbac", boolean()),
            (
                "metrics",
                object(vec![
                    ("port", unprivileged_port()),
                    ("secure", boolean()),
                    ("securePort", unprivileged_port()),
                    ("certSecret", text()),
                    (
                        "tokenSecret",
                        object(vec![("name", text()), ("key", matching("^[-._a-zA-Z0-9]+$"))]),
                    ),
                ]),
            ),
            (
                "service",
                object(vec![("enabled", boolean()), ("annotations", strings_by_key())]),
            ),
            (
                "podDisruptionBudget",
                object(vec![
                    ("enabled", boolean()),
                    (
                        "maxUnavailable",
                        json!({ "type": ["integer", "string"], "minimum": 0, "pattern": "^[0-9]+%$" }),
                    ),
                ]),
            ),
            (
                "networkPolicy",
                object(vec![
                    ("enabled", boolean()),
                    ("scrapers", self.list_of::<NetworkPolicyPeer>()),
                    (
                        "apiServer",
                        object(vec![
                            ("cidrs", json!({ "type": "array", "items": matching("/[0-9]+$") })),
                            (
                                "ports",
                                json!({
                                    "type": "array", "minItems": 1,
                                    "items": { "type": "integer", "minimum": 1, "maximum": 65535 },
                                }),
                            ),
                        ]),
                    ),
                    ("dns", self.list_of::<NetworkPolicyPeer>()),
                ]),
            ),
            ("serviceMonitor", monitor.clone()),
            ("podMonitor", monitor),
        ]
    }

    fn kubernetes<T: JsonSchema>(&mut self) -> Value {
        self.kubernetes.subschema_for::<T>().to_value()
    }

    fn list_of<T: JsonSchema>(&mut self) -> Value {
        json!({ "type": "array", "items": self.kubernetes::<T>() })
    }
}

fn object(fields: Fields) -> Value {
    let properties: Map<String, Value> = fields
        .into_iter()
        .map(|(name, schema)| (name.to_owned(), schema))
        .collect();
    json!({ "type": "object", "additionalProperties": false, "properties": properties })
}

fn boolean() -> Value {
    json!({ "type": "boolean" })
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn matching(pattern: &str) -> Value {
    json!({ "type": "string", "pattern": pattern })
}

fn digest() -> Value {
    matching("^(sha256:[0-9a-f]{64})?$")
}

fn one_of(values: &[&str]) -> Value {
    json!({ "enum": values })
}

fn number_or_text() -> Value {
    json!({ "type": ["integer", "number", "string"] })
}

/// Labels, annotations and selectors: a number or boolean without quotes is a mistake that the API server would refuse.
fn strings_by_key() -> Value {
    json!({ "type": "object", "additionalProperties": { "type": "string" } })
}

/// As the controllers' flags take it.
fn duration() -> Value {
    matching("^([0-9]+(ms|s|m|h))+$")
}

fn optional_duration() -> Value {
    matching("^([0-9]+(ms|s|m|h|d))*$")
}

fn resources() -> Value {
    let quantities = json!({ "type": "object", "additionalProperties": number_or_text() });
    object(vec![("requests", quantities.clone()), ("limits", quantities)])
}

/// Others cannot be opened without a capability.
fn unprivileged_port() -> Value {
    json!({ "type": "integer", "minimum": 1024, "maximum": 65535 })
}

fn probe() -> Value {
    let fields = [
        "initialDelaySeconds",
        "periodSeconds",
        "timeoutSeconds",
        "successThreshold",
        "failureThreshold",
    ];
    let seconds = json!({ "type": "integer", "minimum": 0 });
    object(fields.into_iter().map(|name| (name, seconds.clone())).collect())
}

/// Makes the schemas of Kubernetes' types strict, so that a misspelt field is told here and not dropped or refused later,
/// and leaves out their descriptions, which are longer than all the rest.
fn tidy(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            let is_schema = fields.contains_key("type") || fields.contains_key("x-kubernetes-int-or-string");
            if is_schema && fields.get("description").is_some_and(Value::is_string) {
                fields.remove("description");
            }
            if fields.remove("x-kubernetes-int-or-string").is_some() {
                fields.extend(number_or_text().as_object().cloned().unwrap_or_default());
            }
            if fields.get("properties").is_some_and(Value::is_object) && fields.contains_key("type") {
                fields.insert("additionalProperties".into(), Value::Bool(false));
            }
            fields.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}

/// Where the types stand that a controller's own block has from `common`.
const INHERITED: &str = "Inherited";

/// Writes down what a controller may say in place of what `common` says: the same, but any part of it alone, and null.
pub(crate) fn inherit(schema: &mut Value) -> Result<()> {
    let mut common = schema
        .pointer("/properties/common")
        .context("there is no common")?
        .clone();
    let definitions = schema.pointer_mut("/definitions").context("there are no definitions")?;
    loosen(&mut common, definitions)?;
    set(definitions, INHERITED, common)
}

/// A value that others stand below: no part of it must be there, and each may be null.
fn loosen(schema: &mut Value, definitions: &Value) -> Result<()> {
    // A type of Kubernetes, which is strict where it stands alone.
    let reference = schema.get("$ref").and_then(Value::as_str);
    if let Some(name) = reference.and_then(|reference| reference.strip_prefix("#/definitions/")) {
        let definition = definitions
            .get(name)
            .with_context(|| format!("no definition of {name}"))?;
        let description = schema.get("description").cloned();
        *schema = definition.clone();
        if let Some(description) = description {
            set(schema, "description", description)?;
        }
    }
    let fields = schema.as_object_mut().context("a schema is an object")?;
    fields.remove("required");
    match fields.get_mut("type") {
        Some(Value::Array(types)) => types.push("null".into()),
        Some(kind) => *kind = json!([kind, "null"]),
        None => {}
    }
    if let Some(values) = fields.get_mut("enum").and_then(Value::as_array_mut) {
        values.push(Value::Null);
    }
    if let Some(member) = fields
        .get_mut("additionalProperties")
        .filter(|member| member.is_object())
    {
        loosen(member, definitions)?;
    }
    let properties = fields.get_mut("properties").and_then(Value::as_object_mut);
    properties
        .into_iter()
        .flat_map(|properties| properties.values_mut())
        .try_for_each(|property| loosen(property, definitions))
}

fn set(schema: &mut Value, key: &str, value: Value) -> Result<()> {
    let fields = schema.as_object_mut().context("a schema is an object")?;
    fields.insert(key.to_owned(), value);
    Ok(())
}

/// The schema at a path of values.yaml.
pub(crate) fn at<'a>(schema: &'a mut Value, path: &[String]) -> Result<&'a mut Map<String, Value>> {
    let mut at = schema;
    for key in path {
        let property = at
            .pointer_mut("/properties")
            .and_then(|properties| properties.get_mut(key));
        match property {
            Some(property) => at = property,
            None => bail!("values.yaml has {}, which has no type in schema.rs", path.join(".")),
        }
    }
    at.as_object_mut().context("a schema is an object")
}
