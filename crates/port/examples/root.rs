//! What a root's copies cost: by calls for each copy, by segments, and by the kernel.
//!
//! ```text
//!   host 0                                   host 1
//!   root, one thread -- eth0 ==veth== eth0   ten sockets, or nobody
//! ```
//!
//! The link is a pair of veth without a bridge. Rows take turns, and the medians of seven rounds
//! are printed. `flat out` sends bursts of 64 datagrams, and measures the time until each burst has
//! left. `paced` sends one datagram at a time and sleeps between two, and measures the processor
//! time of the thread, which has the sleep and the wake-up.
//!
//! - `sending half`: the hardware addresses of the members are nobody's, so that host 1 drops each
//!   packet before it looks at the header of IP;
//! - `delivered`: ten sockets of host 1 get the datagrams within the call that sends them, and the
//!   rows count what is lost.
//!
//! Rows: bare `sendmmsg` without any port; `udp` without and with segments; `tc` without and with
//! segments; and the same without the checksums and the segmentation of the link (`sums by the
//! host`).
//!
//! ```sh
//! cargo run --release -p evenfall-port --features ebpf --example root -- [--json]
//! ```

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::{Class, Destination, GroupId, Head, Install, Transmit};
use evenfall_host::clock::{MonotonicClock, thread_cpu};
use evenfall_host::lab::Lab;
use evenfall_port::{Kind, Options, Port};

const ROUNDS: usize = 7;
const BURSTS: usize = 100;
const BURST: usize = 64;
const RATE: f64 = 10_000.0;
const PACED: usize = 5_000;
const FANOUT: usize = 10;
/// The header of the multicast, a message of 40 bytes with its length, and the tag.
const HEAD_BYTES: usize = 88;
const BODY_BYTES: usize = 58;
const GROUP: GroupId = GroupId(1);
const ROOT: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);

/// Who makes the copies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Row {
    Bare,
    Port { kind: Kind, segments: bool },
}

const ROWS: [(&str, Row); 5] = [
    ("sendmmsg, bare", Row::Bare),
    ("udp", Row::Port { kind: Kind::Udp, segments: false }),
    ("udp, segments", Row::Port { kind: Kind::Udp, segments: true }),
    ("tc", Row::Port { kind: Kind::Tc, segments: false }),
    ("tc, segments", Row::Port { kind: Kind::Tc, segments: true }),
];

fn run(lab: &Lab, host: usize, command: &str) {
    let mut ip = Command::new("ip");
    ip.args(["netns", "exec", &lab.name(host), "ip"]).args(command.split(' '));
    assert!(ip.status().expect("ip").success(), "{command}");
}

/// The members: addresses that host 1 has, and addresses whose hardware nobody has.
fn members(is_delivered: bool) -> Vec<SocketAddr> {
    let first = if is_delivered { 10 } else { 100 };
    (0..FANOUT).map(|n| (Ipv4Addr::new(10, 99, 0, first + n as u8), 7_000).into()).collect()
}

/// Joins the hosts by a link without a bridge.
fn build_link(lab: &Lab) {
    (0..2).for_each(|host| run(lab, host, "link del eth0"));
    run(lab, 0, &format!("link add eth0 type veth peer name eth0 netns {}", lab.name(1)));
    run(lab, 0, "addr add 10.99.0.1/24 dev eth0");
    run(lab, 1, "link set eth0 address 02:99:00:00:00:02");
    (0..2).for_each(|host| run(lab, host, "link set eth0 up"));
    for (at, mac) in [(members(true), "02:99:00:00:00:02"), (members(false), "02:99:00:00:00:77")] {
        for member in at {
            let ip = member.ip();
            run(lab, 0, &format!("neigh replace {ip} lladdr {mac} dev eth0 nud permanent"));
        }
    }
    members(true).iter().for_each(|at| run(lab, 1, &format!("addr add {}/24 dev eth0", at.ip())));
}

