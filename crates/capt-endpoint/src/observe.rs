//! Reads everything that a plan is made from.
//!
//! Caches are enough to see that nothing has to be done. When something has, the Cluster and its infrastructure are read
//! again from the API server itself ([`Reader::look`]): who owns the Cluster's endpoint is told by its value alone, and an
//! old value would make our own endpoint look like a user's, or the other way round.

use std::sync::Arc;

use capt_api::common::ApiEndpoint;
use capt_api::external::cluster::{ClusterOwner, ContractReference};
use capt_api::names::{CONTROL_PLANE_GROUP, INFRASTRUCTURE_GROUP, eks_apply_name, finalizer, output};
use capt_api::{CaptCluster, CaptControlPlane, Cluster, WorkspaceTemplateApply};
use capt_runtime::apply::{Objects, is_ours};
use capt_runtime::cache::{Cache, Found};
use capt_runtime::error::Failure;
use capt_runtime::key::Key;
use capt_runtime::scope::{has_paused_annotation, is_being_moved, is_externally_managed};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::core::{DynamicObject, PartialObjectMeta};

use crate::address::{self, Invalid};

/// A Secret without its contents.
pub(crate) type SecretMeta = PartialObjectMeta<Secret>;

/// The caches that this controller reads.
#[derive(Debug)]
pub(crate) struct Caches {
    pub(crate) control_planes: Cache<CaptControlPlane>,
    pub(crate) clusters: Cache<Cluster>,
    pub(crate) capt_clusters: Cache<CaptCluster>,
    pub(crate) applies: Cache<WorkspaceTemplateApply>,
    pub(crate) secrets: Cache<SecretMeta>,
}

/// What the caches say about one control plane.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) control_plane: Arc<CaptControlPlane>,
    /// Whatever has the name of the owner; whether it is the owner is judged later.
    pub(crate) cluster: Found<Cluster>,
    /// The infrastructure that this Cluster names.
    pub(crate) infrastructure: Found<CaptCluster>,
    /// Whatever has the name of the EKS apply.
    pub(crate) apply: Found<WorkspaceTemplateApply>,
    /// Whether the Secret that the apply names is there.
    pub(crate) secret_exists: bool,
}

impl Caches {
    pub(crate) fn view(&self, key: &Key) -> Option<View> {
        let control_plane = self.control_planes.get(key)?;
        let named = |name: &str| Key::namespaced(key.namespace().unwrap_or_default(), name);
        let owner = ClusterOwner::of(&control_plane.metadata);
        let cluster = owner.map_or(Found::Absent, |owner| self.clusters.find(&named(owner.name)));
        let infrastructure = match &cluster {
            Found::Present(cluster) => infrastructure_name(cluster),
            Found::Absent | Found::Unreadable(_) => None,
        };
        let infrastructure = infrastructure.map_or(Found::Absent, |name| self.capt_clusters.find(&named(name)));
        let apply = self.applies.find(&named(&eks_apply_name(key.name())));
        let secret = match &apply {
            Found::Present(apply) => connection_secret(apply),
            Found::Absent | Found::Unreadable(_) => None,
        };
        let secret_exists = secret.is_some_and(|name| !matches!(self.secrets.find(&named(name)), Found::Absent));
        Some(View {
            control_plane,
            cluster,
            infrastructure,
            apply,
            secret_exists,
        })
    }
}

/// The CAPTCluster that a Cluster names; `None` when its infrastructure is another provider's.
pub(crate) fn infrastructure_name(cluster: &Cluster) -> Option<&str> {
    let named = cluster.spec.infrastructure_ref.as_ref()?;
    (named.api_group == INFRASTRUCTURE_GROUP && named.kind == "CAPTCluster").then_some(named.name.as_str())
}

/// The Secret into which Terraform writes, if the apply names one of its own namespace. Others are not read.
pub(crate) fn connection_secret(apply: &WorkspaceTemplateApply) -> Option<&str> {
    let named = apply.spec.write_connection_secret_to_ref.as_ref()?;
    let is_near = named.namespace.is_none() || named.namespace == apply.metadata.namespace;
    is_near.then_some(named.name.as_str())
}

/// Everything that a plan is made from.
#[derive(Debug, Clone)]
pub(crate) struct Observed {
    pub(crate) control_plane: Arc<CaptControlPlane>,
    pub(crate) owner: Owner,
    pub(crate) apply: Apply,
    /// Whether the owner is as the API server itself has it, and not as a cache had it.
    pub(crate) live: bool,
}

