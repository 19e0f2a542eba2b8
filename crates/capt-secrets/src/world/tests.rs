//! The controller as a whole against [`World`]: what it makes, repairs and removes; crashes after every write; caches that
//! lag; and that no value of a Secret is ever told.

use base64::Engine;
use capt_runtime::controller::Wake;
use capt_runtime::error::{Class, Classified};
use capt_runtime::key::Key;
use proptest::prelude::*;

use super::*;

const COPIES: [&str; 3] = ["demo-ca", "demo-control-plane-kubeconfig", "demo-kubeconfig"];
const FINALIZER: &str = "controlplane.cluster.x-k8s.io/captsecrets";

/// What is done to the world, and its name.
type Row = (&'static str, fn(&World));

/// Status and reason of SecretsReady.
pub(super) fn told(world: &World) -> (String, String) {
    let condition = secrets_ready(world);
    let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"))
}

pub(super) fn secrets_ready(world: &World) -> Value {
    let control_plane = world.get("captcontrolplanes", "demo-cp").unwrap();
    let conditions = control_plane["status"]["conditions"].as_array().unwrap().clone();
    conditions
        .into_iter()
        .find(|condition| condition["type"] == "SecretsReady")
        .unwrap_or_default()
}

pub(super) fn is(status: &str, reason: &str) -> (String, String) {
    (status.into(), reason.into())
}

pub(super) fn decoded(world: &World, secret: &str, key: &str) -> String {
    let data = world.get("secrets", secret).unwrap()["data"][key]
        .as_str()
        .unwrap()
        .to_owned();
    String::from_utf8(base64::engine::general_purpose::STANDARD.decode(data).unwrap()).unwrap()
}

fn count(world: &World, verb: &str) -> usize {
    world.writes().iter().filter(|write| write.starts_with(verb)).count()
}

/// Runs until all is in place.
fn settled() -> (World, Worker) {
    let (world, worker) = (World::new(), World::worker);
    let worker = worker(&world);
    block_on(world.settle(&worker)).unwrap();
    assert_eq!(told(&world), is("True", "Ready"));
    (world, worker)
}

#[test]
fn a_new_cluster_gets_its_copies_in_cluster_apis_form() {
    let (world, _) = settled();
    assert_eq!(
        world.writes(),
        [
            "patch captcontrolplanes/demo-cp",
            "create secrets/demo-kubeconfig",
            "create secrets/demo-ca",
            "create secrets/demo-control-plane-kubeconfig",
            "report captcontrolplanes/demo-cp",
        ]
    );
    for copy in COPIES {
        let secret = world.get("secrets", copy).unwrap();
        assert_eq!(secret["type"], "cluster.x-k8s.io/secret");
        assert_eq!(
            secret["metadata"]["labels"],
            json!({"cluster.x-k8s.io/cluster-name": "demo", "cluster.x-k8s.io/watch-filter": "blue", OWNER_LABEL: "uid-captcontrolplanes-demo-cp"})
        );
        assert_eq!(
            secret["metadata"]["ownerReferences"],
            json!([{
                "apiVersion": "controlplane.cluster.x-k8s.io/v1beta1", "kind": "CAPTControlPlane", "name": "demo-cp",
                "uid": "uid-captcontrolplanes-demo-cp", "controller": true, "blockOwnerDeletion": true,
            }])
        );
    }
    assert_eq!(decoded(&world, "demo-ca", "tls.crt"), samples::authority());
    assert_eq!(
        decoded(&world, "demo-kubeconfig", "value"),
        decoded(&world, "demo-control-plane-kubeconfig", "value")
    );
    assert!(decoded(&world, "demo-kubeconfig", "value").contains("first"));
    assert_eq!(
        world.get("captcontrolplanes", "demo-cp").unwrap()["status"]["secretsReady"],
        true
    );
}

#[test]
fn a_quiet_cluster_costs_neither_reads_nor_writes() {
    let (world, worker) = settled();
    let (reads, writes) = (world.reads(), world.writes().len());
    assert_eq!(reads, 1, "the source");
    // What other controllers write on the control plane wakes this one too.
    world.edit("captcontrolplanes", "demo-cp", |object| {
        object["status"]["phase"] = "Ready".into()
    });
    block_on(world.settle(&worker)).unwrap();
    assert_eq!((world.reads(), world.writes().len()), (reads, writes));
}

/// Each row does something to the copies; afterwards they are as before.
#[test]
fn drift_is_repaired() {
    let repairs: [Row; 9] = [
        ("deleted", |world| world.remove("secrets", "demo-kubeconfig")),
        ("other data", |world| {
            world.edit("secrets", "demo-ca", |secret| secret["data"]["tls.crt"] = "eA==".into())
        }),
        ("a key too many", |world| {
            world.edit("secrets", "demo-ca", |secret| secret["data"]["more"] = "eA==".into())
        }),
        ("no data at all", |world| {
            world.edit("secrets", "demo-kubeconfig", |secret| {
                secret.as_object_mut().unwrap().remove("data");
            })
        }),
        ("label gone", |world| {
            world.edit("secrets", "demo-kubeconfig", |secret| {
                secret["metadata"]["labels"]
                    .as_object_mut()
                    .unwrap()
                    .remove("cluster.x-k8s.io/cluster-name");
            })
        }),
        ("all labels gone", |world| {
            world.edit("secrets", "demo-kubeconfig", |secret| {
                secret["metadata"].as_object_mut().unwrap().remove("labels");
            })
        }),
        ("owner gone", |world| {
            world.edit("secrets", "demo-kubeconfig", |secret| {
                secret["metadata"].as_object_mut().unwrap().remove("ownerReferences");
            })
        }),
        ("another type", |world| {
            world.edit("secrets", "demo-kubeconfig", |secret| secret["type"] = "Opaque".into())
        }),
        ("immutable, with other data", |world| {
            world.edit("secrets", "demo-ca", |secret| {
                secret["immutable"] = true.into();
                secret["data"]["tls.crt"] = "eA==".into();
            })
        }),
    ];
    for (what, harm) in repairs {
        let (world, worker) = settled();
        let good: Vec<Value> = COPIES
            .iter()
            .map(|copy| essence(&world.get("secrets", copy).unwrap()))
            .collect();
        harm(&world);
        block_on(world.settle(&worker)).unwrap();
        let mended: Vec<Value> = COPIES
            .iter()
            .map(|copy| essence(&world.get("secrets", copy).unwrap()))
            .collect();
        assert_eq!(mended, good, "{what}");
        assert_eq!(told(&world), is("True", "Ready"), "{what}");
    }
}

/// A Secret without what differs between two of the same contents.
fn essence(secret: &Value) -> Value {
    let mut secret = secret.clone();
    for field in ["uid", "resourceVersion"] {
        secret["metadata"].as_object_mut().unwrap().remove(field);
    }
    secret
}

#[test]
fn rotation_is_followed_and_garbage_is_not() {
    let (world, worker) = settled();
    world.fill_source("second");
    block_on(world.settle(&worker)).unwrap();
    for copy in ["demo-kubeconfig", "demo-control-plane-kubeconfig"] {
        assert!(decoded(&world, copy, "value").contains("second"));
    }

    world.set_source(&[("kubeconfig", b"garbage"), ("cluster_certificate_authority_data", b"x")]);
    block_on(world.settle(&worker)).unwrap();
    assert_eq!(told(&world), is("True", "Failed"));
    assert!(decoded(&world, "demo-kubeconfig", "value").contains("second"));

    // A process that starts now sees the same, by reading the copies themselves.
    let writes = world.writes().len();
    block_on(world.settle(&world.worker())).unwrap();
    assert_eq!(world.writes().len(), writes);

    world.remove("secrets", SOURCE);
    block_on(world.settle(&worker)).unwrap();
    assert_eq!(told(&world), is("True", "SourceMissing"));

    world.fill_source("third");
    block_on(world.settle(&worker)).unwrap();
    assert_eq!(told(&world), is("True", "Ready"));
    assert!(decoded(&world, "demo-kubeconfig", "value").contains("third"));
}

/// One conversion per version of the source, however many passes there are.
#[test]
fn conversions_are_counted_once_by_result() {
    let (world, worker) = settled();
    let counted = || {
        ["success", "invalid", "unsafe", "refused", "conflict", "error"].map(|result| worker.conversions.total(result))
    };
    let quiet = || {
        for _ in 0..3 {
            world.edit("captcontrolplanes", "demo-cp", |object| {
                object["status"]["phase"] = "Ready".into()
            });
            block_on(world.settle(&worker)).unwrap();
        }
    };
    quiet();
    assert_eq!(counted(), [1, 0, 0, 0, 0, 0]);
    world.fill_source("second");
    block_on(world.settle(&worker)).unwrap();
    quiet();
    assert_eq!(counted(), [2, 0, 0, 0, 0, 0]);
    world.set_source(&[("kubeconfig", b"garbage"), ("cluster_certificate_authority_data", b"x")]);
    block_on(world.settle(&worker)).unwrap();
    quiet();
    assert_eq!(counted(), [2, 1, 0, 0, 0, 0]);
    let mut exec = samples::kubeconfig("t");
    exec["users"][0]["user"] = json!({"exec": {"command": "aws"}});
    let authority = samples::base64(&samples::authority());
    world.set_source(&[
        ("kubeconfig", samples::yaml(&exec).as_bytes()),
        ("cluster_certificate_authority_data", authority.as_bytes()),
    ]);
    block_on(world.settle(&worker)).unwrap();
    quiet();
    assert_eq!(counted(), [2, 1, 1, 0, 0, 0]);
    world.remove("secrets", SOURCE);
    block_on(world.settle(&worker)).unwrap();
    begin_deletion(&world);
    block_on(world.settle(&worker)).unwrap();
    assert_eq!(counted(), [2, 1, 1, 0, 0, 0], "neither an absence nor a removal is one");
}

#[test]
fn copies_are_repaired_during_an_upgrade_too() {
    let (world, worker) = settled();
    world.edit("workspacetemplateapplies", APPLY, |apply| {
        apply["metadata"]["generation"] = 2.into()
    });
    world.remove("secrets", "demo-kubeconfig");
    block_on(world.settle(&worker)).unwrap();
    assert_eq!(told(&world), is("True", "Ready"));
    assert!(world.secrets().contains(&"demo-kubeconfig".to_owned()));
}

/// Before the gate nothing is read: the source is empty then, and its deadline has not begun.
#[test]
fn nothing_is_read_before_terraform_is_done_and_the_endpoint_published() {
    let closed: [Row; 5] = [
        ("the apply is not ready", |world| {
            world.edit("workspacetemplateapplies", APPLY, |apply| {
                apply["metadata"]["generation"] = 2.into()
            })
        }),
        ("the apply is another's", |world| {
            world.edit("workspacetemplateapplies", APPLY, |apply| {
                apply["metadata"]["ownerReferences"][0]["uid"] = "x".into()
            })
        }),
        ("no apply", |world| world.remove("workspacetemplateapplies", APPLY)),
        ("no endpoint", |world| {
            world.edit("captcontrolplanes", "demo-cp", |object| {
                object["status"]["conditions"][0]["status"] = "False".into()
            })
        }),
        ("another Cluster of the same name", |world| {
            world.edit("clusters", "demo", |cluster| cluster["metadata"]["uid"] = "x".into())
        }),
    ];
    for (what, close) in closed {
        let world = World::new();
        close(&world);
        block_on(world.settle(&world.worker())).unwrap();
        assert_eq!(world.secrets(), [SOURCE], "{what}");
        assert_eq!(world.reads(), 0, "{what}");
        assert_eq!(told(&world), is("False", "WaitingForSecret"), "{what}");
        assert_eq!(count(&world, "report"), 1, "{what}");

        // Not even that before capt-endpoint has said its first word, unless it is a trouble.
        let is_trouble = secrets_ready(&world)["message"]
            .as_str()
            .unwrap()
            .contains("belongs to something else");
        let world = World::new();
        close(&world);
        world.edit("captcontrolplanes", "demo-cp", |object| {
            object["status"]["conditions"] = json!([])
        });
        block_on(world.settle(&world.worker())).unwrap();
        assert_eq!(world.writes().len(), usize::from(is_trouble), "{what}");
    }
}

fn annotate(world: &World, name: &str) {
    world.edit("captcontrolplanes", "demo-cp", |object| {
        object["metadata"]["annotations"] = json!({name: ""})
    });
}

#[test]
fn what_is_paused_moved_or_managed_elsewhere_is_left_alone() {
    let hands_off: [Row; 4] = [
        ("paused Cluster", |world| {
            world.edit("clusters", "demo", |cluster| cluster["spec"]["paused"] = true.into())
        }),
        ("paused", |world| annotate(world, "cluster.x-k8s.io/paused")),
        ("managed elsewhere", |world| {
            annotate(world, "cluster.x-k8s.io/managed-by")
        }),
        ("moved", |world| {
            annotate(world, "clusterctl.cluster.x-k8s.io/delete-for-move")
        }),
    ];
    for (what, apply) in hands_off {
        let world = World::new();
        apply(&world);
        block_on(world.settle(&world.worker())).unwrap();
        assert!(
            world.writes().is_empty() && world.reads() == 0,
            "{what}: {:?}",
            world.writes()
        );

        let (world, worker) = settled();
        let writes = world.writes().len();
        apply(&world);
        begin_deletion(&world);
        block_on(world.settle(&worker)).unwrap();
        assert_eq!(world.writes().len(), writes, "{what}, while being deleted");
    }
}

#[test]
fn a_secret_of_somebody_else_is_a_conflict_and_stays_as_it_is() {
    for (copy, gates) in [
        ("demo-kubeconfig", true),
        ("demo-ca", true),
        ("demo-control-plane-kubeconfig", false),
    ] {
        let world = World::new();
        world.put(
            "secrets",
            copy,
            json!({"type": "Opaque", "data": {"value": "bWluZQ=="}}),
        );
        let theirs = world.get("secrets", copy);
        let worker = world.worker();
        block_on(world.settle(&worker)).unwrap();
        assert_eq!(world.get("secrets", copy), theirs, "{copy}");
        let expected = if gates {
            is("False", "OwnershipConflict")
        } else {
            is("True", "Ready")
        };
        assert_eq!(told(&world), expected, "{copy}");

        world.remove("secrets", copy);
        block_on(world.settle(&worker)).unwrap();
        assert_eq!(told(&world), is("True", "Ready"), "{copy}");
        assert_eq!(count(&world, "create"), 3);
    }
}

/// The name is taken, and the cache does not know it yet.
#[test]
fn a_conflict_that_only_the_server_sees_is_told_too() {
    let world = World::new();
    let worker = world.worker();
    let late = world.view().unwrap();
    world.put("secrets", "demo-kubeconfig", json!({"type": "Opaque"}));
    let failure = block_on(worker.pass(&late, at(1))).unwrap_err();
    assert_eq!(failure.class(), Class::Terminal("OwnershipConflict"));
    assert_eq!(told(&world), is("False", "OwnershipConflict"));
    assert_eq!(worker.conversions.total("refused"), 1);

    // Not so with the alias, which nothing waits for.
    let world = World::new();
    let worker = world.worker();
    let late = world.view().unwrap();
    world.put("secrets", "demo-control-plane-kubeconfig", json!({"type": "Opaque"}));
    let failure = block_on(worker.pass(&late, at(1))).unwrap_err();
    assert_eq!(failure.class(), Class::Terminal("OwnershipConflict"));
    assert_eq!(told(&world), is("True", "Ready"));
}

#[test]
fn the_alias_makes_way_for_a_cluster_of_its_name() {
    let (world, worker) = settled();
    world.put("clusters", "demo-control-plane", json!({"spec": {}}));
    block_on(world.settle(&worker)).unwrap();
    assert_eq!(world.secrets(), ["demo-ca", SOURCE, "demo-kubeconfig"]);
    assert_eq!(told(&world), is("True", "Ready"));

    world.remove("clusters", "demo-control-plane");
    block_on(world.settle(&worker)).unwrap();
    assert!(world.secrets().contains(&"demo-control-plane-kubeconfig".to_owned()));
}

fn begin_deletion(world: &World) {
    world.edit("captcontrolplanes", "demo-cp", |object| {
        object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into()
    });
}

fn finalizers(world: &World) -> Value {
    world.get("captcontrolplanes", "demo-cp").unwrap()["metadata"]["finalizers"].clone()
}

#[test]
fn deletion_removes_the_copies_and_then_the_finalizer() {
    let (world, worker) = settled();
    assert!(finalizers(&world).to_string().contains(FINALIZER));
    begin_deletion(&world);
    let before = world.writes().len();
    block_on(worker.pass(&world.view().unwrap(), at(before))).unwrap();
    assert_eq!(world.secrets(), [SOURCE]);
    assert_eq!(
        finalizers(&world),
        json!(["controlplane.cluster.x-k8s.io/captcontrolplane"])
    );
    assert_eq!(
        world.writes()[before..],
        [
            "delete secrets/demo-ca",
            "delete secrets/demo-control-plane-kubeconfig",
            "delete secrets/demo-kubeconfig",
            "patch captcontrolplanes/demo-cp",
        ],
        "one pass, and no word: what is being deleted keeps its last one"
    );
}

#[test]
fn deletion_finds_orphans_and_spares_strangers() {
    let orphaned = |secret: &mut Value| {
        secret["metadata"].as_object_mut().unwrap().remove("ownerReferences");
    };
    let (world, worker) = settled();
    for copy in COPIES {
        world.edit("secrets", copy, orphaned);
    }
    // One lost its label, but not its owner; one was taken over by somebody else.
    world.edit("secrets", "demo-ca", |secret| {
        secret["metadata"].as_object_mut().unwrap().remove("labels");
        secret["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "controlplane.cluster.x-k8s.io/v1beta1", "kind": "CAPTControlPlane", "name": "demo-cp",
            "uid": "uid-captcontrolplanes-demo-cp", "controller": true,
        }]);
    });
    world.edit("secrets", "demo-control-plane-kubeconfig", |secret| {
        secret["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p", "controller": true}]);
    });
    // The Cluster is gone too, and with it the owner of the control plane.
    world.remove("clusters", "demo");
    begin_deletion(&world);
    block_on(world.settle(&worker)).unwrap();
    assert_eq!(world.secrets(), ["demo-control-plane-kubeconfig", SOURCE]);
    assert!(!finalizers(&world).to_string().contains(FINALIZER));
}

