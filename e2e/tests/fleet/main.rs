//! Many clusters at once, in environments of their own.
//!
//! Twenty, on the simulator: that all of them come up, that nobody asks for anything when there is nothing to do, what it
//! costs the API server, that nothing is left behind, that any controller may die on the way, and that each gets by with its
//! own permissions. Many on the simulator and eight on the real Terraform: that all of them can be deleted at the same
//! time, that it costs no more for each, and that nothing is left behind anywhere.

mod benchmark;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use capt_e2e::audit::{self, Request};
use capt_e2e::components::{CONTROLLERS, OwnController};
use capt_e2e::environment::{Environment, Port};
use capt_e2e::testing::bench::{Bench, CONTROL_PLANE, CORE, INFRASTRUCTURE, Names, TERRAFORM, Wishes};
use capt_e2e::testing::{
    self, SETTLED, Scratch, component, create, is_true, objects, settled, simulated, until, until_all, until_all_gone,
    until_gone,
};
use capt_e2e::up;
use capt_runtime::rbac::{OWN_NAMESPACE, Rule};
use futures::future::try_join_all;
use jiff::Timestamp;
use kube::api::{DeleteParams, DynamicObject, ListParams};
use kube::{Api, Client, ResourceExt};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use Times::{AtMost, Exactly};

const PROGRAM: &str = env!("CARGO_BIN_EXE_capt-e2e");
const SIMULATOR: &[&str] = &["--provider", "simulator"];
const CLUSTERS: usize = 20;
/// How many go at the same time, unless `FLEET` says another number: two hundred take six minutes on two cores.
const MANY: usize = 60;
/// How many of them come up at the same time.
const WAVE: usize = 50;
/// Where nobody listens.
const NOWHERE: &str = "https://127.0.0.1:1";
/// As many as two cores make and destroy in a minute.
const REAL: [Names; 8] = [
    Names::same("real-0"),
    Names::same("real-1"),
    Names::same("real-2"),
    Names::same("real-3"),
    Names::same("real-4"),
    Names::same("real-5"),
    Names::same("real-6"),
    Names::same("real-7"),
];
/// What a cluster costs the API server, but for Events and Leases: who writes what, and how often, for one cluster. A report is
/// only written when there is something new to tell, and a stage only when it lasts, so a slow machine sees more reports than a
/// quick one: each stage is told at most once.
const CREATION: &[Expense] = &[
    ("capt-cluster-controller create workspacetemplateapplies", Exactly(1)),
    ("capt-cluster-controller patch captclusters", Exactly(1)),
    ("capt-cluster-controller patch captclusters/status", AtMost(5)),
    (
        "capt-controlplane-controller create workspacetemplateapplies",
        Exactly(1),
    ),
    ("capt-controlplane-controller patch captcontrolplanes", Exactly(1)),
    ("capt-controlplane-controller patch captcontrolplanes/status", AtMost(6)),
    ("capt-endpoint patch captcontrolplanes", Exactly(2)),
    ("capt-endpoint patch captcontrolplanes/status", AtMost(3)),
    ("capt-endpoint patch clusters", Exactly(1)),
    ("capt-secrets create secrets", Exactly(3)),
    ("capt-secrets patch captcontrolplanes", Exactly(1)),
    ("capt-secrets patch captcontrolplanes/status", AtMost(3)),
    ("capt-workspace-controller create workspaces", Exactly(2)),
    ("capt-workspace-controller patch workspacetemplateapplies", Exactly(2)),
    (
        "capt-workspace-controller patch workspacetemplateapplies/status",
        AtMost(8),
    ),
];
const DELETION: &[Expense] = &[
    ("capt-cluster-controller delete workspacetemplateapplies", Exactly(1)),
    ("capt-cluster-controller patch captclusters", Exactly(1)),
    ("capt-cluster-controller patch captclusters/status", AtMost(3)),
    ("capt-cluster-controller patch workspacetemplateapplies", Exactly(1)),
    (
        "capt-controlplane-controller delete workspacetemplateapplies",
        Exactly(1),
    ),
    ("capt-controlplane-controller patch captcontrolplanes", Exactly(1)),
    ("capt-controlplane-controller patch captcontrolplanes/status", AtMost(5)),
    (
        "capt-controlplane-controller patch workspacetemplateapplies",
        Exactly(1),
    ),
    ("capt-endpoint patch captcontrolplanes", Exactly(1)),
    ("capt-endpoint patch captcontrolplanes/status", AtMost(2)),
    ("capt-endpoint patch clusters", Exactly(1)),
    ("capt-secrets delete secrets", Exactly(3)),
    ("capt-secrets patch captcontrolplanes", Exactly(1)),
    ("capt-secrets patch captcontrolplanes/status", AtMost(2)),
    ("capt-workspace-controller delete workspaces", Exactly(2)),
    ("capt-workspace-controller patch workspacetemplateapplies", Exactly(2)),
    (
        "capt-workspace-controller patch workspacetemplateapplies/status",
        AtMost(4),
    ),
];
/// How long nothing may happen.
const QUIET: Duration = Duration::from_secs(120);

