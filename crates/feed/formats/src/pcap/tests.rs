use super::*;
use crate::capture::PcapSource;
use crate::error::FeedFault;
use crate::source::MessageSource;
use proptest::prelude::*;

const PAYLOAD: &[u8] = b"a market datagram";

/// A UDP datagram over IPv4 to 224.0.31.64:14340.
fn ipv4_udp(payload: &[u8]) -> Vec<u8> {
    let udp_bytes = (8 + payload.len()) as u16;
    let mut out = vec![0x45, 0];
    out.extend_from_slice(&(20 + udp_bytes).to_be_bytes());
    out.extend_from_slice(&[0, 0, 0x40, 0, 16, 17, 0, 0, 10, 0, 0, 1, 224, 0, 31, 64]);
    out.extend_from_slice(&[0x30, 0x39, 0x38, 0x04]);
    out.extend_from_slice(&udp_bytes.to_be_bytes());
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(payload);
    out
}

/// The same over IPv6 with a hop-by-hop header in front.
fn ipv6_udp(payload: &[u8]) -> Vec<u8> {
    let udp_bytes = (8 + payload.len()) as u16;
    let mut out = vec![0x60, 0, 0, 0];
    out.extend_from_slice(&(8 + udp_bytes).to_be_bytes());
    out.extend_from_slice(&[0, 16]);
    out.extend_from_slice(&[0xfd; 16]);
    out.extend_from_slice(&[0xff; 16]);
    out.extend_from_slice(&[17, 0, 1, 4, 0, 0, 0, 0]);
    out.extend_from_slice(&[0x30, 0x39, 0x38, 0x04]);
    out.extend_from_slice(&udp_bytes.to_be_bytes());
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(payload);
    out
}

fn ethernet(tags: &[[u8; 4]], ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let mut out = vec![1, 0, 0x5e, 0, 31, 64, 2, 0, 0, 0, 0, 1];
    tags.iter().for_each(|tag| out.extend_from_slice(tag));
    out.extend_from_slice(&ethertype.to_be_bytes());
    out.extend_from_slice(packet);
    out
}

fn put(out: &mut Vec<u8>, big: bool, value: u32) {
    out.extend_from_slice(&if big { value.to_be_bytes() } else { value.to_le_bytes() });
}

fn classic_file(big: bool, nano: bool, link_type: u32, frames: &[(Vec<u8>, u32)]) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out, big, if nano { 0xa1b2_3c4d } else { 0xa1b2_c3d4 });
    let version = if big { [0, 2, 0, 4] } else { [2, 0, 4, 0] };
    out.extend_from_slice(&version);
    for value in [0, 0, 65_535, link_type] {
        put(&mut out, big, value);
    }
    for (second, (frame, original)) in (10..).zip(frames) {
        for value in [second, 5, frame.len() as u32, *original] {
            put(&mut out, big, value);
        }
        out.extend_from_slice(frame);
    }
    out
}

fn block(big: bool, kind: u32, body: &[u8]) -> Vec<u8> {
    let padded = body.len().next_multiple_of(4);
    let mut out = Vec::new();
    put(&mut out, big, kind);
    put(&mut out, big, 12 + padded as u32);
    out.extend_from_slice(body);
    out.resize(8 + padded, 0);
    put(&mut out, big, 12 + padded as u32);
    out
}

/// One section: Ethernet with nanosecond times, then an enhanced and a simple packet.
fn ng_file(big: bool, frame: &[u8]) -> Vec<u8> {
    let mut section = Vec::new();
    put(&mut section, big, 0x1a2b_3c4d);
    section.extend_from_slice(if big { &[0, 1, 0, 0] } else { &[1, 0, 0, 0] });
    section.extend_from_slice(&[0xff; 8]);
    let mut interface = if big { vec![0, 1, 0, 0] } else { vec![1, 0, 0, 0] };
    put(&mut interface, big, 0);
    interface.extend_from_slice(if big { &[0, 9, 0, 1] } else { &[9, 0, 1, 0] });
    interface.extend_from_slice(&[9, 0, 0, 0]);
    let ns = 1_577_700_000_123_456_789u64;
    let mut enhanced = Vec::new();
    let length = frame.len() as u32;
    for value in [0, (ns >> 32) as u32, ns as u32, length, length] {
        put(&mut enhanced, big, value);
    }
    enhanced.extend_from_slice(frame);
    let mut simple = Vec::new();
    put(&mut simple, big, length);
    simple.extend_from_slice(frame);
    [
        block(big, ng::SECTION_HEADER, &section),
        block(big, 1, &interface),
        block(big, 6, &enhanced),
        block(big, 0x0bad, b"passed over"),
        block(big, 3, &simple),
    ]
    .concat()
}

