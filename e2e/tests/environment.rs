//! The environment itself: that its parts are the real ones and work together, that it heals, and that it goes without a trace.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use capt_e2e::environment::Port;
use capt_e2e::testing::{Scratch, condition, create, objects, until, until_gone};
use capt_e2e::{audit, components, process, testing, up};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, DynamicObject, PostParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, ResourceExt};
use nix::sys::signal::Signal;
use serde_json::json;

fn is_owned_by_cluster(name: &'static str) -> impl Fn(Option<&DynamicObject>) -> bool {
    move |object| {
        object.is_some_and(|object| {
            object
                .owner_references()
                .iter()
                .any(|owner| owner.kind == "Cluster" && owner.name == name)
                && object
                    .labels()
                    .get("cluster.x-k8s.io/cluster-name")
                    .is_some_and(|label| label == name)
        })
    }
}

#[tokio::test]
async fn core_adopts_the_objects_that_a_cluster_names() -> Result<()> {
    let client = testing::client().await?;
    let namespace = testing::namespace(&client, "adopt").await?;
    let captcluster = json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "CAPTCluster", "metadata": {"name": "network"},
        "spec": {"region": "eu-west-1", "existingVpcId": "vpc-0123456789abcdef0"},
    });
    let captcontrolplane = json!({
        "apiVersion": "controlplane.cluster.x-k8s.io/v1beta1", "kind": "CAPTControlPlane", "metadata": {"name": "service"},
        "spec": {"version": "1.31", "workspaceTemplateRef": {"name": "local-eks"}, "controlPlaneConfig": {"region": "eu-west-1"}},
    });
    let cluster = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": {"name": "adopted"},
        "spec": {
            "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "CAPTCluster", "name": "network"},
            "controlPlaneRef": {"apiGroup": "controlplane.cluster.x-k8s.io", "kind": "CAPTControlPlane", "name": "service"},
        },
    });
    for object in [captcluster, captcontrolplane, cluster] {
        create(&client, Some(&namespace), object).await?;
    }
    let infrastructure = objects(
        &client,
        "infrastructure.cluster.x-k8s.io/v1beta1",
        "CAPTCluster",
        Some(&namespace),
    );
    await_condition(infrastructure, "network", is_owned_by_cluster("adopted")).await?;
    let control_plane = objects(
        &client,
        "controlplane.cluster.x-k8s.io/v1beta1",
        "CAPTControlPlane",
        Some(&namespace),
    );
    await_condition(control_plane, "service", is_owned_by_cluster("adopted")).await?;
    // Conversion is core's own webhook: the older version of the API answers too.
    let older = objects(&client, "cluster.x-k8s.io/v1beta1", "Cluster", Some(&namespace))
        .get("adopted")
        .await?;
    assert_eq!(
        older.data.pointer("/spec/infrastructureRef/apiVersion"),
        Some(&json!("infrastructure.cluster.x-k8s.io/v1beta1"))
    );
    Ok(())
}

#[tokio::test]
async fn core_admission_refuses_a_bad_cluster() -> Result<()> {
    let client = testing::client().await?;
    let namespace = testing::namespace(&client, "admission").await?;
    let cluster = |cidr: &str| {
        json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": {"name": "networked"},
            "spec": {
                "clusterNetwork": {"pods": {"cidrBlocks": [cidr]}},
                "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "CAPTCluster", "name": "a"},
            },
        })
    };
    let refused = create(&client, Some(&namespace), cluster("10.0.0.0/99"))
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("spec.clusterNetwork.pods.cidrBlocks"), "{refused}");
    create(&client, Some(&namespace), cluster("10.0.0.0/16")).await?;
    Ok(())
}

