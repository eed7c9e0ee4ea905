//! [`RecordAppender`]: records of a table on their way into a file with a schema.
//!
//! A store takes a batch whole or refuses it whole, and names a wrong record by its number within
//! the batch. A user has a table, and knows no batches. The appender therefore remembers the
//! position of each record in its table (the line of a CSV, the row of a frame), and cuts a refused
//! batch in halves until the records before the refused one are appended and its position is known.
//!
//! ```text
//!  rows --> window of the file, if it has one --> batch of 256 KiB --> Store or Client
//!                                                                      acknowledged: counted
//! ```

use std::collections::HashMap;
use std::fmt::{self, Display};
use std::sync::Arc;

use bytes::Bytes;
use evenfall_store_engine::{Client, RemoteFile, Store, StoreAckLevel, StoreError, StoreFile};
use evenfall_store_format::layout::record_time;
use evenfall_store_format::{Error as StoreFormatError, Field, Schema};

use crate::late_window::LateWindow;

/// Bytes gathered before they are appended: a quarter of the longest append. A wrong record of 32
/// bytes is found after 13 cuts.
const BATCH_BYTES: usize = 256 << 10;

/// Where the records go.
enum Sink<'a> {
    Store(&'a Store, Arc<StoreFile>),
    Server {
        client: Box<Client>,
        file: RemoteFile,
        /// Time of the last record that the server took from here.
        limit_ns: i64,
    },
}

impl Sink<'_> {
    fn schema(&self) -> &Schema {
        match self {
            Self::Store(_, file) => &file.schema,
            Self::Server { file, .. } => &file.schema,
        }
    }

    /// Appends records, and returns when they have reached the level.
    fn append(&mut self, records: &[u8], level: StoreAckLevel) -> Result<(), StoreError> {
        match self {
            Self::Store(store, file) => store.append(file, records, level).map(drop)?,
            Self::Server { client, file, limit_ns } => {
                let size = usize::from(file.schema.record_bytes);
                let last_ns = check_order(records, size, *limit_ns)?;
                client.append(file, records, level)?;
                while let Some(completion) = client.completion()? {
                    completion.first?;
                }
                *limit_ns = last_ns;
            }
        }
        Ok(())
    }
}

/// Refuses records that go back in time, as a store does. A server says so in words only, in which
/// the record cannot be found again. Returns the time of the last record.
fn check_order(records: &[u8], size: usize, mut limit_ns: i64) -> Result<i64, StoreError> {
    for (at, record) in records.chunks_exact(size).enumerate() {
        let time_ns = record_time(record);
        if time_ns < limit_ns {
            return Err(StoreFormatError::TimeWentBack { at, time_ns, limit_ns }.into());
        }
        limit_ns = time_ns;
    }
    Ok(limit_ns)
}

/// Why records were not appended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RecordAppendError {
    /// The store refused the record at this position of the table.
    Record {
        /// Position of the record.
        position: u64,
        /// Reason of the refusal.
        why: StoreError,
    },
    /// The store did not take, or did not acknowledge, the records from one position to another.
    Batch {
        /// Position of the first record.
        first: u64,
        /// Position of the last record.
        last: u64,
        /// Reason of the failure.
        why: StoreError,
    },
}

impl RecordAppendError {
    /// The error of the store.
    pub fn store_error(&self) -> &StoreError {
        match self {
            Self::Record { why, .. } | Self::Batch { why, .. } => why,
        }
    }
}

impl Display for RecordAppendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store_error().fmt(f)
    }
}

impl std::error::Error for RecordAppendError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(self.store_error())
    }
}

/// Records on their way into a file, with or without a window.
pub struct RecordAppender<'a> {
    sink: Sink<'a>,
    level: StoreAckLevel,
    window: Option<LateWindow>,
    /// The field that numbers records, for the window.
    sequence: Option<Field>,
    /// The word for a position of the table: line or row.
    position_word: &'static str,
    /// The positions of the records in the window, which holds a limited number of them.
    waiting: HashMap<Bytes, u64>,
    /// What the window remarked, until the caller takes it.
    remarks: Vec<String>,
    batch: Vec<u8>,
    /// The position of each record of the batch.
    positions: Vec<u64>,
    appended: u64,
    /// Whether the store has refused a record. What comes behind that record would leave a hole.
    has_failed: bool,
}

impl<'a> RecordAppender<'a> {
    /// An appender to a file of a store. `position_word` is what a table calls the place of a
    /// record: "line", "row".
    ///
    /// # Errors
    /// The errors of [`Store::file`].
    pub fn to_store(
        store: &'a Store,
        name: &str,
        level: StoreAckLevel,
        position_word: &'static str,
    ) -> Result<Self, StoreError> {
        let file = store.file(name)?;
        Ok(Self::new(Sink::Store(store, file), level, position_word))
    }

