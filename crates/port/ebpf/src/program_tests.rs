//! The forwarding program beside `Forwarder`, packet by packet, by `BPF_PROG_TEST_RUN`.
//!
//! The kernel runs the loaded program on the packets that a test hands over, as if each had arrived
//! at the interface of a host. The copies leave by this interface, to hardware addresses that
//! nobody has, and a socket of the host sees each copy within the call that runs the program. Every
//! byte of a copy is compared, from the header of Ethernet on. The program writes the time of
//! sending by the kernel's clock: the test checks that the time is that of the run, and then lets
//! the reference write the same time.
//!
//! `EVENFALL_SEEDS` sets the number of packets, to ten times the seeds. A table with its packets is
//! drawn from one seed, which a failing test prints.

use std::mem;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use aya::programs::SchedClassifier;
use aya::{TestRun, TestRunOptions};
use evenfall_core::forward::{DatagramField, HopCode, Match, Patch, Route, Window};
use evenfall_core::{
    Arrival, ClockError, ClockReading, Destination, Forward, ForwardCounters, ForwardId, Forwarder,
    GroupId, Installed, MacKey, Prng, StampedBy, Timestamp, TrafficClass, Transmit,
};
use evenfall_host::checked;
use evenfall_host::clock::MonotonicClock;
use evenfall_host::lab::Lab;

use crate::{KernelForwarder, lacks};

const TABLE: ForwardId = ForwardId(1);
/// The groups have the first child, and both.
const GROUPS: [GroupId; 2] = [GroupId(1), GroupId(2)];
const KEY: [u8; 16] = *b"sixteen of these";
/// Packets of one table.
const PER_TABLE: u64 = 500;
/// Fewest tables of a test, so that every case occurs.
const TABLES_MIN: u64 = 20;
/// Packets of `make test`.
const PACKETS: u64 = 100_000;
/// Where a drawn head has its fields.
const VIEW_AT: u16 = 4;
const NUMBER_AT: u16 = 8;
const FIELDS_BYTES: usize = 16;
/// Bytes of the headers of Ethernet, IP and UDP.
const HEADERS_BYTES: usize = 42;
/// Where the header of IP begins, and where the checksums stand.
const IP_AT: usize = 14;
const UDP_AT: usize = 34;
const IP_SUM_AT: usize = 24;
const UDP_SUM_AT: usize = 40;
/// The shortest packet on which the kernel runs a program: the headers of Ethernet and IP.
const SHORTEST_BYTES: usize = UDP_AT;
/// The longest packet of IP on the link.
const MTU: usize = 1_500;
/// Bytes of `struct __sk_buff`, and the offsets of three of its fields.
const CONTEXT_BYTES: usize = 192;
const MARK_AT: usize = 8;
const INTERFACE_AT: usize = 40;
const SEGMENTS_AT: usize = 164;
/// The field "type of service" of copies.
const TOS: u8 = 0xb8;
/// How far the kernel's quick reading of the clock may be off.
const CLOCK_SLACK_NS: u64 = 1_000_000;

/// Both ends of a packet.
#[derive(Clone, Copy, Debug)]
struct Ends {
    from_mac: [u8; 6],
    to_mac: [u8; 6],
    from: SocketAddrV4,
    to: SocketAddrV4,
}

/// The fields of a header of IP that a test chooses.
#[derive(Clone, Copy, Debug)]
struct IpFields {
    tos: u8,
    id: u16,
    flags: u16,
    time_to_live: u8,
}

const ARRIVING: IpFields = IpFields { tos: 0x08, id: 0x1234, flags: 0, time_to_live: 9 };
const LEAVING: IpFields = IpFields { tos: TOS, id: 0, flags: 0x4000, time_to_live: 64 };

/// Adds up the words of the Internet checksum.
fn add_words(bytes: &[u8]) -> u32 {
    let pairs = bytes.chunks_exact(2);
    let odd = pairs.remainder().first().map_or(0, |odd| u32::from(*odd) << 8);
    pairs.map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum::<u32>() + odd
}

