//! A replica of ordered keys as a process, and its client.
//!
//! ```text
//!  clients ──TCP──> front thread ──calls──> replica thread: Canopus, its port, its log
//!     ^                  │ ^ notices             │ applies what is committed
//!     └───── answers ────┘ └──────────────── keys, watches
//! ```
//!
//! One thread owns the machine ([`replica`]), and one thread serves all clients (`front`), each by
//! its `connection`. Writes go through the order. Reads are answered from the keys of this replica
//! at their turn, as ZooKeeper does, and a client that needs the latest value sends a sync in front
//! of the read.
//!
//! Clients speak ZooKeeper's protocol ([`jute`]), with two operations of our own beside it: a
//! [call](evenfall_order_machine::keys::Call) with a sequence, which is applied once however often
//! it is sent, and a read behind all writes that were answered before. [`Client`] uses both.
//!
//! With a key, replicas on several hosts seal what they tell each other (`sealed`). Clients speak
//! ZooKeeper's protocol, which has no seal. Without a key everything stays on loopback.
#![forbid(unsafe_code)]

mod client;
mod cluster;
mod connection;
mod front;
#[doc(hidden)]
pub mod fuzzing;
pub mod jute;
mod leased;
mod operations;
mod options;
pub mod outside;
pub mod replica;
mod rights;
mod shared;
mod watches;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use evenfall_core::{NodeId, SharedKey};
use evenfall_order_machine::{Member, SuperLeaf, Tree};

pub use client::{Client, Found, Next, Watching, status};
pub use evenfall_order_machine::{SecondRound, keys};
pub use options::Options;
pub use outside::Membership;
pub use replica::run;

/// What a replica needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The number of this replica among `replicas`.
    pub node: usize,
    /// Where each replica receives datagrams.
    pub replicas: Vec<SocketAddr>,
    /// Where this replica listens for clients.
    pub listen: SocketAddr,
    /// The directory of the log.
    pub directory: PathBuf,
    /// Most bytes of keys and values. The replicas agree on the limit that is proposed first, and
    /// [`Client::limit`] changes it. `None` proposes [`keys::BYTES_MAX`].
    pub bytes_max: Option<usize>,
    /// Cycles for which a write lease lasts; 0 without leases. All replicas need the same number.
    pub lease_cycles: u64,
    /// The racks of the replicas. All replicas need the same.
    pub racks: Racks,
    /// Options that ZooKeeper's servers read from their file `zoo.cfg`.
    pub zookeeper: Options,
    /// The key that all replicas share. Without a key nothing leaves loopback.
    pub key: Option<SharedKey>,
}

/// Which replica is in which rack, and how the racks agree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Racks {
    /// The rack of each replica, from 0 to 63; empty when all replicas are in one rack.
    pub of: Vec<u8>,
    /// How the racks agree on what each cycle has, so that some of them may vanish. With a
    /// membership service outside, [`run`] needs the service.
    pub second_round: SecondRound,
    /// The farthest round trip between two racks.
    pub round_trip: Duration,
}

impl Racks {
    /// Most racks. One word has a bit for each.
    pub const MAX: usize = 64;

    /// The numbers of the racks, in order.
    pub fn numbers(&self) -> Vec<u8> {
        let all: BTreeSet<u8> = self.of.iter().copied().collect();
        all.into_iter().collect()
    }
}

impl Settings {
    /// The number of this replica's rack.
    pub fn rack(&self) -> u8 {
        self.racks.of.get(self.node).copied().unwrap_or(0)
    }

