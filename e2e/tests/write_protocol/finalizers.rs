//! Finalizers: guarded by the list itself, set together with their annotations, removed whoever wrote them.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use capt_api::controlplane::Phase;
use capt_api::names::{Manager, annotation, finalizer};
use capt_runtime::apply::{Edit, FinalizerAdded, Objects, Planned, Writer};
use capt_runtime::error::{Class, Classified, Failure, Race};
use futures::future::join_all;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, ObjectMeta, PartialObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::world::{Subject, WHY, World, assert_lost, failure, finalized, no_annotations, report, written};

/// Not the one that capt-workspace-controller looks after: it would take it away from a Secret that nobody reads.
const INPUT_FINALIZER: &str = "test.capt.dev/input";

#[tokio::test]
async fn finalizers_come_with_their_annotations_and_others_stay() -> Result<()> {
    let world = World::new("wp-finalizers").await?;
    let subjects = world.as_manager::<Subject>(Manager::Workspace);
    let annotated = ObjectMeta {
        annotations: Some(BTreeMap::from([("user".into(), "1".into())])),
        ..ObjectMeta::default()
    };
    let seen = world.subject_with("s", annotated).await?;
    let identity = BTreeMap::from([
        (annotation::WORKSPACE_NAME.to_owned(), Some("w".to_owned())),
        (
            annotation::WORKSPACE_KIND.to_owned(),
            Some("tf.upbound.io/v1beta1".to_owned()),
        ),
    ]);
    let FinalizerAdded::Added(now) = subjects
        .add_finalizer(
            &Planned::new(&seen)?,
            finalizer::WORKSPACE_TEMPLATE_APPLY,
            &identity,
            WHY,
        )
        .await?
    else {
        bail!("not added");
    };
    assert_eq!(now.finalizers(), [finalizer::WORKSPACE_TEMPLATE_APPLY]);
    assert_eq!(now.annotations().len(), 3);
    assert_eq!(now.annotations()[annotation::WORKSPACE_NAME], "w");

    let again = subjects
        .add_finalizer(
            &Planned::new(&now)?,
            finalizer::WORKSPACE_TEMPLATE_APPLY,
            &identity,
            WHY,
        )
        .await?;
    assert!(matches!(again, FinalizerAdded::Unchanged), "{again:?}");
    assert_eq!(
        world.version::<Subject>("s").await?,
        now.resource_version().context("version")?
    );

    // Somebody else adds one meanwhile: a removal planned from the old list is refused, and loses nobody's finalizer.
    let api: Api<Subject> = world.api();
    let theirs = json!({"metadata": {"finalizers": [finalizer::WORKSPACE_TEMPLATE_APPLY, "example.com/theirs", finalizer::GO_VERSION]}});
    let live = api.patch("s", &PatchParams::default(), &Patch::Merge(theirs)).await?;
    let ours = [finalizer::WORKSPACE_TEMPLATE_APPLY, finalizer::GO_VERSION];
    assert_lost(
        subjects.remove_finalizers(&Planned::new(&now)?, &ours, WHY).await,
        Race::Changed,
    )?;

    // Planned from the new list, both of ours go, the one that the Go version wrote included; theirs stays.
    let now = written(subjects.remove_finalizers(&Planned::new(&live)?, &ours, WHY).await?)?;
    assert_eq!(now.finalizers(), ["example.com/theirs"]);
    assert!(
        subjects
            .remove_finalizers(&Planned::new(&now)?, &ours, WHY)
            .await?
            .is_unchanged()
    );
    assert_eq!(
        world.version::<Subject>("s").await?,
        now.resource_version().context("version")?
    );

    // For somebody who waits for that: the annotation comes with the last one's end, and not without it.
    let told = BTreeMap::from([(annotation::RELEASED.to_owned(), Some("true".to_owned()))]);
    let now = written(
        subjects
            .release(&Planned::new(&now)?, &["example.com/theirs"], &told, WHY)
            .await?,
    )?;
    assert!(now.finalizers().is_empty());
    assert_eq!(now.annotations()[annotation::RELEASED], "true");
    assert!(
        subjects
            .release(&Planned::new(&now)?, &["example.com/theirs"], &told, WHY)
            .await?
            .is_unchanged()
    );
    Ok(())
}

#[tokio::test]
async fn a_finalizer_does_not_lose_to_writers_of_other_fields() -> Result<()> {
    let world = World::new("wp-unrelated").await?;
    let subjects = world.as_manager::<Subject>(Manager::ControlPlane);
    let seen = world.subject("s").await?;
    written(
        subjects
            .apply_status(&Planned::new(&seen)?, &report(Phase::Creating), WHY)
            .await?,
    )?;
    let added = subjects
        .add_finalizer(
            &Planned::new(&seen)?,
            finalizer::CAPT_CONTROL_PLANE,
            &no_annotations(),
            WHY,
        )
        .await?;
    assert!(matches!(added, FinalizerAdded::Added(_)), "{added:?}");
    Ok(())
}

