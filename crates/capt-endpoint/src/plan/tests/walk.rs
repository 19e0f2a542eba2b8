//! Every way that `plan` can go, found by trying everything that can be observed in everything that it leads to, and held
//! against the table of [`ENDPOINT_READY`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use super::*;
use crate::states::ENDPOINT_READY;

type Way = (Option<&'static str>, &'static str);

/// What was said, as the table has it.
fn place(control_plane: &CaptControlPlane) -> Option<EndpointReady> {
    let said = condition(control_plane)?;
    EndpointReady::ALL
        .iter()
        .find(|reason| reason.as_str() == said.reason)
        .copied()
}

fn label(reason: EndpointReady) -> &'static str {
    reason.as_str()
}

/// Everything that can stand around a control plane.
fn surroundings() -> Vec<(Owner, Apply)> {
    let hosts = [None, Some("w"), Some("v"), Some("user")];
    let infrastructures = [
        Infrastructure::WithoutEndpoint,
        Infrastructure::WithEndpoint {
            name: "net".into(),
            endpoint: endpoint("i"),
        },
        Infrastructure::Unreadable("net".into()),
    ];
    let mut owners = vec![Owner::NotSet, Owner::Gone];
    for host in hosts {
        for infrastructure in &infrastructures {
            for other in [None, Some("CAPTControlPlane x".to_owned())] {
                owners.push(Owner::Present(Parent {
                    name: "demo".into(),
                    paused: false,
                    endpoint: host.map(endpoint),
                    other_control_plane: other,
                    infrastructure: infrastructure.clone(),
                }));
            }
        }
    }
    let applies = [
        Apply::Absent,
        Apply::Unreadable,
        Apply::Foreign,
        not_ready(),
        invalid(),
        told(Told::Missing(Missing::SecretNotNamed)),
        told(Told::Address(endpoint("w"))),
        told(Told::Address(endpoint("v"))),
    ];
    owners
        .into_iter()
        .flat_map(|owner| applies.iter().map(move |apply| (owner.clone(), apply.clone())))
        .collect()
}

/// What else becomes of a control plane: a refused write, and a field that somebody else writes or takes away.
fn disturbed(control_plane: &CaptControlPlane) -> Vec<CaptControlPlane> {
    let with_endpoint = |endpoint: Option<ApiEndpoint>| {
        let mut disturbed = control_plane.clone();
        disturbed.spec.control_plane_endpoint = endpoint;
        disturbed
    };
    let mut refused_one = control_plane.clone();
    carry_over(&mut refused_one, &refused(control_plane, "no".into()));
    vec![refused_one, with_endpoint(None), with_endpoint(Some(endpoint("user")))]
}

/// What becomes of a control plane whose deletion lasts, and of which nothing leads back.
fn withdrawn_from(control_plane: &CaptControlPlane) -> CaptControlPlane {
    let scene = Scene::new().with(|seen| seen.control_plane = control_plane.clone().into());
    let scene = scene.patched(json!({"metadata": {"deletionTimestamp": ago(60), "finalizers": ["example.com/other"]}}));
    (*after(&scene, &scene.plan()).0.control_plane).clone()
}

/// Every control plane that there can be, and every way between what is said of them.
fn walk() -> &'static (Vec<CaptControlPlane>, BTreeSet<Way>) {
    static WALKED: OnceLock<(Vec<CaptControlPlane>, BTreeSet<Way>)> = OnceLock::new();
    WALKED.get_or_init(walk_everywhere)
}

