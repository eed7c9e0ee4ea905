//! The fairness ledger. It joins the messages that the root sent with the messages that receivers
//! released, and states how fair the run was.
//!
//! A system that promises to be fair must not be the only witness. Published code takes a tempting
//! shortcut and writes the deadline down as the release time, so that every window is zero. The
//! ledger takes measured times only, and knows nothing of the protocol. A mutant in `tests.rs`
//! takes the shortcut and is caught.
//!
//! ```text
//!   scheduled   sent                 first    last     deadline   first    last
//!      |         |                  arrival  arrival      |      release  release
//!  ----+---------+---------------------+--------+---------+---------+--------+------> time
//!      |<-behind>|                     |<arriv.>|<margin->|         |<window>|
//!      |<------------- OML ------------------->|          |<-lateness, each->|
//!      |<------------- held OML ----------------------------------->---------|
//! ```
//!
//! All times are nanoseconds on the synchronised clock. The error of that clock is part of the
//! results, and widens windows between receivers to intervals ([`Between`]). Statistics per message
//! are exact up to [`sample::EXACT_MAX`] messages, and statistics per copy are within 1/256. The
//! messages in flight bound the memory. A message is closed in one of three cases: all expected
//! receivers released it or reported it lost, [`Config::in_flight_max`] newer messages wait behind
//! it, or [`Ledger::finish`] is called.
//!
//! ```
//! use evenfall_core::{ClockError, NodeId};
//! use evenfall_multicast_report::{Config, Ledger, Released, SentMessage};
//!
//! let mut ledger = Ledger::new(Config::of([NodeId(1), NodeId(2)]));
//! let sent = SentMessage { sent_ns: 10, deadline_ns: Some(5_000), ..SentMessage::default() };
//! ledger.sent(&sent);
//! for (receiver, arrival_ns, release_ns) in [(1, 2_000, 5_100), (2, 3_000, 5_400)] {
//!     let receiver = NodeId(receiver);
//!     ledger.released(&Released { receiver, arrival_ns, release_ns, ..Released::default() });
//! }
//! let results = ledger.finish(ClockError::SameClock).results;
//! assert_eq!((results.delivered, results.lost, results.p_f), (2, 0, Some(1.0)));
//! assert_eq!((results.oml_us.max, results.held_oml_us.max), (3.0, 5.4));
//! assert_eq!(results.window_us.max, 0.3);
//! ```

#![forbid(unsafe_code)]

mod apart;
pub mod csv;
mod flight;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
pub mod market;
mod receivers;
pub mod results;
pub mod sample;
mod series;

use std::collections::{BTreeMap, VecDeque};

use evenfall_core::time::nanos;
use evenfall_core::{ClockError, NodeId};

pub use apart::Between;
use apart::Windows;
use flight::{Flight, Place};
use receivers::{Entry, Receivers};
pub use results::{
    ClockErrorUs, EdgeCounts, LedgerOutcome, ReceiverLine, Results, Series, TimePoint,
};
use sample::Sample;
use series::Timeline;

/// Default limit of messages in flight: 0.6 s of stall at 100,000 messages a second.
const IN_FLIGHT_MAX: usize = 1 << 16;
/// Memory of a message that waits for a receiver, in bytes, without the bit for each receiver.
pub const MESSAGE_BYTES: usize = 184;
/// Ids below this number are looked up in a table, larger ids in a tree.
const DENSE_IDS: usize = 1 << 20;

/// The settings of a ledger, which must be known before the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Receivers that every message of every stream is expected to reach, until they
    /// [`leave`](Ledger::leave). Others [`join`](Ledger::join).
    pub receivers: Vec<NodeId>,
    /// Messages per stream that may wait for a receiver. Beyond this number the oldest message is
    /// closed as incomplete. A message costs [`MESSAGE_BYTES`] and a bit per receiver.
    pub in_flight_max: usize,
    /// Whether closed messages are kept for [`Ledger::poll_row`]. At most `in_flight_max` rows are
    /// kept; the oldest rows beyond that are dropped and counted.
    pub rows: bool,
}

