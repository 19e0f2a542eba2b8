//! An API server in memory, as small as it can be, with the objects of one Cluster in it, for the tests of whole passes: it
//! can cut a process off before any write, keep caches late, and let somebody else be faster.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use capt_api::common::ApiEndpoint;
use capt_api::names::Manager;
use capt_api::{CaptCluster, Cluster};
use capt_runtime::apply::Writer;
use capt_runtime::cache::Found;
use capt_runtime::error::{Class, Classified, Failure};
use capt_runtime::events::Events;
use capt_runtime::metrics::Metrics;
use http::{Method, Request, Response};
use jiff::Timestamp;
use json_patch::PatchOperation;
use kube::api::ApiResource;
use kube::client::Body;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::act::Worker;
use crate::metrics::Updates;
use crate::observe::{Observed, Reader, View, connection_secret, infrastructure_name};

const CONTROL_PLANE: &str = "/apis/controlplane.cluster.x-k8s.io/v1beta1/namespaces/ns/captcontrolplanes/demo-cp";
const CLUSTER: &str = "/apis/cluster.x-k8s.io/v1beta2/namespaces/ns/clusters/demo";
const INFRASTRUCTURE: &str = "/apis/infrastructure.cluster.x-k8s.io/v1beta1/namespaces/ns/captclusters/net";
const APPLY: &str = "/apis/infrastructure.cluster.x-k8s.io/v1beta1/namespaces/ns/workspacetemplateapplies/demo-cp-eks-controlplane-apply";
const SECRET: &str = "/api/v1/namespaces/ns/secrets/connection";

type Objects = BTreeMap<String, Value>;
type Intruder = Box<dyn FnOnce(&mut State) + Send>;

#[derive(Default)]
struct State {
    objects: Objects,
    /// What a late cache holds: each object before its last change, or as a pass has seen it since.
    older: BTreeMap<String, Option<Value>>,
    version: u64,
    /// The process dies before the next write after so many.
    crash_after: Option<usize>,
    /// What was written, by path.
    writes: Vec<String>,
    /// What was read, by path.
    reads: Vec<String>,
    /// Acts just before the first write to the Cluster.
    intruder: Option<Intruder>,
    /// A policy refuses every write to the Cluster.
    denies: bool,
    /// Every reason that EndpointReady ever had.
    reasons: Vec<String>,
}

impl State {
    fn put(&mut self, path: &str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let old = self.objects.insert(path.to_owned(), object);
        self.older.insert(path.to_owned(), old);
    }

    fn remove(&mut self, path: &str) {
        let old = self.objects.remove(path);
        self.older.insert(path.to_owned(), old);
    }

    /// Somebody else's change.
    fn change(&mut self, path: &str, change: Value) {
        let mut object = self.objects[path].clone();
        json_patch::merge(&mut object, &change);
        self.put(path, object);
    }

