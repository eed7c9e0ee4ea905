//! Replicas of ordered keys as processes, for ZooKeeper's clients and for evenfall's own.
//!
//! ```text
//!  clients ──TCP──> front thread ──calls──> replica thread: a replica of the consensus
//!     ^                  │ ^ notices             │ applies what is committed
//!     └───── answers ────┘ └──────────────── keys, watches
//! ```
//!
//! One thread owns the replica of the consensus ([`replica`]), and one thread serves all clients
//! (`front`), each by its `connection`. [`run`] makes a replica of Canopus. [`run_replica`] takes a
//! replica of any protocol that keeps the contract
//! [`Consensus`](evenfall_consensus_machine::Consensus). Writes go through the consensus. Reads are
//! answered from the keys of this replica at their turn, as ZooKeeper does, and a client that needs
//! the latest value sends a sync in front of the read.
//!
//! Clients speak ZooKeeper's protocol ([`jute`](evenfall_keys_machine::jute)), with two operations
//! of our own beside it: a [call](evenfall_keys_machine::KeyCall) with a sequence, which is applied
//! once however often it is sent, and a read behind all writes that were answered before.
//! `evenfall-keys-client` uses both.
//!
//! ZooKeeper's protocol has no seal. Without a key everything stays on loopback.
#![forbid(unsafe_code)]

mod connection;
mod error;
mod front;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod leased;
mod operations;
mod options;
mod reading;
mod refusals;
pub mod replica;
mod rights;
#[cfg(feature = "service")]
pub mod service;
#[cfg(feature = "service")]
pub mod settings;
mod shared;
mod stats;
mod watches;
mod words;

use std::net::SocketAddr;

pub use error::KeysError;
pub use evenfall_keys_machine as keys;
pub use options::Options;
pub use replica::{run, run_replica};

/// What a replica of ordered keys needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The replica of the consensus.
    pub replica: evenfall_consensus_replica::Settings,
    /// Where this replica listens for clients.
    pub listen: SocketAddr,
    /// Most bytes of keys and values. The replicas agree on the limit that is proposed first, and
    /// `evenfall kv limit` changes it. `None` proposes [`keys::BYTES_MAX`].
    pub bytes_max: Option<usize>,
    /// Options that ZooKeeper's servers read from their file `zoo.cfg`.
    pub zookeeper: Options,
}

#[cfg(test)]
mod tests;
