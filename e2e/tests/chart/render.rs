//! What the chart rendered, and what holds for all of it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use capt_api::names::Manager;
use serde_json::{Value, json};

use crate::helm::Helm;

/// The objects of a rendering.
pub(crate) struct Rendered {
    pub(crate) text: String,
    pub(crate) objects: Vec<Value>,
}

impl Rendered {
    pub(crate) fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.objects.iter().filter(move |object| object["kind"] == kind)
    }

    /// How many objects of a kind there are that Helm keeps, without those that exist only while a Job runs.
    pub(crate) fn count(&self, kind: &str) -> usize {
        self.of_kind(kind).filter(|object| !is_hook(object)).count()
    }

    pub(crate) fn get(&self, kind: &str, name: &str) -> Result<&Value> {
        let is_meant = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
        self.objects
            .iter()
            .find(is_meant)
            .with_context(|| format!("no {kind} {name}"))
    }

    /// The pod template of a controller.
    pub(crate) fn pod(&self, controller: &str) -> Result<&Value> {
        Ok(&self.get("Deployment", controller)?["spec"]["template"])
    }

    /// The container of a controller.
    pub(crate) fn container(&self, controller: &str) -> Result<&Value> {
        Ok(&self.pod(controller)?["spec"]["containers"][0])
    }

    pub(crate) fn flags(&self, controller: &str) -> Result<Vec<&str>> {
        let flags = self.container(controller)?["args"].as_array().context("no args")?;
        Ok(flags.iter().filter_map(Value::as_str).collect())
    }
}

pub(crate) fn is_hook(object: &Value) -> bool {
    object["metadata"]["annotations"]["helm.sh/hook"].is_string()
}

/// Everything that is off by default, on; what the tests of the whole look at.
pub(crate) fn everything() -> Value {
    json!({
        "common": {
            "serviceMonitor": { "enabled": true, "interval": "30s", "scrapeTimeout": "10s", "labels": { "release": "monitoring" } },
            "podMonitor": { "enabled": true, "relabelings": [{ "action": "labeldrop", "regex": "endpoint" }] },
            "networkPolicy": { "apiServer": { "cidrs": ["10.0.0.1/32", "fd00::1/128"] } },
            "nodeSelector": { "kubernetes.io/os": "linux" },
            "tolerations": [{ "key": "control-plane", "operator": "Exists", "effect": "NoSchedule" }],
            "affinity": { "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{
                "weight": 1,
                "preference": { "matchExpressions": [{ "key": "zone", "operator": "In", "values": ["a"] }] },
            }] } },
            "priorityClassName": "system-cluster-critical",
            "extraArgs": ["--resync-period=1h"],
            "extraEnv": [{ "name": "RUST_BACKTRACE", "value": "1" }],
            "annotations": { "example.com/owner": "platform" },
            "podAnnotations": { "example.com/pod": "yes" },
            "podLabels": { "example.com/team": "platform" },
            "serviceAccount": { "annotations": { "example.com/role": "capt" } },
            "service": { "annotations": { "example.com/service": "yes" } },
            "metrics": { "secure": true, "certSecret": "capt-metrics", "tokenSecret": { "name": "prometheus-token" } },
        },
        "commonLabels": { "example.com/cost-centre": "42" },
        "imagePullSecrets": [{ "name": "registry" }],
        "watch": { "filter": "blue" },
        "allowCrossNamespaceTemplates": true,
        "controllers": {
            "cluster": { "clearClusterFailures": false },
            "secrets": { "allowExecKubeconfig": true, "logLevel": "debug", "replicas": 3, "image": { "tag": "1.2.3" } },
            "tenant": { "enabled": true },
            "workspace": { "resumeInterruptedCreates": true, "sharedTerraformBackend": true },
        },
        "crds": { "keep": false, "allowDowngrade": true },
        "metricsReaders": [{ "kind": "ServiceAccount", "name": "prometheus", "namespace": "monitoring" }],
        "prometheusRule": { "enabled": true, "labels": { "release": "monitoring" }, "alertLabels": { "team": "platform" } },
        "dashboards": { "enabled": true, "annotations": { "grafana_folder": "CAPT" } },
    })
}

