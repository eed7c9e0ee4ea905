//! The machine: its inputs and its outputs. Cycles are in `cycles`, and the messages inside a
//! super-leaf are in `gossip`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use evenfall_core::{
    Arrival, ClockReading, Destination, Durable, GroupId, Install, Machine, Malformed, NodeId,
    Prng, Reader, StorageError, Timestamp, Transmit, Write, WriteId,
};

use crate::checkpoint::Checkpoint;
use crate::config::{
    CHECKPOINT_BYTES_MAX, Config, REQUEST_HEAD_BYTES, SET_HEAD_BYTES, STATE_BYTES_MAX,
};
use crate::disk_identity::DiskIdentity;
use crate::external_membership::WantedChange;
use crate::group::{GroupEntry, OWNERS, ProposalGroup};
use crate::journal::{self, Effect, ReplicaJournal, ReplicaRecord};
use crate::leases::{LEASE_BYTES, LEASES_MAX};
use crate::parts::{self, ValueParts};
use crate::replica_state::{
    CycleProgress, Heartbeats, KeptCheckpoint, LeafPlace, OtherLeaves, Outbox, OwnRequests,
};
use crate::wire::{self, HEAD_BYTES, ReplicaMessage, ValuePart, Whole};
use crate::{
    AgreedChange, ClientRequest, ConsensusError, EmulationTable, LeafOnlyTree, LeaseKey, Proposal,
    VnodeId, VnodeState,
};

/// The other members of the super-leaf, as a group of the port.
const PEERS: GroupId = GroupId(0);

/// An event of a replica for its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A cycle is committed. Cycles come in order, each once, and all replicas get the same sets.
    /// After a restart, the replica repeats all cycles that its disk has, from the first cycle or
    /// from the cycle behind its checkpoint.
    Committed {
        /// The state of the root: execute the requests of its sets in order.
        state: Arc<VnodeState>,
        /// Reads of this replica's clients that are due, in order.
        reads: Vec<DueRead>,
        /// A digest of the nodes that take part in the cycle. It is equal at all replicas.
        table: u64,
    },
    /// A read of [`read_of`](Canopus::read_of) may be answered now, from all cycles that the
    /// replica has told.
    Answered(u64),
    /// The super-leaf goes on without this replica, which asks to come back by itself.
    Expelled,
    /// This replica takes part again from this cycle on.
    Joined(u64),
    /// This replica needs a cycle that every replica that answers has forgotten. It fetches a
    /// checkpoint from one of them.
    Behind(u64),
    /// The owner has to replace its state by this snapshot and go on from there. The snapshot comes
    /// from another replica, or from the own disk after a restart.
    Installed {
        /// The last cycle that the snapshot has.
        cycle: u64,
        /// The bytes that an owner gave to [`checkpoint`](Canopus::checkpoint).
        snapshot: Bytes,
        /// Requests, by client and sequence, that this replica proposed in cycles that it has
        /// missed. Only the snapshot can tell whether they were committed.
        unknown: Vec<(u64, u64)>,
    },
    /// The log is long, or another replica needs a snapshot: call
    /// [`checkpoint`](Canopus::checkpoint) when all cycles so far are executed.
    CheckpointWanted,
    /// A super-leaf has vanished, and the owner has to ask the membership service outside for this
    /// change. The replica repeats the event at each heartbeat while it wants the change.
    ExternalChangeWanted(WantedChange),
    /// The disk is full. The replica is silent, and the other replicas go on without it. The
    /// replica tries to write again after [`Config::full_retry`].
    DiskFull(StorageError),
    /// The disk has room again, and the replica goes on.
    DiskBack,
    /// The log of this replica is empty, and its peers know an earlier disk of it. The replica does
    /// not vote until it has learned what the earlier disk may have promised.
    Learns,
    /// The replica votes again, and then comes back under a new incarnation.
    Learned,
    /// With consensus in the second round: the ballots of this replica, which lost its disk, count
    /// in the groups of all super-leaves again.
    Counts,
    /// The disk failed, and the replica has stopped: nothing is sent any more.
    Stopped(StorageError),
}

/// A read that may be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueRead {
    /// The name that the caller gave.
    pub token: u64,
    /// How many requests of this replica's own set the read comes after.
    pub after: usize,
}

/// A request or a read that waits for a cycle.
#[derive(Clone, Debug)]
pub(crate) enum Pending {
    Write(ClientRequest, LeaseKey),
    Read(u64),
}