fn fold_sum(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The sum over a datagram and its pseudo header: all ones where the checksum of UDP is right.
fn datagram_sum(packet: &[u8]) -> u16 {
    let len = (packet.len() - UDP_AT) as u32;
    fold_sum(add_words(&packet[26..34]) + 17 + len + add_words(&packet[UDP_AT..]))
}

/// Makes the checksums of IP and UDP right.
fn write_sums(packet: &mut [u8]) {
    packet[IP_SUM_AT..IP_SUM_AT + 2].fill(0);
    let sum = !fold_sum(add_words(&packet[IP_AT..UDP_AT]));
    packet[IP_SUM_AT..IP_SUM_AT + 2].copy_from_slice(&sum.to_be_bytes());
    packet[UDP_SUM_AT..UDP_SUM_AT + 2].fill(0);
    let sum = match !datagram_sum(packet) {
        0 => 0xffff,
        sum => sum,
    };
    packet[UDP_SUM_AT..UDP_SUM_AT + 2].copy_from_slice(&sum.to_be_bytes());
}

fn build_packet(ends: &Ends, ip: IpFields, payload: &[u8]) -> Vec<u8> {
    let datagram = (8 + payload.len()) as u16;
    let mut packet = Vec::with_capacity(HEADERS_BYTES + payload.len());
    packet.extend_from_slice(&ends.to_mac);
    packet.extend_from_slice(&ends.from_mac);
    packet.extend_from_slice(&[8, 0, 0x45, ip.tos]);
    packet.extend_from_slice(&(20 + datagram).to_be_bytes());
    packet.extend_from_slice(&ip.id.to_be_bytes());
    packet.extend_from_slice(&ip.flags.to_be_bytes());
    packet.extend_from_slice(&[ip.time_to_live, 17, 0, 0]);
    packet.extend_from_slice(&ends.from.ip().octets());
    packet.extend_from_slice(&ends.to.ip().octets());
    packet.extend_from_slice(&ends.from.port().to_be_bytes());
    packet.extend_from_slice(&ends.to.port().to_be_bytes());
    packet.extend_from_slice(&datagram.to_be_bytes());
    packet.extend_from_slice(&[0, 0]);
    packet.extend_from_slice(payload);
    write_sums(&mut packet);
    packet
}

/// The source and the payload of a packet that the host hands to the socket at `ends.to`, if the
/// checksum of UDP is right. `None` also where the packet has fragments, options or a length that
/// are left to the process.
fn read_packet<'a>(packet: &'a [u8], ends: &Ends) -> Option<(SocketAddr, &'a [u8])> {
    let (ethernet, ip) = packet.split_at_checked(IP_AT)?;
    let (header, rest) = ip.split_at_checked(20)?;
    let (udp, payload) = rest.split_at_checked(8)?;
    let word = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let is_ours = ethernet[..6] == ends.to_mac
        && header[16..20] == ends.to.ip().octets()
        && word(udp, 2) == ends.to.port();
    let is_plain = ethernet[12..] == [8, 0]
        && header[0] == 0x45
        && header[9] == 17
        && word(header, 6) & 0x3fff == 0
        && fold_sum(add_words(header)) == 0xffff
        && word(udp, 6) != 0;
    let is_whole = usize::from(word(header, 2)) == ip.len()
        && usize::from(word(udp, 4)) == rest.len()
        && !payload.is_empty();
    let from = [header[12], header[13], header[14], header[15]];
    let from = SocketAddrV4::new(from.into(), word(udp, 0));
    (is_ours && is_plain && is_whole).then_some((from.into(), payload))
}

/// A socket that sees the packets of an interface.
struct Capture(OwnedFd);

