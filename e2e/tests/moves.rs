//! `clusterctl move` between two real management clusters whose Terraform has one backend and one cloud: it waits until the
//! backend is declared as shared, nothing is built or destroyed on the way, also when it breaks off, and afterwards only the new
//! home can do either. Two clusters move at the same time: one with cluster-scoped and one with namespaced Workspaces.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use capt_api::WorkspaceKind;
use capt_api::names::{self, annotation, finalizer, label};
use capt_e2e::cloud::Entry;
use capt_e2e::components::{CONTROLLER_NAMESPACE, PROVIDER, STATE_NAMESPACE, WORKSPACE_CONTROLLER};
use capt_e2e::testing::bench::{Bench, Names, Wishes, value};
use capt_e2e::testing::{PATIENCE, Scratch, component, condition, create, is_true, message, objects, until_gone};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, DynamicObject, ListParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;
use tokio::time::sleep;

const PROGRAM: &str = env!("CARGO_BIN_EXE_capt-e2e");
const NAMES: Names = Names {
    cluster: "moved",
    network: "moved-network",
    control_plane: "moved-service",
};

/// What Terraform reads.
const INPUT: &str = "terraform-token";

#[tokio::test]
async fn a_cluster_moves_and_is_neither_built_nor_destroyed_again() -> Result<()> {
    let old = Scratch::named(PROGRAM, "test-move-from")?;
    let new = Scratch::named(PROGRAM, "test-move-to")?;
    std::thread::scope(|scope| {
        let other = scope.spawn(|| new.up(&[]));
        old.up(&[])?;
        other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    // One backend and one cloud: Terraform of the new home keeps its states where that of the old one does, and finds the
    // same things there.
    component::stop(&new.environment, PROVIDER)
        .await?
        .with_variables_of(&old.environment, &["KUBE_CONFIG_PATH", "PATH", "TF_VAR_cloud_dir"])?
        .start()?;

    let first = Bench::of(old.environment.clone(), "move").await?;
    let_terraform_read_a_secret(&first).await?;
    first.cluster(&NAMES, Wishes::default()).await?;
    movable(&first).await?;
    // What was made before keeps its kind. The new home makes cluster-scoped Workspaces, unless an apply has another kind.
    let kind = WorkspaceKind::Namespaced;
    component::stop(&old.environment, WORKSPACE_CONTROLLER)
        .await?
        .start_with(&[&format!("--workspace-kind={kind}")])?;
    let second = Bench::of(old.environment.clone(), "inside")
        .await?
        .with_workspaces(kind);
    let_terraform_read_a_secret(&second).await?;
    second.cluster(&NAMES, Wishes::default()).await?;

    let (new_first, new_second) = (
        first.beside(new.environment.clone()).await?,
        second.beside(new.environment.clone()).await?,
    );
    refused_without_its_providers(&first, &new_first).await?;
    tokio::try_join!(there_and_back(&first, &new_first), there(&second, &new_second))?;
    ensure!(first.ledger()?.is_empty(), "still in the cloud: {:?}", first.ledger()?);
    Ok(())
}

/// A whole journey: blocked, broken off, there, back and there again, and the end.
async fn there_and_back(old: &Bench, new: &Bench) -> Result<()> {
    let before = settled(old).await?;
    given_up_while_it_is_blocked(old, new, &before).await?;
    goes_on_when_the_backend_is_declared_as_shared(old, new, &before).await?;
    given_up_in_the_new_home(old, new, &before).await?;
    begun_again_after_it_broke_off(old, new, &before).await?;
    nothing_is_left_in(old).await?;
    arrived(old, new, &before).await?;

    // The way back, and there again: each time what was let go is taken over once more.
    for (from, to) in [(new, old), (old, new)] {
        movable(from).await?;
        if from.environment.name() == new.environment.name() {
            broken_off_while_it_deletes(from, to, &before).await?;
        }
        from.clusterctl(&["move", &target(to)]).await?;
        movable(to).await?;
        left_to_themselves(from).await?;
        Possessions::of(to).await?.must_equal(&before)?;
    }
    new.available(&NAMES).await?;
    new.check_access(&NAMES).await?;
    let [vpc, eks] = new.workspaces(&NAMES);

    // What is left in the old home can go at any time, and takes nothing with it.
    delete_workspace(old, &vpc).await?;
    Possessions::of(new).await?.must_equal(&before)?;

    new.delete_without_a_trace(&NAMES).await?;
    // Nor does what stayed there make anything again.
    looks_and_does_nothing(old, &eks).await?;
    delete_workspace(old, &eks).await?;
    for workspace in [&vpc, &eks] {
        old.no_workspace(workspace).await?;
    }
    old.invariants_held().await
}

/// The same with Workspaces that are in the namespace. clusterctl does not know their kind, and leaves them behind; the namespace
/// of the old home takes them with it, and nothing else.
async fn there(old: &Bench, new: &Bench) -> Result<()> {
    let before = settled(old).await?;
    declare_the_backend_as_shared(old).await?;
    old.clusterctl(&["move", &target(new)]).await?;
    nothing_is_left_in(old).await?;
    arrived(old, new, &before).await?;
    old.namespaces()
        .delete(&old.namespace, &DeleteParams::background())
        .await?;
    until_gone(&old.namespaces(), &old.namespace).await?;
    Possessions::of(new).await?.must_equal(&before)?;
    new.delete_without_a_trace(&NAMES).await
}

/// What a cluster has that is up and opens.
async fn settled(old: &Bench) -> Result<Possessions> {
    old.available(&NAMES).await?;
    old.check_access(&NAMES).await?;
    let possessions = Possessions::of(old).await?;
    ensure!(
        possessions.entries.len() == 2,
        "a network and a control plane, not {possessions:?}"
    );
    Ok(possessions)
}

/// The cluster is managed again where it was, with everything that it had.
async fn unharmed(old: &Bench, before: &Possessions) -> Result<()> {
    movable(old).await?;
    let ready = |control_plane: &DynamicObject| is_true(control_plane, "Ready");
    old.until(old.control_planes(), NAMES.control_plane, "Ready", ready)
        .await?;
    old.available(&NAMES).await?;
    old.check_access(&NAMES).await?;
    Possessions::of(old).await?.must_equal(before)
}

/// The cluster is up and opens in its new home, with everything that it had.
async fn arrived(old: &Bench, new: &Bench, before: &Possessions) -> Result<()> {
    new.available(&NAMES).await?;
    new.check_access(&NAMES).await?;
    Possessions::of(new).await?.must_equal(before)?;
    belongs_to_its_new_owners(new).await?;
    let states: Api<Secret> = Api::namespaced(new.client.clone(), STATE_NAMESPACE);
    let own = states.list(&ListParams::default().labels("tfstate=true")).await?.items;
    ensure!(own.is_empty(), "Terraform has begun again, with {} states", own.len());
    left_to_themselves(old).await
}

/// Terraform's own input, marked so that clusterctl takes it along: it belongs to no Cluster.
async fn let_terraform_read_a_secret(old: &Bench) -> Result<()> {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "stringData": {"token": "from the old home"},
        "metadata": {"name": INPUT, "labels": {"clusterctl.cluster.x-k8s.io/move": ""}},
    });
    old.create(secret, &Value::Null).await?;
    let env = json!([{"name": "TOKEN", "secretKeyRef": {"name": INPUT, "key": "token"}}]);
    let reads = json!({"spec": {"template": {"spec": {"forProvider": {"env": env}}}}});
    old.patch(&old.templates(), "local-vpc", reads).await.map(drop)
}

