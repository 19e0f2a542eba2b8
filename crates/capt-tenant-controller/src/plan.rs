//! Decides, from what was seen and nothing else, what is done next and what is said.
//!
//! Every deed can be repeated: a namespace that is made twice is made once. So a plan may have several of them, and a crash
//! between two is a fresh start. A namespace that is to go is taken care of the same way whether its Tenant goes too or only
//! no longer names it.

use capt_api::conditions::tenant::{Deleting, Paused, Ready, TenantReport};
use capt_api::conditions::{self, State};
use capt_api::names::{TENANT_ADMIN_BINDING, TENANT_ADMIN_ROLE, finalizer};
use capt_api::tenant::{SubjectKind, TenantAdmin, TenantStatus};
use capt_runtime::error::Failure;
use capt_runtime::scope::has_paused_annotation;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::{RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};

use crate::observe::{Observed, Place};

/// The API group of roles, and of the subjects that are no objects.
const RBAC: &str = "rbac.authorization.k8s.io";
/// What Kubernetes puts on an object whose dependents are to stay.
const ORPHAN: &str = "orphan";
/// Objects named in a message; the rest is only mentioned.
const NAMED: usize = 5;

/// What is done next, and what is said; `None`: nothing before it is done.
#[derive(Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) step: Step,
    pub(crate) says: Option<TenantReport>,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    Nothing,
    /// The finalizer, before anything is made.
    Guard,
    Work(Vec<Deed>),
    /// Nothing is left that needs the Tenant. To be confirmed by a live read, unless its namespaces are to stay.
    LetGo {
        keeping: bool,
    },
}

/// What is done in the namespace of this name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Deed {
    MakeNamespace(String),
    MarkNamespace(String),
    MakeBinding(String),
    MendBinding(String),
    DeleteBinding(String),
    DeleteClusters(String),
    DeleteNamespace(String),
}

/// Why a namespace that is to go is still there, the worst last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Hindrance {
    /// Kubernetes empties it.
    Namespace,
    /// Its Clusters are on their way.
    Clusters,
    /// What is in it would be lost with it.
    InUse,
}

/// A hindrance, and what is waited for, by name.
type Obstacle = (Hindrance, Vec<String>);

pub(crate) fn plan(seen: &Observed) -> Plan {
    let meta = &seen.tenant.metadata;
    let is_deleting = meta.deletion_timestamp.is_some();
    if has_paused_annotation(meta) {
        return Plan {
            step: Step::Nothing,
            says: Some(paused(is_deleting)),
        };
    }
    let is_guarded = meta.finalizers.iter().flatten().any(|name| name == finalizer::TENANT);
    match (is_deleting, is_guarded) {
        (false, true) => live(seen),
        (false, false) => Plan {
            step: Step::Guard,
            says: None,
        },
        (true, true) => end(seen),
        (true, false) => Plan {
            step: Step::Nothing,
            says: None,
        },
    }
}

fn live(seen: &Observed) -> Plan {
    let mut deeds = Vec::new();
    let mut strangers = Vec::new();
    let mut obstacles = Vec::new();
    for (name, place) in &seen.places {
        match &place.namespace {
            None if place.is_wished => deeds.push(Deed::MakeNamespace(name.clone())),
            None => {}
            Some(namespace) if !seen.marks.holds(&namespace.metadata) => strangers.push(format!("Namespace {name}")),
            Some(namespace) if namespace.metadata.deletion_timestamp.is_some() => {
                obstacles.push(going(namespace));
            }
            Some(namespace) => {
                let obstacle = match place.is_wished {
                    true => None,
                    false => clear(seen, name, place, &mut deeds),
                };
                // What stays for now is looked after for as long as it does.
                if !matches!(obstacle, Some((Hindrance::Namespace, _))) {
                    upkeep(seen, name, namespace, place, &mut deeds, &mut strangers);
                }
                obstacles.extend(obstacle);
            }
        }
    }
    let ready = if strangers.is_empty() {
        living_word(&obstacles)
    } else {
        State::no(
            Ready::OwnershipConflict,
            format!(
                "{} exists and does not belong to this Tenant; delete or rename it, or change the Tenant's spec",
                list(&strangers)
            ),
        )
    };
    // What only waits for our own deeds is told when they are done.
    let is_news = deeds.is_empty() || matches!(ready.reason, Ready::OwnershipConflict | Ready::ClustersExist);
    Plan {
        step: work(deeds),
        says: is_news.then(|| report(ready, State::no(Deleting::NotDeleting, ""))),
    }
}

