//! A network whose queues have memory, and whose asymmetry is planted and therefore known.
//!
//! ```text
//!  sender's uplink queue  ->  lasting delay of the way  ->  receiver's downlink queue
//! ```
//!
//! Other traffic keeps every link busy for a stated share of the time, by bursts at random times
//! and of exponential length. A probe waits as in the queue M/M/1. A probe that follows 20 us later
//! finds the same queue, 20 us shorter or with a new burst. Coded pairs need such queues: if the
//! wait of each packet were drawn independently, the pairs would select nothing.
//!
//! In a fat tree, racks and core switches stand between the two links:
//!
//! ```text
//!  uplink -> rack's port to one core switch -> this switch's port to the other rack -> downlink
//! ```
//!
//! A hash of the two hosts picks the core switch, so that all probes of one way take one path, and
//! the way back takes another. Each of the ports has a load of its own and each cable a length of
//! its own, so the two ways of a pair differ for good.
//!
//! With a model, the paths of the model stand between the two links: its lasting delays, waits,
//! spikes, losses, changes of routes and cards. The links then stand for the model's strangers'
//! load, which knows no bursts that come between the two probes of a pair.

use evenfall_core::Prng;
use evenfall_core::math::mix;
use evenfall_sim::network::{Agenda, Chance, Chances};
use evenfall_sim::{
    Cloud, CloudProfile, HostIndex, HostSpec, Loss, Network, Packet, Rates, SimTime, Verdict,
};

/// Mean time that a burst of other traffic takes a link: four full packets at 10 Gb/s.
const BURST_NS: f64 = 4_800.0;
/// A silence after which a queue is drawn anew, in relaxation times of the queue. Three leave a
/// correlation of 5 %.
const RELAXATIONS: f64 = 3.0;

/// The network of the clock study.
#[derive(Clone, Debug, PartialEq)]
pub struct PathsSpec {
    /// Share of the time in which other traffic keeps a link busy; below 1.
    pub load: f64,
    /// Lasting delay of a way in nanoseconds: the least delay, and the greatest uniform part that a
    /// pair adds.
    pub base_ns: (u64, u64),
    /// Greatest difference of the two ways of a pair, either way, in nanoseconds: uniform by pair.
    pub asymmetry_ns: u64,
    /// The switches between the hosts' links; without them a lasting delay alone.
    pub fabric: Option<FabricSpec>,
}

/// Racks and core switches. Every rack has one cable to every core switch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FabricSpec {
    /// Hosts below one rack switch, in the order of their numbers.
    pub rack_hosts: u32,
    /// Core switches.
    pub core_switches: u32,
    /// Longest cable between a rack and a core switch, in nanoseconds: uniform by cable.
    pub cable_ns: u64,
}

impl Default for FabricSpec {
    /// Ten hosts a rack, four core switches, and cables of 100 m at most, in which light takes
    /// 500 ns.
    fn default() -> Self {
        Self { rack_hosts: 10, core_switches: 4, cable_ns: 500 }
    }
}

/// Highest load of a port between racks. A queue at 1 would grow without end.
const PORT_LOAD_MAX: f64 = 0.95;

/// The ports of a fat tree, up and down, by rack and core switch.
#[derive(Clone, Debug, Default)]
struct Fabric {
    ports: Vec<[Link; 2]>,
}

/// A cable between a rack and a core switch, on the way from one host to another.
#[derive(Clone, Copy, Debug)]
struct Cables {
    up: u64,
    down: u64,
}

impl FabricSpec {
    fn rack(&self, host: HostIndex) -> u64 {
        u64::from(host.0 / self.rack_hosts)
    }

    /// The numbers of the two cables between two hosts; `None` within a rack.
    fn cables_between(&self, from: HostIndex, to: HostIndex, seed: u64) -> Option<Cables> {
        let (from_rack, to_rack) = (self.rack(from), self.rack(to));
        let flow = u64::from(from.0) << 32 | u64::from(to.0);
        let core = mix(seed ^ flow) % u64::from(self.core_switches);
        let cable = |rack: u64| rack * u64::from(self.core_switches) + core;
        (from_rack != to_rack).then(|| Cables { up: cable(from_rack), down: cable(to_rack) })
    }

    fn cable_ns(&self, cable: u64, seed: u64) -> u64 {
        Prng::new(seed ^ mix(cable + 1)).below(self.cable_ns + 1)
    }

    /// The load of a port, between nothing and twice the load of all.
    fn load(&self, cable: u64, way: usize, load: f64, seed: u64) -> f64 {
        let port = 2 * cable + way as u64;
        (2.0 * load * Prng::new(seed ^ mix(!port)).unit()).min(PORT_LOAD_MAX)
    }
}