fn transmit() -> Transmit {
    let body = Bytes::from_static(&[7; BODY_BYTES]);
    Transmit::new(Class::Live, Destination::Group(GROUP), Head::new(&[9; HEAD_BYTES]), body)
}

/// The same copies by one call of the kernel for each datagram.
struct Bare {
    socket: UdpSocket,
    names: Vec<libc::sockaddr_in>,
    datagram: [u8; HEAD_BYTES + BODY_BYTES],
}

impl Bare {
    fn open(members: &[SocketAddr]) -> Self {
        let name = |member: &SocketAddr| {
            let SocketAddr::V4(v4) = member else { panic!("IPv4") };
            libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            }
        };
        let socket = UdpSocket::bind((ROOT, 0)).expect("a socket");
        let names = members.iter().map(name).collect();
        Self { socket, names, datagram: [9; HEAD_BYTES + BODY_BYTES] }
    }

    fn send(&mut self) {
        let len = self.datagram.len();
        let mut part = libc::iovec { iov_base: self.datagram.as_mut_ptr().cast(), iov_len: len };
        // SAFETY: plain integers and pointers, for which zero is a value.
        let mut messages: [libc::mmsghdr; FANOUT] = unsafe { std::mem::zeroed() };
        for (message, name) in messages.iter_mut().zip(&mut self.names) {
            message.msg_hdr.msg_namelen = size_of::<libc::sockaddr_in>() as u32;
            message.msg_hdr.msg_name = std::ptr::from_mut(name).cast();
            message.msg_hdr.msg_iov = &raw mut part;
            message.msg_hdr.msg_iovlen = 1;
        }
        let fd = self.socket.as_raw_fd();
        // SAFETY: the messages point at names, a part and a datagram that outlive the call.
        let sent = unsafe { libc::sendmmsg(fd, messages.as_mut_ptr(), FANOUT as u32, 0) };
        assert_eq!(sent, FANOUT as i32);
    }
}

enum Root {
    Bare(Bare),
    Port(Box<dyn Port>),
}

impl Root {
    fn open(lab: &Lab, row: Row, members: &[SocketAddr]) -> Self {
        let open = || match row {
            Row::Bare => Self::Bare(Bare::open(members)),
            Row::Port { kind, segments } => {
                let options =
                    Options { kind, segmentation: segments, ..Options::default().keyed() };
                let mut port = evenfall_port::open((ROOT, 0).into(), options).expect("a port");
                port.install(0, &Install::Group(GROUP, members.into())).expect("a key is set");
                Self::Port(port)
            }
        };
        lab.within(0, open).expect("the lab has host 0")
    }

    fn send(&mut self, count: usize) {
        match self {
            Self::Bare(bare) => (0..count).for_each(|_| bare.send()),
            Self::Port(port) => {
                for _ in 0..count {
                    port.send(0, transmit()).expect("room for a burst");
                }
                while !port.flush() {}
            }
        }
    }
}

/// Reads what has arrived. Returns the number of datagrams.
fn drain(sockets: &mut [Box<dyn Port>]) -> u64 {
    let mut arrivals = Vec::new();
    for socket in sockets {
        while socket.receive(&mut arrivals) > 0 {}
    }
    arrivals.len() as u64
}

/// Nanoseconds a copy of bursts, and the copies that did not arrive.
fn play_flat_out(root: &mut Root, sockets: &mut [Box<dyn Port>]) -> (f64, u64) {
    let (mut times, mut lost) = (Vec::with_capacity(BURSTS), 0);
    for _ in 0..BURSTS {
        let start = MonotonicClock::now();
        root.send(BURST);
        times.push(MonotonicClock::now().since(start).as_nanos() as f64);
        if !sockets.is_empty() {
            lost += ((BURST * FANOUT) as u64).saturating_sub(drain(sockets));
        }
    }
    (median(times) / (BURST * FANOUT) as f64, lost)
}

