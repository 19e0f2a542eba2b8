//! A real Prometheus scrapes every pod, in the open and by TLS with a token, by the configuration that the Prometheus operator
//! makes of the chart's monitors.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use capt_e2e::components::CONTROLLER_NAMESPACE;
use capt_e2e::pki::Authority;
use capt_e2e::testing::prometheus::{self, DASHBOARDS, Prometheus, queries};
use capt_e2e::testing::{PATIENCE, create, objects, token};
use capt_e2e::up;
use kube::api::ListParams;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::discovery::Discovery;
use crate::operator::{Jobs, NAMESPACE, Operator, place};
use crate::site::{CONTROLLERS, Site};
use crate::wave::Wave;

/// The chart's monitors, as the operator names their jobs.
const SERVICES: &str = "serviceMonitor";
const PODS: &str = "podMonitor";
/// The Prometheus of docs/examples/monitoring, and its ServiceAccount.
const PROMETHEUS: &str = "capt";
const READER: &str = "prometheus";
/// Where a pod has its ServiceAccount's token.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
/// Where a Prometheus of the operator's has the certificate `ca.crt` of the Secret `capt-metrics`.
const CERTIFICATE: &str = "/etc/prometheus/certs/0_capt-system_capt-metrics_ca.crt";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a node: make test-chart"]
async fn a_prometheus_scrapes_every_pod() -> Result<()> {
    let site = Site::build("simulator").await?;
    let operator = Operator::start(&site).await?;
    let program = prometheus::program(site.scratch.environment.cache(), "prometheus")?;
    let program = program.context("the package prometheus cannot be had")?;
    let version = version(&program)?;
    operator.prometheus(PROMETHEUS, &version, &json!({})).await?;
    let discoverer = client_of_reader(&site).await?;

    site.install(&values(&json!({})))?;
    site.all_ready(2).await?;
    let port = |kind: &str, _: &str| json!({ "port": if kind == PODS { "http" } else { "metrics" } });
    let plain = wanted(&[SERVICES, PODS], port);
    let jobs = operator.jobs(PROMETHEUS, &plain).await?;
    let rules = rules(&site).await?;
    let groups = rules["groups"].as_array().context("no groups")?;
    operator.rules(PROMETHEUS, groups).await?;
    assert_labels_and_namespaces_choose(&operator, &version, &plain, groups).await?;

    let wave = Wave::new(&site, "scraped").await?;
    // One that came and went, and some that stay: the dashboards tell of both.
    let passing = wave.create("passing", 1, 0).await?;
    wave.available(&passing).await?;
    wave.delete(&passing).await?;
    wave.gone(&passing).await?;
    let names = wave.create("scraped", 3, 0).await?;
    wave.available(&names).await?;

    let files = tempfile::tempdir()?;
    let open = runnable(&discoverer, &jobs, files.path()).await?;
    // One after the other: whoever switches on both scrapes everything twice.
    scrape(&site, &program, &of(PODS, &open), &rules).await?;
    let prometheus = scrape(&site, &program, &of(SERVICES, &open), &rules).await?;
    let loaded = prometheus.rules().await?;
    let wanted_rules = groups
        .iter()
        .filter_map(|group| group["rules"].as_array())
        .flatten()
        .count();
    ensure!(
        wanted_rules > 0 && loaded.len() == wanted_rules,
        "{} of {wanted_rules} rules are loaded",
        loaded.len()
    );
    let firing = prometheus.query("ALERTS{alertstate=\"firing\"}").await?;
    ensure!(firing.is_empty(), "nothing is wrong, but: {firing:#?}");
    assert_dashboards_answer(&prometheus).await?;
    drop(prometheus);

    // By TLS, for those alone who may: with the Prometheus's own token, which only a ServiceMonitor can send.
    let secure = json!({
        "common": { "metrics": { "secure": true }, "podMonitor": { "enabled": false } },
        "metricsReaders": [{ "kind": "ServiceAccount", "name": READER, "namespace": NAMESPACE }],
    });
    site.install(&values(&secure))?;
    site.all_ready(2).await?;
    let unverified = |_: &str, _: &str| json!({ "port": "metrics", "scheme": "https", "tls": { "insecure_skip_verify": true }, "token file": TOKEN });
    let jobs = operator.jobs(PROMETHEUS, &wanted(&[SERVICES], unverified)).await?;
    let read = token(&site.client, NAMESPACE, READER).await?;
    place(files.path(), TOKEN, read.as_bytes())?;
    let mut secured = runnable(&discoverer, &jobs, files.path()).await?;
    secured.extend(strangers(&site, &discoverer, &jobs).await?);
    let prometheus = scrape(&site, &program, &secured, &rules).await?;
    assert_strangers_refused(&prometheus).await?;
    drop(prometheus);

    // With a certificate that can be verified, and a token that a PodMonitor can send, too.
    create_metrics_secrets(&site, &read).await?;
    let verified = json!({
        "common": { "metrics": {
            "secure": true, "certSecret": "capt-metrics", "tokenSecret": { "name": "prometheus-token" },
        } },
        "metricsReaders": [{ "kind": "ServiceAccount", "name": READER, "namespace": NAMESPACE }],
    });
    site.install(&values(&verified))?;
    site.all_ready(2).await?;
    let verified = |_: &str, controller: &str| {
        json!({
            "port": "metrics", "scheme": "https", "authorization": "Bearer",
            "tls": { "ca_file": CERTIFICATE, "server_name": format!("{controller}.capt-system.svc") },
        })
    };
    let jobs = operator.jobs(PROMETHEUS, &wanted(&[SERVICES, PODS], verified)).await?;
    operator.mount(PROMETHEUS, CERTIFICATE, files.path()).await?;
    let verified = runnable(&discoverer, &jobs, files.path()).await?;
    for kind in [SERVICES, PODS] {
        scrape(&site, &program, &of(kind, &verified), &rules).await?;
    }
    let rejections = operator.rejections().await?;
    ensure!(rejections.is_empty(), "{rejections:#?}");
    Ok(())
}

