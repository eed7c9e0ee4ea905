//! Rows of a user's frame into a table of the store.
//!
//! The frame comes as an Arrow stream, whatever package made it. A thread without the interpreter's
//! lock reads the stream batch by batch, turns the rows into records by the table's schema, and
//! appends them, so that the frame is never copied whole. Every error says how many rows are in the
//! table.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrow_array::RecordBatch;
use arrow_array::RecordBatchReader as _;
use arrow_array::ffi_stream::ArrowArrayStreamReader;
use evenfall::recording::Catalog;
use evenfall::store::{Store, StoreAckLevel, StoreError};
use evenfall_store_engine::import::{BatchReader, WrongRow};
use evenfall_store_recording::{RecordAppendError, RecordAppender, connect_to};
use pyo3::prelude::*;

use crate::capsule::take_stream;
use crate::errors::{RowsError, kinds, not_found, sentence, wrong_argument};
use crate::place::StorePlace;
use crate::waits::run_beside;

/// Rows that become records at a time, so that Ctrl-C is seen in a batch of any size.
const ROWS_AT_ONCE: usize = 8_192;

/// How far an append has come, for the thread that waits for it.
#[derive(Default)]
struct AppendProgress {
    is_cancelled: AtomicBool,
    acknowledged: AtomicU64,
}

/// Appends the rows of a frame to a table. Returns the number of rows that the store has
/// acknowledged.
pub(crate) fn append_frame(
    py: Python<'_>,
    place: &Arc<StorePlace>,
    name: &str,
    rows: &Bound<'_, PyAny>,
    ack: &str,
) -> PyResult<u64> {
    let level: StoreAckLevel =
        ack.parse().map_err(|error| wrong_argument(format!("ack = {error}")))?;
    let stream = take_stream(rows)?;
    let progress = Arc::new(AppendProgress::default());
    let intake = FrameIntake {
        place: Arc::clone(place),
        name: name.to_owned(),
        level,
        progress: Arc::clone(&progress),
    };
    let done = run_beside(py, move || intake.append_all(stream));
    let kept = progress.acknowledged.load(Ordering::Acquire);
    let error = match done {
        Ok(Ok(())) => return Ok(kept),
        Ok(Err(failure)) => failure.with_kept(name, kept),
        Err(interrupted) => {
            progress.is_cancelled.store(true, Ordering::Release);
            let more = "and 256 KiB that were on their way may follow";
            interrupted.add_note(py, format!("{name}: {}, {more}", kept_words(kept)))?;
            interrupted
        }
    };
    error.value(py).setattr("rows_kept", kept)?;
    Err(error)
}

fn kept_words(kept: u64) -> String {
    match kept {
        0 => "no row is appended".into(),
        1 => "1 row is appended".into(),
        _ => format!("{kept} rows are appended"),
    }
}

/// Why rows were not appended, before it is known how many are.
enum AppendFailure {
    /// The rows or an argument, in words.
    Wrong(String),
    /// No table of this name, in words.
    Unknown(String),
    /// The store, in words.
    Store(String),
    /// An exception that has all of its words.
    Raised(PyErr),
}

impl AppendFailure {
    fn with_kept(self, name: &str, kept: u64) -> PyErr {
        let all = |words: &str| format!("{name}: {words}; {}", kept_words(kept));
        match self {
            Self::Wrong(words) => wrong_argument(all(&words)),
            Self::Store(words) => kinds::StoreError::new_err(all(&words)),
            Self::Unknown(words) => not_found(words),
            Self::Raised(error) => error,
        }
    }
}

impl From<StoreError> for AppendFailure {
    fn from(error: StoreError) -> Self {
        Self::Store(sentence(&error))
    }
}

impl From<RowsError> for AppendFailure {
    fn from(error: RowsError) -> Self {
        Self::Raised(error.into())
    }
}

impl From<PyErr> for AppendFailure {
    fn from(error: PyErr) -> Self {
        Self::Raised(error)
    }
}

impl From<RecordAppendError> for AppendFailure {
    fn from(error: RecordAppendError) -> Self {
        let words = sentence(&error);
        match error {
            RecordAppendError::Record { position, .. } => {
                Self::Wrong(format!("row {position}: {words}"))
            }
            RecordAppendError::Batch { first, last, .. } => {
                Self::Store(format!("rows {first} to {last}: {words}"))
            }
            _ => Self::Store(words),
        }
    }
}

/// A frame on its way into a table.
struct FrameIntake {
    place: Arc<StorePlace>,
    name: String,
    level: StoreAckLevel,
    progress: Arc<AppendProgress>,
}

