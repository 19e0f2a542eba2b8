//! The CRDs as the API server sees them: accepted and served, printed as documented, and keeping what the Terraform
//! provider may know and CAPT does not.

use anyhow::{Context, Result, ensure};
use capt_api::cluster::CaptClusterSpec;
use capt_api::common::TemplateReference;
use capt_api::{CaptCluster, CaptControlPlane, WorkspaceTemplate, WorkspaceTemplateApply, crd};
use capt_e2e::testing::{self, condition, until};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, CustomResourceExt, Resource, ResourceExt};
use serde_json::{Value, json};

#[tokio::test]
async fn the_crds_are_served_as_generated() -> Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(testing::client().await?);
    for wanted in crd::all() {
        let name = wanted.name_any();
        let live = api
            .get(&name)
            .await
            .with_context(|| format!("{name} is not installed"))?;
        ensure!(
            live.spec.versions == wanted.spec.versions,
            "{name} is not the one that this tree generates"
        );
        for (key, value) in wanted.labels() {
            ensure!(live.labels().get(key) == Some(value), "{name} lacks the label {key}");
        }
        let conditions = live.status.and_then(|status| status.conditions).unwrap_or_default();
        let status = |type_: &str| {
            conditions
                .iter()
                .find(|condition| condition.type_ == type_)
                .map(|condition| condition.status.as_str())
        };
        ensure!(
            status("Established") == Some("True"),
            "{name} is not established: {conditions:?}"
        );
        ensure!(status("NamesAccepted") == Some("True"), "{name}: {conditions:?}");
        ensure!(
            status("NonStructuralSchema").is_none_or(|status| status == "False"),
            "{name}: {conditions:?}"
        );
    }
    Ok(())
}

/// A Workspace spec with fields that are in no list of ours, at every level.
fn workspace_spec() -> Value {
    json!({
        "futureField": { "deep": [1, null, { "x": true }] },
        "forProvider": {
            "source": "Inline",
            "module": "output \"a\" { value = \"${WORKSPACE_NAME}\" }",
            "entrypoint": "",
            "remotePullPolicy": "IfNotPresent",
            "vars": [{ "key": "k", "value": "v", "sensitive": true }],
            "varmap": { "list": [1, 2], "nested": { "a": null } },
            "varFiles": [{
                "source": "SecretKey", "optional": true,
                "secretKeyRef": { "name": "s", "namespace": "ns", "key": "k", "version": 3 },
            }],
            "env": [{ "name": "A", "configMapKeyRef": { "name": "c", "key": "k", "hint": "h" }, "when": "plan" }],
            "applyArgs": [],
            "enableTerraformCLILogging": true,
        },
        "providerConfigRef": { "name": "default", "policy": { "resolution": "Optional" } },
        "managementPolicies": ["Observe", "Create"],
        "deletionPolicy": "Orphan",
        "writeConnectionSecretToRef": { "name": "s", "namespace": "ns", "metadata": { "labels": { "a": "b" } } },
    })
}

#[tokio::test]
async fn unknown_workspace_fields_survive() -> Result<()> {
    let client = testing::client().await?;
    let namespace = testing::namespace(&client, "api-unknown").await?;
    let resource = ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("infrastructure.cluster.x-k8s.io", "v1beta1", "WorkspaceTemplate"),
        "workspacetemplates",
    );
    let raw: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &resource);
    let typed: Api<WorkspaceTemplate> = Api::namespaced(client, &namespace);

    let object =
        DynamicObject::new("t", &resource).data(json!({ "spec": { "template": { "spec": workspace_spec() } } }));
    raw.create(&PostParams::default(), &object).await?;
    // The controller has had its say, and leaves the template alone from now on.
    until(&raw, "t", "checked", |template| {
        condition(template, "Valid") == "False/CrossNamespaceReference"
    })
    .await?;

    // Through our types and back: what a controller reads and writes.
    let mut template = typed.get("t").await?;
    template.labels_mut().insert("touched".into(), "yes".into());
    typed.replace("t", &PostParams::default(), &template).await?;

    let stored = raw.get("t").await?;
    ensure!(stored.labels().get("touched").is_some(), "the object was not written");
    let spec = stored.data.pointer("/spec/template/spec").context("no spec")?;
    ensure!(
        *spec == workspace_spec(),
        "stored: {spec}\nwanted: {}",
        workspace_spec()
    );
    Ok(())
}

/// A null is what a Helm template with an empty value gives. It must count as left out, for the rules too.
#[tokio::test]
async fn null_counts_as_left_out() -> Result<()> {
    let client = testing::client().await?;
    let namespace = testing::namespace(&client, "api-null").await?;
    let resource = CaptCluster::api_resource();
    let raw: Api<DynamicObject> = Api::namespaced_with(client, &namespace, &resource);
    let object = DynamicObject::new("c", &resource).data(json!({ "spec": {
        "region": "eu-west-1", "vpcTemplateRef": { "name": "t", "namespace": null }, "existingVpcId": null,
        "retainVpcOnDelete": null, "variables": null, "timeouts": null, "controlPlaneEndpoint": null,
    } }));
    let stored = raw.create(&PostParams::default(), &object).await?;
    let expected = json!({ "region": "eu-west-1", "vpcTemplateRef": { "name": "t" } });
    ensure!(stored.data.get("spec") == Some(&expected), "{}", stored.data);
    Ok(())
}

