//! The objects that CAPT makes for an object: created complete, changed as a whole, never taken from somebody else.

use std::collections::BTreeMap;
use std::fmt;

use capt_api::names::label;
use k8s_openapi::ByteString;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use kube::api::{DeleteParams, Preconditions};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::transport::{Part, parse, unserialisable};
use super::{Edit, Objects, Outcome, Planned, contains};
use crate::error::{Failure, ObjectRef, Race, Verb};

const LABELS: &[&str] = &["metadata", "labels"];
const ANNOTATIONS: &[&str] = &["metadata", "annotations"];
const OWNER_REFERENCES: &[&str] = &["metadata", "ownerReferences"];

/// The object for which a child is made.
#[derive(Debug, Clone, PartialEq)]
pub struct Parent {
    namespace: Option<String>,
    reference: OwnerReference,
}

impl Parent {
    pub fn of<P>(parent: &Planned<'_, P>) -> Self
    where
        P: Resource,
        P::DynamicType: Default,
    {
        let kind = P::DynamicType::default();
        Self {
            namespace: parent.namespace.map(Into::into),
            reference: OwnerReference {
                api_version: P::api_version(&kind).into_owned(),
                kind: P::kind(&kind).into_owned(),
                name: parent.name.into(),
                uid: parent.uid.into(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            },
        }
    }

    pub fn uid(&self) -> &str {
        &self.reference.uid
    }

    /// The reference that a child in this namespace carries. A namespaced owner can only be named within its own
    /// namespace: anywhere else the garbage collector takes the owner for missing and deletes the child.
    fn reference_in(&self, namespace: Option<&str>, bond: Bond) -> Option<&OwnerReference> {
        let reachable = self.namespace.is_none() || self.namespace.as_deref() == namespace;
        (bond == Bond::Reference && reachable).then_some(&self.reference)
    }
}

/// What ties a child to its parent, beside the label that everything made by CAPT carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bond {
    /// A controller ownerReference with blockOwnerDeletion, so that garbage collection is the second net. A child that
    /// is cluster-scoped or in another namespace than its parent cannot have one and gets the label alone.
    Reference,
    /// The label alone: a finalizer decides when the child goes, and garbage collection must not be faster.
    Label,
}

/// Whether the object was made for the parent with this UID: the parent is its controller, or it has no controller and
/// carries the parent's label. Somebody else's controller wins over our label: that one would fight for the object.
pub fn is_ours(child: &ObjectMeta, parent_uid: &str) -> bool {
    match controller(child) {
        Some(controller) => controller.uid == parent_uid,
        None => owner_label(child) == Some(parent_uid),
    }
}

/// The object that controls this one, if any does.
pub fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references
        .iter()
        .flatten()
        .find(|reference| reference.controller == Some(true))
}

fn owner_label(meta: &ObjectMeta) -> Option<&str> {
    meta.labels.as_ref()?.get(label::OWNER_UID).map(String::as_str)
}

/// Whose it is, for people. No UID: the text stands in a condition.
fn owner(meta: &ObjectMeta) -> String {
    match (controller(meta), owner_label(meta)) {
        (Some(controller), _) => format!(
            "its controller is another object, {} {}",
            controller.kind, controller.name
        ),
        (None, Some(_)) => "it was made for another object, or for an earlier one of the same name".into(),
        (None, None) => "it has no controller and was not made by CAPT".into(),
    }
}

/// An object that may be changed and deleted, because it was checked to be ours.
#[derive(Debug)]
pub struct Ours<'a, K>(Planned<'a, K>);

impl<K> Clone for Ours<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Ours<'_, K> {}

impl<'a, K: Resource> Ours<'a, K> {
    /// By its owner: see [`is_ours`].
    pub fn by_owner(objects: &Objects<K>, object: Planned<'a, K>, parent: &Parent) -> Result<Self, Failure> {
        let ours = is_ours(object.object.meta(), parent.uid());
        Self::by_identity(objects, object, ours)
    }

