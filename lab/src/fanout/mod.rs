//! The cost of a copy: processor time of the sending side per delivered copy of a message.
//!
//! One thread sends to `fanout` sockets on loopback, and another thread drains them. Loopback runs
//! the receiving half of the stack, up to the receiver's socket queue, in the sender's thread, so
//! the sender's thread clock includes that half. The measurement adds the time of the kernel's own
//! threads (`ksoftirqd`), and leaves out the draining thread, whose time belongs to the receivers.
//!
//! The sender is a [`Source`] in front of a [`Port`], or any closure ([`measure`]). A protocol and
//! another system are therefore measured by exactly the same code.

pub mod root;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::{Destination, GroupId, Head, Install, Timestamp, TrafficClass, Transmit};

use evenfall_host::Error;
use evenfall_host::clock::{MonotonicClock, thread_cpu};
use evenfall_host::procstat::ksoftirqd_cpu;
use evenfall_multicast_machine::wire::HEADER_BYTES;
use evenfall_port::{Options, Port};

/// How long the draining thread waits without a datagram before it takes the rest for lost.
const QUIET: Duration = Duration::from_millis(50);
/// Shortest sleep of a paced sender that is early. A shorter sleep costs more processor time than
/// it lasts.
const NAP: Duration = Duration::from_micros(20);
/// Rates tried between a rate without loss and a rate with loss. Each trial halves the distance, so
/// six trials leave 2 % of it.
const SEARCH_STEPS: usize = 6;

/// Settings of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct FanoutBench {
    /// Receivers.
    pub fanout: usize,
    /// Bytes of a message.
    pub size: usize,
    /// Messages in one datagram.
    pub pack: usize,
    /// Datagrams handed to the kernel at a time.
    pub burst: usize,
    /// Messages per second. `None` sends as fast as possible.
    pub rate: Option<f64>,
    /// How long to send.
    pub duration: Duration,
    /// Receivers take coalesced buffers (`UDP_GRO`).
    pub coalesce: bool,
    /// The sender segments (`UDP_SEGMENT`).
    pub segmentation: bool,
}

impl FanoutBench {
    /// 40-byte messages to ten receivers at 10,000 messages per second, each sent by itself.
    pub fn unbatched() -> Self {
        Self {
            fanout: 10,
            size: 40,
            pack: 1,
            burst: 1,
            rate: Some(10_000.0),
            duration: Duration::from_secs(1),
            coalesce: true,
            segmentation: true,
        }
    }

    /// The same messages as fast as possible: twenty in a datagram, 64 datagrams at a time.
    pub fn saturated() -> Self {
        Self { pack: 20, burst: 64, rate: None, ..Self::unbatched() }
    }
}

/// Result of a measurement. A copy is one message at one receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FanoutResult {
    /// Processor time of the sending side over delivered copies.
    pub cpu_ns_per_copy: f64,
    /// Messages sent per second of wall clock.
    pub messages_per_s: f64,
    /// Messages sent.
    pub messages: u64,
    /// Copies that should have been delivered.
    pub copies: u64,
    /// Copies that were not delivered.
    pub lost: u64,
}

/// A source of datagrams, such as a protocol.
pub trait Source {
    /// The groups to install for these receivers.
    fn start(&mut self, receivers: &[SocketAddr]) -> Vec<Install>;
    /// Makes `messages` messages, and pushes their datagrams. Returns the number of datagrams.
    fn next(&mut self, now: Timestamp, messages: usize, push: &mut dyn FnMut(Transmit)) -> usize;
}

/// Bodies that a [`Packed`] source sends in turn. The number is above the datagrams of a burst, so
/// that each datagram of a burst lies in memory of its own, as in a real feed.
const BODIES: usize = 128;

/// A source that packs messages behind a fixed head.
pub struct Packed {
    pack: usize,
    size: usize,
    bodies: Vec<Bytes>,
    next: usize,
}

impl Packed {
    /// A source for the messages of this measurement.
    pub fn new(bench: &FanoutBench) -> Self {
        let body = |number| Bytes::from(vec![number as u8; bench.size * bench.pack]);
        let bodies = (0..BODIES).map(body).collect();
        Self { pack: bench.pack, size: bench.size, bodies, next: 0 }
    }
}

impl Source for Packed {
    fn start(&mut self, receivers: &[SocketAddr]) -> Vec<Install> {
        vec![Install::Group(GroupId(0), receivers.into())]
    }

