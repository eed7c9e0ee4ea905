use super::*;
use proptest::prelude::*;

fn body(sequence: u64) -> Bytes {
    Bytes::from(sequence.to_le_bytes().to_vec())
}

fn drain(arbiter: &mut Arbiter) -> Vec<ArbiterEvent> {
    core::iter::from_fn(|| arbiter.poll()).collect()
}

fn message(sequence: u64) -> ArbiterEvent {
    ArbiterEvent::Message { sequence, bytes: body(sequence) }
}

#[test]
fn a_hole_on_one_side_is_filled_by_the_other() {
    let mut arbiter = Arbiter::new(Some(1), ArbiterLimits::default());
    arbiter.offer(FeedSide::A, 1, body(1)).unwrap();
    arbiter.offer(FeedSide::A, 3, body(3)).unwrap();
    assert_eq!(drain(&mut arbiter), [message(1), ArbiterEvent::Gap(2..3)]);
    arbiter.offer(FeedSide::B, 1, body(1)).unwrap();
    arbiter.offer(FeedSide::B, 2, body(2)).unwrap();
    arbiter.offer(FeedSide::B, 3, body(3)).unwrap();
    assert_eq!(drain(&mut arbiter), [message(2), message(3)]);
    let counts = arbiter.counts();
    assert_eq!((counts.first_a, counts.first_b, counts.ignored), (2, 1, 2));
}

#[test]
fn a_full_hold_gives_the_first_hole_up_and_says_so() {
    let limits = ArbiterLimits { messages_max: 2, bytes_max: 1 << 10, ..ArbiterLimits::default() };
    let mut arbiter = Arbiter::new(Some(1), limits);
    for sequence in [3, 4, 6] {
        arbiter.offer(FeedSide::A, sequence, body(sequence)).unwrap();
    }
    let expected = [
        ArbiterEvent::Gap(1..3),
        ArbiterEvent::Gap(5..6),
        ArbiterEvent::Lost(1..3),
        message(3),
        message(4),
    ];
    assert_eq!(drain(&mut arbiter), expected);
    assert_eq!((arbiter.missing().next(), arbiter.missing().count()), (Some(5..6), 1));
    assert_eq!(arbiter.held(), (1, 8));
}

#[test]
fn a_heartbeat_shows_a_hole_at_the_end() {
    let mut arbiter = Arbiter::new(None, ArbiterLimits::default());
    arbiter.offer(FeedSide::A, 7, body(7)).unwrap();
    arbiter.announce(10).unwrap();
    arbiter.announce(10).unwrap();
    assert_eq!(drain(&mut arbiter), [message(7), ArbiterEvent::Gap(8..10)]);
    arbiter.abandon();
    arbiter.abandon();
    assert_eq!(drain(&mut arbiter), [ArbiterEvent::Lost(8..10)]);
    assert_eq!(arbiter.next_sequence(), Some(10));
}

#[test]
fn the_largest_sequence_does_not_overflow() {
    let mut arbiter = Arbiter::new(None, ArbiterLimits::default());
    arbiter.offer(FeedSide::A, u64::MAX, body(0)).unwrap();
    arbiter.offer(FeedSide::A, u64::MAX - 1, body(0)).unwrap_err();
    arbiter.announce(u64::MAX).unwrap();
    assert_eq!(arbiter.next_sequence(), Some(u64::MAX));
}

#[test]
fn one_wild_sequence_does_not_move_the_feed() {
    for wild in [1 << 60, u64::MAX - 1] {
        let mut arbiter = Arbiter::new(Some(1), ArbiterLimits::default());
        arbiter.offer(FeedSide::A, 1, body(1)).unwrap();
        let far = SequenceJump { sequence: wild, expected: 2 };
        assert_eq!(arbiter.offer(FeedSide::A, wild, body(0)), Err(far));
        assert_eq!(arbiter.announce(wild), Err(far));
        arbiter.offer(FeedSide::A, 2, body(2)).unwrap();
        assert_eq!(drain(&mut arbiter), [message(1), message(2)]);
        assert_eq!((arbiter.missing().next(), arbiter.counts().far), (None, 2));
    }
}

#[test]
fn packets_that_follow_each_other_from_a_far_place_are_believed() {
    let mut arbiter = Arbiter::new(Some(1), ArbiterLimits::default());
    arbiter.offer(FeedSide::A, 1, body(1)).unwrap();
    let far = 1 << 30;
    for sequence in far..far + 7 {
        arbiter.offer(FeedSide::A, sequence, body(sequence)).unwrap_err();
        arbiter.offer(FeedSide::B, sequence, body(sequence)).unwrap_err();
    }
    arbiter.offer(FeedSide::A, far + 7, body(far + 7)).unwrap();
    assert_eq!(drain(&mut arbiter), [message(1), ArbiterEvent::Gap(2..far)]);
    arbiter.abandon();
    let all: Vec<ArbiterEvent> =
        [ArbiterEvent::Lost(2..far)].into_iter().chain((far..far + 8).map(message)).collect();
    assert_eq!(drain(&mut arbiter), all);
    assert_eq!((arbiter.counts().jumps, arbiter.counts().far), (1, 0));
}