#[test]
fn deletion_without_any_cluster_name_finds_the_copies_by_label() {
    let (world, worker) = settled();
    begin_deletion(&world);
    world.edit("captcontrolplanes", "demo-cp", |object| {
        object["metadata"].as_object_mut().unwrap().remove("ownerReferences");
        object["metadata"].as_object_mut().unwrap().remove("labels");
    });
    block_on(world.settle(&worker)).unwrap();
    assert_eq!(world.secrets(), [SOURCE]);
    assert!(!finalizers(&world).to_string().contains(FINALIZER));
}

#[test]
fn deletion_waits_for_a_copy_that_somebody_holds() {
    let (world, worker) = settled();
    world.edit("secrets", "demo-ca", |secret| {
        secret["metadata"]["finalizers"] = json!(["example.com/backup"])
    });
    begin_deletion(&world);
    let deleted = "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap();
    let pass = |seconds: i64| {
        let now = deleted + jiff::SignedDuration::from_secs(seconds);
        block_on(worker.pass(&world.view().unwrap(), now)).unwrap()
    };
    pass(0);
    let settles = deleted + jiff::SignedDuration::from_secs(5);
    assert_eq!(pass(1), Wake::At(settles));
    assert_eq!(told(&world), is("True", "Ready"), "it usually passes within moments");
    assert_eq!(pass(5), Wake::OnEvent);
    assert_eq!(told(&world), is("False", "Deleting"));
    let message = secrets_ready(&world)["message"].as_str().unwrap().to_owned();
    assert!(message.contains("Secret demo-ca"), "{message}");
    assert!(finalizers(&world).to_string().contains(FINALIZER));

    world.remove("secrets", "demo-ca");
    pass(6);
    assert!(!finalizers(&world).to_string().contains(FINALIZER));
}

