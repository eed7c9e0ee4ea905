//! The kernel's copies of a root's datagrams, beside the copies that the root's socket sends.
//!
//! A host sends drawn datagrams to a group, first by a socket and then by its kernel, from the same
//! address. Three hosts capture the packets, whose bytes must be equal from the header of Ethernet
//! to the end, but for the number of the packet of IP: a socket counts its packets, and copies have
//! the number of the datagram that was copied. Packets that must not be cut need no number (RFC
//! 6864, 4.1). `EVENFALL_DRAWN` sets the number of datagrams.
#![cfg(feature = "ebpf")]

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::forward::{DatagramField, Match, Patch, Route, Window};
use evenfall_core::{
    Destination, Forward, ForwardId, GroupId, Head, Install, Prng, TrafficClass, Transmit,
};
use evenfall_host::clock::MonotonicClock;
use evenfall_host::lab::Lab;
use evenfall_port::{Answer, Options, Port, PortKind, Wake};

const GROUP: GroupId = GroupId(1);
const LIVE: usize = TrafficClass::Live as usize;
const PORT: u16 = 7_000;
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of the headers of Ethernet, IP and UDP.
const HEADERS_BYTES: usize = 42;
/// Bytes of the longest datagram on a link whose packets have 1,500 bytes.
const DATAGRAM_BYTES_MAX: u64 = 1_472;

fn new_lab() -> Option<Lab> {
    if let Some(lacks) = PortKind::Tc.lacks() {
        println!("skipped: ports of kind tc: {lacks}");
        return None;
    }
    Lab::new(4).inspect_err(|error| println!("skipped: hosts: {error}")).ok()
}

fn open(lab: &Lab, host: usize, kind: PortKind) -> Box<dyn Port> {
    open_with(lab, host, Options { kind, segmentation: false, ..Options::default() })
}

fn open_with(lab: &Lab, host: usize, options: Options) -> Box<dyn Port> {
    let address = (lab.address(host), PORT).into();
    let options = options.keyed();
    let end = MonotonicClock::now() + PATIENCE;
    loop {
        let opened = lab.within(host, || evenfall_port::open(address, options.clone())).unwrap();
        // Between fork and exec a program that another test starts holds the socket of the last
        // port.
        let is_late = MonotonicClock::now() >= end;
        match opened {
            Err(error) if error.to_string().contains("in use") && !is_late => {
                std::thread::sleep(Duration::from_millis(5));
            }
            opened => return opened.unwrap(),
        }
    }
}

/// A root at host 0 with the other hosts as members of its group.
fn open_root(lab: &Lab, kind: PortKind) -> Box<dyn Port> {
    let mut root = open(lab, 0, kind);
    install_members(lab, root.as_mut());
    root
}

fn install_members(lab: &Lab, root: &mut dyn Port) {
    let members = (1..lab.hosts()).map(|host| (lab.address(host), PORT).into()).collect();
    root.install(0, &Install::Group(GROUP, members)).unwrap();
}

fn send(root: &mut dyn Port, bytes: &[u8]) {
    let (head, body) = bytes.split_at(bytes.len().min(16));
    let (to, body) = (Destination::Group(GROUP), Bytes::copy_from_slice(body));
    root.send(0, Transmit::new(TrafficClass::Live, to, Head::new(head), body)).unwrap();
    assert!(root.flush());
}

/// Waits until the kernel knows the hardware addresses of the members, which the first copies ask
/// for.
fn wait_for_ways(root: &mut dyn Port, children: &mut [Box<dyn Port>]) {
    let (end, mut answers) = (MonotonicClock::now() + PATIENCE, Vec::<Answer>::new());
    while root.counters().sent_by_kernel[LIVE] == 0 {
        assert!(MonotonicClock::now() < end, "the kernel copies in time");
        send(root, b"warm");
        children.iter_mut().for_each(|child| drop(receive(child.as_mut())));
        root.answers(&mut answers);
    }
}

