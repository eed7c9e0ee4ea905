//! A disk that tears writes, fails syncs and survives crashes as real ones do.
//!
//! Reads see written bytes at once, and a sync makes them durable. In a crash, each sector of an
//! unsynced write is kept or lost independently. A file whose name was never synced may be
//! forgotten. A removed file may come back with its durable bytes until everything was synced, also
//! when another file has been made under its name. A sync that fails drops writes although reads
//! still see them, as Linux does with its page cache. A disk may also lie, and report a sync that
//! it did not make.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::{Disk, Prng, StorageError};

/// The smallest unit of bytes that a crash keeps or loses as a whole.
const SECTOR_BYTES: usize = 512;

/// The faults of a disk and how often they happen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DiskFaults {
    /// Share of writes that fail after some of their sectors were written.
    pub write_fails: f64,
    /// Share of syncs that fail and lose some of the writes that they should have kept.
    pub sync_fails: f64,
    /// Share of syncs that report success and keep nothing.
    pub sync_lies: f64,
    /// Share of reads that fail, and succeed when they are repeated.
    pub read_fails: f64,
    /// Bytes on the disk beyond which no write adds any, because the disk is full.
    pub bytes_max: Option<u64>,
    /// Longest additional time of a write, where writes take time: see
    /// [`SimWrites`](crate::SimWrites).
    pub slow_by: Duration,
}

impl DiskFaults {
    /// Faults with random shares and delays up to these.
    pub(crate) fn drawn(&self, prng: &mut Prng) -> Self {
        Self {
            write_fails: self.write_fails * prng.unit(),
            sync_fails: self.sync_fails * prng.unit(),
            sync_lies: self.sync_lies * prng.unit(),
            read_fails: self.read_fails * prng.unit(),
            bytes_max: self.bytes_max,
            slow_by: self.slow_by.mul_f64(prng.unit()),
        }
    }
}

#[derive(Clone, Debug, Default)]
struct File {
    /// The bytes that reads see.
    seen: Vec<u8>,
    /// The bytes that survive every crash; `None` until the name was synced.
    durable: Option<Vec<u8>>,
    /// Offset and bytes of the writes since the last sync.
    pending: Vec<(usize, Vec<u8>)>,
    /// Whether the file was removed and the removal is not synced.
    removed: bool,
    /// The durable bytes of a removed file under whose name this file was made. A crash before a
    /// sync may bring them back.
    before: Option<Vec<u8>>,
}

#[derive(Debug)]
struct State {
    files: BTreeMap<String, File>,
    faults: DiskFaults,
    prng: Prng,
    crashes: u64,
    failures: u64,
}

/// A simulated disk. Clones are the same disk.
#[derive(Clone, Debug)]
pub struct SimDisk(Arc<Mutex<State>>);

fn place(bytes: &mut Vec<u8>, offset: usize, part: &[u8]) {
    bytes.resize(bytes.len().max(offset + part.len()), 0);
    bytes[offset..offset + part.len()].copy_from_slice(part);
}

/// Tears a write of `part` at `offset`, and returns the sectors that are written, each with its
/// offset. A coin decides for each sector.
fn torn<'a>(offset: usize, part: &'a [u8], prng: &mut Prng) -> Vec<(usize, &'a [u8])> {
    // One write in three is whole, and one in three is missing.
    let share = [0.0, 0.5, 1.0][prng.below(3) as usize];
    let (mut sectors, mut at) = (Vec::new(), 0);
    while at < part.len() {
        let to_border = SECTOR_BYTES - (offset + at) % SECTOR_BYTES;
        let end = (at + to_border).min(part.len());
        if prng.chance(share) {
            sectors.push((offset + at, &part[at..end]));
        }
        at = end;
    }
    sectors
}

impl File {
    fn keep(&mut self) {
        self.before = None;
        let durable = self.durable.get_or_insert_default();
        for (offset, part) in self.pending.drain(..) {
            place(durable, offset, &part);
        }
    }

    /// The effect of a failed sync: some sectors are kept, and the others are lost for good.
    fn drop_some(&mut self, prng: &mut Prng) {
        let durable = self.durable.get_or_insert_default();
        for (offset, part) in self.pending.drain(..) {
            for (at, sector) in torn(offset, &part, prng) {
                place(durable, at, sector);
            }
        }
    }
}

