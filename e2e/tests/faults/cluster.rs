//! A cluster's life: with a VPC, a control plane, and inputs that Terraform reads.

use anyhow::{Context, Result, ensure};
use capt_e2e::testing::bench::{CORE, INFRASTRUCTURE};
use capt_e2e::testing::{condition, create as make, objects, simulated};
use kube::api::DeleteParams;
use serde_json::json;

use crate::observer::{Id, Turn, World};
use crate::trial::Run;

const CLUSTER: &str = "blue";
pub(crate) const NETWORK: &str = "blue-network";
pub(crate) const SERVICE: &str = "blue-service";
/// What Terraform reads, so that it has to be protected for as long as something can be destroyed.
const INPUTS: &str = "blue-inputs";

/// Templates, inputs and cluster, one after the other, as `kubectl apply` of a directory does.
pub(crate) async fn create(run: &Run<'_>) -> Result<()> {
    let mut wanted = vec![json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": INPUTS},
        "stringData": {"inputs": json!({"environment": "trial"}).to_string()},
    })];
    for mut template in simulated::templates(&run.namespace)? {
        if template.pointer("/metadata/name") == Some(&json!("sim-vpc")) {
            let reference = json!({"namespace": run.namespace, "name": INPUTS, "key": "inputs"});
            let files = json!([{"source": "SecretKey", "format": "JSON", "secretKeyRef": reference}]);
            let spec = json!({"template": {"spec": {"forProvider": {"varFiles": files}}}});
            json_patch::merge(&mut template, &json!({"spec": spec}));
        }
        wanted.push(template);
    }
    wanted.extend(simulated::cluster(CLUSTER, NETWORK, SERVICE, &run.bench.access, 0));
    for object in wanted {
        make(&run.bench.client, Some(&run.namespace), object).await?;
    }
    Ok(())
}

pub(crate) fn is_not_available(world: &World) -> Option<String> {
    let cluster = world.objects.iter().find(|(id, _)| id.kind == "Cluster");
    let state = cluster
        .map(|(_, cluster)| condition(cluster, "Available"))
        .unwrap_or_default();
    (!state.starts_with("True/")).then(|| format!("the Cluster's condition Available is {state:?}"))
}

/// Deletes the Cluster and, when everything has gone with it, what it was made from.
pub(crate) async fn delete(run: &Run<'_>) -> Result<()> {
    let background = DeleteParams::background();
    let api = |api_version: &str, kind: &str| objects(&run.bench.client, api_version, kind, Some(&run.namespace));
    api(CORE, "Cluster").delete(CLUSTER, &background).await?;
    run.until(|world| world.left(is_source))
        .await
        .context("it does not go")?;
    api("v1", "Secret").delete(INPUTS, &background).await?;
    for template in ["sim-eks", "sim-vpc"] {
        api(INFRASTRUCTURE, "WorkspaceTemplate")
            .delete(template, &background)
            .await?;
    }
    run.until(|world| world.left(|_| false))
        .await
        .context("what it was made from does not go")
}

/// The network outlived what stood in it.
pub(crate) fn check_order(world: &World) -> Result<()> {
    let service_gone = world.when(Turn::Gone, "Workspace", SERVICE)?;
    let network_dying = world.when(Turn::Dying, "Workspace", NETWORK)?;
    ensure!(
        service_gone < network_dying,
        "the network was to go at {network_dying}, before the control plane had gone at {service_gone}"
    );
    Ok(())
}

/// What the cluster is made from, and what stays when it goes.
fn is_source(id: &Id) -> bool {
    id.kind == "WorkspaceTemplate" || (id.kind == "Secret" && id.name == INPUTS)
}
