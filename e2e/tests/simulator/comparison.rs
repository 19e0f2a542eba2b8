//! The same scripted lives on the simulator and on the real provider, which must not be told apart.

use std::collections::BTreeMap;

use kube::ResourceExt;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};

use super::bench::{Bench, REAL, Tape, condition, failed, outputs};

/// What a reader can see of a Workspace's life, without names and times.
#[derive(Debug, PartialEq)]
struct Life {
    story: Vec<String>,
    failures: Vec<String>,
    shape: Value,
}

impl Life {
    /// With neither the test's names nor its groups in it.
    fn anonymous(mut self, bench: &Bench) -> Self {
        for failure in &mut self.failures {
            *failure = failure.replace(&bench.id, "ID").replace(bench.groups.cluster, "GROUP");
        }
        self
    }
}

/// Created, changed, broken, healed and deleted: the same for either provider.
async fn ordinary_life(bench: &Bench) -> Life {
    let mut tape = bench.create(&bench.workspace("ordinary", &[("name", "x")])).await;
    tape.until_ready().await;
    bench.set_vars("ordinary", &[("name", "y")]).await;
    tape.until_ready().await;
    bench
        .set_vars("ordinary", &[("name", "z"), ("fault_apply", "boom")])
        .await;
    tape.until("the failed update", |object| failed(object, "update failed"))
        .await;
    bench.set_vars("ordinary", &[("name", "z")]).await;
    let ready = tape.until_ready().await;
    let shape = shape(bench, "ordinary", &ready).await;
    bench.delete("ordinary").await;
    tape.until_gone().await;
    life(&tape, shape)
}

/// A first apply that fails until its variables are mended.
async fn troubled_life(bench: &Bench) -> Life {
    let mut tape = bench.create(&bench.workspace("troubled", &[])).await;
    tape.until("the missing variable", |object| failed(object, "observe failed"))
        .await;
    bench
        .set_vars("troubled", &[("name", "x"), ("fault_apply", "boom")])
        .await;
    tape.until("the failed create", |object| failed(object, "create failed"))
        .await;
    // What the first apply left behind is there now, so the next attempt is an update.
    tape.until("the failed update", |object| failed(object, "update failed"))
        .await;
    bench.set_vars("troubled", &[("name", "x")]).await;
    let ready = tape.until_ready().await;
    let shape = shape(bench, "troubled", &ready).await;
    bench.delete("troubled").await;
    tape.until_gone().await;
    life(&tape, shape)
}

/// Held up by everything that can be missing or in the way, before the first apply and at the end; paused in between.
async fn obstructed_life(bench: &Bench) -> Life {
    let mut object = bench.workspace("obstructed", &[]);
    object.data["spec"]["providerConfigRef"] = json!({"name": "nobody"});
    object.data["spec"]["forProvider"]["env"] =
        json!([{"name": "TOKEN", "secretKeyRef": {"namespace": bench.id, "name": "token", "key": "value"}}]);
    object.data["spec"]["forProvider"]["varFiles"] = json!([{
        "source": "SecretKey", "format": "JSON", "secretKeyRef": {"namespace": bench.id, "name": "vars", "key": "file"},
    }]);
    bench
        .write_secret(&bench.name("obstructed"), "Opaque", json!({"mine": "yes"}))
        .await;
    let mut tape = bench.create(&object).await;
    tape.until("no ProviderConfig", |object| failed(object, "nobody")).await;
    bench
        .patch(
            "obstructed",
            json!({"spec": {"providerConfigRef": {"name": "default"}}}),
        )
        .await;
    tape.until("no environment", |object| failed(object, "token")).await;
    bench.write_secret("token", "Opaque", json!({"other": "t"})).await;
    tape.until("no key", |object| failed(object, "couldn't find key")).await;
    // At once, so that nobody looks when there is none.
    let mended = Patch::Merge(json!({"stringData": {"value": "t"}}));
    let mended = bench.secrets().patch("token", &PatchParams::default(), &mended).await;
    mended.expect("the API server takes the patch");
    tape.until("no variables", |object| failed(object, "vars")).await;
    bench
        .write_secret("vars", "Opaque", json!({"file": "{\"name\": \"x\"}"}))
        .await;
    tape.until("a foreign secret", |object| failed(object, "refusing"))
        .await;
    bench
        .secrets()
        .delete(&bench.name("obstructed"), &DeleteParams::default())
        .await
        .expect("a deletion");
    tape.until_ready().await;

    bench
        .patch(
            "obstructed",
            json!({"metadata": {"annotations": {"crossplane.io/paused": "true"}}}),
        )
        .await;
    tape.until("the pause", |object| {
        condition(object, "Synced")["reason"] == "ReconcilePaused"
    })
    .await;
    bench
        .patch(
            "obstructed",
            json!({"metadata": {"annotations": {"crossplane.io/paused": null}}}),
        )
        .await;
    tape.until_ready().await;
    bench
        .patch("obstructed", json!({"spec": {"managementPolicies": ["Create"]}}))
        .await;
    tape.until("the policy", |object| failed(object, "managementPolicies"))
        .await;
    bench
        .patch("obstructed", json!({"spec": {"managementPolicies": ["*"]}}))
        .await;
    let ready = tape.until_ready().await;
    let shape = shape(bench, "obstructed", &ready).await;

    bench
        .secrets()
        .delete("vars", &DeleteParams::default())
        .await
        .expect("a deletion");
    bench.delete("obstructed").await;
    tape.until("a deletion that is blocked", |object| failed(object, "vars"))
        .await;
    bench
        .write_secret("vars", "Opaque", json!({"file": "{\"name\": \"x\"}"}))
        .await;
    tape.until_gone().await;
    life(&tape, shape)
}

