//! The world of one test: a namespace, a subject that nobody else watches, and what the tests assert with.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use anyhow::{Context, Result, bail, ensure};
use capt_api::CaptControlPlane;
use capt_api::controlplane::{CaptControlPlaneStatus, Phase};
use capt_api::names::Manager;
use capt_e2e::testing;
use capt_runtime::apply::{Objects, Outcome, Writer};
use capt_runtime::error::{Class, Classified, Failure, Race};
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{ApiResource, DeleteParams, DynamicObject, ObjectMeta, Patch, PatchParams, PostParams};
use kube::core::object::HasStatus;
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::audit::LOG;

/// An API group that no controller knows.
pub(crate) const GROUP: &str = "write-protocol.test.capt.dev";
/// The reason that writes give when it does not matter.
pub(crate) const WHY: &str = "a test";

/// A CAPTControlPlane in [`GROUP`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Subject(pub(crate) CaptControlPlane);

impl Resource for Subject {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind(_: &()) -> Cow<'_, str> {
        CaptControlPlane::kind(&())
    }
    fn group(_: &()) -> Cow<'_, str> {
        GROUP.into()
    }
    fn version(_: &()) -> Cow<'_, str> {
        CaptControlPlane::version(&())
    }
    fn plural(_: &()) -> Cow<'_, str> {
        CaptControlPlane::plural(&())
    }
    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
    }
}

impl HasStatus for Subject {
    type Status = CaptControlPlaneStatus;

    fn status(&self) -> Option<&CaptControlPlaneStatus> {
        self.0.status.as_ref()
    }
    fn status_mut(&mut self) -> &mut Option<CaptControlPlaneStatus> {
        &mut self.0.status
    }
}

/// The real CRD under the other group, without anything by which Cluster API would find it.
fn subject_crd() -> Result<CustomResourceDefinition> {
    let mut crd = capt_api::crd::all()
        .into_iter()
        .find(|crd| crd.spec.names.kind == CaptControlPlane::kind(&()))
        .context("capt-api has no CAPTControlPlane")?;
    crd.metadata = ObjectMeta {
        name: Some(format!("{}.{GROUP}", crd.spec.names.plural)),
        ..ObjectMeta::default()
    };
    crd.spec.group = GROUP.into();
    crd.spec.names.categories = None;
    crd.spec.names.short_names = None;
    Ok(crd)
}

/// One test's world: a namespace, and a client that may do everything.
pub(crate) struct World {
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

impl World {
    pub(crate) async fn new(prefix: &str) -> Result<Self> {
        LazyLock::force(&LOG);
        let client = testing::client().await?;
        let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
        let crd = subject_crd()?;
        let name = crd.name_any();
        crds.patch(
            &name,
            &PatchParams::apply("write-protocol-test").force(),
            &Patch::Apply(&crd),
        )
        .await?;
        await_condition(crds, &name, conditions::is_crd_established()).await?;
        let namespace = testing::namespace(&client, prefix).await?;
        Ok(Self { client, namespace })
    }

