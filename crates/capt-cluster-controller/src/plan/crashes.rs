//! Crashes: a small management cluster in memory, in which this controller is cut off after any of its writes, and sees
//! everything one write late. Whatever happens, creation and deletion end the same way, with one create and one delete,
//! and never destroy a VPC under a control plane.

use std::sync::Arc;

use capt_api::names::finalizer;
use capt_api::{CaptCluster, Cluster, WorkspaceTemplateApply};
use capt_runtime::apply::is_ours;
use capt_runtime::cache::Found;
use capt_runtime::error::Failure;
use capt_runtime::key::Key;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::scene::*;
use super::*;
use crate::observe::{ControlPlaneMeta, Sources, observe};

/// What the API server holds.
#[derive(Clone)]
struct World {
    version: u64,
    capt_cluster: Option<CaptCluster>,
    cluster: Cluster,
    apply: Option<WorkspaceTemplateApply>,
    control_planes: Vec<ControlPlaneMeta>,
    eks_applies: Vec<String>,
    creates: usize,
    deletes: usize,
    /// Everything happens in this moment, a second after the object was made; or long after that.
    now: Timestamp,
}

/// The write was planned from something else than what is there.
#[derive(Debug, PartialEq)]
struct LostRace;

impl World {
    /// A new CAPTCluster of a Cluster that has a control plane.
    fn new(spec: Value) -> Self {
        let born = at(0).to_string();
        let metadata = json!({"finalizers": null, "creationTimestamp": born});
        let capt_cluster = capt_cluster(json!({"metadata": metadata, "spec": spec}));
        let control_plane = json!({
            "apiVersion": "controlplane.cluster.x-k8s.io/v1beta1", "kind": "CAPTControlPlane",
            "metadata": {
                "name": "cp", "namespace": "ns",
                "ownerReferences": [{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "demo", "uid": "u-demo"}],
            },
        });
        Self {
            version: 1,
            capt_cluster: Some(capt_cluster),
            cluster: cluster(json!({})),
            apply: None,
            control_planes: vec![serde_json::from_value(control_plane).unwrap()],
            eks_applies: Vec::new(),
            creates: 0,
            deletes: 0,
            now: at(1),
        }
    }

    fn next_version(&mut self) -> Option<String> {
        self.version += 1;
        Some(self.version.to_string())
    }

    /// Changes the CAPTCluster; it goes when it is being deleted and nothing holds it.
    fn write_capt_cluster(&mut self, write: impl FnOnce(&mut CaptCluster)) {
        let version = self.next_version();
        let object = self.capt_cluster.as_mut().expect("a CAPTCluster");
        write(object);
        object.metadata.resource_version = version;
        if is_released(&object.metadata) {
            assert!(self.apply.is_none(), "the CAPTCluster went before its apply");
            self.capt_cluster = None;
        }
    }

    fn write_apply(&mut self, write: impl FnOnce(&mut WorkspaceTemplateApply)) {
        let version = self.next_version();
        let object = self.apply.as_mut().expect("an apply");
        let spec = object.spec.clone();
        write(object);
        object.metadata.resource_version = version;
        if object.spec != spec {
            object.metadata.generation = object.metadata.generation.map(|generation| generation + 1);
        }
        if is_released(&object.metadata) {
            self.apply = None;
        }
    }

    fn merge_apply(&mut self, over: Value) {
        self.write_apply(|apply| {
            let mut object = serde_json::to_value(&*apply).unwrap();
            merge(&mut object, over);
            *apply = serde_json::from_value(object).unwrap();
        });
    }

