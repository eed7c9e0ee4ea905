//! Rivals of Canopus: other protocols for one order, as machines on the same contract.
//!
//! A rival implements [`Rival`], which says how it handles a batch of its clients' requests, a
//! message of another replica, and the time. A [`RivalReplica`] is the machine around a rival and
//! has the parts that are equal for all rivals: batches of requests, links that lose nothing, and
//! the log of executed batches. A rival may have any number of batches and messages under way.
//!
//! | module | protocols | how a read is answered |
//! |---|---|---|
//! | [`leader`] | Raft | at the index that the leader states under its lease |
//! | [`leader`] | Multi-Paxos | in the log, like a write |
//! | [`leader`] | Zab with observers | at once, from the executed entries: it may be old |
//! | [`epaxos`] | EPaxos | ordered like a write, as in its public code |
//! | [`nezha`] | Nezha | ordered like a write |
//! | [`wire`], [`links`] | | messages, and how they travel |
//! | [`faults`] | | the campaign: histories of all rivals under faults |
//!
//! Raft and Multi-Paxos elect a leader when theirs is silent. Zab, EPaxos and Nezha are in their
//! steady state here: no replica fails for good, and their recovery is missing. Replicas keep
//! everything in memory.

pub mod epaxos;
pub mod faults;
pub mod leader;
pub mod links;
pub mod nezha;
pub mod wire;

use core::fmt;
use core::str::FromStr;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use evenfall_consensus_machine::config::REQUEST_HEAD_BYTES;
use evenfall_consensus_machine::{ClientRequest, Requests};
use evenfall_core::{Arrival, Clock, ClockReading, Machine, Malformed, Timestamp, Transmit};

use epaxos::Epaxos;
use leader::{Leader, Reads};
use links::RivalLinks;
use nezha::Nezha;
use wire::{Batch, WireField};

/// A protocol for one order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// Canopus, the protocol of evenfall.
    #[default]
    Canopus,
    /// A leader, elected; reads under its lease.
    Raft,
    /// A leader, elected; reads in the log.
    MultiPaxos,
    /// No leader; the order of requests that interfere is agreed by their dependencies.
    Epaxos,
    /// A leader and five followers; the other replicas observe. Reads at every replica at once.
    Zab,
    /// A leader, and requests in the order of deadlines on synchronised clocks.
    Nezha,
}

impl Protocol {
    /// All protocols.
    pub const ALL: [Self; 6] =
        [Self::Canopus, Self::Raft, Self::MultiPaxos, Self::Epaxos, Self::Zab, Self::Nezha];

    /// The protocols other than Canopus.
    pub const RIVALS: [Self; 5] =
        [Self::Raft, Self::MultiPaxos, Self::Epaxos, Self::Zab, Self::Nezha];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Canopus => "canopus",
            Self::Raft => "raft",
            Self::MultiPaxos => "multi-paxos",
            Self::Epaxos => "epaxos",
            Self::Zab => "zab",
            Self::Nezha => "nezha",
        }
    }

    /// Whether every read here is behind all writes that were answered before it, and all requests
    /// have one order, as ordered keys need.
    pub fn is_linearizable(self) -> bool {
        self.is_total() && self != Self::Zab
    }

    /// Whether all requests have one order. EPaxos orders those that have a key in common.
    pub fn is_total(self) -> bool {
        self != Self::Epaxos
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|protocol| protocol.name() == text);
        known.ok_or_else(|| format!("one of {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// The settings of a rival's replica. All settings but the seed are equal at all replicas.
#[derive(Clone, Debug)]
pub struct Config {
    /// The replicas, by number.
    pub addresses: Vec<SocketAddr>,
    /// The number of the first leader. EPaxos has no leader and ignores this number.
    pub leader: u32,
    /// Shortest time between two batches of a replica, and between two messages of a leader to a
    /// follower. After a pause a request is sent at once.
    pub batch_every: Duration,
    /// A batch whose requests have this many bytes is sent at once.
    pub batch_bytes: usize,
    /// Longest datagram.
    pub datagram_bytes: usize,
    /// Whether the first byte of a request is its key. EPaxos orders only requests that have a key
    /// in common. A request with key 0 interferes with no other request.
    pub has_keys: bool,
    /// Time after which a datagram without acknowledgement is sent again.
    pub retry: Duration,
    /// Silence of a leader after which its followers elect another one.
    pub suspect_after: Duration,
    /// Seed of this replica.
    pub seed: u64,
}

/// An event of a replica for its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RivalEvent {
    /// The next batch of the log is executed. When the batch comes from the replica's own clients,
    /// the owner answers the writes of the batch and then its reads.
    Executed(Batch),
    /// Reads of the replica's own clients, by their sequences, are answered from what the replica
    /// has executed so far.
    Read(Vec<u64>),
}

/// The calls that a protocol may make.
#[derive(Debug)]
pub struct RivalContext {
    /// The number of this replica.
    pub me: u32,
    /// The local time of the input.
    pub now: Timestamp,
    /// The synchronised clock.
    pub clock: Clock,
    links: RivalLinks,
    told: VecDeque<RivalEvent>,
    /// Number of batches that were executed.
    executed: u64,
}

impl RivalContext {
    /// Number of replicas, with this replica.
    pub fn count(&self) -> u32 {
        self.links.count()
    }

    /// All replicas but this replica.
    pub fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let me = self.me;
        (0..self.count()).filter(move |other| *other != me)
    }

    /// Sends a message to another replica.
    pub fn send(&mut self, to: u32, message: &impl WireField) {
        self.multicast(std::iter::once(to), message);
    }

    /// Sends a message to all other replicas.
    pub fn broadcast(&mut self, message: &impl WireField) {
        self.multicast(self.others(), message);
    }

    /// Sends a message to some other replicas.
    pub fn multicast(&mut self, to: impl Iterator<Item = u32>, message: &impl WireField) {
        let mut bytes = Vec::new();
        message.put(&mut bytes);
        to.for_each(|to| self.links.send(to, &bytes));
    }

    /// Executes the next batch of the log.
    pub fn execute(&mut self, batch: Batch) {
        self.executed += 1;
        self.told.push_back(RivalEvent::Executed(batch));
    }

    /// Answers reads from the executed batches.
    pub fn answer(&mut self, reads: impl Iterator<Item = ClientRequest>) {
        self.told.push_back(RivalEvent::Read(reads.map(|read| read.sequence).collect()));
    }
}

