//! Records that are lost in the middle of others.
//!
//! A record's number is its place, so a lost record keeps its place, and the records behind it keep
//! their numbers. A segment with lost records states them itself, because it travels: to chunks, to
//! objects and to readers. The header's count is the number of records in front of the first lost
//! one. The place of the first record of each lost range, which is free, says how long the range is
//! and where the next one begins. Checksums cover both.
//!
//! ```text
//!  slot 0          k                   k + L        n
//!      +-----------+-------------------+------------+-------------------+------
//!      | held      | L u16, n u16, 0.. | held       | L' u16, 0 u16, 0. | held
//!      +-----------+-------------------+------------+-------------------+------
//!  count = k        L = 0: nothing behind is held    n = 0: no other range
//! ```

use core::ops::Range;

use bytes::{Bytes, BytesMut};

use crate::journal::Origin;
use crate::layout::{SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SegmentKind};
use crate::segment::{self, SealedSegment, SegmentHeader};

/// The records of a file behind its last full segments, or a part of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TailRecords {
    /// The records, one behind the other. Lost records are zeros.
    pub bytes: Bytes,
    /// The places of lost records in the tail: in order, apart from each other, none of them empty.
    /// A record that is not lost follows each range.
    pub lost: Vec<Range<usize>>,
}

impl From<Bytes> for TailRecords {
    fn from(bytes: Bytes) -> Self {
        Self { bytes, lost: Vec::new() }
    }
}

impl TailRecords {
    /// The places of the records that are not lost, for records of this length.
    pub fn held_ranges(&self, record_bytes: usize) -> impl Iterator<Item = Range<usize>> + '_ {
        held_ranges(self.bytes.len() / record_bytes, &self.lost)
    }

    /// Takes lost records from others of the same segment. Returns the places of the taken ones.
    pub fn take_lost(&mut self, other: &Self, record_bytes: usize) -> Vec<Range<usize>> {
        let mut bytes = BytesMut::from(&self.bytes[..]);
        let (mut taken, mut lost): (Vec<Range<usize>>, Vec<Range<usize>>) = Default::default();
        for range in &self.lost {
            let mut end = range.start;
            for held in other.held_ranges(record_bytes) {
                let both = held.start.max(end)..held.end.min(range.end);
                if both.is_empty() {
                    continue;
                }
                let place = both.start * record_bytes..both.end * record_bytes;
                bytes[place.clone()].copy_from_slice(&other.bytes[place]);
                lost.extend((end < both.start).then_some(end..both.start));
                end = both.end;
                taken.push(both);
            }
            lost.extend((end < range.end).then_some(end..range.end));
        }
        (self.bytes, self.lost) = (bytes.freeze(), lost);
        taken
    }

    /// Keeps the first records only, and no lost range at their end.
    pub fn truncate(&mut self, records: usize, record_bytes: usize) {
        let cut = self.lost.iter().find(|range| range.start < records && records <= range.end);
        let records = cut.map_or(records, |range| range.start);
        self.bytes.truncate(records.saturating_mul(record_bytes));
        self.lost.retain(|range| range.end < records);
    }
}

/// The places that are in no lost range. The ranges are in order and apart from each other.
pub fn held_ranges(slots: usize, lost: &[Range<usize>]) -> impl Iterator<Item = Range<usize>> + '_ {
    let starts = core::iter::once(0).chain(lost.iter().map(|range| range.end));
    let ends = lost.iter().map(|range| range.start).chain(core::iter::once(slots));
    let ranges = starts.zip(ends).map(move |(start, end)| start..end.min(slots));
    ranges.filter(|range| !range.is_empty())
}

/// The records of these places, one behind the other.
pub fn held_records(bytes: &Bytes, record_bytes: usize, lost: &[Range<usize>]) -> Bytes {
    if lost.is_empty() {
        return bytes.clone();
    }
    let mut records = BytesMut::with_capacity(bytes.len());
    for range in held_ranges(bytes.len() / record_bytes, lost) {
        records.extend_from_slice(&bytes[range.start * record_bytes..range.end * record_bytes]);
    }
    records.freeze()
}

/// Writes lost ranges into the places of a segment's records. Returns the count for its header.
/// `slots` is the number of records, lost ones included.
pub fn mark_lost(
    payload: &mut [u8],
    record_bytes: usize,
    slots: usize,
    lost: &[Range<usize>],
) -> u32 {
    for (at, range) in lost.iter().enumerate() {
        let place = &mut payload[range.start * record_bytes..range.end * record_bytes];
        place.fill(0);
        let next = lost.get(at + 1).map_or(0, |next| next.start);
        place[..2].copy_from_slice(&(range.len() as u16).to_le_bytes());
        place[2..4].copy_from_slice(&(next as u16).to_le_bytes());
    }
    lost.first().map_or(slots, |range| range.start) as u32
}

