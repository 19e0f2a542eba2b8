//! `make install`: the chart of this tree on the node, with the images of this tree, as a user installs it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use sha2::{Digest, Sha256};

use super::{directory, images};
use crate::components::CONTROLLER_NAMESPACE;
use crate::environment::Environment;
use crate::manifests;
use crate::progress::Step;
use crate::tools::Toolbox;
use crate::{up, wait};

/// What the release is called.
pub const RELEASE: &str = "capt";
/// How long the pods of one controller may take to be replaced.
const ROLL_OUT: Duration = Duration::from_secs(300);

/// Brings the images, installs or upgrades the chart, waits until every pod is ready, and brings the local templates.
/// Returns what Helm said.
pub async fn install(environment: &Environment, images: &Path, values: &[PathBuf]) -> Result<String> {
    let settings = environment.settings()?;
    if settings.node().is_none() {
        bail!(
            "the environment `{}` has no node: run `make down`, then `make node-up`",
            environment.name()
        );
    }
    let tools = Toolbox::with_node(environment.cache()).await?;
    images::import_all(environment, &tools, images).await?;
    let helm = Toolbox::for_chart(environment.cache()).await?;
    let mut command = tokio::process::Command::new(helm.program("helm")?);
    command
        .args(["upgrade", "--install", RELEASE, "--namespace", CONTROLLER_NAMESPACE])
        .args(["--wait", "--timeout", "10m"])
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
    let client = up::client(&environment.kubeconfig()).await?;
    replace_outdated(&client, images, &directory(environment).join("installed")).await?;
    up::apply_templates(&client).await?;
    Ok(said)
}

/// A pod keeps the image that it was started with. Helm sees no change where the same tag has another content, so pods of an
/// earlier `make install` are replaced here, as a rolling update.
async fn replace_outdated(client: &Client, images: &Path, record: &Path) -> Result<()> {
    let mut hash = Sha256::new();
    for archive in manifests::files_ending(images, "tar")? {
        hash.update(fs::read(archive)?);
    }
    let content: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let earlier = fs::read_to_string(record).ok();
    if earlier.is_some_and(|earlier| earlier != content) {
        let step = Step::start("replace the pods of the earlier images");
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), CONTROLLER_NAMESPACE);
        let ours = ListParams::default().labels("app.kubernetes.io/part-of=capt");
        for deployment in deployments.list(&ours).await? {
            let name = deployment.name_any();
            let restarted = deployments.restart(&name).await?;
            let generation = restarted.metadata.generation.unwrap_or_default();
            let rolled_out = |deployment: Option<&Deployment>| {
                deployment
                    .and_then(|deployment| deployment.status.as_ref())
                    .is_some_and(|status| {
                        status.observed_generation.unwrap_or_default() >= generation
                            && status.updated_replicas == status.replicas
                            && status.available_replicas == status.replicas
                    })
            };
            tokio::time::timeout(ROLL_OUT, wait::until(deployments.clone(), &name, rolled_out))
                .await
                .with_context(|| format!("the new pods of {name} are not ready"))?;
        }
        step.done();
    }
    Ok(fs::write(record, content)?)
}