/// Nanoseconds a copy at a rate, with the sleep and the wake-up of the thread.
fn play_paced(root: &mut Root, waiting: &mut dyn Port) -> f64 {
    let (cpu, start) = (thread_cpu(), MonotonicClock::now());
    for n in 0..PACED {
        let due = start + Duration::from_secs_f64(n as f64 / RATE);
        while MonotonicClock::now() < due {
            waiting.wait(None, Some(due));
        }
        root.send(1);
    }
    (thread_cpu() - cpu).as_nanos() as f64 / (PACED * FANOUT) as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Plays a table of all rows and prints it.
fn play(
    lab: &Lab,
    what: &str,
    json: bool,
    mut play: impl FnMut(&mut Root) -> (f64, u64),
    is_delivered: bool,
) {
    let mut rounds = vec![Vec::new(); ROWS.len()];
    let mut lost = [0; ROWS.len()];
    for _ in 0..ROUNDS {
        for (number, (_, row)) in ROWS.iter().enumerate() {
            let mut root = Root::open(lab, *row, &members(is_delivered));
            let (ns, missing) = play(&mut root);
            rounds[number].push(ns);
            lost[number] += missing;
            if let (Root::Port(port), Row::Port { kind: Kind::Tc, .. }) = (&root, row) {
                let counters = port.counters();
                assert_eq!(counters.sent_by_kernel, counters.sent, "the kernel copies");
            }
        }
    }
    let ratios = |number: usize, base: usize| {
        let both = rounds[number].iter().zip(&rounds[base]);
        median(both.map(|(one, other)| one / other).collect())
    };
    for (number, (name, _)) in ROWS.iter().enumerate() {
        let ns = median(rounds[number].clone());
        let (one, by_hand) = (ratios(number, 1), ratios(number, 2));
        let lost = lost[number];
        if json {
            println!(
                "{{\"what\":\"{what}\",\"port\":\"{name}\",\"cpu_ns_per_copy\":{ns:.1},\
                 \"ratio_sendmmsg\":{one:.3},\"ratio_segments\":{by_hand:.3},\"lost\":{lost}}}"
            );
        } else {
            println!(
                "{what:36} {name:15} {ns:7.1} ns a copy, {one:.2} of udp, {by_hand:.2} of \
                 segments, {lost} lost"
            );
        }
    }
}

fn main() {
    let json = std::env::args().any(|argument| argument == "--json");
    if let Some(lacks) = Kind::Tc.lacks() {
        eprintln!("ports of kind tc: {lacks}");
        return;
    }
    let lab = Lab::new(2).expect("root makes hosts");
    build_link(&lab);
    let open = |address: SocketAddr| {
        let options = Options { receive_buffer_bytes: 64 << 20, ..Options::default().keyed() };
        lab.within(1, || evenfall_port::open(address, options)).expect("host 1").expect("a socket")
    };
    let mut sockets: Vec<_> = members(true).into_iter().map(open).collect();
    let own = Options::default().keyed();
    let at: SocketAddr = (ROOT, 0).into();
    let mut waiting =
        lab.within(0, || evenfall_port::open(at, own)).expect("host 0").expect("a socket");
    for sums in ["", ", sums by the host"] {
        if !sums.is_empty() {
            (0..2).for_each(|host| lab.turn_off_checksums(host).expect("veth"));
        }
        let half = |root: &mut Root| play_flat_out(root, &mut []);
        play(&lab, &format!("flat out, sending half{sums}"), json, half, false);
        let whole = |root: &mut Root| {
            drain(&mut sockets);
            play_flat_out(root, &mut sockets)
        };
        play(&lab, &format!("flat out, delivered{sums}"), json, whole, true);
        let paced = |root: &mut Root| (play_paced(root, waiting.as_mut()), 0);
        play(&lab, &format!("paced, sending half{sums}"), json, paced, false);
    }
}
