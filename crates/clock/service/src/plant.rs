//! A local clock that is wrong on purpose, so that a laboratory knows the truth.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use evenfall_core::time::nanos;
use evenfall_core::{Prng, Timestamp};
use serde::{Deserialize, Serialize};

/// The worst planted rate, in parts per billion. Two clocks that drift apart by this much keep the
/// worst drift that the mesh allows for.
const DRIFT_PPB_MAX: u32 = 100_000;

/// The greatest planted offset: 100 years. Twice as much, in nanoseconds, is within 64 bits.
const OFFSET_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The greatest planted errors of the clocks of a laboratory, written as `20ms,100ppm`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Planting {
    /// Clocks are up to this much ahead or behind.
    pub offset: Duration,
    /// Clocks are up to this much too fast or too slow, in parts per billion.
    pub drift_ppb: u32,
}

impl Planting {
    /// The clock of the node with this number. The same seed plants the same clocks.
    ///
    /// Local clocks count from the start of their hosts and show no time before zero. So the middle
    /// of all planted clocks is ahead of the host's clock by the offset, and no planted clock is
    /// behind the host's clock.
    pub fn of(&self, seed: u64, number: u32, since: Timestamp) -> Plant {
        let mut prng = Prng::new(seed ^ (u64::from(number) << 32));
        let mut either_way = |most: u64| prng.below(2 * most + 1) as i64 - most as i64;
        let most = nanos(self.offset);
        let offset_ns = most as i64 + either_way(most);
        Plant { offset_ns, drift_ppb: either_way(self.drift_ppb.into()), since }
    }
}

/// The message about a planting that cannot be read: the mistake, and the allowed values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadPlanting(String);

/// Reads an offset such as `20ms`.
///
/// # Errors
/// The mistake, or the allowed offsets.
pub fn offset(text: &str) -> Result<Duration, BadPlanting> {
    let wrong = |why: &dyn fmt::Display| BadPlanting(format!("{text}: {why}"));
    let offset = humantime::parse_duration(text).map_err(|error| wrong(&error))?;
    if offset > OFFSET_MAX {
        return Err(wrong(&"must be 100 years of 365 days at most"));
    }
    Ok(offset)
}

/// Reads a rate such as `100ppm` or `20ppb`.
///
/// # Errors
/// The allowed rates.
pub fn rate(text: &str) -> Result<u32, BadPlanting> {
    let most = DRIFT_PPB_MAX / 1_000;
    let wrong = || BadPlanting(format!("{text}: must be 0ppm to {most}ppm, or so many ppb"));
    let (number, unit) = match (text.strip_suffix("ppm"), text.strip_suffix("ppb")) {
        (Some(number), _) => (number, 1_000),
        (_, Some(number)) => (number, 1),
        _ => return Err(wrong()),
    };
    let number: u32 = number.trim().parse().map_err(|_| wrong())?;
    let rate = number.checked_mul(unit).filter(|rate| *rate <= DRIFT_PPB_MAX);
    rate.ok_or_else(wrong)
}

impl FromStr for Planting {
    type Err = BadPlanting;

    fn from_str(text: &str) -> Result<Self, BadPlanting> {
        let form = "must be an offset and a rate, such as 20ms,100ppm";
        let wrong = || BadPlanting(format!("{text}: {form}"));
        let (offset, drift) = text.split_once(',').ok_or_else(wrong)?;
        Ok(Self { offset: self::offset(offset.trim())?, drift_ppb: rate(drift.trim())? })
    }
}

impl TryFrom<String> for Planting {
    type Error = BadPlanting;

    fn try_from(text: String) -> Result<Self, BadPlanting> {
        text.parse()
    }
}

impl From<Planting> for String {
    fn from(planting: Planting) -> Self {
        planting.to_string()
    }
}

impl fmt::Display for Planting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}ppb", humantime::format_duration(self.offset), self.drift_ppb)
    }
}

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
    /// The time that the planted clock shows when the host's monotonic clock shows `at`.
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
    fn plantings_are_read_as_they_are_written_and_stay_within_what_crystals_do() {
        let planting: Planting = "20ms,100ppm".parse().expect("as the issue writes it");
        assert_eq!(planting, Planting { offset: Duration::from_millis(20), drift_ppb: 100_000 });
        assert_eq!(planting.to_string().parse(), Ok(planting));
        assert_eq!((rate("100ppm"), rate("20ppb")), (Ok(100_000), Ok(20)));
        for wrong in ["20ms", "20ms,101ppm", "20ms,100", "x,1ppm", "20ms,9999999ppm", "101y,1ppm"] {
            assert!(wrong.parse::<Planting>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn nodes_have_clocks_of_their_own_and_a_seed_plants_the_same_again() {
        let far = Planting { offset: OFFSET_MAX, drift_ppb: 100_000 };
        assert!((0..50).all(|number| far.of(1, number, Timestamp::ZERO).offset_ns >= 0));
        let planting = Planting { offset: Duration::from_millis(20), drift_ppb: 100_000 };
        let plants: Vec<Plant> =
            (0..50).map(|number| planting.of(1, number, Timestamp::ZERO)).collect();
        assert_eq!(plants[7], planting.of(1, 7, Timestamp::ZERO));
        assert_ne!(plants[7], planting.of(2, 7, Timestamp::ZERO));
        assert!(plants.iter().all(|plant| (0..=40_000_000).contains(&plant.offset_ns)));
        assert!(plants.iter().any(|plant| plant.offset_ns < 10_000_000));
        assert!(plants.iter().any(|plant| plant.offset_ns > 30_000_000));
        assert!(plants.iter().any(|plant| plant.drift_ppb < -50_000));
    }

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
