//! What the API server last told us about the objects of one kind, with indexes that change together with it.
//!
//! A [`Feed`] turns the events of a watch into the store's next state and into [`Change`]s. It also compares a relist
//! with what was there before: objects that vanished while the watch was down are told like any other deletion. Objects
//! that do not decode are kept as "unreadable", so that no reader takes them for absent.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, runtime::watcher::Event};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;
use tokio::time::Instant;

use crate::key::Key;

/// A read-only view of the store. Cloning it is cheap.
pub struct Cache<K> {
    store: Arc<RwLock<Store<K>>>,
}

/// What a cache knows about a key.
#[derive(Debug)]
pub enum Found<K> {
    Absent,
    /// It exists, but this version cannot decode it; the text says why.
    Unreadable(Arc<str>),
    Present(Arc<K>),
}

/// One object's step from one state to the next. An object that became unreadable has no `new`.
pub struct Change<K> {
    pub key: Key,
    pub old: Option<Arc<K>>,
    pub new: Option<Arc<K>>,
}

struct Store<K> {
    entries: HashMap<Key, Entry<K>>,
    /// How many of the entries are unreadable.
    unreadable: usize,
    indexers: Vec<Box<dyn Indexer<K>>>,
    /// Versions that we wrote and the watch has not brought yet, and until when they are waited for.
    awaited: HashMap<Key, (u64, Instant)>,
}

/// So long a write of ours is waited for. A watch that is later than this is broken, and its own business.
const PATIENCE: Duration = Duration::from_secs(5);

enum Entry<K> {
    Present(Arc<K>),
    Unreadable(Box<Unreadable>),
}

/// An object that did not decode: enough of it to know which one it is.
#[derive(Clone)]
pub(crate) struct Unreadable {
    metadata: ObjectMeta,
    why: Arc<str>,
}

impl<K: Resource> Entry<K> {
    fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::Present(object) => object.meta(),
            Self::Unreadable(object) => &object.metadata,
        }
    }

    fn present(&self) -> Option<&Arc<K>> {
        match self {
            Self::Present(object) => Some(object),
            Self::Unreadable(_) => None,
        }
    }

    /// The version as a number: the API server promises that those of one kind can be compared.
    fn version(&self) -> Option<u64> {
        self.metadata().resource_version.as_deref()?.parse().ok()
    }

    /// Whether both are the same object at the same version.
    fn same_version(&self, other: &Self) -> bool {
        let (a, b) = (self.metadata(), other.metadata());
        a.resource_version.is_some() && a.resource_version == b.resource_version && a.uid == b.uid
    }
}

impl<K: Resource> Cache<K> {
    pub(crate) fn new() -> Self {
        Self {
            store: Arc::new(RwLock::new(Store {
                entries: HashMap::new(),
                unreadable: 0,
                indexers: Vec::new(),
                awaited: HashMap::new(),
            })),
        }
    }

    /// Whether a write of ours has not arrived here yet. What is planned from before that write would be refused, or
    /// would do the same thing twice.
    pub fn is_behind(&self, key: &Key) -> bool {
        let awaited = read(&self.store, |store| store.awaited.get(key).copied());
        awaited.is_some_and(|(_, until)| Instant::now() < until)
    }

    /// The object, if it is there and readable. Where an unreadable one must not look like an absent one, use
    /// [`Cache::find`].
    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        read(&self.store, |store| store.entries.get(key)?.present().cloned())
    }

    pub fn find(&self, key: &Key) -> Found<K> {
        read(&self.store, |store| match store.entries.get(key) {
            None => Found::Absent,
            Some(Entry::Unreadable(object)) => Found::Unreadable(object.why.clone()),
            Some(Entry::Present(object)) => Found::Present(object.clone()),
        })
    }

    /// Every readable object, in no particular order. Copies one pointer per object: meant for start-up, resync and
    /// tests, never for the handling of an event (that is what indexes are for).
    pub fn list(&self) -> Vec<Arc<K>> {
        read(&self.store, |store| {
            store.entries.values().filter_map(Entry::present).cloned().collect()
        })
    }

    /// The keys of all objects, readable or not.
    pub fn keys(&self) -> Vec<Key> {
        read(&self.store, |store| store.entries.keys().cloned().collect())
    }
}

