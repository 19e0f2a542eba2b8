//! Reads everything that a plan is made from.
//!
//! Caches are enough to build with: whatever they lack yet is noticed by the API server when it is written. To destroy
//! takes more. An absence in a cache may only mean "not seen yet", so a deletion asks the API server itself whether a
//! control plane, the apply or a paused Cluster is there.

use std::sync::Arc;

use capt_api::cluster::CaptClusterStatus;
use capt_api::external::cluster::ClusterOwner;
use capt_api::names::{annotation, finalizer, label, output, vpc_apply_name, vpc_connection_secret};
use capt_api::{CaptCluster, CaptControlPlane, Cluster, WorkspaceTemplateApply, vpc_id};
use capt_runtime::apply::{Objects, is_ours};
use capt_runtime::cache::{Cache, Found, Index};
use capt_runtime::error::{Failure, ObjectRef, Race};
use capt_runtime::key::Key;
use capt_runtime::scope::{has_paused_annotation, is_being_moved, is_externally_managed};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::core::PartialObjectMeta;

use crate::hold::HOLD;
use crate::judge::Trouble;

/// Of a control plane only its existence matters here.
pub(crate) type ControlPlaneMeta = PartialObjectMeta<CaptControlPlane>;

/// Everything that a plan is made from.
#[derive(Debug, Clone)]
pub(crate) struct Observed {
    pub(crate) capt_cluster: Arc<CaptCluster>,
    pub(crate) owner: Owner,
    pub(crate) apply: Apply,
    pub(crate) secret: FromSecret,
    /// An apply of this object's under a name that `spec.workspaceTemplateApplyName` gave it. Earlier versions made such
    /// applies; the network behind it is this object's, and must be neither doubled nor forgotten.
    pub(crate) astray: Option<String>,
    /// What is in the VPC: the control planes of this Cluster, or the applies that some left behind. Only a deletion asks.
    pub(crate) control_planes: Vec<String>,
    /// What a read or a write of this very pass ended with, when no retry alone mends it.
    pub(crate) trouble: Option<Trouble>,
    pub(crate) settings: Settings,
}

/// What the operator of CAPT decided.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) allow_cross_namespace: bool,
    pub(crate) clear_cluster_failures: bool,
    pub(crate) vpc_ready_timeout: SignedDuration,
    pub(crate) secret_timeout: SignedDuration,
    pub(crate) deletion_timeout: SignedDuration,
}

/// The Cluster that the object belongs to.
#[derive(Debug, Clone)]
pub(crate) enum Owner {
    /// Cluster API has not written an owner into the object yet.
    Unnamed,
    /// The owner is named, but there is no Cluster of that name and UID.
    Unseen(String),
    Present(Arc<Cluster>),
}

/// What stands under the name of the VPC's apply.
#[derive(Debug, Clone)]
pub(crate) enum Apply {
    Absent,
    Unreadable(Arc<str>),
    /// Made by or for somebody else.
    Foreign {
        deleting: bool,
    },
    Ours(Arc<WorkspaceTemplateApply>),
}

/// What the connection secret says about the VPC's ID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FromSecret {
    /// It was not asked, because the ID is known.
    NotRead,
    /// As it stands there.
    Read(Option<String>),
}

impl Observed {
    pub(crate) fn is_being_deleted(&self) -> bool {
        self.capt_cluster.metadata.deletion_timestamp.is_some()
    }

    pub(crate) fn has_finalizer(&self) -> bool {
        self.capt_cluster
            .finalizers()
            .iter()
            .any(|present| present == finalizer::CAPT_CLUSTER)
    }

    /// The object is somebody else's business: another management cluster's, to which it was moved, or that of
    /// whatever manages the infrastructure instead of us.
    pub(crate) fn is_hands_off(&self) -> bool {
        let metadata = &self.capt_cluster.metadata;
        is_being_moved(metadata) || is_externally_managed(metadata)
    }

