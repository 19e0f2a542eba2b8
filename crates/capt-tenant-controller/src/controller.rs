//! Watches wired to the reconciler.

use anyhow::bail;
use capt_api::Tenant;
use capt_api::names::{Manager, TENANT_ADMIN_BINDING};
use capt_runtime::app::{self, Setup};
use capt_runtime::apply::Writer;
use capt_runtime::args::CommonArgs;
use capt_runtime::key::Key;
use capt_runtime::scope::Scope;
use capt_runtime::watch::Watch;
use clap::Parser;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::RoleBinding;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use crate::act::{Tenants, Worker};
use crate::marks::owners;
use crate::metrics;
use crate::observe::{ApplyMeta, Caches, ClusterMeta};

/// Gives each Tenant its namespaces, and takes them away when their Clusters are gone.
#[derive(Parser, Debug)]
#[command(name = Manager::Tenant.as_str(), version)]
pub struct Args {
    #[command(flatten)]
    common: CommonArgs,
}

/// Runs until a signal ends it.
pub fn run(args: Args) -> anyhow::Result<()> {
    if let Some(namespace) = args.common.scope().namespace() {
        bail!(
            "--namespace={namespace} cannot be: Tenants belong to no namespace, and have several; leave the flag out, or use --watch-filter"
        );
    }
    app::run(Manager::Tenant, args.common, wire)
}

/// Everything that a Tenant depends on wakes it, through an index: its namespaces, those of the same names, and what is in them.
fn wire(setup: &mut Setup) -> anyhow::Result<()> {
    const NAME: &str = "tenant";
    let writer = Writer::new(setup.client(), Manager::Tenant);
    let queue = setup.queue(NAME);
    let (client, scope) = (setup.client(), setup.scope().clone());
    let everywhere = Scope::default();

    let mut tenants = Watch::<Tenant>::cluster_scoped(client.clone(), &()).filtered(&scope);
    let mut namespaces = Watch::<Namespace>::cluster_scoped(client.clone(), &()).prune(|namespace| {
        namespace.metadata.annotations = None;
    });
    let mut bindings = Watch::<RoleBinding>::namespaced(client.clone(), &everywhere, &()).only(TENANT_ADMIN_BINDING);
    let mut clusters = Watch::<ClusterMeta>::namespaced(client.clone(), &everywhere, &())
        .prune(|cluster| drop_marks(&mut cluster.metadata));
    let mut applies =
        Watch::<ApplyMeta>::namespaced(client, &everywhere, &()).prune(|apply| drop_marks(&mut apply.metadata));

    let by_uid = tenants.index(|tenant| tenant.uid().into_iter().collect());
    let by_wished = tenants.index(|tenant| tenant.wished_namespaces().collect());
    let namespaces_by_owner = namespaces.index(|namespace| owners(&namespace.metadata));
    let clusters_by_namespace = clusters.index(|cluster| cluster.namespace().into_iter().collect());
    let applies_by_namespace = applies.index(|apply| apply.namespace().into_iter().collect());

    tenants.notify(&queue);
    let of_namespace = move |name: &str, owners: Vec<String>| {
        let mut keys = by_wished.keys(&name.to_owned());
        keys.extend(owners.iter().flat_map(|uid| by_uid.keys(uid)));
        keys
    };
    namespaces.on_change(&queue, {
        let of_namespace = of_namespace.clone();
        move |change| {
            let states = [&change.old, &change.new].into_iter().flatten();
            let owners = states.flat_map(|namespace| owners(&namespace.metadata));
            of_namespace(change.key.name(), owners.collect())
        }
    });
    // What is in a namespace wakes whoever has the namespace, whether it is still wished or not.
    let known = namespaces.cache();
    let within = move |namespace: Option<&str>| {
        let name = namespace.unwrap_or_default();
        let found = known.get(&Key::cluster_scoped(name));
        let owners = found.map(|namespace| owners(&namespace.metadata));
        of_namespace(name, owners.unwrap_or_default())
    };
    bindings.on_change(&queue, {
        let within = within.clone();
        move |change| within(change.key.namespace())
    });
    clusters.on_change(&queue, {
        let within = within.clone();
        move |change| within(change.key.namespace())
    });
    applies.on_change(&queue, move |change| within(change.key.namespace()));

    let caches = Caches {
        tenants: setup.start(tenants),
        namespaces: setup.start(namespaces),
        bindings: setup.start(bindings),
        namespaces_by_owner,
        clusters_by_namespace,
        applies_by_namespace,
    };
    setup.start(clusters);
    setup.start(applies);
    let worker = Worker {
        tenants: writer.of().shown_in(&caches.tenants),
        namespaces: writer.of(),
        bindings: writer.of(),
        clusters: writer.of(),
        applies: writer.of(),
        events: setup.events(),
    };
    let objects = caches.tenants.clone();
    setup.count(metrics::census(), &objects);
    setup.controller(NAME, queue, &objects, Tenants { caches, worker });
    Ok(())
}

/// Labels and annotations of these kinds are never read here.
fn drop_marks(metadata: &mut ObjectMeta) {
    metadata.labels = None;
    metadata.annotations = None;
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn tenants_cannot_be_narrowed_to_a_namespace() {
        Args::command().debug_assert();
        let args = Args::try_parse_from(["x", "--namespace=team-a"]).unwrap();
        let refused = run(args).unwrap_err().to_string();
        assert!(refused.contains("--watch-filter"), "{refused}");
    }
}
