//! What a gateway sends to its participants at a release, and when the last copy had left.
//!
//! A sequence number is the number of the message within its tree, plus one. All gateways of a run
//! therefore send the same session with the same numbers, and a participant may take side A from
//! one gateway and side B from another. A message that the gateway lost leaves a hole in the
//! numbers, and requests for it are refused.
//!
//! ```text
//!  released(frame) --> packets --> one send for all participants --> stamp --> ring
//!                                  (the port begins with another one each time)
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::{
    Destination, Format, GroupId, Head, Install, Summary, SyncTime, Timestamp, Token, TrafficClass,
    Transmit,
};
use evenfall_feed_formats::mold::replay::ReplayRing;
use evenfall_feed_formats::mold::{PacketBuilder, SessionId, end_of_session, heartbeat};
use evenfall_feed_formats::plain::sealed::{PlainSealer, SEAL_BYTES};
use evenfall_feed_formats::plain::{self, PlainHead, PlainKind};
use evenfall_host::clock::MonotonicClock;
use evenfall_multicast_machine::Release;
use evenfall_multicast_report::Handed;
use evenfall_multicast_report::sample::Fine;
use evenfall_port::{Answer, Port};
use evenfall_runtime::settings::SettingsError;
use serde::Serialize;

use super::settings::{GatewayNode, GatewaySettings, HandoffProtocol};
use crate::roles::RoleError;
use crate::roles::receiver::Sink;
use crate::runlog::RunLogRecord;

#[cfg(test)]
mod tests;

/// Time between two announcements of the end. The end is repeated, because announcements may be
/// lost.
pub const END_INTERVAL: Duration = Duration::from_millis(100);
/// Messages that may wait for the ring while the re-request server reads it. The server reads one
/// packet at a time, so that this many only wait when its thread does not run at all. The release
/// then waits for the server.
const UNKEPT_MAX: usize = 65_536;
/// Binary digits of the histogram of hand-over times: each figure is within 1/256.
const LATENCY_DIGITS: u32 = 7;
/// How soon a send is tried again that the network did not take.
const RETRY: Duration = Duration::from_micros(100);

/// The session of a tree: run of the root and tree, in hexadecimal digits.
pub fn session_of(run: u32, tree: u32) -> SessionId {
    let mut id = [0; 10];
    let digits = format!("{run:08x}{:02x}", tree & 0xff);
    id.copy_from_slice(digits.as_bytes());
    SessionId(id)
}

/// What may be sent again, by tree. A ring exists once its session is known.
pub type Rings = Arc<[Mutex<Option<ReplayRing>>]>;

/// Counts of a hand-over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HandoffCounts {
    /// Messages whose copies have left for all participants.
    pub handed: u64,
    /// Datagrams with messages, each counted once for all participants.
    pub datagrams: u64,
    /// Messages that fit no packet, and were not handed on.
    pub too_large: u64,
    /// Copies that were dropped because the network took no more for long: one for all
    /// participants, or one for each where messages are sealed.
    pub dropped: u64,
}

/// A release whose last datagram has not left yet.
struct DepartingRelease {
    token: Token,
    stream: u32,
    first_message: u64,
    count: u16,
    /// Messages of the release that fit a datagram.
    messages: u16,
    released: SyncTime,
    /// The same moment on the local clock.
    begun: Timestamp,
}

/// The messages of one tree on their way to participants.
struct HandoffChannel {
    /// All participants, or each by itself where messages are sealed.
    groups: Vec<GroupId>,
    /// Run of the root when the gateway got its place, for a successor goes on with the session;
    /// `None` before.
    run: Option<u32>,
    /// Number of the next message.
    next: u64,
    /// When something was sent last.
    spoke: Timestamp,
    is_over: bool,
    /// Messages that wait for the ring, with their sequence.
    unkept: VecDeque<(u64, Bytes)>,
}

