//! The capt-secrets program.

use clap::Parser;

fn main() -> anyhow::Result<()> {
    capt_secrets::run(capt_secrets::Args::parse())
}
