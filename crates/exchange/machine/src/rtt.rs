//! How long an answer takes, as measured: what a repeat waits for.
//!
//! A fixed interval is either far above the round trip, and every loss costs all of it, or below it
//! on a crowded host, and adds load where there is too much. So it follows what is measured, as
//! TCP's does (RFC 6298): mean and four times the deviation, both smoothed. Only what was sent once
//! counts (Karn), and only to who had been heard of, because others have perhaps not begun.

use core::time::Duration;

use crate::config::Config;

/// A sender that keeps to its pace may sit on a granted packet for a burst, its receiver be woken
/// late by another, and the answer take a third.
const BURSTS: u32 = 3;

/// Mean and deviation of the time from a message's last packet to its acknowledgement.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoundTrip {
    mean_ns: u64,
    deviation_ns: u64,
    known: bool,
}

impl RoundTrip {
    /// An answer took this long.
    pub(crate) fn take(&mut self, sample: Duration) {
        let sample_ns = sample.as_nanos() as u64;
        if !self.known {
            (self.known, self.mean_ns, self.deviation_ns) = (true, sample_ns, sample_ns / 2);
            return;
        }
        let off_ns = self.mean_ns.abs_diff(sample_ns);
        self.deviation_ns = (3 * self.deviation_ns + off_ns) / 4;
        self.mean_ns = (7 * self.mean_ns + sample_ns) / 8;
    }

    /// How long an answer took so far; zero while none is known.
    pub(crate) fn mean(&self) -> Duration {
        Duration::from_nanos(self.mean_ns)
    }

    /// How long to wait for an answer before asking again.
    pub(crate) fn interval(&self, config: &Config) -> Duration {
        let most = config.resend_after;
        if !self.known {
            return most;
        }
        let wait_ns = self.mean_ns.saturating_add(self.deviation_ns.saturating_mul(4));
        let least = config.resend_after_min.max(config.pace.burst * BURSTS);
        Duration::from_nanos(wait_ns).clamp(least.min(most), most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Pace;

    #[test]
    fn the_interval_follows_what_was_measured_within_its_bounds() {
        let config = Config {
            resend_after: Duration::from_millis(20),
            resend_after_min: Duration::from_millis(1),
            ..Config::default()
        };
        let mut rtt = RoundTrip::default();
        assert_eq!(rtt.interval(&config), config.resend_after);
        for _ in 0..50 {
            rtt.take(Duration::from_millis(4));
        }
        let calm = rtt.interval(&config);
        assert!(calm < Duration::from_millis(5), "{calm:?}");
        rtt.take(Duration::from_millis(12));
        assert!(rtt.interval(&config) > 2 * calm);
        for _ in 0..50 {
            rtt.take(Duration::from_micros(10));
        }
        assert_eq!(rtt.interval(&config), config.resend_after_min);
        let burst = Duration::from_millis(5);
        let pace = Pace::link(100_000_000, 82, burst);
        assert_eq!(rtt.interval(&Config { pace, ..config }), 3 * burst);
    }
}
