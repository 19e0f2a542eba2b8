//! The failure that Cluster API copies from a control plane to its Cluster and never takes away again.

use capt_api::Cluster;
use capt_api::external::cluster::ClusterFailure;
use capt_runtime::apply::Edit;
use serde_json::Value;

const PATH: [&str; 3] = ["status", "deprecated", "v1beta1"];
const REASON: &str = "failureReason";
const MESSAGE: &str = "failureMessage";

/// The Cluster's failure, if this control plane caused it: Cluster API's message names kind and object. One of another
/// object, or without a message, is not ours to clear.
pub(crate) fn caused_by<'a>(cluster: &'a Cluster, control_plane: &str) -> Option<&'a ClusterFailure> {
    let failure = cluster.status.as_ref()?.deprecated.as_ref()?.v1beta1.as_ref()?;
    let origin = failure
        .failure_message
        .as_deref()?
        .strip_prefix("Failure detected from referenced resource ")?;
    let rest = origin.strip_prefix("controlplane.cluster.x-k8s.io/")?;
    let (_version, rest) = rest.split_once(", Kind=CAPTControlPlane with name ")?;
    rest.strip_prefix(&format!("{control_plane:?}:")).map(|_| failure)
}

/// Takes the failure away, and nothing that Cluster API may have put in its place meanwhile.
pub(crate) fn clearing(failure: &ClusterFailure) -> Edit {
    let values = [(REASON, &failure.failure_reason), (MESSAGE, &failure.failure_message)];
    values.into_iter().fold(Edit::new(), |edit, (field, value)| {
        let [status, deprecated, version] = PATH;
        let path = [status, deprecated, version, field];
        let edit = edit.only_if(&path, value.clone().map(Value::String));
        if value.is_some() { edit.remove(&path) } else { edit }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cluster(message: &str) -> Cluster {
        serde_json::from_value(json!({
            "metadata": {"name": "demo"},
            "status": {"deprecated": {"v1beta1": {"failureReason": "InvalidSpec", "failureMessage": message}}},
        }))
        .unwrap()
    }

    #[test]
    fn only_a_failure_that_names_this_control_plane_is_its_own() {
        let ours = "Failure detected from referenced resource controlplane.cluster.x-k8s.io/v1beta1, Kind=CAPTControlPlane with name \"demo-cp\": it broke";
        assert!(caused_by(&cluster(ours), "demo-cp").is_some());
        for other in [
            ours.replace("demo-cp", "demo-cp2"),
            ours.replace("CAPTControlPlane", "CAPTCluster"),
            ours.replace("controlplane.cluster", "infrastructure.cluster"),
            "somebody's own words about CAPTControlPlane with name \"demo-cp\": x".to_owned(),
            String::new(),
        ] {
            assert!(caused_by(&cluster(&other), "demo-cp").is_none(), "{other}");
        }
        assert!(caused_by(&Cluster::default(), "demo-cp").is_none());
    }

    #[test]
    fn clearing_is_bound_to_both_values() {
        let failure = ClusterFailure {
            failure_reason: Some("R".into()),
            failure_message: Some("m".into()),
        };
        assert_eq!(
            format!("{:?}", clearing(&failure)),
            "Edit { tests: [\"/status/deprecated/v1beta1/failureReason\", \"/status/deprecated/v1beta1/failureMessage\"], \
             changes: [\"/status/deprecated/v1beta1/failureReason\", \"/status/deprecated/v1beta1/failureMessage\"] }"
        );
        let half = ClusterFailure {
            failure_reason: None,
            failure_message: Some("m".into()),
        };
        assert!(
            format!("{:?}", clearing(&half)).ends_with("changes: [\"/status/deprecated/v1beta1/failureMessage\"] }")
        );
    }
}