    /// What the API server makes of a step that was planned from `seen`. The guards are those of the write protocol.
    /// `Ok(true)`: the apply was there already.
    fn perform(&mut self, seen: &Observed, step: &Step) -> Result<bool, LostRace> {
        let uid = seen.capt_cluster.metadata.uid.as_deref().unwrap();
        let same_finalizers = |live: Option<&ObjectMeta>, planned: &ObjectMeta| {
            let live = live.filter(|live| live.uid == planned.uid).ok_or(LostRace)?;
            (live.finalizers == planned.finalizers).then_some(()).ok_or(LostRace)
        };
        let live_capt_cluster = self.capt_cluster.as_ref().map(|object| &object.metadata);
        let live_apply = self.apply.as_ref().map(|object| &object.metadata);
        let planned_apply = match &seen.apply {
            Apply::Ours(apply) => Some(&apply.metadata),
            _ => None,
        };
        match step {
            Step::Nothing => {}
            Step::AddFinalizer => {
                same_finalizers(live_capt_cluster, &seen.capt_cluster.metadata)?;
                if live_capt_cluster.is_some_and(|live| live.deletion_timestamp.is_none()) {
                    self.write_capt_cluster(|object| add(&mut object.metadata, finalizer::CAPT_CLUSTER));
                }
            }
            Step::CreateApply(wished) => {
                live_capt_cluster
                    .filter(|live| live.uid.as_deref() == Some(uid) && live.deletion_timestamp.is_none())
                    .ok_or(LostRace)?;
                if let Some(there) = live_apply {
                    assert!(is_ours(there, uid), "nobody else makes applies here");
                    return Ok(true);
                }
                let guarded = live_capt_cluster.is_some_and(|live| has(live, finalizer::CAPT_CLUSTER));
                assert!(guarded, "an apply was made before the finalizer that guards it");
                let mut made = (**wished).clone();
                made.metadata.uid = Some("u-apply".into());
                made.metadata.generation = Some(1);
                made.metadata.creation_timestamp = Some(Time(at(0)));
                made.metadata.owner_references = apply(json!({})).metadata.owner_references;
                made.metadata.resource_version = self.next_version();
                self.apply = Some(made);
                self.creates += 1;
            }
            Step::RetainApply(retain) => {
                let planned = planned_apply.expect("planned from an apply");
                let same = live_apply.is_some_and(|live| live.resource_version == planned.resource_version);
                same.then_some(()).ok_or(LostRace)?;
                self.write_apply(|apply| apply.spec.retain_workspace_on_delete = retain.then_some(true));
            }
            Step::DeleteApply => {
                if live_apply.is_some_and(|live| live.deletion_timestamp.is_none()) {
                    assert!(self.control_planes.is_empty(), "deleted under a control plane");
                    self.write_apply(|apply| apply.metadata.deletion_timestamp = Some(Time(at(0))));
                    self.deletes += 1;
                }
            }
            Step::ReleaseHold => {
                if let Some(live) = live_apply {
                    same_finalizers(Some(live), planned_apply.expect("planned from an apply"))?;
                    assert!(self.control_planes.is_empty(), "released under a control plane");
                    let retained = self
                        .apply
                        .as_ref()
                        .and_then(|apply| apply.spec.retain_workspace_on_delete);
                    assert_eq!(
                        retained, seen.capt_cluster.spec.retain_vpc_on_delete,
                        "released without the right retention"
                    );
                    self.write_apply(|apply| remove(&mut apply.metadata, finalizer::CAPT_CLUSTER_HOLD));
                }
            }
            Step::RemoveFinalizer => {
                if self.capt_cluster.is_some() {
                    same_finalizers(live_capt_cluster, &seen.capt_cluster.metadata)?;
                    self.write_capt_cluster(|object| remove(&mut object.metadata, finalizer::CAPT_CLUSTER));
                }
            }
            Step::HoldApply | Step::AdoptApply | Step::ChangeApply(_) => {
                panic!("nobody changes the apply here, and yet: {step:?}")
            }
        }
        Ok(false)
    }

