//! One environment: its directory, its ports and credentials, and the processes that make it up.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::fcntl::{Flock, FlockArg};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::node::{self, Network};
use crate::pki::{Authority, write_private};
use crate::process::{self, Process};

/// Ports are taken from below the range that the kernel gives to outgoing connections, so that a port found free stays free.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// Every listener of an environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Port {
    EtcdClient,
    EtcdPeer,
    ApiServer,
    ControllerManager,
    CoreWebhook,
    CoreHealth,
    CoreDiagnostics,
    ClusterController,
    ControlPlaneController,
    EndpointController,
    SecretsController,
    TenantController,
    WorkspaceController,
    Scheduler,
}

impl Port {
    const ALL: [Self; 14] = [
        Self::EtcdClient,
        Self::EtcdPeer,
        Self::ApiServer,
        Self::ControllerManager,
        Self::CoreWebhook,
        Self::CoreHealth,
        Self::CoreDiagnostics,
        Self::ClusterController,
        Self::ControlPlaneController,
        Self::EndpointController,
        Self::SecretsController,
        Self::TenantController,
        Self::WorkspaceController,
        Self::Scheduler,
    ];
}

/// Who reconciles Workspaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Provider {
    /// The real provider-terraform with the real Terraform.
    Terraform,
    /// A simulator of it, for thousands of clusters.
    Simulator,
}

/// What is chosen once per environment and must survive a restart of its parts.
#[derive(Clone, Serialize, Deserialize)]
pub struct Settings {
    ports: BTreeMap<Port, u16>,
    /// A bearer token per identity.
    tokens: BTreeMap<String, String>,
    /// Where its node is, when it has one.
    #[serde(default)]
    node: Option<Network>,
}

impl Settings {
    pub fn port(&self, port: Port) -> Result<u16> {
        self.ports
            .get(&port)
            .copied()
            .with_context(|| format!("this environment was made by an older version and has no port for {port:?}: run `make down`, then `make up`"))
    }

    pub fn node(&self) -> Option<Network> {
        self.node
    }

    /// Where the API server listens: on the cable to the node, where there is one, and never where strangers are.
    pub fn api_address(&self) -> String {
        self.node
            .map_or_else(|| "127.0.0.1".to_owned(), |network| network.machine().to_string())
    }

    pub fn api_server(&self) -> Result<String> {
        Ok(format!(
            "https://{}:{}",
            self.api_address(),
            self.port(Port::ApiServer)?
        ))
    }

    pub fn token(&self, identity: &str) -> Result<&str> {
        self.tokens
            .get(identity)
            .map(String::as_str)
            .with_context(|| format!("this environment was made by an older version and does not know {identity}: run `make down`, then `make up`"))
    }
}

/// A named environment on this machine; it may or may not be up.
#[derive(Debug, Clone)]
pub struct Environment {
    name: String,
    dir: PathBuf,
    cache: PathBuf,
}

