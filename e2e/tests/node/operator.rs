//! The Prometheus operator, with the permissions that it asks for, as a process beside the node: what it makes of the chart's
//! monitors and rules for the Prometheus of docs/examples/monitoring.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use capt_e2e::testing::prometheus::apply_operator_crds;
use capt_e2e::testing::{PATIENCE, until_may};
use capt_e2e::tools::Toolbox;
use capt_e2e::{manifests, up, wait};
use flate2::read::GzDecoder;
use k8s_openapi::api::authorization::v1::ResourceAttributes;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::ListParams;
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::site::Site;

/// Where the example has its Prometheus.
pub(crate) const NAMESPACE: &str = "monitoring";
/// The kinds without which the operator does not begin.
const PLURALS: [&str; 5] = [
    "prometheuses",
    "servicemonitors",
    "podmonitors",
    "probes",
    "prometheusrules",
];

/// What the chart's values decide about each scrape job, by the job's name.
pub(crate) type Jobs = BTreeMap<String, Value>;

pub(crate) struct Operator {
    client: Client,
    directory: TempDir,
    _process: Child,
}

impl Operator {
    pub(crate) async fn start(site: &Site) -> Result<Self> {
        let cache = site.scratch.environment.cache();
        let tools = Toolbox::prometheus_operator(cache).await?;
        apply_operator_crds(&site.client, cache, &PLURALS).await?;
        let mut access = Vec::new();
        for file in tools.manifests("prometheus-operator", "example/rbac/prometheus-operator")? {
            access.extend(manifests::read(&file)?);
        }
        // It comes with a Deployment, too, but there is no image.
        access.retain(|object| {
            let kind = object["kind"].as_str();
            ["ServiceAccount", "ClusterRole", "ClusterRoleBinding"]
                .map(Some)
                .contains(&kind)
        });
        manifests::apply(&site.client, access).await?;
        // It asks once, at its start, what it may do, and leaves the rest alone for ever.
        let (user, wish) = (
            "system:serviceaccount:default:prometheus-operator",
            ResourceAttributes {
                group: Some("monitoring.coreos.com".into()),
                resource: Some("prometheuses".into()),
                verb: Some("list".into()),
                ..ResourceAttributes::default()
            },
        );
        until_may(&site.client, user, &["system:serviceaccounts"], &wish, true).await?;
        site.make_namespace(NAMESPACE).await?;
        let directory = tempfile::tempdir()?;
        let kubeconfig = directory.path().join("kubeconfig");
        site.write_kubeconfig(&kubeconfig, "default", "prometheus-operator")
            .await?;
        let log = File::create(directory.path().join("log"))?;
        let process = Command::new(tools.program("prometheus-operator")?)
            .arg("--web.listen-address=127.0.0.1:0")
            .env("KUBECONFIG", &kubeconfig)
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self {
            client: site.client.clone(),
            directory,
            _process: process,
        })
    }

    /// The Prometheus of the example and what belongs to it, under this name and with these changes. It gets no pods.
    pub(crate) async fn prometheus(&self, name: &str, version: &str, changes: &Value) -> Result<()> {
        let mut objects = manifests::read(&up::repository("docs/examples/monitoring/prometheus.yaml"))?;
        for object in objects.iter_mut().filter(|object| object["kind"] == "Prometheus") {
            let here = json!({ "metadata": { "name": name }, "spec": { "replicas": 0, "version": version } });
            json_patch::merge(object, &here);
            json_patch::merge(object, changes);
        }
        manifests::apply(&self.client, objects).await
    }

    /// Waits until a Prometheus's configuration has these scrape jobs and no others, and returns them as they stand there.
    pub(crate) async fn jobs(&self, prometheus: &str, wanted: &Jobs) -> Result<Vec<Value>> {
        let name = format!("prometheus-{prometheus}");
        let secret = self
            .written(&name, wanted, |secret: &Secret| {
                let jobs = scrape_configs(secret)?;
                let named = |job: &Value| (job["job_name"].as_str().unwrap_or_default().to_owned(), essence(job));
                Ok(jobs.iter().map(named).collect())
            })
            .await?;
        scrape_configs(&secret)
    }

    /// Waits until a Prometheus's rule files hold these groups and no others.
    pub(crate) async fn rules(&self, prometheus: &str, wanted: &[Value]) -> Result<()> {
        let name = format!("prometheus-{prometheus}-rulefiles-0");
        let groups = |files: &ConfigMap| {
            let mut groups = Vec::new();
            for text in files.data.iter().flat_map(|files| files.values()) {
                let file: Value = serde_saphyr::from_str(text)?;
                groups.extend(file["groups"].as_array().context("no groups")?.iter().cloned());
            }
            Ok(groups)
        };
        self.written(&name, &wanted.to_vec(), groups).await.map(drop)
    }

    /// Waits until the operator has copied this certificate, and puts it where a Prometheus has it, below this directory.
    pub(crate) async fn mount(&self, prometheus: &str, certificate: &str, root: &Path) -> Result<()> {
        let name = format!("prometheus-{prometheus}-tls-assets-0");
        let key = certificate.rsplit('/').next().unwrap_or_default();
        let copied = |secret: &Secret| secret.data.as_ref().and_then(|data| data.get(key)).cloned();
        let secret = self
            .written(&name, &true, |secret| Ok(copied(secret).is_some()))
            .await?;
        let content = copied(&secret).context("the certificate vanished")?;
        place(root, certificate, &content.0)
    }

    /// Watches what the operator writes, until it is as wanted.
    async fn written<K, T>(&self, name: &str, wanted: &T, seen: impl Fn(&K) -> Result<T>) -> Result<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
        K: Clone + Debug + DeserializeOwned + Send + 'static,
        T: PartialEq + Debug,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), NAMESPACE);
        let as_wanted =
            |object: Option<&K>| object.is_some_and(|object| seen(object).is_ok_and(|seen| seen == *wanted));
        match tokio::time::timeout(PATIENCE, wait::until(api.clone(), name, as_wanted)).await {
            Ok(found) => found.with_context(|| format!("{name} vanished")),
            Err(_) => {
                let now = api.get_opt(name).await?.as_ref().map(seen);
                let log = std::fs::read_to_string(self.directory.path().join("log"))?;
                let complaints = log.lines().rev().filter(|line| !line.contains("level=info"));
                // It repeats itself with every attempt.
                let complaints: Vec<&str> = complaints.take(10).collect();
                bail!("{name} is {now:#?} instead of {wanted:#?}; the operator says {complaints:#?}")
            }
        }
    }

    /// What the operator has told about objects that it left out.
    pub(crate) async fn rejections(&self) -> Result<Vec<String>> {
        let events: Api<k8s_openapi::api::core::v1::Event> = Api::all(self.client.clone());
        let invalid = ListParams::default().fields("reason=InvalidConfiguration");
        let told = events.list(&invalid).await?.items;
        Ok(told.into_iter().filter_map(|event| event.message).collect())
    }
}

