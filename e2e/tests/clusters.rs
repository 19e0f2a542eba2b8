//! Whole clusters, made and unmade by the real Cluster API core, the real provider and the real Terraform.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use capt_api::names;
use capt_e2e::cloud::{self, Entry};
use capt_e2e::environment::Environment;
use capt_e2e::testing::{self, condition, create, message, objects, until_gone};
use capt_e2e::tools::Toolbox;
use capt_e2e::{components, manifests};
use futures::future::{try_join, try_join_all};
use futures::stream::{BoxStream, StreamExt};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io/v1beta1";
const CONTROL_PLANE: &str = "controlplane.cluster.x-k8s.io/v1beta1";
const CORE: &str = "cluster.x-k8s.io/v1beta2";

/// All tests run at once, each with Terraform and API servers of its own, on as few as two cores.
const PATIENCE: Duration = Duration::from_secs(300);

/// A Cluster and what it refers to.
#[derive(Clone, Copy)]
struct Names {
    cluster: &'static str,
    network: &'static str,
    control_plane: &'static str,
}

impl Names {
    /// As in most manifests: one name for all.
    const fn same(name: &'static str) -> Self {
        Self {
            cluster: name,
            network: name,
            control_plane: name,
        }
    }
}

/// What a test wants to be different from the example; merged into the objects.
#[derive(Default)]
struct Wishes {
    cluster: Value,
    network: Value,
    control_plane: Value,
}

impl Wishes {
    /// A cluster in a VPC that is there already: one Terraform run less.
    fn existing_vpc() -> Self {
        Self {
            network: json!({"spec": {"vpcTemplateRef": null, "existingVpcId": "vpc-0123456789abcdef0"}}),
            ..Self::default()
        }
    }
}

/// A namespace with the templates of the local cloud, and the means to make clusters from them.
struct Bench {
    client: Client,
    environment: Environment,
    namespace: String,
}

impl Bench {
    async fn new(prefix: &str) -> Result<Self> {
        let bench = Self {
            client: testing::client().await?,
            environment: testing::environment()?,
            namespace: testing::namespace(&testing::client().await?, prefix).await?,
        };
        for file in manifests::files(&examples().join("templates"))? {
            for template in manifests::read(&file)? {
                bench.create(template, &Value::Null).await?;
            }
        }
        Ok(bench)
    }

    /// Creates an object in this namespace, whichever one its manifest names.
    async fn create(&self, mut object: Value, wish: &Value) -> Result<DynamicObject> {
        json_patch::merge(
            &mut object,
            &json!({"metadata": {"namespace": self.namespace.as_str()}}),
        );
        if !wish.is_null() {
            json_patch::merge(&mut object, wish);
        }
        create(&self.client, Some(&self.namespace), object).await
    }

    /// Creates the three objects of the documented example under these names.
    async fn cluster(&self, names: &Names, wishes: Wishes) -> Result<()> {
        for mut object in manifests::read(&examples().join("cluster.yaml"))? {
            let (name, wish) = match object.get("kind").and_then(Value::as_str) {
                Some("Cluster") => (names.cluster, &wishes.cluster),
                Some("CAPTCluster") => (names.network, &wishes.network),
                Some("CAPTControlPlane") => (names.control_plane, &wishes.control_plane),
                other => bail!("the example has an object of kind {other:?}"),
            };
            json_patch::merge(&mut object, &json!({"metadata": {"name": name}}));
            if name == names.cluster && wish == &wishes.cluster && object.pointer("/spec/controlPlaneRef").is_some() {
                let references = json!({"spec": {
                    "infrastructureRef": {"name": names.network}, "controlPlaneRef": {"name": names.control_plane},
                }});
                json_patch::merge(&mut object, &references);
            }
            self.create(object, wish).await?;
        }
        Ok(())
    }

    fn clusters(&self) -> Api<DynamicObject> {
        objects(&self.client, CORE, "Cluster", Some(&self.namespace))
    }

    fn networks(&self) -> Api<DynamicObject> {
        objects(&self.client, INFRASTRUCTURE, "CAPTCluster", Some(&self.namespace))
    }

    fn control_planes(&self) -> Api<DynamicObject> {
        objects(&self.client, CONTROL_PLANE, "CAPTControlPlane", Some(&self.namespace))
    }

    fn applies(&self) -> Api<DynamicObject> {
        objects(
            &self.client,
            INFRASTRUCTURE,
            "WorkspaceTemplateApply",
            Some(&self.namespace),
        )
    }

