//! The tables `trades` and `quotes`: what [`Books`] makes of a recording's messages.
//!
//! **Neither table is stored yet.** Both are made while they are read. A book is known only from
//! its first message on, so each scan reads all messages of a stream that lie in front of the rows
//! that it gives, and a stream is never cut into parts. The store will keep both tables beside the
//! messages later. Until then nobody knows the number of rows before reading them.
//!
//! Rows have the numbers and the times of messages. A trade has those of its message. A quote has
//! those of the last message of its nanosecond, because only that message completes the quote:
//!
//! ```text
//!  message   0       1       2       3       4
//!  ns        1       2       2       2       3
//!  quotes    of 0                    of 3    of 4
//! ```
//!
//! The end of a nanosecond is known from the next message, so that a scan reads up to the first
//! message behind its rows. The end of the snapshot ends the last nanosecond.
//!
//! The books of a stream begin empty at the first message that retention has left. Orders from
//! before are unknown: they are in no quote, and their executions have neither price nor side.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::ArrowError;
use evenfall_feed_formats::books::{BookRow, Books, BooksConfig, OrderSide, QuoteRow, TradeRow};

use super::columns::{
    MessagePlace, TableColumn, boolean_array, longs, place_array, prices, schema_of, signed,
    symbol_array, texts,
};
use super::{
    BATCH_ROWS, RowSummary, Snapshot, TableError, TableInfo, TableName, check_columns, of_rows,
};
use crate::snapshot::{ALL_TIMES, RecordingSnapshot, RowSelection, StreamSnapshot};

/// A table that is made out of order books.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BookTable {
    Trades,
    Quotes,
}

/// The columns of `trades`, in order.
const TRADE_COLUMNS: [TableColumn; 14] = [
    TableColumn::Time,
    TableColumn::Utc,
    TableColumn::Recorded,
    TableColumn::Ts,
    TableColumn::Stream,
    TableColumn::Seq,
    TableColumn::Type,
    TableColumn::Symbol,
    TableColumn::Price,
    TableColumn::Shares,
    TableColumn::Side,
    TableColumn::OrderRef,
    TableColumn::Match,
    TableColumn::Printable,
];

/// The columns of `quotes`, in order.
const QUOTE_COLUMNS: [TableColumn; 10] = [
    TableColumn::Time,
    TableColumn::Utc,
    TableColumn::Recorded,
    TableColumn::Ts,
    TableColumn::Stream,
    TableColumn::Symbol,
    TableColumn::Bid,
    TableColumn::BidSize,
    TableColumn::Ask,
    TableColumn::AskSize,
];

impl BookTable {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Trades => "trades",
            Self::Quotes => "quotes",
        }
    }

    fn columns(self) -> &'static [TableColumn] {
        match self {
            Self::Trades => &TRADE_COLUMNS,
            Self::Quotes => &QUOTE_COLUMNS,
        }
    }

    fn sorted_by(self) -> &'static [&'static str] {
        match self {
            Self::Trades => &["stream", "seq"],
            // Venues' times begin anew each day.
            Self::Quotes => &["stream"],
        }
    }
}

/// A row with the place of its message.
struct PlacedRow<T> {
    place: MessagePlace,
    row: T,
}

/// The rows of a table that wait for their batch.
enum GatheredRows {
    Trades(Vec<PlacedRow<TradeRow>>),
    Quotes(Vec<PlacedRow<QuoteRow>>),
}

impl GatheredRows {
    fn new(table: BookTable) -> Self {
        match table {
            BookTable::Trades => Self::Trades(Vec::with_capacity(BATCH_ROWS)),
            BookTable::Quotes => Self::Quotes(Vec::with_capacity(BATCH_ROWS)),
        }
    }

    /// Adds a row of this table. A row of the other table is dropped.
    fn add(&mut self, place: MessagePlace, row: BookRow) {
        match (self, row) {
            (Self::Trades(all), BookRow::Trade(row)) => {
                all.push(PlacedRow { place: place.with_event_time(Some(row.time_ns)), row });
            }
            (Self::Quotes(all), BookRow::Quote(row)) => {
                all.push(PlacedRow { place: place.with_event_time(Some(row.time_ns)), row });
            }
            _ => {}
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Trades(all) => all.len(),
            Self::Quotes(all) => all.len(),
        }
    }

