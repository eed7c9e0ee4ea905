//! [`Tables`] and [`Snapshot`]: recordings and users' files as tables of Arrow columns.
//!
//! What reads tables (SQL, Flight, Python, the command line) knows nothing of how the store keeps
//! them. A table is opened at one moment. Rows have numbers, and are selected by numbers and times.
//!
//! A user's file is a table. A recording `r` has four tables:
//!
//! | table | its rows |
//! |---|---|
//! | `r.messages` | every message, in the columns that traders ask for, typed and without fillers |
//! | `r.trades` | every execution, with the price and the side of the order that rested |
//! | `r.quotes` | the best bid and ask of a symbol, at each nanosecond that changed them |
//! | `r.raw` | every message, with all columns of an export, the bytes of the message too |
//!
//! A recorder writes `trades` and `quotes` beside the messages (the module `derived`), and
//! `evenfall store derive` makes them for recordings that lack them. Where the store has no rows,
//! order books make both tables out of the messages while they are read. Such a scan reads all
//! messages of a stream in front of the rows that it gives, and one part holds whole streams. The
//! number of rows is unknown either way ([`TableInfo::rows`]): rows are selected by the numbers of
//! messages.

mod batches;
mod books;
mod columns;
mod opened;
mod shredded;

use std::collections::BTreeMap;
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{ArrowError, SchemaRef};
use evenfall_feed_formats::books::BooksConfig;
use evenfall_feed_formats::itch::Stock;
use evenfall_store_engine::columns::{Columns, arrow_schema, record_batch};
use evenfall_store_engine::{FieldColumns, Listed, RecordSource, StoreError};
use evenfall_store_format::{Field, Schema};

use self::batches::{MessageTable, fields_of};
use self::books::{BookSnapshot, BookTable};
pub use self::columns::PRICE_DIGITS;
use self::opened::{OpenedRecording, StillEdges};
use self::shredded::read_events;
use crate::catalog::Catalog;
use crate::depth::{BookDepth, DepthTime};
use crate::names::near_names;
use crate::replay::records_of_times;
use crate::rows::MessageRow;
use crate::snapshot::{RecordingSnapshot, RowSelection};
use crate::times::{RangeEnd, TimeArg, TimeRangeError, is_of_day};

/// Rows of a batch.
pub const BATCH_ROWS: usize = 8_192;
/// Bytes of records that are read at once.
const READ_BYTES: u64 = 1 << 20;

/// Why tables could not be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum TableError {
    /// An error of the store.
    Store(StoreError),
    /// An error of Arrow.
    Arrow(ArrowError),
    /// There is no table of this name.
    UnknownTable(TableName),
    /// A column that the table does not have.
    UnknownColumn {
        /// The table.
        table: TableName,
        /// Place of the column.
        column: usize,
    },
    /// A recording has more orders at a time than its books follow. Trades and quotes would be
    /// wrong from there on.
    TooManyOrders {
        /// The table.
        table: TableName,
        /// The orders that are followed ([`StoreTables::with_books`]).
        orders_max: usize,
    },
    /// There is no recording of this name.
    UnknownRecording {
        /// The name.
        name: String,
        /// The recordings of the store.
        known: Vec<String>,
    },
    /// No message of the recording names this symbol.
    UnknownSymbol {
        /// The recording.
        recording: String,
        /// The symbol; `None` asked for the only security of messages that name none.
        symbol: Option<String>,
        /// The symbols of the recording.
        known: Vec<String>,
    },
    /// The time of a book is no moment of its recording.
    WrongTime {
        /// The recording.
        recording: String,
        /// What is wrong.
        error: TimeRangeError,
    },
}

