use super::*;
use crate::mold::{Body, MoldPacket};
use proptest::prelude::*;

const SESSION: SessionId = SessionId(*b"  evenfall");
const PACKET: usize = 1_400;
const LIMITS: ReplayLimits = ReplayLimits { messages_max: 1_000, bytes_max: 20_000 };

fn ring_of(messages: u8) -> ReplayRing {
    let mut ring = ReplayRing::new(SESSION, 1, LIMITS);
    (0..messages).for_each(|n| ring.push(vec![n; 100].into()));
    ring
}

fn answer(ring: &ReplayRing, sequence: u64, count: u16) -> Result<Vec<u8>, RequestRefusal> {
    let packet = ring.answer(&MoldRequest { session: SESSION, sequence, count }, PACKET)?.finish();
    let packet = MoldPacket::decode(&packet).expect("an answer is a packet");
    assert_eq!((packet.session, packet.sequence), (SESSION, sequence));
    let Body::Messages(messages) = packet.body else { panic!("{packet:?}") };
    Ok(messages.map(|message| message[0]).collect())
}

#[test]
fn an_answer_is_one_packet_of_what_is_kept() {
    let ring = ring_of(100);
    assert_eq!(answer(&ring, 11, 3), Ok(vec![10, 11, 12]));
    assert_eq!(answer(&ring, 11, 50), Ok((10..23).collect()), "as many as fit");
    assert_eq!(answer(&ring, 99, 50), Ok(vec![98, 99]), "as many as there are");
    assert_eq!(answer(&ring, 101, 1), Err(RequestRefusal::NotSent));
    assert_eq!(answer(&ring, 0, 1), Err(RequestRefusal::NotKept));
    let other = MoldRequest { session: SessionId(*b" yesterday"), sequence: 1, count: 1 };
    assert_eq!(ring.answer(&other, PACKET).unwrap_err(), RequestRefusal::OtherSession);
}

#[test]
fn both_limits_drop_the_oldest_messages() {
    let mut ring = ring_of(210);
    assert_eq!(answer(&ring, 10, 1), Err(RequestRefusal::NotKept), "20,000 bytes are 200 messages");
    assert_eq!(answer(&ring, 11, 1), Ok(vec![10]));
    (0..1_000).for_each(|_| ring.push(Bytes::from_static(b"x")));
    assert_eq!(answer(&ring, 210, 1), Err(RequestRefusal::NotKept), "1,000 messages");
    assert_eq!(answer(&ring, 211, 2), Ok(vec![b'x', b'x']));
    ring.push(vec![0; 30_000].into());
    assert_eq!(ring.next_sequence(), 1_212);
    assert_eq!(answer(&ring, 1_211, 1), Err(RequestRefusal::NotKept), "longer than the ring");
}

#[test]
fn a_message_that_the_sender_never_had_ends_an_answer() {
    let mut ring = ring_of(3);
    ring.skip_to(3);
    assert_eq!(ring.next_sequence(), 4, "not ahead");
    ring.skip_to(6);
    ring.push(vec![9; 100].into());
    assert_eq!(answer(&ring, 2, 9), Ok(vec![1, 2]));
    assert_eq!(answer(&ring, 5, 1), Err(RequestRefusal::NotKept));
    assert_eq!(answer(&ring, 6, 1), Ok(vec![9]));
    // A jump beyond the ring leaves nothing of it, and takes no memory.
    ring.skip_to(1 << 60);
    ring.push(vec![8; 100].into());
    assert_eq!(answer(&ring, 6, 1), Err(RequestRefusal::NotKept));
    assert_eq!((answer(&ring, 1 << 60, 1), ring.bytes), (Ok(vec![8]), 100));
}

fn address(n: u32) -> IpAddr {
    core::net::Ipv4Addr::from_bits(n).into()
}

fn admitted(gate: &mut RequestGate, now: Timestamp, from: u32, times: u32) -> u32 {
    (0..times).map(|_| u32::from(gate.admit(now, address(from)).is_ok())).sum()
}

#[test]
fn an_address_gets_its_burst_and_then_its_rate() {
    let limits = RequestLimits {
        per_second: 100,
        burst: 10,
        total_per_second: 100_000,
        requesters_max: 100,
    };
    let mut gate = RequestGate::new(limits);
    let now = Timestamp::from_nanos(5_000_000_000);
    assert_eq!(admitted(&mut gate, now, 1, 50), 10);
    assert_eq!(admitted(&mut gate, now + Duration::from_millis(55), 1, 50), 5);
    // Another address has a rate of its own.
    assert_eq!(admitted(&mut gate, now, 2, 50), 10);
    assert_eq!(admitted(&mut gate, now + Duration::from_secs(9), 1, 50), 10);
}

#[test]
fn many_addresses_together_are_limited_too() {
    let limits =
        RequestLimits { per_second: 100, burst: 10, total_per_second: 400, requesters_max: 1_000 };
    let mut gate = RequestGate::new(limits);
    let now = Timestamp::from_nanos(1);
    let all: u32 = (0..500).map(|from| admitted(&mut gate, now, from, 10)).sum();
    assert_eq!(all, 100, "a fourth of a second's answers");
}

#[test]
fn addresses_beyond_what_is_remembered_wait_for_a_silent_one() {
    let limits =
        RequestLimits { per_second: 10, burst: 1, total_per_second: 1 << 20, requesters_max: 3 };
    let mut gate = RequestGate::new(limits);
    let now = Timestamp::from_nanos(1);
    let all: u32 = (0..9).map(|from| admitted(&mut gate, now, from, 1)).sum();
    assert_eq!(all, 3);
    assert_eq!(admitted(&mut gate, now + Duration::from_millis(101), 8, 1), 1);
    assert!(gate.requesters.len() <= 3);
}

proptest! {
    #[test]
    fn any_bytes_get_one_packet_of_what_was_asked_or_a_reason(
        bytes in proptest::collection::vec(any::<u8>(), 0..40), skip in 0_u64..400
    ) {
        crate::fuzzing::mold_requests(&bytes);
        let mut ring = ring_of(120);
        ring.skip_to(skip);
        ring.push(vec![7; 30].into());
        if let Ok(request) = MoldRequest::decode(&bytes) {
            let _ = ring.answer(&request, PACKET);
        }
    }
}
