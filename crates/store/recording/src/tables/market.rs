//! `trades` and `quotes` of formats that state price levels: what [`LevelBooks`] makes of their
//! messages.
//!
//! The columns have the names of the tables of ITCH, so that a statement runs over both. Prices
//! have the decimals of the venue, symbols have any length, and `security_id` is the venue's
//! number, which is there also where no message of the recording names the security.
//!
//! The rows are made while they are read, out of all messages of a stream in front of them, as in
//! [`books`](super::books). A row has the number and the times of its message.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{ArrowError, SchemaRef};
use evenfall_feed_formats::Format;
use evenfall_feed_formats::books::levels::{
    LevelBooks, MarketCodec, MarketMessage, MarketQuote, MarketRow, MarketTrade,
};

use super::books::{BookTable, UNHEARD_MESSAGES, WantedRows, selected_messages, side_text};
use super::columns::{
    MessagePlace, TableColumn, boolean_array, decimal_array, longs, place_array,
    schema_with_decimals, signed, texts,
};
use super::{BATCH_ROWS, Snapshot, TableError, TableInfo, TableName, check_columns, of_rows};
use crate::snapshot::{ALL_TIMES, RecordingSnapshot, RowSelection, StreamSnapshot};

/// The columns of `trades`, in order.
const TRADE_COLUMNS: [TableColumn; 13] = [
    TableColumn::Time,
    TableColumn::Utc,
    TableColumn::Recorded,
    TableColumn::Ts,
    TableColumn::Stream,
    TableColumn::Seq,
    TableColumn::Type,
    TableColumn::SecurityId,
    TableColumn::Symbol,
    TableColumn::Price,
    TableColumn::Shares,
    TableColumn::Side,
    TableColumn::Printable,
];

/// The columns of `quotes`, in order.
const QUOTE_COLUMNS: [TableColumn; 11] = [
    TableColumn::Time,
    TableColumn::Utc,
    TableColumn::Recorded,
    TableColumn::Ts,
    TableColumn::Stream,
    TableColumn::SecurityId,
    TableColumn::Symbol,
    TableColumn::Bid,
    TableColumn::BidSize,
    TableColumn::Ask,
    TableColumn::AskSize,
];

fn columns_of(table: BookTable) -> &'static [TableColumn] {
    match table {
        BookTable::Trades => &TRADE_COLUMNS,
        BookTable::Quotes => &QUOTE_COLUMNS,
    }
}

/// The rows of a table that wait for their batch, each with the place of its message.
struct MarketRows {
    table: BookTable,
    decimals: u8,
    places: Vec<MessagePlace>,
    /// Rows of `trades`.
    trades: Vec<MarketTrade>,
    /// Rows of `quotes`.
    quotes: Vec<MarketQuote>,
}

impl MarketRows {
    fn new(table: BookTable, decimals: u8) -> Self {
        let (places, trades, quotes) = (Vec::new(), Vec::new(), Vec::new());
        Self { table, decimals, places, trades, quotes }
    }

    /// Adds a row of the table. Rows of the other table are dropped.
    fn add_row(&mut self, place: MessagePlace, row: MarketRow) {
        let time_ns = match (self.table, row) {
            (BookTable::Trades, MarketRow::Trade(row)) => {
                let time_ns = row.time_ns;
                self.trades.push(row);
                time_ns
            }
            (BookTable::Quotes, MarketRow::Quote(row)) => {
                let time_ns = row.time_ns;
                self.quotes.push(row);
                time_ns
            }
            _ => return,
        };
        self.places.push(place.with_event_time(Some(time_ns)));
    }

    fn trade_array(&self, column: TableColumn) -> ArrayRef {
        let trades = self.trades.iter();
        let stated = trades.clone().map(|trade| trade.stated);
        match column {
            TableColumn::Type => texts(stated.map(|trade| Some(trade.kind))),
            TableColumn::SecurityId => longs(stated.map(|trade| Some(trade.security.into()))),
            TableColumn::Symbol => texts(trades.map(|trade| trade.name.as_deref())),
            TableColumn::Price => decimal_array(stated.map(|trade| trade.price), self.decimals),
            TableColumn::Shares => longs(stated.map(|trade| signed(Some(trade.size)))),
            TableColumn::Side => texts(stated.map(|trade| trade.resting.map(side_text))),
            // Trades that the venue takes back are not in the table.
            TableColumn::Printable => boolean_array(stated.map(|_| Some(true))),
            other => unreachable!("trades have no column {other:?}"),
        }
    }

    fn quote_array(&self, column: TableColumn) -> ArrayRef {
        let quotes = self.quotes.iter();
        let bids = quotes.clone().map(|quote| quote.bid);
        let asks = quotes.clone().map(|quote| quote.ask);
        match column {
            TableColumn::SecurityId => longs(quotes.map(|quote| Some(quote.security.into()))),
            TableColumn::Symbol => texts(quotes.map(|quote| quote.name.as_deref())),
            TableColumn::Bid => {
                decimal_array(bids.map(|top| top.map(|top| top.price)), self.decimals)
            }
            TableColumn::BidSize => longs(bids.map(|top| signed(top.map(|top| top.shares)))),
            TableColumn::Ask => {
                decimal_array(asks.map(|top| top.map(|top| top.price)), self.decimals)
            }
            TableColumn::AskSize => longs(asks.map(|top| signed(top.map(|top| top.shares)))),
            other => unreachable!("quotes have no column {other:?}"),
        }
    }

