//! The writing end of one file: batches in, sealed segments out.
//!
//! An append copies records into the open segment, which no reader shares. A full segment is sealed
//! and given out as shared bytes. A batch is taken as a whole or not at all.

use core::ops::Range;
use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::error::{Error, Result};
use crate::index::{Aggregate, Builder, IndexSummary};
use crate::journal::{JournalBatch, Origin};
use crate::layout::{
    FileId, Layout, SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SegmentKind, record_time,
};
use crate::lost_records::{TailRecords, held_records, lost_ranges, seal_slots};
use crate::schema::{Field, Schema};
use crate::segment::{self, SealedSegment};
use crate::volume::FRAME_RECORDS_BYTES_MAX;

/// The writing end of one file.
#[derive(Debug)]
pub struct Appender {
    file: FileId,
    token: u32,
    schema: Arc<Schema>,
    layout: Layout,
    fields: Vec<Field>,
    /// The open segment, its header still blank.
    open: Vec<u8>,
    /// Places of lost records in the open segment.
    lost: Vec<Range<usize>>,
    records: u64,
    last_ns: i64,
    index: Builder,
    /// Full data segments that no synced chunk has yet, oldest first, and the first one's number.
    unsynced: VecDeque<Bytes>,
    unsynced_first: u32,
    /// Written index nodes that no synced chunk has yet, oldest first, each with its number.
    unsynced_nodes: VecDeque<(u32, Bytes)>,
    /// Records that were handed to a journal, or are in synced chunks.
    journaled: u64,
}

/// The state of a file from which [`Appender::resume`] goes on.
#[derive(Clone, Debug)]
pub struct Resumption {
    /// Records in the file.
    pub records: u64,
    /// The records that do not fill a segment.
    pub tail: TailRecords,
    /// Time of the last record; `i64::MIN` for an empty file.
    pub last_ns: i64,
    /// The index of the full segments.
    pub index: Builder,
}

impl Appender {
    /// The appender of a new file.
    ///
    /// # Errors
    /// [`Error::Schema`], [`Error::RecordLength`].
    pub fn new(file: FileId, token: u32, schema: Arc<Schema>) -> Result<Self> {
        let index = Builder::new(schema.geometry()?);
        let start =
            Resumption { records: 0, tail: TailRecords::default(), last_ns: i64::MIN, index };
        Self::resume(file, token, schema, start)
    }

    /// The appender of a file that has records already.
    ///
    /// # Errors
    /// [`Error::Schema`]; [`Error::Damaged`] when the parts do not belong together.
    pub fn resume(file: FileId, token: u32, schema: Arc<Schema>, at: Resumption) -> Result<Self> {
        schema.check()?;
        let layout = schema.layout()?;
        let tail = (at.records % layout.records_per_segment()) as usize;
        let full = layout.full_segments(at.records);
        if layout.payload_bytes(tail) != at.tail.bytes.len() || at.index.segments() != full {
            return Err(Error::damaged(format!("file {file}"), "its parts do not fit together"));
        }
        let mut open = vec![0; SEGMENT_HEADER_BYTES];
        open.extend_from_slice(&at.tail.bytes);
        let fields = schema.aggregates().cloned().collect();
        let (records, last_ns, index) = (at.records, at.last_ns, at.index);
        Ok(Self {
            file,
            token,
            schema,
            layout,
            fields,
            open,
            lost: at.tail.lost,
            records,
            last_ns,
            index,
            unsynced: VecDeque::new(),
            unsynced_first: full,
            unsynced_nodes: VecDeque::new(),
            journaled: records,
        })
    }

    /// Number of the file.
    pub fn file(&self) -> FileId {
        self.file
    }

    /// The fencing token in the segments of this appender.
    pub fn token(&self) -> u32 {
        self.token
    }

    /// The schema of the records.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// The layout of the records.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Records so far.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Time of the last record; `i64::MIN` for an empty file.
    pub fn last_ns(&self) -> i64 {
        self.last_ns
    }

    /// Records of the open segment. Lost records are zeros.
    pub fn tail(&self) -> &[u8] {
        &self.open[SEGMENT_HEADER_BYTES..]
    }

    /// Records of the open segment, with the places of lost ones.
    pub fn tail_records(&self) -> TailRecords {
        TailRecords { bytes: Bytes::copy_from_slice(self.tail()), lost: self.lost.clone() }
    }

    /// The index.
    pub fn index(&self) -> &Builder {
        &self.index
    }

