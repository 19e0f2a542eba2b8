//! The life of condition SecretsReady as a table: its reasons, and the ways between them.
//!
//! `plan` decides; the tests beside it hold this table against everything that it ever says, in both directions. A pass
//! sees the world as it is, whatever was told before, so most ways lead from everywhere: what a reader looks up here is
//! what leads *to* a reason.

use capt_api::conditions::Reason;
use capt_api::conditions::secrets::SecretsReady;
use capt_api::machine::{Machine, Way};

const ANY: &[SecretsReady] = <SecretsReady as Reason>::ALL;

/// Everything that is said of a control plane that is not being deleted.
const LIVING: &[SecretsReady] = &[
    SecretsReady::WaitingForSecret,
    SecretsReady::ValidatingSecret,
    SecretsReady::Ready,
    SecretsReady::Failed,
    SecretsReady::UnsafeKubeconfig,
    SecretsReady::SourceMissing,
    SecretsReady::OwnershipConflict,
    SecretsReady::NamespaceTerminating,
];

/// A control plane's kubeconfig and CA, by the reason of SecretsReady. What is being deleted keeps its last word, unless
/// that hangs, or takes its time.
pub const SECRETS_READY: Machine<SecretsReady> = Machine {
    title: "CAPTControlPlane: reason of condition SecretsReady",
    // Work never waits for words, and Cluster API's move takes no status along.
    begin: ANY,
    ways: &[
        Way {
            from: LIVING,
            to: &[SecretsReady::WaitingForSecret],
            when: "Terraform is not done, the endpoint is not published, or there is no connection secret yet",
        },
        Way {
            from: LIVING,
            to: &[SecretsReady::ValidatingSecret],
            when: "the connection secret is valid, and the name of a copy is not free yet",
        },
        Way {
            from: LIVING,
            to: &[SecretsReady::Ready],
            when: "kubeconfig and CA are copied",
        },
        Way {
            from: ANY,
            to: &[SecretsReady::Failed],
            when: "the connection secret is invalid or has expired, or the API server refuses a write",
        },
        Way {
            from: LIVING,
            to: &[SecretsReady::UnsafeKubeconfig],
            when: "the kubeconfig would make its readers run a program or read a file",
        },
        Way {
            from: LIVING,
            to: &[SecretsReady::SourceMissing],
            when: "the connection secret is gone, and good copies stay",
        },
        Way {
            from: LIVING,
            to: &[SecretsReady::OwnershipConflict],
            when: "a Secret with the name of a copy belongs to something else",
        },
        Way {
            from: LIVING,
            to: &[SecretsReady::NamespaceTerminating],
            when: "the namespace is being deleted, and takes no copies any more",
        },
        Way {
            from: LIVING,
            to: &[SecretsReady::Deleting],
            when: "the control plane is being deleted, and somebody else's finalizer holds a copy; or it is so for a minute, and the copies are removed",
        },
    ],
    goals: &[SecretsReady::Deleting],
};
