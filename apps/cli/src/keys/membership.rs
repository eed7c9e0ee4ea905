//! A membership service outside the racks: one key in etcd.

use std::sync::Arc;

use bytes::Bytes;
use evenfall_consensus_replica::MembershipService;
use evenfall_store_engine::names::name_service::{self, NameService, is_unchanged, put};

/// The key of a name in etcd, such as `etcd://127.0.0.1:2379/name`.
pub fn open(address: &str) -> Result<Box<dyn MembershipService>, Box<dyn std::error::Error>> {
    if !cfg!(feature = "etcd") {
        return Err(crate::missing::words("a membership service in etcd", "etcd").into());
    }
    if !address.starts_with("etcd://") {
        return Err(format!("--membership {address}: say etcd://127.0.0.1:2379/name").into());
    }
    let (directory, prefix) = name_service::open(address)?;
    Ok(Box::new(Key { directory, key: format!("{prefix}order/ends") }))
}

struct Key {
    directory: Arc<dyn NameService>,
    key: String,
}

impl MembershipService for Key {
    fn read(&self) -> Result<Option<Bytes>, String> {
        let found = self.directory.get(&self.key).map_err(|error| error.to_string())?;
        Ok(found.map(|found| found.value))
    }

    fn replace(&self, old: Option<&Bytes>, new: &Bytes) -> Result<(), String> {
        let found = self.directory.get(&self.key).map_err(|error| error.to_string())?;
        if found.as_ref().map(|found| &found.value) != old {
            return Ok(());
        }
        let revision = found.map_or(0, |found| found.revision);
        let condition = vec![is_unchanged(&self.key, revision)];
        let step = vec![put(&self.key, new.clone(), 0)];
        let done = self.directory.commit(condition, step);
        done.map(|_| ()).map_err(|error| error.to_string())
    }
}
