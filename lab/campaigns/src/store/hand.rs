//! The disk of the campaign, whose answers a mutant may change.

use bytes::Bytes;
use evenfall_core::{Disk, StorageError};
use evenfall_sim::SimDisk;
use evenfall_store_format::journal::{
    COMMIT_BYTES, HEADER_BYTES, Scan, ScannedCommit, parse_header, scan_commits,
};
use evenfall_store_format::layout::parse_journal_name;

use super::Mutant;

/// The simulated disk, whose answers a mutant may change.
#[derive(Clone, Debug)]
pub(super) struct Hand {
    pub disk: SimDisk,
    pub mutant: Option<Mutant>,
}

impl Disk for Hand {
    fn write(&self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), StorageError> {
        self.disk.write(name, offset, bytes)
    }
    fn sync(&self, name: &str) -> Result<(), StorageError> {
        match self.mutant {
            Some(Mutant::CommitWithoutSync) => Ok(()),
            Some(Mutant::ColumnsUnsynced) if name.contains(".parquet") => Ok(()),
            Some(Mutant::SyncErrorIgnored) => self.disk.sync(name).or(Ok(())),
            _ => self.disk.sync(name),
        }
    }
    fn sync_all(&self) -> Result<(), StorageError> {
        match self.mutant {
            Some(Mutant::ChunksUnsynced) => Ok(()),
            Some(Mutant::SyncErrorIgnored) => self.disk.sync_all().or(Ok(())),
            _ => self.disk.sync_all(),
        }
    }
    fn read(&self, name: &str, offset: u64, len: usize) -> Result<Bytes, StorageError> {
        let read = self.disk.read(name, offset, len);
        // Only recovery reads a whole journal.
        let is_journal = len == usize::MAX && parse_journal_name(name).is_some();
        match self.mutant {
            Some(Mutant::ReadErrorIsEmptiness) => read.or(Ok(Bytes::new())),
            Some(Mutant::DropsBehindDamage) if is_journal => Ok(cut_at_damage(name, read?)),
            Some(Mutant::BelievesStaleCommit) if is_journal => Ok(with_stale_commits(name, read?)),
            _ => read,
        }
    }
    fn list(&self) -> Result<Vec<(String, u64)>, StorageError> {
        self.disk.list()
    }
    fn remove(&self, name: &str) -> Result<(), StorageError> {
        self.disk.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> Result<(), StorageError> {
        self.disk.rename(from, to)
    }
}

/// The whole commits of a journal, each with the end of its bytes and its number, and its damage.
fn scan_journal(name: &str, bytes: &Bytes) -> (Vec<(u64, u64)>, Scan) {
    let mut commits = Vec::new();
    let each = &mut |commit: ScannedCommit| commits.push((commit.place.end, commit.sequence));
    let scan = scan_commits(name, bytes, each).unwrap_or_default();
    (commits, scan)
}

/// A journal without what is behind its first damage.
fn cut_at_damage(name: &str, bytes: Bytes) -> Bytes {
    let (_, scan) = scan_journal(name, &bytes);
    let damaged = scan.damaged.iter().map(|damage| damage.place.start as usize);
    let end = damaged.filter(|start| *start >= HEADER_BYTES).min();
    bytes.slice(..end.unwrap_or(bytes.len()))
}

/// A journal in whose damaged commits the records that look like commits are commits.
fn with_stale_commits(name: &str, bytes: Bytes) -> Bytes {
    let Ok(Some(header)) = parse_header(name, &bytes) else { return bytes };
    let (commits, scan) = scan_journal(name, &bytes);
    let mut journal = bytes.to_vec();
    for place in scan.damaged.iter().map(|damage| &damage.place) {
        let before = commits.iter().rev().find(|(end, _)| *end <= place.start);
        let sequence = before.map_or(0, |(_, sequence)| sequence + 1);
        // The damaged commit itself begins at the first byte.
        for at in place.start as usize + 1..(place.end as usize).saturating_sub(COMMIT_BYTES) {
            let body = journal[at + 4..at + 8].try_into().expect("four bytes");
            let end = at + COMMIT_BYTES + u32::from_le_bytes(body) as usize;
            if journal[at..at + 4] == *b"EFCM" && end <= place.end as usize {
                let commit = &mut journal[at..end];
                commit[8..16].copy_from_slice(&sequence.to_le_bytes());
                commit[16..24].copy_from_slice(&header.identity.to_le_bytes());
                let crc = crc32c::crc32c(&(at as u64).to_le_bytes());
                let crc = crc32c::crc32c_append(crc, &commit[4..28]);
                let crc = crc32c::crc32c_append(crc, &commit[COMMIT_BYTES..]);
                commit[28..32].copy_from_slice(&crc.to_le_bytes());
                break;
            }
        }
    }
    Bytes::from(journal)
}
