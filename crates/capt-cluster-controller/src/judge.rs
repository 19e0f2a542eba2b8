//! How the VPC stands, judged from its apply.

use capt_api::conditions::cluster::VpcReady;
use capt_api::conditions::{self, Reason, workspace_apply};
use capt_api::names::{output, vpc_connection_secret};
use capt_api::reasons::is_trouble;
use capt_api::workspace::WorkspaceTemplateApplyStatus;
use capt_api::{WorkspaceTemplateApply, conditions::bounded, vpc_id};
use capt_runtime::error::{Class, Classified, Failure};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt;

use crate::hold::HOLD;
use crate::network::{Network, network};
use crate::observe::{Apply, FromSecret, Observed, Owner};
use crate::wish::wish;

/// The apply has not taken up its current spec yet; every word it says is about an earlier one.
pub(crate) const PENDING: &str = "Pending";

/// How the VPC stands, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Judgement {
    pub(crate) standing: Standing,
    pub(crate) reason: VpcReady,
    pub(crate) message: String,
    pub(crate) passing: Passing,
}

/// Whether a stage usually passes within moments, and since when it lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passing {
    No,
    Since(Timestamp),
    /// Something of another controller's, which keeps silent about what passes for as long as we do.
    UnsaidSince(Timestamp),
}

impl Passing {
    pub(crate) fn since(time: Option<&Time>) -> Self {
        time.map_or(Self::No, |time| Self::Since(time.0))
    }
}

/// What is going on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The VPC with this ID is as wished.
    InPlace(String),
    /// It is being worked on, against this clock.
    Working(Clock),
    /// It will be worked on when the Terraform provider gets to it. No clock: a long queue is nobody's failure.
    Queueing,
    /// Nothing happens, and that is no failure.
    Idle,
    /// Terraform fails and goes on trying, against the clock.
    Failing,
    /// Somebody must change something.
    Refused,
}

/// Which of the deadlines runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clock {
    Vpc,
    Secret,
}

impl Judgement {
    fn new(standing: Standing, reason: VpcReady, message: impl Into<String>) -> Self {
        Self {
            standing,
            reason,
            message: message.into(),
            passing: Passing::No,
        }
    }

    fn passing(self, passing: Passing) -> Self {
        Self { passing, ..self }
    }

    pub(crate) fn clock(&self) -> Option<Clock> {
        match self.standing {
            Standing::Working(clock) => Some(clock),
            Standing::Failing => Some(Clock::Vpc),
            _ => None,
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.standing, Standing::Failing | Standing::Refused)
    }

    /// The same after its deadline. What it waited for stays in the message.
    pub(crate) fn too_late(self, clock: Clock) -> Self {
        let (reason, what) = match clock {
            Clock::Vpc => (VpcReady::VpcReadyTimeout, "the VPC did not become ready in time"),
            Clock::Secret => (VpcReady::SecretTimeout, "the VPC's ID did not become known in time"),
        };
        Self::new(Standing::Refused, reason, format!("{what}: {}", self.message))
    }
}

/// A read or a write that cannot succeed before somebody changes something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trouble {
    standing: Standing,
    pub(crate) reason: VpcReady,
    pub(crate) message: String,
}

impl Trouble {
    /// `None` for what passes by itself, which is nothing to report.
    pub(crate) fn of(failure: &Failure) -> Option<Self> {
        let standing = match failure.class() {
            // It passes when somebody makes room, who has to know of it.
            Class::Transient if matches!(failure, Failure::QuotaExceeded { .. }) => Standing::Failing,
            Class::Transient | Class::Conflict => return None,
            // The user can do nothing about it, so it is no verdict on the user's wish.
            Class::Bug => Standing::Failing,
            Class::Terminal(_) => Standing::Refused,
        };
        let (standing, reason) = match failure {
            Failure::OwnershipConflict { .. } => (standing, VpcReady::OwnershipConflict),
            Failure::NamespaceTerminating { .. } => (Standing::Idle, VpcReady::NamespaceTerminating),
            Failure::Denied { .. } => (standing, VpcReady::AdmissionDenied),
            // Everything in the apply stems from this object's spec.
            Failure::Invalid { .. } => (standing, VpcReady::InvalidVpcConfig),
            _ => (standing, VpcReady::VpcCreationFailed),
        };
        Some(Self {
            standing,
            reason,
            message: failure.to_string(),
        })
    }
}

