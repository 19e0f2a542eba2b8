//! What to do next for a CAPTCluster, and what to say about it. No client, no clock, no randomness.

use capt_api::cluster::{CaptClusterStatus, CaptClusterWaits};
use capt_api::conditions::cluster::{Deleting, Paused, VpcReady};
use capt_api::conditions::{self, Reason, State, bounded, whole_seconds, workspace_apply};
use capt_api::names::{INFRASTRUCTURE_GROUP, finalizer, output};
use capt_api::reasons::is_trouble;
use capt_api::{WorkspaceTemplateApply, vpc_id};
use capt_runtime::controller::{SETTLE, Wake, settles_at};
use capt_runtime::scope::left_to_others;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use crate::hold::HOLD;
use crate::judge::{Clock, Judgement, Passing, is_new_attempt, judge};
use crate::network::{Network, network};
use crate::observe::{Apply, Observed, Owner};
use crate::report;
use crate::wish::{Wish, wish};

/// What a pass does.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    pub(crate) step: Step,
    /// `None` leaves the status as it is.
    pub(crate) status: Option<CaptClusterStatus>,
    /// Whether the Cluster still shows a failure of this object that is over.
    pub(crate) clear_cluster_failure: bool,
    pub(crate) wake: Wake,
}

/// The next write.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    Nothing,
    AddFinalizer,
    CreateApply(Box<WorkspaceTemplateApply>),
    /// Put the hold back on the apply.
    HoldApply,
    /// Put the ownerReference back on the apply.
    AdoptApply,
    ChangeApply(Box<Wish>),
    /// Say on the apply whether the VPC is to be kept when it goes.
    RetainApply(bool),
    DeleteApply,
    /// Allow the destruction of the VPC.
    ReleaseHold,
    /// Everything is gone; let the object go too.
    RemoveFinalizer,
}

impl Plan {
    fn nothing() -> Self {
        Self {
            step: Step::Nothing,
            status: None,
            clear_cluster_failure: false,
            wake: Wake::OnEvent,
        }
    }
}

pub(crate) fn plan(seen: &Observed, now: Timestamp) -> Plan {
    if seen.is_hands_off() {
        return Plan::nothing();
    }
    if let Some(why) = seen.paused() {
        // An object that is going and that we do not hold is not ours to write on.
        if seen.is_being_deleted() && !seen.has_finalizer() {
            return Plan::nothing();
        }
        return Plan {
            status: Some(report::paused(seen, &why, now)),
            ..Plan::nothing()
        };
    }
    match (seen.is_being_deleted(), seen.has_finalizer()) {
        (false, _) => creation(seen, now),
        (true, true) => deletion(seen, now),
        // Nothing was ever made, or everything is gone.
        (true, false) => Plan::nothing(),
    }
}

fn creation(seen: &Observed, now: Timestamp) -> Plan {
    let judged = judge(seen);
    let (judged, waits, wake) = against_the_clock(seen, judged, now);
    let step = building_step(seen);
    if let Some(time) = silent_until(seen, judged.passing, now) {
        return silent(seen, step, time);
    }
    let status = report::living(seen, &judged, waits, now);
    Plan {
        step,
        clear_cluster_failure: leaves_a_failure_behind(seen, &status),
        status: Some(status),
        wake,
    }
}

/// Until when nothing is said of a stage that may be over in a moment: what stands in the status is still good enough.
///
/// A trouble that stands there is not, nor is a pause: their end is told at once.
fn silent_until(seen: &Observed, passing: Passing, now: Timestamp) -> Option<Timestamp> {
    let standing = seen.before().conditions;
    let is_calm = !conditions::is_true(&standing, Paused::TYPE) && !standing.iter().any(|c| is_trouble(&c.reason));
    let settles_at = |since| settles_at(Some(since), now);
    let settled = match passing {
        Passing::No => None,
        Passing::Since(since) => settles_at(since),
        Passing::UnsaidSince(since) => settles_at(since).or_else(|| settles_at(later(since, SETTLE))),
    };
    settled.filter(|_| is_calm)
}

fn silent(seen: &Observed, step: Step, until: Timestamp) -> Plan {
    Plan {
        step,
        clear_cluster_failure: leaves_a_failure_behind(seen, &seen.before()),
        status: None,
        wake: Wake::At(until),
    }
}

/// The apply that the object asks for; nothing when it asks for none, or when it is not known yet in which Cluster.
fn wished(seen: &Observed) -> Option<Wish> {
    let Owner::Present(cluster) = &seen.owner else {
        return None;
    };
    let capt_cluster = &*seen.capt_cluster;
    let own_namespace = capt_cluster.metadata.namespace.as_deref().unwrap_or_default();
    match network(&capt_cluster.spec, own_namespace, seen.settings.allow_cross_namespace) {
        Ok(Network::Template(template)) => Some(wish(capt_cluster, template, &cluster.name_any())),
        _ => None,
    }
}

