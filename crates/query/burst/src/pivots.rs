//! Pivots: the few keys of each rank out of which the splitters of all ranks are chosen.
//!
//! A rank cannot look at the keys of all others. Each rank therefore draws **pivots** at equal
//! distances out of its sorted keys, and a **splitter** is the pivot up to which a share of all
//! records lies (section 2.3.3 of the thesis). Two rules differ in what a pivot stands for:
//!
//! ```text
//!  sorted keys of one rank, in s*M = 4 groups      |......a|......b|......c|......d|
//!  naive     a pivot is the last of its group       a: 1, b: 1, c: 1, d: 1
//!  weighted  and the first key is a pivot too       first: .5, a: 1, b: 1, c: 1, d: .5
//! ```
//!
//! The naive rule counts a whole group for each pivot, although about half of the group lies behind
//! the point where the list of all pivots is cut. All ranks err in the same direction, and the last
//! partition is a third too large with 120 pivots. The weighted rule counts half of the group on
//! each side of a pivot, and the errors cancel out: 6.9 % with 120 pivots (Table 2.2).
//!
//! Weights are whole numbers, in small parts of a record ([`RECORD_WEIGHT`]). A list states its
//! total, and the weight of each pivot follows from its place. Ranks may therefore hold different
//! numbers of records, or none.
//!
//! **Ties.** The source has none. Here a pivot is a [`Tag`], the key followed by rank and index of
//! its record. All tags differ, so the bound of partitions holds for any keys, and the sort is
//! stable.

use core::fmt::Debug;

use bytes::{BufMut, Bytes, BytesMut};

/// Bytes of a key.
pub const KEY_BYTES: usize = 10;
/// Bytes of a tag on the wire.
pub const TAG_BYTES: usize = 16;
/// Weight of one record. Shares of a list's weight are rounded up, and a group of a thousand ranks
/// adds a thousand such errors up. With a million units in half a record, the sum stays far below
/// the weight of a pivot. Rounded down, or in whole halves, the sum would lie below the exact one,
/// and splitters would come a pivot late: the largest partition of Table 2.2 would be 57 % too
/// large and not 34.
pub const RECORD_WEIGHT: u64 = 2 << 20;

/// A key, the rank of its record and the index of the record there, as one number: order of tags is
/// order of keys, and of ranks and indices among equal keys.
///
/// ```text
///  127                    48 47    32 31            0
///  | key, big-endian        | rank   | index         |
/// ```
pub type Tag = u128;

/// The tag of a record.
pub fn tag(key: &[u8], rank: u16, index: u32) -> Tag {
    let key = key.iter().fold(0u128, |number, &byte| number << 8 | u128::from(byte));
    key << 48 | u128::from(rank) << 32 | u128::from(index)
}

/// The key of a tag.
pub fn key(tag: Tag) -> [u8; KEY_BYTES] {
    let bytes = (tag >> 48).to_be_bytes();
    core::array::from_fn(|at| bytes[TAG_BYTES - KEY_BYTES + at])
}

/// Pivots of one sorted list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PivotList {
    /// Weight of the whole list, in parts of a record.
    pub total: u64,
    /// Ascending.
    pub tags: Vec<Tag>,
}

/// A pivot and the weight that it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WeightedPivot {
    /// The pivot.
    pub tag: Tag,
    /// In halves of records.
    pub weight: u64,
}

/// A sorted list out of which pivots are drawn.
pub trait SortedList {
    /// Number of its entries.
    fn len(&self) -> usize;
    /// Whether it has no entries.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Weight of all entries, in parts of a record.
    fn total(&self) -> u64;
    /// The entry at this weight, which is between 1 and the total: the last record within it, or
    /// the first pivot with which it is reached.
    fn at_weight(&self, weight: u64) -> Tag;
}

/// Sorted records.
impl SortedList for [Tag] {
    fn len(&self) -> usize {
        <[Tag]>::len(self)
    }

    fn total(&self) -> u64 {
        <[Tag]>::len(self) as u64 * RECORD_WEIGHT
    }

