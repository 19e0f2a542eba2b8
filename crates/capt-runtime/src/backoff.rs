//! How long to wait before the next try. The `backoff` crate is used here and nowhere else.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    time::Duration,
};

use backoff::{ExponentialBackoff, backoff::Backoff};

/// The first and the longest interval of a series of tries. Intervals double.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    pub first: Duration,
    pub longest: Duration,
}

impl Pace {
    /// The API server or the network did not answer as it should.
    pub const TRANSIENT: Self = Self::new(500, 300_000);
    /// Another writer was faster. The watch usually brings its version first; this is the net below.
    pub const CONFLICT: Self = Self::new(1_000, 10_000);
    /// Only somebody else can change the outcome. Their change usually arrives as an event; this slow look catches
    /// what no watch of ours shows.
    pub const TERMINAL: Self = Self::new(30_000, 600_000);
    /// A watch that cannot start. Its longest interval bounds how late a CRD that appears is noticed.
    pub const WATCH: Self = Self::new(200, 4_000);

    const fn new(first_ms: u64, longest_ms: u64) -> Self {
        Self {
            first: Duration::from_millis(first_ms),
            longest: Duration::from_millis(longest_ms),
        }
    }
}

/// Part of an interval that is random, to both sides. Objects that failed together (the API server was away) must
/// not come back together; but a wait is never near zero, because that would be no wait at all.
const SPREAD: f64 = 0.5;

/// One series of failed tries.
#[derive(Debug)]
pub struct Series {
    pace: Pace,
    intervals: ExponentialBackoff,
    tries: u32,
}

impl Series {
    pub fn new(pace: Pace) -> Self {
        Self {
            pace,
            intervals: ExponentialBackoff {
                current_interval: pace.first,
                initial_interval: pace.first,
                max_interval: pace.longest,
                multiplier: 2.0,
                randomization_factor: SPREAD,
                // The crate's default gives up after 15 minutes; a controller never does.
                max_elapsed_time: None,
                ..ExponentialBackoff::default()
            },
            tries: 0,
        }
    }

    /// Counts a failure and says how long to wait after it.
    pub fn fail(&mut self) -> Duration {
        self.count();
        self.intervals.next_backoff().unwrap_or(self.pace.longest)
    }

    /// Counts a failure that says nothing about how long to wait.
    pub fn count(&mut self) {
        self.tries = self.tries.saturating_add(1);
    }

    pub fn pace(&self) -> Pace {
        self.pace
    }

    /// Failures counted so far.
    pub fn tries(&self) -> u32 {
        self.tries
    }

    /// After a success the next failure starts from the first interval again.
    pub fn reset(&mut self) {
        self.intervals.reset();
        self.tries = 0;
    }
}

/// A random duration between `low` and `high` times `base`, so that replicas and objects do not march in step.
pub fn jitter(base: Duration, low: f64, high: f64) -> Duration {
    // RandomState is seeded by the operating system once per thread and differs with every instance.
    let bits = RandomState::new().build_hasher().finish();
    let unit = (bits >> 11) as f64 / (1_u64 << 53) as f64;
    base.mul_f64(low + (high - low) * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_double_up_to_the_longest_and_stay_in_their_spread() {
        for _ in 0..50 {
            let mut series = Series::new(Pace::TRANSIENT);
            let mut nominal = Pace::TRANSIENT.first;
            for n in 1..=20 {
                let wait = series.fail();
                assert!(wait >= nominal.mul_f64(0.5), "{wait:?} after {n} tries");
                assert!(
                    wait <= nominal.mul_f64(1.5) + Duration::from_nanos(1),
                    "{wait:?} after {n} tries"
                );
                nominal = (nominal * 2).min(Pace::TRANSIENT.longest);
                assert_eq!(series.tries(), n);
            }
        }
    }

    #[test]
    fn a_series_never_ends() {
        let mut series = Series::new(Pace::WATCH);
        for _ in 0..10_000 {
            assert!(series.fail() > Duration::ZERO);
        }
    }

    #[test]
    fn a_success_starts_the_series_over() {
        let mut series = Series::new(Pace::CONFLICT);
        for _ in 0..10 {
            series.fail();
        }
        series.reset();
        assert_eq!(series.tries(), 0);
        assert!(series.fail() <= Pace::CONFLICT.first.mul_f64(1.5) + Duration::from_nanos(1));
    }

    #[test]
    fn a_missing_crd_is_looked_for_at_least_every_six_seconds() {
        assert!(Pace::WATCH.longest.mul_f64(1.0 + SPREAD) <= Duration::from_secs(6));
    }

    #[test]
    fn jitter_stays_in_its_range_and_varies() {
        let base = Duration::from_secs(10);
        let drawn: Vec<_> = (0..100).map(|_| jitter(base, 0.8, 1.0)).collect();
        assert!(drawn.iter().all(|d| (Duration::from_secs(8)..=base).contains(d)));
        assert!(drawn.iter().any(|d| *d != drawn[0]));
    }
}
