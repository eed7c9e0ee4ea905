//! The tables `trades` and `quotes`: what [`Books`] makes of a recording's messages.
//!
//! The rows are read from the files in which a writer keeps them ([`crate::derived`]). Rows that
//! the store lacks are made while they are read: a book is known only from its first message on, so
//! such a scan reads all messages of a stream that lie in front of the rows that it gives, and the
//! stream is not cut into parts.
//!
//! Rows have the numbers and the times of messages. A trade has those of its message. A quote has
//! those of the message that made it, the last one of its nanosecond that changed the best prices
//! of the symbol:
//!
//! ```text
//!  message   0       1       2       3       4
//!  ns        1       2       2       2       3
//!  symbol    A       A       B       A       A
//!  quotes    of 0            of 2    of 3    of 4
//! ```
//!
//! The end of a nanosecond is known from the next one, so that a scan reads up to the first row or
//! message behind it. The end of the snapshot ends the last nanosecond.
//!
//! The books of a stream begin empty at the first message that retention has left. Orders from
//! before are unknown: they are in no quote, and their executions have neither price nor side.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range, RangeInclusive};
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::ArrowError;
use evenfall_feed_formats::books::{
    Books, BooksConfig, OrderSide, QuoteRow, QuoteTick, TickFolder, TickedRow, TradeRow,
};

use super::columns::{
    MessagePlace, TableColumn, boolean_array, longs, place_array, prices, schema_of, signed,
    symbol_array, texts,
};
use super::opened::OpenedRecording;
use super::{
    BATCH_ROWS, READ_BYTES, Snapshot, TableError, TableInfo, TableName, check_columns, of_rows,
};
use crate::derived::{DerivedRows, origin_of, tick_of, trade_of};
use crate::files::BOOK_RECORD_BYTES;
use crate::replay::{first_where, records_of_times};
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

    pub(super) fn columns(self) -> &'static [TableColumn] {
        match self {
            Self::Trades => &TRADE_COLUMNS,
            Self::Quotes => &QUOTE_COLUMNS,
        }
    }

    pub(super) fn sorted_by(self) -> &'static [&'static str] {
        match self {
            Self::Trades => &["stream", "seq"],
            // Venues' times begin anew each day.
            Self::Quotes => &["stream"],
        }
    }
}

/// Messages after which a reader gets a batch without rows, so that a reader that has gone is heard
/// before the end of the messages. They take some milliseconds.
pub(super) const UNHEARD_MESSAGES: usize = 16_384;

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

    /// No rows, and no room for any.
    fn empty(table: BookTable) -> Self {
        match table {
            BookTable::Trades => Self::Trades(Vec::new()),
            BookTable::Quotes => Self::Quotes(Vec::new()),
        }
    }

    /// Adds a trade. The table of quotes drops it.
    fn add_trade(&mut self, place: MessagePlace, row: TradeRow) {
        if let Self::Trades(all) = self {
            all.push(PlacedRow { place: place.with_event_time(Some(row.time_ns)), row });
        }
    }

    /// Adds a quote. The table of trades drops it.
    fn add_quote(&mut self, place: MessagePlace, row: QuoteRow) {
        if let Self::Quotes(all) = self {
            all.push(PlacedRow { place: place.with_event_time(Some(row.time_ns)), row });
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

pub(super) fn side_text(side: OrderSide) -> &'static str {
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
    opened: Arc<OpenedRecording>,
    table: BookTable,
    config: BooksConfig,
}

/// Which rows of a stream are asked for.
pub(super) struct WantedRows<'a> {
    pub(super) stream: u32,
    /// Numbers of messages, in order.
    pub(super) numbers: Vec<Range<u64>>,
    pub(super) times: &'a RangeInclusive<i64>,
}

impl WantedRows<'_> {
    pub(super) fn has(&self, place: &MessagePlace) -> bool {
        let at = self.numbers.partition_point(|range| range.end <= place.number);
        self.numbers.get(at).is_some_and(|range| range.contains(&place.number))
            && self.times.contains(&place.indexed_ns)
    }

    /// Takes out the rows of messages in front of this one.
    fn split_before(&mut self, number: u64) -> Self {
        let cut = |from: u64, to: u64| -> Vec<Range<u64>> {
            let cut = self.numbers.iter().map(|range| range.start.max(from)..range.end.min(to));
            cut.filter(|range| !range.is_empty()).collect()
        };
        let (before, after) = (cut(0, number), cut(number, u64::MAX));
        self.numbers = after;
        Self { stream: self.stream, numbers: before, times: self.times }
    }
}

/// Gives a full batch to the reader.
type GiveBatch<'a> = dyn FnMut(&mut GatheredRows) -> Result<ControlFlow<()>, TableError> + 'a;

impl BookSnapshot {
    pub(super) fn open(
        opened: Arc<OpenedRecording>,
        table: BookTable,
        config: BooksConfig,
    ) -> Result<Self, TableError> {
        let info = TableInfo {
            name: TableName::of_recording(opened.snapshot.name(), table.name()),
            schema: schema_of(table.columns()),
            sorted_by: table.sorted_by().to_vec(),
            rows: None,
            times: opened.snapshot.span()?,
        };
        Ok(Self { info, opened, table, config })
    }

