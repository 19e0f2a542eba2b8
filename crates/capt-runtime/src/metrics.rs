//! Every metric that the runtime itself exposes, under the names that dashboards for controller-runtime and client-go
//! already know, plus `capt_*`. No object name is ever a label: cardinality stays bounded by the number of kinds.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use prometheus::{
    Encoder, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Opts, Registry, TextEncoder, core::Collector, exponential_buckets,
};

use crate::census::CensusMetrics;
use crate::process::ProcessMetrics;

type Hook = Box<dyn Fn() + Send + Sync>;

/// The metrics of one process.
pub struct Metrics {
    registry: Registry,
    hooks: Mutex<Vec<Hook>>,

    queue_depth: IntGaugeVec,
    queue_adds: IntCounterVec,
    queue_waited: HistogramVec,
    queue_worked: HistogramVec,
    queue_retries: IntCounterVec,
    queue_unfinished: GaugeVec,
    queue_longest: GaugeVec,

    reconcile_total: IntCounterVec,
    reconcile_errors: IntCounterVec,
    reconcile_terminal: IntCounterVec,
    reconcile_panics: IntCounterVec,
    reconcile_timeouts: IntCounterVec,
    reconcile_bugs: IntCounterVec,
    reconcile_time: HistogramVec,
    workers_active: IntGaugeVec,
    workers_max: IntGaugeVec,

    requests: IntCounterVec,
    request_time: HistogramVec,

    leader: IntGaugeVec,

    watch_objects: IntGaugeVec,
    watch_unreadable: IntGaugeVec,
    watch_errors: IntCounterVec,
    watch_relists: IntCounterVec,
    watch_idle: GaugeVec,

    events_dropped: IntCounter,
    census: CensusMetrics,
    lives: Lives,
}

/// How the objects of users fare: what no other metric of a controller tells. `kind` is the object's kind.
#[derive(Clone, Debug)]
pub struct Lives {
    in_phase: HistogramVec,
    to_ready: HistogramVec,
    deadlines: IntCounterVec,
}

impl Lives {
    /// An object left `phase`, in which it had been for so long.
    pub fn left_phase(&self, kind: &str, phase: &str, after: jiff::SignedDuration) {
        self.in_phase
            .with_label_values(&[kind, phase])
            .observe(after.as_secs_f64().max(0.0));
    }

    /// An object became ready for the first time, so long after it was created.
    pub fn became_ready(&self, kind: &str, after: jiff::SignedDuration) {
        self.to_ready
            .with_label_values(&[kind])
            .observe(after.as_secs_f64().max(0.0));
    }

    /// The deadlines that objects of this kind can miss, known from the start: a rate over a counter that appears with its
    /// first event misses it.
    pub fn expect_deadlines(&self, kind: &str, deadlines: &[&str]) {
        for deadline in deadlines {
            self.deadlines.with_label_values(&[kind, deadline]);
        }
    }

    /// A wait took longer than `deadline` (`controlPlaneTimeout`, …) allows.
    pub fn missed_deadline(&self, kind: &str, deadline: &str) {
        self.deadlines.with_label_values(&[kind, deadline]).inc();
    }
}

/// The metrics of one work queue.
#[derive(Debug)]
pub(crate) struct QueueMetrics {
    pub(crate) depth: IntGauge,
    pub(crate) adds: IntCounter,
    pub(crate) waited: Histogram,
    pub(crate) worked: Histogram,
    pub(crate) retries: IntCounter,
    pub(crate) unfinished: Gauge,
    pub(crate) longest_running: Gauge,
}

/// The metrics of one controller.
#[derive(Debug)]
pub(crate) struct ControllerMetrics {
    pub(crate) success: IntCounter,
    pub(crate) error: IntCounter,
    pub(crate) requeue: IntCounter,
    pub(crate) requeue_after: IntCounter,
    pub(crate) errors: IntCounter,
    pub(crate) terminal: IntCounter,
    pub(crate) panics: IntCounter,
    pub(crate) timeouts: IntCounter,
    pub(crate) bugs: IntCounter,
    pub(crate) time: Histogram,
    pub(crate) active: IntGauge,
}

