//! Every limit of a replica, with its unit and its reason.

use std::time::Duration;

/// Most bytes of an encoded state. A state travels in one datagram, and a datagram over UDP holds
/// 65,507 bytes; the rest is left for headers and for lower layers.
pub const STATE_BYTES_MAX: usize = 60_000;
/// Bytes that a request takes beside its body: client, sequence and length.
pub const REQUEST_HEAD_BYTES: usize = 18;
/// Bytes that a set of requests takes beside its requests, with room for two membership changes.
pub const SET_HEAD_BYTES: usize = 48;
/// Datagrams that wait to be sent. A replica that is asked faster than its driver sends drops the
/// newest; whoever asked asks again.
pub const TRANSMITS_MAX: usize = 4_096;
/// Nodes of a tree. The state of the root has a set of every node and must fit a datagram with
/// some room for requests: at 128 nodes each node has 400 bytes in a cycle.
pub const NODES_MAX: usize = 128;

/// What can be chosen about a replica. All replicas of a tree must have the same `pipeline`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Cycles under way at once. A membership change that is agreed in cycle c applies from cycle c
    /// + pipeline.
    pub pipeline: u64,
    /// Shortest time between the starts of two cycles while an earlier cycle is under way.
    pub cycle_every: Duration,
    /// Most bytes of requests in one proposal. The tree may allow fewer: the requests of all nodes
    /// together fit one datagram.
    pub batch_bytes: usize,
    /// Requests and reads that wait for a cycle; beyond, [`submit`](crate::Canopus::submit)
    /// refuses.
    pub pending_max: usize,
    /// Time between two signs of life, and between two looks at what is missing.
    pub heartbeat: Duration,
    /// Silence after which a member of a super-leaf is suspected to have failed.
    pub suspect_after: Duration,
    /// Representatives that fetch the same state. Two mask the failure of one without a wait.
    pub redundancy: usize,
    /// Committed cycles that are kept for replicas that are behind. A replica that is farther
    /// behind needs a snapshot of what the requests have made.
    pub history: u64,
}

impl Default for Config {
    /// For a rack: a cycle every millisecond, failure after ten heartbeats of 20 ms.
    fn default() -> Self {
        Self {
            pipeline: 4,
            cycle_every: Duration::from_millis(1),
            batch_bytes: 16 << 10,
            pending_max: 65_536,
            heartbeat: Duration::from_millis(20),
            suspect_after: Duration::from_millis(200),
            redundancy: 1,
            history: 256,
        }
    }
}
