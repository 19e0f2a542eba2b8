//! The conditions that CAPT's controllers report, typed: each condition has its own enum of reasons, and each controller
//! reports one struct that holds all the conditions it owns. A reason under the wrong condition does not compile, and no
//! owned condition can be forgotten.
//!
//! [`merge`] turns a report into the list that goes into `status.conditions`. It reads no clock and is a pure function of
//! its arguments: a pass in which nothing changed gives back what is already there, and so causes no write.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// The longest message CAPT writes, in bytes. Terraform's errors are the long ones; more of them belongs in the
/// Workspace, not in every list request of every controller.
pub const MAX_MESSAGE: usize = 1024;

/// A condition's status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    True,
    False,
    Unknown,
}

impl Status {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// A reason, which also says whose it is: there is one enum of reasons per condition.
pub trait Reason: Copy + 'static {
    /// The condition's type.
    const TYPE: &'static str;
    /// Every reason that the condition can have, for documentation and tests.
    const ALL: &'static [Self];
    fn as_str(self) -> &'static str;

    /// The reason with this word: one word means the same under every condition of every object.
    fn named(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.as_str() == word)
    }
}

/// What a controller says about one condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State<R> {
    pub status: Status,
    pub reason: R,
    /// For people. Holds no times, counters or UIDs: text that changes from pass to pass would be written on every pass.
    pub message: String,
}

impl<R: Reason> State<R> {
    pub fn yes(reason: R, message: impl Into<String>) -> Self {
        Self {
            status: Status::True,
            reason,
            message: message.into(),
        }
    }

    pub fn no(reason: R, message: impl Into<String>) -> Self {
        Self {
            status: Status::False,
            reason,
            message: message.into(),
        }
    }

    pub fn unknown(reason: R, message: impl Into<String>) -> Self {
        Self {
            status: Status::Unknown,
            reason,
            message: message.into(),
        }
    }
}

/// One entry of a report, with its types erased.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<'a> {
    pub type_: &'static str,
    /// `None` keeps the condition as it stands.
    pub state: Option<(Status, &'static str, &'a str)>,
}

/// A condition's type, and every word that it can have as its reason.
pub type Words = (&'static str, &'static [&'static str]);

/// All the conditions that one controller owns on one kind.
pub trait Report {
    /// The types of these conditions, in the order in which they are written.
    const TYPES: &'static [&'static str];
    /// The same with their reasons.
    const WORDS: &'static [Words];
    fn entries(&self) -> Vec<Entry<'_>>;
}

/// The conditions of `report` as they go into the status, in the report's order.
///
/// `lastTransitionTime` is kept unless the status changes. Conditions that the report leaves out stay exactly as they
/// are (a paused object keeps its last word); those of other controllers are not in the result, because they belong to
/// other field managers.
pub fn merge(existing: &[Condition], report: &impl Report, observed_generation: i64, now: Timestamp) -> Vec<Condition> {
    report
        .entries()
        .into_iter()
        .filter_map(|entry| {
            let before = find(existing, entry.type_);
            let Some((status, reason, message)) = entry.state else {
                return before.cloned();
            };
            let since = before.filter(|before| before.status == status.as_str()).map_or_else(
                || Time(whole_seconds(now)),
                |before| before.last_transition_time.clone(),
            );
            Some(Condition {
                type_: entry.type_.to_owned(),
                status: status.as_str().to_owned(),
                reason: reason.to_owned(),
                message: bounded(message),
                last_transition_time: since,
                observed_generation: Some(observed_generation),
            })
        })
        .collect()
}

/// The condition of this type, also one that another controller owns.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Whether the condition of this type is there and `True`.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|condition| condition.status == Status::True.as_str())
}

/// The API server keeps whole seconds; a fraction would make each comparison with the stored object fail.
pub fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// The message cut to [`MAX_MESSAGE`] bytes, never inside a character.
pub fn bounded(message: &str) -> String {
    const ELLIPSIS: &str = "…";
    if message.len() <= MAX_MESSAGE {
        return message.to_owned();
    }
    let end = message.floor_char_boundary(MAX_MESSAGE - ELLIPSIS.len());
    let mut cut = message.get(..end).unwrap_or_default().to_owned();
    cut.push_str(ELLIPSIS);
    cut
}

