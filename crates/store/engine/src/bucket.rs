//! Any store that the crate `object_store` speaks to, as [`Objects`].
//!
//! Calls block: they come from the store's upload thread and from readers of history, never from
//! an append. Requests that fail in passing are repeated by the crate itself; what still fails is
//! [`StorageError::Unavailable`] and stays queued.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use evenfall_core::{Objects, PutOutcome, StorageError};
use futures_util::TryStreamExt as _;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Key;
use object_store::{
    Error, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload, UpdateVersion,
};
use rustix::fs::FlockOperation;
use tokio::runtime::Runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::parts::PARTS_MAX;

/// How long a swap in a directory waits for another process that swaps there.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a request and its repetitions may take: longer would keep a stop waiting, and the queue
/// behind it tries again anyway.
#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// Settings of an object store that come before those of the environment, by the names that the
/// crate `object_store` has for them (`aws_endpoint`, `aws_access_key_id`, ...). They may be
/// secret: printing shows their names alone.
#[derive(Clone, Default)]
pub struct BucketOptions(pub BTreeMap<String, String>);

impl std::fmt::Debug for BucketOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// A bucket, or a directory in the place of one.
#[derive(Clone)]
pub struct Bucket {
    store: Arc<dyn ObjectStore>,
    runtime: Arc<Runtime>,
    /// Of parts that scans hold, over all readers.
    rooms: Arc<Semaphore>,
    prefix: String,
    /// Of a directory.
    directory: Option<PathBuf>,
    /// Whether listings come in order of names.
    is_ordered: bool,
}

impl std::fmt::Debug for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bucket({})", self.store)
    }
}

/// Room for one part of a scan.
pub(super) type Room = OwnedSemaphorePermit;

/// A part of an object on its way.
pub struct Fetch {
    name: String,
    coming: tokio::task::JoinHandle<Result<Bytes, Error>>,
}

impl Drop for Fetch {
    /// Who does not wait for it does not want it.
    fn drop(&mut self) {
        self.coming.abort();
    }
}

/// Where a cloud gives its machines keys: asked when the environment has none.
const METADATA: [&str; 2] = ["169.254.169.254", "metadata.google.internal"];
const NO_KEYS: &str = "; the environment has no keys, and this machine is given none: set \
    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, or their likes of GOOGLE_* and \
    AZURE_* (docs/store.md)";

fn storage_error(name: &str, error: &Error) -> StorageError {
    let (name, mut what) = (name.to_owned(), error.to_string());
    if METADATA.iter().any(|host| what.contains(host)) {
        what.push_str(NO_KEYS);
    }
    match error {
        // Every name that we ask for and that may be absent is asked for by `get`.
        Error::NotFound { .. } => StorageError::NoBucket { name, what },
        error if format!("{error:?}").contains("NoSuchBucket") => {
            StorageError::NoBucket { name, what }
        }
        Error::PermissionDenied { .. }
        | Error::Unauthenticated { .. }
        | Error::InvalidPath { .. }
        | Error::NotImplemented { .. }
        | Error::NotSupported { .. } => StorageError::Failed { name, what },
        _ => StorageError::Unavailable { name, what },
    }
}

fn rooms() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(PARTS_MAX))
}

fn runtime() -> Result<Arc<Runtime>, StorageError> {
    let built = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("objects")
        .enable_all()
        .build();
    built
        .map(Arc::new)
        .map_err(|error| StorageError::Failed { name: "objects".into(), what: error.to_string() })
}

