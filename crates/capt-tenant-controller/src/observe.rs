//! Reads everything that a plan is made from, out of caches. What cannot be taken back is confirmed by a live read when it is
//! done (`act`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use capt_api::names::TENANT_ADMIN_BINDING;
use capt_api::{Cluster, Tenant, WorkspaceTemplateApply};
use capt_runtime::cache::{Cache, Index};
use capt_runtime::key::Key;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::ResourceExt;
use kube::core::PartialObjectMeta;

use crate::marks::Marks;

pub(crate) type ClusterMeta = PartialObjectMeta<Cluster>;
pub(crate) type ApplyMeta = PartialObjectMeta<WorkspaceTemplateApply>;

/// The caches that this controller reads.
#[derive(Debug)]
pub(crate) struct Caches {
    pub(crate) tenants: Cache<Tenant>,
    pub(crate) namespaces: Cache<Namespace>,
    pub(crate) bindings: Cache<RoleBinding>,
    /// Namespaces by the UID of what they may belong to.
    pub(crate) namespaces_by_owner: Index<Namespace, String>,
    pub(crate) clusters_by_namespace: Index<ClusterMeta, String>,
    pub(crate) applies_by_namespace: Index<ApplyMeta, String>,
}

/// Everything that a plan is made from.
#[derive(Debug, Clone)]
pub(crate) struct Observed {
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) marks: Marks,
    /// Every namespace that the Tenant is to have, or has, by name.
    pub(crate) places: BTreeMap<String, Place>,
}

/// One namespace.
#[derive(Debug, Clone, Default)]
pub(crate) struct Place {
    /// Whether the spec names it.
    pub(crate) is_wished: bool,
    /// Whatever has the name; whose it is, is judged later.
    pub(crate) namespace: Option<Arc<Namespace>>,
    /// Whatever has the name of the administrator's RoleBinding.
    pub(crate) binding: Option<Arc<RoleBinding>>,
    pub(crate) clusters: Vec<Arc<ClusterMeta>>,
    /// The names of the applies.
    pub(crate) applies: Vec<String>,
}

impl Observed {
    /// The namespaces that the Tenant has, whether it is to have them or not.
    pub(crate) fn held(&self) -> impl Iterator<Item = (&String, &Place)> {
        self.places.iter().filter(|(_, place)| {
            let namespace = place.namespace.as_ref();
            namespace.is_some_and(|namespace| self.marks.holds(&namespace.metadata))
        })
    }
}

impl Caches {
    pub(crate) fn observe(&self, key: &Key) -> Option<Observed> {
        let tenant = self.tenants.get(key)?;
        let marks = Marks::of(&tenant);
        let wished: BTreeSet<String> = tenant.wished_namespaces().collect();
        let owned = self.namespaces_by_owner.get(&marks.uid().to_owned());
        let held = owned.iter().filter(|namespace| marks.holds(&namespace.metadata));
        let held: BTreeSet<String> = held.map(|namespace| namespace.name_any()).collect();
        let places = wished
            .union(&held)
            .map(|name| (name.clone(), self.place(name, wished.contains(name))));
        Some(Observed {
            places: places.collect(),
            marks,
            tenant,
        })
    }

    fn place(&self, name: &String, is_wished: bool) -> Place {
        let mut clusters = self.clusters_by_namespace.get(name);
        clusters.sort_by_key(|cluster| cluster.name_any());
        let applies = self.applies_by_namespace.get(name);
        let applies: BTreeSet<String> = applies.iter().map(|apply| apply.name_any()).collect();
        Place {
            is_wished,
            namespace: self.namespaces.get(&Key::cluster_scoped(name)),
            binding: self.bindings.get(&Key::namespaced(name, TENANT_ADMIN_BINDING)),
            clusters,
            applies: applies.into_iter().collect(),
        }
    }
}
