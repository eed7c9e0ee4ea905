//! A live MoldUDP64 session: two sides, a re-request server, one order.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;

use bytes::Bytes;
use evenfall_core::prng::Prng;
use evenfall_core::{Arrival, Destination, Head, Timestamp, TrafficClass, Transmit};
use evenfall_feed_formats::arbiter::{ArbiterEvent, ArbiterLimits, FeedSide};
use evenfall_feed_formats::mold::{MoldError, MoldPacket, MoldRequest, SessionId, Tracker};
use evenfall_feed_formats::{FeedError, FeedMessage, Format, codec};
use evenfall_port::{Options, Port};

use super::gaps::{Gaps, Step};
use super::session_choice::{RivalSessions, SILENCE, SideSource};
use super::{FeedStatus, Intake, News, Next};
use crate::IntakeError;
use evenfall_runtime::settings::Io;

use crate::settings::Feed;

/// Limit of events that wait to be reported. Further events only count in the counters.
const NEWS_MAX: usize = 64;
/// Limit of lost ranges that wait for [`Mold::take_lost`]. Only a tap calls it. In a root the list
/// fills up to this limit, and takes 1 MiB.
const LOST_MAX: usize = 65_536;
/// Frames that may wait to be sent: one round of requests.
const REQUESTS_MAX: usize = 64;
/// Number of kept arrival times above which times of messages that are no longer held are dropped.
const TIMES_TIDY: usize = 1_024;

/// How far a side may go back before a person is told. Two packets of one path swap places within a
/// few messages.
const BACK_MESSAGES: u64 = 256;

/// The use of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// A side of the feed.
    Side(FeedSide),
    /// Answers to our requests, from this address alone.
    Answers(SocketAddr),
}

/// A socket and the sources that it accepts.
struct Ear {
    line: Line,
    port: Box<dyn Port>,
    source: SideSource,
    /// The number after the last message that came over this side in the session.
    reached: u64,
    /// Whether the side has gone back behind `reached`, and this was told.
    is_back: bool,
}

/// A message that waits to be taken.
struct ReadyMessage {
    message: FeedMessage,
    at: Timestamp,
    sequence: u64,
}

/// Packets of the sides that are lost on purpose, to try what happens then.
#[derive(Clone, Debug)]
pub(crate) struct PlannedLosses {
    /// Share of the packets.
    pub(crate) share: f64,
    /// Draws the packets.
    pub(crate) luck: Prng,
    /// Packets lost so far.
    pub(crate) dropped: u64,
}

/// A live session.
pub(crate) struct Mold {
    ears: Vec<Ear>,
    limits: ArbiterLimits,
    tracker: Tracker,
    gaps: Gaps,
    rivals: RivalSessions,
    inbox: Vec<Arrival>,
    /// Arrivals, each with the index of its socket.
    arrived: VecDeque<(usize, Arrival)>,
    ready: VecDeque<ReadyMessage>,
    /// Arrival time of each datagram by the sequence of its first message, while messages are held.
    times: BTreeMap<u64, Timestamp>,
    /// Format of the messages, which a session does not state.
    format: Format,
    /// Whether the settings name the first message.
    has_first: bool,
    news: Vec<News>,
    /// Ranges of sequences that were given up and not taken yet.
    lost: VecDeque<Range<u64>>,
    losses: Option<PlannedLosses>,
    status: FeedStatus,
    given: u64,
    heard: Option<Timestamp>,
    title: String,
}

