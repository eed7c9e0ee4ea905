use std::net::SocketAddr;

use bytes::{BufMut, BytesMut};
use evenfall_core::{Arrival, Format, NodeId, SharedKey};
use evenfall_feed_formats::mold::{Body, MoldPacket, MoldRequest};
use evenfall_feed_formats::plain::sealed::PlainOpener;
use evenfall_multicast_machine::wire::Messages;
use evenfall_port::Options;

use super::*;

const RUN: u32 = 0x6512_0001;

/// A participant, whose kernel stamps what arrives.
fn participant() -> Box<dyn Port> {
    let options = Options { kernel_timestamps: true, coalescing: false, ..Options::default() };
    let mut port = evenfall_port::open("127.0.0.1:0".parse().unwrap(), options).unwrap();
    await_stamps(port.as_mut());
    port
}

/// The kernel begins to stamp some time after the first socket has asked for it. Before that, a
/// stamp has the time of the reading, and the port that is read first seems to have been served
/// first.
fn await_stamps(port: &mut dyn Port) {
    let until = MonotonicClock::now() + Duration::from_secs(10);
    let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    loop {
        sender.send_to(&[0], port.local_addr()).unwrap();
        std::thread::sleep(Duration::from_millis(1));
        let reading = MonotonicClock::now();
        if taken(port, 1)[0].received < reading {
            return;
        }
        assert!(MonotonicClock::now() < until, "the kernel does not stamp");
    }
}

fn gateway_node(participants: &[Box<dyn Port>]) -> GatewayNode {
    GatewayNode {
        name: "gw".into(),
        participants: participants.iter().map(|port| port.local_addr()).collect(),
        participant_keys: Vec::new(),
        rerequest: None,
        requesters: Vec::new(),
        interface: None,
    }
}

fn handoff(
    settings: &GatewaySettings,
    participants: &[Box<dyn Port>],
    rings: Option<Rings>,
) -> Handoff {
    let node = gateway_node(participants);
    let own: SocketAddr = "127.0.0.1:0".parse().unwrap();
    // As the role opens it.
    let segmentation = settings.protocol != HandoffProtocol::Sealed;
    let port = evenfall_port::open(own, Options { segmentation, ..Options::default() }).unwrap();
    Handoff::new(settings, &node, port, 1, rings).unwrap()
}

/// A release of messages of these lengths, each filled with its number.
fn release(first_message: u64, lengths: &[usize]) -> Release {
    let mut body = BytesMut::new();
    for (number, length) in (first_message..).zip(lengths) {
        body.put_u16_le(*length as u16);
        body.put_bytes(number as u8, *length);
    }
    let count = lengths.len() as u16;
    let at = SyncTime::from_nanos(1_000);
    Release {
        stream: 0,
        epoch: RUN,
        run_id: 0,
        sequence: 0,
        first_message,
        messages: Messages::new(body.freeze(), count).unwrap(),
        count,
        format: Format(3),
        origin: at,
        deadline: Some(at),
        arrived: at,
        taken: at,
        via: NodeId(0),
        hedge_win: false,
        repaired: false,
        signature: None,
    }
}

/// The datagrams that came to a participant.
fn taken(port: &mut dyn Port, count: usize) -> Vec<Arrival> {
    let mut all = Vec::new();
    let until = MonotonicClock::now() + Duration::from_secs(10);
    while all.len() < count && MonotonicClock::now() < until {
        if port.receive(&mut all) == 0 {
            port.wait(None, Some(until));
        }
    }
    assert_eq!(all.len(), count);
    all
}

/// Messages of packets: the sequence of each, and its first byte.
fn messages_of(arrivals: &[Arrival]) -> Vec<(u64, u8)> {
    let mut all = Vec::new();
    for arrival in arrivals {
        let packet = MoldPacket::decode(&arrival.datagram).unwrap();
        assert_eq!(packet.session, session_of(RUN, 0));
        let Body::Messages(messages) = packet.body else { panic!("{packet:?}") };
        all.extend((packet.sequence..).zip(messages).map(|(n, message)| (n, message[0])));
    }
    all
}

#[test]
fn sessions_name_run_and_tree() {
    assert_eq!(session_of(RUN, 0).0, *b"6512000100");
    assert_eq!(session_of(7, 63).0, *b"000000073f");
}

#[test]
fn a_release_comes_whole_to_every_participant_and_its_departure_is_noted() {
    let mut ports = [participant(), participant()];
    let mut handoff = handoff(&GatewaySettings::default(), &ports, None);
    let at = SyncTime::from_nanos(5_000);
    // Fifty messages of 62 bytes with their lengths take three packets of 1,400 bytes.
    handoff.released(&release(10, &[60; 50]), at);
    for port in &mut ports {
        let all = taken(port.as_mut(), 3);
        assert!(all.iter().all(|arrival| arrival.datagram.len() <= 1_400));
        assert!(messages_of(&all).into_iter().eq((10..60).map(|n| (n + 1, n as u8))));
    }
    let counts = HandoffCounts { handed: 50, datagrams: 3, too_large: 0, dropped: 0 };
    assert_eq!(handoff.counts(), counts);
    let [RunLogRecord::Handed(handed)] = handoff.records[..] else {
        panic!("{:?}", handoff.records)
    };
    assert_eq!((handed.first_message, handed.count, handed.released_ns), (10, 50, 5_000));
    assert!(handed.handed_ns > 5_000 && handoff.handed_us().max > 0.0);
    assert_eq!(handoff.sessions(), ["6512000100"]);
}