impl Config {
    /// A configuration with these receivers, the default limit and no rows.
    pub fn of(receivers: impl IntoIterator<Item = NodeId>) -> Self {
        let receivers = receivers.into_iter().collect();
        Self { receivers, in_flight_max: IN_FLIGHT_MAX, rows: false }
    }
}

/// The root sent a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SentMessage {
    /// Tree or shard.
    pub stream: u32,
    /// Number within the stream, rising by one. Skipped numbers are not messages.
    pub message: u64,
    /// When the feed wanted the message sent.
    pub scheduled_ns: u64,
    /// When the message left.
    pub sent_ns: u64,
    /// When every receiver was to release the message; `None` when it is not held.
    pub deadline_ns: Option<u64>,
}

/// Facts about one released frame besides its times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// The copy came by repair.
    pub const REPAIRED: Self = Self(1);
    /// The copy came by a hedge, before the copy of the receiver's own parent.
    pub const HEDGE_WIN: Self = Self(2);

    /// Whether all flags of `other` are set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl core::ops::BitOr for Flags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A receiver released a frame of one or more messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// Receiver that released the frame.
    pub receiver: NodeId,
    /// Tree or shard.
    pub stream: u32,
    /// First message of the frame.
    pub first_message: u64,
    /// Messages in the frame, at least one.
    pub count: u16,
    /// When the first copy of the frame arrived.
    pub arrival_ns: u64,
    /// When the receiver's program took that copy. The program reads the clock for this time as it
    /// does for `release_ns`, and delivery windows compare the two. The stamp of an arrival may be
    /// the kernel's, and then leaves out the time until the program wakes up. When this time is
    /// less than `arrival_ns`, the arrival counts.
    pub taken_ns: u64,
    /// When the frame was given to the subscriber. This time is read from the clock at the
    /// hand-over, and is not the deadline.
    pub release_ns: u64,
    /// How the frame came.
    pub flags: Flags,
    /// The proxy, root or recorder whose copy came first.
    pub via: NodeId,
}

impl Default for Released {
    fn default() -> Self {
        Self {
            receiver: NodeId(0),
            stream: 0,
            first_message: 0,
            count: 1,
            arrival_ns: 0,
            taken_ns: 0,
            release_ns: 0,
            flags: Flags(0),
            via: NodeId(0),
        }
    }
}

/// A receiver reported messages lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Receiver that lost the messages.
    pub receiver: NodeId,
    /// Tree or shard.
    pub stream: u32,
    /// First lost message.
    pub first_message: u64,
    /// Number of lost messages.
    pub count: u64,
}

/// A gateway handed a frame on to its participants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handed {
    /// Tree or shard.
    pub stream: u32,
    /// First message of the frame.
    pub first_message: u64,
    /// Messages in the frame.
    pub count: u16,
    /// When the gateway released the frame.
    pub released_ns: u64,
    /// When the call that sent the last copy to the last participant had returned.
    pub handed_ns: u64,
}

/// A closed message: one line of the fairness log. Arrivals and releases are zero when no receiver
/// had the message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FairnessRow {
    /// Tree or shard.
    pub stream: u32,
    /// Number within the stream.
    pub message: u64,
    /// When the feed wanted the message sent.
    pub scheduled_ns: u64,
    /// When the message left.
    pub sent_ns: u64,
    /// When the message was to be released; `None` when it was not held.
    pub deadline_ns: Option<u64>,
    /// Earliest arrival.
    pub first_arrival_ns: u64,
    /// Latest arrival.
    pub last_arrival_ns: u64,
    /// Earliest release.
    pub first_release_ns: u64,
    /// Latest release.
    pub last_release_ns: u64,
    /// Receivers that released the message.
    pub receivers: u32,
    /// Receivers that got the message after its deadline, or not at all.
    pub late: u32,
}

