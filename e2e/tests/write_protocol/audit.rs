//! Audit lines: one for every creation, deletion and Secret write, and never a value.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use anyhow::{Result, bail};
use capt_api::names::Manager;
use capt_runtime::apply::{Bond, Change, Created, Deleted, Ours, Parent, Planned};
use capt_runtime::error::Race;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use serde_json::Value;

use crate::world::{World, assert_lost, written};

/// Everything that this program has logged, at every level.
///
/// One subscriber for all tests, installed before the first write of any: `tracing` remembers for each place in the code
/// whether anybody listens, and a place that is first reached while a subscriber of a single test is being installed may
/// be remembered as one to which nobody does.
pub(crate) static LOG: LazyLock<Log> = LazyLock::new(|| {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .json()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .init();
    log
});

#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> Result<String> {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(String::from_utf8(bytes)?)
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn every_creation_deletion_and_secret_write_has_one_audit_line_and_no_value() -> Result<()> {
    const VALUE: &str = "correct horse battery staple";
    let world = World::new("wp-audit").await?;
    let secrets = world.as_manager::<Secret>(Manager::Secrets);
    let configmaps = world.as_manager::<ConfigMap>(Manager::ControlPlane);
    let parent = Parent::of(&Planned::new(&world.subject("p").await?)?);
    let data = |text: &str| BTreeMap::from([("value".to_owned(), ByteString(text.as_bytes().to_vec()))]);
    let body = Secret {
        metadata: world.meta("s"),
        data: Some(data(VALUE)),
        ..Secret::default()
    };
    let created = secrets.create(&parent, Bond::Reference, body, "first copy").await?;
    let Created::New(made) = created else {
        bail!("{created:?}")
    };
    let ours = Ours::by_owner(&secrets, Planned::new(&made)?, &parent)?;
    let change = Change::data(&data(&format!("{VALUE} 2")))?;
    let now = written(secrets.change(&ours, &change, "rotation").await?)?;
    assert_lost(
        secrets.change(&ours, &Change::data(&data("3"))?, "stale").await,
        Race::Changed,
    )?;
    let ours = Ours::by_owner(&secrets, Planned::new(&now)?, &parent)?;
    assert!(secrets.change(&ours, &change, "nothing to do").await?.is_unchanged());
    assert_eq!(secrets.delete(&ours, "cluster deleted").await?, Deleted::Requested);
    let body = ConfigMap {
        metadata: world.meta("c"),
        ..ConfigMap::default()
    };
    let created = configmaps.create(&parent, Bond::Reference, body, "a child").await?;
    let Created::New(made) = created else {
        bail!("{created:?}")
    };
    let ours = Ours::by_owner(&configmaps, Planned::new(&made)?, &parent)?;
    written(
        configmaps
            .change(&ours, &Change::metadata().label("a", Some("b")), "not audited")
            .await?,
    )?;

    let text = LOG.text()?;
    let encoded = "Y29ycmVjdCBob3JzZSBiYXR0ZXJ5IHN0YXBsZ";
    assert!(
        !text.contains(VALUE) && !text.contains(encoded),
        "a Secret's value was logged"
    );
    let lines: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let lines: Vec<&Value> = lines
        .iter()
        .filter(|line| line["target"] == "audit" && line["fields"]["namespace"] == world.namespace)
        .collect();
    let audited: Vec<[&str; 4]> = lines
        .iter()
        .map(|line| ["what", "kind", "name", "why"].map(|field| line["fields"][field].as_str().unwrap_or("missing")))
        .collect();
    assert_eq!(
        audited,
        [
            ["create", "Secret", "s", "first copy"],
            ["patch", "Secret", "s", "rotation"],
            ["delete", "Secret", "s", "cluster deleted"],
            ["create", "ConfigMap", "c", "a child"],
        ]
    );
    for line in lines {
        let uid = line["fields"]["uid"].as_str();
        assert!(uid.is_some_and(|uid| uid.len() == 36), "{line}");
        assert_eq!(line["fields"]["outcome"], "done", "{line}");
    }
    Ok(())
}
