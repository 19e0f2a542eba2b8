//! What the API server refuses: for every rule of the CRDs an object that breaks it, the words in which the refusal names
//! the field and the fix, and the same object with the fix, which is accepted. A rule without a row fails the test.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use capt_api::crd;
use capt_api::names::annotation;
use capt_e2e::testing;
use futures::{StreamExt as _, stream};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

/// One rule, broken and kept. `bad` and `good` are merge patches on the kind's plain object.
struct Row {
    kind: &'static str,
    /// `None`: the two are created. Otherwise the plain object is there with this status, and they are updates of it.
    existing: Option<Value>,
    bad: Value,
    good: Value,
    /// Words of the refusal: the field, and the fix.
    says: Vec<String>,
}

fn create<const N: usize>(kind: &'static str, bad: Value, good: Value, says: [&str; N]) -> Row {
    Row {
        kind,
        existing: None,
        bad,
        good,
        says: says.map(str::to_owned).into(),
    }
}

fn update<const N: usize>(kind: &'static str, status: Value, bad: Value, good: Value, says: [&str; N]) -> Row {
    Row {
        kind,
        existing: Some(status),
        bad,
        good,
        says: says.map(str::to_owned).into(),
    }
}

/// The smallest valid spec of a kind.
fn plain(kind: &str) -> Value {
    match kind {
        "CAPTCluster" => json!({ "region": "eu-west-1", "vpcTemplateRef": { "name": "vpc" } }),
        "CAPTControlPlane" => json!({
            "version": "1.31",
            "workspaceTemplateRef": { "name": "eks" },
            "controlPlaneConfig": { "region": "eu-west-1" },
        }),
        "WorkspaceTemplate" => json!({
            "template": { "spec": { "forProvider": { "source": "Inline", "module": "output \"a\" { value = 1 }" } } },
        }),
        "WorkspaceTemplateApply" => json!({ "templateRef": { "name": "vpc" } }),
        "CAPTClusterTemplate" => json!({ "template": { "spec": plain("CAPTCluster") } }),
        "CAPTControlPlaneTemplate" => {
            let mut spec = plain("CAPTControlPlane");
            json_patch::merge(&mut spec, &json!({ "version": null }));
            json!({ "template": { "spec": spec } })
        }
        "Tenant" => json!({ "namespacePrefix": "rule-" }),
        other => json!({ "unknown kind": other }),
    }
}

