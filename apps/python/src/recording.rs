//! `Recording`: the tables of a recording, the book at a time, and rows as they come.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arrow_array::builder::{Decimal128Builder, Int64Builder, StringBuilder};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{ArrowError, DataType, Field, Schema};
use evenfall::recording::{MessageRow, RecordingFollower, TableName};
use evenfall::store::StoreError;
use evenfall_feed_formats::codec::TimeOrigin;
use evenfall_feed_formats::itch::Symbols;
use evenfall_store_recording::tables::recorded_batch;
use evenfall_store_recording::times::{TimeArg, TimeRangeError, resolve_range};
use evenfall_store_recording::{BookDepth, DepthTime};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{RowsError, not_found, wrong_argument};
use crate::place::StorePlace;
use crate::rows::Rows;
use crate::table_rows::{TableQuestion, TableRows, zone_of, zoned_messages};
use crate::times::{on_day, time_of};
use crate::waits::{run_beside, wait_for};

/// A recording of a feed.
#[pyclass(frozen, name = "Recording", module = "evenfall")]
pub(crate) struct PyRecording {
    place: Arc<StorePlace>,
    name: String,
}

/// A question before the recording is opened, which tells the venue's clock.
#[derive(Default)]
struct AskedRows {
    table: String,
    symbol: Option<String>,
    start: Option<TimeArg>,
    end: Option<TimeArg>,
    columns: Option<Vec<String>>,
    last: Option<usize>,
}

impl AskedRows {
    fn of_table(table: &str) -> Self {
        Self { table: table.to_owned(), ..Self::default() }
    }

    /// The rows, checked against the recording.
    fn into_rows(self, place: Arc<StorePlace>, recording: &str) -> PyResult<TableRows> {
        let opened = place.recording(recording)?;
        let clock = opened.venue_clock().map_err(RowsError::from)?;
        let span = opened.span().map_err(RowsError::from)?;
        let is_cut = self.start.or(self.end).is_some();
        let times = resolve_range(self.start, self.end, clock, span).map_err(|error| {
            let hint = match error {
                TimeRangeError::SeveralDays => ", or the argument date",
                _ => "",
            };
            wrong_argument(format!("{error}{hint}"))
        })?;
        if let Some((first, last)) = span
            && is_cut
            && (*times.end() < first || *times.start() > last)
        {
            let (first, last) = (instant_words(first, clock), instant_words(last, clock));
            return Err(not_found(format!(
                "no message between these times; recording {recording} reaches from {first} to \
                 {last} ({})",
                zone_of(clock)
            )));
        }
        let name = TableName::of_recording(recording, &self.table);
        let Self { symbol, columns, last, .. } = self;
        let question = TableQuestion { name, times, symbol, columns, last };
        Ok(TableRows::new(place, question, clock)?)
    }
}

/// An instant by the venue's clock, to the second.
fn instant_words(ns: i64, clock: TimeOrigin) -> String {
    let wall_ns = clock.wall_ns(ns).unwrap_or(ns);
    match u64::try_from(wall_ns) {
        Ok(wall_ns) => {
            let at = std::time::UNIX_EPOCH + Duration::from_nanos(wall_ns);
            humantime::format_rfc3339_seconds(at).to_string().replace('T', " ").replace('Z', "")
        }
        Err(_) => format!("{ns} ns"),
    }
}

impl PyRecording {
    pub(crate) fn new(place: &Arc<StorePlace>, name: String) -> Self {
        Self { place: Arc::clone(place), name }
    }

    fn ask_rows(&self, py: Python<'_>, asked: AskedRows) -> PyResult<Rows> {
        let (place, name) = (Arc::clone(&self.place), self.name.clone());
        let rows = run_beside(py, move || asked.into_rows(place, &name))?;
        Ok(Rows::new(rows?))
    }
}

/// The keyword arguments that all tables take.
const TABLE_KEYWORDS: [&str; 4] = ["date", "start", "end", "columns"];

impl AskedRows {
    /// Rows of a table by the arguments that all tables share.
    fn by_keywords(
        table: &str,
        symbol: Option<String>,
        keywords: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let mut asked = Self { symbol, ..Self::of_table(table) };
        let Some(keywords) = keywords else { return Ok(asked) };
        let unknown = keywords.keys().iter().find(|key| {
            key.extract::<String>().map_or(true, |key| !TABLE_KEYWORDS.contains(&key.as_str()))
        });
        if let Some(unknown) = unknown {
            let known = TABLE_KEYWORDS.join(", ");
            let words = format!("{table} has no argument {unknown}; it has symbol, {known}");
            return Err(PyTypeError::new_err(words));
        }
        let value = |key: &str| keywords.get_item(key);
        let time = |key: &str| time_of(key, value(key)?.as_ref());
        let day = time("date")?;
        asked.start = on_day(time("start")?, day)?;
        asked.end = on_day(time("end")?, day)?;
        asked.columns = value("columns")?.map(|columns| columns.extract()).transpose()?.flatten();
        Ok(asked)
    }
}