/// What a cluster has outside the management clusters, and what opens it.
#[derive(Debug, PartialEq)]
struct Possessions {
    entries: Vec<Entry>,
    /// By workspace: lineage and serial, which an apply of nothing leaves as they are.
    states: BTreeMap<String, (Value, Value)>,
    /// The keys of Terraform's states, by the Workspaces that use them.
    keys: BTreeMap<String, Option<String>>,
    access: Kubeconfig,
}

/// What CAPT makes carries the UID of what it was made for, also without its ownerReference. UIDs are not moved.
async fn belongs_to_its_new_owners(new: &Bench) -> Result<()> {
    let marked = |uid: Option<String>| {
        move |object: &DynamicObject| {
            object
                .labels()
                .get(label::OWNER_UID)
                .is_some_and(|marked| Some(marked) == uid.as_ref())
        }
    };
    let network = new.networks().get(NAMES.network).await?.uid();
    let control_plane = new.control_planes().get(NAMES.control_plane).await?.uid();
    for ((apply, workspace), owner) in applies()
        .into_iter()
        .zip(new.workspaces(&NAMES))
        .zip([network, control_plane.clone()])
    {
        let apply = new.until(new.applies(), &apply, "its owner's", marked(owner)).await?;
        new.until(new.all_workspaces(), &workspace, "its apply's", marked(apply.uid()))
            .await?;
    }
    for secret in [names::kubeconfig_secret(NAMES.cluster), names::ca_secret(NAMES.cluster)] {
        new.until(new.secrets(), &secret, "its owner's", marked(control_plane.clone()))
            .await?;
    }
    let input = new.secrets().get(INPUT).await?;
    ensure!(
        input
            .finalizers()
            .iter()
            .any(|present| present == finalizer::WORKSPACE_INPUT),
        "Terraform's input can be taken away from it"
    );
    Ok(())
}

