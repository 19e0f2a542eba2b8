//! A row per transition, and what holds in every one of them.

use capt_api::conditions::{Report, cluster::ClusterReport, find};
use capt_runtime::error::{Failure, ObjectRef, Verb};
use serde_json::{Value, json};

use super::scene::*;
use super::*;
use crate::judge::Trouble;
use crate::observe::FromSecret;

/// The plan in one line: step, then status and reason of Ready, VPCReady, VPCCreating, VPCFailed, then what is special.
fn told(plan: &Plan) -> String {
    let mut words = vec![step_word(&plan.step).to_owned()];
    let wake = match plan.wake {
        Wake::At(time) => Some(format!("wake {}", time.as_second() - at(0).as_second())),
        Wake::OnEvent => None,
    };
    let Some(status) = &plan.status else {
        words.push("no report".into());
        words.extend(wake);
        return words.join(" | ");
    };
    let word = |type_: &str| {
        find(&status.conditions, type_).map(|condition| format!("{}/{}", &condition.status[..1], condition.reason))
    };
    for type_ in ["Ready", "VPCReady", "VPCCreating", "VPCFailed"] {
        words.push(word(type_).unwrap_or_else(|| "-".into()));
    }
    for (type_, usual) in [("Deleting", "F/NotDeleting"), ("Paused", "F/NotPaused")] {
        words.extend(
            word(type_)
                .filter(|word| word != usual)
                .map(|word| format!("{type_} {word}")),
        );
    }
    words.extend(status.failure_reason.as_ref().map(|reason| format!("failure {reason}")));
    words.extend(wake);
    words.join(" | ")
}

fn step_word(step: &Step) -> &'static str {
    match step {
        Step::Nothing => "-",
        Step::AddFinalizer => "AddFinalizer",
        Step::CreateApply(_) => "CreateApply",
        Step::HoldApply => "HoldApply",
        Step::AdoptApply => "AdoptApply",
        Step::ChangeApply(_) => "ChangeApply",
        Step::RetainApply(true) => "RetainApply",
        Step::RetainApply(false) => "DoNotRetainApply",
        Step::DeleteApply => "DeleteApply",
        Step::ReleaseHold => "ReleaseHold",
        Step::RemoveFinalizer => "RemoveFinalizer",
    }
}

fn message(plan: &Plan, type_: &str) -> String {
    let status = plan.status.as_ref().expect("a report");
    find(&status.conditions, type_).expect(type_).message.clone()
}

fn no_outputs() -> Value {
    json!({})
}

