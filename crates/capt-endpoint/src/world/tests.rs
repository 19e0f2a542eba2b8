//! What becomes of the endpoint when a pass is cut off after any of its writes, when caches are late, and when somebody else
//! is faster.

use super::*;
use crate::observe::{Apply, Missing, Owner, Place, Told};

/// A life: the endpoint appears, changes, and goes. After each stage, everything as it then stands.
async fn life(crash_after: Option<usize>, late: &[&str]) -> (Vec<Objects>, World) {
    let world = World::new();
    world.state().crash_after = crash_after;
    let mut pictures = Vec::new();
    let stages: [fn(&World) -> &World; 4] = [
        |world| world,
        |world| world.reports("https://w1"),
        |world| world.reports("https://w2:6443/"),
        World::delete,
    ];
    for stage in stages {
        stage(&world);
        world.settle(late).await;
        pictures.push(world.picture());
    }
    (pictures, world)
}

/// Every set of caches that can be late together.
fn late_sets() -> Vec<Vec<&'static str>> {
    const CACHES: [&str; 4] = [CONTROL_PLANE, CLUSTER, INFRASTRUCTURE, APPLY];
    let is_in = |set: usize, cache: usize| set >> cache & 1 == 1;
    (0..1usize << CACHES.len())
        .map(|set| {
            (0..CACHES.len())
                .filter(|cache| is_in(set, *cache))
                .map(|cache| CACHES[cache])
                .collect()
        })
        .collect()
}

#[tokio::test]
async fn a_life_without_trouble() {
    let (pictures, world) = life(None, &[]).await;
    let endpoint = |stage: usize, path: &str| {
        pictures[stage]
            .get(path)
            .map(|object| object["spec"]["controlPlaneEndpoint"].clone())
    };
    assert_eq!(endpoint(0, CLUSTER), Some(Value::Null));
    for path in [CLUSTER, CONTROL_PLANE] {
        assert_eq!(endpoint(1, path), Some(json!({"host": "w1", "port": 443})));
        assert_eq!(endpoint(2, path), Some(json!({"host": "w2", "port": 6443})));
    }
    assert_eq!(pictures[2][CONTROL_PLANE]["status"]["endpoint"], "w2:6443");
    assert_eq!(endpoint(3, CLUSTER), Some(Value::Null));
    assert_eq!(endpoint(3, CONTROL_PLANE), None, "nothing holds it any more");
    assert_eq!(
        world.state().objects[CLUSTER]["spec"]["clusterNetwork"]["serviceDomain"],
        "cluster.local"
    );
    // All there is to write: the wait, once; finalizer, both endpoints and the report; a new endpoint; the end.
    let status = CONTROL_PLANE;
    assert_eq!(
        world.state().writes,
        [
            &[status][..],
            &[CONTROL_PLANE, CLUSTER, CONTROL_PLANE, status],
            &[CLUSTER, CONTROL_PLANE, status],
            &[CLUSTER, CONTROL_PLANE],
        ]
        .concat()
    );
    assert_eq!(world.updates("success"), 3);
}

/// Wherever the process dies, and however late its caches are: the same life, with the same writes to the Cluster, and
/// nobody is told of a user who was never there.
#[tokio::test]
async fn every_crash_and_every_late_cache_leads_to_the_same_end() {
    let (expected, untroubled) = life(None, &[]).await;
    let writes = untroubled.state().writes.len();
    for late in late_sets() {
        for crash_after in 0..=writes {
            let (pictures, world) = life(Some(crash_after), &late).await;
            let case = format!("crash after {crash_after} writes, late: {late:?}");
            assert_eq!(pictures, expected, "{case}");
            assert_eq!(world.writes_to(CLUSTER), 3, "{case}");
            assert!(!world.state().reasons.contains(&"UserSupplied".to_owned()), "{case}");
        }
    }
}

