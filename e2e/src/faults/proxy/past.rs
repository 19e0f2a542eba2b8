//! An API server that lags behind the others, as a controller that starts anew may meet one: its watches begin with the
//! world as it was some time ago.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use http::header::ACCEPT;
use http::{HeaderValue, Response};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};

use super::super::plan::Age;
use super::super::target::{parameter, with_query};
use super::super::watch::{Mode, event};
use super::{Answered, Broken, Carried, SILENCE, Shared, collect};

/// What makes a list a watch.
const WATCHING: [&str; 6] = [
    "watch",
    "sendInitialEvents",
    "allowWatchBookmarks",
    "timeoutSeconds",
    "resourceVersion",
    "resourceVersionMatch",
];

impl Shared {
    /// From now on watches begin in the past, and the present reaches them when all of them have been silent for a while.
    pub(super) fn travel_back(self: &Arc<Self>, age: Age) {
        let mut record = self.record();
        // The versions of all objects come from one counter: one less is the world without that write.
        let without = |version: Option<u64>| version.map(|version| version.saturating_sub(1));
        let version = match age {
            Age::BeforeTheWrite => record.before,
            Age::BeforeTheFirstChild => without(record.first_child),
            Age::BeforeEverything => without(record.first),
        };
        // Where nothing has succeeded there is no other past than the present.
        if version.is_none() {
            return;
        }
        record.past = version;
        drop(record);
        self.flow.send_modify(|flow| flow.mode = Mode::Held);
        let shared = self.clone();
        let mut openings = self.openings.subscribe();
        tokio::spawn(async move {
            if openings.changed().await.is_err() {
                return;
            }
            while tokio::time::timeout(SILENCE, openings.changed()).await.is_ok() {}
            shared.record().past = None;
            shared.flow.send_modify(|flow| flow.mode = Mode::Open);
        });
    }

    /// The version of the world as it is now.
    pub(super) async fn version(&self) -> Result<u64, Broken> {
        let newest = ListParams::default().limit(1);
        let namespaces: Api<Namespace> = Api::all(self.overseer.clone());
        let listed = namespaces.list_metadata(&newest).await.map_err(|_| Broken)?;
        let version = listed.metadata.resource_version.ok_or(Broken)?;
        version.parse().map_err(|_| Broken)
    }

    /// How a watch begins in the past, and how it goes on from there; `None` when it is to begin in the present.
    pub(super) async fn past(&self, request: &Carried) -> Result<Option<(VecDeque<Bytes>, Response<Body>)>, Broken> {
        let version = self.record().past;
        let asks_for_a_list = parameter(&request.uri, "sendInitialEvents") == Some("true");
        let Some(version) = version.filter(|_| asks_for_a_list) else {
            return Ok(None);
        };
        let events = match self.list_of(request, version).await? {
            listed if listed.code.is_success() => events_of(&listed.body, version)?,
            refused => {
                let mut record = self.record();
                let answer = String::from_utf8_lossy(&refused.body).into_owned();
                record.obstacle = Some(format!("{} as of {version}: {} {answer}", request.uri, refused.code));
                record.past = None;
                self.flow.send_modify(|flow| flow.mode = Mode::Open);
                return Ok(None);
            }
        };
        let watch = self.watch_from(request, version).await?;
        self.openings.send_modify(|count| *count += 1);
        Ok(Some((events, watch)))
    }

    /// A collection as it was.
    async fn list_of(&self, request: &Carried, version: u64) -> Result<Answered, Broken> {
        let address = with_query(
            &request.uri,
            &WATCHING,
            &[
                ("resourceVersion", &version.to_string()),
                ("resourceVersionMatch", "Exact"),
            ],
        );
        let mut request = request.clone();
        // What a watch calls an object's metadata is another type than a list of them.
        if let Some(accept) = request.headers.get(ACCEPT).and_then(|value| value.to_str().ok()) {
            let accept = accept.replace("as=PartialObjectMetadata;", "as=PartialObjectMetadataList;");
            request
                .headers
                .insert(ACCEPT, HeaderValue::from_str(&accept).map_err(|_| Broken)?);
        }
        collect(self.send(&request, &address).await?).await
    }

    async fn watch_from(&self, request: &Carried, version: u64) -> Result<Response<Body>, Broken> {
        let address = with_query(
            &request.uri,
            &["sendInitialEvents", "resourceVersionMatch", "resourceVersion"],
            &[("resourceVersion", &version.to_string())],
        );
        self.send(request, &address).await
    }
}

/// A list in the form in which a watch begins.
fn events_of(list: &[u8], version: u64) -> Result<VecDeque<Bytes>, Broken> {
    let list: Value = serde_json::from_slice(list).map_err(|_| Broken)?;
    let text = |key: &str| list.get(key).and_then(Value::as_str).unwrap_or_default();
    let kind = json!(text("kind").trim_end_matches("List"));
    let api_version = json!(text("apiVersion"));
    let mut events = VecDeque::new();
    for item in list.get("items").and_then(Value::as_array).into_iter().flatten() {
        let mut item = item.clone();
        if let Some(fields) = item.as_object_mut() {
            // Lists of Kubernetes' own kinds leave them out.
            fields.entry("kind").or_insert_with(|| kind.clone());
            fields.entry("apiVersion").or_insert_with(|| api_version.clone());
        }
        events.push_back(event("ADDED", item));
    }
    let annotations = json!({"k8s.io/initial-events-end": "true"});
    let metadata = json!({"resourceVersion": version.to_string(), "annotations": annotations});
    let end = json!({"kind": kind, "apiVersion": api_version, "metadata": metadata});
    events.push_back(event("BOOKMARK", end));
    Ok(events)
}