/// Hands released messages on.
pub struct Handoff {
    settings: GatewaySettings,
    port: Box<dyn Port>,
    /// One a participant, where messages are sealed.
    sealers: Vec<PlainSealer>,
    /// The participant that is served first, where messages are sealed.
    first_served: usize,
    channels: Vec<HandoffChannel>,
    rings: Option<Rings>,
    departing: VecDeque<DepartingRelease>,
    next_token: u64,
    /// The datagrams of the release that is handed on.
    datagrams: Vec<(Head, Bytes)>,
    answers: Vec<Answer>,
    /// Records that wait for the run log.
    pub records: Vec<RunLogRecord>,
    counts: HandoffCounts,
    latency: Fine,
}

impl Handoff {
    /// A hand-over that has sent nothing. `rings` keep what may be asked for again.
    ///
    /// # Errors
    /// When a participant lies beyond loopback and the port has no key.
    pub fn new(
        settings: &GatewaySettings,
        node: &GatewayNode,
        mut port: Box<dyn Port>,
        trees: u32,
        rings: Option<Rings>,
    ) -> Result<Self, RoleError> {
        let mut channels = Vec::new();
        for tree in 0..trees {
            let group = GroupId(tree);
            port.install(0, &Install::Group(group, node.participants_of(tree).into()))?;
            channels.push(HandoffChannel {
                groups: vec![group],
                run: None,
                next: 0,
                spoke: Timestamp::ZERO,
                is_over: false,
                unkept: VecDeque::new(),
            });
        }
        Ok(Self {
            settings: settings.clone(),
            port,
            sealers: Vec::new(),
            first_served: 0,
            channels,
            rings,
            departing: VecDeque::new(),
            next_token: 0,
            datagrams: Vec::new(),
            answers: Vec::new(),
            records: Vec::new(),
            counts: HandoffCounts::default(),
            latency: Fine::new(LATENCY_DIGITS),
        })
    }

    /// Seals each participant's copies for it alone, in the order of the participants.
    ///
    /// # Errors
    /// As [`new`](Self::new), and when there is not one sealer for each participant.
    pub fn seal_for(
        &mut self,
        node: &GatewayNode,
        sealers: Vec<PlainSealer>,
    ) -> Result<(), RoleError> {
        let (found, wanted) = (sealers.len(), node.participants.len());
        if found != wanted {
            let why = format!("node {}: {found} keys for {wanted} participants", node.name);
            return Err(SettingsError::new(why).into());
        }
        // The groups of all participants have the first numbers.
        let mut number = self.channels.len() as u32;
        for (tree, channel) in (0..).zip(&mut self.channels) {
            channel.groups.clear();
            for participant in node.participants_of(tree) {
                let group = GroupId(number);
                self.port.install(0, &Install::Group(group, [participant].into()))?;
                channel.groups.push(group);
                number += 1;
            }
        }
        self.sealers = sealers;
        Ok(())
    }

    /// The counts so far.
    pub fn counts(&self) -> HandoffCounts {
        self.counts
    }

    /// From the release of a message until its last copy had left, in microseconds.
    pub fn handed_us(&self) -> Summary {
        let Some(all) = self.latency.quantiles(&[0.5, 0.9, 0.99, 1.0]) else {
            return Summary::EMPTY;
        };
        let us = |place: usize| all[place] as f64 / 1e3;
        Summary { p50: us(0), p90: us(1), p99: us(2), max: us(3) }
    }

    /// The sessions so far, one a tree.
    pub fn sessions(&self) -> Vec<String> {
        let runs = (0..)
            .zip(&self.channels)
            .filter_map(|(tree, channel)| channel.run.map(|run| session_of(run, tree).to_string()));
        runs.collect()
    }

    /// Copies that the network refused for good, and the `errno` of the last of them.
    pub fn send_failures(&self) -> (u64, i32) {
        let counters = self.port.counters();
        (counters.failed, counters.last_send_error)
    }