fn read(file: &[u8]) -> (Vec<CapturedDatagram>, Skipped) {
    let mut source = PcapReader::new(file, "capture");
    let datagrams =
        core::iter::from_fn(|| source.next_datagram().expect("a whole capture")).collect();
    (datagrams, source.skipped())
}

#[test]
fn both_orders_and_both_units_are_read() {
    let frame = ethernet(&[], 0x0800, &ipv4_udp(PAYLOAD));
    let length = frame.len() as u32;
    for (big, nano) in [(false, false), (false, true), (true, false), (true, true)] {
        let file = classic_file(big, nano, 1, &[(frame.clone(), length)]);
        let (datagrams, skipped) = read(&file);
        assert_eq!(datagrams.len(), 1);
        assert_eq!(datagrams[0].payload, PAYLOAD);
        assert_eq!(datagrams[0].source, "10.0.0.1:12345".parse().unwrap());
        assert_eq!(datagrams[0].destination, "224.0.31.64:14340".parse().unwrap());
        let fraction_ns = if nano { 5 } else { 5_000 };
        assert_eq!(datagrams[0].time_ns, 10_000_000_000 + fraction_ns);
        assert_eq!(skipped.total(), 0);
    }
}

#[test]
fn pcapng_of_both_orders_is_read() {
    let frame = ethernet(&[], 0x0800, &ipv4_udp(PAYLOAD));
    for big in [false, true] {
        let (datagrams, _) = read(&ng_file(big, &frame));
        assert_eq!(datagrams.len(), 2);
        for datagram in datagrams {
            assert_eq!(datagram.payload, PAYLOAD);
            assert_eq!(datagram.time_ns, 1_577_700_000_123_456_789);
        }
    }
}

#[test]
fn every_link_type_leads_to_the_payload() {
    let (v4, v6) = (ipv4_udp(PAYLOAD), ipv6_udp(PAYLOAD));
    let tag = [0x81, 0, 0, 7];
    let outer = [0x88, 0xa8, 0, 9];
    let cooked = [&[0; 14][..], &[0x08, 0x00], &v4].concat();
    let cooked_2 = [&[0x86, 0xdd][..], &[0; 18], &v6].concat();
    let mut padded = ethernet(&[], 0x0800, &v4);
    padded.extend_from_slice(&[0; 9]);
    let cases = [
        (1, ethernet(&[tag], 0x0800, &v4)),
        (1, ethernet(&[outer, tag], 0x86dd, &v6)),
        (1, padded),
        (113, cooked),
        (276, cooked_2),
        (101, v4.clone()),
        (101, v6.clone()),
        (228, v4.clone()),
        (229, v6),
        (0, [&[2, 0, 0, 0][..], &v4].concat()),
    ];
    for (link_type, frame) in cases {
        let length = frame.len() as u32;
        let (datagrams, skipped) = read(&classic_file(false, false, link_type, &[(frame, length)]));
        assert_eq!(skipped, Skipped::default(), "link type {link_type}");
        assert_eq!(datagrams[0].payload, PAYLOAD, "link type {link_type}");
    }
}

/// An IP packet of another protocol from 10.1.1.1 to 10.1.1.2.
fn ipv4_of(protocol: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![0x45, 0];
    out.extend_from_slice(&(20 + body.len() as u16).to_be_bytes());
    out.extend_from_slice(&[0, 0, 0x40, 0, 16, protocol, 0, 0, 10, 1, 1, 1, 10, 1, 1, 2]);
    out.extend_from_slice(body);
    out
}

/// A UDP datagram to this port of 10.1.1.2.
fn udp_to(port: u16, body: &[u8]) -> Vec<u8> {
    let mut udp = vec![0x30, 0x39];
    udp.extend_from_slice(&port.to_be_bytes());
    udp.extend_from_slice(&(8 + body.len() as u16).to_be_bytes());
    udp.extend_from_slice(&[0, 0]);
    udp.extend_from_slice(body);
    ipv4_of(17, &udp)
}

