//! Values that are no values of the chart are refused, with words that lead to the mistake.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::helm::{Helm, accepted, chart, refused};

/// Values, and what the refusal must name.
fn mistakes() -> Vec<(Value, &'static [&'static str])> {
    vec![
        (json!({ "replicas": 3 }), &["replicas"]),
        (json!({ "controler": {} }), &["controler"]),
        (
            json!({ "controllers": { "secret": { "enabled": false } } }),
            &["controllers", "secret"],
        ),
        (
            json!({ "controllers": { "secrets": { "replica": 3 } } }),
            &["controllers", "secrets", "replica"],
        ),
        (
            json!({ "controllers": { "endpoint": { "allowExecKubeconfig": true } } }),
            &["endpoint", "allowExecKubeconfig"],
        ),
        (json!({ "common": { "replicas": "3" } }), &["replicas"]),
        (json!({ "common": { "replicas": -1 } }), &["replicas"]),
        (json!({ "common": { "concurrency": 0 } }), &["concurrency"]),
        (
            json!({ "common": { "logFormat": "logfmt" } }),
            &["logFormat", "text", "json"],
        ),
        (
            json!({ "common": { "image": { "repository": "x" } } }),
            &["image", "repository"],
        ),
        (json!({ "common": { "image": { "tag": "a tag" } } }), &["tag"]),
        (
            json!({ "controllers": { "secrets": { "imageDigest": "sha1:00" } } }),
            &["secrets", "imageDigest"],
        ),
        // One digest for all images would be wrong for all but one; so would one account.
        (json!({ "common": { "imageDigest": "" } }), &["common", "imageDigest"]),
        (
            json!({ "common": { "serviceAccountName": "a" } }),
            &["common", "serviceAccountName"],
        ),
        (
            json!({ "common": { "image": { "pullPolicy": "Sometimes" } } }),
            &["pullPolicy", "IfNotPresent"],
        ),
        (
            json!({ "common": { "leaderElection": { "leaseDuration": "15" } } }),
            &["leaseDuration"],
        ),
        (json!({ "common": { "extraArgs": ["-v"] } }), &["extraArgs"]),
        (
            json!({ "common": { "resources": { "request": {} } } }),
            &["resources", "request"],
        ),
        (
            json!({ "common": { "tolerations": [{ "efect": "NoSchedule" }] } }),
            &["tolerations", "efect"],
        ),
        (
            json!({ "common": { "affinity": { "nodeAfinity": {} } } }),
            &["affinity", "nodeAfinity"],
        ),
        (
            json!({ "common": { "extraEnv": [{ "nme": "A" }] } }),
            &["extraEnv", "nme"],
        ),
        (
            json!({ "common": { "securityContext": { "runAsNonroot": true } } }),
            &["securityContext", "runAsNonroot"],
        ),
        (
            json!({ "common": { "podAnnotations": { "a": 1 } } }),
            &["podAnnotations"],
        ),
        (
            json!({ "common": { "networkPolicy": { "apiServer": { "ports": [] } } } }),
            &["ports"],
        ),
        (
            json!({ "common": { "networkPolicy": { "apiServer": { "cidrs": ["10.0.0.1"] } } } }),
            &["cidrs"],
        ),
        (json!({ "common": { "metrics": { "port": 80 } } }), &["metrics", "port"]),
        (
            json!({ "common": { "terminationGracePeriodSeconds": 5 } }),
            &["terminationGracePeriodSeconds"],
        ),
        (
            json!({ "controllers": { "cluster": { "timeouts": { "controlPlane": "1m" } } } }),
            &["timeouts", "controlPlane"],
        ),
        (
            json!({ "controllers": { "workspace": { "workspaceKind": "tf.io/v1" } } }),
            &["workspaceKind", "tf.upbound.io/v1beta1"],
        ),
        (json!({ "watch": { "namespaces": "a" } }), &["watch", "namespaces"]),
        (json!({ "watch": { "namespace": "Team_A" } }), &["namespace"]),
        (json!({ "crds": { "enabled": true } }), &["crds", "enabled"]),
        (
            json!({ "prometheusRule": { "disabledAlerts": ["NotOurs"] } }),
            &["disabledAlerts"],
        ),
        (
            json!({ "fullnameOverride": "a-name-that-leaves-no-room-for-the-endings" }),
            &["fullnameOverride"],
        ),
        (
            json!({ "common": { "podDisruptionBudget": { "maxUnavailable": -1 } } }),
            &["maxUnavailable"],
        ),
        (
            json!({ "common": { "podDisruptionBudget": { "maxUnavailable": 1.5 } } }),
            &["maxUnavailable"],
        ),
        (
            json!({ "controllers": { "secrets": { "podDisruptionBudget": { "maxUnavailable": "half" } } } }),
            &["secrets", "maxUnavailable"],
        ),
        (json!({ "jobs": { "replicas": 1 } }), &["jobs", "replicas"]),
        (json!({ "jobs": { "image": { "name": "x" } } }), &["jobs", "name"]),
    ]
}