    fn next(&mut self, _: Timestamp, messages: usize, push: &mut dyn FnMut(Transmit)) -> usize {
        let mut left = messages;
        let mut datagrams = 0;
        while left > 0 {
            let count = left.min(self.pack);
            self.next = (self.next + 1) % BODIES;
            push(Transmit::new(
                TrafficClass::Live,
                Destination::Group(GroupId(0)),
                Head::new(&[0x45; HEADER_BYTES]),
                self.bodies[self.next].slice(..count * self.size),
            ));
            left -= count;
            datagrams += 1;
        }
        datagrams
    }
}

/// Sockets on loopback that a thread drains and counts.
pub struct Sinks {
    addresses: Vec<SocketAddr>,
    shared: Arc<Drained>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Drained {
    datagrams: AtomicU64,
    stop: AtomicBool,
}

impl Sinks {
    /// Opens `count` sockets and starts to drain them.
    ///
    /// # Errors
    /// When a socket cannot be bound or the thread cannot be started.
    pub fn start(count: usize, coalescing: bool) -> Result<Self, Error> {
        let loopback = (Ipv4Addr::LOCALHOST, 0).into();
        let options = Options {
            coalescing,
            datagram_bytes_max: 2048,
            receive_buffer_bytes: 16 << 20,
            ..Options::default()
        };
        let open = |_| evenfall_port::open(loopback, options.clone());
        let ports = (0..count).map(open).collect::<Result<Vec<_>, _>>()?;
        let addresses = ports.iter().map(|port| port.local_addr()).collect();
        let shared = Arc::new(Drained::default());
        let counted = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("sinks".into())
            .spawn(move || drain(ports, &counted))
            .map_err(|source| Error::Os {
                what: "start the draining thread".into(),
                source,
                advice: "raise the limit of processes (ulimit -u)",
            })?;
        Ok(Self { addresses, shared, thread: Some(thread) })
    }

    /// Addresses of the sockets.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Datagrams drained so far.
    pub fn datagrams(&self) -> u64 {
        self.shared.datagrams.load(Ordering::Acquire)
    }

    /// Waits until `datagrams` datagrams have been drained, or until no more arrive. Returns the
    /// number of drained datagrams.
    pub fn settle(&self, datagrams: u64) -> u64 {
        let mut seen = self.datagrams();
        let mut changed = MonotonicClock::now();
        while seen < datagrams && MonotonicClock::now().since(changed) < QUIET {
            std::thread::sleep(Duration::from_millis(1));
            let now = self.datagrams();
            if now != seen {
                (seen, changed) = (now, MonotonicClock::now());
            }
        }
        seen
    }
}

impl Drop for Sinks {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // The thread has printed its own panic.
            drop(thread.join());
        }
    }
}

