//! A management cluster in memory, for tests: objects as JSON behind the API that this controller uses. It answers as the
//! real API server does (races, preconditions, finalizers), can cut the connection after any write, and can show caches
//! as they were one write ago.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use capt_api::names::Manager;
use capt_api::{CaptControlPlane, Cluster, WorkspaceTemplateApply};
use capt_runtime::apply::Writer;
use capt_runtime::cache::Found;
use capt_runtime::error::Failure;
use capt_runtime::events::Events;
use capt_runtime::metrics::Metrics;
use http::{Method, Request, Response};
use jiff::Timestamp;
use kube::client::Body;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::act::Worker;
use crate::copies::{PerCopy, Which};
use crate::kubeconfig::Trust;
use crate::metrics::Conversions;
use crate::observe::{Connection, Memory, Reader, SecretMeta, View, connection};
use crate::samples;

mod bad_input;
mod tests;

pub(crate) const NAMESPACE: &str = "ns";
const OWNER_LABEL: &str = "infrastructure.cluster.x-k8s.io/capt-owner-uid";

/// Objects by resource and name.
type Objects = BTreeMap<(String, String), Value>;

#[derive(Default)]
struct State {
    objects: Objects,
    /// The objects before the last write.
    before: Objects,
    version: u64,
    /// Successful writes: "create secrets/x", in order.
    writes: Vec<String>,
    /// How many more writes are carried out before the connection is cut.
    writes_left: Option<usize>,
    reads: usize,
}

#[derive(Clone, Default)]
pub(crate) struct World(Arc<Mutex<State>>);

