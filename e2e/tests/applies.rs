//! WorkspaceTemplateApplies on the real provider and the real Terraform: what capt-workspace-controller promises.

use anyhow::{Context, Result};
use capt_e2e::testing::{self, condition, create, message, objects, until, until_gone};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

const GROUP: &str = "infrastructure.cluster.x-k8s.io/v1beta1";
/// One resource that does nothing, and outputs that show what reached Terraform.
const MODULE: &str = r#"
variable "colour" { type = string }
variable "secret" {
  type    = string
  default = "none"
}
resource "terraform_data" "it" { input = var.colour }
output "colour" { value = terraform_data.it.output }
output "list" { value = [1, 2] }
output "hidden" {
  value     = var.secret
  sensitive = true
}
"#;

/// A namespace with a template and the means to use it.
struct Bench {
    client: Client,
    namespace: String,
}

impl Bench {
    async fn new(prefix: &str) -> Result<Self> {
        let client = testing::client().await?;
        let namespace = testing::namespace(&client, prefix).await?;
        Ok(Self { client, namespace })
    }

    async fn template(&self, name: &str, parameters: Value) -> Result<()> {
        let mut all = json!({"source": "Inline", "module": MODULE, "vars": [{"key": "colour", "value": "${colour}"}]});
        let fields = all.as_object_mut().context("an object")?;
        fields.extend(parameters.as_object().cloned().unwrap_or_default());
        let template = json!({
            "apiVersion": GROUP, "kind": "WorkspaceTemplate", "metadata": {"name": name},
            "spec": {"template": {"spec": {"forProvider": all}}},
        });
        create(&self.client, Some(&self.namespace), template).await?;
        Ok(())
    }

    async fn apply(&self, name: &str, extra: Value) -> Result<()> {
        let mut spec = json!({"templateRef": {"name": "template"}, "variables": {"colour": "red"}});
        let fields = spec.as_object_mut().context("an object")?;
        fields.extend(extra.as_object().cloned().unwrap_or_default());
        let apply =
            json!({"apiVersion": GROUP, "kind": "WorkspaceTemplateApply", "metadata": {"name": name}, "spec": spec});
        create(&self.client, Some(&self.namespace), apply).await?;
        Ok(())
    }

    fn applies(&self) -> Api<DynamicObject> {
        objects(&self.client, GROUP, "WorkspaceTemplateApply", Some(&self.namespace))
    }

    fn workspaces(&self) -> Api<DynamicObject> {
        objects(&self.client, "tf.upbound.io/v1beta1", "Workspace", None)
    }

    async fn secret(&self, name: &str, value: &str) -> Result<()> {
        let secret =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"value": value}});
        create(&self.client, Some(&self.namespace), secret).await?;
        Ok(())
    }

    async fn patch(&self, name: &str, patch: Value) -> Result<()> {
        self.applies()
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    /// Ready for the spec as it stands.
    async fn ready(&self, name: &str) -> Result<DynamicObject> {
        until(&self.applies(), name, "ready", is_ready).await
    }

    async fn says(&self, name: &str, type_: &str, said: &str) -> Result<DynamicObject> {
        until(&self.applies(), name, &format!("{type_}={said}"), |apply| {
            condition(apply, type_) == said
        })
        .await
    }
}

fn is_ready(apply: &DynamicObject) -> bool {
    condition(apply, "Ready") == "True/Available"
        && apply.data.pointer("/status/observedGeneration").and_then(Value::as_i64) == apply.metadata.generation
}

fn output<'a>(apply: &'a DynamicObject, name: &str) -> Option<&'a str> {
    apply.data.pointer("/status/outputs")?.get(name)?.as_str()
}

fn workspace_name(apply: &DynamicObject) -> Result<String> {
    Ok(apply
        .data
        .pointer("/status/workspaceName")
        .and_then(Value::as_str)
        .context("no Workspace")?
        .to_owned())
}

