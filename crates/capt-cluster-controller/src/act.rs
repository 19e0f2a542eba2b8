//! Performs what was planned: the step, then the report.

use std::sync::Arc;

use capt_api::cluster::CaptClusterStatus;
use capt_api::conditions::is_true;
use capt_api::external::cluster::ClusterFailure;
use capt_api::names::{finalizer, vpc_apply_name};
use capt_api::workspace::WorkspaceTemplateApplySpec;
use capt_api::{CaptCluster, Cluster, WorkspaceTemplateApply};
use capt_runtime::apply::{Bond, Change, Compare, Created, Edit, FinalizerAdded, Objects, Ours, Parent, Planned};
use capt_runtime::controller::{Reconciler, Wake};
use capt_runtime::error::{Class, Classified, Failure, ObjectRef};
use capt_runtime::events::Events;
use capt_runtime::key::Key;
use capt_runtime::metrics::Lives;
use capt_runtime::transition::announce;
use jiff::Timestamp;
use kube::Resource;
use serde_json::{Value, json};

use crate::hold::HOLD;
use crate::judge::Trouble;
use crate::metrics;
use crate::observe::{Apply, Observed, Owner, Reads, Settings, observe};
use crate::plan::{Plan, Step, plan};
use crate::wish::Wish;

/// Looks after CAPTClusters.
#[derive(Debug)]
pub(crate) struct CaptClusters {
    pub(crate) reads: Reads,
    pub(crate) capt_clusters: Objects<CaptCluster>,
    pub(crate) applies: Objects<WorkspaceTemplateApply>,
    pub(crate) clusters: Objects<Cluster>,
    pub(crate) events: Events,
    pub(crate) lives: Lives,
    pub(crate) settings: Settings,
}

/// What became of a step.
enum Acted {
    Done,
    /// The CAPTCluster was written; the report goes onto this version of it.
    Rewritten(Box<CaptCluster>),
    /// The apply was there already, though the cache did not show it.
    Found(Box<WorkspaceTemplateApply>),
}

impl Reconciler for CaptClusters {
    type Error = Failure;

    async fn reconcile(&self, key: &Key) -> Result<Wake, Failure> {
        let Some((mut seen, blind)) = observe(&self.reads, self.settings, key).await? else {
            return Ok(Wake::OnEvent);
        };
        tracing::Span::current().record("generation", seen.capt_cluster.metadata.generation);
        let now = Timestamp::now();
        let mut planned = plan(&seen, now);
        let mut acted = match blind {
            Some(failure) => Err(failure),
            None => self.act(&seen, &planned.step).await,
        };
        if let Ok(Acted::Found(apply)) = acted {
            // An apply that an earlier pass made, or one that the watch filter hides because its label is missing: it is
            // brought up to date now, since no event may follow.
            seen.apply = Apply::Ours(Arc::from(apply));
            planned = plan(&seen, now);
            acted = self.act(&seen, &planned.step).await;
        }
        let stumble = match acted {
            Ok(Acted::Rewritten(fresh)) => {
                seen.capt_cluster = Arc::from(fresh);
                None
            }
            Ok(Acted::Done | Acted::Found(_)) => None,
            // What was planned from is out of date, and so is the report.
            Err(failure) if failure.class() == Class::Conflict => return Err(failure),
            Err(failure) => {
                if let Some(trouble) = Trouble::of(&failure) {
                    seen.trouble = Some(trouble);
                    planned = plan(&seen, now);
                }
                Some(failure)
            }
        };
        let reported = self.report(&seen, &planned).await;
        match stumble {
            Some(failure) => Err(failure),
            None => reported.map(|()| planned.wake),
        }
    }

    fn is_behind(&self, key: &Key) -> bool {
        let apply = Key::namespaced(key.namespace().unwrap_or_default(), &vpc_apply_name(key.name()));
        self.reads.capt_clusters.is_behind(key) || self.reads.applies.is_behind(&apply)
    }
}