/// What `kubectl get -o wide` shows of one object: (column, priority, cell). The age is left out; it changes.
async fn columns<K: Resource<DynamicType = ()>>(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<Vec<(String, i64, Value)>> {
    let path = format!("{}/{name}", K::url_path(&(), Some(namespace)));
    let request = http::Request::get(path)
        .header(http::header::ACCEPT, "application/json;as=Table;v=v1;g=meta.k8s.io")
        .body(Vec::new())?;
    let table: Value = client.request(request).await?;
    let definitions = table
        .get("columnDefinitions")
        .and_then(Value::as_array)
        .context("no columns")?;
    let cells = table
        .pointer("/rows/0/cells")
        .and_then(Value::as_array)
        .context("no cells")?;
    let mut columns = Vec::new();
    for (definition, cell) in definitions.iter().zip(cells) {
        let name = definition
            .get("name")
            .and_then(Value::as_str)
            .context("a column without a name")?;
        let priority = definition
            .get("priority")
            .and_then(Value::as_i64)
            .context("a column without a priority")?;
        if name != "AGE" {
            columns.push((name.to_owned(), priority, cell.clone()));
        }
    }
    ensure!(columns.len() + 1 == definitions.len(), "there is no column AGE");
    Ok(columns)
}

fn ready(status: &str, reason: &str) -> Value {
    json!([{
        "type": "Ready", "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }])
}

fn expect(seen: Vec<(String, i64, Value)>, expected: &[(&str, i64, Value)]) -> Result<()> {
    let expected: Vec<_> = expected
        .iter()
        .map(|(name, priority, cell)| ((*name).to_owned(), *priority, cell.clone()))
        .collect();
    ensure!(seen == expected, "shown:    {seen:?}\nexpected: {expected:?}");
    Ok(())
}

/// Creates the object and gives it the status, as a controller would.
async fn with_status<K>(client: &Client, namespace: &str, object: Value, status: Value) -> Result<()>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::Serialize
        + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let mut object: K = serde_json::from_value(object)?;
    object
        .labels_mut()
        .insert(capt_api::names::label::CLUSTER_NAME.into(), "demo".into());
    // The controllers of the environment would put a status right that a test makes up.
    object
        .annotations_mut()
        .insert(capt_api::names::annotation::PAUSED.into(), String::new());
    let made = api.create(&PostParams::default(), &object).await?;
    let patch = Patch::Merge(json!({ "status": status }));
    api.patch_status(&made.name_any(), &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

#[tokio::test]
async fn columns_of_kubectl_get() -> Result<()> {
    let client = testing::client().await?;
    let ns = testing::namespace(&client, "api-columns").await?;

    with_status::<CaptCluster>(
        &client,
        &ns,
        json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "CAPTCluster", "metadata": { "name": "c" },
            "spec": { "region": "eu-west-1", "vpcTemplateRef": { "name": "t" } },
        }),
        json!({
            "vpcId": "vpc-1", "ready": true, "endpoint": "api.example.com:443", "vpcWorkspaceName": "w",
            "conditions": ready("True", "VPCCreated"),
        }),
    )
    .await?;
    expect(
        columns::<CaptCluster>(&client, &ns, "c").await?,
        &[
            ("Name", 0, json!("c")),
            ("VPC-ID", 0, json!("vpc-1")),
            ("READY", 0, json!(true)),
            ("ENDPOINT", 0, json!("api.example.com:443")),
            ("CLUSTER", 1, json!("demo")),
            ("REGION", 1, json!("eu-west-1")),
            ("REASON", 1, json!("VPCCreated")),
            ("WORKSPACE", 1, json!("w")),
        ],
    )?;

    with_status::<CaptControlPlane>(
        &client,
        &ns,
        json!({
            "apiVersion": "controlplane.cluster.x-k8s.io/v1beta1", "kind": "CAPTControlPlane", "metadata": { "name": "p" },
            "spec": { "version": "1.31", "workspaceTemplateRef": { "name": "t" }, "controlPlaneConfig": { "region": "eu-west-1" } },
        }),
        json!({
            "ready": false, "phase": "Creating", "endpoint": "h:443", "workspaceTemplateStatus": { "workspaceName": "w" },
            "conditions": ready("False", "WaitingForVPC"),
        }),
    )
    .await?;
    expect(
        columns::<CaptControlPlane>(&client, &ns, "p").await?,
        &[
            ("Name", 0, json!("p")),
            ("READY", 0, json!(false)),
            ("PHASE", 0, json!("Creating")),
            ("VERSION", 0, json!("1.31")),
            ("ENDPOINT", 0, json!("h:443")),
            ("CLUSTER", 1, json!("demo")),
            ("REASON", 1, json!("WaitingForVPC")),
            ("WORKSPACE", 1, json!("w")),
        ],
    )?;

    with_status::<WorkspaceTemplate>(
        &client,
        &ns,
        json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "WorkspaceTemplate", "metadata": { "name": "t" },
            // The controller of the environment judges templates, paused or not, and finds the same of this one.
            "spec": { "template": {
                "metadata": { "version": "1.2.3" },
                "spec": { "forProvider": { "source": "Inline", "module": "output \"a\" { value = 1 }" } },
            } },
        }),
        json!({ "conditions": [{
            "type": "Valid", "status": "True", "reason": "Valid", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }] }),
    )
    .await?;
    expect(
        columns::<WorkspaceTemplate>(&client, &ns, "t").await?,
        &[
            ("Name", 0, json!("t")),
            ("VERSION", 0, json!("1.2.3")),
            ("VALID", 0, json!("True")),
        ],
    )?;

    with_status::<WorkspaceTemplateApply>(
        &client,
        &ns,
        json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "WorkspaceTemplateApply", "metadata": { "name": "a" },
            "spec": { "templateRef": { "name": "t" } },
        }),
        json!({
            "workspaceName": "w", "applied": true, "lastAppliedRevision": "r1", "conditions": ready("True", "Available"),
        }),
    )
    .await?;
    expect(
        columns::<WorkspaceTemplateApply>(&client, &ns, "a").await?,
        &[
            ("Name", 0, json!("a")),
            ("WORKSPACE", 0, json!("w")),
            ("APPLIED", 0, json!(true)),
            ("READY", 0, json!("True")),
            ("REASON", 1, json!("Available")),
            ("REVISION", 1, json!("r1")),
        ],
    )
}

