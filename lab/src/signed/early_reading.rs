//! A participant behind a gateway that wants to read a message before its release.
//!
//! The gateway is a receiver of the feed whose hand-over and re-request server have real sockets on
//! loopback. The participant has a socket and no key. It overhears what the root sends to the
//! gateway, asks the gateway for messages before their time, and looks into its socket. Beside it
//! stands a subscriber that has a receiver of its own, whose clock it sets ahead.

use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use evenfall_core::{
    Arrival, ClockError, ClockReading, Machine, MasterKey, NodeId, StampedBy, SyncTime,
};
use evenfall_feed_formats::mold::replay::RequestRefusal;
use evenfall_feed_formats::mold::{MoldPacket, MoldRequest};
use evenfall_multicast_machine::{Config, Receiver, ReceiverEvent, SharedKey};
use evenfall_multicast_service::gateway::handoff::{Handoff, Rings, session_of};
use evenfall_multicast_service::gateway::requests::{RequestDesk, RerequestServer};
use evenfall_multicast_service::gateway::settings::{GatewayNode, GatewaySettings};
use evenfall_multicast_service::roles::receiver::Sink;
use evenfall_port::Options;

use super::forgery::ForgeryResult;
use super::hostile::genuine_message;
use super::{EPOCH, SignedFeed, SignedFeedPlan, address, identity_of};

/// The receiver that is the gateway, and the node of the subscriber.
const GATEWAY: usize = 0;
const SUBSCRIBER: u32 = 2;
/// Messages of the feed.
const MESSAGES: u64 = 20;
/// Time in which a held message is released, at the default settings.
const HOLD: Duration = Duration::from_millis(60);
/// How far the subscriber's clock is ahead.
const AHEAD: Duration = Duration::from_secs(1);
/// Time for a datagram over loopback, when the machine does much else.
const PATIENCE: Duration = Duration::from_secs(10);

/// What was read before its release.
#[derive(Debug, Default)]
struct EarlyReadings {
    /// Messages in the socket of the participant.
    in_socket: u64,
    /// Messages in answers to requests.
    in_answers: u64,
    /// Requests that the gateway refused because the message was not sent yet.
    refused: u64,
    /// Overheard messages that could be read, and frames that could not be opened.
    overheard: u64,
    unopened: u64,
    /// Messages that the subscriber with a key has read.
    by_subscriber: u64,
    /// Messages that came to the participant at their release.
    in_time: u64,
}

/// A machine that reads what it overhears, without a key or with the key of a node.
fn start_listener(
    shared: Option<&SharedKey>,
    own: Option<&MasterKey>,
    feed: &SignedFeed,
) -> Receiver {
    let who = identity_of(SUBSCRIBER);
    let receiver = Receiver::new(Config::default(), who, shared, feed.now());
    match own {
        Some(master) => receiver.with_node_key(master.node(NodeId(SUBSCRIBER))),
        None => receiver,
    }
}

/// Hands datagrams to a listener whose clock is ahead. Returns the messages that it releases.
fn read_overheard(listener: &mut Receiver, feed: &SignedFeed, datagrams: &[Bytes]) -> u64 {
    let now = feed.now() + AHEAD;
    let reading = ClockReading { offset_ns: 0, error: ClockError::SameClock };
    listener.handle_clock(now, reading);
    for datagram in datagrams {
        let arrival = Arrival::new(address(0), datagram.clone(), feed.now(), StampedBy::User);
        listener.handle(now, arrival).ok();
    }
    listener.handle_timeout(now);
    let released = core::iter::from_fn(|| listener.poll_event()).map(|event| match event {
        ReceiverEvent::Released(release) => u64::from(release.count),
        _ => 0,
    });
    released.sum()
}

fn contains(datagram: &[u8], message: &[u8]) -> bool {
    datagram.windows(message.len()).any(|window| window == message)
}

/// The gateway's side towards its participant.
struct GatewayScene {
    feed: SignedFeed,
    handoff: Handoff,
    server: RerequestServer,
    participant: UdpSocket,
}

impl GatewayScene {
    fn new(shared: &SharedKey, master: &MasterKey) -> Self {
        let feed = SignedFeed::of_plan(&SignedFeedPlan {
            receivers: 2,
            key: Some(shared),
            master: Some(master),
            is_overheard: true,
            ..SignedFeedPlan::default()
        });
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let participant = UdpSocket::bind(loopback).expect("a loopback socket");
        let at = participant.local_addr().expect("its address");
        let node = GatewayNode {
            name: "gateway".into(),
            participants: vec![at],
            participant_keys: Vec::new(),
            rerequest: Some(loopback),
            requesters: vec!["127.0.0.1".parse().expect("an address")],
            interface: None,
        };
        let settings = GatewaySettings::default();
        let rings: Rings = [Mutex::new(None)].into();
        let desk = RequestDesk::new(&settings, &node, Arc::clone(&rings));
        let server = RerequestServer::start(loopback, false, desk).expect("a loopback socket");
        let port = evenfall_port::open(loopback, Options::default()).expect("a loopback socket");
        let mut handoff =
            Handoff::new(&settings, &node, port, 1, Some(rings)).expect("one participant");
        let place = feed.receiver(GATEWAY).place().expect("the tree stands");
        handoff.begin(0, EPOCH, place.start_message);
        Self { feed, handoff, server, participant }
    }

