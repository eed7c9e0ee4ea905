use super::*;
use crate::codec::{ITCH, MDP3};
use crate::itch::SystemEvent;
use crate::mold::{PacketBuilder, SessionId, end_of_session, heartbeat};
use proptest::prelude::*;

/// Destinations of the packets: two channels with two sides, a snapshot channel, a time server.
const A: &str = "224.0.31.1:14310";
const B: &str = "224.0.32.1:15310";
const A2: &str = "224.0.31.2:14311";
const B2: &str = "224.0.32.2:15311";
const SNAPSHOT: &str = "224.0.33.1:16310";
const NTP: &str = "10.0.0.1:123";

/// 2019-12-30 09:30 in New York.
const OPEN_NS: u64 = 1_577_716_200_000_000_000;
const DAY_NS: u64 = 86_400_000_000_000;

/// A capture that is written packet by packet, a microsecond apart.
struct CaptureWriter {
    file: Vec<u8>,
    time_ns: u64,
}

impl CaptureWriter {
    fn new() -> Self {
        let words = [0xa1b2_3c4d, 0x0004_0002, 0, 0, 65_535, 101];
        Self { file: words.map(u32::to_le_bytes).concat(), time_ns: OPEN_NS }
    }

    fn packet(&mut self, protocol: u8, to: &str, transport: &[u8]) {
        let to: core::net::SocketAddrV4 = to.parse().unwrap();
        let bytes = 20 + transport.len();
        let mut ip = vec![0x45, 0];
        ip.extend_from_slice(&(bytes as u16).to_be_bytes());
        ip.extend_from_slice(&[0, 0, 0x40, 0, 16, protocol, 0, 0, 10, 0, 0, 9]);
        ip.extend_from_slice(&to.ip().octets());
        ip.extend_from_slice(transport);
        let (s, ns) = (self.time_ns / 1_000_000_000, self.time_ns % 1_000_000_000);
        for word in [s as u32, ns as u32, bytes as u32, bytes as u32] {
            self.file.extend_from_slice(&word.to_le_bytes());
        }
        self.file.extend_from_slice(&ip);
        self.time_ns += 1_000;
    }

    fn udp(&mut self, to: &str, payload: &[u8]) {
        let port = to.parse::<core::net::SocketAddrV4>().unwrap().port();
        let mut udp = 9_u16.to_be_bytes().to_vec();
        udp.extend_from_slice(&port.to_be_bytes());
        udp.extend_from_slice(&(8 + payload.len() as u16).to_be_bytes());
        udp.extend_from_slice(&[0, 0]);
        udp.extend_from_slice(payload);
        self.packet(17, to, &udp);
    }

