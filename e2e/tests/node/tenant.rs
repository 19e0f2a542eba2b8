//! A team of its own: the controller of Tenants in a pod, with the permissions that the chart gives, and an administrator with those
//! that it passes on.

use anyhow::Result;
use capt_e2e::components::TENANT_CONTROLLER;
use capt_e2e::testing::{create, is_true, objects, until, until_all_gone, until_may_create};
use kube::api::DeleteParams;
use serde_json::json;

use crate::site::Site;
use crate::wave::Wave;

const GROUP: &str = "team-a";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a node: make test-chart"]
async fn a_team_gets_its_namespaces_and_makes_its_own_clusters() -> Result<()> {
    let site = Site::build("simulator").await?;
    let values = json!({ "common": { "replicas": 1 }, "controllers": { "tenant": { "enabled": true } } });
    site.install(&values)?;
    site.all_ready(1).await?;
    site.ready(TENANT_CONTROLLER, 1).await?;

    let tenants = objects(&site.client, "multitenancy.capt.dev/v1beta1", "Tenant", None);
    let tenant = json!({
        "apiVersion": "multitenancy.capt.dev/v1beta1", "kind": "Tenant", "metadata": { "name": "team-a" },
        "spec": { "namespaces": ["dev"], "admin": { "kind": "Group", "name": GROUP } },
    });
    create(&site.client, None, tenant).await?;
    until(&tenants, "team-a", "Ready", |tenant| is_true(tenant, "Ready")).await?;

    // What the chart passes on reaches the role when the controller manager has put them together.
    let role = objects(&site.client, "rbac.authorization.k8s.io/v1", "ClusterRole", None);
    until(&role, "admin", "extended", |role| {
        role.data.to_string().contains("captcontrolplanes")
    })
    .await?;
    for (group, resource, namespace, expected) in [
        ("cluster.x-k8s.io", "clusters", "team-a-dev", true),
        ("infrastructure.cluster.x-k8s.io", "captclusters", "team-a-dev", true),
        ("controlplane.cluster.x-k8s.io", "captcontrolplanes", "team-a-dev", true),
        // Whoever writes Terraform runs it with the provider's credentials.
        (
            "infrastructure.cluster.x-k8s.io",
            "workspacetemplates",
            "team-a-dev",
            false,
        ),
        (
            "infrastructure.cluster.x-k8s.io",
            "workspacetemplateapplies",
            "team-a-dev",
            false,
        ),
        ("", "namespaces", "team-a-dev", false),
        ("cluster.x-k8s.io", "clusters", "default", false),
    ] {
        until_may_create(&site.client, GROUP, (group, resource, namespace), expected).await?;
    }

    let wave = Wave::in_namespace(&site, "team-a-dev").await?;
    let names = wave.create("own", 2, 1).await?;
    wave.available(&names).await?;
    tenants.delete("team-a", &DeleteParams::background()).await?;
    // Its Clusters go first, and that takes as long as it takes.
    wave.gone(&names).await?;
    until_all_gone(&tenants, &["team-a"]).await?;
    site.requests(TENANT_CONTROLLER).map(drop)
}
