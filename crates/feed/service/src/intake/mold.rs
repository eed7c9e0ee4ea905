//! A live MoldUDP64 session: two sides, a re-request server, one order.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::Bytes;
use evenfall_core::{Arrival, Class, Destination, Head, Timestamp, Transmit};
use evenfall_feed_formats::arbiter::{Event, Limits, Side};
use evenfall_feed_formats::mold::{MoldError, Packet, Request, Tracker};
use evenfall_feed_formats::{FeedError, Format, Message, codec};
use evenfall_port::{Options, Port};

use super::gaps::{Gaps, Step};
use super::trust::{Rival, SILENCE, Source};
use super::{FeedStatus, Intake, News, Next};
use crate::IntakeError;
use evenfall_runtime::settings::{Io, Run};

use crate::settings::Feed;

/// Limit of events that wait to be reported. Further events only count in the counters.
const NEWS_MAX: usize = 64;
/// Frames that may wait to be sent: one round of requests.
const REQUESTS_MAX: usize = 64;
/// Number of kept arrival times above which times of messages that are no longer held are dropped.
const TIMES_TIDY: usize = 1_024;

/// The use of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// A side of the feed.
    Side(Side),
    /// Answers to our requests, from this address alone.
    Answers(SocketAddr),
}

/// A socket and the sources that it accepts.
struct Ear {
    line: Line,
    port: Box<dyn Port>,
    source: Source,
}

/// A live session.
pub(super) struct Mold {
    ears: Vec<Ear>,
    limits: Limits,
    tracker: Tracker,
    gaps: Gaps,
    rival: Rival,
    inbox: Vec<Arrival>,
    /// Arrivals, each with the index of its socket.
    arrived: VecDeque<(usize, Arrival)>,
    ready: VecDeque<(Message, Timestamp)>,
    /// Arrival time of each datagram by the sequence of its first message, while messages are held.
    times: BTreeMap<u64, Timestamp>,
    /// Format of the messages, which a session does not state.
    format: Format,
    /// Whether the settings name the first message.
    has_first: bool,
    news: Vec<News>,
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
    pub(super) fn open(
        address: SocketAddr,
        feed: &Feed,
        run: &Run,
        io: &Io,
    ) -> Result<Self, IntakeError> {
        let options = Options {
            keyed: run.key()?.is_some(),
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
            Ok::<_, IntakeError>(Ear { line, port, source: Source::new(&feed.mold_sources) })
        };
        let mut ears = vec![bind(Line::Side(Side::A), address)?];
        if let Some(b) = feed.mold_b {
            ears.push(bind(Line::Side(Side::B), b)?);
        }
        if let Some(server) = feed.mold_request {
            ears.push(bind(Line::Answers(server), answers_at(server))?);
        }
        for note in ears.iter().flat_map(|ear| ear.port.notes()) {
            tracing::warn!("feed.mold: {note}");
        }
        let limits = Limits {
            messages_max: feed.mold_hold_messages,
            bytes_max: feed.mold_hold_bytes,
            ..Limits::default()
        };
        let (patience, skew) = (feed.mold_gap_timeout, feed.mold_skew);
        Ok(Self {
            ears,
            limits,
            tracker: Tracker::new(feed.mold_from, limits),
            gaps: Gaps::new(patience, skew, feed.mold_request.is_some()),
            rival: Rival::default(),
            inbox: Vec::new(),
            arrived: VecDeque::new(),
            ready: VecDeque::new(),
            times: BTreeMap::new(),
            format: crate::input::format_named(feed.format.as_deref())?.unwrap_or(codec::ITCH),
            has_first: feed.mold_from.is_some(),
            news: Vec::new(),
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
            self.arrived.extend(self.inbox.drain(..).map(|arrival| (place, arrival)));
        }
        !self.arrived.is_empty()
    }

    /// The side of a packet; `None` for a packet of another source.
    fn side_of(&mut self, place: usize, arrival: &Arrival) -> Option<Side> {
        let (from, ear) = (arrival.from, &self.ears[place]);
        match ear.line {
            Line::Side(side) if ear.source.admits(from, arrival.received) => return Some(side),
            Line::Answers(server) if server == from => {
                self.status.answers += 1;
                return Some(Side::Again);
            }
            _ => self.status.foreign += 1,
        }
        let why = "another address sends this side; feed.mold_sources lists those that may";
        self.tell_of(self.status.foreign, || format!("ignored a packet of {from}: {why}"));
        None
    }

    /// Records the sender of an accepted packet as the source of its side.
    fn note_source(&mut self, place: usize, side: Side, arrival: &Arrival) {
        let Some(before) = self.ears[place].source.take(arrival.from, arrival.received) else {
            return;
        };
        let instead = before.map_or_else(String::new, |old| format!(", before from {old}"));
        self.tell("feed", format!("side {side:?} comes from {}{instead}", arrival.from));
    }

    /// Hands one datagram to the tracker, and queues the messages that it completes.
    fn datagram(&mut self, place: usize, arrival: &Arrival) {
        let packet = match Packet::decode(&arrival.datagram) {
            Ok(packet) => packet,
            Err(error) => return self.refuse(error, arrival),
        };
        let Some(side) = self.side_of(place, arrival) else { return };
        let known = self.tracker.session();
        let mut taken = self.tracker.datagram(side, &arrival.datagram);
        if let Err(MoldError::OtherSession { running, found }) = taken
            && self.rival.hear(found, self.silence(arrival.received))
        {
            self.tell(
                "feed",
                format!("MoldUDP64 session {running} is silent: {found} is followed"),
            );
            self.tracker.leave();
            self.drain(arrival.received);
            self.times.clear();
            taken = self.tracker.datagram(side, &arrival.datagram);
        }
        if let Err(error) = taken {
            return self.refuse(error, arrival);
        }
        if packet.body.count() > 0 && self.times.len() < self.limits.messages_max {
            self.times.entry(packet.sequence).or_insert(arrival.received);
        }
        self.heard = Some(arrival.received);
        self.rival.clear();
        if side != Side::Again {
            self.note_source(place, side, arrival);
        }
        if let Some(session) = self.tracker.session().filter(|session| known != Some(*session)) {
            self.status.session = session.to_string();
            self.tell("feed", format!("MoldUDP64 session {session} has been found"));
        }
        self.drain(arrival.received);
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
                Event::Message { sequence, bytes } => {
                    let earlier = self.times.range(..=sequence).next_back();
                    let at = earlier.map_or(now, |(_, at)| *at).min(now);
                    let message = Message::live(self.given, at.nanos(), self.format, bytes);
                    self.given += 1;
                    self.ready.push_back((message, at));
                }
                Event::Gap(_) => self.status.gaps += 1,
                Event::Lost(range) => {
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

    fn ask(&mut self, requests: &[Request]) {
        for Ear { line, port, .. } in &mut self.ears {
            let Line::Answers(server) = *line else { continue };
            for request in requests {
                let transmit = Transmit::new(
                    Class::Repair,
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
            if let Some((message, at)) = self.ready.front() {
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
            ..self.status.clone()
        })
    }

    fn title(&self) -> String {
        self.title.clone()
    }
}
