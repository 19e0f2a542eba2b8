//! Performs a plan: at most one step, then the report; and tells what turned.

use std::collections::BTreeMap;

use capt_api::conditions::control_plane::{Deleting, Paused, Ready};
use capt_api::conditions::{self, Reason};
use capt_api::controlplane::CaptControlPlaneStatus;
use capt_api::names::{annotation, eks_apply_name, finalizer};
use capt_api::{CaptCluster, CaptControlPlane, Cluster, WorkspaceTemplateApply};
use capt_runtime::apply::{
    Bond, Change, Compare, Created, Deleted, FinalizerAdded, Objects, Ours, Parent, Planned, is_ours,
};
use capt_runtime::cache::Found;
use capt_runtime::controller::{Reconciler, Wake};
use capt_runtime::error::{Class, Classified, Failure, ObjectRef};
use capt_runtime::events::{Events, Severity};
use capt_runtime::key::Key;
use capt_runtime::metrics::Lives;
use capt_runtime::transition::announce;
use jiff::Timestamp;
use kube::Resource;

use crate::observe::{
    Caches, Infrastructure, Live, Look, Observed, Owner, Refusal, Settings, observe, other_apply_name,
};
use crate::plan::{FINALIZERS, Plan, Step, plan};
use crate::{eks_apply, failure, metrics};

/// Looks after CAPTControlPlanes.
#[derive(Debug)]
pub(crate) struct ControlPlanes {
    pub(crate) settings: Settings,
    pub(crate) caches: Caches,
    pub(crate) control_planes: Objects<CaptControlPlane>,
    pub(crate) clusters: Objects<Cluster>,
    pub(crate) capt_clusters: Objects<CaptCluster>,
    pub(crate) applies: Objects<WorkspaceTemplateApply>,
    pub(crate) events: Events,
    pub(crate) lives: Lives,
}

impl Reconciler for ControlPlanes {
    type Error = Failure;

    async fn reconcile(&self, key: &Key) -> Result<Wake, Failure> {
        let Some(mut seen) = observe(&self.caches, key, self.settings) else {
            return Ok(Wake::OnEvent);
        };
        tracing::Span::current().record("generation", seen.generation());
        let now = Timestamp::now();
        let first = plan(&seen, now);
        let (planned, result) = match first.step {
            Step::Look(look) => match self.look(&seen, look).await {
                Ok(live) => {
                    seen.live = Some(live);
                    let second = plan(&seen, now);
                    let result = self.perform(&seen, &second.step).await;
                    (Some(second), result)
                }
                Err(failure) => (None, Err(failure)),
            },
            _ => (None, self.perform(&seen, &first.step).await),
        };
        let failure = match result {
            Ok(()) => {
                let planned = planned.unwrap_or(first);
                self.report(&seen, &planned).await?;
                return Ok(planned.wake);
            }
            Err(failure) => failure,
        };
        let told = match failure.class() {
            // The object is no longer the one that was planned from; so is the report.
            Class::Conflict => return Err(failure),
            Class::Terminal(_) | Class::Bug => {
                seen.refused = Some(Refusal::of(&failure));
                plan(&seen, now)
            }
            // It passes when somebody makes room, who has to know of it.
            Class::Transient if matches!(failure, Failure::QuotaExceeded { .. }) => {
                seen.refused = Some(Refusal::of(&failure));
                plan(&seen, now)
            }
            // The step was not taken: things stand where they stood before it.
            Class::Transient => first,
        };
        if let Err(second) = self.report(&seen, &told).await {
            tracing::debug!(error = %second, "the report could not be written either");
        }
        Err(failure)
    }

    fn is_behind(&self, key: &Key) -> bool {
        let apply = |name| Key::namespaced(key.namespace().unwrap_or_default(), name);
        self.caches.control_planes.is_behind(key) || self.caches.applies.is_behind(&apply(&eks_apply_name(key.name())))
    }
}

