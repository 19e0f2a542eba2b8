//! The HTTP server of a controller: metrics, health, readiness and the log level.

use std::{
    future::pending,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use anyhow::Context;
use axum::{
    Router,
    extract::{ConnectInfo, DefaultBodyLimit, RawQuery, State},
    http::{StatusCode, header::CONTENT_TYPE},
    middleware,
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::net::TcpListener;

use crate::{
    health::{Health, Report},
    metrics::Metrics,
    scraper::Scrapers,
    telemetry::LogLevel,
    tls::TlsListener,
};

const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Log directives are a line; nothing else is ever sent to us.
const MAX_BODY: usize = 4096;

/// What the handlers read.
#[derive(Clone, Debug)]
pub struct Sources {
    pub metrics: Arc<Metrics>,
    pub health: Arc<Health>,
    pub log_level: Arc<LogLevel>,
}

/// How the metrics are served to those who may read them, instead of to everybody.
#[derive(Debug)]
pub struct Secure {
    pub(crate) listener: TlsListener,
    pub(crate) scrapers: Scrapers,
}

/// Opens the port, so that a conflict is told at the start and not in the log of a running process.
pub async fn bind(address: SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    let bound = match TcpListener::bind(address).await {
        // All addresses were meant, and this machine has none of the newer family.
        Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        bound => bound,
    };
    bound.map_err(|error| {
        let why = match error.kind() {
            io::ErrorKind::AddrInUse => format!("cannot serve on {address}: the address is in use"),
            io::ErrorKind::PermissionDenied => format!("cannot serve on {address}: not permitted"),
            _ => format!("cannot serve on {address}"),
        };
        anyhow::Error::new(error).context(format!("{why}; choose another with {flag}"))
    })
}

/// Serves for as long as the process runs. With `secure`, the metrics are there alone.
pub async fn serve(listener: TcpListener, secure: Option<Secure>, sources: Sources) -> anyhow::Result<()> {
    let measured = Router::new().route("/metrics", get(metrics));
    let mut open = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/loglevel", get(log_level).put(set_log_level))
        .layer(DefaultBodyLimit::max(MAX_BODY));
    if secure.is_none() {
        open = open.merge(measured.clone());
    }
    let open = open.with_state(sources.clone());
    let serve_secure = async {
        let Some(Secure { listener, scrapers }) = secure else {
            return pending().await;
        };
        let guarded = measured
            .layer(middleware::from_fn_with_state(scrapers, Scrapers::check))
            .with_state(sources);
        axum::serve(listener, guarded).await
    };
    tokio::select! {
        ended = axum::serve(listener, open.into_make_service_with_connect_info::<SocketAddr>()) => ended,
        ended = serve_secure => ended,
    }
    .context("the HTTP server ended")
}

async fn metrics(State(sources): State<Sources>) -> Response {
    match sources.metrics.render() {
        Ok(text) => ([(CONTENT_TYPE, PROMETHEUS_TEXT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn healthz(State(sources): State<Sources>, RawQuery(query): RawQuery) -> Response {
    answer(sources.health.live(), query)
}

async fn readyz(State(sources): State<Sources>, RawQuery(query): RawQuery) -> Response {
    answer(sources.health.ready(), query)
}

/// A good state is a word, unless more is asked for; a bad one always says what is wrong.
fn answer(report: Report, query: Option<String>) -> Response {
    let verbose = query.is_some_and(|query| {
        query
            .split('&')
            .any(|word| word == "verbose" || word.starts_with("verbose="))
    });
    match report.ok {
        true if verbose => (StatusCode::OK, report.text).into_response(),
        true => (StatusCode::OK, "ok\n").into_response(),
        false => (StatusCode::SERVICE_UNAVAILABLE, report.text).into_response(),
    }
}

async fn log_level(State(sources): State<Sources>) -> String {
    format!("{}\n", sources.log_level.current())
}

/// Only from the pod itself, which `kubectl port-forward` counts as: whoever may do that may also read the logs.
async fn set_log_level(
    State(sources): State<Sources>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    directives: String,
) -> Response {
    if !peer.ip().to_canonical().is_loopback() {
        let text = "the log level can only be changed from the pod itself; use kubectl port-forward\n";
        return (StatusCode::FORBIDDEN, text).into_response();
    }
    match sources.log_level.set(&directives) {
        Ok(()) => (StatusCode::OK, format!("{}\n", sources.log_level.current())).into_response(),
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error:#}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_taken_port_names_the_flag() {
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let error = bind(taken.local_addr().unwrap(), "--metrics-bind-address")
            .await
            .unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("in use") && text.contains("--metrics-bind-address"),
            "{text}"
        );
    }
}
