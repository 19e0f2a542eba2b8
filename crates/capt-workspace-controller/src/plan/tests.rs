//! A row per transition of an apply, and a whole life of one.

use super::*;
use crate::render::{self, Request};
use capt_api::workspace::{WorkspaceTemplateApplySpec, WorkspaceTemplateSpec};
use capt_api::{WorkspaceKind, names};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

const NAME: &str = "demo";
const NAMESPACE: &str = "team";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn workspace_name() -> String {
    names::workspace_name(NAMESPACE, NAME)
}

/// The little world in which an apply lives; every observation is made from it.
#[derive(Clone)]
struct World {
    apply: WorkspaceTemplateApply,
    cluster: ClusterSeen,
    template: Option<WorkspaceTemplateSpec>,
    inputs: BTreeMap<Input, InputSeen>,
    missing_secrets: Vec<String>,
    missing_workspaces: Vec<String>,
    workspace: Option<Workspace>,
    settings: Settings,
    creates: usize,
    deletes: usize,
}

fn token() -> Input {
    Input::Secret {
        namespace: NAMESPACE.into(),
        name: "token".into(),
    }
}

impl World {
    fn new() -> Self {
        let mut apply = WorkspaceTemplateApply::new(NAME, WorkspaceTemplateApplySpec::default());
        apply.metadata.namespace = Some(NAMESPACE.into());
        apply.metadata.uid = Some("apply-uid".into());
        apply.metadata.generation = Some(1);
        apply.spec.template_ref.name = "template".into();
        apply.spec.variables = [("region".to_owned(), "eu-west-1".to_owned())].into();
        let template = json!({"template": {"spec": {"forProvider": {
            "source": "Inline", "module": "output \"a\" { value = 1 }",
            "vars": [{"key": "region", "value": "${region}"}],
            "env": [{"name": "TOKEN", "secretKeyRef": {"name": "token", "key": "k"}}],
        }}}});
        let input = InputSeen {
            version: "uid/1".into(),
            protected: false,
            deleting: false,
        };
        Self {
            apply,
            cluster: ClusterSeen::Standalone,
            template: Some(serde_json::from_value(template).unwrap()),
            inputs: [(token(), input)].into(),
            missing_secrets: Vec::new(),
            missing_workspaces: Vec::new(),
            workspace: None,
            settings: Settings::default(),
            creates: 0,
            deletes: 0,
        }
    }

    fn observe(&self) -> Observed {
        let identity = Identity::of(&self.apply, WorkspaceKind::ClusterScoped);
        let rendered = self.template.as_ref().map(|template| {
            render::render(&Request {
                template,
                variables: &self.apply.spec.variables,
                connection_secret: None,
                namespace: NAMESPACE,
                workspace_name: &identity.name,
                kind: identity.kind,
                retain: self.apply.spec.retain_workspace_on_delete.unwrap_or_default(),
                allow_cross_namespace: false,
            })
        });
        let inputs = match &rendered {
            Some(Ok(rendered)) => rendered
                .inputs
                .iter()
                .map(|input| (input.clone(), self.inputs.get(input).cloned()))
                .collect(),
            _ => BTreeMap::new(),
        };
        Observed {
            apply: Arc::new(self.apply.clone()),
            cluster: self.cluster.clone(),
            identity,
            template: match &self.template {
                Some(_) => TemplateSeen::Present { shared_backend: false },
                None => TemplateSeen::Absent("team/template".into()),
            },
            rendered,
            inputs,
            missing_secrets: self.missing_secrets.clone(),
            missing_workspaces: self.missing_workspaces.clone(),
            workspace: match &self.workspace {
                Some(workspace) => WorkspaceSeen::Present(Arc::new(workspace.clone())),
                None => WorkspaceSeen::Absent,
            },
            dropped: false,
            settings: self.settings,
        }
    }

    fn plan(&self) -> Plan {
        plan(&self.observe(), at(1000))
    }

    /// What the API server would do; a step that was planned from an older world must not do harm.
    fn perform(&mut self, plan: Plan) {
        match plan.step {
            Step::Report => {
                if let Some(status) = plan.status {
                    self.apply.status = Some(status);
                }
            }
            Step::Identify(annotations) => {
                if self.apply.metadata.deletion_timestamp.is_some() {
                    return;
                }
                let present = self.apply.metadata.annotations.get_or_insert_default();
                for (key, value) in annotations {
                    match value {
                        Some(value) => present.insert(key, value),
                        None => present.remove(&key),
                    };
                }
                let finalizers = self.apply.metadata.finalizers.get_or_insert_default();
                if !finalizers.iter().any(|present| present == FINALIZERS[0]) {
                    finalizers.push(FINALIZERS[0].to_owned());
                }
            }
            Step::Protect(inputs) => {
                for input in inputs {
                    let state = self.inputs.get_mut(&input).unwrap();
                    *state = InputSeen {
                        version: "uid/2".into(),
                        protected: true,
                        deleting: false,
                    };
                }
            }
            Step::Create(workspace) => {
                if self.workspace.is_none() {
                    let mut workspace = *workspace;
                    workspace.metadata.generation = Some(1);
                    self.workspace = Some(workspace);
                    self.creates += 1;
                }
            }
            Step::Change {
                spec,
                labels,
                annotations,
                ..
            } => {
                let workspace = self.workspace.as_mut().unwrap();
                workspace.spec = spec;
                workspace.metadata.generation = workspace.metadata.generation.map(|generation| generation + 1);
                let (own_labels, own_annotations) = (labels, annotations);
                workspace
                    .labels_mut()
                    .extend(own_labels.into_iter().map(|(key, value)| (key.to_owned(), value)));
                workspace
                    .annotations_mut()
                    .extend(own_annotations.into_iter().map(|(key, value)| (key.to_owned(), value)));
            }
            Step::Resume(_) => drop(
                self.workspace
                    .as_mut()
                    .unwrap()
                    .annotations_mut()
                    .remove(annotation::EXTERNAL_CREATE_PENDING),
            ),
            Step::LetGo { .. } => {
                let workspace = self.workspace.as_mut().unwrap();
                workspace.spec = crate::workspace::let_go_spec(workspace, WorkspaceKind::ClusterScoped);
            }
            Step::Delete => {
                if let Some(workspace) = &mut self.workspace
                    && workspace.metadata.deletion_timestamp.is_none()
                {
                    workspace.metadata.deletion_timestamp = Some(Time(at(900)));
                    self.deletes += 1;
                }
            }
            Step::ReleaseWhenGone if self.live_workspace_is_ours() => {}
            Step::ReleaseWhenGone | Step::Release => {
                self.apply
                    .finalizers_mut()
                    .retain(|finalizer| !FINALIZERS.contains(&finalizer.as_str()));
            }
        }
    }

