//! The capt-workspace-controller program.

use clap::Parser;

fn main() -> anyhow::Result<()> {
    capt_workspace_controller::run(capt_workspace_controller::Args::parse())
}
