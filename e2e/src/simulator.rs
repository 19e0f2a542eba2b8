//! Stands in for provider-terraform where thousands of Workspaces are needed: the same conditions, annotations,
//! finalizer, connection secret and delays, without running Terraform.
//!
//! It follows the reconciler of crossplane-runtime v2.0.0 and the Workspace controller of provider-terraform v1.1.1 step
//! by step; `e2e/tests/simulator` compares it with the real one. Modules are Terraform's JSON syntax
//! (`source: Inline`, `inlineFormat: JSON`), evaluated as far as `module` says, so that they also run on the real one.
//!
//! Faults are variables that a module declares: `fault_apply`, `fault_apply_once`, `fault_destroy` (a message),
//! `slow_seconds`, `slow_destroy_seconds`.
//!
//! Left out, because nothing above a Workspace can see it: ProviderConfigUsages, Events, the plugin cache, the
//! twenty-minute timeout of a pass, and the jitter of the poll.

mod configs;
mod connection;
mod expression;
mod inputs;
mod module;
mod reconcile;
mod state;
mod status;
mod step;
mod terraform;
mod workspace;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::future::{self, BoxFuture};
use futures::{FutureExt, StreamExt};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ApiResource, GroupVersionKind, ObjectMeta, PostParams};
use kube::discovery::{self, ApiCapabilities};
use kube::runtime::controller::{self, Controller};
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::components::STATE_NAMESPACE;
use configs::ProviderConfigs;
use reconcile::{Context, Trigger};
use state::Backend;

#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// API groups whose Workspaces are simulated, as far as their CRDs are installed. Others than the provider's own
    /// make it possible to run beside a real provider.
    #[arg(long, value_delimiter = ',', default_value = "tf.upbound.io,tf.m.upbound.io")]
    pub groups: Vec<String>,
    /// Only Workspaces with these labels.
    #[arg(long)]
    pub selector: Option<String>,
    /// How long every apply takes, besides the module's own slow_seconds.
    #[arg(long, default_value = "0.2", value_parser = seconds)]
    pub apply_seconds: Duration,
    /// How long every destroy takes, besides the module's own slow_destroy_seconds.
    #[arg(long, default_value = "0.2", value_parser = seconds)]
    pub destroy_seconds: Duration,
    /// How many Workspaces of each kind are worked on at a time; a slow apply occupies one place.
    #[arg(long, default_value_t = 100)]
    pub concurrency: u16,
    /// How often a Workspace that is up to date is observed again.
    #[arg(long, default_value = "600", value_parser = seconds)]
    pub poll_seconds: Duration,
    /// For how long after its creation an absent resource is waited for; a Workspace deleted that young ends late.
    #[arg(long, default_value = "30", value_parser = seconds)]
    pub creation_grace_seconds: Duration,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// How the simulator behaves towards every Workspace.
#[derive(Debug, Clone)]
struct Settings {
    apply: Duration,
    destroy: Duration,
    poll: Duration,
    creation_grace: SignedDuration,
}