    fn answer(&mut self, method: &Method, path: &str, content: &str, body: &[u8]) -> Result<(u16, Value), Crash> {
        let (path, is_status) = path.strip_suffix("/status").map_or((path, false), |path| (path, true));
        if method == Method::GET {
            self.reads.push(path.to_owned());
            return Ok(self
                .objects
                .get(path)
                .map_or_else(not_found, |object| (200, object.clone())));
        }
        assert_eq!(method, Method::PATCH, "nothing is made or deleted here");
        if let Some(left) = &mut self.crash_after {
            *left = left.checked_sub(1).ok_or(Crash)?;
        }
        if path == CLUSTER
            && let Some(intruder) = self.intruder.take()
        {
            intruder(self);
        }
        if path == CLUSTER && self.denies {
            let (code, mut status) = failure(403);
            status["message"] = json!("admission webhook \"policy.example.com\" denied the request: not this one");
            return Ok((code, status));
        }
        let Some(old) = self.objects.get(path).cloned() else {
            return Ok(not_found());
        };
        let body: Value = serde_json::from_slice(body).unwrap();
        let changed = match content {
            "application/json-patch+json" => patched(&old, &body),
            _ => applied(&old, &body),
        };
        let mut new = match changed {
            Ok(new) => new,
            Err(code) => return Ok(failure(code)),
        };
        // The status is its own part of the object.
        let (kept, part) = if is_status {
            ("spec", "status")
        } else {
            ("status", "spec")
        };
        match old.get(kept) {
            Some(value) => new[kept] = value.clone(),
            None => drop(new.as_object_mut().unwrap().remove(kept)),
        }
        if part == "spec" && old["spec"] != new["spec"] {
            new["metadata"]["generation"] = json!(old["metadata"]["generation"].as_i64().unwrap_or_default() + 1);
        }
        self.writes.push(path.to_owned());
        self.reasons
            .extend(endpoint_ready(&new).and_then(|said| said["reason"].as_str().map(str::to_owned)));
        let finalizers = new["metadata"]
            .get("finalizers")
            .and_then(Value::as_array)
            .map_or(0, Vec::len);
        if new["metadata"].get("deletionTimestamp").is_some() && finalizers == 0 {
            self.remove(path);
            return Ok((200, new));
        }
        self.put(path, new);
        Ok((200, self.objects[path].clone()))
    }
}

/// A JSON patch; `test`s come first, and `null` is equal to an absent value, as on the real server.
fn patched(old: &Value, patch: &Value) -> Result<Value, u16> {
    let patch: json_patch::Patch = serde_json::from_value(patch.clone()).unwrap();
    let (tests, changes): (Vec<_>, Vec<_>) = patch
        .0
        .into_iter()
        .partition(|op| matches!(op, PatchOperation::Test(_)));
    for test in &tests {
        let PatchOperation::Test(test) = test else { continue };
        if old.pointer(test.path.as_str()).unwrap_or(&Value::Null) != &test.value {
            return Err(422);
        }
    }
    let mut new = old.clone();
    json_patch::patch(&mut new, &json_patch::Patch(changes)).map_err(|_| 422u16)?;
    Ok(new)
}

/// What EndpointReady of this object says.
fn endpoint_ready(control_plane: &Value) -> Option<&Value> {
    let conditions = control_plane["status"]["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == "EndpointReady")
}

/// Server-side apply of this controller: its endpoint, in spec and status, and its one condition.
fn applied(old: &Value, wish: &Value) -> Result<Value, u16> {
    for guard in ["uid", "resourceVersion"] {
        if old["metadata"][guard] != wish["metadata"][guard] {
            return Err(409);
        }
    }
    let mut new = old.clone();
    if let Some(spec) = wish.get("spec") {
        new["spec"]["controlPlaneEndpoint"] = spec["controlPlaneEndpoint"].clone();
    }
    if let Some(status) = wish.get("status") {
        let ours = status["conditions"].as_array().unwrap();
        let mut conditions = old["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.retain(|condition| condition["type"] != "EndpointReady");
        conditions.extend(ours.iter().cloned());
        new["status"] = status.clone();
        new["status"]["conditions"] = conditions.into();
    }
    Ok(new)
}

fn not_found() -> (u16, Value) {
    failure(404)
}

fn failure(code: u16) -> (u16, Value) {
    let details = json!({"name": "x"});
    (
        code,
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "no", "reason": "", "details": details}),
    )
}

/// The process is gone before its request was sent.
#[derive(Debug, thiserror::Error)]
#[error("crash")]
struct Crash;

struct World {
    state: Arc<Mutex<State>>,
    worker: Worker,
    metrics: Arc<Metrics>,
}

