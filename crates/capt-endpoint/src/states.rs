//! The life of condition EndpointReady as a table: its reasons, and the ways between them.
//!
//! `plan` decides; the tests beside it hold this table against everything that it ever says, in both directions. A pass
//! sees the world as it is, whatever was told before, so most ways lead from everywhere: what a reader looks up here is
//! what leads *to* a reason.

use capt_api::conditions::endpoint::EndpointReady;
use capt_api::machine::{Machine, Way};

/// Everything that is said of a control plane that is not being deleted.
const LIVING: &[EndpointReady] = &[
    EndpointReady::EndpointPublished,
    EndpointReady::UserSupplied,
    EndpointReady::WaitingForCluster,
    EndpointReady::WaitingForWorkspace,
    EndpointReady::EndpointMissing,
    EndpointReady::EndpointInvalid,
    EndpointReady::EndpointUpdateFailed,
];

/// What can be said while an endpoint is published.
const PUBLISHED: &[EndpointReady] = &[
    EndpointReady::EndpointPublished,
    EndpointReady::UserSupplied,
    EndpointReady::WaitingForCluster,
    EndpointReady::EndpointMissing,
    EndpointReady::EndpointInvalid,
    EndpointReady::EndpointUpdateFailed,
];

/// A control plane's endpoint, by the reason of EndpointReady. What is being deleted keeps its last word, unless that takes
/// its time.
pub const ENDPOINT_READY: Machine<EndpointReady> = Machine {
    title: "CAPTControlPlane: reason of condition EndpointReady",
    // Work never waits for words, and Cluster API's move takes no status along.
    begin: LIVING,
    ways: &[
        Way {
            from: LIVING,
            to: &[EndpointReady::WaitingForCluster],
            when: "nothing is published, and the owner Cluster is missing; or the CAPTCluster cannot be read",
        },
        Way {
            from: LIVING,
            to: &[EndpointReady::WaitingForWorkspace],
            when: "nothing is published, and Terraform is not done",
        },
        Way {
            from: LIVING,
            to: &[EndpointReady::EndpointMissing],
            when: "Terraform is done, and reports no address",
        },
        Way {
            from: LIVING,
            to: &[EndpointReady::EndpointInvalid],
            when: "Terraform is done, and what it reports is no address",
        },
        Way {
            from: LIVING,
            to: &[EndpointReady::EndpointUpdateFailed],
            when: "the API server refuses to read or write the endpoint",
        },
        Way {
            from: LIVING,
            to: &[EndpointReady::EndpointPublished],
            when: "the address is on the Cluster and the control plane",
        },
        Way {
            from: LIVING,
            to: &[EndpointReady::UserSupplied],
            when: "the Cluster has an endpoint that a user gave to it or to the CAPTCluster",
        },
        Way {
            from: PUBLISHED,
            to: &[EndpointReady::Deleting],
            when: "the control plane is being deleted for a minute, and its endpoint is no longer published",
        },
    ],
    goals: &[EndpointReady::Deleting],
};
