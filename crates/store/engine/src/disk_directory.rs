//! A directory of the local file system as the [`Disk`] of a volume.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use evenfall_core::{Disk, StorageError};
use evenfall_host::disk_room::measure_room;
use evenfall_host::lock::create_private;
use evenfall_store_format::layout::parse_chunk_name;
use rustix::fs::{Advice, FlockOperation};
use rustix::io::Errno;

use crate::read_part::read_part;
use crate::write_counters::WriteCounters;

/// Files that are kept open. A thousand streams are written in turns, and opening a file costs one
/// more system call.
const OPEN_MAX: usize = 512;
/// A file system runs low when less than this part of it is free: one part in so many.
const LOW_PARTS: u64 = 8;
/// A file system with this much room never runs low: it holds several journals, and what is
/// appended while chunks leave.
const LOW_BYTES_MAX: u64 = 1 << 30;
/// Bytes of a chunk after which writing begins without waiting for a sync. The disk is then busy
/// between syncs, and a sync finds little to do.
const WRITE_BEHIND_BYTES: u64 = 1 << 20;

#[derive(Debug)]
struct DirectoryState {
    path: PathBuf,
    open: Mutex<BTreeMap<String, Arc<File>>>,
    /// The directory itself. The directory is synced for the names of files, and locked against a
    /// second process.
    directory: File,
    /// Whether names were made since the last sync of the directory.
    has_new_names: Mutex<bool>,
    /// Counts what is written.
    written: WriteCounters,
    /// Files written since the directory was opened to read, whole; `None` for a removed file.
    /// Without an overlay, writes go to the disk.
    overlay: Option<Mutex<Overlay>>,
}

impl Drop for DirectoryState {
    /// Unlocks the directory, because closing the file does not always do so: a child process that
    /// was forked and has not begun its own program yet still has the file open.
    fn drop(&mut self) {
        rustix::fs::flock(&self.directory, FlockOperation::Unlock).ok();
    }
}

type Overlay = BTreeMap<String, Option<Vec<u8>>>;

/// The directory. Clones share it.
#[derive(Clone, Debug)]
pub struct DiskDirectory(Arc<DirectoryState>);

fn storage_error(name: &str, error: &std::io::Error) -> StorageError {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            StorageError::Full { name: name.into() }
        }
        _ => StorageError::Failed { name: name.into(), what: error.to_string() },
    }
}

fn locked(path: &Path, lock: FlockOperation) -> Result<File, StorageError> {
    let name = path.display().to_string();
    let directory = File::open(path).map_err(|error| storage_error(&name, &error))?;
    match rustix::fs::flock(&directory, lock) {
        Ok(()) => Ok(directory),
        Err(error) if error != Errno::WOULDBLOCK => Err(storage_error(&name, &error.into())),
        Err(_) => Err(StorageError::Unavailable {
            name,
            what: "another process has the store open; stop it first, or, if it serves the store \
                   (`evenfall store serve`), use its address, such as tcp://127.0.0.1:7410"
                .into(),
        }),
    }
}

impl DiskDirectory {
    /// Opens the directory for this process alone. A missing directory is created for this user.
    ///
    /// # Errors
    /// When the directory cannot be created, opened or locked. A lock fails while another process
    /// has the directory.
    pub fn open(path: &Path) -> Result<Self, StorageError> {
        let name = path.display().to_string();
        create_private(path).map_err(|error| storage_error(&name, &error))?;
        let directory = locked(path, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self::with(path, directory, None))
    }

    /// Opens the directory to read, while no process writes it. Writes go to memory, and are read
    /// back from there.
    ///
    /// # Errors
    /// When the directory cannot be opened, or another process has it open to write.
    pub fn open_to_read(path: &Path) -> Result<Self, StorageError> {
        let directory = locked(path, FlockOperation::NonBlockingLockShared)?;
        Ok(Self::with(path, directory, Some(Mutex::default())))
    }

    /// Whether the directory was opened to read.
    pub fn is_reading(&self) -> bool {
        self.0.overlay.is_some()
    }

    /// Whether the file system has little room left for this process.
    pub fn is_low(&self) -> bool {
        let room = measure_room(&self.0.directory);
        room.is_ok_and(|room| room.free_bytes < (room.all_bytes / LOW_PARTS).min(LOW_BYTES_MAX))
    }

    /// Opens the directory for a reader of its bytes, without a lock and whatever other processes
    /// do. The reader must not write.
    ///
    /// # Errors
    /// When the directory cannot be opened.
    pub fn open_unlocked(path: &Path) -> Result<Self, StorageError> {
        let name = path.display().to_string();
        let directory = File::open(path).map_err(|error| storage_error(&name, &error))?;
        Ok(Self::with(path, directory, None))
    }

    fn with(path: &Path, directory: File, overlay: Option<Mutex<Overlay>>) -> Self {
        let open = Mutex::new(BTreeMap::new());
        let (path, has_new_names) = (path.to_owned(), Mutex::new(false));
        let written = WriteCounters::default();
        Self(Arc::new(DirectoryState { path, open, directory, has_new_names, written, overlay }))
    }

    /// The counters of the bytes that are written to the directory.
    pub fn write_counters(&self) -> WriteCounters {
        self.0.written.clone()
    }

    fn overlay(&self) -> Option<MutexGuard<'_, Overlay>> {
        let overlay = self.0.overlay.as_ref()?;
        Some(overlay.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn read_disk(&self, name: &str, offset: u64, len: usize) -> Result<Bytes, StorageError> {
        let read = || -> std::io::Result<Bytes> {
            let file = self.file(name, false)?;
            read_part(&file, offset, len)
        };
        match read() {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Bytes::new()),
            done => done.map_err(|error| storage_error(name, &error)),
        }
    }

