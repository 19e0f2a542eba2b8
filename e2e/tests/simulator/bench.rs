//! What each test has for itself: names, a simulator, a Workspace to create, and a tape of all that happens to it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use capt_e2e::{simulator, testing};
use clap::Parser;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt, discovery};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

pub(super) const REAL: Groups = Groups {
    cluster: "tf.upbound.io",
    namespaced: "tf.m.upbound.io",
};
pub(super) const SIMULATED: Groups = Groups {
    cluster: "tf.simulated.capt.dev",
    namespaced: "tf.m.simulated.capt.dev",
};

pub(super) const LABEL: &str = "capt.dev/test";
pub(super) const FINALIZER: &str = "finalizer.managedresource.crossplane.io";
pub(super) const PENDING: &str = "crossplane.io/external-create-pending";

/// Far more than anything here needs; reaching it is a failure.
pub(super) const PATIENCE: Duration = Duration::from_secs(150);

/// Runs on the real Terraform too, where the fault is a provisioner that fails.
pub(super) const MODULE: &str = r#"{
  "variable": {
    "name": {"type": "string"},
    "fault_apply": {"type": "string", "default": ""},
    "fault_apply_once": {"type": "string", "default": ""},
    "fault_destroy": {"type": "string", "default": ""},
    "slow_seconds": {"type": "string", "default": ""},
    "slow_destroy_seconds": {"type": "string", "default": ""}
  },
  "resource": {"terraform_data": {"main": {
    "input": "${var.name}",
    "triggers_replace": ["${var.name}", "${var.fault_apply}"],
    "provisioner": [{"local-exec": {"command": "test -z \"${var.fault_apply}\""}}]
  }}},
  "output": {
    "made": {"value": "made-${terraform_data.main.output}"},
    "plain": {"value": "${var.name}"},
    "zones": {"value": ["${var.name}a", "${var.name}b"]},
    "password": {"value": "secret-${var.name}", "sensitive": true}
  }
}"#;

#[derive(Clone, Copy)]
pub(super) struct Groups {
    pub(super) cluster: &'static str,
    pub(super) namespaced: &'static str,
}

/// What one test has for itself.
pub(super) struct Bench {
    pub(super) client: Client,
    pub(super) groups: Groups,
    /// A namespace, and the beginning of every name and the value of the label.
    pub(super) id: String,
}

/// Ends with the test, or when it is dropped: then as abruptly as a killed provider.
pub(super) struct Simulator(AbortHandle);

impl Drop for Simulator {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(clap::Parser)]
struct Flags {
    #[command(flatten)]
    args: simulator::Args,
}

impl Bench {
    pub(super) async fn new(prefix: &str) -> Self {
        let client = testing::client().await.expect("an environment");
        let id = testing::namespace(&client, prefix).await.expect("a namespace");
        copy_crds(&client).await;
        let bench = Self {
            client,
            groups: SIMULATED,
            id,
        };
        for (group, kind) in [
            (SIMULATED.cluster, "ProviderConfig"),
            (SIMULATED.namespaced, "ClusterProviderConfig"),
        ] {
            let resource = resource(group, kind);
            let default = DynamicObject::new("default", &resource).data(json!({"spec": {"credentials": []}}));
            let api = Api::all_with(bench.client.clone(), &resource);
            ignore_existing(api.create(&PostParams::default(), &default).await);
        }
        bench
    }

    /// A simulator of this test's Workspaces, quick unless the flags say otherwise.
    pub(super) async fn simulate(&self, flags: &[&str]) -> Simulator {
        let quick = [
            "simulator",
            "--apply-seconds=0",
            "--destroy-seconds=0",
            "--creation-grace-seconds=0",
        ];
        let groups = format!("--groups={},{}", self.groups.cluster, self.groups.namespaced);
        let selector = format!("--selector={LABEL}={}", self.id);
        let mut words: BTreeMap<String, String> = BTreeMap::new();
        for flag in quick
            .iter()
            .skip(1)
            .chain(flags)
            .copied()
            .chain([groups.as_str(), selector.as_str()])
        {
            let (name, _) = flag.split_once('=').expect("--name=value");
            words.insert(name.to_owned(), flag.to_owned());
        }
        let args = Flags::parse_from([quick[0].to_owned()].into_iter().chain(words.into_values())).args;
        let (ready, is_ready) = oneshot::channel();
        let client = self.client.clone();
        let task = tokio::spawn(async move {
            let ended = simulator::serve(client, args, ready).await;
            panic!("the simulator ended by itself: {ended:?}");
        });
        let handle = Simulator(task.abort_handle());
        is_ready.await.expect("a simulator that becomes ready");
        handle
    }

    pub(super) fn name(&self, suffix: &str) -> String {
        format!("{}-{suffix}", self.id)
    }

