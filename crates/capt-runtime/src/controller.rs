//! The loop of a controller: takes keys from its queue, runs a bounded number of passes at once, and decides from each
//! outcome when the object is looked at again.

use std::{collections::HashMap, fmt, future::Future, sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::{
    task::{Id, JoinError, JoinSet},
    time::{Instant, MissedTickBehavior, error::Elapsed, interval},
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span, field};

use crate::{
    backoff::{Pace, Series, jitter},
    error::{Class, Classified},
    health::{Health, PULSE, Pulse},
    key::Key,
    metrics::{ControllerMetrics, Metrics},
    queue::Queue,
    telemetry::{chain, panic_text},
};

/// When a pass that succeeded wants to look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// When something changes. The usual case.
    OnEvent,
    /// At a deadline, or when something changes before.
    At(Timestamp),
}

/// One pass over one object.
pub trait Reconciler: Send + Sync + 'static {
    type Error: Classified + Send + 'static;

    /// Brings the object one step closer to what is wished. Passes over one object never overlap. The object may be
    /// gone: then there is nothing to do, and success forgets its failures. The span of the pass has an empty field
    /// `generation` for the reconciler to fill.
    fn reconcile(&self, key: &Key) -> impl Future<Output = Result<Wake, Self::Error>> + Send;

    /// Whether the caches lack a write of an earlier pass over this object. The pass then waits for the watch: from the
    /// state before that write it could only be refused, or do the same thing twice.
    fn is_behind(&self, _key: &Key) -> bool {
        false
    }
}

/// A stage that passes by itself is told only when it lasts this long: each one told is a write here, and one more race
/// for every other controller of the same object. Failures and ends are told at once.
pub const SETTLE: jiff::SignedDuration = jiff::SignedDuration::from_secs(5);

/// When a stage that began at `since` has lasted long enough to be told; `None` when it has, and also when nobody knows
/// since when it lasts, or the clocks differ by more than that: silence must end.
pub fn settles_at(since: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
    lasts_at(since, SETTLE, now)
}

/// The same for what has to last another time than [`SETTLE`].
pub(crate) fn lasts_at(since: Option<Timestamp>, time: jiff::SignedDuration, now: Timestamp) -> Option<Timestamp> {
    since
        .filter(|since| (-time..time).contains(&now.duration_since(*since)))
        .and_then(|since| since.checked_add(time).ok())
}

/// How much a controller may do at once, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Passes at the same time.
    pub concurrency: usize,
    /// The longest that a pass may take.
    pub timeout: Duration,
    /// How often every object is looked at without a reason; zero for never.
    pub resync: Duration,
}

/// A deadline that has passed already is looked at after this time, so that a plan that keeps naming it cannot spin.
const OVERDUE: Duration = Duration::from_secs(1);

/// A pass that waits for the watch to catch up is looked at after this time at the latest. The event itself comes sooner.
const CATCH_UP: Duration = Duration::from_secs(5);

/// So many races are not lost in a row by chance.
const LOST_TOO_OFTEN: u32 = 8;

/// A controller, ready to run.
pub struct Controller<R> {
    name: &'static str,
    queue: Queue,
    reconciler: Arc<R>,
    settings: Settings,
    /// All objects of the controller's kind, for the resync.
    objects: Box<dyn Fn() -> Vec<Key> + Send + Sync>,
    metrics: ControllerMetrics,
}

/// What a pass ended with.
enum Outcome<E> {
    Success(Wake),
    Error(E),
    TimedOut,
    Panicked(String),
}

impl<R: Reconciler> Controller<R> {
    /// `name` is the kind in lower case; it labels the metrics and the log.
    pub fn new(
        name: &'static str,
        queue: Queue,
        reconciler: R,
        settings: Settings,
        objects: impl Fn() -> Vec<Key> + Send + Sync + 'static,
        metrics: &Metrics,
    ) -> Self {
        Self {
            name,
            queue,
            reconciler: Arc::new(reconciler),
            settings,
            objects: Box::new(objects),
            metrics: metrics.controller(name, settings.concurrency),
        }
    }

