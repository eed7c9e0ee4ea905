//! Recovery of a volume after a crash.
//!
//! 1. Journals, oldest first: where each file stood in synced chunks, and the records that were
//!    committed since. Damage in a journal costs the commits that it is in. The damaged bytes are
//!    kept aside. A journal without a header has its place by the numbers of its commits.
//! 2. Chunks, from where the file stood to the last whole segment. Chunks may reach further than
//!    was promised. A segment in between that is not whole is written again from the journals.
//!    Records that the journals lack are lost: the segment then says which, its old bytes are kept
//!    aside, and everything behind it stays. No whole segment is written over.
//! 3. The committed records behind those segments, with their numbers, also behind records that are
//!    lost ([`crate::lost_records`]). Full segments go to chunks. The rest stays in the journals
//!    until the first checkpoint carries it over, so that an opening does not write the ends of
//!    all files again. Where something is lost, the opening itself makes that checkpoint, which
//!    states the loss. A recovery after a crash in between does the work again.
//!
//! A spare has nothing that is needed, so recovery reads no more than its header. On a full disk
//! the segments that find no room stay in memory: their records are in journals, and a store that
//! did not open could not make room.

use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use evenfall_core::{Disk, StorageError};

use super::{
    Chunks, OldJournal, RESERVE_BYTES, Shelf, Volume, VolumeConfig, is_full, is_hole, read_segment,
};
use crate::error::Result;
use crate::journal::{self, Frame, JournalDamage, Origin};
use crate::layout::{
    FileId, Layout, RESERVE, SEGMENT_BYTES, SEGMENTS_PER_CHUNK, SegmentKind, chunk_name,
    journal_name, parse_chunk_name, parse_journal_name, segment_place,
};
use crate::lost_records::{TailRecords, seal_segment};
use crate::segment::{self, SealedSegment, SegmentHeader};

/// A part of the disk that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskLoss {
    /// File, chunk or journal.
    pub place: String,
    /// The fault.
    pub what: String,
    /// Whether a crash explains the fault. Any other fault is damage, and may affect acknowledged
    /// records.
    pub is_torn_end: bool,
}

impl std::fmt::Display for DiskLoss {
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
    pub tail: TailRecords,
    /// Full segments that have lost records on this disk. A copy elsewhere may have them.
    pub partial: Vec<PartialSegment>,
    /// The numbers of all records that were found lost, in order.
    pub lost: Vec<Range<u64>>,
    /// The last full segments, without a gap, when the disk had no room for them. They are in
    /// journals, and the flushes of the volume write them as soon as there is room.
    pub unwritten: Vec<SealedSegment>,
}

/// A segment that has lost records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialSegment {
    /// Its number.
    pub number: u32,
    /// Records in front of the first lost one.
    pub kept: u64,
}

/// The result of a recovery.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    /// The files.
    pub files: BTreeMap<FileId, RecoveredFile>,
    /// What was dropped, in words.
    pub losses: Vec<DiskLoss>,
}

/// The parts of a file during recovery.
struct Pieces {
    origin: Origin,
    synced: u64,
    /// Journal, first record, records.
    frames: Vec<(u64, u64, Bytes)>,
    /// Records whose loss an earlier recovery has told.
    told: Vec<Range<u64>>,
}

impl Pieces {
    fn new(origin: Origin) -> Self {
        Self { origin, synced: 0, frames: Vec::new(), told: Vec::new() }
    }

    /// Lets go of records that are in synced chunks.
    fn forget_synced(&mut self) {
        let (size, synced) = (u64::from(self.origin.record_bytes).max(1), self.synced);
        self.frames.retain(|(_, first, records)| first + records.len() as u64 / size > synced);
    }

    /// Whether an earlier recovery has told that these records are lost.
    fn has_told(&self, lost: &Range<u64>) -> bool {
        self.told.iter().any(|told| told.start <= lost.start && lost.end <= told.end)
    }

    /// Whether a journal has one of these records.
    fn has_frame_in(&self, layout: Layout, numbers: Range<u64>) -> bool {
        self.frames.iter().any(|(_, first, records)| {
            let end = first + (records.len() / layout.record_bytes()) as u64;
            *first < numbers.end && numbers.start < end
        })
    }

