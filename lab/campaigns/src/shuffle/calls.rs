//! The fault campaign of group communication. Under loss, duplicates, reordering and crashes, each
//! call ends once at every living rank, with the right outcome or with a failure that names the
//! dead rank.

use std::collections::VecDeque;

use evenfall_collectives_machine::group::sample::{self, SampleCalls};
use evenfall_collectives_machine::group::{
    Collective, CollectiveEvent, CollectiveOutcome, GroupSettings, ProcessGroup,
};
use evenfall_core::{Prng, Transmit};
use evenfall_sim::campaign::{Outline, Trap};
use evenfall_sim::{Alteration, Campaign, Run, SimTime};

use super::faults::{
    Check, KINDS, MUTANT_SEEDS, Mutant, Played, ShuffleScene, Strikes, make_strikes, tampered,
};

/// Calls of a run.
const CALLS_PER_RUN: usize = 6;

impl Alteration<ProcessGroup> for Strikes {
    fn sends(&mut self, transmit: &mut Transmit) -> bool {
        self.passes(transmit)
    }

    fn event(&mut self, mut event: CollectiveEvent, out: &mut VecDeque<CollectiveEvent>) {
        match &mut event {
            CollectiveEvent::Done { outcome, .. } => match (self.mutant, outcome) {
                (Mutant::TellsTwice, _) if self.strikes() => out.push_back(event.clone()),
                (Mutant::ForgetsEnd, _) if self.strikes() => return,
                (Mutant::Tampers, CollectiveOutcome::One(body)) => *body = tampered(body),
                (Mutant::MixesUp, CollectiveOutcome::All(parts)) if parts.len() > 1 => {
                    parts.swap(0, 1)
                }
                (Mutant::LeavesOut, CollectiveOutcome::All(parts)) => drop(parts.pop()),
                _ => {}
            },
            CollectiveEvent::Arrived { .. } | CollectiveEvent::Here { .. } => {}
            CollectiveEvent::Failed { failure, .. } => match self.failure(*failure) {
                Some(told) => *failure = told,
                None => return,
            },
        }
        out.push_back(event);
    }
}

/// Length of the longest body: fifteen packets of 100 bytes, so that a loss can hit a part of a
/// body.
const BODY_BYTES_MAX: u64 = 1_500;

/// One call, the same at all ranks, with its expected outcome.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    kind: usize,
    sample: SampleCalls,
}

impl Case {
    fn draw(prng: &mut Prng, ranks: usize) -> Self {
        let root = prng.below(ranks as u64) as usize;
        let kind = prng.below(sample::CALLS.len() as u64) as usize;
        let (seed, body_bytes_max) = (prng.next_u64(), BODY_BYTES_MAX);
        Self { kind, sample: SampleCalls { ranks, root, seed, body_bytes_max } }
    }

    fn call(&self, me: usize) -> Collective {
        sample::CALLS[self.kind](&self.sample, me)
    }

    fn outcome(&self, me: usize) -> CollectiveOutcome {
        self.sample.outcome(&self.call(me), me)
    }
}

/// The campaign: 2 to 9 ranks make six calls of random kinds at once.
pub struct Calls;

impl Campaign for Calls {
    type Check = Check;
    type Mutant = Mutant;
    type Scene = ShuffleScene<Vec<Case>>;

    fn outline(&self) -> Outline<Mutant, Check> {
        const MUTANTS: &[Trap<Mutant, Check>] = &[
            (Mutant::Tampers, Check::Whole, 0..MUTANT_SEEDS),
            (Mutant::MixesUp, Check::Whole, 0..MUTANT_SEEDS),
            (Mutant::LeavesOut, Check::Whole, 0..MUTANT_SEEDS),
            (Mutant::TellsTwice, Check::Once, 0..MUTANT_SEEDS),
            (Mutant::ForgetsEnd, Check::Ends, 0..MUTANT_SEEDS),
            (Mutant::ForgetsResend, Check::Ends, 0..MUTANT_SEEDS),
            (Mutant::HidesFailure, Check::Ends, 0..MUTANT_SEEDS),
            (Mutant::BlamesAnother, Check::Named, 0..MUTANT_SEEDS),
        ];
        Outline {
            name: "group",
            about: "calls of a group, each of which ends once, rightly or with a named failure",
            seeds: 1_000,
            once_failed: &[],
            kinds: KINDS,
            counts_min: &[("packets lost", 1), ("failures", 1)],
            mutants: MUTANTS,
        }
    }

    fn scene(&self, seed: u64) -> Self::Scene {
        let mut prng = Prng::new(seed);
        let ranks = 2 + prng.below(8) as usize;
        let cases: Vec<Case> = (0..CALLS_PER_RUN).map(|_| Case::draw(&mut prng, ranks)).collect();
        let victim = prng.chance(0.25).then(|| prng.below(ranks as u64) as u32);
        let mut scene = ShuffleScene::<Vec<Case>>::draw(seed, ranks, &mut prng);
        scene.load = cases;
        scene.begin(&mut prng, victim, 1_500)
    }

    fn run(&self, scene: &Self::Scene, mutant: Option<Mutant>, story: bool) -> Run<Check> {
        let epoch = scene.plan.seed as u32;
        let settings =
            GroupSettings { shuffle: scene.config.clone(), epoch, ..GroupSettings::default() };
        let machine = |rank| {
            ProcessGroup::new(rank, scene.members(), settings.clone()).expect("a rank of the group")
        };
        let call = |machine: &mut ProcessGroup, now, rank, number: usize| {
            machine.call(now, scene.load[number].call(rank)).expect("begun");
        };
        let until = SimTime::from_millis(4_000);
        judge(
            scene,
            scene.play((make_strikes(mutant), story), machine, (CALLS_PER_RUN, call), until),
        )
    }
}

fn judge(scene: &ShuffleScene<Vec<Case>>, played: Played<CollectiveEvent>) -> Run<Check> {
    let (events, mut run) = played.split_run();
    let (ranks, cases, victim) = (scene.ranks, &scene.load, scene.victim());
    let mut ended = vec![[0; CALLS_PER_RUN]; ranks];
    let mut failures = 0;
    for (seen, event) in &events {
        let me = seen.node.0 as usize;
        let (CollectiveEvent::Done { call, .. } | CollectiveEvent::Failed { call, .. }) = event
        else {
            continue;
        };
        let number = (call & 0xffff_ffff) as usize;
        let case = cases[number];
        ended[me][number] += 1;
        let words = || format!("rank {me} of {ranks}: {case:?}: {event:?}; died: {victim:?}");
        run.expect(Check::Once, ended[me][number] == 1, words);
        match event {
            CollectiveEvent::Done { outcome, .. } => {
                run.expect(Check::Whole, *outcome == case.outcome(me), words);
            }
            CollectiveEvent::Arrived { .. } | CollectiveEvent::Here { .. } => {}
            CollectiveEvent::Failed { failure, .. } => {
                failures += 1;
                run.expect(Check::Named, Some(u32::from(failure.rank())) == victim, words);
            }
        }
    }
    for (rank, ended) in ended.iter().enumerate().filter(|r| Some(r.0 as u32) != victim) {
        let words = || format!("rank {rank} of {ranks}: calls ended {ended:?} times: {cases:?}");
        run.expect(Check::Ends, ended.iter().all(|&times| times > 0), words);
    }
    run.counts.push(("failures", failures));
    run
}
