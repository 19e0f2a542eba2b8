//! Clusters: a kube-apiserver of its own each, with its own authority and keys, in a corner of the environment's etcd.
//!
//! The program is the environment's own kube-apiserver, whatever version was asked for; the ledger keeps the version asked for.
//! What runs is read from the process table and never from a file: a command that was killed between starting a server and
//! writing it down would lose it.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::Cloud;
use super::inputs::{Inputs, parse_version};
use super::ledger::{Entry, Kind};
use crate::components::API_SERVER;
use crate::environment::{self, Environment, Port, free_ports, is_free};
use crate::pki::{Authority, write_private};
use crate::probe::{self, Probe};
use crate::process::{self, MARK, Process};

/// Every cluster's process carries this variable with the cluster's directory.
const CLUSTER_MARK: &str = "CAPT_CLOUD_CLUSTER_DIR";

/// A server that holds on to its watchers is ended by force; its data is either complete or about to be removed.
const GRACE: Duration = Duration::from_secs(5);

/// Makes the cluster, goes on with one that was not finished, or brings a finished one to what is asked for.
pub(super) async fn apply(cloud: &Cloud<'_>) -> Result<()> {
    let inputs = Inputs::from_environment()?;
    let name = inputs.name()?;
    // What is wrong with the input is said at once, and not after a slow start.
    check(&inputs)?;
    cloud.faults.before_apply(name, &inputs).await?;
    let _lock = cloud.ledger.lock(Kind::Cluster, name).await?;
    let wanted = Entry::new(Kind::Cluster, name, &inputs);
    let existing = cloud.ledger.get(Kind::Cluster, name)?;
    // What was never finished has nothing that could not change.
    if let Some(finished) = existing
        .as_ref()
        .filter(|entry| endpoint(cloud.environment, entry).is_some())
    {
        check_change(finished, &wanted)?;
    }
    let mut entry = with_port(cloud, existing.unwrap_or_else(|| wanted.clone())).await?;
    println!("cluster {name}: waiting until its API server is ready");
    run(cloud.environment, &entry).await?;
    // The version is the new one only now: a failed upgrade leaves the old one.
    entry.inputs = wanted.inputs;
    cloud.ledger.put(&entry)?;
    println!("cluster {name} is ready, version {}", entry.input("kubernetes_version"));
    Ok(())
}

pub(super) async fn delete(cloud: &Cloud<'_>) -> Result<()> {
    let inputs = Inputs::from_environment()?;
    let name = inputs.name()?;
    cloud.faults.before_destroy(name, &inputs).await?;
    let _lock = cloud.ledger.lock(Kind::Cluster, name).await?;
    stop(cloud.environment, name).await;
    etcd(cloud.environment, "deleterange", key_range(name))
        .await
        .context("the cluster's data cannot be removed")?;
    match fs::remove_dir_all(dir(cloud.environment, name)) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).context("the cluster's files cannot be removed")?
        }
        _ => {}
    }
    // Last: until everything else is gone, the entry says that something is left.
    cloud.ledger.remove(Kind::Cluster, name)?;
    cloud.faults.forget(name)?;
    println!("cluster {name} is gone");
    Ok(())
}

/// Terraform brings the new kubeconfig into its outputs when it looks next.
pub(super) async fn rotate(cloud: &Cloud<'_>, name: &str) -> Result<()> {
    let _lock = cloud.ledger.lock(Kind::Cluster, name).await?;
    let entry = cloud.ledger.get(Kind::Cluster, name)?;
    let entry = entry.with_context(|| format!("there is no cluster {name}; `capt-cloud list` shows what there is"))?;
    if endpoint(cloud.environment, &entry).is_none() {
        bail!("the cluster {name} is not finished: Terraform goes on with it");
    }
    // The server reads its tokens once, when it starts. It is ended first: it must never run with others than its file has.
    stop(cloud.environment, name).await;
    write_tokens(&dir(cloud.environment, name), &environment::token())?;
    run(cloud.environment, &entry).await?;
    println!(
        "cluster {name} has a new token, in {}",
        kubeconfig(cloud.environment, name).display()
    );
    Ok(())
}

/// Starts a cluster that died, unless it was deleted meanwhile.
pub(super) async fn restart(cloud: &Cloud<'_>, name: &str) -> Result<()> {
    let _lock = cloud.ledger.lock(Kind::Cluster, name).await?;
    match cloud.ledger.get(Kind::Cluster, name)? {
        Some(entry) if endpoint(cloud.environment, &entry).is_some() => run(cloud.environment, &entry).await,
        _ => Ok(()),
    }
}

/// Where clients reach a cluster; nowhere before it was ready for the first time.
pub(super) fn endpoint(environment: &Environment, entry: &Entry) -> Option<String> {
    let port = entry.port?;
    kubeconfig(environment, &entry.name).exists().then(|| server(port))
}

/// The cluster's process, whoever started it.
pub fn process(environment: &Environment, name: &str) -> Option<Process> {
    process::carrying(CLUSTER_MARK, &dir(environment, name))
        .into_iter()
        .next()
}

