//! Can this machine have a node? Found out by trying, in namespaces that are thrown away again.

use anyhow::{Context, Result, bail};

use super::namespaces::{FURNISH, run};
use super::{Network, cgroups, packages};

/// Fails with the reason when there can be no node here. Changes nothing, but for packages that it may have to install.
pub async fn check() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("a node needs root, for namespaces, mounts and cgroups: run it as root");
    }
    let namespaces = ["--mount", "--net", "--propagation", "private", "--"];
    run("unshare", &[&namespaces[..], &["true"]].concat())
        .await
        .context("this machine does not let root make namespaces (a container without privileges?)")?;
    cgroups::check().context("a node needs cgroups that can be written (a container without privileges?)")?;
    packages().await?;

    let scratch = tempfile::tempdir()?;
    std::fs::create_dir_all(scratch.path().join("node/private"))?;
    let (dir, network) = (scratch.path().to_string_lossy(), Network::free()?);
    let script = format!("set -eu\nip link add uplink type veth peer name machine\n{FURNISH}");
    let (node, gateway) = (network.node().to_string(), format!("{}/25", network.gateway()));
    let trial = ["sh", "-c", &script, "furnish", &dir, &node, &gateway];
    run("unshare", &[&namespaces[..], &trial].concat()).await.context(
        "this machine's kernel lacks what a node needs (bridges, veth links, nftables, overlay and tmpfs mounts)",
    )
}