/// The large ones take turns: each of them has enough to do for a whole machine.
static TURN: Mutex<()> = Mutex::const_new(());

#[tokio::test]
async fn a_fleet_comes_up_rests_goes_and_survives_its_controllers() -> Result<()> {
    let _turn = TURN.lock().await;
    let scratch = Scratch::named(PROGRAM, "test-fleet")?;
    let started = Timestamp::now();
    scratch.up(SIMULATOR)?;
    let environment = &scratch.environment;
    let fleet = Fleet::new(environment, &environment.settings()?.api_server()?).await?;

    let creating = Timestamp::now();
    let names = fleet.create("fleet", CLUSTERS).await?;
    let took = fleet.available(&names).await?;
    println!("{CLUSTERS} clusters are Available after {:.1} s", took.as_secs_f64());
    fleet.assert_handed_over(&names).await?;

    let versions = settled(SETTLED.max(took / 3), || fleet.versions()).await?;
    let resting = Timestamp::now();
    tokio::time::sleep(QUIET).await;
    assert_eq!(
        fleet.versions().await?,
        versions,
        "an object changed although nothing was to be done"
    );
    let disturbances: Vec<String> = own_requests(environment, resting..Timestamp::now())?
        .iter()
        .filter(|request| request.verb != "watch" && request.resource() != "leases")
        .map(ToString::to_string)
        .collect();
    assert!(
        disturbances.is_empty(),
        "requests although nothing was to be done:\n{}",
        disturbances.join("\n")
    );

    let creation = Cost::of(CLUSTERS, &own_requests(environment, creating..resting)?);
    println!("\nRequests for {CLUSTERS} creations\n{}", creation.table());
    creation.assert_as_planned(CREATION);

    assert_eq!(
        simulated::states_with_resources(&fleet.client).await?.len(),
        2 * CLUSTERS,
        "a VPC and an EKS cluster each"
    );
    fleet.goes_without_a_trace(environment, &names).await?;

    fleet.survives_the_death_of_each_controller(&scratch).await?;

    let requests = own_requests(environment, started..Timestamp::now())?;
    let refused: Vec<String> = requests
        .iter()
        .filter(|request| request.lacked_permission())
        .map(ToString::to_string)
        .collect();
    assert!(refused.is_empty(), "permissions are missing:\n{}", refused.join("\n"));
    println!("\nPermissions that nobody used here\n{}", unused_permissions(&requests));
    Ok(())
}

#[tokio::test]
async fn many_clusters_go_at_the_same_time() -> Result<()> {
    let many = std::env::var("FLEET").map_or(Ok(MANY), |number| number.parse())?;
    let _turn = TURN.lock().await;
    let scratch = Scratch::named(PROGRAM, "test-fleet-many")?;
    scratch.up(SIMULATOR)?;
    let environment = &scratch.environment;
    without_leases(environment).await?;
    // Whether core has connected to each of them makes no difference to their end, but a great one to its own load.
    let fleet = Fleet::new(environment, NOWHERE).await?;
    let begun = Instant::now();
    let mut names = Vec::new();
    // Only the end has to come for all at once.
    while names.len() < many {
        let size = WAVE.min(many - names.len());
        let wave = fleet.create(&format!("wave-{}", names.len()), size).await?;
        let control_planes: Vec<String> = wave.iter().map(|name| format!("{name}-service")).collect();
        until_all(
            &fleet.ours(CONTROL_PLANE, "CAPTControlPlane"),
            &control_planes,
            "Ready",
            |control_plane| is_true(control_plane, "Ready"),
        )
        .await?;
        names.extend(wave);
    }
    let took = begun.elapsed();
    println!("{} clusters are up after {:.1} s", names.len(), took.as_secs_f64());
    settled(SETTLED.max(took / 3), || fleet.versions()).await?;
    fleet.goes_without_a_trace(environment, &names).await?;
    namespace_goes(&fleet.client, &fleet.namespace).await
}

