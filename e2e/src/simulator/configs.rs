//! Which ProviderConfigs exist: known from watches, as the provider knows them, because every pass asks.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use futures::future::{self, BoxFuture};
use futures::{FutureExt, StreamExt};
use kube::api::{DynamicObject, GroupVersionKind, PartialObjectMeta};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, discovery};

use super::installed;
use super::workspace::ProviderConfigRef;

/// `ClusterProviderConfig` is known to the namespaced group only.
const KINDS: [&str; 2] = ["ProviderConfig", "ClusterProviderConfig"];

pub(super) struct ProviderConfigs {
    group: String,
    by_kind: BTreeMap<&'static str, Kind>,
}

struct Kind {
    namespaced: bool,
    resource: kube::api::ApiResource,
    store: Store<PartialObjectMeta<DynamicObject>>,
}

impl ProviderConfigs {
    /// The caches of one group, and the watches that fill them while they are driven.
    pub(super) async fn watch(
        client: &Client,
        group: &str,
        version: &str,
    ) -> Result<(Self, Vec<BoxFuture<'static, ()>>)> {
        let mut by_kind = BTreeMap::new();
        let mut watches = Vec::new();
        for kind in KINDS {
            let Some((resource, capabilities)) =
                installed(client, &GroupVersionKind::gvk(group, version, kind)).await?
            else {
                continue;
            };
            let api = Api::<PartialObjectMeta<DynamicObject>>::all_with(client.clone(), &resource);
            let writer = reflector::store::Writer::new(resource.clone());
            let store = writer.as_reader();
            let watch = watcher(api, watcher::Config::default())
                .default_backoff()
                .reflect(writer)
                .for_each(|event| {
                    if let Err(error) = event {
                        tracing::warn!(%error, "the watch of ProviderConfigs failed");
                    }
                    future::ready(())
                });
            watches.push(watch.boxed());
            let namespaced = capabilities.scope == discovery::Scope::Namespaced;
            by_kind.insert(
                kind,
                Kind {
                    namespaced,
                    resource,
                    store,
                },
            );
        }
        let caches = Self {
            group: group.to_owned(),
            by_kind,
        };
        Ok((caches, watches))
    }

    pub(super) async fn wait_until_ready(&self) -> Result<()> {
        for kind in self.by_kind.values() {
            let ready = kind.store.wait_until_ready().await;
            ready.context("a watch of ProviderConfigs ended before it was synced")?;
        }
        Ok(())
    }

    /// The provider's words when the ProviderConfig is not there.
    pub(super) fn resolve(&self, reference: Option<&ProviderConfigRef>, namespace: Option<&str>) -> Result<(), String> {
        let Some(reference) = reference else {
            return Err("provider config is not set".to_owned());
        };
        let kind = reference.kind.as_deref().unwrap_or("ProviderConfig");
        let found = self.by_kind.get(kind).and_then(|known| {
            let mut key = ObjectRef::new_with(&reference.name, known.resource.clone());
            if let Some(namespace) = namespace.filter(|_| known.namespaced) {
                key = key.within(namespace);
            }
            known.store.get(&key)
        });
        match found {
            Some(_) => Ok(()),
            None => Err(format!(
                "cannot get provider config: {kind}.{} {:?} not found",
                self.group, reference.name
            )),
        }
    }
}
