//! Group communication: calls that many ranks make together.
//!
//! ```text
//!  broadcast   one to all        k-nomial tree, its shape by latency and cost per message
//!  gather      all to one        k-nomial tree, k = 6
//!  merge       all to one        the same tree; every inner rank merges what comes to it
//!  all-gather  all to all        hypercube, any number of ranks
//!  all-reduce  all to all        hypercube; 8-byte values, added or compared
//!  barrier     nothing           dissemination
//!  shuffle     each to each      a message for each pair of ranks
//!  two-level   each to each      shuffle along rows and columns of a mesh: fewer, longer messages
//! ```
//!
//! The obvious way sends a message from each rank to each other rank, which is a million messages
//! for a thousand ranks. Trees and hypercubes take `log n` steps (section 2.4.1 of the thesis). In
//! this module a call is one operation of the [`Shuffle`] whose messages may follow from each
//! other. The call therefore ends once and as a whole, or fails and names a rank, as every
//! operation does.
//!
//! All ranks make the same calls in the same order, and each call takes the next operation number.
//! A rank that makes another call disagrees, and the failure names that rank. A call does not wait
//! for earlier calls to end.
//!
//! # Calls among some ranks
//!
//! A sort of hundreds of ranks gathers in groups of ten. The ranks outside of a group have nothing
//! to do in its gather, and must not wait for it. All ranks therefore reserve the same count of
//! call numbers ([`ProcessGroup::reserve`]), and each rank makes those of the calls that it takes
//! part in, when it has come that far ([`ProcessGroup::call_among`]). These calls tell more than
//! others: each arrival ([`CollectiveEvent::Arrived`]), and the result as soon as everything is
//! here ([`CollectiveEvent::Here`]), half a round trip before the call ends.
//!
//! # Another call
//!
//! Five files change. The compiler asks for the places in the first two. Begin with the line in
//! `CALLS`, because the tests know only the calls that it names:
//!
//! 1. Here: a variant of [`Collective`], and its arms in [`ProcessGroup::call`] and in
//!    `ProcessGroup::check`. `check` refuses bad arguments with a [`StartError`], and gives the
//!    call the next free kind number. Its detail is everything about which all ranks must agree,
//!    such as a root or an operator; a rank with another kind or detail fails the call and is
//!    named. A result that fits no variant of [`CollectiveOutcome`] gets a variant.
//! 2. `course.rs`: a constructor of `Script` and, unless an old one serves, a
//!    `CollectiveAlgorithm`. `Script::gather` with `Gather`, forty lines, is a whole call to copy.
//!    A script says for each rank what is sent to it (`sends[to]`: `Now` a body, `Later` a body
//!    that follows from arrivals, or `Nothing`) and whether a message comes from it
//!    (`expects[from]`). The course takes each arrival once (`take`), pushes the messages that
//!    follow as `(to, body)`, and gives the result when all have come (`outcome`).
//! 3. `sample.rs`: a line in `CALLS` that makes the call, and the outcome it must have. The tests
//!    here, the conformance test over ports and the campaign of faults take all calls from there.
//! 4. `crates/collectives/member/src/lib.rs`: a method of `GroupMember`, three lines such as
//!    `self.all(Collective::AllGather { body })`. The helper `one` returns the body of
//!    [`CollectiveOutcome::One`], `all` the list of [`CollectiveOutcome::All`], and `do_call` any
//!    outcome.
//! 5. `docs/wire/shuffle.md`: a row in the table of calls.
//!
//! What a script has to know:
//!
//! - **A call carries at most one message from one rank to another**, an empty one included, and
//!   lists it before the call begins: `sends[b]` at rank `a` if and only if `expects[a]` at rank
//!   `b`. A second message, or one that is not listed, fails the call ([`RankFailure::Unlisted`]).
//!   A message that is listed and never brought keeps all ranks waiting. The textbook's ring, in
//!   which each rank sends `n - 1` messages to its neighbour, is therefore no script. A
//!   reduce-scatter, for instance, sends each rank its part at once, as a shuffle does, and reduces
//!   in `outcome`. `Steps` sends all that a rank knows in each step, so a call that sends halves
//!   over a hypercube needs a course of its own. Parts for one rank go into one message
//!   ([`bundle`]).
//! - A course either keeps its own part, or lists the part as `Now` for the own rank (never as
//!   `Later`) and takes it as any other arrival, which comes at once. With one rank, a
//!   call ends at once with the outcome of its first state.
//! - Messages arrive in any order, also ahead of the step to which they belong. `Steps` keeps such
//!   messages in its inbox.
//! - Bytes of another rank may be anything. `take` answers `Malformed`, which fails the call and
//!   names that rank, and never takes a rank out of a bundle as an index unchecked.
//! - Floating-point values are combined in an order that does not depend on arrivals.
//!
//! ```
//! use bytes::Bytes;
//! use evenfall_core::{Machine, Timestamp};
//! use evenfall_collectives_machine::group::{
//!     Collective, CollectiveEvent, CollectiveOutcome, GroupSettings, ProcessGroup,
//! };
//!
//! // One rank alone; a driver carries the datagrams of more.
//! let settings = GroupSettings::default();
//! let mut group = ProcessGroup::new(0, vec!["127.0.0.1:7000".parse()?], settings)?;
//! let body = Bytes::from_static(b"a");
//! let call = group.call(Timestamp::ZERO, Collective::AllGather { body: body.clone() })?;
//! let outcome = CollectiveOutcome::All(vec![body]);
//! assert_eq!(group.poll_event(), Some(CollectiveEvent::Done { call, outcome }));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod bundle;
mod course;
#[doc(hidden)]
pub mod sample;
#[cfg(test)]
mod tests;
pub mod tree;

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use evenfall_core::math::mix;
use evenfall_core::{Arrival, ClockReading, Install, Machine, Malformed, Timestamp, Transmit};

