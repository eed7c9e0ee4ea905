use core::time::Duration;

use evenfall_core::Prng;

use super::*;
use crate::bound::BoundedReading;
use crate::graph;
use crate::trace::{ZERO, ours};

/// A pool of clocks, and the measurements of ideal pairs without asymmetry and noise.
struct Pool {
    pairs: Vec<(u32, u32)>,
    /// Offset in nanoseconds and rate of each clock against node 0.
    clocks: Vec<(i64, f64)>,
    /// For each pair, half of the time by which the way there is longer than the way back.
    skew: Vec<f64>,
    noise_ns: f64,
    lies: Vec<u32>,
}

impl Pool {
    fn new(nodes: u32, skew_ns: f64, noise_ns: f64, prng: &mut Prng) -> Self {
        let pairs = graph::pairs(nodes, graph::degree(nodes), 5);
        let clock = |n: u32| {
            if n == 0 {
                (0, 0.0)
            } else {
                (prng.normal() as i64 * 3_000_000_000, 3e-5 * prng.normal())
            }
        };
        let clocks = (0..nodes).map(clock).collect();
        let skew = pairs.iter().map(|_| skew_ns * prng.normal()).collect();
        Self { pairs, clocks, skew, noise_ns, lies: Vec::new() }
    }

    /// A clock's offset at a time of node 0.
    fn truth(&self, node: u32, at: u64) -> f64 {
        let (offset, rate) = self.clocks[node as usize];
        offset as f64 + rate * at as f64
    }

    fn edges(&self, end: u64, prng: &mut Prng) -> Vec<ClockEdge> {
        let edge = |(k, &(a, b)): (usize, &(u32, u32))| {
            let difference = |at: u64| self.truth(b, at) - self.truth(a, at);
            let middle = end - 1_000_000_000;
            let mut wrong = self.skew[k] + self.noise_ns * prng.normal();
            if self.lies.contains(&a) || self.lies.contains(&b) {
                wrong += 40_000.0 * (prng.unit() - 0.5);
            }
            let local = |at: u64| ours(at) + Duration::ZERO;
            let shown = |at: u64| {
                let ns = i128::from(local(at).nanos()) + self.truth(a, at) as i128;
                Timestamp::from_nanos(ns as u64)
            };
            let gain = (1.0 + self.clocks[b as usize].1) / (1.0 + self.clocks[a as usize].1) - 1.0;
            let half = 25_000.0;
            let estimate = PairEstimate {
                middle: shown(middle),
                end: shown(end),
                offset_ns: (difference(middle) + wrong).round() as i64,
                rate: gain + 2e-9 * prng.normal(),
                half_ns: half as u64,
                kept: 40,
                proven_ns: [-half, half].map(|side| (difference(end) + wrong + side) as i64),
                proven_rate: [gain - 3e-6, gain + 3e-6],
            };
            ClockEdge { a, b, estimate }
        };
        self.pairs.iter().enumerate().map(edge).collect()
    }

    /// The errors of all nodes after `solves` solves, `age` after the last, with the readings.
    fn run(&self, solves: u64, age: u64, prng: &mut Prng) -> (Vec<(f64, BoundedReading)>, Health) {
        let config = Config::default();
        let mut mesh = MeshSolver::new(config.clone(), self.clocks.len() as u32, 0);
        let mut last = (Vec::new(), Health::default());
        for k in 1..=solves {
            let end = k * 2_000_000_000;
            last = mesh.solve(ours(end), &self.edges(end, prng));
        }
        let at = solves * 2_000_000_000 + age;
        let read = |(n, verdict): (usize, Option<ClockVerdict>)| {
            let truth = self.truth(n as u32, at);
            let shown = ZERO + i128::from(at) + truth as i128;
            let reading = verdict?.reading(Timestamp::from_nanos(shown as u64), &config);
            Some((reading.offset_ns as f64 + truth, reading))
        };
        (last.0.into_iter().enumerate().filter_map(read).collect(), last.1)
    }
}

fn worst(readings: &[(f64, BoundedReading)]) -> f64 {
    readings.iter().map(|(error, _)| error.abs()).fold(0.0, f64::max)
}