/// Values with everything that a Prometheus needs, and these changes.
fn values(changes: &Value) -> Value {
    let chosen = json!({ "enabled": true, "labels": { "release": "monitoring" } });
    let mut values = json!({
        "common": { "serviceMonitor": chosen, "podMonitor": chosen },
        "prometheusRule": chosen, "dashboards": { "enabled": true },
    });
    json_patch::merge(&mut values, changes);
    values
}

/// The version of a Prometheus: the operator writes configurations for one.
fn version(program: &Path) -> Result<String> {
    let said = Command::new(program).arg("--version").output()?.stdout;
    let said = String::from_utf8_lossy(&said);
    let mut words = said.split_whitespace().skip_while(|word| *word != "version");
    let version = words.nth(1).and_then(|version| version.split(['+', '~']).next());
    version
        .map(str::to_owned)
        .with_context(|| format!("no version: {said}"))
}

/// The API as the Prometheus of the example sees it.
async fn client_of_reader(site: &Site) -> Result<Client> {
    let directory = tempfile::tempdir()?;
    let kubeconfig = directory.path().join("kubeconfig");
    site.write_kubeconfig(&kubeconfig, NAMESPACE, READER).await?;
    up::client(&kubeconfig).await
}

/// A job for every controller and each of these monitors.
fn wanted(monitors: &[&str], details: impl Fn(&str, &str) -> Value) -> Jobs {
    let mut jobs = Jobs::new();
    for monitor in monitors {
        let role = if *monitor == PODS { "pod" } else { "endpointslice" };
        for controller in CONTROLLERS {
            let mut job = json!({ "role": role, "namespaces": [CONTROLLER_NAMESPACE], "path": "/metrics" });
            json_patch::merge(&mut job, &details(monitor, controller));
            jobs.insert(format!("{monitor}/{CONTROLLER_NAMESPACE}/{controller}/0"), job);
        }
    }
    jobs
}

