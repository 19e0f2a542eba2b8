//! capt-tenant-controller: the namespaces of each Tenant, made, kept, and taken away when nothing is left in them that
//! Terraform would have to undo.
//!
//! A pass gathers what is known (`observe`), decides without any other input (`plan`; `states` has all that it can say) and
//! writes (`act`). Whose a namespace is stands on the namespace itself (`marks`), so that a lost status loses nothing.

mod act;
mod controller;
mod marks;
mod metrics;
mod observe;
mod plan;
mod rbac;
mod states;

pub use controller::{Args, run};
pub use rbac::{AGGREGATE_TO_EDIT, AGGREGATE_TO_VIEW, EVERYWHERE};
pub use states::READY;