    /// Registers the loop with `health`: it must turn, and no pass may outlive its deadline by far.
    pub(crate) fn watch_over(&self, health: &Health) -> Pulse {
        let (name, queue, limit) = (self.name, self.queue.clone(), self.settings.timeout * 2 + PULSE * 2);
        health.probe(move || {
            let stuck: Vec<_> = queue.running().into_iter().filter(|(_, age)| *age > limit).collect();
            match stuck.first() {
                None => Ok(()),
                Some((key, age)) => Err(format!(
                    "{name}: {} pass(es) outlived the deadline; {key} has been in work for {} s",
                    stuck.len(),
                    age.as_secs()
                )),
            }
        });
        health.pulse(format!("controller {name}"))
    }

    /// Runs until `stop`, then takes no new work and returns when the running passes have ended.
    pub(crate) async fn run(self, stop: CancellationToken, pulse: Pulse) {
        let mut passes = JoinSet::new();
        let mut ledger = Ledger::default();
        let mut ticks = interval(PULSE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut resync_at = Instant::now() + self.resync_interval();
        loop {
            let has_room = passes.len() < self.settings.concurrency;
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                _ = ticks.tick() => pulse.beat(),
                Some(ended) = passes.join_next_with_id() => self.settle(ended, &mut ledger),
                next = self.queue.next(), if has_room => match next {
                    Some(key) => self.start(key, &mut passes, &mut ledger),
                    None => break,
                },
                () = self.queue.promote_due(), if !has_room => {}
                () = tokio::time::sleep_until(resync_at), if !self.settings.resync.is_zero() => {
                    self.resync();
                    resync_at = Instant::now() + self.resync_interval();
                }
            }
        }
        self.queue.close();
        while !passes.is_empty() {
            tokio::select! {
                Some(ended) = passes.join_next_with_id() => self.settle(ended, &mut ledger),
                _ = ticks.tick() => pulse.beat(),
            }
        }
    }

    /// Replicas and controllers that start together must not resync together.
    fn resync_interval(&self) -> Duration {
        jitter(self.settings.resync, 0.9, 1.1)
    }

    /// A safety net under the watches. Spread out, so that it is never a burst.
    fn resync(&self) {
        for key in (self.objects)() {
            self.queue.add_after(key, jitter(self.settings.resync, 0.0, 0.1));
        }
    }

    fn start(&self, key: Key, passes: &mut JoinSet<Pass<R::Error>>, ledger: &mut Ledger) {
        if self.reconciler.is_behind(&key) {
            // An event that arrived since the key was handed out makes it run again at once.
            self.queue.done(&key);
            self.queue.add_after(key, CATCH_UP);
            return;
        }
        let span = tracing::info_span!(
            "reconcile",
            kind = self.name,
            namespace = key.namespace(),
            name = key.name(),
            generation = field::Empty,
        );
        let reconciler = self.reconciler.clone();
        let limit = self.settings.timeout;
        let pass = {
            let key = key.clone();
            async move {
                let start = Instant::now();
                let ended = tokio::time::timeout(limit, reconciler.reconcile(&key)).await;
                (ended, start.elapsed())
            }
            .instrument(span.clone())
        };
        // A task of its own, so that a panic ends this pass and nothing else.
        let id = passes.spawn(pass).id();
        ledger.running.insert(id, (key, span));
        self.metrics.active.inc();
    }

    fn settle(&self, ended: Result<(Id, Pass<R::Error>), JoinError>, ledger: &mut Ledger) {
        let (id, outcome, took) = match ended {
            Ok((id, (Ok(Ok(wake)), took))) => (id, Outcome::Success(wake), Some(took)),
            Ok((id, (Ok(Err(error)), took))) => (id, Outcome::Error(error), Some(took)),
            Ok((id, (Err(_), took))) => (id, Outcome::TimedOut, Some(took)),
            Err(error) => {
                let id = error.id();
                let text = match error.try_into_panic() {
                    Ok(payload) => panic_text(&*payload).to_string(),
                    Err(_) => "cancelled".into(),
                };
                (id, Outcome::Panicked(text), None)
            }
        };
        let Some((key, span)) = ledger.running.remove(&id) else {
            return;
        };
        self.metrics.active.dec();
        if let Some(took) = took {
            self.metrics.time.observe(took.as_secs_f64());
        }
        // First free the key, so that an event which came during the pass is not behind the timer set below.
        self.queue.done(&key);
        span.in_scope(|| self.follow_up(key, outcome, ledger));
    }

