//! Leader election over a Lease: of several replicas one reconciles, the others stand by.
//!
//! The protocol is client-go's, so both can take part in one election. Its safety rests on three rules:
//! - Every write is an update of the version that was read, so of two candidates only one can win.
//! - Nobody's wall clock is trusted. A candidate takes the Lease over when it has seen no change of it for the whole
//!   lease duration by its own monotonic clock; the times inside the Lease are for people.
//! - The holder gives up when it could not renew within the renew deadline, counted from *before* the last successful
//!   write was sent. The deadline is shorter than the lease duration, so it stops before anybody else may start.

use std::{fmt, fs, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};
use prometheus::IntGauge;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::{
    backoff::jitter,
    metrics::Metrics,
    telemetry::{Repeating, api_error},
};

/// The name and the rhythm of an election.
#[derive(Clone, Debug)]
pub struct Settings {
    pub namespace: String,
    pub name: String,
    /// Who we are; different for every start of a process.
    pub identity: String,
    /// How long a silent holder is respected.
    pub duration: Duration,
    /// How long a holder that cannot renew goes on. Shorter than `duration`.
    pub renew_deadline: Duration,
    /// How often the holder renews and the others look. Shorter than `renew_deadline`.
    pub retry_period: Duration,
}

/// Host name and a random part: unique even when a pod restarts under its old name, so that a new process never takes
/// its predecessor's Lease for its own.
pub fn identity() -> String {
    let read = |path| fs::read_to_string(path).map(|text| text.trim().to_string());
    let host = read("/proc/sys/kernel/hostname").unwrap_or_else(|_| "unknown".into());
    let random = read("/proc/sys/kernel/random/uuid").unwrap_or_else(|_| {
        let nanos = Timestamp::now().as_nanosecond();
        format!("{}-{nanos:x}", std::process::id())
    });
    format!("{host}_{random}")
}

/// Somebody who wants the Lease.
#[derive(Clone)]
pub struct Candidate {
    api: Api<Lease>,
    settings: Settings,
    status: IntGauge,
}

/// The Lease is ours. Stays true for as long as [`Leadership::keep`] runs and has not returned.
pub struct Leadership {
    candidate: Candidate,
    /// As the server last returned it.
    lease: Lease,
    /// From before the last successful write was sent.
    renewed: Instant,
}

/// Why the Lease is not ours any more.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    #[error("{0} holds the Lease now")]
    Taken(String),
    #[error("the Lease was deleted")]
    Deleted,
    #[error("the Lease could not be renewed within {deadline:?}: {last}")]
    Expired { deadline: Duration, last: String },
}

/// The Lease as a waiting candidate last saw it, and since when it has been like that.
struct Sighting {
    spec: LeaseSpec,
    since: Instant,
}

impl Candidate {
    /// `client` should be the election's own, with calls limited to a fraction of the renew deadline: a renewal must
    /// not wait behind other calls, nor hang in one that gets no answer.
    pub fn new(client: Client, settings: Settings, metrics: &Metrics) -> Self {
        let status = metrics.leader(&settings.name);
        status.set(0);
        Self {
            api: Api::namespaced(client, &settings.namespace),
            settings,
            status,
        }
    }

