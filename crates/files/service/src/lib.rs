//! A nameserver and dataservers as processes, with WebHDFS in front, and a client.
//!
//! ```text
//!  client ──names──> nameserver: WebHDFS ────── owner thread: machine, port, log
//!    │  ^                │                            ^
//!    │  └── redirect ────┘                            │ datagrams
//!    │                                                v
//!    └───bytes────> dataserver: WebHDFS ────── owner thread: machine, port, logs of chunks
//! ```
//!
//! Each process has one thread that owns its machine (`owner`). Each request of HTTP has a thread
//! until the answer has left. The thread of a request hands calls to the owner, waits for their
//! ends, and reads bytes from the disk.
//!
//! The protocol of clients is WebHDFS, the REST interface of Hadoop's file system (`webhdfs`). The
//! nameserver answers requests about names. A request for bytes takes two steps: the nameserver
//! names a dataserver, and the dataserver takes or gives the bytes.
//!
//! Under a key, datagrams are sealed, and so are connections between hosts. Without a key servers
//! listen on loopback addresses only. Everything but the [`settings`] needs the feature `servers`.
#![forbid(unsafe_code)]

#[cfg(feature = "servers")]
mod servers;
#[cfg(feature = "service")]
pub mod service;
pub mod settings;

#[cfg(feature = "objects")]
pub use servers::FileObjects;
#[cfg(feature = "servers")]
pub use servers::{
    BytesSource, Fetched, FilesClient, Options, RebuildSource, ServiceError, Tell, rebuild,
    run_dataserver, run_flowserver, run_nameserver, user_of_environment,
};
pub use settings::{PreparedPath, ReadLimits, Settings};
