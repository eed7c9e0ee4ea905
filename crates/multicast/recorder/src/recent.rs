//! The last seconds of the feed in memory, for the questions of a desk.
//!
//! What holds the rows and answers the questions is another crate, which a program hands to the
//! [`RecorderService`](crate::service::RecorderService). The recorder passes the messages on that
//! it writes, and shows the counts on its page of metrics. Nobody who asks can hold the recorder
//! up: messages are passed on by the thread that writes them, behind a queue whose limit ends the
//! recorder by name.

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use evenfall_core::{Format, SharedKey};
use evenfall_runtime::telemetry::Metrics;
use serde::{Deserialize, Serialize};

/// The table `[burst]`: limits of the rows that a recorder holds in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BurstLimits {
    /// Rows at most: quotes and trades.
    pub rows_max: u64,
    /// Bytes of columns at most.
    pub bytes_max: u64,
}

/// The least `rows_max`: rows leave in pieces of 4,096, and the pieces that are being filled never
/// leave.
pub const ROWS_LEAST: u64 = 65_536;
/// The least `bytes_max`: that many rows.
pub const BYTES_LEAST: u64 = 4 << 20;

impl Default for BurstLimits {
    /// Four million rows, which is more than Nasdaq has in five seconds; 256 MiB.
    fn default() -> Self {
        Self { rows_max: 4 << 20, bytes_max: 256 << 20 }
    }
}

/// What a recorder is to hold, and where it answers.
#[derive(Clone, Debug)]
pub struct RecentHolding {
    /// Name of the recorder, for notes.
    pub name: String,
    /// The window behind the newest row.
    pub keep: Duration,
    /// The limits.
    pub limits: BurstLimits,
    /// Where questions are taken.
    pub listen: SocketAddr,
    /// The file of positions for `reprice`.
    pub positions: Option<PathBuf>,
    /// The shared key of the run.
    pub key: Option<SharedKey>,
}

/// Takes the messages of a feed, in the thread that writes them.
pub trait RecentTap: Send {
    /// The next message of a tree, with its time in nanoseconds since 1970.
    fn push(&mut self, tree: u32, time_ns: i64, format: Format, message: &[u8]);

    /// No message has come for a while.
    fn settle(&mut self);
}

/// Holds rows and answers questions until it is dropped.
pub trait RecentHolder {
    /// Where questions are taken.
    fn address(&self) -> SocketAddr;

    /// Where messages go.
    fn make_tap(&self) -> Box<dyn RecentTap>;

    /// Counts for the page of metrics.
    fn add_metrics(&self, metrics: &mut Metrics);
}

/// Begins to hold rows and to answer.
pub type HoldRecent = fn(RecentHolding) -> Result<Box<dyn RecentHolder>, Box<dyn Error>>;