/// Rows: what it is about, the scene, the second at which it is planned, and what comes out.
fn rows() -> Vec<(&'static str, Scene, i64, &'static str)> {
    let ready = |outputs: Value| says("True", "Available", "", outputs);
    let unready = |reason: &str| says("False", reason, "m", no_outputs());
    let existing = json!({"spec": {"vpcTemplateRef": null, "existingVpcId": "vpc-9"}});
    vec![
        // Before anything is done.
        ("no owner yet", Scene::new().with(|seen| seen.owner = Owner::Unnamed), 0,
            "- | F/WaitingForCluster | F/WaitingForCluster | F/NotStarted | F/NoFailure"),
        ("the owner is not there", Scene::new().with(|seen| seen.owner = Owner::Unseen("demo".into())), 0,
            "- | F/WaitingForCluster | F/WaitingForCluster | F/NotStarted | F/NoFailure"),
        ("externally managed", Scene::new().capt_cluster(json!({"metadata": {"annotations": {"cluster.x-k8s.io/managed-by": ""}}})), 0,
            "- | no report"),
        ("moved elsewhere", Scene::new().deleting().capt_cluster(json!({"metadata": {"annotations": {"clusterctl.cluster.x-k8s.io/delete-for-move": ""}}})), 0,
            "- | no report"),
        ("paused by annotation", Scene::new().capt_cluster(json!({"metadata": {"annotations": {"cluster.x-k8s.io/paused": ""}}})), 0,
            "- | - | - | - | - | Paused T/Paused"),
        ("paused by its Cluster", Scene::new().cluster(json!({"spec": {"paused": true}})), 0,
            "- | - | - | - | - | Paused T/Paused"),
        ("paused while deleting", Scene::new().deleting().cluster(json!({"spec": {"paused": true}})).apply(json!({})), 0,
            "- | - | - | - | - | Deleting T/Paused | Paused T/Paused"),
        ("the finalizer comes first", Scene::new().capt_cluster(json!({"metadata": {"finalizers": null}})), 0,
            "AddFinalizer | F/VPCCreating | F/VPCCreating | T/VPCCreating | F/NoFailure | wake 900"),
        // In its first moments: told when it lasts, unless it is a trouble or an end.
        ("no owner yet, for a moment", Scene::new().born(0).with(|seen| seen.owner = Owner::Unnamed), 4,
            "- | no report | wake 5"),
        ("no owner for longer", Scene::new().born(0).with(|seen| seen.owner = Owner::Unnamed), 5,
            "- | F/WaitingForCluster | F/WaitingForCluster | F/NotStarted | F/NoFailure"),
        ("the owner is not there, for a moment", Scene::new().born(0).with(|seen| seen.owner = Owner::Unseen("demo".into())), 4,
            "- | no report | wake 5"),
        ("the finalizer comes first, in silence", Scene::new().born(0).capt_cluster(json!({"metadata": {"finalizers": null}})), 0,
            "AddFinalizer | no report | wake 5"),
        ("the apply is made in silence", Scene::new().born(0), 0,
            "CreateApply | no report | wake 5"),
        ("the apply is still not made", Scene::new().born(0), 5,
            "CreateApply | F/VPCCreating | F/VPCCreating | T/VPCCreating | F/NoFailure | wake 905"),
        ("the apply is new", Scene::new().born(0).apply(json!({"metadata": {"creationTimestamp": at(2).to_string()}})), 6,
            "- | no report | wake 7"),
        ("the apply is silent about what passes", Scene::new().born(0).apply(json!({"metadata": {"creationTimestamp": at(2).to_string()}})), 7,
            "- | no report | wake 12"),
        ("nobody takes the apply up", Scene::new().born(0).apply(json!({"metadata": {"creationTimestamp": at(2).to_string()}})), 12,
            "- | F/VPCCreating | F/VPCCreating | T/VPCCreating | F/NoFailure | wake 912"),
        ("the provider has not looked yet", Scene::new().born(0).apply(unready("WaitingForProvider")), 4,
            "- | no report | wake 5"),
        ("a new template is refused at once", Scene::new().born(0).apply(unready("InvalidTemplate")), 0,
            "- | F/InvalidTemplate | F/InvalidTemplate | F/VPCCreationFailed | T/InvalidTemplate | failure InvalidTemplate"),
        ("a new spec is refused at once", Scene::new().born(0).capt_cluster(json!({"spec": {"existingVpcId": "vpc-9"}})), 0,
            "- | F/InvalidVPCConfig | F/InvalidVPCConfig | F/VPCCreationFailed | T/InvalidVPCConfig | failure InvalidVPCConfig"),
        ("a failure that is over is not kept in silence", Scene::new().born(0).capt_cluster(json!({"status": {"conditions": [condition("VPCReady", "False", "InvalidVPCConfig", "m")]}})), 0,
            "CreateApply | F/VPCCreating | F/VPCCreating | T/VPCCreating | F/NoFailure | wake 900"),
        ("a clock that is far off silences nothing", Scene::new().born(3600), 0,
            "CreateApply | F/VPCCreating | F/VPCCreating | T/VPCCreating | F/NoFailure | wake 900"),
        ("an existing VPC is told at once", Scene::new().born(0).capt_cluster(existing.clone()), 0,
            "- | T/ExistingVPCUsed | T/ExistingVPCUsed | F/ExistingVPCUsed | F/NoFailure"),
        // A VPC that exists.
        ("an existing VPC", Scene::new().capt_cluster(existing.clone()), 0,
            "- | T/ExistingVPCUsed | T/ExistingVPCUsed | F/ExistingVPCUsed | F/NoFailure"),
        ("an existing VPC gets the finalizer too", Scene::new().capt_cluster(existing.clone()).capt_cluster(json!({"metadata": {"finalizers": null}})), 0,
            "AddFinalizer | T/ExistingVPCUsed | T/ExistingVPCUsed | F/ExistingVPCUsed | F/NoFailure"),
        ("an existing VPC instead of the made one: its apply is left alone", Scene::new().ready_before().capt_cluster(existing.clone()).apply(ready(json!({"vpc_id": "vpc-1"}))), 0,
            "- | T/ExistingVPCUsed | T/ExistingVPCUsed | F/ExistingVPCUsed | F/NoFailure"),
        // Specs that cannot be carried out.
        ("both ways", Scene::new().capt_cluster(json!({"spec": {"existingVpcId": "vpc-9"}})), 0,
            "- | F/InvalidVPCConfig | F/InvalidVPCConfig | F/VPCCreationFailed | T/InvalidVPCConfig | failure InvalidVPCConfig"),
        ("neither way", Scene::new().capt_cluster(json!({"spec": {"vpcTemplateRef": null}})), 0,
            "- | F/InvalidVPCConfig | F/InvalidVPCConfig | F/VPCCreationFailed | T/InvalidVPCConfig | failure InvalidVPCConfig"),
        ("a template of another namespace", Scene::new().capt_cluster(json!({"spec": {"vpcTemplateRef": {"namespace": "other"}}})), 0,
            "- | F/CrossNamespaceTemplate | F/CrossNamespaceTemplate | F/VPCCreationFailed | T/CrossNamespaceTemplate | failure CrossNamespaceTemplate"),
        ("a template of another namespace, allowed", Scene::new().capt_cluster(json!({"spec": {"vpcTemplateRef": {"namespace": "other"}}})).with(|seen| seen.settings.allow_cross_namespace = true), 0,
            "CreateApply | F/VPCCreating | F/VPCCreating | T/VPCCreating | F/NoFailure | wake 900"),
        ("an apply under another name holds the network", Scene::new().with(|seen| seen.astray = Some("mine".into())), 0,
            "- | F/InvalidVPCConfig | F/InvalidVPCConfig | F/VPCCreationFailed | T/InvalidVPCConfig | failure InvalidVPCConfig"),
        ("an apply under another name, and its network is used as an existing one", Scene::new().capt_cluster(existing.clone()).with(|seen| seen.astray = Some("mine".into())), 0,
            "- | T/ExistingVPCUsed | T/ExistingVPCUsed | F/ExistingVPCUsed | F/NoFailure"),
        // The apply is made and kept.
        ("the apply is made", Scene::new(), 7,
            "CreateApply | F/VPCCreating | F/VPCCreating | T/VPCCreating | F/NoFailure | wake 907"),
        ("the object's own deadline", Scene::new().capt_cluster(json!({"spec": {"timeouts": {"vpcReadyTimeout": 2}}})), 0,
            "CreateApply | F/VPCCreating | F/VPCCreating | T/VPCCreating | F/NoFailure | wake 120"),
        ("the apply is there", Scene::new().apply(json!({})), 0,
            "- | F/VPCCreating | F/VPCCreating | T/VPCCreating | F/NoFailure | wake 900"),
        ("the hold was taken off", Scene::new().apply(json!({"metadata": {"finalizers": null}})), 0,
            "HoldApply | F/VPCCreating | F/VPCCreating | T/VPCCreating | F/NoFailure | wake 900"),
        ("the owner was taken off", Scene::new().apply(json!({"metadata": {"ownerReferences": null}})), 0,
            "AdoptApply | F/VPCCreating | F/VPCCreating | T/VPCCreating | F/NoFailure | wake 900"),
        ("the label was taken off", Scene::new().apply(json!({"metadata": {"labels": null}})), 0,
            "ChangeApply | F/VPCCreating | F/VPCCreating | T/VPCCreating | F/NoFailure | wake 900"),
        ("the wish changed", Scene::new().ready_before().capt_cluster(json!({"spec": {"variables": {"cidr": "10.1.0.0/16"}}})).apply(ready(json!({"vpc_id": "vpc-1"}))), 0,
            "ChangeApply | T/VPCCreated | F/VPCCreating | T/VPCCreating | F/NoFailure | wake 900"),
        ("an apply that is ready for something else does not make anything ready", Scene::new().apply({ let mut other = ready(json!({"vpc_id": "vpc-1"})); merge(&mut other, json!({"spec": {"variables": {"region": "elsewhere"}}})); other }), 0,
            "ChangeApply | F/VPCCreating | F/VPCCreating | T/VPCCreating | F/NoFailure | wake 900"),
        ("the retention changed", Scene::new().ready_before().capt_cluster(json!({"spec": {"retainVpcOnDelete": true}})).apply(ready(json!({"vpc_id": "vpc-1"}))), 0,
            "ChangeApply | T/VPCCreated | F/VPCCreating | T/VPCCreating | F/NoFailure | wake 900"),
        ("the apply cannot be read", Scene::new().with(|seen| seen.apply = Apply::Unreadable("odd".into())), 0,
            "- | F/VPCCreationFailed | F/VPCCreationFailed | F/VPCCreationFailed | T/VPCCreationFailed | wake 900"),
        ("the name is taken", Scene::new().with(|seen| seen.apply = Apply::Foreign { deleting: false }), 0,
            "- | F/OwnershipConflict | F/OwnershipConflict | F/VPCCreationFailed | T/OwnershipConflict | failure OwnershipConflict"),
        ("the name is taken by one that goes", Scene::new().with(|seen| seen.apply = Apply::Foreign { deleting: true }), 0,
            "- | F/VPCCreating | F/VPCCreating | T/VPCCreating | F/NoFailure | wake 900"),
        ("refused as somebody else's", Scene::new().with(|seen| seen.trouble = Some(trouble(How::Conflict))), 0,
            "- | F/OwnershipConflict | F/OwnershipConflict | F/VPCCreationFailed | T/OwnershipConflict | failure OwnershipConflict"),
        ("refused as invalid", Scene::new().with(|seen| seen.trouble = Some(trouble(How::Invalid))), 0,
            "- | F/InvalidVPCConfig | F/InvalidVPCConfig | F/VPCCreationFailed | T/InvalidVPCConfig | failure InvalidVPCConfig"),
        ("a wait of long ago does not count before the apply is made again", Scene::new().waiting("vpc", 0, "Applying"), 2000,
            "CreateApply | F/VPCCreating | F/VPCCreating | T/VPCCreating | F/NoFailure | wake 2900"),
        ("refused by a policy", Scene::new().with(|seen| seen.trouble = Some(trouble(How::Denied))), 0,
            "- | F/AdmissionDenied | F/AdmissionDenied | F/VPCCreationFailed | T/AdmissionDenied | failure AdmissionDenied"),
        ("the Workspace is refused by a policy", Scene::new().apply(unready("AdmissionDenied")), 0,
            "- | F/AdmissionDenied | F/AdmissionDenied | F/VPCCreationFailed | T/AdmissionDenied | failure AdmissionDenied"),
        ("refused because the namespace goes", Scene::new().with(|seen| seen.trouble = Some(trouble(How::Namespace))), 0,
            "- | F/NamespaceTerminating | F/NamespaceTerminating | F/NotStarted | F/NoFailure"),
        ("not allowed: shown, and no verdict on the wish", Scene::new().with(|seen| seen.trouble = Some(trouble(How::Forbidden))), 0,
            "- | F/VPCCreationFailed | F/VPCCreationFailed | F/VPCCreationFailed | T/VPCCreationFailed | wake 900"),
        // What the apply says.
        ("it waits for its template", Scene::new().apply(waiting("WaitingForTemplate")), 0,
            "- | F/WaitingForTemplate | F/WaitingForTemplate | T/WaitingForTemplate | F/NoFailure | wake 900"),
        ("it waits for something else", Scene::new().apply(waiting("WaitingForInputs")), 0,
            "- | F/VPCCreating | F/VPCCreating | T/VPCCreating | F/NoFailure | wake 900"),
        ("it queues, and no clock runs", Scene::new().waiting("vpc", 0, "Pending").apply(unready("WaitingForProvider")), 10_000,
            "- | F/WaitingForProvider | F/WaitingForProvider | T/WaitingForProvider | F/NoFailure"),
        ("the Workspace is paused, and no clock runs", Scene::new().waiting("vpc", 0, "Applying").apply(unready("WorkspacePaused")), 10_000,
            "- | F/WorkspacePaused | F/WorkspacePaused | F/WorkspacePaused | F/NoFailure"),
        ("Terraform works", Scene::new().apply(unready("Applying")), 5,
            "- | F/VPCCreating | F/VPCCreating | T/VPCCreating | F/NoFailure | wake 905"),
        ("Terraform works since then", Scene::new().waiting("vpc", 0, "Applying").apply(unready("Applying")), 899,
            "- | F/VPCCreating | F/VPCCreating | T/VPCCreating | F/NoFailure | wake 900"),
        ("Terraform works too long", Scene::new().waiting("vpc", 0, "Applying").apply(unready("Applying")), 900,
            "- | F/VPCReadyTimeout | F/VPCReadyTimeout | F/VPCCreationFailed | T/VPCReadyTimeout | failure VPCReadyTimeout"),
        ("a pause does not count", Scene::new().waiting("vpc", 0, "Applying").capt_cluster(json!({"status": {"conditions": [condition("Paused", "True", "Paused", "")]}})).apply(unready("Applying")), 900,
            "- | F/VPCCreating | F/VPCCreating | T/VPCCreating | F/NoFailure | wake 1800"),
        ("Terraform fails and goes on", Scene::new().waiting("vpc", 0, "Applying").apply(unready("TerraformFailed")), 899,
            "- | F/VPCCreationFailed | F/VPCCreationFailed | F/VPCCreationFailed | T/VPCCreationFailed | wake 900"),
        ("Terraform fails until the deadline", Scene::new().waiting("vpc", 0, "TerraformFailed").apply(unready("TerraformFailed")), 900,
            "- | F/VPCReadyTimeout | F/VPCReadyTimeout | F/VPCCreationFailed | T/VPCReadyTimeout | failure VPCReadyTimeout"),
        ("a mended template has its own time", Scene::new().waiting("vpc", 0, "TerraformFailed").apply(unready("Applying")), 900,
            "- | F/VPCCreating | F/VPCCreating | T/VPCCreating | F/NoFailure | wake 1800"),
        ("a changed spec has its own time", Scene::new().waiting("vpc", 0, "Applying").apply(outdated()), 900,
            "- | F/VPCCreating | F/VPCCreating | T/VPCCreating | F/NoFailure | wake 1800"),
        ("another revision fails", Scene::new().capt_cluster(json!({"status": {"waitingSince": {"vpc": at(0).to_string()}, "workspaceTemplateStatus": {"state": "TerraformFailed", "lastFailedRevision": "r1"}}})).apply(failed("r2")), 900,
            "- | F/VPCCreationFailed | F/VPCCreationFailed | F/VPCCreationFailed | T/VPCCreationFailed | wake 1800"),
        ("a cut-off create", Scene::new().apply(unready("CreateInterrupted")), 0,
            "- | F/CreateInterrupted | F/CreateInterrupted | F/VPCCreationFailed | T/CreateInterrupted | wake 900"),
        ("a held lock", Scene::new().apply(unready("StateLocked")), 0,
            "- | F/StateLocked | F/StateLocked | F/VPCCreationFailed | T/StateLocked | wake 900"),
        ("no ProviderConfig", Scene::new().apply(unready("ProviderConfigMissing")), 0,
            "- | F/ProviderConfigMissing | F/ProviderConfigMissing | F/VPCCreationFailed | T/ProviderConfigMissing | wake 900"),
        ("no credentials", Scene::new().apply(unready("CredentialsMissing")), 0,
            "- | F/CredentialsMissing | F/CredentialsMissing | F/VPCCreationFailed | T/CredentialsMissing | wake 900"),
        ("a quota", Scene::new().apply(unready("QuotaExceeded")), 0,
            "- | F/QuotaExceeded | F/QuotaExceeded | F/VPCCreationFailed | T/QuotaExceeded | wake 900"),
        ("something does not become ready", Scene::new().apply(unready("TerraformTimeout")), 0,
            "- | F/TerraformTimeout | F/TerraformTimeout | F/VPCCreationFailed | T/TerraformTimeout | wake 900"),
        ("a module that cannot be loaded", Scene::new().apply(unready("InvalidModule")), 0,
            "- | F/InvalidModule | F/InvalidModule | F/VPCCreationFailed | T/InvalidModule | wake 900"),
        ("an invalid template", Scene::new().apply(unready("InvalidTemplate")), 0,
            "- | F/InvalidTemplate | F/InvalidTemplate | F/VPCCreationFailed | T/InvalidTemplate | failure InvalidTemplate"),
        ("an unsafe variable", Scene::new().apply(unready("UnsafeVariable")), 0,
            "- | F/UnsafeVariable | F/UnsafeVariable | F/VPCCreationFailed | T/UnsafeVariable | failure UnsafeVariable"),
        ("a missing variable", Scene::new().apply(unready("UnresolvedVariable")), 0,
            "- | F/UnresolvedVariable | F/UnresolvedVariable | F/VPCCreationFailed | T/UnresolvedVariable | failure UnresolvedVariable"),
        ("a reference to another namespace", Scene::new().apply(unready("CrossNamespaceReference")), 0,
            "- | F/CrossNamespaceTemplate | F/CrossNamespaceTemplate | F/VPCCreationFailed | T/CrossNamespaceTemplate | failure CrossNamespaceTemplate"),
        ("the Workspace is somebody else's", Scene::new().apply(unready("OwnershipConflict")), 0,
            "- | F/OwnershipConflict | F/OwnershipConflict | F/VPCCreationFailed | T/OwnershipConflict | failure OwnershipConflict"),
        ("the namespace goes", Scene::new().apply(unready("NamespaceTerminating")), 0,
            "- | F/NamespaceTerminating | F/NamespaceTerminating | F/NotStarted | F/NoFailure"),
        ("a word that is not known", Scene::new().apply(unready("Surprise")), 0,
            "- | F/VPCCreating | F/VPCCreating | T/VPCCreating | F/NoFailure | wake 900"),
        ("an old word does not count", Scene::new().apply(outdated()), 0,
            "- | F/VPCCreating | F/VPCCreating | T/VPCCreating | F/NoFailure | wake 900"),
        // The VPC is there.
        ("ready", Scene::new().waiting("vpc", 0, "Applying").apply(ready(json!({"vpc_id": "vpc-1"}))), 10,
            "- | T/VPCCreated | T/VPCCreated | F/VPCCreated | F/NoFailure"),
        ("a late success heals", Scene::new().waiting("vpc", 0, "TerraformFailed").capt_cluster(json!({"status": {"failureReason": "VPCReadyTimeout", "failureMessage": "m"}})).apply(ready(json!({"vpc_id": "vpc-1"}))), 9_000,
            "- | T/VPCCreated | T/VPCCreated | F/VPCCreated | F/NoFailure"),
        ("ready, the ID is in the secret", Scene::new().apply(ready(no_outputs())).with(|seen| seen.secret = FromSecret::Read(Some("vpc-2".into()))), 0,
            "- | T/VPCCreated | T/VPCCreated | F/VPCCreated | F/NoFailure"),
        ("ready, the ID is a list", Scene::new().apply(ready(json!({"vpc_id": "[\"vpc-1\"]"}))), 0,
            "- | F/InvalidTemplate | F/InvalidTemplate | F/VPCCreationFailed | T/InvalidTemplate | failure InvalidTemplate"),
        ("ready before, the ID is a list now", Scene::new().ready_before().apply(ready(json!({"vpc_id": "[\"vpc-1\"]"}))), 0,
            "- | T/VPCCreated | F/InvalidTemplate | F/VPCCreationFailed | T/InvalidTemplate"),
        ("ready, the ID in the secret is an object", Scene::new().apply(ready(no_outputs())).with(|seen| seen.secret = FromSecret::Read(Some("{}".into()))), 0,
            "- | F/WaitingForVPCID | F/WaitingForVPCID | T/WaitingForVPCID | F/NoFailure | wake 5"),
        ("ready, no ID: looked for again soon", Scene::new().apply(ready(no_outputs())).with(|seen| seen.secret = FromSecret::Read(None)), 0,
            "- | F/WaitingForVPCID | F/WaitingForVPCID | T/WaitingForVPCID | F/NoFailure | wake 5"),
        ("ready, no ID: looked for again later", Scene::new().waiting("secret", 0, "Available").apply(ready(no_outputs())).with(|seen| seen.secret = FromSecret::Read(None)), 100,
            "- | F/WaitingForVPCID | F/WaitingForVPCID | T/WaitingForVPCID | F/NoFailure | wake 200"),
        ("ready, no ID: the deadline comes first", Scene::new().waiting("secret", 0, "Available").apply(ready(no_outputs())).with(|seen| seen.secret = FromSecret::Read(None)), 200,
            "- | F/WaitingForVPCID | F/WaitingForVPCID | T/WaitingForVPCID | F/NoFailure | wake 300"),
        ("ready, no ID for too long: still looked for", Scene::new().waiting("secret", 0, "Available").apply(ready(no_outputs())).with(|seen| seen.secret = FromSecret::Read(None)), 300,
            "- | F/SecretTimeout | F/SecretTimeout | F/VPCCreationFailed | T/SecretTimeout | failure SecretTimeout | wake 600"),
        // A network in use.
        ("in use, and changed", Scene::new().ready_before().apply(unready("Applying")), 0,
            "- | T/VPCCreated | F/VPCCreating | T/VPCCreating | F/NoFailure | wake 900"),
        ("in use, and a plan fails", Scene::new().ready_before().apply(unready("TerraformFailed")), 0,
            "- | T/VPCCreated | F/VPCCreationFailed | F/VPCCreationFailed | T/VPCCreationFailed | wake 900"),
        ("in use, and a change takes too long", Scene::new().ready_before().waiting("vpc", 0, "Applying").apply(unready("Applying")), 900,
            "- | T/VPCCreated | F/VPCReadyTimeout | F/VPCCreationFailed | T/VPCReadyTimeout"),
        ("in use, and the template becomes invalid", Scene::new().ready_before().apply(unready("InvalidTemplate")), 0,
            "- | T/VPCCreated | F/InvalidTemplate | F/VPCCreationFailed | T/InvalidTemplate"),
        ("in use, and the apply is being deleted", Scene::new().ready_before().apply(deleted(true)), 0,
            "- | F/ApplyDeleted | F/ApplyDeleted | F/Deleting | F/NoFailure"),
        ("in use, and the apply has gone: it is made anew", Scene::new().ready_before(), 0,
            "CreateApply | T/VPCCreated | F/VPCCreating | T/VPCCreating | F/NoFailure | wake 900"),
        ("in use, the apply has gone, and the Cluster goes: nothing new is begun", Scene::new().ready_before().cluster(json!({"metadata": {"deletionTimestamp": at(0).to_string()}})), 0,
            "- | T/VPCCreated | F/VPCCreating | T/VPCCreating | F/NoFailure | wake 900"),
        // Deletion.
        ("deleted before anything was made", Scene::new().deleting().capt_cluster(json!({"metadata": {"finalizers": ["other"]}})), 0,
            "- | no report"),
        ("a control plane is left", Scene::new().deleting().apply(json!({})).with(|seen| seen.control_planes = vec!["cp".into()]), 10,
            "- | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/WaitingForControlPlane | wake 1800"),
        ("the hold is released first, so that the deletion is never held", Scene::new().deleting().apply(json!({})), 10,
            "ReleaseHold | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/WaitingForWorkspace | wake 1800"),
        ("the apply is deleted", Scene::new().deleting().apply(json!({"metadata": {"finalizers": []}})), 10,
            "DeleteApply | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/WaitingForWorkspace | wake 1800"),
        ("retention comes first", Scene::new().deleting().capt_cluster(json!({"spec": {"retainVpcOnDelete": true}})).apply(json!({})), 10,
            "RetainApply | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/RetainingVPC | wake 1800"),
        ("retention comes first, also on an apply that is going", Scene::new().deleting().capt_cluster(json!({"spec": {"retainVpcOnDelete": true}})).apply(deleted(true)), 10,
            "RetainApply | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/RetainingVPC | wake 1800"),
        ("retention was taken back", Scene::new().deleting().apply(json!({"spec": {"retainWorkspaceOnDelete": true}})), 10,
            "DoNotRetainApply | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/WaitingForWorkspace | wake 1800"),
        ("a VPC that is used as an existing one is kept", Scene::new().deleting().capt_cluster(existing.clone()).apply(ready(json!({"vpc_id": "vpc-9"}))), 10,
            "RetainApply | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/RetainingVPC | wake 1800"),
        ("a VPC that was given up for an existing one is not", Scene::new().deleting().capt_cluster(existing.clone()).apply(ready(json!({"vpc_id": "vpc-1"}))), 10,
            "ReleaseHold | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/WaitingForWorkspace | wake 1800"),
        ("the hold is released, also of one that was deleted by hand", Scene::new().deleting().apply(deleted(true)), 10,
            "ReleaseHold | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/WaitingForWorkspace | wake 1800"),
        ("Terraform destroys", Scene::new().deleting().apply(deleted(false)), 10,
            "- | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/WaitingForWorkspace | wake 1800"),
        ("Terraform fails to destroy", Scene::new().deleting().apply(destroying("DestroyFailed")), 10,
            "- | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/DestroyFailed | wake 1800"),
        ("a variable is corrected while Terraform fails to destroy", Scene::new().deleting().capt_cluster(json!({"spec": {"variables": {"cidr": "10.0.0.0/16"}}})).apply(destroying("DestroyFailed")), 10,
            "ChangeApply | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/DestroyFailed | wake 1800"),
        ("a variable is changed while Terraform destroys", Scene::new().deleting().capt_cluster(json!({"spec": {"variables": {"cidr": "10.0.0.0/16"}}})).apply(deleted(false)), 10,
            "- | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/WaitingForWorkspace | wake 1800"),
        ("somebody else keeps the apply", Scene::new().deleting().apply(left_behind()), 10,
            "- | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/ForeignFinalizer | wake 1800"),
        ("somebody else keeps the apply, for a moment", Scene::new().deleting().apply(left_behind()), 4,
            "- | no report | wake 5"),
        ("somebody else keeps the Workspace", Scene::new().deleting().apply(destroying("ForeignFinalizer")), 10,
            "- | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/ForeignFinalizer | wake 1800"),
        ("a lock is in the way", Scene::new().deleting().apply(destroying("StateLocked")), 10,
            "- | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/StateLocked | wake 1800"),
        ("a cut-off create is in the way", Scene::new().deleting().apply(destroying("CreateInterrupted")), 10,
            "- | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/CreateInterrupted | wake 1800"),
        ("the deletion takes too long", Scene::new().deleting().apply(destroying("DestroyFailed")), 1800,
            "- | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/DeletionTimeout"),
        ("the deletion takes too long, and goes on", Scene::new().deleting().apply(deleted(true)), 1800,
            "ReleaseHold | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/DeletionTimeout"),
        ("the apply cannot be read: it is not taken for gone", Scene::new().deleting().with(|seen| seen.apply = Apply::Unreadable("odd".into())), 10,
            "- | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/WaitingForWorkspace | wake 1800"),
        ("it is not allowed to look: nothing is taken for gone", Scene::new().deleting().with(|seen| seen.trouble = Some(trouble(How::Forbidden))), 10,
            "- | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/WaitingForWorkspace | wake 1800"),
        ("the apply is somebody else's all of a sudden", Scene::new().deleting().apply(json!({})).with(|seen| seen.trouble = Some(trouble(How::Conflict))), 10,
            "- | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/OwnershipConflict | wake 1800"),
        ("an apply under another name is not forgotten", Scene::new().deleting().with(|seen| seen.astray = Some("mine".into())), 10,
            "- | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/WaitingForWorkspace | wake 1800"),
        ("the credentials are gone", Scene::new().deleting().apply(destroying("CredentialsMissing")), 10,
            "- | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/CredentialsMissing | wake 1800"),
        ("the ProviderConfig is gone", Scene::new().deleting().apply(destroying("ProviderConfigMissing")), 10,
            "- | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/ProviderConfigMissing | wake 1800"),
        ("the apply's own deadline passed, and Terraform fails", Scene::new().deleting().apply({ let mut late = destroying("DeletionTimeout"); merge(&mut late, json!({"status": {"lastFailureMessage": "m"}})); late }), 10,
            "- | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/DestroyFailed | wake 1800"),
        ("the apply's own deadline passed, and nothing fails", Scene::new().deleting().apply(destroying("DeletionTimeout")), 10,
            "- | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/WaitingForWorkspace | wake 1800"),
        ("the Workspace is paused at the provider", Scene::new().deleting().apply(destroying("WorkspacePaused")), 10,
            "- | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/WorkspacePaused | wake 1800"),
        ("a policy refuses the deletion", Scene::new().deleting().apply(json!({})).with(|seen| seen.trouble = Some(trouble(How::Denied))), 10,
            "- | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/AdmissionDenied | wake 1800"),
        ("what the apply says while all is well is its own business", Scene::new().deleting().apply(destroying("Held")), 10,
            "- | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/WaitingForWorkspace | wake 1800"),
        // Deletion, in its first moments: told when it lasts, unless it is a trouble.
        ("a control plane is left, for a moment", Scene::new().deleting().apply(json!({})).with(|seen| seen.control_planes = vec!["cp".into()]), 4,
            "- | no report | wake 5"),
        ("the apply is deleted at once", Scene::new().deleting().apply(json!({"metadata": {"finalizers": []}})), 4,
            "DeleteApply | no report | wake 5"),
        ("the hold is released at once", Scene::new().deleting().apply(json!({})), 4,
            "ReleaseHold | no report | wake 5"),
        ("Terraform destroys, for a moment", Scene::new().deleting().apply(deleted(false)), 4,
            "- | no report | wake 5"),
        ("the VPC is let go of, for a moment", Scene::new().deleting().capt_cluster(json!({"spec": {"retainVpcOnDelete": true}})).apply(json!({})), 4,
            "RetainApply | no report | wake 5"),
        ("a control plane was waited for, and then the apply is deleted", Scene::new().deleting().capt_cluster(json!({"status": {"conditions": [condition("Deleting", "True", "WaitingForControlPlane", "m")]}})).apply(json!({"metadata": {"deletionTimestamp": at(60).to_string()}})), 62,
            "ReleaseHold | no report | wake 65"),
        ("a pause is over", Scene::new().deleting().capt_cluster(json!({"status": {"conditions": [condition("Paused", "True", "Paused", "m")]}})).apply(deleted(false)), 4,
            "- | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/WaitingForWorkspace | wake 1804"),
        ("Terraform fails to destroy at once", Scene::new().deleting().apply(destroying("DestroyFailed")), 0,
            "- | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/DestroyFailed | wake 1800"),
        ("a short deadline comes before the silence ends", Scene::new().deleting().apply(deleted(false)).with(|seen| seen.settings.deletion_timeout = SignedDuration::from_secs(3)), 2,
            "- | no report | wake 3"),
        ("a short deadline breaks the silence", Scene::new().deleting().apply(deleted(false)).with(|seen| seen.settings.deletion_timeout = SignedDuration::from_secs(3)), 3,
            "- | F/Deleting | F/Deleting | F/Deleting | F/NoFailure | Deleting T/DeletionTimeout"),
        ("all gone", Scene::new().deleting(), 0, "RemoveFinalizer | no report"),
        ("all gone, somebody else took the name", Scene::new().deleting().with(|seen| seen.apply = Apply::Foreign { deleting: false }), 0,
            "RemoveFinalizer | no report"),
        ("all gone, the owner too", Scene::new().deleting().with(|seen| seen.owner = Owner::Unseen("demo".into())), 0,
            "RemoveFinalizer | no report"),
    ]
}