/// Checks who was served first, over many releases.
fn check_turns(handoff: &mut Handoff, ports: &mut [Box<dyn Port>]) {
    const RELEASES: u64 = 30;
    let all = ports.len();
    (0..RELEASES).for_each(|n| handoff.released(&release(n, &[40]), SyncTime::from_nanos(1)));
    let stamps_of = |port: &mut Box<dyn Port>| {
        let arrivals = taken(port.as_mut(), RELEASES as usize);
        arrivals.iter().map(|arrival| arrival.received).collect::<Vec<_>>()
    };
    let stamps: Vec<_> = ports.iter_mut().map(stamps_of).collect();
    let winner = |n: usize| (0..all).min_by_key(|place| stamps[*place][n]).unwrap();
    let mut first = vec![0; all];
    (0..RELEASES as usize).for_each(|n| first[winner(n)] += 1);
    // Each participant is due an equal share. Half of it is enough here, because the stamps of two
    // sockets are only as exact as the readings of the clock.
    let least = RELEASES as usize / (2 * all);
    assert!(first.iter().all(|times| *times >= least), "first in {first:?} releases");
}

#[test]
fn no_participant_is_always_first() {
    let mut ports = [participant(), participant(), participant()];
    check_turns(&mut handoff(&GatewaySettings::default(), &ports, None), &mut ports);
    for all in [2, 3] {
        let (settings, ports) = (sealed_settings(), &mut ports[..all]);
        let node = gateway_node(ports);
        let mut handoff = handoff(&settings, ports, None);
        let sealers = || keys().map(|key| PlainSealer::new(&key, [9; 16]));
        assert!(handoff.seal_for(&node, sealers().into_iter().take(1).collect()).is_err());
        handoff.seal_for(&node, sealers().into_iter().take(all).collect()).unwrap();
        check_turns(&mut handoff, ports);
    }
}

#[test]
fn a_successor_of_the_root_goes_on_with_the_session() {
    let mut ports = [participant()];
    for protocol in [HandoffProtocol::Mold, HandoffProtocol::Plain] {
        let settings = GatewaySettings { protocol, ..GatewaySettings::default() };
        let mut handoff = handoff(&settings, &ports, None);
        handoff.released(&release(0, &[40]), SyncTime::from_nanos(7));
        let later = Release { epoch: RUN + 1, ..release(1, &[40]) };
        handoff.released(&later, SyncTime::from_nanos(8));
        let arrivals = taken(ports[0].as_mut(), 2);
        if protocol == HandoffProtocol::Mold {
            assert!(messages_of(&arrivals).into_iter().eq([(1, 0), (2, 1)]));
        }
        let run_of = |arrival: &Arrival| PlainHead::decode(&arrival.datagram).unwrap().0.run;
        let is_plain = protocol == HandoffProtocol::Plain;
        assert!(!is_plain || arrivals.iter().all(|arrival| run_of(arrival) == RUN));
    }
}

#[test]
fn what_is_to_be_sealed_never_leaves_in_the_clear() {
    let mut ports = [participant()];
    let mut handoff = handoff(&sealed_settings(), &ports, None);
    handoff.released(&release(0, &[40]), SyncTime::from_nanos(7));
    let counts = handoff.counts();
    assert_eq!((counts.handed, counts.dropped), (0, 1), "without a key");
    assert_eq!(ports[0].receive(&mut Vec::new()), 0);
}

#[test]
fn a_message_that_fits_no_packet_is_a_hole_and_is_counted() {
    let mut port = [participant()];
    let settings = GatewaySettings { packet_bytes: 200, ..GatewaySettings::default() };
    let rings: Rings = [Mutex::new(None)].into();
    let mut handoff = handoff(&settings, &port, Some(Arc::clone(&rings)));
    handoff.released(&release(0, &[50, 500, 60]), SyncTime::from_nanos(1));
    assert_eq!(messages_of(&taken(port[0].as_mut(), 2)), [(1, 0), (3, 2)]);
    // A release without a message that fits is handed on by nothing.
    handoff.released(&release(3, &[500]), SyncTime::from_nanos(1));
    assert_eq!(
        handoff.counts(),
        HandoffCounts { handed: 2, datagrams: 2, too_large: 2, dropped: 0 }
    );
    assert!(handoff.departing.is_empty());
    let kept = rings[0].lock().unwrap();
    let request = MoldRequest { session: session_of(RUN, 0), sequence: 3, count: 1 };
    assert_eq!(kept.as_ref().unwrap().answer(&request, 200).unwrap().count(), 1);
}