/// A cache in which the writes of this process are waited for.
pub(crate) trait Awaits: Send + Sync {
    /// Tells that the API server has this object at this version.
    fn wrote(&self, key: Key, version: u64);
}

impl<K: Resource + Send + Sync + 'static> Awaits for Cache<K> {
    fn wrote(&self, key: Key, version: u64) {
        let now = Instant::now();
        write(&self.store, |store| {
            if store
                .entries
                .get(&key)
                .is_some_and(|entry| entry.version() >= Some(version))
            {
                return;
            }
            // What the watch never brings (it selects by label, or the object went at once) must not pile up.
            store.awaited.retain(|_, (_, until)| now < *until);
            store.awaited.insert(key, (version, now + PATIENCE));
        });
    }
}

impl<K: Resource + Send + Sync + 'static> Cache<K> {
    /// Adds an index: `values` says under which values an object is found. Must be called before the watch starts.
    pub(crate) fn index<V, F>(&self, values: F) -> Index<K, V>
    where
        V: Clone + Eq + Hash + Send + 'static,
        F: Fn(&K) -> Vec<V> + Send + Sync + 'static,
    {
        let table = Arc::new(Mutex::new(HashMap::new()));
        write(&self.store, |store| {
            store.indexers.push(Box::new(Projection {
                values,
                table: table.clone(),
            }));
        });
        Index {
            cache: self.clone(),
            table,
        }
    }
}

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
        }
    }
}

impl<K> fmt::Debug for Cache<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Contents may be secret.
        f.debug_struct("Cache").finish_non_exhaustive()
    }
}

impl<K> fmt::Debug for Change<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Change")
            .field("key", &self.key)
            .field("old", &self.old.is_some())
            .field("new", &self.new.is_some())
            .finish()
    }
}

type Table<V> = Arc<Mutex<HashMap<V, BTreeSet<Key>>>>;

/// Finds objects by a value that is computed from them.
///
/// The table is only touched while the store's lock is held, so a reader always sees both at the same state.
pub struct Index<K, V> {
    cache: Cache<K>,
    table: Table<V>,
}

impl<K: Resource, V: Eq + Hash> Index<K, V> {
    /// The objects found under `value`, ordered by key.
    pub fn get(&self, value: &V) -> Vec<Arc<K>> {
        read(&self.cache.store, |store| {
            let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
            table
                .get(value)
                .into_iter()
                .flatten()
                .filter_map(|key| store.entries.get(key)?.present().cloned())
                .collect()
        })
    }

    /// The keys of the objects found under `value`, in order.
    pub fn keys(&self, value: &V) -> Vec<Key> {
        read(&self.cache.store, |_| {
            let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
            table.get(value).into_iter().flatten().cloned().collect()
        })
    }
}

impl<K, V> Clone for Index<K, V> {
    fn clone(&self) -> Self {
        Self {
            cache: self.cache.clone(),
            table: self.table.clone(),
        }
    }
}

impl<K, V> fmt::Debug for Index<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index").finish_non_exhaustive()
    }
}

/// An index as the store sees it, whatever its value type.
trait Indexer<K>: Send + Sync {
    fn step(&self, key: &Key, old: Option<&K>, new: Option<&K>);
}

struct Projection<V, F> {
    values: F,
    table: Table<V>,
}

impl<K, V, F> Indexer<K> for Projection<V, F>
where
    V: Clone + Eq + Hash + Send,
    F: Fn(&K) -> Vec<V> + Send + Sync,
{
    fn step(&self, key: &Key, old: Option<&K>, new: Option<&K>) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        for value in old.map(&self.values).unwrap_or_default() {
            if let Some(keys) = table.get_mut(&value) {
                keys.remove(key);
                if keys.is_empty() {
                    table.remove(&value);
                }
            }
        }
        for value in new.map(&self.values).unwrap_or_default() {
            table.entry(value).or_default().insert(key.clone());
        }
    }
}

fn read<K, T>(store: &RwLock<Store<K>>, with: impl FnOnce(&Store<K>) -> T) -> T {
    with(&store.read().unwrap_or_else(PoisonError::into_inner))
}

fn write<K, T>(store: &RwLock<Store<K>>, with: impl FnOnce(&mut Store<K>) -> T) -> T {
    with(&mut store.write().unwrap_or_else(PoisonError::into_inner))
}

