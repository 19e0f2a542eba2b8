//! The Workspace simulator on a real API server, and its comparison with the real provider.
//!
//! Any environment will do: each test runs a simulator of its own in this process, on copies of the provider's CRDs under
//! groups that nobody else watches, and restricted by a label to the test's own Workspaces. Only the comparison, which is
//! ignored unless asked for, needs provider-terraform to be running: `cargo test -p capt-e2e --test simulator -- --ignored`.

// A test fails by panicking, and so do the helpers that only tests use.
#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod bench;
mod comparison;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::task::JoinSet;

use bench::{
    Bench, FINALIZER, LABEL, MODULE, PATIENCE, PENDING, Tape, applied, condition, failed, line, outputs, resource,
    vars_of,
};

#[tokio::test]
async fn a_workspace_becomes_ready_with_outputs_and_connection_secret() {
    let bench = Bench::new("sim-create").await;
    let _simulator = bench.simulate(&[]).await;
    let mut tape = bench.create(&bench.workspace("a", &[("name", "x")])).await;
    let ready = tape.until_ready().await;
    assert_eq!(
        *outputs(&ready),
        json!({"made": "made-x", "plain": "x", "zones": ["xa", "xb"]})
    );
    assert_eq!(
        bench.connection("a").await,
        BTreeMap::from([
            ("made".into(), "made-x".into()),
            ("password".into(), "secret-x".into()),
            ("plain".into(), "x".into()),
            ("zones".into(), r#"["xa","xb"]"#.into()),
        ])
    );
    assert_eq!(bench.state("a").await, Some(vec!["terraform_data.main".into()]));
    assert_eq!(ready.finalizers(), [FINALIZER]);
    assert_eq!(ready.annotations()["crossplane.io/external-name"], bench.name("a"));
    assert_eq!(
        tape.story(),
        [
            "Ready - never, Synced - never",
            "Ready False/Creating current, Synced True/ReconcileSuccess current",
            "Ready True/Available never, Synced True/ReconcileSuccess current",
        ]
    );
}

#[tokio::test]
async fn a_namespaced_workspace_keeps_to_its_namespace() {
    let bench = Bench::new("sim-namespaced").await;
    let _simulator = bench.simulate(&[]).await;
    let name = bench.name("a");
    bench
        .write_secret("input", "Opaque", json!({"tfvars": "name = \"y\"\n"}))
        .await;
    let kind = resource(bench.groups.namespaced, "Workspace");
    let api = Api::<DynamicObject>::namespaced_with(bench.client.clone(), &bench.id, &kind);
    let mut object = DynamicObject::new(&name, &kind).data(json!({"spec": {
        "forProvider": {
            "source": "Inline", "inlineFormat": "JSON", "module": MODULE,
            "varFiles": [{"source": "SecretKey", "secretKeyRef": {"name": "input", "key": "tfvars"}}],
        },
        "writeConnectionSecretToRef": {"name": "out"},
    }}));
    object.labels_mut().insert(LABEL.to_owned(), bench.id.clone());
    let mut tape = Tape::start(api.clone(), &name).await;
    api.create(&PostParams::default(), &object).await.expect("a Workspace");
    let ready = tape.until_ready().await;
    assert_eq!(outputs(&ready)["plain"], "y");
    let secret = bench.secrets().get("out").await.expect("a connection secret");
    let owner = secret.owner_references().first().expect("an owner").clone();
    assert_eq!(
        (owner.kind.as_str(), Some(&owner.uid)),
        ("Workspace", ready.metadata.uid.as_ref())
    );
    assert_eq!(owner.controller, Some(true));
    api.delete(&name, &DeleteParams::background())
        .await
        .expect("a deletion");
    tape.until_gone().await;
    assert_eq!(bench.state("a").await, None);
}

#[tokio::test]
async fn the_connection_secret_is_empty_during_the_first_apply() {
    let bench = Bench::new("sim-empty").await;
    let _simulator = bench.simulate(&[]).await;
    let mut tape = bench
        .create(&bench.workspace("a", &[("name", "x"), ("slow_seconds", "600")]))
        .await;
    let applying = tape
        .until("the apply", |object| object.annotations().contains_key(PENDING))
        .await;
    assert!(bench.connection("a").await.is_empty());
    assert_eq!(line(&applying), "Ready - never, Synced - never");
    assert_eq!(
        bench.state("a").await,
        Some(vec![]),
        "an empty state exists before the apply"
    );
}

#[tokio::test]
async fn an_update_is_known_by_the_observed_generation() {
    let bench = Bench::new("sim-update").await;
    let _simulator = bench.simulate(&[]).await;
    let mut tape = bench.create(&bench.workspace("a", &[("name", "x")])).await;
    tape.until_ready().await;
    bench.set_vars("a", &[("name", "y"), ("slow_seconds", "1")]).await;
    let changed = tape.until_ready().await;
    assert_eq!(changed.metadata.generation, Some(2));
    assert_eq!(outputs(&changed)["made"], "made-y");
    assert_eq!(bench.connection("a").await["password"], "secret-y");
    assert_eq!(
        tape.story()[3..],
        [
            "Ready True/Available never, Synced True/ReconcileSuccess old",
            "Ready True/Available never, Synced True/ReconcileSuccess current",
        ]
    );
}

#[tokio::test]
async fn a_first_apply_that_fails_once_heals_by_itself() {
    let bench = Bench::new("sim-once").await;
    let _simulator = bench.simulate(&[]).await;
    let vars = [("name", "x"), ("fault_apply_once", "creating VPC: VpcLimitExceeded")];
    let mut tape = bench.create(&bench.workspace("a", &vars)).await;
    let broken = tape.until("the failure", |object| failed(object, "")).await;
    let message = condition(&broken, "Synced")["message"]
        .as_str()
        .expect("a message")
        .to_owned();
    let wanted = "create failed: cannot apply Terraform configuration: Terraform encountered an error. \
                  Summary: creating VPC: VpcLimitExceeded. To see the full error run: echo \"";
    assert!(message.starts_with(wanted), "{message}");
    assert!(
        broken
            .annotations()
            .contains_key("crossplane.io/external-create-failed")
    );
    assert_eq!(condition(&broken, "Ready")["reason"], "Creating");
    let healed = tape.until_ready().await;
    assert_eq!(outputs(&healed)["made"], "made-x");
}

#[tokio::test]
async fn a_failed_update_leaves_ready_and_its_outputs() {
    let bench = Bench::new("sim-fault").await;
    let _simulator = bench.simulate(&[]).await;
    let mut tape = bench.create(&bench.workspace("a", &[("name", "x")])).await;
    tape.until_ready().await;
    bench
        .set_vars("a", &[("name", "y"), ("fault_apply", "throttled")])
        .await;
    let broken = tape
        .until("the failure", |object| {
            failed(object, "update failed: cannot apply Terraform configuration")
        })
        .await;
    assert_eq!(condition(&broken, "Ready")["status"], "True");
    assert_eq!(
        outputs(&broken)["made"],
        "made-x",
        "what needs the failed resource stays"
    );
    bench.set_vars("a", &[("name", "y")]).await;
    let healed = tape.until_ready().await;
    assert_eq!(outputs(&healed)["made"], "made-y");
}

#[tokio::test]
async fn a_mistake_in_the_module_or_its_variables_is_reported_where_terraform_meets_it() {
    let bench = Bench::new("sim-mistake").await;
    let _simulator = bench.simulate(&[]).await;
    let mut tape = bench.create(&bench.workspace("missing", &[])).await;
    let broken = tape.until("the failure", |object| failed(object, "")).await;
    let message = condition(&broken, "Synced")["message"]
        .as_str()
        .expect("a message")
        .to_owned();
    let wanted = "observe failed: cannot diff (i.e. plan) Terraform configuration: Terraform encountered an error. \
                  Summary: No value for required variable. To see";
    assert!(message.starts_with(wanted), "{message}");
    assert!(
        broken.finalizers().is_empty(),
        "the finalizer comes after the first good look"
    );
    bench.set_vars("missing", &[("name", "x")]).await;
    tape.until_ready().await;

    let mut hcl = bench.workspace("hcl", &[]);
    hcl.data["spec"]["forProvider"]["module"] = json!("output \"x\" { value = 1 }");
    hcl.data["spec"]["forProvider"]["inlineFormat"] = json!("HCL");
    let mut tape = bench.create(&hcl).await;
    tape.until("the refusal", |object| {
        failed(object, "connect failed: cannot initialize Terraform configuration: Terraform encountered an error. Summary: Unsupported by the simulator")
    })
    .await;

    let mut lost = bench.workspace("config", &[("name", "x")]);
    lost.data["spec"]["providerConfigRef"] = json!({"name": "nobody"});
    let mut tape = bench.create(&lost).await;
    tape.until("the failure", |object| {
        failed(
            object,
            "connect failed: failed to resolve provider config: cannot get provider config: ",
        )
    })
    .await;
}

#[tokio::test]
async fn a_deletion_destroys_and_waits_for_the_creation_grace_period() {
    let bench = Bench::new("sim-delete").await;
    let _simulator = bench.simulate(&["--creation-grace-seconds=5"]).await;
    let mut tape = bench.create(&bench.workspace("a", &[("name", "x")])).await;
    let ready = tape.until_ready().await;
    let created: Timestamp = ready.annotations()["crossplane.io/external-create-succeeded"]
        .parse()
        .expect("a time");
    bench.delete("a").await;
    tape.until("the destroy", |object| {
        condition(object, "Ready")["reason"] == "Deleting"
    })
    .await;
    tape.until_gone().await;
    let passed = Timestamp::now().duration_since(created);
    assert!(passed >= SignedDuration::from_secs(5), "{passed:?}");
    assert_eq!(bench.state("a").await, None);
    assert_eq!(tape.story().pop().as_deref(), Some("gone"));
}

#[tokio::test]
async fn a_failing_destroy_is_retried_and_leaks_nothing() {
    let bench = Bench::new("sim-stuck").await;
    let _simulator = bench.simulate(&[]).await;
    let mut tape = bench
        .create(&bench.workspace("a", &[("name", "x"), ("fault_destroy", "DependencyViolation")]))
        .await;
    tape.until_ready().await;
    bench.delete("a").await;
    tape.until("the failure", |object| {
        failed(object, "delete failed: cannot destroy Terraform configuration: Terraform encountered an error. Summary: DependencyViolation.")
    })
    .await;
    assert_eq!(bench.state("a").await, Some(vec!["terraform_data.main".into()]));
    bench.set_vars("a", &[("name", "x")]).await;
    tape.until_gone().await;
    assert_eq!(bench.state("a").await, None);
}

#[tokio::test]
async fn a_second_finalizer_postpones_the_destroy() {
    let bench = Bench::new("sim-finalizer").await;
    // One place only: the pass over the deleted Workspace then comes before those over one that is created later.
    let _simulator = bench.simulate(&["--concurrency=1"]).await;
    let mut held = bench.workspace("held", &[("name", "x")]);
    held.finalizers_mut().push("capt.dev/hold".to_owned());
    let mut tape = bench.create(&held).await;
    tape.until_ready().await;
    bench.delete("held").await;
    bench
        .create(&bench.workspace("later", &[("name", "x")]))
        .await
        .until_ready()
        .await;
    assert_eq!(bench.state("held").await, Some(vec!["terraform_data.main".into()]));
    bench
        .patch("held", json!({"metadata": {"finalizers": [FINALIZER]}}))
        .await;
    tape.until_gone().await;
    assert_eq!(bench.state("held").await, None);
    let destroyed_while_held = tape
        .seen
        .iter()
        .flatten()
        .any(|object| object.finalizers().len() > 1 && condition(object, "Ready")["reason"] == "Deleting");
    assert!(!destroyed_while_held);
}

#[tokio::test]
async fn an_orphaned_state_is_adopted_by_the_next_workspace_of_that_name() {
    let bench = Bench::new("sim-orphan").await;
    let _simulator = bench.simulate(&[]).await;
    let mut kept = bench.workspace("a", &[("name", "x")]);
    kept.data["spec"]["deletionPolicy"] = json!("Orphan");
    let mut tape = bench.create(&kept).await;
    tape.until_ready().await;
    bench.delete("a").await;
    tape.until_gone().await;
    assert_eq!(bench.state("a").await, Some(vec!["terraform_data.main".into()]));

    let mut again = bench.workspace("a", &[("name", "x")]);
    again.data["spec"]["writeConnectionSecretToRef"]["name"] = json!("again");
    let mut tape = bench.create(&again).await;
    let ready = tape.until_ready().await;
    assert!(!ready.annotations().contains_key(PENDING), "nothing was created");
    bench.delete("a").await;
    tape.until_gone().await;
    assert_eq!(bench.state("a").await, None);
}

#[tokio::test]
async fn policies_forbid_what_they_do_not_name() {
    let bench = Bench::new("sim-policy").await;
    let _simulator = bench.simulate(&[]).await;
    let mut observer = bench.workspace("observer", &[("name", "x")]);
    observer.data["spec"]["managementPolicies"] = json!(["Observe"]);
    let mut tape = bench.create(&observer).await;
    tape.until("nothing to observe", |object| {
        failed(object, "observe failed: external resource does not exist")
    })
    .await;

    let mut tape = bench.create(&bench.workspace("a", &[("name", "x")])).await;
    tape.until_ready().await;
    let letting_go = json!({"spec": {
        "managementPolicies": ["Observe"], "deletionPolicy": "Orphan",
        "forProvider": {"vars": vars_of(&[("name", "y")])},
    }});
    bench.patch("a", letting_go).await;
    let observed = tape.until_ready().await;
    assert_eq!(outputs(&observed)["plain"], "x", "a change is seen, not applied");
    bench
        .patch(
            "a",
            json!({"metadata": {"annotations": {"crossplane.io/paused": "true"}}}),
        )
        .await;
    tape.until("the pause", |object| {
        condition(object, "Synced")["reason"] == "ReconcilePaused"
    })
    .await;
    bench
        .patch(
            "a",
            json!({"metadata": {"annotations": {"crossplane.io/paused": null}}}),
        )
        .await;
    tape.until_ready().await;
    bench.delete("a").await;
    tape.until_gone().await;
    assert_eq!(bench.state("a").await, Some(vec!["terraform_data.main".into()]));
}

#[tokio::test]
async fn a_creation_that_was_cut_off_waits_for_a_person() {
    let bench = Bench::new("sim-cut").await;
    let simulator = bench.simulate(&[]).await;
    let mut tape = bench
        .create(&bench.workspace("a", &[("name", "x"), ("slow_seconds", "600")]))
        .await;
    tape.until("the apply", |object| object.annotations().contains_key(PENDING))
        .await;
    drop(simulator);
    bench.set_vars("a", &[("name", "x")]).await;
    let _simulator = bench.simulate(&["--concurrency=1"]).await;
    let stuck = tape
        .until("the report", |object| {
            failed(
                object,
                "cannot determine creation result - remove the crossplane.io/external-create-pending annotation if it is safe to proceed",
            )
        })
        .await;
    assert_eq!(condition(&stuck, "Ready")["reason"], "Creating");

    // Removing the annotation alone wakes nobody: a Workspace created after it is ready first.
    bench
        .patch("a", json!({"metadata": {"annotations": {PENDING: null}}}))
        .await;
    bench
        .create(&bench.workspace("later", &[("name", "x")]))
        .await
        .until_ready()
        .await;
    let unmoved = bench.workspaces().get(&bench.name("a")).await.expect("the Workspace");
    assert_eq!(condition(&unmoved, "Synced"), condition(&stuck, "Synced"));
    bench
        .patch("a", json!({"metadata": {"annotations": {"capt.dev/resumed": "now"}}}))
        .await;
    tape.until_ready().await;
}

#[tokio::test]
async fn inputs_are_needed_until_the_end() {
    let bench = Bench::new("sim-input").await;
    let _simulator = bench.simulate(&[]).await;
    let mut object = bench.workspace("a", &[]);
    object.data["spec"]["forProvider"]["env"] =
        json!([{"name": "TOKEN", "secretKeyRef": {"namespace": bench.id, "name": "token", "key": "value"}}]);
    object.data["spec"]["forProvider"]["varFiles"] = json!([{
        "source": "SecretKey", "format": "JSON", "secretKeyRef": {"namespace": bench.id, "name": "vars", "key": "file"},
    }]);
    let mut tape = bench.create(&object).await;
    tape.until("no environment", |object| {
        failed(
            object,
            "connect failed: cannot resolve variables: Secret \"token\" not found",
        )
    })
    .await;
    bench.write_secret("token", "Opaque", json!({"value": "t"})).await;
    let gone = "observe failed: cannot determine Terraform options: cannot get tfvars: Secret \"vars\" not found";
    tape.until("no variables", |object| failed(object, gone)).await;
    bench
        .write_secret("vars", "Opaque", json!({"file": "{\"name\": \"x\"}"}))
        .await;
    tape.until_ready().await;

    bench
        .secrets()
        .delete("vars", &DeleteParams::default())
        .await
        .expect("a deletion");
    bench.delete("a").await;
    tape.until("a deletion that is blocked", |object| failed(object, gone))
        .await;
    assert_eq!(bench.state("a").await, Some(vec!["terraform_data.main".into()]));
    bench
        .write_secret("vars", "Opaque", json!({"file": "{\"name\": \"x\"}"}))
        .await;
    tape.until_gone().await;
    assert_eq!(bench.state("a").await, None);
}

#[tokio::test]
async fn a_foreign_secret_is_not_overwritten() {
    let bench = Bench::new("sim-foreign").await;
    let _simulator = bench.simulate(&[]).await;
    bench
        .write_secret(&bench.name("a"), "Opaque", json!({"mine": "yes"}))
        .await;
    let mut tape = bench.create(&bench.workspace("a", &[("name", "x")])).await;
    tape.until("the refusal", |object| {
        failed(
            object,
            "cannot create or update connection secret: refusing to modify uncontrolled secret of type \"Opaque\"",
        )
    })
    .await;
    let secret = bench.secrets().get(&bench.name("a")).await.expect("the secret");
    assert_eq!(secret.data.expect("data").len(), 1);
    bench
        .secrets()
        .delete(&bench.name("a"), &DeleteParams::default())
        .await
        .expect("a deletion");
    tape.until_ready().await;
}

#[tokio::test]
async fn five_hundred_workspaces_become_ready_and_go() {
    let bench = Bench::new("sim-many").await;
    let _simulator = bench.simulate(&["--apply-seconds=0.2"]).await;
    let config = watcher::Config::default().labels(&format!("{LABEL}={}", bench.id));
    let mut changes = watcher(bench.workspaces(), config).boxed();
    let began = Instant::now();
    let names: Vec<String> = (0..500).map(|number| number.to_string()).collect();
    let mut making = JoinSet::new();
    for chunk in names.chunks(25) {
        let api = bench.workspaces();
        let objects: Vec<_> = chunk
            .iter()
            .map(|name| bench.workspace(name, &[("name", "x")]))
            .collect();
        making.spawn(async move {
            for object in objects {
                api.create(&PostParams::default(), &object).await.expect("a Workspace");
            }
        });
    }
    let mut ready = BTreeSet::new();
    let mut gone = BTreeSet::new();
    let mut deleting = false;
    while gone.len() < names.len() {
        let Ok(change) = tokio::time::timeout(PATIENCE, changes.next()).await else {
            panic!(
                "{} ready, {} gone, and nothing for {PATIENCE:?}",
                ready.len(),
                gone.len()
            );
        };
        match change.expect("a watch").expect("an event") {
            watcher::Event::Apply(object) | watcher::Event::InitApply(object) if applied(&object) => {
                ready.insert(object.name_any());
            }
            watcher::Event::Delete(object) => {
                gone.insert(object.name_any());
            }
            _ => {}
        }
        if ready.len() == names.len() && !deleting {
            deleting = true;
            println!("{} Workspaces ready after {:.1?}", names.len(), began.elapsed());
            let ours = ListParams::default().labels(&format!("{LABEL}={}", bench.id));
            let deleted = bench
                .workspaces()
                .delete_collection(&DeleteParams::background(), &ours)
                .await;
            deleted.expect("a deletion");
        }
    }
    println!("and gone after {:.1?}", began.elapsed());
    making.join_all().await;
}
