//! The write protocol on a real API server: each rule, and each way in which the world can have changed since the plan.
//!
//! The subject of most tests is a CAPTControlPlane under an API group of its own: it has the real schema and the real
//! ownership, but no controller watches it, so every change seen here was made here.

mod audit;
mod children;
mod fields;
mod finalizers;
mod refusals;
mod values;
mod world;