/// The next write towards the wished VPC.
fn building_step(seen: &Observed) -> Step {
    let (Owner::Present(cluster), None, None) = (&seen.owner, &seen.trouble, &seen.astray) else {
        return Step::Nothing;
    };
    if !seen.has_finalizer() {
        return Step::AddFinalizer;
    }
    let Some(wish) = wished(seen) else {
        return Step::Nothing;
    };
    match &seen.apply {
        // Core deletes this object too, in its turn: until then nothing new is begun.
        Apply::Absent if cluster.metadata.deletion_timestamp.is_some() => Step::Nothing,
        Apply::Absent => Step::CreateApply(Box::new(wish.into_apply(&seen.capt_cluster))),
        // Frozen until it has gone.
        Apply::Ours(apply) if apply.metadata.deletion_timestamp.is_some() => Step::Nothing,
        Apply::Ours(apply) if !HOLD.is_on(&apply.metadata) => Step::HoldApply,
        Apply::Ours(apply) if !has_controller(apply) => Step::AdoptApply,
        Apply::Ours(apply) if !wish.is_met_by(apply) => Step::ChangeApply(Box::new(wish)),
        Apply::Ours(_) | Apply::Foreign { .. } | Apply::Unreadable(_) => Step::Nothing,
    }
}

/// Starts, keeps and ends the clocks; a deadline that has passed turns the judgement.
fn against_the_clock(seen: &Observed, judged: Judgement, now: Timestamp) -> (Judgement, CaptClusterWaits, Wake) {
    let mut waits = CaptClusterWaits::default();
    let Some(clock) = judged.clock() else {
        return (judged, waits, Wake::OnEvent);
    };
    let before = seen.before();
    let recorded = before.waiting_since.clone().unwrap_or_default();
    let was_paused = conditions::is_true(&before.conditions, "Paused");
    let timeouts = seen.capt_cluster.spec.timeouts.clone().unwrap_or_default();
    let (recorded, timeout, starts_anew) = match clock {
        Clock::Vpc => {
            let new_attempt = matches!(&seen.apply, Apply::Ours(apply) if is_new_attempt(seen, apply));
            (
                recorded.vpc,
                limit(timeouts.vpc_ready_timeout, seen.settings.vpc_ready_timeout),
                new_attempt,
            )
        }
        Clock::Secret => (
            recorded.secret,
            limit(timeouts.secret_timeout, seen.settings.secret_timeout),
            false,
        ),
    };
    // Nothing could be done during a pause, so it does not count.
    let since = recorded
        .filter(|_| !starts_anew && !was_paused)
        .unwrap_or_else(|| Time(whole_seconds(now)));
    // Nobody else had anything to do before the apply is made: the controller was away, or its requests failed.
    let is_ours_to_do = matches!(seen.apply, Apply::Absent) && seen.trouble.is_none();
    let since = if is_ours_to_do && later(since.0, timeout) <= now {
        Time(whole_seconds(now))
    } else {
        since
    };
    let deadline = later(since.0, timeout);
    let mut wake = if deadline > now { Some(deadline) } else { None };
    match clock {
        Clock::Vpc => waits.vpc = Some(since),
        Clock::Secret => {
            let look = next_look(since.0, now);
            wake = Some(wake.map_or(look, |deadline| deadline.min(look)));
            waits.secret = Some(since);
        }
    }
    let judged = if deadline > now { judged } else { judged.too_late(clock) };
    (judged, waits, wake.map_or(Wake::OnEvent, Wake::At))
}

/// When to look into the connection secret again. It cannot be watched without the right to read every Secret, and it is
/// complete when the apply is ready; this finds one that was put right by hand. The wait doubles, as after an error.
fn next_look(since: Timestamp, now: Timestamp) -> Timestamp {
    const FIRST: SignedDuration = SignedDuration::from_secs(5);
    const LONGEST: SignedDuration = SignedDuration::from_mins(10);
    later(now, now.duration_since(since).clamp(FIRST, LONGEST))
}

