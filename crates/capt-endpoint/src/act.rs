//! Carries out a plan, then reports. Each write is guarded by what was read; a lost race ends the pass.

use capt_api::CaptControlPlane;
use capt_api::common::ApiEndpoint;
use capt_api::conditions::Reason;
use capt_api::conditions::endpoint::EndpointReady;
use capt_api::names::finalizer;
use capt_runtime::apply::{Edit, FinalizerAdded, Objects, Planned};
use capt_runtime::controller::{Reconciler, Wake};
use capt_runtime::error::{Class, Classified, Failure, ObjectRef};
use capt_runtime::events::{Events, Severity};
use capt_runtime::key::Key;
use capt_runtime::transition::announce;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Resource;
use kube::core::DynamicObject;
use serde_json::{Value, json};

use crate::observe::{Caches, Reader, View};
use crate::plan::{self, Plan, Publish, Report, Step};

const ENDPOINT: &[&str] = &["spec", "controlPlaneEndpoint"];
const PAUSED: &[&str] = &["spec", "paused"];

/// The controller of EndpointReady.
#[derive(Debug)]
pub(crate) struct ControlPlanes {
    pub(crate) caches: Caches,
    pub(crate) worker: Worker,
}

impl Reconciler for ControlPlanes {
    type Error = Failure;

    async fn reconcile(&self, key: &Key) -> Result<Wake, Failure> {
        if let Some(view) = self.caches.view(key) {
            tracing::Span::current().record("generation", view.control_plane.metadata.generation);
            self.worker.pass(&view, Timestamp::now()).await?;
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
}

impl Worker {
    pub(crate) async fn pass(&self, view: &View, now: Timestamp) -> Result<(), Failure> {
        let failure = match self.work(view, now).await {
            Ok(()) => return Ok(()),
            Err(failure) => failure,
        };
        if matches!(failure.class(), Class::Transient | Class::Conflict) {
            return Err(failure);
        }
        // Somebody has to do something about it, so it is shown.
        let report = plan::refused(&view.control_plane, failure.to_string());
        self.report(&view.control_plane, Some(&report), now).await?;
        Err(failure)
    }

    async fn work(&self, view: &View, now: Timestamp) -> Result<(), Failure> {
        let mut seen = self.reader.observe(view).await?;
        let mut plan = plan::plan(&seen);
        let mut cluster = None;
        if plan.step == Step::Look {
            cluster = self.reader.look(&mut seen).await?;
            plan = plan::plan(&seen);
        }
        self.act(&view.control_plane, &plan, cluster.as_ref(), now).await
    }

    async fn act(
        &self,
        control_plane: &CaptControlPlane,
        plan: &Plan,
        cluster: Option<&DynamicObject>,
        now: Timestamp,
    ) -> Result<(), Failure> {
        match &plan.step {
            // The second plan of a pass never asks again.
            Step::Nothing | Step::Look => self.report(control_plane, plan.report.as_ref(), now).await.map(drop),
            Step::Publish(writes) => match self.publish(control_plane, writes, cluster).await? {
                Published::Done(newer) => {
                    let control_plane = newer.as_deref().unwrap_or(control_plane);
                    self.report(control_plane, plan.report.as_ref(), now).await.map(drop)
                }
                Published::Deleting => Ok(()),
            },
            Step::LetGo { clear } => {
                if *clear {
                    let guarded = Guarded::new(control_plane, cluster)?;
                    self.write_cluster(
                        &guarded,
                        guarded.unchanged().remove(ENDPOINT),
                        "the control plane is being deleted",
                    )
                    .await?;
                }
                // The report comes first: without its last finalizer the object is gone.
                let newer = self.report(control_plane, plan.report.as_ref(), now).await?;
                let planned = Planned::new(newer.as_ref().unwrap_or(control_plane))?;
                let why = "the Cluster's endpoint is cleared, or was never ours";
                self.control_planes
                    .remove_finalizers(&planned, &[finalizer::CAPT_ENDPOINT], why)
                    .await
                    .map(drop)
            }
        }
    }

    async fn publish(
        &self,
        control_plane: &CaptControlPlane,
        writes: &Publish,
        cluster: Option<&DynamicObject>,
    ) -> Result<Published, Failure> {
        let mut newer = None;
        if writes.finalizer {
            let why = "the Cluster's endpoint is cleared before the control plane goes";
            let planned = Planned::new(control_plane)?;
            let added = self
                .control_planes
                .add_finalizer(&planned, finalizer::CAPT_ENDPOINT, &Default::default(), why)
                .await?;
            match added {
                FinalizerAdded::Added(object) => newer = Some(object),
                FinalizerAdded::Unchanged => {}
                // The deletion is on its way to the cache, and must find nothing new.
                FinalizerAdded::Deleting => return Ok(Published::Deleting),
            }
        }
        if let Some(endpoint) = &writes.cluster {
            let guarded = Guarded::new(control_plane, cluster)?;
            let edit = guarded.unchanged().set(ENDPOINT, value(endpoint));
            self.write_cluster(&guarded, edit, "EKS reports the endpoint").await?;
        }
        if let Some(endpoint) = &writes.control_plane {
            let planned = Planned::new(newer.as_ref().unwrap_or(control_plane))?;
            let fields = json!({ "controlPlaneEndpoint": value(endpoint) });
            let applied = self
                .control_planes
                .apply_spec(&planned, fields, "EKS reports the endpoint")
                .await?;
            newer = applied.written().or(newer);
            if let Some(displaced) = &writes.displaced {
                let note = format!(
                    "spec.controlPlaneEndpoint was {displaced} and is now {endpoint}, which EKS reports: this field is CAPT's own; \
                     to give the Cluster another endpoint, set spec.controlPlaneEndpoint of the Cluster or of the CAPTCluster"
                );
                let about = control_plane.object_ref(&());
                self.events
                    .publish(about, Severity::Warning, "EndpointReplaced", EndpointReady::TYPE, &note);
            }
        }
        Ok(Published::Done(newer.map(Box::new)))
    }

    async fn write_cluster(&self, guarded: &Guarded<'_>, edit: Edit, why: &str) -> Result<(), Failure> {
        let _ = self.reader.clusters.patch(&guarded.cluster, edit, why).await?;
        tracing::info!(cluster = guarded.name, why, "the Cluster's endpoint was written");
        Ok(())
    }

    /// Reports; returns the object as it is now if that wrote anything.
    async fn report(
        &self,
        control_plane: &CaptControlPlane,
        report: Option<&Report>,
        now: Timestamp,
    ) -> Result<Option<CaptControlPlane>, Failure> {
        let Some(report) = report else { return Ok(None) };
        let status = report.status(control_plane, now);
        let planned = Planned::new(control_plane)?;
        let written = self
            .control_planes
            .apply_status(&planned, &status, "the endpoint was looked at")
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
                &[EndpointReady::TYPE],
                is_bad,
            );
        }
        Ok(written)
    }
}

