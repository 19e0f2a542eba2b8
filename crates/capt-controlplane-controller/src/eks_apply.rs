//! The EKS apply as a CAPTControlPlane wishes it: variables, labels, and the whole object. Pure.

use std::collections::BTreeMap;

use capt_api::common::ObjectReference;
use capt_api::conditions::control_plane::Ready;
use capt_api::names::{self, annotation, finalizer, label, output, variable};
use capt_api::workspace::WorkspaceTemplateApplySpec;
use capt_api::{CaptControlPlane, WorkspaceTemplateApply, vpc_id};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub(crate) type Variables = BTreeMap<String, String>;

/// What a CAPTControlPlane asks for, checked as far as no schema can check it.
#[derive(Debug)]
pub(crate) struct Wish<'a> {
    control_plane: &'a CaptControlPlane,
    /// The variables that the spec alone gives.
    own: Variables,
}

/// Why there is nothing that could be handed to Terraform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unfit {
    pub(crate) reason: Ready,
    pub(crate) message: String,
}

impl<'a> Wish<'a> {
    /// The CRD's rules are checked again where a wrong value would reach Terraform: an object may be older than a rule.
    pub(crate) fn of(control_plane: &'a CaptControlPlane, allow_cross_namespace: bool) -> Result<Self, Unfit> {
        let spec = &control_plane.spec;
        let invalid = |message: String| Unfit {
            reason: Ready::InvalidSpec,
            message,
        };

        let template = &spec.workspace_template_ref;
        if let Some(namespace) = &template.namespace
            && Some(namespace) != control_plane.metadata.namespace.as_ref()
            && !allow_cross_namespace
        {
            return Err(Unfit {
                reason: Ready::CrossNamespaceTemplate,
                message: format!(
                    "spec.workspaceTemplateRef names a template in namespace {namespace}: copy the template into this namespace, \
                     or run the controllers with --allow-cross-namespace-templates"
                ),
            });
        }
        let kubernetes_version = minor_version(&spec.version).ok_or_else(|| {
            invalid(format!(
                "spec.version {:?} is not a Kubernetes version such as 1.31, v1.31 or v1.31.2",
                spec.version
            ))
        })?;

        let config = &spec.control_plane_config;
        for addon in &config.addons {
            let Some(values) = &addon.configuration_values else {
                continue;
            };
            if let Err(error) = serde_json::from_str::<serde_json::Value>(values) {
                return Err(invalid(format!(
                    "spec.controlPlaneConfig.addons: configurationValues of {} is not JSON ({error}): write it as one JSON object, \
                     such as {{\"replicaCount\": 2}}",
                    addon.name
                )));
            }
        }
        let json = |what: &str, value: serde_json::Result<String>| {
            value.map_err(|error| invalid(format!("{what} cannot be written as JSON: {error}")))
        };
        let mut own = Variables::new();
        let mut set = |name: &str, value: String| own.insert(name.to_owned(), value);
        set(variable::KUBERNETES_VERSION, kubernetes_version);
        set(variable::REGION, config.region.clone());
        set(
            variable::ADDONS,
            json("spec.controlPlaneConfig.addons", serde_json::to_string(&config.addons))?,
        );
        set(
            variable::TAGS,
            json("spec.additionalTags", serde_json::to_string(&spec.additional_tags))?,
        );
        for (key, value) in &spec.additional_tags {
            set(&format!("{}{key}", variable::TAG_PREFIX), value.clone());
        }
        // What the user leaves out stays the template's choice: a default of ours could open an API server to the internet
        // that its template keeps private.
        if let Some(access) = &config.endpoint_access {
            if access.public == Some(false) && access.private == Some(false) {
                return Err(invalid(
                    "spec.controlPlaneConfig.endpointAccess leaves no way to the API server: set public or private to true".into(),
                ));
            }
            if let Some(public) = access.public {
                set(variable::ENDPOINT_PUBLIC_ACCESS, public.to_string());
            }
            if let Some(private) = access.private {
                set(variable::ENDPOINT_PRIVATE_ACCESS, private.to_string());
            }
            if !access.public_cidrs.is_empty() {
                let cidrs = serde_json::to_string(&access.public_cidrs);
                set(
                    variable::ENDPOINT_PUBLIC_ACCESS_CIDRS,
                    json("spec.controlPlaneConfig.endpointAccess.publicCIDRs", cidrs)?,
                );
            }
        }
        Ok(Self { control_plane, own })
    }