impl Bucket {
    /// A directory of the local file system; each object is synced before it is acknowledged.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn directory(path: &Path) -> Result<Self, StorageError> {
        let name = path.display().to_string();
        std::fs::create_dir_all(path).map_err(|error| StorageError::Failed {
            name: name.clone(),
            what: error.to_string(),
        })?;
        let store = LocalFileSystem::new_with_prefix(path);
        let store = store.map_err(|error| storage_error(&name, &error))?.with_fsync(true);
        let (store, directory) = (Arc::new(store), Some(path.to_owned()));
        let (runtime, rooms, prefix) = (runtime()?, rooms(), String::new());
        Ok(Self { store, runtime, rooms, prefix, directory, is_ordered: false })
    }

    /// A directory, or the address of a bucket: `s3://bucket/prefix`, `gs://bucket/prefix`,
    /// `az://container/prefix`. Keys, region and endpoint come from the environment (`AWS_*`,
    /// `GOOGLE_*`, `AZURE_*`).
    ///
    /// # Errors
    /// As [`directory`](Self::directory); an address or environment that is not complete; an
    /// address of a kind that this program was built without.
    pub fn open(place: &str) -> Result<Self, StorageError> {
        Self::open_with(place, &BucketOptions::default())
    }

    /// [`open`](Self::open) with options that come before the environment.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(place: &str, options: &BucketOptions) -> Result<Self, StorageError> {
        let Some((scheme, rest)) = place.split_once("://") else {
            return Self::directory(Path::new(place));
        };
        let prefix = rest.split_once('/').map_or("", |(_, prefix)| prefix.trim_matches('/'));
        let store = cloud(scheme, place, options)?;
        let (runtime, prefix, is_ordered) = (runtime()?, prefix.to_owned(), scheme == "s3");
        Ok(Self { store, runtime, rooms: rooms(), prefix, directory: None, is_ordered })
    }

    /// The same behind another that sees what is asked.
    #[cfg(test)]
    pub(super) fn behind(
        mut self,
        front: impl FnOnce(Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore>,
    ) -> Self {
        self.store = front(self.store);
        self
    }

    /// Begins to read a part of an object; [`wait`](Self::wait) gives it.
    pub fn fetch(&self, name: &str, offset: u64, len: usize) -> Fetch {
        let (store, key, name) = (Arc::clone(&self.store), self.key(name), name.to_owned());
        let range = offset..offset.saturating_add(len as u64);
        let get = async move { store.get_range(&key, range).await };
        Fetch { name, coming: self.runtime.spawn(get) }
    }

    /// Room in memory for one more part of a scan, until it is dropped; `None` when all is taken.
    pub(super) fn room(&self) -> Option<Room> {
        Arc::clone(&self.rooms).try_acquire_owned().ok()
    }

    /// What [`fetch`](Self::fetch) began; `None` when there is no such object.
    ///
    /// # Errors
    /// As [`Objects::get`].
    pub fn wait(&self, mut fetch: Fetch) -> Result<Option<Bytes>, StorageError> {
        match self.runtime.block_on(&mut fetch.coming) {
            Ok(Ok(bytes)) => Ok(Some(bytes)),
            Ok(Err(error @ Error::NotFound { .. })) => {
                self.missing(&fetch.name, &error).map(|()| None)
            }
            Ok(Err(error)) => Err(storage_error(&fetch.name, &error)),
            Err(error) => {
                let (name, what) = (fetch.name.clone(), error.to_string());
                Err(StorageError::Unavailable { name, what })
            }
        }
    }

    fn key(&self, name: &str) -> Key {
        match self.prefix.is_empty() {
            true => Key::from(name),
            false => Key::from(format!("{}/{name}", self.prefix)),
        }
    }
}

#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
macro_rules! cloud_store {
    ($builder:ty, $key:ty, $place:expr, $options:expr) => {{
        let failed = |error| storage_error($place, &error);
        let mut builder = <$builder>::from_env().with_url($place).with_retry(retries());
        for (name, value) in &$options.0 {
            let key: $key = name.parse().map_err(failed)?;
            builder = builder.with_config(key, value);
        }
        Ok(Arc::new(builder.build().map_err(failed)?))
    }};
}

#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
fn retries() -> object_store::RetryConfig {
    let max_retries = 4;
    object_store::RetryConfig { max_retries, retry_timeout: REQUEST_TIMEOUT, ..Default::default() }
}

/// The store behind an address.
#[cfg_attr(
    not(any(feature = "s3", feature = "gcs", feature = "azure")),
    allow(unused_variables, reason = "without a cloud there are no options")
)]
fn cloud(
    scheme: &str,
    place: &str,
    options: &BucketOptions,
) -> Result<Arc<dyn ObjectStore>, StorageError> {
    match scheme {
        #[cfg(feature = "s3")]
        "s3" => {
            use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
            cloud_store!(AmazonS3Builder, AmazonS3ConfigKey, place, options)
        }
        #[cfg(feature = "gcs")]
        "gs" => {
            use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
            cloud_store!(GoogleCloudStorageBuilder, GoogleConfigKey, place, options)
        }
        #[cfg(feature = "azure")]
        "az" => {
            use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
            cloud_store!(MicrosoftAzureBuilder, AzureConfigKey, place, options)
        }
        other => {
            let what = format!("this program does not know {other}://, or was built without it");
            Err(StorageError::Failed { name: place.into(), what })
        }
    }
}

impl Bucket {
    /// What a missing object means: that it is missing, or that the bucket is.
    fn missing(&self, name: &str, error: &Error) -> Result<(), StorageError> {
        let gone = match &self.directory {
            Some(directory) => !directory.is_dir(),
            None => {
                let what = format!("{error:?}");
                ["NoSuchBucket", "ContainerNotFound", "bucket does not exist"]
                    .iter()
                    .any(|sign| what.contains(sign))
            }
        };
        if gone { Err(storage_error(name, error)) } else { Ok(()) }
    }