/// The rules of the two kinds that have templates; the templates have the same ones, one level deeper.
fn rows_with_templates() -> Vec<Row> {
    let cluster = "CAPTCluster";
    let plane = "CAPTControlPlane";
    let too_many: Value = (0..65).map(|n| (format!("v{n}"), json!("x"))).collect();
    let enough: Value = (0..64).map(|n| (format!("v{n}"), json!("x"))).collect();
    let too_many_tags: Value = (0..51).map(|n| (format!("t{n}"), json!("x"))).collect();
    let enough_tags: Value = (0..50).map(|n| (format!("t{n}"), json!("x"))).collect();
    vec![
        // CAPTCluster
        create(
            cluster,
            json!({ "region": "Ireland" }),
            json!({ "region": "us-gov-east-1" }),
            ["spec.region", "must be the name of an AWS region, such as eu-west-1"],
        ),
        create(
            cluster,
            json!({ "region": "eu-west" }),
            json!({ "region": "eusc-de-east-1" }),
            ["spec.region", "such as eu-west-1"],
        ),
        create(
            cluster,
            json!({ "region": null }),
            json!({}),
            ["spec.region", "Required value"],
        ),
        create(
            cluster,
            json!({ "existingVpcId": "vpc-0a1b" }),
            json!({ "existingVpcId": "vpc-0a1b", "vpcTemplateRef": null }),
            [
                "spec",
                "set exactly one of vpcTemplateRef (CAPT makes the VPC) and existingVpcId (the VPC exists)",
            ],
        ),
        create(
            cluster,
            json!({ "vpcTemplateRef": null }),
            json!({}),
            ["spec", "set exactly one of vpcTemplateRef"],
        ),
        create(
            cluster,
            json!({ "vpcTemplateRef": null, "existingVpcId": "my-vpc" }),
            json!({ "vpcTemplateRef": null, "existingVpcId": "vpc-0a1b2c3d4e5f67890" }),
            [
                "spec.existingVpcId",
                "must be the ID of a VPC, such as vpc-0a1b2c3d4e5f67890",
            ],
        ),
        create(
            cluster,
            json!({ "vpcTemplateRef": null, "existingVpcId": "vpc-0a1b", "retainVpcOnDelete": true }),
            json!({ "retainVpcOnDelete": true }),
            [
                "spec",
                "retainVpcOnDelete works only with vpcTemplateRef",
                "remove retainVpcOnDelete",
            ],
        ),
        create(
            cluster,
            json!({ "retainVpcOnDelete": true, "existingVpcId": "vpc-0a1b" }),
            json!({ "vpcTemplateRef": null, "existingVpcId": "vpc-0a1b", "retainVpcOnDelete": false }),
            ["set exactly one of"],
        ),
        create(
            cluster,
            json!({ "variables": { "not a name": "x" } }),
            json!({ "variables": { "instance_type": "x", "_b-2": "", "environment": "test", "vpc_cidr": "10.0.0.0/16" } }),
            [
                "spec.variables",
                "begin with a letter or an underscore, such as instance_type",
            ],
        ),
        create(
            cluster,
            json!({ "variables": { "k".repeat(129): "x" } }),
            json!({ "variables": { "k".repeat(128): "x" } }),
            ["spec.variables", "names of at most 128 letters"],
        ),
        create(
            cluster,
            json!({ "variables": too_many }),
            json!({ "variables": enough }),
            ["spec.variables", "at most 64"],
        ),
        create(
            cluster,
            json!({ "variables": { "k": "x".repeat(4097) } }),
            json!({ "variables": { "k": "x".repeat(4096) } }),
            ["spec.variables.k", "may not be more than 4096"],
        ),
        create(
            cluster,
            json!({ "variables": { "cluster_name": "x" } }),
            json!({ "variables": { "my_cluster_name": "x" } }),
            [
                "spec.variables",
                "may not set cluster_name, vpc_name, region or WORKSPACE_NAME",
                "rename the variable",
            ],
        ),
        create(
            cluster,
            json!({ "variables": { "vpc_name": "x" } }),
            json!({ "vpcConfig": { "name": "x" } }),
            ["may not set cluster_name, vpc_name"],
        ),
        create(
            cluster,
            json!({ "variables": { "region": "x" } }),
            json!({}),
            ["may not set cluster_name, vpc_name, region"],
        ),
        create(
            cluster,
            json!({ "variables": { "WORKSPACE_NAME": "x" } }),
            json!({}),
            ["or WORKSPACE_NAME"],
        ),
        create(
            cluster,
            json!({ "vpcTemplateRef": { "name": "My_Template" } }),
            json!({ "vpcTemplateRef": { "name": "my.template-1" } }),
            [
                "spec.vpcTemplateRef.name",
                "must be the name of a Kubernetes object",
                "such as my-template",
            ],
        ),
        create(
            cluster,
            json!({ "vpcTemplateRef": { "namespace": "Team A" } }),
            json!({ "vpcTemplateRef": { "namespace": "team-a" } }),
            [
                "spec.vpcTemplateRef.namespace",
                "such as team-a; leave it out for the object's own namespace",
            ],
        ),
        create(
            cluster,
            json!({ "vpcTemplateRef": { "namespace": "" } }),
            json!({ "vpcTemplateRef": { "namespace": null } }),
            ["spec.vpcTemplateRef.namespace", "leave it out"],
        ),
        create(
            cluster,
            json!({ "timeouts": { "vpcReadyTimeout": 0 } }),
            json!({ "timeouts": { "vpcReadyTimeout": 1 } }),
            ["spec.timeouts.vpcReadyTimeout", "greater than or equal to 1"],
        ),
        create(
            cluster,
            json!({ "timeouts": { "secretTimeout": -5 } }),
            json!({ "timeouts": { "secretTimeout": 5 } }),
            ["spec.timeouts.secretTimeout", "greater than or equal to 1"],
        ),
        create(
            cluster,
            json!({ "timeouts": { "deletionTimeout": 1441 } }),
            json!({ "timeouts": { "deletionTimeout": 1440 } }),
            ["spec.timeouts.deletionTimeout", "less than or equal to 1440"],
        ),
        create(
            cluster,
            json!({ "vpcConfig": { "name": "" } }),
            json!({ "vpcConfig": { "name": "n" } }),
            ["spec.vpcConfig.name", "at least 1"],
        ),
        // CAPTControlPlane
        create(
            plane,
            json!({ "workspaceTemplateRef": { "name": "-eks" } }),
            json!({ "workspaceTemplateRef": { "name": "eks" } }),
            ["spec.workspaceTemplateRef.name", "such as my-template"],
        ),
        create(
            plane,
            json!({ "workspaceTemplateRef": { "namespace": "a.b" } }),
            json!({ "workspaceTemplateRef": { "namespace": "a-b" } }),
            ["spec.workspaceTemplateRef.namespace", "such as team-a"],
        ),
        create(
            plane,
            json!({ "workspaceTemplateRef": null }),
            json!({}),
            ["spec.workspaceTemplateRef", "Required value"],
        ),
        create(
            plane,
            json!({ "controlPlaneConfig": { "region": "eu_west_1" } }),
            json!({ "controlPlaneConfig": { "region": "ap-southeast-2" } }),
            ["spec.controlPlaneConfig.region", "such as eu-west-1"],
        ),
        create(
            plane,
            json!({ "controlPlaneConfig": { "endpointAccess": { "public": false, "private": false } } }),
            json!({ "controlPlaneConfig": { "endpointAccess": { "public": false, "private": true } } }),
            [
                "spec.controlPlaneConfig.endpointAccess",
                "must leave a way to the API server: set public or private to true",
            ],
        ),
        create(
            plane,
            json!({ "controlPlaneConfig": { "endpointAccess": { "publicCIDRs": ["203.0.113.7"] } } }),
            json!({ "controlPlaneConfig": { "endpointAccess": { "publicCIDRs": ["203.0.113.7/32", "2001:db8::/32"] } } }),
            [
                "spec.controlPlaneConfig.endpointAccess.publicCIDRs[0]",
                "a single address is written 203.0.113.7/32",
            ],
        ),
        create(
            plane,
            json!({ "controlPlaneConfig": { "endpointAccess": { "publicCIDRs": ["10.0.0.0/8", "10.0.0.0/8"] } } }),
            json!({ "controlPlaneConfig": { "endpointAccess": { "publicCIDRs": ["10.0.0.0/8"] } } }),
            [
                "spec.controlPlaneConfig.endpointAccess.publicCIDRs[1]",
                "Duplicate value",
            ],
        ),
        create(
            plane,
            json!({ "controlPlaneConfig": { "addons": [{ "name": "vpc-cni" }, { "name": "coredns" }, { "name": "vpc-cni", "version": "v2" }] } }),
            json!({ "controlPlaneConfig": { "addons": [{ "name": "vpc-cni" }, { "name": "coredns", "version": "v1", "configurationValues": "{}" }] } }),
            [
                "spec.controlPlaneConfig.addons",
                "must have different names; remove the addon that is listed twice",
            ],
        ),
        create(
            plane,
            json!({ "controlPlaneConfig": { "timeouts": { "controlPlaneTimeout": 0 } } }),
            json!({ "controlPlaneConfig": { "timeouts": { "controlPlaneTimeout": 30, "vpcReadyTimeout": 15, "secretTimeout": 5, "deletionTimeout": 30 } } }),
            [
                "spec.controlPlaneConfig.timeouts.controlPlaneTimeout",
                "greater than or equal to 1",
            ],
        ),
        create(
            plane,
            json!({ "additionalTags": { "aws:owner": "x" } }),
            json!({ "additionalTags": { "kubernetes.io/cluster/demo": "owned", "Größe 1": "a b_c.d:e/f=g+h-i@j" } }),
            [
                "spec.additionalTags",
                "must have keys that AWS accepts: 1 to 128 letters",
                "not beginning with aws:",
            ],
        ),
        create(
            plane,
            json!({ "additionalTags": { "a*b": "x" } }),
            json!({ "additionalTags": { "a-b": "x" } }),
            ["spec.additionalTags", "must have keys that AWS accepts"],
        ),
        create(
            plane,
            json!({ "additionalTags": { "k".repeat(129): "x" } }),
            json!({ "additionalTags": { "k".repeat(128): "x" } }),
            ["spec.additionalTags", "1 to 128 letters"],
        ),
        create(
            plane,
            json!({ "additionalTags": { "team": "a<b" } }),
            json!({ "additionalTags": { "team": "" } }),
            [
                "spec.additionalTags[team]",
                "must have values that AWS accepts: letters, digits, spaces and _ . : / = + - @",
            ],
        ),
        create(
            plane,
            json!({ "additionalTags": { "team": "x".repeat(257) } }),
            json!({ "additionalTags": { "team": "x".repeat(256) } }),
            ["spec.additionalTags.team", "256"],
        ),
        create(
            plane,
            json!({ "additionalTags": too_many_tags }),
            json!({ "additionalTags": enough_tags }),
            ["spec.additionalTags", "at most 50"],
        ),
        create(
            plane,
            json!({ "variables": { "1st": "x" } }),
            json!({ "variables": { "first": "x", "vpc_subnets": "[]" } }),
            [
                "spec.variables",
                "begin with a letter or an underscore, such as instance_type",
            ],
        ),
        create(
            plane,
            json!({ "variables": { "kubernetes_version": "1.30" } }),
            json!({ "variables": { "endpoint": "x", "my_tags": "x" } }),
            [
                "spec.variables",
                "may not set cluster_name, kubernetes_version, region, vpc_id, addons, tags, WORKSPACE_NAME, or names that begin with endpoint_ or tags_",
                "rename the variable",
            ],
        ),
        create(
            plane,
            json!({ "variables": { "cluster_name": "x" } }),
            json!({}),
            ["may not set cluster_name"],
        ),
        create(
            plane,
            json!({ "variables": { "region": "x" } }),
            json!({}),
            ["may not set cluster_name"],
        ),
        create(
            plane,
            json!({ "variables": { "vpc_id": "x" } }),
            json!({}),
            ["may not set cluster_name"],
        ),
        create(
            plane,
            json!({ "variables": { "addons": "x" } }),
            json!({}),
            ["may not set cluster_name"],
        ),
        create(
            plane,
            json!({ "variables": { "tags": "x" } }),
            json!({}),
            ["may not set cluster_name"],
        ),
        create(
            plane,
            json!({ "variables": { "WORKSPACE_NAME": "x" } }),
            json!({}),
            ["may not set cluster_name"],
        ),
        create(
            plane,
            json!({ "variables": { "endpoint_public_access": "true" } }),
            json!({}),
            ["begin with endpoint_ or tags_"],
        ),
        create(
            plane,
            json!({ "variables": { "tags_team": "x" } }),
            json!({}),
            ["begin with endpoint_ or tags_"],
        ),
    ]
}

