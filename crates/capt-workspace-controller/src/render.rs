//! A template and its variables become the spec of a Workspace.
//!
//! Variables are put into parsed strings, never into serialised text: no value can change the structure of what is
//! rendered, whatever it holds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use capt_api::WorkspaceKind;
use capt_api::names::variable;
use capt_api::workspace::{FileFormat, ModuleSource, WorkspaceTemplateSpec};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::module;
use crate::placeholder::{Piece, pieces};

/// Why a template cannot be rendered. The texts stand in conditions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RenderError {
    #[error(
        "{field} needs the variable {key}, which is not given; known are {known}: add it to spec.variables, or give it a default with ${{{key}:-default}}"
    )]
    Unresolved { field: String, key: String, known: String },
    #[error("the variable {key} cannot stand in {field}: {why}")]
    Unsafe { field: String, key: String, why: String },
    #[error("{field} {why}")]
    Invalid { field: String, why: String },
    #[error(
        "{field} names the namespace {namespace}: only the apply's own is allowed, unless the controller runs with --allow-cross-namespace-templates"
    )]
    CrossNamespace { field: String, namespace: String },
}

/// Where a Workspace's spec names what Terraform reads, and under which name each list is known to people.
const READING: [(&str, &str); 2] = [("/forProvider/varFiles", "varFiles"), ("/forProvider/env", "env")];
const INPUTS: [&str; 2] = ["configMapKeyRef", "secretKeyRef"];

/// What is rendered, and for whom.
pub(crate) struct Request<'a> {
    pub(crate) template: &'a WorkspaceTemplateSpec,
    pub(crate) variables: &'a BTreeMap<String, String>,
    /// The apply's own choice of connection secret: name and namespace.
    pub(crate) connection_secret: Option<(&'a str, Option<&'a str>)>,
    pub(crate) namespace: &'a str,
    pub(crate) workspace_name: &'a str,
    pub(crate) kind: WorkspaceKind,
    /// Whether what is made outlives the apply.
    pub(crate) retain: bool,
    pub(crate) allow_cross_namespace: bool,
}

/// A Secret or ConfigMap that Terraform reads. It must outlive the Workspace, or nothing can be destroyed any more.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Input {
    ConfigMap { namespace: String, name: String },
    Secret { namespace: String, name: String },
}

impl Input {
    pub(crate) fn namespace(&self) -> &str {
        match self {
            Self::ConfigMap { namespace, .. } | Self::Secret { namespace, .. } => namespace,
        }
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Self::ConfigMap { name, .. } | Self::Secret { name, .. } => name,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::ConfigMap { .. } => "ConfigMap",
            Self::Secret { .. } => "Secret",
        }
    }

    /// As the apply's annotation lists it.
    pub(crate) fn listed(&self) -> String {
        format!("{}/{}", self.kind(), self.name())
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind(), self.namespace(), self.name())
    }
}

/// The spec of a Workspace, but for the revision.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rendered {
    spec: Value,
    pub(crate) inputs: BTreeSet<Input>,
}

