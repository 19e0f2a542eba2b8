//! The life of a release: installed, upgraded, rolled back and uninstalled by Helm, with the Jobs that stand before each.
//!
//! There is no node here, so the test does what a kubelet would for the Jobs' pods: it runs their program, with their
//! arguments and as their account, and reports how it ended. Everything else is real, the permissions above all.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use capt_api::crd;
use capt_api::names::{annotation, finalizer};
use capt_e2e::testing::{Scratch, create, objects, token, until_gone};
use capt_e2e::up;
use futures::StreamExt;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::helm::{Helm, chart, values_file};

const NAMESPACE: &str = "capt-chart";
const CLUSTERS: &str = "captclusters.infrastructure.cluster.x-k8s.io";
/// How long Helm waits for a Job, which takes seconds: when it gives up, what the Job says is lost.
const HELM_PATIENCE: &str = "10m";

/// Runs the pods of Jobs as a kubelet would, and remembers what they said.
#[derive(Clone)]
struct Kubelet {
    client: Client,
    /// What an administrator uses to reach the API server; pods get the same with a token of their own.
    kubeconfig: Value,
    said: Arc<Mutex<Vec<String>>>,
}

impl Kubelet {
    fn new(client: &Client, kubeconfig: &Path) -> Result<Self> {
        Ok(Self {
            client: client.clone(),
            kubeconfig: serde_saphyr::from_str(&std::fs::read_to_string(kubeconfig)?)?,
            said: Arc::default(),
        })
    }

    /// Everything that was said since the last time.
    fn said(&self) -> String {
        std::mem::take(&mut *self.said.lock().unwrap_or_else(PoisonError::into_inner)).join("")
    }

    async fn run(self) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let jobs = watcher::Config::default().labels("batch.kubernetes.io/job-name");
        let mut events = std::pin::pin!(watcher(pods, jobs).default_backoff().applied_objects());
        // A pod that has run may still be told of as it was before.
        let mut begun = BTreeSet::new();
        while let Some(event) = events.next().await {
            let pod = match event {
                Ok(pod) => pod,
                Err(error) => {
                    eprintln!("the watch on pods failed and goes on: {error}");
                    continue;
                }
            };
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            let is_going = pod.metadata.deletion_timestamp.is_some();
            if phase == Some("Pending") && !is_going && begun.insert(pod.metadata.uid.clone()) {
                self.start(&pod)
                    .await
                    .with_context(|| format!("pod {}", pod.name_any()))?;
            }
        }
        bail!("the watch on pods ended")
    }

    async fn start(&self, pod: &Pod) -> Result<()> {
        let spec = pod.spec.as_ref().context("a pod without a spec")?;
        let [container] = spec.containers.as_slice() else {
            bail!("not one container")
        };
        let image = container.image.as_deref().context("no image")?;
        ensure!(image.contains("/capt-install:"), "{image}");
        let account = spec.service_account_name.as_deref().context("no account")?;
        let kubeconfig = self.kubeconfig_of(account).await?;
        let program = Path::new(env!("CARGO_BIN_EXE_capt-e2e")).with_file_name("capt-install");
        let output = tokio::process::Command::new(&program)
            .args(container.args.iter().flatten())
            .env("KUBECONFIG", kubeconfig.path())
            .output()
            .await
            .with_context(|| format!("cannot run {}", program.display()))?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        self.said.lock().unwrap_or_else(PoisonError::into_inner).push(said);
        let phase = if output.status.success() { "Succeeded" } else { "Failed" };
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let ended = json!({ "status": { "phase": phase } });
        pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(ended))
            .await?;
        Ok(())
    }

    /// A kubeconfig with a token of the account, as it would be mounted.
    async fn kubeconfig_of(&self, account: &str) -> Result<tempfile::NamedTempFile> {
        let token = token(&self.client, NAMESPACE, account).await?;
        let mut kubeconfig = self.kubeconfig.clone();
        let users = kubeconfig["users"].as_array_mut().context("no users")?;
        for user in users {
            user["user"] = json!({ "token": token });
        }
        values_file(&kubeconfig)
    }
}

struct Story {
    helm: Helm,
    client: Client,
    kubeconfig: std::path::PathBuf,
    kubelet: Kubelet,
}

