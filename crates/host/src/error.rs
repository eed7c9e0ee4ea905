//! What can go wrong between evenfall and the kernel. Every message says what to do about it.

use std::fmt;
use std::io;
use std::net::SocketAddr;

/// An error of this crate.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// An address beyond loopback without a key.
    Unkeyed {
        /// The address that was refused.
        address: SocketAddr,
        /// What was wanted of it: "bind to", "send to".
        verb: &'static str,
    },
    /// A system call failed.
    Os {
        /// What was tried, and with what.
        what: String,
        /// What the kernel said.
        source: io::Error,
        /// What to do about it; may be empty.
        advice: &'static str,
    },
    /// Something that a lab needs is missing.
    Lab {
        /// What is missing or failed.
        what: String,
        /// What to do about it.
        advice: &'static str,
    },
    /// A clock source cannot be read.
    Clock {
        /// Which source, and why not.
        what: String,
    },
}

impl Error {
    /// The last error of the operating system, as `what` with `advice`.
    pub fn last_os(what: impl Into<String>, advice: &'static str) -> Self {
        Self::Os { what: what.into(), source: io::Error::last_os_error(), advice }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unkeyed { address, verb } => write!(
                f,
                "refused to {verb} {address}: without a key nothing leaves loopback; configure the \
                 shared key on every host, or use an address in 127.0.0.0/8 or ::1"
            ),
            Self::Os { what, source, advice: "" } => write!(f, "{what}: {source}"),
            Self::Os { what, source, advice } => write!(f, "{what}: {source}; {advice}"),
            Self::Lab { what, advice } => write!(f, "lab: {what}; {advice}"),
            Self::Clock { what } => write!(f, "clock: {what}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Os { source, .. } => Some(source),
            Self::Unkeyed { .. } | Self::Lab { .. } | Self::Clock { .. } => None,
        }
    }
}
