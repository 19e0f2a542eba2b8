//! A real node beside the control plane: containerd, kubelet, kube-proxy and a scheduler, so that pods run.
//!
//! Everything that would change the machine happens in a mount and a network namespace of the node's own: its mounts, its
//! bridge, its routes, its nftables and what the kubelet sets in the kernel end with the last process in there, also when
//! all of them are killed. The machine itself sees one link, with one route to the pods behind it, and one cgroup.

mod cgroups;
pub mod images;
pub mod install;
mod machine;
mod namespaces;
mod parts;

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use serde::{Deserialize, Serialize};

use crate::environment::Environment;
use crate::packages::{self, Needed};
use crate::process;
use crate::progress::Step;
use crate::wait;

pub use machine::check;
pub use namespaces::{component as namespaces, furnish, unplug};

/// The name of the one node.
pub const NAME: &str = "capt-node";
/// As whom the kubelet asks the API server: it may then do what concerns this node, and nothing else.
pub const IDENTITY: &str = "system:node:capt-node";
pub const PROXY_IDENTITY: &str = "system:kube-proxy";
pub const SCHEDULER_IDENTITY: &str = "system:kube-scheduler";
/// As whom the API server asks the kubelet, for logs.
pub const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";

pub const NAMESPACES: &str = "node";
pub const CONTAINERD: &str = "containerd";
pub const KUBELET: &str = "kubelet";
pub const PROXY: &str = "kube-proxy";
pub const SCHEDULER: &str = "kube-scheduler";

/// Programs that the node calls, and the Debian package that has each.
const NEEDED: &[Needed] = &[
    ("/usr/sbin/runc", "runc"),
    ("/usr/sbin/nft", "nftables"),
    ("/usr/sbin/ip", "iproute2"),
    ("/usr/bin/nsenter", "util-linux"),
    ("/usr/bin/buildah", "buildah"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
];

/// The addresses of a node: a block of 198.19.0.0/16, which is set apart for such uses and never leaves a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network(u8);

impl Network {
    /// One that no other node on this machine has.
    pub fn free() -> Result<Self> {
        (0..=u8::MAX)
            .map(Self)
            .find(|network| !network.is_taken())
            .context("this machine has 256 nodes already: take one down with `make node-down`")
    }

    fn is_taken(self) -> bool {
        std::path::Path::new("/sys/class/net").join(self.link()).exists()
    }

    /// The machine's end of the cable between machine and node.
    pub fn link(self) -> String {
        format!("capt{}", self.0)
    }

    /// The machine, as the node sees it.
    pub fn machine(self) -> Address {
        Address(self.0, 1)
    }

    /// The node, as the machine sees it.
    pub fn node(self) -> Address {
        Address(self.0, 2)
    }

    /// The node, as its pods see it.
    pub fn gateway(self) -> Address {
        Address(self.0, 129)
    }

    pub fn pods(self) -> String {
        format!("198.19.{}.128/25", self.0)
    }
}

/// An address of a node's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address(u8, u8);

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "198.19.{}.{}", self.0, self.1)
    }
}

/// Ends all pods without asking, and removes their cgroup. Where there is no node there is nothing to do.
pub async fn end_pods(environment: &Environment) -> Result<()> {
    cgroups::remove(environment).await?;
    // A shim outlives its container and containerd, and does not listen to SIGTERM.
    let marked = process::marked(environment.dir());
    let shims = marked.iter().filter(|process| process.is_named("containerd-shim"));
    futures::future::join_all(shims.map(|shim| shim.kill())).await;
    Ok(())
}

/// Installs what the node calls, as far as it is missing.
pub async fn packages() -> Result<()> {
    packages::ready(NEEDED).await
}

/// How long the node may take to become ready; it takes seconds.
const READY_WITHIN: Duration = Duration::from_secs(300);

/// Waits until the node takes pods.
pub async fn ready(environment: &Environment, client: &Client) -> Result<()> {
    let step = Step::start("node ready");
    let nodes: Api<Node> = Api::all(client.clone());
    let is_ready = |node: Option<&Node>| {
        let conditions = node.and_then(|node| node.status.as_ref()?.conditions.as_ref());
        conditions
            .into_iter()
            .flatten()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    tokio::select! {
        _ = wait::until(nodes, NAME, is_ready) => {}
        ended = first_to_end(environment) => bail!("{ended} has ended: see `make logs C={ended}`"),
        () = tokio::time::sleep(READY_WITHIN) => bail!(
            "the node is not ready after {} s: see `make logs C={KUBELET}` and `make logs C={CONTAINERD}`",
            READY_WITHIN.as_secs()
        ),
    }
    step.done();
    Ok(())
}

/// Returns when one of the programs without which the node is never ready does not run any more.
async fn first_to_end(environment: &Environment) -> &'static str {
    loop {
        let ended = [CONTAINERD, KUBELET]
            .into_iter()
            .find(|name| environment.process(name).is_none());
        if let Some(name) = ended {
            return name;
        }
        // They are not our children, so there is nothing to wait on but their disappearance.
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Where the node keeps its data.
fn directory(environment: &Environment) -> std::path::PathBuf {
    environment.path("node")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_node_and_pods_are_apart() {
        let network = Network(7);
        assert_eq!(network.machine().to_string(), "198.19.7.1");
        assert_eq!(network.node().to_string(), "198.19.7.2");
        assert_eq!(network.gateway().to_string(), "198.19.7.129");
        assert_eq!(network.pods(), "198.19.7.128/25");
        assert_eq!(network.link(), "capt7");
    }
}
