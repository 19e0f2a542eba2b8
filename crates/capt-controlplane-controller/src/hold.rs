//! The hold of a CAPTControlPlane: it keeps the EKS cluster's apply until the control plane agrees that it may go.

use capt_api::names::{eks_apply_name, finalizer};
use capt_runtime::hold::Hold;

pub(crate) const HOLD: Hold = Hold {
    finalizer: finalizer::CAPT_CONTROL_PLANE_HOLD,
    parent: "CAPTControlPlane",
    apply_of: eks_apply_name,
    outlives: None,
};
