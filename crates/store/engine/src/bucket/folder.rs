//! A directory of the local file system in the place of a bucket, with a file for each object.
//!
//! ```text
//!  put      name#1 written and synced ── renamed to name ── directory synced
//!  put_new  name#1 written and synced ── linked as name, which fails where name is ── #1 removed
//!  swap     lock of the directory ── name read and compared ── put
//! ```
//!
//! A crash leaves `name#1` behind at worst. No listing shows a staged file. A writer holds a lock
//! (`flock`) on its staged file as long as it lives, so a staged file without a lock is a dead
//! writer's: the next writer of the object removes the file, and the first write of a process
//! removes all such files of the directory.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::num::NonZeroU64;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use evenfall_core::{Objects, PutOutcome, StorageError};
use evenfall_host::lock::create_private;
use rustix::fs::{Advice, FlockOperation};

use super::{BucketBackend, Fetch};
use crate::read_part::read_part;

/// How long a swap waits for another process that swaps in the same directory.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// Staged files that one object may have at once, one for each writer. An object has one writer,
/// and a second writer only during a takeover.
const STAGED_MAX: u32 = 100;

/// The directory.
#[derive(Clone)]
pub(super) struct Folder {
    path: PathBuf,
    /// Whether this process has removed the staged files of dead writers.
    is_swept: Arc<AtomicBool>,
}

impl std::fmt::Display for Folder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.path.display().fmt(f)
    }
}

fn storage_error(name: &str, error: &io::Error) -> StorageError {
    let (name, what) = (name.to_owned(), error.to_string());
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => StorageError::Full { name },
        ErrorKind::PermissionDenied | ErrorKind::InvalidInput => {
            StorageError::Failed { name, what }
        }
        _ => StorageError::Unavailable { name, what },
    }
}

/// Whether a file of this name is staged and is no object.
fn is_staged(name: &str) -> bool {
    let number = name.rsplit_once('#').map_or("", |(_, number)| number);
    !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
}

