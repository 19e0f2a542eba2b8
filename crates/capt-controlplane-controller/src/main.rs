//! The capt-controlplane-controller program.

use clap::Parser;

fn main() -> anyhow::Result<()> {
    capt_controlplane_controller::run(capt_controlplane_controller::Args::parse())
}
