//! Three pods of each controller: one acts, and another takes over when that one goes, in the midst of work.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use anyhow::{Context, Result, bail, ensure};
use capt_e2e::audit::Request;
use capt_e2e::components::CONTROLLER_NAMESPACE;
use capt_e2e::testing::history::History;
use capt_e2e::testing::{objects, text};
use futures::future::try_join_all;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::LeaseSpec;
use kube::ResourceExt;
use kube::api::{DeleteParams, DynamicObject};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::site::{CONTROLLERS, Site, pod_of, process_of, said};
use crate::wave::Wave;

/// The chart's `--retry-period`. A standby rests for three quarters of it between two looks at the Lease, at most, so that a quarter
/// is left for requests.
const RETRY_PERIOD: SignedDuration = SignedDuration::from_secs(2);
/// How long a leader that has no work any more may take to give the Lease back. Nothing is left to wait for.
const AT_ONCE: SignedDuration = SignedDuration::from_secs(1);
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
    hand_over(&site, Loss::Deleted).await?;
    wave.available(&names).await?;
    site.all_ready(3).await?;
    show_memory(&site, "with 20 clusters").await?;

    wave.delete(&names).await?;
    hand_over(&site, Loss::Killed).await?;
    wave.gone(&names).await?;
    site.all_ready(3).await?;

    assert_one_at_a_time(&site).await
}

#[derive(Debug, Clone, Copy)]
enum Loss {
    /// As in a rolling update or on a drained node: the kubelet sends SIGTERM.
    Deleted,
    /// As by the kernel, when memory is short.
    Killed,
}

/// Takes every controller's leader away at once, and follows each Lease from before that until another one holds it.
async fn hand_over(site: &Site, loss: Loss) -> Result<()> {
    let followed = CONTROLLERS.map(|controller| async move {
        let leases = objects(
            &site.client,
            "coordination.k8s.io/v1",
            "Lease",
            Some(CONTROLLER_NAMESPACE),
        );
        let mut lease = History::begin(leases, controller).await?;
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
        let taken_over = |lease: &DynamicObject| !["", &identity].contains(&text(lease, "/spec/holderIdentity"));
        lease.until("taken over", taken_over).await?;
        anyhow::Ok((controller, lost, lease))
    });
    for (controller, lost, lease) in try_join_all(followed).await? {
        let requests = site.requests(controller)?;
        assert_in_time(&lease, &requests, loss, lost).with_context(|| format!("{controller}, {loss:?}"))?;
    }
    Ok(())
}

/// One holder after the other, and the next one soon: by what the Lease says, so that it does not matter when the test heard of it.
/// Pods, node and API server are on this machine, so all times are of one clock.
fn assert_in_time(lease: &History, requests: &[Request], loss: Loss, lost: Timestamp) -> Result<()> {
    let versions = lease.tells(|lease| serde_json::from_value::<LeaseSpec>(lease.data["spec"].clone()).ok());
    let versions: Option<Vec<LeaseSpec>> = versions.into_iter().collect();
    let versions = versions.context("a Lease that cannot be read")?;
    let holder = |version: &LeaseSpec| version.holder_identity.clone().unwrap_or_default();
    let mut holders: Vec<String> = versions.iter().map(holder).collect();
    holders.dedup();
    let (predecessor, successor) = match (loss, holders.as_slice()) {
        (Loss::Deleted, [first, nobody, next]) if nobody.is_empty() => (first, next),
        (Loss::Killed, [first, next]) => (first, next),
        _ => bail!("it was held by {holders:?}"),
    };
    ensure!(!lease.was_ever_gone(), "it was gone for a while");

    let [.., before, after] = versions.as_slice() else {
        bail!("only one version: {versions:?}")
    };
    // The last renewal of a leader that was killed, the release of one that was asked to go.
    let left = before.renew_time.as_ref().context("never renewed")?.0;
    let taken = after.acquire_time.as_ref().context("never acquired")?.0;
    let without = taken.duration_since(left);
    let answers = answers(requests, left..=taken, pod_of(predecessor), pod_of(successor))?;
    println!(
        "{:<32} hand-over in {} ms, with {} ms of the API server's, {} ms after its leader was {loss:?}",
        lease.name(),
        without.as_millis(),
        answers.as_millis(),
        taken.duration_since(lost).as_millis(),
    );
    let limit = match loss {
        Loss::Deleted => RETRY_PERIOD,
        Loss::Killed => {
            let promised = before.lease_duration_seconds.context("no duration")?;
            let promised = SignedDuration::from_secs(promised.into());
            ensure!(
                without >= promised,
                "it was promised for {promised:?}, and taken after {without:?}"
            );
            // The last renewal may be seen one rest after it was made; the next look comes when the promise has ended.
            promised + RETRY_PERIOD
        }
    };
    // As long again for the ways there and back, which nobody measures.
    ensure!(
        without <= limit + answers * 2,
        "nobody led for {without:?}, {answers:?} of which the API server took"
    );
    match loss {
        Loss::Deleted => assert_given_back_at_once(requests, pod_of(predecessor), lost, left),
        Loss::Killed => Ok(()),
    }
}

/// How long the API server took over what a hand-over waits for, which is not the controllers' doing: the predecessor's last write,
/// the successor's looks until it has seen that, and the one with which it found the Lease free.
fn answers(
    requests: &[Request],
    time: RangeInclusive<Timestamp>,
    predecessor: &str,
    successor: &str,
) -> Result<SignedDuration> {
    let of_lease = |pod: &str| {
        let own = requests.iter();
        let own = own.filter(|request| request.resource() == "leases" && request.pod() == pod);
        let own = own.filter(|request| request.answered() >= *time.start() && request.received() <= *time.end());
        own.collect::<Vec<&Request>>()
    };
    let written = of_lease(predecessor).into_iter().find(|request| request.is_write());
    let written = written.context("nobody wrote the last version")?;
    let mut looks = of_lease(successor);
    looks.retain(|request| request.verb == "get");
    let seen = looks.iter().position(|look| look.received() >= written.answered());
    let (seeing, waiting) = looks.split_at(seen.map_or(looks.len(), |seen| seen + 1));
    let awaited = [written]
        .into_iter()
        .chain(seeing.iter().copied())
        .chain(waiting.last().copied());
    Ok(awaited
        .map(|request| request.answered().duration_since(request.received()))
        .fold(SignedDuration::ZERO, |sum, took| sum + took))
}

/// Once its work has ended, a leader that was asked to go waits for nothing, and does nothing more.
fn assert_given_back_at_once(requests: &[Request], pod: &str, asked: Timestamp, left: Timestamp) -> Result<()> {
    let work = requests.iter().filter(|request| {
        let is_work = request.is_write() || request.verb == "get";
        request.pod() == pod && is_work && !matches!(request.resource(), "leases" | "events")
    });
    let (work, later): (Vec<&Request>, _) = work.partition(|request| request.received() <= left);
    ensure!(
        later.is_empty(),
        "it gave the Lease back at {left} and worked on: {later:#?}"
    );
    let ended = work
        .iter()
        .map(|request| request.answered())
        .fold(asked, Timestamp::max);
    ensure!(
        left.duration_since(ended) <= AT_ONCE,
        "it gave the Lease back only at {left}, its work having ended at {ended}"
    );
    Ok(())
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
