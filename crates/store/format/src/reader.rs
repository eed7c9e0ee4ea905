//! Reading one file: by number, by time, by range.
//!
//! A read works on a snapshot of the file's end: number of records, open segment and open index
//! node. The reader asks for full segments one at a time, from the cache, a chunk or an object. A
//! read therefore sees completed appends only, and the same code reads on the primary and on a node
//! that has only objects.

use core::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::appender::{Appender, Resumption, summary_of};
use crate::error::{Error, Result};
use crate::index::{
    Bound, Builder, Geometry, IndexNode, IndexSummary, IndexView, NodeSource, partition, summarise,
};
use crate::layout::{FileId, Layout, SEGMENT_HEADER_BYTES, SegmentKind, record_time};
use crate::lost_records::{TailRecords, held_records, lost_ranges};
use crate::schema::Schema;
use crate::segment;

/// A source of full segments.
pub trait Segments {
    /// The segment, whole and checked.
    ///
    /// # Errors
    /// The reason why the segment cannot be read; [`Error::Damaged`] when no copy is whole.
    fn segment(&mut self, kind: SegmentKind, file: FileId, number: u32) -> Result<Bytes>;

    /// Announces that these data segments will be read in order, so that a remote source can fetch
    /// them in advance.
    fn expect(&mut self, file: FileId, numbers: Range<u32>) {
        let _ = (file, numbers);
    }
}

/// The end of a file at one moment.
#[derive(Clone, Debug)]
pub struct FileEndSnapshot {
    /// The file.
    pub file: FileId,
    /// First record that is kept.
    pub first: u64,
    /// Records ever appended.
    pub records: u64,
    /// Arithmetic of records.
    pub layout: Layout,
    /// Arithmetic of the index.
    pub geometry: Geometry,
    /// Written index nodes.
    pub nodes: u32,
    /// Times at which the trees of the written nodes begin; empty for a file in objects, which do
    /// not state them.
    pub begins_ns: Arc<Vec<i64>>,
    /// Entries of the open index node.
    pub entries: Arc<Vec<IndexSummary>>,
    /// Records of the open segment.
    pub tail: TailRecords,
}

impl FileEndSnapshot {
    /// The snapshot of a file as its primary holds the file.
    pub fn of(appender: &Appender, first: u64) -> Self {
        Self {
            file: appender.file(),
            first,
            records: appender.records(),
            layout: appender.layout(),
            geometry: appender.index().geometry(),
            nodes: appender.index().nodes(),
            begins_ns: Arc::clone(appender.index().begins_ns()),
            entries: Arc::clone(appender.index().entries()),
            tail: appender.tail_records(),
        }
    }

    fn full_segments(&self) -> u32 {
        self.layout.full_segments(self.records)
    }

    fn view(&self) -> IndexView<'_> {
        let (begins_ns, entries) = (&self.begins_ns[..], &self.entries[..]);
        IndexView { geometry: self.geometry, nodes: self.nodes, begins_ns, entries }
    }
}

/// [`Segments`] as index nodes of one file.
struct Nodes<'a> {
    file: FileId,
    geometry: Geometry,
    segments: &'a mut dyn Segments,
}

impl NodeSource for Nodes<'_> {
    fn node(&mut self, number: u32) -> Result<IndexNode> {
        let bytes = self.segments.segment(SegmentKind::Index, self.file, number)?;
        IndexNode::open(self.geometry, self.file, number, bytes)
    }
}

/// Reads of one file at one moment.
pub struct SnapshotReader<'a> {
    at: &'a FileEndSnapshot,
    segments: &'a mut dyn Segments,
}

impl<'a> SnapshotReader<'a> {
    /// A reader over this snapshot.
    pub fn new(at: &'a FileEndSnapshot, segments: &'a mut dyn Segments) -> Self {
        Self { at, segments }
    }

    /// Records of a segment, the open one too. Some may be lost.
    fn payload(&mut self, segment: u32) -> Result<TailRecords> {
        if segment >= self.at.full_segments() {
            return Ok(self.at.tail.clone());
        }
        let bytes = self.segments.segment(SegmentKind::Data, self.at.file, segment)?;
        Ok(payload_of(self.at.layout, &bytes))
    }

