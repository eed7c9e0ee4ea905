//! The objects of a store: a directory, or a bucket of a cloud.
//!
//! All calls block. The store's upload thread and readers of history make them, and an append never
//! does.
//!
//! | module | where the objects are |
//! |---|---|
//! | `columnar` | chunk objects in columns, read as raw chunks |
//! | `folder` | a directory of the local file system |
//! | `cloud` | S3, Google Cloud Storage, Azure or evenfall's files, each in a build with its feature |

#[cfg(feature = "cloud")]
mod cloud;
mod columnar;
mod folder;

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Display};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use bytes::Bytes;
use evenfall_core::{Objects, PutOutcome, StorageError};

use self::columnar::may_be_columnar;
use self::folder::Folder;
use super::parts::PARTS_MAX;

/// Settings of an object store that take precedence over the environment, by the names of the crate
/// `object_store` (`aws_endpoint`, `aws_access_key_id`, ...). The values may be secret, so printing
/// shows only the names.
#[derive(Clone, Default)]
pub struct BucketOptions(pub BTreeMap<String, String>);

impl Debug for BucketOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// A read of a part of an object that is under way. Calling it waits for the part and returns the
/// part; `None` when the object is missing. Dropping it abandons the read.
pub type Fetch = Box<dyn FnOnce() -> Result<Option<Bytes>, StorageError> + Send>;

/// A place that holds objects.
pub(super) trait BucketBackend: Objects + Display + Send + Sync {
    /// Begins to read a part of an object.
    fn fetch(&self, name: &str, offset: u64, len: usize) -> Fetch;

    /// Fails all requests but [`fetch`](Self::fetch) that have no answer by then. A directory
    /// always answers.
    fn end_by(&self, _: Instant) {}
}

/// A bucket, or a directory in the place of one.
#[derive(Clone)]
pub struct Bucket {
    place: Arc<dyn BucketBackend>,
    /// Parts that the scans of all readers hold.
    rooms: Arc<AtomicUsize>,
    /// Whether the last chunk object was in columns.
    is_columnar: Arc<AtomicBool>,
}

impl Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bucket({})", self.place)
    }
}

/// The right to hold one part of a scan.
pub(super) struct Room(Arc<AtomicUsize>);

impl Drop for Room {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Bucket {
    fn at(place: Arc<dyn BucketBackend>) -> Self {
        Self { place, rooms: Arc::default(), is_columnar: Arc::default() }
    }

    /// A directory of the local file system. Each object is synced before it is acknowledged.
    ///
    /// # Errors
    /// When the directory cannot be created.
    pub fn directory(path: &Path) -> Result<Self, StorageError> {
        Ok(Self::at(Arc::new(Folder::open(path)?)))
    }

    /// A directory, or the address of a bucket: `s3://bucket/prefix`, `gs://bucket/prefix`,
    /// `az://container/prefix`, `files://host:port/directory`. Keys, region and endpoint come from
    /// the environment (`AWS_*`, `GOOGLE_*`, `AZURE_*`).
    ///
    /// # Errors
    /// As for [`directory`](Self::directory). Also when the address or the environment is
    /// incomplete, or the program was built without this kind of address.
    pub fn open(place: &str) -> Result<Self, StorageError> {
        Self::open_with(place, &BucketOptions::default())
    }

    /// [`open`](Self::open) with options that take precedence over the environment.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_with(place: &str, options: &BucketOptions) -> Result<Self, StorageError> {
        match place.contains("://") {
            true => cloud(place, options),
            false => Self::directory(Path::new(place)),
        }
    }

    /// Opens a place for a reader, as [`open_with`](Self::open_with) does for a writer. No
    /// directory is created.
    ///
    /// # Errors
    /// [`StorageError::NoBucket`] for a missing directory. Also as for [`open`](Self::open).
    pub fn open_to_read(place: &str, options: &BucketOptions) -> Result<Self, StorageError> {
        if !place.contains("://") && !Path::new(place).is_dir() {
            let (name, what) = (place.to_owned(), "no such directory".to_owned());
            return Err(StorageError::NoBucket { name, what });
        }
        Self::open_with(place, options)
    }

    /// The same bucket behind another place, which sees every request.
    #[cfg(test)]
    pub(super) fn behind(
        self,
        front: impl FnOnce(Arc<dyn BucketBackend>) -> Arc<dyn BucketBackend>,
    ) -> Self {
        Self { place: front(self.place), ..self }
    }

    /// Begins to read a part of an object.
    pub fn fetch(&self, name: &str, offset: u64, len: usize) -> Fetch {
        match may_be_columnar(name) {
            true => self.fetch_of_chunk(name, offset, len),
            false => self.place.fetch(name, offset, len),
        }
    }

    /// Fails all requests that have no answer by then, those under way included. Parts that a scan
    /// fetches ahead keep their own time limit.
    pub(super) fn end_by(&self, end: Instant) {
        self.place.end_by(end);
    }

    /// The right to hold one more part of a scan, until it is dropped; `None` when all are taken.
    pub(super) fn room(&self) -> Option<Room> {
        let more = |taken: usize| (taken < PARTS_MAX).then_some(taken + 1);
        self.rooms.fetch_update(Relaxed, Relaxed, more).ok()?;
        Some(Room(Arc::clone(&self.rooms)))
    }
}

#[cfg(feature = "cloud")]
fn cloud(place: &str, options: &BucketOptions) -> Result<Bucket, StorageError> {
    Ok(Bucket::at(Arc::new(cloud::Cloud::open(place, options)?)))
}

#[cfg(not(feature = "cloud"))]
fn cloud(place: &str, _: &BucketOptions) -> Result<Bucket, StorageError> {
    let what = "buckets of clouds are not in this build; get them with `cargo install --path \
                apps/cli --features full`, or with the feature buckets alone, or name a directory";
    Err(StorageError::Failed { name: place.into(), what: what.into() })
}

impl Objects for Bucket {
    fn put(&self, name: &str, bytes: Bytes) -> Result<(), StorageError> {
        self.place.put(name, bytes)
    }

    fn put_new(&self, name: &str, bytes: Bytes) -> Result<PutOutcome, StorageError> {
        self.place.put_new(name, bytes)
    }

    fn swap(&self, name: &str, was: &Bytes, bytes: Bytes) -> Result<PutOutcome, StorageError> {
        match may_be_columnar(name) {
            true => self.swap_chunk(name, was, bytes),
            false => self.place.swap(name, was, bytes),
        }
    }

    fn get(&self, name: &str, offset: u64, len: usize) -> Result<Option<Bytes>, StorageError> {
        // Whether there is a chunk is asked by its first byte.
        match may_be_columnar(name) && len > 1 {
            true => self.get_of_chunk(name, offset, len),
            false => self.place.get(name, offset, len),
        }
    }

    fn delete(&self, name: &str) -> Result<(), StorageError> {
        self.place.delete(name)
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, StorageError> {
        self.place.list(prefix)
    }
}
