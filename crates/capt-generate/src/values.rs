//! The chart's reference, from the comments of its `values.yaml`: the table in its README, and `values.schema.json`.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::output::Output;
use crate::schema;

const CHART: &str = "charts/capt";
const INDENT: usize = 2;

/// A key of values.yaml.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    path: Vec<String>,
    comment: String,
    /// As it stands there; empty for a map whose keys are entries of their own.
    default: String,
}

pub(crate) fn files(repository: &Path) -> Result<Vec<Output>> {
    let path = repository.join(CHART).join("values.yaml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let entries = entries(&text)?;
    let mut schema = schema::Builder::new().values()?;
    describe(&mut schema, &entries)?;
    schema::inherit(&mut schema)?;
    require(&mut schema, &entries)?;
    complete(&schema, &entries)?;
    Ok(vec![
        Output::File {
            path: format!("{CHART}/values.schema.json"),
            text: format!("{}\n", serde_json::to_string_pretty(&schema)?),
        },
        Output::Section {
            path: format!("{CHART}/README.md"),
            name: "values",
            text: table(&entries)?,
        },
    ])
}

/// Reads the keys with the comments above them. A key without one is either a group, whose keys have comments of their own,
/// or part of the default of the key before it, such as a field of a list's item.
fn entries(text: &str) -> Result<Vec<Entry>> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut comment: Vec<&str> = Vec::new();
    let mut path: Vec<String> = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        let place = || format!("line {} of values.yaml, `{}`", index + 1, line.trim());
        let body = line.trim_start();
        if body.is_empty() {
            comment.clear();
            continue;
        }
        if let Some(words) = body.strip_prefix('#') {
            comment.push(words.trim());
            continue;
        }
        let is_group = body.ends_with(':')
            && lines
                .get(index + 1)
                .is_some_and(|next| next.trim_start().starts_with('#'));
        if comment.is_empty() && !is_group {
            let entry = entries.last_mut().filter(|entry| depth(line) >= entry.path.len());
            let entry = entry.with_context(|| format!("{} has no comment", place()))?;
            let part = line.get(entry.path.len() * INDENT..).unwrap_or_default();
            entry.default = [entry.default.as_str(), part].join("\n").trim_start().to_owned();
            continue;
        }
        let (key, value) = body.split_once(':').with_context(|| format!("{} is no key", place()))?;
        ensure!(depth(line) <= path.len(), "{} is indented too far", place());
        path.truncate(depth(line));
        path.push(key.to_owned());
        entries.push(Entry {
            path: path.clone(),
            comment: std::mem::take(&mut comment).join(" "),
            default: value.trim().to_owned(),
        });
    }
    Ok(entries)
}

fn depth(line: &str) -> usize {
    (line.len() - line.trim_start().len()) / INDENT
}

/// Puts the comments into the schema, for editors that show them. A key without a type is an error.
fn describe(schema: &mut Value, entries: &[Entry]) -> Result<()> {
    for entry in entries {
        let fields = schema::at(schema, &entry.path)?;
        if !entry.comment.is_empty() {
            fields.insert("description".into(), entry.comment.clone().into());
        }
    }
    Ok(())
}

/// Lets Helm refuse a null. It means "without the default" to Helm, which looks at the values after that: a key that
/// values.yaml has can only be missing because of one. A template would take it for false, 0 or nothing at all.
fn require(schema: &mut Value, entries: &[Entry]) -> Result<()> {
    for entry in entries {
        if let Some((key, parent)) = entry.path.split_last() {
            let required = schema::at(schema, parent)?
                .entry("required")
                .or_insert_with(|| Value::Array(Vec::new()));
            let required = required.as_array_mut().context("what is required is a list")?;
            required.push(key.clone().into());
        }
    }
    Ok(())
}

/// A type without a key would be a value that nobody can find.
fn complete(schema: &Value, entries: &[Entry]) -> Result<()> {
    let mut missing = Vec::new();
    let common = schema
        .pointer("/properties/common/properties")
        .and_then(Value::as_object);
    let inherited = |key: &str| common.is_some_and(|fields| fields.contains_key(key));
    walk(schema, &mut Vec::new(), &mut |path| {
        let hidden = match path {
            [key] => SET_BY_OTHERS.contains(&key.as_str()),
            [group, key] if group == "jobs" => inherited(key),
            [group, _, key, ..] => group == "controllers" && inherited(key),
            _ => false,
        };
        // What a value without a key of its own consists of is in its default.
        let parent_is_shown = |path: &[String]| {
            entries
                .iter()
                .any(|entry| entry.path == path && entry.default.is_empty())
        };
        let reachable = path.len() == 1 || path.split_last().is_some_and(|(_, parent)| parent_is_shown(parent));
        if !hidden && reachable && !entries.iter().any(|entry| entry.path == path) {
            missing.push(path.join("."));
        }
    });
    ensure!(missing.is_empty(), "values.yaml lacks {}", missing.join(", "));
    Ok(())
}