/// How the VPC of an object that is not being deleted stands.
pub(crate) fn judge(seen: &Observed) -> Judgement {
    use Standing::{Failing, Idle, Refused, Working};
    let made = Passing::since(seen.capt_cluster.metadata.creation_timestamp.as_ref());
    let waiting_for_cluster =
        |message: String| Judgement::new(Idle, VpcReady::WaitingForCluster, message).passing(made);
    match &seen.owner {
        Owner::Unnamed => {
            return waiting_for_cluster(
                "waiting for a Cluster that names this object in spec.infrastructureRef".into(),
            );
        }
        Owner::Unseen(name) => {
            return waiting_for_cluster(format!("the Cluster {name}, which owns this object, is not there"));
        }
        Owner::Present(_) => {}
    }
    let name = seen.apply_name();
    let own_namespace = seen.capt_cluster.metadata.namespace.as_deref().unwrap_or_default();
    match network(
        &seen.capt_cluster.spec,
        own_namespace,
        seen.settings.allow_cross_namespace,
    ) {
        Err(invalid) => return Judgement::new(Refused, invalid.reason, invalid.message),
        Ok(Network::Existing(id)) => {
            let mut message = format!("the existing VPC {id} is used");
            if matches!(seen.apply, Apply::Ours(_)) {
                message.push_str(&format!(
                    "; WorkspaceTemplateApply {name} of the VPC made before stays until this object is deleted"
                ));
            }
            return Judgement::new(Standing::InPlace(id.to_owned()), VpcReady::ExistingVpcUsed, message);
        }
        Ok(Network::Template(_)) => {}
    }
    if let Some(trouble) = &seen.trouble {
        return Judgement::new(trouble.standing.clone(), trouble.reason, trouble.message.clone());
    }
    if let Some(astray) = &seen.astray {
        return Judgement::new(
            Refused,
            VpcReady::InvalidVpcConfig,
            format!(
                "spec.workspaceTemplateApplyName: WorkspaceTemplateApply {astray} holds a network of this object, and \
                 only {name} is looked after, so nothing is made beside it. To keep that network, set \
                 spec.retainWorkspaceOnDelete on {astray}, delete it, and put the VPC's ID into spec.existingVpcId in \
                 place of spec.vpcTemplateRef; for a new network, remove the field"
            ),
        );
    }
    match &seen.apply {
        Apply::Absent => Judgement::new(
            Working(Clock::Vpc),
            VpcReady::VpcCreating,
            format!("WorkspaceTemplateApply {name} is being made"),
        )
        .passing(made),
        Apply::Unreadable(why) => Judgement::new(
            Failing,
            VpcReady::VpcCreationFailed,
            format!("WorkspaceTemplateApply {name} cannot be read: {why}"),
        ),
        Apply::Foreign { deleting: true } => Judgement::new(
            Working(Clock::Vpc),
            VpcReady::VpcCreating,
            format!("waiting until an earlier WorkspaceTemplateApply {name}, which is being deleted, has gone"),
        ),
        Apply::Foreign { deleting: false } => Judgement::new(
            Refused,
            VpcReady::OwnershipConflict,
            format!(
                "WorkspaceTemplateApply {name} exists and was not made for this CAPTCluster; \
                 delete it, or give the CAPTCluster another name"
            ),
        ),
        Apply::Ours(apply) => judge_apply(seen, apply, &name),
    }
}

