//! A control plane that is to be there: make its apply, keep it as wished, and say how far Terraform, endpoint and
//! kubeconfig have come.

use capt_api::conditions::control_plane::Ready;
use capt_api::conditions::{self, Reason, endpoint, secrets, workspace_apply};
use capt_api::external::cluster::ClusterOwner;
use capt_api::names::{self, CONTROL_PLANE_GROUP, annotation, finalizer, label, output, variable};
use capt_api::reasons;
use capt_api::workspace::WorkspaceTemplateApplySpec;
use capt_api::{CaptControlPlane, Cluster, WorkspaceTemplateApply, vpc_id};
use capt_runtime::apply::is_ours;
use capt_runtime::cache::Found;
use capt_runtime::scope::is_externally_managed;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};

use super::clocks::Wait;
use super::status::{self, Situation, was_available};
use super::{Plan, Step};
use crate::eks_apply::{self, Unfit, Variables, Wish};
use crate::observe::{Infrastructure, Live, Look, Observed, Owner};

pub(super) fn plan(seen: &Observed, now: Timestamp) -> Plan {
    let (step, situation) = next(seen, now);
    let (status, wake) = status::of(seen, situation, now);
    Plan { step, status, wake }
}

fn next(seen: &Observed, now: Timestamp) -> (Step, Situation) {
    let cluster = match &seen.owner {
        Owner::Present(cluster) => cluster,
        Owner::NotSet => {
            return waiting_for_cluster(
                "waiting for Cluster API to make a Cluster the owner of this object".into(),
                created(&seen.control_plane.metadata),
            );
        }
        Owner::Gone { name } => {
            return waiting_for_cluster(
                format!("the owner, Cluster {name}, is not there, or another of the same name is"),
                created(&seen.control_plane.metadata),
            );
        }
    };
    if is_deleting(&cluster.metadata) && !names_control_plane(cluster, &seen.control_plane) {
        return delete_self(seen, cluster);
    }
    let (step, situation) = match &seen.apply {
        Found::Absent => create(seen, cluster, now),
        Found::Unreadable(why) => (
            Step::Nothing,
            underway(
                seen,
                format!("WorkspaceTemplateApply {} cannot be read: {why}", apply_name(seen)),
                &[Wait::ControlPlane],
            ),
        ),
        Found::Present(apply) if !seen.owns(apply) => (
            Step::Nothing,
            Situation::standing(
                Ready::OwnershipConflict,
                format!(
                    "WorkspaceTemplateApply {} exists and is not ours: give this control plane another name, or, if nobody needs what that has made, delete it",
                    apply_name(seen)
                ),
            ),
        ),
        Found::Present(apply) if is_deleting(&apply.metadata) => (Step::Nothing, apply_deleted(seen)),
        Found::Present(apply) => tend(seen, cluster, apply),
    };
    if let Some(refused) = &seen.refused {
        let situation = match refused.reason {
            Some(reason) => Situation::standing(reason, refused.message.clone()),
            None => Situation {
                message: refused.message.clone(),
                since: None,
                // Somebody has to make it possible first.
                is_ours_to_do: false,
                ..situation
            },
        };
        return (Step::Nothing, situation);
    }
    // Before anything that it would have to guard.
    if !seen.has_finalizer(finalizer::CAPT_CONTROL_PLANE) {
        return (Step::AddFinalizer, situation);
    }
    (step, situation)
}

/// The Cluster goes and names another control plane, so Cluster API will never delete this one, and the network would wait
/// for it for ever.
fn delete_self(seen: &Observed, cluster: &Cluster) -> (Step, Situation) {
    let situation = Situation::standing(
        Ready::WaitingForCluster,
        format!(
            "Cluster {} is being deleted and names another control plane",
            name(&cluster.metadata)
        ),
    );
    let step = match &seen.live {
        Some(Live::DeleteSelf { cluster: Some(live) })
            if live.metadata.uid == cluster.metadata.uid
                && is_deleting(&live.metadata)
                && !names_control_plane(live, &seen.control_plane) =>
        {
            Step::DeleteSelf
        }
        Some(_) => Step::Nothing,
        None => Step::Look(Look::DeleteSelf),
    };
    (step, situation)
}

