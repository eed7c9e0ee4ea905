//! The time for which a reader waits for bytes of a flow before it also asks another copy.
//!
//! A fixed time is too long on a fast network and too short on a slow one. The reader therefore
//! measures every silence that has ended, and expects the next one to last no longer than the mean
//! and four mean deviations, as TCP does for its acknowledgements (RFC 6298, section 2). The first
//! bytes of a part come later than the bytes behind them, because a server opens a file for them.
//! A reader has one [`Patience`] for each kind.

use core::time::Duration;

/// The least wait. TCP on Linux repeats a lost packet after 200 ms, and the flow goes on by itself.
const WAIT_MIN: Duration = Duration::from_millis(250);
/// The greatest wait. A disk that is busy with the writes of others may answer after a second.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// The wait before anything was measured, as in RFC 6298.
const WAIT_FIRST: Duration = Duration::from_secs(1);

/// See the documentation of the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Patience {
    /// The mean and the mean deviation of silences, in seconds; `None` before the first one.
    measured: Option<(f64, f64)>,
}

impl Patience {
    /// Takes in a silence that has ended.
    pub fn heard(&mut self, silence: Duration) {
        let seconds = silence.as_secs_f64();
        self.measured = Some(match self.measured {
            None => (seconds, seconds / 2.0),
            Some((mean, deviation)) => {
                let off = (mean - seconds).abs();
                (mean + (seconds - mean) / 8.0, deviation + (off - deviation) / 4.0)
            }
        });
    }

    /// The silence after which the flow counts as hanging.
    pub fn wait(&self) -> Duration {
        let Some((mean, deviation)) = self.measured else { return WAIT_FIRST };
        let seconds = (mean + 4.0 * deviation).min(WAIT_MAX.as_secs_f64());
        Duration::from_secs_f64(seconds).max(WAIT_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(silences_ms: impl IntoIterator<Item = u64>) -> u64 {
        let mut patience = Patience::default();
        silences_ms.into_iter().for_each(|ms| patience.heard(Duration::from_millis(ms)));
        patience.wait().as_millis() as u64
    }

    #[test]
    fn the_wait_follows_the_silences_between_its_bounds() {
        assert_eq!(after([]), 1_000);
        assert_eq!(after([100]), 300, "the mean and four times half of it");
        assert_eq!(after([1; 50]), 250);
        assert_eq!(after([5_000; 3]), 2_000);
        let steady = after([400; 50]);
        assert!((400..410).contains(&steady), "{steady}");
        let changing = after([300, 500].repeat(25));
        assert!(changing > 700, "{changing}");
    }
}