    pub(crate) fn as_manager<K: Resource<DynamicType = ()>>(&self, manager: Manager) -> Objects<K> {
        Writer::new(self.client.clone(), manager).of()
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) fn meta(&self, name: &str) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.into()),
            namespace: Some(self.namespace.clone()),
            ..ObjectMeta::default()
        }
    }

    pub(crate) async fn subject(&self, name: &str) -> Result<Subject> {
        self.subject_with(name, ObjectMeta::default()).await
    }

    pub(crate) async fn subject_with(&self, name: &str, mut metadata: ObjectMeta) -> Result<Subject> {
        metadata.name = Some(name.into());
        metadata.namespace = Some(self.namespace.clone());
        let object = json!({
            "apiVersion": format!("{GROUP}/v1beta1"),
            "kind": "CAPTControlPlane",
            "metadata": metadata,
            "spec": {
                "version": "1.31",
                "workspaceTemplateRef": {"name": "eks"},
                "controlPlaneConfig": {"region": "eu-west-1"},
            },
        });
        let kind = ApiResource::erase::<Subject>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &self.namespace, &kind);
        let made = api
            .create(&PostParams::default(), &serde_json::from_value(object)?)
            .await?;
        Ok(made.try_parse()?)
    }

    /// Deletes the subject and makes another one under its name.
    pub(crate) async fn recreate(&self, subject: &Subject) -> Result<Subject> {
        let api: Api<Subject> = self.api();
        api.delete(&subject.name_any(), &DeleteParams::default()).await?;
        let uid = subject.uid().context("no uid")?;
        await_condition(api, &subject.name_any(), conditions::is_deleted(&uid)).await?;
        self.subject(&subject.name_any()).await
    }

    pub(crate) async fn configmap(&self, metadata: ObjectMeta) -> Result<ConfigMap> {
        let wanted = ConfigMap {
            metadata,
            data: Some(BTreeMap::from([("k".into(), "v".into())])),
            ..ConfigMap::default()
        };
        Ok(self.api().create(&PostParams::default(), &wanted).await?)
    }

    /// The object as the server has it, byte for byte.
    pub(crate) async fn raw<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(
        &self,
        name: &str,
    ) -> Result<String> {
        let url = format!("{}/{name}", K::url_path(&(), Some(&self.namespace)));
        Ok(self
            .client
            .request_text(http::Request::get(url).body(Vec::new())?)
            .await?)
    }

    pub(crate) async fn version<K>(&self, name: &str) -> Result<String>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + std::fmt::Debug + DeserializeOwned,
    {
        self.api::<K>()
            .get(name)
            .await?
            .resource_version()
            .context("no resourceVersion")
    }
}

pub(crate) fn condition(kind: &str, status: &str) -> Condition {
    Condition {
        type_: kind.into(),
        status: status.into(),
        reason: "Testing".into(),
        message: String::new(),
        last_transition_time: Time(Timestamp::UNIX_EPOCH),
        observed_generation: None,
    }
}

/// A report of capt-controlplane-controller.
pub(crate) fn report(phase: Phase) -> CaptControlPlaneStatus {
    CaptControlPlaneStatus {
        phase: Some(phase),
        ready: Some(false),
        conditions: vec![condition("Ready", "False"), condition("Available", "False")],
        ..CaptControlPlaneStatus::default()
    }
}

pub(crate) fn written<K>(outcome: Outcome<K>) -> Result<K> {
    outcome.written().context("nothing was written")
}

pub(crate) fn failure<T>(result: Result<T, Failure>) -> Result<Failure> {
    match result {
        Ok(_) => bail!("it succeeded"),
        Err(failure) => Ok(failure),
    }
}

/// "Lost the race" is a class of its own, whatever code the server chose, and its text never changes.
pub(crate) fn assert_lost<T>(result: Result<T, Failure>, race: Race) -> Result<()> {
    let lost = failure(result)?;
    ensure!(
        matches!(&lost, Failure::LostRace { race: seen, .. } if *seen == race),
        "{lost:?}"
    );
    ensure!(lost.class() == Class::Conflict, "{lost:?}");
    Ok(())
}

pub(crate) fn condition_status<'a>(subject: &'a Subject, kind: &str) -> Option<&'a str> {
    let conditions = &subject.status()?.conditions;
    conditions
        .iter()
        .find(|condition| condition.type_ == kind)
        .map(|condition| condition.status.as_str())
}

pub(crate) fn finalized(finalizer: &str) -> ObjectMeta {
    ObjectMeta {
        finalizers: Some(vec![finalizer.into()]),
        ..ObjectMeta::default()
    }
}

pub(crate) fn no_annotations() -> BTreeMap<String, Option<String>> {
    BTreeMap::new()
}
