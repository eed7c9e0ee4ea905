//! The fault campaign of the shuffle. Under loss up to 5 %, duplicates, reordering and crashes,
//! every message arrives whole and once, or a failure names the dead rank.
//!
//! The campaign of group communication in [`calls`](super::calls) has the same checks, mutants and
//! faults, with another load.

use core::time::Duration;
use std::collections::VecDeque;
use std::fmt::Debug;

use bytes::{Bytes, BytesMut};
use evenfall_collectives_machine::wire::ShuffleKind;
use evenfall_collectives_machine::{
    RankFailure, Shuffle, ShuffleConfig, ShuffleEvent, ShufflePlan,
};
use evenfall_core::{Machine, Prng, Timestamp, Transmit};
use evenfall_sim::campaign::{Outline, Trap};
use evenfall_sim::{
    Alteration, Altered, Bursts, Campaign, Collect, Cut, Fault, FaultKind, HostSpec, Late,
    NodeIndex, Plan, Rates, Run, Seen, SimTime, Transcript, Wire, World, named_variants,
};

named_variants! {
    /// The checks of the campaigns.
    pub enum Check {
        /// A message or the outcome of a call has the bytes that its senders sent.
        Whole,
        /// No message comes twice, and no call ends twice.
        Once,
        /// A rank that has completed has all messages.
        Complete,
        /// An operation that a rank began ends at every living rank.
        Ends,
        /// A failure names the rank that died.
        Named,
    }
    /// Faults put into a machine on purpose. The campaigns must detect each of them.
    pub enum Mutant {
        /// Hands on a message or an outcome with a changed byte.
        Tampers,
        /// Swaps the messages of the first two ranks.
        MixesUp,
        /// Leaves out the message of the last rank.
        LeavesOut,
        /// Hands on some messages, or some ends of calls, twice.
        TellsTwice,
        /// Loses some messages and reports completion.
        CompletesEarly,
        /// Does not report the end of a call.
        ForgetsEnd,
        /// Does not ask for lost packets.
        ForgetsResend,
        /// Does not acknowledge messages.
        ForgetsAck,
        /// Does not report failures.
        HidesFailure,
        /// Blames a living rank for a failure.
        BlamesAnother,
    }
}

/// A mutant strikes at every third event.
const MUTANT_EVERY: u64 = 3;
/// Seeds within which a mutant must be caught: one seed in five has a crash.
pub(super) const MUTANT_SEEDS: u64 = 60;
/// Kinds of faults that must occur in a campaign of the shuffle.
pub(crate) const KINDS: &[FaultKind] = &[
    FaultKind::Loss,
    FaultKind::Duplicate,
    FaultKind::Reorder,
    FaultKind::Crash,
    FaultKind::Bursts,
    FaultKind::OneWay,
    FaultKind::Late,
];
/// How long a rank may be silent before it counts as dead.
const SILENCE_MAX: Duration = Duration::from_millis(200);
/// Each outage begins within this time of the start, in microseconds. Most shuffles without an
/// outage take one or two milliseconds, so a later outage would often come too late.
const OUTAGE_WITHIN_US: u64 = 1_000;
/// Longest outage, in microseconds. A rank may ask again as rarely as once in a quarter of the
/// silence that makes it dead. Two outages in a row and the wait between them must be shorter than
/// that silence, for a rank that lives may never be blamed.
const OUTAGE_US_MAX: u64 = 50_000;
/// A rank that begins at this time or later is one that the others wait for.
pub(crate) const LATE_START: SimTime = SimTime::from_nanos(100_000_000);
/// Offset of the kind in a datagram.
const KIND_OFFSET: usize = 3;

/// Decides when a mutant strikes, and changes events and datagrams for it.
pub struct Strikes {
    pub(super) mutant: Mutant,
    count: u64,
}

impl Strikes {
    /// Whether the mutant strikes now.
    pub(super) fn strikes(&mut self) -> bool {
        self.count += 1;
        self.count.is_multiple_of(MUTANT_EVERY)
    }

    /// Whether the mutant lets this datagram leave.
    pub(super) fn passes(&self, transmit: &Transmit) -> bool {
        let hidden = match self.mutant {
            Mutant::ForgetsResend => ShuffleKind::Resend,
            Mutant::ForgetsAck => ShuffleKind::Ack,
            _ => return true,
        };
        transmit.head.as_slice().get(KIND_OFFSET) != Some(&(hidden as u8))
    }

