//! The cost and the delay of a hop, by a proxy that forwards by hand and by its kernel.
//!
//! ```text
//!   host 0            host 1                          host 2
//!   publisher ------> proxy: check, patch, code ----> ten copies to one socket
//! ```
//!
//! All hosts are namespaces of this machine and compute their checksums. The proxy reads every
//! datagram in each row, since its machine keeps a ring and repairs. Three rows take turns:
//!
//! - `udp`: a socket; `Forwarder` in the process, copies by `sendmmsg`;
//! - `tc`: the kernel sends the copies on, and wakes the process for each datagram;
//! - `tc, resting`: the same, and the process wakes once in 2 ms.
//!
//! The time is that of publisher, proxy and `ksoftirqd` per copy. It has the sending of the
//! publisher and the kernel's way up to the receiver's socket, which are the same in every row. The
//! delay is from the publisher's stamp to the kernel's stamp of the last copy at the receiver.
//!
//! ```sh
//! cargo run --release -p evenfall-lab --example ports -- [--json] [RATE]
//! ```
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::forward::{DatagramField, HopCode, Match, Patch, Route, Window};
use evenfall_core::{
    Arrival, ClockError, ClockReading, Destination, Forward, ForwardId, Forwarder, GroupId, Head,
    Install, MacKey, Timestamp, TrafficClass, Transmit,
};
use evenfall_host::clock::{MonotonicClock, thread_cpu};
use evenfall_host::lab::Lab;
use evenfall_host::procstat::ksoftirqd_cpu;
use evenfall_port::{Answer, Options, Port, PortKind};

const ROUNDS: usize = 7;
const SECONDS: f64 = 1.0;
const RATE: f64 = 10_000.0;
const FANOUT: usize = 10;
/// The header of the multicast, a message of 40 bytes with its length, and the tag.
const HEAD_BYTES: usize = 88;
const BODY_BYTES: usize = 58;
const GROUP: GroupId = GroupId(1);
const TABLE: ForwardId = ForwardId(1);
const KEY: [u8; 16] = [9; 16];
const QUIET: Duration = Duration::from_millis(100);
const REST: Duration = Duration::from_millis(2);
const ROWS: [(&str, PortKind, bool); 3] = [
    ("udp", PortKind::Udp, false),
    ("tc", PortKind::Tc, false),
    ("tc, resting", PortKind::Tc, true),
];

fn table(source: SocketAddr) -> Forward {
    Forward {
        class: TrafficClass::Live,
        sources: vec![source],
        matches: vec![Match::Bytes(DatagramField::new(0, b"EF"))],
        routes: vec![Route { matches: Vec::new(), to: GROUP }],
        window: Window { at: 24, frames: 1_024 },
        head_bytes: HEAD_BYTES as u8,
        patches: vec![Patch::Bytes(DatagramField::new(57, &[1])), Patch::SyncTime(72)],
        code: Some(HopCode::new(&KEY, 80, 16, 80)),
    }
}

/// The datagram of a number, which the publisher sends now.
fn transmit(to: SocketAddr, number: u64, body: &Bytes, now: Timestamp) -> Transmit {
    let mut head = [0; HEAD_BYTES];
    head[..2].copy_from_slice(b"EF");
    head[24..32].copy_from_slice(&number.to_le_bytes());
    head[40..48].copy_from_slice(&now.nanos().to_le_bytes());
    let code = MacKey::new(0, &KEY).mac(&[&head[..80], &body[body.len() - 16..]]);
    head[80..].copy_from_slice(&code.to_le_bytes());
    Transmit::new(TrafficClass::Live, Destination::One(to), Head::new(&head), body.clone())
}

/// Sends at a rate. Returns the number of datagrams and the processor time.
fn publish(port: &mut dyn Port, to: SocketAddr, rate: f64, first: u64) -> (u64, Duration) {
    let (cpu, body) = (thread_cpu(), Bytes::from(vec![7; BODY_BYTES]));
    let (start, count) = (MonotonicClock::now(), (SECONDS * rate) as u64);
    for n in 0..count {
        let due = start + Duration::from_secs_f64(n as f64 / rate);
        while MonotonicClock::now() < due {
            port.wait(None, Some(due));
        }
        let transmit = transmit(to, first + n, &body, MonotonicClock::now());
        port.send(0, transmit).expect("room for one datagram");
        port.flush();
    }
    (count, thread_cpu() - cpu)
}