/// Keys whose lines are all commented out. Helm takes that for "without the default", and templates took it for 0, false or
/// a controller that nobody wants.
fn nulls() -> Vec<(Value, &'static [&'static str])> {
    vec![
        (json!({ "common": null }), &["common"]),
        (json!({ "controllers": null }), &["controllers"]),
        (
            json!({ "controllers": { "secrets": null } }),
            &["controllers", "secrets"],
        ),
        (
            json!({ "controllers": { "secrets": { "enabled": null } } }),
            &["controllers/secrets", "enabled"],
        ),
        (
            json!({ "controllers": { "cluster": { "timeouts": { "deletion": null } } } }),
            &["controllers/cluster/timeouts", "deletion"],
        ),
        (json!({ "common": { "replicas": null } }), &["common", "replicas"]),
        (json!({ "common": { "concurrency": null } }), &["common", "concurrency"]),
        (json!({ "common": { "extraArgs": null } }), &["common", "extraArgs"]),
        (json!({ "common": { "podLabels": null } }), &["common", "podLabels"]),
        (
            json!({ "common": { "livenessProbe": null } }),
            &["common", "livenessProbe"],
        ),
        (
            json!({ "common": { "terminationGracePeriodSeconds": null } }),
            &["common", "terminationGracePeriodSeconds"],
        ),
        (
            json!({ "common": { "leaderElection": { "leaseDuration": null } } }),
            &["common/leaderElection", "leaseDuration"],
        ),
        (
            json!({ "common": { "networkPolicy": { "enabled": null } } }),
            &["common/networkPolicy", "enabled"],
        ),
        (json!({ "watch": { "namespace": null } }), &["watch", "namespace"]),
        (json!({ "crds": { "install": null } }), &["crds", "install"]),
        (json!({ "jobs": { "resources": null } }), &["jobs", "resources"]),
    ]
}

#[tokio::test]
async fn a_mistake_is_named() -> Result<()> {
    for helm in Helm::majors().await? {
        for (values, names) in mistakes().into_iter().chain(nulls()) {
            let said = helm.refusal(&values)?;
            for name in names {
                ensure!(said.contains(name), "{values}: {name} is not in\n{said}");
            }
        }
    }
    Ok(())
}

/// What the schema cannot see.
#[tokio::test]
async fn values_that_do_not_fit_together_are_refused() -> Result<()> {
    let helm = Helm::new().await?;
    let repeated = helm.refusal(&json!({ "controllers": { "secrets": { "extraArgs": ["--log-level=debug"] } } }))?;
    ensure!(
        repeated.contains("controllers.secrets.extraArgs: --log-level is set by a value"),
        "{repeated}"
    );
    let no_service = json!({ "common": { "serviceMonitor": { "enabled": true }, "service": { "enabled": false } } });
    let no_service = helm.refusal(&no_service)?;
    ensure!(
        no_service.contains("serviceMonitor needs service.enabled"),
        "{no_service}"
    );
    let no_account = helm.refusal(&json!({ "common": { "serviceAccount": { "create": false } } }))?;
    ensure!(
        no_account.contains("serviceAccountName must name an account"),
        "{no_account}"
    );
    let no_alert = helm.refusal(&json!({ "prometheusRule": { "enabled": true, "disabledAlerts": ["CaptNoSuch"] } }))?;
    ensure!(no_alert.contains("no alert CaptNoSuch; there are Capt"), "{no_alert}");
    let no_token = json!({ "common": { "podMonitor": { "enabled": true }, "metrics": { "secure": true } } });
    let no_token = helm.refusal(&no_token)?;
    ensure!(no_token.contains("podMonitor needs metrics.tokenSecret"), "{no_token}");
    let tenants = json!({ "controllers": { "tenant": { "enabled": true } }, "watch": { "namespace": "team-a" } });
    let tenants = helm.refusal(&tenants)?;
    ensure!(tenants.contains("cannot be with watch.namespace"), "{tenants}");
    let unreachable = json!({ "allowCrossNamespaceTemplates": true, "watch": { "namespace": "team-a" } });
    let unreachable = helm.refusal(&unreachable)?;
    ensure!(
        unreachable.contains("allowCrossNamespaceTemplates cannot be with watch.namespace"),
        "{unreachable}"
    );
    Ok(())
}

