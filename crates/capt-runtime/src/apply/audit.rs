//! Audit lines: who made, deleted or wrote what, and why. Never a value.

use capt_api::names::Manager;

use crate::error::{Failure, ObjectRef, Verb};

/// One write, as it is told to the log.
pub(super) struct Line<'a> {
    pub(super) manager: Manager,
    pub(super) verb: Verb,
    pub(super) object: &'a ObjectRef,
    pub(super) uid: Option<&'a str>,
    pub(super) why: &'a str,
}

impl Line<'_> {
    /// Creations, deletions and every write to a Secret are audited; other writes are only of interest when debugging.
    ///
    /// A request whose answer never came may have been carried out, so it has a line too, marked as unknown: the log
    /// must not lack a deletion that took place. A refused one changed nothing and has none.
    pub(super) fn tell<T>(&self, result: &Result<T, Failure>) {
        let outcome = match result {
            Ok(_) => "done",
            Err(Failure::Unavailable { code: 401 | 429, .. }) => return,
            Err(Failure::Unreachable { .. } | Failure::Unavailable { .. } | Failure::Unreadable { .. }) => "unknown",
            Err(_) => return,
        };
        let Self {
            manager,
            verb,
            object,
            uid,
            why,
        } = self;
        let (manager, kind, name) = (manager.as_str(), &*object.kind, &*object.name);
        let namespace = object.namespace.as_deref().unwrap_or_default();
        let uid = uid.unwrap_or_default();
        if matches!(verb, Verb::Create | Verb::Delete) || kind == "Secret" {
            tracing::info!(target: "audit", what = %verb, kind, namespace, name, uid, why, outcome, manager);
        } else {
            tracing::debug!(what = %verb, kind, namespace, name, uid, why, outcome, manager);
        }
    }
}
