//! The intake of the feed that settings name.

use evenfall_runtime::settings::{Io, RunSettings};

use super::{Intake, mold, replay};
use crate::IntakeError;
use crate::settings::Feed;

/// Opens the feed of the settings: a live feed, else the file, else the generator.
///
/// # Errors
/// [`IntakeError`].
pub fn open(feed: &Feed, run: &RunSettings, io: &Io) -> Result<Box<dyn Intake>, IntakeError> {
    Ok(match feed.mold {
        Some(address) => Box::new(mold::Mold::open(address, feed, run.key()?.is_some(), io)?),
        None => Box::new(replay::Replay::open(feed)?),
    })
}