#[tokio::test]
async fn a_template_that_comes_late_is_applied_changed_and_destroyed() -> Result<()> {
    let bench = Bench::new("late").await?;
    bench
        .apply("it", json!({"writeConnectionSecretToRef": {"name": "outputs"}}))
        .await?;
    let waiting = bench.says("it", "Waiting", "True/WaitingForTemplate").await?;
    assert!(
        message(&waiting, "Waiting").contains("template does not exist"),
        "{}",
        message(&waiting, "Waiting")
    );

    bench.template("template", json!({})).await?;
    let ready = bench.ready("it").await?;
    assert_eq!(
        (
            output(&ready, "colour"),
            output(&ready, "list"),
            output(&ready, "hidden")
        ),
        (Some("red"), Some("[1,2]"), None)
    );
    let name = workspace_name(&ready)?;
    let workspace = bench.workspaces().get(&name).await?;
    assert_eq!(workspace.annotations().get("crossplane.io/external-name"), Some(&name));
    assert!(
        workspace
            .finalizers()
            .iter()
            .all(|finalizer| finalizer.contains("crossplane")),
        "none of ours on a Workspace"
    );

    bench
        .patch("it", json!({"spec": {"variables": {"colour": "blue"}}}))
        .await?;
    let changed = until(&bench.applies(), "it", "blue", |apply| {
        is_ready(apply) && output(apply, "colour") == Some("blue")
    })
    .await?;
    assert_eq!(workspace_name(&changed)?, name, "changed in place");

    bench.applies().delete("it", &DeleteParams::background()).await?;
    until_gone(&bench.applies(), "it").await?;
    assert!(
        bench.workspaces().get_opt(&name).await?.is_none(),
        "the Workspace goes first"
    );
    Ok(())
}

#[tokio::test]
async fn what_is_waited_for_is_named_one_by_one() -> Result<()> {
    let bench = Bench::new("waits").await?;
    bench.template("template", json!({})).await?;
    bench
        .apply(
            "second",
            json!({"waitForSecrets": [{"name": "a"}, {"name": "b"}], "waitForWorkspaces": [{"name": "first"}]}),
        )
        .await?;
    let waiting = bench.says("second", "Waiting", "True/WaitingForSecrets").await?;
    assert!(
        ["/a", "/b"]
            .iter()
            .all(|name| message(&waiting, "Waiting").contains(name)),
        "{}",
        message(&waiting, "Waiting")
    );
    bench.secret("a", "1").await?;
    bench.secret("b", "2").await?;
    bench.says("second", "Waiting", "True/WaitingForWorkspaces").await?;
    bench.apply("first", json!({})).await?;
    bench.ready("first").await?;
    bench.ready("second").await?;
    Ok(())
}

#[tokio::test]
async fn a_rotated_input_reaches_terraform_and_outlives_its_reader() -> Result<()> {
    let bench = Bench::new("inputs").await?;
    let env = json!([{"name": "TF_VAR_secret", "secretKeyRef": {"name": "token", "key": "value"}}]);
    bench.template("template", json!({"env": env})).await?;
    bench
        .apply("it", json!({"writeConnectionSecretToRef": {"name": "outputs"}}))
        .await?;
    bench.says("it", "Waiting", "True/WaitingForInputs").await?;
    bench.secret("token", "one").await?;
    let first = bench.ready("it").await?;
    let revision = |apply: &DynamicObject| {
        apply
            .data
            .pointer("/status/lastAppliedRevision")
            .and_then(Value::as_str)
            .map(str::to_owned)
    };

    let secrets = objects(&bench.client, "v1", "Secret", Some(&bench.namespace));
    let rotated = json!({"stringData": {"value": "two"}});
    secrets
        .patch("token", &PatchParams::default(), &Patch::Merge(rotated))
        .await?;
    let before = revision(&first);
    until(&bench.applies(), "it", "applied anew", |apply| {
        is_ready(apply) && revision(apply) != before
    })
    .await?;
    // The connection secret is written before the Workspace is called ready.
    let outputs = secrets.get("outputs").await?;
    assert_eq!(
        outputs.data.pointer("/data/hidden"),
        Some(&json!("dHdv")),
        "two, in base64"
    );

    // Deleting the input does not take it away from the destroy that will need it.
    secrets.delete("token", &DeleteParams::background()).await?;
    assert!(secrets.get("token").await?.metadata.deletion_timestamp.is_some());
    bench.applies().delete("it", &DeleteParams::background()).await?;
    until_gone(&bench.applies(), "it").await?;
    until_gone(&secrets, "token").await?;
    Ok(())
}

