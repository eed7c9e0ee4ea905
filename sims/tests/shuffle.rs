//! The exchange under loss, duplicates, reordering and crashes: whole and once, or a named failure.

use std::time::Duration;

use bytes::Bytes;
use evenfall_core::Prng;
use evenfall_shuffle::{Config, Event, Exchange, Plan};
use evenfall_sim::{Action, Collect, Fault, HostSpec, NodeIndex, Rates, SimTime, Wire, World};

/// Seeds of an ordinary test run.
const SEEDS: u64 = 1_000;

fn message(from: usize, to: usize, length: usize) -> Bytes {
    (0..length).map(|at| (at * 31 + from * 7 + to * 131) as u8).collect()
}

fn run(seed: u64) {
    let mut prng = Prng::new(seed);
    let nodes = 2 + prng.below(6) as usize;
    let crashes = prng.chance(0.2);
    let config = Config {
        packet_bytes: 100,
        resend_after: Duration::from_millis(1),
        silence_max: Duration::from_millis(200),
        reduce: prng.chance(0.3),
        grant_packets: 1 + prng.below(4) as u32,
        ..Config::default()
    };
    let mut world = World::new(Wire::new(Duration::from_micros(20)), seed);
    world.set_rates(Rates {
        loss: 0.05 * prng.unit(),
        duplicate: 0.05 * prng.unit(),
        reorder: 0.1 * prng.unit(),
        reorder_by: Duration::from_micros(200),
    });
    for _ in 0..nodes {
        world.add(Exchange::new(config.clone()), HostSpec::ideal());
    }
    let members: Vec<_> = (0..nodes as u32).map(|n| world.address(NodeIndex(n))).collect();
    let lengths: Vec<usize> =
        (0..nodes * nodes).map(|_| prng.below(6_000) as usize * prng.below(2) as usize).collect();
    let mut watch = Collect::default();
    let victim = prng.below(nodes as u64) as u32;
    if crashes {
        let at = SimTime::from_micros(prng.below(300));
        world.schedule(at, Action::Fault(Fault::Crash(NodeIndex(victim))));
    }
    for rank in 0..nodes {
        world.run_until(SimTime::from_micros(rank as u64 * prng.below(40)), &mut watch);
        let messages = (0..nodes).map(|to| message(rank, to, lengths[rank * nodes + to])).collect();
        let plan = Plan::shuffle(seed, rank, members.clone(), messages);
        world.call(NodeIndex(rank as u32), &mut watch, |machine, now| machine.start(now, plan));
    }
    world.run_until(SimTime::from_millis(3_000), &mut watch);
    check(seed, nodes, &lengths, crashes.then_some(victim), &watch);
}

fn check(seed: u64, nodes: usize, lengths: &[usize], victim: Option<u32>, watch: &Collect<Event>) {
    let mut here = vec![0u32; nodes * nodes];
    let mut ended = vec![0u32; nodes];
    for (seen, event) in &watch.0 {
        let to = seen.node.0 as usize;
        match event {
            Event::Message { from, body, .. } => {
                let from = usize::from(*from);
                here[from * nodes + to] += 1;
                let right = message(from, to, lengths[from * nodes + to]);
                assert_eq!(*body, right, "seed {seed}: {from} to {to}");
            }
            Event::Completed { .. } => {
                ended[to] += 1;
                let all = (0..nodes).all(|from| here[from * nodes + to] == 1);
                assert!(all, "seed {seed}: rank {to} completed without all messages");
            }
            Event::Failed { failure, .. } => {
                ended[to] += 1;
                let blamed = Some(u32::from(failure.rank()));
                assert_eq!(blamed, victim, "seed {seed}: rank {to}: {failure}");
            }
        }
    }
    assert!(here.iter().all(|&n| n <= 1), "seed {seed}: a message came twice");
    for (rank, &ended) in ended.iter().enumerate().filter(|r| Some(r.0 as u32) != victim) {
        assert_eq!(ended, 1, "seed {seed}: rank {rank} did not end once");
    }
}

#[test]
fn messages_arrive_whole_and_once_or_the_failure_names_the_dead_rank() {
    let seeds = std::env::var("EVENFALL_SEEDS").ok().and_then(|n| n.parse().ok());
    (0..seeds.unwrap_or(SEEDS)).for_each(run);
}
