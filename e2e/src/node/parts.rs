//! The node's programs: how each is started, and how one knows that it is ready.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::json;

use super::namespaces::{inside, keeper, search_path};
use super::{
    CONTAINERD, IDENTITY, KUBELET, NAME, Network, PROXY, PROXY_IDENTITY, SCHEDULER, SCHEDULER_IDENTITY, cgroups,
    directory,
};
use crate::components::{Component, Parts, flag};
use crate::environment::{Environment, Port};
use crate::probe::Probe;

/// The image that holds the namespaces of a pod.
pub(super) const PAUSE: &str = "localhost/capt-pause:1";

/// Where containerd listens.
pub(super) fn socket(environment: &Environment) -> PathBuf {
    directory(environment).join("containerd.sock")
}

impl Parts<'_> {
    /// The node's programs, in the order in which they start.
    pub fn node(&self, network: Network) -> Result<Vec<Component>> {
        Ok(vec![
            self.scheduler()?,
            self.containerd(network)?,
            self.kubelet(network)?,
            self.proxy(network)?,
        ])
    }
    fn scheduler(&self) -> Result<Component> {
        let authority = self.environment.authority()?;
        let serving = authority.server(SCHEDULER, &["localhost", "127.0.0.1"])?;
        let port = self.settings.port(Port::Scheduler)?;
        let kubeconfig = self.environment.credential(self.settings, SCHEDULER_IDENTITY)?;
        let mut command = self.command(SCHEDULER)?;
        command
            .arg(flag("kubeconfig", kubeconfig.display()))
            .arg(flag("tls-cert-file", serving.certificate.display()))
            .arg(flag("tls-private-key-file", serving.key.display()))
            .arg(flag("secure-port", port))
            .args(["--bind-address=127.0.0.1", "--leader-elect=false", "--profiling=false"]);
        Ok(Component {
            name: SCHEDULER,
            version: self.tools.version(SCHEDULER).to_owned(),
            command,
            probe: Probe::https(format!("https://127.0.0.1:{port}/healthz"), authority.certificate()),
            ports: vec![port],
        })
    }

    fn containerd(&self, network: Network) -> Result<Component> {
        let directory = directory(self.environment);
        let networks = directory.join("cni");
        fs::create_dir_all(&networks)?;
        let conflist = json!({
            "cniVersion": "1.0.0", "name": "pods",
            "plugins": [
                {
                    "type": "bridge", "bridge": "pods", "isGateway": true, "hairpinMode": true,
                    "ipam": {
                        "type": "host-local", "dataDir": directory.join("addresses"),
                        "ranges": [[{"subnet": network.pods(), "gateway": network.gateway().to_string()}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                },
            ],
        });
        fs::write(networks.join("pods.conflist"), conflist.to_string())?;
        let config = directory.join("containerd.toml");
        let settings = [
            ("{root}", directory.join("containerd")),
            ("{socket}", socket(self.environment)),
            ("{networks}", networks),
            ("{pause}", PAUSE.into()),
        ]
        .iter()
        .fold(CONTAINERD_CONFIG.to_owned(), |text, (key, value)| {
            text.replace(key, &value.to_string_lossy())
        });
        fs::write(&config, settings)?;
        let mut command = self.in_node(CONTAINERD)?;
        command.arg("--config").arg(&config);
        Ok(Component {
            name: CONTAINERD,
            version: self.tools.version(CONTAINERD).to_owned(),
            command,
            probe: Probe::LogLine("containerd successfully booted"),
            ports: Vec::new(),
        })
    }

    fn kubelet(&self, network: Network) -> Result<Component> {
        let directory = directory(self.environment);
        let authority = self.environment.authority()?;
        let serving = authority.server(KUBELET, &[NAME, &network.node().to_string()])?;
        let logs = self.environment.path("logs/pods");
        fs::create_dir_all(&logs)?;
        let config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "address": network.node().to_string(), "healthzBindAddress": network.node().to_string(),
            "authentication": {
                "anonymous": {"enabled": false}, "webhook": {"enabled": true},
                "x509": {"clientCAFile": authority.certificate_file()},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": serving.certificate, "tlsPrivateKeyFile": serving.key,
            "containerRuntimeEndpoint": format!("unix://{}", socket(self.environment).display()),
            "cgroupDriver": "cgroupfs", "cgroupRoot": format!("/{}", cgroups::name(self.environment)),
            "failCgroupV1": false, "failSwapOn": false, "localStorageCapacityIsolation": false,
            "podLogsDir": logs, "resolvConf": "", "makeIPTablesUtilChains": false,
            // The images were brought here by hand: one that is thrown away cannot be pulled again.
            "imageGCHighThresholdPercent": 100,
            // The disk is the machine's, and how full it is no reason to end a pod.
            "evictionHard": {"memory.available": "100Mi"},
        });
        let file = directory.join("kubelet.json");
        fs::write(&file, config.to_string())?;
        let kubeconfig = self.environment.credential(self.settings, IDENTITY)?;
        let mut command = self.in_node(KUBELET)?;
        command
            .arg(flag("config", file.display()))
            .arg(flag("kubeconfig", kubeconfig.display()))
            .arg(flag("hostname-override", NAME))
            .arg(flag("node-ip", network.node()))
            .arg(flag("root-dir", directory.join("kubelet").display()))
            .arg(flag("cert-dir", directory.join("kubelet/pki").display()));
        Ok(Component {
            name: KUBELET,
            version: self.tools.version(KUBELET).to_owned(),
            command,
            probe: Probe::http(format!("http://{}:10248/healthz", network.node())),
            ports: Vec::new(),
        })
    }

    fn proxy(&self, network: Network) -> Result<Component> {
        let kubeconfig = self.environment.credential(self.settings, PROXY_IDENTITY)?;
        let mut command = self.in_node(PROXY)?;
        command
            .arg(flag("kubeconfig", kubeconfig.display()))
            .arg(flag("hostname-override", NAME))
            .arg(flag("cluster-cidr", network.pods()))
            .arg(format!("--healthz-bind-address={}:10256", network.node()))
            .args(["--proxy-mode=nftables", "--metrics-bind-address=127.0.0.1:10249"])
            // How many connections the kernel follows is the machine's business.
            .args(["--conntrack-max-per-core=0", "--conntrack-min=0"])
            .args(["--conntrack-tcp-timeout-established=0s", "--conntrack-tcp-timeout-close-wait=0s"]);
        Ok(Component {
            name: PROXY,
            version: self.tools.version(PROXY).to_owned(),
            command,
            probe: Probe::http(format!("http://{}:10256/healthz", network.node())),
            ports: Vec::new(),
        })
    }

    /// A program inside the node's namespaces.
    fn in_node(&self, program: &str) -> Result<Command> {
        let keeper = keeper(self.environment)?;
        let program = self.tools.program(program)?;
        let mut command = self.marked("/usr/bin/nsenter".into());
        command.args(inside(&keeper, program));
        // containerd finds its shim beside itself.
        let mut path = program
            .parent()
            .map(Path::as_os_str)
            .context("a program without a directory")?
            .to_owned();
        path.push(":");
        path.push(search_path());
        command.env("PATH", path);
        Ok(command)
    }
}

const CONTAINERD_CONFIG: &str = r#"version = 3
root = "{root}"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.tracing.processor.v1.otlp",
]

[grpc]
address = "{socket}"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{pause}"

[plugins."io.containerd.cri.v1.runtime"]
# Where root may not lower a score, no container would start.
restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "{networks}"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
SystemdCgroup = false
"#;
