//! Bars: open, high, low, close and volume of trades in equal pieces of the venue's day.
//!
//! Only trades that count towards the volume are in a bar (`printable`), and a minute without such
//! trades has no bar. Bars are kept by their beginning and symbol, so that memory follows the bars
//! and not the trades, and so that streams that follow one after the other give one table.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::builder::{
    Decimal128Builder, Float64Builder, Int64Builder, StringBuilder, TimestampNanosecondBuilder,
};
use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Int64Type, TimestampNanosecondType};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use evenfall_feed_formats::codec::{DAY_NS, TimeOrigin};

use crate::errors::RowsError;
use crate::rows::RowSource;

/// Rows of a batch, as the store gives them.
const BATCH_ROWS: usize = 8_192;
/// Columns of trades out of which bars are made.
const TRADE_COLUMNS: [&str; 5] = ["time", "symbol", "price", "shares", "printable"];

/// One bar. Prices are in units of the price column's last decimal.
struct Bar {
    first_ns: i64,
    last_ns: i64,
    open: i128,
    high: i128,
    low: i128,
    close: i128,
    shares: i64,
    /// Sum of price times shares.
    turnover: i128,
    trades: i64,
}

/// A trade that counts.
struct Trade {
    time_ns: i64,
    price: i128,
    shares: i64,
}

impl Bar {
    fn of(trade: &Trade) -> Self {
        let &Trade { time_ns, price, shares } = trade;
        let turnover = price * i128::from(shares);
        let (first_ns, last_ns) = (time_ns, time_ns);
        let (open, high, low, close) = (price, price, price, price);
        Self { first_ns, last_ns, open, high, low, close, shares, turnover, trades: 1 }
    }

    fn add(&mut self, trade: &Trade) {
        let &Trade { time_ns, price, shares } = trade;
        if time_ns < self.first_ns {
            (self.first_ns, self.open) = (time_ns, price);
        }
        if time_ns >= self.last_ns {
            (self.last_ns, self.close) = (time_ns, price);
        }
        (self.high, self.low) = (self.high.max(price), self.low.min(price));
        self.shares = self.shares.saturating_add(shares);
        self.turnover += price * i128::from(shares);
        self.trades += 1;
    }
}

/// When a bar begins, and its symbol.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct BarKey {
    begin_ns: i64,
    symbol: Option<String>,
}

/// Bars of the trades of a source.
pub(crate) struct BarRows {
    trades: Arc<dyn RowSource>,
    /// Places of [`TRADE_COLUMNS`]; trades without the last one all count.
    columns: [Option<usize>; 5],
    width: Duration,
    schema: SchemaRef,
}

impl BarRows {
    /// Bars of this width.
    ///
    /// # Errors
    /// Which column is missing.
    pub(crate) fn new(trades: Arc<dyn RowSource>, width: Duration) -> Result<Self, String> {
        let of_trades = trades.schema();
        let columns = TRADE_COLUMNS.map(|name| of_trades.index_of(name).ok());
        let missing = columns
            .iter()
            .zip(TRADE_COLUMNS)
            .find(|(column, name)| column.is_none() && *name != "printable");
        if let Some((_, name)) = missing {
            return Err(format!(
                "bars are made of trades, and {} has no column {name} here",
                trades.title()
            ));
        }
        let field = |name: &str| of_trades.field_with_name(name).expect("checked above").clone();
        let (time, price) = (field("time"), field("price").data_type().clone());
        let (DataType::Timestamp(..), DataType::Decimal128(..)) = (time.data_type(), &price) else {
            return Err(format!("{} has no trades", trades.title()));
        };
        let schema = Arc::new(Schema::new(Vec::from([
            time.with_nullable(false),
            field("symbol"),
            Field::new("open", price.clone(), false),
            Field::new("high", price.clone(), false),
            Field::new("low", price.clone(), false),
            Field::new("close", price, false),
            Field::new("shares", DataType::Int64, false),
            Field::new("vwap", DataType::Float64, true),
            Field::new("trades", DataType::Int64, false),
        ])));
        Ok(Self { trades, columns, width, schema })
    }