/// Renders a template.
pub(crate) fn render(request: &Request<'_>) -> Result<Rendered, RenderError> {
    let invalid = |field: &str, why: String| RenderError::Invalid {
        field: field.into(),
        why,
    };
    let mut spec = serde_json::to_value(&request.template.template.spec)
        .map_err(|error| invalid("spec.template.spec", format!("cannot be read: {error}")))?;
    let Some(fields) = spec.as_object_mut() else {
        return Err(invalid("spec.template.spec", "is not an object".into()));
    };

    // The connection secret: the apply's, else the template's, else the one in the Workspace's own spec.
    let chosen = match (
        request.connection_secret,
        &request.template.write_connection_secret_to_ref,
    ) {
        (Some((name, namespace)), _) => Some(json!({"name": name, "namespace": namespace})),
        (None, Some(secret)) => Some(json!({"name": secret.name, "namespace": secret.namespace})),
        (None, None) => fields.get("writeConnectionSecretToRef").cloned(),
    };
    match chosen {
        Some(secret) => fields.insert("writeConnectionSecretToRef".into(), secret),
        None => fields.remove("writeConnectionSecretToRef"),
    };

    let module = fields
        .get_mut("forProvider")
        .and_then(|parameters| parameters.get_mut("module"))
        .map(Value::take);
    fill(&mut spec, "spec.template.spec", request)?;
    let module = fill_module(module.as_ref().and_then(Value::as_str).unwrap_or_default(), request)?;
    if let Some(place) = spec.pointer_mut("/forProvider/module") {
        *place = Value::String(module);
    }

    let mut inputs = BTreeSet::new();
    for (pointer, name) in READING {
        for (index, entry) in spec
            .pointer_mut(pointer)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
            .enumerate()
        {
            for key in INPUTS {
                if let Some(reference) = entry.get_mut(key).and_then(Value::as_object_mut) {
                    let field = format!("spec.template.spec.forProvider.{name}[{index}].{key}");
                    let (namespace, name) = scope_reference(reference, &field, request)?;
                    inputs.insert(match key {
                        "secretKeyRef" => Input::Secret { namespace, name },
                        _ => Input::ConfigMap { namespace, name },
                    });
                }
            }
        }
    }
    if let Some(reference) = spec
        .pointer_mut("/writeConnectionSecretToRef")
        .and_then(Value::as_object_mut)
    {
        scope_reference(reference, "writeConnectionSecretToRef", request)?;
    }
    if let Some(reference) = spec.pointer_mut("/providerConfigRef").and_then(Value::as_object_mut) {
        match request.kind {
            // It knows one kind of configuration alone.
            WorkspaceKind::ClusterScoped => drop(reference.remove("kind")),
            // It wants to know which of the two. A template that does not say means the one that is in no namespace, as before.
            WorkspaceKind::Namespaced => drop(
                reference
                    .entry("kind")
                    .or_insert_with(|| json!("ClusterProviderConfig")),
            ),
        }
    }
    if let Some(fields) = spec.as_object_mut() {
        // Always explicit: a Workspace that was let go, and is taken up again, must not keep its old policies.
        fields.entry("managementPolicies").or_insert_with(|| json!(["*"]));
        fields.entry("deletionPolicy").or_insert_with(|| json!("Delete"));
        // From the beginning, not only when the apply goes: whoever deletes the Workspace itself destroys nothing either.
        if request.retain {
            fields.insert("deletionPolicy".into(), json!("Orphan"));
        }
        let keeps = fields.get("deletionPolicy") == Some(&json!("Orphan"));
        if keeps && fields.get("managementPolicies") == Some(&json!(["*"])) {
            fields.insert(
                "managementPolicies".into(),
                json!(["Observe", "Create", "Update", "LateInitialize"]),
            );
        }
        // The namespaced kind has no such field; without Delete among the policies it keeps what it made.
        if request.kind == WorkspaceKind::Namespaced {
            fields.remove("deletionPolicy");
        }
    }
    Ok(Rendered { spec, inputs })
}

