//! What can go wrong between a controller and the API server, and what to do about it.
//!
//! [`Failure`] is the answer of the write protocol ([`crate::apply`]); its [`Class`] decides how the object is looked at
//! again. Its text is the same from pass to pass (no resourceVersion, UID, time, port or count), so that it can stand in
//! a condition without rewriting it for ever. The server's own, changing words travel as `source()` and belong in the
//! log. Nothing here ever holds the contents of a Secret.

use std::fmt;
use std::time::Duration;

use kube::core::Status;
use kube::core::response::{StatusCause, StatusDetails};

/// How an object is looked at again after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Nobody's fault and it passes: retried with the object's own exponential backoff; shows in no failure field.
    Transient,
    /// The object was no longer the one that was planned from: the watch brings the new one; plan again. Never a failure.
    Conflict,
    /// Trying again changes nothing until somebody changes something: shown under this reason; woken by events.
    Terminal(&'static str),
    /// A mistake in CAPT or in its installation, such as a missing permission: shown, counted, retried slowly.
    Bug,
}

impl Class {
    /// Whether it passes without anybody's doing, and so is not shown.
    pub fn is_passing(self) -> bool {
        matches!(self, Self::Transient | Self::Conflict)
    }
}

/// An error that says how its object is to be looked at again.
pub trait Classified: std::error::Error {
    fn class(&self) -> Class;

    /// How long the server asked to be left alone.
    fn retry_after(&self) -> Option<Duration> {
        None
    }
}

/// Reasons of [`Class::Terminal`] that a write itself can end with.
pub mod reason {
    /// An object that CAPT needs to make exists already and belongs to somebody else.
    pub const OWNERSHIP_CONFLICT: &str = "OwnershipConflict";
    /// The API server's schema refuses what was rendered.
    pub const INVALID: &str = "InvalidObject";
    /// A policy of the management cluster (an admission webhook) refuses what was rendered.
    pub const DENIED: &str = "AdmissionDenied";
    /// Nothing can be created here any more.
    pub const NAMESPACE_TERMINATING: &str = "NamespaceTerminating";
    /// An object exists, but does not have the shape that CAPT knows.
    pub const UNREADABLE: &str = "Unreadable";
}

/// An object's coordinates, in the form that people read. No UID: see the module's first lines.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectRef {
    pub kind: Box<str>,
    pub namespace: Option<Box<str>>,
    /// Empty when a whole collection is meant.
    pub name: Box<str>,
}

impl ObjectRef {
    pub fn new(kind: &str, namespace: Option<&str>, name: &str) -> Self {
        Self {
            kind: kind.into(),
            namespace: namespace.map(Into::into),
            name: name.into(),
        }
    }

    /// Server messages about a Secret may quote it.
    fn is_secret(&self) -> bool {
        &*self.kind == "Secret"
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.namespace, &*self.name) {
            (Some(namespace), "") => write!(f, "{} in namespace {namespace}", self.kind),
            (Some(namespace), name) => write!(f, "{} {namespace}/{name}", self.kind),
            (None, "") => write!(f, "{} in all namespaces", self.kind),
            (None, name) => write!(f, "{} {name}", self.kind),
        }
    }
}

/// What was asked of the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    Read,
    List,
    Create,
    Apply,
    Patch,
    Delete,
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::List => "list",
            Self::Create => "create",
            Self::Apply => "apply",
            Self::Patch => "patch",
            Self::Delete => "delete",
        })
    }
}

/// Why a race was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Race {
    /// Somebody wrote it meanwhile, or it was deleted and made anew under the same name.
    Changed,
    /// It, or the namespace that it was to go into, is gone.
    Vanished,
}

/// The server's own words: for the log, because they change from answer to answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ServerText(String);

