//! Status and owned spec fields: one report, written once, by its owner, to the object it was made from.

use anyhow::{Context, Result};
use capt_api::controlplane::{CaptControlPlaneStatus, Phase};
use capt_api::names::Manager;
use capt_runtime::apply::{Change, Edit, Ours, Planned};
use capt_runtime::error::{Class, Classified, Failure, Race};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::core::object::HasStatus;
use kube::{Api, Resource, ResourceExt};
use serde_json::json;

use crate::world::{
    Subject, WHY, World, assert_lost, condition, condition_status, failure, finalized, no_annotations, report, written,
};

#[tokio::test]
async fn a_report_is_written_once_and_then_never_again() -> Result<()> {
    let world = World::new("wp-report").await?;
    let subjects = world.as_manager::<Subject>(Manager::ControlPlane);
    let seen = world.subject("s").await?;
    let now = written(
        subjects
            .apply_status(&Planned::new(&seen)?, &report(Phase::Creating), WHY)
            .await?,
    )?;
    assert_eq!(now.status().and_then(|status| status.phase), Some(Phase::Creating));

    let again = subjects
        .apply_status(&Planned::new(&now)?, &report(Phase::Creating), WHY)
        .await?;
    assert!(again.is_unchanged());
    assert_eq!(
        world.version::<Subject>("s").await?,
        now.resource_version().context("version")?
    );

    // Leaving a field out takes it away.
    let mut less = report(Phase::Creating);
    less.ready = None;
    less.conditions.truncate(1);
    let now = written(subjects.apply_status(&Planned::new(&now)?, &less, WHY).await?)?;
    assert_eq!(now.status().and_then(|status| status.ready), None);
    assert_eq!(condition_status(&now, "Available"), None);
    assert_eq!(condition_status(&now, "Ready"), Some("False"));
    Ok(())
}

#[tokio::test]
async fn a_stale_report_is_refused() -> Result<()> {
    let world = World::new("wp-stale").await?;
    let subjects = world.as_manager::<Subject>(Manager::ControlPlane);
    let endpoint = world.as_manager::<Subject>(Manager::Endpoint);
    let old = world.subject("s").await?;
    written(
        subjects
            .apply_status(&Planned::new(&old)?, &report(Phase::Creating), WHY)
            .await?,
    )?;

    let stale = Planned::new(&old)?;
    assert_lost(
        subjects.apply_status(&stale, &report(Phase::Failed), WHY).await,
        Race::Changed,
    )?;
    let fields = json!({"controlPlaneEndpoint": {"host": "h", "port": 443}});
    assert_lost(endpoint.apply_spec(&stale, fields, WHY).await, Race::Changed)?;
    assert_lost(
        subjects
            .patch(&stale, Edit::new().set(&["spec", "version"], json!("1.32")), WHY)
            .await,
        Race::Changed,
    )?;
    let live: Subject = world.api().get("s").await?;
    assert_eq!(live.status().and_then(|status| status.phase), Some(Phase::Creating));
    assert_eq!(live.0.spec.version, "1.31");
    Ok(())
}

#[tokio::test]
async fn nothing_is_written_to_an_object_that_has_vanished() -> Result<()> {
    let world = World::new("wp-vanished").await?;
    let subjects = world.as_manager::<Subject>(Manager::ControlPlane);
    let endpoint = world.as_manager::<Subject>(Manager::Endpoint);
    let old = world.subject_with("s", finalized("capt.dev/test")).await?;
    let api: Api<Subject> = world.api();
    api.delete("s", &DeleteParams::default()).await?;
    api.patch(
        "s",
        &PatchParams::default(),
        &Patch::Merge(json!({"metadata": {"finalizers": null}})),
    )
    .await?;

    let gone = Planned::new(&old)?;
    // A status apply answers 404, one of the spec 409 (it would otherwise make a new object): both are lost races.
    assert_lost(
        subjects.apply_status(&gone, &report(Phase::Failed), WHY).await,
        Race::Vanished,
    )?;
    let fields = json!({"controlPlaneEndpoint": {"host": "h", "port": 443}});
    assert_lost(endpoint.apply_spec(&gone, fields, WHY).await, Race::Changed)?;
    assert_lost(
        subjects
            .add_finalizer(&gone, "capt.dev/x", &no_annotations(), WHY)
            .await,
        Race::Vanished,
    )?;
    assert_lost(
        subjects
            .patch(&gone, Edit::new().set(&["spec", "version"], json!("1.32")), WHY)
            .await,
        Race::Vanished,
    )?;
    assert!(
        subjects
            .remove_finalizers(&gone, &["capt.dev/test"], WHY)
            .await?
            .is_unchanged(),
        "nothing left to do"
    );
    assert!(subjects.live(Some(&world.namespace), "s").await?.is_none());
    assert_lost(subjects.confirm_living(&gone).await, Race::Vanished)?;
    Ok(())
}

