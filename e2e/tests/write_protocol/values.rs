//! Single values that are shared with others and decided by value.

use anyhow::Result;
use capt_api::Cluster;
use capt_api::names::Manager;
use capt_runtime::apply::{Edit, Planned};
use capt_runtime::error::Race;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::world::{WHY, World, assert_lost, written};

#[tokio::test]
async fn the_clusters_endpoint_is_decided_by_value() -> Result<()> {
    const ENDPOINT: &[&str] = &["spec", "controlPlaneEndpoint"];
    let world = World::new("wp-endpoint").await?;
    let clusters = world.as_manager::<Cluster>(Manager::Endpoint);
    let endpoint = |host: &str| json!({"host": host, "port": 443});
    let body = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": {"name": "c", "namespace": world.namespace},
        // Paused, so that Cluster API itself does not write the endpoint.
        "spec": {
            "paused": true,
            "clusterNetwork": {"serviceDomain": "cluster.local"},
            "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "CAPTCluster", "name": "none"},
        },
    });
    let kind = ApiResource::erase::<Cluster>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(world.client.clone(), &world.namespace, &kind);
    let seen: Cluster = api
        .create(&PostParams::default(), &serde_json::from_value(body)?)
        .await?
        .try_parse()?;
    let planned = Planned::new(&seen)?;

    // Cluster API may write to the Cluster at any time: the guard is the value, so that is no lost race.
    api.patch(
        "c",
        &PatchParams::default(),
        &Patch::Merge(json!({"metadata": {"labels": {"touched": "yes"}}})),
    )
    .await?;
    let add = Edit::new().only_if(ENDPOINT, None).set(ENDPOINT, endpoint("a"));
    let now = written(clusters.patch(&planned, add.clone(), WHY).await?)?;
    assert_eq!(
        now.spec.control_plane_endpoint.as_ref().map(|e| e.host.as_str()),
        Some("a")
    );
    assert_lost(clusters.patch(&planned, add, WHY).await, Race::Changed)?;

    let replace = Edit::new()
        .only_if(ENDPOINT, Some(endpoint("a")))
        .set(ENDPOINT, endpoint("b"));
    written(clusters.patch(&planned, replace.clone(), WHY).await?)?;
    assert_lost(clusters.patch(&planned, replace, WHY).await, Race::Changed)?;

    let clear = |host: &str| Edit::new().only_if(ENDPOINT, Some(endpoint(host))).remove(ENDPOINT);
    assert_lost(clusters.patch(&planned, clear("a"), WHY).await, Race::Changed)?;
    written(clusters.patch(&planned, clear("b"), WHY).await?)?;
    let live = api.get("c").await?;
    assert!(live.data["spec"].get("controlPlaneEndpoint").is_none());
    assert_eq!(
        live.data["spec"]["clusterNetwork"]["serviceDomain"], "cluster.local",
        "fields that we do not know"
    );

    // A failure that core copied into the status, cleared by its text.
    const FAILURE: &[&str] = &["status", "deprecated", "v1beta1", "failureMessage"];
    let failed = json!({"status": {"deprecated": {"v1beta1": {"failureMessage": "ours"}}}});
    api.patch_status("c", &PatchParams::default(), &Patch::Merge(failed))
        .await?;
    let clear = |text: &str| Edit::new().only_if(FAILURE, Some(json!(text))).remove(FAILURE);
    assert_lost(
        clusters.patch_status(&planned, clear("another"), WHY).await,
        Race::Changed,
    )?;
    written(clusters.patch_status(&planned, clear("ours"), WHY).await?)?;

    assert!(
        clusters
            .patch(&planned, Edit::new().only_if(ENDPOINT, None), WHY)
            .await?
            .is_unchanged(),
        "no change, no request"
    );
    Ok(())
}
