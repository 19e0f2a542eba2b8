//! The values given to a module: `vars`, `varmap`, `varFiles` and `env`, with the Secrets and ConfigMaps they name.
//!
//! They are read on every pass, the one that destroys included: an input that is gone blocks the deletion.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client};
use serde_json::{Map, Value};

use super::module::{Assignment, Given};
use super::workspace::{EnvVar, ForProvider, KeyRef, VarFile};

/// Reads the references of one Workspace. Errors are the provider's words without the stage that it puts in front.
pub(super) struct Inputs<'a> {
    pub(super) client: &'a Client,
    /// Of a namespaced Workspace; its references have no namespace of their own.
    pub(super) namespace: Option<&'a str>,
}

impl Inputs<'_> {
    /// The environment of the CLI, read while connecting. Only `TF_VAR_` entries matter to a module.
    pub(super) async fn environment(&self, env: &[EnvVar]) -> Result<Vec<Assignment>, String> {
        let mut assignments = Vec::new();
        for entry in env {
            let value = self
                .env_value(entry)
                .await
                .map_err(|reason| format!("cannot resolve variables: {reason}"))?;
            if let Some(name) = entry.name.strip_prefix("TF_VAR_") {
                assignments.push(Assignment {
                    name: name.to_owned(),
                    value: Given::Environment(value),
                });
            }
        }
        Ok(assignments)
    }

    async fn env_value(&self, entry: &EnvVar) -> Result<String, String> {
        if !entry.value.is_empty() {
            return Ok(entry.value.clone());
        }
        if let Some(reference) = &entry.config_map_key_ref {
            return self
                .config_map(reference)
                .await?
                .ok_or_else(|| self.no_key("ConfigMap", reference));
        }
        if let Some(reference) = &entry.secret_key_ref {
            let value = self
                .secret(reference)
                .await?
                .ok_or_else(|| self.no_key("Secret", reference))?;
            return Ok(String::from_utf8_lossy(&value).into_owned());
        }
        Ok(String::new())
    }

    /// The command line, read while observing, applying and destroying, in its order: the last value wins.
    pub(super) async fn command_line(&self, parameters: &ForProvider) -> Result<Vec<Assignment>, String> {
        let mut assignments: Vec<_> = parameters
            .vars
            .iter()
            .map(|var| Assignment {
                name: var.key.clone(),
                value: Given::CommandLine(var.value.clone()),
            })
            .collect();
        for file in &parameters.var_files {
            assignments.extend(from_file(self.var_file(file).await.map_err(|reason| {
                format!("cannot determine Terraform options: cannot get tfvars: {reason}")
            })?));
        }
        assignments.extend(from_file(parameters.varmap.clone().unwrap_or_default()));
        Ok(assignments)
    }

    async fn var_file(&self, file: &VarFile) -> Result<Map<String, Value>, String> {
        // A key that is missing is an empty file to the provider.
        let content = if let Some(reference) = &file.config_map_key_ref {
            self.config_map(reference).await?.unwrap_or_default().into_bytes()
        } else if let Some(reference) = &file.secret_key_ref {
            self.secret(reference).await?.unwrap_or_default()
        } else {
            Vec::new()
        };
        match file.format.as_deref() {
            Some("JSON") => serde_json::from_slice(&content).map_err(|_| "the file is not a JSON object".to_owned()),
            _ => tfvars(&String::from_utf8_lossy(&content)),
        }
    }

    async fn config_map(&self, reference: &KeyRef) -> Result<Option<String>, String> {
        let found = Api::<ConfigMap>::namespaced(self.client.clone(), self.home(reference))
            .get_opt(&reference.name)
            .await
            .map_err(|error| error.to_string())?
            .ok_or_else(|| format!("ConfigMap {:?} not found", reference.name))?;
        Ok(found.data.unwrap_or_default().remove(&reference.key))
    }

    async fn secret(&self, reference: &KeyRef) -> Result<Option<Vec<u8>>, String> {
        let found = Api::<Secret>::namespaced(self.client.clone(), self.home(reference))
            .get_opt(&reference.name)
            .await
            .map_err(|error| error.to_string())?
            .ok_or_else(|| format!("Secret {:?} not found", reference.name))?;
        Ok(found
            .data
            .unwrap_or_default()
            .remove(&reference.key)
            .map(|value| value.0))
    }

    fn no_key(&self, kind: &str, reference: &KeyRef) -> String {
        let namespace = self.home(reference);
        format!(
            "couldn't find key {} in {kind} {namespace}/{}",
            reference.key, reference.name
        )
    }

    fn home<'b>(&'b self, reference: &'b KeyRef) -> &'b str {
        self.namespace.or(reference.namespace.as_deref()).unwrap_or_default()
    }
}

fn from_file(values: Map<String, Value>) -> impl Iterator<Item = Assignment> {
    values.into_iter().map(|(name, value)| Assignment {
        name,
        value: Given::File(value),
    })
}

/// The simplest `.tfvars`: lines of `name = value` where the value is also JSON. Its content is secret: no echo of it.
fn tfvars(text: &str) -> Result<Map<String, Value>, String> {
    let mut values = Map::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') || line.starts_with("//") {
            continue;
        }
        let unreadable = || {
            format!(
                "the simulator reads lines of NAME = JSON value, which line {} is not; use format JSON",
                number + 1
            )
        };
        let (name, value) = line.split_once('=').ok_or_else(unreadable)?;
        let value = serde_json::from_str(value.trim()).map_err(|_| unreadable())?;
        values.insert(name.trim().to_owned(), value);
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn simple_tfvars_are_read_and_others_refused_without_showing_them() {
        let read = tfvars("# zones\nzones = [\"a\", \"b\"]\n\nname=\"x = y\"\n").expect("values");
        assert_eq!(Value::Object(read), json!({"zones": ["a", "b"], "name": "x = y"}));
        for bad in ["password", "password = hunter2", "map = {"] {
            let reason = tfvars(bad).expect_err("a refusal");
            assert!(reason.contains("line 1") && !reason.contains("hunter2"), "{reason}");
        }
    }
}
