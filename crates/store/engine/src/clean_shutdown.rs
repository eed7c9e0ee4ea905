//! The list of whole files that a clean stop leaves behind, and the check of a directory.
//!
//! Segments, commits, tails and metadata have checksums of their own and can be checked at any
//! time. The list has every file's length, and a checksum of each file that has none of its own.
//! The list covers free pages of the directory of names, records that were put aside, and missing
//! files. A clean stop writes the list, and opening the store removes it. Writing the list reads no
//! chunk and no object, so a stop takes no longer for a larger store.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use evenfall_core::{Objects as _, StorageError};
use evenfall_host::whole_file::read_up_to;
use evenfall_store_format::layout::{SEGMENT_BYTES, SEGMENTS_PER_CHUNK, parse_chunk_name};
use evenfall_store_format::metadata::decode_block;
use evenfall_store_format::pack::check_pack;
use evenfall_store_format::publication::check_tail;
use evenfall_store_format::volume::{Finding, Verification, verify};
use evenfall_store_format::{FileId, SegmentKind, segment};

use super::life_catalog::check_catalog;
use super::{Bucket, BucketOptions, DiskDirectory, Entry, Names, StoreDisk, StoreError, names};

/// Name of the list.
pub const NAME: &str = "SEALED";
/// Name of the list while it is written.
pub const NEW: &str = "SEALED.new";
/// Text in place of a checksum, for a file with checksums of its own.
const UNSUMMED: &str = "--------";
/// Most bytes of the list. A line has some sixty bytes, so that there is room for four million
/// files.
const LIST_BYTES_MAX: u64 = 256 << 20;
/// Bytes that one read takes.
const PART_BYTES: usize = 1 << 20;

fn io(place: &Path, error: &std::io::Error) -> StoreError {
    evenfall_core::StorageError::Failed {
        name: place.display().to_string(),
        what: error.to_string(),
    }
    .into()
}

fn damage(place: String, what: String) -> Finding {
    Finding { place, what, is_torn_end: false }
}

/// Whether this file has checksums of its own, as chunks, journals and objects have.
fn is_checked(name: &str) -> bool {
    let base = name.rsplit('/').next().unwrap_or(name).as_bytes();
    matches!(base, [b'D' | b'I' | b'J' | b'T' | b'M' | b'S', b'-', ..])
}

/// Every file below the directory, except the list itself, with its length.
fn files(directory: &Path) -> Result<BTreeMap<String, u64>, StoreError> {
    let mut files = BTreeMap::new();
    let mut open: Vec<PathBuf> = vec![directory.to_owned()];
    while let Some(here) = open.pop() {
        for entry in std::fs::read_dir(&here).map_err(|error| io(&here, &error))? {
            let path = entry.map_err(|error| io(&here, &error))?.path();
            let metadata = std::fs::metadata(&path).map_err(|error| io(&path, &error))?;
            if metadata.is_dir() {
                open.push(path);
                continue;
            }
            let name = path.strip_prefix(directory).unwrap_or(&path).display().to_string();
            if name != NAME && name != NEW {
                files.insert(name, metadata.len());
            }
        }
    }
    Ok(files)
}

fn checksum(directory: &Path, name: &str) -> Result<String, StoreError> {
    let path = directory.join(name);
    let read = || -> std::io::Result<u32> {
        let (mut file, mut part) = (File::open(&path)?, vec![0; PART_BYTES]);
        let mut crc = 0;
        loop {
            match file.read(&mut part)? {
                0 => return Ok(crc),
                len => crc = crc32c::crc32c_append(crc, &part[..len]),
            }
        }
    };
    Ok(format!("{:08x}", read().map_err(|error| io(&path, &error))?))
}

/// Writes the list.
///
/// # Errors
/// When the directory cannot be read or written.
pub fn write_list(directory: &Path) -> Result<(), StoreError> {
    let mut text = String::new();
    for (name, len) in files(directory)? {
        let sum = match is_checked(&name) {
            true => UNSUMMED.to_owned(),
            false => checksum(directory, &name)?,
        };
        text.push_str(&format!("{sum} {len} {name}\n"));
    }
    let crc = crc32c::crc32c(text.as_bytes());
    let (path, new) = (directory.join(NAME), directory.join(NEW));
    // After a crash either the whole list or no list exists.
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&new)?;
        file.write_all(format!("{text}{crc:08x}\n").as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, &path)?;
        File::open(directory)?.sync_all()
    };
    write().map_err(|error| io(&path, &error))
}

/// Findings from the list; `None` when there is no list.
fn check_list(directory: &Path) -> Result<Option<Vec<Finding>>, StoreError> {
    let path = directory.join(NAME);
    let finding = |place: &str, what: &str| damage(place.into(), what.into());
    let bytes = match read_up_to(&path, LIST_BYTES_MAX) {
        Ok(list) => list.bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Ok(Some(vec![finding(NAME, &error.to_string())])),
    };
    let whole = std::str::from_utf8(&bytes).ok().and_then(|text| {
        let at = text.trim_end_matches('\n').rfind('\n')? + 1;
        let (list, crc) = text.split_at(at);
        (crc == format!("{:08x}\n", crc32c::crc32c(list.as_bytes()))).then_some(list)
    });
    let Some(list) = whole else { return Ok(Some(vec![finding(NAME, "wrong checksum")])) };
    let mut now = files(directory)?;
    let mut findings = Vec::new();
    let what = "is not as the last stop left it";
    for line in list.lines() {
        let mut parts = line.splitn(3, ' ');
        let (sum, len) = (parts.next().unwrap_or(UNSUMMED), parts.next().unwrap_or_default());
        let name = parts.next().unwrap_or_default();
        let is_there = now.remove(name).is_some_and(|there| there.to_string() == len);
        if !is_there || (sum != UNSUMMED && checksum(directory, name)? != sum) {
            findings.push(finding(name, what));
        }
    }
    findings.extend(now.keys().map(|name| finding(name, what)));
    Ok(Some(findings))
}

