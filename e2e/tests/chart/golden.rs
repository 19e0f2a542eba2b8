//! What the chart renders, kept as files: a review sees what a change of a template does. `make chart-golden` writes them
//! anew.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::helm::{Helm, repository};
use crate::render::{everything, merged};

#[tokio::test]
async fn the_rendering_is_the_expected_one() -> Result<()> {
    let helm = Helm::new().await?;
    let namespaced = json!({ "watch": { "namespace": "team-a" } });
    // Dashboards are files of their own already.
    let everything = merged(everything(), json!({ "dashboards": null }));
    let cases: [(&str, Value); 3] = [
        ("default", json!({})),
        ("everything", everything),
        ("namespaced", namespaced),
    ];
    let mut differing = Vec::new();
    for (name, values) in cases {
        let path = repository(&format!("e2e/tests/chart/golden/{name}.yaml"));
        let rendered = without_rules(&helm.render(&values)?.text);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&path, &rendered).with_context(|| format!("cannot write {}", path.display()))?;
        } else if fs::read_to_string(&path).ok().as_deref() != Some(&rendered) {
            differing.push(format!(
                "{name}: {}",
                first_difference(&fs::read_to_string(&path).unwrap_or_default(), &rendered)
            ));
        }
    }
    ensure!(
        differing.is_empty(),
        "the chart renders something else; if that is meant, run `make chart-golden`\n{}",
        differing.join("\n")
    );
    Ok(())
}

/// The rules of Roles are files of their own, too (`charts/capt/files/rbac`): a controller that needs one more permission
/// changes them and nothing here.
fn without_rules(text: &str) -> String {
    let mut in_rules = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        in_rules = line == "rules:" || in_rules && line.starts_with("  ");
        if !in_rules || line == "rules:" {
            lines.push(line);
        }
    }
    lines.join("\n") + "\n"
}

fn first_difference(expected: &str, rendered: &str) -> String {
    let (mut old, mut new) = (expected.lines(), rendered.lines());
    for line in 1.. {
        match (old.next(), new.next()) {
            (None, None) => break,
            (old, new) if old == new => {}
            (old, new) => return format!("line {line}: {:?} was expected, {:?} is rendered", old, new),
        }
    }
    "only the end of the file".to_owned()
}
