//! Watches wired to the reconciler.

use capt_api::names::{self, Manager, label};
use capt_api::{CaptControlPlane, Cluster, WorkspaceTemplateApply};
use capt_runtime::app::{self, Setup};
use capt_runtime::apply::Writer;
use capt_runtime::args::CommonArgs;
use capt_runtime::key::Key;
use capt_runtime::watch::Watch;
use clap::Parser;
use kube::ResourceExt;

use crate::act::{ControlPlanes, Worker};
use crate::kubeconfig::Trust;
use crate::metrics::{self, Conversions};
use crate::observe::{Caches, Connection, Memory, Reader, SecretMeta, beside, connection, copy_keys};

/// Copies the kubeconfig and CA of each new cluster into the Secrets that Cluster API reads.
#[derive(Parser, Debug)]
#[command(name = Manager::Secrets.as_str(), version)]
pub struct Args {
    /// Also hand on kubeconfigs that run a program (exec, auth-provider), read a file (certificate-authority,
    /// client-certificate, client-key, tokenFile) or use a proxy (proxy-url). Cluster API does all of this in its own
    /// pod: switch it on only if you trust everybody who can write WorkspaceTemplates and connection secrets.
    #[arg(long, env = "CAPT_ALLOW_EXEC_KUBECONFIG", help_heading = "Secrets")]
    allow_exec_kubeconfig: bool,

    #[command(flatten)]
    common: CommonArgs,
}

/// Runs until a signal ends it.
pub fn run(args: Args) -> anyhow::Result<()> {
    let trust = if args.allow_exec_kubeconfig {
        Trust::Templates
    } else {
        Trust::DataOnly
    };
    app::run(Manager::Secrets, args.common, move |setup| wire(setup, trust))
}

fn wire(setup: &mut Setup, trust: Trust) -> anyhow::Result<()> {
    const NAME: &str = "captcontrolplane";
    let writer = Writer::new(setup.client(), Manager::Secrets);
    let queue = setup.queue(NAME);
    let (client, scope) = (setup.client(), setup.scope().clone());

    let mut control_planes = Watch::<CaptControlPlane>::namespaced(client.clone(), &scope, &()).filtered(&scope);
    control_planes.notify(&queue);
    let by_copy = control_planes.index(copy_keys);
    let by_apply = control_planes.index(|control_plane: &CaptControlPlane| {
        vec![beside(control_plane, &names::eks_apply_name(&control_plane.name_any()))]
    });
    let by_uid = control_planes.index(|control_plane: &CaptControlPlane| control_plane.uid().into_iter().collect());

    // The other kinds are not filtered by label: nobody has to label what a control plane of ours refers to.
    let mut applies = Watch::<WorkspaceTemplateApply>::namespaced(client.clone(), &scope, &()).prune(|apply| {
        apply.spec.variables.clear();
        if let Some(status) = &mut apply.status {
            status.outputs.clear();
        }
    });
    let applies_by_source = applies.index(|apply| match connection(apply) {
        Connection::Secret(name) => vec![beside(apply, name)],
        Connection::Unnamed | Connection::Elsewhere => Vec::new(),
    });
    applies.on_change(&queue, {
        let by_apply = by_apply.clone();
        move |change| by_apply.keys(&change.key)
    });

    let mut clusters = Watch::<Cluster>::namespaced(client.clone(), &scope, &()).prune(|cluster| {
        cluster.status = None;
        cluster.metadata.labels = None;
        cluster.metadata.annotations = None;
    });
    clusters.on_change(&queue, {
        let by_copy = by_copy.clone();
        move |change| {
            // Cluster API writes its Clusters often, mostly to say what does not matter here.
            let matters = |cluster: &Cluster| (cluster.uid(), cluster.spec.paused);
            if change.old.as_deref().map(matters) == change.new.as_deref().map(matters) {
                return Vec::new();
            }
            // The Cluster's own control plane, and the one whose alias has the name of this Cluster's kubeconfig.
            let namespace = change.key.namespace().unwrap_or_default();
            by_copy.keys(&Key::namespaced(
                namespace,
                &names::kubeconfig_secret(change.key.name()),
            ))
        }
    });

    let mut secrets = Watch::<SecretMeta>::namespaced(client, &scope, &()).prune(|secret| {
        secret.metadata.annotations = None;
        secret.metadata.finalizers = None;
        if let Some(labels) = &mut secret.metadata.labels {
            labels
                .retain(|key, _| [label::CLUSTER_NAME, label::WATCH_FILTER, label::OWNER_UID].contains(&key.as_str()));
        }
    });
    let owner = |secret: &SecretMeta| secret.labels().get(label::OWNER_UID).cloned();
    let secrets_by_owner = secrets.index(move |secret| owner(secret).into_iter().collect());
    secrets.on_change(&queue, move |change| {
        let applies = applies_by_source.keys(&change.key);
        let owners = [&change.old, &change.new]
            .into_iter()
            .flatten()
            .filter_map(|secret| owner(secret));
        let as_copy = by_copy
            .keys(&change.key)
            .into_iter()
            .chain(owners.flat_map(|uid| by_uid.keys(&uid)));
        as_copy
            .chain(applies.iter().flat_map(|apply| by_apply.keys(apply)))
            .collect()
    });

    let caches = Caches {
        control_planes: setup.start(control_planes),
        clusters: setup.start(clusters),
        applies: setup.start(applies),
        secrets: setup.start(secrets),
        secrets_by_owner,
    };
    let worker = Worker {
        reader: Reader {
            secrets: writer.of().shown_in(&caches.secrets),
            metadata: writer.of().shown_in(&caches.secrets),
            trust,
        },
        control_planes: writer.of().shown_in(&caches.control_planes),
        events: setup.events(),
        memory: Memory::default(),
        conversions: Conversions::register(setup.metrics())?,
    };
    let objects = caches.control_planes.clone();
    setup.count(metrics::census(), &objects);
    setup.controller(NAME, queue, &objects, ControlPlanes { caches, worker });
    Ok(())
}
