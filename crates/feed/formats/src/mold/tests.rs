use super::*;
use proptest::prelude::*;

const SESSION: SessionId = SessionId(*b"  20191230");

fn packet(sequence: u64, messages: &[&[u8]]) -> Bytes {
    let mut builder = PacketBuilder::new(SESSION, sequence, 1400);
    for message in messages {
        assert!(builder.push(message));
    }
    Bytes::from(builder.finish())
}

fn drain(tracker: &mut Tracker) -> Vec<ArbiterEvent> {
    core::iter::from_fn(|| tracker.poll()).collect()
}

fn message(sequence: u64, bytes: &'static [u8]) -> ArbiterEvent {
    ArbiterEvent::Message { sequence, bytes: Bytes::from_static(bytes) }
}

#[test]
fn a_packet_comes_back_as_it_went() {
    let bytes = packet(7, &[b"one", b"", b"three"]);
    let read = MoldPacket::decode(&bytes).unwrap();
    assert_eq!((read.session, read.sequence, read.next_sequence()), (SESSION, 7, 10));
    let Body::Messages(messages) = read.body else { panic!("{read:?}") };
    assert_eq!(messages.collect::<Vec<_>>(), [&b"one"[..], b"", b"three"]);
    assert_eq!(&bytes[..20], b"  20191230\0\0\0\0\0\0\0\x07\0\x03");
    assert_eq!(MoldPacket::decode(&heartbeat(SESSION, 3)).unwrap().body, Body::Heartbeat);
    assert_eq!(MoldPacket::decode(&end_of_session(SESSION, 3)).unwrap().body, Body::EndOfSession);
    let request = MoldRequest { session: SESSION, sequence: 5, count: 9 };
    assert_eq!(MoldRequest::decode(&request.encode()), Ok(request));
}

#[test]
fn a_packet_cut_anywhere_is_refused_with_its_lengths() {
    let bytes = packet(1, &[b"one", b"two"]);
    for end in 0..bytes.len() {
        let error = MoldPacket::decode(&bytes[..end]).unwrap_err();
        assert!(matches!(error, MoldError::Truncated { found, .. } if found == end), "{error}");
    }
    let longer = [&bytes[..], b"x"].concat();
    assert_eq!(MoldPacket::decode(&longer), Err(MoldError::Trailing { found: 1 }));
    let last = PacketBuilder { count: 1, ..PacketBuilder::new(SESSION, u64::MAX, 100) }.finish();
    let refused = Err(MoldError::SequenceOverflow { sequence: u64::MAX });
    assert_eq!(MoldPacket::decode(&[&last[..], b"\0\0"].concat()), refused);
}

/// Found by fuzzing.
#[test]
fn the_last_sequence_is_tracked_without_overflow() {
    let mut tracker = Tracker::new(None, ArbiterLimits::default());
    tracker.datagram(FeedSide::A, &packet(u64::MAX - 1, &[b"last"])).unwrap();
    assert_eq!(drain(&mut tracker), [message(u64::MAX - 1, b"last")]);
}

#[test]
fn a_full_packet_takes_no_more() {
    let mut builder = PacketBuilder::new(SESSION, 1, 20 + 5);
    assert!(!builder.push(b"four"));
    assert!(builder.push(b"abc"));
    assert!(!builder.push(b""));
    assert_eq!((builder.count(), builder.finish().len()), (1, 25));
}

#[test]
fn a_gap_is_reported_requested_and_filled() {
    let mut tracker = Tracker::new(Some(1), ArbiterLimits::default());
    tracker.datagram(FeedSide::A, &packet(1, &[b"1"])).unwrap();
    tracker.datagram(FeedSide::A, &packet(4, &[b"4"])).unwrap();
    assert_eq!(drain(&mut tracker), [message(1, b"1"), ArbiterEvent::Gap(2..4)]);
    assert_eq!(tracker.request(), Some(MoldRequest { session: SESSION, sequence: 2, count: 2 }));
    tracker.datagram(FeedSide::B, &packet(1, &[b"1", b"2", b"3"])).unwrap();
    assert_eq!(drain(&mut tracker), [message(2, b"2"), message(3, b"3"), message(4, b"4")]);
    assert_eq!(tracker.request(), None);
    assert_eq!(tracker.counts().ignored, 1);
}