    /// Messages in the participant's socket. Waits for those that have to come.
    fn read_socket(&self, expected: u64) -> u64 {
        let until = Instant::now() + PATIENCE;
        self.participant.set_nonblocking(true).expect("a socket");
        let (mut bytes, mut messages) = ([0; 2_048], 0);
        loop {
            match self.participant.recv(&mut bytes) {
                Ok(length) => {
                    let packet = MoldPacket::decode(&bytes[..length]).expect("a packet");
                    messages += u64::from(packet.body.count());
                }
                Err(_) if messages < expected && Instant::now() < until => {
                    std::thread::sleep(Duration::from_micros(200));
                }
                Err(_) => return messages,
            }
        }
    }

    /// Asks for a message, and waits until the server has counted the request.
    fn ask(&self, number: u64) {
        let session = session_of(EPOCH, 0);
        let request = MoldRequest { session, sequence: number + 1, count: 1 };
        let wanted = self.server.counts().requests + 1;
        self.participant.send_to(&request.encode(), self.server.address()).expect("loopback");
        let until = Instant::now() + PATIENCE;
        while self.server.counts().requests < wanted && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Hands on what the gateway releases until now. Returns the number of messages.
    fn hand_on(&mut self) -> u64 {
        let at = SyncTime::from_nanos(self.feed.now().nanos());
        let mut messages = 0;
        for event in self.feed.take_events(GATEWAY) {
            if let ReceiverEvent::Released(release) = event {
                messages += u64::from(release.count);
                self.handoff.released(&release, at);
                self.handoff.retry();
            }
        }
        messages
    }
}

/// Publishes messages, and lets all try to read each before its release. No time passes meanwhile,
/// so that the gateway holds all of them.
fn play_feed() -> EarlyReadings {
    let (shared, master) = (SharedKey::new(1, [5; 32]), MasterKey::new([6; 32]));
    let mut scene = GatewayScene::new(&shared, &master);
    let guessed = SharedKey::new(1, [0; 32]);
    let mut stranger = start_listener(Some(&guessed), None, &scene.feed);
    let mut subscriber = start_listener(Some(&shared), Some(&master), &scene.feed);
    let mut read = EarlyReadings::default();
    // What came before the first message has the place of the subscriber.
    let before = scene.feed.take_overheard();
    read_overheard(&mut stranger, &scene.feed, &before);
    read_overheard(&mut subscriber, &scene.feed, &before);
    for number in 0..MESSAGES {
        let message = genuine_message(number);
        scene.feed.publish(&message);
        let overheard = scene.feed.take_overheard();
        read.overheard += overheard.iter().filter(|bytes| contains(bytes, &message)).count() as u64;
        read.overheard += read_overheard(&mut stranger, &scene.feed, &overheard);
        read.by_subscriber += read_overheard(&mut subscriber, &scene.feed, &overheard);
        scene.ask(number);
        read.in_answers = scene.server.counts().answers;
        assert_eq!(scene.hand_on(), 0, "the gateway holds the message");
        read.in_socket += scene.read_socket(0);
    }
    (0..HOLD.as_millis()).for_each(|_| scene.feed.pass(Duration::from_millis(1)));
    let released = scene.hand_on();
    read.in_time = scene.read_socket(released);
    let refused = scene.server.counts().refused_by_reason().collect::<Vec<_>>();
    let not_sent = refused.iter().find(|(why, _)| *why == RequestRefusal::NotSent);
    read.refused = not_sent.map_or(0, |(_, count)| *count);
    read.unopened = stranger.status().refusals.forged;
    read
}

/// What a participant behind a gateway reads before its release, and what a subscriber reads.
pub fn play_early_readings() -> Vec<ForgeryResult> {
    let read = play_feed();
    let describe = |messages: u64| {
        (messages > 0).then(|| format!("{messages} of {MESSAGES} messages before their release"))
    };
    let result =
        |attack, messages, counted| ForgeryResult::of(attack, true, describe(messages), counted);
    let looks = "a participant looks into its socket before the release";
    let mut in_socket = result(looks, read.in_socket, 0);
    if !in_socket.succeeded {
        let at_release = read.in_time;
        in_socket.got = format!("nothing: {at_release} of {MESSAGES} come at their release");
    }
    vec![
        in_socket,
        result(
            "a participant asks the gateway for messages before their release",
            read.in_answers,
            read.refused,
        ),
        result(
            "a participant overhears what the root sends to the gateway",
            read.overheard,
            read.unopened,
        ),
        result(
            "a subscriber with a key sets the clock of its own receiver ahead",
            read.by_subscriber,
            0,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_participant_reads_each_message_at_its_release_and_none_before() {
        let read = play_feed();
        assert_eq!(read.in_time, MESSAGES, "{read:?}");
        assert_eq!((read.in_socket, read.in_answers, read.overheard), (0, 0, 0), "{read:?}");
        assert_eq!(read.refused, MESSAGES, "each request before the release: {read:?}");
        assert!(read.unopened >= MESSAGES, "{read:?}");
        // Who holds a key can read before the deadline. Therefore participants hold none.
        assert!(read.by_subscriber > 0, "{read:?}");
    }
}
