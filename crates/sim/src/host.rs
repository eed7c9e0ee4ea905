//! A host: its processor, its pre-emptions, its clocks.
//!
//! A machine is a single thread, so the inputs of one node never overlap. Nodes on one host share
//! its cores. Each input costs processor time, and so does each copy sent. While a node is busy,
//! its arrivals wait in a bounded socket buffer. Now and then the hypervisor stops the whole host
//! for a while. Such a pause hits all nodes of the host at once. Hedging helps because a pause does
//! not hit two hosts together.

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::LazyLock;

use evenfall_core::time::nanos;
use evenfall_core::{Prng, Timestamp};

use crate::clock::{ClockSpec, HostClock};
use crate::math::{ln, mix};
use crate::quantiles::Quantiles;

/// The specification of a host. Times are at slowness 1.
#[derive(Clone, Debug, PartialEq)]
pub struct HostSpec {
    /// Threads that can run at once; matters when more nodes than this share the host.
    pub cores: u16,
    /// Rate of the network card in bits per second, each way; 0 for no limit.
    pub nic_bits_per_s: u64,
    /// Packets per second that the card takes, each way; 0 for no limit.
    pub nic_packets_per_s: u64,
    /// The longest queue of the card for packets that come in faster than the card takes them, as
    /// the time that the card needs for the queue. Later packets are dropped and counted as
    /// [`Loss::Buffer`].
    ///
    /// [`Loss::Buffer`]: crate::Loss::Buffer
    pub ingress_queue: Duration,
    /// Wake-up of a node that was idle when its packet came.
    pub wake_cost: Duration,
    /// Receiving one packet.
    pub receive_cost: Duration,
    /// One system call to send, whatever the number of copies.
    pub send_cost: Duration,
    /// Each copy that is sent: time of the processor.
    pub copy_cost: Duration,
    /// Threads of each node that do nothing but send. Each has a queue of the card of its own. With
    /// 0 the node sends on the thread that receives, and its copies leave as that thread makes
    /// them. The threads need cores of their own and are not counted in `cores`.
    pub send_threads: u16,
    /// The time that the card needs for a copy out of the queue of one thread, while the processor
    /// goes on. Copies of other threads leave meanwhile. Without `send_threads` it has no effect.
    pub card_cost: Duration,
    /// The longest queue of a sending thread, as the time that the card needs for it. A node
    /// whose threads all have such a queue keeps further copies until one is shorter.
    pub send_queue: Duration,
    /// The socket buffer of a node holds this many packets. Further packets are dropped and
    /// counted. The files of models have no such number, because the buffer is the program's own
    /// and not the cloud's.
    pub receive_queue: u32,
    /// How long a node leaves arrivals in its socket while its machine has no use for them
    /// ([`poll_lull`](evenfall_core::Machine::poll_lull)).
    pub moderation: Duration,
    /// Multiplies the processor costs, and the network's delays to and from this host. 1 is normal,
    /// 3 is a straggler.
    pub slowness: f64,
    /// How late a timer fires on a host that has nothing else to do. A host that is awake when
    /// the time comes is not late.
    pub timer_late: Quantiles,
    /// The kinds of pre-emptions: short ones by the hypervisor, rare and long ones by migration.
    pub stalls: Vec<StallSpec>,
    /// The clocks.
    pub clock: ClockSpec,
}

static SOCKETS: LazyLock<HostSpec> = LazyLock::new(|| HostSpec {
    cores: 8,
    nic_bits_per_s: 10_000_000_000,
    // Clouds state no limit for a machine of this size; the models have what was measured.
    nic_packets_per_s: 0,
    ingress_queue: Duration::from_millis(1),
    wake_cost: Duration::from_nanos(1_200),
    receive_cost: Duration::from_nanos(420),
    send_cost: Duration::from_nanos(300),
    copy_cost: Duration::from_nanos(1_900),
    send_threads: 0,
    card_cost: Duration::ZERO,
    send_queue: Duration::from_millis(1),
    receive_queue: 2_048,
    moderation: Duration::ZERO,
    slowness: 1.0,
    timer_late: spun(),
    stalls: Vec::new(),
    clock: ClockSpec::default(),
});