    /// Waits until the Lease is ours. Errors are logged and tried again.
    pub async fn acquire(&self) -> Leadership {
        let lease = &self.settings.name;
        tracing::info!(lease, identity = self.settings.identity, "waiting for the Lease");
        let mut seen = None;
        let mut trouble = Repeating::default();
        let mut standing_by = Repeating::default();
        loop {
            let before = Instant::now();
            match self.try_acquire(&mut seen).await {
                Ok(Some(held)) => {
                    tracing::info!(lease, identity = self.settings.identity, "this replica leads now");
                    self.status.set(1);
                    return Leadership {
                        candidate: self.clone(),
                        lease: held,
                        renewed: before,
                    };
                }
                Ok(None) => {
                    trouble.clear();
                    let holder = seen.as_ref().and_then(|seen| holder(&seen.spec)).unwrap_or_default();
                    if standing_by.is_news(holder) {
                        tracing::info!(lease, holder, "standing by");
                    }
                }
                Err(error) => {
                    let text = api_error(&error);
                    let refused = matches!(&error, kube::Error::Api(status) if matches!(status.code, 401 | 403));
                    match (trouble.is_news(&text), refused) {
                        (false, _) => {}
                        (true, true) => {
                            tracing::error!(
                                lease,
                                error = text,
                                "not allowed to use the Lease; the Role must permit get, create and update on leases"
                            );
                        }
                        (true, false) => {
                            tracing::warn!(lease, error = text, "cannot read or take the Lease; trying again")
                        }
                    }
                }
            }
            // Well before the period is over, so that a released Lease is taken over within it, requests included; and at once
            // when a silent holder's time is up.
            let next = Instant::now() + jitter(self.settings.retry_period, 0.5, 0.75);
            let expiry = seen.as_ref().and_then(|seen| self.respected_until(seen));
            sleep_until(expiry.map_or(next, |expiry| expiry.min(next))).await;
        }
    }

    /// One look at the Lease, and a try to take it if it is free.
    async fn try_acquire(&self, seen: &mut Option<Sighting>) -> Result<Option<Lease>, kube::Error> {
        let Some(mut lease) = self.api.get_opt(&self.settings.name).await? else {
            // A Lease that somebody deleted says nothing about its holder, who may still be at work.
            if seen.as_ref().is_some_and(|seen| self.respected_until(seen).is_some()) {
                return Ok(None);
            }
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(self.settings.name.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.taken(&LeaseSpec::default())),
            };
            return won(self.api.create(&PostParams::default(), &lease).await);
        };
        let spec = lease.spec.take().unwrap_or_default();
        let sighting = match seen.take() {
            Some(before) if before.spec == spec => before,
            _ => Sighting {
                spec: spec.clone(),
                since: Instant::now(),
            },
        };
        let respected = self.respected_until(&sighting).is_some();
        *seen = Some(sighting);
        if respected {
            return Ok(None);
        }
        lease.spec = Some(self.taken(&spec));
        won(self
            .api
            .replace(&self.settings.name, &PostParams::default(), &lease)
            .await)
    }

    /// When the Lease is free if its holder stays silent; nothing when it is free now. The holder is another one, and may still
    /// be at work.
    fn respected_until(&self, seen: &Sighting) -> Option<Instant> {
        holder(&seen.spec).filter(|holder| *holder != self.settings.identity)?;
        // The holder's own word counts when it is longer than ours: it may run with other settings.
        let promised = seen
            .spec
            .lease_duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok());
        let duration = self
            .settings
            .duration
            .max(Duration::from_secs(promised.unwrap_or_default()));
        let expiry = seen.since + duration;
        (expiry > Instant::now()).then_some(expiry)
    }

    /// The spec with which we become the holder. When a write succeeded whose answer got lost, we hold the Lease
    /// already; that is no second transition.
    fn taken(&self, before: &LeaseSpec) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let transitions = before.lease_transitions.unwrap_or_default();
        let (acquire_time, transitions) = match before.holder_identity.as_deref() {
            None => (now.clone(), transitions),
            Some(holder) if holder == self.settings.identity => {
                (before.acquire_time.clone().unwrap_or_else(|| now.clone()), transitions)
            }
            Some(_) => (now.clone(), transitions.saturating_add(1)),
        };
        LeaseSpec {
            holder_identity: Some(self.settings.identity.clone()),
            lease_duration_seconds: Some(whole_seconds(self.settings.duration)),
            acquire_time: Some(acquire_time),
            renew_time: Some(now),
            lease_transitions: Some(transitions),
            ..before.clone()
        }
    }
}

