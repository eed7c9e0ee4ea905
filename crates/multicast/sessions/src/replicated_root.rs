//! A root that asks voters, as one machine without IO: the root and its replica of the order.
//!
//! Each root of a feed is also a replica of the order in which the roots agree on frames (see
//! [`standby`](crate::standby) for the entries and the reasons). The replica
//! and the root share a port. A datagram's first two bytes tell for which of the two it is. The
//! datagrams of the replica travel in a [`VoterSession`], and begin when all roots are in it.
//!
//! ```text
//!             drafts                requests
//!   Root ───────────────> encode ──────────────> Consensus <──datagrams──> other voters
//!    ^                                               │ committed cycles
//!    │ agreed, stand                                 v
//!    └────────────────────────────────────────── AgreedFeed
//! ```
//!
//! A voter keeps the order in memory. So a voter that was killed does not come back: when its
//! process is started again, the session tells it so. A feed of three voters goes on while two of
//! them live. A voter that was cut off or paused comes back by itself when it missed less than
//! [`HISTORY_CYCLES`] cycles, and waits as a standby.
//!
//! A [`ReplicatedRoot`] without voters is a plain root. The order is made by any [`Consensus`]:
//! Canopus by [`ReplicatedRoot::new`], another protocol by [`ReplicatedRoot::with_consensus`].

mod producers;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use evenfall_consensus_machine::{
    AgreedChange, ClientRequest, Config, Consensus, ConsensusError, ConsensusStart, Event,
    LeafMember, LeafOnlyTree, LeaseKey, SuperLeaf, VnodeState,
};
use evenfall_core::{
    Arrival, Clock, ClockReading, Format, ForwardCounters, ForwardId, Install, Machine, Malformed,
    NodeId, Sent, SharedKey, SyncTime, Timestamp, Transmit,
};
use evenfall_multicast_machine::{Draft, Root, RootEvent, RootRun};

use self::producers::RootProducers;
use crate::standby::session::{VOTE_OVERHEAD, VoterSession};
use crate::{
    AgreedFeed, FeedEntry, MembershipChange, ProducerIngress, ProducerTable, SessionChange,
};

/// Number of cycles that voters keep for a voter that was away. At a cycle each millisecond, they
/// last for more than a minute. The bytes of their frames are limited too, by the order's own
/// setting.
pub const HISTORY_CYCLES: u64 = 65_536;
/// Silence after which a voter is taken for gone. Each of the others then waits for up to as long
/// again before it asks for promises, so that a takeover begins after one to two times this long.
/// The nodes need two tenths of a second more.
const SUSPECT_AFTER: Duration = Duration::from_millis(150);
/// Longest datagram between voters on one host. Loopback carries it whole.
const DATAGRAM_BYTES_LOCAL: usize = 60_000;
/// Longest datagram between voters on several hosts. It fits a frame of Ethernet, as the default of
/// `framing.datagram_bytes` does.
const DATAGRAM_BYTES: usize = 1_400;
/// Most bytes of frames in one proposal.
const BATCH_BYTES: usize = 2 << 20;

/// An event of a candidate for its owner, who must know what to do with each.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplicatedRootEvent {
    /// From the root.
    Root(RootEvent),
    /// This root leads from now on.
    Leads {
        /// The epoch that begins.
        epoch: u32,
        /// The number of the next message. All earlier messages are agreed.
        next_message: u64,
    },
    /// When the first message of the feed is due, as the voters agreed.
    Begun(SyncTime),
    /// The voters agreed on a frame of another root. The frame's [`RootEvent::Framed`] follows.
    Kept(Draft),
    /// Another root leads from now on. Messages of this root that were not framed are not agreed.
    Deposed {
        /// The epoch of the other root.
        epoch: u32,
    },
    /// This root gave a message of an author its number. The voters may not agree.
    Published {
        /// The number of the message.
        number: u64,
        /// The format of the message.
        format: Format,
        /// The message.
        message: Bytes,
    },
    /// The voters agreed that the line of an author begins or ends.
    Session(SessionChange),
    /// Every receiver has the whole stream.
    Over,
    /// This voter was away for so long that the others have forgotten the missed cycles.
    Forgotten,
    /// The other voters go on without this one, because its process was started again.
    Replaced,
}

