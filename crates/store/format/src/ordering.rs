//! Sorts late records and drops duplicates before records are appended to a file, which takes time
//! order only.
//!
//! Networks deliver records out of order by microseconds, and a file must be in order. Records are
//! therefore held for a window behind the newest time, sorted by time and then by sequence, and
//! given out when the window has passed. A record that arrives later is refused with its time, and
//! counted. A duplicate is recognised by its sequence and dropped. Sequences are remembered for the
//! window and for a limited number of records behind it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

/// Limits of an [`Ordering`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderingConfig {
    /// Window behind the newest time within which late records are sorted in, in nanoseconds. With
    /// zero, records must arrive in order.
    pub window_ns: u64,
    /// Limit of records that are held. Beyond it the oldest records are given out early, which
    /// narrows the window.
    pub records_max: usize,
    /// Number of sequences that are remembered to recognise duplicates, in addition to the held
    /// records.
    pub sequences_max: usize,
}

impl Default for OrderingConfig {
    fn default() -> Self {
        // Paths of one site differ by less than a millisecond. The counts are enough for a
        // millisecond of a feed with 60 million records a second.
        Self { window_ns: 1_000_000, records_max: 65_536, sequences_max: 65_536 }
    }
}

/// The outcome for one offered record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    /// The record is held, and will be given out in order.
    Held,
    /// The record is a duplicate of a record that was held or given out.
    Duplicate,
    /// The record is older than the last record given out.
    TooLate {
        /// Time of the record.
        time_ns: i64,
        /// The time of the last record given out.
        limit_ns: i64,
    },
}

/// Counts of an [`Ordering`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrderingCounts {
    /// Records given out.
    pub given: u64,
    /// Records given out that had arrived after a later record.
    pub reordered: u64,
    /// Copies dropped.
    pub duplicates: u64,
    /// Records refused.
    pub too_late: u64,
    /// Records given out before their window had passed, because too many were held.
    pub early: u64,
}

/// The window of one stream.
#[derive(Debug)]
pub struct Ordering {
    config: OrderingConfig,
    held: BTreeMap<(i64, u64), Bytes>,
    /// Sequences held and given out, the youngest `sequences_max` of them.
    known: BTreeSet<u64>,
    newest_ns: i64,
    /// Time and sequence of the last record given out.
    given: Option<(i64, u64)>,
    counts: OrderingCounts,
}

impl Ordering {
    /// An empty window.
    pub fn new(config: OrderingConfig) -> Self {
        let counts = OrderingCounts::default();
        let (held, known) = (BTreeMap::new(), BTreeSet::new());
        Self { config, held, known, newest_ns: i64::MIN, given: None, counts }
    }

    /// Takes a record with its time and its number in the stream.
    pub fn offer(&mut self, time_ns: i64, sequence: u64, record: Bytes) -> Offered {
        if self.known.contains(&sequence) {
            self.counts.duplicates += 1;
            return Offered::Duplicate;
        }
        if let Some((limit_ns, last)) = self.given
            && (time_ns, sequence) < (limit_ns, last)
        {
            self.counts.too_late += 1;
            return Offered::TooLate { time_ns, limit_ns };
        }
        self.counts.reordered += u64::from(time_ns < self.newest_ns);
        self.newest_ns = self.newest_ns.max(time_ns);
        self.held.insert((time_ns, sequence), record);
        self.known.insert(sequence);
        while self.known.len() > self.config.sequences_max + self.held.len() {
            self.known.pop_first();
        }
        Offered::Held
    }

    /// The next record whose window has passed, or that must make room.
    pub fn poll(&mut self) -> Option<Bytes> {
        let ((time_ns, _), _) = self.held.first_key_value()?;
        let age = self.newest_ns.abs_diff(*time_ns);
        let crowded = self.held.len() > self.config.records_max;
        if age < self.config.window_ns && !crowded {
            return None;
        }
        self.counts.early += u64::from(age < self.config.window_ns);
        self.give()
    }

    /// The next record after the end of the stream, without waiting for the window.
    pub fn drain(&mut self) -> Option<Bytes> {
        self.give()
    }

    fn give(&mut self) -> Option<Bytes> {
        let (key, record) = self.held.pop_first()?;
        self.given = Some(key);
        self.counts.given += 1;
        Some(record)
    }

    /// Counts so far.
    pub fn counts(&self) -> OrderingCounts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use evenfall_core::Prng;

    use super::*;

    fn record(n: u64) -> Bytes {
        Bytes::copy_from_slice(&n.to_le_bytes())
    }

    #[test]
    fn a_shuffled_stream_comes_out_sorted_and_once() {
        let mut prng = Prng::new(1);
        let mut arrivals: Vec<(i64, u64, u64)> = Vec::new();
        for sequence in 0..5_000u64 {
            let time = sequence as i64 * 10 / 3;
            arrivals.push((time, sequence, time as u64 + prng.below(400)));
            if prng.chance(0.3) {
                arrivals.push((time, sequence, time as u64 + prng.below(400)));
            }
        }
        arrivals.sort_by_key(|(_, _, at)| *at);
        let mut ordering =
            Ordering::new(OrderingConfig { window_ns: 400, ..OrderingConfig::default() });
        let mut out = Vec::new();
        for (time, sequence, _) in &arrivals {
            assert!(!matches!(
                ordering.offer(*time, *sequence, record(*sequence)),
                Offered::TooLate { .. }
            ));
            out.extend(std::iter::from_fn(|| ordering.poll()));
        }
        out.extend(std::iter::from_fn(|| ordering.drain()));
        assert_eq!(out, (0..5_000).map(record).collect::<Vec<_>>());
        assert_eq!(ordering.counts().duplicates, arrivals.len() as u64 - 5_000);
    }

    #[test]
    fn what_is_older_than_the_window_is_refused_by_name() {
        let mut ordering = Ordering::new(OrderingConfig::default());
        ordering.offer(0, 1, record(1));
        ordering.offer(2_000_000, 3, record(3));
        assert_eq!(ordering.poll(), Some(record(1)));
        assert_eq!(ordering.poll(), None);
        let late = ordering.offer(-1, 0, record(0));
        assert_eq!(late, Offered::TooLate { time_ns: -1, limit_ns: 0 });
        assert_eq!(ordering.offer(1_999_999, 2, record(2)), Offered::Held);
    }
}