/// A cycle that is under way, or that is kept for others.
#[derive(Debug, Default)]
pub(crate) struct Cycle {
    pub(crate) states: BTreeMap<VnodeId, Arc<VnodeState>>,
    /// When a state was last asked for, and how often.
    pub(crate) asked: BTreeMap<VnodeId, (Timestamp, u32)>,
    /// The nodes that wait for a state of a vnode: at most every node of the tree, for every
    /// ancestor.
    pub(crate) waiting: BTreeSet<(VnodeId, NodeId)>,
    pub(crate) started_at: Timestamp,
}

/// What this replica knows of a peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Peer {
    pub(crate) heard: Timestamp,
    pub(crate) committed: u64,
    /// The first cycle of which the peer still has the state of the root.
    pub(crate) oldest: u64,
    /// The incarnation of this replica for which the peer vouches, and when this replica asked.
    pub(crate) vouched: Option<(u32, Timestamp)>,
    /// Whether the peer has greeted this replica and has not voted since.
    pub(crate) learns: bool,
    /// Whether the peer's super-leaf is to leave as planned, and the peer with it.
    pub(crate) leaves: bool,
    /// Until then this replica does not help to end the peer's group.
    pub(crate) bound_until: Timestamp,
}

/// A replica. See the crate documentation.
#[derive(Debug)]
pub struct Canopus {
    pub(crate) config: Config,
    pub(crate) tree: LeafOnlyTree,
    pub(crate) digest: u64,
    pub(crate) me: NodeId,
    pub(crate) place: LeafPlace,
    pub(crate) prng: Prng,
    /// A random number of this life, which marks the replica's questions in it.
    pub(crate) life: u64,
    pub(crate) table: EmulationTable,
    pub(crate) groups: BTreeMap<NodeId, ProposalGroup>,
    pub(crate) cycles: BTreeMap<u64, Cycle>,
    pub(crate) progress: CycleProgress,
    /// Bytes of the requests in the committed cycles that are kept.
    pub(crate) history_bytes: usize,
    /// Entries that came before the entry in front of them: at most a pipeline of them for each
    /// member.
    pub(crate) early: BTreeMap<(NodeId, u64), Proposal>,
    pub(crate) own: OwnRequests,
    pub(crate) peers: BTreeMap<NodeId, Peer>,
    pub(crate) others: OtherLeaves,
    /// Nodes that asked to come back: every node of the tree once at most.
    pub(crate) sponsored: BTreeSet<(NodeId, u32)>,
    pub(crate) beat: Heartbeats,
    pub(crate) journal: ReplicaJournal,
    pub(crate) disk: DiskIdentity,
    pub(crate) checkpoint: KeptCheckpoint,
    pub(crate) is_leaving: bool,
    is_stopped: bool,
    pub(crate) parts: ValueParts,
    outbox: Outbox,
    pub(crate) events: VecDeque<Event>,
    install: Option<Install>,
}

impl Canopus {
    /// The replica of a node, as its log [`journal::LOG`] has it. With an empty log the replica is
    /// new. Randomness comes from the seed, which must differ from life to life.
    ///
    /// # Errors
    /// When the tree does not have the node, the settings exclude each other, or the log cannot be
    /// read.
    pub fn new(
        config: Config,
        tree: LeafOnlyTree,
        me: NodeId,
        seed: u64,
        log: &Bytes,
    ) -> Result<Self, ConsensusError> {
        config.check(&tree)?;
        let leaf = tree.super_leaf_of(me).ok_or(ConsensusError::Stranger(me))?.clone();
        let (bodies, journal) = ReplicaJournal::open(journal::LOG, config.full_retry, log)
            .map_err(ConsensusError::Log)?;
        let place = LeafPlace::of_node(me, leaf, &tree);
        let others = place.leaf.members.iter().filter(|member| member.node != me);
        let install = Install::Group(PEERS, others.clone().map(|one| one.address).collect());
        let peers = others.map(|one| (one.node, Peer::default())).collect();
        let mut prng = Prng::new(seed);
        let life = if config.lease_cycles > 0 { prng.next_u64() } else { 0 };
        let mut replica = Self {
            config,
            // Replicas whose leases differ in length would disagree on what may be read.
            digest: tree.digest(&config),
            me,
            prng,
            life,
            table: EmulationTable::new(&tree),
            groups: BTreeMap::new(),
            cycles: BTreeMap::new(),
            progress: CycleProgress::default(),
            history_bytes: 0,
            early: BTreeMap::new(),
            own: OwnRequests::default(),
            peers,
            others: OtherLeaves::of_nodes(place.nodes_elsewhere(), config.second_round.is_on()),
            sponsored: BTreeSet::new(),
            beat: Heartbeats::of_new_replica(),
            journal,
            disk: DiskIdentity::new(me, &config, seed),
            checkpoint: KeptCheckpoint::default(),
            is_leaving: false,
            is_stopped: false,
            parts: ValueParts::default(),
            outbox: Outbox::default(),
            events: VecDeque::new(),
            install: Some(install),
            place,
            tree,
        };
        replica.replay(journal::records(&bodies)?)?;
        Ok(replica)
    }