/// The metrics of one watch.
#[derive(Clone, Debug)]
pub(crate) struct WatchMetrics {
    pub(crate) objects: IntGauge,
    pub(crate) unreadable: IntGauge,
    pub(crate) errors: IntCounter,
    pub(crate) relists: IntCounter,
    pub(crate) idle: Gauge,
}

/// The metrics of calls to the API server.
#[derive(Clone, Debug)]
pub(crate) struct RequestMetrics {
    total: IntCounterVec,
    time: HistogramVec,
}

impl RequestMetrics {
    pub(crate) fn observe(&self, code: &str, method: &str, host: &str, took: Duration) {
        self.total.with_label_values(&[code, method, host]).inc();
        self.time.with_label_values(&[method, host]).observe(took.as_secs_f64());
    }
}

const QUEUE: &[&str] = &["name", "controller"];
const CONTROLLER: &[&str] = &["controller"];
const WATCH: &[&str] = &["watch"];

/// From a pass that finds nothing to do to one that ends by its deadline.
const RECONCILE_BUCKETS: &[f64] = &[
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
];
const REQUEST_BUCKETS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];

/// From what the simulator does at once to the longest deadline that a user can set.
const LIFE_BUCKETS: &[f64] = &[
    1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1_200.0, 1_800.0, 3_600.0, 7_200.0, 86_400.0,
];

