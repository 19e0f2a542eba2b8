//! What network a CAPTCluster asks for.

use capt_api::cluster::CaptClusterSpec;
use capt_api::common::TemplateReference;
use capt_api::conditions::cluster::VpcReady;

/// The two ways to a VPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network<'a> {
    /// It exists; CAPT only uses it.
    Existing(&'a str),
    /// CAPT makes it from this template.
    Template(&'a TemplateReference),
}

/// A spec that cannot be carried out: why, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Invalid {
    pub(crate) reason: VpcReady,
    pub(crate) message: String,
}

/// Reads the wish from the spec. The CRD's rules say the same; objects that were stored before those rules, or past
/// them, must still not get two networks or a template of somebody else's.
pub(crate) fn network<'a>(
    spec: &'a CaptClusterSpec,
    own_namespace: &str,
    allow_cross_namespace: bool,
) -> Result<Network<'a>, Invalid> {
    let invalid = |message: &str| Invalid {
        reason: VpcReady::InvalidVpcConfig,
        message: message.to_owned(),
    };
    let retain = spec.retain_vpc_on_delete == Some(true);
    match (&spec.vpc_template_ref, &spec.existing_vpc_id) {
        (Some(_), Some(_)) => Err(invalid(
            "spec.vpcTemplateRef and spec.existingVpcId are both given; remove one of them",
        )),
        (None, None) => Err(invalid(
            "neither spec.vpcTemplateRef nor spec.existingVpcId is given; add one of them",
        )),
        (None, Some(_)) if retain => Err(invalid(
            "spec.retainVpcOnDelete works only with spec.vpcTemplateRef, because a VPC given by spec.existingVpcId is never deleted; remove it",
        )),
        (None, Some(id)) => Ok(Network::Existing(id)),
        (Some(template), None) => match template.namespace.as_deref() {
            Some(namespace) if namespace != own_namespace && !allow_cross_namespace => Err(Invalid {
                reason: VpcReady::CrossNamespaceTemplate,
                message: format!(
                    "spec.vpcTemplateRef names the namespace {namespace}, and templates of other namespaces are not allowed here; \
                     copy the WorkspaceTemplate, or run the controllers with --allow-cross-namespace-templates"
                ),
            }),
            _ => Ok(Network::Template(template)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn judged(spec: Value, allow: bool) -> Result<String, VpcReady> {
        let mut spec = spec;
        spec["region"] = json!("eu-west-1");
        let spec: CaptClusterSpec = serde_json::from_value(spec).unwrap();
        network(&spec, "own", allow)
            .map(|network| match network {
                Network::Existing(id) => id.to_owned(),
                Network::Template(template) => format!("template {}", template.name),
            })
            .map_err(|invalid| invalid.reason)
    }

    #[test]
    fn exactly_one_way_and_templates_only_from_where_they_are_allowed() {
        let (template, existing) = (json!({"name": "t"}), json!("vpc-1"));
        for (spec, allow, expected) in [
            (json!({"existingVpcId": existing}), false, Ok("vpc-1".to_owned())),
            (
                json!({"existingVpcId": existing, "retainVpcOnDelete": false}),
                false,
                Ok("vpc-1".to_owned()),
            ),
            (
                json!({"existingVpcId": existing, "retainVpcOnDelete": true}),
                false,
                Err(VpcReady::InvalidVpcConfig),
            ),
            (json!({"vpcTemplateRef": template}), false, Ok("template t".to_owned())),
            (
                json!({"vpcTemplateRef": template, "retainVpcOnDelete": true}),
                false,
                Ok("template t".to_owned()),
            ),
            (
                json!({"vpcTemplateRef": template, "existingVpcId": existing}),
                false,
                Err(VpcReady::InvalidVpcConfig),
            ),
            (json!({}), false, Err(VpcReady::InvalidVpcConfig)),
            (
                json!({"vpcTemplateRef": {"name": "t", "namespace": "own"}}),
                false,
                Ok("template t".to_owned()),
            ),
            (
                json!({"vpcTemplateRef": {"name": "t", "namespace": "other"}}),
                false,
                Err(VpcReady::CrossNamespaceTemplate),
            ),
            (
                json!({"vpcTemplateRef": {"name": "t", "namespace": "other"}}),
                true,
                Ok("template t".to_owned()),
            ),
        ] {
            assert_eq!(judged(spec.clone(), allow), expected, "{spec}");
        }
    }
}