impl ControlPlanes {
    async fn look(&self, seen: &Observed, look: Look) -> Result<Live, Failure> {
        let metadata = &seen.control_plane.metadata;
        let namespace = metadata.namespace.as_deref();
        let name = metadata.name.as_deref().unwrap_or_default();
        Ok(match look {
            Look::Create => Live::Create {
                control_plane: self.control_planes.live(namespace, name).await?.map(Box::new),
                cluster: self.live_cluster(seen).await?,
                infrastructure: match &seen.infrastructure {
                    Infrastructure::Named { name, .. } => self.capt_clusters.live(namespace, name).await?.map(Box::new),
                    Infrastructure::NotOurs => None,
                },
                astray: self.live_astray(seen).await?,
            },
            Look::Change => Live::Change {
                control_plane: self.control_planes.live(namespace, name).await?.map(Box::new),
            },
            Look::DeleteSelf => Live::DeleteSelf {
                cluster: self.live_cluster(seen).await?,
            },
            Look::Destroy => Live::Destroy {
                control_plane: self.control_planes.live(namespace, name).await?.map(Box::new),
                cluster: self.live_cluster(seen).await?,
            },
            Look::LetGo => Live::LetGo {
                apply: self
                    .applies
                    .live(namespace, &eks_apply::name(metadata))
                    .await?
                    .map(Box::new),
                astray: self.live_astray(seen).await?,
            },
        })
    }

    async fn live_astray(&self, seen: &Observed) -> Result<Option<String>, Failure> {
        let Some(name) = other_apply_name(&seen.control_plane) else {
            return Ok(None);
        };
        let namespace = seen.control_plane.metadata.namespace.as_deref();
        let live = self.applies.live(namespace, name).await?;
        Ok(live
            .filter(|live| is_ours(&live.metadata, seen.uid()))
            .map(|_| name.to_owned()))
    }

    async fn live_cluster(&self, seen: &Observed) -> Result<Option<Box<Cluster>>, Failure> {
        let Owner::Present(cluster) = &seen.owner else {
            return Ok(None);
        };
        let metadata = &cluster.metadata;
        let live = self
            .clusters
            .live(
                metadata.namespace.as_deref(),
                metadata.name.as_deref().unwrap_or_default(),
            )
            .await?;
        Ok(live.map(Box::new))
    }

    async fn perform(&self, seen: &Observed, step: &Step) -> Result<(), Failure> {
        let control_plane = Planned::new(seen.control_plane.as_ref())?;
        let parent = Parent::of(&control_plane);
        match step {
            Step::Nothing | Step::Look(_) => {}
            Step::AddFinalizer => {
                let why = "an EKS cluster is about to be made";
                let added = self
                    .control_planes
                    .add_finalizer(&control_plane, finalizer::CAPT_CONTROL_PLANE, &BTreeMap::new(), why)
                    .await?;
                if let FinalizerAdded::Deleting = added {
                    tracing::debug!("the control plane is being deleted and takes no finalizer");
                }
            }
            Step::CreateApply(apply) => {
                let why = "the control plane needs its EKS cluster";
                match self
                    .applies
                    .create_identified(
                        &parent,
                        Bond::Reference,
                        apply.as_ref().clone(),
                        |live| seen.owns(live),
                        why,
                    )
                    .await?
                {
                    Created::New(_) => {}
                    // The watch brings it, and what is to be done with it.
                    Created::Adopted(_) | Created::Deleting(_) => tracing::debug!("the apply was there already"),
                }
            }
            Step::HoldApply => {
                let why = "the control plane uses the EKS cluster";
                let apply = self.apply(seen)?;
                let hold = finalizer::CAPT_CONTROL_PLANE_HOLD;
                match self.applies.add_finalizer(&apply, hold, &BTreeMap::new(), why).await? {
                    FinalizerAdded::Unchanged | FinalizerAdded::Added(_) => {}
                    FinalizerAdded::Deleting => tracing::debug!("the apply is being deleted and takes no hold"),
                }
            }
            Step::AdoptApply => {
                let ours = self.our_apply(seen)?;
                let why = "the marks of its owner were removed";
                self.applies
                    .adopt(&ours, &parent, Bond::Reference, why)
                    .await?
                    .written();
            }
            Step::ChangeApply { spec, labels, given } => {
                let ours = self.our_apply(seen)?;
                let spec = serde_json::to_value(spec).map_err(|error| Failure::Misuse {
                    object: apply_ref(seen),
                    what: format!("its spec cannot be written as JSON: {error}"),
                })?;
                let mut change = labels
                    .iter()
                    .fold(Change::spec(spec, Compare::Exact), |change, (key, value)| {
                        change.label(key, value.as_deref())
                    });
                if let Some(given) = given {
                    change = change.annotation(annotation::NETWORK_VARIABLES, Some(given));
                }
                self.applies
                    .change(&ours, &change, "the control plane or its network has changed")
                    .await?
                    .written();
            }
            Step::ClearClusterFailure(caused) => {
                let Owner::Present(cluster) = &seen.owner else {
                    return Ok(());
                };
                let cluster = Planned::new(cluster.as_ref())?;
                let why = "the control plane's failure is over";
                self.clusters
                    .patch_status(&cluster, failure::clearing(caused), why)
                    .await?
                    .written();
            }
            Step::DeleteSelf => return self.delete_self(seen, control_plane).await,
            Step::DeleteApply => {
                let ours = self.our_apply(seen)?;
                told(self.applies.delete(&ours, "the control plane is being deleted").await?);
            }
            Step::ReleaseApply => {
                let why = "endpoint and kubeconfig are gone; the EKS cluster may be destroyed";
                let hold = [finalizer::CAPT_CONTROL_PLANE_HOLD];
                self.applies
                    .remove_finalizers(&self.apply(seen)?, &hold, why)
                    .await?
                    .written();
            }
            Step::DropFinalizers => {
                let why = "the EKS cluster is gone";
                let released = self
                    .control_planes
                    .remove_finalizers(&control_plane, &FINALIZERS, why)
                    .await?;
                if !released.is_unchanged() {
                    metrics::gone(&self.lives, &seen.control_plane, Timestamp::now());
                }
            }
        }
        Ok(())
    }