/// Not for users: Helm and parent charts set them.
const SET_BY_OTHERS: &[&str] = &["global", "enabled"];

fn walk(schema: &Value, path: &mut Vec<String>, visit: &mut impl FnMut(&[String])) {
    for (key, property) in schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        path.push(key.clone());
        visit(path);
        walk(property, path, visit);
        path.pop();
    }
}

fn table(entries: &[Entry]) -> Result<String> {
    let mut lines = vec!["| value | default | meaning |".to_owned(), "|---|---|---|".to_owned()];
    for entry in entries.iter().filter(|entry| !entry.comment.is_empty()) {
        let path = entry.path.join(".");
        let default = match entry.default.as_str() {
            "" => String::new(),
            // A cell has no line breaks, and JSON is YAML without them.
            lines if lines.contains('\n') => {
                let value: Value = serde_saphyr::from_str(lines).with_context(|| format!("the default of {path}"))?;
                format!("`{value}`")
            }
            word => format!("`{word}`"),
        };
        let comment = entry.comment.replace('|', "\\|");
        lines.push(format!("| `{path}` | {default} | {comment} |"));
    }
    Ok(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, comment: &str, default: &str) -> Entry {
        Entry {
            path: path.split('.').map(str::to_owned).collect(),
            comment: comment.into(),
            default: default.into(),
        }
    }

    #[test]
    fn comments_belong_to_the_keys_below_them() {
        let text = "\
# About the file.

# One,
# in two lines.
a: 1
group:
  # Two.
  b: \"\"
  # Three.
  c:
    - x: 1
      y: 2
# Four.
described:
  # Five.
  d: {}
";
        let expected = [
            entry("a", "One, in two lines.", "1"),
            entry("group", "", ""),
            entry("group.b", "Two.", "\"\""),
            entry("group.c", "Three.", "- x: 1\n  y: 2"),
            entry("described", "Four.", ""),
            entry("described.d", "Five.", "{}"),
        ];
        assert_eq!(entries(text).unwrap(), expected);
    }

    #[test]
    fn a_key_without_a_comment_is_named() {
        let error = entries("# One.\na: 1\nb: 2\n").unwrap_err().to_string();
        assert!(
            error.contains("line 3") && error.contains("`b: 2` has no comment"),
            "{error}"
        );
    }

    #[test]
    fn a_key_without_a_type_and_a_type_without_a_key_are_named() {
        let mut schema = schema::Builder::new().values().unwrap();
        let error = describe(&mut schema, &[entry("watch.namespaces", "No.", "1")])
            .unwrap_err()
            .to_string();
        assert!(error.contains("watch.namespaces"), "{error}");
        let error = complete(&schema, &[entry("watch", "", "")]).unwrap_err().to_string();
        assert!(error.contains("watch.filter") && error.contains("crds"), "{error}");
        assert!(!error.contains("global"), "{error}");
    }

    #[test]
    fn a_key_of_values_is_required_and_one_that_a_controller_inherits_may_be_null() {
        let mut schema = schema::Builder::new().values().unwrap();
        schema::inherit(&mut schema).unwrap();
        let keys = ["common", "common.metrics", "common.metrics.port", "controllers.secrets"];
        require(&mut schema, &keys.map(|key| entry(key, "", ""))).unwrap();
        for (parent, key) in [
            ("", "common"),
            ("/properties/common", "metrics"),
            ("/properties/common/properties/metrics", "port"),
            ("/properties/controllers", "secrets"),
        ] {
            let required = schema.pointer(&format!("{parent}/required"));
            assert_eq!(required, Some(&serde_json::json!([key])), "{parent}");
        }
        let inherited = "/properties/controllers/properties/secrets/properties/metrics/$ref";
        let inherited = schema.pointer(inherited).and_then(Value::as_str).unwrap();
        let inherited = schema.pointer(inherited.strip_prefix('#').unwrap()).unwrap();
        assert_eq!(inherited["type"], serde_json::json!(["object", "null"]));
        assert!(inherited.get("required").is_none(), "{inherited}");
        assert_eq!(
            inherited["properties"]["port"]["type"],
            serde_json::json!(["integer", "null"])
        );
    }

    /// Helm reads the chart's version from a file that Cargo does not know.
    #[test]
    fn the_chart_is_of_the_same_release_as_the_code() {
        let chart = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .join(CHART)
            .join("Chart.yaml");
        let chart: Value = serde_saphyr::from_str(&std::fs::read_to_string(chart).unwrap()).unwrap();
        for key in ["version", "appVersion"] {
            assert_eq!(chart[key], env!("CARGO_PKG_VERSION"), "{key}");
        }
    }
}