/// There is no apply yet.
fn create(seen: &Observed, cluster: &Cluster, now: Timestamp) -> (Step, Situation) {
    if let Some(deletion) = &cluster.metadata.deletion_timestamp {
        return cluster_goes(cluster, deletion.0);
    }
    // Two control planes of one Cluster would make two EKS clusters of one name.
    if !names_control_plane(cluster, &seen.control_plane) {
        return waiting_for_cluster(
            format!(
                "Cluster {} names another control plane in spec.controlPlaneRef",
                name(&cluster.metadata)
            ),
            created(&seen.control_plane.metadata),
        );
    }
    let wish = match Wish::of(&seen.control_plane, seen.settings.allow_cross_namespace_templates) {
        Ok(wish) => wish,
        Err(unfit) => return (Step::Nothing, unfit.into()),
    };
    let waiting_for_vpc = |why, since| Situation::new(Ready::WaitingForVpc, why, &[Wait::Vpc]).settling(since);
    let network = match network(seen, cluster) {
        Ok(network) => network.variables(),
        Err(unknown) => return (Step::Nothing, waiting_for_vpc(unknown.why, unknown.since)),
    };
    let making = underway(
        seen,
        format!("WorkspaceTemplateApply {} is about to be made", apply_name(seen)),
        &[Wait::ControlPlane],
    )
    .settling(network_turned(seen).max(created(&seen.control_plane.metadata)))
    .ours_to_do();
    let (current, live_cluster, infrastructure, astray) = match &seen.live {
        Some(Live::Create {
            control_plane,
            cluster,
            infrastructure,
            astray,
        }) => (control_plane, cluster, infrastructure, astray),
        _ => return (Step::Look(Look::Create), making),
    };
    if let Some(astray) = astray {
        let name = apply_name(seen);
        let message = format!(
            "spec.workspaceTemplateApplyName: WorkspaceTemplateApply {astray} holds an EKS cluster of this object, and only {name} \
             is looked after, so nothing is made beside it. To keep that cluster, give its apply the name {name}, as the guide for \
             migration shows; for a new cluster, delete {astray} and remove the field"
        );
        return (Step::Nothing, Situation::standing(Ready::InvalidSpec, message));
    }
    // What follows is known before the caches show it; the watch brings it, and then it is told.
    if !is_current(seen, current.as_deref()) {
        return (Step::Nothing, making);
    }
    let stays = live_cluster
        .as_ref()
        .is_some_and(|live| live.metadata.uid == cluster.metadata.uid && !is_deleting(&live.metadata));
    if !stays {
        return cluster_goes(cluster, now);
    }
    if infrastructure.as_ref().is_none_or(|live| is_deleting(&live.metadata)) {
        let why = "the CAPTCluster is being deleted".to_owned();
        return (Step::Nothing, waiting_for_vpc(why, Some(now)));
    }
    (
        Step::CreateApply(Box::new(wish.object(name(&cluster.metadata), &network))),
        making,
    )
}

/// The spec that the apply should have, and which of its variables are the network's.
fn wished(
    seen: &Observed,
    cluster: &Cluster,
    apply: &WorkspaceTemplateApply,
) -> Result<(WorkspaceTemplateApplySpec, String), Unfit> {
    let wish = Wish::of(&seen.control_plane, seen.settings.allow_cross_namespace_templates)?;
    // The network gates the creation only; afterwards a cluster in use must take changes also while its VPC has trouble.
    let carried = eks_apply::carried(apply, &seen.control_plane);
    let network = match network(seen, cluster) {
        // The VPC that CAPT made is now the user's own: its subnets are still those that the cluster runs in.
        Ok(Network::Id(id)) if carried.get(variable::VPC_ID) == Some(&id) => carried,
        Ok(network) => network.variables(),
        Err(_) => carried,
    };
    Ok((wish.spec(name(&cluster.metadata), &network), wish.given(&network)))
}

/// Brings an apply of ours to the wish, if that can be carried out; otherwise it stays at the last one that could.
fn change(
    seen: &Observed,
    cluster: &Cluster,
    apply: &WorkspaceTemplateApply,
    wished: Result<(WorkspaceTemplateApplySpec, String), Unfit>,
) -> Step {
    let labels = eks_apply::labels(&seen.control_plane.metadata, name(&cluster.metadata));
    let given = annotation_of(&apply.metadata, annotation::NETWORK_VARIABLES);
    let (spec, given) = match wished {
        Ok((spec, wished)) => (spec, (given != Some(wished.as_str())).then_some(wished)),
        Err(_) => (apply.spec.clone(), None),
    };
    let as_wished = spec == apply.spec
        && given.is_none()
        && labels
            .iter()
            .all(|(key, value)| label_of(&apply.metadata, key) == value.as_deref());
    match &seen.live {
        _ if as_wished => Step::Nothing,
        Some(Live::Change { control_plane }) if is_current(seen, control_plane.as_deref()) => Step::ChangeApply {
            spec: Box::new(spec),
            labels,
            given,
        },
        Some(_) => Step::Nothing,
        None => Step::Look(Look::Change),
    }
}

