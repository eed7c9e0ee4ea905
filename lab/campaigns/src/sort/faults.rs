//! The campaign of the sort. Under loss, duplicates, reordering, outages, late ranks and crashes,
//! every living rank ends: with its part of the records in order, or with the name of the dead
//! rank.

use std::collections::VecDeque;
use std::sync::Arc;

use evenfall_collectives_machine::RankFailure;
use evenfall_collectives_machine::group::{GroupSettings, ProcessGroup};
use evenfall_collectives_machine::wire::ShuffleKind;
use evenfall_core::{Prng, Transmit};
use evenfall_query_burst::burst::{Burst, BurstEvent};
use evenfall_query_burst::partition::{
    LEVEL_STEPS, PARTITION_STEPS, PIVOT_SHUFFLE, PartitionConfig,
};
use evenfall_query_burst::pivots::{KEY_BYTES, Naive, SplitterRule, Tag, Weighted};
use evenfall_query_burst::rows::{KeyDraw, make_records};
use evenfall_query_burst::sort::{
    MilliSort, SortConfig, SortRecords, SortedRecords, VALUE_BYTES, sorted,
};
use evenfall_sim::campaign::{Outline, Trap};
use evenfall_sim::{Alteration, Campaign, Run, SimTime, named_variants};

use super::model::part_sizes;
use super::node::{WorkModel, WorkedBurst};
use crate::shuffle::faults::{KINDS, LATE_START, Played, ShuffleScene};

named_variants! {
    /// The checks of a sort.
    pub enum SortCheck {
        /// All parts together are what a plain stable sort makes of all records.
        Sorted,
        /// Each part has as many records as the definition of the splitters says.
        Split,
        /// Each living rank has one end.
        EndsOnce,
        /// A failure names the rank that died.
        NamesTheDead,
    }
    /// Faults put into a rank on purpose.
    pub enum SortMutant {
        /// A sorter does not count what it has in front of its own part.
        LeavesOutOwnGroup,
        /// The first and the last pivot weigh as much as the others.
        WeighsEndsFully,
        /// A splitter is the first pivot beyond its share, and not the first that reaches it.
        CrossesLate,
        /// Pivots are naive, and the rule is called weighted.
        NamesNaiveWeighted,
        /// A sorter does not send its part of the pivots to another sorter when the part is empty.
        ForgetsEmptyGroup,
        /// A record of a part is lost.
        LosesChunk,
        /// Two records of a part are in the wrong order.
        SwapsRecords,
        /// The end of a rank is told twice.
        EndsTwice,
        /// A failure is not told.
        HidesFailure,
        /// A failure names a living rank.
        BlamesLiving,
    }
}

/// Bytes of an empty group of pivots on the wire: two weights and a number of runs.
const EMPTY_GROUP_BYTES: u32 = 20;
/// Offsets of the kind, of the lower half of the operation and of the length in a datagram of the
/// shuffle.
const KIND_OFFSET: usize = 3;
const OPERATION_OFFSET: usize = 8;
const LENGTH_OFFSET: usize = 20;
/// How long work takes in a campaign: long enough that datagrams of later steps arrive before it
/// ends.
const WORK: WorkModel = WorkModel {
    sort_ns: 200.0,
    sort_spread_ns: 2_000.0,
    copy_ns: 500.0,
    merge_ns: 100.0,
    pivot_ns: 100.0,
    row_ns: 0.0,
};
/// Seeds within which a mutant must be caught.
const MUTANT_SEEDS: u64 = 60;

/// A rule of splitters with a fault.
#[derive(Debug)]
struct FaultyRule {
    rule: Arc<dyn SplitterRule>,
    fault: SortMutant,
}

