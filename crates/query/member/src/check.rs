//! Whether the output of a sort is its input in order.
//!
//! Each rank summarises its input and its output, and one rank judges all summaries. A summary has
//! the sum of the hashes of all records, which is the same for any order of the records. A lost,
//! doubled or changed record changes the sum. Records that [`make_records`] has made carry their
//! number, so that a summary also tells whether equal keys kept their order.
//!
//! [`make_records`]: evenfall_query_burst::rows::make_records

use bytes::{BufMut, Bytes, BytesMut};
use evenfall_core::math::mix;
use evenfall_query_burst::pivots::KEY_BYTES;
use evenfall_query_burst::rows::record_number;
use evenfall_query_burst::sort::SortRecords;

use crate::files::rows;

/// A key and the number of its record.
type Place = ([u8; KEY_BYTES], u64);

/// What one rank has, before a sort or after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartSummary {
    /// Number of records.
    pub records: u64,
    /// The sum of the hashes of all records.
    pub sum: u64,
    /// Whether the keys ascend.
    pub is_ordered: bool,
    /// Whether equal keys have ascending numbers, if the records have numbers.
    pub is_stable: bool,
    /// The first and the last record; equal to each other and empty when there is none.
    ends: Option<[Place; 2]>,
}

/// Bytes of a summary.
const SUMMARY_BYTES: usize = 8 + 8 + 1 + 2 * (KEY_BYTES + 8);

fn hash(key: &[u8], value: &[u8]) -> u64 {
    let word = |word: &[u8]| word.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
    let words = key.chunks(8).chain(value.chunks(8)).map(word);
    words.fold(1, |hash, word| mix(hash ^ word))
}

impl PartSummary {
    /// Summarises records.
    pub fn of(records: &SortRecords) -> Self {
        let mut summary = Self { is_ordered: true, is_stable: true, ..Self::default() };
        let mut last: Option<Place> = None;
        for (key, value) in rows(records) {
            let place = (key.try_into().unwrap_or_default(), record_number(value));
            summary.records += 1;
            summary.sum = summary.sum.wrapping_add(hash(key, value));
            if let Some(last) = last {
                summary.is_ordered &= last.0 <= place.0;
                summary.is_stable &= last < place;
            }
            let first = summary.ends.map_or(place, |ends| ends[0]);
            summary.ends = Some([first, place]);
            last = Some(place);
        }
        summary
    }

    /// The bytes of the summary, for a gather.
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(SUMMARY_BYTES);
        bytes.put_u64_le(self.records);
        bytes.put_u64_le(self.sum);
        bytes.put_u8(u8::from(self.is_ordered) | u8::from(self.is_stable) << 1);
        for (key, number) in self.ends.unwrap_or_default() {
            bytes.put_slice(&key);
            bytes.put_u64_le(number);
        }
        bytes.freeze()
    }

    /// Reads a summary; `None` when the bytes are none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; SUMMARY_BYTES] = bytes.try_into().ok()?;
        let number = |at: usize| u64::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
        let place = |at: usize| {
            let key: [u8; KEY_BYTES] = core::array::from_fn(|i| bytes[at + i]);
            (key, number(at + KEY_BYTES))
        };
        let records = number(0);
        let ends = [place(17), place(17 + KEY_BYTES + 8)];
        Some(Self {
            records,
            sum: number(8),
            is_ordered: bytes[16] & 1 > 0,
            is_stable: bytes[16] & 2 > 0,
            ends: (records > 0).then_some(ends),
        })
    }
}

/// What the summaries of all ranks say about a sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SortVerdict {
    /// The keys ascend at each rank and from rank to rank.
    pub ordered: bool,
    /// The records are those of the input.
    pub same_records: bool,
    /// Equal keys kept the order of the input. Only numbered records tell.
    pub stable: bool,
}

/// Judges a sort by the summaries of all ranks, in the order of ranks.
pub fn judge_sort(before: &[PartSummary], after: &[PartSummary]) -> SortVerdict {
    let sums = |all: &[PartSummary]| {
        let sum = all.iter().fold(0u64, |sum, part| sum.wrapping_add(part.sum));
        (all.iter().map(|part| part.records).sum::<u64>(), sum)
    };
    let mut verdict = SortVerdict {
        ordered: after.iter().all(|part| part.is_ordered),
        same_records: sums(before) == sums(after),
        stable: after.iter().all(|part| part.is_stable),
    };
    let ends: Vec<_> = after.iter().filter_map(|part| part.ends).collect();
    for pair in ends.windows(2) {
        verdict.ordered &= pair[0][1].0 <= pair[1][0].0;
        verdict.stable &= pair[0][1] < pair[1][0];
    }
    verdict
}

/// The records in order, by a plain stable sort of all of them in one place.
pub fn sort_plainly(records: &SortRecords) -> SortRecords {
    let mut all: Vec<_> = rows(records).collect();
    all.sort_by_key(|row| row.0);
    SortRecords {
        keys: all.iter().flat_map(|row| row.0.iter().copied()).collect(),
        values: all.iter().flat_map(|row| row.1.iter().copied()).collect(),
    }
}
