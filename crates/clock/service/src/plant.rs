//! A local clock that is wrong on purpose, so that a laboratory knows the truth.

use evenfall_core::Timestamp;

/// An error that is planted in a node's local clock: an offset, and a rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plant {
    /// How far the planted clock is ahead at `since`, in nanoseconds.
    pub offset_ns: i64,
    /// How much faster it runs, in parts per billion.
    pub drift_ppb: i64,
    /// When the drift begins.
    pub since: Timestamp,
}

impl Plant {
    /// What the planted clock shows when the host's monotonic clock shows `at`.
    pub fn shown(&self, at: Timestamp) -> Timestamp {
        let passed = i128::from(at.nanos()) - i128::from(self.since.nanos());
        let gained = passed * i128::from(self.drift_ppb) / 1_000_000_000;
        moved(at, i128::from(self.offset_ns) + gained)
    }

    /// The time of the host's monotonic clock at which the planted clock shows `at`, or up to two
    /// nanoseconds later.
    pub fn real(&self, at: Timestamp) -> Timestamp {
        if *self == Self::default() {
            return at;
        }
        let ahead = i128::from(at.nanos()) - i128::from(self.offset_ns);
        let passed = ahead - i128::from(self.since.nanos());
        let real = passed * 1_000_000_000 / (1_000_000_000 + i128::from(self.drift_ppb));
        moved(self.since, real + 1)
    }
}

fn moved(at: Timestamp, by: i128) -> Timestamp {
    let ns = (i128::from(at.nanos()) + by).clamp(0, i128::from(u64::MAX));
    Timestamp::from_nanos(ns as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_is_the_inverse_of_shown() {
        for (offset_ns, drift_ppb) in [(0, 0), (20_000_000, 100_000), (-7, -200_000)] {
            let since = Timestamp::from_nanos(5_000_000_000);
            let plant = Plant { offset_ns, drift_ppb, since };
            for ns in (4_000_000_000..90_000_000_000).step_by(777_777_777) {
                let at = Timestamp::from_nanos(ns);
                let back = plant.real(plant.shown(at)).signed_since(at);
                assert!((-1..=2).contains(&back), "{plant:?} at {at:?}: {back}");
            }
        }
    }
}