#[tokio::test]
async fn an_object_made_anew_under_the_same_name_is_never_touched() -> Result<()> {
    let world = World::new("wp-recreated").await?;
    let subjects = world.as_manager::<Subject>(Manager::ControlPlane);
    let endpoint = world.as_manager::<Subject>(Manager::Endpoint);
    let old = world.subject("s").await?;
    let new = world.recreate(&old).await?;
    assert_ne!(old.uid(), new.uid());
    let before = world.raw::<Subject>("s").await?;

    let stale = Planned::new(&old)?;
    assert_lost(
        subjects.apply_status(&stale, &report(Phase::Failed), WHY).await,
        Race::Changed,
    )?;
    let fields = json!({"controlPlaneEndpoint": {"host": "h", "port": 443}});
    assert_lost(endpoint.apply_spec(&stale, fields.clone(), WHY).await, Race::Changed)?;
    assert_lost(
        subjects
            .add_finalizer(&stale, "capt.dev/x", &no_annotations(), WHY)
            .await,
        Race::Changed,
    )?;
    // Every value that this edit asks for is as it was: only the UID tells the two apart.
    let edit = Edit::new()
        .only_if(&["spec", "version"], Some(json!("1.31")))
        .set(&["spec", "version"], json!("1.32"));
    assert_lost(subjects.patch(&stale, edit, WHY).await, Race::Changed)?;
    let ours = Ours::by_identity(&subjects, stale, true)?;
    assert_lost(subjects.delete(&ours, WHY).await, Race::Changed)?;
    let change = Change::metadata().label("a", Some("b"));
    assert_lost(subjects.change(&ours, &change, WHY).await, Race::Changed)?;

    // The new one's version under the old one's UID: what a cache must never do, and the server refuses with a verdict.
    let mut mixed = new.clone();
    mixed.meta_mut().uid = old.uid();
    assert_lost(
        endpoint.apply_spec(&Planned::new(&mixed)?, fields, WHY).await,
        Race::Changed,
    )?;

    assert_eq!(world.raw::<Subject>("s").await?, before);
    assert_lost(subjects.confirm_living(&stale).await, Race::Changed)?;
    subjects.confirm_living(&Planned::new(&new)?).await?;
    Ok(())
}

#[tokio::test]
async fn what_the_go_version_left_in_our_fields_is_removed_once() -> Result<()> {
    let world = World::new("wp-leftovers").await?;
    let subjects = world.as_manager::<Subject>(Manager::ControlPlane);
    let api: Api<Subject> = world.api();
    world.subject("s").await?;
    // A plain update, as controller-runtime does it.
    let left = json!({"status": {
        "phase": "Creating", "ready": false, "failureReason": "Old", "failureMessage": "old",
        "workspaceStatus": {"ready": true, "state": "old"},
        "workspaceTemplateStatus": {"ready": true, "outputs": {"kept": "1", "old": "2"}},
        "endpoint": "h:443", "secretsReady": true,
        "conditions": [condition("Failed", "True"), condition("EndpointReady", "True"), condition("Ready", "False"),
            condition("Creating", "True"), condition("GoOnly", "True")],
    }});
    let update = PatchParams {
        field_manager: Some("manager".into()),
        ..PatchParams::default()
    };
    let seen = api.patch_status("s", &update, &Patch::Merge(left)).await?;

    let mut wished = report(Phase::Creating);
    wished.workspace_template_status = Some(serde_json::from_value(
        json!({"ready": true, "outputs": {"kept": "1"}}),
    )?);
    let now = written(subjects.apply_status(&Planned::new(&seen)?, &wished, WHY).await?)?;

    let status = now.status().context("no status")?;
    assert_eq!(
        (
            &status.failure_reason,
            &status.failure_message,
            &status.workspace_status
        ),
        (&None, &None, &None)
    );
    assert_eq!(status.workspace_template_status, wished.workspace_template_status);
    for (kind, expected) in [
        ("Ready", Some("False")),
        ("Available", Some("False")),
        ("Failed", None),
        ("Creating", None),
        ("EndpointReady", Some("True")),
        ("GoOnly", Some("True")),
    ] {
        assert_eq!(condition_status(&now, kind), expected, "{kind}");
    }
    assert_eq!(
        (status.endpoint.as_deref(), status.secrets_ready),
        (Some("h:443"), Some(true)),
        "other managers' fields"
    );

    let again = subjects.apply_status(&Planned::new(&now)?, &wished, WHY).await?;
    assert!(again.is_unchanged(), "once");
    assert_eq!(
        world.version::<Subject>("s").await?,
        now.resource_version().context("version")?
    );
    Ok(())
}

