//! What a pass knows: everything about one control plane, read from caches into plain data; and the live reads that some
//! steps need on top (a cache may be late, and what those steps do cannot be undone).

use std::sync::Arc;

use capt_api::conditions::control_plane::Ready;
use capt_api::external::cluster::ClusterOwner;
use capt_api::names::{self, INFRASTRUCTURE_GROUP};
use capt_api::{CaptCluster, CaptControlPlane, Cluster, WorkspaceTemplateApply};
use capt_runtime::cache::{Cache, Found};
use capt_runtime::error::Failure;
use capt_runtime::key::Key;
use capt_runtime::scope::{has_paused_annotation, is_being_moved, is_externally_managed};
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::eks_apply;
use crate::hold::HOLD;

/// The flags that decide something.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) allow_cross_namespace_templates: bool,
    pub(crate) clear_cluster_failures: bool,
    pub(crate) control_plane_timeout: SignedDuration,
    pub(crate) vpc_ready_timeout: SignedDuration,
    pub(crate) secret_timeout: SignedDuration,
    pub(crate) deletion_timeout: SignedDuration,
}

#[derive(Debug, Clone)]
pub(crate) struct Caches {
    pub(crate) control_planes: Cache<CaptControlPlane>,
    pub(crate) clusters: Cache<Cluster>,
    pub(crate) capt_clusters: Cache<CaptCluster>,
    pub(crate) applies: Cache<WorkspaceTemplateApply>,
}

/// Everything that is known about one control plane.
#[derive(Debug)]
pub(crate) struct Observed {
    pub(crate) settings: Settings,
    pub(crate) control_plane: Arc<CaptControlPlane>,
    pub(crate) owner: Owner,
    pub(crate) infrastructure: Infrastructure,
    /// Whatever has the name of the network's apply.
    pub(crate) vpc_apply: Found<WorkspaceTemplateApply>,
    /// Whatever has the name of this control plane's apply.
    pub(crate) apply: Found<WorkspaceTemplateApply>,
    /// What the API server itself answered, when the plan asked for it.
    pub(crate) live: Option<Live>,
    /// The step of this plan was refused; the report has to say so.
    pub(crate) refused: Option<Refusal>,
}

/// The Cluster that the control plane belongs to.
#[derive(Debug)]
pub(crate) enum Owner {
    /// Cluster API has not set the ownerReference yet.
    NotSet,
    /// There is none with the recorded UID.
    Gone {
        name: String,
    },
    Present(Arc<Cluster>),
}

/// The network that the Cluster names.
#[derive(Debug)]
pub(crate) enum Infrastructure {
    /// The Cluster names none, or one of another provider.
    NotOurs,
    Named {
        name: String,
        found: Found<CaptCluster>,
    },
}

/// What is read again, from the API server itself, before a step that cannot be undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// The apply is to be made: the wish is current, and neither Cluster nor network is about to go.
    Create,
    /// The apply is to be changed: the wish is current. A restarted API server may serve an old one, and Terraform would
    /// carry it out.
    Change,
    /// The control plane is to delete itself: its Cluster really goes, and really names another.
    DeleteSelf,
    /// The apply is to be deleted, or its hold released: nobody has paused or moved the control plane meanwhile.
    Destroy,
    /// The last guard is to be dropped: the apply is really gone.
    LetGo,
}

/// The answer to a [`Look`]. `astray` is an apply of this control plane's under the name that `spec.workspaceTemplateApplyName`
/// gives: earlier versions made such, and a second EKS cluster must not be made beside it, nor its network go before it.
#[derive(Debug)]
pub(crate) enum Live {
    Create {
        control_plane: Option<Box<CaptControlPlane>>,
        cluster: Option<Box<Cluster>>,
        infrastructure: Option<Box<CaptCluster>>,
        astray: Option<String>,
    },
    Change {
        control_plane: Option<Box<CaptControlPlane>>,
    },
    DeleteSelf {
        cluster: Option<Box<Cluster>>,
    },
    Destroy {
        control_plane: Option<Box<CaptControlPlane>>,
        cluster: Option<Box<Cluster>>,
    },
    LetGo {
        apply: Option<Box<WorkspaceTemplateApply>>,
        astray: Option<String>,
    },
}

impl Live {
    fn control_plane(&self) -> Option<&CaptControlPlane> {
        match self {
            Self::Create { control_plane, .. }
            | Self::Change { control_plane }
            | Self::Destroy { control_plane, .. } => control_plane.as_deref(),
            Self::DeleteSelf { .. } | Self::LetGo { .. } => None,
        }
    }

    fn cluster(&self) -> Option<&Cluster> {
        match self {
            Self::Create { cluster, .. } | Self::DeleteSelf { cluster } | Self::Destroy { cluster, .. } => {
                cluster.as_deref()
            }
            Self::Change { .. } | Self::LetGo { .. } => None,
        }
    }
}

/// Why a step was not carried out, in words that can stand in a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// `None` when only an operator of CAPT itself can help: then the state stays what it was, with this message.
    pub(crate) reason: Option<Ready>,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn of(failure: &Failure) -> Self {
        let reason = match failure {
            Failure::OwnershipConflict { .. } => Some(Ready::OwnershipConflict),
            Failure::Invalid { .. } => Some(Ready::InvalidSpec),
            Failure::Denied { .. } => Some(Ready::AdmissionDenied),
            Failure::NamespaceTerminating { .. } => Some(Ready::NamespaceTerminating),
            _ => None,
        };
        Self {
            reason,
            message: failure.to_string(),
        }
    }
}