/// Counters whose names [`Results`] explains.
#[derive(Clone, Debug, Default)]
struct Counts {
    messages: u64,
    expected: u64,
    delivered: u64,
    lost_reported: u64,
    duplicates: u64,
    released_again: u64,
    orphans: u64,
    held: u64,
    on_time: u64,
    hedge_wins: u64,
    repaired: u64,
    frames: u64,
    handed: u64,
    rows_dropped: u64,
}

/// Samples over messages (exact) and over copies (fine histograms).
#[derive(Clone, Debug)]
struct Samples {
    oml: Sample,
    held_oml: Sample,
    window: Windows,
    arrival_window: Windows,
    behind: Sample,
    release_late: Sample,
    wait: Sample,
    margin: Sample,
    handed: Sample,
}

/// The ledger. A caller feeds it, then calls [`finish`](Self::finish).
#[derive(Clone, Debug)]
pub struct Ledger {
    config: Config,
    receivers: Receivers,
    dense: Vec<u32>,
    sparse: BTreeMap<NodeId, u32>,
    /// Receivers that are members of every stream from its beginning.
    founders: usize,
    streams: Vec<(u32, Flight)>,
    counts: Counts,
    samples: Samples,
    timeline: Timeline,
    rows: VecDeque<FairnessRow>,
}

impl Ledger {
    /// An empty ledger.
    pub fn new(config: Config) -> Self {
        let mut ledger = Self {
            receivers: Receivers::default(),
            dense: Vec::new(),
            sparse: BTreeMap::new(),
            founders: 0,
            streams: Vec::new(),
            counts: Counts::default(),
            samples: Samples {
                oml: Sample::default(),
                held_oml: Sample::default(),
                window: Windows::default(),
                arrival_window: Windows::default(),
                behind: Sample::default(),
                release_late: Sample::many(),
                wait: Sample::many(),
                margin: Sample::many(),
                handed: Sample::many(),
            },
            timeline: Timeline::default(),
            rows: VecDeque::new(),
            config,
        };
        for index in 0..ledger.config.receivers.len() {
            let id = ledger.config.receivers[index];
            ledger.enrol(id);
        }
        ledger.founders = ledger.receivers.len();
        ledger
    }

    /// From message `from_message` of this stream on, the receiver is expected to release all
    /// messages.
    pub fn join(&mut self, receiver: NodeId, stream: u32, from_message: u64) {
        let index = self.enrol(receiver);
        let enrolled = self.receivers.len();
        let at = self.open(stream);
        for (_, flight) in &mut self.streams {
            flight.make_room(enrolled);
        }
        self.streams[at].1.join(index, from_message);
    }

    /// Message `until_message` of this stream and later ones are not expected to reach the
    /// receiver any more.
    pub fn leave(&mut self, receiver: NodeId, stream: u32, until_message: u64) {
        let Some(index) = self.index(receiver) else { return };
        let at = self.open(stream);
        self.streams[at].1.leave(index, until_message);
        for message in self.streams[at].1.waiting_from(until_message) {
            self.close_when_complete(at, message);
        }
        self.streams[at].1.forget_closed();
    }

    /// The root sent a message. Releases of a message count only after this call.
    pub fn sent(&mut self, sent: &SentMessage) {
        let at = self.open(sent.stream);
        if !self.streams[at].1.push(sent) {
            self.counts.orphans += 1;
            return;
        }
        self.counts.messages += 1;
        self.samples.behind.record(signed(sent.sent_ns, sent.scheduled_ns));
        while self.streams[at].1.len() > self.config.in_flight_max {
            let oldest = self.streams[at].1.oldest();
            self.close(at, oldest);
            self.streams[at].1.forget_closed();
        }
    }