/// The lost ranges among these records of a segment whose header counts `count`. Where a range has
/// a length or a next place that no writer leaves, everything from the range on counts as lost.
pub fn lost_ranges(payload: &[u8], record_bytes: usize, count: u32) -> Vec<Range<usize>> {
    let slots = payload.len() / record_bytes;
    let (mut lost, mut at) = (Vec::new(), count as usize);
    while at < slots {
        let place = &payload[at * record_bytes..];
        let len = usize::from(u16::from_le_bytes([place[0], place[1]]));
        let next = usize::from(u16::from_le_bytes([place[2], place[3]]));
        let end = at + len;
        if len == 0 || end >= slots || (next != 0 && next <= end) {
            lost.push(at..slots);
            break;
        }
        lost.push(at..end);
        at = if next == 0 { slots } else { next };
    }
    lost
}

/// The full segment of this number, with records of which those at some places are lost.
pub fn seal_segment(
    origin: Origin,
    number: u32,
    records: &[u8],
    lost: &[Range<usize>],
) -> SealedSegment {
    let slots = records.len() / usize::from(origin.record_bytes);
    let mut bytes = Vec::with_capacity(SEGMENT_BYTES);
    bytes.resize(SEGMENT_HEADER_BYTES, 0);
    bytes.extend_from_slice(records);
    seal_slots(&mut bytes, origin, number, slots, lost);
    SealedSegment { kind: SegmentKind::Data, file: origin.file, number, bytes: Bytes::from(bytes) }
}

/// Makes a segment of a blank header and the records behind it. `slots` is the number of records,
/// lost ones included.
pub(crate) fn seal_slots(
    bytes: &mut Vec<u8>,
    origin: Origin,
    number: u32,
    slots: usize,
    lost: &[Range<usize>],
) {
    bytes.resize(SEGMENT_BYTES, 0);
    let size = usize::from(origin.record_bytes);
    let count = mark_lost(&mut bytes[SEGMENT_HEADER_BYTES..], size, slots, lost);
    let header = SegmentHeader {
        kind: SegmentKind::Data,
        entry_bytes: origin.record_bytes,
        file: origin.file,
        number,
        count,
        token: origin.token,
    };
    segment::seal(&header, bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(range: Range<usize>) -> Vec<Range<usize>> {
        core::iter::once(range).collect()
    }

    #[test]
    fn lost_ranges_come_back_from_the_places_that_they_leave_free() {
        let all: Vec<u8> = (0..100_u64).flat_map(u64::to_le_bytes).collect();
        for lost in [vec![], one(0..1), one(3..7), vec![0..2, 4..5, 50..90], one(97..99)] {
            let mut payload = all.clone();
            let count = mark_lost(&mut payload, 8, 100, &lost);
            assert_eq!(lost_ranges(&payload, 8, count), lost);
            let held: Vec<u8> = held_ranges(100, &lost)
                .flat_map(|range| all[range.start * 8..range.end * 8].to_vec())
                .collect();
            assert_eq!(held_records(&Bytes::from(payload), 8, &lost), held);
        }
    }

    #[test]
    fn everything_behind_is_lost_where_no_range_is_written() {
        assert_eq!(lost_ranges(&[0; 800], 8, 30), one(30..100));
        assert!(lost_ranges(&[9; 800], 8, 100).is_empty());
        // The next range cannot begin inside this one.
        let mut payload = [0; 800];
        payload[80..84].copy_from_slice(&[5, 0, 12, 0]);
        assert_eq!(lost_ranges(&payload, 8, 10), one(10..100));
    }

    #[test]
    fn lost_records_are_taken_from_a_copy_that_has_some_of_them() {
        let lost = vec![1..3, 5..9];
        let mut tail = TailRecords { bytes: Bytes::from(vec![1; 80]), lost };
        let copy = TailRecords { bytes: Bytes::from(vec![2; 56]), lost: one(2..6) };
        assert_eq!(tail.take_lost(&copy, 8), [1..2, 6..7]);
        assert_eq!(tail.lost, [2..3, 5..6, 7..9]);
        assert_eq!((tail.bytes[8], tail.bytes[16], tail.bytes[48]), (2, 1, 2));
    }

    #[test]
    fn a_tail_is_cut_without_an_end_that_is_lost() {
        let mut tail = TailRecords { bytes: Bytes::from(vec![1; 800]), lost: vec![3..5, 40..60] };
        tail.truncate(50, 8);
        assert_eq!((tail.bytes.len(), tail.lost), (40 * 8, one(3..5)));
    }
}
