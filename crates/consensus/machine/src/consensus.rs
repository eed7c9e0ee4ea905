//! The contract of a protocol for one order: what an owner may ask of a replica, whatever protocol
//! the replica has.
//!
//! A [`Consensus`] is a [`Machine`] with a few calls beside the machine's own. Datagrams come by
//! [`handle`](Machine::handle), time by [`handle_timeout`](Machine::handle_timeout), writes to the
//! disk are those of [`durable`](Machine::durable), and what is decided goes to the owner as
//! [`Event`]s:
//!
//! ```text
//!  owner ──propose, read_index, compact──> Consensus <──datagrams──> other replicas
//!    ^                                        │
//!    └──Committed: requests in one order──────┘  status: who takes part, what waits
//! ```
//!
//! The promise is that of [`Event::Committed`]. All replicas report the same requests in the same
//! order, each request once. A request that was refused is never reported. A read is due behind all
//! requests that were answered anywhere before the read was asked for.
//!
//! Changes of membership are a part of the order ([`VnodeState::changes`](crate::VnodeState)), so
//! that an owner which derives a leader from them has the same leader at all replicas. A protocol
//! without such changes leaves them out. Its owner then keeps the leader that it has: keys need no
//! leader, and a standby root never takes over under such a protocol.
//!
//! The product has one implementation, [`Canopus`]. Owners hold a `Box<dyn Consensus>`, and a
//! caller that wants another protocol hands it in where the owner is made.
//!
//! # Another protocol
//!
//! 1. The machine, its faults and its checks: "Another protocol" in `crates/sim/src/campaign.rs`.
//!    The campaign needs this trait only for checks that it shares with Canopus.
//! 2. [`Consensus`] for the machine, in the file of the machine. [`node`](Consensus::node),
//!    [`propose`](Consensus::propose), [`read_index`](Consensus::read_index) and
//!    [`status`](Consensus::status) are all of it; the other calls have defaults. Each committed
//!    step is a [`VnodeState`](crate::VnodeState) of the root, with the requests in order.
//!    `ListReader` in `crates/multicast/sessions/src/replicated_root/tests.rs` is a whole
//!    implementation of fifty lines, under roots.
//! 3. Over sockets, with a log on a disk: `Replica::open_with` in
//!    `crates/consensus/replica/src/replica.rs` takes a function that makes the machine out of a
//!    [`ConsensusStart`], which has the addresses, the settings and what the log holds. A root
//!    takes such a function by `ReplicatedRoot::with_consensus`. Nothing else of either changes.
//! 4. Beside Canopus in benches: a variant of `Ordered` in
//!    `lab/campaigns/src/consensus/ordered.rs`, and its name in `Protocol` of `rivals/mod.rs`
//!    there. The compiler names every `match`. `evenfall-lab bench zookeeper --rival NAME` then
//!    runs keys over the protocol.

use bytes::Bytes;
use evenfall_core::{Machine, NodeId, Timestamp};

use crate::{
    Canopus, ClientRequest, Config, ConsensusError, Event, LeafOnlyTree, LeaseKey, VnodeId,
};

/// Appends the owner's state to a snapshot.
pub type WriteState<'a> = Box<dyn FnOnce(&mut Vec<u8>) + 'a>;

/// A replica of a protocol for one order. See the module documentation.
pub trait Consensus: Machine<Event = Event> + Send {
    /// The node of this replica, whose requests are in the sets of this node.
    fn node(&self) -> NodeId;

    /// Proposes a request that writes keys of this name: [`LeaseKey::ALL`] when the request may
    /// write any key. [`Event::Committed`] reports its place in the order.
    ///
    /// # Errors
    /// [`ConsensusError::Full`], [`ConsensusError::TooLong`], [`ConsensusError::DiskFull`] or
    /// [`ConsensusError::Stopped`]. The request was not proposed.
    fn propose(
        &mut self,
        now: Timestamp,
        request: ClientRequest,
        lease: LeaseKey,
    ) -> Result<(), ConsensusError>;

    /// Asks for a place in the order behind all requests that were answered before. With a lease,
    /// only requests that write keys of its name count. [`Event::Committed`] or [`Event::Answered`]
    /// brings the token back when a read is due. Raft calls this place the read index.
    ///
    /// # Errors
    /// As [`propose`](Self::propose).
    fn read_index(
        &mut self,
        now: Timestamp,
        token: u64,
        lease: Option<LeaseKey>,
    ) -> Result<(), ConsensusError>;

    /// What the replica knows of itself and of the other replicas, for pages and log lines.
    fn status(&self) -> ConsensusStatus;

    /// Replaces the log by a snapshot of the owner's state after all events so far. `snapshot`
    /// appends the state, which has about `bytes` bytes. The owner calls this after
    /// [`Event::CheckpointWanted`]. A protocol without a log never sends that event, and leaves
    /// this call out.
    fn compact(&mut self, now: Timestamp, bytes: usize, snapshot: WriteState<'_>) {
        let _ = (now, bytes, snapshot);
    }

