//! The proxy itself: HTTP/1.1 on loopback towards the controller, whose own credential is passed on.

mod past;

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use axum::body::{Body, Bytes};
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, RETRY_AFTER, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::{Client, Config};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::plan::{Answer, Fault, Moment, Plan, Refusal};
use super::target::{Target, Verb};
use super::watch::{Flow, Mode, Tap};

/// How long watches stay silent: longer than a controller waits for its own write to show (5 s), so that it acts without.
const SILENCE: Duration = Duration::from_secs(7);
/// How long broken watches cannot be started again: at least one try of each fails.
const SHUT: Duration = Duration::from_millis(400);
/// How late the changes of a lagging kind are.
const LAG: Duration = Duration::from_secs(1);

/// Stands between one controller and the API server. Ends with it: every connection breaks off.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    _listening: JoinSet<()>,
}

/// A write of the controller, as it went through.
#[derive(Debug, Clone)]
pub struct Write {
    pub target: Target,
    /// What the API server answered; nothing while it was not asked.
    pub code: Option<StatusCode>,
    /// What happened to it.
    pub fault: Option<Fault>,
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.target)?;
        match self.code {
            Some(code) => write!(f, " -> {}", code.as_u16())?,
            None => f.write_str(" -> never arrived")?,
        }
        match self.fault {
            Some(fault) => write!(f, "  <== {fault}"),
            None => Ok(()),
        }
    }
}

impl Proxy {
    /// `upstream` leads to the API server; what is passed on does not get its credential.
    pub async fn start(upstream: Config, plan: Plan) -> Result<Self> {
        Self::shutting_for(SHUT, upstream, plan).await
    }