#[test]
fn what_a_network_wraps_around_a_frame_is_taken_off() {
    let v4 = ipv4_udp(PAYLOAD);
    let inner = ethernet(&[], 0x0800, &v4);
    let over = |protocol, body: &[u8]| ethernet(&[], 0x0800, &ipv4_of(protocol, body));
    let gre = |head: &[u8], body: &[u8]| over(47, &[head, body].concat());
    let label = |last: u8| [0, 1, last, 64];
    let vxlan = [&[8, 0, 0, 0, 0, 0, 9, 0][..], &inner].concat();
    let geneve = [&[1, 0, 0x65, 0x58, 0, 0, 9, 0, 1, 2, 3, 4][..], &inner].concat();
    let cases = [
        ("MPLS", ethernet(&[], 0x8847, &[&label(0x01)[..], &v4].concat())),
        ("two labels", ethernet(&[], 0x8847, &[&label(0)[..], &label(1), &v4].concat())),
        ("wire", ethernet(&[], 0x8847, &[&label(1)[..], &[0; 4], &inner].concat())),
        ("VN-tag", ethernet(&[], 0x8926, &[&[0, 1, 0, 2, 8, 0][..], &v4].concat())),
        ("E-tag", ethernet(&[], 0x893f, &[&[0, 1, 0, 2, 0, 0, 8, 0][..], &v4].concat())),
        ("PPPoE", ethernet(&[], 0x8864, &[&[0x11, 0, 0, 1, 0, 9, 0, 0x21][..], &v4].concat())),
        ("GRE", gre(&[0, 0, 8, 0], &v4)),
        ("GRE with key", gre(&[0x20, 0, 0x65, 0x58, 1, 2, 3, 4], &inner)),
        ("ERSPAN I", gre(&[0, 0, 0x88, 0xbe], &inner)),
        ("ERSPAN II", gre(&[0x10, 0, 0x88, 0xbe, 0, 0, 0, 1, 0x10, 0, 0, 0, 0, 0, 0, 0], &inner)),
        (
            "ERSPAN III",
            gre(&[&[0x10, 0, 0x22, 0xeb, 0, 0, 0, 1][..], &[0x20; 12]].concat(), &inner),
        ),
        ("IP in IP", over(4, &v4)),
        ("VXLAN", ethernet(&[], 0x0800, &udp_to(4789, &vxlan))),
        ("Geneve", ethernet(&[], 0x0800, &udp_to(6081, &geneve))),
        ("VXLAN in VXLAN", {
            let outer = ethernet(&[], 0x0800, &udp_to(4789, &vxlan));
            let again = [&[8, 0, 0, 0, 0, 0, 9, 0][..], &outer].concat();
            ethernet(&[], 0x0800, &udp_to(4789, &again))
        }),
    ];
    for (name, frame) in cases {
        let length = frame.len() as u32;
        let (datagrams, skipped) = read(&classic_file(false, false, 1, &[(frame, length)]));
        assert_eq!(skipped, Skipped::default(), "{name}");
        assert_eq!(datagrams[0].payload, PAYLOAD, "{name}");
        assert_eq!(datagrams[0].destination.to_string(), "224.0.31.64:14340", "{name}");
    }
}

#[test]
fn a_feed_at_the_port_of_a_tunnel_is_read_as_it_is() {
    for port in [4789, 6081] {
        let frame = ethernet(&[], 0x0800, &udp_to(port, b"\x08\0\0\0 a market datagram"));
        let length = frame.len() as u32;
        let (datagrams, _) = read(&classic_file(false, false, 1, &[(frame, length)]));
        assert_eq!(datagrams[0].destination.port(), port);
    }
}

#[test]
fn what_is_no_whole_datagram_is_counted_by_reason() {
    let udp = ipv4_udp(PAYLOAD);
    let with = |at: usize, value: u8| {
        let mut packet = udp.clone();
        packet[at] = value;
        packet
    };
    let ethernet = |packet: &[u8]| {
        let frame = ethernet(&[], 0x0800, packet);
        let length = frame.len() as u32;
        (frame, length)
    };
    let (whole, length) = ethernet(&udp);
    let frames = [
        (super::tests::ethernet(&[], 0x0806, &[0; 28]), 42),
        ethernet(&with(9, 1)),
        ethernet(&with(6, 0x20)),
        ethernet(&with(25, 7)),
        ethernet(&with(0, 0x44)),
        (whole[..50].to_vec(), length),
        (whole[..50].to_vec(), 50),
        (whole, length),
    ];
    let (datagrams, skipped) = read(&classic_file(false, false, 1, &frames));
    assert_eq!(datagrams.len(), 1);
    let expected = Skipped {
        not_ip: 1,
        other_protocols: 1,
        fragments: 1,
        malformed: 3,
        cut: 1,
        link_type: 0,
        ..Skipped::default()
    };
    assert_eq!(skipped, expected);
    let (none, skipped) = read(&classic_file(false, false, 147, &frames));
    assert_eq!((none.len(), skipped.link_type), (0, 8));
}