fn end(seen: &Observed) -> Plan {
    let keeping = seen.tenant.finalizers().iter().any(|name| name == ORPHAN);
    let mut deeds = Vec::new();
    let mut obstacles = Vec::new();
    for (name, place) in seen.held() {
        obstacles.extend(clear(seen, name, place, &mut deeds));
    }
    let Some((hindrance, message)) = waiting(&obstacles).filter(|_| !keeping) else {
        return Plan {
            step: Step::LetGo { keeping },
            says: None,
        };
    };
    let reason = match hindrance {
        Hindrance::InUse => Deleting::ClustersExist,
        Hindrance::Clusters => Deleting::WaitingForClusters,
        Hindrance::Namespace => Deleting::WaitingForNamespaces,
    };
    let is_news = deeds.is_empty() || hindrance == Hindrance::InUse;
    let ready = State::no(Ready::Deleting, message.clone());
    Plan {
        step: work(deeds),
        says: is_news.then(|| report(ready, State::yes(reason, message))),
    }
}

fn work(deeds: Vec<Deed>) -> Step {
    match deeds.is_empty() {
        true => Step::Nothing,
        false => Step::Work(deeds),
    }
}

/// What a namespace that stays lacks.
fn upkeep(
    seen: &Observed,
    name: &str,
    namespace: &Namespace,
    place: &Place,
    deeds: &mut Vec<Deed>,
    strangers: &mut Vec<String>,
) {
    if !seen.marks.mending(&namespace.metadata).is_empty() {
        deeds.push(Deed::MarkNamespace(name.to_owned()));
    }
    let wished = seen.tenant.spec.admin.as_ref().map(subject);
    let binding = match (&place.binding, wished) {
        (None, None) => None,
        (None, Some(_)) => Some(Deed::MakeBinding(name.to_owned())),
        (Some(binding), wished) if !seen.marks.holds(&binding.metadata) => {
            strangers.extend(wished.map(|_| format!("RoleBinding {name}/{TENANT_ADMIN_BINDING}")));
            None
        }
        (Some(binding), _) if binding.metadata.deletion_timestamp.is_some() => None,
        // It says for ever what it gives, and is made again when it is gone.
        (Some(binding), Some(_)) if binding.role_ref != role() => Some(Deed::DeleteBinding(name.to_owned())),
        (Some(binding), Some(subject)) => {
            let as_wished = binding.subjects.as_deref() == Some(&[subject]);
            let is_marked = seen.marks.mending(&binding.metadata).is_empty();
            (!as_wished || !is_marked).then(|| Deed::MendBinding(name.to_owned()))
        }
        (Some(_), None) => Some(Deed::DeleteBinding(name.to_owned())),
    };
    deeds.extend(binding);
}

/// Takes a namespace of ours away, its Clusters first: they need what is in it until they are undone.
fn clear(seen: &Observed, name: &str, place: &Place, deeds: &mut Vec<Deed>) -> Option<Obstacle> {
    let namespace = place.namespace.as_ref()?;
    if namespace.metadata.deletion_timestamp.is_some() {
        return Some(going(namespace));
    }
    let clusters = place.clusters.iter().map(|cluster| cluster.name_any());
    let clusters: Vec<String> = clusters.map(|cluster| format!("Cluster {name}/{cluster}")).collect();
    if seen.tenant.is_blocking() {
        let applies = place.applies.iter();
        let applies = applies.map(|apply| format!("WorkspaceTemplateApply {name}/{apply}"));
        // The applies of a Cluster are the Cluster's own business.
        let in_use: Vec<String> = match clusters.is_empty() {
            true => applies.collect(),
            false => clusters,
        };
        if !in_use.is_empty() {
            return Some((Hindrance::InUse, in_use));
        }
    } else if !clusters.is_empty() {
        let mut deletions = place
            .clusters
            .iter()
            .map(|cluster| &cluster.metadata.deletion_timestamp);
        if deletions.any(Option::is_none) {
            deeds.push(Deed::DeleteClusters(name.to_owned()));
        }
        return Some((Hindrance::Clusters, clusters));
    }
    deeds.push(Deed::DeleteNamespace(name.to_owned()));
    Some(going(namespace))
}

/// A namespace that Kubernetes empties, and what it says about that.
fn going(namespace: &Namespace) -> Obstacle {
    let conditions = namespace.status.as_ref().and_then(|status| status.conditions.as_ref());
    let remaining = conditions.into_iter().flatten().filter(|condition| {
        // The others only say what went well. Of the two that name what is left, the finalizers say who has to act.
        condition.status == "True" && condition.type_ != "NamespaceContentRemaining"
    });
    let said: Vec<&str> = remaining.filter_map(|condition| condition.message.as_deref()).collect();
    let name = namespace.name_any();
    let told = match said.is_empty() {
        true => format!("Namespace {name}"),
        false => format!("Namespace {name} ({})", said.join("; ")),
    };
    (Hindrance::Namespace, vec![told])
}

