//! What is said about a CAPTCluster: its status, from how its VPC stands.

use capt_api::WorkspaceTemplateApply;
use capt_api::cluster::{
    CaptClusterInitialization, CaptClusterStatus, CaptClusterWaits, FailureDomain, VpcTemplateStatus,
};
use capt_api::conditions::cluster::{ClusterReport, Deleting, Paused, Ready, VpcCreating, VpcFailed, VpcReady};
use capt_api::conditions::{self, Reason, State, bounded};
use capt_api::names::output;
use jiff::Timestamp;

use crate::judge::{Judgement, PENDING, Standing, state};
use crate::observe::{Apply, Observed, Owner};

/// The API's limits for failure domains.
const MAX_DOMAINS: usize = 100;
const MAX_DOMAIN_NAME: usize = 256;

/// The status of an object that is not being deleted.
pub(crate) fn living(
    seen: &Observed,
    judged: &Judgement,
    waits: CaptClusterWaits,
    now: Timestamp,
) -> CaptClusterStatus {
    let before = seen.before();
    let usable = is_latched(&before) || matches!(judged.standing, Standing::InPlace(_));
    let failure = (judged.standing == Standing::Refused && !usable).then_some(judged);
    let mut status = CaptClusterStatus {
        ready: Some(usable),
        initialization: Some(CaptClusterInitialization {
            provisioned: Some(usable),
        }),
        failure_reason: failure.map(|judged| judged.reason.as_str().to_owned()),
        failure_message: failure.map(|judged| bounded(&judged.message)),
        waiting_since: (waits != CaptClusterWaits::default()).then_some(waits),
        ..common(seen)
    };
    if let Standing::InPlace(id) = &judged.standing {
        status.vpc_id = Some(id.clone());
        status.failure_domains = match (&seen.apply, judged.reason) {
            (Apply::Ours(apply), VpcReady::VpcCreated) => failure_domains(apply),
            _ => Vec::new(),
        };
    }
    let report = ClusterReport {
        ready: Some(ready(judged, usable)),
        vpc_ready: Some(match judged.standing {
            Standing::InPlace(_) => State::yes(judged.reason, &judged.message),
            _ => State::no(judged.reason, &judged.message),
        }),
        vpc_creating: Some(vpc_creating(judged)),
        vpc_failed: Some(if judged.has_failed() {
            State::yes(
                same_word(judged.reason).unwrap_or(VpcFailed::VpcCreationFailed),
                &judged.message,
            )
        } else {
            State::no(VpcFailed::NoFailure, "")
        }),
        deleting: Some(State::no(Deleting::NotDeleting, "")),
        paused: Some(State::no(Paused::NotPaused, "")),
    };
    with_conditions(status, &report, seen, now)
}

/// The status of an object that is being deleted. What could be used stays told; a failure of what is not wished for any
/// more does not.
pub(crate) fn deleting(
    seen: &Observed,
    deleting: State<Deleting>,
    waits: CaptClusterWaits,
    now: Timestamp,
) -> CaptClusterStatus {
    let usable = is_latched(&seen.before());
    let status = CaptClusterStatus {
        ready: Some(usable),
        initialization: Some(CaptClusterInitialization {
            provisioned: Some(usable),
        }),
        waiting_since: Some(waits),
        ..common(seen)
    };
    let message = "the object is being deleted";
    let report = ClusterReport {
        ready: Some(State::no(Ready::Deleting, message)),
        vpc_ready: Some(State::no(VpcReady::Deleting, message)),
        vpc_creating: Some(State::no(VpcCreating::Deleting, message)),
        vpc_failed: Some(State::no(VpcFailed::NoFailure, "")),
        deleting: Some(deleting),
        paused: Some(State::no(Paused::NotPaused, "")),
    };
    with_conditions(status, &report, seen, now)
}

