//! Why a survey cannot begin or go on.

use std::fmt;

use evenfall_runtime::{ProcessError, SettingsError};

/// Why an agent or a surveyor ended before its time.
#[derive(Debug)]
#[non_exhaustive]
pub enum SurveyError {
    /// The settings are wrong, or the operating system refused.
    Process(ProcessError),
    /// Control messages cannot be carried.
    Carrier(String),
}

impl fmt::Display for SurveyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(error) => write!(f, "{error}"),
            Self::Carrier(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for SurveyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Process(error) => Some(error),
            Self::Carrier(_) => None,
        }
    }
}

impl From<ProcessError> for SurveyError {
    fn from(error: ProcessError) -> Self {
        Self::Process(error)
    }
}

impl From<SettingsError> for SurveyError {
    fn from(error: SettingsError) -> Self {
        Self::Process(error.into())
    }
}

impl From<evenfall_host::Error> for SurveyError {
    fn from(error: evenfall_host::Error) -> Self {
        Self::Process(error.into())
    }
}
