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
mod metrics;
mod observe;
mod plan;
mod rbac;
mod states;

#[cfg(test)]
mod samples;
#[cfg(test)]
mod world;

pub use controller::{Args, run};
pub use rbac::EVERYWHERE;
pub use states::SECRETS_READY;

/// Does not compile once a type that holds values of Secrets can be printed.
#[cfg(test)]
const _: fn() = || {
    trait Printable<How> {
        fn is() {}
    }
    struct ByDebug;
    impl<T> Printable<()> for T {}
    impl<T: std::fmt::Debug> Printable<ByDebug> for T {}
    // With two ways to be printable, the compiler cannot tell which is meant.
    let _ = <kubeconfig::Kubeconfig as Printable<_>>::is;
    let _ = <material::Material as Printable<_>>::is;
    let _ = <observe::Contents as Printable<_>>::is;
};
