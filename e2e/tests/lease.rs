//! Leader election on the real API server: whatever happens, there is at most one leader, and soon there is one again.

mod gate;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use capt_e2e::testing;
use capt_runtime::{
    client::{self, Limits},
    lease::{Candidate, Leadership, Lost, Settings},
    metrics::Metrics,
};
use gate::{Door, Gate};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{
    Api, Client, Config,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

const DURATION: Duration = Duration::from_secs(6);
const DEADLINE: Duration = Duration::from_secs(4);
const RETRY: Duration = Duration::from_millis(500);
/// For the machine's own slowness.
const SLACK: Duration = Duration::from_secs(3);
const NAME: &str = "capt-test";

struct Bench {
    config: Config,
    leases: Api<Lease>,
    namespace: String,
    metrics: Arc<Metrics>,
}

impl Bench {
    async fn new(prefix: &str) -> Result<Self> {
        let client = testing::client().await?;
        let namespace = testing::namespace(&client, prefix).await?;
        Ok(Self {
            config: Config::infer().await?,
            leases: Api::namespaced(client, &namespace),
            namespace,
            metrics: Metrics::new("test")?,
        })
    }

    fn client(&self, config: Config) -> Result<Client> {
        let limits = Limits {
            connect: DEADLINE / 2,
            response: DEADLINE / 2,
            call: DEADLINE / 2,
        };
        client::build(config, "capt-test/0", limits, &self.metrics)
    }

    fn candidate(&self, identity: &str) -> Result<Candidate> {
        self.candidate_through(identity, self.config.clone())
    }

    fn candidate_through(&self, identity: &str, config: Config) -> Result<Candidate> {
        let settings = Settings {
            namespace: self.namespace.clone(),
            name: NAME.into(),
            identity: identity.into(),
            duration: DURATION,
            renew_deadline: DEADLINE,
            retry_period: RETRY,
        };
        Ok(Candidate::new(self.client(config)?, settings, &self.metrics))
    }

    async fn spec(&self) -> Result<LeaseSpec> {
        self.leases.get(NAME).await?.spec.context("a Lease without a spec")
    }

    async fn holder(&self) -> Result<String> {
        Ok(self.spec().await?.holder_identity.unwrap_or_default())
    }

    /// What a foreign participant writes, whatever clock it has.
    async fn write_as(&self, holder: &str, renewed: Timestamp) -> Result<()> {
        let body = json!({
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": 6, "renewTime": MicroTime(renewed)},
        });
        self.leases
            .patch(NAME, &PatchParams::default(), &Patch::Merge(body))
            .await?;
        Ok(())
    }
}

/// Renews in the background; the handle yields the reason of the loss.
fn keep(mut leadership: Leadership) -> tokio::task::JoinHandle<(Lost, Instant)> {
    tokio::spawn(async move {
        let lost = leadership.keep().await;
        (lost, Instant::now())
    })
}

#[tokio::test]
async fn of_many_candidates_one_leads() -> Result<()> {
    let bench = Bench::new("lease-many").await?;
    let leaders = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for n in 0..5 {
        let candidate = bench.candidate(&format!("c{n}"))?;
        let leaders = leaders.clone();
        tasks.push(tokio::spawn(async move {
            let mut leadership = candidate.acquire().await;
            leaders.fetch_add(1, Ordering::SeqCst);
            leadership.keep().await
        }));
    }
    sleep(DURATION * 2).await;
    assert_eq!(leaders.load(Ordering::SeqCst), 1);
    let spec = bench.spec().await?;
    assert!(spec.holder_identity.is_some_and(|holder| holder.starts_with('c')));
    assert_eq!(spec.lease_transitions, Some(0));
    assert_eq!(spec.lease_duration_seconds, Some(6));
    let (acquired, renewed) = (
        spec.acquire_time.context("acquireTime")?,
        spec.renew_time.context("renewTime")?,
    );
    assert!(renewed.0 > acquired.0, "it was renewed");
    for task in tasks {
        task.abort();
    }
    Ok(())
}

#[tokio::test]
async fn a_dead_leader_is_replaced_after_the_lease_duration_and_not_before() -> Result<()> {
    let bench = Bench::new("lease-dead").await?;
    let dead = bench.candidate("dead")?.acquire().await;
    let died = Instant::now();
    let next = timeout(DURATION * 3, bench.candidate("next")?.acquire()).await?;
    assert!(died.elapsed() >= DURATION, "taken over after {:?}", died.elapsed());
    assert!(
        died.elapsed() <= DURATION + RETRY * 2 + SLACK,
        "taken over after {:?}",
        died.elapsed()
    );
    assert_eq!(bench.holder().await?, "next");
    assert_eq!(bench.spec().await?.lease_transitions, Some(1));
    drop((dead, next));
    Ok(())
}

#[tokio::test]
async fn a_released_lease_is_taken_over_at_once() -> Result<()> {
    let bench = Bench::new("lease-release").await?;
    let first = bench.candidate("first")?.acquire().await;
    assert!(
        bench
            .metrics
            .render()?
            .contains(&format!(r#"leader_election_master_status{{name="{NAME}"}} 1"#))
    );
    let second = bench.candidate("second")?;
    let waiting = tokio::spawn(async move { second.acquire().await });
    sleep(RETRY * 2).await;
    assert!(!waiting.is_finished());
    first.release().await?;
    let released = Instant::now();
    let _second = timeout(DURATION, waiting).await??;
    assert!(
        released.elapsed() <= RETRY + SLACK / 2,
        "taken over after {:?}",
        released.elapsed()
    );
    assert_eq!(bench.holder().await?, "second");
    Ok(())
}

#[tokio::test]
async fn a_release_leaves_no_holder_and_spares_another_one() -> Result<()> {
    let bench = Bench::new("lease-empty").await?;
    let first = bench.candidate("first")?.acquire().await;
    // The version moves on, as it does when a renewal was cut off after it reached the server.
    bench.write_as("first", Timestamp::now()).await?;
    first.release().await?;
    assert_eq!(bench.holder().await?, "");

    let second = bench.candidate("second")?.acquire().await;
    bench.write_as("somebody-else", Timestamp::now()).await?;
    second.release().await?;
    assert_eq!(bench.holder().await?, "somebody-else");
    Ok(())
}

#[tokio::test]
async fn a_leader_that_was_replaced_notices_with_its_next_renewal() -> Result<()> {
    let bench = Bench::new("lease-taken").await?;
    let kept = keep(bench.candidate("old")?.acquire().await);
    sleep(RETRY).await;
    bench.write_as("intruder", Timestamp::now()).await?;
    let taken = Instant::now();
    let (lost, at) = timeout(DURATION, kept).await??;
    assert!(matches!(&lost, Lost::Taken(holder) if holder == "intruder"), "{lost}");
    assert!(at.duration_since(taken) <= RETRY + SLACK);
    Ok(())
}

#[tokio::test]
async fn a_leader_cut_off_from_the_server_stops_before_another_starts() -> Result<()> {
    for door in [Door::Refusing, Door::Silent] {
        let bench = Bench::new("lease-cut").await?;
        let gate = Gate::new(&bench.config).await?;
        let kept = keep(
            bench
                .candidate_through("cut-off", gate.config(&bench.config)?)?
                .acquire()
                .await,
        );
        let next = bench.candidate("next")?;
        let waiting = tokio::spawn(async move {
            let leadership = next.acquire().await;
            (leadership, Instant::now())
        });
        sleep(RETRY * 3).await;
        gate.set(door);
        let cut = Instant::now();
        let (lost, stopped) = timeout(DURATION * 2, kept).await.context("the old leader goes on")??;
        assert!(matches!(lost, Lost::Expired { .. }), "{door:?}: {lost}");
        assert!(
            stopped.duration_since(cut) <= DEADLINE + SLACK / 2,
            "{door:?}: {:?}",
            stopped.duration_since(cut)
        );
        let (_next, started) = timeout(DURATION * 3, waiting).await.context("nobody leads")??;
        assert!(stopped < started, "{door:?}: two leaders at once");
    }
    Ok(())
}

#[tokio::test]
async fn a_short_outage_costs_nothing() -> Result<()> {
    let bench = Bench::new("lease-outage").await?;
    let gate = Gate::new(&bench.config).await?;
    let kept = keep(
        bench
            .candidate_through("leader", gate.config(&bench.config)?)?
            .acquire()
            .await,
    );
    for door in [Door::Refusing, Door::Silent, Door::Refusing] {
        gate.set(door);
        sleep(DEADLINE / 4).await;
        gate.set(Door::Open);
        sleep(DEADLINE).await;
        assert!(!kept.is_finished(), "{:?}", kept.await?.0);
    }
    kept.abort();
    Ok(())
}

#[tokio::test]
async fn clocks_of_others_neither_steal_nor_delay() -> Result<()> {
    let bench = Bench::new("lease-skew").await?;
    let year = SignedDuration::from_hours(24 * 365);
    let created = Lease {
        metadata: ObjectMeta {
            name: Some(NAME.into()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec::default()),
    };
    bench.leases.create(&PostParams::default(), &created).await?;

    // Its clock is a year behind, but it renews: every written time is long expired, and yet it leads.
    let mut wrong = Timestamp::now() - year;
    bench.write_as("behind", wrong).await?;
    let candidate = bench.candidate("patient")?;
    let waiting = tokio::spawn(async move {
        let leadership = candidate.acquire().await;
        (leadership, Instant::now())
    });
    let until = Instant::now() + DURATION * 2;
    while Instant::now() < until {
        sleep(RETRY).await;
        wrong += SignedDuration::from_secs(1);
        bench.write_as("behind", wrong).await?;
        assert!(!waiting.is_finished(), "stolen from a living leader");
    }
    // Its last word is a year ahead; then it dies. It is waited for as long as any other.
    bench.write_as("behind", Timestamp::now() + year).await?;
    let died = Instant::now();
    let (_leadership, taken) = timeout(DURATION * 3, waiting)
        .await
        .context("waits for a date a year ahead")??;
    assert!(taken.duration_since(died) >= DURATION);
    assert!(taken.duration_since(died) <= DURATION + RETRY * 2 + SLACK);
    Ok(())
}

#[tokio::test]
async fn a_holder_that_promised_to_be_silent_for_longer_is_respected() -> Result<()> {
    let bench = Bench::new("lease-promise").await?;
    let lease = Lease {
        metadata: ObjectMeta {
            name: Some(NAME.into()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some("slow".into()),
            lease_duration_seconds: Some(9),
            renew_time: Some(MicroTime(Timestamp::now())),
            ..LeaseSpec::default()
        }),
    };
    bench.leases.create(&PostParams::default(), &lease).await?;
    let start = Instant::now();
    let _leadership = timeout(Duration::from_secs(20), bench.candidate("next")?.acquire()).await?;
    assert!(start.elapsed() >= Duration::from_secs(9), "{:?}", start.elapsed());
    Ok(())
}

#[tokio::test]
async fn a_deleted_lease_ends_the_leader_and_makes_nobody_leader_at_once() -> Result<()> {
    let bench = Bench::new("lease-deleted").await?;
    let kept = keep(bench.candidate("old")?.acquire().await);
    let next = bench.candidate("next")?;
    let waiting = tokio::spawn(async move {
        let leadership = next.acquire().await;
        (leadership, Instant::now())
    });
    sleep(RETRY * 3).await;
    bench.leases.delete(NAME, &DeleteParams::default()).await?;
    let (lost, stopped) = timeout(DURATION, kept).await??;
    assert!(matches!(lost, Lost::Deleted), "{lost}");
    let (_next, started) = timeout(DURATION * 3, waiting).await.context("nobody leads")??;
    assert!(stopped < started, "two leaders at once");
    Ok(())
}

#[tokio::test]
async fn a_label_on_the_lease_does_not_end_the_leader() -> Result<()> {
    let bench = Bench::new("lease-label").await?;
    let kept = keep(bench.candidate("leader")?.acquire().await);
    for n in 0..10 {
        let label = json!({"metadata": {"labels": {"touched": n.to_string()}}});
        bench
            .leases
            .patch(NAME, &PatchParams::default(), &Patch::Merge(label))
            .await?;
        sleep(DEADLINE / 5).await;
    }
    assert!(!kept.is_finished(), "{:?}", kept.await?.0);
    let lease = bench.leases.get(NAME).await?;
    assert_eq!(
        lease
            .metadata
            .labels
            .context("labels")?
            .get("touched")
            .map(String::as_str),
        Some("9")
    );
    kept.abort();
    Ok(())
}

/// Candidates come and go for a while, by release, by crash and by loss of the network. Their times of leadership must
/// not overlap, and there must be many of them.
#[tokio::test]
async fn in_all_the_turmoil_there_are_never_two_leaders() -> Result<()> {
    let bench = Bench::new("lease-turmoil").await?;
    let reigns: Arc<Mutex<Vec<(u32, Instant, Instant)>>> = Arc::default();
    let end = Instant::now() + Duration::from_secs(40);
    let mut tasks = Vec::new();
    for n in 0..4_u32 {
        let gate = Gate::new(&bench.config).await?;
        let through = gate.config(&bench.config)?;
        let mut lives = Vec::new();
        for life in 0..40 {
            lives.push(bench.candidate_through(&format!("c{n}-{life}"), through.clone())?);
        }
        let reigns = reigns.clone();
        tasks.push(tokio::spawn(async move {
            for (life, candidate) in lives.into_iter().enumerate() {
                gate.set(Door::Open);
                let Ok(mut leadership) = tokio::time::timeout_at(end, candidate.acquire()).await else {
                    return;
                };
                let start = Instant::now();
                let _ = timeout(RETRY * 2, leadership.keep()).await;
                match life % 3 {
                    // Finishes in order.
                    0 => {
                        reigns.lock().unwrap().push((n, start, Instant::now()));
                        let _ = leadership.release().await;
                    }
                    // Crashes.
                    1 => reigns.lock().unwrap().push((n, start, Instant::now())),
                    // Is cut off, and believes in its leadership until the protocol says otherwise.
                    _ => {
                        gate.set(if n % 2 == 0 { Door::Silent } else { Door::Refusing });
                        leadership.keep().await;
                        reigns.lock().unwrap().push((n, start, Instant::now()));
                    }
                }
            }
        }));
    }
    for task in tasks {
        task.await?;
    }
    let mut reigns = reigns.lock().unwrap().clone();
    reigns.sort_by_key(|(_, start, _)| *start);
    assert!(reigns.len() >= 5, "only {} reigns", reigns.len());
    for pair in reigns.windows(2) {
        let ((a, _, ended), (b, started, _)) = (pair[0], pair[1]);
        assert!(
            ended <= started,
            "c{a} and c{b} led at the same time, for {:?}",
            ended.duration_since(started)
        );
    }
    Ok(())
}