#[test]
fn many_pairs_with_noise_make_offsets_that_are_better_than_any_pair() {
    let mut prng = Prng::new(1);
    let pool = Pool::new(200, 0.0, 100.0, &mut prng);
    let (readings, health) = pool.run(8, 0, &mut prng);
    assert_eq!(readings.len(), 200);
    assert!(worst(&readings) < 150.0, "{}", worst(&readings));
    assert!((70.0..130.0).contains(&health.remainder_ns), "{health:?}");
    assert!(health.surplus_ns > health.remainder_ns, "loops add up the errors of several pairs");
    assert!(health.liars.is_empty() && health.lost.is_empty(), "{health:?}");
}

#[test]
fn every_node_of_a_large_graph_has_a_proven_bound() {
    for seed in 0..3 {
        let mut prng = Prng::new(seed);
        let pool = Pool::new(1_000, 500.0, 30.0, &mut prng);
        let (readings, _) = pool.run(3, 1_000_000_000, &mut prng);
        assert_eq!(readings.len(), 1_000);
        for (error, reading) in &readings {
            // Five hops of 25 us, and what the rates may add.
            let proven = reading.proven_ns.expect("proven");
            assert!(error.abs() <= proven as f64 && proven < 200_000, "{error} {proven}");
        }
    }
}

#[test]
fn asymmetry_by_pairs_is_averaged_and_lies_within_the_assumed_bound() {
    let mut inside = 0;
    let mut all = 0;
    for seed in 0..10 {
        let mut prng = Prng::new(seed);
        let pool = Pool::new(200, 2_000.0, 30.0, &mut prng);
        let (readings, _) = pool.run(6, 1_000_000_000, &mut prng);
        all += readings.len();
        let within = |(error, reading): &&(f64, BoundedReading)| {
            error.abs() <= reading.assumed_ns.expect("measured") as f64
        };
        inside += readings.iter().filter(within).count();
        assert!(worst(&readings) < 5_000.0, "{}", worst(&readings));
        for (error, reading) in &readings {
            assert!(error.abs() <= reading.proven_ns.expect("proven") as f64, "seed {seed}");
        }
    }
    assert!(inside * 1_000 >= all * 999, "{inside} of {all}");
}

#[test]
fn one_liar_in_ten_is_named_and_the_others_are_right() {
    for seed in 0..10 {
        let mut prng = Prng::new(seed);
        let mut pool = Pool::new(200, 0.0, 50.0, &mut prng);
        pool.lies = (0..20).map(|k| 5 + k * 9).collect();
        let (readings, health) = pool.run(4, 0, &mut prng);
        let named: Vec<u32> = health.liars.clone();
        assert!(named.iter().all(|liar| pool.lies.contains(liar)), "seed {seed}: {named:?}");
        assert!(named.len() >= 19, "seed {seed}: only {named:?}");
        assert!(worst(&readings) < 1_000.0, "seed {seed}: {}", worst(&readings));
        let proven = |(error, reading): &(f64, BoundedReading)| {
            error.abs() <= reading.proven_ns.expect("proven") as f64
        };
        assert!(readings.iter().all(proven), "seed {seed}");
    }
}

#[test]
fn a_node_without_pairs_is_lost_and_the_others_are_not() {
    let mut prng = Prng::new(1);
    let mut pool = Pool::new(30, 0.0, 50.0, &mut prng);
    pool.pairs.retain(|&(a, b)| a != 7 && b != 7);
    let (readings, health) = pool.run(2, 0, &mut prng);
    assert_eq!((readings.len(), health.lost), (29, vec![7]));
}

#[test]
fn an_old_verdict_runs_free_and_its_bounds_grow() {
    let mut prng = Prng::new(1);
    let pool = Pool::new(30, 0.0, 50.0, &mut prng);
    let mut before = (0, 0);
    for (age, state) in [
        (0, ClockState::Synchronised),
        (3_900_000_000, ClockState::Synchronised),
        (4_100_000_000, ClockState::FreeRunning),
        (3_600_000_000_000, ClockState::FreeRunning),
    ] {
        let (readings, _) = pool.run(4, age, &mut Prng::new(2));
        let reading = readings[1].1;
        assert_eq!(reading.state, state, "after {age} ns");
        let bounds = (reading.proven_ns.expect("proven"), reading.assumed_ns.expect("measured"));
        assert!(bounds.0 > before.0 && bounds.1 > before.1, "after {age} ns: {bounds:?}");
        assert!(readings[1].0.abs() <= bounds.0 as f64);
        before = bounds;
    }
}