/// A body that a controller makes from our types holds what it set and nothing else, or it would take fields from others.
#[tokio::test]
async fn an_applied_spec_owns_only_what_was_set() -> Result<()> {
    let client = testing::client().await?;
    let namespace = testing::namespace(&client, "api-minimal").await?;
    let api: Api<CaptCluster> = Api::namespaced(client, &namespace);
    let object = CaptCluster::new(
        "c",
        CaptClusterSpec {
            region: "eu-west-1".into(),
            vpc_template_ref: Some(TemplateReference {
                name: "t".into(),
                namespace: None,
            }),
            ..CaptClusterSpec::default()
        },
    );
    let applied = api
        .patch("c", &PatchParams::apply("test"), &Patch::Apply(&object))
        .await?;
    let fields = applied
        .managed_fields()
        .iter()
        .find_map(|entry| entry.fields_v1.clone())
        .context("no managed fields")?;
    let expected = json!({ "f:spec": { "f:region": {}, "f:vpcTemplateRef": { "f:name": {} } } });
    ensure!(fields.0 == expected, "{}", fields.0);
    Ok(())
}

/// The endpoint belongs to one writer as a whole: a user's port must not survive beside the host that CAPT found.
#[tokio::test]
async fn the_control_planes_endpoint_is_replaced_as_a_whole() -> Result<()> {
    let client = testing::client().await?;
    let namespace = testing::namespace(&client, "api-endpoint").await?;
    let resource = CaptControlPlane::api_resource();
    let raw: Api<DynamicObject> = Api::namespaced_with(client, &namespace, &resource);
    let object = DynamicObject::new("p", &resource).data(json!({ "spec": {
        "version": "1.31", "workspaceTemplateRef": { "name": "t" }, "controlPlaneConfig": { "region": "eu-west-1" },
        "controlPlaneEndpoint": { "host": "users.example.com", "port": 6443 },
    } }));
    raw.create(&PostParams::default(), &object).await?;

    let endpoint = |endpoint: Value| {
        let mut patch = json!({ "spec": { "controlPlaneEndpoint": endpoint } });
        json_patch::merge(
            &mut patch,
            &json!({ "apiVersion": "controlplane.cluster.x-k8s.io/v1beta1", "kind": "CAPTControlPlane" }),
        );
        Patch::Apply(patch)
    };
    let capt = PatchParams::apply(capt_api::names::Manager::Endpoint.as_str()).force();
    let half = raw
        .patch("p", &capt, &endpoint(json!({ "host": "eks.example.com" })))
        .await;
    ensure!(half.is_err(), "half an endpoint was completed with the user's half");
    let whole = raw
        .patch("p", &capt, &endpoint(json!({ "host": "eks.example.com", "port": 443 })))
        .await?;
    let owners: Vec<_> = whole
        .managed_fields()
        .iter()
        .filter(|entry| {
            let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
            fields.is_some_and(|fields| fields.pointer("/f:spec/f:controlPlaneEndpoint").is_some())
        })
        .filter_map(|entry| entry.manager.as_deref())
        .collect();
    ensure!(owners == ["capt-endpoint"], "{owners:?}");
    Ok(())
}
