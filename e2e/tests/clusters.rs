//! Whole clusters, made and unmade by the real Cluster API core, the real provider and the real Terraform.

use anyhow::{Context, Result};
use capt_api::names;
use capt_e2e::testing::bench::{Access, Bench, Names, Wishes, opens, template_with, value};
use capt_e2e::testing::history::{History, version};
use capt_e2e::testing::{condition, is_true, message, ready_since, status, text};
use futures::future::{try_join, try_join_all};
use kube::ResourceExt;
use kube::api::{DynamicObject, ListParams};
use serde_json::{Value, json};

fn phase(control_plane: &DynamicObject) -> &str {
    text(control_plane, "/status/phase")
}

/// Kind and namespace/name of each object that `clusterctl describe` draws.
fn tree(described: &str) -> Vec<(String, String)> {
    let rows = described.lines().filter_map(|line| {
        let mut words = line
            .trim_start_matches(|c: char| !c.is_alphanumeric())
            .split_whitespace();
        Some((words.next()?.to_owned(), words.next()?.trim_end_matches(',').to_owned()))
    });
    rows.collect()
}

fn failure_domains(cluster: &DynamicObject) -> Vec<&str> {
    let domains = cluster.data.pointer("/status/failureDomains").and_then(Value::as_array);
    let names = domains
        .into_iter()
        .flatten()
        .filter_map(|domain| domain.get("name")?.as_str());
    names.collect()
}

#[tokio::test]
async fn names_that_all_differ_and_names_that_nearly_clash() -> Result<()> {
    let bench = Bench::new("names").await?;
    let first = Names {
        cluster: "blue",
        network: "network",
        control_plane: "service",
    };
    // The contract's Secret of the second has the name of the first's alias, and its parts have names of the first's parts.
    let second = Names {
        cluster: "blue-control-plane",
        network: "service",
        control_plane: "blue",
    };
    bench.cluster(&first, Wishes::default()).await?;
    let contested = names::kubeconfig_alias_secret(first.cluster);
    assert_eq!(contested, names::kubeconfig_secret(second.cluster));
    let mut control_plane = History::begin(bench.control_planes(), first.control_plane).await?;
    control_plane.until("Ready", |c| is_true(c, "Ready")).await?;
    let mut secret = History::begin(bench.secrets(), &contested).await?;
    let alias = secret.until("made", |_| true).await?;
    assert!(
        Access::of(&value(&alias, "value")?)? == bench.truth(&first)?,
        "the first's alias"
    );

    bench.cluster(&second, Wishes::default()).await?;
    let (of_first, of_second) = try_join(bench.available(&first), bench.available(&second)).await?;
    for (names, cluster) in [(&first, &of_first), (&second, &of_second)] {
        assert_eq!(
            failure_domains(cluster),
            ["eu-west-1a", "eu-west-1b", "eu-west-1c"],
            "{}",
            names.cluster
        );
        bench.check_access(names).await?;
        let described = bench.clusterctl(&["describe", "cluster", names.cluster]).await?;
        let rows = tree(&described);
        for (kind, name) in [
            ("Cluster", names.cluster),
            ("CAPTCluster", names.network),
            ("CAPTControlPlane", names.control_plane),
        ] {
            let row = (kind.to_owned(), format!("{}/{name}", bench.namespace));
            assert!(rows.contains(&row), "{row:?} is not in\n{described}");
        }
        let printed = bench.clusterctl(&["get", "kubeconfig", names.cluster]).await?;
        assert!(Access::of(&printed)? == bench.truth(names)?, "clusterctl's kubeconfig");
    }
    assert!(bench.truth(&first)? != bench.truth(&second)?, "two API servers");
    let waived = bench.control_planes().get(first.control_plane).await?;
    assert!(
        message(&waived, "SecretsReady").contains(second.cluster),
        "why the alias is not there is said: {}",
        message(&waived, "SecretsReady")
    );

    bench.delete_without_a_trace(&second).await?;
    // The name is free again, and the first is as it was.
    let back = secret
        .until("the first's again", |secret| {
            // Another Secret than the alias of the beginning, which is where this history stands.
            secret.uid() != alias.uid()
                && secret.labels().get(names::label::CLUSTER_NAME).map(String::as_str) == Some(first.cluster)
        })
        .await?;
    assert!(Access::of(&value(&back, "value")?)? == bench.truth(&first)?);
    bench.check_access(&first).await?;
    bench.delete_without_a_trace(&first).await?;
    let left: Vec<String> = bench
        .secrets()
        .list(&ListParams::default())
        .await?
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    assert!(left.is_empty(), "Secrets are left: {left:?}");
    Ok(())
}

