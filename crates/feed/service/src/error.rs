//! Errors of an intake or a player.

use evenfall_feed_formats::FeedError;
use evenfall_runtime::{ProcessError, SettingsError};

#[cfg(feature = "feeds")]
use crate::input::InputError;

/// The reason why an intake or a player cannot begin or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IntakeError {
    /// The settings are wrong, or the operating system refused.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The feed cannot be opened.
    #[cfg(feature = "feeds")]
    #[error(transparent)]
    Input(#[from] InputError),
    /// The feed is damaged. The messages before the damage were sent.
    #[error("{error}; the {sent} messages before this place were sent")]
    Broken {
        /// Place and kind of the damage.
        error: FeedError,
        /// Messages sent before the damage.
        sent: u64,
    },
}

impl From<SettingsError> for IntakeError {
    fn from(error: SettingsError) -> Self {
        Self::Process(error.into())
    }
}

impl From<evenfall_host::Error> for IntakeError {
    fn from(error: evenfall_host::Error) -> Self {
        Self::Process(error.into())
    }
}
