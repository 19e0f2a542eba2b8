//! A real Prometheus scrapes every pod, in the open and by TLS with a token. Debian's is built without the discovery of
//! pods, so the test hands it what that would find: their addresses, labels and named ports.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use capt_e2e::components::CONTROLLER_NAMESPACE;
use capt_e2e::manifests;
use capt_e2e::testing::create;
use capt_e2e::testing::prometheus::{self, DASHBOARDS, Prometheus, filled_in, queries};
use capt_e2e::tools::Toolbox;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::site::{CONTROLLERS, Site};
use crate::wave::Wave;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a node: make test-chart"]
async fn a_prometheus_scrapes_every_pod() -> Result<()> {
    let site = Site::build("simulator").await?;
    apply_operator_crds(&site).await?;
    let values = json!({
        "common": { "serviceMonitor": { "enabled": true }, "podMonitor": { "enabled": true } },
        "prometheusRule": { "enabled": true }, "dashboards": { "enabled": true },
    });
    site.install(&values)?;
    site.all_ready(2).await?;
    let rules = rules(&site).await?;
    let wave = Wave::new(&site, "scraped").await?;
    // One that came and went, and some that stay: the dashboards tell of both.
    let passing = wave.create("passing", 1, 0).await?;
    wave.available(&passing).await?;
    wave.delete(&passing).await?;
    wave.gone(&passing).await?;
    let names = wave.create("scraped", 3, 0).await?;
    wave.available(&names).await?;

    let program = prometheus::program(site.scratch.environment.cache(), "prometheus")?;
    let program = program.context("the package prometheus cannot be had")?;
    let open = json!({ "job_name": "pods", "static_configs": targets(&site, "http").await? });
    let mut prometheus = Prometheus::start(&program, &[open], &rules).await?;
    prometheus.wait(2 * CONTROLLERS.len()).await?;
    assert_all_up(&site, &prometheus).await?;

    let loaded = prometheus.rules().await?;
    let wanted = rules["groups"].as_array().into_iter().flatten();
    let wanted = wanted.filter_map(|group| group["rules"].as_array()).flatten().count();
    ensure!(
        wanted > 0 && loaded.len() == wanted,
        "{} of {wanted} rules are loaded",
        loaded.len()
    );
    let firing = prometheus.query("ALERTS{alertstate=\"firing\"}").await?;
    ensure!(firing.is_empty(), "nothing is wrong, but: {firing:#?}");
    assert_dashboards_answer(&prometheus).await?;
    drop(prometheus);

    // The same by TLS, for those alone who may.
    let reader = account(&site, "reader").await?;
    let stranger = account(&site, "stranger").await?;
    let secure = json!({
        "common": { "metrics": { "secure": true } },
        "metricsReaders": [{ "kind": "ServiceAccount", "name": "reader", "namespace": "default" }],
    });
    site.install(&secure)?;
    site.all_ready(2).await?;
    let found = targets(&site, "metrics").await?;
    // Under a name of its own: otherwise the two would write to the same series.
    let elsewhere = json!([{ "target_label": "job", "replacement": "stranger" }]);
    let job = |name: &str, token: &str, relabelings: &Value| {
        json!({
            "job_name": name, "scheme": "https", "tls_config": { "insecure_skip_verify": true },
            "authorization": { "credentials": token }, "static_configs": found,
            "relabel_configs": relabelings,
        })
    };
    let mut prometheus = Prometheus::start(
        &program,
        &[
            job("reader", &reader, &json!([])),
            job("stranger", &stranger, &elsewhere),
        ],
        &rules,
    )
    .await?;
    prometheus.wait(2 * CONTROLLERS.len()).await?;
    assert_all_up(&site, &prometheus).await?;
    let targets = prometheus.get("targets", &[("state", "active")]).await?;
    let refusals: Vec<&str> = targets["activeTargets"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|target| target["scrapePool"] == "stranger")
        .filter_map(|target| target["lastError"].as_str())
        .collect();
    ensure!(
        refusals.len() == 2 * CONTROLLERS.len() && refusals.iter().all(|error| error.contains("403")),
        "a stranger was told: {refusals:?}"
    );
    Ok(())
}

