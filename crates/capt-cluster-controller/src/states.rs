//! How a CAPTCluster's VPC can fare, as data: the reasons of condition VPCReady and the ways between them.
//!
//! `judge` and `plan` decide; this table says the same so that it can be read and drawn. A pass sees the world as it is,
//! whatever was told before, so most ways lead from everywhere: what a reader looks up here is what leads *to* a reason.

use capt_api::conditions::cluster::VpcReady as Vpc;
use capt_api::machine::{Machine, Way};

/// Everything but the end.
const LIVING: &[Vpc] = &[
    Vpc::ExistingVpcUsed,
    Vpc::VpcCreated,
    Vpc::VpcCreating,
    Vpc::WaitingForCluster,
    Vpc::WaitingForTemplate,
    Vpc::WaitingForProvider,
    Vpc::WorkspacePaused,
    Vpc::WaitingForVpcId,
    Vpc::VpcCreationFailed,
    Vpc::InvalidVpcConfig,
    Vpc::InvalidTemplate,
    Vpc::UnsafeVariable,
    Vpc::UnresolvedVariable,
    Vpc::CrossNamespaceTemplate,
    Vpc::AdmissionDenied,
    Vpc::CreateInterrupted,
    Vpc::StateLocked,
    Vpc::ProviderConfigMissing,
    Vpc::CredentialsMissing,
    Vpc::QuotaExceeded,
    Vpc::TerraformTimeout,
    Vpc::InvalidModule,
    Vpc::VpcReadyTimeout,
    Vpc::SecretTimeout,
    Vpc::OwnershipConflict,
    Vpc::ApplyDeleted,
    Vpc::NamespaceTerminating,
];

/// Where the VPC's clock runs.
const AGAINST_THE_CLOCK: &[Vpc] = &[
    Vpc::VpcCreating,
    Vpc::WaitingForTemplate,
    Vpc::VpcCreationFailed,
    Vpc::CreateInterrupted,
    Vpc::StateLocked,
    Vpc::ProviderConfigMissing,
    Vpc::CredentialsMissing,
    Vpc::QuotaExceeded,
    Vpc::TerraformTimeout,
    Vpc::InvalidModule,
];

/// A CAPTCluster's life, by the reason of its condition VPCReady.
pub const VPC: Machine<Vpc> = Machine {
    title: "CAPTCluster: reason of condition VPCReady",
    begin: &[
        Vpc::ExistingVpcUsed,
        Vpc::VpcCreated,
        Vpc::VpcCreating,
        Vpc::WaitingForCluster,
        Vpc::WaitingForTemplate,
        Vpc::WaitingForProvider,
        Vpc::WorkspacePaused,
        Vpc::WaitingForVpcId,
        Vpc::VpcCreationFailed,
        Vpc::InvalidVpcConfig,
        Vpc::InvalidTemplate,
        Vpc::UnsafeVariable,
        Vpc::UnresolvedVariable,
        Vpc::CrossNamespaceTemplate,
        Vpc::AdmissionDenied,
        Vpc::CreateInterrupted,
        Vpc::StateLocked,
        Vpc::ProviderConfigMissing,
        Vpc::CredentialsMissing,
        Vpc::QuotaExceeded,
        Vpc::TerraformTimeout,
        Vpc::InvalidModule,
        Vpc::OwnershipConflict,
        Vpc::ApplyDeleted,
        Vpc::NamespaceTerminating,
        Vpc::Deleting,
    ],
    ways: &[
        Way {
            from: LIVING,
            to: &[Vpc::WaitingForCluster],
            when: "the Cluster is not there, or does not name this object yet",
        },
        Way {
            from: LIVING,
            to: &[Vpc::InvalidVpcConfig, Vpc::CrossNamespaceTemplate],
            when: "the spec asks for what cannot be given",
        },
        Way {
            from: LIVING,
            to: &[Vpc::ExistingVpcUsed],
            when: "the spec names a VPC that exists",
        },
        Way {
            from: LIVING,
            to: &[Vpc::VpcCreating],
            when: "the apply is made or changed, or Terraform is at work on it",
        },
        Way {
            from: LIVING,
            to: &[Vpc::WaitingForTemplate],
            when: "the apply waits for its WorkspaceTemplate",
        },
        Way {
            from: LIVING,
            to: &[Vpc::WaitingForProvider],
            when: "the Terraform provider has not taken the Workspace up; no clock runs",
        },
        Way {
            from: LIVING,
            to: &[Vpc::WorkspacePaused],
            when: "somebody told the Terraform provider to leave the Workspace alone; no clock runs",
        },
        Way {
            from: LIVING,
            to: &[Vpc::VpcCreated],
            when: "Terraform has made the VPC, and its ID is known",
        },
        Way {
            from: LIVING,
            to: &[Vpc::WaitingForVpcId],
            when: "Terraform is done, and neither an output nor the connection secret tells the VPC's ID",
        },
        Way {
            from: LIVING,
            to: &[
                Vpc::VpcCreationFailed,
                Vpc::CreateInterrupted,
                Vpc::StateLocked,
                Vpc::ProviderConfigMissing,
                Vpc::CredentialsMissing,
                Vpc::QuotaExceeded,
                Vpc::TerraformTimeout,
                Vpc::InvalidModule,
            ],
            when: "Terraform fails and goes on trying, against the clock",
        },
        Way {
            from: LIVING,
            to: &[Vpc::InvalidTemplate, Vpc::UnsafeVariable, Vpc::UnresolvedVariable],
            when: "the template cannot be rendered with these variables, or its output vpc_id is no ID",
        },
        Way {
            from: LIVING,
            to: &[Vpc::OwnershipConflict],
            when: "the apply's or the Workspace's name is taken by somebody else",
        },
        Way {
            from: LIVING,
            to: &[Vpc::AdmissionDenied],
            when: "an admission policy refuses the apply, or its Workspace",
        },
        Way {
            from: LIVING,
            to: &[Vpc::NamespaceTerminating],
            when: "the namespace is being deleted and takes nothing new",
        },
        Way {
            from: LIVING,
            to: &[Vpc::ApplyDeleted],
            when: "somebody deleted the apply",
        },
        Way {
            from: AGAINST_THE_CLOCK,
            to: &[Vpc::VpcReadyTimeout],
            when: "timeouts.vpcReadyTimeout has passed; a late success still counts",
        },
        Way {
            from: &[Vpc::WaitingForVpcId],
            to: &[Vpc::SecretTimeout],
            when: "timeouts.secretTimeout has passed; a late success still counts",
        },
        Way {
            from: LIVING,
            to: &[Vpc::Deleting],
            when: "the object is being deleted",
        },
    ],
    goals: &[Vpc::Deleting],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_a_dead_end() {
        assert_eq!(VPC.faults(), [""; 0]);
        for place in LIVING {
            let reached = VPC.reached_from(&[*place]);
            for good in [Vpc::VpcCreated, Vpc::ExistingVpcUsed] {
                assert!(reached.contains(&good), "{place:?} never leads to {good:?}");
            }
        }
        assert_eq!(
            VPC.reached_from(&[Vpc::Deleting]),
            [Vpc::Deleting],
            "deletion is the end"
        );
    }
}
