use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use capt_api::Tenant;
use capt_api::conditions::Reason;
use capt_api::names::{TENANT_ADMIN_BINDING, annotation};
use capt_api::tenant::{TenantDeletionPolicy, TenantSpec};
use capt_runtime::error::{ObjectRef, Verb};
use k8s_openapi::api::core::v1::{NamespaceCondition, NamespaceStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use proptest::prelude::*;

use super::*;
use crate::marks::Marks;
use crate::observe::ClusterMeta;
use crate::states::READY;

const UID: &str = "tenant-uid";

/// Tenant team-a, and a management cluster around it in which deeds are done.
#[derive(Debug, Clone)]
struct World {
    tenant: Tenant,
    namespaces: BTreeMap<String, Namespace>,
    bindings: BTreeMap<String, RoleBinding>,
    clusters: BTreeMap<(String, String), ClusterMeta>,
    applies: BTreeSet<(String, String)>,
    /// The namespaces that were made for the Tenant, but for those whose marks somebody took away since.
    made: BTreeSet<String>,
}

impl World {
    fn new(namespaces: &[&str]) -> Self {
        let spec = TenantSpec {
            namespaces: namespaces.iter().map(ToString::to_string).collect(),
            admin: Some(TenantAdmin {
                name: "team-a".into(),
                ..TenantAdmin::default()
            }),
            ..TenantSpec::default()
        };
        let mut tenant = Tenant::new("team-a", spec);
        tenant.metadata.uid = Some(UID.into());
        tenant.metadata.generation = Some(1);
        tenant.metadata.finalizers = Some(vec![finalizer::TENANT.into()]);
        Self {
            tenant,
            namespaces: BTreeMap::new(),
            bindings: BTreeMap::new(),
            clusters: BTreeMap::new(),
            applies: BTreeSet::new(),
            made: BTreeSet::new(),
        }
    }

    /// With everything that it asks for.
    fn settled(namespaces: &[&str]) -> Self {
        let mut world = Self::new(namespaces);
        world.settle();
        world
    }

    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn deleting(self) -> Self {
        self.with(|world| world.tenant.metadata.deletion_timestamp = Some(now_time()))
    }

    fn blocking(self) -> Self {
        self.with(|world| world.tenant.spec.deletion_policy = Some(TenantDeletionPolicy::Block))
    }

    fn cluster(self, namespace: &str, name: &str) -> Self {
        self.with(|world| {
            let mut cluster = ClusterMeta::default();
            cluster.metadata.name = Some(name.into());
            cluster.metadata.namespace = Some(namespace.into());
            world.clusters.insert((namespace.into(), name.into()), cluster);
        })
    }

    fn stranger(self, namespace: &str) -> Self {
        self.with(|world| {
            world.namespaces.insert(namespace.into(), named(namespace));
        })
    }

    fn observe(&self) -> Observed {
        let marks = Marks::of(&self.tenant);
        let wished: BTreeSet<String> = self.tenant.wished_namespaces().collect();
        let held = self.namespaces.iter();
        let held = held.filter(|(_, namespace)| marks.holds(&namespace.metadata));
        let names: BTreeSet<String> = held.map(|(name, _)| name.clone()).chain(wished.clone()).collect();
        let place = |name: String| {
            let clusters = self.clusters.iter().filter(|((namespace, _), _)| *namespace == name);
            let applies = self.applies.iter().filter(|(namespace, _)| *namespace == name);
            let place = Place {
                is_wished: wished.contains(&name),
                namespace: self.namespaces.get(&name).cloned().map(Arc::new),
                binding: self.bindings.get(&name).cloned().map(Arc::new),
                clusters: clusters.map(|(_, cluster)| Arc::new(cluster.clone())).collect(),
                applies: applies.map(|(_, apply)| apply.clone()).collect(),
            };
            (name, place)
        };
        Observed {
            tenant: Arc::new(self.tenant.clone()),
            places: names.into_iter().map(place).collect(),
            marks,
        }
    }

    fn plan(&self) -> Plan {
        plan(&self.observe())
    }

    /// What the API server would make of a deed. Fails when it must never be done.
    fn perform(&mut self, deed: &Deed) {
        let seen = self.observe();
        let held = |world: &Self, name: &String| seen.marks.holds(&world.namespaces[name].metadata);
        let marked = |name: &str| ObjectMeta {
            labels: Some(seen.marks.labels(name)),
            owner_references: reference(&self.tenant),
            ..named(name).metadata
        };
        let marked_binding = |namespace: &str| ObjectMeta {
            namespace: Some(namespace.to_owned()),
            name: Some(TENANT_ADMIN_BINDING.to_owned()),
            ..marked(namespace)
        };
        match deed {
            Deed::MakeNamespace(name) => {
                assert!(!self.namespaces.contains_key(name), "{name} is made again");
                let metadata = marked(name);
                let namespace = Namespace {
                    metadata,
                    ..Namespace::default()
                };
                self.namespaces.insert(name.clone(), namespace);
                self.made.insert(name.clone());
            }
            Deed::MarkNamespace(name) => {
                assert!(held(self, name), "{name} is a stranger's");
                let metadata = marked(name);
                self.namespaces.get_mut(name).unwrap().metadata = metadata;
                self.made.insert(name.clone());
            }
            Deed::MakeBinding(name) | Deed::MendBinding(name) => {
                assert!(held(self, name), "{name} is a stranger's");
                let binding = binding(&seen, marked_binding(name));
                self.bindings.insert(name.clone(), binding);
            }
            Deed::DeleteBinding(name) => drop(self.bindings.remove(name)),
            Deed::DeleteClusters(name) => {
                assert!(held(self, name), "{name} is a stranger's");
                assert_ne!(self.tenant.spec.deletion_policy, Some(TenantDeletionPolicy::Block));
                for ((namespace, _), cluster) in &mut self.clusters {
                    if namespace == name {
                        cluster.metadata.deletion_timestamp = Some(now_time());
                    }
                }
            }
            Deed::DeleteNamespace(name) => {
                assert!(held(self, name), "{name} is a stranger's");
                let clusters = self.clusters.keys().filter(|(namespace, _)| namespace == name).count();
                assert_eq!(clusters, 0, "{name} goes before its Clusters");
                let applies = self.applies.iter().filter(|(namespace, _)| namespace == name).count();
                let is_blocking = self.tenant.spec.deletion_policy == Some(TenantDeletionPolicy::Block);
                assert!(applies == 0 || !is_blocking, "{name} goes in spite of what it holds");
                self.namespaces.get_mut(name).unwrap().metadata.deletion_timestamp = Some(now_time());
            }
        }
    }

    /// What others do in time: Cluster API ends Clusters, Kubernetes empties namespaces.
    fn pass_time(&mut self) {
        self.clusters
            .retain(|_, cluster| cluster.metadata.deletion_timestamp.is_none());
        let going = self.namespaces.iter();
        let going = going.filter(|(_, namespace)| namespace.metadata.deletion_timestamp.is_some());
        let going: Vec<String> = going.map(|(name, _)| name.clone()).collect();
        for name in going {
            self.namespaces.remove(&name);
            self.made.remove(&name);
            self.bindings.remove(&name);
            self.clusters.retain(|(namespace, _), _| *namespace != name);
            self.applies.retain(|(namespace, _)| *namespace != name);
        }
    }

    /// Does what is planned until nothing is left to do; returns whether the Tenant was let go.
    fn settle(&mut self) -> bool {
        for _ in 0..10 {
            match self.plan().step {
                Step::LetGo { .. } => return true,
                Step::Guard => self.tenant.metadata.finalizers = Some(vec![finalizer::TENANT.into()]),
                Step::Nothing => {}
                Step::Work(deeds) => deeds.iter().for_each(|deed| self.perform(deed)),
            }
            self.pass_time();
        }
        assert_eq!(self.plan().step, Step::Nothing, "it never ends");
        false
    }
}

fn now_time() -> Time {
    Time(Timestamp::UNIX_EPOCH)
}

fn named(name: &str) -> Namespace {
    Namespace {
        metadata: ObjectMeta {
            name: Some(name.into()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    }
}

fn reference(tenant: &Tenant) -> Option<Vec<OwnerReference>> {
    let is_blocking = tenant.spec.deletion_policy == Some(TenantDeletionPolicy::Block);
    let reference = tenant.controller_owner_ref(&()).filter(|_| !is_blocking);
    reference.map(|reference| {
        vec![OwnerReference {
            block_owner_deletion: Some(true),
            ..reference
        }]
    })
}

fn ready(plan: &Plan) -> Option<(Ready, &str)> {
    let ready = plan.says.as_ref()?.ready.as_ref()?;
    Some((ready.reason, ready.message.as_str()))
}

fn deleting(plan: &Plan) -> Option<(Deleting, &str)> {
    let deleting = plan.says.as_ref()?.deleting.as_ref()?;
    Some((deleting.reason, deleting.message.as_str()))
}

fn work_of(deeds: &[Deed]) -> Step {
    Step::Work(deeds.to_vec())
}

#[test]
fn the_finalizer_comes_before_the_first_namespace() {
    let mut world = World::new(&["dev"]);
    world.tenant.metadata.finalizers = None;
    let plan = world.plan();
    assert_eq!(plan.step, Step::Guard);
    assert_eq!(plan.says, None);
    // Nothing was made, so nothing holds it.
    assert_eq!(world.deleting().plan().step, Step::Nothing);
}

#[test]
fn namespaces_and_their_administrator_are_made_and_told_when_they_are_there() {
    let mut world = World::new(&["dev", "prod"]);
    let plan = world.plan();
    let make = |name: &str| Deed::MakeNamespace(name.into());
    assert_eq!(plan.step, work_of(&[make("team-a-dev"), make("team-a-prod")]));
    assert_eq!(plan.says, None);
    world.perform(&make("team-a-dev"));
    let bind = Deed::MakeBinding("team-a-dev".into());
    assert_eq!(world.plan().step, work_of(&[bind, make("team-a-prod")]));
    world.settle();
    assert_eq!(ready(&world.plan()), Some((Ready::NamespacesReady, "")));
    let status = status(&world.observe(), &world.plan().says.unwrap(), Timestamp::UNIX_EPOCH);
    assert_eq!(status.namespaces, ["team-a-dev", "team-a-prod"]);
    assert_eq!(status.clusters, Some(0));
    let binding = &world.bindings["team-a-dev"];
    assert_eq!(binding.role_ref.name, "admin");
    let subject = &binding.subjects.as_ref().unwrap()[0];
    assert_eq!((subject.kind.as_str(), subject.name.as_str()), ("Group", "team-a"));
}

#[test]
fn a_namespace_of_somebody_else_is_told_and_left_alone() {
    let mut world = World::new(&["dev", "prod"]).stranger("team-a-dev");
    let told = |world: &World| {
        let plan = world.plan();
        let (reason, message) = ready(&plan).unwrap();
        assert_eq!(reason, Ready::OwnershipConflict);
        assert!(message.starts_with("Namespace team-a-dev exists"), "{message}");
    };
    told(&world);
    world.settle();
    told(&world);
    // The others are made all the same.
    assert!(world.namespaces.contains_key("team-a-prod"));
    assert_eq!(world.namespaces["team-a-dev"], named("team-a-dev"));
    let mut going = world.deleting();
    assert!(going.settle());
    assert!(going.namespaces.keys().eq(["team-a-dev"]));
}

#[test]
fn what_somebody_changed_is_put_back() {
    let settled = World::settled(&["dev"]);
    let name = || "team-a-dev".to_owned();
    for (damage, deed) in [
        (
            Box::new(|world: &mut World| {
                world
                    .namespaces
                    .get_mut("team-a-dev")
                    .unwrap()
                    .metadata
                    .owner_references = None;
            }) as Box<dyn Fn(&mut World)>,
            Deed::MarkNamespace(name()),
        ),
        (
            Box::new(|world: &mut World| {
                world.namespaces.get_mut("team-a-dev").unwrap().metadata.labels = None;
            }),
            Deed::MarkNamespace(name()),
        ),
        (
            Box::new(|world: &mut World| drop(world.bindings.remove("team-a-dev"))),
            Deed::MakeBinding(name()),
        ),
        (
            Box::new(|world: &mut World| world.bindings.get_mut("team-a-dev").unwrap().subjects = None),
            Deed::MendBinding(name()),
        ),
        (
            Box::new(|world: &mut World| world.tenant.spec.admin.as_mut().unwrap().name = "others".into()),
            Deed::MendBinding(name()),
        ),
        (
            Box::new(|world: &mut World| world.bindings.get_mut("team-a-dev").unwrap().role_ref.name = "view".into()),
            Deed::DeleteBinding(name()),
        ),
        (
            Box::new(|world: &mut World| world.tenant.spec.admin = None),
            Deed::DeleteBinding(name()),
        ),
    ] {
        let mut world = settled.clone();
        damage(&mut world);
        assert_eq!(world.plan().step, work_of(&[deed]));
        world.settle();
        assert_eq!(ready(&world.plan()), Some((Ready::NamespacesReady, "")));
    }
}

#[test]
fn a_namespace_that_was_deleted_by_hand_is_waited_out_and_made_again() {
    let mut world = World::settled(&["dev"]);
    let namespace = world.namespaces.get_mut("team-a-dev").unwrap();
    namespace.metadata.deletion_timestamp = Some(now_time());
    let condition = |type_: &str, status: &str, message: &str| NamespaceCondition {
        type_: type_.into(),
        status: status.into(),
        message: Some(message.into()),
        ..NamespaceCondition::default()
    };
    namespace.status = Some(NamespaceStatus {
        conditions: Some(vec![
            condition(
                "NamespaceDeletionContentFailure",
                "False",
                "All content successfully deleted",
            ),
            condition(
                "NamespaceContentRemaining",
                "True",
                "Some resources are remaining: clusters has 1",
            ),
            condition(
                "NamespaceFinalizersRemaining",
                "True",
                "Some content has finalizers remaining: a/b in 1",
            ),
        ]),
        ..NamespaceStatus::default()
    });
    let plan = world.plan();
    assert_eq!(plan.step, Step::Nothing);
    let (reason, message) = ready(&plan).unwrap();
    assert_eq!(reason, Ready::WaitingForNamespaces);
    assert!(
        message.ends_with("Namespace team-a-dev (Some content has finalizers remaining: a/b in 1)"),
        "{message}"
    );
    world.settle();
    assert_eq!(ready(&world.plan()), Some((Ready::NamespacesReady, "")));
}

#[test]
fn clusters_go_before_their_namespace() {
    let world = World::settled(&["dev", "prod"]).cluster("team-a-dev", "one");
    for world in [
        world.clone().deleting(),
        world.clone().with(|world| world.tenant.spec.namespaces.clear()),
    ] {
        let mut world = world;
        let name = |name: &str| name.to_owned();
        let (clusters, other) = (
            Deed::DeleteClusters(name("team-a-dev")),
            Deed::DeleteNamespace(name("team-a-prod")),
        );
        assert_eq!(world.plan().step, work_of(&[clusters.clone(), other.clone()]));
        world.perform(&clusters);
        world.perform(&other);
        let plan = world.plan();
        assert_eq!(plan.step, Step::Nothing);
        let said = plan.says.as_ref().unwrap();
        let message = "waiting until these are deleted: Cluster team-a-dev/one";
        assert_eq!(said.ready.as_ref().unwrap().message, message);
        let is_ending = world.tenant.metadata.deletion_timestamp.is_some();
        assert_eq!(deleting(&plan).unwrap().0 == Deleting::WaitingForClusters, is_ending);
        assert_eq!(world.settle(), is_ending);
        assert!(world.namespaces.is_empty());
    }
}

#[test]
fn block_keeps_what_is_in_use() {
    let settled = World::settled(&["dev"]).blocking();
    let mut settled = settled.with(|world| _ = world.settle());
    let apply = |world: &mut World| _ = world.applies.insert(("team-a-dev".into(), "standalone".into()));
    for (world, named) in [
        (settled.clone().cluster("team-a-dev", "one"), "Cluster team-a-dev/one"),
        (
            settled.clone().with(apply),
            "WorkspaceTemplateApply team-a-dev/standalone",
        ),
        (
            settled.clone().with(apply).cluster("team-a-dev", "one"),
            "Cluster team-a-dev/one",
        ),
    ] {
        let going = world.clone().deleting();
        let plan = going.plan();
        assert_eq!(plan.step, Step::Nothing);
        let (reason, message) = deleting(&plan).unwrap();
        assert_eq!(reason, Deleting::ClustersExist);
        assert!(message.ends_with(&format!("holds {named}")), "{message}");

        let shrinking = world.with(|world| world.tenant.spec.namespaces.clear());
        assert_eq!(ready(&shrinking.plan()).unwrap().0, Ready::ClustersExist);
        assert_eq!(shrinking.plan().step, Step::Nothing);
    }
    settled = settled.deleting();
    assert!(settled.settle());
    assert!(settled.namespaces.is_empty());
}

/// As the remedy of ClustersExist says, and also when the deletion has begun.
#[test]
fn block_can_be_given_up() {
    let world = World::settled(&["dev"]).blocking().with(|world| _ = world.settle());
    let world = world.cluster("team-a-dev", "one").deleting();
    assert_eq!(deleting(&world.plan()).unwrap().0, Deleting::ClustersExist);
    let mut given_up = world.with(|world| world.tenant.spec.deletion_policy = None);
    assert!(given_up.settle());
    assert!(given_up.namespaces.is_empty() && given_up.clusters.is_empty());
}

#[test]
fn a_copy_of_a_namespace_is_somebody_elses() {
    let world = World::settled(&["dev"]).with(|world| {
        let mut copy = world.namespaces["team-a-dev"].clone();
        copy.metadata.name = Some("restored".into());
        copy.metadata.owner_references = None;
        world.namespaces.insert("restored".into(), copy);
    });
    assert_eq!(ready(&world.plan()), Some((Ready::NamespacesReady, "")));
    let mut going = world.deleting();
    assert!(going.settle());
    assert!(going.namespaces.keys().eq(["restored"]));
}

/// What is kept because it is in use follows the Tenant for as long as it is.
#[test]
fn a_namespace_that_is_kept_is_looked_after() {
    let world = World::settled(&["dev"]).cluster("team-a-dev", "one");
    let mut world = world.with(|world| world.tenant.spec.namespaces.clear()).blocking();
    world.settle();
    assert_eq!(ready(&world.plan()).unwrap().0, Ready::ClustersExist);
    assert_eq!(world.namespaces["team-a-dev"].metadata.owner_references, None);
    world.tenant.spec.admin = None;
    world.settle();
    assert!(world.bindings.is_empty());
}

#[test]
fn a_binding_of_somebody_else_is_told_and_left_alone() {
    let strange = |world: &mut World| {
        let binding = world.bindings.get_mut("team-a-dev").unwrap();
        (binding.metadata.labels, binding.metadata.owner_references) = (None, None);
    };
    let world = World::settled(&["dev"]).with(strange);
    let plan = world.plan();
    assert_eq!(plan.step, Step::Nothing);
    let (reason, message) = ready(&plan).unwrap();
    assert_eq!(reason, Ready::OwnershipConflict);
    assert!(
        message.starts_with("RoleBinding team-a-dev/capt-tenant-admin exists"),
        "{message}"
    );
    // Without an administrator it is nobody's business.
    let world = world.with(|world| world.tenant.spec.admin = None);
    assert_eq!(ready(&world.plan()), Some((Ready::NamespacesReady, "")));
    assert_eq!(world.plan().step, Step::Nothing);
}

/// Whoever asks for orphans gets them, whether the garbage collector has begun or is done.
#[test]
fn namespaces_are_kept_when_the_deletion_asks_for_it() {
    let world = World::settled(&["dev"]).cluster("team-a-dev", "one").deleting();
    let begun = world.clone().with(|world| {
        world.tenant.metadata.finalizers.as_mut().unwrap().push("orphan".into());
    });
    assert_eq!(begun.plan().step, Step::LetGo { keeping: true });
    let done = world.with(|world| {
        world
            .namespaces
            .get_mut("team-a-dev")
            .unwrap()
            .metadata
            .owner_references = None;
    });
    assert_eq!(done.plan().step, Step::LetGo { keeping: false });
}

#[test]
fn a_pause_stops_everything_and_is_told() {
    let pause = |world: &mut World| {
        let paused = BTreeMap::from([(annotation::PAUSED.to_owned(), String::new())]);
        world.tenant.metadata.annotations = Some(paused);
    };
    let living = World::new(&["dev"]).with(pause).plan();
    assert_eq!(living.step, Step::Nothing);
    let said = living.says.unwrap();
    assert_eq!((said.ready, said.deleting), (None, None));
    assert_eq!(said.paused.unwrap().reason, Paused::Paused);

    let going = World::settled(&["dev"]).with(pause).deleting().plan();
    assert_eq!(going.step, Step::Nothing);
    assert_eq!(deleting(&going).unwrap().0, Deleting::Paused);
}

#[test]
fn a_refusal_is_told_where_people_look() {
    let object = || ObjectRef::new("Namespace", None, "team-a-dev");
    let failures = [
        (
            Failure::OwnershipConflict {
                object: object(),
                owner: "it is not".into(),
            },
            (Ready::OwnershipConflict, Deleting::Refused),
        ),
        (
            Failure::Denied {
                verb: Verb::Create,
                object: object(),
                message: "no".into(),
            },
            (Ready::AdmissionDenied, Deleting::AdmissionDenied),
        ),
        (
            Failure::Forbidden {
                verb: Verb::Create,
                object: object(),
                message: "no".into(),
                is_lasting: true,
            },
            (Ready::Refused, Deleting::Refused),
        ),
    ];
    for (failure, (living, going)) in failures {
        let said = refused(&World::new(&["dev"]).observe(), &failure);
        assert_eq!(said.ready.unwrap().reason, living);
        assert_eq!(said.deleting.unwrap().reason, Deleting::NotDeleting);
        let said = refused(&World::new(&["dev"]).deleting().observe(), &failure);
        assert_eq!(said.ready.unwrap().reason, Ready::Deleting);
        assert_eq!(said.deleting.unwrap().reason, going);
    }
}

#[test]
fn many_names_are_cut() {
    let names: Vec<String> = (0..7).map(|n| format!("n{n}")).collect();
    assert_eq!(list(&names), "n0, n1, n2, n3, n4, and others");
    assert_eq!(list(&names[..2]), "n0, n1");
}

/// What can be done to a world at any time, by anybody.
#[derive(Debug, Clone)]
enum Event {
    /// A pass of the controller that dies after so many deeds.
    Pass(usize),
    Time,
    Wish(u8),
    Policy(bool),
    Admin(bool),
    Cluster(u8),
    Apply(u8),
    StripReference(u8),
    StripLabels(u8),
    DeleteNamespace(u8),
    Delete,
}

const NAMES: [&str; 3] = ["dev", "prod", "test"];

fn namespace(number: u8) -> String {
    format!("team-a-{}", NAMES[usize::from(number) % NAMES.len()])
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0_usize..4).prop_map(Event::Pass),
        3 => Just(Event::Time),
        2 => (0_u8..8).prop_map(Event::Wish),
        1 => any::<bool>().prop_map(Event::Policy),
        1 => any::<bool>().prop_map(Event::Admin),
        2 => (0_u8..3).prop_map(Event::Cluster),
        1 => (0_u8..3).prop_map(Event::Apply),
        1 => (0_u8..3).prop_map(Event::StripReference),
        1 => (0_u8..3).prop_map(Event::StripLabels),
        1 => (0_u8..3).prop_map(Event::DeleteNamespace),
        1 => Just(Event::Delete),
    ]
}

/// Returns whether the Tenant is gone.
fn happen(world: &mut World, event: &Event) -> bool {
    match event {
        Event::Pass(deeds) => match world.plan().step {
            Step::Work(planned) => planned.iter().take(*deeds).for_each(|deed| world.perform(deed)),
            Step::LetGo { .. } => return true,
            Step::Nothing | Step::Guard => {}
        },
        Event::Time => world.pass_time(),
        Event::Wish(bits) => {
            let wished = NAMES.iter().enumerate().filter(|(n, _)| bits & (1 << n) != 0);
            world.tenant.spec.namespaces = wished.map(|(_, name)| (*name).to_owned()).collect();
        }
        Event::Policy(block) => {
            let policy = [TenantDeletionPolicy::Cascade, TenantDeletionPolicy::Block];
            world.tenant.spec.deletion_policy = Some(policy[usize::from(*block)]);
        }
        Event::Admin(some) => {
            world.tenant.spec.admin = some.then(|| TenantAdmin {
                name: "others".into(),
                ..TenantAdmin::default()
            });
        }
        Event::Cluster(number) if world.namespaces.contains_key(&namespace(*number)) => {
            *world = world.clone().cluster(&namespace(*number), "one");
        }
        Event::Apply(number) if world.namespaces.contains_key(&namespace(*number)) => {
            world.applies.insert((namespace(*number), "apply".into()));
        }
        Event::StripReference(number) => {
            if let Some(found) = world.namespaces.get_mut(&namespace(*number)) {
                found.metadata.owner_references = None;
                world.made.remove(&namespace(*number));
            }
        }
        Event::StripLabels(number) => {
            if let Some(found) = world.namespaces.get_mut(&namespace(*number)) {
                found.metadata.labels = None;
                world.made.remove(&namespace(*number));
            }
        }
        Event::DeleteNamespace(number) => {
            if let Some(found) = world.namespaces.get_mut(&namespace(*number)) {
                found.metadata.deletion_timestamp = Some(now_time());
            }
        }
        Event::Delete => world.tenant.metadata.deletion_timestamp = Some(now_time()),
        Event::Cluster(_) | Event::Apply(_) => {}
    }
    false
}

proptest! {
    /// Whatever happens, in whatever order, and wherever the controller dies: no deed is ever done that must not be done
    /// (`World::perform` looks), and when nothing more happens the world is as the Tenant says.
    #[test]
    fn every_history_ends_well(events in prop::collection::vec(event(), 0..40)) {
        let mut world = World::new(&["dev"]).stranger("team-a-test");
        for event in &events {
            if happen(&mut world, event) {
                prop_assert!(world.made.is_empty(), "{:?} are left", world.made);
                return Ok(());
            }
        }
        let let_go = world.settle();
        let is_ending = world.tenant.metadata.deletion_timestamp.is_some();
        let marks = Marks::of(&world.tenant);
        let held: Vec<&String> = world.namespaces.iter()
            .filter(|(_, namespace)| marks.holds(&namespace.metadata))
            .map(|(name, _)| name)
            .collect();
        if is_ending {
            let plan = world.plan();
            prop_assert!(let_go || deleting(&plan).unwrap().0 == Deleting::ClustersExist);
            prop_assert!(!let_go || held.is_empty());
            prop_assert!(!let_go || world.made.is_empty(), "{:?} are left", world.made);
            return Ok(());
        }
        let wished: BTreeSet<String> = world.tenant.wished_namespaces().collect();
        let plan = world.plan();
        match ready(&plan).unwrap().0 {
            Ready::NamespacesReady => {
                prop_assert!(held.into_iter().eq(&wished));
                for name in &wished {
                    prop_assert!(marks.mending(&world.namespaces[name].metadata).is_empty());
                    prop_assert_eq!(world.bindings.contains_key(name), world.tenant.spec.admin.is_some());
                }
            }
            // Somebody's own namespace has the name, or both marks of ours were taken away.
            Ready::OwnershipConflict => prop_assert!(wished.iter().any(|name| !held.contains(&name))),
            Ready::ClustersExist => prop_assert!(held.iter().any(|name| !wished.contains(*name))),
            other => prop_assert!(false, "{other:?} does not end"),
        }
    }
}

/// `plan` looks at the world and not at what it said before, so everything that it says of a living Tenant can follow
/// everything else.
#[test]
fn the_table_says_all_that_plan_does_and_no_more() {
    let settled = World::settled(&["dev"]);
    let object = || ObjectRef::new("Namespace", None, "team-a-dev");
    let denied = Failure::Denied {
        verb: Verb::Create,
        object: object(),
        message: String::new(),
    };
    let rejected = Failure::Misuse {
        object: object(),
        what: String::new(),
    };
    let gone = |world: World| world.with(|world| world.tenant.spec.namespaces.clear());
    let leaving = |world: World| {
        gone(world).with(|world| {
            world.perform(&Deed::DeleteClusters("team-a-dev".into()));
        })
    };
    let emptied = gone(settled.clone()).with(|world| world.perform(&Deed::DeleteNamespace("team-a-dev".into())));
    let in_use = settled.clone().blocking().with(|world| _ = world.settle());
    let living = [
        settled.plan().says,
        World::new(&["dev"]).stranger("team-a-dev").plan().says,
        leaving(settled.clone().cluster("team-a-dev", "one")).plan().says,
        emptied.plan().says,
        gone(in_use.cluster("team-a-dev", "one")).plan().says,
        Some(refused(&settled.observe(), &denied)),
        Some(refused(&settled.observe(), &rejected)),
    ];
    let said = living.map(|says| says.unwrap().ready.unwrap().reason);
    let going = emptied.deleting().plan();
    assert_eq!(ready(&going).unwrap().0, Ready::Deleting);
    for to in Ready::ALL {
        let is_said = said.contains(to) || *to == Ready::Deleting;
        assert!(is_said, "{to:?} is never said");
        for from in said.map(Some).into_iter().chain([None]) {
            assert!(READY.allows(from, *to), "{from:?} to {to:?}");
        }
        assert!(*to == Ready::Deleting || !READY.allows(Some(Ready::Deleting), *to));
    }
    assert_eq!(READY.faults(), [""; 0]);
}
