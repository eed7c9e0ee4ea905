//! One way to read files, from an open store or from objects alone.

use std::ops::Range;

use bytes::Bytes;
use evenfall_store_format::Schema;

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

/// A source of files to read.
pub trait RecordSource {
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
    /// segment at most, so any range is read with little memory. `each` must not read from this
    /// source meanwhile.
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
}
