//! What is known about a control plane and its Secrets: from caches, and, where contents matter, from live reads.
//!
//! Secrets are watched as metadata only. Their contents are read by name, and only when a version has changed since they
//! were last judged ([`Memory`]): that is how changed data of a copy is noticed, and why a quiet cluster costs no reads.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use capt_api::conditions::endpoint::EndpointReady;
use capt_api::conditions::workspace_apply::Ready as ApplyReady;
use capt_api::conditions::{self, Reason, Status};
use capt_api::external::cluster::ClusterOwner;
use capt_api::names::{self, finalizer, label};
use capt_api::{CaptControlPlane, Cluster, WorkspaceTemplateApply};
use capt_runtime::apply::{Objects, Ours, Parent, Planned, is_ours};
use capt_runtime::cache::{Cache, Found, Index};
use capt_runtime::error::Failure;
use capt_runtime::key::Key;
use capt_runtime::scope::{has_paused_annotation, is_being_moved, is_externally_managed};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::PartialObjectMeta;
use kube::{Resource, ResourceExt};

use crate::copies::{PerCopy, Which, rival};
use crate::invalid::Invalid;
use crate::kubeconfig::{Rules, Trust};
use crate::material::{self, Difference, Material};

/// A Secret without its contents.
pub(crate) type SecretMeta = PartialObjectMeta<Secret>;

/// The caches that this controller reads.
#[derive(Debug)]
pub(crate) struct Caches {
    pub(crate) control_planes: Cache<CaptControlPlane>,
    pub(crate) clusters: Cache<Cluster>,
    pub(crate) applies: Cache<WorkspaceTemplateApply>,
    pub(crate) secrets: Cache<SecretMeta>,
    /// Secrets by the UID in the label that everything made by CAPT carries.
    pub(crate) secrets_by_owner: Index<SecretMeta, String>,
}

/// What the caches say about one control plane.
pub(crate) struct View {
    pub(crate) control_plane: Arc<CaptControlPlane>,
    /// Whatever has the name of the owner; whether it is the owner is judged later.
    pub(crate) cluster: Found<Cluster>,
    pub(crate) rival_exists: bool,
    pub(crate) apply: Found<WorkspaceTemplateApply>,
    pub(crate) source: Option<Arc<SecretMeta>>,
    pub(crate) copies: PerCopy<Option<Arc<SecretMeta>>>,
    /// Secrets that carry this control plane's label, whatever they are called.
    pub(crate) marked: Vec<Arc<SecretMeta>>,
}

impl Caches {
    /// Whether a write of ours, to the control plane or to one of its copies, has not arrived here yet.
    pub(crate) fn is_behind(&self, key: &Key) -> bool {
        let copies = self
            .control_planes
            .get(key)
            .map(|control_plane| copy_keys(&control_plane));
        self.control_planes.is_behind(key) || copies.iter().flatten().any(|copy| self.secrets.is_behind(copy))
    }

    pub(crate) fn view(&self, key: &Key) -> Option<View> {
        let control_plane = self.control_planes.get(key)?;
        let namespace = key.namespace().unwrap_or_default();
        let named = |name: &str| Key::namespaced(namespace, name);
        let cluster = cluster_name(&control_plane.metadata);
        let apply = self.applies.find(&named(&names::eks_apply_name(key.name())));
        let source = match &apply {
            Found::Present(apply) => match connection(apply) {
                Connection::Secret(name) => self.secrets.get(&named(name)),
                Connection::Unnamed | Connection::Elsewhere => None,
            },
            Found::Unreadable(_) | Found::Absent => None,
        };
        let copy = |which: Which| cluster.and_then(|cluster| self.secrets.get(&named(&which.name(cluster))));
        Some(View {
            cluster: cluster.map_or(Found::Absent, |cluster| self.clusters.find(&named(cluster))),
            rival_exists: cluster
                .and_then(rival)
                .is_some_and(|rival| !matches!(self.clusters.find(&named(&rival)), Found::Absent)),
            source,
            copies: PerCopy::build(copy),
            marked: self.secrets_by_owner.get(&control_plane.uid().unwrap_or_default()),
            apply,
            control_plane,
        })
    }
}

/// The name of the Cluster that the copies are named after. A control plane that lost its owner is still found by the
/// label that Cluster API gave it: its copies must be removable.
pub(crate) fn cluster_name(metadata: &ObjectMeta) -> Option<&str> {
    let labelled = || metadata.labels.as_ref()?.get(label::CLUSTER_NAME).map(String::as_str);
    ClusterOwner::of(metadata).map(|owner| owner.name).or_else(labelled)
}

