//! A live MoldUDP64 session: two sides, a re-request server, one order.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::{Arrival, Class, Destination, Head, Timestamp, Transmit};
use evenfall_feed_formats::arbiter::{Event, Limits, Side};
use evenfall_feed_formats::mold::{Packet, Request, Tracker};
use evenfall_feed_formats::{FeedError, Message};
use evenfall_port::udp::{Options, UdpDriver};

use super::gaps::{Gaps, Step};
use super::{FeedStatus, Intake, News, Next};
use crate::IntakeError;
use evenfall_runtime::settings::{Io, Run};

use crate::settings::Feed;

/// News that wait to be told; further ones are in the counters.
const NEWS_MAX: usize = 64;
/// Silence that is worth a word: a session sends a heartbeat every second.
const SILENCE: Duration = Duration::from_secs(5);
/// Frames that may wait to be sent: one round of requests.
const REQUESTS_MAX: usize = 64;
/// Arrival times kept for messages behind a hole are tidied when there are more than this.
const TIMES_TIDY: usize = 1_024;

/// What a socket brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// A side of the feed.
    Side(Side),
    /// Answers to our requests, from this address alone.
    Answers(SocketAddr),
}

/// A session as it arrives.
pub(super) struct Mold {
    lines: Vec<(Line, UdpDriver)>,
    tracker: Tracker,
    gaps: Gaps,
    inbox: Vec<Arrival>,
    arrived: VecDeque<(Line, Arrival)>,
    ready: VecDeque<(Message, Timestamp)>,
    /// When the datagram whose first message has this sequence came, while some are held.
    times: BTreeMap<u64, Timestamp>,
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
            // One packet, one datagram; so buffers need not hold 64 KiB each.
            coalescing: false,
            segmentation: false,
            queue_frames_max: REQUESTS_MAX,
            receive_buffer_bytes: io.receive_buffer_bytes,
            multicast_interface: feed.mold_interface,
            ..Options::default()
        };
        let mut lines = vec![(Line::Side(Side::A), UdpDriver::bind(address, options.clone())?)];
        if let Some(b) = feed.mold_b {
            lines.push((Line::Side(Side::B), UdpDriver::bind(b, options.clone())?));
        }
        if let Some(server) = feed.mold_request {
            lines.push((Line::Answers(server), UdpDriver::bind(answers_at(server), options)?));
        }
        for note in lines.iter().flat_map(|(_, driver)| driver.notes()) {
            tracing::warn!("feed.mold: {note}");
        }
        Ok(Self {
            lines,
            tracker: Tracker::new(feed.mold_from, Limits::default()),
            gaps: Gaps::new(feed.mold_gap_timeout, feed.mold_request.is_some()),
            inbox: Vec::new(),
            arrived: VecDeque::new(),
            ready: VecDeque::new(),
            times: BTreeMap::new(),
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

    /// Reads a batch from each socket. Whether there was anything.
    fn receive(&mut self) -> bool {
        for (line, driver) in &mut self.lines {
            driver.recv(&mut self.inbox);
            self.arrived.extend(self.inbox.drain(..).map(|arrival| (*line, arrival)));
        }
        !self.arrived.is_empty()
    }

    /// Hands one datagram to the tracker, and makes ready what that brings.
    fn datagram(&mut self, line: Line, arrival: &Arrival) {
        let side = match line {
            Line::Side(side) => side,
            Line::Answers(server) if server == arrival.from => {
                self.status.answers += 1;
                Side::A
            }
            Line::Answers(_) => {
                self.status.malformed += 1;
                return;
            }
        };
        let known = self.tracker.session();
        if let Ok(packet) = Packet::decode(&arrival.datagram)
            && packet.body.count() > 0
            && self.times.len() < Limits::default().messages_max
        {
            self.times.entry(packet.sequence).or_insert(arrival.received);
        }
        if let Err(error) = self.tracker.datagram(side, &arrival.datagram) {
            self.status.malformed += 1;
            if self.status.malformed == 1 {
                self.tell("feed", format!("first bad datagram, from {}: {error}", arrival.from));
            }
            return;
        }
        self.heard = Some(arrival.received);
        if known.is_none()
            && let Some(session) = self.tracker.session()
        {
            self.status.session = session.to_string();
            self.tell("feed", format!("MoldUDP64 session {session} has been found"));
        }
        self.drain(arrival.received);
    }

    /// Takes what the tracker says.
    fn drain(&mut self, now: Timestamp) {
        while let Some(event) = self.tracker.poll() {
            match event {
                Event::Message { sequence, bytes } => {
                    let earlier = self.times.range(..=sequence).next_back();
                    let at = earlier.map_or(now, |(_, at)| *at).min(now);
                    let message = Message::live(self.given, at.nanos(), bytes);
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

    /// Does what is due about holes; when to look again.
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
        for (line, driver) in &mut self.lines {
            let Line::Answers(server) = *line else { continue };
            for request in requests {
                let transmit = Transmit {
                    class: Class::Repair,
                    to: Destination::One(server),
                    head: Head::new(&request.encode()),
                    body: Bytes::new(),
                };
                // A refused request is repeated after a while, as a lost one is.
                self.status.requests += u64::from(driver.push(transmit).is_ok());
            }
            driver.flush();
        }
    }
}

impl Intake for Mold {
    fn begin(&mut self, _: Timestamp, driver: &mut UdpDriver) -> Result<(), IntakeError> {
        let sockets: Vec<&UdpDriver> = self.lines.iter().map(|(_, driver)| driver).collect();
        Ok(driver.watch(&sockets)?)
    }

    fn next(&mut self, now: Timestamp) -> Result<Next, FeedError> {
        loop {
            if let Some((message, at)) = self.ready.front() {
                return Ok(Next::Message(message.clone(), *at));
            }
            if self.tracker.is_ended() {
                return Ok(Next::End);
            }
            if let Some((line, arrival)) = self.arrived.pop_front() {
                self.datagram(line, &arrival);
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
            copies_ignored: counts.ignored,
            lost: counts.lost,
            ..self.status.clone()
        })
    }

    fn title(&self) -> String {
        self.title.clone()
    }
}