impl Leadership {
    /// Renews until the Lease is lost; returns only then. What the holder does must stop at once when this returns.
    /// Dropping the future is safe at any moment.
    pub async fn keep(&mut self) -> Lost {
        let mut last = String::from("no attempt was made");
        let mut next = self.renewed + self.candidate.settings.retry_period;
        loop {
            let deadline = self.renewed + self.candidate.settings.renew_deadline;
            sleep_until(next.min(deadline)).await;
            let before = Instant::now();
            if before >= deadline {
                let deadline = self.candidate.settings.renew_deadline;
                return self.lose(Lost::Expired { deadline, last });
            }
            match timeout_at(deadline, self.renew()).await {
                Ok(Ok(Renewal::Done(lease))) => {
                    self.lease = lease;
                    self.renewed = before;
                }
                Ok(Ok(Renewal::Changed(lease))) => {
                    // Somebody touched it (a label, an annotation) without taking it: renew on top of that, at once.
                    self.lease = lease;
                    last = "it was changed again and again".into();
                    next = before + RUSH;
                    continue;
                }
                Ok(Ok(Renewal::Lost(lost))) => return self.lose(lost),
                Ok(Err(error)) => {
                    last = api_error(&error);
                    tracing::warn!(
                        lease = self.candidate.settings.name,
                        error = last,
                        "cannot renew the Lease; trying again"
                    );
                }
                Err(_) => last = "the API server does not answer".into(),
            }
            next = before + self.candidate.settings.retry_period;
        }
    }

    fn lose(&self, lost: Lost) -> Lost {
        self.candidate.status.set(0);
        lost
    }

