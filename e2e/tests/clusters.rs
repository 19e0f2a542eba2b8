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
            let (name, spec, wish) = match object.get("kind").and_then(Value::as_str) {
                Some("Cluster") => {
                    let references = json!({
                        "infrastructureRef": {"name": names.network}, "controlPlaneRef": {"name": names.control_plane},
                    });
                    (names.cluster, references, &wishes.cluster)
                }
                Some("CAPTCluster") => (names.network, json!({}), &wishes.network),
                Some("CAPTControlPlane") => (names.control_plane, json!({}), &wishes.control_plane),
                other => bail!("the example has an object of kind {other:?}"),
            };
            json_patch::merge(&mut object, &json!({"metadata": {"name": name}, "spec": spec}));
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
        let port = entry.port.with_context(|| format!("{workspace} listens nowhere"))?;
        let ca = self.environment.path("cloud/clusters").join(&workspace).join("ca.crt");
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
            let owners: Vec<&str> = secret
                .owner_references()
                .iter()
                .map(|owner| owner.uid.as_str())
                .collect();
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
                let mut last = serde_json::to_value(self.seen.last())?;
                // The values of a Secret are nobody's business.
                if let Some(fields) = last.as_object_mut() {
                    fields.remove("data");
                }
                let last = serde_json::to_string_pretty(&last)?;
                bail!(
                    "{}: not {what} within {} s; it is\n{last}",
                    self.name,
                    PATIENCE.as_secs()
                );
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
    namespaces
        .get("default")
        .await
        .context("the kubeconfig opens nothing")?;
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

/// Kind and namespace/name of each object that `clusterctl describe` draws.
fn tree(described: &str) -> Vec<(String, String)> {
    let rows = described.lines().filter_map(|line| {
        let mut words = line
            .trim_start_matches(|c: char| !c.is_alphanumeric())
            .split_whitespace();
        Some((words.next()?.to_owned(), words.next()?.trim_end_matches(',').to_owned()))
    });
    rows.collect()
}

fn failure_domains(cluster: &DynamicObject) -> Vec<&str> {
    let domains = cluster.data.pointer("/status/failureDomains").and_then(Value::as_array);
    let names = domains
        .into_iter()
        .flatten()
        .filter_map(|domain| domain.get("name")?.as_str());
    names.collect()
}

/// Whether the control plane was ready again for this generation, or a later one.
fn ready_since(generation: i64) -> impl Fn(&DynamicObject) -> bool {
    move |control_plane| is_true(control_plane, "Ready") && observed(control_plane) >= generation
}

