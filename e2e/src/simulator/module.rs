//! The part of Terraform's language that the simulator evaluates: a root module in JSON syntax.
//!
//! Variables, outputs and `terraform_data` resources; in strings, references to variables, to the workspace and to the
//! output of a resource, and the functions `sha256` and `substr` to make identifiers of them. Anything else that decides
//! a value is refused with a diagnostic, never guessed: a module behaves here as on the real Terraform, or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Map, Number, Value};

use super::expression::Scope;

/// What Terraform prints to stderr: the line after `Error: `, and the paragraph below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Diagnostic {
    pub(super) summary: String,
    pub(super) detail: String,
}

impl Diagnostic {
    pub(super) fn new(summary: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            summary: summary.into(),
            detail: detail.into(),
        }
    }

    pub(super) fn unsupported(what: &str) -> Self {
        Self::new(
            "Unsupported by the simulator",
            format!(
                "The simulator does not evaluate {what}. It knows var.NAME, terraform.workspace,\n\
                 terraform_data.NAME.output, sha256(…) and substr(…, OFFSET, LENGTH); run modules that\n\
                 need more on the real Terraform."
            ),
        )
    }
}

/// A parsed root module.
pub(super) struct Module {
    pub(super) variables: BTreeMap<String, Variable>,
    pub(super) resources: BTreeMap<String, Resource>,
    outputs: BTreeMap<String, OutputBlock>,
}

pub(super) struct Variable {
    /// Absent when the variable is required; `null` is a default like any other.
    default: Option<Value>,
    constraint: Option<String>,
    pub(super) sensitive: bool,
}

pub(super) struct Resource {
    /// The attributes whose change is a diff. Empty for types other than `terraform_data`: they only exist.
    pub(super) compared: Map<String, Value>,
    depends_on: BTreeSet<String>,
}

struct OutputBlock {
    value: Value,
    sensitive: bool,
}

/// One `-var`, `-var-file` entry or `TF_VAR_` variable; the last one given to a name wins.
#[derive(Clone)]
pub(super) struct Assignment {
    pub(super) name: String,
    pub(super) value: Given,
}

/// A value and the way it came, which decides how Terraform reads it and whether an unknown name is an error.
#[derive(Clone)]
pub(super) enum Given {
    CommandLine(String),
    Environment(String),
    File(Value),
}

/// What the configuration asks for, fully evaluated.
#[derive(Clone)]
pub(super) struct Desired {
    pub(super) resources: BTreeMap<String, DesiredResource>,
    pub(super) outputs: BTreeMap<String, DesiredOutput>,
    pub(super) faults: Faults,
}

#[derive(Clone)]
pub(super) struct DesiredResource {
    /// Compared with the state.
    pub(super) attributes: Value,
    /// Addresses of the resources that must be made before it.
    pub(super) needs: BTreeSet<String>,
}

#[derive(Clone)]
pub(super) struct DesiredOutput {
    pub(super) value: Value,
    pub(super) sensitive: bool,
    /// Addresses of the resources it reads: it exists only once they do.
    pub(super) needs: BTreeSet<String>,
}

/// What goes wrong or slowly on purpose, from variables that the module itself declares.
#[derive(Clone, Default, Debug, PartialEq)]
pub(super) struct Faults {
    pub(super) apply: Option<String>,
    pub(super) apply_once: Option<String>,
    pub(super) destroy: Option<String>,
    pub(super) slow_apply: Duration,
    pub(super) slow_destroy: Duration,
}

impl Module {
    pub(super) fn parse(text: &str) -> Result<Self, Diagnostic> {
        let root: Value = serde_json::from_str(text)
            .map_err(|error| Diagnostic::new("Invalid JSON", format!("main.tf.json is not valid JSON: {error}.")))?;
        let mut module = Self {
            variables: BTreeMap::new(),
            resources: BTreeMap::new(),
            outputs: BTreeMap::new(),
        };
        for (block, body) in entries(&root, "the root of the configuration")? {
            match block.as_str() {
                "variable" => module.read_variables(body)?,
                "resource" => module.read_resources(body)?,
                "output" => module.read_outputs(body)?,
                // Neither makes anything by itself.
                "terraform" | "provider" | "//" => {}
                // Their resources or values could not be counted or compared.
                "module" | "data" | "locals" | "import" | "moved" | "check" => {
                    return Err(Diagnostic::unsupported(&format!("\"{block}\" blocks")));
                }
                other => {
                    return Err(Diagnostic::new(
                        "Extraneous JSON object property",
                        format!("No argument or block type is named {other:?}."),
                    ));
                }
            }
        }
        Ok(module)
    }