/// The rules that one kind has alone.
fn rows_of_one_kind() -> Vec<Row> {
    let cluster = "CAPTCluster";
    let plane = "CAPTControlPlane";
    let template = "WorkspaceTemplate";
    let apply = "WorkspaceTemplateApply";
    let mut rows = Vec::new();
    for kind in [cluster, plane] {
        for host in [
            "https://api.example.com",
            "api.example.com:443",
            "api.example.com/path",
            "[2001:db8::1]",
            "",
        ] {
            for good in ["api.example.com", "10.0.0.1", "2001:db8::1"] {
                rows.push(create(
                    kind,
                    json!({ "controlPlaneEndpoint": { "host": host, "port": 443 } }),
                    json!({ "controlPlaneEndpoint": { "host": good, "port": 443 } }),
                    [
                        "spec.controlPlaneEndpoint.host",
                        "without scheme, port and path: api.example.com, not https://api.example.com:443",
                    ],
                ));
            }
        }
        for (port, says) in [
            (0, "greater than or equal to 1"),
            (65536, "less than or equal to 65535"),
        ] {
            rows.push(create(
                kind,
                json!({ "controlPlaneEndpoint": { "host": "h", "port": port } }),
                json!({ "controlPlaneEndpoint": { "host": "h", "port": 65535 } }),
                ["spec.controlPlaneEndpoint.port", says],
            ));
        }
    }
    for version in ["1", "latest", "1.31.0-eks-1", "v1.31+x", "1.031", "v 1.31", ""] {
        for good in ["1.31", "v1.31", "v1.31.2"] {
            rows.push(create(
                plane,
                json!({ "version": version }),
                json!({ "version": good }),
                [
                    "spec.version",
                    "must be a Kubernetes version such as 1.31, v1.31 or v1.31.2",
                ],
            ));
        }
    }
    rows.push(create(
        plane,
        json!({ "version": null }),
        json!({}),
        ["spec.version", "Required value"],
    ));
    for (bad, good) in [("1.30", "1.31"), ("v1.30.9", "1.32"), ("1.9", "v1.31.0")] {
        rows.push(update(
            plane,
            json!({ "version": "v1.31.2" }),
            json!({ "version": bad }),
            json!({ "version": good }),
            [
                "spec.version",
                "cannot go below the minor version that the control plane runs",
                "set it to that minor version or a newer one",
            ],
        ));
    }

    let for_provider = |fields: Value| json!({ "template": { "spec": { "forProvider": fields } } });
    rows.extend([
        create(template, for_provider(json!({ "source": null })), json!({}), ["spec.template.spec.forProvider.source", "Required value"]),
        create(template, for_provider(json!({ "module": null })), json!({}), ["spec.template.spec.forProvider.module", "Required value"]),
        create(
            template,
            for_provider(json!({ "source": "Git" })),
            for_provider(json!({ "source": "Remote" })),
            ["spec.template.spec.forProvider.source", "\"Remote\", \"Inline\", \"Flux\""],
        ),
        create(
            template,
            json!({ "writeConnectionSecretToRef": { "name": "My Secret" } }),
            json!({ "writeConnectionSecretToRef": { "name": "${cluster_name}-eks-connection" } }),
            ["spec.writeConnectionSecretToRef.name", "such as my-secret; a variable is written ${name}"],
        ),
        create(
            template,
            json!({ "writeConnectionSecretToRef": { "name": "a", "namespace": "$ns" } }),
            json!({ "writeConnectionSecretToRef": { "name": "a", "namespace": "${ns}" } }),
            ["spec.writeConnectionSecretToRef.namespace", "such as team-a; a variable is written ${name}; leave it out for the apply's own namespace"],
        ),
        create(
            template,
            for_provider(json!({ "env": [{ "name": "A", "secretKeyRef": { "name": "Bad", "key": "k" } }] })),
            for_provider(json!({ "env": [{ "name": "A", "secretKeyRef": { "name": "good-${x}", "key": "k" } }] })),
            ["spec.template.spec.forProvider.env[0].secretKeyRef.name", "a variable is written ${name}"],
        ),
        create(
            template,
            for_provider(json!({ "varFiles": [{ "source": "SecretKey", "secretKeyRef": { "name": "s" } }] })),
            for_provider(json!({ "varFiles": [{ "source": "SecretKey", "secretKeyRef": { "name": "s", "key": "k" } }] })),
            ["spec.template.spec.forProvider.varFiles[0].secretKeyRef.key", "Required value"],
        ),
        create(
            apply,
            json!({ "templateRef": { "name": "no_name" } }),
            json!({ "templateRef": { "name": "name" } }),
            ["spec.templateRef.name", "such as my-template"],
        ),
        create(
            apply,
            json!({ "waitForSecrets": [{ "name": "s", "namespace": "N" }] }),
            json!({ "waitForSecrets": [{ "name": "s", "namespace": "n" }, { "name": "t" }] }),
            ["spec.waitForSecrets[0].namespace", "such as team-a"],
        ),
        create(
            apply,
            json!({ "waitForWorkspaces": [{ "name": "a/b" }] }),
            json!({ "waitForWorkspaces": [{ "name": "a-b" }] }),
            ["spec.waitForWorkspaces[0].name", "must be the name of a Kubernetes object"],
        ),
        create(
            apply,
            json!({ "writeConnectionSecretToRef": { "name": "${x}" } }),
            json!({ "writeConnectionSecretToRef": { "name": "x" } }),
            ["spec.writeConnectionSecretToRef.name", "must be the name of a Kubernetes object"],
        ),
        create(
            apply,
            json!({ "variables": { "var.x": "v" } }),
            json!({ "variables": { "x": "v", "tags_kubernetes.io/cluster/demo": "owned", "vpc_id": "vpc-1", "cluster_name": "c" } }),
            ["spec.variables", "tags_<key> may hold the key of an AWS tag"],
        ),
        create(
            apply,
            json!({ "variables": { "WORKSPACE_NAME": "v" } }),
            json!({ "variables": { "workspace_name": "v" } }),
            ["spec.variables", "may not set WORKSPACE_NAME: it always is the name of the Workspace; rename the variable"],
        ),
        create(
            "CAPTClusterTemplate",
            json!({ "template": { "spec": { "controlPlaneEndpoint": { "host": "h", "port": 443 } } } }),
            json!({ "template": { "metadata": { "labels": { "a": "b" }, "annotations": { "c": "d" } } } }),
            ["spec.template.spec", "controlPlaneEndpoint must be left out of a template", "set it on the CAPTCluster"],
        ),
        create(
            "CAPTControlPlaneTemplate",
            json!({ "template": { "spec": { "controlPlaneEndpoint": { "host": "h", "port": 443 } } } }),
            json!({}),
            ["spec.template.spec", "controlPlaneEndpoint must be left out of a template"],
        ),
        update(
            "CAPTCluster",
            json!({ "vpcWorkspaceName": "w" }),
            json!({ "region": "eu-west-2" }),
            json!({ "variables": { "a": "b" } }),
            ["spec.region", "cannot be changed", "delete the object and create another one"],
        ),
        update(
            "CAPTControlPlane",
            json!({ "workspaceTemplateStatus": { "workspaceName": "w" } }),
            json!({ "controlPlaneConfig": { "region": "eu-west-2" } }),
            json!({ "variables": { "a": "b" } }),
            ["spec.controlPlaneConfig.region", "cannot be changed", "delete the Cluster and create another one"],
        ),
        // Before anything is made a mistake is only a mistake.
        update(
            "CAPTCluster",
            json!({ "ready": false }),
            json!({ "region": "nowhere" }),
            json!({ "region": "eu-west-2" }),
            ["region must be the name of an AWS region"],
        ),
        update(
            "CAPTClusterTemplate",
            Value::Null,
            json!({ "template": { "spec": { "region": "eu-west-2" } } }),
            json!({ "template": { "metadata": { "labels": { "a": "b" } } } }),
            ["spec.template.spec", "cannot be changed", "create a new CAPTClusterTemplate and refer to that"],
        ),
        update(
            "CAPTControlPlaneTemplate",
            Value::Null,
            json!({ "template": { "spec": { "variables": { "a": "b" } } } }),
            json!({ "template": { "metadata": { "annotations": { "a": "b" } } } }),
            ["spec.template.spec", "cannot be changed", "create a new CAPTControlPlaneTemplate and refer to that"],
        ),
    ]);
    rows.extend(rows_of_tenants());
    for kind in ["CAPTClusterTemplate", "CAPTControlPlaneTemplate"] {
        rows.push(create(
            kind,
            json!({ "template": { "spec": { "controlPlaneEndpoint": { "host": "https://h", "port": 443 } } } }),
            json!({}),
            [
                "spec.template.spec.controlPlaneEndpoint.host",
                "without scheme, port and path",
            ],
        ));
    }
    rows
}