enum How {
    Conflict,
    Invalid,
    Namespace,
    Forbidden,
    Denied,
}

fn trouble(how: How) -> Trouble {
    let object = ObjectRef::new("WorkspaceTemplateApply", Some("ns"), "net-vpc");
    let failure = match how {
        How::Conflict => Failure::OwnershipConflict {
            object,
            owner: "theirs".into(),
        },
        How::Invalid => Failure::Invalid {
            object,
            field: "spec".into(),
            message: "no".into(),
        },
        How::Denied => Failure::Denied {
            verb: Verb::Create,
            object,
            message: "no".into(),
        },
        How::Namespace => Failure::NamespaceTerminating { object },
        How::Forbidden => Failure::Forbidden {
            verb: Verb::Create,
            object,
            message: "no".into(),
            is_lasting: true,
        },
    };
    Trouble::of(&failure).expect("nothing that passes by itself")
}

fn waiting(reason: &str) -> Value {
    json!({"status": {"observedGeneration": 1, "conditions": [
        condition("Ready", "False", "NotApplied", ""), condition("Waiting", "True", reason, "something"),
    ]}})
}

/// The apply reports on generation 1, and is at generation 2.
fn outdated() -> Value {
    let mut value = says("True", "Available", "", json!({"vpc_id": "vpc-1"}));
    merge(&mut value, json!({"metadata": {"generation": 2}}));
    value
}

