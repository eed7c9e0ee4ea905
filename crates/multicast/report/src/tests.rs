//! The ledger on runs that are small enough to compute by hand.

use std::time::Duration;

use evenfall_core::Summary;

use super::*;

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const C: NodeId = NodeId(3_000_000);

fn us(us: u64) -> u64 {
    us * 1_000
}

fn sent(message: u64, scheduled_us: u64, deadline_us: u64) -> SentMessage {
    let scheduled_ns = us(scheduled_us);
    let sent_ns = scheduled_ns + us(1);
    let deadline_ns = Some(us(deadline_us)).filter(|deadline_ns| *deadline_ns > 0);
    SentMessage { stream: 0, message, scheduled_ns, sent_ns, deadline_ns }
}

fn released(receiver: NodeId, message: u64, arrival_us: u64, release_us: u64) -> Released {
    Released {
        receiver,
        first_message: message,
        arrival_ns: us(arrival_us),
        release_ns: us(release_us),
        ..Released::default()
    }
}

fn rows(ledger: &mut Ledger) -> Vec<FairnessRow> {
    std::iter::from_fn(|| ledger.poll_row()).collect()
}

fn ledger() -> Ledger {
    Ledger::new(Config { rows: true, ..Config::of([A, B]) })
}

/// Two messages, scheduled at 1000 and 2000 us, with deadlines 300 us later. The second message
/// reaches B late.
fn two_messages(release_of: impl Fn(u64, u64) -> u64) -> Ledger {
    let mut ledger = ledger();
    ledger.sent(&sent(0, 1_000, 1_300));
    ledger.sent(&sent(1, 2_000, 2_300));
    for (receiver, message, arrival, release, deadline) in [
        (A, 0, 1_100, 1_310, 1_300),
        (B, 0, 1_150, 1_325, 1_300),
        (A, 1, 2_120, 2_304, 2_300),
        (B, 1, 2_400, 2_401, 2_300),
    ] {
        ledger.released(&released(receiver, message, arrival, release_of(release, deadline)));
    }
    ledger
}

#[test]
fn window_without_holding_is_by_the_stamps_of_the_programs() {
    let mut ledger = Ledger::new(Config::of([A, B]));
    ledger.sent(&sent(0, 10, 0));
    // The kernels of both receivers have the message at once. The program of B wakes up 70 us
    // later.
    for (receiver, taken_us) in [(A, 25), (B, 95)] {
        let taken_ns = us(taken_us);
        ledger.released(&Released { taken_ns, ..released(receiver, 0, 20, taken_us + 1) });
    }
    let r = ledger.finish(ClockError::SameClock).results;
    assert_eq!((r.arrival_window_us.p50, r.window_us.p50), (70.0, 70.0));
    assert_eq!(r.oml_us.p50, 10.0, "the latency is that of the network");
}

#[test]
fn two_messages_by_hand() {
    let r = two_messages(|release, _| release).finish(ClockError::SameClock).results;
    assert_eq!((r.messages, r.receivers, r.delivered, r.lost), (2, 2, 4, 0));
    assert_eq!((r.on_time_fraction, r.p_f, r.late_messages), (Some(0.5), Some(0.5), 1));
    assert_eq!((r.oml_us.p50, r.oml_us.max), (150.0, 400.0), "from the scheduled time");
    assert_eq!((r.held_oml_us.p50, r.held_oml_us.max), (325.0, 401.0));
    assert_eq!((r.window_us.p50, r.window_us.max), (15.0, 97.0), "at the release");
    assert_eq!((r.arrival_window_us.p50, r.arrival_window_us.max), (50.0, 280.0));
    assert_eq!(r.behind_us.max, 1.0);
    assert_eq!(r.release_late_us.max, 101.0);
    assert!((r.release_late_us.p50 - 10.0).abs() < 0.05, "4, 10, 25, 101");
    assert!((r.wait_us.p50 - 175.0).abs() < 0.8, "1, 175, 184, 210");
    assert_eq!(r.wait_us.max, 210.0);
    assert!((r.margin_us.p50 - 150.0).abs() < 0.7, "-100, 150, 180, 200");
}

#[test]
fn mutant_that_writes_the_deadline_down_is_seen() {
    let honest = two_messages(|release, _| release).finish(ClockError::SameClock).results;
    let faked = two_messages(|_, deadline| deadline).finish(ClockError::SameClock).results;
    assert_eq!((faked.window_us.max, faked.release_late_us.max), (0.0, 0.0), "too good to be true");
    assert!(honest.window_us.p50 > 0.0 && honest.release_late_us.p50 > 0.0);
}

#[test]
fn window_is_of_releases_and_not_of_arrivals_or_deadlines() {
    let mut ledger = ledger();
    ledger.sent(&sent(0, 0, 500));
    ledger.released(&released(A, 0, 100, 510));
    ledger.released(&released(B, 0, 400, 517));
    assert_eq!(ledger.finish(ClockError::Unknown).results.window_us.max, 7.0);
}