    /// Sets the error of a receiver's clock for all frames that the receiver releases after this
    /// call. Receivers without such a call count as receivers with one common clock.
    pub fn clock(&mut self, receiver: NodeId, error: ClockError) {
        let Some(index) = self.index(receiver) else { return };
        *self.receivers.bound_ns(index) = match error {
            ClockError::SameClock => 0,
            ClockError::Within(bound) => nanos(bound),
            ClockError::Unknown | ClockError::Disproved => u64::MAX,
        };
    }

    /// A receiver released a frame.
    pub fn released(&mut self, frame: &Released) {
        let (Some(index), Some(at)) = (self.index(frame.receiver), self.stream(frame.stream))
        else {
            self.counts.orphans += u64::from(frame.count);
            return;
        };
        let bound_ns = *self.receivers.bound_ns(index);
        let (mut counted, mut delivered) = (None, 0);
        for message in frame.first_message..frame.first_message.saturating_add(frame.count.into()) {
            match self.streams[at].1.take(message, index) {
                Place::Waiting(slot) => {
                    slot.release(frame, bound_ns);
                    let complete = slot.is_complete();
                    counted = counted.or(Some((slot.sent_ns, slot.deadline_ns)));
                    delivered += 1;
                    if complete {
                        self.close_when_complete(at, message);
                        self.streams[at].1.forget_closed();
                    }
                }
                Place::Given => delivered += 1,
                Place::Again => self.counts.released_again += 1,
                Place::Nowhere => self.counts.orphans += 1,
            }
        }
        self.counts.delivered += u64::from(delivered);
        let sent_ns = counted.map(|(sent_ns, _)| sent_ns);
        let repaired = frame.flags.contains(Flags::REPAIRED);
        self.receivers.count(Entry {
            index: index as u32,
            via: frame.via,
            delay_ns: sent_ns.map(|sent_ns| signed(frame.arrival_ns, sent_ns)),
            delivered,
            repaired: if repaired { frame.count } else { 0 },
            hedge_win: frame.flags.contains(Flags::HEDGE_WIN),
        });
        if let Some((_, deadline_ns)) = counted {
            self.count_frame(frame, deadline_ns);
        }
    }

    /// A receiver reported messages lost.
    pub fn lost(&mut self, lost: &Lost) {
        let (Some(index), Some(at)) = (self.index(lost.receiver), self.stream(lost.stream)) else {
            return;
        };
        let known = self.streams[at].1.range();
        let end = lost.first_message.saturating_add(lost.count).min(known.end);
        for message in lost.first_message.max(known.start)..end {
            if let Place::Waiting(slot) = self.streams[at].1.take(message, index) {
                slot.lost += 1;
                self.counts.lost_reported += 1;
                self.close_when_complete(at, message);
            }
        }
        self.streams[at].1.forget_closed();
    }

    /// A gateway handed a frame on.
    pub fn count_handed(&mut self, handed: &Handed) {
        let took = signed(handed.handed_ns, handed.released_ns);
        self.counts.handed += u64::from(handed.count);
        (0..handed.count).for_each(|_| self.samples.handed.record(took));
    }

    /// A receiver dropped this many further copies of frames that it had.
    pub fn duplicates(&mut self, receiver: NodeId, count: u64) {
        self.counts.duplicates += count;
        if let Some(index) = self.index(receiver) {
            self.receivers.duplicates(index, count);
        }
    }

    /// The next closed message, oldest first, when [`Config::rows`] is set. The caller drains the
    /// rows now and then.
    pub fn poll_row(&mut self) -> Option<FairnessRow> {
        self.rows.pop_front()
    }

    /// Closes what is still in flight. [`poll_row`](Self::poll_row) then gives the last rows.
    pub fn close_all(&mut self) {
        for at in 0..self.streams.len() {
            for message in self.streams[at].1.waiting_from(0) {
                self.close(at, message);
            }
            self.streams[at].1.forget_closed();
        }
    }