/// The Secrets that are made for this control plane.
pub(crate) fn copy_keys(control_plane: &CaptControlPlane) -> Vec<Key> {
    let Some(cluster) = cluster_name(&control_plane.metadata) else {
        return Vec::new();
    };
    Which::ALL
        .map(|which| beside(control_plane, &which.name(cluster)))
        .into()
}

/// The key of something in the object's own namespace.
pub(crate) fn beside<K: Resource>(object: &K, name: &str) -> Key {
    Key::namespaced(object.meta().namespace.as_deref().unwrap_or_default(), name)
}

/// Where an apply says that Terraform's outputs go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Connection<'a> {
    Unnamed,
    /// In another namespace, where nothing is read.
    Elsewhere,
    Secret(&'a str),
}

pub(crate) fn connection(apply: &WorkspaceTemplateApply) -> Connection<'_> {
    match &apply.spec.write_connection_secret_to_ref {
        None => Connection::Unnamed,
        Some(reference) if reference.namespace.is_some() && reference.namespace != apply.metadata.namespace => {
            Connection::Elsewhere
        }
        Some(reference) => Connection::Secret(&reference.name),
    }
}

/// What is known, without any value of a Secret.
#[derive(Debug)]
pub(crate) struct Observed {
    pub(crate) control_plane: Arc<CaptControlPlane>,
    pub(crate) situation: Situation,
}

#[derive(Debug)]
pub(crate) enum Situation {
    /// Paused, moved away or managed by something else: nothing is read or written.
    LeftAlone,
    /// No Cluster owns it yet, or the owner is not the Cluster of that name.
    WithoutCluster,
    /// It is being deleted.
    Deleting {
        finalizer: bool,
        leftovers: Vec<Leftover>,
    },
    Living(Box<Living>),
}

/// A copy that still exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leftover {
    pub(crate) name: String,
    /// Since when it is being deleted: something holds it.
    pub(crate) leaving: Option<Timestamp>,
}

#[derive(Debug)]
pub(crate) struct Living {
    pub(crate) cluster: String,
    pub(crate) finalizer: bool,
    pub(crate) apply_name: String,
    pub(crate) apply: Apply,
    pub(crate) endpoint: Endpoint,
    pub(crate) source: Source,
    pub(crate) copies: PerCopy<CopyState>,
    /// When the first certificate expires without which the source, or a copy, cannot be used any more.
    pub(crate) expires: Option<Timestamp>,
    /// A Cluster whose own kubeconfig the alias would be.
    pub(crate) rival: Option<String>,
}

impl Living {
    /// Whether what Terraform made can be used: before that, the connection Secret is empty or half filled.
    pub(crate) fn gate_is_open(&self) -> bool {
        self.endpoint.ready && matches!(self.apply, Apply::Present { ready: true, .. })
    }

    /// Since when.
    pub(crate) fn gate_opened(&self) -> Option<Timestamp> {
        match &self.apply {
            Apply::Present { since, .. } => self.endpoint.since.max(*since),
            Apply::Absent | Apply::Unreadable | Apply::Foreign => None,
        }
    }
}

/// Whether the endpoint is published.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) ready: bool,
    /// Since when it is, or is not.
    pub(crate) since: Option<Timestamp>,
}

impl Endpoint {
    fn of(control_plane: &CaptControlPlane) -> Self {
        let status = control_plane.status.as_ref();
        let condition = status.and_then(|status| conditions::find(&status.conditions, EndpointReady::TYPE));
        condition.map_or_else(Self::default, |condition| Self {
            ready: condition.status == Status::True.as_str(),
            since: Some(condition.last_transition_time.0),
        })
    }
}

/// The EKS apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Apply {
    Absent,
    Unreadable,
    /// It has the name, and belongs to something else.
    Foreign,
    Present {
        ready: bool,
        /// Since when it is, or is not.
        since: Option<Timestamp>,
        revision: Option<String>,
    },
}

/// The connection Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// It is too early to look.
    NotYet,
    /// No apply of this control plane names one.
    Unnamed,
    Elsewhere,
    Absent(String),
    Empty(String),
    Invalid(String, Invalid),
    Valid(String),
}

/// A copy, as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CopyState {
    Absent,
    /// It has the name, and belongs to somebody else; the text says to whom.
    Foreign(String),
    /// Ours, and being deleted since then.
    Leaving(Timestamp),
    Ours {
        /// It can be used as it stands.
        good: bool,
        drift: Drift,
    },
}