impl Story {
    /// What Helm said, and what its Jobs said.
    async fn helm(&self, arguments: &[&str]) -> Result<(bool, String)> {
        let mut command = tokio::process::Command::from(self.helm.command(arguments));
        command
            .args(["--namespace", NAMESPACE])
            .env("KUBECONFIG", &self.kubeconfig)
            .kill_on_drop(true);
        let output = command.output().await?;
        let said = [output.stdout, output.stderr].concat();
        Ok((
            output.status.success(),
            format!("{}{}", String::from_utf8_lossy(&said), self.kubelet.said()),
        ))
    }

    async fn succeed(&self, arguments: &[&str]) -> Result<String> {
        let (success, said) = self.helm(arguments).await?;
        ensure!(success, "helm {arguments:?}: {said}");
        Ok(said)
    }

    async fn apply(&self, verb: &str, values: Value) -> Result<String> {
        let file = values_file(&values)?;
        let (chart, file_path) = (chart(), file.path().to_path_buf());
        let paths = [
            chart.to_str().context("a path that is no text")?,
            file_path.to_str().context("a path that is no text")?,
        ];
        self.succeed(&[verb, "capt", paths[0], "--values", paths[1], "--timeout", HELM_PATIENCE])
            .await
    }

    fn crds(&self) -> Api<CustomResourceDefinition> {
        Api::all(self.client.clone())
    }

    /// Waits until a CRD is gone, with all objects of its kind.
    async fn until_gone(&self, name: &str) -> Result<()> {
        let crds = objects(
            &self.client,
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
            None,
        );
        until_gone(&crds, name).await
    }

    /// The release that a CRD says it is of.
    async fn version(&self, name: &str) -> Result<Option<String>> {
        let crd = self.crds().get_opt(name).await?;
        Ok(crd.and_then(|crd| crd.annotations().get(annotation::CAPT_VERSION).cloned()))
    }

