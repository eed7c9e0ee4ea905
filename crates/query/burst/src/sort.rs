//! MilliSort: records of all ranks in order, each rank with its share of them.
//!
//! ```text
//!  keys   --sort--> sorted keys --+--> partition --> splitters --> key shuffle --> merge --+
//!                      |          |                     |                                  v
//!  values -------------+--permute-+---------------------+--> value shuffle ----------> place
//!  values
//! ```
//!
//! A rank begins without asking anybody, and waits only for the data that a step names: there is
//! no coordinator of the sort, and no barrier. A key is 10 bytes and an index; its value follows
//! the key only twice, into the order of keys before the value shuffle, and to its place after it
//! (sections 2.3.1 to 2.3.6 of the thesis).
//!
//! The sort is stable: equal keys come out in the order of their ranks, and of their places there.
//! The bytes that come out do not depend on the order in which messages arrive.

use std::sync::Arc;

use bytes::Bytes;
use evenfall_collectives_machine::group::{Collective, CollectiveOutcome};

use crate::burst::{Actions, BurstProgram, WorkKind, WorkResult, take_result};
use crate::partition::{LevelCounts, PARTITION_JOBS, PARTITION_STEPS, Partition, PartitionConfig};
use crate::pivots::{KEY_BYTES, Tag, Weighted, key, tag};

/// Bytes of a value in all published runs: a record has 100 bytes.
pub const VALUE_BYTES: usize = 90;

const KEY_SHUFFLE: u32 = PARTITION_STEPS;
const VALUE_SHUFFLE: u32 = PARTITION_STEPS + 1;

const SORT: u32 = 0;
const PERMUTE: u32 = 1;
const MERGE: u32 = 2;
const PLACE: u32 = 3;

/// The phases that a sort reports.
pub const PHASES: [&str; 5] = ["local_sort", "partition", "pivot_shuffle", "shuffle", "rearrange"];

/// Records: the keys in one block, and the values in another in the same order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SortRecords {
    /// 10 bytes each.
    pub keys: Bytes,
    /// [`SortConfig::value_bytes`] bytes each.
    pub values: Bytes,
}

impl SortRecords {
    /// Number of records.
    pub fn len(&self) -> usize {
        self.keys.len() / KEY_BYTES
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

/// How a sort runs. All ranks state the same.
#[derive(Clone, Debug)]
pub struct SortConfig {
    /// Bytes of each value.
    pub value_bytes: usize,
    /// How splitters are found.
    pub partition: PartitionConfig,
}

impl SortConfig {
    /// Records of 100 bytes, and one weighted pivot for each rank, on this many levels.
    pub fn weighted(levels: usize) -> Self {
        let partition = PartitionConfig { levels, pivots_per_rank: 1, rule: Arc::new(Weighted) };
        Self { value_bytes: VALUE_BYTES, partition }
    }
}

/// What a rank has after a sort.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortedRecords {
    /// The records of this rank's part, in order. All of them are below those of the next rank.
    pub records: SortRecords,
    /// What this rank did on each level of the partition.
    pub levels: Vec<LevelCounts>,
}

/// Where a received record lies: the sender's place and the place in its message.
type Source = (u16, u32);

/// One rank of a sort.
#[derive(Debug)]
pub struct MilliSort {
    config: SortConfig,
    me: u16,
    all: Arc<[u16]>,
    records: SortRecords,
    partition: Partition,
    sorted: Arc<[Tag]>,
    /// The first record of each rank among the sorted ones, then their number.
    bounds: Option<Vec<usize>>,
    /// The values in the order of their keys.
    permuted: Option<Bytes>,
    key_counts: Vec<usize>,
    order: Option<(Vec<u8>, Vec<Source>)>,
    values: Option<Vec<Bytes>>,
    keys: Option<Vec<u8>>,
}

impl MilliSort {
    /// The sort of these records as rank `me` of `ranks` takes part in it.
    ///
    /// # Panics
    /// When the records are not whole, or number more than 2^32: the caller has made them.
    pub fn new(config: SortConfig, me: u16, ranks: usize, records: SortRecords) -> Self {
        let count = records.len();
        assert_eq!(records.keys.len(), count * KEY_BYTES, "whole keys");
        assert_eq!(records.values.len(), count * config.value_bytes, "a value a key");
        assert!(u32::try_from(count).is_ok(), "an index has 32 bits");
        Self {
            partition: Partition::new(config.partition.clone(), me, ranks),
            config,
            me,
            all: (0..ranks as u16).collect(),
            records,
            sorted: Arc::default(),
            bounds: None,
            permuted: None,
            key_counts: Vec::new(),
            order: None,
            values: None,
            keys: None,
        }
    }