/// A Prometheus that chooses by a label of its own finds the same; one that is told a wrong label, or no namespaces, which
/// means its own, finds nothing.
async fn assert_labels_and_namespaces_choose(
    operator: &Operator,
    version: &str,
    jobs: &Jobs,
    groups: &[Value],
) -> Result<()> {
    let selecting = |by: &str, selector: &Value| {
        let kinds = ["serviceMonitor", "podMonitor", "rule"];
        let fields = kinds.map(|kind| (format!("{kind}{by}"), selector.clone()));
        json!({ "spec": serde_json::Map::from_iter(fields) })
    };
    // A `null` takes the example's own label away.
    let labels = |labels: Value| selecting("Selector", &json!({ "matchLabels": labels }));
    let own = labels(json!({ "app.kubernetes.io/part-of": null, "release": "monitoring" }));
    let wrong = labels(json!({ "app.kubernetes.io/part-of": "cap" }));
    let nowhere = selecting("NamespaceSelector", &Value::Null);
    let nothing = Jobs::new();
    for (name, changes, jobs, groups) in [
        ("own-label", own, jobs, groups),
        ("wrong-label", wrong, &nothing, &[]),
        ("no-namespaces", nowhere, &nothing, &[]),
    ] {
        operator.prometheus(name, version, &changes).await?;
        operator.jobs(name, jobs).await?;
        operator.rules(name, groups).await?;
    }
    Ok(())
}

/// The jobs as a Prometheus can run them that cannot discover by itself, with the files of its pod below a directory.
async fn runnable(client: &Client, jobs: &[Value], files: &Path) -> Result<Vec<Value>> {
    let found = Discovery::new(client, CONTROLLER_NAMESPACE).await?;
    let mut runnable = Vec::new();
    for job in jobs {
        let mut job = job.clone();
        let fields = job.as_object_mut().context("a job without fields")?;
        let discovery = fields.remove("kubernetes_sd_configs").context("no discovery")?;
        let role = discovery[0]["role"].as_str().context("no role")?;
        fields.insert("static_configs".into(), found.targets(role)?.into());
        for file in ["/bearer_token_file", "/tls_config/ca_file"] {
            if let Some(path) = job.pointer_mut(file) {
                let inside = path.as_str().context("no path")?.trim_start_matches('/');
                *path = files.join(inside).to_string_lossy().into();
            }
        }
        runnable.push(job);
    }
    Ok(runnable)
}

/// The jobs that come of a kind of monitors.
fn of(monitor: &str, jobs: &[Value]) -> Vec<Value> {
    let of_monitor = |job: &&Value| job["job_name"].as_str().is_some_and(|name| name.starts_with(monitor));
    jobs.iter().filter(of_monitor).cloned().collect()
}

/// Runs the jobs until every pod was scraped.
async fn scrape(site: &Site, program: &Path, jobs: &[Value], rules: &Value) -> Result<Prometheus> {
    let mut prometheus = Prometheus::start(program, jobs, rules).await?;
    prometheus.wait(2 * CONTROLLERS.len()).await?;
    assert_all_up(site, &prometheus).await?;
    Ok(prometheus)
}

/// The same jobs with the token of somebody who was granted nothing.
async fn strangers(site: &Site, discoverer: &Client, jobs: &[Value]) -> Result<Vec<Value>> {
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "stranger" } });
    create(&site.client, Some(NAMESPACE), account).await?;
    let token = token(&site.client, NAMESPACE, "stranger").await?;
    let mut jobs = runnable(discoverer, jobs, Path::new("/")).await?;
    for job in &mut jobs {
        let name = format!("stranger/{}", job["job_name"].as_str().unwrap_or_default());
        // Under a name of its own: otherwise the two would write to the same series.
        let relabelings = job["relabel_configs"].as_array_mut().context("no relabelings")?;
        relabelings.push(json!({ "target_label": "job", "replacement": "stranger" }));
        let fields = job.as_object_mut().context("a job without fields")?;
        fields.remove("bearer_token_file");
        fields.insert("authorization".into(), json!({ "credentials": token }));
        fields.insert("job_name".into(), name.into());
    }
    Ok(jobs)
}

