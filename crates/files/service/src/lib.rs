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
//! Under a key, datagrams are sealed, and so are connections between hosts. Without a key servers
//! listen on loopback addresses only. All but the [`settings`] need the feature `servers`.
#![forbid(unsafe_code)]

#[cfg(feature = "servers")]
mod bytes_front;
#[cfg(feature = "servers")]
mod client;
#[cfg(feature = "servers")]
mod dataserver;
#[cfg(feature = "servers")]
mod facts;
#[cfg(feature = "servers")]
mod fetching;
#[cfg(feature = "servers")]
mod flows;
#[cfg(feature = "servers")]
mod listing;
#[cfg(feature = "servers")]
mod logs;
#[cfg(feature = "servers")]
mod making;
#[cfg(feature = "servers")]
mod names_front;
#[cfg(feature = "servers")]
mod nameserver;
#[cfg(feature = "objects")]
mod objects;
#[cfg(feature = "servers")]
mod owner;
#[cfg(feature = "servers")]
mod reading;
#[cfg(feature = "servers")]
mod reports;
#[cfg(feature = "servers")]
mod scrubbing;
#[cfg(feature = "servers")]
mod servers;
pub mod settings;
#[cfg(feature = "servers")]
mod webhdfs;
#[cfg(feature = "servers")]
mod writing;

#[cfg(feature = "servers")]
pub use client::{Client, Source, Tell};
#[cfg(feature = "servers")]
pub use dataserver::run as run_dataserver;
#[cfg(feature = "servers")]
pub use fetching::Fetched;
#[cfg(feature = "servers")]
pub use flows::run as run_flowserver;
#[cfg(feature = "servers")]
pub use nameserver::run as run_nameserver;
#[cfg(feature = "objects")]
pub use objects::FileObjects;
#[cfg(feature = "servers")]
pub use servers::{Options, ServiceError};
pub use settings::Settings;