    /// A directory that was lost is not made again under our hands.
    fn expect_directory(&self, name: &str) -> Result<(), StorageError> {
        match &self.directory {
            Some(directory) if !directory.is_dir() => Err(StorageError::NoBucket {
                name: name.into(),
                what: format!("{} is no directory", directory.display()),
            }),
            _ => Ok(()),
        }
    }

    /// Keeps other processes from swapping in this directory.
    fn turn(&self, name: &str) -> Result<Option<File>, StorageError> {
        let Some(directory) = &self.directory else { return Ok(None) };
        let failed = |what: String| StorageError::Unavailable { name: name.into(), what };
        let file = File::open(directory).map_err(|error| failed(error.to_string()))?;
        let end = Instant::now() + LOCK_TIMEOUT;
        while rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            if Instant::now() > end {
                return Err(failed("another process swaps an object, and does not end".into()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Some(file))
    }

    /// A put on the condition that the object is the one of this version.
    async fn update(&self, key: &Key, bytes: PutPayload, at: UpdateVersion) -> Result<(), Error> {
        // A directory has no versions: there the turn that we hold stands for them.
        let mode = match self.directory {
            Some(_) => PutMode::Overwrite,
            None => PutMode::Update(at),
        };
        self.store.put_opts(key, bytes, PutOptions::from(mode)).await.map(drop)
    }
}

impl Objects for Bucket {
    fn put(&self, name: &str, bytes: Bytes) -> Result<(), StorageError> {
        self.expect_directory(name)?;
        let key = self.key(name);
        let put = self.store.put(&key, bytes.into());
        self.runtime.block_on(put).map(drop).map_err(|error| storage_error(name, &error))
    }

    fn put_new(&self, name: &str, bytes: Bytes) -> Result<PutOutcome, StorageError> {
        self.expect_directory(name)?;
        let (key, options) = (self.key(name), PutOptions::from(PutMode::Create));
        let put = self.store.put_opts(&key, bytes.into(), options);
        match self.runtime.block_on(put) {
            Ok(_) => Ok(PutOutcome::Created),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(PutOutcome::Exists),
            Err(error) => Err(storage_error(name, &error)),
        }
    }

    fn swap(&self, name: &str, was: &Bytes, bytes: Bytes) -> Result<PutOutcome, StorageError> {
        let (key, _turn) = (self.key(name), self.turn(name)?);
        let swap = async {
            let there = self.store.get(&key).await?;
            let at = UpdateVersion {
                e_tag: there.meta.e_tag.clone(),
                version: there.meta.version.clone(),
            };
            if there.bytes().await? != *was {
                return Ok(PutOutcome::Exists);
            }
            self.update(&key, bytes.into(), at).await.map(|()| PutOutcome::Created)
        };
        match self.runtime.block_on(swap) {
            Ok(outcome) => Ok(outcome),
            Err(Error::Precondition { .. }) => Ok(PutOutcome::Exists),
            Err(error @ Error::NotFound { .. }) => {
                self.missing(name, &error).map(|()| PutOutcome::Exists)
            }
            Err(error) => Err(storage_error(name, &error)),
        }
    }

    fn get(&self, name: &str, offset: u64, len: usize) -> Result<Option<Bytes>, StorageError> {
        let key = self.key(name);
        let get = async {
            if (offset, len) == (0, usize::MAX) {
                return self.store.get(&key).await?.bytes().await;
            }
            self.store.get_range(&key, offset..offset.saturating_add(len as u64)).await
        };
        match self.runtime.block_on(get) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error @ Error::NotFound { .. }) => self.missing(name, &error).map(|()| None),
            Err(error) => Err(storage_error(name, &error)),
        }
    }

    fn delete(&self, name: &str) -> Result<(), StorageError> {
        match self.runtime.block_on(async { self.store.delete(&self.key(name)).await }) {
            Ok(()) => Ok(()),
            Err(error @ Error::NotFound { .. }) => self.missing(name, &error),
            Err(error) => Err(storage_error(name, &error)),
        }
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, StorageError> {
        let base = (!self.prefix.is_empty()).then(|| Key::from(self.prefix.as_str()));
        let list = async {
            let mut names = Vec::new();
            // From the prefix on, and, where names come in order, to its end and no further.
            let mut listed = match prefix {
                "" => self.store.list(base.as_ref()),
                _ => self.store.list_with_offset(base.as_ref(), &self.key(prefix)),
            };
            while let Some(meta) = listed.try_next().await? {
                let Some(name) = meta.location.filename() else { continue };
                if name.starts_with(prefix) {
                    names.push(name.to_owned());
                } else if self.is_ordered && name > prefix {
                    break;
                }
            }
            Ok(names)
        };
        self.runtime.block_on(list).map_err(|error: Error| storage_error(prefix, &error))
    }
}