/// The cache shows none of the copies, because they were made a moment ago.
#[test]
fn the_finalizer_stays_while_the_server_has_copies_that_the_cache_does_not_show() {
    let (world, worker) = settled();
    world.edit("secrets", "demo-ca", |secret| {
        secret["metadata"]["finalizers"] = json!(["example.com/backup"])
    });
    begin_deletion(&world);
    let mut late = world.view().unwrap();
    late.marked.clear();
    late.copies = PerCopy::default();
    block_on(worker.pass(&late, at(50))).unwrap();
    assert!(finalizers(&world).to_string().contains(FINALIZER));
    assert_eq!(world.secrets(), ["demo-ca", SOURCE], "but they were found, and deleted");
}

/// capt-endpoint drops its finalizer at the same moment, and somebody may pause.
#[test]
fn the_finalizer_goes_by_what_the_server_says_now() {
    let (world, worker) = settled();
    let ours_and = |other: &str| json!([other, FINALIZER, "controlplane.cluster.x-k8s.io/captcontrolplane"]);
    world.edit("captcontrolplanes", "demo-cp", |object| {
        object["metadata"]["finalizers"] = ours_and("controlplane.cluster.x-k8s.io/captendpoint")
    });
    begin_deletion(&world);
    let late = world.view().unwrap();
    world.edit("captcontrolplanes", "demo-cp", |object| {
        object["metadata"]["finalizers"].as_array_mut().unwrap().remove(0);
    });
    block_on(worker.pass(&late, at(50))).unwrap();
    assert_eq!(
        finalizers(&world),
        json!(["controlplane.cluster.x-k8s.io/captcontrolplane"])
    );

    let (world, worker) = settled();
    begin_deletion(&world);
    let late = world.view().unwrap();
    annotate(&world, "cluster.x-k8s.io/paused");
    block_on(worker.pass(&late, at(50))).unwrap();
    assert!(finalizers(&world).to_string().contains(FINALIZER), "paused meanwhile");
}