use self::course::{CollectiveAlgorithm, Script};
use self::tree::Knomial;
use crate::config::ShuffleConfig;
use crate::error::{RankFailure, StartError};
use crate::shuffle::{Shuffle, ShuffleCounters, ShuffleEvent, ShufflePlan};

/// Bytes of each value of an all-reduce.
pub const LANE_BYTES: usize = 8;

/// How values are reduced. Each value is 8 bytes, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// Sum of unsigned integers, modulo 2^64.
    Sum,
    /// The least of unsigned integers.
    Min,
    /// The largest of unsigned integers.
    Max,
    /// Sum of floating-point numbers. All ranks get the same bits.
    SumF64,
    /// The least of floating-point numbers, by total order.
    MinF64,
    /// The largest of floating-point numbers, by total order.
    MaxF64,
}

impl Reduce {
    fn two(self, a: u64, b: u64) -> u64 {
        let (x, y) = (f64::from_bits(a), f64::from_bits(b));
        match self {
            Self::Sum => a.wrapping_add(b),
            Self::Min => a.min(b),
            Self::Max => a.max(b),
            Self::SumF64 => (x + y).to_bits(),
            Self::MinF64 => {
                if x.total_cmp(&y).is_le() {
                    a
                } else {
                    b
                }
            }
            Self::MaxF64 => {
                if x.total_cmp(&y).is_ge() {
                    a
                } else {
                    b
                }
            }
        }
    }

    /// Reduces two lists of equal length, value by value.
    fn lanes(self, a: &[u8], b: &[u8]) -> Bytes {
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        let mut out = BytesMut::with_capacity(a.len());
        for (a, b) in a.chunks(LANE_BYTES).zip(b.chunks(LANE_BYTES)) {
            out.put_u64_le(self.two(word(a), word(b)));
        }
        out.freeze()
    }
}

/// How the bodies of a [`Collective::Merge`] become one body.
#[derive(Clone, Copy, Debug)]
pub struct MergeRule {
    /// The rule's number. All ranks of a call state the same number.
    pub number: u32,
    /// Whether bytes of another rank are a body that can be merged.
    pub check: fn(&[u8]) -> Result<(), Malformed>,
    /// Merges checked bodies. The order in which inner ranks merge depends on the tree alone.
    pub merge: fn(&[Bytes]) -> Bytes,
}

