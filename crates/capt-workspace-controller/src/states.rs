//! How an apply can fare, as data: the reasons of condition Ready and the ways between them.
//!
//! `plan` decides; this table says the same so that it can be read and drawn. A pass sees the world as it is, whatever was
//! told before, so most ways lead from everywhere: what a reader looks up here is what leads *to* a reason.

use capt_api::conditions::workspace_apply::Ready;
use capt_api::machine::{Machine, Way};

/// Everything but the end.
const LIVING: &[Ready] = &[
    Ready::Available,
    Ready::NotApplied,
    Ready::WaitingForProvider,
    Ready::Applying,
    Ready::TerraformFailed,
    Ready::CreateInterrupted,
    Ready::StateLocked,
    Ready::ProviderConfigMissing,
    Ready::CredentialsMissing,
    Ready::QuotaExceeded,
    Ready::TerraformTimeout,
    Ready::InvalidModule,
    Ready::WorkspacePaused,
    Ready::InvalidTemplate,
    Ready::UnsafeVariable,
    Ready::UnresolvedVariable,
    Ready::CrossNamespaceReference,
    Ready::AdmissionDenied,
    Ready::OwnershipConflict,
    Ready::NamespaceTerminating,
];

/// An apply's life, by the reason of its condition Ready.
pub const APPLY: Machine<Ready> = Machine {
    title: "WorkspaceTemplateApply: reason of condition Ready",
    // A stage that passes by itself is not told, and a controller may come late: any word can be the first.
    begin: <Ready as capt_api::conditions::Reason>::ALL,
    ways: &[
        Way {
            from: LIVING,
            to: &[Ready::NotApplied],
            when: "something is awaited that others make, as condition Waiting says",
        },
        Way {
            from: LIVING,
            to: &[
                Ready::InvalidTemplate,
                Ready::UnsafeVariable,
                Ready::UnresolvedVariable,
                Ready::CrossNamespaceReference,
            ],
            when: "the template cannot be rendered with these variables",
        },
        Way {
            from: LIVING,
            to: &[Ready::OwnershipConflict],
            when: "the Workspace of this name was made for somebody else, or its connection secret was",
        },
        Way {
            from: LIVING,
            to: &[Ready::AdmissionDenied],
            when: "an admission policy refuses the Workspace",
        },
        Way {
            from: LIVING,
            to: &[Ready::NamespaceTerminating],
            when: "the namespace is being deleted and takes nothing new",
        },
        Way {
            from: LIVING,
            to: &[Ready::WaitingForProvider],
            when: "the Terraform provider has not looked at the Workspace yet",
        },
        Way {
            from: LIVING,
            to: &[Ready::Applying],
            when: "Terraform is at work, or has not yet proven by a plan that it is done",
        },
        Way {
            from: LIVING,
            to: &[Ready::Available],
            when: "Terraform has applied the current revision, and a plan shows no difference",
        },
        Way {
            from: LIVING,
            to: &[
                Ready::TerraformFailed,
                Ready::StateLocked,
                Ready::ProviderConfigMissing,
                Ready::CredentialsMissing,
                Ready::QuotaExceeded,
                Ready::TerraformTimeout,
                Ready::InvalidModule,
            ],
            when: "Terraform fails, and the provider goes on trying",
        },
        Way {
            from: LIVING,
            to: &[Ready::CreateInterrupted],
            when: "the provider was stopped during the first apply, and does not try again by itself",
        },
        Way {
            from: LIVING,
            to: &[Ready::WorkspacePaused],
            when: "somebody told the Terraform provider to leave the Workspace alone",
        },
        Way {
            from: LIVING,
            to: &[Ready::Deleting],
            when: "the object is being deleted, and nothing holds it",
        },
    ],
    goals: &[Ready::Deleting],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_a_dead_end() {
        assert_eq!(APPLY.faults(), [""; 0]);
        for place in LIVING {
            assert!(
                APPLY.reached_from(&[*place]).contains(&Ready::Available),
                "{place:?} never leads to Available"
            );
        }
        assert_eq!(
            APPLY.reached_from(&[Ready::Deleting]),
            [Ready::Deleting],
            "deletion is the end"
        );
    }
}
