//! capt-cluster-controller: CAPTClusters get their VPC, and Cluster API learns when the infrastructure is ready.
//!
//! A pass reads (`observe`), decides without any input but what was read (`plan`, with `network`, `judge`, `wish` and
//! `report` as its parts) and then writes (`act`). `states` tells what can be reported, and what leads
//! to it.

mod act;
mod controller;
mod hold;
mod judge;
mod metrics;
mod network;
mod observe;
mod plan;
mod rbac;
mod report;
mod states;
mod wish;

pub use controller::{Args, run};
pub use rbac::EVERYWHERE;
pub use states::VPC;
