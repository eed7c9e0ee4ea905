//! Divides a read from several copies into parts, so that all copies finish at the same time.
//!
//! ```text
//!  0        32        64        96       128 MB
//!  |  part   |  part   |  part   |  part   |
//!   copy 0 -->   ...   -->     <--  copy 1        whoever is done takes the next part
//!                        |====:  |                the last part is cut: the faster copy takes
//!                             ^                   the end of what the slower one has not read
//! ```
//!
//! Shares change while a read runs, so a division made at its start would leave one copy idle. The
//! thesis (3.2.3) reads parts of 32 MB. The copy that finishes first goes on with bytes of the
//! other copy, even within the last part.

use core::ops::Range;

/// Bytes of a part. 32 MB is the thesis' choice for blocks of 128 MB: four parts for two copies.
pub const PART_BYTES: u64 = 32_000_000;

/// Fewest bytes that a copy takes from another copy's part. At 1 Gb/s these bytes take 8 ms, about
/// as long as the request for them.
pub const STOLEN_BYTES_MIN: u64 = 1_000_000;

/// The division of one read: which copy reads which bytes.
#[derive(Clone, Debug)]
pub struct ReadDivision {
    part_bytes: u64,
    /// The bytes that no copy has begun to read.
    rest: Range<u64>,
    /// Bytes that a copy has given up.
    given_up: Vec<Range<u64>>,
    /// For each copy, the bytes that it still has to read of its current part.
    reading: Vec<Range<u64>>,
}

impl ReadDivision {
    /// Divides `bytes` into parts of `part_bytes` for `copies` copies. No copy has a part yet.
    pub fn new(bytes: u64, part_bytes: u64, copies: usize) -> Self {
        Self {
            part_bytes: part_bytes.max(1),
            rest: 0..bytes,
            given_up: Vec::new(),
            reading: vec![0..0; copies],
        }
    }

    /// Records that the copy has read `bytes` more bytes of its part.
    pub fn read(&mut self, copy: usize, bytes: u64) {
        let range = &mut self.reading[copy];
        range.start = range.start.saturating_add(bytes).min(range.end);
    }

    /// The bytes that the copy still has to read. The range becomes shorter when another copy takes
    /// its end.
    pub fn reading(&self, copy: usize) -> Range<u64> {
        self.reading[copy].clone()
    }

    /// The next bytes for a copy that has finished its part; `None` when no other copy has enough
    /// bytes left to take. `speeds` holds the mean bytes a second of each copy since the read
    /// began.
    ///
    /// When every part has begun, the copy takes the end of the longest unread range, in proportion
    /// to the two speeds. [`Self::reading`] of the other copy then returns the shorter range.
    pub fn next(&mut self, copy: usize, speeds: &[f64]) -> Option<Range<u64>> {
        let taken = match self.given_up.pop() {
            Some(range) => range,
            None if self.rest.is_empty() => self.steal(copy, speeds)?,
            None => self.begin(),
        };
        self.reading[copy] = taken.clone();
        Some(taken)
    }

    /// Leaves what the copy still has to read of its part to the next copy that asks.
    pub fn give_up(&mut self, copy: usize) {
        let range = core::mem::replace(&mut self.reading[copy], 0..0);
        if !range.is_empty() {
            self.given_up.push(range);
        }
    }

    /// Whether every byte was read, is being read or was given up: no part is left to begin.
    pub fn is_all_begun(&self) -> bool {
        self.rest.is_empty() && self.given_up.is_empty()
    }

    /// Gives the second half of what `from` still has to read to `to`, which has no part. `None`
    /// when half of the rest is less than [`STOLEN_BYTES_MIN`].
    pub fn split_off(&mut self, from: usize, to: usize) -> Option<Range<u64>> {
        let range = &mut self.reading[from];
        let (end, taken) = (range.end, (range.end - range.start) / 2);
        if taken < STOLEN_BYTES_MIN {
            return None;
        }
        range.end -= taken;
        self.reading[to] = end - taken..end;
        Some(end - taken..end)
    }

    /// From now on `to` reads the part of `from`. What `to` had still to read is left to the next
    /// copy that asks.
    pub fn take_over(&mut self, from: usize, to: usize) {
        self.give_up(to);
        self.reading.swap(from, to);
    }

    fn begin(&mut self) -> Range<u64> {
        let end = self.rest.end.min(self.rest.start.saturating_add(self.part_bytes));
        let part = self.rest.start..end;
        self.rest.start = end;
        part
    }

