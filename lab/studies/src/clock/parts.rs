//! The gain of each part of the method: estimates without some parts, on the stamps of one run.
//!
//! | part | with it | without it |
//! |---|---|---|
//! | codes | the estimate takes pairs of probes whose spacing arrived intact | it takes all probes |
//! | hulls | the middle of the widest band between the probes of both ways | a straight line by least squares through the probes of each way, both with one slope |
//! | loops | least squares over all loops of the mesh | each node follows one chain of pairs to the reference, by the fewest hops |
//!
//! All estimates of a run come from the same probes, so that a difference between two of them is no
//! chance of the network. An estimate with all parts is what the machines find themselves.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::str::FromStr;
use std::time::Duration;

use evenfall_clock_machine::{
    ClockEdge, CodedPair, Config, Gap, MeshSolver, PairEstimate, PairMeter, SoftwareClock,
};
use evenfall_core::{Timestamp, math};

/// A change of the spacing that every pair of probes keeps: an hour.
const ANY_STRAIN: Duration = Duration::from_secs(3_600);

/// The parts of the method that an estimate lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PartsLeftOut {
    /// All probes count, not only those of intact pairs.
    pub codes: bool,
    /// A straight line by least squares takes the place of the widest band.
    pub hulls: bool,
    /// One chain of pairs takes the place of all loops.
    pub loops: bool,
}

impl PartsLeftOut {
    /// Each part alone, and all three.
    pub const EACH_AND_ALL: [Self; 4] = [
        Self { codes: true, hulls: false, loops: false },
        Self { codes: false, hulls: true, loops: false },
        Self { codes: false, hulls: false, loops: true },
        Self { codes: true, hulls: true, loops: true },
    ];

    /// The names of the parts, with `+` between them.
    pub fn name(self) -> String {
        let parts = [(self.codes, "codes"), (self.hulls, "hulls"), (self.loops, "loops")];
        let names: Vec<&str> = parts.iter().filter(|part| part.0).map(|part| part.1).collect();
        names.join("+")
    }
}

impl FromStr for PartsLeftOut {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = Self::default();
        for name in text.split('+') {
            match name {
                "codes" => parts.codes = true,
                "hulls" => parts.hulls = true,
                "loops" => parts.loops = true,
                _ => {
                    return Err(format!(
                        "{name:?}: codes, hulls or loops, or several as in codes+hulls"
                    ));
                }
            }
        }
        Ok(parts)
    }
}

/// A probe as a point: time on our clock, and the difference of the clocks with a delay.
type Probe = (Timestamp, i64);

/// The probes of one window between two nodes, by way; first those of intact pairs, then all.
#[derive(Clone, Debug, Default)]
struct WindowProbes {
    outgoing: [Vec<Probe>; 2],
    incoming: [Vec<Probe>; 2],
}

impl WindowProbes {
    fn note(&mut self, is_ours: bool, pair: &CodedPair, tolerance: Duration) {
        let is_intact = u128::from(pair.strain_ns()) <= tolerance.as_nanos();
        let (kinds, way) =
            if is_ours { (&mut self.outgoing, 1i64) } else { (&mut self.incoming, -1i64) };
        for (sent, received) in pair.sent.into_iter().zip(pair.received) {
            let at = if is_ours { sent } else { received };
            let point = (at, way * received.signed_since(sent));
            kinds[1].push(point);
            if is_intact {
                kinds[0].push(point);
            }
        }
    }

