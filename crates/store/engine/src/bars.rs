//! Bars: the count of the records of each interval of time, their first and their last record, and
//! least, greatest and sum of fields.
//!
//! The index has count, least, greatest and sum of each segment. A bar therefore costs the segments
//! at its two ends, whatever is between them, and is exact: the records of these two segments are
//! read and counted one by one. Intervals without records have no bar. A source without the index,
//! such as a server's port, reads all records.

use std::ops::{Range, RangeInclusive};

use evenfall_store_format::index::IndexSummary;
use evenfall_store_format::layout::record_time;

use super::{RecordSource, StoreError};

/// The records of one interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeBar {
    /// Time at which the interval begins, in ns since 1970: a whole multiple of its length.
    pub start_ns: i64,
    /// The first record.
    pub first: Vec<u8>,
    /// The last record.
    pub last: Vec<u8>,
    /// Count, times, and the aggregates of the schema's fields that have them.
    pub summary: IndexSummary,
}

/// The bars of a file between two times, in order of time. An error ends them.
pub struct TimeBars<'a> {
    source: &'a dyn RecordSource,
    name: &'a str,
    every_ns: i64,
    to_ns: i64,
    /// Records that are in no bar yet.
    numbers: Range<u64>,
}

impl<'a> TimeBars<'a> {
    /// Bars of `every_ns` each, of the records between these times, both included. The first and
    /// the last bar have only the records between the times.
    ///
    /// # Errors
    /// The errors of reading.
    ///
    /// # Panics
    /// When `every_ns` is not positive.
    pub fn new(
        source: &'a dyn RecordSource,
        name: &'a str,
        times: RangeInclusive<i64>,
        every_ns: i64,
    ) -> Result<Self, StoreError> {
        assert!(every_ns > 0, "an interval has a length");
        let (from_ns, to_ns) = times.into_inner();
        let numbers = source.between(name, from_ns, to_ns)?;
        Ok(Self { source, name, every_ns, to_ns, numbers })
    }

    fn read_bar(&mut self) -> Result<Option<TimeBar>, StoreError> {
        let Range { start, end } = self.numbers;
        let first = self.source.numbers(self.name, start..start + 1)?;
        let time_ns = record_time(&first);
        let since_start = time_ns.rem_euclid(self.every_ns);
        // The interval of the earliest times begins before the first time that there is.
        let start_ns = time_ns.saturating_sub(since_start);
        let last_ns = time_ns.saturating_add(self.every_ns - 1 - since_start).min(self.to_ns);
        // Records may have been appended since the numbers were asked for.
        let behind = self.source.between(self.name, time_ns, last_ns)?.end.clamp(start + 1, end);
        let last = self.source.numbers(self.name, behind - 1..behind)?;
        let summary = self.source.summary(self.name, start..behind)?;
        self.numbers.start = behind;
        Ok(summary.map(|summary| TimeBar { start_ns, first, last, summary }))
    }
}

