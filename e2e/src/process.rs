//! Programs that outlive the command that started them: started with a log file, known by pid and start time,
//! ended together with everything they started in turn.

use std::fs::{self, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

/// Every process of an environment, and whatever it starts, carries this variable with the environment's directory.
pub const MARK: &str = "CAPT_ENVIRONMENT_DIR";

/// A process that was started earlier, perhaps by another run of this program.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Process {
    pub pid: i32,
    /// Clock ticks between boot and start: with the pid it names one process for ever, a pid alone is reused.
    started: u64,
    /// Length of the log when the process was started: what stands before belongs to its predecessor.
    pub log_offset: u64,
}

impl Process {
    /// Starts a program in a process group of its own, so that Ctrl-C in the terminal does not reach it.
    pub fn spawn(mut command: Command, log: &Path) -> Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("cannot write the log {}", log.display()))?;
        let log_offset = file.metadata()?.len();
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        let pid = i32::try_from(child.id())?;
        let (_, started) =
            stat(pid).with_context(|| format!("{program} ended as soon as it was started; see {}", log.display()))?;
        Ok(Self {
            pid,
            started,
            log_offset,
        })
    }

    pub fn is_alive(&self) -> bool {
        // A zombie has ended and only waits for its parent; but one that still has threads also still has its ports.
        stat(self.pid).is_some_and(|(state, started)| {
            started == self.started && (state != 'Z' || threads(self.pid).is_some_and(|threads| threads > 1))
        })
    }

    /// Resident memory in bytes.
    pub fn memory(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kibibytes * 1024)
    }

    /// Processor time since its start.
    pub fn cpu_time(&self) -> Option<Duration> {
        // The kernel counts a hundred ticks per second in all that it shows.
        const TICK: Duration = Duration::from_millis(10);
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok()?;
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
        let mut ticks = || fields.next()?.parse::<u32>().ok();
        Some(TICK * (ticks()? + ticks()?))
    }

    pub fn signal(&self, signal: Signal) {
        if self.is_alive() {
            // It may end between the check and the signal; then there is nothing left to do.
            let _ = kill(Pid::from_raw(self.pid), signal);
        }
    }

    /// Asks the process to end, and ends it by force when it has not after `grace`.
    pub async fn stop(&self, grace: Duration) {
        self.signal(Signal::SIGTERM);
        if !self.wait_for_end(grace).await {
            self.kill().await;
        }
    }

    /// Ends the process without asking.
    pub async fn kill(&self) {
        self.signal(Signal::SIGKILL);
        self.wait_for_end(Duration::from_secs(120)).await;
    }

    /// Whether the program's name begins like this; the kernel keeps 15 letters of it.
    pub fn is_named(&self, prefix: &str) -> bool {
        fs::read_to_string(format!("/proc/{}/comm", self.pid)).is_ok_and(|name| name.starts_with(prefix))
    }

    async fn wait_for_end(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while self.is_alive() {
            if Instant::now() >= deadline {
                return false;
            }
            // The process is not our child, so there is nothing to wait on but its disappearance.
            sleep(Duration::from_millis(20)).await;
        }
        true
    }
}

/// Every living process that carries the mark of this environment, whoever started it.
pub fn marked(environment: &Path) -> Vec<Process> {
    carrying(MARK, environment)
}

/// Every living process that was started with this path in this environment variable.
pub fn carrying(variable: &str, path: &Path) -> Vec<Process> {
    let wanted = format!("{variable}={}", path.display());
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| {
            fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes()))
        })
        .filter_map(|pid| {
            let (state, started) = stat(pid)?;
            (state != 'Z').then_some(Process {
                pid,
                started,
                log_offset: 0,
            })
        })
        .collect()
}

/// How many threads of a process have not ended.
fn threads(pid: i32) -> Option<usize> {
    Some(fs::read_dir(format!("/proc/{pid}/task")).ok()?.count())
}

/// State and start time of a process, from the kernel.
fn stat(pid: i32) -> Option<(char, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name stands in parentheses and may itself hold spaces and parentheses.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let started = fields.nth(18)?.parse().ok()?;
    Some((state, started))
}
