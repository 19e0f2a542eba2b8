//! capt-install: the steps of an installation that Helm cannot do by itself. The chart runs it in short-lived Jobs.
//!
//! `crds` keeps the CRDs. Helm installs what is in a chart's `crds/` once and never upgrades it; as templates, they would be
//! downgraded by every `helm rollback`, and fields that a newer release has stored would be lost without a word.
//! `guard` refuses to uninstall CAPT while somebody still needs it to delete what Terraform made.

mod crds;
mod guard;
mod rbac;
mod refusals;

use std::time::Duration;

use anyhow::Context;
use clap::{Parser, Subcommand};
use kube::{Client, Config};

pub use rbac::{APPLY_CRDS, DELETE_CRDS, GUARD};

/// Installs and upgrades CAPT's CRDs, and guards its uninstallation.
#[derive(Parser, Debug)]
#[command(name = "capt-install", version)]
pub struct Args {
    /// Longest time for everything.
    #[arg(long, env = "CAPT_TIMEOUT", default_value = "2m", value_name = "TIME", global = true, value_parser = capt_runtime::args::positive)]
    timeout: Duration,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// The CRDs of this release.
    #[command(subcommand)]
    Crds(Crds),
    /// Fails while objects exist that only CAPT's controllers can let go of.
    Guard(guard::Args),
}

#[derive(Subcommand, Debug)]
enum Crds {
    /// Installs what is missing, upgrades what is older, leaves what is newer, and waits until all are served.
    Apply(crds::ApplyArgs),
    /// Deletes them, and with them every object of their kinds, unless one of these still needs CAPT.
    Delete,
}

/// Does what was asked for, within its time.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let work = async {
        let config = Config::infer().await.context("no way to reach the API server")?;
        let client = Client::try_from(config)?;
        match args.command {
            Command::Crds(Crds::Apply(wanted)) => crds::apply(&client, &wanted).await,
            Command::Crds(Crds::Delete) => crds::delete(&client).await,
            Command::Guard(scope) => guard::guard(&client, &scope).await,
        }
    };
    tokio::time::timeout(args.timeout, work)
        .await
        .with_context(|| format!("not done within {:?}: is the API server reachable?", args.timeout))?
}
