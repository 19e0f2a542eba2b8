use std::collections::BTreeSet;

use proptest::prelude::*;

use super::cluster::{self, ClusterReport};
use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn report(ready: State<cluster::Ready>) -> ClusterReport {
    ClusterReport {
        ready: Some(ready),
        ..ClusterReport::default()
    }
}

#[test]
fn a_new_condition_begins_now_in_whole_seconds() {
    let report = report(State::yes(cluster::Ready::VpcCreated, "vpc-1"));
    let merged = merge(&[], &report, 3, at("2026-01-02T03:04:05.678Z"));
    assert_eq!(
        merged,
        [Condition {
            type_: "Ready".into(),
            status: "True".into(),
            reason: "VPCCreated".into(),
            message: "vpc-1".into(),
            last_transition_time: Time(at("2026-01-02T03:04:05Z")),
            observed_generation: Some(3),
        }]
    );
}

#[test]
fn the_time_moves_only_with_the_status() {
    let (then, now) = (at("2026-01-01T00:00:00Z"), at("2026-01-02T00:00:00Z"));
    let before = merge(&[], &report(State::no(cluster::Ready::VpcCreating, "")), 1, then);

    let same_status = merge(
        &before,
        &report(State::no(cluster::Ready::VpcReadyTimeout, "late")),
        2,
        now,
    );
    assert_eq!(same_status[0].last_transition_time, Time(then));
    assert_eq!(
        (same_status[0].reason.as_str(), same_status[0].observed_generation),
        ("VPCReadyTimeout", Some(2))
    );

    let changed = merge(
        &same_status,
        &report(State::yes(cluster::Ready::VpcCreated, "")),
        2,
        now,
    );
    assert_eq!(changed[0].last_transition_time, Time(now));
}

#[test]
fn nothing_new_gives_back_what_is_there() {
    let report = report(State::unknown(cluster::Ready::WaitingForCluster, "no owner yet"));
    let before = merge(&[], &report, 1, at("2026-01-01T00:00:00Z"));
    assert_eq!(merge(&before, &report, 1, at("2026-06-01T00:00:00Z")), before);
}

#[test]
fn the_order_is_the_reports_and_foreign_conditions_are_left_to_their_owners() {
    let now = at("2026-01-01T00:00:00Z");
    let foreign = Condition {
        type_: "Foreign".into(),
        status: "True".into(),
        reason: "R".into(),
        message: String::new(),
        last_transition_time: Time(now),
        observed_generation: None,
    };
    let report = ClusterReport {
        paused: Some(State::no(cluster::Paused::NotPaused, "")),
        ready: Some(State::yes(cluster::Ready::ExistingVpcUsed, "")),
        deleting: Some(State::no(cluster::Deleting::NotDeleting, "")),
        ..ClusterReport::default()
    };
    let merged = merge(&[foreign], &report, 1, now);
    let types: Vec<_> = merged.iter().map(|condition| condition.type_.as_str()).collect();
    assert_eq!(types, ["Ready", "Deleting", "Paused"]);
}

#[test]
fn what_a_report_leaves_out_stays_as_it_is() {
    let then = at("2026-01-01T00:00:00Z");
    let before = merge(&[], &report(State::yes(cluster::Ready::VpcCreated, "m")), 1, then);
    let paused = ClusterReport {
        paused: Some(State::yes(cluster::Paused::Paused, "")),
        ..ClusterReport::default()
    };
    let merged = merge(&before, &paused, 2, at("2026-02-01T00:00:00Z"));
    assert_eq!(merged[0], before[0]);
    assert_eq!((merged[1].type_.as_str(), merged.len()), ("Paused", 2));
}

#[test]
fn finding_conditions() {
    let conditions = merge(
        &[],
        &report(State::yes(cluster::Ready::VpcCreated, "")),
        1,
        at("2026-01-01T00:00:00Z"),
    );
    assert!(is_true(&conditions, "Ready"));
    assert!(!is_true(&conditions, "Paused"));
    assert_eq!(find(&conditions, "Ready").unwrap().reason, "VPCCreated");
}

#[test]
fn a_long_message_is_cut_between_characters() {
    assert_eq!(bounded(&"x".repeat(1024)), "x".repeat(1024));
    assert_eq!(bounded(&"x".repeat(1025)), format!("{}…", "x".repeat(1021)));
    // Two bytes each, so the limit falls into the middle of one.
    assert_eq!(bounded(&"é".repeat(600)), format!("{}…", "é".repeat(510)));
}

proptest! {
    #[test]
    fn every_message_fits(message in "\\PC{0,1200}") {
        let cut = bounded(&message);
        prop_assert!(cut.len() <= MAX_MESSAGE);
        prop_assert!(message.starts_with(cut.trim_end_matches('…')));
    }
}

/// Types and reasons must pass the constraints of `metav1.Condition`, and a kind must not have one type twice.
#[test]
fn every_type_and_reason_is_valid_and_unique() {
    fn check<R: Reason>() -> &'static str {
        let texts: Vec<_> = R::ALL.iter().map(|reason| reason.as_str()).collect();
        for text in texts.iter().chain([&R::TYPE]) {
            assert!(text.bytes().all(|b| b.is_ascii_alphanumeric()), "{text}");
            assert!(text.starts_with(|c: char| c.is_ascii_uppercase()), "{text}");
        }
        assert_eq!(
            texts.iter().collect::<BTreeSet<_>>().len(),
            texts.len(),
            "{}: a reason occurs twice",
            R::TYPE
        );
        R::TYPE
    }
    let cluster = [
        check::<cluster::Ready>(),
        check::<cluster::VpcReady>(),
        check::<cluster::VpcCreating>(),
        check::<cluster::VpcFailed>(),
        check::<cluster::Deleting>(),
        check::<cluster::Paused>(),
    ];
    let control_plane = [
        check::<control_plane::Ready>(),
        check::<control_plane::Available>(),
        check::<control_plane::Initialized>(),
        check::<control_plane::Creating>(),
        check::<control_plane::Failed>(),
        check::<control_plane::Deleting>(),
        check::<control_plane::Paused>(),
    ];
    let apply = [
        check::<workspace_apply::Synced>(),
        check::<workspace_apply::Ready>(),
        check::<workspace_apply::Waiting>(),
        check::<workspace_apply::Deleting>(),
        check::<workspace_apply::Paused>(),
    ];
    assert_eq!(cluster, *ClusterReport::TYPES);
    assert_eq!(control_plane, *control_plane::ControlPlaneReport::TYPES);
    assert_eq!([check::<endpoint::EndpointReady>()], *endpoint::EndpointReport::TYPES);
    assert_eq!([check::<secrets::SecretsReady>()], *secrets::SecretsReport::TYPES);
    assert_eq!(
        [check::<workspace_template::Valid>()],
        *workspace_template::TemplateReport::TYPES
    );
    assert_eq!(apply, *workspace_apply::ApplyReport::TYPES);
}
