//! The hold of a CAPTCluster: it keeps the VPC's apply until the CAPTCluster agrees that it may go.

use capt_api::names::{finalizer, vpc_apply_name};
use capt_runtime::hold::Hold;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub(crate) const HOLD: Hold = Hold {
    finalizer: finalizer::CAPT_CLUSTER_HOLD,
    parent: "CAPTCluster",
    apply_of: vpc_apply_name,
    outlives: Some(is_of_control_plane),
};

/// Whether an apply makes an EKS cluster: it has the hold of its control plane, or, once that is released, the owner.
pub(crate) fn is_of_control_plane(apply: &ObjectMeta) -> bool {
    let held = |present: &String| present == finalizer::CAPT_CONTROL_PLANE_HOLD;
    apply.finalizers.iter().flatten().any(held)
        || (apply.owner_references.iter().flatten()).any(|owner| owner.kind == "CAPTControlPlane")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn an_eks_apply_is_known_by_its_hold_or_its_owner() {
        let is = |metadata: Value| is_of_control_plane(&serde_json::from_value(metadata).unwrap());
        let owner =
            |kind: &str| json!([{"apiVersion": "v1", "kind": kind, "name": "demo", "uid": "u", "controller": true}]);
        assert!(is(json!({"finalizers": ["other", finalizer::CAPT_CONTROL_PLANE_HOLD]})));
        assert!(is(
            json!({"finalizers": [], "ownerReferences": owner("CAPTControlPlane")})
        ));
        assert!(!is(
            json!({"finalizers": [finalizer::CAPT_CLUSTER_HOLD], "ownerReferences": owner("CAPTCluster")})
        ));
        assert!(
            !is(json!({"finalizers": [finalizer::WORKSPACE_TEMPLATE_APPLY]})),
            "a user's own"
        );
    }
}
