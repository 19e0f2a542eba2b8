//! A management cluster with a node, and this tree's chart on it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use capt_e2e::audit::{self, Request};
use capt_e2e::components::CONTROLLER_NAMESPACE;
use capt_e2e::environment::kubeconfig;
use capt_e2e::node::install::RELEASE;
use capt_e2e::pki::write_private;
use capt_e2e::testing::{PATIENCE, Scratch, create, token};
use capt_e2e::tools::Toolbox;
use capt_e2e::{up, wait};
use futures::{AsyncBufRead, AsyncBufReadExt, StreamExt, TryStreamExt};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, LogParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::timeout;

/// How long Helm may take, which waits for several things in turn: whoever runs out of patience before a Job has ended, never tells what
/// the Job said.
pub(crate) const HELM_PATIENCE: &str = "10m";

/// The controllers, by the names of their Deployments' pods, Leases and images.
pub(crate) const CONTROLLERS: [&str; 5] = [
    "capt-cluster-controller",
    "capt-controlplane-controller",
    "capt-endpoint",
    "capt-secrets",
    "capt-workspace-controller",
];

/// The environment of the tests on the node.
pub(crate) struct Site {
    pub(crate) scratch: Scratch,
    pub(crate) client: Client,
    helm: PathBuf,
    kubectl: PathBuf,
    /// Logs outlive their environment; what is older is of another test.
    began: Timestamp,
}

impl Site {
    /// Starts the environment with its node.
    pub(crate) async fn build(provider: &str) -> Result<Self> {
        let scratch = Scratch::named(env!("CARGO_BIN_EXE_capt-e2e"), "test-node")?;
        let began = Timestamp::now();
        scratch.up(&["--node", "--provider", provider])?;
        let client = up::client(&scratch.environment.kubeconfig()).await?;
        let (tools, own) = tokio::try_join!(
            Toolbox::for_chart(scratch.environment.cache()),
            Toolbox::ready(scratch.environment.cache())
        )?;
        Ok(Self {
            client,
            helm: tools.program("helm")?.to_path_buf(),
            kubectl: own.program("kubectl")?.to_path_buf(),
            began,
            scratch,
        })
    }

    /// What a controller has asked the API server for, in order; fails when it lacked a permission.
    pub(crate) fn requests(&self, controller: &str) -> Result<Vec<Request>> {
        let user = format!("system:serviceaccount:{CONTROLLER_NAMESPACE}:{controller}");
        let mut requests = audit::read(&self.scratch.environment)?.0;
        requests.retain(|request| request.user() == user && request.received() >= self.began);
        requests.sort_by_key(Request::received);
        ensure!(!requests.is_empty(), "{controller} never asked for anything");
        // The API server hears of a Role after it has taken it: what was let in later was not lacking.
        let wish = |request: &Request| (request.verb.clone(), request.target());
        let let_in = requests.iter().filter(|request| !request.lacked_permission());
        let last: BTreeMap<_, Timestamp> = let_in.map(|request| (wish(request), request.received())).collect();
        let refused = requests.iter().filter(|request| {
            let last = last.get(&wish(request));
            request.lacked_permission() && last.is_none_or(|last| *last < request.received())
        });
        let refused: Vec<String> = refused.map(ToString::to_string).collect();
        ensure!(refused.is_empty(), "{controller} lacks permissions: {refused:#?}");
        Ok(requests)
    }

