//! Things go wrong, are said, are mended, and are over: the end is that of a run in which they never happened.

use anyhow::Result;
use capt_api::names;
use capt_e2e::testing::bench::{Bench, Wishes, template, template_with, value};
use capt_e2e::testing::history::History;
use capt_e2e::testing::{self, condition, is_true, message, status, text};
use kube::ResourceExt;
use kube::api::{DeleteParams, DynamicObject};
use serde_json::{Value, json};

use crate::{NAMES, ends_like, module_of, plain, undisturbed, undisturbed_in_existing_vpc};

/// What `clusterctl describe` shows of the Cluster itself, before what it refers to.
async fn line_of_the_cluster(bench: &Bench) -> Result<String> {
    let described = bench
        .clusterctl(&["describe", "cluster", NAMES.cluster, "--show-conditions", "all"])
        .await?;
    let own: Vec<&str> = described
        .lines()
        .take_while(|line| !line.contains("CAPTControlPlane ") && !line.contains("CAPTCluster "))
        .collect();
    Ok(plain(&own.join("\n")))
}

#[tokio::test]
async fn applies_fail_several_times_and_then_succeed() -> Result<()> {
    let bench = Bench::new("again-and-again").await?;
    let [vpc, eks] = bench.workspaces(&NAMES);
    let mut network = History::begin(bench.networks(), NAMES.network).await?;
    let mut control_plane = History::begin(bench.control_planes(), NAMES.control_plane).await?;
    let first = "VpcLimitExceeded: The maximum number of VPCs has been reached";
    bench.fail_applies(&vpc, first).await?;
    bench.cluster(&NAMES, Wishes::default()).await?;

    for fault in [first, "RequestLimitExceeded: Rate exceeded"] {
        bench.fail_applies(&vpc, fault).await?;
        let failing = network
            .until(fault, |network| {
                condition(network, "VPCFailed") == "True/QuotaExceeded" && message(network, "VPCFailed").contains(fault)
            })
            .await?;
        let failed = text(&failing, "/status/workspaceTemplateStatus/lastFailureMessage");
        assert!(failed.contains(fault), "{failed}");
        let waiting = control_plane
            .until("waiting for the network", |c| message(c, "Ready").contains(fault))
            .await?;
        assert_eq!(condition(&waiting, "Ready"), "False/WaitingForVPC");
    }
    let quota = "ResourceLimitExceeded: Cluster limit of 100 exceeded";
    bench.fail_applies(&eks, quota).await?;
    bench.heal(&vpc).await?;
    let failing = control_plane
        .until(quota, |c| {
            condition(c, "Failed") == "True/QuotaExceeded" && message(c, "Failed").contains(quota)
        })
        .await?;
    assert_eq!(text(&failing, "/status/phase"), "Failed");
    bench.heal(&eks).await?;

    ends_like(&bench, undisturbed().await?).await?;
    // The provider goes on trying by itself, so at no time was this more than a failure for now.
    for history in [&mut network, &mut control_plane] {
        history.until("healed", |object| is_true(object, "Ready")).await?;
        assert_eq!(
            history.tells(|object| text(object, "/status/failureReason").to_owned()),
            [""]
        );
    }
    bench.delete_without_a_trace(&NAMES).await
}

#[tokio::test]
async fn the_clusters_own_line_tells_terraforms_error() -> Result<()> {
    let bench = Bench::new("described").await?;
    let [vpc, eks] = bench.workspaces(&NAMES);
    let (no_network, no_cluster) = (
        "VpcLimitExceeded: five are enough",
        "ResourceLimitExceeded: no more clusters",
    );
    bench.fail_applies(&vpc, no_network).await?;
    bench.fail_applies(&eks, no_cluster).await?;
    bench.cluster(&NAMES, Wishes::default()).await?;
    for (workspace, mirrored, fault) in [
        (&vpc, "InfrastructureReady", no_network),
        (&eks, "ControlPlaneAvailable", no_cluster),
    ] {
        bench
            .until(bench.clusters(), NAMES.cluster, "telling it", |cluster| {
                message(cluster, mirrored).contains(fault) && message(cluster, "Available").contains(fault)
            })
            .await?;
        let line = line_of_the_cluster(&bench).await?;
        assert!(line.contains(fault), "{line}");
        bench.heal(workspace).await?;
    }
    bench.delete_without_a_trace(&NAMES).await
}