impl World {
    /// A Cluster `demo` whose control plane `demo-cp` has an apply that is ready, a published endpoint and a valid source.
    pub(crate) fn new() -> Self {
        tests::log::install();
        let world = Self::default();
        world.put("clusters", "demo", json!({"spec": {}}));
        world.put("captcontrolplanes", "demo-cp", json!({
            "metadata": {
                "generation": 1,
                "labels": {"cluster.x-k8s.io/cluster-name": "demo", "cluster.x-k8s.io/watch-filter": "blue"},
                "finalizers": ["controlplane.cluster.x-k8s.io/captcontrolplane"],
                "ownerReferences": [{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "demo", "uid": "uid-clusters-demo"}],
            },
            "spec": {"version": "1.31", "workspaceTemplateRef": {"name": "t"}, "controlPlaneConfig": {"region": "eu-west-1"}},
            "status": {"phase": "Creating", "conditions": [{
                "type": "EndpointReady", "status": "True", "reason": "EndpointPublished", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]},
        }));
        world.put("workspacetemplateapplies", APPLY, json!({
            "metadata": {"generation": 1, "ownerReferences": [{
                "apiVersion": "controlplane.cluster.x-k8s.io/v1beta1", "kind": "CAPTControlPlane", "name": "demo-cp",
                "uid": "uid-captcontrolplanes-demo-cp", "controller": true,
            }]},
            "spec": {"templateRef": {"name": "t"}, "writeConnectionSecretToRef": {"name": SOURCE}},
            "status": {"observedGeneration": 1, "lastAppliedRevision": "r1", "conditions": [{
                "type": "Ready", "status": "True", "reason": "Available", "message": "", "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]},
        }));
        world.fill_source("first");
        world
    }

    /// Makes the source a valid one with this token.
    pub(crate) fn fill_source(&self, token: &str) {
        self.set_source(&[
            ("kubeconfig", samples::yaml(&samples::kubeconfig(token)).as_bytes()),
            (
                "cluster_certificate_authority_data",
                samples::base64(&samples::authority()).as_bytes(),
            ),
        ]);
    }

    pub(crate) fn set_source(&self, entries: &[(&str, &[u8])]) {
        use base64::Engine;
        let data: BTreeMap<_, _> = entries
            .iter()
            .map(|(key, value)| (key, base64::engine::general_purpose::STANDARD.encode(value)))
            .collect();
        self.put(
            "secrets",
            SOURCE,
            json!({"type": "connection.crossplane.io/v1alpha1", "data": data}),
        );
    }

    /// Makes or changes an object, as somebody else would.
    pub(crate) fn put(&self, resource: &str, name: &str, mut object: Value) {
        let mut state = self.lock();
        let meta = members(&mut object, "metadata");
        let uid = state
            .get(resource, name)
            .and_then(|old| old["metadata"]["uid"].as_str().map(Into::into));
        meta.insert(
            "uid".into(),
            uid.unwrap_or_else(|| format!("uid-{resource}-{name}").into()),
        );
        state.store(resource, name, object);
    }

    pub(crate) fn edit(&self, resource: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let mut state = self.lock();
        let mut object = state.get(resource, name).unwrap().clone();
        change(&mut object);
        state.store(resource, name, object);
    }

    pub(crate) fn remove(&self, resource: &str, name: &str) {
        self.lock().objects.remove(&(resource.into(), name.into()));
    }

    pub(crate) fn get(&self, resource: &str, name: &str) -> Option<Value> {
        self.lock().get(resource, name).cloned()
    }

    /// The names of all Secrets.
    pub(crate) fn secrets(&self) -> Vec<String> {
        self.lock()
            .objects
            .keys()
            .filter(|(resource, _)| resource == "secrets")
            .map(|(_, name)| name.clone())
            .collect()
    }

    pub(crate) fn writes(&self) -> Vec<String> {
        self.lock().writes.clone()
    }

    pub(crate) fn reads(&self) -> usize {
        self.lock().reads
    }

    /// After this many more writes, the answer of the last one and everything after it is lost.
    pub(crate) fn cut_after(&self, writes: Option<usize>) {
        self.lock().writes_left = writes;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// A process that has just started.
    pub(crate) fn worker(&self) -> Worker {
        self.worker_with(Trust::DataOnly)
    }

    pub(crate) fn worker_with(&self, trust: Trust) -> Worker {
        let world = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let world = world.clone();
            async move { world.answer(request).await }
        });
        // The client has a task of its own.
        let client = block_on(async { kube::Client::new(service, NAMESPACE) });
        let writer = Writer::new(client.clone(), Manager::Secrets);
        // Nobody records: what is published goes nowhere once the channel is full.
        let metrics = Metrics::new("0").unwrap();
        let (events, _) = Events::new(client, "test", "test", &metrics, Default::default());
        Worker {
            reader: Reader {
                secrets: writer.of(),
                metadata: writer.of(),
                trust,
            },
            control_planes: writer.of(),
            events,
            memory: Memory::default(),
            conversions: Conversions::register(&metrics).unwrap(),
        }
    }

    /// What caches show that are in step.
    pub(crate) fn view(&self) -> Option<View> {
        view(&self.lock().objects)
    }

    /// What caches show that have not seen the last write.
    pub(crate) fn stale_view(&self) -> Option<View> {
        view(&self.lock().before)
    }

    /// Passes until one writes nothing.
    pub(crate) async fn settle(&self, worker: &Worker) -> Result<(), Failure> {
        for _ in 0..20 {
            let writes = self.writes().len();
            let Some(view) = self.view() else { return Ok(()) };
            worker.pass(&view, at(writes)).await?;
            if self.writes().len() == writes {
                return Ok(());
            }
        }
        panic!("it never comes to rest: {:?}", self.writes());
    }

    async fn answer(&self, request: Request<Body>) -> Result<Response<Body>, std::io::Error> {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.map_err(std::io::Error::other)?;
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let mut state = self.lock();
        let cut = || Err(std::io::Error::other("connection lost"));
        let is_write = parts.method != Method::GET;
        if is_write && state.writes_left == Some(0) {
            return cut();
        }
        let before = state.objects.clone();
        let (code, answer) = state.answer(&parts, body);
        if is_write && code < 400 {
            if state.objects != before {
                state.before = before;
            }
            if let Some(left) = &mut state.writes_left {
                *left -= 1;
                if *left == 0 {
                    return cut();
                }
            }
        }
        Ok(Response::builder()
            .status(code)
            .body(Body::from(answer.to_string().into_bytes()))
            .unwrap())
    }
}

thread_local! {
    /// One thread for a whole test, so that a log can be taken from it.
    static RUNTIME: tokio::runtime::Runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    RUNTIME.with(|runtime| runtime.block_on(future))
}

pub(crate) const SOURCE: &str = "demo-eks-connection";
pub(crate) const APPLY: &str = "demo-cp-eks-controlplane-apply";

/// Time goes on with each write.
pub(crate) fn at(writes: usize) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + writes as i64).unwrap()
}

fn members<'a>(object: &'a mut Value, field: &str) -> &'a mut serde_json::Map<String, Value> {
    object
        .as_object_mut()
        .unwrap()
        .entry(field)
        .or_insert_with(|| json!({}))
        .as_object_mut()
        .unwrap()
}