    /// The gateway has its place in a tree, and this message is its first.
    pub fn begin(&mut self, stream: u32, run: u32, next: u64) {
        let Some(channel) = self.channels.get_mut(stream as usize) else { return };
        if channel.run.is_some() {
            return;
        }
        (channel.run, channel.next) = (Some(run), next);
        if let Some(rings) = &self.rings {
            let (session, limits) = (session_of(run, stream), self.settings.replay_limits());
            let ring = ReplayRing::new(session, next + 1, limits);
            let mut kept = rings[stream as usize].lock().unwrap_or_else(PoisonError::into_inner);
            *kept = Some(ring);
        }
    }

    /// The stream of a tree has ended. Its end is announced from now on.
    pub fn finish(&mut self, stream: u32, now: Timestamp) {
        if let Some(channel) = self.channels.get_mut(stream as usize) {
            (channel.is_over, channel.spoke) = (true, now - END_INTERVAL);
        }
    }

    /// Says what is due: that a silent session is alive, or that it is over.
    pub fn keep_alive(&mut self, now: Timestamp) {
        let mut spoke = false;
        for tree in 0..self.channels.len() {
            if self.speaks_at(&self.channels[tree]).is_some_and(|at| at <= now) {
                self.channels[tree].spoke = now;
                let is_over = self.channels[tree].is_over;
                let kind = if is_over { PlainKind::End } else { PlainKind::Heartbeat };
                self.announce(tree, kind);
                spoke = true;
            }
        }
        if spoke {
            self.port.flush();
        }
    }

    fn speaks_at(&self, channel: &HandoffChannel) -> Option<Timestamp> {
        channel.run?;
        let every = if channel.is_over { END_INTERVAL } else { self.settings.heartbeat };
        Some(channel.spoke + every)
    }

    /// When [`keep_alive`](Self::keep_alive) or [`retry`](Self::retry) is due next.
    pub fn until(&self) -> Option<Timestamp> {
        let retry = (!self.departing.is_empty()).then(|| MonotonicClock::now() + RETRY);
        let speaks = self.channels.iter().filter_map(|channel| self.speaks_at(channel));
        speaks.chain(retry).min()
    }

    /// Sends a datagram without a message.
    fn announce(&mut self, tree: usize, kind: PlainKind) {
        let HandoffChannel { run, next, .. } = self.channels[tree];
        let run = run.unwrap_or_default();
        let (stream, tree, number) = (tree, tree as u32, next);
        let (head, body) = match (self.settings.protocol, kind) {
            (HandoffProtocol::Plain | HandoffProtocol::Sealed, _) => {
                let head = PlainHead { kind, ..plain_head(tree, run, number) };
                (Head::new(&head.encode()), head.encode_body().into())
            }
            (HandoffProtocol::Mold, PlainKind::End) => {
                (Head::new(&end_of_session(session_of(run, tree), number + 1)), Bytes::new())
            }
            // A hole in the sequence says what is lost.
            (HandoffProtocol::Mold, _) => {
                (Head::new(&heartbeat(session_of(run, tree), number + 1)), Bytes::new())
            }
        };
        // An announcement that finds no room is made again.
        self.for_participants(stream, head, &body, |handoff, group, head, body| {
            let to = Destination::Group(group);
            handoff.port.send(0, Transmit::new(TrafficClass::Control, to, head, body)).is_ok()
        });
    }

    /// Sends a datagram to the participants: once for all, or sealed for each. Returns the number
    /// of copies that were not queued.
    fn for_participants(
        &mut self,
        stream: usize,
        head: Head,
        body: &Bytes,
        mut send: impl FnMut(&mut Self, GroupId, Head, Bytes) -> bool,
    ) -> u64 {
        let count = self.channels[stream].groups.len();
        let mut refused = 0;
        for place in 0..count {
            let at = (self.first_served + place) % count;
            let group = self.channels[stream].groups[at];
            let is_queued = match self.sealers.get_mut(at) {
                Some(sealer) => {
                    let sealed = sealer.seal(head.as_slice(), body);
                    send(self, group, Head::new(&[]), sealed)
                }
                // What is to be sealed leaves sealed or not at all.
                None if self.settings.protocol == HandoffProtocol::Sealed => false,
                None => send(self, group, head, body.clone()),
            };
            refused += u64::from(!is_queued);
        }
        refused
    }