impl std::fmt::Display for TableError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Store(error) => error.fmt(f),
            Self::Arrow(error) => error.fmt(f),
            Self::UnknownTable(name) => write!(f, "there is no table {name}"),
            Self::UnknownColumn { table, column } => {
                write!(f, "table {table} has no column at place {column}")
            }
            Self::TooManyOrders { table, orders_max } => {
                write!(f, "table {table}: more than {orders_max} orders are in the books at a time")
            }
            Self::UnknownRecording { name, known } => {
                write!(f, "there is no recording {name}{}", near_names(name, known))
            }
            Self::UnknownSymbol { recording, symbol: Some(symbol), known } => {
                let near = near_names(symbol, known);
                write!(f, "no message of {recording} names the symbol {symbol}{near}")
            }
            Self::UnknownSymbol { recording, symbol: None, .. } => {
                write!(f, "the messages of {recording} name their symbols: name one of them")
            }
            Self::WrongTime { recording, error } => {
                write!(f, "the time of a book of {recording}: {error}")
            }
        }
    }
}

impl std::error::Error for TableError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store(error) => error.source(),
            Self::Arrow(error) => error.source(),
            Self::WrongTime { error, .. } => error.source(),
            Self::UnknownTable(_)
            | Self::UnknownColumn { .. }
            | Self::TooManyOrders { .. }
            | Self::UnknownRecording { .. }
            | Self::UnknownSymbol { .. } => None,
        }
    }
}

impl From<StoreError> for TableError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<ArrowError> for TableError {
    fn from(error: ArrowError) -> Self {
        Self::Arrow(error)
    }
}

/// The name of a table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TableName {
    /// The recording; `None` for a user's file.
    pub recording: Option<String>,
    /// The file, or the recording's table.
    pub table: String,
}

impl TableName {
    /// A user's file.
    pub fn of_file(file: &str) -> Self {
        Self { recording: None, table: file.to_owned() }
    }

    /// A table of a recording.
    pub fn of_recording(recording: &str, table: &str) -> Self {
        Self { recording: Some(recording.to_owned()), table: table.to_owned() }
    }
}

impl std::fmt::Display for TableName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.recording {
            Some(recording) => write!(f, "{recording}.{}", self.table),
            None => f.write_str(&self.table),
        }
    }
}

/// What is known of a table at one moment.
#[derive(Clone, Debug)]
pub struct TableInfo {
    /// Its name.
    pub name: TableName,
    /// Its columns.
    pub schema: SchemaRef,
    /// The columns by which the rows are sorted.
    pub sorted_by: Vec<&'static str>,
    /// Its rows; `None` for a table that is made while it is read, because only reading all of it
    /// tells.
    pub rows: Option<u64>,
    /// The first and the last time by which rows are indexed; `None` without rows. For a table that
    /// is made while it is read, the times of the messages out of which it is made.
    pub times: Option<(i64, i64)>,
}

/// Sum, least and greatest value of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnSummary {
    /// Place of the column.
    pub column: usize,
    /// Exact sum, in units of the column's last decimal.
    pub sum: i128,
    /// Least value.
    pub least: i128,
    /// Greatest value.
    pub greatest: i128,
}

/// What the index knows about some rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowSummary {
    /// Number of rows; `None` where only reading them tells.
    pub count: Option<u64>,
    /// The first and the last time by which the rows are indexed; `None` without rows, and where
    /// the index does not tell.
    pub times: Option<(i64, i64)>,
    /// Columns of which the index keeps sum and extremes.
    pub columns: Vec<ColumnSummary>,
}

/// The tables of a store.
pub trait Tables: Send + Sync {
    /// The name of every table. None of them is opened.
    ///
    /// # Errors
    /// The errors of the store.
    fn names(&self) -> Result<Vec<TableName>, TableError>;

    /// Every table. Each is opened for its times and its size.
    ///
    /// # Errors
    /// The errors of the store.
    fn tables(&self) -> Result<Vec<TableInfo>, TableError>;

    /// A table at this moment. Every append that had returned is in it.
    ///
    /// # Errors
    /// [`TableError::UnknownTable`], and the errors of the store.
    fn open(&self, name: &TableName) -> Result<Arc<dyn Snapshot>, TableError>;