impl World {
    /// A Cluster, its infrastructure, and a control plane whose apply is not ready yet.
    fn new() -> Self {
        let mut state = State::default();
        state.put(CLUSTER, json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": {"name": "demo", "namespace": "ns", "uid": "cluster"},
            "spec": {
                "clusterNetwork": {"serviceDomain": "cluster.local"},
                "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "CAPTCluster", "name": "net"},
                "controlPlaneRef": {"apiGroup": "controlplane.cluster.x-k8s.io", "kind": "CAPTControlPlane", "name": "demo-cp"},
            },
        }));
        state.put(
            INFRASTRUCTURE,
            json!({
                "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "CAPTCluster",
                "metadata": {"name": "net", "namespace": "ns", "uid": "net"},
                "spec": {"region": "eu-west-1", "existingVpcId": "vpc-1"},
            }),
        );
        state.put(CONTROL_PLANE, json!({
            "apiVersion": "controlplane.cluster.x-k8s.io/v1beta1", "kind": "CAPTControlPlane",
            "metadata": {
                "name": "demo-cp", "namespace": "ns", "uid": "cp", "generation": 1,
                "ownerReferences": [{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "demo", "uid": "cluster"}],
            },
            "spec": {"version": "1.31", "workspaceTemplateRef": {"name": "t"}, "controlPlaneConfig": {"region": "eu-west-1"}},
            "status": {"conditions": [{
                "type": "Ready", "status": "False", "reason": "Creating", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]},
        }));
        state.put(
            APPLY,
            json!({
                "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "WorkspaceTemplateApply",
                "metadata": {
                    "name": "demo-cp-eks-controlplane-apply", "namespace": "ns", "uid": "apply", "generation": 1,
                    "labels": {"infrastructure.cluster.x-k8s.io/capt-owner-uid": "cp"},
                },
                "spec": {"templateRef": {"name": "t"}, "writeConnectionSecretToRef": {"name": "connection"}},
            }),
        );
        let state = Arc::new(Mutex::new(state));
        let client = client(Arc::clone(&state));
        let writer = Writer::new(client.clone(), Manager::Endpoint);
        let metrics = Metrics::new("test").unwrap();
        // Nobody records the Events; they are dropped.
        let (events, _) = Events::new(
            client,
            "capt-endpoint",
            "test",
            &metrics,
            tokio_util::sync::CancellationToken::new(),
        );
        let worker = Worker {
            reader: Reader {
                clusters: writer.of_dynamic(ApiResource::erase::<Cluster>(&())),
                capt_clusters: writer.of(),
                secrets: writer.of(),
            },
            control_planes: writer.of(),
            events,
            updates: Updates::register(&metrics).unwrap(),
        };
        Self { state, worker, metrics }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn change(&self, path: &str, change: Value) -> &Self {
        self.state().change(path, change);
        self
    }

    /// Terraform is done, and reports this.
    fn reports(&self, endpoint: &str) -> &Self {
        self.ready(json!({"cluster_endpoint": endpoint}))
    }

    fn ready(&self, outputs: Value) -> &Self {
        let ready = json!({
            "type": "Ready", "status": "True", "reason": "Available", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
        });
        let status =
            json!({"observedGeneration": 1, "lastAppliedRevision": "r1", "outputs": outputs, "conditions": [ready]});
        self.change(APPLY, json!({ "status": status }))
    }

    fn delete(&self) -> &Self {
        let mut state = self.state();
        if state.objects[CONTROL_PLANE]["metadata"].get("finalizers").is_none() {
            state.remove(CONTROL_PLANE);
        } else {
            state.change(
                CONTROL_PLANE,
                json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            );
        }
        drop(state);
        self
    }

    /// What the caches hold; those of `late` are one change behind. `None` when the control plane is not there.
    fn view(&self, late: &[&str]) -> Option<View> {
        let state = self.state();
        let get = |path: &str| {
            let old = late.contains(&path).then(|| state.older.get(path).cloned().flatten());
            old.unwrap_or_else(|| state.objects.get(path).cloned())
        };
        let control_plane = get(CONTROL_PLANE)?;
        let cluster: Found<Cluster> = found(get(CLUSTER));
        let named = matches!(&cluster, Found::Present(cluster) if infrastructure_name(cluster).is_some());
        let infrastructure: Found<CaptCluster> = found(get(INFRASTRUCTURE).filter(|_| named));
        let apply = found(get(APPLY));
        let secret_exists =
            matches!(&apply, Found::Present(apply) if connection_secret(apply).is_some()) && get(SECRET).is_some();
        Some(View {
            control_plane: serde_json::from_value::<capt_api::CaptControlPlane>(control_plane)
                .unwrap()
                .into(),
            cluster,
            infrastructure,
            apply,
            secret_exists,
        })
    }

    async fn pass(&self, late: &[&str]) -> Result<(), Failure> {
        let view = self.view(late);
        if late.is_empty() {
            // No cache is late for ever.
            let mut state = self.state();
            let paths: Vec<String> = state.older.keys().cloned().collect();
            state.older = paths
                .into_iter()
                .map(|path| (path.clone(), state.objects.get(&path).cloned()))
                .collect();
        }
        match view {
            Some(view) => self.worker.pass(&view, Timestamp::UNIX_EPOCH).await.map(drop),
            None => Ok(()),
        }
    }

    async fn observe(&self) -> Observed {
        self.worker.reader.observe(&self.view(&[]).unwrap()).await.unwrap()
    }

    /// Passes until nothing is written any more. One that is cut off is followed by a new process, without further crash.
    /// Each is preceded by one whose caches of `late` are behind.
    async fn settle(&self, late: &[&str]) {
        for _ in 0..20 {
            let before = self.state().writes.len();
            if !late.is_empty() {
                // Whatever it tries, it may lose.
                if let Err(failure) = self.pass(late).await {
                    self.accept(&failure);
                }
            }
            match self.pass(&[]).await {
                Err(failure) => self.accept(&failure),
                Ok(()) if self.state().writes.len() == before => return,
                Ok(()) => {}
            }
        }
        panic!("it never comes to rest: {:?}", self.state().writes);
    }

    fn accept(&self, failure: &Failure) {
        let crashed = matches!(failure, Failure::Unreachable { .. });
        assert!(crashed || failure.class() == Class::Conflict, "{failure:?}");
        if crashed {
            self.state().crash_after = None;
        }
    }

    fn endpoint(&self, path: &str) -> Option<String> {
        let endpoint = self.state().objects.get(path)?["spec"]
            .get("controlPlaneEndpoint")?
            .clone();
        Some(serde_json::from_value::<ApiEndpoint>(endpoint).unwrap().to_string())
    }

    fn said(&self) -> (String, String) {
        let object = self.state().objects[CONTROL_PLANE].clone();
        let condition = endpoint_ready(&object).unwrap();
        let text = |name: &str| condition[name].as_str().unwrap_or_default().to_owned();
        (text("status"), text("reason"))
    }

    /// How many updates ended like this.
    fn updates(&self, result: &str) -> u64 {
        let text = self.metrics.render().unwrap();
        let series = format!("capt_endpoint_updates_total{{result=\"{result}\"}} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&series));
        value.unwrap().parse().unwrap()
    }

    fn writes_to(&self, path: &str) -> usize {
        self.state().writes.iter().filter(|written| *written == path).count()
    }

    /// Everything, but for how often it was written.
    fn picture(&self) -> Objects {
        let mut objects = self.state().objects.clone();
        for object in objects.values_mut() {
            object["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        }
        objects
    }
}

fn found<K: Resource + DeserializeOwned>(object: Option<Value>) -> Found<K> {
    object.map_or(Found::Absent, |object| {
        Found::Present(Arc::new(serde_json::from_value(object).unwrap()))
    })
}

fn client(state: Arc<Mutex<State>>) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let state = Arc::clone(&state);
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            let content = parts
                .headers
                .get("content-type")
                .map_or("", |value| value.to_str().unwrap());
            let (code, answer) = state
                .lock()
                .unwrap()
                .answer(&parts.method, parts.uri.path(), content, &body)?;
            let answer = Response::builder()
                .status(code)
                .body(Body::from(answer.to_string().into_bytes()));
            Ok::<_, Crash>(answer.unwrap())
        }
    });
    Client::new(service, "ns")
}

mod tests;