    fn report(&mut self, planned_from: &CaptCluster, status: &CaptClusterStatus) -> Result<(), LostRace> {
        if planned_from.status.as_ref() == Some(status) {
            return Ok(());
        }
        let live = self.capt_cluster.as_ref().ok_or(LostRace)?;
        let same = live.metadata.resource_version == planned_from.metadata.resource_version;
        same.then_some(()).ok_or(LostRace)?;
        self.write_capt_cluster(|object| object.status = Some(status.clone()));
        Ok(())
    }
}

fn has(metadata: &ObjectMeta, finalizer: &str) -> bool {
    metadata.finalizers.iter().flatten().any(|present| present == finalizer)
}

fn add(metadata: &mut ObjectMeta, finalizer: &str) {
    metadata.finalizers.get_or_insert_default().push(finalizer.into());
}

fn remove(metadata: &mut ObjectMeta, finalizer: &str) {
    metadata
        .finalizers
        .get_or_insert_default()
        .retain(|present| present != finalizer);
}

fn is_released(metadata: &ObjectMeta) -> bool {
    metadata.deletion_timestamp.is_some() && metadata.finalizers.iter().flatten().next().is_none()
}

/// The world as the controller sees it.
struct View<'a> {
    cached: &'a World,
    live: &'a World,
}

impl Sources for View<'_> {
    fn capt_cluster(&self, _: &Key) -> Option<Arc<CaptCluster>> {
        self.cached.capt_cluster.clone().map(Arc::new)
    }
    fn cluster(&self, _: &Key) -> Option<Arc<Cluster>> {
        Some(Arc::new(self.cached.cluster.clone()))
    }
    fn apply(&self, _: &Key) -> Found<WorkspaceTemplateApply> {
        self.cached
            .apply
            .clone()
            .map_or(Found::Absent, |apply| Found::Present(Arc::new(apply)))
    }
    fn control_planes(&self, _: &Key) -> Vec<Arc<ControlPlaneMeta>> {
        self.cached.control_planes.iter().cloned().map(Arc::new).collect()
    }
    async fn live_capt_cluster(&self, _: &Key) -> Result<Option<CaptCluster>, Failure> {
        Ok(self.live.capt_cluster.clone())
    }
    async fn live_cluster(&self, _: &Key) -> Result<Option<Cluster>, Failure> {
        Ok(Some(self.live.cluster.clone()))
    }
    async fn live_apply(&self, key: &Key) -> Result<Option<WorkspaceTemplateApply>, Failure> {
        let named = |apply: &WorkspaceTemplateApply| apply.metadata.name.as_deref() == Some(key.name());
        Ok(self.live.apply.clone().filter(named))
    }
    async fn live_control_planes(&self, _: &str) -> Result<Vec<ControlPlaneMeta>, Failure> {
        Ok(self.live.control_planes.clone())
    }
    async fn live_eks_applies(&self, _: &Key) -> Result<Vec<String>, Failure> {
        Ok(self.live.eks_applies.clone())
    }
    async fn vpc_id_in_secret(&self, _: &Key) -> Result<Option<String>, Failure> {
        Ok(None)
    }
}

/// The controller in its world.
struct Run {
    world: World,
    /// What its caches show.
    cached: World,
    /// Caches stay one write behind until there is nothing else to do.
    late: bool,
    writes: u64,
    /// The write after which the controller is cut off, once.
    crash_after: Option<u64>,
}

impl Run {
    /// Counts the writes since `before`; true when the crash comes now.
    fn crashes(&mut self, before: &World) -> bool {
        let wrote = self.world.version - before.version;
        self.writes += wrote;
        wrote > 0 && self.crash_after == Some(self.writes)
    }

