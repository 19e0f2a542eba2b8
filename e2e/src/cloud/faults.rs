//! Faults on order: an apply or a destroy that fails with a given message, fails once, or takes long.
//!
//! They come with the template's variables. Variables do not reach a destroy that is already under way, so an operator's order
//! in a file counts for more: while there is one for a resource, its variables count for nothing.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until};

use super::inputs::Inputs;
use super::ledger::remove_file;
use crate::pki::write_private;

/// How often slow work says that it goes on.
const REPORT_EVERY: u64 = 10;

/// What the operator ordered for one resource; without a message nothing fails.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Orders {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) apply: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) destroy: Option<String>,
}

#[derive(Debug)]
pub(super) struct Faults {
    dir: PathBuf,
}

impl Faults {
    pub(super) fn open(dir: PathBuf) -> Result<Self> {
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(Self { dir })
    }

    pub(super) fn order(&self, name: &str, orders: &Orders) -> Result<()> {
        write_private(&self.orders_file(name), &serde_json::to_string(orders)?)
    }

    /// A deleted resource's name may come back, and its successor starts without a past.
    pub(super) fn forget(&self, name: &str) -> Result<()> {
        remove_file(&self.orders_file(name))?;
        remove_file(&self.lingers_file(name))?;
        remove_file(&self.once_file(name))
    }

    /// Takes its time and fails, if that is ordered; nothing has been made when it does.
    pub(super) async fn before_apply(&self, name: &str, inputs: &Inputs) -> Result<()> {
        self.linger(name, inputs.seconds("slow_seconds")?).await?;
        if let Some(orders) = self.orders(name)? {
            return fail(orders.apply.as_deref());
        }
        fail(inputs.get("fault_apply"))?;
        let Some(message) = inputs.get("fault_apply_once") else {
            return Ok(());
        };
        // Another message is another fault: it fails once more.
        if fs::read_to_string(self.once_file(name)).ok().as_deref() == Some(message) {
            return Ok(());
        }
        write_private(&self.once_file(name), message)?;
        fail(Some(message))
    }

    /// Takes its time and fails, if that is ordered; nothing has been removed when it does.
    pub(super) async fn before_destroy(&self, name: &str, inputs: &Inputs) -> Result<()> {
        self.linger(name, inputs.seconds("slow_destroy_seconds")?).await?;
        match self.orders(name)? {
            Some(orders) => fail(orders.destroy.as_deref()),
            None => fail(inputs.get("fault_destroy")),
        }
    }

    /// Being slow on purpose ends early when the operator gives an order.
    async fn linger(&self, name: &str, length: Duration) -> Result<()> {
        if length.is_zero() {
            return Ok(());
        }
        write_private(&self.lingers_file(name), "")?;
        let began = Instant::now();
        for passed in 0..length.as_secs() {
            if self.orders(name)?.is_some() {
                break;
            }
            if passed % REPORT_EVERY == 0 {
                println!("{name}: still working, {passed}s of {}s", length.as_secs());
            }
            sleep_until(began + Duration::from_secs(passed + 1)).await;
        }
        remove_file(&self.lingers_file(name))
    }

    /// Whether an apply or a destroy of this resource is slow on purpose right now.
    pub(super) fn lingers(&self, name: &str) -> bool {
        self.lingers_file(name).exists()
    }

    fn orders(&self, name: &str) -> Result<Option<Orders>> {
        let path = self.orders_file(name);
        match fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text)
                .map(Some)
                .with_context(|| format!("{} is damaged", path.display())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    fn orders_file(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.json"))
    }

    /// Is there while somebody is slow on purpose.
    fn lingers_file(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.lingers"))
    }

    /// Holds the message with which an apply has failed once.
    fn once_file(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.once"))
    }
}

fn fail(message: Option<&str>) -> Result<()> {
    match message {
        Some(message) => bail!("{message}"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::inputs::inputs;
    use super::*;

    fn faults() -> (tempfile::TempDir, Faults) {
        let dir = tempfile::tempdir().unwrap();
        let faults = Faults::open(dir.path().join("faults")).unwrap();
        (dir, faults)
    }

    fn message(result: Result<()>) -> Option<String> {
        result.err().map(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_variable_fails_the_apply_for_ever_and_an_operator_heals_it() {
        let (_dir, faults) = faults();
        let given = inputs(&[("fault_apply", "no quota"), ("fault_destroy", "in use")]);
        for _ in 0..2 {
            assert_eq!(
                message(faults.before_apply("a", &given).await).as_deref(),
                Some("no quota")
            );
        }
        assert_eq!(
            message(faults.before_destroy("a", &given).await).as_deref(),
            Some("in use")
        );
        faults.order("a", &Orders::default()).unwrap();
        assert_eq!(message(faults.before_apply("a", &given).await), None);
        assert_eq!(message(faults.before_destroy("a", &given).await), None);
        // Another resource is not healed with it.
        assert_eq!(
            message(faults.before_apply("b", &given).await).as_deref(),
            Some("no quota")
        );
        faults.forget("a").unwrap();
        assert_eq!(
            message(faults.before_apply("a", &given).await).as_deref(),
            Some("no quota")
        );
    }

    #[tokio::test]
    async fn once_is_once_per_message() {
        let (_dir, faults) = faults();
        let first = inputs(&[("fault_apply_once", "throttled")]);
        assert_eq!(
            message(faults.before_apply("a", &first).await).as_deref(),
            Some("throttled")
        );
        assert_eq!(message(faults.before_apply("a", &first).await), None);
        let second = inputs(&[("fault_apply_once", "again")]);
        assert_eq!(
            message(faults.before_apply("a", &second).await).as_deref(),
            Some("again")
        );
        faults.forget("a").unwrap();
        assert_eq!(
            message(faults.before_apply("a", &first).await).as_deref(),
            Some("throttled")
        );
    }

    #[tokio::test]
    async fn an_operator_orders_what_no_variable_says() {
        let (_dir, faults) = faults();
        faults
            .order(
                "a",
                &Orders {
                    apply: None,
                    destroy: Some("held".into()),
                },
            )
            .unwrap();
        assert_eq!(
            message(faults.before_apply("a", &inputs(&[("fault_apply", "no")])).await),
            None
        );
        assert_eq!(
            message(faults.before_destroy("a", &inputs(&[])).await).as_deref(),
            Some("held")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn slow_takes_as_long_as_it_says_and_an_order_ends_it() {
        let (_dir, faults) = faults();
        let began = Instant::now();
        faults
            .before_apply("a", &inputs(&[("slow_seconds", "1")]))
            .await
            .unwrap();
        assert_eq!(began.elapsed().as_secs(), 1);
        assert!(!faults.lingers("a"));
        let slow = inputs(&[("slow_seconds", "60")]);
        let lingering = faults.before_apply("a", &slow);
        assert!(
            tokio::time::timeout(Duration::from_millis(1), lingering).await.is_err(),
            "it is slow"
        );
        assert!(faults.lingers("a"));
        faults.order("a", &Orders::default()).unwrap();
        let began = Instant::now();
        faults
            .before_destroy("a", &inputs(&[("slow_destroy_seconds", "60")]))
            .await
            .unwrap();
        assert_eq!(began.elapsed().as_secs(), 0);
    }
}
