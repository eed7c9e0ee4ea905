//! Any cloud store that the crate `object_store` supports.
//!
//! The crate repeats requests that fail for a moment. A request that still fails is
//! [`StorageError::Unavailable`] and stays in the queue.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use evenfall_core::{Objects, PutOutcome, StorageError};
use futures_util::TryStreamExt as _;
use futures_util::future::{Either, select};
use object_store::path::Path as Key;
use object_store::{Error, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, UpdateVersion};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::{BucketBackend, BucketOptions, Fetch};

/// How long a request and its repetitions may take. A longer time would delay a stop, and the queue
/// tries the request again anyway.
#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
const REQUEST_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(15);

/// A bucket.
pub(super) struct Cloud {
    store: Arc<dyn ObjectStore>,
    runtime: Arc<Runtime>,
    prefix: String,
    /// Whether listings come in the order of names.
    is_ordered: bool,
    /// When requests without an answer fail, once the store stops.
    end: watch::Sender<Option<Instant>>,
}

impl std::fmt::Display for Cloud {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.store.fmt(f)
    }
}

/// A request under way. Dropping it abandons the request.
struct Coming(tokio::task::JoinHandle<Result<Bytes, Error>>);

impl Drop for Coming {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Addresses at which clouds give keys to their machines. These addresses are asked when the
/// environment has no keys.
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
        // A missing object is no error of this function, so the bucket is missing.
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

/// Tells a missing object from a missing bucket.
fn missing(name: &str, error: &Error) -> Result<(), StorageError> {
    let what = format!("{error:?}");
    let is_bucket = ["NoSuchBucket", "ContainerNotFound", "bucket does not exist"]
        .iter()
        .any(|sign| what.contains(sign));
    if is_bucket { Err(storage_error(name, error)) } else { Ok(()) }
}

/// The result of a read; `None` when the object is missing.
fn found(name: &str, read: Result<Bytes, Error>) -> Result<Option<Bytes>, StorageError> {
    match read {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error @ Error::NotFound { .. }) => missing(name, &error).map(|()| None),
        Err(error) => Err(storage_error(name, &error)),
    }
}

impl Cloud {
    /// The bucket of this address.
    ///
    /// # Errors
    /// When the address or the environment is incomplete, or the program was built without this
    /// kind of address.
    pub(super) fn open(place: &str, options: &BucketOptions) -> Result<Self, StorageError> {
        let (scheme, rest) = place.split_once("://").unwrap_or((place, ""));
        let prefix = rest.split_once('/').map_or("", |(_, prefix)| prefix.trim_matches('/'));
        let store = store_of(scheme, place, options)?;
        let (runtime, prefix, is_ordered) = (runtime()?, prefix.to_owned(), scheme == "s3");
        let end = watch::Sender::new(None);
        Ok(Self { store, runtime, prefix, is_ordered, end })
    }

    /// Waits for a request, and no longer than to the end that a stop has set.
    fn wait<T>(&self, request: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let mut end = self.end.subscribe();
        self.runtime.block_on(async {
            let over = async {
                let at = end.wait_for(Option::is_some).await.ok().and_then(|at| *at);
                tokio::time::sleep_until(at.unwrap_or_else(Instant::now).into()).await;
            };
            match select(pin!(request), pin!(over)).await {
                Either::Left((done, _)) => done,
                Either::Right(_) => {
                    let source = "it did not answer before the store stopped".into();
                    Err(Error::Generic { store: "objects", source })
                }
            }
        })
    }

    fn key(&self, name: &str) -> Key {
        match self.prefix.is_empty() {
            true => Key::from(name),
            false => Key::from(format!("{}/{name}", self.prefix)),
        }
    }
}

impl BucketBackend for Cloud {
    fn end_by(&self, end: Instant) {
        self.end.send_replace(Some(end));
    }