/// Where observations come from: the caches, or a world in a test.
pub(crate) trait Reads {
    fn control_plane(&self, key: &Key) -> Option<Arc<CaptControlPlane>>;
    fn cluster(&self, key: &Key) -> Option<Arc<Cluster>>;
    fn capt_cluster(&self, key: &Key) -> Found<CaptCluster>;
    fn apply(&self, key: &Key) -> Found<WorkspaceTemplateApply>;
}

impl Reads for Caches {
    fn control_plane(&self, key: &Key) -> Option<Arc<CaptControlPlane>> {
        self.control_planes.get(key)
    }

    fn cluster(&self, key: &Key) -> Option<Arc<Cluster>> {
        self.clusters.get(key)
    }

    fn capt_cluster(&self, key: &Key) -> Found<CaptCluster> {
        self.capt_clusters.find(key)
    }

    fn apply(&self, key: &Key) -> Found<WorkspaceTemplateApply> {
        self.applies.find(key)
    }
}

/// `None` when there is no such control plane, or none that can be read.
pub(crate) fn observe(reads: &impl Reads, key: &Key, settings: Settings) -> Option<Observed> {
    let control_plane = reads.control_plane(key)?;
    let beside = |name: &str| Key::namespaced(key.namespace().unwrap_or_default(), name);
    let owner = match ClusterOwner::of(&control_plane.metadata) {
        None => Owner::NotSet,
        Some(owner) => match reads.cluster(&beside(owner.name)) {
            Some(cluster) if cluster.metadata.uid.as_deref() == Some(owner.uid) => Owner::Present(cluster),
            _ => Owner::Gone {
                name: owner.name.to_owned(),
            },
        },
    };
    let named = match &owner {
        Owner::Present(cluster) => infrastructure_name(cluster),
        Owner::NotSet | Owner::Gone { .. } => None,
    };
    let (infrastructure, vpc_apply) = match named {
        Some(name) => (
            Infrastructure::Named {
                name: name.to_owned(),
                found: reads.capt_cluster(&beside(name)),
            },
            reads.apply(&beside(&names::vpc_apply_name(name))),
        ),
        None => (Infrastructure::NotOurs, Found::Absent),
    };
    Some(Observed {
        settings,
        infrastructure,
        vpc_apply,
        apply: reads.apply(&beside(&eks_apply::name(&control_plane.metadata))),
        owner,
        control_plane,
        live: None,
        refused: None,
    })
}

/// The name under which an earlier version may have made the apply, when that is another one.
pub(crate) fn other_apply_name(control_plane: &CaptControlPlane) -> Option<&str> {
    let named = control_plane.spec.workspace_template_apply_name.as_deref();
    named.filter(|name| !name.is_empty() && *name != eks_apply::name(&control_plane.metadata))
}

/// The CAPTCluster that the Cluster names.
pub(crate) fn infrastructure_name(cluster: &Cluster) -> Option<&str> {
    let reference = cluster.spec.infrastructure_ref.as_ref()?;
    (reference.api_group == INFRASTRUCTURE_GROUP && reference.kind == "CAPTCluster").then_some(reference.name.as_str())
}

impl Observed {
    pub(crate) fn uid(&self) -> &str {
        self.control_plane.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Whether the apply was made for this control plane.
    pub(crate) fn owns(&self, apply: &WorkspaceTemplateApply) -> bool {
        HOLD.is_of(&self.control_plane.metadata, &apply.metadata)
    }

    pub(crate) fn generation(&self) -> i64 {
        self.control_plane.metadata.generation.unwrap_or_default()
    }

    pub(crate) fn is_paused(&self) -> bool {
        let by_cluster = match &self.owner {
            Owner::Present(cluster) => is_paused(cluster),
            Owner::NotSet | Owner::Gone { .. } => false,
        };
        by_cluster || has_paused_annotation(&self.control_plane.metadata)
    }

    /// Whether a live read shows what the caches do not: that this controller must keep its hands off.
    pub(crate) fn is_stopped_live(&self) -> bool {
        let Some(live) = &self.live else { return false };
        let owner = match &self.owner {
            Owner::Present(cluster) => cluster.metadata.uid.as_deref(),
            Owner::NotSet | Owner::Gone { .. } => None,
        };
        let by_cluster = live
            .cluster()
            .is_some_and(|cluster| cluster.metadata.uid.as_deref() == owner && is_paused(cluster));
        let by_itself = live
            .control_plane()
            .is_some_and(|live| has_paused_annotation(&live.metadata) || is_left_alone(&live.metadata));
        by_cluster || by_itself
    }

    /// Whether this object is not this controller's to look after.
    pub(crate) fn is_left_alone(&self) -> bool {
        is_left_alone(&self.control_plane.metadata)
    }

    pub(crate) fn has_finalizer(&self, name: &str) -> bool {
        self.control_plane
            .metadata
            .finalizers
            .iter()
            .flatten()
            .any(|finalizer| finalizer == name)
    }
}

pub(crate) fn is_paused(cluster: &Cluster) -> bool {
    cluster.spec.paused == Some(true)
}

/// Another system makes it; or it moves to another management cluster: that deletes objects which live on elsewhere, and
/// acting on the deletion would destroy a cluster in use.
fn is_left_alone(control_plane: &ObjectMeta) -> bool {
    is_being_moved(control_plane) || is_externally_managed(control_plane)
}
