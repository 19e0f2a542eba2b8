//! Whole clusters for tests: a namespace, the local cloud's templates in it, and the means to make clusters from them, to
//! disturb them and to see that they are well, or gone without a trace.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use capt_api::{WorkspaceKind, names};
use flate2::read::GzDecoder;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::history::History;
use super::watchman::Watchman;
use super::{PATIENCE, condition, create, is_true, message, objects, observed, status, text, until_gone};
use crate::cloud::{self, Entry};
use crate::components;
use crate::environment::Environment;
use crate::manifests;
use crate::tools::Toolbox;
use crate::{up, wait};

pub const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io/v1beta1";
pub const CONTROL_PLANE: &str = "controlplane.cluster.x-k8s.io/v1beta1";
pub const CORE: &str = "cluster.x-k8s.io/v1beta2";
pub const TERRAFORM: &str = "tf.upbound.io/v1beta1";

/// A Cluster and what it refers to.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    pub cluster: &'static str,
    pub network: &'static str,
    pub control_plane: &'static str,
}

impl Names {
    /// As in most manifests: one name for all.
    pub const fn same(name: &'static str) -> Self {
        Self {
            cluster: name,
            network: name,
            control_plane: name,
        }
    }
}

/// What a test wants to be different from the example; merged into the objects.
#[derive(Debug, Default, Clone)]
pub struct Wishes {
    pub cluster: Value,
    pub network: Value,
    pub control_plane: Value,
}

impl Wishes {
    /// A cluster in a VPC that is there already: one Terraform run less.
    pub fn existing_vpc() -> Self {
        Self {
            network: json!({"spec": {"vpcTemplateRef": null, "existingVpcId": "vpc-0123456789abcdef0"}}),
            ..Self::default()
        }
    }

    /// With more or other fields of the CAPTCluster.
    pub fn network(mut self, wish: Value) -> Self {
        add(&mut self.network, wish);
        self
    }

    /// With more or other fields of the CAPTControlPlane.
    pub fn control_plane(mut self, wish: Value) -> Self {
        add(&mut self.control_plane, wish);
        self
    }

    /// With more or other fields of the Cluster.
    pub fn cluster(mut self, wish: Value) -> Self {
        add(&mut self.cluster, wish);
        self
    }
}

/// A `null` takes a field out of the example, so it has to last until the wish is merged into that.
fn add(wishes: &mut Value, wish: Value) {
    match (wishes, wish) {
        (Value::Object(wishes), Value::Object(wish)) => {
            for (key, value) in wish {
                add(wishes.entry(key).or_insert(Value::Null), value);
            }
        }
        (wishes, wish) => *wishes = wish,
    }
}

/// A namespace, and the means to make clusters in it.
pub struct Bench {
    pub client: Client,
    pub environment: Environment,
    pub namespace: String,
    /// The Workspaces that the environment's applies get.
    pub kind: WorkspaceKind,
    /// Where Terraform makes things, and keeps its states: this environment, unless it works for another one.
    cloud: Environment,
    states: Client,
    watchman: Watchman,
}

impl Bench {
    /// In the environment of the tests, with the templates of the local cloud.
    pub async fn new(prefix: &str) -> Result<Self> {
        Self::of(super::environment()?, prefix).await
    }

    /// The same in another environment.
    pub async fn of(environment: Environment, prefix: &str) -> Result<Self> {
        let bench = Self::bare(environment, prefix).await?;
        bench.create_templates().await?;
        Ok(bench)
    }

    /// Without the templates.
    pub async fn bare(environment: Environment, prefix: &str) -> Result<Self> {
        let client = up::client(&environment.kubeconfig()).await?;
        let namespace = super::namespace(&client, prefix).await?;
        Self::within(environment, &namespace).await
    }

    /// In a namespace that is there, without the templates.
    pub async fn within(environment: Environment, namespace: &str) -> Result<Self> {
        let client = up::client(&environment.kubeconfig()).await?;
        let namespace = namespace.to_owned();
        Ok(Self {
            watchman: Watchman::start(&client, &namespace),
            cloud: environment.clone(),
            states: client.clone(),
            client,
            environment,
            namespace,
            kind: WorkspaceKind::ClusterScoped,
        })
    }

