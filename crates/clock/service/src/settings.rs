//! The settings of the clock beside a role.

use std::ops::RangeInclusive;

use evenfall_clock_machine::Config;
use evenfall_runtime::settings::Mistake;
use evenfall_runtime::settings::check::within;
use serde::{Deserialize, Serialize};

/// Bits a second for probes. Below 5 kb/s a pair of nodes sees less than one probe in a window, and
/// 100 Mb/s are 44,000 pairs of probes a second.
const BUDGET: RangeInclusive<u64> = 5_000..=100_000_000;

/// Whether and how the nodes of a run keep one time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClockSettings {
    /// Whether the nodes measure each other's clocks, and stamp by the time of the root. Otherwise
    /// each node believes the clock that `run.clock` names.
    pub mesh: bool,
    /// What a node sends for its probes at most, in bits a second with the headers of all layers.
    pub budget_bits_s: u64,
}

impl Default for ClockSettings {
    fn default() -> Self {
        Self { mesh: false, budget_bits_s: Config::default().budget_bits_s }
    }
}

impl ClockSettings {
    /// Checks the values.
    ///
    /// # Errors
    /// The value that is out of its range.
    pub fn check(&self) -> Result<(), Mistake> {
        within("clock.budget_bits_s", self.budget_bits_s, &BUDGET)
    }

    /// The limits of the machine.
    pub fn config(&self) -> Config {
        Config { budget_bits_s: self.budget_bits_s, ..Config::default() }
    }
}