    /// The same tables for one statement: all tables of a recording end at one message, which is
    /// the last one when the first of the tables is opened.
    fn at_one_moment(&self) -> Arc<dyn Tables>;

    /// The book of a symbol. `goes_on` is asked before each message. Once it says no, reading ends,
    /// and the answer is of no use.
    ///
    /// # Errors
    /// [`TableError::UnknownRecording`], [`TableError::UnknownSymbol`], [`TableError::WrongTime`]
    /// and the errors of the store.
    fn read_book(
        &self,
        asked: &BookRequest,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<BookDepth, TableError>;
}

/// Which book is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BookRequest {
    /// The recording.
    pub recording: String,
    /// The symbol; `None` for the only security of messages that name none, such as LOBSTER's.
    pub symbol: Option<String>,
    /// The book is that after all messages which state this time or an earlier one. A date stands
    /// for its midnight.
    pub time: TimeArg,
    /// Levels of each side at most.
    pub levels: usize,
}

/// A table at one moment.
pub trait Snapshot: Send + Sync {
    /// Name, columns and size of the table.
    fn info(&self) -> &TableInfo;

    /// All rows.
    fn rows(&self) -> RowSelection;

    /// The rows from one time to another, both included.
    ///
    /// # Errors
    /// The errors of the store.
    fn between(&self, from_ns: i64, to_ns: i64) -> Result<RowSelection, TableError>;

    /// The rows in at most `n` parts, which are cut where segments of the store end. A table that
    /// is made while it is read is cut where streams end.
    fn parts(&self, rows: &RowSelection, n: usize) -> Vec<RowSelection>;

    /// What the index knows about these rows.
    ///
    /// # Errors
    /// The errors of the store.
    fn summary(&self, rows: &RowSelection) -> Result<RowSummary, TableError>;

    /// Gives these columns of the rows in batches of at most [`BATCH_ROWS`] rows, until `each`
    /// breaks. `each` may read from the same tables. Other columns are not decoded. A scan that
    /// finds no row for long gives batches without rows, so that `each` can break.
    ///
    /// # Errors
    /// [`TableError::UnknownColumn`], and the errors of the store.
    fn scan(
        &self,
        rows: &RowSelection,
        columns: &[usize],
        each: &mut dyn FnMut(RecordBatch) -> ControlFlow<()>,
    ) -> Result<(), TableError>;
}

/// The tables of a store in this process, of a server, of objects alone, or of a cluster.
#[derive(Clone)]
pub struct StoreTables {
    source: Arc<dyn RecordSource>,
    books: BooksConfig,
    /// The recordings that a statement has opened; `None` for tables of no single statement.
    moment: Option<Arc<Mutex<OpenedRecordings>>>,
    /// Recordings whose rows nobody writes any more.
    still: Arc<StillEdges>,
}

/// Recordings at one moment, by name.
type OpenedRecordings = BTreeMap<String, Arc<OpenedRecording>>;

impl StoreTables {
    /// Tables over this source.
    pub fn new(source: Arc<dyn RecordSource>) -> Self {
        let still = Arc::new(StillEdges::default());
        Self { source, books: BooksConfig::default(), moment: None, still }
    }

    /// Sets the limit of the books out of which trades and quotes are made.
    #[must_use]
    pub fn with_books(self, books: BooksConfig) -> Self {
        Self { books, ..self }
    }

    fn file(&self, file: &Listed) -> Result<FileSnapshot, TableError> {
        Ok(FileSnapshot::open(&self.source, file)?)
    }