    /// What the live look before a release finds.
    fn live_workspace_is_ours(&self) -> bool {
        let identity = Identity::of(&self.apply, WorkspaceKind::ClusterScoped);
        self.workspace
            .as_ref()
            .is_some_and(|workspace| identity.owns(workspace))
    }

    /// Passes until there is nothing to do but to repeat the report.
    fn settle(&mut self) {
        for _ in 0..20 {
            let plan = self.plan();
            let done = matches!(plan.step, Step::Report) && plan.status == self.apply.status;
            if done || (plan.status.is_none() && matches!(plan.step, Step::Report)) {
                return;
            }
            self.perform(plan);
        }
        panic!("it does not settle: {:?}", self.plan());
    }

    fn provider_says(&mut self, synced: &str, ready: &str, message: &str) {
        let workspace = self.workspace.as_mut().unwrap();
        let condition = |type_: &str, status: &str, generation| Condition {
            type_: type_.into(),
            status: status.into(),
            reason: "Some".into(),
            message: message.into(),
            last_transition_time: Time(at(1)),
            observed_generation: generation,
        };
        let state = workspace.status.get_or_insert_default();
        state.conditions = vec![
            condition("Synced", synced, workspace.metadata.generation),
            condition("Ready", ready, None),
        ];
    }

    fn provider_outputs(&mut self, outputs: Value) {
        let state = self.workspace.as_mut().unwrap().status.get_or_insert_default();
        state.at_provider = serde_json::from_value(json!({"outputs": outputs})).unwrap();
    }

    fn ready() -> Self {
        let mut world = Self::new();
        world.settle();
        world.provider_says("True", "True", "");
        world.provider_outputs(json!({"vpc_id": "vpc-1", "azs": ["a", "b"]}));
        world.settle();
        world
    }

    fn deleting(mut self) -> Self {
        self.apply.metadata.deletion_timestamp = Some(Time(at(800)));
        self
    }

    fn status(&self) -> &WorkspaceTemplateApplyStatus {
        self.apply.status.as_ref().unwrap()
    }

    /// `True/Reason` of a condition.
    fn said(&self, type_: &str) -> String {
        let condition = conditions::find(&self.status().conditions, type_).unwrap();
        format!("{}/{}", condition.status, condition.reason)
    }

    fn message(&self, type_: &str) -> &str {
        &conditions::find(&self.status().conditions, type_).unwrap().message
    }
}

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
    assert!(matches!(world.plan().step, Step::Resume(at) if at == begun));
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
    for change in rows {
        let mut world = World::ready();
        change(&mut world);
        world = world.deleting();
        assert!(matches!(world.plan().step, Step::LetGo { .. }));
        world.settle();
        assert!(world.apply.finalizers().is_empty());
        assert_eq!(world.deletes, 0);
        assert!(is_let_go(
            world.workspace.as_ref().unwrap(),
            WorkspaceKind::ClusterScoped
        ));

        // A new apply of the same name takes it up again.
        let mut again = World {
            workspace: world.workspace.clone(),
            ..World::new()
        };
        again.settle();
        assert_eq!(again.creates, 0);
        assert_eq!(
            again.workspace.as_ref().unwrap().spec["managementPolicies"],
            json!(["*"])
        );
    }
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
    world.provider_says("False", "False", "cannot determine creation result");
    let pending = (
        annotation::EXTERNAL_CREATE_PENDING.to_owned(),
        "2026-01-01T00:00:00Z".to_owned(),
    );
    world.workspace.as_mut().unwrap().annotations_mut().extend([pending]);
    assert!(matches!(world.plan().step, Step::Resume(_)));
    let resumed = (annotation::RESUMED.to_owned(), "2026-01-01T00:00:00Z".to_owned());
    world.workspace.as_mut().unwrap().annotations_mut().extend([resumed]);
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
    for stale in [false, true] {
        let mut world = World::new();
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
            "stale: {stale}"
        );
        world = world.deleting();
        for _ in 0..5 {
            pass(&mut world);
        }
        assert_eq!(world.deletes, 1, "stale: {stale}");
        world.workspace = None;
        for _ in 0..3 {
            pass(&mut world);
        }
        assert!(world.apply.finalizers().is_empty(), "stale: {stale}");
        assert_eq!((world.creates, world.deletes), (1, 1), "stale: {stale}");
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
        let again = plan(&world.observe(), at(99_999));
        assert_eq!(again.status.as_ref(), Some(world.status()));
    }
}