    /// Sends what the network did not take before, and keeps what the ring had no time for.
    pub fn retry(&mut self) {
        if !self.departing.is_empty() {
            self.port.flush();
            self.note_departures();
        }
        for tree in 0..self.channels.len() {
            if !self.channels[tree].unkept.is_empty() {
                self.keep(tree);
            }
        }
    }

    /// The run that the session of a release names.
    fn run_of(&self, release: &Release) -> u32 {
        self.channels[release.stream as usize].run.unwrap_or(release.epoch)
    }

    /// Makes the packets of a release. Returns the number of messages that fit no packet.
    fn make_packets(&mut self, release: &Release) -> u16 {
        let session = session_of(self.run_of(release), release.stream);
        let empty = |sequence| PacketBuilder::new(session, sequence, self.settings.packet_bytes);
        let mut packet = empty(release.first_message + 1);
        let mut too_large = 0;
        let mut close = |packet: PacketBuilder| {
            if packet.count() > 0 {
                self.datagrams.push((Head::new(&[]), packet.finish().into()));
            }
        };
        for (sequence, message) in (release.first_message + 1..).zip(release.messages.clone()) {
            if packet.push(&message) {
                continue;
            }
            close(core::mem::replace(&mut packet, empty(sequence)));
            if !packet.push(&message) {
                // The next packet begins behind the message that fits no packet.
                packet = empty(sequence + 1);
                too_large += 1;
            }
        }
        close(packet);
        too_large
    }

    /// Makes a datagram of each message of a release. Returns the number of messages that fit none.
    fn make_plain(&mut self, release: &Release, at: SyncTime) -> u16 {
        let (run, mut too_large) = (self.run_of(release), 0);
        for (number, message) in (release.first_message..).zip(release.messages.clone()) {
            let sealed = if self.sealers.is_empty() { 0 } else { SEAL_BYTES };
            let bytes = plain::HEAD_BYTES + message.len() + sealed;
            if bytes > evenfall_port::DATAGRAM_BYTES_MAX {
                too_large += 1;
                continue;
            }
            let head = PlainHead {
                format: release.format,
                deadline_ns: release.deadline.map_or(0, SyncTime::nanos),
                released_ns: at.nanos(),
                ..plain_head(release.stream, run, number)
            };
            self.datagrams.push((Head::new(&head.encode()), message));
        }
        too_large
    }

    /// Sends the datagrams of a release, of which the last copy has the token. Returns whether all
    /// copies were queued.
    fn send_datagrams(&mut self, stream: u32, token: Token) -> bool {
        let mut datagrams = core::mem::take(&mut self.datagrams);
        let last = datagrams.len().saturating_sub(1);
        let mut are_queued = !datagrams.is_empty();
        for (place, (head, body)) in datagrams.drain(..).enumerate() {
            let token = (place == last).then_some(token);
            are_queued &= self.send(stream, head, body, token);
        }
        self.datagrams = datagrams;
        self.first_served = self.first_served.wrapping_add(1);
        self.port.flush();
        are_queued
    }

    /// Sends a datagram to the participants. Returns whether all copies were queued.
    fn send(&mut self, stream: u32, head: Head, body: Bytes, token: Option<Token>) -> bool {
        let mut left = self.channels[stream as usize].groups.len();
        let refused =
            self.for_participants(stream as usize, head, &body, |handoff, group, head, body| {
                left -= 1;
                // The last copy tells when all have left.
                let token = token.filter(|_| left == 0);
                let to = Destination::Group(group);
                let transmit =
                    Transmit { token, ..Transmit::new(TrafficClass::Live, to, head, body) };
                if handoff.port.send(0, transmit.clone()).is_ok() {
                    return true;
                }
                // A release with more datagrams than the queue holds leaves in several steps.
                handoff.port.flush();
                handoff.port.send(0, transmit).is_ok()
            });
        self.counts.datagrams += 1;
        self.counts.dropped += refused;
        refused == 0
    }

