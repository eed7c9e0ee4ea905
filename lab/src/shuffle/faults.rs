//! The fault campaign of the exchange: loss up to 5 %, duplicates, reordering and crashes must
//! leave every message whole and once, or a failure that names the dead rank.
//!
//! Each [`Check`] has a [`Mutant`] that it must catch: a machine with one thing wrong. A mutant
//! alters what goes out of a real machine, so that production code has no switches.

use core::time::Duration;

use bytes::{Bytes, BytesMut};
use evenfall_core::Prng;
use evenfall_exchange_machine::wire::Kind;
use evenfall_exchange_machine::{Config, Event, Exchange, Failure, Plan};
use evenfall_sim::{Action, Collect, Fault, HostSpec, NodeIndex, Rates, SimTime, Wire, World};

use super::altered::{Alteration, Altered};

/// Every so many events or datagrams a mutant does what is wrong.
const MUTANT_EVERY: u64 = 3;

/// What must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// A message says what its sender sent.
    Whole,
    /// No message comes twice.
    Once,
    /// Who has completed has all messages.
    Complete,
    /// Every rank that lives ends, once.
    Ends,
    /// A failure names the rank that died.
    Named,
}

/// What is wrong with a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Hands on a message with a changed byte.
    Tampers,
    /// Hands on some messages twice.
    DeliversTwice,
    /// Loses some messages and says that it has completed.
    CompletesEarly,
    /// Does not ask for what was lost.
    ForgetsResend,
    /// Does not acknowledge.
    ForgetsAck,
    /// Says nothing when the operation fails.
    HidesFailure,
    /// Blames a rank that lives.
    BlamesAnother,
}

impl Mutant {
    /// All of them, each with the check that must catch it.
    pub const ALL: [(Self, Check); 7] = [
        (Self::Tampers, Check::Whole),
        (Self::DeliversTwice, Check::Once),
        (Self::CompletesEarly, Check::Complete),
        (Self::ForgetsResend, Check::Ends),
        (Self::ForgetsAck, Check::Ends),
        (Self::HidesFailure, Check::Ends),
        (Self::BlamesAnother, Check::Named),
    ];
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

impl Strikes {
    /// Whether the mutant strikes now.
    fn strikes(&mut self, mutant: Mutant) -> bool {
        self.count += u64::from(self.mutant == Some(mutant));
        self.mutant == Some(mutant) && self.count.is_multiple_of(MUTANT_EVERY)
    }
}

impl Alteration<Event> for Strikes {
    fn hides(&self) -> Option<Kind> {
        match self.mutant {
            Some(Mutant::ForgetsResend) => Some(Kind::Resend),
            Some(Mutant::ForgetsAck) => Some(Kind::Ack),
            _ => None,
        }
    }

    fn alter(&mut self, event: Event, again: &mut Option<Event>) -> Option<Event> {
        match event {
            Event::Message { ref body, operation, from } => {
                if self.strikes(Mutant::DeliversTwice) {
                    *again = Some(event.clone());
                }
                if self.strikes(Mutant::CompletesEarly) {
                    return None;
                }
                if !body.is_empty() && self.strikes(Mutant::Tampers) {
                    let mut bytes = BytesMut::from(body.as_ref());
                    bytes[0] ^= 1;
                    return Some(Event::Message { operation, from, body: bytes.freeze() });
                }
                Some(event)
            }
            Event::Completed { .. } => Some(event),
            Event::Failed { .. } if self.mutant == Some(Mutant::HidesFailure) => None,
            Event::Failed { operation, failure } if self.mutant == Some(Mutant::BlamesAnother) => {
                let rank = failure.rank() ^ 1;
                Some(Event::Failed { operation, failure: Failure::Silent { rank } })
            }
            Event::Failed { .. } => Some(event),
        }
    }
}

/// What one rank sends another: told from every other message by its bytes.
fn message(from: usize, to: usize, length: usize) -> Bytes {
    (0..length).map(|at| (at * 31 + from * 7 + to * 131) as u8).collect()
}

/// One seed: 2 to 7 ranks that begin at different times. What did not hold.
pub fn run_seed(seed: u64, mutant: Option<Mutant>) -> Vec<Violation> {
    let mut prng = Prng::new(seed);
    let nodes = 2 + prng.below(6) as usize;
    let crashes = prng.chance(0.2);
    let config = Config {
        packet_bytes: 100,
        resend_after: Duration::from_millis(1),
        resend_after_min: Duration::from_micros(100),
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
        let exchange = Exchange::new(config.clone());
        world.add(Altered::new(exchange, Strikes { mutant, count: 0 }), HostSpec::ideal());
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
        world.call(NodeIndex(rank as u32), &mut watch, |subject, now| {
            subject.machine.start(now, plan)
        });
    }
    world.run_until(SimTime::from_millis(3_000), &mut watch);
    judge(nodes, &lengths, crashes.then_some(victim), &watch)
}

fn judge(
    nodes: usize,
    lengths: &[usize],
    victim: Option<u32>,
    watch: &Collect<Event>,
) -> Vec<Violation> {
    let mut here = vec![0u32; nodes * nodes];
    let mut ended = vec![0u32; nodes];
    let mut violations = Vec::new();
    let mut expect = |check, holds: bool, words: String| {
        if !holds {
            violations.push(Violation { check, words });
        }
    };
    for (seen, event) in &watch.0 {
        let to = seen.node.0 as usize;
        match event {
            Event::Message { from, body, .. } => {
                let from = usize::from(*from);
                let cell = from * nodes + to;
                here[cell] += 1;
                expect(Check::Once, here[cell] == 1, format!("{from} to {to} again"));
                let right = message(from, to, lengths[cell]);
                expect(Check::Whole, *body == right, format!("{from} to {to}"));
            }
            Event::Completed { .. } => {
                ended[to] += 1;
                let missing = (0..nodes).find(|from| here[from * nodes + to] == 0);
                let words = format!("rank {to} completed without {missing:?}");
                expect(Check::Complete, missing.is_none(), words);
            }
            Event::Failed { failure, .. } => {
                ended[to] += 1;
                let right = Some(u32::from(failure.rank())) == victim;
                expect(Check::Named, right, format!("rank {to}: {failure}; died: {victim:?}"));
            }
        }
    }
    for (rank, &ended) in ended.iter().enumerate().filter(|r| Some(r.0 as u32) != victim) {
        expect(Check::Ends, ended == 1, format!("rank {rank} ended {ended} times"));
    }
    violations
}
