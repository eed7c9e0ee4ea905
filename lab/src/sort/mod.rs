//! Bursts on a simulated network: MilliSort and three queries beside the figures of the thesis, the
//! balance of partitions, and a campaign of faults.
//!
//! | module | what it holds |
//! |---|---|
//! | [`node`] | a rank whose work takes modelled time on cores of its own |
//! | [`scene`] | [`BurstScene`]: one burst on the network of the thesis |
//! | [`study`] | tables beside those of the thesis |
//! | [`balance`] | Table 2.2: the largest partition |
//! | [`faults`] | the campaign of the sort: faults, checks and mutants |
//! | [`questions`] | the campaign of a standing group that a desk asks |
//! | [`model`] | the partition by its definition, for the check of the campaign |

pub mod balance;
pub mod faults;
pub mod model;
pub mod node;
pub mod questions;
pub mod scene;
pub mod study;

pub use scene::{BurstOutcome, BurstScene, run_query, run_sort};