#[tokio::test]
async fn a_full_namespace_is_told_until_there_is_room() -> Result<()> {
    let bench = Bench::new("full").await?;
    let none = |kind: &str| {
        json!({
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"},
            "spec": {"hard": {format!("count/{kind}.infrastructure.cluster.x-k8s.io"): "0"}},
        })
    };
    let quota = testing::create(&bench.client, Some(&bench.namespace), none("workspacetemplateapplies")).await?;
    let quotas = testing::objects(&bench.client, "v1", "ResourceQuota", Some(&bench.namespace));
    // The quota counts only once its controller has looked at it.
    bench
        .until(quotas.clone(), "none", "counting", |quota| {
            quota.data.pointer("/status/hard").is_some()
        })
        .await?;
    bench.cluster(&NAMES, Wishes::default()).await?;
    let full = bench
        .until(bench.networks(), NAMES.network, "telling it", |network| {
            message(network, "VPCFailed").contains("ResourceQuota")
        })
        .await?;
    assert_eq!(
        text(&full, "/status/failureReason"),
        "",
        "there is room as soon as somebody makes it"
    );
    quotas.delete(&quota.name_any(), &DeleteParams::default()).await?;

    ends_like(&bench, undisturbed().await?).await?;
    bench.delete_without_a_trace(&NAMES).await
}

#[tokio::test]
async fn a_module_that_does_not_parse_is_mended() -> Result<()> {
    let bench = Bench::bare(testing::environment()?, "unparsed").await?;
    bench.create(template("local-vpc")?, &Value::Null).await?;
    let broken = template_with("local-eks", "output \"kubeconfig\" {", "output \"kubeconfig\" {{")?;
    bench.create(broken.clone(), &Value::Null).await?;
    bench.cluster(&NAMES, Wishes::default()).await?;
    let failed = bench
        .until(bench.control_planes(), NAMES.control_plane, "failed", |c| {
            condition(c, "Failed").starts_with("True/")
        })
        .await?;
    // Terraform says where.
    assert!(
        message(&failed, "Failed").contains("main.tf"),
        "{}",
        message(&failed, "Failed")
    );
    bench
        .patch(&bench.templates(), "local-eks", module_of(&template("local-eks")?)?)
        .await?;
    ends_like(&bench, undisturbed().await?).await?;

    // The same on a running cluster takes nothing away from its users.
    let mut control_plane = History::begin(bench.control_planes(), NAMES.control_plane).await?;
    bench
        .patch(&bench.templates(), "local-eks", module_of(&broken)?)
        .await?;
    control_plane
        .until("failed", |c| condition(c, "Failed").starts_with("True/"))
        .await?;
    bench.check_access(&NAMES).await?;
    bench
        .patch(&bench.templates(), "local-eks", module_of(&template("local-eks")?)?)
        .await?;
    control_plane.until("mended", |c| is_true(c, "Ready")).await?;
    assert_eq!(control_plane.tells(|c| status(c, "Ready")), ["True", "False", "True"]);
    assert_eq!(control_plane.tells(|c| status(c, "Available")), ["True"]);
    ends_like(&bench, undisturbed().await?).await?;

    // And on one that is to go: it goes when the module is mended.
    bench
        .patch(&bench.templates(), "local-eks", module_of(&broken)?)
        .await?;
    control_plane
        .until("failed", |c| condition(c, "Failed").starts_with("True/"))
        .await?;
    bench
        .clusters()
        .delete(NAMES.cluster, &DeleteParams::background())
        .await?;
    control_plane
        .until("kept by its module", |c| message(c, "Deleting").contains("main.tf"))
        .await?;
    bench
        .patch(&bench.templates(), "local-eks", module_of(&template("local-eks")?)?)
        .await?;
    bench.gone(&NAMES).await?;
    bench.no_trace(&NAMES).await
}

