//! The rules by which old chunks are removed.
//!
//! A policy removes whole chunks from the old end of a file, by age or by bytes. The last chunk
//! always stays, so that a file has its newest record. First the metadata drops the records, and
//! then the objects are deleted, so that a reader never follows a name to a deleted object. Objects
//! whose records grew too old stay for [`OBJECTS_STAY_NS`] longer, for readers that have begun.

use serde::{Deserialize, Serialize};

use crate::layout::{CHUNK_BYTES, Layout, SEGMENTS_PER_CHUNK};

/// Times below this value count from a midnight and have no date. `99:59:59` is the largest time of
/// day that can be written. Records with these times have no age.
pub const TIMES_OF_DAY_END_NS: i64 = 100 * 3_600 * 1_000_000_000;

/// How much older than the age records are when their objects are deleted: a day. A reader of
/// objects alone that began before finds them, and so does an operator who notices that an age was
/// too short. The disk gets its room at once.
pub const OBJECTS_STAY_NS: i64 = 86_400 * 1_000_000_000;

/// The limits of a file's age and size. Without limits, everything is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// Records that are older than this by the [vetted clock](crate::age_clock) may go, in
    /// nanoseconds.
    pub age_ns_max: Option<u64>,
    /// Bytes of chunks above this may go.
    pub bytes_max: Option<u64>,
}

impl Retention {
    /// The first chunk that stays of a file with this many records. The first record that is young
    /// enough is `first_by_age`, which lies one behind the last record when no record is young
    /// enough.
    pub fn first_chunk(&self, layout: Layout, records: u64, first_by_age: u64) -> u32 {
        let full = layout.full_segments(records) / SEGMENTS_PER_CHUNK;
        let chunk_of = |record: u64| layout.full_segments(record) / SEGMENTS_PER_CHUNK;
        let by_age = self.age_ns_max.map_or(0, |_| chunk_of(first_by_age));
        let kept = self.bytes_max.map(|bytes| (bytes / CHUNK_BYTES as u64).max(1));
        let by_bytes = kept.map_or(0, |kept| u64::from(full).saturating_sub(kept) as u32);
        by_age.max(by_bytes).min(full.saturating_sub(1))
    }

    /// The time before which records may go at `now_ns` of the vetted clock; `None` of a file whose
    /// newest record has a time of day alone. The horizon does not depend on the newest record. A
    /// time stamp from the future must not remove old records, and records of a file without
    /// appends must still grow old.
    pub fn horizon_ns(&self, newest_ns: i64, now_ns: i64) -> Option<i64> {
        let age = self.age_ns_max.filter(|_| newest_ns >= TIMES_OF_DAY_END_NS)?;
        Some(now_ns.saturating_sub(i64::try_from(age).unwrap_or(i64::MAX)))
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
    }

    #[test]
    fn age_counts_from_the_wall_clock_and_times_of_day_have_none() {
        let now_ns = 1_700_000_000_000_000_000;
        let age = Retention { age_ns_max: Some(5), bytes_max: None };
        for newest_ns in [now_ns - 1_000, now_ns, i64::MAX] {
            assert_eq!(age.horizon_ns(newest_ns, now_ns), Some(now_ns - 5));
        }
        assert_eq!(age.horizon_ns(57_600_000_000_000, now_ns), None);
        assert_eq!(age.horizon_ns(i64::MIN, now_ns), None);
        assert_eq!(Retention::default().horizon_ns(now_ns, now_ns), None);
    }
}