    /// The failure that the mutant reports; `None` when it hides the failure.
    pub(super) fn failure(&self, failure: RankFailure) -> Option<RankFailure> {
        match self.mutant {
            Mutant::HidesFailure => None,
            Mutant::BlamesAnother => Some(RankFailure::Silent { rank: failure.rank() ^ 1 }),
            _ => Some(failure),
        }
    }
}

/// Makes the alterations of a mutant.
pub(super) fn make_strikes(mutant: Option<Mutant>) -> impl Fn() -> Option<Strikes> {
    move || mutant.map(|mutant| Strikes { mutant, count: 0 })
}

/// The same bytes with a changed first byte.
pub(super) fn tampered(body: &Bytes) -> Bytes {
    let mut bytes = BytesMut::from(body.as_ref());
    bytes.first_mut().into_iter().for_each(|byte| *byte ^= 1);
    bytes.freeze()
}

impl Alteration<Shuffle> for Strikes {
    fn sends(&mut self, transmit: &mut Transmit) -> bool {
        self.passes(transmit)
    }

    fn event(&mut self, mut event: ShuffleEvent, out: &mut VecDeque<ShuffleEvent>) {
        match &mut event {
            ShuffleEvent::Message { body, .. } if self.strikes() => match self.mutant {
                Mutant::Tampers => *body = tampered(body),
                Mutant::TellsTwice => out.push_back(event.clone()),
                Mutant::CompletesEarly => return,
                _ => {}
            },
            ShuffleEvent::Message { .. }
            | ShuffleEvent::Here { .. }
            | ShuffleEvent::Completed { .. } => {}
            ShuffleEvent::Failed { failure, .. } => match self.failure(*failure) {
                Some(told) => *failure = told,
                None => return,
            },
        }
        out.push_back(event);
    }
}

/// The scene that a seed draws: ranks that begin at different times, faults, and a load.
pub struct ShuffleScene<L> {
    pub(crate) plan: Plan,
    pub(crate) ranks: usize,
    pub(crate) config: ShuffleConfig,
    pub(crate) starts: Vec<SimTime>,
    pub(crate) load: L,
}

impl<L> AsMut<Plan> for ShuffleScene<L> {
    fn as_mut(&mut self) -> &mut Plan {
        &mut self.plan
    }
}

impl<L: Default> ShuffleScene<L> {
    /// Draws the machines and the network.
    pub(crate) fn draw(seed: u64, ranks: usize, prng: &mut Prng) -> Self {
        let config = ShuffleConfig {
            packet_bytes: 100,
            resend_after: Duration::from_millis(1),
            resend_after_min: Duration::from_micros(100),
            silence_max: SILENCE_MAX,
            grant_packets: 1 + prng.below(4) as u32,
            ..ShuffleConfig::default()
        };
        let rates = Rates {
            loss: 0.05 * prng.unit(),
            duplicate: 0.05 * prng.unit(),
            reorder: 0.1 * prng.unit(),
            reorder_by: Duration::from_micros(200),
        };
        let mut faults = vec![(SimTime::ZERO, Fault::Rates(rates))];
        faults.extend(outages(seed, ranks));
        let plan =
            Plan { seed, knobs: vec![("ranks", ranks as u64)], rates, faults, kinds: vec![] };
        Self { plan, ranks, config, starts: Vec::new(), load: L::default() }
    }

    /// Draws the time of the crash and the time at which each rank begins.
    pub(crate) fn begin(mut self, prng: &mut Prng, victim: Option<u32>, within_us: u64) -> Self {
        if let Some(victim) = victim {
            let at = SimTime::from_micros(prng.below(within_us));
            self.plan.faults.push((at, Fault::Crash(NodeIndex(victim))));
        }
        let start = |rank: usize| SimTime::from_micros(rank as u64 * prng.below(40));
        self.starts = (0..self.ranks).map(start).collect();
        self
    }
}