impl Iterator for TimeBars<'_> {
    type Item = Result<TimeBar, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.numbers.is_empty() {
            return None;
        }
        let bar = self.read_bar();
        if bar.is_err() {
            self.numbers.start = self.numbers.end;
        }
        bar.transpose()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use evenfall_store_format::{FieldType, Schema};

    use super::*;
    use crate::{Store, StoreAckLevel, StoreConfig};

    /// A row: time and value.
    type Row = (i64, i64);

    fn record(row: &Row) -> Vec<u8> {
        [row.0, row.1].map(i64::to_le_bytes).concat()
    }

    /// Times around 1970 with repeats, and with a gap in the middle.
    fn rows() -> Vec<Row> {
        let time_of = |n: i64| n / 3 * 7 - 9_000 + if n < 10_000 { 0 } else { 50_000 };
        (0..20_000).map(|n| (time_of(n), (n * n) % 1_001 - 500)).collect()
    }

    /// The bar must have exactly these rows.
    fn expect_bar(bar: &TimeBar, rows: &[Row]) {
        assert_eq!((&bar.first, &bar.last), (&record(&rows[0]), &record(&rows[rows.len() - 1])));
        assert_eq!((bar.summary.min_ns, bar.summary.max_ns), (rows[0].0, rows[rows.len() - 1].0));
        let values = || rows.iter().map(|row| i128::from(row.1));
        let aggregate = &bar.summary.aggregates[0];
        assert_eq!((bar.summary.count, aggregate.sum), (rows.len() as u64, values().sum::<i128>()));
        assert_eq!(Some((aggregate.min, aggregate.max)), values().min().zip(values().max()));
    }

    #[test]
    fn bars_are_those_of_all_records_read_one_by_one() {
        let dir = tempfile::tempdir().unwrap();
        let config = StoreConfig { objects: None, ..StoreConfig::new(dir.path()) };
        let store = Store::open(config).unwrap().store;
        let fields = [("time", FieldType::Time), ("value", FieldType::I64)];
        let schema = Schema::of(&fields).with_aggregates(&["value"]);
        let file = store.create("a", &schema).unwrap();
        let rows = rows();
        let bytes: Vec<u8> = rows.iter().flat_map(record).collect();
        store.append(&file, &bytes, StoreAckLevel::Local).unwrap();
        for (every_ns, from_ns, to_ns) in [
            (i64::MAX, i64::MIN, i64::MAX),
            (5_000, i64::MIN, i64::MAX),
            // The ends of the times are inside of an interval.
            (311, -8_000, 30_001),
            (7, 0, 700),
            // The times are in the gap.
            (1_000, 20_000, 60_000),
            (1_000, i64::MIN, -9_001),
        ] {
            let mut expected: BTreeMap<i64, Vec<Row>> = BTreeMap::new();
            for row in rows.iter().filter(|row| (from_ns..=to_ns).contains(&row.0)) {
                expected.entry(row.0.div_euclid(every_ns)).or_default().push(*row);
            }
            let bars = TimeBars::new(&store, "a", from_ns..=to_ns, every_ns).unwrap();
            let bars = bars.collect::<Result<Vec<_>, _>>().unwrap();
            assert_eq!(bars.len(), expected.len(), "{every_ns}");
            for (bar, (at, rows)) in bars.iter().zip(&expected) {
                assert_eq!(bar.start_ns, at * every_ns);
                expect_bar(bar, rows);
            }
        }
    }

    #[test]
    fn bars_of_an_unknown_file_and_of_the_earliest_times() {
        let dir = tempfile::tempdir().unwrap();
        let config = StoreConfig { objects: None, ..StoreConfig::new(dir.path()) };
        let store = Store::open(config).unwrap().store;
        assert!(TimeBars::new(&store, "a", 0..=1, 1).is_err());
        let fields = [("time", FieldType::Time), ("value", FieldType::I64)];
        let file = store.create("a", &Schema::of(&fields)).unwrap();
        assert_eq!(TimeBars::new(&store, "a", i64::MIN..=i64::MAX, 1).unwrap().count(), 0);
        let earliest = [record(&(i64::MIN, 1)), record(&(i64::MIN + 1_000, 2))].concat();
        store.append(&file, &earliest, StoreAckLevel::Local).unwrap();
        let bars = TimeBars::new(&store, "a", i64::MIN..=i64::MAX, 1_000).unwrap();
        let bars: Vec<TimeBar> = bars.map(Result::unwrap).collect();
        let starts: Vec<i64> = bars.iter().map(|bar| bar.start_ns).collect();
        // -2^63 is 192 ns behind a whole microsecond.
        assert_eq!(starts, [i64::MIN, i64::MIN + 808]);
        assert!(bars.iter().all(|bar| bar.summary.count == 1 && bar.summary.aggregates.is_empty()));
    }
}