impl Capture {
    fn open(interface: u32) -> Self {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers; the result is checked before it is owned.
        let fd = checked(unsafe { libc::socket(libc::AF_PACKET, kind, 0) }).unwrap();
        // SAFETY: `socket` returned this descriptor, and no other value owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: the structure is plain integers, for which zero is a value.
        let mut name: libc::sockaddr_ll = unsafe { mem::zeroed() };
        name.sll_family = libc::AF_PACKET as u16;
        name.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        name.sll_ifindex = interface as i32;
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: `name` outlives the call, and `len` is its length.
        checked(unsafe { libc::bind(fd.as_raw_fd(), (&raw const name).cast(), len) }).unwrap();
        Self(fd)
    }

    /// The packets that this address has sent since the last call.
    fn take_sent(&self, from: Ipv4Addr) -> Vec<Vec<u8>> {
        let (mut packets, mut room) = (Vec::new(), [0_u8; 2_048]);
        loop {
            // SAFETY: the structure is plain integers, for which zero is a value.
            let mut name: libc::sockaddr_ll = unsafe { mem::zeroed() };
            let mut name_len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            // SAFETY: the pointers and the lengths describe `room` and `name`, which outlive the
            // call.
            let got = unsafe {
                libc::recvfrom(
                    self.0.as_raw_fd(),
                    room.as_mut_ptr().cast(),
                    room.len(),
                    libc::MSG_DONTWAIT,
                    (&raw mut name).cast(),
                    &raw mut name_len,
                )
            };
            let Ok(len) = usize::try_from(got) else { return packets };
            let packet = &room[..len];
            let is_sent = name.sll_pkttype == libc::PACKET_OUTGOING;
            if is_sent && len >= HEADERS_BYTES && packet[26..30] == from.octets() {
                packets.push(packet.to_vec());
            }
        }
    }
}

/// What the program did with a packet.
struct Ran {
    is_marked: bool,
    copies: Vec<Vec<u8>>,
}

/// The program at the interface of a host, and the reference beside it.
struct Bench {
    forwarder: KernelForwarder,
    reference: Forwarder,
    capture: Capture,
    arriving: Ends,
    leaving: [Ends; 2],
    reading: ClockReading,
    /// Where the program writes the time of sending.
    sync_at: Option<usize>,
    /// Looks at the counters, which have a time of their own.
    looks: u64,
    /// The seed and the number of the packet, for people.
    place: (u64, u64),
}

fn child_address(child: u8) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 50 + child), 7_100 + u16::from(child))
}

fn child_mac(child: u8) -> [u8; 6] {
    [2, 0xef, 0, 0, 0x77, child]
}

/// A host with neighbours that nobody is. Says in one line why there is none.
fn new_lab() -> Option<Lab> {
    if let Some(lacks) = lacks() {
        println!("skipped: runs of the program: without {lacks}");
        return None;
    }
    let lab = Lab::new(1).inspect_err(|error| println!("skipped: hosts: {error}")).ok()?;
    for child in 0..2 {
        let mac = child_mac(child).map(|byte| format!("{byte:02x}")).join(":");
        let at = child_address(child).ip().to_string();
        let neighbour = ["neigh", "replace", &at, "lladdr", &mac, "dev", "eth0", "nud"];
        let mut ip = Command::new("ip");
        ip.args(["-n", &lab.name(0)]).args(neighbour).arg("permanent");
        assert!(ip.status().unwrap().success(), "{at}");
    }
    Some(lab)
}

