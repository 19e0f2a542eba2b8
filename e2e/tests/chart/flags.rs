//! The flags that the chart gives are flags that the programs take.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use capt_api::names::Manager;
use serde_json::{Value, json};

use crate::helm::Helm;
use crate::render::everything;

/// Parses the flags and does nothing else: help is only shown when everything before it was understood.
fn understood(program: &str, flags: &[&str]) -> Result<()> {
    let path = Path::new(env!("CARGO_BIN_EXE_capt-e2e")).with_file_name(program);
    let output = Command::new(&path).args(flags).arg("--help").output();
    let output = output.with_context(|| format!("cannot run {}: `make programs` builds it", path.display()))?;
    ensure!(
        output.status.success(),
        "{program} {flags:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

#[tokio::test]
async fn the_programs_understand_their_flags() -> Result<()> {
    let helm = Helm::new().await?;
    let namespaced = json!({ "watch": { "namespace": "team-a", "filter": "blue" } });
    for values in [json!({}), everything(), namespaced] {
        let rendered = helm.render(&values)?;
        for controller in Manager::OF_CLUSTERS {
            understood(controller.as_str(), &rendered.flags(controller.as_str())?)?;
        }
        for job in rendered.of_kind("Job") {
            let arguments = job
                .pointer("/spec/template/spec/containers/0/args")
                .and_then(Value::as_array);
            let arguments: Vec<_> = arguments.context("no args")?.iter().filter_map(Value::as_str).collect();
            understood("capt-install", &arguments)?;
        }
    }
    let tenants = Manager::Tenant.as_str();
    understood(tenants, &helm.render(&everything())?.flags(tenants)?)?;
    ensure!(
        understood("capt-secrets", &["--no-such-flag"]).is_err(),
        "nothing is ever refused"
    );
    Ok(())
}