/// What keeps Terraform from destroying may be what it was given: a variable, or the template. What is corrected afterwards
/// still reaches it.
pub(super) fn correction(seen: &Observed, apply: &WorkspaceTemplateApply) -> Step {
    match &seen.owner {
        Owner::Present(cluster) => change(seen, cluster, apply, wished(seen, cluster, apply)),
        Owner::NotSet | Owner::Gone { .. } => Step::Nothing,
    }
}

/// There is an apply of ours that stays.
fn tend(seen: &Observed, cluster: &Cluster, apply: &WorkspaceTemplateApply) -> (Step, Situation) {
    let wished = wished(seen, cluster, apply);
    let situation = match &wished {
        Err(unfit) => unfit.clone().into(),
        Ok((spec, _)) if *spec != apply.spec => underway(seen, not_looked_at(seen), &[Wait::ControlPlane]).ours_to_do(),
        Ok(_) => judge(seen, apply),
    };
    let has_hold = apply
        .metadata
        .finalizers
        .iter()
        .flatten()
        .any(|name| name == finalizer::CAPT_CONTROL_PLANE_HOLD);
    let step = if !has_hold {
        Step::HoldApply
    } else if !is_marked(&apply.metadata, seen.uid()) {
        Step::AdoptApply
    } else {
        change(seen, cluster, apply, wished)
    };
    (step, situation)
}

/// What Terraform, and then the two other controllers, say of the wish that the apply carries. Their words are repeated when
/// something is wrong; while all is well they change too often to be worth a write here each time.
fn judge(seen: &Observed, apply: &WorkspaceTemplateApply) -> Situation {
    use workspace_apply::{Ready as Apply, Waiting};
    const TERRAFORM: &[Wait] = &[Wait::ControlPlane, Wait::Workspace];
    const BEFORE_TERRAFORM: &[Wait] = &[Wait::ControlPlane];

    if apply.is_ready() {
        return judge_access(seen, apply);
    }
    // What was said of an earlier generation is about variables that have changed since.
    let current = apply
        .status
        .as_ref()
        .filter(|status| status.observed_generation == apply.metadata.generation);
    let Some((reason, ready)) = current.and_then(|status| typed::<Apply>(&status.conditions)) else {
        return underway(seen, not_looked_at(seen), BEFORE_TERRAFORM).settling(created(&apply.metadata));
    };
    let message = match current.and_then(|status| status.last_failure_message.as_deref()) {
        Some(error) if ready.message.is_empty() => error,
        _ => ready.message.as_str(),
    };
    let waiting = current
        .and_then(|status| typed::<Waiting>(&status.conditions))
        .filter(|(_, waiting)| waiting.status == "True");
    match reason {
        Apply::NotApplied => match waiting {
            Some((Waiting::WaitingForTemplate, waiting)) => {
                Situation::new(Ready::WaitingForTemplate, waiting.message.clone(), BEFORE_TERRAFORM)
                    .settling(turned(waiting))
            }
            Some((_, waiting)) => underway(seen, waiting.message.clone(), BEFORE_TERRAFORM).settling(turned(waiting)),
            None => underway(seen, message.to_owned(), BEFORE_TERRAFORM).settling(turned(ready)),
        },
        Apply::Available => underway(seen, not_looked_at(seen), BEFORE_TERRAFORM).settling(turned(ready)),
        Apply::Applying => underway(
            seen,
            format!("Terraform is at work on WorkspaceTemplateApply {}", apply_name(seen)),
            TERRAFORM,
        ),
        // It queues behind others, or somebody has paused the Workspace: Terraform has not begun, and no clock runs.
        Apply::WaitingForProvider => Situation::standing(
            Ready::WaitingForProvider,
            format!(
                "WorkspaceTemplateApply {} waits for the Terraform provider",
                apply_name(seen)
            ),
        )
        .settling(turned(ready)),
        Apply::WorkspacePaused => Situation::standing(Ready::WaitingForProvider, message),
        Apply::TerraformFailed
        | Apply::CreateInterrupted
        | Apply::StateLocked
        | Apply::ProviderConfigMissing
        | Apply::CredentialsMissing
        | Apply::QuotaExceeded
        | Apply::TerraformTimeout
        | Apply::InvalidModule => {
            let same = Ready::named(reason.as_str()).unwrap_or(Ready::TerraformFailed);
            Situation::new(same, message, TERRAFORM)
        }
        Apply::InvalidTemplate => Situation::standing(Ready::InvalidTemplate, message),
        Apply::UnsafeVariable => Situation::standing(Ready::UnsafeVariable, message),
        Apply::UnresolvedVariable => Situation::standing(Ready::UnresolvedVariable, message),
        Apply::CrossNamespaceReference => Situation::standing(Ready::CrossNamespaceTemplate, message),
        Apply::AdmissionDenied => Situation::standing(Ready::AdmissionDenied, message),
        Apply::OwnershipConflict => Situation::standing(Ready::OwnershipConflict, message),
        Apply::NamespaceTerminating => Situation::standing(Ready::NamespaceTerminating, message),
        Apply::Deleting => apply_deleted(seen),
    }
}