    /// Why nothing may be done for now.
    pub(crate) fn paused(&self) -> Option<String> {
        if has_paused_annotation(&self.capt_cluster.metadata) {
            return Some(format!("the annotation {} is set", annotation::PAUSED));
        }
        match &self.owner {
            Owner::Present(cluster) if cluster.spec.paused == Some(true) => {
                Some(format!("spec.paused of the Cluster {} is set", cluster.name_any()))
            }
            _ => None,
        }
    }

    /// The status as it stands.
    pub(crate) fn before(&self) -> CaptClusterStatus {
        self.capt_cluster.status.clone().unwrap_or_default()
    }

    /// The name of the VPC's apply, as it stands in messages.
    pub(crate) fn apply_name(&self) -> String {
        vpc_apply_name(&self.capt_cluster.name_any())
    }
}

/// The key of the VPC's apply.
pub(crate) fn apply_key(capt_cluster: &CaptCluster) -> Key {
    let namespace = capt_cluster.metadata.namespace.as_deref().unwrap_or_default();
    Key::namespaced(namespace, &vpc_apply_name(&capt_cluster.name_any()))
}

/// The key under which an earlier version may have made the apply, when that is another one.
fn other_apply_key(capt_cluster: &CaptCluster) -> Option<Key> {
    let usual = apply_key(capt_cluster);
    let named = capt_cluster.spec.workspace_template_apply_name.as_deref();
    let name = named.filter(|name| !name.is_empty() && *name != usual.name())?;
    Some(Key::namespaced(usual.namespace().unwrap_or_default(), name))
}

/// The keys of all applies that can matter to a CAPTCluster.
pub(crate) fn apply_keys(capt_cluster: &CaptCluster) -> Vec<Key> {
    let other = other_apply_key(capt_cluster);
    [apply_key(capt_cluster)].into_iter().chain(other).collect()
}

/// The key of the Cluster that a CAPTCluster or a control plane belongs to. Where the owner was taken out of the object,
/// the label that Cluster API wrote beside it still tells the name.
pub(crate) fn cluster_key(metadata: &ObjectMeta) -> Option<Key> {
    let labelled = || metadata.labels.as_ref()?.get(label::CLUSTER_NAME).map(String::as_str);
    let name = ClusterOwner::of(metadata).map(|owner| owner.name).or_else(labelled)?;
    Some(Key::namespaced(metadata.namespace.as_deref().unwrap_or_default(), name))
}

/// Where observations come from.
pub(crate) trait Sources: Sync {
    fn capt_cluster(&self, key: &Key) -> Option<Arc<CaptCluster>>;
    fn cluster(&self, key: &Key) -> Option<Arc<Cluster>>;
    fn apply(&self, key: &Key) -> Found<WorkspaceTemplateApply>;
    /// The control planes that name this Cluster.
    fn control_planes(&self, cluster: &Key) -> Vec<Arc<ControlPlaneMeta>>;

    fn live_capt_cluster(&self, key: &Key) -> impl Future<Output = Result<Option<CaptCluster>, Failure>> + Send;
    fn live_cluster(&self, key: &Key) -> impl Future<Output = Result<Option<Cluster>, Failure>> + Send;
    fn live_apply(&self, key: &Key) -> impl Future<Output = Result<Option<WorkspaceTemplateApply>, Failure>> + Send;
    fn live_control_planes(
        &self,
        namespace: &str,
    ) -> impl Future<Output = Result<Vec<ControlPlaneMeta>, Failure>> + Send;
    /// The applies that this Cluster's control planes made.
    fn live_eks_applies(&self, cluster: &Key) -> impl Future<Output = Result<Vec<String>, Failure>> + Send;
    /// The key `vpc_id` of this Secret, read by name.
    fn vpc_id_in_secret(&self, secret: &Key) -> impl Future<Output = Result<Option<String>, Failure>> + Send;
}