/// Whether this process holds the lock of a staged file, and the file still has its name. Otherwise
/// another process removes the file or has removed it.
fn is_held(file: &File, path: &Path) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    let place = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    match std::fs::metadata(path) {
        Ok(named) => Ok(place(named) == place(file.metadata()?)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes a staged file whose writer is dead. Returns whether the file is gone.
fn remove_dead(path: &Path) -> bool {
    // A lock over NFS needs a file that is open to write.
    let Ok(file) = OpenOptions::new().write(true).open(path) else { return false };
    is_held(&file, path).unwrap_or(false) && std::fs::remove_file(path).is_ok()
}

impl Folder {
    /// The directory. A missing directory is created.
    ///
    /// # Errors
    /// When the directory cannot be created.
    pub(super) fn open(path: &Path) -> Result<Self, StorageError> {
        Self::made(path).map_err(|error| StorageError::Failed {
            name: path.display().to_string(),
            what: error.to_string(),
        })?;
        Ok(Self { path: path.to_owned(), is_swept: Arc::default() })
    }

    fn made(path: &Path) -> io::Result<()> {
        if path.is_dir() {
            return Ok(());
        }
        create_private(path)?;
        // The directory's own name must survive a power cut, as the objects in it do.
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
    }

    /// Syncs the names of objects to the disk.
    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    /// An object exists. Its writer may have died before it synced the directory, and a caller that
    /// gets `Exists` relies on the object, so the directory is synced here.
    fn exists(&self, name: &str) -> Result<PutOutcome, StorageError> {
        self.sync().map_err(|error| storage_error(name, &error))?;
        Ok(PutOutcome::Exists)
    }

    /// Refuses to work without the directory, so that a lost directory is not created again by
    /// accident.
    fn expect_directory(&self, name: &str) -> Result<(), StorageError> {
        match self.path.is_dir() {
            true => Ok(()),
            false => Err(StorageError::NoBucket {
                name: name.into(),
                what: format!("{} is no directory", self.path.display()),
            }),
        }
    }

    /// Writes and syncs the bytes under a staged name, publishes them by `publish`, and syncs the
    /// directory.
    fn stage(
        &self,
        name: &str,
        bytes: &[u8],
        publish: impl Fn(&Path, &Path) -> io::Result<()>,
    ) -> io::Result<()> {
        if !self.is_swept.swap(true, Relaxed) {
            self.sweep();
        }
        let (mut file, staged) = self.staged(name)?;
        let published = file
            .write_all(bytes)
            .and_then(|()| file.sync_all())
            .and_then(|()| publish(&staged, &self.path.join(name)));
        if published.is_err() {
            // The error of the write is reported and not that of the removal. A staged file that
            // stays disturbs no other writer.
            let _ = std::fs::remove_file(&staged);
        }
        published?;
        self.sync()
    }

    fn staged(&self, name: &str) -> io::Result<(File, PathBuf)> {
        for number in 1..=STAGED_MAX {
            let path = self.path.join(format!("{name}#{number}"));
            let create = || OpenOptions::new().write(true).create_new(true).open(&path);
            let is_there = |error: &io::Error| error.kind() == ErrorKind::AlreadyExists;
            let created = match create() {
                Err(error) if is_there(&error) && remove_dead(&path) => create(),
                created => created,
            };
            match created {
                // On a file system without locks no staged file is ever removed as a dead writer's.
                Ok(file) if is_held(&file, &path).unwrap_or(true) => return Ok((file, path)),
                // Another process removed the file as a dead writer's before this process had its
                // lock.
                Ok(_) => {}
                Err(error) if is_there(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let what = "writers of this object have not ended: end them, or wait for them";
        Err(io::Error::other(format!("{STAGED_MAX} {what}")))
    }

    /// Removes the staged files of dead writers. A staged file takes room and does no other harm,
    /// so a file that cannot be read or removed stays.
    fn sweep(&self) {
        let Ok(entries) = std::fs::read_dir(&self.path) else { return };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        for name in names.filter(|name| is_staged(name)) {
            remove_dead(&self.path.join(name));
        }
    }

    /// Takes the lock that keeps other processes from swapping in this directory.
    fn turn(&self, name: &str) -> Result<File, StorageError> {
        self.expect_directory(name)?;
        let file = File::open(&self.path).map_err(|error| storage_error(name, &error))?;
        let end = Instant::now() + LOCK_TIMEOUT;
        while let Err(error) = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(storage_error(name, &error.into()));
            }
            if Instant::now() > end {
                let what = "another process swaps an object, and does not end".into();
                return Err(StorageError::Unavailable { name: name.into(), what });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(file)
    }

    /// The result of a read; `None` when the object is missing.
    fn found(&self, name: &str, read: io::Result<Bytes>) -> Result<Option<Bytes>, StorageError> {
        match read {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.expect_directory(name).map(|()| None)
            }
            Err(error) => Err(storage_error(name, &error)),
        }
    }
}

impl BucketBackend for Folder {
    /// The kernel reads ahead while the caller works on the previous part.
    fn fetch(&self, name: &str, offset: u64, len: usize) -> Fetch {
        let (folder, name) = (self.clone(), name.to_owned());
        let opened = File::open(self.path.join(&name));
        if let Ok(file) = &opened {
            // Without the advice the read waits for the disk. The bytes are the same.
            let _ =
                rustix::fs::fadvise(file, offset, NonZeroU64::new(len as u64), Advice::WillNeed);
        }
        Box::new(move || folder.found(&name, opened.and_then(|file| read_part(&file, offset, len))))
    }
}

impl Objects for Folder {
    fn put(&self, name: &str, bytes: Bytes) -> Result<(), StorageError> {
        self.expect_directory(name)?;
        self.stage(name, &bytes, |staged, object| std::fs::rename(staged, object))
            .map_err(|error| storage_error(name, &error))
    }

    fn put_new(&self, name: &str, bytes: Bytes) -> Result<PutOutcome, StorageError> {
        self.expect_directory(name)?;
        let publish = |staged: &Path, object: &Path| {
            std::fs::hard_link(staged, object)?;
            std::fs::remove_file(staged)
        };
        match self.stage(name, &bytes, publish) {
            Ok(()) => Ok(PutOutcome::Created),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => self.exists(name),
            Err(error) => Err(storage_error(name, &error)),
        }
    }

    fn swap(&self, name: &str, was: &Bytes, bytes: Bytes) -> Result<PutOutcome, StorageError> {
        let _turn = self.turn(name)?;
        match self.get(name, 0, usize::MAX)? {
            Some(there) if there == *was => self.put(name, bytes).map(|()| PutOutcome::Created),
            _ => self.exists(name),
        }
    }

    fn get(&self, name: &str, offset: u64, len: usize) -> Result<Option<Bytes>, StorageError> {
        let opened = File::open(self.path.join(name));
        self.found(name, opened.and_then(|file| read_part(&file, offset, len)))
    }

    fn delete(&self, name: &str) -> Result<(), StorageError> {
        match std::fs::remove_file(self.path.join(name)) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => self.expect_directory(name),
            Err(error) => Err(storage_error(name, &error)),
        }
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, StorageError> {
        let list = || -> io::Result<_> {
            let mut names = Vec::new();
            for entry in std::fs::read_dir(&self.path)? {
                let entry = entry?;
                let Ok(name) = entry.file_name().into_string() else { continue };
                let is_object = name.starts_with(prefix) && !is_staged(&name);
                if !is_object {
                    continue;
                }
                match entry.file_type() {
                    Ok(kind) if kind.is_file() => names.push(name),
                    Ok(_) => {}
                    // Another caller deleted the object after the directory was read.
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
            names.sort();
            Ok(names)
        };
        match list() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.expect_directory(prefix).map(|()| Vec::new())
            }
            listed => listed.map_err(|error| storage_error(prefix, &error)),
        }
    }
}

#[cfg(test)]
mod tests;