/// The story of a control plane: what happens to it from outside.
fn story(world: &World, chapter: usize) -> bool {
    match chapter {
        0 => {}
        1 => world.fill_source("second"),
        2 => world.edit("secrets", "demo-ca", |secret| secret["data"]["tls.crt"] = "eA==".into()),
        3 => begin_deletion(world),
        _ => return false,
    }
    true
}

/// Plays the whole story; the connection is cut after `cut` writes and a new process goes on. Returns the world at the end
/// of life, just before deletion, too.
fn play(cut: Option<usize>, stale: bool) -> (World, Vec<Value>) {
    let world = World::new();
    let mut worker = world.worker();
    let mut at_the_height = Vec::new();
    world.cut_after(cut);
    let mut chapter = 0;
    while story(&world, chapter) {
        let mut quiet = false;
        let mut passes = 0;
        while !quiet {
            passes += 1;
            assert!(passes < 60, "it never comes to rest: {:?}", world.writes());
            let writes = world.writes().len();
            // A pass with an old view may lose races; it must do no harm.
            let views = [world.stale_view().filter(|_| stale), world.view()];
            let mut all_well = true;
            for view in views.into_iter().flatten() {
                let result = block_on(worker.pass(&view, at(writes)));
                all_well = result.is_ok();
                let Err(failure) = result else { continue };
                match failure.class() {
                    Class::Conflict => {}
                    Class::Transient => {
                        world.cut_after(None);
                        worker = world.worker();
                    }
                    other => panic!("{other:?}: {failure}"),
                }
            }
            quiet = world.writes().len() == writes && all_well;
        }
        if chapter == 2 {
            at_the_height = COPIES
                .iter()
                .map(|copy| essence(&world.get("secrets", copy).unwrap()))
                .collect();
        }
        chapter += 1;
    }
    (world, at_the_height)
}

