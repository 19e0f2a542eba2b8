//! The smallest whole controller: it looks at ConfigMaps and writes nothing. Shows how the parts of this crate fit
//! together, and serves the tests of start-up and shutdown.

use std::time::Duration;

use capt_api::names::Manager;
use capt_runtime::{
    app::{self, Setup},
    args::CommonArgs,
    cache::Cache,
    controller::{Reconciler, Wake},
    error::Failure,
    key::Key,
    watch::Watch,
};
use clap::Parser;
use k8s_openapi::api::core::v1::ConfigMap;

/// Looks at ConfigMaps.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// How long to look at each.
    #[arg(long, default_value_t = 0)]
    seconds: u64,
    #[command(flatten)]
    common: CommonArgs,
}

struct Onlooker {
    maps: Cache<ConfigMap>,
    pause: Duration,
}

impl Reconciler for Onlooker {
    type Error = Failure;

    async fn reconcile(&self, key: &Key) -> Result<Wake, Failure> {
        tracing::info!(present = self.maps.get(key).is_some(), "looking");
        tokio::time::sleep(self.pause).await;
        Ok(Wake::OnEvent)
    }
}

fn wire(setup: &mut Setup, pause: Duration) {
    let queue = setup.queue("configmap");
    let mut watch = Watch::<ConfigMap>::namespaced(setup.client(), setup.scope(), &()).filtered(setup.scope());
    watch.notify(&queue);
    let maps = setup.start(watch);
    let onlooker = Onlooker {
        maps: maps.clone(),
        pause,
    };
    setup.controller("configmap", queue, &maps, onlooker);
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    app::run(Manager::Workspace, args.common, |setup| {
        wire(setup, Duration::from_secs(args.seconds));
        Ok(())
    })
}
