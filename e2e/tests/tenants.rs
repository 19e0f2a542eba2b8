//! Tenants on a real control plane: their namespaces come, are kept, and go after everything that Terraform made in them.

use anyhow::{Context, Result, ensure};
use capt_api::names::{self, TENANT_ADMIN_BINDING, finalizer, label};
use capt_e2e::audit;
use capt_e2e::components::{CORE, TENANT_CONTROLLER, WORKSPACE_CONTROLLER};
use capt_e2e::testing::bench::{Bench, Names, Wishes};
use capt_e2e::testing::history::History;
use capt_e2e::testing::{
    self, component, condition, create, is_true, message, objects, until, until_gone, until_may_create,
};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PropagationPolicy};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::RwLock;

const NAMES: Names = Names::same("demo");

/// Held by everyone who needs the controller, and wholly by the one who takes it away.
static CONTROLLER: RwLock<()> = RwLock::const_new(());

/// One Tenant, and what is made for it.
struct Tenant {
    client: Client,
    name: String,
    tenants: Api<DynamicObject>,
    namespaces: Api<DynamicObject>,
}

impl Tenant {
    /// A Tenant whose name nobody else has, with this spec.
    async fn new(prefix: &str, spec: Value) -> Result<Self> {
        let client = testing::client().await?;
        let tenants = objects(&client, "multitenancy.capt.dev/v1beta1", "Tenant", None);
        let manifest = json!({
            "apiVersion": "multitenancy.capt.dev/v1beta1", "kind": "Tenant",
            "metadata": { "generateName": format!("{prefix}-") }, "spec": spec,
        });
        let made = create(&client, None, manifest).await?;
        Ok(Self {
            namespaces: objects(&client, "v1", "Namespace", None),
            name: made.name_any(),
            tenants,
            client,
        })
    }

    fn namespace(&self, name: &str) -> String {
        format!("{}-{name}", self.name)
    }

    fn bindings(&self, namespace: &str) -> Api<DynamicObject> {
        let namespace = self.namespace(namespace);
        objects(
            &self.client,
            "rbac.authorization.k8s.io/v1",
            "RoleBinding",
            Some(&namespace),
        )
    }

    async fn until(&self, what: &str, holds: impl Fn(&DynamicObject) -> bool) -> Result<DynamicObject> {
        until(&self.tenants, &self.name, what, holds).await
    }

    async fn until_ready(&self) -> Result<DynamicObject> {
        self.until("Ready", |tenant| is_current(tenant) && is_true(tenant, "Ready"))
            .await
    }

    async fn patch(&self, patch: Value) -> Result<()> {
        let patch = Patch::Merge(patch);
        self.tenants
            .patch(&self.name, &PatchParams::default(), &patch)
            .await
            .map(drop)?;
        Ok(())
    }

    async fn delete(&self, how: PropagationPolicy) -> Result<()> {
        let how = DeleteParams {
            propagation_policy: Some(how),
            ..DeleteParams::default()
        };
        self.tenants.delete(&self.name, &how).await.map(drop)?;
        Ok(())
    }

    /// Deletes it, and sees that it and its namespaces go.
    async fn goes(&self, namespaces: &[&str]) -> Result<()> {
        self.delete(PropagationPolicy::Background).await?;
        until_gone(&self.tenants, &self.name).await?;
        for name in namespaces {
            ensure!(self.find(name).await?.is_none(), "{name} is left");
        }
        Ok(())
    }

    async fn find(&self, namespace: &str) -> Result<Option<DynamicObject>> {
        Ok(self.namespaces.get_opt(&self.namespace(namespace)).await?)
    }
}

/// Whether what is said was said of the spec as it is now.
fn is_current(object: &DynamicObject) -> bool {
    object
        .data
        .pointer("/status/observedGeneration")
        .and_then(Value::as_i64)
        == object.metadata.generation
}

