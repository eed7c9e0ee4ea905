//! Removes objects that nothing names.
//!
//! A put that lands after its answer was given up, a deletion that failed, and a life that ended in
//! the middle leave objects that no later step removes. Once an hour the upload thread lists the
//! bucket and looks for such objects. What nothing has named at any look for a day is removed.
//!
//! | object | is named by |
//! |---|---|
//! | chunk | the names or the catalogue, by the number of its file |
//! | pack of this life | the blocks of this life; a pack that was named just before counts too |
//! | pack or block of another life | a file that this life was the last to publish or to claim |
//! | tail of an earlier version | both its file and its life |
//!
//! Entries of the catalogue name files themselves, and stay. Objects of other names are not the
//! store's, and stay too. The bucket is listed before the names, so that an object of a new file is
//! never seen without its name. The day counts by the clock by which ages count, and not at all
//! while the wall clock has stepped.

use std::collections::{BTreeMap, BTreeSet};

use evenfall_core::Objects as _;
use evenfall_store_format::FileId;
use evenfall_store_format::layout::{
    parse_block_name, parse_chunk_name, parse_pack_name, parse_tail_name,
};

use super::StoreEngine;
use crate::life_catalog::read_catalog;
use crate::{StoreError, lock};

/// The setting of the directory that keeps the objects without a name, and since when.
const UNNAMED: &str = "unnamed objects";
/// How long nothing may name an object before it is removed.
const UNNAMED_NS: i64 = 86_400 * 1_000_000_000;
/// Objects without a name that are watched at once. The others wait for a later look.
const UNNAMED_MAX: usize = 10_000;

/// What names objects.
struct Namers {
    /// Files that the names or the catalogue know.
    files: BTreeSet<FileId>,
    /// Tokens of lives that a file names.
    lives: BTreeSet<u32>,
    /// The token of this life.
    ours: u32,
}

impl Namers {
    /// Whether an object of this name is named. `is_forgotten` says whether a pack of this life is
    /// named by no block any more.
    fn has_named(&self, object: &str, is_forgotten: &dyn Fn(u32) -> bool) -> bool {
        if let Some((_, file, _)) = parse_chunk_name(object) {
            return self.files.contains(&file);
        }
        if let Some((token, number)) = parse_pack_name(object) {
            return match token == self.ours {
                true => !is_forgotten(number),
                false => self.lives.contains(&token),
            };
        }
        if let Some((token, _)) = parse_block_name(object) {
            return token == self.ours || self.lives.contains(&token);
        }
        if let Some((file, token)) = parse_tail_name(object) {
            return self.files.contains(&file) && self.lives.contains(&token);
        }
        true
    }
}

impl StoreEngine {
    /// Looks for objects that nothing names, and removes those that nothing has named for a day.
    /// Returns how many were removed.
    pub(crate) fn remove_orphans(&self) -> Result<usize, StoreError> {
        let bucket = self.bucket.as_ref().ok_or(StoreError::NoObjects)?;
        self.see_catalog()?;
        let Some(now_ns) = self.age_now_ns()? else { return Ok(0) };
        let objects = bucket.list("")?;
        let namers = self.find_namers()?;
        let before: BTreeMap<String, i64> = self
            .names
            .local()
            .setting(UNNAMED)?
            .map_or_else(BTreeMap::new, |text| serde_json::from_str(&text).unwrap_or_default());
        let mut unnamed = BTreeMap::new();
        {
            // While this is held, no pack is put that is not among the named ones yet.
            let packs = self.publisher.lock_packs();
            let is_forgotten = |number| packs.is_forgotten(number);
            for object in objects {
                if unnamed.len() < UNNAMED_MAX && !namers.has_named(&object, &is_forgotten) {
                    let since = before.get(&object).copied().unwrap_or(now_ns);
                    unnamed.insert(object, since.min(now_ns));
                }
            }
        }
        let due = |since: i64| now_ns.saturating_sub(since) >= UNNAMED_NS;
        let gone: Vec<String> = unnamed
            .iter()
            .filter(|(_, since)| due(**since))
            .map(|(name, _)| name.clone())
            .collect();
        for object in &gone {
            self.names.check_lease()?;
            bucket.delete(object)?;
            unnamed.remove(object);
        }
        if unnamed != before {
            let text = serde_json::to_string(&unnamed).unwrap_or_default();
            self.names.local().set(UNNAMED, &text)?;
        }
        Ok(gone.len())
    }

