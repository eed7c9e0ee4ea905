//! A membership service outside the racks: one key in etcd.

use evenfall_order_service::Membership;

type Opened = Result<Box<dyn Membership>, Box<dyn std::error::Error>>;

#[cfg(not(feature = "etcd"))]
pub fn open(_: &str) -> Opened {
    Err(crate::missing::words("a membership service in etcd", "etcd").into())
}

/// The key of a name in etcd, such as `etcd://127.0.0.1:2379/name`.
#[cfg(feature = "etcd")]
pub fn open(address: &str) -> Opened {
    let (etcd, prefix) = evenfall_store_engine::names::etcd::Etcd::open(address)?;
    Ok(Box::new(inside::Key { etcd, key: format!("{prefix}order/ends") }))
}

#[cfg(feature = "etcd")]
mod inside {
    use bytes::Bytes;
    use evenfall_order_service::Membership;
    use evenfall_store_engine::names::etcd::{Etcd, is_unchanged, put};

    pub struct Key {
        pub etcd: Etcd,
        pub key: String,
    }

    impl Membership for Key {
        fn read(&self) -> Result<Option<Bytes>, String> {
            let found = self.etcd.get(&self.key).map_err(|error| error.to_string())?;
            Ok(found.map(|found| found.value))
        }

        fn replace(&self, old: Option<&Bytes>, new: &Bytes) -> Result<(), String> {
            let found = self.etcd.get(&self.key).map_err(|error| error.to_string())?;
            if found.as_ref().map(|found| &found.value) != old {
                return Ok(());
            }
            let revision = found.map_or(0, |found| found.mod_revision);
            let condition = vec![is_unchanged(&self.key, revision)];
            let step = vec![put(&self.key, new.clone(), 0)];
            let done = self.etcd.commit(condition, step);
            done.map(|_| ()).map_err(|error| error.to_string())
        }
    }
}