/// A secret value: it can be compared, and not be shown.
#[derive(PartialEq)]
struct Kubeconfig(String);

impl std::fmt::Debug for Kubeconfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a kubeconfig")
    }
}

impl Possessions {
    async fn of(bench: &Bench) -> Result<Self> {
        let (mut entries, mut states, mut keys) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        for workspace in bench.workspaces(&NAMES) {
            entries.extend(bench.entry(&workspace)?);
            let state = bench.state(&workspace).await?;
            let state = state.with_context(|| format!("{workspace} has no state"))?;
            let field = |name: &str| state.get(name).cloned().unwrap_or_default();
            states.insert(workspace.clone(), (field("lineage"), field("serial")));
            let live = bench.all_workspaces().get(&workspace).await?;
            keys.insert(workspace, live.annotations().get(annotation::EXTERNAL_NAME).cloned());
        }
        let kubeconfig = bench.secrets().get(&names::kubeconfig_secret(NAMES.cluster)).await?;
        Ok(Self {
            entries,
            states,
            keys,
            access: Kubeconfig(value(&kubeconfig, names::secret::KUBECONFIG_KEY)?),
        })
    }

    fn must_equal(&self, before: &Self) -> Result<()> {
        ensure!(self == before, "before the move: {before:#?}\nnow: {self:#?}");
        Ok(())
    }
}

/// A management cluster without CAPT is no new home, and clusterctl says so before it touches anything.
async fn refused_without_its_providers(old: &Bench, new: &Bench) -> Result<()> {
    // The first run of clusterctl brings the kind that its inventory is kept in.
    old.clusterctl(&["move", "--dry-run"]).await?;
    take_inventory(old).await?;
    let refused = old.clusterctl(&["move", &target(new)]).await;
    let said = refused.err().context("moved into a cluster without CAPT")?.to_string();
    for provider in ["infrastructure-capt", "control-plane-capt"] {
        ensure!(
            said.contains(&format!("provider {provider} not found in the target cluster")),
            "{said}"
        );
    }
    take_inventory(new).await
}

/// Writes down what `clusterctl init` does about the providers that it installed.
async fn take_inventory(bench: &Bench) -> Result<()> {
    for (name, provider, type_, version) in [
        ("cluster-api", "cluster-api", "CoreProvider", "v1.14.2"),
        ("infrastructure-capt", "capt", "InfrastructureProvider", "v0.1.0"),
        ("control-plane-capt", "capt", "ControlPlaneProvider", "v0.1.0"),
    ] {
        let entry = json!({
            "apiVersion": "clusterctl.cluster.x-k8s.io/v1alpha3", "kind": "Provider",
            "metadata": {"name": name, "labels": {"clusterctl.cluster.x-k8s.io": "", "cluster.x-k8s.io/provider": name}},
            "providerName": provider, "type": type_, "version": version,
        });
        create(&bench.client, Some(CONTROLLER_NAMESPACE), entry).await?;
    }
    Ok(())
}

fn target(new: &Bench) -> String {
    format!("--to-kubeconfig={}", new.environment.kubeconfig().display())
}