    /// Appends the batch; segments that it fills are added to `sealed`, data before index.
    ///
    /// # Errors
    /// [`Error::BatchLength`], [`Error::TimeWentBack`], [`Error::FileFull`]; nothing is taken then.
    pub fn append(
        &mut self,
        records: &[u8],
        sealed: &mut Vec<SealedSegment>,
    ) -> Result<Range<u64>> {
        let size = self.layout.record_bytes();
        if !records.len().is_multiple_of(size) {
            return Err(Error::BatchLength { bytes: records.len(), record_bytes: size });
        }
        let count = (records.len() / size) as u64;
        let end = self.records.saturating_add(count);
        self.layout.locate(end)?;
        let last_ns = self.check_order(records)?;
        let mut left = records;
        while !left.is_empty() {
            let room = SEGMENT_HEADER_BYTES
                + self.layout.payload_bytes(self.layout.records_per_segment() as usize)
                - self.open.len();
            let (now, later) = left.split_at(room.min(left.len()));
            self.open.extend_from_slice(now);
            self.records += (now.len() / size) as u64;
            left = later;
            if now.len() == room {
                self.seal(sealed);
            }
        }
        self.last_ns = last_ns;
        Ok(end - count..end)
    }

    /// Releases the segments up to this segment, because synced chunks have them now.
    pub fn release(&mut self, number: u32) {
        while self.unsynced_first <= number && self.unsynced.pop_front().is_some() {
            self.unsynced_first += 1;
        }
    }

    /// Releases the index nodes up to this node, because synced chunks have them now.
    pub fn release_node(&mut self, number: u32) {
        while self.unsynced_nodes.front().is_some_and(|(first, _)| *first <= number) {
            self.unsynced_nodes.pop_front();
        }
    }

    /// An index node that is written and still kept.
    pub fn unsynced_node(&self, number: u32) -> Option<Bytes> {
        let (_, bytes) = self.unsynced_nodes.iter().find(|(of, _)| *of == number)?;
        Some(bytes.clone())
    }

    /// Keeps full segments that recovery found no room for, until they are
    /// [released](Self::release): the last ones of the file without a gap, and index nodes.
    pub fn keep_unwritten(&mut self, segments: &[SealedSegment]) {
        for sealed in segments {
            let (number, bytes) = (sealed.number, sealed.bytes.clone());
            match sealed.kind {
                SegmentKind::Data => {
                    if self.unsynced.is_empty() {
                        self.unsynced_first = number;
                    }
                    self.unsynced.push_back(bytes);
                }
                SegmentKind::Index => self.unsynced_nodes.push_back((number, bytes)),
            }
        }
    }

    /// Full segments that are kept because no synced chunk has them.
    pub fn unsynced(&self) -> usize {
        self.unsynced.len()
    }

    /// A full segment that is still kept.
    pub fn unsynced_segment(&self, number: u32) -> Option<Bytes> {
        self.unsynced.get(number.checked_sub(self.unsynced_first)? as usize).cloned()
    }

    /// The records from this number on; `None` when some of them are in synced chunks only.
    pub fn records_from(&self, first: u64) -> Option<TailRecords> {
        let (segment, slot) = self.layout.locate(first).ok()?;
        let size = self.layout.record_bytes();
        if segment >= self.index.segments() {
            let bytes = Bytes::copy_from_slice(self.tail().get(slot * size..)?);
            let mut lost = Vec::new();
            add_lost(&mut lost, &self.lost, slot, 0);
            return Some(TailRecords { bytes, lost });
        }
        let from = segment.checked_sub(self.unsynced_first)? as usize;
        let slots = self.layout.records_per_segment() as usize;
        let len = self.layout.payload_bytes(slots);
        let whole = self.unsynced.len().saturating_sub(from) * len;
        let mut records = BytesMut::with_capacity(whole + self.tail().len());
        let mut lost = Vec::new();
        for (at, bytes) in self.unsynced.iter().enumerate().skip(from) {
            let payload = &bytes[SEGMENT_HEADER_BYTES..SEGMENT_HEADER_BYTES + len];
            let skip = if at == from { slot } else { 0 };
            let held = segment::header(bytes).map_or(0, |header| header.count);
            if (held as usize) < slots {
                let of_segment = lost_ranges(payload, size, held);
                add_lost(&mut lost, &of_segment, skip, records.len() / size);
            }
            records.extend_from_slice(&payload[skip * size..]);
        }
        add_lost(&mut lost, &self.lost, 0, records.len() / size);
        records.extend_from_slice(self.tail());
        Some(TailRecords { bytes: records.freeze(), lost })
    }

    /// Takes the records that no journal and no synced chunk has, with the number of the first of
    /// them. The caller must commit them.
    pub fn take_uncommitted(&mut self) -> Option<(u64, Bytes)> {
        let first = self.first_uncommitted();
        if first >= self.records {
            return None;
        }
        // Lost records are among those that recovery has found in a journal.
        let records = self.records_from(first)?.bytes;
        self.journaled = self.records;
        Some((first, records))
    }

