//! Every value of the chart does what it says: a row per value, whose check fails without it.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use capt_api::names::Manager;
use serde_json::{Map, Value, json};

use crate::helm::{Helm, chart};
use crate::render::{Rendered, everything, is_hook, merged};

/// Values, and what then holds that does not hold by default.
type Row = (Value, fn(&Rendered) -> Result<bool>);

const SECRETS: &str = "capt-secrets";
const RELEASE: &str = env!("CARGO_PKG_VERSION");
const TENANTS: &str = "capt-tenant-controller";
const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn common(values: Value) -> Value {
    json!({ "common": values })
}

fn controller(key: &str, values: Value) -> Value {
    json!({ "controllers": { key: values } })
}

/// Values that every controller has of its own, where it is on by default.
fn for_each(values: Value) -> Value {
    let keys = ["cluster", "controlplane", "endpoint", "secrets", "workspace"];
    let controllers: Map<String, Value> = keys.into_iter().map(|key| (key.to_owned(), values.clone())).collect();
    json!({ "controllers": controllers })
}

/// An account per controller.
fn accounts() -> Value {
    let keys = ["cluster", "controlplane", "endpoint", "secrets", "workspace"];
    let own = |key: &str| json!({ "serviceAccountName": format!("of-{key}") });
    let controllers: Map<String, Value> = keys.into_iter().map(|key| (key.to_owned(), own(key))).collect();
    json!({ "controllers": controllers })
}

/// Whether something holds for every controller that is on by default.
fn all(holds: impl Fn(&str) -> Result<bool>) -> Result<bool> {
    for controller in Manager::OF_CLUSTERS {
        if !holds(controller.as_str())? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether every controller has the flag.
fn flag(rendered: &Rendered, flag: &str) -> Result<bool> {
    all(|controller| Ok(rendered.flags(controller)?.contains(&flag)))
}

/// Whether the pods of every controller have the value at a path.
fn pod(rendered: &Rendered, path: &str, value: Value) -> Result<bool> {
    all(|controller| Ok(rendered.pod(controller)?.pointer(path) == Some(&value)))
}

/// Whether the objects of a kind, one per controller, have the value at a path.
fn each(rendered: &Rendered, kind: &str, path: &str, value: Value) -> Result<bool> {
    all(|controller| {
        Ok(rendered
            .get(kind, controller)
            .is_ok_and(|object| object.pointer(path) == Some(&value)))
    })
}

/// Whether there is nothing of a kind, not even while a Job runs.
fn none(rendered: &Rendered, kind: &str) -> Result<bool> {
    Ok(rendered.of_kind(kind).next().is_none())
}

fn job<'a>(rendered: &'a Rendered, name: &str) -> Option<&'a Value> {
    rendered.get("Job", &format!("capt-{name}")).ok()
}

fn job_pod(rendered: &Rendered, path: &str, value: &Value) -> bool {
    let found = job(rendered, "apply-crds").and_then(|job| job.pointer(&format!("/spec/template{path}")));
    found == Some(value)
}

fn job_flags<'a>(rendered: &'a Rendered, name: &str) -> Vec<&'a str> {
    let arguments = job(rendered, name).and_then(|job| job.pointer("/spec/template/spec/containers/0/args"));
    arguments
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

fn rows() -> Vec<Row> {
    let mut rows = top_level();
    rows.extend(workload());
    rows.extend(reachability());
    rows.extend(monitoring());
    rows.extend(own());
    rows.extend(lifecycle());
    rows
}

fn top_level() -> Vec<Row> {
    vec![
        (json!({ "nameOverride": "eks" }), |r| {
            Ok(r.get("Deployment", "capt-eks-secrets").is_ok())
        }),
        (json!({ "fullnameOverride": "eks" }), |r| {
            Ok(r.get("Deployment", "eks-secrets").is_ok())
        }),
        (json!({ "commonLabels": { "a": "b" } }), |r| {
            Ok(r.objects.iter().all(|object| object["metadata"]["labels"]["a"] == "b"))
        }),
        (json!({ "imagePullSecrets": [{ "name": "s" }] }), |r| {
            let wanted = json!([{ "name": "s" }]);
            Ok(pod(r, "/spec/imagePullSecrets", wanted.clone())? && job_pod(r, "/spec/imagePullSecrets", &wanted))
        }),
        (json!({ "watch": { "namespace": "team-a" } }), |r| {
            let guarded = job_flags(r, "guard") == ["guard", "--namespace=team-a"];
            let roles = r
                .of_kind("Role")
                .filter(|role| role["metadata"]["namespace"] == "team-a")
                .count();
            let wide: Vec<_> = r
                .of_kind("ClusterRole")
                .filter(|role| !is_hook(role))
                .map(|role| &role["metadata"]["name"])
                .collect();
            // One per controller, and one for the guard. Workspaces alone are cluster-scoped.
            Ok(flag(r, "--namespace=team-a")?
                && guarded
                && roles == Manager::OF_CLUSTERS.len() + 1
                && wide == ["capt-system:capt-workspace-controller"])
        }),
        (json!({ "watch": { "filter": "blue" } }), |r| {
            let guarded = job_flags(r, "guard") == ["guard", "--watch-filter=blue"];
            Ok(flag(r, "--watch-filter=blue")? && guarded)
        }),
        (json!({ "allowCrossNamespaceTemplates": true }), |r| {
            let has = |controller, flag| Ok::<_, anyhow::Error>(r.flags(controller)?.contains(&flag));
            Ok(
                has("capt-cluster-controller", "--allow-cross-namespace-templates=true")?
                    && has("capt-controlplane-controller", "--allow-cross-namespace-templates=true")?
                    && has("capt-workspace-controller", "--allow-cross-namespace-templates")?,
            )
        }),
    ]
}

