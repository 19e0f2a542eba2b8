//! What is to go wrong, and when.

use std::fmt;

use http::StatusCode;
use serde_json::{Value, json};

/// What one run of a controller goes through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// Nothing goes wrong; the writes are counted.
    Undisturbed,
    /// One fault, at the n-th write; the first is 1.
    Strike { at: usize, fault: Fault },
    /// Again and again: every write fails, and its repetition succeeds. Counted for each object and part of it by itself.
    Repeat { fault: Fault },
    /// All along, one kind's changes are seen late while the others' are seen at once.
    Lag { resource: String },
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Undisturbed => f.write_str("undisturbed"),
            Self::Strike { at, fault } => write!(f, "{fault} {at}"),
            Self::Repeat { fault } => write!(f, "{fault} repeated"),
            Self::Lag { resource } => write!(f, "lag {resource}"),
        }
    }
}

/// What can go wrong with a write, or because of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The world stops, the controller is killed, and another is started.
    Kill(Moment),
    /// The controller is killed, but its write was on the way already: it arrives just before the successor's first.
    KillAndArriveLate,
    /// The controller is killed when the write is done, and the API server that its successor meets lags behind.
    KillAndTravelBack(Age),
    /// The write is not done, and the API server says why.
    Refuse(Refusal),
    /// The write is done, and the API server says that it took too long.
    TimeOut,
    /// The connection breaks off instead of an answer.
    Cut(Moment),
    /// No change is seen for a while from the write on.
    HoldWatches,
    /// The changes of a while are never seen, only what they led to: the API server has forgotten them when it is asked.
    LoseEvents,
    /// Every watch breaks off, and cannot be started again at once.
    BreakWatches,
}

/// Whether the API server did what it was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Moment {
    Before,
    After,
}

/// How old the world is that a successor sees first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Age {
    /// All but the last write can be seen.
    BeforeTheWrite,
    /// Nothing that the controller has made can be seen, but that it was about to.
    BeforeTheFirstChild,
    /// Not one of the controller's writes can be seen.
    BeforeEverything,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// 409: for a create "it exists already", for anything else "it was changed".
    Conflict,
    TooManyRequests,
    InternalError,
    Unavailable,
}

impl Fault {
    pub const ALL: [Self; 16] = [
        Self::Kill(Moment::Before),
        Self::Kill(Moment::After),
        Self::KillAndArriveLate,
        Self::KillAndTravelBack(Age::BeforeTheWrite),
        Self::KillAndTravelBack(Age::BeforeTheFirstChild),
        Self::KillAndTravelBack(Age::BeforeEverything),
        Self::Cut(Moment::Before),
        Self::Cut(Moment::After),
        Self::TimeOut,
        Self::Refuse(Refusal::Conflict),
        Self::Refuse(Refusal::TooManyRequests),
        Self::Refuse(Refusal::InternalError),
        Self::Refuse(Refusal::Unavailable),
        Self::HoldWatches,
        Self::LoseEvents,
        Self::BreakWatches,
    ];

    /// Whether it concerns the answer to the write alone, so that it can strike again and again.
    pub fn is_an_answer(self) -> bool {
        matches!(self, Self::Refuse(_) | Self::TimeOut | Self::Cut(_))
    }

    /// Whether somebody has to kill the controller and start another.
    pub fn kills(self) -> bool {
        matches!(
            self,
            Self::Kill(_) | Self::KillAndArriveLate | Self::KillAndTravelBack(_)
        )
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Kill(Moment::Before) => "kill-before",
            Self::Kill(Moment::After) => "kill-after",
            Self::KillAndArriveLate => "kill-late",
            Self::KillAndTravelBack(Age::BeforeTheWrite) => "kill-stale",
            Self::KillAndTravelBack(Age::BeforeTheFirstChild) => "kill-childless",
            Self::KillAndTravelBack(Age::BeforeEverything) => "kill-ancient",
            Self::Refuse(Refusal::Conflict) => "409",
            Self::Refuse(Refusal::TooManyRequests) => "429",
            Self::Refuse(Refusal::InternalError) => "500",
            Self::Refuse(Refusal::Unavailable) => "503",
            Self::TimeOut => "504-done",
            Self::Cut(Moment::Before) => "cut-before",
            Self::Cut(Moment::After) => "cut-after",
            Self::HoldWatches => "watch-held",
            Self::LoseEvents => "watch-lost",
            Self::BreakWatches => "watch-cut",
        })
    }
}

/// An answer of the API server that is not the object asked for.
pub(super) struct Answer {
    pub(super) code: StatusCode,
    reason: &'static str,
    message: &'static str,
    pub(super) retry_after: Option<u32>,
}

impl Answer {
    pub(super) const TIMED_OUT: Self = Self {
        code: StatusCode::GATEWAY_TIMEOUT,
        reason: "Timeout",
        message: "request did not complete within requested timeout",
        retry_after: None,
    };
    pub(super) const EXPIRED: Self = Self {
        code: StatusCode::GONE,
        reason: "Expired",
        message: "too old resource version",
        retry_after: None,
    };

    pub(super) fn refusal(refusal: Refusal, creates: bool) -> Self {
        let (code, reason, message, retry_after) = match refusal {
            Refusal::Conflict if creates => (StatusCode::CONFLICT, "AlreadyExists", "the object already exists", None),
            Refusal::Conflict => (StatusCode::CONFLICT, "Conflict", "the object has been modified", None),
            Refusal::TooManyRequests => (
                StatusCode::TOO_MANY_REQUESTS,
                "TooManyRequests",
                "the server has received too many requests",
                Some(1),
            ),
            Refusal::InternalError => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "InternalError",
                "etcdserver: leader changed",
                None,
            ),
            Refusal::Unavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                "ServiceUnavailable",
                "apiserver is shutting down",
                None,
            ),
        };
        Self {
            code,
            reason,
            message,
            retry_after,
        }
    }

    pub(super) fn body(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code.as_u16(),
        });
        if let (Some(seconds), Some(fields)) = (self.retry_after, status.as_object_mut()) {
            fields.insert("details".into(), json!({"retryAfterSeconds": seconds}));
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_fault_has_a_name_of_its_own() {
        let names: BTreeSet<String> = Fault::ALL.iter().map(ToString::to_string).collect();
        assert_eq!(names.len(), Fault::ALL.len());
    }

    #[test]
    fn a_conflict_on_a_create_is_something_else() {
        let reason = |creates| Answer::refusal(Refusal::Conflict, creates).body()["reason"].clone();
        assert_eq!(
            (reason(true), reason(false)),
            (json!("AlreadyExists"), json!("Conflict"))
        );
    }
}
