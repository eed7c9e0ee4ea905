//! [`Rows`]: rows that leave as Arrow batches, a fresh stream at each request.
//!
//! Tables of the store are read by a call that pushes batches, and Arrow's streams are pulled. A
//! thread therefore reads for each stream, and stops as soon as the stream is dropped:
//!
//! ```text
//!  reading thread: source.read --> [ batch, batch ] --> stream: next batch --> Polars, DuckDB, ...
//!                                  two may wait
//! ```

use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use evenfall_feed_formats::codec::TimeOrigin;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use crate::bars::BarRows;
use crate::capsule::{schema_capsule, stream_capsule};
use crate::errors::{RowsError, wrong_argument};
use crate::waits::{LOOK_EVERY, expect_own_process, is_main_thread, wait_for};

/// Batches that wait between the reading thread and its stream: one to read while the other one is
/// computed with.
const WAITING_BATCHES: usize = 2;

/// Where rows come from.
pub(crate) trait RowSource: Send + Sync {
    /// What the rows are, for `repr`.
    fn title(&self) -> String;

    /// The columns of every batch.
    fn schema(&self) -> SchemaRef;

    /// The clock by which people read the rows' times.
    fn clock(&self) -> TimeOrigin {
        TimeOrigin::Epoch
    }

    /// All rows, when they are in memory.
    fn batches_in_memory(&self) -> Option<&[RecordBatch]> {
        None
    }

    /// Gives all rows, until `each` breaks.
    fn read(&self, each: &mut dyn FnMut(RecordBatch) -> ControlFlow<()>) -> Result<(), RowsError>;
}

/// Batches that are in memory.
struct ReadRows {
    title: String,
    clock: TimeOrigin,
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

impl RowSource for ReadRows {
    fn title(&self) -> String {
        self.title.clone()
    }

    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn clock(&self) -> TimeOrigin {
        self.clock
    }

    fn batches_in_memory(&self) -> Option<&[RecordBatch]> {
        Some(&self.batches)
    }

    fn read(&self, each: &mut dyn FnMut(RecordBatch) -> ControlFlow<()>) -> Result<(), RowsError> {
        let _ = self.batches.iter().cloned().try_for_each(each);
        Ok(())
    }
}

/// The batches of one request, read by a thread. Those in memory need no thread.
struct RowStream {
    schema: SchemaRef,
    batches: Receiver<Result<RecordBatch, RowsError>>,
}

impl RowStream {
    fn start(source: &Arc<dyn RowSource>) -> Self {
        let schema = source.schema();
        if let Some(read) = source.batches_in_memory() {
            let (to, batches) = sync_channel(read.len());
            // The channel has room for all of them.
            read.iter().for_each(|batch| drop(to.send(Ok(batch.clone()))));
            return Self { schema, batches };
        }
        let (to, batches) = sync_channel(WAITING_BATCHES);
        let source = Arc::clone(source);
        std::thread::spawn(move || {
            let read = source.read(&mut |batch| match to.send(Ok(batch)) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            });
            if let Err(error) = read {
                to.send(Err(error)).ok();
            }
        });
        Self { schema, batches }
    }

    /// The next batch; `Err` when it has not come in this time.
    fn next_within(&self, time: Duration) -> Result<Option<Result<RecordBatch, RowsError>>, ()> {
        match self.batches.recv_timeout(time) {
            Ok(batch) => Ok(Some(batch)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => Err(()),
        }
    }
}

/// A stream in the hands of a reader of another language, which looks for Ctrl-C in its place.
struct ForeignStream {
    stream: RowStream,
    looked_at: Instant,
}

impl ForeignStream {
    /// Whether Ctrl-C has come. Signals are handled on the main thread alone, and any other thread
    /// must not wait for the interpreter, which may wait for that thread.
    fn is_interrupted(&mut self) -> bool {
        if !is_main_thread() || self.looked_at.elapsed() < LOOK_EVERY {
            return false;
        }
        self.looked_at = Instant::now();
        if !has_raised_signal() {
            return false;
        }
        // The reader raises an error of its own for the broken stream. The signal is raised
        // again, so that `KeyboardInterrupt` follows when the reader returns to Python.
        // SAFETY: the call only marks the signal as come, and needs no lock.
        unsafe { pyo3::ffi::PyErr_SetInterrupt() };
        true
    }
}

/// Runs the handlers of signals that have come, on the main thread. Returns whether one raised.
///
/// PyO3 counts the calls of this crate by Python on a thread, and takes the interpreter's lock only
/// when there are none. Our method `arrow` calls PyArrow. PyArrow releases the lock and asks this
/// stream for batches, so that the count is 1 and the thread has no lock. `PyGILState_Ensure` asks
/// the interpreter itself.
fn has_raised_signal() -> bool {
    // SAFETY: `PyGILState_Ensure` takes the lock when this thread does not have it, and the
    // handlers run between it and `PyGILState_Release`. The main thread has a state in the
    // interpreter as long as that is initialised.
    unsafe {
        if pyo3::ffi::Py_IsInitialized() == 0 {
            return false;
        }
        let state = pyo3::ffi::PyGILState_Ensure();
        let has_raised = pyo3::ffi::PyErr_CheckSignals() != 0;
        if has_raised {
            pyo3::ffi::PyErr_Clear();
        }
        pyo3::ffi::PyGILState_Release(state);
        has_raised
    }
}

impl Iterator for ForeignStream {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.is_interrupted() {
                return Some(Err(ArrowError::ExternalError("interrupted".into())));
            }
            if let Ok(next) = self.stream.next_within(LOOK_EVERY) {
                let error = |error: RowsError| ArrowError::ExternalError(error.to_string().into());
                return next.map(|batch| batch.map_err(error));
            }
        }
    }
}