    fn at_weight(&self, weight: u64) -> Tag {
        // Rounded down: a key later, the largest partition with five pivots a rank would be 10.4 %
        // too large, and not 9.6 as in Table 2.2.
        self[((weight / RECORD_WEIGHT) as usize).saturating_sub(1)]
    }
}

/// Pivots of several lists, merged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergedPivots {
    /// Ascending by tag.
    pub pivots: Vec<WeightedPivot>,
    /// Weight up to and with each pivot.
    reached: Vec<u64>,
}

impl MergedPivots {
    /// Merges pivots.
    pub fn new(mut pivots: Vec<WeightedPivot>) -> Self {
        pivots.sort();
        let mut sum = 0;
        let add = |pivot: &WeightedPivot| {
            // Weights of another rank may be anything.
            sum = u64::saturating_add(sum, pivot.weight);
            sum
        };
        let reached = pivots.iter().map(add).collect();
        Self { pivots, reached }
    }

    /// Cuts the list at these ascending splitters: each part with the weight in front of it.
    pub fn cut(&self, splitters: &[Tag]) -> Vec<PivotGroup> {
        let below = |splitter: &Tag| self.pivots.partition_point(|pivot| pivot.tag < *splitter);
        let mut bounds: Vec<usize> = splitters.iter().map(below).collect();
        bounds.push(self.pivots.len());
        let mut begin = 0usize;
        let part = |end: usize| {
            let local_rank = begin.checked_sub(1).map_or(0, |last| self.reached[last]);
            let pivots = self.pivots[begin..end.max(begin)].to_vec();
            begin = end.max(begin);
            PivotGroup { total: self.total(), local_rank, pivots }
        };
        bounds.into_iter().map(part).collect()
    }
}

impl SortedList for MergedPivots {
    fn len(&self) -> usize {
        self.pivots.len()
    }

    fn total(&self) -> u64 {
        self.reached.last().copied().unwrap_or(0)
    }

    fn at_weight(&self, weight: u64) -> Tag {
        let at = self.reached.partition_point(|&reached| reached < weight);
        self.pivots[at.min(self.pivots.len() - 1)].tag
    }
}

/// The part of a sorter's pivots that another sorter ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PivotGroup {
    /// Weight of all pivots of the sender.
    pub total: u64,
    /// Weight of the pivots that the sender has in front of this part. With the naive rule and
    /// equal ranks this is a count of pivots, as in the source; with weights it must be their sum,
    /// which the source does not say.
    pub local_rank: u64,
    /// The part. Empty parts are sent too, because their local rank counts.
    pub pivots: Vec<WeightedPivot>,
}

/// A splitter with its number: splitter `i` is the first record of rank `i`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberedSplitter {
    /// Between 1 and the number of ranks less 1.
    pub number: u32,
    /// The first tag at or above which records belong to rank `number`.
    pub tag: Tag,
}

/// A rule by which pivots are drawn and splitters are chosen.
pub trait SplitterRule: Debug + Send + Sync {
    /// The name of the rule.
    fn name(&self) -> &'static str;

    /// Whether the first key of a list is a pivot too.
    fn takes_first(&self) -> bool;

    /// The weight up to and with the pivot at `place` of a list of `count` pivots.
    fn reached(&self, total: u64, count: usize, place: usize) -> u64;

    /// Whether splitter `number` of `parts` lies at or in front of a pivot with which this weight
    /// is reached.
    fn crosses(&self, reached: u64, number: u32, total: u64, parts: usize) -> bool {
        u128::from(reached) * parts as u128 >= u128::from(number) * u128::from(total)
    }

    /// The weight in front of a sorter's part: what all sorters, its own list too, have in front.
    /// `own` is the place of the sorter among them.
    fn own_rank(&self, local_ranks: &[u64], own: usize) -> u64 {
        let _ = own;
        local_ranks.iter().fold(0, |sum, &rank| sum.saturating_add(rank))
    }
}

/// A pivot stands for the group whose last key it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Naive;