    /// The spec of the apply. `network` is what is known of the VPC: see [`network`] and [`carried`].
    pub(crate) fn spec(&self, cluster: &str, network: &Variables) -> WorkspaceTemplateApplySpec {
        let spec = &self.control_plane.spec;
        // Later ones win: a user may replace an output of the VPC, but nothing that CAPT itself answers for.
        let mut variables = network.clone();
        variables.extend(spec.variables.clone());
        if let Some(id) = network.get(variable::VPC_ID) {
            variables.insert(variable::VPC_ID.into(), id.clone());
        }
        variables.extend(self.own.clone());
        variables.insert(variable::CLUSTER_NAME.into(), cluster.into());
        WorkspaceTemplateApplySpec {
            template_ref: spec.workspace_template_ref.clone(),
            variables,
            write_connection_secret_to_ref: Some(ObjectReference {
                name: names::eks_connection_secret(cluster),
                namespace: None,
            }),
            ..WorkspaceTemplateApplySpec::default()
        }
    }

    /// The names of the variables whose values are the network's, for [`annotation::NETWORK_VARIABLES`].
    pub(crate) fn given(&self, network: &Variables) -> String {
        let own = &self.control_plane.spec.variables;
        let names = network.keys().filter(|name| !own.contains_key(*name));
        serde_json::Value::from_iter(names.map(String::as_str)).to_string()
    }

    /// The apply, complete: the hold and the labels are in the body of the one request that makes it.
    pub(crate) fn object(&self, cluster: &str, network: &Variables) -> WorkspaceTemplateApply {
        let metadata = &self.control_plane.metadata;
        let labels = labels(metadata, cluster);
        let mut apply = WorkspaceTemplateApply::new(&name(metadata), self.spec(cluster, network));
        apply.metadata.namespace = metadata.namespace.clone();
        apply.metadata.finalizers = Some(vec![finalizer::CAPT_CONTROL_PLANE_HOLD.into()]);
        apply.metadata.annotations = Some(BTreeMap::from([(
            annotation::NETWORK_VARIABLES.to_owned(),
            self.given(network),
        )]));
        apply.metadata.labels = Some(
            labels
                .into_iter()
                .filter_map(|(key, value)| Some((key.to_owned(), value?)))
                .collect(),
        );
        apply
    }
}

/// The name of a control plane's apply.
pub(crate) fn name(control_plane: &ObjectMeta) -> String {
    names::eks_apply_name(control_plane.name.as_deref().unwrap_or_default())
}

/// The labels of the apply that follow its control plane; `None` for one that must not be there.
pub(crate) fn labels(control_plane: &ObjectMeta, cluster: &str) -> BTreeMap<&'static str, Option<String>> {
    let filter = control_plane
        .labels
        .as_ref()
        .and_then(|labels| labels.get(label::WATCH_FILTER))
        .cloned();
    BTreeMap::from([
        (label::CLUSTER_NAME, Some(names::label_value(cluster))),
        (label::WATCH_FILTER, filter),
    ])
}

/// The variables of a network: its ID, and every output of its apply as `vpc_<output>`. An output `vpc_id` is the ID itself,
/// and is believed before `id`, so that ID and subnets are of the same network at every moment.
pub(crate) fn network(id: &str, outputs: &Variables) -> Variables {
    let mut variables: Variables = outputs
        .iter()
        .filter(|(name, _)| name.as_str() != output::VPC_ID && is_variable_name(name))
        .map(|(name, value)| (format!("{}{name}", variable::VPC_OUTPUT_PREFIX), value.clone()))
        .collect();
    let told = outputs
        .get(output::VPC_ID)
        .and_then(|text| vpc_id::parse(text).ok().flatten());
    let id = told.unwrap_or(id);
    variables.insert(variable::VPC_ID.into(), id.into());
    variables
}

