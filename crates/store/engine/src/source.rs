//! One way to read files, from an open store or from objects alone.

use std::ops::Range;

use bytes::Bytes;
use evenfall_store_format::Schema;
use evenfall_store_format::appender::summary_of;
use evenfall_store_format::index::Summary;

use super::{Archive, Store, StoreError};

/// A file that can be read.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
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
    fn listed(&self) -> Result<Vec<Listed>, StoreError>;

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

    /// Count, times and aggregates of the records of these numbers; `None` without records. A
    /// source that has the index at hand does not read the records.
    ///
    /// # Errors
    /// The errors of reading.
    fn summary(&self, name: &str, numbers: Range<u64>) -> Result<Option<Summary>, StoreError> {
        let listed = self.listed()?.into_iter().find(|file| file.name == name);
        let unknown = || evenfall_store_format::Error::UnknownFile { file: name.into() };
        let schema = listed.ok_or_else(unknown)?.schema;
        let fields: Vec<_> = schema.aggregates().cloned().collect();
        let layout = schema.layout()?;
        let mut all: Option<Summary> = None;
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

impl RecordSource for Store {
    fn listed(&self) -> Result<Vec<Listed>, StoreError> {
        let listed = |file: std::sync::Arc<super::StoreFile>| Listed {
            name: file.name.clone(),
            schema: (*file.schema).clone(),
            records: file.records(),
        };
        Ok(self.files().into_iter().map(listed).collect())
    }

    fn between(&self, name: &str, from_ns: i64, to_ns: i64) -> Result<Range<u64>, StoreError> {
        self.find(&*self.file(name)?, from_ns, to_ns)
    }

    fn read(&self, name: &str, numbers: Range<u64>, each: &mut Each<'_>) -> Result<(), StoreError> {
        self.read_numbers(&*self.file(name)?, numbers, each)
    }

    fn summary(&self, name: &str, numbers: Range<u64>) -> Result<Option<Summary>, StoreError> {
        self.summary_of_numbers(&*self.file(name)?, numbers)
    }
}

impl RecordSource for Archive {
    fn listed(&self) -> Result<Vec<Listed>, StoreError> {
        let listed = |(name, entry): (&String, &super::Entry)| -> Result<Listed, StoreError> {
            let records = self.file(name)?.records();
            Ok(Listed { name: name.clone(), schema: entry.schema.clone(), records })
        };
        self.files().iter().map(listed).collect()
    }

    fn between(&self, name: &str, from_ns: i64, to_ns: i64) -> Result<Range<u64>, StoreError> {
        self.file(name)?.find(from_ns, to_ns)
    }

    fn read(&self, name: &str, numbers: Range<u64>, each: &mut Each<'_>) -> Result<(), StoreError> {
        self.file(name)?.read_numbers(numbers, each)
    }

    fn summary(&self, name: &str, numbers: Range<u64>) -> Result<Option<Summary>, StoreError> {
        self.file(name)?.summary(numbers)
    }
}
