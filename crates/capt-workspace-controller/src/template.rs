//! WorkspaceTemplate: can it be rendered, and which variables does it expect?

use capt_api::WorkspaceTemplate;
use capt_api::conditions::{
    self, State,
    workspace_template::{TemplateReport, Valid},
};
use capt_api::names::variable;
use capt_api::workspace::{FileFormat, ModuleSource, WorkspaceTemplateStatus};
use capt_runtime::apply::{Objects, Planned};
use capt_runtime::cache::Cache;
use capt_runtime::controller::{Reconciler, Wake};
use capt_runtime::error::Failure;
use capt_runtime::key::Key;
use jiff::Timestamp;

use crate::render;

/// Longer lists do not fit into the status.
const MAX_VARIABLES: usize = 256;

/// Reports on templates; it changes nothing else.
#[derive(Debug)]
pub(crate) struct Templates {
    pub(crate) cache: Cache<WorkspaceTemplate>,
    pub(crate) objects: Objects<WorkspaceTemplate>,
    pub(crate) allow_cross_namespace: bool,
}

impl Reconciler for Templates {
    type Error = Failure;

    async fn reconcile(&self, key: &Key) -> Result<Wake, Failure> {
        if let Some(template) = self.cache.get(key)
            && template.metadata.deletion_timestamp.is_none()
        {
            let status = plan(&template, self.allow_cross_namespace, Timestamp::now());
            let outcome = self
                .objects
                .apply_status(&Planned::new(template.as_ref())?, &status, "the template was checked")
                .await?;
            if !outcome.is_unchanged() {
                tracing::info!(valid = ?status.conditions.first().map(|valid| &valid.status), variables = status.variables.len(), "template checked");
            }
        }
        Ok(Wake::OnEvent)
    }
}

/// What is to be said about a template.
fn plan(template: &WorkspaceTemplate, allow_cross_namespace: bool, now: Timestamp) -> WorkspaceTemplateStatus {
    let (valid, variables) = check(template, allow_cross_namespace);
    let before = template.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let generation = template.metadata.generation.unwrap_or_default();
    WorkspaceTemplateStatus {
        variables,
        observed_generation: Some(generation),
        conditions: conditions::merge(before, &TemplateReport { valid: Some(valid) }, generation, now),
    }
}