#[test]
fn a_far_place_is_not_believed_while_the_feed_goes_on_where_it_was() {
    let mut arbiter = Arbiter::new(Some(0), ArbiterLimits::default());
    for sequence in 0..50 {
        arbiter.offer(FeedSide::A, sequence, body(sequence)).unwrap();
        arbiter.offer(FeedSide::B, (1 << 40) + sequence, body(0)).unwrap_err();
    }
    assert_eq!((arbiter.counts().delivered, arbiter.counts().far), (50, 50));
}

#[test]
fn a_wild_first_packet_does_not_choose_the_start_for_good() {
    let mut arbiter = Arbiter::new(None, ArbiterLimits::default());
    arbiter.offer(FeedSide::A, 1 << 60, body(0)).unwrap();
    for sequence in 100..200 {
        arbiter.offer(FeedSide::A, sequence, body(sequence)).ok();
    }
    let delivered = drain(&mut arbiter);
    assert_eq!(delivered[1], ArbiterEvent::Restart(100));
    assert_eq!(delivered[2..], (100..200).map(message).collect::<Vec<_>>());
}

/// A message of a later session, under a number that an earlier session used.
fn later(sequence: u64) -> Bytes {
    Bytes::from(format!("later {sequence}"))
}

/// Offers copies of both sides, and returns the messages that come out, with restarts as 0.
fn offer_both(arbiter: &mut Arbiter, packets: impl Iterator<Item = (u64, Bytes)>) -> Vec<Bytes> {
    for (sequence, bytes) in packets {
        arbiter.offer(FeedSide::A, sequence, bytes.clone()).ok();
        arbiter.offer(FeedSide::B, sequence, bytes).ok();
    }
    arbiter.finish();
    let bytes = |event| match event {
        ArbiterEvent::Message { bytes, .. } => Some(bytes),
        _ => None,
    };
    drain(arbiter).into_iter().filter_map(bytes).collect()
}

#[test]
fn numbers_that_begin_anew_are_followed_wherever_they_begin() {
    // A weekly reset, a reset from far, a restart that is 20 numbers lower, one further session
    // of two packets, and one of a single packet that both sides have.
    for (old, new) in [(1_000, 1), (6_000_000, 1), (1_000, 1_020), (1_000, 1_038), (1, 1)] {
        for count in [30, 9, 2, 1] {
            let mut arbiter = Arbiter::new(None, ArbiterLimits::recorded());
            let before: Vec<_> = (old..old + 40).map(|n| (n, body(n))).collect();
            let after: Vec<_> = (new..new + count).map(|n| (n, later(n))).collect();
            let all = [before, after].concat();
            let given = offer_both(&mut arbiter, all.iter().cloned());
            let expected: Vec<Bytes> = all.into_iter().map(|(_, bytes)| bytes).collect();
            assert_eq!(given, expected, "{old} then {new}, {count} packets");
            let counts = arbiter.counts();
            assert_eq!((counts.restarts, counts.reused, counts.late, counts.lost), (1, 0, 0, 0));
            assert_eq!(counts.ignored, 40 + count);
        }
    }
}

#[test]
fn a_live_feed_follows_numbers_that_begin_anew_after_several_packets() {
    let mut arbiter = Arbiter::new(None, ArbiterLimits::default());
    (1..41).for_each(|n| arbiter.offer(FeedSide::A, n, body(n)).unwrap());
    (1..8).for_each(|n| assert!(arbiter.offer(FeedSide::A, n, later(n)).is_err()));
    assert_eq!(drain(&mut arbiter).len(), 40);
    arbiter.offer(FeedSide::A, 8, later(8)).unwrap();
    let given = drain(&mut arbiter);
    assert_eq!(given[0], ArbiterEvent::Restart(1));
    assert_eq!(given.len(), 9);
}

#[test]
fn a_packet_that_differs_on_one_side_is_counted_by_itself() {
    for limits in [ArbiterLimits::default(), ArbiterLimits::recorded()] {
        let mut arbiter = Arbiter::new(None, limits);
        for n in 1..50 {
            arbiter.offer(FeedSide::A, n, body(n)).unwrap();
            let other = if n == 20 { later(n) } else { body(n) };
            assert_eq!(arbiter.offer(FeedSide::B, n, other).is_err(), n == 20);
        }
        arbiter.finish();
        let counts = arbiter.counts();
        assert_eq!((counts.delivered, counts.ignored, counts.reused), (49, 48, 1));
        assert_eq!(counts.restarts, 0);
    }
}

