//! A row per transition of an apply, and a whole life of one.

use super::world::{NAME, NAMESPACE, World, at, token, workspace_name};
use super::*;
use crate::report::MAX_OUTPUT;
use capt_api::{WorkspaceKind, conditions};
use capt_runtime::controller::SETTLE;
use capt_runtime::error::{ObjectRef, Verb};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

#[test]
fn an_apply_waits_and_says_for_what() {
    type Change = fn(&mut World);
    let rows: &[(Change, &str, &str)] = &[
        (
            |w| w.cluster = ClusterSeen::Absent("demo".into()),
            "True/WaitingForCluster",
            "Cluster demo",
        ),
        (
            |w| w.template = None,
            "True/WaitingForTemplate",
            "team/template does not exist",
        ),
        (
            |w| w.missing_secrets = vec!["Secret team/a does not exist".into()],
            "True/WaitingForSecrets",
            "Secret team/a",
        ),
        (
            |w| w.missing_workspaces = vec!["WorkspaceTemplateApply team/b is not ready".into()],
            "True/WaitingForWorkspaces",
            "team/b",
        ),
        (
            |w| w.inputs.clear(),
            "True/WaitingForInputs",
            "Terraform reads Secret team/token, which does not exist",
        ),
    ];
    for (change, waiting, words) in rows {
        let mut world = World::new();
        change(&mut world);
        world.settle();
        assert_eq!(world.said("Waiting"), *waiting);
        assert_eq!(world.said("Ready"), "False/NotApplied");
        assert!(world.message("Waiting").contains(words), "{}", world.message("Waiting"));
        assert!(world.workspace.is_none());
    }
}

#[test]
fn what_cannot_be_rendered_is_said_and_makes_nothing() {
    type Change = fn(&mut World);
    let rows: &[(Change, &str, &str)] = &[
        (
            |w| w.apply.spec.variables.clear(),
            "False/UnresolvedVariable",
            "needs the variable region",
        ),
        (
            |w| w.template.as_mut().unwrap().template.spec.for_provider.module = "a = ${region}".into(),
            "False/UnsafeVariable",
            "region cannot stand in spec.template.spec.forProvider.module",
        ),
    ];
    for (change, ready, words) in rows {
        let mut world = World::new();
        change(&mut world);
        world.settle();
        assert_eq!(world.said("Ready"), *ready);
        assert_eq!(world.said("Synced"), *ready);
        assert!(world.message("Ready").contains(words), "{}", world.message("Ready"));
        assert!(world.workspace.is_none());
    }
}

#[test]
fn the_steps_come_in_the_order_that_loses_nothing() {
    let mut world = World::new();
    let plan = world.plan();
    let Step::Identify(annotations) = &plan.step else {
        panic!("{plan:?}")
    };
    assert_eq!(annotations[annotation::WORKSPACE_NAME], Some(workspace_name()));
    assert_eq!(
        annotations[annotation::WORKSPACE_INPUTS].as_deref(),
        Some("[\"Secret/token\"]")
    );
    assert_eq!(annotations[annotation::BLOCK_MOVE].as_deref(), Some("true"));
    world.perform(plan);
    let plan = world.plan();
    assert!(
        matches!(&plan.step, Step::Protect(inputs) if *inputs == [token()]),
        "{plan:?}"
    );
    world.perform(plan);
    let plan = world.plan();
    let Step::Create(workspace) = &plan.step else {
        panic!("{plan:?}")
    };
    assert_eq!(workspace.annotations()[annotation::EXTERNAL_NAME], workspace_name());
    assert_eq!(workspace.annotations()[annotation::WTA_NAME], NAME);
    assert_eq!(
        Some(workspace.annotations()[annotation::REVISION].as_str()),
        revision_of(&workspace.spec)
    );
    world.perform(plan);
    world.settle();
    assert_eq!(world.said("Ready"), "False/WaitingForProvider");
    assert_eq!(world.said("Waiting"), "False/NotWaiting");
    assert_eq!(
        world.status().workspace_name.as_deref(),
        Some(workspace_name().as_str())
    );
}

#[test]
fn the_workspaces_words_become_ours() {
    let mut world = World::ready();
    assert_eq!(world.said("Ready"), "True/Available");
    assert_eq!(world.status().outputs["vpc_id"], "vpc-1");
    assert_eq!(world.status().outputs["azs"], "[\"a\",\"b\"]");
    let revision = world.status().last_applied_revision.clone();
    assert!(revision.is_some());

    world.provider_says("False", "True", "observe failed: throttled");
    world.settle();
    assert_eq!(world.said("Ready"), "False/TerraformFailed");
    assert_eq!(
        world.status().last_failure_message.as_deref(),
        Some("observe failed: throttled")
    );
    assert_eq!(world.status().last_failed_revision, revision);
    assert_eq!(
        world.status().last_applied_revision,
        revision,
        "what was applied stays applied"
    );

    world.provider_says("True", "True", "");
    world.settle();
    assert_eq!(world.said("Ready"), "True/Available");
    assert_eq!(
        (
            world.status().last_failure_message.as_ref(),
            world.status().last_failed_revision.as_ref()
        ),
        (None, None)
    );
}

#[test]
fn a_changed_variable_template_or_input_is_applied_again_and_awaited() {
    type Change = fn(&mut World);
    let rows: &[Change] = &[
        |w| drop(w.apply.spec.variables.insert("region".into(), "us-east-1".into())),
        |w| w.template.as_mut().unwrap().template.spec.for_provider.module = "output \"b\" { value = 2 }".into(),
        |w| w.inputs.get_mut(&token()).unwrap().version = "uid/9".into(),
    ];
    for change in rows {
        let mut world = World::ready();
        let before = world.status().last_applied_revision.clone();
        change(&mut world);
        assert!(matches!(world.plan().step, Step::Change { exact: true, .. }));
        world.settle();
        assert_eq!(
            world.said("Ready"),
            "False/Applying",
            "the old generation's readiness does not count"
        );
        world.provider_says("True", "True", "");
        world.settle();
        assert_eq!(world.said("Ready"), "True/Available");
        assert_ne!(world.status().last_applied_revision, before);
    }
}

