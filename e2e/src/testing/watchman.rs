//! What must hold of every version of a CAPTCluster and a CAPTControlPlane, whatever a test does to them: a task that looks
//! at each version as it comes, and a report at the end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, ensure};
use capt_api::conditions::Report;
use capt_api::conditions::cluster::ClusterReport;
use capt_api::conditions::control_plane::ControlPlaneReport;
use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{DynamicObject, ListParams};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::bench::{CONTROL_PLANE, INFRASTRUCTURE};
use super::history::version;
use super::{PATIENCE, objects, text};

/// Looks at the two kinds in one namespace for as long as it lives.
#[derive(Debug)]
pub(super) struct Watchman {
    watched: [Watched; 2],
}

#[derive(Debug)]
struct Watched {
    api: Api<DynamicObject>,
    log: Arc<Log>,
    task: JoinHandle<()>,
}

/// What was seen of one kind.
#[derive(Debug, Default)]
struct Log {
    book: Mutex<Book>,
    grown: Notify,
}

#[derive(Debug, Default)]
struct Book {
    /// The last version of each object, by name.
    last: BTreeMap<String, DynamicObject>,
    violations: Vec<String>,
}

/// The conditions of a kind's own controller, which come and stay together.
type Complete = &'static [&'static str];

impl Watchman {
    pub(super) fn start(client: &Client, namespace: &str) -> Self {
        let watch = |api_version: &str, kind: &str, complete: Complete| {
            let api = objects(client, api_version, kind, Some(namespace));
            let log = Arc::new(Log::default());
            let task = tokio::spawn(look(api.clone(), log.clone(), complete));
            Watched { api, log, task }
        };
        Self {
            watched: [
                watch(INFRASTRUCTURE, "CAPTCluster", ClusterReport::TYPES),
                watch(CONTROL_PLANE, "CAPTControlPlane", ControlPlaneReport::TYPES),
            ],
        }
    }

