//! Carries out a plan, then reports. What cannot be taken back is confirmed first by the API server itself.

use std::collections::BTreeMap;

use capt_api::Tenant;
use capt_api::conditions::Reason;
use capt_api::conditions::tenant::{Deleting, Ready, TenantReport};
use capt_api::names::{TENANT_ADMIN_BINDING, finalizer};
use capt_runtime::apply::{Created, Objects, Ours, Parent, Planned};
use capt_runtime::controller::{Reconciler, Wake};
use capt_runtime::error::{Classified, Failure, ObjectRef, Race};
use capt_runtime::events::Events;
use capt_runtime::key::Key;
use capt_runtime::transition::announce;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::RoleBinding;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde_json::json;

use crate::observe::{ApplyMeta, Caches, ClusterMeta, Observed, Place};
use crate::plan::{self, Deed, Plan, Step};

const MAKE: &str = "the Tenant is to have it";
const TAKE: &str = "its Tenant goes, or has it no longer";

/// The controller of Tenants.
#[derive(Debug)]
pub(crate) struct Tenants {
    pub(crate) caches: Caches,
    pub(crate) worker: Worker,
}

impl Reconciler for Tenants {
    type Error = Failure;

    async fn reconcile(&self, key: &Key) -> Result<Wake, Failure> {
        let Some(seen) = self.caches.observe(key) else {
            return Ok(Wake::OnEvent);
        };
        tracing::Span::current().record("generation", seen.tenant.metadata.generation);
        self.worker.pass(&seen, Timestamp::now()).await?;
        Ok(Wake::OnEvent)
    }

    fn is_behind(&self, key: &Key) -> bool {
        self.caches.tenants.is_behind(key)
    }
}

/// One pass over what the caches say.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) tenants: Objects<Tenant>,
    pub(crate) namespaces: Objects<Namespace>,
    pub(crate) bindings: Objects<RoleBinding>,
    pub(crate) clusters: Objects<ClusterMeta>,
    pub(crate) applies: Objects<ApplyMeta>,
    pub(crate) events: Events,
}

impl Worker {
    pub(crate) async fn pass(&self, seen: &Observed, now: Timestamp) -> Result<(), Failure> {
        let plan = plan::plan(seen);
        let Err(failure) = self.act(seen, &plan).await else {
            return match &plan.says {
                Some(says) => self.report(seen, says, now).await,
                None => Ok(()),
            };
        };
        if !failure.class().is_passing() {
            // Somebody has to do something about it, so it is shown.
            self.report(seen, &plan::refused(seen, &failure), now).await?;
        }
        Err(failure)
    }

    async fn act(&self, seen: &Observed, plan: &Plan) -> Result<(), Failure> {
        match &plan.step {
            Step::Nothing => Ok(()),
            Step::Guard => {
                let tenant = Planned::new(seen.tenant.as_ref())?;
                let why = "its namespaces are taken away before it goes";
                let none = BTreeMap::new();
                // For one that is being deleted already nothing was made.
                let added = self.tenants.add_finalizer(&tenant, finalizer::TENANT, &none, why);
                added.await.map(drop)
            }
            Step::Work(deeds) => self.work(seen, deeds).await,
            Step::LetGo { keeping } => self.let_go(seen, *keeping).await,
        }
    }

    /// Namespaces have nothing to do with each other, so trouble with one does not keep the others waiting.
    async fn work(&self, seen: &Observed, deeds: &[Deed]) -> Result<(), Failure> {
        self.confirm_unchanged(seen).await?;
        let mut failures = Vec::new();
        for deed in deeds {
            match self.perform(seen, deed).await {
                // That it goes is on its way to the cache.
                Ok(()) | Err(Failure::NamespaceTerminating { .. }) => {}
                Err(failure) => failures.push(failure),
            }
        }
        worst(failures)
    }

