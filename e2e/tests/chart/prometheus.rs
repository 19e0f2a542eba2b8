//! Prometheus itself, from the distribution's package: it judges the alerts, scrapes the controllers, and answers the dashboards.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use capt_api::names::Manager;
use capt_e2e::environment::Port;
use capt_e2e::testing::{self, create, objects, until};
use capt_runtime::metrics::Metrics;
use kube::api::{DeleteParams, DynamicObject};
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::helm::{Helm, repository};

/// Finds a program of the package `prometheus`, and unpacks the package into the cache where it is not installed. `None`,
/// loudly, where there is none to be had: that machine cannot tell whether the alerts work.
fn program(name: &str) -> Result<Option<PathBuf>> {
    let search = std::env::var_os("PATH").unwrap_or_default();
    let installed = std::env::split_paths(&search)
        .map(|directory| directory.join(name))
        .find(|path| path.is_file());
    if installed.is_some() {
        return Ok(installed);
    }
    let unpacked = testing::environment()?.cache().join("prometheus-package");
    let path = unpacked.join("usr/bin").join(name);
    if !path.is_file() && unpack(&unpacked).is_err() {
        // Not by a macro, whose output the test harness keeps to itself.
        writeln!(
            std::io::stderr(),
            "\nSKIPPED: {name} is not installed, and its package cannot be fetched. Alerts and dashboards are NOT tested.\n"
        )?;
        return Ok(None);
    }
    Ok(Some(path))
}

