//! The environment behind the make targets: `make up`, `status`, `logs`, `cloud`, `requests`, `down`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use capt_e2e::environment::{Environment, Provider};
use capt_e2e::tools::Toolbox;
use capt_e2e::{audit, cloud, components, demo, logs, node, packages, simulator, status, up};
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

/// A real Cluster API management cluster on this machine: etcd, Kubernetes, Cluster API core, provider-terraform, CAPT.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Cli {
    /// Which environment; several can run side by side.
    #[arg(long, env = "ENV", default_value = "dev", global = true)]
    env: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start the environment, or whatever of it has died, and return when everything is ready.
    Up {
        /// Who reconciles Workspaces.
        #[arg(long, env = "PROVIDER", value_enum, default_value = "terraform")]
        provider: Provider,
        /// With a real node; the controllers then come as pods, by `install`.
        #[arg(long)]
        node: bool,
    },
    /// Find out whether this machine can have a node, by trying; nothing is left of the trial.
    CheckNode,
    /// Install this tree's chart on the node, with this tree's images, and wait until every pod is ready.
    Install {
        /// Where `make images` has put them.
        #[arg(long, default_value = "dist/images")]
        images: PathBuf,
        /// Values of the chart, as for Helm; may be given several times.
        #[arg(long, short = 'f')]
        values: Vec<PathBuf>,
    },
    /// Start the environment if need be, make a cluster from docs/examples/local and show it coming up.
    Demo {
        /// Delete that cluster instead, and show it going.
        #[arg(long)]
        delete: bool,
    },
    /// End every process of the environment and forget its data; the logs stay.
    Down,
    /// Show what runs, in which version, and whether it is ready.
    Status,
    /// Show the end of a component's log.
    Logs {
        /// A component as `status` names it; all of them are listed when left out.
        component: Option<String>,
        /// Go on showing what is written.
        #[arg(long, short)]
        follow: bool,
        /// How many lines to begin with.
        #[arg(long, short = 'n', default_value_t = 50)]
        lines: usize,
    },
    /// Print the path of the administrator's kubeconfig.
    Kubeconfig,
    /// The local cloud, which the Terraform of the local templates manages.
    Cloud {
        #[command(subcommand)]
        command: cloud::Command,
    },
    /// Reconcile Workspaces without Terraform.
    Simulate(simulator::Args),
    /// Count the requests in the API server's audit log, by who asked and how.
    Requests,
    /// Build the pinned programs and print where they are.
    Tools {
        /// Helm and what else the chart needs, in place of the environment's programs.
        #[arg(long)]
        chart: bool,
    },
    /// Start the environment, run a command in it, and take it down again, whatever the command's end.
    Run {
        #[arg(long, value_enum, default_value = "terraform")]
        provider: Provider,
        #[arg(trailing_var_arg = true, required = true)]
        command: Vec<String>,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> Result<ExitCode> {
    let environment = Environment::named(&cli.env)?;
    match cli.command {
        Command::Up { provider, node } => {
            let _lock = environment.lock()?;
            unless_interrupted(&environment, bring_up(&environment, provider, node)).await?;
            println!(
                "\nThe environment `{}` is up. Use it with\n\n    export KUBECONFIG={}\n",
                environment.name(),
                environment.kubeconfig().display()
            );
        }
        Command::CheckNode => node::check().await?,
        Command::Install { images, values } => {
            let said = node::install::install(&environment, &images, &values).await?;
            println!(
                "{said}\nOn this node: `make demo` makes a cluster of docs/examples/local, `make node-down` removes everything."
            );
        }
        Command::Demo { delete: true } => demo::delete(&environment).await?,
        Command::Demo { delete: false } => {
            let lock = environment.lock()?;
            unless_interrupted(&environment, bring_up(&environment, Provider::Terraform, false)).await?;
            drop(lock);
            demo::create(&environment, &Toolbox::ready(environment.cache()).await?).await?;
        }
        Command::Down => {
            let _lock = environment.lock()?;
            let ended = environment.destroy(components::SHUTDOWN).await?;
            println!(
                "The environment `{}` is down ({ended} processes ended); its logs are in {}",
                environment.name(),
                environment.path("logs").display()
            );
        }
        Command::Status => return status::show(&environment).await,
        Command::Logs {
            component,
            follow,
            lines,
        } => logs::show(&environment, component.as_deref(), lines, follow).await?,
        Command::Kubeconfig => {
            environment.settings()?;
            println!("{}", environment.kubeconfig().display());
        }
        Command::Cloud { command } => cloud::run(&environment, command).await?,
        Command::Simulate(args) => simulator::run(args).await?,
        Command::Requests => print!("{}", audit::read(&environment)?.table()),
        Command::Tools { chart } => {
            let tools = match chart {
                true => Toolbox::for_chart(environment.cache()).await?,
                false => Toolbox::ready(environment.cache()).await?,
            };
            for dir in tools.directories() {
                println!("{}", dir.display());
            }
        }
        Command::Run { provider, command } => return run_inside(&environment, provider, &command).await,
    }
    Ok(ExitCode::SUCCESS)
}

async fn bring_up(environment: &Environment, provider: Provider, with_node: bool) -> Result<()> {
    let with_node = with_node || (environment.exists() && environment.settings()?.node().is_some());
    if with_node {
        node::check().await?;
    }
    packages::ready(packages::OF_PROVIDER).await?;
    let tools = match with_node {
        true => Toolbox::with_node(environment.cache()).await?,
        false => Toolbox::ready(environment.cache()).await?,
    };
    up::up(environment, &tools, provider, with_node).await
}

/// Runs a command in a fresh environment; its exit code becomes ours.
async fn run_inside(environment: &Environment, provider: Provider, command: &[String]) -> Result<ExitCode> {
    let _lock = environment.lock()?;
    environment.destroy(components::SHUTDOWN).await?;
    let outcome = unless_interrupted(environment, async {
        bring_up(environment, provider, false).await?;
        let (program, arguments) = command
            .split_first()
            .ok_or_else(|| anyhow::anyhow!("no command to run"))?;
        let mut child = tokio::process::Command::new(program);
        child
            .args(arguments)
            .env("KUBECONFIG", environment.kubeconfig())
            .env("CAPT_ENV", environment.name())
            .kill_on_drop(true);
        Ok(child.status().await?)
    })
    .await;
    environment.destroy(components::SHUTDOWN).await?;
    Ok(ExitCode::from(
        outcome?.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1),
    ))
}

/// Ctrl-C at any moment leaves nothing running.
async fn unless_interrupted<T>(environment: &Environment, work: impl Future<Output = Result<T>>) -> Result<T> {
    let (mut interrupt, mut terminate, mut hangup) = (
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
        signal(SignalKind::hangup())?,
    );
    tokio::select! {
        result = work => return result,
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    eprintln!("\ninterrupted: taking the environment `{}` down", environment.name());
    environment.destroy(components::SHUTDOWN).await?;
    anyhow::bail!("interrupted; nothing is left running")
}
