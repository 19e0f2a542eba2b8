//! A real API server takes everything that the chart renders, to the last field, and pod security lets its pods in.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use capt_e2e::testing::prometheus::apply_operator_crds;
use capt_e2e::{testing, wait};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams, ValidationDirective};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::helm::Helm;
use crate::render::{everything, merged};

/// As if it were applied; a field that the API server does not know is an error.
pub(crate) async fn dry_run(client: &Client, object: &Value) -> Result<()> {
    let text = |path: &str| object.pointer(path).and_then(Value::as_str);
    let (api_version, kind) = (
        text("/apiVersion").context("no apiVersion")?,
        text("/kind").context("no kind")?,
    );
    let name = text("/metadata/name").context("no name")?;
    let api = testing::objects(client, api_version, kind, text("/metadata/namespace"));
    let params = PatchParams {
        dry_run: true,
        field_validation: Some(ValidationDirective::Strict),
        ..PatchParams::apply("chart-test").force()
    };
    api.patch(name, &params, &Patch::Apply(object))
        .await
        .with_context(|| format!("{kind} {name}"))?;
    Ok(())
}

#[tokio::test]
async fn the_api_server_takes_every_object() -> Result<()> {
    let client = testing::client().await?;
    let monitoring = ["servicemonitors", "podmonitors", "prometheusrules"];
    apply_operator_crds(&client, testing::environment()?.cache(), &monitoring).await?;
    let watched = testing::namespace(&client, "chart-watched").await?;
    let helm = Helm::new().await?;
    // Neither tenants nor templates of other namespaces can be had then.
    let namespaced = json!({
        "watch": { "namespace": watched },
        "allowCrossNamespaceTemplates": false,
        "controllers": { "tenant": { "enabled": false } },
    });
    for values in [json!({}), everything(), merged(everything(), namespaced)] {
        let rendered = helm.render(&values)?;
        ensure!(rendered.objects.len() > 40, "{} objects", rendered.objects.len());
        for object in &rendered.objects {
            dry_run(&client, object).await?;
        }
    }
    let unknown = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "a", "namespace": "default" }, "automount": true,
    });
    ensure!(dry_run(&client, &unknown).await.is_err(), "an unknown field is taken");
    Ok(())
}

/// A namespace with the restricted standard enforced, in which pods can be tried.
async fn restricted_namespace(client: &Client) -> Result<String> {
    // With the label from the beginning: admission may not have heard of a change yet.
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "generateName": "chart-restricted-", "labels": { "pod-security.kubernetes.io/enforce": "restricted" } },
    });
    let name = testing::create(client, None, namespace).await?.name_any();
    // The controller manager makes it, and no pod is admitted before.
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &name);
    let made = wait::until(accounts, "default", |account: Option<&ServiceAccount>| {
        account.is_some()
    });
    tokio::time::timeout(Duration::from_secs(300), made)
        .await
        .context("the namespace gets no account")?;
    Ok(name)
}

#[tokio::test]
async fn the_pods_satisfy_the_restricted_standard() -> Result<()> {
    let client = testing::client().await?;
    let namespace = restricted_namespace(&client).await?;
    let pods: Api<DynamicObject> = testing::objects(&client, "v1", "Pod", Some(&namespace));
    let params = PostParams {
        dry_run: true,
        field_manager: None,
    };
    let admitted = |mut template: Value| {
        template["apiVersion"] = "v1".into();
        template["kind"] = "Pod".into();
        template["metadata"]["name"] = "tried".into();
        // The account is the release's, and not in this namespace.
        template["spec"]["serviceAccountName"] = "default".into();
        let (pods, params) = (pods.clone(), params.clone());
        async move { Ok::<_, anyhow::Error>(pods.create(&params, &serde_json::from_value(template)?).await?) }
    };
    let rendered = Helm::new().await?.render(&json!({ "crds": { "keep": false } }))?;
    let mut tried = 0;
    for object in rendered
        .objects
        .iter()
        .filter(|object| object["spec"]["template"]["spec"].is_object())
    {
        let template = object["spec"]["template"].clone();
        admitted(template)
            .await
            .with_context(|| format!("{} {}", object["kind"], object["metadata"]["name"]))?;
        tried += 1;
    }
    ensure!(
        tried == 8,
        "{tried} pod templates: five controllers and three Jobs are expected"
    );

    let mut root = rendered.pod("capt-secrets")?.clone();
    root["spec"]["securityContext"]["runAsNonRoot"] = json!(false);
    ensure!(admitted(root).await.is_err(), "the standard is not enforced here");
    Ok(())
}
