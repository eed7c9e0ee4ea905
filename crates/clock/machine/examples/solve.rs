//! Prints how long one solve of a mesh takes: `cargo run --release -p evenfall-clock-machine
//! --example solve`. Estimates of pairs are made by every node for itself and take the second line.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock; machines do not")]

use std::time::{Duration, Instant};

use evenfall_clock_machine::{CodedPair, Config, Edge, Mesh, PairEstimate, PairMeter, graph};
use evenfall_core::{Prng, Timestamp};

/// Solves and windows, of which the median counts.
const TIMES: usize = 15;

fn main() {
    let nodes = 1_000;
    let pairs = graph::pairs(nodes, graph::degree(nodes), 1);
    let mut prng = Prng::new(1);
    let clocks: Vec<(f64, f64)> =
        (0..nodes).map(|_| (1e9 * prng.normal(), 3e-5 * prng.normal())).collect();
    let mut mesh = Mesh::new(Config::default(), nodes, 0);
    let mut took = Vec::new();
    for round in 1..=TIMES as u64 {
        let end = Timestamp::from_nanos(1 << 60) + Duration::from_secs(2 * round);
        let edge = |&(a, b): &(u32, u32)| {
            let offset = |node: u32| clocks[node as usize].0 - clocks[0].0;
            let at = |at: Timestamp| {
                Timestamp::from_nanos(at.nanos().saturating_add_signed(offset(a) as i64))
            };
            let difference = offset(b) - offset(a) + 2_000.0 * prng.normal();
            let lies = if a % 10 == 3 || b % 10 == 3 { 40_000.0 * prng.normal() } else { 0.0 };
            let estimate = PairEstimate {
                middle: at(end - Duration::from_secs(1)),
                end: at(end),
                offset_ns: (difference + lies) as i64,
                rate: 0.0,
                half_ns: 25_000,
                kept: 40,
                proven_ns: [-25_000.0, 25_000.0].map(|side| (difference + side) as i64),
                proven_rate: [-3e-6, 3e-6],
            };
            Edge { a, b, estimate }
        };
        let edges: Vec<Edge> = pairs.iter().map(edge).collect();
        let started = Instant::now();
        let (_, health) = mesh.solve(end, &edges);
        took.push((started.elapsed(), health.liars.len()));
    }
    took.sort();
    let (middle, liars) = took[TIMES / 2];
    println!("{nodes} nodes, {} pairs, {liars} liars named: {middle:?} a solve", pairs.len());
    println!("the estimate of one pair: {:?}", estimate(&mut prng));
}

/// The median time of one window of one pair with 84 probes each way.
fn estimate(prng: &mut Prng) -> Duration {
    let config = Config::default();
    let mut meter = PairMeter::default();
    let mut took = Vec::new();
    for window in 1..=TIMES as u64 {
        let start = Timestamp::from_nanos(1 << 60) + Duration::from_secs(2 * window);
        for k in 0..42 {
            let sent = [0, 20].map(|us| start + Duration::from_micros(k * 47_000 + us));
            let delay = Duration::from_nanos(25_000 + prng.below(2_000));
            let pair = CodedPair { sent, received: sent.map(|at| at + delay) };
            meter.outgoing(pair, config.tolerance);
            meter.incoming(pair, config.tolerance);
        }
        let started = Instant::now();
        meter.close(start + config.window, &config).expect("a line fits");
        took.push(started.elapsed());
    }
    took.sort();
    took[TIMES / 2]
}
