//! The write protocol: every write of every controller goes through a [`Writer`].
//!
//! One question stands behind every write: *is the object still the one that was planned from?* Controllers plan from
//! caches, which are always a little old; objects are changed, deleted and made anew meanwhile, by people, by Cluster
//! API, by the Terraform provider and by the other controllers. So every write to an existing object names what it was
//! planned from, the API server compares, and "lost the race" is one kind of error
//! ([`Class::Conflict`](crate::error::Class)): wait for the watch, plan again. Nothing here retries.
//!
//! | write | bound to | call |
//! |---|---|---|
//! | status, owned spec fields | UID and resourceVersion | [`Objects::apply_status`], [`Objects::apply_spec`] |
//! | finalizers, with annotations | UID and the list itself | [`Objects::add_finalizer`], [`Objects::remove_finalizers`], [`Objects::release`] |
//! | new children | the name being free, or the child being ours | [`Objects::create`], [`Objects::create_identified`] |
//! | changed children | UID and resourceVersion | [`Objects::change`] |
//! | a child's lost ownerReference or label | UID and those values | [`Objects::adopt`] |
//! | deletion | UID, or UID and resourceVersion | [`Objects::delete`], [`Objects::delete_unchanged`] |
//! | anything else | UID and the values that the [`Edit`] names, else the resourceVersion | [`Objects::patch`], [`Objects::patch_status`] |
//!
//! An irreversible step (dropping a finalizer, "the Workspace is gone") needs more than a cache, in which absence may only
//! mean "not seen yet": [`Objects::live`], [`Objects::live_list`] and [`Objects::is_gone`] ask the API server itself.
//!
//! ```no_run
//! # use capt_api::names::Manager;
//! # use capt_runtime::apply::{Planned, Writer};
//! # use k8s_openapi::api::core::v1::ConfigMap;
//! # async fn example(client: kube::Client, seen: ConfigMap) -> Result<(), capt_runtime::error::Failure> {
//! let config_maps = Writer::new(client, Manager::Workspace).of::<ConfigMap>();
//! let input = Planned::new(&seen)?;
//! config_maps.add_finalizer(&input, "capt.dev/example", &Default::default(), "Terraform reads it").await?;
//! # Ok(())
//! # }
//! ```

mod audit;
mod children;
mod contains;
mod edit;
mod fields;
mod finalizers;
mod owned;
mod refusals;
mod transport;

use std::fmt;
use std::sync::Arc;

use capt_api::names::Manager;
use kube::{Client, Resource};

pub use children::{Bond, Change, Compare, Created, Deleted, Ours, Parent, controller, is_ours};
pub use contains::contains;
pub use edit::Edit;
pub use finalizers::FinalizerAdded;

use refusals::Refusals;

use crate::cache::{Awaits, Cache};
use crate::error::{Failure, ObjectRef};

/// Writes in the name of one controller.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    manager: Manager,
    refusals: Refusals,
}

impl Writer {
    pub fn new(client: Client, manager: Manager) -> Self {
        Self {
            client,
            manager,
            refusals: Refusals::default(),
        }
    }

    /// Objects of a kind that is known at compile time.
    pub fn of<K>(&self) -> Objects<K>
    where
        K: Resource,
        K::DynamicType: Default,
    {
        self.of_dynamic(K::DynamicType::default())
    }

    /// Objects of a kind that is chosen at run time, such as the Workspaces of either group.
    pub fn of_dynamic<K: Resource>(&self, kind: K::DynamicType) -> Objects<K> {
        Objects {
            client: self.client.clone(),
            manager: self.manager,
            refusals: self.refusals.clone(),
            kind: Arc::new(kind),
            shown_in: None,
        }
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("manager", &self.manager)
            .finish_non_exhaustive()
    }
}