    /// A create names no version, and what is deleted is lost: neither may follow from a wish that has changed since.
    async fn confirm_unchanged(&self, seen: &Observed) -> Result<(), Failure> {
        let name = seen.tenant.name_any();
        let race = match self.tenants.live(None, &name).await? {
            Some(live) if live.resource_version() == seen.tenant.resource_version() => return Ok(()),
            Some(_) => Race::Changed,
            None => Race::Vanished,
        };
        Err(Failure::LostRace {
            object: ObjectRef::new("Tenant", None, &name),
            race,
        })
    }

    async fn perform(&self, seen: &Observed, deed: &Deed) -> Result<(), Failure> {
        let tenant = Planned::new(seen.tenant.as_ref())?;
        let parent = Parent::of(&tenant);
        match deed {
            Deed::MakeNamespace(name) => {
                let namespace = Namespace {
                    metadata: Self::new_meta(seen, None, name),
                    ..Namespace::default()
                };
                let created = self.namespaces.create(&parent, seen.marks.bond(), namespace, MAKE);
                created.await.map(drop)
            }
            Deed::MarkNamespace(name) => {
                let (_, namespace) = place(seen, name)?;
                let edit = seen.marks.mending(&namespace.metadata);
                let namespace = Planned::new(namespace)?;
                self.namespaces.patch(&namespace, edit, MAKE).await.map(drop)
            }
            Deed::MakeBinding(name) => {
                let binding = plan::binding(seen, Self::new_meta(seen, Some(name), TENANT_ADMIN_BINDING));
                let created = self.bindings.create(&parent, seen.marks.bond(), binding, MAKE).await?;
                match created {
                    Created::Adopted(live) => self.mend_binding(seen, &live).await,
                    Created::New(_) | Created::Deleting(_) => Ok(()),
                }
            }
            Deed::MendBinding(name) => self.mend_binding(seen, binding(seen, name)?).await,
            Deed::DeleteBinding(name) => {
                let binding = binding(seen, name)?;
                let is_ours = seen.marks.holds(&binding.metadata);
                let ours = Ours::by_identity(&self.bindings, Planned::new(binding)?, is_ours)?;
                self.bindings.delete(&ours, TAKE).await.map(drop)
            }
            Deed::DeleteClusters(name) => self.delete_clusters(seen, name).await,
            Deed::DeleteNamespace(name) => self.delete_namespace(seen, name).await,
        }
    }