fn workload() -> Vec<Row> {
    vec![
        (common(json!({ "replicas": 3 })), |r| {
            each(r, "Deployment", "/spec/replicas", json!(3))
        }),
        (
            common(json!({ "image": { "registry": "registry.example.com/x" } })),
            |r| {
                let own =
                    all(|name| Ok(r.container(name)?["image"] == format!("registry.example.com/x/{name}:{RELEASE}")))?;
                Ok(own
                    && job_pod(
                        r,
                        "/spec/containers/0/image",
                        &json!(format!("registry.example.com/x/capt-install:{RELEASE}")),
                    ))
            },
        ),
        (common(json!({ "image": { "tag": "9.9.9" } })), |r| {
            let image = all(|name| Ok(r.container(name)?["image"] == format!("ghcr.io/capt-dev/{name}:9.9.9")))?;
            Ok(image
                && each(
                    r,
                    "Deployment",
                    "/metadata/labels/app.kubernetes.io~1version",
                    json!("9.9.9"),
                )?)
        }),
        (common(json!({ "image": { "pullPolicy": "Never" } })), |r| {
            let never = json!("Never");
            Ok(pod(r, "/spec/containers/0/imagePullPolicy", never.clone())?
                && job_pod(r, "/spec/containers/0/imagePullPolicy", &never))
        }),
        (common(json!({ "concurrency": 7 })), |r| flag(r, "--concurrency=7")),
        (common(json!({ "logLevel": "info,capt_runtime=debug" })), |r| {
            flag(r, "--log-level=info,capt_runtime=debug")
        }),
        (common(json!({ "logFormat": "json" })), |r| flag(r, "--log-format=json")),
        (common(json!({ "leaderElection": { "leaseDuration": "30s" } })), |r| {
            flag(r, "--lease-duration=30s")
        }),
        (common(json!({ "leaderElection": { "renewDeadline": "9s" } })), |r| {
            flag(r, "--renew-deadline=9s")
        }),
        (common(json!({ "leaderElection": { "retryPeriod": "3s" } })), |r| {
            flag(r, "--retry-period=3s")
        }),
        (common(json!({ "extraArgs": ["--resync-period=1h"] })), |r| {
            flag(r, "--resync-period=1h")
        }),
        (common(json!({ "extraEnv": [{ "name": "A", "value": "b" }] })), |r| {
            let env = json!([{ "name": "A", "value": "b" }]);
            Ok(pod(r, "/spec/containers/0/env", env.clone())? && job_pod(r, "/spec/containers/0/env", &env))
        }),
        (common(json!({ "resources": { "limits": { "cpu": 1 } } })), |r| {
            let limits = json!({ "cpu": 1, "memory": "512Mi" });
            pod(r, "/spec/containers/0/resources/limits", limits)
        }),
        (common(json!({ "podLabels": { "a": "b" } })), |r| {
            pod(r, "/metadata/labels/a", json!("b"))
        }),
        (common(json!({ "podAnnotations": { "a": "b" } })), |r| {
            Ok(pod(r, "/metadata/annotations/a", json!("b"))? && job_pod(r, "/metadata/annotations/a", &json!("b")))
        }),
        (common(json!({ "annotations": { "a": "b" } })), |r| {
            each(r, "Deployment", "/metadata/annotations/a", json!("b"))
        }),
        (common(json!({ "nodeSelector": { "a": "b" } })), |r| {
            let wanted = json!({ "a": "b" });
            Ok(pod(r, "/spec/nodeSelector", wanted.clone())? && job_pod(r, "/spec/nodeSelector", &wanted))
        }),
        (
            common(json!({ "tolerations": [{ "key": "a", "operator": "Exists" }] })),
            |r| {
                let wanted = json!([{ "key": "a", "operator": "Exists" }]);
                Ok(pod(r, "/spec/tolerations", wanted.clone())? && job_pod(r, "/spec/tolerations", &wanted))
            },
        ),
        (common(json!({ "affinity": { "podAntiAffinity": {} } })), |r| {
            pod(r, "/spec/affinity", json!({ "podAntiAffinity": {} }))
        }),
        (
            common(json!({ "topologySpreadConstraints": [
                { "maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule" },
                { "maxSkew": 1, "topologyKey": "host", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": { "matchLabels": { "x": "y" } } },
            ] })),
            |r| {
                all(|name| {
                    let constraints = &r.pod(name)?["spec"]["topologySpreadConstraints"];
                    let own = &constraints[0]["labelSelector"]["matchLabels"]["app.kubernetes.io/name"];
                    Ok(constraints[0]["maxSkew"] == 2
                        && own == name
                        && constraints[1]["labelSelector"]["matchLabels"]["x"] == "y")
                })
            },
        ),
        (common(json!({ "priorityClassName": "high" })), |r| {
            pod(r, "/spec/priorityClassName", json!("high"))
        }),
        (common(json!({ "terminationGracePeriodSeconds": 60 })), |r| {
            Ok(pod(r, "/spec/terminationGracePeriodSeconds", json!(60))? && flag(r, "--grace-period=55s")?)
        }),
        (common(json!({ "podSecurityContext": { "runAsUser": 1000 } })), |r| {
            // Merged: the rest of the restricted profile stays.
            Ok(pod(r, "/spec/securityContext/runAsUser", json!(1000))?
                && pod(r, "/spec/securityContext/runAsNonRoot", json!(true))?
                && job_pod(r, "/spec/securityContext/runAsUser", &json!(1000)))
        }),
        (
            common(json!({ "securityContext": { "readOnlyRootFilesystem": false } })),
            |r| {
                Ok(pod(
                    r,
                    "/spec/containers/0/securityContext/readOnlyRootFilesystem",
                    json!(false),
                )? && pod(
                    r,
                    "/spec/containers/0/securityContext/capabilities/drop",
                    json!(["ALL"]),
                )?)
            },
        ),
        (common(json!({ "livenessProbe": { "periodSeconds": 77 } })), |r| {
            Ok(pod(r, "/spec/containers/0/livenessProbe/periodSeconds", json!(77))?
                && pod(r, "/spec/containers/0/livenessProbe/httpGet/path", json!("/healthz"))?)
        }),
        (common(json!({ "readinessProbe": { "periodSeconds": 77 } })), |r| {
            Ok(pod(r, "/spec/containers/0/readinessProbe/periodSeconds", json!(77))?
                && pod(r, "/spec/containers/0/readinessProbe/httpGet/path", json!("/readyz"))?)
        }),
        (
            merged(
                merged(
                    common(json!({ "serviceAccount": { "create": false } })),
                    for_each(json!({ "serviceAccountName": "mine" })),
                ),
                json!({ "jobs": { "serviceAccountName": "theirs" } }),
            ),
            |r| {
                Ok(none(r, "ServiceAccount")?
                    && pod(r, "/spec/serviceAccountName", json!("mine"))?
                    && job_pod(r, "/spec/serviceAccountName", &json!("theirs")))
            },
        ),
        (
            common(json!({ "serviceAccount": { "annotations": { "a": "b" } } })),
            |r| each(r, "ServiceAccount", "/metadata/annotations/a", json!("b")),
        ),
        (common(json!({ "rbac": false })), |r| {
            Ok(
                none(r, "Role")?
                    && none(r, "RoleBinding")?
                    && none(r, "ClusterRole")?
                    && none(r, "ClusterRoleBinding")?,
            )
        }),
    ]
}

fn reachability() -> Vec<Row> {
    vec![
        (common(json!({ "service": { "enabled": false } })), |r| {
            none(r, "Service")
        }),
        (common(json!({ "metrics": { "port": 9090 } })), |r| {
            Ok(each(r, "Service", "/spec/ports/0/port", json!(9090))?
                && pod(r, "/spec/containers/0/ports/0/containerPort", json!(9090))?
                && flag(r, "--metrics-bind-address=:9090")?)
        }),
        (common(json!({ "metrics": { "secure": true } })), |r| {
            let reviews = Manager::OF_CLUSTERS.iter().all(|controller| {
                r.get("ClusterRole", &format!("capt-system:{controller}-metrics"))
                    .is_ok()
            });
            Ok(reviews
                && flag(r, "--metrics-secure-bind-address=:8443")?
                && each(r, "Service", "/spec/ports/0/targetPort", json!("metrics"))?
                && each(
                    r,
                    "NetworkPolicy",
                    "/spec/ingress/0/ports",
                    json!([{ "port": "metrics" }]),
                )?
                && pod(r, "/spec/containers/0/readinessProbe/httpGet/port", json!("http"))?)
        }),
        (
            common(json!({ "metrics": { "secure": true, "securePort": 9443 } })),
            |r| {
                Ok(flag(r, "--metrics-secure-bind-address=:9443")?
                    && each(r, "Service", "/spec/ports/0/port", json!(9443))?
                    && pod(r, "/spec/containers/0/ports/1/containerPort", json!(9443))?)
            },
        ),
        (
            common(
                json!({ "metrics": { "secure": true, "certSecret": "certificate" }, "serviceMonitor": { "enabled": true } }),
            ),
            |r| {
                let verified = all(|name| {
                    let tls = &r.get("ServiceMonitor", name)?["spec"]["endpoints"][0]["tlsConfig"];
                    Ok(tls["ca"]["secret"]["name"] == "certificate"
                        && tls["serverName"] == format!("{name}.capt-system.svc"))
                })?;
                Ok(verified
                    && flag(r, "--metrics-cert-dir=/var/run/capt/metrics")?
                    && pod(r, "/spec/volumes/0/secret/secretName", json!("certificate"))?
                    && pod(
                        r,
                        "/spec/containers/0/volumeMounts/0/mountPath",
                        json!("/var/run/capt/metrics"),
                    )?)
            },
        ),
        (
            common(json!({
                "metrics": { "secure": true, "tokenSecret": { "name": "prometheus", "key": "bearer" } },
                "serviceMonitor": { "enabled": true }, "podMonitor": { "enabled": true },
            })),
            |r| {
                let sent = json!({ "name": "prometheus", "key": "bearer" });
                Ok(each(
                    r,
                    "ServiceMonitor",
                    "/spec/endpoints/0/authorization/credentials",
                    sent.clone(),
                )? && each(
                    r,
                    "PodMonitor",
                    "/spec/podMetricsEndpoints/0/authorization/credentials",
                    sent,
                )?)
            },
        ),
        (
            json!({ "metricsReaders": [{ "kind": "ServiceAccount", "name": "prometheus", "namespace": "monitoring" }] }),
            |r| {
                let name = "capt-system:capt-metrics-reader";
                let Ok(binding) = r.get("ClusterRoleBinding", name) else {
                    return Ok(false);
                };
                let allowed = &r.get("ClusterRole", name)?["rules"];
                Ok(binding["subjects"][0]["name"] == "prometheus"
                    && *allowed == json!([{ "nonResourceURLs": ["/metrics"], "verbs": ["get"] }]))
            },
        ),
        (common(json!({ "service": { "annotations": { "a": "b" } } })), |r| {
            each(r, "Service", "/metadata/annotations/a", json!("b"))
        }),
        (common(json!({ "podDisruptionBudget": { "enabled": false } })), |r| {
            none(r, "PodDisruptionBudget")
        }),
        (
            common(json!({ "podDisruptionBudget": { "maxUnavailable": "50%" } })),
            |r| each(r, "PodDisruptionBudget", "/spec/maxUnavailable", json!("50%")),
        ),
        (common(json!({ "podDisruptionBudget": { "maxUnavailable": 0 } })), |r| {
            each(r, "PodDisruptionBudget", "/spec/maxUnavailable", json!(0))
        }),
        (common(json!({ "networkPolicy": { "enabled": false } })), |r| {
            none(r, "NetworkPolicy")
        }),
        (common(json!({ "networkPolicy": { "scrapers": [] } })), |r| {
            each(r, "NetworkPolicy", "/spec/ingress", json!([]))
        }),
        (
            common(json!({ "networkPolicy": { "apiServer": { "cidrs": ["10.0.0.1/32"] } } })),
            |r| {
                let peers = json!([{ "ipBlock": { "cidr": "10.0.0.1/32" } }]);
                each(r, "NetworkPolicy", "/spec/egress/0/to", peers)
            },
        ),
        (
            common(json!({ "networkPolicy": { "apiServer": { "ports": [8443] } } })),
            |r| each(r, "NetworkPolicy", "/spec/egress/0/ports", json!([{ "port": 8443 }])),
        ),
        (common(json!({ "networkPolicy": { "dns": [] } })), |r| {
            all(|name| {
                let egress = r.get("NetworkPolicy", name)?["spec"]["egress"].as_array();
                Ok(egress.is_some_and(|rules| rules.len() == 1))
            })
        }),
    ]
}

fn monitoring() -> Vec<Row> {
    vec![
        (common(json!({ "serviceMonitor": { "enabled": true } })), |r| {
            each(r, "ServiceMonitor", "/spec/endpoints/0/port", json!("metrics"))
        }),
        (
            common(json!({ "serviceMonitor": { "enabled": true, "labels": { "a": "b" } } })),
            |r| each(r, "ServiceMonitor", "/metadata/labels/a", json!("b")),
        ),
        (
            common(json!({ "serviceMonitor": { "enabled": true, "interval": "15s" } })),
            |r| each(r, "ServiceMonitor", "/spec/endpoints/0/interval", json!("15s")),
        ),
        (
            common(json!({ "serviceMonitor": { "enabled": true, "scrapeTimeout": "5s" } })),
            |r| each(r, "ServiceMonitor", "/spec/endpoints/0/scrapeTimeout", json!("5s")),
        ),
        (
            common(json!({ "serviceMonitor": { "enabled": true, "relabelings": [{ "action": "drop" }] } })),
            |r| {
                each(
                    r,
                    "ServiceMonitor",
                    "/spec/endpoints/0/relabelings",
                    json!([{ "action": "drop" }]),
                )
            },
        ),
        (
            common(json!({ "serviceMonitor": { "enabled": true, "metricRelabelings": [{ "action": "keep" }] } })),
            |r| {
                each(
                    r,
                    "ServiceMonitor",
                    "/spec/endpoints/0/metricRelabelings",
                    json!([{ "action": "keep" }]),
                )
            },
        ),
        (common(json!({ "podMonitor": { "enabled": true } })), |r| {
            each(r, "PodMonitor", "/spec/podMetricsEndpoints/0/port", json!("http"))
        }),
        (
            common(json!({ "podMonitor": { "enabled": true, "labels": { "a": "b" } } })),
            |r| each(r, "PodMonitor", "/metadata/labels/a", json!("b")),
        ),
        (
            common(json!({ "podMonitor": { "enabled": true, "interval": "15s" } })),
            |r| each(r, "PodMonitor", "/spec/podMetricsEndpoints/0/interval", json!("15s")),
        ),
        (
            common(json!({ "podMonitor": { "enabled": true, "scrapeTimeout": "5s" } })),
            |r| {
                each(
                    r,
                    "PodMonitor",
                    "/spec/podMetricsEndpoints/0/scrapeTimeout",
                    json!("5s"),
                )
            },
        ),
        (
            common(json!({ "podMonitor": { "enabled": true, "relabelings": [{ "action": "drop" }] } })),
            |r| {
                each(
                    r,
                    "PodMonitor",
                    "/spec/podMetricsEndpoints/0/relabelings",
                    json!([{ "action": "drop" }]),
                )
            },
        ),
        (
            common(json!({ "podMonitor": { "enabled": true, "metricRelabelings": [{ "action": "keep" }] } })),
            |r| {
                each(
                    r,
                    "PodMonitor",
                    "/spec/podMetricsEndpoints/0/metricRelabelings",
                    json!([{ "action": "keep" }]),
                )
            },
        ),
        (json!({ "prometheusRule": { "enabled": true } }), |r| {
            Ok(r.count("PrometheusRule") == 1)
        }),
        (
            json!({ "prometheusRule": { "enabled": true, "labels": { "a": "b" } } }),
            |r| {
                Ok(r.of_kind("PrometheusRule")
                    .any(|rule| rule["metadata"]["labels"]["a"] == "b"))
            },
        ),
        (
            json!({ "prometheusRule": { "enabled": true, "alertLabels": { "a": "b" } } }),
            |r| {
                let alerts = alerts(r);
                Ok(!alerts.is_empty()
                    && alerts
                        .iter()
                        .all(|alert| alert["labels"]["a"] == "b" && alert["labels"]["severity"].is_string()))
            },
        ),
        (
            json!({ "prometheusRule": { "enabled": true, "alertLabels": { "severity": "none" } } }),
            |r| {
                let alerts = alerts(r);
                Ok(!alerts.is_empty() && alerts.iter().all(|alert| alert["labels"]["severity"] == "none"))
            },
        ),
        // One that is to have no pods is not missed.
        (
            merged(
                json!({ "prometheusRule": { "enabled": true } }),
                controller("secrets", json!({ "replicas": 0 })),
            ),
            |r| Ok(alerts_of_absence(r) == Manager::OF_CLUSTERS.len() - 1),
        ),
        // A group without rules is none.
        (
            merged(
                json!({ "prometheusRule": { "enabled": true, "disabledAlerts": OF_CLUSTERS } }),
                common(json!({ "replicas": 0 })),
            ),
            |r| {
                let groups = r.of_kind("PrometheusRule").map(|rule| &rule["spec"]["groups"]).next();
                let groups = groups.and_then(Value::as_array).context("no groups")?;
                Ok(groups.len() == 1 && groups[0]["name"] == "capt.controllers" && alerts_of_absence(r) == 0)
            },
        ),
        (
            json!({ "prometheusRule": { "enabled": true, "disabledAlerts": ["CaptControllerDown"] } }),
            |r| {
                let alerts = alerts(r);
                Ok(!alerts.is_empty() && alerts.iter().all(|alert| alert["alert"] != "CaptControllerDown"))
            },
        ),
        (
            json!({ "prometheusRule": { "enabled": true, "runbookUrl": "https://wiki.example.com/" } }),
            |r| {
                let alerts = alerts(r);
                let page = |alert: &Value| {
                    format!(
                        "https://wiki.example.com/{}.md",
                        alert["alert"].as_str().unwrap_or_default()
                    )
                };
                Ok(!alerts.is_empty()
                    && alerts
                        .iter()
                        .all(|alert| alert["annotations"]["runbook_url"] == page(alert)))
            },
        ),
        (json!({ "dashboards": { "enabled": true } }), |r| {
            // The sidecar puts everybody's into one directory.
            let files: Vec<_> = r
                .of_kind("ConfigMap")
                .filter(|map| map["metadata"]["labels"]["grafana_dashboard"] == "1")
                .filter_map(|map| map["data"].as_object()?.keys().next())
                .collect();
            Ok(files == ["capt-controller.json", "capt-fleet.json", "capt-life.json"])
        }),
        (
            json!({ "dashboards": { "enabled": true, "labels": { "grafana_dashboard": "yes" } } }),
            |r| {
                Ok(r.of_kind("ConfigMap")
                    .any(|map| map["metadata"]["labels"]["grafana_dashboard"] == "yes"))
            },
        ),
        (
            json!({ "dashboards": { "enabled": true, "annotations": { "a": "b" } } }),
            |r| {
                Ok(r.of_kind("ConfigMap")
                    .any(|map| map["metadata"]["annotations"]["a"] == "b"))
            },
        ),
    ]
}

fn alerts(rendered: &Rendered) -> Vec<&Value> {
    let groups = rendered
        .of_kind("PrometheusRule")
        .filter_map(|rule| rule["spec"]["groups"].as_array());
    groups
        .flatten()
        .filter_map(|group| group["rules"].as_array())
        .flatten()
        .collect()
}

/// Every alert of one of the groups.
const OF_CLUSTERS: &[&str] = &[
    "CaptClusterNotReadyInTime",
    "CaptClusterFailing",
    "CaptProviderSilent",
    "CaptDeletionStuck",
    "CaptTerraformFailing",
    "CaptSecretsFailing",
    "CaptEndpointFailing",
];

/// How many controllers are missed when they are not there.
fn alerts_of_absence(rendered: &Rendered) -> usize {
    let is_meant = |alert: &&&Value| alert["alert"] == "CaptControllerDown";
    alerts(rendered).iter().filter(is_meant).count()
}

fn own() -> Vec<Row> {
    vec![
        (for_each(json!({ "imageDigest": DIGEST })), |r| {
            all(|name| Ok(r.container(name)?["image"] == format!("ghcr.io/capt-dev/{name}@{DIGEST}")))
        }),
        (accounts(), |r| {
            all(|controller| {
                let account = &r.pod(controller)?["spec"]["serviceAccountName"];
                let name = account.as_str().context("no account")?;
                Ok(name.starts_with("of-")
                    && r.get("ServiceAccount", name).is_ok()
                    && r.get("RoleBinding", controller)?["subjects"][0]["name"] == *account)
            })
        }),
        (controller("cluster", json!({ "enabled": false })), |r| {
            Ok(r.get("Deployment", "capt-cluster-controller").is_err())
        }),
        (controller("controlplane", json!({ "enabled": false })), |r| {
            Ok(r.get("ServiceAccount", "capt-controlplane-controller").is_err())
        }),
        (controller("endpoint", json!({ "enabled": false })), |r| {
            Ok(r.get("Service", "capt-endpoint").is_err())
        }),
        (controller("secrets", json!({ "enabled": false })), |r| {
            Ok(r.get("ClusterRole", "capt-system:capt-secrets").is_err()
                && r.count("Deployment") == Manager::OF_CLUSTERS.len() - 1)
        }),
        (controller("tenant", json!({ "enabled": true })), |r| {
            let extended = ["view", "edit"].map(|role| {
                let name = format!("capt-system:capt-aggregate-to-{role}");
                let label = format!("rbac.authorization.k8s.io/aggregate-to-{role}");
                r.get("ClusterRole", &name)
                    .is_ok_and(|found| found["metadata"]["labels"][label] == "true")
            });
            Ok(r.get("Deployment", TENANTS).is_ok() && extended == [true, true])
        }),
        (
            controller("tenant", json!({ "enabled": true, "aggregateClusterRoles": false })),
            |r| Ok(r.get("Deployment", TENANTS).is_ok() && r.count("ClusterRole") == Manager::ALL.len()),
        ),
        (
            controller("tenant", json!({ "enabled": true, "imageDigest": DIGEST })),
            |r| Ok(r.container(TENANTS)?["image"] == format!("ghcr.io/capt-dev/{TENANTS}@{DIGEST}")),
        ),
        (
            controller("tenant", json!({ "enabled": true, "serviceAccountName": "mine" })),
            |r| Ok(r.pod(TENANTS)?["spec"]["serviceAccountName"] == "mine"),
        ),
        (controller("workspace", json!({ "enabled": false })), |r| {
            Ok(r.get("NetworkPolicy", "capt-workspace-controller").is_err())
        }),
        (
            controller(
                "cluster",
                json!({ "timeouts": { "vpcReady": "1h", "secret": "2h", "deletion": "3h" } }),
            ),
            |r| {
                let flags = r.flags("capt-cluster-controller")?;
                let wanted = ["--vpc-ready-timeout=1h", "--secret-timeout=2h", "--deletion-timeout=3h"];
                Ok(wanted.iter().all(|flag| flags.contains(flag)))
            },
        ),
        (controller("cluster", json!({ "clearClusterFailures": false })), |r| {
            Ok(r.flags("capt-cluster-controller")?
                .contains(&"--clear-cluster-failures=false"))
        }),
        (
            controller(
                "controlplane",
                json!({ "timeouts": { "controlPlane": "1h", "vpcReady": "2h", "secret": "3h", "deletion": "4h" } }),
            ),
            |r| {
                let flags = r.flags("capt-controlplane-controller")?;
                let wanted = [
                    "--control-plane-timeout=1h",
                    "--vpc-ready-timeout=2h",
                    "--secret-timeout=3h",
                    "--deletion-timeout=4h",
                ];
                Ok(wanted.iter().all(|flag| flags.contains(flag)))
            },
        ),
        (
            controller("controlplane", json!({ "clearClusterFailures": false })),
            |r| {
                Ok(r.flags("capt-controlplane-controller")?
                    .contains(&"--clear-cluster-failures=false"))
            },
        ),
        (controller("secrets", json!({ "allowExecKubeconfig": true })), |r| {
            Ok(r.flags(SECRETS)?.contains(&"--allow-exec-kubeconfig"))
        }),
        (
            controller("workspace", json!({ "workspaceKind": "tf.m.upbound.io/v1beta1" })),
            |r| {
                Ok(r.flags("capt-workspace-controller")?
                    .contains(&"--workspace-kind=tf.m.upbound.io/v1beta1"))
            },
        ),
        (
            controller("workspace", json!({ "timeouts": { "deletion": "3h" } })),
            |r| Ok(r.flags("capt-workspace-controller")?.contains(&"--deletion-timeout=3h")),
        ),
        (
            controller("workspace", json!({ "resumeInterruptedCreates": true })),
            |r| {
                Ok(r.flags("capt-workspace-controller")?
                    .contains(&"--resume-interrupted-creates"))
            },
        ),
        (
            controller("workspace", json!({ "sharedTerraformBackend": true })),
            |r| {
                Ok(r.flags("capt-workspace-controller")?
                    .contains(&"--shared-terraform-backend"))
            },
        ),
    ]
}

fn lifecycle() -> Vec<Row> {
    vec![
        (json!({ "crds": { "install": false } }), |r| {
            Ok(job(r, "apply-crds").is_none())
        }),
        (json!({ "crds": { "keep": false } }), |r| {
            Ok(job_flags(r, "delete-crds") == ["crds", "delete"])
        }),
        (json!({ "crds": { "allowDowngrade": true } }), |r| {
            Ok(job_flags(r, "apply-crds") == ["crds", "apply", "--allow-downgrade"])
        }),
        (json!({ "uninstallGuard": { "enabled": false } }), |r| {
            Ok(job(r, "guard").is_none())
        }),
        (json!({ "jobs": { "imageDigest": DIGEST } }), |r| {
            let image = format!("ghcr.io/capt-dev/capt-install@{DIGEST}");
            Ok(job_pod(r, "/spec/containers/0/image", &json!(image)))
        }),
        // The CRDs can be upgraded ahead of the controllers.
        (json!({ "jobs": { "image": { "tag": "9.9.9" } } }), |r| {
            let image = json!("ghcr.io/capt-dev/capt-install:9.9.9");
            Ok(job_pod(r, "/spec/containers/0/image", &image)
                && r.container(SECRETS)?["image"] == format!("ghcr.io/capt-dev/capt-secrets:{RELEASE}"))
        }),
        (
            json!({ "jobs": { "image": { "registry": "registry.example.com/x", "pullPolicy": "Always" } } }),
            |r| {
                let image = json!(format!("registry.example.com/x/capt-install:{RELEASE}"));
                Ok(job_pod(r, "/spec/containers/0/image", &image)
                    && job_pod(r, "/spec/containers/0/imagePullPolicy", &json!("Always")))
            },
        ),
        (json!({ "jobs": { "serviceAccountName": "mine" } }), |r| {
            let bound = &r.get("ClusterRoleBinding", "capt-system:capt-apply-crds")?["subjects"][0]["name"];
            Ok(job_pod(r, "/spec/serviceAccountName", &json!("mine"))
                && bound == "mine"
                && !r.of_kind("ServiceAccount").any(is_hook))
        }),
        (json!({ "jobs": { "rbac": false } }), |r| {
            let roles = r.objects.iter().filter(|object| {
                let kind = object["kind"].as_str().unwrap_or_default();
                kind.ends_with("Role") || kind.ends_with("RoleBinding")
            });
            Ok(!roles.into_iter().any(is_hook) && r.count("ClusterRole") == Manager::OF_CLUSTERS.len())
        }),
        (json!({ "jobs": { "podLabels": { "a": "b" } } }), |r| {
            Ok(job_pod(r, "/metadata/labels/a", &json!("b")))
        }),
        (json!({ "jobs": { "podAnnotations": { "a": "b" } } }), |r| {
            Ok(job_pod(r, "/metadata/annotations/a", &json!("b"))
                && r.pod(SECRETS)?["metadata"]["annotations"]["a"].is_null())
        }),
        (
            json!({ "jobs": { "resources": { "requests": { "cpu": "99m" } } } }),
            |r| Ok(job_pod(r, "/spec/containers/0/resources/requests/cpu", &json!("99m"))),
        ),
    ]
}

#[tokio::test]
async fn every_value_does_what_it_says() -> Result<()> {
    let helm = Helm::new().await?;
    let default = helm.render(&json!({}))?;
    for (values, holds) in rows() {
        ensure!(!holds(&default).unwrap_or(false), "{values}: holds without it too");
        let rendered = helm.render(&values)?;
        ensure!(
            holds(&rendered).with_context(|| values.to_string())?,
            "{values}: does not hold"
        );
    }
    Ok(())
}

/// Paths of the values that are not maps of the chart's own.
fn leaves(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        // The fields of these are Kubernetes' own, or anybody's.
        Value::Object(fields) if !fields.is_empty() && !OPAQUE.iter().any(|opaque| path.ends_with(opaque)) => {
            for (key, value) in fields {
                leaves(value, &format!("{path}.{key}"), found);
            }
        }
        _ => {
            found.insert(path.to_owned());
        }
    }
}

