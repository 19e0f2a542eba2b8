//! The whole life of a control plane, with the process dying after every write, and with caches that are one write late:
//! always the same end, and the cluster is made once and destroyed once.

use serde_json::{Value, json};

use super::world::{APPLY, CONTROL_PLANE, Stop, World};

/// The states that a life comes to rest in.
type Stations = Vec<String>;

/// Creation, an upgrade, and the deletion. `stale` lets every pass be preceded by one from late caches.
fn live_a_life(dies_after: Option<usize>, stale: bool) -> (Stations, World) {
    let mut world = World::new();
    // Nobody begins with caches from before the beginning.
    if stale {
        world.edit(CONTROL_PLANE, |control_plane| {
            control_plane["metadata"]["annotations"] = json!({"a": "b"})
        });
        for key in world.objects.keys().copied().collect::<Vec<_>>() {
            world.edit(key, |object| {
                object["metadata"]["annotations"] = json!({"seen": "once"})
            });
        }
    }
    world.dies_after = dies_after;
    let mut stations = vec![rest(&mut world, stale)];
    world.set(CONTROL_PLANE, "/spec/version", json!("v1.32.0"));
    stations.push(rest(&mut world, stale));
    world.delete(CONTROL_PLANE);
    stations.push(rest(&mut world, stale));
    (stations, world)
}

/// Ours is the fastest controller: it goes on until it has nothing more to do, and only then the others act once.
fn rest(world: &mut World, stale: bool) -> String {
    let views: &[bool] = if stale { &[true, false] } else { &[false] };
    let mut asked = vec![];
    for _ in 0..300 {
        let before = world.objects.clone();
        let mut died = false;
        for view in views {
            // A conflict ends a pass too; the next one begins from what is there.
            died |= world.pass_seeing(*view) == Err(Stop::Died);
            check(world, &mut asked);
        }
        world.now += jiff::SignedDuration::from_secs(1);
        if world.objects == before && !died && !world.others_act() && world.silent_until().is_none() {
            return told(world);
        }
    }
    panic!("never comes to rest");
}

/// What must hold at every moment.
fn check(world: &World, asked: &mut Vec<String>) {
    let finalizers = |key: &'static str| -> Vec<String> {
        let object = world.objects.get(key);
        let list = object
            .and_then(|object| object.pointer("/metadata/finalizers"))
            .and_then(Value::as_array);
        list.into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(|name| name.rsplit('/').next().unwrap().to_owned())
            .collect()
    };
    let Some(apply) = world.objects.get(APPLY) else { return };
    let guards = finalizers(CONTROL_PLANE);
    assert!(
        guards.contains(&"captcontrolplane".into()),
        "an apply without a guard on its control plane"
    );
    if guards
        .iter()
        .any(|guard| guard == "captendpoint" || guard == "captsecrets")
    {
        assert!(
            finalizers(APPLY).contains(&"captcontrolplane-hold".into()),
            "released before endpoint and kubeconfig were gone"
        );
    }
    let version = apply["spec"]["variables"]["kubernetes_version"]
        .as_str()
        .unwrap()
        .to_owned();
    if asked.last() != Some(&version) {
        assert!(!asked.contains(&version), "Terraform was asked to go back to {version}");
        asked.push(version);
    }
    let status = &world.get(CONTROL_PLANE)["status"];
    assert!(status["ready"] != json!(true) || status["failureReason"].is_null());
}

/// The world without times and versions.
fn told(world: &World) -> String {
    let mut objects = serde_json::to_value(&world.objects).unwrap();
    forget(&mut objects);
    serde_json::to_string_pretty(&objects).unwrap()
}

fn forget(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for name in [
                "lastTransitionTime",
                "waitingSince",
                "resourceVersion",
                "creationTimestamp",
                "deletionTimestamp",
                "annotations",
            ] {
                members.remove(name);
            }
            members.values_mut().for_each(forget);
        }
        Value::Array(entries) => {
            entries.iter_mut().for_each(forget);
            // Whoever came first: neither finalizers nor conditions have an order.
            entries.sort_by_key(Value::to_string);
        }
        _ => {}
    }
}

#[test]
fn a_life_without_trouble() {
    let (stations, world) = live_a_life(None, false);
    assert!(stations[0].contains("\"phase\": \"Ready\""));
    assert!(stations[1].contains("\"version\": \"v1.32.0\"") && stations[1].contains("\"phase\": \"Ready\""));
    assert!(!stations[2].contains("CAPTControlPlane/") && !stations[2].contains("eks-controlplane-apply"));
    assert_eq!((world.creates, world.deletes), (1, 1));
}

#[test]
fn dying_after_any_write_changes_nothing_in_the_end() {
    let (expected, undisturbed) = live_a_life(None, false);
    assert!(undisturbed.writes > 8, "{} writes", undisturbed.writes);
    for stale in [false, true] {
        for writes in 0..undisturbed.writes {
            let (stations, world) = live_a_life(Some(writes), stale);
            assert_eq!(stations, expected, "died after {writes} writes, late caches: {stale}");
            assert_eq!(
                (world.creates, world.deletes),
                (1, 1),
                "died after {writes} writes, late caches: {stale}"
            );
        }
    }
}

#[test]
fn at_rest_nothing_is_written() {
    let mut world = World::ready();
    let (before, writes) = (world.objects.clone(), world.writes);
    for _ in 0..3 {
        world.wait_minutes(60);
        world.pass();
    }
    assert_eq!((world.objects == before, world.writes), (true, writes));
}
