//! What the tests on a real control plane share: a client, a namespace of their own, and ways to wait and to look.

pub mod bench;
pub mod component;
pub mod end_state;
pub mod history;
pub mod prometheus;
pub mod simulated;
mod watchman;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::pin::pin;
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{DynamicObject, ObjectMeta, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;
use tokio::time::Instant;

use crate::environment::Environment;
use crate::wait;

/// A cluster-admin client of the environment that `KUBECONFIG` names.
pub async fn client() -> Result<Client> {
    let config = kube::Config::infer()
        .await
        .context("no environment: run the tests with `make test`, or set KUBECONFIG after `make up`")?;
    Ok(Client::try_from(config)?)
}

/// A fresh namespace, so that tests can run at the same time.
pub async fn namespace(client: &Client, prefix: &str) -> Result<String> {
    let wanted = Namespace {
        metadata: ObjectMeta {
            generate_name: Some(format!("{prefix}-")),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    let made = Api::<Namespace>::all(client.clone())
        .create(&PostParams::default(), &wanted)
        .await
        .context("cannot create a test namespace")?;
    made.metadata
        .name
        .context("the API server returned a namespace without a name")
}

/// The environment that the tests run in.
pub fn environment() -> Result<Environment> {
    let name = std::env::var("CAPT_ENV").context("no environment: run the tests with `make test-e2e`")?;
    Environment::named(&name)
}

/// An environment that a test may break; it is taken down when the test ends, however it ends.
pub struct Scratch {
    pub environment: Environment,
    program: PathBuf,
}

impl Scratch {
    /// `program` is capt-e2e itself, whose path only an integration test knows.
    pub fn named(program: &str, name: &str) -> Result<Self> {
        let scratch = Self {
            environment: Environment::named(name)?,
            program: program.into(),
        };
        // What a killed run left behind would be taken for this test's own.
        scratch.run(&["down"])?;
        Ok(scratch)
    }

    pub fn run(&self, arguments: &[&str]) -> Result<Output> {
        let output = Command::new(&self.program)
            .args(["--env", self.environment.name()])
            .args(arguments)
            .output();
        output.with_context(|| format!("cannot run {}", self.program.display()))
    }

    /// Starts what is not running, and returns when everything is ready.
    pub fn up(&self, flags: &[&str]) -> Result<()> {
        let output = self.run(&[&["up"], flags].concat())?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = self.run(&["down"]);
    }
}

/// Objects of a kind, in a namespace or in none.
pub fn objects(client: &Client, api_version: &str, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let mut resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    if kind == "WorkspaceTemplateApply" {
        resource.plural = "workspacetemplateapplies".into();
    }
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

/// Creates an object from JSON; it goes into the namespace unless that is `None`.
pub async fn create(client: &Client, namespace: Option<&str>, object: Value) -> Result<DynamicObject> {
    let object: DynamicObject = serde_json::from_value(object)?;
    let types = object.types.clone().context("an object without apiVersion and kind")?;
    Ok(objects(client, &types.api_version, &types.kind, namespace)
        .create(&PostParams::default(), &object)
        .await?)
}

/// Whether somebody in these groups may do this.
pub async fn may(client: &Client, user: &str, groups: &[&str], wish: &ResourceAttributes) -> Result<bool> {
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.to_owned()),
            groups: Some(groups.iter().map(ToString::to_string).collect()),
            resource_attributes: Some(wish.clone()),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    let answer = reviews.create(&PostParams::default(), &review).await?;
    Ok(answer.status.context("no answer")?.allowed)
}

/// Something that a group may do or not: API group, resource and namespace.
pub type Deed<'a> = (&'a str, &'a str, &'a str);

/// Waits until the members of a group may create this, or may not. Whoever changes a Role has its answer before the API server has
/// heard of the change, and nothing tells when it has.
pub async fn until_may_create(client: &Client, group: &str, deed: Deed<'_>, expected: bool) -> Result<()> {
    let (api_group, resource, namespace) = deed;
    let wish = ResourceAttributes {
        group: Some(api_group.to_owned()),
        resource: Some(resource.to_owned()),
        namespace: Some(namespace.to_owned()),
        verb: Some("create".into()),
        ..ResourceAttributes::default()
    };
    until_may(client, "somebody", &[group], &wish, expected).await
}

/// The same for whatever somebody wishes to do.
pub async fn until_may(
    client: &Client,
    user: &str,
    groups: &[&str],
    wish: &ResourceAttributes,
    expected: bool,
) -> Result<()> {
    let begun = Instant::now();
    while may(client, user, groups, wish).await? != expected {
        ensure!(
            begun.elapsed() < PATIENCE,
            "{user} of {groups:?} may {wish:?}: {}",
            !expected
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// A token of a ServiceAccount, as a pod would get it.
pub async fn token(client: &Client, namespace: &str, account: &str) -> Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let request = TokenRequest {
        spec: Some(TokenRequestSpec::default()),
        ..TokenRequest::default()
    };
    let made = accounts
        .create_token_request(account, &PostParams::default(), &request)
        .await?;
    made.status.and_then(|status| status.token).context("no token")
}

/// How long a test waits for whole clusters: many are made at once, each with Terraform and an API server of its own, on as
/// few as two cores.
pub const CLUSTER_PATIENCE: Duration = Duration::from_secs(900);

/// How long a test waits for something that takes seconds.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// How long nothing has changed when everything is settled.
pub const SETTLED: Duration = Duration::from_secs(5);

/// Looks until two looks, so far apart, see the same, and returns what they see. Last words are nobody's in particular, and may
/// follow the moment when everything is up; nothing else tells that no more will come.
pub async fn settled<T: PartialEq>(apart: Duration, look: impl AsyncFn() -> Result<T>) -> Result<T> {
    let end = Instant::now() + CLUSTER_PATIENCE;
    let mut before = look().await?;
    loop {
        tokio::time::sleep(apart).await;
        let now = look().await?;
        if now == before {
            return Ok(now);
        }
        ensure!(Instant::now() < end, "something changes again and again");
        before = now;
    }
}

/// Watches an object until `holds`; fails with the object as it stands when that takes too long.
pub async fn until(
    api: &Api<DynamicObject>,
    name: &str,
    what: &str,
    holds: impl Fn(&DynamicObject) -> bool,
) -> Result<DynamicObject> {
    let object = watch(api, name, what, |object| object.is_some_and(&holds)).await?;
    object.context("the object vanished")
}

/// Watches until there is no such object.
pub async fn until_gone(api: &Api<DynamicObject>, name: &str) -> Result<()> {
    watch(api, name, "gone", |object| object.is_none()).await.map(drop)
}

/// Watches many objects of one kind until `holds` of all of them at once, with the patience that whole clusters need.
pub async fn until_all(
    api: &Api<DynamicObject>,
    names: &[impl AsRef<str>],
    what: &str,
    holds: impl Fn(&DynamicObject) -> bool,
) -> Result<()> {
    watch_all(api, names, what, |object| object.is_some_and(&holds)).await
}

/// Watches until none of these objects is there any more.
pub async fn until_all_gone(api: &Api<DynamicObject>, names: &[impl AsRef<str>]) -> Result<()> {
    watch_all(api, names, "gone", |object| object.is_none()).await
}

async fn watch_all(
    api: &Api<DynamicObject>,
    names: &[impl AsRef<str>],
    what: &str,
    holds: impl Fn(Option<&DynamicObject>) -> bool,
) -> Result<()> {
    // One watch for all: hundreds of watches would be a load of their own.
    let mut events = pin!(watcher(api.clone(), watcher::Config::default()).default_backoff());
    let mut missing: BTreeSet<&str> = names.iter().map(AsRef::as_ref).collect();
    let wanted = missing.clone();
    let mut listed: BTreeSet<String> = BTreeSet::new();
    let deadline = Instant::now() + CLUSTER_PATIENCE;
    loop {
        let Ok(event) = tokio::time::timeout_at(deadline, events.next()).await else {
            let first = missing.first().copied().unwrap_or_default();
            let now = serde_json::to_string_pretty(&api.get_opt(first).await?)?;
            bail!(
                "{} of {} are not {what} within {} s: {missing:?}; the first is\n{now}",
                missing.len(),
                names.len(),
                CLUSTER_PATIENCE.as_secs()
            );
        };
        let mut judge = |name: &str, object: Option<&DynamicObject>| match wanted.get(name) {
            Some(name) if holds(object) => drop(missing.remove(name)),
            Some(name) => drop(missing.insert(name)),
            None => {}
        };
        match event.context("the watch has ended")? {
            Err(error) => {
                eprintln!("a watch failed and goes on: {error}");
                continue;
            }
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => {
                judge(&object.name_any(), Some(&object));
                listed.insert(object.name_any());
                continue;
            }
            Ok(Event::InitDone) => {
                for absent in wanted.iter().filter(|name| !listed.contains(**name)) {
                    judge(absent, None);
                }
            }
            Ok(Event::Apply(object)) => judge(&object.name_any(), Some(&object)),
            Ok(Event::Delete(object)) => judge(&object.name_any(), None),
        }
        if missing.is_empty() {
            return Ok(());
        }
    }
}

async fn watch(
    api: &Api<DynamicObject>,
    name: &str,
    what: &str,
    holds: impl Fn(Option<&DynamicObject>) -> bool,
) -> Result<Option<DynamicObject>> {
    if let Ok(object) = tokio::time::timeout(PATIENCE, wait::until(api.clone(), name, holds)).await {
        return Ok(object);
    }
    let now = match api.get_opt(name).await? {
        Some(object) => serde_json::to_string_pretty(&object)?,
        None => "absent".to_owned(),
    };
    bail!("{name}: not {what} within {} s; it is\n{now}", PATIENCE.as_secs())
}

/// A condition as `Status/Reason`; empty when there is none.
pub fn condition(object: &DynamicObject, type_: &str) -> String {
    let text = |condition: &Value, key: &str| {
        condition
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let conditions = object.data.pointer("/status/conditions").and_then(Value::as_array);
    let found = conditions
        .into_iter()
        .flatten()
        .find(|condition| text(condition, "type") == type_);
    found
        .map(|condition| format!("{}/{}", text(condition, "status"), text(condition, "reason")))
        .unwrap_or_default()
}

/// The message of a condition.
pub fn message<'a>(object: &'a DynamicObject, type_: &str) -> &'a str {
    let conditions = object.data.pointer("/status/conditions").and_then(Value::as_array);
    let found = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.get("type").and_then(Value::as_str) == Some(type_));
    found
        .and_then(|condition| condition.get("message"))
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Whether a condition is there and True.
pub fn is_true(object: &DynamicObject, type_: &str) -> bool {
    condition(object, type_).starts_with("True/")
}

/// The text at a path, empty when there is none.
pub fn text<'a>(object: &'a DynamicObject, pointer: &str) -> &'a str {
    object.data.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The generation that the status is about.
pub fn observed(object: &DynamicObject) -> i64 {
    let generation = object.data.pointer("/status/observedGeneration");
    generation.and_then(Value::as_i64).unwrap_or_default()
}

/// The status of a condition, without its reason.
pub fn status(object: &DynamicObject, type_: &str) -> String {
    let condition = condition(object, type_);
    condition.split('/').next().unwrap_or_default().to_owned()
}

/// Whether the object was ready for this generation, or a later one.
pub fn ready_since(generation: i64) -> impl Fn(&DynamicObject) -> bool {
    move |object| is_true(object, "Ready") && observed(object) >= generation
}