    /// The committed records in order of their numbers, each once.
    fn runs(&self, layout: Layout) -> Vec<Run> {
        let size = layout.record_bytes();
        let mut frames: Vec<_> = self.frames.iter().collect();
        // A journal takes over records from journals before those that stay, so the numbers of the
        // records and not those of the journals give the order. A record that several journals have
        // is the same in all of them.
        frames.sort_by_key(|(journal, first, _)| (*first, *journal));
        let (mut runs, mut end): (Vec<Run>, u64) = (Vec::new(), 0);
        for (_, first, records) in frames {
            let last = first + (records.len() / size) as u64;
            if last > end {
                let start = end.max(*first);
                let records = records.slice((start - first) as usize * size..);
                runs.push(Run { numbers: start..last, records });
                end = last;
            }
        }
        runs
    }
}

/// A segment that is not whole, in front of others.
struct Gap {
    number: u32,
    /// Token of the next segment that is whole, so that no segment behind has a lower one.
    token: u32,
}

/// Committed records without a gap.
struct Run {
    numbers: Range<u64>,
    records: Bytes,
}

/// The records of these numbers, and the places of those that are in no journal.
fn records_of(runs: &[Run], layout: Layout, numbers: Range<u64>) -> (Vec<u8>, Vec<Range<usize>>) {
    let size = layout.record_bytes();
    let place = |number: u64| (number - numbers.start) as usize;
    let mut bytes = vec![0; place(numbers.end) * size];
    let (mut lost, mut end) = (Vec::new(), numbers.start);
    let from = runs.partition_point(|run| run.numbers.end <= numbers.start);
    for run in runs[from..].iter().take_while(|run| run.numbers.start < numbers.end) {
        let there = run.numbers.start.max(end)..run.numbers.end.min(numbers.end);
        if there.start > end {
            lost.push(place(end)..place(there.start));
        }
        let skip = (there.start - run.numbers.start) as usize * size;
        let out = &mut bytes[place(there.start) * size..place(there.end) * size];
        out.copy_from_slice(&run.records[skip..skip + out.len()]);
        end = there.end;
    }
    if end < numbers.end {
        lost.push(place(end)..place(numbers.end));
    }
    (bytes, lost)
}

/// Those of these segments that have records. Of chunks without any, nothing is written: they
/// are missing, as chunks that were moved to the objects.
fn segments_to_write(runs: &[Run], layout: Layout, segments: Range<u32>) -> Vec<u32> {
    let (mut numbers, mut number) = (Vec::new(), segments.start);
    while number < segments.end {
        let next = (number / SEGMENTS_PER_CHUNK + 1).saturating_mul(SEGMENTS_PER_CHUNK);
        let is_chunk = number.is_multiple_of(SEGMENTS_PER_CHUNK) && next <= segments.end;
        let (first, end) = (layout.first_record(number), layout.first_record(next));
        let at = runs.partition_point(|run| run.numbers.end <= first);
        let is_empty = runs.get(at).is_none_or(|run| run.numbers.start >= end);
        let next = next.min(segments.end);
        if !(is_chunk && is_empty) {
            numbers.extend(number..next);
        }
        number = next;
    }
    numbers
}

/// The numbers from this one on that are in none of the runs, in front of their end.
fn gaps_between(runs: &[Run], from: u64) -> Vec<Range<u64>> {
    let (mut gaps, mut end) = (Vec::new(), from);
    for run in runs.iter().filter(|run| run.numbers.end > from) {
        if run.numbers.start > end {
            gaps.push(end..run.numbers.start);
        }
        end = run.numbers.end;
    }
    gaps
}

