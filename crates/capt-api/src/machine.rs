//! State machines as data: what a controller reports, from which report it can go to which, and why.
//!
//! `plan` of each controller is what decides; its table says the same in a form that a reader sees at once. The tests of
//! the controllers hold the two together, and `docs/states.md` is drawn from the tables (`make generate`).

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::conditions::Reason;

/// Something that a machine can be in.
pub trait Place: Copy + Eq + 'static {
    const ALL: &'static [Self];
    /// As users read it.
    fn label(self) -> &'static str;
}

impl<R: Reason + Eq> Place for R {
    const ALL: &'static [Self] = <R as Reason>::ALL;
    fn label(self) -> &'static str {
        self.as_str()
    }
}

/// All the ways from some places to others, for one reason.
#[derive(Debug, Clone, Copy)]
pub struct Way<S: 'static> {
    pub from: &'static [S],
    pub to: &'static [S],
    /// What happened, for people.
    pub when: &'static str,
}

/// One object's life.
#[derive(Debug, Clone, Copy)]
pub struct Machine<S: 'static> {
    /// What is shown: `CAPTCluster: condition VPCReady`.
    pub title: &'static str,
    /// Where a new object can begin.
    pub begin: &'static [S],
    pub ways: &'static [Way<S>],
    /// What must be reachable from everywhere while the object lives.
    pub goals: &'static [S],
}

/// More arrows to one place than this, for one reason, are drawn as one.
const MANY: usize = 5;

impl<S: Place> Machine<S> {
    /// Whether an object may go from one place to the other. Staying is always allowed.
    pub fn allows(&self, from: Option<S>, to: S) -> bool {
        match from {
            None => self.begin.contains(&to),
            Some(from) => {
                from == to
                    || self
                        .ways
                        .iter()
                        .any(|way| way.from.contains(&from) && way.to.contains(&to))
            }
        }
    }

    /// Every place that is reached from `start`, itself included.
    pub fn reached_from(&self, start: &[S]) -> Vec<S> {
        let mut reached = start.to_vec();
        let mut next = 0;
        while let Some(here) = reached.get(next).copied() {
            next += 1;
            for to in self
                .ways
                .iter()
                .filter(|way| way.from.contains(&here))
                .flat_map(|way| way.to)
            {
                if !reached.contains(to) {
                    reached.push(*to);
                }
            }
        }
        reached
    }

    /// Places that no object can ever be in, and places from which some goal cannot be reached: both are mistakes.
    pub fn faults(&self) -> Vec<String> {
        let reached = self.reached_from(self.begin);
        let never = S::ALL.iter().filter(|place| !reached.contains(place));
        let mut faults: Vec<String> = never
            .map(|place| format!("{} is never reached", place.label()))
            .collect();
        for place in &reached {
            let onwards = self.reached_from(&[*place]);
            for goal in self.goals.iter().filter(|goal| !onwards.contains(goal)) {
                faults.push(format!(
                    "{} is a dead end: it never leads to {}",
                    place.label(),
                    goal.label()
                ));
            }
        }
        faults
    }

    /// The machine as a section of Markdown: a drawing and a table. In the drawing, a way that many places share begins at
    /// one that stands for them all; the table names them.
    pub fn markdown(&self) -> String {
        let mut arrows: BTreeSet<(&str, &str)> = match self.begin.len() {
            0..=MANY => self.begin.iter().map(|to| ("[*]", to.label())).collect(),
            _ => BTreeSet::from([("[*]", "anywhere")]),
        };
        for way in self.ways {
            for to in way.to {
                let from = way.from.iter().filter(|from| *from != to).map(|from| from.label());
                match way.from.len() {
                    0..=MANY => arrows.extend(from.map(|from| (from, to.label()))),
                    _ => {
                        arrows.insert(("anywhere", to.label()));
                    }
                }
            }
        }
        let mut text = format!("## {}\n\n```mermaid\nstateDiagram-v2\n", self.title);
        // Writing to a String cannot fail.
        for (from, to) in arrows {
            let _ = writeln!(text, "    {from} --> {to}");
        }
        text += "```\n\n| from | to | when |\n|---|---|---|\n";
        for way in self.ways {
            let _ = writeln!(text, "| {} | {} | {} |", list(way.from), list(way.to), way.when);
        }
        text
    }
}

/// Most of the places are told by those that are not among them.
fn list<S: Place>(places: &[S]) -> String {
    let labels = |places: &[S]| places.iter().map(|place| place.label()).collect::<Vec<_>>().join(", ");
    let absent: Vec<S> = S::ALL.iter().copied().filter(|place| !places.contains(place)).collect();
    match absent.len() {
        0 => "any".to_owned(),
        few if few * 2 < places.len() => format!("any but {}", labels(&absent)),
        _ => labels(places),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Light {
        Red,
        Green,
        Broken,
    }

    impl Place for Light {
        const ALL: &'static [Self] = &[Self::Red, Self::Green, Self::Broken];
        fn label(self) -> &'static str {
            match self {
                Self::Red => "Red",
                Self::Green => "Green",
                Self::Broken => "Broken",
            }
        }
    }

    const GOOD: Machine<Light> = Machine {
        title: "Light",
        begin: &[Light::Red],
        ways: &[
            Way {
                from: &[Light::Red],
                to: &[Light::Green],
                when: "time passes",
            },
            Way {
                from: &[Light::Green],
                to: &[Light::Red, Light::Broken],
                when: "time passes",
            },
            Way {
                from: &[Light::Broken],
                to: &[Light::Red],
                when: "it is mended",
            },
        ],
        goals: &[Light::Green],
    };

    #[test]
    fn ways_are_one_way_and_staying_is_free() {
        assert!(GOOD.allows(None, Light::Red) && !GOOD.allows(None, Light::Green));
        assert!(GOOD.allows(Some(Light::Red), Light::Green) && GOOD.allows(Some(Light::Red), Light::Red));
        assert!(!GOOD.allows(Some(Light::Red), Light::Broken));
        assert!(GOOD.faults().is_empty(), "{:?}", GOOD.faults());
    }

    #[test]
    fn dead_ends_and_unreachable_places_are_found() {
        let no_repair = Machine {
            ways: GOOD.ways.get(..2).unwrap(),
            ..GOOD
        };
        assert_eq!(no_repair.faults(), ["Broken is a dead end: it never leads to Green"]);
        let never_breaks = Machine {
            ways: GOOD.ways.get(..1).unwrap(),
            ..GOOD
        };
        assert_eq!(never_breaks.faults(), ["Broken is never reached"]);
    }

    #[test]
    fn a_drawing_has_every_arrow_once() {
        let text = GOOD.markdown();
        assert_eq!(text.matches(" --> ").count(), 5, "{text}");
        assert!(text.contains("| Green | Red, Broken | time passes |"), "{text}");
    }
}