impl<K: Resource> Store<K> {
    /// Puts one entry in place (or takes it out) with its index values, and tells what changed.
    fn step(&mut self, key: Key, new: Option<Entry<K>>) -> Change<K> {
        let new_object = new.as_ref().and_then(Entry::present).cloned();
        let shown = new.as_ref().map_or(Some(u64::MAX), Entry::version);
        if self
            .awaited
            .get(&key)
            .is_some_and(|(version, _)| shown >= Some(*version))
        {
            self.awaited.remove(&key);
        }
        self.unreadable += usize::from(matches!(new, Some(Entry::Unreadable(_))));
        let old_entry = match new {
            Some(entry) => self.entries.insert(key.clone(), entry),
            None => self.entries.remove(&key),
        };
        self.unreadable -= usize::from(matches!(old_entry, Some(Entry::Unreadable(_))));
        let old_object = old_entry.as_ref().and_then(Entry::present).cloned();
        for indexer in &self.indexers {
            indexer.step(&key, old_object.as_deref(), new_object.as_deref());
        }
        Change {
            key,
            old: old_object,
            new: new_object,
        }
    }
}

/// The writing end of a cache: takes the events of a watch, in order.
pub(crate) struct Feed<K> {
    cache: Cache<K>,
    prune: Option<Prune<K>>,
    /// Set while a list is coming in; the store keeps its old state until it is complete.
    incoming: Option<HashMap<Key, Entry<K>>>,
    /// Text in decoding errors may quote the object.
    confidential: bool,
}

pub(crate) type Prune<K> = Box<dyn Fn(&mut K) + Send + Sync>;

impl<K: Resource> Feed<K> {
    pub(crate) fn new(cache: Cache<K>, prune: Option<Prune<K>>, confidential: bool) -> Self {
        Self {
            cache,
            prune,
            incoming: None,
            confidential,
        }
    }

    /// Takes one event, and returns what changed in the store. A relist yields one batch, at its end.
    pub(crate) fn take(&mut self, event: Event<Guarded<K>>) -> Vec<Change<K>> {
        match event {
            Event::Init => {
                self.incoming = Some(HashMap::new());
                Vec::new()
            }
            Event::InitApply(object) => {
                let (key, entry) = self.entry(object);
                // An object that has not changed keeps its place in memory: a relist then costs the difference, not
                // a second copy of everything.
                let kept = read(&self.cache.store, |store| match store.entries.get(&key) {
                    Some(Entry::Present(known)) if entry.same_version(&Entry::Present(known.clone())) => {
                        Some(Entry::Present(known.clone()))
                    }
                    _ => None,
                });
                if let Some(incoming) = &mut self.incoming {
                    incoming.insert(key, kept.unwrap_or(entry));
                }
                Vec::new()
            }
            Event::InitDone => self.incoming.take().map(|all| self.replace(all)).unwrap_or_default(),
            Event::Apply(object) => {
                let (key, entry) = self.entry(object);
                vec![write(&self.cache.store, |store| store.step(key, Some(entry)))]
            }
            Event::Delete(object) => {
                let key = Key::of(&object);
                vec![write(&self.cache.store, |store| store.step(key, None))]
            }
        }
    }

    /// Everything in the store, told as if it had just appeared.
    pub(crate) fn everything(&self) -> Vec<Change<K>> {
        read(&self.cache.store, |store| {
            let appeared = |(key, entry): (&Key, &Entry<K>)| Change {
                key: key.clone(),
                old: None,
                new: entry.present().cloned(),
            };
            store.entries.iter().map(appeared).collect()
        })
    }

    /// Objects in the store, and how many of them are unreadable.
    pub(crate) fn census(&self) -> (usize, usize) {
        read(&self.cache.store, |store| (store.entries.len(), store.unreadable))
    }

    fn replace(&self, mut all: HashMap<Key, Entry<K>>) -> Vec<Change<K>> {
        write(&self.cache.store, |store| {
            let vanished: Vec<Key> = store
                .entries
                .keys()
                .filter(|key| !all.contains_key(*key))
                .cloned()
                .collect();
            all.retain(|key, entry| !store.entries.get(key).is_some_and(|known| known.same_version(entry)));
            let gone = vanished.into_iter().map(|key| (key, None));
            let come = all.into_iter().map(|(key, entry)| (key, Some(entry)));
            gone.chain(come).map(|(key, entry)| store.step(key, entry)).collect()
        })
    }

