//! Checks that every byte of a store's directory is as it was written.

use std::collections::{BTreeMap, BTreeSet};

use evenfall_core::{Disk, StorageError};

use super::is_hole;
use super::recovery::say_damage;
use crate::error::{Error, Result};
use crate::journal::{self, Frame};
use crate::layout::{
    CHUNK_BYTES, FileId, Layout, RESERVE, SEGMENT_BYTES, SEGMENTS_PER_CHUNK, SegmentKind,
    chunk_name, parse_chunk_name, parse_journal_name,
};
use crate::segment;

/// A place whose bytes are not as they were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// File of the directory.
    pub place: String,
    /// What is wrong.
    pub what: String,
    /// Whether a crash in the middle of a write leaves the same: nothing behind it is whole, and
    /// no level of acknowledgement was promised for it.
    pub is_torn_end: bool,
}

/// The result of [`verify`].
#[derive(Clone, Debug, Default)]
pub struct Verification {
    /// Whole segments.
    pub segments: u64,
    /// Whole commits.
    pub commits: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Files of the directory that are of no kind known here.
    pub others: Vec<String>,
    /// Data chunks that are missing although their records were acknowledged. These chunks are in
    /// the object store, or lost.
    pub absent: Vec<String>,
    /// What is wrong.
    pub findings: Vec<Finding>,
}

/// Reads everything and changes nothing.
///
/// # Errors
/// [`Error::Storage`] when the disk cannot be read.
pub fn verify(disk: &impl Disk) -> Result<Verification> {
    let mut seen = Verification::default();
    let mut whole: BTreeSet<(FileId, u32)> = BTreeSet::new();
    let mut synced: BTreeMap<FileId, (u16, u64)> = BTreeMap::new();
    let mut chunks = BTreeSet::new();
    let mut broken = Vec::new();
    for (name, len) in disk.list()? {
        if let Some((kind, file, chunk)) = parse_chunk_name(&name) {
            chunks.insert(name.clone());
            let numbers =
                chunk_segments(disk, &name, len, (kind, file, chunk), &mut seen, &mut whole)?;
            broken.extend(numbers.into_iter().map(|(at, number)| (at, kind, file, number)));
        } else if parse_journal_name(&name).is_some() {
            journal_commits(disk, &name, &mut seen, &mut synced)?;
        } else if name != RESERVE {
            seen.others.push(name);
        }
    }
    for (at, kind, file, number) in broken {
        let promised = match synced.get(&file) {
            Some((record_bytes, records)) => {
                Layout::new(usize::from(*record_bytes))?.full_segments(*records)
            }
            None => 0,
        };
        seen.findings[at].is_torn_end = kind == SegmentKind::Data && number >= promised;
    }
    for (file, (record_bytes, records)) in synced {
        let full = Layout::new(usize::from(record_bytes))?.full_segments(records);
        let mut missing = BTreeSet::new();
        for number in 0..full {
            let chunk = chunk_name(SegmentKind::Data, file, number / SEGMENTS_PER_CHUNK);
            if !chunks.contains(&chunk) {
                missing.insert(chunk);
            } else if !whole.contains(&(file, number)) {
                let what = format!("segment {number} was promised and is not there");
                seen.findings.push(Finding { place: chunk, what, is_torn_end: false });
            }
        }
        seen.absent.extend(missing);
    }
    Ok(seen)
}

/// Checks a chunk; gives the segments that are not whole, and the place of each finding.
fn chunk_segments(
    disk: &impl Disk,
    name: &str,
    len: u64,
    (kind, file, chunk): (SegmentKind, FileId, u32),
    seen: &mut Verification,
    whole: &mut BTreeSet<(FileId, u32)>,
) -> Result<Vec<(usize, u32)>> {
    let mut broken = Vec::new();
    let mut finding = |what: String| {
        seen.findings.push(Finding { place: name.into(), what, is_torn_end: false });
        seen.findings.len() - 1
    };
    if len > CHUNK_BYTES as u64 {
        finding(format!("{len} bytes, a chunk has {CHUNK_BYTES}"));
    }
    let bytes = match disk.read(name, 0, CHUNK_BYTES) {
        Ok(bytes) => bytes,
        // A chunk in columns is damaged as a whole, or in a part that other readers may not need.
        Err(StorageError::Damaged { name: place, what }) => {
            seen.findings.push(Finding { place, what, is_torn_end: false });
            let numbers = chunk * SEGMENTS_PER_CHUNK..(chunk + 1) * SEGMENTS_PER_CHUNK;
            whole.extend(numbers.map(|number| (file, number)));
            seen.bytes += len;
            return Ok(Vec::new());
        }
        Err(error) => return Err(error.into()),
    };
    for (slot, segment) in bytes.chunks(SEGMENT_BYTES).enumerate() {
        if is_hole(segment) {
            continue;
        }
        let number = chunk.saturating_mul(SEGMENTS_PER_CHUNK).saturating_add(slot as u32);
        match segment::expect(segment, kind, file, number) {
            Ok(header) => {
                let is_partial =
                    |layout: Layout| u64::from(header.count) < layout.records_per_segment();
                let layout = Layout::new(usize::from(header.entry_bytes));
                if kind == SegmentKind::Data && layout.is_ok_and(is_partial) {
                    finding(format!("records of segment {number} are lost"));
                }
                seen.segments += 1;
                if kind == SegmentKind::Data {
                    whole.insert((file, number));
                }
            }
            Err(error) => broken.push((finding(error.to_string()), number)),
        }
    }
    seen.bytes += bytes.len() as u64;
    Ok(broken)
}

fn journal_commits(
    disk: &impl Disk,
    name: &str,
    seen: &mut Verification,
    synced: &mut BTreeMap<FileId, (u16, u64)>,
) -> Result<()> {
    let bytes = disk.read(name, 0, usize::MAX)?;
    seen.bytes += bytes.len() as u64;
    let scan = match journal::scan(name, &bytes) {
        Ok(scan) => scan,
        Err(Error::Version { place, version }) => {
            let what = format!("format version {version}");
            seen.findings.push(Finding { place, what, is_torn_end: false });
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    seen.commits += scan.commits;
    let place = || name.to_owned();
    for damage in &scan.damaged {
        let what = say_damage(damage);
        seen.findings.push(Finding { place: place(), what, is_torn_end: false });
    }
    if let Some(dropped) = scan.dropped {
        let what = format!("{} bytes from {} on: {}", dropped.bytes, dropped.at, dropped.what);
        let is_torn_end = dropped.is_torn_end();
        seen.findings.push(Finding { place: place(), what, is_torn_end });
    }
    for frame in scan.frames {
        match frame {
            Frame::Node(origin, records) => {
                let known = synced.entry(origin.file).or_insert((origin.record_bytes, 0));
                known.1 = known.1.max(records);
            }
            Frame::Deletion(file) => {
                synced.remove(&file);
            }
            Frame::Lost(origin, first, count) => {
                let (file, last) = (origin.file, first.saturating_add(count).saturating_sub(1));
                let what = format!("records {first} to {last} of file {file} are lost");
                seen.findings.push(Finding { place: place(), what, is_torn_end: false });
            }
            Frame::Records(..) => {}
        }
    }
    Ok(())
}