fn rows_of_tenants() -> Vec<Row> {
    let tenant = "Tenant";
    let admin = |admin: Value| json!({ "admin": admin });
    vec![
        create(
            tenant,
            json!({ "namespacePrefix": null }),
            json!({ "namespacePrefix": "" }),
            ["a Tenant whose name has dots needs spec.namespacePrefix"],
        ),
        create(
            tenant,
            json!({ "namespacePrefix": "Team_A-" }),
            json!({ "namespacePrefix": "team-a-" }),
            [
                "spec.namespacePrefix",
                "must be lower-case letters, digits and dashes",
                "such as team-a-",
            ],
        ),
        create(
            tenant,
            json!({ "namespaces": ["team.dev"] }),
            json!({ "namespaces": ["dev", "prod"] }),
            [
                "spec.namespaces[0]",
                "must be lower-case letters, digits and dashes",
                "such as dev",
            ],
        ),
        create(
            tenant,
            json!({ "namespaces": ["n".repeat(59)] }),
            json!({ "namespaces": ["n".repeat(58)] }),
            ["spec.namespaces", "at most 63 characters, its prefix included"],
        ),
        create(
            tenant,
            json!({ "namespaces": ["dev", "dev"] }),
            json!({ "namespaces": ["dev"] }),
            ["spec.namespaces[1]", "Duplicate value"],
        ),
        create(
            tenant,
            admin(json!({ "kind": "Person", "name": "ann" })),
            admin(json!({ "kind": "User", "name": "ann" })),
            ["spec.admin.kind", "\"User\", \"Group\", \"ServiceAccount\""],
        ),
        create(
            tenant,
            admin(json!({ "kind": "Group", "name": "" })),
            admin(json!({ "kind": "Group", "name": "platform:team a" })),
            ["spec.admin.name"],
        ),
        create(
            tenant,
            admin(json!({ "kind": "ServiceAccount", "name": "ci" })),
            admin(json!({ "kind": "ServiceAccount", "name": "ci", "namespace": "build", "apiGroup": "" })),
            ["spec.admin", "must have a namespace when its kind is ServiceAccount"],
        ),
        create(
            tenant,
            admin(json!({ "kind": "Group", "name": "team-a", "namespace": "build" })),
            admin(json!({ "kind": "Group", "name": "team-a", "apiGroup": "rbac.authorization.k8s.io" })),
            ["spec.admin", "and none when it is User or Group"],
        ),
        create(
            tenant,
            admin(json!({ "kind": "ServiceAccount", "name": "ci", "namespace": "Build" })),
            admin(json!({ "kind": "ServiceAccount", "name": "ci", "namespace": "build" })),
            ["spec.admin.namespace", "must be that of the ServiceAccount"],
        ),
        create(
            tenant,
            admin(json!({ "kind": "User", "name": "ann", "apiGroup": "v1" })),
            admin(json!({ "kind": "User", "name": "ann" })),
            [
                "spec.admin",
                "must be rbac.authorization.k8s.io for a User or Group",
                "leave it out",
            ],
        ),
        create(
            tenant,
            json!({ "deletionPolicy": "Orphan" }),
            json!({ "deletionPolicy": "Block" }),
            ["spec.deletionPolicy", "\"Cascade\", \"Block\""],
        ),
        update(
            tenant,
            Value::Null,
            json!({ "namespacePrefix": "other-" }),
            json!({ "namespaces": ["dev"] }),
            ["namespacePrefix cannot be changed", "create another Tenant"],
        ),
    ]
}

