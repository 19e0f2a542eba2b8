//! What to do next about a control plane's endpoint, and what to say: a pure function of what was observed and the time.
//!
//! Work never waits; words do. Failures and ends are told at once, an ordinary wait once and in turn with the other
//! controllers of the same object, and what passes within moments not at all ([`When`]). There is no deadline here:
//! capt-controlplane-controller judges how long things may take.

use capt_api::CaptControlPlane;
use capt_api::common::ApiEndpoint;
use capt_api::conditions::control_plane::Ready;
use capt_api::conditions::endpoint::{EndpointReady, EndpointReport};
use capt_api::conditions::{self, Reason, State, Status};
use capt_api::controlplane::CaptControlPlaneStatus;
use capt_api::names::eks_apply_name;
use capt_runtime::controller::Wake;
use capt_runtime::words::{When, generation_of_wait};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use crate::observe::{Apply, Infrastructure, Missing, Observed, Owner, Parent, Place, Told};

/// What is to be done, and what is to be said once it is done; without a report the last one stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) step: Step,
    pub(crate) report: Option<Report>,
    pub(crate) wake: Wake,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Nothing,
    /// What comes next depends on what the Cluster says now: read it from the API server, and plan again.
    Look,
    Publish(Publish),
    /// The control plane goes: clear the Cluster's endpoint if it is ours, and drop the finalizer.
    LetGo {
        clear: bool,
    },
}

impl Step {
    /// Whether the Cluster's endpoint or the control plane's is written.
    pub(crate) fn updates_an_endpoint(&self) -> bool {
        match self {
            Self::Nothing | Self::Look => false,
            Self::Publish(writes) => writes.cluster.is_some() || writes.control_plane.is_some(),
            Self::LetGo { clear } => *clear,
        }
    }
}

/// Writes in this order, each guarded by itself. The Cluster comes before the control plane: the control plane's value is
/// what tells that the Cluster's old one was ours.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Publish {
    /// Before anything that has to be undone.
    pub(crate) finalizer: bool,
    pub(crate) cluster: Option<ApiEndpoint>,
    pub(crate) control_plane: Option<ApiEndpoint>,
    /// What somebody else had written where this controller's value belongs.
    pub(crate) displaced: Option<ApiEndpoint>,
}

/// What is said about the endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) endpoint: Option<String>,
    pub(crate) ready: State<EndpointReady>,
}

impl Report {
    fn no(reason: EndpointReady, why: impl Into<String>) -> Self {
        Self {
            endpoint: None,
            ready: State::no(reason, why),
        }
    }

    /// The status of `control_plane` that says so.
    pub(crate) fn status(&self, control_plane: &CaptControlPlane, now: Timestamp) -> CaptControlPlaneStatus {
        let before = control_plane
            .status
            .as_ref()
            .map_or(&[][..], |status| &status.conditions);
        let mut generation = control_plane.metadata.generation.unwrap_or_default();
        if self.is_wait() {
            generation = generation_of_wait(condition(control_plane), &self.ready, generation);
        }
        let report = EndpointReport {
            endpoint_ready: Some(self.ready.clone()),
        };
        CaptControlPlaneStatus {
            endpoint: self.endpoint.clone(),
            conditions: conditions::merge(before, &report, generation, now),
            ..CaptControlPlaneStatus::default()
        }
    }

    fn is_wait(&self) -> bool {
        let waits = [EndpointReady::WaitingForCluster, EndpointReady::WaitingForWorkspace];
        self.ready.status == Status::False && waits.contains(&self.ready.reason)
    }
}

pub(crate) fn plan(seen: &Observed, now: Timestamp) -> Plan {
    if seen.is_left_alone() {
        return Plan::NOTHING;
    }
    if seen.is_being_deleted() {
        return deletion(seen, now);
    }
    let published = Published::of(&seen.control_plane);
    let waiting = |message: &str| match &published {
        // A control plane that lost its owner keeps its last word: what was published stands.
        Some(_) => Plan::NOTHING,
        None => {
            let created = seen.control_plane.metadata.creation_timestamp.as_ref();
            let report = Report::no(EndpointReady::WaitingForCluster, message);
            Plan::NOTHING.saying(report, When::Lasting(created.map(|time| time.0)), seen, now)
        }
    };
    match &seen.owner {
        Owner::NotSet => waiting("waiting for Cluster API to set the owner Cluster"),
        Owner::Gone => waiting("the owner Cluster does not exist"),
        // Left alone above.
        Owner::Unreadable => Plan::NOTHING,
        Owner::Present(parent) => upkeep(seen, parent, published.as_ref(), now),
    }
}