/// Whether the apply still asks for something else than the CAPTCluster does: whatever it says is about the wish of
/// yesterday.
fn is_outdated(seen: &Observed, apply: &WorkspaceTemplateApply) -> bool {
    let capt_cluster = &seen.capt_cluster;
    let own_namespace = capt_cluster.metadata.namespace.as_deref().unwrap_or_default();
    let network = network(&capt_cluster.spec, own_namespace, seen.settings.allow_cross_namespace);
    match (&seen.owner, network) {
        (Owner::Present(cluster), Ok(Network::Template(template))) => {
            apply.spec != wish(capt_cluster, template, &cluster.name_any()).spec
        }
        _ => false,
    }
}

fn judge_apply(seen: &Observed, apply: &WorkspaceTemplateApply, name: &str) -> Judgement {
    use Standing::{Failing, Idle, Queueing, Refused, Working};
    if apply.metadata.deletion_timestamp.is_some() {
        let message = if HOLD.is_on(&apply.metadata) {
            format!(
                "WorkspaceTemplateApply {name} is being deleted; it is held, so the VPC is not destroyed, but changes do \
                 not reach it any more. To go back, remove all finalizers from it: it is made anew and takes the VPC over"
            )
        } else {
            format!(
                "WorkspaceTemplateApply {name} is being deleted, and the VPC with it; it is made anew when it has gone"
            )
        };
        return Judgement::new(Idle, VpcReady::ApplyDeleted, message);
    }
    let word = current_word(apply).filter(|_| !is_outdated(seen, apply));
    let Some((told, ready)) = word else {
        let unsaid = apply.metadata.creation_timestamp.as_ref();
        return Judgement::new(
            Working(Clock::Vpc),
            VpcReady::VpcCreating,
            format!("WorkspaceTemplateApply {name} has not taken up its spec yet"),
        )
        .passing(unsaid.map_or(Passing::No, |made| Passing::UnsaidSince(made.0)));
    };
    if apply.is_ready() {
        return judge_ready(seen, apply, name);
    }
    let waiting =
        conditions::find(&told.conditions, workspace_apply::Waiting::TYPE).filter(|waiting| waiting.status == "True");
    if let Some(waiting) = waiting {
        let reason = match waiting.reason.as_str() {
            "WaitingForTemplate" => VpcReady::WaitingForTemplate,
            _ => VpcReady::VpcCreating,
        };
        return Judgement::new(Working(Clock::Vpc), reason, said(name, waiting));
    }
    let (standing, reason) = match ready.reason.as_str() {
        "WaitingForProvider" => (Queueing, VpcReady::WaitingForProvider),
        "WorkspacePaused" => (Idle, VpcReady::WorkspacePaused),
        "TerraformFailed" => (Failing, VpcReady::VpcCreationFailed),
        "CreateInterrupted" => (Failing, VpcReady::CreateInterrupted),
        "StateLocked" => (Failing, VpcReady::StateLocked),
        "ProviderConfigMissing" => (Failing, VpcReady::ProviderConfigMissing),
        "CredentialsMissing" => (Failing, VpcReady::CredentialsMissing),
        "QuotaExceeded" => (Failing, VpcReady::QuotaExceeded),
        "TerraformTimeout" => (Failing, VpcReady::TerraformTimeout),
        "InvalidModule" => (Failing, VpcReady::InvalidModule),
        "InvalidTemplate" => (Refused, VpcReady::InvalidTemplate),
        "UnsafeVariable" => (Refused, VpcReady::UnsafeVariable),
        "UnresolvedVariable" => (Refused, VpcReady::UnresolvedVariable),
        "CrossNamespaceReference" => (Refused, VpcReady::CrossNamespaceTemplate),
        "AdmissionDenied" => (Refused, VpcReady::AdmissionDenied),
        "OwnershipConflict" => (Refused, VpcReady::OwnershipConflict),
        "NamespaceTerminating" => (Idle, VpcReady::NamespaceTerminating),
        _ => (Working(Clock::Vpc), VpcReady::VpcCreating),
    };
    match standing {
        // While all is well its words are its own business: each one repeated here would be one more write.
        Queueing => Judgement::new(
            standing,
            reason,
            format!("WorkspaceTemplateApply {name} waits for the Terraform provider"),
        )
        .passing(Passing::since(Some(&ready.last_transition_time))),
        Working(_) => Judgement::new(
            standing,
            reason,
            format!("Terraform works on WorkspaceTemplateApply {name}"),
        ),
        _ => Judgement::new(standing, reason, said(name, ready)),
    }
}