    fn follow_up(&self, key: Key, outcome: Outcome<R::Error>, ledger: &mut Ledger) {
        match outcome {
            Outcome::Success(wake) => {
                ledger.failing.remove(&key);
                tracing::debug!(?wake, "pass succeeded");
                match wake {
                    Wake::OnEvent => self.metrics.success.inc(),
                    Wake::At(deadline) => {
                        self.metrics.requeue_after.inc();
                        self.queue.add_after(key, until(deadline));
                    }
                }
            }
            Outcome::Error(error) => self.follow_up_error(key, &error, ledger),
            Outcome::TimedOut => {
                self.metrics.timeouts.inc();
                let (tries, wait) = self.fail(key, Pace::TRANSIENT, None, ledger);
                tracing::warn!(limit = ?self.settings.timeout, tries, retry_in = ?wait, "pass cut off by its deadline");
            }
            Outcome::Panicked(text) => {
                self.metrics.panics.inc();
                let (tries, wait) = self.fail(key, Pace::TRANSIENT, None, ledger);
                tracing::error!(panic = text, tries, retry_in = ?wait, "pass panicked; this is a bug");
            }
        }
    }

    fn follow_up_error(&self, key: Key, error: &R::Error, ledger: &mut Ledger) {
        let text = chain(error);
        match error.class() {
            Class::Conflict => {
                // Nothing failed: somebody was faster. No error is counted.
                self.metrics.requeue.inc();
                let (tries, wait) = ledger.wait(&key, Pace::CONFLICT, error.retry_after());
                self.queue.retry_after(key, wait);
                if tries.is_multiple_of(LOST_TOO_OFTEN) {
                    tracing::warn!(reason = text, tries, retry_in = ?wait, "lost every race; somebody writes without pause, or the plan is wrong");
                } else {
                    tracing::debug!(reason = text, tries, retry_in = ?wait, "lost a race; planning again");
                }
            }
            Class::Transient => {
                let (tries, wait) = self.fail(key, Pace::TRANSIENT, error.retry_after(), ledger);
                tracing::warn!(error = text, tries, retry_in = ?wait, "pass failed");
            }
            Class::Terminal(reason) => {
                self.metrics.terminal.inc();
                let (tries, wait) = self.fail(key, Pace::TERMINAL, error.retry_after(), ledger);
                tracing::warn!(error = text, reason, tries, look_again_in = ?wait, "waiting for somebody to change something");
            }
            Class::Bug => {
                self.metrics.bugs.inc();
                let (tries, wait) = self.fail(key, Pace::TRANSIENT, error.retry_after(), ledger);
                tracing::error!(error = text, tries, retry_in = ?wait, "pass failed in a way that should be impossible");
            }
        }
    }

    /// Counts an error and schedules the next try; returns the number of tries so far and the wait.
    fn fail(&self, key: Key, pace: Pace, asked: Option<Duration>, ledger: &mut Ledger) -> (u32, Duration) {
        self.metrics.error.inc();
        self.metrics.errors.inc();
        let (tries, wait) = ledger.wait(&key, pace, asked);
        self.queue.retry_after(key, wait);
        (tries, wait)
    }
}

/// How a pass ended by itself or by its deadline, and how long it took.
type Pass<E> = (Result<Result<Wake, E>, Elapsed>, Duration);

/// What the loop remembers: the running passes, and the objects that failed last time. A success, or a pass over an
/// object that is gone, ends the memory of its failures, so nothing piles up.
#[derive(Default)]
struct Ledger {
    running: HashMap<Id, (Key, Span)>,
    failing: HashMap<Key, Failing>,
}

/// An object that failed last time.
struct Failing {
    series: Series,
    /// When it is tried again if no event brings it earlier.
    due: Instant,
}

impl Ledger {
    /// The wait after one more failure of this sort. Another sort of failure starts its own series. The server's own
    /// wish is honoured when it is longer.
    ///
    /// A pass that an event brought before the wait was over leaves that wait as it is: an object that others write often
    /// (our own report of the failure is such a write) would otherwise soon be looked at once in ten minutes, and nobody
    /// would notice that the policy in its way is gone.
    fn wait(&mut self, key: &Key, pace: Pace, asked: Option<Duration>) -> (u32, Duration) {
        let now = Instant::now();
        let fresh = || Failing {
            series: Series::new(pace),
            due: now,
        };
        let failing = self.failing.entry(key.clone()).or_insert_with(fresh);
        if failing.series.pace() != pace {
            *failing = fresh();
        }
        let left = failing.due.saturating_duration_since(now);
        let wait = if left.is_zero() {
            failing.series.fail()
        } else {
            failing.series.count();
            left
        };
        let wait = wait.max(asked.unwrap_or_default());
        failing.due = now + wait;
        (failing.series.tries(), wait)
    }
}

