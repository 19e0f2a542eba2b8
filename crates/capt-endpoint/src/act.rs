//! Carries out a plan, then reports. Each write is guarded by what was read; a lost race ends the pass.

use std::sync::Arc;

use capt_api::CaptControlPlane;
use capt_api::common::ApiEndpoint;
use capt_api::conditions::Reason;
use capt_api::conditions::endpoint::EndpointReady;
use capt_api::names::finalizer;
use capt_runtime::apply::{Edit, FinalizerAdded, Objects, Planned};
use capt_runtime::controller::{Reconciler, Wake};
use capt_runtime::error::{Classified, Failure, ObjectRef};
use capt_runtime::events::{Events, Severity};
use capt_runtime::key::Key;
use capt_runtime::words::tell;
use jiff::Timestamp;
use kube::Resource;
use kube::core::DynamicObject;
use serde_json::{Value, json};

use crate::metrics::Updates;
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
        let Some(view) = self.caches.view(key) else {
            return Ok(Wake::OnEvent);
        };
        tracing::Span::current().record("generation", view.control_plane.metadata.generation);
        self.worker.pass(&view, Timestamp::now()).await
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
    pub(crate) updates: Updates,
}

impl Worker {
    pub(crate) async fn pass(&self, view: &View, now: Timestamp) -> Result<Wake, Failure> {
        // What follows a write of this pass, a refusal included, is planned from what that write left.
        let mut newest = Arc::clone(&view.control_plane);
        let failure = match self.work(view, &mut newest, now).await {
            Ok(wake) => return Ok(wake),
            Err(failure) => failure,
        };
        if failure.class().is_passing() {
            return Err(failure);
        }
        // Somebody has to do something about it, so it is shown.
        let report = plan::refused(&newest, failure.to_string());
        self.report(&newest, Some(&report), now).await?;
        Err(failure)
    }

    async fn work(&self, view: &View, newest: &mut Arc<CaptControlPlane>, now: Timestamp) -> Result<Wake, Failure> {
        let mut seen = self.reader.observe(view).await?;
        let mut plan = plan::plan(&seen, now);
        let mut cluster = None;
        if plan.step == Step::Look {
            cluster = self.reader.look(&mut seen).await?;
            plan = plan::plan(&seen, now);
        }
        let acted = self.act(newest, &plan, cluster.as_ref(), now).await;
        if plan.step.updates_an_endpoint() {
            self.updates.count(&acted);
        }
        acted.map(|()| plan.wake)
    }

    async fn act(
        &self,
        newest: &mut Arc<CaptControlPlane>,
        plan: &Plan,
        cluster: Option<&DynamicObject>,
        now: Timestamp,
    ) -> Result<(), Failure> {
        match &plan.step {
            // The second plan of a pass never asks again.
            Step::Nothing | Step::Look => self.report(newest, plan.report.as_ref(), now).await,
            Step::Publish(writes) => match self.publish(newest, writes, cluster).await? {
                Published::Done => self.report(newest, plan.report.as_ref(), now).await,
                Published::Deleting => Ok(()),
            },
            Step::LetGo { clear } => {
                let mut why = "there is no endpoint of ours to clear";
                if *clear {
                    let guarded = Guarded::new(newest, cluster)?;
                    let edit = guarded.unchanged().remove(ENDPOINT);
                    self.write_cluster(&guarded, edit, "the control plane is being deleted")
                        .await?;
                    why = "the Cluster's endpoint is cleared";
                }
                let planned = Planned::new(newest.as_ref())?;
                let removed = self
                    .control_planes
                    .remove_finalizers(&planned, &[finalizer::CAPT_ENDPOINT], why);
                removed.await.map(drop)
            }
        }
    }

    async fn publish(
        &self,
        newest: &mut Arc<CaptControlPlane>,
        writes: &Publish,
        cluster: Option<&DynamicObject>,
    ) -> Result<Published, Failure> {
        if writes.finalizer {
            let why = "the Cluster's endpoint is cleared before the control plane goes";
            let planned = Planned::new(newest.as_ref())?;
            let added = self
                .control_planes
                .add_finalizer(&planned, finalizer::CAPT_ENDPOINT, &Default::default(), why)
                .await?;
            match added {
                FinalizerAdded::Added(object) => *newest = object.into(),
                FinalizerAdded::Unchanged => {}
                // The deletion is on its way to the cache, and must find nothing new.
                FinalizerAdded::Deleting => return Ok(Published::Deleting),
            }
        }
        if let Some(endpoint) = &writes.cluster {
            let guarded = Guarded::new(newest, cluster)?;
            let edit = guarded.unchanged().set(ENDPOINT, value(endpoint));
            self.write_cluster(&guarded, edit, "EKS reports the endpoint").await?;
        }
        if let Some(endpoint) = &writes.control_plane {
            let fields = json!({ "controlPlaneEndpoint": value(endpoint) });
            let planned = Planned::new(newest.as_ref())?;
            let applied = self
                .control_planes
                .apply_spec(&planned, fields, "EKS reports the endpoint")
                .await?;
            if let Some(object) = applied.written() {
                *newest = object.into();
            }
            if let Some(displaced) = &writes.displaced {
                let note = format!(
                    "spec.controlPlaneEndpoint was {displaced} and is now {endpoint}, which EKS reports: this field is CAPT's own; \
                     to give the Cluster another endpoint, set spec.controlPlaneEndpoint of the Cluster or of the CAPTCluster"
                );
                let about = newest.object_ref(&());
                self.events
                    .publish(about, Severity::Warning, "EndpointReplaced", EndpointReady::TYPE, &note);
            }
        }
        Ok(Published::Done)
    }

    async fn write_cluster(&self, guarded: &Guarded<'_>, edit: Edit, why: &str) -> Result<(), Failure> {
        let _ = self.reader.clusters.patch(&guarded.cluster, edit, why).await?;
        tracing::info!(cluster = guarded.name, why, "the Cluster's endpoint was written");
        Ok(())
    }

    async fn report(
        &self,
        control_plane: &CaptControlPlane,
        report: Option<&Report>,
        now: Timestamp,
    ) -> Result<(), Failure> {
        let Some(report) = report else { return Ok(()) };
        let status = report.status(control_plane, now);
        let (told, why) = (EndpointReady::TYPE, "the endpoint was looked at");
        tell(&self.control_planes, &self.events, control_plane, &status, told, why).await
    }
}

enum Published {
    Done,
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
