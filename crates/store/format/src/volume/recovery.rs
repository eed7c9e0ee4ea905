//! Recovery of a volume after a crash.
//!
//! 1. Journals, oldest first, up to the first damage in each: where each file stood in synced
//!    chunks, and the records that were committed since.
//! 2. Chunks, from where the file stood to the last whole segment. Chunks may reach further than
//!    was promised. A segment in between that is not whole is written again from the journals.
//!    Records that the journals lack are lost: the segment then counts fewer records than fit, its
//!    old bytes are kept aside, and everything behind it stays. No whole segment is written over.
//! 3. The committed records behind those segments. Full segments go to chunks, and the rest goes
//!    into a new journal. The old journals are removed when the new journal is synced. A recovery
//!    after a crash in between finds both, and does the work again.

use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use evenfall_core::{Disk, StorageError};

use super::{
    Chunks, OldJournal, RESERVE_BYTES, Shelf, Volume, VolumeConfig, is_full, is_hole, read_segment,
};
use crate::error::Result;
use crate::journal::{self, Frame, Origin};
use crate::layout::{
    FileId, Kind, Layout, RESERVE, SEGMENT_BYTES, SEGMENT_HEADER_BYTES, chunk_name, journal_name,
    parse_chunk_name, parse_journal_name, segment_place,
};
use crate::segment::{self, Header, Sealed};

/// A part of the disk that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// File, chunk or journal.
    pub place: String,
    /// The fault.
    pub what: String,
    /// Whether a crash explains the fault. Any other fault is damage, and may affect acknowledged
    /// records.
    pub is_torn_end: bool,
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.is_torn_end { "note" } else { "damage" };
        // The name of a file on a damaged disk may have any bytes.
        write!(f, "{kind}: {}: {}", self.place.escape_debug(), self.what)
    }
}

/// A recovered file.
#[derive(Clone, Debug)]
pub struct RecoveredFile {
    /// Record length and token.
    pub origin: Origin,
    /// Records in it.
    pub records: u64,
    /// The records that fill no segment.
    pub tail: Bytes,
    /// Segments before the last whole one that have lost records on this disk. A copy elsewhere may
    /// have them.
    pub partial: Vec<PartialSegment>,
}

/// A segment that has lost records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialSegment {
    /// Its number.
    pub number: u32,
    /// Its first records that are not lost.
    pub kept: u64,
}

/// The result of a recovery.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    /// The files.
    pub files: BTreeMap<FileId, RecoveredFile>,
    /// What was dropped, in words.
    pub losses: Vec<Loss>,
}

/// The parts of a file during recovery.
struct Pieces {
    origin: Origin,
    synced: u64,
    /// Journal, first record, records; in order when a file is assembled.
    frames: Vec<(u64, u64, Bytes)>,
}

impl Pieces {
    /// Lets go of records that are in synced chunks.
    fn forget_synced(&mut self) {
        let (size, synced) = (u64::from(self.origin.record_bytes).max(1), self.synced);
        self.frames.retain(|(_, first, records)| first + records.len() as u64 / size > synced);
    }

    /// Whether a journal has this record.
    fn has_frame_of(&self, layout: Layout, record: u64) -> bool {
        self.frames.iter().any(|(_, first, records)| {
            (*first..first + (records.len() / layout.record_bytes()) as u64).contains(&record)
        })
    }

    /// The number after the last record that a journal has.
    fn frames_end(&self, layout: Layout) -> u64 {
        let ends = self
            .frames
            .iter()
            .map(|(_, first, records)| first + (records.len() / layout.record_bytes()) as u64);
        ends.max().unwrap_or(0)
    }
}