impl Rendered {
    /// The revision, which changes with anything that Terraform would read: the rendered spec, and each input as it is now
    /// (`versions`: an opaque text per input, never its contents). A create that goes on after it was cut off is one of its
    /// own, named after the create that it follows.
    pub(crate) fn revision(&self, versions: &BTreeMap<&Input, String>, resumed: Option<&str>) -> String {
        let mut hash = Sha256::new();
        // Objects of serde_json are sorted by key, so equal specs have equal texts.
        hash.update(self.spec.to_string());
        for (input, version) in versions {
            hash.update(format!("\n{input:?}={version}"));
        }
        if let Some(begun) = resumed {
            hash.update(format!("\nresumed={begun}"));
        }
        hash.finalize()
            .iter()
            .take(8)
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    /// The whole spec, with the revision in Terraform's environment: it raises the generation when an input changes, so
    /// that the result can be awaited.
    pub(crate) fn spec(&self, revision: &str) -> Value {
        let mut spec = self.spec.clone();
        if let Some(parameters) = spec.pointer_mut("/forProvider").and_then(Value::as_object_mut)
            && let Some(env) = parameters.entry("env").or_insert_with(|| json!([])).as_array_mut()
        {
            env.retain(|entry| entry.get("name") != Some(&json!(variable::REVISION_ENV)));
            env.push(json!({"name": variable::REVISION_ENV, "value": revision}));
        }
        spec
    }
}

/// The revision in a Workspace's spec.
pub(crate) fn revision_of(spec: &Value) -> Option<&str> {
    let env = spec.pointer("/forProvider/env")?.as_array()?;
    let entry = env
        .iter()
        .find(|entry| entry.get("name").and_then(Value::as_str) == Some(variable::REVISION_ENV))?;
    entry.get("value")?.as_str()
}

/// Gives a reference its namespace as the Workspace's kind wants it, and returns where it points.
fn scope_reference(
    reference: &mut Map<String, Value>,
    field: &str,
    request: &Request<'_>,
) -> Result<(String, String), RenderError> {
    let name = reference
        .get("name")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let namespace = reference
        .get("namespace")
        .and_then(Value::as_str)
        .filter(|namespace| !namespace.is_empty());
    let namespace = namespace.unwrap_or(request.namespace).to_owned();
    let foreign = namespace != request.namespace;
    if foreign && (!request.allow_cross_namespace || request.kind == WorkspaceKind::Namespaced) {
        return Err(RenderError::CrossNamespace {
            field: field.into(),
            namespace,
        });
    }
    match request.kind {
        WorkspaceKind::ClusterScoped => drop(reference.insert("namespace".into(), namespace.clone().into())),
        WorkspaceKind::Namespaced => drop(reference.remove("namespace")),
    }
    Ok((namespace, name))
}

fn lookup<'a>(request: &'a Request<'a>) -> impl Fn(&str) -> Option<&'a str> {
    move |key| match key {
        variable::WORKSPACE_NAME => Some(request.workspace_name),
        _ => request.variables.get(key).map(String::as_str),
    }
}

/// Fills in every string below `value`; the keys of objects stay as they are.
fn fill(value: &mut Value, field: &str, request: &Request<'_>) -> Result<(), RenderError> {
    match value {
        Value::String(text) if text.contains('$') => *text = fill_text(text, field, request)?,
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                fill(item, &format!("{field}[{index}]"), request)?;
            }
        }
        Value::Object(fields) => {
            for (key, item) in fields {
                fill(item, &format!("{field}.{key}"), request)?;
            }
        }
        _ => {}
    }
    Ok(())
}

fn fill_text(text: &str, field: &str, request: &Request<'_>) -> Result<String, RenderError> {
    let lookup = lookup(request);
    let mut out = String::new();
    for piece in pieces(text) {
        match piece {
            Piece::Text(text) => out.push_str(text),
            Piece::Escape => out.push_str("${"),
            Piece::Placeholder(found) => match lookup(found.key).or(found.default) {
                Some(value) => out.push_str(value),
                None => {
                    let known: Vec<&str> = request
                        .variables
                        .keys()
                        .map(String::as_str)
                        .chain([variable::WORKSPACE_NAME])
                        .collect();
                    return Err(RenderError::Unresolved {
                        field: field.into(),
                        key: found.key.into(),
                        known: known.join(", "),
                    });
                }
            },
        }
    }
    Ok(out)
}

fn fill_module(text: &str, request: &Request<'_>) -> Result<String, RenderError> {
    let lookup = lookup(request);
    let parameters = &request.template.template.spec.for_provider;
    let filled = match (parameters.source, parameters.inline_format) {
        (ModuleSource::Inline, Some(FileFormat::Json)) => module::json(text, &lookup),
        (ModuleSource::Inline, _) => module::hcl(text, &lookup),
        (ModuleSource::Remote | ModuleSource::Flux, _) => module::address(text, &lookup),
    };
    filled.map_err(|refused| RenderError::Unsafe {
        field: "spec.template.spec.forProvider.module".into(),
        key: refused.key,
        why: refused.why,
    })
}

