//! The facts of a run that are not in its logs. The root writes them to the file `run.json`.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use evenfall_core::NodeId;
use serde::{Deserialize, Serialize};

pub use crate::runlog::RUN_FILE;

/// The contents of `run.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunInfo {
    /// First line of the report.
    pub title: String,
    /// When the root started, by the wall clock of its host; 0 when unknown. The other times of a
    /// run are on the run's own clock, which may count from the boot of the host.
    #[serde(default)]
    pub started_unix_s: u64,
    /// Whether the run planted wrong clocks. All processes then share the local clock of one host,
    /// and the report judges by that clock.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_planted: bool,
    /// Settings for the report: names, and values as a person would write them.
    #[serde(default)]
    pub settings: BTreeMap<String, serde_json::Value>,
    /// Receivers, proxies and roots by name. A receiver in this list without a
    /// [`ReceiverMembership`] is expected to release every message.
    pub nodes: Vec<NodeInfo>,
    /// Receivers that joined late or left.
    #[serde(default)]
    pub memberships: Vec<ReceiverMembership>,
    /// Events of the run.
    #[serde(default)]
    pub events: Vec<RunEvent>,
}

/// A process of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeInfo {
    /// Its id.
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// `root`, `proxy`, `receiver` or `recorder`.
    pub role: String,
}

/// The messages of one stream that one receiver is expected to release. A receiver that came back
/// has several memberships.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceiverMembership {
    /// Receiver.
    pub receiver: NodeId,
    /// Tree or shard.
    pub stream: u32,
    /// First message.
    pub from: u64,
    /// First message that is not expected any more; `None` when the receiver stayed.
    #[serde(default)]
    pub until: Option<u64>,
    /// Whether the receiver said good-bye. The messages that it had not released by then are not
    /// expected of it.
    #[serde(default)]
    pub left: bool,
    /// When the receiver's process started. A node that is started again has a log of each life.
    /// The value 0 means that the start is unknown; the last life then counts.
    #[serde(default)]
    pub started_ns: u64,
}

/// An event of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunEvent {
    /// When, on the synchronised clock.
    pub at_ns: u64,
    /// One word, a lane of the timeline: `join`, `leave`, `suspect`, `view`, `evict`, `fault`...
    pub kind: String,
    /// Node that the event concerns.
    #[serde(default)]
    pub node: Option<NodeId>,
    /// A sentence.
    #[serde(default)]
    pub text: String,
}

/// Why the description of a run cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunInfoError {
    /// The file cannot be read or written.
    #[error("{}: {error}", .0.display(), error = .1)]
    Io(PathBuf, io::Error),
    /// The file is broken. The message has line and column.
    #[error("{}: not the description of a run: {error}", .0.display(), error = .1)]
    Malformed(PathBuf, serde_json::Error),
    /// The root has not written the description of the run.
    #[error(
        "{}: not there; the root writes it when its tree stands. Name the directory of a run \
         (run.dir of its settings)",
        .0.display()
    )]
    Missing(PathBuf),
}

impl RunInfo {
    /// Reads `run.json` of a run directory.
    ///
    /// # Errors
    /// When the file is missing or broken.
    pub fn read(directory: &Path) -> Result<Self, RunInfoError> {
        let path = directory.join(RUN_FILE);
        let text = std::fs::read_to_string(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                RunInfoError::Missing(path.clone())
            }
            _ => RunInfoError::Io(path.clone(), error),
        })?;
        serde_json::from_str(&text).map_err(|error| RunInfoError::Malformed(path, error))
    }

    /// Writes `run.json` into a run directory.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, directory: &Path) -> Result<(), RunInfoError> {
        let path = directory.join(RUN_FILE);
        let json = serde_json::to_string_pretty(self).map_err(io::Error::other);
        json.and_then(|json| std::fs::write(&path, json + "\n"))
            .map_err(|error| RunInfoError::Io(path, error))
    }
}
