//! What the pods may do: on the machine nothing but run, at the API server what their Roles say.

use anyhow::{Context, Result, bail, ensure};
use capt_e2e::components::CONTROLLER_NAMESPACE;
use capt_e2e::testing::bench::INFRASTRUCTURE;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use serde_json::{Value, json};

use crate::site::{CONTROLLERS, Site, process_of};
use crate::wave::Wave;

/// Nothing of what a process could do on a machine, and no token but its own.
pub(crate) async fn assert_confined(site: &Site) -> Result<()> {
    for controller in CONTROLLERS {
        for pod in site.pods_of(controller).await? {
            let (name, pid) = (pod.name_any(), process_of(&pod)?);
            let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
            let field = |field: &str| {
                let line = status
                    .lines()
                    .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
                line.map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "))
                    .unwrap_or_default()
            };
            ensure!(
                field("Uid") == "65532 65532 65532 65532",
                "{name} runs as {}",
                field("Uid")
            );
            ensure!(
                field("Gid") == "65532 65532 65532 65532",
                "{name} runs in {}",
                field("Gid")
            );
            for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
                ensure!(field(set) == "0000000000000000", "{name} has {set} {}", field(set));
            }
            ensure!(field("NoNewPrivs") == "1", "{name} could gain privileges");
            ensure!(field("Seccomp") == "2", "{name} has no seccomp filter");
            let writable = writable_mounts(pid)?;
            ensure!(writable.is_empty(), "{name} can write to {writable:?}");
            let account = username(site, &token(pid)?).await?;
            let own = format!("system:serviceaccount:{CONTROLLER_NAMESPACE}:{controller}");
            ensure!(account == own, "{name} has the token of {account}");
        }
    }
    Ok(())
}

/// Where a process could leave something; what the kernel itself shows, and the container's own devices and console, apart.
fn writable_mounts(pid: i32) -> Result<Vec<String>> {
    let mounts = std::fs::read_to_string(format!("/proc/{pid}/mountinfo"))?;
    let of_kernel = |place: &str| ["/proc", "/sys", "/dev"].iter().any(|root| place.starts_with(root));
    Ok(mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(4);
            let (place, options) = (fields.next()?, fields.next()?);
            // The files that the kubelet makes for every pod belong to root.
            let made_for_pod = ["/etc/hosts", "/etc/hostname", "/etc/resolv.conf"].contains(&place);
            let writable = options.split(',').any(|option| option == "rw");
            (writable && !of_kernel(place) && !made_for_pod).then(|| place.to_owned())
        })
        .collect())
}

/// The token that a pod was given.
fn token(pid: i32) -> Result<String> {
    let path = format!("/proc/{pid}/root/var/run/secrets/kubernetes.io/serviceaccount/token");
    std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))
}

async fn username(site: &Site, token: &str) -> Result<String> {
    let review = TokenReview {
        spec: TokenReviewSpec {
            token: token.to_owned(),
            ..TokenReviewSpec::default()
        },
        ..TokenReview::default()
    };
    let reviews: Api<TokenReview> = Api::all(site.client.clone());
    let review = reviews.create(&PostParams::default(), &review).await?;
    let user = review.status.and_then(|status| status.user?.username);
    user.context("nobody's token")
}