impl FrameIntake {
    fn append_all(&self, stream: ArrowArrayStreamReader) -> Result<(), AppendFailure> {
        if self.place.is_served() {
            self.expect_table(&self.place.catalog()?)?;
            let client = connect_to(self.place.name())?;
            let appender = RecordAppender::to_server(client, &self.name, self.level, "row")?;
            return self.append_rows(appender, stream);
        }
        if !self.place.directory()?.is_dir() {
            return Err(AppendFailure::Unknown(format!(
                "{}: there is no such directory; Store.create makes it with its first table",
                self.place.name()
            )));
        }
        let store = self.place.open_to_write()?;
        let appended = self.append_to_store(&store, stream);
        let closed = store.close().map_err(AppendFailure::from);
        appended.and(closed)
    }

    fn append_to_store(
        &self,
        store: &Store,
        stream: ArrowArrayStreamReader,
    ) -> Result<(), AppendFailure> {
        self.expect_table(&Catalog::read(store)?)?;
        let appender = RecordAppender::to_store(store, &self.name, self.level, "row")?;
        self.append_rows(appender, stream)
    }

    /// Refuses names of recordings, and names that nothing has.
    fn expect_table(&self, catalog: &Catalog) -> Result<(), AppendFailure> {
        let name = &self.name;
        if catalog.file(name).is_some() {
            return Ok(());
        }
        if catalog.recording(name).is_some() {
            return Err(AppendFailure::Wrong(
                "this is a recording, which has the messages of a venue byte for byte; rows of \
                 your own belong in a table, which Store.create makes"
                    .into(),
            ));
        }
        Err(AppendFailure::Unknown(format!(
            "{}; a table is made by Store.create(\"{name}\", {{\"time\": \"time\", ...}})",
            self.place.unknown(name, catalog)
        )))
    }

    fn append_rows(
        &self,
        mut appender: RecordAppender<'_>,
        stream: ArrowArrayStreamReader,
    ) -> Result<(), AppendFailure> {
        let schema = appender.schema().clone();
        let reader = BatchReader::new(&schema, &stream.schema())
            .map_err(|error| AppendFailure::Wrong(with_hint(&error.to_string())))?;
        let mut rows = 0;
        let mut taken = Ok(());
        for batch in stream {
            taken = match batch {
                Ok(batch) => self.append_batch(&mut appender, &reader, &batch, &mut rows),
                Err(error) => Err(AppendFailure::Wrong(format!(
                    "the rows behind row {rows} could not be read: {error}"
                ))),
            };
            if taken.is_err() || self.progress.is_cancelled.load(Ordering::Acquire) {
                break;
            }
        }
        let finished = appender.finish().map_err(AppendFailure::from);
        self.progress.acknowledged.store(appender.records_appended(), Ordering::Release);
        let remarks = appender.take_remarks().join("; ");
        let window = appender.window().map_or(Ok(()), |window| window.judge());
        let window = window.map_err(|error| AppendFailure::Wrong(format!("{error}: {remarks}")));
        taken.and(finished).and(window)
    }

    /// Appends a batch, of which `rows` rows come before it in the frame.
    fn append_batch(
        &self,
        appender: &mut RecordAppender<'_>,
        reader: &BatchReader<'_>,
        batch: &RecordBatch,
        rows: &mut u64,
    ) -> Result<(), AppendFailure> {
        let size = usize::from(appender.schema().record_bytes);
        for begin in (0..batch.num_rows()).step_by(ROWS_AT_ONCE) {
            let part = batch.slice(begin, ROWS_AT_ONCE.min(batch.num_rows() - begin));
            let read = reader.records(&part);
            for (row, record) in (*rows..).zip(read.records.chunks_exact(size)) {
                appender.push(row, record)?;
            }
            self.progress.acknowledged.store(appender.records_appended(), Ordering::Release);
            if let Some(WrongRow { row, why }) = read.wrong {
                return Err(AppendFailure::Wrong(format!("row {}: {why}", *rows + row as u64)));
            }
            *rows += part.num_rows() as u64;
            if self.progress.is_cancelled.load(Ordering::Acquire) {
                break;
            }
        }
        Ok(())
    }
}

/// A word about the index of a pandas frame, which comes as a column that no table has.
fn with_hint(words: &str) -> String {
    let hint = match words.contains("__index_level_") {
        true => " (the index of a pandas frame: frame.reset_index(drop=True) leaves it away)",
        false => "",
    };
    format!("{words}{hint}")
}