#[test]
fn a_crash_after_any_write_changes_nothing_in_the_end() {
    let (calm, height) = play(None, false);
    assert_eq!((count(&calm, "create"), count(&calm, "delete")), (3, 3));
    for stale in [false, true] {
        for cut in 0..=calm.writes().len() {
            let (world, same_height) = play(Some(cut), stale);
            assert_eq!(same_height, height, "cut after {cut}");
            assert_eq!(world.secrets(), [SOURCE], "cut after {cut}");
            assert!(!finalizers(&world).to_string().contains(FINALIZER), "cut after {cut}");
            assert_eq!(
                (count(&world, "create"), count(&world, "delete")),
                (3, 3),
                "cut after {cut}: {:?}",
                world.writes()
            );
        }
    }
}

#[test]
fn a_cache_that_is_always_one_write_behind_does_no_harm() {
    let (world, _) = play(None, true);
    assert_eq!(
        (count(&world, "create"), count(&world, "delete")),
        (3, 3),
        "{:?}",
        world.writes()
    );
    let (calm, _) = play(None, false);
    assert_eq!(world.writes().len(), calm.writes().len(), "{:?}", world.writes());
}

#[test]
fn memory_of_a_control_plane_goes_with_it() {
    let (world, worker) = settled();
    let key = Key::namespaced(NAMESPACE, "demo-cp");
    worker.memory.forget(&key);
    let reads = world.reads();
    block_on(world.settle(&worker)).unwrap();
    assert!(world.reads() > reads, "read again, because nothing was remembered");
}