/// A link's other traffic.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    /// Time that the link needs at `at` for the packets that wait, in nanoseconds.
    backlog: f64,
    at: f64,
    /// When the next burst comes.
    next: f64,
}

/// An exponential draw of mean 1 by comparisons alone (von Neumann, 1951), so that the draw is the
/// same on every platform.
fn exponential(prng: &mut Prng) -> f64 {
    let mut whole = 0.0;
    loop {
        let first = prng.unit();
        let (mut last, mut run) = (first, 1);
        loop {
            let next = prng.unit();
            if next >= last {
                break;
            }
            (last, run) = (next, run + 1);
        }
        if run % 2 == 1 {
            return whole + first;
        }
        whole += 1.0;
    }
}

impl Link {
    /// The wait of a packet that comes at `now`, and which the link serves in its turn.
    fn wait(&mut self, now: f64, load: f64, prng: &mut Prng) -> f64 {
        if load <= 0.0 {
            return 0.0;
        }
        let relaxation = BURST_NS / ((1.0 - load) * (1.0 - load));
        if self.next == 0.0 || now - self.at > RELAXATIONS * relaxation {
            // The stationary wait: none with probability 1 - load, and exponential else.
            let busy = prng.chance(load);
            self.backlog = if busy { exponential(prng) * BURST_NS / (1.0 - load) } else { 0.0 };
            self.at = now;
            self.next = now + exponential(prng) * BURST_NS / load;
        }
        while self.next <= now {
            self.backlog = (self.backlog - (self.next - self.at)).max(0.0);
            self.at = self.next;
            self.backlog += exponential(prng) * BURST_NS;
            self.next += exponential(prng) * BURST_NS / load;
        }
        self.backlog = (self.backlog - (now - self.at)).max(0.0);
        self.at = self.at.max(now);
        self.backlog
    }
}

/// The network. See the module documentation.
pub struct ClockPaths {
    spec: PathsSpec,
    seed: u64,
    links: Vec<[Link; 2]>,
    chances: Chances,
    cloud: Option<Cloud>,
    fabric: Fabric,
}

impl ClockPaths {
    /// A network whose lasting delays come from this seed.
    pub fn new(spec: PathsSpec, seed: u64) -> Self {
        let (links, chances, fabric) = (Vec::new(), Chances::default(), Fabric::default());
        Self { spec, seed, links, chances, cloud: None, fabric }
    }

    /// The same network with the paths of a cloud between the links.
    pub fn in_cloud(self, profile: CloudProfile) -> Self {
        let profile = CloudProfile { load: None, ..profile };
        Self { cloud: Some(Cloud::new(profile, self.seed)), ..self }
    }

    /// The lasting delay of one way at a time, in nanoseconds.
    pub fn base_ns(&self, from: HostIndex, to: HostIndex, at: SimTime) -> u64 {
        if let Some(cloud) = &self.cloud {
            return cloud.base_ns(from, to, at);
        }
        if let Some(fabric) = &self.spec.fabric {
            let cables = fabric.cables_between(from, to, self.seed);
            let cable = |cable: u64| fabric.cable_ns(cable, self.seed);
            let between = cables.map_or(0, |cables| cable(cables.up) + cable(cables.down));
            return self.spec.base_ns.0 + between;
        }
        let (low, high) = (from.0.min(to.0), from.0.max(to.0));
        let pair = u64::from(low) << 32 | u64::from(high);
        let mut prng = Prng::new(self.seed ^ pair.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (least, more) = self.spec.base_ns;
        let base = least + prng.below(more + 1);
        // One way takes `skew` and the other way takes the rest.
        let skew = prng.below(self.spec.asymmetry_ns + 1);
        if from.0 < to.0 { base + skew } else { base + self.spec.asymmetry_ns - skew }
    }

    /// The waits at the ports between the racks of two hosts.
    fn cross_core(&mut self, from: HostIndex, to: HostIndex, mut at: f64, prng: &mut Prng) -> f64 {
        let Some(fabric) = self.spec.fabric else { return at };
        let Some(cables) = fabric.cables_between(from, to, self.seed) else { return at };
        for (way, cable) in [cables.up, cables.down].into_iter().enumerate() {
            let load = fabric.load(cable, way, self.spec.load, self.seed);
            at += self.fabric.ports[cable as usize][way].wait(at, load, prng);
        }
        at
    }
}

impl Network for ClockPaths {
    fn add_host(&mut self, spec: &HostSpec) {
        self.links.push([Link::default(); 2]);
        if let Some(fabric) = &self.spec.fabric {
            let racks = (self.links.len() as u32).div_ceil(fabric.rack_hosts);
            let ports = racks * fabric.core_switches;
            self.fabric.ports.resize(ports as usize, [Link::default(); 2]);
        }
        self.cloud.iter_mut().for_each(|cloud| cloud.add_host(spec));
    }