impl State {
    fn get(&self, resource: &str, name: &str) -> Option<&Value> {
        self.objects.get(&(resource.into(), name.into()))
    }

    /// Puts an object in place with a new version, or takes it out when nothing holds it any more.
    fn store(&mut self, resource: &str, name: &str, mut object: Value) -> Value {
        self.version += 1;
        let (api_version, kind) = match resource {
            "secrets" => ("v1", "Secret"),
            "clusters" => ("cluster.x-k8s.io/v1beta2", "Cluster"),
            "captcontrolplanes" => ("controlplane.cluster.x-k8s.io/v1beta1", "CAPTControlPlane"),
            _ => ("infrastructure.cluster.x-k8s.io/v1beta1", "WorkspaceTemplateApply"),
        };
        object["apiVersion"] = api_version.into();
        object["kind"] = kind.into();
        let version = self.version.to_string();
        let meta = members(&mut object, "metadata");
        meta.insert("name".into(), name.into());
        meta.insert("namespace".into(), NAMESPACE.into());
        meta.insert("resourceVersion".into(), version.into());
        let held = meta
            .get("finalizers")
            .and_then(Value::as_array)
            .is_some_and(|list| !list.is_empty());
        let key = (resource.to_owned(), name.to_owned());
        if meta.contains_key("deletionTimestamp") && !held {
            self.objects.remove(&key);
        } else {
            self.objects.insert(key, object.clone());
        }
        object
    }

    fn answer(&mut self, request: &http::request::Parts, body: Value) -> (u16, Value) {
        let path = request.uri.path();
        let (_, below) = path
            .split_once("/namespaces/ns/")
            .unwrap_or_else(|| panic!("outside the namespace: {path}"));
        let mut parts = below.split('/');
        let resource = parts.next().unwrap().to_owned();
        let name = parts.next().map(str::to_owned);
        let is_status = parts.next() == Some("status");
        let query = request.uri.query().unwrap_or_default();
        match (&request.method, name) {
            (&Method::GET, None) => {
                self.reads += 1;
                (200, json!({"metadata": {}, "items": self.select(&resource, query)}))
            }
            (&Method::GET, Some(name)) => {
                self.reads += 1;
                self.get(&resource, &name)
                    .map_or_else(|| not_found(&name), |object| (200, object.clone()))
            }
            (&Method::POST, None) => self.create(&resource, body),
            (&Method::PATCH, Some(name)) if is_status => self.apply(&resource, &name, &body),
            (&Method::PATCH, Some(name)) => self.patch(&resource, &name, body),
            (&Method::DELETE, Some(name)) => self.delete(&resource, &name, &body),
            (method, name) => panic!("unexpected request: {method} {resource} {name:?}"),
        }
    }

    fn select(&self, resource: &str, query: &str) -> Vec<Value> {
        let uid = query
            .split('&')
            .find_map(|pair| pair.strip_prefix("labelSelector="))
            .and_then(|selector| selector.rsplit_once("%3D"))
            .unwrap()
            .1;
        let all = self
            .objects
            .iter()
            .filter(|((of, _), _)| of == resource)
            .map(|(_, object)| object);
        all.filter(|object| object["metadata"]["labels"][OWNER_LABEL] == uid)
            .cloned()
            .collect()
    }

    fn create(&mut self, resource: &str, mut body: Value) -> (u16, Value) {
        let name = body["metadata"]["name"].as_str().unwrap().to_owned();
        if self.get(resource, &name).is_some() {
            return failure(409, "AlreadyExists", &name);
        }
        self.writes.push(format!("create {resource}/{name}"));
        body["metadata"]["uid"] = format!("uid-{}", self.version).into();
        (201, self.store(resource, &name, body))
    }