impl CopyState {
    pub(crate) fn is_good(&self) -> bool {
        matches!(self, Self::Ours { good: true, .. })
    }

    pub(crate) fn is_ours(&self) -> bool {
        matches!(self, Self::Ours { .. } | Self::Leaving(_))
    }
}

/// How far a copy is from what it should be. Contents only count while there is a valid source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drift {
    None,
    /// A patch mends it.
    Repair,
    /// Only deleting it and making it anew does.
    Remake,
}

/// What the plan's step is carried out with. No `Debug`: it holds credentials.
#[derive(Default)]
pub(crate) struct Contents {
    pub(crate) material: Option<Material>,
    pub(crate) copies: PerCopy<Option<Secret>>,
    pub(crate) leftovers: Vec<SecretMeta>,
    /// What was judged, if it was judged in this pass.
    pub(crate) judged: Option<Inputs>,
}

/// Reads Secrets by name.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    pub(crate) secrets: Objects<Secret>,
    pub(crate) metadata: Objects<SecretMeta>,
    pub(crate) trust: Trust,
}

impl Reader {
    pub(crate) async fn observe(
        &self,
        view: &View,
        memory: &Memory,
        now: Timestamp,
    ) -> Result<(Observed, Contents), Failure> {
        let control_plane = &view.control_plane;
        let (situation, contents) = self.situation(view, memory, now).await?;
        Ok((
            Observed {
                control_plane: control_plane.clone(),
                situation,
            },
            contents,
        ))
    }

    async fn situation(&self, view: &View, memory: &Memory, now: Timestamp) -> Result<(Situation, Contents), Failure> {
        let meta = &view.control_plane.metadata;
        let without_contents = |situation| Ok((situation, Contents::default()));
        // Before anything else: an object that lives on in another management cluster is not ours to clean up after.
        if is_left_alone(meta) {
            return without_contents(Situation::LeftAlone);
        }
        let owned = match &view.cluster {
            // It may be paused; nobody knows.
            Found::Unreadable(_) => return without_contents(Situation::LeftAlone),
            Found::Present(cluster) if is_owner(meta, &cluster.metadata) => {
                if cluster.spec.paused == Some(true) {
                    return without_contents(Situation::LeftAlone);
                }
                true
            }
            Found::Present(_) | Found::Absent => false,
        };
        let finalizer = meta
            .finalizers
            .iter()
            .flatten()
            .any(|name| name == finalizer::CAPT_SECRETS);
        if meta.deletion_timestamp.is_some() {
            let leftovers = if finalizer {
                self.leftovers(view).await?
            } else {
                Vec::new()
            };
            let told = |secret: &SecretMeta| Leftover {
                name: secret.name_any(),
                leaving: secret.metadata.deletion_timestamp.as_ref().map(|time| time.0),
            };
            let situation = Situation::Deleting {
                finalizer,
                leftovers: leftovers.iter().map(told).collect(),
            };
            let contents = Contents {
                leftovers,
                ..Contents::default()
            };
            return Ok((situation, contents));
        }
        let Some(cluster) = ClusterOwner::of(meta).filter(|_| owned) else {
            return without_contents(Situation::WithoutCluster);
        };
        self.living(view, cluster.name, finalizer, memory, now).await
    }

    /// Our copies that still exist. The finalizer may go when there are none, so an absence in the cache, which may only
    /// mean "not seen yet", is followed by a live read.
    async fn leftovers(&self, view: &View) -> Result<Vec<SecretMeta>, Failure> {
        let named = view.copies.iter().filter_map(|(_, copy)| copy.as_ref());
        let cached = view.marked.iter().chain(named).map(|secret| secret.as_ref().clone());
        let found = ours(cached, &view.control_plane.metadata);
        if found.is_empty() {
            return self.live_leftovers(&view.control_plane.metadata).await;
        }
        Ok(found)
    }

    /// Our copies that the API server has.
    pub(crate) async fn live_leftovers(&self, control_plane: &ObjectMeta) -> Result<Vec<SecretMeta>, Failure> {
        let namespace = control_plane.namespace.as_deref();
        let uid = control_plane.uid.as_deref().unwrap_or_default();
        let selector = format!("{}={uid}", label::OWNER_UID);
        let mut live = self.metadata.live_list(namespace, Some(&selector)).await?;
        // By name too: somebody may have taken the label away.
        for name in cluster_name(control_plane)
            .iter()
            .flat_map(|cluster| Which::ALL.map(|which| which.name(cluster)))
        {
            live.extend(self.metadata.live(namespace, &name).await?);
        }
        Ok(ours(live, control_plane))
    }

