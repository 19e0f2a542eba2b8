//! Clusters for the Workspace simulator: their templates, their manifests, and what Terraform would still have to destroy.

use anyhow::{Context, Result};
use base64::Engine;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::bench::{CONTROL_PLANE, CORE, INFRASTRUCTURE};
use crate::components::STATE_NAMESPACE;
use crate::environment::{Environment, kubeconfig};
use crate::{manifests, up};

/// What the EKS template asks for. Core finds something to connect to when the server is the management cluster itself.
pub fn access(environment: &Environment, server: &str) -> Result<Value> {
    let authority = environment.authority()?;
    let authority = authority.certificate();
    let settings = environment.settings()?;
    Ok(json!({
        "cluster_endpoint": server,
        "cluster_certificate_authority_data": base64::engine::general_purpose::STANDARD.encode(authority),
        "kubeconfig": kubeconfig(server, authority, "admin", settings.token("admin")?),
    }))
}

/// The templates sim-vpc and sim-eks, for this namespace.
pub fn templates(namespace: &str) -> Result<Vec<Value>> {
    let mut templates = Vec::new();
    for file in manifests::files(&up::repository("e2e/simulator-templates"))? {
        for mut template in manifests::read(&file)? {
            *template.pointer_mut("/metadata/namespace").context("no namespace")? = json!(namespace);
            templates.push(template);
        }
    }
    Ok(templates)
}

/// A cluster from these templates, whose network takes `seconds` to come up.
pub fn cluster(name: &str, network: &str, control_plane: &str, access: &Value, seconds: u32) -> [Value; 3] {
    let reference = |group: &str, kind: &str, name: &str| json!({ "apiGroup": group, "kind": kind, "name": name });
    [
        json!({
            "apiVersion": INFRASTRUCTURE, "kind": "CAPTCluster", "metadata": { "name": network },
            "spec": {
                "region": "eu-west-1", "vpcTemplateRef": { "name": "sim-vpc" },
                "variables": { "slow_seconds": seconds.to_string() },
            },
        }),
        json!({
            "apiVersion": CONTROL_PLANE, "kind": "CAPTControlPlane", "metadata": { "name": control_plane },
            "spec": {
                "version": "1.31", "workspaceTemplateRef": { "name": "sim-eks" },
                "controlPlaneConfig": { "region": "eu-west-1" }, "variables": access,
            },
        }),
        json!({
            "apiVersion": CORE, "kind": "Cluster", "metadata": { "name": name },
            "spec": {
                "infrastructureRef": reference("infrastructure.cluster.x-k8s.io", "CAPTCluster", network),
                "controlPlaneRef": reference("controlplane.cluster.x-k8s.io", "CAPTControlPlane", control_plane),
            },
        }),
    ]
}

/// The Terraform states in which something stands that would have to be destroyed.
pub async fn states_with_resources(client: &Client) -> Result<Vec<String>> {
    let states: Api<Secret> = Api::namespaced(client.clone(), STATE_NAMESPACE);
    let mut found = Vec::new();
    for secret in states.list(&ListParams::default().labels("tfstate=true")).await? {
        let data = secret.data.as_ref().and_then(|data| data.get("tfstate"));
        let state: Value = serde_json::from_slice(&data.context("a state without contents")?.0)?;
        let resources = state.get("resources").and_then(Value::as_object);
        if resources.is_some_and(|resources| !resources.is_empty()) {
            found.push(secret.name_any());
        }
    }
    Ok(found)
}
