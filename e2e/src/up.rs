//! Bringing an environment up: starting what is not running, in order, and filling the API server.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use base64::Engine;
use capt_runtime::rbac;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::cloud;
use crate::components::{self, Component, Parts, STATE_NAMESPACE};
use crate::environment::{Environment, Port, Provider, Record, Settings, is_free};
use crate::manifests;
use crate::node;
use crate::process::Process;
use crate::progress::Step;
use crate::tools::Toolbox;

/// Brings everything up, or what died of it. An environment that has a node runs no controllers: they come as pods.
pub async fn up(environment: &Environment, tools: &Toolbox, provider: Provider, with_node: bool) -> Result<()> {
    let identities: Vec<&str> = components::IDENTITIES.iter().map(|(identity, _)| *identity).collect();
    let settings = environment.prepare(&identities, with_node)?;
    let parts = Parts {
        environment,
        settings: &settings,
        tools,
    };
    environment.credential(&settings, "admin")?;
    install_cloud_command(environment, tools)?;
    if let Some(network) = settings.node() {
        // The API server listens on the cable, so that comes first.
        start(environment, node::namespaces(&parts)?).await?;
        node::furnish(environment, network).await?;
    }

    start(environment, parts.etcd()?).await?;
    start(environment, parts.api_server()?).await?;
    let client = client(&environment.kubeconfig()).await?;

    let step = Step::start("CRDs, namespaces, permissions");
    prepare_api(&client, environment, &settings, tools).await?;
    step.done();

    // Both at once would fight over every Workspace.
    let (workspaces, other) = match provider {
        Provider::Terraform => (parts.provider()?, components::SIMULATOR),
        Provider::Simulator => (parts.simulator()?, components::PROVIDER),
    };
    if let Some(record) = environment.process(other) {
        record.process.stop(Duration::from_secs(10)).await;
    }
    // The controller manager comes after the CRDs: its garbage collector would notice later ones only half a minute on.
    tokio::try_join!(
        start(environment, parts.controller_manager()?),
        start(environment, parts.core()?),
        start(environment, workspaces),
        cloud::heal(environment),
    )?;

    let step = Step::start("webhooks, Terraform backend");
    finish_api(&client, environment, &settings, tools).await?;
    step.done();

    let Some(network) = settings.node() else {
        apply_templates(&client).await?;
        for controller in parts.controllers()? {
            start(environment, controller).await?;
        }
        return Ok(());
    };
    for component in parts.node(network)? {
        let is_containerd = component.name == node::CONTAINERD;
        start(environment, component).await?;
        if is_containerd {
            node::images::pause(environment, tools).await?;
        }
    }
    node::ready(environment, &client).await
}

/// A client with the rights of a kubeconfig file.
pub async fn client(kubeconfig: &Path) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// Starts a component unless it runs already as it should, and waits until it is ready.
async fn start(environment: &Environment, component: Component) -> Result<()> {
    let log = environment.log(component.name);
    let fingerprint = fingerprint(&component);
    let running = match environment.process(component.name) {
        Some(record) if record.fingerprint != fingerprint => {
            record.process.stop(Duration::from_secs(10)).await;
            None
        }
        other => other.map(|record| record.process),
    };
    let step = Step::start(match running {
        Some(_) => format!("{} {}", component.name, component.version),
        None => format!("start {} {}", component.name, component.version),
    });
    let process = match running {
        Some(process) => process,
        None => {
            if let Some(port) = component.ports.iter().find(|port| !is_free(**port)) {
                bail!(
                    "port {port} of {} is taken by another program: end that program, or run `make down` and `make up`, which chooses other ports",
                    component.name
                );
            }
            let process = Process::spawn(component.command, &log)?;
            environment.record(
                component.name,
                &Record {
                    process: process.clone(),
                    fingerprint,
                },
            )?;
            process
        }
    };
    component.probe.wait(component.name, &process, &log).await?;
    step.done();
    Ok(())
}