impl PartialEq for MergeRule {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for MergeRule {}

/// A call of the group, as one rank makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Collective {
    /// The root's body goes to all ranks. The bodies of other ranks are ignored.
    Broadcast {
        /// The rank whose body is sent.
        root: usize,
        /// The body that is sent.
        body: Bytes,
    },
    /// The bodies of all ranks go to the root.
    Gather {
        /// The rank that gets the bodies.
        root: usize,
        /// The own body.
        body: Bytes,
    },
    /// One body, merged from the bodies of all ranks, goes to the root. Each inner rank of the tree
    /// sends a single merged body on.
    Merge {
        /// The rank that gets the merged body.
        root: usize,
        /// The own body, which the rule must be able to merge.
        body: Bytes,
        /// How bodies are merged.
        by: MergeRule,
    },
    /// The bodies of all ranks go to all ranks.
    AllGather {
        /// The own body.
        body: Bytes,
    },
    /// All ranks give the same number of values. Each rank gets the reduced values.
    AllReduce {
        /// The own values, 8 bytes each.
        values: Bytes,
        /// How the values are reduced.
        by: Reduce,
    },
    /// Ends when all ranks have made the call.
    Barrier,
    /// Each rank sends one message to each rank.
    Shuffle {
        /// Messages by receiver.
        messages: Vec<Bytes>,
    },
    /// A shuffle in two rounds over a mesh. Each rank sends `2 (sqrt n - 1)` messages instead of `n
    /// - 1`, and twice the bytes. Only very short messages gain by it.
    TwoLevelShuffle {
        /// Messages by receiver.
        messages: Vec<Bytes>,
    },
}

/// The result of a call at one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CollectiveOutcome {
    /// The result of a barrier, and of a gather or a merge at ranks other than its root.
    Nothing,
    /// The body of a broadcast or a merge, or the values of an all-reduce.
    One(Bytes),
    /// Bodies by sender: the result of a gather at its root, an all-gather and both shuffles.
    All(Vec<Bytes>),
}

/// Events of the group for its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CollectiveEvent {
    /// A call has ended: this rank has everything that was sent to it, and the other ranks have
    /// everything that it sent.
    Done {
        /// The number that [`ProcessGroup::call`] returned for this call.
        call: u64,
        /// Result of the call; nothing where [`Here`](Self::Here) told it before.
        outcome: CollectiveOutcome,
    },
    /// A message of a call among some ranks has arrived.
    Arrived {
        /// Number of the call.
        call: u64,
        /// Rank in the group that sent the message.
        from: u16,
        /// Bytes of the message.
        body: Bytes,
    },
    /// Everything that was sent to this rank in a call among some ranks is here. The call goes on
    /// until the other ranks have what this rank sent, and may still fail.
    Here {
        /// Number of the call.
        call: u64,
        /// Result of the call.
        outcome: CollectiveOutcome,
    },
    /// A call has failed. The failure names a rank.
    Failed {
        /// Number of the call.
        call: u64,
        /// Cause of the failure, with the rank to blame.
        failure: RankFailure,
    },
}

/// Settings of a group. All ranks use the same settings.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupSettings {
    /// Settings of the shuffle.
    pub shuffle: ShuffleConfig,
    /// Upper half of the operation numbers. This half tells the group from an earlier group at the
    /// same addresses.
    pub epoch: u32,
    /// A number that all ranks must state alike, such as a hash of their list of addresses. Ranks
    /// that state different numbers fail their first call and name each other. 0 states nothing.
    pub agreed: u32,
    /// How long a small message takes from one rank to another.
    pub latency: Duration,
    /// How long a rank is busy with a small message before it can send the next.
    pub per_message: Duration,
}

