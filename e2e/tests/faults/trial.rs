//! One cluster or Tenant, made and unmade by controllers of its own, one of which goes through a plan.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use capt_e2e::faults::{Plan, Proxy, Write};
use capt_e2e::testing::{self, SETTLED};
use serde_json::{Value, json};
use tokio::process::Child;
use tokio::sync::Mutex;

use crate::bench::{self, Bench};
use crate::life::Life;
use crate::observer::World;
use crate::portrait::Portrait;

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

pub(crate) type Portraits = BTreeMap<Life, Portrait>;

/// The undisturbed runs: what everything looks like when it is up, and what each controller did until it was gone.
pub(crate) async fn undisturbed(bench: &Bench) -> Result<(Portraits, Surveys)> {
    let (mut portraits, mut surveys) = (Portraits::new(), Surveys::new());
    for life in Life::ALL {
        let run = Run::begin(bench, life, "undisturbed").await?;
        let mut proxies = Vec::new();
        for name in life.controllers() {
            let proxy = Proxy::start(bench.upstream.clone(), Plan::Undisturbed).await?;
            let process = run.start(name, &proxy.url())?;
            proxies.push((name, proxy, process));
        }
        let begun = Instant::now();
        life.create(&run).await?;
        run.until(|world| life.is_not_up(world)).await?;
        // Longer on a machine that is slow.
        let settled = SETTLED.max(begun.elapsed() / 3);
        bench.observer.quiet(&run.namespace, settled).await;
        let portrait = |world: &World| Portrait::of(&run.namespace, world);
        portraits.insert(life, bench.observer.look(&run.namespace, portrait));
        life.delete(&run).await?;
        let check = |world: &World| life.check_history(world);
        bench.observer.look(&run.namespace, check)?;
        surveys.extend(proxies.iter().map(|(name, proxy, _)| {
            let survey = Survey {
                writes: proxy.writes(),
                watched: proxy.watched(),
            };
            (*name, survey)
        }));
    }
    Ok((portraits, surveys))
}

/// Goes through a trial. An error is a fault of the bench; that of a controller is in the outcome.
pub(crate) async fn attempt(bench: &Bench, trial: Trial, expected: &Portraits) -> Result<Outcome> {
    let begun = Instant::now();
    let life = Life::of(trial.controller);
    let expected = expected.get(&life).context("nobody has seen it undisturbed")?;
    let run = Run::begin(bench, life, &trial.to_string()).await?;
    let proxy = Proxy::start(bench.upstream.clone(), trial.plan.clone()).await?;
    let others = life.controllers().into_iter().filter(|name| *name != trial.controller);
    let server = bench.server()?;
    let _others: Vec<Child> = others.map(|name| run.start(name, &server)).collect::<Result<_>>()?;
    let victim = Mutex::new(run.start(trial.controller, &proxy.url())?);
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

/// One life.
pub(crate) struct Run<'a> {
    pub(crate) bench: &'a Bench,
    life: Life,
    /// The trial's name, which all names of its own begin with.
    pub(crate) namespace: String,
    pub(crate) logs: std::path::PathBuf,
}

impl<'a> Run<'a> {
    pub(crate) async fn begin(bench: &'a Bench, life: Life, name: &str) -> Result<Self> {
        let namespace = testing::namespace(&bench.client, "trial").await?;
        let logs = bench.evidence(&format!("{name}-{namespace}").replace(' ', "-"))?;
        Ok(Self {
            bench,
            life,
            namespace,
            logs,
        })
    }

    fn start(&self, controller: &str, server: &str) -> Result<Child> {
        self.bench
            .start(&bench::program(controller), &self.namespace, server, &self.logs)
    }

    /// Waits until nothing is missing any more; `missing` says what.
    pub(crate) async fn until(&self, missing: impl Fn(&World) -> Option<String>) -> Result<()> {
        self.bench.observer.until(&self.namespace, missing).await
    }

    async fn come_and_go(&self, expected: &Portrait) -> Result<()> {
        self.life.create(self).await?;
        let differs = |world: &World| {
            // The comparison is costly, and before this in vain.
            self.life.is_not_up(world).or_else(|| {
                let differences = expected.differences(&Portrait::of(&self.namespace, world));
                (!differences.is_empty()).then(|| differences.join("\n"))
            })
        };
        self.until(differs)
            .await
            .context("it does not come up as in the undisturbed run")?;
        self.life.delete(self).await?;
        let observer = &self.bench.observer;
        observer.look(&self.namespace, |world| self.life.check_history(world))
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
            let history = world
                .history
                .iter()
                .map(|(turn, id, version)| format!("{version} {turn:?} {id}"));
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
