//! Kubernetes Events: what happened to an object, for the people who run `kubectl describe`.
//!
//! Recording never delays or fails a pass: events go through a bounded channel to one task. What cannot be recorded is
//! counted and dropped; conditions and logs say the same.

use std::future::Future;

use jiff::Timestamp;
use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};
use prometheus::{IntCounter, IntCounterVec};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{metrics::Metrics, telemetry::api_error};

/// More than the transitions of one burst; a controller that exceeds it has a bug that Events would only make worse.
const PENDING: usize = 512;
/// The API server's limits.
const MAX_NOTE: usize = 1024;
const MAX_WORD: usize = 128;
const MAX_NAME: usize = 253;

/// The severity that `kubectl` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    Normal,
    Warning,
}

/// The sending end; cloning it is cheap.
#[derive(Clone, Debug)]
pub struct Events {
    sender: mpsc::Sender<Event>,
    reporter: &'static str,
    instance: String,
    dropped: IntCounter,
    failures: IntCounterVec,
}

impl Events {
    /// The sending end, and the task that records until `stop` and then what is still waiting.
    pub fn new(
        client: Client,
        reporter: &'static str,
        instance: &str,
        metrics: &Metrics,
        stop: CancellationToken,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (sender, receiver) = mpsc::channel(PENDING);
        let dropped = metrics.events_dropped();
        let events = Self {
            sender,
            reporter,
            instance: cut(instance, MAX_WORD).to_string(),
            dropped: dropped.clone(),
            failures: metrics.failures(),
        };
        (events, record(client, receiver, dropped, stop))
    }

    /// Records one transition of the object `about`. `reason` says what happened and `action` what we did, both in
    /// PascalCase; `note` is a sentence for people.
    pub fn publish(&self, about: ObjectReference, severity: Severity, reason: &str, action: &str, note: &str) {
        let event = self.compose(about, severity, reason, action, note);
        if self.sender.try_send(event).is_err() {
            self.dropped.inc();
        }
    }

    /// Counts that an object of this kind got into trouble.
    pub(crate) fn count_failure(&self, kind: &str, reason: &str) {
        self.failures.with_label_values(&[kind, reason]).inc();
    }

    fn compose(&self, about: ObjectReference, severity: Severity, reason: &str, action: &str, note: &str) -> Event {
        let now = Timestamp::now();
        let suffix = format!(".{:x}", now.as_nanosecond());
        let subject = cut(about.name.as_deref().unwrap_or_default(), MAX_NAME - suffix.len());
        // A cut name must not end in a dot or a dash.
        let subject = subject.trim_end_matches(['.', '-']);
        Event {
            metadata: ObjectMeta {
                name: Some(format!("{subject}{suffix}")),
                namespace: Some(about.namespace.clone().unwrap_or_else(|| "default".into())),
                ..ObjectMeta::default()
            },
            type_: Some(match severity {
                Severity::Normal => "Normal".into(),
                Severity::Warning => "Warning".into(),
            }),
            reason: Some(cut(reason, MAX_WORD).to_string()),
            action: Some(cut(action, MAX_WORD).to_string()),
            note: Some(cut_note(note)),
            event_time: Some(MicroTime(now)),
            regarding: Some(about),
            reporting_controller: Some(self.reporter.into()),
            reporting_instance: Some(self.instance.clone()),
            ..Event::default()
        }
    }
}

async fn record(client: Client, mut receiver: mpsc::Receiver<Event>, dropped: IntCounter, stop: CancellationToken) {
    loop {
        let event = tokio::select! {
            event = receiver.recv() => event,
            () = stop.cancelled() => {
                receiver.close();
                receiver.recv().await
            }
        };
        let Some(event) = event else { return };
        let api: Api<Event> = Api::namespaced(client.clone(), event.metadata.namespace.as_deref().unwrap_or_default());
        if let Err(error) = api.create(&PostParams::default(), &event).await {
            dropped.inc();
            tracing::debug!(
                error = api_error(&error),
                reason = event.reason,
                "an Event could not be recorded"
            );
        }
    }
}

/// At most `limit` bytes, ending at a character.
fn cut(text: &str, limit: usize) -> &str {
    text.get(..text.floor_char_boundary(limit)).unwrap_or(text)
}

/// Like [`cut`], but what is missing is marked.
fn cut_note(note: &str) -> String {
    if note.len() <= MAX_NOTE {
        return note.to_string();
    }
    format!("{}…", cut(note, MAX_NOTE - '…'.len_utf8()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn events() -> (Events, mpsc::Receiver<Event>) {
        let (sender, receiver) = mpsc::channel(2);
        let events = Events {
            sender,
            reporter: "capt-test",
            instance: "pod-1".into(),
            dropped: IntCounter::new("dropped", "dropped").unwrap(),
            failures: Metrics::new("0").unwrap().failures(),
        };
        (events, receiver)
    }

    fn about(name: &str) -> ObjectReference {
        ObjectReference {
            name: Some(name.into()),
            namespace: Some("ns".into()),
            ..ObjectReference::default()
        }
    }

    #[test]
    fn a_full_channel_drops_and_counts_instead_of_waiting() {
        let (events, mut receiver) = events();
        for _ in 0..5 {
            events.publish(about("a"), Severity::Normal, "Created", "Create", "made");
        }
        assert_eq!(events.dropped.get(), 3);
        let event = receiver.try_recv().unwrap();
        assert_eq!(event.reporting_controller.as_deref(), Some("capt-test"));
        assert_eq!(event.metadata.namespace.as_deref(), Some("ns"));
    }

    proptest! {
        #[test]
        fn every_field_stays_within_the_servers_limits(
            name in "[a-z]([a-z0-9.-]{0,250}[a-z0-9])?", note in ".{0,3000}", reason in "[A-Z][A-Za-z]{0,200}",
        ) {
            let (events, _receiver) = events();
            let event = events.compose(about(&name), Severity::Warning, &reason, &reason, &note);
            prop_assert!(event.note.unwrap().len() <= 1024);
            prop_assert!(event.reason.unwrap().len() <= 128);
            prop_assert!(event.metadata.name.as_ref().unwrap().len() <= 253);
            // As an object name must: the suffix follows a letter or a digit.
            let (subject, _) = event.metadata.name.as_ref().unwrap().rsplit_once('.').unwrap();
            prop_assert!(subject.ends_with(|c: char| c.is_ascii_alphanumeric()), "{}", subject);
            prop_assert!(name.starts_with(subject));
        }
    }
}
