//! `evenfall sort` and `evenfall burst`: a sort and queries over many ranks, and what a desk asks.

#[cfg(feature = "burst")]
mod agree;
#[cfg(feature = "burst")]
mod desk;
#[cfg(feature = "burst")]
mod desk_output;
#[cfg(feature = "burst")]
mod memory;
#[cfg(feature = "burst")]
mod queries;
#[cfg(feature = "burst")]
mod ranks;
#[cfg(feature = "burst")]
mod recent;
#[cfg(feature = "burst")]
mod sort;

#[cfg(feature = "burst")]
pub use queries::{BurstArgs, run_query};
#[cfg(feature = "burst")]
pub use recent::hold_recent;
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

/// Says how to get recorders that answer the questions of a desk.
///
/// # Errors
/// Always.
#[cfg(not(feature = "burst"))]
pub fn hold_recent(
    _: evenfall_multicast_recorder::recent::RecentHolding,
) -> Result<Box<dyn evenfall_multicast_recorder::recent::RecentHolder>, Box<dyn std::error::Error>>
{
    let (role, feature) = ("recorder with `burst`", "burst");
    Err(evenfall_runtime::service::NotBuilt { role, feature }.into())
}

/// Says how to get the command.
#[cfg(not(feature = "burst"))]
pub fn sort_records(_: &SortArgs) -> Outcome {
    crate::missing::main("evenfall sort", "burst")
}
