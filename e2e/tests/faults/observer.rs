//! What happens to the objects of every trial, seen through one set of watches that no fault disturbs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use capt_api::names::annotation;
use capt_e2e::testing::objects;
use futures::StreamExt;
use kube::api::DynamicObject;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch_kind};
use kube::{Client, ResourceExt};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Every kind that a cluster consists of, and what it is made from.
pub(crate) const KINDS: [(&str, &str); 8] = [
    ("cluster.x-k8s.io/v1beta2", "Cluster"),
    ("infrastructure.cluster.x-k8s.io/v1beta1", "CAPTCluster"),
    ("controlplane.cluster.x-k8s.io/v1beta1", "CAPTControlPlane"),
    ("infrastructure.cluster.x-k8s.io/v1beta1", "WorkspaceTemplateApply"),
    ("infrastructure.cluster.x-k8s.io/v1beta1", "WorkspaceTemplate"),
    ("tf.upbound.io/v1beta1", "Workspace"),
    ("v1", "Secret"),
    ("v1", "ConfigMap"),
];

/// Nobody waits so long for anything but an event: not core for a connection, nor a controller after an error.
const STALLED: Duration = Duration::from_secs(150);
/// A hundred times what an undisturbed run takes.
const LONGEST: Duration = Duration::from_secs(1200);

/// An object within its namespace. A Workspace counts to the namespace of its apply.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Id {
    pub(crate) kind: &'static str,
    pub(crate) name: String,
}

impl Id {
    /// What Kubernetes puts into every namespace.
    pub(crate) fn is_kubernetes_own(&self) -> bool {
        self.kind == "ConfigMap" && self.name == "kube-root-ca.crt"
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    Born,
    Dying,
    Gone,
}

/// One namespace, now and so far. Turns of one kind stand in the order in which they happened.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) objects: BTreeMap<Id, DynamicObject>,
    pub(crate) history: Vec<(Turn, Id)>,
}

impl World {
    fn take(&mut self, kind: &'static str, object: DynamicObject) {
        let id = Id {
            kind,
            name: object.name_any(),
        };
        let before = self.objects.get(&id);
        let same = before.filter(|before| before.uid() == object.uid());
        let was_dying = same.is_some_and(|before| before.metadata.deletion_timestamp.is_some());
        if same.is_none() {
            self.history.push((Turn::Born, id.clone()));
        }
        if object.metadata.deletion_timestamp.is_some() && !was_dying {
            self.history.push((Turn::Dying, id.clone()));
        }
        self.objects.insert(id, object);
    }

    fn lose(&mut self, kind: &'static str, name: &str) {
        let id = Id {
            kind,
            name: name.to_owned(),
        };
        if self.objects.remove(&id).is_some() {
            self.history.push((Turn::Gone, id));
        }
    }

    /// How often an object of each name came into being.
    pub(crate) fn births(&self) -> BTreeMap<&Id, usize> {
        let mut births = BTreeMap::new();
        for (_, id) in self.history.iter().filter(|(turn, _)| *turn == Turn::Born) {
            *births.entry(id).or_default() += 1;
        }
        births
    }
}

#[derive(Default)]
struct Place {
    world: World,
    changes: watch::Sender<u64>,
}

#[derive(Clone)]
pub(crate) struct Observer {
    places: Arc<Mutex<HashMap<String, Place>>>,
    _watches: Arc<JoinSet<()>>,
}

impl Observer {
    pub(crate) fn start(client: &Client) -> Self {
        let places: Arc<Mutex<HashMap<String, Place>>> = Arc::default();
        let mut watches = JoinSet::new();
        for (api_version, kind) in KINDS {
            let events = watch_kind(objects(client, api_version, kind, None), watcher::Config::default());
            let mut feed = Feed {
                kind,
                places: places.clone(),
                listed: HashSet::new(),
            };
            watches.spawn(async move {
                let mut events = events.default_backoff().boxed();
                while let Some(event) = events.next().await {
                    match event {
                        Ok(event) => feed.take(event),
                        Err(error) => eprintln!("the observer of {kind} failed and goes on: {error}"),
                    }
                }
            });
        }
        Self {
            places,
            _watches: Arc::new(watches),
        }
    }