#[tokio::test]
async fn an_argument_that_terraform_does_not_know_is_corrected_while_it_destroys() -> Result<()> {
    let bench = Bench::new("arguments").await?;
    bench.cluster(&NAMES, Wishes::default()).await?;
    bench.available(&NAMES).await?;
    let destroying_with =
        |arguments: Value| json!({"spec": {"template": {"spec": {"forProvider": {"destroyArgs": arguments}}}}});
    let vpc = names::vpc_apply_name(NAMES.network);
    let applied = |apply: &DynamicObject| text(apply, "/status/lastAppliedRevision").to_owned();
    let before = applied(&bench.applies().get(&vpc).await?);
    let unknown = destroying_with(json!(["-no-such-argument"]));
    bench.patch(&bench.templates(), "local-vpc", unknown).await?;
    // Nothing shows it before the end.
    bench
        .until(bench.applies(), &vpc, "applied anew", |apply| applied(apply) != before)
        .await?;
    bench
        .clusters()
        .delete(NAMES.cluster, &DeleteParams::background())
        .await?;
    bench
        .until(bench.networks(), NAMES.network, "kept by its argument", |network| {
            message(network, "Deleting").contains("-no-such-argument")
        })
        .await?;
    let known = destroying_with(Value::Null);
    bench.patch(&bench.templates(), "local-vpc", known).await?;
    bench.gone(&NAMES).await?;
    bench.no_trace(&NAMES).await
}

#[tokio::test]
async fn a_wrong_endpoint_and_wrong_kubeconfigs_are_named_and_mended() -> Result<()> {
    let bench = Bench::bare(testing::environment()?, "wrong").await?;
    let good = template("local-eks")?;
    let endpoint = "value = try(local.access.server, \"\")";
    bench
        .create(
            template_with("local-eks", endpoint, "value = \"https://not a host/\"")?,
            &Value::Null,
        )
        .await?;
    bench.cluster(&NAMES, Wishes::existing_vpc()).await?;
    let mut control_plane = History::begin(bench.control_planes(), NAMES.control_plane).await?;
    let invalid = control_plane
        .until("telling of the endpoint", |c| {
            condition(c, "Ready") == "False/EndpointInvalid"
        })
        .await?;
    assert_eq!(condition(&invalid, "EndpointReady"), "False/EndpointInvalid");
    assert_eq!(invalid.data.pointer("/spec/controlPlaneEndpoint"), None);
    let cluster = bench.clusters().get(NAMES.cluster).await?;
    assert_eq!(
        cluster.data.pointer("/spec/controlPlaneEndpoint"),
        None,
        "nothing half-written"
    );

    let kubeconfig = "value     = local.kubeconfig";
    let program = "value     = replace(local.kubeconfig, \"/    token: .*/\", \"    exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/true}\")";
    for (wrong, reason, said) in [
        ("value     = \"nonsense\"", "Failed", "kubeconfig"),
        ("value     = \"\"", "Failed", "kubeconfig is missing or empty"),
        (program, "UnsafeKubeconfig", "exec"),
    ] {
        let template = template_with("local-eks", kubeconfig, wrong)?;
        bench
            .patch(&bench.templates(), "local-eks", module_of(&template)?)
            .await?;
        let failed = control_plane
            .until(wrong, |c| {
                condition(c, "SecretsReady") == format!("False/{reason}")
                    && message(c, "SecretsReady").contains(said)
                    && condition(c, "Ready") == "False/SecretsFailed"
            })
            .await?;
        assert_eq!(text(&failed, "/status/failureReason"), "", "there is time left");
        let made = bench
            .secrets()
            .get_opt(&names::kubeconfig_secret(NAMES.cluster))
            .await?;
        assert!(made.is_none(), "no copy of {wrong}");
    }
    bench.patch(&bench.templates(), "local-eks", module_of(&good)?).await?;
    ends_like(&bench, undisturbed_in_existing_vpc().await?).await?;

    // A good copy is never replaced by a bad one.
    let mut copy = History::begin(bench.secrets(), &names::kubeconfig_secret(NAMES.cluster)).await?;
    let wrong = template_with("local-eks", kubeconfig, "value     = \"nonsense\"")?;
    bench.patch(&bench.templates(), "local-eks", module_of(&wrong)?).await?;
    let kept = control_plane
        .until("telling of the kubeconfig", |c| {
            condition(c, "SecretsReady") == "True/Failed"
        })
        .await?;
    assert!(
        message(&kept, "SecretsReady").contains("the last good copies stay"),
        "{}",
        message(&kept, "SecretsReady")
    );
    bench.check_access(&NAMES).await?;
    bench.patch(&bench.templates(), "local-eks", module_of(&good)?).await?;
    control_plane
        .until("mended", |c| {
            condition(c, "SecretsReady") == "True/Ready" && is_true(c, "Ready")
        })
        .await?;
    ends_like(&bench, undisturbed_in_existing_vpc().await?).await?;
    copy.up_to_now().await?;
    assert_eq!(
        copy.tells(|secret| value(secret, "value").ok()).len(),
        1,
        "it never changed"
    );
    bench.delete_without_a_trace(&NAMES).await
}