    /// Installs or upgrades the chart as `make install` does; returns what that says.
    pub(crate) fn install(&self, values: &Value) -> Result<String> {
        let images = std::env::var("CAPT_IMAGES").context("no images: run the tests with `make test-chart`")?;
        let file = tempfile::NamedTempFile::with_suffix(".json")?;
        serde_json::to_writer(&file, values)?;
        let path = file.path().to_string_lossy();
        let output = self.scratch.run(&["install", "--images", &images, "--values", &path])?;
        ensure!(
            output.status.success(),
            "{}{}",
            String::from_utf8_lossy(&output.stderr),
            self.pods_told()
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Runs Helm on the release's namespace: whether it succeeded, and what it said.
    pub(crate) async fn helm(&self, arguments: &[&str]) -> Result<(bool, String)> {
        let output = tokio::process::Command::new(&self.helm)
            .args(arguments)
            .args(["--namespace", CONTROLLER_NAMESPACE])
            .env("KUBECONFIG", self.scratch.environment.kubeconfig())
            .kill_on_drop(true)
            .output()
            .await?;
        let said = [output.stdout, output.stderr].concat();
        Ok((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
    }

    /// Upgrades the release, with what it was installed with and these changes.
    pub(crate) async fn upgrade(&self, changes: &[&str]) -> Result<()> {
        let chart = up::repository("charts/capt");
        let chart = chart.to_string_lossy();
        let fixed = [
            "upgrade",
            RELEASE,
            &chart,
            "--reset-then-reuse-values",
            "--wait",
            "--timeout",
            HELM_PATIENCE,
        ];
        let (success, said) = self.helm(&[&fixed[..], changes].concat()).await?;
        ensure!(success, "{said}");
        Ok(())
    }

    pub(crate) async fn make_namespace(&self, name: &str) -> Result<()> {
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        create(&self.client, None, namespace).await.map(drop)
    }

    /// Writes a kubeconfig with a ServiceAccount's token.
    pub(crate) async fn write_kubeconfig(&self, path: &Path, namespace: &str, account: &str) -> Result<()> {
        let environment = &self.scratch.environment;
        let text = kubeconfig(
            &environment.settings()?.api_server()?,
            environment.authority()?.certificate(),
            account,
            &token(&self.client, namespace, account).await?,
        );
        write_private(path, &text)
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), CONTROLLER_NAMESPACE)
    }

    /// The living pods of a controller.
    pub(crate) async fn pods_of(&self, controller: &str) -> Result<Vec<Pod>> {
        let own = ListParams::default().labels(&format!("app.kubernetes.io/name={controller}"));
        let pods = self.pods().list(&own).await?.items;
        Ok(pods
            .into_iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            .collect())
    }

    pub(crate) fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), CONTROLLER_NAMESPACE)
    }

    /// Who leads, as soon as somebody does, for a pod is ready before it leads: its identity, and its pod.
    pub(crate) async fn leader(&self, controller: &str) -> Result<(String, Pod)> {
        let is_held = |lease: Option<&Lease>| lease.and_then(holder).is_some();
        let lease = timeout(PATIENCE, wait::until(self.leases(), controller, is_held)).await;
        let lease = lease.ok().flatten();
        let identity = lease.as_ref().and_then(holder);
        let identity = identity.with_context(|| format!("nobody leads {controller}"))?;
        Ok((identity.to_owned(), self.pods().get(pod_of(identity)).await?))
    }

    /// Follows the Lease until somebody else than this one holds it.
    pub(crate) async fn successor(&self, controller: &str, predecessor: &str) -> Result<()> {
        let taken_over = |lease: Option<&Lease>| {
            let holder = lease.and_then(holder);
            holder.is_some_and(|holder| holder != predecessor)
        };
        timeout(PATIENCE, wait::until(self.leases(), controller, taken_over))
            .await
            .map(drop)
            .with_context(|| format!("nobody took over from {predecessor} within {} s", PATIENCE.as_secs()))
    }

    /// The log of a pod, from its beginning and on, each line with its time.
    pub(crate) async fn follow(&self, pod: &Pod) -> Result<impl AsyncBufRead + use<>> {
        let parameters = LogParams {
            follow: true,
            timestamps: true,
            ..LogParams::default()
        };
        Ok(self.pods().log_stream(&pod.name_any(), &parameters).await?)
    }

    /// Waits until all pods of every controller are as many as wanted, and ready.
    pub(crate) async fn all_ready(&self, replicas: usize) -> Result<()> {
        for controller in CONTROLLERS {
            self.ready(controller, replicas).await?;
        }
        Ok(())
    }

    pub(crate) async fn ready(&self, controller: &str, replicas: usize) -> Result<()> {
        let own = watcher::Config::default().labels(&format!("app.kubernetes.io/name={controller}"));
        let mut known: BTreeMap<String, bool> = BTreeMap::new();
        // Of a list that has not ended, the first pods may be as many as wanted.
        let mut is_complete = false;
        let follow = async {
            let mut events = std::pin::pin!(watcher(self.pods(), own).default_backoff());
            while let Some(event) = events.next().await {
                match event {
                    Ok(watcher::Event::Init) => {
                        known.clear();
                        is_complete = false;
                    }
                    Ok(watcher::Event::InitApply(pod) | watcher::Event::Apply(pod)) => {
                        known.insert(pod.name_any(), is_ready(&pod));
                    }
                    Ok(watcher::Event::Delete(pod)) => {
                        known.remove(&pod.name_any());
                    }
                    Ok(watcher::Event::InitDone) => is_complete = true,
                    Err(error) => eprintln!("the watch on pods failed and goes on: {error}"),
                }
                if is_complete && known.len() == replicas && known.values().all(|ready| *ready) {
                    return;
                }
            }
        };
        if timeout(PATIENCE, follow).await.is_err() {
            bail!(
                "{controller} has not {replicas} ready pods: {known:?}{}",
                self.pods_told()
            );
        }
        Ok(())
    }

    /// What is known of the pods, for an error.
    fn pods_told(&self) -> String {
        let arguments = ["-n", CONTROLLER_NAMESPACE, "describe", "pods"];
        let output = std::process::Command::new(&self.kubectl)
            .args(arguments)
            .env("KUBECONFIG", self.scratch.environment.kubeconfig())
            .output();
        let told = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        format!("\n{}", told.unwrap_or_default())
    }
}

/// Ready, and not on its way out.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True");
    ready && pod.metadata.deletion_timestamp.is_none()
}

/// An identity is the pod's name and something random.
pub(crate) fn pod_of(identity: &str) -> &str {
    identity.split('_').next().unwrap_or_default()
}

/// Who holds a Lease.
fn holder(lease: &Lease) -> Option<&str> {
    let holder = lease.spec.as_ref()?.holder_identity.as_deref();
    holder.filter(|holder| !holder.is_empty())
}

/// Waits for a line of a log that holds these words; returns when it was written.
pub(crate) async fn said(log: impl AsyncBufRead, words: &str) -> Result<Timestamp> {
    let mut lines = std::pin::pin!(log.lines());
    let wait = async {
        while let Some(line) = lines.try_next().await? {
            if let Some((time, _)) = line.split_once(' ').filter(|_| line.contains(words)) {
                return Ok(time.parse()?);
            }
        }
        bail!("the log ended without {words:?}")
    };
    timeout(PATIENCE, wait)
        .await
        .with_context(|| format!("{} s passed without {words:?}", PATIENCE.as_secs()))?
}

/// The process of a pod's one container, as this machine sees it.
pub(crate) fn process_of(pod: &Pod) -> Result<i32> {
    let uid = pod.metadata.uid.as_deref().context("a pod without a uid")?;
    let found = std::fs::read_dir("/proc")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .find(|pid| {
            let of_pod = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| text.contains(uid));
            of_pod && std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("capt"))
        });
    found.with_context(|| format!("{} has no process", pod.name_any()))
}