#[test]
fn defaults_of_the_server_are_left_alone_and_drift_is_not() {
    let mut world = World::ready();
    world.workspace.as_mut().unwrap().spec["forProvider"]["entrypoint"] = json!("");
    assert!(
        matches!(world.plan().step, Step::Report),
        "a default that the server filled in"
    );
    world.workspace.as_mut().unwrap().spec["forProvider"]["vars"][0]["value"] = json!("elsewhere");
    assert!(
        matches!(world.plan().step, Step::Change { exact: false, .. }),
        "somebody changed what was rendered"
    );
}

#[test]
fn a_missing_template_or_secret_does_not_stop_the_reports_of_a_running_workspace() {
    let mut world = World::ready();
    world.template = None;
    world.missing_secrets = vec!["Secret team/a does not exist".into()];
    world.settle();
    assert_eq!(
        (world.said("Ready").as_str(), world.said("Waiting").as_str()),
        ("True/Available", "True/WaitingForTemplate")
    );
    world.provider_says("False", "True", "boom");
    world.settle();
    assert_eq!(world.said("Ready"), "False/TerraformFailed");
    world.provider_says("True", "True", "");
    world.apply.metadata.generation = Some(2);
    world.settle();
    assert_eq!(
        world.status().observed_generation,
        Some(1),
        "the new spec was not rendered, so nothing is said about it"
    );
    assert!(!world.apply.is_ready());
}

#[test]
fn somebody_elses_workspace_is_shown_and_not_touched() {
    let mut world = World::new();
    let mut foreign = Workspace::new(
        &workspace_name(),
        &WorkspaceKind::ClusterScoped.api_resource(),
        json!({}),
    );
    foreign.metadata.uid = Some("foreign".into());
    world.workspace = Some(foreign);
    world.settle();
    assert_eq!(world.said("Ready"), "False/OwnershipConflict");
    assert!(
        !world
            .apply
            .finalizers()
            .iter()
            .any(|finalizer| FINALIZERS.contains(&finalizer.as_str()))
    );
    let mut other_team = World::ready();
    other_team
        .workspace
        .as_mut()
        .unwrap()
        .annotations_mut()
        .insert(annotation::WTA_NAMESPACE.into(), "other".into());
    other_team.settle();
    assert_eq!(other_team.said("Ready"), "False/OwnershipConflict");
}

#[test]
fn a_pause_writes_nothing_but_itself() {
    for (deleting, said) in [(false, "False/NotDeleting"), (true, "True/Paused")] {
        let mut world = World::ready();
        let ready = world.said("Ready");
        world.apply.spec.variables.insert("region".into(), "us-east-1".into());
        world.cluster = ClusterSeen::Present { paused: true };
        if deleting {
            world = world.deleting();
        }
        let plan = world.plan();
        assert!(matches!(plan.step, Step::Report));
        world.perform(plan);
        assert_eq!(world.said("Paused"), "True/Paused");
        assert_eq!((world.said("Ready"), world.said("Deleting").as_str()), (ready, said));
        world.cluster = ClusterSeen::Present { paused: false };
        assert!(
            !matches!(world.plan().step, Step::Report),
            "the change that came meanwhile is not lost"
        );
    }
}

#[test]
fn an_apply_that_is_moved_away_is_left_alone() {
    let mut world = World::ready().deleting();
    world
        .apply
        .annotations_mut()
        .insert(annotation::DELETE_FOR_MOVE.into(), String::new());
    let plan = world.plan();
    assert!(matches!(plan.step, Step::Report) && plan.status.is_none());
}

#[test]
fn a_move_that_waits_is_told_why_and_let_through_when_the_backend_is_declared_as_shared() {
    let mut world = World::ready();
    world.cluster = ClusterSeen::Present { paused: true };
    world.settle();
    assert_eq!(world.said("Paused"), "True/Paused");
    for words in [
        "clusterctl move would not go on",
        "label WorkspaceTemplate template with infrastructure.cluster.x-k8s.io/shared-backend=true",
        "--shared-terraform-backend",
    ] {
        let said = world.message("Paused");
        assert!(said.contains(words), "{said}");
    }
    let before = world.workspace.clone();

    world.settings.shared_backend = true;
    let plan = world.plan();
    assert!(matches!(plan.step, Step::AllowMove), "{plan:?}");
    world.perform(plan);
    world.settle();
    assert_eq!(world.said("Paused"), "True/Paused");
    assert_eq!(world.message("Paused"), "the Cluster is paused");
    assert!(!world.apply.annotations().contains_key(annotation::BLOCK_MOVE));
    let spec = |workspace: &Option<capt_api::Workspace>| workspace.as_ref().unwrap().spec.clone();
    assert_eq!(spec(&world.workspace), spec(&before));
}

#[test]
fn what_another_management_cluster_would_not_find_is_not_moved() {
    let movable = |world: &World| !world.apply.annotations().contains_key(annotation::BLOCK_MOVE);
    let shared = |mut world: World| {
        world.settings.shared_backend = true;
        world.settle();
        world
    };
    assert!(movable(&shared(World::ready())));

    let mut own_state = World::ready();
    let annotations = own_state.workspace.as_mut().unwrap().annotations_mut();
    annotations.insert(annotation::EXTERNAL_NAME.into(), "state-of-its-own".into());
    // As an earlier version left it, which did not write the key down.
    own_state.apply.status.as_mut().unwrap().terraform_workspace = None;
    let mut own_state = shared(own_state);
    assert!(!movable(&own_state));
    own_state.cluster = ClusterSeen::Present { paused: true };
    own_state.settle();
    let said = own_state.message("Paused");
    assert!(
        said.contains("the other management cluster would not find it"),
        "{said}"
    );

    // As the Go version left it: the name stands in the status, which is not moved.
    let mut inherited = World::new();
    inherited.apply.status.get_or_insert_default().workspace_name = Some("vpc-workspace".into());
    assert!(!movable(&shared(inherited)));
}