impl<D: Disk> Volume<D> {
    /// Opens a disk in any state.
    ///
    /// # Errors
    /// [`crate::Error::Storage`], [`crate::Error::Version`]. Damage is no error but a [`Loss`].
    pub fn open(disk: D, config: VolumeConfig) -> Result<(Self, Recovered)> {
        let mut found = Recovered::default();
        let listed = disk.list()?;
        let mut pieces = BTreeMap::new();
        let journals = journals_of(&disk, &listed)?;
        for (number, slot) in &journals {
            read_journal(&disk, *number, *slot, &mut pieces, &mut found.losses)?;
            // What later journals state as synced leaves memory, with the journals that have it.
            pieces.values_mut().for_each(Pieces::forget_synced);
        }
        let mut chunks = Chunks::default();
        for (name, bytes) in &listed {
            parse_chunk_name(name).into_iter().for_each(|chunk| chunks.reach(chunk, *bytes));
        }
        let unknown = files_of_chunks(&disk, &chunks, &mut pieces)?;
        let number = journals.iter().map(|(number, slot)| number.max(slot) + 1).max().unwrap_or(0);
        let mut volume = Self::beginning_at(number, disk, config);
        volume.chunks = chunks;
        volume.has_reserve =
            listed.iter().any(|(name, bytes)| name == RESERVE && *bytes >= RESERVE_BYTES as u64);
        let mut tails = BTreeMap::new();
        let mut ends = BTreeMap::new();
        for (file, mut piece) in pieces {
            // A journal takes over records from journals before those that stay, so the numbers of
            // the records and not those of the journals give the order. A record that several
            // journals have is the same in all of them.
            piece.frames.sort_by_key(|(journal, first, _)| (*first, *journal));
            let recovered = volume.assemble(&piece, &mut found.losses)?;
            tails.insert(file, recovered.tail.clone());
            ends.insert(file, recovered.records);
            found.files.insert(file, recovered);
        }
        for file in unknown {
            // No journal has this file and none of its segments is whole.
            volume.truncate(Kind::Data, file, 0)?;
            let what = "no segment is whole".to_owned();
            let place = format!("file {file}");
            found.losses.push(Loss { place, what, is_torn_end: true });
        }
        for (number, slot) in journals {
            let ends = ends.clone();
            volume.old.push(OldJournal { number, slot, bytes: 0, ends, is_reusable: false });
        }
        let tail_of = &mut |file, _| tails.get(&file).cloned();
        match volume.checkpoint(tail_of) {
            Err(error) if is_full(&error) && volume.draw_on_reserve() => {
                volume.checkpoint(tail_of)?;
            }
            done => drop(done?),
        }
        Ok((volume, found))
    }

    /// A volume that knows no file yet, and whose first journal has this number.
    fn beginning_at(number: u64, disk: D, config: VolumeConfig) -> Self {
        Self {
            disk,
            config,
            files: BTreeMap::new(),
            chunks: Chunks::default(),
            unsynced: Vec::new(),
            flushing: Vec::new(),
            reached: Vec::new(),
            held: BTreeMap::new(),
            held_bytes: Arc::default(),
            sealed: Vec::new(),
            releasing: Vec::new(),
            unstated: BTreeSet::new(),
            rewrite: false,
            number,
            slot: number,
            offset: 0,
            sequence: 0,
            ends: BTreeMap::new(),
            base_bytes: 0,
            unstated_bytes: 0,
            old: Vec::new(),
            spares: Vec::new(),
            is_low: false,
            has_reserve: false,
        }
    }

    /// Rebuilds one file, and writes its full segments into chunks.
    fn assemble(&mut self, piece: &Pieces, losses: &mut Vec<Loss>) -> Result<RecoveredFile> {
        let Origin { file, record_bytes, .. } = piece.origin;
        let layout = Layout::new(usize::from(record_bytes))?;
        let (mut segment, mut gaps) = self.whole_reach(piece, layout, losses)?;
        self.truncate(Kind::Data, file, segment)?;
        let mut behind = loop {
            let (behind, skipped) =
                committed_behind(piece, layout, layout.first_record(segment)..u64::MAX);
            // Synced segments need no journal, so journals may go on behind one that was damaged
            // since.
            let Some(next) = skipped else { break behind };
            let reach = next.div_ceil(layout.records_per_segment()) as u32;
            let end = piece.frames_end(layout);
            if end < layout.first_record(reach) {
                // The file would have more records than were ever written.
                let what = format!(
                    "records {next} to {} are in a journal, and those before them are nowhere: \
                     the file ends before them",
                    end - 1
                );
                losses.push(Loss { place: format!("file {file}"), what, is_torn_end: false });
                break behind;
            }
            gaps.extend(segment..reach);
            segment = reach;
        };
        let in_chunks = layout.first_record(segment);
        self.files.insert(file, Shelf::with_synced(piece.origin, in_chunks));
        let partial = self.fill_gaps(piece, layout, gaps, losses)?;
        let records = in_chunks + (behind.len() / layout.record_bytes()) as u64;
        let full = layout.payload_bytes(layout.records_per_segment() as usize);
        while behind.len() >= full {
            let payload = behind.split_to(full);
            self.write(seal_data(piece.origin, layout, segment, &payload))?;
            segment += 1;
        }
        Ok(RecoveredFile { origin: piece.origin, records, tail: behind.freeze(), partial })
    }