#[tokio::test]
async fn eight_real_clusters_go_at_the_same_time() -> Result<()> {
    let _turn = TURN.lock().await;
    let scratch = Scratch::named(PROGRAM, "test-fleet-real")?;
    scratch.up(&[])?;
    let environment = &scratch.environment;
    without_leases(environment).await?;
    let bench = Bench::of(environment.clone(), "fleet").await?;
    let begun = Instant::now();
    try_join_all(REAL.iter().map(|names| bench.cluster(names, Wishes::default()))).await?;
    let names = REAL.map(|names| names.cluster);
    until_all(&bench.control_planes(), &names, "Ready", |control_plane| {
        is_true(control_plane, "Ready")
    })
    .await?;
    let took = begun.elapsed();
    println!("{} clusters are up after {:.1} s", REAL.len(), took.as_secs_f64());
    let kinds = || {
        [
            ("Cluster", bench.clusters()),
            ("CAPTControlPlane", bench.control_planes()),
            ("WorkspaceTemplateApply", bench.applies()),
        ]
    };
    settled(SETTLED.max(took / 3), || versions(kinds())).await?;
    assert_eq!(bench.ledger()?.len(), 2 * REAL.len(), "a VPC and an EKS cluster each");

    let deleting = Timestamp::now();
    let begun = Instant::now();
    let clusters = bench.clusters();
    let background = DeleteParams::background();
    try_join_all(names.iter().map(|name| clusters.delete(name, &background))).await?;
    until_all_gone(&clusters, &names).await?;
    println!(
        "{} clusters are gone after {:.1} s",
        REAL.len(),
        begun.elapsed().as_secs_f64()
    );
    for names in &REAL {
        bench.no_trace(names).await?;
    }
    let ledger = bench.ledger()?;
    assert!(ledger.is_empty(), "still in the cloud: {ledger:?}");
    for (kind, api) in [
        ("Workspace", bench.all_workspaces()),
        ("WorkspaceTemplateApply", bench.applies()),
        ("Secret", bench.secrets()),
    ] {
        let left = api.list(&ListParams::default()).await?.items;
        assert!(left.is_empty(), "{} {kind}s are left", left.len());
    }
    assert_cost_of_deletion(environment, deleting, REAL.len())?;
    namespace_goes(&bench.client, &bench.namespace).await
}

/// A machine that is busy with this many may stand still for longer than a Lease lasts. Whoever loses it ends, and here is
/// no Deployment that would start it again.
async fn without_leases(environment: &Environment) -> Result<()> {
    for own in CONTROLLERS {
        component::stop(environment, own.name)
            .await?
            .start_with(&["--leader-elect=false"])?;
    }
    Ok(())
}

fn assert_cost_of_deletion(environment: &Environment, since: Timestamp, clusters: usize) -> Result<()> {
    let deletion = Cost::of(clusters, &own_requests(environment, since..Timestamp::now())?);
    println!("\nRequests for {clusters} deletions\n{}", deletion.table());
    deletion.assert_as_planned(DELETION);
    Ok(())
}

/// Nothing in it holds it.
async fn namespace_goes(client: &Client, namespace: &str) -> Result<()> {
    let namespaces = objects(client, "v1", "Namespace", None);
    namespaces.delete(namespace, &DeleteParams::background()).await?;
    until_gone(&namespaces, namespace).await
}

/// Kind and name of objects, with their resourceVersions.
type Versions = BTreeMap<String, String>;

async fn versions(kinds: impl IntoIterator<Item = (&str, Api<DynamicObject>)>) -> Result<Versions> {
    let mut versions = Versions::new();
    for (kind, api) in kinds {
        for object in api.list(&ListParams::default()).await? {
            let version = object.resource_version().context("no resourceVersion")?;
            versions.insert(format!("{kind} {}", object.name_any()), version);
        }
    }
    Ok(versions)
}