fn end(session: SessionId, sequence: u64) -> Bytes {
    Bytes::copy_from_slice(&end_of_session(session, sequence))
}

fn say_end(tracker: &mut Tracker, sequence: u64) {
    (0..END_PACKETS).for_each(|_| tracker.datagram(FeedSide::A, &end(SESSION, sequence)).unwrap());
}

const NEXT: SessionId = SessionId(*b"  20191231");

#[test]
fn the_end_of_a_session_waits_for_its_holes_and_lets_the_next_one_in() {
    let mut tracker = Tracker::new(None, ArbiterLimits::default());
    tracker.datagram(FeedSide::A, &packet(5, &[b"5"])).unwrap();
    say_end(&mut tracker, 7);
    assert!(!tracker.is_ended());
    let first = PacketBuilder::new(NEXT, 1, 100).finish().into();
    let refused = Err(MoldError::OtherSession { running: SESSION, found: NEXT });
    assert_eq!(tracker.datagram(FeedSide::A, &first), refused);
    tracker.abandon();
    assert_eq!(
        drain(&mut tracker),
        [message(5, b"5"), ArbiterEvent::Gap(6..7), ArbiterEvent::Lost(6..7)]
    );
    assert!(tracker.is_ended());
    tracker.datagram(FeedSide::A, &first).unwrap();
    assert_eq!(tracker.session(), Some(NEXT));
}

#[test]
fn no_single_packet_ends_a_session() {
    for end_at in [2, 1 << 60] {
        let mut tracker = Tracker::new(Some(1), ArbiterLimits::default());
        tracker.datagram(FeedSide::A, &packet(1, &[b"1"])).unwrap();
        tracker.datagram(FeedSide::A, &end(SESSION, end_at)).ok();
        tracker.datagram(FeedSide::B, &end(SESSION, end_at)).ok();
        assert!(!tracker.is_ended());
        tracker.datagram(FeedSide::A, &packet(2, &[b"2"])).unwrap();
        assert_eq!(drain(&mut tracker), [message(1, b"1"), message(2, b"2")]);
        let early = Err(MoldError::EarlyEnd { sequence: 2, expected: 3 });
        assert_eq!(tracker.datagram(FeedSide::A, &end(SESSION, 2)), early);
        assert!(!tracker.is_ended(), "a message stands behind the end");
    }
}

#[test]
fn yesterdays_end_begins_no_session_and_todays_messages_do() {
    let mut tracker = Tracker::new(None, ArbiterLimits::default());
    let refused = Err(MoldError::EndOfUnknown { found: SESSION });
    (0..9).for_each(|_| assert_eq!(tracker.datagram(FeedSide::A, &end(SESSION, 100)), refused));
    assert!(!tracker.is_ended());
    let mut today = PacketBuilder::new(NEXT, 1, 100);
    assert!(today.push(b"1"));
    tracker.datagram(FeedSide::A, &today.finish().into()).unwrap();
    assert_eq!(drain(&mut tracker), [message(1, b"1")]);
}

/// Otherwise a refused heartbeat names the session, and then the end in front of the first message
/// is taken.
#[test]
fn a_packet_that_is_refused_begins_no_session() {
    let mut tracker = Tracker::new(Some(1), ArbiterLimits::default());
    let far = Bytes::copy_from_slice(&heartbeat(SESSION, 1 << 60));
    assert!(matches!(tracker.datagram(FeedSide::A, &far), Err(MoldError::Far(_))));
    assert_eq!(tracker.session(), None);
    let refused = Err(MoldError::EndOfUnknown { found: SESSION });
    (0..9).for_each(|_| assert_eq!(tracker.datagram(FeedSide::A, &end(SESSION, 1)), refused));
    tracker.datagram(FeedSide::A, &packet(1, &[b"1"])).unwrap();
    assert_eq!(drain(&mut tracker), [message(1, b"1")]);
}

