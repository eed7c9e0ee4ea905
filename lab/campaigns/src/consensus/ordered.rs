//! A replica of Canopus or of a rival, with the events of Canopus. It is a
//! [`Consensus`], so that services of the product run over a rival.

use std::sync::Arc;

use bytes::Bytes;
use evenfall_consensus_machine::{
    Canopus, ClientRequest, Config, Consensus, ConsensusError, ConsensusStart, ConsensusStatus,
    DueRead, Event, LeafOnlyTree, LeaseKey, RequestSet, Requests, SecondRound, VnodeId, VnodeState,
    WriteState,
};
use evenfall_core::{NodeId, Timestamp};
use evenfall_sim::any_machine;

use super::memory::Logged;
use super::rivals::wire::Batch;
use super::rivals::{self, Protocol, RivalEvent, RivalReplica};

/// See the module documentation.
pub enum Ordered {
    /// Canopus.
    Canopus(Box<Logged>),
    /// A rival.
    Rival(Box<RivalReplica>),
}

any_machine! {
    impl Machine for Ordered {
        type Event = Event;
        Canopus(replica) => replica.poll_event(),
        Rival(replica) => {
            let me = replica.me();
            replica.poll_event().map(|told| event(told, me))
        },
    }
}

/// The event of a rival as one of Canopus. A replica answers only the reads of its own clients.
fn event(told: RivalEvent, me: u32) -> Event {
    match told {
        RivalEvent::Read(tokens) => {
            let reads = tokens.iter().map(|&token| DueRead { token, after: 0 });
            committed(0, Vec::new(), reads.collect())
        }
        RivalEvent::Executed(batch) if batch.origin == me => executed(batch, 0),
        RivalEvent::Executed(batch) => executed(Batch { reads: Requests::default(), ..batch }, 0),
    }
}

/// An executed batch as a cycle of Canopus in which one node has requests.
pub fn executed(batch: Batch, cycle: u64) -> Event {
    let (node, after) = (NodeId(batch.origin), batch.writes.len());
    let reads = batch.reads.iter().map(|read| DueRead { token: read.sequence, after });
    let reads = reads.collect();
    let set = RequestSet { node, incarnation: 0, number: 0, requests: batch.writes };
    committed(cycle, vec![set], reads)
}

fn committed(cycle: u64, sets: Vec<RequestSet>, reads: Vec<DueRead>) -> Event {
    let state = VnodeState { cycle, vnode: VnodeId::ROOT, number: 0, changes: Vec::new(), sets };
    Event::Committed { state: Arc::new(state), reads, table: 0 }
}

/// The replicas of a run.
pub struct Replicas<'a> {
    /// The protocol.
    pub protocol: Protocol,
    /// The settings of Canopus. A rival has the same batches, datagrams and patience.
    pub config: Config,
    /// The replicas. A rival ignores the super-leaves.
    pub tree: &'a LeafOnlyTree,
    /// The first leader of a rival that has one.
    pub leader: u32,
    /// Whether the first byte of a request is its key, for EPaxos.
    pub has_keys: bool,
    /// Whether Canopus keeps no log, as rivals do, and answers its writes at once.
    pub in_memory: bool,
}

impl Replicas<'_> {
    /// The replica with this number.
    ///
    /// # Errors
    /// As [`Canopus::new`].
    pub fn replica(&self, node: u32, seed: u64) -> Result<Ordered, ConsensusError> {
        let (config, tree) = (self.config, self.tree);
        let rival = rivals::Config {
            addresses: tree.members().map(|member| member.address).collect(),
            leader: self.leader,
            batch_every: config.cycle_every,
            batch_bytes: config.batch_bytes,
            datagram_bytes: config.datagram_bytes,
            has_keys: self.has_keys,
            retry: config.fetch_every,
            suspect_after: config.suspect_after,
            seed,
        };
        if let Some(replica) = RivalReplica::new(self.protocol, rival, node) {
            return Ok(Ordered::Rival(Box::new(replica)));
        }
        let mut machine = Canopus::new(config, tree.clone(), NodeId(node), seed, &Bytes::new())?;
        if config.second_round == SecondRound::External {
            // The replica hears once that the list is empty, and may begin. It asks nobody later.
            machine.apply_membership(Timestamp::ZERO, None)?;
        }
        if self.in_memory {
            machine.keep_no_log();
        }
        Ok(Ordered::Canopus(Box::new(Logged { machine, in_memory: self.in_memory })))
    }
}