    fn steal(&mut self, copy: usize, speeds: &[f64]) -> Option<Range<u64>> {
        let others = (0..self.reading.len()).filter(|&other| other != copy);
        let seconds = |other: &usize| {
            let left = self.reading[*other].end - self.reading[*other].start;
            left as f64 / speeds[*other].max(1.0)
        };
        let slowest = others.max_by(|one, other| seconds(one).total_cmp(&seconds(other)))?;
        let range = &mut self.reading[slowest];
        let (own, other) = (speeds[copy].max(1.0), speeds[slowest].max(1.0));
        let taken = ((range.end - range.start) as f64 * own / (own + other)) as u64;
        if taken < STOLEN_BYTES_MIN {
            return None;
        }
        let end = range.end;
        range.end -= taken;
        Some(range.end..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates two copies at these speeds. Returns the bytes that each copy read and the time at
    /// which each copy finished.
    fn race(bytes: u64, speeds: [f64; 2]) -> ([u64; 2], [f64; 2]) {
        let mut parts = ReadDivision::new(bytes, PART_BYTES, 2);
        let (mut done, mut at) = ([0; 2], [0.0; 2]);
        let mut idle = [true; 2];
        let mut covered = vec![];
        loop {
            for (copy, idle) in idle.iter_mut().enumerate().filter(|(_, idle)| **idle) {
                *idle = parts.next(copy, &speeds).is_none();
            }
            let left = |copy: usize| {
                let range = parts.reading(copy);
                (range.end - range.start) as f64 / speeds[copy]
            };
            let Some(first) = (0..2)
                .filter(|&copy| !idle[copy])
                .min_by(|&one, &other| left(one).total_cmp(&left(other)))
            else {
                break;
            };
            let step = left(first);
            for copy in 0..2 {
                if idle[copy] {
                    continue;
                }
                let range = parts.reading(copy);
                let moved = ((step * speeds[copy]).round() as u64).min(range.end - range.start);
                let moved = if copy == first { range.end - range.start } else { moved };
                covered.push(range.start..range.start + moved);
                parts.read(copy, moved);
                done[copy] += moved;
                at[copy] += step;
            }
            idle[first] = true;
        }
        covered.sort_by_key(|range| range.start);
        let mut end = 0;
        for range in covered.into_iter().filter(|range| !range.is_empty()) {
            assert_eq!(range.start, end, "every byte once");
            end = range.end;
        }
        assert_eq!(end, bytes);
        (done, at)
    }

    #[test]
    fn both_copies_are_done_within_the_time_of_a_stolen_megabyte() {
        for speeds in [[100e6, 100e6], [100e6, 30e6], [100e6, 1e6], [40e6, 90e6]] {
            let (done, at) = race(128_000_000, speeds);
            let best = 128e6 / (speeds[0] + speeds[1]);
            let worst = at[0].max(at[1]);
            let slack = 2.0 * STOLEN_BYTES_MIN as f64 / speeds[0].min(speeds[1]);
            assert!(worst <= best + slack, "{speeds:?}: {at:?}, best {best}, {done:?}");
        }
    }

    #[test]
    fn bytes_that_a_copy_gives_up_are_read_by_the_next_one() {
        let mut parts = ReadDivision::new(PART_BYTES + 5, PART_BYTES, 2);
        assert_eq!(parts.next(0, &[1.0, 1.0]), Some(0..PART_BYTES));
        parts.read(0, 7);
        parts.give_up(0);
        assert_eq!(parts.reading(0), 0..0);
        assert_eq!(parts.next(1, &[1.0, 1.0]), Some(7..PART_BYTES));
        assert_eq!(parts.next(0, &[1.0, 1.0]), Some(PART_BYTES..PART_BYTES + 5));
        parts.read(0, 5);
        parts.give_up(0);
        assert_eq!(parts.next(0, &[1.0, 0.0]).map(|range| range.end), Some(PART_BYTES));
    }

    #[test]
    fn a_part_is_read_over_two_connections_until_one_of_them_takes_it_over() {
        let mut parts = ReadDivision::new(PART_BYTES, PART_BYTES, 2);
        assert_eq!(parts.next(0, &[1.0, 1.0]), Some(0..PART_BYTES));
        assert!(parts.is_all_begun());
        let half = PART_BYTES / 2;
        assert_eq!(parts.split_off(0, 1), Some(half..PART_BYTES));
        assert_eq!(parts.reading(0), 0..half);
        parts.read(0, 5);
        parts.read(1, 7);
        parts.take_over(1, 0);
        assert_eq!((parts.reading(0), parts.reading(1)), (half + 7..PART_BYTES, 0..0));
        assert!(!parts.is_all_begun(), "the rest of the first half was given up");
        assert_eq!(parts.next(1, &[1.0, 1.0]), Some(5..half));
        parts.read(1, half - 5 - 1_000_000);
        assert_eq!(parts.split_off(1, 0), None, "half of a megabyte is too little");
    }

    #[test]
    fn a_read_smaller_than_a_part_is_not_divided_at_its_start() {
        let mut parts = ReadDivision::new(500_000, PART_BYTES, 2);
        assert_eq!(parts.next(0, &[1.0, 1.0]), Some(0..500_000));
        assert_eq!(parts.next(1, &[1.0, 1.0]), None);
    }
}