#[test]
fn plain_datagrams_have_number_deadline_and_release() {
    let mut port = [participant()];
    let settings =
        GatewaySettings { protocol: HandoffProtocol::Plain, ..GatewaySettings::default() };
    let mut handoff = handoff(&settings, &port, None);
    handoff.released(&release(7, &[5, 6]), SyncTime::from_nanos(1_234));
    handoff.lost(0, Some(9), Some(3));
    handoff.finish(0, MonotonicClock::now());
    handoff.keep_alive(MonotonicClock::now());
    let all = taken(port[0].as_mut(), 4);
    let heads: Vec<_> = all.iter().map(|a| PlainHead::decode(&a.datagram).unwrap()).collect();
    let of = |kind, number| PlainHead { kind, ..plain_head(0, RUN, number) };
    let message = PlainHead {
        format: Format(3),
        deadline_ns: 1_000,
        released_ns: 1_234,
        ..of(PlainKind::Message, 7)
    };
    assert_eq!(heads[0], (message, &[7; 5][..]));
    assert_eq!(heads[1], (PlainHead { number: 8, ..message }, &[8; 6][..]));
    assert_eq!(heads[2].0, of(PlainKind::Lost(3), 9));
    assert_eq!(heads[3].0, of(PlainKind::End, 12));
}

#[test]
fn a_silent_session_says_that_it_is_alive_and_where_it_is() {
    let mut port = [participant()];
    let mut handoff = handoff(&GatewaySettings::default(), &port, None);
    assert_eq!(handoff.until(), None, "without a place there is no session");
    handoff.begin(0, RUN, 4);
    handoff.keep_alive(MonotonicClock::now());
    let now = MonotonicClock::now();
    assert!(handoff.until().unwrap() > now);
    handoff.keep_alive(now);
    handoff.keep_alive(now + Duration::from_secs(2));
    handoff.finish(0, now);
    handoff.keep_alive(now);
    let all = taken(port[0].as_mut(), 3);
    let packets: Vec<_> = all.iter().map(|a| MoldPacket::decode(&a.datagram).unwrap()).collect();
    assert!(packets.iter().all(|packet| packet.sequence == 5), "the next sequence");
    let bodies = packets.iter().map(|packet| packet.body).collect::<Vec<_>>();
    assert_eq!(bodies, [Body::Heartbeat, Body::Heartbeat, Body::EndOfSession]);
}

#[test]
fn a_server_that_reads_the_ring_delays_no_release() {
    let port = [participant()];
    let rings: Rings = [Mutex::new(None)].into();
    let mut handoff = handoff(&GatewaySettings::default(), &port, Some(Arc::clone(&rings)));
    handoff.released(&release(0, &[40]), SyncTime::from_nanos(1));
    let reading = rings[0].lock().unwrap();
    assert_eq!(reading.as_ref().unwrap().next_sequence(), 2);
    handoff.released(&release(1, &[40, 40]), SyncTime::from_nanos(1));
    assert_eq!(handoff.channels[0].unkept.len(), 2);
    drop(reading);
    handoff.retry();
    assert_eq!(rings[0].lock().unwrap().as_ref().unwrap().next_sequence(), 4);
}

fn sealed_settings() -> GatewaySettings {
    GatewaySettings { protocol: HandoffProtocol::Sealed, ..GatewaySettings::default() }
}

fn keys() -> [SharedKey; 3] {
    [1, 2, 3].map(|byte| SharedKey::new(1, [byte; 32]))
}

#[test]
fn sealed_copies_open_for_their_participant_alone() {
    let mut ports = [participant(), participant(), participant()];
    let (settings, node) = (sealed_settings(), gateway_node(&ports));
    let mut handoff = handoff(&settings, &ports, None);
    let sealers = keys().map(|key| PlainSealer::new(&key, [9; 16])).into();
    handoff.seal_for(&node, sealers).unwrap();
    handoff.released(&release(0, &[40]), SyncTime::from_nanos(7));
    handoff.released(&release(1, &[40]), SyncTime::from_nanos(8));
    handoff.lost(0, Some(2), Some(3));
    handoff.finish(0, MonotonicClock::now());
    handoff.keep_alive(MonotonicClock::now());
    let mut openers = keys().map(PlainOpener::new);
    for (at, port) in ports.iter_mut().enumerate() {
        let arrivals = taken(port.as_mut(), 4);
        let of_other = openers[(at + 1) % 3].open(&arrivals[0].datagram);
        assert_eq!(of_other, None, "the copy of participant {at} is for it alone");
        let mut kind_of = |arrival: &Arrival| {
            let plain = openers[at].open(&arrival.datagram).unwrap();
            let (head, _) = PlainHead::decode(&plain).unwrap();
            (head.kind, head.number)
        };
        let wanted = [
            (PlainKind::Message, 0),
            (PlainKind::Message, 1),
            (PlainKind::Lost(3), 2),
            (PlainKind::End, 5),
        ];
        assert_eq!(arrivals.iter().map(&mut kind_of).collect::<Vec<_>>(), wanted);
    }
    let counts = handoff.counts();
    assert_eq!((counts.handed, counts.datagrams, counts.dropped), (2, 2, 0));
}
