//! Which chunks may go.
//!
//! A file loses whole chunks from its old end, when a policy says so: by age, by bytes kept, and
//! never the last chunk, so that a file always knows its newest record. First the metadata stops
//! naming the records, then the objects are deleted: a reader never follows a name into nothing.

use serde::{Deserialize, Serialize};

use crate::layout::{CHUNK_BYTES, Layout, SEGMENTS_PER_CHUNK};

/// How long and how much of a file is kept. Without either, everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// Records older than this behind the newest may go, in nanoseconds.
    pub age_ns_max: Option<u64>,
    /// Bytes of chunks above this may go.
    pub bytes_max: Option<u64>,
}

impl Retention {
    /// The first chunk that stays, of a file of this many records whose first record by age is
    /// `first_by_age` (one behind the last when none is young enough).
    pub fn first_chunk(&self, layout: Layout, records: u64, first_by_age: u64) -> u32 {
        let full = layout.full_segments(records) / SEGMENTS_PER_CHUNK;
        let chunk_of = |record: u64| layout.full_segments(record) / SEGMENTS_PER_CHUNK;
        let by_age = self.age_ns_max.map_or(0, |_| chunk_of(first_by_age));
        let kept = self.bytes_max.map(|bytes| (bytes / CHUNK_BYTES as u64).max(1));
        let by_bytes = kept.map_or(0, |kept| u64::from(full).saturating_sub(kept) as u32);
        by_age.max(by_bytes).min(full.saturating_sub(1))
    }

    /// The time before which records may go.
    pub fn horizon_ns(&self, newest_ns: i64) -> Option<i64> {
        let age = self.age_ns_max?;
        Some(newest_ns.saturating_sub(i64::try_from(age).unwrap_or(i64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_chunks_go_and_the_last_stays() {
        let layout = Layout::new(16).unwrap();
        let chunk = 1_022 * 256;
        let records = chunk * 10 + 5;
        let none = Retention::default();
        assert_eq!(none.first_chunk(layout, records, records), 0);
        let bytes = Retention { bytes_max: Some(3 * CHUNK_BYTES as u64), ..none };
        assert_eq!(bytes.first_chunk(layout, records, 0), 7);
        let age = Retention { age_ns_max: Some(5), ..none };
        assert_eq!(age.first_chunk(layout, records, chunk * 4 + 9), 4);
        assert_eq!(age.first_chunk(layout, records, records), 9);
        assert_eq!(age.first_chunk(layout, 5, 5), 0);
        assert_eq!(age.horizon_ns(i64::MIN + 1), Some(i64::MIN));
    }
}