/// The Cluster that the control plane belongs to.
#[derive(Debug, Clone)]
pub(crate) enum Owner {
    /// Cluster API has not written an owner into the control plane yet.
    NotSet,
    /// There is no Cluster with the recorded UID.
    Gone,
    /// It exists, and nobody knows what it says.
    Unreadable,
    Present(Parent),
}

/// What matters of the Cluster, and of the infrastructure that it names.
#[derive(Debug, Clone)]
pub(crate) struct Parent {
    pub(crate) name: String,
    pub(crate) paused: bool,
    pub(crate) endpoint: Option<ApiEndpoint>,
    /// The control plane that the Cluster names, if that is another one.
    pub(crate) other_control_plane: Option<String>,
    pub(crate) infrastructure: Infrastructure,
}

/// Whether the user gave an endpoint to the infrastructure.
#[derive(Debug, Clone)]
pub(crate) enum Infrastructure {
    WithoutEndpoint,
    WithEndpoint {
        name: String,
        endpoint: ApiEndpoint,
    },
    /// It exists under this name, and nobody knows what it says.
    Unreadable(String),
}

impl Parent {
    fn of(cluster: &Cluster, infrastructure: &Found<CaptCluster>, control_plane: &ObjectMeta) -> Self {
        let is_other = |named: &&ContractReference| {
            (named.api_group.as_str(), named.kind.as_str(), Some(&named.name))
                != (CONTROL_PLANE_GROUP, "CAPTControlPlane", control_plane.name.as_ref())
        };
        let other = cluster.spec.control_plane_ref.as_ref().filter(is_other);
        let infrastructure = match infrastructure {
            Found::Absent => Infrastructure::WithoutEndpoint,
            Found::Unreadable(_) => {
                Infrastructure::Unreadable(infrastructure_name(cluster).unwrap_or_default().to_owned())
            }
            Found::Present(found) => match found.spec.control_plane_endpoint.clone().filter(ApiEndpoint::is_set) {
                Some(endpoint) => Infrastructure::WithEndpoint {
                    name: found.name_any(),
                    endpoint,
                },
                None => Infrastructure::WithoutEndpoint,
            },
        };
        Self {
            name: cluster.name_any(),
            paused: cluster.spec.paused == Some(true),
            endpoint: cluster.spec.control_plane_endpoint.clone(),
            other_control_plane: other.map(|named| format!("{} {}", named.kind, named.name)),
            infrastructure,
        }
    }
}

/// The EKS apply, and the address that it reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Apply {
    Absent,
    Unreadable,
    /// It has the name, and belongs to something else.
    Foreign,
    Present {
        ready: bool,
        revision: Option<String>,
        told: Told,
    },
}

/// What Terraform says about the address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Told {
    /// The outputs lack it, and it was too early to look into the connection secret.
    NotYet,
    Missing(Missing),
    Invalid(Place, Invalid),
    Address(ApiEndpoint),
}

/// Why there is no address besides the outputs that lack it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Missing {
    /// The apply names no Secret, or one of another namespace.
    SecretNotNamed,
    SecretAbsent(String),
    KeyAbsent(String),
}

/// Where a text was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Output,
    Secret(String),
}

impl Observed {
    pub(crate) fn is_being_deleted(&self) -> bool {
        self.control_plane.metadata.deletion_timestamp.is_some()
    }

    pub(crate) fn has_finalizer(&self) -> bool {
        let mut finalizers = self.control_plane.finalizers().iter();
        finalizers.any(|present| present == finalizer::CAPT_ENDPOINT)
    }

    /// Nothing may be written: the object lives on elsewhere, is managed by something else, or is paused; or it cannot be
    /// known whether it is.
    pub(crate) fn is_left_alone(&self) -> bool {
        let metadata = &self.control_plane.metadata;
        is_being_moved(metadata)
            || is_externally_managed(metadata)
            || has_paused_annotation(metadata)
            || match &self.owner {
                Owner::Present(parent) => parent.paused,
                Owner::Unreadable => true,
                Owner::NotSet | Owner::Gone => false,
            }
    }
}

/// The reads that go to the API server itself.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    /// As it stands there: what a guarded write compares must be the very value, also one that is no whole endpoint.
    pub(crate) clusters: Objects<DynamicObject>,
    pub(crate) capt_clusters: Objects<CaptCluster>,
    pub(crate) secrets: Objects<Secret>,
}

