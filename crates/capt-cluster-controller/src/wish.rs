//! The VPC's apply as it should be.

use std::collections::BTreeMap;

use capt_api::common::{ObjectReference, TemplateReference};
use capt_api::names::{finalizer, label, variable, vpc_apply_name, vpc_connection_secret};
use capt_api::workspace::WorkspaceTemplateApplySpec;
use capt_api::{CaptCluster, WorkspaceTemplateApply};
use kube::ResourceExt;

/// Spec and labels of the VPC's apply; a label that is `None` must not be there.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Wish {
    pub(crate) spec: WorkspaceTemplateApplySpec,
    pub(crate) labels: BTreeMap<String, Option<String>>,
}

/// What the CAPTCluster asks for, in the Cluster of this name.
pub(crate) fn wish(capt_cluster: &CaptCluster, template: &TemplateReference, cluster: &str) -> Wish {
    let spec = &capt_cluster.spec;
    let vpc_name = spec.vpc_config.as_ref().and_then(|config| config.name.clone());
    let mut variables = spec.variables.clone();
    variables
        .entry(variable::ENVIRONMENT.into())
        .or_insert_with(|| variable::DEFAULT_ENVIRONMENT.into());
    // After the user's own, which may not take their place.
    variables.insert(variable::CLUSTER_NAME.into(), cluster.into());
    variables.insert(
        variable::VPC_NAME.into(),
        vpc_name.unwrap_or_else(|| format!("{cluster}-vpc")),
    );
    variables.insert(variable::REGION.into(), spec.region.clone());
    let filter = capt_cluster.labels().get(label::WATCH_FILTER).cloned();
    Wish {
        spec: WorkspaceTemplateApplySpec {
            template_ref: template.clone(),
            variables,
            write_connection_secret_to_ref: Some(ObjectReference {
                name: vpc_connection_secret(&capt_cluster.name_any()),
                namespace: None,
            }),
            retain_workspace_on_delete: spec.retain_vpc_on_delete.filter(|retain| *retain),
            ..WorkspaceTemplateApplySpec::default()
        },
        labels: BTreeMap::from([
            (label::CLUSTER_NAME.to_owned(), Some(cluster.to_owned())),
            (label::WATCH_FILTER.to_owned(), filter),
            (label::OWNER_UID.to_owned(), capt_cluster.uid()),
        ]),
    }
}

impl Wish {
    pub(crate) fn is_met_by(&self, apply: &WorkspaceTemplateApply) -> bool {
        let labels = apply.labels();
        apply.spec == self.spec && self.labels.iter().all(|(key, value)| labels.get(key) == value.as_ref())
    }

    /// The apply to create, complete: held from its first moment, so that nobody can destroy the VPC before its
    /// CAPTCluster agrees.
    pub(crate) fn into_apply(self, capt_cluster: &CaptCluster) -> WorkspaceTemplateApply {
        let mut apply = WorkspaceTemplateApply::new(&vpc_apply_name(&capt_cluster.name_any()), self.spec);
        apply.metadata.namespace = capt_cluster.namespace();
        apply.metadata.labels = Some(
            self.labels
                .into_iter()
                .filter_map(|(key, value)| Some((key, value?)))
                .collect(),
        );
        apply.metadata.finalizers = Some(vec![finalizer::CAPT_CLUSTER_HOLD.into()]);
        apply
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn capt_cluster(labels: Value, spec: Value) -> CaptCluster {
        let mut spec = spec;
        spec["region"] = json!("eu-west-1");
        spec["vpcTemplateRef"] = json!({"name": "vpc"});
        serde_json::from_value(json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "CAPTCluster",
            "metadata": {"name": "net", "namespace": "ns", "uid": "u", "labels": labels},
            "spec": spec,
        }))
        .unwrap()
    }

    fn apply_for(capt_cluster: &CaptCluster) -> WorkspaceTemplateApply {
        let template = capt_cluster.spec.vpc_template_ref.clone().unwrap();
        wish(capt_cluster, &template, "demo").into_apply(capt_cluster)
    }

    #[test]
    fn a_complete_apply() {
        let made = apply_for(&capt_cluster(
            json!({label::WATCH_FILTER: "blue", "team": "a"}),
            json!({"retainVpcOnDelete": true}),
        ));
        assert_eq!(
            serde_json::to_value(&made).unwrap(),
            json!({
                "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "WorkspaceTemplateApply",
                "metadata": {
                    "name": "net-vpc", "namespace": "ns",
                    "finalizers": ["infrastructure.cluster.x-k8s.io/captcluster-hold"],
                    "labels": {
                        "cluster.x-k8s.io/cluster-name": "demo",
                        "cluster.x-k8s.io/watch-filter": "blue",
                        "infrastructure.cluster.x-k8s.io/capt-owner-uid": "u",
                    },
                },
                "spec": {
                    "templateRef": {"name": "vpc"},
                    "variables": {"cluster_name": "demo", "environment": "production", "region": "eu-west-1", "vpc_name": "demo-vpc"},
                    "writeConnectionSecretToRef": {"name": "net-vpc-connection"},
                    "retainWorkspaceOnDelete": true,
                },
            })
        );
    }

    #[test]
    fn the_users_variables_go_along_and_cannot_take_the_place_of_ours() {
        let spec = json!({
            "variables": {"cidr": "10.0.0.0/16", "environment": "staging", "cluster_name": "other", "region": "other"},
            "vpcConfig": {"name": "main"},
        });
        let made = apply_for(&capt_cluster(json!({}), spec));
        let expected = [
            ("cidr", "10.0.0.0/16"),
            ("cluster_name", "demo"),
            ("environment", "staging"),
            ("region", "eu-west-1"),
            ("vpc_name", "main"),
        ];
        assert_eq!(
            made.spec.variables,
            expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into()
        );
    }

    #[test]
    fn what_is_made_meets_the_wish_and_any_difference_does_not() {
        let capt_cluster = capt_cluster(json!({}), json!({}));
        let template = capt_cluster.spec.vpc_template_ref.clone().unwrap();
        let wish = wish(&capt_cluster, &template, "demo");
        let made = wish.clone().into_apply(&capt_cluster);
        assert!(wish.is_met_by(&made));

        let mut other = made.clone();
        other.spec.variables.insert("by-hand".into(), "1".into());
        assert!(!wish.is_met_by(&other));
        let mut other = made.clone();
        other
            .metadata
            .labels
            .as_mut()
            .unwrap()
            .insert(label::WATCH_FILTER.into(), "stale".into());
        assert!(!wish.is_met_by(&other), "a label that must not be there");
        let mut other = made.clone();
        other
            .metadata
            .labels
            .as_mut()
            .unwrap()
            .insert("foreign".into(), "1".into());
        assert!(wish.is_met_by(&other), "others' labels are theirs");
    }
}
