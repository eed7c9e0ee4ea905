//! One time for all nodes.
#![forbid(unsafe_code)]

pub mod bound;
pub mod config;
pub mod discipline;
mod filter;
pub mod graph;
pub mod hull;
pub mod mesh;
pub mod pair;
mod solver;
pub mod sources;
pub mod timekeeper;
#[cfg(test)]
mod trace;
pub mod wire;

pub use bound::{Reading, State, Verdict};
pub use config::Config;
pub use discipline::SoftwareClock;
pub use mesh::{Edge, Health, Mesh};
pub use pair::{CodedPair, Gap, PairEstimate, PairMeter};
pub use sources::{Utc, Witness};
pub use timekeeper::{Seat, TimeEvent, Timekeeper};
pub use wire::Claim;