    /// The line by least squares, in the place of the band of `found`. The proven bounds stay. The
    /// line takes intact pairs where `codes` says so and both ways have some, else all probes.
    fn fit(&self, codes: bool, found: &PairEstimate) -> PairEstimate {
        let has_intact = !self.outgoing[0].is_empty() && !self.incoming[0].is_empty();
        let kind = usize::from(!(codes && has_intact));
        let (out, back) = (&self.outgoing[kind], &self.incoming[kind]);
        if out.is_empty() || back.is_empty() {
            return *found;
        }
        let base = out[0].1;
        // Relative to the middle of the window, in which the line is stated.
        let place = |&(at, y): &Probe| (at.signed_since(found.middle) as f64, (y - base) as f64);
        let mean = |way: &[Probe]| {
            let n = way.len() as f64;
            let (x, y) = way.iter().map(place).fold((0.0, 0.0), |a, p| (a.0 + p.0, a.1 + p.1));
            (x / n, y / n)
        };
        let means = [mean(out), mean(back)];
        let (mut both, mut squares) = (0.0, 0.0);
        for (way, mean) in [out, back].into_iter().zip(means) {
            for (x, y) in way.iter().map(place) {
                both += (x - mean.0) * (y - mean.1);
                squares += math::square(x - mean.0);
            }
        }
        let rate = if squares > 0.0 { both / squares } else { 0.0 };
        let [out, back] = means.map(|(x, y)| y - rate * x);
        PairEstimate {
            offset_ns: base.saturating_add(((out + back) / 2.0 + 0.5).floor() as i64),
            rate,
            half_ns: ((out - back) / 2.0).max(0.0) as u64,
            ..*found
        }
    }
}

/// The clocks that all nodes would have without some parts of the method.
pub(super) struct Ablation {
    without: PartsLeftOut,
    config: Config,
    meters: BTreeMap<(u32, u32), PairMeter>,
    probes: BTreeMap<(u32, u32), WindowProbes>,
    estimates: BTreeMap<(u32, u32), PairEstimate>,
    mesh: MeshSolver,
    clocks: Vec<SoftwareClock>,
}

impl Ablation {
    pub(super) fn new(without: PartsLeftOut, config: &Config, nodes: u32) -> Self {
        Self {
            without,
            config: config.clone(),
            meters: BTreeMap::new(),
            probes: BTreeMap::new(),
            estimates: BTreeMap::new(),
            mesh: MeshSolver::new(config.clone(), nodes, 0),
            clocks: vec![SoftwareClock::new(config.clone()); nodes as usize],
        }
    }

    /// The parts that these clocks lack.
    pub(super) fn without(&self) -> PartsLeftOut {
        self.without
    }

    /// Two probes between the node `own` and the node `peer` are complete at `own`.
    pub(super) fn pair(&mut self, own: u32, peer: u32, is_ours: bool, pair: &CodedPair) {
        // As in the machines, the end with the lower number keeps the stamps of both ways.
        if own >= peer {
            return;
        }
        let tolerance = if self.without.codes { ANY_STRAIN } else { self.config.tolerance };
        if self.without.hulls {
            self.probes.entry((own, peer)).or_default().note(is_ours, pair, tolerance);
        } else if self.without.codes {
            let meter = self.meters.entry((own, peer)).or_default();
            if is_ours {
                meter.outgoing(*pair, tolerance);
            } else {
                meter.incoming(*pair, tolerance);
            }
        }
    }

    /// A window of the two nodes ended, with this estimate of the machine.
    pub(super) fn window(&mut self, own: u32, peer: u32, found: Result<PairEstimate, Gap>) {
        let probes = self.probes.remove(&(own, peer)).unwrap_or_default();
        let meter = self.meters.entry((own, peer)).or_default();
        let Ok(found) = found else {
            meter.clear();
            return;
        };
        let estimate = if self.without.hulls {
            Some(probes.fit(!self.without.codes, &found))
        } else if self.without.codes {
            meter.close(found.end, &self.config).ok()
        } else {
            Some(found)
        };
        self.estimates.extend(estimate.map(|estimate| ((own, peer), estimate)));
    }