#[tokio::test]
async fn an_account_is_named_where_none_is_made_and_made_once() -> Result<()> {
    let helm = Helm::new().await?;
    let keys = ["cluster", "controlplane", "endpoint", "secrets", "workspace"];
    let mine: Value = keys
        .iter()
        .map(|key| (*key, json!({ "serviceAccountName": "mine" })))
        .collect();
    let twice = helm.refusal(&json!({ "controllers": mine }))?;
    ensure!(
        twice.contains("controllers.controlplane.serviceAccountName: mine is made for controllers.cluster already"),
        "{twice}"
    );
    let others = json!({ "controllers": { "secrets": { "serviceAccountName": "capt-endpoint" } } });
    let others = helm.refusal(&others)?;
    ensure!(others.contains("is made for controllers.endpoint already"), "{others}");

    let mut no_jobs = json!({ "common": { "serviceAccount": { "create": false } }, "controllers": mine });
    let unnamed = helm.refusal(&no_jobs)?;
    ensure!(
        unnamed.contains("jobs.serviceAccountName must name an account"),
        "{unnamed}"
    );
    no_jobs["crds"] = json!({ "install": false });
    no_jobs["uninstallGuard"] = json!({ "enabled": false });
    helm.render(&no_jobs)?;
    Ok(())
}

/// The programs would refuse them too, but in a pod that never becomes ready.
#[tokio::test]
async fn times_and_ports_that_cannot_work_are_refused() -> Result<()> {
    let helm = Helm::new().await?;
    let rows = [
        (
            json!({ "leaderElection": { "renewDeadline": "15s" } }),
            "renewDeadline (15s) must be shorter than leaseDuration (15s)",
        ),
        (
            json!({ "leaderElection": { "leaseDuration": "1m", "renewDeadline": "59s1000ms" } }),
            "renewDeadline (59s1000ms) must be shorter than leaseDuration (1m)",
        ),
        (
            json!({ "leaderElection": { "retryPeriod": "1h" } }),
            "retryPeriod (1h) must be shorter than renewDeadline (10s)",
        ),
        (
            json!({ "metrics": { "secure": true, "port": 8443 } }),
            "port and securePort are both 8443",
        ),
    ];
    for (values, said) in rows {
        for values in [
            json!({ "common": values }),
            json!({ "controllers": { "secrets": values } }),
        ] {
            let refusal = helm.refusal(&values)?;
            ensure!(refusal.contains(said), "{values}: {refusal}");
        }
    }
    helm.render(&json!({ "common": {
        "metrics": { "port": 8443 },
        "leaderElection": { "leaseDuration": "1m1s", "renewDeadline": "1m500ms", "retryPeriod": "900ms" },
    } }))?;
    Ok(())
}

/// As a dependency of another chart it gets two values that it does not have, and the parent's users can say what its own
/// could.
#[tokio::test]
async fn a_parent_chart_may_set_what_helm_hands_down() -> Result<()> {
    let parent = tempfile::tempdir()?;
    let about = json!({
        "apiVersion": "v2", "name": "parent", "version": "1.0.0",
        "dependencies": [{ "name": "capt", "version": ">=0.0.0-0", "condition": "capt.enabled" }],
    });
    std::fs::write(parent.path().join("Chart.yaml"), about.to_string())?;
    std::fs::create_dir(parent.path().join("charts"))?;
    let copied = std::process::Command::new("cp")
        .arg("-r")
        .args([chart(), parent.path().join("charts/capt")])
        .status()?;
    ensure!(copied.success(), "cp");
    for helm in Helm::majors().await? {
        let render = |values: &Value| helm.template_of(parent.path(), "capt-system", "capt", values);
        let taken_away = json!({ "capt": {
            "enabled": true,
            "common": { "nodeSelector": { "a": "b" } },
            "controllers": { "secrets": { "nodeSelector": null } },
        }, "global": { "anything": 1 } });
        let rendered = accepted(render(&taken_away)?, &taken_away)?;
        ensure!(
            rendered.pod("capt-secrets")?["spec"]["nodeSelector"].is_null()
                && rendered.pod("capt-endpoint")?["spec"]["nodeSelector"] == json!({ "a": "b" }),
            "{}",
            rendered.text
        );
        let nothing = json!({ "capt": { "common": { "replicas": null } } });
        let said = refused(render(&nothing)?, &nothing)?;
        ensure!(said.contains("replicas"), "{said}");
    }
    Ok(())
}