/// The objects of one kind, as one controller writes them.
///
/// `K` may be metadata only (`PartialObjectMeta<Secret>`), for finalizers on objects whose contents are none of our
/// business. Whether an object is namespaced is read from the object.
pub struct Objects<K: Resource> {
    client: Client,
    manager: Manager,
    refusals: Refusals,
    kind: Arc<K::DynamicType>,
    shown_in: Option<Arc<dyn Awaits>>,
}

impl<K: Resource> Clone for Objects<K> {
    fn clone(&self) -> Self {
        Self {
            client: self.client.clone(),
            manager: self.manager,
            refusals: self.refusals.clone(),
            kind: Arc::clone(&self.kind),
            shown_in: self.shown_in.clone(),
        }
    }
}

impl<K: Resource> fmt::Debug for Objects<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Objects")
            .field("manager", &self.manager)
            .field("kind", &K::kind(&self.kind))
            .finish_non_exhaustive()
    }
}

impl<K: Resource> Objects<K> {
    /// Plans are made from this cache: after a write, [`Cache::is_behind`] tells until the watch has brought it.
    #[must_use]
    pub fn shown_in<C: Resource + Send + Sync + 'static>(mut self, cache: &Cache<C>) -> Self {
        self.shown_in = Some(Arc::new(cache.clone()));
        self
    }

    fn object_ref(&self, namespace: Option<&str>, name: &str) -> ObjectRef {
        ObjectRef::new(&K::kind(&self.kind), namespace, name)
    }

    fn planned_ref(&self, object: &Planned<'_, K>) -> ObjectRef {
        self.object_ref(object.namespace, object.name)
    }
}

/// An object as the plan saw it, with the identity and version that a write will name.
///
/// It can only be made from an object that came from the API server: without a UID and a resourceVersion a write would
/// go to whatever has this name now.
pub struct Planned<'a, K> {
    object: &'a K,
    namespace: Option<&'a str>,
    name: &'a str,
    uid: &'a str,
    resource_version: &'a str,
}

impl<K> Clone for Planned<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Planned<'_, K> {}

impl<'a, K: Resource> Planned<'a, K> {
    pub fn new(object: &'a K) -> Result<Self, Failure> {
        let meta = object.meta();
        let present = |text: &'a Option<String>| text.as_deref().filter(|text| !text.is_empty());
        match (present(&meta.name), present(&meta.uid), present(&meta.resource_version)) {
            (Some(name), Some(uid), Some(resource_version)) => Ok(Self {
                object,
                namespace: present(&meta.namespace),
                name,
                uid,
                resource_version,
            }),
            (name, ..) => Err(Failure::Misuse {
                object: ObjectRef::new("object", present(&meta.namespace), name.unwrap_or_default()),
                what: "it lacks a name, a UID or a resourceVersion, so it was not read from the API server".into(),
            }),
        }
    }

    pub fn object(&self) -> &'a K {
        self.object
    }

    pub fn uid(&self) -> &'a str {
        self.uid
    }

    pub fn is_being_deleted(&self) -> bool {
        self.object.meta().deletion_timestamp.is_some()
    }
}

/// Coordinates only: the object may be a Secret.
impl<K> fmt::Debug for Planned<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Planned")
            .field("namespace", &self.namespace)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// What became of a write.
#[derive(Clone)]
#[must_use]
pub enum Outcome<K> {
    /// Everything was already so.
    Unchanged,
    /// The object as the server now has it; further writes of the same pass are planned from this one.
    Written(K),
}

impl<K> Outcome<K> {
    pub fn is_unchanged(&self) -> bool {
        matches!(self, Self::Unchanged)
    }

    pub fn written(self) -> Option<K> {
        match self {
            Self::Unchanged => None,
            Self::Written(object) => Some(object),
        }
    }

    fn of(object: K) -> Self {
        Self::Written(object)
    }
}

/// The variant only: the object may be a Secret.
impl<K> fmt::Debug for Outcome<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unchanged => "Unchanged",
            Self::Written(_) => "Written",
        })
    }
}