/// Clusters of one namespace; each claims the same server as what Terraform made, the management cluster itself where core
/// is to connect to something.
struct Fleet {
    client: Client,
    namespace: String,
    port: u16,
    /// What the EKS template asks for.
    access: Value,
}

impl Fleet {
    async fn new(environment: &Environment, server: &str) -> Result<Self> {
        let client = up::client(&environment.kubeconfig()).await?;
        let namespace = testing::namespace(&client, "fleet").await?;
        let fleet = Self {
            client,
            namespace,
            port: environment.settings()?.port(Port::ApiServer)?,
            access: simulated::access(environment, server)?,
        };
        for template in simulated::templates(&fleet.namespace)? {
            let template = create(&fleet.client, Some(&fleet.namespace), template).await?;
            until(
                &fleet.ours(INFRASTRUCTURE, "WorkspaceTemplate"),
                &template.name_any(),
                "Valid",
                |template| is_true(template, "Valid"),
            )
            .await?;
        }
        Ok(fleet)
    }

    fn ours(&self, api_version: &str, kind: &str) -> Api<DynamicObject> {
        objects(&self.client, api_version, kind, Some(&self.namespace))
    }

    fn workspaces(&self) -> Api<DynamicObject> {
        objects(&self.client, TERRAFORM, "Workspace", None)
    }

    /// Every kind that a cluster consists of.
    fn kinds(&self) -> [(&'static str, Api<DynamicObject>); 6] {
        [
            ("Cluster", self.ours(CORE, "Cluster")),
            ("CAPTCluster", self.ours(INFRASTRUCTURE, "CAPTCluster")),
            ("CAPTControlPlane", self.ours(CONTROL_PLANE, "CAPTControlPlane")),
            (
                "WorkspaceTemplateApply",
                self.ours(INFRASTRUCTURE, "WorkspaceTemplateApply"),
            ),
            ("Workspace", self.workspaces()),
            ("Secret", self.ours("v1", "Secret")),
        ]
    }

    /// Creates clusters, all at the same time; their names are the prefix and a number.
    async fn create(&self, prefix: &str, count: usize) -> Result<Vec<String>> {
        let names: Vec<String> = (0..count).map(|number| format!("{prefix}-{number:03}")).collect();
        try_join_all(
            names
                .iter()
                .flat_map(|name| self.manifests(name))
                .map(|manifest| create(&self.client, Some(&self.namespace), manifest)),
        )
        .await?;
        Ok(names)
    }

    fn manifests(&self, name: &str) -> [Value; 3] {
        simulated::cluster(
            name,
            &format!("{name}-network"),
            &format!("{name}-service"),
            &self.access,
            2,
        )
    }

    /// Waits until Cluster API core calls every one of them Available; returns how long that took.
    async fn available(&self, names: &[String]) -> Result<Duration> {
        let begun = Instant::now();
        let clusters = self.ours(CORE, "Cluster");
        until_all(&clusters, names, "Available", |cluster| is_true(cluster, "Available")).await?;
        Ok(begun.elapsed())
    }

    /// Everything that Cluster API wants to know of a cluster that is up has reached it.
    async fn assert_handed_over(&self, names: &[String]) -> Result<()> {
        for name in names {
            let cluster = self.ours(CORE, "Cluster").get(name).await?;
            let at = |pointer: &str| cluster.data.pointer(pointer).cloned().unwrap_or_default();
            assert_eq!(at("/status/phase"), "Provisioned", "{name}");
            assert_eq!(
                at("/spec/controlPlaneEndpoint"),
                json!({"host": "127.0.0.1", "port": self.port}),
                "{name}"
            );
            let zones: BTreeSet<String> = at("/status/failureDomains")
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|zone| Some(zone.get("name")?.as_str()?.to_owned()))
                .collect();
            assert!(
                zones.iter().eq(["eu-west-1a", "eu-west-1b", "eu-west-1c"]),
                "{name}: {zones:?}"
            );

            let control_plane = self
                .ours(CONTROL_PLANE, "CAPTControlPlane")
                .get(&format!("{name}-service"))
                .await?;
            let at = |pointer: &str| control_plane.data.pointer(pointer).cloned().unwrap_or_default();
            assert_eq!(
                (at("/status/phase"), at("/status/ready")),
                (json!("Ready"), json!(true)),
                "{name}"
            );
        }
        Ok(())
    }

