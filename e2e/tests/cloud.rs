//! The local cloud under the real provider and the real Terraform: what the `local-vpc` and `local-eks` templates make exists
//! outside the management cluster, goes when they go, and fails when it is told to.

#![allow(
    clippy::indexing_slicing,
    reason = "a field that JSON does not have reads as null, and then the test fails as it should"
)]

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use capt_e2e::cloud::{self, Entry, Kind};
use capt_e2e::environment::Environment;
use capt_e2e::{manifests, testing};
use flate2::read::GzDecoder;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::runtime::wait::await_condition;
use kube::{Api, Client, Config};
use serde_json::{Value, json};

/// The slowest step is the end of a deletion: the provider does not believe within 30 s of a creation that a resource is gone.
const PATIENCE: Duration = Duration::from_secs(600);

type Variables<'a> = BTreeMap<&'a str, &'a str>;

/// The control plane, and a prefix for names that no other test uses.
struct World {
    client: Client,
    environment: Environment,
    namespace: String,
}

impl World {
    async fn new() -> Result<Self> {
        let client = testing::client().await?;
        let namespace = testing::namespace(&client, "cloud").await?;
        Ok(Self {
            client,
            environment: testing::environment()?,
            namespace,
        })
    }

    fn name(&self, suffix: &str) -> String {
        format!("{}-{suffix}", self.namespace)
    }

    fn workspaces(&self) -> Api<DynamicObject> {
        Api::all_with(
            self.client.clone(),
            &ApiResource::from_gvk(&GroupVersionKind::gvk("tf.upbound.io", "v1beta1", "Workspace")),
        )
    }

    /// Makes a Workspace as CAPT would: the template's spec, with the variables filled in.
    async fn create(&self, template: &str, name: &str, variables: &Variables<'_>) -> Result<()> {
        let mut spec = template_spec(template)?;
        fill_in(&mut spec, variables)?;
        spec["writeConnectionSecretToRef"] = json!({"name": name, "namespace": self.namespace});
        let workspace = json!({"apiVersion": "tf.upbound.io/v1beta1", "kind": "Workspace", "metadata": {"name": name}, "spec": spec});
        self.workspaces()
            .create(&PostParams::default(), &serde_json::from_value(workspace)?)
            .await?;
        Ok(())
    }

    async fn change(&self, template: &str, name: &str, variables: &Variables<'_>) -> Result<()> {
        let mut spec = template_spec(template)?;
        fill_in(&mut spec, variables)?;
        let patch = json!({"spec": {"forProvider": {"vars": spec["forProvider"]["vars"]}}});
        self.workspaces()
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    async fn delete(&self, name: &str) -> Result<()> {
        self.workspaces().delete(name, &DeleteParams::background()).await?;
        Ok(())
    }

    /// The Workspace, as soon as it is so; what it looked like at last, when it never is.
    async fn until(&self, name: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
        let condition = |object: Option<&DynamicObject>| object.is_some_and(|object| is_so(&object.data));
        match tokio::time::timeout(PATIENCE, await_condition(self.workspaces(), name, condition)).await {
            Ok(found) => Ok(found?.context("the Workspace has gone")?.data),
            Err(_) => {
                let last = self.workspaces().get(name).await?;
                bail!(
                    "{name} is not {what} after {PATIENCE:?}: {:#}\n{}",
                    last.data["status"],
                    failure(&last.data).unwrap_or_default()
                )
            }
        }
    }

    /// Applied, in its present form.
    async fn ready(&self, name: &str) -> Result<Value> {
        let generation = self.workspaces().get_metadata(name).await?.metadata.generation;
        self.until(name, "ready", |object| {
            let synced = condition(object, "Synced");
            status(object, "Ready") == "True"
                && synced["status"] == "True"
                && synced["observedGeneration"].as_i64() >= generation
        })
        .await
    }

    /// Not applied or not destroyed, with this text in what Terraform said.
    async fn failed(&self, name: &str, text: &str) -> Result<Value> {
        self.until(name, &format!("failed with `{text}`"), |object| {
            failure(object).is_some_and(|said| said.contains(text))
        })
        .await
    }

    async fn gone(&self, name: &str) -> Result<()> {
        let gone = await_condition(self.workspaces(), name, |object: Option<&DynamicObject>| {
            object.is_none()
        });
        match tokio::time::timeout(PATIENCE, gone).await {
            Ok(found) => found.map(drop).map_err(Into::into),
            Err(_) => {
                let last = self.workspaces().get(name).await?;
                bail!(
                    "{name} is not gone after {PATIENCE:?}: {:#}\n{}",
                    last.data["status"],
                    failure(&last.data).unwrap_or_default()
                )
            }
        }
    }

    fn entry(&self, kind: Kind, name: &str) -> Result<Option<Entry>> {
        Ok(cloud::entries(&self.environment)?
            .into_iter()
            .find(|entry| entry.kind == kind && entry.name == name))
    }

    async fn cloud(&self, command: cloud::Command) -> Result<()> {
        cloud::run(&self.environment, command).await
    }

    /// The kubeconfig that Terraform gave out, once it is another than `old`.
    async fn kubeconfig(&self, name: &str, old: &str) -> Result<String> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let read = |secret: &Secret| String::from_utf8(secret.data.as_ref()?.get("kubeconfig")?.0.clone()).ok();
        let is_new = |secret: Option<&Secret>| {
            secret
                .and_then(read)
                .is_some_and(|text| !text.is_empty() && text != old)
        };
        let secret = tokio::time::timeout(PATIENCE, await_condition(secrets, name, is_new))
            .await
            .context("no new kubeconfig")??;
        secret
            .as_ref()
            .and_then(read)
            .context("the connection secret has no kubeconfig")
    }
}

