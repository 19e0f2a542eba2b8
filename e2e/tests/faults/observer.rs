//! What happens to the objects of every trial, seen through one set of watches that no fault disturbs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use capt_api::names::{annotation, label};
use capt_e2e::testing::history::version;
use capt_e2e::testing::objects;
use futures::StreamExt;
use kube::api::DynamicObject;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch_kind};
use kube::{Client, ResourceExt};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Every kind that a cluster or a Tenant consists of, and what it is made from.
const KINDS: [(&str, &str); 11] = [
    ("multitenancy.capt.dev/v1beta1", "Tenant"),
    ("v1", "Namespace"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"),
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

/// An object of a trial.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id {
    pub(crate) kind: &'static str,
    /// With the namespace before it, unless that is the trial's own.
    pub(crate) name: String,
}

impl Id {
    fn of(kind: &'static str, object: &DynamicObject) -> Self {
        let name = match object.namespace() {
            Some(namespace) if namespace != home(kind, object) => format!("{namespace}/{}", object.name_any()),
            _ => object.name_any(),
        };
        Self { kind, name }
    }

    /// What Kubernetes puts into every namespace.
    pub(crate) fn is_kubernetes_own(&self) -> bool {
        self.kind == "ConfigMap" && self.name.ends_with("kube-root-ca.crt")
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

/// One trial, now and so far.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) objects: BTreeMap<Id, DynamicObject>,
    /// With the versions that the objects had then: all are counted by the same etcd, so they tell what came before what.
    pub(crate) history: Vec<(Turn, Id, u64)>,
}

impl World {
    fn take(&mut self, id: Id, object: DynamicObject) {
        let before = self.objects.get(&id);
        let same = before.filter(|before| before.uid() == object.uid());
        let was_dying = same.is_some_and(|before| before.metadata.deletion_timestamp.is_some());
        if same.is_none() {
            self.history.push((Turn::Born, id.clone(), version(&object)));
        }
        if object.metadata.deletion_timestamp.is_some() && !was_dying {
            self.history.push((Turn::Dying, id.clone(), version(&object)));
        }
        self.objects.insert(id, object);
    }

    fn lose(&mut self, id: Id, version: u64) {
        if self.objects.remove(&id).is_some() {
            self.history.push((Turn::Gone, id, version));
        }
    }

    /// When it first happened to an object of such a name, as a version.
    pub(crate) fn when(&self, wanted: Turn, kind: &str, part: &str) -> Result<u64> {
        let mut found = self.history.iter();
        let found = found.find(|(turn, id, _)| *turn == wanted && id.kind == kind && id.name.contains(part));
        let (_, _, version) = found.with_context(|| format!("no {kind} {part} was seen {wanted:?}"))?;
        Ok(*version)
    }

    /// What is there although it should not be.
    pub(crate) fn left(&self, may_stay: impl Fn(&Id) -> bool) -> Option<String> {
        let left: Vec<String> = self
            .objects
            .iter()
            .filter(|(id, _)| !may_stay(id) && !id.is_kubernetes_own())
            .map(|(id, object)| format!("{id} {:?}", object.finalizers()))
            .collect();
        (!left.is_empty()).then(|| format!("still there: {}", left.join(", ")))
    }

    pub(crate) fn nothing_was_made_twice(&self) -> Result<()> {
        let mut births: BTreeMap<&Id, usize> = BTreeMap::new();
        for (_, id, _) in self.history.iter().filter(|(turn, _, _)| *turn == Turn::Born) {
            *births.entry(id).or_default() += 1;
        }
        match births.into_iter().find(|(_, times)| *times > 1) {
            Some((id, times)) => bail!("{id} was made {times} times"),
            None => Ok(()),
        }
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
    /// What the list that is being read contains, by trial.
    listed: HashSet<(String, Id)>,
}

impl Feed {
    fn take(&mut self, event: Event<DynamicObject>) {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(object) => {
                let id = Id::of(self.kind, &object);
                self.listed.insert((home(self.kind, &object), id));
                self.change(object, World::take);
            }
            Event::InitDone => self.lose_what_is_not_listed(),
            Event::Apply(object) => self.change(object, World::take),
            Event::Delete(object) => self.change(object, |world, id, object| world.lose(id, version(&object))),
        }
    }

    fn change(&self, object: DynamicObject, how: impl FnOnce(&mut World, Id, DynamicObject)) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let place = places.entry(home(self.kind, &object)).or_default();
        how(&mut place.world, Id::of(self.kind, &object), object);
        place.changes.send_modify(|count| *count += 1);
    }

    /// What went while the watch was broken is told by its absence alone.
    fn lose_what_is_not_listed(&self) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        for (trial, place) in places.iter_mut() {
            let known = place.world.objects.iter().filter(|(id, _)| id.kind == self.kind);
            let gone: Vec<(Id, u64)> = known
                .map(|(id, object)| (id.clone(), version(object)))
                .filter(|(id, _)| !self.listed.contains(&(trial.clone(), id.clone())))
                .collect();
            for (id, version) in gone {
                place.world.lose(id, version);
            }
            place.changes.send_modify(|count| *count += 1);
        }
    }
}

/// The trial to which an object is counted. All its names begin alike; that of a Workspace's apply does.
fn home(kind: &str, object: &DynamicObject) -> String {
    let within = match kind {
        "Tenant" => object.name_any(),
        "Namespace" => object.labels().get(label::TENANT).cloned().unwrap_or_default(),
        _ => {
            let of_apply = || object.annotations().get(annotation::WTA_NAMESPACE).cloned();
            object.namespace().or_else(of_apply).unwrap_or_default()
        }
    };
    // `trial-`, and what the API server adds.
    let mut dashes = within.match_indices('-');
    dashes.nth(1).map_or(&*within, |(end, _)| &within[..end]).to_owned()
}
