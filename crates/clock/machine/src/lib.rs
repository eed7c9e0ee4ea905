//! One time for all nodes.
#![forbid(unsafe_code)]

pub mod bound;
pub mod config;
mod filter;
pub mod graph;
pub mod hull;
pub mod mesh;
pub mod pair;
mod solver;
#[cfg(test)]
mod trace;

pub use bound::{Reading, State, Verdict};
pub use config::Config;
pub use mesh::{Edge, Health, Mesh};
pub use pair::{CodedPair, Gap, PairEstimate, PairMeter};
