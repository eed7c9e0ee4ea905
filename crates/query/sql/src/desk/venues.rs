//! The last seconds of the recordings of a store: each recording is a venue.
//!
//! The newest row tells where the window ends, and the price at its begin may be hours older. The
//! `quotes` and the `trades` of a stream are therefore read from the first on, and [`RecentRows`]
//! keeps what lies in the window, with the last quote of each symbol before it: the same rows that
//! a recorder holds.
//!
//! The desk knows securities by symbols of eight bytes, and prices in 1/10,000 dollar. A recording
//! of futures or options, whose securities have numbers and longer names, is no venue, and a format
//! without trades and quotes has no rows.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use arrow::array::{Array, AsArray as _, RecordBatch};
use arrow::datatypes::{Decimal128Type, Int32Type, Int64Type, TimestampNanosecondType};
use datafusion::common::{Result, exec_err};
use evenfall_query_member::desk::in_place::VenueRows;
use evenfall_query_member::desk::recent::{
    QuoteAt, RecentConfig, RecentRows, RecentSnapshot, SidePrice, SymbolName, TradeAt,
};
use evenfall_store_recording::tables::{Snapshot, TableError, TableName, Tables};

use crate::catalog::store_error;
use crate::faults::table_error;

/// The name of the only security of messages that name none.
const UNNAMED: SymbolName = [b' '; 8];
/// Columns that are read of each table.
const QUOTE_COLUMNS: [&str; 7] =
    ["stream", "recorded", "symbol", "bid", "bid_size", "ask", "ask_size"];
const TRADE_COLUMNS: [&str; 5] = ["stream", "recorded", "symbol", "price", "shares"];

/// The rows of all venues.
pub(super) struct ReadVenues {
    /// Names of the recordings.
    pub(super) names: Vec<String>,
    /// The rows of each.
    pub(super) rows: Vec<VenueRows>,
    /// The time of the newest row.
    pub(super) newest_ns: Option<i64>,
}

/// Reads the rows of the window that ends with the newest row of any recording. A recording whose
/// last message lies before the window is of another day, and is left out.
///
/// # Errors
/// The errors of the store, and a statement that was ended.
pub(super) fn read_venues(
    tables: &dyn Tables,
    window: Duration,
    goes_on: &dyn Fn() -> bool,
) -> Result<ReadVenues> {
    let infos = tables.tables().map_err(store_error)?;
    let mut last: BTreeMap<String, i64> = BTreeMap::new();
    for info in infos {
        if let (Some(recording), Some((_, last_ns))) = (info.name.recording, info.times) {
            last.entry(recording).and_modify(|at| *at = last_ns.max(*at)).or_insert(last_ns);
        }
    }
    let window_ns = i64::try_from(window.as_nanos()).unwrap_or(i64::MAX);
    let begin = last.values().max().map(|newest| newest.saturating_sub(window_ns));
    let mut read = ReadVenues { names: Vec::new(), rows: Vec::new(), newest_ns: None };
    for (name, _) in last.into_iter().filter(|(_, last_ns)| Some(*last_ns) >= begin) {
        let open = |table| {
            let table = TableName::of_recording(&name, table);
            tables.open(&table).map_err(|error| table_error(&table, error))
        };
        let table = open("quotes")?;
        if table.info().schema.index_of("security_id").is_ok() {
            continue;
        }
        let mut reader = StreamReader { window, streams: BTreeMap::new() };
        reader.read(&*table, &QUOTE_COLUMNS, StreamReader::take_quotes, goes_on)?;
        let (quotes, quoted_ns) = reader.drain_snapshots();
        reader.read(&*open("trades")?, &TRADE_COLUMNS, StreamReader::take_trades, goes_on)?;
        let (trades, traded_ns) = reader.drain_snapshots();
        read.newest_ns = read.newest_ns.max(quoted_ns).max(traded_ns);
        read.rows.push(VenueRows { quotes, trades });
        read.names.push(name);
    }
    Ok(read)
}