    /// A segment of the connection from port 9000.
    fn tcp(&mut self, to: &str, sequence: u32, payload: &[u8]) {
        let port = to.parse::<core::net::SocketAddrV4>().unwrap().port();
        let mut tcp = 9_000_u16.to_be_bytes().to_vec();
        tcp.extend_from_slice(&port.to_be_bytes());
        tcp.extend_from_slice(&sequence.to_be_bytes());
        tcp.extend_from_slice(&[0, 0, 0, 0, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
        tcp.extend_from_slice(payload);
        self.packet(6, to, &tcp);
    }

    fn both(&mut self, payload: &[u8]) {
        self.udp(A, payload);
        self.udp(B, payload);
    }
}

/// A packet of MDP 3.0 with one message of this template.
fn mdp3(sequence: u32, sent_ns: u64, template: u16) -> Vec<u8> {
    let head = [&sequence.to_le_bytes()[..], &sent_ns.to_le_bytes()].concat();
    [head, [10u16, 0, template, 1, 9].map(u16::to_le_bytes).concat()].concat()
}

fn ntp() -> Vec<u8> {
    let mut packet = vec![0x23, 0, 6, 0xec];
    packet.resize(48, 0x5a);
    packet
}

fn itch(tracking_number: u16, timestamp_ns: u64) -> Vec<u8> {
    SystemEvent { tracking_number, timestamp_ns, ..Default::default() }.encode().to_vec()
}

/// A capture that was read to its end.
struct ReadCapture {
    messages: Vec<FeedMessage>,
    end: Result<(), FeedError>,
    copies: Option<CopyCounts>,
    remarks: String,
}

impl ReadCapture {
    /// The numbers of MDP 3.0 packets.
    fn numbers(&self) -> Vec<u32> {
        let number = |m: &FeedMessage| u32::from_le_bytes(*m.bytes.first_chunk().unwrap());
        self.messages.iter().map(number).collect()
    }
}

fn read_as(capture: &CaptureWriter, format: Option<Format>, copies: CopyChoice) -> ReadCapture {
    let options = CaptureOptions { format, ..CaptureOptions::default() };
    let mut source = PcapSource::with_options(&capture.file[..], "capture", options);
    let chosen = source.choose_copies(copies);
    let mut messages = Vec::new();
    let end = chosen.and_then(|()| {
        loop {
            match source.next_message() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        }
    });
    for (message, index) in messages.iter().zip(0..) {
        assert_eq!(message.index, index);
    }
    let remarks = source.remarks().join("\n");
    ReadCapture { messages, end, copies: source.copies(), remarks }
}

fn read(capture: &CaptureWriter) -> ReadCapture {
    read_as(capture, None, CopyChoice::FirstWhereRecognised)
}

#[test]
fn a_stranger_anywhere_in_a_capture_is_skipped_and_named() {
    for at in [0, 1, 300, 999] {
        let mut capture = CaptureWriter::new();
        for n in 0..500 {
            (at / 2 == n).then(|| capture.udp(NTP, &ntp()));
            capture.both(&mdp3(n + 7, 1, 46));
        }
        let read = read(&capture);
        assert_eq!(read.end, Ok(()));
        assert_eq!(read.numbers(), (7..507).collect::<Vec<_>>());
        assert!(read.messages.iter().all(|message| message.format == MDP3));
        assert_eq!(read.copies.unwrap().ignored, 500);
        let words = "1 packet of another protocol: 10.0.0.1:123";
        assert!(read.remarks.contains(words), "{}", read.remarks);
    }
}

#[test]
fn a_stranger_is_skipped_under_a_named_format_too() {
    let mut capture = CaptureWriter::new();
    capture.udp(NTP, &ntp());
    (1..61).for_each(|n| capture.udp(A, &mdp3(n, 1, 46)));
    let named = read_as(&capture, Some(MDP3), CopyChoice::FirstWhereRecognised);
    assert_eq!((named.messages.len(), named.copies), (60, None));
    // On one channel there are no first copies to choose.
    let refused = read_as(&capture, Some(MDP3), CopyChoice::First);
    assert!(matches!(refused.end, Err(FeedError { fault: FeedFault::NoTwoSides { .. }, .. })));
    let whole = read_as(&capture, Some(Format::OPAQUE), CopyChoice::All);
    assert_eq!(whole.messages.len(), 61);
}

#[test]
fn every_pair_of_sides_is_found_and_a_channel_without_a_pair_passes() {
    let mut capture = CaptureWriter::new();
    for n in 1..801 {
        for (channel, sides) in [[A, B], [A2, B2]].iter().enumerate() {
            let packet = mdp3(n, channel as u64, 46);
            sides.iter().for_each(|side| capture.udp(side, &packet));
        }
        // Begins late, with numbers that the other channels have too.
        (n > 600).then(|| capture.udp(SNAPSHOT, &mdp3(n - 600, 3, 52)));
    }
    for copies in [CopyChoice::FirstWhereRecognised, CopyChoice::First] {
        let read = read_as(&capture, None, copies);
        assert_eq!((read.end, read.messages.len()), (Ok(()), 1_800));
        let counts = read.copies.unwrap();
        assert_eq!((counts.delivered, counts.ignored, counts.lost), (1_600, 1_600, 0));
        let mut keys: Vec<u32> = read.messages.iter().map(|message| message.shard_key).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 3);
    }
    assert_eq!(read_as(&capture, None, CopyChoice::All).messages.len(), 3_400);
}

#[test]
fn equal_numbers_of_two_feeds_are_no_copies() {
    let mut capture = CaptureWriter::new();
    for n in 1..61 {
        capture.udp(A, &mdp3(n, 1, 46));
        capture.udp(SNAPSHOT, &mdp3(n, 2, 52));
    }
    assert_eq!(read(&capture).messages.len(), 120);
    let refused = read_as(&capture, None, CopyChoice::First).end.unwrap_err();
    assert!(refused.to_string().contains("2 channels, of which no two have equal"), "{refused}");
}

#[test]
fn numbers_that_begin_anew_on_both_sides_go_on_and_are_said() {
    for first in [1, 980, 5_000_000] {
        let mut capture = CaptureWriter::new();
        (1_000..1_040).for_each(|n| capture.both(&mdp3(n, 1, 46)));
        capture.time_ns += 2 * DAY_NS;
        (first..first + 30).for_each(|n| capture.both(&mdp3(n, 2, 47)));
        let read = read(&capture);
        assert_eq!(read.end, Ok(()), "{first}");
        let expected: Vec<u32> = (1_000..1_040).chain(first..first + 30).collect();
        assert_eq!(read.numbers(), expected, "{first}");
        assert_eq!(read.copies.unwrap().ignored, 70);
        let is_back = first < 1_000;
        assert_eq!(read.remarks.contains("begin anew once"), is_back, "{}", read.remarks);
    }
}

#[test]
fn a_packet_with_other_bytes_on_one_side_ends_in_an_error_after_all_others() {
    let mut capture = CaptureWriter::new();
    for n in 1..41 {
        capture.udp(A, &mdp3(n, 1, 46));
        capture.udp(B, &mdp3(n, 1, if n == 9 { 47 } else { 46 }));
    }
    let read = read(&capture);
    assert_eq!(read.numbers(), (1..41).collect::<Vec<_>>());
    let error = read.end.unwrap_err();
    assert_eq!((error.index, error.fault), (40, FeedFault::NumbersReused { messages: 1 }));
}

#[test]
fn the_slower_side_may_begin_with_earlier_packets() {
    let mut capture = CaptureWriter::new();
    (100..120).for_each(|n| capture.udp(A, &mdp3(n, n.into(), 46)));
    (90..140).for_each(|n| capture.udp(B, &mdp3(n, n.into(), 46)));
    let read = read(&capture);
    assert_eq!(read.numbers(), (90..140).collect::<Vec<_>>());
    // The venue's own times are in order where the times of the capture are not.
    assert!(read.messages.windows(2).all(|pair| pair[0].time_ns < pair[1].time_ns));
}

#[test]
fn a_side_that_begins_behind_the_window_is_still_the_other_side() {
    let mut capture = CaptureWriter::new();
    (1..2_001).for_each(|n| capture.udp(A, &mdp3(n, 1, 46)));
    (1..2_011).for_each(|n| capture.udp(B, &mdp3(n, 1, 46)));
    let read = read(&capture);
    assert_eq!(read.numbers(), (1..2_011).collect::<Vec<_>>());
}

#[test]
fn a_hole_in_the_numbers_of_one_side_is_told() {
    let mut capture = CaptureWriter::new();
    (100..160).filter(|n| !(120..130).contains(n)).for_each(|n| capture.udp(A, &mdp3(n, 1, 46)));
    let read = read(&capture);
    assert_eq!((read.messages.len(), read.copies), (50, None));
    let words = "224.0.31.1:14310: 10 numbers are missing in 1 gap, the first 120";
    assert!(read.remarks.contains(words), "{}", read.remarks);
}

#[test]
fn packets_that_swap_places_are_no_hole() {
    let mut capture = CaptureWriter::new();
    for n in [1, 3, 2, 5, 4, 6] {
        capture.udp(A, &mdp3(n, 1, 46));
    }
    let read = read(&capture);
    assert_eq!((read.numbers(), read.remarks), (vec![1, 3, 2, 5, 4, 6], String::new()));
}

const SESSION: SessionId = SessionId(*b"000000123A");
const NEXT_SESSION: SessionId = SessionId(*b"000000124A");

fn mold(session: SessionId, sequence: u64, messages: &[Vec<u8>]) -> Vec<u8> {
    let mut packet = PacketBuilder::new(session, sequence, 1_400);
    messages.iter().for_each(|message| assert!(packet.push(message)));
    packet.finish()
}

/// Tracking numbers of ITCH messages.
fn tracks(read: &ReadCapture) -> Vec<u16> {
    let track = |m: &FeedMessage| u16::from_be_bytes([m.bytes[3], m.bytes[4]]);
    read.messages.iter().map(track).collect()
}

#[test]
fn moldudp64_is_taken_off_and_gives_messages_with_their_own_times() {
    let mut capture = CaptureWriter::new();
    for (n, ns) in (1..11_u16).zip(34_200_000_000_000..) {
        let packet = mold(SESSION, 2 * u64::from(n) - 1, &[itch(2 * n - 1, ns), itch(2 * n, ns)]);
        // Each side loses another packet, and a heartbeat comes between them.
        (n != 3).then(|| capture.udp(A, &packet));
        (n != 7).then(|| capture.udp(B, &packet));
        capture.both(&heartbeat(SESSION, 2 * u64::from(n) + 1));
    }
    capture.both(&end_of_session(SESSION, 21));
    let first = read(&capture);
    assert_eq!((tracks(&first), &first.end), ((1..21).collect(), &Ok(())));
    assert!(first.messages.iter().all(|message| message.format == ITCH));
    assert_eq!(first.messages[0].time_ns, 34_200_000_000_000);
    let counts = first.copies.unwrap();
    assert_eq!((counts.first_b, counts.lost, counts.ignored), (2, 0, 16));
    assert_eq!(read_as(&capture, None, CopyChoice::All).messages.len(), 36);
}

#[test]
fn a_hole_in_moldudp64_and_a_further_session_are_told() {
    let mut capture = CaptureWriter::new();
    for n in (1..11_u16).filter(|n| *n != 5) {
        capture.udp(A, &mold(SESSION, n.into(), &[itch(n, 1)]));
    }
    capture.udp(A, &end_of_session(SESSION, 13));
    capture.time_ns += DAY_NS;
    for n in 1..11_u16 {
        capture.udp(A, &mold(NEXT_SESSION, n.into(), &[itch(n, 1)]));
    }
    let read = read(&capture);
    assert_eq!(read.messages.len(), 19);
    assert_eq!((read.messages[0].time_ns, read.messages[18].time_ns), (1, DAY_NS + 1));
    assert!(read.remarks.contains("3 numbers are missing in 2 gaps, the first 5"));
    assert!(read.remarks.contains("begin anew once"), "{}", read.remarks);
}

#[test]
fn sides_may_change_the_session_at_different_times() {
    let mut capture = CaptureWriter::new();
    for n in 1..11_u16 {
        capture.udp(A, &mold(SESSION, n.into(), &[itch(n, 1)]));
        (n < 8).then(|| capture.udp(B, &mold(SESSION, n.into(), &[itch(n, 1)])));
    }
    for n in 1..11_u16 {
        capture.udp(A, &mold(NEXT_SESSION, n.into(), &[itch(n, 2)]));
        let late = 7 + u64::from(n);
        (n < 5).then(|| capture.udp(B, &mold(SESSION, late, &[itch(late as u16, 1)])));
    }
    (1..12_u16).for_each(|n| capture.udp(B, &mold(NEXT_SESSION, n.into(), &[itch(n, 2)])));
    let read = read(&capture);
    let mut all = tracks(&read);
    all.sort_unstable();
    let expected: Vec<u16> = (1..12).flat_map(|n| [n, n]).collect();
    assert_eq!((all, read.end), (expected, Ok(())));
}

#[test]
fn moldudp64_of_unknown_messages_still_has_numbers() {
    let mut capture = CaptureWriter::new();
    for n in 1..41 {
        capture.both(&mold(SESSION, 2 * n - 1, &[vec![0xf3; 7], vec![n as u8; 9]]));
    }
    let read = read(&capture);
    assert_eq!((read.messages.len(), read.copies.unwrap().ignored), (80, 80));
    assert!(read.messages.iter().all(|message| message.format == Format::OPAQUE));
    assert!(read.remarks.contains("of no known format"), "{}", read.remarks);
}

fn soup(letter: u8, body: &[u8]) -> Vec<u8> {
    [&(1 + body.len() as u16).to_be_bytes()[..], &[letter], body].concat()
}

const CLIENT: &str = "10.0.0.2:5555";

#[test]
fn soupbintcp_is_put_together_and_taken_off() {
    let login = [&b"000000123A"[..], b"                   1"].concat();
    for with_login in [true, false] {
        let mut stream = if with_login { soup(b'A', &login) } else { Vec::new() };
        for n in 1..41 {
            stream.extend(soup(b'S', &itch(n, n.into())));
            (n % 10 == 0).then(|| stream.extend(soup(b'H', b"")));
        }
        stream.extend(soup(b'Z', b""));
        let mut capture = CaptureWriter::new();
        capture.udp(NTP, &ntp());
        for (chunk, at) in stream.chunks(50).zip(0..) {
            // Segments swap places, and every third is sent twice.
            let at = if at % 4 == 1 {
                at + 1
            } else if at % 4 == 2 {
                at - 1
            } else {
                at
            };
            let chunk = stream.chunks(50).nth(at).unwrap_or(chunk);
            (0..1 + usize::from(at % 3 == 0))
                .for_each(|_| capture.tcp(CLIENT, 1 + 50 * at as u32, chunk));
        }
        let read = read(&capture);
        assert_eq!((tracks(&read), &read.end), ((1..41).collect(), &Ok(())), "{}", read.remarks);
        assert_eq!(read.messages[39].time_ns, 40);
    }
}

#[test]
fn segments_that_the_capture_lost_are_told() {
    let mut capture = CaptureWriter::new();
    let mut sequence = 1;
    for n in 1..41 {
        let packet = soup(b'S', &itch(n, 1));
        (n != 9).then(|| capture.tcp(CLIENT, sequence, &packet));
        sequence += packet.len() as u32;
    }
    let read = read(&capture);
    assert_eq!(read.messages.len(), 39);
    assert!(read.remarks.contains("bytes are missing at 1 places"), "{}", read.remarks);
}

#[test]
fn a_capture_of_which_nothing_is_taken_is_an_error_with_what_it_holds() {
    let error = read(&CaptureWriter::new()).end.unwrap_err();
    assert!(error.to_string().contains("nothing in it is a message of a feed: no packet"));
    let mut capture = CaptureWriter::new();
    capture.tcp(CLIENT, 1, b"GET / HTTP/1.1");
    capture.packet(1, CLIENT, &[0; 8]);
    let error = read(&capture).end.unwrap_err().to_string();
    assert!(error.contains("1 packets of other protocols"), "{error}");
    assert!(error.contains("TCP from 10.0.0.9:9000 to 10.0.0.2:5555"), "{error}");
}

#[test]
fn datagrams_of_no_known_format_are_kept_as_they_are() {
    let mut capture = CaptureWriter::new();
    (0..600_u32).for_each(|n| capture.both(&[&n.to_le_bytes()[..], b" of no format"].concat()));
    let read = read(&capture);
    assert_eq!((read.messages.len(), &read.end), (1_200, &Ok(())));
    assert!(read.remarks.contains("kept as bytes, without types"), "{}", read.remarks);
}

#[test]
fn a_damaged_datagram_of_a_feed_passes_unread_and_is_counted() {
    let mut capture = CaptureWriter::new();
    for n in 1..41 {
        capture.both(&mdp3(n, 1, 46));
        (n == 3).then(|| capture.udp(A, b"no packet"));
    }
    let read = read(&capture);
    assert_eq!((read.messages.len(), &read.end), (41, &Ok(())));
    assert!(read.remarks.contains("1 messages of unknown types"), "{}", read.remarks);
}

proptest! {
    /// Whatever each side loses and wherever the numbers begin anew, all packets come out, and each
    /// once.
    #[test]
    fn first_copies_are_all_packets_and_each_once(
        lost in prop::collection::vec(0u8..3, 30..120),
        session_packets in 8u32..40,
    ) {
        let mut capture = CaptureWriter::new();
        let mut sent = Vec::new();
        // A single packet at the end that only one side has proves no new session.
        let lost = lost.iter().chain(&[2, 2]);
        for (at, lost) in (0..).zip(lost) {
            let packet = mdp3(1 + at % session_packets, at.into(), 46);
            (*lost != 0).then(|| capture.udp(A, &packet));
            (*lost != 1).then(|| capture.udp(B, &packet));
            sent.push(packet);
        }
        let read = read(&capture);
        prop_assert_eq!(read.end, Ok(()));
        let given: Vec<Vec<u8>> = read.messages.iter().map(|m| m.bytes.to_vec()).collect();
        prop_assert_eq!(given, sent);
    }
}