#[tokio::test]
async fn a_tenant_gets_its_namespaces_and_an_administrator() -> Result<()> {
    let _controller = CONTROLLER.read().await;
    let group = "team-a-admins";
    let admin = json!({ "kind": "Group", "name": group });
    let tenant = Tenant::new("team", json!({ "namespaces": ["dev", "prod"], "admin": admin })).await?;
    let ready = tenant.until_ready().await?;
    ensure!(
        ready.data["status"]["namespaces"] == json!([tenant.namespace("dev"), tenant.namespace("prod")]),
        "{}",
        ready.data["status"]
    );
    ensure!(ready.finalizers() == [finalizer::TENANT], "{:?}", ready.finalizers());
    let dev = tenant.find("dev").await?.context("no namespace")?;
    let [owner] = dev.owner_references() else {
        anyhow::bail!("{:?}", dev.owner_references());
    };
    ensure!(
        Some(&owner.uid) == ready.metadata.uid.as_ref() && owner.controller == Some(true),
        "{owner:?}"
    );
    ensure!(
        dev.labels().get(label::TENANT) == Some(&tenant.name),
        "{:?}",
        dev.labels()
    );
    for (namespace, expected) in [
        (tenant.namespace("dev"), true),
        (tenant.namespace("prod"), true),
        ("default".to_owned(), false),
    ] {
        until_may_create(&tenant.client, group, ("", "secrets", &namespace), expected).await?;
    }

    // What somebody takes away or changes comes back.
    let bindings = tenant.bindings("dev");
    let before = bindings.get(TENANT_ADMIN_BINDING).await?;
    bindings.delete(TENANT_ADMIN_BINDING, &DeleteParams::default()).await?;
    let is_another = |binding: &DynamicObject| binding.metadata.uid != before.metadata.uid;
    until(&bindings, TENANT_ADMIN_BINDING, "made again", is_another).await?;
    for damage in [
        json!({ "subjects": [{ "kind": "Group", "name": "others", "apiGroup": "rbac.authorization.k8s.io" }] }),
        json!({ "metadata": { "labels": null } }),
        json!({ "metadata": { "ownerReferences": null } }),
    ] {
        let params = PatchParams::default();
        bindings
            .patch(TENANT_ADMIN_BINDING, &params, &Patch::Merge(&damage))
            .await?;
        until(&bindings, TENANT_ADMIN_BINDING, "mended", |binding| {
            binding.data["subjects"][0]["name"] == group
                && binding.labels().get(label::TENANT) == Some(&tenant.name)
                && binding.owner_references().len() == 1
        })
        .await?;
    }
    for damage in [
        json!({ "metadata": { "labels": { label::OWNER_UID: null, label::TENANT: null } } }),
        json!({ "metadata": { "ownerReferences": null } }),
    ] {
        let (name, params) = (tenant.namespace("dev"), PatchParams::default());
        tenant.namespaces.patch(&name, &params, &Patch::Merge(&damage)).await?;
        until(&tenant.namespaces, &name, "mended", |namespace| {
            namespace.labels().contains_key(label::OWNER_UID) && namespace.owner_references().len() == 1
        })
        .await?;
    }

    // A changed wish is carried out: one namespace more, one less, and another administrator.
    let admin = json!({ "kind": "User", "name": "ann" });
    tenant
        .patch(json!({ "spec": { "namespaces": ["dev", "test"], "admin": admin } }))
        .await?;
    until_gone(&tenant.namespaces, &tenant.namespace("prod")).await?;
    let ready = tenant.until_ready().await?;
    ensure!(
        ready.data["status"]["namespaces"] == json!([tenant.namespace("dev"), tenant.namespace("test")]),
        "{}",
        ready.data["status"]
    );
    until_may_create(&tenant.client, group, ("", "secrets", &tenant.namespace("dev")), false).await?;

    let begun = jiff::Timestamp::now();
    tenant.goes(&["dev", "test"]).await?;
    let requests = audit::read(&testing::environment()?)?.0;
    let own = requests.iter().filter(|request| request.user() == TENANT_CONTROLLER);
    let refused: Vec<String> = own
        .clone()
        .filter(|request| request.lacked_permission())
        .map(ToString::to_string)
        .collect();
    ensure!(refused.is_empty(), "it lacks permissions: {refused:#?}");
    let deletes = own.filter(|request| {
        request.received() >= begun && request.verb == "delete" && request.object().1 == tenant.namespace("dev")
    });
    ensure!(deletes.count() == 1, "a namespace was deleted more than once");
    Ok(())
}