/// The network's variables as the apply has them. While the VPC is being changed its outputs are not to be trusted, and
/// dropping them would make Terraform rebuild the cluster without its subnets.
///
/// What the user gave under such a name is not carried, whether it still stands in the spec or was taken out of it.
pub(crate) fn carried(apply: &WorkspaceTemplateApply, control_plane: &CaptControlPlane) -> Variables {
    let given = given_to(&apply.metadata);
    let is_the_networks = |name: &String| match &given {
        Some(given) => given.contains(name),
        // Made by a version that did not write it down.
        None => name.starts_with(variable::VPC_OUTPUT_PREFIX),
    };
    let variables = apply.spec.variables.iter();
    variables
        .filter(|(name, _)| is_the_networks(name) && !control_plane.spec.variables.contains_key(*name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// The names that [`Wish::given`] wrote down; one that somebody has spoilt counts as none.
fn given_to(apply: &ObjectMeta) -> Option<Vec<String>> {
    let given = apply.annotations.as_ref()?.get(annotation::NETWORK_VARIABLES)?;
    serde_json::from_str(given).ok()
}

/// Whether Terraform was last told to run this version. `status.versions` then repeats the spec's own spelling: Cluster API
/// compares the two, and another spelling would look like an upgrade that never ends.
pub(crate) fn runs(apply: &WorkspaceTemplateApplySpec, version: &str) -> bool {
    minor_version(version).is_some_and(|minor| apply.variables.get(variable::KUBERNETES_VERSION) == Some(&minor))
}

/// `1.31` of `v1.31.2`: EKS knows minor versions only.
fn minor_version(version: &str) -> Option<String> {
    let mut parts = version.strip_prefix('v').unwrap_or(version).split('.');
    let mut number = || parts.next()?.parse::<u16>().ok();
    Some(format!("{}.{}", number()?, number()?))
}

/// Terraform also allows names that an apply's variables cannot have; such an output is of no use to a template.
fn is_variable_name(name: &str) -> bool {
    const LONGEST: usize = 128;
    name.len() <= LONGEST && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn control_plane(spec: Value) -> CaptControlPlane {
        let mut whole = json!({
            "version": "v1.31.2",
            "workspaceTemplateRef": {"name": "eks"},
            "controlPlaneConfig": {"region": "eu-west-1"},
        });
        merge(&mut whole, spec);
        serde_json::from_value(json!({
            "apiVersion": "controlplane.cluster.x-k8s.io/v1beta1", "kind": "CAPTControlPlane",
            "metadata": {"name": "demo-cp", "namespace": "team", "labels": {"cluster.x-k8s.io/watch-filter": "blue"}},
            "spec": whole,
        }))
        .unwrap()
    }

    fn merge(into: &mut Value, from: Value) {
        match (into, from) {
            (Value::Object(into), Value::Object(from)) => {
                for (key, value) in from {
                    merge(into.entry(key).or_insert(Value::Null), value);
                }
            }
            (into, from) => *into = from,
        }
    }

    fn map(entries: &[(&str, &str)]) -> Variables {
        entries
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    #[test]
    fn every_variable_of_a_full_control_plane() {
        let full = control_plane(json!({
            "controlPlaneConfig": {
                "endpointAccess": {"public": true, "private": false, "publicCIDRs": ["203.0.113.0/24", "198.51.100.7/32"]},
                "addons": [{"name": "vpc-cni", "version": "v1.18.0", "configurationValues": "{\"a\": 1}"}, {"name": "coredns"}],
            },
            "additionalTags": {"team": "blue", "cost/center": "42"},
            "variables": {"node_type": "m7g.large", "vpc_private_subnets": "[\"mine\"]"},
        }));
        let outputs = map(&[
            ("vpc_id", "vpc-2"),
            ("private_subnets", "[\"s-1\"]"),
            ("azs", "[\"a\"]"),
            ("größe", "7"),
        ]);
        let spec = Wish::of(&full, false)
            .unwrap()
            .spec("demo", &network("vpc-1", &outputs));
        assert_eq!(
            spec.variables,
            map(&[
                (
                    "addons",
                    r#"[{"name":"vpc-cni","version":"v1.18.0","configurationValues":"{\"a\": 1}"},{"name":"coredns"}]"#
                ),
                ("cluster_name", "demo"),
                ("endpoint_private_access", "false"),
                ("endpoint_public_access", "true"),
                (
                    "endpoint_public_access_cidrs",
                    r#"["203.0.113.0/24","198.51.100.7/32"]"#
                ),
                ("kubernetes_version", "1.31"),
                ("node_type", "m7g.large"),
                ("region", "eu-west-1"),
                ("tags", r#"{"cost/center":"42","team":"blue"}"#),
                ("tags_cost/center", "42"),
                ("tags_team", "blue"),
                ("vpc_azs", "[\"a\"]"),
                ("vpc_id", "vpc-2"),
                ("vpc_private_subnets", "[\"mine\"]"),
            ])
        );
        let secret = spec.write_connection_secret_to_ref.unwrap();
        assert_eq!((secret.name.as_str(), secret.namespace), ("demo-eks-connection", None));
    }

    #[test]
    fn what_the_user_leaves_out_is_left_to_the_template() {
        let bare = control_plane(json!({}));
        let spec = Wish::of(&bare, false)
            .unwrap()
            .spec("demo", &network("vpc-1", &Variables::new()));
        assert_eq!(
            spec.variables,
            map(&[
                ("addons", "[]"),
                ("cluster_name", "demo"),
                ("kubernetes_version", "1.31"),
                ("region", "eu-west-1"),
                ("tags", "{}"),
                ("vpc_id", "vpc-1"),
            ])
        );
    }

    #[test]
    fn nobody_overrides_what_capt_answers_for() {
        // The CRD refuses these; an object may be older than the rule.
        let sly = control_plane(
            json!({"variables": {"cluster_name": "x", "region": "x", "vpc_id": "x", "kubernetes_version": "9.9"}}),
        );
        let variables = Wish::of(&sly, false)
            .unwrap()
            .spec("demo", &network("vpc-1", &Variables::new()))
            .variables;
        for (name, value) in [
            ("cluster_name", "demo"),
            ("region", "eu-west-1"),
            ("vpc_id", "vpc-1"),
            ("kubernetes_version", "1.31"),
        ] {
            assert_eq!(variables[name], value);
        }
    }

    #[test]
    fn the_networks_variables_are_carried_and_the_users_own_are_not() {
        let before = control_plane(json!({"variables": {"vpc_mine": "old"}}));
        let known = network("vpc-1", &map(&[("subnets", "[]")]));
        let apply = Wish::of(&before, false).unwrap().object("demo", &known);
        assert_eq!(carried(&apply, &before), known);

        let after = control_plane(json!({"variables": {"vpc_mine": "new"}}));
        let changed = Wish::of(&after, false).unwrap().spec("demo", &carried(&apply, &after));
        assert_eq!(changed.variables["vpc_mine"], "new");
        assert_eq!(changed.variables["vpc_subnets"], "[]");

        let without = control_plane(json!({}));
        assert_eq!(carried(&apply, &without), known, "what the user takes back goes");
        let mut old = apply;
        old.metadata.annotations = None;
        assert_eq!(
            carried(&old, &before),
            known,
            "an apply of an earlier version tells by the prefix alone"
        );
    }

    #[test]
    fn an_output_in_whose_place_the_user_gives_a_value_is_the_users() {
        let known = network("vpc-1", &map(&[("subnets", "[]")]));
        let replacing = control_plane(json!({"variables": {"vpc_subnets": "[1]"}}));
        let apply = Wish::of(&replacing, false).unwrap().object("demo", &known);
        assert_eq!(apply.spec.variables["vpc_subnets"], "[1]");
        let without = control_plane(json!({}));
        assert_eq!(carried(&apply, &without), network("vpc-1", &Variables::new()));
    }

    #[test]
    fn the_object_is_complete() {
        let demo = control_plane(json!({}));
        let apply = Wish::of(&demo, false)
            .unwrap()
            .object("demo", &network("vpc-1", &Variables::new()));
        assert_eq!(apply.metadata.name.as_deref(), Some("demo-cp-eks-controlplane-apply"));
        assert_eq!(apply.metadata.namespace.as_deref(), Some("team"));
        assert_eq!(
            apply.metadata.finalizers.unwrap(),
            ["controlplane.cluster.x-k8s.io/captcontrolplane-hold"]
        );
        assert_eq!(
            apply.metadata.labels.unwrap(),
            map(&[
                ("cluster.x-k8s.io/cluster-name", "demo"),
                ("cluster.x-k8s.io/watch-filter", "blue")
            ])
        );
        assert_eq!(
            apply.metadata.annotations.unwrap(),
            map(&[("infrastructure.cluster.x-k8s.io/network-variables", r#"["vpc_id"]"#)])
        );
    }

    #[test]
    fn what_no_schema_can_check_is_refused_with_the_field_and_the_way_out() {
        let cases = [
            (
                json!({"controlPlaneConfig": {"addons": [{"name": "vpc-cni", "configurationValues": "a: 1"}]}}),
                Ready::InvalidSpec,
                ["spec.controlPlaneConfig.addons", "vpc-cni is not JSON"],
            ),
            (
                json!({"version": "latest"}),
                Ready::InvalidSpec,
                ["spec.version", "v1.31.2"],
            ),
            (
                json!({"controlPlaneConfig": {"endpointAccess": {"public": false, "private": false}}}),
                Ready::InvalidSpec,
                ["endpointAccess", "set public or private to true"],
            ),
            (
                json!({"workspaceTemplateRef": {"namespace": "other"}}),
                Ready::CrossNamespaceTemplate,
                ["spec.workspaceTemplateRef", "--allow-cross-namespace-templates"],
            ),
        ];
        for (spec, reason, words) in cases {
            let control_plane = control_plane(spec);
            let unfit = Wish::of(&control_plane, false).unwrap_err();
            assert_eq!(unfit.reason, reason);
            assert!(
                words.iter().all(|word| unfit.message.contains(word)),
                "{}",
                unfit.message
            );
        }
    }

    #[test]
    fn a_template_elsewhere_is_allowed_where_it_is_switched_on_or_is_no_elsewhere() {
        let here = control_plane(json!({"workspaceTemplateRef": {"namespace": "team"}}));
        assert!(Wish::of(&here, false).is_ok());
        let elsewhere = control_plane(json!({"workspaceTemplateRef": {"namespace": "other"}}));
        let spec = Wish::of(&elsewhere, true).unwrap().spec("demo", &Variables::new());
        assert_eq!(spec.template_ref.namespace.as_deref(), Some("other"));
    }

    #[test]
    fn versions_as_eks_knows_them() {
        for (version, minor) in [
            ("1.31", Some("1.31")),
            ("v1.31", Some("1.31")),
            ("v1.31.2", Some("1.31")),
            ("v1", None),
            ("", None),
            ("1.x", None),
            ("vv1.31", None),
        ] {
            assert_eq!(minor_version(version).as_deref(), minor, "{version}");
        }
        let apply = WorkspaceTemplateApplySpec {
            variables: map(&[("kubernetes_version", "1.31")]),
            ..Default::default()
        };
        assert!(runs(&apply, "v1.31.7"));
        assert!(!runs(&apply, "v1.32.0"));
        assert!(!runs(&WorkspaceTemplateApplySpec::default(), "v1.31.0"));
    }
}
