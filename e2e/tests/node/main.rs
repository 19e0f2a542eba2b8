//! The chart on a real node: real Helm, real pods, this tree's images. `make test-chart` runs these tests, one at a time:
//! each has an environment with a node of its own, and measures.

#![allow(
    clippy::indexing_slicing,
    reason = "an absent key of a JSON value reads as null, which no expectation equals; nothing panics"
)]

mod discovery;
mod disk;
mod handover;
mod lifecycle;
mod machine;
mod operator;
mod recovery;
mod scrape;
mod security;
mod site;
mod tenant;
mod wave;