/// EKS is as wished; endpoint and kubeconfig remain. Their conditions are not held against this object's generation: the
/// endpoint's own controller raises it.
fn judge_access(seen: &Observed, apply: &WorkspaceTemplateApply) -> Situation {
    use endpoint::EndpointReady;
    use secrets::SecretsReady;

    let conditions = seen
        .control_plane
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.conditions);
    let applied = apply
        .status
        .as_ref()
        .and_then(|status| conditions::find(&status.conditions, workspace_apply::Ready::TYPE))
        .and_then(turned);
    // Another controller's trouble in its own words, at once; otherwise a fixed text, when it lasts.
    let told = |type_: &str, reason: Ready, otherwise: &str, waits, since: Option<Timestamp>| match conditions::find(
        conditions, type_,
    )
    .filter(|condition| reasons::is_trouble(&condition.reason))
    {
        Some(trouble) if !trouble.message.is_empty() => Situation::new(reason, trouble.message.clone(), waits),
        Some(_) => Situation::new(reason, otherwise, waits),
        None => Situation::new(reason, otherwise, waits).settling(since),
    };
    if !conditions::is_true(conditions, EndpointReady::TYPE) {
        let reason = match typed::<EndpointReady>(conditions) {
            Some((EndpointReady::EndpointInvalid, _)) => Ready::EndpointInvalid,
            Some((EndpointReady::EndpointMissing, _)) => Ready::EndpointMissing,
            _ => Ready::WaitingForEndpoint,
        };
        let otherwise = "waiting for capt-endpoint to publish the endpoint; condition EndpointReady says more";
        return told(EndpointReady::TYPE, reason, otherwise, &[Wait::ControlPlane], applied);
    }
    if !conditions::is_true(conditions, SecretsReady::TYPE) {
        let reason = match typed::<SecretsReady>(conditions) {
            Some((SecretsReady::Failed | SecretsReady::UnsafeKubeconfig | SecretsReady::OwnershipConflict, _)) => {
                Ready::SecretsFailed
            }
            _ => Ready::WaitingForSecrets,
        };
        let published = conditions::find(conditions, EndpointReady::TYPE).and_then(turned);
        let otherwise = "waiting for capt-secrets to copy the kubeconfig; condition SecretsReady says more";
        return told(
            SecretsReady::TYPE,
            reason,
            otherwise,
            &[Wait::Secret],
            applied.max(published),
        );
    }
    // What was published stays, and the cluster is used by it; but what Terraform tells now could not be published.
    let outdated = [EndpointReady::TYPE, SecretsReady::TYPE]
        .into_iter()
        .filter_map(|type_| conditions::find(conditions, type_))
        .find(|condition| reasons::is_trouble(&condition.reason));
    let message = match outdated {
        None => "the EKS cluster, its endpoint and its kubeconfig are as the spec asks".to_owned(),
        Some(said) => format!(
            "the EKS cluster is as the spec asks, but what was published of it may be outdated; condition {}: {}",
            said.type_, said.message
        ),
    };
    Situation::standing(Ready::ControlPlaneReady, message)
}

/// Since when the network is ready, or not.
fn network_turned(seen: &Observed) -> Option<Timestamp> {
    let Infrastructure::Named {
        found: Found::Present(infrastructure),
        ..
    } = &seen.infrastructure
    else {
        return None;
    };
    let status = infrastructure.status.as_ref()?;
    conditions::find(&status.conditions, conditions::cluster::Ready::TYPE).and_then(turned)
}