/// Cluster and control plane disagree for one pass at the most: whatever was cut off, the next pass mends it.
#[tokio::test]
async fn one_pass_after_a_crash_both_endpoints_are_the_same() {
    for before in [None, Some("https://w1")] {
        for crash_after in 0..4 {
            let world = World::new();
            world.settle(&[]).await;
            if let Some(before) = before {
                world.reports(before).settle(&[]).await;
            }
            world.reports("https://w2").state().crash_after = Some(crash_after);
            let cut_off = world.pass(&[]).await;
            world.state().crash_after = None;
            assert_eq!(
                cut_off.is_err(),
                crash_after < if before.is_none() { 4 } else { 3 },
                "{before:?}, crash after {crash_after} writes"
            );
            world.pass(&[]).await.unwrap();
            for path in [CLUSTER, CONTROL_PLANE] {
                let case = format!("{path}, {before:?}, crash after {crash_after} writes");
                assert_eq!(world.endpoint(path).as_deref(), Some("w2:443"), "{case}");
            }
            assert_eq!(world.said(), ("True".into(), "EndpointPublished".into()));
        }
    }
}

/// A pass that was cut off between the two endpoints has published something that only Terraform still knows.
#[tokio::test]
async fn what_a_cut_off_pass_published_is_cleared() {
    for before in ["", "https://w1"] {
        for crash_after in 0..6 {
            let world = World::new();
            if !before.is_empty() {
                world.reports(before).settle(&[]).await;
            }
            world.reports("https://w2").state().crash_after = Some(crash_after);
            let _ = world.pass(&[]).await;
            world.state().crash_after = None;
            world.delete().settle(&[]).await;
            assert_eq!(
                world.endpoint(CLUSTER),
                None,
                "after {before:?}, crash after {crash_after} writes"
            );
            assert!(!world.state().objects.contains_key(CONTROL_PLANE));
        }
    }
}

#[tokio::test]
async fn whoever_is_faster_wins() {
    let user = || json!({"spec": {"controlPlaneEndpoint": {"host": "user", "port": 1}}});
    for (first, second) in [(None, "w1"), (Some("w1"), "w2")] {
        let world = World::new();
        if let Some(first) = first {
            world.reports(first).settle(&[]).await;
        }
        world.reports(second).state().intruder = Some(Box::new(move |state| state.change(CLUSTER, user())));
        assert_eq!(world.pass(&[]).await.unwrap_err().class(), Class::Conflict);
        assert_eq!(world.updates("conflict"), 1);
        world.settle(&[]).await;
        assert_eq!(world.endpoint(CLUSTER).as_deref(), Some("user:1"));
        assert_eq!(world.endpoint(CONTROL_PLANE), Some(format!("{second}:443")));
        assert_eq!(world.said(), ("True".into(), "UserSupplied".into()));
        // And at the end it is still the user's.
        world.delete().settle(&[]).await;
        assert_eq!(world.endpoint(CLUSTER).as_deref(), Some("user:1"));
        assert!(!world.state().objects.contains_key(CONTROL_PLANE));
    }

    // Cleared under our hands, by somebody who put another in its place.
    let world = World::new();
    world.reports("w1").settle(&[]).await;
    world.delete().state().intruder = Some(Box::new(move |state| state.change(CLUSTER, user())));
    world.settle(&[]).await;
    assert_eq!(world.endpoint(CLUSTER).as_deref(), Some("user:1"));
    assert!(!world.state().objects.contains_key(CONTROL_PLANE));
}

#[tokio::test]
async fn a_pause_that_comes_in_between_wins() {
    let world = World::new();
    let paused = |paused: bool| json!({"spec": {"paused": paused}});
    world.reports("w1").state().intruder = Some(Box::new(move |state| state.change(CLUSTER, paused(true))));
    world.settle(&[]).await;
    assert_eq!((world.endpoint(CLUSTER), world.endpoint(CONTROL_PLANE)), (None, None));
    world.change(CLUSTER, paused(false)).settle(&[]).await;
    assert_eq!(world.endpoint(CLUSTER).as_deref(), Some("w1:443"));

    world.delete().change(CLUSTER, paused(true)).settle(&[]).await;
    assert_eq!(world.endpoint(CLUSTER).as_deref(), Some("w1:443"));
    assert!(world.state().objects.contains_key(CONTROL_PLANE));
}