#[tokio::test]
async fn names_that_all_differ_and_names_that_nearly_clash() -> Result<()> {
    let bench = Bench::new("names").await?;
    let first = Names {
        cluster: "blue",
        network: "network",
        control_plane: "service",
    };
    // The contract's Secret of the second has the name of the first's alias, and its parts have names of the first's parts.
    let second = Names {
        cluster: "blue-control-plane",
        network: "service",
        control_plane: "blue",
    };
    bench.cluster(&first, Wishes::default()).await?;
    let contested = names::kubeconfig_alias_secret(first.cluster);
    assert_eq!(contested, names::kubeconfig_secret(second.cluster));
    let mut control_plane = History::begin(bench.control_planes(), first.control_plane).await?;
    control_plane.until("Ready", |c| is_true(c, "Ready")).await?;
    let mut secret = History::begin(bench.secrets(), &contested).await?;
    let alias = secret.until("made", |_| true).await?;
    assert!(
        Access::of(&value(&alias, "value")?)? == bench.truth(&first)?,
        "the first's alias"
    );

    bench.cluster(&second, Wishes::default()).await?;
    let (of_first, of_second) = try_join(bench.available(&first), bench.available(&second)).await?;
    for (names, cluster) in [(&first, &of_first), (&second, &of_second)] {
        assert_eq!(
            failure_domains(cluster),
            ["eu-west-1a", "eu-west-1b", "eu-west-1c"],
            "{}",
            names.cluster
        );
        bench.check_access(names).await?;
        let described = bench.clusterctl(&["describe", "cluster", names.cluster]).await?;
        let rows = tree(&described);
        for (kind, name) in [
            ("Cluster", names.cluster),
            ("CAPTCluster", names.network),
            ("CAPTControlPlane", names.control_plane),
        ] {
            let row = (kind.to_owned(), format!("{}/{name}", bench.namespace));
            assert!(rows.contains(&row), "{row:?} is not in\n{described}");
        }
        let printed = bench.clusterctl(&["get", "kubeconfig", names.cluster]).await?;
        assert!(Access::of(&printed)? == bench.truth(names)?, "clusterctl's kubeconfig");
    }
    assert!(bench.truth(&first)? != bench.truth(&second)?, "two API servers");
    let waived = bench.control_planes().get(first.control_plane).await?;
    assert!(
        message(&waived, "SecretsReady").contains(second.cluster),
        "why the alias is not there is said: {}",
        message(&waived, "SecretsReady")
    );

    bench.delete_without_a_trace(&second).await?;
    // The name is free again, and the first is as it was.
    let back = secret
        .until("the first's again", |secret| {
            // Another Secret than the alias of the beginning, which is where this history stands.
            secret.uid() != alias.uid()
                && secret.labels().get(names::label::CLUSTER_NAME).map(String::as_str) == Some(first.cluster)
        })
        .await?;
    assert!(Access::of(&value(&back, "value")?)? == bench.truth(&first)?);
    bench.check_access(&first).await?;
    bench.delete_without_a_trace(&first).await?;
    let left: Vec<String> = bench
        .secrets()
        .list(&ListParams::default())
        .await?
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    assert!(left.is_empty(), "Secrets are left: {left:?}");
    Ok(())
}

#[tokio::test]
async fn an_existing_vpc_and_an_endpoint_that_only_the_secret_tells() -> Result<()> {
    let bench = Bench::new("existing").await?;
    let names = Names::same("lodger");
    let template = objects(
        &bench.client,
        INFRASTRUCTURE,
        "WorkspaceTemplate",
        Some(&bench.namespace),
    )
    .get("local-eks")
    .await?;
    let module = text(&template, "/spec/template/spec/forProvider/module");
    let open = "output \"cluster_endpoint\" {\n";
    assert!(module.contains(open), "the template has changed:\n{module}");
    let discreet = json!({
        "metadata": {"name": "discreet-eks"},
        "spec": {"template": {"spec": {"forProvider": {"module": module.replace(open, &format!("{open}  sensitive = true\n"))}}}},
    });
    let mut manifest =
        json!({"apiVersion": INFRASTRUCTURE, "kind": "WorkspaceTemplate", "spec": template.data.get("spec")});
    json_patch::merge(&mut manifest, &discreet);
    bench.create(manifest, &Value::Null).await?;
    let wishes = Wishes {
        control_plane: json!({"spec": {"workspaceTemplateRef": {"name": "discreet-eks"}}}),
        ..Wishes::existing_vpc()
    };
    bench.cluster(&names, wishes).await?;

    let cluster = bench.available(&names).await?;
    assert!(
        failure_domains(&cluster).is_empty(),
        "nobody told the zones of that VPC"
    );
    let apply = bench.applies().get(&names::eks_apply_name(names.control_plane)).await?;
    let outputs = apply.data.pointer("/status/outputs").context("no outputs")?;
    assert!(
        outputs.get("cluster_name").is_some() && outputs.get("cluster_endpoint").is_none(),
        "{outputs}"
    );
    bench.check_access(&names).await?;
    let control_plane = bench.control_planes().get(names.control_plane).await?;
    assert_eq!(condition(&control_plane, "EndpointReady"), "True/EndpointPublished");
    let network = bench.networks().get(names.network).await?;
    assert_eq!(text(&network, "/status/vpcId"), "vpc-0123456789abcdef0");
    assert_eq!(condition(&network, "VPCReady"), "True/ExistingVPCUsed");
    let [vpc, eks] = bench.workspaces(&names);
    assert!(bench.entry(&vpc)?.is_none(), "no VPC is made");
    let entry = bench.entry(&eks)?.context("no cluster")?;
    assert_eq!(entry.input("vpc_id"), "vpc-0123456789abcdef0");
    bench.delete_without_a_trace(&names).await
}