    async fn living(
        &self,
        view: &View,
        cluster: &str,
        finalizer: bool,
        memory: &Memory,
        now: Timestamp,
    ) -> Result<(Situation, Contents), Failure> {
        let control_plane = &view.control_plane;
        let meta = &control_plane.metadata;
        let uid = meta.uid.as_deref().unwrap_or_default();
        let status = control_plane.status.as_ref();
        let apply = match &view.apply {
            Found::Absent => Apply::Absent,
            Found::Unreadable(_) => Apply::Unreadable,
            Found::Present(apply) if !is_ours(&apply.metadata, uid) => Apply::Foreign,
            Found::Present(apply) => Apply::Present {
                ready: apply.is_ready(),
                since: apply.status.as_ref().and_then(|status| {
                    conditions::find(&status.conditions, ApplyReady::TYPE)
                        .map(|condition| condition.last_transition_time.0)
                }),
                revision: apply
                    .status
                    .as_ref()
                    .and_then(|status| status.last_applied_revision.clone()),
            },
        };
        let mut living = Living {
            cluster: cluster.to_owned(),
            finalizer,
            apply_name: names::eks_apply_name(&control_plane.name_any()),
            endpoint: Endpoint::of(control_plane),
            apply,
            source: Source::NotYet,
            copies: PerCopy::build(|_| CopyState::Absent),
            expires: None,
            rival: rival(cluster).filter(|_| view.rival_exists),
        };
        // Once through the gate, the source is followed for good: an upgrade, during which the apply is not ready, must
        // not keep a lost copy from being repaired.
        let any_ours = view
            .copies
            .iter()
            .any(|(_, copy)| copy.as_ref().is_some_and(|copy| is_ours(&copy.metadata, uid)));
        let look = living.gate_is_open() || any_ours || status.is_some_and(|status| status.secrets_ready == Some(true));
        let named = match (&view.apply, &living.apply) {
            (Found::Present(apply), Apply::Present { .. }) => connection(apply),
            _ => Connection::Unnamed,
        };
        let wish = Wish {
            parent: Parent::of(&Planned::new(control_plane.as_ref())?),
            marks: Marks::of(meta, cluster),
            rules: Rules { trust: self.trust, now },
        };
        let inputs = Inputs {
            look,
            source: match named {
                Connection::Secret(name) => Some((name.to_owned(), view.source.as_deref().and_then(Version::of))),
                Connection::Unnamed | Connection::Elsewhere => None,
            },
            copies: PerCopy::build(|which| view.copies.of(which).as_deref().and_then(Version::of)),
            marks: wish.marks.clone(),
            rival: view.rival_exists,
        };
        let key = Key::of(control_plane.as_ref());
        if let Some(judged) = memory.recall(&key, uid, &inputs, now) {
            (living.source, living.copies, living.expires) = (judged.source, judged.copies, judged.expires);
            return Ok((Situation::Living(living.into()), Contents::default()));
        }
        let has_made = memory.has_made(&key, uid);
        let contents = self.judge(view, named, &wish, inputs, has_made, &mut living).await?;
        Ok((Situation::Living(living.into()), contents))
    }