/// Declares one controller's conditions on one kind: the enum of reasons of each condition, and the report that holds
/// them all.
macro_rules! report {
    (
        $(#[$doc:meta])*
        $report:ident {
            $(
                $(#[$condition_doc:meta])*
                $field:ident: $condition:ident = $type:literal { $( $(#[$reason_doc:meta])* $reason:ident = $text:literal ),+ $(,)? }
            )+
        }
    ) => {
        $(
            $(#[$condition_doc])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
            pub enum $condition { $( $(#[$reason_doc])* $reason ),+ }

            impl $crate::conditions::Reason for $condition {
                const TYPE: &'static str = $type;
                const ALL: &'static [Self] = &[$( Self::$reason ),+];
                fn as_str(self) -> &'static str {
                    match self { $( Self::$reason => $text ),+ }
                }
            }
        )+

        $(#[$doc])*
        ///
        /// A field that is `None` keeps that condition as it stands; only a paused pass leaves fields out.
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct $report { $( pub $field: Option<$crate::conditions::State<$condition>> ),+ }

        impl $crate::conditions::Report for $report {
            const TYPES: &'static [&'static str] = &[$( $type ),+];
            const WORDS: &'static [$crate::conditions::Words] = &[$( ($type, &[$( $text ),+]) ),+];
            fn entries(&self) -> Vec<$crate::conditions::Entry<'_>> {
                vec![$( $crate::conditions::Entry {
                    type_: $type,
                    state: self.$field.as_ref().map(|state| {
                        (state.status, $crate::conditions::Reason::as_str(state.reason), state.message.as_str())
                    }),
                } ),+]
            }
        }
    };
}

/// CAPTCluster, reported by capt-cluster-controller.
pub mod cluster {
    report! {
        /// Every condition of a CAPTCluster.
        ClusterReport {
            /// The network is there and the Cluster can use it. Latches: Cluster API counts it for the Cluster's own
            /// availability, and one throttled plan must not turn that.
            ready: Ready = "Ready" {
                ExistingVpcUsed = "ExistingVPCUsed",
                VpcCreated = "VPCCreated",
                VpcCreating = "VPCCreating",
                WaitingForCluster = "WaitingForCluster",
                WaitingForTemplate = "WaitingForTemplate",
                WaitingForProvider = "WaitingForProvider",
                WorkspacePaused = "WorkspacePaused",
                WaitingForVpcId = "WaitingForVPCID",
                VpcCreationFailed = "VPCCreationFailed",
                InvalidVpcConfig = "InvalidVPCConfig",
                InvalidTemplate = "InvalidTemplate",
                UnsafeVariable = "UnsafeVariable",
                UnresolvedVariable = "UnresolvedVariable",
                CrossNamespaceTemplate = "CrossNamespaceTemplate",
                AdmissionDenied = "AdmissionDenied",
                CreateInterrupted = "CreateInterrupted",
                StateLocked = "StateLocked",
                ProviderConfigMissing = "ProviderConfigMissing",
                CredentialsMissing = "CredentialsMissing",
                QuotaExceeded = "QuotaExceeded",
                TerraformTimeout = "TerraformTimeout",
                InvalidModule = "InvalidModule",
                VpcReadyTimeout = "VPCReadyTimeout",
                SecretTimeout = "SecretTimeout",
                OwnershipConflict = "OwnershipConflict",
                ApplyDeleted = "ApplyDeleted",
                NamespaceTerminating = "NamespaceTerminating",
                Deleting = "Deleting",
            }
            /// The last wish for the VPC was carried out.
            vpc_ready: VpcReady = "VPCReady" {
                ExistingVpcUsed = "ExistingVPCUsed",
                VpcCreated = "VPCCreated",
                VpcCreating = "VPCCreating",
                WaitingForCluster = "WaitingForCluster",
                WaitingForTemplate = "WaitingForTemplate",
                WaitingForProvider = "WaitingForProvider",
                WorkspacePaused = "WorkspacePaused",
                WaitingForVpcId = "WaitingForVPCID",
                VpcCreationFailed = "VPCCreationFailed",
                InvalidVpcConfig = "InvalidVPCConfig",
                InvalidTemplate = "InvalidTemplate",
                UnsafeVariable = "UnsafeVariable",
                UnresolvedVariable = "UnresolvedVariable",
                CrossNamespaceTemplate = "CrossNamespaceTemplate",
                AdmissionDenied = "AdmissionDenied",
                CreateInterrupted = "CreateInterrupted",
                StateLocked = "StateLocked",
                ProviderConfigMissing = "ProviderConfigMissing",
                CredentialsMissing = "CredentialsMissing",
                QuotaExceeded = "QuotaExceeded",
                TerraformTimeout = "TerraformTimeout",
                InvalidModule = "InvalidModule",
                VpcReadyTimeout = "VPCReadyTimeout",
                SecretTimeout = "SecretTimeout",
                OwnershipConflict = "OwnershipConflict",
                ApplyDeleted = "ApplyDeleted",
                NamespaceTerminating = "NamespaceTerminating",
                Deleting = "Deleting",
            }
            /// Terraform is at work on the VPC, or about to be.
            vpc_creating: VpcCreating = "VPCCreating" {
                VpcCreating = "VPCCreating",
                WaitingForTemplate = "WaitingForTemplate",
                WaitingForProvider = "WaitingForProvider",
                WorkspacePaused = "WorkspacePaused",
                WaitingForVpcId = "WaitingForVPCID",
                NotStarted = "NotStarted",
                ExistingVpcUsed = "ExistingVPCUsed",
                VpcCreated = "VPCCreated",
                VpcCreationFailed = "VPCCreationFailed",
                Deleting = "Deleting",
            }
            /// Something stands in the VPC's way that waiting alone does not mend.
            vpc_failed: VpcFailed = "VPCFailed" {
                NoFailure = "NoFailure",
                VpcCreationFailed = "VPCCreationFailed",
                InvalidVpcConfig = "InvalidVPCConfig",
                InvalidTemplate = "InvalidTemplate",
                UnsafeVariable = "UnsafeVariable",
                UnresolvedVariable = "UnresolvedVariable",
                CrossNamespaceTemplate = "CrossNamespaceTemplate",
                AdmissionDenied = "AdmissionDenied",
                CreateInterrupted = "CreateInterrupted",
                StateLocked = "StateLocked",
                ProviderConfigMissing = "ProviderConfigMissing",
                CredentialsMissing = "CredentialsMissing",
                QuotaExceeded = "QuotaExceeded",
                TerraformTimeout = "TerraformTimeout",
                InvalidModule = "InvalidModule",
                VpcReadyTimeout = "VPCReadyTimeout",
                SecretTimeout = "SecretTimeout",
                OwnershipConflict = "OwnershipConflict",
            }
            /// The object is being deleted, and what that waits for.
            deleting: Deleting = "Deleting" {
                NotDeleting = "NotDeleting",
                WaitingForControlPlane = "WaitingForControlPlane",
                WaitingForWorkspace = "WaitingForWorkspace",
                RetainingVpc = "RetainingVPC",
                DestroyFailed = "DestroyFailed",
                CreateInterrupted = "CreateInterrupted",
                StateLocked = "StateLocked",
                ProviderConfigMissing = "ProviderConfigMissing",
                CredentialsMissing = "CredentialsMissing",
                QuotaExceeded = "QuotaExceeded",
                TerraformTimeout = "TerraformTimeout",
                InvalidModule = "InvalidModule",
                WorkspacePaused = "WorkspacePaused",
                ForeignFinalizer = "ForeignFinalizer",
                AdmissionDenied = "AdmissionDenied",
                DeletionTimeout = "DeletionTimeout",
                OwnershipConflict = "OwnershipConflict",
                Paused = "Paused",
            }
            /// Reconciliation is paused, by the Cluster or by annotation.
            paused: Paused = "Paused" { Paused = "Paused", NotPaused = "NotPaused" }
        }
    }
}

/// CAPTControlPlane, reported by capt-controlplane-controller.
pub mod control_plane {
    report! {
        /// The conditions of a CAPTControlPlane but for those of the endpoint and the secrets.
        ControlPlaneReport {
            /// The last wish was carried out: EKS, endpoint and secrets are as the spec asks.
            ready: Ready = "Ready" {
                ControlPlaneReady = "ControlPlaneReady",
                WaitingForCluster = "WaitingForCluster",
                WaitingForVpc = "WaitingForVPC",
                WaitingForTemplate = "WaitingForTemplate",
                WaitingForProvider = "WaitingForProvider",
                WaitingForEndpoint = "WaitingForEndpoint",
                WaitingForSecrets = "WaitingForSecrets",
                Creating = "Creating",
                Updating = "Updating",
                TerraformFailed = "TerraformFailed",
                InvalidSpec = "InvalidSpec",
                InvalidTemplate = "InvalidTemplate",
                UnsafeVariable = "UnsafeVariable",
                UnresolvedVariable = "UnresolvedVariable",
                CrossNamespaceTemplate = "CrossNamespaceTemplate",
                AdmissionDenied = "AdmissionDenied",
                CreateInterrupted = "CreateInterrupted",
                StateLocked = "StateLocked",
                ProviderConfigMissing = "ProviderConfigMissing",
                CredentialsMissing = "CredentialsMissing",
                QuotaExceeded = "QuotaExceeded",
                TerraformTimeout = "TerraformTimeout",
                InvalidModule = "InvalidModule",
                ControlPlaneTimeout = "ControlPlaneTimeout",
                VpcReadyTimeout = "VPCReadyTimeout",
                SecretTimeout = "SecretTimeout",
                EndpointMissing = "EndpointMissing",
                EndpointInvalid = "EndpointInvalid",
                SecretsFailed = "SecretsFailed",
                OwnershipConflict = "OwnershipConflict",
                ApplyDeleted = "ApplyDeleted",
                NamespaceTerminating = "NamespaceTerminating",
                Deleting = "Deleting",
            }
            /// Users can use the cluster. Latches: a failed later change does not take a running cluster away.
            available: Available = "Available" {
                Available = "Available",
                NotYetAvailable = "NotYetAvailable",
                Deleting = "Deleting",
            }
            /// The control plane has been usable once. Never goes back.
            initialized: Initialized = "Initialized" {
                Initialized = "Initialized",
                NotInitialized = "NotInitialized",
            }
            /// The control plane is being made and has not been ready yet.
            creating: Creating = "Creating" {
                Creating = "Creating",
                WaitingForCluster = "WaitingForCluster",
                WaitingForVpc = "WaitingForVPC",
                WaitingForTemplate = "WaitingForTemplate",
                WaitingForProvider = "WaitingForProvider",
                WaitingForEndpoint = "WaitingForEndpoint",
                WaitingForSecrets = "WaitingForSecrets",
                Created = "Created",
                Failed = "Failed",
                Deleting = "Deleting",
            }
            /// The last wish could not be carried out, and waiting alone does not mend it.
            failed: Failed = "Failed" {
                NoFailure = "NoFailure",
                TerraformFailed = "TerraformFailed",
                InvalidSpec = "InvalidSpec",
                InvalidTemplate = "InvalidTemplate",
                UnsafeVariable = "UnsafeVariable",
                UnresolvedVariable = "UnresolvedVariable",
                CrossNamespaceTemplate = "CrossNamespaceTemplate",
                AdmissionDenied = "AdmissionDenied",
                CreateInterrupted = "CreateInterrupted",
                StateLocked = "StateLocked",
                ProviderConfigMissing = "ProviderConfigMissing",
                CredentialsMissing = "CredentialsMissing",
                QuotaExceeded = "QuotaExceeded",
                TerraformTimeout = "TerraformTimeout",
                InvalidModule = "InvalidModule",
                ControlPlaneTimeout = "ControlPlaneTimeout",
                VpcReadyTimeout = "VPCReadyTimeout",
                SecretTimeout = "SecretTimeout",
                EndpointMissing = "EndpointMissing",
                EndpointInvalid = "EndpointInvalid",
                SecretsFailed = "SecretsFailed",
                OwnershipConflict = "OwnershipConflict",
            }
            /// The object is being deleted, and what that waits for.
            deleting: Deleting = "Deleting" {
                NotDeleting = "NotDeleting",
                WaitingForEndpointCleanup = "WaitingForEndpointCleanup",
                WaitingForSecretCleanup = "WaitingForSecretCleanup",
                WaitingForWorkspace = "WaitingForWorkspace",
                DestroyFailed = "DestroyFailed",
                CreateInterrupted = "CreateInterrupted",
                StateLocked = "StateLocked",
                ProviderConfigMissing = "ProviderConfigMissing",
                CredentialsMissing = "CredentialsMissing",
                QuotaExceeded = "QuotaExceeded",
                TerraformTimeout = "TerraformTimeout",
                InvalidModule = "InvalidModule",
                WorkspacePaused = "WorkspacePaused",
                ForeignFinalizer = "ForeignFinalizer",
                AdmissionDenied = "AdmissionDenied",
                DeletionTimeout = "DeletionTimeout",
                OwnershipConflict = "OwnershipConflict",
                Paused = "Paused",
            }
            /// Reconciliation is paused, by the Cluster or by annotation.
            paused: Paused = "Paused" { Paused = "Paused", NotPaused = "NotPaused" }
        }
    }
}

/// CAPTControlPlane, reported by capt-endpoint.
pub mod endpoint {
    report! {
        /// What capt-endpoint reports.
        EndpointReport {
            /// The control plane's address is known and published. Stays true while a published address stands, and for the
            /// first moments of a deletion.
            endpoint_ready: EndpointReady = "EndpointReady" {
                EndpointPublished = "EndpointPublished",
                UserSupplied = "UserSupplied",
                WaitingForCluster = "WaitingForCluster",
                WaitingForWorkspace = "WaitingForWorkspace",
                EndpointMissing = "EndpointMissing",
                EndpointInvalid = "EndpointInvalid",
                EndpointUpdateFailed = "EndpointUpdateFailed",
                Deleting = "Deleting",
            }
        }
    }
}

/// CAPTControlPlane, reported by capt-secrets.
pub mod secrets {
    report! {
        /// What capt-secrets reports.
        SecretsReport {
            /// Valid copies of kubeconfig and CA exist. Stays true while they do, and for the first moments of a deletion.
            secrets_ready: SecretsReady = "SecretsReady" {
                WaitingForSecret = "WaitingForSecret",
                ValidatingSecret = "ValidatingSecret",
                Ready = "Ready",
                Failed = "Failed",
                UnsafeKubeconfig = "UnsafeKubeconfig",
                SourceMissing = "SourceMissing",
                OwnershipConflict = "OwnershipConflict",
                NamespaceTerminating = "NamespaceTerminating",
                Deleting = "Deleting",
            }
        }
    }
}

/// WorkspaceTemplate, reported by capt-workspace-controller.
pub mod workspace_template {
    report! {
        /// The condition of a WorkspaceTemplate.
        TemplateReport {
            /// The template can be rendered.
            valid: Valid = "Valid" {
                Valid = "Valid",
                InvalidTemplate = "InvalidTemplate",
                CrossNamespaceReference = "CrossNamespaceReference",
            }
        }
    }
}

/// WorkspaceTemplateApply, reported by capt-workspace-controller.
pub mod workspace_apply {
    report! {
        /// Every condition of a WorkspaceTemplateApply.
        ApplyReport {
            /// Terraform has taken the current revision without an error.
            synced: Synced = "Synced" {
                Synced = "Synced",
                NotApplied = "NotApplied",
                WaitingForProvider = "WaitingForProvider",
                Applying = "Applying",
                TerraformFailed = "TerraformFailed",
                CreateInterrupted = "CreateInterrupted",
                StateLocked = "StateLocked",
                ProviderConfigMissing = "ProviderConfigMissing",
                CredentialsMissing = "CredentialsMissing",
                QuotaExceeded = "QuotaExceeded",
                TerraformTimeout = "TerraformTimeout",
                InvalidModule = "InvalidModule",
                WorkspacePaused = "WorkspacePaused",
                InvalidTemplate = "InvalidTemplate",
                UnsafeVariable = "UnsafeVariable",
                UnresolvedVariable = "UnresolvedVariable",
                CrossNamespaceReference = "CrossNamespaceReference",
                AdmissionDenied = "AdmissionDenied",
                OwnershipConflict = "OwnershipConflict",
                NamespaceTerminating = "NamespaceTerminating",
                Deleting = "Deleting",
            }
            /// The current revision is in place: Terraform has taken it and a plan shows no difference.
            ready: Ready = "Ready" {
                Available = "Available",
                NotApplied = "NotApplied",
                WaitingForProvider = "WaitingForProvider",
                Applying = "Applying",
                TerraformFailed = "TerraformFailed",
                CreateInterrupted = "CreateInterrupted",
                StateLocked = "StateLocked",
                ProviderConfigMissing = "ProviderConfigMissing",
                CredentialsMissing = "CredentialsMissing",
                QuotaExceeded = "QuotaExceeded",
                TerraformTimeout = "TerraformTimeout",
                InvalidModule = "InvalidModule",
                WorkspacePaused = "WorkspacePaused",
                InvalidTemplate = "InvalidTemplate",
                UnsafeVariable = "UnsafeVariable",
                UnresolvedVariable = "UnresolvedVariable",
                CrossNamespaceReference = "CrossNamespaceReference",
                AdmissionDenied = "AdmissionDenied",
                OwnershipConflict = "OwnershipConflict",
                NamespaceTerminating = "NamespaceTerminating",
                Deleting = "Deleting",
            }
            /// The apply waits for something that others make; the message names it.
            waiting: Waiting = "Waiting" {
                NotWaiting = "NotWaiting",
                WaitingForCluster = "WaitingForCluster",
                WaitingForTemplate = "WaitingForTemplate",
                WaitingForSecrets = "WaitingForSecrets",
                WaitingForWorkspaces = "WaitingForWorkspaces",
                WaitingForInputs = "WaitingForInputs",
                WaitingForOldWorkspace = "WaitingForOldWorkspace",
            }
            /// The object is being deleted, and what that waits for.
            deleting: Deleting = "Deleting" {
                NotDeleting = "NotDeleting",
                Held = "Held",
                WaitingForWorkspace = "WaitingForWorkspace",
                Retaining = "Retaining",
                Abandoning = "Abandoning",
                DestroyFailed = "DestroyFailed",
                CreateInterrupted = "CreateInterrupted",
                StateLocked = "StateLocked",
                ProviderConfigMissing = "ProviderConfigMissing",
                CredentialsMissing = "CredentialsMissing",
                QuotaExceeded = "QuotaExceeded",
                TerraformTimeout = "TerraformTimeout",
                InvalidModule = "InvalidModule",
                WorkspacePaused = "WorkspacePaused",
                ForeignFinalizer = "ForeignFinalizer",
                AdmissionDenied = "AdmissionDenied",
                DeletionTimeout = "DeletionTimeout",
                OwnershipConflict = "OwnershipConflict",
                Paused = "Paused",
            }
            /// Reconciliation is paused, by the Cluster or by annotation.
            paused: Paused = "Paused" { Paused = "Paused", NotPaused = "NotPaused" }
        }
    }
}

/// Tenant, reported by capt-tenant-controller.
pub mod tenant {
    report! {
        /// Every condition of a Tenant.
        TenantReport {
            /// The namespaces are those of the spec, and their administrator may work in them.
            ready: Ready = "Ready" {
                NamespacesReady = "NamespacesReady",
                WaitingForNamespaces = "WaitingForNamespaces",
                WaitingForClusters = "WaitingForClusters",
                ClustersExist = "ClustersExist",
                OwnershipConflict = "OwnershipConflict",
                AdmissionDenied = "AdmissionDenied",
                Refused = "Refused",
                Deleting = "Deleting",
            }
            /// The object is being deleted, and what that waits for.
            deleting: Deleting = "Deleting" {
                NotDeleting = "NotDeleting",
                WaitingForClusters = "WaitingForClusters",
                WaitingForNamespaces = "WaitingForNamespaces",
                ClustersExist = "ClustersExist",
                AdmissionDenied = "AdmissionDenied",
                Refused = "Refused",
                Paused = "Paused",
            }
            /// Reconciliation is paused by annotation.
            paused: Paused = "Paused" { Paused = "Paused", NotPaused = "NotPaused" }
        }
    }
}

#[cfg(test)]
mod tests;