    /// In an environment whose applies get Workspaces of this kind.
    #[must_use]
    pub fn with_workspaces(self, kind: WorkspaceKind) -> Self {
        Self { kind, ..self }
    }

    /// The namespace of the same name in another environment, whose Terraform has this one's cloud and backend.
    pub async fn beside(&self, environment: Environment) -> Result<Self> {
        let client = up::client(&environment.kubeconfig()).await?;
        Ok(Self {
            watchman: Watchman::start(&client, &self.namespace),
            cloud: self.cloud.clone(),
            states: self.states.clone(),
            namespace: self.namespace.clone(),
            kind: self.kind,
            client,
            environment,
        })
    }

    pub async fn create_templates(&self) -> Result<()> {
        for name in ["local-vpc", "local-eks"] {
            self.create(template(name)?, &Value::Null).await?;
        }
        Ok(())
    }

    /// Creates an object in this namespace, whichever one its manifest names.
    pub async fn create(&self, mut object: Value, wish: &Value) -> Result<DynamicObject> {
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
    pub async fn cluster(&self, names: &Names, wishes: Wishes) -> Result<()> {
        for kind in ["CAPTCluster", "CAPTControlPlane", "Cluster"] {
            self.part(kind, names, &wishes).await?;
        }
        Ok(())
    }

    /// Creates one of the three.
    pub async fn part(&self, kind: &str, names: &Names, wishes: &Wishes) -> Result<DynamicObject> {
        let manifests = manifests::read(&examples().join("cluster.yaml"))?;
        let manifest = manifests
            .into_iter()
            .find(|manifest| manifest.get("kind").and_then(Value::as_str) == Some(kind));
        let mut manifest = manifest.with_context(|| format!("the example has no {kind}"))?;
        let (name, spec, wish) = match kind {
            "Cluster" => {
                let references = json!({
                    "infrastructureRef": {"name": names.network}, "controlPlaneRef": {"name": names.control_plane},
                });
                (names.cluster, references, &wishes.cluster)
            }
            "CAPTCluster" => (names.network, json!({}), &wishes.network),
            _ => (names.control_plane, json!({}), &wishes.control_plane),
        };
        json_patch::merge(&mut manifest, &json!({"metadata": {"name": name}, "spec": spec}));
        self.create(manifest, wish).await
    }

    pub fn clusters(&self) -> Api<DynamicObject> {
        objects(&self.client, CORE, "Cluster", Some(&self.namespace))
    }

    pub fn networks(&self) -> Api<DynamicObject> {
        objects(&self.client, INFRASTRUCTURE, "CAPTCluster", Some(&self.namespace))
    }

    pub fn control_planes(&self) -> Api<DynamicObject> {
        objects(&self.client, CONTROL_PLANE, "CAPTControlPlane", Some(&self.namespace))
    }

    pub fn applies(&self) -> Api<DynamicObject> {
        objects(
            &self.client,
            INFRASTRUCTURE,
            "WorkspaceTemplateApply",
            Some(&self.namespace),
        )
    }

    pub fn templates(&self) -> Api<DynamicObject> {
        objects(&self.client, INFRASTRUCTURE, "WorkspaceTemplate", Some(&self.namespace))
    }

    pub fn secrets(&self) -> Api<DynamicObject> {
        objects(&self.client, "v1", "Secret", Some(&self.namespace))
    }

    pub fn namespaces(&self) -> Api<DynamicObject> {
        objects(&self.client, "v1", "Namespace", None)
    }

    pub fn all_workspaces(&self) -> Api<DynamicObject> {
        let namespace = match self.kind {
            WorkspaceKind::ClusterScoped => None,
            WorkspaceKind::Namespaced => Some(self.namespace.as_str()),
        };
        objects(&self.client, &self.kind.to_string(), "Workspace", namespace)
    }

    /// Watches an object until it is as wanted, with the patience that whole clusters need.
    pub async fn until(
        &self,
        api: Api<DynamicObject>,
        name: &str,
        what: &str,
        holds: impl Fn(&DynamicObject) -> bool,
    ) -> Result<DynamicObject> {
        History::begin(api, name).await?.until(what, holds).await
    }

    /// Waits until core itself calls the Cluster available, having reached its API server, and its control plane is as wished.
    pub async fn available(&self, names: &Names) -> Result<DynamicObject> {
        let available = self
            .until(self.clusters(), names.cluster, "Available", |c| is_true(c, "Available"))
            .await?;
        ensure!(
            is_true(&available, "RemoteConnectionProbe"),
            "available, but not connected: {}",
            condition(&available, "RemoteConnectionProbe")
        );
        // It stays available while a change is made to it.
        let is_ready = |c: &DynamicObject| is_true(c, "Ready") && text(c, "/status/phase") == "Ready";
        self.until(self.control_planes(), names.control_plane, "Ready", is_ready)
            .await?;
        Ok(available)
    }

    /// The Terraform workspaces of a cluster: the network's, then the control plane's.
    pub fn workspaces(&self, names: &Names) -> [String; 2] {
        [
            names::vpc_apply_name(names.network),
            names::eks_apply_name(names.control_plane),
        ]
        .map(|apply| names::workspace_name(&self.namespace, &apply))
    }

    /// Everything that the cloud has.
    pub fn ledger(&self) -> Result<Vec<Entry>> {
        cloud::entries(&self.cloud)
    }

    /// What the cloud has of a workspace.
    pub fn entry(&self, workspace: &str) -> Result<Option<Entry>> {
        let entries = self.ledger()?;
        Ok(entries.into_iter().find(|entry| entry.name == workspace))
    }

    /// Lets every apply of a workspace fail, until [`Self::heal`]. Ends an apply that is slow on purpose.
    pub async fn fail_applies(&self, workspace: &str, message: &str) -> Result<()> {
        self.fault(workspace, Some(message), None).await
    }

    /// Lets every destroy of a workspace fail, until [`Self::heal`].
    pub async fn fail_destroys(&self, workspace: &str, message: &str) -> Result<()> {
        self.fault(workspace, None, Some(message)).await
    }

    async fn fault(&self, workspace: &str, apply: Option<&str>, destroy: Option<&str>) -> Result<()> {
        let command = cloud::Command::Fault {
            name: workspace.to_owned(),
            apply: apply.map(str::to_owned),
            destroy: destroy.map(str::to_owned),
        };
        cloud::run(&self.cloud, command).await
    }

    /// Frees a workspace of all faults, and of slowness.
    pub async fn heal(&self, workspace: &str) -> Result<()> {
        let command = cloud::Command::Heal {
            name: workspace.to_owned(),
        };
        cloud::run(&self.cloud, command).await
    }

    /// Returns when Terraform waits for a workspace that is slow on purpose.
    pub async fn until_lingering(&self, workspace: &str) -> Result<()> {
        let looking = async {
            while !cloud::lingers(&self.environment, workspace)? {
                sleep(Duration::from_millis(100)).await;
            }
            anyhow::Ok(())
        };
        timeout(PATIENCE, looking)
            .await
            .with_context(|| format!("Terraform does not reach {workspace}"))?
    }

    /// Where the cloud says that the cluster listens, and the CA that it made for it.
    pub fn truth(&self, names: &Names) -> Result<Access> {
        let [_, workspace] = self.workspaces(names);
        let entry = self
            .entry(&workspace)?
            .with_context(|| format!("{workspace} is not in the ledger"))?;
        let port = entry.port.with_context(|| format!("{workspace} listens nowhere"))?;
        let ca = self.cloud.path("cloud/clusters").join(&workspace).join("ca.crt");
        Ok(Access {
            server: format!("https://127.0.0.1:{port}"),
            ca: std::fs::read_to_string(&ca).with_context(|| format!("cannot read {}", ca.display()))?,
        })
    }

    /// The Cluster's Secrets belong to its control plane, lead to its API server and open it, and the Cluster names that
    /// server too.
    pub async fn check_access(&self, names: &Names) -> Result<()> {
        let truth = self.truth(names)?;
        self.check_secrets(names).await?;
        let (_, port) = truth.server.rsplit_once(':').context("a server without a port")?;
        let endpoint = json!({"host": "127.0.0.1", "port": port.parse::<u16>()?});
        let cluster = self.clusters().get(names.cluster).await?;
        let control_plane = self.control_planes().get(names.control_plane).await?;
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

    /// The Cluster's Secrets belong to its control plane, lead to its API server and open it.
    pub async fn check_secrets(&self, names: &Names) -> Result<()> {
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
        opens(&text).await
    }

    /// Merges a patch into an object; returns its generation.
    pub async fn patch(&self, api: &Api<DynamicObject>, name: &str, patch: Value) -> Result<i64> {
        let patched = api
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .with_context(|| format!("cannot change {name}"))?;
        Ok(patched.metadata.generation.unwrap_or_default())
    }

    /// Returns when core has worked on the Cluster once more: whatever happened before has reached its status.
    pub async fn core_caught_up(&self, cluster: &mut History) -> Result<()> {
        // Saying what is the default changes nothing but the generation.
        let name = cluster.name().to_owned();
        let generation = self
            .patch(&self.clusters(), &name, json!({"spec": {"paused": false}}))
            .await?;
        cluster
            .until("seen by core", |c| observed(c) >= generation)
            .await
            .map(drop)
    }

    /// Returns when core shows on the Cluster what its network and its control plane say now.
    pub async fn mirrored(&self, names: &Names) -> Result<()> {
        let network = self.networks().get(names.network).await?;
        let control_plane = self.control_planes().get(names.control_plane).await?;
        let told = |object: &DynamicObject, type_: &str| (condition(object, type_), message(object, type_).to_owned());
        let wanted = [
            ("InfrastructureReady", told(&network, "Ready")),
            ("ControlPlaneAvailable", told(&control_plane, "Available")),
        ];
        let older = [
            (
                "InfrastructureReady",
                status(&network, "Ready"),
                message(&network, "Ready"),
            ),
            (
                "ControlPlaneReady",
                status(&control_plane, "Ready"),
                message(&control_plane, "Ready"),
            ),
        ];
        self.until(self.clusters(), names.cluster, "showing what is said", |cluster| {
            let shows_older = |(type_, status, message): &(&str, String, &str)| {
                let conditions = cluster.data.pointer("/status/deprecated/v1beta1/conditions");
                let found = conditions.and_then(Value::as_array).into_iter().flatten();
                let field = |condition: &Value, field: &str| condition.get(field)?.as_str().map(str::to_owned);
                found
                    .filter(|condition| field(condition, "type").as_deref() == Some(*type_))
                    .any(|condition| {
                        // What is well needs no words there.
                        field(condition, "status").as_ref() == Some(status)
                            && field(condition, "message").is_none_or(|text| text == *message)
                    })
            };
            wanted.iter().all(|(type_, wanted)| told(cluster, type_) == *wanted) && older.iter().all(shows_older)
        })
        .await
        .map(drop)
    }

    pub async fn delete(&self, names: &Names) -> Result<()> {
        self.clusters()
            .delete(names.cluster, &DeleteParams::background())
            .await?;
        self.gone(names).await
    }

    /// Waits until there is no such Cluster.
    pub async fn gone(&self, names: &Names) -> Result<()> {
        History::begin(self.clusters(), names.cluster).await?.until_gone().await
    }

    /// Deletes the Cluster, and finds nothing of it anywhere.
    pub async fn delete_without_a_trace(&self, names: &Names) -> Result<()> {
        self.delete(names).await?;
        self.no_trace(names).await
    }

    /// Nothing is left of a Cluster that is gone: not in the management cluster, not in Terraform's state, not in the
    /// cloud. The Cluster goes last, so nothing is waited for.
    pub async fn no_trace(&self, names: &Names) -> Result<()> {
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
        for workspace in self.workspaces(names) {
            self.no_workspace(&workspace).await?;
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
        self.invariants_held().await
    }

    /// Nothing is left of a workspace: no Workspace, no Terraform state and lock, nothing in the cloud.
    pub async fn no_workspace(&self, workspace: &str) -> Result<()> {
        ensure!(
            self.all_workspaces().get_opt(workspace).await?.is_none(),
            "Workspace {workspace} is left"
        );
        ensure!(self.entry(workspace)?.is_none(), "{workspace} is left in the cloud");
        let state = format!("tfstate-{workspace}-capt");
        // One that was begun and never used is left by the provider when its Workspace goes before it has a finalizer.
        if let Some(left) = self.state(workspace).await? {
            let resources = left.get("resources").and_then(Value::as_array);
            ensure!(
                resources.is_none_or(Vec::is_empty),
                "{state} is left, with resources in it"
            );
        }
        // From a cache that is late the provider may look once more at a Workspace that is gone: it begins an empty state, with
        // a lock, and removes both.
        let locks: Api<Lease> = Api::namespaced(self.states.clone(), components::STATE_NAMESPACE);
        let is_free = |lock: Option<&Lease>| {
            let holder = lock.and_then(|lock| lock.spec.as_ref()?.holder_identity.as_ref());
            holder.is_none()
        };
        timeout(PATIENCE, wait::until(locks, &format!("lock-{state}"), is_free))
            .await
            .with_context(|| format!("the state of {workspace} is still locked"))?;
        Ok(())
    }

    /// Terraform's state of a workspace. Every apply that changes something gives it a higher serial.
    pub async fn state(&self, workspace: &str) -> Result<Option<Value>> {
        let states: Api<Secret> = Api::namespaced(self.states.clone(), components::STATE_NAMESPACE);
        let Some(secret) = states.get_opt(&format!("tfstate-{workspace}-capt")).await? else {
            return Ok(None);
        };
        // The backend makes it empty, and keeps it compressed.
        let Some(data) = secret.data.as_ref().and_then(|data| data.get("tfstate")) else {
            return Ok(None);
        };
        Ok(Some(serde_json::from_reader(GzDecoder::new(data.0.as_slice()))?))
    }

    /// What must hold of every version of a CAPTCluster and a CAPTControlPlane has held so far.
    pub async fn invariants_held(&self) -> Result<()> {
        self.watchman.report().await
    }

    /// Runs clusterctl as a user would, and returns what it prints.
    pub async fn clusterctl(&self, arguments: &[&str]) -> Result<String> {
        let Output { status, stdout, stderr } = self.clusterctl_command(arguments).await?.output().await?;
        ensure!(
            status.success(),
            "clusterctl {arguments:?}: {}",
            String::from_utf8_lossy(&stderr)
        );
        Ok(String::from_utf8(stdout)?)
    }

    /// A run of clusterctl on this namespace, which ends when it is dropped.
    pub async fn clusterctl_command(&self, arguments: &[&str]) -> Result<tokio::process::Command> {
        let tools = Toolbox::ready(self.environment.cache()).await?;
        let mut command = tokio::process::Command::new(tools.program("clusterctl")?);
        command
            .args(arguments)
            .args(["--namespace", &self.namespace])
            .env("KUBECONFIG", self.environment.kubeconfig())
            .kill_on_drop(true);
        Ok(command)
    }
}

/// A template of the local cloud, as the examples have it.
pub fn template(name: &str) -> Result<Value> {
    let documents = manifests::read(&examples().join("templates").join(format!("{name}.yaml")))?;
    let [template] = <[Value; 1]>::try_from(documents)
        .map_err(|documents| anyhow::anyhow!("{name}.yaml has {} documents", documents.len()))?;
    Ok(template)
}

/// The same with a part of its module replaced; fails when the module has no such part.
pub fn template_with(name: &str, part: &str, replacement: &str) -> Result<Value> {
    let mut template = template(name)?;
    let module = template
        .pointer_mut("/spec/template/spec/forProvider/module")
        .context("a template without a module")?;
    let text = module.as_str().unwrap_or_default();
    ensure!(
        text.contains(part),
        "the module of {name} has no {part:?}: it has changed"
    );
    *module = text.replace(part, replacement).into();
    Ok(template)
}

/// Where a kubeconfig leads, and whom it trusts there.
#[derive(PartialEq)]
pub struct Access {
    pub server: String,
    ca: String,
}

impl Access {
    pub fn of(kubeconfig: &str) -> Result<Self> {
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
pub async fn opens(kubeconfig: &str) -> Result<()> {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let namespaces: Api<Namespace> = Api::all(Client::try_from(config)?);
    namespaces
        .get("default")
        .await
        .context("the kubeconfig opens nothing")?;
    Ok(())
}

/// A value of a Secret.
pub fn value(secret: &DynamicObject, key: &str) -> Result<String> {
    let data = secret
        .data
        .get("data")
        .and_then(|data| data.get(key))
        .and_then(Value::as_str);
    let data = data.with_context(|| format!("{} has no key {key}", secret.name_any()))?;
    Ok(String::from_utf8(STANDARD.decode(data)?)?)
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples/local")
}