    fn entry(&self, object: Guarded<K>) -> (Key, Entry<K>) {
        let key = Key::of(&object);
        let entry = match object.0 {
            Ok(mut object) => {
                if let Some(prune) = &self.prune {
                    prune(&mut object);
                }
                Entry::Present(Arc::new(object))
            }
            Err(mut unreadable) => {
                if self.confidential {
                    unreadable.why = "it does not have the expected shape".into();
                }
                tracing::warn!(object = %key, why = %unreadable.why, "an object cannot be decoded and is left alone");
                Entry::Unreadable(Box::new(unreadable))
            }
        };
        (key, entry)
    }
}

/// An object as it comes off the wire: decoded, or at least identified. One bad object would otherwise fail the list
/// that contains it, and with it the watch of all the good ones.
///
/// Also drops, before anything is decoded, what no controller reads and what costs most memory: `managedFields`, and
/// the copy of the whole object (Secrets included) that `kubectl apply` leaves in an annotation.
#[derive(Clone)]
pub(crate) struct Guarded<K>(pub(crate) Result<K, Unreadable>);

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

impl<'de, K: DeserializeOwned> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut value = Value::deserialize(deserializer)?;
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
            if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
                // Emptied, not taken away: a JSON patch has to know whether the object has any annotations at all.
                if let Some(copy) = annotations.get_mut(LAST_APPLIED) {
                    *copy = Value::String(String::new());
                }
            }
        }
        match K::deserialize(&value) {
            Ok(object) => Ok(Self(Ok(object))),
            Err(error) => {
                let metadata = value.get("metadata").unwrap_or(&Value::Null);
                let metadata = ObjectMeta::deserialize(metadata).map_err(serde::de::Error::custom)?;
                let why: String = error.to_string().chars().take(MAX_REASON).collect();
                Ok(Self(Err(Unreadable {
                    metadata,
                    why: why.into(),
                })))
            }
        }
    }
}

/// A decoding error may quote a value of any length.
const MAX_REASON: usize = 256;

impl<K: Resource> Resource for Guarded<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &K::DynamicType) -> std::borrow::Cow<'_, str> {
        K::kind(dt)
    }
    fn group(dt: &K::DynamicType) -> std::borrow::Cow<'_, str> {
        K::group(dt)
    }
    fn version(dt: &K::DynamicType) -> std::borrow::Cow<'_, str> {
        K::version(dt)
    }
    fn plural(dt: &K::DynamicType) -> std::borrow::Cow<'_, str> {
        K::plural(dt)
    }
    fn metadata_api() -> bool {
        // kube's own guard forgets this one, and would fetch whole Secrets where only metadata was asked for.
        K::metadata_api()
    }
    fn meta(&self) -> &ObjectMeta {
        self.0.as_ref().map_or_else(|bad| &bad.metadata, K::meta)
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.as_mut().map_or_else(|bad| &mut bad.metadata, K::meta_mut)
    }
}