fn life(tape: &Tape, shape: Value) -> Life {
    let mut failures: Vec<String> = tape
        .seen
        .iter()
        .flatten()
        .filter_map(|object| condition(object, "Synced")["message"].as_str())
        .map(|message| {
            message
                .split_once("Summary: ")
                .map_or(message, |(stage, _)| stage)
                .to_owned()
        })
        .collect();
    failures.dedup();
    Life {
        story: tape.story(),
        failures,
        shape,
    }
}

async fn shape(bench: &Bench, suffix: &str, object: &DynamicObject) -> Value {
    let keys = |value: &Value| -> Vec<String> {
        value
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, _)| key.clone())
            .collect()
    };
    let secret = bench
        .secrets()
        .get(&bench.name(suffix))
        .await
        .expect("a connection secret");
    let owners = secret.owner_references().iter();
    json!({
        "annotations": object.annotations().keys().collect::<Vec<_>>(),
        "finalizers": object.finalizers(),
        "status": keys(&object.data["status"]),
        "atProvider": keys(&object.data["status"]["atProvider"]),
        "outputs": outputs(object),
        "ready": keys(condition(object, "Ready")),
        "synced": keys(condition(object, "Synced")),
        "secret": {
            "type": secret.type_,
            "labels": secret.labels().len(),
            "owners": owners.map(|owner| json!([owner.kind, owner.controller, owner.block_owner_deletion])).collect::<Vec<_>>(),
            "data": secret.data.unwrap_or_default().into_iter()
                .map(|(key, value)| (key, String::from_utf8_lossy(&value.0).into_owned()))
                .collect::<BTreeMap<_, _>>(),
        },
    })
}

#[tokio::test]
async fn the_simulator_lives_as_the_real_provider_does() {
    let simulated = Bench::new("sim-compared").await;
    let _simulator = simulated.simulate(&[]).await;
    let real = Bench {
        groups: REAL,
        ..Bench::new("sim-real").await
    };
    let (ours, theirs) = tokio::join!(ordinary_life(&simulated), ordinary_life(&real));
    assert_eq!(ours.anonymous(&simulated), theirs.anonymous(&real));
    let (ours, theirs) = tokio::join!(troubled_life(&simulated), troubled_life(&real));
    assert_eq!(ours.anonymous(&simulated), theirs.anonymous(&real));
    let (ours, theirs) = tokio::join!(obstructed_life(&simulated), obstructed_life(&real));
    assert_eq!(ours.anonymous(&simulated), theirs.anonymous(&real));
}
