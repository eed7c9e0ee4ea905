//! The recursive partition: how all ranks learn the splitters without anybody seeing all pivots.
//!
//! With `M` ranks there are `M * M` pivots. One rank that sorts all of them is the bottleneck from
//! a hundred ranks on. So every tenth rank is a **sorter** of the pivots of its group of ten, and
//! the sorters sort the pivots among themselves as the ranks sort their keys: by pivots of pivots
//! (section 2.3.4 of the thesis, Figure 2.3). With two levels and 100 ranks:
//!
//! ```text
//!  100 ranks      100 pivots each
//!       | gather in groups of ten
//!  10 sorters     1,000 pivots each, 10 level-2 pivots each
//!       | gather
//!  coordinator    100 level-2 pivots: 9 level-2 splitters
//!       | broadcast
//!  10 sorters each cuts its 1,000 pivots in 10 groups; pivot shuffle; each sums the local ranks
//!       |         of its 10 groups, knows its own rank, and emits the splitters that it crosses
//!       | all-gather: 99 splitters
//!  100 ranks      broadcast in groups of ten
//! ```
//!
//! Rank 0 is the first sorter on every level and the coordinator above the last. With one level all
//! pivots go to the coordinator. With three levels the sorters of the first level are in groups of
//! ten again.

use std::sync::Arc;

use bytes::Bytes;
use evenfall_collectives_machine::group::{Collective, CollectiveOutcome};

use crate::burst::{Actions, WorkKind, WorkResult, take_result};
use crate::pivots::{
    MergedPivots, NumberedSplitter, PivotGroup, PivotList, SortedList, SplitterRule, Tag,
    decode_group, decode_list, decode_numbered, decode_tags, draw, encode_group, encode_list,
    encode_numbered, encode_tags, merge, pick,
};

/// Ranks below one sorter, and sorters below one sorter of the next level.
pub const REDUCTION: usize = 10;
/// Levels at most: three levels serve ten thousand ranks.
pub const LEVELS_MAX: usize = 3;
/// Steps of each level.
pub const LEVEL_STEPS: u32 = 4;
/// Steps of a partition.
pub const PARTITION_STEPS: u32 = LEVEL_STEPS * LEVELS_MAX as u32;

/// Jobs of each level.
const LEVEL_JOBS: u32 = 2;
/// The first job of a partition. The jobs of its owner have lower numbers.
pub const PARTITION_JOBS: u32 = 1 << 8;
/// A sorter merges the pivots of its group.
const MERGE_GROUP: u32 = 0;
/// A sorter merges its part of all pivots.
const MERGE_PART: u32 = 1;

const GATHER: u32 = 0;
/// The step of a level in which sorters send each other their pivots.
pub const PIVOT_SHUFFLE: u32 = 1;
const ALL_GATHER: u32 = 2;
const BROADCAST: u32 = 3;

/// The phase of the pivot shuffle.
pub const PIVOT_SHUFFLE_PHASE: &str = "pivot_shuffle";

/// What one rank did on one level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelCounts {
    /// Pivots that the rank drew.
    pub drawn: usize,
    /// Pivots that the rank merged as a sorter or as the coordinator.
    pub merged: usize,
    /// Splitters that the rank picked.
    pub picked: usize,
}

/// A sorter's part of all pivots of a level.
struct RankedPart {
    merged: MergedPivots,
    /// The weight of all pivots in front of the part.
    rank: u64,
    /// The weight of all pivots.
    total: u64,
}

/// How a partition runs. All ranks state the same.
#[derive(Clone, Debug)]
pub struct PartitionConfig {
    /// Levels: 1 to [`LEVELS_MAX`].
    pub levels: usize,
    /// Pivots that a rank draws for each rank.
    pub pivots_per_rank: usize,
    /// How pivots are drawn and splitters chosen.
    pub rule: Arc<dyn SplitterRule>,
}

/// One rank of a partition.
#[derive(Debug)]
pub struct Partition {
    config: PartitionConfig,
    me: u16,
    /// The number of its first step among the steps of its owner.
    first_step: u32,
    /// The ranks that take part in each level: every tenth of the level before.
    sets: Vec<Arc<[u16]>>,
    /// The merged pivots of each level at which this rank is a sorter or the coordinator.
    merged: Vec<MergedPivots>,
    counts: Vec<LevelCounts>,
}

impl Partition {
    /// The partition as the rank `me` of `ranks` takes part in it.
    pub fn new(config: PartitionConfig, me: u16, ranks: usize) -> Self {
        let levels = config.levels.clamp(1, LEVELS_MAX);
        let set = |level: u32| (0..ranks as u16).step_by(REDUCTION.pow(level)).collect();
        let sets: Vec<Arc<[u16]>> = (0..levels as u32).map(set).collect();
        let (merged, counts) = (Vec::new(), vec![LevelCounts::default(); levels]);
        Self { config, me, first_step: 0, sets, merged, counts }
    }

    /// Numbers the steps from this one on, for an owner with several partitions or earlier steps.
    #[must_use]
    pub fn from_step(self, first_step: u32) -> Self {
        Self { first_step, ..self }
    }