impl SplitterRule for FaultyRule {
    fn name(&self) -> &'static str {
        self.rule.name()
    }

    fn takes_first(&self) -> bool {
        self.fault != SortMutant::NamesNaiveWeighted && self.rule.takes_first()
    }

    fn reached(&self, total: u64, count: usize, place: usize) -> u64 {
        match self.fault {
            SortMutant::NamesNaiveWeighted | SortMutant::WeighsEndsFully => {
                Naive.reached(total, count, place)
            }
            _ => self.rule.reached(total, count, place),
        }
    }

    fn crosses(&self, reached: u64, number: u32, total: u64, parts: usize) -> bool {
        let (own, share) =
            (u128::from(reached) * parts as u128, u128::from(number) * u128::from(total));
        if self.fault == SortMutant::CrossesLate { own > share } else { own >= share }
    }

    fn own_rank(&self, local_ranks: &[u64], own: usize) -> u64 {
        let sum = self.rule.own_rank(local_ranks, own);
        match self.fault {
            SortMutant::LeavesOutOwnGroup => sum - local_ranks.get(own).copied().unwrap_or(0),
            _ => sum,
        }
    }
}

/// Changes what a rank sends and tells.
pub struct SortAlteration(SortMutant);

impl Alteration<WorkedBurst<MilliSort>> for SortAlteration {
    fn sends(&mut self, transmit: &mut Transmit) -> bool {
        self.0 != SortMutant::ForgetsEmptyGroup || !is_empty_group(transmit.head.as_slice())
    }

    fn event(
        &mut self,
        mut event: BurstEvent<SortedRecords>,
        out: &mut VecDeque<BurstEvent<SortedRecords>>,
    ) {
        match &mut event {
            BurstEvent::Result { output, took, phases } => match self.0 {
                SortMutant::LosesChunk => drop_last_record(&mut output.records),
                SortMutant::SwapsRecords => swap_ends(&mut output.records),
                SortMutant::EndsTwice => {
                    let (output, phases) = (output.clone(), phases.clone());
                    out.push_back(BurstEvent::Result { output, took: *took, phases });
                }
                _ => {}
            },
            BurstEvent::Failed(failure) => match self.0 {
                SortMutant::HidesFailure => return,
                SortMutant::BlamesLiving => {
                    *failure = RankFailure::Silent { rank: failure.rank() ^ 1 };
                }
                _ => {}
            },
            BurstEvent::Ended => {}
        }
        out.push_back(event);
    }
}

/// Whether a datagram of the first burst carries an empty group of a pivot shuffle.
fn is_empty_group(head: &[u8]) -> bool {
    let word = |at: usize| {
        let bytes = head.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_le_bytes)
    };
    let step = word(OPERATION_OFFSET);
    head.get(KIND_OFFSET) == Some(&(ShuffleKind::Data as u8))
        && word(LENGTH_OFFSET) == EMPTY_GROUP_BYTES
        && step < PARTITION_STEPS
        && step % LEVEL_STEPS == PIVOT_SHUFFLE
}

fn drop_last_record(records: &mut SortRecords) {
    if !records.is_empty() {
        records.keys.truncate(records.keys.len() - KEY_BYTES);
        records.values.truncate(records.values.len() - VALUE_BYTES);
    }
}

/// Puts the values of the first and the last record in each other's place.
fn swap_ends(records: &mut SortRecords) {
    let (mut values, count) = (records.values.to_vec(), records.len());
    for at in 0..VALUE_BYTES.min(values.len()) {
        values.swap(at, (count - 1) * VALUE_BYTES + at);
    }
    records.values = values.into();
}

/// What the ranks of a seed sort.
#[derive(Clone, Debug, Default)]
pub struct SortLoad {
    counts: Vec<usize>,
    levels: usize,
    per_rank: usize,
    is_weighted: bool,
    keys: KeyDraw,
    seed: u64,
}

impl SortLoad {
    fn draw(seed: u64, ranks: usize, prng: &mut Prng) -> Self {
        let most = 1 + prng.below(40);
        let (are_equal, are_few) = (prng.chance(0.4), prng.chance(0.15));
        let count = |_| match (are_equal, are_few) {
            (_, true) => usize::from(prng.chance(0.1)),
            (true, false) => most as usize,
            (false, false) => prng.below(most + 1) as usize,
        };
        let counts = (0..ranks).map(count).collect();
        let kinds = [KeyDraw::Uniform, KeyDraw::Gaussian, KeyDraw::Few, KeyDraw::Equal];
        Self {
            counts,
            levels: 1 + prng.below(3) as usize,
            per_rank: 1 + prng.below(2) as usize,
            is_weighted: prng.chance(0.6),
            keys: kinds[prng.below(kinds.len() as u64) as usize],
            seed,
        }
    }

