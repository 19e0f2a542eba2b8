//! A small disk for the logs of the node's pods, which can be full.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use capt_e2e::environment::Environment;
use capt_e2e::node::NAMESPACES;

/// Begins before the pods whose logs are to be on it, and ends with the node.
pub(crate) struct LogDisk {
    /// What takes the room, as this machine sees it.
    filler: PathBuf,
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
            filler: inside.join(logs).join("filler"),
        })
    }

    /// Leaves room for not one byte.
    pub(crate) fn fill(&self) -> Result<()> {
        let mut file = File::create(&self.filler)?;
        let mut piece: &[u8] = &[b'x'; 4096];
        while !piece.is_empty() {
            match file.write(piece) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => piece = &piece[..piece.len() / 2],
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    pub(crate) fn clear(&self) -> Result<()> {
        Ok(fs::remove_file(&self.filler)?)
    }
}
