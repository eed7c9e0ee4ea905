//! The disk and the object store of a store.
//!
//! Both traits are small on purpose, so that a simulated disk that tears writes and forgets syncs
//! runs the same code as a directory, and a simulated object store that fails the same code as S3.
//! Names are plain ASCII without separators; the caller decides the meaning of a name.

use core::fmt;

use bytes::Bytes;

/// Why a disk or an object store did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StorageError {
    /// There is no room. Free some and try again.
    Full {
        /// File or object.
        name: String,
    },
    /// Nothing answers, or not in time. The request may or may not have been carried out.
    Unavailable {
        /// File or object.
        name: String,
        /// The world's own words.
        what: String,
    },
    /// The bucket or directory itself is not there: lost, or never made. What was in it is lost
    /// with it; what goes there next waits.
    NoBucket {
        /// File or object.
        name: String,
        /// The world's own words.
        what: String,
    },
    /// The request itself is refused: permission, a name that is not one, a broken device.
    Failed {
        /// File or object.
        name: String,
        /// The world's own words.
        what: String,
    },
}

impl StorageError {
    /// Whether the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        !matches!(self, Self::Failed { .. })
    }
}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full { name } => write!(f, "no room left for {name}: free some, then try again"),
            Self::Unavailable { name, what } => write!(f, "{name} cannot be reached now: {what}"),
            Self::NoBucket { name, what } => write!(
                f,
                "{name}: the bucket is not there ({what}): make it again, or correct its address"
            ),
            Self::Failed { name, what } => write!(f, "{name}: {what}"),
        }
    }
}

impl std::error::Error for StorageError {}

/// A flat directory of files on one disk. What is written survives a crash only behind a sync.
pub trait Disk {
    /// Writes at this offset; creates the file when it is not there.
    ///
    /// # Errors
    /// Nothing, some or all of the bytes are then written.
    fn write(&self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), StorageError>;

    /// Returns when everything written to this file, and its name, survive a crash.
    ///
    /// # Errors
    /// Nothing may then be assumed of what was written since the last sync.
    fn sync(&self, name: &str) -> Result<(), StorageError>;

    /// [`sync`](Self::sync) of every file of the directory.
    ///
    /// # Errors
    /// As of [`sync`](Self::sync).
    fn sync_all(&self) -> Result<(), StorageError>;

    /// Up to `len` bytes from this offset; fewer at the end of the file, none when it is not there.
    ///
    /// # Errors
    /// When the device fails.
    fn read(&self, name: &str, offset: u64, len: usize) -> Result<Bytes, StorageError>;

    /// Every file's name and length in bytes, in order of names.
    ///
    /// # Errors
    /// When the device fails.
    fn list(&self) -> Result<Vec<(String, u64)>, StorageError>;

    /// Removes the file; no error when it is not there.
    ///
    /// # Errors
    /// When the device fails.
    fn remove(&self, name: &str) -> Result<(), StorageError>;
}

/// What became of [`Objects::put_new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// The object is there now.
    Created,
    /// There was one of that name already; it is unchanged.
    Exists,
}

/// A bucket: whole objects by name, each put or got at once.
pub trait Objects {
    /// Puts the object, replacing one of the same name.
    ///
    /// # Errors
    /// The object may then be the old or the new one, never a mixture.
    fn put(&self, name: &str, bytes: Bytes) -> Result<(), StorageError>;

    /// Puts the object unless there is one of that name.
    ///
    /// # Errors
    /// The object may then be there or not.
    fn put_new(&self, name: &str, bytes: Bytes) -> Result<PutOutcome, StorageError>;

    /// Puts the object in the place of one that has exactly the bytes `was`, in one step: who
    /// decided to replace those and is late replaces nothing else. [`PutOutcome::Exists`] when
    /// another one is there by now, or none.
    ///
    /// # Errors
    /// The object may then be the old or the new one, never a mixture.
    fn swap(&self, name: &str, was: &Bytes, bytes: Bytes) -> Result<PutOutcome, StorageError>;

    /// Up to `len` bytes from this offset, fewer at the object's end; `None` when there is none.
    ///
    /// # Errors
    /// When nothing answers.
    fn get(&self, name: &str, offset: u64, len: usize) -> Result<Option<Bytes>, StorageError>;

    /// Deletes the object; no error when it is not there.
    ///
    /// # Errors
    /// The object may then be there or not.
    fn delete(&self, name: &str) -> Result<(), StorageError>;

    /// Names that begin with this; a listing may lag behind puts and deletes.
    ///
    /// # Errors
    /// When nothing answers.
    fn list(&self, prefix: &str) -> Result<Vec<String>, StorageError>;
}