fn until(deadline: Timestamp) -> Duration {
    let left = deadline.duration_since(Timestamp::now());
    Duration::try_from(left).unwrap_or_default().max(OVERDUE)
}

impl<R> fmt::Debug for Controller<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        collections::VecDeque,
        sync::Mutex,
        sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    };

    #[derive(Debug, thiserror::Error)]
    #[error("{0:?}")]
    struct Fault(Class, Option<Duration>);

    impl Classified for Fault {
        fn class(&self) -> Class {
            self.0
        }
        fn retry_after(&self) -> Option<Duration> {
            self.1
        }
    }

    #[derive(Clone, Copy)]
    enum Act {
        Done(Wake),
        Fail(Class),
        FailAsking(Class, Duration),
        Panic,
        Hang,
        Take(Duration),
    }

    #[test]
    fn a_stage_is_told_when_it_has_lasted_and_when_nobody_knows() {
        let at = |second| Timestamp::from_second(second).unwrap();
        for (since, told_at) in [
            (Some(100), Some(105)),
            (Some(96), Some(101)),
            (Some(95), None),
            (Some(0), None),
            (None, None),
            // The API server's clock is a little ahead, or far ahead.
            (Some(102), Some(107)),
            (Some(200), None),
        ] {
            assert_eq!(settles_at(since.map(at), at(100)), told_at.map(at), "{since:?}");
        }
    }

    /// Plays a script and records when each pass began; the last act repeats.
    #[derive(Clone)]
    struct Script {
        acts: Arc<Mutex<VecDeque<Act>>>,
        behind: Arc<AtomicBool>,
        begun: Arc<Mutex<Vec<(Key, Instant)>>>,
        ended: Arc<AtomicUsize>,
        parallel: Arc<AtomicUsize>,
        most_parallel: Arc<AtomicUsize>,
    }

    impl Script {
        fn new(acts: &[Act]) -> Self {
            Self {
                acts: Arc::new(Mutex::new(acts.iter().copied().collect())),
                behind: Arc::default(),
                begun: Arc::default(),
                ended: Arc::default(),
                parallel: Arc::default(),
                most_parallel: Arc::default(),
            }
        }

        fn passes(&self) -> usize {
            self.begun.lock().unwrap().len()
        }

        /// Seconds between consecutive passes.
        fn gaps(&self) -> Vec<f64> {
            let begun = self.begun.lock().unwrap();
            begun
                .windows(2)
                .map(|pair| pair[1].1.duration_since(pair[0].1).as_secs_f64())
                .collect()
        }
    }

    impl Reconciler for Script {
        type Error = Fault;

        async fn reconcile(&self, key: &Key) -> Result<Wake, Fault> {
            let now = self.parallel.fetch_add(1, Ordering::SeqCst) + 1;
            self.most_parallel.fetch_max(now, Ordering::SeqCst);
            self.begun.lock().unwrap().push((key.clone(), Instant::now()));
            let act = {
                let mut acts = self.acts.lock().unwrap();
                if acts.len() > 1 {
                    acts.pop_front().unwrap()
                } else {
                    acts[0]
                }
            };
            let result = match act {
                Act::Done(wake) => Ok(wake),
                Act::Fail(class) => Err(Fault(class, None)),
                Act::FailAsking(class, asked) => Err(Fault(class, Some(asked))),
                Act::Panic => {
                    self.parallel.fetch_sub(1, Ordering::SeqCst);
                    panic!("scripted");
                }
                Act::Hang => {
                    self.parallel.fetch_sub(1, Ordering::SeqCst);
                    std::future::pending().await
                }
                Act::Take(time) => {
                    tokio::time::sleep(time).await;
                    Ok(Wake::OnEvent)
                }
            };
            self.parallel.fetch_sub(1, Ordering::SeqCst);
            self.ended.fetch_add(1, Ordering::SeqCst);
            result
        }

        fn is_behind(&self, _: &Key) -> bool {
            self.behind.load(Ordering::SeqCst)
        }
    }

    struct Bench {
        queue: Queue,
        metrics: Arc<Metrics>,
        script: Script,
        stop: CancellationToken,
        running: tokio::task::JoinHandle<()>,
        health: Arc<Health>,
    }

    const SETTINGS: Settings = Settings {
        concurrency: 3,
        timeout: Duration::from_secs(60),
        resync: Duration::ZERO,
    };

    fn bench_with(acts: &[Act], settings: Settings, objects: Vec<Key>) -> Bench {
        let metrics = Metrics::new("0").unwrap();
        let queue = Queue::new("test", &metrics);
        let script = Script::new(acts);
        let controller = Controller::new(
            "test",
            queue.clone(),
            script.clone(),
            settings,
            move || objects.clone(),
            &metrics,
        );
        let health = Health::new();
        let pulse = controller.watch_over(&health);
        let stop = CancellationToken::new();
        let running = tokio::spawn(controller.run(stop.clone(), pulse));
        Bench {
            queue,
            metrics,
            script,
            stop,
            running,
            health,
        }
    }

    fn bench(acts: &[Act]) -> Bench {
        bench_with(acts, SETTINGS, Vec::new())
    }

    impl Bench {
        /// Lets virtual time pass in steps, so that everything due happens at its own time.
        async fn pass(&self, time: Duration) {
            tokio::time::sleep(time).await;
        }

        fn has(&self, line: &str) {
            let text = self.metrics.render().unwrap();
            assert!(text.lines().any(|l| l == line), "no line {line:?} in\n{text}");
        }
    }

    fn key(name: &str) -> Key {
        Key::namespaced("ns", name)
    }

    #[tokio::test(start_paused = true)]
    async fn a_success_waits_for_the_next_event() {
        let bench = bench(&[Act::Done(Wake::OnEvent)]);
        bench.queue.add(key("a"));
        bench.pass(Duration::from_secs(86_400)).await;
        assert_eq!(bench.script.passes(), 1);
        bench.queue.add(key("a"));
        bench.pass(Duration::from_secs(1)).await;
        assert_eq!(bench.script.passes(), 2);
        bench.has(r#"controller_runtime_reconcile_total{controller="test",result="success"} 2"#);
        bench.has(r#"controller_runtime_max_concurrent_reconciles{controller="test"} 3"#);
        bench.has(r#"controller_runtime_active_workers{controller="test"} 0"#);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pass_waits_for_the_cache_to_catch_up() {
        let bench = bench(&[Act::Done(Wake::OnEvent)]);
        bench.script.behind.store(true, Ordering::SeqCst);
        bench.queue.add(key("a"));
        bench.pass(Duration::from_secs(1)).await;
        assert_eq!(bench.script.passes(), 0);
        bench.script.behind.store(false, Ordering::SeqCst);
        bench.queue.add(key("a"));
        bench.pass(Duration::from_millis(1)).await;
        assert_eq!(bench.script.passes(), 1, "the event brings the pass");

        bench.script.behind.store(true, Ordering::SeqCst);
        bench.queue.add(key("a"));
        bench.pass(Duration::from_secs(1)).await;
        bench.script.behind.store(false, Ordering::SeqCst);
        bench.pass(CATCH_UP).await;
        assert_eq!(bench.script.passes(), 2, "no event is needed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_wakes_once() {
        let began = Timestamp::now();
        let soon = began + jiff::SignedDuration::from_secs(90);
        let bench = bench(&[Act::Done(Wake::At(soon)), Act::Done(Wake::OnEvent)]);
        bench.queue.add(key("a"));
        bench.pass(Duration::from_secs(3600)).await;
        assert_eq!(bench.script.passes(), 2);
        // A deadline is a time of day, which goes on while the clock of the waits stands still: whatever the machine took
        // until the pass had ended is missing from the wait.
        let late = Timestamp::now().duration_since(began).as_secs_f64();
        assert!(
            (90.0 - late..=90.1).contains(&bench.script.gaps()[0]),
            "{:?}",
            bench.script.gaps()
        );
        bench.has(r#"controller_runtime_reconcile_total{controller="test",result="requeue_after"} 1"#);
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_in_the_past_does_not_spin() {
        let past = Timestamp::now() - jiff::SignedDuration::from_secs(5);
        let bench = bench(&[Act::Done(Wake::At(past))]);
        bench.queue.add(key("a"));
        bench.pass(Duration::from_millis(10_500)).await;
        assert_eq!(bench.script.passes(), 11);
    }

    #[tokio::test(start_paused = true)]
    async fn a_transient_failure_backs_off_and_a_success_forgets_it() {
        let mut acts = vec![Act::Fail(Class::Transient); 6];
        acts.extend([
            Act::Done(Wake::OnEvent),
            Act::Fail(Class::Transient),
            Act::Done(Wake::OnEvent),
        ]);
        let bench = bench(&acts);
        bench.queue.add(key("a"));
        bench.pass(Duration::from_secs(600)).await;
        let gaps = bench.script.gaps();
        assert_eq!(gaps.len(), 6, "{gaps:?}");
        for (n, gap) in gaps.iter().enumerate() {
            let nominal = 0.5 * f64::from(1 << n);
            assert!(
                (nominal * 0.5 - 0.01..=nominal * 1.5 + 0.01).contains(gap),
                "{n}: {gap}"
            );
        }
        bench.has(r#"controller_runtime_reconcile_errors_total{controller="test"} 6"#);
        bench.has(r#"workqueue_retries_total{controller="test",name="test"} 6"#);

        bench.queue.add(key("a"));
        bench.pass(Duration::from_secs(60)).await;
        let gaps = bench.script.gaps();
        assert!(gaps[7] <= 0.76, "the series started over: {gaps:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_wait_is_bounded() {
        let bench = bench(&[Act::Fail(Class::Transient)]);
        bench.queue.add(key("a"));
        bench.pass(Duration::from_secs(86_400)).await;
        let longest = bench.script.gaps().into_iter().fold(0.0, f64::max);
        assert!(longest <= 450.1, "{longest}");
        assert!(bench.script.passes() > 86_400 / 450);
    }

    #[tokio::test(start_paused = true)]
    async fn the_servers_wish_is_honoured_when_it_is_longer() {
        let bench = bench(&[
            Act::FailAsking(Class::Transient, Duration::from_secs(120)),
            Act::Done(Wake::OnEvent),
        ]);
        bench.queue.add(key("a"));
        bench.pass(Duration::from_secs(600)).await;
        assert!(
            (119.9..=120.1).contains(&bench.script.gaps()[0]),
            "{:?}",
            bench.script.gaps()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_conflict_comes_back_soon_and_is_no_error() {
        let bench = bench(&[Act::Fail(Class::Conflict), Act::Done(Wake::OnEvent)]);
        bench.queue.add(key("a"));
        bench.pass(Duration::from_secs(5)).await;
        assert_eq!(bench.script.passes(), 2);
        assert!(bench.script.gaps()[0] <= 1.51);
        bench.has(r#"controller_runtime_reconcile_total{controller="test",result="requeue"} 1"#);
        bench.has(r#"controller_runtime_reconcile_errors_total{controller="test"} 0"#);
    }

    #[tokio::test(start_paused = true)]
    async fn a_terminal_failure_is_looked_at_slowly_or_when_something_changes() {
        let bench = bench(&[Act::Fail(Class::Terminal("OwnershipConflict"))]);
        bench.queue.add(key("a"));
        bench.pass(Duration::from_secs(14)).await;
        assert_eq!(bench.script.passes(), 1);
        bench.queue.add(key("a"));
        bench.pass(Duration::from_secs(1)).await;
        assert_eq!(bench.script.passes(), 2, "an event is answered at once");
        bench.pass(Duration::from_secs(4 * 3600)).await;
        let longest = bench.script.gaps().into_iter().fold(0.0, f64::max);
        assert!((300.0..=900.1).contains(&longest), "{longest}");
        let text = bench.metrics.render().unwrap();
        let terminal = format!(
            r#"controller_runtime_terminal_reconcile_errors_total{{controller="test"}} {}"#,
            bench.script.passes()
        );
        assert!(text.contains(&terminal), "{text}");
    }

    /// A policy that was mended brings no event: only the slow look notices, and it must not slip away.
    #[tokio::test(start_paused = true)]
    async fn events_do_not_put_the_slow_look_off() {
        let bench = bench(&[Act::Fail(Class::Terminal("AdmissionDenied"))]);
        bench.queue.add(key("a"));
        let start = Instant::now();
        bench.pass(Duration::from_secs(1)).await;
        for _ in 0..10 {
            bench.queue.add(key("a"));
            bench.pass(Duration::from_secs(1)).await;
        }
        assert_eq!(bench.script.passes(), 11);
        bench.pass(Duration::from_secs(45)).await;
        let looks = || {
            let begun = bench.script.begun.lock().unwrap();
            begun[11..]
                .iter()
                .map(|(_, at)| at.duration_since(start).as_secs_f64())
                .collect::<Vec<_>>()
        };
        assert!(!looks().is_empty());
        assert!((15.0..=45.1).contains(&looks()[0]), "{:?}", looks());
        // Its own attempts lengthen it.
        bench.pass(Duration::from_secs(90)).await;
        assert!((30.0..=90.1).contains(&(looks()[1] - looks()[0])), "{:?}", looks());
    }

    #[tokio::test(start_paused = true)]
    async fn another_sort_of_failure_starts_its_own_series() {
        let mut acts = vec![Act::Fail(Class::Transient); 8];
        acts.extend([Act::Fail(Class::Conflict), Act::Done(Wake::OnEvent)]);
        let bench = bench(&acts);
        bench.queue.add(key("a"));
        bench.pass(Duration::from_secs(3600)).await;
        assert!(bench.script.gaps()[8] <= 1.51, "{:?}", bench.script.gaps());
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_ends_its_pass_and_nothing_else() {
        let bench = bench(&[Act::Panic, Act::Done(Wake::OnEvent)]);
        bench.queue.add(key("a"));
        bench.pass(Duration::from_secs(10)).await;
        assert_eq!(bench.script.passes(), 2);
        bench.has(r#"controller_runtime_reconcile_panics_total{controller="test"} 1"#);
        bench.has(r#"controller_runtime_active_workers{controller="test"} 0"#);
        assert!(bench.queue.running().is_empty());
        assert!(!bench.running.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn a_pass_that_hangs_is_cut_off_and_tried_again() {
        let bench = bench(&[Act::Hang, Act::Done(Wake::OnEvent)]);
        bench.queue.add(key("a"));
        bench.pass(Duration::from_secs(70)).await;
        assert_eq!(bench.script.passes(), 2);
        assert!(bench.script.gaps()[0] >= 60.0);
        bench.has(r#"controller_runtime_reconcile_timeouts_total{controller="test"} 1"#);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_passes_at_once_than_allowed_and_the_rest_waits_visibly() {
        let bench = bench(&[Act::Take(Duration::from_secs(10))]);
        for n in 0..10 {
            bench.queue.add(key(&n.to_string()));
        }
        bench.pass(Duration::from_secs(1)).await;
        bench.has(r#"workqueue_depth{controller="test",name="test"} 7"#);
        bench.has(r#"controller_runtime_active_workers{controller="test"} 3"#);
        bench.pass(Duration::from_secs(60)).await;
        assert_eq!(bench.script.passes(), 10);
        assert_eq!(bench.script.most_parallel.load(Ordering::SeqCst), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn one_bad_object_does_not_delay_the_others() {
        let bench = bench(&[Act::Hang, Act::Hang, Act::Done(Wake::OnEvent)]);
        for name in ["bad1", "bad2", "good1", "good2", "good3"] {
            bench.queue.add(key(name));
        }
        bench.pass(Duration::from_secs(1)).await;
        assert_eq!(bench.script.passes(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn stopping_finishes_what_runs_and_starts_nothing() {
        let bench = bench(&[Act::Take(Duration::from_secs(20))]);
        for n in 0..5 {
            bench.queue.add(key(&n.to_string()));
        }
        bench.pass(Duration::from_secs(1)).await;
        bench.stop.cancel();
        bench.running.await.unwrap();
        assert_eq!(bench.script.passes(), 3);
        assert_eq!(bench.script.ended.load(Ordering::SeqCst), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn the_resync_looks_at_every_object_once_per_period() {
        let settings = Settings {
            resync: Duration::from_secs(3600),
            ..SETTINGS
        };
        let bench = bench_with(&[Act::Done(Wake::OnEvent)], settings, vec![key("a"), key("b")]);
        bench.pass(Duration::from_secs(3600 * 10)).await;
        let passes = bench.script.passes();
        assert!((16..=22).contains(&passes), "{passes}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_controller_is_alive_and_does_nothing() {
        let bench = bench(&[Act::Done(Wake::OnEvent)]);
        bench.pass(Duration::from_secs(86_400)).await;
        assert!(bench.health.live().ok, "{}", bench.health.live().text);
        assert_eq!(bench.script.passes(), 0);
    }
}