    /// The reference solves the window.
    pub(super) fn solve(&mut self) {
        let estimates = core::mem::take(&mut self.estimates);
        // The reference closed its own windows when it called all nodes to close theirs.
        let Some(closed) = estimates.range((0, 0)..(1, 0)).map(|(_, own)| own.end).next() else {
            return;
        };
        let edge = |((a, b), estimate)| ClockEdge { a, b, estimate };
        let mut edges: Vec<ClockEdge> = estimates.into_iter().map(edge).collect();
        if self.without.loops {
            let ends: Vec<(u32, u32)> = edges.iter().map(|edge| (edge.a, edge.b)).collect();
            let chains = shortest_chains(self.clocks.len() as u32, &ends);
            let is_link = |a, b| chains[b as usize] == Some(a) || chains[a as usize] == Some(b);
            edges.retain(|edge| is_link(edge.a, edge.b));
        }
        let (verdicts, _) = self.mesh.solve(closed, &edges);
        for (clock, verdict) in self.clocks.iter_mut().zip(verdicts) {
            if let Some(verdict) = verdict {
                clock.follow(verdict.at, verdict);
            }
        }
    }

    /// What the node's clock adds to its local time `now`; `None` before the first solve.
    pub(super) fn offset_ns(&self, node: u32, now: Timestamp) -> Option<i64> {
        let reading = self.clocks[node as usize].read(now);
        reading.assumed_ns.map(|_| reading.offset_ns)
    }
}

/// Every node's neighbour on the way of the fewest hops to the reference, node 0.
pub(super) fn shortest_chains(nodes: u32, pairs: &[(u32, u32)]) -> Vec<Option<u32>> {
    let mut beside: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for &(a, b) in pairs {
        beside.entry(a).or_default().insert(b);
        beside.entry(b).or_default().insert(a);
    }
    let mut chains = vec![None; nodes as usize];
    let mut queue = VecDeque::from([0]);
    while let Some(node) = queue.pop_front() {
        for &other in beside.get(&node).into_iter().flatten() {
            if other != 0 && chains[other as usize].is_none() {
                chains[other as usize] = Some(node);
                queue.push_back(other);
            }
        }
    }
    chains
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts_are_read_as_they_are_written() {
        for parts in PartsLeftOut::EACH_AND_ALL {
            assert_eq!(parts.name().parse(), Ok(parts));
        }
        assert!("codes,hulls".parse::<PartsLeftOut>().is_err());
    }

    #[test]
    fn a_line_of_least_squares_goes_through_the_middle_of_both_ways() {
        let start = Timestamp::from_nanos(1 << 40);
        let at = |us: u64| start + Duration::from_micros(us);
        // The peer's clock is 5 ms ahead and gains 10 ppm; delays are 30 us, every fifth 130 us.
        let theirs = |us: u64| at(us) + Duration::from_nanos(5_000_000 + us / 100);
        let mut probes = WindowProbes::default();
        let mut meter = PairMeter::default();
        for k in 0..40u64 {
            let (us, delay) = (50_000 * k, if k % 5 == 0 { 130 } else { 30 });
            let there = CodedPair {
                sent: [at(us), at(us + 20)],
                received: [theirs(us + delay), theirs(us + 50)],
            };
            let back = CodedPair {
                sent: [theirs(us), theirs(us + 20)],
                received: [at(us + delay), at(us + 50)],
            };
            for (is_ours, pair) in [(true, there), (false, back)] {
                probes.note(is_ours, &pair, Duration::from_nanos(500));
            }
            meter.outgoing(there, Duration::from_nanos(500));
            meter.incoming(back, Duration::from_nanos(500));
        }
        let config = Config::default();
        let found = meter.close(at(2_000_000), &config).expect("both ways were heard");
        let intact = probes.fit(true, &found);
        assert!(intact.offset_ns.abs_diff(5_010_000) < 30, "{intact:?}");
        assert!((intact.rate - 10e-6).abs() < 1e-7, "{intact:?}");
        assert_eq!(intact.half_ns / 1_000, 30, "only intact pairs count");
        let all = probes.fit(false, &found);
        // One of ten probes is 100 us late.
        assert_eq!(all.half_ns / 1_000, 40, "{all:?}");
        assert_eq!(all.proven_ns, found.proven_ns);
    }

    #[test]
    fn a_chain_takes_the_fewest_hops_to_the_reference() {
        let pairs = [(0, 2), (1, 2), (1, 3), (2, 3), (3, 4)];
        assert_eq!(shortest_chains(6, &pairs), [None, Some(2), Some(0), Some(2), Some(3), None]);
    }
}