    /// What this rank did on each level.
    pub fn counts(&self) -> &[LevelCounts] {
        &self.counts
    }

    fn is_last(&self, level: usize) -> bool {
        level + 1 == self.sets.len()
    }

    /// The ranks whose pivots go to one sorter, this rank among them.
    fn group(&self, level: usize) -> Arc<[u16]> {
        let set = &self.sets[level];
        if self.is_last(level) {
            return set.clone();
        }
        let place = set.partition_point(|&rank| rank < self.me);
        let first = place / REDUCTION * REDUCTION;
        set[first..set.len().min(first + REDUCTION)].into()
    }

    fn step(&self, level: usize, kind: u32) -> u32 {
        self.first_step + level as u32 * LEVEL_STEPS + kind
    }

    /// Begins with the sorted records of this rank.
    pub fn begin<O>(&mut self, records: &[Tag], out: &mut Actions<O>) {
        self.descend(0, records, out);
    }

    fn descend<O>(
        &mut self,
        level: usize,
        list: &(impl SortedList + ?Sized),
        out: &mut Actions<O>,
    ) {
        let groups = self.config.pivots_per_rank.max(1) * self.sets[level].len();
        let pivots = draw(&*self.config.rule, list, groups);
        self.counts[level].drawn = pivots.tags.len();
        let group = self.group(level);
        let is_root = group[0] == self.me;
        let body = encode_list(&pivots);
        let gather = Collective::Gather { root: 0, body };
        out.call(self.step(level, GATHER), group.clone(), gather);
        if !is_root {
            let broadcast = Collective::Broadcast { root: 0, body: Bytes::new() };
            out.call(self.step(level, BROADCAST), group, broadcast);
        }
    }

    /// Takes the result of a step. The result is the splitters of all ranks, once they are here.
    ///
    /// # Errors
    /// The rank whose bytes make no sense.
    pub fn here<O>(
        &mut self,
        step: u32,
        outcome: CollectiveOutcome,
        out: &mut Actions<O>,
    ) -> Result<Option<Vec<Tag>>, u16> {
        let Some(step) = step.checked_sub(self.first_step) else { return Ok(None) };
        let level = (step / LEVEL_STEPS) as usize;
        if level >= self.sets.len() {
            return Ok(None);
        }
        match (step % LEVEL_STEPS, outcome) {
            (GATHER, CollectiveOutcome::All(lists)) => self.merge_pivots(level, &lists, out)?,
            (PIVOT_SHUFFLE, CollectiveOutcome::All(parts)) => {
                self.rank_pivots(level, &parts, out)?
            }
            (ALL_GATHER, CollectiveOutcome::All(parts)) => self.collect(level, &parts, out)?,
            (BROADCAST, CollectiveOutcome::One(body)) => return self.ascend(level, &body, out),
            _ => {}
        }
        Ok(None)
    }

    /// A sorter has the pivots of its group, or the coordinator those of all sorters.
    fn merge_pivots<O>(
        &mut self,
        level: usize,
        lists: &[Bytes],
        out: &mut Actions<O>,
    ) -> Result<(), u16> {
        let group = self.group(level);
        let list = |(body, &rank): (&Bytes, &u16)| decode_list(body).ok_or(rank);
        let lists = lists.iter().zip(&*group).map(list).collect::<Result<Vec<_>, _>>()?;
        let items = lists.iter().map(|list| list.tags.len()).sum();
        let (job, rule) = (Self::number_job(level, MERGE_GROUP), self.config.rule.clone());
        out.work(job, WorkKind::MergePivots, items, move || merge(&*rule, &lists));
        Ok(())
    }

    fn number_job(level: usize, kind: u32) -> u32 {
        PARTITION_JOBS + level as u32 * LEVEL_JOBS + kind
    }

    /// Takes the result of a job, which is one of those from [`PARTITION_JOBS`] on.
    ///
    /// # Errors
    /// The own rank, when the rule of the pivots finds no right list of splitters.
    pub fn worked<O>(
        &mut self,
        job: u32,
        result: WorkResult,
        out: &mut Actions<O>,
    ) -> Result<(), u16> {
        let job = job - PARTITION_JOBS;
        let level = (job / LEVEL_JOBS) as usize;
        match job % LEVEL_JOBS {
            MERGE_GROUP => self.pass_merged(level, take_result(result), out),
            _ => {
                self.pick_splitters(level, &take_result(result), out);
                Ok(())
            }
        }
    }

    /// The pivots of a group are merged. A sorter draws pivots of them for the next level. The
    /// coordinator picks the splitters of the last level.
    fn pass_merged<O>(
        &mut self,
        level: usize,
        merged: MergedPivots,
        out: &mut Actions<O>,
    ) -> Result<(), u16> {
        self.counts[level].merged = merged.len();
        if !self.is_last(level) {
            self.merged.push(merged.clone());
            self.descend(level + 1, &merged, out);
            return Ok(());
        }
        let (parts, total) = (self.sets[level].len(), merged.total());
        let picked = pick(&*self.config.rule, &merged, 0, total, parts);
        self.counts[level].picked = picked.len();
        let body = encode_tags(&in_order(picked, parts).ok_or(self.me)?);
        let broadcast = Collective::Broadcast { root: 0, body };
        out.call(self.step(level, BROADCAST), self.group(level), broadcast);
        Ok(())
    }