fn walk_everywhere() -> (Vec<CaptControlPlane>, BTreeSet<Way>) {
    // All that a step of the walk can change.
    let key = |control_plane: &CaptControlPlane| {
        let (finalizers, said) = (control_plane.finalizers(), condition(control_plane));
        let said = said.map(|said| (&said.status, &said.reason, &said.message, said.observed_generation));
        let endpoints = (current(control_plane), reported(control_plane));
        format!("{:?}", (endpoints, finalizers, said, is_our_turn(control_plane)))
    };
    let (spoken, unspoken) = (Scene::new(), Scene::new().unspoken());
    let mut open: Vec<CaptControlPlane> = [spoken, unspoken].map(|scene| (*scene.0.control_plane).clone()).into();
    let mut known: BTreeMap<String, CaptControlPlane> = open
        .iter()
        .map(|control_plane| (key(control_plane), control_plane.clone()))
        .collect();
    let mut ways = BTreeSet::new();
    let surroundings = surroundings();
    while let Some(control_plane) = open.pop() {
        let mut next = disturbed(&control_plane);
        for (owner, apply) in &surroundings {
            let scene = Scene(Observed {
                control_plane: control_plane.clone().into(),
                owner: owner.clone(),
                apply: apply.clone(),
                live: true,
            });
            next.push((*after(&scene, &scene.plan()).0.control_plane).clone());
        }
        if let Some(to) = place(&withdrawn_from(&control_plane)).filter(|to| Some(*to) != place(&control_plane)) {
            ways.insert((place(&control_plane).map(label), label(to)));
        }
        for next in next {
            let (from, to) = (place(&control_plane), place(&next));
            if let Some(to) = to.filter(|_| from != to) {
                ways.insert((from.map(label), label(to)));
            }
            if known.insert(key(&next), next.clone()).is_none() {
                open.push(next);
            }
        }
    }
    (known.into_values().collect(), ways)
}

#[test]
fn the_table_says_all_that_plan_does_and_no_more() {
    let (control_planes, found) = walk();
    assert!(control_planes.len() > 50, "{}", control_planes.len());
    let places = || EndpointReady::ALL.iter().copied();
    let froms = || places().map(Some).chain([None]);
    let table: BTreeSet<Way> = froms()
        .flat_map(|from| places().map(move |to| (from, to)))
        .filter(|(from, to)| *from != Some(*to) && ENDPOINT_READY.allows(*from, *to))
        .map(|(from, to)| (from.map(label), label(to)))
        .collect();
    let missing: Vec<_> = found.difference(&table).collect();
    assert!(missing.is_empty(), "plan does what the table does not say: {missing:?}");
    let too_many: Vec<_> = table.difference(found).collect();
    assert!(too_many.is_empty(), "the table says what plan never does: {too_many:?}");
    assert_eq!(ENDPOINT_READY.faults(), [""; 0]);
    for place in places().filter(|place| *place != EndpointReady::Deleting) {
        let reached = ENDPOINT_READY.reached_from(&[place]);
        for good in [EndpointReady::EndpointPublished, EndpointReady::UserSupplied] {
            assert!(reached.contains(&good), "{place:?} never leads to {good:?}");
        }
    }
}

/// Whatever became of a control plane: once all is well it is published, in one pass, and when it goes it is let go.
#[test]
fn no_control_plane_is_stuck() {
    let (control_planes, _) = walk();
    for control_plane in control_planes {
        let said = condition(control_plane);
        let scene = || Scene::new().with(|seen| seen.control_plane = control_plane.clone().into());
        let well = scene();
        let then = after(&well, &well.plan());
        assert_eq!(
            place(&then.0.control_plane),
            Some(EndpointReady::EndpointPublished),
            "{said:?}"
        );
        let status = then.0.control_plane.status.clone().unwrap();
        assert_eq!(status.endpoint.as_deref(), Some("w:443"), "{said:?}");

        for owner in [Owner::NotSet, Owner::Gone, scene().0.owner] {
            let going = scene().deleting().with(|seen| seen.owner = owner.clone()).plan();
            assert!(matches!(going.step, Step::LetGo { .. }), "{said:?}, {owner:?}");
        }
    }
}

/// True means that an endpoint is published, in words and in fields.
#[test]
fn ready_and_an_endpoint_go_together() {
    for control_plane in &walk().0 {
        let Some(said) = condition(control_plane) else {
            continue;
        };
        let is_true = said.status == "True";
        assert_eq!(is_true, reported(control_plane).is_some(), "{said:?}");
    }
}