impl Default for GroupSettings {
    fn default() -> Self {
        // Times measured over sockets of one kernel (docs/results/shuffle-net.md) with eight ranks
        // on two cores: a message took 130 to 300 us, and a sender was busy with it for 20 to 60
        // us. The ratio of the two times shapes the tree.
        let (latency, per_message) = (Duration::from_micros(200), Duration::from_micros(40));
        Self { shuffle: ShuffleConfig::default(), epoch: 0, agreed: 0, latency, per_message }
    }
}

/// A call under way.
#[derive(Debug)]
struct Running {
    course: Box<dyn CollectiveAlgorithm>,
    /// The ranks of a call among some ranks.
    among: Option<Arc<[u16]>>,
    /// Whether the owner has the result.
    is_told: bool,
}

impl Running {
    /// The number in the group of the rank at this place of the call.
    fn name(&self, place: u16) -> u16 {
        let at = usize::from(place);
        self.among.as_ref().and_then(|among| among.get(at).copied()).unwrap_or(place)
    }
}

/// What a call needs to begin, besides its script.
struct Begun {
    number: u64,
    /// The own place among the members.
    rank: usize,
    members: Vec<SocketAddr>,
    among: Option<Arc<[u16]>>,
    /// The same number at all ranks that make the same call.
    about: u32,
}

/// One rank of a group. The documentation of the module shows how to drive it.
#[derive(Debug)]
pub struct ProcessGroup {
    shuffle: Shuffle,
    rank: usize,
    members: Vec<SocketAddr>,
    arity: usize,
    costs: (Duration, Duration),
    agreed: u32,
    next: u64,
    courses: BTreeMap<u64, Running>,
    events: VecDeque<CollectiveEvent>,
}

impl ProcessGroup {
    /// The group of these members. The own rank is `rank`.
    ///
    /// # Errors
    /// When the rank is not below the number of members, or the number of members is 0 or above
    /// 65,535.
    pub fn new(
        rank: usize,
        members: Vec<SocketAddr>,
        settings: GroupSettings,
    ) -> Result<Self, StartError> {
        let ranks = members.len();
        if ranks == 0 || ranks > usize::from(u16::MAX) {
            return Err(StartError::Members { members: ranks });
        }
        if rank >= ranks {
            return Err(StartError::Rank { rank, members: ranks });
        }
        let mut shuffle = Shuffle::new(settings.shuffle);
        shuffle.set_rank(rank as u16);
        Ok(Self {
            arity: Knomial::best_arity(ranks, settings.latency, settings.per_message),
            costs: (settings.latency, settings.per_message),
            agreed: settings.agreed,
            shuffle,
            rank,
            members,
            next: u64::from(settings.epoch) << 32,
            courses: BTreeMap::new(),
            events: VecDeque::new(),
        })
    }

    /// The own rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Addresses by rank.
    pub fn members(&self) -> &[SocketAddr] {
        &self.members
    }

    /// Shapes all later broadcasts by these times. All ranks set the same times between the same
    /// two calls.
    pub fn set_costs(&mut self, latency: Duration, per_message: Duration) {
        self.costs = (latency, per_message);
        self.arity = Knomial::best_arity(self.members.len(), latency, per_message);
    }

    /// Counters of the shuffle.
    pub fn counters(&self) -> ShuffleCounters {
        self.shuffle.counters()
    }

    /// Number of calls that run.
    pub fn running(&self) -> usize {
        self.courses.len()
    }

    /// Begins a call. The returned number names the call in [`CollectiveEvent`]s.
    ///
    /// # Errors
    /// When the root is not a rank, the number of messages differs from the number of ranks, the
    /// values are not of 8 bytes, or a message is too long. The call then takes no number.
    pub fn call(&mut self, now: Timestamp, call: Collective) -> Result<u64, StartError> {
        let (ranks, me) = (self.members.len(), self.rank);
        let about = check(&call, ranks, self.arity)?;
        let script = script(call, ranks, me, self.arity);
        let number = self.next;
        let (members, among) = (self.members.clone(), None);
        self.begin(now, Begun { number, rank: me, members, among, about }, script)?;
        self.next += 1;
        Ok(number)
    }

