//! Carries out a plan, then reports. Each write is guarded by what was read; a lost race ends the pass.

use capt_api::CaptControlPlane;
use capt_api::conditions::Reason;
use capt_api::conditions::secrets::SecretsReady;
use capt_api::controlplane::CaptControlPlaneStatus;
use capt_api::names::{finalizer, secret};
use capt_runtime::apply::{Bond, Change, Created, FinalizerAdded, Objects, Ours, Parent, Planned};
use capt_runtime::controller::{Reconciler, Wake};
use capt_runtime::error::{Class, Classified, Failure, ObjectRef, Race};
use capt_runtime::events::Events;
use capt_runtime::key::Key;
use capt_runtime::transition::announce;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::{Resource, ResourceExt};

use crate::copies::Which;
use crate::material::Material;
use crate::observe::{
    Caches, Contents, CopyState, Drift, Living, Marks, Memory, Observed, Reader, Situation, Version, View,
};
use crate::plan::{self, Deed, Plan, Step};

const COPIES: &str = "kubeconfig and CA are handed to Cluster API";
const REMOVAL: &str = "the control plane is being deleted";
const RIVAL: &str = "another Cluster's kubeconfig has this name";

/// The controller of SecretsReady.
#[derive(Debug)]
pub(crate) struct ControlPlanes {
    pub(crate) caches: Caches,
    pub(crate) worker: Worker,
}

impl Reconciler for ControlPlanes {
    type Error = Failure;

    async fn reconcile(&self, key: &Key) -> Result<Wake, Failure> {
        match self.caches.view(key) {
            Some(view) => {
                tracing::Span::current().record("generation", view.control_plane.metadata.generation);
                self.worker.pass(&view, Timestamp::now()).await?;
            }
            None => self.worker.memory.forget(key),
        }
        Ok(Wake::OnEvent)
    }

    fn is_behind(&self, key: &Key) -> bool {
        self.caches.control_planes.is_behind(key)
    }
}

/// One pass over what the caches say.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) reader: Reader,
    pub(crate) control_planes: Objects<CaptControlPlane>,
    pub(crate) events: Events,
    pub(crate) memory: Memory,
}

impl Worker {
    pub(crate) async fn pass(&self, view: &View, now: Timestamp) -> Result<(), Failure> {
        let (seen, contents) = match self.reader.observe(view, &self.memory).await {
            Ok(observed) => observed,
            Err(failure) => {
                let good = plan::reported(&view.control_plane).unwrap_or_default();
                return Err(self.refuse(&view.control_plane, good, failure, now).await);
            }
        };
        self.act(&seen, &plan::plan(&seen, now), contents, now).await
    }

    async fn act(&self, seen: &Observed, plan: &Plan, mut contents: Contents, now: Timestamp) -> Result<(), Failure> {
        let control_plane = seen.control_plane.as_ref();
        let planned = Planned::new(control_plane)?;
        match &plan.step {
            Step::Nothing => {
                self.report(control_plane, plan.status.as_ref()).await?;
                if let (Situation::Living(living), Some(inputs)) = (&seen.situation, contents.judged.take()) {
                    let (source, copies) = (living.source.clone(), living.copies.clone());
                    self.memory
                        .settle(&Key::of(control_plane), planned.uid(), inputs, source, copies);
                }
                Ok(())
            }
            Step::AddFinalizer => {
                let why = "copies are removed before the control plane goes";
                let added = self
                    .control_planes
                    .add_finalizer(&planned, finalizer::CAPT_SECRETS, &Default::default(), why)
                    .await?;
                match added {
                    FinalizerAdded::Added(control_plane) => self.report(&control_plane, plan.status.as_ref()).await,
                    FinalizerAdded::Unchanged => self.report(control_plane, plan.status.as_ref()).await,
                    // The deletion is on its way to the cache.
                    FinalizerAdded::Deleting => Ok(()),
                }
            }
            Step::Write(deeds) => self.write(seen, deeds, &contents, plan, now).await,
            Step::DeleteCopies => {
                for copy in contents
                    .leftovers
                    .iter()
                    .filter(|copy| copy.metadata.deletion_timestamp.is_none())
                {
                    let ours = Ours::by_owner(&self.reader.metadata, Planned::new(copy)?, &Parent::of(&planned))?;
                    let _ = self.reader.metadata.delete(&ours, REMOVAL).await?;
                }
                self.report(control_plane, plan.status.as_ref()).await
            }
            Step::RemoveFinalizer => {
                // First the report: without its last finalizer the object is gone.
                let reported = self.written(control_plane, plan.status.as_ref()).await?;
                let planned = Planned::new(reported.as_ref().unwrap_or(control_plane))?;
                let _ = self
                    .control_planes
                    .remove_finalizers(&planned, &[finalizer::CAPT_SECRETS], "no copy is left")
                    .await?;
                Ok(())
            }
        }
    }