/// Everything about the object under this key; `None` when there is none.
///
/// A live read that only somebody's change can mend (a permission is missing, an object has an odd shape) is part of what
/// was observed, so that it can be reported; it is given back beside it.
pub(crate) async fn observe(
    sources: &impl Sources,
    settings: Settings,
    key: &Key,
) -> Result<Option<(Observed, Option<Failure>)>, Failure> {
    let Some(capt_cluster) = sources.capt_cluster(key) else {
        return Ok(None);
    };
    let mut seen = Observed {
        owner: cached_owner(sources, &capt_cluster),
        apply: Apply::of(sources.apply(&apply_key(&capt_cluster)), &capt_cluster),
        capt_cluster,
        secret: FromSecret::NotRead,
        astray: None,
        control_planes: Vec::new(),
        trouble: None,
        settings,
    };
    match look_live(sources, &mut seen).await {
        Ok(()) => Ok(Some((seen, None))),
        Err(failure) => match Trouble::of(&failure) {
            Some(trouble) => {
                seen.trouble = Some(trouble);
                Ok(Some((seen, Some(failure))))
            }
            None => Err(failure),
        },
    }
}

/// Asks the API server what the caches cannot tell.
async fn look_live(sources: &impl Sources, seen: &mut Observed) -> Result<(), Failure> {
    if seen.is_hands_off() || seen.paused().is_some() {
        return Ok(());
    }
    let capt_cluster = seen.capt_cluster.clone();
    if !seen.is_being_deleted() {
        if matches!(seen.apply, Apply::Absent) {
            seen.astray = astray(sources, &capt_cluster).await?;
        }
        if asks_the_secret(seen) {
            let namespace = capt_cluster.metadata.namespace.as_deref().unwrap_or_default();
            let secret = Key::namespaced(namespace, &vpc_connection_secret(&capt_cluster.name_any()));
            seen.secret = FromSecret::Read(sources.vpc_id_in_secret(&secret).await?);
        }
        return Ok(());
    }
    if !seen.has_finalizer() {
        return Ok(());
    }
    // A paused Cluster that the cache has not brought yet must not be taken for one that does not forbid anything.
    if let (Owner::Unseen(_), Some(key), Some(owner)) = (
        &seen.owner,
        cluster_key(&capt_cluster.metadata),
        ClusterOwner::of(&capt_cluster.metadata),
    ) && let Some(cluster) = sources.live_cluster(&key).await?.filter(|live| is_owner(live, owner))
    {
        seen.owner = Owner::Present(Arc::new(cluster));
        if seen.paused().is_some() {
            return Ok(());
        }
    }
    seen.control_planes = control_planes(sources, &capt_cluster).await?;
    seen.astray = astray(sources, &capt_cluster).await?;
    if matches!(seen.apply, Apply::Absent | Apply::Foreign { .. }) {
        let live = sources.live_apply(&apply_key(&capt_cluster)).await?;
        seen.apply = Apply::of(
            live.map_or(Found::Absent, |live| Found::Present(Arc::new(live))),
            &capt_cluster,
        );
    }
    if is_about_to_be_destroyed(seen) {
        look_a_last_time(sources, seen).await?;
    }
    Ok(())
}

/// Looks for an apply of this object's under the name that the spec gives it. The cache may not show it: what earlier
/// versions made carries no label of the watch filter.
async fn astray(sources: &impl Sources, capt_cluster: &CaptCluster) -> Result<Option<String>, Failure> {
    let Some(key) = other_apply_key(capt_cluster) else {
        return Ok(None);
    };
    let uid = capt_cluster.metadata.uid.as_deref().unwrap_or_default();
    let live = sources.live_apply(&key).await?;
    Ok(live
        .filter(|live| is_ours(&live.metadata, uid))
        .map(|_| key.name().to_owned()))
}

/// Whether the next step would allow the destruction of the VPC, or begin it.
fn is_about_to_be_destroyed(seen: &Observed) -> bool {
    let stands = |metadata: &ObjectMeta| metadata.deletion_timestamp.is_none() || HOLD.is_on(metadata);
    seen.control_planes.is_empty() && matches!(&seen.apply, Apply::Ours(apply) if stands(&apply.metadata))
}