    fn patch(&mut self, resource: &str, name: &str, body: Value) -> (u16, Value) {
        let Some(old) = self.get(resource, name).cloned() else {
            return not_found(name);
        };
        let mut patch: json_patch::Patch = serde_json::from_value(body).unwrap();
        // The API server takes a test for null as a test for absence; this library does not.
        patch.0.retain(|operation| match operation {
            json_patch::PatchOperation::Test(test) => {
                !test.value.is_null() || old.pointer(test.path.as_str()).is_some()
            }
            _ => true,
        });
        let mut new = old.clone();
        if json_patch::patch(&mut new, &patch).is_err() {
            return (
                422,
                json!({"kind": "Status", "code": 422, "reason": "Invalid", "details": {}}),
            );
        }
        if resource == "secrets"
            && (old["type"] != new["type"] || (old["immutable"] == true && old["data"] != new["data"]))
        {
            return (
                422,
                json!({"kind": "Status", "code": 422, "reason": "Invalid", "details": {"name": name, "causes": [{"field": "data", "reason": "FieldValueForbidden"}]}}),
            );
        }
        if new == old {
            return (200, old);
        }
        self.writes.push(format!("patch {resource}/{name}"));
        (200, self.store(resource, name, new))
    }

    /// Server-side apply of a status, as far as conditions and plain fields go.
    fn apply(&mut self, resource: &str, name: &str, body: &Value) -> (u16, Value) {
        let Some(old) = self.get(resource, name).cloned() else {
            return not_found(name);
        };
        if old["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"] {
            return failure(409, "Conflict", name);
        }
        let mut new = old.clone();
        let status = members(&mut new, "status");
        for (field, value) in body["status"].as_object().unwrap() {
            if field != "conditions" {
                status.insert(field.clone(), value.clone());
                continue;
            }
            let conditions = status
                .entry("conditions")
                .or_insert_with(|| json!([]))
                .as_array_mut()
                .unwrap();
            for condition in value.as_array().unwrap() {
                conditions.retain(|other| other["type"] != condition["type"]);
                conditions.push(condition.clone());
            }
        }
        if new == old {
            return (200, old);
        }
        self.writes.push(format!("report {resource}/{name}"));
        (200, self.store(resource, name, new))
    }

    fn delete(&mut self, resource: &str, name: &str, body: &Value) -> (u16, Value) {
        let Some(mut object) = self.get(resource, name).cloned() else {
            return not_found(name);
        };
        if body["preconditions"]["uid"] != object["metadata"]["uid"] {
            return failure(409, "Conflict", name);
        }
        self.writes.push(format!("delete {resource}/{name}"));
        object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        (200, self.store(resource, name, object))
    }
}

fn failure(code: u16, reason: &str, name: &str) -> (u16, Value) {
    (
        code,
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": reason, "details": {"name": name}}),
    )
}

fn not_found(name: &str) -> (u16, Value) {
    failure(404, "NotFound", name)
}

fn view(objects: &Objects) -> Option<View> {
    fn read<K: DeserializeOwned>(objects: &Objects, resource: &str, name: &str) -> Option<Arc<K>> {
        let object = objects.get(&(resource.to_owned(), name.to_owned()))?;
        Some(Arc::new(serde_json::from_value(object.clone()).unwrap()))
    }
    fn find<K: DeserializeOwned>(objects: &Objects, resource: &str, name: &str) -> Found<K> {
        read(objects, resource, name).map_or(Found::Absent, Found::Present)
    }
    let control_plane: Arc<CaptControlPlane> = read(objects, "captcontrolplanes", "demo-cp")?;
    let apply: Found<WorkspaceTemplateApply> = find(objects, "workspacetemplateapplies", APPLY);
    let source = match &apply {
        Found::Present(apply) => match connection(apply) {
            Connection::Secret(name) => read(objects, "secrets", name),
            _ => None,
        },
        _ => None,
    };
    let uid = control_plane.metadata.uid.clone().unwrap();
    let marked = objects
        .iter()
        .filter(|((resource, _), object)| resource == "secrets" && object["metadata"]["labels"][OWNER_LABEL] == *uid)
        .map(|(_, object)| Arc::new(serde_json::from_value::<SecretMeta>(object.clone()).unwrap()))
        .collect();
    Some(View {
        cluster: find::<Cluster>(objects, "clusters", "demo"),
        rival_exists: objects.contains_key(&("clusters".to_owned(), "demo-control-plane".to_owned())),
        apply,
        source,
        copies: PerCopy::build(|which: Which| read(objects, "secrets", &which.name("demo"))),
        marked,
        control_plane,
    })
}
