//! Tests of the messages and of the controller's session.

use evenfall_core::Prng;

use super::wire::{CountersPart, HEADER_BYTES};
use super::*;

fn some<T>(prng: &mut Prng, draw: impl FnOnce(&mut Prng) -> T) -> Option<T> {
    (prng.below(2) == 0).then(|| draw(prng))
}

fn fits(prng: &mut Prng) -> PacketMatch {
    let address = |prng: &mut Prng| core::net::Ipv4Addr::from(prng.next_u64() as u32);
    let port = |prng: &mut Prng| prng.next_u64() as u16;
    PacketMatch {
        from: some(prng, address),
        to: some(prng, address),
        from_port: some(prng, port),
        to_port: some(prng, port),
    }
}

fn stat(prng: &mut Prng) -> FlowStat {
    let (cookie, packets, bytes) = (prng.next_u64(), prng.next_u64(), prng.next_u64());
    FlowStat { cookie, priority: prng.next_u64() as u16, fits: fits(prng), packets, bytes }
}

fn port_stat(prng: &mut Prng) -> PortStat {
    let pair = |prng: &mut Prng| [prng.next_u64(), prng.next_u64()];
    let (packets, bytes, dropped) = (pair(prng), pair(prng), pair(prng));
    PortStat { port: prng.next_u64() as u32, packets, bytes, dropped }
}

fn part<T>(prng: &mut Prng, draw: impl Fn(&mut Prng) -> T) -> CountersPart<T> {
    let count = prng.below(40);
    CountersPart { entries: (0..count).map(|_| draw(prng)).collect(), has_more: prng.below(2) == 0 }
}

fn message(prng: &mut Prng) -> SwitchMessage {
    let data = |prng: &mut Prng| {
        let count = prng.below(wire::DATA_BYTES_MAX as u64 + 1);
        (0..count).map(|_| prng.next_u64() as u8).collect::<Vec<u8>>()
    };
    match prng.below(14) {
        0 => SwitchMessage::Hello,
        1 => SwitchMessage::Error { kind: prng.next_u64() as u16, code: 7, data: data(prng) },
        2 => SwitchMessage::EchoRequest(data(prng)),
        3 => SwitchMessage::EchoReply(data(prng)),
        4 => SwitchMessage::FeaturesRequest,
        5 => SwitchMessage::Features { datapath: prng.next_u64(), tables: prng.next_u64() as u8 },
        6 => SwitchMessage::FlowMod(FlowMod::Delete { cookie: prng.next_u64() }),
        7 => SwitchMessage::FlowMod(FlowMod::Add(FlowRule {
            cookie: prng.next_u64(),
            fits: fits(prng),
            priority: prng.next_u64() as u16,
            idle_s: prng.next_u64() as u16,
            port: prng.next_u64() as u32,
        })),
        8 => SwitchMessage::BarrierRequest,
        9 => SwitchMessage::BarrierReply,
        10 => SwitchMessage::FlowStatsRequest,
        11 => SwitchMessage::PortStatsRequest,
        12 => SwitchMessage::FlowStats(part(prng, stat)),
        _ => SwitchMessage::PortStats(part(prng, port_stat)),
    }
}

/// A message that is decoded is encoded to the same message, and a session takes any bytes.
fn check_input(data: &[u8]) {
    // A message of a kind that is not known has lost its body. The match fields of a rule may take
    // eleven bytes more than before, so that a long answer may not fit any more.
    match SwitchMessage::decode(data) {
        Ok((_, SwitchMessage::Other(_))) | Err(_) => {}
        Ok(_) if data.len() > wire::MESSAGE_BYTES_MAX / 2 => {}
        Ok((xid, message)) => {
            assert_eq!(SwitchMessage::decode(&encoded(&message, xid)), Ok((xid, message)));
        }
    }
    let mut session = SwitchSession::new();
    for piece in data.chunks(100) {
        let Ok(events) = session.arrive(piece) else { break };
        for event in events {
            if let Event::Flows(_, counters) = event {
                assert!(counters.len() <= ENTRIES_MAX);
            }
        }
    }
}

fn encoded(message: &SwitchMessage, xid: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(xid, &mut bytes);
    bytes
}

#[test]
fn every_message_is_decoded_to_itself() {
    let mut prng = Prng::new(1);
    for xid in 0..5_000 {
        let message = message(&mut prng);
        assert_eq!(SwitchMessage::decode(&encoded(&message, xid)), Ok((xid, message)));
    }
}

/// Bytes are changed, cut off or repeated in valid messages, so that decoding gets beyond the
/// header.
#[test]
fn any_bytes_are_decoded_or_refused() {
    let mut prng = Prng::new(2);
    for _ in 0..20_000 {
        let mut bytes = encoded(&message(&mut prng), 1);
        for _ in 0..1 + prng.below(4) {
            let at = prng.below(bytes.len() as u64) as usize;
            bytes[at] = prng.next_u64() as u8;
        }
        bytes.truncate(1 + prng.below(bytes.len() as u64) as usize);
        if prng.below(2) == 0 && bytes.len() >= HEADER_BYTES {
            let length = (bytes.len() as u16).to_be_bytes();
            bytes[2..4].copy_from_slice(&length);
        }
        check_input(&bytes);
    }
}

