//! The metrics of this controller's own.

use std::time::Duration;

use capt_api::CaptControlPlane;
use capt_api::conditions::secrets::SecretsReady;
use capt_runtime::census::Census;
use capt_runtime::error::{Class, Classified, Failure};
use capt_runtime::metrics::Metrics;
use prometheus::{Histogram, HistogramOpts, IntCounterVec, Opts};

use crate::observe::{Contents, Observed, Situation, Source};
use crate::plan::{Plan, Step};

/// The control planes in trouble, by what this controller says of them; their phases are another controller's.
pub(crate) fn census() -> Census<CaptControlPlane> {
    Census::new("CAPTControlPlane", |object: &CaptControlPlane| {
        object.status.as_ref().map_or(&[], |status| &status.conditions)
    })
    .troubles_of::<SecretsReady>()
}

/// How connection Secrets became the Secrets that Cluster API reads, or why they did not.
///
/// A conversion is counted when a source was judged, which happens once per version of it, and something came of it:
/// copies were written, or it was found to be of no use. A look that finds all in place is none.
#[derive(Debug, Clone)]
pub(crate) struct Conversions {
    results: IntCounterVec,
    duration: Histogram,
}

/// From a few writes to an API server that is near, to those of one that is slow.
const BUCKETS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

impl Conversions {
    const SUCCESS: &str = "success";
    /// Empty, incomplete or unreadable.
    const INVALID: &str = "invalid";
    /// Its readers would run a program, read a file or trust somebody else.
    const UNSAFE: &str = "unsafe";
    /// The name of a copy is taken, or a write was not allowed.
    const REFUSED: &str = "refused";
    /// Somebody was faster; it is planned again.
    const CONFLICT: &str = "conflict";
    const ERROR: &str = "error";

    pub(crate) fn register(metrics: &Metrics) -> Result<Self, prometheus::Error> {
        let opts = Opts::new(
            "capt_secret_conversions_total",
            "Connection Secrets turned into the Secrets of Cluster API, by result.",
        );
        let results = IntCounterVec::new(opts, &["result"])?;
        for result in [
            Self::SUCCESS,
            Self::INVALID,
            Self::UNSAFE,
            Self::REFUSED,
            Self::CONFLICT,
            Self::ERROR,
        ] {
            // Known from the start: a rate over a counter that appears with its first failure misses that failure.
            results.with_label_values(&[result]);
        }
        let opts = HistogramOpts::new(
            "capt_secret_conversion_duration_seconds",
            "Length of conversions, from reading the connection Secret to the report.",
        );
        let duration = Histogram::with_opts(opts.buckets(BUCKETS.to_vec()))?;
        metrics.registry().register(Box::new(results.clone()))?;
        metrics.registry().register(Box::new(duration.clone()))?;
        Ok(Self { results, duration })
    }

    #[cfg(test)]
    pub(crate) fn total(&self, result: &str) -> u64 {
        self.results.with_label_values(&[result]).get()
    }

    /// Counts what became of a pass, if it was a conversion.
    pub(crate) fn count(
        &self,
        seen: &Observed,
        contents: &Contents,
        plan: &Plan,
        acted: &Result<Option<Failure>, Failure>,
        took: Duration,
    ) {
        let (Situation::Living(living), true) = (&seen.situation, contents.judged.is_some()) else {
            return;
        };
        let wrote = matches!(&plan.step, Step::Write(writes) if !writes.copies.is_empty());
        let says = plan.says.as_ref().map(|says| says.reason);
        let result = match (&living.source, acted.as_ref().map_err(Classified::class)) {
            (Source::Invalid(_, invalid), _) if invalid.is_unsafe() => Self::UNSAFE,
            (Source::Invalid(..), _) => Self::INVALID,
            (Source::Empty(_), _) if living.gate_is_open() => Self::INVALID,
            (Source::Valid(_), Ok(_)) if says == Some(SecretsReady::OwnershipConflict) => Self::REFUSED,
            (Source::Valid(_), Ok(_)) if wrote => Self::SUCCESS,
            (Source::Valid(_), Err(Class::Terminal(_))) => Self::REFUSED,
            (Source::Valid(_), Err(Class::Conflict)) => Self::CONFLICT,
            (Source::Valid(_), Err(Class::Transient | Class::Bug)) => Self::ERROR,
            _ => return,
        };
        self.results.with_label_values(&[result]).inc();
        self.duration.observe(took.as_secs_f64());
    }
}
