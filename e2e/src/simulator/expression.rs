//! Strings of a module as templates: references, and the few functions that make identifiers of them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::module::{Diagnostic, Module};

/// A value, and what is known about where it came from.
pub(super) struct Evaluated {
    pub(super) value: Value,
    pub(super) sensitive: bool,
    /// Addresses of the resources that were read.
    pub(super) needs: BTreeSet<String>,
}

impl Evaluated {
    fn literal(value: Value) -> Self {
        Self {
            value,
            sensitive: false,
            needs: BTreeSet::new(),
        }
    }

    fn absorb(&mut self, other: &Evaluated) {
        self.sensitive |= other.sensitive;
        self.needs.extend(other.needs.iter().cloned());
    }
}

/// What the references of a module mean.
pub(super) struct Scope<'a> {
    pub(super) module: &'a Module,
    pub(super) workspace: &'a str,
    pub(super) variables: &'a BTreeMap<String, Value>,
}

impl Scope<'_> {
    /// Evaluates the strings in `value` as templates. `path` holds the resources being evaluated, to find cycles.
    pub(super) fn template(&self, value: &Value, path: &mut Vec<String>) -> Result<Evaluated, Diagnostic> {
        match value {
            Value::String(text) => self.string(text, path),
            Value::Array(items) => {
                let mut whole = Evaluated::literal(Value::Null);
                let mut values = Vec::with_capacity(items.len());
                for item in items {
                    let item = self.template(item, path)?;
                    whole.absorb(&item);
                    values.push(item.value);
                }
                whole.value = Value::Array(values);
                Ok(whole)
            }
            Value::Object(fields) => {
                let mut whole = Evaluated::literal(Value::Null);
                let mut values = Map::new();
                for (key, field) in fields {
                    let field = self.template(field, path)?;
                    whole.absorb(&field);
                    values.insert(key.clone(), field.value);
                }
                whole.value = Value::Object(values);
                Ok(whole)
            }
            plain => Ok(Evaluated::literal(plain.clone())),
        }
    }

    fn string(&self, text: &str, path: &mut Vec<String>) -> Result<Evaluated, Diagnostic> {
        let parts = parts(text)?;
        // A string that is one interpolation and nothing else keeps the type of its value.
        if let [Part::Expression(expression)] = parts.as_slice() {
            return self.expression(expression, path);
        }
        let mut whole = Evaluated::literal(Value::Null);
        let mut joined = String::new();
        for part in parts {
            match part {
                Part::Text(text) => joined.push_str(&text),
                Part::Expression(expression) => {
                    let value = self.expression(&expression, path)?;
                    match &value.value {
                        Value::String(text) => joined.push_str(text),
                        Value::Number(number) => joined.push_str(&number.to_string()),
                        Value::Bool(flag) => joined.push_str(&flag.to_string()),
                        Value::Null | Value::Array(_) | Value::Object(_) => {
                            return Err(Diagnostic::new(
                                "Invalid template interpolation value",
                                format!("Cannot include the value of {expression} in a string template."),
                            ));
                        }
                    }
                    whole.absorb(&value);
                }
            }
        }
        whole.value = Value::String(joined);
        Ok(whole)
    }

    fn expression(&self, expression: &str, path: &mut Vec<String>) -> Result<Evaluated, Diagnostic> {
        match call(expression) {
            Some(("sha256", inner)) => self.map_text(inner, path, |text| {
                let digest = Sha256::digest(text.as_bytes());
                digest.iter().map(|byte| format!("{byte:02x}")).collect()
            }),
            Some(("substr", arguments)) => {
                let mut parts = arguments.rsplitn(3, ',').map(str::trim);
                let (length, offset, inner) = (parts.next(), parts.next(), parts.next());
                match (length.map(str::parse), offset.map(str::parse), inner) {
                    (Some(Ok(length)), Some(Ok(offset)), Some(inner)) => {
                        self.map_text(inner, path, |text| text.chars().skip(offset).take(length).collect())
                    }
                    _ => Err(Diagnostic::unsupported(&format!("the expression {expression:?}"))),
                }
            }
            Some(_) => Err(Diagnostic::unsupported(&format!("the expression {expression:?}"))),
            None => self.reference(expression, path),
        }
    }

    fn map_text(
        &self,
        inner: &str,
        path: &mut Vec<String>,
        function: impl FnOnce(&str) -> String,
    ) -> Result<Evaluated, Diagnostic> {
        let mut evaluated = self.expression(inner.trim(), path)?;
        let Some(text) = evaluated.value.as_str() else {
            return Err(Diagnostic::new(
                "Invalid function argument",
                format!("Invalid value for {inner:?}: string required."),
            ));
        };
        evaluated.value = Value::String(function(text));
        Ok(evaluated)
    }

    fn reference(&self, expression: &str, path: &mut Vec<String>) -> Result<Evaluated, Diagnostic> {
        let names: Vec<&str> = expression.split('.').collect();
        match names.as_slice() {
            ["terraform", "workspace"] => Ok(Evaluated::literal(Value::String(self.workspace.to_owned()))),
            ["var", name] if is_identifier(name) => {
                let (Some(value), Some(variable)) = (self.variables.get(*name), self.module.variables.get(*name))
                else {
                    return Err(Diagnostic::new(
                        "Reference to undeclared input variable",
                        format!("An input variable with the name {name:?} has not been declared."),
                    ));
                };
                Ok(Evaluated {
                    value: value.clone(),
                    sensitive: variable.sensitive,
                    needs: BTreeSet::new(),
                })
            }
            ["terraform_data", name, "output", fields @ ..] if is_identifier(name) => {
                let address = format!("terraform_data.{name}");
                let Some(resource) = self.module.resources.get(&address) else {
                    return Err(Diagnostic::new(
                        "Reference to undeclared resource",
                        format!(
                            "A managed resource \"terraform_data\" {name:?} has not been declared in the root module."
                        ),
                    ));
                };
                if path.contains(&address) {
                    return Err(Diagnostic::new(
                        "Cycle",
                        format!("Cycle: {} -> {address}", path.join(" -> ")),
                    ));
                }
                path.push(address.clone());
                let mut output = self.template(resource.compared.get("input").unwrap_or(&Value::Null), path)?;
                path.pop();
                output.needs.insert(address);
                for field in fields {
                    let Some(value) = output.value.get_mut(*field) else {
                        return Err(Diagnostic::new(
                            "Unsupported attribute",
                            format!("This object does not have an attribute named {field:?}."),
                        ));
                    };
                    output.value = value.take();
                }
                Ok(output)
            }
            _ => Err(Diagnostic::unsupported(&format!("the expression {expression:?}"))),
        }
    }
}

