//! Any store that the crate `object_store` speaks to, as [`Objects`].
//!
//! Calls block: they come from the store's upload thread and from readers of history, never from
//! an append. Requests that fail in passing are repeated by the crate itself; what still fails is
//! [`StorageError::Unavailable`] and stays queued.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use evenfall_core::{Objects, PutOutcome, StorageError};
use futures_util::TryStreamExt as _;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Key;
use object_store::{Error, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions};
use tokio::runtime::Runtime;

/// A bucket, or a directory in the place of one.
#[derive(Clone)]
pub struct Bucket {
    store: Arc<dyn ObjectStore>,
    runtime: Arc<Runtime>,
    prefix: String,
}

impl std::fmt::Debug for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bucket({})", self.store)
    }
}

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

fn storage_error(name: &str, error: &Error) -> StorageError {
    let (name, what) = (name.to_owned(), error.to_string());
    match error {
        Error::NotFound { .. }
        | Error::PermissionDenied { .. }
        | Error::Unauthenticated { .. }
        | Error::InvalidPath { .. }
        | Error::NotSupported { .. } => StorageError::Failed { name, what },
        _ => StorageError::Unavailable { name, what },
    }
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
        Ok(Self { store: Arc::new(store), runtime: runtime()?, prefix: String::new() })
    }

    /// `s3://bucket/prefix`; keys, region and endpoint come from the `AWS_*` environment.
    ///
    /// # Errors
    /// When the address or the environment is not complete.
    #[cfg(feature = "s3")]
    pub fn s3(url: &str) -> Result<Self, StorageError> {
        let prefix = url.strip_prefix("s3://").and_then(|rest| rest.split_once('/'));
        let prefix = prefix.map_or("", |(_, prefix)| prefix.trim_matches('/')).to_owned();
        let built = object_store::aws::AmazonS3Builder::from_env().with_url(url).build();
        let store = built.map_err(|error| storage_error(url, &error))?;
        Ok(Self { store: Arc::new(store), runtime: runtime()?, prefix })
    }

    /// A directory, or an `s3://` address.
    ///
    /// # Errors
    /// As [`directory`](Self::directory) and `s3`; an address of a kind that this
    /// program was built without.
    pub fn open(place: &str) -> Result<Self, StorageError> {
        #[cfg(feature = "s3")]
        if place.starts_with("s3://") {
            return Self::s3(place);
        }
        if let Some((scheme, _)) = place.split_once("://") {
            let what = format!("this program was built without {scheme}");
            return Err(StorageError::Failed { name: place.into(), what });
        }
        Self::directory(Path::new(place))
    }

    /// Begins to read a part of an object; [`wait`](Self::wait) gives it.
    pub fn fetch(&self, name: &str, offset: u64, len: usize) -> Fetch {
        let (store, key, name) = (Arc::clone(&self.store), self.key(name), name.to_owned());
        let range = offset..offset.saturating_add(len as u64);
        let get = async move { store.get_range(&key, range).await };
        Fetch { name, coming: self.runtime.spawn(get) }
    }

    /// What [`fetch`](Self::fetch) began; `None` when there is no such object.
    ///
    /// # Errors
    /// As [`Objects::get`].
    pub fn wait(&self, mut fetch: Fetch) -> Result<Option<Bytes>, StorageError> {
        match self.runtime.block_on(&mut fetch.coming) {
            Ok(Ok(bytes)) => Ok(Some(bytes)),
            Ok(Err(Error::NotFound { .. })) => Ok(None),
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

impl Objects for Bucket {
    fn put(&self, name: &str, bytes: Bytes) -> Result<(), StorageError> {
        let key = self.key(name);
        let put = self.store.put(&key, bytes.into());
        self.runtime.block_on(put).map(drop).map_err(|error| storage_error(name, &error))
    }

    fn put_new(&self, name: &str, bytes: Bytes) -> Result<PutOutcome, StorageError> {
        let (key, options) = (self.key(name), PutOptions::from(PutMode::Create));
        let put = self.store.put_opts(&key, bytes.into(), options);
        match self.runtime.block_on(put) {
            Ok(_) => Ok(PutOutcome::Created),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(PutOutcome::Exists),
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
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(storage_error(name, &error)),
        }
    }

    fn delete(&self, name: &str) -> Result<(), StorageError> {
        match self.runtime.block_on(async { self.store.delete(&self.key(name)).await }) {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(storage_error(name, &error)),
        }
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, StorageError> {
        let base = (!self.prefix.is_empty()).then(|| Key::from(self.prefix.as_str()));
        let list = self.store.list(base.as_ref()).map_ok(|meta| meta.location).try_collect();
        let keys: Vec<Key> =
            self.runtime.block_on(list).map_err(|error| storage_error(prefix, &error))?;
        let names = keys.iter().filter_map(Key::filename);
        Ok(names.filter(|name| name.starts_with(prefix)).map(str::to_owned).collect())
    }
}