    /// Reads the contents that the caches do not hold, and judges them.
    async fn judge(
        &self,
        view: &View,
        named: Connection<'_>,
        wish: &Wish,
        mut inputs: Inputs,
        has_made: bool,
        living: &mut Living,
    ) -> Result<Contents, Failure> {
        let namespace = view.control_plane.metadata.namespace.as_deref();
        let read_source = async {
            match named {
                Connection::Secret(name) if inputs.look && view.source.is_some() => {
                    self.secrets.live(namespace, name).await
                }
                _ => Ok(None),
            }
        };
        let cluster = living.cluster.clone();
        let read_copy = |which: Which| {
            let name = which.name(&cluster);
            // Somebody else's is not read. One that was just made may not be in the cache yet.
            let wanted = match view.copies.of(which) {
                None => has_made,
                Some(copy) => is_ours(&copy.metadata, wish.parent.uid()),
            };
            async move {
                if wanted {
                    self.secrets.live(namespace, &name).await
                } else {
                    Ok(None)
                }
            }
        };
        let (source, kubeconfig, ca, alias) = tokio::try_join!(
            read_source,
            read_copy(Which::Kubeconfig),
            read_copy(Which::Ca),
            read_copy(Which::Alias),
        )?;

        let mut contents = Contents {
            copies: PerCopy { kubeconfig, ca, alias },
            ..Contents::default()
        };
        living.source = match named {
            _ if !inputs.look => Source::NotYet,
            Connection::Unnamed => Source::Unnamed,
            Connection::Elsewhere => Source::Elsewhere,
            Connection::Secret(name) => match &source {
                None => Source::Absent(name.to_owned()),
                Some(secret) if material::is_empty(secret) => Source::Empty(name.to_owned()),
                Some(secret) => match Material::of_source(secret, wish.rules) {
                    Ok(material) => {
                        living.expires = material.expires();
                        contents.material = Some(material);
                        Source::Valid(name.to_owned())
                    }
                    Err(invalid) => Source::Invalid(name.to_owned(), invalid),
                },
            },
        };
        if let Some((_, version)) = &mut inputs.source {
            *version = source.as_ref().and_then(Version::of);
        }
        let mut states = PerCopy::build(|_| CopyState::Absent);
        for which in Which::ALL {
            let live = contents.copies.of(which).as_ref();
            let cached = view.copies.of(which).as_deref();
            let state = match (live, cached) {
                (Some(live), _) => {
                    let usable = material::usable(live, which, wish.rules);
                    if let Some(expiry) = usable.flatten() {
                        living.expires = Some(living.expires.map_or(expiry, |first| first.min(expiry)));
                    }
                    self.copy_state(live, which, wish, contents.material.as_ref(), usable.is_some())?
                }
                // Ours in the cache, and gone since.
                (None, Some(cached)) => {
                    stranger(&self.metadata, cached, wish)?.map_or(CopyState::Absent, CopyState::Foreign)
                }
                (None, None) => CopyState::Absent,
            };
            let version = match (live, &state) {
                (Some(live), _) => Version::of(live),
                (None, CopyState::Foreign(_)) => cached.and_then(Version::of),
                _ => None,
            };
            states.set(which, state);
            inputs.copies.set(which, version);
        }
        living.copies = states;
        contents.judged = Some(inputs);
        Ok(contents)
    }

    fn copy_state(
        &self,
        copy: &Secret,
        which: Which,
        wish: &Wish,
        material: Option<&Material>,
        good: bool,
    ) -> Result<CopyState, Failure> {
        if let Some(conflict) = stranger(&self.secrets, copy, wish)? {
            return Ok(CopyState::Foreign(conflict));
        }
        if let Some(since) = &copy.metadata.deletion_timestamp {
            return Ok(CopyState::Leaving(since.0));
        }
        let difference = material.map_or(Difference::None, |material| material::difference(copy, which, material));
        let drift = match difference {
            Difference::Fixed => Drift::Remake,
            Difference::Data => Drift::Repair,
            Difference::None if !wish.marks.are_on(&copy.metadata, wish.parent.uid()) => Drift::Repair,
            Difference::None => Drift::None,
        };
        Ok(CopyState::Ours { good, drift })
    }
}

/// Whether the control plane itself asks for nothing to be done. (Its Cluster may ask too.)
pub(crate) fn is_left_alone(control_plane: &ObjectMeta) -> bool {
    is_being_moved(control_plane) || has_paused_annotation(control_plane) || is_externally_managed(control_plane)
}

/// Those that belong to this control plane, each once.
fn ours(secrets: impl IntoIterator<Item = SecretMeta>, control_plane: &ObjectMeta) -> Vec<SecretMeta> {
    let uid = control_plane.uid.as_deref().unwrap_or_default();
    let ours = secrets
        .into_iter()
        .filter(|secret| is_ours(&secret.metadata, uid))
        .map(|secret| (secret.name_any(), secret));
    ours.collect::<BTreeMap<_, _>>().into_values().collect()
}

/// Whether this Cluster is the owner, and not another one of the same name.
fn is_owner(metadata: &ObjectMeta, cluster: &ObjectMeta) -> bool {
    ClusterOwner::of(metadata).is_some_and(|owner| Some(owner.uid) == cluster.uid.as_deref())
}

/// Whose a Secret is, if it is not ours.
fn stranger<K: Resource>(objects: &Objects<K>, secret: &K, wish: &Wish) -> Result<Option<String>, Failure> {
    match Ours::by_owner(objects, Planned::new(secret)?, &wish.parent) {
        Ok(_) => Ok(None),
        Err(conflict @ Failure::OwnershipConflict { .. }) => Ok(Some(conflict.to_string())),
        Err(other) => Err(other),
    }
}