impl Ordered {
    /// Orders a write of this key. A call of [`settle`](Self::settle) follows one or many requests.
    ///
    /// # Errors
    /// As [`Canopus::submit_to`].
    pub fn write(
        &mut self,
        now: Timestamp,
        request: ClientRequest,
        key: LeaseKey,
    ) -> Result<(), ConsensusError> {
        match self {
            Self::Canopus(replica) => replica.machine.submit_to(now, request, key),
            Self::Rival(replica) => taken(replica.write(now, request)),
        }
    }

    /// Asks for the answer to a read of this key. The answer comes under the read's sequence. A
    /// protocol that orders reads sends the body of the request.
    ///
    /// # Errors
    /// As [`Canopus::read_of`].
    pub fn read(
        &mut self,
        now: Timestamp,
        request: ClientRequest,
        key: LeaseKey,
    ) -> Result<(), ConsensusError> {
        match self {
            Self::Canopus(replica) => replica.machine.read_of(now, request.sequence, key),
            Self::Rival(replica) => taken(replica.read(now, request)),
        }
    }

    /// Gives Canopus a snapshot. Rivals keep no log and ask for none.
    pub fn checkpoint(&mut self, snapshot: &[u8]) {
        if let Self::Canopus(replica) = self {
            replica.machine.checkpoint(snapshot);
        }
    }

    /// Ends an input from outside the contract: some requests, or a checkpoint.
    pub fn settle(&mut self, now: Timestamp) {
        match self {
            Self::Canopus(replica) => replica.settle(now),
            Self::Rival(replica) => replica.settle(now),
        }
    }

    /// Number of datagrams that the replica dropped.
    pub fn dropped(&self) -> u64 {
        match self {
            Self::Canopus(replica) => replica.machine.dropped(),
            // The links of a rival keep all bytes until the bytes are acknowledged.
            Self::Rival(_) => 0,
        }
    }
}

impl Consensus for Ordered {
    fn node(&self) -> NodeId {
        match self {
            Self::Canopus(replica) => replica.machine.node(),
            Self::Rival(replica) => NodeId(replica.me()),
        }
    }

    fn propose(
        &mut self,
        now: Timestamp,
        request: ClientRequest,
        lease: LeaseKey,
    ) -> Result<(), ConsensusError> {
        let is_in = self.write(now, request, lease);
        self.settle(now);
        is_in
    }

    fn read_index(
        &mut self,
        now: Timestamp,
        token: u64,
        lease: Option<LeaseKey>,
    ) -> Result<(), ConsensusError> {
        let is_in = match self {
            Self::Canopus(replica) => replica.machine.read_index(now, token, lease),
            Self::Rival(replica) => {
                let read = ClientRequest { client: 0, sequence: token, body: Bytes::new() };
                taken(replica.read(now, read))
            }
        };
        self.settle(now);
        is_in
    }

    fn status(&self) -> ConsensusStatus {
        match self {
            Self::Canopus(replica) => Consensus::status(&replica.machine),
            // Rivals have no change of membership, and all replicas take part.
            Self::Rival(replica) => ConsensusStatus {
                committed: replica.executed(),
                waiting: replica.waiting(),
                is_member: true,
                is_first_member: replica.me() == 0,
                members: replica.count() as usize,
                ..ConsensusStatus::default()
            },
        }
    }

    fn compact(&mut self, now: Timestamp, bytes: usize, snapshot: WriteState<'_>) {
        if let Self::Canopus(replica) = self {
            replica.machine.compact(now, bytes, snapshot);
        }
        self.settle(now);
    }
}

/// A replica of this protocol for a service of the product. Canopus keeps the log that the service
/// gives it. A rival keeps its log in memory, so that a process that was killed stays away.
///
/// # Errors
/// As [`Canopus::new`].
pub fn open_consensus(
    protocol: Protocol,
    start: ConsensusStart,
) -> Result<Box<dyn Consensus>, ConsensusError> {
    if protocol == Protocol::Canopus {
        return start.open_canopus();
    }
    let ConsensusStart { config, tree, me, seed, .. } = start;
    let replicas =
        Replicas { protocol, config, tree: &tree, leader: 0, has_keys: false, in_memory: true };
    Ok(Box::new(replicas.replica(me.0, seed)?))
}

fn taken(is_in: bool) -> Result<(), ConsensusError> {
    if is_in { Ok(()) } else { Err(ConsensusError::Full) }
}
