//! Systems that send plain datagrams: evenfall, and programs that make the system calls by hand.
//! `evenfall_lab::fanout` measures all of them with the same receivers.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use evenfall_lab::fanout::{
    FanoutBench, FanoutResult, Sinks, bench_source, highest_lossless, measure, root::RootSource,
};
use evenfall_multicast_machine::{SharedKey, wire};

use crate::{PeerSample, Result, Setup};

/// Bytes that the other systems send in front of the messages, in the place of evenfall's header.
const HEAD_BYTES: usize = wire::HEADER_BYTES;
/// Length of one trial of the search for the highest rate.
const TRIAL: Duration = Duration::from_millis(300);

type Run = fn(&FanoutBench, &Sinks) -> Result<FanoutResult>;

fn bench(setup: &Setup, rate: Option<f64>, batched: bool) -> FanoutBench {
    let base = match rate {
        None if batched => FanoutBench::saturated(),
        _ => FanoutBench::unbatched(),
    };
    let (fanout, size, duration) = (setup.fanout, setup.size, setup.duration);
    FanoutBench { fanout, size, duration, rate, ..base }
}

fn once(bench: &FanoutBench, run: Run) -> Result<PeerSample> {
    let sinks = Sinks::start(bench.fanout, bench.coalesce)?;
    let result = run(bench, &sinks)?;
    Ok(PeerSample {
        cpu_ns_per_copy: result.cpu_ns_per_copy,
        messages_per_s: result.messages_per_s,
        lost: result.lost as f64 / result.copies.max(1) as f64,
    })
}

/// The search starts from the rate of a flat-out run of its own, because loss is counted in copies.
fn lossless(setup: &Setup, batched: bool, run: Run) -> Result<f64> {
    let full = FanoutBench { duration: TRIAL, ..bench(setup, None, batched) };
    let sinks = Sinks::start(full.fanout, full.coalesce)?;
    let flat_out = run(&full, &sinks)?;
    Ok(highest_lossless(&flat_out, |rate| {
        let trial = FanoutBench { rate: Some(rate), ..full.clone() };
        run(&trial, &sinks).map_err(|error| evenfall_host::Error::Clock { what: error.to_string() })
    })?)
}

/// evenfall: the multicast root with numbering, framing, deadline, repair ring and header, in front
/// of the driver.
fn run_evenfall(bench: &FanoutBench, sinks: &Sinks) -> Result<FanoutResult> {
    Ok(bench_source(bench, sinks, &mut RootSource::new(bench, None))?)
}

/// evenfall with a key: every datagram is authenticated, and every body is sealed.
fn run_keyed(bench: &FanoutBench, sinks: &Sinks) -> Result<FanoutResult> {
    let key = SharedKey::new(1, [1; 32]);
    Ok(bench_source(bench, sinks, &mut RootSource::new(bench, Some(key)))?)
}

/// evenfall with one message a datagram, which shows the gain of segmentation alone.
fn run_unpacked(bench: &FanoutBench, sinks: &Sinks) -> Result<FanoutResult> {
    let bench = FanoutBench { pack: 1, ..bench.clone() };
    Ok(bench_source(&bench, sinks, &mut RootSource::new(&bench, None))?)
}

fn run_sendto(bench: &FanoutBench, sinks: &Sinks) -> Result<FanoutResult> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let payload = vec![42_u8; HEAD_BYTES + bench.size * bench.pack];
    Ok(measure(bench, sinks, |_, messages| {
        let datagrams = messages.div_ceil(bench.pack);
        for _ in 0..datagrams {
            for to in sinks.addresses() {
                // A refused copy counts as lost, because it never arrives.
                let _ = socket.send_to(&payload, to);
            }
        }
        datagrams
    })?)
}

fn run_sendmmsg(bench: &FanoutBench, sinks: &Sinks) -> Result<FanoutResult> {
    let mut bare = Bare::new(sinks.addresses(), HEAD_BYTES + bench.size * bench.pack, 1)?;
    Ok(measure(bench, sinks, |_, messages| {
        let datagrams = messages.div_ceil(bench.pack);
        (0..datagrams).for_each(|_| bare.send(1));
        datagrams
    })?)
}