    fn file(&self, name: &str, create: bool) -> std::io::Result<Arc<File>> {
        let mut open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.get(name) {
            return Ok(Arc::clone(file));
        }
        let path = self.0.path.join(name);
        let mut options = OpenOptions::new();
        let opened = options.read(true).write(create).open(&path);
        let file = match opened {
            Err(error) if create && error.kind() == ErrorKind::NotFound => {
                let file = options.create(true).truncate(false).open(path)?;
                *self.0.has_new_names.lock().unwrap_or_else(PoisonError::into_inner) = true;
                file
            }
            opened => opened?,
        };
        let file = Arc::new(file);
        if create {
            while open.len() >= OPEN_MAX {
                open.pop_first();
            }
            open.insert(name.to_owned(), Arc::clone(&file));
        }
        Ok(file)
    }
}

impl Disk for DiskDirectory {
    fn write(&self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), StorageError> {
        if let Some(mut overlay) = self.overlay() {
            let whole = match overlay.remove(name) {
                Some(there) => there.unwrap_or_default(),
                None => self.read_disk(name, 0, usize::MAX)?.to_vec(),
            };
            let whole = overlay.entry(name.to_owned()).or_default().insert(whole);
            let end = offset as usize + bytes.len();
            whole.resize(whole.len().max(end), 0);
            whole[offset as usize..end].copy_from_slice(bytes);
            return Ok(());
        }
        let write = || {
            let file = self.file(name, true)?;
            file.write_all_at(bytes, offset)?;
            self.0.written.count_write(name, bytes.len());
            let end = offset + bytes.len() as u64;
            if end.is_multiple_of(WRITE_BEHIND_BYTES) && parse_chunk_name(name).is_some() {
                let (from, len) = (end - WRITE_BEHIND_BYTES, NonZeroU64::new(WRITE_BEHIND_BYTES));
                // The call is only advice. A file system that ignores it writes everything at the
                // sync.
                let _ = rustix::fs::fadvise(&file, from, len, Advice::DontNeed);
            }
            Ok(())
        };
        write().map_err(|error| storage_error(name, &error))
    }

    fn sync(&self, name: &str) -> Result<(), StorageError> {
        if self.is_reading() {
            return Ok(());
        }
        let sync = || {
            self.file(name, true)?.sync_data()?;
            let new = &mut *self.0.has_new_names.lock().unwrap_or_else(PoisonError::into_inner);
            if *new {
                self.0.directory.sync_all()?;
                *new = false;
            }
            Ok(())
        };
        sync().map_err(|error| storage_error(name, &error))
    }

    fn sync_all(&self) -> Result<(), StorageError> {
        if self.is_reading() {
            return Ok(());
        }
        rustix::fs::syncfs(&self.0.directory)
            .map_err(|error| storage_error("the file system", &error.into()))
    }

    fn read(&self, name: &str, offset: u64, len: usize) -> Result<Bytes, StorageError> {
        match self.overlay().as_ref().and_then(|overlay| overlay.get(name)) {
            Some(None) => Ok(Bytes::new()),
            Some(Some(bytes)) => {
                let from = (offset as usize).min(bytes.len());
                let to = from.saturating_add(len).min(bytes.len());
                Ok(Bytes::copy_from_slice(&bytes[from..to]))
            }
            None => self.read_disk(name, offset, len),
        }
    }

    fn list(&self) -> Result<Vec<(String, u64)>, StorageError> {
        let list = || {
            let mut names = Vec::new();
            for entry in std::fs::read_dir(&self.0.path)? {
                let entry = entry?;
                let metadata = entry.metadata()?;
                if let (true, Ok(name)) = (metadata.is_file(), entry.file_name().into_string()) {
                    names.push((name, metadata.len()));
                }
            }
            if let Some(overlay) = self.overlay() {
                names.retain(|(name, _)| !overlay.contains_key(name));
                let there = |(name, bytes): (&String, &Option<Vec<u8>>)| {
                    Some((name.clone(), bytes.as_ref()?.len() as u64))
                };
                names.extend(overlay.iter().filter_map(there));
            }
            names.sort();
            Ok(names)
        };
        list().map_err(|error: std::io::Error| storage_error("the directory", &error))
    }

    fn remove(&self, name: &str) -> Result<(), StorageError> {
        if let Some(mut overlay) = self.overlay() {
            overlay.insert(name.to_owned(), None);
            return Ok(());
        }
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        match std::fs::remove_file(self.0.path.join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(storage_error(name, &error)),
            _ => Ok(()),
        }
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), StorageError> {
        if self.is_reading() {
            let bytes = self.read(from, 0, usize::MAX)?;
            self.remove(to)?;
            self.write(to, 0, &bytes)?;
            return self.remove(from);
        }
        let mut open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.remove(from);
        open.remove(to);
        std::fs::rename(self.0.path.join(from), self.0.path.join(to))
            .map_err(|error| storage_error(from, &error))?;
        *self.0.has_new_names.lock().unwrap_or_else(PoisonError::into_inner) = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_directory_opens_again_while_a_forked_child_has_its_file() {
        let place = tempfile::tempdir().unwrap();
        let first = DiskDirectory::open(place.path()).unwrap();
        let of_child = first.0.directory.try_clone().unwrap();
        assert!(DiskDirectory::open(place.path()).is_err(), "two at once");
        drop(first);
        DiskDirectory::open(place.path()).unwrap();
        drop(of_child);
    }
}
