//! The capt-endpoint program.

use clap::Parser;

fn main() -> anyhow::Result<()> {
    capt_endpoint::run(capt_endpoint::Args::parse())
}
