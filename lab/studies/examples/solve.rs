//! Prints how long one solve of a mesh, the estimate of one pair and one reading of the clock take:
//! `cargo run --release -p evenfall-studies --example solve`. Every node makes the estimates of its
//! own pairs.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use evenfall_clock_machine::wire::{ClockBody, ClockMessage};
use evenfall_clock_machine::{
    ClockEdge, ClockSeat, ClockVerdict, CodedPair, Config, MeshSolver, PairEstimate, PairMeter,
    Timekeeper, graph,
};
use evenfall_core::{
    Arrival, Clock, ClockError, ClockReading, Machine as _, Prng, StampedBy, Timestamp,
};

/// Number of solves and windows that are timed. The fastest counts, because other programs on the
/// same cores can only make a solve slower.
const TIMES: usize = 40;
/// Readings of a clock in a row: few enough to fit into one turn of the scheduler.
const READINGS: u32 = 1_000;
/// Number of rounds. Each round has one row of readings of each kind.
const ROUNDS: usize = 2_000;

fn main() {
    let nodes = 1_000;
    let pairs = graph::pairs(nodes, graph::degree(nodes), 1);
    let mut prng = Prng::new(1);
    let clocks: Vec<(f64, f64)> =
        (0..nodes).map(|_| (1e9 * prng.normal(), 3e-5 * prng.normal())).collect();
    let mut mesh = MeshSolver::new(Config::default(), nodes, 0);
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
            ClockEdge { a, b, estimate }
        };
        let edges: Vec<ClockEdge> = pairs.iter().map(edge).collect();
        let started = Instant::now();
        let (_, health) = mesh.solve(end, &edges);
        took.push((started.elapsed(), health.liars.len()));
    }
    let (fastest, liars) = took.into_iter().min().expect("there are solves");
    println!("{nodes} nodes, {} pairs, {liars} liars named: {fastest:?} a solve", pairs.len());
    println!("the estimate of one pair: {:?}", estimate(&mut prng));
    let [plain, stamp, whole] = readings();
    println!(
        "clock_gettime: {plain:.1} ns; a stamp of a role costs {stamp:.1} ns more, and a reading \
         with both bounds {whole:.1} ns more"
    );
}

/// A node that was told its time.
fn told(now: Timestamp) -> Timekeeper {
    let addresses: Vec<SocketAddr> =
        (1..=10).map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect();
    let (run, root) = (1, addresses[0]);
    let seat = ClockSeat { addresses, number: 1, run, started: 1 };
    let mut keeper = Timekeeper::new(Config::default(), seat, None, now);
    let verdict = ClockVerdict {
        offset_ns: 77,
        rate: 1e-5,
        standing_ns: 700.0,
        variances: [400.0, 10.0, 90.0],
        proven_ns: [-9_000.0, 9_000.0],
        proven_rate: [-1e-6, 1e-6],
        horizon: Duration::from_secs(4),
        ..ClockVerdict::reference(now)
    };
    for body in [ClockBody::Close, ClockBody::Verdict { verdict, base_ns: 7, utc: None }] {
        let datagram = ClockMessage { run, from: 0, number: 5, body }.encode(None);
        let arrival = Arrival::new(root, datagram, now, StampedBy::Kernel);
        keeper.handle(now, arrival).expect("well formed");
    }
    keeper
}

/// Three costs in nanoseconds: a read of the local clock; what a stamp by a clock with a known
/// offset takes in addition; what a reading of a node's clock with both bounds takes in addition.
/// The three rows of a round follow each other within a millisecond, so that their differences are
/// those of a core in one state. The median of the rounds counts.
fn readings() -> [f64; 3] {
    let base = Instant::now();
    let now = || Timestamp::from_nanos(base.elapsed().as_nanos() as u64);
    let mut stamping = Clock::default();
    let error = ClockError::Within(Duration::from_micros(1));
    stamping.set(ClockReading { offset_ns: 77, error });
    let mut keeper = told(now());
    let read = |keeper: &Timekeeper, now: Timestamp| {
        let reading = keeper.read(now);
        let bounds = reading.proven_ns.unwrap_or(0) ^ reading.assumed_ns.unwrap_or(0);
        reading.offset_ns as u64 ^ bounds
    };
    let mut rounds = [const { Vec::new() }; 3];
    for round in 0..ROUNDS {
        // A verdict holds for four seconds, and a node gets the next verdict after two seconds.
        if round % 500 == 0 {
            keeper = told(now());
        }
        assert!(keeper.read(now()).proven_ns.is_some(), "the node knows its time");
        let plain = row(|| now().nanos());
        let stamp = row(|| stamping.sync(now()).nanos());
        let whole = row(|| read(&keeper, now()));
        for (all, took) in rounds.iter_mut().zip([plain, stamp - plain, whole - plain]) {
            all.push(took);
        }
    }
    rounds.map(|mut all| {
        all.sort_unstable_by(f64::total_cmp);
        all[all.len() / 2]
    })
}

/// The mean nanoseconds of a call in a row of [`READINGS`] calls.
fn row(call: impl Fn() -> u64) -> f64 {
    let started = Instant::now();
    for _ in 0..READINGS {
        std::hint::black_box(call());
    }
    started.elapsed().as_nanos() as f64 / f64::from(READINGS)
}

/// The least time of one window of one pair with 84 probes each way.
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
    took.into_iter().min().expect("there are windows")
}