/// The fast quorum of 2 F + 1 replicas, which is F + (F + 1) / 2. EPaxos counts the replica that
/// asks among this number. Nezha needs this number of followers besides the leader.
fn fast_quorum(replicas: u32) -> u32 {
    let failures = replicas.saturating_sub(1) / 2;
    failures + failures.div_ceil(2)
}

/// A protocol for one order, without the parts that are equal for all rivals.
pub trait Rival: fmt::Debug + Send {
    /// Orders a batch of this replica's clients.
    fn propose(&mut self, out: &mut RivalContext, batch: Batch);

    /// Takes a read. A protocol that orders reads like writes gives the read back.
    fn read(&mut self, out: &mut RivalContext, read: ClientRequest) -> Option<ClientRequest> {
        let _ = out;
        Some(read)
    }

    /// A message of another replica.
    ///
    /// # Errors
    /// [`Malformed`] when the bytes are no message.
    fn hear(&mut self, out: &mut RivalContext, from: u32, message: &Bytes)
    -> Result<(), Malformed>;

    /// Does the work that is due. Every input ends with this call.
    fn turn(&mut self, out: &mut RivalContext) {
        let _ = out;
    }

    /// When the next turn is due without another input.
    fn wake(&self) -> Option<Timestamp> {
        None
    }
}

/// The pace of an action that happens at once after a pause, and otherwise once in a period.
#[derive(Clone, Copy, Debug)]
pub struct ActionPace {
    every: Duration,
    last: Option<Timestamp>,
}

impl ActionPace {
    /// A pace with this period.
    pub fn new(every: Duration) -> Self {
        Self { every, last: None }
    }

    /// The earliest time of the next action.
    pub fn next(&self) -> Timestamp {
        self.last.map_or(Timestamp::ZERO, |last| last + self.every)
    }

    /// Returns whether the action is due. When the action is due, the next action is due a period
    /// later.
    pub fn begin(&mut self, now: Timestamp) -> bool {
        let is_due = self.next() <= now;
        if is_due {
            self.last = Some(now);
        }
        is_due
    }
}

/// A replica of a rival.
#[derive(Debug)]
pub struct RivalReplica {
    rival: Box<dyn Rival>,
    out: RivalContext,
    /// The writes and reads of the next batch.
    writes: Vec<ClientRequest>,
    reads: Vec<ClientRequest>,
    bytes: usize,
    bytes_max: usize,
    batches: u64,
    pace: ActionPace,
}

/// Voters of Zab with observers: the leader and five followers, as the thesis on Canopus has it.
const ZAB_VOTERS: u32 = 6;

