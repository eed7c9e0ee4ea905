//! The overlay in the simulator.
//!
//! [`run`] measures: a feed at a steady pace through one or several trees on the cloud model, judged by
//! the same fairness ledger that judges real runs.
//! [`checks`] watch; [`mutants`] are machines that the checkers must catch.

pub mod cast;
mod measure;
pub mod node;
mod params;

pub use measure::{Run, run};
pub use params::Params;
