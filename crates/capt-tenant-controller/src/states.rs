//! The life of condition Ready as a table: its reasons, and the ways between them.
//!
//! `plan` decides; the tests beside it hold this table against everything that it ever says, in both directions. A pass
//! sees the world as it is, whatever was told before, so most ways lead from everywhere: what a reader looks up here is
//! what leads *to* a reason.

use capt_api::conditions::Reason;
use capt_api::conditions::tenant::Ready;
use capt_api::machine::{Machine, Way};

/// Everything that is said of a Tenant that is not being deleted.
const LIVING: &[Ready] = &[
    Ready::NamespacesReady,
    Ready::WaitingForNamespaces,
    Ready::WaitingForClusters,
    Ready::ClustersExist,
    Ready::OwnershipConflict,
    Ready::AdmissionDenied,
    Ready::Refused,
];

/// A Tenant, by the reason of Ready.
pub const READY: Machine<Ready> = Machine {
    title: "Tenant: reason of condition Ready",
    // Work never waits for words: what is said first is what is so by then. One without a namespace to wait for goes silently.
    begin: <Ready as Reason>::ALL,
    ways: &[
        Way {
            from: LIVING,
            to: &[Ready::NamespacesReady],
            when: "the namespaces are those of the spec, and the administrator may work in them",
        },
        Way {
            from: LIVING,
            to: &[Ready::WaitingForNamespaces],
            when: "a namespace is being deleted, because the spec no longer has it, or by hand: then it is made again",
        },
        Way {
            from: LIVING,
            to: &[Ready::WaitingForClusters],
            when: "the spec no longer has a namespace, and its Clusters are being deleted before it",
        },
        Way {
            from: LIVING,
            to: &[Ready::ClustersExist],
            when: "the spec no longer has a namespace, spec.deletionPolicy is Block, and there are Clusters or applies in it",
        },
        Way {
            from: LIVING,
            to: &[Ready::OwnershipConflict],
            when: "a namespace or RoleBinding of that name belongs to somebody else",
        },
        Way {
            from: LIVING,
            to: &[Ready::AdmissionDenied],
            when: "a policy of the management cluster refuses what is to be made, changed or deleted",
        },
        Way {
            from: LIVING,
            to: &[Ready::Refused],
            when: "the API server refuses it otherwise, mostly for want of a permission",
        },
        Way {
            from: LIVING,
            to: &[Ready::Deleting],
            when: "the Tenant is being deleted, and something stands in the way; condition Deleting says what",
        },
    ],
    goals: &[Ready::Deleting],
};