    fn rank_of(&self, place: usize) -> u16 {
        self.all[place]
    }

    /// The splitters are known: every rank gets its keys at once.
    fn send_keys(&mut self, splitters: &[Tag], out: &mut Actions<SortedRecords>) {
        let first = |splitter: &Tag| self.sorted.partition_point(|record| record < splitter);
        let mut bounds = vec![0];
        bounds.extend(splitters.iter().map(first));
        bounds.push(self.sorted.len());
        let part = |bound: &[usize]| {
            let tags = &self.sorted[bound[0]..bound[1]];
            tags.iter().flat_map(|&record| key(record)).collect()
        };
        let messages = bounds.windows(2).map(part).collect();
        out.call(KEY_SHUFFLE, self.all.clone(), Collective::Shuffle { messages });
        self.bounds = Some(bounds);
        self.send_values(out);
    }

    /// Sends the values, once they are in order and their receivers are known.
    fn send_values(&mut self, out: &mut Actions<SortedRecords>) {
        let (Some(bounds), Some(values)) = (&self.bounds, &self.permuted) else { return };
        let bytes = self.config.value_bytes;
        let part = |bound: &[usize]| values.slice(bound[0] * bytes..bound[1] * bytes);
        let messages = bounds.windows(2).map(part).collect();
        out.call(VALUE_SHUFFLE, self.all.clone(), Collective::Shuffle { messages });
        self.permuted = None;
    }

    fn merge_keys(
        &mut self,
        lists: Vec<Bytes>,
        out: &mut Actions<SortedRecords>,
    ) -> Result<(), u16> {
        for (place, list) in lists.iter().enumerate() {
            let (keys, rest) = list.as_chunks::<KEY_BYTES>();
            if !rest.is_empty() || !keys.is_sorted() {
                return Err(self.rank_of(place));
            }
            self.key_counts.push(keys.len());
        }
        let count = self.key_counts.iter().sum();
        out.work(MERGE, WorkKind::MergeKeys, count, move || merged(&lists));
        Ok(())
    }

    /// Copies each value to its place, once the order is known and all values are here.
    fn place_values(&mut self, out: &mut Actions<SortedRecords>) -> Result<(), u16> {
        let bytes = self.config.value_bytes;
        let (Some(_), Some(values)) = (&self.order, &self.values) else { return Ok(()) };
        let right = |(value, &count): (&Bytes, &usize)| value.len() == count * bytes;
        if let Some(wrong) = values.iter().zip(&self.key_counts).position(|both| !right(both)) {
            return Err(self.rank_of(wrong));
        }
        let (Some((keys, order)), Some(values)) = (self.order.take(), self.values.take()) else {
            return Ok(());
        };
        self.keys = Some(keys);
        out.begin_phase("rearrange");
        out.work(PLACE, WorkKind::PlaceValues, order.len(), move || {
            let mut placed = Vec::with_capacity(order.len() * bytes);
            for (from, at) in order {
                let at = at as usize * bytes;
                placed.extend_from_slice(&values[usize::from(from)][at..at + bytes]);
            }
            placed
        });
        Ok(())
    }
}

impl BurstProgram for MilliSort {
    type Output = SortedRecords;

    const STEPS: u32 = PARTITION_STEPS + 2;