/// Why a call of the write protocol did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{object} {} since it was read", match race { Race::Changed => "was changed or made anew", Race::Vanished => "has gone" })]
    LostRace { object: ObjectRef, race: Race },

    #[error("{object} exists and is not ours: {owner}; delete or rename it, or choose another name")]
    OwnershipConflict { object: ObjectRef, owner: String },

    /// `field` is the first field that the server names (empty when it names none); `message` has all of them.
    #[error("the API server refuses {object} as invalid: {message}")]
    Invalid {
        object: ObjectRef,
        field: String,
        message: String,
    },

    #[error("a policy of the management cluster refuses to {verb} {object}: {message}")]
    Denied {
        verb: Verb,
        object: ObjectRef,
        message: String,
    },

    #[error("a ResourceQuota of the namespace refuses to {verb} {object}")]
    QuotaExceeded {
        verb: Verb,
        object: ObjectRef,
        #[source]
        source: ServerText,
    },

    #[error("{object} is being deleted and takes no new finalizer")]
    DeletingRefusesFinalizer { object: ObjectRef },

    #[error("{object} cannot be created: its namespace is being deleted")]
    NamespaceTerminating { object: ObjectRef },

    /// `is_lasting`: the same was refused before, and long enough that no API server that has just started explains it.
    #[error("not allowed to {verb} {object}: {message}; {}", match is_lasting { true => "the controller's Role lacks a permission", false => "an API server that has just started does not know the Roles yet" })]
    Forbidden {
        verb: Verb,
        object: ObjectRef,
        message: String,
        is_lasting: bool,
    },

    #[error("the API server does not serve the kind {kind}: its CRD is missing")]
    NotServed { kind: String },

    #[error("the API server cannot {verb} {object} at the moment (HTTP {code})")]
    Unavailable {
        verb: Verb,
        object: ObjectRef,
        code: u16,
        retry_after: Option<Duration>,
        #[source]
        source: ServerText,
    },

    #[error("no answer from the API server when asked to {verb} {object}")]
    Unreachable {
        verb: Verb,
        object: ObjectRef,
        #[source]
        source: Box<kube::Error>,
    },

    #[error("{object} does not have the shape that is expected of it: {detail}")]
    Unreadable { object: ObjectRef, detail: String },

    #[error("the API server does not understand the request to {verb} {object} (HTTP {code})")]
    Rejected {
        verb: Verb,
        object: ObjectRef,
        code: u16,
        #[source]
        source: ServerText,
    },

    /// The caller broke a rule of the write protocol; nothing was sent.
    #[error("{object} was not written: {what}")]
    Misuse { object: ObjectRef, what: String },
}

