//! The overlay in the simulator.
//!
//! [`run`] measures: a feed at a steady pace through one or several trees on the cloud model,
//! judged by the same fairness ledger that judges real runs. [`faults`] draws what goes wrong from
//! a seed, and [`checks`] watch. [`mutants`] are machines that the checks must catch. [`campaign`]
//! brings the three together.

pub mod archive;
pub mod campaign;
pub mod cast;
pub mod checks;
pub mod faults;
mod measure;
pub mod mutants;
pub mod narrate;
pub mod node;
mod owner;
mod params;
pub mod subject;

pub use measure::{FrameCourse, Progress, Run, run, run_seen};
pub use params::Params;
