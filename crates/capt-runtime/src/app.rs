//! The life of a controller process, from its flags to its exit.
//!
//! Start: configuration (wrong means exit), port (taken means exit), then watches. Every replica keeps its caches warm
//! and reports ready, also while it stands by: a rolling update would otherwise wait for ever for a standby to become
//! ready. Reconciling begins when all caches are in step and the Lease is held. An API server that is away is waited for.
//!
//! End: SIGTERM or SIGINT stops new work, lets running passes finish, records pending Events, releases the Lease and exits
//! with 0; a second signal exits at once. A lost Lease exits at once with 1, because another replica may be at work.

use std::{fmt, future::Future, net::SocketAddr, pin::pin, process, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use axum::serve::Listener;
use capt_api::names::Manager;
use futures::future::BoxFuture;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::JoinSet,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    args::CommonArgs,
    cache::Cache,
    census::Census,
    client,
    controller::{self, Controller, Reconciler},
    events::Events,
    health::Health,
    lease::{self, Candidate, Leadership, Lost},
    metrics::Metrics,
    queue::Queue,
    scope::Scope,
    scraper::Scrapers,
    server,
    telemetry::{self, LogLevel},
    tls::{Certificate, TlsListener},
    watch::Watch,
};

/// The version of all of CAPT.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A controller waits for the network most of its time; on a large node, a thread per core would only cost memory.
const MAX_THREADS: usize = 4;
/// How long pending Events may take after the work has ended, even when the work used up the grace period.
const LAST_EVENTS: Duration = Duration::from_secs(2);

/// Where a controller is wired: caches to queues, queues to reconcilers.
pub struct Setup {
    client: Client,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    events: Events,
    scope: Scope,
    address: SocketAddr,
    metrics_address: SocketAddr,
    work: controller::Settings,
    /// Turns true when this replica begins to lead.
    leads: watch::Sender<bool>,
    /// Loops that run from the start to the end, in standby too.
    always: Vec<(String, BoxFuture<'static, anyhow::Result<()>>)>,
    /// Loops that run while this replica leads.
    leading: Vec<Leading>,
}

type StartController = Box<dyn FnOnce(&Health, CancellationToken) -> BoxFuture<'static, ()> + Send>;

/// A controller whose type is forgotten.
struct Leading {
    name: &'static str,
    queue: Queue,
    start: StartController,
}

impl Setup {
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// For metrics of the controller's own.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    pub fn events(&self) -> Events {
        self.events.clone()
    }

    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Where the HTTP server listens, also when the flag left the port open.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where the metrics are: at the same address, or at one of their own.
    pub fn metrics_address(&self) -> SocketAddr {
        self.metrics_address
    }

    /// A queue for the controller of the same name.
    pub fn queue(&self, name: &str) -> Queue {
        Queue::new(name, &self.metrics)
    }

    /// Sets a watch going. `/readyz` waits for it.
    pub fn start<K>(&mut self, watch: Watch<K>) -> Cache<K>
    where
        K: Resource + Clone + DeserializeOwned + Send + Sync + 'static,
    {
        let cache = watch.cache();
        let name = format!("watch {}", watch.name());
        let run = watch.into_loop(&self.metrics, &self.health, self.leads.subscribe());
        self.always.push((
            name,
            Box::pin(async move {
                run.await;
                Ok(())
            }),
        ));
        cache
    }

    /// Counts these objects whenever the metrics are read, while this replica leads.
    pub fn count<K: Resource + Send + Sync + 'static>(&self, census: Census<K>, objects: &Cache<K>) {
        let (shown, objects, leads) = (self.metrics.census(), objects.clone(), self.leads.subscribe());
        shown.expect(&census);
        self.metrics.before_scrape(move || {
            let counted = if *leads.borrow() { objects.list() } else { Vec::new() };
            shown.show(&census, counted.iter().map(|object| &**object));
        });
    }

    /// Adds a controller: `name` is its kind in lower case, `objects` the cache of that kind.
    pub fn controller<R, K>(&mut self, name: &'static str, queue: Queue, objects: &Cache<K>, reconciler: R)
    where
        R: Reconciler,
        K: Resource + Send + Sync + 'static,
    {
        let objects = objects.clone();
        let controller = Controller::new(
            name,
            queue.clone(),
            reconciler,
            self.work,
            move || objects.keys(),
            &self.metrics,
        );
        self.leading.push(Leading {
            name,
            queue,
            start: Box::new(move |health, stop| {
                let pulse = controller.watch_over(health);
                Box::pin(controller.run(stop, pulse))
            }),
        });
    }
}

impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setup")
            .field("scope", &self.scope)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// Runs a controller until a signal ends it. This is all that `main` does.
pub fn run(
    manager: Manager,
    args: CommonArgs,
    wire: impl FnOnce(&mut Setup) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    args.validate()?;
    let log_level = Arc::new(telemetry::init(args.log_format, &args.log_level)?);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.clamp(2, MAX_THREADS))
        .enable_all()
        .thread_name(manager.as_str())
        .build()
        .context("cannot start the asynchronous runtime")?;
    let result = runtime.block_on(async {
        let stop = on_signal()?;
        run_until(manager, &args, log_level, wire, stop).await
    });
    if let Err(error) = &result {
        tracing::error!(error = format!("{error:#}"), "exiting");
        // Not by returning: that would wait for tasks, and after a lost Lease nothing may be written any more.
        process::exit(1);
    }
    runtime.shutdown_background();
    Ok(())
}

/// Ends with the first SIGTERM or SIGINT; the second ends the process.
fn on_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let stop = CancellationToken::new();
    let stopped = stop.clone().cancelled_owned();
    tokio::spawn(async move {
        for round in 0.. {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if round > 0 {
                tracing::warn!("second signal: exiting at once");
                process::exit(130);
            }
            stop.cancel();
        }
    });
    Ok(stopped)
}

/// [`run`] without the parts that belong to a whole process: ends when `stop` does.
pub async fn run_until(
    manager: Manager,
    args: &CommonArgs,
    log_level: Arc<LogLevel>,
    wire: impl FnOnce(&mut Setup) -> anyhow::Result<()>,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    args.validate()?;
    let config = client::config(args.kubeconfig.as_deref()).await?;
    let metrics = Metrics::new(VERSION).context("cannot set up the metrics")?;
    let health = Health::new();
    let agent = format!("{manager}/{VERSION}");
    let api = client::build(config.clone(), &agent, args.limits(), &metrics)?;
    let identity = lease::identity();
    let candidate = if args.leader_elect {
        let api = client::build(config.clone(), &agent, args.lease_limits(), &metrics)?;
        let election = args.election(manager.as_str(), &config.default_namespace, &identity);
        Some(Candidate::new(api, election, &metrics))
    } else {
        None
    };
    let listener = server::bind(args.metrics_bind_address, "--metrics-bind-address").await?;
    let address = listener.local_addr().context("the HTTP server has no address")?;
    let secure = secure(args, &api).await?;
    let metrics_address = secure
        .as_ref()
        .map_or(Ok(address), |secure| secure.listener.local_addr())
        .context("the server of the metrics has no address")?;
    let events_stop = CancellationToken::new();
    let (events, recording) = Events::new(api.clone(), manager.as_str(), &identity, &metrics, events_stop.clone());

    let mut setup = Setup {
        client: api,
        metrics: metrics.clone(),
        health: health.clone(),
        events,
        scope: args.scope(),
        address,
        metrics_address,
        work: args.work(),
        leads: watch::Sender::new(false),
        always: Vec::new(),
        leading: Vec::new(),
    };
    wire(&mut setup).context("cannot set up the controller")?;
    let Setup {
        always, leading, leads, ..
    } = setup;
    tracing::info!(
        version = VERSION,
        api_server = %config.cluster_url,
        namespace = args.scope().namespace().unwrap_or("all"),
        watch_filter = args.scope().filter(),
        %address,
        metrics = %metrics_address,
        "starting {manager}"
    );

    let mut always_running = Vital::default();
    let sources = server::Sources {
        metrics,
        health: health.clone(),
        log_level,
    };
    always_running.spawn("HTTP server", server::serve(listener, secure, sources));
    for (name, run) in always {
        always_running.spawn(name, run);
    }
    let recording = tokio::spawn(recording);
    let mut stop = pin!(stop);

    // Stand by until the caches are in step: a leader that cannot see would only keep others from leading.
    let mut leadership = tokio::select! {
        () = &mut stop => return Ok(()),
        error = always_running.first_end() => return Err(error),
        leadership = lead(&health, candidate.as_ref()) => leadership,
    };

    let mut controllers = Controllers::start(leading, &health);
    leads.send_replace(true);
    tokio::select! {
        () = &mut stop => {}
        error = always_running.first_end() => return Err(error),
        error = controllers.first_end() => return Err(error),
        lost = keep(leadership.as_mut()) => bail!("leadership lost: {lost}"),
    }

    tracing::info!(grace = ?args.grace_period, "stopping: running work is finished, none is started");
    health.stop();
    let deadline = Instant::now() + args.grace_period;
    tokio::select! {
        finished = controllers.finish(deadline) => finished?,
        // Still renewed: until the last pass has ended nobody else may start.
        lost = keep(leadership.as_mut()) => bail!("leadership lost while stopping: {lost}"),
    }
    events_stop.cancel();
    let left = deadline.saturating_duration_since(Instant::now());
    let last_events = async {
        if tokio::time::timeout(left.max(LAST_EVENTS), recording).await.is_err() {
            tracing::warn!("not all Events could be recorded in time");
        }
    };
    // The successor need not wait for Events, which nothing depends on.
    tokio::join!(release(leadership), last_events);
    tracing::info!("stopped");
    Ok(())
}

