//! Why a survey cannot begin or continue.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use evenfall_runtime::{ProcessError, SettingsError};

/// Why an agent or a surveyor ended before its time.
#[derive(Debug)]
#[non_exhaustive]
pub enum SurveyError {
    /// The settings are wrong, or the operating system refused.
    Process(ProcessError),
    /// Control messages cannot be carried.
    Carrier(CarrierError),
}

/// Why control messages cannot be carried.
#[derive(Debug)]
#[non_exhaustive]
pub enum CarrierError {
    /// An address beyond loopback, and no key.
    Unkeyed {
        /// Whose address.
        what: &'static str,
        /// The address.
        address: SocketAddr,
    },
    /// The address cannot be bound.
    Bind(SocketAddr, io::Error),
    /// There is no thread for the carrier.
    Thread(io::Error),
}

impl fmt::Display for CarrierError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unkeyed { what, address } => write!(
                f,
                "{what} {address}: without a key nothing leaves loopback; set run.key_file"
            ),
            Self::Bind(address, error) => {
                write!(f, "gRPC on {address}: {error}; another process may have the port")
            }
            Self::Thread(error) => write!(f, "gRPC: {error}"),
        }
    }
}

impl std::error::Error for CarrierError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Bind(_, error) | Self::Thread(error) => std::error::Error::source(error),
            Self::Unkeyed { .. } => None,
        }
    }
}

impl From<CarrierError> for SurveyError {
    fn from(error: CarrierError) -> Self {
        Self::Carrier(error)
    }
}

impl fmt::Display for SurveyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(error) => write!(f, "{error}"),
            Self::Carrier(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for SurveyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Process(error) => std::error::Error::source(error),
            Self::Carrier(error) => std::error::Error::source(error),
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