fn living_word(obstacles: &[Obstacle]) -> State<Ready> {
    let Some((hindrance, message)) = waiting(obstacles) else {
        return State::yes(Ready::NamespacesReady, "");
    };
    let reason = match hindrance {
        Hindrance::InUse => Ready::ClustersExist,
        Hindrance::Clusters => Ready::WaitingForClusters,
        Hindrance::Namespace => Ready::WaitingForNamespaces,
    };
    State::no(reason, message)
}

/// The worst that stands in the way, and everything that does so in the same way.
fn waiting(obstacles: &[Obstacle]) -> Option<(Hindrance, String)> {
    let worst = obstacles.iter().map(|(hindrance, _)| *hindrance).max()?;
    let alike = obstacles.iter().filter(|(hindrance, _)| *hindrance == worst);
    let names: Vec<String> = alike.flat_map(|(_, names)| names).cloned().collect();
    let message = match worst {
        Hindrance::InUse => format!(
            "spec.deletionPolicy is Block, and a namespace that is to go holds {}",
            list(&names)
        ),
        Hindrance::Clusters | Hindrance::Namespace => format!("waiting until these are deleted: {}", list(&names)),
    };
    Some((worst, message))
}

fn list(names: &[String]) -> String {
    let mut said: Vec<&str> = names.iter().take(NAMED).map(String::as_str).collect();
    if names.len() > NAMED {
        said.push("and others");
    }
    said.join(", ")
}

/// What the administrator gets.
fn role() -> RoleRef {
    RoleRef {
        api_group: Some(RBAC.into()),
        kind: "ClusterRole".into(),
        name: TENANT_ADMIN_ROLE.into(),
    }
}

/// Who gets it, in the form that a RoleBinding has on the server.
fn subject(admin: &TenantAdmin) -> Subject {
    let (kind, group) = match admin.kind {
        SubjectKind::User => ("User", Some(RBAC)),
        SubjectKind::Group => ("Group", Some(RBAC)),
        SubjectKind::ServiceAccount => ("ServiceAccount", None),
    };
    Subject {
        api_group: group.map(str::to_owned),
        kind: kind.into(),
        name: admin.name.clone(),
        namespace: admin.namespace.clone(),
    }
}

/// The subjects that a binding of this Tenant is to have.
pub(crate) fn subjects(seen: &Observed) -> Vec<Subject> {
    seen.tenant.spec.admin.iter().map(subject).collect()
}

fn report(ready: State<Ready>, deleting: State<Deleting>) -> TenantReport {
    TenantReport {
        ready: Some(ready),
        deleting: Some(deleting),
        paused: Some(State::no(Paused::NotPaused, "")),
    }
}

fn paused(is_deleting: bool) -> TenantReport {
    let why = "annotation cluster.x-k8s.io/paused is set";
    TenantReport {
        ready: None,
        deleting: is_deleting.then(|| State::yes(Deleting::Paused, why)),
        paused: Some(State::yes(Paused::Paused, why)),
    }
}

/// What is said when the API server does not let a deed be done.
pub(crate) fn refused(seen: &Observed, failure: &Failure) -> TenantReport {
    let message = failure.to_string();
    let (ready, deleting) = match failure {
        Failure::OwnershipConflict { .. } => (Ready::OwnershipConflict, Deleting::Refused),
        Failure::Denied { .. } => (Ready::AdmissionDenied, Deleting::AdmissionDenied),
        _ => (Ready::Refused, Deleting::Refused),
    };
    if seen.tenant.metadata.deletion_timestamp.is_some() {
        return report(
            State::no(Ready::Deleting, message.clone()),
            State::yes(deleting, message),
        );
    }
    report(State::no(ready, message), State::no(Deleting::NotDeleting, ""))
}

/// The status that says this of what was seen.
pub(crate) fn status(seen: &Observed, report: &TenantReport, now: Timestamp) -> TenantStatus {
    let meta = seen.tenant.meta();
    let none = TenantStatus::default();
    let before = seen.tenant.status.as_ref().unwrap_or(&none);
    let generation = meta.generation.unwrap_or_default();
    let namespaces = seen.held().map(|(name, _)| name.clone());
    let clusters: usize = seen.held().map(|(_, place)| place.clusters.len()).sum();
    TenantStatus {
        namespaces: namespaces.take(TenantStatus::MAX_NAMESPACES).collect(),
        clusters: i64::try_from(clusters).ok(),
        observed_generation: Some(generation),
        conditions: conditions::merge(&before.conditions, report, generation, now),
    }
}

/// The binding as it is made.
pub(crate) fn binding(seen: &Observed, metadata: ObjectMeta) -> RoleBinding {
    RoleBinding {
        metadata,
        role_ref: role(),
        subjects: Some(subjects(seen)),
    }
}

#[cfg(test)]
mod tests;