/// How many keys etcd holds for a cluster: none, once it was deleted.
pub async fn keys_in_etcd(environment: &Environment, name: &str) -> Result<u64> {
    let mut range = key_range(name);
    if let Some(fields) = range.as_object_mut() {
        fields.insert("count_only".into(), true.into());
    }
    let answer = etcd(environment, "range", range).await?;
    // 64-bit numbers are strings in this protocol, and zero is left out.
    answer
        .get("count")
        .and_then(Value::as_str)
        .map_or(Ok(0), |count| Ok(count.parse()?))
}

fn check(inputs: &Inputs) -> Result<()> {
    inputs.check_region()?;
    inputs.check_text("cluster_name")?;
    inputs.kubernetes_version()?;
    inputs.check_vpc_id()?;
    if !inputs.flag("endpoint_public_access", true)? && !inputs.flag("endpoint_private_access", true)? {
        bail!("endpoint_public_access and endpoint_private_access are both false: nobody could reach the cluster");
    }
    inputs.check_json("subnet_ids")?;
    inputs.check_json("addons")?;
    inputs.check_json("tags")
}

fn check_change(existing: &Entry, wanted: &Entry) -> Result<()> {
    for fixed in ["region", "vpc_id"] {
        let (old, new) = (existing.input(fixed), wanted.input(fixed));
        if old != new {
            bail!(
                "{fixed} of the cluster {} cannot be changed from {old} to {new}: delete it first",
                wanted.name
            );
        }
    }
    let (old, new) = (existing.input("kubernetes_version"), wanted.input("kubernetes_version"));
    if parse_version(new) < parse_version(old) {
        bail!(
            "kubernetes_version of the cluster {} cannot go back from {old} to {new}",
            wanted.name
        );
    }
    Ok(())
}

/// The entry with a port, written down. A port that no client knows yet is given up when another program has taken it.
async fn with_port(cloud: &Cloud<'_>, mut entry: Entry) -> Result<Entry> {
    let _lock = cloud.ledger.lock_ports().await?;
    let running = process(cloud.environment, &entry.name).is_some();
    let fixed = running || endpoint(cloud.environment, &entry).is_some();
    if !entry.port.is_some_and(|port| fixed || is_free(port)) {
        let taken: Vec<u16> = cloud.ledger.entries()?.iter().filter_map(|other| other.port).collect();
        // A dead cluster's port looks free.
        let port = free_ports(taken.len() + 1)?
            .into_iter()
            .find(|port| !taken.contains(port));
        entry.port = Some(port.context("no free port")?);
    }
    cloud.ledger.put(&entry)?;
    Ok(entry)
}

/// Starts the server unless it runs, waits until it is ready, and writes its kubeconfig.
async fn run(environment: &Environment, entry: &Entry) -> Result<()> {
    let name = &entry.name;
    let port = entry
        .port
        .with_context(|| format!("the ledger knows no port of the cluster {name}"))?;
    let dir = dir(environment, name);
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let authority = Authority::open(&dir, &format!("cluster {name}"))?;
    let tokens = dir.join("tokens.csv");
    if !tokens.exists() {
        write_tokens(&dir, &environment::token())?;
    }
    let log = environment.log(&format!("cloud-{name}"));
    let process = match process(environment, name) {
        Some(process) => process,
        None => {
            if !is_free(port) {
                bail!("port {port} of the cluster {name} is taken by another program: end that program");
            }
            Process::spawn(command(environment, name, port, &authority)?, &log)?
        }
    };
    Probe::https(format!("{}/readyz", server(port)), authority.certificate())
        .wait(&format!("the API server of cluster {name}"), &process, &log)
        .await?;
    let token = fs::read_to_string(&tokens)?;
    let token = token.split(',').next().unwrap_or_default();
    // Written when the server answers: its presence says that the cluster was ready.
    write_private(
        &kubeconfig(environment, name),
        &environment::kubeconfig(&server(port), authority.certificate(), "admin", token),
    )
}

fn command(environment: &Environment, name: &str, port: u16, authority: &Authority) -> Result<Command> {
    let program = environment.path("bin").join(API_SERVER);
    if !program.exists() {
        bail!("{} is missing: run `make up`", program.display());
    }
    let dir = dir(environment, name);
    let serving = authority.server(
        API_SERVER,
        &["localhost", "kubernetes.default.svc", "127.0.0.1", "198.18.0.1"],
    )?;
    let accounts = authority.service_accounts()?;
    let mut command = Command::new(program);
    // Terraform's variables and credentials are no business of the cluster.
    command
        .env_clear()
        .env(MARK, environment.dir())
        .env(CLUSTER_MARK, &dir)
        .current_dir(&dir);
    command
        .arg(format!("--etcd-servers={}", etcd_url(environment)?))
        .arg(format!("--etcd-prefix=/cloud/{name}"));
    command.arg(format!("--secure-port={port}"));
    for (flag, file) in [
        ("tls-cert-file", &serving.certificate),
        ("tls-private-key-file", &serving.key),
        ("client-ca-file", &authority.certificate_file()),
        ("token-auth-file", &dir.join("tokens.csv")),
        ("service-account-key-file", &accounts.certificate),
        ("service-account-signing-key-file", &accounts.key),
    ] {
        command.arg(format!("--{flag}={}", file.display()));
    }
    command.args([
        "--bind-address=127.0.0.1",
        // Nobody reaches the server through its Service; looking for an address to announce fails on a machine without a route.
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-cluster-ip-range=198.18.0.0/16",
        "--profiling=false",
    ]);
    Ok(command)
}

