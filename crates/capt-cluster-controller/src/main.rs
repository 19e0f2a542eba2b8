//! The capt-cluster-controller program.

use clap::Parser;

fn main() -> anyhow::Result<()> {
    capt_cluster_controller::run(capt_cluster_controller::Args::parse())
}
