//! A management cluster of five objects, as JSON, with an API server's manners: versions, generations, finalizers, and
//! writes that are refused when they were planned from something old. The parts of the other controllers are played too.

use std::collections::BTreeMap;
use std::sync::Arc;

use capt_api::names::annotation;
use capt_api::{CaptCluster, CaptControlPlane, Cluster, WorkspaceTemplateApply};
use capt_runtime::apply::is_ours;
use capt_runtime::cache::Found;
use capt_runtime::controller::{SETTLE, Wake};
use capt_runtime::key::Key;
use jiff::{SignedDuration, Timestamp};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Plan, Step, plan};
use crate::eks_apply;
use crate::observe::{Live, Look, Observed, Reads, Refusal, Settings, observe, other_apply_name};

pub(super) const CLUSTER: &str = "Cluster/demo";
pub(super) const INFRASTRUCTURE: &str = "CAPTCluster/demo";
pub(super) const CONTROL_PLANE: &str = "CAPTControlPlane/demo-cp";
pub(super) const VPC_APPLY: &str = "WorkspaceTemplateApply/demo-vpc";
pub(super) const APPLY: &str = "WorkspaceTemplateApply/demo-cp-eks-controlplane-apply";
/// One of an earlier version's, under a name that its user chose.
pub(super) const ASTRAY: &str = "WorkspaceTemplateApply/mine";

const HOLD: &str = "controlplane.cluster.x-k8s.io/captcontrolplane-hold";
const ENDPOINT: &str = "controlplane.cluster.x-k8s.io/captendpoint";
const SECRETS: &str = "controlplane.cluster.x-k8s.io/captsecrets";
const WORKSPACE: &str = "infrastructure.cluster.x-k8s.io/workspacetemplateapply";
const GUARD: &str = "controlplane.cluster.x-k8s.io/captcontrolplane";

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) objects: BTreeMap<&'static str, Value>,
    /// Each object as it was before its last write.
    before: BTreeMap<&'static str, Option<Value>>,
    version: u64,
    pub(super) now: Timestamp,
    pub(super) settings: Settings,
    pub(super) refused: Option<Refusal>,
    pub(super) creates: usize,
    pub(super) deletes: usize,
    /// Our own writes so far, and after how many of them the process dies.
    pub(super) writes: usize,
    pub(super) dies_after: Option<usize>,
}

/// Why a write was not made.
#[derive(Debug, PartialEq)]
pub(super) enum Stop {
    Conflict,
    Died,
}

pub(super) fn condition(type_: &str, status: &str, reason: &str, message: &str, generation: i64) -> Value {
    json!({
        "type": type_, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": generation,
    })
}

fn owner(kind: &str, name: &str, uid: &str, controller: bool) -> Value {
    let group = if kind == "Cluster" {
        "cluster.x-k8s.io/v1beta2"
    } else {
        "controlplane.cluster.x-k8s.io/v1beta1"
    };
    json!([{"apiVersion": group, "kind": kind, "name": name, "uid": uid, "controller": controller, "blockOwnerDeletion": true}])
}