fn failed(revision: &str) -> Value {
    let mut value = says("False", "TerraformFailed", "m", json!({}));
    merge(&mut value, json!({"status": {"lastFailedRevision": revision}}));
    value
}

fn deleted(held: bool) -> Value {
    let own = "infrastructure.cluster.x-k8s.io/workspacetemplateapply";
    let hold = "infrastructure.cluster.x-k8s.io/captcluster-hold";
    let finalizers = if held { json!([own, hold]) } else { json!([own]) };
    json!({"metadata": {"deletionTimestamp": at(0).to_string(), "finalizers": finalizers}})
}

/// An apply that has nothing left to do, and that somebody else keeps; what it said last is old.
fn left_behind() -> Value {
    let mut value = destroying("DestroyFailed");
    merge(&mut value, json!({"metadata": {"finalizers": ["example.com/backup"]}}));
    value
}

fn destroying(reason: &str) -> Value {
    let mut value = deleted(false);
    merge(
        &mut value,
        json!({"status": {"conditions": [condition("Deleting", "True", reason, "why")]}}),
    );
    value
}

#[test]
fn every_transition() {
    for (case, scene, second, expected) in rows() {
        assert_eq!(told(&plan(&scene.0, at(second))), expected, "{case}");
    }
}

/// What is written is what is read next; then there is nothing to write.
#[test]
fn a_report_that_was_written_is_not_written_again() {
    for (case, mut scene, second, _) in rows() {
        let first = plan(&scene.0, at(second));
        let Some(status) = first.status.clone() else { continue };
        let mut written = (*scene.0.capt_cluster).clone();
        written.status = Some(status);
        scene.0.capt_cluster = written.into();
        // As late as possible without passing a deadline.
        let later = match first.wake {
            Wake::At(time) => time - SignedDuration::from_secs(1),
            Wake::OnEvent => at(second + 1),
        };
        let second = plan(&scene.0, later.max(at(second)));
        assert_eq!(second.status, first.status, "{case}");
        assert_eq!(second.step, first.step, "{case}");
    }
}

