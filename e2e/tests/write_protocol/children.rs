//! Children: created complete, adopted when ours, changed as a whole, never taken from somebody else.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use capt_api::names::{Manager, annotation, finalizer, label};
use capt_e2e::testing::{condition, until};
use capt_runtime::apply::{Bond, Change, Compare, Created, Deleted, Objects, Ours, Parent, Planned, Writer};
use capt_runtime::error::{Class, Classified, Failure, Race, reason};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ApiResource, DynamicObject, ObjectMeta, Patch, PatchParams};
use kube::{Api, Resource, ResourceExt};
use serde_json::{Value, json};

use crate::world::{GROUP, WHY, World, assert_lost, failure, written};

#[tokio::test]
async fn a_child_is_created_complete_and_adopted_when_it_is_ours() -> Result<()> {
    let world = World::new("wp-create").await?;
    let configmaps = world.as_manager::<ConfigMap>(Manager::ControlPlane);
    let subject = world.subject("parent").await?;
    let parent = Parent::of(&Planned::new(&subject)?);
    let mut body = ConfigMap {
        metadata: world.meta("child"),
        data: Some(BTreeMap::from([("a".into(), "1".into())])),
        ..ConfigMap::default()
    };
    body.metadata.finalizers = Some(vec![finalizer::CAPT_CONTROL_PLANE_HOLD.into()]);
    body.metadata.labels = Some(BTreeMap::from([(label::CLUSTER_NAME.into(), "c".into())]));

    let created = configmaps.create(&parent, Bond::Reference, body.clone(), WHY).await?;
    let Created::New(child) = created else {
        bail!("{created:?}")
    };
    assert_eq!(child.finalizers(), [finalizer::CAPT_CONTROL_PLANE_HOLD]);
    assert_eq!(child.labels()[label::CLUSTER_NAME], "c");
    assert_eq!(Some(&child.labels()[label::OWNER_UID]), subject.uid().as_ref());
    let expected = OwnerReference {
        api_version: format!("{GROUP}/v1beta1"),
        kind: "CAPTControlPlane".into(),
        name: "parent".into(),
        uid: subject.uid().context("uid")?,
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    assert_eq!(child.owner_references(), std::slice::from_ref(&expected));

    // The answer was lost, or the cache is late: the same create finds its own child, and writes nothing.
    let before = world.raw::<ConfigMap>("child").await?;
    let again = configmaps.create(&parent, Bond::Reference, body.clone(), WHY).await?;
    let Created::Adopted(found) = again else {
        bail!("{again:?}")
    };
    assert_eq!(found.uid(), child.uid());
    assert_eq!(world.raw::<ConfigMap>("child").await?, before);

    // Somebody removed the reference: still ours by the label, and put back.
    let none = Patch::Merge(json!({"metadata": {"ownerReferences": null}}));
    let stripped = world
        .api::<ConfigMap>()
        .patch("child", &PatchParams::default(), &none)
        .await?;
    let ours = Ours::by_owner(&configmaps, Planned::new(&stripped)?, &parent)?;
    let now = written(configmaps.adopt(&ours, &parent, Bond::Reference, WHY).await?)?;
    assert_eq!(now.owner_references(), [expected]);
    let ours = Ours::by_owner(&configmaps, Planned::new(&now)?, &parent)?;
    assert!(
        configmaps
            .adopt(&ours, &parent, Bond::Reference, WHY)
            .await?
            .is_unchanged()
    );

    // Or the label: still ours by the reference, and put back.
    let none = Patch::Merge(json!({"metadata": {"labels": {label::OWNER_UID: null}}}));
    let stripped = world
        .api::<ConfigMap>()
        .patch("child", &PatchParams::default(), &none)
        .await?;
    let ours = Ours::by_owner(&configmaps, Planned::new(&stripped)?, &parent)?;
    let now = written(configmaps.adopt(&ours, &parent, Bond::Reference, WHY).await?)?;
    assert_eq!(Some(&now.labels()[label::OWNER_UID]), subject.uid().as_ref());

    // It is being deleted: neither new nor adopted.
    let ours = Ours::by_owner(&configmaps, Planned::new(&now)?, &parent)?;
    assert_eq!(configmaps.delete(&ours, WHY).await?, Deleted::Requested);
    let deleting = configmaps.create(&parent, Bond::Reference, body, WHY).await?;
    let Created::Deleting(deleting) = deleting else {
        bail!("{deleting:?}")
    };
    let ours = Ours::by_owner(&configmaps, Planned::new(&deleting)?, &parent)?;
    assert_eq!(configmaps.delete(&ours, WHY).await?, Deleted::InProgress);
    let _ = written(
        configmaps
            .remove_finalizers(&Planned::new(&deleting)?, &[finalizer::CAPT_CONTROL_PLANE_HOLD], WHY)
            .await?,
    )?;
    let ours = Ours::by_owner(&configmaps, Planned::new(&now)?, &parent)?;
    assert_eq!(configmaps.delete(&ours, WHY).await?, Deleted::AlreadyGone);
    Ok(())
}

#[tokio::test]
async fn adoption_loses_to_another_owner_but_not_to_unrelated_writers() -> Result<()> {
    let world = World::new("wp-adopt").await?;
    let configmaps = world.as_manager::<ConfigMap>(Manager::ControlPlane);
    let subject = world.subject("parent").await?;
    let parent = Parent::of(&Planned::new(&subject)?);
    let mut meta = world.meta("child");
    meta.labels = Some(BTreeMap::from([(label::OWNER_UID.into(), parent.uid().into())]));
    let seen = world.configmap(meta).await?;
    let touched = Patch::Merge(json!({"data": {"touched": "yes"}}));
    world
        .api::<ConfigMap>()
        .patch("child", &PatchParams::default(), &touched)
        .await?;
    let ours = Ours::by_owner(&configmaps, Planned::new(&seen)?, &parent)?;
    let now = written(configmaps.adopt(&ours, &parent, Bond::Reference, WHY).await?)?;
    assert_eq!(now.owner_references().len(), 1);

    // Taken by somebody else since it was read.
    let other = world.subject("other").await?;
    let theirs = other.controller_owner_ref(&()).context("reference")?;
    let taken = Patch::Merge(json!({"metadata": {"ownerReferences": [theirs]}}));
    world
        .api::<ConfigMap>()
        .patch("child", &PatchParams::default(), &taken)
        .await?;

    let ours = Ours::by_owner(&configmaps, Planned::new(&seen)?, &parent)?;
    assert_lost(
        configmaps.adopt(&ours, &parent, Bond::Reference, WHY).await,
        Race::Changed,
    )?;
    Ok(())
}

#[tokio::test]
async fn what_is_not_ours_is_reported_and_not_touched() -> Result<()> {
    let world = World::new("wp-foreign").await?;
    let configmaps = world.as_manager::<ConfigMap>(Manager::ControlPlane);
    let subject = world.subject("parent").await?;
    let other = world.subject("other").await?;
    let parent = Parent::of(&Planned::new(&subject)?);
    let controlled = ObjectMeta {
        owner_references: other.controller_owner_ref(&()).map(|reference| vec![reference]),
        labels: Some(BTreeMap::from([(label::OWNER_UID.into(), parent.uid().into())])),
        ..world.meta("controlled")
    };
    let earlier = ObjectMeta {
        labels: Some(BTreeMap::from([(
            label::OWNER_UID.into(),
            "00000000-0000-0000-0000-000000000000".into(),
        )])),
        ..world.meta("earlier")
    };
    for (meta, owner) in [
        (world.meta("users"), "no controller"),
        (controlled, "CAPTControlPlane other"),
        (earlier, "made for another object"),
    ] {
        let name = meta.name.clone().context("name")?;
        let theirs = world.configmap(meta).await?;
        let before = world.raw::<ConfigMap>(&name).await?;
        let body = ConfigMap {
            metadata: world.meta(&name),
            ..ConfigMap::default()
        };
        let conflict = failure(configmaps.create(&parent, Bond::Reference, body, WHY).await)?;
        assert_eq!(
            conflict.class(),
            Class::Terminal(reason::OWNERSHIP_CONFLICT),
            "{name}: {conflict:?}"
        );
        let text = conflict.to_string();
        assert!(text.contains(owner) && text.contains(&name), "{name}: {text}");
        assert!(!text.contains(parent.uid()), "{text}");
        // Neither can it be changed or deleted: there is no way to make it ours.
        let conflict = failure(Ours::by_owner(&configmaps, Planned::new(&theirs)?, &parent))?;
        assert!(matches!(conflict, Failure::OwnershipConflict { .. }), "{conflict:?}");
        assert_eq!(world.raw::<ConfigMap>(&name).await?, before, "{name}");
    }
    Ok(())
}

fn workspace(name: &str, namespace: Option<&str>, spec: Value) -> DynamicObject {
    let kind = workspaces_kind();
    let mut object = DynamicObject::new(name, &kind).data(json!({"spec": spec}));
    object.metadata.namespace = namespace.map(Into::into);
    // The provider, where one runs, leaves it alone.
    object.metadata.annotations = Some(BTreeMap::from([(annotation::CROSSPLANE_PAUSED.into(), "true".into())]));
    object
}

fn workspaces_kind() -> ApiResource {
    ApiResource {
        group: "tf.upbound.io".into(),
        version: "v1beta1".into(),
        api_version: "tf.upbound.io/v1beta1".into(),
        kind: "Workspace".into(),
        plural: "workspaces".into(),
    }
}

#[tokio::test]
async fn a_cluster_scoped_dynamic_child_is_replaced_whole_and_only_when_it_differs() -> Result<()> {
    let world = World::new("wp-workspace").await?;
    let workspaces: Objects<DynamicObject> =
        Writer::new(world.client.clone(), Manager::Workspace).of_dynamic(workspaces_kind());
    let subject = world.subject("parent").await?;
    let parent = Parent::of(&Planned::new(&subject)?);
    let name = world.namespace.as_str();
    let first = json!({"forProvider": {"source": "Inline", "module": "", "vars": [{"key": "a", "value": "1"}, {"key": "dropped", "value": "1"}]}});
    let identity = |live: &DynamicObject| live.annotations().contains_key(annotation::CROSSPLANE_PAUSED);
    let created = workspaces
        .create_identified(
            &parent,
            Bond::Reference,
            workspace(name, None, first.clone()),
            identity,
            WHY,
        )
        .await?;
    let Created::New(_) = created else { bail!("{created:?}") };
    // The provider says once that the Workspace is paused; from then on it is ours alone.
    let all = Api::all_with(world.client.clone(), &workspaces_kind());
    let made = until(&all, name, "paused", |made| {
        condition(made, "Synced") == "False/ReconcilePaused"
    })
    .await?;
    assert!(
        made.owner_references().is_empty(),
        "a namespaced owner would look missing to the garbage collector"
    );
    assert_eq!(Some(&made.labels()[label::OWNER_UID]), subject.uid().as_ref());
    assert!(
        made.data["spec"]["deletionPolicy"].is_string(),
        "the server has added defaults"
    );

    let ours = Ours::by_identity(&workspaces, Planned::new(&made)?, identity(&made))?;
    assert!(
        workspaces
            .change(&ours, &Change::spec(first.clone(), Compare::Contained), WHY)
            .await?
            .is_unchanged()
    );

    // A new revision: the dropped variable and the server's additions really go.
    let second = json!({"forProvider": {"source": "Inline", "module": "", "vars": [{"key": "a", "value": "1"}]}});
    let change = Change::spec(second.clone(), Compare::Exact).annotation(annotation::REVISION, Some("2"));
    let now = written(workspaces.change(&ours, &change, WHY).await?)?;
    assert_eq!(now.data["spec"]["forProvider"]["vars"], second["forProvider"]["vars"]);
    assert_eq!(now.annotations()[annotation::REVISION], "2");
    assert!(
        now.annotations().contains_key(annotation::CROSSPLANE_PAUSED),
        "others' annotations stay"
    );
    assert_eq!(now.metadata.generation, Some(2));

    // The first plan is stale now, and a second one has nothing to do.
    assert_lost(workspaces.change(&ours, &change, WHY).await, Race::Changed)?;
    let ours = Ours::by_identity(&workspaces, Planned::new(&now)?, identity(&now))?;
    let same = Change::spec(second, Compare::Contained).annotation(annotation::REVISION, Some("2"));
    assert!(workspaces.change(&ours, &same, WHY).await?.is_unchanged());

    // Known by its own mark, not by its owner.
    let moved = Parent::of(&Planned::new(&world.subject("moved").await?)?);
    let again = workspaces
        .create_identified(&moved, Bond::Label, workspace(name, None, first.clone()), identity, WHY)
        .await?;
    assert!(matches!(again, Created::Adopted(_)), "{again:?}");
    let conflict = failure(
        workspaces
            .create(&moved, Bond::Label, workspace(name, None, first), WHY)
            .await,
    )?;
    assert!(matches!(conflict, Failure::OwnershipConflict { .. }), "{conflict:?}");

    assert_eq!(workspaces.delete(&ours, WHY).await?, Deleted::Requested);
    assert_lost(workspaces.confirm_living(&Planned::new(&made)?).await, Race::Vanished)?;
    Ok(())
}

#[tokio::test]
async fn dropped_keys_of_a_secret_really_go() -> Result<()> {
    let world = World::new("wp-secret").await?;
    let secrets = world.as_manager::<Secret>(Manager::Secrets);
    let subject = world.subject("parent").await?;
    let parent = Parent::of(&Planned::new(&subject)?);
    let data = |keys: &[&str]| -> BTreeMap<String, ByteString> {
        keys.iter()
            .map(|key| ((*key).to_owned(), ByteString(b"1".to_vec())))
            .collect()
    };
    let body = Secret {
        metadata: world.meta("s"),
        data: Some(data(&["kept", "dropped"])),
        ..Secret::default()
    };
    let created = secrets.create(&parent, Bond::Reference, body, WHY).await?;
    let Created::New(made) = created else {
        bail!("{created:?}")
    };
    let ours = Ours::by_owner(&secrets, Planned::new(&made)?, &parent)?;
    assert!(
        secrets
            .change(&ours, &Change::data(&data(&["kept", "dropped"]))?, WHY)
            .await?
            .is_unchanged()
    );

    let change = Change::data(&data(&["kept"]))?
        .label("team", Some("a"))
        .label(label::OWNER_UID, Some(parent.uid()));
    let now = written(secrets.change(&ours, &change, WHY).await?)?;
    assert_eq!(now.data, Some(data(&["kept"])));
    assert_eq!(now.labels()["team"], "a");
    let ours = Ours::by_owner(&secrets, Planned::new(&now)?, &parent)?;
    assert!(secrets.change(&ours, &change, WHY).await?.is_unchanged());

    let change = Change::data(&BTreeMap::new())?.label("team", None);
    let now = written(secrets.change(&ours, &change, WHY).await?)?;
    assert!(now.data.as_ref().is_none_or(BTreeMap::is_empty));
    assert!(!now.labels().contains_key("team") && now.labels().contains_key(label::OWNER_UID));
    Ok(())
}
