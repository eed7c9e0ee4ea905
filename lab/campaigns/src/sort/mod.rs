//! Bursts on a simulated network: MilliSort and three queries, and their campaigns of faults.
//!
//! | module | what it holds |
//! |---|---|
//! | [`node`] | a rank whose work takes modelled time on cores of its own |
//! | [`scene`] | [`BurstScene`]: one burst on the network of the thesis |
//! | [`alone`] | a shuffle alone |
//! | [`faults`] | the campaign of the sort: faults, checks and mutants |
//! | [`questions`] | the campaign of a standing group that a desk asks |
//! | [`model`] | the partition by its definition, for the check of the campaign |

pub mod alone;
pub mod faults;
pub mod model;
pub mod node;
pub mod questions;
pub mod scene;

pub use scene::{BurstOutcome, BurstScene, run_query, run_sort};