    /// An appender to a file of a server.
    ///
    /// # Errors
    /// The errors of [`Client::open`].
    pub fn to_server(
        mut client: Client,
        name: &str,
        level: StoreAckLevel,
        position_word: &'static str,
    ) -> Result<Self, StoreError> {
        let file = client.open(name)?;
        let sink = Sink::Server { client: Box::new(client), file, limit_ns: i64::MIN };
        Ok(Self::new(sink, level, position_word))
    }

    fn new(sink: Sink<'a>, level: StoreAckLevel, position_word: &'static str) -> Self {
        let arrival = &sink.schema().arrival;
        Self {
            window: LateWindow::of_width(arrival.window_ns),
            sequence: sink.schema().field(&arrival.sequence).cloned(),
            sink,
            level,
            position_word,
            waiting: HashMap::new(),
            remarks: Vec::new(),
            batch: Vec::new(),
            positions: Vec::new(),
            appended: 0,
            has_failed: false,
        }
    }

    /// The meaning of the file's records.
    pub fn schema(&self) -> &Schema {
        self.sink.schema()
    }

    /// Records that were appended and acknowledged so far.
    pub fn records_appended(&self) -> u64 {
        self.appended
    }

    /// Records whose positions are remembered.
    #[cfg(test)]
    pub(crate) fn records_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The window of the file, if it has one.
    pub fn window(&self) -> Option<&LateWindow> {
        self.window.as_ref()
    }

    /// What the window remarked since the last call, about ten records of each kind at most.
    pub fn take_remarks(&mut self) -> Vec<String> {
        std::mem::take(&mut self.remarks)
    }

    /// Takes the record at a position of the table.
    ///
    /// # Errors
    /// The record that the store refused, or the records that it did not acknowledge. The records
    /// before them are appended.
    pub fn push(&mut self, position: u64, record: &[u8]) -> Result<(), RecordAppendError> {
        let Some(window) = &mut self.window else { return self.push_ordered(position, record) };
        let time_ns = record_time(record);
        let sequence = self.sequence.as_ref().map_or(position, |field| field.whole(record) as u64);
        let record = Bytes::copy_from_slice(record);
        let (word, key, before) = (self.position_word, record.clone(), window.counts());
        let remark = window.offer(&format_args!("{word} {position}"), sequence, time_ns, record);
        self.remarks.extend(remark);
        let now = window.counts();
        // A record that the window refuses or drops never leaves it.
        if (before.too_late, before.duplicates) == (now.too_late, now.duplicates) {
            self.waiting.insert(key, position);
        }
        while let Some(record) = self.window.as_mut().and_then(LateWindow::poll_record) {
            self.push_windowed(&record)?;
        }
        Ok(())
    }

    /// Takes a record that has left the window.
    fn push_windowed(&mut self, record: &[u8]) -> Result<(), RecordAppendError> {
        let position = self.waiting.remove(record).unwrap_or_default();
        self.push_ordered(position, record)
    }

    fn push_ordered(&mut self, position: u64, record: &[u8]) -> Result<(), RecordAppendError> {
        self.batch.extend_from_slice(record);
        self.positions.push(position);
        if self.batch.len() < BATCH_BYTES { Ok(()) } else { self.flush_batch() }
    }

    fn flush_batch(&mut self) -> Result<(), RecordAppendError> {
        let batch = std::mem::take(&mut self.batch);
        let positions = std::mem::take(&mut self.positions);
        self.append_named(&batch, &positions)
    }

    /// Appends records, and finds a refused record by halves.
    fn append_named(&mut self, records: &[u8], positions: &[u64]) -> Result<(), RecordAppendError> {
        let Err(why) = self.sink.append(records, self.level) else {
            self.appended += positions.len() as u64;
            return Ok(());
        };
        self.has_failed = true;
        match positions {
            [position] if is_of_a_record(&why) => {
                return Err(RecordAppendError::Record { position: *position, why });
            }
            [first, .., last] if !is_of_a_record(&why) => {
                return Err(RecordAppendError::Batch { first: *first, last: *last, why });
            }
            [only] => return Err(RecordAppendError::Batch { first: *only, last: *only, why }),
            _ => {}
        }
        let half = positions.len() / 2;
        let (front, back) = records.split_at(half * usize::from(self.schema().record_bytes));
        self.append_named(front, &positions[..half])?;
        self.append_named(back, &positions[half..])
    }

    /// Appends the records that still wait. The caller finishes after an error of the table too, so
    /// that the records before the error are in the file. After an error of the store, nothing is
    /// appended.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn finish(&mut self) -> Result<(), RecordAppendError> {
        if self.has_failed {
            return Ok(());
        }
        while let Some(record) = self.window.as_mut().and_then(LateWindow::drain_record) {
            self.push_windowed(&record)?;
        }
        if self.batch.is_empty() { Ok(()) } else { self.flush_batch() }
    }
}

/// Whether the store refused an append for the time of one of its records.
fn is_of_a_record(why: &StoreError) -> bool {
    matches!(
        why,
        StoreError::Store(
            StoreFormatError::TimeAhead { .. } | StoreFormatError::TimeWentBack { .. }
        )
    )
}