/// The status of a paused object: as it stands, but for the pause itself.
pub(crate) fn paused(seen: &Observed, why: &str, now: Timestamp) -> CaptClusterStatus {
    let report = ClusterReport {
        deleting: seen.is_being_deleted().then(|| {
            State::yes(
                Deleting::Paused,
                format!("nothing is deleted while reconciliation is paused: {why}"),
            )
        }),
        paused: Some(State::yes(Paused::Paused, format!("reconciliation is paused: {why}"))),
        ..ClusterReport::default()
    };
    with_conditions(seen.before(), &report, seen, now)
}

/// Once usable, the infrastructure stays so: Cluster API counts it for the Cluster's own availability.
pub(crate) fn is_latched(before: &CaptClusterStatus) -> bool {
    before.ready == Some(true)
        || before
            .initialization
            .as_ref()
            .is_some_and(|done| done.provisioned == Some(true))
}

/// What an object shows whether it is being deleted or not.
fn common(seen: &Observed) -> CaptClusterStatus {
    let before = seen.before();
    let apply = match &seen.apply {
        Apply::Ours(apply) => Some(&**apply),
        _ => None,
    };
    // Of an object that is going, what was known last stays known: what becomes of the VPC stands on Deleting.
    let told = match apply {
        Some(_) if seen.is_being_deleted() => before.workspace_template_status,
        apply => apply.map(|apply| template_status(seen, apply)),
    };
    CaptClusterStatus {
        vpc_workspace_name: told
            .as_ref()
            .and_then(|told| told.workspace_name.clone())
            .or(before.vpc_workspace_name),
        vpc_id: before.vpc_id,
        failure_domains: before.failure_domains,
        endpoint: endpoint(seen, before.endpoint),
        workspace_template_status: told,
        observed_generation: seen.capt_cluster.metadata.generation,
        // Conditions are merged into what is there; see `with_conditions`.
        conditions: before.conditions,
        ..CaptClusterStatus::default()
    }
}

fn with_conditions(
    mut status: CaptClusterStatus,
    report: &ClusterReport,
    seen: &Observed,
    now: Timestamp,
) -> CaptClusterStatus {
    let generation = seen.capt_cluster.metadata.generation.unwrap_or_default();
    status.conditions = conditions::merge(&status.conditions, report, generation, now);
    status
}

fn ready(judged: &Judgement, usable: bool) -> State<Ready> {
    let reason = same_word(judged.reason).unwrap_or(Ready::VpcCreating);
    match judged.standing {
        Standing::InPlace(_) => State::yes(reason, &judged.message),
        // Somebody asked for the destruction of a network in use: that must be seen on the Cluster.
        _ if judged.reason == VpcReady::ApplyDeleted => State::no(reason, &judged.message),
        _ if usable => State::yes(
            Ready::VpcCreated,
            format!("the network can be used, but is not as wished: {}", judged.message),
        ),
        _ => State::no(reason, &judged.message),
    }
}

fn vpc_creating(judged: &Judgement) -> State<VpcCreating> {
    let word = same_word(judged.reason);
    match judged.standing {
        Standing::InPlace(_) => State::no(word.unwrap_or(VpcCreating::VpcCreated), &judged.message),
        Standing::Working(_) | Standing::Queueing => {
            State::yes(word.unwrap_or(VpcCreating::VpcCreating), &judged.message)
        }
        Standing::Failing | Standing::Refused => State::no(VpcCreating::VpcCreationFailed, &judged.message),
        Standing::Idle if judged.reason == VpcReady::ApplyDeleted => State::no(VpcCreating::Deleting, &judged.message),
        Standing::Idle => State::no(word.unwrap_or(VpcCreating::NotStarted), &judged.message),
    }
}

/// The reason of another condition that is the same word.
fn same_word<R: Reason>(reason: VpcReady) -> Option<R> {
    R::ALL.iter().copied().find(|other| other.as_str() == reason.as_str())
}

