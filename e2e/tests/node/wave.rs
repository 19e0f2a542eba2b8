//! Many clusters at once, on the simulator.

use anyhow::{Context, Result, ensure};
use base64::Engine;
use capt_e2e::environment::kubeconfig;
use capt_e2e::testing::bench::{CONTROL_PLANE, CORE, INFRASTRUCTURE, TERRAFORM};
use capt_e2e::testing::history::History;
use capt_e2e::testing::{create, is_true, objects};
use capt_e2e::{manifests, up};
use futures::future::try_join_all;
use kube::api::{DeleteParams, DynamicObject, ListParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::site::Site;

/// Clusters of one namespace. Each claims the management cluster itself as what Terraform made, so that Cluster API has
/// something to connect to.
pub(crate) struct Wave {
    client: Client,
    pub(crate) namespace: String,
    access: Value,
}

impl Wave {
    /// In a namespace of its own.
    pub(crate) async fn new(site: &Site, namespace: &str) -> Result<Self> {
        site.make_namespace(namespace).await?;
        Self::in_namespace(site, namespace).await
    }

    /// In a namespace that is there, to which it brings templates for the simulator.
    pub(crate) async fn in_namespace(site: &Site, namespace: &str) -> Result<Self> {
        let environment = &site.scratch.environment;
        let settings = environment.settings()?;
        let (server, authority) = (settings.api_server()?, environment.authority()?);
        let wave = Self {
            client: site.client.clone(),
            namespace: namespace.to_owned(),
            access: json!({
                "cluster_endpoint": server,
                "cluster_certificate_authority_data":
                    base64::engine::general_purpose::STANDARD.encode(authority.certificate()),
                "kubeconfig": kubeconfig(&server, authority.certificate(), "admin", settings.token("admin")?),
            }),
        };
        for file in manifests::files(&up::repository("e2e/simulator-templates"))? {
            for mut template in manifests::read(&file)? {
                *template.pointer_mut("/metadata/namespace").context("no namespace")? = json!(namespace);
                create(&wave.client, Some(namespace), template).await?;
            }
        }
        Ok(wave)
    }

    pub(crate) fn ours(&self, api_version: &str, kind: &str) -> Api<DynamicObject> {
        objects(&self.client, api_version, kind, Some(&self.namespace))
    }

    /// Creates clusters, all at the same time, whose network takes this long.
    pub(crate) async fn create(&self, prefix: &str, count: usize, seconds: u32) -> Result<Vec<String>> {
        let names: Vec<String> = (0..count).map(|number| format!("{prefix}-{number:02}")).collect();
        try_join_all(
            names
                .iter()
                .flat_map(|name| self.cluster(name, seconds))
                .map(|manifest| create(&self.client, Some(&self.namespace), manifest)),
        )
        .await?;
        Ok(names)
    }

    fn cluster(&self, name: &str, seconds: u32) -> [Value; 3] {
        let reference = |group: &str, kind: &str| json!({ "apiGroup": group, "kind": kind, "name": name });
        [
            json!({
                "apiVersion": INFRASTRUCTURE, "kind": "CAPTCluster", "metadata": { "name": name },
                "spec": {
                    "region": "eu-west-1", "vpcTemplateRef": { "name": "sim-vpc" },
                    "variables": { "slow_seconds": seconds.to_string() },
                },
            }),
            json!({
                "apiVersion": CONTROL_PLANE, "kind": "CAPTControlPlane", "metadata": { "name": name },
                "spec": {
                    "version": "1.31", "workspaceTemplateRef": { "name": "sim-eks" },
                    "controlPlaneConfig": { "region": "eu-west-1" }, "variables": self.access,
                },
            }),
            json!({
                "apiVersion": CORE, "kind": "Cluster", "metadata": { "name": name },
                "spec": {
                    "infrastructureRef": reference("infrastructure.cluster.x-k8s.io", "CAPTCluster"),
                    "controlPlaneRef": reference("controlplane.cluster.x-k8s.io", "CAPTControlPlane"),
                },
            }),
        ]
    }

    /// Waits until Cluster API calls every one of them Available, and finds two Workspaces of each.
    pub(crate) async fn available(&self, names: &[String]) -> Result<()> {
        try_join_all(names.iter().map(|name| async move {
            let mut cluster = History::begin(self.ours(CORE, "Cluster"), name).await?;
            cluster
                .until("Available", |cluster| is_true(cluster, "Available"))
                .await
        }))
        .await?;
        let workspaces = self.workspaces().await?;
        ensure!(workspaces.len() == 2 * names.len(), "{workspaces:?}");
        Ok(())
    }

    async fn workspaces(&self) -> Result<Vec<String>> {
        let all = objects(&self.client, TERRAFORM, "Workspace", None);
        let found = all.list(&ListParams::default()).await?;
        Ok(found.iter().map(ResourceExt::name_any).collect())
    }

    pub(crate) async fn delete(&self, names: &[String]) -> Result<()> {
        let clusters = self.ours(CORE, "Cluster");
        try_join_all(
            names
                .iter()
                .map(|name| async { clusters.delete(name, &DeleteParams::background()).await }),
        )
        .await?;
        Ok(())
    }

    /// Waits until every one of them is gone, and finds nothing left.
    pub(crate) async fn gone(&self, names: &[String]) -> Result<()> {
        try_join_all(names.iter().map(|name| async move {
            History::begin(self.ours(CORE, "Cluster"), name)
                .await?
                .until_gone()
                .await
        }))
        .await?;
        let workspaces = self.workspaces().await?;
        ensure!(workspaces.is_empty(), "{workspaces:?} are left");
        for kind in ["CAPTCluster", "WorkspaceTemplateApply"] {
            let left = self.ours(INFRASTRUCTURE, kind).list(&ListParams::default()).await?;
            ensure!(left.items.is_empty(), "{} {kind}s are left", left.items.len());
        }
        Ok(())
    }
}