fn deletion(seen: &Observed, now: Timestamp) -> Plan {
    let Stage {
        step,
        waiting_for,
        passing,
    } = destroying_stage(seen);
    if step == Step::RemoveFinalizer {
        // The object is gone with it; there is nothing left to report on.
        return Plan {
            step,
            ..Plan::nothing()
        };
    }
    let before = seen.before();
    let was_paused = conditions::is_true(&before.conditions, "Paused");
    let recorded = before.waiting_since.clone().and_then(|since| since.deletion);
    let asked = seen.capt_cluster.metadata.deletion_timestamp.clone();
    let since = if was_paused { None } else { recorded.or(asked) }.unwrap_or_else(|| Time(whole_seconds(now)));
    let timeouts = seen.capt_cluster.spec.timeouts.clone().unwrap_or_default();
    let deadline = later(
        since.0,
        limit(timeouts.deletion_timeout, seen.settings.deletion_timeout),
    );
    if let Some(time) = silent_until(seen, passing, now).filter(|_| deadline > now) {
        return silent(seen, step, time.min(deadline));
    }
    let (deleting, wake) = if deadline > now {
        (waiting_for, Wake::At(deadline))
    } else {
        let message = format!(
            "the deletion takes longer than it should, and goes on: {}",
            waiting_for.message
        );
        (State::yes(Deleting::DeletionTimeout, message), Wake::OnEvent)
    };
    let waits = CaptClusterWaits {
        deletion: Some(since),
        ..CaptClusterWaits::default()
    };
    let status = report::deleting(seen, deleting, waits, now);
    Plan {
        step,
        clear_cluster_failure: leaves_a_failure_behind(seen, &status),
        status: Some(status),
        wake,
    }
}

/// Where a deletion stands.
struct Stage {
    /// The next write.
    step: Step,
    waiting_for: State<Deleting>,
    passing: Passing,
}

impl Stage {
    /// Something that does not pass by itself.
    fn lasting(step: Step, waiting_for: State<Deleting>) -> Self {
        Self {
            step,
            waiting_for,
            passing: Passing::No,
        }
    }
}

/// The next write of a deletion, and what it waits for. Each step is taken only from an object that shows the one before
/// it, so that a crash in between is the same as a fresh start.
fn destroying_stage(seen: &Observed) -> Stage {
    let name = seen.apply_name();
    if let Some(trouble) = &seen.trouble {
        let reason = match trouble.reason {
            VpcReady::OwnershipConflict => Deleting::OwnershipConflict,
            VpcReady::AdmissionDenied => Deleting::AdmissionDenied,
            _ => Deleting::WaitingForWorkspace,
        };
        return Stage::lasting(Step::Nothing, State::yes(reason, &trouble.message));
    }
    let asked = seen.capt_cluster.metadata.deletion_timestamp.as_ref();
    if !seen.control_planes.is_empty() {
        let message = format!(
            "the VPC stays until the control planes of the Cluster are gone: {}",
            seen.control_planes.join(", ")
        );
        return Stage {
            step: Step::Nothing,
            waiting_for: State::yes(Deleting::WaitingForControlPlane, message),
            passing: Passing::since(asked),
        };
    }
    let waiting = |message: String| State::yes(Deleting::WaitingForWorkspace, message);
    if let Some(astray) = &seen.astray {
        let message = format!(
            "WorkspaceTemplateApply {astray} holds a network of this object under a name that is not looked after: delete \
             it, with spec.retainWorkspaceOnDelete if the network is to be kept"
        );
        return Stage::lasting(Step::Nothing, waiting(message));
    }
    match &seen.apply {
        // Of an apply that is not ours nothing is ours to destroy.
        Apply::Absent | Apply::Foreign { .. } => {
            Stage::lasting(Step::RemoveFinalizer, waiting("everything is gone".to_owned()))
        }
        Apply::Unreadable(why) => Stage::lasting(
            Step::Nothing,
            waiting(format!("WorkspaceTemplateApply {name} cannot be read: {why}")),
        ),
        Apply::Ours(apply) => {
            let retain = keeps_the_vpc(seen, apply);
            let going = apply.metadata.deletion_timestamp.as_ref();
            let step = if apply.spec.retain_workspace_on_delete.unwrap_or_default() != retain {
                Step::RetainApply(retain)
            } else if HOLD.is_on(&apply.metadata) {
                // Before the deletion, so that it is never held: an apply tells what holds it, and goes a pass later.
                Step::ReleaseHold
            } else if going.is_none() {
                Step::DeleteApply
            } else {
                correction(seen, apply).map_or(Step::Nothing, |wish| Step::ChangeApply(Box::new(wish)))
            };
            // Before what it said while it still had something to do.
            if let Some(finalizers) = left_to_others(&apply.metadata, &finalizer::OF_AN_APPLY) {
                let message = format!(
                    "nothing is left to be done for WorkspaceTemplateApply {name}, which stays because of the finalizers of \
                     others: {finalizers}; whoever set them has to remove them"
                );
                return Stage {
                    step: Step::Nothing,
                    waiting_for: State::yes(Deleting::ForeignFinalizer, bounded(&message)),
                    passing: Passing::since(going),
                };
            }
            match trouble_of(apply) {
                Some((reason, message)) => {
                    let message = bounded(&format!("WorkspaceTemplateApply {name}: {message}"));
                    Stage::lasting(step, State::yes(reason, message))
                }
                None => Stage {
                    step,
                    waiting_for: waiting_for_apply(&name, retain),
                    passing: Passing::since(going.or(asked)),
                },
            }
        }
    }
}

