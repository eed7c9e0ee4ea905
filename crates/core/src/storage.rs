//! The disk and the object store of a store.
//!
//! Both traits are small on purpose. The code that runs on a directory also runs on a simulated
//! disk, which tears writes and forgets syncs. The code that runs on S3 also runs on a simulated
//! object store, which fails. Names are plain ASCII without separators, and the caller decides
//! their meaning.

use bytes::Bytes;

/// Why a disk or an object store did not carry out a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// The storage has no room. Free some and try again.
    #[error("no room left for {name}: free space on the disk, then try again")]
    Full {
        /// File or object.
        name: String,
    },
    /// The storage did not answer in time. The request may have been carried out or not.
    #[error("{name} cannot be reached now: {what}")]
    Unavailable {
        /// File or object.
        name: String,
        /// The message of the operating system or of the object store.
        what: String,
    },
    /// The bucket or directory itself is missing: it was lost, or never made. Its contents are lost
    /// with it. Later writes to it wait.
    #[error("{name}: the bucket does not exist ({what}): make it, or correct its address")]
    NoBucket {
        /// File or object.
        name: String,
        /// The message of the operating system or of the object store.
        what: String,
    },
    /// The bytes that are there are not the bytes that were written.
    #[error("{name} is damaged: {what}")]
    Damaged {
        /// File or object.
        name: String,
        /// What is wrong with them.
        what: String,
    },
    /// The storage refuses the request itself: a missing permission, a name that is not allowed, a
    /// broken device.
    #[error("{name}: {what}")]
    Failed {
        /// File or object.
        name: String,
        /// The message of the operating system or of the object store.
        what: String,
    },
}

impl StorageError {
    /// Whether the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        !matches!(self, Self::Failed { .. } | Self::Damaged { .. })
    }
}

/// A flat directory of files on one disk. Written bytes survive a crash only after a sync.
pub trait Disk {
    /// Writes at this offset. A missing file is created.
    ///
    /// # Errors
    /// None, some or all of the bytes are then written.
    fn write(&self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), StorageError>;

    /// Returns when the file's name and all bytes written to it survive a crash.
    ///
    /// # Errors
    /// The bytes written since the last sync may then be there or not.
    fn sync(&self, name: &str) -> Result<(), StorageError>;

    /// [`sync`](Self::sync) of every file of the directory.
    ///
    /// # Errors
    /// As for [`sync`](Self::sync).
    fn sync_all(&self) -> Result<(), StorageError>;

    /// Up to `len` bytes from this offset: fewer at the end of the file, none when the file is
    /// missing.
    ///
    /// # Errors
    /// When the device fails.
    fn read(&self, name: &str, offset: u64, len: usize) -> Result<Bytes, StorageError>;

    /// Name and length in bytes of every file, in order of names.
    ///
    /// # Errors
    /// When the device fails.
    fn list(&self) -> Result<Vec<(String, u64)>, StorageError>;

    /// Removes the file. A missing file is no error.
    ///
    /// # Errors
    /// When the device fails.
    fn remove(&self, name: &str) -> Result<(), StorageError>;

    /// Gives a synced file another name. A file that had this name is gone then. A crash before a
    /// sync of the new name leaves either name, or both.
    ///
    /// # Errors
    /// When the file is missing or the device fails. The names may then be as before or as after.
    fn rename(&self, from: &str, to: &str) -> Result<(), StorageError>;
}

/// The outcome of [`Objects::put_new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// The object was created.
    Created,
    /// An object of that name was there already, and is unchanged.
    Exists,
}

/// A bucket: whole objects by name. An object is put whole, and its bytes can be got in part.
pub trait Objects {
    /// Puts the object, and replaces an object of the same name.
    ///
    /// # Errors
    /// The bucket may then hold the old object or the new one, never a mixture.
    fn put(&self, name: &str, bytes: Bytes) -> Result<(), StorageError>;

    /// Puts the object unless an object of that name exists.
    ///
    /// # Errors
    /// The object may then be there or not.
    fn put_new(&self, name: &str, bytes: Bytes) -> Result<PutOutcome, StorageError>;

    /// Replaces an object whose bytes are exactly `was`, in one step. A caller that decided on the
    /// replacement and comes late therefore replaces nothing else. [`PutOutcome::Exists`] when the
    /// object has other bytes by now, or is missing.
    ///
    /// # Errors
    /// The bucket may then hold the old object or the new one, never a mixture.
    fn swap(&self, name: &str, was: &Bytes, bytes: Bytes) -> Result<PutOutcome, StorageError>;

    /// Up to `len` bytes from this offset, fewer at the object's end; `None` when the object is
    /// missing.
    ///
    /// # Errors
    /// When the store does not answer.
    fn get(&self, name: &str, offset: u64, len: usize) -> Result<Option<Bytes>, StorageError>;

    /// Deletes the object. A missing object is no error.
    ///
    /// # Errors
    /// The object may then be there or not.
    fn delete(&self, name: &str) -> Result<(), StorageError>;

    /// Names that begin with `prefix`. A listing may lag behind puts and deletes.
    ///
    /// # Errors
    /// When the store does not answer.
    fn list(&self, prefix: &str) -> Result<Vec<String>, StorageError>;
}