/// The first reference of a template that leads out of its namespace, as far as that stands in the template itself: no
/// apply can be rendered from it then, unless cross-namespace references are allowed.
pub(crate) fn leaves_its_namespace(
    template: &WorkspaceTemplateSpec,
    own: &str,
) -> Result<Option<RenderError>, serde_json::Error> {
    let spec = serde_json::to_value(&template.template.spec)?;
    let outer = serde_json::to_value(&template.write_connection_secret_to_ref)?;
    let mut references = vec![
        ("spec.writeConnectionSecretToRef".to_owned(), Some(&outer)),
        (
            "spec.template.spec.writeConnectionSecretToRef".to_owned(),
            spec.get("writeConnectionSecretToRef"),
        ),
    ];
    for (pointer, name) in READING {
        let entries = spec.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
        for (index, entry) in entries.enumerate() {
            let field = |key| format!("spec.template.spec.forProvider.{name}[{index}].{key}");
            references.extend(INPUTS.map(|key| (field(key), entry.get(key))));
        }
    }
    let foreign = references.into_iter().find_map(|(field, reference)| {
        let namespace = reference?.get("namespace")?.as_str()?;
        // What a variable says is known only when it is rendered.
        let is_foreign = !namespace.is_empty() && namespace != own && !namespace.contains('$');
        is_foreign.then(|| RenderError::CrossNamespace {
            field,
            namespace: namespace.to_owned(),
        })
    });
    Ok(foreign)
}

/// The placeholders that a template expects to be given; those with a default are not among them.
///
/// In a module only names that HCL cannot know are counted.
pub(crate) fn expected(template: &WorkspaceTemplateSpec) -> Result<BTreeSet<String>, serde_json::Error> {
    let mut keys = BTreeSet::new();
    let mut spec = serde_json::to_value(&template.template.spec)?;
    let parameters = &template.template.spec.for_provider;
    let inline = parameters.source == ModuleSource::Inline;
    if inline && parameters.inline_format != Some(FileFormat::Json) {
        keys.extend(module::expected(&parameters.module).into_iter().map(str::to_owned));
        if let Some(module) = spec.pointer_mut("/forProvider/module") {
            *module = Value::Null;
        }
    } else if let (true, Ok(parsed)) = (inline, serde_json::from_str::<Value>(&parameters.module))
        && let Some(module) = spec.pointer_mut("/forProvider/module")
    {
        *module = parsed;
    }
    collect(&spec, &mut keys);
    if let Some(secret) = &template.write_connection_secret_to_ref {
        collect(&serde_json::to_value(secret)?, &mut keys);
    }
    Ok(keys)
}

