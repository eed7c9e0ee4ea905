//! How a store ends: with everything published, or within the seconds that a supervisor grants.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::Store;
use crate::{StoreError, clean_shutdown};

/// How long a stop waits for chunks that are being put into columns. The next life does the rest.
const COLUMNS_PATIENCE: Duration = Duration::from_secs(2);
/// How long a stop waits for the bucket. Supervisors kill a process after five to ten seconds, and
/// its other steps take a part of these.
const BUCKET_PATIENCE: Duration = Duration::from_secs(3);

impl Store {
    /// Stops with all records on the disk and, when there is an object store, in it. Leaves a list
    /// of whole files behind.
    ///
    /// # Errors
    /// When the disk or the object store fails. The store may then be opened again.
    pub fn close(self) -> Result<(), StoreError> {
        self.end(None)
    }

    /// [`close`](Self::close) for a process that was told to stop: the bucket gets three seconds in
    /// all. Records that it has not taken by then stay in the directory, and the next life
    /// publishes them.
    ///
    /// # Errors
    /// As [`close`](Self::close). Also when the bucket lacks records.
    pub fn stop(self) -> Result<(), StoreError> {
        self.end(Some(Instant::now() + BUCKET_PATIENCE))
    }

    fn end(mut self, bucket_end: Option<Instant>) -> Result<(), StoreError> {
        if let (Some(bucket), Some(end)) = (&self.shared.bucket, bucket_end) {
            bucket.end_by(end);
        }
        if !self.shared.is_reading {
            self.await_columns(COLUMNS_PATIENCE);
        }
        self.end_threads();
        if self.shared.is_reading {
            return Ok(());
        }
        self.shared.finish(bucket_end)?;
        self.shared.names.leave();
        let directory = self.shared.config.directory.clone();
        // The directory of names writes its last changes when it is dropped.
        drop(self);
        clean_shutdown::write_list(&directory)
    }

    pub(super) fn end_threads(&mut self) {
        self.shared.stop.store(true, Relaxed);
        self.shared.work.notify_all();
        self.shared.flush.notify_all();
        self.shared.uploads.wake();
        self.shared.encodings.wake();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