    /// The record of this number.
    ///
    /// # Errors
    /// [`Error::NoRecord`]; the reason why its segment cannot be read.
    pub fn record(&mut self, number: u64) -> Result<Bytes> {
        if !(self.at.first..self.at.records).contains(&number) {
            let (first, end) = (self.at.first, self.at.records);
            return Err(Error::NoRecord { record: number.to_string(), first, end });
        }
        let (segment, slot) = self.at.layout.locate(number)?;
        let (size, payload) = (self.at.layout.record_bytes(), self.payload(segment)?);
        held_from(self.at, segment, &payload, slot)?;
        Ok(payload.bytes.slice(slot * size..(slot + 1) * size))
    }

    /// The number of the latest record at or before this time.
    ///
    /// # Errors
    /// [`Error::NoRecord`] when all are later; the reason why a segment cannot be read.
    pub fn latest_at(&mut self, time_ns: i64) -> Result<u64> {
        let end = self.divide(Bound::BeginsBy(time_ns), |record| record_time(record) <= time_ns)?;
        match end.checked_sub(1).filter(|number| *number >= self.at.first) {
            Some(number) => Ok(number),
            None => Err(Error::NoRecord {
                record: format!("at or before {time_ns} ns"),
                first: self.at.first,
                end: self.at.records,
            }),
        }
    }

    /// The numbers of the records from one time to another, both included.
    ///
    /// # Errors
    /// The reason why a segment cannot be read.
    pub fn between(&mut self, from_ns: i64, to_ns: i64) -> Result<Range<u64>> {
        let first =
            self.divide(Bound::EndsBefore(from_ns), |record| record_time(record) < from_ns)?;
        let end = self.divide(Bound::BeginsBy(to_ns), |record| record_time(record) <= to_ns)?;
        let first = first.max(self.at.first);
        Ok(first..end.max(first))
    }

    /// The segments of the records from one time to another, both included. Without such records,
    /// the segment in which they would be.
    ///
    /// # Errors
    /// The reason why an index node cannot be read.
    pub fn segments_between(&mut self, from_ns: i64, to_ns: i64) -> Result<Range<u32>> {
        let first = self.segment_of(Bound::EndsBefore(from_ns))?;
        Ok(first..self.segment_of(Bound::BeginsBy(to_ns))?.max(first) + 1)
    }

    /// The segment in which the bound changes from true to false.
    fn segment_of(&mut self, bound: Bound) -> Result<u32> {
        let size = self.at.layout.record_bytes();
        let tail = &self.at.tail;
        let reaches_tail = tail.held_ranges(size).next().is_some_and(|range| {
            let first_ns = record_time(&tail.bytes[range.start * size..]);
            match bound {
                Bound::EndsBefore(time) => first_ns < time,
                Bound::BeginsBy(time) => first_ns <= time,
            }
        });
        let mut segment = self.at.full_segments();
        if !reaches_tail {
            let (file, geometry) = (self.at.file, self.at.geometry);
            let mut nodes = Nodes { file, geometry, segments: &mut *self.segments };
            let found = partition(&self.at.view(), bound, &mut nodes)?;
            segment = match bound {
                Bound::EndsBefore(_) => found,
                // The divide is inside the last segment that begins by then.
                Bound::BeginsBy(_) => found.saturating_sub(1),
            };
        }
        let kept = u64::from(segment).max(self.at.first / self.at.layout.records_per_segment());
        Ok(kept as u32)
    }