    /// Stops making records of a log, for a replica without a disk. Writes are empty from now on,
    /// and the owner answers them as before.
    pub fn keep_no_log(&mut self) {
        self.journal.keep_no_records();
    }

    /// Adds a record to the log.
    pub(crate) fn record(
        &mut self,
        record: &ReplicaRecord,
        effects: impl IntoIterator<Item = Effect>,
    ) {
        self.journal.add_with(|out| journal::put(out, record), effects);
    }

    /// The group of an owner, if the group has this incarnation.
    pub(crate) fn group(&mut self, owner: NodeId, incarnation: u32) -> Option<&mut ProposalGroup> {
        self.groups.get_mut(&owner).filter(|group| group.incarnation() == incarnation)
    }

    /// Most bytes of the requests of one proposal, where each request counts with its head. The
    /// configured limit is lowered where a state would not have room for the proposals of all
    /// nodes.
    pub fn batch_bytes_max(&self) -> usize {
        let share = STATE_BYTES_MAX / self.tree.members().count();
        let leases = if self.config.lease_cycles > 0 { LEASES_MAX * LEASE_BYTES } else { 0 };
        self.config.batch_bytes.min(share.saturating_sub(SET_HEAD_BYTES + leases))
    }

    /// Proposes a request. [`Event::Committed`] reports its place in the order. With write leases,
    /// the request may write any key: see [`submit_to`](Self::submit_to).
    ///
    /// # Errors
    /// [`ConsensusError::Full`], [`ConsensusError::TooLong`] or [`ConsensusError::Stopped`].
    pub fn submit(&mut self, now: Timestamp, request: ClientRequest) -> Result<(), ConsensusError> {
        self.take_write(now, request, LeaseKey::ALL)
    }

    pub(crate) fn take_write(
        &mut self,
        now: Timestamp,
        request: ClientRequest,
        key: LeaseKey,
    ) -> Result<(), ConsensusError> {
        let bytes_max = self.batch_bytes_max().saturating_sub(REQUEST_HEAD_BYTES);
        let bytes = request.body.len();
        if bytes > bytes_max {
            return Err(ConsensusError::TooLong { bytes, bytes_max });
        }
        self.push(now, Pending::Write(request, key))
    }

    /// Makes a read wait until all requests that were answered before it are committed here. The
    /// read itself is not sent to any node.
    ///
    /// # Errors
    /// [`ConsensusError::Full`] or [`ConsensusError::Stopped`].
    pub fn read(&mut self, now: Timestamp, token: u64) -> Result<(), ConsensusError> {
        self.push(now, Pending::Read(token))
    }

    /// Whether this replica takes requests: its disk works.
    pub(crate) fn takes(&self) -> Result<bool, ConsensusError> {
        match (self.is_stopped, self.journal.is_failing()) {
            (true, _) => Err(ConsensusError::Stopped),
            (_, true) => Err(ConsensusError::DiskFull),
            _ => Ok(true),
        }
    }

    fn push(&mut self, now: Timestamp, pending: Pending) -> Result<(), ConsensusError> {
        self.takes()?;
        let is_long = self.own.pending_bytes + bytes_of(&pending) > self.config.pending_bytes_max;
        if self.own.pending.len() >= self.config.pending_max || is_long {
            return Err(ConsensusError::Full);
        }
        self.own.pending_bytes += bytes_of(&pending);
        self.own.pending.push_back(pending);
        // A request can do no more than start a cycle.
        if self.may_start(now) {
            self.advance(now);
        }
        Ok(())
    }

