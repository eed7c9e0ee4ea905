//! The kernel forwards drawn datagrams by drawn tables as `Forwarder` does, over links.
//!
//! A host publishes, a second host forwards by its kernel, and two hosts receive. All hosts compute
//! and check checksums, so that a copy with a wrong sum never arrives. `EVENFALL_DRAWN` sets the
//! number of datagrams. Many more are drawn without links in
//! `crates/port/ebpf/src/program_tests.rs`.
#![cfg(feature = "ebpf")]
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::forward::{DatagramField, HopCode, Match, Patch, Route, Window};
use evenfall_core::{
    Arrival, Destination, Forward, ForwardCounters, ForwardId, Forwarder, GroupId, Head, Install,
    Installed, MacKey, Prng, StampedBy, TrafficClass, Transmit,
};
use evenfall_host::clock::MonotonicClock;
use evenfall_host::lab::Lab;
use evenfall_port::{Answer, Options, Port, PortKind, Wake};

const TABLE: ForwardId = ForwardId(1);
const GROUPS: [GroupId; 2] = [GroupId(1), GroupId(2)];
const KEY: [u8; 16] = *b"sixteen of these";
const PATIENCE: Duration = Duration::from_secs(10);
/// Datagrams of one table.
const PER_TABLE: u64 = 1_000;
/// Where a drawn head has its fields.
const VIEW_AT: u16 = 4;
const NUMBER_AT: u16 = 8;
const FIELDS_BYTES: usize = 16;

/// One datagram, or none after the time that it could take.
fn receive(port: &mut dyn Port) -> Option<Arrival> {
    let mut arrivals = Vec::new();
    let end = MonotonicClock::now() + PATIENCE;
    while port.receive(&mut arrivals) == 0 {
        if port.wait(None, Some(end)) == Wake::Deadline {
            return None;
        }
    }
    assert_eq!(arrivals.len(), 1, "one datagram is under way at a time");
    arrivals.pop()
}

/// A publisher, a proxy and its two children, which are in the groups `[first]` and `[both]`.
struct Line {
    ports: Vec<Box<dyn Port>>,
    _lab: Lab,
}

impl Line {
    fn new() -> Option<Self> {
        if let Some(lacks) = PortKind::Tc.lacks() {
            println!("skipped: ports of kind tc: {lacks}");
            return None;
        }
        let lab = Lab::new(4).inspect_err(|error| println!("skipped: hosts: {error}")).ok()?;
        let open = |host: usize| {
            lab.turn_off_checksums(host).unwrap();
            let kind = if host == 1 { PortKind::Tc } else { PortKind::Udp };
            let options = Options { kind, ..Options::default().keyed() };
            let address = (lab.address(host), 0).into();
            lab.within(host, || evenfall_port::open(address, options)).unwrap().unwrap()
        };
        let mut line = Self { ports: (0..4).map(open).collect(), _lab: lab };
        let members: Vec<_> = line.ports[2..].iter().map(|port| port.local_addr()).collect();
        let proxy = line.ports[1].as_mut();
        proxy.install(0, &Install::Group(GROUPS[0], members[..1].into())).unwrap();
        proxy.install(0, &Install::Group(GROUPS[1], members[..].into())).unwrap();
        Some(line)
    }

    fn send(&mut self, from: usize, bytes: &[u8]) -> Arrival {
        let to = Destination::One(self.ports[1].local_addr());
        let (head, body) = bytes.split_at(bytes.len().min(16));
        let body = Bytes::copy_from_slice(body);
        self.ports[from]
            .send(0, Transmit::new(TrafficClass::Live, to, Head::new(head), body))
            .unwrap();
        self.ports[from].flush();
        receive(self.ports[1].as_mut()).expect("the proxy gets every datagram")
    }
}

fn draw_bytes(prng: &mut Prng, len: u64) -> Vec<u8> {
    (0..len).map(|_| prng.below(256) as u8).collect()
}

/// A table over heads of a drawn length.
fn draw_table(prng: &mut Prng, line: &Line) -> Forward {
    let is_keyed = prng.chance(0.7);
    let head_bytes = FIELDS_BYTES + 8 * prng.below(13) as usize + if is_keyed { 8 } else { 3 };
    let code = is_keyed.then(|| {
        let at = head_bytes - 8 - prng.below(2) as usize;
        let first = prng.below(at as u64 / 8 + 1) * 8;
        HopCode::new(&KEY, first as u8, 8 * prng.below(3) as u8, at as u8)
    });
    let matched =
        Match::Bytes(DatagramField::new(0, &draw_bytes(prng, 4)[..1 + prng.below(4) as usize]));
    let first = prng.below(3) as u32;
    let within = Match::Within { at: VIEW_AT, first, last: first + prng.below(3) as u32 };
    let mut routes = vec![Route { matches: vec![within], to: GROUPS[prng.below(2) as usize] }];
    if prng.chance(0.7) {
        routes.push(Route { matches: Vec::new(), to: GROUPS[prng.below(2) as usize] });
    }
    let patches = (0..prng.below(6)).map(|_| {
        let len = 1 + prng.below(16.min(head_bytes as u64));
        let at = prng.below(head_bytes as u64 - len + 1) as u16;
        Patch::Bytes(DatagramField::new(at, &draw_bytes(prng, len)))
    });
    Forward {
        patches: patches.collect(),
        class: TrafficClass::Live,
        sources: vec![line.ports[0].local_addr()],
        matches: vec![matched],
        routes,
        window: Window { at: NUMBER_AT, frames: 1 + prng.below(100) as u32 },
        head_bytes: head_bytes as u8,
        code,
    }
}