    /// The same, with a time of its own in place of [`SHUT`].
    async fn shutting_for(shut: Duration, mut upstream: Config, plan: Plan) -> Result<Self> {
        let overseer = Client::try_from(upstream.clone()).context("cannot build a client for the API server")?;
        upstream.auth_info = Default::default();
        upstream.default_retry = false;
        // A watch is silent for as long as nothing happens.
        upstream.read_timeout = None;
        upstream.write_timeout = None;
        let shared = Arc::new(Shared {
            upstream: Client::try_from(upstream).context("cannot build a client for the API server")?,
            overseer,
            plan,
            shut,
            flow: watch::Sender::new(Flow {
                mode: Mode::Open,
                breaks: 0,
            }),
            life: watch::Sender::new(Life::default()),
            openings: watch::Sender::new(0),
            record: Mutex::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mut listening = JoinSet::new();
        listening.spawn(listen(listener, shared.clone()));
        Ok(Self {
            address,
            shared,
            _listening: listening,
        })
    }

    /// What the controller is to take for the API server.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Waits until the controller is to be killed. From then on nothing of it gets through.
    pub async fn stopped(&self) {
        // The sender is in `self`, so this cannot fail.
        let _ = self.shared.life.subscribe().wait_for(|life| life.may_end).await;
    }

    /// The controller is dead: what it still had under way is dropped, and another may come.
    pub fn revive(&self) {
        if let Plan::Strike {
            fault: Fault::KillAndTravelBack(age),
            ..
        } = self.shared.plan
        {
            self.shared.travel_back(age);
        }
        self.shared.life.send_modify(|life| {
            *life = Life {
                number: life.number + 1,
                ..Life::default()
            }
        });
    }

    /// All writes so far, in the order in which they came.
    pub fn writes(&self) -> Vec<Write> {
        self.shared.record().writes.clone()
    }

    /// The writes that a fault struck; none when the plan's moment has not come.
    pub fn struck(&self) -> Vec<Write> {
        let record = self.shared.record();
        record
            .writes
            .iter()
            .filter(|write| write.fault.is_some())
            .cloned()
            .collect()
    }

    /// Why the plan could not be carried out; then a trial shows nothing.
    pub fn obstacle(&self) -> Option<String> {
        self.shared.record().obstacle.clone()
    }

    /// The resources that the controller watches.
    pub fn watched(&self) -> BTreeSet<String> {
        self.shared.record().watched.clone()
    }
}

async fn listen(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                let (shared, life) = (shared.clone(), shared.life.borrow().number);
                connections.spawn(async move {
                    let service = service_fn(move |request| {
                        let shared = shared.clone();
                        async move { shared.handle(life, request).await }
                    });
                    // A connection that ends badly is either the plan or the end of the controller.
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// The connection breaks off without an answer.
#[derive(Debug)]
struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("broken off")
    }
}

impl std::error::Error for Broken {}

/// One run of the controller's process, from its start until it is killed.
#[derive(Debug, Clone, Copy, Default)]
struct Life {
    number: u64,
    /// Nothing more gets through.
    is_held: bool,
    /// The process may be killed.
    may_end: bool,
}

/// A request that can be sent, perhaps later.
#[derive(Clone)]
struct Carried {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
}

/// An answer that has come in full.
struct Answered {
    code: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Answered {
    fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = self.code;
        *response.headers_mut() = self.headers;
        response
    }

    /// The version of the object in it, if it is one.
    fn version(&self) -> Option<u64> {
        let object: Value = serde_json::from_slice(&self.body).ok()?;
        object.pointer("/metadata/resourceVersion")?.as_str()?.parse().ok()
    }
}

#[derive(Default)]
struct Record {
    writes: Vec<Write>,
    watched: BTreeSet<String>,
    /// The version that the first write led to.
    first: Option<u64>,
    /// The version that the first object had which was made.
    first_child: Option<u64>,
    /// The version of the world just before the write that was struck.
    before: Option<u64>,
    /// A write of a dead controller that is still on its way, and the life it came from.
    late: Option<(u64, Carried)>,
    /// The version that new watches begin with, while the world is an old one.
    past: Option<u64>,
    /// Why the old world could not be shown.
    obstacle: Option<String>,
}

struct Shared {
    upstream: Client,
    /// Asks on the proxy's own account.
    overseer: Client,
    plan: Plan,
    /// How long broken watches cannot be started again.
    shut: Duration,
    flow: watch::Sender<Flow>,
    life: watch::Sender<Life>,
    /// How many watches were opened on an old world.
    openings: watch::Sender<u64>,
    record: Mutex<Record>,
}

impl Shared {
    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn handle(self: Arc<Self>, life: u64, request: Request<Incoming>) -> Result<Response<Body>, Broken> {
        let (head, body) = request.into_parts();
        let request = Carried {
            method: head.method,
            uri: head.uri,
            headers: head.headers,
            body: axum::body::to_bytes(Body::new(body), usize::MAX)
                .await
                .map_err(|_| Broken)?,
        };
        self.while_it_lives(life).await?;
        let target = Target::of(&request.method, &request.uri, &request.body);
        match target.verb {
            Verb::Watch => self.watch(target, &request).await,
            _ if target.counts() => self.write(life, target, request).await,
            _ => Ok(self.forward(&request).await?.into_response()),
        }
    }

    /// Goes on when the world does; never when the controller that asks is dead.
    async fn while_it_lives(&self, number: u64) -> Result<(), Broken> {
        let mut lives = self.life.subscribe();
        let life = lives
            .wait_for(|life| life.number != number || !life.is_held)
            .await
            .map_err(|_| Broken)?;
        if life.number == number { Ok(()) } else { Err(Broken) }
    }

    /// Lets the controller be killed, and ends with it.
    async fn wait_for_death(&self, number: u64) -> Result<Response<Body>, Broken> {
        self.life.send_modify(|life| life.may_end = true);
        let mut lives = self.life.subscribe();
        let _ = lives.wait_for(|life| life.number != number).await;
        Err(Broken)
    }

    async fn write(self: Arc<Self>, life: u64, target: Target, request: Carried) -> Result<Response<Body>, Broken> {
        let late = self.record().late.take_if(|(from, _)| *from != life);
        if let Some((_, late)) = late {
            // Nobody is left to hear the answer.
            let _ = self.forward(&late).await;
        }
        let creates = target.verb == Verb::Create;
        let (index, fault) = self.number(target);
        if fault.is_some_and(Fault::kills) {
            self.life.send_modify(|life| life.is_held = true);
        }
        match fault {
            None => Ok(self.forward_write(index, &request).await?.into_response()),
            Some(Fault::Kill(Moment::Before)) => self.wait_for_death(life).await,
            Some(Fault::Kill(Moment::After)) => {
                self.forward_write(index, &request).await?;
                self.wait_for_death(life).await
            }
            Some(Fault::KillAndTravelBack(_)) => {
                let before = self.version().await?;
                self.record().before = Some(before);
                self.forward_write(index, &request).await?;
                self.wait_for_death(life).await
            }
            Some(Fault::KillAndArriveLate) => {
                self.record().late = Some((life, request));
                self.wait_for_death(life).await
            }
            Some(Fault::Refuse(refusal)) => Ok(respond(&Answer::refusal(refusal, creates))),
            Some(Fault::TimeOut) => {
                self.forward_write(index, &request).await?;
                Ok(respond(&Answer::TIMED_OUT))
            }
            Some(Fault::Cut(Moment::Before)) => Err(Broken),
            Some(Fault::Cut(Moment::After)) => {
                self.forward_write(index, &request).await?;
                Err(Broken)
            }
            Some(Fault::HoldWatches) => self.disturbed(Mode::Held, SILENCE, index, &request).await,
            Some(Fault::LoseEvents) => self.disturbed(Mode::Losing, SILENCE, index, &request).await,
            Some(Fault::BreakWatches) => self.disturbed(Mode::Shut, self.shut, index, &request).await,
        }
    }

    /// Records a write and says what is to happen to it.
    fn number(&self, target: Target) -> (usize, Option<Fault>) {
        let mut record = self.record();
        let index = record.writes.len();
        let fault = match self.plan {
            Plan::Strike { at, fault } if at == index + 1 => Some(fault),
            Plan::Repeat { fault } => {
                let before = record.writes.iter().filter(|write| write.target == target).count();
                before.is_multiple_of(2).then_some(fault)
            }
            _ => None,
        };
        record.writes.push(Write {
            target,
            code: None,
            fault,
        });
        (index, fault)
    }

    async fn forward_write(&self, index: usize, request: &Carried) -> Result<Answered, Broken> {
        let answered = self.forward(request).await?;
        let mut record = self.record();
        let mut creates = false;
        if let Some(write) = record.writes.get_mut(index) {
            write.code = Some(answered.code);
            creates = write.target.verb == Verb::Create;
        }
        if let Some(version) = answered.version().filter(|_| answered.code.is_success()) {
            record.first.get_or_insert(version);
            if creates {
                record.first_child.get_or_insert(version);
            }
        }
        Ok(answered)
    }

    /// Performs the write after the watches have fallen silent, so that not even its own result is seen.
    async fn disturbed(
        self: &Arc<Self>,
        mode: Mode,
        time: Duration,
        index: usize,
        request: &Carried,
    ) -> Result<Response<Body>, Broken> {
        self.flow.send_modify(|flow| {
            flow.mode = mode;
            flow.breaks += u64::from(mode == Mode::Shut);
        });
        let answered = self.forward_write(index, request).await?;
        let shared = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            shared.flow.send_modify(|flow| flow.mode = Mode::Open);
        });
        Ok(answered.into_response())
    }

    async fn watch(&self, target: Target, request: &Carried) -> Result<Response<Body>, Broken> {
        if self.flow.borrow().mode == Mode::Shut {
            return Ok(respond(&Answer::refusal(Refusal::Unavailable, false)));
        }
        let lag = match &self.plan {
            Plan::Lag { resource } if *resource == target.resource => LAG,
            _ => Duration::ZERO,
        };
        self.record().watched.insert(target.resource);
        // Subscribed before the API server is asked: a break from here on ends this watch too.
        let flow = self.flow.subscribe();
        let (first, response) = match self.past(request).await? {
            Some((events, watch)) => (events, watch),
            None => (VecDeque::new(), self.send(request, &request.uri.to_string()).await?),
        };
        if !response.status().is_success() {
            return Ok(collect(response).await?.into_response());
        }
        let (head, body) = response.into_parts();
        let mut response = Response::new(Tap::new(first, body, flow, lag).into_body());
        *response.headers_mut() = end_to_end(&head.headers);
        Ok(response)
    }

    async fn forward(&self, request: &Carried) -> Result<Answered, Broken> {
        collect(self.send(request, &request.uri.to_string()).await?).await
    }

    async fn send(&self, request: &Carried, address: &str) -> Result<Response<Body>, Broken> {
        let mut carried = Request::new(kube::client::Body::from(request.body.clone()));
        *carried.method_mut() = request.method.clone();
        *carried.uri_mut() = address.parse().map_err(|_| Broken)?;
        *carried.headers_mut() = end_to_end(&request.headers);
        let response = self.upstream.send(carried).await.map_err(|_| Broken)?;
        Ok(response.map(Body::new))
    }
}

async fn collect(response: Response<Body>) -> Result<Answered, Broken> {
    let (head, body) = response.into_parts();
    Ok(Answered {
        code: head.status,
        headers: end_to_end(&head.headers),
        body: axum::body::to_bytes(body, usize::MAX).await.map_err(|_| Broken)?,
    })
}

/// Without what concerns one connection alone.
fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    const HOP_BY_HOP: [HeaderName; 4] = [HOST, CONNECTION, TRANSFER_ENCODING, CONTENT_LENGTH];
    let mut kept = headers.clone();
    for name in HOP_BY_HOP {
        kept.remove(name);
    }
    kept
}

fn respond(answer: &Answer) -> Response<Body> {
    let mut response = Response::new(Body::from(answer.body().to_string()));
    *response.status_mut() = answer.code;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(seconds) = answer.retry_after {
        headers.insert(RETRY_AFTER, seconds.into());
    }
    response
}

#[cfg(test)]
mod tests;
