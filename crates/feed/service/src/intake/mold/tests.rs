use super::*;
use evenfall_core::StampedBy;
use evenfall_feed_formats::itch::SystemEvent;
use evenfall_feed_formats::mold::{PacketBuilder, heartbeat};

const OLD: SessionId = SessionId(*b"       old");
const NEW: SessionId = SessionId(*b"       new");

fn at(ms: u64) -> Timestamp {
    Timestamp::from_nanos(ms * 1_000_000)
}

/// An intake of side A on loopback, which no packet reaches but the packets of the test.
fn intake() -> Mold {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    Mold::open(address, &Feed::default(), false, &Io::default()).unwrap()
}

/// Packets of these numbers, a millisecond apart, from a port of 127.0.0.1.
fn send(
    intake: &mut Mold,
    session: SessionId,
    port: u16,
    sequences: core::ops::Range<u64>,
    ms: u64,
) -> Vec<u16> {
    for (sequence, ms) in sequences.zip(ms..) {
        let mut packet = PacketBuilder::new(session, sequence, 1_400);
        let event = SystemEvent { tracking_number: sequence as u16, ..Default::default() };
        assert!(packet.push(&event.encode()));
        hear(intake, port, packet.finish(), ms);
    }
    taken(intake)
}

fn hear(intake: &mut Mold, port: u16, packet: Vec<u8>, ms: u64) {
    let from = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    intake.datagram(0, &Arrival::new(from, packet.into(), at(ms), StampedBy::User));
}

/// Tracking numbers of the messages that the intake has ready.
fn taken(intake: &mut Mold) -> Vec<u16> {
    let ready = intake.ready.drain(..);
    ready
        .map(|ready| u16::from_be_bytes([ready.message.bytes[3], ready.message.bytes[4]]))
        .collect()
}

fn numbers(range: core::ops::Range<u16>) -> Vec<u16> {
    range.collect()
}

#[test]
fn a_new_session_is_followed_from_its_first_packet_when_the_old_one_was_silent() {
    // The sender starts again at the same address, under another port.
    for port in [7, 8] {
        let mut intake = intake();
        assert_eq!(send(&mut intake, OLD, 7, 1..11, 0), numbers(1..11));
        assert_eq!(send(&mut intake, NEW, port, 1..11, 7_000), numbers(1..11));
        let status = intake.status().unwrap();
        assert_eq!((status.delivered, status.lost, status.other_sessions), (20, 0, 0));
        assert_eq!(status.session, "new");
    }
}

#[test]
fn packets_of_a_new_session_are_kept_until_the_old_one_is_silent() {
    for port in [7, 8] {
        let mut intake = intake();
        send(&mut intake, OLD, 7, 1..11, 0);
        assert_eq!(send(&mut intake, NEW, port, 1..6, 1_000), [0_u16; 0]);
        hear(&mut intake, port, heartbeat(NEW, 6).to_vec(), 6_000);
        assert_eq!(taken(&mut intake), numbers(1..6), "port {port}");
        assert_eq!(intake.status().unwrap().lost, 0);
    }
}

#[test]
fn packets_of_another_session_are_dropped_and_counted_when_the_old_one_goes_on() {
    let mut intake = intake();
    send(&mut intake, OLD, 7, 1..11, 0);
    assert_eq!(send(&mut intake, NEW, 7, 1..6, 1_000), [0_u16; 0]);
    assert_eq!(send(&mut intake, OLD, 7, 11..12, 2_000), [11]);
    assert_eq!(send(&mut intake, NEW, 7, 6..7, 3_000), [0_u16; 0]);
    assert_eq!(intake.status().unwrap().other_sessions, 5);
}

#[test]
fn a_side_that_goes_back_by_hundreds_is_told_once() {
    let mut intake = intake();
    send(&mut intake, OLD, 7, 1..400, 0);
    intake.news();
    assert_eq!(send(&mut intake, OLD, 7, 1..300, 1_000), [0_u16; 0]);
    let news = intake.news();
    assert!(news.len() == 1 && news[0].1.contains("goes back from sequence 400 to 1"), "{news:?}");
    assert_eq!(intake.status().unwrap().copies_ignored, 299);
}

#[test]
fn a_sender_that_begins_again_with_other_messages_is_followed_and_told() {
    let mut intake = intake();
    send(&mut intake, OLD, 7, 1..400, 0);
    intake.news();
    for n in 1..20 {
        let mut packet = PacketBuilder::new(OLD, n, 1_400);
        assert!(packet.push(format!("S\0\0{}other bytes", n as u8 as char).as_bytes()));
        hear(&mut intake, 7, packet.finish(), 1_000 + n);
    }
    assert_eq!(taken(&mut intake).len(), 19);
    let status = intake.status().unwrap();
    assert_eq!((status.restarts, status.reused, status.lost), (1, 0, 0));
    assert!(intake.news().iter().any(|(_, text)| text.contains("begins anew at sequence 1")));
}

#[test]
fn every_range_that_is_given_up_is_told_once_and_in_its_place() {
    let mut intake = intake();
    for sequence in (1..402).step_by(2) {
        let ready = send(&mut intake, OLD, 7, sequence..sequence + 1, 0);
        assert_eq!(ready.len(), usize::from(sequence == 1));
    }
    intake.recover(at(0));
    intake.recover(at(60_000));
    assert_eq!(intake.status().unwrap().lost, 200);
    // Message 3 is the next one, and only the message before it is missing there.
    assert_eq!(intake.sequence(), Some(3));
    assert!(intake.take_lost().iter().eq([&(2..3)]));
    assert_eq!(taken(&mut intake).len(), 200);
    let rest = intake.take_lost();
    assert!(rest.iter().map(|range| range.start).eq((4..402).step_by(2)), "{rest:?}");
    assert!(intake.take_lost().is_empty());
}
