//! Watches wired to reconcilers, and the flags.

use std::time::Duration;

use capt_api::names::{Manager, label};
use capt_api::{Cluster, Workspace, WorkspaceKind, WorkspaceTemplate, WorkspaceTemplateApply};
use capt_runtime::app::{self, Setup};
use capt_runtime::apply::Writer;
use capt_runtime::args::{CommonArgs, positive};
use capt_runtime::cache::Index;
use capt_runtime::key::Key;
use capt_runtime::queue::Queue;
use capt_runtime::watch::Watch;
use clap::Parser;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::PartialObjectMeta;
use kube::{Resource, ResourceExt};

use crate::act::Applies;
use crate::inputs::{Inputs, is_protected};
use crate::metrics;
use crate::observe::{Caches, WorkspaceCache, Workspaces, listed_inputs, referenced, template_key};
use crate::plan::Settings;
use crate::render::Input;
use crate::template::Templates;
use crate::usages::{self, Usage, Usages, usage_key};
use crate::workspace::back_reference;

/// Checks WorkspaceTemplates and turns WorkspaceTemplateApplies into Terraform Workspaces.
#[derive(Parser, Debug)]
#[command(name = Manager::Workspace.as_str(), version)]
pub struct Args {
    #[command(flatten)]
    common: CommonArgs,

    /// The kind of Workspace that new applies get: tf.upbound.io/v1beta1 (cluster-scoped) or tf.m.upbound.io/v1beta1
    /// (namespaced). Existing applies keep theirs.
    #[arg(long, env = "CAPT_WORKSPACE_KIND", default_value_t = WorkspaceKind::ClusterScoped, value_name = "GROUP/VERSION", help_heading = "Terraform")]
    workspace_kind: WorkspaceKind,

    /// Let applies use templates, Secrets and ConfigMaps of other namespaces. Whoever may write an apply can then read them
    /// through Terraform.
    #[arg(long, env = "CAPT_ALLOW_CROSS_NAMESPACE_TEMPLATES", help_heading = "Terraform")]
    allow_cross_namespace_templates: bool,

    /// Go on by itself with a first apply that a restart of the provider cut off. Only safe when a second create of the same
    /// resources is harmless.
    #[arg(long, env = "CAPT_RESUME_INTERRUPTED_CREATES", help_heading = "Terraform")]
    resume_interrupted_creates: bool,

    /// Declare that Terraform's backend is reached from both management clusters, so that clusterctl may move applies.
    #[arg(long, env = "CAPT_SHARED_TERRAFORM_BACKEND", help_heading = "Terraform")]
    shared_terraform_backend: bool,

    /// How long Terraform may take to destroy before the deletion is reported as late. It is never given up.
    #[arg(long, env = "CAPT_DELETION_TIMEOUT", default_value = "30m", value_name = "TIME", value_parser = positive, help_heading = "Terraform")]
    deletion_timeout: Duration,
}

/// Runs until a signal ends it.
pub fn run(args: Args) -> anyhow::Result<()> {
    let settings = Settings {
        allow_cross_namespace: args.allow_cross_namespace_templates,
        resume_interrupted_creates: args.resume_interrupted_creates,
        shared_backend: args.shared_terraform_backend,
        deletion_timeout: SignedDuration::try_from(args.deletion_timeout).unwrap_or(SignedDuration::MAX),
    };
    app::run(Manager::Workspace, args.common, |setup| {
        wire(setup, args.workspace_kind, settings)
    })
}

/// How applies are found from what they depend on.
struct Indexes {
    by_template: Index<WorkspaceTemplateApply, Key>,
    by_cluster: Index<WorkspaceTemplateApply, Key>,
    by_secret: Index<WorkspaceTemplateApply, Key>,
    by_input: Index<WorkspaceTemplateApply, Input>,
    by_awaited: Index<WorkspaceTemplateApply, String>,
}