    async fn renew(&self) -> Result<Renewal, kube::Error> {
        let Candidate { api, settings, .. } = &self.candidate;
        let mut lease = self.lease.clone();
        if let Some(spec) = &mut lease.spec {
            spec.renew_time = Some(MicroTime(Timestamp::now()));
        }
        match api.replace(&settings.name, &PostParams::default(), &lease).await {
            Ok(lease) => Ok(Renewal::Done(lease)),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                let Some(lease) = api.get_opt(&settings.name).await? else {
                    return Ok(Renewal::Lost(Lost::Deleted));
                };
                match lease.spec.as_ref().and_then(holder) {
                    Some(holder) if holder == settings.identity => Ok(Renewal::Changed(lease)),
                    Some(holder) => Ok(Renewal::Lost(Lost::Taken(holder.to_string()))),
                    None => Ok(Renewal::Lost(Lost::Taken("nobody".into()))),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Gives the Lease back, so that another replica need not wait for it to expire. To be called when nothing that
    /// it protects runs any more. A failure only costs the others that wait.
    pub async fn release(mut self) -> Result<(), kube::Error> {
        self.candidate.status.set(0);
        // A renewal that was cut off may have changed the version.
        for _ in 0..2 {
            let Candidate { api, settings, .. } = &self.candidate;
            let mut lease = self.lease.clone();
            let now = MicroTime(Timestamp::now());
            if let Some(spec) = &mut lease.spec {
                spec.holder_identity = Some(String::new());
                spec.lease_duration_seconds = Some(1);
                spec.renew_time = Some(now.clone());
                spec.acquire_time = Some(now);
            }
            match api.replace(&settings.name, &PostParams::default(), &lease).await {
                Ok(_) => {
                    tracing::info!(lease = settings.name, "Lease released");
                    return Ok(());
                }
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    let current = api.get(&settings.name).await?;
                    let ours = current.spec.as_ref().and_then(holder) == Some(&settings.identity);
                    if !ours {
                        return Ok(());
                    }
                    self.lease = current;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Wait after a renewal that met somebody else's harmless change.
const RUSH: Duration = Duration::from_millis(100);

enum Renewal {
    Done(Lease),
    Changed(Lease),
    Lost(Lost),
}

/// A conflict means that another candidate was faster.
fn won(result: Result<Lease, kube::Error>) -> Result<Option<Lease>, kube::Error> {
    match result {
        Ok(lease) => Ok(Some(lease)),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
        Err(error) => Err(error),
    }
}

/// Nobody, when the Lease was released: that leaves an empty name.
fn holder(spec: &LeaseSpec) -> Option<&str> {
    spec.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

fn whole_seconds(duration: Duration) -> i32 {
    let up = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    i32::try_from(up).unwrap_or(i32::MAX).max(1)
}

impl fmt::Debug for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidate")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership")
            .field("candidate", &self.candidate)
            .finish_non_exhaustive()
    }
}

/// When things happen, by a clock that is exact. That they happen on a real API server too is tested there.
#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::body::{Body, to_bytes};
    use http::{Method, Request, Response, StatusCode};
    use jiff::SignedDuration;
    use tokio::{
        task::{JoinHandle, JoinSet},
        time::{sleep, timeout},
    };
    use tower::BoxError;

    use super::*;
    use crate::client::{Limits, over};

    const DURATION: Duration = Duration::from_secs(6);
    const DEADLINE: Duration = Duration::from_secs(4);
    const RETRY: Duration = Duration::from_millis(500);
    /// What every call takes.
    const LATENCY: Duration = Duration::from_millis(20);

    /// An API server with one Lease, on which a write succeeds only for the version that its writer has read.
    #[derive(Clone, Default)]
    struct Server(Arc<Mutex<Stored>>);

    #[derive(Default)]
    struct Stored {
        lease: Option<Lease>,
        version: u64,
    }

    impl Stored {
        fn store(&mut self, mut lease: Lease) -> Lease {
            self.version += 1;
            lease.metadata.resource_version = Some(self.version.to_string());
            self.lease.insert(lease).clone()
        }

        fn answer(&mut self, method: &Method, body: &[u8]) -> Result<Lease, StatusCode> {
            let sent = || serde_json::from_slice::<Lease>(body).unwrap();
            match (method, &self.lease) {
                (&Method::GET, Some(lease)) => Ok(lease.clone()),
                (&Method::POST, None) => Ok(self.store(sent())),
                (&Method::PUT, Some(lease)) if lease.metadata.resource_version == sent().metadata.resource_version => {
                    Ok(self.store(sent()))
                }
                (_, Some(_)) => Err(StatusCode::CONFLICT),
                (_, None) => Err(StatusCode::NOT_FOUND),
            }
        }
    }

    /// The way from one candidate to the server.
    #[derive(Clone, Copy, Debug)]
    enum Door {
        Open,
        Refusing,
        /// What is sent is lost, and only a timeout finds that out.
        Silent,
    }

    impl Server {
        fn candidate(&self, identity: &str) -> Candidate {
            self.candidate_through(&Arc::new(Mutex::new(Door::Open)), identity)
        }

        fn candidate_through(&self, door: &Arc<Mutex<Door>>, identity: &str) -> Candidate {
            let (server, door) = (self.clone(), door.clone());
            let service = tower::service_fn(move |request| {
                let (server, door) = (server.clone(), door.clone());
                async move {
                    sleep(LATENCY).await;
                    let door = *door.lock().unwrap();
                    match door {
                        Door::Open => server.answer(request).await,
                        Door::Refusing => Err("connection refused".into()),
                        Door::Silent => std::future::pending().await,
                    }
                }
            });
            let limits = Limits {
                connect: DEADLINE / 2,
                response: DEADLINE / 2,
                call: DEADLINE / 2,
            };
            let settings = Settings {
                namespace: "ns".into(),
                name: "test".into(),
                identity: identity.into(),
                duration: DURATION,
                renew_deadline: DEADLINE,
                retry_period: RETRY,
            };
            let metrics = Metrics::new("0").unwrap();
            Candidate::new(over(service, limits, &metrics), settings, &metrics)
        }

        async fn answer(&self, request: Request<kube::client::Body>) -> Result<Response<Body>, BoxError> {
            let (head, body) = request.into_parts();
            let body = to_bytes(Body::new(body), usize::MAX).await?;
            let answer = self.0.lock().unwrap().answer(&head.method, &body);
            let (code, text) = match answer {
                Ok(lease) => (StatusCode::OK, serde_json::to_string(&lease)?),
                Err(code) => {
                    let reason = code.canonical_reason().unwrap().replace(' ', "");
                    let status = serde_json::json!({
                        "kind": "Status", "apiVersion": "v1", "status": "Failure",
                        "code": code.as_u16(), "reason": reason, "message": reason,
                    });
                    (code, status.to_string())
                }
            };
            Ok(Response::builder().status(code).body(Body::from(text))?)
        }

        /// What a foreign participant writes, whatever clock it has.
        fn write_as(&self, holder: &str, renewed: Timestamp) {
            let mut stored = self.0.lock().unwrap();
            let mut lease = stored.lease.clone().unwrap_or_default();
            let spec = lease.spec.get_or_insert_default();
            spec.holder_identity = Some(holder.into());
            spec.renew_time = Some(MicroTime(renewed));
            stored.store(lease);
        }

        fn delete(&self) {
            self.0.lock().unwrap().lease = None;
        }

        fn spec(&self) -> LeaseSpec {
            self.0.lock().unwrap().lease.clone().unwrap().spec.unwrap()
        }
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

    /// Times all over the rhythm of an election, so that what happens after them meets each of its moments.
    fn phases() -> impl Iterator<Item = Duration> {
        (0..20).map(|n| RETRY * 3 + RETRY * n / 20)
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_leads_goes_on_leading() {
        let server = Server::default();
        let mut candidates = JoinSet::new();
        for identity in ["a", "b", "c", "d", "e"] {
            let candidate = server.candidate(identity);
            candidates.spawn(async move { candidate.acquire().await });
        }
        let kept = keep(candidates.join_next().await.unwrap().unwrap());
        let second = timeout(DURATION * 20, candidates.join_next()).await;
        assert!(second.is_err(), "two leaders at once");
        assert!(!kept.is_finished(), "{}", kept.await.unwrap().0);
        assert_eq!(server.spec().lease_transitions, Some(0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_leader_is_replaced_after_the_lease_duration_and_soon_after() {
        // The waits between two looks are random.
        for _ in 0..20 {
            let server = Server::default();
            let _dead = server.candidate("dead").acquire().await;
            let died = Instant::now();
            let _next = server.candidate("next").acquire().await;
            let took = died.elapsed();
            assert!((DURATION..=DURATION + LATENCY * 4).contains(&took), "{took:?}");
            assert_eq!(server.spec().lease_transitions, Some(1));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_released_lease_is_taken_over_within_a_retry_period() {
        for phase in phases() {
            let server = Server::default();
            let first = server.candidate("first").acquire().await;
            let waiting = wait(server.candidate("second"));
            sleep(phase).await;
            assert!(!waiting.is_finished());
            first.release().await.unwrap();
            let released = Instant::now();
            let (_second, taken) = waiting.await.unwrap();
            assert!(taken - released <= RETRY, "{phase:?}: {:?}", taken - released);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_was_replaced_notices_with_its_next_renewal() {
        for phase in phases() {
            let server = Server::default();
            let kept = keep(server.candidate("old").acquire().await);
            sleep(phase).await;
            server.write_as("intruder", Timestamp::now());
            let taken = Instant::now();
            let (lost, stopped) = kept.await.unwrap();
            assert!(matches!(&lost, Lost::Taken(holder) if holder == "intruder"), "{lost}");
            assert!(
                stopped - taken <= RETRY + LATENCY * 2,
                "{phase:?}: {:?}",
                stopped - taken
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_cut_off_from_the_server_stops_at_its_deadline_before_another_starts() {
        for (door, phase) in [Door::Refusing, Door::Silent]
            .into_iter()
            .flat_map(|door| phases().map(move |phase| (door, phase)))
        {
            let server = Server::default();
            let way = Arc::new(Mutex::new(Door::Open));
            let kept = keep(server.candidate_through(&way, "cut-off").acquire().await);
            let waiting = wait(server.candidate("next"));
            sleep(phase).await;
            *way.lock().unwrap() = door;
            let cut = Instant::now();
            let (lost, stopped) = kept.await.unwrap();
            assert!(matches!(lost, Lost::Expired { .. }), "{door:?}: {lost}");
            // The last renewal was sent up to a period earlier, and what was on its way is lost.
            let soonest = DEADLINE - RETRY - LATENCY * 2;
            assert!(
                (soonest..=DEADLINE).contains(&(stopped - cut)),
                "{door:?}, {phase:?}: {:?}",
                stopped - cut
            );
            let (_next, started) = waiting.await.unwrap();
            assert!(stopped < started, "{door:?}, {phase:?}: two leaders at once");
            assert!(
                started - cut <= DURATION + RETRY,
                "{door:?}, {phase:?}: {:?}",
                started - cut
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_outage_costs_nothing() {
        // A renewal that is lost in silence costs the limit of a call as well.
        for (door, outage) in [(Door::Refusing, DEADLINE / 2), (Door::Silent, DEADLINE / 4)] {
            let server = Server::default();
            let way = Arc::new(Mutex::new(Door::Open));
            let kept = keep(server.candidate_through(&way, "leader").acquire().await);
            let waiting = wait(server.candidate("next"));
            for phase in phases() {
                *way.lock().unwrap() = door;
                sleep(outage).await;
                *way.lock().unwrap() = Door::Open;
                sleep(DURATION * 2 + phase).await;
                assert!(!kept.is_finished(), "{door:?}, {phase:?}: {}", kept.await.unwrap().0);
                assert!(!waiting.is_finished(), "{door:?}, {phase:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn clocks_of_others_neither_steal_nor_delay() {
        let server = Server::default();
        let year = SignedDuration::from_hours(24 * 365);
        // Its clock is a year behind, but it renews: every written time is long expired, and yet it leads.
        let mut wrong = Timestamp::now() - year;
        server.write_as("behind", wrong);
        let waiting = wait(server.candidate("patient"));
        for _ in 0..100 {
            sleep(RETRY).await;
            wrong += SignedDuration::from_secs(1);
            server.write_as("behind", wrong);
            assert!(!waiting.is_finished(), "stolen from a living leader");
        }
        // Its last word is a year ahead; then it dies. It is waited for as long as any other.
        server.write_as("behind", Timestamp::now() + year);
        let died = Instant::now();
        let (_leadership, taken) = waiting.await.unwrap();
        let took = taken - died;
        assert!((DURATION..=DURATION + RETRY).contains(&took), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_deleted_lease_ends_the_leader_and_makes_nobody_leader_before_it_would_have_expired() {
        for phase in phases() {
            let server = Server::default();
            let kept = keep(server.candidate("old").acquire().await);
            let waiting = wait(server.candidate("next"));
            sleep(phase).await;
            server.delete();
            let deleted = Instant::now();
            let (lost, stopped) = kept.await.unwrap();
            assert!(matches!(lost, Lost::Deleted), "{lost}");
            assert!(
                stopped - deleted <= RETRY + LATENCY * 2,
                "{phase:?}: {:?}",
                stopped - deleted
            );
            // It counts from the last renewal that it has seen.
            let (_next, started) = waiting.await.unwrap();
            assert!(
                (DURATION - RETRY * 2..=DURATION + RETRY).contains(&(started - deleted)),
                "{phase:?}: {:?}",
                started - deleted
            );
        }
    }

    #[test]
    fn every_start_has_an_identity_of_its_own() {
        let (a, b) = (identity(), identity());
        assert_ne!(a, b);
        assert!(a.contains('_') && a.len() > 37, "{a}");
    }

    #[test]
    fn a_duration_is_never_rounded_down() {
        assert_eq!(whole_seconds(Duration::from_secs(15)), 15);
        assert_eq!(whole_seconds(Duration::from_millis(1500)), 2);
        assert_eq!(whole_seconds(Duration::from_millis(10)), 1);
    }
}
