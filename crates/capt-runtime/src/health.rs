//! Whether the process is alive and ready, and if not, what exactly is missing.

use std::{
    fmt::Write,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

/// Loops report at least this often, even when they have nothing to do.
pub const PULSE: Duration = Duration::from_secs(5);
/// A loop that has been silent for so long does not run any more.
const SILENCE: Duration = Duration::from_secs(30);

type Probe = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// The registry of everything that must live and everything that must be ready.
pub struct Health {
    loops: Mutex<Vec<Arc<Loop>>>,
    probes: Mutex<Vec<Probe>>,
    checks: Mutex<Vec<Arc<Check>>>,
    ready: watch::Sender<()>,
    stopping: AtomicBool,
}

#[derive(Debug)]
struct Loop {
    name: String,
    last: Mutex<Instant>,
}

#[derive(Debug)]
struct Check {
    name: String,
    state: Mutex<Result<(), String>>,
}

/// With this a loop shows that it still turns.
#[derive(Debug)]
pub struct Pulse(Arc<Loop>);

impl Pulse {
    pub fn beat(&self) {
        *self.0.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// With this a part says whether it is ready.
#[derive(Clone)]
pub struct Readiness {
    check: Arc<Check>,
    changed: watch::Sender<()>,
}

impl Readiness {
    pub fn set(&self, state: Result<(), String>) {
        *self.check.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
        self.changed.send_replace(());
    }
}

impl std::fmt::Debug for Readiness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.check.fmt(f)
    }
}

/// An answer of `/healthz` or `/readyz`.
#[derive(Debug)]
pub struct Report {
    pub ok: bool,
    /// One line per part, the bad ones marked.
    pub text: String,
}

impl Health {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            loops: Mutex::default(),
            probes: Mutex::default(),
            checks: Mutex::default(),
            ready: watch::Sender::new(()),
            stopping: AtomicBool::new(false),
        })
    }

    /// Registers a loop that must beat at least every [`PULSE`] from now on.
    pub fn pulse(&self, name: impl Into<String>) -> Pulse {
        let entry = Arc::new(Loop {
            name: name.into(),
            last: Mutex::new(Instant::now()),
        });
        self.loops
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(entry.clone());
        Pulse(entry)
    }

    /// Registers a look for something that is stuck.
    pub fn probe(&self, probe: impl Fn() -> Result<(), String> + Send + Sync + 'static) {
        self.probes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Box::new(probe));
    }

    /// Registers a part that is not ready yet.
    pub fn readiness(&self, name: impl Into<String>) -> Readiness {
        let check = Arc::new(Check {
            name: name.into(),
            state: Mutex::new(Err("not started".into())),
        });
        self.checks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(check.clone());
        Readiness {
            check,
            changed: self.ready.clone(),
        }
    }

    /// From now on the process asks for no more traffic or trust.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Waits until every registered part is ready.
    pub async fn wait_ready(&self) {
        let mut changed = self.ready.subscribe();
        while self.missing().next().is_some() {
            // The sender lives in self; it cannot be gone.
            let _ = changed.changed().await;
        }
    }

    fn missing(&self) -> impl Iterator<Item = (String, String)> {
        let checks = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
        let missing: Vec<_> = checks
            .iter()
            .filter_map(|check| {
                let state = check.state.lock().unwrap_or_else(PoisonError::into_inner);
                Some((check.name.clone(), state.as_ref().err()?.clone()))
            })
            .collect();
        missing.into_iter()
    }

    /// Are all loops turning, and is nothing stuck?
    pub fn live(&self) -> Report {
        let mut ok = true;
        let mut text = String::new();
        for entry in self.loops.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let silent = entry.last.lock().unwrap_or_else(PoisonError::into_inner).elapsed();
            if silent < SILENCE {
                line(&mut text, true, &entry.name, "turning");
            } else {
                ok = false;
                line(
                    &mut text,
                    false,
                    &entry.name,
                    &format!("no sign of life for {} s", silent.as_secs()),
                );
            }
        }
        for probe in self.probes.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            if let Err(stuck) = probe() {
                ok = false;
                line(&mut text, false, "stuck", &stuck);
            }
        }
        Report { ok, text }
    }

    /// Is everything there that reconciling needs?
    pub fn ready(&self) -> Report {
        let mut text = String::new();
        for check in self.checks.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            match &*check.state.lock().unwrap_or_else(PoisonError::into_inner) {
                Ok(()) => line(&mut text, true, &check.name, "ready"),
                Err(why) => line(&mut text, false, &check.name, why),
            }
        }
        let stopping = self.stopping.load(Ordering::Relaxed);
        if stopping {
            line(&mut text, false, "shutdown", "the process is stopping");
        }
        Report {
            ok: !stopping && self.missing().next().is_none(),
            text,
        }
    }
}

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Health").finish_non_exhaustive()
    }
}

fn line(text: &mut String, good: bool, name: &str, state: &str) {
    let mark = if good { '+' } else { '-' };
    // Writing to a String cannot fail.
    let _ = writeln!(text, "[{mark}] {name}: {state}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_silent_loop_is_named() {
        let health = Health::new();
        let quiet = health.pulse("watch Cluster");
        let busy = health.pulse("controller captcluster");
        tokio::time::advance(SILENCE / 2).await;
        busy.beat();
        assert!(health.live().ok);
        tokio::time::advance(SILENCE / 2 + Duration::from_secs(1)).await;
        let report = health.live();
        assert!(!report.ok);
        assert!(
            report.text.contains("[-] watch Cluster: no sign of life"),
            "{}",
            report.text
        );
        assert!(report.text.contains("[+] controller captcluster"), "{}", report.text);
        quiet.beat();
        busy.beat();
        assert!(health.live().ok);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stuck_part_is_reported_in_its_own_words() {
        let health = Health::new();
        health.probe(|| Err("captcluster: ns/a has been in work for 900 s".into()));
        let report = health.live();
        assert!(
            !report.ok && report.text.contains("ns/a has been in work"),
            "{}",
            report.text
        );
    }

    #[tokio::test(start_paused = true)]
    async fn readiness_waits_for_the_last_part_and_names_it() {
        let health = Health::new();
        let first = health.readiness("watch A");
        let second = health.readiness("watch B");
        first.set(Ok(()));
        second.set(Err("its CRD is not installed".into()));
        let report = health.ready();
        assert!(!report.ok);
        assert!(
            report.text.contains("[-] watch B: its CRD is not installed"),
            "{}",
            report.text
        );

        let waiting = tokio::spawn({
            let health = health.clone();
            async move { health.wait_ready().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        second.set(Ok(()));
        waiting.await.unwrap();
        assert!(health.ready().ok);
        health.stop();
        assert!(!health.ready().ok);
    }
}
