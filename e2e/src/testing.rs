//! What the tests on a real control plane share: a client, and a namespace of their own.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};

use crate::environment::Environment;

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