    /// By another mark, which the caller has compared: a Workspace is known by the namespace and name of its apply, so
    /// that it survives the change of all UIDs when a Cluster is moved.
    pub fn by_identity(objects: &Objects<K>, object: Planned<'a, K>, ours: bool) -> Result<Self, Failure> {
        if ours {
            return Ok(Self(object));
        }
        Err(Failure::OwnershipConflict {
            object: objects.planned_ref(&object),
            owner: owner(object.object.meta()),
        })
    }
}

/// What became of a child that was to be created.
#[derive(Clone)]
#[must_use]
pub enum Created<K> {
    /// It is new.
    New(K),
    /// It was there already and is ours: an earlier pass made it and its answer, or the cache, was late.
    Adopted(K),
    /// It was there, is ours, and is being deleted: wait until it has gone.
    Deleting(K),
}

impl<K> fmt::Debug for Created<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::New(_) => "New",
            Self::Adopted(_) => "Adopted",
            Self::Deleting(_) => "Deleting",
        })
    }
}

/// What became of an object that was to be deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Deleted {
    /// The server accepted the deletion; finalizers may keep the object for a while.
    Requested,
    /// It was being deleted already; no request was made.
    InProgress,
    /// There is no such object any more.
    AlreadyGone,
}

/// How a child's live contents are compared with the wished ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    /// They must be equal: for kinds whose schema has no defaults, and whenever the recorded revision differs, because
    /// only then does a key that is no longer rendered go.
    Exact,
    /// The wished ones must be contained in the live ones: for kinds with defaults, while the recorded revision is the
    /// same (see [`contains`]).
    Contained,
}

/// A wished change of a child.
#[derive(Clone, Default)]
pub struct Change {
    contents: Option<(&'static str, Value, Compare)>,
    labels: BTreeMap<String, Option<String>>,
    annotations: BTreeMap<String, Option<String>>,
}

impl Change {
    /// Labels and annotations only.
    pub fn metadata() -> Self {
        Self::default()
    }

    /// This is the whole spec.
    pub fn spec(spec: Value, compare: Compare) -> Self {
        Self {
            contents: Some(("spec", spec, compare)),
            ..Self::default()
        }
    }

    /// This is the whole data of a Secret.
    pub fn data(data: &BTreeMap<String, ByteString>) -> Result<Self, Failure> {
        let data =
            serde_json::to_value(data).map_err(|error| unserialisable(&ObjectRef::new("Secret", None, ""), &error))?;
        Ok(Self {
            contents: Some(("data", data, Compare::Exact)),
            ..Self::default()
        })
    }

    /// Sets one label, or takes it away; other labels are left alone.
    #[must_use]
    pub fn label(mut self, key: &str, value: Option<&str>) -> Self {
        self.labels.insert(key.into(), value.map(Into::into));
        self
    }

    /// Sets one annotation, or takes it away; others are left alone.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: Option<&str>) -> Self {
        self.annotations.insert(key.into(), value.map(Into::into));
        self
    }

    /// What has to be sent so that `live` becomes as wished; empty when it already is.
    fn edit(&self, live: &Value, meta: &ObjectMeta) -> Edit {
        let mut edit = Edit::new();
        if let Some((field, wished, compare)) = &self.contents {
            // A Secret without data has no such member at all.
            let empty = Value::Object(serde_json::Map::new());
            let current = live.get(field).unwrap_or(&empty);
            let as_wished = match compare {
                Compare::Exact => current == wished,
                Compare::Contained => contains(current, wished),
            };
            if !as_wished {
                edit = edit.set(&[field], wished.clone());
            }
        }
        edit.entries(LABELS, meta.labels.as_ref(), &self.labels).entries(
            ANNOTATIONS,
            meta.annotations.as_ref(),
            &self.annotations,
        )
    }
}

/// Names only: the contents may be a Secret's.
impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Change")
            .field("contents", &self.contents.as_ref().map(|(field, ..)| field))
            .field("labels", &self.labels)
            .field("annotations", &self.annotations.keys())
            .finish()
    }
}