const OPAQUE: &[&str] = &[
    ".resources",
    ".podSecurityContext",
    ".securityContext",
    ".livenessProbe",
    ".readinessProbe",
    ".dashboards.labels",
];

#[test]
fn every_value_has_a_row() -> Result<()> {
    let text = std::fs::read_to_string(chart().join("values.yaml"))?;
    let mut values = BTreeSet::new();
    leaves(&serde_saphyr::from_str(&text)?, "", &mut values);
    let mut tested = String::new();
    for (row, _) in rows() {
        let mut paths = BTreeSet::new();
        leaves(&row, "", &mut paths);
        // A value of `common` may be tested on one controller.
        tested.extend(
            paths
                .iter()
                .map(|path| format!("{path}\n{}\n", path.replacen(".controllers.secrets", ".common", 1))),
        );
    }
    let untested: Vec<_> = values
        .iter()
        .filter(|value| {
            !tested
                .lines()
                .any(|path| path == *value || path.starts_with(&format!("{value}.")))
        })
        .collect();
    ensure!(untested.is_empty(), "no row for {untested:?}");
    Ok(())
}

/// What is said for one controller wins over what is said for all, also when it is nothing, and lists are not mixed.
#[tokio::test]
async fn a_controllers_own_value_wins() -> Result<()> {
    let rendered = Helm::new().await?.render(&json!({
        "common": {
            "replicas": 3,
            "nodeSelector": { "a": "1", "b": "1" },
            "tolerations": [{ "key": "common" }],
            "extraArgs": ["--resync-period=1h"],
            "priorityClassName": "high",
            "podMonitor": { "enabled": true, "interval": "1m" },
            "networkPolicy": { "scrapers": [] },
        },
        "controllers": { "secrets": {
            "replicas": 0,
            "nodeSelector": { "b": "2", "c": "2" },
            "tolerations": [{ "key": "own" }],
            "extraArgs": [],
            "priorityClassName": "",
            "podMonitor": { "enabled": false },
        } },
    }))?;
    let (own, other) = (
        &rendered.get("Deployment", SECRETS)?["spec"],
        &rendered.get("Deployment", "capt-endpoint")?["spec"],
    );
    ensure!(own["replicas"] == 0 && other["replicas"] == 3, "replicas");
    let (own, other) = (&own["template"]["spec"], &other["template"]["spec"]);
    ensure!(
        own["nodeSelector"] == json!({ "a": "1", "b": "2", "c": "2" }),
        "{}",
        own["nodeSelector"]
    );
    ensure!(
        other["nodeSelector"] == json!({ "a": "1", "b": "1" }),
        "{}",
        other["nodeSelector"]
    );
    ensure!(
        own["tolerations"] == json!([{ "key": "own" }]),
        "{}",
        own["tolerations"]
    );
    ensure!(
        own["priorityClassName"].is_null() && other["priorityClassName"] == "high",
        "priorityClassName"
    );
    ensure!(!rendered.flags(SECRETS)?.contains(&"--resync-period=1h"), "extraArgs");
    ensure!(
        rendered.flags("capt-endpoint")?.contains(&"--resync-period=1h"),
        "extraArgs"
    );
    ensure!(
        rendered.get("PodMonitor", SECRETS).is_err() && rendered.get("PodMonitor", "capt-endpoint").is_ok(),
        "podMonitor"
    );
    Ok(())
}