impl Indexes {
    fn on(applies: &Watch<WorkspaceTemplateApply>) -> Self {
        Self {
            by_template: applies.index(|apply| vec![template_key(apply)]),
            by_cluster: applies.index(|apply| {
                let cluster = apply.labels().get(label::CLUSTER_NAME);
                cluster
                    .map(|name| Key::namespaced(&apply.namespace().unwrap_or_default(), name))
                    .into_iter()
                    .collect()
            }),
            by_secret: applies.index(|apply| {
                apply
                    .spec
                    .wait_for_secrets
                    .iter()
                    .map(|secret| referenced(apply, secret))
                    .collect()
            }),
            by_input: applies.index(listed_inputs),
            // By bare name: it may be an apply's or a Workspace's, in this namespace or in none.
            by_awaited: applies.index(|apply| {
                apply
                    .spec
                    .wait_for_workspaces
                    .iter()
                    .map(|awaited| awaited.name.clone())
                    .collect()
            }),
        }
    }
}

fn wire(setup: &mut Setup, default_kind: WorkspaceKind, settings: Settings) -> anyhow::Result<()> {
    let (client, scope) = (setup.client(), setup.scope().clone());
    let writer = Writer::new(client.clone(), Manager::Workspace);
    let (template_queue, apply_queue) = (setup.queue("workspacetemplate"), setup.queue("workspacetemplateapply"));
    let (secret_queue, map_queue) = (setup.queue("secret"), setup.queue("configmap"));
    let usage_queue = setup.queue("providerconfigusage");

    let mut applies = Watch::<WorkspaceTemplateApply>::namespaced(client.clone(), &scope, &()).filtered(&scope);
    let indexes = Indexes::on(&applies);
    applies.notify(&apply_queue);
    applies.on_change(&apply_queue, {
        let by_awaited = indexes.by_awaited.clone();
        move |change| by_awaited.keys(&change.key.name().to_owned())
    });
    // An input that is listed no longer is looked at; so is one whose apply has gone.
    for (queue, wants_secrets) in [(&secret_queue, true), (&map_queue, false)] {
        applies.notify_referenced(queue, move |apply| {
            let inputs = listed_inputs(apply)
                .into_iter()
                .filter(|input| matches!(input, Input::Secret { .. }) == wants_secrets);
            inputs
                .map(|input| Key::namespaced(input.namespace(), input.name()))
                .collect()
        });
    }

    // Not filtered by label: an apply may use a template that everybody shares.
    let mut templates = Watch::<WorkspaceTemplate>::namespaced(client.clone(), &scope, &());
    templates.notify(&template_queue);
    templates.on_change(&apply_queue, {
        let by_template = indexes.by_template.clone();
        move |change| by_template.keys(&change.key)
    });

    let mut clusters = Watch::<Cluster>::namespaced(client.clone(), &scope, &()).prune(|cluster| cluster.status = None);
    clusters.on_change(&apply_queue, {
        let by_cluster = indexes.by_cluster.clone();
        move |change| by_cluster.keys(&change.key)
    });

    let mut secrets = Watch::<PartialObjectMeta<Secret>>::namespaced(client.clone(), &scope, &());
    notify_of_input(&mut secrets, &secret_queue, &apply_queue, &indexes, secret_input);
    let mut maps = Watch::<PartialObjectMeta<ConfigMap>>::namespaced(client.clone(), &scope, &());
    notify_of_input(&mut maps, &map_queue, &apply_queue, &indexes, map_input);
    // An older provider has no namespaced kinds.
    let mut usages = Watch::<Usage>::namespaced(client.clone(), &scope, &usages::api_resource()).optional();
    usages.notify(&usage_queue);
    let usages = setup.start(usages);
    let mut workspaces = |kind| watch_workspaces(setup, kind, default_kind, &apply_queue, &usage_queue, &indexes);
    let workspaces = Workspaces {
        cluster_scoped: workspaces(WorkspaceKind::ClusterScoped),
        namespaced: workspaces(WorkspaceKind::Namespaced),
    };
    let caches = Caches {
        templates: setup.start(templates),
        clusters: setup.start(clusters),
        secrets: setup.start(secrets),
        config_maps: setup.start(maps),
        workspaces,
        applies: setup.start(applies),
    };

    setup.controller(
        "workspacetemplate",
        template_queue,
        &caches.templates,
        Templates {
            cache: caches.templates.clone(),
            objects: writer.of(),
            allow_cross_namespace: settings.allow_cross_namespace,
        },
    );
    let (secret_cache, map_cache) = (caches.secrets.clone(), caches.config_maps.clone());
    setup.controller(
        "secret",
        secret_queue,
        &secret_cache,
        inputs(&writer, &secret_cache, &indexes, secret_input),
    );
    setup.controller(
        "configmap",
        map_queue,
        &map_cache,
        inputs(&writer, &map_cache, &indexes, map_input),
    );
    setup.controller(
        "providerconfigusage",
        usage_queue,
        &usages,
        Usages {
            cache: usages.clone(),
            objects: writer.of_dynamic(usages::api_resource()),
            workspaces: caches.workspaces.namespaced.all.clone(),
            live_workspaces: writer.of_dynamic(WorkspaceKind::Namespaced.api_resource()),
        },
    );
    let (events, lives, applies) = (setup.events(), setup.metrics().lives(), caches.applies.clone());
    setup.count(metrics::register(&lives), &applies);
    setup.controller(
        "workspacetemplateapply",
        apply_queue,
        &applies,
        Applies {
            caches,
            writer,
            events,
            lives,
            default_kind,
            settings,
        },
    );
    Ok(())
}