impl<K: Resource + Serialize + DeserializeOwned> Objects<K> {
    /// Creates a child, complete: finalizers, labels and annotations are in the body of the one request, so that no crash
    /// leaves an unprotected or unmarked object behind.
    ///
    /// If the name is taken, a live read tells by whom (the cache may not have it yet): an object that [`is_ours`] is the
    /// child that an earlier pass made; anybody else's is left alone and reported.
    pub async fn create(&self, parent: &Parent, bond: Bond, child: K, why: &str) -> Result<Created<K>, Failure> {
        let ours = |live: &K| is_ours(live.meta(), parent.uid());
        self.create_identified(parent, bond, child, ours, why).await
    }

    /// Like [`Self::create`], for a child that is known by another mark than its owner (see [`Ours::by_identity`]).
    pub async fn create_identified(
        &self,
        parent: &Parent,
        bond: Bond,
        mut child: K,
        ours: impl Fn(&K) -> bool,
        why: &str,
    ) -> Result<Created<K>, Failure> {
        let meta = child.meta_mut();
        let name = meta.name.clone().unwrap_or_default();
        let namespace = meta.namespace.clone();
        let at = self.object_ref(namespace.as_deref(), &name);
        if name.is_empty() || controller(meta).is_some() {
            return Err(Failure::Misuse {
                object: at,
                what: "a child needs a name, and no controller but the one it is given here".into(),
            });
        }
        meta.labels
            .get_or_insert_default()
            .insert(label::OWNER_UID.into(), parent.uid().into());
        if let Some(reference) = parent.reference_in(namespace.as_deref(), bond) {
            meta.owner_references.get_or_insert_default().push(reference.clone());
        }
        let mut body = serde_json::to_value(&child).map_err(|error| unserialisable(&at, &error))?;
        if let Some(members) = body.as_object_mut() {
            members.insert("apiVersion".into(), K::api_version(&self.kind).into());
            members.insert("kind".into(), K::kind(&self.kind).into());
        }

        let result = self.post(&at, &body).await;
        let uid = result
            .as_ref()
            .ok()
            .and_then(|live| live.pointer("/metadata/uid"))
            .and_then(Value::as_str);
        self.audit(Verb::Create, &at, uid, why, &result);
        match result {
            Ok(live) => Ok(Created::New(parse(Verb::Create, &at, live)?)),
            Err(Failure::LostRace {
                race: Race::Changed, ..
            }) => self.taken(at, ours).await,
            Err(other) => Err(other),
        }
    }

    /// The name is taken: by our own child, or by somebody else?
    async fn taken(&self, at: ObjectRef, ours: impl Fn(&K) -> bool) -> Result<Created<K>, Failure> {
        let Some(live) = self.live(at.namespace.as_deref(), &at.name).await? else {
            // It has gone since; the next pass creates it.
            return Err(Failure::LostRace {
                object: at,
                race: Race::Vanished,
            });
        };
        if !ours(&live) {
            return Err(Failure::OwnershipConflict {
                object: at,
                owner: owner(live.meta()),
            });
        }
        Ok(if live.meta().deletion_timestamp.is_some() {
            Created::Deleting(live)
        } else {
            Created::Adopted(live)
        })
    }

    /// Makes a child what is wished, in one patch, and not at all when it already is.
    ///
    /// The contents are replaced as a whole, so that keys which are no longer rendered really go: a merge would keep them,
    /// and Terraform would go on with a variable that its user removed. A child that somebody changed since it was read
    /// is not overwritten unseen: the plan is made again.
    pub async fn change(&self, child: &Ours<'_, K>, change: &Change, why: &str) -> Result<Outcome<K>, Failure> {
        let Ours(child) = child;
        let at = self.planned_ref(child);
        let live = serde_json::to_value(child.object).map_err(|error| unserialisable(&at, &error))?;
        let edit = change.edit(&live, child.object.meta());
        self.patch_part(child, Part::Main, edit.at_version(), why).await
    }