/// Everything that a pass tells anybody: log lines of every level, the condition, the error.
fn all_that_is_told(world: &World, trust: Trust) -> String {
    let worker = world.worker_with(trust);
    log::take();
    let result = block_on(world.settle(&worker));
    let log = log::take();
    let failure = result
        .err()
        .map(|failure| format!("{failure} {failure:?}"))
        .unwrap_or_default();
    let view = world.view().unwrap();
    let (seen, _) = block_on(worker.reader.observe(&view, &worker.memory, at(0))).unwrap();
    let plan = crate::plan::plan(&seen, at(0));
    assert!(
        log.contains("captcontrolplanes") || log.contains("SecretsReady"),
        "the log is really taken: {log}"
    );
    format!(
        "{log} {failure} {} {:?} {seen:?} {plan:?} {worker:?}",
        secrets_ready(world),
        world.writes()
    )
}

/// What is logged, per thread. One subscriber for the whole process: with one per test, whether a line is taken depends on
/// which thread came by it first.
pub(super) mod log {
    use std::cell::RefCell;
    use std::io;
    use std::sync::Once;

    thread_local!(static LINES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });

    struct Lines;

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            LINES.with_borrow_mut(|lines| lines.extend_from_slice(bytes));
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Every world does this first, so that no line is passed by before.
    pub(in crate::world) fn install() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            let subscriber = tracing_subscriber::fmt()
                .with_max_level(tracing::Level::TRACE)
                .with_writer(|| Lines)
                .finish();
            tracing::subscriber::set_global_default(subscriber).unwrap();
        });
    }

    /// What this thread has logged since the last time.
    pub(super) fn take() -> String {
        String::from_utf8(LINES.take()).unwrap()
    }
}

