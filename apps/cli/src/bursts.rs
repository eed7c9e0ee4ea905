//! `evenfall sort` and `evenfall burst`: a sort and queries over many ranks.

#[cfg(feature = "burst")]
mod queries;
#[cfg(feature = "burst")]
mod ranks;
#[cfg(feature = "burst")]
mod sort;

#[cfg(feature = "burst")]
pub use queries::{BurstArgs, run_query};
#[cfg(feature = "burst")]
pub use sort::{SortArgs, sort_records};

#[cfg(not(feature = "burst"))]
use crate::Outcome;
#[cfg(not(feature = "burst"))]
pub use crate::missing::{Args as BurstArgs, Args as SortArgs};

/// Says how to get the command.
#[cfg(not(feature = "burst"))]
pub fn run_query(_: &BurstArgs) -> Outcome {
    crate::missing::main("evenfall burst", "burst")
}

/// Says how to get the command.
#[cfg(not(feature = "burst"))]
pub fn sort_records(_: &SortArgs) -> Outcome {
    crate::missing::main("evenfall sort", "burst")
}