impl<D: Disk> Volume<D> {
    /// Opens a disk in any state.
    ///
    /// # Errors
    /// [`crate::Error::Storage`], [`crate::Error::Version`]. Damage is no error but a [`DiskLoss`].
    pub fn open(disk: D, config: VolumeConfig) -> Result<(Self, Recovered)> {
        let mut found = Recovered::default();
        let listed = disk.list()?;
        let mut pieces = BTreeMap::new();
        let journals = journals_of(&disk, &listed)?;
        let mut before = None;
        for JournalFile { number, slot, is_spare, .. } in &journals {
            let ends = match *is_spare {
                true => JournalEnds::default(),
                false => read_journal(&disk, *number, *slot, &mut pieces, &mut found.losses)?,
            };
            found.losses.extend(lost_end(before, *number, &ends));
            before = Some((*number, ends));
            // What later journals state as synced leaves memory, with the journals that have it.
            pieces.values_mut().for_each(Pieces::forget_synced);
        }
        let mut chunks = Chunks::default();
        for (name, bytes) in &listed {
            if let Some((kind, file, number)) = parse_chunk_name(name) {
                chunks.reach(kind, file, number, *bytes);
            }
        }
        let unknown = files_of_chunks(&disk, &chunks, &mut pieces)?;
        let numbers = journals.iter().map(|file| file.number.max(file.slot) + 1);
        let number = numbers.max().unwrap_or(0);
        let mut volume = Self::beginning_at(number, disk, config);
        volume.chunks = chunks;
        volume.has_reserve =
            listed.iter().any(|(name, bytes)| name == RESERVE && *bytes >= RESERVE_BYTES as u64);
        for (file, piece) in pieces {
            let recovered = volume.assemble(&piece, &mut found.losses)?;
            found.files.insert(file, recovered);
        }
        for file in unknown {
            // No journal has this file and none of its segments is whole.
            volume.truncate(SegmentKind::Data, file, 0)?;
            let what = "no segment is whole".to_owned();
            let place = format!("file {file}");
            found.losses.push(DiskLoss { place, what, is_torn_end: true });
        }
        let ends: BTreeMap<FileId, u64> =
            found.files.iter().map(|(file, recovered)| (*file, recovered.records)).collect();
        for JournalFile { number, slot, .. } in journals {
            let ends = ends.clone();
            volume.old.push(OldJournal { number, slot, bytes: 0, ends, is_reusable: false });
        }
        volume.sync_opened(&found)?;
        Ok((volume, found))
    }

