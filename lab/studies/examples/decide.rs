//! Measures the processor time of one decision: 3 copies, 16 paths to each copy, 1,000 flows on the
//! network.
//!
//! `cargo run --release -p evenfall-studies --example decide`

use std::time::{Duration, Instant};

use evenfall_core::{Prng, Timestamp};
use evenfall_files_flow::{
    BeginningRead, Config, FlowId, Policy, Selector, ThreeTier, TopologyNode, Two,
};

/// Flows on the network.
const FLOWS: u64 = 1_000;
/// Decisions in the measurement.
const DECISIONS: usize = 10_000;
/// Bytes of a read.
const BYTES: u64 = 128_000_000;

/// Each pod has 2 aggregation switches, and the pods share 4 core switches. A path between pods
/// chooses one switch of 2, one of 4 and one of 2, which makes 16 paths.
const SPEC: ThreeTier = ThreeTier {
    pods: 4,
    racks: 4,
    hosts: 4,
    aggs: 2,
    cores: 4,
    host_bytes_per_s: 125e6,
    rack_bytes_per_s: 62.5e6,
    core_bytes_per_s: 31.25e6,
};

fn main() {
    let mut prng = Prng::new(1);
    let second = Duration::from_secs(1);
    let mut selector = Selector::new(SPEC.build(), Config::default(), Two::Finish, second);
    let mut topology = SPEC.build();
    let hosts = u64::from(SPEC.host_count());
    for name in 0..FLOWS {
        let from = prng.below(hosts);
        let to = (from + 1 + prng.below(hosts - 1)) % hosts;
        let [from, to] = [from, to].map(|host| TopologyNode(host as u32));
        let paths = topology.paths(from, to);
        let path = paths.path(prng.below(paths.len() as u64) as usize);
        selector.model_mut().add(Timestamp::ZERO, FlowId(name), path, Some(BYTES as f64));
    }
    // The client is in pod 0 and the copies are in the three other pods, so each copy has 16 paths.
    let draw = |prng: &mut Prng| {
        let client = TopologyNode(prng.below(16) as u32);
        (client, [1, 2, 3].map(|pod| TopologyNode(16 * pod + prng.below(16) as u32)))
    };
    let mut best = Vec::new();
    let mut whole = Vec::new();
    for number in 0..DECISIONS as u64 {
        let (client, copies) = draw(&mut prng);
        let flows = [FlowId(FLOWS + 2 * number), FlowId(FLOWS + 2 * number + 1)];
        let begun = Instant::now();
        let candidate = selector.best(Timestamp::ZERO, client, &copies, BYTES);
        best.push(begun.elapsed());
        assert!(candidate.is_some());
        let begun = Instant::now();
        let read = BeginningRead { client, copies: &copies, bytes: BYTES, flows };
        let legs = selector.choose(Timestamp::ZERO, &read);
        whole.push(begun.elapsed());
        for leg in legs {
            selector.ended(Timestamp::ZERO, leg.flow);
        }
    }
    for (name, mut times) in [("one copy, weighed", best), ("up to two, taken in", whole)] {
        times.sort();
        let at = |part: f64| times[(part * times.len() as f64) as usize].as_secs_f64() * 1e6;
        println!("{name}: median {:.1} us, p90 {:.1} us, p99 {:.1} us", at(0.5), at(0.9), at(0.99));
    }
}