/// What a proxy did.
struct Hop {
    cpu: Duration,
    by_kernel: u64,
}

/// Forwards until it is told to stop.
fn forward(port: &mut dyn Port, rules: &Arc<Forward>, rests: bool, stop: &AtomicBool) -> Hop {
    let (cpu, by_hand) = (thread_cpu(), !port_forwards(port, rules));
    let (mut forwarder, mut arrivals, mut answers) = (Forwarder::default(), Vec::new(), Vec::new());
    let reading = ClockReading { offset_ns: 0, error: ClockError::SameClock };
    port.adopt_clock(reading);
    if by_hand {
        forwarder.install(0, TABLE, Some(rules));
        forwarder.adopt_clock(reading);
    }
    let mut by_kernel = 0;
    while !stop.load(Ordering::Acquire) {
        while port.receive(&mut arrivals) > 0 && !port.is_drained() {}
        for mut arrival in arrivals.drain(..) {
            let now = MonotonicClock::now();
            by_kernel += u64::from(arrival.is_forwarded);
            if by_hand {
                forwarder.offer(now, &mut arrival, |_, copy| port.send(0, copy).is_ok());
            }
        }
        port.flush();
        port.answers(&mut answers);
        answers.retain(|answer| matches!(answer, Answer::Sent(..)));
        let now = MonotonicClock::now();
        port.wait(rests.then(|| now + REST), Some(now + QUIET));
    }
    Hop { cpu: thread_cpu() - cpu, by_kernel }
}

fn port_forwards(port: &mut dyn Port, rules: &Arc<Forward>) -> bool {
    let install = Install::Forward(TABLE, Some(Arc::clone(rules)));
    let installed = port.install(0, &install).expect("a key is set");
    installed == evenfall_core::Installed::Taken
}

/// The copies that arrived, and the delay of the last copy of each number, sorted.
fn drain(port: &mut dyn Port, stop: &AtomicBool) -> (u64, Vec<u64>) {
    let (mut copies, mut arrivals) = (0, Vec::<Arrival>::new());
    let mut last: BTreeMap<u64, (usize, u64)> = BTreeMap::new();
    loop {
        if port.receive(&mut arrivals) == 0 {
            let now = MonotonicClock::now();
            port.wait(None, Some(now + QUIET));
            if stop.load(Ordering::Acquire) && port.receive(&mut arrivals) == 0 {
                break;
            }
        }
        for arrival in arrivals.drain(..) {
            let word = |at: usize| {
                let bytes = arrival.datagram[at..at + 8].try_into().expect("eight bytes");
                u64::from_le_bytes(bytes)
            };
            let of = last.entry(word(24)).or_default();
            (of.0, of.1) = (of.0 + 1, of.1.max(arrival.received.nanos().saturating_sub(word(40))));
            copies += 1;
        }
    }
    let whole = last.into_values().filter(|(count, _)| *count == FANOUT);
    let mut delays: Vec<u64> = whole.map(|(_, delay)| delay).collect();
    delays.sort_unstable();
    (copies, delays)
}

/// A measurement of one row.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    cpu_ns: f64,
    p50_us: f64,
    p99_us: f64,
    lost: u64,
    by_kernel: f64,
}

/// The columns of the table.
const FIELDS: [fn(&Measured) -> f64; 4] =
    [|m| m.cpu_ns, |m| m.p50_us, |m| m.p99_us, |m| m.by_kernel];

