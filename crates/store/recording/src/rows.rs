//! Messages of a recording as rows: their values in named columns, and their bytes.
//!
//! A row has its place (stream and number), its time, the columns of an [`Event`], and the original
//! bytes of the message. The rows therefore hold the exact feed: the messages of a stream, in the
//! order of their numbers.

use std::fmt::Write as _;
use std::io::Write;

use evenfall_feed_formats::codec;
use evenfall_feed_formats::event::{Event, PRICE_DECIMALS};

use crate::records::RecordedMessage;

/// One message.
#[derive(Clone, Debug)]
pub struct MessageRow {
    /// Stream of the message.
    pub stream: u32,
    /// Number, time and bytes.
    pub recorded: RecordedMessage,
    /// Columns of the decoded message.
    pub event: Event,
}

/// The columns, in order.
pub const COLUMNS: [&str; 17] = [
    "stream",
    "number",
    "time_ns",
    "format",
    "type",
    "stock_locate",
    "tracking_number",
    "event_ns",
    "symbol",
    "order_reference",
    "new_reference",
    "side",
    "shares",
    "price",
    "match_number",
    "printable",
    "message",
];

/// The command line's word for a message's format; `None` for opaque bytes.
fn format_word(recorded: &RecordedMessage) -> Option<&'static str> {
    codec::of(recorded.format?).map(codec::Codec::word)
}

