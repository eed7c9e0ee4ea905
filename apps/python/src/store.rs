//! `Store` and `Table`: what `evenfall.open` gives, and users' files in it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evenfall::recording::{Catalog, RecordingWriter, TableName};
use evenfall::store::StoreAckLevel;
use evenfall_feed_formats::Date;
use evenfall_feed_formats::capture::CopyChoice;
use evenfall_feed_formats::codec::TimeOrigin;
use evenfall_feed_formats::itch::Stock;
use evenfall_feed_service::input;
use evenfall_store_recording::intake::{FeedDay, IntakeFailure, expect_no_messages, record_feed};
use evenfall_store_recording::times::{TimeArg, resolve_range};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{input_error, intake_error, store_error, wrong_argument};
use crate::place::{StorePlace, expect_place};
use crate::recording::PyRecording;
use crate::rows::Rows;
use crate::table_append::append_frame;
use crate::table_rows::{TableQuestion, TableRows};
use crate::table_schema::{create_table, schema_of};
use crate::times::{time_of, window_of};
use crate::waits::run_beside;

/// Opens a store: its directory, `tcp://127.0.0.1:7410` of a server or of a recorder that serves,
/// or the place of its objects.
#[pyfunction]
#[pyo3(name = "open", signature = (place))]
pub(crate) fn open_store(py: Python<'_>, place: PathBuf) -> PyResult<PyStore> {
    let place = place.to_string_lossy().into_owned();
    expect_place(&place)?;
    let place = Arc::new(StorePlace::new(place));
    if place.is_served() {
        // A server that is not there is told at once.
        let server = Arc::clone(&place);
        run_beside(py, move || server.open().map(drop))??;
    }
    Ok(PyStore { place })
}

/// A store of recordings and tables.
#[pyclass(frozen, name = "Store", module = "evenfall")]
pub(crate) struct PyStore {
    place: Arc<StorePlace>,
}

impl PyStore {
    fn read_catalog(&self, py: Python<'_>) -> PyResult<Catalog> {
        let place = Arc::clone(&self.place);
        Ok(run_beside(py, move || place.catalog())??)
    }
}

#[pymethods]
impl PyStore {
    /// Where the store is.
    #[getter(place)]
    fn place_name(&self) -> &str {
        self.place.name()
    }

    /// The recordings, by name.
    #[pyo3(name = "recordings")]
    fn list_recordings(&self, py: Python<'_>) -> PyResult<Vec<PyRecording>> {
        let catalog = self.read_catalog(py)?;
        let names = catalog.recordings().map(|recording| recording.name.clone());
        Ok(names.map(|name| PyRecording::new(&self.place, name)).collect())
    }

    /// Users' files, by name.
    #[pyo3(name = "tables")]
    fn list_tables(&self, py: Python<'_>) -> PyResult<Vec<PyTable>> {
        let catalog = self.read_catalog(py)?;
        let names = catalog.files().map(|file| file.name.clone());
        Ok(names.map(|name| PyTable { place: Arc::clone(&self.place), name }).collect())
    }

    /// A recording or a user's file.
    fn __getitem__<'py>(&self, py: Python<'py>, name: String) -> PyResult<Bound<'py, PyAny>> {
        let catalog = self.read_catalog(py)?;
        let place = Arc::clone(&self.place);
        if catalog.recording(&name).is_some() {
            return Ok(Bound::new(py, PyRecording::new(&place, name))?.into_any());
        }
        if catalog.file(&name).is_some() {
            return Ok(Bound::new(py, PyTable { place, name })?.into_any());
        }
        Err(self.place.unknown(&name, &catalog).into())
    }

    /// Records a feed file under a name.
    #[pyo3(name = "record", signature = (name, feed, *, date = None, format = None, symbol = None))]
    fn record_file(
        &self,
        py: Python<'_>,
        name: String,
        feed: PathBuf,
        date: Option<&Bound<'_, PyAny>>,
        format: Option<String>,
        symbol: Option<String>,
    ) -> PyResult<PyRecording> {
        let date = match time_of("date", date)? {
            None => None,
            Some(TimeArg::Day(date)) => Some(date),
            Some(_) => return Err(wrong_argument("date is a day, such as 2019-12-30")),
        };
        self.place.directory()?;
        let place = Arc::clone(&self.place);
        let symbol = symbol.as_deref().map(stock_of).transpose()?;
        let intake = FileIntake { place, name: name.clone(), feed, date, format, symbol };
        let is_wanted = Arc::new(AtomicBool::new(true));
        let goes_on = Arc::clone(&is_wanted);
        let recorded = run_beside(py, move || intake.record_all(&goes_on));
        if recorded.is_err() {
            // Ctrl-C: the messages so far are recorded.
            is_wanted.store(false, Ordering::Release);
        }
        recorded??;
        Ok(PyRecording::new(&self.place, name))
    }

    /// Makes a table for rows of one's own.
    #[pyo3(
        name = "create",
        signature = (name, fields, *, price_decimals = 4, window = None, sequence = None)
    )]
    fn create_table(
        &self,
        py: Python<'_>,
        name: String,
        fields: &Bound<'_, PyDict>,
        price_decimals: u8,
        window: Option<&Bound<'_, PyAny>>,
        sequence: Option<String>,
    ) -> PyResult<PyTable> {
        let window = window.map(window_of).transpose()?.unwrap_or_default();
        let window_ns = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
        let schema = schema_of(fields, price_decimals, window_ns, sequence)?;
        let (place, of) = (Arc::clone(&self.place), name.clone());
        run_beside(py, move || create_table(&place, &of, &schema))??;
        Ok(PyTable { place: Arc::clone(&self.place), name })
    }

    /// Appends the rows of a frame to a table.
    #[pyo3(name = "append", signature = (name, rows, *, ack = "local"))]
    fn append_rows(
        &self,
        py: Python<'_>,
        name: &str,
        rows: &Bound<'_, PyAny>,
        ack: &str,
    ) -> PyResult<u64> {
        append_frame(py, &self.place, name, rows, ack)
    }

    /// Rows of a statement in SQL, by the program `evenfall-query`.
    #[pyo3(name = "query", signature = (sql, *, recording = None))]
    fn query_sql(&self, py: Python<'_>, sql: String, recording: Option<String>) -> PyResult<Rows> {
        crate::query::query_place(py, self.place.name().into(), sql, recording)
    }

    fn __repr__(&self) -> String {
        format!("<Store {}>", self.place.name())
    }
}