#[test]
fn every_report_is_whole_and_never_contradicts_itself() {
    for (case, scene, second, _) in rows() {
        let Some(status) = plan(&scene.0, at(second)).status else {
            continue;
        };
        let is = |type_| conditions::is_true(&status.conditions, type_);
        if !is("Paused") {
            let types: Vec<_> = status
                .conditions
                .iter()
                .map(|condition| condition.type_.as_str())
                .collect();
            assert_eq!(types, ClusterReport::TYPES, "{case}");
            assert_eq!(status.observed_generation, Some(1), "{case}");
            assert_eq!(
                status.initialization.as_ref().and_then(|done| done.provisioned),
                status.ready,
                "{case}"
            );
        }
        assert!(
            status.ready != Some(true) || status.failure_reason.is_none(),
            "{case}: ready with a failure"
        );
        assert_eq!(
            status.failure_reason.is_some(),
            status.failure_message.is_some(),
            "{case}"
        );
        assert!(
            !is("Ready") || status.ready == Some(true),
            "{case}: Ready without ready"
        );
        assert!(!(is("VPCReady") && is("VPCFailed")), "{case}: both in place and failed");
        assert!(
            !(is("VPCCreating") && is("VPCFailed")),
            "{case}: both at work and failed"
        );
        for condition in &status.conditions {
            assert!(
                !condition.message.contains("u-"),
                "{case}: a UID in {:?}",
                condition.message
            );
        }
    }
}