    fn new_meta(seen: &Observed, namespace: Option<&str>, name: &str) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.to_owned()),
            namespace: namespace.map(str::to_owned),
            labels: Some(seen.marks.labels(namespace.unwrap_or(name))),
            ..ObjectMeta::default()
        }
    }

    async fn mend_binding(&self, seen: &Observed, live: &RoleBinding) -> Result<(), Failure> {
        let is_ours = seen.marks.holds(&live.metadata);
        Ours::by_identity(&self.bindings, Planned::new(live)?, is_ours)?;
        let edit = seen.marks.mending(&live.metadata);
        let edit = edit.set(&["subjects"], json!(plan::subjects(seen))).at_version();
        self.bindings.patch(&Planned::new(live)?, edit, MAKE).await.map(drop)
    }

    /// One that is protected does not keep the others.
    async fn delete_clusters(&self, seen: &Observed, name: &str) -> Result<(), Failure> {
        let (place, _) = place(seen, name)?;
        self.live_namespace(seen, name).await?;
        let mut failures = Vec::new();
        for cluster in &place.clusters {
            let ours = Ours::by_identity(&self.clusters, Planned::new(cluster.as_ref())?, true)?;
            failures.extend(self.clusters.delete(&ours, TAKE).await.err());
        }
        worst(failures)
    }

    /// Once it is begun everything in it goes at the same time, so what must go first is looked for again.
    async fn delete_namespace(&self, seen: &Observed, name: &str) -> Result<(), Failure> {
        let live = self.live_namespace(seen, name).await?;
        let is_used = !self.clusters.live_list(Some(name), None).await?.is_empty()
            || seen.tenant.is_blocking() && !self.applies.live_list(Some(name), None).await?.is_empty();
        if is_used {
            // Its event is on its way.
            return Err(changed("Namespace", name));
        }
        let ours = Ours::by_identity(&self.namespaces, Planned::new(&live)?, true)?;
        self.namespaces.delete_unchanged(&ours, TAKE).await.map(drop)
    }

    /// The namespace as it is now. Somebody else's may have its name by now, with Clusters that another cache has already; or
    /// its user has just let it go.
    async fn live_namespace(&self, seen: &Observed, name: &str) -> Result<Namespace, Failure> {
        let (_, planned) = place(seen, name)?;
        let live = self.namespaces.live(None, name).await?;
        let is_same = |live: &Namespace| live.uid() == planned.uid() && seen.marks.holds(&live.metadata);
        live.filter(is_same).ok_or_else(|| changed("Namespace", name))
    }

    async fn let_go(&self, seen: &Observed, keeping: bool) -> Result<(), Failure> {
        if !keeping {
            let all = self.namespaces.live_list(None, None).await?;
            if let Some(left) = all.iter().find(|namespace| seen.marks.holds(&namespace.metadata)) {
                return Err(changed("Namespace", &left.name_any()));
            }
        }
        let why = match keeping {
            true => "its namespaces are kept, as its deletion asks",
            false => "no namespace is left",
        };
        let tenant = Planned::new(seen.tenant.as_ref())?;
        let removed = self.tenants.remove_finalizers(&tenant, &[finalizer::TENANT], why);
        removed.await.map(drop)
    }

    async fn report(&self, seen: &Observed, says: &TenantReport, now: Timestamp) -> Result<(), Failure> {
        let status = plan::status(seen, says, now);
        let tenant = Planned::new(seen.tenant.as_ref())?;
        let applied = self.tenants.apply_status(&tenant, &status, "the tenant was looked at");
        if applied.await?.is_unchanged() {
            return Ok(());
        }
        let before = seen.tenant.status.as_ref().map_or(&[][..], |status| &status.conditions);
        let told = match seen.tenant.metadata.deletion_timestamp {
            Some(_) => Deleting::TYPE,
            None => Ready::TYPE,
        };
        let about = seen.tenant.object_ref(&());
        announce(&self.events, &about, before, &status.conditions, &[told]);
        Ok(())
    }
}

/// Of several failures one that somebody has to mend, if there is one.
fn worst(mut failures: Vec<Failure>) -> Result<(), Failure> {
    let needs_somebody = |failure: &Failure| !failure.class().is_passing();
    let worst = failures.iter().position(needs_somebody).unwrap_or_default();
    match failures.is_empty() {
        true => Ok(()),
        false => Err(failures.swap_remove(worst)),
    }
}

fn changed(kind: &str, name: &str) -> Failure {
    Failure::LostRace {
        object: ObjectRef::new(kind, None, name),
        race: Race::Changed,
    }
}

fn place<'a>(seen: &'a Observed, name: &str) -> Result<(&'a Place, &'a Namespace), Failure> {
    let place = seen.places.get(name);
    let found = place.and_then(|place| Some((place, place.namespace.as_deref()?)));
    found.ok_or_else(|| unseen("Namespace", None, name))
}

fn binding<'a>(seen: &'a Observed, name: &str) -> Result<&'a RoleBinding, Failure> {
    let (place, _) = place(seen, name)?;
    let binding = place.binding.as_deref();
    binding.ok_or_else(|| unseen("RoleBinding", Some(name), TENANT_ADMIN_BINDING))
}

fn unseen(kind: &str, namespace: Option<&str>, name: &str) -> Failure {
    Failure::Misuse {
        object: ObjectRef::new(kind, namespace, name),
        what: "it was to be written without having been read".into(),
    }
}