    /// The number after the last whole segment, and the segments before it that are not whole, from
    /// where the file stood. The journal states a chunk as synced before the chunk moves to the
    /// objects, so a chunk that is missing behind that place is a gap.
    fn whole_reach(
        &self,
        piece: &Pieces,
        layout: Layout,
        losses: &mut Vec<Loss>,
    ) -> Result<(u32, Vec<u32>)> {
        let file = piece.origin.file;
        let first = layout.full_segments(piece.synced);
        let (mut end, mut gaps, mut torn) = (first, Vec::new(), None);
        // A later life of the primary never writes behind an earlier one's segments.
        let mut token = 0;
        let mut there = self.chunks.segments(Kind::Data, file, first);
        // A chunk that is missing in front of the others was moved to the objects, unless a journal
        // still has its records: then it was never stated as synced, and a crash took it.
        if !there.is_empty() && piece.has_frame_of(layout, layout.first_record(first)) {
            there.start = first;
        }
        for number in there {
            match read_segment(&self.disk, Kind::Data, file, number) {
                Ok(Some(bytes)) => {
                    let header = segment::expect(&bytes, Kind::Data, file, number)?;
                    let is_full = u64::from(header.count) == layout.records_per_segment();
                    if header.token < token {
                        gaps.push(number);
                    } else if is_full {
                        (end, token) = (number + 1, header.token);
                    }
                }
                Ok(None) => gaps.push(number),
                Err(crate::Error::Damaged { place, what }) => {
                    gaps.push(number);
                    torn = torn.or(Some((number, Loss { place, what, is_torn_end: true })));
                }
                Err(error) => return Err(error),
            }
        }
        gaps.retain(|number| *number < end);
        // A segment in a chunk is acknowledged only after a sync, and nothing behind this segment
        // was synced.
        losses.extend(torn.filter(|(number, _)| *number >= end).map(|(_, loss)| loss));
        Ok((end, gaps))
    }

    /// Writes the segments of gaps from the journals. Returns those of which the journals lack
    /// records.
    fn fill_gaps(
        &mut self,
        piece: &Pieces,
        layout: Layout,
        gaps: Vec<u32>,
        losses: &mut Vec<Loss>,
    ) -> Result<Vec<PartialSegment>> {
        let mut partial = Vec::new();
        let per_segment = layout.records_per_segment();
        for number in gaps {
            let first = layout.first_record(number);
            let (behind, _) = committed_behind(piece, layout, first..first + per_segment);
            let kept = (behind.len() / layout.record_bytes()).min(per_segment as usize);
            if (kept as u64) < per_segment {
                self.keep_aside(piece.origin.file, number)?;
                partial.push(PartialSegment { number, kept: kept as u64 });
            }
            let payload = &behind[..layout.payload_bytes(kept)];
            self.write(seal_data(piece.origin, layout, number, payload))?;
        }
        let runs = partial.chunk_by(|one, next| one.number + 1 == next.number && next.kept == 0);
        losses.extend(runs.filter_map(|run| {
            let (first, last) = (run.first()?, run.last()?);
            let what = format!(
                "segments {} to {} are not whole, and more follows: records {} to {} are lost \
                 here, and all behind them are kept",
                first.number,
                last.number,
                layout.first_record(first.number) + first.kept,
                layout.first_record(last.number + 1) - 1
            );
            let place = format!("file {}", piece.origin.file);
            Some(Loss { place, what, is_torn_end: false })
        }));
        Ok(partial)
    }

    /// Copies a segment that is not whole into a file of its own, for people.
    fn keep_aside(&self, file: FileId, number: u32) -> Result<()> {
        let (chunk, offset) = segment_place(number);
        let name = chunk_name(Kind::Data, file, chunk);
        let bytes = match self.disk.read(&name, offset, SEGMENT_BYTES) {
            // The disk keeps damaged columns aside when the chunk becomes raw again.
            Err(StorageError::Damaged { .. }) => return Ok(()),
            read => read?,
        };
        if !is_hole(&bytes) {
            self.disk.write(&format!("DAMAGED-{file}-{number}"), 0, &bytes)?;
        }
        Ok(())
    }
}

/// A segment of these records. It counts fewer than fit when the others are lost.
fn seal_data(origin: Origin, layout: Layout, number: u32, payload: &[u8]) -> Sealed {
    let mut bytes = vec![0; SEGMENT_BYTES];
    bytes[SEGMENT_HEADER_BYTES..][..payload.len()].copy_from_slice(payload);
    let header = Header {
        kind: Kind::Data,
        entry_bytes: origin.record_bytes,
        file: origin.file,
        number,
        count: (payload.len() / layout.record_bytes()) as u32,
        token: origin.token,
    };
    segment::seal(&header, &mut bytes);
    Sealed { kind: Kind::Data, file: origin.file, number, bytes: Bytes::from(bytes) }
}

