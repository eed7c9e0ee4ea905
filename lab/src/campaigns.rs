//! The list of all campaigns, for the tests and for `evenfall sim campaign`.

use evenfall_sim::AnyCampaign;

use crate::multicast::campaign::{FAULTS, RECORDER, SLOW_PROXY, SLOW_RECEIVER};
use crate::order::Order;
use crate::shuffle::calls::Calls;
use crate::shuffle::faults::Shuffle;
use crate::store::Store;
use crate::survey::Survey;

/// Every campaign of evenfall.
pub static ALL: [&dyn AnyCampaign; 9] =
    [&FAULTS, &RECORDER, &SLOW_RECEIVER, &SLOW_PROXY, &Survey, &Shuffle, &Calls, &Store, &Order];

/// The campaign of this name.
///
/// # Errors
/// The list of all names, when no campaign has this name.
pub fn by_name(name: &str) -> Result<&'static dyn AnyCampaign, String> {
    ALL.into_iter().find(|campaign| campaign.name() == name).ok_or_else(|| {
        let names: Vec<_> = ALL.iter().map(|campaign| campaign.name()).collect();
        format!("there is no campaign {name:?}; there are {}", names.join(", "))
    })
}