/// The lateness of a wait that stops sleeping 50 us before its time and watches the clock. The
/// example `lateness` of `evenfall-port`, run in release, has .09 us at the median and 18 us at the
/// 99th percentile. The spin does not help a sleep that ends more than 50 us late, so the tail is
/// that of sleeps.
fn spun() -> Quantiles {
    let points = [(0.0, 40.0), (0.5, 90.0), (0.9, 400.0), (0.99, 18_000.0), (0.999, 62_000.0)];
    Quantiles::from_points(&points).expect("the points ascend")
}

impl Default for HostSpec {
    /// A cloud machine of 8 hardware threads and 10 Gb/s, with a perfect clock and without
    /// pre-emptions. The costs are those of batched UDP system calls: 420 ns to receive, 1.6 us
    /// when each wake-up finds one datagram, 1.9 us for a copy. The socket buffer holds 2,048
    /// packets, and timers spin before their time.
    fn default() -> Self {
        SOCKETS.clone()
    }
}

impl HostSpec {
    /// A host that costs nothing and never queues, for tests of protocol logic.
    pub fn ideal() -> Self {
        Self {
            nic_bits_per_s: 0,
            wake_cost: Duration::ZERO,
            receive_cost: Duration::ZERO,
            send_cost: Duration::ZERO,
            copy_cost: Duration::ZERO,
            receive_queue: u32::MAX,
            timer_late: Quantiles::constant(Duration::ZERO),
            ..Self::default()
        }
    }
}

/// One kind of pauses of a whole host, as a hypervisor causes them.
#[derive(Clone, Debug, PartialEq)]
pub struct StallSpec {
    /// Mean time from the end of one pause to the start of the next (exponential).
    pub mean_gap: Duration,
    /// How long a pause lasts.
    pub length: Quantiles,
}

/// Times beyond this never come.
const NEVER: u64 = 1 << 62;

/// Processor costs in nanoseconds, slowness applied.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Costs {
    pub(crate) wake: u64,
    pub(crate) receive: u64,
    pub(crate) send: u64,
    pub(crate) copy: u64,
    pub(crate) card: u64,
}

/// The fields that every packet needs come first, so that few lines of the cache hold them: most of
/// the time of a run with thousands of hosts is spent waiting for these lines.
#[repr(C, align(64))]
pub(crate) struct Host {
    card: Card,
    /// From the first of these times up to the second, the host is not paused.
    awake: (u64, u64),
    pub(crate) costs: Costs,
    /// Packets that the socket buffer of each node holds.
    pub(crate) receive_queue: u32,
    /// How long a node leaves arrivals unread at most, nanoseconds.
    pub(crate) moderation: u64,
    pub(crate) clock: HostClock,
    /// What the lateness of timers is drawn from; `None` while timers are exact.
    timer_key: Option<u64>,
    timer_late: Quantiles,
    /// When each core is free; empty while every node can have its own.
    cores: Vec<u64>,
    stalls: Option<Box<Stalls>>,
    /// Nodes that live here.
    pub(crate) nodes: Vec<u32>,
    spec: Box<HostSpec>,
}

/// The receiving half of a network card.
#[derive(Clone, Copy, Debug, Default)]
struct Card {
    /// Nanoseconds per byte, times 2^[`POINT`], and nanoseconds per packet.
    per_byte: u64,
    per_packet: u64,
    /// When the card has taken all packets that came.
    free: u64,
    /// The longest queue of the card, nanoseconds.
    holds: u64,
}

/// Fixed-point bits of nanoseconds per byte.
const POINT: u32 = 20;

impl Card {
    fn new(spec: &HostSpec) -> Self {
        let per_byte = (8_000_000_000u64 << POINT).checked_div(spec.nic_bits_per_s);
        Self {
            per_byte: per_byte.unwrap_or(0),
            per_packet: 1_000_000_000u64.checked_div(spec.nic_packets_per_s).unwrap_or(0),
            free: 0,
            holds: nanos(spec.ingress_queue),
        }
    }