#[test]
fn a_capture_cut_anywhere_names_the_record_and_gives_what_is_before() {
    let frame = ethernet(&[], 0x0800, &ipv4_udp(PAYLOAD));
    let length = frame.len() as u32;
    let record = 16 + frame.len();
    let file = classic_file(false, false, 1, &[(frame.clone(), length), (frame, length)]);
    for end in 1..file.len() {
        let mut source = PcapSource::new(&file[..end], "cut.pcap");
        let whole = end.saturating_sub(24) / record;
        for index in 0..whole {
            assert_eq!(source.next_message().unwrap().unwrap().index, index as u64);
        }
        if end >= 24 && (end - 24).is_multiple_of(record) {
            match whole {
                0 => drop(source.next_message().unwrap_err()),
                _ => assert_eq!(source.next_message(), Ok(None)),
            }
            continue;
        }
        let error = source.next_message().unwrap_err();
        let start = if end < 24 { 0 } else { 24 + whole * record };
        assert_eq!((error.index, error.offset), (whole as u64, start as u64));
        assert!(matches!(error.fault, FeedFault::Truncated { .. }), "{error}");
    }
}

#[test]
fn a_pcapng_cut_anywhere_is_an_error_or_ends_between_blocks() {
    let file = ng_file(false, &ethernet(&[], 0x0800, &ipv4_udp(PAYLOAD)));
    let mut ends = 0;
    for end in 1..file.len() {
        let mut source = PcapSource::new(&file[..end], "cut.pcapng");
        let last = loop {
            match source.next_message() {
                Ok(Some(_)) => {}
                other => break other,
            }
        };
        match last {
            Ok(_) => ends += 1,
            Err(error) => assert!(error.offset <= end as u64, "{error}"),
        }
    }
    assert_eq!(ends, 2, "two of four borders between blocks lie behind a packet");
}

#[test]
fn sizes_that_cannot_be_are_refused_before_they_are_read() {
    let mut file = classic_file(false, false, 1, &[(vec![0; 4], 4)]);
    file[24 + 8..24 + 12].copy_from_slice(&u32::MAX.to_le_bytes());
    let error = PcapSource::new(&file[..], "huge").next_message().unwrap_err();
    assert!(matches!(error.fault, FeedFault::TooLarge { .. }), "{error}");
    let mut file = ng_file(false, &[]);
    file[4..8].copy_from_slice(&0x7fff_fffcu32.to_le_bytes());
    let error = PcapSource::new(&file[..], "huge").next_message().unwrap_err();
    assert!(matches!(error.fault, FeedFault::TooLarge { .. }), "{error}");
}

#[test]
fn channels_are_told_apart_by_group_and_port() {
    let a = channel("224.0.31.64:14340".parse().unwrap());
    let b = channel("224.0.32.64:15340".parse().unwrap());
    let c = channel("224.0.31.64:14341".parse().unwrap());
    assert!(a != b && b != c && a != c);
    assert_eq!(a, channel("[::ffff:224.0.31.64]:14340".parse().unwrap()));
}

proptest! {
    #[test]
    fn any_bytes_behind_any_header_end_in_an_end_or_an_error(
        mut bytes in prop::collection::vec(any::<u8>(), 0..400),
        start in 0usize..6,
    ) {
        let header = match start {
            0 => Vec::new(),
            1 => classic_file(false, false, 1, &[]),
            2 => classic_file(true, true, 113, &[]),
            3 => ng_file(false, &bytes),
            4 => ng_file(true, &[]),
            _ => ng_file(false, &[]),
        };
        let file = [header, core::mem::take(&mut bytes)].concat();
        let mut source = PcapSource::new(&file[..], "any");
        let mut messages = 0;
        while let Ok(Some(_)) = source.next_message() {
            messages += 1;
        }
        prop_assert!(messages <= file.len());
    }

    #[test]
    fn any_frame_of_any_link_is_a_datagram_or_a_reason(
        bytes in prop::collection::vec(any::<u8>(), 0..120),
        link in prop::sample::select(vec![0u16, 1, 12, 101, 113, 228, 229, 276, 999]),
        cut in any::<bool>(),
    ) {
        if let Ok(packet) = packet::transport_of(link, &bytes, cut) {
            prop_assert!(bytes.get(packet.payload).is_some());
        }
    }
}
