//! What the server refuses, what it means, and what a live read makes of it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use capt_api::controlplane::Phase;
use capt_api::names::Manager;
use capt_runtime::apply::{Bond, Edit, Objects, Parent, Planned, Writer};
use capt_runtime::error::{Class, Classified, Failure, ObjectRef, Race, Verb, reason};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ResourceQuota, Secret};
use kube::api::{ApiResource, DeleteParams, DynamicObject, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Deserialize;
use serde_json::json;
use tokio::time::sleep;

use crate::world::{GROUP, Subject, WHY, World, assert_lost, failure, finalized, no_annotations, report, written};
use capt_e2e::testing::PATIENCE;

#[tokio::test]
async fn an_invalid_body_names_its_field_and_says_the_same_twice() -> Result<()> {
    let world = World::new("wp-invalid").await?;
    let subjects = world.as_manager::<Subject>(Manager::ControlPlane);
    let seen = world.subject("s").await?;
    let planned = Planned::new(&seen)?;
    let edit = || {
        Edit::new()
            .set(&["spec", "controlPlaneConfig", "region"], json!("nowhere"))
            .set(&["spec", "version"], json!("x"))
    };
    let first = failure(subjects.patch(&planned, edit(), WHY).await)?;
    assert_eq!(first.class(), Class::Terminal(reason::INVALID), "{first:?}");
    let Failure::Invalid { field, message, .. } = &first else {
        bail!("{first:?}")
    };
    assert!(field.starts_with("spec."), "{field}");
    assert!(
        message.contains("region") && message.contains("version"),
        "both are told: {message}"
    );
    let second = failure(subjects.patch(&planned, edit(), WHY).await)?;
    assert_eq!(first.to_string(), second.to_string());

    let configmaps = world.as_manager::<ConfigMap>(Manager::ControlPlane);
    let body = ConfigMap {
        metadata: world.meta("Not_A_Name"),
        ..ConfigMap::default()
    };
    let invalid = failure(
        configmaps
            .create(&Parent::of(&planned), Bond::Reference, body, WHY)
            .await,
    )?;
    assert!(
        matches!(&invalid, Failure::Invalid { field, .. } if field == "metadata.name"),
        "{invalid:?}"
    );

    // A patch after which the object does not decode is answered with the whole object, versions and all.
    let undecodable = failure(
        subjects
            .patch(&planned, Edit::new().set(&["metadata", "labels"], json!("text")), WHY)
            .await,
    )?;
    let text = undecodable.to_string();
    assert!(
        !text.contains(planned.uid()) && !text.contains("managedFields"),
        "{text}"
    );
    Ok(())
}

#[tokio::test]
async fn a_field_that_the_crd_does_not_know_is_a_bug_and_not_retried_as_an_outage() -> Result<()> {
    let world = World::new("wp-old-crd").await?;
    let seen = world.subject("s").await?;
    let kind = ApiResource::erase::<Subject>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(world.client.clone(), &world.namespace, &kind);
    let body = json!({"apiVersion": kind.api_version, "kind": kind.kind, "status": {"fieldOfTomorrow": true}});
    let refused = api
        .patch_status("s", &PatchParams::apply("test").force(), &Patch::Apply(body))
        .await;
    let object = ObjectRef::new("CAPTControlPlane", seen.namespace().as_deref(), "s");
    let error = refused.err().context("the server took an unknown field")?;
    let bug = Failure::of(Verb::Apply, object, error);
    assert_eq!(bug.class(), Class::Bug, "{bug:?}");
    Ok(())
}

#[tokio::test]
async fn a_namespace_that_is_going_takes_nothing_new() -> Result<()> {
    let world = World::new("wp-terminating").await?;
    let configmaps = world.as_manager::<ConfigMap>(Manager::ControlPlane);
    let subject = world.subject_with("parent", finalized("example.com/hold")).await?;
    let parent = Parent::of(&Planned::new(&subject)?);
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    namespaces.delete(&world.namespace, &DeleteParams::default()).await?;

    let mut body = ConfigMap {
        metadata: world.meta("late"),
        ..ConfigMap::default()
    };
    let refused = failure(configmaps.create(&parent, Bond::Reference, body.clone(), WHY).await)?;
    assert!(matches!(refused, Failure::NamespaceTerminating { .. }), "{refused:?}");
    assert_eq!(refused.class(), Class::Terminal(reason::NAMESPACE_TERMINATING));
    // Nothing but the finalizer kept the namespace here.
    let subjects = world.as_manager::<Subject>(Manager::ControlPlane);
    let held = Planned::new(&subject)?;
    written(subjects.remove_finalizers(&held, &["example.com/hold"], WHY).await?)?;

    // One that has gone is a lost race, although the server's answer names the namespace and not the object.
    body.metadata.namespace = Some("wp-there-is-no-such-namespace".into());
    let created = configmaps.create(&parent, Bond::Reference, body, WHY).await;
    assert_lost(created, Race::Vanished)?;
    Ok(())
}

#[tokio::test]
async fn a_missing_permission_says_which_and_is_no_fault_before_it_lasts() -> Result<()> {
    let world = World::new("wp-rights").await?;
    let seen = world.subject("s").await?;
    let mut config = kube::Config::infer().await?;
    config.auth_info.impersonate = Some("nobody".into());
    let nobody = Writer::new(Client::try_from(config)?, Manager::ControlPlane);
    let subjects = nobody.of::<Subject>();
    let planned = Planned::new(&seen)?;
    let failures = [
        failure(subjects.apply_status(&planned, &report(Phase::Creating), WHY).await)?,
        failure(subjects.live(Some(&world.namespace), "s").await)?,
        failure(subjects.live(Some(&world.namespace), "absent").await)?,
        failure(subjects.confirm_living(&planned).await)?,
        failure(subjects.live_list(None, None).await)?,
        failure(
            subjects
                .add_finalizer(&planned, "capt.dev/x", &no_annotations(), WHY)
                .await,
        )?,
    ];
    for failure in failures {
        assert!(
            matches!(failure, Failure::Forbidden { is_lasting: false, .. }),
            "{failure:?}"
        );
        assert_eq!(failure.class(), Class::Transient);
        let text = failure.to_string();
        assert!(
            text.contains("User \"nobody\" cannot") && text.contains("captcontrolplanes"),
            "{text}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_full_quota_passes_and_is_told_without_numbers() -> Result<()> {
    let world = World::new("wp-quota").await?;
    let quotas: Api<ResourceQuota> = world.api();
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"count/secrets": "0"}}});
    quotas
        .create(&PostParams::default(), &serde_json::from_value(quota)?)
        .await?;
    // Enforced when its status is there and admission has heard of it, which nothing tells.
    let probe = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let bodiless = Secret {
        metadata: world.meta("probe"),
        ..Secret::default()
    };
    let begun = Instant::now();
    while world.api::<Secret>().create(&probe, &bodiless).await.is_ok() {
        ensure!(begun.elapsed() < PATIENCE, "the quota is never enforced");
        sleep(Duration::from_millis(100)).await;
    }
    let secrets = world.as_manager::<Secret>(Manager::Secrets);
    let parent = Parent::of(&Planned::new(&world.subject("p").await?)?);
    let body = Secret {
        metadata: world.meta("s"),
        ..Secret::default()
    };
    let full = failure(secrets.create(&parent, Bond::Reference, body, WHY).await)?;
    assert!(matches!(full, Failure::QuotaExceeded { .. }), "{full:?}");
    assert_eq!(full.class(), Class::Transient);
    Ok(())
}

