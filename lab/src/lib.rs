//! Scenarios, checkers and studies: the machines of evenfall, run in its simulator.
//!
//! A scenario builds a world and runs it, and its result is a value. Checkers are separate from
//! scenarios and watch the same events. A study is a function that returns a table.
//!
//! | module | what it holds |
//! |---|---|
//! | [`CAMPAIGNS`] | the list of all fault campaigns |
//! | [`clock`] | clock synchronisation: errors and bounds of clocks, beside rivals |
//! | [`files`] | bulk reads: the choice of copy and path, beside rivals and a lower bound |
//! | [`multicast`] | the overlay: measured runs, fault campaigns, transcripts |
//! | [`consensus`] | Canopus and its rivals: under faults, and over sites and racks |
//! | [`placement`] | pools of machines, and planners compared on them |
//! | [`model`] | models of clouds for studies: a file each, with the source of every number |
//! | [`product`] | where the program evenfall is, for instruments that measure its processes |
//! | [`published`] | published measurements, to fit models and to judge them |
//! | [`survey`] | live measurement: agents and a surveyor under faults |
//! | [`seeds`] | one scene under many seeds: runs on all cores, means and intervals |
//! | [`store`] | fault campaign of the store: torn disks and failing objects |
//! | [`shuffle`] | the shuffle on a fat tree, its rivals, fault campaigns |
//! | [`signed`] | a signed feed under attack, and what signatures cost |
//! | [`sort`] | MilliSort and its queries on the network of their source, and under faults |
//! | [`trading`] | four participants trade on a feed: what uneven delivery is worth |
//! | [`takeover`] | roots that vote: a standby takes over from a root that dies |
//! | `commands`, `fanout` | the program, with the feature `program` |
//! | [`studies`] | tables: hedging, shapes, modes, fairness by size, the price of P(F), one order |
#![forbid(unsafe_code)]

#[cfg(feature = "program")]
#[macro_use]
extern crate evenfall_runtime;

pub mod clock;
#[cfg(feature = "program")]
pub mod commands;
pub mod consensus;
#[cfg(feature = "program")]
pub mod fanout;
pub mod files;
pub mod model;
pub mod multicast;
pub mod placement;
pub mod product;
pub mod published;
pub mod seeds;
pub mod shuffle;
pub mod signed;
pub mod sort;
pub mod store;
pub mod studies;
pub mod survey;
pub mod takeover;
pub mod trading;

use evenfall_sim::AnyCampaign;

use crate::multicast::campaign::{CLOCK, FAULTS, OLD_KEYS, RECORDER, SLOW_PROXY, SLOW_RECEIVER};
use crate::shuffle::{calls::Calls, faults::ShuffleCampaign};

/// Every fault campaign. The tests, `evenfall sim campaign` and the comparison of builds go over
/// this list.
pub static CAMPAIGNS: &[&dyn AnyCampaign] = &[
    &FAULTS,
    &CLOCK,
    &RECORDER,
    &OLD_KEYS,
    &SLOW_RECEIVER,
    &SLOW_PROXY,
    &survey::Survey,
    &ShuffleCampaign,
    &Calls,
    &sort::faults::SortCampaign,
    &sort::questions::QuestionCampaign,
    &store::Store,
    &consensus::CONSENSUS,
    &consensus::RACKS,
    &consensus::SESSIONS,
    &consensus::rivals::faults::Rivals,
    &takeover::Takeover,
    &files::copies::Copies,
];

/// The campaign of this name.
///
/// # Errors
/// The names that there are.
pub fn campaign(name: &str) -> Result<&'static dyn AnyCampaign, String> {
    // The campaign of Canopus was called `order` until 0.2.
    let name = if name == "order" { consensus::CONSENSUS.name() } else { name };
    CAMPAIGNS.iter().copied().find(|campaign| campaign.name() == name).ok_or_else(|| {
        let names: Vec<_> = CAMPAIGNS.iter().map(|campaign| campaign.name()).collect();
        format!("there is no campaign {name:?}; there are {}", names.join(", "))
    })
}
