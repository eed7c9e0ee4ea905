//! The columns of a recording's tables: their names, their types, and the arrays of their values.

use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_array::builder::{
    BooleanBuilder, Decimal128Builder, Int32Builder, Int64Builder, StringBuilder,
    TimestampNanosecondBuilder,
};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef, TimeUnit};
use evenfall_feed_formats::Format;
use evenfall_feed_formats::codec::{self, DAY_NS, TimeOrigin};
use evenfall_feed_formats::event::PRICE_DECIMALS;
use evenfall_feed_formats::itch::Stock;
use evenfall_store_format::messages::QuarterMemo;

use crate::derived::RowOrigin;
use crate::layouts::stated_ns;
use crate::records::RecordedMessage;
use crate::rows::UTC;

/// Digits of a price in tables.
pub const PRICE_DIGITS: u8 = 18;
/// Digits of numbers with other decimals: all that 64 bits hold.
const LONG_DIGITS: u8 = 19;

/// The type of prices with these decimals.
pub fn price_type_of(decimals: u8) -> DataType {
    let digits = if decimals == PRICE_DECIMALS { PRICE_DIGITS } else { LONG_DIGITS };
    DataType::Decimal128(digits, decimals as i8)
}

/// A column of `messages`, `trades` or `quotes`. Values are named as traders name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableColumn {
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
    /// Whether a trade counts towards the volume.
    Printable,
    Bid,
    BidSize,
    Ask,
    AskSize,
    /// The number that the venue gives the security.
    SecurityId,
}

impl TableColumn {
    fn name(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Utc => "utc",
            Self::Recorded => "recorded",
            Self::Ts => "ts",
            Self::Stream => "stream",
            Self::Seq => "seq",
            Self::Type => "type",
            Self::Locate => "locate",
            Self::OrderRef => "order_ref",
            Self::NewOrderRef => "new_order_ref",
            Self::Side => "side",
            Self::Shares => "shares",
            Self::Symbol => "symbol",
            Self::Price => "price",
            Self::Match => "match",
            Self::Printable => "printable",
            Self::Bid => "bid",
            Self::BidSize => "bid_size",
            Self::Ask => "ask",
            Self::AskSize => "ask_size",
            Self::SecurityId => "security_id",
        }
    }

    fn data_type(self) -> DataType {
        match self {
            Self::Time => DataType::Timestamp(TimeUnit::Nanosecond, None),
            Self::Utc | Self::Recorded => {
                DataType::Timestamp(TimeUnit::Nanosecond, Some(UTC.into()))
            }
            Self::Stream | Self::Locate => DataType::Int32,
            Self::Type | Self::Side | Self::Symbol => DataType::Utf8,
            Self::Price | Self::Bid | Self::Ask => price_type_of(PRICE_DECIMALS),
            Self::Printable => DataType::Boolean,
            _ => DataType::Int64,
        }
    }

    fn is_nullable(self) -> bool {
        !matches!(self, Self::Recorded | Self::Stream | Self::Seq)
    }

    /// The column as Arrow has it, with prices of these decimals.
    fn field(self, decimals: u8) -> Field {
        let data_type = match self {
            Self::Price | Self::Bid | Self::Ask => price_type_of(decimals),
            _ => self.data_type(),
        };
        Field::new(self.name(), data_type, self.is_nullable())
    }
}

/// The columns as Arrow has them.
pub(super) fn schema_of(columns: &[TableColumn]) -> SchemaRef {
    schema_with_decimals(columns, PRICE_DECIMALS)
}

/// The columns as Arrow has them, with prices of these decimals.
pub(super) fn schema_with_decimals(columns: &[TableColumn], decimals: u8) -> SchemaRef {
    let fields = columns.iter().map(|column| column.field(decimals));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// Stream, number and times of the message that a row comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessagePlace {
    pub(super) stream: u32,
    pub(super) number: u64,
    pub(super) indexed_ns: i64,
    /// The time of the message's release.
    recorded_ns: i64,
    /// The time that the message states, by the clock of its format.
    event_ns: Option<u64>,
    clock: TimeOrigin,
}

impl MessagePlace {
    /// The place of a message. `format` stands for the format that the writer did not state.
    pub(super) fn of(stream: u32, recorded: &RecordedMessage, format: Format) -> Self {
        Self {
            stream,
            number: recorded.number,
            indexed_ns: recorded.indexed_ns,
            recorded_ns: recorded.time_ns,
            event_ns: None,
            clock: codec::of(format).map_or(TimeOrigin::Epoch, |codec| codec.clock()),
        }
    }

    /// The place of a message that is found by this time.
    pub(super) fn indexed_at(self, indexed_ns: i64) -> Self {
        Self { indexed_ns, ..self }
    }

    /// The place of the message of a stored row.
    pub(super) fn of_stored(stream: u32, origin: &RowOrigin) -> Self {
        Self {
            stream,
            number: origin.number,
            indexed_ns: origin.time_ns,
            recorded_ns: origin.recorded_ns,
            event_ns: None,
            clock: codec::of(origin.format).map_or(TimeOrigin::Epoch, |codec| codec.clock()),
        }
    }

    /// The place of a message that states this time.
    pub(super) fn with_event_time(self, event_ns: Option<u64>) -> Self {
        Self { event_ns, ..self }
    }
}