impl Environment {
    pub fn named(name: &str) -> Result<Self> {
        let valid = !name.is_empty()
            && name.len() <= 20
            && name
                .bytes()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-');
        if !valid {
            bail!("ENV={name}: an environment's name has 1 to 20 lower-case letters, digits and dashes");
        }
        Ok(Self {
            name: name.to_owned(),
            dir: states()?.join(name),
            cache: directory("CAPT_CACHE_DIR", "XDG_CACHE_HOME", ".cache")?,
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where built programs are kept, for all environments.
    pub fn cache(&self) -> &Path {
        &self.cache
    }

    pub fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.dir.join(relative)
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.path("kubeconfig")
    }

    pub fn log(&self, component: &str) -> PathBuf {
        self.path("logs").join(format!("{component}.log"))
    }

    pub fn exists(&self) -> bool {
        self.path("settings.json").exists()
    }

    /// Held while the environment is brought up or taken down: two commands at once would start everything twice.
    pub fn lock(&self) -> Result<Flock<fs::File>> {
        fs::create_dir_all(&self.dir).with_context(|| format!("cannot create {}", self.dir.display()))?;
        let file = fs::File::create(self.path("lock"))?;
        Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| {
            anyhow::anyhow!(
                "another command is bringing the environment `{}` up or down: wait for it to end",
                self.name
            )
        })
    }

    pub fn settings(&self) -> Result<Settings> {
        if !self.exists() {
            let which = if self.name == "dev" {
                String::new()
            } else {
                format!(" ENV={}", self.name)
            };
            bail!("the environment `{}` is not up: run `make up{which}`", self.name);
        }
        self.read("settings.json")
    }

    /// Opens the settings, choosing ports, tokens and the node's addresses the first time.
    pub fn prepare(&self, identities: &[&str], with_node: bool) -> Result<Settings> {
        for dir in ["run", "logs", "etcd", "pki", "kubeconfigs", "bin", "terraform"] {
            fs::create_dir_all(self.path(dir))?;
        }
        if !self.exists() {
            let _choosing = lock_ports()?;
            let settings = Settings {
                ports: Port::ALL.into_iter().zip(free_ports(Port::ALL.len())?).collect(),
                tokens: identities
                    .iter()
                    .map(|identity| (identity.to_string(), token()))
                    .collect(),
                node: with_node.then(Network::free).transpose()?,
            };
            self.write("settings.json", &settings)?;
        }
        let settings = self.settings()?;
        if with_node && settings.node.is_none() {
            bail!(
                "the environment `{}` runs without a node, and its API server is not where one could reach it: run `make down`, then `make node-up`",
                self.name
            );
        }
        Ok(settings)
    }

    pub fn authority(&self) -> Result<Authority> {
        Authority::open(&self.path("pki"), &format!("capt {}", self.name))
    }

    /// Writes the kubeconfig of an identity and returns its path.
    pub fn credential(&self, settings: &Settings, identity: &str) -> Result<PathBuf> {
        let path = if identity == "admin" {
            self.kubeconfig()
        } else {
            self.path("kubeconfigs").join(identity)
        };
        let text = kubeconfig(
            &settings.api_server()?,
            self.authority()?.certificate(),
            identity,
            settings.token(identity)?,
        );
        if fs::read_to_string(&path).ok().as_deref() != Some(&text) {
            write_private(&path, &text)?;
        }
        Ok(path)
    }

    /// The running process of a component.
    pub fn process(&self, component: &str) -> Option<Record> {
        let record: Record = self.read(format!("run/{component}.json")).ok()?;
        record.process.is_alive().then_some(record)
    }

    pub fn record(&self, component: &str, record: &Record) -> Result<()> {
        self.write(format!("run/{component}.json"), record)
    }

    /// Ends everything that belongs to this environment and forgets its data; the logs stay.
    pub async fn destroy(&self, order: &[&[&str]]) -> Result<usize> {
        let mut ended = 0;
        for components in order {
            let running: Vec<Process> = components
                .iter()
                .filter_map(|name| Some(self.process(name)?.process))
                .collect();
            ended += running.len();
            futures::future::join_all(running.iter().map(|process| process.stop(Duration::from_secs(5)))).await;
        }
        node::end_pods(self).await?;
        // What the parts started in turn: Terraform, and the clusters of the local cloud.
        let left = process::marked(&self.dir);
        ended += left.len();
        futures::future::join_all(left.iter().map(|process| process.stop(Duration::from_secs(5)))).await;
        if let Some(network) = self.settings().ok().and_then(|settings| settings.node()) {
            node::unplug(self, network).await?;
        }
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let path = entry.path();
            match entry.file_name().to_str() {
                Some("logs" | "lock") => {}
                _ if path.is_dir() => fs::remove_dir_all(&path)?,
                _ => fs::remove_file(&path)?,
            }
        }
        Ok(ended)
    }

    pub fn read<T: DeserializeOwned>(&self, relative: impl AsRef<Path>) -> Result<T> {
        let path = self.path(relative);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text)
            .with_context(|| format!("{} is damaged: run `make down`, then `make up`", path.display()))
    }

    pub fn write<T: Serialize>(&self, relative: impl AsRef<Path>, value: &T) -> Result<()> {
        write_private(&self.path(relative), &serde_json::to_string_pretty(value)?)
    }
}