fn check(template: &WorkspaceTemplate, allow_cross_namespace: bool) -> (State<Valid>, Vec<String>) {
    let invalid = |why: String| (State::no(Valid::InvalidTemplate, why), Vec::new());
    let parameters = &template.spec.template.spec.for_provider;
    if parameters.module.trim().is_empty() {
        return invalid("spec.template.spec.forProvider.module is empty: give the module's text (source Inline) or its address (source Remote)".into());
    }
    if parameters.source == ModuleSource::Inline
        && parameters.inline_format == Some(FileFormat::Json)
        && let Err(error) = serde_json::from_str::<serde_json::Value>(&parameters.module)
    {
        return invalid(format!(
            "spec.template.spec.forProvider.module is not JSON ({error}): correct it, or set inlineFormat to HCL"
        ));
    }
    let own = template.metadata.namespace.as_deref().unwrap_or_default();
    match render::leaves_its_namespace(&template.spec, own) {
        Ok(Some(error)) if !allow_cross_namespace => {
            return (State::no(Valid::CrossNamespaceReference, error.to_string()), Vec::new());
        }
        Ok(_) => {}
        Err(error) => return invalid(format!("spec.template.spec cannot be read: {error}")),
    }
    let mut expected = match render::expected(&template.spec) {
        Ok(expected) => expected,
        Err(error) => return invalid(format!("spec.template.spec cannot be read: {error}")),
    };
    // CAPT itself gives this one.
    expected.remove(variable::WORKSPACE_NAME);
    if expected.len() > MAX_VARIABLES {
        return invalid(format!(
            "the template expects {} variables; {MAX_VARIABLES} are allowed: pass several values in one, as JSON",
            expected.len()
        ));
    }
    let message = match expected.len() {
        0 => "the template expects no variables".to_owned(),
        _ => format!(
            "the template expects {}",
            expected.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
        ),
    };
    (State::yes(Valid::Valid, message), expected.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn template(spec: Value) -> WorkspaceTemplate {
        serde_json::from_value(json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "WorkspaceTemplate",
            "metadata": {"name": "t", "namespace": "n", "generation": 3},
            "spec": {"template": {"spec": spec}},
        }))
        .unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_template_says_which_variables_it_expects() {
        let template = template(json!({
            "forProvider": {
                "source": "Inline",
                "module": "variable \"x\" {}\noutput \"o\" { value = \"${var.x}-${inside}-${WORKSPACE_NAME}\" }",
                "vars": [{"key": "x", "value": "${region}"}, {"key": "y", "value": "${optional:-no}"}],
            },
            "writeConnectionSecretToRef": {"name": "${cluster_name}-connection"},
        }));
        let status = plan(&template, false, at(1));
        assert_eq!(status.variables, ["cluster_name", "inside", "region"]);
        assert_eq!(status.observed_generation, Some(3));
        let valid = &status.conditions[0];
        assert_eq!(
            (valid.type_.as_str(), valid.status.as_str(), valid.reason.as_str()),
            ("Valid", "True", "Valid")
        );
        assert_eq!(valid.message, "the template expects cluster_name, inside, region");
    }

    #[test]
    fn a_json_module_is_searched_too() {
        let spec = json!({"forProvider": {"source": "Inline", "inlineFormat": "JSON", "module": "{\"output\": {\"a\": {\"value\": \"${given} ${var.x}\"}}}"}});
        assert_eq!(plan(&template(spec), false, at(1)).variables, ["given"]);
    }

    #[test]
    fn what_cannot_be_rendered_is_said_with_the_field_and_the_fix() {
        for (spec, words) in [
            (
                json!({"forProvider": {"source": "Inline", "module": "  "}}),
                ["forProvider.module is empty", "give the module's text"],
            ),
            (
                json!({"forProvider": {"source": "Inline", "inlineFormat": "JSON", "module": "{"}}),
                ["is not JSON", "inlineFormat to HCL"],
            ),
        ] {
            let status = plan(&template(spec), false, at(1));
            let valid = &status.conditions[0];
            assert_eq!(
                (valid.status.as_str(), valid.reason.as_str()),
                ("False", "InvalidTemplate")
            );
            assert!(
                words.iter().all(|word| valid.message.contains(word)),
                "{}",
                valid.message
            );
        }
    }

    #[test]
    fn a_reference_out_of_the_namespace_is_seen_before_anybody_applies_the_template() {
        let env = |namespace: &str| {
            json!({"forProvider": {"source": "Inline", "module": "x", "env": [
                {"name": "A", "value": "b"}, {"name": "X", "secretKeyRef": {"name": "s", "namespace": namespace, "key": "k"}},
            ]}})
        };
        let connection = json!({"forProvider": {"source": "Inline", "module": "x"}, "writeConnectionSecretToRef": {"name": "c", "namespace": "other"}});
        for (spec, allowed, reason, field) in [
            (
                env("other"),
                false,
                "CrossNamespaceReference",
                "forProvider.env[1].secretKeyRef names the namespace other",
            ),
            (
                connection,
                false,
                "CrossNamespaceReference",
                "spec.template.spec.writeConnectionSecretToRef names the namespace other",
            ),
            (env("other"), true, "Valid", ""),
            (env("n"), false, "Valid", ""),
            (env(""), false, "Valid", ""),
            (env("${where}"), false, "Valid", "where"),
        ] {
            let status = plan(&template(spec.clone()), allowed, at(1));
            let valid = &status.conditions[0];
            assert_eq!(valid.reason, reason, "{spec}");
            assert!(valid.message.contains(field), "{}", valid.message);
        }
    }

    #[test]
    fn nothing_changes_when_nothing_changed() {
        let mut checked = template(json!({"forProvider": {"source": "Remote", "module": "git::https://x"}}));
        checked.status = Some(plan(&checked, false, at(1)));
        assert_eq!(checked.status, Some(plan(&checked, false, at(1000))));
    }
}
