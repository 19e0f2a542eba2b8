//! Keeps a [`Cache`] in step with the API server, and tells queues what changed.
//!
//! Every replica fills its caches; queues hear of changes only in the one that leads. When it begins to lead, each watch
//! tells everything it knows once. (A standby's queue would otherwise grow with every object that ever came and went.)
//!
//! A watch never ends by itself: a missing CRD, a refused permission or a restarting server is reported by `/readyz`,
//! logged, and tried again within seconds.

use std::{
    fmt,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
};

use futures::{StreamExt, stream::BoxStream};
use kube::{
    Api, Client, Resource,
    core::NamespaceScope,
    runtime::watcher::{self, Event},
};
use serde::de::DeserializeOwned;
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval},
};

use crate::{
    backoff::{Pace, Series},
    cache::{Cache, Change, Feed, Guarded, Index, Prune},
    client::touching,
    health::{Health, PULSE, Pulse, Readiness},
    key::Key,
    metrics::{Metrics, WatchMetrics},
    queue::Queue,
    scope::Scope,
    telemetry::{Repeating, api_error, chain},
};

type Listener<K> = Box<dyn Fn(&Change<K>) + Send + Sync>;

/// A watch of one kind, being put together. [`crate::app::Setup::start`] sets it going.
pub struct Watch<K> {
    name: String,
    api: Api<Guarded<K>>,
    selector: Option<String>,
    only_name: Option<&'static str>,
    confidential: bool,
    optional: bool,
    cache: Cache<K>,
    prune: Option<Prune<K>>,
    listeners: Vec<Listener<K>>,
    touched: Arc<Mutex<Instant>>,
}

impl<K> Watch<K>
where
    K: Resource + Clone + DeserializeOwned + Send + Sync + 'static,
{
    /// Watches a namespaced kind: in the namespace of `scope`, or in all of them.
    pub fn namespaced(client: Client, scope: &Scope, kind: &K::DynamicType) -> Self
    where
        K::Scope: NamespaceScope,
    {
        Self::new(client, kind, |api| match scope.namespace() {
            Some(namespace) => api.constrain(namespace),
            None => api,
        })
    }

    /// Watches a cluster-scoped kind.
    pub fn cluster_scoped(client: Client, kind: &K::DynamicType) -> Self {
        Self::new(client, kind, |api| api)
    }

    fn new(client: Client, kind: &K::DynamicType, within: impl FnOnce(Api<Guarded<K>>) -> Api<Guarded<K>>) -> Self {
        let touched = Arc::new(Mutex::new(Instant::now()));
        let client = touching(client, {
            let touched = touched.clone();
            move || *touched.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now()
        });
        let group = K::group(kind);
        let name = K::kind(kind);
        Self {
            confidential: group.is_empty() && name == "Secret",
            name: name.into_owned(),
            api: within(Api::all_with(client, kind)),
            selector: None,
            only_name: None,
            optional: false,
            cache: Cache::new(),
            prune: None,
            listeners: Vec::new(),
            touched,
        }
    }

    /// Only objects that match this label selector; others cost neither bandwidth nor memory.
    #[must_use]
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        let added = selector.into();
        self.selector = Some(match self.selector {
            Some(selector) => format!("{selector},{added}"),
            None => added,
        });
        self
    }

    /// Only objects of this name, in whichever namespace, whatever their labels say.
    #[must_use]
    pub fn only(mut self, name: &'static str) -> Self {
        self.only_name = Some(name);
        self
    }

    /// Only objects of this installation, when `--watch-filter` divides the work between several.
    #[must_use]
    pub fn filtered(self, scope: &Scope) -> Self {
        match scope.filter_selector() {
            Some(selector) => self.labels(selector),
            None => self,
        }
    }

    /// The API server may not serve this kind: until it does, there are no such objects, and nobody waits for them.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// A name that tells this watch from another of the same kind, in metrics and `/readyz`.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Drops what the controller does not read before an object is stored.
    #[must_use]
    pub fn prune(mut self, prune: impl Fn(&mut K) + Send + Sync + 'static) -> Self {
        self.prune = Some(Box::new(prune));
        self
    }

    /// Adds an index: objects are found under each of the `values` computed from them. `values` must depend on nothing
    /// but the object: it is asked again for the old state to take it out, and it runs while the cache is locked.
    pub fn index<V>(&self, values: impl Fn(&K) -> Vec<V> + Send + Sync + 'static) -> Index<K, V>
    where
        V: Clone + Eq + std::hash::Hash + Send + 'static,
    {
        self.cache.index(values)
    }

    /// Every change asks for a pass over the object itself.
    pub fn notify(&mut self, queue: &Queue) {
        self.on_change(queue, |change| vec![change.key.clone()]);
    }

    /// Every change asks for a pass over the objects that the old or the new state refers to.
    pub fn notify_referenced(&mut self, queue: &Queue, references: impl Fn(&K) -> Vec<Key> + Send + Sync + 'static) {
        self.on_change(queue, move |change| {
            let states = [&change.old, &change.new];
            states
                .into_iter()
                .flatten()
                .flat_map(|object| references(object))
                .collect()
        });
    }

    /// Every change asks for a pass over the keys that `keys` computes from it, usually with an index of another kind.
    pub fn on_change(&mut self, queue: &Queue, keys: impl Fn(&Change<K>) -> Vec<Key> + Send + Sync + 'static) {
        let queue = queue.clone();
        self.listeners.push(Box::new(move |change| {
            for key in keys(change) {
                queue.add(key);
            }
        }));
    }

    /// What this watch is called in metrics and `/readyz`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The cache that this watch fills.
    pub fn cache(&self) -> Cache<K> {
        self.cache.clone()
    }

    /// Registers the watch and returns the loop that must run for as long as the process. `leading` turns true when this
    /// replica begins to lead.
    pub(crate) fn into_loop(
        self,
        metrics: &Metrics,
        health: &Health,
        leading: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + Send + use<K> {
        let measured = metrics.watch(&self.name);
        metrics.before_scrape({
            let (touched, idle) = (self.touched.clone(), measured.idle.clone());
            move || {
                idle.set(
                    touched
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .elapsed()
                        .as_secs_f64(),
                )
            }
        });
        let readiness = health.readiness(format!("watch {}", self.name));
        readiness.set(Err("waiting for the first list".into()));
        let pulse = health.pulse(format!("watch {}", self.name));
        let run = Run {
            feed: Feed::new(self.cache, self.prune, self.confidential),
            name: self.name,
            api: self.api,
            selector: self.selector,
            only_name: self.only_name,
            optional: self.optional,
            listeners: self.listeners,
            metrics: measured,
            readiness,
            trouble: Repeating::default(),
            touched: self.touched,
            leads: false,
        };
        run.run(pulse, leading)
    }
}

impl<K> fmt::Debug for Watch<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// How the list part of a watch is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Listing {
    /// As a stream, so that neither side holds a whole list in memory.
    Streaming,
    /// In pages, for servers that refuse to stream.
    Paged,
}