    async fn write(
        &self,
        seen: &Observed,
        deeds: &[(Which, Deed)],
        contents: &Contents,
        plan: &Plan,
        now: Timestamp,
    ) -> Result<(), Failure> {
        let control_plane = seen.control_plane.as_ref();
        let Situation::Living(living) = &seen.situation else {
            return Ok(());
        };
        let (mut judged, mut copies) = (contents.judged.clone(), living.copies.clone());
        let mut alias = Ok(());
        for (which, deed) in deeds {
            match self.perform(*which, *deed, living, control_plane, contents).await {
                Ok(version) => {
                    copies.set(*which, state_after(*deed, copies.of(*which), contents));
                    if let Some(judged) = &mut judged {
                        judged.copies.set(*which, version);
                    }
                }
                // Whatever becomes of the alias, the cluster can be used; it is tried again.
                Err(failure) if *which == Which::Alias => alias = Err(failure),
                Err(failure) => return Err(self.refuse(control_plane, plan::is_good(living), failure, now).await),
            }
        }
        self.report(control_plane, plan.status.as_ref()).await?;
        alias?;
        if let Some(inputs) = judged {
            // What was just written need not be read to know it.
            let uid = control_plane.metadata.uid.as_deref().unwrap_or_default();
            self.memory
                .settle(&Key::of(control_plane), uid, inputs, living.source.clone(), copies);
        }
        Ok(())
    }

    /// Returns the version of the copy that is there afterwards.
    async fn perform(
        &self,
        which: Which,
        deed: Deed,
        living: &Living,
        control_plane: &CaptControlPlane,
        contents: &Contents,
    ) -> Result<Option<Version>, Failure> {
        let planned = Planned::new(control_plane)?;
        let parent = Parent::of(&planned);
        let secrets = &self.reader.secrets;
        let marks = Marks::of(&control_plane.metadata, &living.cluster);
        let live = contents.copies.of(which).as_ref();
        let name = which.name(&living.cluster);
        let object = ObjectRef::new("Secret", control_plane.metadata.namespace.as_deref(), &name);
        match (deed, live, &contents.material) {
            (Deed::Repair, Some(live), material) => self.repair(which, live, &parent, &marks, material.as_ref()).await,
            (Deed::Delete, Some(live), _) => {
                let ours = Ours::by_owner(secrets, Planned::new(live)?, &parent)?;
                secrets.delete(&ours, RIVAL).await.map(|_| None)
            }
            (Deed::Create | Deed::Remake, live, Some(material)) => {
                if let Some(live) = live {
                    let ours = Ours::by_owner(secrets, Planned::new(live)?, &parent)?;
                    let _ = secrets
                        .delete(
                            &ours,
                            "its type, or its immutable data, can only be changed by making it anew",
                        )
                        .await?;
                }
                let copy = new_copy(which, living, control_plane, &marks, material);
                // Remembered before the answer, which may get lost: see `Memory`.
                self.memory.made(&Key::of(control_plane), planned.uid());
                match secrets.create(&parent, Bond::Reference, copy, COPIES).await? {
                    Created::New(live) => Ok(Version::of(&live)),
                    Created::Adopted(live) => self.repair(which, &live, &parent, &marks, Some(material)).await,
                    // The old one is still there; when it is gone, its event brings the next pass.
                    Created::Deleting(_) => Err(Failure::LostRace {
                        object,
                        race: Race::Changed,
                    }),
                }
            }
            (Deed::Repair | Deed::Delete | Deed::Create | Deed::Remake, ..) => Err(Failure::Misuse {
                object,
                what: "it was to be written without having been read".into(),
            }),
        }
    }

