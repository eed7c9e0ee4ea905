//! Every limit of a replica, with its unit and its reason.

use std::time::Duration;

use evenfall_core::{Malformed, Reader};

use crate::{ConsensusError, LeafOnlyTree};

/// Most bytes of an encoded state, which a replica puts together out of parts. At three nodes each
/// node then has 21 MiB in a cycle, and at [`NODES_MAX`] half a MiB.
pub const STATE_BYTES_MAX: usize = 64 << 20;
/// Most bytes of a checkpoint. A replica keeps its latest checkpoint in memory.
pub const CHECKPOINT_BYTES_MAX: usize = 1 << 30;
/// Bytes that a request takes beside its body: client, sequence and length.
pub const REQUEST_HEAD_BYTES: usize = 20;
/// Bytes that a set of requests takes beside its requests, with room for two membership changes.
pub const SET_HEAD_BYTES: usize = 64;
/// Datagrams that wait to be sent. Beyond this number the newest datagram is dropped, and the node
/// that misses it asks again.
pub const TRANSMITS_MAX: usize = 16_384;
/// Bytes of the datagrams that wait to be sent, with the same policy.
pub const TRANSMIT_BYTES_MAX: usize = 128 << 20;
/// Bytes that wait to be written. While more wait, a replica stores no entries of others and
/// commits nothing. It asks for the entries again when the disk has caught up.
pub const UNWRITTEN_BYTES_MAX: usize = 64 << 20;
/// Bytes of a checkpoint that one request for it brings: small beside the queues of a port.
pub const FETCH_BYTES: usize = 256 << 10;
/// Nodes of a tree. Each datagram about membership names all nodes of a super-leaf.
pub const NODES_MAX: usize = 128;

/// How super-leaves agree which of their states a cycle has (section 4.7.1). Anything but `Off`
/// takes one more way between super-leaves in each cycle, needs a tree of two levels, and excludes
/// write leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SecondRound {
    /// Every cycle waits for every super-leaf.
    #[default]
    Off,
    /// By consensus among themselves: a minority of super-leaves may vanish. See
    /// [`leaf_consensus`](crate::leaf_consensus).
    Consensus,
    /// By a membership service outside: all super-leaves but one may vanish. See
    /// [`external_membership`](crate::external_membership). The number 2 in a log stands for
    /// earlier rules, and the log is refused.
    External = 3,
}

impl SecondRound {
    /// Whether super-leaves may vanish.
    pub fn is_on(self) -> bool {
        self != Self::Off
    }

    /// The name in arguments: `off`, `consensus` or `outside`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Consensus => "consensus",
            Self::External => "outside",
        }
    }

    pub(crate) fn word(self) -> u8 {
        self as u8
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        match r.u8()? {
            0 => Ok(Self::Off),
            1 => Ok(Self::Consensus),
            3 => Ok(Self::External),
            _ => Err(r.malformed("no such second round")),
        }
    }
}

impl core::str::FromStr for SecondRound {
    type Err = ConsensusError;

    /// The second round of a [`name`](Self::name).
    fn from_str(name: &str) -> Result<Self, ConsensusError> {
        let all = [Self::Off, Self::Consensus, Self::External];
        let found = all.into_iter().find(|one| one.name() == name);
        found.ok_or(ConsensusError::Settings("the second round is off, consensus or outside"))
    }
}

impl core::fmt::Display for SecondRound {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Off => "none",
            Self::Consensus => "by consensus",
            Self::External => "by a membership service outside",
        })
    }
}

