//! Objects from YAML into the API server: server-side apply, several at a time.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::runtime::conditions;
use kube::{Api, Client};
use serde_json::Value;

use crate::wait;

const MANAGER: &str = "capt-e2e";
/// How long the API server may take to serve a CRD; it takes a second.
const ESTABLISHED: Duration = Duration::from_secs(300);

/// The YAML files of a directory, in order.
pub fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    files_ending(dir, "yaml")
}

/// The files of a directory with this extension, in order.
pub fn files_ending(dir: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
        .with_context(|| format!("cannot read {}", dir.display()))?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|its| its == extension))
        .collect();
    files.sort();
    Ok(files)
}

/// The documents of a YAML file.
pub fn read(path: &Path) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| format!("{} is not valid YAML", path.display()))
}

pub fn parse(text: &str) -> Result<Vec<Value>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text)?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

/// Applies objects in any order among themselves, and returns when the API server has taken them all.
pub async fn apply(client: &Client, objects: Vec<Value>) -> Result<()> {
    stream::iter(objects.into_iter().map(|object| apply_one(client.clone(), object)))
        .buffer_unordered(8)
        .try_collect()
        .await
}

/// Applies CRDs and waits until the API server serves them.
pub async fn apply_crds(client: &Client, crds: Vec<Value>) -> Result<()> {
    let names: Vec<String> = crds
        .iter()
        .filter_map(|crd| crd.pointer("/metadata/name").and_then(Value::as_str).map(str::to_owned))
        .collect();
    apply(client, crds).await?;
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let established = names
        .iter()
        .map(|name| wait::until(api.clone(), name, conditions::is_crd_established()));
    tokio::time::timeout(ESTABLISHED, futures::future::join_all(established))
        .await
        .context("a CRD was not established")?;
    Ok(())
}

async fn apply_one(client: Client, value: Value) -> Result<()> {
    let object: DynamicObject =
        serde_json::from_value(value).context("an object lacks apiVersion, kind or metadata")?;
    let types = object.types.clone().context("an object lacks apiVersion or kind")?;
    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types)?);
    let name = object
        .metadata
        .name
        .clone()
        .with_context(|| format!("a {} lacks metadata.name", types.kind))?;
    let api: Api<DynamicObject> = match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, &resource),
        None => Api::all_with(client, &resource),
    };
    api.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&object))
        .await
        .with_context(|| format!("cannot apply {} {name}", types.kind))?;
    Ok(())
}