#[test]
fn a_workspace_is_led_back_to_its_own_terraform_state() {
    let stray = |world: &mut World, key: &str| {
        let annotations = world.workspace.as_mut().unwrap().annotations_mut();
        annotations.insert(annotation::EXTERNAL_NAME.into(), key.into());
    };
    let key = |world: &World| world.workspace.as_ref().unwrap().annotations()[annotation::EXTERNAL_NAME].clone();
    let mut living = World::ready();
    assert_eq!(living.status().terraform_workspace, Some(workspace_name()));
    let before = living.workspace.clone();
    stray(&mut living, "another-tenants");
    living.settle();
    assert_eq!(key(&living), workspace_name());
    assert_eq!(living.workspace.as_ref().unwrap().spec, before.unwrap().spec);

    // Terraform would find nothing to destroy there, and what it made would stay for ever.
    for already_deleted in [false, true] {
        let mut going = World::ready().deleting();
        if already_deleted {
            going.settle();
        }
        stray(&mut going, "another-tenants");
        going.settle();
        assert_eq!((key(&going), going.deletes), (workspace_name(), 1), "{already_deleted}");
    }

    // What was taken over keeps its own key, and so does the Workspace that is made in its place.
    let mut inherited = World::ready();
    stray(&mut inherited, "of-old");
    inherited.apply.status.as_mut().unwrap().terraform_workspace = None;
    inherited.settle();
    assert_eq!(
        (key(&inherited), inherited.status().terraform_workspace.as_deref()),
        ("of-old".into(), Some("of-old"))
    );
    inherited.workspace = None;
    inherited.settle();
    assert_eq!(key(&inherited), "of-old");
}

#[test]
fn the_provider_is_asked_once_to_look_again_at_what_it_found() {
    let mut world = World::new();
    world.settle();
    world.provider_says("True", "-", "");
    let status = world.workspace.as_mut().unwrap().status.as_mut().unwrap();
    status.conditions.retain(|condition| condition.type_ != "Ready");
    let plan = world.plan();
    assert!(matches!(plan.step, Step::LookAgain), "{plan:?}");
    world.perform(plan);
    world.settle();
    assert_eq!(world.said("Ready"), "False/Applying", "it has not answered yet");
    world.provider_says("True", "True", "");
    world.settle();
    assert_eq!(world.said("Ready"), "True/Available");
    assert_eq!(world.creates, 1);
}

#[test]
fn an_interrupted_create_waits_for_the_operator() {
    let mut world = World::new();
    world.settle();
    let begun = "2026-01-01T00:00:00Z";
    world
        .workspace
        .as_mut()
        .unwrap()
        .annotations_mut()
        .insert(annotation::EXTERNAL_CREATE_PENDING.into(), begun.into());
    world.settle();
    assert_eq!(
        world.said("Ready"),
        "False/Applying",
        "a healthy create looks like this"
    );
    world.provider_says(
        "False",
        "False",
        "cannot determine creation result - remove the annotation",
    );
    world.settle();
    assert_eq!(world.said("Ready"), "False/CreateInterrupted");
    assert!(
        world.message("Ready").contains("resume-create"),
        "{}",
        world.message("Ready")
    );
    world
        .apply
        .annotations_mut()
        .insert(annotation::RESUME_CREATE.into(), "another".into());
    assert!(
        matches!(world.plan().step, Step::Report),
        "the annotation names another Workspace"
    );
    world
        .apply
        .annotations_mut()
        .insert(annotation::RESUME_CREATE.into(), workspace_name());
    assert!(matches!(&world.plan().step, Step::Resume { begun: at, .. } if at == begun));
}

/// The provider says nothing while it creates: what stands there is its verdict on the create before.
#[test]
fn a_resumed_create_is_at_work_until_it_is_interrupted_itself() {
    let (first, second) = ("2026-01-01T00:00:00Z", "2026-01-01T00:10:00Z");
    let mut world = World::new();
    world.settle();
    let begin = |world: &mut World, at: &str| {
        let annotations = world.workspace.as_mut().unwrap().annotations_mut();
        annotations.insert(annotation::EXTERNAL_CREATE_PENDING.into(), at.into());
    };
    let order = |world: &mut World| {
        let order = (annotation::RESUME_CREATE.to_owned(), workspace_name());
        world.apply.annotations_mut().extend([order]);
    };
    begin(&mut world, first);
    world.provider_says("False", "False", "cannot determine creation result");
    world.settle();
    let revision = world.status().last_failed_revision.clone();
    assert_eq!(world.said("Ready"), "False/CreateInterrupted");

    order(&mut world);
    world.settle();
    assert_eq!(world.said("Ready"), "False/Applying", "the provider has not begun yet");
    begin(&mut world, second);
    world.settle();
    assert_eq!(world.said("Ready"), "False/Applying", "the provider creates");
    let resumed = world.workspace.clone().unwrap();
    assert_eq!(resumed.annotations()[annotation::RESUMED], first);
    assert_eq!(
        revision_of(&resumed.spec).unwrap(),
        resumed.annotations()[annotation::REVISION]
    );

    world.provider_says("False", "False", "cannot determine creation result");
    world.settle();
    assert_eq!(world.said("Ready"), "False/CreateInterrupted", "it was stopped again");
    assert_ne!(world.status().last_failed_revision, revision);

    order(&mut world);
    world.settle();
    world.provider_says("True", "True", "");
    world.settle();
    assert_eq!(world.said("Ready"), "True/Available");
    let generation = world.workspace.as_ref().unwrap().metadata.generation;
    world.settle();
    assert_eq!(generation, Some(3), "one write for each order, and none besides");
    assert_eq!(world.workspace.as_ref().unwrap().metadata.generation, generation);
}

/// Nobody would ever destroy it, and nobody would be told why.
#[test]
fn a_workspace_that_is_paused_at_the_provider_stops_its_deletion_aloud() {
    let mut world = World::ready().deleting();
    world.settle();
    world.provider_is_paused();
    let plan = world.plan();
    world.perform(plan);
    assert_eq!(world.said("Deleting"), "True/WorkspacePaused", "at once");
    assert!(
        world.message("Deleting").contains(annotation::CROSSPLANE_PAUSED),
        "{}",
        world.message("Deleting")
    );
    world.provider_says("True", "False", "");
    world.settle();
    assert_eq!(world.said("Deleting"), "True/WaitingForWorkspace");
}

