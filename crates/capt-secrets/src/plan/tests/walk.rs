//! Every way that `plan` can go, found by trying everything that can be observed in everything that it leads to, and held
//! against the table of [`SECRETS_READY`].

use std::collections::BTreeSet;
use std::sync::OnceLock;

use super::*;
use crate::states::SECRETS_READY;

type Way = (Option<&'static str>, &'static str);

/// Where a control plane can be: what is said of it, whether good copies are reported, and whether it is being deleted.
#[derive(Debug, Clone, PartialEq)]
struct Place {
    control_plane: CaptControlPlane,
    deleting: bool,
}

fn reason(control_plane: &CaptControlPlane) -> Option<&'static str> {
    let said = said(control_plane)?;
    let known = SecretsReady::ALL.iter().map(|reason| reason.as_str());
    Some(known.into_iter().find(|known| *known == said.reason).unwrap())
}

/// Everything that can be observed while a control plane lives. What was reported decides whether the source is looked at.
fn surroundings(reported: bool) -> Vec<Living> {
    let unsafe_one = Source::Invalid("s".into(), Invalid::new("exec", Problem::Unsafe(Danger::RunsProgram)));
    let sources = [
        Source::NotYet,
        Source::Unnamed,
        Source::Elsewhere,
        Source::Absent("s".into()),
        Source::Empty("s".into()),
        invalid(),
        unsafe_one,
        valid(),
    ];
    let copies = [
        CopyState::Absent,
        AS_WISHED,
        BROKEN,
        foreign(),
        leaving_for(4),
        leaving_for(60),
    ];
    let applies = [
        Apply::Absent,
        Apply::Foreign,
        Apply::Unreadable,
        updating(),
        ready(),
        ready_for(4),
    ];
    let mut all = Vec::new();
    for endpoint in [UNPUBLISHED, published_for(4), published_for(60)] {
        for apply in &applies {
            for source in &sources {
                for kubeconfig in &copies {
                    for ca in &copies {
                        all.push(with(|living| {
                            living.endpoint = endpoint;
                            living.apply = apply.clone();
                            living.source = source.clone();
                            living.copies.kubeconfig = kubeconfig.clone();
                            living.copies.ca = ca.clone();
                            living.copies.alias = CopyState::Absent;
                        }));
                    }
                }
            }
        }
    }
    // As `observe` looks: not before there is a reason to, and only at what an apply of ours names.
    all.retain(|living| {
        let any_ours = living.copies.iter().any(|(_, copy)| copy.is_ours());
        let looks = living.gate_is_open() || any_ours || reported;
        let names_one = matches!(living.apply, Apply::Present { .. });
        match living.source {
            Source::NotYet => !looks,
            Source::Unnamed => looks,
            _ => looks && names_one,
        }
    });
    all
}

/// What can be observed while it goes, and what it can meet in either life.
fn departures() -> Vec<Situation> {
    let leftover = |leaving: Option<i64>| Leftover {
        name: "demo-ca".into(),
        leaving: leaving.map(ago),
    };
    let deleting = |finalizer: bool, leftovers: Vec<Leftover>| Situation::Deleting { finalizer, leftovers };
    vec![
        deleting(true, vec![]),
        deleting(true, vec![leftover(None)]),
        deleting(true, vec![leftover(Some(4))]),
        deleting(true, vec![leftover(Some(60))]),
        deleting(false, vec![]),
    ]
}

fn refusals(deleting: bool, good: bool) -> Vec<State<SecretsReady>> {
    let object = ObjectRef::new("Secret", Some("ns"), "demo-ca");
    let what = "a policy does not allow it".to_owned();
    let denied = Failure::Misuse {
        object: object.clone(),
        what,
    };
    if deleting {
        return vec![refused(good, &denied)];
    }
    let owner = "it has no controller".to_owned();
    let conflict = Failure::OwnershipConflict {
        object: object.clone(),
        owner,
    };
    let terminating = Failure::NamespaceTerminating { object };
    [denied, conflict, terminating]
        .map(|failure| refused(good, &failure))
        .into()
}

/// Every place that a control plane can be in, and every way between what is said of it.
fn walk() -> &'static (Vec<Place>, BTreeSet<Way>) {
    static WALKED: OnceLock<(Vec<Place>, BTreeSet<Way>)> = OnceLock::new();
    WALKED.get_or_init(walk_everywhere)
}