#[tokio::test]
async fn an_existing_vpc_and_an_endpoint_that_only_the_secret_tells() -> Result<()> {
    let bench = Bench::new("existing").await?;
    let names = Names::same("lodger");
    let open = "output \"cluster_endpoint\" {\n";
    let discreet = template_with("local-eks", open, &format!("{open}  sensitive = true\n"))?;
    bench
        .create(discreet, &json!({"metadata": {"name": "discreet-eks"}}))
        .await?;
    let wishes = Wishes {
        control_plane: json!({"spec": {"workspaceTemplateRef": {"name": "discreet-eks"}}}),
        ..Wishes::existing_vpc()
    };
    bench.cluster(&names, wishes).await?;

    let cluster = bench.available(&names).await?;
    assert!(
        failure_domains(&cluster).is_empty(),
        "nobody told the zones of that VPC"
    );
    let apply = bench.applies().get(&names::eks_apply_name(names.control_plane)).await?;
    let outputs = apply.data.pointer("/status/outputs").context("no outputs")?;
    assert!(
        outputs.get("cluster_name").is_some() && outputs.get("cluster_endpoint").is_none(),
        "{outputs}"
    );
    bench.check_access(&names).await?;
    let control_plane = bench.control_planes().get(names.control_plane).await?;
    assert_eq!(condition(&control_plane, "EndpointReady"), "True/EndpointPublished");
    let network = bench.networks().get(names.network).await?;
    assert_eq!(text(&network, "/status/vpcId"), "vpc-0123456789abcdef0");
    assert_eq!(condition(&network, "VPCReady"), "True/ExistingVPCUsed");
    let [vpc, eks] = bench.workspaces(&names);
    assert!(bench.entry(&vpc)?.is_none(), "no VPC is made");
    let entry = bench.entry(&eks)?.context("no cluster")?;
    assert_eq!(entry.input("vpc_id"), "vpc-0123456789abcdef0");
    bench.delete_without_a_trace(&names).await
}

#[tokio::test]
async fn the_same_names_in_two_namespaces() -> Result<()> {
    let benches = [Bench::new("east").await?, Bench::new("west").await?];
    let names = Names::same("twin");
    for bench in &benches {
        bench.cluster(&names, Wishes::default()).await?;
    }
    try_join_all(benches.iter().map(|bench| bench.available(&names))).await?;
    for bench in &benches {
        bench.check_access(&names).await?;
    }
    let [east, west] = &benches;
    assert!(east.truth(&names)? != west.truth(&names)?, "two API servers");

    // One goes; the other does not even notice.
    let mut cluster = History::begin(west.clusters(), names.cluster).await?;
    let mut control_plane = History::begin(west.control_planes(), names.control_plane).await?;
    let mut kubeconfig = History::begin(west.secrets(), &names::kubeconfig_secret(names.cluster)).await?;
    east.delete_without_a_trace(&names).await?;
    west.core_caught_up(&mut cluster).await?;
    assert_eq!(cluster.tells(|c| status(c, "Available")), ["True"]);
    west.check_access(&names).await?;
    west.delete_without_a_trace(&names).await?;
    // Until its own deletion it was not written once.
    for history in [&mut control_plane, &mut kubeconfig] {
        history.until_gone().await?;
    }
    let living = |object: &DynamicObject| {
        object
            .metadata
            .deletion_timestamp
            .is_none()
            .then(|| object.resource_version())
    };
    let versions = control_plane.tells(living);
    assert_eq!(versions.iter().flatten().count(), 1, "{versions:?}");
    let versions = kubeconfig.tells(living);
    assert_eq!(versions.iter().flatten().count(), 1, "{versions:?}");
    Ok(())
}