/// The instant of a message, and what the venue's clock shows.
#[derive(Clone, Copy)]
struct MessageTime {
    utc_ns: i64,
    wall_ns: Option<i64>,
}

impl MessageTime {
    /// A message states its time of day or its instant. The day is that of the recorded time.
    fn of(place: &MessagePlace) -> Self {
        let stated = stated_ns(place.clock, place.recorded_ns, place.event_ns);
        let utc_ns = stated.unwrap_or(place.recorded_ns);
        Self { utc_ns, wall_ns: place.clock.wall_ns(utc_ns) }
    }

    fn shift_times(self, by_ns: i64) -> Self {
        let wall_ns = self.wall_ns.map(|wall_ns| wall_ns.wrapping_add(by_ns));
        Self { utc_ns: self.utc_ns.wrapping_add(by_ns), wall_ns }
    }

    /// The place in the venue's day.
    fn day_ns(self) -> Option<i64> {
        self.wall_ns.map(|wall_ns| wall_ns.rem_euclid(DAY_NS as i64))
    }
}

/// The times of messages one after the other.
#[derive(Default)]
struct MessageTimes(QuarterMemo<TimeOrigin, MessageTime>);

impl MessageTimes {
    fn of(&mut self, place: &MessagePlace) -> MessageTime {
        let day_ns = match (place.clock, place.event_ns) {
            // The instant that a message states may lie in any quarter.
            (TimeOrigin::Epoch, Some(_)) => return MessageTime::of(place),
            (_, event_ns) => event_ns.map(|event_ns| (event_ns % DAY_NS) as i64),
        };
        // Within a quarter of an hour all times differ from this one by the same difference.
        let from = day_ns.unwrap_or(place.recorded_ns);
        let offsets = self.0.recall(place.clock, place.recorded_ns, day_ns, || {
            MessageTime::of(place).shift_times(from.wrapping_neg())
        });
        offsets.shift_times(from)
    }
}

/// The array of a column that tells a row's place or time; `None` for columns of what the message
/// says.
pub(super) fn place_array(
    column: TableColumn,
    places: impl Iterator<Item = MessagePlace>,
) -> Option<ArrayRef> {
    let mut of = MessageTimes::default();
    Some(match column {
        TableColumn::Time => times(places.map(|place| of.of(&place).wall_ns), None),
        TableColumn::Utc => times(places.map(|place| Some(of.of(&place).utc_ns)), Some(UTC)),
        TableColumn::Recorded => times(places.map(|place| Some(place.indexed_ns)), Some(UTC)),
        TableColumn::Ts => longs(places.map(|place| of.of(&place).day_ns())),
        TableColumn::Stream => ints(places.map(|place| i32::try_from(place.stream).ok())),
        TableColumn::Seq => longs(places.map(|place| signed(Some(place.number + 1)))),
        _ => return None,
    })
}

/// The value as a signed number, which every database has; `None` when it does not fit.
pub(super) fn signed(value: Option<u64>) -> Option<i64> {
    value.and_then(|value| i64::try_from(value).ok())
}

/// Symbols without their padding.
pub(super) fn symbol_array(values: impl Iterator<Item = Option<Stock>>) -> ArrayRef {
    let mut builder = StringBuilder::new();
    values.for_each(|symbol| {
        let text = symbol.as_ref().and_then(|symbol| std::str::from_utf8(symbol.trimmed()).ok());
        builder.append_option(text);
    });
    Arc::new(builder.finish())
}

pub(super) fn prices(values: impl Iterator<Item = Option<i64>>) -> Result<ArrayRef, ArrowError> {
    Ok(decimal_array(values, PRICE_DECIMALS))
}

/// Numbers with these decimals, of the type of [`price_type_of`].
pub(super) fn decimal_array(values: impl Iterator<Item = Option<i64>>, decimals: u8) -> ArrayRef {
    let mut builder = Decimal128Builder::new().with_data_type(price_type_of(decimals));
    values.for_each(|value| builder.append_option(value.map(i128::from)));
    Arc::new(builder.finish())
}

pub(super) fn boolean_array(values: impl Iterator<Item = Option<bool>>) -> ArrayRef {
    let mut builder = BooleanBuilder::new();
    values.for_each(|value| builder.append_option(value));
    Arc::new(builder.finish())
}

fn times(values: impl Iterator<Item = Option<i64>>, zone: Option<&str>) -> ArrayRef {
    let mut builder = TimestampNanosecondBuilder::new();
    values.for_each(|value| builder.append_option(value));
    Arc::new(builder.finish().with_timezone_opt(zone))
}

pub(super) fn longs(values: impl Iterator<Item = Option<i64>>) -> ArrayRef {
    let mut builder = Int64Builder::new();
    values.for_each(|value| builder.append_option(value));
    Arc::new(builder.finish())
}

pub(super) fn ints(values: impl Iterator<Item = Option<i32>>) -> ArrayRef {
    let mut builder = Int32Builder::new();
    values.for_each(|value| builder.append_option(value));
    Arc::new(builder.finish())
}

pub(super) fn texts<'a>(values: impl Iterator<Item = Option<&'a str>>) -> ArrayRef {
    let mut builder = StringBuilder::new();
    values.for_each(|value| builder.append_option(value));
    Arc::new(builder.finish())
}
