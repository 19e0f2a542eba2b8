//! Watches wired to reconcilers, and the flags.

use std::time::Duration;

use capt_api::external::cluster::{Cluster, ClusterOwner};
use capt_api::names::Manager;
use capt_api::{CaptCluster, WorkspaceTemplateApply};
use capt_runtime::app::{self, Setup};
use capt_runtime::apply::Writer;
use capt_runtime::args::{CommonArgs, positive};
use capt_runtime::cache::Change;
use capt_runtime::hold::{Holds, cluster_of};
use capt_runtime::key::Key;
use capt_runtime::watch::Watch;
use clap::{ArgAction, Parser};
use jiff::SignedDuration;

use crate::act::CaptClusters;
use crate::hold::{HOLD, is_of_control_plane};
use crate::metrics;
use crate::observe::{ControlPlaneMeta, Reads, Settings, apply_keys, cluster_key};

/// Looks after CAPTClusters: makes, changes and destroys their VPCs through WorkspaceTemplateApplies, and tells Cluster
/// API when the infrastructure is ready.
#[derive(Parser, Debug)]
#[command(name = Manager::Cluster.as_str(), version)]
pub struct Args {
    #[command(flatten)]
    common: CommonArgs,

    /// Let CAPTClusters use WorkspaceTemplates of other namespaces.
    #[arg(long, env = "CAPT_ALLOW_CROSS_NAMESPACE_TEMPLATES", default_value_t = false, default_missing_value = "true",
        num_args = 0..=1, require_equals = true, action = ArgAction::Set, value_name = "BOOL", help_heading = "CAPTClusters")]
    allow_cross_namespace_templates: bool,

    /// How long a VPC may take to become ready before it counts as failed, unless the CAPTCluster says otherwise. The
    /// time in which the Terraform provider has not begun does not count.
    #[arg(long, env = "CAPT_VPC_READY_TIMEOUT", default_value = "15m", value_name = "TIME", value_parser = positive, help_heading = "CAPTClusters")]
    vpc_ready_timeout: Duration,

    /// How long a ready VPC's ID may stay unknown before that counts as failed, unless the CAPTCluster says otherwise.
    #[arg(long, env = "CAPT_SECRET_TIMEOUT", default_value = "5m", value_name = "TIME", value_parser = positive, help_heading = "CAPTClusters")]
    secret_timeout: Duration,

    /// How long a deletion may take before it is reported as late, unless the CAPTCluster says otherwise. It is never
    /// given up.
    #[arg(long, env = "CAPT_DELETION_TIMEOUT", default_value = "30m", value_name = "TIME", value_parser = positive, help_heading = "CAPTClusters")]
    deletion_timeout: Duration,

    /// Clear the failure that Cluster API copied from a CAPTCluster into the Cluster's status when it is over; Cluster API
    /// itself never does.
    #[arg(long, env = "CAPT_CLEAR_CLUSTER_FAILURES", default_value_t = true, default_missing_value = "true",
        num_args = 0..=1, require_equals = true, action = ArgAction::Set, value_name = "BOOL", help_heading = "CAPTClusters")]
    clear_cluster_failures: bool,
}

impl Args {
    fn settings(&self) -> Settings {
        let limit = |time: Duration| SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX);
        Settings {
            allow_cross_namespace: self.allow_cross_namespace_templates,
            clear_cluster_failures: self.clear_cluster_failures,
            vpc_ready_timeout: limit(self.vpc_ready_timeout),
            secret_timeout: limit(self.secret_timeout),
            deletion_timeout: limit(self.deletion_timeout),
        }
    }
}

/// Runs until a signal ends it.
pub fn run(args: Args) -> anyhow::Result<()> {
    let settings = args.settings();
    app::run(Manager::Cluster, args.common, |setup| wire(setup, settings))
}