/// A run of clusterctl that has begun to wait for an apply.
async fn blocked_move(old: &Bench, new: &Bench) -> Result<Child> {
    let mut command = old.clusterctl_command(&["move", &target(new)]).await?;
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(child.stderr.take().context("no output")?).lines();
    let mut said = String::new();
    while let Some(line) = lines.next_line().await? {
        if line.contains("Move blocked") && line.contains(annotation::BLOCK_MOVE) {
            // It must not die because nobody listens any more.
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return Ok(child);
        }
        said += &format!("{line}\n");
    }
    anyhow::bail!("clusterctl was not blocked; it said\n{said}")
}

/// Nobody has said that both clusters reach one backend. Whoever gives up then has lost nothing.
async fn given_up_while_it_is_blocked(old: &Bench, new: &Bench, before: &Possessions) -> Result<()> {
    let mut waiting = blocked_move(old, new).await?;
    for apply in applies() {
        let told = old
            .until(old.applies(), &apply, "telling why it cannot be moved", |apply| {
                condition(apply, "Paused") == "True/Paused" && message(apply, "Paused").contains("clusterctl move")
            })
            .await?;
        let (said, remedy) = (message(&told, "Paused"), format!("{}=true", label::SHARED_BACKEND));
        ensure!(
            said.contains(&remedy) && said.contains("--shared-terraform-backend"),
            "{said}"
        );
    }
    waiting.kill().await?;

    let nothing = new.clusters().list(&ListParams::default()).await?.items;
    ensure!(nothing.is_empty(), "a blocked move has moved {nothing:?}");
    resume(old).await?;
    for apply in applies() {
        old.until(old.applies(), &apply, "resumed", |apply| {
            !is_true(apply, "Paused") && is_true(apply, "Ready")
        })
        .await?;
    }
    old.available(&NAMES).await?;
    Possessions::of(old).await?.must_equal(before)
}

async fn declare_the_backend_as_shared(old: &Bench) -> Result<()> {
    let shared = json!({"metadata": {"labels": {label::SHARED_BACKEND: "true"}}});
    for template in ["local-vpc", "local-eks"] {
        old.patch(&old.templates(), template, shared.clone()).await?;
    }
    Ok(())
}

/// The declaration is heard while clusterctl waits for it, although everything is paused then. The new home takes no applies, so it
/// gets no further than that.
async fn goes_on_when_the_backend_is_declared_as_shared(old: &Bench, new: &Bench, before: &Possessions) -> Result<()> {
    take_no_applies(new).await?;
    let waiting = blocked_move(old, new).await?;
    declare_the_backend_as_shared(old).await?;
    breaks_off(waiting, old, new, before).await
}

const QUOTA: &str = "no-applies";

/// Lets clusterctl get stuck in the middle: it makes owners before what they own.
async fn take_no_applies(new: &Bench) -> Result<()> {
    if new.namespaces().get_opt(&new.namespace).await?.is_none() {
        let space = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": new.namespace}});
        create(&new.client, None, space).await?;
    }
    let none = json!({"count/workspacetemplateapplies.infrastructure.cluster.x-k8s.io": "0"});
    let quota =
        json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": QUOTA}, "spec": {"hard": none}});
    create(&new.client, Some(&new.namespace), quota).await?;
    let in_force = |quota: &DynamicObject| quota.data.pointer("/status/used").is_some();
    new.until(quotas(new), QUOTA, "in force", in_force).await.map(drop)
}

fn quotas(new: &Bench) -> Api<DynamicObject> {
    objects(&new.client, "v1", "ResourceQuota", Some(&new.namespace))
}

/// Kills a run of clusterctl that has made some of the objects in the new home, and deleted none in the old one.
async fn breaks_off(mut move_: Child, old: &Bench, new: &Bench, before: &Possessions) -> Result<()> {
    for (api, name) in [
        (new.networks(), NAMES.network),
        (new.control_planes(), NAMES.control_plane),
    ] {
        new.until(api, name, "there, and paused", |object| {
            condition(object, "Paused") == "True/Paused"
        })
        .await?;
    }
    move_.kill().await?;
    for (bench, home) in [(old, "old"), (new, "new")] {
        let cluster = bench.clusters().get(NAMES.cluster).await?;
        let paused = cluster.data.pointer("/spec/paused") == Some(&json!(true));
        ensure!(paused, "the Cluster is not paused in the {home} home");
    }
    for (what, api) in [("applies", new.applies()), ("Workspaces", new.all_workspaces())] {
        let made = names_of(&api.list(&ListParams::default()).await?.items);
        ensure!(made.is_empty(), "the new home has {what} already: {made:?}");
    }
    Possessions::of(old).await?.must_equal(before)
}

