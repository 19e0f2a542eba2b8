//! What Prometheus finds in the API when it is told to discover there. Debian's is built without that, so the tests hand it the
//! same targets with the same labels; which of them a job keeps is left to the job.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::core::v1::{Container, ContainerPort, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use capt_e2e::testing::PATIENCE;

/// What there is in a namespace.
pub(crate) struct Discovery {
    namespace: String,
    pods: Vec<Pod>,
    services: Vec<Service>,
    slices: Vec<EndpointSlice>,
}

/// By this label a slice names its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

struct Target {
    address: String,
    port: i32,
    labels: BTreeMap<String, String>,
}

impl Discovery {
    /// Looks at everything with the client's rights, which have to be those of the Prometheus, until there is everything: the
    /// EndpointSlices follow the pods in their controller's own time.
    pub(crate) async fn new(client: &Client, namespace: &str) -> Result<Self> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = Self::look(client, namespace).await?;
            let Some(late) = found.services.iter().find(|service| !found.is_followed(service)) else {
                return Ok(found);
            };
            ensure!(
                Instant::now() < deadline,
                "the EndpointSlices of {} do not name its pods: {:#?}",
                late.name_any(),
                found.slices
            );
            sleep(Duration::from_millis(500)).await;
        }
    }

    async fn look(client: &Client, namespace: &str) -> Result<Self> {
        let all = ListParams::default();
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let services: Api<Service> = Api::namespaced(client.clone(), namespace);
        let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), namespace);
        Ok(Self {
            namespace: namespace.to_owned(),
            pods: pods.list(&all).await?.items,
            services: services.list(&all).await?.items,
            slices: slices.list(&all).await?.items,
        })
    }

    /// Whether the slices of a Service name the pods that it selects, all as ready, and no others.
    fn is_followed(&self, service: &Service) -> bool {
        let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        let is_selected = |pod: &&Pod| {
            let mut wanted = selector.into_iter().flatten();
            wanted.all(|(label, value)| pod.labels().get(label) == Some(value))
        };
        let pods: BTreeSet<String> = self
            .pods
            .iter()
            .filter(is_selected)
            .map(ResourceExt::name_any)
            .collect();
        let name = service.name_any();
        let slices = self.slices.iter();
        let own = slices.filter(|slice| slice.labels().get(SERVICE_NAME) == Some(&name));
        let endpoints = own.flat_map(|slice| slice.endpoints.iter().flatten());
        let ready = endpoints.filter(|endpoint| {
            let conditions = endpoint.conditions.as_ref();
            conditions.and_then(|conditions| conditions.ready) == Some(true)
        });
        let named = ready.filter_map(|endpoint| endpoint.target_ref.as_ref()?.name.clone());
        named.collect::<BTreeSet<String>>() == pods
    }

    /// The targets of a role, as `static_configs`.
    pub(crate) fn targets(&self, role: &str) -> Result<Vec<Value>> {
        let found: Vec<Target> = match role {
            "pod" => self.pods.iter().flat_map(|pod| self.ports(pod)).collect(),
            "endpointslice" => self.slices.iter().flat_map(|slice| self.endpoints(slice)).collect(),
            other => bail!("nobody discovers {other} here"),
        };
        let targets = found.into_iter().map(
            |target| json!({ "targets": [format!("{}:{}", target.address, target.port)], "labels": target.labels }),
        );
        Ok(targets.collect())
    }

    /// Every port of a pod.
    fn ports(&self, pod: &Pod) -> Vec<Target> {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let Some(address) = pod.status.as_ref().and_then(|status| status.pod_ip.as_deref()) else {
            return Vec::new();
        };
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let ports =
            containers.flat_map(|container| container.ports.iter().flatten().map(move |port| (container, port)));
        let target = |(container, port): (&Container, &ContainerPort)| {
            let mut labels = labelled("pod", pod.labels());
            let mut say =
                |name: &str, value: &str| labels.insert(format!("__meta_kubernetes_{name}"), value.to_owned());
            say("namespace", &self.namespace);
            say("pod_name", &pod.name_any());
            say("pod_phase", phase.unwrap_or_default());
            say("pod_container_name", &container.name);
            say("pod_container_port_name", port.name.as_deref().unwrap_or_default());
            Target {
                address: address.to_owned(),
                port: port.container_port,
                labels,
            }
        };
        ports.map(target).collect()
    }

    /// Every port of the pods behind a Service; those that the Service has carry its name for them.
    fn endpoints(&self, slice: &EndpointSlice) -> Vec<Target> {
        let of = slice.labels().get(SERVICE_NAME);
        let service = self.services.iter().find(|service| Some(&service.name_any()) == of);
        let endpoints = slice.endpoints.iter().flatten();
        let names = endpoints.filter_map(|endpoint| endpoint.target_ref.as_ref()?.name.as_deref());
        let pods = names.filter_map(|name| self.pods.iter().find(|pod| pod.name_any() == name));
        let mut targets: Vec<Target> = pods.flat_map(|pod| self.ports(pod)).collect();
        for target in &mut targets {
            let mut ports = slice.ports.iter().flatten();
            let port = ports.find(|port| port.port == Some(target.port));
            let labels = &mut target.labels;
            if let Some(service) = service {
                labels.extend(labelled("service", service.labels()));
                labels.insert("__meta_kubernetes_service_name".into(), service.name_any());
            }
            if let Some(name) = port.and_then(|port| port.name.clone()) {
                labels.insert("__meta_kubernetes_endpointslice_port_name".into(), name);
            }
        }
        targets
    }
}

/// An object's labels in the form in which jobs choose by them.
fn labelled(kind: &str, labels: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut said = BTreeMap::new();
    for (name, value) in labels {
        let name = name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        said.insert(format!("__meta_kubernetes_{kind}_label_{name}"), value.clone());
        said.insert(format!("__meta_kubernetes_{kind}_labelpresent_{name}"), "true".into());
    }
    said
}