    /// Closes all messages and gives the results. `clock` is the error of the clock behind all
    /// times.
    pub fn finish(mut self, clock: ClockError) -> LedgerOutcome {
        self.close_all();
        self.receivers.settle();
        results::outcome(self, clock)
    }

    /// Counts a frame that came to one receiver among the frames of all.
    fn count_frame(&mut self, frame: &Released, deadline_ns: Option<u64>) {
        self.counts.frames += 1;
        self.counts.hedge_wins += u64::from(frame.flags.contains(Flags::HEDGE_WIN));
        if frame.flags.contains(Flags::REPAIRED) {
            self.counts.repaired += u64::from(frame.count);
        }
        if let Some(deadline_ns) = deadline_ns {
            self.samples.release_late.record(signed(frame.release_ns, deadline_ns));
            self.samples.wait.record(signed(frame.release_ns, frame.arrival_ns));
            self.samples.margin.record(signed(deadline_ns, frame.arrival_ns));
        }
    }

    fn close_when_complete(&mut self, at: usize, message: u64) {
        let flight = &mut self.streams[at].1;
        let expected = flight.expected(message);
        let complete = flight.slot(message).is_some_and(|slot| {
            slot.expected = expected;
            slot.is_complete()
        });
        if complete {
            self.close(at, message);
        }
    }

    /// Takes the statistics of a message. Closing a message twice, or closing a message that was
    /// never sent, has no effect.
    fn close(&mut self, at: usize, message: u64) {
        let (stream, flight) = &mut self.streams[at];
        let expected = flight.expected(message);
        let Some(slot) = flight.slot(message) else { return };
        slot.expected = expected;
        let closed = *slot;
        slot.close();
        let row = closed.row(*stream, message);
        self.counts.expected += u64::from(expected);
        if closed.seen > 0 {
            let samples = &mut self.samples;
            samples.oml.record(signed(row.last_arrival_ns, row.scheduled_ns));
            samples.held_oml.record(signed(row.last_release_ns, row.scheduled_ns));
            samples.window.record(&closed.releases);
            samples.arrival_window.record(&closed.taken);
        }
        if closed.deadline_ns.is_some() && expected > 0 {
            self.counts.held += 1;
            self.counts.on_time += u64::from(row.late == 0);
        }
        self.timeline.record(&row, expected);
        if self.config.rows {
            if self.rows.len() >= self.config.in_flight_max {
                self.rows.pop_front();
                self.counts.rows_dropped += 1;
            }
            self.rows.push_back(row);
        }
    }

    fn index(&self, receiver: NodeId) -> Option<usize> {
        match self.dense.get(receiver.0 as usize) {
            Some(&index) if index != u32::MAX => Some(index as usize),
            _ => self.sparse.get(&receiver).map(|&index| index as usize),
        }
    }

    fn enrol(&mut self, id: NodeId) -> usize {
        if let Some(index) = self.index(id) {
            return index;
        }
        let index = self.receivers.len();
        let at = id.0 as usize;
        if at < DENSE_IDS {
            self.dense.resize(self.dense.len().max(at + 1), u32::MAX);
            self.dense[at] = index as u32;
        } else {
            self.sparse.insert(id, index as u32);
        }
        self.receivers.enrol(id);
        index
    }

    fn stream(&self, stream: u32) -> Option<usize> {
        self.streams.iter().position(|&(id, _)| id == stream)
    }

    fn open(&mut self, stream: u32) -> usize {
        self.stream(stream).unwrap_or_else(|| {
            let flight = Flight::new(self.founders, self.receivers.len());
            self.streams.push((stream, flight));
            self.streams.len() - 1
        })
    }
}

/// Signed nanoseconds from `earlier` to `later`.
fn signed(later: u64, earlier: u64) -> i64 {
    later.wrapping_sub(earlier) as i64
}

#[cfg(test)]
mod tests;