    fn records(&self, rank: usize) -> SortRecords {
        make_records(self.keys, self.seed, rank, self.counts[rank])
    }

    fn config(&self, mutant: Option<SortMutant>) -> SortConfig {
        let rule: Arc<dyn SplitterRule> =
            if self.is_weighted { Arc::new(Weighted) } else { Arc::new(Naive) };
        let rule = match mutant {
            Some(fault) => Arc::new(FaultyRule { rule, fault }),
            None => rule,
        };
        let partition =
            PartitionConfig { levels: self.levels, pivots_per_rank: self.per_rank, rule };
        SortConfig { value_bytes: VALUE_BYTES, partition }
    }
}

/// The campaign: 1 to 30 ranks sort up to 40 records each.
pub struct SortCampaign;

impl Campaign for SortCampaign {
    type Check = SortCheck;
    type Mutant = SortMutant;
    type Scene = ShuffleScene<SortLoad>;

    fn outline(&self) -> Outline<SortMutant, SortCheck> {
        const MUTANTS: &[Trap<SortMutant, SortCheck>] = &[
            (SortMutant::LeavesOutOwnGroup, SortCheck::NamesTheDead, 0..MUTANT_SEEDS),
            (SortMutant::WeighsEndsFully, SortCheck::Split, 0..MUTANT_SEEDS),
            (SortMutant::CrossesLate, SortCheck::Split, 0..MUTANT_SEEDS),
            (SortMutant::NamesNaiveWeighted, SortCheck::Split, 0..MUTANT_SEEDS),
            (SortMutant::ForgetsEmptyGroup, SortCheck::EndsOnce, 0..3 * MUTANT_SEEDS),
            (SortMutant::LosesChunk, SortCheck::Sorted, 0..MUTANT_SEEDS),
            (SortMutant::SwapsRecords, SortCheck::Sorted, 0..MUTANT_SEEDS),
            (SortMutant::EndsTwice, SortCheck::EndsOnce, 0..MUTANT_SEEDS),
            (SortMutant::HidesFailure, SortCheck::EndsOnce, 0..MUTANT_SEEDS),
            (SortMutant::BlamesLiving, SortCheck::NamesTheDead, 0..MUTANT_SEEDS),
        ];
        Outline {
            name: "sort",
            about: "a sort whose parts are in order, or whose failure is named, at every rank",
            seeds: 1_000,
            once_failed: &[],
            kinds: KINDS,
            counts_min: &[
                ("packets lost", 1),
                ("failures", 100),
                ("late ranks", 50),
                ("sorts", 500),
            ],
            mutants: MUTANTS,
        }
    }

    fn seeds_max(&self) -> u64 {
        // A long run has a hundred thousand seeds of other campaigns, and a seed of a sort takes
        // as long as ten of theirs.
        10_000
    }

    fn scene(&self, seed: u64) -> Self::Scene {
        let mut prng = Prng::new(seed);
        let ranks = if prng.chance(0.3) { 1 + prng.below(10) } else { 11 + prng.below(20) };
        let load = SortLoad::draw(seed, ranks as usize, &mut prng);
        let victim = prng.chance(0.25).then(|| prng.below(ranks) as u32);
        let late = prng.chance(0.1).then(|| prng.below(ranks) as usize);
        let mut scene = ShuffleScene::<SortLoad>::draw(seed, ranks as usize, &mut prng);
        scene.config.packet_bytes = 400;
        scene.load = load;
        let mut scene = scene.begin(&mut prng, victim, 4_000);
        if let Some(late) = late.filter(|_| victim.is_none()) {
            // Longer than a rank may be silent: its process answers, and has not begun.
            scene.starts[late] = LATE_START + core::time::Duration::from_millis(200);
        }
        scene
    }

