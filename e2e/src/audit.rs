//! The API server's audit log: who asked for what, and how often.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};

use anyhow::{Context, Result};
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
}

#[derive(Debug, Clone, Deserialize)]
struct User {
    username: String,
}

#[derive(Debug, Clone, Deserialize)]
struct ObjectRef {
    #[serde(default)]
    resource: String,
}

#[derive(Debug, Clone, Deserialize)]
struct ResponseStatus {
    #[serde(default)]
    code: u16,
}

impl Request {
    pub fn user(&self) -> &str {
        &self.user.username
    }

    pub fn resource(&self) -> &str {
        self.object_ref.as_ref().map_or("", |object| object.resource.as_str())
    }

    pub fn code(&self) -> u16 {
        self.response_status.as_ref().map_or(0, |status| status.code)
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

    fn request(user: &str, verb: &str) -> Request {
        serde_json::from_value(serde_json::json!({
            "verb": verb, "stage": "ResponseComplete", "user": {"username": user},
            "objectRef": {"resource": "secrets"}, "responseStatus": {"code": 403},
        }))
        .unwrap()
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
        let request = request("a", "get");
        assert_eq!(
            (request.user(), request.resource(), request.code()),
            ("a", "secrets", 403)
        );
    }
}
