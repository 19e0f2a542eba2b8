//! Where a cluster has ended, without what differs from run to run, so that a disturbed run can be compared with an
//! undisturbed one.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use capt_api::names::{self, annotation};
use kube::ResourceExt;
use kube::api::{DynamicObject, ListParams};
use serde_json::{Map, Value, json};
use tokio::time::sleep;

use super::bench::{Bench, Names};
use super::{PATIENCE, SETTLED, settled, text};

/// Several kinds are looked at, so they are asked for again.
const AGAIN: Duration = Duration::from_millis(500);

/// The objects of a finished cluster, each field under its path.
#[derive(Debug, Clone, PartialEq)]
pub struct EndState(BTreeMap<String, String>);

impl EndState {
    /// Where a cluster that is up ends when nobody writes any more. Each controller tells of its part when it has seen the
    /// others', and the last word is nobody's in particular.
    pub async fn settled(bench: &Bench, names: &Names) -> Result<Self> {
        settled(SETTLED, || Self::of(bench, names)).await
    }

    /// Waits until another cluster has ended here, too.
    pub async fn reached(&self, bench: &Bench, names: &Names) -> Result<()> {
        let begun = Instant::now();
        loop {
            let now = Self::of(bench, names).await;
            let compared = now.and_then(|now| now.must_equal(self));
            if compared.is_ok() || begun.elapsed() >= PATIENCE {
                return compared;
            }
            sleep(AGAIN).await;
        }
    }

    /// Everything that the namespace holds of the cluster, and its Workspaces.
    async fn of(bench: &Bench, names: &Names) -> Result<Self> {
        let all = ListParams::default();
        let mut objects = vec![
            ("Cluster", bench.clusters().get(names.cluster).await?),
            ("CAPTCluster", bench.networks().get(names.network).await?),
            (
                "CAPTControlPlane",
                bench.control_planes().get(names.control_plane).await?,
            ),
        ];
        let applies = bench.applies().list(&all).await?;
        for apply in &applies {
            let workspace = text(apply, "/status/workspaceName");
            ensure!(!workspace.is_empty(), "{} has no Workspace", apply.name_any());
            objects.push(("Workspace", bench.all_workspaces().get(workspace).await?));
        }
        objects.extend(applies.into_iter().map(|apply| ("WorkspaceTemplateApply", apply)));
        objects.extend(
            bench
                .secrets()
                .list(&all)
                .await?
                .into_iter()
                .map(|secret| ("Secret", secret)),
        );
        let plain = Plain::new(bench, names, &objects)?;
        let mut fields = BTreeMap::new();
        for (kind, object) in &objects {
            let name = plain.text(&object.name_any());
            flatten(&format!("{kind} {name}"), &plain.object(kind, object)?, &mut fields);
        }
        Ok(Self(fields))
    }

    /// Fails with every field in which the two differ.
    fn must_equal(&self, undisturbed: &Self) -> Result<()> {
        let paths: std::collections::BTreeSet<&String> = self.0.keys().chain(undisturbed.0.keys()).collect();
        let differences: Vec<String> = paths
            .into_iter()
            .filter(|path| self.0.get(*path) != undisturbed.0.get(*path))
            .map(|path| {
                let shown = |state: &Self| state.0.get(path).cloned().unwrap_or_else(|| "nothing".to_owned());
                format!("{path}: {}, undisturbed {}", shown(self), shown(undisturbed))
            })
            .collect();
        ensure!(
            differences.is_empty(),
            "the end is not that of an undisturbed run:\n{}",
            differences.join("\n")
        );
        Ok(())
    }
}

/// Knows what differs from run to run.
struct Plain {
    /// What stands for what; earlier ones first, because a later one may be part of it.
    words: Vec<(String, String)>,
    port: u16,
}

/// Counters and times, which say how it came about and not how it is.
const LEFT_OUT: &[&str] = &[
    "creationTimestamp",
    "generation",
    "lastAppliedTime",
    "lastTransitionTime",
    "managedFields",
    "observedGeneration",
    "resourceVersion",
    "uid",
];

impl Plain {
    fn new(bench: &Bench, names: &Names, objects: &[(&str, DynamicObject)]) -> Result<Self> {
        let [vpc, eks] = bench.workspaces(names);
        let port = bench.entry(&eks)?.and_then(|entry| entry.port);
        let port = port.context("the cluster listens nowhere")?;
        let mut words = vec![
            (vpc, "VPC-WORKSPACE".to_owned()),
            (eks, "EKS-WORKSPACE".to_owned()),
            (bench.namespace.clone(), "NAMESPACE".to_owned()),
            (format!("127.0.0.1:{port}"), "127.0.0.1:PORT".to_owned()),
        ];
        for (kind, object) in objects {
            if let Some(uid) = object.uid() {
                words.push((uid, format!("UID-OF-{kind}")));
            }
            let revision = text(object, "/status/lastAppliedRevision");
            if !revision.is_empty() {
                words.push((revision.to_owned(), "REVISION".to_owned()));
            }
        }
        Ok(Self { words, port })
    }