/// The widest address that may be bound for answers from `server`.
fn answers_at(server: SocketAddr) -> SocketAddr {
    let ip: IpAddr = match server.ip() {
        IpAddr::V4(ip) if ip.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_loopback() => Ipv6Addr::LOCALHOST.into(),
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(ip, 0)
}

impl Mold {
    pub(crate) fn open(
        address: SocketAddr,
        feed: &Feed,
        keyed: bool,
        io: &Io,
    ) -> Result<Self, IntakeError> {
        let options = Options {
            keyed,
            kernel_timestamps: true,
            // Without coalescing, each datagram is one packet, so buffers need less than 64 KiB.
            coalescing: false,
            segmentation: false,
            queue_frames_max: REQUESTS_MAX,
            receive_buffer_bytes: io.receive_buffer_bytes,
            multicast_interface: feed.mold_interface,
            ..Options::default()
        };
        let bind = |line, address| {
            let port = evenfall_port::open(address, options.clone())?;
            let source = SideSource::new(&feed.mold_sources);
            Ok::<_, IntakeError>(Ear { line, port, source, reached: 0, is_back: false })
        };
        let mut ears = vec![bind(Line::Side(FeedSide::A), address)?];
        if let Some(b) = feed.mold_b {
            ears.push(bind(Line::Side(FeedSide::B), b)?);
        }
        if let Some(server) = feed.mold_request {
            ears.push(bind(Line::Answers(server), answers_at(server))?);
        }
        for note in ears.iter().flat_map(|ear| ear.port.notes()) {
            tracing::warn!("feed.mold: {note}");
        }
        let limits = ArbiterLimits {
            messages_max: feed.mold_hold_messages,
            bytes_max: feed.mold_hold_bytes,
            ..ArbiterLimits::default()
        };
        let (patience, skew) = (feed.mold_gap_timeout, feed.mold_skew);
        Ok(Self {
            ears,
            limits,
            tracker: Tracker::new(feed.mold_from, limits),
            gaps: Gaps::new(patience, skew, feed.mold_request.is_some()),
            rivals: RivalSessions::default(),
            inbox: Vec::new(),
            arrived: VecDeque::new(),
            ready: VecDeque::new(),
            times: BTreeMap::new(),
            format: crate::input::format_named(feed.format.as_deref())?.unwrap_or(codec::ITCH),
            has_first: feed.mold_from.is_some(),
            news: Vec::new(),
            lost: VecDeque::new(),
            losses: None,
            status: FeedStatus::default(),
            given: 0,
            heard: None,
            title: format!("MoldUDP64 at {address}"),
        })
    }

    fn tell(&mut self, kind: &'static str, text: String) {
        if self.news.len() < NEWS_MAX {
            self.news.push((kind, text));
        }
    }

    /// Reports a counted event at its first, tenth, hundredth occurrence and so on.
    fn tell_of(&mut self, count: u64, text: impl FnOnce() -> String) {
        if 10u64.pow(count.ilog10()) == count {
            self.tell("feed", format!("{} (number {count} of its kind)", text()));
        }
    }

    /// Reads a batch from each socket. Returns whether any datagram arrived.
    fn receive(&mut self) -> bool {
        for (place, ear) in self.ears.iter_mut().enumerate() {
            ear.port.receive(&mut self.inbox);
            if let (Some(losses), Line::Side(_)) = (&mut self.losses, ear.line) {
                let before = self.inbox.len();
                self.inbox.retain(|_| !losses.luck.chance(losses.share));
                losses.dropped += (before - self.inbox.len()) as u64;
            }
            self.arrived.extend(self.inbox.drain(..).map(|arrival| (place, arrival)));
        }
        !self.arrived.is_empty()
    }

    /// The side of a packet; `None` for a packet of another source.
    fn side_of(&mut self, place: usize, arrival: &Arrival) -> Option<FeedSide> {
        let (from, ear) = (arrival.from, &self.ears[place]);
        match ear.line {
            Line::Side(side) if ear.source.admits(from, arrival.received) => return Some(side),
            Line::Answers(server) if server == from => {
                self.status.answers += 1;
                return Some(FeedSide::Again);
            }
            _ => self.status.foreign += 1,
        }
        let why = "another address sends this side; feed.mold_sources lists those that may";
        self.tell_of(self.status.foreign, || format!("ignored a packet of {from}: {why}"));
        None
    }

    /// Records the sender of an accepted packet as the source of its side.
    fn note_source(&mut self, place: usize, side: FeedSide, arrival: &Arrival) {
        let Some(before) = self.ears[place].source.take(arrival.from, arrival.received) else {
            return;
        };
        let instead = before.map_or_else(String::new, |old| format!(", before from {old}"));
        self.tell("feed", format!("side {side:?} comes from {}{instead}", arrival.from));
    }

    /// Hands one datagram to the tracker, and queues the messages that it completes.
    fn datagram(&mut self, place: usize, arrival: &Arrival) {
        let packet = match MoldPacket::decode(&arrival.datagram) {
            Ok(packet) => packet,
            Err(error) => return self.refuse(error, arrival),
        };
        let Some(side) = self.side_of(place, arrival) else {
            return self.keep_of_another(place, arrival, packet.session);
        };
        self.take_packet(place, side, arrival, &packet);
    }

    /// Hands a packet of a side to the tracker.
    fn take_packet(
        &mut self,
        place: usize,
        side: FeedSide,
        arrival: &Arrival,
        packet: &MoldPacket<'_>,
    ) {
        let known = self.tracker.session();
        match self.tracker.datagram(side, &arrival.datagram) {
            Err(MoldError::OtherSession { found, .. }) if side != FeedSide::Again => {
                return self.hear_other_session(place, arrival, found);
            }
            Err(error) => return self.refuse(error, arrival),
            Ok(()) => {}
        }
        if packet.body.count() > 0 && self.times.len() < self.limits.messages_max {
            self.times.entry(packet.sequence).or_insert(arrival.received);
        }
        self.heard = Some(arrival.received);
        self.status.other_sessions += self.rivals.clear();
        if let Some(session) = self.tracker.session().filter(|session| known != Some(*session)) {
            self.status.session = session.to_string();
            self.tell("feed", format!("MoldUDP64 session {session} has been found"));
            self.ears.iter_mut().for_each(|ear| (ear.reached, ear.is_back) = (0, false));
        }
        if side != FeedSide::Again {
            self.note_source(place, side, arrival);
            self.note_place(place, side, packet);
        }
        self.drain(arrival.received);
    }

    /// Tells when a side goes back by more than packets swap places: its sender has begun again, or
    /// sends old messages once more.
    fn note_place(&mut self, place: usize, side: FeedSide, packet: &MoldPacket<'_>) {
        let (next, ear) = (packet.next_sequence(), &mut self.ears[place]);
        if next >= ear.reached {
            (ear.reached, ear.is_back) = (next, false);
        } else if next + BACK_MESSAGES <= ear.reached && !ear.is_back {
            ear.is_back = true;
            let (sequence, reached, session) = (packet.sequence, ear.reached, packet.session);
            let text = format!(
                "side {side:?} of session {session} goes back from sequence {reached} to \
                 {sequence}: what it repeats is taken once; a sender that starts again must begin \
                 a new session"
            );
            self.tell("feed", text);
        }
    }

    /// Keeps a packet of another address, which may be the feed's sender after it started again.
    fn keep_of_another(&mut self, place: usize, arrival: &Arrival, session: SessionId) {
        let ear = &self.ears[place];
        let is_side = matches!(ear.line, Line::Side(_)) && !ear.source.is_listed();
        if is_side && self.tracker.session().is_some_and(|running| running != session) {
            self.rivals.keep(session, place, arrival);
        }
    }

    /// Keeps a packet of another session than the followed one. Once the followed session is
    /// silent, follows the other session from its first kept packet.
    fn hear_other_session(&mut self, place: usize, arrival: &Arrival, found: SessionId) {
        let Some(running) = self.tracker.session() else { return };
        if !self.rivals.keep(found, place, arrival) {
            return self.refuse(MoldError::OtherSession { running, found }, arrival);
        }
        let silent = self.silence(arrival.received);
        let is_known = self.ears[place].source.is_at(arrival.from.ip());
        if !self.rivals.is_proven(found, silent, is_known) {
            if self.rivals.is_first(found) {
                let text = format!(
                    "MoldUDP64 session {found} begins, but {running} has not ended: packets of \
                     {found} are kept until {running} is silent for {} s",
                    SILENCE.as_secs()
                );
                self.tell("feed", text);
            }
            return;
        }
        self.tell("feed", format!("MoldUDP64 session {running} is silent: {found} is followed"));
        self.tracker.leave();
        self.drain(arrival.received);
        self.times.clear();
        for (place, arrival) in self.rivals.take(found) {
            let (Line::Side(side), Ok(packet)) =
                (self.ears[place].line, MoldPacket::decode(&arrival.datagram))
            else {
                continue;
            };
            self.take_packet(place, side, &arrival, &packet);
        }
    }

    /// Time since the last packet of the session.
    fn silence(&self, now: Timestamp) -> core::time::Duration {
        self.heard.map_or(SILENCE, |heard| now.since(heard))
    }

    /// Counts and reports a refused packet.
    fn refuse(&mut self, error: MoldError, arrival: &Arrival) {
        let count = match error {
            MoldError::Far(_) | MoldError::EarlyEnd { .. } => &mut self.status.far,
            MoldError::OtherSession { .. } | MoldError::EndOfUnknown { .. } => {
                &mut self.status.other_sessions
            }
            _ => &mut self.status.malformed,
        };
        *count += 1;
        let count = *count;
        self.tell_of(count, || format!("ignored a packet of {}: {error}", arrival.from));
    }

    /// Takes the events of the tracker.
    fn drain(&mut self, now: Timestamp) {
        while let Some(event) = self.tracker.poll() {
            match event {
                ArbiterEvent::Message { sequence, bytes } => {
                    let earlier = self.times.range(..=sequence).next_back();
                    let at = earlier.map_or(now, |(_, at)| *at).min(now);
                    let message = FeedMessage::live(self.given, at.nanos(), self.format, bytes);
                    self.given += 1;
                    self.ready.push_back(ReadyMessage { message, at, sequence });
                }
                ArbiterEvent::Gap(_) => self.status.gaps += 1,
                ArbiterEvent::Restart(sequence) => {
                    self.times.clear();
                    let text = format!(
                        "the session begins anew at sequence {sequence}: other messages come under \
                         numbers that were used"
                    );
                    self.tell("feed", text);
                }
                ArbiterEvent::Lost(range) => {
                    if self.lost.len() < LOST_MAX {
                        self.lost.push_back(range.clone());
                    }
                    let count = range.end - range.start;
                    let text = format!(
                        "lost before the root: {count} messages of the feed, sequences {} to {}",
                        range.start,
                        range.end - 1
                    );
                    self.tell("feed lost", text);
                }
            }
        }
        self.forget_times();
    }

    /// Drops arrival times of messages that are no longer held.
    fn forget_times(&mut self) {
        let next = self.tracker.missing().next().map(|hole| hole.start);
        let Some(next) = next else { return self.times.clear() };
        if self.times.len() > TIMES_TIDY
            && let Some((&oldest, _)) = self.times.range(..=next).next_back()
        {
            self.times = self.times.split_off(&oldest);
        }
    }

    /// Carries out the due actions for holes. Returns the time of the next action.
    fn recover(&mut self, now: Timestamp) -> Timestamp {
        loop {
            match self.gaps.step(now, &self.tracker) {
                Step::Wait(until) => return until,
                Step::Ask(requests) => self.ask(&requests),
                Step::Abandon => {
                    self.tracker.abandon();
                    self.drain(now);
                }
            }
        }
    }

    fn ask(&mut self, requests: &[MoldRequest]) {
        for Ear { line, port, .. } in &mut self.ears {
            let Line::Answers(server) = *line else { continue };
            for request in requests {
                let transmit = Transmit::new(
                    TrafficClass::Repair,
                    Destination::One(server),
                    Head::new(&request.encode()),
                    Bytes::new(),
                );
                // A refused request is repeated after a while, as a lost request is.
                self.status.requests += u64::from(port.send(0, transmit).is_ok());
            }
            port.flush();
        }
    }
}

impl Mold {
    /// Loses a share of the packets of the sides from now on.
    pub(crate) fn lose(&mut self, losses: PlannedLosses) {
        self.losses = Some(losses);
    }

    /// Packets lost on purpose.
    pub(crate) fn dropped(&self) -> u64 {
        self.losses.as_ref().map_or(0, |losses| losses.dropped)
    }

    /// The sequence of the message that [`next`](Intake::next) showed.
    pub(crate) fn sequence(&self) -> Option<u64> {
        self.ready.front().map(|ready| ready.sequence)
    }

    /// Takes the lost ranges before the message that [`next`](Intake::next) showed, or all of them
    /// without such a message. Each range is given once.
    pub(crate) fn take_lost(&mut self) -> Vec<Range<u64>> {
        let next = self.sequence();
        let is_before = |range: &&Range<u64>| next.is_none_or(|next| range.start < next);
        let count = self.lost.iter().take_while(is_before).count();
        self.lost.drain(..count).collect()
    }

    /// The port on which a program without another port waits: arrivals of all sockets end its
    /// waits.
    pub(crate) fn waiting_port(&mut self) -> Result<&mut dyn Port, IntakeError> {
        let handles = self.ears.iter().skip(1).map(|ear| ear.port.handle());
        let others = handles.collect::<Result<_, _>>()?;
        let port = self.ears[0].port.as_mut();
        port.watch(others);
        Ok(port)
    }

    /// Waits for a packet, or for the deadline.
    pub(crate) fn wait(&mut self, deadline: Timestamp) {
        self.ears[0].port.wait(None, Some(deadline));
    }
}

impl Intake for Mold {
    fn repeats(&self) -> bool {
        self.has_first
    }

    fn begin(&mut self, _: Timestamp, port: &mut dyn Port) -> Result<(), IntakeError> {
        let handles = self.ears.iter().map(|ear| ear.port.handle());
        port.watch(handles.collect::<Result<_, _>>()?);
        Ok(())
    }

    fn next(&mut self, now: Timestamp) -> Result<Next, FeedError> {
        loop {
            if let Some(ReadyMessage { message, at, .. }) = self.ready.front() {
                return Ok(Next::Message(message.clone(), *at));
            }
            if self.tracker.is_ended() {
                return Ok(Next::End);
            }
            if let Some((place, arrival)) = self.arrived.pop_front() {
                self.datagram(place, &arrival);
                continue;
            }
            let until = self.recover(now);
            if self.ready.is_empty() && !self.receive() {
                return Ok(Next::NotBefore(until));
            }
        }
    }

    fn take(&mut self) {
        self.ready.pop_front();
    }

    fn news(&mut self) -> Vec<News> {
        core::mem::take(&mut self.news)
    }

    fn ill(&self, now: Timestamp) -> Option<String> {
        let Some(heard) = self.heard else { return Some("no MoldUDP64 packet yet".into()) };
        let silence = now.since(heard);
        let silent = silence >= SILENCE && !self.tracker.is_ended();
        silent.then(|| format!("no MoldUDP64 packet for {} s", silence.as_secs()))
    }

    fn status(&self) -> Option<FeedStatus> {
        let counts = self.tracker.counts();
        Some(FeedStatus {
            delivered: counts.delivered,
            first_a: counts.first_a,
            first_b: counts.first_b,
            first_again: counts.first_again,
            copies_ignored: counts.ignored,
            lost: counts.lost,
            late: counts.late,
            reused: counts.reused,
            restarts: counts.restarts,
            ..self.status.clone()
        })
    }

    fn title(&self) -> String {
        self.title.clone()
    }
}

#[cfg(test)]
mod tests;
