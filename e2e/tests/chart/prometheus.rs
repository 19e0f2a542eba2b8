//! Prometheus itself, from the distribution's package: it judges the alerts, scrapes the controllers, and answers the dashboards.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use capt_api::names::Manager;
use capt_e2e::environment::Port;
use capt_e2e::testing::prometheus::{self, DASHBOARDS, Prometheus, queries};
use capt_e2e::testing::{self, create, objects, until};
use capt_runtime::metrics::Metrics;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::helm::{Helm, repository};

/// A program of Prometheus, or `None` where there is none to be had.
fn program(name: &str) -> Result<Option<PathBuf>> {
    prometheus::program(testing::environment()?.cache(), name)
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

/// The controllers of the environment, under the labels that the chart's monitors give.
fn scrape_configs(targets: &[(String, String)]) -> Vec<Value> {
    let job = |(controller, address): &(String, String)| {
        json!({
            "job_name": controller,
            "static_configs": [{
                "targets": [address],
                "labels": { "namespace": "capt-system", "pod": format!("{controller}-0"), "endpoint": "metrics" },
            }],
        })
    };
    targets.iter().map(job).collect()
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

/// Whether a selector such as `kind=~"A|B", reason!~".*Timeout"` chooses these labels.
fn chooses(selector: &str, labels: &BTreeMap<&str, &str>) -> Result<bool> {
    let is_one_of = |patterns: &str, value: &str| {
        patterns.split('|').any(|pattern| match pattern.strip_prefix(".*") {
            Some(end) => value.ends_with(end),
            None => value == pattern,
        })
    };
    for matcher in selector.split("\", ").map(|part| part.trim_end_matches('"')) {
        let (name, wanted) = matcher.split_once('"').context("a selector without quotes")?;
        let value = |operator: &str| labels.get(name.trim_end_matches(operator)).copied().unwrap_or_default();
        let holds = match name.find(['=', '!']).map(|at| &name[at..]) {
            Some("=") => value("=") == wanted,
            Some("!=") => value("!=") != wanted,
            Some("=~") => is_one_of(wanted, value("=~")),
            Some("!~") => !is_one_of(wanted, value("!~")),
            other => anyhow::bail!("{other:?} in {selector}"),
        };
        if !holds {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The controllers tell at zero of every trouble that they know: each must reach somebody, by its own alert, or by that of what it
/// follows from.
#[tokio::test]
async fn every_trouble_has_an_alert() -> Result<()> {
    let rules = rules().await?.to_string().replace("\\\"", "\"");
    let gauge = "capt_objects_in_trouble{";
    let selectors: Vec<&str> = rules
        .split(gauge)
        .skip(1)
        .filter_map(|rest| rest.split_once('}'))
        .map(|(selector, _)| selector)
        .collect();
    ensure!(selectors.len() >= 5, "{selectors:?}");
    let is_told = |job: &str, kind: &str, reason: &str| -> Result<bool> {
        let labels = BTreeMap::from([
            ("namespace", "capt-system"),
            ("job", job),
            ("kind", kind),
            ("reason", reason),
        ]);
        for selector in &selectors {
            if chooses(selector, &labels)? {
                return Ok(true);
            }
        }
        Ok(false)
    };
    let mut known = Vec::new();
    for (job, address) in targets()? {
        let text = prometheus::get(&address, "/metrics").await?;
        for line in text.lines().filter_map(|line| line.strip_prefix(gauge)) {
            let (labels, _) = line.split_once('}').context("no labels")?;
            let label = |name: &str| {
                let (_, rest) = labels.split_once(&format!("{name}=\"")).context("a label is missing")?;
                Ok::<_, anyhow::Error>(rest.split('"').next().unwrap_or_default().to_owned())
            };
            known.push((job.clone(), label("kind")?, label("reason")?));
        }
    }
    ensure!(known.len() > 60, "only {} troubles are known", known.len());
    let (applies, secrets) = (Manager::Workspace.as_str(), Manager::Secrets.as_str());
    let mut untold = Vec::new();
    for (job, kind, reason) in &known {
        let cause = match reason.as_str() {
            "VPCCreationFailed" => (applies, "WorkspaceTemplateApply", "TerraformFailed"),
            "SecretsFailed" => (secrets, "CAPTControlPlane", "Failed"),
            same => (applies, "WorkspaceTemplateApply", same),
        };
        let is_known = known
            .iter()
            .any(|(job, kind, reason)| (job.as_str(), kind.as_str(), reason.as_str()) == cause);
        let (of, above, word) = cause;
        let is_heard = is_told(job, kind, reason)? || is_known && is_told(of, above, word)?;
        if !is_heard {
            untold.push((job, kind, reason));
        }
    }
    ensure!(untold.is_empty(), "nobody hears of {untold:#?}");
    Ok(())
}

/// Where the controllers of the environment serve their metrics.
fn targets() -> Result<Vec<(String, String)>> {
    let settings = testing::environment()?.settings()?;
    let ports = [
        (Manager::Cluster, Port::ClusterController),
        (Manager::ControlPlane, Port::ControlPlaneController),
        (Manager::Endpoint, Port::EndpointController),
        (Manager::Secrets, Port::SecretsController),
        (Manager::Tenant, Port::TenantController),
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
        text.push_str(&prometheus::get(&address, "/metrics").await?);
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
    let deadline = Instant::now() + Duration::from_secs(300);
    loop {
        let text = prometheus::get(address, "/metrics").await?;
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
    for dashboard in DASHBOARDS {
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
    let rules = rules().await?;
    let mut prometheus = Prometheus::start(&program, &scrape_configs(&targets), &rules).await?;
    prometheus.wait(targets.len()).await?;
    let loaded = prometheus.rules().await?;
    ensure!(loaded.len() >= alerts(&rules).len(), "{} rules", loaded.len());

    let jobs: Vec<&str> = targets.iter().map(|(controller, _)| controller.as_str()).collect();
    for dashboard in DASHBOARDS {
        let queries = queries(dashboard)?;
        // What objects fare like is known once one has fared; what a controller does is always known.
        if dashboard == "controller" {
            prometheus.answers(&queries, &jobs).await?;
        } else {
            prometheus.silent(&queries, &jobs).await?;
        }
    }
    Ok(())
}
