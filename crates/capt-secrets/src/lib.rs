//! capt-secrets: the kubeconfig and CA that Terraform left in the connection Secret, copied into the Secrets that Cluster
//! API and its users look for.
//!
//! A source is only copied when it is valid, a good copy is never replaced by a bad one, and no value of a Secret ever
//! reaches a log line, an Event, a condition or an error: the types that hold values have no `Debug`, and what is planned
//! and reported (`observe::Observed`, `plan::Plan`) holds verdicts, not values.

mod act;
mod certificate;
mod controller;
mod copies;
mod invalid;
mod kubeconfig;
mod material;
mod observe;
mod plan;
mod rbac;

#[cfg(test)]
mod samples;
#[cfg(test)]
mod world;

pub use controller::{Args, run};
pub use rbac::{EVERYWHERE, OWN_NAMESPACE};