/// What every copy carries besides its data, and what its data is judged by.
struct Wish {
    parent: Parent,
    marks: Marks,
    rules: Rules,
}

/// The labels of a copy, besides the owner's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Marks(BTreeMap<&'static str, Option<String>>);

impl Marks {
    pub(crate) fn of(control_plane: &ObjectMeta, cluster: &str) -> Self {
        let filter = control_plane
            .labels
            .as_ref()
            .and_then(|labels| labels.get(label::WATCH_FILTER));
        Self(BTreeMap::from([
            // Without this one Cluster API does not see the Secret.
            (label::CLUSTER_NAME, Some(names::label_value(cluster))),
            (label::WATCH_FILTER, filter.cloned()),
        ]))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, Option<&str>)> {
        self.0.iter().map(|(key, value)| (*key, value.as_deref()))
    }

    fn are_on(&self, copy: &ObjectMeta, owner: &str) -> bool {
        let label = |key: &str| {
            copy.labels
                .as_ref()
                .and_then(|labels| labels.get(key))
                .map(String::as_str)
        };
        let mut references = copy.owner_references.iter().flatten();
        self.iter().all(|(key, value)| label(key) == value)
            && label(label::OWNER_UID) == Some(owner)
            && references.any(|reference| reference.controller == Some(true) && reference.uid == owner)
    }
}

/// One state of one object: contents of the same version are the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version {
    uid: String,
    resource_version: String,
}

impl Version {
    pub(crate) fn of<K: Resource>(object: &K) -> Option<Self> {
        let meta = object.meta();
        Some(Self {
            uid: meta.uid.clone()?,
            resource_version: meta.resource_version.clone()?,
        })
    }
}

/// Everything that a judgement of Secrets depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Inputs {
    look: bool,
    source: Option<(String, Option<Version>)>,
    pub(crate) copies: PerCopy<Option<Version>>,
    marks: Marks,
    rival: bool,
}

/// A judgement, and all that it depends on. Holds verdicts, no values.
#[derive(Debug, Clone)]
pub(crate) struct Judged {
    pub(crate) inputs: Inputs,
    pub(crate) source: Source,
    pub(crate) copies: PerCopy<CopyState>,
    /// Until then it holds.
    pub(crate) expires: Option<Timestamp>,
}

/// What was judged before, so that contents are read again only when a version has changed or a certificate has expired.
/// Losing it (a restart) costs one read per Secret.
#[derive(Default)]
pub(crate) struct Memory(Mutex<HashMap<Key, Remembered>>);

struct Remembered {
    uid: String,
    /// This process has made copies: one that the cache does not show may be there all the same.
    made: bool,
    settled: Option<Judged>,
}

impl Memory {
    fn recall(&self, key: &Key, uid: &str, inputs: &Inputs, now: Timestamp) -> Option<Judged> {
        self.with(|entries| {
            let judged = entries.get(key).filter(|entry| entry.uid == uid)?.settled.as_ref()?;
            let holds = judged.inputs == *inputs && judged.expires.is_none_or(|expiry| now < expiry);
            holds.then(|| judged.clone())
        })
    }

    fn has_made(&self, key: &Key, uid: &str) -> bool {
        self.with(|entries| entries.get(key).is_some_and(|entry| entry.made && entry.uid == uid))
    }

    /// Nothing is left to write.
    pub(crate) fn settle(&self, key: &Key, uid: &str, judged: Judged) {
        self.entry(key, uid, |entry| entry.settled = Some(judged));
    }

    pub(crate) fn made(&self, key: &Key, uid: &str) {
        self.entry(key, uid, |entry| entry.made = true);
    }

    pub(crate) fn forget(&self, key: &Key) {
        self.with(|entries| entries.remove(key));
    }

    fn entry(&self, key: &Key, uid: &str, change: impl FnOnce(&mut Remembered)) {
        self.with(|entries| {
            let fresh = || Remembered {
                uid: uid.to_owned(),
                made: false,
                settled: None,
            };
            let entry = entries.entry(key.clone()).or_insert_with(fresh);
            if entry.uid != uid {
                *entry = fresh();
            }
            change(entry);
        });
    }

    fn with<T>(&self, act: impl FnOnce(&mut HashMap<Key, Remembered>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}
