//! The messages in the records of a chunk, whatever their layout.

use evenfall_store_format::Schema;
use evenfall_store_format::columnar::GROUPS_PER_CHUNK;
use evenfall_store_format::layout::record_time;
use evenfall_store_format::messages::parts::{JoinedMessage, PartedGroup, is_parted};
use evenfall_store_format::messages::{
    FORMAT_AT, LENGTH_AT, MESSAGE_AT, NUMBER_AT, OWN_TIME, PART, is_message_record,
};

use super::SAMPLE_ROWS;
use crate::encode::Rows;

/// A message, or a part of one that has a record of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageRecord<'a> {
    pub number: u64,
    pub recorded_ns: i64,
    /// The message's own time.
    pub own_ns: i64,
    pub tag: u8,
    /// What the record states as its length.
    pub length: u16,
    /// The message, when it lies whole in its records and nothing else does.
    pub plain: Option<&'a [u8]>,
    /// The message, when it lies whole in its records.
    pub stated: Option<&'a [u8]>,
    /// What is kept of a message that is not shredded.
    pub kept: &'a [u8],
    /// Numbers without a message.
    pub missed: u32,
    /// Records up to the next message.
    pub records: u32,
}

impl<'a> MessageRecord<'a> {
    /// The message of a record of its size.
    fn of_row(row: &'a [u8]) -> Self {
        let number = row[NUMBER_AT..LENGTH_AT].try_into().expect("eight bytes");
        let length = u16::from_le_bytes([row[LENGTH_AT], row[LENGTH_AT + 1]]);
        let (recorded_ns, body) = (record_time(row), &row[MESSAGE_AT..]);
        let stated = usize::from(length & !OWN_TIME & !PART);
        // The message's own time follows its bytes when it is not the recorded time.
        let own = body.get(stated..).and_then(|bytes| bytes.first_chunk());
        let own = own.filter(|_| length & OWN_TIME != 0).map(|bytes| i64::from_le_bytes(*bytes));
        let is_whole = |(_, after): &(&[u8], &[u8])| after.iter().all(|byte| *byte == 0);
        Self {
            number: u64::from_le_bytes(number),
            recorded_ns,
            own_ns: own.unwrap_or(recorded_ns),
            tag: row[FORMAT_AT],
            length,
            plain: body.split_at_checked(usize::from(length)).filter(is_whole).map(|of| of.0),
            stated: body.get(..stated).filter(|_| length & PART == 0),
            kept: &body[..kept_bytes(body, stated)],
            missed: 0,
            records: 1,
        }
    }

    /// A message out of its parts.
    fn of_parts(of: JoinedMessage<'a>) -> Self {
        let message = of.message;
        Self {
            number: message.number,
            recorded_ns: message.recorded_ns,
            own_ns: message.own_ns.unwrap_or(message.recorded_ns),
            tag: message.tag,
            length: message.bytes.len() as u16,
            plain: Some(message.bytes).filter(|_| message.own_ns.is_none()),
            stated: Some(message.bytes),
            kept: of.with_own_time,
            missed: message.missed,
            records: of.records,
        }
    }
}

/// As many bytes as the record states, and at least those up to the last byte that is not zero.
fn kept_bytes(body: &[u8], stated: usize) -> usize {
    let zeros = body.iter().rev().take_while(|byte| **byte == 0).count();
    let len = if stated <= body.len() { stated } else { 0 };
    len.max(body.len() - zeros)
}

/// The messages of a chunk.
pub(crate) enum ChunkMessages<'a> {
    /// A record has a message of its size, or a part of one.
    Sized(&'a Rows<'a>),
    /// Messages out of their parts, group by group.
    Parted(Vec<PartedGroup>),
}

impl<'a> ChunkMessages<'a> {
    /// The messages in these rows. `None` when the rows are not messages alone.
    pub(crate) fn of(rows: &'a Rows<'a>, schema: &Schema) -> Option<Self> {
        if is_parted(schema) {
            let join = |group| PartedGroup::join(rows.group(group).into_rows());
            return (0..GROUPS_PER_CHUNK).map(join).collect::<Option<_>>().map(Self::Parted);
        }
        is_message_record(schema).then_some(Self::Sized(rows))
    }

    pub(super) fn is_parted(&self) -> bool {
        matches!(self, Self::Parted(_))
    }

    /// The messages of a group.
    pub(super) fn group(&self, group: u32) -> Box<dyn Iterator<Item = MessageRecord<'_>> + '_> {
        match self {
            Self::Sized(rows) => Box::new(rows.group(group).into_rows().map(MessageRecord::of_row)),
            Self::Parted(groups) => {
                let of = groups.get(group as usize).into_iter();
                Box::new(of.flat_map(PartedGroup::messages).map(MessageRecord::of_parts))
            }
        }
    }

    /// All messages.
    pub(super) fn all(&self) -> impl Iterator<Item = MessageRecord<'_>> + '_ {
        (0..GROUPS_PER_CHUNK).flat_map(move |group| self.group(group))
    }

    /// Messages from two places.
    pub(super) fn sample(&self) -> impl Iterator<Item = MessageRecord<'_>> + '_ {
        let groups = [1, GROUPS_PER_CHUNK - 1];
        groups.into_iter().flat_map(move |group| self.group(group).take(SAMPLE_ROWS))
    }
}
