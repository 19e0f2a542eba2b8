//! CAPT's API: every kind it serves, the parts it reads of other people's kinds, and every name, condition and reason
//! that its controllers share.
//!
//! The controllers never call each other; they meet in the objects that this crate describes. `ownership` says who
//! writes which field of them, `names` how everything is called, `conditions` what can be reported. The CRDs in `crds/`
//! are generated from the types (`make generate`).

#![allow(
    clippy::duplicated_attributes,
    reason = "printer columns are repeated attributes with equal parts"
)]
#![allow(
    unreachable_pub,
    reason = "derive(KubeSchema) repeats each public struct inside a function"
)]

pub mod cluster;
pub mod common;
pub mod conditions;
pub mod controlplane;
pub mod crd;
pub mod external;
pub mod machine;
pub mod names;
pub mod ownership;
pub mod reasons;
pub mod schema;
pub mod tenant;
pub mod vpc_id;
pub mod workspace;

pub use cluster::{CaptCluster, CaptClusterTemplate};
pub use controlplane::{CaptControlPlane, CaptControlPlaneTemplate};
pub use external::cluster::Cluster;
pub use external::workspace::{Workspace, WorkspaceKind};
pub use tenant::Tenant;
pub use workspace::{WorkspaceTemplate, WorkspaceTemplateApply};