/// A watch that cannot resume is started over with a fresh list after so many failures in a row, for instance when the
/// API server came back from a backup and does not know our version any more.
const START_OVER_AFTER: u32 = 8;

struct Run<K> {
    name: String,
    api: Api<Guarded<K>>,
    selector: Option<String>,
    only_name: Option<&'static str>,
    optional: bool,
    feed: Feed<K>,
    listeners: Vec<Listener<K>>,
    metrics: WatchMetrics,
    readiness: Readiness,
    trouble: Repeating,
    /// When the API server last said something about these objects.
    touched: Arc<Mutex<Instant>>,
    /// Whether queues are told.
    leads: bool,
}

impl<K> Run<K>
where
    K: Resource + Clone + DeserializeOwned + Send + Sync + 'static,
{
    async fn run(mut self, pulse: Pulse, mut leading: watch::Receiver<bool>) {
        let mut listing = Listing::Streaming;
        let mut events = self.open(listing);
        let mut failures = Series::new(Pace::WATCH);
        let mut synced = false;
        let mut ticks = interval(PULSE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let event = tokio::select! {
                _ = ticks.tick() => {
                    pulse.beat();
                    continue;
                }
                Ok(_) = leading.wait_for(|leads| *leads), if !self.leads => {
                    self.leads = true;
                    self.tell(&self.feed.everything());
                    continue;
                }
                event = events.next() => event,
            };
            match event {
                Some(Ok(event)) => {
                    failures.reset();
                    self.trouble.clear();
                    if matches!(event, Event::Init) {
                        self.metrics.relists.inc();
                    }
                    let listed = matches!(event, Event::InitDone);
                    self.take(event);
                    if listed && !synced {
                        synced = true;
                        self.readiness.set(Ok(()));
                        tracing::info!(watch = self.name, objects = self.feed.census().0, "cache is in step");
                    }
                }
                Some(Err(error)) => {
                    self.metrics.errors.inc();
                    let code = code(&error);
                    if listing == Listing::Streaming && matches!(code, Some(400 | 422)) {
                        tracing::info!(
                            watch = self.name,
                            "the API server does not stream lists; reading them in pages"
                        );
                        listing = Listing::Paged;
                        events = self.open(listing);
                        continue;
                    }
                    self.report(&error, synced);
                    let wait = failures.fail();
                    if matches!(code, Some(404 | 410)) || failures.tries().is_multiple_of(START_OVER_AFTER) {
                        events = self.open(listing);
                    }
                    tokio::time::sleep(wait).await;
                }
                // kube's watcher goes on for ever; should that change, a fresh one takes over.
                None => events = self.open(listing),
            }
        }
    }

    fn open(&self, listing: Listing) -> BoxStream<'static, Result<Event<Guarded<K>>, watcher::Error>> {
        let mut config = watcher::Config::default();
        if let Some(selector) = &self.selector {
            config = config.labels(selector);
        }
        if let Some(name) = self.only_name {
            config = config.fields(&format!("metadata.name={name}"));
        }
        if listing == Listing::Streaming {
            config = config.streaming_lists();
        }
        watcher::watcher(self.api.clone(), config).boxed()
    }

    fn take(&mut self, event: Event<Guarded<K>>) {
        let counts = !matches!(event, Event::Init | Event::InitApply(_));
        let changes = self.feed.take(event);
        if self.leads {
            self.tell(&changes);
        }
        if counts {
            let (objects, unreadable) = self.feed.census();
            self.metrics.objects.set(i64::try_from(objects).unwrap_or(i64::MAX));
            self.metrics
                .unreadable
                .set(i64::try_from(unreadable).unwrap_or(i64::MAX));
        }
    }

    fn tell(&self, changes: &[Change<K>]) {
        for change in changes {
            for listener in &self.listeners {
                listener(change);
            }
        }
    }

    fn report(&mut self, error: &watcher::Error, synced: bool) {
        let text = match code(error) {
            Some(404) => format!(
                "the API server does not know {}; is its CRD installed?",
                self.api.resource_url()
            ),
            Some(403) => format!("{}; does the controller's Role permit list and watch?", explain(error)),
            _ => explain(error),
        };
        let is_absent = self.optional && code(error) == Some(404);
        if is_absent {
            // That there are none of them is known, too.
            *self.touched.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        }
        if !synced {
            self.readiness.set(if is_absent { Ok(()) } else { Err(text.clone()) });
        }
        if self.trouble.is_news(&text) {
            tracing::warn!(watch = self.name, error = text, "watch failed; trying again");
        }
    }
}