    /// The resourceVersion of every object of ours.
    async fn versions(&self) -> Result<Versions> {
        let templates = ("WorkspaceTemplate", self.ours(INFRASTRUCTURE, "WorkspaceTemplate"));
        versions(self.kinds().into_iter().chain([templates])).await
    }

    /// Deletes the Clusters, and nothing else, and finds nothing of them afterwards; each costs no more than it may.
    async fn goes_without_a_trace(&self, environment: &Environment, names: &[String]) -> Result<()> {
        let deleting = Timestamp::now();
        let begun = Instant::now();
        let clusters = self.ours(CORE, "Cluster");
        try_join_all(
            names
                .iter()
                .map(|name| async { clusters.delete(name, &DeleteParams::background()).await }),
        )
        .await?;
        until_all_gone(&clusters, names).await?;
        println!(
            "{} clusters are gone after {:.1} s",
            names.len(),
            begun.elapsed().as_secs_f64()
        );
        self.assert_nothing_left().await?;
        assert_cost_of_deletion(environment, deleting, names.len())
    }

    async fn assert_nothing_left(&self) -> Result<()> {
        for (kind, api) in self.kinds() {
            let left: Vec<String> = api
                .list(&ListParams::default())
                .await?
                .iter()
                .map(|o| o.name_any())
                .collect();
            if kind == "Secret" {
                // Connection secrets go with their Workspaces, by Kubernetes' garbage collector, in its own time.
                until_all_gone(&api, &left).await?;
            } else {
                assert!(
                    left.is_empty(),
                    "a Cluster goes last, but there are still {kind}s: {left:?}"
                );
            }
        }
        let leaked = simulated::states_with_resources(&self.client).await?;
        assert!(leaked.is_empty(), "Terraform still has resources in {leaked:?}");
        Ok(())
    }

    /// Clusters are begun before each death and while the dead one is missing.
    async fn survives_the_death_of_each_controller(&self, scratch: &Scratch) -> Result<()> {
        let environment = &scratch.environment;
        let mut names = Vec::new();
        for (turn, controller) in CONTROLLERS.iter().enumerate() {
            names.extend(self.create(&format!("before-{turn}"), 2).await?);
            let victim = environment.process(controller.name).context("it should run")?.process;
            victim.signal(Signal::SIGKILL);
            victim.stop(Duration::from_secs(5)).await;
            names.extend(self.create(&format!("without-{turn}"), 1).await?);
            scratch.up(SIMULATOR)?;
            let successor = environment.process(controller.name).context("it should run again")?;
            ensure!(successor.process.pid != victim.pid, "{} never died", controller.name);
        }
        let took = self.available(&names).await?;
        println!(
            "{} clusters are Available {:.1} s after the last restart",
            names.len(),
            took.as_secs_f64()
        );
        self.assert_handed_over(&names).await?;
        assert_eq!(
            self.workspaces().list(&ListParams::default()).await?.items.len(),
            2 * names.len(),
            "nothing is made twice"
        );
        Ok(())
    }
}

/// What the controllers of this tree asked for in a period.
fn own_requests(environment: &Environment, period: std::ops::Range<Timestamp>) -> Result<Vec<Request>> {
    let mut requests = audit::read(environment)?.0;
    requests.retain(|request| {
        period.contains(&request.received()) && CONTROLLERS.iter().any(|own| own.name == request.user())
    });
    Ok(requests)
}

/// How often something may be written for one cluster.
#[derive(Debug, Clone, Copy)]
enum Times {
    Exactly(usize),
    AtMost(usize),
}

