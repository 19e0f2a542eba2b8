//! The chart's accounts may do what their controllers declare, and nothing else.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use capt_e2e::components::{CONTROLLERS, all_controllers};
use capt_e2e::{manifests, testing};
use capt_runtime::rbac::{OWN_NAMESPACE, Rule};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::authorization::v1::ResourceAttributes;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::helm::Helm;

/// Group, resource with its subresource, verb.
type Permission = (String, String, String);

/// What holds for objects of all names.
fn permissions(rules: &[Rule]) -> BTreeSet<Permission> {
    let mut all = BTreeSet::new();
    for rule in rules.iter().filter(|rule| rule.names.is_empty()) {
        for group in rule.groups {
            for resource in rule.resources {
                let of = |verb: &&str| ((*group).to_owned(), (*resource).to_owned(), (*verb).to_owned());
                all.extend(rule.verbs.iter().map(of));
            }
        }
    }
    all
}

/// What no controller may do anywhere.
fn escalations() -> BTreeSet<Permission> {
    let all = [
        ("", "pods", "create"),
        ("", "pods/exec", "create"),
        ("", "serviceaccounts/token", "create"),
        ("", "secrets", "update"),
        ("apps", "deployments", "patch"),
        ("rbac.authorization.k8s.io", "clusterroles", "escalate"),
        ("rbac.authorization.k8s.io", "clusterroles", "bind"),
        ("rbac.authorization.k8s.io", "clusterrolebindings", "create"),
        ("rbac.authorization.k8s.io", "roles", "create"),
        ("apiextensions.k8s.io", "customresourcedefinitions", "patch"),
        (
            "admissionregistration.k8s.io",
            "validatingwebhookconfigurations",
            "create",
        ),
    ];
    all.into_iter()
        .map(|(group, resource, verb)| (group.into(), resource.into(), verb.into()))
        .collect()
}

/// What a permission is asked for: without a namespace everywhere, without a name for all objects.
#[derive(Debug, Clone, Copy, Default)]
struct Reach<'a> {
    namespace: Option<&'a str>,
    name: Option<&'a str>,
}

impl<'a> Reach<'a> {
    fn inside(namespace: &'a str) -> Self {
        Self {
            namespace: Some(namespace),
            name: None,
        }
    }
}

struct Installation {
    client: Client,
    namespace: String,
}

impl Installation {
    /// The accounts, roles and bindings of a release in a namespace of its own.
    async fn new(watch: Option<&str>) -> Result<Self> {
        let client = testing::client().await?;
        let namespace = testing::namespace(&client, "chart-rbac").await?;
        let values = json!({
            "watch": { "namespace": watch.unwrap_or_default() },
            "controllers": { "tenant": { "enabled": watch.is_none() } },
        });
        let rendered = Helm::new().await?.render_into(&namespace, "capt", &values)?;
        let objects = rendered.objects.into_iter().filter(|object| {
            let kind = object["kind"].as_str().unwrap_or_default();
            kind == "ServiceAccount" || kind.ends_with("Role") || kind.ends_with("RoleBinding")
        });
        manifests::apply(&client, objects.collect()).await?;
        Ok(Self { client, namespace })
    }

    async fn may(&self, controller: &str, to: Reach<'_>, permission: &Permission) -> Result<bool> {
        let (group, resource, verb) = permission;
        let (resource, subresource) = match resource.split_once('/') {
            Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
            None => (resource.as_str(), None),
        };
        let wish = ResourceAttributes {
            namespace: to.namespace.map(str::to_owned),
            name: to.name.map(str::to_owned),
            group: Some(group.clone()),
            resource: Some(resource.to_owned()),
            subresource,
            verb: Some(verb.clone()),
            ..ResourceAttributes::default()
        };
        let user = format!("system:serviceaccount:{}:{controller}", self.namespace);
        let groups = ["system:serviceaccounts", "system:authenticated"];
        testing::may(&self.client, &user, &groups, &wish).await
    }

    /// Which of the permissions an account has there.
    async fn held(
        &self,
        controller: &str,
        to: Reach<'_>,
        asked: &BTreeSet<Permission>,
    ) -> Result<BTreeSet<Permission>> {
        let answers = stream::iter(asked).map(|permission| async move {
            Ok::<_, anyhow::Error>((permission.clone(), self.may(controller, to, permission).await?))
        });
        let answers: Vec<_> = answers.buffer_unordered(8).try_collect().await?;
        Ok(answers
            .into_iter()
            .filter(|(_, allowed)| *allowed)
            .map(|(permission, _)| permission)
            .collect())
    }