/// Every pod refuses them, and none has ever let one in.
async fn assert_strangers_refused(prometheus: &Prometheus) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let targets = prometheus.get("targets", &[("state", "active")]).await?;
        let told: Vec<&str> = targets["activeTargets"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|target| {
                let pool = target["scrapePool"].as_str();
                pool.is_some_and(|pool| pool.starts_with("stranger/"))
            })
            .filter_map(|target| target["lastError"].as_str())
            .collect();
        if told.len() == 2 * CONTROLLERS.len() && told.iter().all(|error| error.contains("403")) {
            break;
        }
        ensure!(Instant::now() < deadline, "strangers were told: {told:?}");
        // Nobody waited for their scrapes, of which one may also take too long.
        sleep(Duration::from_millis(500)).await;
    }
    let let_in = prometheus.query("max_over_time(up{job=\"stranger\"}[1h]) == 1").await?;
    ensure!(let_in.is_empty(), "strangers were let in: {let_in:#?}");
    Ok(())
}

/// A certificate for the names of all controllers' Services, with its authority; and a token for the monitors to send.
async fn create_metrics_secrets(site: &Site, token: &str) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let authority = Authority::open(directory.path(), "metrics")?;
    let names = CONTROLLERS.map(|controller| format!("{controller}.{CONTROLLER_NAMESPACE}.svc"));
    let pair = authority.server("metrics", &names.each_ref().map(String::as_str))?;
    let secret = |name: &str, content: Value| json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "stringData": content });
    let certificate = json!({
        "tls.crt": std::fs::read_to_string(pair.certificate)?, "tls.key": std::fs::read_to_string(pair.key)?,
        "ca.crt": authority.certificate(),
    });
    for secret in [
        secret("capt-metrics", certificate),
        secret("prometheus-token", json!({ "token": token })),
    ] {
        create(&site.client, Some(CONTROLLER_NAMESPACE), secret).await?;
    }
    Ok(())
}

/// The rules that the chart made.
async fn rules(site: &Site) -> Result<Value> {
    let rules = objects(
        &site.client,
        "monitoring.coreos.com/v1",
        "PrometheusRule",
        Some(CONTROLLER_NAMESPACE),
    );
    let rules = rules.list(&ListParams::default()).await?;
    let rule = rules.items.first().context("no PrometheusRule")?;
    Ok(rule.data["spec"].clone())
}

/// Every pod of every controller, and nothing else. What counts is the last minute, in which a single scrape may have failed: it has
/// but a second.
async fn assert_all_up(site: &Site, prometheus: &Prometheus) -> Result<()> {
    let up = prometheus.query("max_over_time(up[1m]) == 1").await?;
    let scraped: BTreeSet<&str> = up
        .iter()
        .filter_map(|series| series["metric"]["pod"].as_str())
        .collect();
    let mut pods = BTreeSet::new();
    for controller in CONTROLLERS {
        pods.extend(site.pods_of(controller).await?.iter().map(ResourceExt::name_any));
    }
    ensure!(scraped.iter().eq(pods.iter()), "{scraped:?} instead of {pods:?}");
    // By the labels that alerts and dashboards choose by.
    let wanted = CONTROLLERS.map(|controller| [controller, CONTROLLER_NAMESPACE]);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let leading = prometheus
            .query("sum by (job, namespace) (last_over_time(leader_election_master_status[1m])) == 1")
            .await?;
        let jobs: BTreeSet<[&str; 2]> = leading
            .iter()
            .map(|series| ["job", "namespace"].map(|label| series["metric"][label].as_str().unwrap_or_default()))
            .collect();
        if jobs == wanted.into() {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "not one leader each: {leading:?}");
        // Pods are ready, and scraped, before one of them leads.
        sleep(Duration::from_millis(500)).await;
    }
}

/// Clusters came up, so every panel has something to show but those of troubles that there were none of.
async fn assert_dashboards_answer(prometheus: &Prometheus) -> Result<()> {
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
    for dashboard in DASHBOARDS {
        let (troubles, others): (Vec<_>, Vec<_>) = queries(dashboard)?.into_iter().partition(of_trouble);
        prometheus.silent(&troubles, &CONTROLLERS).await?;
        prometheus.answers(&others, &CONTROLLERS).await?;
    }
    Ok(())
}