/// Cluster API's schema accepts half an endpoint. Its readers take it for none, so a write must be able to replace it.
#[tokio::test]
async fn half_an_endpoint_is_none() {
    for half in [json!({"host": "h"}), json!({"port": 443})] {
        let world = World::new();
        world
            .change(CLUSTER, json!({"spec": {"controlPlaneEndpoint": half}}))
            .reports("w1")
            .settle(&[])
            .await;
        assert_eq!(world.endpoint(CLUSTER).as_deref(), Some("w1:443"));
    }
}

#[tokio::test]
async fn a_cluster_that_is_gone_or_another_holds_nothing_up() {
    for another in [false, true] {
        let world = World::new();
        world.reports("w1").settle(&[]).await;
        world.delete();
        if another {
            world.change(CLUSTER, json!({"metadata": {"uid": "another"}}));
        } else {
            world.state().remove(CLUSTER);
        }
        // The cache still shows the old one.
        world.settle(&[CLUSTER]).await;
        assert!(!world.state().objects.contains_key(CONTROL_PLANE));
        assert_eq!(world.writes_to(CLUSTER), 1, "the other one was not touched");
    }
}

#[tokio::test]
async fn a_user_who_gives_the_infrastructure_an_endpoint_is_seen_in_time() {
    let world = World::new();
    let supplied = json!({"spec": {"controlPlaneEndpoint": {"host": "i", "port": 443}}});
    world.reports("w1").change(INFRASTRUCTURE, supplied);
    // The cache does not show it yet.
    world.settle(&[INFRASTRUCTURE]).await;
    assert_eq!(world.writes_to(CLUSTER), 0);
    assert_eq!(world.said(), ("True".into(), "UserSupplied".into()));
}

#[tokio::test]
async fn a_refused_write_is_shown_until_it_is_not_refused_any_more() {
    let world = World::new();
    world.reports("w1").state().denies = true;
    for _ in 0..3 {
        let failure = world.pass(&[]).await.unwrap_err();
        assert!(matches!(failure.class(), Class::Terminal(_)), "{failure:?}");
        assert_eq!(world.said(), ("False".into(), "EndpointUpdateFailed".into()));
    }
    assert_eq!(world.endpoint(CONTROL_PLANE), None);
    assert_eq!(world.state().writes.len(), 2, "finalizer and report, once");
    assert_eq!(world.updates("refused"), 3);

    world.state().denies = false;
    world.settle(&[]).await;
    assert_eq!(world.said(), ("True".into(), "EndpointPublished".into()));

    world.delete().state().denies = true;
    assert!(world.pass(&[]).await.is_err());
    assert_eq!(world.said(), ("True".into(), "EndpointUpdateFailed".into()));
    assert_eq!(world.endpoint(CLUSTER).as_deref(), Some("w1:443"));
    world.state().denies = false;
    world.settle(&[]).await;
    assert!(!world.state().objects.contains_key(CONTROL_PLANE));
}

/// While Terraform destroys the cluster nothing is read any more, and what is gone is told.
#[tokio::test]
async fn what_was_let_go_is_withdrawn_and_looked_at_no_more() {
    let world = World::new();
    let value = k8s_openapi::ByteString(b"https://s".to_vec());
    let secret = json!({"metadata": {"name": "connection", "namespace": "ns", "uid": "secret"}, "data": {"cluster_endpoint": value}});
    world.state().put(SECRET, secret);
    world.ready(json!({})).settle(&[]).await;
    assert_eq!(world.said(), ("True".into(), "EndpointPublished".into()));
    let finalizers = ["controlplane.cluster.x-k8s.io/captendpoint", "example.com/other"];
    world
        .change(CONTROL_PLANE, json!({"metadata": {"finalizers": finalizers}}))
        .delete();
    world.pass(&[]).await.unwrap();
    assert_eq!(world.endpoint(CLUSTER), None);

    world.state().reads.clear();
    world.settle(&[]).await;
    assert_eq!(world.said(), ("False".into(), "Deleting".into()));
    assert_eq!(world.state().reads, [""; 0]);
}