/// Runs on the cluster that `KUBECONFIG` names until it is told to end. It stops at once, as a killed provider does: an
/// apply that is running leaves its Workspace with an incomplete creation.
pub async fn run(args: Args) -> Result<()> {
    tracing_subscriber::fmt().init();
    let client = Client::try_default()
        .await
        .context("no cluster: set KUBECONFIG to the one whose Workspaces are to be simulated")?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (ready, is_ready) = oneshot::channel();
    let announce = async {
        if is_ready.await.is_ok() {
            println!("simulator ready");
        }
        future::pending::<Result<()>>().await
    };
    tokio::select! {
        ended = serve(client, args, ready) => ended,
        never = announce => never,
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}

/// Simulates until dropped; `ready` is told when the watches are synced.
pub async fn serve(client: Client, args: Args, ready: oneshot::Sender<()>) -> Result<()> {
    ensure_state_namespace(&client).await?;
    let settings = Settings {
        apply: args.apply_seconds,
        destroy: args.destroy_seconds,
        poll: args.poll_seconds,
        creation_grace: SignedDuration::try_from(args.creation_grace_seconds)?,
    };
    let backend = Arc::new(Backend::new(client.clone(), STATE_NAMESPACE));
    let mut running = Vec::new();
    let mut caches = Vec::new();
    for resource in workspace_kinds(&client, &args.groups).await? {
        let (configs, watches) = ProviderConfigs::watch(&client, &resource.group, &resource.version).await?;
        let context = Context::new(client.clone(), resource, configs, backend.clone(), settings.clone());
        let context = Arc::new(context);
        let (cache, controller) = controller(context.clone(), &args);
        caches.push((context, cache));
        running.extend(watches);
        running.push(controller);
    }
    let synced = async {
        for (context, cache) in caches {
            context.configs.wait_until_ready().await?;
            cache
                .wait_until_ready()
                .await
                .context("a watch ended before it was synced")?;
        }
        // A caller that does not care when it is ready has dropped the other end.
        let _ = ready.send(());
        future::pending::<Result<()>>().await
    };
    tokio::select! {
        _ = future::select_all(running) => bail!("a watch ended"),
        ended = synced => ended,
    }
}

/// The kinds of Workspace whose CRDs are there. The real provider, too, takes what it finds.
async fn workspace_kinds(client: &Client, groups: &[String]) -> Result<Vec<ApiResource>> {
    let mut found = Vec::new();
    for group in groups {
        let kind = GroupVersionKind::gvk(group, "v1beta1", "Workspace");
        found.extend(installed(client, &kind).await?.map(|(resource, _)| resource));
    }
    if found.is_empty() {
        bail!(
            "no Workspace of {} is installed: apply the CRDs of provider-terraform first",
            groups.join(" or ")
        );
    }
    Ok(found)
}

async fn installed(client: &Client, kind: &GroupVersionKind) -> Result<Option<(ApiResource, ApiCapabilities)>> {
    match discovery::pinned_kind(client, kind).await {
        Ok(found) => Ok(Some(found)),
        Err(kube::Error::Discovery(_)) => Ok(None),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot look for {} of {}", kind.kind, kind.group)),
    }
}

async fn ensure_state_namespace(client: &Client) -> Result<()> {
    let wanted = Namespace {
        metadata: ObjectMeta {
            name: Some(STATE_NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    match Api::<Namespace>::all(client.clone())
        .create(&PostParams::default(), &wanted)
        .await
    {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot create namespace {STATE_NAMESPACE}")),
    }
}

fn controller(context: Arc<Context>, args: &Args) -> (Store<Trigger>, BoxFuture<'static, ()>) {
    let api = Api::<Trigger>::all_with(context.client.clone(), &context.resource);
    let mut config = watcher::Config::default().streaming_lists();
    if let Some(selector) = &args.selector {
        config = config.labels(selector);
    }
    let writer = reflector::store::Writer::new(context.resource.clone());
    let cache = writer.as_reader();
    let changes = watcher(api, config)
        .default_backoff()
        .modify(|object| object.metadata.managed_fields = None)
        .reflect(writer)
        .applied_objects()
        .predicate_filter(desired_state, Default::default());
    let running = Controller::for_stream_with(changes, cache.clone(), context.resource.clone())
        .with_config(controller::Config::default().concurrency(args.concurrency))
        .run(reconcile::reconcile, reconcile::on_error, context.clone())
        .for_each(move |result| {
            match result {
                Err(controller::Error::ObjectNotFound(gone)) => context.forget(gone.namespace.as_deref(), &gone.name),
                Err(controller::Error::QueueError(error)) => tracing::warn!(%error, "the watch of Workspaces failed"),
                // Reported where the pass ended.
                Err(controller::Error::ReconcilerFailed(..) | controller::Error::RunnerError(_)) | Ok(_) => {}
            }
            future::ready(())
        })
        .boxed();
    (cache, running)
}

/// What wakes a pass: the spec (by its generation, which a deletion raises too), labels and annotations, but for the
/// annotations with which a creation is begun and its failure recorded.
fn desired_state(object: &Trigger) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    object.metadata.generation.hash(&mut hasher);
    object.metadata.labels.hash(&mut hasher);
    for (key, value) in object.metadata.annotations.iter().flatten() {
        if key != workspace::CREATE_PENDING && key != workspace::CREATE_FAILED {
            (key, value).hash(&mut hasher);
        }
    }
    Some(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::module::{Assignment, Given, Module};
    use super::{Trigger, desired_state};
    use serde_json::{Value, json};

    #[test]
    fn only_a_change_of_what_is_desired_wakes_a_pass() {
        let hash = |metadata: Value| {
            let object: Trigger = serde_json::from_value(json!({"metadata": metadata})).expect("metadata");
            desired_state(&object)
        };
        let plain = hash(json!({"generation": 1}));
        let silent = [
            json!({"generation": 1, "resourceVersion": "7", "finalizers": ["x"]}),
            json!({"generation": 1, "annotations": {"crossplane.io/external-create-pending": "now"}}),
            json!({"generation": 1, "annotations": {"crossplane.io/external-create-failed": "now"}}),
        ];
        for metadata in silent {
            assert_eq!(hash(metadata.clone()), plain, "{metadata}");
        }
        let loud = [
            json!({"generation": 2}),
            json!({"generation": 1, "labels": {"a": "b"}}),
            json!({"generation": 1, "annotations": {"a": "b"}}),
            json!({"generation": 1, "annotations": {"crossplane.io/external-create-succeeded": "now"}}),
        ];
        for metadata in loud {
            assert_ne!(hash(metadata.clone()), plain, "{metadata}");
        }
    }

    /// The outputs of a shipped template when only its variables without default are given.
    fn outputs(template: &str, given: &[(&str, &str)]) -> serde_json::Map<String, Value> {
        let template: Value = serde_saphyr::from_str(template).expect("YAML");
        let parameters = &template["spec"]["template"]["spec"]["forProvider"];
        let assignments: Vec<_> = parameters["vars"]
            .as_array()
            .expect("vars")
            .iter()
            .map(|var| {
                let placeholder = var["value"].as_str().expect("a value");
                let key = placeholder
                    .strip_prefix("${")
                    .and_then(|text| text.strip_suffix('}'))
                    .expect("a placeholder");
                let value = match key.split_once(":-") {
                    Some((_, default)) => default,
                    None => given.iter().find(|(name, _)| *name == key).expect("a value for it").1,
                };
                Assignment {
                    name: var["key"].as_str().expect("a key").to_owned(),
                    value: Given::CommandLine(value.to_owned()),
                }
            })
            .collect();
        let desired = Module::parse(parameters["module"].as_str().expect("a module"))
            .and_then(|module| module.evaluate("ns-name", &assignments))
            .unwrap_or_else(|diagnostic| panic!("{diagnostic:?}"));
        let shown = desired.outputs.into_iter().map(|(name, output)| {
            assert!(
                !output.needs.is_empty(),
                "{name} must not exist before what it describes"
            );
            let hidden = Value::String("(sensitive)".into());
            (name, if output.sensitive { hidden } else { output.value })
        });
        shown.collect()
    }

    #[test]
    fn the_shipped_templates_give_the_outputs_that_capt_reads() {
        let vpc = outputs(
            include_str!("../simulator-templates/sim-vpc.yaml"),
            &[("cluster_name", "a"), ("vpc_name", "a-vpc"), ("region", "eu-west-1")],
        );
        let id = vpc["vpc_id"]
            .as_str()
            .and_then(|id| id.strip_prefix("vpc-"))
            .expect("an ID");
        assert!(id.len() == 17 && id.chars().all(|c| c.is_ascii_hexdigit()), "{id}");
        assert_eq!(vpc["azs"], json!(["eu-west-1a", "eu-west-1b", "eu-west-1c"]));
        for subnets in ["private_subnets", "public_subnets"] {
            assert_eq!(vpc[subnets].as_array().map(Vec::len), Some(3));
        }
        let eks = outputs(
            include_str!("../simulator-templates/sim-eks.yaml"),
            &[
                ("cluster_name", "a"),
                ("kubernetes_version", "1.31"),
                ("region", "eu-west-1"),
                ("vpc_id", "vpc-1"),
                ("cluster_endpoint", "https://127.0.0.1:6443"),
                ("cluster_certificate_authority_data", "Y2E="),
                ("kubeconfig", "apiVersion: v1"),
            ],
        );
        assert_eq!(
            Value::Object(eks),
            json!({
                "cluster_name": "a", "cluster_version": "1.31", "cluster_endpoint": "https://127.0.0.1:6443",
                "cluster_certificate_authority_data": "Y2E=", "kubeconfig": "(sensitive)",
            })
        );
    }
}