    pub(super) fn workspaces(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &resource(self.groups.cluster, "Workspace"))
    }

    /// A cluster-scoped Workspace of `MODULE` that publishes its secret under its own name.
    pub(super) fn workspace(&self, suffix: &str, vars: &[(&str, &str)]) -> DynamicObject {
        let name = self.name(suffix);
        let mut object = DynamicObject::new(&name, &resource(self.groups.cluster, "Workspace")).data(json!({"spec": {
            "forProvider": {"source": "Inline", "inlineFormat": "JSON", "module": MODULE, "vars": vars_of(vars)},
            "writeConnectionSecretToRef": {"name": name, "namespace": self.id},
        }}));
        object.labels_mut().insert(LABEL.to_owned(), self.id.clone());
        object
    }

    /// Creates the Workspace with everything that happens to it on tape.
    pub(super) async fn create(&self, object: &DynamicObject) -> Tape {
        let tape = Tape::start(self.workspaces(), &object.name_any()).await;
        let created = self.workspaces().create(&PostParams::default(), object).await;
        created.expect("the API server takes the Workspace");
        tape
    }

    pub(super) async fn patch(&self, suffix: &str, patch: Value) {
        let patched = self
            .workspaces()
            .patch(&self.name(suffix), &PatchParams::default(), &Patch::Merge(patch))
            .await;
        patched.expect("the API server takes the patch");
    }

    pub(super) async fn set_vars(&self, suffix: &str, vars: &[(&str, &str)]) {
        self.patch(suffix, json!({"spec": {"forProvider": {"vars": vars_of(vars)}}}))
            .await;
    }

    pub(super) async fn delete(&self, suffix: &str) {
        let deleted = self
            .workspaces()
            .delete(&self.name(suffix), &DeleteParams::background())
            .await;
        deleted.expect("the API server takes the deletion");
    }

    pub(super) fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.id)
    }

    pub(super) async fn connection(&self, suffix: &str) -> BTreeMap<String, String> {
        let secret = self
            .secrets()
            .get(&self.name(suffix))
            .await
            .expect("a connection secret");
        assert_eq!(secret.type_.as_deref(), Some("connection.crossplane.io/v1alpha1"));
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        let data = secret.data.unwrap_or_default();
        data.into_iter().map(|(key, value)| (key, text(value.0))).collect()
    }

    /// The addresses in the simulator's Terraform state; nothing when there is no state.
    pub(super) async fn state(&self, suffix: &str) -> Option<Vec<String>> {
        let states = Api::<Secret>::namespaced(self.client.clone(), "crossplane-system");
        let secret = states
            .get_opt(&format!("tfstate-{}-sim", self.name(suffix)))
            .await
            .expect("an answer")?;
        let data = secret.data.expect("a state");
        let state: Value = serde_json::from_slice(&data["tfstate"].0).expect("JSON");
        Some(
            state["resources"]
                .as_object()
                .expect("resources")
                .keys()
                .cloned()
                .collect(),
        )
    }

    pub(super) async fn write_secret(&self, name: &str, kind: &str, data: Value) {
        let secret = serde_json::from_value(json!({"metadata": {"name": name}, "type": kind, "stringData": data}));
        let made = self
            .secrets()
            .create(&PostParams::default(), &secret.expect("a secret"))
            .await;
        made.expect("the API server takes the secret");
    }
}

/// Everything that happened to one Workspace, in order; a deletion is `None`.
pub(super) struct Tape {
    events: mpsc::UnboundedReceiver<Option<DynamicObject>>,
    pub(super) seen: Vec<Option<DynamicObject>>,
}

impl Tape {
    pub(super) async fn start(api: Api<DynamicObject>, name: &str) -> Self {
        let (send, events) = mpsc::unbounded_channel();
        let (synced, is_synced) = oneshot::channel();
        let mut changes = watcher(api, watcher::Config::default().fields(&format!("metadata.name={name}"))).boxed();
        tokio::spawn(async move {
            let mut synced = Some(synced);
            while let Some(change) = changes.next().await {
                let event = match change.expect("a watch") {
                    watcher::Event::Apply(object) | watcher::Event::InitApply(object) => Some(object),
                    watcher::Event::Delete(_) => None,
                    watcher::Event::Init => continue,
                    watcher::Event::InitDone => {
                        // The test may have ended already.
                        let _ = synced.take().map(|synced| synced.send(()));
                        continue;
                    }
                };
                if send.send(event).is_err() {
                    break;
                }
            }
        });
        is_synced.await.expect("a watch");
        Self {
            events,
            seen: Vec::new(),
        }
    }

    /// Plays on until `wanted` holds, and returns that object.
    pub(super) async fn until(&mut self, what: &str, wanted: impl Fn(&DynamicObject) -> bool) -> DynamicObject {
        loop {
            match self.next(what).await {
                Some(object) if wanted(&object) => return object,
                Some(_) => {}
                None => panic!("the Workspace was deleted while waiting for: {what}"),
            }
        }
    }