async fn stop(environment: &Environment, name: &str) {
    for process in process::carrying(CLUSTER_MARK, &dir(environment, name)) {
        process.stop(GRACE).await;
    }
}

fn write_tokens(dir: &Path, token: &str) -> Result<()> {
    write_private(
        &dir.join("tokens.csv"),
        &format!("{token},admin,admin,\"system:masters\"\n"),
    )
}

fn dir(environment: &Environment, name: &str) -> PathBuf {
    environment.path("cloud/clusters").join(name)
}

/// The template's outputs are read from this file.
fn kubeconfig(environment: &Environment, name: &str) -> PathBuf {
    dir(environment, name).join("kubeconfig")
}

fn server(port: u16) -> String {
    format!("https://127.0.0.1:{port}")
}

fn etcd_url(environment: &Environment) -> Result<String> {
    Ok(format!(
        "http://127.0.0.1:{}",
        environment.settings()?.port(Port::EtcdClient)?
    ))
}

/// Asks etcd through its JSON gateway.
async fn etcd(environment: &Environment, call: &str, body: Value) -> Result<Value> {
    let url = etcd_url(environment)?;
    let request = http::Request::post(format!("{url}/v3/kv/{call}")).body(serde_json::to_vec(&body)?)?;
    let client = probe::client(&url, None).await?;
    let answer = tokio::time::timeout(Duration::from_secs(60), client.request(request)).await;
    answer
        .context("etcd does not answer")?
        .with_context(|| format!("etcd refused {call}"))
}

/// All keys under the cluster's prefix and none of a cluster whose name only begins the same.
fn key_range(name: &str) -> Value {
    // `0` is what follows `/`.
    json!({"key": STANDARD.encode(format!("/cloud/{name}/")), "range_end": STANDARD.encode(format!("/cloud/{name}0"))})
}

#[cfg(test)]
mod tests {
    use super::super::inputs::inputs;
    use super::*;

    fn entry(variables: &[(&str, &str)]) -> Entry {
        Entry::new(Kind::Cluster, "a", &inputs(variables))
    }

    #[test]
    fn what_cannot_change_is_refused_by_name() {
        let existing = entry(&[
            ("region", "eu-central-1"),
            ("vpc_id", "vpc-1"),
            ("kubernetes_version", "1.9"),
        ]);
        for (region, vpc, version, said) in [
            ("eu-central-1", "vpc-1", "1.9", None),
            ("eu-central-1", "vpc-1", "1.10", None),
            ("eu-west-1", "vpc-1", "1.9", Some("region")),
            ("eu-central-1", "vpc-2", "1.9", Some("vpc_id")),
            ("eu-central-1", "vpc-1", "1.8", Some("kubernetes_version")),
        ] {
            let wanted = entry(&[("region", region), ("vpc_id", vpc), ("kubernetes_version", version)]);
            let error = check_change(&existing, &wanted).err().map(|error| error.to_string());
            match said {
                Some(variable) => assert!(error.clone().unwrap().starts_with(variable), "{error:?}"),
                None => assert_eq!(error, None),
            }
        }
    }

    #[test]
    fn an_unreachable_cluster_is_refused() {
        let given = |public, private| {
            inputs(&[
                ("region", "eu-central-1"),
                ("cluster_name", "a"),
                ("kubernetes_version", "1.31"),
                ("vpc_id", "vpc-1"),
                ("endpoint_public_access", public),
                ("endpoint_private_access", private),
            ])
        };
        assert!(check(&given("", "")).is_ok());
        assert!(check(&given("false", "true")).is_ok());
        assert!(
            check(&given("false", "false"))
                .unwrap_err()
                .to_string()
                .contains("endpoint_private_access")
        );
    }

    #[test]
    fn a_longer_name_is_another_cluster() {
        let range = key_range("a");
        let bound = |field: &str| STANDARD.decode(range[field].as_str().unwrap()).unwrap();
        let inside =
            |key: &str| bound("key").as_slice() <= key.as_bytes() && key.as_bytes() < bound("range_end").as_slice();
        assert!(inside("/cloud/a/namespaces/default"));
        assert!(!inside("/cloud/a-b/namespaces/default"));
        assert!(!inside("/cloud/a.b/namespaces/default"));
        assert!(!inside("/cloud/ab/namespaces/default"));
    }
}
