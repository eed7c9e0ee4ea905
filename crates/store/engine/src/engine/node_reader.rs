//! [`NodeReader`]: any file of the cluster, as a reader of this node has it.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use evenfall_store_format::cache::Interest;
use evenfall_store_format::{Error, FileId, Schema};

use super::non_primary::NonPrimaryFile;
use super::{Store, StoreFile};
use crate::{FileListing, Freshness, StoreError};

/// A file that readers of this node may read.
#[derive(Clone, Debug)]
pub enum ReadableFile {
    /// A file or a copy that this node has.
    Ours(Arc<StoreFile>),
    /// A file that another node has.
    Other(Arc<NonPrimaryFile>),
}

impl ReadableFile {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Ours(file) => &file.name,
            Self::Other(file) => &file.name,
        }
    }

    /// Its number.
    pub fn id(&self) -> FileId {
        match self {
            Self::Ours(file) => file.id,
            Self::Other(file) => file.id,
        }
    }

    /// Meaning of the records.
    pub fn schema(&self) -> &Arc<Schema> {
        match self {
            Self::Ours(file) => &file.schema,
            Self::Other(file) => &file.schema,
        }
    }
}

/// A reader of a file, which wants records of some freshness.
pub struct NodeReader<'a> {
    store: &'a Store,
    file: ReadableFile,
    freshness: Freshness,
}

impl Store {
    /// The file of this name, whichever node is its primary.
    ///
    /// # Errors
    /// [`Error::UnknownFile`]; [`NamesError::NotReader`](crate::NamesError::NotReader) and the
    /// other errors of the names.
    pub fn readable_file(&self, name: &str) -> Result<ReadableFile, StoreError> {
        match self.shared.named(name) {
            Some(found) => {
                self.shared.check_kept(&found)?;
                Ok(ReadableFile::Ours(found))
            }
            None => self.shared.other_file(name).map(ReadableFile::Other),
        }
    }

    /// Every file of the cluster, in order of names. Without a cluster, every file of this store.
    ///
    /// # Errors
    /// The errors of the names and of the objects, and for fresh numbers
    /// [`StoreError::PrimarySilent`]. [`Freshness::Primary`] asks for the files of this node alone.
    pub fn readable_files(&self, freshness: Freshness) -> Result<Vec<FileListing>, StoreError> {
        // A copy has the records that were copied, and no fresh ones.
        let takes_copies = freshness == Freshness::Published
            || (freshness == Freshness::Fresh && self.member().is_none());
        let ours = self.files().into_iter();
        let ours = ours.filter(|file| takes_copies || file.check_ours().is_ok());
        let mut all: Vec<FileListing> = ours.map(|file| file.as_listed()).collect();
        if freshness != Freshness::Published {
            self.shared.names.check_lease()?;
        }
        if freshness != Freshness::Primary {
            all.extend(self.shared.list_others(freshness)?);
            all.sort_by(|a, b| a.name.cmp(&b.name));
        }
        Ok(all)
    }

    /// A reader of a file. This node may have taken the file over since it was found.
    ///
    /// # Errors
    /// The node that is the primary, for [`Freshness::Primary`]; the errors of the names.
    pub fn reader_of(
        &self,
        file: &ReadableFile,
        freshness: Freshness,
    ) -> Result<NodeReader<'_>, StoreError> {
        let shared = &self.shared;
        let ours = match file {
            ReadableFile::Ours(file) => Some(Arc::clone(file)),
            ReadableFile::Other(other) => {
                shared.named(&other.name).filter(|file| file.id == other.id)
            }
        };
        let is_primary = ours.as_ref().is_some_and(|file| file.check_ours().is_ok());
        let file = match ours {
            Some(file) if freshness == Freshness::Published => ReadableFile::Ours(file),
            Some(file) if is_primary => {
                // Another node may be the primary after the lease, and have newer records.
                shared.names.check_lease()?;
                ReadableFile::Ours(file)
            }
            _ if freshness == Freshness::Primary => return Err(self.name_primary(file.name())),
            // The copy of a second node without a cluster: nobody knows the primary.
            Some(copy) if self.member().is_none() => {
                copy.check_ours()?;
                ReadableFile::Ours(copy)
            }
            _ => match file {
                ReadableFile::Ours(copy) => ReadableFile::Other(shared.other_file(&copy.name)?),
                ReadableFile::Other(_) => file.clone(),
            },
        };
        Ok(NodeReader { store: self, file, freshness })
    }

    /// The error that names the primary of a file.
    fn name_primary(&self, name: &str) -> StoreError {
        match self.file(name).and_then(|file| file.check_ours()) {
            Err(error) => error,
            Ok(()) => {
                let what = format!("{name} has come to this node just now: ask again");
                StoreError::Remote { what, is_retryable: true }
            }
        }
    }
}

