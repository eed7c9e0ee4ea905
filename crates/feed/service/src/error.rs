//! Errors of an intake or a player.

use std::fmt;

use evenfall_feed_formats::FeedError;
use evenfall_runtime::{ProcessError, SettingsError};

#[cfg(feature = "feeds")]
use crate::input::InputError;

/// The reason why an intake or a player cannot begin or go on.
#[derive(Debug)]
#[non_exhaustive]
pub enum IntakeError {
    /// The settings are wrong, or the operating system refused.
    Process(ProcessError),
    /// The feed cannot be opened.
    #[cfg(feature = "feeds")]
    Input(InputError),
    /// The feed is damaged. The messages before the damage were sent.
    Broken {
        /// Place and kind of the damage.
        error: FeedError,
        /// Messages sent before the damage.
        sent: u64,
    },
}

impl fmt::Display for IntakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(error) => write!(f, "{error}"),
            #[cfg(feature = "feeds")]
            Self::Input(error) => write!(f, "{error}"),
            Self::Broken { error, sent } => {
                write!(f, "{error}; the {sent} messages before this place were sent")
            }
        }
    }
}

impl std::error::Error for IntakeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Process(error) => std::error::Error::source(error),
            #[cfg(feature = "feeds")]
            Self::Input(error) => std::error::Error::source(error),
            Self::Broken { error, .. } => std::error::Error::source(error),
        }
    }
}

impl From<ProcessError> for IntakeError {
    fn from(error: ProcessError) -> Self {
        Self::Process(error)
    }
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

#[cfg(feature = "feeds")]
impl From<InputError> for IntakeError {
    fn from(error: InputError) -> Self {
        Self::Input(error)
    }
}
