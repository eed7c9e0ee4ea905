//! The fault campaign of group communication: under loss, duplicates, reordering and crashes each
//! call ends once at every rank that lives, with the right outcome or with a failure that names
//! the dead rank.
//!
//! As in [`faults`](super::faults), each [`Check`] has [`Mutant`]s that it must catch.

use core::time::Duration;

use bytes::{Bytes, BytesMut};
use evenfall_core::Prng;
use evenfall_exchange_machine::group::{Call, Event, Group, Outcome, Reduce, Settings};
use evenfall_exchange_machine::wire::Kind;
use evenfall_exchange_machine::{Config, Failure};
use evenfall_sim::{
    Action, Collect, Fault, HostSpec, NodeIndex, Rates, SimTime, Strict, Wire, World,
};

use super::altered::{Alteration, Altered};

/// Calls of a run.
const CALLS: u64 = 6;

/// Every so many ends of calls a mutant does what is wrong.
const MUTANT_EVERY: u64 = 3;

/// What must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// A call has the outcome that it would have without any network.
    Outcome,
    /// No call ends twice.
    Once,
    /// Every call ends at every rank that lives.
    Ends,
    /// A failure names the rank that died.
    Named,
}

/// What is wrong with a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Hands on an outcome with a changed byte.
    Tampers,
    /// Exchanges what the first two ranks had to say.
    MixesUp,
    /// Leaves out what the last rank had to say.
    LeavesOut,
    /// Says twice that a call is done.
    EndsTwice,
    /// Does not say that a call is done.
    ForgetsEnd,
    /// Does not ask for what was lost.
    ForgetsResend,
    /// Says nothing when a call fails.
    HidesFailure,
    /// Blames a rank that lives.
    BlamesAnother,
}

impl Mutant {
    /// All of them, each with the check that must catch it.
    pub const ALL: [(Self, Check); 8] = [
        (Self::Tampers, Check::Outcome),
        (Self::MixesUp, Check::Outcome),
        (Self::LeavesOut, Check::Outcome),
        (Self::EndsTwice, Check::Once),
        (Self::ForgetsEnd, Check::Ends),
        (Self::ForgetsResend, Check::Ends),
        (Self::HidesFailure, Check::Ends),
        (Self::BlamesAnother, Check::Named),
    ];

    fn spoil(self, outcome: &mut Outcome) {
        match (self, outcome) {
            (Self::Tampers, Outcome::One(body)) if !body.is_empty() => {
                let mut bytes = BytesMut::from(body.as_ref());
                bytes[0] ^= 1;
                *body = bytes.freeze();
            }
            (Self::MixesUp, Outcome::All(parts)) if parts.len() > 1 => parts.swap(0, 1),
            (Self::LeavesOut, Outcome::All(parts)) => drop(parts.pop()),
            _ => {}
        }
    }
}

/// What did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The check.
    pub check: Check,
    /// Who and what.
    pub words: String,
}

/// What a mutant does, and how often it could have.
struct Strikes {
    mutant: Option<Mutant>,
    count: u64,
}

impl Alteration<Event> for Strikes {
    fn hides(&self) -> Option<Kind> {
        (self.mutant == Some(Mutant::ForgetsResend)).then_some(Kind::Resend)
    }

    fn alter(&mut self, mut event: Event, again: &mut Option<Event>) -> Option<Event> {
        let Some(mutant) = self.mutant else { return Some(event) };
        match &mut event {
            Event::Done { outcome, .. } => {
                self.count += 1;
                let strikes = self.count.is_multiple_of(MUTANT_EVERY);
                match mutant {
                    Mutant::EndsTwice if strikes => *again = Some(event.clone()),
                    Mutant::ForgetsEnd if strikes => return None,
                    _ => mutant.spoil(outcome),
                }
            }
            Event::Failed { .. } if mutant == Mutant::HidesFailure => return None,
            Event::Failed { failure, .. } if mutant == Mutant::BlamesAnother => {
                *failure = Failure::Silent { rank: failure.rank() ^ 1 };
            }
            Event::Failed { .. } => {}
        }
        Some(event)
    }
}

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

/// One seed: 2 to 9 ranks, six calls of any kind at once. What did not hold.
pub fn run_seed(seed: u64, mutant: Option<Mutant>) -> Vec<Violation> {
    let mut prng = Prng::new(seed);
    let ranks = 2 + prng.below(8) as usize;
    let cases: Vec<Case> = (0..CALLS).map(|_| Case::draw(&mut prng, ranks)).collect();
    let victim = prng.chance(0.25).then(|| prng.below(ranks as u64) as u32);
    let exchange = Config {
        packet_bytes: 100,
        resend_after: Duration::from_millis(1),
        resend_after_min: Duration::from_micros(100),
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
        let subject = Altered::new(group, Strikes { mutant, count: 0 });
        world.add(Strict::new(subject), HostSpec::ideal());
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
                machine.input(now, |subject| subject.machine.call(now, call).expect("begun"))
            });
        }
    }
    world.run_until(SimTime::from_millis(4_000), &mut watch);
    judge(ranks, &cases, victim, &watch)
}

fn judge(
    ranks: usize,
    cases: &[Case],
    victim: Option<u32>,
    watch: &Collect<Event>,
) -> Vec<Violation> {
    let mut ended = vec![[0; CALLS as usize]; ranks];
    let mut violations = Vec::new();
    let mut expect = |check, holds: bool, words: &dyn Fn() -> String| {
        if !holds {
            violations.push(Violation { check, words: words() });
        }
    };
    for (seen, event) in &watch.0 {
        let me = seen.node.0 as usize;
        let (Event::Done { call, .. } | Event::Failed { call, .. }) = event;
        let number = (call & 0xffff_ffff) as usize;
        let case = cases[number];
        ended[me][number] += 1;
        let words = || format!("rank {me} of {ranks}: {case:?}: {event:?}; died: {victim:?}");
        expect(Check::Once, ended[me][number] == 1, &words);
        match event {
            Event::Done { outcome, .. } => {
                expect(Check::Outcome, *outcome == case.outcome(me, ranks), &words);
            }
            Event::Failed { failure, .. } => {
                expect(Check::Named, Some(u32::from(failure.rank())) == victim, &words);
            }
        }
    }
    for (rank, ended) in ended.iter().enumerate().filter(|r| Some(r.0 as u32) != victim) {
        let words = || format!("rank {rank} of {ranks}: calls ended {ended:?} times: {cases:?}");
        expect(Check::Ends, ended.iter().all(|&times| times > 0), &words);
    }
    violations
}
