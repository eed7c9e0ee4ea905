//! Recovery of a volume after a crash.
//!
//! 1. Journals, oldest first, up to the first damage in each: where each file stood in synced
//!    chunks, and the records that were committed since.
//! 2. Chunks, from where the file stood: whole segments without a gap. Chunks may reach further
//!    than was promised.
//! 3. The committed records behind those segments. Full segments go to chunks, and the rest goes
//!    into a new journal. The old journals are removed when the new journal is synced. A recovery
//!    after a crash in between finds both, and does the work again.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Bytes, BytesMut};
use evenfall_core::Disk;

use super::{Chunks, OldJournal, Shelf, Volume, VolumeConfig, read_segment};
use crate::error::Result;
use crate::journal::{self, Frame, Origin};
use crate::layout::{
    FileId, Kind, Layout, SEGMENT_BYTES, SEGMENT_HEADER_BYTES, journal_name, parse_chunk_name,
    parse_journal_name,
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
    /// Journal, first record, records.
    frames: Vec<(u64, u64, Bytes)>,
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
        }
        let mut chunks = Chunks::default();
        for (name, bytes) in &listed {
            parse_chunk_name(name).into_iter().for_each(|chunk| chunks.reach(chunk, *bytes));
        }
        let unknown = files_of_chunks(&disk, &chunks, &mut pieces)?;
        let number = journals.iter().map(|(number, slot)| number.max(slot) + 1).max().unwrap_or(0);
        let mut volume = Self {
            disk,
            config,
            files: BTreeMap::new(),
            chunks,
            unsynced: Vec::new(),
            flushing: Vec::new(),
            reached: Vec::new(),
            rewrite: false,
            number,
            slot: number,
            offset: 0,
            sequence: 0,
            ends: BTreeMap::new(),
            base_bytes: 0,
            old: Vec::new(),
            spares: Vec::new(),
        };
        let mut tails = BTreeMap::new();
        let mut ends = BTreeMap::new();
        for (file, piece) in pieces {
            let recovered = volume.assemble(&piece, &mut found.losses)?;
            tails.insert(file, recovered.tail.clone());
            ends.insert(file, recovered.records);
            found.files.insert(file, recovered);
        }
        for file in unknown {
            // No journal has this file and its first segment is missing, so none of its records was
            // acknowledged.
            volume.truncate(Kind::Data, file, 0)?;
            let what = "segments without a beginning".to_owned();
            let place = format!("file {file}");
            found.losses.push(Loss { place, what, is_torn_end: true });
        }
        for (number, slot) in journals {
            let ends = ends.clone();
            volume.old.push(OldJournal { number, slot, ends, is_reusable: false });
        }
        volume.checkpoint(&mut |file, _| tails.get(&file).cloned())?;
        Ok((volume, found))
    }

    /// Rebuilds one file, and writes its full segments into chunks.
    fn assemble(&mut self, piece: &Pieces, losses: &mut Vec<Loss>) -> Result<RecoveredFile> {
        let Origin { file, record_bytes, .. } = piece.origin;
        let layout = Layout::new(usize::from(record_bytes))?;
        let mut segment = layout.full_segments(piece.synced);
        // A later life of the primary never writes behind an earlier one's segments.
        let mut token = 0;
        loop {
            match read_segment(&self.disk, Kind::Data, file, segment) {
                Ok(Some(bytes)) => {
                    let header = segment::expect(&bytes, Kind::Data, file, segment)?;
                    let is_full = u64::from(header.count) == layout.records_per_segment();
                    if !is_full || header.token < token {
                        break;
                    }
                    token = header.token;
                }
                Ok(None) => break,
                Err(crate::Error::Damaged { place, what }) => {
                    // A segment in a chunk is acknowledged only after a sync, and this segment was
                    // not synced.
                    losses.push(Loss { place, what, is_torn_end: true });
                    break;
                }
                Err(error) => return Err(error),
            }
            segment += 1;
        }
        self.truncate(Kind::Data, file, segment)?;
        let in_chunks = layout.first_record(segment);
        let (written, synced) = (in_chunks, in_chunks);
        let shelf = Shelf { origin: piece.origin, written, synced, stated: 0 };
        self.files.insert(file, shelf);
        let mut behind = committed_behind(piece, layout, in_chunks, losses);
        let records = in_chunks + (behind.len() / layout.record_bytes()) as u64;
        let full = layout.payload_bytes(layout.records_per_segment() as usize);
        while behind.len() >= full {
            let payload = behind.split_to(full);
            self.write(seal_data(piece.origin, layout, segment, &payload))?;
            segment += 1;
        }
        Ok(RecoveredFile { origin: piece.origin, records, tail: behind.freeze() })
    }
}

fn seal_data(origin: Origin, layout: Layout, number: u32, payload: &[u8]) -> Sealed {
    let mut bytes = vec![0; SEGMENT_BYTES];
    bytes[SEGMENT_HEADER_BYTES..][..payload.len()].copy_from_slice(payload);
    let header = Header {
        kind: Kind::Data,
        entry_bytes: origin.record_bytes,
        file: origin.file,
        number,
        count: layout.records_per_segment() as u32,
        token: origin.token,
    };
    segment::seal(&header, &mut bytes);
    Sealed { kind: Kind::Data, file: origin.file, number, bytes: Bytes::from(bytes) }
}

/// Committed records from `end` on, as far as there is no gap.
///
/// A journal that was removed may be back after a crash while the one before it is not: its frames
/// then stand behind a gap, and the journal after it has everything. So a gap is a loss only when
/// nothing later fills it.
fn committed_behind(
    piece: &Pieces,
    layout: Layout,
    mut end: u64,
    losses: &mut Vec<Loss>,
) -> BytesMut {
    let mut behind = BytesMut::new();
    let size = layout.record_bytes();
    // The commits that a journal takes over from the journal before it stand behind its own first
    // commits.
    let mut frames: Vec<_> = piece.frames.iter().collect();
    frames.sort_by_key(|(journal, first, _)| (*journal, *first));
    let mut skipped: Option<(u64, u64)> = None;
    for (_, first, records) in frames {
        let last = first + (records.len() / size) as u64;
        if *first > end {
            let (from, to) = skipped.unwrap_or((*first, last));
            skipped = Some((from.min(*first), to.max(last)));
        } else if last > end {
            behind.extend_from_slice(&records[(end - first) as usize * size..]);
            end = last;
        }
    }
    if let Some((first, last)) = skipped.filter(|(_, last)| *last > end) {
        losses.push(Loss {
            place: format!("file {}", piece.origin.file),
            what: format!("records from {end} on are missing before {first} to {last}"),
            is_torn_end: false,
        });
    }
    behind
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

/// Adds the files that have chunks and stand in no journal. Returns the files whose first segment
/// is missing, so that nothing says how long their records are.
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
        match first_header(disk, file)? {
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

/// The header of a file's first segment in chunks.
fn first_header(disk: &impl Disk, file: FileId) -> Result<Option<Header>> {
    match read_segment(disk, Kind::Data, file, 0) {
        Ok(Some(bytes)) => Ok(Some(segment::expect(&bytes, Kind::Data, file, 0)?)),
        Ok(None) | Err(crate::Error::Damaged { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
