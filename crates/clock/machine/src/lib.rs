//! One time for all nodes.
#![forbid(unsafe_code)]

pub mod config;
pub mod hull;
pub mod pair;
#[cfg(test)]
mod trace;

pub use config::Config;
pub use pair::{CodedPair, Gap, PairEstimate, PairMeter};
