//! What ties a namespace, and the RoleBinding in it, to its Tenant.

use std::collections::BTreeMap;

use capt_api::Tenant;
use capt_api::names::{label, label_value};
use capt_api::tenant::TenantDeletionPolicy;
use capt_runtime::apply::{Bond, Edit};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt};
use serde_json::json;

const LABELS: &[&str] = &["metadata", "labels"];
const OWNER_REFERENCES: &[&str] = &["metadata", "ownerReferences"];

/// The marks of one Tenant.
#[derive(Debug, Clone)]
pub(crate) struct Marks {
    uid: String,
    labels: BTreeMap<String, Option<String>>,
    /// With it, garbage collection is the second net, and `kubectl delete --cascade=orphan` keeps the namespaces. Without it,
    /// a foreground deletion does not delete namespaces that spec.deletionPolicy Block protects.
    reference: Option<OwnerReference>,
    is_ending: bool,
}

impl Marks {
    pub(crate) fn of(tenant: &Tenant) -> Self {
        let uid = tenant.uid().unwrap_or_default();
        let is_blocking = tenant.spec.deletion_policy == Some(TenantDeletionPolicy::Block);
        Self {
            labels: BTreeMap::from([
                (label::OWNER_UID.to_owned(), Some(uid.clone())),
                (label::TENANT.to_owned(), Some(label_value(&tenant.name_any()))),
            ]),
            reference: tenant.controller_owner_ref(&()).filter(|_| !is_blocking),
            is_ending: tenant.metadata.deletion_timestamp.is_some(),
            uid,
        }
    }

    /// How it is given to something new.
    pub(crate) fn bond(&self) -> Bond {
        match self.reference {
            Some(_) => Bond::Reference,
            None => Bond::Label,
        }
    }

    /// Whether it holds this object. While the Tenant lives, one of the two marks is enough, and the other is put back. When
    /// it goes, what should have a reference and has none any more was let go by its user.
    pub(crate) fn holds(&self, meta: &ObjectMeta) -> bool {
        match controller(meta) {
            Some(controller) => controller.uid == self.uid,
            None => owner_label(meta) == Some(&self.uid) && !(self.is_ending && self.reference.is_some()),
        }
    }

    /// The labels of something new, but for the one that everything made by CAPT gets.
    pub(crate) fn labels(&self) -> BTreeMap<String, String> {
        let labels = self.labels.iter();
        labels
            .filter_map(|(key, value)| Some((key.clone(), value.clone()?)))
            .collect()
    }

    /// What has to be changed on an object of the Tenant's so that all marks are as they should be.
    pub(crate) fn mending(&self, meta: &ObjectMeta) -> Edit {
        let edit = Edit::new().entries(LABELS, meta.labels.as_ref(), &self.labels);
        let current = meta.owner_references.clone().unwrap_or_default();
        // Others may refer to it too.
        let others = current.iter().filter(|reference| reference.uid != self.uid).cloned();
        let wished: Vec<OwnerReference> = others.chain(self.reference.clone()).collect();
        if wished == current {
            return edit;
        }
        let edit = edit.only_if(OWNER_REFERENCES, (!current.is_empty()).then(|| json!(current)));
        if wished.is_empty() {
            edit.remove(OWNER_REFERENCES)
        } else {
            edit.set(OWNER_REFERENCES, json!(wished))
        }
    }

    /// The Tenant's UID, by which what belongs to it is found.
    pub(crate) fn uid(&self) -> &str {
        &self.uid
    }
}

/// The UIDs of the objects that this one may belong to.
pub(crate) fn owners(meta: &ObjectMeta) -> Vec<String> {
    let marks = [
        controller(meta).map(|reference| reference.uid.as_str()),
        owner_label(meta),
    ];
    let mut owners: Vec<String> = marks.into_iter().flatten().map(str::to_owned).collect();
    owners.dedup();
    owners
}

fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    let references = meta.owner_references.iter().flatten();
    references
        .into_iter()
        .find(|reference| reference.controller == Some(true))
}

fn owner_label(meta: &ObjectMeta) -> Option<&str> {
    meta.labels.as_ref()?.get(label::OWNER_UID).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use capt_api::tenant::TenantSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::Value;

    fn tenant(policy: TenantDeletionPolicy, deleting: bool) -> Tenant {
        let spec = TenantSpec {
            deletion_policy: Some(policy),
            ..TenantSpec::default()
        };
        let mut tenant = Tenant::new("team-a", spec);
        tenant.metadata.uid = Some("t".into());
        tenant.metadata.deletion_timestamp = deleting.then_some(Time(jiff::Timestamp::UNIX_EPOCH));
        tenant
    }

    fn meta(owner: Option<&str>, label: Option<&str>) -> ObjectMeta {
        let reference =
            |uid: &str| json!({"apiVersion": "x/v1", "kind": "X", "name": "x", "uid": uid, "controller": true});
        let owners: Vec<Value> = owner.map(reference).into_iter().collect();
        let mut meta: ObjectMeta = serde_json::from_value(json!({ "name": "n", "ownerReferences": owners })).unwrap();
        meta.labels = label.map(|uid| BTreeMap::from([(label::OWNER_UID.to_owned(), uid.to_owned())]));
        meta
    }

    #[test]
    fn a_namespace_is_held_by_either_mark_until_the_tenant_goes() {
        use TenantDeletionPolicy::{Block, Cascade};
        for (policy, deleting, owner, label, held) in [
            (Cascade, false, Some("t"), None, true),
            (Cascade, false, None, Some("t"), true),
            (Cascade, false, Some("other"), Some("t"), false),
            (Cascade, false, None, Some("earlier"), false),
            (Cascade, false, None, None, false),
            (Cascade, true, Some("t"), Some("t"), true),
            // Orphaned.
            (Cascade, true, None, Some("t"), false),
            (Block, true, None, Some("t"), true),
            (Block, true, Some("t"), None, true),
            (Block, true, Some("other"), Some("t"), false),
        ] {
            let marks = Marks::of(&tenant(policy, deleting));
            assert_eq!(
                marks.holds(&meta(owner, label)),
                held,
                "{policy:?} {deleting} {owner:?} {label:?}"
            );
        }
    }

    #[test]
    fn marks_are_put_back_once() {
        for policy in [TenantDeletionPolicy::Cascade, TenantDeletionPolicy::Block] {
            let tenant = tenant(policy, false);
            let marks = Marks::of(&tenant);
            for damaged in [meta(Some("t"), None), meta(None, Some("t")), meta(None, None)] {
                assert!(!marks.mending(&damaged).is_empty(), "{policy:?} {damaged:?}");
            }
            let whole = ObjectMeta {
                labels: Some(marks.labels()),
                owner_references: marks.reference.clone().map(|reference| vec![reference]),
                ..ObjectMeta::default()
            };
            assert!(marks.mending(&whole).is_empty(), "{policy:?}");
        }
    }

    #[test]
    fn an_object_may_belong_to_what_either_mark_names() {
        assert_eq!(owners(&meta(Some("a"), Some("a"))), ["a"]);
        assert_eq!(owners(&meta(Some("a"), Some("b"))), ["a", "b"]);
        assert_eq!(owners(&meta(None, Some("b"))), ["b"]);
        assert!(owners(&meta(None, None)).is_empty());
    }
}
