//! What an ordinary life costs the API server: each write of this controller, and none beside.

use serde_json::json;

use super::world::{APPLY, CLUSTER, CONTROL_PLANE, INFRASTRUCTURE, VPC_APPLY, World, condition};

/// Passes until there is nothing more to do, and how many writes that took.
fn writes(world: &mut World) -> usize {
    let before = world.writes;
    for _ in 0..5 {
        world.pass();
    }
    world.writes - before
}

#[test]
fn a_creation_takes_five_writes_and_a_deletion_four() {
    let mut world = World::young();
    let vpc_apply = world.get(VPC_APPLY).clone();
    let owner = world.get(CONTROL_PLANE)["metadata"]["ownerReferences"].clone();
    world.edit(CONTROL_PLANE, |cp| cp["metadata"]["ownerReferences"] = json!([]));
    world.remove(VPC_APPLY);
    world.set(INFRASTRUCTURE, "/status", json!({}));
    assert_eq!(writes(&mut world), 0, "Cluster API has not set the owner yet");
    world.set(CONTROL_PLANE, "/metadata/ownerReferences", owner);
    assert_eq!(writes(&mut world), 1, "the finalizer");

    let network = |world: &mut World, status: &str, reason: &str| {
        let mut ready = condition("Ready", status, reason, "words that change", 1);
        ready["lastTransitionTime"] = json!(world.now.to_string());
        let status = json!({"ready": status == "True", "vpcId": "vpc-0", "conditions": [ready]});
        world.set(INFRASTRUCTURE, "/status", status);
    };
    network(&mut world, "False", "WaitingForProvider");
    assert_eq!(writes(&mut world), 0, "that may pass");
    world.wait_until_settled();
    assert_eq!(writes(&mut world), 1, "WaitingForVPC");
    network(&mut world, "False", "VPCCreating");
    assert_eq!(writes(&mut world), 0, "the network's own words are its own");
    world.wait_minutes(3);
    network(&mut world, "True", "VPCCreated");
    assert_eq!(writes(&mut world), 0, "the VPC's apply is not in the cache yet");
    world.put(VPC_APPLY, vpc_apply);
    assert_eq!(writes(&mut world), 1, "the apply");

    world.others_act();
    assert_eq!(writes(&mut world), 0, "the apply's finalizer");
    world.apply_says("Applying", "words that change");
    assert_eq!(writes(&mut world), 1, "Creating");
    world.say("EndpointReady", "False", "WaitingForWorkspace", "waiting");
    world.say("SecretsReady", "False", "WaitingForSecret", "waiting");
    world.wait_minutes(3);
    world.apply_ready();
    assert_eq!(writes(&mut world), 0, "the endpoint comes within moments");
    let endpoint = json!({"host": "eks.example.com", "port": 443});
    world.set(CONTROL_PLANE, "/spec/controlPlaneEndpoint", endpoint);
    assert_eq!(writes(&mut world), 0, "a generation alone is no news");
    world.say("EndpointReady", "True", "EndpointPublished", "");
    assert_eq!(writes(&mut world), 0, "the kubeconfig comes within moments");
    world.say("SecretsReady", "True", "Ready", "");
    assert_eq!(writes(&mut world), 1, "Ready");
    world.wait_minutes(600);
    assert_eq!(writes(&mut world), 0, "at rest");
    assert_eq!((world.writes, world.status()["phase"].clone()), (5, json!("Ready")));
    assert_eq!(
        world.status()["observedGeneration"],
        world.get(CONTROL_PLANE)["metadata"]["generation"]
    );

    let guards = ["captendpoint", "captsecrets"].map(|name| format!("controlplane.cluster.x-k8s.io/{name}"));
    world.edit(CONTROL_PLANE, |cp| {
        let finalizers = cp["metadata"]["finalizers"].as_array_mut().unwrap();
        finalizers.extend(guards.iter().map(|name| json!(name)));
    });
    world.delete(CLUSTER);
    world.delete(CONTROL_PLANE);
    for guard in &guards {
        assert_eq!(writes(&mut world), 0, "the others clean up within moments");
        world.drop_finalizer(CONTROL_PLANE, guard);
    }
    assert_eq!(writes(&mut world), 3, "the apply is deleted, Deleting, its hold goes");
    assert_eq!(world.status()["phase"], json!("Deleting"));
    for reason in ["Held", "WaitingForWorkspace"] {
        let deleting = condition("Deleting", "True", reason, "words that change", 1);
        world.set(APPLY, "/status/conditions", json!([deleting]));
        assert_eq!(writes(&mut world), 0, "the apply's own words are its own");
    }
    world.others_act();
    assert_eq!(writes(&mut world), 1, "the finalizer");
    assert_eq!((world.writes, world.objects.contains_key(CONTROL_PLANE)), (9, false));
}