/// Whoever changes their mind deletes the namespace of the new home before anything is resumed there: in a namespace that is
/// going nothing can be made that would reach the cloud.
async fn given_up_in_the_new_home(old: &Bench, new: &Bench, before: &Possessions) -> Result<()> {
    new.namespaces()
        .delete(&new.namespace, &DeleteParams::background())
        .await?;
    resume(new).await?;
    until_gone(&new.namespaces(), &new.namespace).await?;
    resume(old).await?;
    unharmed(old, before).await
}

/// The same command again takes over what it made the first time.
async fn begun_again_after_it_broke_off(old: &Bench, new: &Bench, before: &Possessions) -> Result<()> {
    take_no_applies(new).await?;
    let broken = old
        .clusterctl_command(&["move", &target(new)])
        .await?
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    breaks_off(broken, old, new, before).await?;
    quotas(new).delete(QUOTA, &DeleteParams::background()).await?;

    let refused = old.clusterctl(&["move", &target(new)]).await;
    let said = refused.err().context("moved what is paused")?.to_string();
    ensure!(said.contains("paused"), "{said}");
    resume(old).await?;
    movable(old).await?;
    Possessions::of(old).await?.must_equal(before)?;
    old.clusterctl(&["move", &target(new)]).await.map(drop)
}

/// Kills a run of clusterctl that has made everything in the new home, and deleted some of it in the old one: the applies, and not
/// their owners.
async fn broken_off_while_it_deletes(old: &Bench, new: &Bench, before: &Possessions) -> Result<()> {
    keep_the_owners(old).await?;
    let mut broken = old
        .clusterctl_command(&["move", &target(new)])
        .await?
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    for apply in applies() {
        until_gone(&old.applies(), &apply).await?;
    }
    left_to_themselves(old).await?;
    for apply in applies() {
        let paused = |apply: &DynamicObject| condition(apply, "Paused") == "True/Paused";
        new.until(new.applies(), &apply, "there, and paused", paused).await?;
    }
    broken.kill().await?;
    let policies = objects(&old.client, ADMISSION, "ValidatingAdmissionPolicy", None);
    policies.delete(POLICY, &DeleteParams::background()).await?;

    // What clusterctl was about to delete says so. It would say so in the new home too, and be left alone there for ever.
    let forget = json!({"metadata": {"annotations": {annotation::DELETE_FOR_MOVE: null}}});
    old.patch(&old.networks(), NAMES.network, forget.clone()).await?;
    old.patch(&old.control_planes(), NAMES.control_plane, forget).await?;
    resume(old).await?;
    unharmed(old, before).await
}

const ADMISSION: &str = "admissionregistration.k8s.io/v1";
const POLICY: &str = "keep-the-owners";

/// Lets clusterctl get stuck in the middle of its deletions: it deletes what is owned before its owners.
async fn keep_the_owners(old: &Bench) -> Result<()> {
    let owners = json!({
        "apiGroups": [names::INFRASTRUCTURE_GROUP, names::CONTROL_PLANE_GROUP], "apiVersions": ["*"],
        "operations": ["DELETE"], "resources": ["captclusters", "captcontrolplanes"],
    });
    let policy = json!({"matchConstraints": {"resourceRules": [owners]}, "validations": [{"expression": "false"}]});
    let binding = json!({"policyName": POLICY, "validationActions": ["Deny"]});
    for (kind, spec) in [
        ("ValidatingAdmissionPolicy", policy),
        ("ValidatingAdmissionPolicyBinding", binding),
    ] {
        let object = json!({"apiVersion": ADMISSION, "kind": kind, "metadata": {"name": POLICY}, "spec": spec});
        create(&old.client, None, object).await?;
    }
    let try_it = DeleteParams::default().dry_run();
    let begun = Instant::now();
    // The API server does not tell when it has begun to ask a policy.
    loop {
        match old.networks().delete(NAMES.network, &try_it).await {
            Err(kube::Error::Api(status)) if status.message.contains(POLICY) => return Ok(()),
            other => drop(other?),
        }
        ensure!(begun.elapsed() < PATIENCE, "the policy refuses nothing");
        sleep(Duration::from_millis(100)).await;
    }
}

