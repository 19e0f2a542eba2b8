//! The metrics of this controller's own.

use capt_api::CaptControlPlane;
use capt_api::conditions::endpoint::EndpointReady;
use capt_runtime::census::Census;
use capt_runtime::error::{Class, Classified, Failure};
use capt_runtime::metrics::Metrics;
use prometheus::{IntCounterVec, Opts};

/// The control planes in trouble, by what this controller says of them; their phases are another controller's.
pub(crate) fn census() -> Census<CaptControlPlane> {
    Census::new("CAPTControlPlane", |object: &CaptControlPlane| {
        object.status.as_ref().map_or(&[], |status| &status.conditions)
    })
    .troubles_of::<EndpointReady>()
}

/// How writes of endpoints, to the Cluster and the control plane, ended.
#[derive(Debug, Clone)]
pub(crate) struct Updates(IntCounterVec);

impl Updates {
    const SUCCESS: &str = "success";
    /// Somebody was faster; it is planned again.
    const CONFLICT: &str = "conflict";
    /// The API server, or a policy in front of it, does not allow it.
    const REFUSED: &str = "refused";
    const ERROR: &str = "error";

    pub(crate) fn register(metrics: &Metrics) -> Result<Self, prometheus::Error> {
        let opts = Opts::new(
            "capt_endpoint_updates_total",
            "Passes that set or cleared an endpoint, by result.",
        );
        let updates = IntCounterVec::new(opts, &["result"])?;
        for result in [Self::SUCCESS, Self::CONFLICT, Self::REFUSED, Self::ERROR] {
            // Known from the start: a rate over a counter that appears with its first failure misses that failure.
            updates.with_label_values(&[result]);
        }
        metrics.registry().register(Box::new(updates.clone()))?;
        Ok(Self(updates))
    }

    pub(crate) fn count(&self, outcome: &Result<(), Failure>) {
        let result = match outcome.as_ref().map_err(Classified::class) {
            Ok(()) => Self::SUCCESS,
            Err(Class::Conflict) => Self::CONFLICT,
            Err(Class::Terminal(_)) => Self::REFUSED,
            Err(Class::Transient | Class::Bug) => Self::ERROR,
        };
        self.0.with_label_values(&[result]).inc();
    }
}