impl World {
    /// A Cluster whose network is ready, and a control plane that nobody has looked at.
    pub(super) fn new() -> Self {
        let now: Timestamp = "2026-06-01T12:00:00Z".parse().unwrap();
        let mut world = Self {
            objects: BTreeMap::new(),
            before: BTreeMap::new(),
            version: 0,
            // The objects are older than anything that is told only when it lasts.
            now: now - SignedDuration::from_hours(1),
            settings: Settings {
                allow_cross_namespace_templates: false,
                clear_cluster_failures: true,
                control_plane_timeout: SignedDuration::from_mins(30),
                vpc_ready_timeout: SignedDuration::from_mins(15),
                secret_timeout: SignedDuration::from_mins(5),
                deletion_timeout: SignedDuration::from_mins(30),
            },
            refused: None,
            creates: 0,
            deletes: 0,
            writes: 0,
            dies_after: None,
        };
        world.put(CLUSTER, json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": {"name": "demo", "uid": "cluster-uid"},
            "spec": {
                "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "CAPTCluster", "name": "demo"},
                "controlPlaneRef": {"apiGroup": "controlplane.cluster.x-k8s.io", "kind": "CAPTControlPlane", "name": "demo-cp"},
            },
        }));
        world.put(INFRASTRUCTURE, json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "CAPTCluster",
            "metadata": {"name": "demo", "uid": "network-uid", "ownerReferences": owner("Cluster", "demo", "cluster-uid", false)},
            "spec": {"region": "eu-west-1", "vpcTemplateRef": {"name": "vpc"}},
            "status": {"ready": true, "vpcId": "vpc-0"},
        }));
        world.put(VPC_APPLY, json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "WorkspaceTemplateApply",
            "metadata": {"name": "demo-vpc", "uid": "vpc-uid", "ownerReferences": owner("CAPTCluster", "demo", "network-uid", true)},
            "spec": {"templateRef": {"name": "vpc"}},
            "status": {
                "observedGeneration": 1, "outputs": {"vpc_id": "vpc-0", "private_subnets": "[\"s-1\"]"},
                "conditions": [condition("Ready", "True", "Available", "", 1)],
            },
        }));
        world.put(CONTROL_PLANE, json!({
            "apiVersion": "controlplane.cluster.x-k8s.io/v1beta1", "kind": "CAPTControlPlane",
            "metadata": {"name": "demo-cp", "uid": "cp-uid", "ownerReferences": owner("Cluster", "demo", "cluster-uid", false)},
            "spec": {
                "version": "v1.31.0", "workspaceTemplateRef": {"name": "eks"},
                "controlPlaneConfig": {"region": "eu-west-1"},
            },
        }));
        world.now = now;
        world
    }

    /// ... which was made this moment.
    pub(super) fn young() -> Self {
        let mut world = Self::new();
        let now = json!(world.now.to_string());
        world.set(CONTROL_PLANE, "/metadata/creationTimestamp", now);
        world
    }

    /// ... with its finalizer.
    pub(super) fn guarded() -> Self {
        let mut world = Self::new();
        world.set(CONTROL_PLANE, "/metadata/finalizers", json!([GUARD]));
        world
    }

    /// ... and everything else, in use.
    pub(super) fn ready() -> Self {
        let mut world = Self::new();
        world.settle();
        assert_eq!(world.condition("Ready"), ("True".into(), "ControlPlaneReady".into()));
        assert_eq!(world.plan().step, Step::Nothing);
        world
    }

    pub(super) fn put(&mut self, key: &'static str, mut value: Value) {
        let generation = value.pointer("/metadata/generation").cloned().unwrap_or(json!(1));
        value["metadata"]["namespace"] = json!("team");
        value["metadata"]["generation"] = generation;
        if value.pointer("/metadata/creationTimestamp").is_none() {
            value["metadata"]["creationTimestamp"] = json!(self.now.to_string());
        }
        self.version += 1;
        value["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let old = self.objects.insert(key, value);
        self.before.insert(key, old);
    }

    pub(super) fn get(&self, key: &'static str) -> &Value {
        &self.objects[key]
    }

    /// A write, by whomever: a changed spec raises the generation; an object that is being deleted and has lost its last
    /// finalizer is gone.
    pub(super) fn edit(&mut self, key: &'static str, change: impl FnOnce(&mut Value)) {
        let mut value = self.objects[key].clone();
        change(&mut value);
        if value == self.objects[key] {
            return;
        }
        let generation = self.objects[key]["metadata"]["generation"].as_i64().unwrap();
        if value["spec"] != self.objects[key]["spec"] {
            value["metadata"]["generation"] = json!(generation + 1);
        }
        let deleting = value
            .pointer("/metadata/deletionTimestamp")
            .is_some_and(|time| !time.is_null());
        let free = value
            .pointer("/metadata/finalizers")
            .and_then(Value::as_array)
            .is_none_or(Vec::is_empty);
        if deleting && free {
            self.remove(key)
        } else {
            self.put(key, value)
        }
    }

    /// Sets one value, making the objects on the way.
    pub(super) fn set(&mut self, key: &'static str, pointer: &str, value: Value) {
        self.edit(key, |object| {
            let mut here = object;
            for token in pointer.split('/').skip(1) {
                here = match token.parse::<usize>() {
                    Ok(index) => &mut here[index],
                    Err(_) => &mut here[token],
                };
            }
            *here = value;
        });
    }

    pub(super) fn remove(&mut self, key: &'static str) {
        let old = self.objects.remove(key);
        self.before.insert(key, old);
    }

    /// What `kubectl delete` does. A Cluster has Cluster API's finalizer.
    pub(super) fn delete(&mut self, key: &'static str) {
        let now = json!(self.now.to_string());
        self.edit(key, |object| {
            if key == CLUSTER {
                object["metadata"]["finalizers"] = json!(["cluster.cluster.x-k8s.io"]);
            }
            object["metadata"]["deletionTimestamp"] = now;
            object["metadata"]["generation"] = json!(object["metadata"]["generation"].as_i64().unwrap() + 1);
        });
    }

    pub(super) fn drop_finalizer(&mut self, key: &'static str, name: &str) {
        self.edit(key, |object| {
            let finalizers = object["metadata"]["finalizers"].as_array_mut().unwrap();
            finalizers.retain(|finalizer| finalizer != name);
        });
    }

    /// Exactly as long as a passing stage may go untold.
    pub(super) fn wait_until_settled(&mut self) {
        self.now += SETTLE;
    }

    pub(super) fn wait_minutes(&mut self, minutes: i64) {
        self.now += SignedDuration::from_mins(minutes);
    }

    pub(super) fn status(&self) -> Value {
        self.get(CONTROL_PLANE)["status"].clone()
    }

    pub(super) fn condition(&self, type_: &str) -> (String, String) {
        let status = self.status();
        let conditions = status["conditions"].as_array().unwrap();
        let condition = conditions.iter().find(|condition| condition["type"] == type_).unwrap();
        let text = |field: &str| condition[field].as_str().unwrap().to_owned();
        (text("status"), text("reason"))
    }

    /// The apply exactly as this controller would have made it.
    pub(super) fn add_apply(&mut self) {
        if self.objects.contains_key(APPLY) {
            return;
        }
        let Step::CreateApply(apply) = self.plan().step else {
            panic!("not about to be made")
        };
        self.put(APPLY, created(&apply));
    }

    /// Another controller's condition on the control plane.
    pub(super) fn say(&mut self, type_: &str, status: &str, reason: &str, message: &str) {
        let mut said = condition(type_, status, reason, message, 1);
        said["lastTransitionTime"] = self.turned(CONTROL_PLANE, type_, status);
        self.edit(CONTROL_PLANE, |control_plane| set_condition(control_plane, said));
    }

    /// Since when a condition has the status that it is about to get.
    fn turned(&self, key: &'static str, type_: &str, status: &str) -> Value {
        let conditions = self.get(key).pointer("/status/conditions").and_then(Value::as_array);
        let before = conditions.into_iter().flatten().find(|before| before["type"] == type_);
        match before {
            Some(before) if before["status"] == status => before["lastTransitionTime"].clone(),
            _ => json!(self.now.to_string()),
        }
    }

    pub(super) fn apply_says(&mut self, reason: &str, message: &str) {
        let generation = self.get(APPLY)["metadata"]["generation"].as_i64().unwrap();
        let status = if reason == "Available" { "True" } else { "False" };
        let mut ready = condition("Ready", status, reason, message, generation);
        ready["lastTransitionTime"] = self.turned(APPLY, "Ready", status);
        self.edit(APPLY, |apply| {
            apply["status"] = json!({"observedGeneration": generation, "conditions": [ready]});
        });
    }

    pub(super) fn apply_ready(&mut self) {
        self.apply_says("Available", "");
    }

    /// Everything that a control plane still waits for comes after all.
    pub(super) fn complete(&mut self) {
        self.apply_ready();
        self.say("EndpointReady", "True", "EndpointPublished", "");
        self.say("SecretsReady", "True", "Ready", "");
    }

    fn observed(&self, view: &impl Reads) -> Option<Observed> {
        let mut seen = observe(view, &Key::namespaced("team", "demo-cp"), self.settings)?;
        seen.refused = self.refused.clone();
        Some(seen)
    }

    pub(super) fn live(&self, look: Look) -> Live {
        match look {
            Look::Create => Live::Create {
                control_plane: self.read(CONTROL_PLANE),
                cluster: self.read(CLUSTER),
                infrastructure: self.read(INFRASTRUCTURE),
                astray: self.astray(),
            },
            Look::Change => Live::Change {
                control_plane: self.read(CONTROL_PLANE),
            },
            Look::DeleteSelf => Live::DeleteSelf {
                cluster: self.read(CLUSTER),
            },
            Look::Destroy => Live::Destroy {
                control_plane: self.read(CONTROL_PLANE),
                cluster: self.read(CLUSTER),
            },
            Look::LetGo => Live::LetGo {
                apply: self.read(APPLY),
                astray: self.astray(),
            },
        }
    }

    fn astray(&self) -> Option<String> {
        let control_plane: Box<CaptControlPlane> = self.read(CONTROL_PLANE)?;
        let apply: Box<WorkspaceTemplateApply> = self.read(ASTRAY)?;
        let named = other_apply_name(&control_plane).filter(|name| apply.metadata.name.as_deref() == Some(name));
        named.filter(|_| is_ours(&apply.metadata, "cp-uid")).map(str::to_owned)
    }

    fn read<T: DeserializeOwned>(&self, key: &'static str) -> Option<Box<T>> {
        self.objects
            .get(key)
            .map(|value| serde_json::from_value(value.clone()).unwrap())
    }

    /// The plan before any live read.
    pub(super) fn plan_first(&self) -> Plan {
        plan(&self.observed(self).unwrap(), self.now)
    }

    /// The plan of a whole pass.
    pub(super) fn plan(&self) -> Plan {
        self.plan_against(self)
    }

    /// The plan of a pass whose caches show this world, while the API server has `live`.
    pub(super) fn plan_against(&self, live: &World) -> Plan {
        let mut seen = self.observed(self).unwrap();
        let first = plan(&seen, self.now);
        let Step::Look(look) = first.step else { return first };
        seen.live = Some(live.live(look));
        plan(&seen, self.now)
    }

    /// Until when nothing is said about a stage that may pass.
    pub(super) fn silent_until(&self) -> Option<Timestamp> {
        self.objects.get(CONTROL_PLANE)?;
        match self.plan() {
            Plan {
                status: None,
                wake: Wake::At(told),
                ..
            } => Some(told),
            _ => None,
        }
    }

    /// Writes the report and takes no step.
    pub(super) fn report(&mut self) {
        if let Some(status) = self.plan().status {
            self.edit(CONTROL_PLANE, |control_plane| {
                apply_status(control_plane, &serde_json::to_value(status).unwrap())
            });
        }
    }

    /// One pass from fresh caches.
    pub(super) fn pass(&mut self) {
        self.pass_seeing(false).unwrap();
    }

    /// One pass. With `stale`, every cached object is the one before its last write; live reads and writes meet the real
    /// one.
    pub(super) fn pass_seeing(&mut self, stale: bool) -> Result<(), Stop> {
        let seen = if stale {
            self.observed(&Stale(self))
        } else {
            self.observed(self)
        };
        let Some(mut seen) = seen else { return Ok(()) };
        let mut planned = plan(&seen, self.now);
        if let Step::Look(look) = planned.step {
            seen.live = Some(self.live(look));
            planned = plan(&seen, self.now);
        }
        let version = seen.control_plane.metadata.resource_version.clone();
        self.perform(&seen, planned.step)?;
        let Some(status) = planned.status else { return Ok(()) };
        let status = serde_json::to_value(status).unwrap();
        let mut same = serde_json::to_value(seen.control_plane.as_ref()).unwrap();
        let before = same.clone();
        apply_status(&mut same, &status);
        if same == before {
            return Ok(());
        }
        self.write(CONTROL_PLANE, version.as_deref(), |control_plane| {
            apply_status(control_plane, &status)
        })
    }

    fn perform(&mut self, seen: &Observed, step: Step) -> Result<(), Stop> {
        let apply = match &seen.apply {
            Found::Present(apply) => Some(&apply.metadata),
            _ => None,
        };
        let apply_version = apply.and_then(|apply| apply.resource_version.as_deref());
        match step {
            Step::Nothing => {}
            Step::Look(look) => panic!("{look:?} was answered"),
            Step::AddFinalizer => {
                let version = seen.control_plane.metadata.resource_version.as_deref();
                self.write(CONTROL_PLANE, version, |control_plane| {
                    add_finalizer(control_plane, GUARD)
                })?;
            }
            Step::CreateApply(apply) => {
                self.count()?;
                if !self.objects.contains_key(APPLY) {
                    self.creates += 1;
                    self.put(APPLY, created(&apply));
                }
            }
            Step::HoldApply => self.write(APPLY, apply_version, |apply| add_finalizer(apply, HOLD))?,
            Step::AdoptApply => self.write(APPLY, apply_version, mark)?,
            Step::ChangeApply { spec, labels, given } => self.write(APPLY, apply_version, |apply| {
                apply["spec"] = serde_json::to_value(spec).unwrap();
                if let Some(given) = given {
                    apply["metadata"]["annotations"][annotation::NETWORK_VARIABLES] = json!(given);
                }
                for (key, value) in labels {
                    match value {
                        Some(value) => apply["metadata"]["labels"][key] = json!(value),
                        None => {
                            apply["metadata"]["labels"].as_object_mut().unwrap().remove(key);
                        }
                    }
                }
            })?,
            Step::ClearClusterFailure(_) => self.write(CLUSTER, None, |cluster| cluster["status"] = json!({}))?,
            Step::DeleteSelf => {
                self.count()?;
                self.delete(CONTROL_PLANE);
            }
            Step::DeleteApply => {
                self.count()?;
                // By UID: an apply that is on its way out, or gone, is not deleted twice.
                if self
                    .objects
                    .get(APPLY)
                    .is_some_and(|apply| apply.pointer("/metadata/deletionTimestamp").is_none())
                {
                    self.deletes += 1;
                    self.delete(APPLY);
                }
            }
            Step::ReleaseApply => {
                self.count()?;
                if self.objects.contains_key(APPLY) {
                    self.drop_finalizer(APPLY, HOLD);
                }
            }
            Step::DropFinalizers => {
                self.count()?;
                self.drop_finalizer(CONTROL_PLANE, GUARD);
            }
        }
        Ok(())
    }

    fn write(&mut self, key: &'static str, version: Option<&str>, change: impl FnOnce(&mut Value)) -> Result<(), Stop> {
        let current = self
            .objects
            .get(key)
            .map(|object| object["metadata"]["resourceVersion"].clone());
        if current.is_none() || version.is_some_and(|version| current != Some(json!(version))) {
            return Err(Stop::Conflict);
        }
        self.count()?;
        self.edit(key, change);
        Ok(())
    }

    fn count(&mut self) -> Result<(), Stop> {
        if self.dies_after == Some(self.writes) {
            self.dies_after = None;
            return Err(Stop::Died);
        }
        self.writes += 1;
        Ok(())
    }

    /// One act of the controllers beside ours; whether there was one to do.
    pub(super) fn others_act(&mut self) -> bool {
        let before = self.version;
        let count = self.objects.len();
        if let Some(apply) = self.objects.get(APPLY).cloned() {
            let has = |name: &str| {
                apply["metadata"]["finalizers"]
                    .as_array()
                    .is_some_and(|all| all.contains(&json!(name)))
            };
            let deleting = apply.pointer("/metadata/deletionTimestamp").is_some();
            if deleting {
                if !has(HOLD) && has(WORKSPACE) {
                    self.drop_finalizer(APPLY, WORKSPACE);
                }
            } else if !has(WORKSPACE) {
                self.edit(APPLY, |apply| add_finalizer(apply, WORKSPACE));
            } else {
                self.apply_ready();
            }
        }
        if self.version != before || self.objects.len() != count {
            return true;
        }
        let Some(control_plane) = self.objects.get(CONTROL_PLANE).cloned() else {
            return false;
        };
        let deleting = control_plane.pointer("/metadata/deletionTimestamp").is_some();
        for (name, type_, reason) in [
            (ENDPOINT, "EndpointReady", "EndpointPublished"),
            (SECRETS, "SecretsReady", "Ready"),
        ] {
            let has = control_plane["metadata"]["finalizers"]
                .as_array()
                .is_some_and(|all| all.contains(&json!(name)));
            if deleting && has {
                self.drop_finalizer(CONTROL_PLANE, name);
                return true;
            }
            if deleting || !self.objects.contains_key(APPLY) {
                continue;
            }
            self.edit(CONTROL_PLANE, |control_plane| add_finalizer(control_plane, name));
            self.say(type_, "True", reason, "");
            if name == ENDPOINT {
                self.set(
                    CONTROL_PLANE,
                    "/spec/controlPlaneEndpoint",
                    json!({"host": "eks.example.com", "port": 443}),
                );
            }
        }
        self.version != before
    }

    /// Passes and the others' acts until nothing changes any more.
    pub(super) fn settle(&mut self) {
        for _ in 0..100 {
            let before = self.version;
            let count = self.objects.len();
            self.pass();
            let acted = self.others_act();
            if acted || self.version != before || self.objects.len() != count {
                continue;
            }
            match self.silent_until() {
                Some(told) => self.now = told,
                None => return,
            }
        }
        panic!("never comes to rest: {:#}", self.get(CONTROL_PLANE));
    }
}