    /// Notes the releases whose last datagram has left.
    fn note_departures(&mut self) {
        self.port.answers(&mut self.answers);
        for answer in self.answers.drain(..) {
            let Answer::Sent(_, sent) = answer else { continue };
            let all = &mut self.departing;
            let Some(place) = all.iter().position(|release| release.token == sent.token) else {
                continue;
            };
            let Some(release) = all.remove(place) else { continue };
            let Some(left) = sent.at else { continue };
            let took = left.since(release.begun);
            let DepartingRelease { stream, first_message, count, messages, released, .. } = release;
            self.counts.handed += u64::from(messages);
            for _ in 0..messages {
                self.latency.record(i64::try_from(took.as_nanos()).unwrap_or(i64::MAX));
            }
            self.records.push(RunLogRecord::Handed(Handed {
                stream,
                first_message,
                count,
                released_ns: released.nanos(),
                handed_ns: (released + took).nanos(),
            }));
        }
    }

    /// Moves messages into the ring of their tree. While the server reads the ring, they wait.
    fn keep(&mut self, tree: usize) {
        let Some(rings) = &self.rings else { return };
        let unkept = &mut self.channels[tree].unkept;
        let mut kept = match rings[tree].try_lock() {
            Ok(kept) => kept,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) if unkept.len() < UNKEPT_MAX => return,
            Err(TryLockError::WouldBlock) => {
                rings[tree].lock().unwrap_or_else(PoisonError::into_inner)
            }
        };
        let Some(ring) = kept.as_mut() else { return };
        for (sequence, message) in unkept.drain(..) {
            ring.skip_to(sequence);
            ring.push(message);
        }
    }
}

impl Sink for Handoff {
    fn released(&mut self, release: &Release, at: SyncTime) {
        if release.count == 0 {
            return;
        }
        let begun = MonotonicClock::now();
        let tree = release.stream as usize;
        self.begin(release.stream, release.epoch, release.first_message);
        let token = Token(self.next_token);
        self.next_token += 1;
        let too_large = match self.settings.protocol {
            HandoffProtocol::Mold => self.make_packets(release),
            HandoffProtocol::Plain | HandoffProtocol::Sealed => self.make_plain(release, at),
        };
        self.counts.too_large += u64::from(too_large);
        // Without a datagram there is no departure to wait for.
        if self.send_datagrams(release.stream, token) {
            self.departing.push_back(DepartingRelease {
                token,
                stream: release.stream,
                first_message: release.first_message,
                count: release.count,
                messages: release.count - too_large,
                released: at,
                begun,
            });
        }
        self.note_departures();
        let channel = &mut self.channels[tree];
        (channel.next, channel.spoke) = (release.first_message + u64::from(release.count), begun);
        if self.rings.is_some() {
            let sequences = release.first_message + 1..;
            channel.unkept.extend(sequences.zip(release.messages.clone()));
            self.keep(tree);
        }
    }

    fn lost(&mut self, stream: u32, first: Option<u64>, messages: Option<u64>) {
        let (Some(first), Some(count)) = (first, messages) else { return };
        let tree = stream as usize;
        self.channels[tree].next = first;
        if self.settings.protocol != HandoffProtocol::Mold {
            self.announce(tree, PlainKind::Lost(count));
            self.port.flush();
        }
        self.channels[tree].next = first + count;
    }
}

fn plain_head(tree: u32, run: u32, number: u64) -> PlainHead {
    PlainHead {
        kind: PlainKind::Message,
        format: Format::OPAQUE,
        tree,
        run,
        number,
        deadline_ns: 0,
        released_ns: 0,
    }
}
