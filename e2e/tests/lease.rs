//! Leader election on the real API server: whatever happens, there is at most one leader, and in the end there is one again.
//! How soon is a matter of capt-runtime's own tests, whose clock no machine is too slow for.

mod gate;

use std::{
    cell::RefCell,
    collections::BTreeSet,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail};
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
    runtime::wait::await_condition,
};
use serde_json::json;
use tokio::{
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, timeout},
};

/// How long a holder is respected, and how long it goes on without a renewal.
#[derive(Clone, Copy)]
struct Terms {
    duration: Duration,
    deadline: Duration,
}

/// For tests that wait for a Lease to expire. Whoever renews it may lose it for no other reason than a slow machine.
const SHORT: Terms = Terms {
    duration: Duration::from_secs(6),
    deadline: Duration::from_secs(4),
};
/// Nothing expires before the test has lost its patience, so what ends a leadership is what the test did to it.
const LONG: Terms = Terms {
    duration: Duration::from_secs(1200),
    deadline: Duration::from_secs(900),
};
const RETRY: Duration = Duration::from_millis(500);
/// Reached only by a failing test.
const PATIENCE: Duration = Duration::from_secs(300);
const NAME: &str = "capt-test";

struct Bench {
    config: Config,
    leases: Api<Lease>,
    namespace: String,
    metrics: Arc<Metrics>,
    terms: Terms,
}

impl Bench {
    async fn new(prefix: &str, terms: Terms) -> Result<Self> {
        let client = testing::client().await?;
        let namespace = testing::namespace(&client, prefix).await?;
        Ok(Self {
            config: Config::infer().await?,
            leases: Api::namespaced(client, &namespace),
            namespace,
            metrics: Metrics::new("test")?,
            terms,
        })
    }

    fn client(&self, config: Config) -> Result<Client> {
        let half = self.terms.deadline / 2;
        let limits = Limits {
            connect: half,
            response: half,
            call: half,
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
            duration: self.terms.duration,
            renew_deadline: self.terms.deadline,
            retry_period: RETRY,
        };
        Ok(Candidate::new(self.client(config)?, settings, &self.metrics))
    }

    /// How often a candidate asked for the Lease and was answered like this. The holder does not ask while it can renew.
    fn answers(&self, code: u16) -> Result<u32> {
        let text = self.metrics.render()?;
        let start = format!(r#"rest_client_requests_total{{code="{code}","#);
        let line = text
            .lines()
            .find(|line| line.starts_with(&start) && line.contains(r#"method="GET""#));
        let count = line.and_then(|line| line.rsplit(' ').next()).unwrap_or("0");
        Ok(count.parse()?)
    }

    async fn until_answered(&self, code: u16, times: u32) -> Result<()> {
        let counting = async {
            while self.answers(code)? < times {
                sleep(RETRY / 10).await;
            }
            anyhow::Ok(())
        };
        within(counting).await?
    }

    /// Waits until the holder has renewed so often from now on.
    async fn until_renewed(&self, times: usize) -> Result<()> {
        let seen = RefCell::new(BTreeSet::new());
        let renewed = await_condition(self.leases.clone(), NAME, |lease: Option<&Lease>| {
            let spec = lease.and_then(|lease| lease.spec.as_ref());
            let mut seen = seen.borrow_mut();
            seen.extend(spec.and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0));
            seen.len() > times
        });
        within(renewed).await??;
        Ok(())
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
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": self.terms.duration.as_secs(),
                "renewTime": MicroTime(renewed),
            },
        });
        self.leases
            .patch(NAME, &PatchParams::default(), &Patch::Merge(body))
            .await?;
        Ok(())
    }
}

async fn within<T>(what: impl Future<Output = T>) -> Result<T> {
    timeout(PATIENCE, what).await.context("it does not happen")
}

/// Renews in the background; the handle yields the reason of the loss.
fn keep(mut leadership: Leadership) -> JoinHandle<(Lost, Instant)> {
    tokio::spawn(async move {
        let lost = leadership.keep().await;
        (lost, Instant::now())
    })
}

/// Waits for the Lease in the background; the handle yields when it was taken.
fn wait(candidate: Candidate) -> JoinHandle<(Leadership, Instant)> {
    tokio::spawn(async move {
        let leadership = candidate.acquire().await;
        (leadership, Instant::now())
    })
}

