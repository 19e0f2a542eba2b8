//! capt-controlplane-controller: each CAPTControlPlane gets its EKS apply, and says how far it has come.
//!
//! It makes, changes and deletes the apply, judges the deadlines, and keeps the order of deletion. Endpoint and kubeconfig
//! are the work of two other controllers, which it meets in the conditions EndpointReady and SecretsReady only.

mod act;
mod controller;
mod eks_apply;
mod failure;
mod hold;
mod metrics;
mod observe;
mod plan;
mod rbac;
mod states;

pub use controller::{Args, run};
pub use rbac::EVERYWHERE;
pub use states::{PHASES, READY};