fn wire(setup: &mut Setup, settings: Settings) -> anyhow::Result<()> {
    let writer = Writer::new(setup.client(), Manager::Cluster);
    let queue = setup.queue("captcluster");
    let holds = setup.queue("workspacetemplateapply");

    let mut capt_clusters =
        Watch::<CaptCluster>::namespaced(setup.client(), setup.scope(), &()).filtered(setup.scope());
    // A parent labels its apply at birth, and puts the label back when it was taken away.
    let mut applies = Watch::<WorkspaceTemplateApply>::namespaced(setup.client(), setup.scope(), &())
        .filtered(setup.scope())
        .prune(drop_what_others_own);
    // Neither Clusters nor control planes are filtered: they are only read, and one that is overlooked would let a VPC go.
    let mut clusters = Watch::<Cluster>::namespaced(setup.client(), setup.scope(), &()).prune(|cluster| {
        if let Some(status) = &mut cluster.status {
            status.conditions.clear();
        }
    });
    let mut control_planes = Watch::<ControlPlaneMeta>::namespaced(setup.client(), setup.scope(), &());

    let by_apply = capt_clusters.index(apply_keys);
    let by_cluster = capt_clusters.index(|capt_cluster| cluster_key(&capt_cluster.metadata).into_iter().collect());
    let held_in = applies.index(|apply| HOLD.cluster_of(apply));
    let planes_of = control_planes.index(|plane| cluster_key(&plane.metadata).into_iter().collect());

    capt_clusters.notify(&queue);
    capt_clusters.on_change(&holds, |change| HOLD.left_behind(change));
    let parents = by_apply.clone();
    applies.on_change(&queue, move |change| by_apply.keys(&change.key));
    applies.on_change(&holds, |change| HOLD.held(change));
    let (freed, freed_holds) = (by_cluster.clone(), held_in.clone());
    applies.on_change(&queue, move |change| {
        left_cluster(change).map_or_else(Vec::new, |cluster| freed.keys(&cluster))
    });
    applies.on_change(&holds, move |change| {
        left_cluster(change).map_or_else(Vec::new, |cluster| freed_holds.keys(&cluster))
    });
    let owned = by_cluster.clone();
    clusters.on_change(&queue, move |change| {
        if matters(change) {
            owned.keys(&change.key)
        } else {
            Vec::new()
        }
    });
    clusters.on_change(&holds, move |change| {
        if matters(change) {
            held_in.keys(&change.key)
        } else {
            Vec::new()
        }
    });
    // Only a control plane that goes, or changes hands, lets something happen here.
    control_planes.on_change(&queue, move |change| {
        match (owner(change.old.as_deref()), owner(change.new.as_deref())) {
            (Some(old), new) if new.as_ref() != Some(&old) => by_cluster.keys(&old.0),
            _ => Vec::new(),
        }
    });

    let applies = setup.start(applies);
    let clusters = setup.start(clusters);
    setup.start(control_planes);
    let capt_clusters = setup.start(capt_clusters);

    let reconciler = CaptClusters {
        reads: Reads {
            capt_clusters: capt_clusters.clone(),
            clusters: clusters.clone(),
            applies: applies.clone(),
            control_planes: planes_of,
            live_capt_clusters: writer.of(),
            live_clusters: writer.of(),
            live_applies: writer.of(),
            live_control_planes: writer.of(),
            live_neighbours: writer.of(),
            secrets: writer.of(),
        },
        capt_clusters: writer.of().shown_in(&capt_clusters),
        applies: writer.of().shown_in(&applies),
        clusters: writer.of(),
        events: setup.events(),
        lives: setup.metrics().lives(),
        settings,
    };
    setup.count(metrics::register(&setup.metrics().lives()), &capt_clusters);
    setup.controller("captcluster", queue, &capt_clusters, reconciler);
    let releaser = Holds {
        hold: HOLD,
        scope: setup.scope().clone(),
        applies: applies.clone(),
        clusters,
        parents,
        live_parents: writer.of(),
        live_clusters: writer.of(),
        live_applies: writer.of().shown_in(&applies),
        live_neighbours: writer.of(),
        events: setup.events(),
    };
    setup.controller("workspacetemplateapply", holds, &applies, releaser);
    Ok(())
}

/// The applies of control planes are large, and only their names can matter here.
fn drop_what_others_own(apply: &mut WorkspaceTemplateApply) {
    if is_of_control_plane(&apply.metadata) {
        apply.spec.variables.clear();
        apply.status = None;
    }
}

/// The Cluster in whose network an EKS cluster was until now.
fn left_cluster(change: &Change<WorkspaceTemplateApply>) -> Option<Key> {
    let old = change.old.as_ref().filter(|_| change.new.is_none())?;
    cluster_of(&old.metadata).filter(|_| is_of_control_plane(&old.metadata))
}

/// The Cluster that a control plane belongs to, by name and UID.
fn owner(control_plane: Option<&ControlPlaneMeta>) -> Option<(Key, Option<String>)> {
    let metadata = &control_plane?.metadata;
    Some((
        cluster_key(metadata)?,
        ClusterOwner::of(metadata).map(|owner| owner.uid.to_owned()),
    ))
}

/// Whether a Cluster changed in what is read here. Cluster API writes its status all the time.
fn matters(change: &Change<Cluster>) -> bool {
    let read = |cluster: &Cluster| {
        let failure = cluster.status.as_ref().and_then(|status| status.deprecated.clone());
        (cluster.metadata.uid.clone(), cluster.spec.clone(), failure)
    };
    change.old.as_deref().map(read) != change.new.as_deref().map(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_flags_are_as_documented() {
        Args::command().debug_assert();
        let settings = Args::parse_from(["x"]).settings();
        assert_eq!(settings.vpc_ready_timeout, SignedDuration::from_mins(15));
        assert_eq!(settings.secret_timeout, SignedDuration::from_mins(5));
        assert_eq!(settings.deletion_timeout, SignedDuration::from_mins(30));
        assert!(settings.clear_cluster_failures && !settings.allow_cross_namespace);

        let args = [
            "x",
            "--allow-cross-namespace-templates",
            "--clear-cluster-failures=false",
            "--vpc-ready-timeout",
            "90s",
        ];
        let settings = Args::parse_from(args).settings();
        assert_eq!(settings.vpc_ready_timeout, SignedDuration::from_secs(90));
        assert!(!settings.clear_cluster_failures && settings.allow_cross_namespace);
        assert!(Args::try_parse_from(["x", "--secret-timeout", "0s"]).is_err());
    }
}