fn no_record(record: String, numbers: Range<u64>) -> StoreError {
    Error::NoRecord { record, first: numbers.start, end: numbers.end }.into()
}

impl NodeReader<'_> {
    /// Whether the reader has the published records of another node's file, which may have more.
    pub fn is_published(&self) -> bool {
        matches!(self.file, ReadableFile::Other(_)) && !self.is_fresh()
    }

    fn is_fresh(&self) -> bool {
        self.freshness != Freshness::Published
    }

    /// The numbers of the published records, and the time of the last.
    fn published(&self, file: &NonPrimaryFile) -> Result<(Range<u64>, i64), StoreError> {
        let end = self.store.shared.published_end(file)?;
        Ok(end.map_or((0..0, i64::MIN), |end| {
            (end.snapshot.first..end.snapshot.records, end.node.last_ns)
        }))
    }

    /// The numbers of the records in the file.
    ///
    /// # Errors
    /// [`StoreError::PrimarySilent`]; the errors of the names and of the objects. All methods have
    /// these errors.
    pub fn numbers(&self) -> Result<Range<u64>, StoreError> {
        match &self.file {
            ReadableFile::Ours(file) => Ok(file.first()..file.records()),
            ReadableFile::Other(file) => {
                // The error of a silent primary states the published end.
                let (published, _) = self.published(file)?;
                if !self.is_fresh() {
                    return Ok(published);
                }
                let open = |client: &mut crate::Client| client.open(&file.name);
                Ok(self.store.shared.ask_primary(file, open)?.0.numbers)
            }
        }
    }

    /// The record of this number.
    ///
    /// # Errors
    /// [`Error::NoRecord`]. See also [`numbers`](Self::numbers).
    pub fn record(&self, number: u64) -> Result<Bytes, StoreError> {
        if let ReadableFile::Ours(file) = &self.file {
            return self.store.record(file, number);
        }
        let end = number.checked_add(1).ok_or_else(|| no_record(number.to_string(), 0..0))?;
        let mut record = Bytes::new();
        self.read_numbers(number..end, &mut |part| {
            record = part;
            Ok(())
        })?;
        Ok(record)
    }

    /// Number and bytes of the latest record at or before this time.
    ///
    /// # Errors
    /// As [`record`](Self::record).
    pub fn record_at(&self, time_ns: i64) -> Result<(u64, Bytes), StoreError> {
        let file = match &self.file {
            ReadableFile::Ours(file) => return self.store.record_at(file, time_ns),
            ReadableFile::Other(file) => file,
        };
        let shared = &self.store.shared;
        let end = shared.published_end(file)?;
        // A later record may be as early as the last published one.
        let is_inside = end.as_ref().is_some_and(|end| time_ns < end.node.last_ns);
        if self.is_fresh() && !is_inside {
            let latest = |client: &mut crate::Client| {
                let remote = client.open(&file.name)?;
                client.latest(&remote, time_ns)
            };
            let ((number, record), _) = shared.ask_primary(file, latest)?;
            shared.count_from_primary(record.len());
            return Ok((number, record.into()));
        }
        let none = || no_record(format!("at or before {time_ns} ns"), 0..0);
        let end = end.ok_or_else(none)?;
        shared.read_published(file, &end, Interest::Recent, |reader| {
            let number = reader.latest_at(time_ns)?;
            Ok((number, reader.record(number)?))
        })
    }

    /// The numbers of the records from one time to another, both included.
    ///
    /// # Errors
    /// See [`numbers`](Self::numbers).
    pub fn find(&self, from_ns: i64, to_ns: i64) -> Result<Range<u64>, StoreError> {
        let file = match &self.file {
            ReadableFile::Ours(file) => return self.store.find(file, from_ns, to_ns),
            ReadableFile::Other(file) => file,
        };
        let shared = &self.store.shared;
        let end = shared.published_end(file)?;
        let old = match &end {
            Some(end) => shared.read_published(file, end, Interest::Recent, |reader| {
                reader.between(from_ns, to_ns)
            })?,
            None => 0..0,
        };
        // After the last published time there may be further records. Before it there are none.
        let last_ns = end.as_ref().map_or(i64::MIN, |end| end.node.last_ns);
        if !self.is_fresh() || (end.is_some() && to_ns < last_ns) {
            return Ok(old);
        }
        let find = |client: &mut crate::Client| {
            let remote = client.open(&file.name)?;
            client.find(&remote, from_ns.max(last_ns), to_ns)
        };
        let (recent, _) = shared.ask_primary(file, find)?;
        let start = if from_ns < last_ns { old.start } else { recent.start };
        Ok(start..recent.end)
    }

    /// The records from one time to another, both included, as parts of segments.
    ///
    /// # Errors
    /// As [`numbers`](Self::numbers), and the errors of `each`.
    pub fn read_between(
        &self,
        from_ns: i64,
        to_ns: i64,
        each: &mut dyn FnMut(Bytes) -> evenfall_store_format::Result<()>,
    ) -> Result<Range<u64>, StoreError> {
        if let ReadableFile::Ours(file) = &self.file {
            return self.store.read(file, from_ns, to_ns, each);
        }
        let numbers = self.find(from_ns, to_ns)?;
        self.read_numbers(numbers.clone(), each)?;
        Ok(numbers)
    }

    /// The records of these numbers, as parts of segments. Records before an error are given.
    ///
    /// # Errors
    /// [`Error::NoRecord`], and the errors of `each`. See also [`numbers`](Self::numbers).
    pub fn read_numbers(
        &self,
        numbers: Range<u64>,
        each: &mut dyn FnMut(Bytes) -> evenfall_store_format::Result<()>,
    ) -> Result<(), StoreError> {
        let file = match &self.file {
            ReadableFile::Ours(file) => return self.store.read_numbers(file, numbers, each),
            ReadableFile::Other(file) => file,
        };
        if numbers.is_empty() {
            return Ok(());
        }
        let shared = &self.store.shared;
        let end = shared.published_end(file)?;
        let there = end.as_ref().map_or(0..0, |end| end.snapshot.first..end.snapshot.records);
        if numbers.end > there.end && !self.is_fresh() {
            return Err(no_record(format!("{} to {}", numbers.start, numbers.end), there));
        }
        let old = numbers.start..numbers.end.min(there.end);
        if let Some(end) = end.as_ref().filter(|_| !old.is_empty()) {
            let mut next = old.start;
            let size = file.schema.record_bytes;
            let read = shared.read_published(file, end, Interest::Passing, |reader| {
                reader.records(old.clone(), &mut |part| {
                    next += part.len() as u64 / u64::from(size).max(1);
                    each(part)
                })
            });
            read.map_err(|error| shared.explain_missing(file, next, error))?;
        }
        shared.read_recent(file, numbers.start.max(there.end)..numbers.end, each)
    }
}
