//! A directory of the local file system as the [`Disk`] of a volume.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use evenfall_core::{Disk, StorageError};

/// Files kept open; a thousand streams are written in turns, and opening costs a system call more.
const OPEN_MAX: usize = 512;

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    open: Mutex<BTreeMap<String, Arc<File>>>,
    /// The directory itself: synced for names, and locked against a second process.
    directory: File,
}

/// The directory; clones are the same one.
#[derive(Clone, Debug)]
pub struct Directory(Arc<Shared>);

fn storage_error(name: &str, error: &std::io::Error) -> StorageError {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            StorageError::Full { name: name.into() }
        }
        _ => StorageError::Failed { name: name.into(), what: error.to_string() },
    }
}

impl Directory {
    /// Opens it for this process alone; creates it when it is not there.
    ///
    /// # Errors
    /// When it cannot be created, opened or locked: another process has it.
    pub fn open(path: &Path) -> Result<Self, StorageError> {
        let name = path.display().to_string();
        let failed = |error: std::io::Error| storage_error(&name, &error);
        std::fs::create_dir_all(path).map_err(failed)?;
        let directory = File::open(path).map_err(failed)?;
        let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        rustix::fs::flock(&directory, lock).map_err(|error| StorageError::Unavailable {
            name: name.clone(),
            what: format!("another process has the store open ({error}); stop it first"),
        })?;
        Ok(Self::with(path, directory))
    }

    /// Opens it to read only, whoever else has it.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open_unlocked(path: &Path) -> Result<Self, StorageError> {
        let name = path.display().to_string();
        let directory = File::open(path).map_err(|error| storage_error(&name, &error))?;
        Ok(Self::with(path, directory))
    }

    fn with(path: &Path, directory: File) -> Self {
        let open = Mutex::new(BTreeMap::new());
        Self(Arc::new(Shared { path: path.to_owned(), open, directory }))
    }

    fn file(&self, name: &str, create: bool) -> std::io::Result<Arc<File>> {
        let mut open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.get(name) {
            return Ok(Arc::clone(file));
        }
        let path = self.0.path.join(name);
        let mut options = OpenOptions::new();
        let file = match create {
            true => options.read(true).write(true).create(true).truncate(false).open(path)?,
            false => options.read(true).open(path)?,
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

impl Disk for Directory {
    fn write(&self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), StorageError> {
        let done = self.file(name, true).and_then(|file| file.write_all_at(bytes, offset));
        done.map_err(|error| storage_error(name, &error))
    }

    fn sync(&self, name: &str) -> Result<(), StorageError> {
        let sync = || {
            let file = self.file(name, true)?;
            let fresh = file.metadata()?.len() < (1 << 20);
            file.sync_data()?;
            // A name is new at the file's first sync, and a file is short then.
            if fresh { self.0.directory.sync_all() } else { Ok(()) }
        };
        sync().map_err(|error| storage_error(name, &error))
    }

    fn sync_all(&self) -> Result<(), StorageError> {
        rustix::fs::syncfs(&self.0.directory)
            .map_err(|error| storage_error("the file system", &error.into()))
    }

    fn read(&self, name: &str, offset: u64, len: usize) -> Result<Bytes, StorageError> {
        let read = || -> std::io::Result<Bytes> {
            let file = self.file(name, false)?;
            let there = file.metadata()?.len().saturating_sub(offset);
            let mut bytes = vec![0; len.min(there as usize)];
            file.read_exact_at(&mut bytes, offset)?;
            Ok(Bytes::from(bytes))
        };
        match read() {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Bytes::new()),
            done => done.map_err(|error| storage_error(name, &error)),
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
            names.sort();
            Ok(names)
        };
        list().map_err(|error: std::io::Error| storage_error("the directory", &error))
    }

    fn remove(&self, name: &str) -> Result<(), StorageError> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        match std::fs::remove_file(self.0.path.join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(storage_error(name, &error)),
            _ => Ok(()),
        }
    }
}
