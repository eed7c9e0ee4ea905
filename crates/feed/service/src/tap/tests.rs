use std::net::UdpSocket;

use evenfall_core::SharedKey;
use evenfall_feed_formats::codec;
use evenfall_feed_formats::mold::{MoldRequest, PacketBuilder, SessionId, end_of_session};
use evenfall_feed_formats::plain::sealed::PlainSealer;

use super::*;

const SESSION: SessionId = SessionId(*b"6512000100");

fn socket() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").unwrap()
}

/// The events up to the end of the feed, without notes.
fn events(tap: &mut Tap) -> Vec<TapEvent> {
    let until = MonotonicClock::now() + Duration::from_secs(20);
    let mut all = Vec::new();
    loop {
        match tap.next(until).unwrap() {
            TapEvent::Note(_) => {}
            TapEvent::Quiet => panic!("no end after {all:?}"),
            TapEvent::End => return all,
            event => all.push(event),
        }
    }
}

fn message(sequence: u64, format: Format, bytes: &'static [u8]) -> TapEvent {
    TapEvent::Message { sequence, format, bytes: Bytes::from_static(bytes) }
}

fn free_address() -> SocketAddr {
    evenfall_host::ports::free(Ipv4Addr::LOCALHOST.into()).unwrap()
}

#[test]
fn a_gap_is_asked_for_and_what_nobody_has_is_said() {
    let server = socket();
    let settings = TapSettings {
        request: Some(server.local_addr().unwrap()),
        from: Some(1),
        gap_timeout: Duration::from_millis(300),
        ..TapSettings::new(free_address())
    };
    let mut tap = Tap::open(&settings).unwrap();
    let side = socket();
    let packet = |sequence, messages: &[&[u8]]| {
        let mut packet = PacketBuilder::new(SESSION, sequence, 1_400);
        messages.iter().for_each(|message| assert!(packet.push(message)));
        packet.finish()
    };
    side.send_to(&packet(1, &[b"one"]), settings.address).unwrap();
    side.send_to(&packet(3, &[b"three"]), settings.address).unwrap();
    side.send_to(&packet(5, &[b"five"]), settings.address).unwrap();
    side.send_to(&packet(7, &[b"seven"]), settings.address).unwrap();
    for _ in 0..3 {
        side.send_to(&end_of_session(SESSION, 8), settings.address).unwrap();
    }
    // The server has the second message, and neither the fourth nor the sixth.
    let serving = std::thread::spawn(move || {
        let mut buffer = [0; 100];
        loop {
            let (length, from) = server.recv_from(&mut buffer).unwrap();
            let request = MoldRequest::decode(&buffer[..length]).unwrap();
            if request.sequence == 2 {
                server.send_to(&packet(2, &[b"two"]), from).unwrap();
                return;
            }
        }
    });
    let itch = codec::ITCH;
    let wanted = [
        message(1, itch, b"one"),
        message(2, itch, b"two"),
        message(3, itch, b"three"),
        TapEvent::Lost(4..5),
        message(5, itch, b"five"),
        TapEvent::Lost(6..7),
        message(7, itch, b"seven"),
    ];
    assert_eq!(events(&mut tap), wanted);
    serving.join().unwrap();
    let status = tap.status();
    assert_eq!((status.messages, status.rerequested, status.lost), (5, 1, 2), "{status:?}");
    assert_eq!((status.session.as_str(), status.gaps), ("6512000100", 3));
}

#[test]
fn plain_datagrams_are_counted_and_gaps_are_said() {
    let settings = TapSettings { protocol: TapProtocol::Plain, ..TapSettings::new(free_address()) };
    let mut tap = Tap::open(&settings).unwrap();
    let side = socket();
    let format = Format(3);
    let send = |kind, tree, number, message: &[u8]| {
        let head = PlainHead { kind, format, tree, run: 7, number, deadline_ns: 0, released_ns: 0 };
        let datagram = [&head.encode()[..], &head.encode_body(), message].concat();
        side.send_to(&datagram, settings.address).unwrap();
    };
    send(PlainKind::Heartbeat, 0, 10, b"");
    send(PlainKind::Message, 0, 10, b"ten");
    send(PlainKind::Message, 1, 11, b"of another tree");
    send(PlainKind::Message, 0, u64::MAX, b"a forged number");
    send(PlainKind::Lost(u64::MAX), 0, 11, b"");
    side.send_to(b"hello", settings.address).unwrap();
    send(PlainKind::Message, 0, 13, b"thirteen");
    send(PlainKind::Message, 0, 12, b"too late");
    send(PlainKind::Lost(2), 0, 14, b"");
    send(PlainKind::End, 0, 17, b"");
    let wanted = [
        message(10, format, b"ten"),
        TapEvent::Lost(11..13),
        message(13, format, b"thirteen"),
        TapEvent::Lost(14..16),
        TapEvent::Lost(16..17),
    ];
    assert_eq!(events(&mut tap), wanted);
    let status = tap.status();
    assert_eq!((status.messages, status.lost, status.ignored), (2, 5, 1), "{status:?}");
    assert_eq!((status.refused, status.session.as_str()), (3, "0000000700"));
}

/// Sends plain datagrams of tree 0, sealed under a key and a salt.
fn seal_to(settings: &TapSettings, key: &SharedKey, run: u32, kinds: &[(PlainKind, u64)]) {
    let (side, format) = (socket(), Format(3));
    let mut sealer = PlainSealer::new(key, [run as u8; 16]);
    for &(kind, number) in kinds {
        let head = PlainHead { kind, format, tree: 0, run, number, deadline_ns: 0, released_ns: 0 };
        let sealed = sealer.seal(&head.encode(), &head.encode_body());
        side.send_to(&sealed, settings.address).unwrap();
    }
}

#[test]
fn sealed_datagrams_of_a_run_before_lock_nobody_out_and_a_wrong_key_is_said() {
    let [own, other] = [1, 2].map(|byte| SharedKey::new(1, [byte; 32]));
    let protocol = TapProtocol::Sealed(own.clone());
    let settings = TapSettings { protocol, ..TapSettings::new(free_address()) };
    let mut tap = Tap::open(&settings).unwrap();
    let far = JUMP_MAX * 3;
    seal_to(&settings, &other, 8, &[(PlainKind::Message, 0), (PlainKind::Message, 1)]);
    seal_to(&settings, &own, 6, &[(PlainKind::Message, 4)]);
    seal_to(&settings, &own, 7, &[(PlainKind::Message, 0), (PlainKind::Lost(far), 1)]);
    seal_to(&settings, &own, 6, &[(PlainKind::End, 5)]);
    seal_to(&settings, &own, 7, &[(PlainKind::Message, 2 * far), (PlainKind::End, 2 * far + 1)]);
    let mut notes = Vec::new();
    let until = MonotonicClock::now() + Duration::from_secs(20);
    let mut sequences = Vec::new();
    loop {
        match tap.next(until).unwrap() {
            TapEvent::Note(text) => notes.push(text),
            TapEvent::Message { sequence, .. } => sequences.push(sequence),
            TapEvent::Lost(_) => {}
            TapEvent::Quiet => panic!("no end after {sequences:?}"),
            TapEvent::End => break,
        }
    }
    assert_eq!(sequences, [4, 0, 2 * far]);
    assert!(notes[0].contains("is this the key of this participant"), "{notes:?}");
    assert!(notes[2].contains("run 00000007"), "{notes:?}");
    let status = tap.status();
    assert_eq!((status.messages, status.lost), (3, 2 * far - 1), "{status:?}");
    assert_eq!((status.refused, status.session.as_str()), (3, "0000000700"));
}