/// With real Terraform, and with a controller that dies on the way.
#[tokio::test]
async fn clusters_go_before_their_namespace() -> Result<()> {
    let tenant = Tenant::new("going", json!({ "namespaces": ["dev"] })).await?;
    tenant.until_ready().await?;
    let namespace = tenant.namespace("dev");
    let environment = testing::environment()?;
    let bench = Bench::within(environment.clone(), &namespace).await?;
    bench.create_templates().await?;
    bench.cluster(&NAMES, Wishes::default()).await?;
    bench.available(&NAMES).await?;
    let counted = tenant
        .until("a Cluster is counted", |tenant| tenant.data["status"]["clusters"] == 1)
        .await?;
    ensure!(is_true(&counted, "Ready"), "{}", counted.data["status"]);

    let [_, eks] = bench.workspaces(&NAMES);
    bench
        .fail_destroys(&eks, "DependencyViolation: something is in the way")
        .await?;
    tenant.delete(PropagationPolicy::Background).await?;
    let waits = |tenant: &DynamicObject| condition(tenant, "Deleting") == "True/WaitingForClusters";
    let waiting = tenant.until("waiting for the Cluster", waits).await?;
    let said = message(&waiting, "Deleting");
    ensure!(said.ends_with(&format!("Cluster {namespace}/demo")), "{said}");
    let kept = tenant.find("dev").await?.context("the namespace went first")?;
    ensure!(kept.metadata.deletion_timestamp.is_none(), "the namespace goes already");

    let away = CONTROLLER.write().await;
    let stopped = component::kill(&environment, TENANT_CONTROLLER).await?;
    bench.heal(&eks).await?;
    bench.gone(&NAMES).await?;
    stopped.start()?;
    drop(away);
    until_gone(&tenant.tenants, &tenant.name).await?;
    ensure!(tenant.find("dev").await?.is_none(), "the namespace is left");
    for workspace in bench.workspaces(&NAMES) {
        bench.no_workspace(&workspace).await?;
    }

    // The log tells who came first.
    let log = audit::read(&environment)?.0;
    let last = |user: &str, verb: &str, resource: &str, object: (&str, &str)| {
        let requests = log.iter().filter(|request| {
            request.user() == user
                && request.verb == verb
                && request.resource_path() == resource
                && request.object() == object
        });
        let last = requests.map(|request| request.received()).max();
        last.with_context(|| format!("{user} never asked to {verb} {resource} {object:?}"))
    };
    let order = [
        last(TENANT_CONTROLLER, "delete", "clusters", (&namespace, "demo"))?,
        last(WORKSPACE_CONTROLLER, "delete", "workspaces", ("", &eks))?,
        last(CORE, "patch", "clusters", (&namespace, "demo"))?,
        last(TENANT_CONTROLLER, "delete", "namespaces", (&namespace, &namespace))
            .or_else(|_| last(TENANT_CONTROLLER, "delete", "namespaces", ("", &namespace)))?,
        last(TENANT_CONTROLLER, "patch", "tenants", ("", &tenant.name))?,
    ];
    ensure!(order.is_sorted(), "{order:?}");
    Ok(())
}

/// Not even a foreground deletion, which asks the garbage collector to delete everything first, gets past Block.
#[tokio::test]
async fn block_keeps_a_namespace_that_is_in_use() -> Result<()> {
    let _controller = CONTROLLER.read().await;
    let spec = json!({ "namespaces": ["dev", "empty"], "deletionPolicy": "Block" });
    let tenant = Tenant::new("blocking", spec).await?;
    tenant.until_ready().await?;
    let namespace = tenant.namespace("dev");
    let cluster = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": { "name": "paused" },
        "spec": {
            "paused": true,
            "controlPlaneRef": { "apiGroup": "controlplane.cluster.x-k8s.io", "kind": "CAPTControlPlane", "name": "paused" },
            "infrastructureRef": { "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "CAPTCluster", "name": "paused" },
        },
    });
    create(&tenant.client, Some(&namespace), cluster).await?;

    // No longer wished, but in use.
    tenant.patch(json!({ "spec": { "namespaces": ["empty"] } })).await?;
    let blocked = |type_: &'static str| {
        move |tenant: &DynamicObject| is_current(tenant) && condition(tenant, type_).ends_with("/ClustersExist")
    };
    let said = tenant.until("kept", blocked("Ready")).await?;
    let said = message(&said, "Ready");
    ensure!(said.ends_with(&format!("holds Cluster {namespace}/paused")), "{said}");

    tenant.delete(PropagationPolicy::Foreground).await?;
    tenant
        .until("kept in spite of the deletion", blocked("Deleting"))
        .await?;
    until_gone(&tenant.namespaces, &tenant.namespace("empty")).await?;
    let kept = tenant.find("dev").await?.context("the namespace is gone")?;
    ensure!(kept.metadata.deletion_timestamp.is_none(), "the namespace goes");

    // Its end is the user's decision, and then nothing is left.
    let clusters = objects(&tenant.client, "cluster.x-k8s.io/v1beta2", "Cluster", Some(&namespace));
    let unpaused = Patch::Merge(json!({ "spec": { "paused": false } }));
    clusters.patch("paused", &PatchParams::default(), &unpaused).await?;
    clusters.delete("paused", &DeleteParams::background()).await?;
    until_gone(&tenant.tenants, &tenant.name).await?;
    ensure!(tenant.find("dev").await?.is_none(), "the namespace is left");
    Ok(())
}