impl SplitterRule for Naive {
    fn name(&self) -> &'static str {
        "naive"
    }

    fn takes_first(&self) -> bool {
        false
    }

    fn reached(&self, total: u64, count: usize, place: usize) -> u64 {
        share(total, place as u64 + 1, count as u64)
    }
}

/// A pivot stands for half of the group on each of its sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weighted;

impl SplitterRule for Weighted {
    fn name(&self) -> &'static str {
        "weighted"
    }

    fn takes_first(&self) -> bool {
        true
    }

    fn reached(&self, total: u64, count: usize, place: usize) -> u64 {
        let groups = count.saturating_sub(1).max(1) as u64;
        share(total, (2 * place as u64 + 1).min(2 * groups), 2 * groups)
    }
}

fn share(total: u64, part: u64, of: u64) -> u64 {
    (u128::from(total) * u128::from(part)).div_ceil(u128::from(of.max(1))) as u64
}

/// Draws the pivots of `groups` equal groups, or of one group an entry when there are fewer entries
/// than groups.
pub fn draw(
    rule: &dyn SplitterRule,
    list: &(impl SortedList + ?Sized),
    groups: usize,
) -> PivotList {
    let (total, groups) = (list.total(), groups.min(list.len()) as u64);
    if groups == 0 {
        return PivotList::default();
    }
    let first = rule.takes_first().then(|| list.at_weight(1));
    let last = |group: u64| {
        let weight = u128::from(total) * u128::from(group + 1) / u128::from(groups);
        list.at_weight((weight as u64).max(1))
    };
    PivotList { total, tags: first.into_iter().chain((0..groups).map(last)).collect() }
}

/// Merges lists of pivots, each pivot with the weight that the rule gives it.
pub fn merge(rule: &dyn SplitterRule, lists: &[PivotList]) -> MergedPivots {
    let weighted = |list: &PivotList| {
        let (total, count) = (list.total, list.tags.len());
        let reached =
            |place: Option<usize>| place.map_or(0, |place| rule.reached(total, count, place));
        let weight = |place: usize| reached(Some(place)) - reached(place.checked_sub(1));
        let pivot = |(place, &tag)| WeightedPivot { tag, weight: weight(place) };
        list.tags.iter().enumerate().map(pivot).collect::<Vec<_>>()
    };
    MergedPivots::new(lists.iter().flat_map(weighted).collect())
}

/// The splitters of `parts` ranks that a part of all pivots crosses. `rank` is the weight in front
/// of the part, `total` that of all pivots. The sorter of the first part also gives the splitters
/// of a group without records.
pub fn pick(
    rule: &dyn SplitterRule,
    part: &MergedPivots,
    rank: u64,
    total: u64,
    parts: usize,
) -> Vec<NumberedSplitter> {
    let numbers = 1..parts as u32;
    if total == 0 {
        let empty = |number| NumberedSplitter { number, tag: Tag::MAX };
        return numbers.map(empty).collect();
    }
    let mut splitters = Vec::new();
    let mut next =
        numbers.skip_while(|&number| rule.crosses(rank, number, total, parts)).peekable();
    for (pivot, reached) in part.pivots.iter().zip(&part.reached) {
        while let Some(number) = next
            .next_if(|&number| rule.crosses(rank.saturating_add(*reached), number, total, parts))
        {
            splitters.push(NumberedSplitter { number, tag: pivot.tag });
        }
    }
    splitters
}

/// The bytes of a list of pivots: total (8 bytes, little-endian), then the tags (16 bytes each,
/// big-endian).
pub fn encode_list(list: &PivotList) -> Bytes {
    let mut bytes = BytesMut::with_capacity(8 + TAG_BYTES * list.tags.len());
    bytes.put_u64_le(list.total);
    list.tags.iter().for_each(|&tag| bytes.put_u128(tag));
    bytes.freeze()
}

/// Reads a list of pivots; `None` when the bytes are none, or the tags do not ascend.
pub fn decode_list(bytes: &[u8]) -> Option<PivotList> {
    let (total, tags) = bytes.split_first_chunk()?;
    let (total, tags) = (u64::from_le_bytes(*total), decode_tags(tags)?);
    ((total == 0) == tags.is_empty()).then_some(PivotList { total, tags })
}