#[tokio::test]
async fn of_many_candidates_one_leads() -> Result<()> {
    let bench = Bench::new("lease-many", LONG).await?;
    let leaders = Arc::new(AtomicU32::new(0));
    let mut tasks = JoinSet::new();
    for n in 0..5 {
        let candidate = bench.candidate(&format!("c{n}"))?;
        let leaders = leaders.clone();
        tasks.spawn(async move {
            let mut leadership = candidate.acquire().await;
            leaders.fetch_add(1, Ordering::SeqCst);
            leadership.keep().await
        });
    }
    // The others look at it again and again.
    bench.until_answered(200, 20).await?;
    bench.until_renewed(5).await?;
    assert_eq!(leaders.load(Ordering::SeqCst), 1);
    let spec = bench.spec().await?;
    assert!(spec.holder_identity.is_some_and(|holder| holder.starts_with('c')));
    assert_eq!(spec.lease_transitions, Some(0));
    assert_eq!(spec.lease_duration_seconds, Some(1200));
    let (acquired, renewed) = (
        spec.acquire_time.context("acquireTime")?,
        spec.renew_time.context("renewTime")?,
    );
    assert!(renewed.0 > acquired.0, "it was renewed");
    Ok(())
}

#[tokio::test]
async fn a_dead_leader_is_replaced_after_the_lease_duration_and_not_before() -> Result<()> {
    let bench = Bench::new("lease-dead", SHORT).await?;
    let _dead = bench.candidate("dead")?.acquire().await;
    let died = Instant::now();
    let _next = within(bench.candidate("next")?.acquire()).await?;
    assert!(
        died.elapsed() >= SHORT.duration,
        "taken over after {:?}",
        died.elapsed()
    );
    assert_eq!(bench.holder().await?, "next");
    assert_eq!(bench.spec().await?.lease_transitions, Some(1));
    Ok(())
}