impl Metrics {
    /// Registers everything; fails only when two metrics collide.
    pub fn new(version: &str) -> Result<Arc<Self>, prometheus::Error> {
        let registry = Registry::new();
        let r = &registry;
        // From a microsecond to a quarter of an hour, as coarse as client-go.
        let queue_buckets = exponential_buckets(1e-6, 10.0, 10)?;

        let build = gauges(r, "capt_build_info", "The running version, as a label.", &["version"])?;
        build.with_label_values(&[version]).set(1);

        let metrics = Arc::new(Self {
            queue_depth: gauges(r, "workqueue_depth", "Objects waiting for a worker.", QUEUE)?,
            queue_adds: counters(
                r,
                "workqueue_adds_total",
                "Requests for a pass that were not already waiting.",
                QUEUE,
            )?,
            queue_waited: histograms(
                r,
                "workqueue_queue_duration_seconds",
                "How long objects waited for a worker.",
                QUEUE,
                &queue_buckets,
            )?,
            queue_worked: histograms(
                r,
                "workqueue_work_duration_seconds",
                "How long a worker was busy with an object.",
                QUEUE,
                &queue_buckets,
            )?,
            queue_retries: counters(
                r,
                "workqueue_retries_total",
                "Passes asked for because the one before failed.",
                QUEUE,
            )?,
            queue_unfinished: floats(
                r,
                "workqueue_unfinished_work_seconds",
                "Time spent so far on all objects in work. Growing without end means stuck workers.",
                QUEUE,
            )?,
            queue_longest: floats(
                r,
                "workqueue_longest_running_processor_seconds",
                "How long the slowest running worker has been busy.",
                QUEUE,
            )?,

            reconcile_total: counters(
                r,
                "controller_runtime_reconcile_total",
                "Passes, by result.",
                &["controller", "result"],
            )?,
            reconcile_errors: counters(
                r,
                "controller_runtime_reconcile_errors_total",
                "Passes that ended in an error.",
                CONTROLLER,
            )?,
            reconcile_terminal: counters(
                r,
                "controller_runtime_terminal_reconcile_errors_total",
                "Errors that only a change by somebody else can end.",
                CONTROLLER,
            )?,
            reconcile_panics: counters(
                r,
                "controller_runtime_reconcile_panics_total",
                "Passes that panicked. Always a bug.",
                CONTROLLER,
            )?,
            reconcile_timeouts: counters(
                r,
                "controller_runtime_reconcile_timeouts_total",
                "Passes cut off by --reconcile-timeout.",
                CONTROLLER,
            )?,
            reconcile_bugs: counters(
                r,
                "capt_reconcile_bugs_total",
                "Errors that should be impossible, such as a missing permission.",
                CONTROLLER,
            )?,
            reconcile_time: histograms(
                r,
                "controller_runtime_reconcile_time_seconds",
                "Length of passes.",
                CONTROLLER,
                RECONCILE_BUCKETS,
            )?,
            workers_active: gauges(
                r,
                "controller_runtime_active_workers",
                "Workers that are busy.",
                CONTROLLER,
            )?,
            workers_max: gauges(
                r,
                "controller_runtime_max_concurrent_reconciles",
                "Workers that may be busy at once.",
                CONTROLLER,
            )?,

            requests: counters(
                r,
                "rest_client_requests_total",
                "Calls to the API server. Code <error> means that no answer came.",
                &["code", "method", "host"],
            )?,
            request_time: histograms(
                r,
                "rest_client_request_duration_seconds",
                "Length of calls to the API server; of a watch, until it is accepted.",
                &["verb", "host"],
                REQUEST_BUCKETS,
            )?,

            leader: gauges(
                r,
                "leader_election_master_status",
                "1 in the replica that holds the Lease of this name.",
                &["name"],
            )?,

            watch_objects: gauges(r, "capt_watch_objects", "Objects in the cache.", WATCH)?,
            watch_unreadable: gauges(
                r,
                "capt_watch_unreadable_objects",
                "Objects that this version cannot decode and therefore leaves alone.",
                WATCH,
            )?,
            watch_errors: counters(
                r,
                "capt_watch_errors_total",
                "Times that a watch could not start or broke off.",
                WATCH,
            )?,
            watch_relists: counters(
                r,
                "capt_watch_relists_total",
                "Times that a watch had to read everything anew.",
                WATCH,
            )?,
            watch_idle: floats(
                r,
                "capt_watch_idle_seconds",
                "Time since the API server last sent anything. A healthy watch gets a bookmark about every minute.",
                WATCH,
            )?,

            events_dropped: counter(r, "capt_events_dropped_total", "Events that could not be recorded.")?,
            census: CensusMetrics {
                objects: gauges(
                    r,
                    "capt_objects",
                    "Objects in each phase; 0 in a replica that does not lead.",
                    &["kind", "phase"],
                )?,
                troubled: gauges(
                    r,
                    "capt_objects_in_trouble",
                    "Objects that are in trouble now, by the reason of their condition; 0 in a replica that does not lead.",
                    &["kind", "reason"],
                )?,
                failures: counters(
                    r,
                    "capt_failures_total",
                    "Times that an object got into trouble, by the reason of its condition.",
                    &["kind", "reason"],
                )?,
            },
            lives: Lives {
                in_phase: histograms(
                    r,
                    "capt_phase_duration_seconds",
                    "How long objects were in a phase, when they left it.",
                    &["kind", "phase"],
                    LIFE_BUCKETS,
                )?,
                to_ready: histograms(
                    r,
                    "capt_ready_duration_seconds",
                    "From the creation of an object until it was ready for the first time.",
                    &["kind"],
                    LIFE_BUCKETS,
                )?,
                deadlines: counters(
                    r,
                    "capt_deadlines_exceeded_total",
                    "Waits that took longer than their deadline allows.",
                    &["kind", "deadline"],
                )?,
            },

            hooks: Mutex::default(),
            registry,
        });
        let process = ProcessMetrics::register(&metrics.registry)?;
        metrics.before_scrape(move || process.refresh());
        Ok(metrics)
    }