    async fn delete_self(&self, seen: &Observed, control_plane: Planned<'_, CaptControlPlane>) -> Result<(), Failure> {
        let why = "its Cluster is being deleted and names another control plane";
        let itself = Ours::by_identity(&self.control_planes, control_plane, true)?;
        if let Deleted::Requested = self.control_planes.delete(&itself, why).await? {
            let about = seen.control_plane.object_ref(&());
            self.events.publish(
                about,
                Severity::Normal,
                "Superseded",
                "Delete",
                &format!("deleted, because {why}"),
            );
        }
        Ok(())
    }

    fn apply<'a>(&self, seen: &'a Observed) -> Result<Planned<'a, WorkspaceTemplateApply>, Failure> {
        match &seen.apply {
            Found::Present(apply) => Planned::new(apply.as_ref()),
            Found::Absent | Found::Unreadable(_) => Err(Failure::Misuse {
                object: apply_ref(seen),
                what: "no such apply was observed".into(),
            }),
        }
    }

    fn our_apply<'a>(&self, seen: &'a Observed) -> Result<Ours<'a, WorkspaceTemplateApply>, Failure> {
        let apply = self.apply(seen)?;
        Ours::by_identity(&self.applies, apply, seen.owns(apply.object()))
    }

    async fn report(&self, seen: &Observed, planned: &Plan) -> Result<(), Failure> {
        let Some(status) = &planned.status else { return Ok(()) };
        let object = Planned::new(seen.control_plane.as_ref())?;
        let why = "what is known of the control plane has changed";
        let written = self.control_planes.apply_status(&object, status, why).await?;
        if !written.is_unchanged() {
            self.tell(seen, status);
            metrics::reported(&self.lives, &seen.control_plane, status, Timestamp::now());
        }
        Ok(())
    }

    /// One step turns several conditions; people read of it once.
    fn tell(&self, seen: &Observed, status: &CaptControlPlaneStatus) {
        let before = seen
            .control_plane
            .status
            .as_ref()
            .map_or(&[][..], |status| &status.conditions);
        let mut types = vec![match seen.control_plane.metadata.deletion_timestamp {
            Some(_) => Deleting::TYPE,
            None => Ready::TYPE,
        }];
        // That a new object is not paused is no news.
        if conditions::is_true(before, Paused::TYPE) || conditions::is_true(&status.conditions, Paused::TYPE) {
            types.push(Paused::TYPE);
        }
        announce(
            &self.events,
            &seen.control_plane.object_ref(&()),
            before,
            &status.conditions,
            &types,
        );
    }
}

fn told(deleted: Deleted) {
    if deleted != Deleted::Requested {
        tracing::debug!(?deleted, "the apply was on its way out already");
    }
}

fn apply_ref(seen: &Observed) -> ObjectRef {
    let metadata = &seen.control_plane.metadata;
    ObjectRef::new(
        "WorkspaceTemplateApply",
        metadata.namespace.as_deref(),
        &eks_apply::name(metadata),
    )
}