    fn run(&self, scene: &Self::Scene, mutant: Option<SortMutant>, story: bool) -> Run<SortCheck> {
        let epoch = scene.plan.seed as u32;
        let settings =
            GroupSettings { shuffle: scene.config.clone(), epoch, ..GroupSettings::default() };
        let machine = |rank| {
            let group = ProcessGroup::new(rank, scene.members(), settings.clone());
            let work = Prng::new(scene.plan.seed).fork(rank as u64);
            WorkedBurst::new(Burst::new(group.expect("a rank of the group")), WORK, work)
        };
        let config = scene.load.config(mutant);
        let start = |machine: &mut WorkedBurst<MilliSort>, now, rank: usize, _| {
            let records = scene.load.records(rank);
            let program = MilliSort::new(config.clone(), rank as u16, scene.ranks, records);
            machine.start_burst(now, program);
        };
        let alteration = || mutant.map(SortAlteration);
        let until = SimTime::from_millis(3_000);
        judge(scene, scene.play((alteration, story), machine, (1, start), until))
    }
}

fn judge(
    scene: &ShuffleScene<SortLoad>,
    played: Played<BurstEvent<SortedRecords>>,
) -> Run<SortCheck> {
    let (events, mut run) = played.split_run();
    let (ranks, load, victim) = (scene.ranks, &scene.load, scene.victim());
    let mut parts: Vec<Option<SortedRecords>> = vec![None; ranks];
    let (mut ends, mut failures) = (vec![0; ranks], 0);
    for (seen, event) in events {
        let rank = seen.node.0 as usize;
        match event {
            BurstEvent::Result { output, .. } => {
                ends[rank] += 1;
                parts[rank] = Some(output);
            }
            // A rank that has its result may yet learn that another rank died.
            BurstEvent::Failed(failure) => {
                ends[rank] += usize::from(parts[rank].is_none());
                failures += 1;
                let words = || format!("rank {rank} of {ranks}: {failure}; died: {victim:?}");
                let is_right = Some(u32::from(failure.rank())) == victim;
                run.expect(SortCheck::NamesTheDead, is_right, words);
            }
            BurstEvent::Ended => {}
        }
    }
    for (rank, &ends) in ends.iter().enumerate().filter(|end| Some(end.0 as u32) != victim) {
        let words = || format!("rank {rank} of {ranks} has {ends} ends: {load:?}");
        run.expect(SortCheck::EndsOnce, ends == 1, words);
    }
    check_parts(load, &parts, &mut run);
    let sorts = parts.iter().all(Option::is_some);
    let late = scene.starts.iter().any(|&start| start >= LATE_START);
    run.counts.push(("failures", failures));
    run.counts.push(("late ranks", late.into()));
    run.counts.push(("sorts", sorts.into()));
    run
}

/// The parts that there are, beside the definition and a plain sort.
fn check_parts(load: &SortLoad, parts: &[Option<SortedRecords>], run: &mut Run<SortCheck>) {
    let inputs: Vec<SortRecords> = (0..parts.len()).map(|rank| load.records(rank)).collect();
    let lists: Vec<Vec<Tag>> =
        inputs.iter().zip(0..).map(|(input, rank)| sorted(&input.keys, rank).to_vec()).collect();
    let sizes = part_sizes(&lists, load.is_weighted, load.per_rank).expect("all splitters");
    let mut all: Vec<Tag> = lists.into_iter().flatten().collect();
    all.sort_unstable();
    let mut first = 0;
    for (rank, (part, &size)) in parts.iter().zip(&sizes).enumerate() {
        let wanted = &all[first..first + size];
        first += size;
        let Some(part) = part else { continue };
        let found = part.records.len();
        let words = || format!("rank {rank} has {found} records, not {size}: {load:?}");
        run.expect(SortCheck::Split, found == size, words);
        // The bytes of the part, by the place of each record in the input.
        let keys: Vec<u8> =
            wanted.iter().flat_map(|tag| (tag >> 48).to_be_bytes()[6..].to_vec()).collect();
        let value = |tag: &Tag| {
            let (from, at) = ((tag >> 32) as u16, *tag as u32 as usize * VALUE_BYTES);
            inputs[usize::from(from)].values.slice(at..at + VALUE_BYTES)
        };
        let values: Vec<u8> = wanted.iter().flat_map(value).collect();
        let is_right = part.records.keys == keys && part.records.values == values;
        run.expect(SortCheck::Sorted, is_right, || format!("rank {rank} of {load:?}"));
    }
}