impl SimDisk {
    /// An empty disk.
    pub fn new(seed: u64, faults: DiskFaults) -> Self {
        let (files, prng) = (BTreeMap::new(), Prng::new(seed));
        Self(Arc::new(Mutex::new(State { files, faults, prng, crashes: 0, failures: 0 })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A thread that panicked while it had the disk ends its run.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts the power and restores it.
    pub fn crash(&self) {
        let state = &mut *self.state();
        state.crashes += 1;
        let prng = &mut state.prng;
        state.files.retain(|_, file| {
            if file.removed && prng.chance(0.5) {
                return false;
            }
            file.removed = false;
            if let Some(before) = file.before.take()
                && prng.chance(0.5)
            {
                file.pending.clear();
                file.durable = Some(before);
            }
            if file.durable.is_none() && prng.chance(0.5) {
                return false;
            }
            file.drop_some(prng);
            file.seen = file.durable.clone().unwrap_or_default();
            true
        });
    }

    /// Sets the faults from now on.
    pub fn set_faults(&self, faults: DiskFaults) {
        self.state().faults = faults;
    }

    /// The present faults.
    pub fn faults(&self) -> DiskFaults {
        self.state().faults
    }

    /// Makes a file of these bytes, which then takes the name of the file. A crash before a sync
    /// leaves the old bytes or the new ones.
    ///
    /// # Errors
    /// The file is unchanged then. While both files are there, the disk needs room for both.
    pub fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), StorageError> {
        Self::check_room(&mut self.state(), name, bytes.len() as u64)?;
        self.change(name, bytes)
    }

    /// Cuts the file off behind its first bytes. A crash before a sync leaves the old end or the
    /// new one.
    ///
    /// # Errors
    /// The file is unchanged then.
    pub fn truncate(&self, name: &str, keep: u64) -> Result<u64, StorageError> {
        let kept = self.read(name, 0, usize::try_from(keep).unwrap_or(usize::MAX))?;
        self.change(name, &kept)?;
        Ok(kept.len() as u64)
    }

    /// # Errors
    /// [`StorageError::Full`] when the disk has no room for this many more bytes.
    fn check_room(state: &mut State, name: &str, more: u64) -> Result<(), StorageError> {
        let Some(max) = state.faults.bytes_max else { return Ok(()) };
        let used: u64 = state.files.values().map(|file| file.seen.len() as u64).sum();
        if more > 0 && used.saturating_add(more) > max {
            state.failures += 1;
            return Err(StorageError::Full { name: name.into() });
        }
        Ok(())
    }

    fn change(&self, name: &str, bytes: &[u8]) -> Result<(), StorageError> {
        let state = &mut *self.state();
        if state.prng.chance(state.faults.write_fails) {
            return Err(Self::fail(state, name));
        }
        let file = state.files.entry(name.into()).or_default();
        let before = file.before.take().or_else(|| file.durable.take()).unwrap_or_default();
        let seen = bytes.to_vec();
        let (durable, before) = (Some(seen.clone()), Some(before));
        *file = File { seen, durable, before, ..File::default() };
        Ok(())
    }

    /// Flips a bit of a synced byte of a file. Returns whether the file has such a byte.
    pub fn rot_byte(&self, name: &str, at: u64) -> bool {
        let state = &mut *self.state();
        let Some(file) = state.files.get_mut(name).filter(|file| !file.removed) else {
            return false;
        };
        let synced = file.durable.as_mut().and_then(|bytes| bytes.get_mut(at as usize));
        let (Some(synced), Some(seen)) = (synced, file.seen.get_mut(at as usize)) else {
            return false;
        };
        *synced ^= 1 << (at % 8);
        *seen ^= 1 << (at % 8);
        true
    }

    /// Flips a bit in the `at`-th byte of all files, in order of names. Returns the name of the
    /// file; `None` beyond the last byte.
    pub fn flip(&self, at: u64) -> Option<String> {
        let state = &mut *self.state();
        let mut left = at;
        for (name, file) in state.files.iter_mut().filter(|(_, file)| !file.removed) {
            let len = file.seen.len() as u64;
            if left < len {
                file.seen[left as usize] ^= 1 << (at % 8);
                file.durable = Some(file.seen.clone());
                return Some(name.clone());
            }
            left -= len;
        }
        None
    }

    /// Crashes so far, and requests that failed.
    pub fn counts(&self) -> (u64, u64) {
        let state = self.state();
        (state.crashes, state.failures)
    }

    fn fail(state: &mut State, name: &str) -> StorageError {
        state.failures += 1;
        StorageError::Failed { name: name.into(), what: "input/output error".into() }
    }
}

impl Disk for SimDisk {
    fn write(&self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), StorageError> {
        let state = &mut *self.state();
        let there = state.files.get(name).filter(|file| !file.removed);
        let len = there.map_or(0, |file| file.seen.len() as u64);
        let end = offset.saturating_add(bytes.len() as u64);
        Self::check_room(state, name, end.saturating_sub(len))?;
        let file = state.files.entry(name.into()).or_default();
        if file.removed {
            let before = file.before.take().or_else(|| file.durable.take());
            *file = File { before, ..File::default() };
        }
        if state.prng.chance(state.faults.write_fails) {
            for (at, sector) in torn(offset as usize, bytes, &mut state.prng) {
                place(&mut file.seen, at, sector);
                file.pending.push((at, sector.to_vec()));
            }
            return Err(Self::fail(state, name));
        }
        place(&mut file.seen, offset as usize, bytes);
        file.pending.push((offset as usize, bytes.to_vec()));
        Ok(())
    }

    fn sync(&self, name: &str) -> Result<(), StorageError> {
        let state = &mut *self.state();
        if state.prng.chance(state.faults.sync_lies) {
            return Ok(());
        }
        let fails = state.prng.chance(state.faults.sync_fails);
        let Some(file) = state.files.get_mut(name) else { return Err(Self::fail(state, name)) };
        if fails {
            file.drop_some(&mut state.prng);
            return Err(Self::fail(state, name));
        }
        file.keep();
        Ok(())
    }

    fn sync_all(&self) -> Result<(), StorageError> {
        let state = &mut *self.state();
        if state.prng.chance(state.faults.sync_lies) {
            return Ok(());
        }
        let fails = state.prng.chance(state.faults.sync_fails);
        state.files.retain(|_, file| !file.removed || fails);
        for file in state.files.values_mut() {
            match fails {
                true => file.drop_some(&mut state.prng),
                false => file.keep(),
            }
        }
        if fails { Err(Self::fail(state, "everything")) } else { Ok(()) }
    }

    fn read(&self, name: &str, offset: u64, len: usize) -> Result<Bytes, StorageError> {
        let state = &mut *self.state();
        // Only a read of an existing file reaches the device and can fail.
        let share = state.faults.read_fails;
        if share > 0.0 && state.files.contains_key(name) && state.prng.chance(share) {
            return Err(Self::fail(state, name));
        }
        let file = state.files.get(name).filter(|file| !file.removed);
        let bytes = file.map_or(&[][..], |file| &file.seen);
        let from = (offset as usize).min(bytes.len());
        let to = from.saturating_add(len).min(bytes.len());
        Ok(Bytes::copy_from_slice(&bytes[from..to]))
    }

    fn list(&self) -> Result<Vec<(String, u64)>, StorageError> {
        let state = self.state();
        let there = state.files.iter().filter(|(_, file)| !file.removed);
        Ok(there.map(|(name, file)| (name.clone(), file.seen.len() as u64)).collect())
    }

    fn remove(&self, name: &str) -> Result<(), StorageError> {
        if let Some(file) = self.state().files.get_mut(name) {
            file.removed = true;
        }
        Ok(())
    }

    /// After a crash, each of the two names is there or not, whatever the other is.
    fn rename(&self, from: &str, to: &str) -> Result<(), StorageError> {
        let state = &mut *self.state();
        if state.prng.chance(state.faults.write_fails) {
            return Err(Self::fail(state, from));
        }
        let moved = state.files.get_mut(from).filter(|file| !file.removed);
        let Some(file) = moved else { return Err(Self::fail(state, from)) };
        let mut new = file.clone();
        file.removed = true;
        let old = state.files.remove(to).unwrap_or_default();
        // Before a sync the name may be that of the old file, or of none.
        new.before = Some(old.before.or(old.durable).unwrap_or_default());
        state.files.insert(to.into(), new);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_synced_survives_and_the_rest_may_tear() {
        let mut torn = 0;
        for seed in 0..50 {
            let disk = SimDisk::new(seed, DiskFaults::default());
            disk.write("a", 0, &[1; 4_096]).unwrap();
            disk.sync("a").unwrap();
            disk.write("a", 4_096, &[2; 4_096]).unwrap();
            disk.crash();
            let bytes = disk.read("a", 0, usize::MAX).unwrap();
            assert_eq!(&bytes[..4_096], &[1; 4_096]);
            let kept = bytes[4_096..].iter().filter(|byte| **byte == 2).count();
            torn += u32::from(kept > 0 && kept < 4_096);
        }
        assert!(torn > 5, "{torn}");
    }

    #[test]
    fn a_write_that_fails_leaves_whole_sectors_of_old_or_new_bytes() {
        let mut mixed = 0;
        for seed in 0..50 {
            let disk = SimDisk::new(seed, DiskFaults::default());
            disk.write("a", 0, &[1; 2_048]).unwrap();
            disk.sync("a").unwrap();
            disk.set_faults(DiskFaults { write_fails: 1.0, ..DiskFaults::default() });
            assert!(disk.write("a", 100, &[2; 1_500]).is_err());
            disk.set_faults(DiskFaults::default());
            let seen = disk.read("a", 0, usize::MAX).unwrap();
            disk.sync("a").unwrap();
            disk.crash();
            assert_eq!(disk.read("a", 0, usize::MAX).unwrap(), seen);
            let (before, rest) = seen.split_at(100);
            let (written, after) = rest.split_at(1_500);
            assert!(before.iter().chain(after).all(|byte| *byte == 1), "seed {seed}");
            let sectors = [&written[..412], &written[412..924], &written[924..1_436]];
            for sector in sectors {
                assert!(*sector == [1; 512][..sector.len()] || *sector == [2; 512][..sector.len()]);
            }
            mixed += u32::from(sectors.iter().any(|sector| sector[0] != sectors[0][0]));
        }
        assert!(mixed > 5, "{mixed}");
    }

    #[test]
    fn a_full_disk_takes_no_more_bytes_and_still_changes_the_bytes_it_has() {
        let disk = SimDisk::new(1, DiskFaults::default());
        disk.write("a", 0, &[1; 1_000]).unwrap();
        disk.set_faults(DiskFaults { bytes_max: Some(1_000), ..DiskFaults::default() });
        let is_full = |done| matches!(done, Err(StorageError::Full { .. }));
        assert!(is_full(disk.write("a", 1_000, &[2])));
        assert!(is_full(disk.write("b", 0, &[2])));
        assert!(is_full(disk.replace("a", &[2; 10])));
        disk.write("a", 500, &[2; 500]).unwrap();
        assert_eq!(disk.truncate("a", 600).unwrap(), 600);
        disk.replace("a", &[3; 400]).unwrap();
        assert_eq!(disk.read("a", 0, usize::MAX).unwrap(), vec![3; 400]);
    }

    #[test]
    fn a_removed_file_may_come_back_until_a_sync_whatever_has_its_name() {
        let mut old = 0;
        for seed in 0..50 {
            let disk = SimDisk::new(seed, DiskFaults::default());
            disk.write("a", 0, &[1; 512]).unwrap();
            disk.sync("a").unwrap();
            disk.remove("a").unwrap();
            disk.write("a", 0, &[2; 512]).unwrap();
            let synced = seed % 2 == 0;
            if synced {
                disk.sync("a").unwrap();
            }
            disk.crash();
            let is_old = disk.read("a", 0, 512).unwrap() == vec![1; 512];
            assert!(!(synced && is_old), "seed {seed}");
            old += u32::from(is_old);
        }
        assert!(old > 5, "{old}");
    }

    #[test]
    fn a_read_that_failed_succeeds_later() {
        let disk = SimDisk::new(1, DiskFaults { read_fails: 0.5, ..DiskFaults::default() });
        disk.write("a", 0, &[1; 512]).unwrap();
        let reads: Vec<_> = (0..50).map(|_| disk.read("a", 0, 512)).collect();
        assert!(reads.iter().any(Result::is_err) && reads.iter().any(Result::is_ok));
        assert!(disk.read("other", 0, 1).unwrap().is_empty());
    }

    #[test]
    fn a_failed_sync_is_seen_by_reads_and_gone_after_a_crash() {
        let faults = DiskFaults { sync_fails: 1.0, ..DiskFaults::default() };
        let mut lost = false;
        for seed in 0..20 {
            let disk = SimDisk::new(seed, faults);
            disk.write("a", 0, &[1; 512]).unwrap();
            assert!(disk.sync("a").is_err());
            disk.set_faults(DiskFaults::default());
            disk.sync("a").unwrap();
            assert_eq!(disk.read("a", 0, 512).unwrap(), vec![1; 512]);
            disk.crash();
            lost |= disk.read("a", 0, 512).unwrap() != vec![1; 512];
        }
        assert!(lost);
    }
}