    /// Takes the rows out as a batch of these columns.
    fn take_batch(&mut self, columns: &[TableColumn]) -> Result<RecordBatch, ArrowError> {
        if columns.is_empty() {
            let batch = of_rows(self.len())?;
            self.clear();
            return Ok(batch);
        }
        let arrays = columns.iter().map(|column| match self {
            Self::Trades(all) => trade_array(*column, all),
            Self::Quotes(all) => quote_array(*column, all),
        });
        let arrays = arrays.collect::<Result<_, _>>()?;
        self.clear();
        RecordBatch::try_new(schema_of(columns), arrays)
    }

    fn clear(&mut self) {
        match self {
            Self::Trades(all) => all.clear(),
            Self::Quotes(all) => all.clear(),
        }
    }
}

fn trade_array(column: TableColumn, rows: &[PlacedRow<TradeRow>]) -> Result<ArrayRef, ArrowError> {
    if let Some(array) = place_array(column, rows.iter().map(|placed| placed.place)) {
        return Ok(array);
    }
    let trades = rows.iter().map(|placed| &placed.row);
    Ok(match column {
        TableColumn::Type => texts(trades.map(|trade| Some(trade.kind))),
        TableColumn::Symbol => symbol_array(trades.map(|trade| trade.symbol)),
        TableColumn::Price => prices(trades.map(|trade| trade.price))?,
        TableColumn::Shares => longs(trades.map(|trade| signed(Some(trade.shares)))),
        TableColumn::Side => texts(trades.map(|trade| trade.side.map(side_text))),
        TableColumn::OrderRef => longs(trades.map(|trade| signed(trade.order_reference))),
        TableColumn::Match => longs(trades.map(|trade| signed(trade.match_number))),
        TableColumn::Printable => boolean_array(trades.map(|trade| Some(trade.printable))),
        other => unreachable!("trades have no column {other:?}"),
    })
}

fn side_text(side: OrderSide) -> &'static str {
    match side {
        OrderSide::Bid => "B",
        OrderSide::Ask => "S",
    }
}

fn quote_array(column: TableColumn, rows: &[PlacedRow<QuoteRow>]) -> Result<ArrayRef, ArrowError> {
    if let Some(array) = place_array(column, rows.iter().map(|placed| placed.place)) {
        return Ok(array);
    }
    let quotes = rows.iter().map(|placed| &placed.row);
    Ok(match column {
        TableColumn::Symbol => symbol_array(quotes.map(|quote| quote.symbol)),
        TableColumn::Bid => prices(quotes.map(|quote| quote.bid.map(|top| top.price)))?,
        TableColumn::BidSize => longs(quotes.map(|quote| signed(quote.bid.map(|top| top.shares)))),
        TableColumn::Ask => prices(quotes.map(|quote| quote.ask.map(|top| top.price)))?,
        TableColumn::AskSize => longs(quotes.map(|quote| signed(quote.ask.map(|top| top.shares)))),
        other => unreachable!("quotes have no column {other:?}"),
    })
}

/// `trades` or `quotes` of a recording at one moment.
pub(super) struct BookSnapshot {
    info: TableInfo,
    recording: Arc<RecordingSnapshot>,
    table: BookTable,
    config: BooksConfig,
}

impl BookSnapshot {
    pub(super) fn open(
        recording: Arc<RecordingSnapshot>,
        table: BookTable,
        config: BooksConfig,
    ) -> Result<Self, TableError> {
        let info = TableInfo {
            name: TableName::of_recording(recording.name(), table.name()),
            schema: schema_of(table.columns()),
            sorted_by: table.sorted_by().to_vec(),
            rows: None,
            times: recording.span()?,
        };
        Ok(Self { info, recording, table, config })
    }

    /// The selected messages of each stream of which any are selected.
    fn selected<'a>(
        &'a self,
        rows: &'a RowSelection,
    ) -> Vec<(&'a StreamSnapshot, Vec<Range<u64>>)> {
        let mut streams: Vec<(&'a StreamSnapshot, Vec<Range<u64>>)> = Vec::new();
        for (stream, numbers) in self.recording.selected(rows) {
            match streams.last_mut().filter(|(last, _)| last.stream() == stream.stream()) {
                Some((_, all)) => all.push(numbers),
                None => streams.push((stream, Vec::from([numbers]))),
            }
        }
        streams
    }
}

