//! A feed in the store: every message, in the order of its stream, byte for byte.
//!
//! The records of a file have one length, and messages have many. Each stream is therefore kept in
//! a few files by size class. A message goes into the smallest record that holds it, with its
//! number in the stream. Reading merges the classes by that number.
//!
//! ```text
//! <name>.<stream>.<record bytes>
//!  0           8           16       18       19
//! +-----------+-----------+--------+--------+-------------------
//! | time  i64 | number u64| length | format | message, then zero
//! +-----------+-----------+--------+--------+-------------------
//! ```
//!
//! The format is the tag of the message's codec ([`evenfall_feed_formats::codec`]). Recordings of
//! earlier versions have no format byte: their messages begin at byte 18, as their schema says.
//! Messages without a tag get the format that can read all of the recording's first
//! [`FORMAT_MESSAGES`](crate::catalog::FORMAT_MESSAGES) messages
//! ([`format_of`](crate::catalog::format_of)). A recording keeps the layout with which it began.
//!
//! The time of a message is the time of its release, or the feed's own time. A file is indexed by
//! the first eight bytes of its records, which never decrease. A message's own time may lie before
//! the time of the previous message, or ahead of this machine's clock. The message is then indexed
//! by the nearest allowed time, and its own time follows its bytes, which the highest bit of the
//! length marks. One wrong stamp therefore changes no other message's time, and every stamp is
//! kept.

use evenfall_feed_formats::Format;
use evenfall_store_format::schema::Arrival;
use evenfall_store_format::{Field, FieldType, Schema};

/// Bytes in front of the message.
pub(crate) const HEAD_BYTES: usize = 19;
/// Bytes in front of the message in a recording without formats, one byte fewer.
pub(crate) const UNTAGGED_HEAD_BYTES: usize = 18;
/// Flag in the length of a message whose own time follows it. The largest record is shorter than
/// this value.
pub(crate) const OWN_TIME: u16 = 1 << 15;
/// Bytes of the message's own time.
pub(crate) const OWN_TIME_BYTES: usize = 8;
/// Record lengths. ITCH messages have 12 to 50 bytes and fill the first three lengths well. The
/// last length holds the contents of any datagram.
pub(crate) const CLASSES: [u16; 6] = [32, 48, 72, 160, 1_024, 16_352];

/// Offset of the message in records of this schema.
pub(crate) fn head_bytes(schema: &Schema) -> usize {
    if schema.field("format").is_some() { HEAD_BYTES } else { UNTAGGED_HEAD_BYTES }
}

pub(crate) fn schema(record_bytes: u16, arrival: &Arrival, head_bytes: usize) -> Schema {
    let mut schema = Schema::of(&[("time", FieldType::Time), ("number", FieldType::U64)]);
    let mut add = |name: &str, offset, len, kind| {
        let name = name.to_owned();
        schema.fields.push(Field { name, offset, len, kind, aggregate: false });
    };
    add("length", 16, 2, FieldType::U16);
    if head_bytes == HEAD_BYTES {
        add("format", 18, 1, FieldType::U8);
    }
    let head_bytes = head_bytes as u16;
    add("message", head_bytes, record_bytes - head_bytes, FieldType::Bytes);
    schema.record_bytes = record_bytes;
    schema.arrival = arrival.clone();
    schema
}

/// A message on its way into a record.
pub(crate) struct Unwritten<'a> {
    pub(crate) number: u64,
    pub(crate) indexed_ns: i64,
    /// The tag; `None` in a recording without tags.
    pub(crate) format: Option<Format>,
    pub(crate) bytes: &'a [u8],
    /// The message's own time, where it differs from the indexed time.
    pub(crate) own_time_ns: Option<i64>,
}

impl Unwritten<'_> {
    /// Appends the record of the message to `out`.
    pub(crate) fn put(&self, record_bytes: u16, out: &mut Vec<u8>) {
        let end = out.len() + usize::from(record_bytes);
        let flag = if self.own_time_ns.is_some() { OWN_TIME } else { 0 };
        let length = self.bytes.len() as u16 | flag;
        out.extend_from_slice(&self.indexed_ns.to_le_bytes());
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&length.to_le_bytes());
        out.extend(self.format.map(|format| format.0));
        out.extend_from_slice(self.bytes);
        out.extend(self.own_time_ns.iter().flat_map(|time_ns| time_ns.to_le_bytes()));
        out.resize(end, 0);
    }
}

/// Reads a message from its record.
pub(crate) fn parse(record: &[u8], head_bytes: usize) -> RecordedMessage {
    let indexed_ns = evenfall_store_format::layout::record_time(record);
    let length = u16::from_le_bytes([record[16], record[17]]);
    let is_tagged = head_bytes == HEAD_BYTES;
    let format = if is_tagged { Format(record[HEAD_BYTES - 1]) } else { Format::OPAQUE };
    let body = &record[head_bytes..];
    let (message, rest) = body.split_at(usize::from(length & !OWN_TIME).min(body.len()));
    let own_time = rest.first_chunk().filter(|_| length & OWN_TIME != 0);
    let time_ns = own_time.map_or(indexed_ns, |bytes| i64::from_le_bytes(*bytes));
    RecordedMessage {
        number: number_of(record),
        time_ns,
        format,
        indexed_ns,
        bytes: message.to_vec(),
    }
}

/// A message of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedMessage {
    /// Number of the message in its stream.
    pub number: u64,
    /// The message's own time.
    pub time_ns: i64,
    /// The tag of the message's codec, or opaque in a recording without tags.
    pub format: Format,
    /// The time by which the message is indexed. This time differs from the message's own time when
    /// the own time went back, or lay in the future when the message came.
    pub indexed_ns: i64,
    /// Bytes of the message.
    pub bytes: Vec<u8>,
}

pub(crate) fn number_of(record: &[u8]) -> u64 {
    u64::from_le_bytes(record[8..16].try_into().expect("a record has a number"))
}
