//! One cluster, made and unmade in a namespace of its own by controllers of its own, one of which goes through a plan.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use capt_e2e::components::CONTROLLERS;
use capt_e2e::faults::{Plan, Proxy, Write};
use capt_e2e::testing::bench::{CORE, INFRASTRUCTURE};
use capt_e2e::testing::{self, condition, create, objects, simulated};
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use tokio::process::Child;
use tokio::sync::Mutex;

use crate::bench::{self, Bench};
use crate::observer::{Id, Turn, World};
use crate::portrait::Portrait;

/// How long nothing may change before the undisturbed run counts as settled; longer on a machine that is slow.
const SETTLED: Duration = Duration::from_secs(5);

const CLUSTER: &str = "blue";
pub(crate) const NETWORK: &str = "blue-network";
pub(crate) const SERVICE: &str = "blue-service";
/// What Terraform reads, so that it has to be protected for as long as something can be destroyed.
const INPUTS: &str = "blue-inputs";

/// What is tried on whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trial {
    pub(crate) controller: &'static str,
    pub(crate) plan: Plan,
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.controller, self.plan)
    }
}

/// How it ended.
pub(crate) struct Outcome {
    pub(crate) trial: Trial,
    pub(crate) namespace: String,
    /// The writes that were struck; none when there were not so many this time.
    pub(crate) struck: Vec<Write>,
    pub(crate) took: Duration,
    /// Why it did not end as the undisturbed run did.
    pub(crate) failure: Option<String>,
}

/// What a controller did in the undisturbed run.
pub(crate) struct Survey {
    pub(crate) writes: Vec<Write>,
    pub(crate) watched: BTreeSet<String>,
}

pub(crate) type Surveys = BTreeMap<&'static str, Survey>;

/// The undisturbed run: what the cluster looks like when it is up, and what each controller did until it was gone.
pub(crate) async fn undisturbed(bench: &Bench) -> Result<(Portrait, Surveys)> {
    let run = Run::begin(bench, "undisturbed").await?;
    let mut proxies = Vec::new();
    for own in CONTROLLERS {
        let proxy = Proxy::start(bench.upstream.clone(), Plan::Undisturbed).await?;
        let process = run.start(own.name, &proxy.url())?;
        proxies.push((own.name, proxy, process));
    }
    let begun = Instant::now();
    run.create().await?;
    bench.observer.until(&run.namespace, is_not_available).await?;
    bench
        .observer
        .quiet(&run.namespace, SETTLED.max(begun.elapsed() / 3))
        .await;
    let portrait = bench
        .observer
        .look(&run.namespace, |world| Portrait::of(&run.namespace, world));
    run.delete().await?;
    bench.observer.look(&run.namespace, check_history)?;
    let surveys = proxies.iter().map(|(name, proxy, _)| {
        let survey = Survey {
            writes: proxy.writes(),
            watched: proxy.watched(),
        };
        (*name, survey)
    });
    Ok((portrait, surveys.collect()))
}

/// Goes through a trial. An error is a fault of the bench; that of a controller is in the outcome.
pub(crate) async fn attempt(bench: &Bench, trial: Trial, expected: &Portrait) -> Result<Outcome> {
    let begun = Instant::now();
    let run = Run::begin(bench, &trial.to_string()).await?;
    let proxy = Proxy::start(bench.upstream.clone(), trial.plan.clone()).await?;
    let others = CONTROLLERS.iter().filter(|own| own.name != trial.controller);
    let server = bench.server()?;
    let _others: Vec<Child> = others.map(|own| run.start(own.name, &server)).collect::<Result<_>>()?;
    let victim = Mutex::new(run.start(trial.controller, &proxy.url())?);
    run.create().await?;
    let ended = tokio::select! {
        ended = run.come_and_go(expected) => ended,
        never = run.crash(&trial, &proxy, &victim) => never,
    };
    if let Some(obstacle) = proxy.obstacle() {
        bail!("{trial} in {} could not be carried out: {obstacle}", run.namespace);
    }
    let failure = ended.err().map(|error| format!("{error:#}"));
    match &failure {
        Some(failure) => run.keep_evidence(failure, &proxy)?,
        None => fs::remove_dir_all(&run.logs)?,
    }
    bench.observer.forget(&run.namespace);
    Ok(Outcome {
        struck: proxy.struck(),
        took: begun.elapsed(),
        trial,
        namespace: run.namespace,
        failure,
    })
}

/// One cluster's life.
pub(crate) struct Run<'a> {
    bench: &'a Bench,
    pub(crate) namespace: String,
    pub(crate) logs: std::path::PathBuf,
}

impl<'a> Run<'a> {
    pub(crate) async fn begin(bench: &'a Bench, name: &str) -> Result<Self> {
        let namespace = testing::namespace(&bench.client, "trial").await?;
        let logs = bench.evidence(&format!("{name}-{namespace}").replace(' ', "-"))?;
        Ok(Self { bench, namespace, logs })
    }

    fn start(&self, controller: &str, server: &str) -> Result<Child> {
        self.bench
            .start(&bench::program(controller), &self.namespace, server, &self.logs)
    }

