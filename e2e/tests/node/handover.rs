//! Three pods of each controller: one acts, and another takes over when that one goes, in the midst of work.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::api::DeleteParams;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::site::{CONTROLLERS, Site, process_of, said};
use crate::wave::Wave;

/// How long nobody leads when a leader is asked to go.
const AFTER_SIGTERM: SignedDuration = SignedDuration::from_secs(2);
/// And when it dies: the chart's lease duration, and the same again.
const AFTER_SIGKILL: SignedDuration = SignedDuration::from_secs(17);
const CLUSTERS: usize = 20;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a node: make test-chart"]
async fn another_takes_over_in_time_and_nothing_is_done_twice() -> Result<()> {
    let site = Site::build("simulator").await?;
    site.install(&json!({ "common": { "replicas": 3 } }))?;
    site.all_ready(3).await?;
    show_start_up(&site).await?;
    show_memory(&site, "idle").await?;

    let wave = Wave::new(&site, "wave").await?;
    let names = wave.create("wave", CLUSTERS, 2).await?;
    let graceful = hand_over(&site, Loss::Deleted).await?;
    wave.available(&names).await?;
    site.all_ready(3).await?;
    show_memory(&site, "with 20 clusters").await?;

    wave.delete(&names).await?;
    let hard = hand_over(&site, Loss::Killed).await?;
    wave.gone(&names).await?;
    site.all_ready(3).await?;

    assert_one_at_a_time(&site).await?;
    for controller in CONTROLLERS {
        let (graceful, hard) = (graceful[controller], hard[controller]);
        ensure!(
            graceful <= AFTER_SIGTERM,
            "{controller} was without a leader for {graceful:?}"
        );
        ensure!(hard <= AFTER_SIGKILL, "{controller} was without a leader for {hard:?}");
    }
    Ok(())
}

#[derive(Debug, Clone, Copy)]
enum Loss {
    /// As in a rolling update or on a drained node: the kubelet sends SIGTERM.
    Deleted,
    /// As by the kernel, when memory is short.
    Killed,
}

/// Takes every controller's leader away at once; returns how long each was without one.
async fn hand_over(site: &Site, loss: Loss) -> Result<BTreeMap<&'static str, SignedDuration>> {
    let measured = CONTROLLERS.map(|controller| async move {
        let (identity, pod) = site.leader(controller).await?;
        let lost = match loss {
            Loss::Deleted => {
                let log = site.follow(&pod).await?;
                site.pods().delete(&pod.name_any(), &DeleteParams::default()).await?;
                // When the kubelet gets round to SIGTERM is not the controller's doing; from then on it is.
                said(log, "stopping: running work is finished").await?
            }
            Loss::Killed => {
                kill(Pid::from_raw(process_of(&pod)?), Signal::SIGKILL)?;
                Timestamp::now()
            }
        };
        let taken = site.successor(controller, &identity).await?;
        let without = taken.duration_since(lost);
        println!(
            "{controller:<32} hand-over in {} ms, its leader having been {loss:?}",
            without.as_millis()
        );
        Ok::<_, anyhow::Error>((controller, without))
    });
    Ok(try_join_all(measured).await?.into_iter().collect())
}

/// How long each leader took from its process's start until its caches were filled, and until it led.
async fn show_start_up(site: &Site) -> Result<()> {
    for controller in CONTROLLERS {
        let (_, pod) = site.leader(controller).await?;
        let began = started(process_of(&pod)?)?;
        let ready = said(site.follow(&pod).await?, "waiting for the Lease").await?;
        let led = said(site.follow(&pod).await?, "this replica leads now").await?;
        println!(
            "{controller:<32} ready {} ms and leading {} ms after its start",
            ready.duration_since(began).as_millis(),
            led.duration_since(began).as_millis()
        );
    }
    Ok(())
}

/// When a process was started.
fn started(pid: i32) -> Result<Timestamp> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').context("no such process")?;
    let ticks: f64 = fields.split_whitespace().nth(19).context("no start time")?.parse()?;
    let uptime = std::fs::read_to_string("/proc/uptime")?;
    let uptime: f64 = uptime.split_whitespace().next().context("no uptime")?.parse()?;
    // The kernel counts a hundred ticks per second in all that it shows.
    Ok(Timestamp::now() - SignedDuration::try_from_secs_f64(uptime - ticks / 100.0)?)
}

/// Nobody but the leader writes: between two hand-overs all writes of a controller come from one pod.
async fn assert_one_at_a_time(site: &Site) -> Result<()> {
    let mut created: BTreeMap<String, usize> = BTreeMap::new();
    for controller in CONTROLLERS {
        let own = site.requests(controller)?;
        let writes = || {
            own.iter()
                .filter(|request| request.is_write() && !matches!(request.resource(), "leases" | "events"))
        };
        let mut acting: Vec<&str> = writes().map(|request| request.pod()).collect();
        ensure!(
            acting.iter().all(|pod| !pod.is_empty()),
            "{controller} wrote with another token than its pod's"
        );
        acting.dedup();
        let lease = site.leases().get(controller).await?;
        let hand_overs = lease.spec.and_then(|spec| spec.lease_transitions).unwrap_or_default();
        ensure!(
            acting.len() <= usize::try_from(hand_overs)? + 1,
            "the pods of {controller} took turns, with {hand_overs} hand-overs: {acting:?}"
        );
        for request in writes().filter(|request| request.verb == "create" && request.code() == 201) {
            *created.entry(format!("{controller} {}", request.target())).or_default() += 1;
        }
    }
    let twice: Vec<&String> = created
        .iter()
        .filter(|(_, count)| **count > 1)
        .map(|(what, _)| what)
        .collect();
    ensure!(twice.is_empty(), "made twice: {twice:#?}");
    ensure!(
        created.len() >= 4 * CLUSTERS,
        "only {} objects were made",
        created.len()
    );
    Ok(())
}

/// Resident memory of each controller's pods.
async fn show_memory(site: &Site, when: &str) -> Result<()> {
    for controller in CONTROLLERS {
        let (_, leader) = site.leader(controller).await?;
        let mut line = format!("{controller:<32} {when}:");
        for pod in site.pods_of(controller).await? {
            let status = std::fs::read_to_string(format!("/proc/{}/status", process_of(&pod)?))?;
            let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            let kibibytes: u64 = resident
                .and_then(|text| text.split_whitespace().next()?.parse().ok())
                .context("a process without memory")?;
            let role = if pod.name_any() == leader.name_any() {
                "leader"
            } else {
                "standby"
            };
            line.push_str(&format!(" {role} {:.1} MiB", kibibytes as f64 / 1024.0));
        }
        println!("{line}");
    }
    Ok(())
}