    fn begin(&mut self, out: &mut Actions<SortedRecords>) {
        out.begin_phase("local_sort");
        let (keys, me) = (self.records.keys.clone(), self.me);
        out.work(SORT, WorkKind::SortKeys, self.records.len(), move || sorted(&keys, me));
    }

    fn here(
        &mut self,
        step: u32,
        outcome: CollectiveOutcome,
        out: &mut Actions<SortedRecords>,
    ) -> Result<(), u16> {
        match (step, outcome) {
            (KEY_SHUFFLE, CollectiveOutcome::All(lists)) => self.merge_keys(lists, out),
            (VALUE_SHUFFLE, CollectiveOutcome::All(values)) => {
                out.end_phase("shuffle");
                self.values = Some(values);
                self.place_values(out)
            }
            (_, outcome) => {
                if let Some(splitters) = self.partition.here(step, outcome, out)? {
                    out.end_phase("partition");
                    out.begin_phase("shuffle");
                    self.send_keys(&splitters, out);
                }
                Ok(())
            }
        }
    }

    fn worked(
        &mut self,
        job: u32,
        result: WorkResult,
        out: &mut Actions<SortedRecords>,
    ) -> Result<(), u16> {
        match job {
            PARTITION_JOBS.. => self.partition.worked(job, result, out)?,
            SORT => {
                self.sorted = take_result::<Arc<[Tag]>>(result);
                out.end_phase("local_sort");
                out.begin_phase("partition");
                self.partition.begin(&self.sorted, out);
                let (sorted, values) = (self.sorted.clone(), self.records.values.clone());
                let bytes = self.config.value_bytes;
                out.work(PERMUTE, WorkKind::PermuteValues, sorted.len(), move || {
                    permuted(&sorted, &values, bytes)
                });
            }
            PERMUTE => {
                self.permuted = Some(take_result::<Bytes>(result));
                self.records = SortRecords::default();
                self.send_values(out);
            }
            MERGE => {
                self.order = Some(take_result::<(Vec<u8>, Vec<Source>)>(result));
                self.place_values(out)?;
            }
            _ => {
                out.end_phase("rearrange");
                let values = take_result::<Vec<u8>>(result).into();
                let keys = self.keys.take().unwrap_or_default().into();
                let records = SortRecords { keys, values };
                out.finish(SortedRecords { records, levels: self.partition.counts().to_vec() });
            }
        }
        Ok(())
    }
}

/// Sorts keys, each with its rank and index. Numbers of 16 bytes sort in the registers of the
/// processor; the index makes equal keys differ, so that an unstable sort keeps their order.
pub fn sorted(keys: &Bytes, rank: u16) -> Arc<[Tag]> {
    let (keys, _) = keys.as_chunks::<KEY_BYTES>();
    let mut tags: Vec<Tag> =
        keys.iter().zip(0..).map(|(key, index)| tag(key, rank, index)).collect();
    tags.sort_unstable();
    tags.into()
}

/// Copies values into the order of their keys.
fn permuted(sorted: &[Tag], values: &Bytes, bytes: usize) -> Bytes {
    let mut permuted = Vec::with_capacity(values.len());
    for &record in sorted {
        let at = record as u32 as usize * bytes;
        permuted.extend_from_slice(&values[at..at + bytes]);
    }
    permuted.into()
}

/// Merges sorted lists of keys. The standard library's stable sort finds the sorted runs and merges
/// them.
fn merged(lists: &[Bytes]) -> (Vec<u8>, Vec<Source>) {
    let mut all = Vec::with_capacity(lists.iter().map(|list| list.len() / KEY_BYTES).sum());
    for (list, from) in lists.iter().zip(0..) {
        let (keys, _) = list.as_chunks::<KEY_BYTES>();
        all.extend(keys.iter().zip(0..).map(|(key, at)| tag(key, from, at)));
    }
    all.sort();
    let keys = all.iter().flat_map(|&record| key(record)).collect();
    let source = |&record: &Tag| ((record >> 32) as u16, record as u32);
    (keys, all.iter().map(source).collect())
}