    fn read_variables(&mut self, body: &Value) -> Result<(), Diagnostic> {
        for (name, body) in entries(body, "variable")? {
            let body = only_object(body, "variable", name)?;
            let variable = Variable {
                default: body.get("default").cloned(),
                constraint: body.get("type").and_then(Value::as_str).map(str::to_owned),
                sensitive: body.get("sensitive").and_then(Value::as_bool).unwrap_or_default(),
            };
            self.variables.insert(name.clone(), variable);
        }
        Ok(())
    }

    fn read_resources(&mut self, body: &Value) -> Result<(), Diagnostic> {
        for (kind, of_kind) in entries(body, "resource")? {
            for (name, body) in entries(of_kind, kind)? {
                let body = only_object(body, "resource", name)?;
                for repeated in ["count", "for_each"] {
                    if body.contains_key(repeated) {
                        return Err(Diagnostic::unsupported(&format!("{repeated} of {kind}.{name}")));
                    }
                }
                let compared = body
                    .iter()
                    .filter(|(key, _)| kind == "terraform_data" && matches!(key.as_str(), "input" | "triggers_replace"))
                    .map(|(key, value)| (key.clone(), value.clone()))
                    .collect();
                let depends_on = body.get("depends_on").and_then(Value::as_array).into_iter().flatten();
                let resource = Resource {
                    compared,
                    depends_on: depends_on.filter_map(Value::as_str).map(str::to_owned).collect(),
                };
                self.resources.insert(format!("{kind}.{name}"), resource);
            }
        }
        Ok(())
    }

    fn read_outputs(&mut self, body: &Value) -> Result<(), Diagnostic> {
        for (name, body) in entries(body, "output")? {
            let body = only_object(body, "output", name)?;
            let value = body.get("value").cloned().ok_or_else(|| {
                Diagnostic::new(
                    "Missing required argument",
                    format!("The argument \"value\" of output {name:?} is required, but no definition was found."),
                )
            })?;
            let sensitive = body.get("sensitive").and_then(Value::as_bool).unwrap_or_default();
            self.outputs.insert(name.clone(), OutputBlock { value, sensitive });
        }
        Ok(())
    }

    /// Everything that `terraform plan` would evaluate, or the first diagnostic it would print.
    pub(super) fn evaluate(&self, workspace: &str, given: &[Assignment]) -> Result<Desired, Diagnostic> {
        let variables = self.values(given)?;
        let scope = Scope {
            module: self,
            workspace,
            variables: &variables,
        };
        let mut resources = BTreeMap::new();
        for (address, resource) in &self.resources {
            let evaluated = scope.template(&Value::Object(resource.compared.clone()), &mut vec![address.clone()])?;
            let wanted = DesiredResource {
                attributes: evaluated.value,
                needs: evaluated.needs.union(&resource.depends_on).cloned().collect(),
            };
            resources.insert(address.clone(), wanted);
        }
        let mut outputs = BTreeMap::new();
        for (name, output) in &self.outputs {
            let evaluated = scope.template(&output.value, &mut Vec::new())?;
            if evaluated.sensitive && !output.sensitive {
                return Err(Diagnostic::new(
                    "Output refers to sensitive values",
                    format!("To export the sensitive value of output {name:?}, annotate it with sensitive = true."),
                ));
            }
            // Terraform does not keep an output that is null.
            if !evaluated.value.is_null() {
                outputs.insert(
                    name.clone(),
                    DesiredOutput {
                        value: evaluated.value,
                        sensitive: output.sensitive,
                        needs: evaluated.needs,
                    },
                );
            }
        }
        Ok(Desired {
            resources,
            outputs,
            faults: Faults::read(&variables)?,
        })
    }

