//! The hold of a CAPTCluster: it keeps the VPC's apply until the CAPTCluster agrees that it may go.

use capt_api::names::{finalizer, vpc_apply_name};
use capt_runtime::hold::Hold;

pub(crate) const HOLD: Hold = Hold {
    finalizer: finalizer::CAPT_CLUSTER_HOLD,
    parent: "CAPTCluster",
    apply_of: vpc_apply_name,
};
