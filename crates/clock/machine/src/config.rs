//! Every limit of the clock, with its unit and its reason.

use core::time::Duration;

/// How clocks are measured and how far they are believed.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Time over which the probes of a pair of nodes become one estimate. In two seconds a crystal
    /// bends by tens of nanoseconds, and a budget of 500 kb/s gives dozens of probes to each pair.
    pub window: Duration,
    /// Windows whose probes count for the proven bound. Eight seconds tell rates of crystals apart
    /// by a few millionths, and `wander_ppb_s` widens a bound of that age by 6 us.
    pub windows_proven: usize,
    /// Time between the two probes of a pair. A full packet takes 12 us at 1 Gb/s: two probes 20 us
    /// apart that meet a queue do not arrive 20 us apart.
    pub spacing: Duration,
    /// How much the spacing may change on the way for the probes to count. Stamps of kernels differ
    /// by some hundred nanoseconds without any queue.
    pub tolerance: Duration,
    /// Bound on the error of a stamp beyond its delay, which is 100 ns where cards stamp. Software
    /// stamps before it sends and after it receives, so their lateness counts as delay.
    pub stamp_error: Duration,
    /// Worst rate of a clock against another clock, in parts per billion. Crystals of servers keep
    /// 100 ppm each.
    pub drift_ppb_max: u32,
    /// Worst change of that rate, in parts per billion a second. A tenth of a kelvin a second moves
    /// a crystal of 1 ppm a kelvin by 100 ppb/s; two clocks may move against each other.
    pub wander_ppb_s: u32,
    /// Share of the least round trip by which the two ways may lastingly differ through all links
    /// of a node alike. Nobody can measure this part, so it is assumed: 1 % of 50 us is 500 ns.
    pub asymmetry_share: f64,
    /// What a node may send for its probes, in bits a second with the headers of all layers.
    pub budget_bits_s: u64,
    /// How fast a clock in use is corrected, in parts per million. 500 is what NTP allows; a reader
    /// of the clock sees times that are always in order.
    pub slew_ppm: u32,
    /// Standard errors of the network that the assumed bound stands for. Four are exceeded in one
    /// reading of 16,000 under the normal law, which leaves room for tails that are heavier.
    pub assumed_errors: f64,
    /// Neighbours of a node that may lie unnoticed. The proven bound of a node does not rest on so
    /// many of its neighbours alone.
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
            slew_ppm: 500,
            assumed_errors: 4.0,
            liars_beside: 1,
        }
    }
}

impl Config {
    /// The worst rate of a clock against another clock, in nanoseconds for each nanosecond.
    pub fn drift_max(&self) -> f64 {
        f64::from(self.drift_ppb_max) * 1e-9
    }

    /// How far a line and a bending difference of two clocks can be apart after so many
    /// nanoseconds.
    pub fn bend_ns(&self, age_ns: f64) -> f64 {
        // 1 ppb/s is 1 ns/s^2, and a constant change of rate gives half of it times the time
        // squared.
        f64::from(self.wander_ppb_s) * (age_ns * 1e-9) * (age_ns * 1e-9) / 2.0
    }
}