/// The place of a candidate among several roots.
#[derive(Clone, Debug)]
pub struct VoterConfig {
    /// This root.
    pub me: NodeId,
    /// All roots in the order in which they lead, this one among them.
    pub voters: Vec<(NodeId, SocketAddr)>,
    /// A random number that no other life of a voter has.
    pub seed: u64,
    /// The key of the run, which seals the votes.
    pub key: Option<SharedKey>,
}

/// The part of a root that votes.
struct Voter {
    me: NodeId,
    session: VoterSession,
    replica: Box<dyn Consensus>,
    sequence: AgreedFeed,
    /// The run that this root would open, with its secret.
    run: RootRun,
    /// The term in which this root last asked to open the run.
    asked: Option<u32>,
    /// The term in which the root stands as leader.
    leads: Option<u32>,
    /// Entries of the owner for the voters, which wait until the replica has room for them.
    asks: VecDeque<FeedEntry>,
    requests: u64,
}

/// See the module documentation.
pub struct ReplicatedRoot {
    root: Root,
    voter: Option<Box<Voter>>,
    authors: Option<Box<RootProducers>>,
    events: VecDeque<ReplicatedRootEvent>,
}

impl ReplicatedRoot {
    /// A root without voters.
    pub fn alone(root: Root) -> Self {
        Self { root, voter: None, authors: None, events: VecDeque::new() }
    }

    /// Lets authors publish, as soon as the root [takes messages](Self::admit). `run` is the run of
    /// a root without voters.
    pub fn receiving(self, ingress: ProducerIngress, run: RootRun) -> Self {
        Self { authors: Some(Box::new(RootProducers::new(ingress, run))), ..self }
    }

    /// Takes messages of authors from now on, or takes none.
    pub fn admit(&mut self, is_open: bool) {
        if let Some(authors) = &mut self.authors {
            authors.admit(is_open);
        }
    }

    /// The lines of the authors, as far as the voters agreed.
    pub fn lines(&self) -> Option<&ProducerTable> {
        self.authors.as_ref().map(|authors| authors.lines(self.voter.as_deref()))
    }

    /// One of several roots, which agree by Canopus. `run` is the run that begins if this root
    /// leads first.
    ///
    /// # Errors
    /// When the voters cannot be a super-leaf, or do not have this root.
    pub fn new(root: Root, run: RootRun, config: &VoterConfig) -> Result<Self, ConsensusError> {
        Self::with_consensus(root, run, config, ConsensusStart::open_canopus)
    }

    /// As [`new`](Self::new), with the protocol of the replica that `open_replica` makes. All roots
    /// need the same protocol. A standby takes over when the order has the change of membership
    /// that takes the leader out, and never under a protocol without such changes.
    ///
    /// # Errors
    /// As [`new`](Self::new), and what `open_replica` refuses.
    pub fn with_consensus(
        root: Root,
        run: RootRun,
        config: &VoterConfig,
        open_replica: impl FnOnce(ConsensusStart) -> Result<Box<dyn Consensus>, ConsensusError>,
    ) -> Result<Self, ConsensusError> {
        let members = config.voters.iter();
        let members =
            members.map(|(node, address)| LeafMember { node: *node, address: *address }).collect();
        let tree = LeafOnlyTree::new(vec![SuperLeaf { path: Vec::new(), members }])?;
        let is_local = config.voters.iter().all(|(_, address)| address.ip().is_loopback());
        let datagram_bytes = if is_local { DATAGRAM_BYTES_LOCAL } else { DATAGRAM_BYTES };
        let consensus = Config {
            batch_bytes: BATCH_BYTES,
            datagram_bytes: datagram_bytes - VOTE_OVERHEAD,
            suspect_after: SUSPECT_AFTER,
            history: HISTORY_CYCLES,
            ..Config::default()
        };
        let voters: Vec<NodeId> = config.voters.iter().map(|(node, _)| *node).collect();
        let session =
            VoterSession::new(config.me, &config.voters, config.seed, config.key.as_ref());
        let voter = Voter {
            me: config.me,
            session: session.ok_or(ConsensusError::Stranger(config.me))?,
            replica: open_replica(ConsensusStart {
                config: consensus,
                tree,
                me: config.me,
                seed: config.seed,
                log: Bytes::new(),
            })?,
            sequence: AgreedFeed::new(&voters),
            run,
            asked: None,
            leads: None,
            asks: VecDeque::new(),
            requests: 0,
        };
        let root = root.voted();
        Ok(Self { voter: Some(Box::new(voter)), ..Self::alone(root) })
    }