fn rows() -> Vec<Row> {
    let mut rows = rows_with_templates();
    for row in rows_with_templates() {
        let kind = if row.kind == "CAPTCluster" {
            "CAPTClusterTemplate"
        } else {
            "CAPTControlPlaneTemplate"
        };
        let nested = |spec: Value| json!({ "template": { "spec": spec } });
        let says = row.says.iter().map(|says| match says.strip_prefix("spec") {
            Some(rest) if rest.is_empty() || rest.starts_with('.') => format!("spec.template.spec{rest}"),
            _ => says.clone(),
        });
        rows.push(Row {
            kind,
            existing: None,
            bad: nested(row.bad),
            good: nested(row.good),
            says: says.collect(),
        });
    }
    rows.extend(rows_of_one_kind());
    rows
}

struct Server {
    client: Client,
    namespace: String,
}

impl Server {
    fn api(&self, kind: &str) -> Result<(Api<DynamicObject>, ApiResource)> {
        let crd = crd::all()
            .into_iter()
            .find(|crd| crd.spec.names.kind == kind)
            .context("no such kind")?;
        let resource = ApiResource::from_gvk_with_plural(
            &GroupVersionKind::gvk(&crd.spec.group, capt_api::names::API_VERSION, kind),
            &crd.spec.names.plural,
        );
        let api = match crd.spec.scope.as_str() {
            "Cluster" => Api::all_with(self.client.clone(), &resource),
            _ => Api::namespaced_with(self.client.clone(), &self.namespace, &resource),
        };
        Ok((api, resource))
    }