#[tokio::test]
async fn the_same_names_in_two_namespaces() -> Result<()> {
    let benches = [Bench::new("east").await?, Bench::new("west").await?];
    let names = Names::same("twin");
    for bench in &benches {
        bench.cluster(&names, Wishes::default()).await?;
    }
    try_join_all(benches.iter().map(|bench| bench.available(&names))).await?;
    for bench in &benches {
        bench.check_access(&names).await?;
    }
    let [east, west] = &benches;
    assert!(east.truth(&names)? != west.truth(&names)?, "two API servers");

    // One goes; the other does not even notice.
    let mut cluster = History::begin(west.clusters(), names.cluster).await?;
    let mut control_plane = History::begin(west.control_planes(), names.control_plane).await?;
    let mut kubeconfig = History::begin(west.secrets(), &names::kubeconfig_secret(names.cluster)).await?;
    east.delete_without_a_trace(&names).await?;
    west.core_caught_up(&mut cluster).await?;
    assert_eq!(cluster.tells(|c| status(c, "Available")), ["True"]);
    west.check_access(&names).await?;
    west.delete_without_a_trace(&names).await?;
    // Until its own deletion it was not written once.
    for history in [&mut control_plane, &mut kubeconfig] {
        history.until_gone().await?;
    }
    let living = |object: &DynamicObject| {
        object
            .metadata
            .deletion_timestamp
            .is_none()
            .then(|| object.resource_version())
    };
    let versions = control_plane.tells(living);
    assert_eq!(versions.iter().flatten().count(), 1, "{versions:?}");
    let versions = kubeconfig.tells(living);
    assert_eq!(versions.iter().flatten().count(), 1, "{versions:?}");
    Ok(())
}

#[tokio::test]
async fn a_new_version_is_rolled_out_under_a_running_cluster() -> Result<()> {
    let bench = Bench::new("version").await?;
    let names = Names::same("riser");
    bench.cluster(&names, Wishes::existing_vpc()).await?;
    bench.available(&names).await?;
    let mut cluster = History::begin(bench.clusters(), names.cluster).await?;
    let mut control_plane = History::begin(bench.control_planes(), names.control_plane).await?;
    let mut kubeconfig = History::begin(bench.secrets(), &names::kubeconfig_secret(names.cluster)).await?;

    let version = json!({"spec": {"version": "1.32"}});
    let generation = bench
        .patch(&bench.control_planes(), names.control_plane, version)
        .await?;
    control_plane
        .until("Ready anew", |c| {
            ready_since(generation)(c) && text(c, "/status/version") == "1.32"
        })
        .await?;
    bench.core_caught_up(&mut cluster).await?;

    assert_eq!(control_plane.tells(|c| status(c, "Ready")), ["True", "False", "True"]);
    assert_eq!(
        control_plane.tells(|c| phase(c).to_owned()),
        ["Ready", "Creating", "Ready"]
    );
    let versions = |c: &DynamicObject| c.data.pointer("/status/versions").cloned().unwrap_or_default();
    assert_eq!(
        control_plane.tells(versions),
        [json!([{"version": "1.31"}]), json!([{"version": "1.32"}])]
    );
    for lasting in ["Available", "Initialized", "EndpointReady", "SecretsReady"] {
        assert_eq!(control_plane.tells(|c| status(c, lasting)), ["True"], "{lasting}");
    }
    assert_eq!(cluster.tells(|c| status(c, "Available")), ["True"]);
    let [_, eks] = bench.workspaces(&names);
    let entry = bench.entry(&eks)?.context("no cluster")?;
    assert_eq!(entry.input("kubernetes_version"), "1.32");

    // The Secret as it stands now is the last of its history.
    let now = bench.secrets().get(&names::kubeconfig_secret(names.cluster)).await?;
    kubeconfig
        .until("up to date", |secret| {
            secret.resource_version() == now.resource_version()
        })
        .await?;
    assert!(!kubeconfig.was_ever_gone());
    assert_eq!(kubeconfig.tells(ResourceExt::uid).len(), 1, "one Secret all the time");
    for version in kubeconfig.tells(|secret| value(secret, "value").ok()) {
        opens(&version.context("a version without a kubeconfig")?).await?;
    }
    bench.check_access(&names).await?;
    bench.delete_without_a_trace(&names).await
}