#[tokio::test]
async fn terraforms_error_is_shown_and_goes_when_it_is_over() -> Result<()> {
    let bench = Bench::new("broken").await?;
    bench.template("template", json!({"module": format!("{MODULE}\nresource \"terraform_data\" \"check\" {{\n  lifecycle {{\n    precondition {{\n      condition     = var.colour != \"red\"\n      error_message = \"Red is sold out.\"\n    }}\n  }}\n}}\n")})).await?;
    bench.apply("it", json!({})).await?;
    // Terraform's backend may fail first: several that start at the same moment make the same lock.
    let failed = until(&bench.applies(), "it", "failed by its own condition", |apply| {
        condition(apply, "Ready") == "False/TerraformFailed" && message(apply, "Ready").contains("Red is sold out.")
    })
    .await?;
    assert!(
        failed
            .data
            .pointer("/status/lastFailureMessage")
            .and_then(Value::as_str)
            .is_some_and(|text| text.contains("Red is sold out."))
    );
    bench
        .patch("it", json!({"spec": {"variables": {"colour": "green"}}}))
        .await?;
    let healed = bench.ready("it").await?;
    assert!(
        healed.data.pointer("/status/lastFailureMessage").is_none(),
        "the failure is over"
    );
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_rendered_names_the_variable() -> Result<()> {
    let bench = Bench::new("render").await?;
    bench
        .template("template", json!({"vars": [{"key": "colour", "value": "${color}"}]}))
        .await?;
    bench.apply("unresolved", json!({})).await?;
    let unresolved = bench.says("unresolved", "Ready", "False/UnresolvedVariable").await?;
    assert!(
        message(&unresolved, "Ready").contains("needs the variable color")
            && message(&unresolved, "Ready").contains("known are colour")
    );
    bench
        .template(
            "code",
            json!({"module": format!("{MODULE}\nlocals {{ x = ${{colour}} }}\n")}),
        )
        .await?;
    bench.apply("unsafe", json!({"templateRef": {"name": "code"}})).await?;
    bench.says("unsafe", "Ready", "False/UnsafeVariable").await?;
    bench
        .apply(
            "elsewhere",
            json!({"templateRef": {"name": "local-vpc", "namespace": "default"}}),
        )
        .await?;
    bench
        .says("elsewhere", "Ready", "False/CrossNamespaceReference")
        .await?;
    // Nothing of all this became a Workspace, so nothing keeps the applies.
    for name in ["unresolved", "unsafe", "elsewhere"] {
        bench.applies().delete(name, &DeleteParams::background()).await?;
        until_gone(&bench.applies(), name).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_retained_workspace_survives_and_is_taken_up_again() -> Result<()> {
    let bench = Bench::new("retain").await?;
    bench.template("template", json!({})).await?;
    bench.apply("it", json!({"retainWorkspaceOnDelete": true})).await?;
    let name = workspace_name(&bench.ready("it").await?)?;
    let uid = bench.workspaces().get(&name).await?.uid();
    bench.applies().delete("it", &DeleteParams::background()).await?;
    until_gone(&bench.applies(), "it").await?;
    let kept = bench.workspaces().get(&name).await?;
    assert_eq!(kept.data.pointer("/spec/managementPolicies"), Some(&json!(["Observe"])));
    assert_eq!(kept.data.pointer("/spec/deletionPolicy"), Some(&json!("Orphan")));

    bench.apply("it", json!({})).await?;
    assert_eq!(workspace_name(&bench.ready("it").await?)?, name);
    let taken = bench.workspaces().get(&name).await?;
    assert_eq!(taken.uid(), uid, "the same Workspace, with the same state");
    assert_eq!(taken.data.pointer("/spec/managementPolicies"), Some(&json!(["*"])));
    bench.applies().delete("it", &DeleteParams::background()).await?;
    until_gone(&bench.applies(), "it").await?;
    assert!(bench.workspaces().get_opt(&name).await?.is_none());
    Ok(())
}

#[tokio::test]
async fn somebody_elses_workspace_is_not_touched() -> Result<()> {
    let bench = Bench::new("foreign").await?;
    bench.template("template", json!({})).await?;
    let name = capt_api::names::workspace_name(&bench.namespace, "it");
    // Paused, so that the provider does not change it either.
    let foreign = json!({
        "apiVersion": "tf.upbound.io/v1beta1", "kind": "Workspace", "metadata": {"name": name, "annotations": {"crossplane.io/paused": "true"}},
        "spec": {"forProvider": {"source": "Inline", "module": "output \"mine\" { value = 1 }"}},
    });
    let spec = create(&bench.client, None, foreign).await?.data.get("spec").cloned();
    bench.apply("it", json!({})).await?;
    bench.says("it", "Ready", "False/OwnershipConflict").await?;
    bench.applies().delete("it", &DeleteParams::background()).await?;
    until_gone(&bench.applies(), "it").await?;
    let still = bench.workspaces().get(&name).await?;
    assert_eq!(still.data.get("spec").cloned(), spec);
    assert!(still.metadata.deletion_timestamp.is_none());
    bench.workspaces().delete(&name, &DeleteParams::background()).await?;
    Ok(())
}