    /// Number of records from the first on for which `holds` is true. `bound` is the same condition
    /// for segments.
    fn divide(&mut self, bound: Bound, holds: impl Fn(&[u8]) -> bool) -> Result<u64> {
        let size = self.at.layout.record_bytes();
        let segment = self.segment_of(bound)?;
        let payload = self.payload(segment)?;
        let holds_at = |slot: usize| holds(&payload.bytes[slot * size..(slot + 1) * size]);
        // Nothing says the times of lost records. They count as later than those before them.
        let mut end = 0;
        for range in payload.held_ranges(size) {
            if !holds_at(range.start) {
                break;
            }
            let (mut low, mut high) = (range.start + 1, range.end);
            while low < high {
                let middle = low + (high - low) / 2;
                match holds_at(middle) {
                    true => low = middle + 1,
                    false => high = middle,
                }
            }
            end = low;
            if end < range.end {
                break;
            }
        }
        Ok(self.at.layout.first_record(segment) + end as u64)
    }

    /// The records of these numbers, as the parts of segments that hold them, without a copy.
    ///
    /// # Errors
    /// [`Error::NoRecord`]; the errors of `each` and of segments.
    pub fn records(
        &mut self,
        numbers: Range<u64>,
        each: &mut dyn FnMut(Bytes) -> Result<()>,
    ) -> Result<()> {
        if numbers.is_empty() {
            return Ok(());
        }
        let (first, end) = (self.at.first, self.at.records);
        if numbers.start < first || numbers.end > end {
            let record = format!("{} to {}", numbers.start, numbers.end);
            return Err(Error::NoRecord { record, first, end });
        }
        let size = self.at.layout.record_bytes();
        let (first, _) = self.at.layout.locate(numbers.start)?;
        let end = self.at.layout.locate(numbers.end - 1)?.0 + 1;
        self.segments.expect(self.at.file, first..end.min(self.at.full_segments()));
        let mut number = numbers.start;
        while number < numbers.end {
            let (segment, slot) = self.at.layout.locate(number)?;
            let payload = self.payload(segment)?;
            let there = held_from(self.at, segment, &payload, slot)? as u64;
            let count = there.min(numbers.end - number) as usize;
            each(payload.bytes.slice(slot * size..(slot + count) * size))?;
            number += count as u64;
        }
        Ok(())
    }

    /// The summary of the records with these numbers. The index gives the summaries of whole
    /// segments, without reading them.
    ///
    /// # Errors
    /// As [`records`](Self::records).
    pub fn summary(
        &mut self,
        numbers: Range<u64>,
        schema: &Schema,
    ) -> Result<Option<IndexSummary>> {
        let per_segment = self.at.layout.records_per_segment();
        let fields: Vec<_> = schema.aggregates().cloned().collect();
        let whole_first = numbers.start.div_ceil(per_segment);
        let whole_end = (numbers.end / per_segment).min(u64::from(self.at.full_segments()));
        let layout = self.at.layout;
        let mut all: Option<IndexSummary> = None;
        let mut take = |part: IndexSummary| match &mut all {
            Some(all) => all.merge(&part),
            None => all = Some(part),
        };
        if whole_first >= whole_end {
            self.records(numbers, &mut |part| {
                take(summary_of(&part, layout, &fields));
                Ok(())
            })?;
            return Ok(all);
        }
        self.records(numbers.start..whole_first * per_segment, &mut |part| {
            take(summary_of(&part, layout, &fields));
            Ok(())
        })?;
        let (file, geometry) = (self.at.file, self.at.geometry);
        let mut nodes = Nodes { file, geometry, segments: &mut *self.segments };
        let (from, to) = (whole_first as u32, whole_end as u32);
        let whole = summarise(&self.at.view(), from, to, &mut nodes)?;
        // The entry of a segment whose records are lost counts none.
        if whole.as_ref().is_some_and(|of| of.count < (whole_end - whole_first) * per_segment) {
            let what = format!("records are lost between {from} and {}", to - 1);
            return Err(Error::damaged(format!("segments of D-{file}"), what));
        }
        whole.into_iter().for_each(&mut take);
        self.records(whole_end * per_segment..numbers.end, &mut |part| {
            take(summary_of(&part, layout, &fields));
            Ok(())
        })?;
        Ok(all)
    }
}