/// Fetches the package without installing it, which would start a service.
fn unpack(target: &Path) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let run = |program: &str, arguments: &[&str]| -> Result<()> {
        let output = Command::new(program)
            .args(arguments)
            .current_dir(directory.path())
            .output()?;
        ensure!(
            output.status.success(),
            "{program}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    };
    if run("apt-get", &["download", "prometheus"]).is_err() {
        run("apt-get", &["update"])?;
        run("apt-get", &["download", "prometheus"])?;
    }
    let package = std::fs::read_dir(directory.path())?
        .next()
        .context("no package was fetched")??
        .path();
    let unfinished = target.with_extension("unpacking");
    let paths = [&package, &unfinished].map(|path| path.to_string_lossy().into_owned());
    run("dpkg-deb", &["-x", &paths[0], &paths[1]])?;
    // Another test may have been faster.
    if std::fs::rename(&unfinished, target).is_err() {
        std::fs::remove_dir_all(&unfinished)?;
    }
    Ok(())
}

/// The rules that the chart makes, as a file of Prometheus.
async fn rules() -> Result<Value> {
    let rendered = Helm::new()
        .await?
        .render(&json!({ "prometheusRule": { "enabled": true } }))?;
    let mut rules = rendered.of_kind("PrometheusRule");
    Ok(rules.next().context("no PrometheusRule")?["spec"].clone())
}

fn alerts(rules: &Value) -> BTreeSet<String> {
    let groups = rules["groups"].as_array().into_iter().flatten();
    let rules = groups.filter_map(|group| group["rules"].as_array()).flatten();
    rules
        .filter_map(|rule| rule["alert"].as_str())
        .map(str::to_owned)
        .collect()
}

#[tokio::test]
async fn alerts_fire_when_they_should_and_only_then() -> Result<()> {
    let Some(promtool) = program("promtool")? else {
        return Ok(());
    };
    let directory = tempfile::tempdir()?;
    std::fs::write(directory.path().join("rules.yaml"), rules().await?.to_string())?;
    std::fs::copy(
        repository("e2e/tests/chart/alerts.yaml"),
        directory.path().join("tests.yaml"),
    )?;
    for arguments in [["check", "rules", "rules.yaml"], ["test", "rules", "tests.yaml"]] {
        let output = Command::new(&promtool)
            .args(arguments)
            .current_dir(directory.path())
            .output()?;
        let said = [output.stdout, output.stderr].concat();
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    }
    Ok(())
}

#[tokio::test]
async fn every_alert_is_tested_both_ways_and_has_its_page() -> Result<()> {
    let text = std::fs::read_to_string(repository("e2e/tests/chart/alerts.yaml"))?;
    let tests: Value = serde_saphyr::from_str(&text)?;
    let cases: Vec<&Value> = tests["tests"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|test| test["alert_rule_test"].as_array())
        .flatten()
        .collect();
    let tested = |firing: bool| -> BTreeSet<String> {
        let fires = |case: &&&Value| case["exp_alerts"].as_array().is_some_and(|alerts| !alerts.is_empty()) == firing;
        cases
            .iter()
            .filter(fires)
            .filter_map(|case| case["alertname"].as_str())
            .map(str::to_owned)
            .collect()
    };
    let alerts = alerts(&rules().await?);
    ensure!(
        tested(true) == alerts,
        "firing: {:?}",
        tested(true).symmetric_difference(&alerts)
    );
    ensure!(
        tested(false) == alerts,
        "not firing: {:?}",
        tested(false).symmetric_difference(&alerts)
    );

    let mut pages = BTreeSet::new();
    for entry in std::fs::read_dir(repository("docs/runbooks"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        pages.extend(
            name.strip_suffix(".md")
                .filter(|name| *name != "README")
                .map(str::to_owned),
        );
    }
    ensure!(pages == alerts, "pages: {:?}", pages.symmetric_difference(&alerts));
    Ok(())
}

/// A Prometheus that scrapes the controllers of the environment, under the labels that the chart's monitors give.
struct Prometheus {
    process: tokio::process::Child,
    address: String,
    directory: tempfile::TempDir,
}

impl Prometheus {
    async fn start(program: &Path, targets: &[(String, String)]) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        std::fs::write(directory.path().join("rules.yaml"), rules().await?.to_string())?;
        let jobs: Vec<Value> = targets
            .iter()
            .map(|(controller, address)| {
                json!({
                    "job_name": controller,
                    "static_configs": [{
                        "targets": [address],
                        "labels": { "namespace": "capt-system", "pod": format!("{controller}-0"), "endpoint": "metrics" },
                    }],
                })
            })
            .collect();
        let config = json!({
            "global": { "scrape_interval": "1s", "evaluation_interval": "1s" },
            "rule_files": ["rules.yaml"], "scrape_configs": jobs,
        });
        std::fs::write(directory.path().join("prometheus.yml"), config.to_string())?;
        // Free at this moment; Prometheus cannot choose a port by itself and say which.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let process = tokio::process::Command::new(program)
            .arg("--config.file=prometheus.yml")
            .arg("--storage.tsdb.path=data")
            .arg(format!("--web.listen-address={address}"))
            .current_dir(directory.path())
            .stdout(std::fs::File::create(directory.path().join("log"))?)
            .stderr(std::fs::File::create(directory.path().join("errors"))?)
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self {
            process,
            address,
            directory,
        })
    }

    /// What the HTTP API answers.
    async fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Value> {
        let query: Vec<String> = query
            .iter()
            .map(|(key, value)| format!("{key}={}", encoded(value)))
            .collect();
        let text = get(&self.address, &format!("/api/v1/{path}?{}", query.join("&"))).await?;
        let answer: Value = serde_json::from_str(&text).with_context(|| format!("{path} {query:?}: {text}"))?;
        ensure!(answer["status"] == "success", "{path} {query:?}: {answer}");
        Ok(answer["data"].clone())
    }

    /// The series that a query gives.
    async fn query(&self, expression: &str) -> Result<Vec<Value>> {
        let data = self.get("query", &[("query", expression)]).await?;
        Ok(data["result"].as_array().cloned().unwrap_or_default())
    }

    /// Waits until every target was scraped a few times, so that there are rates. Nobody tells when that is.
    async fn wait(&mut self, targets: usize) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let scraped = self.query("count_over_time(up[1m]) >= 4 and up == 1").await;
            if scraped.as_ref().is_ok_and(|series| series.len() == targets) {
                return Ok(());
            }
            let ended = self.process.try_wait()?;
            if ended.is_some() || Instant::now() > deadline {
                let errors = std::fs::read_to_string(self.directory.path().join("errors"))?;
                bail!("Prometheus does not scrape all of {targets} targets: {scraped:?}\n{errors}");
            }
            sleep(Duration::from_millis(500)).await;
        }
    }
}