    /// When a packet whose last bit comes at a time has been taken in; `None` when it is dropped.
    /// A packet that finds the card idle is there at once: its bits were on the wire before.
    #[inline]
    fn take(&mut self, at: u64, bytes: u64) -> Option<u64> {
        let takes = ((bytes * self.per_byte) >> POINT).max(self.per_packet);
        if self.free.saturating_sub(at) > self.holds {
            return None;
        }
        self.free = at.max(self.free + takes);
        Some(self.free)
    }
}

impl Host {
    pub(crate) fn new(spec: HostSpec, mut prng: Prng) -> Self {
        let clock = HostClock::new(spec.clock.clone(), prng.fork(1));
        let mut own = prng.fork(2);
        let stalls = (!spec.stalls.is_empty()).then(|| Stalls::new(&spec.stalls, &mut own));
        let key = prng.fork(3).next_u64();
        let mut host = Self {
            clock,
            // Without pauses the host is never paused.
            awake: (0, if stalls.is_some() { 0 } else { u64::MAX }),
            stalls: stalls.map(Box::new),
            card: Card::new(&spec),
            receive_queue: spec.receive_queue,
            moderation: nanos(spec.moderation),
            timer_late: spec.timer_late.clone(),
            timer_key: (spec.timer_late.at(1.0) > 0).then_some(key),
            costs: Costs::default(),
            nodes: Vec::new(),
            cores: Vec::new(),
            spec: Box::new(spec),
        };
        host.slow(1.0);
        host
    }

    pub(crate) fn add_node(&mut self, node: u32) {
        self.nodes.push(node);
        if self.nodes.len() > usize::from(self.spec.cores) {
            self.cores = vec![0; usize::from(self.spec.cores.max(1))];
        }
    }

    /// The specification, as it was given.
    pub(crate) fn spec(&self) -> &HostSpec {
        &self.spec
    }

    /// The least time from the turn of a node to the departure of a copy that the turn makes
    /// known to the network. Copies of sending threads become known when they leave.
    pub(crate) fn least_sending(&self) -> u64 {
        if self.spec.send_threads > 0 { 0 } else { self.costs.send + self.costs.copy }
    }

    /// Multiplies the costs of the specification by a factor.
    pub(crate) fn slow(&mut self, factor: f64) {
        let spec = &self.spec;
        let scaled = |cost| (nanos(cost) as f64 * spec.slowness * factor) as u64;
        self.costs = Costs {
            wake: scaled(spec.wake_cost),
            receive: scaled(spec.receive_cost),
            send: scaled(spec.send_cost),
            copy: scaled(spec.copy_cost),
            card: scaled(spec.card_cost),
        };
    }

    /// Forgets the pauses before `now`. No caller asks about earlier times afterwards.
    #[inline]
    pub(crate) fn forget(&mut self, now: u64) {
        if self.awake.1 > now {
            return;
        }
        if let Some(stalls) = &mut self.stalls {
            stalls.forget(now);
        }
    }

    /// The first instant from `at` on at which the host runs at all.
    #[inline]
    pub(crate) fn awake(&mut self, at: u64) -> u64 {
        if self.awake.0 <= at && at < self.awake.1 {
            return at;
        }
        let Some(stalls) = &mut self.stalls else { return at };
        let resumed = stalls.resume(at);
        self.awake = stalls.around(resumed);
        resumed
    }

    /// The first instant from `at` on at which a thread can run.
    #[inline]
    pub(crate) fn ready(&mut self, at: u64) -> u64 {
        let at = self.cores.iter().min().map_or(at, |&free| free.max(at));
        self.awake(at)
    }

    /// When work of this length, begun at `from`, ends.
    #[inline]
    pub(crate) fn work(&mut self, from: u64, cost: u64) -> u64 {
        if self.awake.0 <= from && from < self.awake.1 && from + cost <= self.awake.1 {
            return from + cost;
        }
        match &mut self.stalls {
            Some(stalls) => stalls.work(from, cost),
            None => from + cost,
        }
    }