impl<K> fmt::Debug for Guarded<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Contents may be secret.
        f.debug_struct("Guarded").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    fn guarded(name: &str, version: u32, template: &str) -> Guarded<ConfigMap> {
        serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": name, "uid": format!("uid-{name}"), "resourceVersion": version.to_string()},
            "data": {"template": template},
        }))
        .unwrap()
    }

    fn broken(name: &str, version: u32) -> Guarded<ConfigMap> {
        serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": name, "uid": format!("uid-{name}"), "resourceVersion": version.to_string()},
            "data": "not a map",
        }))
        .unwrap()
    }

    fn key(name: &str) -> Key {
        Key::namespaced("ns", name)
    }

    struct Bench {
        cache: Cache<ConfigMap>,
        by_template: Index<ConfigMap, String>,
        feed: Feed<ConfigMap>,
    }

    impl Bench {
        fn new() -> Self {
            let cache = Cache::new();
            let by_template =
                cache.index(|map: &ConfigMap| map.data.iter().flat_map(|d| d.get("template").cloned()).collect());
            let feed = Feed::new(cache.clone(), None, false);
            Self {
                cache,
                by_template,
                feed,
            }
        }

        fn list(&mut self, objects: Vec<Guarded<ConfigMap>>) -> Vec<Change<ConfigMap>> {
            let mut changes = self.feed.take(Event::Init);
            for object in objects {
                changes.extend(self.feed.take(Event::InitApply(object)));
            }
            assert!(changes.is_empty(), "nothing is told before the list is complete");
            self.feed.take(Event::InitDone)
        }

        fn names(&self, template: &str) -> Vec<String> {
            let keys = self.by_template.keys(&template.to_string());
            keys.iter().map(|key| key.name().to_string()).collect()
        }
    }

    fn summary(changes: &[Change<ConfigMap>]) -> Vec<(String, bool, bool)> {
        let mut all: Vec<_> = changes
            .iter()
            .map(|c| (c.key.name().to_string(), c.old.is_some(), c.new.is_some()))
            .collect();
        all.sort();
        all
    }

    #[test]
    fn a_relist_tells_what_appeared_changed_and_vanished_and_nothing_else() {
        let mut bench = Bench::new();
        let first = bench.list(vec![
            guarded("same", 1, "a"),
            guarded("changed", 2, "a"),
            guarded("gone", 3, "a"),
        ]);
        assert_eq!(first.len(), 3);

        let second = bench.list(vec![
            guarded("same", 1, "a"),
            guarded("changed", 9, "b"),
            guarded("new", 8, "b"),
        ]);
        assert_eq!(
            summary(&second),
            [
                ("changed".into(), true, true),
                ("gone".into(), true, false),
                ("new".into(), false, true)
            ]
        );
        assert!(bench.cache.get(&key("gone")).is_none());
        assert_eq!(bench.names("a"), ["same"]);
        assert_eq!(bench.names("b"), ["changed", "new"]);
    }

    #[test]
    fn an_object_recreated_during_an_outage_is_a_change_even_at_an_equal_version() {
        let mut bench = Bench::new();
        bench.list(vec![guarded("a", 1, "t")]);
        let mut other = guarded("a", 1, "t");
        other.meta_mut().uid = Some("another".into());
        assert_eq!(summary(&bench.list(vec![other])), [("a".into(), true, true)]);
    }

    #[test]
    fn the_old_state_stays_readable_while_a_list_comes_in() {
        let mut bench = Bench::new();
        bench.list(vec![guarded("a", 1, "t")]);
        bench.feed.take(Event::Init);
        bench.feed.take(Event::InitApply(guarded("b", 2, "t")));
        assert!(bench.cache.get(&key("a")).is_some());
        assert!(bench.cache.get(&key("b")).is_none());
        // The watch broke off and starts over: what came so far does not count.
        bench.feed.take(Event::Init);
        assert_eq!(summary(&bench.feed.take(Event::InitDone)), [("a".into(), true, false)]);
        assert!(bench.cache.keys().is_empty());
    }

    #[test]
    fn an_unchanged_object_is_not_stored_twice() {
        let mut bench = Bench::new();
        bench.list(vec![guarded("a", 1, "t")]);
        let before = bench.cache.get(&key("a")).unwrap();
        bench.list(vec![guarded("a", 1, "t")]);
        assert!(Arc::ptr_eq(&before, &bench.cache.get(&key("a")).unwrap()));
    }

    #[test]
    fn an_index_follows_every_change() {
        let mut bench = Bench::new();
        bench.feed.take(Event::Apply(guarded("x", 1, "a")));
        bench.feed.take(Event::Apply(guarded("y", 2, "a")));
        assert_eq!(bench.names("a"), ["x", "y"]);
        bench.feed.take(Event::Apply(guarded("x", 3, "b")));
        assert_eq!(bench.names("a"), ["y"]);
        assert_eq!(bench.by_template.get(&"b".to_string()).len(), 1);
        bench.feed.take(Event::Delete(guarded("y", 4, "a")));
        assert!(bench.names("a").is_empty());
        assert_eq!(
            bench.by_template.table.lock().unwrap().len(),
            1,
            "empty values leave the table"
        );
    }

    #[test]
    fn an_object_that_does_not_decode_is_neither_present_nor_absent() {
        let mut bench = Bench::new();
        let changes = bench.list(vec![guarded("good", 1, "t"), broken("bad", 2)]);
        assert_eq!(
            summary(&changes),
            [("bad".into(), false, false), ("good".into(), false, true)]
        );
        assert!(bench.cache.get(&key("bad")).is_none());
        assert!(matches!(bench.cache.find(&key("bad")), Found::Unreadable(why) if why.contains("not a map")));
        assert!(matches!(bench.cache.find(&key("none")), Found::Absent));
        assert_eq!(bench.feed.census(), (2, 1));

        // One that was good and is not any more leaves its indexes: what it said no longer holds.
        assert_eq!(
            summary(&bench.feed.take(Event::Apply(broken("good", 3)))),
            [("good".into(), true, false)]
        );
        assert!(bench.names("t").is_empty());
        // And comes back.
        bench.feed.take(Event::Apply(guarded("good", 4, "t")));
        assert_eq!(bench.names("t"), ["good"]);
        assert_eq!(bench.feed.census(), (2, 1));
    }

    #[test]
    fn confidential_kinds_do_not_quote_their_contents() {
        let cache = Cache::new();
        let mut feed: Feed<ConfigMap> = Feed::new(cache.clone(), None, true);
        feed.take(Event::Apply(broken("bad", 1)));
        assert!(matches!(cache.find(&key("bad")), Found::Unreadable(why) if !why.contains("not a map")));
    }

    #[test]
    fn what_nobody_reads_is_dropped_before_decoding() {
        let object: Guarded<ConfigMap> = serde_json::from_value(json!({
            "metadata": {
                "name": "a",
                "managedFields": [{"manager": "m", "fieldsV1": {"f:data": {}}}],
                "annotations": {LAST_APPLIED: "{}", "mine": "1"},
            },
        }))
        .unwrap();
        let object = object.0.ok().unwrap();
        assert!(object.metadata.managed_fields.is_none());
        let annotations = object.metadata.annotations.unwrap();
        assert_eq!(
            annotations[LAST_APPLIED], "",
            "its place stays: a patch must know that there are annotations"
        );
        assert_eq!(annotations["mine"], "1");
    }

    #[test]
    fn pruning_happens_before_storing() {
        let cache = Cache::new();
        let mut feed = Feed::new(
            cache.clone(),
            Some(Box::new(|map: &mut ConfigMap| map.data = None)),
            false,
        );
        feed.take(Event::Apply(guarded("a", 1, "t")));
        assert!(cache.get(&key("a")).unwrap().data.is_none());
    }

    #[test]
    fn metadata_only_kinds_stay_metadata_only() {
        use k8s_openapi::api::core::v1::Secret;
        use kube::api::PartialObjectMeta;
        assert!(Guarded::<PartialObjectMeta<Secret>>::metadata_api());
        assert!(!Guarded::<Secret>::metadata_api());
    }

    #[test]
    fn a_write_is_awaited_until_the_watch_brings_it_or_something_newer() {
        let mut bench = Bench::new();
        bench.list(vec![guarded("a", 1, "x"), guarded("b", 1, "x")]);
        bench.cache.wrote(key("a"), 5);
        assert!(bench.cache.is_behind(&key("a")) && !bench.cache.is_behind(&key("b")));
        bench.feed.take(Event::Apply(guarded("a", 4, "x")));
        assert!(bench.cache.is_behind(&key("a")), "an older version is on its way");
        bench.feed.take(Event::Apply(guarded("a", 5, "x")));
        assert!(!bench.cache.is_behind(&key("a")));

        bench.cache.wrote(key("a"), 5);
        assert!(
            !bench.cache.is_behind(&key("a")),
            "the watch was faster than the answer"
        );
        bench.cache.wrote(key("a"), 7);
        bench.feed.take(Event::Delete(guarded("a", 6, "x")));
        assert!(!bench.cache.is_behind(&key("a")), "nothing more is to come");
        bench.cache.wrote(key("new"), 8);
        assert!(bench.cache.is_behind(&key("new")), "what was created is not there yet");
        bench.list(vec![guarded("new", 9, "x")]);
        assert!(!bench.cache.is_behind(&key("new")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_is_late_does_not_hold_work_up_for_ever() {
        let bench = Bench::new();
        bench.cache.wrote(key("a"), 5);
        tokio::time::advance(PATIENCE).await;
        assert!(!bench.cache.is_behind(&key("a")));
        bench.cache.wrote(key("b"), 6);
        let waiting = read(&bench.cache.store, |store| store.awaited.len());
        assert_eq!(waiting, 1, "what never came is forgotten");
    }
}
