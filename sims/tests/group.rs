//! Calls of a group under loss, duplicates, reordering and crashes: each ends once at every
//! rank that lives, with the right outcome or with a failure that names the dead rank.

use std::time::Duration;

use bytes::Bytes;
use evenfall_core::Prng;
use evenfall_shuffle::Config;
use evenfall_shuffle::group::{Call, Event, Group, Outcome, Reduce, Settings};
use evenfall_sim::{
    Action, Collect, Fault, HostSpec, NodeIndex, Rates, SimTime, Strict, Wire, World,
};

/// Seeds of an ordinary test run.
const SEEDS: u64 = 1_000;
/// Calls of a run.
const CALLS: u64 = 6;

/// One call, as all ranks make it, and what comes of it.
#[derive(Clone, Copy, Debug)]
struct Case {
    kind: u64,
    root: usize,
    seed: u64,
}

fn body(seed: u64, from: usize, to: usize) -> Bytes {
    let mut prng = Prng::new(seed).fork((from << 16 | to) as u64);
    let length = prng.below(1_500) * prng.below(2);
    (0..length).map(|_| prng.next_u64() as u8).collect()
}

fn values(seed: u64, from: usize) -> [u64; 2] {
    let mut prng = Prng::new(seed).fork(from as u64);
    [prng.next_u64(), prng.below(100)]
}

fn lanes(values: [u64; 2]) -> Bytes {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

impl Case {
    fn draw(prng: &mut Prng, ranks: usize) -> Self {
        let root = prng.below(ranks as u64) as usize;
        Self { kind: prng.below(7), root, seed: prng.next_u64() }
    }

    fn call(self, me: usize, ranks: usize) -> Call {
        let Self { kind, root, seed } = self;
        let messages = || (0..ranks).map(|to| body(seed, me, to)).collect();
        match kind {
            0 => Call::Broadcast { root, body: body(seed, me, 0) },
            1 => Call::Gather { root, body: body(seed, me, 0) },
            2 => Call::AllGather { body: body(seed, me, 0) },
            3 => Call::AllReduce { values: lanes(values(seed, me)), by: Reduce::Sum },
            4 => Call::Barrier,
            5 => Call::Shuffle { messages: messages() },
            _ => Call::TwoLevelShuffle { messages: messages() },
        }
    }

    fn outcome(self, me: usize, ranks: usize) -> Outcome {
        let Self { kind, root, seed } = self;
        let all = |to| Outcome::All((0..ranks).map(|from| body(seed, from, to)).collect());
        match kind {
            0 => Outcome::One(body(seed, root, 0)),
            1 if me == root => all(0),
            1 | 4 => Outcome::Nothing,
            2 => all(0),
            3 => {
                let sum = |sum: [u64; 2], from| {
                    let more = values(seed, from);
                    [sum[0].wrapping_add(more[0]), sum[1] + more[1]]
                };
                Outcome::One(lanes((0..ranks).fold([0, 0], sum)))
            }
            _ => all(me),
        }
    }
}

fn run(seed: u64) {
    let mut prng = Prng::new(seed);
    let ranks = 2 + prng.below(8) as usize;
    let cases: Vec<Case> = (0..CALLS).map(|_| Case::draw(&mut prng, ranks)).collect();
    let victim = prng.chance(0.25).then(|| prng.below(ranks as u64) as u32);
    let exchange = Config {
        packet_bytes: 100,
        resend_after: Duration::from_millis(1),
        silence_max: Duration::from_millis(200),
        grant_packets: 1 + prng.below(4) as u32,
        ..Config::default()
    };
    let settings = Settings { exchange, epoch: seed as u32, ..Settings::default() };
    let mut world = World::new(Wire::new(Duration::from_micros(20)), seed);
    world.set_rates(Rates {
        loss: 0.05 * prng.unit(),
        duplicate: 0.05 * prng.unit(),
        reorder: 0.1 * prng.unit(),
        reorder_by: Duration::from_micros(200),
    });
    // Addresses are by number, and known before the machines are there.
    let mut names = World::<Group, _>::new(Wire::new(Duration::ZERO), 0);
    let single = |at| Group::new(0, vec![at], Settings::default()).expect("one rank");
    let members: Vec<_> = (0..ranks as u32)
        .map(|n| {
            names.add(single("127.0.0.1:1".parse().expect("an address")), HostSpec::ideal());
            names.address(NodeIndex(n))
        })
        .collect();
    for rank in 0..ranks {
        let group = Group::new(rank, members.clone(), settings.clone()).expect("a rank");
        world.add(Strict::new(group), HostSpec::ideal());
    }
    let mut watch = Collect::default();
    if let Some(victim) = victim {
        let at = SimTime::from_micros(prng.below(1_500));
        world.schedule(at, Action::Fault(Fault::Crash(NodeIndex(victim))));
    }
    for rank in 0..ranks {
        world.run_until(SimTime::from_micros(rank as u64 * prng.below(40)), &mut watch);
        for case in &cases {
            world.call(NodeIndex(rank as u32), &mut watch, |machine, now| {
                let call = case.call(rank, ranks);
                machine.input(now, |group| group.call(now, call).expect("begun"))
            });
        }
    }
    world.run_until(SimTime::from_millis(4_000), &mut watch);
    check(seed, ranks, &cases, victim, &watch);
}

fn check(seed: u64, ranks: usize, cases: &[Case], victim: Option<u32>, watch: &Collect<Event>) {
    let mut ended = vec![[0; CALLS as usize]; ranks];
    for (seen, event) in &watch.0 {
        let me = seen.node.0 as usize;
        match event {
            Event::Done { call, outcome } => {
                let number = (call & 0xffff_ffff) as usize;
                ended[me][number] += 1;
                let case = cases[number];
                let wanted = case.outcome(me, ranks);
                assert_eq!(*outcome, wanted, "seed {seed}: rank {me} of {ranks}: {case:?}");
            }
            Event::Failed { call, failure } => {
                let number = (call & 0xffff_ffff) as usize;
                ended[me][number] += 1;
                let blamed = Some(u32::from(failure.rank()));
                assert_eq!(blamed, victim, "seed {seed}: rank {me}: {failure}");
            }
        }
    }
    for (rank, ended) in ended.iter().enumerate().filter(|r| Some(r.0 as u32) != victim) {
        assert_eq!(*ended, [1; CALLS as usize], "seed {seed}: rank {rank} of {ranks}: {cases:?}");
    }
}

#[test]
fn calls_end_once_with_the_right_outcome_or_name_the_dead_rank() {
    let seeds = std::env::var("EVENFALL_SEEDS").ok().and_then(|n| n.parse().ok());
    (0..seeds.unwrap_or(SEEDS)).for_each(run);
}
