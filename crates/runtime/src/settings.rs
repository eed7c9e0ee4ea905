//! Settings: the tables that every process reads, and one TOML file for all hosts of a run.
//!
//! The tables that every process reads are plain values with checks. A program may fill them in by
//! itself. With the feature `settings` a [`SettingsDocument`] reads them from a file, then from
//! `EVENFALL_*`, then from `--set key=value`.

pub mod check;
mod common;
#[cfg(feature = "settings")]
mod document;
#[cfg(feature = "settings")]
mod part;

pub use self::check::SettingsMistake;
pub use self::common::{
    AUTO, CLOCKS, InjectSettings, Io, Node, OPEN, RunSettings, TreeThreading, check_addresses,
    check_closed, check_nodes, read_key, read_master_key, read_node_key,
};
#[cfg(feature = "settings")]
pub use self::document::{KnownTable, SettingsDocument, apply, line_of, overrides, put};
#[cfg(feature = "settings")]
pub use self::part::keys_of;

/// An error in the settings: its place, its reason, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(String);

impl SettingsError {
    /// An error in these words, which state the place, the reason and what to do.
    pub fn new(words: impl Into<String>) -> Self {
        Self(words.into())
    }
}