#[test]
fn sides_whose_packets_always_differ_give_one_side_and_count_the_other() {
    let mut arbiter = Arbiter::new(None, ArbiterLimits::recorded());
    for n in 1..200 {
        arbiter.offer(FeedSide::A, n, body(n)).unwrap();
        arbiter.offer(FeedSide::B, n, later(n)).unwrap_err();
    }
    arbiter.finish();
    let counts = arbiter.counts();
    assert_eq!((counts.delivered, counts.reused, counts.restarts), (199, 199, 0));
}

#[test]
fn one_side_recorded_after_the_other_gives_copies() {
    let mut arbiter = Arbiter::new(None, ArbiterLimits::recorded());
    for side in [FeedSide::A, FeedSide::B] {
        (1..90_000).for_each(|n| arbiter.offer(side, n, body(n)).unwrap());
    }
    assert_eq!((arbiter.counts().delivered, arbiter.counts().ignored), (89_999, 89_999));
}

#[test]
fn the_slower_side_may_end_the_old_numbers_after_the_new_ones_have_begun() {
    let mut arbiter = Arbiter::new(None, ArbiterLimits::recorded());
    (1_000..1_040).for_each(|n| arbiter.offer(FeedSide::A, n, body(n)).unwrap());
    (1_000..1_030).for_each(|n| arbiter.offer(FeedSide::B, n, body(n)).unwrap());
    (1..20).for_each(|n| _ = arbiter.offer(FeedSide::A, n, later(n)));
    (1_030..1_040).for_each(|n| arbiter.offer(FeedSide::B, n, body(n)).unwrap());
    (1..40).for_each(|n| _ = arbiter.offer(FeedSide::B, n, later(n)));
    arbiter.finish();
    let counts = arbiter.counts();
    assert_eq!((counts.delivered, counts.ignored, counts.restarts), (79, 59, 1));
    assert_eq!((counts.lost, counts.late, counts.reused), (0, 0, 0));
}

#[test]
fn a_side_that_lags_at_the_start_has_no_copies_before_the_first_number() {
    let mut arbiter = Arbiter::new(None, ArbiterLimits::default());
    (100..110).for_each(|n| arbiter.offer(FeedSide::A, n, body(n)).unwrap());
    (95..100).for_each(|n| _ = arbiter.offer(FeedSide::B, n, body(n)));
    (100..110).for_each(|n| arbiter.offer(FeedSide::B, n, body(n)).unwrap());
    let counts = arbiter.counts();
    assert_eq!((counts.delivered, counts.ignored, counts.late), (10, 10, 5));
    assert_eq!(counts.restarts, 0);
}

#[test]
fn what_comes_after_it_was_given_up_is_late_and_no_copy() {
    let mut arbiter = Arbiter::new(Some(1), ArbiterLimits::default());
    arbiter.offer(FeedSide::A, 1, body(1)).unwrap();
    arbiter.offer(FeedSide::A, 3, body(3)).unwrap();
    arbiter.abandon();
    arbiter.offer(FeedSide::B, 2, body(2)).unwrap();
    assert_eq!((arbiter.counts().late, arbiter.counts().ignored), (1, 0));
}

proptest! {
    /// Compares with the plainest model. Whatever the order and the copies, delivered numbers
    /// increase. Delivered, lost and missing numbers together cover every number once.
    #[test]
    fn every_number_is_delivered_lost_or_missing(
        offers in prop::collection::vec((0u64..60, any::<bool>()), 0..200),
        messages_max in 0usize..20,
    ) {
        let limits = ArbiterLimits { messages_max, bytes_max: 1 << 20, ..ArbiterLimits::default() };
        let mut arbiter = Arbiter::new(Some(0), limits);
        let mut place = 0;
        let mut gaps = 0;
        for &(sequence, side) in &offers {
            let side = if side { FeedSide::A } else { FeedSide::B };
            arbiter.offer(side, sequence, body(sequence)).unwrap();
            prop_assert!(arbiter.held().0 <= messages_max);
            for event in drain(&mut arbiter) {
                match event {
                    ArbiterEvent::Message { sequence, bytes } => {
                        prop_assert_eq!(sequence, place);
                        prop_assert_eq!(bytes, body(sequence));
                        place += 1;
                    }
                    ArbiterEvent::Lost(range) => {
                        prop_assert_eq!(range.start, place);
                        place = range.end;
                    }
                    ArbiterEvent::Restart(number) => panic!("restart at {number}"),
                    ArbiterEvent::Gap(range) => {
                        prop_assert!(range.start >= gaps);
                        gaps = range.end;
                    }
                }
            }
        }
        let top = offers.iter().map(|&(sequence, _)| sequence + 1).max().unwrap_or(0);
        let missing: u64 = arbiter.missing().map(|hole| hole.end - hole.start).sum();
        prop_assert_eq!(place + missing + arbiter.held().0 as u64, top);
    }
}