#[test]
fn message_without_deadline_counts_neither_as_fair_nor_as_late() {
    let mut ledger = ledger();
    ledger.sent(&sent(0, 100, 0));
    ledger.released(&released(A, 0, 150, 151));
    ledger.released(&released(B, 0, 170, 172));
    let r = ledger.finish(ClockError::SameClock).results;
    assert_eq!((r.p_f, r.late_messages), (None, 0));
    assert_eq!((r.oml_us.max, r.held_oml_us.max), (70.0, 72.0));
    assert_eq!((r.wait_us, r.release_late_us), (Summary::EMPTY, Summary::EMPTY));
}

#[test]
fn loss_is_counted_against_what_was_sent_and_makes_a_message_late() {
    let mut ledger = ledger();
    (0..3).for_each(|message| ledger.sent(&sent(message, message * 10, message * 10 + 5)));
    for message in 0..3 {
        ledger.released(&released(A, message, message * 10 + 1, message * 10 + 5));
    }
    ledger.lost(&Lost { receiver: B, stream: 0, first_message: 0, count: 2 });
    // Message 2 goes missing at B without a report.
    let outcome = ledger.finish(ClockError::SameClock);
    let r = &outcome.results;
    assert_eq!((r.delivered, r.lost, r.lost_reported), (3, 3, 2));
    assert_eq!((r.late_messages, r.p_f), (3, Some(0.0)));
    let lines = &outcome.series.receivers;
    assert_eq!((lines[0].lost, lines[1].lost, lines[1].delivered), (0, 3, 0));
    assert_eq!(outcome.series.time.iter().map(|t| t.missing).sum::<u64>(), 3);
}

#[test]
fn absurd_loss_report_costs_no_time() {
    let mut ledger = ledger();
    ledger.sent(&sent(7, 0, 5));
    ledger.lost(&Lost { receiver: B, stream: 0, first_message: 0, count: u64::MAX });
    assert_eq!(ledger.finish(ClockError::SameClock).results.lost_reported, 1);
}

#[test]
fn second_release_is_counted_and_changes_nothing_else() {
    let mut ledger = ledger();
    ledger.sent(&sent(0, 0, 5));
    ledger.sent(&sent(1, 0, 5));
    ledger.released(&released(A, 0, 1, 5));
    ledger.released(&released(A, 0, 900, 900));
    ledger.released(&released(B, 0, 2, 5));
    ledger.released(&released(B, 0, 900, 900));
    let r = ledger.finish(ClockError::SameClock).results;
    assert_eq!((r.delivered, r.lost, r.released_again), (2, 2, 2));
    assert_eq!(r.oml_us.max, 2.0);
}

#[test]
fn frame_of_many_messages_is_one_frame_and_many_copies() {
    let mut ledger = ledger();
    (0..4).for_each(|message| ledger.sent(&sent(message, message, 50)));
    for receiver in [A, B] {
        let frame = Released { count: 4, flags: Flags::REPAIRED, ..released(receiver, 0, 20, 50) };
        ledger.released(&frame);
    }
    let r = ledger.finish(ClockError::SameClock).results;
    assert_eq!((r.messages, r.delivered, r.frames, r.repaired), (4, 8, 2, 8));
    assert_eq!((r.oml_us.p50, r.oml_us.max), (18.0, 20.0), "each from its own schedule");
}

#[test]
fn hedge_wins_are_named_by_edge() {
    let mut ledger = ledger();
    for message in 0..10 {
        ledger.sent(&sent(message, message, message + 9));
        let hedged = message % 5 == 0;
        let flags = if hedged { Flags::HEDGE_WIN } else { Flags(0) };
        let via = NodeId(if hedged { 50 } else { 40 });
        ledger.released(&Released { flags, via, ..released(A, message, message + 3, message + 9) });
    }
    let outcome = ledger.finish(ClockError::SameClock);
    assert_eq!(outcome.results.hedge_wins, 2);
    let first = EdgeCounts { via: NodeId(50), receiver: A, frames: 2, hedge_wins: 2 };
    assert_eq!(outcome.series.edges[0], first);
    assert_eq!(outcome.series.edges[1].hedge_wins, 0);
}

#[test]
fn message_closes_when_the_last_receiver_has_spoken() {
    let mut ledger = ledger();
    ledger.sent(&sent(0, 0, 5));
    ledger.sent(&sent(1, 0, 5));
    ledger.released(&released(A, 1, 1, 5));
    ledger.released(&released(B, 1, 1, 5));
    let row = rows(&mut ledger);
    assert_eq!((row.len(), row[0].message, row[0].receivers, row[0].late), (1, 1, 2, 0));
    ledger.released(&released(A, 0, 1, 5));
    assert_eq!(rows(&mut ledger), []);
    ledger.lost(&Lost { receiver: B, stream: 0, first_message: 0, count: 1 });
    assert_eq!(rows(&mut ledger)[0].late, 1);
}