#[tokio::test]
async fn an_unknown_kind_is_never_taken_for_an_absent_object() -> Result<()> {
    let world = World::new("wp-unknown").await?;
    let writer = Writer::new(world.client.clone(), Manager::Workspace);
    for (group, plural) in [("nowhere.capt.dev", "things"), (GROUP, "things"), ("", "things")] {
        let api_version = if group.is_empty() {
            "v1".to_owned()
        } else {
            format!("{group}/v1")
        };
        let kind = ApiResource {
            group: group.into(),
            version: "v1".into(),
            api_version,
            kind: "Thing".into(),
            plural: plural.into(),
        };
        let things: Objects<DynamicObject> = writer.of_dynamic(kind);
        let failures = [
            failure(things.live(Some(&world.namespace), "x").await)?,
            failure(things.live_list(Some(&world.namespace), None).await)?,
        ];
        for failure in failures {
            assert!(matches!(failure, Failure::NotServed { .. }), "{group}: {failure:?}");
            assert_eq!(failure.class(), Class::Transient);
        }
    }
    // While a missing namespace answers for the object.
    let configmaps = world.as_manager::<ConfigMap>(Manager::ControlPlane);
    assert!(
        configmaps
            .live(Some("wp-there-is-no-such-namespace"), "x")
            .await?
            .is_none()
    );
    Ok(())
}

