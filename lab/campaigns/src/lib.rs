//! Machines of evenfall in its simulator: scenes, fault campaigns, checkers and mutants.
//!
//! A scene builds a world and runs it, and its result is a value. Checkers are separate from scenes
//! and watch the same events. The crate needs machines and the simulator alone, so that a campaign
//! compiles without services. The tables and figures that are made of scenes are the crate
//! `evenfall-studies`.
//!
//! | module | what it holds |
//! |---|---|
//! | [`CAMPAIGNS`] | the list of all fault campaigns |
//! | [`consensus`] | Canopus and its rivals: under faults, and over sites and racks |
//! | [`copies`] | replicated files: a nameserver and dataservers under faults |
//! | [`model`] | models of clouds as the simulator takes them |
//! | [`multicast`] | the overlay: measured runs, fault campaigns, transcripts |
//! | [`seeds`] | one scene under many seeds: runs on all cores, means and intervals |
//! | [`shuffle`] | the shuffle on a fat tree, its rivals, fault campaigns |
//! | [`sort`] | MilliSort and its queries on the network of their source, and under faults |
//! | [`store`] | fault campaign of the store: torn disks and failing objects |
//! | [`survey`] | live measurement: agents and a surveyor under faults |
//! | [`takeover`] | roots that vote: a standby takes over from a root that dies |
#![forbid(unsafe_code)]

pub mod consensus;
pub mod copies;
pub mod model;
pub mod multicast;
pub mod seeds;
pub mod shuffle;
pub mod sort;
pub mod store;
pub mod survey;
pub mod takeover;

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
    &store::StoreCampaign,
    &consensus::CONSENSUS,
    &consensus::RACKS,
    &consensus::SESSIONS,
    &consensus::rivals::faults::Rivals,
    &takeover::TakeoverCampaign,
    &copies::CopiesCampaign,
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
