//! The little world in which the tests let an apply live: a template, inputs, a Workspace and a provider.

use super::*;
use crate::render::{self, Request};
use capt_api::workspace::{WorkspaceTemplateApplySpec, WorkspaceTemplateSpec};
use capt_api::{WorkspaceKind, conditions, names};
use capt_runtime::controller::SETTLE;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

pub(super) const NAME: &str = "demo";
pub(super) const NAMESPACE: &str = "team";

pub(super) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

pub(super) fn workspace_name() -> String {
    names::workspace_name(NAMESPACE, NAME)
}

/// The little world in which an apply lives; every observation is made from it.
#[derive(Clone)]
pub(super) struct World {
    pub(super) apply: WorkspaceTemplateApply,
    pub(super) cluster: ClusterSeen,
    pub(super) template: Option<WorkspaceTemplateSpec>,
    pub(super) inputs: BTreeMap<Input, InputSeen>,
    pub(super) missing_secrets: Vec<String>,
    pub(super) missing_workspaces: Vec<String>,
    pub(super) workspace: Option<Workspace>,
    /// Of new applies.
    pub(super) kind: WorkspaceKind,
    pub(super) settings: Settings,
    pub(super) now: Timestamp,
    pub(super) creates: usize,
    pub(super) deletes: usize,
}

pub(super) fn token() -> Input {
    Input::Secret {
        namespace: NAMESPACE.into(),
        name: "token".into(),
    }
}

impl World {
    pub(super) fn new() -> Self {
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
            kind: WorkspaceKind::ClusterScoped,
            settings: Settings {
                allow_cross_namespace: false,
                resume_interrupted_creates: false,
                shared_backend: false,
                deletion_timeout: SignedDuration::from_mins(30),
            },
            now: at(1000),
            creates: 0,
            deletes: 0,
        }
    }

    pub(super) fn observe(&self) -> Observed {
        let identity = Identity::of(&self.apply, self.kind);
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

    pub(super) fn plan(&self) -> Plan {
        plan(&self.observe(), self.now)
    }

    /// What the API server would do; a step that was planned from an older world must not do harm.
    pub(super) fn perform(&mut self, plan: Plan) {
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
                    workspace.metadata.creation_timestamp = Some(Time(self.now));
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
            Step::LookAgain => {
                let annotations = self.workspace.as_mut().unwrap().annotations_mut();
                annotations.insert(annotation::LOOKED_AGAIN.into(), "true".into());
            }
            Step::RestoreKey(strayed) => {
                let key = Identity::of(&self.apply, self.kind).state_key().to_owned();
                let annotations = self.workspace.as_mut().unwrap().annotations_mut();
                assert_eq!(annotations.insert(annotation::EXTERNAL_NAME.into(), key), Some(strayed));
            }
            Step::AllowMove => drop(self.apply.annotations_mut().remove(annotation::BLOCK_MOVE)),
            Step::Resume { begun, wish } => {
                let workspace = self.workspace.as_mut().unwrap();
                workspace.annotations_mut().remove(annotation::EXTERNAL_CREATE_PENDING);
                workspace.annotations_mut().insert(annotation::RESUMED.into(), begun);
                if let Some(Wish { spec, revision }) = wish {
                    workspace.spec = spec;
                    workspace.metadata.generation = workspace.metadata.generation.map(|generation| generation + 1);
                    workspace
                        .annotations_mut()
                        .insert(annotation::REVISION.into(), revision);
                }
                self.apply.annotations_mut().remove(annotation::RESUME_CREATE);
            }
            Step::LetGo { .. } => {
                let workspace = self.workspace.as_mut().unwrap();
                workspace.spec = crate::workspace::let_go_spec(workspace, self.kind);
            }
            Step::Hold => {
                let workspace = self.workspace.as_mut().unwrap();
                // Refused by the API server.
                if workspace.metadata.deletion_timestamp.is_none() && !is_held(workspace) {
                    workspace.finalizers_mut().push(finalizer::WORKSPACE_HOLD.into());
                }
            }
            Step::Unhold => {
                if let Some(workspace) = &mut self.workspace {
                    workspace
                        .finalizers_mut()
                        .retain(|present| present != finalizer::WORKSPACE_HOLD);
                    if workspace.metadata.deletion_timestamp.is_some() {
                        let released = (annotation::RELEASED.to_owned(), self.now.to_string());
                        workspace.annotations_mut().extend([released]);
                    }
                }
            }
            Step::Delete => {
                if let Some(workspace) = &mut self.workspace
                    && workspace.metadata.deletion_timestamp.is_none()
                {
                    workspace.metadata.deletion_timestamp = Some(Time(self.now));
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
    pub(super) fn live_workspace_is_ours(&self) -> bool {
        let identity = Identity::of(&self.apply, self.kind);
        self.workspace
            .as_ref()
            .is_some_and(|workspace| identity.owns(workspace))
    }

    /// Passes until there is nothing to do but to repeat the report, and until what lasts is told.
    pub(super) fn settle(&mut self) {
        for _ in 0..20 {
            let plan = self.plan();
            let is_told = plan.status.is_none() || plan.status == self.apply.status;
            match plan.wake {
                _ if !matches!(plan.step, Step::Report) || !is_told => self.perform(plan),
                Wake::At(time) if time <= self.now + SETTLE => self.now = time,
                _ => return,
            }
        }
        panic!("it does not settle: {:?}", self.plan());
    }

    pub(super) fn provider_says(&mut self, synced: &str, ready: &str, message: &str) {
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

    pub(super) fn provider_is_paused(&mut self) {
        self.provider_says("False", "True", "");
        let conditions = &mut self.workspace.as_mut().unwrap().status.as_mut().unwrap().conditions;
        conditions[0].reason = "ReconcilePaused".into();
    }

    pub(super) fn provider_outputs(&mut self, outputs: Value) {
        let state = self.workspace.as_mut().unwrap().status.get_or_insert_default();
        state.at_provider = serde_json::from_value(json!({"outputs": outputs})).unwrap();
    }

    pub(super) fn ready() -> Self {
        Self::ready_as(WorkspaceKind::ClusterScoped)
    }

    pub(super) fn ready_as(kind: WorkspaceKind) -> Self {
        let mut world = Self { kind, ..Self::new() };
        world.settle();
        world.provider_says("True", "True", "");
        world.provider_outputs(json!({"vpc_id": "vpc-1", "azs": ["a", "b"]}));
        world.settle();
        world
    }

    pub(super) fn deleting(mut self) -> Self {
        self.apply.metadata.deletion_timestamp = Some(Time(self.now));
        self
    }

    pub(super) fn status(&self) -> &WorkspaceTemplateApplyStatus {
        self.apply.status.as_ref().unwrap()
    }

    /// `True/Reason` of a condition.
    pub(super) fn said(&self, type_: &str) -> String {
        let condition = conditions::find(&self.status().conditions, type_).unwrap();
        format!("{}/{}", condition.status, condition.reason)
    }

    pub(super) fn message(&self, type_: &str) -> &str {
        &conditions::find(&self.status().conditions, type_).unwrap().message
    }
}