#[pymethods]
impl PyRecording {
    /// Name of the recording.
    #[getter(name)]
    fn recording_name(&self) -> &str {
        &self.name
    }

    /// The zone of the venue's clock, such as `America/New_York`.
    #[getter(zone)]
    fn zone_name(&self, py: Python<'_>) -> PyResult<&'static str> {
        let (place, name) = (Arc::clone(&self.place), self.name.clone());
        let clock = run_beside(py, move || -> Result<TimeOrigin, RowsError> {
            Ok(place.recording(&name)?.venue_clock()?)
        })?;
        Ok(zone_of(clock?))
    }

    /// Every message, typed.
    #[pyo3(
        name = "messages",
        signature = (symbol = None, **keywords),
        text_signature = "($self, symbol=None, *, date=None, start=None, end=None, columns=None)"
    )]
    fn select_messages(
        &self,
        py: Python<'_>,
        symbol: Option<String>,
        keywords: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Rows> {
        self.ask_rows(py, AskedRows::by_keywords("messages", symbol, keywords)?)
    }

    /// Every execution, with its price and side.
    #[pyo3(
        name = "trades",
        signature = (symbol = None, **keywords),
        text_signature = "($self, symbol=None, *, date=None, start=None, end=None, columns=None)"
    )]
    fn select_trades(
        &self,
        py: Python<'_>,
        symbol: Option<String>,
        keywords: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Rows> {
        self.ask_rows(py, AskedRows::by_keywords("trades", symbol, keywords)?)
    }

    /// The best bid and ask at each nanosecond that changed them.
    #[pyo3(
        name = "quotes",
        signature = (symbol = None, **keywords),
        text_signature = "($self, symbol=None, *, date=None, start=None, end=None, columns=None)"
    )]
    fn select_quotes(
        &self,
        py: Python<'_>,
        symbol: Option<String>,
        keywords: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Rows> {
        self.ask_rows(py, AskedRows::by_keywords("quotes", symbol, keywords)?)
    }

    /// Every message with all columns of an export, its bytes too.
    #[pyo3(
        name = "raw",
        signature = (symbol = None, **keywords),
        text_signature = "($self, symbol=None, *, date=None, start=None, end=None, columns=None)"
    )]
    fn select_raw(
        &self,
        py: Python<'_>,
        symbol: Option<String>,
        keywords: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Rows> {
        self.ask_rows(py, AskedRows::by_keywords("raw", symbol, keywords)?)
    }

    /// The last rows of a table.
    #[pyo3(
        name = "tail",
        signature = (n = 10, *, table = "messages", symbol = None, columns = None)
    )]
    fn last_rows(
        &self,
        py: Python<'_>,
        n: usize,
        table: &str,
        symbol: Option<String>,
        columns: Option<Vec<String>>,
    ) -> PyResult<Rows> {
        let asked = AskedRows { symbol, columns, last: Some(n), ..AskedRows::of_table(table) };
        self.ask_rows(py, asked)
    }

    /// The levels of a book at a time.
    #[pyo3(name = "book", signature = (symbol, *, at = None, date = None, levels = 10))]
    fn read_book(
        &self,
        py: Python<'_>,
        symbol: String,
        at: Option<&Bound<'_, PyAny>>,
        date: Option<&Bound<'_, PyAny>>,
        levels: usize,
    ) -> PyResult<Rows> {
        let at = on_day(time_of("at", at)?, time_of("date", date)?)?;
        let (place, name) = (Arc::clone(&self.place), self.name.clone());
        let title = format!("the book of {symbol} in {name}");
        let read = move || -> PyResult<RecordBatch> {
            let opened = place.recording(&name)?;
            let clock = opened.venue_clock().map_err(RowsError::from)?;
            let span = opened.span().map_err(RowsError::from)?;
            let times = resolve_range(None, at, clock, span)
                .map_err(|error| wrong_argument(error.to_string()))?;
            let at = DepthTime::Indexed(*times.end());
            let depth = opened.depth_of(Some(&symbol), at, levels, &|| true);
            let depth = depth.map_err(RowsError::from)?.ok_or_else(|| {
                not_found(format!("no message of {name} has named {symbol} by then"))
            })?;
            Ok(depth_batch(&depth).map_err(RowsError::from)?)
        };
        let batch = run_beside(py, read)??;
        Ok(Rows::of_batch(&title, TimeOrigin::Epoch, batch))
    }

    /// Messages as they are recorded, as batches without end.
    #[pyo3(name = "live", signature = (symbol = None, *, last = 0))]
    fn follow_rows(&self, py: Python<'_>, symbol: Option<String>, last: u64) -> PyResult<LiveRows> {
        if !self.place.is_served() {
            return Err(wrong_argument(format!(
                "{}: nobody writes a directory while it is read; follow the server or the recorder \
                 that serves, evenfall.open(\"tcp://127.0.0.1:7410\")",
                self.place.name()
            )));
        }
        let (place, name) = (Arc::clone(&self.place), self.name.clone());
        let begun = run_beside(py, move || -> Result<LiveState, RowsError> {
            let opened = place.recording(&name)?;
            let clock = opened.venue_clock()?;
            let follower = RecordingFollower::beginning_with(&opened, last)?;
            Ok(LiveState { follower, clock, symbols: Symbols::new() })
        })?;
        let title = format!("messages of {}", self.name);
        Ok(LiveRows { title, symbol, state: Mutex::new(begun?) })
    }

    fn __repr__(&self) -> String {
        format!("<Recording {} of {}>", self.name, self.place.name())
    }
}