#[test]
fn late_joiner_and_leaver_owe_only_their_own_messages() {
    let mut ledger = ledger();
    (0..3).for_each(|message| ledger.sent(&sent(message, message, message + 9)));
    ledger.join(C, 0, 3);
    (3..6).for_each(|message| ledger.sent(&sent(message, message, message + 9)));
    for message in 0..6 {
        ledger.released(&released(A, message, message + 2, message + 9));
        if message < 4 {
            ledger.released(&released(B, message, message + 2, message + 9));
        }
        if message >= 3 {
            ledger.released(&released(C, message, message + 2, message + 9));
        }
    }
    assert_eq!(rows(&mut ledger).len(), 4);
    ledger.leave(B, 0, 4);
    assert_eq!(rows(&mut ledger).len(), 2, "those who waited for the leaver close");
    ledger.released(&released(B, 5, 9, 9));
    let r = ledger.finish(ClockError::SameClock).results;
    assert_eq!((r.receivers, r.delivered, r.lost, r.p_f), (3, 13, 0, Some(1.0)));
    assert_eq!(r.released_again + r.orphans, 1, "a word after leaving is no delivery");
}

#[test]
fn receiver_that_comes_back_owes_nothing_for_its_absence() {
    let mut ledger = ledger();
    ledger.leave(B, 0, 1);
    ledger.join(B, 0, 2);
    for message in 0..3 {
        ledger.sent(&sent(message, message, message + 9));
        ledger.released(&released(A, message, message + 1, message + 9));
    }
    assert_eq!(rows(&mut ledger).len(), 1, "only the middle one is complete");
    ledger.released(&released(B, 0, 3, 9));
    ledger.released(&released(B, 2, 3, 9));
    let outcome = ledger.finish(ClockError::SameClock);
    assert_eq!((outcome.results.lost, outcome.results.delivered), (0, 5));
    assert_eq!(outcome.series.receivers[1].lost, 0);
}

#[test]
fn memory_is_bounded_by_the_limit_and_what_comes_after_is_still_delivered() {
    let mut ledger = Ledger::new(Config { in_flight_max: 10, ..Config::of([A, B]) });
    for message in 0..1_000 {
        ledger.sent(&sent(message, message, message + 9));
        ledger.released(&released(A, message, message, message + 9));
        assert!(ledger.streams[0].1.len() <= 10);
    }
    (0..1_000).for_each(|message| ledger.released(&released(B, message, 2_000, 2_000)));
    let r = ledger.finish(ClockError::SameClock).results;
    assert_eq!((r.lost, r.delivered), (0, 2_000), "delivered, but too late to be judged");
    assert_eq!(r.late_messages, 1_000);
}

#[test]
fn streams_are_judged_apart_and_summed() {
    let mut ledger = ledger();
    for stream in [0, 9] {
        ledger.sent(&SentMessage { stream, ..sent(100, 0, 5) });
        for receiver in [A, B] {
            ledger.released(&Released { stream, ..released(receiver, 100, 1, 5) });
        }
    }
    ledger.released(&Released { stream: 7, ..released(A, 100, 1, 5) });
    let r = ledger.finish(ClockError::SameClock).results;
    assert_eq!((r.messages, r.delivered, r.lost, r.orphans), (2, 4, 0, 1));
}

#[test]
fn broken_records_are_counted_and_allocate_nothing() {
    let mut ledger = ledger();
    ledger.sent(&sent(5, 0, 5));
    ledger.sent(&sent(5, 0, 5));
    ledger.sent(&sent(u64::MAX, 0, 5));
    ledger.released(&Released { count: u16::MAX, ..released(A, u64::MAX - 3, 1, 5) });
    ledger.released(&released(NodeId(77), 5, 1, 5));
    let r = ledger.finish(ClockError::SameClock).results;
    assert_eq!((r.messages, r.delivered), (1, 0));
    assert!(r.orphans >= 3, "{}", r.orphans);
}

#[test]
fn results_print_the_clock_error_as_a_number_or_a_word() {
    let json = |clock| {
        let results = ledger().finish(clock).results;
        serde_json::to_value(results).expect("plain data")["clock_error_us"].clone()
    };
    assert_eq!(json(ClockError::SameClock), 0);
    assert_eq!(json(ClockError::Within(Duration::from_micros(12))), 12.0);
    assert_eq!(json(ClockError::Unknown), "unknown");
}

#[test]
fn five_million_copies_are_counted_within_the_limit_of_a_test() {
    // 1,000 receivers get 5,000 messages, a few of them in flight at a time, as in a simulation.
    let receivers: Vec<NodeId> = (1..=1_000).map(NodeId).collect();
    let mut ledger = Ledger::new(Config::of(receivers.clone()));
    let mut prng = evenfall_core::Prng::new(1);
    for message in 0..5_000u64 {
        ledger.sent(&sent(message, message * 200, message * 200 + 150));
        for &receiver in &receivers {
            let jitter = prng.next_u64() & 0xffff;
            let frame = Released {
                arrival_ns: us(message * 200) + jitter,
                release_ns: us(message * 200 + 150) + (jitter & 0xff),
                ..released(receiver, message, 0, 0)
            };
            ledger.released(&frame);
        }
    }
    let r = ledger.finish(ClockError::SameClock).results;
    assert_eq!((r.delivered, r.lost, r.p_f), (5_000_000, 0, Some(1.0)));
}