    /// The recording of this name, as it is now or as the statement found it before; `None` when
    /// there is no such recording.
    fn opened(
        &self,
        catalog: &Catalog,
        name: &str,
    ) -> Result<Option<Arc<OpenedRecording>>, TableError> {
        let open = || -> Result<Option<Arc<OpenedRecording>>, TableError> {
            let Some(files) = catalog.recording(name) else { return Ok(None) };
            Ok(Some(Arc::new(OpenedRecording::open(&self.source, files, &self.still)?)))
        };
        let Some(moment) = &self.moment else { return open() };
        // The lock is held while the recording is opened, so that two tables of a statement which
        // are opened side by side do not open it twice.
        let mut moment = moment.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = moment.get(name) {
            return Ok(Some(Arc::clone(opened)));
        }
        let opened = open()?;
        if let Some(opened) = &opened {
            moment.insert(name.to_owned(), Arc::clone(opened));
        }
        Ok(opened)
    }

    fn recording(
        &self,
        opened: Arc<OpenedRecording>,
        table: RecordingTable,
    ) -> Result<Arc<dyn Snapshot>, TableError> {
        Ok(match table {
            RecordingTable::Message(table) => {
                Arc::new(MessageSnapshot::open(Arc::clone(&opened.snapshot), table)?)
            }
            RecordingTable::Book(table) => Arc::new(BookSnapshot::open(opened, table, self.books)?),
        })
    }
}

/// A table that every recording has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordingTable {
    /// With a row for every message.
    Message(MessageTable),
    /// Made out of order books.
    Book(BookTable),
}

impl RecordingTable {
    const ALL: [Self; 4] = [
        Self::Message(MessageTable::Messages),
        Self::Book(BookTable::Trades),
        Self::Book(BookTable::Quotes),
        Self::Message(MessageTable::Raw),
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Message(table) => table.name(),
            Self::Book(table) => table.name(),
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.name() == name)
    }
}

impl Tables for StoreTables {
    fn names(&self) -> Result<Vec<TableName>, TableError> {
        let catalog = Catalog::read(&*self.source)?;
        let files = catalog.files().map(|file| TableName::of_file(&file.name));
        let of_recordings = catalog.recordings().flat_map(|recording| {
            let tables = RecordingTable::ALL.into_iter();
            tables.map(|table| TableName::of_recording(&recording.name, table.name()))
        });
        Ok(files.chain(of_recordings).collect())
    }

    fn tables(&self) -> Result<Vec<TableInfo>, TableError> {
        let catalog = Catalog::read(&*self.source)?;
        let mut all = Vec::new();
        for file in catalog.files() {
            all.push(self.file(file)?.info);
        }
        for recording in catalog.recordings() {
            let opened = Arc::new(OpenedRecording::to_list(&self.source, recording)?);
            for table in RecordingTable::ALL {
                all.push(self.recording(Arc::clone(&opened), table)?.info().clone());
            }
        }
        Ok(all)
    }

    fn open(&self, name: &TableName) -> Result<Arc<dyn Snapshot>, TableError> {
        let catalog = Catalog::read(&*self.source)?;
        let unknown = || TableError::UnknownTable(name.clone());
        let Some(recording) = &name.recording else {
            let file = catalog.file(&name.table).ok_or_else(unknown)?;
            return Ok(Arc::new(self.file(file)?));
        };
        let table = RecordingTable::named(&name.table).ok_or_else(unknown)?;
        let opened = self.opened(&catalog, recording)?.ok_or_else(unknown)?;
        self.recording(opened, table)
    }

    fn at_one_moment(&self) -> Arc<dyn Tables> {
        let moment = Some(Arc::new(Mutex::new(OpenedRecordings::new())));
        Arc::new(Self { moment, ..self.clone() })
    }