impl CaptClusters {
    async fn act(&self, seen: &Observed, step: &Step) -> Result<Acted, Failure> {
        let capt_cluster = Planned::new(&*seen.capt_cluster)?;
        let parent = Parent::of(&capt_cluster);
        let apply = || match &seen.apply {
            Apply::Ours(apply) => Planned::new(&**apply),
            _ => Err(Failure::Misuse {
                object: ObjectRef::new("WorkspaceTemplateApply", None, &seen.apply_name()),
                what: "a step on the apply was planned without one".into(),
            }),
        };
        let is_ours = |apply: &WorkspaceTemplateApply| HOLD.is_of(&seen.capt_cluster.metadata, &apply.metadata);
        let ours = || {
            let apply = apply()?;
            Ours::by_identity(&self.applies, apply, is_ours(apply.object()))
        };
        match step {
            Step::Nothing => {}
            Step::AddFinalizer => {
                let added = self
                    .capt_clusters
                    .add_finalizer(
                        &capt_cluster,
                        finalizer::CAPT_CLUSTER,
                        &Default::default(),
                        "a VPC may be made for it",
                    )
                    .await?;
                if let FinalizerAdded::Added(fresh) = added {
                    return Ok(Acted::Rewritten(Box::new(fresh)));
                }
            }
            Step::CreateApply(apply) => {
                self.capt_clusters.confirm_living(&capt_cluster).await?;
                let why = "the CAPTCluster asks for a VPC";
                let created = self
                    .applies
                    .create_identified(&parent, Bond::Reference, (**apply).clone(), is_ours, why)
                    .await?;
                if let Created::Adopted(apply) | Created::Deleting(apply) = created {
                    return Ok(Acted::Found(Box::new(apply)));
                }
            }
            Step::HoldApply => {
                let why = "the VPC must not be destroyed before its CAPTCluster goes";
                // An apply that is being deleted takes no hold; the next pass reports that.
                let _ = self
                    .applies
                    .add_finalizer(&apply()?, finalizer::CAPT_CLUSTER_HOLD, &Default::default(), why)
                    .await?;
            }
            Step::AdoptApply => {
                let _ = self
                    .applies
                    .adopt(&ours()?, &parent, Bond::Reference, "its ownerReference was missing")
                    .await?;
            }
            Step::ChangeApply(wish) => {
                let _ = self
                    .applies
                    .change(&ours()?, &change(wish)?, "the CAPTCluster asks for another VPC")
                    .await?;
            }
            Step::RetainApply(retain) => {
                let mut spec = apply()?.object().spec.clone();
                spec.retain_workspace_on_delete = retain.then_some(true);
                let change = Change::spec(spec_json(&spec)?, Compare::Exact);
                let why = if *retain {
                    "the VPC is to be kept"
                } else {
                    "the VPC is to be destroyed"
                };
                let _ = self.applies.change(&ours()?, &change, why).await?;
            }
            Step::DeleteApply => {
                let _ = self
                    .applies
                    .delete(
                        &ours()?,
                        "its CAPTCluster is being deleted, and no control plane is left",
                    )
                    .await?;
            }
            Step::ReleaseHold => {
                let why = "its CAPTCluster is being deleted, and no control plane is left";
                let _ = self
                    .applies
                    .remove_finalizers(&apply()?, &[finalizer::CAPT_CLUSTER_HOLD], why)
                    .await?;
            }
            Step::RemoveFinalizer => {
                let why = "nothing that was made for it is left";
                let released = self
                    .capt_clusters
                    .remove_finalizers(&capt_cluster, &[finalizer::CAPT_CLUSTER], why)
                    .await?;
                if !released.is_unchanged() {
                    metrics::gone(&self.lives, &seen.capt_cluster, Timestamp::now());
                    tracing::info!("the CAPTCluster is released");
                }
            }
        }
        Ok(Acted::Done)
    }

    async fn report(&self, seen: &Observed, plan: &Plan) -> Result<(), Failure> {
        if let Some(status) = &plan.status {
            let capt_cluster = Planned::new(&*seen.capt_cluster)?;
            let outcome = self
                .capt_clusters
                .apply_status(&capt_cluster, status, "the VPC was looked at")
                .await?;
            if !outcome.is_unchanged() {
                self.tell(seen, status);
                metrics::reported(&self.lives, &seen.capt_cluster, status, Timestamp::now());
            }
        }
        if plan.clear_cluster_failure
            && let Owner::Present(cluster) = &seen.owner
            && let Some(edit) = clearing(cluster)
        {
            let why = "the CAPTCluster's failure that it shows is over";
            let _ = self
                .clusters
                .patch_status(&Planned::new(&**cluster)?, edit, why)
                .await?;
        }
        Ok(())
    }

    /// Events: how ready the network is, and, when that does not change, what goes wrong and is mended beside it.
    fn tell(&self, seen: &Observed, status: &CaptClusterStatus) {
        let (before, after) = (seen.before().conditions, &status.conditions);
        let (was, is) = (|type_| is_true(&before, type_), |type_| is_true(after, type_));
        let mut told = vec!["Ready"];
        if was("Ready") && is("Ready") {
            told.extend(is("VPCFailed").then_some("VPCFailed"));
            told.extend((was("VPCFailed") && is("VPCReady")).then_some("VPCReady"));
        }
        told.extend(
            ["Deleting", "Paused"]
                .into_iter()
                .filter(|type_| was(type_) || is(type_)),
        );
        let about = seen.capt_cluster.object_ref(&());
        announce(&self.events, &about, &before, after, &told);
    }
}

fn change(wish: &Wish) -> Result<Change, Failure> {
    let change = Change::spec(spec_json(&wish.spec)?, Compare::Exact);
    Ok(wish
        .labels
        .iter()
        .fold(change, |change, (key, value)| change.label(key, value.as_deref())))
}

fn spec_json(spec: &WorkspaceTemplateApplySpec) -> Result<Value, Failure> {
    serde_json::to_value(spec).map_err(|_| Failure::Misuse {
        object: ObjectRef::new("WorkspaceTemplateApply", None, ""),
        what: "its spec cannot be written as JSON".into(),
    })
}

/// Takes exactly the failure away that was seen; another one that came meanwhile stays.
fn clearing(cluster: &Cluster) -> Option<Edit> {
    let shown: &ClusterFailure = cluster.status.as_ref()?.deprecated.as_ref()?.v1beta1.as_ref()?;
    let mut edit = Edit::new();
    for (field, value) in [
        ("failureReason", &shown.failure_reason),
        ("failureMessage", &shown.failure_message),
    ] {
        let path = ["status", "deprecated", "v1beta1", field];
        edit = edit.only_if(&path, value.as_ref().map(|value| json!(value)));
        if value.is_some() {
            edit = edit.remove(&path);
        }
    }
    Some(edit)
}