/// The body of an answer by plain HTTP.
async fn get(address: &str, path: &str) -> Result<String> {
    let client = Client::try_from(Config::new(format!("http://{address}").parse()?))?;
    Ok(client.request_text(http::Request::get(path).body(Vec::new())?).await?)
}

fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

/// The queries of a dashboard.
fn queries(dashboard: &str) -> Result<Vec<String>> {
    let path = repository(&format!("charts/capt/files/dashboards/{dashboard}.json"));
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    let panels = dashboard["panels"].as_array().context("no panels")?;
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    Ok(targets
        .filter_map(|target| target["expr"].as_str())
        .map(str::to_owned)
        .collect())
}

/// The metrics that an expression names: every word before a brace.
fn metrics_in(expression: &str) -> Vec<&str> {
    let words = expression.split('{').filter_map(|part| {
        let word = part.rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_').next()?;
        (!word.is_empty()).then_some(word)
    });
    // The last part stands after the last brace.
    let count = expression.matches('{').count();
    words.take(count).collect()
}

/// Where the controllers of the environment serve their metrics.
fn targets() -> Result<Vec<(String, String)>> {
    let settings = testing::environment()?.settings()?;
    let ports = [
        (Manager::Cluster, Port::ClusterController),
        (Manager::ControlPlane, Port::ControlPlaneController),
        (Manager::Endpoint, Port::EndpointController),
        (Manager::Secrets, Port::SecretsController),
        (Manager::Workspace, Port::WorkspaceController),
    ];
    let target = |(controller, port): (Manager, Port)| {
        Ok((controller.to_string(), format!("127.0.0.1:{}", settings.port(port)?)))
    };
    ports.into_iter().map(target).collect()
}

/// Everything that the controllers expose once something has happened: what they do now, and what waits for an event.
async fn known_metrics() -> Result<String> {
    let metrics = Metrics::new("test")?;
    let lives = metrics.lives();
    lives.left_phase("CAPTCluster", "Creating", jiff::SignedDuration::ZERO);
    lives.became_ready("CAPTCluster", jiff::SignedDuration::ZERO);
    lives.missed_deadline("CAPTCluster", "vpcReadyTimeout");
    let mut text = metrics.render()?;
    for (_, address) in targets()? {
        text.push_str(&get(&address, "/metrics").await?);
    }
    Ok(text)
}

/// An apply that gets into trouble, for the metrics that count it.
async fn make_trouble() -> Result<()> {
    let vars = json!({ "vars": [{ "key": "a", "value": "${missing}" }] });
    troubled("chart-trouble", vars, "False/UnresolvedVariable").await?;
    Ok(())
}

/// The applies of a namespace of its own, with one, `a`, that is in trouble.
async fn troubled(namespace: &str, parameters: Value, says: &str) -> Result<Api<DynamicObject>> {
    let client = testing::client().await?;
    let namespace = testing::namespace(&client, namespace).await?;
    let mut template = json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "WorkspaceTemplate", "metadata": { "name": "t" },
        "spec": { "template": { "spec": { "forProvider": { "source": "Inline", "module": "output \"a\" { value = var.a }" } } } },
    });
    for (field, value) in parameters.as_object().into_iter().flatten() {
        template["spec"]["template"]["spec"]["forProvider"][field] = value.clone();
    }
    let apply = json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "WorkspaceTemplateApply", "metadata": { "name": "a" },
        "spec": { "templateRef": { "name": "t" }, "variables": { "code": "a b" } },
    });
    for object in [template, apply] {
        create(&client, Some(&namespace), object).await?;
    }
    let applies = objects(
        &client,
        "infrastructure.cluster.x-k8s.io/v1beta1",
        "WorkspaceTemplateApply",
        Some(&namespace),
    );
    until(&applies, "a", "in trouble", |apply: &DynamicObject| {
        testing::condition(apply, "Ready") == says
    })
    .await?;
    Ok(applies)
}