impl Bench {
    /// Attaches the program in the network namespace of this thread.
    fn attach(address: Ipv4Addr) -> Self {
        let at = SocketAddrV4::new(address, 7_000);
        let mut forwarder = KernelForwarder::attach(at.into(), TOS).unwrap();
        let link = forwarder.netlink.link(forwarder.interface).unwrap();
        let publisher = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 40), 6_999);
        let from_mac = [2, 0xef, 0, 0, 0x77, 40];
        let arriving = Ends { from_mac, to_mac: link.mac, from: publisher, to: at };
        let leaving = [0, 1].map(|child| {
            let (to_mac, to) = (child_mac(child), child_address(child));
            Ends { from_mac: link.mac, to_mac, from: at, to }
        });
        let both: Arc<[SocketAddr]> = leaving.iter().map(|ends| ends.to.into()).collect();
        let first: Arc<[SocketAddr]> = Arc::new([both[0]]);
        forwarder.install_group(0, GROUPS[0], &first);
        forwarder.install_group(0, GROUPS[1], &both);
        assert!(forwarder.groups.values().all(|group| group.is_known), "the ways are known");
        let capture = Capture::open(forwarder.interface);
        let reading = ClockReading { offset_ns: 0, error: ClockError::SameClock };
        let (reference, sync_at, looks, place) = (Forwarder::default(), None, 0, (0, 0));
        Self { forwarder, reference, capture, arriving, leaving, reading, sync_at, looks, place }
    }

    /// Installs the table of a seed in the kernel and in the reference.
    fn begin_table(&mut self, prng: &mut Prng, seed: u64) -> Arc<Forward> {
        let table = Arc::new(draw_table(prng, self.arriving.from));
        let error = if seed % 5 == 4 { ClockError::Disproved } else { ClockError::SameClock };
        self.reading = ClockReading { offset_ns: 1_000_000_007 * (seed % 3) as i64, error };
        self.forwarder.adopt_clock(self.reading);
        let installed = self.forwarder.install_forward(0, TABLE, Some(&table));
        assert_eq!(installed, Installed::Taken, "seed {seed}: {table:?}");
        self.reference = Forwarder::default();
        self.reference.adopt_clock(self.reading);
        assert_eq!(self.reference.install(0, TABLE, Some(&table)), Installed::Taken);
        self.sync_at = table.patches.iter().find_map(|patch| match patch {
            Patch::SyncTime(at) => Some(usize::from(*at)),
            _ => None,
        });
        table
    }

    /// Runs the program on a packet, as one that has so many segments.
    fn run_program(&mut self, packet: &[u8], segments: u32) -> Ran {
        let mut context = [0_u8; CONTEXT_BYTES];
        let interface = self.forwarder.interface.to_ne_bytes();
        context[INTERFACE_AT..INTERFACE_AT + 4].copy_from_slice(&interface);
        context[SEGMENTS_AT..SEGMENTS_AT + 4].copy_from_slice(&segments.to_ne_bytes());
        let (mut after, mut out) = ([0_u8; CONTEXT_BYTES], vec![0_u8; packet.len()]);
        let program = self.forwarder.ebpf.program("evenfall_forward").expect("it is loaded");
        let program: &SchedClassifier = program.try_into().expect("a program of TC");
        let ran = program.test_run(TestRunOptions {
            data_in: Some(packet),
            data_out: Some(&mut out),
            ctx_in: Some(&context),
            ctx_out: Some(&mut after),
            ..TestRunOptions::default()
        });
        let ran = ran.unwrap_or_else(|error| panic!("{:?}: {error:?}: {packet:?}", self.place));
        assert_eq!(ran.return_value, u32::MAX, "{:?}: the next program decides", self.place);
        assert_eq!(out, packet, "{:?}: the socket gets it as it came", self.place);
        let mark: [u8; 4] = after[MARK_AT..MARK_AT + 4].try_into().expect("four bytes");
        let mark = u32::from_ne_bytes(mark);
        let is_marked = mark == self.forwarder.mark();
        assert!(is_marked || mark == 0, "{:?}: the mark {mark:#x}", self.place);
        Ran { is_marked, copies: self.capture.take_sent(*self.arriving.to.ip()) }
    }

    /// Runs the program on a packet, and compares what it did with what the reference does. What
    /// the program sends on, the reference must send on too. Of a `plain` packet the reverse holds
    /// as well. Returns whether the packet was sent on.
    fn play_packet(&mut self, packet: &[u8], segments: u32, plain: bool) -> bool {
        let before = MonotonicClock::now();
        let ran = self.run_program(packet, segments);
        let after = MonotonicClock::now();
        let read = read_packet(packet, &self.arriving);
        let arrival = |(from, payload): (SocketAddr, &[u8])| {
            Arrival::new(from, payload.to_vec().into(), after, StampedBy::User)
        };
        if !ran.is_marked {
            assert!(ran.copies.is_empty(), "{:?}: copies of {packet:?}", self.place);
            if plain {
                let mut arrival = arrival(read.expect("a plain packet"));
                self.reference.offer(after, &mut arrival, |_, transmit| fits_link(&transmit));
                assert!(!arrival.is_forwarded, "{:?}: left to the process", self.place);
            }
            return false;
        }
        let Some(read) = read else { panic!("{:?}: sent on: {packet:?}", self.place) };
        let now = self.read_time(&ran.copies[0], before, after);
        let mut left = None;
        self.reference
            .offer(now, &mut arrival(read), |_, transmit| left.replace(transmit).is_none());
        let Some(left) = left else { panic!("{:?}: sent on: {packet:?}", self.place) };
        self.check_copies(packet, &ran.copies, &left);
        true
    }

    fn check_copies(&self, packet: &[u8], copies: &[Vec<u8>], left: &Transmit) {
        let members = if left.to == Destination::Group(GROUPS[0]) { 1 } else { 2 };
        assert_eq!(copies.len(), members, "{:?}: {left:?}", self.place);
        let bytes = [left.head.as_slice(), &left.body].concat();
        for (copy, ends) in copies.iter().zip(&self.leaving) {
            let mut expected = build_packet(ends, LEAVING, &bytes);
            if datagram_sum(packet) != 0xffff {
                assert_ne!(datagram_sum(copy), 0xffff, "{:?}: a child takes it", self.place);
                let sum = UDP_SUM_AT..UDP_SUM_AT + 2;
                expected[sum.clone()].copy_from_slice(&copy[sum]);
            }
            assert_eq!(copy, &expected, "{:?}: {packet:?}", self.place);
        }
    }

    /// The local time at which the program sent a copy: as the copy says, where it says a time.
    fn read_time(&self, copy: &[u8], before: Timestamp, after: Timestamp) -> Timestamp {
        let Some(at) = self.sync_at.map(|at| HEADERS_BYTES + at) else { return after };
        let written = u64::from_le_bytes(copy[at..at + 8].try_into().expect("eight bytes"));
        if self.reading.error == ClockError::Disproved {
            assert_eq!(written, 0, "{:?}: the time of a disproved clock", self.place);
            return after;
        }
        let local = written.wrapping_sub(self.reading.offset_ns as u64);
        let range = before.nanos() - CLOCK_SLACK_NS..=after.nanos() + CLOCK_SLACK_NS;
        assert!(range.contains(&local), "{:?}: {local} in {range:?}", self.place);
        Timestamp::from_nanos(local)
    }

    /// Forgets the table, after its counters were compared with those of the reference.
    fn end_table(&mut self) -> ForwardCounters {
        let (mut told, mut counted) = (ForwardCounters::default(), ForwardCounters::default());
        self.reference.take_counters(|_, _, counters| told += counters);
        self.look_at_counters(&mut counted);
        assert_eq!(counted, told, "{:?}", self.place);
        self.forwarder.install_forward(0, TABLE, None);
        told
    }

    fn look_at_counters(&mut self, counted: &mut ForwardCounters) {
        self.looks += 1;
        let now = Timestamp::ZERO + Duration::from_secs(self.looks);
        let looked = self.forwarder.look(now, |_, id, counters| {
            assert_eq!(id, TABLE);
            *counted += counters;
        });
        assert!(looked);
    }
}

