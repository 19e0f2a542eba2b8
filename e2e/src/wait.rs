//! Waiting for an object by watching it.

use std::fmt::Debug;
use std::pin::pin;

use futures::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::wait::Condition;
use kube::runtime::watcher::watch_object;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

/// Returns the object when `holds` of it, for which one that is not there is `None`. Whoever waits says for how long.
///
/// A watch that fails is begun again: a busy API server may refuse one, or end it. kube's own `await_condition` ends with that.
pub async fn until<K>(api: Api<K>, name: &str, holds: impl Condition<K>) -> Option<K>
where
    K: Clone + Debug + Send + DeserializeOwned + Resource + 'static,
{
    let mut versions = pin!(watch_object(api, name).default_backoff());
    while let Some(version) = versions.next().await {
        match version {
            Ok(object) if holds.matches_object(object.as_ref()) => return object,
            Ok(_) => {}
            Err(error) => eprintln!("the watch of {name} failed and goes on: {error}"),
        }
    }
    // It tries again for ever.
    std::future::pending().await
}