fn explain(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(error) => format!("cannot list: {}", api_error(error)),
        watcher::Error::WatchStartFailed(error) => format!("cannot watch: {}", api_error(error)),
        watcher::Error::WatchFailed(error) => format!("the watch broke off: {}", api_error(error)),
        watcher::Error::WatchError(status) => {
            format!("the watch was ended: {} (HTTP {})", status.message, status.code)
        }
        watcher::Error::NoResourceVersion => chain(error),
    }
}

fn code(error: &watcher::Error) -> Option<u16> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => Some(status.code),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Limits, build};
    use axum::{Router, body::Body, extract::RawQuery, http::StatusCode, response::IntoResponse, response::Response};
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::{Value, json};
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    /// An API server that knows one collection and answers each query as `answer` says.
    async fn server(answer: impl Fn(&str) -> Response + Clone + Send + Sync + 'static) -> (Client, Arc<Metrics>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let config = kube::Config::new(format!("http://{}", listener.local_addr().unwrap()).parse().unwrap());
        let handler = move |RawQuery(query): RawQuery| {
            let answer = answer.clone();
            async move { answer(&query.unwrap_or_default()) }
        };
        let router = Router::new().route("/api/v1/namespaces/ns/configmaps", axum::routing::get(handler));
        tokio::spawn(async move { axum::serve(listener, router).await });
        let metrics = Metrics::new("0").unwrap();
        // No answer is late: one that was cut off would be asked for again, and the tests count what is asked.
        let hour = Duration::from_secs(3600);
        let limits = Limits {
            connect: hour,
            response: hour,
            call: hour,
        };
        (build(config, "test/0", limits, &metrics).unwrap(), metrics)
    }

    fn refusal(code: u16) -> Response {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": "No", "message": "no"});
        (StatusCode::from_u16(code).unwrap(), status.to_string()).into_response()
    }

    fn object(name: &str) -> Value {
        json!({"metadata": {"namespace": "ns", "name": name, "uid": name, "resourceVersion": "5"}})
    }

    fn list(names: &[&str]) -> Response {
        let items: Vec<_> = names.iter().map(|name| object(name)).collect();
        json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "5"}, "items": items})
            .to_string()
            .into_response()
    }

    /// A watch on which `events` come, and then nothing.
    fn stream(events: &[Value]) -> Response {
        let lines: String = events.iter().map(|event| format!("{event}\n")).collect();
        let first = futures::stream::once(async move { Ok::<_, std::io::Error>(lines) });
        Body::from_stream(first.chain(futures::stream::pending())).into_response()
    }

    struct Bench {
        cache: Cache<ConfigMap>,
        queue: Queue,
        health: Arc<Health>,
        leads: watch::Sender<bool>,
    }

    fn start(client: Client, metrics: &Metrics) -> Bench {
        let health = Health::new();
        let queue = Queue::new("test", metrics);
        let leads = watch::Sender::new(false);
        let mut watch = Watch::<ConfigMap>::namespaced(client, &Scope::new(Some("ns"), None), &());
        watch.notify(&queue);
        let cache = watch.cache();
        tokio::spawn(watch.into_loop(metrics, &health, leads.subscribe()));
        Bench {
            cache,
            queue,
            health,
            leads,
        }
    }

    /// Reached only by a failing test.
    async fn within<T>(what: impl Future<Output = T>) -> T {
        tokio::time::timeout(Duration::from_secs(300), what).await.unwrap()
    }

    #[tokio::test]
    async fn a_server_that_does_not_stream_lists_is_asked_for_pages() {
        let (client, metrics) = server(|query| match query {
            q if q.contains("sendInitialEvents=true") => refusal(422),
            q if q.contains("watch=true") => stream(&[]),
            _ => list(&["a", "b"]),
        })
        .await;
        let bench = start(client, &metrics);
        within(bench.health.wait_ready()).await;
        assert_eq!(bench.cache.keys().len(), 2);
    }

    #[tokio::test]
    async fn a_version_that_the_server_forgot_leads_to_a_fresh_list() {
        let lists = Arc::new(AtomicUsize::new(0));
        let seen = lists.clone();
        let (client, metrics) = server(move |query| match query {
            q if q.contains("sendInitialEvents=true") => refusal(422),
            // Refused with the answer itself, not inside the stream: kube's watcher alone would ask for ever.
            q if q.contains("watch=true") && seen.load(Ordering::SeqCst) < 2 => refusal(410),
            q if q.contains("watch=true") => stream(&[]),
            _ => match seen.fetch_add(1, Ordering::SeqCst) {
                0 => list(&["old"]),
                _ => list(&["new"]),
            },
        })
        .await;
        let bench = start(client, &metrics);
        within(async {
            while bench.cache.keys() != [Key::namespaced("ns", "new")] {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        assert_eq!(lists.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn a_standby_queues_nothing_and_tells_everything_when_it_leads() {
        let end = json!({"type": "BOOKMARK", "object": {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {
            "resourceVersion": "6", "annotations": {"k8s.io/initial-events-end": "true"},
        }}});
        let (client, metrics) = server(move |_| {
            let added = |name| json!({"type": "ADDED", "object": object(name)});
            let deleted = json!({"type": "DELETED", "object": object("gone")});
            stream(&[added("a"), added("gone"), end.clone(), added("b"), deleted])
        })
        .await;
        let bench = start(client, &metrics);
        within(bench.health.wait_ready()).await;
        within(async {
            while bench.cache.get(&Key::namespaced("ns", "b")).is_none() || bench.cache.keys().len() > 2 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        let depth = r#"workqueue_adds_total{controller="test",name="test"} 0"#;
        assert!(metrics.render().unwrap().contains(depth), "a standby collects no work");

        bench.leads.send_replace(true);
        let mut told = vec![
            within(bench.queue.next()).await.unwrap(),
            within(bench.queue.next()).await.unwrap(),
        ];
        told.sort();
        assert_eq!(told, [Key::namespaced("ns", "a"), Key::namespaced("ns", "b")]);
    }
}
