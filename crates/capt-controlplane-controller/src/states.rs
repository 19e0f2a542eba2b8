//! The life of a CAPTControlPlane as tables: its phases, and the reasons of its condition Ready.
//!
//! `plan` decides; the tests beside it hold these tables against everything that it ever says, in both directions.

use capt_api::conditions::control_plane::Ready;
use capt_api::controlplane::Phase;
use capt_api::machine::{Machine, Way};

/// `status.phase`.
pub const PHASES: Machine<Phase> = Machine {
    title: "CAPTControlPlane: status.phase",
    // Cluster API's move takes no status along, so an object can begin anywhere.
    begin: &[Phase::Creating, Phase::Ready, Phase::Failed, Phase::Deleting],
    ways: &[
        Way {
            from: &[Phase::Creating, Phase::Failed],
            to: &[Phase::Ready],
            when: "the EKS cluster, its endpoint and its kubeconfig are as the spec asks, however late",
        },
        Way {
            from: &[Phase::Creating, Phase::Ready],
            to: &[Phase::Failed],
            when: "something is wrong that waiting alone does not mend, or a deadline has passed",
        },
        Way {
            from: &[Phase::Failed],
            to: &[Phase::Creating],
            when: "the cause of the failure is gone, or there is a new wish",
        },
        Way {
            from: &[Phase::Ready],
            to: &[Phase::Creating],
            when: "there is a new wish, or something that the cluster needs is missing; it stays available",
        },
        Way {
            from: &[Phase::Creating, Phase::Ready, Phase::Failed],
            to: &[Phase::Deleting],
            when: "the object is being deleted",
        },
    ],
    goals: &[Phase::Deleting],
};

/// Every reason but the last. `Creating` comes first and the two that only a cluster in use can have come last, so that
/// the lists below are parts of this one.
const LIVING: &[Ready] = &[
    Ready::Creating,
    Ready::WaitingForCluster,
    Ready::WaitingForVpc,
    Ready::WaitingForTemplate,
    Ready::WaitingForProvider,
    Ready::WaitingForEndpoint,
    Ready::WaitingForSecrets,
    Ready::TerraformFailed,
    Ready::CreateInterrupted,
    Ready::StateLocked,
    Ready::ProviderConfigMissing,
    Ready::CredentialsMissing,
    Ready::QuotaExceeded,
    Ready::TerraformTimeout,
    Ready::InvalidModule,
    Ready::InvalidSpec,
    Ready::InvalidTemplate,
    Ready::UnsafeVariable,
    Ready::UnresolvedVariable,
    Ready::CrossNamespaceTemplate,
    Ready::OwnershipConflict,
    Ready::AdmissionDenied,
    Ready::NamespaceTerminating,
    Ready::ApplyDeleted,
    Ready::EndpointMissing,
    Ready::EndpointInvalid,
    Ready::SecretsFailed,
    Ready::VpcReadyTimeout,
    Ready::ControlPlaneTimeout,
    Ready::SecretTimeout,
    Ready::ControlPlaneReady,
    Ready::Updating,
];

/// The ends that Terraform comes to; its provider tries again.
const TERRAFORM_FAILS: &[Ready] = &[
    Ready::TerraformFailed,
    Ready::CreateInterrupted,
    Ready::StateLocked,
    Ready::ProviderConfigMissing,
    Ready::CredentialsMissing,
    Ready::QuotaExceeded,
    Ready::TerraformTimeout,
    Ready::InvalidModule,
];

const fn without_first(reasons: &[Ready]) -> &[Ready] {
    match reasons.split_first() {
        Some((_, rest)) => rest,
        None => reasons,
    }
}

const fn without_last(reasons: &[Ready]) -> &[Ready] {
    match reasons.split_last() {
        Some((_, rest)) => rest,
        None => reasons,
    }
}

/// What a cluster that has never been ready can be in.
const BEFORE_READY: &[Ready] = without_last(without_last(LIVING));
/// What a cluster that has been ready can be in.
const AFTER_READY: &[Ready] = without_first(LIVING);

