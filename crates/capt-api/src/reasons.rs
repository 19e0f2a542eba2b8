//! What every reason means for the people who read it: whether all is well, whether it passes by itself, or what to do.
//!
//! One word means the same under every condition, so this is one table. Warning Events quote the remedy, and
//! `docs/troubleshooting.md` has a section for each word.

/// How much a reason asks of people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// All is well, or nothing is to be said.
    Fine,
    /// It passes by itself; the remedy is for when it does not.
    Passing,
    /// Somebody has to look.
    Trouble,
}

/// A word that stands as the reason of some condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meaning {
    pub word: &'static str,
    pub weight: Weight,
    /// What to do, in one line.
    pub remedy: &'static str,
}

/// What this word means; `None` for a word of somebody else's.
pub fn meaning(word: &str) -> Option<&'static Meaning> {
    ALL.iter().find(|meaning| meaning.word == word)
}

/// Whether somebody has to look. A word that is not ours is nobody's alarm.
pub fn is_trouble(word: &str) -> bool {
    meaning(word).is_some_and(|meaning| meaning.weight == Weight::Trouble)
}

const fn fine(word: &'static str) -> Meaning {
    Meaning {
        word,
        weight: Weight::Fine,
        remedy: "Nothing is to be done.",
    }
}

const fn passing(word: &'static str, remedy: &'static str) -> Meaning {
    Meaning {
        word,
        weight: Weight::Passing,
        remedy,
    }
}

const fn trouble(word: &'static str, remedy: &'static str) -> Meaning {
    Meaning {
        word,
        weight: Weight::Trouble,
        remedy,
    }
}