    fn add_batch(&self, batch: &RecordBatch, bars: &mut BTreeMap<BarKey, Bar>) {
        let column = |at: usize| self.columns[at].map(|at| batch.column(at));
        let (Some(times), Some(symbols), Some(prices), Some(shares)) =
            (column(0), column(1), column(2), column(3))
        else {
            return;
        };
        let times = times.as_primitive::<TimestampNanosecondType>();
        let (symbols, prices) =
            (symbols.as_string::<i32>(), prices.as_primitive::<Decimal128Type>());
        let shares = shares.as_primitive::<Int64Type>();
        let printable = column(4).map(|column| column.as_boolean());
        let mut day = VenueDay::new(self.trades.clock(), self.width);
        for row in 0..batch.num_rows() {
            let counts = printable.is_none_or(|flags| flags.is_valid(row) && flags.value(row));
            let is_whole = times.is_valid(row) && prices.is_valid(row) && shares.is_valid(row);
            if !counts || !is_whole {
                continue;
            }
            let (time_ns, price) = (times.value(row), prices.value(row));
            let trade = Trade { time_ns, price, shares: shares.value(row) };
            let symbol = symbols.is_valid(row).then(|| symbols.value(row).to_owned());
            match bars.entry(BarKey { begin_ns: day.begin_of(time_ns), symbol }) {
                Entry::Vacant(free) => drop(free.insert(Bar::of(&trade))),
                Entry::Occupied(mut there) => there.get_mut().add(&trade),
            }
        }
    }

    fn batch_of(&self, bars: Vec<(BarKey, Bar)>) -> Result<RecordBatch, RowsError> {
        let price = self.schema.field(2).data_type();
        let mut times = TimestampNanosecondBuilder::new()
            .with_data_type(self.schema.field(0).data_type().clone());
        let mut symbols = StringBuilder::new();
        let mut prices: [Decimal128Builder; 4] =
            std::array::from_fn(|_| Decimal128Builder::new().with_data_type(price.clone()));
        let (mut shares, mut vwaps) = (Int64Builder::new(), Float64Builder::new());
        let mut trades = Int64Builder::new();
        let decimals = if let DataType::Decimal128(_, scale) = price { *scale } else { 0 };
        let unit: f64 = (0..decimals).map(|_| 10.0).product();
        for (key, bar) in bars {
            times.append_value(key.begin_ns);
            symbols.append_option(key.symbol);
            let of_bar = [bar.open, bar.high, bar.low, bar.close];
            prices.iter_mut().zip(of_bar).for_each(|(column, price)| column.append_value(price));
            shares.append_value(bar.shares);
            let vwap = bar.turnover as f64 / bar.shares as f64 / unit;
            vwaps.append_option((bar.shares != 0).then_some(vwap));
            trades.append_value(bar.trades);
        }
        let mut columns: Vec<ArrayRef> =
            Vec::from([Arc::new(times.finish()) as ArrayRef, Arc::new(symbols.finish())]);
        columns.extend(prices.iter_mut().map(|column| Arc::new(column.finish()) as ArrayRef));
        columns.push(Arc::new(shares.finish()));
        columns.push(Arc::new(vwaps.finish()));
        columns.push(Arc::new(trades.finish()));
        Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?)
    }
}

/// Finds where a bar begins, by the venue's clock. The clock's offset is asked for once an hour of
/// the trades, because zones change it at full hours.
struct VenueDay {
    clock: TimeOrigin,
    width_ns: i64,
    hour: Option<i64>,
    offset_ns: i64,
}

impl VenueDay {
    const HOUR_NS: i64 = 3_600_000_000_000;

    fn new(clock: TimeOrigin, width: Duration) -> Self {
        let width_ns = i64::try_from(width.as_nanos()).unwrap_or(DAY_NS as i64);
        Self { clock, width_ns, hour: None, offset_ns: 0 }
    }

    fn begin_of(&mut self, time_ns: i64) -> i64 {
        let hour = time_ns.div_euclid(Self::HOUR_NS);
        if self.hour != Some(hour) {
            self.hour = Some(hour);
            self.offset_ns = self.clock.wall_ns(time_ns).map_or(0, |wall_ns| wall_ns - time_ns);
        }
        let wall_ns = time_ns.saturating_add(self.offset_ns);
        time_ns.saturating_sub(wall_ns.rem_euclid(self.width_ns))
    }
}

impl RowSource for BarRows {
    fn title(&self) -> String {
        format!("bars of {:?} of {}", self.width, self.trades.title())
    }

    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn clock(&self) -> TimeOrigin {
        self.trades.clock()
    }

    fn read(&self, each: &mut dyn FnMut(RecordBatch) -> ControlFlow<()>) -> Result<(), RowsError> {
        let mut bars = BTreeMap::new();
        self.trades.read(&mut |batch| {
            self.add_batch(&batch, &mut bars);
            ControlFlow::Continue(())
        })?;
        let mut bars = bars.into_iter().peekable();
        while bars.peek().is_some() {
            let batch = self.batch_of(bars.by_ref().take(BATCH_ROWS).collect())?;
            if each(batch).is_break() {
                break;
            }
        }
        Ok(())
    }
}
