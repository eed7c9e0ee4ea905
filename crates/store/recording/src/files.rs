//! The names of the files of which a recording consists.

use evenfall_store_engine::FileListing;
use evenfall_store_format::messages::parts::is_parted;
use evenfall_store_format::{Field, FieldType, Schema};

use crate::records::is_message_schema;

/// Last part of the name of a file of messages.
const MESSAGES: &str = "messages";

/// Name of the file of a stream's messages.
pub(crate) fn messages_name(recording: &str, stream: u32) -> String {
    format!("{recording}.{stream}.{MESSAGES}")
}

/// Name of the file of a stream's messages of one size, in recordings of earlier versions.
pub(crate) fn sized_name(recording: &str, stream: u32, class: u16) -> String {
    format!("{recording}.{stream}.{class}")
}

/// A file that holds messages of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageFileName<'a> {
    pub(crate) recording: &'a str,
    pub(crate) stream: u32,
}

/// What the name of a file says, when its schema agrees.
pub(crate) fn message_file(file: &FileListing) -> Option<MessageFileName<'_>> {
    let (rest, kind) = file.name.rsplit_once('.')?;
    let (recording, stream) = rest.rsplit_once('.')?;
    let name = MessageFileName { recording, stream: stream.parse().ok()? };
    let is_it = match kind {
        MESSAGES => is_parted(&file.schema),
        class => is_message_schema(&file.schema, class.parse().ok()?),
    };
    is_it.then_some(name)
}

/// Name of the file of a stream's frames: which messages left together, and when.
pub fn frames_name(recording: &str, stream: u32) -> String {
    format!("{recording}.{stream}.frames")
}

/// Name of the file of UTC beside a recording.
pub fn utc_name(recording: &str) -> String {
    format!("{recording}.utc")
}

/// The schema of a file of frames.
pub fn frames_schema() -> Schema {
    let number = |name: &'static str| (name, FieldType::U64);
    let mut schema = Schema::of(&[
        ("time", FieldType::Time),
        number("frame"),
        number("first_message"),
        number("origin"),
        number("deadline"),
    ]);
    let mut add = |name: &str, offset, len, kind| {
        let name = name.to_owned();
        schema.fields.push(Field { name, offset, len, kind, aggregate: false });
    };
    add("epoch", 40, 4, FieldType::U32);
    add("count", 44, 2, FieldType::U16);
    add("format", 46, 1, FieldType::U8);
    schema.record_bytes = 48;
    schema
}

/// Name of the file of a stream's signatures.
pub fn signatures_name(recording: &str, stream: u32) -> String {
    format!("{recording}.{stream}.signatures")
}

/// The schema of a file of signatures. The body of a signature takes several records.
pub fn signatures_schema() -> Schema {
    let number = |name: &'static str| (name, FieldType::U64);
    let mut schema = Schema::of(&[("time", FieldType::Time), number("frame"), number("run")]);
    let mut add = |name: &str, offset, len, kind| {
        let name = name.to_owned();
        schema.fields.push(Field { name, offset, len, kind, aggregate: false });
    };
    add("part", 24, 2, FieldType::U16);
    add("length", 26, 2, FieldType::U16);
    add("body", 28, 100, FieldType::Bytes);
    schema.record_bytes = 128;
    schema
}

/// The number after the messages of a frame's record.
#[cfg(feature = "arrow")]
pub(crate) fn end_of_frame(record: &[u8]) -> u64 {
    let first = u64::from_le_bytes(record[16..24].try_into().expect("a frame has a first message"));
    let count = u16::from_le_bytes([record[44], record[45]]);
    first + u64::from(count)
}

/// The schema of a file of UTC.
pub fn utc_schema() -> Schema {
    Schema::of(&[
        ("time", FieldType::Time),
        ("utc", FieldType::I64),
        ("utc_bound", FieldType::U64),
        ("run_bound", FieldType::U64),
    ])
}

/// Name of the file of a stream's trades.
#[cfg(feature = "arrow")]
pub(crate) fn trades_name(recording: &str, stream: u32) -> String {
    format!("{recording}.{stream}.trades")
}

/// Name of the file of a stream's changes of best prices.
#[cfg(feature = "arrow")]
pub(crate) fn quotes_name(recording: &str, stream: u32) -> String {
    format!("{recording}.{stream}.quotes")
}

/// Name of the file that says how far a stream's trades and quotes go.
#[cfg(feature = "arrow")]
pub(crate) fn derived_name(recording: &str, stream: u32) -> String {
    format!("{recording}.{stream}.derived")
}

/// Bytes of a trade, and of a change of best prices. Four bytes at the end are zero.
pub(crate) const BOOK_RECORD_BYTES: u16 = 80;

/// The schema of rows that order books make: their message, the fields of their table, the flags.
fn book_schema(own: &[(&str, FieldType)]) -> Schema {
    let message = [
        ("time", FieldType::Time),
        ("number", FieldType::U64),
        ("recorded", FieldType::I64),
        ("event", FieldType::U64),
        ("symbol", FieldType::Bytes),
    ];
    let last = [("format", FieldType::U8), ("flags", FieldType::U8)];
    let mut schema = Schema::of(&[]);
    let mut offset = 0;
    for (name, kind) in message.iter().chain(own).chain(&last) {
        // A symbol has eight bytes.
        let (name, kind, len) = ((*name).to_owned(), *kind, kind.bytes().unwrap_or(8) as u16);
        schema.fields.push(Field { name, offset, len, kind, aggregate: false });
        offset += len;
    }
    schema.record_bytes = BOOK_RECORD_BYTES;
    schema.price_decimals = evenfall_feed_formats::event::PRICE_DECIMALS;
    schema
}

/// The schema of a file of trades.
pub(crate) fn trades_schema() -> Schema {
    book_schema(&[
        ("price", FieldType::Price),
        ("shares", FieldType::U64),
        ("order_reference", FieldType::U64),
        ("match_number", FieldType::U64),
        ("type", FieldType::U8),
        ("side", FieldType::U8),
    ])
}

/// The schema of a file of changes of best prices.
pub(crate) fn quotes_schema() -> Schema {
    book_schema(&[
        ("bid", FieldType::Price),
        ("bid_size", FieldType::U64),
        ("ask", FieldType::Price),
        ("ask_size", FieldType::U64),
        ("locate", FieldType::U16),
    ])
}

/// The schema of a file that says how far trades and quotes go.
pub(crate) fn derived_schema() -> Schema {
    let number = |name: &'static str| (name, FieldType::U64);
    Schema::of(&[
        ("time", FieldType::Time),
        number("messages"),
        number("from"),
        number("trades"),
        number("quotes"),
    ])
}

/// The recording beside whose messages this file lies: its frames, its signatures, its trades and
/// quotes, or UTC.
pub(crate) fn beside(file: &FileListing) -> Option<&str> {
    if let Some(recording) = file.name.strip_suffix(".utc") {
        return (file.schema == utc_schema()).then_some(recording);
    }
    let (rest, kind) = file.name.rsplit_once('.')?;
    let schema = match kind {
        "frames" => frames_schema(),
        "signatures" => signatures_schema(),
        "trades" => trades_schema(),
        "quotes" => quotes_schema(),
        "derived" => derived_schema(),
        _ => return None,
    };
    let (recording, stream) = rest.rsplit_once('.')?;
    (stream.parse::<u32>().is_ok() && file.schema == schema).then_some(recording)
}