    /// Makes a CRD look like one of a release to come.
    async fn pretend_newer(&self, name: &str) -> Result<()> {
        let patch = json!({ "metadata": { "annotations": { annotation::CAPT_VERSION: "99.0.0" } } });
        self.crds()
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    async fn deployments(&self) -> Result<usize> {
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), NAMESPACE);
        Ok(api.list(&ListParams::default()).await?.items.len())
    }

    /// Jobs and accounts that exist only for a Job.
    async fn left_over(&self) -> Result<Vec<String>> {
        let of_jobs = ListParams::default().labels("app.kubernetes.io/name=capt-install");
        let jobs: Api<Job> = Api::namespaced(self.client.clone(), NAMESPACE);
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), NAMESPACE);
        let roles: Api<k8s_openapi::api::rbac::v1::ClusterRole> = Api::all(self.client.clone());
        let mut names: Vec<String> = jobs
            .list(&of_jobs)
            .await?
            .iter()
            .map(|job| format!("Job {}", job.name_any()))
            .collect();
        names.extend(
            accounts
                .list(&of_jobs)
                .await?
                .iter()
                .map(|account| format!("ServiceAccount {}", account.name_any())),
        );
        names.extend(
            roles
                .list(&of_jobs)
                .await?
                .iter()
                .map(|role| format!("ClusterRole {}", role.name_any())),
        );
        Ok(names)
    }

    async fn tell(&self) -> Result<()> {
        let release = env!("CARGO_PKG_VERSION");
        for crd in crd::all() {
            let name = crd.name_any();
            if self.crds().get_opt(&name).await?.is_some() {
                self.crds().delete(&name, &DeleteParams::default()).await?;
                self.until_gone(&name).await?;
            }
        }

        self.apply("install", json!({})).await?;
        for crd in crd::all() {
            let name = crd.name_any();
            ensure!(
                self.version(&name).await?.as_deref() == Some(release),
                "{name} was not installed"
            );
        }
        ensure!(self.deployments().await? == 5, "the controllers are not there");
        ensure!(self.left_over().await?.is_empty(), "{:?}", self.left_over().await?);

        // A newer CRD survives an upgrade and a rollback, and both say so.
        self.pretend_newer(CLUSTERS).await?;
        let upgraded = self.apply("upgrade", json!({ "common": { "replicas": 1 } })).await?;
        ensure!(
            upgraded.contains(&format!("{CLUSTERS}: left as it is: it is of 99.0.0")),
            "{upgraded}"
        );
        let rolled_back = self
            .succeed(&["rollback", "capt", "1", "--timeout", HELM_PATIENCE])
            .await?;
        ensure!(rolled_back.contains("left as it is"), "{rolled_back}");
        ensure!(
            self.version(CLUSTERS).await?.as_deref() == Some("99.0.0"),
            "the CRD was downgraded"
        );
        let downgraded = self
            .apply("upgrade", json!({ "crds": { "allowDowngrade": true } }))
            .await?;
        ensure!(
            downgraded.contains(&format!("{CLUSTERS}: downgraded from 99.0.0 to {release}")),
            "{downgraded}"
        );
        ensure!(
            self.version(CLUSTERS).await?.as_deref() == Some(release),
            "the CRD was not downgraded"
        );

        // While an object needs the controllers they stay.
        let clusters = objects(
            &self.client,
            "infrastructure.cluster.x-k8s.io/v1beta1",
            "CAPTCluster",
            Some(NAMESPACE),
        );
        let needed = json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "CAPTCluster",
            "metadata": {
                "name": "needed", "finalizers": [finalizer::CAPT_CLUSTER], "annotations": { annotation::PAUSED: "" },
            },
            "spec": { "region": "eu-west-1", "existingVpcId": "vpc-0123456789abcdef0" },
        });
        create(&self.client, Some(NAMESPACE), needed).await?;
        let (success, refused) = self.helm(&["uninstall", "capt", "--timeout", HELM_PATIENCE]).await?;
        ensure!(!success, "uninstalled in spite of an object: {refused}");
        ensure!(
            refused.contains(&format!("CAPTCluster {NAMESPACE}/needed")),
            "{refused}"
        );
        ensure!(self.deployments().await? == 5, "the controllers went");

        let released = json!({ "metadata": { "finalizers": null } });
        clusters
            .patch("needed", &PatchParams::default(), &Patch::Merge(released))
            .await?;
        clusters.delete("needed", &DeleteParams::default()).await?;
        until_gone(&clusters, "needed").await?;
        self.succeed(&["uninstall", "capt", "--timeout", HELM_PATIENCE]).await?;
        ensure!(self.deployments().await? == 0, "the controllers stayed");
        ensure!(self.left_over().await?.is_empty(), "{:?}", self.left_over().await?);
        ensure!(self.version(CLUSTERS).await?.is_some(), "the CRDs went");

        // A release whose CRDs were kept can be installed again, and take them along this time.
        self.apply("install", json!({ "crds": { "keep": false } })).await?;
        self.succeed(&["uninstall", "capt", "--timeout", HELM_PATIENCE]).await?;
        for crd in crd::all() {
            self.until_gone(&crd.name_any()).await?;
        }
        ensure!(self.left_over().await?.is_empty(), "{:?}", self.left_over().await?);
        Ok(())
    }
}

/// In an environment of its own: the CRDs, and with them everybody's objects, come and go.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_lives_and_dies() -> Result<()> {
    let helms = Helm::majors().await?;
    let scratch = Scratch::named(env!("CARGO_BIN_EXE_capt-e2e"), "test-chart")?;
    scratch.up(&["--provider", "simulator"])?;
    let kubeconfig = scratch.environment.kubeconfig();
    let client = up::client(&kubeconfig).await?;
    let namespace = Namespace {
        metadata: serde_json::from_value(json!({
            "name": NAMESPACE, "labels": { "pod-security.kubernetes.io/enforce": "restricted" },
        }))?,
        ..Namespace::default()
    };
    Api::<Namespace>::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await?;
    let kubelet = Kubelet::new(&client, &kubeconfig)?;
    for helm in helms {
        let story = Story {
            helm,
            client: client.clone(),
            kubeconfig: kubeconfig.clone(),
            kubelet: kubelet.clone(),
        };
        tokio::select! {
            told = story.tell() => told?,
            ended = kubelet.clone().run() => ended?,
        }
    }
    Ok(())
}