/// clusterctl leaves the Cluster paused when it does not come to its end, and asks for it to be resumed before the next try.
async fn resume(bench: &Bench) -> Result<()> {
    let resume = json!({"spec": {"paused": null}});
    bench.patch(&bench.clusters(), NAMES.cluster, resume).await.map(drop)
}

async fn nothing_is_left_in(old: &Bench) -> Result<()> {
    for (what, api) in [
        ("Cluster", old.clusters()),
        ("CAPTCluster", old.networks()),
        ("CAPTControlPlane", old.control_planes()),
        ("WorkspaceTemplateApply", old.applies()),
        ("WorkspaceTemplate", old.templates()),
    ] {
        let left = names_of(&api.list(&ListParams::default()).await?.items);
        ensure!(left.is_empty(), "{what}s are left in the old home: {left:?}");
    }
    // The connection Secrets belong to the Workspaces, and go with those.
    let connections = [
        names::vpc_connection_secret(NAMES.network),
        names::eks_connection_secret(NAMES.cluster),
    ];
    let mut left = names_of(&old.secrets().list(&ListParams::default()).await?.items);
    left.retain(|name| !connections.contains(name));
    ensure!(left.is_empty(), "Secrets are left in the old home: {left:?}");
    Ok(())
}

/// Waits until clusterctl takes the Cluster for complete, and Terraform has confirmed that it is.
async fn movable(bench: &Bench) -> Result<()> {
    for apply in applies() {
        bench
            .until(bench.applies(), &apply, "Ready", |apply| is_true(apply, "Ready"))
            .await?;
    }
    let complete = |cluster: &DynamicObject| {
        let provisioned = cluster.data.pointer("/status/initialization/infrastructureProvisioned");
        is_true(cluster, "ControlPlaneInitialized") && provisioned == Some(&json!(true))
    };
    bench
        .until(bench.clusters(), NAMES.cluster, "complete", complete)
        .await
        .map(drop)
}

fn applies() -> [String; 2] {
    [
        names::vpc_apply_name(NAMES.network),
        names::eks_apply_name(NAMES.control_plane),
    ]
}

fn names_of(objects: &[DynamicObject]) -> Vec<String> {
    objects.iter().map(ResourceExt::name_any).collect()
}

/// Whether nothing that happens to this Workspace reaches the cloud, and nothing keeps it from going.
fn is_let_go(workspace: &DynamicObject) -> bool {
    let is_namespaced = workspace.metadata.namespace.is_some();
    let policy = workspace.data.pointer("/spec/deletionPolicy");
    let is_held = workspace.finalizers().iter().any(|f| f == finalizer::WORKSPACE_HOLD);
    workspace.data.pointer("/spec/managementPolicies") == Some(&json!(["Observe"]))
        && (is_namespaced || policy == Some(&json!("Orphan")))
        && !is_held
}

/// What the old home still has of the cluster may look at it, and no more.
async fn left_to_themselves(old: &Bench) -> Result<()> {
    for workspace in old.workspaces(&NAMES) {
        old.until(old.all_workspaces(), &workspace, "let go", is_let_go).await?;
    }
    let all = names_of(&old.all_workspaces().list(&ListParams::default()).await?.items);
    ensure!(all.len() == 2, "others than those of the cluster: {all:?}");
    Ok(())
}

async fn delete_workspace(old: &Bench, workspace: &str) -> Result<()> {
    let workspaces = old.all_workspaces();
    workspaces.delete(workspace, &DeleteParams::background()).await?;
    until_gone(&workspaces, workspace).await
}

/// The provider of the old home finds that there is nothing any more, and leaves it at that.
async fn looks_and_does_nothing(old: &Bench, workspace: &str) -> Result<()> {
    // It looks once a minute; this lets it look now.
    let look = json!({"metadata": {"annotations": {"look": "now"}}});
    old.patch(&old.all_workspaces(), workspace, look).await?;
    let looked = old
        .until(old.all_workspaces(), workspace, "missing what it observes", |w| {
            condition(w, "Synced").starts_with("False/")
        })
        .await?;
    ensure!(is_let_go(&looked), "it may do more than look");
    ensure!(old.entry(workspace)?.is_none(), "{workspace} was made again");
    Ok(())
}
