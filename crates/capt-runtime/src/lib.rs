//! What every CAPT controller needs once: start-up and shutdown, the HTTP server, leader election, watches with indexed
//! caches, the work queue and its loop, the write protocol, events, metrics and logs.
//!
//! A controller calls [`app::run`], wires [`watch::Watch`]es to a [`queue::Queue`], and hands over a
//! [`controller::Reconciler`]. Nothing here knows any particular kind.

pub mod app;
pub mod apply;
pub mod args;
pub mod backoff;
pub mod cache;
pub mod census;
pub mod client;
pub mod controller;
pub mod error;
pub mod events;
pub mod health;
pub mod hold;
pub mod key;
pub mod lease;
pub mod metrics;
mod process;
pub mod queue;
pub mod rbac;
pub mod scope;
pub mod scraper;
pub mod server;
pub mod telemetry;
mod tls;
pub mod transition;
pub mod watch;
pub mod words;
