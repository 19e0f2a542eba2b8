//! A small disk for the logs of the node's pods, which can be full.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use capt_e2e::environment::Environment;
use capt_e2e::node::NAMESPACES;

/// Begins before the pods whose logs are to be on it, and ends with the node.
pub(crate) struct LogDisk {
    /// Where it is, as this machine sees it.
    place: PathBuf,
}

impl LogDisk {
    pub(crate) fn mount(environment: &Environment) -> Result<Self> {
        let keeper = environment.process(NAMESPACES).context("there is no node")?.process;
        let logs = environment.path("logs/pods");
        let mounted = Command::new("nsenter")
            .args(["--target", &keeper.pid.to_string(), "--mount", "--"])
            .args(["mount", "-t", "tmpfs", "-o", "size=4m", "capt-logs"])
            .arg(&logs)
            .status()?;
        ensure!(mounted.success(), "cannot mount a disk for logs");
        let inside = PathBuf::from(format!("/proc/{}/root", keeper.pid));
        let logs = logs.strip_prefix("/").context("a relative path of logs")?;
        Ok(Self {
            place: inside.join(logs),
        })
    }

    /// Leaves room for not one byte, for as long as what is returned is kept: a file without a name, because the kubelet
    /// removes what is in this directory and belongs to no pod.
    pub(crate) fn fill(&self) -> Result<File> {
        let mut file = tempfile::tempfile_in(&self.place)?;
        let mut piece: &[u8] = &[b'x'; 4096];
        while !piece.is_empty() {
            match file.write(piece) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => piece = &piece[..piece.len() / 2],
                Err(error) => return Err(error.into()),
            }
        }
        Ok(file)
    }
}
