//! The disk of the campaign, whose answers a mutant may change.

use bytes::Bytes;
use evenfall_core::{Disk, StorageError};
use evenfall_sim::SimDisk;

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
        let empty = self.mutant == Some(Mutant::ReadErrorIsEmptiness);
        if empty { read.or(Ok(Bytes::new())) } else { read }
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