enum Published {
    /// The control plane as it is now, if it was written.
    Done(Option<Box<CaptControlPlane>>),
    /// The control plane is being deleted; nothing else was written.
    Deleting,
}

/// The Cluster as it was read, for a write that only takes place if it is still so.
struct Guarded<'a> {
    cluster: Planned<'a, DynamicObject>,
    name: &'a str,
    endpoint: Option<Value>,
    paused: Option<Value>,
}

impl<'a> Guarded<'a> {
    fn new(control_plane: &CaptControlPlane, cluster: Option<&'a DynamicObject>) -> Result<Self, Failure> {
        let Some(cluster) = cluster else {
            let namespace = control_plane.metadata.namespace.as_deref();
            return Err(Failure::Misuse {
                object: ObjectRef::new("Cluster", namespace, ""),
                what: "it was to be written without having been read".into(),
            });
        };
        let member = |name: &str| cluster.data.get("spec").and_then(|spec| spec.get(name)).cloned();
        Ok(Self {
            cluster: Planned::new(cluster)?,
            name: cluster.metadata.name.as_deref().unwrap_or_default(),
            endpoint: member("controlPlaneEndpoint"),
            paused: member("paused"),
        })
    }

    /// Whoever changes the endpoint, or pauses the Cluster, in the meantime wins.
    fn unchanged(&self) -> Edit {
        Edit::new()
            .only_if(ENDPOINT, self.endpoint.clone())
            .only_if(PAUSED, self.paused.clone())
    }
}

fn value(endpoint: &ApiEndpoint) -> Value {
    json!({ "host": endpoint.host, "port": endpoint.port })
}

/// A warning: somebody has to do something.
fn is_bad(condition: &Condition) -> bool {
    let bad = [
        EndpointReady::EndpointInvalid,
        EndpointReady::EndpointMissing,
        EndpointReady::EndpointUpdateFailed,
    ];
    bad.iter().any(|reason| reason.as_str() == condition.reason)
}
