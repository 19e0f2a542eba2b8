//! How many objects stand where, counted from the cache whenever the metrics are read.
//!
//! A counter says that something happened; only this says that it is over. The replica that leads counts, and every other
//! one reports zero: the sum over all replicas is the number of objects, and so is the maximum.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use capt_api::conditions::Reason;
use capt_api::reasons::{self, is_trouble};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use prometheus::{IntCounterVec, IntGaugeVec};

/// What is counted of the objects of one kind.
pub struct Census<K> {
    kind: &'static str,
    conditions: fn(&K) -> &[Condition],
    /// The conditions that tell of trouble, and every word with which they do.
    types: Vec<&'static str>,
    troubles: BTreeSet<&'static str>,
    phases: Option<Phases<K>>,
}

struct Phases<K> {
    all: &'static [&'static str],
    of: fn(&K) -> &'static str,
}

/// Objects by phase, and by what troubles them. Every label that can be is there, at zero if need be: what is missing from
/// one scrape would still be taken for what it was in the last.
#[derive(Debug, PartialEq, Eq)]
struct Count {
    phases: BTreeMap<&'static str, i64>,
    troubles: BTreeMap<&'static str, i64>,
}

impl<K> Census<K> {
    pub fn new(kind: &'static str, conditions: fn(&K) -> &[Condition]) -> Self {
        Self {
            kind,
            conditions,
            types: Vec::new(),
            troubles: BTreeSet::new(),
            phases: None,
        }
    }

    /// Counts the objects whose condition `R` tells of trouble.
    #[must_use]
    pub fn troubles_of<R: Reason>(mut self) -> Self {
        self.types.push(R::TYPE);
        let words = R::ALL.iter().map(|reason| reason.as_str());
        self.troubles.extend(words.filter(|word| is_trouble(word)));
        self
    }

    /// Counts the objects in each of these phases, of which `of` gives one. The controller that decides about them does so,
    /// and nobody else: two would be added up.
    #[must_use]
    pub fn phases(mut self, all: &'static [&'static str], of: fn(&K) -> &'static str) -> Self {
        self.phases = Some(Phases { all, of });
        self
    }

    fn count<'a>(&self, objects: impl Iterator<Item = &'a K>) -> Count
    where
        K: 'a,
    {
        let phases = self.phases.iter().flat_map(|phases| phases.all);
        let mut count = Count {
            phases: phases.map(|phase| (*phase, 0)).collect(),
            troubles: self.troubles.iter().map(|word| (*word, 0)).collect(),
        };
        for object in objects {
            if let Some(phases) = &self.phases {
                *count.phases.entry((phases.of)(object)).or_default() += 1;
            }
            // Several conditions often tell of the same.
            let troubles: BTreeSet<_> = (self.conditions)(object)
                .iter()
                .filter(|told| self.types.contains(&told.type_.as_str()) && is_trouble(&told.reason))
                .filter_map(|told| reasons::meaning(&told.reason))
                .map(|meaning| meaning.word)
                .collect();
            for word in troubles {
                *count.troubles.entry(word).or_default() += 1;
            }
        }
        count
    }
}

impl<K> fmt::Debug for Census<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Census")
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// Where a census is shown.
#[derive(Clone, Debug)]
pub(crate) struct CensusMetrics {
    pub(crate) objects: IntGaugeVec,
    pub(crate) troubled: IntGaugeVec,
    pub(crate) failures: IntCounterVec,
}

impl CensusMetrics {
    /// Makes every trouble known before it happens: a rate over a counter that appears with its first event misses it.
    pub(crate) fn expect<K>(&self, census: &Census<K>) {
        for word in &census.troubles {
            self.failures.with_label_values(&[census.kind, word]);
        }
    }

    pub(crate) fn show<'a, K: 'a>(&self, census: &Census<K>, objects: impl Iterator<Item = &'a K>) {
        let count = census.count(objects);
        for (gauge, numbers) in [(&self.objects, count.phases), (&self.troubled, count.troubles)] {
            for (label, number) in numbers {
                gauge.with_label_values(&[census.kind, label]).set(number);
            }
        }
    }
}

