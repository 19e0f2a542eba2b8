//! Flags, and watches wired to reconcilers.

use std::time::Duration;

use capt_api::external::cluster::ClusterOwner;
use capt_api::names::{Manager, vpc_apply_name};
use capt_api::{CaptCluster, CaptControlPlane, Cluster, WorkspaceTemplateApply};
use capt_runtime::app::{self, Setup};
use capt_runtime::apply::Writer;
use capt_runtime::args::{CommonArgs, positive};
use capt_runtime::hold::Holds;
use capt_runtime::key::Key;
use capt_runtime::watch::Watch;
use clap::{ArgAction, Parser};
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::act::ControlPlanes;
use crate::eks_apply;
use crate::hold::HOLD;
use crate::metrics;
use crate::observe::{Caches, Settings, infrastructure_name, other_apply_name};

/// Makes and tends the EKS control plane of each CAPTControlPlane.
#[derive(Parser, Debug)]
#[command(name = Manager::ControlPlane.as_str(), version)]
pub struct Args {
    #[command(flatten)]
    common: CommonArgs,

    /// Let a CAPTControlPlane use a WorkspaceTemplate of another namespace.
    #[arg(
        long, env = "CAPT_ALLOW_CROSS_NAMESPACE_TEMPLATES", default_value_t = false, default_missing_value = "true",
        num_args = 0..=1, require_equals = true, action = ArgAction::Set, value_name = "BOOL", help_heading = "Control planes",
    )]
    allow_cross_namespace_templates: bool,

    /// How long a control plane may take to become ready, once Terraform has begun, before it counts as failed; a
    /// CAPTControlPlane can set its own.
    #[arg(long, env = "CAPT_CONTROL_PLANE_TIMEOUT", default_value = "30m", value_name = "TIME", help_heading = "Control planes", value_parser = positive)]
    control_plane_timeout: Duration,

    /// How long a control plane waits for its network before it counts as failed; a CAPTControlPlane can set its own.
    #[arg(long, env = "CAPT_VPC_READY_TIMEOUT", default_value = "15m", value_name = "TIME", help_heading = "Control planes", value_parser = positive)]
    vpc_ready_timeout: Duration,

    /// How long a valid kubeconfig may take, once EKS and its endpoint are there, before the control plane counts as
    /// failed; a CAPTControlPlane can set its own.
    #[arg(long, env = "CAPT_SECRET_TIMEOUT", default_value = "5m", value_name = "TIME", help_heading = "Control planes", value_parser = positive)]
    secret_timeout: Duration,

    /// How long a deletion may take before it is reported as late (nothing is given up); a CAPTControlPlane can set its
    /// own.
    #[arg(long, env = "CAPT_DELETION_TIMEOUT", default_value = "30m", value_name = "TIME", help_heading = "Control planes", value_parser = positive)]
    deletion_timeout: Duration,

    /// Clear the failure that Cluster API copied from a CAPTControlPlane to its Cluster when it is over: Cluster API itself
    /// never does.
    #[arg(
        long, env = "CAPT_CLEAR_CLUSTER_FAILURES", default_value_t = true, default_missing_value = "true", num_args = 0..=1,
        require_equals = true, action = ArgAction::Set, value_name = "BOOL", help_heading = "Control planes",
    )]
    clear_cluster_failures: bool,
}

impl Args {
    fn settings(&self) -> Settings {
        let signed = |time: Duration| SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX);
        Settings {
            allow_cross_namespace_templates: self.allow_cross_namespace_templates,
            clear_cluster_failures: self.clear_cluster_failures,
            control_plane_timeout: signed(self.control_plane_timeout),
            vpc_ready_timeout: signed(self.vpc_ready_timeout),
            secret_timeout: signed(self.secret_timeout),
            deletion_timeout: signed(self.deletion_timeout),
        }
    }
}

/// Runs until a signal ends it.
pub fn run(args: Args) -> anyhow::Result<()> {
    let settings = args.settings();
    app::run(Manager::ControlPlane, args.common, |setup| wire(setup, settings))
}

