//! capt-workspace-controller: WorkspaceTemplates are checked, WorkspaceTemplateApplies become Terraform Workspaces.
//!
//! The only crate that knows the Terraform provider's API.

mod act;
mod controller;
mod inputs;
mod metrics;
mod module;
mod observe;
mod placeholder;
mod plan;
mod rbac;
mod render;
mod report;
mod states;
mod template;
mod terraform;
mod usages;
mod workspace;

pub use controller::{Args, run};
pub use rbac::EVERYWHERE;
pub use states::APPLY;
