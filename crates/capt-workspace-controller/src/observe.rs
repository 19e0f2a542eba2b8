//! What the caches know about an apply and everything that it depends on.

use std::collections::BTreeMap;
use std::sync::Arc;

use capt_api::common::ObjectReference;
use capt_api::external::workspace::WorkspaceExt;
use capt_api::names::{annotation, label};
use capt_api::{Cluster, Workspace, WorkspaceKind, WorkspaceTemplate, WorkspaceTemplateApply};
use capt_runtime::cache::{Cache, Found, Index};
use capt_runtime::key::Key;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::PartialObjectMeta;
use kube::{Resource, ResourceExt};

use crate::inputs::is_protected;
use crate::plan::{ClusterSeen, InputSeen, Observed, Settings, TemplateSeen, WorkspaceSeen, declares_shared_backend};
use crate::render::{self, Input, Request};
use crate::workspace::Identity;

/// The stores that this controller reads. Of Secrets and ConfigMaps it knows the metadata alone.
#[derive(Debug, Clone)]
pub(crate) struct Caches {
    pub(crate) applies: Cache<WorkspaceTemplateApply>,
    pub(crate) templates: Cache<WorkspaceTemplate>,
    pub(crate) clusters: Cache<Cluster>,
    pub(crate) secrets: Cache<PartialObjectMeta<Secret>>,
    pub(crate) config_maps: Cache<PartialObjectMeta<ConfigMap>>,
    pub(crate) workspaces: Workspaces,
}

/// The Workspaces of both kinds.
#[derive(Debug, Clone)]
pub(crate) struct Workspaces {
    pub(crate) cluster_scoped: WorkspaceCache,
    pub(crate) namespaced: WorkspaceCache,
}

/// The Workspaces of one kind, also by the apply that they were made for.
#[derive(Debug, Clone)]
pub(crate) struct WorkspaceCache {
    pub(crate) all: Cache<Workspace>,
    pub(crate) by_apply: Index<Workspace, Key>,
}

impl Workspaces {
    pub(crate) fn of(&self, kind: WorkspaceKind) -> &WorkspaceCache {
        match kind {
            WorkspaceKind::ClusterScoped => &self.cluster_scoped,
            WorkspaceKind::Namespaced => &self.namespaced,
        }
    }
}

/// Where a Workspace is kept in its cache.
pub(crate) fn workspace_key(identity: &Identity) -> Key {
    match identity.workspace_namespace() {
        Some(namespace) => Key::namespaced(namespace, &identity.name),
        None => Key::cluster_scoped(&identity.name),
    }
}

/// The template that an apply names.
pub(crate) fn template_key(apply: &WorkspaceTemplateApply) -> Key {
    let own = apply.namespace().unwrap_or_default();
    let reference = &apply.spec.template_ref;
    Key::namespaced(reference.namespace.as_deref().unwrap_or(&own), &reference.name)
}

/// Where a reference of an apply points: its own namespace unless it names another.
pub(crate) fn referenced(apply: &WorkspaceTemplateApply, reference: &ObjectReference) -> Key {
    let own = apply.namespace().unwrap_or_default();
    Key::namespaced(reference.namespace.as_deref().unwrap_or(&own), &reference.name)
}

/// The Secrets and ConfigMaps that an apply's annotation lists: kind and key.
pub(crate) fn listed_inputs(apply: &WorkspaceTemplateApply) -> Vec<Input> {
    let namespace = apply.namespace().unwrap_or_default();
    let listed = apply.annotations().get(annotation::WORKSPACE_INPUTS);
    let listed: Vec<String> = listed
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    let input = |entry: &String| {
        let (kind, name) = entry.split_once('/')?;
        let (namespace, name) = (namespace.clone(), name.to_owned());
        match kind {
            "Secret" => Some(Input::Secret { namespace, name }),
            "ConfigMap" => Some(Input::ConfigMap { namespace, name }),
            _ => None,
        }
    };
    listed.iter().filter_map(input).collect()
}