/// Changes when the program, its command line or its environment changes, so that a rebuilt controller is started anew.
fn fingerprint(component: &Component) -> String {
    let mut hash = Sha256::new();
    hash.update(component.command.get_program().as_encoded_bytes());
    for argument in component.command.get_args() {
        hash.update([0]);
        hash.update(argument.as_encoded_bytes());
    }
    for (name, value) in component.command.get_envs().filter(|(name, _)| *name != "PATH") {
        hash.update([0]);
        hash.update(name.as_encoded_bytes());
        hash.update(value.unwrap_or_default().as_encoded_bytes());
    }
    if let Ok(modified) = fs::metadata(component.command.get_program()).and_then(|metadata| metadata.modified()) {
        hash.update(format!("{modified:?}"));
    }
    hash.finalize()
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Terraform's provisioners call the local cloud by this name, and it starts its clusters with the program beside it.
fn install_cloud_command(environment: &Environment, tools: &Toolbox) -> Result<()> {
    let api_server = environment.path("bin").join(components::API_SERVER);
    // Linked anew each time: the pins may have changed.
    let unfinished = api_server.with_extension("new");
    if unfinished.symlink_metadata().is_ok() {
        fs::remove_file(&unfinished)?;
    }
    std::os::unix::fs::symlink(tools.program(components::API_SERVER)?, &unfinished)?;
    fs::rename(&unfinished, &api_server)?;
    let path = environment.path("bin/capt-cloud");
    let script = format!(
        "#!/bin/sh\nexec '{}' --env '{}' cloud \"$@\"\n",
        std::env::current_exe()?.display(),
        environment.name()
    );
    fs::write(&path, script)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// What must be there before anyone else starts.
async fn prepare_api(client: &Client, environment: &Environment, settings: &Settings, tools: &Toolbox) -> Result<()> {
    let mut crds = Vec::new();
    for file in tools.manifests("cluster-api", "core/config/crd/bases")? {
        for crd in manifests::read(&file)? {
            crds.push(with_core_webhook(crd, environment, settings)?);
        }
    }
    for file in tools.manifests("provider-terraform", "package/crds")? {
        crds.extend(manifests::read(&file)?);
    }
    // Where controllers run as pods they have to do with the least.
    let security = match settings.node() {
        Some(_) => json!({"pod-security.kubernetes.io/enforce": "restricted"}),
        None => json!({}),
    };
    let controllers = json!({"name": components::CONTROLLER_NAMESPACE, "labels": security});
    let namespaces = [json!({"name": STATE_NAMESPACE}), controllers]
        .map(|metadata| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}));
    // Core and the Terraform provider are not what is tested here: they may do everything.
    let mut permissions = vec![bind(
        None,
        "capt-environment",
        "cluster-admin",
        "Group",
        "capt:environment",
    )];
    if settings.node().is_some() {
        // The controllers' CRDs and permissions come with the chart.
        permissions.push(bind(
            None,
            node::KUBELET_CLIENT,
            "system:kubelet-api-admin",
            "User",
            node::KUBELET_CLIENT,
        ));
    } else {
        for file in manifests::files(&repository("crds"))? {
            crds.extend(manifests::read(&file)?);
        }
        permissions.extend(permissions_of_controllers()?);
    }
    manifests::apply(client, namespaces.to_vec()).await?;
    tokio::try_join!(
        manifests::apply_crds(client, crds),
        manifests::apply(client, permissions)
    )?;
    Ok(())
}

/// Each controller may do exactly what its own rules say, so that a missing permission shows at once.
fn permissions_of_controllers() -> Result<Vec<Value>> {
    let mut permissions = Vec::new();
    for own in components::all_controllers() {
        permissions.push(with_type("ClusterRole", rbac::cluster_role(own.name, own.everywhere))?);
        permissions.push(bind(None, own.name, own.name, "User", own.name));
        permissions.push(with_type(
            "Role",
            rbac::own_namespace_role(components::CONTROLLER_NAMESPACE, own.name),
        )?);
        permissions.push(bind(
            Some(components::CONTROLLER_NAMESPACE),
            own.name,
            own.name,
            "User",
            own.name,
        ));
    }
    Ok(permissions)
}

fn with_type(kind: &str, role: impl serde::Serialize) -> Result<Value> {
    let mut object = serde_json::to_value(role)?;
    if let Some(fields) = object.as_object_mut() {
        fields.insert("apiVersion".into(), "rbac.authorization.k8s.io/v1".into());
        fields.insert("kind".into(), kind.into());
    }
    Ok(object)
}

