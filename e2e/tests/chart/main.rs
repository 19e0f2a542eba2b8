//! The Helm chart: what it renders, what it refuses, that a real API server takes it, and that its Jobs do what they are for.

#![allow(
    clippy::indexing_slicing,
    reason = "an absent key of a JSON value reads as null, which no expectation equals; nothing panics"
)]

mod flags;
mod golden;
mod helm;
mod lifecycle;
mod manifests;
mod permissions;
mod prometheus;
mod render;
mod server;
mod switches;
mod typos;
