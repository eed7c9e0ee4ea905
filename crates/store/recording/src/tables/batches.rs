//! The columns of a recording's tables.

use std::sync::Arc;

use arrow_array::builder::{
    Decimal128Builder, Int32Builder, Int64Builder, StringBuilder, TimestampNanosecondBuilder,
};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{ArrowError, DataType, Field, SchemaRef, TimeUnit};
use evenfall_feed_formats::codec::{self, Clock, DAY_NS};
use evenfall_feed_formats::event::{Event, PRICE_DECIMALS};
use evenfall_feed_formats::itch::Stock;

use crate::rows::{self, MessageRow, UTC};

/// Digits of a price.
const PRICE_DIGITS: u8 = 18;

/// A table that every recording has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordingTable {
    Messages,
    Raw,
}

impl RecordingTable {
    pub(super) const ALL: [Self; 2] = [Self::Messages, Self::Raw];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::Raw => "raw",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.name() == name)
    }

    pub(super) fn sorted_by(self) -> [&'static str; 2] {
        match self {
            Self::Messages => ["stream", "seq"],
            Self::Raw => ["stream", "number"],
        }
    }

    pub(super) fn schema(self) -> SchemaRef {
        match self {
            Self::Messages => messages_schema(),
            Self::Raw => rows::arrow_schema(),
        }
    }

    pub(super) fn batch(
        self,
        rows: &[MessageRow],
        columns: &[usize],
    ) -> Result<RecordBatch, ArrowError> {
        match self {
            Self::Messages => messages_batch(rows, columns),
            Self::Raw => rows::raw_batch(rows)?.project(columns),
        }
    }
}

/// The columns of `messages`, in order. Values are named as traders name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageColumn {
    /// The venue's wall clock.
    Time,
    /// The same instant in UTC.
    Utc,
    /// The time under which the store has the message.
    Recorded,
    /// Nanoseconds of the venue's day.
    Ts,
    Stream,
    /// Place in the stream, from 1.
    Seq,
    Type,
    Locate,
    OrderRef,
    NewOrderRef,
    Side,
    Shares,
    Symbol,
    Price,
    Match,
}

const COLUMNS: [(MessageColumn, &str); 15] = [
    (MessageColumn::Time, "time"),
    (MessageColumn::Utc, "utc"),
    (MessageColumn::Recorded, "recorded"),
    (MessageColumn::Ts, "ts"),
    (MessageColumn::Stream, "stream"),
    (MessageColumn::Seq, "seq"),
    (MessageColumn::Type, "type"),
    (MessageColumn::Locate, "locate"),
    (MessageColumn::OrderRef, "order_ref"),
    (MessageColumn::NewOrderRef, "new_order_ref"),
    (MessageColumn::Side, "side"),
    (MessageColumn::Shares, "shares"),
    (MessageColumn::Symbol, "symbol"),
    (MessageColumn::Price, "price"),
    (MessageColumn::Match, "match"),
];

impl MessageColumn {
    fn data_type(self) -> DataType {
        match self {
            Self::Time => DataType::Timestamp(TimeUnit::Nanosecond, None),
            Self::Utc | Self::Recorded => {
                DataType::Timestamp(TimeUnit::Nanosecond, Some(UTC.into()))
            }
            Self::Stream | Self::Locate => DataType::Int32,
            Self::Type | Self::Side | Self::Symbol => DataType::Utf8,
            Self::Price => DataType::Decimal128(PRICE_DIGITS, PRICE_DECIMALS as i8),
            _ => DataType::Int64,
        }
    }

    fn is_nullable(self) -> bool {
        !matches!(self, Self::Recorded | Self::Stream | Self::Seq)
    }
}

fn messages_schema() -> SchemaRef {
    let fields =
        COLUMNS.map(|(column, name)| Field::new(name, column.data_type(), column.is_nullable()));
    Arc::new(arrow_schema::Schema::new(fields.to_vec()))
}

/// The instant of a message, its place in the venue's day, and the venue's clock.
struct MessageTime {
    utc_ns: i64,
    wall_ns: Option<i64>,
    day_ns: Option<i64>,
}

impl MessageTime {
    /// A message states its time of day or its instant. The day is that of the recorded time.
    fn of(row: &MessageRow) -> Self {
        let clock = row.recorded.format.and_then(codec::of).map_or(Clock::Epoch, |c| c.clock());
        let recorded_ns = row.recorded.time_ns;
        let stated = row.event.event_ns.and_then(|event_ns| match clock {
            Clock::Epoch => i64::try_from(event_ns).ok(),
            Clock::Midnight { .. } => {
                let day_ns = event_ns % DAY_NS;
                let date = clock.date_of(recorded_ns)?;
                clock.of_day_ns(date, day_ns)
            }
        });
        let utc_ns = stated.unwrap_or(recorded_ns);
        let wall_ns = clock.wall_ns(utc_ns);
        let day_ns = wall_ns.map(|wall_ns| wall_ns.rem_euclid(DAY_NS as i64));
        Self { utc_ns, wall_ns, day_ns }
    }
}

/// Which values of an event are values of its message, and no filler or value of another message.
struct Stated {
    order_ref: bool,
    new_order_ref: bool,
    side: bool,
    shares: bool,
    price: bool,
    match_number: bool,
}