/// One datagram, and where it came from.
fn receive(port: &mut dyn Port) -> Option<(Bytes, SocketAddr)> {
    let (mut arrivals, end) = (Vec::new(), MonotonicClock::now() + PATIENCE);
    while port.receive(&mut arrivals) == 0 {
        if port.wait(None, Some(end)) == Wake::Deadline {
            return None;
        }
    }
    assert_eq!(arrivals.len(), 1, "one datagram is under way at a time");
    arrivals.pop().map(|arrival| (arrival.datagram, arrival.from))
}

/// A socket that sees every packet of IP of the host in which it was opened.
struct Capture(OwnedFd);

impl Capture {
    fn open() -> Self {
        let protocol = (libc::ETH_P_IP as u16).to_be();
        // SAFETY: no pointers; the result is checked before it is owned.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, protocol.into()) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        let wait = libc::timeval { tv_sec: PATIENCE.as_secs() as libc::time_t, tv_usec: 0 };
        // SAFETY: `socket` returned this descriptor, and no other value owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: the pointer and the length describe `wait`, which outlives the call.
        let set = unsafe {
            libc::setsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                (&raw const wait).cast(),
                size_of::<libc::timeval>() as libc::socklen_t,
            )
        };
        assert_eq!(set, 0);
        Self(fd)
    }

    /// The next packet from this address, with the header of Ethernet.
    fn next_packet(&self, from: Ipv4Addr) -> Vec<u8> {
        let mut packet = vec![0; 65_536];
        loop {
            let room = (packet.as_mut_ptr().cast(), packet.len());
            // SAFETY: the pointer and the length describe `packet`, which outlives the call.
            let got = unsafe { libc::recv(self.0.as_raw_fd(), room.0, room.1, 0) };
            let got = usize::try_from(got).expect("a packet in time");
            if got >= HEADERS_BYTES && packet[26..30] == from.octets() {
                packet.truncate(got);
                return without_number(packet);
            }
        }
    }
}

/// The packet without the number that its header of IP has. The checksum of the header must be
/// right, and is adapted.
fn without_number(mut packet: Vec<u8>) -> Vec<u8> {
    let sum = |packet: &[u8]| {
        let words = packet[14..34].chunks_exact(2);
        let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
        (sum & 0xffff) + (sum >> 16)
    };
    assert_eq!(sum(&packet), 0xffff, "the checksum of the header of IP");
    assert_eq!(packet[20] & 0x40, 0x40, "the packet must not be cut");
    packet[18..20].fill(0);
    packet[24..26].fill(0);
    packet
}

/// The packets that each child gets of drawn datagrams.
fn packets_of(lab: &Lab, kind: PortKind, seed: u64, count: u64) -> Vec<Vec<u8>> {
    let mut root = open_root(lab, kind);
    let mut children: Vec<_> =
        (1..lab.hosts()).map(|host| open(lab, host, PortKind::Udp)).collect();
    if kind == PortKind::Tc {
        wait_for_ways(root.as_mut(), &mut children);
    }
    let captures: Vec<_> =
        (1..lab.hosts()).map(|host| lab.within(host, Capture::open).unwrap()).collect();
    let (mut prng, mut packets, before) = (Prng::new(seed), Vec::new(), *root.counters());
    for _ in 0..count {
        let len = 1 + prng.below(DATAGRAM_BYTES_MAX);
        let bytes: Vec<u8> = (0..len).map(|_| prng.below(256) as u8).collect();
        send(root.as_mut(), &bytes);
        for child in &mut children {
            let (datagram, from) = receive(child.as_mut()).expect("a copy with a right checksum");
            assert_eq!((&datagram[..], from), (&bytes[..], root.local_addr()));
        }
        packets.extend(captures.iter().map(|capture| capture.next_packet(lab.address(0))));
    }
    let copies = count * children.len() as u64;
    let by_kernel = if kind == PortKind::Tc { copies } else { 0 };
    let counters = root.counters();
    assert_eq!(counters.sent_by_kernel[LIVE] - before.sent_by_kernel[LIVE], by_kernel);
    assert_eq!((counters.sent[LIVE] - before.sent[LIVE], counters.failed), (copies, 0));
    packets
}