/// What keeps Terraform from destroying may be what it was given: a variable, or the template. What is corrected afterwards
/// still reaches it.
fn correction(seen: &Observed, apply: &WorkspaceTemplateApply) -> Option<Wish> {
    trouble_of(apply)?;
    let mut wish = wished(seen)?;
    wish.spec.retain_workspace_on_delete = apply.spec.retain_workspace_on_delete;
    (wish.spec != apply.spec).then_some(wish)
}

/// Whether the VPC outlives this object: as the spec says, and always when the object now only uses it as an existing
/// one, which is promised never to be deleted.
fn keeps_the_vpc(seen: &Observed, apply: &WorkspaceTemplateApply) -> bool {
    let spec = &seen.capt_cluster.spec;
    let made = apply
        .status
        .as_ref()
        .and_then(|status| vpc_id::parse(status.outputs.get(output::VPC_ID)?).ok().flatten());
    let used = spec
        .existing_vpc_id
        .as_ref()
        .is_some_and(|used| made.is_none_or(|made| made == used));
    used || spec.retain_vpc_on_delete == Some(true)
}

/// The trouble with which an apply cannot go, in its own words. While all is well its words are its own business.
fn trouble_of(apply: &WorkspaceTemplateApply) -> Option<(Deleting, &str)> {
    let told = apply.status.as_ref()?;
    let deleting = conditions::find(&told.conditions, workspace_apply::Deleting::TYPE)
        .filter(|deleting| deleting.status == "True" && is_trouble(&deleting.reason))?;
    let same_word = Deleting::ALL
        .iter()
        .copied()
        .find(|own| own.as_str() == deleting.reason);
    let reason = match same_word {
        // Our own deadline is another one than the apply's.
        Some(Deleting::DeletionTimeout) if told.last_failure_message.is_some() => Deleting::DestroyFailed,
        Some(Deleting::DeletionTimeout) | None => Deleting::WaitingForWorkspace,
        Some(reason) => reason,
    };
    Some((reason, &deleting.message))
}

fn waiting_for_apply(name: &str, retain: bool) -> State<Deleting> {
    if retain {
        let message = format!("the VPC is kept; waiting until WorkspaceTemplateApply {name} has let go of it");
        State::yes(Deleting::RetainingVpc, message)
    } else {
        let message = format!("the VPC is being destroyed; waiting until WorkspaceTemplateApply {name} has gone");
        State::yes(Deleting::WaitingForWorkspace, message)
    }
}

fn has_controller(apply: &WorkspaceTemplateApply) -> bool {
    apply
        .owner_references()
        .iter()
        .any(|owner| owner.controller == Some(true))
}

/// Whether the Cluster shows a failure that this object had and has no longer. Cluster API copies failures and never
/// clears them; it copies again for as long as our own status has one, so that must be gone first.
fn leaves_a_failure_behind(seen: &Observed, status: &CaptClusterStatus) -> bool {
    let Owner::Present(cluster) = &seen.owner else {
        return false;
    };
    let before = seen.before();
    let is_over = [&before, status]
        .iter()
        .all(|status| status.failure_reason.is_none() && status.failure_message.is_none());
    let shown = (|| {
        cluster
            .status
            .as_ref()?
            .deprecated
            .as_ref()?
            .v1beta1
            .as_ref()?
            .failure_message
            .as_deref()
    })();
    seen.settings.clear_cluster_failures
        && is_over
        && shown.is_some_and(|message| is_caused_by(message, &seen.capt_cluster.name_any()))
}

/// Cluster API's text names the object that a failure came from.
fn is_caused_by(message: &str, name: &str) -> bool {
    let source = message.strip_prefix("Failure detected from referenced resource ");
    source
        .and_then(|source| source.split_once(", Kind=CAPTCluster with name "))
        .is_some_and(|(version, rest)| {
            version
                .split_once('/')
                .is_some_and(|(group, _)| group == INFRASTRUCTURE_GROUP)
                && rest.strip_prefix(&format!("\"{name}\": ")).is_some()
        })
}

/// Minutes of the object itself, else the flag.
fn limit(minutes: Option<i32>, flag: SignedDuration) -> SignedDuration {
    minutes.map_or(flag, |minutes| SignedDuration::from_mins(minutes.into()))
}

fn later(time: Timestamp, duration: SignedDuration) -> Timestamp {
    time.checked_add(duration).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod crashes;
#[cfg(test)]
mod scene;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod walks;