#[tokio::test]
async fn where_the_address_is_found() {
    use crate::address::Invalid;
    let address = |host: &str| {
        Told::Address(ApiEndpoint {
            host: host.into(),
            port: 443,
        })
    };
    let secret = |key: &str, value: &[u8]| {
        let value = k8s_openapi::ByteString(value.to_vec());
        json!({"metadata": {"name": "connection", "namespace": "ns", "uid": "secret"}, "data": {key: value}})
    };
    let full = || Some(secret("cluster_endpoint", b"https://s"));
    let nowhere = json!({"spec": {"writeConnectionSecretToRef": null}});
    let elsewhere = json!({"spec": {"writeConnectionSecretToRef": {"namespace": "other"}}});
    let here = json!({"spec": {"writeConnectionSecretToRef": {"namespace": "ns"}}});
    let name = || "connection".to_owned();
    for (case, outputs, secret, change, expected) in [
        (
            "output",
            json!({"cluster_endpoint": "https://o"}),
            None,
            json!({}),
            address("o"),
        ),
        (
            "output before secret",
            json!({"cluster_endpoint": "https://o"}),
            full(),
            json!({}),
            address("o"),
        ),
        (
            "an invalid output is not papered over",
            json!({"cluster_endpoint": "http://o"}),
            full(),
            json!({}),
            Told::Invalid(Place::Output, Invalid::Scheme),
        ),
        ("secret", json!({"other": "x"}), full(), json!({}), address("s")),
        (
            "secret of the named, own namespace",
            json!({}),
            full(),
            here,
            address("s"),
        ),
        (
            "an empty output is none",
            json!({"cluster_endpoint": " "}),
            full(),
            json!({}),
            address("s"),
        ),
        (
            "null is none",
            json!({"cluster_endpoint": "null"}),
            full(),
            json!({}),
            address("s"),
        ),
        (
            "no secret",
            json!({}),
            None,
            json!({}),
            Told::Missing(Missing::SecretAbsent(name())),
        ),
        (
            "no key",
            json!({}),
            Some(secret("x", b"y")),
            json!({}),
            Told::Missing(Missing::KeyAbsent(name())),
        ),
        (
            "an empty key",
            json!({}),
            Some(secret("cluster_endpoint", b"\n")),
            json!({}),
            Told::Missing(Missing::KeyAbsent(name())),
        ),
        (
            "an invalid key",
            json!({}),
            Some(secret("cluster_endpoint", b"a b")),
            json!({}),
            Told::Invalid(Place::Secret(name()), Invalid::Host),
        ),
        (
            "not text",
            json!({}),
            Some(secret("cluster_endpoint", b"\xff\xfe")),
            json!({}),
            Told::Invalid(Place::Secret(name()), Invalid::NotText),
        ),
        (
            "no secret named",
            json!({}),
            full(),
            nowhere,
            Told::Missing(Missing::SecretNotNamed),
        ),
        (
            "another namespace",
            json!({}),
            full(),
            elsewhere,
            Told::Missing(Missing::SecretNotNamed),
        ),
    ] {
        let world = World::new();
        if let Some(secret) = secret {
            world.state().put(SECRET, secret);
        }
        world.change(APPLY, change).ready(outputs);
        assert_eq!(
            world.observe().await.apply,
            Apply::Present {
                ready: true,
                revision: Some("r1".into()),
                told: expected
            },
            "{case}"
        );
    }
}

#[tokio::test]
async fn the_secret_is_not_read_before_terraform_is_done() {
    let world = World::new();
    world.state().put(
        SECRET,
        json!({"metadata": {"name": "connection", "uid": "s"}, "data": {"cluster_endpoint": "dw=="}}),
    );
    assert_eq!(
        world.observe().await.apply,
        Apply::Present {
            ready: false,
            revision: None,
            told: Told::NotYet
        }
    );
}

#[tokio::test]
async fn an_apply_of_somebody_else_says_nothing() {
    let world = World::new();
    world.reports("w1").change(
        APPLY,
        json!({"metadata": {"labels": {"infrastructure.cluster.x-k8s.io/capt-owner-uid": "earlier"}}}),
    );
    assert_eq!(world.observe().await.apply, Apply::Foreign);
}

#[tokio::test]
async fn another_cluster_of_the_same_name_is_not_the_owner() {
    let world = World::new();
    world.change(CLUSTER, json!({"metadata": {"uid": "another"}}));
    assert!(matches!(world.observe().await.owner, Owner::Gone));
}
