//! Watches wired to the reconciler.

use capt_api::external::cluster::ClusterOwner;
use capt_api::names::{Manager, eks_apply_name, output};
use capt_api::{CaptCluster, CaptControlPlane, Cluster, WorkspaceTemplateApply};
use capt_runtime::app::{self, Setup};
use capt_runtime::apply::Writer;
use capt_runtime::args::CommonArgs;
use capt_runtime::cache::Change;
use capt_runtime::key::Key;
use capt_runtime::watch::Watch;
use clap::Parser;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::api::ApiResource;

use crate::act::{ControlPlanes, Worker};
use crate::metrics::{self, Updates};
use crate::observe::{Caches, Reader, SecretMeta, connection_secret, infrastructure_name};

/// Publishes the address of each EKS control plane to Cluster API, and clears it when the control plane goes.
#[derive(Parser, Debug)]
#[command(name = Manager::Endpoint.as_str(), version)]
pub struct Args {
    #[command(flatten)]
    common: CommonArgs,
}

/// Runs until a signal ends it.
pub fn run(args: Args) -> anyhow::Result<()> {
    app::run(Manager::Endpoint, args.common, wire)
}

/// Everything that an endpoint depends on wakes its control plane, each through an index: the Cluster, the infrastructure
/// that the Cluster names, the apply, and the apply's connection secret.
fn wire(setup: &mut Setup) -> anyhow::Result<()> {
    const NAME: &str = "captcontrolplane";
    let writer = Writer::new(setup.client(), Manager::Endpoint);
    let queue = setup.queue(NAME);
    let (client, scope) = (setup.client(), setup.scope().clone());

    let mut control_planes = Watch::<CaptControlPlane>::namespaced(client.clone(), &scope, &()).filtered(&scope);
    // The other kinds are not filtered by label: nobody has to label what a control plane of ours refers to.
    let mut clusters = Watch::<Cluster>::namespaced(client.clone(), &scope, &()).prune(|cluster| {
        cluster.status = None;
        drop_marks(&mut cluster.metadata);
    });
    let mut capt_clusters = Watch::<CaptCluster>::namespaced(client.clone(), &scope, &()).prune(|capt_cluster| {
        capt_cluster.status = None;
        capt_cluster.spec.variables.clear();
        drop_marks(&mut capt_cluster.metadata);
    });
    let mut applies = Watch::<WorkspaceTemplateApply>::namespaced(client.clone(), &scope, &()).prune(|apply| {
        apply.spec.variables.clear();
        if let Some(status) = &mut apply.status {
            status.outputs.retain(|name, _| name == output::CLUSTER_ENDPOINT);
        }
    });
    let mut secrets =
        Watch::<SecretMeta>::namespaced(client, &scope, &()).prune(|secret| drop_marks(&mut secret.metadata));

    let by_cluster = control_planes.index(|control_plane| {
        ClusterOwner::of(&control_plane.metadata)
            .map(|owner| owner.uid.to_owned())
            .into_iter()
            .collect()
    });
    let by_apply = control_planes.index(|control_plane| {
        vec![beside(
            &control_plane.metadata,
            &eks_apply_name(&control_plane.name_any()),
        )]
    });
    let clusters_by_infrastructure = clusters.index(|cluster| {
        infrastructure_name(cluster)
            .map(|name| beside(&cluster.metadata, name))
            .into_iter()
            .collect()
    });
    let applies_by_secret = applies.index(|apply| {
        connection_secret(apply)
            .map(|name| beside(&apply.metadata, name))
            .into_iter()
            .collect()
    });

    control_planes.notify(&queue);
    clusters.on_change(&queue, {
        let by_cluster = by_cluster.clone();
        move |change| {
            if !matters(change) {
                return Vec::new();
            }
            let states = [&change.old, &change.new].into_iter().flatten();
            states
                .filter_map(|cluster| cluster.uid())
                .flat_map(|uid| by_cluster.keys(&uid))
                .collect()
        }
    });
    capt_clusters.on_change(&queue, move |change| {
        let read = |capt_cluster: &CaptCluster| capt_cluster.spec.control_plane_endpoint.clone();
        if change.old.as_deref().map(read) == change.new.as_deref().map(read) {
            return Vec::new();
        }
        let clusters = clusters_by_infrastructure.get(&change.key);
        clusters
            .iter()
            .filter_map(|cluster| cluster.uid())
            .flat_map(|uid| by_cluster.keys(&uid))
            .collect()
    });
    applies.on_change(&queue, {
        let by_apply = by_apply.clone();
        move |change| by_apply.keys(&change.key)
    });
    secrets.on_change(&queue, move |change| {
        applies_by_secret
            .keys(&change.key)
            .iter()
            .flat_map(|apply| by_apply.keys(apply))
            .collect()
    });

    let caches = Caches {
        control_planes: setup.start(control_planes),
        clusters: setup.start(clusters),
        capt_clusters: setup.start(capt_clusters),
        applies: setup.start(applies),
        secrets: setup.start(secrets),
    };
    let worker = Worker {
        reader: Reader {
            clusters: writer.of_dynamic(ApiResource::erase::<Cluster>(&())),
            capt_clusters: writer.of(),
            secrets: writer.of(),
        },
        control_planes: writer.of().shown_in(&caches.control_planes),
        events: setup.events(),
        updates: Updates::register(setup.metrics())?,
    };
    let objects = caches.control_planes.clone();
    setup.count(metrics::census(), &objects);
    setup.controller(NAME, queue, &objects, ControlPlanes { caches, worker });
    Ok(())
}

/// Labels and annotations of these kinds are never read here.
fn drop_marks(metadata: &mut ObjectMeta) {
    metadata.labels = None;
    metadata.annotations = None;
}

/// Whether a Cluster changed in what is read here: Cluster API writes its Clusters often, mostly to say something else.
fn matters(change: &Change<Cluster>) -> bool {
    let read = |cluster: &Cluster| (cluster.uid(), cluster.spec.clone());
    change.old.as_deref().map(read) != change.new.as_deref().map(read)
}

/// The key of something in the same namespace.
fn beside(metadata: &ObjectMeta, name: &str) -> Key {
    Key::namespaced(metadata.namespace.as_deref().unwrap_or_default(), name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_flags_are_the_common_ones() {
        Args::command().debug_assert();
        assert!(Args::try_parse_from(["x", "--leader-elect=false"]).is_ok());
    }
}
