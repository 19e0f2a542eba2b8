//! The requests themselves, for static, dynamic and metadata-only kinds alike, and live reads.
//!
//! `kube::Api` is not used, for two reasons: it offers no namespaced constructor that works for both static and dynamic
//! kinds, and it logs a body that it cannot decode, which may be a Secret.

use std::time::Instant;

use json_patch::Patch as JsonPatch;
use kube::Resource;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::Request;
use kube::core::params::GetParams;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Edit, Objects, Outcome, Planned, audit};
use crate::error::{Failure, ObjectRef, Race, Verb};
use crate::key::Key;

/// How many objects one answer of a live list may hold: a bound on memory, not on the result.
const PAGE: u32 = 500;

/// The part of an object that a patch is addressed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Everything but the status.
    Main,
    Status,
}

impl<K: Resource> Objects<K> {
    fn requests(&self, namespace: Option<&str>) -> Request {
        Request::new(K::url_path(&self.kind, namespace))
    }

    /// Sends a request and gives back the text of a successful answer.
    async fn send(
        &self,
        verb: Verb,
        object: &ObjectRef,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<String, Failure> {
        let fail = |error| Failure::of(verb, object.clone(), error);
        let request = request.map_err(kube::Error::BuildRequest).map_err(fail)?;
        let is_status = request.uri().path().ends_with("/status");
        let answer = self.client.request_text(request).await.map_err(fail);
        self.refusals.judge(verb, object, is_status, answer, Instant::now())
    }

    pub(super) async fn post(&self, object: &ObjectRef, body: &Value) -> Result<Value, Failure> {
        let params = PostParams {
            field_manager: Some(self.manager.as_str().into()),
            ..PostParams::default()
        };
        let body = serde_json::to_vec(body).map_err(|error| unserialisable(object, &error))?;
        let request = self.requests(object.namespace.as_deref()).create(&params, body);
        let text = self.send(Verb::Create, object, request).await?;
        self.written(Verb::Create, object, &text)
    }

    /// Server-side apply with force: a field is ours by the ownership table, whoever wrote it last.
    pub(super) async fn send_apply(&self, object: &ObjectRef, part: Part, body: &Value) -> Result<Value, Failure> {
        let params = PatchParams::apply(self.manager.as_str()).force();
        self.send_patch(Verb::Apply, object, part, &params, &Patch::Apply(body))
            .await
    }

    pub(super) async fn send_json_patch(
        &self,
        object: &ObjectRef,
        part: Part,
        patch: JsonPatch,
    ) -> Result<Value, Failure> {
        let params = PatchParams {
            field_manager: Some(self.manager.as_str().into()),
            ..PatchParams::default()
        };
        self.send_patch(Verb::Patch, object, part, &params, &Patch::Json::<()>(patch))
            .await
    }

    async fn send_patch<P: serde::Serialize>(
        &self,
        verb: Verb,
        object: &ObjectRef,
        part: Part,
        params: &PatchParams,
        patch: &Patch<P>,
    ) -> Result<Value, Failure> {
        let requests = self.requests(object.namespace.as_deref());
        let request = match part {
            Part::Status => requests.patch_subresource("status", &object.name, params, patch),
            Part::Main if K::metadata_api() => requests.patch_metadata(&object.name, params, patch),
            Part::Main => requests.patch(&object.name, params, patch),
        };
        let text = self.send(verb, object, request).await?;
        self.written(verb, object, &text)
    }

    pub(super) async fn send_delete(&self, object: &ObjectRef, params: &DeleteParams) -> Result<(), Failure> {
        let request = self.requests(object.namespace.as_deref()).delete(&object.name, params);
        let text = self.send(Verb::Delete, object, request).await?;
        // The body is the object, which finalizers keep, or a Status, which has no version.
        self.written(Verb::Delete, object, &text).map(drop)
    }

    /// Takes the answer to a write, and lets the cache know what is to come.
    fn written(&self, verb: Verb, object: &ObjectRef, text: &str) -> Result<Value, Failure> {
        let answer: Value = parse_text(verb, object, text)?;
        let version = answer.pointer("/metadata/resourceVersion").and_then(Value::as_str);
        if let (Some(cache), Some(version)) = (&self.shown_in, version.and_then(|text| text.parse().ok())) {
            let key = match &object.namespace {
                Some(namespace) => Key::namespaced(namespace, &object.name),
                None => Key::cluster_scoped(&object.name),
            };
            cache.wrote(key, version);
        }
        Ok(answer)
    }
}

impl<K: Resource + DeserializeOwned> Objects<K> {
    /// A guarded change of single values.
    ///
    /// This is for fields that are shared with others and decided by value, such as the Cluster's endpoint. The UID is
    /// always compared, so an object that was made anew under the same name is never touched. An edit that changes
    /// nothing is not sent.
    pub async fn patch(&self, object: &Planned<'_, K>, edit: Edit, why: &str) -> Result<Outcome<K>, Failure> {
        self.patch_part(object, Part::Main, edit, why).await
    }

    /// Like [`Self::patch`], for values below `status`.
    pub async fn patch_status(&self, object: &Planned<'_, K>, edit: Edit, why: &str) -> Result<Outcome<K>, Failure> {
        self.patch_part(object, Part::Status, edit, why).await
    }

    pub(super) async fn patch_part(
        &self,
        object: &Planned<'_, K>,
        part: Part,
        edit: Edit,
        why: &str,
    ) -> Result<Outcome<K>, Failure> {
        if edit.is_empty() {
            return Ok(Outcome::Unchanged);
        }
        let at = self.planned_ref(object);
        let patch = edit.into_patch(object.uid, object.resource_version);
        let result = self.send_json_patch(&at, part, patch).await;
        self.audit(Verb::Patch, &at, Some(object.uid), why, &result);
        Ok(Outcome::of(parse(Verb::Patch, &at, result?)?))
    }

