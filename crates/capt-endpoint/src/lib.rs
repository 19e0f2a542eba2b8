//! capt-endpoint: the address of each EKS control plane, found, checked, published to Cluster API and cleared again.
//!
//! Terraform reports an address (`address` reads it); a pass gathers what is known (`observe`), decides without any other
//! input (`plan`; `states` has all that it can say) and writes (`act`). The Cluster's endpoint belongs to everybody:
//! whether it is ours to change is decided by its value, and every write to it is refused by the API server when that
//! value has changed since.

mod act;
mod address;
mod controller;
mod metrics;
mod observe;
mod plan;
mod rbac;
mod states;

#[cfg(test)]
mod world;

pub use controller::{Args, run};
pub use rbac::EVERYWHERE;
pub use states::ENDPOINT_READY;
