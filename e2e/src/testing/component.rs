//! Parts of an environment that a test takes away and brings back: exactly as they ran, or with other flags.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;

use crate::environment::{Environment, Record};
use crate::process::Process;

/// A component that does not run.
#[derive(Debug)]
pub struct Stopped {
    environment: Environment,
    name: String,
    program: PathBuf,
    arguments: Vec<OsString>,
    variables: BTreeMap<OsString, OsString>,
    fingerprint: String,
}

/// Ends a component as a rolling update does: it may finish what it is at, and gives its Lease back.
pub async fn stop(environment: &Environment, name: &str) -> Result<Stopped> {
    end(environment, name, None).await
}

/// Ends a component without any warning.
pub async fn kill(environment: &Environment, name: &str) -> Result<Stopped> {
    end(environment, name, Some(Signal::SIGKILL)).await
}

async fn end(environment: &Environment, name: &str, signal: Option<Signal>) -> Result<Stopped> {
    let Record { process, fingerprint } = environment
        .process(name)
        .with_context(|| format!("{name} does not run"))?;
    let stopped = Stopped {
        environment: environment.clone(),
        name: name.to_owned(),
        program: fs::read_link(format!("/proc/{}/exe", process.pid))?,
        arguments: words(&process, "cmdline")?.into_iter().skip(1).collect(),
        variables: words(&process, "environ")?.into_iter().filter_map(variable).collect(),
        fingerprint,
    };
    if let Some(signal) = signal {
        process.signal(signal);
    }
    process.stop(Duration::from_secs(30)).await;
    Ok(stopped)
}

/// What the kernel knows of a process in a file of words.
fn words(process: &Process, file: &str) -> Result<Vec<OsString>> {
    let text = fs::read(format!("/proc/{}/{file}", process.pid))?;
    let words = text.strip_suffix(&[0]).unwrap_or(&text).split(|byte| *byte == 0);
    Ok(words.map(|word| OsString::from_vec(word.to_vec())).collect())
}

fn variable(text: OsString) -> Option<(OsString, OsString)> {
    let bytes = text.into_vec();
    let equals = bytes.iter().position(|byte| *byte == b'=')?;
    let (name, value) = bytes.split_at(equals);
    Some((
        OsString::from_vec(name.to_vec()),
        OsString::from_vec(value.get(1..)?.to_vec()),
    ))
}

impl Stopped {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Gives it variables that the same component of another environment has.
    pub fn with_variables_of(mut self, other: &Environment, names: &[&str]) -> Result<Self> {
        let Record { process, .. } = other
            .process(&self.name)
            .with_context(|| format!("{} does not run in {}", self.name, other.name()))?;
        let theirs: BTreeMap<OsString, OsString> =
            words(&process, "environ")?.into_iter().filter_map(variable).collect();
        for name in names {
            let value = theirs.get(OsStr::new(name));
            let value = value.with_context(|| format!("{} has no {name} in {}", self.name, other.name()))?;
            self.variables.insert(name.into(), value.clone());
        }
        Ok(self)
    }

    /// Starts it as it ran before.
    pub fn start(self) -> Result<Process> {
        self.start_with(&[])
    }

    /// Starts it with these flags, instead of those of the same names that it had.
    pub fn start_with(self, flags: &[&str]) -> Result<Process> {
        let name = |flag: &str| flag.split('=').next().unwrap_or_default().to_owned();
        let given: BTreeSet<String> = flags.iter().map(|flag| name(flag)).collect();
        let mut command = Command::new(&self.program);
        let kept = self.arguments.iter();
        command
            .args(kept.filter(|argument| !given.contains(&name(&argument.to_string_lossy()))))
            .args(flags)
            .env_clear()
            .envs(&self.variables)
            .current_dir(self.environment.dir());
        let process = Process::spawn(command, &self.environment.log(&self.name))?;
        self.environment.record(
            &self.name,
            &Record {
                process: process.clone(),
                fingerprint: self.fingerprint,
            },
        )?;
        Ok(process)
    }
}