/// Reads the metrics of capt-workspace-controller until they have this line.
async fn until_counted(line: &str) -> Result<()> {
    let targets = targets()?;
    let (_, address) = targets.last().context("no controller")?;
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let text = get(address, "/metrics").await?;
        if text.lines().any(|told| told == line) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{line} is not in\n{text}");
        sleep(Duration::from_millis(100)).await;
    }
}

/// An alert on a counter would go on for as long as it looks back.
#[tokio::test]
async fn an_object_in_trouble_is_counted_until_it_is_not() -> Result<()> {
    // No other test makes this one.
    let gauge = r#"capt_objects_in_trouble{kind="WorkspaceTemplateApply",reason="UnsafeVariable"}"#;
    until_counted(&format!("{gauge} 0")).await?;
    let unsafe_module = json!({ "module": "output \"a\" { value = ${code} }" });
    let applies = troubled("chart-counted", unsafe_module, "False/UnsafeVariable").await?;
    until_counted(&format!("{gauge} 1")).await?;
    applies.delete("a", &DeleteParams::background()).await?;
    until_counted(&format!("{gauge} 0")).await
}

#[tokio::test]
async fn alerts_and_dashboards_use_metrics_that_exist() -> Result<()> {
    make_trouble().await?;
    let known = known_metrics().await?;
    let exists = |metric: &str| {
        let series = known.lines().any(|line| {
            line.strip_prefix(metric)
                .is_some_and(|rest| rest.starts_with(['{', ' ']))
        });
        series || metric == "up"
    };
    let mut looked_at = 0;
    for dashboard in ["fleet", "controller", "life"] {
        for query in queries(dashboard)? {
            for metric in metrics_in(&query) {
                ensure!(exists(metric), "{dashboard}: no controller has {metric}");
                looked_at += 1;
            }
        }
    }
    let rules = rules().await?;
    let groups = rules["groups"].as_array().into_iter().flatten();
    for rule in groups.filter_map(|group| group["rules"].as_array()).flatten() {
        let expression = rule["expr"].as_str().context("no expr")?;
        for metric in metrics_in(expression) {
            ensure!(exists(metric), "{}: no controller has {metric}", rule["alert"]);
            looked_at += 1;
        }
    }
    ensure!(looked_at > 80, "{looked_at}");
    Ok(())
}

#[tokio::test]
async fn a_prometheus_loads_the_rules_and_answers_the_dashboards() -> Result<()> {
    let Some(program) = program("prometheus")? else {
        return Ok(());
    };
    let targets = targets()?;
    let mut prometheus = Prometheus::start(&program, &targets).await?;
    prometheus.wait(targets.len()).await?;

    let loaded = prometheus.get("rules", &[]).await?;
    let groups = loaded["groups"].as_array().context("no groups")?;
    let rules: Vec<&Value> = groups
        .iter()
        .filter_map(|group| group["rules"].as_array())
        .flatten()
        .collect();
    ensure!(
        rules.len() >= alerts(&self::rules().await?).len(),
        "{} rules",
        rules.len()
    );
    for rule in rules {
        ensure!(rule["lastError"].is_null(), "{}: {}", rule["name"], rule["lastError"]);
    }

    for dashboard in ["fleet", "controller", "life"] {
        for query in queries(dashboard)? {
            let query = query
                .replace("$namespace", "capt-system")
                .replace("$__rate_interval", "1m")
                .replace("$__range", "5m");
            let mut answers = 0;
            for (controller, _) in &targets {
                answers += prometheus.query(&query.replace("$job", controller)).await?.len();
            }
            // What objects fare like is known once one has fared; what a controller does is always known.
            ensure!(
                answers > 0 || dashboard != "controller",
                "{dashboard}: no answer to {query}"
            );
        }
    }
    Ok(())
}
