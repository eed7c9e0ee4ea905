//! A feed in the store: every message, in the order of its stream, byte for byte.
//!
//! The records of a file have one length, and messages have many. A stream is one file,
//! `<name>.<stream>.messages`, of short records, and a message takes as many of them as it needs
//! ([`parts`](evenfall_store_format::messages::parts)).
//!
//! Earlier versions kept a stream in up to six files by size class. A message went into the
//! smallest record that holds it, and reading merges the classes by the numbers of messages:
//!
//! ```text
//! <name>.<stream>.<record bytes>
//!  0           8           16       18       19
//! +-----------+-----------+--------+--------+-------------------
//! | time  i64 | number u64| length | format | message, then zero
//! +-----------+-----------+--------+--------+-------------------
//! ```
//!
//! The format is the tag of the message's codec ([`evenfall_feed_formats::codec`]). The tag 255
//! says that the message is opaque bytes. The tag 0 says nothing: recordings of runs had no other
//! tag before, whatever their messages were. Recordings of still earlier versions have no format
//! byte: their messages begin at byte 18, as their schema says. Messages without a tag get the
//! format that can read all of the first of them
//! ([`untagged_format`](crate::RecordingSnapshot::untagged_format)). A recording keeps the layout
//! with which it began.
//!
//! A message that does not fit the largest record of a class is split. Its parts lie in consecutive
//! records of that length, under one number. The second highest bit of the length marks a part. All
//! parts but the last have eight bytes less than the room of a record, and their length says
//! instead whether the part is the first.
//!
//! The time of a message is the time of its release, or the feed's own time. A file is indexed by
//! the first eight bytes of its records, which never decrease. A message's own time may lie before
//! the time of the previous message, or ahead of this machine's clock. The message is then indexed
//! by the nearest allowed time, and its own time follows its bytes, which the highest bit of the
//! length marks. One wrong stamp therefore changes no other message's time, and every stamp is
//! kept.

use evenfall_feed_formats::Format;
pub(crate) use evenfall_store_format::messages::OWN_TIME;
pub use evenfall_store_format::messages::parts::MESSAGE_BYTES_MAX;
use evenfall_store_format::messages::parts::{
    FIRST_PART, MIDDLE_PART, PartKind, PartRecord, is_parted, split_own_time,
};
use evenfall_store_format::messages::{FORMAT_AT, PART};
use evenfall_store_format::schema::ArrivalOrder;
use evenfall_store_format::{Field, FieldType, Schema};

/// Bytes in front of the message.
pub(crate) use evenfall_store_format::messages::MESSAGE_AT as HEAD_BYTES;
/// Bytes in front of the message in a recording without formats, one byte fewer.
pub(crate) const UNTAGGED_HEAD_BYTES: usize = 18;
/// Bytes of the message's own time.
pub(crate) const OWN_TIME_BYTES: usize = 8;
/// Room that every part leaves, so that the message's own time fits behind the last part.
const PART_BYTES_LESS: usize = OWN_TIME_BYTES;
/// The tag of a message that is opaque bytes. A codec never has this tag.
const OPAQUE_TAG: u8 = u8::MAX;
/// Record lengths of earlier versions. ITCH messages have 12 to 50 bytes and fill the first three
/// lengths well. The last length fills a segment of the store.
pub(crate) const CLASSES: [u16; 6] = [32, 48, 72, 160, 1_024, 16_352];

/// How the messages of a file lie in its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordLayout {
    /// In parts of one length.
    Parted,
    /// By size class, each behind so many bytes.
    Sized { head_bytes: usize },
}

impl RecordLayout {
    /// The layout of records of this schema.
    pub(crate) fn of(schema: &Schema) -> Self {
        match is_parted(schema) {
            true => Self::Parted,
            false => Self::Sized { head_bytes: head_bytes(schema) },
        }
    }
}

/// Offset of the message in records of this schema.
fn head_bytes(schema: &Schema) -> usize {
    if schema.field("format").is_some() { HEAD_BYTES } else { UNTAGGED_HEAD_BYTES }
}

pub(crate) fn sized_schema(record_bytes: u16, arrival: &ArrivalOrder, head_bytes: usize) -> Schema {
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
    /// Whether a record of this many bytes holds the message whole.
    pub(crate) fn fits(&self, record_bytes: u16, head_bytes: usize) -> bool {
        let own_time_bytes = if self.own_time_ns.is_some() { OWN_TIME_BYTES } else { 0 };
        head_bytes + self.bytes.len() + own_time_bytes <= usize::from(record_bytes)
    }

    /// Appends the record of the message to `out`, or the records of its parts.
    pub(crate) fn put(&self, record_bytes: u16, head_bytes: usize, out: &mut Vec<u8>) {
        if self.fits(record_bytes, head_bytes) {
            let length = self.bytes.len() as u16;
            return self.put_record((length, self.bytes, true), record_bytes, out);
        }
        let room = usize::from(record_bytes) - head_bytes - PART_BYTES_LESS;
        let mut parts = self.bytes.chunks(room).peekable();
        let mut mark = FIRST_PART;
        while let Some(part) = parts.next() {
            let is_last = parts.peek().is_none();
            let length = PART | if is_last { part.len() as u16 } else { mark };
            self.put_record((length, part, is_last), record_bytes, out);
            mark = MIDDLE_PART;
        }
    }

    fn put_record(
        &self,
        (length, bytes, is_last): (u16, &[u8], bool),
        record_bytes: u16,
        out: &mut Vec<u8>,
    ) {
        let end = out.len() + usize::from(record_bytes);
        let own_time_ns = self.own_time_ns.filter(|_| is_last);
        let flag = if own_time_ns.is_some() { OWN_TIME } else { 0 };
        out.extend_from_slice(&self.indexed_ns.to_le_bytes());
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&(length | flag).to_le_bytes());
        out.extend(self.format.map(tag_of));
        out.extend_from_slice(bytes);
        out.extend(own_time_ns.iter().flat_map(|time_ns| time_ns.to_le_bytes()));
        out.resize(end, 0);
    }
}

