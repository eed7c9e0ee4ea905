//! The second node's part: files that take their records from another node's primary.
//!
//! A copy is an ordinary file of this disk. A copy is journaled and synced, and can be read. Only
//! the primary may append to a copy, at the record where the copy ends. This node does not publish
//! the copy. When the primary is lost, the next life of this node may claim the file
//! (`--take-over`).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use evenfall_store_format::{Appender, Error};

use super::{Store, StoreEngine, StoreFile};
use crate::{Entry, StoreError, lock};

fn refused<T>(what: String) -> Result<T, StoreError> {
    Err(StoreError::Replica { what, is_retryable: false })
}

impl Store {
    /// Begins a copy of the file that has this entry at its primary, or continues the copy.
    ///
    /// # Errors
    /// [`Error::Fenced`] by a later primary. [`StoreError::Replica`] when the file is this node's
    /// own, or when its records here are no beginning of the primary's records.
    pub fn follow(&self, name: &str, original: &Entry) -> Result<Arc<StoreFile>, StoreError> {
        let shared = &self.shared;
        shared.check_writing(name)?;
        original.schema.check()?;
        shared.check_token(name, original)?;
        // Connections take turns, so that no two begin the same copy.
        let _turn = lock(&shared.naming_turn);
        let Some(file) = shared.named(name) else {
            return shared.begin_copy(name, original);
        };
        let held = file.copies.load(Relaxed);
        if held == 0 {
            return refused(format!("{name} is a file of its own there"));
        }
        if *file.schema != original.schema {
            return Err(Error::FileExists { file: name.into() }.into());
        }
        if original.token < held {
            return Err(Error::Fenced { file: file.id, token: original.token, newer: held }.into());
        }
        let common = original.forked_at(held);
        if original.has_forked_since(held) && file.records() > common {
            return refused(format!(
                "its copy of {name} has {} records, and the file went on elsewhere behind \
                 {common}: delete the copy there",
                file.records()
            ));
        }
        if original.token > held {
            shared.names.copy(name, original)?;
            file.copies.store(original.token, Relaxed);
        }
        Ok(file)
    }

    /// Takes records of the primary with this token, from record `first` on. Records that the copy
    /// has are skipped. Returns the numbers that the copy has now, and the commit to wait for.
    ///
    /// # Errors
    /// [`Error::Fenced`]; [`StoreError::Replica`] when records between are missing; and the errors
    /// of [`append`](Self::append).
    pub fn copy_begin(
        &self,
        file: &StoreFile,
        token: u32,
        first: u64,
        records: &[u8],
    ) -> Result<(Range<u64>, u64), StoreError> {
        let shared = &self.shared;
        shared.check_writing(&file.name)?;
        shared.admit()?;
        let mut appender = lock(&file.appender);
        shared.check_kept(file)?;
        let newer = file.copies.load(Relaxed);
        if newer != token {
            return Err(Error::Fenced { file: file.id, token, newer }.into());
        }
        let have = appender.records();
        let Some(known) = have.checked_sub(first) else {
            return refused(format!("{}: records {have} to {first} are missing", file.name));
        };
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        let known = known.saturating_mul(appender.layout().record_bytes());
        let mut sealed = Vec::new();
        appender.append(records.get(known..).unwrap_or_default(), &mut sealed)?;
        let copied = (have..appender.records(), shared.queue(file, sealed, true));
        drop(appender);
        file.signals.raise();
        Ok(copied)
    }
}

/// Lives that a primary may have had since its copy last heard of it: one start a second for twelve
/// days. A later token is refused, so that one wrong or hostile request cannot fence the primary
/// for good.
const LIVES_MAX: u32 = 1 << 20;

impl StoreEngine {
    /// Refuses tokens that no primary of this file can have. The protocol has no authentication: a
    /// stranger that reaches the port of a store without a cluster can still fence a primary, life
    /// by life.
    fn check_token(&self, name: &str, original: &Entry) -> Result<(), StoreError> {
        let token = original.token;
        if token == 0 {
            return refused(format!("{name}: token 0 is no primary's"));
        }
        if let Some(member) = self.names.member() {
            let known = member.find(name)?.map_or(0, |entry| entry.token);
            return match token > known {
                true => refused(format!("{name}: the cluster knows no token {token} of it")),
                false => Ok(()),
            };
        }
        let held = self.named(name).map_or(0, |file| file.copies.load(Relaxed));
        match token > held.saturating_add(LIVES_MAX) {
            true => refused(format!(
                "{name}: token {token} is more than {LIVES_MAX} lives after {held}, the last one \
                 known here; if it is right, delete the copy here and begin it anew"
            )),
            false => Ok(()),
        }
    }

    fn begin_copy(&self, name: &str, original: &Entry) -> Result<Arc<StoreFile>, StoreError> {
        let entry = self.names.copy(name, original)?;
        // The segments of the copy carry the token of this life, as all segments of this disk do.
        let entry = Entry { token: self.names.token(), first: 0, ..entry };
        let (id, schema) = (entry.id, Arc::new(entry.schema.clone()));
        let appender = Appender::new(id, entry.token, Arc::clone(&schema))?;
        let file = StoreFile::new(name, entry, schema, appender, None);
        Ok(self.install(&mut lock(&self.volume), file))
    }
}