fn run_segmented(bench: &FanoutBench, sinks: &Sinks) -> Result<FanoutResult> {
    let mut bare = Bare::new(sinks.addresses(), HEAD_BYTES + bench.size * bench.pack, bench.burst)?;
    Ok(measure(bench, sinks, |_, messages| {
        let datagrams = messages.div_ceil(bench.pack);
        bare.send(datagrams);
        datagrams
    })?)
}

macro_rules! peer {
    ($once:ident, $lossless:ident, $run:ident, $batched:expr) => {
        pub fn $once(setup: &Setup, rate: Option<f64>) -> Result<PeerSample> {
            once(&bench(setup, rate, $batched), $run)
        }

        pub fn $lossless(setup: &Setup, _: &PeerSample) -> Result<f64> {
            lossless(setup, $batched, $run)
        }
    };
}

peer!(evenfall, evenfall_lossless, run_evenfall, true);
peer!(keyed, keyed_lossless, run_keyed, true);
peer!(unpacked, unpacked_lossless, run_unpacked, true);
peer!(sendto, sendto_lossless, run_sendto, false);
peer!(sendmmsg, sendmmsg_lossless, run_sendmmsg, true);
peer!(segmented, segmented_lossless, run_segmented, true);

/// `sendmmsg` by hand, with all messages laid out before the measurement begins. When more than one
/// datagram is sent at a time, the equal datagrams to one destination are segments of one send.
struct Bare {
    socket: UdpSocket,
    bytes: usize,
    names: Vec<libc::sockaddr_in>,
    iovecs: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
    control: [u64; 3],
    _payloads: Vec<u8>,
}

impl Bare {
    fn new(receivers: &[SocketAddr], bytes: usize, most: usize) -> Result<Self> {
        let mut payloads = vec![42_u8; bytes * most];
        let part = |bytes: &mut [u8]| libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        let iovecs = payloads
            .chunks_mut(bytes)
            .flat_map(|payload| {
                let (head, body) = payload.split_at_mut(HEAD_BYTES);
                [part(head), part(body)]
            })
            .collect();
        // SAFETY: plain integers and pointers, for which zero is a value.
        let empty: libc::mmsghdr = unsafe { std::mem::zeroed() };
        Ok(Self {
            socket: UdpSocket::bind("127.0.0.1:0")?,
            bytes,
            names: receivers.iter().map(raw).collect(),
            iovecs,
            messages: vec![empty; receivers.len()],
            control: [0; 3],
            _payloads: payloads,
        })
    }

    /// Sends this many datagrams to every receiver, in as few calls as the limit of 65,507 bytes a
    /// send allows.
    fn send(&mut self, datagrams: usize) {
        let per_send = (65_507 / self.bytes).clamp(1, 64);
        let mut left = datagrams;
        while left > 0 {
            let count = left.min(per_send);
            self.send_once(count);
            left -= count;
        }
    }

    fn send_once(&mut self, count: usize) {
        let (control, control_len) = (self.control.as_mut_ptr(), 24);
        // SAFETY: the buffer is 24 bytes and aligned to 8: a header of 16 and a segment size.
        unsafe {
            control.cast::<libc::cmsghdr>().write(libc::cmsghdr {
                cmsg_len: 18,
                cmsg_level: libc::SOL_UDP,
                cmsg_type: libc::UDP_SEGMENT,
            });
            control.add(2).cast::<u16>().write(self.bytes as u16);
        }
        for (message, name) in self.messages.iter_mut().zip(&self.names) {
            let header = &mut message.msg_hdr;
            header.msg_name = std::ptr::from_ref(name).cast_mut().cast();
            header.msg_namelen = size_of_val(name) as u32;
            header.msg_iov = self.iovecs.as_mut_ptr();
            header.msg_iovlen = 2 * count;
            header.msg_control = if count > 1 { control.cast() } else { std::ptr::null_mut() };
            header.msg_controllen = if count > 1 { control_len } else { 0 };
        }
        let (fd, copies) = (self.socket.as_raw_fd(), self.messages.len() as u32);
        // SAFETY: the headers point into vectors and an array that `self` holds.
        let sent = unsafe { libc::sendmmsg(fd, self.messages.as_mut_ptr(), copies, 0) };
        assert_eq!(sent, copies as i32, "{}", std::io::Error::last_os_error());
    }
}

fn raw(address: &SocketAddr) -> libc::sockaddr_in {
    let SocketAddr::V4(address) = address else { unreachable!("loopback is IPv4 here") };
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
        sin_zero: [0; 8],
    }
}