/// A component that was started, and from what: a changed program or flag means a restart.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    pub process: Process,
    pub fingerprint: String,
}

/// A kubeconfig with one context and a bearer token.
pub fn kubeconfig(server: &str, authority: &str, user: &str, token: &str) -> String {
    use base64::Engine;
    let authority = base64::engine::general_purpose::STANDARD.encode(authority);
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: capt\n\
         clusters:\n- name: capt\n  cluster:\n    server: {server}\n    certificate-authority-data: {authority}\n\
         users:\n- name: {user}\n  user:\n    token: {token}\n\
         contexts:\n- name: capt\n  context:\n    cluster: capt\n    user: {user}\n"
    )
}

/// Held from choosing ports until they are written down.
fn lock_ports() -> Result<Flock<fs::File>> {
    let file = fs::File::create(states()?.join("ports.lock"))?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| anyhow::anyhow!("cannot lock the ports: {error}"))
}

/// The ports of all environments: one that is starting does not listen on its own yet.
fn promised_ports() -> Result<BTreeSet<u16>> {
    let mut ports = BTreeSet::new();
    for environment in fs::read_dir(states()?).into_iter().flatten().flatten() {
        // Some are not up, and some go at this moment.
        let settings = fs::read(environment.path().join("settings.json")).unwrap_or_default();
        if let Ok(settings) = serde_json::from_slice::<Settings>(&settings) {
            ports.extend(settings.ports.values());
        }
    }
    Ok(ports)
}

/// Ports that nothing listens on now, and that no environment will.
pub fn free_ports(count: usize) -> Result<Vec<u16>> {
    let promised = promised_ports()?;
    // Start anywhere in the range, so that those who do not tell which ports they take seldom look at the same port.
    let width = PORTS.end - PORTS.start;
    let start = u16::from_be_bytes(random()) % width;
    let free: Vec<u16> = (0..width)
        .map(|step| PORTS.start + (start + step) % width)
        .filter(|port| !promised.contains(port) && is_free(*port))
        .take(count)
        .collect();
    if free.len() < count {
        bail!("no free ports between {} and {}", PORTS.start, PORTS.end);
    }
    Ok(free)
}

pub fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

/// An unguessable bearer token.
pub fn token() -> String {
    random::<24>().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // The kernel's generator; on Linux it cannot fail once the machine has booted.
    if let Ok(mut source) = fs::File::open("/dev/urandom") {
        let _ = std::io::Read::read_exact(&mut source, &mut bytes);
    }
    bytes
}

/// Where all environments keep what they are made of.
fn states() -> Result<PathBuf> {
    directory("CAPT_STATE_DIR", "XDG_STATE_HOME", ".local/state")
}

fn directory(own: &str, xdg: &str, under_home: &str) -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os(own).filter(|dir| !dir.is_empty()) {
        return Ok(dir.into());
    }
    if let Some(dir) = std::env::var_os(xdg).filter(|dir| !dir.is_empty()) {
        return Ok(PathBuf::from(dir).join("capt"));
    }
    let home = std::env::var_os("HOME").with_context(|| {
        format!("neither {own} nor HOME is set: set one, so that there is a place for the environment")
    })?;
    Ok(PathBuf::from(home).join(under_home).join("capt"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_before_they_become_directories() {
        for bad in ["", "..", "a/b", "A", "a b", &"x".repeat(21)] {
            let error = Environment::named(bad).unwrap_err().to_string();
            assert!(error.contains("lower-case"), "{error}");
        }
        assert!(Environment::named("ci-2").is_ok());
    }

    #[test]
    fn free_ports_are_free_and_differ() {
        let ports = free_ports(8).unwrap();
        let unique: BTreeSet<_> = ports.iter().collect();
        assert_eq!(unique.len(), 8);
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(!is_free(taken.local_addr().unwrap().port()));
    }

    #[test]
    fn tokens_differ() {
        assert_ne!(token(), token());
        assert_eq!(token().len(), 48);
    }
}