/// Why the network gives no variables yet.
struct Unknown {
    why: String,
    /// As in [`Situation`].
    since: Option<Timestamp>,
}

impl Unknown {
    fn told_at_once(why: String) -> Self {
        Self { why, since: None }
    }
}

/// What is known of the network.
enum Network {
    /// Its ID alone: it is not CAPT's.
    Id(String),
    /// The variables that its apply gives.
    Made(Variables),
}

impl Network {
    fn variables(self) -> Variables {
        match self {
            Self::Id(id) => eks_apply::network(&id, &Variables::new()),
            Self::Made(variables) => variables,
        }
    }
}

/// What the network gives, or why that is not known.
fn network(seen: &Observed, cluster: &Cluster) -> Result<Network, Unknown> {
    // Whoever makes a cluster makes all its objects at once, and Cluster API connects them within moments.
    let new = created(&seen.control_plane.metadata);
    let (named, found) = match &seen.infrastructure {
        Infrastructure::Named { name, found } => (name, found),
        Infrastructure::NotOurs => {
            return Err(Unknown {
                why: format!(
                    "Cluster {} names no CAPTCluster in spec.infrastructureRef",
                    name(&cluster.metadata)
                ),
                since: new,
            });
        }
    };
    let infrastructure = match found {
        Found::Present(infrastructure) => infrastructure,
        Found::Absent => {
            return Err(Unknown {
                why: format!("CAPTCluster {named} does not exist"),
                since: new,
            });
        }
        Found::Unreadable(why) => {
            return Err(Unknown::told_at_once(format!(
                "CAPTCluster {named} cannot be read: {why}"
            )));
        }
    };
    let owner = ClusterOwner::of(&infrastructure.metadata);
    if owner.map(|owner| owner.uid) != cluster.metadata.uid.as_deref() {
        let cluster = name(&cluster.metadata);
        return Err(match owner.filter(|owner| owner.name != cluster) {
            Some(other) => Unknown::told_at_once(format!(
                "CAPTCluster {named} belongs to Cluster {}, not to Cluster {cluster}: give Cluster {cluster} a CAPTCluster of its own \
                 in spec.infrastructureRef",
                other.name
            )),
            // Cluster API also replaces an owner of the same name, such as one before a restore.
            None => Unknown {
                why: format!("CAPTCluster {named} does not belong to Cluster {cluster} yet"),
                since: new.max(created(&infrastructure.metadata)),
            },
        });
    }
    if is_deleting(&infrastructure.metadata) {
        return Err(Unknown::told_at_once(format!("CAPTCluster {named} is being deleted")));
    }
    let status = infrastructure.status.clone().unwrap_or_default();
    let ready = conditions::find(&status.conditions, conditions::cluster::Ready::TYPE);
    if status.ready != Some(true) {
        if let Some(trouble) = ready.filter(|ready| reasons::is_trouble(&ready.reason)) {
            let why = format!(
                "CAPTCluster {named} is not ready: {}: {}",
                trouble.reason, trouble.message
            );
            return Err(Unknown::told_at_once(why));
        }
        if conditions::is_true(&status.conditions, conditions::cluster::Paused::TYPE) {
            return Err(Unknown::told_at_once(format!("CAPTCluster {named} is paused")));
        }
        return Err(Unknown {
            why: format!("waiting for CAPTCluster {named}"),
            since: new,
        });
    }
    let Some(id) = infrastructure.spec.existing_vpc_id.clone().or(status.vpc_id.clone()) else {
        let why = format!("CAPTCluster {named} does not say the ID of its VPC");
        return Err(Unknown::told_at_once(why));
    };
    if infrastructure.spec.existing_vpc_id.is_some() || is_externally_managed(&infrastructure.metadata) {
        return Ok(Network::Id(id));
    }
    match &seen.vpc_apply {
        Found::Present(apply)
            if is_ours(
                &apply.metadata,
                infrastructure.metadata.uid.as_deref().unwrap_or_default(),
            ) && apply.is_ready() =>
        {
            let outputs = apply.status.as_ref().map(|status| status.outputs.clone());
            let outputs = outputs.unwrap_or_default();
            // Nor are its subnets to be trusted then: they may be another network's than the ID of before.
            if let Some(Err(unfit)) = outputs.get(output::VPC_ID).map(|text| vpc_id::parse(text)) {
                return Err(Unknown::told_at_once(format!(
                    "the output {} of WorkspaceTemplateApply {} is {unfit}, and no ID of a VPC",
                    output::VPC_ID,
                    names::vpc_apply_name(named)
                )));
            }
            Ok(Network::Made(eks_apply::network(&id, &outputs)))
        }
        // Two watches: the CAPTCluster's may be ahead of the apply's.
        _ => Err(Unknown {
            why: format!(
                "the outputs of the VPC are not known: WorkspaceTemplateApply {} is not ready",
                names::vpc_apply_name(named)
            ),
            since: network_turned(seen),
        }),
    }
}