    /// The object as the API server has it now; `None` when it says that there is none.
    ///
    /// A cache can lag behind, and an unknown kind (its CRD was removed, or is not there yet) answers 404 as well: both
    /// would let a finalizer go while the thing it guards still exists. So absence is only what the server says about
    /// this very name; everything else is an error.
    pub async fn live(&self, namespace: Option<&str>, name: &str) -> Result<Option<K>, Failure> {
        let object = self.object_ref(namespace, name);
        let requests = self.requests(namespace);
        let request = if K::metadata_api() {
            requests.get_metadata(name, &GetParams::default())
        } else {
            requests.get(name, &GetParams::default())
        };
        match self.send(Verb::Read, &object, request).await {
            Ok(text) => parse_text(Verb::Read, &object, &text).map(Some),
            Err(Failure::LostRace {
                race: Race::Vanished, ..
            }) => Ok(None),
            Err(other) => Err(other),
        }
    }

    /// Fails with a lost race unless the planned object is still there and not being deleted, by a live read.
    ///
    /// To be asked before anything is made for it: a create names no version, so nothing else refuses one that was planned
    /// from a cache which is so late that the object, and the child with it, have come and gone since. What is made then
    /// would never be undone.
    pub async fn confirm_living(&self, planned: &Planned<'_, K>) -> Result<(), Failure> {
        let live = self.live(planned.namespace, planned.name).await?;
        let race = match live.as_ref().map(Resource::meta) {
            Some(meta) if meta.uid.as_deref() == Some(planned.uid) && meta.deletion_timestamp.is_none() => {
                return Ok(());
            }
            Some(_) => Race::Changed,
            None => Race::Vanished,
        };
        Err(Failure::LostRace {
            object: self.planned_ref(planned),
            race,
        })
    }

    /// All objects that match, as the API server has them now: an empty answer really means none.
    ///
    /// One object that cannot be read fails the whole call: leaving it out would count it as absent.
    pub async fn live_list(&self, namespace: Option<&str>, labels: Option<&str>) -> Result<Vec<K>, Failure> {
        let collection = self.object_ref(namespace, "");
        let requests = self.requests(namespace);
        let mut params = ListParams {
            label_selector: labels.map(Into::into),
            limit: Some(PAGE),
            ..ListParams::default()
        };
        let mut objects = Vec::new();
        loop {
            let request = if K::metadata_api() {
                requests.list_metadata(&params)
            } else {
                requests.list(&params)
            };
            let text = self.send(Verb::List, &collection, request).await?;
            let page: Page<K> = parse_text(Verb::List, &collection, &text)?;
            objects.extend(page.items);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => return Ok(objects),
            }
        }
    }
}

impl<K: Resource> Objects<K> {
    pub(super) fn audit<T>(
        &self,
        verb: Verb,
        object: &ObjectRef,
        uid: Option<&str>,
        why: &str,
        result: &Result<T, Failure>,
    ) {
        audit::Line {
            manager: self.manager,
            verb,
            object,
            uid,
            why,
        }
        .tell(result);
    }
}

/// A list without its apiVersion and kind: items of built-in kinds carry neither, and those of a list are not needed.
#[derive(serde::Deserialize)]
#[serde(bound = "K: DeserializeOwned")]
struct Page<K> {
    #[serde(default)]
    metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta,
    /// An empty list of metadata comes as `null`.
    #[serde(deserialize_with = "null_is_empty")]
    items: Vec<K>,
}

fn null_is_empty<'de, D: serde::Deserializer<'de>, K: DeserializeOwned>(deserializer: D) -> Result<Vec<K>, D::Error> {
    Ok(Option::<Vec<K>>::deserialize(deserializer)?.unwrap_or_default())
}

fn parse_text<T: DeserializeOwned>(verb: Verb, object: &ObjectRef, text: &str) -> Result<T, Failure> {
    serde_json::from_str(text).map_err(|error| Failure::undecodable(verb, object.clone(), &error))
}

pub(super) fn parse<T: DeserializeOwned>(verb: Verb, object: &ObjectRef, value: Value) -> Result<T, Failure> {
    serde_json::from_value(value).map_err(|error| Failure::undecodable(verb, object.clone(), &error))
}

/// The category only: serde's text may quote the value.
pub(super) fn unserialisable(object: &ObjectRef, error: &serde_json::Error) -> Failure {
    Failure::Misuse {
        object: object.clone(),
        what: format!("it cannot be written as JSON ({:?} error)", error.classify()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::core::PartialObjectMeta;

    /// An API server's own answers: a missing list, unlike an empty one, is no answer to "is there none?".
    #[test]
    fn an_empty_list_may_be_null_but_not_missing() {
        let page =
            |text: &str| serde_json::from_str::<Page<PartialObjectMeta<ConfigMap>>>(text).map(|page| page.items.len());
        assert_eq!(
            page(r#"{"kind": "PartialObjectMetadataList", "metadata": {"resourceVersion": "1"}, "items": null}"#).ok(),
            Some(0)
        );
        assert_eq!(page(r#"{"metadata": {}, "items": []}"#).ok(), Some(0));
        assert_eq!(
            page(r#"{"metadata": {}, "items": [{"metadata": {"name": "a"}}]}"#).ok(),
            Some(1)
        );
        assert!(page(r#"{"metadata": {}}"#).is_err());
    }
}