/// Draws bursts of loss, a cut in one direction and late packets, each for some seeds. These draws
/// have their own generator, so that a seed keeps its load and its other faults.
fn outages(seed: u64, ranks: usize) -> Vec<(SimTime, Fault)> {
    let mut prng = Prng::new(seed).fork(0x6f75_7461);
    let mut faults = Vec::new();
    let mut between = |first: Fault, last: Fault, prng: &mut Prng| {
        let at = prng.below(OUTAGE_WITHIN_US);
        let end = at + prng.below(OUTAGE_US_MAX);
        faults.push((SimTime::from_micros(at), first));
        faults.push((SimTime::from_micros(end), last));
    };
    if prng.chance(0.3) {
        let us = |most: u64, prng: &mut Prng| Duration::from_micros(100 + prng.below(most));
        let (good, bad) = (us(2_000, &mut prng), us(2_000, &mut prng));
        let bursts = Bursts { good, bad, loss: prng.unit() };
        between(Fault::Bursts(bursts), Fault::Bursts(Bursts::default()), &mut prng);
    }
    if prng.chance(0.3) {
        let mut cut_off: Vec<_> = (0..ranks as u32).map(NodeIndex).collect();
        prng.shuffle(&mut cut_off);
        cut_off.truncate(1 + prng.below((ranks as u64 / 2).max(1)) as usize);
        let cut = if prng.chance(0.5) { Cut::Deaf } else { Cut::Mute };
        between(Fault::OneWay(cut_off, cut), Fault::Heal, &mut prng);
    }
    if prng.chance(0.3) {
        let late = Late { share: 0.3 * prng.unit(), by: Duration::from_millis(prng.below(100)) };
        between(Fault::Late(late), Fault::Late(Late::default()), &mut prng);
    }
    faults.sort_by_key(|&(at, _)| at);
    faults
}

/// The events of a run, and the run before the checks have judged it.
pub(crate) struct Played<E> {
    pub(crate) events: Vec<(Seen, E)>,
    pub(crate) digest: u64,
    pub(crate) story: String,
    pub(crate) counts: Vec<(&'static str, u64)>,
}

impl<E> Played<E> {
    /// The events, and the run before any check has judged it.
    pub(crate) fn split_run<C>(self) -> (Vec<(Seen, E)>, Run<C>) {
        let Self { events, digest, story, counts } = self;
        (events, Run { digest, story, counts, ..Run::default() })
    }
}

impl<L> ShuffleScene<L> {
    /// The rank that crashes.
    pub(crate) fn victim(&self) -> Option<u32> {
        self.plan.faults.iter().find_map(|(_, fault)| match fault {
            Fault::Crash(node) => Some(node.0),
            _ => None,
        })
    }

    /// Runs one machine per rank. Each rank gets its inputs when it begins.
    pub(crate) fn play<M: Machine<Event: Debug>, A: Alteration<M>>(
        &self,
        (alteration, story): (impl Fn() -> Option<A>, bool),
        machine: impl Fn(usize) -> M,
        (inputs, input): (usize, impl Fn(&mut M, Timestamp, usize, usize)),
        until: SimTime,
    ) -> Played<M::Event> {
        let mut world = World::new(Wire::new(Duration::from_micros(20)), self.plan.seed);
        for rank in 0..self.ranks {
            world.add(Altered::new(machine(rank), alteration()), HostSpec::ideal());
        }
        self.plan.schedule(&mut world);
        let mut watch = Transcript::told(Collect::default(), story);
        // Time does not go back, so a rank that begins very late comes last.
        let mut ranks: Vec<usize> = (0..self.ranks).collect();
        ranks.sort_by_key(|&rank| self.starts[rank] >= LATE_START);
        for rank in ranks {
            world.run_until(self.starts[rank], &mut watch);
            for number in 0..inputs {
                world.call(NodeIndex(rank as u32), &mut watch, |subject, now| {
                    subject.input(now, |machine| input(machine, now, rank, number));
                });
            }
        }
        world.run_until(until, &mut watch);
        let tally = world.tally();
        let counts = vec![("hops", tally.hops), ("packets lost", tally.lost.iter().sum())];
        Played { events: watch.inner.0, digest: world.digest(), story: watch.text, counts }
    }

    /// Addresses of all ranks.
    pub(crate) fn members(&self) -> Vec<std::net::SocketAddr> {
        (0..self.ranks as u32).map(|rank| NodeIndex(rank).address()).collect()
    }
}

/// The message from one rank to another. No two messages have the same bytes.
fn message(from: usize, to: usize, length: usize) -> Bytes {
    (0..length).map(|at| (at * 31 + from * 7 + to * 131) as u8).collect()
}

/// The campaign: a shuffle of 2 to 7 ranks.
pub struct ShuffleCampaign;

impl Campaign for ShuffleCampaign {
    type Check = Check;
    type Mutant = Mutant;
    /// Lengths of all messages.
    type Scene = ShuffleScene<Vec<usize>>;

