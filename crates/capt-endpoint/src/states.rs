//! The life of condition EndpointReady as a table: its reasons, and the ways between them.
//!
//! `plan` decides; the tests beside it hold this table against everything that it ever says, in both directions. A pass
//! sees the world as it is, whatever was told before, so most ways lead from everywhere: what a reader looks up here is
//! what leads *to* a reason.

use capt_api::conditions::Reason;
use capt_api::conditions::endpoint::EndpointReady;
use capt_api::machine::{Machine, Way};

const ANY: &[EndpointReady] = <EndpointReady as Reason>::ALL;

/// A control plane's endpoint, by the reason of EndpointReady. What is being deleted keeps its last word.
pub const ENDPOINT_READY: Machine<EndpointReady> = Machine {
    title: "CAPTControlPlane: reason of condition EndpointReady",
    // Work never waits for words, and Cluster API's move takes no status along.
    begin: ANY,
    ways: &[
        Way {
            from: ANY,
            to: &[EndpointReady::WaitingForCluster],
            when: "nothing is published, and the owner Cluster is missing; or the CAPTCluster cannot be read",
        },
        Way {
            from: ANY,
            to: &[EndpointReady::WaitingForWorkspace],
            when: "nothing is published, and Terraform is not done",
        },
        Way {
            from: ANY,
            to: &[EndpointReady::EndpointMissing],
            when: "Terraform is done, and reports no address",
        },
        Way {
            from: ANY,
            to: &[EndpointReady::EndpointInvalid],
            when: "Terraform is done, and what it reports is no address",
        },
        Way {
            from: ANY,
            to: &[EndpointReady::EndpointUpdateFailed],
            when: "the API server refuses to read or write the endpoint",
        },
        Way {
            from: ANY,
            to: &[EndpointReady::EndpointPublished],
            when: "the address is on the Cluster and the control plane",
        },
        Way {
            from: ANY,
            to: &[EndpointReady::UserSupplied],
            when: "the Cluster has an endpoint that a user gave to it or to the CAPTCluster",
        },
    ],
    goals: &[EndpointReady::EndpointPublished, EndpointReady::UserSupplied],
};
