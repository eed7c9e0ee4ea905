//! [`NameService`]: keys that several store nodes share, with transactions and leases.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::NamesError;

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Bytes,
    /// The revision of the key's last change, which no later change of any key has.
    pub revision: i64,
}

/// A condition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The key's last change has this revision; 0 for a missing key.
    Unchanged(String, i64),
    /// The key belongs to this lease.
    Leased(String, i64),
}

/// A step of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Puts a key, under a lease or, with 0, without one.
    Put(String, Bytes, i64),
    /// Deletes a key.
    Delete(String),
}

impl Step {
    /// Bytes of the step and of a condition on its key.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Put(key, value, _) => 2 * key.len() + value.len(),
            Self::Delete(key) => 2 * key.len(),
        }
    }
}

/// The key is not there.
pub fn is_absent(key: &str) -> Condition {
    Condition::Unchanged(key.to_owned(), 0)
}

/// The key's last change has this revision; 0 for a missing key.
pub fn is_unchanged(key: &str, revision: i64) -> Condition {
    Condition::Unchanged(key.to_owned(), revision)
}

/// The key belongs to this lease.
pub fn has_lease(key: &str, lease: i64) -> Condition {
    Condition::Leased(key.to_owned(), lease)
}

/// Puts a key, under a lease or, with 0, without one.
pub fn put(key: &str, value: impl Into<Bytes>, lease: i64) -> Step {
    Step::Put(key.to_owned(), value.into(), lease)
}

/// Deletes a key.
pub fn delete(key: &str) -> Step {
    Step::Delete(key.to_owned())
}

/// Keys that several store nodes share.
///
/// A directory may carry out a request whose answer is lost, and get the request again. Every write
/// is therefore a transaction that has no effect the second time.
///
/// All methods fail with [`NamesError::Unavailable`] when the directory does not answer, and with
/// [`NamesError::Failed`] when it refuses.
pub trait NameService: Send + Sync {
    /// The value of a key; `None` when the key is missing.
    ///
    /// # Errors
    /// See [`NameService`].
    fn get(&self, key: &str) -> Result<Option<Found>, NamesError>;

    /// Every key that begins with `prefix`, in order. The result is not a snapshot: keys may be
    /// read at different times.
    ///
    /// # Errors
    /// See [`NameService`].
    fn list(&self, prefix: &str) -> Result<Vec<Found>, NamesError>;

    /// These keys, in their order. The result is not a snapshot: keys may be read at
    /// different times.
    ///
    /// # Errors
    /// See [`NameService`].
    fn get_all(&self, keys: &[String]) -> Result<Vec<Option<Found>>, NamesError>;

    /// Carries out all steps if all conditions hold, or no step. Returns whether the conditions
    /// held.
    ///
    /// # Errors
    /// See [`NameService`].
    fn commit(&self, conditions: Vec<Condition>, steps: Vec<Step>) -> Result<bool, NamesError>;

    /// Takes a lease of this many seconds. Returns its number and its granted time.
    ///
    /// # Errors
    /// See [`NameService`].
    fn lease_grant(&self, seconds: u64) -> Result<(i64, Duration), NamesError>;

    /// Ends a lease, and with it every key that was put under it.
    ///
    /// # Errors
    /// See [`NameService`].
    fn lease_revoke(&self, id: i64) -> Result<(), NamesError>;

    /// Renews a lease. Returns whether the lease still existed.
    ///
    /// # Errors
    /// See [`NameService`].
    fn lease_keep_alive(&self, id: i64) -> Result<bool, NamesError>;
}

/// A directory, and the prefix of the keys of one cluster in it.
type Opened = Result<(Arc<dyn NameService>, String), NamesError>;

/// Opens `etcd://127.0.0.1:2379/name` or `keys://127.0.0.1:21811/name`. Several endpoints are
/// separated by commas. Returns also the prefix of the keys of that name.
///
/// # Errors
/// When the text is no such address, or this build lacks the feature. No connection is made yet.
pub fn open(address: &str) -> Opened {
    let parts = address.split_once("://").and_then(|(scheme, rest)| {
        let (endpoints, name) = rest.split_once('/')?;
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let is_name = !name.is_empty() && name.chars().all(allowed);
        is_name.then_some((scheme, endpoints, name))
    });
    match parts {
        Some(("etcd", endpoints, name)) => in_etcd(endpoints, name),
        // The scheme was called `order` until 0.2.
        Some(("keys" | "order", endpoints, name)) => in_keys(endpoints, name),
        _ => Err(NamesError::Failed(format!(
            "{address} is no directory of names: say etcd://127.0.0.1:2379/name or \
             keys://127.0.0.1:21811/name, the name in letters, digits, dots and dashes"
        ))),
    }
}

#[cfg(feature = "etcd")]
fn in_etcd(endpoints: &str, name: &str) -> Opened {
    let etcd = super::etcd::Etcd::connect(endpoints)?;
    Ok((Arc::new(etcd), format!("/evenfall/{name}/")))
}

#[cfg(not(feature = "etcd"))]
fn in_etcd(_: &str, _: &str) -> Opened {
    Err(NamesError::Lacks("etcd"))
}

#[cfg(feature = "keys")]
fn in_keys(endpoints: &str, name: &str) -> Opened {
    let keys = super::ordered::OrderedNames::connect(endpoints)?;
    // A key that begins with a slash would need the paths above it.
    Ok((Arc::new(keys), format!("evenfall/{name}/")))
}

#[cfg(not(feature = "keys"))]
fn in_keys(_: &str, _: &str) -> Opened {
    Err(NamesError::Lacks("keys"))
}