fn created(apply: &WorkspaceTemplateApply) -> Value {
    let mut value = serde_json::to_value(apply).unwrap();
    value["metadata"]["uid"] = json!("apply-uid");
    mark(&mut value);
    value
}

fn mark(apply: &mut Value) {
    apply["metadata"]["ownerReferences"] = owner("CAPTControlPlane", "demo-cp", "cp-uid", true);
    apply["metadata"]["labels"]["infrastructure.cluster.x-k8s.io/capt-owner-uid"] = json!("cp-uid");
}

fn add_finalizer(object: &mut Value, name: &str) {
    let list = &mut object["metadata"]["finalizers"];
    if list.is_null() {
        *list = json!([]);
    }
    let list = list.as_array_mut().unwrap();
    if !list.contains(&json!(name)) {
        list.push(json!(name));
    }
}

fn set_condition(object: &mut Value, condition: Value) {
    let list = &mut object["status"]["conditions"];
    if list.is_null() {
        *list = json!([]);
    }
    let list = list.as_array_mut().unwrap();
    match list.iter_mut().find(|other| other["type"] == condition["type"]) {
        Some(other) => *other = condition,
        None => list.push(condition),
    }
}

/// Server-side apply of everything that this controller owns.
pub(super) fn apply_status(control_plane: &mut Value, status: &Value) {
    let old = control_plane["status"].clone();
    let mut new = status.clone();
    for theirs in ["endpoint", "secretsReady"] {
        if !old[theirs].is_null() {
            new[theirs] = old[theirs].clone();
        }
    }
    new["conditions"] = old["conditions"].clone();
    control_plane["status"] = new;
    for condition in status["conditions"].as_array().into_iter().flatten() {
        set_condition(control_plane, condition.clone());
    }
}

