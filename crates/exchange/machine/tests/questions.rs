//! Requests that a machine makes, and requests that it must not make, where nothing was lost.

use std::net::SocketAddr;

use bytes::Bytes;
use evenfall_core::{Arrival, Machine, StampedBy, Timestamp};
use evenfall_exchange_machine::wire::{Header, Kind};
use evenfall_exchange_machine::{Config, Exchange, Outbound, Plan};

fn addresses() -> Vec<SocketAddr> {
    (0..2).map(|rank| SocketAddr::from(([127, 0, 0, 1], 7_000 + rank))).collect()
}

fn ms(ms: u64) -> Timestamp {
    Timestamp::from_nanos(ms * 1_000_000)
}

/// Operation 1 as one rank sees it: rank 1 sends a message to rank 0, and rank 0 sends nothing.
fn plan(rank: usize, body: &Bytes) -> Plan {
    let nothing = || vec![Outbound::Nothing, Outbound::Nothing];
    let mut plan = Plan {
        operation: 1,
        rank,
        members: addresses(),
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
fn drain(exchange: &mut Exchange, now: Timestamp, rank: usize) -> Vec<Arrival> {
    let mut out = Vec::new();
    while let Some(transmit) = exchange.poll_transmit(now) {
        let mut datagram = transmit.head.as_slice().to_vec();
        datagram.extend_from_slice(&transmit.body);
        let (from, datagram) = (addresses()[rank], Bytes::from(datagram));
        out.push(Arrival::new(from, datagram, now, StampedBy::User));
    }
    out
}

fn kinds(arrivals: &[Arrival]) -> Vec<Kind> {
    let kind = |a: &Arrival| Header::decode(&a.datagram, None).expect("our own").kind;
    arrivals.iter().map(kind).collect()
}

/// The state after a message was announced and asked for. No packet goes unasked, so the packets
/// wait at their sender.
fn announced() -> (Exchange, Arrival) {
    // A sender that knows no round trip sends nothing unasked.
    let config = Config { rtt_packets: 0, ..Config::default() };
    let body = Bytes::from(vec![7; 1_000]);
    let (mut receiver, mut sender) = (Exchange::new(Config::default()), Exchange::new(config));
    receiver.start(ms(0), plan(0, &body)).expect("two members");
    sender.start(ms(0), plan(1, &body)).expect("two members");
    let announcement = drain(&mut sender, ms(0), 1).pop().expect("an announcement");
    (receiver, announcement)
}

#[test]
fn a_repeated_announcement_is_told_how_far_we_are_and_asked_only_after_the_interval() {
    let (mut receiver, announcement) = announced();
    receiver.handle(ms(1), announcement.clone()).expect("well-formed");
    assert_eq!(kinds(&drain(&mut receiver, ms(1), 0)), [Kind::Grant]);
    // The packets were granted and have not arrived, but may wait for their sender's pace. A
    // request now would be answered by the next announcement, and so on.
    receiver.handle(ms(2), announcement.clone()).expect("well-formed");
    assert_eq!(kinds(&drain(&mut receiver, ms(2), 0)), [Kind::Grant]);
    receiver.handle(ms(30), announcement).expect("well-formed");
    assert_eq!(kinds(&drain(&mut receiver, ms(30), 0)), [Kind::Resend]);
}

#[test]
fn who_has_not_begun_answers_the_second_question_only() {
    let (_, announcement) = announced();
    let mut late = Exchange::new(Config::default());
    late.set_rank(0);
    late.handle(ms(1), announcement.clone()).expect("well-formed");
    assert_eq!(kinds(&drain(&mut late, ms(1), 0)), []);
    late.handle(ms(20), announcement).expect("well-formed");
    assert_eq!(kinds(&drain(&mut late, ms(20), 0)), [Kind::Wait]);
}
