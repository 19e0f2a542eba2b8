//! Programs of the operating system that the environment calls.

use std::path::Path;

use anyhow::{Result, bail};
use tokio::process::Command;

use crate::progress::Step;

/// A program, and the Debian package that has it.
pub type Needed = (&'static str, &'static str);

/// What provider-terraform runs by absolute path.
pub const OF_PROVIDER: &[Needed] = &[
    ("/usr/bin/find", "findutils"),
    ("/usr/bin/md5sum", "coreutils"),
    ("/usr/bin/sort", "coreutils"),
    ("/usr/bin/awk", "mawk"),
];

/// Installs what is missing when it may, and otherwise says what to install.
pub async fn ready(needed: &[Needed]) -> Result<()> {
    let mut missing: Vec<&str> = needed
        .iter()
        .filter(|(program, _)| !Path::new(program).exists())
        .map(|(_, package)| *package)
        .collect();
    missing.dedup();
    if missing.is_empty() {
        return Ok(());
    }
    let packages = missing.join(" ");
    if !nix::unistd::geteuid().is_root() {
        bail!(
            "these Debian packages are missing, and only root may install them: run `sudo apt-get install {packages}`, then try again"
        );
    }
    let step = Step::start(format!("install {packages}"));
    for arguments in [
        vec!["update"],
        [vec!["install", "--yes", "--no-install-recommends"], missing].concat(),
    ] {
        let output = Command::new("apt-get")
            .args(arguments)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .kill_on_drop(true)
            .output()
            .await;
        match output {
            Ok(output) if output.status.success() => {}
            Ok(output) => bail!(
                "apt-get cannot install {packages}: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            ),
            Err(_) => bail!("these programs are missing, and there is no apt-get to install them: {packages}"),
        }
    }
    step.done();
    Ok(())
}