/// A value that no text of ours contains.
fn needle() -> impl Strategy<Value = String> {
    "[XQZJ]{4}[0-9]{4}[XQZJ]{4}"
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Whatever is wrong with a source, and also when nothing is: no value of it appears anywhere.
    #[test]
    fn no_value_of_a_secret_is_ever_told(
        needle in needle(),
        place in 0usize..16,
        trusted in any::<bool>(),
    ) {
        let world = World::new();
        let mut kubeconfig = samples::kubeconfig(&needle);
        let n = || Value::from(needle.clone());
        let mut authority = samples::base64(&samples::authority());
        match place {
            0 => {} // a token in a valid one
            1 => kubeconfig["current-context"] = n(),
            2 => kubeconfig["users"][0]["name"] = n(),
            3 => kubeconfig["clusters"][0]["cluster"]["server"] = n(),
            4 => kubeconfig["clusters"][0]["cluster"]["server"] = format!("https://{needle}:{needle}@host").into(),
            5 => kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"] = n(),
            6 => kubeconfig["users"][0]["user"] = json!({"exec": {"command": needle}}),
            7 => kubeconfig["users"][0]["user"] = json!({"client-certificate-data": needle, "client-key-data": needle}),
            8 => kubeconfig["users"][0]["user"] = json!({needle.clone(): {needle.clone(): 1}, "tokenFile": needle}),
            9 => kubeconfig["kind"] = n(),
            10 => kubeconfig["contexts"] = n(),
            11 => kubeconfig["users"][0]["user"] = json!({"token": [needle]}),
            12 => kubeconfig["clusters"][0]["cluster"]["proxy-url"] = n(),
            13 => authority = needle.clone(),
            14 => authority = samples::base64(&format!("-----BEGIN CERTIFICATE-----\n{needle}\n-----END CERTIFICATE-----\n")),
            _ => {}
        }
        let mut text = samples::yaml(&kubeconfig);
        if place == 15 {
            text = format!("{text}\n{needle}: [unclosed\n\t{needle}");
        }
        world.set_source(&[("kubeconfig", text.as_bytes()), ("cluster_certificate_authority_data", authority.as_bytes()), (&needle, needle.as_bytes())]);
        let trust = if trusted { Trust::Templates } else { Trust::DataOnly };
        let told = all_that_is_told(&world, trust);
        let encoded = samples::base64(&needle);
        prop_assert!(!told.contains(&needle), "{}", told);
        prop_assert!(!told.contains(encoded.trim_end_matches('=')), "{}", told);
    }
}