#[tokio::test]
async fn a_released_lease_is_taken_over_before_it_expires() -> Result<()> {
    let bench = Bench::new("lease-release", LONG).await?;
    let first = bench.candidate("first")?.acquire().await;
    assert!(
        bench
            .metrics
            .render()?
            .contains(&format!(r#"leader_election_master_status{{name="{NAME}"}} 1"#))
    );
    let waiting = wait(bench.candidate("second")?);
    bench.until_answered(200, 2).await?;
    assert!(!waiting.is_finished());
    first.release().await?;
    let _second = within(waiting).await??;
    assert_eq!(bench.holder().await?, "second");
    Ok(())
}

#[tokio::test]
async fn a_release_leaves_no_holder_and_spares_another_one() -> Result<()> {
    let bench = Bench::new("lease-empty", LONG).await?;
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
async fn a_leader_that_was_replaced_notices() -> Result<()> {
    let bench = Bench::new("lease-taken", LONG).await?;
    let kept = keep(bench.candidate("old")?.acquire().await);
    bench.until_renewed(1).await?;
    bench.write_as("intruder", Timestamp::now()).await?;
    let (lost, _) = within(kept).await??;
    assert!(matches!(&lost, Lost::Taken(holder) if holder == "intruder"), "{lost}");
    Ok(())
}

#[tokio::test]
async fn a_leader_cut_off_from_the_server_stops_before_another_starts() -> Result<()> {
    for door in [Door::Refusing, Door::Silent] {
        let bench = Bench::new("lease-cut", SHORT).await?;
        let gate = Gate::new(&bench.config).await?;
        let kept = keep(
            bench
                .candidate_through("cut-off", gate.config(&bench.config)?)?
                .acquire()
                .await,
        );
        let waiting = wait(bench.candidate("next")?);
        bench.until_answered(200, 2).await?;
        gate.set(door);
        let (lost, stopped) = within(kept).await.context("the old leader goes on")??;
        assert!(matches!(lost, Lost::Expired { .. }), "{door:?}: {lost}");
        let (_next, started) = within(waiting).await.context("nobody leads")??;
        assert!(stopped < started, "{door:?}: two leaders at once");
    }
    Ok(())
}

#[tokio::test]
async fn clocks_of_others_neither_steal_nor_delay() -> Result<()> {
    let bench = Bench::new("lease-skew", SHORT).await?;
    let created = Lease {
        metadata: ObjectMeta {
            name: Some(NAME.into()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec::default()),
    };
    bench.leases.create(&PostParams::default(), &created).await?;
    let year = SignedDuration::from_hours(24 * 365);
    // A time that is long over, and one that is long to come: each is waited for as long as any other.
    for (holder, time) in [("behind", Timestamp::now() - year), ("ahead", Timestamp::now() + year)] {
        let died = Instant::now();
        bench.write_as(holder, time).await?;
        let next = bench.candidate(&format!("after-{holder}"))?;
        let _next = within(next.acquire()).await?;
        assert!(died.elapsed() >= SHORT.duration, "{holder}: {:?}", died.elapsed());
    }
    Ok(())
}

#[tokio::test]
async fn a_holder_that_promised_to_be_silent_for_longer_is_respected() -> Result<()> {
    let bench = Bench::new("lease-promise", SHORT).await?;
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
    let _leadership = within(bench.candidate("next")?.acquire()).await?;
    assert!(start.elapsed() >= Duration::from_secs(9), "{:?}", start.elapsed());
    Ok(())
}

#[tokio::test]
async fn a_deleted_lease_ends_the_leader_and_makes_nobody_leader_at_once() -> Result<()> {
    let bench = Bench::new("lease-deleted", LONG).await?;
    let kept = keep(bench.candidate("old")?.acquire().await);
    let waiting = wait(bench.candidate("next")?);
    // Whoever has not seen it cannot know of its holder.
    bench.until_answered(200, 1).await?;
    bench.leases.delete(NAME, &DeleteParams::default()).await?;
    let (lost, _) = within(kept).await??;
    assert!(matches!(lost, Lost::Deleted), "{lost}");
    // From here on only the other one asks.
    bench.until_answered(404, bench.answers(404)? + 3).await?;
    assert!(!waiting.is_finished(), "the holder may still have been at work");
    assert!(bench.leases.get_opt(NAME).await?.is_none());
    Ok(())
}

#[tokio::test]
async fn a_label_on_the_lease_does_not_end_the_leader() -> Result<()> {
    let bench = Bench::new("lease-label", LONG).await?;
    let mut kept = keep(bench.candidate("leader")?.acquire().await);
    for n in 0..10 {
        let label = json!({"metadata": {"labels": {"touched": n.to_string()}}});
        bench
            .leases
            .patch(NAME, &PatchParams::default(), &Patch::Merge(label))
            .await?;
        tokio::select! {
            renewed = bench.until_renewed(1) => renewed?,
            ended = &mut kept => bail!("{}", ended?.0),
        }
    }
    let lease = bench.leases.get(NAME).await?;
    let labels = lease.metadata.labels.context("labels")?;
    assert_eq!(labels.get("touched").map(String::as_str), Some("9"));
    assert_eq!(lease.spec.and_then(|spec| spec.lease_transitions), Some(0));
    Ok(())
}

/// Every way in which a leadership ends happens twice, and one more begins after them.
const REIGNS: usize = 7;

/// Candidates come and go, by release, by crash and by loss of the network. Their times of leadership must not overlap.
#[tokio::test]
async fn in_all_the_turmoil_there_are_never_two_leaders() -> Result<()> {
    let bench = Bench::new("lease-turmoil", SHORT).await?;
    let reigns: watch::Sender<Vec<(u32, Instant, Instant)>> = watch::Sender::default();
    let mut tasks = JoinSet::new();
    for n in 0..4 {
        let gate = Gate::new(&bench.config).await?;
        let through = gate.config(&bench.config)?;
        let mut lives = Vec::new();
        for life in 0..REIGNS {
            lives.push(bench.candidate_through(&format!("c{n}-{life}"), through.clone())?);
        }
        let reigns = reigns.clone();
        tasks.spawn(async move {
            for candidate in lives {
                gate.set(Door::Open);
                let mut leadership = candidate.acquire().await;
                let start = Instant::now();
                let ended = || reigns.send_modify(|reigns| reigns.push((n, start, Instant::now())));
                let _ = timeout(RETRY * 2, leadership.keep()).await;
                let before = reigns.borrow().len();
                match before % 3 {
                    // Finishes in order.
                    0 => {
                        ended();
                        let _ = leadership.release().await;
                    }
                    // Crashes.
                    1 => ended(),
                    // Is cut off, and believes in its leadership until the protocol says otherwise.
                    _ => {
                        gate.set(if before < 3 { Door::Silent } else { Door::Refusing });
                        leadership.keep().await;
                        ended();
                    }
                }
            }
        });
    }
    let mut ended = reigns.subscribe();
    let mut reigns = within(ended.wait_for(|reigns| reigns.len() >= REIGNS)).await??.clone();
    reigns.sort_by_key(|(_, start, _)| *start);
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
