//! The parts of an environment: how each is started, and how one knows that it is ready.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use capt_runtime::rbac::Rule;

use crate::environment::{Environment, Port, Settings};
use crate::node;
use crate::probe::Probe;
use crate::process::MARK;
use crate::tools::Toolbox;

pub const ETCD: &str = "etcd";
pub const API_SERVER: &str = "kube-apiserver";
pub const CONTROLLER_MANAGER: &str = "kube-controller-manager";
pub const CORE: &str = "cluster-api-core";
pub const PROVIDER: &str = "provider-terraform";
pub const SIMULATOR: &str = "simulator";
pub const CLUSTER_CONTROLLER: &str = "capt-cluster-controller";
pub const CONTROL_PLANE_CONTROLLER: &str = "capt-controlplane-controller";
pub const ENDPOINT_CONTROLLER: &str = "capt-endpoint";
pub const SECRETS_CONTROLLER: &str = "capt-secrets";
pub const TENANT_CONTROLLER: &str = "capt-tenant-controller";
pub const WORKSPACE_CONTROLLER: &str = "capt-workspace-controller";

/// A controller of this tree: where it serves its health, and what it may do.
#[derive(Debug)]
pub struct OwnController {
    pub name: &'static str,
    port: Port,
    pub everywhere: &'static [Rule],
}

/// Those that make clusters.
pub const CONTROLLERS: &[OwnController] = &[
    OwnController {
        name: CLUSTER_CONTROLLER,
        port: Port::ClusterController,
        everywhere: capt_cluster_controller::EVERYWHERE,
    },
    OwnController {
        name: CONTROL_PLANE_CONTROLLER,
        port: Port::ControlPlaneController,
        everywhere: capt_controlplane_controller::EVERYWHERE,
    },
    OwnController {
        name: ENDPOINT_CONTROLLER,
        port: Port::EndpointController,
        everywhere: capt_endpoint::EVERYWHERE,
    },
    OwnController {
        name: SECRETS_CONTROLLER,
        port: Port::SecretsController,
        everywhere: capt_secrets::EVERYWHERE,
    },
    OwnController {
        name: WORKSPACE_CONTROLLER,
        port: Port::WorkspaceController,
        everywhere: capt_workspace_controller::EVERYWHERE,
    },
];

/// And the one that makes namespaces.
pub const TENANTS: OwnController = OwnController {
    name: TENANT_CONTROLLER,
    port: Port::TenantController,
    everywhere: capt_tenant_controller::EVERYWHERE,
};

/// All of them.
pub fn all_controllers() -> impl Iterator<Item = &'static OwnController> {
    CONTROLLERS.iter().chain([&TENANTS])
}

/// Where the controllers keep their Leases.
pub const CONTROLLER_NAMESPACE: &str = "capt-system";

/// What ends before what: nobody should lose the API server while it is still at work.
pub const SHUTDOWN: &[&[&str]] = &[
    &[
        CLUSTER_CONTROLLER,
        CONTROL_PLANE_CONTROLLER,
        ENDPOINT_CONTROLLER,
        SECRETS_CONTROLLER,
        TENANT_CONTROLLER,
        WORKSPACE_CONTROLLER,
    ],
    // The kubelet first: it would start again what ends below it.
    &[node::SCHEDULER, node::KUBELET, node::PROXY],
    &[node::CONTAINERD],
    &[node::NAMESPACES],
    &[PROVIDER, SIMULATOR],
    &[CORE, CONTROLLER_MANAGER],
    &[API_SERVER],
    &[ETCD],
];

/// Everyone who talks to the API server, with the groups they are in. The audit log tells them apart.
pub const IDENTITIES: &[(&str, &str)] = &[
    ("admin", "system:masters"),
    ("system:kube-controller-manager", ""),
    (CORE, "capt:environment"),
    (PROVIDER, "capt:environment"),
    (SIMULATOR, "capt:environment"),
    (CLUSTER_CONTROLLER, ""),
    (CONTROL_PLANE_CONTROLLER, ""),
    (ENDPOINT_CONTROLLER, ""),
    (SECRETS_CONTROLLER, ""),
    (TENANT_CONTROLLER, ""),
    (WORKSPACE_CONTROLLER, ""),
    (node::IDENTITY, "system:nodes"),
    (node::PROXY_IDENTITY, ""),
    (node::SCHEDULER_IDENTITY, ""),
];