    /// The rows of a stream that the store has.
    fn stored_rows(&self, place: usize) -> Option<&DerivedRows> {
        let derived = self.opened.derived.get(place)?.as_ref()?;
        Some(match self.table {
            BookTable::Trades => &derived.trades,
            BookTable::Quotes => &derived.quotes,
        })
    }

    /// Whether the store has all rows.
    fn is_stored(&self) -> bool {
        let mut streams = self.opened.snapshot.streams().iter().enumerate();
        streams.all(|(place, stream)| {
            let numbers = stream.numbers();
            numbers.is_empty() || self.stored_rows(place).is_some_and(|stored| stored.has(&numbers))
        })
    }

    /// Gathers the wanted rows that the store has, and gives each full batch to `give`.
    fn read_stored(
        &self,
        stored: &DerivedRows,
        wanted: &WantedRows<'_>,
        gathered: &mut GatheredRows,
        give: &mut GiveBatch<'_>,
    ) -> Result<ControlFlow<()>, TableError> {
        let source = &**self.opened.snapshot.source();
        let mut records = stored.records.clone();
        if *wanted.times != ALL_TIMES {
            let timed = records_of_times(source, &stored.file, records.clone(), wanted.times)?;
            records.start = timed.start;
            // Rows behind the wanted times may be of the last nanosecond.
            if self.table == BookTable::Trades {
                records.end = timed.end;
            }
        }
        for range in &wanted.numbers {
            let is_wanted = |record: &[u8]| origin_of(record).number >= range.start;
            let next = first_where(source, &stored.file, records.clone(), is_wanted)?;
            let part = StoredPart { file: &stored.file, records: next..records.end, range };
            if self.read_part(&part, wanted, gathered, give)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Gathers the wanted rows of a range of messages.
    fn read_part(
        &self,
        part: &StoredPart<'_>,
        wanted: &WantedRows<'_>,
        gathered: &mut GatheredRows,
        give: &mut GiveBatch<'_>,
    ) -> Result<ControlFlow<()>, TableError> {
        let source = &**self.opened.snapshot.source();
        let mut folder = TickFolder::default();
        let size = usize::from(BOOK_RECORD_BYTES);
        let mut next = part.records.start;
        let at_once = READ_BYTES / size as u64;
        'reading: while next < part.records.end {
            let until = (next + at_once).min(part.records.end);
            let records = source.numbers(part.file, next..until)?;
            next = until;
            for record in records.chunks_exact(size) {
                let place = MessagePlace::of_stored(wanted.stream, &origin_of(record));
                let is_behind =
                    place.number >= part.range.end || place.indexed_ns > *wanted.times.end();
                if self.table == BookTable::Quotes {
                    let tick = tick_of(record);
                    // A tick of a later nanosecond is needed no more.
                    if is_behind && tick.begins_nanosecond {
                        break 'reading;
                    }
                    fold_tick(&mut folder, place, tick, wanted, gathered);
                } else if is_behind {
                    break 'reading;
                } else if wanted.has(&place) {
                    gathered.add_trade(place, trade_of(record));
                }
                if gathered.len() >= BATCH_ROWS && give(gathered)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        end_nanosecond(&mut folder, wanted, gathered);
        Ok(ControlFlow::Continue(()))
    }

    /// Gathers the wanted rows of a stream that are made out of its messages, and gives each full
    /// batch to `give`.
    fn make_rows(
        &self,
        stream: &StreamSnapshot,
        wanted: &WantedRows<'_>,
        gathered: &mut GatheredRows,
        give: &mut GiveBatch<'_>,
    ) -> Result<ControlFlow<()>, TableError> {
        let snapshot = &self.opened.snapshot;
        let end = wanted.numbers.last().map_or(0, |range| range.end);
        let untagged = snapshot.untagged_format()?;
        let mut replay = stream.replay(&**snapshot.source(), stream.numbers(), &ALL_TIMES)?;
        let mut books = Books::of_symbol(self.config, snapshot.only_symbol());
        let mut folder = TickFolder::default();
        let (mut made, mut indexed_ns) = (Vec::new(), i64::MIN);
        let mut taken = 0_usize;
        while let Some(recorded) = replay.next_message()? {
            taken += 1;
            // A whole day may have no wanted row.
            if taken.is_multiple_of(UNHEARD_MESSAGES)
                && give(&mut GatheredRows::empty(self.table))?.is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
            let format = recorded.format.unwrap_or(untagged);
            let before_ns = books.present_ns();
            indexed_ns = indexed_ns.max(recorded.indexed_ns);
            if !books.take_ticks(format, &recorded.bytes, &mut |row| made.push(row)) {
                continue;
            }
            if books.counts().over_limit > 0 {
                let (table, orders_max) = (self.info.name.clone(), self.config.live_orders_max);
                return Err(TableError::TooManyOrders { table, orders_max });
            }
            if books.present_ns() != before_ns {
                end_nanosecond(&mut folder, wanted, gathered);
            }
            let is_behind = recorded.number >= end || indexed_ns > *wanted.times.end();
            if is_behind && (self.table == BookTable::Trades || books.present_ns() != before_ns) {
                return Ok(ControlFlow::Continue(()));
            }
            let place = MessagePlace::of(stream.stream(), &recorded, format).indexed_at(indexed_ns);
            for row in made.drain(..) {
                match row {
                    TickedRow::Trade(row) if wanted.has(&place) => gathered.add_trade(place, row),
                    TickedRow::Trade(_) => {}
                    TickedRow::Tick(_) if self.table == BookTable::Trades => {}
                    TickedRow::Tick(tick) => {
                        fold_tick(&mut folder, place, tick, wanted, gathered);
                    }
                }
            }
            if gathered.len() >= BATCH_ROWS && give(gathered)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        end_nanosecond(&mut folder, wanted, gathered);
        Ok(ControlFlow::Continue(()))
    }
}

/// The selected messages of each stream of which any are selected, by the number of the stream.
pub(super) fn selected_messages(
    recording: &RecordingSnapshot,
    rows: &RowSelection,
) -> BTreeMap<u32, Vec<Range<u64>>> {
    let mut streams: BTreeMap<u32, Vec<Range<u64>>> = BTreeMap::new();
    for (stream, numbers) in recording.selected(rows) {
        streams.entry(stream.stream()).or_default().push(numbers);
    }
    streams
}

/// Rows of a file from the first one of a range of messages on.
struct StoredPart<'a> {
    file: &'a str,
    records: Range<u64>,
    range: &'a Range<u64>,
}

fn fold_tick(
    folder: &mut TickFolder<MessagePlace>,
    place: MessagePlace,
    tick: QuoteTick,
    wanted: &WantedRows<'_>,
    gathered: &mut GatheredRows,
) {
    folder.take(place, tick, &mut |place, quote| {
        if wanted.has(&place) {
            gathered.add_quote(place, quote);
        }
    });
}

fn end_nanosecond(
    folder: &mut TickFolder<MessagePlace>,
    wanted: &WantedRows<'_>,
    gathered: &mut GatheredRows,
) {
    folder.end_nanosecond(&mut |place, quote| {
        if wanted.has(&place) {
            gathered.add_quote(place, quote);
        }
    });
}

impl Snapshot for BookSnapshot {
    fn info(&self) -> &TableInfo {
        &self.info
    }

    fn rows(&self) -> RowSelection {
        self.opened.snapshot.rows()
    }

    fn between(&self, from_ns: i64, to_ns: i64) -> Result<RowSelection, TableError> {
        // A row is found by the greatest time so far, which the index of the messages lacks.
        let snapshot = &self.opened.snapshot;
        let source = &**snapshot.source();
        let mut ranges = Vec::new();
        for (place, stream) in snapshot.streams().iter().enumerate() {
            let mut numbers = stream.numbers();
            if let Some(stored) = self.stored_rows(place).filter(|stored| stored.has(&numbers)) {
                let (all, times) = (stored.records.clone(), from_ns..=to_ns);
                let records = records_of_times(source, &stored.file, all, &times)?;
                if records.is_empty() {
                    continue;
                }
                let number = |at: u64| -> Result<u64, TableError> {
                    Ok(origin_of(&source.numbers(&stored.file, at..at + 1)?).number)
                };
                numbers = number(records.start)?..number(records.end - 1)? + 1;
            }
            ranges.extend(snapshot.rows_of(place, numbers));
        }
        Ok(RowSelection { ranges, times: from_ns..=to_ns })
    }

    fn parts(&self, rows: &RowSelection, n: usize) -> Vec<RowSelection> {
        match self.is_stored() {
            true => rows.parts(n, 1),
            // A part makes its rows out of all messages of its stream, so a stream is one part.
            false => self.opened.snapshot.stream_parts(rows, n),
        }
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
        let mut selected = selected_messages(&self.opened.snapshot, rows);
        for (place, stream) in self.opened.snapshot.streams().iter().enumerate() {
            let Some(numbers) = selected.remove(&stream.stream()) else { continue };
            let first = numbers.first().map_or(0, |range| range.start);
            let mut wanted = WantedRows { stream: stream.stream(), numbers, times: &rows.times };
            let stored = self.stored_rows(place).filter(|stored| stored.messages.contains(&first));
            if let Some(stored) = stored {
                let before = wanted.split_before(stored.messages.end);
                let read = self.read_stored(stored, &before, &mut gathered, &mut give)?;
                if read.is_break() {
                    return Ok(());
                }
            }
            if wanted.numbers.is_empty() {
                continue;
            }
            if self.make_rows(stream, &wanted, &mut gathered, &mut give)?.is_break() {
                return Ok(());
            }
        }
        if gathered.len() > 0 {
            let _ = give(&mut gathered)?;
        }
        Ok(())
    }
}