#[test]
fn the_network_that_is_told() {
    let scene = Scene::new()
        .cluster(json!({"spec": {"controlPlaneEndpoint": {"host": "2001:db8::1", "port": 443}}}))
        .apply(says(
            "True",
            "Available",
            "",
            json!({"vpc_id": " vpc-1\n", "azs": "[\"b\",\"a\"]"}),
        ));
    let status = plan(&scene.0, at(0)).status.unwrap();
    assert_eq!(status.vpc_id.as_deref(), Some("vpc-1"));
    assert_eq!(status.vpc_workspace_name.as_deref(), Some("ws"));
    assert_eq!(status.endpoint.as_deref(), Some("[2001:db8::1]:443"));
    let domains: Vec<_> = status
        .failure_domains
        .iter()
        .map(|domain| (domain.name.as_str(), domain.control_plane))
        .collect();
    assert_eq!(domains, [("a", Some(true)), ("b", Some(true))]);
    let told = status.workspace_template_status.unwrap();
    assert_eq!(
        (told.ready, told.state.as_deref(), told.last_applied_revision.as_deref()),
        (Some(true), Some("Available"), Some("r1"))
    );

    let own = scene.capt_cluster(json!({"spec": {"controlPlaneEndpoint": {"host": "own", "port": 6443}}}));
    assert_eq!(
        plan(&own.0, at(0)).status.unwrap().endpoint.as_deref(),
        Some("own:6443")
    );
}