    /// One pass, as `act` does it. True when something was written.
    async fn pass(&mut self) -> bool {
        let before = self.world.clone();
        let view = View {
            cached: &self.cached,
            live: &self.world,
        };
        let key = Key::namespaced("ns", "net");
        let Some((mut seen, None)) = observe(&view, settings(), &key).await.unwrap() else {
            return false;
        };
        let now = self.world.now;
        let mut planned = plan(&seen, now);
        let mut acted = self.world.perform(&seen, &planned.step);
        if acted == Ok(true) {
            seen.apply = Apply::Ours(Arc::new(self.world.apply.clone().unwrap()));
            planned = plan(&seen, now);
            acted = self.world.perform(&seen, &planned.step);
        }
        let mut go_on = acted.is_ok() && !self.crashes(&before);
        if go_on && planned.step == Step::AddFinalizer {
            // The report goes onto the object as the write of the finalizer left it.
            seen.capt_cluster = Arc::new(self.world.capt_cluster.clone().unwrap());
        }
        if go_on && let Some(status) = &planned.status {
            let stepped = self.world.clone();
            go_on = self.world.report(&seen.capt_cluster, status).is_ok();
            self.crashes(&stepped);
        }
        let wrote = self.world.version != before.version;
        if wrote && self.late {
            self.cached = before;
        } else {
            self.cached = self.world.clone();
        }
        wrote || !go_on
    }

    async fn settle(&mut self) {
        for _ in 0..50 {
            if !self.pass().await {
                // Caches catch up in the end.
                self.cached = self.world.clone();
                if !self.pass().await {
                    return;
                }
            }
        }
        panic!("it does not come to rest");
    }

    /// Others do something, and the controller does what is to be done then.
    async fn then(&mut self, others: impl FnOnce(&mut World)) {
        let before = self.world.clone();
        others(&mut self.world);
        self.cached = if self.late { before } else { self.world.clone() };
        self.settle().await;
    }

    /// A whole life: made, ready, deleted while the control plane is still there, and gone.
    async fn life(spec: Value, now: Timestamp, late: bool, crash_after: Option<u64>) -> Self {
        let mut world = World::new(spec);
        world.now = now;
        let mut run = Self {
            cached: world.clone(),
            world,
            late,
            writes: 0,
            crash_after,
        };
        run.settle().await;
        run.then(|world| {
            world.merge_apply(says("False", "Applying", "", json!({})));
            world.write_apply(|apply| add(&mut apply.metadata, finalizer::WORKSPACE_TEMPLATE_APPLY));
        })
        .await;
        run.then(|world| world.merge_apply(says("True", "Available", "", json!({"vpc_id": "vpc-1"}))))
            .await;
        let status = run
            .world
            .capt_cluster
            .as_ref()
            .and_then(|object| object.status.clone())
            .unwrap();
        assert_eq!((status.ready, status.vpc_id.as_deref()), (Some(true), Some("vpc-1")));
        assert_eq!(run.world.creates, 1);

        run.then(|world| world.write_capt_cluster(|object| object.metadata.deletion_timestamp = Some(Time(at(0)))))
            .await;
        assert!(
            run.world
                .apply
                .as_ref()
                .is_some_and(|apply| apply.metadata.deletion_timestamp.is_none())
        );
        run.then(|world| {
            world.control_planes.clear();
            world.version += 1;
        })
        .await;
        let going = &run.world.apply.as_ref().expect("its Workspace is still there").metadata;
        assert!(going.deletion_timestamp.is_some() && !has(going, finalizer::CAPT_CLUSTER_HOLD));
        assert!(run.world.capt_cluster.is_some(), "it went before its apply");
        run.then(|world| world.write_apply(|apply| remove(&mut apply.metadata, finalizer::WORKSPACE_TEMPLATE_APPLY)))
            .await;
        run
    }
}

/// Every life, quick and slow, uncut and cut after each of its writes. `most`: what a quick and a slow one may write.
async fn every_life(spec: Value, most: [u64; 2]) {
    for (now, most) in [at(1), at(100)].into_iter().zip(most) {
        for late in [false, true] {
            let uncut = Run::life(spec.clone(), now, late, None).await;
            assert_eq!(uncut.writes, most, "at {now}, late {late}");
            for crash_after in 1..=uncut.writes {
                let run = Run::life(spec.clone(), now, late, Some(crash_after)).await;
                let world = &run.world;
                let case = format!("at {now}, late {late}, cut after {crash_after}");
                assert!(world.capt_cluster.is_none() && world.apply.is_none(), "{case}");
                assert_eq!((world.creates, world.deletes), (1, 1), "{case}");
            }
        }
    }
}