    fn outline(&self) -> Outline<Mutant, Check> {
        const MUTANTS: &[Trap<Mutant, Check>] = &[
            (Mutant::Tampers, Check::Whole, 0..MUTANT_SEEDS),
            (Mutant::TellsTwice, Check::Once, 0..MUTANT_SEEDS),
            (Mutant::CompletesEarly, Check::Complete, 0..MUTANT_SEEDS),
            (Mutant::ForgetsResend, Check::Ends, 0..MUTANT_SEEDS),
            (Mutant::ForgetsAck, Check::Ends, 0..MUTANT_SEEDS),
            (Mutant::HidesFailure, Check::Ends, 0..MUTANT_SEEDS),
            (Mutant::BlamesAnother, Check::Named, 0..MUTANT_SEEDS),
        ];
        Outline {
            name: "shuffle",
            about: "the shuffle, whose messages come whole and once or whose failure is named",
            seeds: 1_000,
            once_failed: &[],
            kinds: KINDS,
            counts_min: &[("packets lost", 1), ("failures", 1)],
            mutants: MUTANTS,
        }
    }

    fn scene(&self, seed: u64) -> Self::Scene {
        let mut prng = Prng::new(seed);
        let ranks = 2 + prng.below(6) as usize;
        let (crashes, reduce) = (prng.chance(0.2), prng.chance(0.3));
        let mut scene = ShuffleScene::<Vec<usize>>::draw(seed, ranks, &mut prng);
        scene.config.reduce = reduce;
        let mut length = |_| prng.below(6_000) as usize * prng.below(2) as usize;
        scene.load = (0..ranks * ranks).map(&mut length).collect();
        let victim = prng.below(ranks as u64) as u32;
        scene.begin(&mut prng, crashes.then_some(victim), 300)
    }

    fn run(&self, scene: &Self::Scene, mutant: Option<Mutant>, story: bool) -> Run<Check> {
        let ranks = scene.ranks;
        let members = scene.members();
        let start = |machine: &mut Shuffle, now, rank, _| {
            let length = |to| scene.load[rank * ranks + to];
            let messages = (0..ranks).map(|to| message(rank, to, length(to))).collect();
            let plan = ShufflePlan::shuffle(scene.plan.seed, rank, members.clone(), messages);
            machine.start(now, plan).expect("a plan of our own is right");
        };
        let machine = |_| Shuffle::new(scene.config.clone());
        let until = SimTime::from_millis(3_000);
        judge(scene, scene.play((make_strikes(mutant), story), machine, (1, start), until))
    }
}

fn judge(scene: &ShuffleScene<Vec<usize>>, played: Played<ShuffleEvent>) -> Run<Check> {
    let (events, mut run) = played.split_run();
    let (ranks, victim) = (scene.ranks, scene.victim());
    let mut here = vec![0u32; ranks * ranks];
    let mut ended = vec![0u32; ranks];
    let mut failures = 0;
    for (seen, event) in &events {
        let to = seen.node.0 as usize;
        match event {
            ShuffleEvent::Message { from, body, .. } => {
                let from = usize::from(*from);
                let cell = from * ranks + to;
                here[cell] += 1;
                run.expect(Check::Once, here[cell] == 1, || format!("{from} to {to} again"));
                let right = *body == message(from, to, scene.load[cell]);
                run.expect(Check::Whole, right, || format!("{from} to {to}"));
            }
            ShuffleEvent::Here { .. } => {}
            ShuffleEvent::Completed { .. } => {
                ended[to] += 1;
                let missing = (0..ranks).find(|from| here[from * ranks + to] == 0);
                let words = || format!("rank {to} completed without {missing:?}");
                run.expect(Check::Complete, missing.is_none(), words);
            }
            ShuffleEvent::Failed { failure, .. } => {
                ended[to] += 1;
                failures += 1;
                let right = Some(u32::from(failure.rank())) == victim;
                let words = || format!("rank {to}: {failure}; died: {victim:?}");
                run.expect(Check::Named, right, words);
            }
        }
    }
    for (rank, ended) in ended.iter().enumerate().filter(|r| Some(r.0 as u32) != victim) {
        run.expect(Check::Ends, *ended == 1, || format!("rank {rank} ended {ended} times"));
    }
    run.counts.push(("failures", failures));
    run
}