/// The settings of a replica. All replicas of a tree must have the same `pipeline`, the same
/// `lease_cycles` and the same `second_round`, and a log keeps those with which it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Cycles under way at once. A membership change that is agreed in cycle c applies from cycle c
    /// + pipeline.
    pub pipeline: u64,
    /// Shortest time between the starts of two cycles while an earlier cycle is under way.
    pub cycle_every: Duration,
    /// Most bytes of requests in one proposal, and so of one request with its head. The tree may
    /// allow fewer: see [`STATE_BYTES_MAX`].
    pub batch_bytes: usize,
    /// Longest datagram. A longer proposal or state travels in parts.
    pub datagram_bytes: usize,
    /// Requests and reads that wait for a cycle; beyond, [`submit`](crate::Canopus::submit)
    /// refuses.
    pub pending_max: usize,
    /// Bytes of the requests that wait for a cycle, with the same policy.
    pub pending_bytes_max: usize,
    /// Time between two signs of life, and between two looks at what is missing.
    pub heartbeat: Duration,
    /// Silence after which a member of a super-leaf is suspected to have failed.
    pub suspect_after: Duration,
    /// Time between two requests for one state, which has to be longer than the farthest round trip
    /// between super-leaves: an earlier request brings the state a second time.
    pub fetch_every: Duration,
    /// Representatives that fetch the same state. Two mask the failure of one without a wait.
    pub redundancy: usize,
    /// Committed cycles that are kept for replicas that are behind. A replica that is farther
    /// behind fetches a checkpoint.
    pub history: u64,
    /// Bytes of the requests in these cycles. Beyond, the oldest cycles are forgotten, down to the
    /// cycles of one pipeline.
    pub history_bytes: usize,
    /// Bytes of the log on the disk beyond which the replica asks its owner for a checkpoint, which
    /// then replaces the log. The log also has to be four times as long as the last checkpoint.
    pub log_bytes: u64,
    /// Cycles for which a write lease lasts; 0 when there are no write leases. With leases, a read
    /// of a key that nobody writes is answered at once, and a write to a key without a lease waits
    /// for its lease as long as `pipeline` cycles take. A key that is written again before its
    /// lease ends keeps it, without a wait, when this number is above `pipeline`. Leases are for
    /// clients that have one request under way. A log keeps the number with which it began.
    pub lease_cycles: u64,
    /// How the super-leaves agree which of their states a cycle has, so that some of them may
    /// vanish. A log keeps the setting with which it began.
    pub second_round: SecondRound,
    /// Time after which the others go on without a super-leaf that a cycle waits for, when they
    /// may: see [`SecondRound`]. It has to be longer than several round trips between super-leaves.
    pub vanish_after: Duration,
    /// Time between two attempts to write when the disk is full.
    pub full_retry: Duration,
}

impl Config {
    /// The settings for super-leaves of which the farthest are this round trip apart. Cycles are
    /// under way for two round trips, and nobody asks again or gives up before an answer can have
    /// come.
    pub fn across(self, farthest: Duration) -> Self {
        let under_way = (farthest.as_nanos() / self.cycle_every.as_nanos().max(1)) as u64;
        Self {
            pipeline: self.pipeline + 2 * under_way,
            history: self.history + 4 * under_way,
            fetch_every: self.fetch_every + 2 * farthest,
            vanish_after: self.vanish_after + 10 * farthest,
            ..self
        }
    }

    /// Whether the settings fit each other and the tree.
    pub(crate) fn check(&self, tree: &LeafOnlyTree) -> Result<(), ConsensusError> {
        const LEVELS: &str = "racks that may vanish need a tree of two levels";
        const LEASES: &str = "racks that may vanish and write leases exclude each other";
        const ALONE: &str = "racks that may vanish need two replicas each: a replica alone cannot \
                             tell whether it lost its disk";
        match (self.second_round.is_on(), tree.height(), self.lease_cycles) {
            (true, 3.., _) => Err(ConsensusError::Settings(LEVELS)),
            (true, _, 1..) => Err(ConsensusError::Settings(LEASES)),
            (true, ..) if tree.racks().iter().any(|rack| rack.len() == 1) => {
                Err(ConsensusError::Settings(ALONE))
            }
            _ => Ok(()),
        }
    }
}

impl Default for Config {
    /// For a rack: a cycle every millisecond, failure after ten heartbeats of 20 ms, and datagrams
    /// that fit a frame of Ethernet, so that a lost frame loses one part.
    fn default() -> Self {
        Self {
            pipeline: 4,
            cycle_every: Duration::from_millis(1),
            batch_bytes: 16 << 10,
            datagram_bytes: 1_400,
            pending_max: 65_536,
            pending_bytes_max: 64 << 20,
            heartbeat: Duration::from_millis(20),
            suspect_after: Duration::from_millis(200),
            fetch_every: Duration::from_millis(20),
            redundancy: 1,
            history: 256,
            history_bytes: 64 << 20,
            log_bytes: 64 << 20,
            lease_cycles: 0,
            second_round: SecondRound::Off,
            vanish_after: Duration::from_secs(2),
            full_retry: Duration::from_secs(1),
        }
    }
}