    fn object(&self, kind: &str, object: &DynamicObject) -> Result<Value> {
        let mut fields = object.data.as_object().cloned().unwrap_or_default();
        if kind == "Secret"
            && let Some(data) = fields.get_mut("data")
        {
            // That the values are right is another question, and they are nobody's business.
            *data = data.as_object().into_iter().flat_map(Map::keys).cloned().collect();
        }
        let mut annotations = object.annotations().clone();
        // How often the provider tried.
        for count in [
            annotation::EXTERNAL_CREATE_PENDING,
            annotation::EXTERNAL_CREATE_SUCCEEDED,
            annotation::EXTERNAL_CREATE_FAILED,
        ] {
            annotations.remove(count);
        }
        let mut finalizers = object.finalizers().to_vec();
        finalizers.sort();
        fields.insert(
            "metadata".to_owned(),
            json!({
                "labels": object.labels(), "annotations": annotations, "finalizers": finalizers,
                "ownerReferences": object.owner_references(), "deletionTimestamp": object.metadata.deletion_timestamp,
            }),
        );
        Ok(self.value("", &Value::Object(fields)))
    }

    fn value(&self, key: &str, value: &Value) -> Value {
        match value {
            Value::String(_) if key == names::output::CLUSTER_CERTIFICATE_AUTHORITY_DATA => "CA".into(),
            Value::String(text) => self.text(text).into(),
            Value::Number(number) if number.as_u64() == Some(self.port.into()) => "PORT".into(),
            Value::Array(items) => {
                let items: Vec<Value> = items.iter().map(|item| self.value("", item)).collect();
                // Conditions are a map, in whichever order their writers came.
                let typed: BTreeMap<String, Value> = items
                    .iter()
                    .filter_map(|item| Some((item.get("type")?.as_str()?.to_owned(), item.clone())))
                    .collect();
                if typed.len() == items.len() && !items.is_empty() {
                    typed.into_iter().collect::<Map<String, Value>>().into()
                } else {
                    items.into()
                }
            }
            Value::Object(fields) => fields
                .iter()
                .filter(|(key, _)| !LEFT_OUT.contains(&key.as_str()))
                .map(|(key, value)| (key.clone(), self.value(key, value)))
                .collect::<Map<String, Value>>()
                .into(),
            other => other.clone(),
        }
    }

    fn text(&self, text: &str) -> String {
        let known = self
            .words
            .iter()
            .fold(text.to_owned(), |text, (word, stand_in)| text.replace(word, stand_in));
        without_hashes(&known)
    }
}

/// IDs that Terraform derives from the name of its workspace are long and hexadecimal.
fn without_hashes(text: &str) -> String {
    const LONG: usize = 12;
    let mut plain = String::with_capacity(text.len());
    let mut run = String::new();
    let end = |run: &mut String, plain: &mut String| {
        plain.push_str(if run.len() >= LONG { "HASH" } else { run });
        run.clear();
    };
    for c in text.chars() {
        if matches!(c, '0'..='9' | 'a'..='f') {
            run.push(c);
        } else {
            end(&mut run, &mut plain);
            plain.push(c);
        }
    }
    end(&mut run, &mut plain);
    plain
}

fn flatten(path: &str, value: &Value, fields: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                flatten(&format!("{path}/{key}"), value, fields);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (index, value) in items.iter().enumerate() {
                flatten(&format!("{path}/{index}"), value, fields);
            }
        }
        leaf => {
            fields.insert(path.to_owned(), leaf.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> Plain {
        Plain {
            words: vec![
                ("spaces-it-abc".into(), "EKS-WORKSPACE".into()),
                ("spaces".into(), "NAMESPACE".into()),
            ],
            port: 23_456,
        }
    }

    #[test]
    fn two_runs_read_the_same() {
        let condition = |type_: &str, time: &str| json!({"type": type_, "status": "True", "lastTransitionTime": time});
        let one = json!({
            "uid": "1", "host": "spaces-it-abc in spaces", "port": 23_456, "vpc": "vpc-0123456789abcdef0",
            "conditions": [condition("B", "1"), condition("A", "2")],
        });
        let seen = plain().value("", &one);
        let expected = json!({
            "host": "EKS-WORKSPACE in NAMESPACE", "port": "PORT", "vpc": "vpc-HASH",
            "conditions": {"A": {"type": "A", "status": "True"}, "B": {"type": "B", "status": "True"}},
        });
        assert_eq!(seen, expected);
    }

    #[test]
    fn differences_are_named() {
        let state = |value: Value| {
            let mut fields = BTreeMap::new();
            flatten("It", &value, &mut fields);
            EndState(fields)
        };
        let undisturbed = state(json!({"a": 1, "b": {"c": []}}));
        assert!(undisturbed.must_equal(&undisturbed).is_ok());
        let said = state(json!({"a": 2, "b": {}}))
            .must_equal(&undisturbed)
            .unwrap_err()
            .to_string();
        for part in [
            "It/a: 2, undisturbed 1",
            "It/b: {}, undisturbed nothing",
            "It/b/c: nothing, undisturbed []",
        ] {
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn short_words_are_no_hashes() {
        assert_eq!(
            without_hashes("a face in the cafe: 0123456789abc"),
            "a face in the cafe: HASH"
        );
    }
}
