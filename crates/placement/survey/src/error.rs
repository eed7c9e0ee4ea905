//! Why a survey cannot begin or continue.

use std::io;
use std::net::SocketAddr;

use evenfall_runtime::{ProcessError, SettingsError};

/// Why an agent or a surveyor ended before its time.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SurveyError {
    /// The settings are wrong, or the operating system refused.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// Control messages cannot be carried.
    #[error(transparent)]
    Carrier(#[from] CarrierError),
}

/// Why control messages cannot be carried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CarrierError {
    /// An address beyond loopback, and no key.
    #[error("{what} {address}: without a key nothing leaves loopback; set run.key_file")]
    Unkeyed {
        /// Whose address.
        what: &'static str,
        /// The address.
        address: SocketAddr,
    },
    /// The address cannot be bound.
    #[error("gRPC on {0}: {1}; another process may have the port")]
    Bind(SocketAddr, io::Error),
    /// There is no thread for the carrier.
    #[error("gRPC: {0}")]
    Thread(io::Error),
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