#[tokio::test]
async fn the_users_own_endpoint_is_never_overwritten() -> Result<()> {
    let bench = Bench::new("endpoint").await?;
    let names = Names::same("chosen");
    let own = json!({"host": "api.example.com", "port": 6443});
    let mut cluster = History::begin(bench.clusters(), names.cluster).await?;
    let wishes = Wishes {
        cluster: json!({"spec": {"controlPlaneEndpoint": own}}),
        ..Wishes::existing_vpc()
    };
    bench.cluster(&names, wishes).await?;
    cluster.until("Available", |c| is_true(c, "Available")).await?;

    let control_plane = bench.control_planes().get(names.control_plane).await?;
    assert_eq!(condition(&control_plane, "EndpointReady"), "True/UserSupplied");
    let truth = bench.truth(&names)?;
    let found = truth.server.strip_prefix("https://").context("a URL")?;
    for endpoint in ["api.example.com:6443", found] {
        assert!(
            message(&control_plane, "EndpointReady").contains(endpoint),
            "{endpoint} is not in: {}",
            message(&control_plane, "EndpointReady")
        );
    }
    // The kubeconfig is Terraform's: it opens the cluster whatever the Cluster says.
    let kubeconfig = bench.secrets().get(&names::kubeconfig_secret(names.cluster)).await?;
    assert!(Access::of(&value(&kubeconfig, "value")?)? == truth);

    // Neither another round of Terraform nor the end of the control plane touches it.
    let mut history = History::begin(bench.control_planes(), names.control_plane).await?;
    let version = json!({"spec": {"version": "1.32"}});
    let generation = bench
        .patch(&bench.control_planes(), names.control_plane, version)
        .await?;
    let again = history
        .until("Ready anew", |c| {
            ready_since(generation)(c) && text(c, "/status/version") == "1.32"
        })
        .await?;
    assert_eq!(condition(&again, "EndpointReady"), "True/UserSupplied");
    bench.delete_without_a_trace(&names).await?;
    cluster.until_gone().await?;
    let endpoints = cluster.tells(|c| c.data.pointer("/spec/controlPlaneEndpoint").cloned());
    assert_eq!(endpoints, [Some(own)]);
    Ok(())
}