/// The reason of condition Ready.
pub const READY: Machine<Ready> = Machine {
    title: "CAPTControlPlane: reason of condition Ready",
    begin: &[
        Ready::ControlPlaneReady,
        Ready::WaitingForCluster,
        Ready::WaitingForVpc,
        Ready::WaitingForTemplate,
        Ready::WaitingForProvider,
        Ready::WaitingForEndpoint,
        Ready::WaitingForSecrets,
        Ready::Creating,
        Ready::TerraformFailed,
        Ready::InvalidSpec,
        Ready::InvalidTemplate,
        Ready::UnsafeVariable,
        Ready::UnresolvedVariable,
        Ready::CrossNamespaceTemplate,
        Ready::AdmissionDenied,
        Ready::CreateInterrupted,
        Ready::StateLocked,
        Ready::ProviderConfigMissing,
        Ready::CredentialsMissing,
        Ready::QuotaExceeded,
        Ready::TerraformTimeout,
        Ready::InvalidModule,
        Ready::EndpointMissing,
        Ready::EndpointInvalid,
        Ready::SecretsFailed,
        Ready::OwnershipConflict,
        Ready::ApplyDeleted,
        Ready::NamespaceTerminating,
        Ready::Deleting,
    ],
    ways: &[
        Way {
            from: LIVING,
            to: &[Ready::WaitingForCluster],
            when: "the owner is missing or goes, or names another control plane",
        },
        Way {
            from: LIVING,
            to: &[Ready::WaitingForVpc],
            when: "there is no apply, and the network is not ready",
        },
        Way {
            from: BEFORE_READY,
            to: &[Ready::Creating],
            when: "Terraform makes the EKS cluster, or is about to",
        },
        Way {
            from: AFTER_READY,
            to: &[Ready::Updating],
            when: "Terraform changes a cluster that has been ready, or is about to",
        },
        Way {
            from: LIVING,
            to: &[Ready::WaitingForTemplate],
            when: "the apply has no template",
        },
        Way {
            from: LIVING,
            to: &[Ready::WaitingForProvider],
            when: "the Workspace queues at the Terraform provider, or is paused there",
        },
        Way {
            from: LIVING,
            to: TERRAFORM_FAILS,
            when: "Terraform fails; its provider tries again",
        },
        Way {
            from: LIVING,
            to: &[
                Ready::InvalidSpec,
                Ready::InvalidTemplate,
                Ready::UnsafeVariable,
                Ready::UnresolvedVariable,
                Ready::CrossNamespaceTemplate,
            ],
            when: "the wish or its template cannot be carried out",
        },
        Way {
            from: LIVING,
            to: &[
                Ready::OwnershipConflict,
                Ready::AdmissionDenied,
                Ready::NamespaceTerminating,
            ],
            when: "the API server, or another owner, stands in the way",
        },
        Way {
            from: LIVING,
            to: &[Ready::ApplyDeleted],
            when: "somebody deleted the apply, which is held",
        },
        Way {
            from: LIVING,
            to: &[
                Ready::WaitingForEndpoint,
                Ready::EndpointMissing,
                Ready::EndpointInvalid,
            ],
            when: "Terraform is done, and the endpoint is not published",
        },
        Way {
            from: LIVING,
            to: &[Ready::WaitingForSecrets, Ready::SecretsFailed],
            when: "the endpoint is published, and the kubeconfig is not copied",
        },
        Way {
            from: &[Ready::WaitingForVpc],
            to: &[Ready::VpcReadyTimeout],
            when: "vpcReadyTimeout has passed",
        },
        Way {
            from: &[
                Ready::Creating,
                Ready::Updating,
                Ready::WaitingForTemplate,
                Ready::WaitingForEndpoint,
                Ready::EndpointMissing,
                Ready::EndpointInvalid,
            ],
            to: &[Ready::ControlPlaneTimeout],
            when: "controlPlaneTimeout has passed",
        },
        Way {
            from: TERRAFORM_FAILS,
            to: &[Ready::ControlPlaneTimeout],
            when: "Terraform still fails when controlPlaneTimeout has passed",
        },
        Way {
            from: &[Ready::WaitingForSecrets, Ready::SecretsFailed],
            to: &[Ready::SecretTimeout],
            when: "secretTimeout has passed",
        },
        Way {
            from: LIVING,
            to: &[Ready::ControlPlaneReady],
            when: "the EKS cluster, its endpoint and its kubeconfig are as the spec asks, however late",
        },
        Way {
            from: LIVING,
            to: &[Ready::Deleting],
            when: "the object is being deleted",
        },
    ],
    goals: &[Ready::Deleting],
};