    /// What names objects at present.
    fn find_namers(&self) -> Result<Namers, StoreError> {
        let bucket = self.bucket.as_ref().ok_or(StoreError::NoObjects)?;
        let mut entries = self.list_entries()?;
        // Names that were lost and are not restored yet are still in the catalogue.
        entries.extend(read_catalog(bucket)?);
        let ours = self.names.token();
        let mut files: BTreeSet<FileId> = entries.iter().map(|(_, entry)| entry.id).collect();
        files.extend(self.files.read().unwrap_or_else(|e| e.into_inner()).keys().copied());
        files.extend(lock(&self.strays).keys().copied());
        let lives = entries.iter().flat_map(|(_, entry)| [entry.listed, entry.token]).collect();
        Ok(Namers { files, lives, ours })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
    use std::time::Duration;

    use bytes::Bytes;
    use evenfall_store_format::age_clock::Uptime;
    use evenfall_store_format::layout::{block_name, chunk_name, pack_name, tail_name};
    use evenfall_store_format::{Schema, SegmentKind};

    use super::*;
    use crate::{Archive, Bucket, RecordSource as _, Store, StoreAckLevel, StoreConfig};

    const HOUR_NS: i64 = 3_600 * 1_000_000_000;

    #[test]
    fn an_object_goes_after_a_day_without_a_name_and_a_named_one_never() {
        static PASSED_NS: AtomicI64 = AtomicI64::new(0);
        let dir = tempfile::tempdir().unwrap();
        let config = || StoreConfig {
            clock: || 1_790_000_000_000_000_000 + PASSED_NS.load(Relaxed),
            uptime: || Uptime { boot: 1, ns: PASSED_NS.load(Relaxed) as u64 },
            publish_every: Duration::from_secs(3_600),
            ..StoreConfig::new(dir.path())
        };
        let records: Vec<u8> =
            (0..100i64).flat_map(|n| [n, n].map(i64::to_le_bytes)).flatten().collect();
        let open = || Store::open(config()).unwrap().store;
        let store = open();
        let file = store.create("a", &Schema::opaque(16)).unwrap();
        store.append(&file, &records, StoreAckLevel::Object).unwrap();
        let (id, token) = (file.id, file.entry.token);
        let bucket = Bucket::directory(&dir.path().join("objects")).unwrap();
        let named = bucket.list("").unwrap();
        let orphans = [
            chunk_name(SegmentKind::Data, FileId(99), 0),
            chunk_name(SegmentKind::Index, FileId(99), 0),
            pack_name(99, 1),
            block_name(99, 0),
            tail_name(FileId(99), token, 1),
            tail_name(id, 99, 1),
        ];
        let strange = "notes.txt".to_owned();
        for name in orphans.iter().chain([&strange]) {
            bucket.put(name, Bytes::from_static(b"nothing")).unwrap();
        }
        assert_eq!(store.shared.remove_orphans().unwrap(), 0);
        drop((file, store));
        PASSED_NS.store(23 * HOUR_NS, Relaxed);
        let store = open();
        assert_eq!(store.shared.remove_orphans().unwrap(), 0);
        PASSED_NS.store(25 * HOUR_NS, Relaxed);
        assert_eq!(store.shared.remove_orphans().unwrap(), orphans.len());
        let left = bucket.list("").unwrap();
        assert!(named.iter().chain([&strange]).all(|name| left.contains(name)), "{left:?}");
        assert!(!orphans.iter().any(|name| left.contains(name)), "{left:?}");
        let archive = Archive::of(bucket).unwrap();
        assert_eq!(archive.numbers("a", 0..100).unwrap(), records);
    }

    #[test]
    fn a_pack_of_this_life_that_no_block_names_is_an_orphan() {
        let namers = Namers { files: BTreeSet::new(), lives: BTreeSet::from([4]), ours: 5 };
        let is_forgotten = |number: u32| number == 2;
        assert!(namers.has_named(&pack_name(5, 1), &is_forgotten));
        assert!(!namers.has_named(&pack_name(5, 2), &is_forgotten));
        assert!(namers.has_named(&pack_name(4, 2), &is_forgotten));
        assert!(!namers.has_named(&pack_name(3, 2), &is_forgotten));
        assert!(namers.has_named(&block_name(5, 0), &is_forgotten));
    }
}