    /// The plain object of the kind with a merge patch on its spec, created but not kept unless asked for.
    async fn create(&self, kind: &str, patch: &Value, keep: bool) -> Result<kube::Result<DynamicObject>> {
        let (api, resource) = self.api(kind)?;
        let mut spec = plain(kind);
        json_patch::merge(&mut spec, patch);
        let mut object = DynamicObject::new("", &resource).data(json!({ "spec": spec }));
        object.metadata.name = None;
        // A dot is allowed in every name, and has its own rule in one.
        object.metadata.generate_name = Some("api.rule-".into());
        // The controllers of the environment would put the statuses right that these tests make up.
        object
            .annotations_mut()
            .insert(annotation::PAUSED.into(), String::new());
        Ok(api
            .create(
                &PostParams {
                    dry_run: !keep,
                    ..PostParams::default()
                },
                &object,
            )
            .await)
    }

    /// The kind's plain object, existing and with this status.
    async fn existing(&self, kind: &str, status: &Value) -> Result<String> {
        let (api, _) = self.api(kind)?;
        let name = self.create(kind, &json!({}), true).await??.name_any();
        if !status.is_null() {
            let patch = Patch::Merge(json!({ "status": status }));
            api.patch_status(&name, &PatchParams::default(), &patch).await?;
        }
        Ok(name)
    }