pub(crate) fn tag_of(format: Format) -> u8 {
    if format == Format::OPAQUE { OPAQUE_TAG } else { format.0 }
}

fn format_of_tag(tag: u8) -> Option<Format> {
    match tag {
        0 => None,
        OPAQUE_TAG => Some(Format::OPAQUE),
        tag => Some(Format(tag)),
    }
}

/// A record of a message, read in place.
pub(crate) struct RecordView<'a> {
    pub(crate) kind: PartKind,
    number: u64,
    indexed_ns: i64,
    pub(crate) format: Option<Format>,
    bytes: &'a [u8],
    own_time_ns: Option<i64>,
    /// Whether the bytes of the message end with its own time.
    ends_with_own_time: bool,
}

impl<'a> RecordView<'a> {
    pub(crate) fn of(record: &'a [u8], layout: RecordLayout) -> Self {
        match layout {
            RecordLayout::Parted => Self::of_part(record),
            RecordLayout::Sized { head_bytes } => Self::of_sized(record, head_bytes),
        }
    }

    fn of_part(record: &'a [u8]) -> Self {
        let PartRecord { kind, message, has_own_time } = PartRecord::of(record);
        Self {
            kind,
            number: message.number,
            indexed_ns: message.recorded_ns,
            format: format_of_tag(message.tag),
            bytes: message.bytes,
            own_time_ns: None,
            ends_with_own_time: has_own_time,
        }
    }

    fn of_sized(record: &'a [u8], head_bytes: usize) -> Self {
        let length = u16::from_le_bytes([record[16], record[17]]);
        let (kind, body) = (PartKind::of_length(length), &record[head_bytes..]);
        let bytes = match kind {
            PartKind::First | PartKind::Middle => body.len().saturating_sub(PART_BYTES_LESS),
            _ => usize::from(length & !OWN_TIME & !PART),
        };
        let (bytes, rest) = body.split_at(bytes.min(body.len()));
        let own_time = rest.first_chunk().filter(|_| length & OWN_TIME != 0);
        let is_tagged = head_bytes == HEAD_BYTES;
        Self {
            kind,
            number: number_of(record),
            indexed_ns: evenfall_store_format::layout::record_time(record),
            format: if is_tagged { format_of_tag(record[FORMAT_AT]) } else { None },
            bytes,
            own_time_ns: own_time.map(|bytes| i64::from_le_bytes(*bytes)),
            ends_with_own_time: false,
        }
    }

    /// The message of this record, with the bytes of the parts before it.
    pub(crate) fn message(&self, before: &[u8]) -> RecordedMessage {
        let mut bytes = [before, self.bytes].concat();
        let (message, own_time_ns) = split_own_time(&bytes, self.ends_with_own_time);
        let len = message.len();
        bytes.truncate(len);
        RecordedMessage {
            number: self.number,
            time_ns: own_time_ns.or(self.own_time_ns).unwrap_or(self.indexed_ns),
            format: self.format,
            indexed_ns: self.indexed_ns,
            bytes,
        }
    }

    /// Adds the bytes of this part to those of the parts before it.
    pub(crate) fn extend(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.bytes);
    }
}

/// Whether files of this schema hold the messages of a recording in records of this length. A
/// user's file may have the name of a part of a recording, and is no part of it.
pub(crate) fn is_message_schema(found: &Schema, record_bytes: u16) -> bool {
    CLASSES.contains(&record_bytes)
        && *found == sized_schema(record_bytes, &found.arrival, head_bytes(found))
}

/// A message of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedMessage {
    /// Number of the message in its stream.
    pub number: u64,
    /// The message's own time.
    pub time_ns: i64,
    /// The format that the writer stated, which may be opaque; `None` when the writer stated none.
    pub format: Option<Format>,
    /// The time by which the message is indexed. This time differs from the message's own time when
    /// the own time went back, or lay in the future when the message came.
    pub indexed_ns: i64,
    /// Bytes of the message.
    pub bytes: Vec<u8>,
}

pub(crate) fn number_of(record: &[u8]) -> u64 {
    u64::from_le_bytes(record[8..16].try_into().expect("a record has a number"))
}
