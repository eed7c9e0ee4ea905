//! One way to read files, from an open store or from objects alone.

use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::Bytes;
use evenfall_store_format::Schema;
use evenfall_store_format::appender::summary_of;
use evenfall_store_format::columnar::ShreddedColumns;
use evenfall_store_format::index::IndexSummary;
use evenfall_store_format::messages::MessageField;

use super::append_watch::{AppendSignal, AppendWatch};
use super::{Archive, KnownEnd, Store, StoreError};

/// How often a source is looked at that cannot wake its readers: objects are published some seconds
/// apart.
const POLL_EVERY: Duration = Duration::from_millis(100);

/// A file that can be read.
#[derive(Clone, Debug, PartialEq)]
pub struct FileListing {
    /// Its name.
    pub name: String,
    /// Meaning of the records.
    pub schema: Schema,
    /// Records in it.
    pub records: u64,
}

/// A function that takes the parts of a read.
pub type Each<'a> = dyn FnMut(Bytes) -> evenfall_store_format::Result<()> + 'a;

/// A source of files to read. Several threads may read at once.
pub trait RecordSource: Send + Sync {
    /// Every file, in order of names.
    ///
    /// # Errors
    /// The errors of the object store.
    fn listed(&self) -> Result<Vec<FileListing>, StoreError>;

    /// The numbers of the records from one time to another, both included.
    ///
    /// # Errors
    /// The errors of reading.
    fn between(&self, name: &str, from_ns: i64, to_ns: i64) -> Result<Range<u64>, StoreError>;