impl RivalReplica {
    /// The replica with number `me` of a rival. The result is `None` for Canopus, because the
    /// product has the machine of Canopus.
    pub fn new(protocol: Protocol, config: Config, me: u32) -> Option<Self> {
        let count = config.addresses.len() as u32;
        let links =
            RivalLinks::new(me, config.addresses.clone(), config.datagram_bytes, config.retry);
        let clock = Clock::default();
        let (now, told) = (Timestamp::ZERO, VecDeque::new());
        let out = RivalContext { me, now, clock, links, told, executed: 0 };
        let (pace, bytes_max) = (ActionPace::new(config.batch_every), config.batch_bytes);
        let rival: Box<dyn Rival> = match protocol {
            Protocol::Canopus => return None,
            Protocol::Raft => Box::new(Leader::new(config, me, count, Reads::Leased)),
            Protocol::MultiPaxos => Box::new(Leader::new(config, me, count, Reads::Ordered)),
            Protocol::Zab => Box::new(Leader::new(config, me, ZAB_VOTERS, Reads::Local)),
            Protocol::Epaxos => Box::new(Epaxos::new(&config)),
            Protocol::Nezha => Box::new(Nezha::new(&config, me)),
        };
        let (writes, reads) = (Vec::new(), Vec::new());
        Some(Self { rival, out, writes, reads, bytes: 0, bytes_max, batches: 0, pace })
    }

    /// The number of this replica.
    pub fn me(&self) -> u32 {
        self.out.me
    }

    /// Number of replicas, with this replica.
    pub fn count(&self) -> u32 {
        self.out.count()
    }

    /// Number of batches that this replica has executed.
    pub fn executed(&self) -> u64 {
        self.out.executed
    }

    /// Requests of this replica's clients that are in no batch yet.
    pub fn waiting(&self) -> usize {
        self.writes.len() + self.reads.len()
    }

    /// Takes a write of a client. [`RivalEvent`] answers the write under its sequence. Returns
    /// whether the replica has room for the write. After one or many requests, the caller calls
    /// [`settle`](Self::settle).
    pub fn write(&mut self, now: Timestamp, request: ClientRequest) -> bool {
        self.take(now, request, true)
    }

    /// Takes a read of a client, in the same way as [`write`](Self::write) takes a write.
    pub fn read(&mut self, now: Timestamp, request: ClientRequest) -> bool {
        self.take(now, request, false)
    }

    fn take(&mut self, now: Timestamp, request: ClientRequest, is_write: bool) -> bool {
        if self.out.links.are_full() {
            return false;
        }
        self.out.now = now;
        let bytes = request.body.len() + REQUEST_HEAD_BYTES;
        if is_write {
            self.writes.push(request);
        } else if let Some(read) = self.rival.read(&mut self.out, request) {
            self.reads.push(read);
        } else {
            return true;
        }
        self.bytes += bytes;
        let longest = self.writes.len().max(self.reads.len());
        if self.bytes >= self.bytes_max || longest >= Requests::COUNT_MAX {
            self.propose();
        }
        true
    }

    /// Ends an input of requests, which do not come through [`Machine`].
    pub fn settle(&mut self, now: Timestamp) {
        self.out.now = now;
        self.end();
    }

    fn propose(&mut self) {
        self.batches += 1;
        let batch = Batch {
            origin: self.out.me,
            number: self.batches,
            writes: self.writes.iter().collect(),
            reads: self.reads.iter().collect(),
        };
        self.writes.clear();
        self.reads.clear();
        self.bytes = 0;
        self.rival.propose(&mut self.out, batch);
    }

    /// Ends an input, and carries out everything that is due.
    fn end(&mut self) {
        if self.bytes > 0 && self.pace.begin(self.out.now) {
            self.propose();
        }
        self.rival.turn(&mut self.out);
    }
}

impl Machine for RivalReplica {
    type Event = RivalEvent;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        self.out.now = now;
        let (from, messages) = self.out.links.take(now, &arrival)?;
        for message in &messages {
            self.rival.hear(&mut self.out, from, message)?;
        }
        self.end();
        Ok(())
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.out.now = now;
        self.end();
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        self.out.now = now;
        self.out.clock.set(reading);
        self.end();
    }

    fn poll_event(&mut self) -> Option<RivalEvent> {
        self.out.told.pop_front()
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        self.out.links.poll_transmit(now)
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        let batch = (self.bytes > 0).then(|| self.pace.next());
        [batch, self.rival.wake(), self.out.links.poll_timeout()].into_iter().flatten().min()
    }
}