impl Caches {
    pub(crate) fn observe(
        &self,
        apply: Arc<WorkspaceTemplateApply>,
        kind: WorkspaceKind,
        settings: Settings,
    ) -> Observed {
        let identity = Identity::of(&apply, kind);
        let namespace = identity.namespace.clone();
        let cluster = match apply.labels().get(label::CLUSTER_NAME) {
            None => ClusterSeen::Standalone,
            Some(name) => match self.clusters.get(&Key::namespaced(&namespace, name)) {
                None => ClusterSeen::Absent(name.clone()),
                Some(cluster) => ClusterSeen::Present {
                    paused: cluster.spec.paused.unwrap_or_default(),
                },
            },
        };
        let key = template_key(&apply);
        let (template, rendered) = match self.templates.find(&key) {
            _ if !settings.allow_cross_namespace && key.namespace() != Some(&namespace) => {
                (TemplateSeen::Forbidden(key.to_string()), None)
            }
            Found::Absent => (TemplateSeen::Absent(key.to_string()), None),
            Found::Unreadable(why) => (TemplateSeen::Unreadable(key.to_string(), why), None),
            Found::Present(template) => {
                let secret = apply.spec.write_connection_secret_to_ref.as_ref();
                let request = Request {
                    template: &template.spec,
                    variables: &apply.spec.variables,
                    connection_secret: secret.map(|secret| (secret.name.as_str(), secret.namespace.as_deref())),
                    namespace: &namespace,
                    workspace_name: &identity.name,
                    kind: identity.kind,
                    retain: apply.spec.retain_workspace_on_delete.unwrap_or_default(),
                    allow_cross_namespace: settings.allow_cross_namespace,
                };
                let shared_backend = declares_shared_backend(template.labels());
                (TemplateSeen::Present { shared_backend }, Some(render::render(&request)))
            }
        };
        let inputs = match &rendered {
            Some(Ok(rendered)) => rendered
                .inputs
                .iter()
                .map(|input| (input.clone(), self.input(input)))
                .collect(),
            _ => BTreeMap::new(),
        };
        let workspace = match self.workspaces.of(identity.kind).all.find(&workspace_key(&identity)) {
            Found::Absent => WorkspaceSeen::Absent,
            Found::Unreadable(why) => WorkspaceSeen::Unreadable(why),
            Found::Present(workspace) => WorkspaceSeen::Present(workspace),
        };
        Observed {
            missing_secrets: self.missing_secrets(&apply, settings),
            missing_workspaces: self.missing_workspaces(&apply, settings),
            apply,
            cluster,
            identity,
            template,
            rendered,
            inputs,
            workspace,
            dropped: false,
            settings,
        }
    }

    fn input(&self, input: &Input) -> Option<InputSeen> {
        let key = Key::namespaced(input.namespace(), input.name());
        match input {
            Input::Secret { .. } => self.secrets.get(&key).map(|secret| seen(&*secret)),
            Input::ConfigMap { .. } => self.config_maps.get(&key).map(|map| seen(&*map)),
        }
    }

    fn missing_secrets(&self, apply: &WorkspaceTemplateApply, settings: Settings) -> Vec<String> {
        let references = apply.spec.wait_for_secrets.iter();
        let missing = |reference| {
            let key = referenced(apply, reference);
            // Whether a Secret of another namespace exists is not told either.
            if let Some(refused) = refuse_foreign(apply, &key, "waitForSecrets", settings) {
                return Some(refused);
            }
            self.secrets
                .get(&key)
                .is_none()
                .then(|| format!("Secret {key} does not exist"))
        };
        references.filter_map(missing).collect()
    }

    /// Each name is an apply's, else a Workspace's.
    fn missing_workspaces(&self, apply: &WorkspaceTemplateApply, settings: Settings) -> Vec<String> {
        apply
            .spec
            .wait_for_workspaces
            .iter()
            .filter_map(|reference| {
                let key = referenced(apply, reference);
                if let Some(refused) = refuse_foreign(apply, &key, "waitForWorkspaces", settings) {
                    return Some(refused);
                }
                if let Some(other) = self.applies.get(&key) {
                    return (!other.is_ready()).then(|| format!("WorkspaceTemplateApply {key} is not ready"));
                }
                let workspace = self.workspaces.namespaced.all.get(&key);
                let workspace = workspace.or_else(|| {
                    self.workspaces
                        .cluster_scoped
                        .all
                        .get(&Key::cluster_scoped(&reference.name))
                });
                match workspace {
                    Some(workspace) if workspace.is_applied() => None,
                    Some(_) => Some(format!("Workspace {} is not ready", reference.name)),
                    None => Some(format!("{key} is neither a WorkspaceTemplateApply nor a Workspace")),
                }
            })
            .collect()
    }
}

/// What to say of a reference into another namespace where that is not allowed.
fn refuse_foreign(apply: &WorkspaceTemplateApply, key: &Key, field: &str, settings: Settings) -> Option<String> {
    let foreign = key.namespace() != apply.namespace().as_deref();
    (foreign && !settings.allow_cross_namespace).then(|| {
        format!("spec.{field} names {key}: only the apply's own namespace is allowed, unless the controller runs with --allow-cross-namespace-templates")
    })
}

fn seen<K: Resource>(object: &K) -> InputSeen {
    let meta = object.meta();
    InputSeen {
        version: format!(
            "{}/{}",
            meta.uid.as_deref().unwrap_or_default(),
            meta.resource_version.as_deref().unwrap_or_default()
        ),
        protected: is_protected(object),
        deleting: meta.deletion_timestamp.is_some(),
    }
}