/// The bytes of splitters: their tags in order.
pub fn encode_tags(tags: &[Tag]) -> Bytes {
    tags.iter().flat_map(|tag| tag.to_be_bytes()).collect()
}

/// Reads ascending tags.
pub fn decode_tags(bytes: &[u8]) -> Option<Vec<Tag>> {
    let (tags, rest) = bytes.as_chunks::<TAG_BYTES>();
    let tags: Vec<Tag> = tags.iter().map(|tag| Tag::from_be_bytes(*tag)).collect();
    (rest.is_empty() && tags.is_sorted()).then_some(tags)
}

/// The bytes of numbered splitters: number (4 bytes, little-endian) and tag of each.
pub fn encode_numbered(splitters: &[NumberedSplitter]) -> Bytes {
    let mut bytes = BytesMut::with_capacity((4 + TAG_BYTES) * splitters.len());
    for splitter in splitters {
        bytes.put_u32_le(splitter.number);
        bytes.put_u128(splitter.tag);
    }
    bytes.freeze()
}

/// Reads numbered splitters.
pub fn decode_numbered(bytes: &[u8]) -> Option<Vec<NumberedSplitter>> {
    let (entries, rest) = bytes.as_chunks::<{ 4 + TAG_BYTES }>();
    let entry = |entry: &[u8; 4 + TAG_BYTES]| {
        let (number, tag) = entry.split_first_chunk()?;
        let (number, tag) = (u32::from_le_bytes(*number), Tag::from_be_bytes(tag.try_into().ok()?));
        Some(NumberedSplitter { number, tag })
    };
    if !rest.is_empty() {
        return None;
    }
    entries.iter().map(entry).collect()
}

/// The bytes of a part of a sorter's pivots. Equal weights in a row are one run, because all inner
/// pivots of equal ranks weigh the same.
///
/// ```text
///  0       8            16     20
///  | total | local rank | runs | count (4), weight (8) of each run | tags (16 each)
/// ```
pub fn encode_group(group: &PivotGroup) -> Bytes {
    let runs = group.pivots.chunk_by(|a, b| a.weight == b.weight);
    let count = runs.clone().count();
    let mut bytes = BytesMut::with_capacity(20 + 12 * count + TAG_BYTES * group.pivots.len());
    bytes.put_u64_le(group.total);
    bytes.put_u64_le(group.local_rank);
    bytes.put_u32_le(count as u32);
    for run in runs {
        bytes.put_u32_le(run.len() as u32);
        bytes.put_u64_le(run[0].weight);
    }
    group.pivots.iter().for_each(|pivot| bytes.put_u128(pivot.tag));
    bytes.freeze()
}

/// Reads a part of a sorter's pivots.
pub fn decode_group(bytes: &[u8]) -> Option<PivotGroup> {
    let (total, bytes) = bytes.split_first_chunk()?;
    let (local_rank, bytes) = bytes.split_first_chunk()?;
    let (count, bytes) = bytes.split_first_chunk()?;
    let (total, local_rank) = (u64::from_le_bytes(*total), u64::from_le_bytes(*local_rank));
    let (runs, tags) = bytes.split_at_checked(12 * u32::from_le_bytes(*count) as usize)?;
    let tags = decode_tags(tags)?;
    let mut pivots = Vec::with_capacity(tags.len());
    let mut tags = tags.into_iter();
    for run in runs.as_chunks::<12>().0 {
        let (count, weight) = run.split_first_chunk()?;
        let weight = u64::from_le_bytes(weight.try_into().ok()?);
        for _ in 0..u32::from_le_bytes(*count) {
            pivots.push(WeightedPivot { tag: tags.next()?, weight });
        }
    }
    let sum = pivots.iter().try_fold(local_rank, |sum, pivot| sum.checked_add(pivot.weight))?;
    (tags.next().is_none() && sum <= total).then_some(PivotGroup { total, local_rank, pivots })
}
