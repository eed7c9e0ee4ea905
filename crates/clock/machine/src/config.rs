//! Every limit of the clock, with its unit and its reason.

use core::time::Duration;

use crate::timekeeper::OVERHEAD_BYTES;
use crate::wire::PROBE_BYTES;

/// The settings of the measurement, and of the trust in clocks.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Time over which the probes of a pair of nodes become one estimate. In two seconds the rate
    /// of a crystal changes so little that its time stays within tens of nanoseconds of a straight
    /// line. In the same time a budget of 500 kb/s gives dozens of probes to each pair.
    pub window: Duration,
    /// Number of windows whose probes count for the proven bound. Four windows of two seconds bound
    /// the rate of one clock against another to a few parts per million. In that time
    /// `wander_ppb_s` widens the bound by 6 us.
    pub windows_proven: usize,
    /// Time between the two probes of a pair. A full packet takes 12 us at 1 Gb/s: two probes 20 us
    /// apart that meet a queue do not arrive 20 us apart.
    pub spacing: Duration,
    /// How much the spacing may change on the way for the probes to count. Stamps of kernels differ
    /// by some hundred nanoseconds without any queue.
    pub tolerance: Duration,
    /// Bound on the error of a stamp that is not delay: 100 ns where network cards stamp. Software
    /// stamps before it sends and after it receives, so the time that it takes counts as delay.
    pub stamp_error: Duration,
    /// Worst rate of a clock against another clock, in parts per billion. Crystals of servers keep
    /// 100 ppm each.
    pub drift_ppb_max: u32,
    /// Worst change of that rate, in parts per billion a second. When the temperature changes by a
    /// tenth of a kelvin a second, the rate of a crystal of 1 ppm per kelvin changes by 100 ppb/s.
    /// Two clocks may change in opposite directions.
    pub wander_ppb_s: u32,
    /// Share of the shortest round trip by which the delays into a node and out of it may differ
    /// for good on all its links alike. No measurement shows this difference, so it is assumed: 1 %
    /// of 50 us is 500 ns.
    pub asymmetry_share: f64,
    /// Limit of the bits that a node sends for its probes in a second, with the headers of all
    /// layers.
    pub budget_bits_s: u64,
    /// Limit of the processor time that a node takes for its probes, as a share of a core. The
    /// owner of the machine tells the cost of a pair of probes
    /// ([`Timekeeper::set_pair_cost`](crate::Timekeeper::set_pair_cost)).
    pub budget_core_share: f64,
    /// Rate at which a clock in use is corrected at most, in parts per million. NTP allows 500. A
    /// slewed clock never goes back.
    pub slew_ppm: u32,
    /// Width of the assumed bound in standard errors of the network. Normally distributed errors
    /// exceed four standard errors in one reading of 16,000. Heavier tails exceed them more often,
    /// and one reading of 1,000 may.
    pub assumed_errors: f64,
    /// Number of lying neighbours that a node's proven bound survives. The bound leaves that many
    /// of its best neighbours out, unless the node has no bound then.
    pub liars_beside: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(2),
            windows_proven: 4,
            spacing: Duration::from_micros(20),
            tolerance: Duration::from_nanos(500),
            stamp_error: Duration::from_nanos(100),
            drift_ppb_max: 200_000,
            wander_ppb_s: 200,
            asymmetry_share: 0.01,
            budget_bits_s: 500_000,
            budget_core_share: 0.005,
            slew_ppm: 500,
            assumed_errors: 4.0,
            liars_beside: 1,
        }
    }
}

impl Config {
    /// Time between two pairs of probes of a node that uses up its budget of bits. The headers of
    /// all layers count.
    pub(crate) fn gap_by_bits(&self) -> Duration {
        let bits = 2 * 8 * (PROBE_BYTES + OVERHEAD_BYTES) as u64;
        Duration::from_nanos(bits * 1_000_000_000 / self.budget_bits_s.max(1))
    }

    /// The worst rate of a clock against another clock, in nanoseconds for each nanosecond.
    pub fn drift_max(&self) -> f64 {
        f64::from(self.drift_ppb_max) * 1e-9
    }

    /// Greatest distance, after `age_ns` nanoseconds, between a straight line and the difference of
    /// two clocks whose rates change.
    pub fn bend_ns(&self, age_ns: f64) -> f64 {
        // A rate changes by `w` parts per billion each second. In `t` seconds, the difference of
        // two clocks then leaves the straight line by `w / 2 * t^2` nanoseconds.
        f64::from(self.wander_ppb_s) * (age_ns * 1e-9) * (age_ns * 1e-9) / 2.0
    }
}