/// Namespace of Terraform's state and locks.
pub const STATE_NAMESPACE: &str = "crossplane-system";

/// A part that can be started.
pub struct Component {
    pub name: &'static str,
    pub version: String,
    pub command: Command,
    pub probe: Probe,
    pub ports: Vec<u16>,
}

/// Builds the parts of one environment.
pub struct Parts<'a> {
    pub environment: &'a Environment,
    pub settings: &'a Settings,
    pub tools: &'a Toolbox,
}

impl Parts<'_> {
    pub fn etcd(&self) -> Result<Component> {
        let (client, peer) = (self.port(Port::EtcdClient)?, self.port(Port::EtcdPeer)?);
        let client_url = format!("http://127.0.0.1:{client}");
        let mut command = self.command(ETCD)?;
        command.arg(flag("data-dir", self.environment.path("etcd").display()));
        command
            .arg(flag("listen-client-urls", &client_url))
            .arg(flag("advertise-client-urls", &client_url));
        command.arg(format!("--listen-peer-urls=http://127.0.0.1:{peer}"));
        // A test environment that loses power is made anew; syncing every write would only make it slow.
        command.args([
            "--unsafe-no-fsync",
            "--quota-backend-bytes=8589934592",
            "--auto-compaction-retention=30m",
            "--log-level=warn",
        ]);
        Ok(Component {
            name: ETCD,
            version: self.tools.version(ETCD).to_owned(),
            command,
            probe: Probe::http(format!("{client_url}/health")),
            ports: vec![client, peer],
        })
    }

    pub fn api_server(&self) -> Result<Component> {
        let authority = self.environment.authority()?;
        let address = self.settings.api_address();
        let serving = authority.server(
            API_SERVER,
            &[
                "localhost",
                "kubernetes.default.svc",
                "127.0.0.1",
                "198.18.0.1",
                &address,
            ],
        )?;
        let accounts = authority.service_accounts()?;
        let port = self.port(Port::ApiServer)?;
        let mut command = self.command(API_SERVER)?;
        command.arg(format!(
            "--etcd-servers=http://127.0.0.1:{}",
            self.port(Port::EtcdClient)?
        ));
        command.arg(flag("secure-port", port));
        command
            .arg(flag("tls-cert-file", serving.certificate.display()))
            .arg(flag("tls-private-key-file", serving.key.display()));
        command.arg(flag("client-ca-file", authority.certificate_file().display()));
        command.arg(flag("token-auth-file", self.tokens()?.display()));
        command.arg(flag("service-account-key-file", accounts.certificate.display()));
        command.arg(flag("service-account-signing-key-file", accounts.key.display()));
        command.arg(flag("audit-policy-file", self.audit_policy()?.display()));
        command.arg(flag(
            "audit-log-path",
            self.environment.path("logs/audit.log").display(),
        ));
        command.arg(flag("bind-address", &address));
        // blockOwnerDeletion then needs a permission, as on hardened clusters.
        let mut admission = "OwnerReferencesPermissionEnforcement".to_owned();
        let mut authorization = "RBAC";
        if self.settings.node().is_some() {
            // A kubelet may do what concerns its own node and pods.
            admission.push_str(",NodeRestriction");
            authorization = "Node,RBAC";
            let client = authority.client(node::KUBELET_CLIENT)?;
            command
                .arg(flag("kubelet-client-certificate", client.certificate.display()))
                .arg(flag("kubelet-client-key", client.key.display()))
                .arg(flag(
                    "kubelet-certificate-authority",
                    authority.certificate_file().display(),
                ))
                .arg("--kubelet-preferred-address-types=InternalIP");
        }
        command
            .arg(flag("enable-admission-plugins", admission))
            .arg(flag("authorization-mode", authorization));
        command.args([
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=198.18.0.0/16",
            "--audit-log-maxsize=1024",
            "--profiling=false",
            // etcd forgets old versions by itself, later: faults/proxy shows controllers the world as it was minutes ago.
            "--etcd-compaction-interval=0",
        ]);
        Ok(Component {
            name: API_SERVER,
            version: self.tools.version(API_SERVER).to_owned(),
            command,
            probe: Probe::https(
                format!("{}/readyz", self.settings.api_server()?),
                authority.certificate(),
            ),
            ports: vec![port],
        })
    }

    pub fn controller_manager(&self) -> Result<Component> {
        let authority = self.environment.authority()?;
        let serving = authority.server(CONTROLLER_MANAGER, &["localhost", "127.0.0.1"])?;
        let port = self.port(Port::ControllerManager)?;
        let kubeconfig = self
            .environment
            .credential(self.settings, "system:kube-controller-manager")?;
        let mut command = self.command(CONTROLLER_MANAGER)?;
        command.arg(flag("kubeconfig", kubeconfig.display()));
        command.arg(flag(
            "service-account-private-key-file",
            authority.service_accounts()?.key.display(),
        ));
        command.arg(flag("root-ca-file", authority.certificate_file().display()));
        command
            .arg(flag("tls-cert-file", serving.certificate.display()))
            .arg(flag("tls-private-key-file", serving.key.display()));
        command.arg(flag("secure-port", port));
        command.args([
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
            "--use-service-account-credentials",
            "--profiling=false",
        ]);
        Ok(Component {
            name: CONTROLLER_MANAGER,
            version: self.tools.version(CONTROLLER_MANAGER).to_owned(),
            command,
            probe: Probe::https(format!("https://127.0.0.1:{port}/healthz"), authority.certificate()),
            ports: vec![port],
        })
    }

    pub fn core(&self) -> Result<Component> {
        let (webhook, health, diagnostics) = (
            self.port(Port::CoreWebhook)?,
            self.port(Port::CoreHealth)?,
            self.port(Port::CoreDiagnostics)?,
        );
        let serving = self
            .environment
            .authority()?
            .server(CORE, &["localhost", "127.0.0.1"])?;
        // It looks for files of these names in a directory of its own.
        let certificates = self.environment.path("pki/webhook");
        fs::create_dir_all(&certificates)?;
        fs::copy(&serving.certificate, certificates.join("tls.crt"))?;
        fs::copy(&serving.key, certificates.join("tls.key"))?;
        let mut command = self.command(CORE)?;
        command.arg(flag(
            "kubeconfig",
            self.environment.credential(self.settings, CORE)?.display(),
        ));
        command
            .arg(flag("webhook-cert-dir", certificates.display()))
            .arg(flag("webhook-port", webhook));
        command
            .arg(format!("--health-addr=127.0.0.1:{health}"))
            .arg(format!("--diagnostics-address=127.0.0.1:{diagnostics}"));
        command.args(["--insecure-diagnostics", "--feature-gates=ClusterTopology=true"]);
        Ok(Component {
            name: CORE,
            version: self.tools.version(CORE).to_owned(),
            command,
            probe: Probe::http(format!("http://127.0.0.1:{health}/readyz")),
            ports: vec![webhook, health, diagnostics],
        })
    }

    pub fn provider(&self) -> Result<Component> {
        let kubeconfig = self.environment.credential(self.settings, PROVIDER)?;
        let mut command = self.command(PROVIDER)?;
        command.args(["--poll=1m", "--max-reconcile-rate=10", "--debug"]);
        // What the caller set up for a Terraform of its own (arguments, a configuration file, variables) is not meant for this one.
        for (variable, _) in std::env::vars_os().filter(|(variable, _)| variable.as_encoded_bytes().starts_with(b"TF_"))
        {
            command.env_remove(variable);
        }
        command.env("KUBECONFIG", &kubeconfig);
        // Terraform's kubernetes backend does not read KUBECONFIG.
        command.env("KUBE_CONFIG_PATH", &kubeconfig);
        command.env("XP_TF_DIR", self.environment.path("terraform"));
        command.env("TMPDIR", self.environment.path("terraform"));
        command.env("CHECKPOINT_DISABLE", "1");
        command.env("TF_VAR_cloud_dir", self.environment.path("cloud"));
        // The pinned Terraform comes first: a state touched by another version does not open again.
        let terraform = self
            .tools
            .program("terraform")?
            .parent()
            .map(Path::to_path_buf)
            .unwrap_or_default();
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let search = [terraform, self.environment.path("bin")]
            .into_iter()
            .chain(std::env::split_paths(&inherited));
        command.env("PATH", std::env::join_paths(search)?);
        Ok(Component {
            name: PROVIDER,
            version: self.tools.version(PROVIDER).to_owned(),
            command,
            // It serves no health endpoint; a started worker is the sign of life that it gives.
            probe: Probe::LogLine("Starting workers"),
            ports: Vec::new(),
        })
    }

    pub fn simulator(&self) -> Result<Component> {
        let mut command = self.marked(std::env::current_exe()?);
        command.arg("--env").arg(self.environment.name()).arg("simulate");
        command.env("KUBECONFIG", self.environment.credential(self.settings, SIMULATOR)?);
        Ok(Component {
            name: SIMULATOR,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command,
            probe: Probe::LogLine("simulator ready"),
            ports: Vec::new(),
        })
    }

    pub fn controllers(&self) -> Result<Vec<Component>> {
        all_controllers()
            .map(|own| self.controller(own.name, own.port))
            .collect()
    }

    /// A controller of this tree, with its own credential.
    fn controller(&self, name: &'static str, port: Port) -> Result<Component> {
        let port = self.port(port)?;
        let binary = std::env::current_exe()?.with_file_name(name);
        let mut command = self.marked(binary);
        command.arg(format!("--metrics-bind-address=127.0.0.1:{port}"));
        command.arg(flag("leader-elect-namespace", CONTROLLER_NAMESPACE));
        command.env("KUBECONFIG", self.environment.credential(self.settings, name)?);
        Ok(Component {
            name,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command,
            probe: Probe::http(format!("http://127.0.0.1:{port}/readyz")),
            ports: vec![port],
        })
    }

    fn port(&self, port: Port) -> Result<u16> {
        self.settings.port(port)
    }

    pub(crate) fn command(&self, program: &str) -> Result<Command> {
        Ok(self.marked(self.tools.program(program)?.to_path_buf()))
    }

    pub(crate) fn marked(&self, program: PathBuf) -> Command {
        let mut command = Command::new(program);
        // What the caller has in its environment must not change what runs here.
        for variable in ["KUBECONFIG", "RUST_LOG", "GODEBUG"] {
            command.env_remove(variable);
        }
        command
            .env(MARK, self.environment.dir())
            .current_dir(self.environment.dir());
        command
    }

    fn tokens(&self) -> Result<PathBuf> {
        let mut lines = String::new();
        for (identity, groups) in IDENTITIES {
            lines.push_str(&format!(
                "{},{identity},{identity},\"{groups}\"\n",
                self.settings.token(identity)?
            ));
        }
        let path = self.environment.path("pki/tokens.csv");
        crate::pki::write_private(&path, &lines)?;
        Ok(path)
    }

    fn audit_policy(&self) -> Result<PathBuf> {
        let path = self.environment.path("audit-policy.yaml");
        fs::write(&path, AUDIT_POLICY).context("cannot write the audit policy")?;
        Ok(path)
    }
}

/// Who asked for what, once per request, without bodies; health checks and discovery are left out.
const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  nonResourceURLs: ['*']
- level: Metadata
";

pub(crate) fn flag(name: &str, value: impl std::fmt::Display) -> String {
    format!("--{name}={value}")
}
