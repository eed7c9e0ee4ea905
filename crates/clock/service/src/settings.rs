//! The settings of the clock beside a role.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use evenfall_clock_machine::Config;
use evenfall_core::Timestamp;
use evenfall_runtime::settings::SettingsMistake;
use evenfall_runtime::settings::check::within;
use serde::{Deserialize, Serialize};

use crate::{Plant, Planting};

/// Bits a second for probes. Below 5 kb/s a pair of nodes sees less than one probe in a window, and
/// 100 Mb/s are 44,000 pairs of probes a second.
const BUDGET: RangeInclusive<u64> = 5_000..=100_000_000;

/// Range of the share of a core for probes. A hundredth of a percent of a core is less than the
/// cost of the fewest probes that keep a clock measured.
const CORE_SHARE: RangeInclusive<f64> = 0.0001..=1.0;

/// Name of the file with the steps of the clock of a node's host.
pub fn steps_file(node: &str) -> String {
    format!("{node}.step")
}

/// The settings of the clocks, for runs whose `run.clock` lets the nodes measure each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClockSettings {
    /// Limit of the bits that a node sends for its probes in a second, with the headers of all
    /// layers.
    pub budget_bits_s: u64,
    /// Limit of the processor time that a node takes for its clock, as a share of a core. The node
    /// measures the time, with all system calls, and sends fewer probes when they cost more.
    pub budget_core_share: f64,
    /// Local clocks that are wrong on purpose, a tool for experiments: every node's clock is
    /// planted up to this offset and this rate. Without it clocks are as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plant: Option<Planting>,
    /// Directory with steps of the hosts' clocks, a tool for experiments: the file `NAME.step` has
    /// the nanoseconds by which the clock of this node's host is ahead. The file is read again with
    /// each reading of the clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<PathBuf>,
    /// Seed of the planted clocks. The same seed plants the same clocks.
    pub plant_seed: u64,
}

impl Default for ClockSettings {
    fn default() -> Self {
        let Config { budget_bits_s, budget_core_share, .. } = Config::default();
        Self { budget_bits_s, budget_core_share, plant: None, steps: None, plant_seed: 1 }
    }
}

impl ClockSettings {
    /// Checks the values.
    ///
    /// # Errors
    /// The value that is out of its range.
    pub fn check(&self) -> Result<(), SettingsMistake> {
        within("clock.budget_bits_s", self.budget_bits_s, &BUDGET)?;
        within("clock.budget_core_share", self.budget_core_share, &CORE_SHARE)
    }

    /// Makes relative paths begin from `base`.
    pub fn rebase(&mut self, base: &Path) {
        self.steps = self.steps.take().map(|dir| base.join(dir));
    }

    /// Whether clocks are wrong on purpose. All processes then share the local clock of the host,
    /// by which the report judges.
    pub fn is_planted(&self) -> bool {
        self.plant.is_some() || self.steps.is_some()
    }

    /// The file with the steps of this node's host, if steps are planted.
    pub fn steps_of(&self, node: &str) -> Option<PathBuf> {
        self.steps.as_ref().map(|dir| dir.join(steps_file(node)))
    }

    /// The limits of the machine.
    pub fn config(&self) -> Config {
        let Self { budget_bits_s, budget_core_share, .. } = *self;
        Config { budget_bits_s, budget_core_share, ..Config::default() }
    }

    /// The local clock of the node with this number, from `since` on.
    pub fn plant(&self, number: u32, since: Timestamp) -> Plant {
        self.plant.map_or_else(Plant::default, |plant| plant.of(self.plant_seed, number, since))
    }
}