/// The records of a full data segment.
pub(crate) fn payload_of(layout: Layout, bytes: &Bytes) -> TailRecords {
    let slots = layout.records_per_segment() as usize;
    let held = segment::header(bytes).map_or(0, |header| header.count);
    let from = SEGMENT_HEADER_BYTES;
    let records = bytes.slice(from..from + layout.payload_bytes(slots));
    let lost = match held as usize >= slots {
        true => Vec::new(),
        false => lost_ranges(&records, layout.record_bytes(), held),
    };
    TailRecords { bytes: records, lost }
}

/// The number of records from this slot of a segment on that are not lost.
fn held_from(
    at: &FileEndSnapshot,
    segment: u32,
    payload: &TailRecords,
    slot: usize,
) -> Result<usize> {
    let size = at.layout.record_bytes();
    let found = payload.held_ranges(size).find(|range| range.contains(&slot));
    if let Some(range) = found {
        return Ok(range.end - slot);
    }
    let (slots, first) = (payload.bytes.len() / size, at.layout.first_record(segment));
    let lost = payload.lost.iter().find(|range| range.contains(&slot)).cloned();
    let lost = lost.unwrap_or(slot..slots.max(slot + 1));
    let (from, to) = (first + lost.start as u64, first + lost.end as u64 - 1);
    let place = format!("segment {segment} of D-{}", at.file);
    Err(Error::damaged(place, format!("records {from} to {to} are lost")))
}

/// Rebuilds the appender of a file from its records.
///
/// Undamaged written index nodes are used, and the rest of the index is built from the data. Nodes
/// that were built again are passed to `rebuilt`, which writes them. A segment whose records are
/// lost or damaged has an entry without records, so that everything else stays readable.
///
/// # Errors
/// The reason why a data segment cannot be read.
pub fn resume(
    file: FileId,
    token: u32,
    schema: &Schema,
    records: u64,
    tail: impl Into<TailRecords>,
    segments: &mut dyn Segments,
    rebuilt: &mut Vec<crate::segment::SealedSegment>,
) -> Result<Resumption> {
    let tail = tail.into();
    let (layout, geometry) = (schema.layout()?, schema.geometry()?);
    let full = layout.full_segments(records);
    let nodes = full / geometry.entries_per_node();
    // A crash may have lost the newest nodes. Older nodes may cover data that is no longer kept, so
    // they are built again only when they are missing.
    let mut resume_from =
        |nodes| Builder::resume(geometry, nodes, &mut Nodes { file, geometry, segments }).ok();
    let mut index =
        (0..=nodes).rev().find_map(&mut resume_from).unwrap_or_else(|| Builder::new(geometry));
    let fields: Vec<_> = schema.aggregates().cloned().collect();
    let mut last_ns = i64::MIN;
    if index.segments() == full && full > 0 {
        let last = read_kept(segments, layout, file, full - 1)?;
        if let Some(record) = last.rchunks_exact(layout.record_bytes()).next() {
            last_ns = record_time(record);
        }
    }
    for number in index.segments()..full {
        let payload = read_kept(segments, layout, file, number)?;
        let entry = match payload.is_empty() {
            false => summary_of(&payload, layout, &fields),
            true => IndexSummary::of_nothing(last_ns, fields.len()),
        };
        last_ns = entry.max_ns;
        let number = index.nodes();
        if let Some(bytes) = index.push(entry, file, token) {
            rebuilt.push(crate::segment::SealedSegment {
                kind: SegmentKind::Index,
                file,
                number,
                bytes,
            });
        }
    }
    if let Some(last) = tail.bytes.rchunks_exact(layout.record_bytes()).next() {
        last_ns = record_time(last);
    }
    Ok(Resumption { records, tail, last_ns, index })
}

/// The records of a data segment that are neither lost nor damaged.
fn read_kept(
    segments: &mut dyn Segments,
    layout: Layout,
    file: FileId,
    number: u32,
) -> Result<Bytes> {
    match segments.segment(SegmentKind::Data, file, number) {
        Ok(bytes) => {
            let payload = payload_of(layout, &bytes);
            Ok(held_records(&payload.bytes, layout.record_bytes(), &payload.lost))
        }
        Err(Error::Damaged { .. }) => Ok(Bytes::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
