//! What a cluster costs, and how that grows with their number: `make bench`.
//!
//! Everything is measured in one run, on one machine, and compared within it: clusters in a small number and in a large one.
//! Terraform is simulated, so that the time which is left is that of the controllers and of Cluster API core.

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use capt_api::names;
use capt_e2e::components::CONTROLLERS;
use capt_e2e::environment::Environment;
use capt_e2e::testing::bench::{CONTROL_PLANE, CORE};
use capt_e2e::testing::{CLUSTER_PATIENCE, Scratch, is_true};
use futures::StreamExt;
use jiff::Timestamp;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt, api::DynamicObject};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::{Cost, Fleet, NOWHERE, PROGRAM, SIMULATOR, own_requests, without_leases};

const SMALL: usize = 10;
/// Unless `BENCH` says another number.
const LARGE: usize = 100;

#[tokio::test]
#[ignore = "a measurement: make bench"]
async fn what_a_cluster_costs() -> Result<()> {
    let large = std::env::var("BENCH").map_or(Ok(LARGE), |number| number.parse())?;
    let scratch = Scratch::named(PROGRAM, "bench")?;
    scratch.up(SIMULATOR)?;
    let environment = &scratch.environment;
    without_leases(environment).await?;
    let fleet = Fleet::new(environment, NOWHERE).await?;
    let idle = memory(environment)?;
    let few = measure(environment, &fleet, "few", SMALL).await?;
    let many = measure(environment, &fleet, "many", large).await?;

    println!("\n{:<64}{SMALL:>10}{large:>10}{:>9}", "clusters at once", "ratio");
    for ((what, few), (_, many)) in few.rows.iter().zip(&many.rows) {
        println!("{what:<64}{few:>10.2}{many:>10.2}{:>9.2}", many / few);
    }
    println!("\n{:<64}{:>10}{large:>10}{:>9}", "MiB of memory", "without", "ratio");
    for (controller, without) in &idle {
        let with = many.memory.get(controller).context("a controller has gone")?;
        println!("{controller:<64}{without:>10.1}{with:>10.1}{:>9.2}", with / without);
    }
    Ok(())
}

struct Measured {
    /// What was measured, and its value.
    rows: Vec<(String, f64)>,
    memory: BTreeMap<&'static str, f64>,
}

/// Makes this many clusters at once, and deletes them.
async fn measure(environment: &Environment, fleet: &Fleet, prefix: &str, clusters: usize) -> Result<Measured> {
    let seen = [
        Moments::watch(fleet.ours(CORE, "Cluster")),
        Moments::watch(fleet.workspaces()),
        Moments::watch(fleet.ours(CONTROL_PLANE, "CAPTControlPlane")),
    ];
    let (begun, cpu) = (Timestamp::now(), cpu_time(environment)?);
    let names = fleet.create(prefix, clusters).await?;
    let [begins, workspaces, control_planes] = seen;
    for name in &names {
        control_planes.ready(&format!("{name}-service")).await?;
    }
    let creation = Cost::of(clusters, &own_requests(environment, begun..Timestamp::now())?);
    let spent = cpu_time(environment)? - cpu;
    let memory = memory(environment)?;
    let mut spans: [Vec<Duration>; 4] = Default::default();
    for name in &names {
        let control_plane = format!("{name}-service");
        let workspace = |apply: String| names::workspace_name(&fleet.namespace, &apply);
        let vpc = workspace(names::vpc_apply_name(&format!("{name}-network")));
        let eks = workspace(names::eks_apply_name(&control_plane));
        let (begin, end) = (begins.made(name).await?, control_planes.ready(&control_plane).await?);
        let ours = [
            workspaces.made(&vpc).await? - begin,
            workspaces.made(&eks).await? - workspaces.ready(&vpc).await?,
            end - workspaces.ready(&eks).await?,
        ];
        for (span, time) in spans.iter_mut().zip(ours) {
            span.push(time);
        }
        spans[3].push(end - begin);
    }

    let begun = Timestamp::now();
    let cpu = cpu_time(environment)?;
    fleet.goes_without_a_trace(environment, &names).await?;
    let deletion = Cost::of(clusters, &own_requests(environment, begun..Timestamp::now())?);
    let spent_on_deletion = cpu_time(environment)? - cpu;

    let stages = [
        "s from the Cluster to the network's Workspace",
        "s from a ready network to the EKS Workspace",
        "s from a ready EKS Workspace to a ready control plane",
        "s from the Cluster to a ready control plane",
    ];
    let mut rows: Vec<(String, f64)> = stages
        .iter()
        .zip(&mut spans)
        .map(|(stage, times)| (format!("{stage}, median"), median(times).as_secs_f64()))
        .collect();
    let each = |count: f64| count / clusters as f64;
    for (what, value) in [
        ("writes per creation", creation.count("WRITES") as f64),
        ("reads per creation", creation.count("READS") as f64),
        (
            "ms of processor time per creation, all controllers",
            spent.as_secs_f64() * 1e3,
        ),
        ("writes per deletion", deletion.count("WRITES") as f64),
        ("reads per deletion", deletion.count("READS") as f64),
        (
            "ms of processor time per deletion, all controllers",
            spent_on_deletion.as_secs_f64() * 1e3,
        ),
    ] {
        rows.push((what.to_owned(), each(value)));
    }
    Ok(Measured { rows, memory })
}