/// A feed file on its way into a recording.
struct FileIntake {
    place: Arc<StorePlace>,
    name: String,
    feed: PathBuf,
    date: Option<Date>,
    format: Option<String>,
    /// The symbol that the caller states.
    symbol: Option<Stock>,
}

/// A symbol of the caller.
fn stock_of(symbol: &str) -> PyResult<Stock> {
    let known = Stock::new(symbol).filter(|_| !symbol.is_empty() && !symbol.contains(' '));
    known.ok_or_else(|| wrong_argument("symbol is a symbol of one to eight letters"))
}

impl FileIntake {
    fn record_all(&self, is_wanted: &AtomicBool) -> PyResult<()> {
        let format = input::format_named(self.format.as_deref()).map_err(|e| input_error(&e))?;
        let mut messages =
            input::open_file(&self.feed, format).map_err(|e| input_error(&e))?.source;
        let date = input::date_of(&self.feed, &*messages, self.date);
        let damaged = |error| intake_error(&error);
        messages
            .choose_copies(CopyChoice::of_setting(None))
            .map_err(|error| damaged(error.into()))?;
        let store = self.place.open_to_write()?;
        let mut record = || -> PyResult<()> {
            let catalog = Catalog::read(&store).map_err(|error| store_error(&error))?;
            expect_no_messages(&store, &catalog, &self.name).map_err(damaged)?;
            let symbol = self.symbol.or(messages.only_symbol());
            let writer =
                RecordingWriter::of_symbol(&store, &self.name, StoreAckLevel::Local, symbol);
            let mut writer = writer.map_err(|error| store_error(&error))?;
            let mut goes_on = || is_wanted.load(Ordering::Acquire);
            let recorded = record_feed(&mut writer, &mut *messages, FeedDay { date }, &mut goes_on);
            recorded.map_err(|error| self.feed_error(&error))
        };
        let recorded = record();
        let closed = store.close().map_err(|error| store_error(&error));
        recorded.and(closed)
    }
}

impl FileIntake {
    /// The error of the feed, which its file does not name.
    fn feed_error(&self, error: &IntakeFailure) -> PyErr {
        match error {
            IntakeFailure::UnknownDay => wrong_argument(format!(
                "{}: {error}: give date=\"YYYY-MM-DD\", or a file name with the date, such as \
                 20191230.itch50",
                self.feed.display()
            )),
            error => intake_error(error),
        }
    }
}

/// A user's file of records.
#[pyclass(frozen, name = "Table", module = "evenfall")]
pub(crate) struct PyTable {
    place: Arc<StorePlace>,
    name: String,
}

#[pymethods]
impl PyTable {
    /// Name of the file.
    #[getter(name)]
    fn table_name(&self) -> &str {
        &self.name
    }

    /// Appends the rows of a frame.
    #[pyo3(name = "append", signature = (rows, *, ack = "local"))]
    fn append_rows(&self, py: Python<'_>, rows: &Bound<'_, PyAny>, ack: &str) -> PyResult<u64> {
        append_frame(py, &self.place, &self.name, rows, ack)
    }

    /// Rows of the file.
    #[pyo3(name = "rows", signature = (*, start = None, end = None, columns = None))]
    fn select_rows(
        &self,
        py: Python<'_>,
        start: Option<&Bound<'_, PyAny>>,
        end: Option<&Bound<'_, PyAny>>,
        columns: Option<Vec<String>>,
    ) -> PyResult<Rows> {
        let (start, end) = (time_of("start", start)?, time_of("end", end)?);
        let times = resolve_range(start, end, TimeOrigin::Epoch, None)
            .map_err(|error| wrong_argument(error.to_string()))?;
        let name = TableName::of_file(&self.name);
        let question = TableQuestion { name, times, symbol: None, columns, last: None };
        let place = Arc::clone(&self.place);
        let rows = run_beside(py, move || TableRows::new(place, question, TimeOrigin::Epoch))?;
        Ok(Rows::new(rows?))
    }

    fn __repr__(&self) -> String {
        format!("<Table {} of {}>", self.name, self.place.name())
    }
}