/// A scan of one stream: its books, and which of their rows are given.
struct StreamBooks<'a> {
    stream: &'a StreamSnapshot,
    /// Selected messages, in order.
    numbers: &'a [Range<u64>],
    times: &'a std::ops::RangeInclusive<i64>,
    books: Books,
    /// Rows of the message that is taken.
    made: Vec<BookRow>,
    /// The message in front.
    last: Option<MessagePlace>,
}

impl StreamBooks<'_> {
    fn is_selected(&self, place: &MessagePlace) -> bool {
        let at = self.numbers.partition_point(|range| range.end <= place.number);
        self.numbers.get(at).is_some_and(|range| range.contains(&place.number))
            && self.times.contains(&place.indexed_ns)
    }

    /// Adds the selected rows that were made. Quotes belong to the message in front, whose
    /// nanosecond has ended.
    fn gather(&mut self, taken: Option<MessagePlace>, gathered: &mut GatheredRows) {
        let mut made = std::mem::take(&mut self.made);
        for row in made.drain(..) {
            let place = match row {
                BookRow::Trade(_) => taken,
                BookRow::Quote(_) => self.last,
            };
            if let Some(place) = place.filter(|place| self.is_selected(place)) {
                gathered.add(place, row);
            }
        }
        // The list keeps its room.
        self.made = made;
    }
}

impl BookSnapshot {
    /// Gathers the selected rows of a stream, and gives each full batch to `give`.
    fn read_stream(
        &self,
        mut of: StreamBooks<'_>,
        gathered: &mut GatheredRows,
        give: &mut dyn FnMut(&mut GatheredRows) -> Result<ControlFlow<()>, TableError>,
    ) -> Result<ControlFlow<()>, TableError> {
        let end = of.numbers.last().map_or(0, |range| range.end);
        let untagged = self.recording.untagged_format()?;
        let source = &**self.recording.source();
        let mut replay = of.stream.replay(source, of.stream.numbers(), &ALL_TIMES)?;
        while let Some(recorded) = replay.next_message()? {
            let format = recorded.format.unwrap_or(untagged);
            let made = &mut of.made;
            if !of.books.take(format, &recorded.bytes, &mut |row| made.push(row)) {
                continue;
            }
            if of.books.counts().over_limit > 0 {
                let (table, orders_max) = (self.info.name.clone(), self.config.live_orders_max);
                return Err(TableError::TooManyOrders { table, orders_max });
            }
            let place = MessagePlace::of(of.stream.stream(), &recorded, format);
            of.gather(Some(place), gathered);
            of.last = Some(place);
            if gathered.len() >= BATCH_ROWS && give(gathered)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            if place.number >= end {
                return Ok(ControlFlow::Continue(()));
            }
        }
        let made = &mut of.made;
        of.books.end_nanosecond(&mut |row| made.push(row));
        of.gather(None, gathered);
        Ok(ControlFlow::Continue(()))
    }
}

impl Snapshot for BookSnapshot {
    fn info(&self) -> &TableInfo {
        &self.info
    }

    fn rows(&self) -> RowSelection {
        self.recording.rows()
    }

    fn between(&self, from_ns: i64, to_ns: i64) -> Result<RowSelection, TableError> {
        Ok(self.recording.between(from_ns..=to_ns)?)
    }

    fn parts(&self, rows: &RowSelection, n: usize) -> Vec<RowSelection> {
        self.recording.stream_parts(rows, n)
    }

    fn summary(&self, _: &RowSelection) -> Result<RowSummary, TableError> {
        Ok(RowSummary::default())
    }

    fn scan(
        &self,
        rows: &RowSelection,
        columns: &[usize],
        each: &mut dyn FnMut(RecordBatch) -> ControlFlow<()>,
    ) -> Result<(), TableError> {
        check_columns(&self.info, columns)?;
        let columns: Vec<TableColumn> =
            columns.iter().map(|at| self.table.columns()[*at]).collect();
        let mut gathered = GatheredRows::new(self.table);
        let mut give = |gathered: &mut GatheredRows| Ok(each(gathered.take_batch(&columns)?));
        for (stream, numbers) in self.selected(rows) {
            let of = StreamBooks {
                stream,
                numbers: &numbers,
                times: &rows.times,
                books: Books::new(self.config),
                made: Vec::new(),
                last: None,
            };
            if self.read_stream(of, &mut gathered, &mut give)?.is_break() {
                return Ok(());
            }
        }
        if gathered.len() > 0 {
            let _ = give(&mut gathered)?;
        }
        Ok(())
    }
}
