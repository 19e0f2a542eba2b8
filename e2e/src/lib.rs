//! A real Cluster API management cluster on one machine, and what the tests on it share.

pub mod audit;
pub mod cloud;
pub mod components;
pub mod demo;
pub mod environment;
pub mod faults;
pub mod logs;
pub mod manifests;
pub mod node;
pub mod packages;
pub mod pki;
pub mod probe;
pub mod process;
pub mod progress;
pub mod simulator;
pub mod status;
pub mod testing;
pub mod tools;
pub mod up;
pub mod wait;