impl Classified for Failure {
    fn class(&self) -> Class {
        match self {
            Self::LostRace { .. } | Self::DeletingRefusesFinalizer { .. } => Class::Conflict,
            Self::OwnershipConflict { .. } => Class::Terminal(reason::OWNERSHIP_CONFLICT),
            Self::Invalid { .. } => Class::Terminal(reason::INVALID),
            Self::Denied { .. } => Class::Terminal(reason::DENIED),
            Self::NamespaceTerminating { .. } => Class::Terminal(reason::NAMESPACE_TERMINATING),
            Self::Unreadable { .. } => Class::Terminal(reason::UNREADABLE),
            Self::QuotaExceeded { .. }
            | Self::NotServed { .. }
            | Self::Unavailable { .. }
            | Self::Unreachable { .. }
            | Self::Forbidden { is_lasting: false, .. } => Class::Transient,
            Self::Forbidden { is_lasting: true, .. } | Self::Rejected { .. } | Self::Misuse { .. } => Class::Bug,
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Unavailable { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

impl Failure {
    /// The meaning of an error that the client returned for a request about `object`.
    pub fn of(verb: Verb, object: ObjectRef, error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::of_status(verb, object, *status),
            kube::Error::SerdeError(error) => Self::undecodable(verb, object, &error),
            kube::Error::FromUtf8(_) => Self::Rejected {
                verb,
                object,
                code: 200,
                source: ServerText("the answer is not UTF-8".into()),
            },
            kube::Error::BuildRequest(error) => Self::Misuse {
                object,
                what: error.to_string(),
            },
            other => Self::Unreachable {
                verb,
                object,
                source: Box::new(other),
            },
        }
    }

    /// An answer that is not JSON was given by something that stands between us and the API server, and passes; one with
    /// another shape is a fact about the object. serde quotes the values it stumbles over, so a Secret's are not repeated.
    pub(crate) fn undecodable(verb: Verb, object: ObjectRef, error: &serde_json::Error) -> Self {
        if !error.is_data() {
            return Self::Unavailable {
                verb,
                object,
                code: 200,
                retry_after: None,
                source: ServerText("the answer is not JSON".into()),
            };
        }
        let text = error.to_string();
        // The position moves with every resourceVersion.
        let stable = text.split_once(" at line ").map_or(text.as_str(), |(what, _)| what);
        let detail = if object.is_secret() {
            "a field has an unexpected type".into()
        } else {
            bounded(stable)
        };
        Self::Unreadable { object, detail }
    }

    fn of_status(verb: Verb, object: ObjectRef, status: Status) -> Self {
        // Admission answers with any code it likes. Only a 422 that names fields says more than the refusal itself.
        let names_fields = causes(&status).iter().any(|cause| !cause.field.is_empty());
        if matches!(status.code, 400 | 402 | 403 | 405..=407 | 411..=428)
            && !(status.code == 422 && names_fields)
            && let Some(message) = denial(&status.message)
        {
            return Self::Denied { verb, object, message };
        }
        match status.code {
            409 => Self::LostRace {
                object,
                race: Race::Changed,
            },
            404 if names_an_object(&status) => Self::LostRace {
                object,
                race: Race::Vanished,
            },
            // Nothing is known about the object then; it must never be taken for gone.
            404 => Self::NotServed {
                kind: object.kind.into(),
            },
            422 => Self::of_unprocessable(object, &status),
            403 => Self::of_forbidden(verb, object, status),
            // Over the limit for one object: a verdict on what was rendered, which no retry changes. The server's own
            // limit is a 413; etcd's, which is lower, comes as a plain 500.
            code if code == 413 || is_too_large_for_etcd(&status) => Self::Invalid {
                object,
                field: String::new(),
                message: "the object is larger than the API server accepts".into(),
            },
            // The CRD on the server is older than this controller: an incomplete upgrade, told by a plain 500.
            500 if status.message.starts_with("failed to create typed patch object") => Self::Rejected {
                verb,
                source: Self::rejection_text(&object, status.message),
                object,
                code: 500,
            },
            // 401: a token that is being rotated, or an API server that has just started and cannot check it yet.
            // 408, 410 (a list's continue token expired), 429 and the server's own errors pass.
            401 | 408 | 410 | 429 | 500.. => Self::Unavailable {
                verb,
                object,
                code: status.code,
                retry_after: status
                    .details
                    .as_ref()
                    .map(|details| details.retry_after_seconds)
                    .filter(|&seconds| seconds > 0)
                    .map(|seconds| Duration::from_secs(seconds.into())),
                source: ServerText(status.message),
            },
            code => Self::Rejected {
                verb,
                source: Self::rejection_text(&object, status.message),
                object,
                code,
            },
        }
    }

    /// A 400 may quote the body that it could not decode.
    fn rejection_text(object: &ObjectRef, message: String) -> ServerText {
        ServerText(if object.is_secret() {
            "the server's words are left out: they may quote the Secret".into()
        } else {
            bounded(&message)
        })
    }

    /// A 422 without causes is a `test` of a JSON patch that did not hold; one with causes is a verdict.
    fn of_unprocessable(object: ObjectRef, status: &Status) -> Self {
        let causes = causes(status);
        if causes.iter().any(|cause| {
            cause.field == "metadata.finalizers" && cause.message.contains("no new finalizers can be added")
        }) {
            return Self::DeletingRefusesFinalizer { object };
        }
        // Another object under the same name, told by the one field that can never change.
        if causes.iter().any(|cause| cause.field == "metadata.uid") {
            return Self::LostRace {
                object,
                race: Race::Changed,
            };
        }
        if causes.is_empty() {
            return Self::LostRace {
                object,
                race: Race::Changed,
            };
        }
        let (field, message) = verdict(&object, causes);
        Self::Invalid { object, field, message }
    }

    fn of_forbidden(verb: Verb, object: ObjectRef, status: Status) -> Self {
        if causes(&status)
            .iter()
            .any(|cause| cause.reason == "NamespaceTerminating")
        {
            return Self::NamespaceTerminating { object };
        }
        // The message counts what is used, so it only goes to the log.
        if status.message.contains("exceeded quota:") {
            return Self::QuotaExceeded {
                verb,
                object,
                source: ServerText(status.message),
            };
        }
        let why = status
            .message
            .split_once(" is forbidden: ")
            .map_or(status.message.as_str(), |(_, why)| why);
        Self::Forbidden {
            verb,
            object,
            message: bounded(why),
            is_lasting: false,
        }
    }
}

/// Whether a 404 is about an object (or the namespace it was to be created in) rather than about an unknown kind.
pub(crate) fn names_an_object(status: &Status) -> bool {
    status.details.as_ref().is_some_and(|details| !details.name.is_empty())
}

fn causes(status: &Status) -> &[StatusCause] {
    status
        .details
        .as_ref()
        .map_or(&[], |StatusDetails { causes, .. }| causes.as_slice())
}

fn is_too_large_for_etcd(status: &Status) -> bool {
    status.code == 500
        && (status.message.contains("etcdserver: request is too large")
            || status.message.contains("trying to send message larger than max"))
}

/// What a policy of the cluster's administrators said, when one refused the request: a webhook, or a
/// ValidatingAdmissionPolicy.
fn denial(message: &str) -> Option<String> {
    if let Some(start) = message.find("ValidatingAdmissionPolicy '") {
        return message.get(start..).map(bounded);
    }
    let (webhook, why) = message
        .strip_prefix("admission webhook ")?
        .split_once(" denied the request")?;
    Some(bounded(&format!(
        "webhook {webhook}: {}",
        why.trim_start_matches(':').trim()
    )))
}

/// The first field and the text of a verdict, in an order that does not depend on the server's map iteration.
fn verdict(object: &ObjectRef, causes: &[StatusCause]) -> (String, String) {
    // The server adds a cause without a field when it stopped early; the others say more.
    let told = |cause: &&StatusCause| !cause.field.is_empty() && cause.field != "<nil>";
    let mut named: Vec<&StatusCause> = causes.iter().filter(told).collect();
    if named.is_empty() {
        named = causes.iter().collect();
    }
    named.sort_by(|a, b| (&a.field, &a.message).cmp(&(&b.field, &b.message)));
    named.dedup_by(|a, b| a.field == b.field && a.message == b.message);
    let field = named.first().map(|cause| cause.field.clone()).unwrap_or_default();
    let texts: Vec<String> = named.iter().map(|cause| cause_text(object, cause)).collect();
    (field, bounded(&texts.join("; ")))
}

fn cause_text(object: &ObjectRef, cause: &StatusCause) -> String {
    // A patch that leaves an object which does not decode is quoted back as a whole, resourceVersion included.
    if cause.field == "patch" {
        return "the patched object does not decode".into();
    }
    let message = if object.is_secret() {
        cause.reason.as_str()
    } else {
        cause.message.as_str()
    };
    if cause.field.is_empty() {
        message.to_owned()
    } else {
        format!("{}: {message}", cause.field)
    }
}

/// At most this many characters of somebody else's text: conditions are bounded, and so is a line in the log.
const MAX_TEXT: usize = 512;

fn bounded(text: &str) -> String {
    match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => text.get(..end).map(|head| format!("{head}…")).unwrap_or_default(),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What the client makes of an answer of the API server. The bodies below were seen on a real one (1.36).
    fn answered(verb: Verb, kind: &str, body: serde_json::Value) -> Failure {
        let status: Status = serde_json::from_value(body).expect("a Status");
        Failure::of(
            verb,
            ObjectRef::new(kind, Some("ns"), "x"),
            kube::Error::Api(status.boxed()),
        )
    }

    fn configmap(verb: Verb, body: serde_json::Value) -> Failure {
        answered(verb, "ConfigMap", body)
    }

    #[test]
    fn lost_races() {
        for (what, verb, body) in [
            (
                "stale",
                Verb::Apply,
                json!({"code": 409, "reason": "Conflict",
                "message": "Operation cannot be fulfilled on clusters.cluster.x-k8s.io \"x\": the object has been modified; please apply your changes to the latest version and try again",
                "details": {"name": "x", "group": "cluster.x-k8s.io", "kind": "clusters"}}),
            ),
            (
                "a failed test",
                Verb::Patch,
                json!({"code": 422, "reason": "Invalid", "details": {},
                "message": "the server rejected our request due to an error in our request"}),
            ),
            (
                "made anew",
                Verb::Apply,
                json!({"code": 422, "reason": "Invalid", "message": "…",
                "details": {"name": "x", "causes": [{"reason": "FieldValueInvalid", "field": "metadata.uid",
                    "message": "Invalid value: \"4b5c\": field is immutable"}]}}),
            ),
        ] {
            let failure = configmap(verb, body);
            assert_eq!(failure.class(), Class::Conflict, "{what}");
            assert_eq!(
                failure.to_string(),
                "ConfigMap ns/x was changed or made anew since it was read",
                "{what}"
            );
        }
        let vanished = configmap(
            Verb::Patch,
            json!({"code": 404, "reason": "NotFound",
            "message": "configmaps \"x\" not found", "details": {"name": "x", "kind": "configmaps"}}),
        );
        assert_eq!(vanished.class(), Class::Conflict);
        assert_eq!(vanished.to_string(), "ConfigMap ns/x has gone since it was read");
    }

    #[test]
    fn an_unknown_kind_is_not_an_absent_object() {
        for body in [
            json!({"code": 404, "reason": "NotFound", "details": {}, "message": "the server could not find the requested resource"}),
            // What the client makes of the plain text "404 page not found".
            json!({"code": 404, "reason": "Failed to parse error data", "message": "404 page not found"}),
        ] {
            let failure = configmap(Verb::Read, body);
            assert!(matches!(failure, Failure::NotServed { .. }), "{failure:?}");
            assert_eq!(failure.class(), Class::Transient);
        }
    }

    #[test]
    fn a_verdict_names_the_fields_in_a_fixed_order() {
        let causes = [
            json!({"reason": "FieldValueTypeInvalid", "field": "spec.region", "message": "must be a string"}),
            json!({"reason": "FieldValueInvalid", "field": "<nil>", "message": "some validation rules were not checked"}),
            json!({"reason": "FieldValueRequired", "field": "spec.a", "message": "Required value"}),
            json!({"reason": "FieldValueRequired", "field": "spec.a", "message": "Required value"}),
        ];
        let text = |order: [usize; 4]| {
            let causes: Vec<_> = order.iter().map(|&i| causes[i].clone()).collect();
            configmap(
                Verb::Create,
                json!({"code": 422, "reason": "Invalid", "details": {"name": "x", "causes": causes}}),
            )
        };
        let failure = text([0, 1, 2, 3]);
        assert_eq!(failure.class(), Class::Terminal(reason::INVALID));
        assert!(
            matches!(&failure, Failure::Invalid { field, .. } if field == "spec.a"),
            "{failure:?}"
        );
        assert_eq!(
            failure.to_string(),
            "the API server refuses ConfigMap ns/x as invalid: spec.a: Required value; spec.region: must be a string"
        );
        assert_eq!(failure.to_string(), text([3, 2, 1, 0]).to_string());
    }

    #[test]
    fn no_new_finalizers() {
        let failure = configmap(
            Verb::Patch,
            json!({"code": 422, "reason": "Invalid", "details": {"name": "x", "causes": [
            {"reason": "FieldValueForbidden", "field": "metadata.finalizers",
             "message": "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{\"a.dev/y\"}"}]}}),
        );
        assert!(
            matches!(failure, Failure::DeletingRefusesFinalizer { .. }),
            "{failure:?}"
        );
        assert_eq!(failure.class(), Class::Conflict);
    }

    #[test]
    fn the_kinds_of_forbidden() {
        let terminating = configmap(
            Verb::Create,
            json!({"code": 403, "reason": "Forbidden",
            "message": "configmaps \"x\" is forbidden: unable to create new content in namespace ns because it is being terminated",
            "details": {"name": "x", "kind": "configmaps", "causes": [
                {"reason": "NamespaceTerminating", "message": "namespace ns is being terminated", "field": "metadata.namespace"}]}}),
        );
        assert_eq!(terminating.class(), Class::Terminal(reason::NAMESPACE_TERMINATING));

        let rights = configmap(
            Verb::Create,
            json!({"code": 403, "reason": "Forbidden", "details": {"kind": "configmaps"},
            "message": "configmaps is forbidden: User \"nobody\" cannot create resource \"configmaps\" in API group \"\" in the namespace \"ns\""}),
        );
        assert_eq!(
            rights.class(),
            Class::Transient,
            "as long as nobody knows whether it lasts"
        );
        assert_eq!(
            rights.to_string(),
            "not allowed to create ConfigMap ns/x: User \"nobody\" cannot create resource \"configmaps\" in API group \"\" \
             in the namespace \"ns\"; an API server that has just started does not know the Roles yet"
        );
        let Failure::Forbidden {
            verb, object, message, ..
        } = rights
        else {
            panic!("{rights:?}")
        };
        let lasting = Failure::Forbidden {
            verb,
            object,
            message,
            is_lasting: true,
        };
        assert_eq!(lasting.class(), Class::Bug);
        assert!(
            lasting
                .to_string()
                .ends_with("\"ns\"; the controller's Role lacks a permission"),
            "{lasting}"
        );

        let quota = configmap(
            Verb::Create,
            json!({"code": 403, "reason": "Forbidden", "details": {"name": "x", "kind": "configmaps"},
            "message": "configmaps \"x\" is forbidden: exceeded quota: q, requested: configmaps=1, used: configmaps=2, limited: configmaps=1"}),
        );
        assert_eq!(quota.class(), Class::Transient);
        assert!(!quota.to_string().contains("used"), "the numbers change: {quota}");
    }

    #[test]
    fn what_a_webhook_refuses_is_a_verdict_whatever_its_code() {
        for code in [400, 403, 422] {
            let failure = configmap(
                Verb::Create,
                json!({"code": code,
                "message": "admission webhook \"policy.example.com\" denied the request: label team is missing"}),
            );
            assert_eq!(failure.class(), Class::Terminal(reason::DENIED), "{code}: {failure:?}");
            assert!(
                failure
                    .to_string()
                    .ends_with("webhook \"policy.example.com\": label team is missing"),
                "{failure}"
            );
        }
        let silent = configmap(
            Verb::Create,
            json!({"code": 403,
            "message": "admission webhook \"policy.example.com\" denied the request without explanation"}),
        );
        assert!(silent.to_string().ends_with("without explanation"), "{silent}");
        let detailed = configmap(
            Verb::Patch,
            json!({"code": 422, "details": {"causes": [{"field": "spec.a", "message": "bad"}]},
            "message": "admission webhook \"default.cluster.x-k8s.io\" denied the request: spec.a: bad"}),
        );
        assert!(
            matches!(&detailed, Failure::Invalid { field, .. } if field == "spec.a"),
            "{detailed:?}"
        );
        let policy = configmap(
            Verb::Create,
            json!({"code": 422, "reason": "Invalid",
            "message": "configmaps \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no",
            "details": {"name": "x", "kind": "configmaps", "causes": [
                {"message": "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"}]}}),
        );
        assert_eq!(policy.class(), Class::Terminal(reason::DENIED), "{policy:?}");
        assert!(policy.to_string().ends_with("'b' denied request: no"), "{policy}");
    }

    #[test]
    fn what_passes_is_transient_and_says_when() {
        for code in [401, 408, 410, 429, 500, 502, 503, 504] {
            let failure = configmap(Verb::Patch, json!({"code": code, "message": "took 123ms"}));
            assert_eq!(failure.class(), Class::Transient, "{code}");
            assert_eq!(failure.retry_after(), None);
            assert!(!failure.to_string().contains("123ms"), "{failure}");
        }
        let throttled = configmap(
            Verb::Patch,
            json!({"code": 429, "reason": "TooManyRequests",
            "details": {"retryAfterSeconds": 7}}),
        );
        assert_eq!(throttled.retry_after(), Some(Duration::from_secs(7)));
    }

    #[test]
    fn no_retry_makes_an_object_smaller_or_a_crd_newer() {
        for body in [
            json!({"code": 413, "reason": "RequestEntityTooLarge", "message": "Request entity too large: limit is 3145728"}),
            json!({"code": 500, "message": "etcdserver: request is too large"}),
        ] {
            assert_eq!(configmap(Verb::Create, body).class(), Class::Terminal(reason::INVALID));
        }
        for body in [
            json!({"code": 400, "reason": "BadRequest", "message": "unknown conversion"}),
            json!({"code": 405, "reason": "MethodNotAllowed", "details": {}}),
            json!({"code": 500, "message": "failed to create typed patch object (/c; cluster.x-k8s.io/v1beta2, Kind=Cluster): .status.phaseX: field not declared in schema"}),
        ] {
            assert_eq!(configmap(Verb::Apply, body).class(), Class::Bug);
        }
    }

    #[test]
    fn nothing_of_a_secret_is_repeated() {
        let secret = ObjectRef::new("Secret", Some("ns"), "x");
        let undecodable = serde_json::from_value::<u8>(json!("hunter2")).expect_err("not a number");
        let failures = [
            Failure::undecodable(Verb::Read, secret, &undecodable),
            answered(
                Verb::Patch,
                "Secret",
                json!({"code": 422, "details": {"causes": [
                {"reason": "FieldValueInvalid", "field": "patch", "message": "Invalid value: \"{data: hunter2}\""},
                {"reason": "FieldValueInvalid", "field": "data[value]", "message": "Invalid value: \"hunter2\""}]}}),
            ),
            answered(
                Verb::Create,
                "Secret",
                json!({"code": 400, "message": "cannot unmarshal hunter2"}),
            ),
        ];
        for failure in failures {
            let source = std::error::Error::source(&failure)
                .map(ToString::to_string)
                .unwrap_or_default();
            for text in [failure.to_string(), format!("{failure:?}"), source] {
                assert!(!text.contains("hunter2"), "{text}");
            }
        }
    }

    #[test]
    fn an_object_of_another_shape_is_told_without_the_position() {
        let error = serde_json::from_str::<u8>("\n\n  \"text\"").expect_err("not a number");
        let failure = Failure::undecodable(Verb::Read, ObjectRef::new("Cluster", None, "x"), &error);
        assert_eq!(failure.class(), Class::Terminal(reason::UNREADABLE));
        assert_eq!(
            failure.to_string(),
            "Cluster x does not have the shape that is expected of it: invalid type: string \"text\", expected u8"
        );
        let error = serde_json::from_str::<u8>("<html>").expect_err("not JSON");
        let failure = Failure::undecodable(Verb::Read, ObjectRef::new("Cluster", None, "x"), &error);
        assert_eq!(failure.class(), Class::Transient);
    }

    #[test]
    fn long_words_of_others_are_cut_at_a_character() {
        let text = "é".repeat(MAX_TEXT + 1);
        let cut = bounded(&text);
        assert_eq!(cut.chars().count(), MAX_TEXT + 1);
        assert!(cut.ends_with('…'));
        assert_eq!(bounded("short"), "short");
    }
}
