//! Helm on the chart of this tree.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use capt_e2e::tools::Toolbox;
use capt_e2e::{manifests, testing};
use serde_json::Value;

use crate::render::Rendered;

/// A version of Helm.
#[derive(Clone)]
pub(crate) struct Helm {
    program: PathBuf,
}

impl Helm {
    /// The newest.
    pub(crate) async fn new() -> Result<Self> {
        let [newest, _] = Self::majors().await?;
        Ok(newest)
    }

    /// Every major version that the chart is for, the newest first.
    pub(crate) async fn majors() -> Result<[Self; 2]> {
        let tools = Toolbox::for_chart(testing::environment()?.cache()).await?;
        let program = |name| {
            Ok::<_, anyhow::Error>(Self {
                program: tools.program(name)?.to_path_buf(),
            })
        };
        Ok([program("helm")?, program("helm3")?])
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments);
        command
    }

    pub(crate) fn lint(&self) -> Result<Output> {
        Ok(self.command(&["lint", "--strict"]).arg(chart()).output()?)
    }

    /// Renders the chart as release `capt` in `capt-system`, hooks included.
    pub(crate) fn render(&self, values: &Value) -> Result<Rendered> {
        self.render_as("capt", values)
    }

    pub(crate) fn render_as(&self, release: &str, values: &Value) -> Result<Rendered> {
        self.render_into("capt-system", release, values)
    }

    pub(crate) fn render_into(&self, namespace: &str, release: &str, values: &Value) -> Result<Rendered> {
        accepted(self.template(namespace, release, values)?, values)
    }

    /// What Helm says to values that it must refuse.
    pub(crate) fn refusal(&self, values: &Value) -> Result<String> {
        refused(self.template("capt-system", "capt", values)?, values)
    }

    /// What Helm says at the end of an installation. Only Helm 4 tells it without a cluster.
    pub(crate) fn notes(&self, values: &Value) -> Result<String> {
        let file = values_file(values)?;
        let mut command = self.command(&["install", "capt", "--namespace", "capt-system", "--dry-run=client"]);
        command.arg("--values").arg(file.path()).arg(chart());
        let output = command.env("KUBECONFIG", "/dev/null").output()?;
        ensure!(
            output.status.success(),
            "{values}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let said = String::from_utf8(output.stdout)?;
        let (_, notes) = said.split_once("\nNOTES:\n").context("no notes")?;
        Ok(notes.to_owned())
    }

    fn template(&self, namespace: &str, release: &str, values: &Value) -> Result<Output> {
        self.template_of(&chart(), namespace, release, values)
    }

    pub(crate) fn template_of(&self, chart: &Path, namespace: &str, release: &str, values: &Value) -> Result<Output> {
        let file = values_file(values)?;
        let mut command = self.command(&["template", release, "--namespace", namespace, "--values"]);
        Ok(command.arg(file.path()).arg(chart).output()?)
    }
}

pub(crate) fn accepted(output: Output, values: &Value) -> Result<Rendered> {
    ensure!(
        output.status.success(),
        "{values}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout)?;
    let objects = manifests::parse(&text).with_context(|| format!("{values} renders no valid YAML"))?;
    Ok(Rendered { text, objects })
}

pub(crate) fn refused(output: Output, values: &Value) -> Result<String> {
    ensure!(!output.status.success(), "{values} was accepted");
    Ok(String::from_utf8(output.stderr)?)
}

/// Values as a file, which keeps their types as no `--set` does.
pub(crate) fn values_file(values: &Value) -> Result<tempfile::NamedTempFile> {
    let file = tempfile::NamedTempFile::with_suffix(".json")?;
    serde_json::to_writer(&file, values)?;
    Ok(file)
}

pub(crate) fn chart() -> PathBuf {
    repository("charts/capt")
}

pub(crate) fn repository(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(relative)
}

#[tokio::test]
async fn both_majors_lint_the_chart() -> Result<()> {
    for helm in Helm::majors().await? {
        let output = helm.lint()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    Ok(())
}