/// A price with its decimals.
fn price_text(price: i64) -> String {
    let scale = 10u64.pow(PRICE_DECIMALS.into());
    let (sign, size) = (if price < 0 { "-" } else { "" }, price.unsigned_abs());
    let width = usize::from(PRICE_DECIMALS);
    format!("{sign}{}.{:0width$}", size / scale, size % scale)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Writes a row as one line of CSV. A column that the message lacks is empty, and bytes are in hex.
///
/// # Errors
/// The errors of `out`.
pub fn csv(row: &MessageRow, out: &mut impl Write) -> std::io::Result<()> {
    fn cell<T: std::fmt::Display>(out: &mut impl Write, value: Option<T>) -> std::io::Result<()> {
        match value {
            Some(value) => write!(out, ",{value}"),
            None => out.write_all(b","),
        }
    }
    let (event, recorded) = (&row.event, &row.recorded);
    write!(out, "{},{},{}", row.stream, recorded.number, recorded.time_ns)?;
    cell(out, format_word(recorded))?;
    cell(out, event.kind)?;
    cell(out, event.stock_locate)?;
    cell(out, event.tracking_number)?;
    cell(out, event.event_ns)?;
    cell(out, event.symbol)?;
    cell(out, event.order_reference)?;
    cell(out, event.new_reference)?;
    cell(out, event.side)?;
    cell(out, event.shares)?;
    cell(out, event.price.map(price_text))?;
    cell(out, event.match_number)?;
    cell(out, event.printable)?;
    writeln!(out, ",{}", hex(&recorded.bytes))
}

/// Writes a row as one JSON object on a line. A column that the message lacks is left out. Prices
/// are text, so that no digit is lost.
///
/// # Errors
/// The errors of `out`.
pub fn json(row: &MessageRow, out: &mut impl Write) -> std::io::Result<()> {
    let (event, recorded) = (&row.event, &row.recorded);
    let mut object = serde_json::json!({
        "stream": row.stream,
        "number": recorded.number,
        "time_ns": recorded.time_ns,
        "format": format_word(recorded),
        "type": event.kind,
        "stock_locate": event.stock_locate,
        "tracking_number": event.tracking_number,
        "event_ns": event.event_ns,
        "symbol": event.symbol.map(|symbol| symbol.to_string()),
        "order_reference": event.order_reference,
        "new_reference": event.new_reference,
        "side": event.side,
        "shares": event.shares,
        "price": event.price.map(price_text),
        "match_number": event.match_number,
        "printable": event.printable,
        "message": hex(&recorded.bytes),
    });
    if let Some(object) = object.as_object_mut() {
        object.retain(|_, value| !value.is_null());
    }
    writeln!(out, "{object}")
}

/// Rows of a Parquet row group.
#[cfg(feature = "arrow")]
const ROWS: usize = 65_536;

/// Writes rows as Parquet or Arrow.
#[cfg(feature = "arrow")]
pub struct MessageBatchWriter<W: Write + Send> {
    batches: evenfall_store_engine::batch_writer::BatchWriter<W>,
    rows: Vec<MessageRow>,
}

/// The zone of instants in Parquet files and Arrow streams.
#[cfg(feature = "arrow")]
pub(crate) const UTC: &str = "UTC";

/// The columns as Arrow has them.
#[cfg(feature = "arrow")]
pub(crate) fn arrow_schema() -> arrow_schema::SchemaRef {
    use arrow_schema::{DataType, Field, TimeUnit};
    let kinds = [
        DataType::UInt32,
        DataType::UInt64,
        DataType::Timestamp(TimeUnit::Nanosecond, Some(UTC.into())),
        DataType::Utf8,
        DataType::Utf8,
        DataType::UInt16,
        DataType::UInt16,
        DataType::UInt64,
        DataType::Utf8,
        DataType::UInt64,
        DataType::UInt64,
        DataType::Utf8,
        DataType::UInt64,
        DataType::Decimal128(19, PRICE_DECIMALS as i8),
        DataType::UInt64,
        DataType::Boolean,
        DataType::Binary,
    ];
    let is_known = |name: &str| matches!(name, "stream" | "number" | "time_ns" | "message");
    let fields = COLUMNS.iter().zip(kinds);
    let fields = fields.map(|(name, kind)| Field::new(*name, kind, !is_known(name)));
    std::sync::Arc::new(arrow_schema::Schema::new(fields.collect::<Vec<_>>()))
}

/// The rows as a batch of all columns.
#[cfg(feature = "arrow")]
pub(crate) fn raw_batch(
    rows: &[MessageRow],
) -> Result<arrow_array::RecordBatch, arrow_schema::ArrowError> {
    use arrow_array::{
        ArrayRef, BinaryArray, BooleanArray, Decimal128Array, StringArray,
        TimestampNanosecondArray, UInt16Array, UInt32Array, UInt64Array,
    };
    use std::sync::Arc;
    let rows = rows.iter();
    let events = rows.clone().map(|row| &row.event);
    let recorded = rows.clone().map(|row| &row.recorded);
    let text = |of: fn(&Event) -> Option<String>| -> ArrayRef {
        Arc::new(events.clone().map(of).collect::<StringArray>())
    };
    let word = |of: fn(&Event) -> Option<u16>| -> ArrayRef {
        Arc::new(events.clone().map(of).collect::<UInt16Array>())
    };
    let long = |of: fn(&Event) -> Option<u64>| -> ArrayRef {
        Arc::new(events.clone().map(of).collect::<UInt64Array>())
    };
    let prices = events.clone().map(|event| event.price.map(i128::from));
    let prices = prices.collect::<Decimal128Array>();
    let printable = events.clone().map(|event| event.printable);
    let times = recorded.clone().map(|recorded| recorded.time_ns);
    // In the order of `arrow_schema`. Two columns of one type that change places are not noticed.
    let columns: Vec<ArrayRef> = vec![
        Arc::new(UInt32Array::from_iter_values(rows.clone().map(|row| row.stream))),
        Arc::new(UInt64Array::from_iter_values(recorded.clone().map(|r| r.number))),
        Arc::new(TimestampNanosecondArray::from_iter_values(times).with_timezone(UTC)),
        Arc::new(recorded.clone().map(format_word).collect::<StringArray>()),
        text(|event| event.kind.map(String::from)),
        word(|event| event.stock_locate),
        word(|event| event.tracking_number),
        long(|event| event.event_ns),
        text(|event| event.symbol.map(|symbol| symbol.to_string())),
        long(|event| event.order_reference),
        long(|event| event.new_reference),
        text(|event| event.side.map(String::from)),
        long(|event| event.shares),
        Arc::new(prices.with_precision_and_scale(19, PRICE_DECIMALS as i8)?),
        long(|event| event.match_number),
        Arc::new(printable.collect::<BooleanArray>()),
        Arc::new(BinaryArray::from_iter_values(recorded.map(|r| &r.bytes))),
    ];
    arrow_array::RecordBatch::try_new(arrow_schema(), columns)
}

#[cfg(feature = "arrow")]
impl<W: Write + Send> MessageBatchWriter<W> {
    /// Begins a file or a stream.
    ///
    /// # Errors
    /// The errors of Parquet, Arrow or `out`.
    pub fn new(
        kind: evenfall_store_engine::batch_writer::BatchFormat,
        resolution: evenfall_store_engine::batch_writer::TimeResolution,
        out: W,
    ) -> Result<Self, parquet::errors::ParquetError> {
        let batches = evenfall_store_engine::batch_writer::BatchWriter::new(
            kind,
            resolution,
            &arrow_schema(),
            out,
        )?;
        Ok(Self { batches, rows: Vec::new() })
    }

    /// Adds a row.
    ///
    /// # Errors
    /// The errors of Parquet or the file.
    pub fn write(&mut self, row: MessageRow) -> Result<(), parquet::errors::ParquetError> {
        self.rows.push(row);
        if self.rows.len() < ROWS { Ok(()) } else { self.write_rows() }
    }

    fn write_rows(&mut self) -> Result<(), parquet::errors::ParquetError> {
        let rows = std::mem::take(&mut self.rows);
        self.batches.write(&raw_batch(&rows)?)
    }

    /// Ends the file or the stream.
    ///
    /// # Errors
    /// The errors of Parquet or the file.
    pub fn finish(mut self) -> Result<(), parquet::errors::ParquetError> {
        self.write_rows()?;
        self.batches.finish()
    }
}