#[tokio::test]
async fn an_unreachable_server_is_transient_and_is_not_absence() -> Result<()> {
    // A port that was free a moment ago, so that the connection is refused.
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let config = kube::Config::new(format!("http://127.0.0.1:{port}").parse()?);
    let configmaps = Writer::new(Client::try_from(config)?, Manager::ControlPlane).of::<ConfigMap>();
    let failure = failure(configmaps.live(Some("default"), "x").await)?;
    assert!(matches!(failure, Failure::Unreachable { .. }), "{failure:?}");
    assert_eq!(failure.class(), Class::Transient);
    assert_eq!(
        failure.to_string(),
        "no answer from the API server when asked to read ConfigMap default/x"
    );
    Ok(())
}

#[tokio::test]
async fn a_live_list_follows_every_page() -> Result<()> {
    // One more than fits into an answer.
    const OBJECTS: usize = 501;
    let world = World::new("wp-pages").await?;
    futures::stream::iter(0..OBJECTS)
        .map(|index| world.configmap(world.meta(&format!("m{index}"))))
        .buffer_unordered(20)
        .try_collect::<Vec<_>>()
        .await?;
    let configmaps = world.as_manager::<ConfigMap>(Manager::ControlPlane);
    let listed = configmaps.live_list(Some(&world.namespace), None).await?;
    // The controller manager adds its root certificate to every namespace.
    let ours = listed
        .iter()
        .filter(|object| object.name_any().starts_with('m'))
        .count();
    assert_eq!(ours, OBJECTS);
    Ok(())
}

#[tokio::test]
async fn a_live_list_selects_and_refuses_what_it_cannot_read() -> Result<()> {
    let world = World::new("wp-list").await?;
    let configmaps = world.as_manager::<ConfigMap>(Manager::ControlPlane);
    for index in 0..3 {
        let mut meta = world.meta(&format!("m{index}"));
        meta.labels = Some(BTreeMap::from([("n".into(), index.to_string())]));
        world.configmap(meta).await?;
    }
    let selected = configmaps.live_list(Some(&world.namespace), Some("n in (0,2)")).await?;
    assert_eq!(
        selected.iter().map(ResourceExt::name_any).collect::<Vec<_>>(),
        ["m0", "m2"]
    );
    assert!(
        configmaps
            .live_list(Some(&world.namespace), Some("n=9"))
            .await?
            .is_empty()
    );

    // ConfigMaps read as another kind: their `data` has not the shape of a Secret's.
    #[derive(Clone, Debug, Deserialize)]
    struct Odd {
        metadata: ObjectMeta,
        #[allow(dead_code, reason = "only its shape matters")]
        data: Vec<String>,
    }
    impl Resource for Odd {
        type DynamicType = ();
        type Scope = NamespaceResourceScope;
        fn kind(_: &()) -> Cow<'_, str> {
            "ConfigMap".into()
        }
        fn group(_: &()) -> Cow<'_, str> {
            "".into()
        }
        fn version(_: &()) -> Cow<'_, str> {
            "v1".into()
        }
        fn plural(_: &()) -> Cow<'_, str> {
            "configmaps".into()
        }
        fn meta(&self) -> &ObjectMeta {
            &self.metadata
        }
        fn meta_mut(&mut self) -> &mut ObjectMeta {
            &mut self.metadata
        }
    }
    let odd = world.as_manager::<Odd>(Manager::ControlPlane);
    for unreadable in [
        failure(odd.live(Some(&world.namespace), "m0").await)?,
        failure(odd.live_list(Some(&world.namespace), None).await)?,
    ] {
        assert_eq!(
            unreadable.class(),
            Class::Terminal(reason::UNREADABLE),
            "{unreadable:?}"
        );
    }
    Ok(())
}