    fn secrets(&self) -> Api<DynamicObject> {
        objects(&self.client, "v1", "Secret", Some(&self.namespace))
    }

    /// Waits until core itself calls the Cluster available, having reached its API server.
    async fn available(&self, names: &Names) -> Result<DynamicObject> {
        let mut history = History::begin(self.clusters(), names.cluster).await?;
        let available = history.until("Available", |c| is_true(c, "Available")).await?;
        ensure!(
            is_true(&available, "RemoteConnectionProbe"),
            "available, but not connected: {}",
            condition(&available, "RemoteConnectionProbe")
        );
        let control_plane = self.control_planes().get(names.control_plane).await?;
        ensure!(
            is_true(&control_plane, "Ready") && phase(&control_plane) == "Ready",
            "core calls the cluster available before its control plane says so: {}",
            condition(&control_plane, "Ready")
        );
        Ok(available)
    }

    /// The Terraform workspaces of a cluster: the network's, then the control plane's.
    fn workspaces(&self, names: &Names) -> [String; 2] {
        [
            names::vpc_apply_name(names.network),
            names::eks_apply_name(names.control_plane),
        ]
        .map(|apply| names::workspace_name(&self.namespace, &apply))
    }

    /// What the cloud has of a workspace.
    fn entry(&self, workspace: &str) -> Result<Option<Entry>> {
        let entries = cloud::entries(&self.environment)?;
        Ok(entries.into_iter().find(|entry| entry.name == workspace))
    }

    /// Where the cloud says that the cluster listens, and the CA that it made for it.
    fn truth(&self, names: &Names) -> Result<Access> {
        let [_, workspace] = self.workspaces(names);
        let entry = self
            .entry(&workspace)?
            .with_context(|| format!("{workspace} is not in the ledger"))?;
        let port = entry
            .port
            .with_context(|| format!("{workspace} listens nowhere"))?;
        let ca = self
            .environment
            .path("cloud/clusters")
            .join(&workspace)
            .join("ca.crt");
        Ok(Access {
            server: format!("https://127.0.0.1:{port}"),
            ca: std::fs::read_to_string(&ca).with_context(|| format!("cannot read {}", ca.display()))?,
        })
    }

    /// The Cluster's Secrets belong to its control plane, lead to its API server and open it, and the Cluster names that
    /// server too.
    async fn check_access(&self, names: &Names) -> Result<()> {
        let truth = self.truth(names)?;
        let control_plane = self.control_planes().get(names.control_plane).await?;
        let kubeconfig = self.secrets().get(&names::kubeconfig_secret(names.cluster)).await?;
        let ca = self.secrets().get(&names::ca_secret(names.cluster)).await?;
        for secret in [&kubeconfig, &ca] {
            let what = secret.name_any();
            let owners: Vec<&str> = secret.owner_references().iter().map(|owner| owner.uid.as_str()).collect();
            ensure!(
                owners == [control_plane.metadata.uid.as_deref().unwrap_or_default()],
                "{what} belongs to {owners:?}"
            );
            ensure!(
                secret.labels().get(names::label::CLUSTER_NAME).map(String::as_str) == Some(names.cluster),
                "{what} has another cluster's label"
            );
            ensure!(
                secret.data.get("type").and_then(Value::as_str) == Some(names::secret::CLUSTER_TYPE),
                "{what} has another type"
            );
        }
        let text = value(&kubeconfig, names::secret::KUBECONFIG_KEY)?;
        ensure!(
            Access::of(&text)? == truth,
            "the kubeconfig of {} leads elsewhere",
            names.cluster
        );
        ensure!(
            value(&ca, names::secret::CA_KEY)?.trim() == truth.ca.trim(),
            "the CA of {} is another's",
            names.cluster
        );
        opens(&text).await?;

        let (_, port) = truth.server.rsplit_once(':').context("a server without a port")?;
        let endpoint = json!({"host": "127.0.0.1", "port": port.parse::<u16>()?});
        let cluster = self.clusters().get(names.cluster).await?;
        for object in [&cluster, &control_plane] {
            ensure!(
                object.data.pointer("/spec/controlPlaneEndpoint") == Some(&endpoint),
                "{} has the endpoint {:?}, not {endpoint}",
                object.name_any(),
                object.data.pointer("/spec/controlPlaneEndpoint")
            );
        }
        Ok(())
    }

