//! The types that all evenfall crates share.
//!
//! | module | what it holds |
//! |---|---|
//! | [`time`] | [`Timestamp`] (local clock), [`SyncTime`] (synchronised clock), [`Clock`] between them |
//! | [`prng`] | [`Prng`], seeded and passed in |
//! | [`math`] | logarithms, powers, angles and hashes with the same bits on every computer |
//! | [`machine`] | [`Machine`], the contract between protocols and drivers; start reading here |
//! | [`forward`] | [`Forward`]: state with which a port sends datagrams on without asking |
//! | [`durable`] | [`Durable`]: writes that a machine asks for and does not wait for |
//! | [`journal`] | [`Journal`](journal::Journal): a machine's log of records on its disk, with retries |
//! | [`frame_memory`] | [`FrameMemory`]: memory for the bytes of frames, which is used again |
//! | [`hedging`] | [`Hedging`]: extra copies of a message, for overlay, planner and commands |
//! | [`storage`] | [`Disk`] and [`Objects`]: the two places in which a store keeps bytes |
//! | [`histogram`] | [`Histogram`] that merges up a tree, [`Summary`] that commands print |
//! | [`reader`] | [`Reader`]: integers out of bytes from outside |
//! | [`seal`] | [`SharedKey`] of a run, [`MacKey`] of a protocol |
//! | [`node_keys`] | [`MasterKey`] of the roots, [`NodeKey`] of one node: keys of two ends |
//! | `cipher` | `Cipher`, which seals bytes (feature `cipher`) |
//! | `sealed_stream` | a connection that is sealed under a key, without IO (feature `cipher`) |
//! | [`user_key`] | [`UserKey`]: the key of a user of a server |
//! | [`statistics`] | means of a few values with Student's intervals |
//!
//! Nothing in this crate does IO, reads a clock or starts a thread.
#![forbid(unsafe_code)]

#[cfg(feature = "cipher")]
pub mod cipher;
pub mod durable;
pub mod forward;
pub mod frame_memory;
pub mod hedging;
pub mod histogram;
pub mod journal;
pub mod machine;
pub mod math;
pub mod node_keys;
pub mod prng;
pub mod reader;
pub mod seal;
#[cfg(feature = "cipher")]
pub mod sealed_stream;
pub mod statistics;
pub mod storage;
pub mod time;
pub mod user_key;

#[cfg(feature = "cipher")]
pub use cipher::Cipher;
pub use durable::{Durable, Write, WriteId};
pub use forward::{Forward, ForwardCounters, ForwardId, Forwarder};
pub use frame_memory::FrameMemory;
pub use hedging::{Hedging, HedgingError};
pub use histogram::{Histogram, SparseHistogram, Summary, nearest_rank};
pub use machine::{
    Arrival, Destination, GroupId, HEAD_BYTES_MAX, Head, Install, Installed, Machine, Malformed,
    Sent, StampedBy, Token, TrafficClass, Transmit,
};
pub use node_keys::{EndKeys, MasterKey, NodeKey};
pub use prng::Prng;
pub use reader::Reader;
pub use seal::{KeyError, MacKey, SharedKey};
pub use storage::{Disk, Objects, PutOutcome, StorageError};
pub use time::{Clock, ClockError, ClockReading, SyncTime, Timestamp};
pub use user_key::{UserKey, UserKeyError};

/// The name of a host in a run: root, proxy, receiver or anything else that has an address.
///
/// The configuration gives out the ids. Reports and metrics call them "host".
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(transparent)]
pub struct NodeId(pub u32);

impl core::fmt::Display for NodeId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "n{}", self.0)
    }
}

/// The format of a message: a tag that travels with the message from the feed to the recording, so
/// that nobody has to guess a format from the message's bytes.
///
/// The codecs of the feed formats give out the tags. This crate treats a tag as a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Format(pub u8);

impl Format {
    /// Bytes that no codec describes. Nothing is decoded from them.
    pub const OPAQUE: Self = Self(0);
}