fn template_spec(name: &str) -> Result<Value> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/examples/local/templates/{name}.yaml"));
    let template = manifests::read(&file)?.pop().context("an empty template")?;
    Ok(template["spec"]["template"]["spec"].clone())
}

/// `${key}` and `${key:-default}` in the values of the template's variables.
fn fill_in(spec: &mut Value, variables: &Variables<'_>) -> Result<()> {
    let mut unused: Vec<&str> = variables.keys().copied().collect();
    for var in spec["forProvider"]["vars"]
        .as_array_mut()
        .context("the template has no variables")?
    {
        let text = var["value"].as_str().unwrap_or_default();
        let Some(inside) = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')) else {
            continue;
        };
        let (key, default) = inside
            .split_once(":-")
            .map_or((inside, None), |(key, default)| (key, Some(default)));
        let value = variables
            .get(key)
            .copied()
            .or(default)
            .with_context(|| format!("no value for {key}"))?
            .to_owned();
        unused.retain(|unused| *unused != key);
        var["value"] = value.into();
    }
    ensure!(unused.is_empty(), "the template does not know {unused:?}");
    Ok(())
}

fn condition(object: &Value, kind: &str) -> Value {
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions
        .into_iter()
        .find(|condition| condition["type"] == kind)
        .unwrap_or_default()
}