    /// Where a controller registers metrics of its own.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Runs `hook` before each scrape, for values that are only true at the moment they are read.
    pub fn before_scrape(&self, hook: impl Fn() + Send + Sync + 'static) {
        self.hooks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Box::new(hook));
    }

    /// The text that `/metrics` serves.
    pub fn render(&self) -> Result<String, prometheus::Error> {
        for hook in self.hooks.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            hook();
        }
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        String::from_utf8(text).map_err(|error| prometheus::Error::Msg(error.to_string()))
    }

    pub(crate) fn queue(&self, name: &str) -> QueueMetrics {
        let labels = &[name, name];
        QueueMetrics {
            depth: self.queue_depth.with_label_values(labels),
            adds: self.queue_adds.with_label_values(labels),
            waited: self.queue_waited.with_label_values(labels),
            worked: self.queue_worked.with_label_values(labels),
            retries: self.queue_retries.with_label_values(labels),
            unfinished: self.queue_unfinished.with_label_values(labels),
            longest_running: self.queue_longest.with_label_values(labels),
        }
    }

    pub(crate) fn controller(&self, name: &str, workers: usize) -> ControllerMetrics {
        let labels = &[name];
        let result = |result| self.reconcile_total.with_label_values(&[name, result]);
        self.workers_max
            .with_label_values(labels)
            .set(i64::try_from(workers).unwrap_or(i64::MAX));
        ControllerMetrics {
            success: result("success"),
            error: result("error"),
            requeue: result("requeue"),
            requeue_after: result("requeue_after"),
            errors: self.reconcile_errors.with_label_values(labels),
            terminal: self.reconcile_terminal.with_label_values(labels),
            panics: self.reconcile_panics.with_label_values(labels),
            timeouts: self.reconcile_timeouts.with_label_values(labels),
            bugs: self.reconcile_bugs.with_label_values(labels),
            time: self.reconcile_time.with_label_values(labels),
            active: self.workers_active.with_label_values(labels),
        }
    }

    pub(crate) fn watch(&self, name: &str) -> WatchMetrics {
        let labels = &[name];
        WatchMetrics {
            objects: self.watch_objects.with_label_values(labels),
            unreadable: self.watch_unreadable.with_label_values(labels),
            errors: self.watch_errors.with_label_values(labels),
            relists: self.watch_relists.with_label_values(labels),
            idle: self.watch_idle.with_label_values(labels),
        }
    }

    pub(crate) fn requests(&self) -> RequestMetrics {
        RequestMetrics {
            total: self.requests.clone(),
            time: self.request_time.clone(),
        }
    }

    pub(crate) fn leader(&self, lease: &str) -> IntGauge {
        self.leader.with_label_values(&[lease])
    }

    pub(crate) fn events_dropped(&self) -> IntCounter {
        self.events_dropped.clone()
    }

    pub(crate) fn failures(&self) -> IntCounterVec {
        self.census.failures.clone()
    }

    pub(crate) fn census(&self) -> CensusMetrics {
        self.census.clone()
    }

    pub fn lives(&self) -> Lives {
        self.lives.clone()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

fn registered<C: Collector + Clone + 'static>(registry: &Registry, metric: C) -> Result<C, prometheus::Error> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn counter(r: &Registry, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
    registered(r, IntCounter::new(name, help)?)
}

fn counters(r: &Registry, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, prometheus::Error> {
    registered(r, IntCounterVec::new(Opts::new(name, help), labels)?)
}

fn gauges(r: &Registry, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, prometheus::Error> {
    registered(r, IntGaugeVec::new(Opts::new(name, help), labels)?)
}

fn floats(r: &Registry, name: &str, help: &str, labels: &[&str]) -> Result<GaugeVec, prometheus::Error> {
    registered(r, GaugeVec::new(Opts::new(name, help), labels)?)
}

fn histograms(
    r: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
    buckets: &[f64],
) -> Result<HistogramVec, prometheus::Error> {
    registered(
        r,
        HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels)?,
    )
}