    fn read_book(
        &self,
        asked: &BookRequest,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<BookDepth, TableError> {
        let catalog = Catalog::read(&*self.source)?;
        let name = &asked.recording;
        let Some(opened) = self.opened(&catalog, name)? else {
            let known = catalog.recordings().map(|recording| recording.name.clone()).collect();
            return Err(TableError::UnknownRecording { name: name.clone(), known });
        };
        let opened = &opened.snapshot;
        let at = DepthTime::Stated(moment_of(opened, asked.time)?);
        let symbol = asked.symbol.as_deref();
        // A text that is no symbol of any venue is a symbol that no message names.
        let stock = symbol.map(Stock::new);
        let found = match stock {
            Some(None) => None,
            Some(stock) => opened.depth(stock, at, asked.levels, goes_on)?,
            None => opened.depth(None, at, asked.levels, goes_on)?,
        };
        if let Some(found) = found {
            return Ok(found);
        }
        // A symbol that only later messages name has an empty book.
        let known = opened.named_symbols(goes_on)?;
        let is_named_later = match symbol {
            Some(symbol) => known.iter().any(|other| other == symbol.trim_end()),
            None => known.is_empty(),
        };
        match is_named_later {
            true => Ok(BookDepth::default()),
            false => Err(TableError::UnknownSymbol {
                recording: name.clone(),
                symbol: asked.symbol.clone(),
                known,
            }),
        }
    }
}

/// The instant of a time, by the clock of the recording's venue.
fn moment_of(recording: &RecordingSnapshot, time: TimeArg) -> Result<i64, TableError> {
    let wrong = |error| TableError::WrongTime { recording: recording.name().to_owned(), error };
    let clock = recording.venue_clock()?;
    let mut only_day = None;
    if time.lacks_day()
        && let Some((first, last)) = recording.span()?.filter(|(first, _)| !is_of_day(*first))
    {
        let date = clock.date_of(first).filter(|date| clock.date_of(last) == Some(*date));
        only_day = Some(date.ok_or_else(|| wrong(TimeRangeError::SeveralDays))?);
    }
    let at = time.resolve(clock, only_day, RangeEnd::First);
    at.ok_or_else(|| wrong(TimeRangeError::Beyond))
}

/// Messages as rows of a recording's table `messages`, with all of its columns.
///
/// # Errors
/// The errors of Arrow.
pub fn messages_batch(rows: &[MessageRow]) -> Result<RecordBatch, ArrowError> {
    let places: Vec<usize> = (0..MessageTable::Messages.schema().fields().len()).collect();
    MessageTable::Messages.batch(rows, &places)
}

/// The columns of the table at these places.
fn check_columns(info: &TableInfo, columns: &[usize]) -> Result<(), TableError> {
    let wrong = columns.iter().find(|column| **column >= info.schema.fields().len());
    match wrong {
        Some(column) => {
            Err(TableError::UnknownColumn { table: info.name.clone(), column: *column })
        }
        None => Ok(()),
    }
}

/// A batch without columns, which says how many rows there are.
fn of_rows(rows: usize) -> Result<RecordBatch, ArrowError> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let schema = Arc::new(arrow_schema::Schema::empty());
    RecordBatch::try_new_with_options(schema, Vec::new(), &options)
}

/// A user's file at one moment.
struct FileSnapshot {
    info: TableInfo,
    source: Arc<dyn RecordSource>,
    file: Listed,
    numbers: std::ops::Range<u64>,
}

impl FileSnapshot {
    fn open(source: &Arc<dyn RecordSource>, file: &Listed) -> Result<Self, StoreError> {
        let numbers = source.between(&file.name, i64::MIN, i64::MAX)?;
        let time = |number: u64| -> Result<i64, StoreError> {
            let record = source.numbers(&file.name, number..number + 1)?;
            Ok(evenfall_store_format::layout::record_time(&record))
        };
        let times = match numbers.is_empty() {
            true => None,
            false => Some((time(numbers.start)?, time(numbers.end - 1)?)),
        };
        let info = TableInfo {
            name: TableName::of_file(&file.name),
            schema: arrow_schema(&file.schema),
            sorted_by: Vec::from(["time"]),
            rows: Some(numbers.end - numbers.start),
            times,
        };
        Ok(Self { info, source: Arc::clone(source), file: file.clone(), numbers })
    }

    fn records_of_times(
        &self,
        times: &RangeInclusive<i64>,
    ) -> Result<std::ops::Range<u64>, StoreError> {
        records_of_times(&*self.source, &self.file.name, self.numbers.clone(), times)
    }