    fn route(&mut self, packet: &Packet, prng: &mut Prng, agenda: &mut Agenda) -> Verdict {
        let chance = self.chances.draw(prng);
        if chance == Chance::Lose {
            return Verdict::Lose(Loss::Random);
        }
        let mut at = packet.at.nanos() as f64;
        at += self.links[packet.from_host.0 as usize][0].wait(at, self.spec.load, prng);
        at = self.cross_core(packet.from_host, packet.to_host, at, prng);
        match &mut self.cloud {
            Some(cloud) => {
                let enters = SimTime::from_nanos(at as u64);
                match cloud.route(&Packet { at: enters, ..*packet }, prng, agenda) {
                    Verdict::Deliver(leaves) => at = leaves.nanos() as f64,
                    lost => return lost,
                }
            }
            None => at += self.base_ns(packet.from_host, packet.to_host, packet.at) as f64,
        }
        at += self.links[packet.to_host.0 as usize][1].wait(at, self.spec.load, prng);
        let arrival = SimTime::from_nanos(at as u64);
        match chance {
            Chance::Reorder(by) => Verdict::Deliver(arrival + by),
            Chance::Duplicate(lag) => Verdict::Twice(arrival, arrival + lag),
            _ => Verdict::Deliver(arrival),
        }
    }

    fn set_rates(&mut self, rates: Rates) {
        self.chances = Chances::new(rates);
    }

    /// Lasting delays stay: a slow host is slow with its processor.
    fn slow(&mut self, _: SimTime, _: HostIndex, _: f64) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_those_of_the_queue_m_m_1_and_two_probes_find_one_queue() {
        for load in [0.5, 0.9] {
            let mut prng = Prng::new(1);
            let (mut link, mut sum, mut alike, mut busy) = (Link::default(), 0.0, 0u32, 0u32);
            let n = 40_000;
            for k in 1..=n {
                let now = f64::from(k) * 2_300_000.0;
                let first = link.wait(now, load, &mut prng);
                let second = link.wait(now + 20_000.0, load, &mut prng);
                sum += first;
                busy += u32::from(first > 20_000.0);
                alike += u32::from(first > 20_000.0 && second > 0.0);
            }
            let expected = load * BURST_NS / (1.0 - load);
            let mean = sum / f64::from(n);
            assert!((mean / expected - 1.0).abs() < 0.05, "load {load}: {mean}, not {expected}");
            assert_eq!(alike, busy, "a queue of more than 20 us is still there 20 us later");
        }
    }

    #[test]
    fn a_hash_of_both_hosts_picks_the_path_and_the_ways_of_a_pair_differ_for_good() {
        let fabric = FabricSpec::default();
        let spec =
            PathsSpec { load: 0.5, base_ns: (20_000, 0), asymmetry_ns: 0, fabric: Some(fabric) };
        let mut paths = ClockPaths::new(spec, 3);
        (0..35).for_each(|_| paths.add_host(&HostSpec::default()));
        assert_eq!(paths.fabric.ports.len(), 4 * 4, "four racks and four core switches");
        let way = |a, b| paths.base_ns(HostIndex(a), HostIndex(b), SimTime::ZERO) as i64;
        assert_eq!((way(1, 2), way(2, 1)), (20_000, 20_000), "a rack has one path");
        let differences: Vec<i64> = (10..35).map(|b| way(0, b) - way(b, 0)).collect();
        assert!(differences.iter().all(|ns| ns.abs() <= 1_000), "{differences:?}");
        assert!(differences.iter().any(|ns| ns.abs() > 300), "{differences:?}");
        // Some pairs go both ways through one core switch.
        assert!(differences.contains(&0), "{differences:?}");
        let loads = (0..16).map(|cable| fabric.load(cable, 0, 0.5, 3));
        let mean = loads.sum::<f64>() / 16.0;
        assert!((0.25..0.75).contains(&mean), "{mean}");
    }

    #[test]
    fn asymmetry_is_within_its_bound_and_the_same_each_time() {
        let spec =
            PathsSpec { load: 0.0, base_ns: (20_000, 10_000), asymmetry_ns: 2_000, fabric: None };
        let paths = ClockPaths::new(spec, 3);
        let mut widest = 0;
        for b in 1..500 {
            let way = |a, b| paths.base_ns(HostIndex(a), HostIndex(b), SimTime::ZERO) as i64;
            let difference = way(0, b) - way(b, 0);
            assert!(difference.abs() <= 2_000, "{difference}");
            widest = widest.max(difference.abs());
            assert_eq!(way(0, b), way(0, b));
        }
        assert!(widest > 1_800, "the range is used");
    }
}