/// The port of the metrics, where they are not for everybody.
async fn secure(args: &CommonArgs, api: &Client) -> anyhow::Result<Option<server::Secure>> {
    let Some(address) = args.metrics_secure_bind_address else {
        return Ok(None);
    };
    let listener = server::bind(address, "--metrics-secure-bind-address").await?;
    let certificate = Certificate::new(args.metrics_cert_dir.as_deref());
    Ok(Some(server::Secure {
        listener: TlsListener::new(listener, certificate)?,
        scrapers: Scrapers::new(api.clone()),
    }))
}

async fn lead(health: &Health, candidate: Option<&Candidate>) -> Option<Leadership> {
    health.wait_ready().await;
    match candidate {
        Some(candidate) => Some(candidate.acquire().await),
        None => None,
    }
}

async fn keep(leadership: Option<&mut Leadership>) -> Lost {
    match leadership {
        Some(leadership) => leadership.keep().await,
        None => std::future::pending().await,
    }
}

async fn release(leadership: Option<Leadership>) {
    if let Some(leadership) = leadership
        && let Err(error) = leadership.release().await
    {
        let error = telemetry::api_error(&error);
        tracing::warn!(error, "the Lease could not be released; it expires by itself");
    }
}

/// The controllers of a leading replica. Dropping this ends them at once.
struct Controllers {
    tasks: JoinSet<()>,
    queues: Vec<(&'static str, Queue)>,
    stop: CancellationToken,
}

impl Controllers {
    fn start(all: Vec<Leading>, health: &Health) -> Self {
        let stop = CancellationToken::new();
        let queues = all.iter().map(|one| (one.name, one.queue.clone())).collect();
        let mut tasks = JoinSet::new();
        for one in all {
            tasks.spawn((one.start)(health, stop.clone()));
        }
        Self { tasks, queues, stop }
    }

    async fn first_end(&mut self) -> anyhow::Error {
        match self.tasks.join_next().await {
            Some(ended) => anyhow::anyhow!("a controller ended by itself: {ended:?}"),
            None => std::future::pending().await,
        }
    }

    /// Starts no more work and waits for what is running, until `deadline`. After a failure the Lease must be left to
    /// expire: what was cut off may still reach the API server.
    async fn finish(&mut self, deadline: Instant) -> anyhow::Result<()> {
        self.stop.cancel();
        let finished = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout_at(deadline, finished).await.is_ok() {
            return Ok(());
        }
        let unfinished: Vec<String> = self
            .queues
            .iter()
            .flat_map(|(name, queue)| queue.running().into_iter().map(move |(key, _)| format!("{name} {key}")))
            .collect();
        bail!("the grace period ended before this work: {}", unfinished.join(", "))
    }
}

/// Loops that must not end. Dropping this ends them.
#[derive(Default)]
struct Vital {
    tasks: JoinSet<(String, anyhow::Result<()>)>,
}

impl Vital {
    fn spawn(&mut self, name: impl Into<String>, run: impl Future<Output = anyhow::Result<()>> + Send + 'static) {
        let name = name.into();
        self.tasks.spawn(async move { (name, run.await) });
    }

    /// Waits for the first that ends, which none should: a process without one of its watches would look healthy and
    /// be blind.
    async fn first_end(&mut self) -> anyhow::Error {
        match self.tasks.join_next().await {
            Some(Ok((name, Ok(())))) => anyhow::anyhow!("{name} ended by itself"),
            Some(Ok((name, Err(error)))) => error.context(format!("{name} ended")),
            Some(Err(error)) => anyhow::anyhow!("a vital task died: {error}"),
            None => std::future::pending().await,
        }
    }
}
