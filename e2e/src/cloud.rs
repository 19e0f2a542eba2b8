//! The local cloud: what the Terraform of the `local-vpc` and `local-eks` templates really makes, outside the management cluster.
//!
//! A network is an entry in a ledger; a cluster is an entry and a kube-apiserver of its own. Terraform has no plugins here, so
//! its provisioners call `capt-cloud`, which is this module behind a script. Whatever was made stays in the ledger until it was
//! removed: an entry that nobody asked for any more is a leak.

mod cluster;
mod faults;
mod inputs;
mod ledger;
mod vpc;

use anyhow::Result;
use clap::Subcommand;
use futures::future::join_all;

use crate::environment::Environment;
use crate::progress::{Step, elapsed};

pub use cluster::{keys_in_etcd, process};
pub use ledger::{Entry, Kind};

use faults::{Faults, Orders};
use ledger::Ledger;

/// What `capt-cloud` does.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List everything that exists in the cloud.
    List {
        /// One JSON array, with all that Terraform asked for.
        #[arg(long)]
        json: bool,
    },
    /// Networks; called by Terraform.
    #[command(subcommand)]
    Vpc(VpcCommand),
    /// Clusters; called by Terraform.
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Make Terraform's next runs fail for one resource, whatever its variables say.
    Fault {
        /// The resource's name, as `list` shows it: the name of its Terraform workspace. It need not exist yet.
        name: String,
        /// Let every apply fail with this message.
        #[arg(long, value_name = "MESSAGE", required_unless_present = "destroy")]
        apply: Option<String>,
        /// Let every destroy fail with this message.
        #[arg(long, value_name = "MESSAGE")]
        destroy: Option<String>,
    },
    /// Free a resource of all faults, whatever its variables say, until it is deleted.
    Heal {
        /// The resource's name, as `list` shows it.
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum VpcCommand {
    /// Make the network, or bring an existing one to what CAPT_CLOUD_INPUT says.
    Apply,
    /// Remove the network.
    Delete,
}

#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Make the cluster, or bring an existing one to what CAPT_CLOUD_INPUT says.
    Apply,
    /// End the cluster and remove its data.
    Delete,
    /// Give the cluster a new administrator's token; the old one ends.
    Rotate {
        /// The cluster's name, as `list` shows it.
        name: String,
    },
}

/// The places of one environment's cloud.
struct Cloud<'a> {
    environment: &'a Environment,
    ledger: Ledger,
    faults: Faults,
}

impl<'a> Cloud<'a> {
    fn of(environment: &'a Environment) -> Result<Self> {
        Ok(Self {
            environment,
            ledger: Ledger::open(&environment.path("cloud"))?,
            faults: Faults::open(environment.path("cloud/faults"))?,
        })
    }
}

pub async fn run(environment: &Environment, command: Command) -> Result<()> {
    // Says so when there is no environment, before a directory is made for it.
    environment.settings()?;
    let cloud = Cloud::of(environment)?;
    match command {
        Command::List { json: true } => println!("{}", serde_json::to_string_pretty(&cloud.ledger.entries()?)?),
        Command::List { json: false } => print!("{}", table(environment, &cloud.ledger.entries()?)),
        Command::Vpc(VpcCommand::Apply) => vpc::apply(&cloud).await.map_err(preformatted)?,
        Command::Vpc(VpcCommand::Delete) => vpc::delete(&cloud).await.map_err(preformatted)?,
        Command::Cluster(ClusterCommand::Apply) => cluster::apply(&cloud).await.map_err(preformatted)?,
        Command::Cluster(ClusterCommand::Delete) => cluster::delete(&cloud).await.map_err(preformatted)?,
        Command::Cluster(ClusterCommand::Rotate { name }) => cluster::rotate(&cloud, &name).await?,
        Command::Fault { name, apply, destroy } => {
            inputs::check_name(&name)?;
            cloud.faults.order(&name, &Orders { apply, destroy })?;
            println!("{name} fails as ordered, until `capt-cloud heal {name}`");
        }
        Command::Heal { name } => {
            inputs::check_name(&name)?;
            cloud.faults.order(&name, &Orders::default())?;
            println!("{name} has no faults any more, whatever its variables say");
        }
    }
    Ok(())
}