    /// The root.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// Whether this root asks voters.
    pub fn is_voter(&self) -> bool {
        self.voter.is_some()
    }

    /// Whether this root may vote, or has no voters to ask. A root may vote when all voters have
    /// met.
    pub fn is_ready(&self) -> bool {
        self.voter.as_ref().is_none_or(|voter| voter.session.is_open())
    }

    /// The voters of which nothing was heard yet.
    pub fn missing(&self) -> Vec<NodeId> {
        self.voter.iter().flat_map(|voter| voter.session.missing()).collect()
    }

    /// The time since which this root hears no majority of the voters.
    pub fn heard_majority(&self, now: Timestamp) -> Timestamp {
        self.voter.as_ref().map_or(now, |voter| voter.session.heard_majority(now))
    }

    /// Votes of other roots that came again and were dropped.
    pub fn repeated_votes(&self) -> u64 {
        self.voter.as_ref().map_or(0, |voter| voter.session.repeated_votes())
    }

    /// Whether this root sends the feed.
    pub fn leads(&self) -> bool {
        !self.root.is_waiting()
    }

    /// Calls the root. The call is an input.
    pub fn input<T>(&mut self, now: Timestamp, call: impl FnOnce(&mut Root) -> T) -> T {
        let result = call(&mut self.root);
        self.settle(now);
        result
    }

    /// Tells the voters when the first message of the feed is due.
    pub fn begin(&mut self, now: Timestamp, at: SyncTime) {
        self.ask(now, FeedEntry::Begin(at));
    }

    /// Tells the voters that every receiver has the whole stream. A candidate without voters tells
    /// its owner [`ReplicatedRootEvent::Over`] at once.
    pub fn finish(&mut self, now: Timestamp) {
        if self.voter.is_none() {
            self.tell(ReplicatedRootEvent::Over);
        }
        self.ask(now, FeedEntry::Over);
    }

    fn ask(&mut self, now: Timestamp, entry: FeedEntry) {
        if let Some(voter) = &mut self.voter {
            voter.asks.push_back(entry);
        }
        self.settle(now);
    }

    /// Carries frames from the root to the replica, and agreed frames back, until both are quiet.
    fn settle(&mut self, now: Timestamp) {
        let Some(mut voter) = self.voter.take_if(|voter| voter.session.is_open()) else { return };
        loop {
            let mut is_quiet = true;
            while let Some(durable) = voter.replica.durable()
                && let Some(write) = durable.poll_write()
            {
                // The order is kept in memory.
                durable.handle_written(now, write.id, Ok(()));
                is_quiet = false;
            }
            while let Some(event) = voter.replica.poll_event() {
                self.take(now, &mut voter, event);
                is_quiet = false;
            }
            voter.open(now);
            while let Some(entry) = voter.asks.front().cloned() {
                if !voter.submit(now, &entry) {
                    break;
                }
                voter.asks.pop_front();
                is_quiet = false;
            }
            while let Some(draft) = self.root.poll_draft() {
                let draft = match &self.authors {
                    Some(authors) => authors.marked(draft),
                    None => draft,
                };
                let entry = FeedEntry::Frame(draft);
                // A replica that is full takes the draft later.
                if !voter.submit(now, &entry) {
                    break;
                }
                self.root.drafted();
                if let (Some(authors), FeedEntry::Frame(draft)) = (&mut self.authors, &entry) {
                    authors.drafted(draft);
                }
                is_quiet = false;
            }
            let begin = self.authors.as_mut().and_then(|a| a.poll_begin(voter.sequence.lines()));
            if let Some(change) = begin {
                voter.asks.push_back(FeedEntry::Session(change));
                is_quiet = false;
            }
            if is_quiet {
                break;
            }
        }
        self.voter = Some(voter);
    }