#[test]
fn a_policy_that_refuses_is_named_as_such() {
    let denied = || Failure::Denied {
        verb: Verb::Create,
        object: ObjectRef::new("Workspace", None, "w"),
        message: "no Workspaces on Fridays".into(),
    };
    let mut world = World::new();
    world.apply.status = Some(refused(&world.observe(), &denied(), world.now));
    assert_eq!(world.said("Ready"), "False/AdmissionDenied");
    assert_eq!(world.said("Synced"), "False/AdmissionDenied");
    assert!(world.message("Ready").contains("no Workspaces on Fridays"));

    let mut world = World::ready().deleting();
    world.apply.status = Some(refused(&world.observe(), &denied(), world.now));
    assert_eq!(world.said("Deleting"), "True/AdmissionDenied");
}

#[test]
fn a_resumed_create_that_is_being_deleted_keeps_its_spec() {
    let mut world = World::new();
    world.settle();
    world.provider_says("False", "False", "cannot determine creation result");
    let pending = (
        annotation::EXTERNAL_CREATE_PENDING.to_owned(),
        "2026-01-01T00:00:00Z".to_owned(),
    );
    world.workspace.as_mut().unwrap().annotations_mut().extend([pending]);
    world.template = None;
    let mut world = world.deleting();
    world.settle();
    assert_eq!(world.said("Deleting"), "True/CreateInterrupted");
    let order = (annotation::RESUME_CREATE.to_owned(), workspace_name());
    world.apply.annotations_mut().extend([order]);
    assert!(matches!(world.plan().step, Step::Resume { wish: None, .. }));
    world.settle();
    assert_eq!(world.said("Deleting"), "True/WaitingForWorkspace");
}

#[test]
fn deletion_waits_for_the_holds_then_for_terraform() {
    let mut world = World::ready().deleting();
    world.apply.finalizers_mut().push(HOLDS[0].into());
    world.apply.spec.variables.insert("region".into(), "us-east-1".into());
    world.settle();
    assert_eq!(
        (world.said("Deleting").as_str(), world.said("Ready").as_str()),
        ("True/Held", "True/Available")
    );
    assert_eq!(
        (world.deletes, world.creates),
        (0, 1),
        "held: frozen, nothing rendered, nothing destroyed"
    );

    world
        .apply
        .finalizers_mut()
        .retain(|finalizer| !HOLDS.contains(&finalizer.as_str()));
    world.settle();
    assert_eq!(world.deletes, 1);
    assert_eq!(
        (world.said("Deleting").as_str(), world.said("Ready").as_str()),
        ("True/WaitingForWorkspace", "False/Deleting")
    );
    world.provider_says("False", "False", "delete failed: cannot destroy: subnet in use");
    world.settle();
    assert_eq!(world.said("Deleting"), "True/DestroyFailed");
    assert!(world.message("Deleting").contains("subnet in use"));
    assert!(
        world
            .apply
            .finalizers()
            .iter()
            .any(|finalizer| finalizer == FINALIZERS[0])
    );

    world.workspace = None;
    assert!(matches!(world.plan().step, Step::ReleaseWhenGone));
    world.settle();
    assert!(world.apply.finalizers().is_empty());
}

#[test]
fn finalizers_of_others_that_keep_a_workspace_are_named() {
    let deleting = |finalizers: &[&str]| {
        let mut world = World::ready().deleting();
        let finalizers = finalizers.iter().map(ToString::to_string).collect();
        world.workspace.as_mut().unwrap().metadata.finalizers = Some(finalizers);
        world.settle();
        world
    };
    let provider = "finalizer.managedresource.crossplane.io";
    for plain in [&[provider][..], &[provider, "foregroundDeletion"]] {
        assert_eq!(
            deleting(plain).said("Deleting"),
            "True/WaitingForWorkspace",
            "{plain:?}"
        );
    }
    for (finalizers, words) in [
        (
            &[provider, "example.com/backup"][..],
            "destroys nothing while Workspace",
        ),
        (&["example.com/backup"], "has nothing left to do for Workspace"),
    ] {
        let mut world = deleting(finalizers);
        assert_eq!(world.said("Deleting"), "True/ForeignFinalizer", "{finalizers:?}");
        let message = world.message("Deleting");
        assert!(
            message.contains(words) && message.contains("of others: example.com/backup;"),
            "{message}"
        );
        // The same of one that was deleted by hand.
        let mut alive = world.clone();
        alive.apply.metadata.deletion_timestamp = None;
        alive.settle();
        assert_eq!(alive.said("Waiting"), "True/WaitingForOldWorkspace");
        let message = alive.message("Waiting");
        assert!(
            message.contains(words) && message.contains("of others: example.com/backup;"),
            "{message}"
        );

        // What stopped the destroy is what counts, until there is nothing left to destroy.
        world.provider_says("False", "False", "delete failed: cannot destroy: subnet in use");
        world.settle();
        let expected = if finalizers.contains(&provider) {
            "DestroyFailed"
        } else {
            "ForeignFinalizer"
        };
        assert_eq!(world.said("Deleting"), format!("True/{expected}"));
    }
}

#[test]
fn a_destroy_that_its_configuration_prevents_gets_the_corrected_one() {
    let invalid = "observe failed: cannot diff (i.e. plan) Terraform configuration: Error: Invalid value for variable";
    let missing = "connect failed: cannot get provider config: clusterproviderconfigs \"typo\" not found";
    for prevented in [invalid, missing] {
        let mut world = World::ready().deleting();
        world.settle();
        let applied = world.workspace.as_ref().unwrap().spec.clone();
        let spec = |world: &World| world.workspace.as_ref().unwrap().spec.clone();

        world.apply.spec.variables.insert("region".into(), "us-east-1".into());
        world.settle();
        assert_eq!(spec(&world), applied, "a destroy that is under way is left alone");
        world.provider_says("False", "False", "delete failed: cannot destroy: subnet in use");
        world.settle();
        assert_eq!(spec(&world), applied, "so is one that the cloud refuses");

        world.provider_says("False", "False", prevented);
        world.settle();
        assert_ne!(spec(&world), applied, "{prevented}");
        assert_eq!((world.creates, world.deletes), (1, 1), "{prevented}");
    }
}

