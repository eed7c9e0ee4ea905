//! What a store writes to its directory, counted. The bytes written for each byte appended are what
//! an SSD wears by, and what a disk has to carry.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use evenfall_store_format::SegmentKind;
use evenfall_store_format::layout::{parse_chunk_name, parse_journal_name};

/// Bytes that were written to a directory since it was opened, by what they are. The names of the
/// files in the directory of names, and objects in a bucket, are not among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct WrittenBytes {
    /// Bytes of journals.
    pub journals: u64,
    /// Bytes of records in raw chunks.
    pub raw_chunks: u64,
    /// Bytes of chunks in columns.
    pub columns: u64,
    /// Bytes of the time index.
    pub index: u64,
    /// Bytes of anything else, such as records that were put aside.
    pub others: u64,
}

impl WrittenBytes {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.journals + self.raw_chunks + self.columns + self.index + self.others
    }
}

/// The counters of [`WrittenBytes`]. Clones are the same counters.
#[derive(Clone, Debug, Default)]
pub struct WriteCounters(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    journals: AtomicU64,
    raw_chunks: AtomicU64,
    columns: AtomicU64,
    index: AtomicU64,
    others: AtomicU64,
}

impl WriteCounters {
    /// The counts so far.
    pub fn bytes(&self) -> WrittenBytes {
        let Counters { journals, raw_chunks, columns, index, others } = &*self.0;
        let [journals, raw_chunks, columns, index, others] =
            [journals, raw_chunks, columns, index, others].map(|counter| counter.load(Relaxed));
        WrittenBytes { journals, raw_chunks, columns, index, others }
    }

    /// Counts a write to the file of this name.
    pub(crate) fn count_write(&self, name: &str, bytes: usize) {
        let counters = &*self.0;
        let counter = match parse_chunk_name(name) {
            Some((SegmentKind::Data, ..)) => &counters.raw_chunks,
            Some((SegmentKind::Index, ..)) => &counters.index,
            None if name.contains(".parquet") => &counters.columns,
            None if parse_journal_name(name).is_some() => &counters.journals,
            None => &counters.others,
        };
        counter.fetch_add(bytes as u64, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_by_the_name_of_their_file() {
        let counters = WriteCounters::default();
        for (name, bytes) in [
            ("J-0000000000000003", 1),
            ("D-0000000000000001-00000000", 20),
            ("D-0000000000000001-00000000.parquet.new", 300),
            ("I-0000000000000001-00000000", 4_000),
            ("RESERVE", 50_000),
        ] {
            counters.clone().count_write(name, bytes);
        }
        let (journals, raw_chunks, columns, index, others) = (1, 20, 300, 4_000, 50_000);
        let counted = WrittenBytes { journals, raw_chunks, columns, index, others };
        assert_eq!((counters.bytes(), counted.total()), (counted, 54_321));
    }
}