/// When an object was made, and when it became ready.
#[derive(Clone, Copy)]
struct Moment {
    made: Instant,
    ready: Option<Instant>,
}

/// The moments of all objects of a kind, as a watch tells them.
struct Moments {
    seen: watch::Receiver<HashMap<String, Moment>>,
    watching: JoinHandle<()>,
}

impl Moments {
    fn watch(api: Api<DynamicObject>) -> Self {
        let (sender, seen) = watch::channel(HashMap::new());
        let watching = tokio::spawn(async move {
            let mut objects = pin!(
                watcher(api, watcher::Config::default())
                    .default_backoff()
                    .applied_objects()
            );
            while let Some(object) = objects.next().await {
                let (Ok(object), now) = (object, Instant::now()) else {
                    continue;
                };
                sender.send_modify(|seen| {
                    let moment = (seen.entry(object.name_any())).or_insert(Moment { made: now, ready: None });
                    if moment.ready.is_none() && is_true(&object, "Ready") {
                        moment.ready = Some(now);
                    }
                });
            }
        });
        Self { seen, watching }
    }

    /// When the object was made.
    async fn made(&self, name: &str) -> Result<Instant> {
        self.when(name, |moment| Some(moment.made)).await
    }

    /// When the object became ready, which may be still to come.
    async fn ready(&self, name: &str) -> Result<Instant> {
        self.when(name, |moment| moment.ready).await
    }

    async fn when(&self, name: &str, moment: impl Fn(&Moment) -> Option<Instant>) -> Result<Instant> {
        let mut seen = self.seen.clone();
        let known = seen.wait_for(|seen| seen.get(name).and_then(&moment).is_some());
        let known = timeout(CLUSTER_PATIENCE, known)
            .await
            .with_context(|| format!("{name} does not get there"))??;
        known.get(name).and_then(&moment).context("it was there just now")
    }
}

impl Drop for Moments {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Resident memory of each controller, in MiB.
fn memory(environment: &Environment) -> Result<BTreeMap<&'static str, f64>> {
    let of = |name: &'static str| {
        let memory = environment.process(name).and_then(|record| record.process.memory());
        let memory = memory.with_context(|| format!("{name} does not run"))?;
        Ok((name, memory as f64 / f64::from(1 << 20)))
    };
    CONTROLLERS.iter().map(|own| of(own.name)).collect()
}

/// Processor time of all controllers together.
fn cpu_time(environment: &Environment) -> Result<Duration> {
    let of = |name: &str| {
        let time = environment.process(name).and_then(|record| record.process.cpu_time());
        time.with_context(|| format!("{name} does not run"))
    };
    CONTROLLERS.iter().map(|own| of(own.name)).sum()
}
