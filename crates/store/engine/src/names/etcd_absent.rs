//! What stands in the place of etcd in a build without the feature `etcd`: no connection is ever
//! made, and the error says how to get a build that makes it.

use std::time::Duration;

use bytes::Bytes;

use super::NamesError;

/// A connection, which nobody can make.
pub enum Etcd {}

/// A key and its value.
pub struct KeyValue {
    /// The key.
    pub key: Bytes,
    /// Revision of its last change.
    pub mod_revision: i64,
    /// The value.
    pub value: Bytes,
}

/// A condition of a transaction.
#[derive(Clone)]
pub struct Compare;

/// A step of a transaction.
#[derive(Clone)]
pub struct Step;

impl Etcd {
    /// Says that this build has no etcd.
    ///
    /// # Errors
    /// Always [`NamesError::Failed`].
    pub fn connect(_: &str) -> Result<Self, NamesError> {
        let what = "names in etcd are not in this build; get them with `cargo install --path \
                    apps/cli --features full`, or with the feature etcd alone";
        Err(NamesError::Failed(what.into()))
    }

    /// No key.
    ///
    /// # Errors
    /// None: there is no connection; as everywhere here.
    pub fn get(&self, _: &str) -> Result<Option<KeyValue>, NamesError> {
        match *self {}
    }

    /// No keys.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn list(&self, _: &str) -> Result<Vec<KeyValue>, NamesError> {
        match *self {}
    }

    /// No keys.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_all(&self, _: &[String]) -> Result<Vec<Option<KeyValue>>, NamesError> {
        match *self {}
    }

    /// No transaction.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn commit(&self, _: Vec<Compare>, _: Vec<Step>) -> Result<bool, NamesError> {
        match *self {}
    }

    /// No lease.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn lease_grant(&self, _: u64) -> Result<(i64, Duration), NamesError> {
        match *self {}
    }

    /// No lease.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn lease_revoke(&self, _: i64) -> Result<(), NamesError> {
        match *self {}
    }

    /// No lease.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn lease_keep_alive(&self, _: i64) -> Result<bool, NamesError> {
        match *self {}
    }
}

/// A condition on a key.
pub fn is_absent(_: &str) -> Compare {
    Compare
}

/// A condition on a key.
pub fn is_unchanged(_: &str, _: i64) -> Compare {
    Compare
}

/// A condition on a key.
pub fn has_lease(_: &str, _: i64) -> Compare {
    Compare
}

/// A step on a key.
pub fn put(_: &str, _: impl Into<Bytes>, _: i64) -> Step {
    Step
}

/// A step on a key.
pub fn delete(_: &str) -> Step {
    Step
}