    pub(super) async fn until_ready(&mut self) -> DynamicObject {
        self.until("applied", applied).await
    }

    pub(super) async fn until_gone(&mut self) {
        while self.next("its deletion").await.is_some() {}
    }

    pub(super) async fn next(&mut self, what: &str) -> Option<DynamicObject> {
        let event = tokio::time::timeout(PATIENCE, self.events.recv()).await;
        let event = event.unwrap_or_else(|_| panic!("never came: {what}; so far {:#?}", self.story()));
        let event = event.expect("a watch that goes on");
        self.seen.push(event.clone());
        event
    }

    /// The distinct states of the conditions, in order.
    pub(super) fn story(&self) -> Vec<String> {
        let mut story: Vec<String> = self
            .seen
            .iter()
            .map(|event| event.as_ref().map_or("gone".to_owned(), line))
            .collect();
        story.dedup();
        story
    }
}

pub(super) fn line(object: &DynamicObject) -> String {
    let short = |kind: &str| match condition(object, kind) {
        Value::Null => "-".to_owned(),
        held => format!(
            "{}/{}",
            held["status"].as_str().unwrap_or("?"),
            held["reason"].as_str().unwrap_or("?")
        ),
    };
    let observed = |kind: &str| match condition(object, kind)["observedGeneration"].as_i64() {
        None => "never",
        Some(generation) if Some(generation) == object.metadata.generation => "current",
        Some(_) => "old",
    };
    format!(
        "Ready {} {}, Synced {} {}",
        short("Ready"),
        observed("Ready"),
        short("Synced"),
        observed("Synced")
    )
}

pub(super) fn condition<'a>(object: &'a DynamicObject, kind: &str) -> &'a Value {
    let conditions = object.data["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.find(|held| held["type"] == kind).unwrap_or(&Value::Null)
}

/// The rule by which a reader may trust a Workspace.
pub(super) fn applied(object: &DynamicObject) -> bool {
    let synced = condition(object, "Synced");
    synced["status"] == "True"
        && synced["observedGeneration"].as_i64() == object.metadata.generation
        && condition(object, "Ready")["status"] == "True"
}

pub(super) fn failed(object: &DynamicObject, with: &str) -> bool {
    let synced = condition(object, "Synced");
    let message = synced["message"].as_str().unwrap_or_default();
    synced["status"] == "False" && synced["reason"] == "ReconcileError" && message.contains(with)
}

pub(super) fn outputs(object: &DynamicObject) -> &Value {
    &object.data["status"]["atProvider"]["outputs"]
}

pub(super) fn vars_of(vars: &[(&str, &str)]) -> Value {
    vars.iter()
        .map(|(key, value)| json!({"key": key, "value": value}))
        .collect()
}

pub(super) fn resource(group: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1beta1", kind))
}

fn ignore_existing<T>(result: kube::Result<T>) {
    match result {
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        other => {
            other.expect("the API server takes it");
        }
    }
}

/// The provider's CRDs under groups that no provider watches.
async fn copy_crds(client: &Client) {
    let crds = Api::<CustomResourceDefinition>::all(client.clone());
    let plurals = [
        (REAL.cluster, SIMULATED.cluster, "workspaces", "Workspace"),
        (REAL.cluster, SIMULATED.cluster, "providerconfigs", "ProviderConfig"),
        (REAL.namespaced, SIMULATED.namespaced, "workspaces", "Workspace"),
        (
            REAL.namespaced,
            SIMULATED.namespaced,
            "clusterproviderconfigs",
            "ClusterProviderConfig",
        ),
    ];
    for (from, to, plural, kind) in plurals {
        let original = crds
            .get(&format!("{plural}.{from}"))
            .await
            .expect("the provider's CRDs");
        let name = format!("{plural}.{to}");
        let mut copy = CustomResourceDefinition {
            spec: original.spec,
            ..CustomResourceDefinition::default()
        };
        copy.metadata.name = Some(name.clone());
        copy.spec.group = to.to_owned();
        ignore_existing(crds.create(&PostParams::default(), &copy).await);
        let established = await_condition(crds.clone(), &name, conditions::is_crd_established());
        tokio::time::timeout(PATIENCE, established)
            .await
            .expect("in time")
            .expect("an established CRD");
        served(client, &GroupVersionKind::gvk(to, "v1beta1", kind)).await;
    }
}

/// Discovery follows an established CRD a moment later, and cannot be watched.
async fn served(client: &Client, kind: &GroupVersionKind) {
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = discovery::pinned_kind(client, kind).await {
        assert!(Instant::now() < deadline, "{kind:?} is not served: {error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
