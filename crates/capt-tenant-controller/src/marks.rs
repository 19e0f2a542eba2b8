//! What ties a namespace, and the RoleBinding in it, to its Tenant.

use std::collections::BTreeMap;

use capt_api::Tenant;
use capt_api::names::{label, label_value};
use capt_runtime::apply::{Bond, Edit, controller};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt};
use serde_json::json;

const LABELS: &[&str] = &["metadata", "labels"];
const OWNER_REFERENCES: &[&str] = &["metadata", "ownerReferences"];

/// The value of [`label::TENANT_DELETION_POLICY`] on what has no reference.
const BLOCK: &str = "Block";

/// The marks of one Tenant.
#[derive(Debug, Clone)]
pub(crate) struct Marks {
    uid: String,
    tenant: String,
    /// With it, garbage collection is the second net, and `kubectl delete --cascade=orphan` keeps the namespaces. Without it,
    /// a foreground deletion does not delete namespaces that spec.deletionPolicy Block protects.
    reference: Option<OwnerReference>,
    is_ending: bool,
}

impl Marks {
    pub(crate) fn of(tenant: &Tenant) -> Self {
        let reference = tenant.controller_owner_ref(&()).filter(|_| !tenant.is_blocking());
        Self {
            uid: tenant.uid().unwrap_or_default(),
            tenant: label_value(&tenant.name_any()),
            reference: reference.map(|reference| OwnerReference {
                block_owner_deletion: Some(true),
                ..reference
            }),
            is_ending: tenant.metadata.deletion_timestamp.is_some(),
        }
    }

    /// How something new is tied to the Tenant.
    pub(crate) fn bond(&self) -> Bond {
        match self.reference {
            Some(_) => Bond::Reference,
            None => Bond::Label,
        }
    }

    /// Whether this object, which is this namespace or is in it, is the Tenant's.
    ///
    /// While the Tenant lives, its UID in one of the two places is enough, and the other is put back. When it goes, what should
    /// have a reference and has none any more was let go by its user. A copy under another name has the labels, too, but
    /// they say whose they were.
    pub(crate) fn holds(&self, meta: &ObjectMeta) -> bool {
        if let Some(controller) = controller(meta) {
            return controller.uid == self.uid;
        }
        let is_whole = !self.is_ending || label_of(meta, label::TENANT_DELETION_POLICY) == Some(BLOCK);
        owner_label(meta) == Some(&self.uid)
            && label_of(meta, label::TENANT_NAMESPACE) == Some(namespace_of(meta))
            && is_whole
    }

    /// The labels of an object of the Tenant's in this namespace, or of the namespace itself; `None` is not to be there.
    fn wished_labels(&self, namespace: &str) -> BTreeMap<String, Option<String>> {
        let block = self.reference.is_none().then(|| BLOCK.to_owned());
        BTreeMap::from([
            (label::OWNER_UID.to_owned(), Some(self.uid.clone())),
            (label::TENANT.to_owned(), Some(self.tenant.clone())),
            (label::TENANT_NAMESPACE.to_owned(), Some(namespace.to_owned())),
            (label::TENANT_DELETION_POLICY.to_owned(), block),
        ])
    }

    /// The labels of something new.
    pub(crate) fn labels(&self, namespace: &str) -> BTreeMap<String, String> {
        let labels = self.wished_labels(namespace).into_iter();
        labels.filter_map(|(key, value)| Some((key, value?))).collect()
    }