    fn places(&self) -> MutexGuard<'_, HashMap<String, Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changes(&self, namespace: &str) -> watch::Receiver<u64> {
        self.places()
            .entry(namespace.to_owned())
            .or_default()
            .changes
            .subscribe()
    }

    /// Looks at a namespace as it is now.
    pub(crate) fn look<T>(&self, namespace: &str, at: impl FnOnce(&World) -> T) -> T {
        at(&self.places().entry(namespace.to_owned()).or_default().world)
    }

    /// Looks again whenever something changes, until there is nothing missing any more; `missing` says what. On a busy
    /// machine everything takes long, so what counts is that it goes on: it fails when nothing happens for a while, or
    /// when much happens for ever.
    pub(crate) async fn until(&self, namespace: &str, missing: impl Fn(&World) -> Option<String>) -> Result<()> {
        let end = Instant::now() + LONGEST;
        let mut changes = self.changes(namespace);
        loop {
            let Some(what) = self.look(namespace, &missing) else {
                return Ok(());
            };
            let limit = end.min(Instant::now() + STALLED);
            match tokio::time::timeout_at(limit, changes.changed()).await {
                Ok(changed) => changed?,
                Err(_) if limit == end => bail!("it still changes after {} s: {what}", LONGEST.as_secs()),
                Err(_) => bail!("nothing has happened for {} s: {what}", STALLED.as_secs()),
            }
        }
    }

    /// Returns when nothing has changed for so long.
    pub(crate) async fn quiet(&self, namespace: &str, time: Duration) {
        let mut changes = self.changes(namespace);
        while matches!(tokio::time::timeout(time, changes.changed()).await, Ok(Ok(()))) {}
    }

    /// A trial is over, and its namespace is not looked at again.
    pub(crate) fn forget(&self, namespace: &str) {
        self.places().remove(namespace);
    }
}

/// Brings the events of one kind to their places.
struct Feed {
    kind: &'static str,
    places: Arc<Mutex<HashMap<String, Place>>>,
    /// Namespace and name of what the list that is being read contains.
    listed: HashSet<(String, String)>,
}

impl Feed {
    fn take(&mut self, event: Event<DynamicObject>) {
        let kind = self.kind;
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(object) => {
                let namespace = home(&object);
                self.listed.insert((namespace.clone(), object.name_any()));
                self.change(&namespace, |world| world.take(kind, object));
            }
            Event::InitDone => self.lose_what_is_not_listed(),
            Event::Apply(object) => self.change(&home(&object), |world| world.take(kind, object)),
            Event::Delete(object) => self.change(&home(&object), |world| world.lose(kind, &object.name_any())),
        }
    }

    fn change(&self, namespace: &str, how: impl FnOnce(&mut World)) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let place = places.entry(namespace.to_owned()).or_default();
        how(&mut place.world);
        place.changes.send_modify(|count| *count += 1);
    }

    /// What went while the watch was broken is told by its absence alone.
    fn lose_what_is_not_listed(&self) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        for (namespace, place) in places.iter_mut() {
            let known = place.world.objects.keys().filter(|id| id.kind == self.kind);
            let is_listed = |name: &str| self.listed.contains(&(namespace.clone(), name.to_owned()));
            let gone: Vec<String> = known
                .map(|id| id.name.clone())
                .filter(|name| !is_listed(name))
                .collect();
            for name in gone {
                place.world.lose(self.kind, &name);
            }
            place.changes.send_modify(|count| *count += 1);
        }
    }
}

/// The namespace to which an object is counted.
fn home(object: &DynamicObject) -> String {
    let of_apply = || object.annotations().get(annotation::WTA_NAMESPACE).cloned();
    object.namespace().or_else(of_apply).unwrap_or_default()
}