/// Rows of the streams of a recording.
struct StreamReader {
    window: Duration,
    streams: BTreeMap<i32, RecentRows>,
}

/// Snapshots of all streams, and the time of their newest row.
type StreamSnapshots = (Vec<RecentSnapshot>, Option<i64>);

impl StreamReader {
    fn read(
        &mut self,
        table: &dyn Snapshot,
        columns: &[&str],
        take: fn(&mut Self, &RecordBatch),
        goes_on: &dyn Fn() -> bool,
    ) -> Result<()> {
        let schema = &table.info().schema;
        let places = columns.iter().map(|name| schema.index_of(name));
        let places = places.collect::<std::result::Result<Vec<usize>, _>>()?;
        let mut is_ended = false;
        let mut each = |batch: RecordBatch| {
            take(self, &batch);
            is_ended = !goes_on();
            if is_ended { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        match table.scan(&table.rows(), &places, &mut each) {
            Ok(()) | Err(TableError::NotGiven { .. }) => {}
            Err(error) => return Err(table_error(&table.info().name, error)),
        }
        if is_ended { exec_err!("the statement was ended") } else { Ok(()) }
    }

    fn stream(&mut self, stream: i32) -> &mut RecentRows {
        let config = RecentConfig { keep: self.window, ..RecentConfig::default() };
        self.streams.entry(stream).or_insert_with(|| RecentRows::new(config))
    }

    fn drain_snapshots(&mut self) -> StreamSnapshots {
        let streams = std::mem::take(&mut self.streams);
        let newest_ns = streams.values().filter_map(RecentRows::newest_ns).max();
        (streams.values().map(RecentRows::snapshot).collect(), newest_ns)
    }

    fn take_quotes(&mut self, batch: &RecordBatch) {
        let sides = [(3, 4), (5, 6)].map(|(price, size)| {
            let prices = batch.column(price).as_primitive::<Decimal128Type>();
            (prices, batch.column(size).as_primitive::<Int64Type>())
        });
        let times = batch.column(1).as_primitive::<TimestampNanosecondType>();
        let streams = batch.column(0).as_primitive::<Int32Type>();
        for row in 0..batch.num_rows() {
            let [bid, ask] = sides.map(|(prices, sizes)| {
                let price = prices.is_valid(row).then(|| prices.value(row))?;
                let shares = if sizes.is_valid(row) { sizes.value(row) } else { 0 };
                // A price of the store has 18 digits at most.
                Some(SidePrice { price: i64::try_from(price).ok()?, shares: share_count(shares) })
            });
            let quote = QuoteAt { time_ns: times.value(row), bid, ask };
            self.stream(streams.value(row)).push_quote(symbol_at(batch.column(2), row), quote);
        }
    }

    fn take_trades(&mut self, batch: &RecordBatch) {
        let prices = batch.column(3).as_primitive::<Decimal128Type>();
        let shares = batch.column(4).as_primitive::<Int64Type>();
        let times = batch.column(1).as_primitive::<TimestampNanosecondType>();
        let streams = batch.column(0).as_primitive::<Int32Type>();
        // A trade without a price is left out, because it cannot be judged.
        for row in (0..batch.num_rows()).filter(|row| prices.is_valid(*row)) {
            let Ok(price) = i64::try_from(prices.value(row)) else { continue };
            let shares = share_count(if shares.is_valid(row) { shares.value(row) } else { 0 });
            let trade = TradeAt { time_ns: times.value(row), price, shares };
            self.stream(streams.value(row)).push_trade(symbol_at(batch.column(2), row), trade);
        }
    }
}

fn share_count(shares: i64) -> u32 {
    u32::try_from(shares.max(0)).unwrap_or(u32::MAX)
}

fn symbol_at(symbols: &dyn Array, row: usize) -> SymbolName {
    let mut name = UNNAMED;
    if symbols.is_valid(row) {
        let text = symbols.as_string::<i32>().value(row).as_bytes();
        let length = text.len().min(name.len());
        name[..length].copy_from_slice(&text[..length]);
    }
    name
}