    /// Puts back what marks the child as its parent's: a removed ownerReference or a removed label. Without the reference
    /// garbage collection would leave the child behind; without the label a removed reference would make it a stranger.
    pub async fn adopt(
        &self,
        child: &Ours<'_, K>,
        parent: &Parent,
        bond: Bond,
        why: &str,
    ) -> Result<Outcome<K>, Failure> {
        let Ours(child) = child;
        let meta = child.object.meta();
        let marks = BTreeMap::from([(label::OWNER_UID.to_owned(), Some(parent.uid().to_owned()))]);
        let mut edit = Edit::new().entries(LABELS, meta.labels.as_ref(), &marks);
        if let Some(reference) = parent.reference_in(child.namespace, bond)
            && controller(meta).is_none()
        {
            let at = self.planned_ref(child);
            let json = |references: &[OwnerReference]| {
                serde_json::to_value(references).map_err(|error| unserialisable(&at, &error))
            };
            let current = meta.owner_references.as_deref().filter(|list| !list.is_empty());
            // Others may refer to it too, and an uncontrolling reference of the parent's own is replaced by this one.
            let mut wished: Vec<OwnerReference> = current
                .into_iter()
                .flatten()
                .filter(|other| other.uid != reference.uid)
                .cloned()
                .collect();
            wished.push(reference.clone());
            edit = edit
                .only_if(OWNER_REFERENCES, current.map(json).transpose()?)
                .set(OWNER_REFERENCES, json(&wished)?);
        }
        self.patch_part(child, Part::Main, edit, why).await
    }

    /// Deletes an object of ours.
    ///
    /// The UID goes along: an object that was made anew under the same name is another one, and is not deleted by a plan
    /// that was made for the first. Dependents go in the background; the order is kept by finalizers, not by propagation.
    pub async fn delete(&self, object: &Ours<'_, K>, why: &str) -> Result<Deleted, Failure> {
        self.delete_if(object, None, why).await
    }

    /// The same for an object whose end cannot be taken back and depends on what it says: only as it was read.
    pub async fn delete_unchanged(&self, object: &Ours<'_, K>, why: &str) -> Result<Deleted, Failure> {
        self.delete_if(object, Some(object.0.resource_version.into()), why)
            .await
    }

    async fn delete_if(
        &self,
        object: &Ours<'_, K>,
        resource_version: Option<String>,
        why: &str,
    ) -> Result<Deleted, Failure> {
        let Ours(object) = object;
        if object.is_being_deleted() {
            return Ok(Deleted::InProgress);
        }
        let params = DeleteParams::background().preconditions(Preconditions {
            uid: Some(object.uid.into()),
            resource_version,
        });
        let at = self.planned_ref(object);
        let result = self.send_delete(&at, &params).await;
        self.audit(Verb::Delete, &at, Some(object.uid), why, &result);
        match result {
            Ok(()) => Ok(Deleted::Requested),
            Err(Failure::LostRace {
                race: Race::Vanished, ..
            }) => Ok(Deleted::AlreadyGone),
            Err(other) => Err(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};
    use serde_json::json;

    fn meta(owners: serde_json::Value, label: Option<&str>) -> ObjectMeta {
        let mut meta: ObjectMeta =
            serde_json::from_value(json!({"name": "x", "ownerReferences": owners})).expect("metadata");
        meta.labels = label.map(|uid| BTreeMap::from([(label::OWNER_UID.to_owned(), uid.to_owned())]));
        meta
    }

    fn reference(uid: &str, controller: bool) -> serde_json::Value {
        json!({"apiVersion": "v1", "kind": "Thing", "name": "t", "uid": uid, "controller": controller})
    }

    #[test]
    fn ours_is_decided_by_the_controller_and_then_by_the_label() {
        for (owners, label, ours, what) in [
            (json!([reference("me", true)]), None, true, "controlled"),
            (
                json!([reference("me", true)]),
                Some("other"),
                true,
                "controlled, whatever the label says",
            ),
            (
                json!([reference("other", true)]),
                Some("me"),
                false,
                "somebody else's controller wins",
            ),
            (json!([]), Some("me"), true, "the reference was removed"),
            (
                json!([reference("other", false)]),
                Some("me"),
                true,
                "a reference that does not control",
            ),
            (
                json!([reference("me", false)]),
                None,
                false,
                "an uncontrolling reference is no claim",
            ),
            (
                json!([]),
                Some("earlier"),
                false,
                "made for an earlier parent of the same name",
            ),
            (json!([]), None, false, "nobody's"),
        ] {
            assert_eq!(is_ours(&meta(owners, label), "me"), ours, "{what}");
        }
    }

    #[test]
    fn an_owner_is_told_without_uids() {
        let told = [
            owner(&meta(json!([reference("uid-1", true)]), None)),
            owner(&meta(json!([]), Some("uid-1"))),
            owner(&meta(json!([]), None)),
        ];
        assert_eq!(told[0], "its controller is another object, Thing t");
        assert!(told.iter().all(|text| !text.contains("uid-1")), "{told:?}");
    }

    fn parent(namespace: Option<&str>) -> Parent {
        let meta = ObjectMeta {
            name: Some("p".into()),
            namespace: namespace.map(Into::into),
            uid: Some("u".into()),
            resource_version: Some("1".into()),
            ..ObjectMeta::default()
        };
        match namespace {
            Some(_) => {
                let parent = ConfigMap {
                    metadata: meta,
                    ..ConfigMap::default()
                };
                Parent::of(&Planned::new(&parent).expect("complete"))
            }
            None => {
                let parent = Node {
                    metadata: meta,
                    ..Node::default()
                };
                Parent::of(&Planned::new(&parent).expect("complete"))
            }
        }
    }

    #[test]
    fn only_an_owner_that_the_garbage_collector_can_find_is_named() {
        for (parent_in, child_in, bond, referred) in [
            (Some("a"), Some("a"), Bond::Reference, true),
            (Some("a"), Some("a"), Bond::Label, false),
            (Some("a"), Some("b"), Bond::Reference, false),
            (Some("a"), None, Bond::Reference, false),
            (None, Some("a"), Bond::Reference, true),
            (None, None, Bond::Reference, true),
        ] {
            assert_eq!(
                parent(parent_in).reference_in(child_in, bond).is_some(),
                referred,
                "{parent_in:?} {child_in:?} {bond:?}"
            );
        }
        let parent = parent(Some("a"));
        let reference = parent.reference_in(Some("a"), Bond::Reference).expect("same namespace");
        assert_eq!(
            serde_json::to_value(reference).expect("serialises"),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "p", "uid": "u", "controller": true, "blockOwnerDeletion": true})
        );
    }