    /// The numbers of records that are selected.
    fn selected(&self, rows: &RowSelection) -> Result<Vec<std::ops::Range<u64>>, StoreError> {
        let within = match rows.times == crate::snapshot::ALL_TIMES {
            true => self.numbers.clone(),
            false => self.records_of_times(&rows.times)?,
        };
        let cut = |range: &std::ops::Range<u64>| {
            range.start.max(within.start).max(self.numbers.start)
                ..range.end.min(within.end).min(self.numbers.end)
        };
        Ok(rows.ranges.iter().map(cut).filter(|range| !range.is_empty()).collect())
    }
}

impl Snapshot for FileSnapshot {
    fn info(&self) -> &TableInfo {
        &self.info
    }

    fn rows(&self) -> RowSelection {
        RowSelection::of(Vec::from([self.numbers.clone()]))
    }

    fn between(&self, from_ns: i64, to_ns: i64) -> Result<RowSelection, TableError> {
        // Records that were appended since the snapshot are no part of it.
        let numbers = self.records_of_times(&(from_ns..=to_ns))?;
        Ok(RowSelection::of(Vec::from([numbers])))
    }

    fn parts(&self, rows: &RowSelection, n: usize) -> Vec<RowSelection> {
        let layout = self.file.schema.layout();
        rows.parts(n, layout.map_or(1, |layout| layout.records_per_segment()))
    }

    fn summary(&self, rows: &RowSelection) -> Result<RowSummary, TableError> {
        let mut all: Option<evenfall_store_format::index::Summary> = None;
        for numbers in self.selected(rows)? {
            match (&mut all, self.source.summary(&self.file.name, numbers)?) {
                (Some(all), Some(more)) => all.merge(&more),
                (none, more) => *none = more.or(none.take()),
            }
        }
        let none = RowSummary { count: Some(0), ..RowSummary::default() };
        let Some(all) = all else { return Ok(none) };
        let kept = self.file.schema.fields.iter().enumerate().filter(|(_, field)| field.aggregate);
        let columns = kept.zip(&all.aggregates).map(|((column, _), aggregate)| ColumnSummary {
            column,
            sum: aggregate.sum,
            least: aggregate.min,
            greatest: aggregate.max,
        });
        let times = Some((all.min_ns, all.max_ns));
        Ok(RowSummary { count: Some(all.count), times, columns: columns.collect() })
    }