    /// When the card has taken in a packet that comes at a time; `None` when the card drops the
    /// packet.
    #[inline]
    pub(crate) fn take_in(&mut self, at: u64, bytes: u64) -> Option<u64> {
        self.card.take(at, bytes)
    }

    /// When a timer that an idle host set for a local time fires. Each time the lateness is drawn
    /// anew by the specification.
    #[inline]
    pub(crate) fn fires(&self, node: u32, timeout: Timestamp) -> u64 {
        let due = self.clock.true_time(timeout);
        let Some(key) = self.timer_key.filter(|_| due < NEVER) else { return due };
        let word = mix(key ^ mix(timeout.nanos() ^ u64::from(node) << 40));
        due.saturating_add(self.timer_late.sample(word))
    }

    /// Reads the lines of the cache that a turn needs. The result depends on each of these lines.
    #[inline]
    pub(crate) fn touch(&self) -> u64 {
        let timers = u64::from(self.timer_key.is_some());
        self.card.free ^ self.costs.copy ^ self.clock.touch() ^ timers
    }

    /// Takes a core for a piece of work.
    #[inline]
    pub(crate) fn occupy(&mut self, until: u64) {
        if let Some(core) = self.cores.iter_mut().min() {
            *core = (*core).max(until);
        }
    }
}

/// Pauses are drawn one after the other as a node of the host reaches them: no events.
struct Stalls {
    kinds: Vec<StallKind>,
    /// Start and end of the pauses that are not over yet for every node of the host, in order. A
    /// busy node is several pauses ahead of its neighbours. No node has reached the last pause.
    drawn: VecDeque<(u64, u64)>,
}

/// Pauses of one kind.
struct StallKind {
    mean_gap: f64,
    length: Quantiles,
    prng: Prng,
    /// Start and end of the next pause.
    next: (u64, u64),
}

impl StallKind {
    fn draw(&mut self, before: u64) {
        let gap = -ln(1.0 - self.prng.unit()) * self.mean_gap;
        let start = before.saturating_add((gap as u64).max(1)).min(NEVER);
        self.next = (start, start + self.length.sample(self.prng.next_u64()));
    }
}

impl Stalls {
    fn new(specs: &[StallSpec], prng: &mut Prng) -> Self {
        let kinds = specs.iter().enumerate().map(|(number, spec)| {
            let (mean_gap, length) = (nanos(spec.mean_gap) as f64, spec.length.clone());
            let prng = prng.fork(number as u64);
            let mut kind = StallKind { mean_gap, length, prng, next: (0, 0) };
            kind.draw(0);
            kind
        });
        let mut stalls = Self { kinds: kinds.collect(), drawn: VecDeque::new() };
        stalls.draw();
        stalls
    }

    /// Draws the next pause. A pause that begins within another one, of another kind, ends with
    /// the later end of the two.
    fn draw(&mut self) {
        let first = |kinds: &[StallKind]| {
            (0..kinds.len()).min_by_key(|&kind| kinds[kind].next.0).expect("there is a kind")
        };
        let mut kind = first(&self.kinds);
        let (start, mut end) = self.kinds[kind].next;
        loop {
            let over = self.kinds[kind].next.1;
            self.kinds[kind].draw(over);
            kind = first(&self.kinds);
            let (next, over) = self.kinds[kind].next;
            if next > end || next >= NEVER {
                break;
            }
            end = end.max(over);
        }
        self.drawn.push_back((start, end));
    }

    /// Draws pauses until a pause begins after `at`.
    fn reach(&mut self, at: u64) {
        while let Some(&(start, _)) = self.drawn.back()
            && start <= at
        {
            self.draw();
        }
    }

    fn resume(&mut self, at: u64) -> u64 {
        self.reach(at);
        let inside = self.drawn.iter().find(|(start, end)| (*start..*end).contains(&at));
        inside.map_or(at, |&(_, end)| end)
    }