/// The report when a read or a write was refused in a way that waiting does not mend.
pub(crate) fn refused(control_plane: &CaptControlPlane, why: String) -> Report {
    Published::of(control_plane).map_or_else(
        || Report::no(EndpointReady::EndpointUpdateFailed, &why),
        |published| published.but(EndpointReady::EndpointUpdateFailed, &why),
    )
}

impl Plan {
    const NOTHING: Self = Self::doing(Step::Nothing);
    const LOOK: Self = Self::doing(Step::Look);

    const fn doing(step: Step) -> Self {
        Self {
            step,
            report: None,
            wake: Wake::OnEvent,
        }
    }

    /// The same step with these words, if it is time for them. Otherwise what was said before stands, as it is.
    fn saying(self, report: Report, when: When, seen: &Observed, now: Timestamp) -> Self {
        match when.silence(is_our_turn(&seen.control_plane), now) {
            Some(wake) => Self { wake, ..self },
            None => Self {
                report: Some(report),
                ..self
            },
        }
    }
}

/// Whether the first word was said, by this controller or by the one that speaks before it.
fn is_our_turn(control_plane: &CaptControlPlane) -> bool {
    let conditions = control_plane
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.conditions);
    [EndpointReady::TYPE, Ready::TYPE]
        .iter()
        .any(|type_| conditions::find(conditions, type_).is_some())
}

/// An endpoint that was published before and still stands. It stays true whatever becomes of its source.
struct Published<'a> {
    /// As it was reported: the spec may hold what somebody wrote there since.
    endpoint: String,
    reason: EndpointReady,
    message: &'a str,
}

impl<'a> Published<'a> {
    fn of(control_plane: &'a CaptControlPlane) -> Option<Self> {
        let condition = condition(control_plane).filter(|condition| condition.status == Status::True.as_str())?;
        let reason = EndpointReady::named(&condition.reason);
        let current = current(control_plane)?;
        Some(Self {
            endpoint: reported(control_plane).map_or_else(|| current.to_string(), str::to_owned),
            reason: reason.unwrap_or(EndpointReady::EndpointPublished),
            message: &condition.message,
        })
    }

    /// As it was said before.
    fn unchanged(&self) -> Report {
        Report {
            endpoint: Some(self.endpoint.clone()),
            ready: State::yes(self.reason, self.message),
        }
    }

    fn but(&self, reason: EndpointReady, why: &str) -> Report {
        Report {
            endpoint: Some(self.endpoint.clone()),
            ready: State::yes(reason, format!("{why}; the published endpoint {} stays", self.endpoint)),
        }
    }
}

fn condition(control_plane: &CaptControlPlane) -> Option<&Condition> {
    conditions::find(&control_plane.status.as_ref()?.conditions, EndpointReady::TYPE)
}

/// What was published last.
fn reported(control_plane: &CaptControlPlane) -> Option<&str> {
    control_plane.status.as_ref()?.endpoint.as_deref()
}

/// What stands in the control plane's spec.
fn current(control_plane: &CaptControlPlane) -> Option<&ApiEndpoint> {
    control_plane
        .spec
        .control_plane_endpoint
        .as_ref()
        .filter(|endpoint| endpoint.is_set())
}

fn upkeep(seen: &Observed, parent: &Parent, published: Option<&Published<'_>>, now: Timestamp) -> Plan {
    let apply = format!(
        "WorkspaceTemplateApply {}",
        eks_apply_name(&seen.control_plane.name_any())
    );
    let not_known = |reason: EndpointReady, why: String, when: When| {
        let report = match published {
            Some(published) if reason == EndpointReady::WaitingForWorkspace => published.unchanged(),
            Some(published) => published.but(reason, &why),
            None => Report::no(reason, why),
        };
        Plan::doing(adopt(seen, parent)).saying(report, when, seen, now)
    };
    let waiting = |why: String, when: When| not_known(EndpointReady::WaitingForWorkspace, why, when);
    match &seen.apply {
        // One text for all of the ordinary wait, so that it is written once.
        Apply::Absent | Apply::Present { ready: false, .. } | Apply::Present { told: Told::NotYet, .. } => {
            waiting(format!("waiting until {apply} is ready"), When::InTurn)
        }
        Apply::Unreadable => waiting(format!("{apply} cannot be read by this version"), When::AtOnce),
        Apply::Foreign => waiting(format!("{apply} belongs to something else"), When::AtOnce),
        Apply::Present {
            told: Told::Missing(missing),
            ..
        } => not_known(
            EndpointReady::EndpointMissing,
            missing_message(&apply, missing),
            When::AtOnce,
        ),
        Apply::Present {
            told: Told::Invalid(place, invalid),
            ..
        } => {
            let place = match place {
                Place::Output => format!("the output cluster_endpoint of {apply}"),
                Place::Secret(name) => format!("the key cluster_endpoint of Secret {name}"),
            };
            not_known(
                EndpointReady::EndpointInvalid,
                format!("{place} cannot be used: {invalid}; it must be https://HOST, HOST or HOST:PORT"),
                When::AtOnce,
            )
        }
        Apply::Present {
            told: Told::Address(wanted),
            revision,
            ..
        } => publish(seen, parent, wanted, revision.as_deref(), now),
    }
}