#[test]
fn retaining_and_abandoning_leave_the_workspace_where_nothing_destroys_it() {
    type Change = fn(&mut World);
    let rows: &[Change] = &[
        |w| w.apply.spec.retain_workspace_on_delete = Some(true),
        |w| {
            drop(
                w.apply
                    .annotations_mut()
                    .insert(annotation::ABANDON_WORKSPACE.into(), workspace_name()),
            )
        },
    ];
    for (change, kind) in rows
        .iter()
        .flat_map(|change| WorkspaceKind::ALL.map(|kind| (change, kind)))
    {
        let mut world = World::ready_as(kind);
        change(&mut world);
        world = world.deleting();
        assert!(matches!(world.plan().step, Step::LetGo { .. }));
        world.settle();
        assert!(world.apply.finalizers().is_empty());
        assert_eq!(world.deletes, 0);
        let workspace = world.workspace.as_ref().unwrap();
        assert!(is_let_go(workspace, kind));
        assert!(!is_held(workspace), "its namespace can go");

        // A new apply of the same name takes it up again.
        let mut again = World {
            workspace: world.workspace.clone(),
            kind,
            ..World::new()
        };
        again.settle();
        assert_eq!(again.creates, 0);
        let workspace = again.workspace.as_ref().unwrap();
        assert_eq!(workspace.spec["managementPolicies"], json!(["*"]));
        assert_eq!(is_held(workspace), kind == WorkspaceKind::Namespaced);
    }
}

#[test]
fn a_namespaced_workspace_is_held_until_the_turn_of_its_apply() {
    let mut world = World::ready_as(WorkspaceKind::Namespaced).deleting();
    assert!(is_held(world.workspace.as_ref().unwrap()), "from the beginning");
    world.apply.finalizers_mut().push(HOLDS[0].into());
    world.workspace.as_mut().unwrap().metadata.deletion_timestamp = Some(Time(world.now));
    world.settle();
    assert_eq!(world.said("Deleting"), "True/Held");
    assert!(is_held(world.workspace.as_ref().unwrap()));

    // However long it was held, Terraform has all of its time.
    world.now += world.settings.deletion_timeout;
    world.apply.finalizers_mut().retain(|present| present != HOLDS[0]);
    assert!(matches!(world.plan().step, Step::Unhold));
    world.perform(world.plan());
    let deadline = world.now + world.settings.deletion_timeout;
    world.settle();
    assert!(!is_held(world.workspace.as_ref().unwrap()));
    assert_eq!(world.said("Deleting"), "True/WaitingForWorkspace");
    assert_eq!(world.plan().wake, Wake::At(deadline));
    assert_eq!(world.deletes, 0, "it was deleted already");

    // Nobody else deletes it: then the hold goes first, because the provider does not hear of finalizers.
    let mut world = World::ready_as(WorkspaceKind::Namespaced).deleting();
    assert!(matches!(world.plan().step, Step::Unhold));
    world.perform(world.plan());
    assert!(matches!(world.plan().step, Step::Delete));
}

#[test]
fn a_namespaced_workspace_that_is_deleted_alone_is_kept_and_can_be_replaced() {
    let mut world = World::ready_as(WorkspaceKind::Namespaced);
    world.workspace.as_mut().unwrap().metadata.deletion_timestamp = Some(Time(world.now));
    world.now += SETTLE;
    world.settle();
    assert_eq!(world.said("Waiting"), "True/WaitingForOldWorkspace");
    assert!(world.message("Waiting").contains("Remove its finalizers"));
    assert!(is_held(world.workspace.as_ref().unwrap()));

    world.workspace = None;
    world.settle();
    world.provider_says("True", "True", "");
    world.settle();
    assert_eq!((world.said("Ready").as_str(), world.creates), ("True/Available", 2));
}

#[test]
fn a_destroy_that_nobody_asked_for_tells_its_error() {
    let mut world = World::ready();
    world.workspace.as_mut().unwrap().metadata.deletion_timestamp = Some(Time(world.now));
    world.now += SETTLE;
    world.provider_says("False", "False", "the network is in use (request 1)");
    world.settle();
    assert_eq!(world.said("Waiting"), "True/WaitingForOldWorkspace");
    assert!(world.message("Waiting").contains("the network is in use"));
    assert!(world.message("Ready").contains("the network is in use"));
    assert!(world.status().last_failure_message.is_some());
    let before = world.apply.clone();
    world.provider_says("False", "False", "the network is in use (request 2)");
    world.settle();
    assert_eq!(world.apply, before, "the same error again is no news");
}

#[test]
fn only_what_others_delete_with_its_namespace_is_held() {
    let world = World::ready();
    assert_eq!(world.workspace.as_ref().unwrap().finalizers(), &[] as &[String]);
    // One that was made before there was a hold, or was let go, gets it.
    let mut older = World::ready_as(WorkspaceKind::Namespaced);
    older.workspace.as_mut().unwrap().metadata.finalizers = None;
    assert!(matches!(older.plan().step, Step::Hold));
    older.settle();
    assert!(is_held(older.workspace.as_ref().unwrap()));
}

#[test]
fn an_apply_that_never_made_anything_goes_at_once() {
    let mut world = World::new().deleting();
    world.settle();
    assert!(
        world.apply.status.is_none(),
        "without our finalizer there is nothing to do or to say"
    );
    let mut conflicting = World::new();
    conflicting.perform(conflicting.plan());
    let foreign = Workspace::new(
        &workspace_name(),
        &WorkspaceKind::ClusterScoped.api_resource(),
        json!({}),
    );
    conflicting.workspace = Some(foreign);
    let mut conflicting = conflicting.deleting();
    conflicting.settle();
    assert!(conflicting.apply.finalizers().is_empty());
    assert!(
        conflicting.workspace.is_some() && conflicting.deletes == 0,
        "the other one's Workspace stays"
    );
}

#[test]
fn large_outputs_are_left_out_and_named() {
    let mut world = World::ready();
    world.provider_outputs(json!({"big": "x".repeat(MAX_OUTPUT + 1), "vpc_id": "vpc-1"}));
    world.settle();
    assert_eq!(world.status().outputs.keys().collect::<Vec<_>>(), ["vpc_id"]);
    assert!(
        world.message("Ready").ends_with("left out of status.outputs: big"),
        "{}",
        world.message("Ready")
    );
}