    /// The time without pauses around an instant that is in no pause: its beginning, as far as it
    /// is known, and its end.
    fn around(&mut self, at: u64) -> (u64, u64) {
        self.reach(at);
        let next = self.drawn.partition_point(|&(start, _)| start <= at);
        let since = next.checked_sub(1).map_or(at, |last| self.drawn[last].1);
        (since, self.drawn.get(next).map_or(at, |&(start, _)| start))
    }

    fn work(&mut self, from: u64, cost: u64) -> u64 {
        let from = self.resume(from);
        let mut end = from + cost;
        let mut next = 0;
        while let Some(&(start, stop)) = self.drawn.get(next)
            && start < end
        {
            if start >= from {
                end += stop - start;
            }
            next += 1;
            self.reach(end);
        }
        end
    }

    fn forget(&mut self, now: u64) {
        while self.drawn.len() > 1 && self.drawn[0].1 <= now {
            self.drawn.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stalled_host() -> Host {
        let stalls = StallSpec {
            mean_gap: Duration::from_millis(9),
            length: Quantiles::constant(Duration::from_millis(1)),
        };
        Host::new(HostSpec { stalls: vec![stalls], ..HostSpec::ideal() }, Prng::new(3))
    }

    #[test]
    fn pauses_take_their_share_of_the_processor() {
        let mut host = stalled_host();
        // Nine of ten milliseconds are left, so 9 s of work take 10 s.
        let end = (0..90_000).fold(0, |from, _| host.work(from, 100_000));
        assert!((end as f64 / 1e10 - 1.0).abs() < 0.05, "{end}");
    }

    #[test]
    fn pauses_that_never_come_end_no_run() {
        for length in [Duration::ZERO, Duration::from_secs(4)] {
            let mean_gap = Duration::from_secs(10_000_000_000);
            let stalls = vec![StallSpec { mean_gap, length: Quantiles::constant(length) }; 8];
            for seed in 0..50 {
                let spec = HostSpec { stalls: stalls.clone(), ..HostSpec::ideal() };
                let mut host = Host::new(spec, Prng::new(seed));
                assert_eq!(host.ready(1_000_000_000), 1_000_000_000);
                assert_eq!(host.work(1_000_000_000, 5), 1_000_000_005);
            }
        }
    }

    #[test]
    fn a_paused_host_is_ready_when_the_pause_ends() {
        let mut host = stalled_host();
        let (start, end) = host.stalls.as_ref().expect("has stalls").drawn[0];
        assert_eq!(host.ready(start - 1), start - 1);
        assert_eq!(host.ready(start), end);
        assert_eq!(host.ready(end), end);
        let mut host = stalled_host();
        assert_eq!(host.work(start - 10, 20), end + 10, "work goes on after the pause");
        assert_eq!(host.ready(start + 1), end, "a neighbour that lags sees the same pause");
    }

    #[test]
    fn a_neighbour_far_behind_sees_every_pause_too() {
        let (mut host, mut alone) = (stalled_host(), stalled_host());
        host.work(0, 100_000_000);
        let lagging: Vec<u64> = (0..200).map(|i| host.ready(i * 500_000)).collect();
        let wanted: Vec<u64> = (0..200).map(|i| alone.ready(i * 500_000)).collect();
        assert_eq!(lagging, wanted);
        assert_eq!(host.work(1_000_000, 50_000_000), alone.work(1_000_000, 50_000_000));
        host.forget(60_000_000);
        assert_eq!(host.ready(60_000_001), wanted[120].max(60_000_001));
    }

    #[test]
    fn more_nodes_than_cores_wait_for_a_core() {
        let mut host = Host::new(HostSpec { cores: 2, ..HostSpec::ideal() }, Prng::new(1));
        (0..3).for_each(|node| host.add_node(node));
        host.occupy(100);
        assert_eq!(host.ready(50), 50);
        host.occupy(70);
        assert_eq!(host.ready(50), 70);
    }
}