    /// Templates, inputs and cluster, one after the other, as `kubectl apply` of a directory does.
    pub(crate) async fn create(&self) -> Result<()> {
        let mut wanted = vec![json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": INPUTS},
            "stringData": {"inputs": json!({"environment": "trial"}).to_string()},
        })];
        for mut template in simulated::templates(&self.namespace)? {
            if template.pointer("/metadata/name") == Some(&json!("sim-vpc")) {
                let reference = json!({"namespace": self.namespace, "name": INPUTS, "key": "inputs"});
                let files = json!([{"source": "SecretKey", "format": "JSON", "secretKeyRef": reference}]);
                let spec = json!({"template": {"spec": {"forProvider": {"varFiles": files}}}});
                json_patch::merge(&mut template, &json!({"spec": spec}));
            }
            wanted.push(template);
        }
        wanted.extend(simulated::cluster(CLUSTER, NETWORK, SERVICE, &self.bench.access, 0));
        for object in wanted {
            create(&self.bench.client, Some(&self.namespace), object).await?;
        }
        Ok(())
    }

    async fn come_and_go(&self, expected: &Portrait) -> Result<()> {
        let observer = &self.bench.observer;
        let differs = |world: &World| {
            // The comparison is costly, and before this in vain.
            is_not_available(world).or_else(|| {
                let differences = expected.differences(&Portrait::of(&self.namespace, world));
                (!differences.is_empty()).then(|| differences.join("\n"))
            })
        };
        observer
            .until(&self.namespace, differs)
            .await
            .context("it does not come up as in the undisturbed run")?;
        self.delete().await?;
        observer.look(&self.namespace, check_history)
    }

    /// Deletes the Cluster and, when everything has gone with it, what it was made from.
    pub(crate) async fn delete(&self) -> Result<()> {
        let background = DeleteParams::background();
        let api = |api_version: &str, kind: &str| objects(&self.bench.client, api_version, kind, Some(&self.namespace));
        let observer = &self.bench.observer;
        api(CORE, "Cluster").delete(CLUSTER, &background).await?;
        observer
            .until(&self.namespace, |world| what_is_left(world, is_source))
            .await
            .context("it does not go")?;
        api("v1", "Secret").delete(INPUTS, &background).await?;
        for template in ["sim-eks", "sim-vpc"] {
            api(INFRASTRUCTURE, "WorkspaceTemplate")
                .delete(template, &background)
                .await?;
        }
        observer
            .until(&self.namespace, |world| what_is_left(world, |_| false))
            .await
            .context("what it was made from does not go")
    }

    /// Kills the controller when the plan says so, and starts another; then there is nothing more to do.
    async fn crash(&self, trial: &Trial, proxy: &Proxy, victim: &Mutex<Child>) -> Result<()> {
        if matches!(&trial.plan, Plan::Strike { fault, .. } if fault.kills()) {
            proxy.stopped().await;
            let mut victim = victim.lock().await;
            // SIGKILL, and gone before its successor starts.
            victim.kill().await.context("cannot kill the controller")?;
            proxy.revive();
            *victim = self.start(trial.controller, &proxy.url())?;
        }
        std::future::pending().await
    }

    fn keep_evidence(&self, failure: &str, proxy: &Proxy) -> Result<()> {
        let lines = |lines: Vec<String>| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
        let writes = proxy.writes();
        let writes = writes
            .iter()
            .enumerate()
            .map(|(index, write)| format!("{} {write}", index + 1));
        fs::write(self.logs.join("writes.txt"), lines(writes.collect()))?;
        fs::write(self.logs.join("failure.txt"), failure)?;
        let (objects, history) = self.bench.observer.look(&self.namespace, |world| {
            let objects = world.objects.iter().filter(|(id, _)| id.kind != "Secret");
            let history = world.history.iter().map(|(turn, id)| format!("{turn:?} {id}"));
            (
                objects.map(|(_, object)| json!(object)).collect::<Vec<Value>>(),
                history.collect(),
            )
        });
        fs::write(self.logs.join("objects.json"), serde_json::to_string_pretty(&objects)?)?;
        fs::write(self.logs.join("history.txt"), lines(history))?;
        Ok(())
    }
}

pub(crate) fn is_not_available(world: &World) -> Option<String> {
    let cluster = world.objects.iter().find(|(id, _)| id.kind == "Cluster");
    let state = cluster
        .map(|(_, cluster)| condition(cluster, "Available"))
        .unwrap_or_default();
    (!state.starts_with("True/")).then(|| format!("the Cluster's condition Available is {state:?}"))
}

/// Nothing was made twice, and the network outlived what stood in it.
pub(crate) fn check_history(world: &World) -> Result<()> {
    for (id, times) in world.births() {
        ensure!(times == 1, "{id} was made {times} times");
    }
    let workspaces: Vec<(Turn, &str)> = world
        .history
        .iter()
        .filter(|(_, id)| id.kind == "Workspace")
        .map(|(turn, id)| (*turn, id.name.as_str()))
        .collect();
    let position = |wanted: Turn, of: &str| {
        workspaces
            .iter()
            .position(|(turn, name)| *turn == wanted && name.contains(of))
    };
    let (service_gone, network_dying) = (position(Turn::Gone, SERVICE), position(Turn::Dying, NETWORK));
    ensure!(
        service_gone.is_some() && service_gone < network_dying,
        "the network was to go before the control plane had gone: {workspaces:?}"
    );
    Ok(())
}

/// What the cluster is made from, and what stays when it goes.
fn is_source(id: &Id) -> bool {
    id.kind == "WorkspaceTemplate" || (id.kind == "Secret" && id.name == INPUTS)
}

fn what_is_left(world: &World, may_stay: impl Fn(&Id) -> bool) -> Option<String> {
    let left: Vec<String> = world
        .objects
        .iter()
        .filter(|(id, _)| !may_stay(id) && !id.is_kubernetes_own())
        .map(|(id, object)| format!("{id} {:?}", object.finalizers()))
        .collect();
    (!left.is_empty()).then(|| format!("still there: {}", left.join(", ")))
}