#[tokio::test]
async fn a_workspace_is_applied_and_destroyed_by_real_terraform() -> Result<()> {
    let client = testing::client().await?;
    let namespace = testing::namespace(&client, "workspace").await?;
    let workspaces = objects(&client, "tf.upbound.io/v1beta1", "Workspace", None);
    let module = "resource \"terraform_data\" \"it\" {\n  input = \"made\"\n}\noutput \"it\" {\n  value = terraform_data.it.output\n}\noutput \"hidden\" {\n  value     = \"s3cret\"\n  sensitive = true\n}\n";
    let name = namespace.as_str();
    create(
        &client,
        None,
        json!({
            "apiVersion": "tf.upbound.io/v1beta1", "kind": "Workspace", "metadata": {"name": name},
            "spec": {
                "forProvider": {"source": "Inline", "module": module},
                "writeConnectionSecretToRef": {"name": "made", "namespace": namespace},
            },
        }),
    )
    .await?;
    let ready = until(&workspaces, name, "Ready", |object| {
        condition(object, "Ready").starts_with("True/")
    })
    .await?;
    assert_eq!(
        ready.data.pointer("/status/atProvider/outputs"),
        Some(&json!({"it": "made"}))
    );
    let secret = Api::<Secret>::namespaced(client.clone(), &namespace)
        .get("made")
        .await?;
    assert_eq!(
        secret
            .data
            .unwrap_or_default()
            .get("hidden")
            .map(|value| value.0.as_slice()),
        Some(b"s3cret".as_slice())
    );

    let states: Api<Secret> = Api::namespaced(client.clone(), components::STATE_NAMESPACE);
    let state = format!("tfstate-{name}-capt");
    states
        .get(&state)
        .await
        .context("Terraform keeps its state in the cluster")?;
    workspaces.delete(name, &DeleteParams::background()).await?;
    await_condition(
        workspaces,
        name,
        conditions::is_deleted(&ready.uid().unwrap_or_default()),
    )
    .await?;
    // From a cache that is late the provider may look once more, and begin an empty state, which it removes again.
    until_gone(
        &objects(&client, "v1", "Secret", Some(components::STATE_NAMESPACE)),
        &state,
    )
    .await
    .context("destroy removes the state")
}

#[tokio::test]
async fn the_audit_log_tells_the_components_apart() -> Result<()> {
    let audit = audit::read(&testing::environment()?)?;
    for who in [
        "admin",
        "cluster-api-core",
        "provider-terraform",
        "system:kube-controller-manager",
    ] {
        assert!(
            audit.0.iter().any(|request| request.user() == who),
            "no request by {who}"
        );
    }
    Ok(())
}

const PROGRAM: &str = env!("CARGO_BIN_EXE_capt-e2e");

fn program(environment: &str, arguments: &[&str]) -> std::io::Result<Output> {
    Command::new(PROGRAM)
        .args(["--env", environment])
        .args(arguments)
        .output()
}

#[tokio::test]
async fn what_was_killed_comes_back_with_its_data() -> Result<()> {
    let scratch = Scratch::named(PROGRAM, "test-heal")?;
    let environment = &scratch.environment;
    // It runs beside the environment of the other tests: nothing is shared but the programs.
    scratch.up(&[])?;
    // A connection to a server that was killed is of no use to anybody.
    let maps = async || -> Result<Api<ConfigMap>> {
        let client = up::client(&environment.kubeconfig()).await?;
        Ok(Api::namespaced(client, "default"))
    };
    let kept: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "kept"}, "data": {"a": "b"}}))?;
    maps().await?.create(&PostParams::default(), &kept).await?;

    for victim in [
        components::ETCD,
        components::API_SERVER,
        components::CORE,
        components::PROVIDER,
    ] {
        let before = environment.process(victim).context("it should run")?.process;
        before.signal(Signal::SIGKILL);
        before.stop(std::time::Duration::from_secs(5)).await;
        let status = program(environment.name(), &["status"])?;
        assert!(!status.status.success(), "status must say that {victim} is dead");
        let said = String::from_utf8_lossy(&status.stdout).into_owned();
        assert!(said.contains("not running") && said.contains("make up"), "{said}");

        scratch.up(&[])?;
        let after = environment.process(victim).context("it should run again")?.process;
        assert_ne!(before.pid, after.pid);
        assert_eq!(
            maps().await?.get("kept").await?.data,
            kept.data,
            "the data survive the end of {victim}"
        );
    }
    let begun = Instant::now();
    loop {
        let status = program(environment.name(), &["status"])?;
        if status.status.success() {
            break;
        }
        // It does not wait long for an answer, and a busy machine may owe it one.
        let said = String::from_utf8_lossy(&status.stdout);
        assert!(begun.elapsed() < testing::PATIENCE, "{said}");
    }

    let untouched: Vec<i32> = process::marked(environment.dir())
        .iter()
        .map(|process| process.pid)
        .collect();
    scratch.up(&[])?;
    let now: Vec<i32> = process::marked(environment.dir())
        .iter()
        .map(|process| process.pid)
        .collect();
    assert_eq!(untouched, now, "an environment that is well is left alone");

    let down = program(environment.name(), &["down"])?;
    assert!(down.status.success(), "{}", String::from_utf8_lossy(&down.stderr));
    assert!(process::marked(environment.dir()).is_empty(), "nothing is left running");
    assert!(
        !environment.exists() && environment.log(components::ETCD).exists(),
        "data go, logs stay"
    );
    Ok(())
}