/// Maps whose entries are anybody's.
const FREE: &[&str] = &[
    "affinity",
    "annotations",
    "labels",
    "livenessProbe",
    "nodeSelector",
    "podAnnotations",
    "podLabels",
    "podSecurityContext",
    "readinessProbe",
    "resources",
    "securityContext",
];

/// Null in place of everything that a template needs.
fn silence(values: &Map<String, Value>) -> Map<String, Value> {
    let needed = values.iter().filter(|(key, _)| !FREE.contains(&key.as_str()));
    needed
        .map(|(key, value)| {
            let silent = value
                .as_object()
                .map_or(Value::Null, |fields| Value::Object(silence(fields)));
            (key.clone(), silent)
        })
        .collect()
}

/// A key of a controller's block whose lines are commented out says nothing; a map that is anybody's is taken away.
#[tokio::test]
async fn a_null_says_nothing_or_takes_a_map_away() -> Result<()> {
    let text = std::fs::read_to_string(chart().join("values.yaml"))?;
    let defaults: Value = serde_saphyr::from_str(&text)?;
    let defaults = defaults["common"].as_object().context("no common")?;
    let silent = silence(defaults);
    let keys: Map<String, Value> = silent.keys().map(|key| (key.clone(), Value::Null)).collect();
    let below = json!({ "common": everything()["common"] });
    for helm in Helm::majors().await? {
        let with = |own: Value| {
            let mut values = below.clone();
            values["controllers"] = json!({ "secrets": own });
            helm.render(&values)
        };
        let plain = with(json!({}))?;
        for block in [silent.clone(), keys.clone()] {
            ensure!(
                with(block.clone().into())?.text == plain.text,
                "{block:?} says something"
            );
        }

        let rendered = with(json!({
            "affinity": null, "annotations": null, "livenessProbe": null, "nodeSelector": null, "podAnnotations": null,
            "podLabels": null, "podSecurityContext": null, "readinessProbe": null, "resources": null, "securityContext": null,
            "serviceMonitor": { "labels": null }, "service": { "annotations": null }, "serviceAccount": { "annotations": null },
        }))?;
        let (pod, before) = (rendered.pod(SECRETS)?, plain.pod(SECRETS)?);
        let gone = [
            "/spec/affinity",
            "/spec/nodeSelector",
            "/spec/securityContext",
            "/spec/containers/0/securityContext",
            "/spec/containers/0/resources",
            "/spec/containers/0/livenessProbe/periodSeconds",
            "/spec/containers/0/readinessProbe/periodSeconds",
            "/metadata/labels/example.com~1team",
            "/metadata/annotations/example.com~1pod",
        ];
        for path in gone {
            ensure!(pod.pointer(path).is_none() && before.pointer(path).is_some(), "{path}");
        }
        ensure!(
            pod["spec"]["tolerations"] == before["spec"]["tolerations"],
            "tolerations"
        );
        ensure!(
            rendered.pod("capt-endpoint")? == plain.pod("capt-endpoint")?,
            "another controller's"
        );
        for (kind, path) in [
            ("Deployment", "/metadata/annotations"),
            ("Service", "/metadata/annotations"),
            ("ServiceAccount", "/metadata/annotations"),
            ("ServiceMonitor", "/metadata/labels/release"),
        ] {
            let found = |rendered: &Rendered| rendered.get(kind, SECRETS).map(|object| object.pointer(path).is_some());
            ensure!(!found(&rendered)? && found(&plain)?, "{kind} {path}");
        }

        // One entry of them.
        let rendered = with(json!({
            "resources": { "limits": { "memory": null }, "requests": { "cpu": null } },
            "securityContext": { "readOnlyRootFilesystem": null },
            "podLabels": { "example.com/team": null, "a": "b" },
        }))?;
        let container = rendered.container(SECRETS)?;
        ensure!(
            container["resources"] == json!({ "limits": {}, "requests": { "memory": "64Mi" } }),
            "{}",
            container["resources"]
        );
        let expected = json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } });
        ensure!(
            container["securityContext"] == expected,
            "{}",
            container["securityContext"]
        );
        let labels = &rendered.pod(SECRETS)?["metadata"]["labels"];
        ensure!(labels["a"] == "b" && labels["example.com/team"].is_null(), "{labels}");
    }
    Ok(())
}

