//! Secrets and ConfigMaps that Terraform reads are kept until no apply lists them any more.
//!
//! Level-triggered from the input itself: whatever happened to the applies meanwhile, an input that carries our finalizer
//! is looked at, and let go when a live look finds nobody who needs it.

use capt_api::WorkspaceTemplateApply;
use capt_api::names::finalizer;
use capt_runtime::apply::{Objects, Planned};
use capt_runtime::cache::{Cache, Index};
use capt_runtime::controller::{Reconciler, Wake};
use capt_runtime::error::Failure;
use capt_runtime::key::Key;
use kube::{Resource, ResourceExt};

use crate::observe::listed_inputs;
use crate::render::Input;

pub(crate) struct Inputs<K: Resource> {
    pub(crate) cache: Cache<K>,
    pub(crate) objects: Objects<K>,
    pub(crate) applies: Objects<WorkspaceTemplateApply>,
    pub(crate) by_input: Index<WorkspaceTemplateApply, Input>,
    pub(crate) input: fn(&Key) -> Input,
}

impl<K> Reconciler for Inputs<K>
where
    K: Resource<DynamicType = ()> + serde::de::DeserializeOwned + Send + Sync + 'static,
{
    type Error = Failure;

    async fn reconcile(&self, key: &Key) -> Result<Wake, Failure> {
        let Some(object) = self.cache.get(key).filter(|object| is_protected(&**object)) else {
            return Ok(Wake::OnEvent);
        };
        let input = (self.input)(key);
        if !self.by_input.keys(&input).is_empty() {
            return Ok(Wake::OnEvent);
        }
        let applies = self.applies.live_list(key.namespace(), None).await?;
        if applies.iter().all(|apply| !listed_inputs(apply).contains(&input)) {
            let why = "no apply reads it any more";
            let _written = self
                .objects
                .remove_finalizers(&Planned::new(&*object)?, &[finalizer::WORKSPACE_INPUT], why)
                .await?;
        }
        Ok(Wake::OnEvent)
    }
}

pub(crate) fn is_protected<K: Resource>(object: &K) -> bool {
    object
        .finalizers()
        .iter()
        .any(|present| present == finalizer::WORKSPACE_INPUT)
}