/// Asks as a pod asks.
async fn client_of(site: &Site, pod: &Pod) -> Result<Client> {
    let mut kubeconfig = Kubeconfig::read_from(site.scratch.environment.kubeconfig())?;
    let token = token(process_of(pod)?)?;
    for user in &mut kubeconfig.auth_infos {
        user.auth_info = Some(serde_json::from_value(json!({ "token": token }))?);
    }
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// Whether something was refused for want of a permission; fails when it was done, or failed otherwise.
fn assert_refused<T>(what: &str, outcome: kube::Result<T>) -> Result<()> {
    match outcome {
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(()),
        Err(error) => bail!("{what} failed, but not for want of a permission: {error}"),
        Ok(_) => bail!("{what} was possible"),
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a node: make test-chart"]
async fn a_release_for_one_namespace_stays_in_it() -> Result<()> {
    let site = Site::build("simulator").await?;
    let (inside, outside) = ("team-a", "team-b");
    let values = json!({ "common": { "replicas": 1 }, "watch": { "namespace": inside } });
    // The Roles are made in that namespace, so it has to be there; the templates need the CRDs.
    site.make_namespace(inside).await?;
    site.install(&values)?;
    site.all_ready(1).await?;
    assert_confined(&site).await?;
    let team_a = Wave::in_namespace(&site, inside).await?;
    site.make_namespace(outside).await?;
    let team_b = Wave::in_namespace(&site, outside).await?;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "private" }, "stringData": { "password": "secret" },
    });
    capt_e2e::testing::create(&site.client, Some(outside), secret).await?;

    team_b.create("other", 1, 0).await?;
    let names = team_a.create("own", 1, 0).await?;
    team_a.available(&names).await?;
    let untouched = team_b.ours(INFRASTRUCTURE, "CAPTCluster").get("other-00").await?;
    ensure!(
        untouched.finalizers().is_empty(),
        "a cluster of another namespace was worked on"
    );

    for controller in CONTROLLERS {
        let [pod] = <[Pod; 1]>::try_from(site.pods_of(controller).await?)
            .map_err(|pods| anyhow::anyhow!("{} pods of {controller}", pods.len()))?;
        let client = client_of(&site, &pod).await?;
        assert_refusals(&client, controller, outside).await?;
    }
    team_a.delete(&names).await?;
    team_a.gone(&names).await
}

/// What none of the controllers may do outside of its namespace, nor to grow beyond itself.
async fn assert_refusals(client: &Client, controller: &str, outside: &str) -> Result<()> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), outside);
    assert_refused(
        &format!("{controller}: reading a Secret of another namespace"),
        secrets.get("private").await,
    )?;
    assert_refused(
        &format!("{controller}: listing Secrets everywhere"),
        Api::<Secret>::all(client.clone()).list(&ListParams::default()).await,
    )?;
    let own: Api<Secret> = Api::namespaced(client.clone(), CONTROLLER_NAMESPACE);
    assert_refused(
        &format!("{controller}: listing Secrets of the release"),
        own.list(&ListParams::default()).await,
    )?;
    let forbidden: [(&str, Value); 5] = [
        (
            "binding itself to everything",
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": "mine" },
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
                "subjects": [{ "kind": "ServiceAccount", "name": controller, "namespace": CONTROLLER_NAMESPACE }],
            }),
        ),
        (
            "giving itself a Role",
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
                "metadata": { "name": "mine", "namespace": CONTROLLER_NAMESPACE },
                "rules": [{ "apiGroups": [""], "resources": ["secrets"], "verbs": ["*"] }],
            }),
        ),
        (
            "running a pod as somebody else",
            json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "mine", "namespace": CONTROLLER_NAMESPACE },
                "spec": { "containers": [{ "name": "c", "image": "x" }], "serviceAccountName": "default" },
            }),
        ),
        (
            "making a cluster elsewhere",
            json!({
                "apiVersion": INFRASTRUCTURE, "kind": "CAPTCluster", "metadata": { "name": "mine", "namespace": outside },
                "spec": { "region": "eu-west-1", "existingVpcId": "vpc-0123456789abcdef0" },
            }),
        ),
        (
            "making a Secret of another cluster",
            json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "mine", "namespace": outside } }),
        ),
    ];
    for (what, object) in forbidden {
        let namespace = object["metadata"]["namespace"].as_str().map(str::to_owned);
        let outcome = capt_e2e::testing::create(client, namespace.as_deref(), object).await;
        let outcome = outcome.map_err(|error| error.downcast::<kube::Error>());
        match outcome {
            Ok(_) => bail!("{controller}: {what} was possible"),
            Err(Ok(error)) => assert_refused::<()>(&format!("{controller}: {what}"), Err(error))?,
            Err(Err(error)) => return Err(error),
        }
    }
    Ok(())
}
