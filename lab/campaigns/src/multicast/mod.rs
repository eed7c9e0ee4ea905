//! The overlay in the simulator.
//!
//! [`run`] measures: it sends a feed at a steady pace through one or several trees on the cloud
//! model, and the fairness ledger of real runs judges the result. [`faults`] draws faults from a
//! seed, and [`checks`] watch the run. [`mutants`] are machines that the checks must catch.
//! [`campaign`] combines the three.

pub mod archive;
pub mod campaign;
pub mod cast;
pub mod checks;
pub mod faults;
pub mod keepers;
mod measure;
pub mod mutants;
pub mod narrate;
pub mod node;
mod owner;
mod params;
pub mod subject;

pub use measure::{FrameCourse, MessageCourse, OverlayRun, RunProgress, run, run_heard, run_seen};
pub use params::OverlayParams;