#[tokio::test]
async fn three_managers_report_on_one_object_and_never_touch_each_other() -> Result<()> {
    let world = World::new("wp-managers").await?;
    let phases = world.as_manager::<Subject>(Manager::ControlPlane);
    let endpoints = world.as_manager::<Subject>(Manager::Endpoint);
    let secrets = world.as_manager::<Subject>(Manager::Secrets);
    let endpoint = |status: &str| CaptControlPlaneStatus {
        endpoint: Some("h:443".into()),
        conditions: vec![condition("EndpointReady", status)],
        ..CaptControlPlaneStatus::default()
    };
    let secret = |status: &str| CaptControlPlaneStatus {
        secrets_ready: Some(status == "True"),
        conditions: vec![condition("SecretsReady", status)],
        ..CaptControlPlaneStatus::default()
    };
    let now = world.subject("s").await?;
    let now = written(
        endpoints
            .apply_status(&Planned::new(&now)?, &endpoint("False"), WHY)
            .await?,
    )?;
    let now = written(
        phases
            .apply_status(&Planned::new(&now)?, &report(Phase::Creating), WHY)
            .await?,
    )?;
    let now = written(secrets.apply_status(&Planned::new(&now)?, &secret("True"), WHY).await?)?;
    let now = written(
        endpoints
            .apply_status(&Planned::new(&now)?, &endpoint("True"), WHY)
            .await?,
    )?;
    let fields = json!({"controlPlaneEndpoint": {"host": "h", "port": 443}});
    let now = written(endpoints.apply_spec(&Planned::new(&now)?, fields.clone(), WHY).await?)?;

    let status = now.status().context("no status")?;
    assert_eq!(
        (status.phase, status.secrets_ready, status.endpoint.as_deref()),
        (Some(Phase::Creating), Some(true), Some("h:443"))
    );
    let mut kinds: Vec<_> = status
        .conditions
        .iter()
        .map(|c| (c.type_.as_str(), c.status.as_str()))
        .collect();
    kinds.sort_unstable();
    assert_eq!(
        kinds,
        [
            ("Available", "False"),
            ("EndpointReady", "True"),
            ("Ready", "False"),
            ("SecretsReady", "True")
        ]
    );
    assert_eq!(now.0.spec.version, "1.31", "the user's own fields");

    // All are content with what is there.
    let planned = Planned::new(&now)?;
    assert!(
        phases
            .apply_status(&planned, &report(Phase::Creating), WHY)
            .await?
            .is_unchanged()
    );
    assert!(
        endpoints
            .apply_status(&planned, &endpoint("True"), WHY)
            .await?
            .is_unchanged()
    );
    assert!(endpoints.apply_spec(&planned, fields, WHY).await?.is_unchanged());
    assert!(
        secrets
            .apply_status(&planned, &secret("True"), WHY)
            .await?
            .is_unchanged()
    );

    // Another manager's field is refused before anything is sent.
    for (objects, wrong) in [
        (&endpoints, secret("False")),
        (&phases, endpoint("False")),
        (&secrets, report(Phase::Ready)),
    ] {
        let refused = failure(objects.apply_status(&planned, &wrong, WHY).await)?;
        assert!(matches!(refused, Failure::Misuse { .. }), "{refused:?}");
        assert_eq!(refused.class(), Class::Bug);
    }
    let refused = failure(phases.apply_spec(&planned, json!({"version": "1.32"}), WHY).await)?;
    assert!(matches!(refused, Failure::Misuse { .. }), "{refused:?}");
    assert_eq!(
        world.version::<Subject>("s").await?,
        now.resource_version().context("version")?
    );
    Ok(())
}

#[tokio::test]
async fn a_users_value_in_our_spec_field_is_replaced_and_can_be_removed() -> Result<()> {
    let world = World::new("wp-spec").await?;
    let endpoints = world.as_manager::<Subject>(Manager::Endpoint);
    world.subject("s").await?;
    let theirs = json!({"spec": {"controlPlaneEndpoint": {"host": "theirs", "port": 6443}}});
    let seen: Subject = world
        .api()
        .patch("s", &PatchParams::default(), &Patch::Merge(theirs))
        .await?;
    let fields = json!({"controlPlaneEndpoint": {"host": "ours", "port": 443}});
    let now = written(endpoints.apply_spec(&Planned::new(&seen)?, fields, WHY).await?)?;
    assert_eq!(
        now.0.spec.control_plane_endpoint.as_ref().map(|e| e.host.as_str()),
        Some("ours")
    );

    // Set by a user alone, never by us: only the removal of leftovers gets rid of it.
    let other = json!({"spec": {"controlPlaneEndpoint": {"host": "again", "port": 1}}});
    let seen: Subject = world
        .api()
        .patch("s", &PatchParams::default(), &Patch::Merge(other))
        .await?;
    let now = written(endpoints.apply_spec(&Planned::new(&seen)?, json!({}), WHY).await?)?;
    assert_eq!(now.0.spec.control_plane_endpoint, None);
    assert_eq!(now.0.spec.version, "1.31");
    assert!(
        endpoints
            .apply_spec(&Planned::new(&now)?, json!({}), WHY)
            .await?
            .is_unchanged()
    );
    Ok(())
}
