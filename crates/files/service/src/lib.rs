//! A nameserver and dataservers as processes, with WebHDFS in front, and a client.
//!
//! ```text
//!  client ──names──> nameserver: names front ── owner thread: machine, port, log
//!    │  ^                │                            ^
//!    │  └── redirect ────┘                            │ datagrams
//!    │                                                v
//!    └───bytes────> dataserver: bytes front ── owner thread: machine, port, logs of chunks
//! ```
//!
//! Each process has one thread that owns its machine ([`owner`]), and a thread for each request of
//! HTTP that is being answered. A request hands calls to the owner and waits for their ends. Bytes
//! are read from the disk by the thread of the request.
//!
//! The protocol of clients is WebHDFS, the REST interface of Hadoop's file system ([`webhdfs`]).
//! Names are answered at the nameserver. Bytes are in two steps: the nameserver names the
//! dataserver, which takes or gives the bytes.
//!
//! Connections and datagrams have no key, so servers listen on loopback addresses only.
#![forbid(unsafe_code)]

mod bytes_front;
mod client;
mod dataserver;
mod logs;
mod names_front;
mod nameserver;
mod owner;
mod reading;
mod reports;
mod webhdfs;
mod writing;

use std::net::SocketAddr;
use std::path::PathBuf;

pub use client::{Client, Source, Tell};
pub use dataserver::run as run_dataserver;
pub use nameserver::run as run_nameserver;

/// What a server needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where this server takes HTTP, and on the same number receives datagrams.
    pub listen: SocketAddr,
    /// Where the nameserver takes HTTP and receives datagrams.
    pub nameserver: SocketAddr,
    /// The directory of the log, and of the chunks of a dataserver.
    pub directory: PathBuf,
}

impl Settings {
    /// Refuses addresses beyond loopback.
    fn check(&self) -> Result<(), ServiceError> {
        let all = [self.listen, self.nameserver];
        match all.into_iter().find(|address| !address.ip().is_loopback()) {
            Some(address) => Err(ServiceError::Unkeyed(address)),
            None => Ok(()),
        }
    }
}

/// Why a server ended, or a client got no answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServiceError {
    /// The host refused a socket or a thread.
    Host(evenfall_host::Error),
    /// A file or an address failed: what was done, and the error.
    Io(String, std::io::Error),
    /// The disk failed.
    Disk(evenfall_core::StorageError),
    /// The log cannot be read.
    Files(evenfall_files_machine::FilesError),
    /// The address lies beyond loopback.
    Unkeyed(SocketAddr),
    /// The server refused: the name of the exception, and its words.
    Refused(String, String),
    /// No server answered: what was asked, and why there is no answer.
    Unanswered(String, evenfall_runtime::http::RequestError),
    /// A server answered what no server of WebHDFS answers.
    Answer(String),
}

impl std::fmt::Display for ServiceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host(error) => error.fmt(f),
            Self::Io(what, error) => write!(f, "{what}: {error}"),
            Self::Disk(error) => error.fmt(f),
            Self::Files(error) => error.fmt(f),
            Self::Unkeyed(address) => write!(
                f,
                "{address} lies beyond loopback: connections have no key, so give an address in \
                 127.0.0.0/8"
            ),
            Self::Refused(_, what) | Self::Answer(what) => f.write_str(what),
            Self::Unanswered(whom, _) => {
                write!(f, "{whom} does not answer; is `evenfall run files` running?")
            }
        }
    }
}

impl std::error::Error for ServiceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The words of most errors say their cause already, so what is left is the cause behind it.
        match self {
            Self::Host(error) => error.source(),
            Self::Io(_, error) => error.source(),
            Self::Disk(error) => error.source(),
            Self::Files(error) => error.source(),
            Self::Unanswered(_, error) => Some(error),
            Self::Unkeyed(_) | Self::Refused(..) | Self::Answer(_) => None,
        }
    }
}

impl From<evenfall_host::Error> for ServiceError {
    fn from(error: evenfall_host::Error) -> Self {
        Self::Host(error)
    }
}