/// The phase of an object of which nothing was said yet.
pub const PENDING: &str = "Pending";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use capt_api::CaptControlPlane;
    use capt_api::conditions::control_plane::{Deleting, Failed, Ready};
    use serde_json::json;

    fn told(control_plane: &CaptControlPlane) -> &[Condition] {
        control_plane.status.as_ref().map_or(&[], |status| &status.conditions)
    }

    fn census() -> Census<CaptControlPlane> {
        Census::new("CAPTControlPlane", told)
            .troubles_of::<Ready>()
            .troubles_of::<Failed>()
            .troubles_of::<Deleting>()
            .phases(&["Creating", "Failed", PENDING], |control_plane| {
                let status = control_plane.status.as_ref();
                status
                    .and_then(|status| status.phase)
                    .map_or(PENDING, |phase| phase.as_str())
            })
    }

    fn control_plane(phase: &str, told: &[(&str, &str)]) -> CaptControlPlane {
        let conditions: Vec<_> = told
            .iter()
            .map(|(type_, reason)| {
                json!({"type": type_, "status": "True", "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
            })
            .collect();
        serde_json::from_value(json!({
            "apiVersion": "controlplane.cluster.x-k8s.io/v1beta1", "kind": "CAPTControlPlane", "metadata": {"name": "cp"},
            "spec": {"version": "v1.31.0", "workspaceTemplateRef": {"name": "eks"}, "controlPlaneConfig": {"region": "eu-west-1"}},
            "status": {"phase": phase, "conditions": conditions},
        }))
        .unwrap()
    }

    #[test]
    fn what_was_there_goes_back_to_zero() {
        let metrics = Metrics::new("test").unwrap();
        let (shown, census) = (metrics.census(), census());
        shown.expect(&census);
        let mut unsaid = control_plane("Creating", &[]);
        unsaid.status = None;
        let objects = [
            control_plane("Failed", &[("Ready", "StateLocked"), ("Failed", "StateLocked")]),
            control_plane(
                "Creating",
                &[("Ready", "Creating"), ("EndpointReady", "EndpointInvalid")],
            ),
            control_plane("Creating", &[("Ready", "a word of a later version")]),
            unsaid,
        ];
        shown.show(&census, objects.iter());
        let has = |line: &str| {
            let text = metrics.render().unwrap();
            assert!(text.lines().any(|told| told == line), "{line} is not in\n{text}");
        };
        has(r#"capt_objects{kind="CAPTControlPlane",phase="Creating"} 2"#);
        has(r#"capt_objects{kind="CAPTControlPlane",phase="Failed"} 1"#);
        has(r#"capt_objects{kind="CAPTControlPlane",phase="Pending"} 1"#);
        has(r#"capt_objects_in_trouble{kind="CAPTControlPlane",reason="StateLocked"} 1"#);
        // The endpoint's controller counts its own.
        has(r#"capt_objects_in_trouble{kind="CAPTControlPlane",reason="EndpointInvalid"} 0"#);
        has(r#"capt_objects_in_trouble{kind="CAPTControlPlane",reason="DeletionTimeout"} 0"#);
        has(r#"capt_failures_total{kind="CAPTControlPlane",reason="StateLocked"} 0"#);

        shown.show(&census, std::iter::empty());
        has(r#"capt_objects{kind="CAPTControlPlane",phase="Creating"} 0"#);
        has(r#"capt_objects{kind="CAPTControlPlane",phase="Failed"} 0"#);
        has(r#"capt_objects_in_trouble{kind="CAPTControlPlane",reason="StateLocked"} 0"#);
    }

    #[test]
    fn only_troubles_are_known_as_such() {
        let text = {
            let metrics = Metrics::new("test").unwrap();
            metrics.census().expect(&census());
            metrics.render().unwrap()
        };
        assert!(text.contains(r#"reason="ControlPlaneTimeout"} 0"#));
        assert!(!text.contains(r#"reason="WaitingForVPC""#), "{text}");
    }
}