#[tokio::test]
async fn an_interrupted_start_leaves_nothing_running() -> Result<()> {
    let scratch = Scratch::named(PROGRAM, "test-interrupt")?;
    for moment in ["start etcd", "start kube-apiserver", "start cluster-api-core"] {
        let mut child = Command::new(PROGRAM)
            .args(["--env", scratch.environment.name(), "up"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
        ensure!(
            lines.any(|line| line.is_ok_and(|line| line.contains(moment))),
            "{moment} never came"
        );
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(i32::try_from(child.id())?), Signal::SIGINT)?;
        let output = child.wait_with_output()?;
        assert!(!output.status.success());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("nothing is left running"), "{said}");
        assert!(
            process::marked(scratch.environment.dir()).is_empty(),
            "interrupted at `{moment}`, but something still runs"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_taken_port_is_named_with_a_way_out() -> Result<()> {
    let scratch = Scratch::named(PROGRAM, "test-port")?;
    let identities: Vec<&str> = components::IDENTITIES.iter().map(|(identity, _)| *identity).collect();
    let settings = scratch.environment.prepare(&identities, false)?;
    let port = settings.port(Port::EtcdClient)?;
    let _taken = std::net::TcpListener::bind(("127.0.0.1", port))?;
    let output = program(scratch.environment.name(), &["up"])?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success()
            && said.contains(&format!("port {port} of etcd is taken"))
            && said.contains("make down"),
        "{said}"
    );
    Ok(())
}

#[test]
fn missing_tools_are_said_with_a_way_out() -> Result<()> {
    let empty = tempfile::tempdir()?;
    let run = |extra: &[(&str, &Path)]| -> Result<String> {
        let mut command = Command::new(PROGRAM);
        command
            .args(["--env", "test-tools", "tools"])
            .env("CAPT_CACHE_DIR", empty.path().join("cache"));
        command.envs(extra.iter().copied());
        let output = command.output()?;
        ensure!(!output.status.success(), "it should have failed");
        Ok(String::from_utf8(output.stderr)?)
    };
    let no_go = run(&[("PATH", empty.path())])?;
    assert!(
        no_go.contains("Go is not installed") && no_go.contains("install Go 1.26"),
        "{no_go}"
    );
    let no_network = run(&[
        ("GOPROXY", Path::new("http://127.0.0.1:1")),
        ("GOMODCACHE", &empty.path().join("modules")),
    ])?;
    assert!(
        no_network.contains("module proxy cannot be reached") && no_network.contains("GOPROXY"),
        "{no_network}"
    );
    Ok(())
}

#[test]
fn bad_requests_get_a_sentence() -> Result<()> {
    for (environment, arguments, expected) in [
        ("No Such", vec!["status"], "lower-case letters"),
        (
            "test-absent",
            vec!["status"],
            "is not up: run `make up ENV=test-absent`",
        ),
        ("test-absent", vec!["kubeconfig"], "is not up"),
        ("test-absent", vec!["logs"], "no logs yet"),
        (
            testing::environment()?.name(),
            vec!["logs", "nobody"],
            "there is no log of `nobody`; there are:",
        ),
    ] {
        let output = program(environment, &arguments)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && said.contains(expected),
            "{arguments:?}: {said}"
        );
    }
    Ok(())
}
