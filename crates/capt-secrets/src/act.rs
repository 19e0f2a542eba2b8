//! Carries out a plan, then reports. Each write is guarded by what was read; a lost race ends the pass.

use std::sync::Arc;
use std::time::Instant;

use capt_api::CaptControlPlane;
use capt_api::conditions::secrets::SecretsReady;
use capt_api::conditions::{Reason, State};
use capt_api::names::{finalizer, secret};
use capt_runtime::apply::{Bond, Change, Created, FinalizerAdded, Objects, Ours, Parent, Planned};
use capt_runtime::controller::{Reconciler, Wake};
use capt_runtime::error::{Classified, Failure, ObjectRef, Race};
use capt_runtime::events::Events;
use capt_runtime::key::Key;
use capt_runtime::words::tell;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use crate::copies::Which;
use crate::material::Material;
use crate::metrics::Conversions;
use crate::observe::{
    Caches, Contents, CopyState, Drift, Judged, Living, Marks, Memory, Observed, Reader, SecretMeta, Situation,
    Version, View, is_left_alone,
};
use crate::plan::{self, Deed, Plan, Step, Writes};

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
        let Some(view) = self.caches.view(key) else {
            self.worker.memory.forget(key);
            return Ok(Wake::OnEvent);
        };
        tracing::Span::current().record("generation", view.control_plane.metadata.generation);
        self.worker.pass(&view, Timestamp::now()).await
    }

    fn is_behind(&self, key: &Key) -> bool {
        self.caches.is_behind(key)
    }
}

/// One pass over what the caches say.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) reader: Reader,
    pub(crate) control_planes: Objects<CaptControlPlane>,
    pub(crate) events: Events,
    pub(crate) memory: Memory,
    pub(crate) conversions: Conversions,
}

impl Worker {
    pub(crate) async fn pass(&self, view: &View, now: Timestamp) -> Result<Wake, Failure> {
        let began = Instant::now();
        // What follows a write of this pass, a refusal included, is planned from what that write left.
        let mut newest = Arc::clone(&view.control_plane);
        let mut good = plan::reported(&newest);
        let failure = match self.reader.observe(view, &self.memory, now).await {
            Err(failure) => failure,
            Ok((seen, contents)) => {
                if let Situation::Living(living) = &seen.situation {
                    good = plan::is_good(living);
                }
                let plan = plan::plan(&seen, now);
                let acted = self.act(&mut newest, &seen, &plan, &contents, now).await;
                self.conversions.count(&seen, &contents, &plan, &acted, began.elapsed());
                match acted {
                    Ok(None) => return Ok(plan.wake),
                    Ok(Some(passed_over)) => return Err(passed_over),
                    Err(failure) => failure,
                }
            }
        };
        if failure.class().is_passing() {
            return Err(failure);
        }
        // Somebody has to do something about it, so it is shown.
        let refused = plan::refused(good, &failure);
        self.report(&newest, Some(&refused), now).await?;
        Err(failure)
    }

    /// Returns a failure that does not change what is said: see [`Self::write`].
    async fn act(
        &self,
        newest: &mut Arc<CaptControlPlane>,
        seen: &Observed,
        plan: &Plan,
        contents: &Contents,
        now: Timestamp,
    ) -> Result<Option<Failure>, Failure> {
        match (&plan.step, &seen.situation) {
            (Step::Write(writes), Situation::Living(living)) => {
                self.write(newest, living, writes, contents, plan, now).await
            }
            (Step::Remove, _) => self.remove(newest, &contents.leftovers).await.map(|()| None),
            (Step::Nothing | Step::Write(_), situation) => {
                self.report(newest, plan.says.as_ref(), now).await?;
                if let Situation::Living(living) = situation {
                    self.remember(newest, living, contents, |_| {});
                }
                Ok(None)
            }
        }
    }