impl Stated {
    fn of(event: &Event) -> Self {
        let has = |letters: &[&str]| event.kind.is_some_and(|kind| letters.contains(&kind));
        // LOBSTER's types 1 to 5 are ITCH's A, X, D, E and P.
        Self {
            order_ref: has(&["A", "F", "E", "C", "X", "D", "U", "P", "1", "2", "3", "4", "5"]),
            new_order_ref: has(&["U"]),
            side: has(&["A", "F", "P", "1", "5"]),
            shares: has(&["A", "F", "E", "C", "X", "U", "P", "1", "2", "4", "5"]),
            price: has(&["A", "F", "C", "U", "P", "1", "5"]),
            match_number: has(&["E", "C", "P"]),
        }
    }
}

fn signed(value: Option<u64>) -> Option<i64> {
    value.and_then(|value| i64::try_from(value).ok())
}

fn messages_batch(rows: &[MessageRow], columns: &[usize]) -> Result<RecordBatch, ArrowError> {
    let schema = messages_schema();
    let arrays = columns.iter().map(|at| message_array(COLUMNS[*at].0, rows));
    let arrays = arrays.collect::<Result<Vec<_>, _>>()?;
    RecordBatch::try_new(Arc::new(schema.project(columns)?), arrays)
}

fn message_array(column: MessageColumn, rows: &[MessageRow]) -> Result<ArrayRef, ArrowError> {
    let events = rows.iter().map(|row| (&row.event, Stated::of(&row.event)));
    Ok(match column {
        MessageColumn::Time => times(rows.iter().map(|row| MessageTime::of(row).wall_ns), None),
        MessageColumn::Utc => {
            times(rows.iter().map(|row| Some(MessageTime::of(row).utc_ns)), Some(UTC))
        }
        MessageColumn::Recorded => {
            times(rows.iter().map(|row| Some(row.recorded.indexed_ns)), Some(UTC))
        }
        MessageColumn::Ts => longs(rows.iter().map(|row| MessageTime::of(row).day_ns)),
        MessageColumn::Stream => ints(rows.iter().map(|row| i32::try_from(row.stream).ok())),
        MessageColumn::Seq => longs(rows.iter().map(|row| signed(Some(row.recorded.number + 1)))),
        MessageColumn::Type => texts(rows.iter().map(|row| row.event.kind)),
        MessageColumn::Locate => ints(rows.iter().map(|row| row.event.stock_locate.map(i32::from))),
        MessageColumn::OrderRef => longs(events.map(|(event, stated)| {
            // Reference 0 stands for an order that is not shown.
            let shown = event.order_reference.filter(|reference| *reference != 0);
            signed(shown.filter(|_| stated.order_ref))
        })),
        MessageColumn::NewOrderRef => {
            longs(events.map(|(event, stated)| {
                signed(event.new_reference.filter(|_| stated.new_order_ref))
            }))
        }
        MessageColumn::Side => {
            let sides = events.map(|(event, stated)| match event.side.filter(|_| stated.side) {
                Some('B') => Some("B"),
                Some('S') => Some("S"),
                _ => None,
            });
            texts(sides)
        }
        MessageColumn::Shares => {
            longs(events.map(|(event, stated)| signed(event.shares.filter(|_| stated.shares))))
        }
        MessageColumn::Symbol => {
            let symbols: Vec<_> = rows.iter().map(|row| row.event.symbol).collect();
            texts(symbols.iter().map(|symbol: &Option<Stock>| {
                symbol.as_ref().and_then(|symbol| std::str::from_utf8(symbol.trimmed()).ok())
            }))
        }
        MessageColumn::Price => {
            let mut prices = Decimal128Builder::with_capacity(rows.len())
                .with_precision_and_scale(PRICE_DIGITS, PRICE_DECIMALS as i8)?;
            events.for_each(|(event, stated)| {
                prices.append_option(event.price.filter(|_| stated.price).map(i128::from));
            });
            Arc::new(prices.finish())
        }
        MessageColumn::Match => longs(
            events
                .map(|(event, stated)| signed(event.match_number.filter(|_| stated.match_number))),
        ),
    })
}

fn times(values: impl Iterator<Item = Option<i64>>, zone: Option<&str>) -> ArrayRef {
    let mut builder = TimestampNanosecondBuilder::new();
    values.for_each(|value| builder.append_option(value));
    Arc::new(builder.finish().with_timezone_opt(zone))
}

fn longs(values: impl Iterator<Item = Option<i64>>) -> ArrayRef {
    let mut builder = Int64Builder::new();
    values.for_each(|value| builder.append_option(value));
    Arc::new(builder.finish())
}

fn ints(values: impl Iterator<Item = Option<i32>>) -> ArrayRef {
    let mut builder = Int32Builder::new();
    values.for_each(|value| builder.append_option(value));
    Arc::new(builder.finish())
}

fn texts<'a>(values: impl Iterator<Item = Option<&'a str>>) -> ArrayRef {
    let mut builder = StringBuilder::new();
    values.for_each(|value| builder.append_option(value));
    Arc::new(builder.finish())
}
