//! A host: its processor, its pre-emptions, its clocks.
//!
//! A machine is a single thread, so the inputs of one node never overlap; nodes on one host share
//! its cores. Each input costs processor time, and so does each copy sent; while a node is busy
//! its arrivals wait in a bounded socket buffer. Now and then the hypervisor takes the whole host
//! away for a while: those pauses hit everything on the host at once, and hedging lives off the
//! fact that they do not hit two hosts together.

use core::time::Duration;
use std::collections::VecDeque;

use evenfall_core::Prng;
use evenfall_core::time::nanos;

use crate::clock::{ClockSpec, HostClock};
use crate::math::ln;
use crate::quantiles::Quantiles;

/// What a host is made of. Times are at slowness 1.
#[derive(Clone, Debug, PartialEq)]
pub struct HostSpec {
    /// Threads that can run at once; matters when more nodes than this share the host.
    pub cores: u16,
    /// Egress rate in bits per second; 0 for no limit.
    pub nic_bits_per_s: u64,
    /// Wake-up of a node that was idle when its packet came.
    pub wake_cost: Duration,
    /// Receiving one packet.
    pub receive_cost: Duration,
    /// One system call to send, whatever the number of copies.
    pub send_cost: Duration,
    /// Each copy that is sent.
    pub copy_cost: Duration,
    /// Packets that the socket buffer of each node holds; more are dropped and counted.
    pub receive_queue: u32,
    /// How long a node leaves arrivals in its socket while its machine has no use for them
    /// ([`poll_lull`](evenfall_core::Machine::poll_lull)).
    pub moderation: Duration,
    /// Multiplies the processor costs, and the network's delays to and from this host. 1 is normal,
    /// 3 is a straggler.
    pub slowness: f64,
    /// Pre-emptions.
    pub stalls: Option<StallSpec>,
    /// The clocks.
    pub clock: ClockSpec,
}

impl Default for HostSpec {
    /// A cloud machine of 8 hardware threads and 10 Gb/s, with the costs of batched UDP system
    /// calls (420 ns to receive, 1.6 us when each wake-up finds one, 1.9 us for a copy), a socket
    /// buffer of 2,048 packets, no pre-emptions and a perfect clock.
    fn default() -> Self {
        Self {
            cores: 8,
            nic_bits_per_s: 10_000_000_000,
            wake_cost: Duration::from_nanos(1_200),
            receive_cost: Duration::from_nanos(420),
            send_cost: Duration::from_nanos(300),
            copy_cost: Duration::from_nanos(1_900),
            receive_queue: 2_048,
            moderation: Duration::ZERO,
            slowness: 1.0,
            stalls: None,
            clock: ClockSpec::default(),
        }
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
            ..Self::default()
        }
    }
}

/// Short pauses of a whole host, as a hypervisor causes them.
#[derive(Clone, Debug, PartialEq)]
pub struct StallSpec {
    /// Mean time from the end of one pause to the start of the next (exponential).
    pub mean_gap: Duration,
    /// How long a pause lasts.
    pub length: Quantiles,
}

/// Processor costs in nanoseconds, slowness applied.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Costs {
    pub(crate) wake: u64,
    pub(crate) receive: u64,
    pub(crate) send: u64,
    pub(crate) copy: u64,
}

pub(crate) struct Host {
    pub(crate) spec: HostSpec,
    pub(crate) clock: HostClock,
    pub(crate) costs: Costs,
    /// Nodes that live here.
    pub(crate) nodes: Vec<u32>,
    /// When each core is free; empty while every node can have its own.
    cores: Vec<u64>,
    stalls: Option<Stalls>,
}

impl Host {
    pub(crate) fn new(spec: HostSpec, mut prng: Prng) -> Self {
        let clock = HostClock::new(spec.clock.clone(), prng.fork(1));
        let stalls = spec.stalls.clone().map(|stalls| Stalls::new(stalls, prng.fork(2)));
        let mut host = Self {
            clock,
            stalls,
            costs: Costs::default(),
            nodes: Vec::new(),
            cores: Vec::new(),
            spec,
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

    /// Multiplies the costs of the specification by a factor.
    pub(crate) fn slow(&mut self, factor: f64) {
        let spec = &self.spec;
        let scaled = |cost| (nanos(cost) as f64 * spec.slowness * factor) as u64;
        self.costs = Costs {
            wake: scaled(spec.wake_cost),
            receive: scaled(spec.receive_cost),
            send: scaled(spec.send_cost),
            copy: scaled(spec.copy_cost),
        };
    }

    /// Nothing is asked about times before `now` any more.
    #[inline]
    pub(crate) fn forget(&mut self, now: u64) {
        if let Some(stalls) = &mut self.stalls {
            stalls.forget(now);
        }
    }

    /// The first instant from `at` on at which the host runs at all.
    #[inline]
    pub(crate) fn awake(&mut self, at: u64) -> u64 {
        match &mut self.stalls {
            Some(stalls) => stalls.resume(at),
            None => at,
        }
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
        match &mut self.stalls {
            Some(stalls) => stalls.work(from, cost),
            None => from + cost,
        }
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
    spec: StallSpec,
    prng: Prng,
    /// Start and end of those that are not over yet for every node of the host, in order. A busy
    /// node is several of them ahead of its neighbours. The last one has been reached by nobody.
    drawn: VecDeque<(u64, u64)>,
}

impl Stalls {
    fn new(spec: StallSpec, prng: Prng) -> Self {
        let mut stalls = Self { spec, prng, drawn: VecDeque::new() };
        stalls.draw(0);
        stalls
    }

    fn draw(&mut self, before: u64) {
        let gap = -ln(1.0 - self.prng.unit()) * nanos(self.spec.mean_gap) as f64;
        let start = before + (gap as u64).max(1);
        let length = self.spec.length.sample(self.prng.next_u64());
        self.drawn.push_back((start, start + length));
    }

    /// Draws until there is one beyond `at`.
    fn reach(&mut self, at: u64) {
        while let Some(&(start, end)) = self.drawn.back()
            && start <= at
        {
            self.draw(end);
        }
    }

    fn resume(&mut self, at: u64) -> u64 {
        self.reach(at);
        let inside = self.drawn.iter().find(|(start, end)| (*start..*end).contains(&at));
        inside.map_or(at, |&(_, end)| end)
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
        Host::new(HostSpec { stalls: Some(stalls), ..HostSpec::ideal() }, Prng::new(3))
    }

    #[test]
    fn pauses_take_their_share_of_the_processor() {
        let mut host = stalled_host();
        // Nine of ten milliseconds are left, so 9 s of work take 10 s.
        let end = (0..90_000).fold(0, |from, _| host.work(from, 100_000));
        assert!((end as f64 / 1e10 - 1.0).abs() < 0.05, "{end}");
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
