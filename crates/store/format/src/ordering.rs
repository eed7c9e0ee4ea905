//! Late records sorted in, copies dropped, for a file that takes time order only.
//!
//! Networks deliver out of order by microseconds, and a file must be in order. So records are held
//! for a stated window behind the newest time seen, sorted by time and then by the stream's
//! sequence, and given out when the window has passed. A record that comes later is refused by its
//! numbers and counted, never quietly dropped. A copy, told by its sequence, is dropped, within the
//! window and a stated memory behind it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

/// Limits of an [`Ordering`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderingConfig {
    /// How far behind the newest time a record may come, in nanoseconds. Zero takes order as it is.
    pub window_ns: u64,
    /// Records held at once; past it the oldest go out early and narrow the window.
    pub records_max: usize,
    /// Sequences remembered to know copies by, behind those held.
    pub sequences_max: usize,
}

impl Default for OrderingConfig {
    fn default() -> Self {
        // A millisecond covers what paths of one site differ by; the counts are a millisecond of a
        // feed of 60 million records a second.
        Self { window_ns: 1_000_000, records_max: 65_536, sequences_max: 65_536 }
    }
}

/// What became of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    /// Held, and will come out in order.
    Held,
    /// A copy of one that was held or given out.
    Duplicate,
    /// Older than what has been given out.
    TooLate {
        /// Its time.
        time_ns: i64,
        /// The time it may not be before.
        limit_ns: i64,
    },
}

/// What passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrderingCounts {
    /// Records given out.
    pub given: u64,
    /// Of these, records that came behind a later one.
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

    /// The next record, window or not: the stream has ended.
    pub fn drain(&mut self) -> Option<Bytes> {
        self.give()
    }

    fn give(&mut self) -> Option<Bytes> {
        let (key, record) = self.held.pop_first()?;
        self.given = Some(key);
        self.counts.given += 1;
        Some(record)
    }

    /// What passed so far.
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