#[test]
fn the_kernel_copies_drawn_datagrams_to_the_bytes_that_the_socket_sends() {
    let Some(lab) = new_lab() else { return };
    let count = std::env::var("EVENFALL_DRAWN").map_or(500, |text| text.parse().unwrap());
    for sums in ["made by the card", "made by the host"] {
        if sums == "made by the host" {
            (0..lab.hosts()).for_each(|host| lab.turn_off_checksums(host).unwrap());
        }
        let [by_socket, by_kernel] =
            [PortKind::Udp, PortKind::Tc].map(|kind| packets_of(&lab, kind, 7, count));
        for (number, (one, other)) in by_socket.iter().zip(&by_kernel).enumerate() {
            assert_eq!(one, other, "packet {number}, sums {sums}");
        }
    }
}

#[test]
fn a_buffer_of_several_datagrams_is_copied_as_a_whole() {
    let Some(lab) = new_lab() else { return };
    let mut children: Vec<_> =
        (1..lab.hosts()).map(|host| open(&lab, host, PortKind::Udp)).collect();
    let mut root = open_with(&lab, 0, Options { kind: PortKind::Tc, ..Options::default() });
    install_members(&lab, root.as_mut());
    for sums in ["made by the card", "made by the host"] {
        if sums == "made by the host" {
            (0..lab.hosts()).for_each(|host| lab.turn_off_checksums(host).unwrap());
        }
        wait_for_ways(root.as_mut(), &mut children);
        let before = *root.counters();
        for burst in 0..50_u8 {
            let datagrams: Vec<[u8; 200]> = (0..40).map(|n| [burst ^ n; 200]).collect();
            for bytes in &datagrams {
                let (to, body) = (Destination::Group(GROUP), Bytes::copy_from_slice(&bytes[16..]));
                let transmit = Transmit::new(TrafficClass::Live, to, Head::new(&bytes[..16]), body);
                root.send(0, transmit).unwrap();
            }
            assert!(root.flush());
            for child in &mut children {
                let (mut arrivals, end) = (Vec::new(), MonotonicClock::now() + PATIENCE);
                while arrivals.len() < datagrams.len() {
                    let any = child.receive(&mut arrivals) > 0;
                    assert!(any || child.wait(None, Some(end)) != Wake::Deadline, "sums {sums}");
                }
                let got = arrivals.iter().map(|arrival| &arrival.datagram[..]);
                assert!(got.eq(datagrams.iter().map(|bytes| &bytes[..])), "sums {sums}");
            }
        }
        let counters = root.counters();
        assert_eq!(counters.send_calls - before.send_calls, 50, "one call for a burst");
        assert_eq!(counters.sent_by_kernel[LIVE] - before.sent_by_kernel[LIVE], 50 * 40 * 3);
    }
}

fn run_in(lab: &Lab, host: usize, command: &str) {
    let mut ip = Command::new("ip");
    ip.args(["netns", "exec", &lab.name(host), "ip"]).args(command.split(' '));
    assert!(ip.status().unwrap().success(), "{command}");
}

/// Sends datagrams of this length until the counter of the kernel's copies stands still, or grows.
fn sends_by_kernel(root: &mut dyn Port, children: &mut [Box<dyn Port>], len: usize, wanted: bool) {
    let (end, mut answers) = (MonotonicClock::now() + PATIENCE, Vec::<Answer>::new());
    loop {
        let before = root.counters().sent_by_kernel[LIVE];
        send(root, &vec![7; len]);
        for child in children.iter_mut() {
            let (datagram, _) = receive(child.as_mut()).expect("a copy");
            assert_eq!(datagram.len(), len);
        }
        if (root.counters().sent_by_kernel[LIVE] > before) == wanted {
            return;
        }
        assert!(MonotonicClock::now() < end, "by the kernel: {wanted}");
        root.answers(&mut answers);
    }
}

