//! Many clusters at once, on the simulator.

use anyhow::{Result, ensure};
use capt_e2e::testing::bench::{CORE, INFRASTRUCTURE, TERRAFORM};
use capt_e2e::testing::history::History;
use capt_e2e::testing::{create, is_true, objects, simulated};
use futures::future::try_join_all;
use kube::api::{DeleteParams, DynamicObject, ListParams};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

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
        let wave = Self {
            client: site.client.clone(),
            namespace: namespace.to_owned(),
            access: simulated::access(environment, &environment.settings()?.api_server()?)?,
        };
        for template in simulated::templates(namespace)? {
            create(&wave.client, Some(namespace), template).await?;
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
                .flat_map(|name| simulated::cluster(name, name, name, &self.access, seconds))
                .map(|manifest| create(&self.client, Some(&self.namespace), manifest)),
        )
        .await?;
        Ok(names)
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