#[tokio::test]
async fn a_life_may_be_cut_anywhere() {
    every_life(json!({}), [7, 11]).await;
}

#[tokio::test]
async fn a_life_whose_vpc_is_kept_may_be_cut_anywhere() {
    every_life(json!({"retainVpcOnDelete": true}), [7, 11]).await;
}

/// The retention is decided after the apply was made, by the last spec before the end.
#[tokio::test]
async fn a_late_retention_reaches_the_apply_before_it_is_let_go() {
    for late in [false, true] {
        let world = World::new(json!({}));
        let mut run = Run {
            cached: world.clone(),
            world,
            late,
            writes: 0,
            crash_after: None,
        };
        run.settle().await;
        run.world.control_planes.clear();
        run.then(|world| {
            world.write_capt_cluster(|object| {
                object.spec.retain_vpc_on_delete = Some(true);
                object.metadata.deletion_timestamp = Some(Time(at(0)));
            });
        })
        .await;
        assert!(
            run.world.capt_cluster.is_none() && run.world.apply.is_none(),
            "late {late}"
        );
        assert_eq!((run.world.creates, run.world.deletes), (1, 1));
    }
}

/// A cache that has seen nothing yet must not let anything go: what it lacks is asked of the API server.
#[tokio::test]
async fn an_absence_in_a_cache_is_no_absence() {
    let step = |late: World, live: World| async move {
        let view = View {
            cached: &late,
            live: &live,
        };
        let (seen, _) = observe(&view, settings(), &Key::namespaced("ns", "net"))
            .await
            .unwrap()
            .unwrap();
        plan(&seen, at(1)).step
    };
    let mut live = World::new(json!({}));
    live.write_capt_cluster(|object| add(&mut object.metadata, finalizer::CAPT_CLUSTER));
    live.write_capt_cluster(|object| object.metadata.deletion_timestamp = Some(Time(at(0))));
    live.apply = Some(apply(json!({})));
    let mut late = live.clone();
    late.apply = None;
    late.control_planes.clear();

    assert_eq!(
        step(late.clone(), live.clone()).await,
        Step::Nothing,
        "a control plane is there"
    );
    live.control_planes.clear();
    assert_eq!(
        step(late.clone(), live.clone()).await,
        Step::ReleaseHold,
        "the apply is there"
    );
    live.apply = None;
    assert_eq!(
        step(late.clone(), live.clone()).await,
        Step::RemoveFinalizer,
        "nothing is there"
    );

    // Another Cluster of the same name stands in the cache; the owner, which is paused, does not yet.
    late.cluster.metadata.uid = Some("u-earlier".into());
    live.cluster.spec.paused = Some(true);
    assert_eq!(step(late, live).await, Step::Nothing, "its Cluster is paused");
}