fn judge_ready(seen: &Observed, apply: &WorkspaceTemplateApply, name: &str) -> Judgement {
    let in_place = |id: &str| {
        let message = format!("Terraform has made the VPC {id}");
        Judgement::new(Standing::InPlace(id.to_owned()), VpcReady::VpcCreated, message)
    };
    let unknown =
        |message: String| Judgement::new(Standing::Working(Clock::Secret), VpcReady::WaitingForVpcId, message);
    let output = apply.status.as_ref().and_then(|told| told.outputs.get(output::VPC_ID));
    match output.map(|text| vpc_id::parse(text)) {
        Some(Ok(Some(id))) => return in_place(id),
        Some(Err(unfit)) => {
            return Judgement::new(
                Standing::Refused,
                VpcReady::InvalidTemplate,
                format!(
                    "the output {} of WorkspaceTemplateApply {name} is {unfit}, and must be the VPC's ID as plain text; \
                     correct the template",
                    output::VPC_ID
                ),
            );
        }
        Some(Ok(None)) | None => {}
    }
    let secret = vpc_connection_secret(&seen.capt_cluster.name_any());
    let before = seen.before().vpc_id;
    let text = match &seen.secret {
        FromSecret::Read(text) => text.as_deref(),
        FromSecret::NotRead => before.as_deref(),
    };
    match text.map(vpc_id::parse) {
        Some(Ok(Some(id))) => in_place(id),
        Some(Err(unfit)) => unknown(format!(
            "the key {} of Secret {secret} is {unfit}, and must be the VPC's ID as plain text; correct the output of the \
             template of WorkspaceTemplateApply {name}",
            output::VPC_ID
        )),
        Some(Ok(None)) | None => unknown(format!(
            "WorkspaceTemplateApply {name} is ready, but neither its outputs nor the Secret {secret} tell the VPC's ID; \
             the template needs an output {}",
            output::VPC_ID
        )),
    }
}

/// What the apply says of its current spec.
fn current_word(apply: &WorkspaceTemplateApply) -> Option<(&WorkspaceTemplateApplyStatus, &Condition)> {
    let generation = apply.metadata.generation;
    let told = apply
        .status
        .as_ref()
        .filter(|told| told.observed_generation == generation)?;
    let ready = conditions::find(&told.conditions, workspace_apply::Ready::TYPE)?;
    (ready.observed_generation == generation).then_some((told, ready))
}

/// The apply's state as one word.
pub(crate) fn state(seen: &Observed, apply: &WorkspaceTemplateApply) -> String {
    let word = current_word(apply).filter(|_| !is_outdated(seen, apply));
    word.map_or_else(|| PENDING.to_owned(), |(_, ready)| ready.reason.clone())
}

/// Whether another revision is being tried than the one that the status speaks of, so that the clock starts anew: the
/// change that mends a failure must have its own time.
pub(crate) fn is_new_attempt(seen: &Observed, apply: &WorkspaceTemplateApply) -> bool {
    let Some(before) = &seen.before().workspace_template_status else {
        return false;
    };
    let (was, is) = (before.state.as_deref().unwrap_or_default(), state(seen, apply));
    let failed = apply
        .status
        .as_ref()
        .and_then(|told| told.last_failed_revision.as_ref());
    (is == PENDING && was != PENDING)
        || (is_trouble(was) && !is_trouble(&is))
        || (before.last_failed_revision.is_some() && failed.is_some() && failed != before.last_failed_revision.as_ref())
}

/// The apply's own words, with its name.
fn said(name: &str, condition: &Condition) -> String {
    if condition.message.is_empty() {
        return format!("WorkspaceTemplateApply {name}: {}", condition.reason);
    }
    bounded(&format!("WorkspaceTemplateApply {name}: {}", condition.message))
}