    /// As [`take_uncommitted`](Self::take_uncommitted), but adds the records to a commit, without a
    /// copy in between. `false` when they do not fit into one frame of it; nothing is taken then.
    pub fn push_uncommitted(&mut self, batch: &mut JournalBatch) -> bool {
        let (first, size) = (self.first_uncommitted(), self.layout.record_bytes());
        let len = usize::try_from(self.records.saturating_sub(first)).unwrap_or(usize::MAX);
        let len = len.saturating_mul(size);
        if len == 0 {
            return true;
        }
        let Ok((segment, slot)) = self.layout.locate(first) else { return false };
        if len > FRAME_RECORDS_BYTES_MAX || !batch.fits(len) {
            return false;
        }
        let slots = self.layout.records_per_segment() as usize;
        let payload = SEGMENT_HEADER_BYTES..SEGMENT_HEADER_BYTES + self.layout.payload_bytes(slots);
        // The open segment follows the full ones that are kept.
        let full = self.unsynced.iter().skip((segment - self.unsynced_first) as usize);
        let parts = full.map(|bytes| &bytes[payload.clone()]).chain([self.tail()]);
        let skipped = |at: usize| if at == 0 { slot * size } else { 0 };
        let parts = parts.enumerate().map(|(at, part)| &part[skipped(at)..]);
        let origin = Origin { file: self.file, record_bytes: size as u16, token: self.token };
        batch.push_record_parts(origin, first, len, parts);
        self.journaled = self.records;
        true
    }

    /// The first record that no journal and no synced chunk has.
    fn first_uncommitted(&self) -> u64 {
        self.journaled.max(self.layout.first_record(self.unsynced_first))
    }

    fn check_order(&self, records: &[u8]) -> Result<i64> {
        let size = self.layout.record_bytes();
        let mut last = self.last_ns;
        for (at, record) in records.chunks_exact(size).enumerate() {
            let time_ns = record_time(record);
            if time_ns < last {
                return Err(Error::TimeWentBack { at, time_ns, limit_ns: last });
            }
            last = time_ns;
        }
        Ok(last)
    }

    /// Refuses a batch that has a record later than `limit_ns`, and names the first. The last
    /// record decides, because [`append`](Self::append) takes batches in order of time only.
    ///
    /// # Errors
    /// [`Error::TimeAhead`].
    pub fn check_ahead(&self, records: &[u8], limit_ns: i64) -> Result<()> {
        let times = || records.chunks_exact(self.layout.record_bytes()).map(record_time);
        if times().next_back().is_none_or(|last| last <= limit_ns) {
            return Ok(());
        }
        let first = times().enumerate().find(|(_, time_ns)| *time_ns > limit_ns);
        let (at, time_ns) = first.unwrap_or_default();
        Err(Error::TimeAhead { at, time_ns, limit_ns })
    }

    fn seal(&mut self, sealed: &mut Vec<SealedSegment>) {
        let entry = match self.lost.is_empty() {
            true => self.summary_of(self.tail()),
            false => {
                let bytes = Bytes::copy_from_slice(self.tail());
                self.summary_of(&held_records(&bytes, self.layout.record_bytes(), &self.lost))
            }
        };
        let number = self.index.segments();
        let mut bytes = std::mem::take(&mut self.open);
        let slots = self.layout.records_per_segment() as usize;
        self.seal_records(&mut bytes, slots);
        self.lost.clear();
        let (kind, file) = (SegmentKind::Data, self.file);
        let bytes = Bytes::from(bytes);
        self.unsynced.push_back(bytes.clone());
        sealed.push(SealedSegment { kind, file, number, bytes });
        let number = self.index.nodes();
        if let Some(bytes) = self.index.push(entry, file, self.token) {
            self.unsynced_nodes.push_back((number, bytes.clone()));
            sealed.push(SealedSegment { kind: SegmentKind::Index, file, number, bytes });
        }
        self.open = Vec::with_capacity(SEGMENT_BYTES);
        self.open.resize(SEGMENT_HEADER_BYTES, 0);
    }

    /// Summary of records that lie one behind the other.
    fn summary_of(&self, records: &[u8]) -> IndexSummary {
        summary_of(records, self.layout, &self.fields)
    }

    /// Makes a segment of the bytes of the open one, with this many records.
    fn seal_records(&self, bytes: &mut Vec<u8>, slots: usize) {
        let record_bytes = self.layout.record_bytes() as u16;
        let origin = Origin { file: self.file, record_bytes, token: self.token };
        seal_slots(bytes, origin, self.index.segments(), slots, &self.lost);
    }

    /// The open segment, sealed with its present records, for a publication before the segment is
    /// full.
    pub fn partial(&self) -> Option<Bytes> {
        if self.tail().is_empty() {
            return None;
        }
        let mut bytes = self.open.clone();
        self.seal_records(&mut bytes, self.tail().len() / self.layout.record_bytes());
        Some(Bytes::from(bytes))
    }
}