/// The first chunk of each file that retention has kept, as the names state it.
fn kept_from(directory: &Path) -> Vec<(FileId, u32)> {
    let names = Names::open_to_read(&directory.join(names::FILE));
    let entries = names.and_then(|names| names.list()).unwrap_or_default();
    let first = |(_, entry): (String, Entry)| {
        let layout = entry.schema.layout().ok()?;
        Some((entry.id, layout.full_segments(entry.first) / SEGMENTS_PER_CHUNK))
    };
    entries.into_iter().filter_map(first).collect()
}

/// Reads every byte of a store's directory.
///
/// # Errors
/// When the directory cannot be read at all.
pub fn verify_directory(directory: &Path) -> Result<Verification, StoreError> {
    let disk = StoreDisk::open(DiskDirectory::open_unlocked(directory)?, super::chunk_codec())?;
    let mut seen = verify(&disk)?;
    let objects = directory.join("objects");
    // Objects elsewhere may be many, and some may belong to other stores. `verify_archive` reads
    // those.
    let bucket = match Names::objects_of(directory) {
        Ok(Some(place)) if !seen.absent.is_empty() => Some(Bucket::open(&place)?),
        _ if objects.is_dir() => {
            let bucket = Bucket::directory(&objects)?;
            verify_objects(&bucket, &mut seen)?;
            Some(bucket)
        }
        _ => None,
    };
    if let Some(bucket) = bucket {
        let there: std::collections::BTreeSet<String> = bucket.list("D-")?.into_iter().collect();
        seen.absent.retain(|chunk| !there.contains(chunk));
    }
    let kept = if seen.absent.is_empty() { Vec::new() } else { kept_from(directory) };
    for chunk in std::mem::take(&mut seen.absent) {
        let is_gone = |(file, first): &(FileId, u32)| {
            parse_chunk_name(&chunk).is_some_and(|(_, of, number)| of == *file && number < *first)
        };
        if kept.iter().any(is_gone) {
            continue;
        }
        let what = "is neither on the disk nor in the object store".to_owned();
        seen.findings.push(damage(chunk, what));
    }
    if let Some(findings) = check_list(directory)? {
        seen.findings.extend(findings);
        seen.others.clear();
    } else if seen.others.iter().any(|name| name == names::FILE) {
        // Without a list, the store is open or was left by a crash.
        seen.others.retain(|name| name != names::FILE);
        if let Err(error) = Names::check(&directory.join(names::FILE)) {
            seen.findings.push(damage(names::FILE.into(), error.to_string()));
        }
    }
    Ok(seen)
}

/// Reads every byte of the objects in this directory or at this address.
///
/// # Errors
/// The errors of the object store.
pub fn verify_archive(place: &str) -> Result<Verification, StoreError> {
    let mut seen = Verification::default();
    let bucket = Bucket::open_to_read(place, &BucketOptions::default())?;
    verify_objects(&bucket, &mut seen)?;
    Ok(seen)
}

/// Reads every byte of an object store.
///
/// # Errors
/// The errors of the object store.
pub fn verify_objects(bucket: &Bucket, seen: &mut Verification) -> Result<(), StoreError> {
    for name in bucket.list("")? {
        let place = format!("object {name}");
        let bytes = match bucket.get(&name, 0, usize::MAX) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => continue,
            Err(StorageError::Damaged { what, .. }) => {
                seen.findings.push(damage(place, what));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        seen.bytes += bytes.len() as u64;
        let wrong = match name.as_bytes().first() {
            Some(b'D' | b'I') => check_chunk(&name, &bytes, &mut seen.segments),
            Some(b'P') => check_pack(&bytes, &name).map(drop).map_err(|e| e.to_string()),
            Some(b'T') => check_tail(&bytes, &name).map(drop).map_err(|e| e.to_string()),
            Some(b'M') => decode_block(&bytes, &name).map(drop).map_err(|e| e.to_string()),
            Some(b'S') => check_catalog(&name, &bytes).map_err(|e| e.to_string()),
            _ => Err("an object of no kind known here".to_owned()),
        };
        if let Err(what) = wrong {
            seen.findings.push(damage(place, what));
        }
    }
    Ok(())
}

fn check_chunk(name: &str, bytes: &[u8], segments: &mut u64) -> Result<(), String> {
    let (kind, file, chunk): (SegmentKind, _, u32) =
        parse_chunk_name(name).ok_or("not the name of a chunk")?;
    for (slot, part) in bytes.chunks(SEGMENT_BYTES).enumerate() {
        let number = chunk.saturating_mul(SEGMENTS_PER_CHUNK).saturating_add(slot as u32);
        segment::expect(part, kind, file, number).map_err(|error| error.to_string())?;
        *segments += 1;
    }
    let whole = bytes.len() == SEGMENT_BYTES * SEGMENTS_PER_CHUNK as usize;
    if whole { Ok(()) } else { Err("it is not a whole chunk".into()) }
}