    /// The records of these numbers, in parts as they arrive. A part has whole records, those of a
    /// segment at most, so any range is read with little memory.
    ///
    /// # Errors
    /// The errors of reading and of `each`. After an error of `each` no further part comes.
    fn read(&self, name: &str, numbers: Range<u64>, each: &mut Each<'_>) -> Result<(), StoreError>;

    /// Waits until one of these files has more records than stated, or until the moment. Returns
    /// whether the reader should look: a file has more records, or the source cannot tell.
    ///
    /// An append wakes readers of an open store and readers of a server. Other sources do not learn
    /// of appends, and the wait returns after a tenth of a second.
    ///
    /// # Errors
    /// The errors of reading, also for a file that is not there.
    fn wait_past(&self, ends: &[KnownEnd], until: Instant) -> Result<bool, StoreError> {
        let _ = ends;
        Ok(poll_ends(until))
    }

    /// Number behind the last record of a file of which the source has the published records alone,
    /// so that the primary may have more. `None` for a file that is whole here.
    ///
    /// # Errors
    /// The errors of reading.
    fn published_end(&self, name: &str) -> Result<Option<u64>, StoreError> {
        let _ = name;
        Ok(None)
    }

    /// The records of these numbers, one after the other.
    ///
    /// # Errors
    /// The errors of reading.
    fn numbers(&self, name: &str, numbers: Range<u64>) -> Result<Vec<u8>, StoreError> {
        let mut bytes = Vec::new();
        self.read(name, numbers, &mut |part| {
            bytes.extend_from_slice(&part);
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Some fields of the first of these records, when those are in columns at hand: field by
    /// field, which costs a part of making the records and taking the fields out of them. `None`
    /// when they are not, and [`read`](Self::read) gives them.
    ///
    /// # Errors
    /// The errors of reading.
    fn read_fields(
        &self,
        name: &str,
        numbers: Range<u64>,
        fields: &[usize],
    ) -> Result<Option<FieldColumns>, StoreError> {
        let _ = (name, numbers, fields);
        Ok(None)
    }

    /// Values of the messages in the first of these records, when they are in columns at hand and
    /// were shredded there. `None` when they were not, or when the records do not begin with a
    /// message, and [`read`](Self::read) gives the records.
    ///
    /// # Errors
    /// The errors of reading.
    fn read_messages(
        &self,
        name: &str,
        numbers: Range<u64>,
        fields: &[MessageField],
    ) -> Result<Option<ShreddedColumns>, StoreError> {
        let _ = (name, numbers, fields);
        Ok(None)
    }

    /// Count, times and aggregates of the records of these numbers; `None` without records. A
    /// source that has the index at hand does not read the records.
    ///
    /// # Errors
    /// The errors of reading.
    fn summary(&self, name: &str, numbers: Range<u64>) -> Result<Option<IndexSummary>, StoreError> {
        let listed = self.listed()?.into_iter().find(|file| file.name == name);
        let unknown = || evenfall_store_format::Error::UnknownFile { file: name.into() };
        let schema = listed.ok_or_else(unknown)?.schema;
        let fields: Vec<_> = schema.aggregates().cloned().collect();
        let layout = schema.layout()?;
        let mut all: Option<IndexSummary> = None;
        self.read(name, numbers, &mut |part| {
            if part.is_empty() {
                return Ok(());
            }
            let one = summary_of(&part, layout, &fields);
            match &mut all {
                Some(all) => all.merge(&one),
                None => all = Some(one),
            }
            Ok(())
        })?;
        Ok(all)
    }
}

/// Waits for the next look at a source that wakes nobody, and not beyond the moment. Returns
/// whether the time for a look has come.
pub(crate) fn poll_ends(until: Instant) -> bool {
    let left = until.saturating_duration_since(Instant::now());
    std::thread::sleep(left.min(POLL_EVERY));
    !left.is_zero()
}

/// Fields of records that lie one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldColumns {
    /// How many records.
    pub records: u64,
    /// The bytes of each field, in the order in which the fields were asked for.
    pub fields: Vec<Bytes>,
}

impl RecordSource for Store {
    fn listed(&self) -> Result<Vec<FileListing>, StoreError> {
        Ok(self.files().iter().map(|file| file.as_listed()).collect())
    }

    fn between(&self, name: &str, from_ns: i64, to_ns: i64) -> Result<Range<u64>, StoreError> {
        self.find(&*self.file(name)?, from_ns, to_ns)
    }

    fn read(&self, name: &str, numbers: Range<u64>, each: &mut Each<'_>) -> Result<(), StoreError> {
        self.read_numbers(&*self.file(name)?, numbers, each)
    }

    fn read_fields(
        &self,
        name: &str,
        numbers: Range<u64>,
        fields: &[usize],
    ) -> Result<Option<FieldColumns>, StoreError> {
        self.fields_of_numbers(&*self.file(name)?, numbers, fields)
    }

    fn read_messages(
        &self,
        name: &str,
        numbers: Range<u64>,
        fields: &[MessageField],
    ) -> Result<Option<ShreddedColumns>, StoreError> {
        self.messages_of_numbers(&*self.file(name)?, numbers, fields)
    }

    fn wait_past(&self, ends: &[KnownEnd], until: Instant) -> Result<bool, StoreError> {
        let signal = std::sync::Arc::new(AppendSignal::default());
        let watch = |known: &KnownEnd| -> Result<_, StoreError> {
            Ok((AppendWatch::new(&self.file(&known.name)?, &signal), known.end))
        };
        let watches = ends.iter().map(watch).collect::<Result<Vec<_>, _>>()?;
        loop {
            for (watch, end) in &watches {
                // The records are read first: a deletion holds the same lock.
                if watch.file().records() > *end {
                    return Ok(true);
                }
                if watch.file().is_deleted() {
                    self.file(&watch.file().name)?;
                }
            }
            if !signal.wait_until(Some(until)) {
                return Ok(false);
            }
        }
    }

    fn summary(&self, name: &str, numbers: Range<u64>) -> Result<Option<IndexSummary>, StoreError> {
        self.summary_of_numbers(&*self.file(name)?, numbers)
    }
}

impl RecordSource for Archive {
    fn listed(&self) -> Result<Vec<FileListing>, StoreError> {
        let listed = |((name, entry), records): ((&String, &super::Entry), u64)| {
            let (name, schema) = (name.clone(), entry.schema.clone());
            FileListing { name, schema, records }
        };
        let records = self.count_records()?;
        Ok(self.files().iter().zip(records).map(listed).collect())
    }

    fn between(&self, name: &str, from_ns: i64, to_ns: i64) -> Result<Range<u64>, StoreError> {
        self.file(name)?.find(from_ns, to_ns)
    }

    fn read(&self, name: &str, numbers: Range<u64>, each: &mut Each<'_>) -> Result<(), StoreError> {
        self.file(name)?.read_numbers(numbers, each)
    }

    fn summary(&self, name: &str, numbers: Range<u64>) -> Result<Option<IndexSummary>, StoreError> {
        self.file(name)?.summary(numbers)
    }
}