#[tokio::test]
async fn a_new_version_is_rolled_out_under_a_running_cluster() -> Result<()> {
    let bench = Bench::new("version").await?;
    let names = Names::same("riser");
    bench.cluster(&names, Wishes::existing_vpc()).await?;
    bench.available(&names).await?;
    let mut cluster = History::begin(bench.clusters(), names.cluster).await?;
    let mut control_plane = History::begin(bench.control_planes(), names.control_plane).await?;
    let mut kubeconfig = History::begin(bench.secrets(), &names::kubeconfig_secret(names.cluster)).await?;

    let version = json!({"spec": {"version": "1.32"}});
    let generation = bench
        .patch(&bench.control_planes(), names.control_plane, version)
        .await?;
    control_plane
        .until("Ready anew", |c| {
            ready_since(generation)(c) && text(c, "/status/version") == "1.32"
        })
        .await?;
    bench.core_caught_up(&mut cluster).await?;

    assert_eq!(control_plane.tells(|c| status(c, "Ready")), ["True", "False", "True"]);
    assert_eq!(
        control_plane.tells(|c| phase(c).to_owned()),
        ["Ready", "Creating", "Ready"]
    );
    let versions = |c: &DynamicObject| c.data.pointer("/status/versions").cloned().unwrap_or_default();
    assert_eq!(
        control_plane.tells(versions),
        [json!([{"version": "1.31"}]), json!([{"version": "1.32"}])]
    );
    for lasting in ["Available", "Initialized", "EndpointReady", "SecretsReady"] {
        assert_eq!(control_plane.tells(|c| status(c, lasting)), ["True"], "{lasting}");
    }
    assert_eq!(cluster.tells(|c| status(c, "Available")), ["True"]);
    let [_, eks] = bench.workspaces(&names);
    let entry = bench.entry(&eks)?.context("no cluster")?;
    assert_eq!(entry.input("kubernetes_version"), "1.32");

    // The Secret as it stands now is the last of its history.
    let now = bench.secrets().get(&names::kubeconfig_secret(names.cluster)).await?;
    kubeconfig
        .until("up to date", |secret| {
            secret.resource_version() == now.resource_version()
        })
        .await?;
    assert!(!kubeconfig.was_ever_gone());
    assert_eq!(kubeconfig.tells(ResourceExt::uid).len(), 1, "one Secret all the time");
    for version in kubeconfig.tells(|secret| value(secret, "value").ok()) {
        opens(&version.context("a version without a kubeconfig")?).await?;
    }
    bench.check_access(&names).await?;
    bench.delete_without_a_trace(&names).await
}

#[tokio::test]
async fn the_users_own_endpoint_is_never_overwritten() -> Result<()> {
    let bench = Bench::new("endpoint").await?;
    let names = Names::same("chosen");
    let own = json!({"host": "api.example.com", "port": 6443});
    let mut cluster = History::begin(bench.clusters(), names.cluster).await?;
    let wishes = Wishes {
        cluster: json!({"spec": {"controlPlaneEndpoint": own}}),
        ..Wishes::existing_vpc()
    };
    bench.cluster(&names, wishes).await?;
    cluster.until("Available", |c| is_true(c, "Available")).await?;

    let control_plane = bench.control_planes().get(names.control_plane).await?;
    assert_eq!(condition(&control_plane, "EndpointReady"), "True/UserSupplied");
    let truth = bench.truth(&names)?;
    let found = truth.server.strip_prefix("https://").context("a URL")?;
    for endpoint in ["api.example.com:6443", found] {
        assert!(
            message(&control_plane, "EndpointReady").contains(endpoint),
            "{endpoint} is not in: {}",
            message(&control_plane, "EndpointReady")
        );
    }
    // The kubeconfig is Terraform's: it opens the cluster whatever the Cluster says.
    let kubeconfig = bench.secrets().get(&names::kubeconfig_secret(names.cluster)).await?;
    assert!(Access::of(&value(&kubeconfig, "value")?)? == truth);

    // Neither another round of Terraform nor the end of the control plane touches it.
    let mut history = History::begin(bench.control_planes(), names.control_plane).await?;
    let version = json!({"spec": {"version": "1.32"}});
    let generation = bench
        .patch(&bench.control_planes(), names.control_plane, version)
        .await?;
    let again = history
        .until("Ready anew", |c| {
            ready_since(generation)(c) && text(c, "/status/version") == "1.32"
        })
        .await?;
    assert_eq!(condition(&again, "EndpointReady"), "True/UserSupplied");
    bench.delete_without_a_trace(&names).await?;
    cluster.until_gone().await?;
    let endpoints = cluster.tells(|c| c.data.pointer("/spec/controlPlaneEndpoint").cloned());
    assert_eq!(endpoints, [Some(own)]);
    Ok(())
}