#[test]
fn a_clock_that_steps_between_two_solves_is_disrupted_once() {
    let mut prng = Prng::new(1);
    let config = Config::default();
    let mut mesh = MeshSolver::new(config, 30, 0);
    let mut pool = Pool::new(30, 0.0, 50.0, &mut prng);
    let mut states = Vec::new();
    for k in 1..=5u64 {
        if k == 4 {
            pool.clocks[9].0 -= 30 * 31_557_600 * 1_000_000_000;
        }
        let (verdicts, health) =
            mesh.solve(ours(k * 2_000_000_000), &pool.edges(k * 2_000_000_000, &mut prng));
        assert!(health.liars.is_empty(), "a step is no lie");
        states.push(verdicts.iter().map(|v| v.expect("told").state).collect::<Vec<_>>());
    }
    for (k, states) in states.iter().enumerate() {
        for (n, state) in states.iter().enumerate() {
            let disrupted = k == 3 && n == 9;
            assert_eq!(*state == ClockState::Disrupted, disrupted, "node {n}, solve {k}");
        }
    }
}

/// Between few probes the widest band may be tilted, and two nodes have no loop that shows the
/// error of its rate.
#[test]
fn the_assumed_bound_of_two_nodes_allows_for_a_tilted_band() {
    let (config, end) = (Config::default(), 10_000_000_000);
    let mut prng = Prng::new(4);
    let pool = Pool::new(2, 0.0, 0.0, &mut prng);
    let mut edges = pool.edges(end, &mut prng);
    edges[0].estimate.rate += 6e-7;
    edges[0].estimate.half_ns = 400;
    let mut mesh = MeshSolver::new(config.clone(), 2, 0);
    let (verdicts, _) = mesh.solve(ours(end), &edges);
    let verdict = verdicts[1].expect("a pair leads to the reference");
    let local = |at: u64| {
        Timestamp::from_nanos((i128::from(ours(at).nanos()) + pool.truth(1, at) as i128) as u64)
    };
    let later = end + 2_000_000_000;
    let reading = verdict.reading(local(later), &config);
    let error = reading.offset_ns as f64 + pool.truth(1, later);
    assert!(error.abs() > 1_500.0, "the tilt shows: {error} ns");
    assert!(error.abs() < reading.assumed_ns.expect("measured") as f64, "{error} ns, {reading:?}");
}

/// A busy host delays the probes of all its pairs alike, so that no loop shows the error.
#[test]
fn the_assumed_bound_grows_with_the_bands_of_a_busy_host() {
    const BUSY: u32 = 4;
    const LATE_NS: i64 = 3_000;
    let (config, mut prng) = (Config::default(), Prng::new(6));
    let pool = Pool::new(10, 0.0, 20.0, &mut prng);
    let mut mesh = MeshSolver::new(config.clone(), 10, 0);
    let mut bounds = Vec::new();
    for window in 1..=12u64 {
        let end = window * 2_000_000_000;
        let mut edges = pool.edges(end, &mut prng);
        edges.iter_mut().for_each(|edge| edge.estimate.half_ns = 1_000);
        // From the eleventh window on, everything that comes to the host is late. Half of the
        // lateness is in the estimate, and half of it in the band.
        for edge in edges.iter_mut().filter(|edge| window > 10 && [edge.a, edge.b].contains(&BUSY))
        {
            let ahead = if edge.b == BUSY { LATE_NS / 2 } else { -LATE_NS / 2 };
            edge.estimate.offset_ns += ahead;
            edge.estimate.half_ns += LATE_NS as u64 / 2;
        }
        let verdict = mesh.solve(ours(end), &edges).0[BUSY as usize].expect("a measured node");
        let at = end + 1_000_000_000;
        let shown = ZERO + i128::from(at) + pool.truth(BUSY, at) as i128;
        let reading = verdict.reading(Timestamp::from_nanos(shown as u64), &config);
        let error = (reading.offset_ns as f64 + pool.truth(BUSY, at)).abs();
        let bound = reading.assumed_ns.expect("measured");
        assert!(error < bound as f64, "window {window}: {error} ns of {bound}");
        bounds.push(bound);
    }
    assert!(bounds[9] < 1_000 && bounds[11] > 1_000, "{bounds:?}");
}
