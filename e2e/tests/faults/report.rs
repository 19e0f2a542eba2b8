//! What was tried and how it ended, as tables that can stand in the documentation.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use capt_e2e::components::all_controllers;
use capt_e2e::faults::{Fault, Plan, Target};

use crate::trial::Outcome;

/// How a group of trials ended.
#[derive(Default, Clone, Copy)]
struct Count {
    tried: usize,
    converged: usize,
    longest: Duration,
}

impl Count {
    fn add(&mut self, other: Self) {
        self.tried += other.tried;
        self.converged += other.converged;
        self.longest = self.longest.max(other.longest);
    }

    fn of(outcome: &Outcome) -> Self {
        Self {
            tried: 1,
            converged: usize::from(outcome.failure.is_none()),
            longest: outcome.took,
        }
    }

    fn cell(&self) -> String {
        if self.tried == 0 {
            return "-".to_owned();
        }
        format!("{} of {}", self.converged, self.tried)
    }
}

/// How many trials converged of those whose moment came, by fault and controller.
pub(crate) fn table(outcomes: &[Outcome]) -> String {
    let mut counts: BTreeMap<Row, BTreeMap<&str, Count>> = BTreeMap::new();
    for outcome in outcomes.iter().filter(|outcome| was_put_to_the_test(outcome)) {
        for row in [row(&outcome.trial.plan), (usize::MAX, "all".to_owned())] {
            let row = counts.entry(row).or_default();
            row.entry(outcome.trial.controller).or_default().add(Count::of(outcome));
            row.entry("all").or_default().add(Count::of(outcome));
        }
    }
    let columns: Vec<&str> = all_controllers().map(|own| own.name).chain(["all"]).collect();
    let mut table = format!(
        "| fault | {} | longest |\n|---|{}---|\n",
        columns.join(" | "),
        "---|".repeat(columns.len())
    );
    for ((_, fault), row) in &counts {
        let cells: Vec<String> = columns
            .iter()
            .map(|column| row.get(column).copied().unwrap_or_default().cell())
            .collect();
        let longest = row.get("all").map_or(Duration::ZERO, |count| count.longest);
        table += &format!("| {fault} | {} | {} s |\n", cells.join(" | "), longest.as_secs());
    }
    table
}

/// The place of a plan in the table, and the name under which it is counted.
type Row = (usize, String);

/// A trial whose moment never came shows nothing about its fault.
fn was_put_to_the_test(outcome: &Outcome) -> bool {
    !outcome.struck.is_empty() || matches!(outcome.trial.plan, Plan::Lag { .. })
}

/// The trials that say nothing, by name.
pub(crate) fn never_struck(outcomes: &[Outcome]) -> String {
    let idle = outcomes.iter().filter(|outcome| !was_put_to_the_test(outcome));
    idle.map(|outcome| format!("there was no such write this time: {}\n", outcome.trial))
        .collect()
}

fn row(plan: &Plan) -> Row {
    let place = |fault: &Fault| Fault::ALL.iter().position(|known| known == fault).unwrap_or_default();
    match plan {
        Plan::Undisturbed => (0, plan.to_string()),
        Plan::Strike { fault, .. } => (1 + place(fault), fault.to_string()),
        Plan::Repeat { fault } => (1 + Fault::ALL.len() + place(fault), plan.to_string()),
        Plan::Lag { .. } => (1 + 2 * Fault::ALL.len(), "one watch lags".to_owned()),
    }
}

/// The sorts of writes, by controller: which faults struck each of them, and how often.
pub(crate) fn writes(outcomes: &[Outcome]) -> String {
    let mut sorts: BTreeMap<(&str, String), BTreeMap<Row, usize>> = BTreeMap::new();
    for outcome in outcomes {
        for write in &outcome.struck {
            let faults = sorts
                .entry((outcome.trial.controller, sort(&write.target, &outcome.namespace)))
                .or_default();
            *faults.entry(row(&outcome.trial.plan)).or_default() += 1;
        }
    }
    let faults: BTreeSet<&Row> = sorts.values().flat_map(BTreeMap::keys).collect();
    let mut text = String::new();
    for ((controller, sort), struck) in &sorts {
        let times: usize = struck.values().sum();
        let missed: Vec<&str> = faults
            .iter()
            .filter(|fault| !struck.contains_key(fault))
            .map(|(_, name)| name.as_str())
            .collect();
        text += &format!("{times:>6}  {controller}: {sort}");
        if !missed.is_empty() {
            text += &format!(" (not by {})", missed.join(", "));
        }
        text.push('\n');
    }
    text
}

/// A write without what differs from trial to trial: the trial's name, and the hash at the end of a Workspace's.
fn sort(target: &Target, namespace: &str) -> String {
    let text = target.to_string().replace(&format!("{namespace}-"), "");
    match (target.resource.as_str(), text.rsplit_once('-')) {
        ("workspaces", Some((name, _hash))) => name.to_owned(),
        _ => text.replace(namespace, "of the trial"),
    }
}

/// The trials that ended otherwise, under the names that repeat them.
pub(crate) fn failures(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for outcome in outcomes {
        let Some(failure) = &outcome.failure else { continue };
        text += &format!("\n{} in {}\n", outcome.trial, outcome.namespace);
        for write in &outcome.struck {
            text += &format!("  {write}\n");
        }
        text += &format!("{failure}\n");
    }
    text
}