    /// Whatever becomes of the alias, the cluster can be used: its failure is not told, but returned, so that it is tried
    /// again.
    async fn write(
        &self,
        newest: &mut Arc<CaptControlPlane>,
        living: &Living,
        writes: &Writes,
        contents: &Contents,
        plan: &Plan,
        now: Timestamp,
    ) -> Result<Option<Failure>, Failure> {
        if writes.finalizer {
            let why = "copies are removed before the control plane goes";
            let planned = Planned::new(newest.as_ref())?;
            let added = self
                .control_planes
                .add_finalizer(&planned, finalizer::CAPT_SECRETS, &Default::default(), why)
                .await?;
            match added {
                FinalizerAdded::Added(object) => *newest = object.into(),
                FinalizerAdded::Unchanged => {}
                // The deletion is on its way to the cache, and must find nothing new.
                FinalizerAdded::Deleting => return Ok(None),
            }
        } else if writes.copies.iter().any(|(_, deed)| deed.makes()) {
            self.control_planes
                .confirm_living(&Planned::new(newest.as_ref())?)
                .await?;
        }
        let mut done = Vec::new();
        let mut alias = None;
        for (which, deed) in &writes.copies {
            match self.perform(*which, *deed, living, newest, contents).await {
                Ok(version) => done.push((*which, *deed, version)),
                Err(failure) if *which == Which::Alias => alias = Some(failure),
                Err(failure) => return Err(failure),
            }
        }
        self.report(newest, plan.says.as_ref(), now).await?;
        if alias.is_some() {
            return Ok(alias);
        }
        // What was just written need not be read to know it.
        self.remember(newest, living, contents, |judged| {
            for (which, deed, version) in done {
                let state = state_after(deed, judged.copies.of(which), contents);
                judged.copies.set(which, state);
                judged.inputs.copies.set(which, version);
            }
        });
        Ok(None)
    }

    /// Remembers what was judged in this pass, if anything was, with what the pass has changed since.
    fn remember(
        &self,
        control_plane: &CaptControlPlane,
        living: &Living,
        contents: &Contents,
        change: impl FnOnce(&mut Judged),
    ) {
        let Some(inputs) = contents.judged.clone() else { return };
        let mut judged = Judged {
            inputs,
            source: living.source.clone(),
            copies: living.copies.clone(),
            expires: living.expires,
        };
        change(&mut judged);
        let uid = control_plane.metadata.uid.as_deref().unwrap_or_default();
        self.memory.settle(&Key::of(control_plane), uid, judged);
    }

    async fn remove(&self, control_plane: &CaptControlPlane, leftovers: &[SecretMeta]) -> Result<(), Failure> {
        let planned = Planned::new(control_plane)?;
        for copy in leftovers {
            let ours = Ours::by_owner(&self.reader.metadata, Planned::new(copy)?, &Parent::of(&planned))?;
            let _ = self.reader.metadata.delete(&ours, REMOVAL).await?;
        }
        // What was there a moment ago must be seen gone; what something holds is waited for, by its own event.
        if !leftovers.is_empty() && !self.reader.live_leftovers(&control_plane.metadata).await?.is_empty() {
            return Ok(());
        }
        // Read again: capt-endpoint drops its own finalizer at this moment, and a pause may have come.
        let namespace = control_plane.metadata.namespace.as_deref();
        let live = self.control_planes.live(namespace, &control_plane.name_any()).await?;
        let is_same = |live: &CaptControlPlane| live.metadata.uid == control_plane.metadata.uid;
        let Some(live) = live.filter(|live| is_same(live) && !is_left_alone(&live.metadata)) else {
            return Ok(());
        };
        let planned = Planned::new(&live)?;
        let removed = self
            .control_planes
            .remove_finalizers(&planned, &[finalizer::CAPT_SECRETS], "no copy is left");
        removed.await.map(drop)
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

    async fn report(
        &self,
        control_plane: &CaptControlPlane,
        says: Option<&State<SecretsReady>>,
        now: Timestamp,
    ) -> Result<(), Failure> {
        let Some(says) = says else { return Ok(()) };
        let status = plan::status(control_plane, says, now);
        let (told, why) = (SecretsReady::TYPE, "the Secrets were looked at");
        tell(&self.control_planes, &self.events, control_plane, &status, told, why).await
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