    fn values(&self, given: &[Assignment]) -> Result<BTreeMap<String, Value>, Diagnostic> {
        let mut values = BTreeMap::new();
        for Assignment { name, value } in given {
            match self.variables.get(name) {
                Some(variable) => {
                    values.insert(name.clone(), variable.accept(name, value)?);
                }
                None if matches!(value, Given::CommandLine(_)) => {
                    return Err(Diagnostic::new(
                        "Value for undeclared variable",
                        format!(
                            "A variable named {name:?} was assigned on the command line, but the root module\n\
                             does not declare a variable of that name. To use this value, add a \"variable\"\n\
                             block to the configuration."
                        ),
                    ));
                }
                // A name unknown to the module in a file or in the environment is at most a warning.
                None => {}
            }
        }
        for (name, variable) in &self.variables {
            if values.contains_key(name) {
                continue;
            }
            let Some(default) = &variable.default else {
                return Err(Diagnostic::new(
                    "No value for required variable",
                    format!(
                        "The root module input variable {name:?} is not set, and has no default value.\n\
                         Use a -var or -var-file command line argument to provide a value for this\n\
                         variable."
                    ),
                ));
            };
            values.insert(name.clone(), variable.convert(name, default.clone())?);
        }
        Ok(values)
    }
}

impl Variable {
    fn accept(&self, name: &str, given: &Given) -> Result<Value, Diagnostic> {
        let value = match given {
            Given::File(value) => value.clone(),
            Given::CommandLine(text) | Given::Environment(text) => match self.constraint.as_deref() {
                None | Some("string" | "number" | "bool") => Value::String(text.clone()),
                // A collection is written as an expression; its JSON form is the one that both understand.
                Some(_) => serde_json::from_str(text).map_err(|error| {
                    Diagnostic::new(
                        "Invalid expression",
                        format!("The value of var.{name} is not a JSON expression: {error}."),
                    )
                })?,
            },
        };
        self.convert(name, value)
    }

    fn convert(&self, name: &str, value: Value) -> Result<Value, Diagnostic> {
        let unsuitable = |required: &str| {
            Diagnostic::new(
                "Invalid value for input variable",
                format!("Unsuitable value for var.{name}: {required}."),
            )
        };
        match (self.constraint.as_deref(), value) {
            (_, Value::Null) => Ok(Value::Null),
            (Some("string"), value) => match value {
                Value::String(_) => Ok(value),
                Value::Number(number) => Ok(Value::String(number.to_string())),
                Value::Bool(flag) => Ok(Value::String(flag.to_string())),
                _ => Err(unsuitable("string required")),
            },
            (Some("number"), value) => match value {
                Value::Number(_) => Ok(value),
                Value::String(text) => number(&text).ok_or_else(|| unsuitable("a number is required")),
                _ => Err(unsuitable("a number is required")),
            },
            (Some("bool"), value) => match value {
                Value::Bool(_) => Ok(value),
                Value::String(text) if text == "true" || text == "1" => Ok(Value::Bool(true)),
                Value::String(text) if text == "false" || text == "0" => Ok(Value::Bool(false)),
                _ => Err(unsuitable("a bool is required")),
            },
            (Some(constraint), value) if constraint.starts_with("list(") && !value.is_array() => {
                Err(unsuitable(&format!("{constraint} required")))
            }
            (Some(constraint), value) if constraint.starts_with("map(") && !value.is_object() => {
                Err(unsuitable(&format!("{constraint} required")))
            }
            (_, value) => Ok(value),
        }
    }
}

impl Faults {
    fn read(variables: &BTreeMap<String, Value>) -> Result<Self, Diagnostic> {
        let message = |name: &str| {
            variables
                .get(name)
                .and_then(Value::as_str)
                .filter(|text| !text.is_empty())
                .map(str::to_owned)
        };
        let seconds = |name: &str| match variables.get(name) {
            None | Some(Value::Null) => Ok(Duration::ZERO),
            Some(value) => {
                let seconds = match value {
                    Value::String(text) if text.is_empty() => Some(0.0),
                    Value::String(text) => text.parse().ok(),
                    other => other.as_f64(),
                };
                seconds
                    .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
                    .ok_or_else(|| {
                        Diagnostic::new(
                            "Invalid value for input variable",
                            format!("var.{name} must be seconds."),
                        )
                    })
            }
        };
        Ok(Self {
            apply: message("fault_apply"),
            apply_once: message("fault_apply_once"),
            destroy: message("fault_destroy"),
            slow_apply: seconds("slow_seconds")?,
            slow_destroy: seconds("slow_destroy_seconds")?,
        })
    }
}

fn number(text: &str) -> Option<Value> {
    if let Ok(integer) = text.parse::<i64>() {
        return Some(Value::Number(integer.into()));
    }
    text.parse().ok().and_then(Number::from_f64).map(Value::Number)
}