#[test]
fn what_no_link_takes_in_one_piece_leaves_by_hand() {
    let Some(lab) = new_lab() else { return };
    let mut children: Vec<_> =
        (1..lab.hosts()).map(|host| open(&lab, host, PortKind::Udp)).collect();
    let mut root = open_root(&lab, PortKind::Tc);
    wait_for_ways(root.as_mut(), &mut children);
    sends_by_kernel(root.as_mut(), &mut children, 1_472, true);
    sends_by_kernel(root.as_mut(), &mut children, 1_473, false);
    // The kernel tells of the change, and the port follows within some looks.
    run_in(&lab, 0, "link set eth0 mtu 600");
    std::thread::sleep(Duration::from_millis(25));
    root.answers(&mut Vec::new());
    sends_by_kernel(root.as_mut(), &mut children, 573, false);
    sends_by_kernel(root.as_mut(), &mut children, 572, true);
}

#[test]
fn a_rule_of_the_host_that_refuses_marks_costs_no_copy() {
    let Some(lab) = new_lab() else { return };
    let mut children: Vec<_> =
        (1..lab.hosts()).map(|host| open(&lab, host, PortKind::Udp)).collect();
    let mut root = open_root(&lab, PortKind::Tc);
    wait_for_ways(root.as_mut(), &mut children);
    run_in(&lab, 0, "rule add fwmark 0xef000000/0xff000000 unreachable");
    for _ in 0..10 {
        sends_by_kernel(root.as_mut(), &mut children, 200, false);
    }
    assert_eq!(root.counters().failed, 0);
}

#[test]
fn datagrams_that_do_not_come_to_the_program_end_its_use() {
    let Some(lab) = new_lab() else { return };
    let mut children: Vec<_> =
        (1..lab.hosts()).map(|host| open(&lab, host, PortKind::Udp)).collect();
    let mut root = open_root(&lab, PortKind::Tc);
    wait_for_ways(root.as_mut(), &mut children);
    run_in(&lab, 0, "route add default dev lo table 100");
    run_in(&lab, 0, "rule add fwmark 0xef000000/0xff000000 lookup 100");
    let (end, mut answers) = (MonotonicClock::now() + PATIENCE, Vec::<Answer>::new());
    let mut before = u64::MAX;
    while root.counters().sent_by_kernel[LIVE] != before {
        assert!(MonotonicClock::now() < end, "the port notices that copies are missed");
        before = root.counters().sent_by_kernel[LIVE];
        send(root.as_mut(), b"over the wrong interface");
        std::thread::sleep(Duration::from_millis(25));
        root.answers(&mut answers);
    }
    assert!(root.counters().failed > 0, "the copies that were missed are counted");
    // The last of them left by hand.
    for child in &mut children {
        receive(child.as_mut()).expect("a copy");
    }
    sends_by_kernel(root.as_mut(), &mut children, 200, false);
}

#[test]
fn a_member_whose_hardware_address_is_forgotten_gets_its_copies_by_hand() {
    let Some(lab) = new_lab() else { return };
    let mut children: Vec<_> =
        (1..lab.hosts()).map(|host| open(&lab, host, PortKind::Udp)).collect();
    let mut root = open_root(&lab, PortKind::Tc);
    wait_for_ways(root.as_mut(), &mut children);
    run_in(&lab, 0, &format!("neigh del {} dev eth0", lab.address(2)));
    // A port that has not looked yet still sends to the last known address, which is right.
    std::thread::sleep(Duration::from_millis(25));
    root.answers(&mut Vec::new());
    let before = root.counters().sent_by_kernel[LIVE];
    send(root.as_mut(), b"by hand, which makes the kernel ask for the address");
    assert_eq!(root.counters().sent_by_kernel[LIVE], before);
    for child in &mut children {
        receive(child.as_mut()).expect("a copy");
    }
    sends_by_kernel(root.as_mut(), &mut children, 200, true);
}

/// A program of somebody else at a hook of `eth0`, which lets every packet pass and ends the chain
/// of programs. It is gone when dropped.
struct Foreign {
    _program: OwnedFd,
    _link: OwnedFd,
}

/// Hooks of `enum bpf_attach_type`.
const INGRESS: u32 = 46;
const EGRESS: u32 = 47;

