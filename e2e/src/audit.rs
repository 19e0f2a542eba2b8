//! The API server's audit log: who asked for what, and how often.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};

use anyhow::{Context, Result};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde::Deserialize;

use crate::environment::Environment;

/// One request, as far as it is counted.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    pub verb: String,
    user: User,
    object_ref: Option<ObjectRef>,
    response_status: Option<ResponseStatus>,
    stage: String,
    request_received_timestamp: MicroTime,
    stage_timestamp: MicroTime,
}

#[derive(Debug, Clone, Deserialize)]
struct User {
    username: String,
    #[serde(default)]
    extra: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ObjectRef {
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Debug, Clone, Deserialize)]
struct ResponseStatus {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    message: String,
    details: Option<Details>,
}

#[derive(Debug, Clone, Deserialize)]
struct Details {
    #[serde(default)]
    causes: Vec<Cause>,
}

#[derive(Debug, Clone, Deserialize)]
struct Cause {
    #[serde(default)]
    reason: String,
}

impl Request {
    pub fn user(&self) -> &str {
        &self.user.username
    }

    /// The pod whose token was used; empty when it was no pod's.
    pub fn pod(&self) -> &str {
        let pods = self.user.extra.get("authentication.kubernetes.io/pod-name");
        pods.and_then(|pods| pods.first()).map_or("", String::as_str)
    }

    pub fn resource(&self) -> &str {
        self.object_ref.as_ref().map_or("", |object| object.resource.as_str())
    }

    pub fn group(&self) -> &str {
        self.object_ref.as_ref().map_or("", |object| object.api_group.as_str())
    }

    /// Namespace and name of the object, each empty when there is none.
    pub fn object(&self) -> (&str, &str) {
        self.object_ref
            .as_ref()
            .map_or(("", ""), |object| (&object.namespace, &object.name))
    }

    /// The resource as permissions name it: `clusters`, or `clusters/status`.
    pub fn resource_path(&self) -> String {
        match &self.object_ref {
            Some(object) if !object.subresource.is_empty() => format!("{}/{}", object.resource, object.subresource),
            _ => self.resource().to_owned(),
        }
    }

    /// What was asked for, as one text: resource, namespace and name.
    pub fn target(&self) -> String {
        let (namespace, name) = self.object();
        format!("{} {namespace}/{name}", self.resource_path())
    }

    pub fn received(&self) -> Timestamp {
        self.request_received_timestamp.0
    }

    /// When the answer was complete.
    pub fn answered(&self) -> Timestamp {
        self.stage_timestamp.0
    }

    pub fn is_write(&self) -> bool {
        matches!(
            self.verb.as_str(),
            "create" | "update" | "patch" | "delete" | "deletecollection"
        )
    }

    /// Refused for want of a permission, by authorization or by admission. Nobody may create in a namespace that is
    /// going, nor name an owner whose kind is so new that admission has not heard of it (it asks every ten seconds), so
    /// those are no missing permissions.
    pub fn lacked_permission(&self) -> bool {
        let Some(status) = &self.response_status else {
            return false;
        };
        let causes = status.details.as_ref().map_or(&[][..], |details| &details.causes);
        let in_vain = causes.iter().any(|cause| cause.reason == "NamespaceTerminating")
            || status.message.contains("cannot find RESTMapping for APIVersion");
        status.code == 403 && !in_vain
    }

    pub fn code(&self) -> u16 {
        self.response_status.as_ref().map_or(0, |status| status.code)
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} {} {}: {}",
            self.received(),
            self.user(),
            self.verb,
            self.target(),
            self.code()
        )
    }
}

/// The requests of an environment, in the order in which they were answered.
#[derive(Debug, Default)]
pub struct Audit(pub Vec<Request>);

/// Reads the audit log; a line that is still being written is left out.
pub fn read(environment: &Environment) -> Result<Audit> {
    environment.settings()?;
    let path = environment.path("logs/audit.log");
    let file = File::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut requests = Vec::new();
    for line in BufReader::new(file).lines() {
        // A watch is logged when it begins and when it ends; the beginning is the request.
        if let Ok(request) = serde_json::from_str::<Request>(&line?)
            && !(request.verb == "watch" && request.stage == "ResponseComplete")
        {
            requests.push(request);
        }
    }
    Ok(Audit(requests))
}