/// A controller and what it writes.
type Expense = (&'static str, Times);

/// Requests by controller and kind of request.
struct Cost {
    clusters: usize,
    by_controller: BTreeMap<String, BTreeMap<&'static str, usize>>,
    /// Each controller's writes that the API server has taken, by what is written.
    targets: BTreeMap<String, usize>,
}

impl Cost {
    const COLUMNS: [&str; 6] = ["WRITES", "REFUSED", "READS", "WATCHES", "EVENTS", "LEASES"];

    fn of(clusters: usize, requests: &[Request]) -> Self {
        let mut cost = Self {
            clusters,
            by_controller: BTreeMap::new(),
            targets: BTreeMap::new(),
        };
        for request in requests {
            let column = match request.resource() {
                "leases" => "LEASES",
                "events" => "EVENTS",
                _ if request.is_write() => "WRITES",
                _ if request.verb == "watch" => "WATCHES",
                _ => "READS",
            };
            let counts = cost.by_controller.entry(request.user().to_owned()).or_default();
            *counts.entry(column).or_default() += 1;
            if column == "WRITES" && request.code() >= 400 {
                // A refused write is a write, too; it is counted in both columns.
                *counts.entry("REFUSED").or_default() += 1;
            } else if column == "WRITES" {
                let target = format!("{} {} {}", request.user(), request.verb, request.resource_path());
                *cost.targets.entry(target).or_default() += 1;
            }
        }
        cost
    }

    fn count(&self, column: &str) -> usize {
        self.by_controller
            .values()
            .filter_map(|counts| counts.get(column))
            .sum()
    }

    /// Each write is made as often as it may, and by nobody else. One that is refused because somebody else wrote first costs
    /// little, but whoever is refused more often than others write does not look before it writes again.
    fn assert_as_planned(&self, plan: &[Expense]) {
        let mut wrong = Vec::new();
        for (target, times) in plan {
            let made = self.targets.get(*target).copied().unwrap_or_default();
            let is_right = match times {
                Exactly(times) => made == times * self.clusters,
                AtMost(times) => made <= times * self.clusters,
            };
            if !is_right {
                wrong.push(format!(
                    "{target}: {made} times for {} clusters, not {times:?}",
                    self.clusters
                ));
            }
        }
        let planned: BTreeSet<&str> = plan.iter().map(|(target, _)| *target).collect();
        let others = self.targets.keys().filter(|target| !planned.contains(target.as_str()));
        wrong.extend(others.map(|target| format!("{target}: not at all")));
        let (writes, refused) = (self.count("WRITES"), self.count("REFUSED"));
        if refused > writes / 2 {
            wrong.push(format!("{refused} of {writes} writes were refused"));
        }
        assert!(wrong.is_empty(), "this was not to be written:\n{}", wrong.join("\n"));
    }

    fn table(&self) -> String {
        let row = |who: &str, cells: Vec<String>| {
            cells
                .iter()
                .fold(format!("{who:<30}"), |row, cell| format!("{row}{cell:>9}"))
                + "\n"
        };
        let per_cluster = |count: usize| format!("{:.1}", count as f64 / self.clusters as f64);
        let mut table = row("WHO", Self::COLUMNS.map(str::to_owned).to_vec());
        for (controller, counts) in &self.by_controller {
            let cells = Self::COLUMNS.map(|column| counts.get(column).copied().unwrap_or_default().to_string());
            table += &row(controller, cells.to_vec());
        }
        table += &row(
            "all",
            Self::COLUMNS.map(|column| self.count(column).to_string()).to_vec(),
        );
        table += &row(
            "per cluster",
            Self::COLUMNS.map(|column| per_cluster(self.count(column))).to_vec(),
        );
        table += "accepted writes per cluster:\n";
        for (target, count) in &self.targets {
            table += &format!("{:>9}  {target}\n", per_cluster(*count));
        }
        table
    }
}

/// What each controller may do and did not do.
fn unused_permissions(requests: &[Request]) -> String {
    let mut text = String::new();
    for controller in CONTROLLERS {
        let used: BTreeSet<(&str, String, &str)> = requests
            .iter()
            .filter(|request| request.user() == controller.name)
            .map(|request| (request.group(), request.resource_path(), request.verb.as_str()))
            .collect();
        for rule in permissions(controller) {
            for (group, resource) in rule
                .groups
                .iter()
                .flat_map(|group| rule.resources.iter().map(move |resource| (*group, *resource)))
            {
                let unused: Vec<&str> = rule
                    .verbs
                    .iter()
                    .copied()
                    .filter(|verb| !used.contains(&(group, resource.to_owned(), *verb)))
                    .collect();
                // Admission looks at the permission on finalizers when an owner is named; nobody requests them.
                if !unused.is_empty() && !resource.ends_with("/finalizers") {
                    text += &format!(
                        "{:<30} {:<55} {}\n",
                        controller.name,
                        format!("{resource}.{group}").trim_end_matches('.'),
                        unused.join(", ")
                    );
                }
            }
        }
    }
    text
}

fn permissions(controller: &OwnController) -> impl Iterator<Item = &'static Rule> {
    controller.everywhere.iter().chain(OWN_NAMESPACE)
}