impl RecordBatchReader for ForeignStream {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.stream.schema)
    }
}

/// Rows of a table. Nothing is read until a reader asks, and every request reads anew.
#[pyclass(frozen, module = "evenfall")]
pub(crate) struct Rows {
    source: Arc<dyn RowSource>,
}

impl Rows {
    pub(crate) fn new(source: impl RowSource + 'static) -> Self {
        Self { source: Arc::new(source) }
    }

    /// Rows that are in memory.
    pub(crate) fn of_batch(title: &str, clock: TimeOrigin, batch: RecordBatch) -> Self {
        let (title, schema) = (title.to_owned(), batch.schema());
        Self::new(ReadRows { title, clock, schema, batches: Vec::from([batch]) })
    }

    /// Reads all rows into memory.
    fn read_all(&self, py: Python<'_>) -> PyResult<Self> {
        let stream = Mutex::new(RowStream::start(&self.source));
        let mut batches = Vec::new();
        while let Some(batch) = next_batch(py, &stream)? {
            batches.push(batch);
        }
        let (title, clock) = (self.source.title(), self.source.clock());
        Ok(Self::new(ReadRows { title, clock, schema: self.source.schema(), batches }))
    }
}

fn next_batch(py: Python<'_>, stream: &Mutex<RowStream>) -> PyResult<Option<RecordBatch>> {
    let next = wait_for(py, |time| {
        stream.lock().unwrap_or_else(PoisonError::into_inner).next_within(time).ok()
    })?;
    Ok(next.transpose()?)
}

#[pymethods]
impl Rows {
    /// Names of the columns, in order.
    #[getter(columns)]
    fn column_names(&self) -> Vec<String> {
        self.source.schema().fields().iter().map(|field| field.name().clone()).collect()
    }

    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // The interface lets a producer ignore the wish for other types.
        let _ = requested_schema;
        expect_own_process()?;
        let stream = RowStream::start(&self.source);
        stream_capsule(py, Box::new(ForeignStream { stream, looked_at: Instant::now() }))
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, &self.source.schema())
    }

    /// Iterates over batches, each as Rows.
    fn __iter__(&self) -> PyResult<Batches> {
        expect_own_process()?;
        let (title, clock) = (self.source.title(), self.source.clock());
        Ok(Batches { title, clock, stream: Mutex::new(RowStream::start(&self.source)) })
    }

    /// Reads all rows into memory, once.
    fn collect(&self, py: Python<'_>) -> PyResult<Self> {
        self.read_all(py)
    }

    /// Counts the rows by reading them.
    #[pyo3(name = "count")]
    fn count_rows(&self, py: Python<'_>) -> PyResult<usize> {
        let stream = Mutex::new(RowStream::start(&self.source));
        let mut rows = 0;
        while let Some(batch) = next_batch(py, &stream)? {
            rows += batch.num_rows();
        }
        Ok(rows)
    }

    /// A Polars DataFrame.
    #[pyo3(name = "polars")]
    fn to_polars<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let rows = self.read_all(py)?;
        py.import("polars")?.call_method1("DataFrame", (rows,))
    }

    /// A PyArrow Table.
    #[pyo3(name = "arrow")]
    fn to_arrow<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let rows = self.read_all(py)?;
        py.import("pyarrow")?.call_method1("table", (rows,))
    }

    /// A pandas DataFrame with nullable types.
    #[pyo3(name = "pandas")]
    fn to_pandas<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let table = self.to_arrow(py)?;
        let options = PyDict::new(py);
        options.set_item("types_mapper", py.import("pandas")?.getattr("ArrowDtype")?)?;
        table.call_method("to_pandas", (), Some(&options))
    }

    /// Bars of these trades.
    #[pyo3(name = "bars")]
    fn bars_of(&self, width: &Bound<'_, PyAny>) -> PyResult<Self> {
        let width = crate::times::duration_of(width)?;
        let bars = BarRows::new(Arc::clone(&self.source), width);
        bars.map(Self::new).map_err(wrong_argument)
    }

    fn __repr__(&self) -> String {
        format!("<Rows of {}: {}>", self.source.title(), self.column_names().join(", "))
    }
}

/// Batches of rows, as they are read.
#[pyclass(frozen, module = "evenfall")]
pub(crate) struct Batches {
    title: String,
    clock: TimeOrigin,
    stream: Mutex<RowStream>,
}

#[pymethods]
impl Batches {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Rows>> {
        let batch = next_batch(py, &self.stream)?;
        Ok(batch.map(|batch| Rows::of_batch(&self.title, self.clock, batch)))
    }
}