    /// Fails with everything that should not have been, up to now.
    pub(super) async fn report(&self) -> Result<()> {
        let mut violations = Vec::new();
        for watched in &self.watched {
            let now = watched.api.list(&ListParams::default()).await?;
            let caught_up = tokio::time::timeout(PATIENCE, watched.log.caught_up(&now.items)).await;
            ensure!(caught_up.is_ok(), "the watch does not keep up with the API server");
            let mut book = watched.log.book.lock().unwrap_or_else(PoisonError::into_inner);
            violations.append(&mut book.violations);
        }
        ensure!(
            violations.is_empty(),
            "versions that must not be:\n{}",
            violations.join("\n")
        );
        Ok(())
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Log {
    /// Returns when the book shows these objects, in these versions or later ones, and no others.
    async fn caught_up(&self, now: &[DynamicObject]) {
        loop {
            let grown = self.grown.notified();
            {
                let book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
                let known = |object: &DynamicObject| {
                    let last = book.last.get(&object.name_any());
                    last.is_some_and(|last| version(last) >= version(object))
                };
                if now.iter().all(known) && book.last.len() == now.len() {
                    return;
                }
            }
            grown.await;
        }
    }
}

async fn look(api: Api<DynamicObject>, log: Arc<Log>, complete: Complete) {
    let mut events = watcher::watcher(api, watcher::Config::default()).boxed();
    // Objects that a new list does not show are gone.
    let mut listed: Option<Vec<String>> = None;
    while let Some(event) = events.next().await {
        // The API server may be away for a while: the watch comes back by itself.
        let Ok(event) = event else { continue };
        {
            let mut book = log.book.lock().unwrap_or_else(PoisonError::into_inner);
            match event {
                Event::Init => listed = Some(Vec::new()),
                Event::InitApply(object) => {
                    listed.get_or_insert_default().push(object.name_any());
                    book.note(object, complete);
                }
                Event::InitDone => {
                    let listed = listed.take().unwrap_or_default();
                    book.last.retain(|name, _| listed.contains(name));
                }
                Event::Apply(object) => book.note(object, complete),
                Event::Delete(object) => {
                    book.note(object.clone(), complete);
                    book.last.remove(&object.name_any());
                }
            }
        }
        log.grown.notify_waiters();
    }
}

impl Book {
    fn note(&mut self, object: DynamicObject, complete: Complete) {
        let before = self.last.get(&object.name_any());
        let before = before.filter(|before| before.metadata.uid == object.metadata.uid);
        let mut wrong = Vec::new();
        check(&object, complete, &mut wrong);
        if let Some(before) = before {
            check_change(before, &object, &mut wrong);
        }
        let name = object.name_any();
        let version = object.resource_version().unwrap_or_default();
        let kind = object.types.as_ref().map_or("", |types| types.kind.as_str());
        self.violations.extend(
            wrong
                .into_iter()
                .map(|wrong| format!("{kind} {name}, version {version}: {wrong}")),
        );
        self.last.insert(name, object);
    }
}

/// What one version must be.
fn check(object: &DynamicObject, complete: Complete, wrong: &mut Vec<String>) {
    let conditions = match conditions(object) {
        Ok(conditions) => conditions,
        Err(error) => {
            wrong.push(format!("its conditions cannot be read: {error}"));
            return;
        }
    };
    let is_true = |type_: &str| {
        conditions
            .get(type_)
            .is_some_and(|condition| condition.status == "True")
    };
    let says = |pointer: &str| object.data.pointer(pointer).and_then(Value::as_bool) == Some(true);
    let failure = [
        text(object, "/status/failureReason"),
        text(object, "/status/failureMessage"),
    ];
    if says("/status/ready") && failure.iter().any(|text| !text.is_empty()) {
        wrong.push(format!("ready, with failureReason and failureMessage {failure:?}"));
    }
    if failure.iter().filter(|text| text.is_empty()).count() == 1 {
        wrong.push(format!("half a failure: {failure:?}"));
    }

    let generation = object.metadata.generation.unwrap_or_default();
    for condition in conditions.values() {
        let Condition {
            type_, status, reason, ..
        } = condition;
        if !["True", "False", "Unknown"].contains(&status.as_str()) {
            wrong.push(format!("{type_} has the status {status:?}"));
        }
        let valid = reason.starts_with(|c: char| c.is_ascii_alphabetic())
            && reason.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !valid {
            wrong.push(format!("{type_} has the reason {reason:?}"));
        }
        if condition.observed_generation.is_none_or(|seen| seen > generation) {
            wrong.push(format!(
                "{type_} is of generation {:?}, the object of {generation}",
                condition.observed_generation
            ));
        }
    }
    let missing: Vec<&&str> = complete
        .iter()
        .filter(|type_| !conditions.contains_key(**type_))
        .collect();
    // An object that was paused from the beginning says only that.
    if !missing.is_empty() && missing.len() < complete.len() && !is_true("Paused") {
        wrong.push(format!("the conditions {missing:?} are missing"));
    }

    if is_true("Ready") && !says("/status/ready") {
        wrong.push("the condition Ready without status.ready".to_owned());
    }
    let phase = text(object, "/status/phase");
    let expected = match () {
        () if phase.is_empty() => "",
        // Reported with the last word before a pause, whatever has happened since.
        () if is_true("Paused") => phase,
        () if is_true("Deleting") => "Deleting",
        () if is_true("Ready") => "Ready",
        () if is_true("Failed") => "Failed",
        () => "Creating",
    };
    if phase != expected {
        wrong.push(format!("the phase {phase}, but the conditions say {expected}"));
    }
    if phase == "Ready" && is_true("Failed") {
        wrong.push("the phase Ready with Failed".to_owned());
    }
}

/// What may become of one version.
fn check_change(before: &DynamicObject, after: &DynamicObject, wrong: &mut Vec<String>) {
    // No controller takes a whole status away: that was the test.
    if after.data.get("status").is_none_or(Value::is_null) {
        return;
    }
    let (Ok(was), Ok(is)) = (conditions(before), conditions(after)) else {
        return;
    };
    for (type_, was) in was {
        let Some(is) = is.get(&type_) else {
            wrong.push(format!("the condition {type_} has vanished"));
            continue;
        };
        let (then, now) = (&was.last_transition_time.0, &is.last_transition_time.0);
        if was.status == is.status && then != now {
            wrong.push(format!("{type_} is still {}, since {now} instead of {then}", is.status));
        }
        if now < then {
            wrong.push(format!("{type_} went back in time, from {then} to {now}"));
        }
    }
    for latch in [
        "/status/initialized",
        "/status/initialization/controlPlaneInitialized",
        "/status/initialization/provisioned",
        "/status/ready",
    ] {
        let says = |object: &DynamicObject| object.data.pointer(latch).and_then(Value::as_bool) == Some(true);
        if says(before) && !says(after) {
            wrong.push(format!("{latch} was taken back"));
        }
    }
}

fn conditions(object: &DynamicObject) -> Result<BTreeMap<String, Condition>, String> {
    let Some(list) = object.data.pointer("/status/conditions") else {
        return Ok(BTreeMap::new());
    };
    let list: Vec<Condition> = serde_json::from_value(list.clone()).map_err(|error| error.to_string())?;
    let count = list.len();
    let map: BTreeMap<String, Condition> = list
        .into_iter()
        .map(|condition| (condition.type_.clone(), condition))
        .collect();
    if map.len() == count {
        Ok(map)
    } else {
        Err("a type stands there twice".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const COMPLETE: Complete = &["Ready", "Failed"];

    fn condition(type_: &str, status: &str, since: &str) -> Value {
        json!({
            "type": type_, "status": status, "reason": "Why", "message": "", "observedGeneration": 1,
            "lastTransitionTime": since,
        })
    }

    fn object(status: Value) -> DynamicObject {
        serde_json::from_value(json!({
            "metadata": {"name": "it", "uid": "1", "generation": 1}, "status": status,
        }))
        .unwrap()
    }

    fn violations(versions: &[Value]) -> Vec<String> {
        let mut book = Book::default();
        for version in versions {
            book.note(object(version.clone()), COMPLETE);
        }
        book.violations
    }

    const EARLY: &str = "2026-01-01T00:00:00Z";
    const LATE: &str = "2026-01-01T00:00:01Z";

    #[test]
    fn a_sound_life_gives_no_cause_for_complaint() {
        let creating = json!({
            "phase": "Creating", "ready": false,
            "conditions": [condition("Ready", "False", EARLY), condition("Failed", "False", EARLY)],
        });
        let ready = json!({
            "phase": "Ready", "ready": true,
            "conditions": [condition("Ready", "True", LATE), condition("Failed", "False", EARLY)],
        });
        assert_eq!(violations(&[json!({}), creating, ready]), [""; 0]);
    }

    #[test]
    fn what_must_not_be_is_noticed() {
        let ready = |extra: Value| {
            let mut status = json!({
                "phase": "Ready", "ready": true,
                "conditions": [condition("Ready", "True", EARLY), condition("Failed", "False", EARLY)],
            });
            json_patch::merge(&mut status, &extra);
            status
        };
        let with = |ready_: Value, failed: Value| ready(json!({"conditions": [ready_, failed]}));
        let sound = ready(json!({}));
        for (versions, complaint) in [
            (
                vec![ready(json!({"failureReason": "A", "failureMessage": "B"}))],
                "ready, with failureReason",
            ),
            (
                vec![ready(json!({"ready": false, "failureReason": "A"}))],
                "half a failure",
            ),
            (vec![ready(json!({"phase": "Creating"}))], "the phase Creating"),
            (
                vec![with(
                    condition("Ready", "True", EARLY),
                    condition("Failed", "True", EARLY),
                )],
                "the phase Ready with Failed",
            ),
            (
                vec![ready(json!({"conditions": [condition("Ready", "True", EARLY)]}))],
                "are missing",
            ),
            (
                vec![with(
                    condition("Ready", "Yes", EARLY),
                    condition("Failed", "False", EARLY),
                )],
                "the status \"Yes\"",
            ),
            (
                vec![
                    sound.clone(),
                    with(condition("Ready", "True", LATE), condition("Failed", "False", EARLY)),
                ],
                "Ready is still True, since",
            ),
            (
                vec![sound.clone(), ready(json!({"ready": null}))],
                "/status/ready was taken back",
            ),
            (
                vec![
                    sound.clone(),
                    ready(json!({"conditions": [condition("Ready", "True", EARLY)]})),
                ],
                "the condition Failed has vanished",
            ),
        ] {
            let found = violations(&versions);
            assert!(
                found.iter().any(|found| found.contains(complaint)),
                "{complaint} is not in {found:?}"
            );
        }
    }

    #[test]
    fn another_object_of_the_same_name_begins_anew() {
        let mut book = Book::default();
        book.note(object(json!({"ready": true})), COMPLETE);
        let mut successor = object(json!({"ready": false}));
        successor.metadata.uid = Some("2".into());
        book.note(successor, COMPLETE);
        assert_eq!(book.violations, [""; 0]);
    }
}