    /// Data, labels and owner, as they should be. Without a valid source the data stays.
    async fn repair(
        &self,
        which: Which,
        live: &Secret,
        parent: &Parent,
        marks: &Marks,
        material: Option<&Material>,
    ) -> Result<Option<Version>, Failure> {
        let secrets = &self.reader.secrets;
        let mut change = match material {
            Some(material) => Change::data(&material.data(which))?,
            None => Change::metadata(),
        };
        for (key, value) in marks.iter() {
            change = change.label(key, value);
        }
        let ours = Ours::by_owner(secrets, Planned::new(live)?, parent)?;
        let changed = secrets.change(&ours, &change, COPIES).await?.written();
        let changed = changed.as_ref().unwrap_or(live);
        let ours = Ours::by_owner(secrets, Planned::new(changed)?, parent)?;
        let adopted = secrets.adopt(&ours, parent, Bond::Reference, COPIES).await?.written();
        Ok(Version::of(adopted.as_ref().unwrap_or(changed)))
    }

    /// What stands in the way is shown, unless it passes by itself; the failure itself goes to the loop.
    async fn refuse(&self, control_plane: &CaptControlPlane, good: bool, failure: Failure, now: Timestamp) -> Failure {
        if matches!(failure.class(), Class::Transient | Class::Conflict) {
            return failure;
        }
        let status = plan::refused(control_plane, good, &failure, now);
        match self.report(control_plane, Some(&status)).await {
            Ok(()) => failure,
            Err(other) => other,
        }
    }

    async fn report(
        &self,
        control_plane: &CaptControlPlane,
        status: Option<&CaptControlPlaneStatus>,
    ) -> Result<(), Failure> {
        self.written(control_plane, status).await.map(drop)
    }

    /// Reports; returns the object as it is now if that wrote anything.
    async fn written(
        &self,
        control_plane: &CaptControlPlane,
        status: Option<&CaptControlPlaneStatus>,
    ) -> Result<Option<CaptControlPlane>, Failure> {
        let Some(status) = status else { return Ok(None) };
        let planned = Planned::new(control_plane)?;
        let written = self
            .control_planes
            .apply_status(&planned, status, "the Secrets were looked at")
            .await?
            .written();
        if written.is_some() {
            let before = control_plane
                .status
                .as_ref()
                .map_or(&[][..], |status| &status.conditions);
            let about = control_plane.object_ref(&());
            announce(
                &self.events,
                &about,
                before,
                &status.conditions,
                &[SecretsReady::TYPE],
                is_bad,
            );
        }
        Ok(written)
    }
}

/// What a copy is once its deed is done.
fn state_after(deed: Deed, before: &CopyState, contents: &Contents) -> CopyState {
    match deed {
        Deed::Delete => CopyState::Absent,
        Deed::Create | Deed::Repair | Deed::Remake => CopyState::Ours {
            good: contents.material.is_some() || before.is_good(),
            drift: Drift::None,
        },
    }
}

/// A warning: somebody has to do something.
fn is_bad(condition: &Condition) -> bool {
    let bad = [
        SecretsReady::Failed,
        SecretsReady::UnsafeKubeconfig,
        SecretsReady::OwnershipConflict,
        SecretsReady::SourceMissing,
    ];
    bad.iter().any(|reason| reason.as_str() == condition.reason)
}

fn new_copy(
    which: Which,
    living: &Living,
    control_plane: &CaptControlPlane,
    marks: &Marks,
    material: &Material,
) -> Secret {
    let labels = marks
        .iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned())));
    Secret {
        metadata: ObjectMeta {
            name: Some(which.name(&living.cluster)),
            namespace: control_plane.namespace(),
            labels: Some(labels.collect()),
            ..ObjectMeta::default()
        },
        type_: Some(secret::CLUSTER_TYPE.into()),
        data: Some(material.data(which)),
        ..Secret::default()
    }
}