fn collect(value: &Value, keys: &mut BTreeSet<String>) {
    match value {
        Value::String(text) => keys.extend(pieces(text).into_iter().filter_map(|piece| match piece {
            Piece::Placeholder(found) if found.default.is_none() => Some(found.key.to_owned()),
            _ => None,
        })),
        Value::Array(items) => items.iter().for_each(|item| collect(item, keys)),
        Value::Object(fields) => fields.values().for_each(|field| collect(field, keys)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn template(spec: Value) -> WorkspaceTemplateSpec {
        serde_json::from_value(json!({"template": {"spec": spec}})).unwrap()
    }

    fn variables(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(key, value)| (key.to_string(), value.to_string()))
            .collect()
    }

    fn request<'a>(template: &'a WorkspaceTemplateSpec, variables: &'a BTreeMap<String, String>) -> Request<'a> {
        Request {
            template,
            variables,
            connection_secret: None,
            namespace: "team",
            workspace_name: "team-demo-x",
            kind: WorkspaceKind::ClusterScoped,
            retain: false,
            allow_cross_namespace: false,
        }
    }

    fn inline(extra: Value) -> WorkspaceTemplateSpec {
        let mut parameters = json!({"source": "Inline", "module": "output \"a\" { value = \"${var.x}\" }"});
        let fields = parameters.as_object_mut().unwrap();
        fields.extend(extra.as_object().unwrap().clone());
        template(json!({"forProvider": parameters}))
    }

    #[test]
    fn variables_are_put_into_strings_everywhere_but_into_keys() {
        let template = inline(json!({
            "vars": [{"key": "x", "value": "${a}-${WORKSPACE_NAME}-${none:-default}"}, {"key": "y", "value": "$${a} ${var.z}"}],
            "varmap": {"${a}": {"list": ["${a}"]}},
            "newField": "${a}",
        }));
        let variables = variables(&[("a", "\"},{\"injected\": \"${b}")]);
        let spec = render(&request(&template, &variables)).unwrap().spec;
        let parameters = &spec["forProvider"];
        assert_eq!(
            parameters["vars"][0]["value"],
            "\"},{\"injected\": \"${b}-team-demo-x-default"
        );
        assert_eq!(parameters["vars"][1]["value"], "${a} ${var.z}");
        assert_eq!(parameters["varmap"]["${a}"]["list"][0], "\"},{\"injected\": \"${b}");
        assert_eq!(parameters["newField"], "\"},{\"injected\": \"${b}");
        assert_eq!(parameters["module"], "output \"a\" { value = \"${var.x}\" }");
    }

    #[test]
    fn an_unknown_variable_is_named_with_what_is_known() {
        let template = inline(json!({"vars": [{"key": "x", "value": "${regoin}"}]}));
        let variables = variables(&[("region", "eu-west-1")]);
        let error = render(&request(&template, &variables)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "spec.template.spec.forProvider.vars[0].value needs the variable regoin, which is not given; known are region, WORKSPACE_NAME: \
             add it to spec.variables, or give it a default with ${regoin:-default}"
        );
    }

    #[test]
    fn a_variable_that_would_be_code_is_refused() {
        let template = template(json!({"forProvider": {"source": "Inline", "module": "a = ${name}"}}));
        let variables = variables(&[("name", "evil")]);
        let error = render(&request(&template, &variables)).unwrap_err();
        assert!(
            matches!(&error, RenderError::Unsafe { key, .. } if key == "name"),
            "{error}"
        );
    }

    #[test]
    fn the_connection_secret_is_the_applys_else_the_templates_else_the_workspaces() {
        let mut template = inline(json!({}));
        let none = BTreeMap::new();
        assert_eq!(
            render(&request(&template, &none))
                .unwrap()
                .spec
                .get("writeConnectionSecretToRef"),
            None
        );
        template.template.spec.write_connection_secret_to_ref =
            serde_json::from_value(json!({"name": "inner-${WORKSPACE_NAME}"})).unwrap();
        let secret = |request: &Request<'_>| render(request).unwrap().spec["writeConnectionSecretToRef"].clone();
        assert_eq!(
            secret(&request(&template, &none)),
            json!({"name": "inner-team-demo-x", "namespace": "team"})
        );
        template.write_connection_secret_to_ref = serde_json::from_value(json!({"name": "outer"})).unwrap();
        assert_eq!(
            secret(&request(&template, &none)),
            json!({"name": "outer", "namespace": "team"})
        );
        let own = Request {
            connection_secret: Some(("own", None)),
            ..request(&template, &none)
        };
        assert_eq!(secret(&own), json!({"name": "own", "namespace": "team"}));
        let namespaced = Request {
            kind: WorkspaceKind::Namespaced,
            ..own
        };
        assert_eq!(secret(&namespaced), json!({"name": "own"}));
    }

    #[test]
    fn inputs_are_found_and_stay_in_the_namespace() {
        let template = inline(json!({
            "varFiles": [{"source": "SecretKey", "secretKeyRef": {"name": "${a}", "key": "k"}}],
            "env": [{"name": "X", "configMapKeyRef": {"name": "map", "namespace": "team", "key": "k"}}, {"name": "Y", "value": "v"}],
        }));
        let variables = variables(&[("a", "tokens")]);
        let rendered = render(&request(&template, &variables)).unwrap();
        let expected = [
            Input::ConfigMap {
                namespace: "team".into(),
                name: "map".into(),
            },
            Input::Secret {
                namespace: "team".into(),
                name: "tokens".into(),
            },
        ];
        assert_eq!(rendered.inputs.iter().cloned().collect::<Vec<_>>(), expected);

        let elsewhere = inline(
            json!({"env": [{"name": "X", "secretKeyRef": {"name": "s", "namespace": "kube-system", "key": "k"}}]}),
        );
        let error = render(&request(&elsewhere, &variables)).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("env[0].secretKeyRef names the namespace kube-system"),
            "{error}"
        );
        let allowed = Request {
            allow_cross_namespace: true,
            ..request(&elsewhere, &variables)
        };
        assert!(render(&allowed).is_ok());
    }

    #[test]
    fn one_template_serves_both_kinds() {
        for (given, cluster_scoped, namespaced) in [
            (
                json!({"name": "aws"}),
                json!({"name": "aws"}),
                json!({"name": "aws", "kind": "ClusterProviderConfig"}),
            ),
            (
                json!({"name": "aws", "kind": "ProviderConfig"}),
                json!({"name": "aws"}),
                json!({"name": "aws", "kind": "ProviderConfig"}),
            ),
        ] {
            let template =
                template(json!({"forProvider": {"source": "Inline", "module": ""}, "providerConfigRef": given}));
            let variables = BTreeMap::new();
            for (kind, expected) in [
                (WorkspaceKind::ClusterScoped, cluster_scoped),
                (WorkspaceKind::Namespaced, namespaced),
            ] {
                let request = Request {
                    kind,
                    ..request(&template, &variables)
                };
                assert_eq!(render(&request).unwrap().spec["providerConfigRef"], expected);
            }
        }
    }

    #[test]
    fn policies_are_always_explicit() {
        let none = BTreeMap::new();
        let plain = inline(json!({}));
        let spec = render(&request(&plain, &none)).unwrap().spec;
        assert_eq!(
            (&spec["managementPolicies"], &spec["deletionPolicy"]),
            (&json!(["*"]), &json!("Delete"))
        );
        let retained = Request {
            retain: true,
            ..request(&plain, &none)
        };
        let spec = render(&retained).unwrap().spec;
        assert_eq!(spec["deletionPolicy"], json!("Orphan"));
        assert!(
            !spec["managementPolicies"].to_string().contains("Delete"),
            "whoever deletes it destroys nothing"
        );
        let mut orphan = inline(json!({}));
        orphan.template.spec.deletion_policy = serde_json::from_value(json!("Orphan")).unwrap();
        let namespaced = Request {
            kind: WorkspaceKind::Namespaced,
            ..request(&orphan, &none)
        };
        let spec = render(&namespaced).unwrap().spec;
        assert_eq!(spec.get("deletionPolicy"), None);
        assert!(
            !spec["managementPolicies"].to_string().contains("Delete"),
            "what was Orphan there has no Delete here"
        );
    }

    #[test]
    fn the_revision_changes_with_the_spec_and_with_the_inputs() {
        let template = inline(
            json!({"vars": [{"key": "x", "value": "${a}"}], "env": [{"name": "CAPT_REVISION", "value": "mine"}]}),
        );
        let (one, two) = (variables(&[("a", "1")]), variables(&[("a", "2")]));
        let rendered = render(&request(&template, &one)).unwrap();
        let revision = rendered.revision(&BTreeMap::new(), None);
        assert_eq!(revision.len(), 16);
        assert_eq!(
            revision,
            render(&request(&template, &one))
                .unwrap()
                .revision(&BTreeMap::new(), None)
        );
        assert_ne!(
            revision,
            render(&request(&template, &two))
                .unwrap()
                .revision(&BTreeMap::new(), None)
        );
        let input = Input::Secret {
            namespace: "n".into(),
            name: "s".into(),
        };
        assert_ne!(
            revision,
            rendered.revision(&BTreeMap::from([(&input, "uid/1".to_owned())]), None)
        );
        assert_ne!(
            revision,
            rendered.revision(&BTreeMap::new(), Some("2026-01-01T00:00:00Z"))
        );
        let spec = rendered.spec(&revision);
        assert_eq!(revision_of(&spec), Some(revision.as_str()));
        assert_eq!(
            spec["forProvider"]["env"].as_array().unwrap().len(),
            1,
            "the user's own is replaced"
        );
    }

    /// Texts that mean something to HCL, JSON, YAML, shells or terminals, and any others.
    fn nasty() -> impl Strategy<Value = String> {
        let signs = "[${}%\"\\\\\n\r\t \u{0}\u{7f}\u{85}\u{2028}<>#/*:,;&|!?'`~@=()\\[\\]a-]{0,24}";
        let phrases = prop::sample::select(vec![
            "${var.x}",
            "%{if true}",
            "${file(\"/etc/passwd\")}",
            "\"\n}\nresource \"x\" \"y\" {",
            "EOT",
            "\nEOT\n",
            "<<EOT",
            "$${",
            "\\\"",
            "*/",
            "#",
            "- a: b",
            "!!binary x",
            "&a *a",
            "| ",
            "\u{202e}",
            "\u{1f4a9}",
            "null",
            "../../..",
        ]);
        prop_oneof![
            4 => "\\PC{0,40}",
            4 => signs,
            4 => prop::collection::vec(phrases, 0..5).prop_map(|phrases| phrases.concat()),
            1 => Just("x".repeat(100_000)),
        ]
    }

    /// A value without its texts: keys, lists and types.
    fn shape(value: &Value) -> Value {
        match value {
            Value::String(_) => json!("text"),
            Value::Array(items) => items.iter().map(shape).collect(),
            Value::Object(fields) => fields.iter().map(|(key, value)| (key.clone(), shape(value))).collect(),
            other => other.clone(),
        }
    }

    proptest! {
        #[test]
        fn no_value_changes_the_structure(value in "\\PC*|[${}%\"\\\\\n:,\\[\\]]{0,20}") {
            let template = inline(json!({"vars": [{"key": "x", "value": "a${v}b"}], "varmap": {"m": ["${v}", 1, true]}}));
            let variables = variables(&[("v", &value)]);
            let spec = render(&request(&template, &variables)).unwrap().spec;
            let text = spec.to_string();
            let parsed: Value = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(&parsed["forProvider"]["vars"], &json!([{"key": "x", "value": format!("a{value}b")}]));
            prop_assert_eq!(&parsed["forProvider"]["varmap"], &json!({"m": [value, 1, true]}));
        }

        /// Wherever a variable may stand, what is rendered has the template's shape: the same keys, the same lists, the
        /// same types, and only texts that differ. (What stays of the module is tested beside `module`.)
        #[test]
        fn what_is_rendered_has_the_shape_of_the_template(value in nasty()) {
            let module = "variable \"a\" {}\noutput \"o\" {\n  value = \"${v}\"\n}\nlocals {\n  h = <<EOT\n ${v}\nEOT\n}\n";
            let mut template = inline(json!({
                "module": module,
                "vars": [{"key": "x", "value": "${v}"}, {"key": "y", "value": "-${v}-${v}"}],
                "varmap": {"m": {"n": ["${v}", 1, true, null, {"k": "${v}"}]}},
                "varFiles": [{"source": "SecretKey", "format": "JSON", "secretKeyRef": {"name": "s", "key": "${v}"}}],
                "env": [{"name": "X", "value": "${v}"}, {"name": "Y", "configMapKeyRef": {"name": "c", "key": "k"}}],
                "initArgs": ["-x=${v}"], "planArgs": ["${v}"], "applyArgs": ["${v}"], "destroyArgs": ["${v}"],
                "entrypoint": "${v}",
                "newField": {"deep": ["${v}"]},
            }));
            template.write_connection_secret_to_ref = serde_json::from_value(json!({"name": "c-${v}"})).unwrap();
            let (plain, nasty) = (variables(&[("v", "plain")]), variables(&[("v", &value)]));
            let expected = render(&request(&template, &plain)).unwrap();
            // Refused is fine: then nothing is rendered at all.
            if let Ok(rendered) = render(&request(&template, &nasty)) {
                prop_assert_eq!(shape(&rendered.spec("r")), shape(&expected.spec("r")));
                prop_assert_eq!(rendered.inputs, expected.inputs);
            }
        }
    }
}