#[tokio::test]
async fn a_namespace_of_somebody_else_is_never_taken() -> Result<()> {
    let _controller = CONTROLLER.read().await;
    let client = testing::client().await?;
    let existing = testing::namespace(&client, "existing").await?;
    let spec = json!({ "namespacePrefix": "", "namespaces": [existing] });
    let tenant = Tenant::new("greedy", spec).await?;
    let conflict = |tenant: &DynamicObject| condition(tenant, "Ready") == "False/OwnershipConflict";
    let said = tenant.until("a conflict", conflict).await?;
    let said = message(&said, "Ready");
    ensure!(said.starts_with(&format!("Namespace {existing} exists")), "{said}");
    let untouched = tenant.namespaces.get(&existing).await?;
    ensure!(untouched.owner_references().is_empty(), "it was taken");

    // When it is gone, its name is free.
    let old = untouched.metadata.uid;
    tenant.namespaces.delete(&existing, &DeleteParams::background()).await?;
    tenant.until_ready().await?;
    let own = tenant.namespaces.get(&existing).await?;
    ensure!(
        own.metadata.uid != old && own.owner_references().len() == 1,
        "{:?}",
        own.metadata
    );
    tenant.delete(PropagationPolicy::Background).await?;
    until_gone(&tenant.tenants, &tenant.name).await?;
    until_gone(&tenant.namespaces, &existing).await
}

#[tokio::test]
async fn namespaces_are_kept_when_the_deletion_asks_for_it() -> Result<()> {
    let _controller = CONTROLLER.read().await;
    let tenant = Tenant::new("orphaning", json!({ "namespaces": ["dev"] })).await?;
    tenant.until_ready().await?;
    tenant.delete(PropagationPolicy::Orphan).await?;
    until_gone(&tenant.tenants, &tenant.name).await?;
    let kept = tenant.find("dev").await?.context("the namespace is gone")?;
    ensure!(kept.metadata.deletion_timestamp.is_none(), "the namespace goes");
    ensure!(kept.owner_references().is_empty(), "{:?}", kept.owner_references());
    tenant
        .namespaces
        .delete(&kept.name_any(), &DeleteParams::background())
        .await?;
    Ok(())
}

#[tokio::test]
async fn a_pause_stops_a_deletion_before_it_does_harm() -> Result<()> {
    let _controller = CONTROLLER.read().await;
    let tenant = Tenant::new("pausing", json!({ "namespaces": ["dev"] })).await?;
    tenant.until_ready().await?;
    let annotated = |value: Value| json!({ "metadata": { "annotations": { names::annotation::PAUSED: value } } });
    tenant.patch(annotated(json!(""))).await?;
    tenant.until("paused", |tenant| is_true(tenant, "Paused")).await?;
    tenant.delete(PropagationPolicy::Background).await?;
    let paused = |tenant: &DynamicObject| condition(tenant, "Deleting") == "True/Paused";
    tenant.until("paused while it is being deleted", paused).await?;
    let kept = tenant.find("dev").await?.context("the namespace is gone")?;
    ensure!(kept.metadata.deletion_timestamp.is_none(), "the namespace goes");
    let mut namespace = History::begin(tenant.namespaces.clone(), &tenant.namespace("dev")).await?;
    tenant.patch(annotated(Value::Null)).await?;
    until_gone(&tenant.tenants, &tenant.name).await?;
    namespace.until_gone().await
}