#[tokio::test]
async fn an_object_being_deleted_takes_no_finalizer_and_that_is_no_error() -> Result<()> {
    let world = World::new("wp-deleting").await?;
    let subjects = world.as_manager::<Subject>(Manager::ControlPlane);
    let seen = world.subject_with("s", finalized("example.com/theirs")).await?;
    let api: Api<Subject> = world.api();
    api.delete("s", &DeleteParams::default()).await?;
    let deleting = api.get("s").await?;

    for planned in [&seen, &deleting] {
        let refused = subjects
            .add_finalizer(
                &Planned::new(planned)?,
                finalizer::CAPT_CONTROL_PLANE,
                &no_annotations(),
                WHY,
            )
            .await?;
        assert!(matches!(refused, FinalizerAdded::Deleting), "{refused:?}");
    }
    // Through any other write the same refusal is a lost race, not a verdict on what was rendered.
    let edit = Edit::new().set(
        &["metadata", "finalizers"],
        json!(["example.com/theirs", "capt.dev/new"]),
    );
    let refused = failure(subjects.patch(&Planned::new(&deleting)?, edit, WHY).await)?;
    assert!(
        matches!(refused, Failure::DeletingRefusesFinalizer { .. }),
        "{refused:?}"
    );
    assert_eq!(refused.class(), Class::Conflict);

    // Nothing is made for what is going, whatever the cache shows.
    assert_lost(subjects.confirm_living(&Planned::new(&seen)?).await, Race::Changed)?;

    written(
        subjects
            .remove_finalizers(&Planned::new(&deleting)?, &["example.com/theirs"], WHY)
            .await?,
    )?;
    assert_lost(subjects.confirm_living(&Planned::new(&seen)?).await, Race::Vanished)?;
    Ok(())
}

#[tokio::test]
async fn a_finalizer_on_a_secret_needs_no_sight_of_its_contents() -> Result<()> {
    let world = World::new("wp-metadata").await?;
    let secret = Secret {
        metadata: world.meta("input"),
        data: Some(BTreeMap::from([("k".into(), ByteString(b"v".to_vec()))])),
        ..Secret::default()
    };
    world.api::<Secret>().create(&PostParams::default(), &secret).await?;
    let inputs: Objects<PartialObjectMeta<Secret>> =
        Writer::new(world.client.clone(), Manager::Workspace).of_dynamic(());
    let seen = inputs
        .live(Some(&world.namespace), "input")
        .await?
        .context("it exists")?;
    let added = inputs
        .add_finalizer(&Planned::new(&seen)?, INPUT_FINALIZER, &no_annotations(), WHY)
        .await?;
    let FinalizerAdded::Added(now) = added else {
        bail!("{added:?}")
    };
    assert_eq!(now.finalizers(), [INPUT_FINALIZER]);
    for seen in [&seen, &now] {
        let kind = seen.types.as_ref().map(|types| types.kind.as_str());
        assert_eq!(
            kind,
            Some("PartialObjectMetadata"),
            "the server sent more than metadata"
        );
    }
    assert_eq!(inputs.live_list(Some(&world.namespace), None).await?.len(), 1);
    // None at all, which the server writes as `items: null` when it sends metadata only.
    let none = inputs.live_list(Some(&world.namespace), Some("no=such")).await?;
    assert!(none.is_empty());
    written(
        inputs
            .remove_finalizers(&Planned::new(&now)?, &[INPUT_FINALIZER], WHY)
            .await?,
    )?;
    let live: Secret = world.api().get("input").await?;
    assert_eq!(live.data, secret.data);
    Ok(())
}

/// Plans from a live read and writes, again and again, until a write is not a lost race.
async fn until_won<T, F>(subjects: &Objects<Subject>, namespace: &str, mut write: impl FnMut(Subject) -> F) -> Result<T>
where
    F: Future<Output = Result<T, Failure>>,
{
    loop {
        let seen = subjects.live(Some(namespace), "s").await?.context("it exists")?;
        match write(seen).await {
            Err(lost) if lost.class() == Class::Conflict => {}
            other => return Ok(other?),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_at_the_same_moment_lose_nobodys_finalizer() -> Result<()> {
    const WRITERS: usize = 8;
    let world = World::new("wp-crowd").await?;
    let subjects = world.as_manager::<Subject>(Manager::ControlPlane);
    let subjects = &subjects;
    world.subject("s").await?;
    let names: Vec<String> = (0..WRITERS).map(|index| format!("capt.dev/writer-{index}")).collect();

    let added = names.iter().map(|name| {
        until_won(subjects, &world.namespace, move |seen| async move {
            let planned = Planned::new(&seen)?;
            subjects.add_finalizer(&planned, name, &no_annotations(), WHY).await
        })
    });
    for outcome in join_all(added).await {
        let outcome = outcome?;
        assert!(matches!(outcome, FinalizerAdded::Added(_)), "{outcome:?}");
    }
    let mut live = world.api::<Subject>().get("s").await?.finalizers().to_vec();
    live.sort_unstable();
    assert_eq!(live, names);

    let (going, staying) = names.split_at(WRITERS / 2);
    let removed = going.iter().map(|name| {
        until_won(subjects, &world.namespace, move |seen| async move {
            let planned = Planned::new(&seen)?;
            subjects.remove_finalizers(&planned, &[name.as_str()], WHY).await
        })
    });
    for outcome in join_all(removed).await {
        assert!(!outcome?.is_unchanged());
    }
    let mut live = world.api::<Subject>().get("s").await?.finalizers().to_vec();
    live.sort_unstable();
    assert_eq!(live, staying);
    Ok(())
}
