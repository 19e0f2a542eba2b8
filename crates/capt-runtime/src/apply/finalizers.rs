//! Finalizers: set before the outward write that they protect, removed when nothing is left to protect.
//!
//! They are JSON patches, never applies: apply cannot take away a finalizer that another manager wrote, such as the Go
//! version or a user's `kubectl`. The whole list is tested, so two controllers that change it at the same moment cannot
//! undo each other's change, while writers of other fields do not disturb either.

use std::collections::BTreeMap;
use std::fmt;

use kube::Resource;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::transport::Part;
use super::{Edit, Objects, Outcome, Planned};
use crate::error::{Failure, Race};

const FINALIZERS: &[&str] = &["metadata", "finalizers"];

/// What became of a finalizer that was to be added.
#[derive(Clone)]
#[must_use]
pub enum FinalizerAdded<K> {
    /// It (and every annotation asked for) was there already.
    Unchanged,
    /// The object as the server now has it.
    Added(K),
    /// The object is being deleted and takes no new finalizer. What it was to protect must not be written.
    Deleting,
}

impl<K> fmt::Debug for FinalizerAdded<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unchanged => "Unchanged",
            Self::Added(_) => "Added",
            Self::Deleting => "Deleting",
        })
    }
}

impl<K: Resource + DeserializeOwned> Objects<K> {
    /// Adds a finalizer, together with annotations in the same transaction: a finalizer whose annotations (the identity of
    /// what it protects) were lost in a crash between two writes would protect something that nobody can find.
    ///
    /// The API server refuses a finalizer on an object that is being deleted. That is an outcome, not an error: the
    /// caller goes on with the deletion and makes nothing new.
    pub async fn add_finalizer(
        &self,
        object: &Planned<'_, K>,
        finalizer: &str,
        annotations: &BTreeMap<String, Option<String>>,
        why: &str,
    ) -> Result<FinalizerAdded<K>, Failure> {
        let meta = object.object.meta();
        let current = meta.finalizers.clone().unwrap_or_default();
        let mut edit = Edit::new();
        if !current.iter().any(|present| present == finalizer) {
            if object.is_being_deleted() {
                return Ok(FinalizerAdded::Deleting);
            }
            let mut wished = current.clone();
            wished.push(finalizer.to_owned());
            edit = replace_list(current, wished);
        }
        edit = edit.entries(&["metadata", "annotations"], meta.annotations.as_ref(), annotations);
        match self.patch_part(object, Part::Main, edit, why).await {
            Ok(Outcome::Unchanged) => Ok(FinalizerAdded::Unchanged),
            Ok(Outcome::Written(object)) => Ok(FinalizerAdded::Added(object)),
            Err(Failure::DeletingRefusesFinalizer { .. }) => Ok(FinalizerAdded::Deleting),
            Err(other) => Err(other),
        }
    }

    /// Removes those of these finalizers that the object has, whoever wrote them.
    ///
    /// The last one lets the object go, and nothing brings it back: what the finalizer protected must have been seen gone
    /// by a live read before ([`Self::live`], [`Self::is_gone`]), not merely be absent from a cache. An object that has
    /// gone by itself needs no removal.
    pub async fn remove_finalizers(
        &self,
        object: &Planned<'_, K>,
        finalizers: &[&str],
        why: &str,
    ) -> Result<Outcome<K>, Failure> {
        self.release(object, finalizers, &BTreeMap::new(), why).await
    }

    /// The same, together with annotations in the same transaction: for somebody who waits for the finalizer to go, and whose
    /// watch does not tell of finalizers.
    pub async fn release(
        &self,
        object: &Planned<'_, K>,
        finalizers: &[&str],
        annotations: &BTreeMap<String, Option<String>>,
        why: &str,
    ) -> Result<Outcome<K>, Failure> {
        let meta = object.object.meta();
        let current = meta.finalizers.clone().unwrap_or_default();
        let kept: Vec<String> = current
            .iter()
            .filter(|present| !finalizers.contains(&present.as_str()))
            .cloned()
            .collect();
        if kept.len() == current.len() {
            return Ok(Outcome::Unchanged);
        }
        let edit =
            replace_list(current, kept).entries(&["metadata", "annotations"], meta.annotations.as_ref(), annotations);
        match self.patch_part(object, Part::Main, edit, why).await {
            Err(Failure::LostRace {
                race: Race::Vanished, ..
            }) => Ok(Outcome::Unchanged),
            other => other,
        }
    }
}

fn replace_list(current: Vec<String>, wished: Vec<String>) -> Edit {
    // The server has no member at all where the list is empty.
    let current = (!current.is_empty()).then(|| Value::from(current));
    let edit = Edit::new().only_if(FINALIZERS, current);
    if wished.is_empty() {
        edit.remove(FINALIZERS)
    } else {
        edit.set(FINALIZERS, Value::from(wished))
    }
}