fn template_status(seen: &Observed, apply: &WorkspaceTemplateApply) -> VpcTemplateStatus {
    let told = apply.status.clone().unwrap_or_default();
    let state = state(seen, apply);
    VpcTemplateStatus {
        ready: Some(apply.is_ready() && state != PENDING),
        state: Some(state),
        workspace_name: told.workspace_name,
        last_applied_revision: told.last_applied_revision,
        last_applied_time: told.last_applied_time,
        last_failed_revision: told.last_failed_revision,
        last_failure_message: told.last_failure_message,
    }
}

/// For people: the endpoint that the user gave, else the one that the Cluster has. A Cluster that is going loses its
/// endpoint on the way; that is no news of the network.
fn endpoint(seen: &Observed, before: Option<String>) -> Option<String> {
    let own = seen
        .capt_cluster
        .spec
        .control_plane_endpoint
        .as_ref()
        .filter(|endpoint| endpoint.is_set());
    match (own, &seen.owner) {
        (Some(own), _) => Some(own.to_string()),
        (None, Owner::Present(cluster)) if cluster.metadata.deletion_timestamp.is_some() => before,
        (None, Owner::Present(cluster)) => cluster.spec.control_plane_endpoint.as_ref().map(ToString::to_string),
        (None, _) => before,
    }
}

/// The availability zones among the outputs: a list, or names with commas between them.
fn failure_domains(apply: &WorkspaceTemplateApply) -> Vec<FailureDomain> {
    let outputs = apply.status.as_ref().map(|status| &status.outputs);
    let text = [output::AZS, output::AVAILABILITY_ZONES]
        .into_iter()
        .find_map(|name| outputs?.get(name));
    let Some(text) = text else { return Vec::new() };
    let mut names: Vec<String> = serde_json::from_str(text).unwrap_or_else(|_| {
        // Other JSON than a list of names says nothing that could be used.
        let is_json = serde_json::from_str::<serde_json::Value>(text).is_ok();
        if is_json {
            Vec::new()
        } else {
            text.split(',').map(|name| name.trim().to_owned()).collect()
        }
    });
    names.retain(|name| !name.is_empty() && name.len() <= MAX_DOMAIN_NAME);
    // In one order, whatever Terraform's is today: a changed order would be a write.
    names.sort();
    names.dedup();
    names.truncate(MAX_DOMAINS);
    let domain = |name| FailureDomain {
        name,
        control_plane: Some(true),
    };
    names.into_iter().map(domain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use capt_api::workspace::{WorkspaceTemplateApplySpec, WorkspaceTemplateApplyStatus};

    #[test]
    fn zones_are_read_from_lists_and_from_text() {
        let zones = |outputs: &[(&str, &str)]| -> Vec<String> {
            let mut apply = WorkspaceTemplateApply::new("a", WorkspaceTemplateApplySpec::default());
            apply.status = Some(WorkspaceTemplateApplyStatus {
                outputs: outputs
                    .iter()
                    .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                    .collect(),
                ..WorkspaceTemplateApplyStatus::default()
            });
            failure_domains(&apply).into_iter().map(|domain| domain.name).collect()
        };
        assert_eq!(zones(&[("azs", r#"["b","a","b"]"#)]), ["a", "b"]);
        assert_eq!(zones(&[("availability_zones", r#"["x"]"#)]), ["x"]);
        assert_eq!(zones(&[("azs", r#"["a"]"#), ("availability_zones", r#"["x"]"#)]), ["a"]);
        assert_eq!(
            zones(&[("azs", "eu-west-1a, eu-west-1b,")]),
            ["eu-west-1a", "eu-west-1b"]
        );
        for useless in ["", "[]", "null", "7", r#"{"a": 1}"#, "[1]"] {
            assert_eq!(zones(&[("azs", useless)]), [""; 0], "{useless:?}");
        }
        let many: Vec<String> = (0..300).map(|n| format!("z{n}")).collect();
        assert_eq!(zones(&[("azs", &serde_json::to_string(&many).unwrap())]).len(), 100);
    }

    #[test]
    fn every_word_about_the_vpc_is_also_a_word_of_ready() {
        for reason in VpcReady::ALL {
            assert!(same_word::<Ready>(*reason).is_some(), "{reason:?}");
        }
    }
}