#[tokio::test]
async fn both_majors_render_the_same() -> Result<()> {
    let [newest, other] = Helm::majors().await?;
    for values in [json!({}), everything()] {
        let sorted = |rendered: Rendered| {
            let mut objects: Vec<String> = rendered.objects.iter().map(ToString::to_string).collect();
            objects.sort();
            objects
        };
        ensure!(
            sorted(newest.render(&values)?) == sorted(other.render(&values)?),
            "{values}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn every_controller_has_one_of_everything() -> Result<()> {
    let rendered = Helm::new().await?.render(&everything())?;
    let controllers = Manager::ALL.len();
    for kind in [
        "Deployment",
        "ServiceAccount",
        "Role",
        "RoleBinding",
        "Service",
        "PodDisruptionBudget",
        "NetworkPolicy",
        "ServiceMonitor",
        "PodMonitor",
    ] {
        ensure!(rendered.count(kind) == controllers, "{} {kind}s", rendered.count(kind));
    }
    // Two roles are given to other roles.
    for (kind, given) in [("ClusterRole", 2), ("ClusterRoleBinding", 0)] {
        // For its work and for its scrapers, and one for those themselves.
        ensure!(
            rendered.count(kind) == 2 * controllers + 1 + given,
            "{} {kind}s",
            rendered.count(kind)
        );
    }
    for controller in Manager::ALL {
        let image = &rendered.container(controller.as_str())?["image"];
        let image = image.as_str().context("no image")?;
        ensure!(image.contains(&format!("/{controller}:")), "{controller} runs {image}");
    }
    Ok(())
}

#[tokio::test]
async fn names_are_unique_and_short_enough() -> Result<()> {
    let helm = Helm::new().await?;
    let cases = [
        ("capt", json!({}), "capt-secrets"),
        ("prod", json!({}), "prod-capt-secrets"),
        ("my-capt", json!({}), "my-capt-secrets"),
        ("my.capt", json!({}), "my-capt-secrets"),
        ("prod", json!({ "nameOverride": "eks" }), "prod-eks-secrets"),
        ("prod", json!({ "fullnameOverride": "eks" }), "eks-secrets"),
        // A Service must not begin with a digit.
        ("2026", json!({}), "capt-2026-secrets"),
        ("2.capt", json!({}), "capt-2-capt-secrets"),
        ("2026", json!({ "nameOverride": "eks" }), "eks-2026-secrets"),
        ("true", json!({ "nameOverride": "true" }), "true-secrets"),
        (
            "a-name-with-dashes-where-it-is---cut",
            json!({}),
            "a-name-with-dashes-where-it-is-secrets",
        ),
        (
            "a-release-name-that-is-as-long-as-helm-lets-it-get-to",
            json!({}),
            "a-release-name-that-is-as-long-a-secrets",
        ),
    ];
    for (release, values, expected) in cases {
        let rendered = helm.render_as(release, &merged(everything(), values))?;
        rendered.get("Deployment", expected)?;
        let mut seen = BTreeSet::new();
        for object in &rendered.objects {
            let name = object["metadata"]["name"]
                .as_str()
                .context("an object without a name")?;
            // Some objects may have longer names, but none of those that become host names or labels.
            ensure!(
                name.len() <= 63 || name.starts_with("capt-system:"),
                "{name} is too long"
            );
            ensure!(!name.ends_with('-'), "{name} is no name");
            let begins_well = name.starts_with(|c: char| c.is_ascii_lowercase());
            ensure!(
                begins_well || object["kind"] != "Service",
                "{name} is no Service's name"
            );
            ensure!(
                seen.insert((object["kind"].to_string(), name)),
                "{} {name} twice",
                object["kind"]
            );
        }
    }
    Ok(())
}

/// Whether everything that is a name, and every label and annotation, is a text.
fn texts(value: &Value, place: &str) -> Result<()> {
    const NAMES: &[&str] = &[
        "name",
        "namespace",
        "serviceAccountName",
        "priorityClassName",
        "secretName",
        "serverName",
    ];
    const TEXTS: &[&str] = &["labels", "annotations", "matchLabels"];
    if let Some(items) = value.as_array() {
        return items.iter().try_for_each(|item| texts(item, place));
    }
    for (key, value) in value.as_object().into_iter().flatten() {
        let place = format!("{place}.{key}");
        ensure!(
            !NAMES.contains(&key.as_str()) || value.is_string(),
            "{place} is {value}"
        );
        let all = TEXTS.contains(&key.as_str());
        for (key, value) in value.as_object().into_iter().flatten().filter(|_| all) {
            ensure!(value.is_string(), "{place}.{key} is {value}");
        }
        texts(value, &place)?;
    }
    Ok(())
}

/// Namespaces are often named after an account of a cloud, and YAML takes digits for a number.
#[tokio::test]
async fn names_that_look_like_something_else_stay_texts() -> Result<()> {
    let helm = Helm::new().await?;
    let accounts = json!({
        "common": {
            "priorityClassName": "1", "metrics": { "certSecret": "2", "tokenSecret": { "name": "3", "key": "4" } },
        },
        "controllers": { "secrets": { "serviceAccountName": "5" } },
        "jobs": { "serviceAccountName": "6" },
    });
    let watched = json!({
        "watch": { "namespace": "210987654321", "filter": "7" },
        "allowCrossNamespaceTemplates": false,
        "controllers": { "tenant": { "enabled": false } },
    });
    for (release, values) in [
        ("123", json!({})),
        ("true", json!({})),
        ("1e3", json!({ "fullnameOverride": "null" })),
        ("capt", accounts.clone()),
        ("capt", watched.clone()),
        ("0x1f", merged(accounts, watched)),
    ] {
        let rendered = helm.render_into("123456789012", release, &merged(everything(), values))?;
        for object in &rendered.objects {
            texts(object, &format!("{release}: {}", object["kind"]))?;
            let monitors = ["/spec/endpoints", "/spec/podMetricsEndpoints"];
            for endpoint in monitors.iter().filter_map(|path| object.pointer(path)) {
                let key = &endpoint[0]["authorization"]["credentials"]["key"];
                ensure!(key.is_string(), "{key}");
            }
        }
        ensure!(
            rendered.text.contains("namespace=\"123456789012\""),
            "the alerts choose another namespace"
        );
    }
    Ok(())
}

/// Two releases in two namespaces must not fight over a cluster-wide object.
#[tokio::test]
async fn cluster_wide_objects_carry_the_namespace_in_their_name() -> Result<()> {
    let rendered = Helm::new().await?.render(&everything())?;
    for object in &rendered.objects {
        let metadata = &object["metadata"];
        let name = metadata["name"].as_str().unwrap_or_default();
        match metadata["namespace"].as_str() {
            Some(namespace) => ensure!(namespace == "capt-system", "{name} is in {namespace}"),
            None => ensure!(name.starts_with("capt-system:"), "{} {name}", object["kind"]),
        }
    }
    Ok(())
}

#[tokio::test]
async fn everything_has_the_recommended_labels() -> Result<()> {
    let rendered = Helm::new().await?.render(&everything())?;
    for object in &rendered.objects {
        let what = format!("{} {}", object["kind"], object["metadata"]["name"]);
        let labels = &object["metadata"]["labels"];
        for (label, value) in [
            ("app.kubernetes.io/part-of", "capt"),
            ("app.kubernetes.io/instance", "capt"),
            ("app.kubernetes.io/managed-by", "Helm"),
            ("example.com/cost-centre", "42"),
        ] {
            ensure!(labels[label] == value, "{what}: {label} is {}", labels[label]);
        }
        for label in ["name", "component", "version"] {
            ensure!(
                labels[format!("app.kubernetes.io/{label}")].is_string(),
                "{what} has no {label}"
            );
        }
    }
    Ok(())
}

/// A selector that also chose another controller's pods would count, spread, protect and scrape the wrong ones.
#[tokio::test]
async fn selectors_choose_the_pods_of_one_controller() -> Result<()> {
    let rendered = Helm::new().await?.render(&everything())?;
    let pods: BTreeMap<&str, &Value> = rendered
        .of_kind("Deployment")
        .filter_map(|deployment| {
            let name = deployment["metadata"]["name"].as_str()?;
            Some((name, &deployment["spec"]["template"]["metadata"]["labels"]))
        })
        .collect();
    let selectors = [
        ("Deployment", "/spec/selector/matchLabels"),
        (
            "Deployment",
            "/spec/template/spec/topologySpreadConstraints/0/labelSelector/matchLabels",
        ),
        ("Service", "/spec/selector"),
        ("PodDisruptionBudget", "/spec/selector/matchLabels"),
        ("NetworkPolicy", "/spec/podSelector/matchLabels"),
        ("PodMonitor", "/spec/selector/matchLabels"),
    ];
    for (kind, path) in selectors {
        for object in rendered.of_kind(kind).filter(|object| !is_hook(object)) {
            let name = object["metadata"]["name"].as_str().context("no name")?;
            let selector = object
                .pointer(path)
                .and_then(Value::as_object)
                .with_context(|| format!("{kind} {name}"))?;
            let matches = |labels: &Value| selector.iter().all(|(key, value)| labels[key] == *value);
            let chosen: Vec<_> = pods
                .iter()
                .filter(|(_, labels)| matches(labels))
                .map(|(pod, _)| *pod)
                .collect();
            ensure!(chosen == [name], "{kind} {name} chooses {chosen:?}");
        }
    }
    Ok(())
}

/// A controller whose image stays is not restarted for a newer chart or for a change of another controller.
#[tokio::test]
async fn an_upgrade_of_one_controller_leaves_the_others_alone() -> Result<()> {
    let helm = Helm::new().await?;
    let before = helm.render(&json!({}))?;
    let after = helm.render(&json!({ "controllers": { "secrets": { "image": { "tag": "9.9.9" } } } }))?;
    for controller in Manager::OF_CLUSTERS {
        let changed = before.pod(controller.as_str())? != after.pod(controller.as_str())?;
        ensure!(changed == (controller == Manager::Secrets), "{controller}");
    }
    let pod = before.pod("capt-secrets")?.to_string();
    ensure!(
        !pod.contains("helm.sh/chart"),
        "the chart's version restarts pods: {pod}"
    );
    Ok(())
}

pub(crate) fn merged(mut below: Value, above: Value) -> Value {
    json_patch::merge(&mut below, &above);
    below
}
