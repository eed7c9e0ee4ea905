use std::net::UdpSocket;

use bytes::Bytes;
use evenfall_core::Prng;
use evenfall_feed_formats::mold::MoldPacket;
use evenfall_feed_formats::mold::replay::ReplayRing;

use super::*;
use crate::gateway::handoff::session_of;

const RUN: u32 = 0x6512_0001;

fn node() -> GatewayNode {
    GatewayNode {
        name: "gw".into(),
        participants: vec!["127.0.0.1:7500".parse().unwrap()],
        rerequest: Some("127.0.0.1:0".parse().unwrap()),
        participant_keys: Vec::new(),
        requesters: vec!["127.0.0.1".parse().unwrap()],
        interface: None,
    }
}

/// A desk of two trees, of which the second has a hundred messages.
fn desk(settings: &GatewaySettings) -> RequestDesk {
    let mut ring = ReplayRing::new(session_of(RUN, 1), 1, settings.replay_limits());
    (0..100_u8).for_each(|n| ring.push(Bytes::from(vec![n; 40])));
    let rings: Rings = [Mutex::new(None), Mutex::new(Some(ring))].into();
    RequestDesk::new(settings, &node(), rings)
}

fn request(tree: u32, sequence: u64, count: u16) -> [u8; 20] {
    MoldRequest { session: session_of(RUN, tree), sequence, count }.encode()
}

fn answer(desk: &mut RequestDesk, from: &str, bytes: &[u8]) -> Result<u16, RequestRefusal> {
    let now = Timestamp::from_nanos(1);
    desk.answer(now, from.parse().unwrap(), bytes).map(|packet| packet.count())
}

#[test]
fn each_refusal_has_its_reason() {
    let mut desk = desk(&GatewaySettings::default());
    let ours = "127.0.0.1:40000";
    assert_eq!(answer(&mut desk, ours, &request(1, 10, 3)), Ok(3));
    assert_eq!(answer(&mut desk, ours, &request(1, 10, u16::MAX - 1)), Ok(32), "one packet");
    let refused = |outcome: Result<u16, RequestRefusal>| outcome.unwrap_err();
    let stranger = answer(&mut desk, "127.0.0.2:40000", &request(1, 10, 3));
    assert_eq!(refused(stranger), RequestRefusal::Stranger);
    assert_eq!(refused(answer(&mut desk, ours, b"hello")), RequestRefusal::Malformed);
    assert_eq!(refused(answer(&mut desk, ours, &[0; 2_000])), RequestRefusal::Malformed);
    assert_eq!(refused(answer(&mut desk, ours, &request(1, 101, 1))), RequestRefusal::NotSent);
    assert_eq!(refused(answer(&mut desk, ours, &request(1, 0, 1))), RequestRefusal::NotKept);
    for tree in [0, 2, 255] {
        let other = answer(&mut desk, ours, &request(tree, 1, 1));
        assert_eq!(refused(other), RequestRefusal::OtherSession, "tree {tree}");
    }
    let yesterday = MoldRequest { session: SessionId(*b"  20191230"), sequence: 1, count: 1 };
    assert_eq!(refused(answer(&mut desk, ours, &yesterday.encode())), RequestRefusal::OtherSession);
}

#[test]
fn a_requester_of_everything_gets_its_rate_and_no_more() {
    let settings = GatewaySettings { request_burst: 5, ..GatewaySettings::default() };
    let mut desk = desk(&settings);
    let outcomes: Vec<_> =
        (0..500).map(|_| answer(&mut desk, "127.0.0.1:1", &request(1, 1, 0xfffe))).collect();
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 5);
    assert_eq!(outcomes[499], Err(RequestRefusal::TooFast));
}

#[test]
fn any_bytes_at_the_port_are_counted_and_the_server_goes_on() {
    // A rate that no test reaches, so that the last request gets its answer.
    let settings = GatewaySettings {
        requests_per_second: 1_000_000,
        request_burst: 1_000_000,
        requests_per_second_total: 1_000_000,
        ..GatewaySettings::default()
    };
    let desk = desk(&settings);
    let server = RerequestServer::start(node().rerequest.unwrap(), false, desk).unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut prng = Prng::new(43);
    let mut sent = 0;
    for length in [0, 1, 19, 20, 21, 40, 1_400, 9_000] {
        for _ in 0..20 {
            let mut bytes: Vec<u8> = (0..length).map(|_| prng.next_u64() as u8).collect();
            if length == 20 {
                bytes[..10].copy_from_slice(&session_of(RUN, 1).0);
                bytes[10..17].fill(0);
            }
            socket.send_to(&bytes, server.address()).unwrap();
            sent += u64::from(length <= 2_048);
        }
    }
    // Every answer is a packet of our session, and not longer than a packet.
    let (mut buffer, mut answers) = (vec![0; 65_536], 0);
    let mut ask = || {
        socket.send_to(&request(1, 98, 50), server.address()).unwrap();
        sent += 1;
        std::iter::from_fn(|| {
            let (length, _) = socket.recv_from(&mut buffer).ok()?;
            let packet = MoldPacket::decode(&buffer[..length]).expect("a packet");
            assert!(length <= settings.packet_bytes && packet.session == session_of(RUN, 1));
            answers += 1;
            Some((packet.sequence, packet.body.count()))
        })
        .any(|answer| answer == (98, 3))
    };
    assert!((0..50).any(|_| ask()), "the server answers after everything");
    let counts = server.counts();
    assert!(counts.requests <= sent && counts.refused.iter().sum::<u64>() > 20, "{counts:?}");
    assert!(counts.answers >= answers, "{counts:?}");
    drop(server);
}