/// Adds the lost ranges of a segment from this slot on, as places from `base` on. A range may go
/// on from one segment to the next.
fn add_lost(lost: &mut Vec<Range<usize>>, of_segment: &[Range<usize>], slot: usize, base: usize) {
    for range in of_segment.iter().filter(|range| range.end > slot) {
        let (start, end) = (base + range.start.saturating_sub(slot), base + range.end - slot);
        match lost.last_mut().filter(|last| last.end == start) {
            Some(last) => last.end = end,
            None => lost.push(start..end),
        }
    }
}

/// Summary of records that lie one behind the other, with aggregates of these fields.
///
/// # Panics
/// When there is no record.
pub fn summary_of(records: &[u8], layout: Layout, fields: &[Field]) -> IndexSummary {
    let size = layout.record_bytes();
    let of = |field: &Field| -> Aggregate { field.aggregate_of(records, size) };
    IndexSummary {
        min_ns: record_time(records),
        max_ns: record_time(&records[records.len() - size..]),
        count: (records.len() / size) as u64,
        aggregates: fields.iter().map(of).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(times: impl Iterator<Item = i64>) -> Vec<u8> {
        times.flat_map(|time| [time.to_le_bytes(), time.to_le_bytes()].concat()).collect()
    }

    fn appender() -> Appender {
        Appender::new(FileId(1), 1, Arc::new(Schema::opaque(16))).unwrap()
    }

    #[test]
    fn batches_of_any_size_give_the_same_segments() {
        let all = records(0..5_000);
        let segments = |batch: usize| {
            let (mut appender, mut sealed) = (appender(), Vec::new());
            for batch in all.chunks(batch * 16) {
                appender.append(batch, &mut sealed).unwrap();
            }
            assert_eq!(appender.records(), 5_000);
            (sealed.into_iter().map(|s| s.bytes).collect::<Vec<_>>(), appender.tail().to_vec())
        };
        let once = segments(5_000);
        assert_eq!(once.0.len(), 4);
        assert_eq!(once.1.len(), (5_000 - 4 * 1_022) * 16);
        for batch in [1, 7, 1_022, 1_023] {
            assert_eq!(segments(batch), once, "batches of {batch}");
        }
    }

    #[test]
    fn records_go_into_a_commit_as_if_they_were_copied_first() {
        let all = records(0..20_000);
        let [mut pushing, mut copying] = [appender(), appender()];
        // Within the open segment, over its end, over several, and nothing.
        for end in [10, 1_000, 1_022, 1_023, 5_000, 5_000, 20_000] {
            let from = pushing.records() as usize * 16;
            for one in [&mut pushing, &mut copying] {
                one.append(&all[from..end * 16], &mut Vec::new()).unwrap();
                if end == 5_000 {
                    one.release(2);
                }
            }
            let [mut pushed, mut copied] = [JournalBatch::default(), JournalBatch::default()];
            assert!(pushing.push_uncommitted(&mut pushed));
            if let Some((first, records)) = copying.take_uncommitted() {
                let origin = Origin { file: FileId(1), record_bytes: 16, token: 1 };
                copied.push_records(origin, first, &records);
            }
            assert_eq!(pushed.ends(), copied.ends());
            assert_eq!(pushed.seal(1, 2, 3), copied.seal(1, 2, 3), "up to {end}");
        }
        let large = records(20_000..20_000 + FRAME_RECORDS_BYTES_MAX as i64 / 16 + 1);
        pushing.append(&large, &mut Vec::new()).unwrap();
        let mut batch = JournalBatch::default();
        assert!(!pushing.push_uncommitted(&mut batch) && batch.is_empty());
        assert_eq!(pushing.take_uncommitted().unwrap(), (20_000, Bytes::from(large)));
    }

    #[test]
    fn a_refused_batch_changes_nothing() {
        let (mut appender, mut sealed) = (appender(), Vec::new());
        appender.append(&records(10..20), &mut sealed).unwrap();
        let back = appender.append(&records([20, 19].into_iter()), &mut sealed);
        assert_eq!(back, Err(Error::TimeWentBack { at: 1, time_ns: 19, limit_ns: 20 }));
        assert!(matches!(
            appender.append(&[0; 17], &mut sealed),
            Err(Error::BatchLength { bytes: 17, record_bytes: 16 })
        ));
        let ahead = records([20, 30, 40].into_iter());
        let refused = Error::TimeAhead { at: 1, time_ns: 30, limit_ns: 29 };
        assert_eq!(appender.check_ahead(&ahead, 29), Err(refused));
        assert_eq!(appender.check_ahead(&ahead, 40), Ok(()));
        assert_eq!((appender.records(), appender.last_ns()), (10, 19));
        assert_eq!(appender.append(&records(19..21), &mut sealed), Ok(10..12));
    }
}