/// Gives a role to a user or group: a Role in its namespace, or a ClusterRole everywhere.
fn bind(namespace: Option<&str>, name: &str, role: &str, subject_kind: &str, subject: &str) -> Value {
    let scope = if namespace.is_some() { "" } else { "Cluster" };
    let mut binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": format!("{scope}RoleBinding"), "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": format!("{scope}Role"), "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": subject_kind, "name": subject}],
    });
    if let (Some(namespace), Some(metadata)) = (
        namespace,
        binding.pointer_mut("/metadata").and_then(Value::as_object_mut),
    ) {
        metadata.insert("namespace".into(), namespace.into());
    }
    binding
}

/// What needs core or the CRDs.
async fn finish_api(client: &Client, environment: &Environment, settings: &Settings, tools: &Toolbox) -> Result<()> {
    let mut objects = Vec::new();
    for file in tools.manifests("cluster-api", "core/config/webhook")? {
        if file.ends_with("manifests.yaml") {
            for mut configuration in manifests::read(&file)? {
                if let Some(name) = configuration.pointer_mut("/metadata/name") {
                    *name = format!("capi-{}", name.as_str().unwrap_or_default()).into();
                }
                for webhook in configuration
                    .pointer_mut("/webhooks")
                    .and_then(Value::as_array_mut)
                    .into_iter()
                    .flatten()
                {
                    let path = webhook
                        .pointer("/clientConfig/service/path")
                        .and_then(Value::as_str)
                        .context("a webhook of core has no path")?;
                    let reached = webhook_client(environment, settings, path)?;
                    if let Some(config) = webhook.pointer_mut("/clientConfig") {
                        *config = reached;
                    }
                }
                objects.push(configuration);
            }
        }
    }
    let backend = format!(
        "terraform {{\n  backend \"kubernetes\" {{\n    secret_suffix = \"capt\"\n    namespace     = \"{STATE_NAMESPACE}\"\n  }}\n}}\n"
    );
    for (api_version, kind) in [
        ("tf.upbound.io/v1beta1", "ProviderConfig"),
        ("tf.m.upbound.io/v1beta1", "ClusterProviderConfig"),
    ] {
        objects.push(json!({
            "apiVersion": api_version, "kind": kind, "metadata": {"name": "default"},
            "spec": {"pluginCache": false, "configuration": backend},
        }));
    }
    manifests::apply(client, objects).await
}

/// The templates of the local cloud, in the namespace that the examples are for.
pub(crate) async fn apply_templates(client: &Client) -> Result<()> {
    let mut objects = Vec::new();
    for file in manifests::files(&repository("docs/examples/local/templates"))? {
        objects.extend(manifests::read(&file)?);
    }
    manifests::apply(client, objects).await
}

/// Core's CRDs as its own installation has them: labelled, and with conversion by core.
fn with_core_webhook(mut crd: Value, environment: &Environment, settings: &Settings) -> Result<Value> {
    let versions = crd
        .pointer("/spec/versions")
        .and_then(Value::as_array)
        .map_or(0, Vec::len);
    let conversion = json!({
        "strategy": "Webhook",
        "webhook": {"clientConfig": webhook_client(environment, settings, "/convert")?, "conversionReviewVersions": ["v1"]},
    });
    if let Some(spec) = crd
        .pointer_mut("/spec")
        .and_then(Value::as_object_mut)
        .filter(|_| versions > 1)
    {
        spec.insert("conversion".into(), conversion);
    }
    if let Some(metadata) = crd.pointer_mut("/metadata").and_then(Value::as_object_mut) {
        metadata.insert(
            "labels".into(),
            json!({"cluster.x-k8s.io/provider": "cluster-api", "clusterctl.cluster.x-k8s.io": ""}),
        );
    }
    Ok(crd)
}

/// Core runs outside the cluster, so its webhooks are reached by address instead of through a Service.
fn webhook_client(environment: &Environment, settings: &Settings, path: &str) -> Result<Value> {
    let authority = base64::engine::general_purpose::STANDARD.encode(environment.authority()?.certificate());
    Ok(json!({"url": format!("https://127.0.0.1:{}{path}", settings.port(Port::CoreWebhook)?), "caBundle": authority}))
}

/// A file of this tree.
pub fn repository(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(relative)
}
