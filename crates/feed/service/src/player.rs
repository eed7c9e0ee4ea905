//! Plays a feed as a live MoldUDP64 session, as a venue would: two sides that lose packets
//! independently, and a re-request server. The player is for tests and for trials.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::prng::Prng;
use evenfall_core::{Arrival, Destination, Head, Timestamp, TrafficClass, Transmit};
use evenfall_feed_formats::mold::replay::{ReplayLimits, ReplayRing};
use evenfall_feed_formats::mold::{
    MoldRequest, PacketBuilder, SessionId, end_of_session, heartbeat,
};
use evenfall_feed_formats::sharding::ContentHash;
use evenfall_host::clock::MonotonicClock;
use evenfall_host::interrupt;
use evenfall_port::{Options, Port};
use serde::Serialize;

use crate::IntakeError;
use crate::input::{InputError, Schedule};
use crate::settings::Feed;

/// Bytes of a packet: the Ethernet MTU without IPv4 and UDP headers and some room for tunnels.
const PACKET_BYTES: usize = 1_400;
/// The messages that are kept for requests: of a feed of 40-byte messages, one and a half million.
const KEPT: ReplayLimits = ReplayLimits { messages_max: 1 << 21, bytes_max: 64 << 20 };
/// Time between two heartbeats of an idle session, as in the specification.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Time between two announcements of the end. The end is repeated, because announcements may be
/// lost.
const END_INTERVAL: Duration = Duration::from_millis(100);
/// Packets sent before requests get their turn.
const PACKETS_PER_TURN: usize = 64;
/// Name of the session, by custom padded on the left.
const SESSION: SessionId = SessionId(*b"  evenfall");

/// Settings of a player.
#[derive(Clone, Debug)]
pub struct PlayerStage {
    /// Destination of side A: an address or a multicast group.
    pub a: SocketAddr,
    /// Destination of side B.
    pub b: Option<SocketAddr>,
    /// Address of the interface over which groups are reached.
    pub interface: Option<Ipv4Addr>,
    /// Address at which requests are served. `None` serves no requests.
    pub serve: Option<SocketAddr>,
    /// Share of packets that each side loses, drawn for each side independently.
    pub drop: f64,
    /// Seed of the losses.
    pub seed: u64,
    /// How long the end is announced and requests are served, counted from the end or from the last
    /// request.
    pub linger: Duration,
    /// Whether a key is configured. Without one nothing leaves loopback.
    pub keyed: bool,
}

impl PlayerStage {
    /// Checks the addresses. Each destination has a port. Without a key, all addresses are on this
    /// machine.
    fn check(&self) -> Result<(), IntakeError> {
        let mut destinations = [Some(self.a), self.b].into_iter().flatten();
        if let Some(nowhere) = destinations.find(|to| to.port() == 0) {
            let why = format!("{nowhere}: nobody can listen on port 0; name the listener's port");
            return Err(InputError::Setting(why).into());
        }
        let is_near = |address: &SocketAddr| {
            let interface = self.interface.is_some_and(|interface| interface.is_loopback());
            address.ip().is_loopback() || address.ip().is_multicast() && interface
        };
        let addresses = [Some(self.a), self.b, self.serve];
        match addresses.into_iter().flatten().find(|address| !is_near(address)) {
            Some(address) if !self.keyed => {
                let why = format!(
                    "{address} is beyond loopback, and without a key nothing is sent there: give \
                     --key-file, or play to 127.0.0.1"
                );
                Err(InputError::Setting(why).into())
            }
            _ => Ok(()),
        }
    }
}

/// Counts of a player.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Played {
    /// Messages.
    pub messages: u64,
    /// Hash of the messages in their order, as the receivers of one tree compute it.
    pub content_hash: String,
    /// Messages that were not sent, because they are too long for a packet.
    pub too_large: u64,
    /// Packets with messages, per side, the dropped ones included.
    pub packets: u64,
    /// Packets that side A lost.
    pub dropped_a: u64,
    /// Packets that side B lost.
    pub dropped_b: u64,
    /// Requests that came.
    pub requests: u64,
    /// Requests answered.
    pub answers: u64,
}

/// A side and the generator of its losses.
struct Side {
    to: SocketAddr,
    luck: Prng,
    dropped: u64,
}

/// Plays a feed.
pub struct Player {
    stage: PlayerStage,
    schedule: Schedule,
    port: Box<dyn Port>,
    _signals: interrupt::Watch,
    sides: Vec<Side>,
    kept: ReplayRing,
    hash: ContentHash,
    played: Played,
    spoke: Timestamp,
}