    async fn patch(&self, api: &Api<DynamicObject>, name: &str, patch: Value) -> Result<i64> {
        let patched = api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        patched.metadata.generation.context("an object without a generation")
    }

    /// Returns when core has worked on the Cluster once more: whatever happened before has reached its status.
    async fn core_caught_up(&self, cluster: &mut History) -> Result<()> {
        // Saying what is the default changes nothing but the generation.
        let name = cluster.name.clone();
        let generation = self
            .patch(&self.clusters(), &name, json!({"spec": {"paused": false}}))
            .await?;
        cluster
            .until("seen by core", |c| observed(c) >= generation)
            .await
            .map(drop)
    }

    async fn delete(&self, names: &Names) -> Result<()> {
        self.clusters()
            .delete(names.cluster, &DeleteParams::background())
            .await?;
        History::begin(self.clusters(), names.cluster).await?.until_gone().await
    }

    /// Deletes the Cluster, and finds nothing of it anywhere: not in the management cluster, not in Terraform's state, not in
    /// the cloud.
    async fn delete_without_a_trace(&self, names: &Names) -> Result<()> {
        self.delete(names).await?;
        // The Cluster goes last, so all this is gone by now.
        ensure!(
            self.networks().get_opt(names.network).await?.is_none(),
            "the network is left"
        );
        ensure!(
            self.control_planes().get_opt(names.control_plane).await?.is_none(),
            "the control plane is left"
        );
        for apply in [
            names::vpc_apply_name(names.network),
            names::eks_apply_name(names.control_plane),
        ] {
            ensure!(self.applies().get_opt(&apply).await?.is_none(), "{apply} is left");
        }
        let workspaces = objects(&self.client, "tf.upbound.io/v1beta1", "Workspace", None);
        let states: Api<Secret> = Api::namespaced(self.client.clone(), components::STATE_NAMESPACE);
        for workspace in self.workspaces(names) {
            ensure!(
                workspaces.get_opt(&workspace).await?.is_none(),
                "Workspace {workspace} is left"
            );
            ensure!(self.entry(&workspace)?.is_none(), "{workspace} is left in the cloud");
            let state = format!("tfstate-{workspace}-capt");
            ensure!(states.get_opt(&state).await?.is_none(), "{state} is left");
        }
        let ours = ListParams::default().labels(&format!("{}={}", names::label::CLUSTER_NAME, names.cluster));
        let left: Vec<String> = self
            .secrets()
            .list(&ours)
            .await?
            .iter()
            .map(ResourceExt::name_any)
            .collect();
        ensure!(left.is_empty(), "Secrets are left: {left:?}");
        // The provider's own Secrets are collected as garbage after their Workspaces.
        for secret in [
            names::vpc_connection_secret(names.network),
            names::eks_connection_secret(names.cluster),
        ] {
            until_gone(&self.secrets(), &secret).await?;
        }
        Ok(())
    }

    /// Runs clusterctl as a user would, and returns what it prints.
    async fn clusterctl(&self, arguments: &[&str]) -> Result<String> {
        let tools = Toolbox::ready(self.environment.cache()).await?;
        let Output { status, stdout, stderr } = tokio::process::Command::new(tools.program("clusterctl")?)
            .args(arguments)
            .args(["--namespace", &self.namespace])
            .env("KUBECONFIG", self.environment.kubeconfig())
            .kill_on_drop(true)
            .output()
            .await?;
        ensure!(
            status.success(),
            "clusterctl {arguments:?}: {}",
            String::from_utf8_lossy(&stderr)
        );
        Ok(String::from_utf8(stdout)?)
    }
}

/// Every version of one object, from before the test acted to whatever was awaited last.
struct History {
    name: String,
    events: BoxStream<'static, watcher::Result<Event<DynamicObject>>>,
    /// `None` where it was gone.
    seen: Vec<Option<DynamicObject>>,
}

impl History {
    /// Begins with the object as it stands.
    async fn begin(api: Api<DynamicObject>, name: &str) -> Result<Self> {
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let mut history = Self {
            name: name.to_owned(),
            events: watcher::watcher(api, config).boxed(),
            seen: Vec::new(),
        };
        while !history.step().await? {}
        if history.seen.is_empty() {
            history.seen.push(None);
        }
        Ok(history)
    }