    fn scan(
        &self,
        rows: &RowSelection,
        columns: &[usize],
        each: &mut dyn FnMut(RecordBatch) -> ControlFlow<()>,
    ) -> Result<(), TableError> {
        check_columns(&self.info, columns)?;
        let mut schema = self.file.schema.clone();
        schema.fields = columns.iter().map(|at| self.file.schema.fields[*at].clone()).collect();
        let size = u64::from(schema.record_bytes);
        let at_once = (READ_BYTES / size).clamp(1, BATCH_ROWS as u64);
        for numbers in self.selected(rows)? {
            let mut next = numbers.start;
            while next < numbers.end {
                let found = self.source.read_fields(&self.file.name, next..numbers.end, columns)?;
                if let Some(found) = found {
                    next += found.records;
                    if give_fields(&schema, &found, each)?.is_break() {
                        return Ok(());
                    }
                    continue;
                }
                let until = (next + at_once).min(numbers.end);
                let batch = if columns.is_empty() {
                    of_rows((until - next) as usize)?
                } else {
                    let mut values = Columns::new(&schema, (until - next) as usize);
                    values.extend(&self.source.numbers(&self.file.name, next..until)?);
                    values.take()?
                };
                next = until;
                if each(batch).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// Gives records whose fields lie field by field, in batches.
fn give_fields(
    schema: &Schema,
    found: &FieldColumns,
    each: &mut dyn FnMut(RecordBatch) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, TableError> {
    let arrow = arrow_schema(schema);
    // A field by itself is a record that has nothing else.
    let alone = |field: &Field| {
        let (record_bytes, field) = (field.len, Field { offset: 0, ..field.clone() });
        Schema { record_bytes, fields: Vec::from([field]), ..schema.clone() }
    };
    let alone: Vec<Schema> = schema.fields.iter().map(alone).collect();
    let records = found.records as usize;
    for from in (0..records).step_by(BATCH_ROWS) {
        let to = (from + BATCH_ROWS).min(records);
        let columns = alone.iter().zip(&found.fields).map(|(schema, bytes)| {
            let len = usize::from(schema.record_bytes);
            let batch = record_batch(schema, &bytes[from * len..to * len])?;
            Ok(Arc::clone(batch.column(0)))
        });
        let columns = columns.collect::<Result<Vec<_>, ArrowError>>()?;
        if each(RecordBatch::try_new(Arc::clone(&arrow), columns)?).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// `messages` or `raw` of a recording at one moment.
struct MessageSnapshot {
    info: TableInfo,
    recording: Arc<RecordingSnapshot>,
    table: MessageTable,
}

impl MessageSnapshot {
    fn open(recording: Arc<RecordingSnapshot>, table: MessageTable) -> Result<Self, TableError> {
        let info = TableInfo {
            name: TableName::of_recording(recording.name(), table.name()),
            schema: table.schema(),
            sorted_by: Vec::from(table.sorted_by()),
            rows: Some(recording.count(&recording.rows())?),
            times: recording.span()?,
        };
        Ok(Self { info, recording, table })
    }
}

impl Snapshot for MessageSnapshot {
    fn info(&self) -> &TableInfo {
        &self.info
    }

    fn rows(&self) -> RowSelection {
        self.recording.rows()
    }

    fn between(&self, from_ns: i64, to_ns: i64) -> Result<RowSelection, TableError> {
        let times: RangeInclusive<i64> = from_ns..=to_ns;
        Ok(self.recording.between(times)?)
    }

    fn parts(&self, rows: &RowSelection, n: usize) -> Vec<RowSelection> {
        // The files of a stream's sizes end their segments at different messages.
        rows.parts(n, 1)
    }

    fn summary(&self, rows: &RowSelection) -> Result<RowSummary, TableError> {
        let count = Some(self.recording.count(rows)?);
        let is_whole = *rows == self.recording.rows();
        let times = self.info.times.filter(|_| is_whole);
        Ok(RowSummary { count, times, columns: Vec::new() })
    }

    fn scan(
        &self,
        rows: &RowSelection,
        columns: &[usize],
        each: &mut dyn FnMut(RecordBatch) -> ControlFlow<()>,
    ) -> Result<(), TableError> {
        check_columns(&self.info, columns)?;
        let mut gathered: Vec<MessageRow> = Vec::with_capacity(BATCH_ROWS);
        let mut has_ended = false;
        let mut give = |gathered: &mut Vec<MessageRow>| -> Result<ControlFlow<()>, TableError> {
            let batch = match columns.is_empty() {
                true => of_rows(gathered.len())?,
                false => self.table.batch(gathered, columns)?,
            };
            gathered.clear();
            Ok(each(batch))
        };
        let mut take = |row: MessageRow| -> Result<ControlFlow<()>, TableError> {
            gathered.push(row);
            if gathered.len() < BATCH_ROWS {
                return Ok(ControlFlow::Continue(()));
            }
            let answer = give(&mut gathered)?;
            has_ended = answer.is_break();
            Ok(answer)
        };
        match self.table {
            MessageTable::Messages => {
                let fields = fields_of(columns);
                read_events(&self.recording, rows, &fields, &mut take)?;
            }
            MessageTable::Raw => self.recording.read(rows, None, &mut take)?,
        }
        if !has_ended && !gathered.is_empty() {
            let _ = give(&mut gathered)?;
        }
        Ok(())
    }
}