/// Calls `bpf`, which answers with a descriptor.
fn call_bpf(command: libc::c_long, attributes: &[u8; 64]) -> OwnedFd {
    let (at, len) = (attributes.as_ptr(), attributes.len());
    // SAFETY: the pointer and the length describe `attributes`, whose pointers lead to values of
    // the caller that outlive the call.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, at, len) };
    assert!(fd >= 0, "bpf {command}: {}", std::io::Error::last_os_error());
    // SAFETY: the call returned this descriptor, and no other value owns it.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}

impl Foreign {
    /// Attaches the program behind those that are there, in the host of this thread.
    fn attach(hook: u32) -> Self {
        const PROG_LOAD: libc::c_long = 5;
        const LINK_CREATE: libc::c_long = 28;
        const SCHED_CLS: u32 = 3;
        // `r0 = 0; exit`: TCX_PASS.
        let instructions = [0xb7_u64, 0x95];
        let license = c"GPL";
        let mut load = [0; 64];
        load[..4].copy_from_slice(&SCHED_CLS.to_ne_bytes());
        load[4..8].copy_from_slice(&(instructions.len() as u32).to_ne_bytes());
        load[8..16].copy_from_slice(&(instructions.as_ptr() as u64).to_ne_bytes());
        load[16..24].copy_from_slice(&(license.as_ptr() as u64).to_ne_bytes());
        let program = call_bpf(PROG_LOAD, &load);
        // SAFETY: the name ends with a zero byte.
        let interface = unsafe { libc::if_nametoindex(c"eth0".as_ptr()) };
        let mut link = [0; 64];
        link[..4].copy_from_slice(&program.as_raw_fd().to_ne_bytes());
        link[4..8].copy_from_slice(&interface.to_ne_bytes());
        link[8..12].copy_from_slice(&hook.to_ne_bytes());
        let link = call_bpf(LINK_CREATE, &link);
        Self { _program: program, _link: link }
    }
}

#[test]
fn a_program_of_others_before_ours_costs_no_feed_of_a_root() {
    let Some(lab) = new_lab() else { return };
    let mut children: Vec<_> =
        (1..lab.hosts()).map(|host| open(&lab, host, PortKind::Udp)).collect();
    let foreign = lab.within(0, || Foreign::attach(EGRESS)).unwrap();
    let mut root = open_root(&lab, PortKind::Tc);
    let (end, mut before) = (MonotonicClock::now() + PATIENCE, u64::MAX);
    while root.counters().sent_by_kernel[LIVE] != before {
        assert!(MonotonicClock::now() < end, "the port notices that copies are missed");
        before = root.counters().sent_by_kernel[LIVE];
        send(root.as_mut(), b"seen by the other program alone");
        std::thread::sleep(Duration::from_millis(25));
        root.answers(&mut Vec::new());
    }
    assert!(root.counters().failed > 0, "the copies that were missed are counted");
    for child in &mut children {
        let (mut arrivals, end) = (Vec::new(), MonotonicClock::now() + PATIENCE);
        while child.receive(&mut arrivals) == 0 {
            assert_ne!(child.wait(None, Some(end)), Wake::Deadline, "the last left by hand");
        }
        while child.receive(&mut arrivals) > 0 {}
    }
    sends_by_kernel(root.as_mut(), &mut children, 200, false);
    drop(foreign);
}

#[test]
fn a_program_of_others_before_ours_leaves_the_stream_to_the_process_of_a_proxy() {
    const TABLE: ForwardId = ForwardId(1);
    let Some(lab) = new_lab() else { return };
    let mut publisher = open(&lab, 1, PortKind::Udp);
    let mut children: Vec<_> = [2, 3].map(|host| open(&lab, host, PortKind::Udp)).into();
    let foreign = lab.within(0, || Foreign::attach(INGRESS)).unwrap();
    let mut proxy = open(&lab, 0, PortKind::Tc);
    let members = children.iter().map(|child| child.local_addr()).collect();
    proxy.install(0, &Install::Group(GROUP, members)).unwrap();
    let rules = Forward {
        class: TrafficClass::Live,
        sources: vec![publisher.local_addr()],
        matches: vec![Match::Bytes(DatagramField::new(0, b"EF"))],
        routes: vec![Route { matches: Vec::new(), to: GROUP }],
        window: Window { at: 8, frames: 64 },
        head_bytes: 16,
        patches: vec![Patch::Bytes(DatagramField::new(2, &[7]))],
        code: None,
    };
    proxy.install(0, &Install::Forward(TABLE, Some(Arc::new(rules)))).unwrap();
    let mut publish = |number: u64| {
        let head = [&b"EF______"[..], &number.to_le_bytes()].concat();
        let to = Destination::One(proxy.local_addr());
        let body = Bytes::from_static(b"body");
        publisher.send(0, Transmit::new(TrafficClass::Live, to, Head::new(&head), body)).unwrap();
        assert!(publisher.flush());
        let (mut arrivals, end) = (Vec::new(), MonotonicClock::now() + PATIENCE);
        while proxy.receive(&mut arrivals) == 0 {
            assert_ne!(proxy.wait(None, Some(end)), Wake::Deadline, "every datagram is handed in");
        }
        arrivals[0].is_forwarded
    };
    assert!(!publish(1), "the other program ends the chain");
    drop(foreign);
    // The rules reach the program when the kernel has found the hardware addresses of the children.
    let (end, mut number) = (MonotonicClock::now() + PATIENCE, 2);
    while !publish(number) {
        assert!(MonotonicClock::now() < end, "the program is reached again");
        std::thread::sleep(Duration::from_millis(25));
        number += 1;
    }
    for child in &mut children {
        let (datagram, _) = receive(child.as_mut()).expect("a copy");
        let seen = (datagram[2], u64::from(datagram[8]));
        assert_eq!(seen, (7, number), "those before were left to the process");
    }
}

#[test]
fn a_root_whose_interface_went_down_copies_by_its_kernel_again() {
    let Some(lab) = new_lab() else { return };
    let mut children: Vec<_> =
        (1..lab.hosts()).map(|host| open(&lab, host, PortKind::Udp)).collect();
    let mut root = open_root(&lab, PortKind::Tc);
    wait_for_ways(root.as_mut(), &mut children);
    run_in(&lab, 0, "link set eth0 down");
    std::thread::sleep(Duration::from_millis(25));
    root.answers(&mut Vec::new());
    let before = *root.counters();
    send(root.as_mut(), b"nowhere");
    let counters = *root.counters();
    assert_eq!(counters.sent_by_kernel, before.sent_by_kernel, "no link, no copies");
    assert_eq!(counters.failed - before.failed, 3, "each refused copy is counted");
    run_in(&lab, 0, "link set eth0 up");
    let (end, mut arrivals) = (MonotonicClock::now() + PATIENCE, Vec::new());
    // The link comes up within a second, and then the kernel asks for the hardware addresses.
    while root.counters().sent_by_kernel[LIVE] == before.sent_by_kernel[LIVE] {
        assert!(MonotonicClock::now() < end, "the kernel copies again");
        send(root.as_mut(), b"again");
        std::thread::sleep(Duration::from_millis(25));
        root.answers(&mut Vec::new());
    }
    for child in &mut children {
        while child.receive(&mut arrivals) == 0 {
            assert_ne!(child.wait(None, Some(end)), Wake::Deadline, "a copy");
        }
        while child.receive(&mut arrivals) > 0 {}
    }
    sends_by_kernel(root.as_mut(), &mut children, 200, true);
}

#[test]
fn an_interface_with_another_name_and_other_offloads_goes_on() {
    let Some(lab) = new_lab() else { return };
    let mut children: Vec<_> =
        (1..lab.hosts()).map(|host| open(&lab, host, PortKind::Udp)).collect();
    let mut root = open_root(&lab, PortKind::Tc);
    wait_for_ways(root.as_mut(), &mut children);
    (0..lab.hosts()).for_each(|host| lab.turn_off_checksums(host).unwrap());
    sends_by_kernel(root.as_mut(), &mut children, 200, true);
    run_in(&lab, 0, "link set eth0 name lan0");
    std::thread::sleep(Duration::from_millis(25));
    root.answers(&mut Vec::new());
    sends_by_kernel(root.as_mut(), &mut children, 300, true);
    assert_eq!(root.counters().failed, 0);
}