    /// What has to be changed on an object of the Tenant's so that all marks are as they should be, in one patch: between
    /// two, the labels would tell of a reference that is not there.
    pub(crate) fn mending(&self, meta: &ObjectMeta) -> Edit {
        let wished = self.wished_labels(namespace_of(meta));
        let edit = Edit::new().entries(LABELS, meta.labels.as_ref(), &wished);
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

fn owner_label(meta: &ObjectMeta) -> Option<&str> {
    label_of(meta, label::OWNER_UID)
}

fn label_of<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.labels.as_ref()?.get(key).map(String::as_str)
}

/// The namespace that an object is in, or is.
fn namespace_of(meta: &ObjectMeta) -> &str {
    let namespace = meta.namespace.as_deref().or(meta.name.as_deref());
    namespace.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use capt_api::tenant::{TenantDeletionPolicy, TenantSpec};
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

    /// Namespace `n` with this controller, and with these marks in labels: the UID, and what it is a copy of.
    fn meta(owner: Option<&str>, uid: Option<&str>, labels: &[(&str, &str)]) -> ObjectMeta {
        let reference =
            |uid: &str| json!({"apiVersion": "x/v1", "kind": "X", "name": "x", "uid": uid, "controller": true});
        let owners: Vec<Value> = owner.map(reference).into_iter().collect();
        let mut meta: ObjectMeta = serde_json::from_value(json!({ "name": "n", "ownerReferences": owners })).unwrap();
        let labels = labels.iter().copied().chain(uid.map(|uid| (label::OWNER_UID, uid)));
        meta.labels = Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).collect());
        meta
    }

    #[test]
    fn a_namespace_is_held_by_either_mark_until_the_tenant_goes() {
        use TenantDeletionPolicy::{Block, Cascade};
        let own: &[_] = &[(label::TENANT_NAMESPACE, "n")];
        let copied: &[_] = &[(label::TENANT_NAMESPACE, "of-another")];
        let unreferred: &[_] = &[(label::TENANT_NAMESPACE, "n"), (label::TENANT_DELETION_POLICY, "Block")];
        for (policy, deleting, owner, uid, labels, held) in [
            (Cascade, false, Some("t"), None, &[][..], true),
            (Cascade, false, None, Some("t"), own, true),
            (Cascade, false, None, Some("t"), copied, false),
            (Cascade, false, Some("other"), Some("t"), own, false),
            (Cascade, false, None, Some("earlier"), own, false),
            (Cascade, false, None, None, own, false),
            (Cascade, true, Some("t"), Some("t"), own, true),
            // Orphaned.
            (Cascade, true, None, Some("t"), own, false),
            // Never had a reference: the policy was changed after the deletion had begun.
            (Cascade, true, None, Some("t"), unreferred, true),
            (Block, true, None, Some("t"), unreferred, true),
            (Block, true, None, Some("t"), own, false),
            (Block, true, Some("t"), None, own, true),
            (Block, true, Some("other"), Some("t"), unreferred, false),
        ] {
            let marks = Marks::of(&tenant(policy, deleting));
            let meta = meta(owner, uid, labels);
            assert_eq!(marks.holds(&meta), held, "{policy:?} {deleting} {meta:?}");
        }
    }

    #[test]
    fn marks_are_put_back_once() {
        for policy in [TenantDeletionPolicy::Cascade, TenantDeletionPolicy::Block] {
            let marks = Marks::of(&tenant(policy, false));
            for damaged in [
                meta(Some("t"), None, &[]),
                meta(None, Some("t"), &[]),
                meta(None, None, &[]),
            ] {
                assert!(!marks.mending(&damaged).is_empty(), "{policy:?} {damaged:?}");
            }
            // As it is made.
            let whole = ObjectMeta {
                name: Some("n".into()),
                labels: Some(marks.labels("n")),
                owner_references: marks.reference.clone().map(|reference| vec![reference]),
                ..ObjectMeta::default()
            };
            assert!(marks.mending(&whole).is_empty(), "{policy:?}");
            let other = Marks::of(&tenant(
                match policy {
                    TenantDeletionPolicy::Cascade => TenantDeletionPolicy::Block,
                    TenantDeletionPolicy::Block => TenantDeletionPolicy::Cascade,
                },
                false,
            ));
            assert!(other.holds(&whole) && !other.mending(&whole).is_empty(), "{policy:?}");
        }
    }

    /// Otherwise everything new would be patched once, to take away what the write protocol gave it.
    #[test]
    fn a_new_object_has_the_reference_that_is_wished() {
        let mut tenant = tenant(TenantDeletionPolicy::Cascade, false);
        tenant.metadata.resource_version = Some("1".into());
        let parent = capt_runtime::apply::Parent::of(&capt_runtime::apply::Planned::new(&tenant).unwrap());
        let reference = Marks::of(&tenant).reference.unwrap();
        assert!(format!("{parent:?}").contains(&format!("{reference:?}")), "{parent:?}");
    }

    #[test]
    fn an_object_may_belong_to_what_either_mark_names() {
        assert_eq!(owners(&meta(Some("a"), Some("a"), &[])), ["a"]);
        assert_eq!(owners(&meta(Some("a"), Some("b"), &[])), ["a", "b"]);
        assert_eq!(owners(&meta(None, Some("b"), &[])), ["b"]);
        assert!(owners(&meta(None, None, &[])).is_empty());
    }
}