#[test]
fn of_too_many_outputs_those_that_capt_reads_are_kept() {
    let mut world = World::ready();
    let mut outputs: Value = (0..70)
        .map(|n| (format!("a{n:02}"), json!("x")))
        .collect::<serde_json::Map<_, _>>()
        .into();
    for (name, value) in [
        ("vpc_id", json!("vpc-1")),
        ("azs", json!(["a"])),
        ("cluster_endpoint", json!("https://e")),
    ] {
        outputs[name] = value;
    }
    world.provider_outputs(outputs);
    world.settle();
    let kept = &world.status().outputs;
    assert_eq!(kept.len(), 64);
    for name in ["vpc_id", "azs", "cluster_endpoint", "a60"] {
        assert!(kept.contains_key(name), "{name}");
    }
    let message = world.message("Ready");
    assert!(
        message.ends_with("left out of status.outputs: a61, a62, a63, a64, a65, a66, a67, a68, a69"),
        "{message}"
    );
}

#[test]
fn fields_that_the_server_drops_do_not_silence_the_reports() {
    let mut world = World::ready();
    let parameters = &mut world.template.as_mut().unwrap().template.spec.for_provider;
    parameters.unknown.insert("brandNew".into(), json!(true));
    world.settle();
    world.provider_says("True", "True", "");
    // The server keeps the revision and drops the field, so the same change is planned for ever.
    world.workspace.as_mut().unwrap().spec["forProvider"]
        .as_object_mut()
        .unwrap()
        .remove("brandNew");
    let mut seen = world.observe();
    assert!(matches!(plan(&seen, at(1)).step, Step::Change { .. }));
    seen.dropped = true;
    let status = plan(&seen, at(1)).status.unwrap();
    let ready = conditions::find(&status.conditions, "Ready").unwrap();
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("True", "Available"));
    assert!(ready.message.contains("drops fields"), "{}", ready.message);
}

#[test]
fn an_error_that_differs_in_its_ids_alone_is_not_written_again() {
    let mut world = World::ready();
    world.provider_says("False", "True", "observe failed: throttled, RequestID: 7f3a-1");
    world.settle();
    let said = world.status().clone();
    world.provider_says("False", "True", "observe failed: throttled, RequestID: 99bc-2");
    world.settle();
    assert_eq!(*world.status(), said);
    world.provider_says("False", "True", "observe failed: access denied, RequestID: 99bc-2");
    world.settle();
    assert!(world.message("Ready").contains("access denied"));
}

#[test]
fn the_flag_resumes_once_and_no_more() {
    let mut world = World::new();
    world.settings.resume_interrupted_creates = true;
    world.settle();
    let pending = (
        annotation::EXTERNAL_CREATE_PENDING.to_owned(),
        "2026-01-01T00:00:00Z".to_owned(),
    );
    let interrupt = |world: &mut World| {
        world
            .workspace
            .as_mut()
            .unwrap()
            .annotations_mut()
            .extend([pending.clone()]);
        world.provider_says("False", "False", "cannot determine creation result");
    };
    interrupt(&mut world);
    assert!(matches!(world.plan().step, Step::Resume { .. }));
    world.perform(world.plan());
    interrupt(&mut world);
    assert!(
        matches!(world.plan().step, Step::Report),
        "a second interruption needs a person"
    );
}

#[test]
fn a_recorded_name_that_is_not_ours_is_refused() {
    let mut world = World::new();
    world
        .apply
        .annotations_mut()
        .insert(annotation::WORKSPACE_NAME.into(), "platform-net".into());
    world.workspace = Some(Workspace::new(
        "platform-net",
        &WorkspaceKind::ClusterScoped.api_resource(),
        json!({}),
    ));
    world.settle();
    assert_eq!(world.said("Ready"), "False/OwnershipConflict");
    world.workspace = None;
    world.settle();
    assert_eq!(
        (world.said("Ready").as_str(), world.creates),
        ("False/OwnershipConflict", 0)
    );
    assert!(
        world.message("Ready").contains("remove the annotation"),
        "{}",
        world.message("Ready")
    );
    let mut odd = World::new();
    odd.apply
        .annotations_mut()
        .insert(annotation::WORKSPACE_KIND.into(), "nonsense/v1".into());
    odd.settle();
    assert!(odd.message("Ready").contains("no kind of Workspace") && odd.creates == 0);
}

#[test]
fn inputs_stay_listed_until_the_workspace_no_longer_reads_them() {
    let mut world = World::ready();
    world.template.as_mut().unwrap().template.spec.for_provider.env = None;
    assert!(
        matches!(world.plan().step, Step::Change { .. }),
        "still listed while the old spec stands"
    );
    world.settle();
    assert!(!world.apply.annotations().contains_key(annotation::WORKSPACE_INPUTS));
}

/// Every pass is planned twice: from the world as it is, and from the world as it was one write ago, which is what a cache
/// that is late shows. Nothing is made or deleted twice, and the end is the same.
#[test]
fn a_late_cache_and_a_crash_after_any_write_lead_to_the_same_end() {
    for (stale, kind) in [false, true]
        .into_iter()
        .flat_map(|stale| WorkspaceKind::ALL.map(|kind| (stale, kind)))
    {
        let mut world = World { kind, ..World::new() };
        let mut before = world.clone();
        let mut pass = |world: &mut World| {
            let seen = world.clone();
            if stale {
                let late = before.plan();
                // A write to the apply that was planned from an older version loses its race.
                if !matches!(late.step, Step::Report | Step::Change { .. }) {
                    world.perform(late);
                }
            }
            let plan = world.plan();
            world.perform(plan);
            before = seen;
        };
        for _ in 0..10 {
            pass(&mut world);
        }
        world.provider_says("True", "True", "");
        for _ in 0..5 {
            pass(&mut world);
        }
        assert_eq!(
            (world.said("Ready").as_str(), world.creates),
            ("True/Available", 1),
            "stale: {stale}, {kind}"
        );
        world = world.deleting();
        for _ in 0..5 {
            pass(&mut world);
        }
        assert_eq!(world.deletes, 1, "stale: {stale}, {kind}");
        world.workspace = None;
        for _ in 0..3 {
            pass(&mut world);
        }
        assert!(world.apply.finalizers().is_empty(), "stale: {stale}, {kind}");
        assert_eq!((world.creates, world.deletes), (1, 1), "stale: {stale}, {kind}");
    }
}