    /// The replicas of each rack as a super-leaf.
    ///
    /// # Errors
    /// When there are no replicas, or more than a tree may have.
    pub fn tree(&self) -> Result<Tree, ServiceError> {
        let mut leaves: BTreeMap<Vec<u8>, Vec<Member>> = BTreeMap::new();
        let is_wide = self.racks.numbers().len() > 1;
        for (n, address) in self.replicas.iter().enumerate() {
            let rack = self.racks.of.get(n).copied().filter(|_| is_wide);
            let member = Member { node: NodeId(n as u32), address: *address };
            leaves.entry(rack.into_iter().collect()).or_default().push(member);
        }
        let leaf = |(path, members)| SuperLeaf { path, members };
        Ok(Tree::new(leaves.into_iter().map(leaf).collect())?)
    }
}

/// Why a replica ended, or a client got no answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServiceError {
    /// The machine refused.
    Order(evenfall_order_machine::OrderError),
    /// The machine refused this log. The log stays as it is.
    Log(PathBuf, evenfall_order_machine::OrderError),
    /// A replica was first started with other settings that all replicas share and that its log
    /// depends on: the file that says so, the first settings, and those of this start.
    Cluster {
        /// The file.
        path: PathBuf,
        /// The settings of the first start.
        first: String,
        /// The settings of this start.
        given: String,
    },
    /// The host refused a socket or a thread.
    Host(evenfall_host::Error),
    /// A file or a connection failed: what was done, and the error.
    Io(String, std::io::Error),
    /// The disk failed, and the replica has stopped.
    Disk(evenfall_core::StorageError),
    /// A snapshot in the log, or from another replica, cannot be read.
    Snapshot(evenfall_core::Malformed),
    /// The keys refused a call.
    Refused(evenfall_order_machine::keys::Refusal),
    /// A rack cannot leave, and why.
    Rack(u8, &'static str),
    /// No replica answered: what the last one said.
    Unanswered(String),
    /// The thread of the connections has ended.
    FrontEnded,
    /// An answer cannot be read.
    Answer(evenfall_core::Malformed),
    /// An option of ZooKeeper is unknown or has a value that is not allowed: the option, and what
    /// is allowed.
    Option(String, &'static str),
}

impl std::fmt::Display for ServiceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Order(error) => error.fmt(f),
            Self::Log(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Cluster { path, first, given } => write!(
                f,
                "{}: the log was made with other settings ({first}) than those of this start \
                 ({given}): start the replica as before, or give another directory",
                path.display()
            ),
            Self::Host(error) => error.fmt(f),
            Self::Io(what, error) => write!(f, "{what}: {error}"),
            Self::Disk(error) => write!(f, "the log cannot be written: {error}"),
            Self::Snapshot(error) => write!(f, "the snapshot cannot be read: {error}"),
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Rack(rack, why) => write!(f, "rack {rack} does not leave: {why}"),
            Self::Unanswered(what) => write!(f, "no replica answered: {what}"),
            Self::FrontEnded => {
                f.write_str("the thread that serves clients has ended: start the replica again")
            }
            Self::Answer(error) => write!(f, "the answer cannot be read: {error}"),
            Self::Option(option, may_be) => write!(f, "{option}: {may_be}"),
        }
    }
}

impl std::error::Error for ServiceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The text of an error contains its cause already, so the source is the cause of that
        // cause.
        match self {
            Self::Order(error) | Self::Log(_, error) => error.source(),
            Self::Host(error) => error.source(),
            Self::Io(_, error) => error.source(),
            Self::Disk(error) => error.source(),
            Self::Snapshot(error) | Self::Answer(error) => error.source(),
            Self::Refused(refusal) => refusal.source(),
            Self::Unanswered(_) | Self::FrontEnded | Self::Option(..) => None,
            Self::Rack(..) | Self::Cluster { .. } => None,
        }
    }
}

impl From<evenfall_order_machine::OrderError> for ServiceError {
    fn from(error: evenfall_order_machine::OrderError) -> Self {
        Self::Order(error)
    }
}

impl From<evenfall_host::Error> for ServiceError {
    fn from(error: evenfall_host::Error) -> Self {
        Self::Host(error)
    }
}

#[cfg(test)]
mod tests;