fn measure(lab: &Lab, kind: PortKind, rests: bool, rate: f64) -> Measured {
    let moderation = if rests { REST } else { Duration::ZERO };
    let plain = Options { segmentation: false, coalescing: false, ..Options::default().keyed() };
    let open = |host: usize, options: Options| {
        let address = (lab.address(host), 0).into();
        let opened = lab.within(host, || evenfall_port::open(address, options));
        opened.expect("the lab has this host").expect("a port")
    };
    let stamps = Options { kernel_timestamps: true, ..plain.clone() };
    let mut publisher = open(0, plain.clone());
    let mut proxy = open(1, Options { kind, moderation, ..stamps.clone() });
    let mut receiver = open(2, Options { receive_buffer_bytes: 64 << 20, ..stamps });
    let members = vec![receiver.local_addr(); FANOUT];
    proxy.install(0, &Install::Group(GROUP, members.into())).expect("a key is set");
    let (rules, to) = (Arc::new(table(publisher.local_addr())), proxy.local_addr());
    let (stop, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let softirq = ksoftirqd_cpu().expect("/proc");
    std::thread::scope(|scope| {
        let hop = scope.spawn(|| forward(proxy.as_mut(), &rules, rests, &stop));
        let drained = scope.spawn(|| drain(receiver.as_mut(), &over));
        std::thread::sleep(QUIET);
        let (sent, cpu) = publish(publisher.as_mut(), to, rate, 1);
        std::thread::sleep(QUIET);
        stop.store(true, Ordering::Release);
        let hop = hop.join().expect("the proxy");
        over.store(true, Ordering::Release);
        let (copies, delays) = drained.join().expect("the receiver");
        let all = cpu + hop.cpu + ksoftirqd_cpu().expect("/proc").saturating_sub(softirq);
        let at = |share: f64| {
            let place = (delays.len() as f64 * share) as usize;
            delays.get(place).map_or(f64::NAN, |ns| *ns as f64 / 1e3)
        };
        Measured {
            cpu_ns: all.as_nanos() as f64 / copies.max(1) as f64,
            p50_us: at(0.5),
            p99_us: at(0.99),
            lost: (sent * FANOUT as u64).saturating_sub(copies),
            by_kernel: hop.by_kernel as f64 / sent as f64,
        }
    })
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let json = arguments.iter().any(|argument| argument == "--json");
    let rate = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(RATE);
    let lab = Lab::new(3).expect("root makes hosts");
    (0..lab.hosts()).for_each(|host| lab.turn_off_checksums(host).expect("veth"));
    let mut rounds: Vec<Vec<Measured>> = vec![Vec::new(); ROWS.len()];
    for _ in 0..ROUNDS {
        for (row, (name, kind, rests)) in ROWS.iter().enumerate() {
            match kind.lacks() {
                Some(lacks) => eprintln!("skipped: {name}: {lacks}"),
                None => rounds[row].push(measure(&lab, *kind, *rests, rate)),
            }
        }
    }
    let of = |row: usize, field: fn(&Measured) -> f64| median(rounds[row].iter().map(field));
    for (row, (name, ..)) in ROWS.iter().enumerate().filter(|(row, _)| !rounds[*row].is_empty()) {
        let [cpu, p50, p99, share]: [f64; 4] = FIELDS.map(|field| of(row, field));
        // Row 0 is the socket, which no process lacks.
        let beside = rounds[row].iter().zip(&rounds[0]);
        let ratio = median(beside.map(|(row, udp)| row.cpu_ns / udp.cpu_ns));
        let lost: u64 = rounds[row].iter().map(|measured| measured.lost).sum();
        if json {
            println!(
                "{{\"port\":\"{name}\",\"rate\":{rate},\"cpu_ns_per_copy\":{cpu:.0},\
                 \"ratio_sendmmsg\":{ratio:.2},\"hop_p50_us\":{p50:.1},\"hop_p99_us\":{p99:.1},\
                 \"by_kernel\":{share:.3},\"lost\":{lost}}}"
            );
        } else {
            println!(
                "{name:12} {cpu:6.0} ns a copy, ratio {ratio:.2}, hop p50 {p50:.1} us, \
                 p99 {p99:.1} us, {share:.3} by the kernel, {lost} lost"
            );
        }
    }
}