/// The address from which to send, when no requests are served.
fn from_for(to: SocketAddr, keyed: bool) -> SocketAddr {
    let ip: IpAddr = match (to.ip(), keyed) {
        (IpAddr::V4(_), false) => Ipv4Addr::LOCALHOST.into(),
        (IpAddr::V6(_), false) => Ipv6Addr::LOCALHOST.into(),
        (IpAddr::V4(_), true) => Ipv4Addr::UNSPECIFIED.into(),
        (IpAddr::V6(_), true) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(ip, 0)
}

impl Player {
    /// Opens the feed and the socket.
    ///
    /// # Errors
    /// When the feed cannot be opened, when an address cannot be used, or when an address is beyond
    /// loopback and there is no key.
    pub fn open(feed: &Feed, stage: PlayerStage) -> Result<Self, IntakeError> {
        stage.check()?;
        feed.check().map_err(|mistake| InputError::Setting(mistake.to_string()))?;
        let schedule = Schedule::open(feed)?;
        let options = Options {
            keyed: stage.keyed,
            multicast_interface: stage.interface,
            // Without segmentation, packets are lost one by one and arrive one by one.
            segmentation: false,
            coalescing: false,
            ..Options::default()
        };
        let from = stage.serve.unwrap_or_else(|| from_for(stage.a, stage.keyed));
        let port = evenfall_port::open(from, options)?;
        let signals = interrupt::watch(port.waker())?;
        let mut luck = Prng::new(stage.seed);
        let sides = [Some(stage.a), stage.b].into_iter().flatten().zip(0..);
        let sides = sides.map(|(to, n)| Side { to, luck: luck.fork(n), dropped: 0 }).collect();
        Ok(Self {
            stage,
            schedule,
            port,
            _signals: signals,
            sides,
            kept: ReplayRing::new(SESSION, 1, KEPT),
            hash: ContentHash::new(1),
            played: Played::default(),
            spoke: MonotonicClock::now(),
        })
    }

    /// Counts so far.
    pub fn played(&self) -> Played {
        Played {
            messages: self.hash.messages(),
            content_hash: self.hash.finish_hex(),
            dropped_a: self.sides[0].dropped,
            dropped_b: self.sides.get(1).map_or(0, |side| side.dropped),
            ..self.played
        }
    }

    /// Remarks on the feed, for instance on skipped data.
    pub fn remarks(&self) -> Vec<String> {
        self.schedule.remarks()
    }

    /// Plays to the end, or until a signal comes.
    ///
    /// # Errors
    /// When the feed is damaged. All earlier messages were sent.
    pub fn run(&mut self) -> Result<Played, IntakeError> {
        let start = MonotonicClock::now();
        let damage = loop {
            match self.turn(start) {
                Ok(Some(until)) => self.wait(until),
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
            if interrupt::raised() {
                break None;
            }
        };
        self.end();
        let sent = self.hash.messages();
        match damage {
            Some(error) => Err(IntakeError::Broken { error, sent }),
            None => Ok(self.played()),
        }
    }

    /// Sends due messages and answers requests. Returns the time of the next call, or `None` at the
    /// end.
    fn turn(
        &mut self,
        start: Timestamp,
    ) -> Result<Option<Timestamp>, evenfall_feed_formats::FeedError> {
        self.serve();
        for _ in 0..PACKETS_PER_TURN {
            let now = MonotonicClock::now();
            if !self.port.has_room(TrafficClass::Bulk) {
                return Ok(Some(now));
            }
            let first = self.kept.next_sequence();
            let mut packet = PacketBuilder::new(SESSION, first, PACKET_BYTES);
            let mut next = None;
            while let Some((due, message)) = self.schedule.peek()? {
                let at = start + *due;
                if at > now || !packet.push(&message.bytes) {
                    // A message that is too long for a packet is skipped, because it would be tried
                    // for ever.
                    next = Some(at.max(now));
                    if at <= now && packet.count() == 0 {
                        self.played.too_large += 1;
                        self.schedule.take();
                    }
                    break;
                }
                self.hash.update(0, &message.bytes);
                self.kept.push(message.bytes.clone());
                self.schedule.take();
            }
            if packet.count() == 0 {
                return Ok(next.map(|at| at.min(self.keep_alive(now))));
            }
            self.played.packets += 1;
            self.send(&packet.finish());
            self.port.flush();
        }
        Ok(Some(MonotonicClock::now()))
    }

    /// Sends a heartbeat when it is due. Returns the time of the next heartbeat.
    fn keep_alive(&mut self, now: Timestamp) -> Timestamp {
        if now >= self.spoke + HEARTBEAT {
            self.send(&heartbeat(SESSION, self.kept.next_sequence()));
            self.port.flush();
        }
        self.spoke + HEARTBEAT
    }

    /// Sends a packet over both sides, except over a side that loses it.
    fn send(&mut self, packet: &[u8]) {
        self.spoke = MonotonicClock::now();
        let body = Bytes::copy_from_slice(packet);
        for side in &mut self.sides {
            if side.luck.chance(self.stage.drop) {
                side.dropped += 1;
                continue;
            }
            push(self.port.as_mut(), side.to, body.clone());
        }
    }

    /// Answers requests, one packet each.
    fn serve(&mut self) -> bool {
        let mut arrivals: Vec<Arrival> = Vec::new();
        self.port.receive(&mut arrivals);
        let before = self.played.requests;
        for arrival in arrivals {
            let Ok(request) = MoldRequest::decode(&arrival.datagram) else { continue };
            self.played.requests += 1;
            if self.stage.serve.is_some()
                && let Ok(packet) = self.kept.answer(&request, PACKET_BYTES)
            {
                self.played.answers += 1;
                push(self.port.as_mut(), arrival.from, packet.finish().into());
            }
        }
        self.port.flush();
        self.played.requests > before
    }

    fn wait(&mut self, until: Timestamp) {
        self.port.wait(None, Some(until));
    }

    /// Announces the end again and again while requests are served.
    fn end(&mut self) {
        let mut leave = MonotonicClock::now() + self.stage.linger;
        let mut say = MonotonicClock::now();
        loop {
            let now = MonotonicClock::now();
            if self.serve() {
                leave = now + self.stage.linger;
            }
            if now >= say {
                self.send(&end_of_session(SESSION, self.kept.next_sequence()));
                self.port.flush();
                say = now + END_INTERVAL;
            }
            if now >= leave {
                return;
            }
            self.wait(say.min(leave));
        }
    }
}

fn push(port: &mut dyn Port, to: SocketAddr, body: Bytes) {
    let to = Destination::One(to);
    // A refused packet is lost, as on a network, and the port counts it.
    port.send(0, Transmit::new(TrafficClass::Live, to, Head::new(&[]), body)).ok();
}
