//! The measured time of an answer, which decides how long a repeat waits.
//!
//! A fixed interval far above the round trip makes every loss cost the whole interval. A fixed
//! interval below the round trip of a crowded host adds load where there is too much. The interval
//! therefore follows the measured round trip, as TCP's does (RFC 6298): the mean plus four times
//! the deviation, both smoothed. Only packets that were sent once count (Karn), and only to ranks
//! that had been heard of, because other ranks may not have begun.

use core::time::Duration;

use crate::config::ShuffleConfig;

/// Bursts that an answer may wait for: a sender that keeps to its pace may hold a granted packet
/// for one burst, the receiver may be woken one burst late, and the answer may take a third burst.
const BURSTS: u32 = 3;

/// Mean and deviation of the time from a message's last packet to its acknowledgement.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoundTrip {
    mean_ns: u64,
    deviation_ns: u64,
    known: bool,
}

impl RoundTrip {
    /// Takes the time of one answer.
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

    /// The mean time of an answer; zero before the first.
    pub(crate) fn mean(&self) -> Duration {
        Duration::from_nanos(self.mean_ns)
    }

    /// How long to wait for an answer before asking again.
    pub(crate) fn interval(&self, config: &ShuffleConfig) -> Duration {
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
    use crate::config::LinkPace;

    #[test]
    fn the_interval_follows_what_was_measured_within_its_bounds() {
        let config = ShuffleConfig {
            resend_after: Duration::from_millis(20),
            resend_after_min: Duration::from_millis(1),
            ..ShuffleConfig::default()
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
        let pace = LinkPace::link(100_000_000, 82, burst);
        assert_eq!(rtt.interval(&ShuffleConfig { pace, ..config }), 3 * burst);
    }
}