    /// Leaves the order as planned: the super-leaf ends this replica's group without waiting for
    /// its silence. The replica goes on learning until it is stopped.
    pub fn leave(&mut self, now: Timestamp) {
        self.is_leaving = true;
        self.beat.tick_at = Some(now);
    }

    /// The last cycle that is committed here.
    pub fn committed(&self) -> u64 {
        self.progress.committed
    }

    /// The last cycle that is started here.
    pub fn started(&self) -> u64 {
        self.progress.started
    }

    /// The name of the node.
    pub fn node(&self) -> NodeId {
        self.me
    }

    /// Bytes of the log that are on the disk. After a start, those of whole records: the rest is
    /// cut off.
    pub fn logged_bytes(&self) -> u64 {
        self.journal.done_bytes()
    }

    /// Whether this replica votes and takes part, as far as it knows.
    pub fn is_member(&self) -> bool {
        self.disk.votes() && self.table.latest(self.me).is_some()
    }

    /// Whether a write has failed because the disk is full, and has not succeeded since.
    pub fn is_disk_full(&self) -> bool {
        self.journal.is_failing()
    }

    /// Requests and reads that wait for a cycle to start or for their cycle to end.
    pub fn waiting(&self) -> usize {
        self.own.pending.len() + self.own.proposed.values().map(Vec::len).sum::<usize>()
    }

    /// Datagrams that were dropped because the driver was too slow. A node that misses a datagram
    /// asks for its contents again.
    pub fn dropped(&self) -> u64 {
        self.outbox.dropped
    }

    pub(crate) fn send(&mut self, to: NodeId, message: &ReplicaMessage) {
        if let Some(address) = self.tree.address(to) {
            self.transmit(Destination::One(address), message);
        }
    }

    pub(crate) fn tell_peers(&mut self, message: &ReplicaMessage) {
        if !self.peers.is_empty() {
            self.transmit(Destination::Group(PEERS), message);
        }
    }

    fn transmit(&mut self, to: Destination, message: &ReplicaMessage) {
        let bytes = Bytes::from(message.encode(self.me, self.digest));
        let datagram_bytes = self.config.datagram_bytes;
        match wire::whole_of(message).filter(|_| bytes.len() > datagram_bytes) {
            None => self.outbox.push_datagram(to, bytes),
            Some(of) => {
                let value = bytes.slice(HEAD_BYTES..);
                for part in parts::cut(of, &value, 0, usize::MAX, datagram_bytes) {
                    let head = wire::part_head(&part, self.me, self.digest);
                    self.outbox.push_transmit(to, head, part.bytes);
                }
            }
        }
    }

    fn take_part(
        &mut self,
        now: Timestamp,
        from: NodeId,
        part: ValuePart,
    ) -> Result<(), Malformed> {
        let (of, length) = (part.of, part.length as usize);
        if !self.wants(of) {
            return Ok(());
        }
        // The length is the sender's word. It is judged before any memory is taken for the parts.
        let bytes_max = match of {
            Whole::Entry(..) => STATE_BYTES_MAX / self.tree.members().count(),
            Whole::State(..) => STATE_BYTES_MAX,
            Whole::Checkpoint(..) => CHECKPOINT_BYTES_MAX,
        };
        if length > bytes_max {
            return Err(Malformed { what: "a part of a value that is too long", offset: 33 });
        }
        let whole = self.parts.take(part);
        if let Whole::Checkpoint(cycle, of) = of
            && of == from
            && whole.is_none()
        {
            self.fetched(now, from, cycle);
        }
        let Some(bytes) = whole else { return Ok(()) };
        let r = &mut Reader::new(&bytes);
        match of {
            Whole::Entry(..) => {
                let proposal = wire::proposal(r, &bytes)?;
                // Any sender may put any name on parts. The value has to be what the name says.
                let is_it = wire::whole_of(&ReplicaMessage::Entry(proposal.clone())) == Some(of);
                if is_it {
                    self.take_entry(proposal);
                }
            }
            Whole::State(number, vnode) => {
                let state = wire::state(r, &bytes)?;
                if (state.cycle, state.vnode) == (number, vnode) {
                    self.take_state(state);
                }
            }
            Whole::Checkpoint(..) => {
                let checkpoint = Checkpoint::read(r, &bytes)?;
                self.install(now, checkpoint);
            }
        }
        Ok(())
    }