#[tokio::test]
async fn a_failed_change_leaves_a_running_cluster_in_use() -> Result<()> {
    let bench = Bench::new("broken").await?;
    let names = Names::same("sturdy");
    bench.cluster(&names, Wishes::existing_vpc()).await?;
    bench.available(&names).await?;
    let mut cluster = History::begin(bench.clusters(), names.cluster).await?;
    let mut control_plane = History::begin(bench.control_planes(), names.control_plane).await?;

    let fault = json!({"spec": {"variables": {"fault_apply": "quota of clusters exceeded"}}});
    bench.patch(&bench.control_planes(), names.control_plane, fault).await?;
    let failed = control_plane
        .until("failed", |c| condition(c, "Ready") == "False/TerraformFailed")
        .await?;
    for type_ in ["Ready", "Failed"] {
        assert!(
            message(&failed, type_).contains("quota of clusters exceeded"),
            "{type_}: {}",
            message(&failed, type_)
        );
    }
    assert_eq!(condition(&failed, "Failed"), "True/TerraformFailed");
    assert_eq!(phase(&failed), "Failed");
    bench.check_access(&names).await?;
    bench.core_caught_up(&mut cluster).await?;

    let healthy = json!({"spec": {"variables": {"fault_apply": null}}});
    let generation = bench
        .patch(&bench.control_planes(), names.control_plane, healthy)
        .await?;
    let healed = control_plane.until("healed", ready_since(generation)).await?;
    assert_eq!(condition(&healed, "Failed"), "False/NoFailure");
    assert_eq!(phase(&healed), "Ready");
    assert_eq!(text(&healed, "/status/workspaceTemplateStatus/lastFailureMessage"), "");

    for lasting in ["Available", "Initialized", "EndpointReady", "SecretsReady"] {
        assert_eq!(control_plane.tells(|c| status(c, lasting)), ["True"], "{lasting}");
    }
    assert_eq!(control_plane.tells(|c| status(c, "Ready")), ["True", "False", "True"]);
    assert_eq!(control_plane.tells(|c| status(c, "Failed")), ["False", "True", "False"]);
    assert_eq!(
        control_plane.tells(|c| text(c, "/status/failureReason").to_owned()),
        [""],
        "a cluster in use has no terminal failure"
    );
    assert_eq!(cluster.tells(|c| status(c, "Available")), ["True"]);
    bench.check_access(&names).await?;
    bench.delete_without_a_trace(&names).await
}

#[tokio::test]
async fn a_first_apply_that_fails_once_heals_by_itself() -> Result<()> {
    let bench = Bench::new("once").await?;
    let names = Names::same("stumbler");
    let mut network = History::begin(bench.networks(), names.network).await?;
    let mut control_plane = History::begin(bench.control_planes(), names.control_plane).await?;
    let wishes = Wishes {
        network: json!({"spec": {"variables": {"fault_apply_once": "out of addresses"}}}),
        control_plane: json!({"spec": {"variables": {"fault_apply_once": "out of capacity"}}}),
        ..Wishes::default()
    };
    bench.cluster(&names, wishes).await?;
    // Both are seen to fail, so that the end is a recovery and not a fault that never came.
    let failing = network
        .until("failing", |n| condition(n, "VPCFailed") == "True/VPCCreationFailed")
        .await?;
    assert!(
        message(&failing, "VPCFailed").contains("out of addresses"),
        "{}",
        message(&failing, "VPCFailed")
    );
    let failing = control_plane
        .until("failing", |c| condition(c, "Failed") == "True/TerraformFailed")
        .await?;
    assert!(
        message(&failing, "Failed").contains("out of capacity"),
        "{}",
        message(&failing, "Failed")
    );

    let cluster = bench.available(&names).await?;
    bench.check_access(&names).await?;
    assert!(
        cluster
            .data
            .pointer("/status/deprecated/v1beta1/failureReason")
            .is_none(),
        "core was told of a failure"
    );
    let network_now = network.until("healed", |n| is_true(n, "VPCReady")).await?;
    assert_eq!(condition(&network_now, "VPCFailed"), "False/NoFailure");
    let control_plane_now = control_plane.until("healed", |c| is_true(c, "Ready")).await?;
    assert_eq!(condition(&control_plane_now, "Failed"), "False/NoFailure");
    // What Terraform's provider retries by itself is no terminal failure at any time.
    for history in [&network, &control_plane] {
        assert_eq!(
            history.tells(|object| text(object, "/status/failureReason").to_owned()),
            [""]
        );
    }
    for object in [&network_now, &control_plane_now] {
        assert_eq!(text(object, "/status/workspaceTemplateStatus/lastFailureMessage"), "");
    }
    bench.delete_without_a_trace(&names).await
}