impl From<Unfit> for Situation {
    fn from(unfit: Unfit) -> Self {
        Self::standing(unfit.reason, unfit.message)
    }
}

fn waiting_for_cluster(message: String, since: Option<Timestamp>) -> (Step, Situation) {
    (
        Step::Nothing,
        Situation::standing(Ready::WaitingForCluster, message).settling(since),
    )
}

/// Cluster API deletes the control plane next.
fn cluster_goes(cluster: &Cluster, since: Timestamp) -> (Step, Situation) {
    waiting_for_cluster(
        format!(
            "Cluster {} is being deleted: no EKS cluster is made any more",
            name(&cluster.metadata)
        ),
        Some(since),
    )
}

/// Terraform is at work on the wish, or about to be.
fn underway(seen: &Observed, message: String, waits: &'static [Wait]) -> Situation {
    let reason = if was_available(seen) {
        Ready::Updating
    } else {
        Ready::Creating
    };
    Situation::new(reason, message, waits)
}

fn apply_deleted(seen: &Observed) -> Situation {
    Situation::standing(
        Ready::ApplyDeleted,
        format!(
            "WorkspaceTemplateApply {} was deleted and is held, because this control plane still uses it: remove the apply's \
             finalizers to have it made again, or delete the Cluster",
            apply_name(seen)
        ),
    )
}

fn not_looked_at(seen: &Observed) -> String {
    format!(
        "capt-workspace-controller has not said anything about WorkspaceTemplateApply {} yet",
        apply_name(seen)
    )
}

fn apply_name(seen: &Observed) -> String {
    eks_apply::name(&seen.control_plane.metadata)
}

fn names_control_plane(cluster: &Cluster, control_plane: &CaptControlPlane) -> bool {
    cluster.spec.control_plane_ref.as_ref().is_some_and(|reference| {
        reference.api_group == CONTROL_PLANE_GROUP
            && reference.kind == "CAPTControlPlane"
            && Some(&reference.name) == control_plane.metadata.name.as_ref()
    })
}

/// Whether the wish that was planned from is the newest.
fn is_current(seen: &Observed, live: Option<&CaptControlPlane>) -> bool {
    live.is_some_and(|live| {
        live.metadata.uid == seen.control_plane.metadata.uid
            && live.metadata.generation == seen.control_plane.metadata.generation
            && is_deleting(&live.metadata) == is_deleting(&seen.control_plane.metadata)
    })
}

/// Whether the apply shows whose it is in both ways: by its controller, and by the label that outlives a removed reference.
fn is_marked(apply: &ObjectMeta, uid: &str) -> bool {
    let controlled = apply
        .owner_references
        .iter()
        .flatten()
        .any(|owner| owner.controller == Some(true) && owner.uid == uid);
    controlled && label_of(apply, label::OWNER_UID) == Some(uid)
}

fn label_of<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.labels.as_ref()?.get(key).map(String::as_str)
}

fn annotation_of<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The condition that has these reasons, if it is there and its reason is one of them.
fn typed<R: Reason>(conditions: &[Condition]) -> Option<(R, &Condition)> {
    let condition = conditions::find(conditions, R::TYPE)?;
    R::named(&condition.reason).map(|reason| (reason, condition))
}

/// When the object was made.
fn created(metadata: &ObjectMeta) -> Option<Timestamp> {
    metadata.creation_timestamp.as_ref().map(|time| time.0)
}

/// Since when the condition has its status.
fn turned(condition: &Condition) -> Option<Timestamp> {
    Some(condition.last_transition_time.0)
}

fn is_deleting(metadata: &ObjectMeta) -> bool {
    metadata.deletion_timestamp.is_some()
}

fn name(metadata: &ObjectMeta) -> &str {
    metadata.name.as_deref().unwrap_or_default()
}
