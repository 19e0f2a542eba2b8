//! What all trials share: an environment with a quick provider and no controllers, and an observer.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use capt_e2e::components::{SIMULATOR, TENANT_CONTROLLER, all_controllers};
use capt_e2e::environment::{Environment, Settings, kubeconfig};
use capt_e2e::process::MARK;
use capt_e2e::testing::{Scratch, simulated};
use capt_e2e::{pki, simulator, up};
use clap::Parser;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::observer::Observer;

const PROGRAM: &str = env!("CARGO_BIN_EXE_capt-e2e");

/// A controller's program, of this tree.
pub(crate) fn program(controller: &str) -> PathBuf {
    Path::new(PROGRAM).with_file_name(controller)
}

pub(crate) struct Bench {
    pub(crate) client: Client,
    pub(crate) observer: Observer,
    /// How the API server is reached.
    pub(crate) upstream: Config,
    /// What the EKS template asks for: the management cluster itself, so that core has something to connect to.
    pub(crate) access: Value,
    settings: Settings,
    authority: String,
    _simulator: JoinSet<Result<()>>,
    scratch: Scratch,
}

impl Bench {
    pub(crate) async fn new(name: &str) -> Result<Self> {
        let scratch = Scratch::named(PROGRAM, name)?;
        // Of earlier runs; a large one would be set aside in the middle of this run, and what it says be overlooked.
        let audit = scratch.environment.path("logs/audit.log");
        if audit.exists() {
            fs::remove_file(&audit)?;
        }
        scratch.up(&["--provider", "simulator"])?;
        let environment = &scratch.environment;
        // Each trial brings its own controllers, and the provider is replaced by a quicker one.
        let running = all_controllers().map(|own| own.name).chain([SIMULATOR]);
        let running: Vec<_> = running.filter_map(|name| environment.process(name)).collect();
        ensure!(running.len() == all_controllers().count() + 1, "not everything came up");
        let grace = Duration::from_secs(10);
        futures::future::join_all(running.iter().map(|record| record.process.stop(grace))).await;

        let logs = environment.path("logs/faults");
        if logs.exists() {
            fs::remove_dir_all(&logs)?;
        }
        let settings = environment.settings()?;
        let authority = environment.authority()?.certificate().to_owned();
        let server = settings.api_server()?;
        let access = simulated::access(environment, &server)?;
        let admin = Kubeconfig::read_from(environment.kubeconfig())?;
        let upstream = Config::from_custom_kubeconfig(admin, &KubeConfigOptions::default()).await?;
        let client = up::client(&environment.kubeconfig()).await?;
        Ok(Self {
            observer: Observer::start(&client),
            client,
            upstream,
            access,
            authority,
            _simulator: simulate(environment, &settings).await?,
            settings,
            scratch,
        })
    }

    pub(crate) fn environment(&self) -> &Environment {
        &self.scratch.environment
    }

    pub(crate) fn server(&self) -> Result<String> {
        self.settings.api_server()
    }

    /// Where the logs and the evidence of a trial are kept; they outlive the environment.
    pub(crate) fn evidence(&self, trial: &str) -> Result<PathBuf> {
        let directory = self.environment().path("logs/faults").join(trial);
        fs::create_dir_all(&directory)?;
        Ok(directory)
    }

    /// Starts a controller that works for one trial and takes `server` for the API server.
    pub(crate) fn start(&self, program: &Path, namespace: &str, server: &str, logs: &Path) -> Result<Child> {
        let controller = program.file_name().and_then(OsStr::to_str).context("not a program")?;
        let credential = self
            .environment()
            .path("kubeconfigs")
            .join(format!("{namespace}-{controller}"));
        let text = kubeconfig(server, &self.authority, controller, self.settings.token(controller)?);
        pki::write_private(&credential, &text)?;
        // Tenants are in no namespace, and carry the trial's name instead.
        let scope = match controller {
            TENANT_CONTROLLER => "watch-filter",
            _ => "namespace",
        };
        let log = logs.join(format!("{controller}.log"));
        let log = OpenOptions::new().create(true).append(true).open(log)?;
        let mut command = Command::new(program);
        command
            // A successor must not wait for a Lease.
            .args(["--leader-elect=false", "--metrics-bind-address=127.0.0.1:0"])
            .arg(format!("--{scope}={namespace}"))
            .env("KUBECONFIG", &credential)
            // So that the environment can end it when this program could not.
            .env(MARK, self.environment().dir())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true);
        command
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))
    }
}

#[derive(clap::Parser)]
struct Flags {
    #[command(flatten)]
    args: simulator::Args,
}

/// A provider that does not let a young Workspace wait for half a minute before it goes.
async fn simulate(environment: &Environment, settings: &Settings) -> Result<JoinSet<Result<()>>> {
    let client = up::client(&environment.credential(settings, SIMULATOR)?).await?;
    let flags = Flags::try_parse_from(["simulator", "--creation-grace-seconds=0"])?;
    let (ready, is_ready) = oneshot::channel();
    let mut running = JoinSet::new();
    running.spawn(simulator::serve(client, flags.args, ready));
    is_ready.await.context("the simulator ended before it was ready")?;
    Ok(running)
}