    fn take(&mut self, now: Timestamp, voter: &mut Voter, event: Event) {
        match event {
            Event::Committed { state, .. } => self.apply(now, voter, &state),
            Event::Behind(_) => self.tell(ReplicatedRootEvent::Forgotten),
            // The lead follows from committed cycles, no disk is asked, and no owner gives
            // checkpoints.
            _ => {}
        }
    }

    fn apply(&mut self, now: Timestamp, voter: &mut Voter, state: &VnodeState) {
        for set in &state.sets {
            for request in &set.requests {
                match voter.sequence.take(set.node, &request.body) {
                    Some(FeedEntry::Frame(draft)) => {
                        if set.node != voter.me {
                            self.tell(ReplicatedRootEvent::Kept(draft.clone()));
                        }
                        self.root.agreed(now, &draft);
                        let authors = draft.marks().iter().map(|mark| mark.author);
                        self.answer(authors);
                    }
                    Some(FeedEntry::Session(change)) => {
                        self.tell(ReplicatedRootEvent::Session(change));
                        self.answer([change.author()].into_iter());
                    }
                    Some(FeedEntry::Begin(at)) => self.tell(ReplicatedRootEvent::Begun(at)),
                    Some(FeedEntry::Over) => self.tell(ReplicatedRootEvent::Over),
                    Some(FeedEntry::Open(..)) => self.stand(now, voter),
                    None => {}
                }
            }
        }
        let turnout = |change: &AgreedChange| match *change {
            AgreedChange::Leave(node, incarnation) => {
                Some(MembershipChange::Left(node, incarnation))
            }
            AgreedChange::Join(node, incarnation) => {
                Some(MembershipChange::Back(node, incarnation))
            }
            AgreedChange::Lease(_) | AgreedChange::Retire(..) => None,
        };
        if voter.sequence.apply_changes(state.changes.iter().filter_map(turnout)) {
            self.stand(now, voter);
        }
    }

    /// The voters agreed on something of these authors.
    fn answer(&mut self, of: impl Iterator<Item = u64>) {
        if let Some(authors) = &mut self.authors {
            of.for_each(|author| authors.agreed(author));
        }
    }

    /// Takes a letter of an author.
    fn receive(&mut self, now: Timestamp, arrival: &Arrival) -> Result<(), Malformed> {
        // The events of the root come before those of the letter.
        let told = core::iter::from_fn(|| self.root.poll_event()).map(ReplicatedRootEvent::Root);
        self.events.extend(told);
        let Self { root, voter, authors, events } = self;
        let Some(authors) = authors else { return Ok(()) };
        let change = authors.handle(now, arrival, (voter.as_deref(), root), events)?;
        if let (Some(voter), Some(change)) = (voter, change) {
            voter.asks.push_back(FeedEntry::Session(change));
        }
        Ok(())
    }

    /// Leads or waits, as the voters agreed.
    fn stand(&mut self, now: Timestamp, voter: &mut Voter) {
        let Some((epoch, id)) = voter.sequence.run() else { return };
        let (term, run) = (voter.sequence.term(), voter.run.agreed(epoch, id));
        let leads = (voter.sequence.leader() == Some(voter.me)).then_some(term);
        let before = core::mem::replace(&mut voter.leads, leads);
        if before == leads {
            return;
        }
        // The voters would refuse entries of an earlier term.
        voter.asks.clear();
        if let Some(authors) = &mut self.authors {
            authors.turn_over();
        }
        let (_, next_message) = voter.sequence.next();
        self.tell(match leads {
            Some(_) => ReplicatedRootEvent::Leads { epoch, next_message },
            None => ReplicatedRootEvent::Deposed { epoch },
        });
        self.root.stand(now, run, leads.is_some());
    }

    /// The next datagram for another root or for an author.
    fn poll_letter(&mut self, now: Timestamp) -> Option<Transmit> {
        let Self { root, voter, authors, .. } = self;
        let vote = voter.as_mut().and_then(|voter| voter.poll_transmit(now));
        vote.or_else(|| authors.as_mut()?.poll_transmit(voter.as_deref(), root))
    }