    /// Waits until an account has all of these permissions there. Whoever applies a Role has its answer before the API server has
    /// heard of it, and nothing tells when it has.
    async fn until_held(&self, controller: &str, to: Reach<'_>, wanted: &BTreeSet<Permission>) -> Result<()> {
        let deadline = Instant::now() + testing::PATIENCE;
        loop {
            let held = self.held(controller, to, wanted).await?;
            if held == *wanted {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "{controller} lacks {:?} {to:?}",
                wanted.difference(&held)
            );
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// The namespace takes the rest along.
    async fn remove(self) -> Result<()> {
        let roles: Api<ClusterRole> = Api::all(self.client.clone());
        let bindings: Api<ClusterRoleBinding> = Api::all(self.client.clone());
        let prefix = format!("{}:", self.namespace);
        let is_ours = |name: &String| name.starts_with(&prefix);
        for binding in bindings.list(&ListParams::default()).await? {
            if let Some(name) = binding.metadata.name.filter(is_ours) {
                bindings.delete(&name, &DeleteParams::default()).await?;
            }
        }
        for role in roles.list(&ListParams::default()).await? {
            if let Some(name) = role.metadata.name.filter(is_ours) {
                roles.delete(&name, &DeleteParams::default()).await?;
            }
        }
        Ok(())
    }
}

/// Everything that anybody may do, and some things that nobody may.
fn everything_to_ask() -> BTreeSet<Permission> {
    let declared = all_controllers().flat_map(|controller| permissions(controller.everywhere));
    declared.chain(escalations()).collect()
}

#[tokio::test]
async fn everywhere_means_what_is_declared() -> Result<()> {
    let installation = Installation::new(None).await?;
    let asked = everything_to_ask();
    let leases = permissions(OWN_NAMESPACE);
    // Everybody's first: what an account must not have could be late as well.
    for controller in all_controllers() {
        let declared = permissions(controller.everywhere);
        let of_lease = Reach {
            name: Some(controller.name),
            ..Reach::inside(&installation.namespace)
        };
        installation
            .until_held(controller.name, Reach::default(), &declared)
            .await?;
        installation.until_held(controller.name, of_lease, &leases).await?;
    }
    for controller in all_controllers() {
        let held = installation.held(controller.name, Reach::default(), &asked).await?;
        let declared = permissions(controller.everywhere);
        ensure!(
            held == declared,
            "{}: {:?}",
            controller.name,
            held.symmetric_difference(&declared)
        );
        for rule in controller.everywhere.iter().filter(|rule| !rule.names.is_empty()) {
            let named = permissions(&[Rule { names: &[], ..*rule }]);
            for (name, expected) in rule
                .names
                .iter()
                .map(|name| (*name, true))
                .chain([("cluster-admin", false)])
            {
                let reach = Reach {
                    name: Some(name),
                    ..Reach::default()
                };
                let held = installation.held(controller.name, reach, &named).await?;
                ensure!((held == named) == expected, "{} on {name}: {held:?}", controller.name);
            }
        }
        // Of the Leases in the release's namespace its own is the controller's, and no other; elsewhere there is none.
        for other in all_controllers() {
            let of_lease = Reach {
                name: Some(other.name),
                ..Reach::inside(&installation.namespace)
            };
            let held = installation.held(controller.name, of_lease, &leases).await?;
            let expected = permissions(match other.name == controller.name {
                true => OWN_NAMESPACE,
                false => &[],
            });
            let creating = |permission: &&Permission| permission.2 != "create";
            ensure!(
                held.iter().filter(creating).eq(expected.iter().filter(creating)),
                "{} on the Lease of {}: {held:?}",
                controller.name,
                other.name
            );
        }
        let elsewhere = installation
            .held(controller.name, Reach::inside("default"), &leases)
            .await?;
        ensure!(elsewhere.is_empty(), "{}: {elsewhere:?}", controller.name);
    }
    installation.remove().await
}

#[tokio::test]
async fn an_installation_for_one_namespace_reaches_no_other() -> Result<()> {
    let client = testing::client().await?;
    let watched = testing::namespace(&client, "chart-watched").await?;
    let installation = Installation::new(Some(&watched)).await?;
    let asked = everything_to_ask();
    let belongs_to_none = |permission: &Permission| permission.0 == "tf.upbound.io" && permission.1 == "workspaces";
    for controller in CONTROLLERS {
        let declared = permissions(controller.everywhere);
        installation
            .until_held(controller.name, Reach::inside(&watched), &declared)
            .await?;
    }
    for controller in CONTROLLERS {
        let declared = permissions(controller.everywhere);
        let inside = installation
            .held(controller.name, Reach::inside(&watched), &asked)
            .await?;
        ensure!(
            inside == declared,
            "{}: {:?}",
            controller.name,
            inside.symmetric_difference(&declared)
        );
        for elsewhere in ["default", "capt-system", installation.namespace.as_str()] {
            let held = installation
                .held(controller.name, Reach::inside(elsewhere), &asked)
                .await?;
            let foreign: Vec<_> = held.iter().filter(|permission| !belongs_to_none(permission)).collect();
            ensure!(foreign.is_empty(), "{} in {elsewhere}: {foreign:?}", controller.name);
        }
    }
    installation.remove().await
}

/// Which resources are cluster-scoped is the API server's to say: a Role in a namespace would give nothing on them.
#[tokio::test]
async fn roles_in_a_namespace_name_no_cluster_scoped_resource() -> Result<()> {
    let client = testing::client().await?;
    let discovery = kube::Discovery::new(client).run().await?;
    let rendered = Helm::new()
        .await?
        .render(&json!({ "watch": { "namespace": "team-a" } }))?;
    let mut looked_at = 0;
    for role in rendered.of_kind("Role") {
        for rule in role["rules"].as_array().context("no rules")? {
            let words = |key: &str| -> Vec<String> { serde_json::from_value(rule[key].clone()).unwrap_or_default() };
            for group in words("apiGroups") {
                let group = discovery.get(&group).with_context(|| format!("no group {group}"))?;
                for resource in words("resources") {
                    let plural = resource.split('/').next().unwrap_or_default();
                    let mut known = group.recommended_resources().into_iter();
                    let (_, capabilities) = known
                        .find(|(known, _)| known.plural == plural)
                        .with_context(|| format!("no resource {plural} in {}", group.name()))?;
                    ensure!(
                        capabilities.scope == kube::discovery::Scope::Namespaced,
                        "{plural} is cluster-scoped"
                    );
                    looked_at += 1;
                }
            }
        }
    }
    ensure!(looked_at > 30, "{looked_at}");
    Ok(())
}