/// What was known stays known while Terraform works on a change, and is told anew afterwards.
#[test]
fn what_is_known_of_the_network_outlasts_a_change() {
    let known = json!({"status": {"vpcWorkspaceName": "ws", "failureDomains": [{"name": "a", "controlPlane": true}]}});
    let changing =
        Scene::new()
            .ready_before()
            .capt_cluster(known.clone())
            .apply(says("False", "Applying", "", json!({})));
    let status = plan(&changing.0, at(0)).status.unwrap();
    assert_eq!(
        (status.vpc_id.as_deref(), status.failure_domains.len()),
        (Some("vpc-1"), 1)
    );

    let changed = Scene::new().ready_before().capt_cluster(known.clone()).apply(says(
        "True",
        "Available",
        "",
        json!({"vpc_id": "vpc-2"}),
    ));
    let status = plan(&changed.0, at(0)).status.unwrap();
    assert_eq!(
        (status.vpc_id.as_deref(), status.failure_domains.len()),
        (Some("vpc-2"), 0)
    );

    let going = Scene::new()
        .ready_before()
        .capt_cluster(known)
        .deleting()
        .apply(deleted(true));
    let status = plan(&going.0, at(10)).status.unwrap();
    assert_eq!((status.ready, status.vpc_id.as_deref()), (Some(true), Some("vpc-1")));
}