#[test]
fn a_session_that_is_left_gives_what_it_held_and_lets_another_in() {
    let mut tracker = Tracker::new(Some(1), ArbiterLimits::default());
    tracker.datagram(FeedSide::A, &packet(2, &[b"2"])).unwrap();
    tracker.leave();
    let expected = [ArbiterEvent::Gap(1..2), ArbiterEvent::Lost(1..2), message(2, b"2")];
    assert_eq!(drain(&mut tracker), expected);
    assert!(!tracker.is_ended());
    let mut failover = PacketBuilder::new(NEXT, 1, 100);
    assert!(failover.push(b"1"));
    tracker.datagram(FeedSide::B, &failover.finish().into()).unwrap();
    assert_eq!(drain(&mut tracker), [message(1, b"1")]);
}

proptest! {
    #[test]
    fn any_bytes_are_a_packet_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(packet) = MoldPacket::decode(&bytes)
            && let Body::Messages(messages) = packet.body
        {
            prop_assert_eq!(messages.count(), usize::from(packet.body.count()));
        }
        let _ = MoldRequest::decode(&bytes);
    }

    /// Fewer than [`FAR_PACKETS`] packets of any numbers, anywhere in a session: every message of
    /// the session is delivered and the session goes on.
    #[test]
    fn wild_packets_neither_end_nor_move_a_session(
        wild in prop::collection::vec((0usize..40, any::<u64>(), 0u16..3), 0..7),
    ) {
        let limits = ArbiterLimits { jump_max: 8, ..ArbiterLimits::default() };
        let mut tracker = Tracker::new(Some(1), limits);
        let mut delivered = Vec::new();
        let far = |sequence: u64| sequence > 100 && sequence < u64::MAX - 1;
        for at in 0..40 {
            for &(_, sequence, kind) in wild.iter().filter(|(place, ..)| *place == at) {
                let datagram = match kind {
                    _ if !far(sequence) => continue,
                    0 => packet(sequence, &[b"wild"]),
                    1 => Bytes::copy_from_slice(&heartbeat(SESSION, sequence)),
                    _ => end(SESSION, sequence),
                };
                prop_assert!(tracker.datagram(FeedSide::B, &datagram).is_err());
            }
            tracker.datagram(FeedSide::A, &packet(at as u64 + 1, &[b"true"])).unwrap();
            delivered.extend(drain(&mut tracker));
            prop_assert!(!tracker.is_ended());
        }
        let expected: Vec<ArbiterEvent> =
            (1..=40).map(|sequence| message(sequence, b"true")).collect();
        prop_assert_eq!(delivered, expected);
    }

    /// Two lossy, reordered sides that together lose nothing give every message once, in order.
    #[test]
    fn two_lossy_sides_make_one_whole_feed(
        order in Just((0..40u64).collect::<Vec<_>>()).prop_shuffle(),
        lost in prop::collection::vec(0u8..3, 40),
    ) {
        let mut tracker = Tracker::new(Some(1), ArbiterLimits::default());
        for sequence in order {
            let datagram = packet(sequence + 1, &[&sequence.to_le_bytes()]);
            let lost = lost[sequence as usize];
            if lost != 0 {
                tracker.datagram(FeedSide::A, &datagram).unwrap();
            }
            if lost != 1 {
                tracker.datagram(FeedSide::B, &datagram).unwrap();
            }
        }
        let sequences: Vec<u64> = drain(&mut tracker)
            .into_iter()
            .filter_map(|event| match event {
                ArbiterEvent::Message { sequence, .. } => Some(sequence),
                _ => None,
            })
            .collect();
        prop_assert_eq!(sequences, (1..=40).collect::<Vec<_>>());
    }
}
