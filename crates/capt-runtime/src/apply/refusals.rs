//! Which refusals (HTTP 403) mean that a permission is missing.
//!
//! An API server that has just started refuses everything for a moment, because it has not read its own Roles yet. Nothing
//! in the answer tells that from a Role that lacks a permission; only time does. So a refusal counts as a fault of the
//! installation when the same request has been refused for a while, with no success in between.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::backoff::Pace;
use crate::error::{Failure, ObjectRef, Verb};

/// Far longer than an API server needs to read its Roles.
const PATIENCE: Duration = Duration::from_secs(30);
/// Refusals that are further apart than two tries are not one series: the object of the first may have gone since.
const APART: Duration = Pace::TRANSIENT.longest.saturating_mul(2);

/// What a Role permits or does not. A Role may be one namespace's.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Permission {
    verb: Verb,
    kind: Box<str>,
    namespace: Option<Box<str>>,
    is_status: bool,
}

#[derive(Clone, Copy)]
struct Series {
    first: Instant,
    last: Instant,
}

/// The requests that are being refused, of one process.
#[derive(Clone, Default)]
pub(super) struct Refusals(Arc<Mutex<HashMap<Permission, Series>>>);

impl Refusals {
    /// The same answer, in which a refusal says whether it lasts.
    pub(super) fn judge<T>(
        &self,
        verb: Verb,
        object: &ObjectRef,
        is_status: bool,
        answer: Result<T, Failure>,
        now: Instant,
    ) -> Result<T, Failure> {
        let permission = || Permission {
            verb,
            kind: object.kind.clone(),
            namespace: object.namespace.clone(),
            is_status,
        };
        let mut refused = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match answer {
            Err(Failure::Forbidden {
                verb, object, message, ..
            }) => {
                let series = refused
                    .entry(permission())
                    .and_modify(|series| {
                        if now.saturating_duration_since(series.last) > APART {
                            series.first = now;
                        }
                        series.last = now;
                    })
                    .or_insert(Series { first: now, last: now });
                Err(Failure::Forbidden {
                    verb,
                    object,
                    message,
                    is_lasting: now.saturating_duration_since(series.first) >= PATIENCE,
                })
            }
            // Whatever else went wrong, the request was let in; but an answer that did not come proves nothing.
            Err(Failure::Unreachable { .. } | Failure::Unavailable { .. }) => answer,
            _ => {
                // Hardly ever is anything in it.
                if !refused.is_empty() {
                    refused.remove(&permission());
                }
                answer
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Class, Classified};

    fn object(namespace: &str) -> ObjectRef {
        ObjectRef::new("ConfigMap", Some(namespace), "x")
    }

    fn forbidden(namespace: &str) -> Result<(), Failure> {
        Err(Failure::Forbidden {
            verb: Verb::Read,
            object: object(namespace),
            message: "no".into(),
            is_lasting: false,
        })
    }

    /// One request after another: where it goes, whether it is refused, at which second, and what is made of it.
    fn check(rows: &[(&str, bool, u64, Option<Class>)]) {
        let (refusals, start) = (Refusals::default(), Instant::now());
        for (namespace, is_refused, second, class) in rows {
            let answer = if *is_refused { forbidden(namespace) } else { Ok(()) };
            let at = start + Duration::from_secs(*second);
            let judged = refusals.judge(Verb::Read, &object(namespace), false, answer, at);
            assert_eq!(
                judged.err().map(|failure| failure.class()),
                *class,
                "{namespace} at {second}"
            );
        }
    }

    #[test]
    fn a_refusal_is_a_fault_when_it_lasts() {
        let (passes, fault) = (Some(Class::Transient), Some(Class::Bug));
        check(&[
            ("a", true, 0, passes),
            ("a", true, 2, passes),
            ("a", true, 29, passes),
            ("a", true, 30, fault),
            ("a", true, 300, fault),
            ("a", false, 301, None),
            ("a", true, 302, passes),
        ]);
    }

    #[test]
    fn what_is_allowed_elsewhere_says_nothing_about_here() {
        let (passes, fault) = (Some(Class::Transient), Some(Class::Bug));
        check(&[
            ("a", true, 0, passes),
            ("b", false, 15, None),
            ("b", true, 20, passes),
            ("a", true, 40, fault),
            ("b", true, 45, passes),
        ]);
    }

    #[test]
    fn two_restarts_of_the_api_server_are_no_series() {
        let passes = Some(Class::Transient);
        check(&[
            ("a", true, 0, passes),
            ("a", true, 3600, passes),
            ("a", true, 3620, passes),
        ]);
    }

    #[test]
    fn the_status_is_a_permission_of_its_own_and_silence_proves_nothing() {
        let (refusals, start) = (Refusals::default(), Instant::now());
        let judge = |is_status, answer, second| {
            let at = start + Duration::from_secs(second);
            refusals
                .judge(Verb::Read, &object("a"), is_status, answer, at)
                .err()
                .map(|failure| failure.class())
        };
        let away = Err(Failure::undecodable(
            Verb::Read,
            object("a"),
            &serde_json::from_str::<()>("<html>").unwrap_err(),
        ));
        assert_eq!(judge(true, forbidden("a"), 0), Some(Class::Transient));
        assert_eq!(judge(false, Ok(()), 10), None);
        assert_eq!(judge(true, away, 20), Some(Class::Transient));
        assert_eq!(judge(true, forbidden("a"), 31), Some(Class::Bug));
    }
}
