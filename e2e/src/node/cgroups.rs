//! The node's cgroup: below it are all pods, so it is where one finds what they run.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::{Instant, sleep};

use crate::environment::Environment;

/// What the kubelet needs to count and to limit.
const CONTROLLERS: &[&str] = &["cpu", "cpuset", "memory", "pids"];

/// The name of an environment's cgroup, the same in every hierarchy.
pub(super) fn name(environment: &Environment) -> String {
    format!("capt-{}", environment.name())
}

/// Where cgroups are mounted: one place in version 2, one per controller in version 1.
fn hierarchies() -> Result<Vec<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").context("cannot read the mounts of this process")?;
    Ok(mounts
        .lines()
        .filter_map(|line| {
            let (place, filesystem) = line.split_once(" - ")?;
            let of_cgroups = matches!(filesystem.split(' ').next(), Some("cgroup" | "cgroup2"));
            let place = place.split(' ').nth(4)?;
            // The same hierarchy may be mounted elsewhere too, for instance into a container.
            (of_cgroups && place.starts_with("/sys/fs/cgroup")).then(|| PathBuf::from(place))
        })
        .collect())
}

/// Makes a cgroup in every hierarchy, to see whether that is possible, and removes it.
pub(super) fn check() -> Result<()> {
    let hierarchies = hierarchies()?;
    let available = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default();
    for controller in CONTROLLERS {
        let mounted = hierarchies.iter().any(|place| place.ends_with(controller));
        if !mounted && !available.split_whitespace().any(|word| word == *controller) {
            bail!("the cgroup controller `{controller}` is not available on this machine");
        }
    }
    for place in hierarchies {
        let trial = place.join(format!("capt-trial-{}", std::process::id()));
        fs::create_dir(&trial).with_context(|| format!("cannot make a cgroup in {}", place.display()))?;
        fs::remove_dir(&trial)?;
    }
    Ok(())
}

/// How much of the processor all pods together get when it is short, in files of version 1 and 2: as much as twenty
/// processes beside them. By default it would be one's, and on a busy machine leaders could not renew their Leases.
const WEIGHT: &[(&str, &str)] = &[("cpu.shares", "20480"), ("cpu.weight", "2000")];

/// Makes the environment's cgroup; the kubelet wants to find it.
pub(super) fn create(environment: &Environment) -> Result<()> {
    for place in hierarchies()? {
        let own = place.join(name(environment));
        fs::create_dir_all(&own).with_context(|| format!("cannot make the cgroup {}", own.display()))?;
        for (file, weight) in WEIGHT {
            let file = own.join(file);
            if file.exists() {
                fs::write(&file, weight).with_context(|| format!("cannot write {}", file.display()))?;
            }
        }
    }
    Ok(())
}

/// Kills whatever runs in the environment's cgroup, and removes it.
pub(super) async fn remove(environment: &Environment) -> Result<()> {
    // A machine without cgroups never had a node.
    let Ok(places) = hierarchies() else { return Ok(()) };
    let own: Vec<PathBuf> = places.iter().map(|place| place.join(name(environment))).collect();
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        for cgroup in own.iter().flat_map(|cgroup| below(cgroup)) {
            for pid in members(&cgroup) {
                // It may have ended since.
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
        let left: Vec<PathBuf> = own
            .iter()
            .flat_map(|cgroup| below(cgroup))
            .filter(|cgroup| !is_removed(cgroup))
            .collect();
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            bail!("processes in these cgroups do not end: {left:?}");
        }
        // The kernel removes a killed process in its own time, and tells nobody but its parent.
        sleep(Duration::from_millis(20)).await;
    }
}

fn is_removed(cgroup: &Path) -> bool {
    match fs::remove_dir(cgroup) {
        Ok(()) => true,
        Err(error) => error.raw_os_error() == Some(Errno::ENOENT as i32),
    }
}

/// A cgroup and all below it, the deepest first.
fn below(cgroup: &Path) -> Vec<PathBuf> {
    if !cgroup.is_dir() {
        return Vec::new();
    }
    let mut found: Vec<PathBuf> = fs::read_dir(cgroup)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .flat_map(|entry| below(&entry.path()))
        .collect();
    found.push(cgroup.to_path_buf());
    found
}

fn members(cgroup: &Path) -> Vec<i32> {
    let text = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.trim().parse().ok()).collect()
}