    /// Plans that a rack leaves. `rack` is its place among all racks. A number without a rack is
    /// taken as a rack that has left already.
    ///
    /// # Errors
    /// [`ConsensusError::Needed`] when the others could not go on, and [`ConsensusError::Settings`]
    /// when the protocol knows no racks.
    fn retire_rack(&mut self, now: Timestamp, rack: usize) -> Result<(), ConsensusError> {
        let _ = (now, rack);
        Err(ConsensusError::Settings("this protocol has no racks that may leave"))
    }

    /// Takes the list that the membership service outside has. A protocol that never sends
    /// [`Event::ExternalChangeWanted`] leaves this call out.
    ///
    /// # Errors
    /// [`ConsensusError::ExternalList`], and the replica goes on with the earlier list.
    fn take_external_list(
        &mut self,
        now: Timestamp,
        list: Option<&Bytes>,
    ) -> Result<(), ConsensusError> {
        let _ = (now, list);
        Ok(())
    }
}

/// What a replica knows of itself and of the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsensusStatus {
    /// The last step of the order that is committed here: a cycle, or an entry of a log.
    pub committed: u64,
    /// Requests and reads that wait.
    pub waiting: usize,
    /// Whether this replica votes and takes part, as far as it knows.
    pub is_member: bool,
    /// Whether this replica is the first of those that take part.
    pub is_first_member: bool,
    /// Number of replicas that take part.
    pub members: usize,
    /// Whether a write has failed because the disk is full, and has not succeeded since.
    pub is_disk_full: bool,
    /// Bytes of the log that are on the disk. After a start, those of whole records: the rest is
    /// cut off.
    pub logged_bytes: u64,
    /// A bit for each of the first 64 racks that takes no part.
    pub racks_out: u64,
    /// A bit for each of the first 64 racks without which the others could not go on.
    pub racks_needed: u64,
    /// The replicas whose answers this one needs before it votes.
    pub awaited: Vec<NodeId>,
    /// Whether this replica waits for ever: all replicas are new, and the membership service
    /// outside has the list of an earlier cluster.
    pub finds_earlier_list: bool,
}

/// What a replica is made of.
#[derive(Clone, Debug)]
pub struct ConsensusStart {
    /// The settings. A protocol that lacks a setting ignores it.
    pub config: Config,
    /// The replicas and their racks.
    pub tree: LeafOnlyTree,
    /// This replica.
    pub me: NodeId,
    /// The seed of all randomness, which differs from life to life.
    pub seed: u64,
    /// The log [`LOG`](crate::journal::LOG) as the disk has it. It is empty for a new replica.
    pub log: Bytes,
}

impl ConsensusStart {
    /// A replica of Canopus.
    ///
    /// # Errors
    /// As [`Canopus::new`].
    pub fn open_canopus(self) -> Result<Box<dyn Consensus>, ConsensusError> {
        let Self { config, tree, me, seed, log } = self;
        Ok(Box::new(Canopus::new(config, tree, me, seed, &log)?))
    }
}

impl Consensus for Canopus {
    fn node(&self) -> NodeId {
        self.me
    }

    fn propose(
        &mut self,
        now: Timestamp,
        request: ClientRequest,
        lease: LeaseKey,
    ) -> Result<(), ConsensusError> {
        self.submit_to(now, request, lease)
    }

    fn read_index(
        &mut self,
        now: Timestamp,
        token: u64,
        lease: Option<LeaseKey>,
    ) -> Result<(), ConsensusError> {
        match lease {
            Some(lease) => self.read_of(now, token, lease),
            None => self.read(now, token),
        }
    }

    fn status(&self) -> ConsensusStatus {
        let leaves = || (0..u64::BITS).zip(self.leaves());
        let bit = |bits: u64, (rack, _): (u32, VnodeId)| bits | (1_u64 << rack);
        ConsensusStatus {
            committed: self.committed(),
            waiting: self.waiting(),
            is_member: self.is_member(),
            is_first_member: self.is_first_member(),
            members: self.members(),
            is_disk_full: self.is_disk_full(),
            logged_bytes: self.logged_bytes(),
            racks_out: leaves().filter(|(_, leaf)| self.is_retired(*leaf)).fold(0, bit),
            racks_needed: leaves().filter(|(_, leaf)| !self.may_retire(*leaf)).fold(0, bit),
            awaited: self.awaited(),
            finds_earlier_list: self.finds_earlier_list(),
        }
    }

    fn compact(&mut self, _: Timestamp, bytes: usize, snapshot: WriteState<'_>) {
        // A checkpoint that is not taken is asked for again.
        self.checkpoint_with(bytes, snapshot);
    }

    fn retire_rack(&mut self, now: Timestamp, rack: usize) -> Result<(), ConsensusError> {
        let leaf = self.leaves().nth(rack);
        leaf.map_or(Ok(()), |leaf| self.retire(now, leaf))
    }

    fn take_external_list(
        &mut self,
        now: Timestamp,
        list: Option<&Bytes>,
    ) -> Result<(), ConsensusError> {
        self.apply_membership(now, list)
    }
}
