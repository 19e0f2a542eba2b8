//! Crashes, refusals, lost answers and lagging watches at every write of every controller: that each cluster and Tenant comes
//! up and goes as if nothing had happened, that nothing is made twice, and that nothing is left.
//!
//! `FAULTS=` runs only the trials in whose name its words stand, such as `capt-endpoint kill-after 3`; `FAULT_SEED=` chooses
//! another sample; `FAULT_PARALLEL=` says how many trials run at once.

mod bench;
mod cluster;
mod life;
mod observer;
mod portrait;
mod report;
mod tenant;
mod trial;
mod versions;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bench::Bench;
use capt_e2e::audit;
use capt_e2e::faults::{Age, Fault, Moment, Plan, Verb};
use capt_e2e::testing::simulated;
use futures::StreamExt;
use jiff::Timestamp;
use trial::{Outcome, Portraits, Survey, Surveys, Trial};

/// How many lives come and go at the same time: enough to keep two cores busy while each waits for others.
pub(crate) const PARALLEL: usize = 16;

/// Faults that are tried at each write by itself, because what comes of them depends on where the controller stood. Of a
/// mere refusal it does not, so one run can refuse every write once.
const ALONE: [Fault; 10] = [
    Fault::Kill(Moment::Before),
    Fault::Kill(Moment::After),
    Fault::KillAndArriveLate,
    Fault::KillAndTravelBack(Age::BeforeTheWrite),
    Fault::KillAndTravelBack(Age::BeforeTheFirstChild),
    Fault::KillAndTravelBack(Age::BeforeEverything),
    Fault::Cut(Moment::After),
    Fault::HoldWatches,
    Fault::LoseEvents,
    Fault::BreakWatches,
];