impl Reads for World {
    fn control_plane(&self, key: &Key) -> Option<Arc<CaptControlPlane>> {
        present(found(self.objects.get(key_of("CAPTControlPlane", key).as_str())))
    }

    fn cluster(&self, key: &Key) -> Option<Arc<Cluster>> {
        present(found(self.objects.get(key_of("Cluster", key).as_str())))
    }

    fn capt_cluster(&self, key: &Key) -> Found<CaptCluster> {
        found(self.objects.get(key_of("CAPTCluster", key).as_str()))
    }

    fn apply(&self, key: &Key) -> Found<WorkspaceTemplateApply> {
        found(self.objects.get(key_of("WorkspaceTemplateApply", key).as_str()))
    }
}

/// The world one write ago, object by object.
pub(super) struct Stale<'a>(pub(super) &'a World);

impl Stale<'_> {
    fn old(&self, kind: &str, key: &Key) -> Option<&Value> {
        self.0.before.get(key_of(kind, key).as_str())?.as_ref()
    }
}

impl Reads for Stale<'_> {
    fn control_plane(&self, key: &Key) -> Option<Arc<CaptControlPlane>> {
        present(found(self.old("CAPTControlPlane", key)))
    }

    fn cluster(&self, key: &Key) -> Option<Arc<Cluster>> {
        present(found(self.old("Cluster", key)))
    }

    fn capt_cluster(&self, key: &Key) -> Found<CaptCluster> {
        found(self.old("CAPTCluster", key))
    }

    fn apply(&self, key: &Key) -> Found<WorkspaceTemplateApply> {
        found(self.old("WorkspaceTemplateApply", key))
    }
}

fn key_of(kind: &str, key: &Key) -> String {
    format!("{kind}/{}", key.name())
}

fn found<T: DeserializeOwned>(value: Option<&Value>) -> Found<T> {
    match value.map(|value| serde_json::from_value(value.clone())) {
        None => Found::Absent,
        Some(Ok(object)) => Found::Present(Arc::new(object)),
        Some(Err(error)) => Found::Unreadable(error.to_string().into()),
    }
}

fn present<T>(found: Found<T>) -> Option<Arc<T>> {
    match found {
        Found::Present(object) => Some(object),
        _ => None,
    }
}

#[test]
fn the_names_of_this_world_are_the_real_ones() {
    let world = World::new();
    let control_plane = Reads::control_plane(&world, &Key::namespaced("team", "demo-cp")).unwrap();
    assert_eq!(
        APPLY,
        format!("WorkspaceTemplateApply/{}", eks_apply::name(&control_plane.metadata))
    );
}