fn status(object: &Value, kind: &str) -> String {
    condition(object, kind)["status"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// What Terraform said, unpacked as the provider's message tells people to: `echo "…" | base64 -d | gunzip`.
fn failure(object: &Value) -> Option<String> {
    let synced = condition(object, "Synced");
    let message = synced["message"].as_str().filter(|_| synced["status"] == "False")?;
    let packed = message.split_once("echo \"")?.1.split('"').next()?;
    let packed = base64::engine::general_purpose::STANDARD.decode(packed).ok()?;
    let mut text = String::new();
    GzDecoder::new(packed.as_slice()).read_to_string(&mut text).ok()?;
    Some(text)
}

fn network() -> Variables<'static> {
    Variables::from([
        ("cluster_name", "blue"),
        ("vpc_name", "blue-vpc"),
        ("region", "eu-central-1"),
    ])
}

async fn client_of(kubeconfig: &str) -> Result<Client> {
    let config =
        Config::from_custom_kubeconfig(Kubeconfig::from_yaml(kubeconfig)?, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

async fn namespaces_in(kubeconfig: &str) -> Result<Vec<String>> {
    let listed = Api::<Namespace>::all(client_of(kubeconfig).await?)
        .list(&ListParams::default())
        .await?;
    Ok(listed
        .items
        .into_iter()
        .filter_map(|namespace| namespace.metadata.name)
        .collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_and_a_cluster_are_made_changed_and_removed() -> Result<()> {
    let world = World::new().await?;
    let (vpc, eks) = (world.name("vpc"), world.name("eks"));

    world.create("local-vpc", &vpc, &network()).await?;
    let outputs = world.ready(&vpc).await?["status"]["atProvider"]["outputs"].clone();
    let vpc_id = outputs["vpc_id"].as_str().context("no vpc_id")?;
    assert!(
        vpc_id.strip_prefix("vpc-").is_some_and(|hex| hex.len() == 17),
        "{vpc_id}"
    );
    assert_eq!(
        outputs["azs"],
        json!(["eu-central-1a", "eu-central-1b", "eu-central-1c"])
    );
    assert_eq!(outputs["vpc_cidr"], "10.0.0.0/16");
    for subnets in ["private_subnets", "public_subnets"] {
        assert_eq!(outputs[subnets].as_array().map(Vec::len), Some(3), "{outputs}");
    }
    assert_eq!(
        world
            .entry(Kind::Vpc, &vpc)?
            .context("no VPC in the ledger")?
            .input("vpc_id"),
        vpc_id
    );

    let subnets = outputs["private_subnets"].to_string();
    let mut variables = Variables::from([
        ("cluster_name", "blue"),
        ("kubernetes_version", "1.31"),
        ("region", "eu-central-1"),
        ("vpc_id", vpc_id),
        ("vpc_private_subnets", &subnets),
        ("tags", r#"{"team":"blue"}"#),
    ]);
    world.create("local-eks", &eks, &variables).await?;
    let outputs = world.ready(&eks).await?["status"]["atProvider"]["outputs"].clone();
    let kubeconfig = world.kubeconfig(&eks, "").await?;
    assert!(outputs.get("kubeconfig").is_none(), "a sensitive output is public");
    assert_eq!(outputs["cluster_version"], "1.31");
    assert!(namespaces_in(&kubeconfig).await?.contains(&"kube-system".to_owned()));
    let endpoint = outputs["cluster_endpoint"].as_str().context("no cluster_endpoint")?;
    assert!(kubeconfig.contains(&format!("server: {endpoint}\n")));
    let authority = outputs["cluster_certificate_authority_data"]
        .as_str()
        .context("no authority")?;
    assert!(
        base64::engine::general_purpose::STANDARD
            .decode(authority)?
            .starts_with(b"-----BEGIN CERTIFICATE-----")
    );
    // It is not the management cluster that answered.
    assert!(!namespaces_in(&kubeconfig).await?.contains(&world.namespace));

    // An upgrade reaches the ledger, and what is in the cluster stays.
    let inside = Namespace {
        metadata: kube::api::ObjectMeta {
            name: Some("kept".into()),
            ..Default::default()
        },
        ..Default::default()
    };
    Api::<Namespace>::all(client_of(&kubeconfig).await?)
        .create(&PostParams::default(), &inside)
        .await?;
    variables.insert("kubernetes_version", "1.32");
    world.change("local-eks", &eks, &variables).await?;
    assert_eq!(
        world.ready(&eks).await?["status"]["atProvider"]["outputs"]["cluster_version"],
        "1.32"
    );
    assert_eq!(
        world
            .entry(Kind::Cluster, &eks)?
            .context("no cluster in the ledger")?
            .input("kubernetes_version"),
        "1.32"
    );

    // A rotated token is given out by Terraform when it looks again; the old one has ended, the endpoint has not moved.
    world
        .cloud(cloud::Command::Cluster(cloud::ClusterCommand::Rotate {
            name: eks.clone(),
        }))
        .await?;
    let touch = json!({"metadata": {"annotations": {"capt.test/look": "again"}}});
    world
        .workspaces()
        .patch(&eks, &PatchParams::default(), &Patch::Merge(touch))
        .await?;
    let rotated = world.kubeconfig(&eks, &kubeconfig).await?;
    assert!(namespaces_in(&rotated).await?.contains(&"kept".to_owned()));
    let refused = namespaces_in(&kubeconfig)
        .await
        .err()
        .context("the old token still opens the cluster")?;
    assert!(
        matches!(refused.downcast_ref(), Some(kube::Error::Api(answer)) if answer.code == 401),
        "{refused:#}"
    );

    // The network cannot go before the cluster.
    world.delete(&vpc).await?;
    world.failed(&vpc, "DependencyViolation").await?;
    assert!(cloud::keys_in_etcd(&world.environment, &eks).await? > 0);
    world.delete(&eks).await?;
    tokio::try_join!(world.gone(&eks), world.gone(&vpc))?;
    assert_eq!(world.entry(Kind::Cluster, &eks)?, None);
    assert_eq!(world.entry(Kind::Vpc, &vpc)?, None);
    assert_eq!(cloud::keys_in_etcd(&world.environment, &eks).await?, 0);
    assert!(namespaces_in(&rotated).await.is_err(), "the API server still answers");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_was_killed_comes_back_where_it_was() -> Result<()> {
    let world = World::new().await?;
    let eks = world.name("eks");
    let variables = [
        ("cluster_name", "red"),
        ("kubernetes_version", "1.31"),
        ("region", "eu-west-1"),
        ("vpc_id", "vpc-0123"),
    ];
    world.create("local-eks", &eks, &variables.into()).await?;
    world.ready(&eks).await?;
    let kubeconfig = world.kubeconfig(&eks, "").await?;
    let process = cloud::process(&world.environment, &eks).context("no process")?;
    process.signal(nix::sys::signal::Signal::SIGKILL);
    process.stop(Duration::from_secs(5)).await;
    assert!(
        namespaces_in(&kubeconfig).await.is_err(),
        "the API server still answers"
    );
    cloud::heal(&world.environment).await?;
    assert!(namespaces_in(&kubeconfig).await?.contains(&"default".to_owned()));
    world.delete(&eks).await?;
    world.gone(&eks).await?;
    assert!(cloud::process(&world.environment, &eks).is_none());
    assert_eq!(world.entry(Kind::Cluster, &eks)?, None);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_apply_fails_with_the_ordered_message_until_it_is_healed() -> Result<()> {
    let world = World::new().await?;
    let vpc = world.name("vpc");
    // Longer than a line of Terraform's.
    let quota = "VpcLimitExceeded: The maximum number of VPCs has been reached. Ask for \"more\" in eu-central-1, or delete one of 5.";
    let mut variables = network();
    variables.insert("fault_apply", quota);
    world.create("local-vpc", &vpc, &variables).await?;
    let failed = world.failed(&vpc, quota).await?;
    assert_eq!(status(&failed, "Ready"), "False");
    assert_eq!(
        failed["status"]["atProvider"].get("outputs"),
        None,
        "outputs of what was never made"
    );
    assert_eq!(
        world.entry(Kind::Vpc, &vpc)?,
        None,
        "something was made before the failure"
    );
    world.cloud(cloud::Command::Heal { name: vpc.clone() }).await?;
    world.ready(&vpc).await?;
    assert!(world.entry(Kind::Vpc, &vpc)?.is_some());
    world.delete(&vpc).await?;
    world.gone(&vpc).await
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_come_and_go_with_the_variables() -> Result<()> {
    let world = World::new().await?;
    let vpc = world.name("vpc");
    let mut variables = network();
    variables.insert("fault_apply_once", "RequestLimitExceeded");
    world.create("local-vpc", &vpc, &variables).await?;
    world.failed(&vpc, "RequestLimitExceeded").await?;
    let made = world.ready(&vpc).await?;

    // A later apply that fails takes nothing away from what is there.
    variables.insert("fault_apply", "InternalError");
    world.change("local-vpc", &vpc, &variables).await?;
    let failed = world.failed(&vpc, "InternalError").await?;
    assert_eq!(status(&failed, "Ready"), "True");
    assert_eq!(
        failed["status"]["atProvider"]["outputs"],
        made["status"]["atProvider"]["outputs"]
    );

    variables.remove("fault_apply");
    variables.insert("fault_destroy", "the account is locked");
    world.change("local-vpc", &vpc, &variables).await?;
    world.ready(&vpc).await?;
    world.delete(&vpc).await?;
    world.failed(&vpc, "the account is locked").await?;
    assert!(
        world.entry(Kind::Vpc, &vpc)?.is_some(),
        "something was removed before the failure"
    );
    world.cloud(cloud::Command::Heal { name: vpc.clone() }).await?;
    world.gone(&vpc).await?;
    assert_eq!(world.entry(Kind::Vpc, &vpc)?, None);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_variable_is_named_and_leaves_nothing_behind() -> Result<()> {
    let world = World::new().await?;
    let eks = world.name("eks");
    let variables = [
        ("cluster_name", "green"),
        ("kubernetes_version", "v1.31.4"),
        ("region", "eu-west-1"),
        ("vpc_id", "vpc-0123"),
    ];
    world.create("local-eks", &eks, &variables.into()).await?;
    world
        .failed(
            &eks,
            "kubernetes_version `v1.31.4` is not a major and minor version, such as 1.31",
        )
        .await?;
    assert_eq!(world.entry(Kind::Cluster, &eks)?, None);
    // An order of the operator reaches a resource whose variables say nothing.
    let order = cloud::Command::Fault {
        name: eks.clone(),
        apply: None,
        destroy: Some("not now".into()),
    };
    world.cloud(order).await?;
    world.delete(&eks).await?;
    world.failed(&eks, "not now").await?;
    world.cloud(cloud::Command::Heal { name: eks.clone() }).await?;
    world.gone(&eks).await
}
