//! The namespaces of a node: a process that keeps them, the cable to the machine, and what is inside.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{NAMESPACES, Network, cgroups, directory, end_pods};
use crate::components::{Component, Parts};
use crate::environment::Environment;
use crate::probe::Probe;
use crate::process::Process;

pub(super) const FURNISH: &str = include_str!("furnish.sh");
/// What the keeper says when it is inside.
const INSIDE: &str = "the namespaces are there";

/// The process that keeps the namespaces: while it lives, kubelet and containerd can be restarted in them.
pub fn component(parts: &Parts<'_>) -> Result<Component> {
    let mut command = parts.marked("/usr/bin/unshare".into());
    command.args(["--mount", "--net", "--propagation", "private", "--", "sh", "-c"]);
    command.arg(format!("echo {INSIDE}; exec sleep infinity"));
    Ok(Component {
        name: NAMESPACES,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        command,
        probe: Probe::LogLine(INSIDE),
        ports: Vec::new(),
    })
}

/// The process that keeps the namespaces of this environment.
pub(super) fn keeper(environment: &Environment) -> Result<Process> {
    let record = environment.process(NAMESPACES);
    Ok(record
        .context("the node's namespaces are gone: run `make node-up`")?
        .process)
}

/// Lays the cable and furnishes the namespaces, unless that was done already.
pub async fn furnish(environment: &Environment, network: Network) -> Result<()> {
    let keeper = keeper(environment)?;
    let (done, pid) = (directory(environment).join("furnished"), keeper.pid.to_string());
    if fs::read_to_string(&done).is_ok_and(|text| text == pid) {
        // It goes with the pods when they are ended.
        return cgroups::create(environment);
    }
    // Whoever still lives in the namespaces of an earlier keeper has no network any more.
    end_pods(environment).await?;
    unplug(environment, network).await?;
    fs::create_dir_all(directory(environment).join("private"))?;
    cgroups::create(environment)?;

    let link = network.link();
    let machine = format!("{}/30", network.machine());
    run(
        "ip",
        &[
            "link", "add", &link, "type", "veth", "peer", "name", "uplink", "netns", &pid,
        ],
    )
    .await?;
    run("ip", &["link", "set", &link, "alias", &owner(environment)]).await?;
    run("ip", &["address", "add", &machine, "dev", &link]).await?;
    run("ip", &["link", "set", &link, "up"]).await?;
    let (gateway, node) = (format!("{}/25", network.gateway()), network.node().to_string());
    let inside = [
        "--target", &pid, "--mount", "--net", "--", "sh", "-c", FURNISH, "furnish",
    ];
    let dir = environment.dir().to_string_lossy();
    run("nsenter", &[&inside[..], &[&dir, &node, &gateway]].concat()).await?;
    run("ip", &["route", "add", &network.pods(), "via", &node, "dev", &link]).await?;
    fs::write(done, pid)?;
    Ok(())
}

/// Whose a cable is, as it says itself: the numbers of a node that has gone may have been given to another one since.
fn owner(environment: &Environment) -> String {
    environment.dir().to_string_lossy().into_owned()
}

/// Takes the cable away. It goes with the namespaces, too, but the kernel takes those down in its own time, and tells nobody.
pub async fn unplug(environment: &Environment, network: Network) -> Result<()> {
    let link = network.link();
    let alias = fs::read_to_string(Path::new("/sys/class/net").join(&link).join("ifalias")).unwrap_or_default();
    if alias.trim_end() != owner(environment) {
        return Ok(());
    }
    match run("ip", &["link", "delete", &link]).await {
        // The kernel was faster.
        Err(_) if !network.is_taken() => Ok(()),
        outcome => outcome,
    }
}

/// A program in the namespaces of the keeper.
pub(super) fn inside(keeper: &Process, program: &Path) -> Vec<String> {
    ["--target", &keeper.pid.to_string(), "--mount", "--net", "--"]
        .into_iter()
        .map(str::to_owned)
        .chain([program.to_string_lossy().into_owned()])
        .collect()
}

/// Runs a program to its end; an error is what it said.
pub(super) async fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new(program);
    command.args(arguments).env("PATH", search_path());
    let output = tokio::process::Command::from(command)
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{program}: {}", said.trim());
    }
    Ok(())
}

/// `ip`, `nft` and `runc` are where only root's shells look.
pub(super) fn search_path() -> std::ffi::OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin:/usr/bin:/bin");
    path
}