impl Reader {
    /// From caches, and from the connection secret if the endpoint may be there.
    pub(crate) async fn observe(&self, view: &View) -> Result<Observed, Failure> {
        let metadata = &view.control_plane.metadata;
        let owner = match (ClusterOwner::of(metadata), &view.cluster) {
            (None, _) => Owner::NotSet,
            (Some(owner), Found::Present(cluster)) if cluster.metadata.uid.as_deref() == Some(owner.uid) => {
                Owner::Present(Parent::of(cluster, &view.infrastructure, metadata))
            }
            (Some(_), Found::Unreadable(_)) => Owner::Unreadable,
            (Some(_), Found::Present(_) | Found::Absent) => Owner::Gone,
        };
        let mut seen = Observed {
            control_plane: Arc::clone(&view.control_plane),
            owner,
            apply: Apply::Absent,
            live: false,
        };
        let is_let_go = seen.is_being_deleted() && !seen.has_finalizer();
        if !seen.is_left_alone() && !is_let_go {
            seen.apply = self.apply(view, seen.is_being_deleted()).await?;
        }
        Ok(seen)
    }

    async fn apply(&self, view: &View, deleting: bool) -> Result<Apply, Failure> {
        let apply = match &view.apply {
            Found::Absent => return Ok(Apply::Absent),
            Found::Unreadable(_) => return Ok(Apply::Unreadable),
            Found::Present(apply) => apply,
        };
        if !is_ours(
            &apply.metadata,
            view.control_plane.metadata.uid.as_deref().unwrap_or_default(),
        ) {
            return Ok(Apply::Foreign);
        }
        let ready = apply.is_ready();
        let status = apply.status.as_ref();
        let output = status.and_then(|status| status.outputs.get(output::CLUSTER_ENDPOINT));
        let told = match output.filter(|text| is_value(text)) {
            Some(text) => told(Place::Output, address::parse(text)),
            // A deletion also asks whether the Cluster has what an unfinished pass was about to publish.
            None if ready || deleting => self.told_by_secret(view, apply).await?,
            None => Told::NotYet,
        };
        Ok(Apply::Present {
            ready,
            revision: status.and_then(|status| status.last_applied_revision.clone()),
            told,
        })
    }

    async fn told_by_secret(&self, view: &View, apply: &WorkspaceTemplateApply) -> Result<Told, Failure> {
        let Some(name) = connection_secret(apply) else {
            return Ok(Told::Missing(Missing::SecretNotNamed));
        };
        let absent = || Told::Missing(Missing::SecretAbsent(name.to_owned()));
        if !view.secret_exists {
            return Ok(absent());
        }
        let Some(secret) = self.secrets.live(apply.metadata.namespace.as_deref(), name).await? else {
            return Ok(absent());
        };
        let bytes = secret.data.as_ref().and_then(|data| data.get(output::CLUSTER_ENDPOINT));
        Ok(match bytes.map(|bytes| std::str::from_utf8(&bytes.0)) {
            Some(Err(_)) => Told::Invalid(Place::Secret(name.to_owned()), Invalid::NotText),
            Some(Ok(text)) if is_value(text) => told(Place::Secret(name.to_owned()), address::parse(text)),
            Some(Ok(_)) | None => Told::Missing(Missing::KeyAbsent(name.to_owned())),
        })
    }

    /// Reads the Cluster and its infrastructure again. Returns the Cluster as it stands, for the write that follows.
    pub(crate) async fn look(&self, seen: &mut Observed) -> Result<Option<DynamicObject>, Failure> {
        let control_plane = Arc::clone(&seen.control_plane);
        let metadata = &control_plane.metadata;
        let namespace = metadata.namespace.as_deref();
        seen.live = true;
        let Some(owner) = ClusterOwner::of(metadata) else {
            seen.owner = Owner::NotSet;
            return Ok(None);
        };
        let live = self.clusters.live(namespace, owner.name).await?;
        let Some(live) = live.filter(|live| live.metadata.uid.as_deref() == Some(owner.uid)) else {
            seen.owner = Owner::Gone;
            return Ok(None);
        };
        let Ok(cluster) = live.clone().try_parse::<Cluster>() else {
            seen.owner = Owner::Unreadable;
            return Ok(None);
        };
        let infrastructure = match infrastructure_name(&cluster) {
            None => None,
            Some(name) => self.capt_clusters.live(namespace, name).await?,
        };
        let infrastructure = infrastructure.map_or(Found::Absent, |found| Found::Present(found.into()));
        seen.owner = Owner::Present(Parent::of(&cluster, &infrastructure, metadata));
        Ok(Some(live))
    }
}

fn told(place: Place, parsed: Result<ApiEndpoint, Invalid>) -> Told {
    match parsed {
        Ok(endpoint) => Told::Address(endpoint),
        Err(invalid) => Told::Invalid(place, invalid),
    }
}

/// Terraform's null comes as this text, and a template may say "nothing" by an empty one.
fn is_value(text: &str) -> bool {
    !matches!(text.trim_ascii(), "" | "null")
}
