//! `make install`: the chart of this tree on the node, with the images of this tree, as a user installs it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::images;
use crate::components::CONTROLLER_NAMESPACE;
use crate::environment::Environment;
use crate::tools::Toolbox;
use crate::up;

/// What the release is called.
pub const RELEASE: &str = "capt";

/// Brings the images, installs or upgrades the chart, waits until every pod is ready, and brings the local templates.
/// Returns what Helm said.
pub async fn install(environment: &Environment, images: &Path, values: &[PathBuf]) -> Result<String> {
    let settings = environment.settings()?;
    if settings.node().is_none() {
        bail!("the environment `{}` has no node: run `make down`, then `make node-up`", environment.name());
    }
    let tools = Toolbox::with_node(environment.cache()).await?;
    images::import_all(environment, &tools, images).await?;
    let helm = Toolbox::for_chart(environment.cache()).await?;
    let mut command = tokio::process::Command::new(helm.program("helm")?);
    command
        .args(["upgrade", "--install", RELEASE, "--namespace", CONTROLLER_NAMESPACE])
        .args(["--wait", "--timeout", "5m"])
        .arg(up::repository("charts/capt"))
        .env("KUBECONFIG", environment.kubeconfig())
        .kill_on_drop(true);
    for file in values {
        command.arg("--values").arg(file);
    }
    let output = command.output().await.context("cannot run helm")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("helm failed:\n{said}{}", String::from_utf8_lossy(&output.stderr));
    }
    up::apply_templates(&up::client(&environment.kubeconfig()).await?).await?;
    Ok(said)
}