    /// Whether this replica waits for a value.
    fn wants(&self, of: Whole) -> bool {
        match of {
            Whole::Entry(owner, incarnation, cycle) => {
                let group = self.groups.get(&owner).filter(|g| g.incarnation() == incarnation);
                let have = group.map(|group| group.mine().have);
                let is_wanted = |have| cycle >= have && self.may_come_early(have, cycle);
                self.peers.contains_key(&owner) && have.is_some_and(is_wanted)
            }
            Whole::State(cycle, vnode) => self.wants_state(cycle, vnode),
            Whole::Checkpoint(cycle, from) => {
                self.checkpoint.fetching.is_some_and(|fetching| fetching.from == from)
                    && cycle > self.progress.committed
            }
        }
    }

    /// Forgets parts of values that this replica no longer waits for.
    pub(crate) fn forget_parts(&mut self) {
        let mut parts = core::mem::take(&mut self.parts);
        parts.retain(|of| self.wants(of));
        self.parts = parts;
    }

    pub(crate) fn follow(&mut self, now: Timestamp, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Report(owner, incarnation, report) => {
                    let (me, counts) = (self.me, self.is_elector(owner));
                    if counts && let Some(group) = self.group(owner, incarnation) {
                        group.hear(me, &report);
                        self.beat.status_due = true;
                        self.others.ballots_due |= owner >= OWNERS;
                    }
                }
                Effect::Propose(cycle) => {
                    let own = self.groups.get(&self.me).and_then(|group| group.entry(cycle));
                    if let Some(proposal) = own.and_then(GroupEntry::proposal).cloned() {
                        self.tell_peers(&ReplicaMessage::Entry(proposal));
                    }
                }
                Effect::Greet => self.number_written(),
                Effect::Answer(peer, number) => self.answer(peer, number),
                Effect::Vote => self.vote(now),
            }
        }
        self.decide();
        self.advance(now);
    }
}

/// Bytes that a pending request takes in a proposal.
pub(crate) fn bytes_of(pending: &Pending) -> usize {
    match pending {
        Pending::Write(request, _) => request.body.len() + REQUEST_HEAD_BYTES,
        Pending::Read(_) => 0,
    }
}