/// The labelled blocks in `value`: Terraform accepts an object, or a list of objects.
fn entries<'a>(value: &'a Value, place: &str) -> Result<Vec<(&'a String, &'a Value)>, Diagnostic> {
    match value {
        Value::Object(fields) => Ok(fields.iter().collect()),
        Value::Array(items) => {
            let mut all = Vec::new();
            for item in items {
                all.extend(entries(item, place)?);
            }
            Ok(all)
        }
        _ => Err(Diagnostic::new(
            "Incorrect JSON value type",
            format!("A JSON object is required in {place}, to define blocks."),
        )),
    }
}

fn only_object<'a>(body: &'a Value, block: &str, name: &str) -> Result<&'a Map<String, Value>, Diagnostic> {
    match body {
        Value::Object(fields) => Ok(fields),
        Value::Array(items) => match items.as_slice() {
            [Value::Object(fields)] => Ok(fields),
            _ => Err(Diagnostic::new(
                format!("Duplicate {block} block"),
                format!("A {block} named {name:?} must be defined once."),
            )),
        },
        _ => Err(Diagnostic::new(
            "Incorrect JSON value type",
            format!("A JSON object is required for {block} {name:?}."),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn evaluate(module: Value, given: Vec<Assignment>) -> Result<Desired, Diagnostic> {
        Module::parse(&module.to_string())?.evaluate("ws", &given)
    }

    fn on_command_line(name: &str, value: &str) -> Assignment {
        Assignment {
            name: name.into(),
            value: Given::CommandLine(value.into()),
        }
    }

    fn in_file(name: &str, value: Value) -> Assignment {
        Assignment {
            name: name.into(),
            value: Given::File(value),
        }
    }

    fn refusal(result: Result<Desired, Diagnostic>) -> String {
        result.err().map(|diagnostic| diagnostic.summary).expect("a diagnostic")
    }

    #[test]
    fn outputs_keep_their_types_and_strings_interpolate() {
        let module = json!({
            "variable": {
                "name": {"type": "string"},
                "zones": {"type": "list(string)", "default": ["a", "b"]},
                "size": {"type": "number", "default": 3},
            },
            "output": {
                "text": {"value": "${terraform.workspace}-${var.name}-${var.size}"},
                "zones": {"value": "${var.zones}"},
                "map": {"value": {"n": "${ var.size }", "literal": "$${x} 100% $"}},
                "nothing": {"value": null},
            },
        });
        let desired = evaluate(module, vec![on_command_line("name", "x")]).expect("a plan");
        let values: Map<String, Value> = desired
            .outputs
            .into_iter()
            .map(|(name, output)| (name, output.value))
            .collect();
        assert_eq!(
            Value::Object(values),
            json!({"text": "ws-x-3", "zones": ["a", "b"], "map": {"n": 3, "literal": "${x} 100% $"}})
        );
    }

    #[test]
    fn the_last_assignment_wins_and_text_is_read_by_type() {
        let module = || {
            json!({
                "variable": {"a": {}, "list": {"type": "list(string)"}, "flag": {"type": "bool"}},
                "output": {"a": {"value": "${var.a}"}, "list": {"value": "${var.list}"}, "flag": {"value": "${var.flag}"}},
            })
        };
        let desired = evaluate(
            module(),
            vec![
                on_command_line("a", "7"),
                on_command_line("list", r#"["x"]"#),
                on_command_line("flag", "true"),
                in_file("a", json!([1])),
                in_file("unknown", json!(1)),
            ],
        )
        .expect("a plan");
        assert_eq!(desired.outputs["a"].value, json!([1]));
        assert_eq!(desired.outputs["list"].value, json!(["x"]));
        assert_eq!(desired.outputs["flag"].value, json!(true));
        let untyped = evaluate(
            module(),
            vec![
                on_command_line("a", "7"),
                on_command_line("list", "[]"),
                on_command_line("flag", "0"),
            ],
        )
        .expect("a plan");
        assert_eq!(
            untyped.outputs["a"].value,
            json!("7"),
            "no constraint: the text as it is"
        );
    }

    #[test]
    fn an_output_remembers_which_resources_it_reads() {
        let module = json!({
            "variable": {"id": {"default": "vpc-1"}},
            "resource": {"terraform_data": {"vpc": {"input": {"id": "${var.id}"}, "provisioner": [{"local-exec": {}}]}}},
            "output": {"vpc": {"value": "${terraform_data.vpc.output}"}, "id": {"value": "${var.id}"}},
        });
        let desired = evaluate(module, Vec::new()).expect("a plan");
        assert_eq!(
            desired.resources["terraform_data.vpc"].attributes,
            json!({"input": {"id": "vpc-1"}})
        );
        assert_eq!(desired.outputs["vpc"].value, json!({"id": "vpc-1"}));
        assert!(desired.outputs["vpc"].needs.contains("terraform_data.vpc"));
        assert!(desired.outputs["id"].needs.is_empty());
    }

    #[test]
    fn identifiers_are_made_as_terraform_makes_them() {
        let module = json!({
            "resource": {"terraform_data": {"vpc": {"input": {"id": "vpc-${substr(sha256(terraform.workspace), 2, 6)}"}}}},
            "output": {"id": {"value": "${terraform_data.vpc.output.id}"}},
        });
        let desired = evaluate(module, Vec::new()).expect("a plan");
        // printf ws | sha256sum | cut -c3-8
        assert_eq!(desired.outputs["id"].value, json!("vpc-a66195"));
    }

    #[test]
    fn faults_come_from_declared_variables() {
        let module = json!({"variable": {
            "fault_apply": {"default": ""}, "fault_apply_once": {}, "fault_destroy": {"default": ""},
            "slow_seconds": {"type": "number", "default": 0}, "slow_destroy_seconds": {"default": ""},
        }});
        let given = vec![
            on_command_line("fault_apply_once", "quota"),
            on_command_line("slow_seconds", "1.5"),
        ];
        let desired = evaluate(module, given).expect("a plan");
        assert_eq!(
            desired.faults,
            Faults {
                apply_once: Some("quota".into()),
                slow_apply: Duration::from_millis(1500),
                ..Faults::default()
            }
        );
    }

    #[test]
    fn mistakes_are_refused_as_terraform_refuses_them() {
        let rows = [
            (json!({"variable": {"a": {}}}), vec![], "No value for required variable"),
            (
                json!({}),
                vec![on_command_line("zz", "1")],
                "Value for undeclared variable",
            ),
            (
                json!({"variable": {"n": {"type": "number"}}}),
                vec![on_command_line("n", "x")],
                "Invalid value for input variable",
            ),
            (
                json!({"output": {"o": {"value": "${var.no}"}}}),
                vec![],
                "Reference to undeclared input variable",
            ),
            (
                json!({"output": {"o": {"value": "${terraform_data.no.output}"}}}),
                vec![],
                "Reference to undeclared resource",
            ),
            (
                json!({"variable": {"s": {"default": "x", "sensitive": true}}, "output": {"o": {"value": "${var.s}"}}}),
                vec![],
                "Output refers to sensitive values",
            ),
            (
                json!({"variable": {"l": {"default": []}}, "output": {"o": {"value": "x${var.l}"}}}),
                vec![],
                "Invalid template interpolation value",
            ),
            (
                json!({"resource": {"terraform_data": {
                    "a": {"input": "${terraform_data.b.output}"}, "b": {"input": "${terraform_data.a.output}"}}}}),
                vec![],
                "Cycle",
            ),
            (
                json!({"output": {"o": {"value": "${max(1, 2)}"}}}),
                vec![],
                "Unsupported by the simulator",
            ),
            (
                json!({"output": {"o": {"value": "${substr(terraform.workspace, 1)}"}}}),
                vec![],
                "Unsupported by the simulator",
            ),
            (
                json!({"resource": {"terraform_data": {"a": {"input": {}}}}, "output": {"o": {"value": "${terraform_data.a.output.id}"}}}),
                vec![],
                "Unsupported attribute",
            ),
            (
                json!({"resource": {"aws_vpc": {"a": {"count": 2}}}}),
                vec![],
                "Unsupported by the simulator",
            ),
            (json!({"module": {"m": {}}}), vec![], "Unsupported by the simulator"),
            (json!({"outputs": {}}), vec![], "Extraneous JSON object property"),
        ];
        for (module, given, summary) in rows {
            let text = module.to_string();
            assert_eq!(refusal(evaluate(module, given)), summary, "{text}");
        }
        assert_eq!(
            Module::parse("{").err().map(|diagnostic| diagnostic.summary),
            Some("Invalid JSON".to_owned())
        );
    }
}