fn drain(mut ports: Vec<Box<dyn Port>>, drained: &Drained) {
    let mut arrivals = Vec::new();
    while !drained.stop.load(Ordering::Acquire) {
        let mut count = 0;
        for port in &mut ports {
            count += port.receive(&mut arrivals) as u64;
            arrivals.clear();
        }
        if count > 0 {
            drained.datagrams.fetch_add(count, Ordering::Release);
        } else {
            // The thread polls and sleeps in between. If it waited in the socket, each datagram
            // would wake it, and the sender would pay for the wake-up in the measured time.
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Measures any sender: `send(messages)` sends this number of messages and returns the number of
/// datagrams per receiver. The argument is at most `pack * burst`.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn measure(
    bench: &FanoutBench,
    sinks: &Sinks,
    mut send: impl FnMut(Timestamp, usize) -> usize,
) -> Result<FanoutResult, Error> {
    let drained_before = sinks.datagrams();
    let softirq_before = ksoftirqd_cpu()?;
    let cpu_before = thread_cpu();
    let start = MonotonicClock::now();
    let most = bench.pack * bench.burst;
    let (mut messages, mut datagrams) = (0_u64, 0_u64);
    let mut now = start;
    let end = start + bench.duration;
    while now < end {
        let due = match bench.rate {
            None => most,
            Some(rate) => {
                let due = (now.since(start).as_secs_f64() * rate) as u64 - messages;
                (due as usize / bench.pack * bench.pack).min(most)
            }
        };
        if due > 0 {
            datagrams += send(now, due) as u64;
            messages += due as u64;
        } else if let Some(rate) = bench.rate {
            let next = (messages as f64 + bench.pack as f64) / rate;
            let early = (start + Duration::from_secs_f64(next)).since(now);
            std::thread::sleep(early.max(NAP));
        }
        now = MonotonicClock::now();
    }
    let elapsed = now.since(start).as_secs_f64();
    let cpu = thread_cpu() - cpu_before;
    // Under load the kernel delivers in a thread of its own, whose time belongs to the sender.
    let cpu = cpu + ksoftirqd_cpu()?.saturating_sub(softirq_before);
    let sent = datagrams * bench.fanout as u64;
    let drained = sinks.settle(drained_before + sent) - drained_before;
    let copies = messages * bench.fanout as u64;
    let delivered = copies as f64 * drained as f64 / sent.max(1) as f64;
    Ok(FanoutResult {
        cpu_ns_per_copy: cpu.as_nanos() as f64 / delivered.max(1.0),
        messages_per_s: messages as f64 / elapsed,
        messages,
        copies,
        lost: copies.saturating_sub(delivered.round() as u64),
    })
}

/// Measures a source in front of a driver.
///
/// # Errors
/// When a socket cannot be bound.
pub fn bench_source(
    bench: &FanoutBench,
    sinks: &Sinks,
    source: &mut impl Source,
) -> Result<FanoutResult, Error> {
    let options = Options { segmentation: bench.segmentation, ..Options::default() };
    let mut port = evenfall_port::open((Ipv4Addr::LOCALHOST, 0).into(), options)?;
    for install in source.start(sinks.addresses()) {
        port.install(0, &install)?;
    }
    measure(bench, sinks, |now, messages| {
        let datagrams = source.next(now, messages, &mut |transmit| {
            // The queue holds more than one burst. A refused datagram would be counted as lost.
            let _: Result<(), _> = port.send(0, transmit);
        });
        port.flush();
        datagrams
    })
}

/// Measures the driver alone.
///
/// # Errors
/// When a socket cannot be bound.
pub fn bench_fanout(bench: &FanoutBench) -> Result<FanoutResult, Error> {
    let sinks = Sinks::start(bench.fanout, bench.coalesce)?;
    bench_source(bench, &sinks, &mut Packed::new(bench))
}

/// The highest rate at which `trial` loses no message. The first trial runs as fast as possible. If
/// it loses messages, a search by halving looks for a lower rate.
///
/// # Errors
/// The error of a trial.
pub fn highest_lossless(
    flat_out: &FanoutResult,
    mut trial: impl FnMut(f64) -> Result<FanoutResult, Error>,
) -> Result<f64, Error> {
    if flat_out.lost == 0 {
        return Ok(flat_out.messages_per_s);
    }
    let (mut good, mut bad) = (0.0_f64, flat_out.messages_per_s);
    for _ in 0..SEARCH_STEPS {
        let middle = f64::midpoint(good, bad);
        let result = trial(middle)?;
        if result.lost == 0 {
            good = good.max(result.messages_per_s);
        }
        // A trial that fell behind its rate did not test that rate, so the rate counts as too high.
        if result.lost > 0 || result.messages_per_s < middle * 0.98 {
            bad = middle;
        } else {
            good = good.max(middle);
        }
    }
    Ok(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_copy_is_accounted_for() {
        let short = Duration::from_millis(60);
        let slow = FanoutBench { duration: short, fanout: 3, ..FanoutBench::unbatched() };
        let result = bench_fanout(&slow).unwrap();
        // Sixty milliseconds with ten messages each. The number is lower when other processes use
        // the core.
        assert!((1..=600).contains(&result.messages), "{result:?}");
        assert_eq!((result.copies, result.lost), (3 * result.messages, 0));
        assert!(result.cpu_ns_per_copy > 0.0);
    }

    #[test]
    fn search_ends_just_below_the_first_loss() {
        let lossy = |rate: f64| FanoutResult {
            messages_per_s: rate,
            lost: u64::from(rate > 700.0),
            ..FanoutResult::default()
        };
        let found = highest_lossless(&lossy(1000.0), |rate| Ok(lossy(rate))).unwrap();
        assert!((680.0..=700.0).contains(&found), "{found}");
        assert_eq!(highest_lossless(&lossy(500.0), |rate| Ok(lossy(rate))).unwrap(), 500.0);
    }
}