/// Everything that exists in the cloud of this environment.
pub fn entries(environment: &Environment) -> Result<Vec<Entry>> {
    Cloud::of(environment)?.ledger.entries()
}

/// Whether Terraform waits for a resource that is slow on purpose: it has its lock, and nothing to ask the API server.
pub fn lingers(environment: &Environment, name: &str) -> Result<bool> {
    Ok(Cloud::of(environment)?.faults.lingers(name))
}

/// Starts the clusters that died, on the ports that are known of them. One that never became ready is left to Terraform.
pub async fn heal(environment: &Environment) -> Result<()> {
    let cloud = Cloud::of(environment)?;
    let clusters: Vec<Entry> = cloud
        .ledger
        .entries()?
        .into_iter()
        .filter(|entry| entry.kind == Kind::Cluster)
        .collect();
    let dead = clusters.iter().filter(|entry| {
        cluster::endpoint(environment, entry).is_some() && cluster::process(environment, &entry.name).is_none()
    });
    let started = join_all(dead.map(async |entry| {
        let step = Step::start(format!("start cluster {} of the local cloud", entry.name));
        cluster::restart(&cloud, &entry.name).await?;
        step.done();
        anyhow::Ok(())
    }));
    started.await.into_iter().collect()
}

/// Terraform breaks the lines of an error at 78 columns, except those that begin with a space: indented, a message arrives
/// as it was given.
fn preformatted(error: anyhow::Error) -> anyhow::Error {
    let text = format!("{error:#}");
    let indented: String = text.lines().map(|line| format!("\n  {line}")).collect();
    anyhow::Error::msg(indented)
}

fn table(environment: &Environment, entries: &[Entry]) -> String {
    if entries.is_empty() {
        return "the ledger is empty\n".to_owned();
    }
    let now = jiff::Timestamp::now();
    let mut rows = vec![["KIND", "NAME", "REGION", "VERSION", "ENDPOINT", "PID", "AGE"].map(str::to_owned)];
    for entry in entries {
        let (endpoint, pid) = match entry.kind {
            Kind::Vpc => (None, None),
            Kind::Cluster => (
                cluster::endpoint(environment, entry),
                cluster::process(environment, &entry.name),
            ),
        };
        let age = std::time::Duration::try_from(now.duration_since(entry.created.0)).unwrap_or_default();
        rows.push([
            entry.kind.to_string(),
            entry.name.clone(),
            entry.input("region").to_owned(),
            entry.input("kubernetes_version").to_owned(),
            endpoint.unwrap_or_default(),
            pid.map(|process| process.pid.to_string()).unwrap_or_default(),
            elapsed(age),
        ]);
    }
    let widths: Vec<usize> = (0..7)
        .map(|column| {
            rows.iter()
                .filter_map(|row| row.get(column))
                .map(String::len)
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{:<width$}", if cell.is_empty() { "-" } else { cell }))
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(subcommand)]
        command: Command,
    }

    #[test]
    fn a_fault_without_an_order_is_refused() {
        assert!(Cli::try_parse_from(["capt-cloud", "fault", "a"]).is_err());
        assert!(Cli::try_parse_from(["capt-cloud", "fault", "--apply", "no"]).is_err());
        for arguments in [
            ["--apply", "no"].as_slice(),
            &["--destroy", "no"],
            &["--apply", "no", "--destroy", "never"],
        ] {
            let parsed = Cli::try_parse_from(["capt-cloud", "fault", "a"].iter().chain(arguments)).unwrap();
            assert!(matches!(parsed.command, Command::Fault { .. }));
        }
    }

    #[test]
    fn every_line_of_an_error_keeps_its_length_in_terraform() {
        let error = preformatted(anyhow::anyhow!("first\nsecond").context("outer"));
        assert_eq!(error.to_string(), "\n  outer: first\n  second");
    }

    #[test]
    fn an_empty_ledger_is_said() {
        let environment = Environment::named("none").unwrap();
        assert_eq!(table(&environment, &[]), "the ledger is empty\n");
    }
}
