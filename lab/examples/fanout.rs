//! The driver against a hand-written `sendmmsg` loop, in one run, rounds interleaved.
//!
//! `cargo run --release -p evenfall-lab --example fanout [rounds]`

use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use evenfall_host::Error;
use evenfall_lab::fanout::{
    FanoutBench, FanoutResult, Packed, Sinks, bench_source, highest_lossless, measure,
};

/// As little code as fan-out by `sendmmsg` takes: everything laid out once, before the clock runs.
struct Bare {
    socket: UdpSocket,
    messages: Vec<libc::mmsghdr>,
    _names: Vec<libc::sockaddr_in>,
    _iovecs: Vec<libc::iovec>,
    _payload: Vec<u8>,
}

impl Bare {
    fn new(receivers: &[SocketAddr], bytes: usize) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
        let mut payload = vec![0x2a_u8; bytes];
        let names: Vec<_> = receivers.iter().map(raw).collect();
        // Two parts, as a head and a shared body are.
        let (head, body) = payload.split_at_mut(78);
        let part = |bytes: &mut [u8]| libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        let mut iovecs = vec![part(head), part(body)];
        let messages = names
            .iter()
            .map(|name| {
                // SAFETY: message headers are plain integers and pointers; zero is a value.
                let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
                message.msg_hdr.msg_name = std::ptr::from_ref(name).cast_mut().cast();
                message.msg_hdr.msg_namelen = size_of_val(name) as u32;
                message.msg_hdr.msg_iov = iovecs.as_mut_ptr();
                message.msg_hdr.msg_iovlen = 2;
                message
            })
            .collect();
        Self { socket, messages, _names: names, _iovecs: iovecs, _payload: payload }
    }

    fn send(&mut self) {
        let (fd, count) = (self.socket.as_raw_fd(), self.messages.len() as u32);
        // SAFETY: the headers point at vectors that `self` holds unchanged.
        let sent = unsafe { libc::sendmmsg(fd, self.messages.as_mut_ptr(), count, 0) };
        assert_eq!(sent, count as i32);
    }
}

fn raw(address: &SocketAddr) -> libc::sockaddr_in {
    let SocketAddr::V4(address) = address else { unreachable!("loopback is IPv4 here") };
    let address: SocketAddrV4 = *address;
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
        sin_zero: [0; 8],
    }
}

fn bare(bench: &FanoutBench, sinks: &Sinks) -> Result<FanoutResult, Error> {
    let mut bare = Bare::new(sinks.addresses(), 78 + bench.size * bench.pack);
    measure(bench, sinks, |_, messages| {
        let datagrams = messages.div_ceil(bench.pack);
        (0..datagrams).for_each(|_| bare.send());
        datagrams
    })
}

fn ours(bench: &FanoutBench, sinks: &Sinks) -> Result<FanoutResult, Error> {
    bench_source(bench, sinks, &mut Packed::new(bench))
}

type Run = fn(&FanoutBench, &Sinks) -> Result<FanoutResult, Error>;

fn main() -> Result<(), Error> {
    let rounds: usize = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(5);
    let slow = FanoutBench::unbatched();
    let full = FanoutBench::saturated();
    let plain = FanoutBench { segmentation: false, ..full.clone() };
    let rows: [(&str, Run, FanoutBench); 9] = [
        ("10k msg/s  bare sendmmsg", bare, slow.clone()),
        ("10k msg/s  driver", ours, slow.clone()),
        (
            "flat out   bare sendmmsg, 1 per datagram",
            bare,
            FanoutBench { rate: None, ..slow.clone() },
        ),
        ("flat out   driver, 1 per datagram", ours, FanoutBench { rate: None, ..slow }),
        ("flat out   bare sendmmsg, 20 per datagram", bare, plain.clone()),
        ("flat out   driver, 20 per datagram", ours, plain),
        ("flat out   driver, 20 per datagram, segments", ours, full.clone()),
        ("same, receivers do not coalesce", ours, FanoutBench { coalesce: false, ..full.clone() }),
        (
            "flat out   driver, 1 per datagram, segments",
            ours,
            FanoutBench { pack: 1, ..full.clone() },
        ),
    ];
    let mut results = vec![Vec::new(); rows.len()];
    for _ in 0..rounds {
        for ((_, run, bench), results) in rows.iter().zip(&mut results) {
            // Fresh receivers for each, so that nobody inherits a backlog.
            let sinks = Sinks::start(bench.fanout, bench.coalesce)?;
            results.push(run(bench, &sinks)?);
        }
    }
    for ((name, ..), results) in rows.iter().zip(&mut results) {
        results.sort_by(|a, b| a.cpu_ns_per_copy.total_cmp(&b.cpu_ns_per_copy));
        let r = results[results.len() / 2];
        let lost = 100.0 * r.lost as f64 / r.copies.max(1) as f64;
        println!(
            "{name:46} {:8.1} ns/copy {:10.0} msg/s {lost:5.1} % lost",
            r.cpu_ns_per_copy, r.messages_per_s
        );
    }
    let sinks = Sinks::start(full.fanout, full.coalesce)?;
    let flat_out = ours(&full, &sinks)?;
    let best = highest_lossless(&flat_out, |rate| {
        let duration = Duration::from_millis(300);
        ours(&FanoutBench { rate: Some(rate), duration, ..full.clone() }, &sinks)
    })?;
    println!("highest loss-free rate, 20 per datagram, segments: {best:.0} msg/s");
    Ok(())
}