#[test]
fn every_report_is_complete_and_planning_again_changes_nothing() {
    let mut worlds = [World::ready(), World::ready().deleting(), World::new()];
    worlds.iter_mut().for_each(World::settle);
    for world in worlds.iter().filter(|world| world.apply.status.is_some()) {
        let types: Vec<_> = world
            .status()
            .conditions
            .iter()
            .map(|condition| condition.type_.as_str())
            .collect();
        assert_eq!(types, ["Synced", "Ready", "Waiting", "Deleting", "Paused"]);
        let again = plan(&world.observe(), world.now + SignedDuration::from_mins(20));
        assert_eq!(again.status.as_ref(), Some(world.status()));
    }
}

/// A stage that may be over in a moment is told when it lasts, and not before.
#[test]
fn what_usually_passes_is_told_when_it_lasts() {
    type Change = fn(&mut World);
    let rows: &[(&str, Change, &str, &str)] = &[
        (
            "no Cluster yet",
            |w| w.cluster = ClusterSeen::Absent("demo".into()),
            "Waiting",
            "True/WaitingForCluster",
        ),
        (
            "no template yet",
            |w| w.template = None,
            "Waiting",
            "True/WaitingForTemplate",
        ),
        ("no input yet", |w| w.inputs.clear(), "Waiting", "True/WaitingForInputs"),
        (
            "the provider has not looked yet",
            |_| {},
            "Ready",
            "False/WaitingForProvider",
        ),
        (
            "held",
            |w| {
                *w = World::ready().deleting();
                w.apply.finalizers_mut().push(HOLDS[0].into());
            },
            "Deleting",
            "True/Held",
        ),
        (
            "Terraform destroys",
            |w| *w = World::ready().deleting(),
            "Deleting",
            "True/WaitingForWorkspace",
        ),
    ];
    for (case, change, type_, said) in rows {
        let mut world = World::new();
        world.apply.metadata.creation_timestamp = Some(Time(world.now));
        change(&mut world);
        let began = world.now;
        let before = world.apply.status.clone();
        for _ in 0..6 {
            world.perform(world.plan());
        }
        let young = world.plan();
        assert_eq!(world.apply.status, before, "{case}: told too soon");
        assert_eq!(young.wake, Wake::At(began + SETTLE), "{case}");
        world.now = began + SETTLE;
        world.perform(world.plan());
        assert_eq!(world.said(type_), *said, "{case}");
    }
}

/// Silence is for what passes. A failure is told at once, and so is its end.
#[test]
fn silence_hides_no_failure_and_keeps_none_that_is_over() {
    let mut young = World::new();
    young.apply.metadata.creation_timestamp = Some(Time(young.now));
    young.apply.spec.variables.clear();
    young.perform(young.plan());
    assert_eq!(young.said("Ready"), "False/UnresolvedVariable");

    // Mended at once: a Workspace is made that the provider has not looked at yet, and the failure goes.
    young.apply.spec.variables.insert("region".into(), "eu-west-1".into());
    for _ in 0..4 {
        young.perform(young.plan());
    }
    assert_eq!(young.said("Ready"), "False/WaitingForProvider");

    let mut failing = World::new();
    for _ in 0..4 {
        failing.perform(failing.plan());
    }
    failing.provider_says("False", "False", "create failed: no");
    failing.perform(failing.plan());
    assert_eq!(failing.said("Ready"), "False/TerraformFailed");

    let mut paused = World::new();
    paused.apply.metadata.creation_timestamp = Some(Time(paused.now));
    paused.template = None;
    paused.cluster = ClusterSeen::Present { paused: true };
    paused.perform(paused.plan());
    paused.cluster = ClusterSeen::Present { paused: false };
    paused.perform(paused.plan());
    assert_eq!(paused.said("Paused"), "False/NotPaused");
}

/// Two clocks that differ must not silence anything for as long as they differ.
#[test]
fn a_time_from_another_clock_silences_nothing() {
    let mut world = World::new();
    world.template = None;
    world.apply.metadata.creation_timestamp = Some(Time(world.now + SignedDuration::from_hours(1)));
    assert!(world.plan().status.is_some());
    world.apply.metadata.creation_timestamp = Some(Time(world.now + SignedDuration::from_secs(1)));
    assert!(world.plan().status.is_none());
}

/// The writes of an ordinary life on the apply and its Workspace.
#[test]
fn an_ordinary_life_says_little() {
    let mut world = World::new();
    world.template.as_mut().unwrap().template.spec.for_provider.env = None;
    world.apply.metadata.creation_timestamp = Some(Time(world.now));
    let mut writes = Vec::new();
    let mut work = |world: &mut World| {
        for _ in 0..5 {
            let plan = world.plan();
            let told = plan
                .status
                .as_ref()
                .filter(|status| Some(*status) != world.apply.status.as_ref());
            match (&plan.step, told) {
                (Step::Report, None) => {}
                (Step::Report, Some(_)) => writes.push("status"),
                (Step::Identify(_), _) => writes.push("identify"),
                (Step::Create(_), _) => writes.push("create"),
                (Step::Delete, _) => writes.push("delete"),
                (Step::ReleaseWhenGone, _) if world.apply.finalizers().is_empty() => {}
                (Step::ReleaseWhenGone, _) => writes.push("release"),
                other => panic!("{other:?}"),
            }
            world.perform(plan);
        }
    };
    work(&mut world);
    let pending = (
        annotation::EXTERNAL_CREATE_PENDING.to_owned(),
        "2026-01-01T00:00:00Z".to_owned(),
    );
    world.workspace.as_mut().unwrap().annotations_mut().extend([pending]);
    work(&mut world);
    // The first apply is over, and the outputs are there before the plan that proves them.
    world.provider_says("True", "False", "");
    world.provider_outputs(json!({"vpc_id": "vpc-1"}));
    work(&mut world);
    world.provider_says("True", "True", "");
    work(&mut world);
    world = world.deleting();
    work(&mut world);
    world.now += SETTLE;
    work(&mut world);
    world.workspace = None;
    work(&mut world);
    assert_eq!(
        writes,
        ["identify", "create", "status", "status", "delete", "status", "release"]
    );
}