impl Audit {
    /// Counts by user and verb, as a table.
    pub fn table(&self) -> String {
        let mut counts: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
        let mut verbs: Vec<&str> = Vec::new();
        for request in &self.0 {
            if !verbs.contains(&request.verb.as_str()) {
                verbs.push(&request.verb);
            }
            *counts
                .entry(request.user())
                .or_default()
                .entry(&request.verb)
                .or_default() += 1;
        }
        verbs.sort_unstable();
        let width = counts.keys().map(|user| user.len()).max().unwrap_or_default() + 2;
        let mut table = format!("{:<width$}", "WHO");
        verbs
            .iter()
            .for_each(|verb| table.push_str(&format!("{:>18}", verb.to_uppercase())));
        table.push('\n');
        for (user, by_verb) in &counts {
            table.push_str(&format!("{user:<width$}"));
            for verb in &verbs {
                table.push_str(&format!(
                    "{:>18}",
                    by_verb.get(verb).map_or_else(|| "-".to_owned(), ToString::to_string)
                ));
            }
            table.push('\n');
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn parsed(fields: Value) -> Request {
        let mut event = json!({
            "verb": "get", "stage": "ResponseComplete", "user": {"username": "a"},
            "objectRef": {"resource": "secrets"}, "responseStatus": {"code": 403},
            "requestReceivedTimestamp": "2026-01-02T03:04:05.678901Z", "stageTimestamp": "2026-01-02T03:04:05.700000Z",
        });
        event
            .as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        serde_json::from_value(event).unwrap()
    }

    fn request(user: &str, verb: &str) -> Request {
        parsed(json!({"verb": verb, "user": {"username": user}}))
    }

    #[test]
    fn requests_are_counted_by_who_and_how() {
        let audit = Audit(vec![
            request("capt-endpoint", "patch"),
            request("capt-endpoint", "patch"),
            request("core", "get"),
        ]);
        let table = audit.table();
        let words: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            words,
            [
                vec!["WHO", "GET", "PATCH"],
                vec!["capt-endpoint", "-", "2"],
                vec!["core", "1", "-"]
            ]
        );
    }

    #[test]
    fn a_request_tells_its_object_and_answer() {
        let request = parsed(json!({"verb": "patch", "objectRef": {
            "apiGroup": "cluster.x-k8s.io", "resource": "clusters", "subresource": "status", "namespace": "n", "name": "c",
        }}));
        assert_eq!(
            (request.group(), request.resource(), request.resource_path().as_str()),
            ("cluster.x-k8s.io", "clusters", "clusters/status")
        );
        assert!(request.is_write());
        assert_eq!(
            request.to_string(),
            "2026-01-02T03:04:05.678901Z a patch clusters/status n/c: 403"
        );
        assert_eq!(parsed(json!({})).resource_path(), "secrets");
    }

    #[test]
    fn a_request_tells_the_pod_that_made_it() {
        assert_eq!(request("core", "get").pod(), "");
        let user = json!({"username": "a", "extra": {"authentication.kubernetes.io/pod-name": ["a-1"]}});
        assert_eq!(parsed(json!({"user": user})).pod(), "a-1");
    }

    #[test]
    fn what_nobody_could_do_is_no_missing_permission() {
        let answered = |code: u16, causes: Value| {
            parsed(json!({"responseStatus": {"code": code, "details": {"causes": causes}}})).lacked_permission()
        };
        assert!(parsed(json!({})).lacked_permission());
        assert!(answered(403, json!([])));
        assert!(!answered(403, json!([{"reason": "NamespaceTerminating"}])));
        assert!(!answered(409, json!([])));
        let unknown =
            "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion a/v1 Kind B";
        assert!(!parsed(json!({"responseStatus": {"code": 403, "message": unknown}})).lacked_permission());
    }
}
