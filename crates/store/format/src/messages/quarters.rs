//! [`QuarterMemo`]: a value that holds for a quarter of an hour of a venue's clock.

use super::DAY_NS;

/// Nanoseconds in which no venue's clock changes, except at their end. Since 1970 clocks change on
/// quarters of an hour alone.
const QUARTER_NS: i64 = 900_000_000_000;
/// Times near the greatest one, whose day may have no end.
const PLAIN_END_NS: i64 = i64::MAX - 2 * DAY_NS as i64;

/// A clock, and the quarters of an hour of a recorded time and of a time of day.
type ClockQuarter<K> = (K, i64, Option<i64>);

/// Keeps what was found for the clock of the last message: a look at the rules of a zone takes
/// longer than all else that a message costs. `K` tells clocks apart. `V` is what holds for the
/// quarter of an hour, such as the difference between two times.
#[derive(Clone, Debug)]
pub struct QuarterMemo<K, V> {
    last: Option<(ClockQuarter<K>, V)>,
}

impl<K, V> Default for QuarterMemo<K, V> {
    fn default() -> Self {
        Self { last: None }
    }
}

impl<K: Copy + PartialEq, V: Copy> QuarterMemo<K, V> {
    /// What `look` finds for a message that was recorded at this time and states this time of day,
    /// or none.
    pub fn recall(
        &mut self,
        clock: K,
        recorded_ns: i64,
        day_ns: Option<i64>,
        look: impl FnOnce() -> V,
    ) -> V {
        let quarter = |ns: i64| ns.div_euclid(QUARTER_NS);
        let key = (clock, quarter(recorded_ns), day_ns.map(quarter));
        if let Some((known, value)) = self.last
            && known == key
        {
            return value;
        }
        let value = look();
        self.last = (0..PLAIN_END_NS).contains(&recorded_ns).then_some((key, value));
        value
    }
}