/// Reads the wish itself from the API server: a retention or a pause that was accepted there, and that the caches do not
/// show yet, is the last moment to keep a VPC. And looks for EKS clusters whose control planes are gone: somebody removed
/// their finalizers, and Terraform has not destroyed them yet.
async fn look_a_last_time(sources: &impl Sources, seen: &mut Observed) -> Result<(), Failure> {
    let key = Key::of(&*seen.capt_cluster);
    let same = |live: &CaptCluster| live.metadata.uid == seen.capt_cluster.metadata.uid;
    let Some(live) = sources.live_capt_cluster(&key).await?.filter(same) else {
        return Err(Failure::LostRace {
            object: ObjectRef::new("CAPTCluster", key.namespace(), key.name()),
            race: Race::Vanished,
        });
    };
    let mut owner = Owner::Unnamed;
    if let (Some(named), Some(key)) = (ClusterOwner::of(&live.metadata), cluster_key(&live.metadata)) {
        let cluster = sources.live_cluster(&key).await?.filter(|live| is_owner(live, named));
        owner = cluster.map_or_else(
            || Owner::Unseen(named.name.to_owned()),
            |live| Owner::Present(Arc::new(live)),
        );
    }
    (seen.owner, seen.capt_cluster) = (owner, Arc::new(live));
    if let Some(cluster) = cluster_key(&seen.capt_cluster.metadata) {
        let applies = sources.live_eks_applies(&cluster).await?;
        seen.control_planes = (applies.iter())
            .map(|name| format!("WorkspaceTemplateApply {name}"))
            .collect();
    }
    Ok(())
}

fn cached_owner(sources: &impl Sources, capt_cluster: &CaptCluster) -> Owner {
    let Some(owner) = ClusterOwner::of(&capt_cluster.metadata) else {
        return Owner::Unnamed;
    };
    let key = Key::namespaced(
        capt_cluster.metadata.namespace.as_deref().unwrap_or_default(),
        owner.name,
    );
    match sources.cluster(&key).filter(|cluster| is_owner(cluster, owner)) {
        Some(cluster) => Owner::Present(cluster),
        None => Owner::Unseen(owner.name.to_owned()),
    }
}

/// Another Cluster may have taken the name since.
fn is_owner(cluster: &Cluster, owner: ClusterOwner<'_>) -> bool {
    cluster.metadata.uid.as_deref() == Some(owner.uid)
}

impl Apply {
    pub(crate) fn of(found: Found<WorkspaceTemplateApply>, capt_cluster: &CaptCluster) -> Self {
        match found {
            Found::Absent => Self::Absent,
            Found::Unreadable(why) => Self::Unreadable(why),
            Found::Present(apply) => {
                if HOLD.is_of(&capt_cluster.metadata, &apply.metadata) {
                    Self::Ours(apply)
                } else {
                    Self::Foreign {
                        deleting: apply.metadata.deletion_timestamp.is_some(),
                    }
                }
            }
        }
    }
}

/// The names of the control planes that belong to the same Cluster: first those that the cache knows, and when it knows
/// none, those that the API server has.
async fn control_planes(sources: &impl Sources, capt_cluster: &CaptCluster) -> Result<Vec<String>, Failure> {
    let Some(cluster) = cluster_key(&capt_cluster.metadata) else {
        return Ok(Vec::new());
    };
    let uid = ClusterOwner::of(&capt_cluster.metadata).map(|owner| owner.uid);
    let belongs = |control_plane: &ControlPlaneMeta| {
        cluster_key(&control_plane.metadata).as_ref() == Some(&cluster)
            && match (ClusterOwner::of(&control_plane.metadata), uid) {
                (Some(owner), Some(uid)) => owner.uid == uid,
                // One that Cluster API has not taken up yet has made nothing, and carries no finalizer. One that lost its
                // owner later does, and its EKS cluster may still be in this network.
                (None, Some(_)) => control_plane
                    .finalizers()
                    .iter()
                    .any(|present| present == finalizer::CAPT_CONTROL_PLANE),
                (_, None) => true,
            }
    };
    let cached = sources.control_planes(&cluster);
    let mut names: Vec<String> = cached
        .iter()
        .filter(|meta| belongs(meta))
        .map(|meta| meta.name_any())
        .collect();
    if names.is_empty() {
        let live = sources
            .live_control_planes(cluster.namespace().unwrap_or_default())
            .await?;
        names = live
            .iter()
            .filter(|meta| belongs(meta))
            .map(ResourceExt::name_any)
            .collect();
    }
    names.sort();
    Ok(names)
}