#[tokio::test(flavor = "multi_thread")]
async fn a_sample_of_faults_changes_nothing() -> Result<()> {
    let seed = number("FAULT_SEED")?.unwrap_or(1);
    println!("the sample of FAULT_SEED={seed}");
    campaign(|surveys| sample(surveys, seed), |_| Vec::new()).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes half an hour: make test-faults"]
async fn no_fault_at_any_write_changes_anything() -> Result<()> {
    match std::env::var("FAULTS") {
        Ok(wanted) if !wanted.is_empty() => campaign(|surveys| named(surveys, &wanted), |_| Vec::new()).await,
        _ => campaign(|surveys| all_trials(surveys, &ALONE), beyond).await,
    }
}

/// Goes through the chosen trials, and then through those that `further` makes of their outcomes, until it makes none.
async fn campaign(
    choose: impl FnOnce(&Surveys) -> Vec<Trial>,
    further: impl Fn(&[Outcome]) -> Vec<Trial>,
) -> Result<()> {
    let started = Timestamp::now();
    let begun = Instant::now();
    let bench = Bench::new("test-faults").await?;
    let (expected, surveys) = trial::undisturbed(&bench).await?;
    for (controller, survey) in &surveys {
        println!("undisturbed, {controller} writes {} times", survey.writes.len());
    }
    let mut outcomes: Vec<Outcome> = Vec::new();
    let mut trials = choose(&surveys);
    while !trials.is_empty() {
        println!("{} trials begin after {} s", trials.len(), begun.elapsed().as_secs());
        let ended = run(&bench, trials, &expected).await?;
        trials = further(&ended);
        outcomes.extend(ended);
    }
    ensure!(
        !outcomes.is_empty(),
        "no trial has such a name; they are called like \"capt-endpoint kill-after 3\""
    );
    println!("{} trials ended after {} s", outcomes.len(), begun.elapsed().as_secs());
    println!("\n{}\n{}", report::table(&outcomes), report::writes(&outcomes));
    print!("{}", report::never_struck(&outcomes));

    let failures = report::failures(&outcomes);
    assert!(
        failures.is_empty(),
        "{failures}\nlogs and objects are in {}",
        bench.environment().path("logs/faults").display()
    );
    let leaked = simulated::states_with_resources(&bench.client).await?;
    assert!(leaked.is_empty(), "Terraform still has resources in {leaked:?}");
    assert_nothing_was_made_twice(&bench, started)
}

async fn run(bench: &Bench, trials: Vec<Trial>, expected: &Portraits) -> Result<Vec<Outcome>> {
    let parallel = number("FAULT_PARALLEL")?.map_or(Ok(PARALLEL), usize::try_from)?;
    let mut running = futures::stream::iter(trials)
        .map(|trial| trial::attempt(bench, trial, expected))
        .buffer_unordered(parallel);
    let mut outcomes = Vec::new();
    while let Some(outcome) = running.next().await {
        let outcome = outcome?;
        if outcome.failure.is_some() {
            println!("FAILED {}", outcome.trial);
        }
        outcomes.push(outcome);
        if outcomes.len().is_multiple_of(50) {
            println!("{} are done", outcomes.len());
        }
    }
    Ok(outcomes)
}

/// All answers repeated, each watch of each controller lagging, and the faults of `alone` at every write that there was.
fn all_trials(surveys: &Surveys, alone: &[Fault]) -> Vec<Trial> {
    let mut trials = Vec::new();
    for (controller, survey) in surveys {
        let answers = Fault::ALL.into_iter().filter(|fault| fault.is_an_answer());
        let repeated = answers.map(|fault| Plan::Repeat { fault });
        let lags = survey.watched.iter().map(|resource| Plan::Lag {
            resource: resource.clone(),
        });
        trials.extend(repeated.chain(lags).map(|plan| Trial { controller, plan }));
    }
    for fault in alone.iter().copied() {
        for (controller, survey) in surveys {
            let plans = occasions(fault, survey).map(|at| Plan::Strike { at, fault });
            trials.extend(plans.map(|plan| Trial { controller, plan }));
        }
    }
    trials
}

/// The writes at which a fault can strike.
fn occasions(fault: Fault, survey: &Survey) -> RangeInclusive<usize> {
    let all = survey.writes.len();
    match fault {
        // Before the first child there is no world without it to go back to.
        Fault::KillAndTravelBack(Age::BeforeTheFirstChild) => {
            let children = survey.writes.iter().position(|write| write.target.verb == Verb::Create);
            children.unwrap_or(all) + 1..=all
        }
        _ => 1..=all,
    }
}

/// Races make some runs write more often than others: as long as the last write was reached, there may be one more.
fn beyond(outcomes: &[Outcome]) -> Vec<Trial> {
    let mut last: BTreeMap<(&'static str, Fault), (usize, bool)> = BTreeMap::new();
    for outcome in outcomes {
        if let Plan::Strike { at, fault } = outcome.trial.plan {
            let reached = (at, !outcome.struck.is_empty());
            let entry = last.entry((outcome.trial.controller, fault)).or_insert(reached);
            *entry = reached.max(*entry);
        }
    }
    let reached = last.into_iter().filter(|(_, (_, reached))| *reached);
    let next = reached.map(|((controller, fault), (at, _))| Trial {
        controller,
        plan: Plan::Strike { at: at + 1, fault },
    });
    next.collect()
}

/// The trials in whose name these words stand, such as `capt-endpoint kill-after 3`.
fn named(surveys: &Surveys, words: &str) -> Vec<Trial> {
    let mut trials = all_trials(surveys, &Fault::ALL);
    trials.retain(|trial| format!(" {trial} ").contains(&format!(" {} ", words.trim())));
    trials
}

/// Every fault once, each at one write of one controller, and one repeated. They are the same ones each time, because a
/// test that failed must fail again; another seed chooses others.
fn sample(surveys: &Surveys, seed: u64) -> Vec<Trial> {
    let mut random = Random(seed);
    let mut turn = seed;
    let mut next = || {
        turn += 1;
        let index = usize::try_from(turn).unwrap_or_default() % surveys.len();
        surveys
            .iter()
            .nth(index)
            .map(|(controller, survey)| (*controller, survey))
    };
    let mut trials = Vec::new();
    for fault in Fault::ALL {
        // Not every controller has an occasion for every fault, but the next one then has.
        let mut candidates = std::iter::from_fn(&mut next).take(surveys.len());
        let found = candidates.find(|(_, survey)| !occasions(fault, survey).is_empty());
        if let Some((controller, survey)) = found {
            let occasions = occasions(fault, survey);
            let at = occasions.start() + random.below(occasions.clone().count());
            trials.push(Trial {
                controller,
                plan: Plan::Strike { at, fault },
            });
        }
    }
    let fault = Fault::Cut(Moment::After);
    trials.extend(next().map(|(controller, _)| Trial {
        controller,
        plan: Plan::Repeat { fault },
    }));
    trials
}

/// splitmix64: short, and the same for ever.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        usize::try_from(bits % limit.max(1) as u64).unwrap_or_default()
    }
}

/// By the API server's own account.
fn assert_nothing_was_made_twice(bench: &Bench, since: Timestamp) -> Result<()> {
    let mut made: BTreeMap<String, usize> = BTreeMap::new();
    for request in audit::read(bench.environment())?.0 {
        let is_recent = request.received() >= since;
        if is_recent && request.verb == "create" && request.code() == 201 && request.resource() != "events" {
            *made.entry(request.target()).or_default() += 1;
        }
    }
    let twice: Vec<_> = made
        .into_iter()
        .filter(|(object, times)| *times > 1 && object.contains("trial-"))
        .collect();
    assert!(twice.is_empty(), "made more than once: {twice:?}");
    Ok(())
}

fn number(variable: &str) -> Result<Option<u64>> {
    match std::env::var(variable) {
        Ok(text) if !text.is_empty() => Ok(Some(
            text.parse()
                .with_context(|| format!("{variable}={text} is not a number"))?,
        )),
        _ => Ok(None),
    }
}