/// `ovs-ofctl ofp-print` of Open vSwitch 3.1 prints these bytes as `ADD
/// tcp,nw_src=10.77.0.1,nw_dst=10.77.0.9,tp_src=7000,tp_dst=30001 cookie:0x5 idle:30 pri:9
/// actions=output:3`.
#[test]
fn a_rule_has_the_bytes_of_the_specification() {
    let rule = FlowRule {
        cookie: 5,
        fits: PacketMatch {
            from: Some([10, 77, 0, 1].into()),
            to: Some([10, 77, 0, 9].into()),
            from_port: Some(7_000),
            to_port: Some(30_001),
        },
        priority: 9,
        idle_s: 30,
        port: 3,
    };
    let bytes = encoded(&SwitchMessage::FlowMod(FlowMod::Add(rule)), 2);
    let expected = "040e007800000002 0000000000000005 0000000000000000 0000001e00000009 \
                    ffffffffffffffff ffffffff00000000 \
                    0001002b80000a02 0800800014010680 0016040a4d000180 0018040a4d000980 \
                    001a021b5880001c 0275310000000000 0004001800000000 0000001000000003 \
                    0000000000000000";
    let expected: String = expected.split_whitespace().collect();
    let ours: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(ours.len(), expected.len());
    assert_eq!(ours, expected);
}

#[test]
fn a_switch_is_ready_after_its_name_and_its_echo_is_answered() {
    let mut session = SwitchSession::new();
    assert_eq!(session.output(), encoded(&SwitchMessage::Hello, 1));
    let mut said = encoded(&SwitchMessage::Hello, 9);
    // A hello of a later version lists the versions in its body.
    said[0] = 6;
    said[3] = 16;
    said.extend([0, 1, 0, 8, 0, 0, 0, 0x10]);
    said.extend(encoded(&SwitchMessage::Features { datapath: 7, tables: 254 }, 2));
    said.extend(encoded(&SwitchMessage::EchoRequest(vec![1, 2]), 11));
    said.extend(encoded(&SwitchMessage::Other(12), 0));
    let mut events = Vec::new();
    for byte in said {
        events.extend(session.arrive(&[byte]).expect("a switch of ours"));
    }
    assert_eq!(events, [Event::Ready { datapath: 7 }]);
    let mut expected = encoded(&SwitchMessage::FeaturesRequest, 2);
    expected.extend(encoded(&SwitchMessage::EchoReply(vec![1, 2]), 11));
    assert_eq!(session.output(), expected);
}

fn ready() -> SwitchSession {
    let mut session = SwitchSession::new();
    let mut hello = encoded(&SwitchMessage::Hello, 1);
    hello.extend(encoded(&SwitchMessage::Features { datapath: 1, tables: 1 }, 2));
    session.arrive(&hello).expect("a switch of ours");
    session.output();
    session
}

#[test]
fn counters_in_several_messages_are_one_answer() {
    let (mut session, mut prng) = (ready(), Prng::new(3));
    let xid = session.ask_flows();
    let all: Vec<FlowStat> = (0..5).map(|_| stat(&mut prng)).collect();
    let of = |entries: &[FlowStat], has_more| {
        encoded(
            &SwitchMessage::FlowStats(CountersPart { entries: entries.to_vec(), has_more }),
            xid,
        )
    };
    assert_eq!(session.arrive(&of(&all[..3], true)), Ok(vec![]));
    assert_eq!(session.arrive(&of(&all[3..], false)), Ok(vec![Event::Flows(xid, all)]));
}

#[test]
fn a_switch_that_never_stops_counting_or_never_reads_is_given_up() {
    let (mut session, mut prng) = (ready(), Prng::new(4));
    let entries: Vec<PortStat> = (0..500).map(|_| port_stat(&mut prng)).collect();
    let more = encoded(&SwitchMessage::PortStats(CountersPart { entries, has_more: true }), 5);
    let answers = (0..).take_while(|_| session.arrive(&more).is_ok()).count();
    assert_eq!(answers, ENTRIES_MAX / 500);
    let mut session = ready();
    while !session.is_behind() {
        session.barrier();
    }
    let waiting = session.output.len();
    session.barrier();
    assert_eq!(session.output.len(), waiting);
}

#[test]
fn a_refusal_names_the_message_and_strangers_are_refused() {
    let mut session = ready();
    let xid = session.change(FlowMod::Delete { cookie: 1 });
    let error = encoded(&SwitchMessage::Error { kind: 5, code: 1, data: vec![] }, xid);
    assert_eq!(session.arrive(&error), Ok(vec![Event::Refused { xid, kind: 5, code: 1 }]));
    assert!(session.arrive(b"GET / HTTP/1.1\r\n\r\n").is_err());
    let no_hello = SwitchSession::new().arrive(&encoded(&SwitchMessage::BarrierReply, 1));
    assert_eq!(no_hello.map_err(|error| error.what), Err("no hello at the start"));
}
