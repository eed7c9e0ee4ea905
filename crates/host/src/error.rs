//! Errors between evenfall and the kernel. Every message says what to do about the error.

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
        /// The refused action: "bind to", "send to".
        verb: &'static str,
    },
    /// A system call failed.
    Os {
        /// The attempted action and its object.
        what: String,
        /// The error of the kernel.
        source: io::Error,
        /// Advice for the user; may be empty.
        advice: &'static str,
    },
    /// A part that a lab needs is missing.
    Lab {
        /// The missing or failed part.
        what: String,
        /// Advice for the user.
        advice: &'static str,
    },
    /// A clock source cannot be read.
    Clock {
        /// The source, and the reason.
        what: String,
    },
}

impl Error {
    /// The last error of the operating system, with the action and the advice.
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
            Self::Os { source, .. } => std::error::Error::source(source),
            Self::Unkeyed { .. } | Self::Lab { .. } | Self::Clock { .. } => None,
        }
    }
}