    #[test]
    fn a_child_is_compared_exactly_or_by_containment() {
        let live = json!({"spec": {"kept": 1, "dropped": 2}});
        let wished = json!({"kept": 1});
        let unmarked = ObjectMeta::default();
        assert!(
            !Change::spec(wished.clone(), Compare::Exact)
                .edit(&live, &unmarked)
                .is_empty()
        );
        assert!(
            Change::spec(wished, Compare::Contained)
                .edit(&live, &unmarked)
                .is_empty()
        );
        assert!(
            !Change::spec(json!({"kept": 2}), Compare::Contained)
                .edit(&live, &unmarked)
                .is_empty()
        );
    }

    #[test]
    fn a_secret_without_data_equals_an_empty_wish() {
        let nothing = Change::data(&BTreeMap::new()).expect("serialises");
        let secret = serde_json::to_value(Secret::default()).expect("serialises");
        assert!(nothing.edit(&secret, &ObjectMeta::default()).is_empty());
    }

    #[test]
    fn debug_shows_no_contents() {
        let data = BTreeMap::from([("value".to_owned(), ByteString(b"hunter2".to_vec()))]);
        let change = Change::data(&data).expect("serialises");
        let shown = format!("{change:?}");
        assert!(
            shown.contains("data") && !shown.contains("hunter2") && !shown.contains("aHVudGVyMg"),
            "{shown}"
        );
    }

    #[test]
    fn an_object_that_never_was_on_the_server_cannot_be_written() {
        for missing in ["name", "uid", "resourceVersion"] {
            let mut meta = json!({"name": "x", "uid": "u", "resourceVersion": "1"});
            meta.as_object_mut().expect("an object").remove(missing);
            let object: ConfigMap = serde_json::from_value(json!({"metadata": meta})).expect("a ConfigMap");
            assert!(
                matches!(Planned::new(&object), Err(Failure::Misuse { .. })),
                "{missing}"
            );
        }
    }
}
