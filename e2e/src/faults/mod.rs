//! A proxy between one controller and the API server that spoils what it carries, by plan.
//!
//! It counts the controller's writes and strikes at the n-th: the world stops so that the controller can be killed at that
//! very moment, the write is refused, or its connection is cut, before or after it was done. Watches can be held back,
//! lose events, or break off, and a restarted controller can be shown the world as it was some time ago.
//!
//! Everything here is something that a real API server, or the network before it, may do. One thing is not done: a read
//! that asks for the newest version gets it, because that is what the API server promises and what every irreversible
//! step rests on.

mod plan;
mod proxy;
mod target;
mod watch;

pub use plan::{Age, Fault, Moment, Plan, Refusal};
pub use proxy::{Proxy, Write};
pub use target::{Target, Verb};