/// An endpoint that an earlier version published must be cleared one day, too.
fn adopt(seen: &Observed, parent: &Parent) -> Step {
    let is_ours = parent.endpoint.is_some() && parent.endpoint.as_ref() == current(&seen.control_plane);
    if is_ours && !seen.has_finalizer() {
        return Step::Publish(Publish {
            finalizer: true,
            ..Publish::default()
        });
    }
    Step::Nothing
}

/// Whose the Cluster's endpoint is, and what that asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The user gave one to the infrastructure, and Cluster API takes it from there.
    OfInfrastructure,
    /// Another control plane is the Cluster's.
    OfOther,
    /// There is none: ours is added.
    Absent,
    /// It is the wanted one.
    InPlace,
    /// It is the one that we published before.
    Outdated,
    /// Somebody else set it.
    Theirs,
}

/// By value alone, so that a pass that was cut off between two writes is understood by the next one.
fn judge(parent: &Parent, wanted: &ApiEndpoint, published: Option<&ApiEndpoint>) -> Verdict {
    if matches!(parent.infrastructure, Infrastructure::WithEndpoint { .. }) {
        return Verdict::OfInfrastructure;
    }
    if parent.other_control_plane.is_some() {
        return Verdict::OfOther;
    }
    match &parent.endpoint {
        None => Verdict::Absent,
        Some(endpoint) if endpoint == wanted => Verdict::InPlace,
        Some(endpoint) if Some(endpoint) == published => Verdict::Outdated,
        Some(_) => Verdict::Theirs,
    }
}

fn publish(seen: &Observed, parent: &Parent, wanted: &ApiEndpoint, revision: Option<&str>, now: Timestamp) -> Plan {
    if let Infrastructure::Unreadable(name) = &parent.infrastructure {
        let why = format!("CAPTCluster {name} cannot be read by this version, and may supply the endpoint");
        let report = Published::of(&seen.control_plane).map_or_else(
            || Report::no(EndpointReady::WaitingForCluster, &why),
            |published| published.but(EndpointReady::WaitingForCluster, &why),
        );
        return Plan::NOTHING.saying(report, When::AtOnce, seen, now);
    }
    let current = current(&seen.control_plane);
    let verdict = judge(parent, wanted, current);
    let ready = published_message(parent, verdict, wanted, revision);
    let writes_cluster = matches!(verdict, Verdict::Absent | Verdict::Outdated);
    // "Theirs" may be our own, not seen yet.
    let is_news = verdict == Verdict::Theirs && !is_said(&seen.control_plane, &ready);
    if (writes_cluster || is_news) && !seen.live {
        return Plan::LOOK;
    }
    let writes = Publish {
        finalizer: !seen.has_finalizer(),
        cluster: writes_cluster.then(|| wanted.clone()),
        control_plane: (current != Some(wanted)).then(|| wanted.clone()),
        displaced: current
            .filter(|current| *current != wanted && reported(&seen.control_plane) != Some(&current.to_string()))
            .cloned(),
    };
    let step = if writes == Publish::default() {
        Step::Nothing
    } else {
        Step::Publish(writes)
    };
    let endpoint = Some(wanted.to_string());
    Plan::doing(step).saying(Report { endpoint, ready }, When::AtOnce, seen, now)
}

fn is_said(control_plane: &CaptControlPlane, ready: &State<EndpointReady>) -> bool {
    condition(control_plane).is_some_and(|said| {
        (said.status.as_str(), said.reason.as_str(), said.message.as_str())
            == (ready.status.as_str(), ready.reason.as_str(), ready.message.as_str())
    })
}

