//! Sorts late records and drops duplicates before records are appended to a file, which takes time
//! order only.
//!
//! Networks deliver records out of order by microseconds, and a file must be in order. Records are
//! therefore held for a window behind the newest time, sorted by time and then by sequence, and
//! given out when the window has passed. A record that arrives later is refused with its time, and
//! counted.
//!
//! A duplicate has the sequence **and** the bytes of a record that was taken, and is dropped. A
//! record with a used sequence and other bytes is kept and counted, because numbers begin anew:
//! every week at some venues, and whenever a sender starts again. Sequences are remembered for the
//! window and for a limited number of records behind it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hasher};

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
    /// The record is held. Its sequence came before with other bytes.
    HeldUnderUsedSequence,
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
    /// Records whose sequence came before with other bytes. They are given out.
    pub reused: u64,
    /// Records refused.
    pub too_late: u64,
    /// Records given out before their window had passed, because too many were held.
    pub early: u64,
}

/// The place of a record: its time, its sequence, and how many records were held before it, which
/// keeps records of one time and one sequence apart.
type Place = (i64, u64, u64);

/// The window of one stream.
#[derive(Debug)]
pub struct Ordering {
    config: OrderingConfig,
    held: BTreeMap<Place, Bytes>,
    /// Sequences held and given out, each with the hash of its record.
    known: BTreeSet<(u64, u64)>,
    /// The entries of `known`, the oldest first.
    known_order: VecDeque<(u64, u64)>,
    newest_ns: i64,
    /// Place of the last record given out.
    given: Option<Place>,
    /// Records held so far.
    taken: u64,
    counts: OrderingCounts,
}

fn hash_of(record: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(record);
    hasher.finish()
}

impl Ordering {
    /// An empty window.
    pub fn new(config: OrderingConfig) -> Self {
        Self {
            config,
            held: BTreeMap::new(),
            known: BTreeSet::new(),
            known_order: VecDeque::new(),
            newest_ns: i64::MIN,
            given: None,
            taken: 0,
            counts: OrderingCounts::default(),
        }
    }

    /// Takes a record with its time and its number in the stream.
    pub fn offer(&mut self, time_ns: i64, sequence: u64, record: Bytes) -> Offered {
        let hash = hash_of(&record);
        if self.known.contains(&(sequence, hash)) {
            self.counts.duplicates += 1;
            return Offered::Duplicate;
        }
        let is_used = self.known.range((sequence, 0)..=(sequence, u64::MAX)).next().is_some();
        if let Some((limit_ns, last, _)) = self.given
            // A number that begins anew is no sign of lateness, so its time alone decides.
            && (time_ns < limit_ns || !is_used && (time_ns, sequence) < (limit_ns, last))
        {
            self.counts.too_late += 1;
            return Offered::TooLate { time_ns, limit_ns };
        }
        self.counts.reordered += u64::from(time_ns < self.newest_ns);
        self.newest_ns = self.newest_ns.max(time_ns);
        self.held.insert((time_ns, sequence, self.taken), record);
        self.taken += 1;
        self.know(sequence, hash);
        if !is_used {
            return Offered::Held;
        }
        self.counts.reused += 1;
        Offered::HeldUnderUsedSequence
    }

    fn know(&mut self, sequence: u64, hash: u64) {
        self.known.insert((sequence, hash));
        self.known_order.push_back((sequence, hash));
        while self.known_order.len() > self.config.sequences_max + self.held.len()
            && let Some(oldest) = self.known_order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    /// The next record whose window has passed, or that must make room.
    pub fn poll(&mut self) -> Option<Bytes> {
        let ((time_ns, ..), _) = self.held.first_key_value()?;
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

    #[test]
    fn a_used_number_with_other_bytes_is_no_copy() {
        let config = OrderingConfig { window_ns: 1_000, ..OrderingConfig::default() };
        let mut ordering = Ordering::new(config);
        let rows: [(i64, u64); 4] = [(0, 15), (0, 25), (0, 15), (1, 95)];
        let offered = rows.map(|(time_ns, row)| ordering.offer(time_ns, 5, record(row)));
        let used = Offered::HeldUnderUsedSequence;
        assert_eq!(offered, [Offered::Held, used, Offered::Duplicate, used]);
        let out: Vec<_> = std::iter::from_fn(|| ordering.drain()).collect();
        assert_eq!(out, [15, 25, 95].map(record));
        assert_eq!((ordering.counts().duplicates, ordering.counts().reused), (1, 2));
    }

    #[test]
    fn numbers_that_begin_anew_are_kept_and_the_sequences_stay_bounded() {
        let config = OrderingConfig { window_ns: 10, sequences_max: 8, ..Default::default() };
        let mut ordering = Ordering::new(config);
        let mut out = 0;
        for time_ns in 0..10_000i64 {
            ordering.offer(time_ns, time_ns as u64 % 100, record(time_ns as u64));
            out += std::iter::from_fn(|| ordering.poll()).count();
            assert!(ordering.known.len() == ordering.known_order.len());
            assert!(ordering.known.len() <= 8 + 12, "{}", ordering.known.len());
        }
        out += std::iter::from_fn(|| ordering.drain()).count();
        assert_eq!((out, ordering.counts().too_late), (10_000, 0));
    }
}