    /// Queues an event for the owner behind all events of the root.
    fn tell(&mut self, event: ReplicatedRootEvent) {
        let told = core::iter::from_fn(|| self.root.poll_event()).map(ReplicatedRootEvent::Root);
        self.events.extend(told);
        self.events.push_back(event);
    }
}

impl Voter {
    /// Takes a datagram of the session, and the datagram of the order in it.
    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        let order = self.session.handle(now, &arrival)?;
        if self.session.is_open() {
            // The replica begins with its first reading, and does not use it.
            self.replica.handle_clock(now, ClockReading::default());
        }
        order.map_or(Ok(()), |datagram| self.replica.handle(now, Arrival { datagram, ..arrival }))
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.session.handle_timeout(now);
        if self.session.is_open() {
            self.replica.handle_timeout(now);
        }
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        if let Some(greeting) = self.session.poll_transmit() {
            return Some(greeting);
        }
        let order = self.session.is_open().then(|| self.replica.poll_transmit(now))??;
        self.session.seal(&order)
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        match self.session.is_open() {
            true => self.replica.poll_timeout(),
            false => self.session.poll_timeout(),
        }
    }

    /// Asks the voters to agree on an entry. Returns whether there was room.
    fn submit(&mut self, now: Timestamp, entry: &FeedEntry) -> bool {
        let (client, sequence) = (u64::from(self.me.0), self.requests + 1);
        let request = ClientRequest { client, sequence, body: entry.encode(self.sequence.term()) };
        let is_in = self.replica.propose(now, request, LeaseKey::ALL).is_ok();
        self.requests += u64::from(is_in);
        is_in
    }

    /// The first leader opens the run.
    fn open(&mut self, now: Timestamp) {
        let term = self.sequence.term();
        let is_first = self.sequence.run().is_none() && self.sequence.leader() == Some(self.me);
        if is_first && self.asked != Some(term) {
            let entry = FeedEntry::Open(self.run.epoch, self.run.id);
            if self.submit(now, &entry) {
                self.asked = Some(term);
            }
        }
    }
}

impl Machine for ReplicatedRoot {
    type Event = ReplicatedRootEvent;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        let handled = match &mut self.voter {
            Some(voter) if VoterSession::is_of(&arrival.datagram) => {
                let was_replaced = voter.session.is_replaced();
                let handled = voter.handle(now, arrival);
                if voter.session.is_replaced() && !was_replaced {
                    self.tell(ReplicatedRootEvent::Replaced);
                }
                handled
            }
            _ if self.authors.is_some() && ProducerIngress::is_of(&arrival.datagram) => {
                self.receive(now, &arrival)
            }
            _ => self.root.handle(now, arrival),
        };
        self.settle(now);
        handled
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        if let Some(voter) = &mut self.voter {
            voter.handle_timeout(now);
        }
        self.root.handle_timeout(now);
        if self.authors.is_some() {
            // The last message of a letter may wait in an open frame.
            self.root.flush(now);
        }
        self.settle(now);
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        self.root.handle_clock(now, reading);
        self.settle(now);
    }

    fn handle_sent(&mut self, now: Timestamp, sent: Sent) {
        self.root.handle_sent(now, sent);
    }

    fn handle_counters(&mut self, now: Timestamp, of: ForwardId, counters: ForwardCounters) {
        self.root.handle_counters(now, of, counters);
    }

    fn clock(&self) -> Option<Clock> {
        self.root.clock()
    }

    fn poll_event(&mut self) -> Option<ReplicatedRootEvent> {
        self.events.pop_front().or_else(|| self.root.poll_event().map(ReplicatedRootEvent::Root))
    }

    fn poll_install(&mut self) -> Option<Install> {
        let vote = self.voter.as_mut().and_then(|voter| voter.replica.poll_install());
        vote.or_else(|| self.root.poll_install())
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        self.poll_letter(now).or_else(|| self.root.poll_transmit(now))
    }

    fn poll_urgent(&mut self, now: Timestamp) -> Option<Transmit> {
        self.poll_letter(now).or_else(|| self.root.poll_urgent(now))
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        let vote = self.voter.as_ref().and_then(|voter| voter.poll_timeout());
        vote.into_iter().chain(self.root.poll_timeout()).min()
    }
}

#[cfg(test)]
mod tests;