    /// Takes the next `calls` numbers for calls among some ranks. All ranks of the group reserve
    /// the same count between the same two calls. The result is the first number.
    pub fn reserve(&mut self, calls: u64) -> u64 {
        let first = self.next;
        self.next += calls;
        self.shuffle.reserve(first..self.next);
        first
    }

    /// Ends the reserved numbers from `first` on. With a failure, the calls that run fail, and
    /// ranks that wait for this rank in a call that it never made fail too.
    pub fn release(&mut self, first: u64, failure: Option<RankFailure>) {
        self.shuffle.release(first, failure);
        self.follow();
    }

    /// Begins a call of these ranks, which are ascending numbers of the group with the own rank
    /// among them. The number is reserved; each of the ranks uses the same number for the same
    /// call. A root, and the order of messages, count places in `ranks`.
    ///
    /// # Errors
    /// As for [`call`](Self::call), and when the ranks are not as described.
    pub fn call_among(
        &mut self,
        now: Timestamp,
        number: u64,
        ranks: Arc<[u16]>,
        call: Collective,
    ) -> Result<(), StartError> {
        let wrong = StartError::Among { rank: self.rank };
        let place = ranks.binary_search(&(self.rank as u16)).map_err(|_| wrong)?;
        let address = |&rank: &u16| self.members.get(usize::from(rank)).copied();
        let members: Vec<SocketAddr> =
            ranks.iter().map(address).collect::<Option<_>>().ok_or(wrong)?;
        let (latency, per_message) = self.costs;
        let arity = Knomial::best_arity(ranks.len(), latency, per_message);
        let about = ranks.iter().fold(check(&call, ranks.len(), arity)?, |hash, &rank| {
            mix(u64::from(hash) << 16 | u64::from(rank)) as u32
        });
        let script = script(call, ranks.len(), place, arity);
        let begun = Begun { number, rank: place, members, among: Some(ranks), about };
        self.begin(now, begun, script)
    }

    fn begin(&mut self, now: Timestamp, begun: Begun, script: Script) -> Result<(), StartError> {
        let Begun { number, rank, members, among, about } = begun;
        let Script { sends, expects, course } = script;
        let names = among.clone().unwrap_or_default();
        let plan = ShufflePlan { operation: number, rank, members, among: names, sends, expects };
        self.shuffle.start_as(now, plan, about ^ self.agreed)?;
        self.courses.insert(number, Running { course, among, is_told: false });
        self.follow();
        Ok(())
    }

    /// Hands the events of the shuffle to the calls. A call may then send further messages.
    fn follow(&mut self) {
        while let Some(event) = self.shuffle.poll_event() {
            match event {
                ShuffleEvent::Message { operation, from, body } => {
                    self.message(operation, from, body);
                }
                ShuffleEvent::Here { operation } => {
                    if self.courses.get(&operation).is_some_and(|running| running.among.is_some()) {
                        self.tell_result(operation);
                    }
                }
                ShuffleEvent::Completed { operation } => {
                    match self.courses.get(&operation).map(|running| running.is_told) {
                        // The call was given up after its last message.
                        None => continue,
                        Some(false) => self.tell_result(operation),
                        Some(true) => {
                            let outcome = CollectiveOutcome::Nothing;
                            self.events
                                .push_back(CollectiveEvent::Done { call: operation, outcome });
                        }
                    }
                    self.courses.remove(&operation);
                }
                ShuffleEvent::Failed { operation, failure } => {
                    self.courses.remove(&operation);
                    self.events.push_back(CollectiveEvent::Failed { call: operation, failure });
                }
            }
        }
    }

    fn tell_result(&mut self, call: u64) {
        let Some(running) = self.courses.get_mut(&call) else { return };
        running.is_told = true;
        match running.course.outcome() {
            Err(place) => {
                let rank = running.name(place);
                self.give_up(call, RankFailure::Disagrees { rank });
            }
            Ok(outcome) if running.among.is_some() => {
                self.events.push_back(CollectiveEvent::Here { call, outcome });
            }
            Ok(outcome) => self.events.push_back(CollectiveEvent::Done { call, outcome }),
        }
    }