/// Everything that a control plane depends on wakes it, each through an index: its Cluster, its apply (whoever's it is), the
/// network that the Cluster names, and that network's apply.
fn wire(setup: &mut Setup, settings: Settings) -> anyhow::Result<()> {
    let writer = Writer::new(setup.client(), Manager::ControlPlane);
    let scope = setup.scope().clone();
    let queue = setup.queue("captcontrolplane");
    let holds = setup.queue("workspacetemplateapply");

    // Only what is worked on is filtered: Clusters, networks and their applies may be marked differently, or not at all.
    let mut control_planes = Watch::<CaptControlPlane>::namespaced(setup.client(), &scope, &()).filtered(&scope);
    let mut clusters = Watch::<Cluster>::namespaced(setup.client(), &scope, &()).prune(|cluster| {
        if let Some(status) = &mut cluster.status {
            status.conditions.clear();
        }
    });
    let mut capt_clusters = Watch::<CaptCluster>::namespaced(setup.client(), &scope, &());
    let mut applies = Watch::<WorkspaceTemplateApply>::namespaced(setup.client(), &scope, &());

    let by_cluster = control_planes.index(|control_plane| {
        ClusterOwner::of(&control_plane.metadata)
            .map(|owner| owner.uid.to_owned())
            .into_iter()
            .collect()
    });
    let by_apply = control_planes.index(apply_keys);
    let clusters_by_infrastructure = clusters.index(|cluster| {
        infrastructure_name(cluster)
            .map(|name| beside(&cluster.metadata, name))
            .into_iter()
            .collect()
    });
    let infrastructure_by_apply = capt_clusters.index(|infrastructure| {
        let name = infrastructure.metadata.name.as_deref().unwrap_or_default();
        vec![beside(&infrastructure.metadata, &vpc_apply_name(name))]
    });
    let held_by_cluster = applies.index(|apply| HOLD.cluster_of(apply));

    // From a network to the control planes of the Clusters that name it.
    let of_infrastructure = {
        let by_cluster = by_cluster.clone();
        move |infrastructure: &Key| -> Vec<Key> {
            let clusters = clusters_by_infrastructure.get(infrastructure);
            clusters
                .iter()
                .filter_map(|cluster| cluster.metadata.uid.clone())
                .flat_map(|uid| by_cluster.keys(&uid))
                .collect()
        }
    };

    control_planes.notify(&queue);
    control_planes.on_change(&holds, |change| HOLD.left_behind(change));
    clusters.on_change(&queue, move |change| {
        let states = [&change.old, &change.new].into_iter().flatten();
        states
            .filter_map(|cluster| cluster.metadata.uid.clone())
            .flat_map(|uid| by_cluster.keys(&uid))
            .collect()
    });
    clusters.on_change(&holds, move |change| held_by_cluster.keys(&change.key));
    capt_clusters.on_change(&queue, {
        let of_infrastructure = of_infrastructure.clone();
        move |change| of_infrastructure(&change.key)
    });
    applies.on_change(&queue, {
        let by_apply = by_apply.clone();
        move |change| {
            let networks = infrastructure_by_apply.keys(&change.key);
            networks
                .iter()
                .flat_map(&of_infrastructure)
                .chain(by_apply.keys(&change.key))
                .collect()
        }
    });
    applies.on_change(&holds, |change| HOLD.held(change));

    let caches = Caches {
        control_planes: setup.start(control_planes),
        clusters: setup.start(clusters),
        capt_clusters: setup.start(capt_clusters),
        applies: setup.start(applies),
    };
    let holders = Holds {
        hold: HOLD,
        scope,
        applies: caches.applies.clone(),
        clusters: caches.clusters.clone(),
        parents: by_apply,
        live_parents: writer.of(),
        live_clusters: writer.of(),
        live_applies: writer.of().shown_in(&caches.applies),
        live_neighbours: writer.of(),
        events: setup.events(),
    };
    let reconciler = ControlPlanes {
        settings,
        caches: caches.clone(),
        control_planes: writer.of().shown_in(&caches.control_planes),
        clusters: writer.of(),
        capt_clusters: writer.of(),
        applies: writer.of().shown_in(&caches.applies),
        events: setup.events(),
        lives: setup.metrics().lives(),
    };
    setup.count(metrics::register(&setup.metrics().lives()), &caches.control_planes);
    setup.controller("captcontrolplane", queue, &caches.control_planes, reconciler);
    setup.controller("workspacetemplateapply", holds, &caches.applies, holders);
    Ok(())
}

/// The keys of all applies that can matter to a control plane.
fn apply_keys(control_plane: &CaptControlPlane) -> Vec<Key> {
    let usual = eks_apply::name(&control_plane.metadata);
    let names = [usual.as_str()].into_iter().chain(other_apply_name(control_plane));
    names.map(|name| beside(&control_plane.metadata, name)).collect()
}

/// The key of an object in the same namespace.
fn beside(metadata: &ObjectMeta, name: &str) -> Key {
    Key::namespaced(metadata.namespace.as_deref().unwrap_or_default(), name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(flags: &[&str]) -> Result<Settings, String> {
        let args = Args::try_parse_from([&["capt"], flags].concat());
        args.map(|args| args.settings()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_defaults_are_the_documented_ones() {
        let settings = parse(&[]).unwrap();
        assert!(!settings.allow_cross_namespace_templates);
        assert!(settings.clear_cluster_failures);
        let minutes = [
            settings.control_plane_timeout,
            settings.vpc_ready_timeout,
            settings.secret_timeout,
            settings.deletion_timeout,
        ];
        assert_eq!(minutes.map(|time| time.as_mins()), [30, 15, 5, 30]);
    }

    #[test]
    fn flags_are_read() {
        let settings = parse(&[
            "--allow-cross-namespace-templates",
            "--clear-cluster-failures=false",
            "--secret-timeout",
            "90s",
        ])
        .unwrap();
        assert!(settings.allow_cross_namespace_templates);
        assert!(!settings.clear_cluster_failures);
        assert_eq!(settings.secret_timeout.as_secs(), 90);
        assert!(
            parse(&["--vpc-ready-timeout", "0s"])
                .unwrap_err()
                .contains("--vpc-ready-timeout")
        );
    }

    #[test]
    fn every_flag_has_a_heading_and_a_variable() {
        let command = Args::command();
        for arg in command
            .get_arguments()
            .filter(|arg| !["help", "version"].contains(&arg.get_id().as_str()))
        {
            assert!(
                arg.get_help_heading().is_some() && arg.get_env().is_some(),
                "{}",
                arg.get_id()
            );
        }
    }
}