#[tokio::test]
async fn what_belongs_to_somebody_else_is_a_failure_until_it_goes() -> Result<()> {
    let bench = Bench::new("foreign").await?;
    let apply = names::eks_apply_name(NAMES.control_plane);
    let foreign = json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "WorkspaceTemplateApply",
        "metadata": {"name": apply}, "spec": {"templateRef": {"name": "there-is-none"}},
    });
    bench.create(foreign, &Value::Null).await?;
    let secret = names::kubeconfig_secret(NAMES.cluster);
    let theirs =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret}, "stringData": {"mine": "1"}});
    bench.create(theirs, &Value::Null).await?;
    bench.cluster(&NAMES, Wishes::existing_vpc()).await?;

    let mut control_plane = History::begin(bench.control_planes(), NAMES.control_plane).await?;
    let conflict = control_plane
        .until("in conflict", |c| condition(c, "Failed") == "True/OwnershipConflict")
        .await?;
    assert_eq!(text(&conflict, "/status/failureReason"), "OwnershipConflict");
    assert!(text(&conflict, "/status/failureMessage").contains(&apply));
    let failure = |cluster: &DynamicObject| text(cluster, "/status/deprecated/v1beta1/failureMessage").to_owned();
    bench
        .until(bench.clusters(), NAMES.cluster, "told by core", |cluster| {
            failure(cluster).contains(&apply)
        })
        .await?;

    bench.applies().delete(&apply, &DeleteParams::background()).await?;
    let conflict = control_plane
        .until("in conflict about the Secret", |c| {
            condition(c, "SecretsReady") == "False/OwnershipConflict" && condition(c, "Ready") == "False/SecretsFailed"
        })
        .await?;
    assert!(
        message(&conflict, "SecretsReady").contains(&secret),
        "{}",
        message(&conflict, "SecretsReady")
    );
    // Core never takes it back, so it is taken back for core.
    bench
        .until(bench.clusters(), NAMES.cluster, "free of the first", |cluster| {
            failure(cluster).is_empty()
        })
        .await?;
    assert_eq!(
        value(&bench.secrets().get(&secret).await?, "mine")?,
        "1",
        "theirs is not touched"
    );

    bench.secrets().delete(&secret, &DeleteParams::background()).await?;
    ends_like(&bench, undisturbed_in_existing_vpc().await?).await?;
    bench.delete_without_a_trace(&NAMES).await
}