impl Machine for Canopus {
    type Event = Event;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        // Values that are kept share the bytes of this copy, and do not keep a large buffer of the
        // port alive. The bytes of a part are copied to their place in the value.
        let datagram = match wire::is_part(&arrival.datagram) {
            true => arrival.datagram,
            false => Bytes::copy_from_slice(&arrival.datagram),
        };
        let (from, message) = ReplicaMessage::decode(&datagram, self.digest)?;
        // Without a key anybody on this host may send anything. What does not come from the address
        // that the tree has for the node is not of the node.
        if from == self.me || self.tree.address(from) != Some(arrival.from) {
            return Err(Malformed { what: "from no other node of the tree", offset: 4 });
        }
        if self.is_stopped || self.journal.is_failing() {
            return Ok(());
        }
        if let Some(peer) = self.peers.get_mut(&from).filter(|peer| !peer.learns) {
            peer.heard = now;
        }
        if let Some(remote) = self.others.nodes.get_mut(&from) {
            remote.heard = now;
        }
        let is_root = match &message {
            ReplicaMessage::State(state) => state.vnode == VnodeId::ROOT,
            ReplicaMessage::Part(part) => matches!(part.of, Whole::State(_, VnodeId::ROOT)),
            _ => false,
        };
        match message {
            ReplicaMessage::Status(status) => self.take_status(now, from, &status),
            ReplicaMessage::Entry(proposal) => self.take_entry(proposal),
            ReplicaMessage::Want(owner, incarnation, cycle) => {
                let group = self.group(owner, incarnation);
                let entry =
                    group.and_then(|group| group.entry(cycle)).and_then(GroupEntry::proposal);
                if let Some(entry) = entry.cloned() {
                    // An own entry that is not on the disk yet must not leave.
                    let own = self.groups.get(&self.me).map_or(0, |own| own.durable(self.me).have);
                    if owner != self.me || cycle < own {
                        self.send(from, &ReplicaMessage::Entry(entry));
                    }
                }
            }
            ReplicaMessage::Request(cycle, vnode) => self.take_request(from, cycle, vnode),
            ReplicaMessage::State(state) => self.take_state(state),
            ReplicaMessage::Greet(disk, count) => self.take_greeting(from, disk, count),
            ReplicaMessage::Known(known) => self.take_known(from, known),
            ReplicaMessage::Forgot(cycle) => self.checkpoint.forgotten = Some((from, cycle)),
            ReplicaMessage::Join(incarnation, at) => self.take_join(from, incarnation, at),
            ReplicaMessage::Ballot(ballot) => self.take_ballot(now, from, &ballot),
            ReplicaMessage::Part(part) => self.take_part(now, from, part)?,
            ReplicaMessage::Fetch(cycle, offset) => self.take_fetch(from, cycle, offset),
            ReplicaMessage::Ask(incarnation, stamp) => self.take_ask(now, from, incarnation, stamp),
            ReplicaMessage::Vouch(incarnation, stamp) => {
                self.take_vouch(now, from, incarnation, stamp)
            }
        }
        self.advance(now);
        if is_root {
            self.ask_on(from);
        }
        Ok(())
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        if self.is_stopped {
            return;
        }
        if self.journal.is_failing() {
            return self.journal.handle_timeout(now);
        }
        if self.beat.tick_at.is_some_and(|at| at <= now) {
            self.beat.tick_at = Some(now + self.config.heartbeat);
            self.tick(now);
        }
        self.advance(now);
    }

    /// A replica begins with its first clock reading; the reading itself is not used.
    fn handle_clock(&mut self, now: Timestamp, _: ClockReading) {
        if self.beat.tick_at.is_none() {
            self.beat.tick_at = Some(now + self.config.heartbeat);
            self.peers.values_mut().for_each(|peer| peer.heard = now);
            self.others.nodes.values_mut().for_each(|remote| remote.heard = now);
            self.bind_all(now);
            for cycle in self.cycles.values_mut() {
                cycle.started_at = now;
            }
            self.advance(now);
        }
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn poll_install(&mut self) -> Option<Install> {
        self.install.take()
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        if self.is_stopped || self.journal.is_failing() {
            return None;
        }
        if core::mem::take(&mut self.beat.status_due) && self.disk.votes() {
            let status = ReplicaMessage::Status(self.status());
            self.tell_peers(&status);
        }
        if self.ballots_at().is_some_and(|at| at <= now) {
            self.send_ballots(now);
        }
        self.outbox.pop_datagram()
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        if self.is_stopped {
            return None;
        }
        if self.journal.is_failing() {
            return self.journal.poll_timeout();
        }
        let next_start = self.progress.last_start + self.config.cycle_every;
        // The cheapest question comes first: drivers ask after every input.
        let starts = self.progress.started < self.progress.committed + self.config.pipeline
            && self.may_begin()
            && self.is_due();
        let start = starts.then_some(next_start);
        [self.beat.tick_at, start, self.ballots_at()].into_iter().flatten().min()
    }

    fn durable(&mut self) -> Option<&mut dyn Durable> {
        Some(self)
    }
}

impl Durable for Canopus {
    fn poll_write(&mut self) -> Option<Write> {
        if self.is_stopped { None } else { self.journal.poll() }
    }

    fn handle_written(&mut self, now: Timestamp, id: WriteId, done: Result<(), StorageError>) {
        if self.is_stopped {
            return;
        }
        let was_failing = self.journal.is_failing();
        match self.journal.handle_written(now, id, done) {
            Ok(effects) if !self.journal.is_failing() => {
                if was_failing {
                    // The replica heard nobody while its disk was full. No peer is to blame for
                    // that silence.
                    self.peers.values_mut().for_each(|peer| peer.heard = now);
                    self.events.push_back(Event::DiskBack);
                }
                self.follow(now, effects);
            }
            // The failing journal repeats its writes, which have no effects until then.
            Ok(_) => {}
            Err(error @ StorageError::Full { .. }) => {
                self.events.push_back(Event::DiskFull(error));
                self.outbox.clear_all();
            }
            Err(error) => {
                // The end of the log is unknown, and a promise may be lost. A silent replica breaks
                // no promise.
                self.is_stopped = true;
                self.events.push_back(Event::Stopped(error));
            }
        }
    }
}

/// Most changes that one proposal carries. Further nodes that ask to come back wait for the next
/// cycle.
pub(crate) const CHANGES_PER_PROPOSAL: usize = 2;

/// Changes for nodes that ask to come back, for a proposal of this replica.
pub(crate) fn joins(sponsored: &BTreeSet<(NodeId, u32)>) -> Vec<AgreedChange> {
    let joins = sponsored.iter().take(CHANGES_PER_PROPOSAL);
    joins.map(|(node, incarnation)| AgreedChange::Join(*node, *incarnation)).collect()
}