fn walk_everywhere() -> (Vec<Place>, BTreeSet<Way>) {
    let mut silent = control_plane();
    silent.status = None;
    let begin = |control_plane| Place {
        control_plane,
        deleting: false,
    };
    let mut known = vec![begin(control_plane()), begin(silent)];
    let mut ways = BTreeSet::new();
    let mut next = 0;
    while let Some(here) = known.get(next).cloned() {
        next += 1;
        let good = reported(&here.control_plane);
        let mut words: Vec<(bool, State<SecretsReady>)> = Vec::new();
        let mut look = |situation: Situation, deleting: bool| {
            let mut seen = observed(situation);
            seen.control_plane = here.control_plane.clone().into();
            words.extend(plan(&seen, at(NOW)).says.map(|says| (deleting, says)));
        };
        for departure in departures() {
            look(departure, true);
        }
        if !here.deleting {
            look(Situation::WithoutCluster, false);
            for living in surroundings(good) {
                look(Situation::Living(living.into()), false);
            }
            words.extend(refusals(false, good).into_iter().map(|says| (false, says)));
        }
        words.extend(refusals(true, good).into_iter().map(|says| (true, says)));
        for (deleting, mut says) in words {
            let (from, to) = (reason(&here.control_plane), says.reason.as_str());
            if from != Some(to) {
                ways.insert((from, to));
            }
            // Only who says it and whether it is so decide what comes next, not the text.
            says.message = String::new();
            let mut control_plane = here.control_plane.clone();
            carry_over(&mut control_plane, &says, at(NOW));
            let there = Place {
                control_plane,
                deleting,
            };
            if !known.contains(&there) {
                known.push(there);
            }
        }
    }
    (known, ways)
}

#[test]
fn the_table_says_all_that_plan_does_and_no_more() {
    let (places, found) = walk();
    assert!(places.len() > 20, "{}", places.len());
    let reasons = || SecretsReady::ALL.iter().copied();
    let froms = || reasons().map(Some).chain([None]);
    let table: BTreeSet<Way> = froms()
        .flat_map(|from| reasons().map(move |to| (from, to)))
        .filter(|(from, to)| *from != Some(*to) && SECRETS_READY.allows(*from, *to))
        .map(|(from, to)| (from.map(Reason::as_str), to.as_str()))
        .collect();
    let missing: Vec<_> = found.difference(&table).collect();
    assert!(missing.is_empty(), "plan does what the table does not say: {missing:?}");
    let too_many: Vec<_> = table.difference(found).collect();
    assert!(too_many.is_empty(), "the table says what plan never does: {too_many:?}");
    assert_eq!(SECRETS_READY.faults(), [""; 0]);
    let living = SecretsReady::ALL
        .iter()
        .filter(|place| **place != SecretsReady::Deleting);
    for place in living {
        let reached = SECRETS_READY.reached_from(&[*place]);
        assert!(reached.contains(&SecretsReady::Ready), "{place:?} never leads to Ready");
    }
}

/// Whatever was said: once all is well it is Ready in one pass, and when the control plane goes it is let go.
#[test]
fn no_control_plane_is_stuck() {
    for place in &walk().0 {
        let look = |situation| {
            let mut seen = observed(situation);
            seen.control_plane = place.control_plane.clone().into();
            plan(&seen, at(NOW))
        };
        let going = look(Situation::Deleting {
            finalizer: true,
            leftovers: Vec::new(),
        });
        assert_eq!(going.step, Step::Remove, "{place:?}");
        if !place.deleting {
            let well = look(Situation::Living(settled().into()));
            assert_eq!((words(&well).0, words(&well).1), ("True", "Ready"), "{place:?}");
        }
    }
}

/// The field and the condition say the same, and Ready is never said with False.
#[test]
fn words_and_fields_agree() {
    for place in &walk().0 {
        let Some(said) = said(&place.control_plane) else {
            continue;
        };
        let field = place.control_plane.status.as_ref().unwrap().secrets_ready;
        assert_eq!(field, Some(said.status == "True"), "{said:?}");
        assert!(said.reason != "Ready" || said.status == "True", "{said:?}");
        assert!(said.reason != "Deleting" || said.status == "False", "{said:?}");
    }
}
