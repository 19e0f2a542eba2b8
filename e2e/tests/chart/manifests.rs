//! For those who install without Helm: what `make manifests` renders is taken by a real clusterctl and a real API server.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use capt_api::crd;
use capt_e2e::tools::Toolbox;
use capt_e2e::{manifests, testing};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use serde_json::Value;

use crate::helm::{Helm, repository};
use crate::server::dry_run;

const RELEASE: &str = concat!("v", env!("CARGO_PKG_VERSION"));

/// Renders everything into a directory.
async fn rendered() -> Result<tempfile::TempDir> {
    let directory = tempfile::tempdir()?;
    let helm = Helm::new().await?;
    let mut script = Command::new(repository("charts/manifests.sh"));
    let output = script.arg(directory.path()).env("HELM", helm.program()).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(directory)
}

fn crds(objects: &[Value]) -> Result<Vec<CustomResourceDefinition>> {
    let crds = objects
        .iter()
        .filter(|object| object["kind"] == "CustomResourceDefinition");
    crds.map(|crd| Ok(serde_json::from_value(crd.clone())?)).collect()
}

fn deployments(objects: &[Value]) -> Vec<&str> {
    let deployments = objects.iter().filter(|object| object["kind"] == "Deployment");
    deployments
        .filter_map(|deployment| deployment["metadata"]["name"].as_str())
        .collect()
}

#[tokio::test]
async fn plain_manifests_are_whole() -> Result<()> {
    let client = testing::client().await?;
    let directory = rendered().await?;
    let objects = manifests::read(&directory.path().join("capt.yaml"))?;
    ensure!(
        objects.first().is_some_and(|first| first["kind"] == "Namespace"),
        "the namespace does not come first"
    );
    ensure!(deployments(&objects).len() == 5, "{:?}", deployments(&objects));
    ensure!(crds(&objects)?.len() == crd::all().len(), "not all CRDs");
    ensure!(
        objects.iter().all(|object| object["kind"] != "Job"),
        "a Job without Helm would run at the wrong time"
    );
    for object in &objects {
        dry_run(&client, object).await?;
    }
    Ok(())
}

/// Puts the files where clusterctl looks for a release, and asks it for what it would install.
fn generate(clusterctl: &Path, files: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Result<Vec<Value>> {
    let repository = tempfile::tempdir()?;
    let mut config = String::from("providers:\n");
    for (provider, kind) in [
        ("infrastructure", "InfrastructureProvider"),
        ("control-plane", "ControlPlaneProvider"),
    ] {
        let release = repository.path().join(format!("{provider}-capt/{RELEASE}"));
        fs::create_dir_all(&release)?;
        let components = format!("{provider}-components.yaml");
        for file in [components.as_str(), "metadata.yaml", "cluster-template.yaml"] {
            fs::copy(files.join(file), release.join(file))?;
        }
        let url = release.join(&components);
        config.push_str(&format!(
            "- {{name: capt, type: {kind}, url: \"file://{}\"}}\n",
            url.display()
        ));
    }
    let config_file = repository.path().join("config.yaml");
    fs::write(&config_file, config)?;
    let output = Command::new(clusterctl)
        .arg("generate")
        .args(arguments)
        .arg("--config")
        .arg(&config_file)
        .env("AWS_REGION", "eu-west-1")
        .envs(variables.iter().copied())
        // It would look for a newer version of itself.
        .env("CLUSTERCTL_DISABLE_VERSIONCHECK", "true")
        .output()?;
    ensure!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    manifests::parse(&String::from_utf8(output.stdout)?)
}

#[tokio::test]
async fn clusterctl_takes_the_components() -> Result<()> {
    let tools = Toolbox::ready(testing::environment()?.cache()).await?;
    let clusterctl = tools.program("clusterctl")?;
    let directory = rendered().await?;
    let release = format!("capt:{RELEASE}");
    let mut seen = Vec::new();
    for (provider, namespace, controllers) in [
        (
            "infrastructure",
            "capt-system",
            ["capt-cluster-controller", "capt-workspace-controller"].as_slice(),
        ),
        (
            "control-plane",
            "capt-control-plane-system",
            ["capt-controlplane-controller", "capt-endpoint", "capt-secrets"].as_slice(),
        ),
    ] {
        let objects = generate(
            clusterctl,
            directory.path(),
            &["provider", &format!("--{provider}"), &release],
            &[],
        )?;
        let mut found = deployments(&objects);
        found.sort_unstable();
        ensure!(found == controllers, "{provider}: {found:?}");
        let label = Value::from(format!("{provider}-capt"));
        for object in &objects {
            let metadata = &object["metadata"];
            ensure!(
                metadata["labels"]["cluster.x-k8s.io/provider"] == label,
                "{provider}: {metadata}"
            );
            ensure!(
                metadata["namespace"].as_str().is_none_or(|own| own == namespace),
                "{provider}: {metadata}"
            );
        }
        seen.extend(crds(&objects)?);
    }
    // Placeholders and patterns of the CRDs came through its substitution of variables unharmed. Tenants are of neither provider.
    let of_providers = || crd::all().into_iter().filter(|crd| crd.metadata.labels.is_some());
    for wanted in of_providers() {
        let name = wanted.name_any();
        let found = seen
            .iter()
            .find(|crd| crd.name_any() == name)
            .with_context(|| format!("no {name}"))?;
        ensure!(found.spec.versions == wanted.spec.versions, "{name} was changed");
    }
    ensure!(seen.len() == of_providers().count(), "a CRD is in both");
    Ok(())
}

#[tokio::test]
async fn clusterctl_makes_a_cluster_from_the_template() -> Result<()> {
    let client = testing::client().await?;
    let namespace = testing::namespace(&client, "chart-template").await?;
    let tools = Toolbox::ready(testing::environment()?.cache()).await?;
    let clusterctl = tools.program("clusterctl")?;
    let directory = rendered().await?;
    let release = format!("capt:{RELEASE}");
    // YAML would take the second version for a number, 1.3, and the names, too.
    for (name, version, template) in [("demo", "v1.33.1", "eks-vpc"), ("123456", "1.30", "1e3")] {
        let variables = [("KUBERNETES_VERSION", version), ("CAPT_VPC_TEMPLATE", template)];
        let arguments = [
            "cluster",
            name,
            "--infrastructure",
            &release,
            "--target-namespace",
            &namespace,
        ];
        let objects = generate(clusterctl, directory.path(), &arguments, &variables)?;
        let kinds: Vec<_> = objects.iter().filter_map(|object| object["kind"].as_str()).collect();
        ensure!(kinds.len() == 3 && kinds.contains(&"CAPTControlPlane"), "{kinds:?}");
        for object in &objects {
            ensure!(object["metadata"]["name"] == name, "{}", object["metadata"]);
            let expected = (object["kind"] == "CAPTControlPlane").then_some(version);
            ensure!(object["spec"]["version"].as_str() == expected, "{object}");
            dry_run(&client, object).await?;
        }
    }
    Ok(())
}