    /// Takes the rows out as a batch of these columns.
    fn take_batch(
        &mut self,
        schema: &SchemaRef,
        columns: &[usize],
    ) -> Result<RecordBatch, ArrowError> {
        let of_column = |at: &usize| {
            let column = columns_of(self.table)[*at];
            let of_place = place_array(column, self.places.iter().copied());
            of_place.unwrap_or_else(|| match self.table {
                BookTable::Trades => self.trade_array(column),
                BookTable::Quotes => self.quote_array(column),
            })
        };
        let batch = match columns.is_empty() {
            true => of_rows(self.places.len())?,
            false => {
                RecordBatch::try_new(Arc::clone(schema), columns.iter().map(of_column).collect())?
            }
        };
        self.places.clear();
        self.trades.clear();
        self.quotes.clear();
        Ok(batch)
    }
}

/// `trades` or `quotes` of a recording at one moment.
pub(super) struct MarketSnapshot {
    info: TableInfo,
    recording: Arc<RecordingSnapshot>,
    market: &'static dyn MarketCodec,
    /// The format of the messages that are read.
    format: Format,
    table: BookTable,
}

/// Gives a batch to the reader.
type GiveRows<'a> = dyn FnMut(&mut MarketRows) -> Result<ControlFlow<()>, TableError> + 'a;

impl MarketSnapshot {
    pub(super) fn open(
        recording: Arc<RecordingSnapshot>,
        market: &'static dyn MarketCodec,
        format: Format,
        table: BookTable,
    ) -> Result<Self, TableError> {
        let info = TableInfo {
            name: TableName::of_recording(recording.name(), table.name()),
            schema: schema_with_decimals(columns_of(table), market.price_decimals()),
            sorted_by: table.sorted_by().to_vec(),
            rows: None,
            times: recording.span()?,
        };
        Ok(Self { info, recording, market, format, table })
    }

    /// Gathers the wanted rows of a stream, and gives each full batch to `give`.
    fn make_rows(
        &self,
        stream: &StreamSnapshot,
        wanted: &WantedRows<'_>,
        gathered: &mut MarketRows,
        give: &mut GiveRows<'_>,
    ) -> Result<ControlFlow<()>, TableError> {
        let end = wanted.numbers.last().map_or(0, |range| range.end);
        let source = &**self.recording.source();
        let mut replay = stream.replay(source, stream.numbers(), &ALL_TIMES)?;
        let (mut books, mut indexed_ns, mut taken) = (LevelBooks::default(), i64::MIN, 0_usize);
        while let Some(recorded) = replay.next_message()? {
            taken += 1;
            // A whole day may have no wanted row.
            if taken.is_multiple_of(UNHEARD_MESSAGES) && give(gathered)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            indexed_ns = indexed_ns.max(recorded.indexed_ns);
            if recorded.format != Some(self.format) {
                continue;
            }
            let before_ns = books.present_ns();
            let place = MessagePlace::of(stream.stream(), &recorded, self.format);
            let place = place.indexed_at(indexed_ns);
            let recorded_ns = recorded.time_ns;
            let message = MarketMessage { bytes: &recorded.bytes, recorded_ns };
            books.take_message(self.market, message, place, &mut |place, row| {
                if wanted.has(&place) {
                    gathered.add_row(place, row);
                }
            });
            if books.over_limit() > 0 {
                return Err(TableError::TooManyBooks { table: self.info.name.clone() });
            }
            let is_behind = recorded.number >= end || indexed_ns > *wanted.times.end();
            if is_behind && (self.table == BookTable::Trades || books.present_ns() != before_ns) {
                return Ok(ControlFlow::Continue(()));
            }
            if gathered.places.len() >= BATCH_ROWS && give(gathered)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        books.end_nanosecond(&mut |place, row| {
            if wanted.has(&place) {
                gathered.add_row(place, row);
            }
        });
        Ok(ControlFlow::Continue(()))
    }
}

impl Snapshot for MarketSnapshot {
    fn info(&self) -> &TableInfo {
        &self.info
    }

    fn rows(&self) -> RowSelection {
        self.recording.rows()
    }

    fn between(&self, from_ns: i64, to_ns: i64) -> Result<RowSelection, TableError> {
        // A row is found by the greatest time so far, which the index of the messages lacks.
        Ok(RowSelection { times: from_ns..=to_ns, ..self.recording.rows() })
    }

    fn parts(&self, rows: &RowSelection, n: usize) -> Vec<RowSelection> {
        // A part makes its rows out of all messages of its stream, so a stream is one part.
        self.recording.stream_parts(rows, n)
    }

    fn scan(
        &self,
        rows: &RowSelection,
        columns: &[usize],
        each: &mut dyn FnMut(RecordBatch) -> ControlFlow<()>,
    ) -> Result<(), TableError> {
        check_columns(&self.info, columns)?;
        let schema: SchemaRef = Arc::new(self.info.schema.project(columns)?);
        let mut gathered = MarketRows::new(self.table, self.market.price_decimals());
        let mut give = |gathered: &mut MarketRows| Ok(each(gathered.take_batch(&schema, columns)?));
        let mut selected = selected_messages(&self.recording, rows);
        for stream in self.recording.streams() {
            let numbers: Option<Vec<Range<u64>>> = selected.remove(&stream.stream());
            let Some(numbers) = numbers else { continue };
            let wanted = WantedRows { stream: stream.stream(), numbers, times: &rows.times };
            if self.make_rows(stream, &wanted, &mut gathered, &mut give)?.is_break() {
                return Ok(());
            }
        }
        if !gathered.places.is_empty() {
            let _: ControlFlow<()> = give(&mut gathered)?;
        }
        Ok(())
    }
}