    async fn update(&self, kind: &str, name: &str, spec: &Value) -> Result<kube::Result<DynamicObject>> {
        let (api, _) = self.api(kind)?;
        let params = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        Ok(api.patch(name, &params, &Patch::Merge(json!({ "spec": spec }))).await)
    }
}

/// The refusal of a row's bad object, after its good one was accepted.
async fn refusal(server: &Server, row: &Row) -> Result<String> {
    let (bad, good) = match &row.existing {
        None => (
            server.create(row.kind, &row.bad, false).await?,
            server.create(row.kind, &row.good, false).await?,
        ),
        Some(status) => {
            let name = server.existing(row.kind, status).await?;
            (
                server.update(row.kind, &name, &row.bad).await?,
                server.update(row.kind, &name, &row.good).await?,
            )
        }
    };
    good.with_context(|| format!("{} with {} was refused", row.kind, row.good))?;
    match bad {
        Ok(_) => bail!("{} with {} was accepted", row.kind, row.bad),
        Err(kube::Error::Api(status)) => {
            ensure!(status.code == 422, "{} with {}: {status:?}", row.kind, row.bad);
            for says in &row.says {
                ensure!(
                    status.message.contains(says.as_str()),
                    "{} with {}: {:?} is not in {:?}",
                    row.kind,
                    row.bad,
                    says,
                    status.message
                );
            }
            Ok(status.message.clone())
        }
        Err(error) => Err(error.into()),
    }
}