    fn message(&mut self, operation: u64, from: u16, body: Bytes) {
        let Some(running) = self.courses.get_mut(&operation) else { return };
        let name = running.name(from);
        if running.among.is_some() {
            let body = body.clone();
            self.events.push_back(CollectiveEvent::Arrived { call: operation, from: name, body });
        }
        let mut out = Vec::new();
        if running.course.take(usize::from(from), body, &mut out).is_err() {
            return self.give_up(operation, RankFailure::Disagrees { rank: name });
        }
        for (to, body) in out {
            if body.len() as u64 > u64::from(u32::MAX) {
                // Each message in the bundle was short enough, but the bundle is too long.
                let rank = self.rank as u16;
                return self.give_up(operation, RankFailure::TooMuch { rank });
            }
            if let Err(failure) = self.shuffle.send(operation, to, body) {
                return self.give_up(operation, failure);
            }
        }
    }

    /// The call fails, also where the shuffle has carried its last message.
    fn give_up(&mut self, operation: u64, failure: RankFailure) {
        self.courses.remove(&operation);
        self.shuffle.give_up(operation, failure);
    }
}

fn script(call: Collective, ranks: usize, me: usize, arity: usize) -> Script {
    match call {
        Collective::Broadcast { root, body } => {
            Script::broadcast(&Knomial::new(arity, ranks, root), ranks, me, body)
        }
        Collective::Gather { root, body } => Script::gather(ranks, root, me, body),
        Collective::Merge { root, body, by } => Script::merge(ranks, root, me, body, by),
        Collective::AllGather { body } => Script::all_gather(ranks, me, body),
        Collective::AllReduce { values, by } => Script::all_reduce(ranks, me, values, by),
        Collective::Barrier => Script::barrier(ranks, me),
        Collective::Shuffle { messages } => Script::shuffle(messages),
        Collective::TwoLevelShuffle { messages } => Script::two_level(me, messages),
    }
}

/// Checks the call. The result is a number that is the same at all ranks that make the same call.
fn check(call: &Collective, ranks: usize, arity: usize) -> Result<u32, StartError> {
    let root_of = |root: usize| {
        if root < ranks { Ok(root) } else { Err(StartError::Rank { rank: root, members: ranks }) }
    };
    let one_each = |messages: &Vec<Bytes>| {
        let (messages, members) = (messages.len(), ranks);
        if messages == ranks { Ok(()) } else { Err(StartError::Messages { messages, members }) }
    };
    let (kind, detail) = match call {
        Collective::Broadcast { root, .. } => (1, root_of(*root)? << 8 | arity),
        Collective::Gather { root, .. } => (2, root_of(*root)?),
        Collective::AllGather { .. } => (3, 0),
        Collective::AllReduce { values, by } if values.len().is_multiple_of(LANE_BYTES) => {
            (4, *by as usize)
        }
        Collective::AllReduce { values, .. } => {
            return Err(StartError::Lanes { bytes: values.len() });
        }
        Collective::Barrier => (5, 0),
        Collective::Shuffle { messages } => (6, one_each(messages).map(|()| 0)?),
        Collective::TwoLevelShuffle { messages } => (7, one_each(messages).map(|()| 0)?),
        Collective::Merge { root, by, .. } => (8, root_of(*root)? << 8 | by.number as usize),
    };
    Ok(mix(kind << 32 | detail as u64) as u32)
}

impl Machine for ProcessGroup {
    type Event = CollectiveEvent;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        let result = self.shuffle.handle(now, arrival);
        self.follow();
        result
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.shuffle.handle_timeout(now);
        self.follow();
    }

    fn handle_clock(&mut self, now: Timestamp, reading: ClockReading) {
        self.shuffle.handle_clock(now, reading);
    }

    fn poll_event(&mut self) -> Option<CollectiveEvent> {
        self.events.pop_front()
    }

    fn poll_install(&mut self) -> Option<Install> {
        self.shuffle.poll_install()
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        self.shuffle.poll_transmit(now)
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        self.shuffle.poll_timeout()
    }
}
