//! The capt-tenant-controller program.

use clap::Parser;

fn main() -> anyhow::Result<()> {
    capt_tenant_controller::run(capt_tenant_controller::Args::parse())
}