#[test]
fn a_deletion_that_takes_too_long_says_so_and_why_and_goes_on() {
    let mut world = World::ready().deleting();
    world.settle();
    let begun = world
        .workspace
        .as_ref()
        .unwrap()
        .metadata
        .deletion_timestamp
        .clone()
        .unwrap()
        .0;
    let deadline = begun + world.settings.deletion_timeout;
    assert_eq!(world.plan().wake, Wake::At(deadline));
    world.provider_says("False", "False", "delete failed: subnet in use");
    world.settle();
    assert_eq!(world.said("Deleting"), "True/DestroyFailed");
    assert!(
        world
            .status()
            .last_failure_message
            .as_ref()
            .unwrap()
            .contains("subnet in use")
    );

    world.now = deadline;
    world.settle();
    assert_eq!(world.said("Deleting"), "True/DeletionTimeout");
    let message = world.message("Deleting");
    assert!(
        message.contains("goes on") && message.contains("subnet in use"),
        "{message}"
    );
    assert_eq!(
        world.plan().wake,
        Wake::OnEvent,
        "the deadline is not looked at again and again"
    );

    world.provider_says("True", "False", "");
    world.settle();
    assert_eq!(
        (
            world.said("Deleting").as_str(),
            world.status().last_failure_message.as_ref()
        ),
        ("True/DeletionTimeout", None)
    );
    world.workspace = None;
    world.settle();
    assert!(world.apply.finalizers().is_empty());
}

/// The operator's order is not lost in a refusal: it is said what was to be done and why it could not.
#[test]
fn a_refused_step_of_a_deletion_is_told_in_the_words_of_what_was_tried() {
    let failure = Failure::Invalid {
        object: ObjectRef::new("Workspace", None, "w"),
        field: "spec".into(),
        message: "no".into(),
    };
    type Change = fn(&mut World);
    let rows: &[(Change, &str)] = &[
        (|_| {}, "WaitingForWorkspace"),
        (|w| w.apply.spec.retain_workspace_on_delete = Some(true), "Retaining"),
        (
            |w| {
                drop(
                    w.apply
                        .annotations_mut()
                        .insert(annotation::ABANDON_WORKSPACE.into(), workspace_name()),
                )
            },
            "Abandoning",
        ),
    ];
    for (change, reason) in rows {
        let mut world = World::ready();
        change(&mut world);
        let world = world.deleting();
        let status = refused(&world.observe(), &failure, world.now);
        let deleting = conditions::find(&status.conditions, "Deleting").unwrap();
        assert_eq!((deleting.status.as_str(), deleting.reason.as_str()), ("True", *reason));
        assert!(deleting.message.contains("no"), "{}", deleting.message);
    }
}

/// Each of Terraform's known ends has its own word, whether something is made or destroyed.
#[test]
fn known_ends_have_their_own_words() {
    for (text, word) in [
        (
            "failed to resolve provider config: cannot get provider config: ProviderConfig.tf.upbound.io \"x\" not found",
            "ProviderConfigMissing",
        ),
        (
            "cannot get credentials: cannot get credentials secret: Secret \"gone\" not found",
            "CredentialsMissing",
        ),
        (
            "VpcLimitExceeded: The maximum number of VPCs has been reached.",
            "QuotaExceeded",
        ),
        ("timeout while waiting for state to become 'ACTIVE'", "TerraformTimeout"),
        (
            "cannot get remote Terraform module: source path error: stat",
            "InvalidModule",
        ),
        ("Error acquiring the state lock", "StateLocked"),
    ] {
        let mut world = World::ready();
        world.provider_says("False", "True", text);
        world.settle();
        for type_ in ["Synced", "Ready"] {
            assert_eq!(world.said(type_), format!("False/{word}"));
            assert!(world.message(type_).contains(text), "{}", world.message(type_));
        }
        assert!(world.status().last_failure_message.as_ref().unwrap().contains(text));
        let mut world = world.deleting();
        world.settle();
        assert_eq!(world.said("Deleting"), format!("True/{word}"));
    }
}

#[test]
fn a_connection_secret_that_belongs_to_something_else_is_named() {
    let taken = [
        r#"cannot create or update connection secret: existing secret is not controlled by UID "0b9c""#,
        r#"cannot create or update connection secret: refusing to modify uncontrolled secret of type "Opaque""#,
    ];
    for (kind, reference) in [
        (
            WorkspaceKind::ClusterScoped,
            json!({"name": "outputs", "namespace": NAMESPACE}),
        ),
        (WorkspaceKind::Namespaced, json!({"name": "outputs"})),
    ] {
        for text in taken {
            let mut world = World::ready_as(kind);
            world
                .template
                .as_mut()
                .unwrap()
                .template
                .spec
                .write_connection_secret_to_ref = serde_json::from_value(json!({"name": "outputs"})).unwrap();
            world.settle();
            let workspace = world.workspace.as_ref().unwrap();
            assert_eq!(workspace.spec["writeConnectionSecretToRef"], reference);
            world.provider_says("False", "True", text);
            world.settle();
            assert_eq!(world.said("Ready"), "False/OwnershipConflict");
            let message = world.message("Ready");
            assert!(
                message.starts_with("Secret team/outputs, to which Workspace"),
                "{message}"
            );
            assert!(
                message.contains("spec.writeConnectionSecretToRef") && !message.contains("0b9c"),
                "{message}"
            );

            let mut world = world.deleting();
            world.settle();
            assert_eq!(
                world.said("Deleting"),
                "True/WaitingForWorkspace",
                "it is in nobody's way"
            );
        }
    }
}

/// What names another field or variable is another message, whatever digits it has in it.
#[test]
fn only_terraforms_words_are_kept_for_their_numbers() {
    let mut world = World::new();
    world.apply.spec.variables.clear();
    let vars = |name: &str| serde_json::from_value(json!([{"key": "az", "value": format!("${{{name}}}")}])).unwrap();
    world.template.as_mut().unwrap().template.spec.for_provider.vars = vars("az1");
    world.settle();
    world.template.as_mut().unwrap().template.spec.for_provider.vars = vars("az2");
    world.settle();
    assert!(
        world.message("Ready").contains("the variable az2"),
        "{}",
        world.message("Ready")
    );

    let mut world = World::ready();
    world.provider_says("False", "True", "observe failed: Error: bad on main.tf line 3");
    world.settle();
    world.apply.spec.variables.insert("region".into(), "us-east-1".into());
    world.settle();
    world.provider_says("False", "True", "observe failed: Error: bad on main.tf line 5");
    world.settle();
    assert!(
        world.message("Ready").contains("line 5"),
        "another revision fails in another place"
    );
}