fn fits_link(transmit: &Transmit) -> bool {
    transmit.head.as_slice().len() + transmit.body.len() + 28 <= MTU
}

fn draw_bytes(prng: &mut Prng, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&prng.next_u64().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn draw_below(prng: &mut Prng, bound: usize) -> usize {
    prng.below(bound as u64) as usize
}

/// A table over heads of a drawn length.
fn draw_table(prng: &mut Prng, source: SocketAddrV4) -> Forward {
    let is_keyed = prng.chance(0.7);
    let head_bytes = FIELDS_BYTES + 8 * draw_below(prng, 13) + if is_keyed { 8 } else { 3 };
    let code_at = head_bytes - 8 - draw_below(prng, 2);
    let code = is_keyed.then(|| {
        let first = draw_below(prng, code_at / 8 + 1) * 8;
        HopCode::new(&KEY, first as u8, 8 * prng.below(3) as u8, code_at as u8)
    });
    let matched =
        Match::Bytes(DatagramField::new(0, &draw_bytes(prng, 4)[..1 + draw_below(prng, 4)]));
    let first = prng.below(3) as u32;
    let within = Match::Within { at: VIEW_AT, first, last: first + prng.below(3) as u32 };
    let mut routes = vec![Route { matches: vec![within], to: GROUPS[draw_below(prng, 2)] }];
    if prng.chance(0.7) {
        routes.push(Route { matches: Vec::new(), to: GROUPS[draw_below(prng, 2)] });
    }
    // The code is written last, over a time that it would overlap.
    let free = if is_keyed { code_at } else { head_bytes };
    let sync_at = (prng.chance(0.5) && free >= 8).then(|| draw_below(prng, free - 7));
    let mut patches: Vec<_> = sync_at.iter().map(|at| Patch::SyncTime(*at as u16)).collect();
    for _ in 0..prng.below(6) {
        let len = 1 + draw_below(prng, 16.min(head_bytes));
        let at = draw_below(prng, head_bytes - len + 1);
        // The program has no order between a time and a patch of one place.
        if sync_at.is_none_or(|sync| at + len <= sync || sync + 8 <= at) {
            patches.push(Patch::Bytes(DatagramField::new(at as u16, &draw_bytes(prng, len))));
        }
    }
    Forward {
        patches,
        class: TrafficClass::Live,
        sources: vec![source.into()],
        matches: vec![matched],
        routes,
        window: Window { at: NUMBER_AT, frames: 1 + prng.below(100) as u32 },
        head_bytes: head_bytes as u8,
        code,
    }
}

/// Writes the right code into a datagram that is long enough.
fn write_code(table: &Forward, bytes: &mut [u8]) {
    let Some(code) = &table.code else { return };
    let Some(last) = bytes.len().checked_sub(code.last()) else { return };
    if last >= usize::from(table.head_bytes) {
        let right = MacKey::new(0, &KEY).mac(&[&bytes[..code.first()], &bytes[last..]]);
        bytes[code.at()..code.at() + 8].copy_from_slice(&right.to_le_bytes());
    }
}

/// A datagram that mostly matches.
fn draw_datagram(prng: &mut Prng, table: &Forward, next: &mut u64) -> Vec<u8> {
    let number = (*next + prng.below(9)).saturating_sub(prng.below(40));
    *next = (*next).max(number + 1);
    let number = if prng.chance(0.01) { u64::MAX } else { number };
    let body = if prng.chance(0.005) { MTU } else { draw_below(prng, 200) };
    let mut bytes = draw_bytes(prng, usize::from(table.head_bytes) + body);
    let [Match::Bytes(field)] = table.matches[..] else { panic!("drawn so") };
    bytes[..field.bytes().len()].copy_from_slice(field.bytes());
    bytes[4..8].copy_from_slice(&(prng.below(6) as u32).to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    write_code(table, &mut bytes);
    if prng.chance(0.1) {
        let at = draw_below(prng, bytes.len());
        // A number far ahead would leave all numbers after it behind the window.
        let bit = if (9..16).contains(&at) { 0 } else { 1 << prng.below(8) };
        bytes[at] ^= bit;
    }
    if prng.chance(0.03) {
        bytes.truncate(1 + draw_below(prng, bytes.len()));
    }
    bytes
}

/// The number of packets: ten times the seeds that a long run asks for.
fn count_packets() -> u64 {
    let seeds = std::env::var("EVENFALL_SEEDS").ok();
    seeds.map_or(PACKETS, |text| 10 * text.parse::<u64>().expect("EVENFALL_SEEDS is a number"))
}

fn play_drawn(bench: &mut Bench, seed: u64) -> ForwardCounters {
    let mut prng = Prng::new(seed);
    let table = bench.begin_table(&mut prng, seed);
    let mut next = prng.below(1_000);
    for number in 0..PER_TABLE {
        bench.place = (seed, number);
        let payload = draw_datagram(&mut prng, &table, &mut next);
        let mut ends = bench.arriving;
        if prng.chance(0.02) {
            ends.from.set_port(6_998);
        }
        let ip = IpFields { id: prng.next_u64() as u16, ..ARRIVING };
        let packet = build_packet(&ends, ip, &payload);
        bench.play_packet(&packet, 0, true);
    }
    bench.end_table()
}

#[test]
fn the_program_sends_on_what_the_reference_does_to_the_byte() {
    let Some(lab) = new_lab() else { return };
    let (address, tables) = (lab.address(0), count_packets().div_ceil(PER_TABLE).max(TABLES_MIN));
    let sum = lab.within(0, || {
        let mut bench = Bench::attach(address);
        let mut sum = ForwardCounters::default();
        (0..tables).for_each(|seed| sum += play_drawn(&mut bench, seed));
        sum
    });
    let sum = sum.unwrap();
    println!("{} packets, seeds 0 to {}: {sum:?}", tables * PER_TABLE, tables - 1);
    let least = [tables * PER_TABLE / 10, 1, 1, 1];
    let got = [sum.forwarded, sum.duplicates, sum.behind, sum.refused];
    assert!(got.iter().zip(least).all(|(got, least)| *got >= least), "{sum:?}");
}

/// What is wrong with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    /// Nothing, so that the table has numbers to look for.
    None,
    /// Any bytes.
    Random,
    /// The packet ends early.
    Truncated,
    /// A bit is flipped, and the checksums do not know.
    Flipped,
    /// A bit of the headers or of the head is flipped, under right checksums.
    Forged,
    /// A header of IP with options.
    Options,
    /// A part of a larger packet.
    Fragment,
    /// No checksum of UDP.
    Unsummed,
    /// A tag of a virtual network before the header of IP.
    Tagged,
    /// A length of IP or UDP that is not that of the packet.
    Length,
    /// Bytes behind the end of the packet of IP.
    Padded,
    /// A buffer of several datagrams.
    Segments,
    /// A right packet for the hardware address of another host.
    OtherHost,
}

const HARMS: [Harm; 13] = [
    Harm::None,
    Harm::Random,
    Harm::Truncated,
    Harm::Flipped,
    Harm::Forged,
    Harm::Options,
    Harm::Fragment,
    Harm::Unsummed,
    Harm::Tagged,
    Harm::Length,
    Harm::Padded,
    Harm::Segments,
    Harm::OtherHost,
];

fn flip_bit(prng: &mut Prng, bytes: &mut [u8]) {
    let at = draw_below(prng, bytes.len());
    bytes[at] ^= 1 << prng.below(8);
}

/// Harms a right packet. Returns the number of its segments.
fn harm_packet(prng: &mut Prng, packet: &mut Vec<u8>, harm: Harm) -> u32 {
    let head = (HEADERS_BYTES + 40).min(packet.len());
    match harm {
        Harm::None => {}
        Harm::Random => {
            let len = SHORTEST_BYTES + draw_below(prng, 200);
            *packet = draw_bytes(prng, len);
        }
        Harm::Truncated => {
            let rest = packet.len() - SHORTEST_BYTES;
            packet.truncate(SHORTEST_BYTES + draw_below(prng, rest));
        }
        Harm::Flipped => flip_bit(prng, packet),
        Harm::Forged => {
            flip_bit(prng, &mut packet[..head]);
            write_sums(packet);
        }
        Harm::Options => {
            packet[IP_AT] = 0x46;
            drop(packet.splice(UDP_AT..UDP_AT, [1, 1, 1, 1]));
            let len = (packet.len() - IP_AT) as u16;
            packet[16..18].copy_from_slice(&len.to_be_bytes());
            write_sums(packet);
        }
        Harm::Fragment => {
            let flags = (1 + prng.below(0x3fff)) as u16;
            packet[20..22].copy_from_slice(&flags.to_be_bytes());
            write_sums(packet);
        }
        Harm::Unsummed => packet[UDP_SUM_AT..UDP_SUM_AT + 2].fill(0),
        Harm::Tagged => drop(packet.splice(12..12, [0x81, 0, 0, 7])),
        Harm::Length => {
            let at = if prng.chance(0.5) { 17 } else { 39 };
            packet[at] ^= 1 << prng.below(8);
            write_sums(packet);
        }
        Harm::Padded => packet.resize(packet.len() + 1 + draw_below(prng, 20), 0),
        Harm::Segments => return 2 + prng.below(62) as u32,
        Harm::OtherHost => packet[5] ^= 1 << prng.below(8),
    }
    0
}

#[test]
fn nothing_that_the_machine_would_refuse_is_sent_on_whatever_the_bytes() {
    let Some(lab) = new_lab() else { return };
    let (address, tables) = (lab.address(0), (count_packets() / 5 / PER_TABLE).max(TABLES_MIN));
    let work = || {
        let mut bench = Bench::attach(address);
        let (mut sent_on, mut counters) = ([0_u64; HARMS.len()], ForwardCounters::default());
        for seed in 0..tables {
            let mut prng = Prng::new(seed ^ 0x4a12_0000_0000);
            let table = bench.begin_table(&mut prng, seed);
            let mut next = prng.below(1_000);
            for number in 0..PER_TABLE {
                bench.place = (seed, number);
                let payload = draw_datagram(&mut prng, &table, &mut next);
                let mut packet = build_packet(&bench.arriving, ARRIVING, &payload);
                let harm = if prng.chance(0.5) { 0 } else { draw_below(&mut prng, HARMS.len()) };
                let segments = harm_packet(&mut prng, &mut packet, HARMS[harm]);
                let plain = HARMS[harm] == Harm::None;
                sent_on[harm] += u64::from(bench.play_packet(&packet, segments, plain));
            }
            bench.look_at_counters(&mut counters);
            bench.forwarder.install_forward(0, TABLE, None);
        }
        (sent_on, counters)
    };
    let (sent_on, counters) = lab.within(0, work).unwrap();
    println!("{} packets, seeds 0 to {}:", tables * PER_TABLE, tables - 1);
    HARMS.iter().zip(sent_on).for_each(|(harm, count)| println!("  {harm:?}: {count} sent on"));
    assert_eq!(counters.forwarded, sent_on.iter().sum::<u64>(), "none is sent on unseen");
    // A flipped bit in a field that nobody reads, or in the body of a datagram, does no harm that
    // the head could show.
    let may_leave = [Harm::None, Harm::Flipped, Harm::Forged];
    for (harm, count) in HARMS.iter().zip(sent_on) {
        assert_eq!(count > 0, may_leave.contains(harm), "{harm:?}: {count}");
    }
}