/// By default nothing reaches a controller but a Prometheus, and it reaches nothing but the API server and DNS.
#[tokio::test]
async fn the_network_policies_allow_only_what_is_needed() -> Result<()> {
    let rendered = Helm::new().await?.render(&json!({}))?;
    for policy in rendered.of_kind("NetworkPolicy") {
        let name = &policy["metadata"]["name"];
        let spec = &policy["spec"];
        ensure!(spec["policyTypes"] == json!(["Ingress", "Egress"]), "{name}");
        let ingress = spec["ingress"].as_array().context("no ingress")?;
        for rule in ingress {
            ensure!(!is_hook(policy), "{name} lets somebody in");
            let peers = rule["from"]
                .as_array()
                .with_context(|| format!("{name} lets everybody in"))?;
            let prometheus = json!({ "matchLabels": { "app.kubernetes.io/name": "prometheus" } });
            ensure!(
                peers.iter().all(|peer| peer["podSelector"] == prometheus),
                "{name}: {peers:?}"
            );
            ensure!(
                rule["ports"] == json!([{ "port": "http" }]),
                "{name}: {}",
                rule["ports"]
            );
        }
        let egress = spec["egress"].as_array().context("no egress")?;
        for rule in egress {
            let ports = rule["ports"]
                .as_array()
                .with_context(|| format!("{name} may reach every port"))?;
            let ports: Vec<_> = ports.iter().filter_map(|port| port["port"].as_i64()).collect();
            let dns = ports == [53, 53] && rule["to"].is_array();
            ensure!(dns || ports == [443, 6443], "{name}: {rule}");
        }
        ensure!(egress.len() == 2, "{name}: {egress:?}");
    }
    Ok(())
}

/// Alerts on metrics that nobody reads would call somebody for ever.
#[tokio::test]
async fn the_notes_warn_of_alerts_that_nobody_feeds() -> Result<()> {
    let helm = Helm::new().await?;
    let mut values = json!({ "prometheusRule": { "enabled": true }, "controllers": { "endpoint": { "replicas": 0 } } });
    let notes = helm.notes(&values)?;
    ensure!(
        notes.contains("no monitor for capt-cluster-controller, capt-controlplane-controller, capt-secrets, capt-workspace-controller."),
        "{notes}"
    );
    values["common"] = json!({ "podMonitor": { "enabled": true } });
    for fed in [values, json!({})] {
        let notes = helm.notes(&fed)?;
        ensure!(!notes.contains("WARNING"), "{notes}");
    }
    Ok(())
}