enum Part {
    Text(String),
    Expression(String),
}

fn parts(text: &str) -> Result<Vec<Part>, Diagnostic> {
    let mut parts = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['$', '%']) {
        let (before, tail) = rest.split_at(at);
        plain.push_str(before);
        if let Some(after) = tail.strip_prefix("$${") {
            plain.push_str("${");
            rest = after;
        } else if let Some(after) = tail.strip_prefix("%%{") {
            plain.push_str("%{");
            rest = after;
        } else if let Some(after) = tail.strip_prefix("${") {
            let Some((expression, after)) = after.split_once('}') else {
                return Err(Diagnostic::new(
                    "Unclosed template interpolation sequence",
                    "There is no closing brace for this interpolation sequence.",
                ));
            };
            if !plain.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut plain)));
            }
            parts.push(Part::Expression(expression.trim().to_owned()));
            rest = after;
        } else if tail.starts_with("%{") {
            return Err(Diagnostic::unsupported("template directives (%{ … })"));
        } else {
            let mut characters = tail.chars();
            plain.extend(characters.next());
            rest = characters.as_str();
        }
    }
    plain.push_str(rest);
    if !plain.is_empty() || parts.is_empty() {
        parts.push(Part::Text(plain));
    }
    Ok(parts)
}

/// The function and the arguments of `name(arguments)`.
fn call(expression: &str) -> Option<(&str, &str)> {
    let (name, rest) = expression.split_once('(')?;
    Some((name.trim(), rest.strip_suffix(')')?))
}

fn is_identifier(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-')
}
