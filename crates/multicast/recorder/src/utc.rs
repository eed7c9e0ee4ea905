//! UTC beside a recording, with its bound.
//!
//! The messages of a recording have times of the run, which is the time of the root. The root's
//! clock may differ from UTC. Where the nodes of a run measure each other's clocks, this file says
//! by how much, as far as the vetted sources of all nodes tell.
//!
//! ```text
//! <name>.utc
//!  0          8          16          24          32
//! +----------+----------+-----------+-----------+
//! | time i64 | utc  i64 | utc bound | run bound |
//! +----------+----------+-----------+-----------+
//! ```
//!
//! `time` is a time of the run, and `utc` is what comes to it for UTC. The `utc bound` limits the
//! error of that sum, and is all ones when no source states a bound. The `run bound` is the assumed
//! bound on the error of the recorder's own clock against the root's, and is all ones while it is
//! not known. There is a record for each window of two seconds.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use evenfall_clock_service::MeshView;
use evenfall_store_engine::{Store, StoreAckLevel, StoreError, StoreFile};
use evenfall_store_recording::files::{utc_name, utc_schema};
use evenfall_store_recording::writer::append_when_admitted;

/// Stands for a bound that nobody states.
const NO_BOUND: u64 = u64::MAX;

/// Writes what the clocks of a run say of UTC, once for each window.
pub(crate) struct UtcLog<'a> {
    store: &'a Store,
    file: Arc<StoreFile>,
    clock: MeshView,
    is_stopping: &'a AtomicBool,
    last_ns: i64,
    windows: u64,
}

impl<'a> UtcLog<'a> {
    /// A log beside this recording.
    pub(crate) fn new(
        store: &'a Store,
        name: &str,
        clock: MeshView,
        is_stopping: &'a AtomicBool,
    ) -> Result<Self, StoreError> {
        let file = store.create(&utc_name(name), &utc_schema())?;
        let last_ns = file.last_ns().unwrap_or(i64::MIN);
        Ok(Self { store, file, clock, is_stopping, last_ns, windows: 0 })
    }

    /// Appends what is known at this time of the run, if a window has ended since the last call.
    pub(crate) fn note(&mut self, time_ns: i64) -> Result<(), StoreError> {
        let standing = self.clock.standing();
        if standing.windows == self.windows {
            return Ok(());
        }
        self.windows = standing.windows;
        self.last_ns = time_ns.min(self.store.now_ns()).max(self.last_ns);
        let mut record = Vec::new();
        record.extend(self.last_ns.to_le_bytes());
        record.extend(standing.utc_ns.unwrap_or(0).to_le_bytes());
        for bound in [standing.utc_bound_ns, standing.assumed_ns] {
            record.extend(bound.unwrap_or(NO_BOUND).to_le_bytes());
        }
        // Nobody waits for the record: the commit of the next messages includes it.
        let is_stopping = Some(self.is_stopping);
        append_when_admitted(self.store, &self.file, &record, StoreAckLevel::Local, is_stopping)
            .map(drop)
    }
}
