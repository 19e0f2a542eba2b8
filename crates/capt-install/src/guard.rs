//! The guard on uninstalling. Once the controllers are gone nobody removes their finalizers any more: a deletion would
//! hang for ever, and what Terraform made would go on costing.

use std::fmt::Debug;

use anyhow::{Context, bail};
use capt_api::names::{finalizer, label};
use capt_api::{CaptCluster, CaptControlPlane, Tenant, WorkspaceTemplateApply};
use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::refusals::outwait;

/// What only CAPT removes from the kinds that it serves.
const FINALIZERS: &[&str] = &[
    finalizer::CAPT_CLUSTER,
    finalizer::CAPT_CONTROL_PLANE,
    finalizer::CAPT_ENDPOINT,
    finalizer::CAPT_SECRETS,
    finalizer::WORKSPACE_TEMPLATE_APPLY,
    finalizer::CAPT_CLUSTER_HOLD,
    finalizer::CAPT_CONTROL_PLANE_HOLD,
    finalizer::TENANT,
    finalizer::GO_VERSION,
];
/// Objects named in a refusal; the rest is counted.
const SHOWN: usize = 20;
/// Objects per answer of the API server.
const PAGE: u32 = 500;

/// Whose objects are looked at: as the installation that is to go.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct Args {
    /// Only objects in this namespace; without it, in all namespaces.
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,

    /// Only objects whose label cluster.x-k8s.io/watch-filter has this value.
    #[arg(long, value_name = "VALUE")]
    watch_filter: Option<String>,
}

/// Fails while objects need the controllers, and names them.
pub(crate) async fn guard(client: &Client, args: &Args) -> anyhow::Result<()> {
    let namespace = args.namespace.as_deref().filter(|name| !name.is_empty());
    let mut needing = [
        held(within::<CaptCluster>(client, namespace), args).await?,
        held(within::<CaptControlPlane>(client, namespace), args).await?,
        held(within::<WorkspaceTemplateApply>(client, namespace), args).await?,
    ]
    .concat();
    if namespace.is_none() {
        // Tenants belong to no namespace, and an installation for one has nothing to do with them.
        needing.extend(held(Api::<Tenant>::all(client.clone()), args).await?);
    }
    if needing.is_empty() {
        println!("no object needs CAPT's controllers any more");
        return Ok(());
    }
    bail!(refusal(&needing))
}

/// The objects of a kind in this namespace, or in all.
fn within<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

/// The objects of a kind that carry a finalizer of CAPT's. A kind that the API server does not know has none.
async fn held<K>(api: Api<K>, args: &Args) -> anyhow::Result<Vec<String>>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let kind = K::kind(&());
    let mut page = ListParams::default().limit(PAGE);
    if let Some(value) = args.watch_filter.as_deref().filter(|value| !value.is_empty()) {
        page = page.labels(&format!("{}={value}", label::WATCH_FILTER));
    }
    let mut found = Vec::new();
    loop {
        let list = match outwait(async || api.list_metadata(&page).await).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(found),
            other => other.with_context(|| format!("cannot list the objects of kind {kind}"))?,
        };
        let needing = list.items.iter().filter(|object| needs_capt(object.finalizers()));
        found.extend(needing.map(|object| {
            let namespace = object.namespace().map(|namespace| format!("{namespace}/"));
            format!("{kind} {}{}", namespace.unwrap_or_default(), object.name_any())
        }));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(found),
        }
    }
}

fn needs_capt(finalizers: &[String]) -> bool {
    finalizers.iter().any(|name| FINALIZERS.contains(&name.as_str()))
}

fn refusal(held: &[String]) -> String {
    let mut lines = vec![match held.len() {
        1 => "CAPT must stay: an object needs it to be deleted in order".to_owned(),
        count => format!("CAPT must stay: {count} objects need it to be deleted in order"),
    }];
    lines.extend(held.iter().take(SHOWN).map(|object| format!("  {object}")));
    if let Some(more) = held.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        lines.push(format!("  and {more} more"));
    }
    lines.push(WAYS_OUT.to_owned());
    lines.join("\n")
}

const WAYS_OUT: &str = "\
Without the controllers their finalizers would stay for ever, and with them everything that Terraform made.
- Delete the Clusters and Tenants they belong to, wait until all of this is gone, then uninstall again.
- To keep the clusters, move them to another management cluster first (clusterctl move).
- To take CAPT away for a while and install it again later, uninstall with --no-hooks. Nothing is deleted then.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_finalizers_of_capt_count() {
        let finalizers = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(!needs_capt(&finalizers(&[])));
        assert!(!needs_capt(&finalizers(&["foregroundDeletion", "example.com/ours"])));
        assert!(needs_capt(&finalizers(&[
            "foregroundDeletion",
            finalizer::CAPT_SECRETS
        ])));
        assert!(needs_capt(&finalizers(&[finalizer::GO_VERSION])));
    }

    #[test]
    fn a_refusal_names_objects_and_ways_out() {
        let few = refusal(&["CAPTCluster team-a/demo".to_owned()]);
        assert!(
            few.contains("an object needs it") && few.contains("\n  CAPTCluster team-a/demo\n"),
            "{few}"
        );
        assert!(!few.contains("more\n") && few.contains("--no-hooks"), "{few}");

        let many: Vec<String> = (0..SHOWN + 3).map(|n| format!("CAPTCluster a/c{n}")).collect();
        let many = refusal(&many);
        assert!(many.contains("23 objects") && many.contains("  and 3 more\n"), "{many}");
        assert!(many.contains("a/c19\n") && !many.contains("a/c20\n"), "{many}");
    }
}