fn secret_input(key: &Key) -> Input {
    Input::Secret {
        namespace: key.namespace().unwrap_or_default().to_owned(),
        name: key.name().to_owned(),
    }
}

fn map_input(key: &Key) -> Input {
    Input::ConfigMap {
        namespace: key.namespace().unwrap_or_default().to_owned(),
        name: key.name().to_owned(),
    }
}

fn inputs<K>(
    writer: &Writer,
    cache: &capt_runtime::cache::Cache<K>,
    indexes: &Indexes,
    input: fn(&Key) -> Input,
) -> Inputs<K>
where
    K: Resource<DynamicType = ()>,
{
    Inputs {
        cache: cache.clone(),
        objects: writer.of(),
        applies: writer.of(),
        by_input: indexes.by_input.clone(),
        input,
    }
}

/// A changed input concerns the applies that read it or wait for it; a protected one also concerns itself.
fn notify_of_input<K>(watch: &mut Watch<K>, own: &Queue, applies: &Queue, indexes: &Indexes, input: fn(&Key) -> Input)
where
    K: Resource + Clone + serde::de::DeserializeOwned + Send + Sync + 'static,
{
    watch.on_change(own, |change| match &change.new {
        Some(object) if is_protected(&**object) => vec![change.key.clone()],
        _ => Vec::new(),
    });
    let (by_secret, by_input) = (indexes.by_secret.clone(), indexes.by_input.clone());
    watch.on_change(applies, move |change| {
        let input = input(&change.key);
        let mut keys = by_input.keys(&input);
        if matches!(input, Input::Secret { .. }) {
            keys.extend(by_secret.keys(&change.key));
        }
        keys
    });
}

fn watch_workspaces(
    setup: &mut Setup,
    kind: WorkspaceKind,
    default_kind: WorkspaceKind,
    applies: &Queue,
    usages: &Queue,
    indexes: &Indexes,
) -> WorkspaceCache {
    let resource = kind.api_resource();
    let watch = match kind {
        WorkspaceKind::ClusterScoped => Watch::<Workspace>::cluster_scoped(setup.client(), &resource),
        WorkspaceKind::Namespaced => Watch::namespaced(setup.client(), setup.scope(), &resource),
    };
    let mut watch = watch.named(format!("Workspace ({kind})"));
    if kind != default_kind {
        // An older provider has only one of the two kinds.
        watch = watch.optional();
    }
    let of_apply =
        |workspace: &Workspace| back_reference(workspace).map(|(namespace, name)| Key::namespaced(namespace, name));
    let by_apply = watch.index(move |workspace| of_apply(workspace).into_iter().collect());
    // Workspaces of applies that this installation does not look after are none of its business.
    let only = setup.scope().namespace().map(str::to_owned);
    watch.notify_referenced(applies, move |workspace| {
        let key = of_apply(workspace).filter(|key| only.is_none() || key.namespace() == only.as_deref());
        key.into_iter().collect()
    });
    watch.notify_referenced(usages, |workspace| usage_key(workspace).into_iter().collect());
    let by_awaited = indexes.by_awaited.clone();
    watch.on_change(applies, move |change| by_awaited.keys(&change.key.name().to_owned()));
    WorkspaceCache {
        all: setup.start(watch),
        by_apply,
    }
}