    /// The splitters of a level are here. On a level above the first they cut the pivots of the
    /// sorters.
    fn ascend<O>(
        &mut self,
        level: usize,
        body: &Bytes,
        out: &mut Actions<O>,
    ) -> Result<Option<Vec<Tag>>, u16> {
        let set = self.sets[level].clone();
        let splitters = decode_tags(body).filter(|tags| tags.len() + 1 == set.len());
        let splitters = splitters.ok_or(self.group(level)[0])?;
        let Some(below) = level.checked_sub(1) else { return Ok(Some(splitters)) };
        let messages = self.merged[below].cut(&splitters).iter().map(encode_group).collect();
        out.begin_phase(PIVOT_SHUFFLE_PHASE);
        out.call(self.step(below, PIVOT_SHUFFLE), set, Collective::Shuffle { messages });
        Ok(None)
    }

    /// A sorter has its part of all pivots, and sums up what lies in front of it.
    fn rank_pivots<O>(
        &mut self,
        level: usize,
        parts: &[Bytes],
        out: &mut Actions<O>,
    ) -> Result<(), u16> {
        out.end_phase(PIVOT_SHUFFLE_PHASE);
        let sorters = self.sets[level + 1].clone();
        let part = |(body, &rank): (&Bytes, &u16)| decode_group(body).ok_or(rank);
        let parts = parts.iter().zip(&*sorters).map(part).collect::<Result<Vec<_>, _>>()?;
        let own = sorters.partition_point(|&rank| rank < self.me);
        let local_ranks: Vec<u64> = parts.iter().map(|part| part.local_rank).collect();
        let rank = self.config.rule.own_rank(&local_ranks, own);
        let total = parts.iter().fold(0u64, |sum, part| sum.saturating_add(part.total));
        let items = parts.iter().map(|part| part.pivots.len()).sum();
        out.work(Self::number_job(level, MERGE_PART), WorkKind::MergePivots, items, move || {
            let pivots = |part: PivotGroup| part.pivots;
            let merged = MergedPivots::new(parts.into_iter().flat_map(pivots).collect());
            RankedPart { merged, rank, total }
        });
        Ok(())
    }

    /// A sorter knows what lies in front of its part, and picks the splitters that the part
    /// crosses.
    fn pick_splitters<O>(&mut self, level: usize, part: &RankedPart, out: &mut Actions<O>) {
        let sorters = self.sets[level + 1].clone();
        let RankedPart { merged, rank, total } = part;
        // The first sorter alone gives the splitters of a group without records.
        let picked = if *total == 0 && sorters[0] != self.me {
            Vec::new()
        } else {
            pick(&*self.config.rule, merged, *rank, *total, self.sets[level].len())
        };
        self.counts[level].picked = picked.len();
        let body = encode_numbered(&picked);
        out.call(self.step(level, ALL_GATHER), sorters, Collective::AllGather { body });
    }

    /// A sorter has all splitters of its level, and tells them its group.
    fn collect<O>(
        &mut self,
        level: usize,
        parts: &[Bytes],
        out: &mut Actions<O>,
    ) -> Result<(), u16> {
        let sorters = &self.sets[level + 1];
        let mut all = Vec::new();
        for (body, &rank) in parts.iter().zip(&**sorters) {
            all.extend(decode_numbered(body).ok_or(rank)?);
        }
        let tags = in_order(all, self.sets[level].len()).ok_or(self.me)?;
        let broadcast = Collective::Broadcast { root: 0, body: encode_tags(&tags) };
        out.call(self.step(level, BROADCAST), self.group(level), broadcast);
        Ok(())
    }
}

/// The tags of splitters 1 to `parts` less 1; `None` when one is missing or comes twice, or the
/// tags do not ascend.
fn in_order(mut splitters: Vec<NumberedSplitter>, parts: usize) -> Option<Vec<Tag>> {
    splitters.sort_by_key(|splitter| splitter.number);
    let numbers = splitters.iter().map(|splitter| splitter.number);
    let tags: Vec<Tag> = splitters.iter().map(|splitter| splitter.tag).collect();
    (numbers.eq(1..parts as u32) && tags.is_sorted()).then_some(tags)
}

/// The splitters that a partition finds out of all lists of pivots, in one place. The recursive
/// partition gives the same splitters, because ranks of pivots are exact; only the work is spread.
/// Studies of balance use this function.
///
/// # Errors
/// The number of splitters that the rule found, when it is not that of all splitters.
pub fn splitters(
    rule: &dyn SplitterRule,
    lists: &[PivotList],
    ranks: usize,
) -> Result<Vec<Tag>, usize> {
    let merged = merge(rule, lists);
    let picked = pick(rule, &merged, 0, merged.total(), ranks);
    let found = picked.len();
    in_order(picked, ranks).ok_or(found)
}