    fn fetch(&self, name: &str, offset: u64, len: usize) -> Fetch {
        let (store, key, name) = (Arc::clone(&self.store), self.key(name), name.to_owned());
        let range = offset..offset.saturating_add(len as u64);
        let get = async move { store.get_range(&key, range).await };
        let (runtime, mut coming) = (Arc::clone(&self.runtime), Coming(self.runtime.spawn(get)));
        Box::new(move || match runtime.block_on(&mut coming.0) {
            Ok(read) => found(&name, read),
            Err(error) => Err(StorageError::Unavailable { name, what: error.to_string() }),
        })
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

/// The object store of an address.
fn store_of(
    scheme: &str,
    place: &str,
    options: &BucketOptions,
) -> Result<Arc<dyn ObjectStore>, StorageError> {
    // A build with the feature `cloud` alone has no scheme that reads the options.
    let _ = options;
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
        #[cfg(feature = "files")]
        "files" => {
            let rest = place.trim_start_matches("files://");
            let nameserver = rest.split('/').next().unwrap_or(rest);
            let user = options.0.get("user").cloned();
            let user = user.unwrap_or_else(evenfall_files_service::user_of_environment);
            // As AWS_ALLOW_HTTP does for S3, this variable lets records leave this host in clear.
            let is_open = std::env::var("FILES_ALLOW_HTTP").is_ok_and(|value| value == "true");
            let objects = evenfall_files_service::FileObjects::new(nameserver, "", &user);
            Ok(Arc::new(objects.open_to_other_hosts(is_open)))
        }
        other => {
            let what = format!("this program does not know {other}://, or was built without it");
            Err(StorageError::Failed { name: place.into(), what })
        }
    }
}

impl Objects for Cloud {
    fn put(&self, name: &str, bytes: Bytes) -> Result<(), StorageError> {
        let key = self.key(name);
        let put = self.store.put(&key, bytes.into());
        self.wait(put).map(drop).map_err(|error| storage_error(name, &error))
    }

    fn put_new(&self, name: &str, bytes: Bytes) -> Result<PutOutcome, StorageError> {
        let (key, options) = (self.key(name), PutOptions::from(PutMode::Create));
        let put = self.store.put_opts(&key, bytes.into(), options);
        match self.wait(put) {
            Ok(_) => Ok(PutOutcome::Created),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(PutOutcome::Exists),
            Err(error) => Err(storage_error(name, &error)),
        }
    }

    fn swap(&self, name: &str, was: &Bytes, bytes: Bytes) -> Result<PutOutcome, StorageError> {
        let key = self.key(name);
        let swap = async {
            let there = self.store.get(&key).await?;
            let at = UpdateVersion {
                e_tag: there.meta.e_tag.clone(),
                version: there.meta.version.clone(),
            };
            if there.bytes().await? != *was {
                return Ok(PutOutcome::Exists);
            }
            let options = PutOptions::from(PutMode::Update(at));
            self.store.put_opts(&key, bytes.into(), options).await.map(|_| PutOutcome::Created)
        };
        match self.wait(swap) {
            Ok(outcome) => Ok(outcome),
            Err(Error::Precondition { .. }) => Ok(PutOutcome::Exists),
            Err(error @ Error::NotFound { .. }) => {
                missing(name, &error).map(|()| PutOutcome::Exists)
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
        found(name, self.wait(get))
    }

    fn delete(&self, name: &str) -> Result<(), StorageError> {
        match self.wait(async { self.store.delete(&self.key(name)).await }) {
            Ok(()) => Ok(()),
            Err(error @ Error::NotFound { .. }) => missing(name, &error),
            Err(error) => Err(storage_error(name, &error)),
        }
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, StorageError> {
        let base = (!self.prefix.is_empty()).then(|| Key::from(self.prefix.as_str()));
        let list = async {
            let mut names = Vec::new();
            // The listing starts at the prefix. Where names come in order, it ends with the prefix.
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
        self.wait(list).map_err(|error: Error| storage_error(prefix, &error))
    }
}
