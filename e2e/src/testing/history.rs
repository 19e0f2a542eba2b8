//! Every version of one object, so that a test can tell what it went through and not only where it ended.

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use kube::Api;
use kube::api::DynamicObject;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::CLUSTER_PATIENCE;

/// The versions from before the test acted to whatever was awaited last.
pub struct History {
    name: String,
    api: Api<DynamicObject>,
    /// From a task that reads on while the test is at something else: a watch that nobody reads is forgotten by the server.
    events: mpsc::UnboundedReceiver<Event<DynamicObject>>,
    /// `None` where it was gone.
    seen: Vec<Option<DynamicObject>>,
}

impl History {
    /// Begins with the object as it stands.
    pub async fn begin(api: Api<DynamicObject>, name: &str) -> Result<Self> {
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let mut changes = watcher::watcher(api.clone(), config).default_backoff().boxed();
        let (send, events) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(change) = changes.next().await {
                // The API server may be away for a while: the watch comes back by itself.
                if let Ok(event) = change
                    && send.send(event).is_err()
                {
                    break;
                }
            }
        });
        let mut history = Self {
            name: name.to_owned(),
            events,
            api,
            seen: Vec::new(),
        };
        let listed = async {
            while !history.step().await? {}
            anyhow::Ok(())
        };
        tokio::time::timeout(CLUSTER_PATIENCE, listed)
            .await
            .with_context(|| format!("{name} cannot be watched"))??;
        if history.seen.is_empty() {
            history.seen.push(None);
        }
        Ok(history)
    }

    /// Takes in what happened next; whether that was the end of the list.
    async fn step(&mut self) -> Result<bool> {
        match self.events.recv().await.context("the watch has ended")? {
            Event::Apply(object) | Event::InitApply(object) => self.seen.push(Some(object)),
            Event::Delete(_) => self.seen.push(None),
            Event::Init => {
                // A second list would hide what happened in between.
                ensure!(self.seen.is_empty(), "the watch of {} was interrupted", self.name);
            }
            Event::InitDone => return Ok(true),
        }
        Ok(false)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub async fn until(&mut self, what: &str, holds: impl Fn(&DynamicObject) -> bool) -> Result<DynamicObject> {
        self.follow(what, |object| object.is_some_and(&holds)).await?;
        let last = self.seen.last().cloned().flatten();
        last.context("the object vanished")
    }

    pub async fn until_gone(&mut self) -> Result<()> {
        self.follow("gone", |object| object.is_none()).await
    }

    /// Takes in everything that has happened until now.
    pub async fn up_to_now(&mut self) -> Result<()> {
        let now = self.api.get_opt(&self.name).await?;
        let Some(now) = now.as_ref().map(version) else {
            return self.until_gone().await;
        };
        self.follow("up to date", |object| {
            object.is_some_and(|object| version(object) >= now)
        })
        .await
    }

    async fn follow(&mut self, what: &str, holds: impl Fn(Option<&DynamicObject>) -> bool) -> Result<()> {
        let deadline = Instant::now() + CLUSTER_PATIENCE;
        while !self.seen.last().is_some_and(|last| holds(last.as_ref())) {
            let Ok(step) = tokio::time::timeout_at(deadline, self.step()).await else {
                let mut last = serde_json::to_value(self.seen.last())?;
                // The values of a Secret are nobody's business.
                if let Some(fields) = last.as_object_mut() {
                    fields.remove("data");
                }
                let last = serde_json::to_string_pretty(&last)?;
                bail!(
                    "{}: not {what} within {} s; it is\n{last}",
                    self.name,
                    CLUSTER_PATIENCE.as_secs()
                );
            };
            step?;
        }
        Ok(())
    }

    /// What each version tells, without repetitions.
    pub fn tells<T: PartialEq>(&self, told: impl Fn(&DynamicObject) -> T) -> Vec<T> {
        let mut story: Vec<T> = self.seen.iter().flatten().map(told).collect();
        story.dedup();
        story
    }

    pub fn was_ever_gone(&self) -> bool {
        self.seen.iter().any(Option::is_none)
    }
}

/// Versions of one API server can be compared: they are the numbers of its writes.
pub fn version(object: &DynamicObject) -> u64 {
    let version = object.metadata.resource_version.as_deref();
    version.and_then(|version| version.parse().ok()).unwrap_or_default()
}