    /// Takes in what happened next; whether that was the end of the list.
    async fn step(&mut self) -> Result<bool> {
        match self.events.next().await.context("the watch has ended")?? {
            Event::Apply(object) | Event::InitApply(object) => self.seen.push(Some(object)),
            Event::Delete(_) => self.seen.push(None),
            Event::Init => {
                // A second list would hide what happened in between.
                ensure!(self.seen.is_empty(), "the watch of {} was interrupted", self.name);
            }
            Event::InitDone => return Ok(true),
        }
        Ok(false)
    }

    async fn until(&mut self, what: &str, holds: impl Fn(&DynamicObject) -> bool) -> Result<DynamicObject> {
        self.follow(what, |object| object.is_some_and(&holds)).await?;
        let last = self.seen.last().cloned().flatten();
        last.context("the object vanished")
    }

    async fn until_gone(&mut self) -> Result<()> {
        self.follow("gone", |object| object.is_none()).await
    }

    async fn follow(&mut self, what: &str, holds: impl Fn(Option<&DynamicObject>) -> bool) -> Result<()> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while !self.seen.last().is_some_and(|last| holds(last.as_ref())) {
            let Ok(step) = tokio::time::timeout_at(deadline, self.step()).await else {
                let last = serde_json::to_string_pretty(&self.seen.last())?;
                bail!("{}: not {what} within {} s; it is\n{last}", self.name, PATIENCE.as_secs());
            };
            step?;
        }
        Ok(())
    }

    /// What each version tells, without repetitions.
    fn tells<T: PartialEq>(&self, told: impl Fn(&DynamicObject) -> T) -> Vec<T> {
        let mut story: Vec<T> = self.seen.iter().flatten().map(told).collect();
        story.dedup();
        story
    }

    fn was_ever_gone(&self) -> bool {
        self.seen.iter().any(Option::is_none)
    }
}

/// Where a kubeconfig leads, and whom it trusts there.
#[derive(PartialEq)]
struct Access {
    server: String,
    ca: String,
}

impl Access {
    fn of(kubeconfig: &str) -> Result<Self> {
        let kubeconfig = Kubeconfig::from_yaml(kubeconfig)?;
        let [cluster] = kubeconfig.clusters.as_slice() else {
            bail!("a kubeconfig with {} clusters", kubeconfig.clusters.len());
        };
        let cluster = cluster.cluster.as_ref().context("an empty cluster")?;
        let ca = cluster
            .certificate_authority_data
            .as_ref()
            .context("a kubeconfig without a CA")?;
        Ok(Self {
            server: cluster.server.clone().context("a kubeconfig without a server")?,
            ca: String::from_utf8(STANDARD.decode(ca)?)?,
        })
    }
}

/// Reads something from the API server that the kubeconfig leads to.
async fn opens(kubeconfig: &str) -> Result<()> {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let namespaces: Api<Namespace> = Api::all(Client::try_from(config)?);
    namespaces.get("default").await.context("the kubeconfig opens nothing")?;
    Ok(())
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples/local")
}

fn value(secret: &DynamicObject, key: &str) -> Result<String> {
    let data = secret
        .data
        .get("data")
        .and_then(|data| data.get(key))
        .and_then(Value::as_str);
    let data = data.with_context(|| format!("{} has no key {key}", secret.name_any()))?;
    Ok(String::from_utf8(STANDARD.decode(data)?)?)
}

fn is_true(object: &DynamicObject, type_: &str) -> bool {
    condition(object, type_).starts_with("True/")
}

/// The status of a condition, without its reason.
fn status(object: &DynamicObject, type_: &str) -> String {
    let condition = condition(object, type_);
    condition.split('/').next().unwrap_or_default().to_owned()
}

fn text<'a>(object: &'a DynamicObject, pointer: &str) -> &'a str {
    object.data.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn phase(control_plane: &DynamicObject) -> &str {
    text(control_plane, "/status/phase")
}

fn observed(object: &DynamicObject) -> i64 {
    object
        .data
        .pointer("/status/observedGeneration")
        .and_then(Value::as_i64)
        .unwrap_or_default()
}

fn failure_domains(cluster: &DynamicObject) -> Vec<&str> {
    let domains = cluster.data.pointer("/status/failureDomains").and_then(Value::as_array);
    let names = domains.into_iter().flatten().filter_map(|domain| domain.get("name")?.as_str());
    names.collect()
}

/// Whether the control plane was ready again for this generation, or a later one.
fn ready_since(generation: i64) -> impl Fn(&DynamicObject) -> bool {
    move |control_plane| is_true(control_plane, "Ready") && observed(control_plane) >= generation
}