/// Every reason of every condition.
#[rustfmt::skip] // One line per word is what makes it a table.
pub const ALL: &[Meaning] = &[
    fine("Available"),
    fine("ControlPlaneReady"),
    fine("Created"),
    fine("EndpointPublished"),
    fine("ExistingVPCUsed"),
    fine("Initialized"),
    fine("NamespacesReady"),
    fine("NoFailure"),
    fine("NotDeleting"),
    fine("NotPaused"),
    fine("NotWaiting"),
    fine("Ready"),
    fine("Synced"),
    fine("UserSupplied"),
    fine("VPCCreated"),
    fine("Valid"),
    passing("Abandoning", "The Workspace is let go without being destroyed; what it made stays in the cloud: remove it there, or keep it."),
    passing("Applying", "Terraform is at work; if it takes too long, read the log of provider-terraform."),
    passing("Creating", "Terraform makes the EKS cluster; the WorkspaceTemplateApply says how far it is."),
    passing("Deleting", "The object is being deleted; condition Deleting says what that waits for."),
    passing("Held", "Delete the Cluster, or remove the apply's finalizers to have it made again."),
    passing("NamespaceTerminating", "The namespace is being deleted and takes nothing new; wait until it is gone."),
    passing("NotApplied", "Condition Waiting says what the apply waits for."),
    passing("NotInitialized", "Condition Ready says what the control plane waits for."),
    passing("NotStarted", "Condition Ready says what the network waits for."),
    passing("NotYetAvailable", "Condition Ready says what the control plane waits for."),
    passing("Paused", "Unset spec.paused of the Cluster, or remove the annotation cluster.x-k8s.io/paused."),
    passing("Retaining", "The Workspace is let go and what it made stays; it can be adopted again."),
    passing("RetainingVPC", "The VPC is kept as spec.retainVpcOnDelete asks; it can be adopted again."),
    passing("Updating", "Terraform carries out the last change; the cluster stays usable."),
    passing("VPCCreating", "Terraform makes the VPC; the WorkspaceTemplateApply says how far it is."),
    passing("ValidatingSecret", "The connection secret is being checked; if it stays so, read the log of capt-secrets."),
    passing("WaitingForCluster", "Create the Cluster and let it refer to this object; Cluster API core then sets the owner."),
    passing("WaitingForClusters", "The Clusters that the message names are being deleted; look at their conditions."),
    passing("WaitingForControlPlane", "The control planes named in the message have to go first; look at their condition Deleting."),
    passing("WaitingForEndpoint", "Look at condition EndpointReady; if it is missing, check that capt-endpoint runs."),
    passing("WaitingForEndpointCleanup", "capt-endpoint has to clear the Cluster's endpoint; check that it runs."),
    passing("WaitingForInputs", "Create the Secrets and ConfigMaps that the message names; the template reads them."),
    passing("WaitingForNamespaces", "The namespaces that the message names are being deleted; what they wait for stands behind each."),
    passing("WaitingForOldWorkspace", "An earlier Workspace of the same name is being destroyed; wait until it is gone."),
    passing("WaitingForProvider", "Check that provider-terraform runs and has room for more Workspaces at once."),
    passing("WaitingForSecret", "The connection secret comes when Terraform is done; else check that the template writes it."),
    passing("WaitingForSecretCleanup", "capt-secrets has to remove its copies; check that it runs."),
    passing("WaitingForSecrets", "Create the Secrets that the message names, or look at condition SecretsReady."),
    passing("WaitingForTemplate", "Create the WorkspaceTemplate that the message names, or correct the reference."),
    passing("WaitingForVPC", "Look at the CAPTCluster: the control plane starts when its VPC is there."),
    passing("WaitingForVPCID", "The template must have an output vpc_id, or write vpc_id to its connection secret."),
    passing("WaitingForWorkspace", "Terraform is at work on the Workspace; its conditions say how far it is."),
    passing("WaitingForWorkspaces", "The applies or Workspaces that the message names have to be ready first."),
    trouble("AdmissionDenied", "An admission policy of the management cluster refuses the object; change the policy, or what was asked for."),
    trouble("ApplyDeleted", "Remove the finalizers of the WorkspaceTemplateApply to have it made again, or delete the Cluster."),
    trouble("ClustersExist", "Delete or move what the message names, or set spec.deletionPolicy of the Tenant to Cascade."),
    trouble("ControlPlaneTimeout", "See what the WorkspaceTemplateApply waits for, or raise timeouts.controlPlaneTimeout; a late success still counts."),
    trouble("CreateInterrupted", "Look in the cloud for what the first apply made, then annotate the apply to resume, as the message says."),
    trouble("CredentialsMissing", "Give the ProviderConfig credentials that exist and are still valid."),
    trouble("CrossNamespaceReference", "Refer to objects of the own namespace, or run the controller with --allow-cross-namespace-templates."),
    trouble("CrossNamespaceTemplate", "Use a WorkspaceTemplate of the own namespace, or run the controller with --allow-cross-namespace-templates."),
    trouble("DeletionTimeout", "Nothing is given up; see what the message says is still there, and why Terraform cannot destroy it."),
    trouble("DestroyFailed", "Remove what Terraform's message names as the obstacle; the provider tries again by itself."),
    trouble("EndpointInvalid", "Let the template's output cluster_endpoint be a URL, a host or host:port."),
    trouble("EndpointMissing", "Add the output cluster_endpoint to the template, or write it to the connection secret."),
    trouble("EndpointUpdateFailed", "The API server refuses the endpoint; the message says why."),
    trouble("Failed", "Correct what the message says about the connection secret; it is read again when it changes."),
    trouble("ForeignFinalizer", "Let those who set the finalizers that the message names remove them; nothing else is waited for."),
    trouble("InvalidModule", "Correct the Terraform module where the message says; it is tried again when the template changes."),
    trouble("InvalidSpec", "Correct the field that the message names."),
    trouble("InvalidTemplate", "Correct the WorkspaceTemplate where the message says."),
    trouble("InvalidVPCConfig", "Set exactly one of spec.vpcTemplateRef and spec.existingVpcId."),
    trouble("OwnershipConflict", "An object of that name belongs to something else: rename one of them, or remove the other."),
    trouble("ProviderConfigMissing", "Create the ProviderConfig that the template names, or correct the name."),
    trouble("QuotaExceeded", "Raise the quota of the cloud account, or remove what is no longer needed; the provider tries again."),
    trouble("Refused", "The API server refuses what the message says; mostly a permission is missing that the chart gives unless rbac is false."),
    trouble("SecretTimeout", "See what condition SecretsReady says, or raise timeouts.secretTimeout; a late success still counts."),
    trouble("SecretsFailed", "See what condition SecretsReady says about the connection secret, and correct it there."),
    trouble("SourceMissing", "The copies stay; let Terraform write the connection secret again."),
    trouble("StateLocked", "Make sure that nobody works on the state any more, then unlock it with terraform force-unlock."),
    trouble("TerraformFailed", "Mend what Terraform's message says; the provider tries again by itself."),
    trouble("TerraformTimeout", "See what the cloud was waiting for, or give the resource in the module a longer timeout."),
    trouble("UnresolvedVariable", "Set the variable that the message names, or give it a default in the template."),
    trouble("UnsafeKubeconfig", "Let the template write a kubeconfig with a token or certificates instead of programs and files."),
    trouble("UnsafeVariable", "The value would change the module's code: pass it through vars, or remove the characters named."),
    trouble("VPCCreationFailed", "Mend what the message says; Terraform tries again by itself."),
    trouble("VPCReadyTimeout", "See what the VPC waits for, or raise timeouts.vpcReadyTimeout; a late success still counts."),
    trouble("WorkspacePaused", "Remove the annotation crossplane.io/paused from the Workspace."),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::conditions::{
        Report, Words, cluster, control_plane, endpoint, secrets, tenant, workspace_apply, workspace_template,
    };

    /// Every condition with its words, by the name that the troubleshooting guide gives to its object.
    const CONDITIONS: &[(&str, &[Words])] = &[
        ("CAPTCluster", cluster::ClusterReport::WORDS),
        ("CAPTControlPlane", control_plane::ControlPlaneReport::WORDS),
        ("CAPTControlPlane", endpoint::EndpointReport::WORDS),
        ("CAPTControlPlane", secrets::SecretsReport::WORDS),
        ("apply", workspace_apply::ApplyReport::WORDS),
        ("WorkspaceTemplate", workspace_template::TemplateReport::WORDS),
        ("Tenant", tenant::TenantReport::WORDS),
    ];

    fn words() -> BTreeSet<&'static str> {
        let conditions = CONDITIONS.iter().flat_map(|(_, conditions)| *conditions);
        conditions.flat_map(|(_, words)| *words).copied().collect()
    }

    /// Where a word can stand, as the guide writes it: `CAPTCluster: Ready, VPCReady; apply: Synced`.
    fn places(word: &str) -> String {
        let mut places: Vec<(&str, Vec<&str>)> = Vec::new();
        for (object, conditions) in CONDITIONS {
            let of_word = conditions.iter().filter(|(_, words)| words.contains(&word));
            let types = of_word.map(|(type_, _)| *type_);
            match places.last_mut() {
                Some((last, known)) if last == object => known.extend(types),
                _ => places.push((object, types.collect())),
            }
        }
        places.retain(|(_, types)| !types.is_empty());
        let places = places
            .iter()
            .map(|(object, types)| format!("{object}: {}", types.join(", ")));
        places.collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn every_reason_has_one_meaning_and_every_meaning_a_reason() {
        let explained: Vec<&str> = ALL.iter().map(|meaning| meaning.word).collect();
        let unique: BTreeSet<&str> = explained.iter().copied().collect();
        assert_eq!(unique.len(), explained.len(), "a word is explained twice");
        assert_eq!(unique, words());
    }

    #[test]
    fn a_remedy_is_one_line_that_ends() {
        for meaning in ALL {
            let remedy = meaning.remedy;
            assert!(
                remedy.len() <= 140 && remedy.ends_with('.') && !remedy.contains('\n'),
                "{meaning:?}"
            );
        }
    }

    /// Users look a reason up by its name, and find the remedy first.
    #[test]
    fn every_reason_has_a_section_in_the_troubleshooting_guide() {
        let guide = include_str!("../../../docs/troubleshooting.md");
        for meaning in ALL {
            let heading = format!("\n### {}\n\n{}", meaning.word, meaning.remedy);
            assert!(
                guide.contains(&heading),
                "docs/troubleshooting.md lacks a section that begins with{heading}"
            );
        }
        let sections = guide.lines().filter(|line| line.starts_with("### ")).count();
        assert_eq!(sections, ALL.len(), "a section explains a reason that no longer exists");
    }
    /// Whoever sees a word on an object must find that object in its section.
    #[test]
    fn the_troubleshooting_guide_says_where_each_reason_can_stand() {
        let guide = include_str!("../../../docs/troubleshooting.md");
        for meaning in ALL.iter().filter(|meaning| meaning.weight != Weight::Fine) {
            let (_, section) = guide.split_once(&format!("\n### {}\n", meaning.word)).unwrap();
            let section = section.split("\n### ").next().unwrap_or_default();
            let said = section.split_once("- **On** ").and_then(|(_, on)| on.split_once(".\n"));
            let said = said.map_or_else(String::new, |(on, _)| {
                on.split_whitespace().collect::<Vec<_>>().join(" ")
            });
            assert_eq!(
                said,
                places(meaning.word),
                "docs/troubleshooting.md, section {}",
                meaning.word
            );
        }
    }
}
