//! The Terraform state: one Secret per Terraform workspace, as Terraform's kubernetes backend keeps it.
//!
//! A leak is a state with resources in it. Two Workspaces with one external name share a state, and a recreated
//! Workspace finds the old one again. The content is plain JSON, readable with kubectl.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Mutex, PoisonError};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::{Api, Client};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::module::Diagnostic;

const SUFFIX: &str = "sim";
const DATA_KEY: &str = "tfstate";

/// What Terraform remembers. It has no `Debug`: sensitive outputs are in it.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct State {
    #[serde(default)]
    pub(super) resources: BTreeMap<String, Resource>,
    #[serde(default)]
    pub(super) outputs: BTreeMap<String, Output>,
    /// Messages of faults that were to strike once and did.
    #[serde(default)]
    pub(super) spent_faults: BTreeSet<String>,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Resource {
    pub(super) attributes: Value,
    #[serde(default)]
    pub(super) tainted: bool,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Output {
    pub(super) value: Value,
    #[serde(default)]
    pub(super) sensitive: bool,
}

impl State {
    pub(super) fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }
}

/// A state as it was read, with the Secret to write it back to.
pub(super) struct Opened {
    pub(super) state: State,
    secret: Secret,
}

/// All states, and which of them are locked by a running apply or destroy.
pub(super) struct Backend {
    secrets: Api<Secret>,
    locked: Mutex<HashSet<String>>,
}

/// Held while Terraform would hold the state lock.
pub(super) struct Lock<'a> {
    backend: &'a Backend,
    workspace: String,
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        self.backend.lock_set().remove(&self.workspace);
    }
}

impl Backend {
    pub(super) fn new(client: Client, namespace: &str) -> Self {
        Self {
            secrets: Api::namespaced(client, namespace),
            locked: Mutex::default(),
        }
    }

    /// `terraform workspace select`, or `new` when there is none: an empty state exists before anything else does.
    pub(super) async fn open(&self, workspace: &str) -> Result<Opened, Diagnostic> {
        let name = secret_name(workspace);
        let secret = match self.secrets.get_opt(&name).await.map_err(refused)? {
            Some(secret) => secret,
            None => match self.secrets.create(&PostParams::default(), &empty(workspace)?).await {
                Ok(secret) => secret,
                // Another Workspace with the same external name was faster.
                Err(kube::Error::Api(status)) if status.is_already_exists() => {
                    self.secrets.get(&name).await.map_err(refused)?
                }
                Err(error) => return Err(refused(error)),
            },
        };
        let stored = secret.data.as_ref().and_then(|data| data.get(DATA_KEY));
        let state = stored.map_or(Ok(State::default()), |bytes| State::decode(&bytes.0));
        let state = state.map_err(|error| Diagnostic::new("Failed to load state", format!("{name}: {error}")))?;
        Ok(Opened { state, secret })
    }

    pub(super) async fn save(&self, opened: &mut Opened) -> Result<(), Diagnostic> {
        opened.secret.data = Some(content(&opened.state)?);
        let name = opened.secret.metadata.name.clone().unwrap_or_default();
        opened.secret = self
            .secrets
            .replace(&name, &PostParams::default(), &opened.secret)
            .await
            .map_err(|error| Diagnostic::new("Failed to persist state", error.to_string()))?;
        Ok(())
    }

    /// `terraform workspace delete`.
    pub(super) async fn delete(&self, workspace: &str) -> Result<(), Diagnostic> {
        match self
            .secrets
            .delete(&secret_name(workspace), &DeleteParams::default())
            .await
        {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            Err(error) => Err(refused(error)),
        }
    }

    pub(super) fn lock(&self, workspace: &str) -> Result<Lock<'_>, Diagnostic> {
        if self.lock_set().insert(workspace.to_owned()) {
            return Ok(Lock {
                backend: self,
                workspace: workspace.to_owned(),
            });
        }
        Err(Diagnostic::new(
            "Error acquiring the state lock",
            "Error message: the state is already locked by another terraform client",
        ))
    }

    fn lock_set(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        // The set is whole after every operation, so a panic elsewhere does not spoil it.
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn secret_name(workspace: &str) -> String {
    format!("tfstate-{workspace}-{SUFFIX}")
}

fn empty(workspace: &str) -> Result<Secret, Diagnostic> {
    // The backend's own labels: as a label value, a workspace name of more than 63 characters is refused.
    let labels = [
        ("tfstate", "true"),
        ("tfstateSecretSuffix", SUFFIX),
        ("tfstateWorkspace", workspace),
        ("app.kubernetes.io/managed-by", "terraform"),
    ];
    Ok(Secret {
        metadata: ObjectMeta {
            name: Some(secret_name(workspace)),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            ..ObjectMeta::default()
        },
        data: Some(content(&State::default())?),
        ..Secret::default()
    })
}

fn content(state: &State) -> Result<BTreeMap<String, ByteString>, Diagnostic> {
    let bytes = state
        .encode()
        .map_err(|error| Diagnostic::new("Failed to save state", error.to_string()))?;
    Ok(BTreeMap::from([(DATA_KEY.to_owned(), ByteString(bytes))]))
}

fn refused(error: kube::Error) -> Diagnostic {
    let reason = match error {
        kube::Error::Api(status) => status.message,
        other => other.to_string(),
    };
    Diagnostic::new("error loading the state", reason)
}