/// The pods of CAPT at their ports of this name, under the labels that the chart's monitors give.
async fn targets(site: &Site, port: &str) -> Result<Vec<Value>> {
    let ours = ListParams::default().labels("app.kubernetes.io/part-of=capt");
    let mut targets = Vec::new();
    for pod in site.pods().list(&ours).await? {
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
        let named = ports.find(|known| known.name.as_deref() == Some(port));
        let address = pod.status.as_ref().and_then(|status| status.pod_ip.as_deref());
        // A pod of a Job has no such port.
        if let (Some(named), Some(address)) = (named, address) {
            targets.push(json!({
                "targets": [format!("{address}:{}", named.container_port)],
                "labels": {
                    "job": pod.labels().get("app.kubernetes.io/name"), "namespace": CONTROLLER_NAMESPACE,
                    "pod": pod.name_any(), "endpoint": port,
                },
            }));
        }
    }
    Ok(targets)
}

/// The rules that the API server has, as a Prometheus operator would hand them on.
async fn rules(site: &Site) -> Result<Value> {
    let rules = capt_e2e::testing::objects(
        &site.client,
        "monitoring.coreos.com/v1",
        "PrometheusRule",
        Some(CONTROLLER_NAMESPACE),
    );
    let rules = rules.list(&ListParams::default()).await?;
    let rule = rules.items.first().context("no PrometheusRule")?;
    Ok(rule.data["spec"].clone())
}

async fn apply_operator_crds(site: &Site) -> Result<()> {
    let tools = Toolbox::for_chart(site.scratch.environment.cache()).await?;
    let mut crds = Vec::new();
    for file in tools.manifests("prometheus-operator", "example/prometheus-operator-crd")? {
        crds.extend(manifests::read(&file)?);
    }
    manifests::apply_crds(&site.client, crds).await
}

/// A ServiceAccount's token.
async fn account(site: &Site, name: &str) -> Result<String> {
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": name } });
    create(&site.client, Some("default"), account).await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(site.client.clone(), "default");
    let request = TokenRequest {
        spec: Some(TokenRequestSpec::default()),
        ..TokenRequest::default()
    };
    let made = accounts
        .create_token_request(name, &PostParams::default(), &request)
        .await?;
    made.status.and_then(|status| status.token).context("no token")
}

/// Every pod of every controller, and nothing else.
async fn assert_all_up(site: &Site, prometheus: &Prometheus) -> Result<()> {
    let up = prometheus.query("up == 1").await?;
    let scraped: BTreeSet<&str> = up
        .iter()
        .filter_map(|series| series["metric"]["pod"].as_str())
        .collect();
    let mut pods = BTreeSet::new();
    for controller in CONTROLLERS {
        pods.extend(site.pods_of(controller).await?.iter().map(ResourceExt::name_any));
    }
    ensure!(scraped.iter().eq(pods.iter()), "{scraped:?} instead of {pods:?}");
    let leading = prometheus.query("sum by (job) (leader_election_master_status)").await?;
    ensure!(leading.len() == CONTROLLERS.len(), "{leading:?}");
    ensure!(
        leading.iter().all(|series| series["value"][1] == "1"),
        "not one leader each: {leading:?}"
    );
    Ok(())
}

/// Clusters came up, so every panel has something to show but those of troubles that there were none of.
async fn assert_dashboards_answer(prometheus: &Prometheus) -> Result<()> {
    let mut silent = Vec::new();
    for dashboard in DASHBOARDS {
        for query in queries(dashboard)? {
            let query = filled_in(&query);
            let mut answers = 0;
            for controller in CONTROLLERS {
                answers += prometheus.query(&query.replace("$job", controller)).await?.len();
            }
            if answers == 0 {
                silent.push(format!("{dashboard}: {query}"));
            }
        }
    }
    let of_trouble = |query: &String| {
        let query = query.to_lowercase();
        [
            "fail",
            "missed",
            "trouble",
            "refused",
            "error",
            "unreadable",
            "deadline",
        ]
        .iter()
        .any(|word| query.contains(word))
    };
    let unexpected: Vec<&String> = silent.iter().filter(|query| !of_trouble(query)).collect();
    ensure!(unexpected.is_empty(), "no answer to {unexpected:#?}");
    Ok(())
}