/// Whether the VPC's ID must be looked up in the connection secret: the apply is ready, no output tells the ID, and what
/// the status says stems from another revision. Terraform writes the secret before the apply becomes ready, so one look
/// per revision finds it; while the ID is missing, every pass looks.
fn asks_the_secret(seen: &Observed) -> bool {
    let Apply::Ours(apply) = &seen.apply else { return false };
    let Some(told) = apply.status.as_ref().filter(|_| apply.is_ready()) else {
        return false;
    };
    let by_output = told.outputs.get(output::VPC_ID).map(|text| vpc_id::parse(text));
    if seen.capt_cluster.spec.vpc_template_ref.is_none() || !matches!(by_output, None | Some(Ok(None))) {
        return false;
    }
    let before = seen.before();
    let read_from = before
        .workspace_template_status
        .and_then(|told| told.last_applied_revision);
    before.vpc_id.is_none()
        || before.waiting_since.is_some_and(|since| since.secret.is_some())
        || told.last_applied_revision.is_none()
        || told.last_applied_revision != read_from
}

/// The real sources: caches, and the API server.
#[derive(Debug)]
pub(crate) struct Reads {
    pub(crate) capt_clusters: Cache<CaptCluster>,
    pub(crate) clusters: Cache<Cluster>,
    pub(crate) applies: Cache<WorkspaceTemplateApply>,
    pub(crate) control_planes: Index<ControlPlaneMeta, Key>,
    pub(crate) live_capt_clusters: Objects<CaptCluster>,
    pub(crate) live_clusters: Objects<Cluster>,
    pub(crate) live_applies: Objects<WorkspaceTemplateApply>,
    pub(crate) live_control_planes: Objects<ControlPlaneMeta>,
    pub(crate) live_neighbours: Objects<PartialObjectMeta<WorkspaceTemplateApply>>,
    pub(crate) secrets: Objects<Secret>,
}

impl Sources for Reads {
    fn capt_cluster(&self, key: &Key) -> Option<Arc<CaptCluster>> {
        self.capt_clusters.get(key)
    }

    fn cluster(&self, key: &Key) -> Option<Arc<Cluster>> {
        self.clusters.get(key)
    }

    fn apply(&self, key: &Key) -> Found<WorkspaceTemplateApply> {
        self.applies.find(key)
    }

    fn control_planes(&self, cluster: &Key) -> Vec<Arc<ControlPlaneMeta>> {
        self.control_planes.get(cluster)
    }

    async fn live_capt_cluster(&self, key: &Key) -> Result<Option<CaptCluster>, Failure> {
        self.live_capt_clusters.live(key.namespace(), key.name()).await
    }

    async fn live_cluster(&self, key: &Key) -> Result<Option<Cluster>, Failure> {
        self.live_clusters.live(key.namespace(), key.name()).await
    }

    async fn live_apply(&self, key: &Key) -> Result<Option<WorkspaceTemplateApply>, Failure> {
        self.live_applies.live(key.namespace(), key.name()).await
    }

    async fn live_control_planes(&self, namespace: &str) -> Result<Vec<ControlPlaneMeta>, Failure> {
        self.live_control_planes.live_list(Some(namespace), None).await
    }

    async fn live_eks_applies(&self, cluster: &Key) -> Result<Vec<String>, Failure> {
        HOLD.outlived(&self.live_neighbours, cluster).await
    }

    async fn vpc_id_in_secret(&self, secret: &Key) -> Result<Option<String>, Failure> {
        let secret = self.secrets.live(secret.namespace(), secret.name()).await?;
        let value = secret.and_then(|secret| secret.data?.remove(output::VPC_ID));
        Ok(value.and_then(|value| String::from_utf8(value.0).ok()))
    }
}