#[tokio::test]
async fn a_failed_change_leaves_a_running_cluster_in_use() -> Result<()> {
    let bench = Bench::new("broken").await?;
    let names = Names::same("sturdy");
    bench.cluster(&names, Wishes::existing_vpc()).await?;
    bench.available(&names).await?;
    let mut cluster = History::begin(bench.clusters(), names.cluster).await?;
    let mut control_plane = History::begin(bench.control_planes(), names.control_plane).await?;

    let fault = json!({"spec": {"variables": {"fault_apply": "quota of clusters exceeded"}}});
    bench.patch(&bench.control_planes(), names.control_plane, fault).await?;
    let failed = control_plane
        .until("failed", |c| condition(c, "Ready") == "False/TerraformFailed")
        .await?;
    for type_ in ["Ready", "Failed"] {
        assert!(
            message(&failed, type_).contains("quota of clusters exceeded"),
            "{type_}: {}",
            message(&failed, type_)
        );
    }
    assert_eq!(condition(&failed, "Failed"), "True/TerraformFailed");
    assert_eq!(phase(&failed), "Failed");
    bench.check_access(&names).await?;
    bench.core_caught_up(&mut cluster).await?;

    let healthy = json!({"spec": {"variables": {"fault_apply": null}}});
    let generation = bench
        .patch(&bench.control_planes(), names.control_plane, healthy)
        .await?;
    let healed = control_plane.until("healed", ready_since(generation)).await?;
    assert_eq!(condition(&healed, "Failed"), "False/NoFailure");
    assert_eq!(phase(&healed), "Ready");
    assert_eq!(text(&healed, "/status/workspaceTemplateStatus/lastFailureMessage"), "");

    for lasting in ["Available", "Initialized", "EndpointReady", "SecretsReady"] {
        assert_eq!(control_plane.tells(|c| status(c, lasting)), ["True"], "{lasting}");
    }
    assert_eq!(control_plane.tells(|c| status(c, "Ready")), ["True", "False", "True"]);
    assert_eq!(control_plane.tells(|c| status(c, "Failed")), ["False", "True", "False"]);
    assert_eq!(
        control_plane.tells(|c| text(c, "/status/failureReason").to_owned()),
        [""],
        "a cluster in use has no terminal failure"
    );
    assert_eq!(cluster.tells(|c| status(c, "Available")), ["True"]);
    bench.check_access(&names).await?;
    bench.delete_without_a_trace(&names).await
}

#[tokio::test]
async fn a_first_apply_that_fails_heals_when_its_cause_is_gone() -> Result<()> {
    let bench = Bench::new("once").await?;
    let names = Names::same("stumbler");
    let mut core = History::begin(bench.clusters(), names.cluster).await?;
    let mut network = History::begin(bench.networks(), names.network).await?;
    let mut control_plane = History::begin(bench.control_planes(), names.control_plane).await?;
    let [vpc, eks] = bench.workspaces(&names);
    bench.fail_applies(&vpc, "out of addresses").await?;
    bench.fail_applies(&eks, "out of capacity").await?;
    bench.cluster(&names, Wishes::default()).await?;
    // Both are seen to fail, so that the end is a recovery and not a fault that never came.
    network
        .until("failing", |n| {
            condition(n, "VPCFailed") == "True/VPCCreationFailed"
                && message(n, "VPCFailed").contains("out of addresses")
        })
        .await?;
    bench.heal(&vpc).await?;
    control_plane
        .until("failing", |c| {
            condition(c, "Failed") == "True/TerraformFailed" && message(c, "Failed").contains("out of capacity")
        })
        .await?;
    bench.heal(&eks).await?;

    let cluster = bench.available(&names).await?;
    bench.check_access(&names).await?;
    assert!(
        cluster
            .data
            .pointer("/status/deprecated/v1beta1/failureReason")
            .is_none(),
        "core was told of a failure"
    );
    let network_now = network.until("healed", |n| is_true(n, "VPCReady")).await?;
    assert_eq!(condition(&network_now, "VPCFailed"), "False/NoFailure");
    let control_plane_now = control_plane.until("healed", |c| is_true(c, "Ready")).await?;
    assert_eq!(condition(&control_plane_now, "Failed"), "False/NoFailure");
    let available = core.until("Available", |c| is_true(c, "Available")).await?;
    assert!(
        version(&control_plane_now) < version(&available),
        "core calls the cluster available before its control plane says so"
    );
    // What Terraform's provider retries by itself is no terminal failure at any time.
    for history in [&network, &control_plane] {
        assert_eq!(
            history.tells(|object| text(object, "/status/failureReason").to_owned()),
            [""]
        );
    }
    for object in [&network_now, &control_plane_now] {
        assert_eq!(text(object, "/status/workspaceTemplateStatus/lastFailureMessage"), "");
    }
    bench.delete_without_a_trace(&names).await
}