/// The levels of a book as rows: bids first, the best of each side first.
fn depth_batch(depth: &BookDepth) -> Result<RecordBatch, ArrowError> {
    let price = depth.price_type();
    let (mut sides, mut ranks) = (StringBuilder::new(), Int64Builder::new());
    let mut prices = Decimal128Builder::new().with_data_type(price.clone());
    let (mut shares, mut orders) = (Int64Builder::new(), Int64Builder::new());
    let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    for (side, levels) in [("B", &depth.bids), ("S", &depth.asks)] {
        for (rank, level) in (1..).zip(levels) {
            sides.append_value(side);
            ranks.append_value(rank);
            prices.append_value(i128::from(level.price));
            shares.append_value(whole(level.shares));
            orders.append_value(whole(level.orders));
        }
    }
    let columns: [(&str, DataType, ArrayRef); 5] = [
        ("side", DataType::Utf8, Arc::new(sides.finish())),
        ("level", DataType::Int64, Arc::new(ranks.finish())),
        ("price", price, Arc::new(prices.finish())),
        ("shares", DataType::Int64, Arc::new(shares.finish())),
        ("orders", DataType::Int64, Arc::new(orders.finish())),
    ];
    let fields = columns.iter().map(|(name, kind, _)| Field::new(*name, kind.clone(), false));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    RecordBatch::try_new(schema, columns.map(|(_, _, column)| column).into())
}

/// How far a recording has been followed.
struct LiveState {
    follower: RecordingFollower,
    clock: TimeOrigin,
    /// Names of securities that the messages since then have told.
    symbols: Symbols,
}

/// Batches of a recording that still grows.
#[pyclass(frozen, module = "evenfall")]
pub(crate) struct LiveRows {
    title: String,
    symbol: Option<String>,
    state: Mutex<LiveState>,
}

impl LiveRows {
    /// The messages that have come, within this time; `None` when none have.
    fn read_new(&self, time: Duration) -> Option<Result<RecordBatch, RowsError>> {
        let until = std::time::Instant::now() + time;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let clock = state.clock;
        let is_wanted = |row: &MessageRow| match (&self.symbol, row.event.symbol) {
            (Some(wanted), Some(symbol)) => symbol.trimmed() == wanted.as_bytes(),
            (wanted, _) => wanted.is_none(),
        };
        loop {
            let mut rows: Vec<MessageRow> = Vec::new();
            let read = state.follower.read_new::<StoreError>(&mut |row| {
                if is_wanted(&row) {
                    rows.push(row);
                }
                Ok(())
            });
            if let Err(error) = read {
                return Some(Err(error.into()));
            }
            if !rows.is_empty() {
                let batch = recorded_batch(&rows, &mut state.symbols)
                    .and_then(|batch| zoned_messages(&batch, clock));
                return Some(batch.map_err(RowsError::from));
            }
            if std::time::Instant::now() >= until {
                return None;
            }
            if let Err(error) = state.follower.wait_new(until) {
                return Some(Err(error.into()));
            }
        }
    }
}

#[pymethods]
impl LiveRows {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Rows> {
        let batch = wait_for(py, |time| self.read_new(time))??;
        let clock = self.state.lock().unwrap_or_else(PoisonError::into_inner).clock;
        Ok(Rows::of_batch(&self.title, clock, batch))
    }
}