fn published_message(
    parent: &Parent,
    verdict: Verdict,
    wanted: &ApiEndpoint,
    revision: Option<&str>,
) -> State<EndpointReady> {
    let name = &parent.name;
    let wanted = match revision {
        Some(revision) => format!("{wanted}, revision {revision},"),
        None => wanted.to_string(),
    };
    match (
        verdict,
        &parent.infrastructure,
        &parent.endpoint,
        &parent.other_control_plane,
    ) {
        (
            Verdict::OfInfrastructure,
            Infrastructure::WithEndpoint {
                name: infrastructure,
                endpoint,
            },
            ..,
        ) => State::yes(
            EndpointReady::UserSupplied,
            format!("{wanted} is what EKS reports; Cluster {name} takes {endpoint} from CAPTCluster {infrastructure}"),
        ),
        (Verdict::Theirs, _, Some(theirs), _) => State::yes(
            EndpointReady::UserSupplied,
            format!(
                "{wanted} is what EKS reports; Cluster {name} has {theirs}, which was set by somebody else and is left alone"
            ),
        ),
        (Verdict::OfOther, _, _, Some(other)) => State::yes(
            EndpointReady::EndpointPublished,
            format!("{wanted} is what EKS reports; Cluster {name} is left alone, because its control plane is {other}"),
        ),
        _ => State::yes(
            EndpointReady::EndpointPublished,
            format!("{wanted} is published to Cluster {name}"),
        ),
    }
}

/// What is being deleted keeps its last word for a while: capt-controlplane-controller says what the deletion waits for.
fn deletion(seen: &Observed, now: Timestamp) -> Plan {
    let let_go = |clear: bool| Plan::doing(Step::LetGo { clear });
    match &seen.owner {
        // It was cleared already, and core has written it back from a control plane whose deletion it had not seen yet. The
        // next one of this name would take it for a user's.
        Owner::Present(parent) if !seen.has_finalizer() && is_ours(seen, parent) => match seen.live {
            true => let_go(true),
            false => Plan::LOOK,
        },
        _ if !seen.has_finalizer() => withdrawn(seen, now),
        // No Cluster owns the control plane: there is nothing to clear.
        Owner::NotSet => let_go(false),
        // An absence in a cache may only mean "not seen yet", and a dropped finalizer does not come back.
        Owner::Gone | Owner::Present(_) if !seen.live => Plan::LOOK,
        Owner::Gone => let_go(false),
        Owner::Unreadable => Plan::NOTHING,
        Owner::Present(parent) => let_go(is_ours(seen, parent)),
    }
}

/// Whether the Cluster's endpoint is one that this controller has published. What the infrastructure supplies, or may supply,
/// is the user's, and so is what nobody here has published.
fn is_ours(seen: &Observed, parent: &Parent) -> bool {
    // A pass that was cut off may have published what the control plane does not show yet.
    let wanted = match &seen.apply {
        Apply::Present {
            told: Told::Address(wanted),
            ..
        } => Some(wanted),
        _ => None,
    };
    match (&parent.endpoint, &parent.infrastructure) {
        (Some(endpoint), Infrastructure::WithoutEndpoint) => {
            Some(endpoint) == current(&seen.control_plane) || Some(endpoint) == wanted
        }
        _ => false,
    }
}

/// This controller's part is done. While the rest of the deletion lasts, nobody is to think that there is an endpoint.
fn withdrawn(seen: &Observed, now: Timestamp) -> Plan {
    if condition(&seen.control_plane).is_none_or(|said| said.status != Status::True.as_str()) {
        return Plan::NOTHING;
    }
    let begun = seen.control_plane.metadata.deletion_timestamp.as_ref();
    let why = "the control plane is being deleted, and its endpoint is no longer published";
    let report = Report::no(EndpointReady::Deleting, why);
    Plan::NOTHING.saying(report, When::Undone(begun.map(|time| time.0)), seen, now)
}

fn missing_message(apply: &str, missing: &Missing) -> String {
    let what = format!("{apply} has no output cluster_endpoint");
    match missing {
        Missing::SecretNotNamed => {
            format!("{what}, and names no connection secret of its namespace; add the output to the template")
        }
        Missing::SecretAbsent(name) => format!("{what}, and its connection secret {name} does not exist"),
        Missing::KeyAbsent(name) => {
            format!("{what}, and its connection secret {name} has no such key; add the output to the template")
        }
    }
}

#[cfg(test)]
mod tests;