/// The messages of all rules below a schema.
fn messages(schema: &JSONSchemaProps, found: &mut BTreeSet<String>) {
    found.extend(
        schema
            .x_kubernetes_validations
            .iter()
            .flatten()
            .filter_map(|rule| rule.message.clone()),
    );
    for property in schema.properties.iter().flat_map(|properties| properties.values()) {
        messages(property, found);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
        messages(items, found);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &schema.additional_properties {
        messages(values, found);
    }
}

#[tokio::test]
async fn every_rule_refuses_and_says_how_to_mend() -> Result<()> {
    let client = testing::client().await?;
    let server = Server {
        namespace: testing::namespace(&client, "api-rules").await?,
        client,
    };

    let answers: Vec<(&str, Result<String>)> = stream::iter(rows())
        .map(async |row| (row.kind, refusal(&server, &row).await))
        .buffer_unordered(8)
        .collect()
        .await;
    let mut said: BTreeSet<(&str, String)> = BTreeSet::new();
    let mut wrong = Vec::new();
    for (kind, answer) in answers {
        match answer {
            Ok(message) => _ = said.insert((kind, message)),
            Err(error) => wrong.push(format!("{error:#}")),
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));

    for crd in crd::all() {
        let kind = crd.spec.names.kind.as_str();
        let mut rules = BTreeSet::new();
        for version in &crd.spec.versions {
            if let Some(schema) = version
                .schema
                .as_ref()
                .and_then(|schema| schema.open_api_v3_schema.as_ref())
            {
                messages(schema, &mut rules);
            }
        }
        ensure!(!rules.is_empty(), "{kind} has no rules");
        for rule in rules {
            let exercised = said.iter().any(|(of, message)| *of == kind && message.contains(&rule));
            ensure!(exercised, "{kind}: no row breaks the rule {rule:?}");
        }
    }
    Ok(())
}

/// The version rule looks at spec and status together; whatever the two say, only a change of the version is judged.
#[tokio::test]
async fn the_version_rule_never_stands_in_the_way_of_anything_else() -> Result<()> {
    let client = testing::client().await?;
    let server = Server {
        namespace: testing::namespace(&client, "api-version").await?,
        client,
    };
    let kind = "CAPTControlPlane";
    let (api, _) = server.api(kind)?;

    // Without a status every version is free.
    let name = server.existing(kind, &Value::Null).await?;
    server.update(kind, &name, &json!({ "version": "1.20" })).await??;

    // spec 1.31, status ahead of it, behind it, and of a form that the rule cannot read.
    for version in ["v1.33.0", "1.31", "1.9", "unknown", "v2.0"] {
        let name = server.existing(kind, &json!({ "version": version })).await?;
        let merge = |body: Value| Patch::Merge(body);
        api.patch_status(
            &name,
            &PatchParams::default(),
            &merge(json!({ "status": { "ready": true } })),
        )
        .await
        .with_context(|| format!("status update with status.version {version}"))?;
        let apply = json!({
            "apiVersion": "controlplane.cluster.x-k8s.io/v1beta1", "kind": kind,
            "status": { "version": version, "endpoint": "h:443" },
        });
        api.patch_status(&name, &PatchParams::apply("test").force(), &Patch::Apply(apply))
            .await?;
        let annotated = json!({ "metadata": { "annotations": { "a": version }, "finalizers": ["example.com/test"] } });
        api.patch(&name, &PatchParams::default(), &merge(annotated)).await?;
        server
            .update(kind, &name, &json!({ "variables": { "a": "b" } }))
            .await??;
        server
            .update(
                kind,
                &name,
                &json!({ "version": "1.31", "additionalTags": { "a": "b" } }),
            )
            .await??;
        let finalizers = json!({ "metadata": { "finalizers": null } });
        api.patch(&name, &PatchParams::default(), &merge(finalizers)).await?;
    }

    // An upgrade that failed can be taken back, also by patch version, but not below what runs.
    let name = server.existing(kind, &json!({ "version": "1.31" })).await?;
    api.patch(
        &name,
        &PatchParams::default(),
        &Patch::Merge(json!({ "spec": { "version": "v1.32.0" } })),
    )
    .await?;
    for back in ["1.31", "v1.31.0", "v1.31.9"] {
        server
            .update(kind, &name, &json!({ "version": back }))
            .await?
            .with_context(|| back.to_owned())?;
    }
    ensure!(
        server
            .update(kind, &name, &json!({ "version": "1.30" }))
            .await?
            .is_err(),
        "1.30 below 1.31 was accepted"
    );

    // Ten is more than nine, and a new major version is more than any minor.
    let name = server.existing(kind, &json!({ "version": "1.9" })).await?;
    server.update(kind, &name, &json!({ "version": "1.10" })).await??;
    server.update(kind, &name, &json!({ "version": "2.0" })).await??;
    let name = server.existing(kind, &json!({ "version": "2.0" })).await?;
    ensure!(
        server
            .update(kind, &name, &json!({ "version": "1.99" }))
            .await?
            .is_err(),
        "1.99 below 2.0 was accepted"
    );
    Ok(())
}