/// Puts a file where a pod has it, below this directory.
pub(crate) fn place(root: &Path, path: &str, content: &[u8]) -> Result<()> {
    let path = root.join(path.trim_start_matches('/'));
    std::fs::create_dir_all(path.parent().context("a file without a directory")?)?;
    Ok(std::fs::write(path, content)?)
}

/// The scrape jobs of a configuration, which the operator writes compressed.
fn scrape_configs(secret: &Secret) -> Result<Vec<Value>> {
    let data = secret.data.as_ref().and_then(|data| data.get("prometheus.yaml.gz"));
    let mut text = String::new();
    GzDecoder::new(data.context("no configuration")?.0.as_slice()).read_to_string(&mut text)?;
    // Beside every Prometheus runs a program that fills this in; without it, nothing is this Prometheus's to scrape.
    let configuration: Value = serde_saphyr::from_str(&text.replace("$(SHARD)", "0"))?;
    Ok(configuration["scrape_configs"].as_array().cloned().unwrap_or_default())
}

/// What the chart's values decide about a job. A token itself is not shown; whether it is the right one, the controllers say.
fn essence(job: &Value) -> Value {
    let discovery = &job["kubernetes_sd_configs"][0];
    let relabelings = job["relabel_configs"].as_array().into_iter().flatten();
    let mut kept = relabelings.filter(|rule| rule["action"] == "keep");
    let port = kept.find(|rule| {
        rule["source_labels"][0]
            .as_str()
            .is_some_and(|label| label.ends_with("_port_name"))
    });
    let mut essence = json!({
        "role": discovery["role"], "namespaces": discovery["namespaces"]["names"],
        "port": port.map(|rule| &rule["regex"]), "path": job["metrics_path"], "scheme": job["scheme"],
        "tls": job["tls_config"], "token file": job["bearer_token_file"], "authorization": job["authorization"]["type"],
    });
    if let Some(fields) = essence.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    essence
}
