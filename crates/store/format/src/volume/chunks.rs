//! The chunks on the disk with their lengths.

use core::ops::Range;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::layout::{
    DataChunk, FileId, SEGMENT_BYTES, SEGMENTS_PER_CHUNK, SegmentKind, segment_place,
};

/// The chunks on the disk with their lengths. A listing of the disk would take time in proportion
/// to its number of files.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    pub(super) bytes: BTreeMap<(SegmentKind, FileId, u32), u64>,
    /// Bytes on the disk of the chunks that are in columns.
    columnar: BTreeMap<(SegmentKind, FileId, u32), u64>,
    /// Bytes of all chunks on the disk. The counter is shared, so that readers of it do not wait
    /// for a working volume.
    pub(super) total: Arc<AtomicU64>,
}

impl Chunks {
    /// The chunk reaches this far at least.
    pub(super) fn reach(&mut self, kind: SegmentKind, file: FileId, number: u32, end: u64) {
        let known = self.bytes.entry((kind, file, number)).or_default();
        self.total.fetch_add(end.saturating_sub(*known), Relaxed);
        *known = end.max(*known);
    }

    pub(super) fn remove(&mut self, kind: SegmentKind, file: FileId, number: u32) {
        let chunk = (kind, file, number);
        let bytes = self.bytes.remove(&chunk).unwrap_or(0);
        let bytes = self.columnar.remove(&chunk).unwrap_or(bytes);
        self.total.fetch_sub(bytes, Relaxed);
    }

    /// The chunk is in columns and takes this many bytes.
    pub(super) fn shrink(&mut self, of: DataChunk, stored: u64) {
        let chunk = (SegmentKind::Data, of.file, of.number);
        let Some(raw) = self.bytes.get(&chunk).copied() else { return };
        let before = self.columnar.insert(chunk, stored).unwrap_or(raw);
        self.total.fetch_add(stored, Relaxed);
        self.total.fetch_sub(before, Relaxed);
    }

    /// Numbers of the segments from this one on, up to the end of the last chunk on the disk.
    /// Chunks that are missing in front of the first one are elsewhere.
    pub(super) fn segments(&self, kind: SegmentKind, file: FileId, first: u32) -> Range<u32> {
        let from = segment_place(first).0;
        let mut chunks = self.bytes.range((kind, file, from)..=(kind, file, u32::MAX));
        let Some(((_, _, begin), _)) = chunks.clone().next() else { return first..first };
        let end = chunks.next_back().map_or(first, |((_, _, chunk), bytes)| {
            let there = bytes.div_ceil(SEGMENT_BYTES as u64).min(SEGMENTS_PER_CHUNK.into());
            chunk * SEGMENTS_PER_CHUNK + there as u32
        });
        first.max(begin * SEGMENTS_PER_CHUNK)..end
    }

    /// The chunks of a file from this chunk on, with their lengths.
    pub(super) fn lengths_of(
        &self,
        kind: SegmentKind,
        file: FileId,
        first: u32,
    ) -> impl Iterator<Item = (u32, u64)> + '_ {
        let chunks = self.bytes.range((kind, file, first)..=(kind, file, u32::MAX));
        chunks.map(|(at, bytes)| (at.2, *bytes))
    }
}