/// A datagram that mostly matches.
fn draw_datagram(prng: &mut Prng, table: &Forward, next: &mut u64) -> Vec<u8> {
    let number = (*next + prng.below(9)).saturating_sub(prng.below(40));
    *next = (*next).max(number + 1);
    let number = if prng.chance(0.01) { u64::MAX } else { number };
    let len = u64::from(table.head_bytes) + prng.below(200);
    let mut bytes = draw_bytes(prng, len);
    let [Match::Bytes(field)] = table.matches[..] else { panic!("drawn so") };
    bytes[..field.bytes().len()].copy_from_slice(field.bytes());
    bytes[4..8].copy_from_slice(&(prng.below(6) as u32).to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    if let Some(code) = &table.code
        && let Some(last) = bytes.len().checked_sub(code.last())
        && last >= usize::from(table.head_bytes)
    {
        let right = MacKey::new(0, &KEY).mac(&[&bytes[..code.first()], &bytes[last..]]);
        bytes[code.at()..code.at() + 8].copy_from_slice(&right.to_le_bytes());
    }
    if prng.chance(0.1) {
        let at = prng.below(bytes.len() as u64) as usize;
        // A number far ahead would leave all numbers after it behind the window.
        let bit = if (9..16).contains(&at) { 0 } else { 1 << prng.below(8) };
        bytes[at] ^= bit;
    }
    if prng.chance(0.03) {
        bytes.truncate(1 + prng.below(len) as usize);
    }
    bytes
}

/// The counters that the port has told, when they cover as many datagrams as the reference counted.
fn counted(port: &mut dyn Port, wanted: ForwardCounters) -> ForwardCounters {
    let (mut sum, mut answers) = (ForwardCounters::default(), Vec::new());
    let end = MonotonicClock::now() + PATIENCE;
    while sum != wanted && MonotonicClock::now() < end {
        port.answers(&mut answers);
        for answer in answers.drain(..) {
            let Answer::Counters(0, TABLE, counters) = answer else { panic!("{answer:?}") };
            sum += counters;
        }
    }
    sum
}

fn play_table(line: &mut Line, seed: u64, count: u64) -> ForwardCounters {
    let mut prng = Prng::new(seed);
    let table = Arc::new(draw_table(&mut prng, line));
    let install = Install::Forward(TABLE, Some(Arc::clone(&table)));
    assert_eq!(line.ports[1].install(0, &install).unwrap(), Installed::Taken, "{table:?}");
    let mut reference = Forwarder::default();
    reference.install(0, TABLE, Some(&table));
    let mut next = prng.below(1_000);
    for n in 0..count {
        let bytes = draw_datagram(&mut prng, &table, &mut next);
        let from = if prng.chance(0.02) { 2 } else { 0 };
        let arrival = line.send(from, &bytes);
        assert_eq!(arrival.datagram[..], bytes[..], "seed {seed}, {n}: as it came");
        let (now, by) = (MonotonicClock::now(), StampedBy::User);
        let mut expected = Arrival::new(arrival.from, bytes.clone().into(), now, by);
        let mut left = None;
        reference.offer(now, &mut expected, |_, transmit| left.replace(transmit).is_none());
        assert_eq!(
            arrival.is_forwarded, expected.is_forwarded,
            "seed {seed}, datagram {n}: {bytes:?} by {table:?}"
        );
        let Some(left) = left else { continue };
        let children = if left.to == Destination::Group(GROUPS[0]) { 2..3 } else { 2..4 };
        let bytes = [left.head.as_slice(), &left.body].concat();
        for child in children {
            let copy = receive(line.ports[child].as_mut()).expect("a copy with a right checksum");
            assert_eq!(copy.datagram[..], bytes[..], "seed {seed}, datagram {n}: {table:?}");
            assert_eq!(copy.from, line.ports[1].local_addr());
        }
    }
    let mut told = ForwardCounters::default();
    reference.take_counters(|_, _, counters| told += counters);
    assert_eq!(counted(line.ports[1].as_mut(), told), told, "seed {seed}: {table:?}");
    line.ports[1].install(0, &Install::Forward(TABLE, None)).unwrap();
    told
}

#[test]
fn the_kernel_forwards_drawn_datagrams_as_the_reference_does() {
    let Some(mut line) = Line::new() else { return };
    let all = std::env::var("EVENFALL_DRAWN").map_or(3 * PER_TABLE, |text| text.parse().unwrap());
    let mut sum = ForwardCounters::default();
    for seed in 0..all.div_ceil(PER_TABLE) {
        sum += play_table(&mut line, seed, PER_TABLE);
    }
    println!("{all} datagrams: {sum:?}");
    assert!(sum.forwarded > all / 10 && sum.duplicates > 0 && sum.behind > 0, "{sum:?}");
    assert!(line.ports[2..].iter_mut().all(|port| port.receive(&mut Vec::new()) == 0));
}
