//! Requests that a machine makes, and requests that it must not make, where nothing was lost.

use std::net::SocketAddr;

use bytes::Bytes;
use evenfall_collectives_machine::wire::{ShuffleHeader, ShuffleKind};
use evenfall_collectives_machine::{Outbound, Shuffle, ShuffleConfig, ShufflePlan};
use evenfall_core::{Arrival, Machine, StampedBy, Timestamp};

fn addresses() -> Vec<SocketAddr> {
    (0..2).map(|rank| SocketAddr::from(([127, 0, 0, 1], 7_000 + rank))).collect()
}

fn ms(ms: u64) -> Timestamp {
    Timestamp::from_nanos(ms * 1_000_000)
}

/// Operation 1 as one rank sees it: rank 1 sends a message to rank 0, and rank 0 sends nothing.
fn plan(rank: usize, body: &Bytes) -> ShufflePlan {
    let nothing = || vec![Outbound::Nothing, Outbound::Nothing];
    let mut plan = ShufflePlan {
        operation: 1,
        rank,
        members: addresses(),
        among: std::sync::Arc::default(),
        sends: nothing(),
        expects: vec![false, rank == 0],
    };
    if rank == 1 {
        plan.sends[0] = Outbound::Now(body.clone());
        plan.expects = vec![false, false];
    }
    plan
}

/// All datagrams that a machine sends now, as they arrive.
fn drain(shuffle: &mut Shuffle, now: Timestamp, rank: usize) -> Vec<Arrival> {
    let mut out = Vec::new();
    while let Some(transmit) = shuffle.poll_transmit(now) {
        let mut datagram = transmit.head.as_slice().to_vec();
        datagram.extend_from_slice(&transmit.body);
        let (from, datagram) = (addresses()[rank], Bytes::from(datagram));
        out.push(Arrival::new(from, datagram, now, StampedBy::User));
    }
    out
}

fn kinds(arrivals: &[Arrival]) -> Vec<ShuffleKind> {
    let kind = |a: &Arrival| ShuffleHeader::decode(&a.datagram).expect("our own").kind;
    arrivals.iter().map(kind).collect()
}

/// The state after a message was announced and asked for. No packet goes unasked, so the packets
/// wait at their sender.
fn announced() -> (Shuffle, Arrival) {
    // A sender that knows no round trip sends nothing unasked.
    let config = ShuffleConfig { rtt_packets: 0, ..ShuffleConfig::default() };
    let body = Bytes::from(vec![7; 1_000]);
    let (mut receiver, mut sender) = (Shuffle::new(ShuffleConfig::default()), Shuffle::new(config));
    receiver.start(ms(0), plan(0, &body)).expect("two members");
    sender.start(ms(0), plan(1, &body)).expect("two members");
    let announcement = drain(&mut sender, ms(0), 1).pop().expect("an announcement");
    (receiver, announcement)
}

#[test]
fn a_repeated_announcement_is_told_how_far_we_are_and_asked_only_after_the_interval() {
    let (mut receiver, announcement) = announced();
    receiver.handle(ms(1), announcement.clone()).expect("well-formed");
    assert_eq!(kinds(&drain(&mut receiver, ms(1), 0)), [ShuffleKind::Grant]);
    // The packets were granted and have not arrived, but may wait for their sender's pace. A
    // request now would be answered by the next announcement, and so on.
    receiver.handle(ms(2), announcement.clone()).expect("well-formed");
    assert_eq!(kinds(&drain(&mut receiver, ms(2), 0)), [ShuffleKind::Grant]);
    receiver.handle(ms(30), announcement).expect("well-formed");
    assert_eq!(kinds(&drain(&mut receiver, ms(30), 0)), [ShuffleKind::Resend]);
}

#[test]
fn who_has_not_begun_answers_the_second_question_only() {
    let (_, announcement) = announced();
    let mut late = Shuffle::new(ShuffleConfig::default());
    late.set_rank(0);
    late.handle(ms(1), announcement.clone()).expect("well-formed");
    assert_eq!(kinds(&drain(&mut late, ms(1), 0)), []);
    late.handle(ms(20), announcement).expect("well-formed");
    assert_eq!(kinds(&drain(&mut late, ms(20), 0)), [ShuffleKind::Wait]);
}
