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
//! The columns are those of the codec of the recording's messages. ITCH and LOBSTER share theirs. A
//! format with columns of its own ([`has_own_columns`]) has them in `messages`, a row for each
//! statement of a datagram, with the decimals of the venue. Its `trades` and `quotes` are made out
//! of what the codec says of price levels ([`market_codec`]), and are refused by the format's name
//! where it says nothing of them.
//!
//! [`has_own_columns`]: evenfall_feed_formats::codec::Codec::has_own_columns
//! [`market_codec`]: evenfall_feed_formats::codec::Codec::market_codec
//!
//! A recorder writes `trades` and `quotes` beside the messages (the module `derived`), and
//! `evenfall store derive` makes them for recordings that lack them. Where the store has no rows,
//! order books make both tables out of the messages while they are read. Such a scan reads all
//! messages of a stream in front of the rows that it gives, and one part holds whole streams. The
//! number of rows is unknown either way ([`TableInfo::rows`]): rows are selected by the numbers of
//! messages.

mod batches;
mod books;
mod coded;
mod columns;
mod market;
mod messages;
mod opened;
mod refused;
mod shredded;
mod user_files;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{ArrowError, SchemaRef};
use evenfall_feed_formats::books::BooksConfig;
use evenfall_feed_formats::codec;
use evenfall_feed_formats::itch::Symbols;
use evenfall_store_engine::{FileListing, RecordSource, StoreError};

use self::batches::MessageTable;
use self::books::{BookSnapshot, BookTable};
use self::coded::{CodedSnapshot, coded_batch};
pub use self::columns::{PRICE_DIGITS, price_type_of};
use self::market::MarketSnapshot;
use self::messages::MessageSnapshot;
use self::opened::{OpenedRecording, StillEdges};
use self::refused::RefusedSnapshot;
use self::user_files::FileSnapshot;
use crate::catalog::Catalog;
use crate::depth::{BookDepth, DepthTime};
use crate::names::near_names;
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
    /// The codec of the recording reads no rows of this table out of the messages.
    NotGiven {
        /// The table.
        table: TableName,
        /// The name of the format.
        format: String,
    },
    /// The messages of a stream are about more securities than books are kept.
    TooManyBooks {
        /// The table.
        table: TableName,
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
            Self::NotGiven { table, format } => {
                let recording = table.recording.as_deref().unwrap_or("the recording");
                write!(
                    f,
                    "table {table}: messages of {format} are not read into it; what is read of \
                     them is in {recording}.messages, and their bytes are in {recording}.raw and \
                     in what `evenfall store export` writes"
                )
            }
            Self::TooManyBooks { table } => {
                write!(f, "table {table}: the messages are about more securities than have books")
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
            | Self::NotGiven { .. }
            | Self::TooManyBooks { .. }
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

    /// What the index knows about these rows. It knows nothing of rows that are made out of
    /// messages when they are read.
    ///
    /// # Errors
    /// The errors of the store.
    fn summary(&self, _rows: &RowSelection) -> Result<RowSummary, TableError> {
        Ok(RowSummary::default())
    }

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

    fn file(&self, file: &FileListing) -> Result<FileSnapshot, TableError> {
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
        let recording = Arc::clone(&opened.snapshot);
        let table = match table {
            RecordingTable::Message(table) => {
                return Ok(match recording.own_codec() {
                    Some(codec) if table == MessageTable::Messages => {
                        Arc::new(CodedSnapshot::open(recording, codec)?)
                    }
                    _ => Arc::new(MessageSnapshot::open(recording, table)?),
                });
            }
            RecordingTable::Book(table) => table,
        };
        if let Some(format) = recording.bookless_format() {
            return Ok(Arc::new(RefusedSnapshot::open(recording, format, table)?));
        }
        let market = recording.own_codec().and_then(|codec| Some((codec, codec.market_codec()?)));
        Ok(match market {
            Some((codec, market)) => {
                Arc::new(MarketSnapshot::open(recording, market, codec.format(), table)?)
            }
            None => Arc::new(BookSnapshot::open(opened, table, self.books)?),
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
        let found = opened.depth_of(symbol, at, asked.levels, goes_on)?;
        if let Some(found) = found {
            return Ok(found);
        }
        // A symbol that only later messages name has an empty book.
        let known = opened.named_symbols(goes_on)?;
        let is_named_later = match symbol {
            Some(symbol) => known.iter().any(|other| other == symbol.trim_end()),
            // The only security of a recording has no name in its messages.
            None => known.is_empty() || opened.only_symbol().is_some(),
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

/// Messages as rows of their recording's table `messages`, with all columns of the codec of the
/// first message. `symbols` has the names that earlier messages gave, and learns those of these.
///
/// # Errors
/// The errors of Arrow.
pub fn recorded_batch(
    rows: &[MessageRow],
    symbols: &mut Symbols,
) -> Result<RecordBatch, ArrowError> {
    let codec = rows.first().and_then(|row| codec::of(row.recorded.format?));
    match codec.filter(|codec| codec.has_own_columns()) {
        Some(codec) => coded_batch(rows, codec, symbols),
        None => messages_batch(rows),
    }
}

/// Events as rows of the table `messages` of ITCH, with all of its columns. The bytes of the
/// messages are not needed.
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