/// Committed records of these numbers, as far as there is no gap, and perhaps some behind them.
/// Also the first committed record behind the gap, if there is one.
///
/// A journal that was removed may be back after a crash while the one before it is not: its frames
/// then stand behind a gap, and the journal after it has everything. So a gap counts only when
/// nothing later fills it.
fn committed_behind(piece: &Pieces, layout: Layout, wanted: Range<u64>) -> (BytesMut, Option<u64>) {
    let (mut behind, mut end) = (BytesMut::new(), wanted.start);
    let size = layout.record_bytes();
    let mut skipped = Vec::new();
    for (_, first, records) in &piece.frames {
        if end >= wanted.end {
            break;
        }
        let last = first + (records.len() / size) as u64;
        if *first > end {
            skipped.push((*first, last));
        } else if last > end {
            behind.extend_from_slice(&records[(end - first) as usize * size..]);
            end = last;
        }
    }
    let missed = skipped.into_iter().filter(|(_, last)| *last > end);
    (behind, missed.map(|(first, _)| first.max(end)).min())
}

/// Number and slot of every journal, in the order in which the journals were written. The header
/// has the number, which is no less than the slot in the name: a file holds one journal after
/// another.
fn journals_of(disk: &impl Disk, listed: &[(String, u64)]) -> Result<Vec<(u64, u64)>> {
    let mut journals = Vec::new();
    for slot in listed.iter().filter_map(|(name, _)| parse_journal_name(name)) {
        let name = journal_name(slot);
        let header = disk.read(&name, 0, journal::HEADER_BYTES)?;
        let number = journal::parse_header(&name, &header)?.map_or(slot, |(number, _)| number);
        journals.push((number, slot));
    }
    journals.sort_unstable();
    Ok(journals)
}

/// Adds the files that have chunks and stand in no journal. Returns the files without a whole
/// segment, so that nothing says how long their records are.
fn files_of_chunks(
    disk: &impl Disk,
    chunks: &Chunks,
    pieces: &mut BTreeMap<FileId, Pieces>,
) -> Result<Vec<FileId>> {
    let data = chunks.bytes.keys().filter(|(kind, _, _)| *kind == Kind::Data);
    let files: BTreeSet<FileId> = data.map(|(_, file, _)| *file).collect();
    let mut unknown = Vec::new();
    for file in files {
        if pieces.contains_key(&file) {
            continue;
        }
        match any_header(disk, chunks, file)? {
            Some(Header { entry_bytes: record_bytes, token, .. }) => {
                let origin = Origin { file, record_bytes, token };
                pieces.insert(file, Pieces { origin, synced: 0, frames: Vec::new() });
            }
            None => unknown.push(file),
        }
    }
    Ok(unknown)
}

fn read_journal(
    disk: &impl Disk,
    number: u64,
    slot: u64,
    pieces: &mut BTreeMap<FileId, Pieces>,
    losses: &mut Vec<Loss>,
) -> Result<()> {
    let name = journal_name(slot);
    let bytes = disk.read(&name, 0, usize::MAX)?;
    let scan = journal::scan(&name, &bytes)?;
    if let Some(dropped) = &scan.dropped {
        let what = format!(
            "{} bytes from byte {} on are no commit ({}), {} whole commits behind",
            dropped.bytes, dropped.at, dropped.what, dropped.commits_behind
        );
        // Header and first commit are synced together, so a crash may take the header alone.
        let is_torn_end = dropped.commits_behind <= u64::from(dropped.at == 0);
        losses.push(Loss { place: name, what, is_torn_end });
    }
    for frame in scan.frames {
        let (origin, synced, frame) = match frame {
            Frame::Deletion(file) => {
                pieces.remove(&file);
                continue;
            }
            Frame::Node(origin, synced) => (origin, synced, None),
            Frame::Records(origin, first, records) => (origin, 0, Some((number, first, records))),
        };
        let new = || Pieces { origin, synced: 0, frames: Vec::new() };
        let piece = pieces.entry(origin.file).or_insert_with(new);
        if piece.origin.record_bytes == origin.record_bytes {
            piece.origin = origin;
            piece.synced = piece.synced.max(synced);
            piece.frames.extend(frame);
        }
    }
    Ok(())
}

/// The header of the first whole segment of a file in chunks.
fn any_header(disk: &impl Disk, chunks: &Chunks, file: FileId) -> Result<Option<Header>> {
    for number in chunks.segments(Kind::Data, file, 0) {
        match read_segment(disk, Kind::Data, file, number) {
            Ok(Some(bytes)) => {
                return Ok(Some(segment::expect(&bytes, Kind::Data, file, number)?));
            }
            Ok(None) | Err(crate::Error::Damaged { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