    /// Syncs everything that was found, since an append behind it may be acknowledged next. A crash
    /// of the process alone leaves writes that no sync has reached.
    fn sync_opened(&mut self, found: &Recovered) -> Result<()> {
        let is_whole = |of: &RecoveredFile| of.partial.is_empty() && of.lost.is_empty();
        if found.files.values().any(|of| !of.unwritten.is_empty()) {
            return Ok(self.disk.sync_all()?);
        }
        if !self.old.is_empty() && found.losses.is_empty() && found.files.values().all(is_whole) {
            self.flush()?;
            self.keep_reserve();
            return Ok(());
        }
        let tail_of = &mut |file, _| found.files.get(&file).map(|of| of.tail.clone());
        let mut done = self.checkpoint(tail_of);
        if done.as_ref().is_err_and(is_full) && self.draw_on_reserve() {
            done = self.checkpoint(tail_of);
        }
        match done {
            // The journals in which the records were found stay.
            Err(error) if is_full(&error) => Ok(self.disk.sync_all()?),
            done => done.map(drop),
        }
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
    fn assemble(&mut self, piece: &Pieces, losses: &mut Vec<DiskLoss>) -> Result<RecoveredFile> {
        let origin = piece.origin;
        let layout = Layout::new(usize::from(origin.record_bytes))?;
        let (reach, gaps) = self.whole_reach(piece, layout, losses)?;
        self.truncate(SegmentKind::Data, origin.file, reach)?;
        let runs = piece.runs(layout);
        let in_chunks = layout.first_record(reach);
        let records = runs.last().map_or(0, |run| run.numbers.end).max(in_chunks);
        self.files.insert(origin.file, Shelf::with_synced(origin, in_chunks));
        let full = layout.full_segments(records);
        let (mut partial, mut lost, mut unwritten) = (Vec::new(), Vec::new(), Vec::new());
        let behind = segments_to_write(&runs, layout, reach..full).into_iter();
        let behind = behind.map(|number| Gap { number, token: origin.token });
        for Gap { number, token } in gaps.into_iter().chain(behind) {
            let first = layout.first_record(number);
            let (payload, places) =
                records_of(&runs, layout, first..layout.first_record(number + 1));
            if let Some(place) = places.first() {
                self.keep_aside(origin.file, number)?;
                partial.push(PartialSegment { number, kept: place.start as u64 });
            }
            if number < reach {
                lost.extend(places.iter().map(|place| layout.numbers_of(number, place)));
            }
            let origin = Origin { token, ..origin };
            let sealed = seal_segment(origin, number, &payload, &places);
            self.write_or_keep(sealed, reach, &mut unwritten)?;
        }
        lost.extend(gaps_between(&runs, in_chunks));
        let lost = join_ranges(lost);
        losses.extend(lost.iter().filter(|range| !piece.has_told(range)).map(|range| {
            let (from, to) = (range.start, range.end - 1);
            let what = format!(
                "records {from} to {to} are lost, and all behind them are kept: records {} to {}",
                range.end,
                records - 1
            );
            DiskLoss { place: format!("file {}", origin.file), what, is_torn_end: false }
        }));
        let (tail, places) = records_of(&runs, layout, layout.first_record(full)..records);
        let tail = TailRecords { bytes: Bytes::from(tail), lost: places };
        Ok(RecoveredFile { origin, records, tail, partial, lost, unwritten })
    }

    /// Writes a segment. Without room, a segment behind the whole ones stays in memory, and so do
    /// those that follow it.
    fn write_or_keep(
        &mut self,
        sealed: SealedSegment,
        reach: u32,
        unwritten: &mut Vec<SealedSegment>,
    ) -> Result<()> {
        let written = self.write(sealed.clone());
        // Readers find these segments by their distance from the first one.
        let follows = match unwritten.last() {
            Some(last) => last.number + 1 == sealed.number,
            None => sealed.number >= reach,
        };
        match written {
            Err(error) if !is_full(&error) || !follows => return Err(error),
            Ok(()) if unwritten.is_empty() => {}
            _ => unwritten.push(sealed),
        }
        Ok(())
    }

    /// The number after the last whole segment, and the segments before it that are not whole, from
    /// where the file stood. The journal states a chunk as synced before the chunk moves to the
    /// objects, so a chunk that is missing behind that place is a gap.
    fn whole_reach(
        &self,
        piece: &Pieces,
        layout: Layout,
        losses: &mut Vec<DiskLoss>,
    ) -> Result<(u32, Vec<Gap>)> {
        let file = piece.origin.file;
        let first = layout.full_segments(piece.synced);
        let (mut end, mut gaps, mut torn) = (first, Vec::new(), None);
        // Gaps whose token is known.
        let mut settled = 0;
        // A later life of the primary never writes behind an earlier one's segments.
        let mut token = 0;
        let mut there = self.chunks.segments(SegmentKind::Data, file, first);
        // A chunk that is missing in front of the others was moved to the objects, unless a journal
        // still has its records: then it was never stated as synced, and a crash took it.
        let numbers_of = |number| layout.first_record(number)..layout.first_record(number + 1);
        let start = layout.first_record(first);
        if !there.is_empty() && piece.has_frame_in(layout, start..start + 1) {
            there.start = first;
        }
        for number in there {
            match read_segment(&self.disk, SegmentKind::Data, file, number) {
                Ok(Some(bytes)) => {
                    let header = segment::expect(&bytes, SegmentKind::Data, file, number)?;
                    let is_full = u64::from(header.count) == layout.records_per_segment();
                    let is_end = is_full || !piece.has_frame_in(layout, numbers_of(number));
                    if header.token < token {
                        gaps.push(Gap { number, token });
                    } else if is_end {
                        // A segment that is not full has lost records in an earlier recovery. What
                        // it had behind it may have been lost since.
                        end = number + 1;
                        token = if is_full { header.token } else { token };
                        gaps[settled..].iter_mut().for_each(|gap| gap.token = header.token);
                        settled = gaps.len();
                    }
                }
                Ok(None) => gaps.push(Gap { number, token }),
                Err(crate::Error::Damaged { place, what }) => {
                    gaps.push(Gap { number, token });
                    torn = torn.or(Some((number, DiskLoss { place, what, is_torn_end: true })));
                }
                Err(error) => return Err(error),
            }
        }
        gaps.retain(|gap| gap.number < end);
        // A segment in a chunk is acknowledged only after a sync, and nothing behind this segment
        // was synced.
        losses.extend(torn.filter(|(number, _)| *number >= end).map(|(_, loss)| loss));
        Ok((end, gaps))
    }

    /// Copies a segment that is not whole into a file of its own, for people.
    fn keep_aside(&self, file: FileId, number: u32) -> Result<()> {
        let (chunk, offset) = segment_place(number);
        let name = chunk_name(SegmentKind::Data, file, chunk);
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

/// Sorts ranges, and joins those that touch or overlap.
pub fn join_ranges(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut all: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match all.last_mut().filter(|last| range.start <= last.end) {
            Some(last) => last.end = last.end.max(range.end),
            None => all.push(range),
        }
    }
    all
}

/// A journal file before it is read.
struct JournalFile {
    number: u64,
    slot: u64,
    is_spare: bool,
    /// The number of its first commit, as far as it is known.
    first_sequence: Option<u64>,
}

/// Every journal, in the order in which the journals were written. The header has the number, which
/// is no less than the slot in the name: a file holds one journal after another.
fn journals_of(disk: &impl Disk, listed: &[(String, u64)]) -> Result<Vec<JournalFile>> {
    let (mut journals, mut headless) = (Vec::new(), Vec::new());
    for slot in listed.iter().filter_map(|(name, _)| parse_journal_name(name)) {
        let name = journal_name(slot);
        let bytes = disk.read(&name, 0, journal::BEGINNING_BYTES)?;
        match journal::parse_header(&name, &bytes)? {
            Some(header) => {
                let first_sequence = header.first_sequence(&bytes);
                let (number, is_spare) = (header.number, header.is_spare);
                journals.push(JournalFile { number, slot, is_spare, first_sequence });
            }
            None => headless.push(slot),
        }
    }
    number_headless(disk, headless, &mut journals)?;
    journals.sort_unstable_by_key(|file| (file.number, file.slot));
    Ok(journals)
}

/// Gives a number to journals without a whole header. Commits are numbered on from one journal of a
/// life to the next, so they tell behind which journal they were written. A spare that has lost its
/// header comes first: later journals state what it has as synced.
fn number_headless(
    disk: &impl Disk,
    slots: Vec<u64>,
    journals: &mut Vec<JournalFile>,
) -> Result<()> {
    let mut headless = Vec::new();
    for slot in slots {
        let name = journal_name(slot);
        let mut first = None;
        let scan =
            journal::scan_commits(&name, &disk.read(&name, 0, usize::MAX)?, &mut |commit| {
                first = first.or(Some(commit.sequence));
            })?;
        headless.push((scan.next_sequence, slot, first));
    }
    headless.sort_unstable();
    for (next, slot, first_sequence) in headless {
        let known = || journals.iter().filter(|file| file.first_sequence.is_some());
        let before = known().filter(|file| file.first_sequence < next);
        let number = match before.max_by_key(|file| file.first_sequence) {
            Some(before) => Some(before.number.saturating_add(1)),
            None => known().map(|file| file.number).min().and_then(|least| least.checked_sub(1)),
        };
        // Without commits nothing tells the number, and nothing needs it.
        let number = number.filter(|_| next.is_some()).unwrap_or(slot);
        journals.push(JournalFile { number, slot, is_spare: false, first_sequence });
    }
    Ok(())
}

/// Adds the files that have chunks and stand in no journal. Returns the files without a whole
/// segment, so that nothing says how long their records are.
fn files_of_chunks(
    disk: &impl Disk,
    chunks: &Chunks,
    pieces: &mut BTreeMap<FileId, Pieces>,
) -> Result<Vec<FileId>> {
    let data = chunks.bytes.keys().filter(|(kind, _, _)| *kind == SegmentKind::Data);
    let files: BTreeSet<FileId> = data.map(|(_, file, _)| *file).collect();
    let mut unknown = Vec::new();
    for file in files {
        if pieces.contains_key(&file) {
            continue;
        }
        match any_header(disk, chunks, file)? {
            Some(SegmentHeader { entry_bytes: record_bytes, token, .. }) => {
                let origin = Origin { file, record_bytes, token };
                pieces.insert(file, Pieces::new(origin));
            }
            None => unknown.push(file),
        }
    }
    Ok(unknown)
}

/// The numbers of the commits at the two ends of a journal.
#[derive(Clone, Copy, Debug, Default)]
struct JournalEnds {
    /// Number of the first commit, when it is whole.
    first: Option<u64>,
    /// The number behind that of the last whole commit.
    next: Option<u64>,
}

/// The loss of the last commits of the journal before this one. Commits are numbered on from one
/// journal to the next, and from 0 in each life.
fn lost_end(
    before: Option<(u64, JournalEnds)>,
    number: u64,
    ends: &JournalEnds,
) -> Option<DiskLoss> {
    let (place, ends_before) = before.filter(|(before, _)| before + 1 == number)?;
    let (next, first) = (ends_before.next?, ends.first?);
    (first > next).then(|| {
        let what = format!("its last {} commits are lost: the next journal goes on", first - next);
        DiskLoss { place: format!("journal {place}"), what, is_torn_end: false }
    })
}

fn read_journal(
    disk: &impl Disk,
    number: u64,
    slot: u64,
    pieces: &mut BTreeMap<FileId, Pieces>,
    losses: &mut Vec<DiskLoss>,
) -> Result<JournalEnds> {
    let name = journal_name(slot);
    let bytes = disk.read(&name, 0, usize::MAX)?;
    let scan = journal::scan(&name, &bytes)?;
    for damage in &scan.damaged {
        let place = &bytes[damage.place.start as usize..damage.place.end as usize];
        let aside = format!("DAMAGED-{name}-{}", damage.place.start);
        match disk.write(&aside, 0, place) {
            // A store on a full disk opens all the same.
            Ok(()) | Err(StorageError::Full { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        losses.push(DiskLoss { place: name.clone(), what: say_damage(damage), is_torn_end: false });
    }
    if let Some(dropped) = &scan.dropped {
        let what = format!(
            "{} bytes from byte {} on are no commit ({}), {} whole commits behind",
            dropped.bytes, dropped.at, dropped.what, dropped.commits_behind
        );
        losses.push(DiskLoss { place: name, what, is_torn_end: dropped.is_torn_end() });
    }
    for frame in scan.frames {
        let origin = match &frame {
            Frame::Records(origin, ..) | Frame::Node(origin, _) | Frame::Lost(origin, ..) => {
                *origin
            }
            Frame::Deletion(file) => {
                pieces.remove(file);
                continue;
            }
        };
        let piece = pieces.entry(origin.file).or_insert_with(|| Pieces::new(origin));
        if piece.origin.record_bytes != origin.record_bytes {
            continue;
        }
        piece.origin = origin;
        match frame {
            Frame::Records(_, first, records) => piece.frames.push((number, first, records)),
            Frame::Node(_, synced) => piece.synced = piece.synced.max(synced),
            Frame::Lost(_, first, count) => piece.told.push(first..first.saturating_add(count)),
            Frame::Deletion(_) => {}
        }
    }
    Ok(JournalEnds { first: scan.first_sequence, next: scan.next_sequence })
}

/// Damage of a journal in words.
pub(super) fn say_damage(damage: &JournalDamage) -> String {
    let JournalDamage { place, commits_lost, commits_behind, what } = damage;
    let lost = match commits_lost {
        Some(0) => "no commit is lost".to_owned(),
        Some(1) => "1 commit is lost".to_owned(),
        Some(count) => format!("{count} commits are lost"),
        None => "the first commits are lost".to_owned(),
    };
    format!(
        "bytes {} to {} have changed ({what}): {lost}, and {commits_behind} whole commits behind \
         are read",
        place.start,
        place.end.saturating_sub(1)
    )
}

/// The header of the first whole segment of a file in chunks.
fn any_header(disk: &impl Disk, chunks: &Chunks, file: FileId) -> Result<Option<SegmentHeader>> {
    for number in chunks.segments(SegmentKind::Data, file, 0) {
        match read_segment(disk, SegmentKind::Data, file, number) {
            Ok(Some(bytes)) => {
                return Ok(Some(segment::expect(&bytes, SegmentKind::Data, file, number)?));
            }
            Ok(None) | Err(crate::Error::Damaged { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
