//! `evenfall demo --trading` in a build without the feature `trading`: says how to get it.

#![allow(clippy::unnecessary_wraps, reason = "the signatures are those of the whole module")]

use evenfall_multicast_service::Settings;
use evenfall_multicast_service::settings::MulticastNode;
use evenfall_runtime::service::Start;
use serde_json::Value;

use super::Args;

/// The arguments of trading.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct TradingArgs {
    /// Let receivers trade on the feed; needs a build with the feature `trading`.
    #[arg(long, hide = true)]
    trading: bool,
}

impl TradingArgs {
    /// Whether participants trade: never in this build.
    pub fn is_on(&self) -> bool {
        false
    }

    /// Whether any participant has a wrong clock: never in this build.
    pub fn plants_clock_errors(&self) -> bool {
        false
    }
}

/// Says how to get the option.
///
/// # Errors
/// When the option is given.
pub fn prepare_feed(args: Args) -> Result<Args, String> {
    match args.trading.trading {
        true => Err(crate::missing::words("evenfall demo --trading", "trading")),
        false => Ok(args),
    }
}

/// Makes no clock wrong.
pub fn plant_clock_errors(_: &Args) -> Result<(), String> {
    Ok(())
}

/// A place in the market, which this build never has.
pub(crate) enum ParticipantSeat {}

/// Runs a participant, which this build never has.
///
/// # Errors
/// Never.
pub fn take_part(
    _: &Start<'_>,
    seat: ParticipantSeat,
) -> Result<Value, Box<dyn std::error::Error>> {
    match seat {}
}

/// An exchange, which this build never has.
pub(crate) enum Exchange {}

/// What trading came to, which this build never has.
pub(crate) enum TradingOutcome {}

impl Exchange {
    pub fn open(_: &Args) -> Result<Option<Self>, Box<dyn std::error::Error>> {
        Ok(None)
    }

    pub fn describe_seat(&self, _: &Args, _: &MulticastNode) -> Option<String> {
        match *self {}
    }

    pub fn settle(self, _: &Args, _: &Settings) -> Result<TradingOutcome, String> {
        match self {}
    }
}

impl TradingOutcome {
    pub fn to_json(&self) -> Value {
        match *self {}
    }

    pub fn say(&self) -> String {
        match *self {}
    }

    pub fn say_shares(&self) -> String {
        match *self {}
    }
}