/// A retention or a pause that the API server accepted just now still keeps the VPC; and so does an EKS cluster whose control
/// plane is gone, because somebody removed its finalizers.
#[tokio::test]
async fn the_last_look_before_the_destruction_is_at_the_api_server() {
    let deleted = json!({"deletionTimestamp": at(0).to_string()});
    for (metadata, step) in [
        (json!({}), Step::ReleaseHold),
        (deleted, Step::ReleaseHold),
        (json!({"finalizers": []}), Step::DeleteApply),
    ] {
        let mut late = World::new(json!({}));
        late.control_planes.clear();
        late.write_capt_cluster(|object| add(&mut object.metadata, finalizer::CAPT_CLUSTER));
        late.write_capt_cluster(|object| object.metadata.deletion_timestamp = Some(Time(at(0))));
        late.apply = Some(apply(json!({"metadata": metadata})));
        let planned = |live: World| {
            let late = late.clone();
            async move {
                let view = View {
                    cached: &late,
                    live: &live,
                };
                let (seen, _) = observe(&view, settings(), &Key::namespaced("ns", "net"))
                    .await?
                    .unwrap();
                Ok::<_, Failure>(plan(&seen, at(1)))
            }
        };
        assert_eq!(planned(late.clone()).await.unwrap().step, step);

        let mut live = late.clone();
        live.write_capt_cluster(|object| object.spec.retain_vpc_on_delete = Some(true));
        assert_eq!(planned(live).await.unwrap().step, Step::RetainApply(true), "{step:?}");

        let mut live = late.clone();
        live.cluster.spec.paused = Some(true);
        assert_eq!(planned(live).await.unwrap().step, Step::Nothing, "{step:?}");

        let mut live = late.clone();
        live.eks_applies = vec!["cp-eks".into()];
        assert_eq!(planned(live).await.unwrap().step, Step::Nothing, "{step:?}");

        let mut live = late.clone();
        live.write_capt_cluster(|object| object.metadata.uid = Some("u-another".into()));
        assert!(planned(live).await.is_err(), "another object has taken the name");
    }
}

/// Only control planes of this very Cluster count: not those of an earlier one of the same name, nor of others.
#[tokio::test]
async fn membership_is_the_owners_uid() {
    for (uid, name, counts) in [
        ("u-demo", "demo", true),
        ("u-earlier", "demo", false),
        ("u-other", "other", false),
    ] {
        let mut world = World::new(json!({}));
        world.write_capt_cluster(|object| add(&mut object.metadata, finalizer::CAPT_CLUSTER));
        world.write_capt_cluster(|object| object.metadata.deletion_timestamp = Some(Time(at(0))));
        let owner = &mut world.control_planes[0].metadata.owner_references.as_mut().unwrap()[0];
        (owner.uid, owner.name) = (uid.into(), name.into());
        let view = View {
            cached: &world,
            live: &world,
        };
        let (seen, _) = observe(&view, settings(), &Key::namespaced("ns", "net"))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(!seen.control_planes.is_empty(), counts, "{uid} {name}");
    }
}

/// An apply that an earlier version made under the name of the spec holds this object's network: it is found where the
/// cache shows nothing, and neither is a second network made nor the first one forgotten.
#[tokio::test]
async fn an_apply_under_another_name_is_neither_doubled_nor_forgotten() {
    let plan_of = |world: World| async move {
        let cached = World {
            apply: None,
            ..world.clone()
        };
        let view = View {
            cached: &cached,
            live: &world,
        };
        let (seen, _) = observe(&view, settings(), &Key::namespaced("ns", "net"))
            .await
            .unwrap()
            .unwrap();
        plan(&seen, at(60)).step
    };
    let mut world = World::new(json!({"workspaceTemplateApplyName": "mine"}));
    world.control_planes.clear();
    world.write_capt_cluster(|object| add(&mut object.metadata, finalizer::CAPT_CLUSTER));
    assert!(
        matches!(plan_of(world.clone()).await, Step::CreateApply(_)),
        "no such apply: the field is ignored"
    );
    let mut others = world.clone();
    let strangers = json!({"metadata": {"name": "mine", "ownerReferences": null, "labels": null}});
    others.apply = Some(apply(strangers));
    assert!(
        matches!(plan_of(others).await, Step::CreateApply(_)),
        "somebody else's: the field is ignored"
    );
    world.apply = Some(apply(json!({"metadata": {"name": "mine"}})));
    assert_eq!(plan_of(world.clone()).await, Step::Nothing);
    world.write_capt_cluster(|object| object.metadata.deletion_timestamp = Some(Time(at(0))));
    assert_eq!(plan_of(world).await, Step::Nothing);
}