#[test]
fn messages_name_what_is_waited_for_and_what_to_do() {
    let rows: [(Scene, &str, &[&str]); 9] = [
        (
            Scene::new().deleting().apply(left_behind()),
            "Deleting",
            &[
                "net-vpc",
                "finalizers of others: example.com/backup",
                "has to remove them",
            ],
        ),
        (
            Scene::new().apply(says("True", "Available", "", json!({"vpc_id": "[\"vpc-1\"]"}))),
            "VPCFailed",
            &["the output vpc_id of WorkspaceTemplateApply net-vpc is a list"],
        ),
        (
            Scene::new()
                .apply(says("True", "Available", "", json!({})))
                .with(|seen| seen.secret = FromSecret::Read(Some("{}".into()))),
            "VPCReady",
            &["the key vpc_id of Secret net-vpc-connection is an object"],
        ),
        (
            Scene::new()
                .deleting()
                .with(|seen| seen.control_planes = vec!["a".into(), "b".into()]),
            "Deleting",
            &["a, b"],
        ),
        (
            Scene::new().deleting().apply(destroying("DestroyFailed")),
            "Deleting",
            &["net-vpc", "why"],
        ),
        (
            Scene::new()
                .apply(says("True", "Available", "", json!({})))
                .with(|seen| seen.secret = FromSecret::Read(None)),
            "VPCReady",
            &["net-vpc-connection", "output vpc_id"],
        ),
        (Scene::new().apply(failed("r1")), "VPCFailed", &["net-vpc", "m"]),
        (
            Scene::new().ready_before().apply(failed("r1")),
            "Ready",
            &["can be used", "net-vpc: m"],
        ),
        (
            Scene::new().apply(deleted(true)),
            "Ready",
            &["held", "remove all finalizers"],
        ),
    ];
    for (scene, type_, words) in rows {
        let message = message(&plan(&scene.0, at(10)), type_);
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    }
}

#[test]
fn a_deletion_that_is_late_still_says_what_it_waits_for() {
    let scene = Scene::new().deleting().apply(destroying("DestroyFailed"));
    let message = message(&plan(&scene.0, at(99_999)), "Deleting");
    assert!(message.contains("goes on") && message.contains("why"), "{message}");
}

/// A Cluster that shows a failure in Cluster API's words.
fn showing(message: &str) -> Value {
    json!({"status": {"deprecated": {"v1beta1": {"failureReason": "R", "failureMessage": message}}}})
}

#[test]
fn a_failure_is_cleared_when_it_is_ours_and_over() {
    let ours = "Failure detected from referenced resource infrastructure.cluster.x-k8s.io/v1beta1, Kind=CAPTCluster with name \"net\": m";
    let healthy = || {
        Scene::new()
            .ready_before()
            .apply(says("True", "Available", "", json!({"vpc_id": "vpc-1"})))
    };
    let failing = json!({"status": {"failureReason": "R", "failureMessage": "m"}});
    for (case, scene, expected) in [
        ("over", healthy().cluster(showing(ours)), true),
        (
            "over, and the object is going",
            healthy().deleting().cluster(showing(ours)),
            true,
        ),
        (
            "still there",
            Scene::new()
                .apply(says("False", "InvalidTemplate", "", json!({})))
                .cluster(showing(ours)),
            false,
        ),
        (
            "over, but Cluster API can still read it",
            healthy()
                .capt_cluster(json!({"status": {"ready": false, "initialization": null}}))
                .capt_cluster(failing)
                .cluster(showing(ours)),
            false,
        ),
        (
            "of another CAPTCluster",
            healthy().cluster(showing(&ours.replace("\"net\"", "\"net2\""))),
            false,
        ),
        (
            "of a control plane",
            healthy().cluster(showing(&ours.replace("CAPTCluster", "CAPTControlPlane"))),
            false,
        ),
        (
            "of another group",
            healthy().cluster(showing(&ours.replace("infrastructure.", "x."))),
            false,
        ),
        ("in other words", healthy().cluster(showing("net is broken")), false),
        (
            "switched off",
            healthy()
                .cluster(showing(ours))
                .with(|seen| seen.settings.clear_cluster_failures = false),
            false,
        ),
        (
            "paused",
            healthy().cluster({
                let mut cluster = showing(ours);
                merge(&mut cluster, json!({"spec": {"paused": true}}));
                cluster
            }),
            false,
        ),
    ] {
        assert_eq!(plan(&scene.0, at(0)).clear_cluster_failure, expected, "{case}");
    }
}

/// Nothing is written while it is paused but the pause itself.
#[test]
fn a_paused_object_keeps_its_status() {
    let scene = Scene::new().ready_before().waiting("vpc", 0, "Applying");
    let known = scene.0.before();
    let paused =
        scene
            .cluster(json!({"spec": {"paused": true}}))
            .apply(says("False", "TerraformFailed", "m", json!({})));
    let status = plan(&paused.0, at(50)).status.unwrap();
    let mut without = status.clone();
    without.conditions.clear();
    assert_eq!(without, known);
    assert_eq!(status.conditions.len(), 1);
}

/// While all is well the words of others are theirs; only their troubles are repeated.
#[test]
fn what_changes_elsewhere_while_all_is_well_changes_nothing_here() {
    let told = |scene: Scene, second| plan(&scene.0, at(second)).status.unwrap();
    for reason in ["WaitingForProvider", "Applying"] {
        let say = |message: &str| Scene::new().apply(says("False", reason, message, json!({})));
        assert_eq!(told(say("one"), 10), told(say("two"), 10), "{reason}");
    }
    let say = |message: &str| {
        let mut apply = deleted(false);
        let deleting = condition("Deleting", "True", "WaitingForWorkspace", message);
        merge(
            &mut apply,
            json!({"status": {"conditions": [deleting], "workspaceName": message}}),
        );
        Scene::new().deleting().apply(apply)
    };
    assert_eq!(told(say("one"), 10), told(say("two"), 10));
    let failing = |message: &str| Scene::new().apply(says("False", "TerraformFailed", message, json!({})));
    assert_ne!(told(failing("one"), 10), told(failing("two"), 10));

    // A change is told when it is wished for, and not again when it has reached the apply.
    let changed = json!({"spec": {"variables": {"cidr": "10.1.0.0/16"}}});
    let wished = Scene::new().ready_before().capt_cluster(changed.clone());
    let mut reached = outdated();
    merge(&mut reached, changed);
    let ready = says("True", "Available", "", json!({"vpc_id": "vpc-1"}));
    assert_eq!(told(wished.apply(ready), 10), {
        let wished = Scene::new().ready_before();
        told(
            wished
                .capt_cluster(json!({"spec": {"variables": {"cidr": "10.1.0.0/16"}}}))
                .apply(reached),
            10,
        )
    });

    // A Cluster that goes loses its endpoint on the way.
    let gone = json!({"metadata": {"deletionTimestamp": at(0).to_string(), "finalizers": ["x"]}});
    let scene = Scene::new()
        .ready_before()
        .capt_cluster(json!({"status": {"endpoint": "a:443"}}))
        .cluster(gone)
        .apply(says("True", "Available", "", json!({"vpc_id": "vpc-1"})));
    assert_eq!(told(scene, 10).endpoint.as_deref(), Some("a:443"));
}
