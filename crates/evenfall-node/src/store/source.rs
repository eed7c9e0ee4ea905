//! One way to read files, from a store that is open here or from objects alone.

use std::ops::Range;

use evenfall_store::Schema;

use super::{Archive, Store, StoreError};

/// A file that can be read.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// What its records mean.
    pub schema: Schema,
    /// Records in it.
    pub records: u64,
}

/// Files to read.
pub trait RecordSource {
    /// Every file, in order of names.
    ///
    /// # Errors
    /// What the object store says.
    fn listed(&self) -> Result<Vec<Listed>, StoreError>;

    /// The numbers of the records from one time to another, both included.
    ///
    /// # Errors
    /// What keeps them from being read.
    fn between(&self, name: &str, from_ns: i64, to_ns: i64) -> Result<Range<u64>, StoreError>;

    /// The records of these numbers, one behind the other.
    ///
    /// # Errors
    /// What keeps them from being read.
    fn numbers(&self, name: &str, numbers: Range<u64>) -> Result<Vec<u8>, StoreError>;
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

    fn numbers(&self, name: &str, numbers: Range<u64>) -> Result<Vec<u8>, StoreError> {
        let mut bytes = Vec::new();
        let mut each = |part: bytes::Bytes| {
            bytes.extend_from_slice(&part);
            Ok(())
        };
        self.read_numbers(&*self.file(name)?, numbers, &mut each)?;
        Ok(bytes)
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

    fn numbers(&self, name: &str, numbers: Range<u64>) -> Result<Vec<u8>, StoreError> {
        let mut bytes = Vec::new();
        let mut each = |part: bytes::Bytes| {
            bytes.extend_from_slice(&part);
            Ok(())
        };
        self.file(name)?.read_numbers(numbers, &mut each)?;
        Ok(bytes)
    }
}
