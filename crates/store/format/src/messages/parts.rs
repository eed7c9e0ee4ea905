//! Messages of any length in records of one length.
//!
//! A record is found by arithmetic because all records of a file have one length, and messages have
//! many. A stream therefore has one file of short records, and a message takes as many of them as
//! it needs, one behind the other under its number.
//!
//! ```text
//!  0           8           16       18       19           23                                  64
//! +-----------+-----------+--------+--------+------------+-----------------------------------+
//! | time  i64 | number u64| length | format | missed u32 | a part of the message, then zeros |
//! +-----------+-----------+--------+--------+------------+-----------------------------------+
//! ```
//!
//! All records of a message have its time, number, format and `missed`. Messages of ITCH have 12 to
//! 50 bytes, and nearly all of them fit into the 41 bytes of one record.
//!
//! | `length` | the record has |
//! |---|---|
//! | below `PART` | the whole message, of so many bytes |
//! | `PART` and 0x3fff, 0x3ffe | the first part of a message, a part between the first and the last |
//! | `PART` and 0x3ffd | nothing: filler |
//! | `PART` and a length | the last part, of so many bytes |
//!
//! With `OWN_TIME`, the last eight bytes of the message are its own time, and not of the message.
//!
//! `missed` counts the numbers that have no message, from the beginning of the file to this one.
//! Two records therefore tell how many messages lie between them, and none between is read.
//!
//! A chunk in columns is decoded group by group, so no message crosses the end of a group: filler
//! takes the records in front of that end. Retention, which removes whole chunks, cuts no message
//! either.

use core::ops::Range;

use crate::columnar::SEGMENTS_PER_GROUP;
use crate::layout::PAYLOAD_BYTES;
use crate::schema::{ArrivalOrder, Field, FieldType, Schema};

use super::{FORMAT_AT, LENGTH_AT, NUMBER_AT, OWN_TIME, PART};

/// Bytes of a record.
pub const PARTED_RECORD_BYTES: u16 = 64;
/// First byte of the count of missed numbers.
const MISSED_AT: usize = FORMAT_AT + 1;
/// First byte of the part of the message.
const PART_AT: usize = MISSED_AT + 4;
/// Bytes of a message in a record.
pub const PART_BYTES: usize = PARTED_RECORD_BYTES as usize - PART_AT;
/// Bytes of the largest message. A datagram is shorter.
pub const MESSAGE_BYTES_MAX: usize = 65_535;
/// Records of a group of segments, beyond whose end no message goes.
pub const RECORDS_PER_GROUP: u64 =
    SEGMENTS_PER_GROUP as u64 * (PAYLOAD_BYTES / PARTED_RECORD_BYTES as usize) as u64;
/// In the place of the length of a message's first part.
pub const FIRST_PART: u16 = 0x3fff;
/// In the place of the length of a part between the first and the last part.
pub const MIDDLE_PART: u16 = 0x3ffe;
/// In the place of the length of filler.
const FILLER: u16 = 0x3ffd;
/// Bytes of a message's own time.
const OWN_TIME_BYTES: usize = 8;

/// The schema of a stream's messages.
pub fn parted_schema(arrival: &ArrivalOrder) -> Schema {
    let mut schema = Schema::of(&[
        ("time", FieldType::Time),
        ("number", FieldType::U64),
        ("length", FieldType::U16),
        ("format", FieldType::U8),
        ("missed", FieldType::U32),
    ]);
    let (name, kind) = ("part".to_owned(), FieldType::Bytes);
    let (offset, len) = (PART_AT as u16, PART_BYTES as u16);
    schema.fields.push(Field { name, offset, len, kind, aggregate: false });
    schema.record_bytes = PARTED_RECORD_BYTES;
    schema.arrival = arrival.clone();
    schema
}

/// Whether records of this schema have messages in parts.
pub fn is_parted(schema: &Schema) -> bool {
    schema.record_bytes == PARTED_RECORD_BYTES
        && schema.fields == parted_schema(&schema.arrival).fields
}

/// What a record holds of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartKind {
    /// All of it.
    Whole,
    /// The first part.
    First,
    /// A part between the first and the last.
    Middle,
    /// The last part.
    Last,
    /// Nothing.
    Filler,
}

impl PartKind {
    /// The kind that a record states in its length. Without its flags, the length is a number of
    /// bytes in whole messages and last parts alone.
    pub fn of_length(length: u16) -> Self {
        match (length & PART != 0, length & !OWN_TIME & !PART) {
            (false, _) => Self::Whole,
            (true, FIRST_PART) => Self::First,
            (true, MIDDLE_PART) => Self::Middle,
            (true, FILLER) => Self::Filler,
            (true, _) => Self::Last,
        }
    }

    /// Whether a file that ends with such a record ends within a message: a crash has kept the
    /// first parts of the message. Its writer records the message again.
    pub fn is_cut_end(self) -> bool {
        matches!(self, Self::First | Self::Middle)
    }

    /// What a reader does with the next record, which is of this kind and of the message of this
    /// number. `open` is the message of which the reader has all parts so far, but not the last.
    pub fn step_of(self, number: u64, open: Option<u64>) -> PartStep {
        let goes_on = matches!(self, Self::Middle | Self::Last);
        match (open, self) {
            (Some(open), _) if !goes_on || open != number => PartStep::Cut,
            (None, Self::Middle | Self::Last) | (_, Self::Filler) => PartStep::Pass,
            (_, Self::Whole | Self::Last) => PartStep::End,
            (_, Self::First | Self::Middle) => PartStep::Extend,
        }
    }
}

/// What a reader does with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartStep {
    /// Forgets the open message, which a crash has cut short, and looks at the record again.
    Cut,
    /// Adds the bytes of the record to those of the message.
    Extend,
    /// Adds the bytes of the record, and has the message.
    End,
    /// Passes over the record: filler, or a part of a message whose first part is not there.
    Pass,
}

/// A message that is put into records, or was read out of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartedMessage<'a> {
    /// The time by which the message is found.
    pub recorded_ns: i64,
    /// Its number.
    pub number: u64,
    /// The tag of its format.
    pub tag: u8,
    /// Numbers without a message, from the beginning of the file to this one. The count starts
    /// again at zero after 2^32 of them.
    pub missed: u32,
    /// The message's own time, where it is not the time by which it is found.
    pub own_ns: Option<i64>,
    /// Its bytes.
    pub bytes: &'a [u8],
}

impl PartedMessage<'_> {
    /// Records that the message takes.
    pub fn records(&self) -> usize {
        let own_time = if self.own_ns.is_some() { OWN_TIME_BYTES } else { 0 };
        (self.bytes.len() + own_time).div_ceil(PART_BYTES).max(1)
    }

    /// Appends the records of the message to `out`.
    pub fn put(&self, out: &mut Vec<u8>) {
        let own_time = self.own_ns.map(i64::to_le_bytes);
        let flag = if own_time.is_some() { OWN_TIME } else { 0 };
        let records = self.records();
        for at in 0..records {
            let begin = out.len();
            let from = at * PART_BYTES;
            let part = self.bytes.get(from..).unwrap_or_default();
            let part = &part[..part.len().min(PART_BYTES)];
            self.put_head(out);
            out.extend_from_slice(part);
            let own_time = own_time.as_ref().map_or(&[][..], |bytes| &bytes[..]);
            // The own time lies behind the message, and may begin in one part and end in the next.
            let own_from = from.saturating_sub(self.bytes.len()).min(own_time.len());
            let room = PART_BYTES - part.len();
            let own = &own_time[own_from..own_time.len().min(own_from + room)];
            out.extend_from_slice(own);
            let length = match (records, at) {
                (1, _) => (part.len() + own.len()) as u16 | flag,
                (_, 0) => PART | FIRST_PART,
                _ if at + 1 < records => PART | MIDDLE_PART,
                _ => PART | (part.len() + own.len()) as u16 | flag,
            };
            out[begin + LENGTH_AT..begin + FORMAT_AT].copy_from_slice(&length.to_le_bytes());
            out.resize(begin + usize::from(PARTED_RECORD_BYTES), 0);
        }
    }

    /// Appends the records of the message to `out`, behind `before` records of its file. Filler of
    /// the message in front comes first where the group has too few records left. Returns the
    /// number of records.
    pub fn put_behind(
        &self,
        last: Option<PartedMessage<'_>>,
        before: u64,
        out: &mut Vec<u8>,
    ) -> u64 {
        let (records, left) =
            (self.records() as u64, RECORDS_PER_GROUP - before % RECORDS_PER_GROUP);
        let mut filler = 0;
        if let Some(last) = last.filter(|_| records > left) {
            last.put_filler(left as usize, out);
            filler = left;
        }
        self.put(out);
        filler + records
    }

    /// Appends filler behind the message to `out`.
    pub fn put_filler(&self, records: usize, out: &mut Vec<u8>) {
        for _ in 0..records {
            let begin = out.len();
            self.put_head(out);
            let length = PART | FILLER;
            out[begin + LENGTH_AT..begin + FORMAT_AT].copy_from_slice(&length.to_le_bytes());
            out.resize(begin + usize::from(PARTED_RECORD_BYTES), 0);
        }
    }

    fn put_head(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.recorded_ns.to_le_bytes());
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&[0, 0, self.tag]);
        out.extend_from_slice(&self.missed.to_le_bytes());
    }
}

/// A record, read in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartRecord<'a> {
    /// What it holds of its message.
    pub kind: PartKind,
    /// Time, number, tag and `missed` of the message, and the bytes of this part.
    pub message: PartedMessage<'a>,
    /// Whether the bytes of the message end with its own time.
    pub has_own_time: bool,
}

impl<'a> PartRecord<'a> {
    /// Reads a record. Bytes that are missing are zeros, and a length beyond the record is cut.
    pub fn of(record: &'a [u8]) -> Self {
        fn number<const N: usize>(record: &[u8], at: usize) -> [u8; N] {
            record.get(at..at + N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
        }
        let length = u16::from_le_bytes(number(record, LENGTH_AT));
        let kind = PartKind::of_length(length);
        let part = record.get(PART_AT..).unwrap_or_default();
        let len = match kind {
            PartKind::Whole | PartKind::Last => usize::from(length & !OWN_TIME & !PART),
            PartKind::First | PartKind::Middle => part.len(),
            PartKind::Filler => 0,
        };
        let message = PartedMessage {
            recorded_ns: i64::from_le_bytes(number(record, 0)),
            number: u64::from_le_bytes(number(record, NUMBER_AT)),
            tag: number::<1>(record, FORMAT_AT)[0],
            missed: u32::from_le_bytes(number(record, MISSED_AT)),
            own_ns: None,
            bytes: &part[..len.min(part.len())],
        };
        Self { kind, message, has_own_time: length & OWN_TIME != 0 }
    }
}

/// The bytes of a message, and its own time, which may lie behind them.
pub fn split_own_time(bytes: &[u8], has_own_time: bool) -> (&[u8], Option<i64>) {
    match bytes.split_last_chunk() {
        Some((message, own_time)) if has_own_time => (message, Some(i64::from_le_bytes(*own_time))),
        _ => (bytes, None),
    }
}

/// A message of a [`PartedGroup`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinedMessage<'a> {
    /// The message.
    pub message: PartedMessage<'a>,
    /// Its bytes with its own time behind them, where it has one.
    pub with_own_time: &'a [u8],
    /// Its records, and the filler behind them.
    pub records: u32,
}

/// Where a message of a [`PartedGroup`] lies in the bytes of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
struct JoinedPlace {
    head: (i64, u64, u8, u32),
    own_ns: Option<i64>,
    /// The bytes of the message, and behind them its own time.
    bytes: Range<usize>,
    end: usize,
    records: u32,
}

/// The messages of a group of records, put together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartedGroup {
    bytes: Vec<u8>,
    places: Vec<JoinedPlace>,
}

impl PartedGroup {
    /// The messages of these records. `None` when the records are not exactly those of whole
    /// messages with filler behind them: a crash has cut a message short, or somebody else wrote.
    pub fn join<'a>(records: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let mut group = Self::default();
        let (mut was, mut again) = (Vec::new(), Vec::new());
        let mut is_open = false;
        for record in records {
            let found = PartRecord::of(record);
            match found.kind {
                PartKind::Filler if !is_open => {
                    group.places.last_mut()?.records += 1;
                    again.clear();
                    group.messages().next_back()?.message.put_filler(1, &mut again);
                    if record != &again[..] {
                        return None;
                    }
                    continue;
                }
                PartKind::Whole | PartKind::First if !is_open => {
                    group.begin(&found.message);
                    was.clear();
                }
                PartKind::Middle | PartKind::Last if is_open => {}
                _ => return None,
            }
            was.extend_from_slice(record);
            group.bytes.extend_from_slice(found.message.bytes);
            group.places.last_mut()?.records += 1;
            is_open = matches!(found.kind, PartKind::First | PartKind::Middle);
            if !is_open {
                group.end(found.has_own_time);
                again.clear();
                group.messages().next_back()?.message.put(&mut again);
                if was != again {
                    return None;
                }
            }
        }
        (!is_open).then_some(group)
    }

    fn begin(&mut self, of: &PartedMessage<'_>) {
        let (head, end) = ((of.recorded_ns, of.number, of.tag, of.missed), self.bytes.len());
        self.places.push(JoinedPlace { head, own_ns: None, bytes: end..end, end, records: 0 });
    }

    fn end(&mut self, has_own_time: bool) {
        let Some(place) = self.places.last_mut() else { return };
        let (bytes, own_ns) = split_own_time(&self.bytes[place.bytes.start..], has_own_time);
        place.bytes.end = place.bytes.start + bytes.len();
        (place.own_ns, place.end) = (own_ns, self.bytes.len());
    }

    /// The messages in order.
    pub fn messages(
        &self,
    ) -> impl ExactSizeIterator<Item = JoinedMessage<'_>> + DoubleEndedIterator {
        self.places.iter().map(|place| {
            let (recorded_ns, number, tag, missed) = place.head;
            let (own_ns, bytes) = (place.own_ns, &self.bytes[place.bytes.clone()]);
            JoinedMessage {
                message: PartedMessage { recorded_ns, number, tag, missed, own_ns, bytes },
                with_own_time: &self.bytes[place.bytes.start..place.end],
                records: place.records,
            }
        })
    }
}

/// The messages between two records of a file, counted by their numbers: those from the message of
/// the first record on, and in front of the message of the second.
pub fn messages_between(first: &[u8], second: &[u8]) -> u64 {
    let (first, second) = (PartRecord::of(first).message, PartRecord::of(second).message);
    let missed = second.missed.wrapping_sub(first.missed);
    second.number.saturating_sub(first.number).saturating_sub(missed.into())
}

#[cfg(test)]
mod tests {
    use evenfall_core::Prng;

    use super::*;

    const RECORD: usize = PARTED_RECORD_BYTES as usize;

    fn message(number: u64, own_ns: Option<i64>, bytes: &[u8]) -> PartedMessage<'_> {
        PartedMessage { recorded_ns: 7, number, tag: 1, missed: 3, own_ns, bytes }
    }

    #[test]
    fn messages_of_all_lengths_come_back_out_of_their_records() {
        let bytes: Vec<u8> = (0..MESSAGE_BYTES_MAX).map(|at| (at * 7) as u8).collect();
        let lengths = (0..200).chain([4_000, 65_494, 65_534, MESSAGE_BYTES_MAX]);
        for (number, len) in (0..).zip(lengths) {
            for own_ns in [None, Some(-5)] {
                let one = message(number, own_ns, &bytes[..len]);
                let mut records = Vec::new();
                one.put(&mut records);
                assert_eq!(records.len(), one.records() * RECORD, "{len}");
                one.put_filler(2, &mut records);
                let group = PartedGroup::join(records.chunks(RECORD)).expect("whole messages");
                let found: Vec<_> =
                    group.messages().map(|one| (one.message, one.records)).collect();
                assert_eq!(found, [(one, one.records() as u32 + 2)], "{len}");
            }
        }
        assert!(RECORDS_PER_GROUP > MESSAGE_BYTES_MAX.div_ceil(PART_BYTES) as u64 + 1);
        parted_schema(&ArrivalOrder::default()).check().expect("a schema");
        assert!(is_parted(&parted_schema(&ArrivalOrder {
            window_ns: 5,
            ..ArrivalOrder::default()
        })));
        assert!(!is_parted(&Schema::opaque(PARTED_RECORD_BYTES)));
    }

    #[test]
    fn messages_cut_short_and_records_of_others_are_not_joined() {
        let (long, mut records) = ([9; 100], Vec::new());
        message(1, None, &long).put(&mut records);
        message(2, None, b"short").put(&mut records);
        let all: Vec<&[u8]> = records.chunks(RECORD).collect();
        assert!(PartedGroup::join(all.iter().copied()).is_some());
        assert!(PartedGroup::join(all[1..].iter().copied()).is_none(), "no first part");
        assert!(PartedGroup::join(all[..2].iter().copied()).is_none(), "no last part");
        assert!(PartedGroup::join([all[0], all[3]].into_iter()).is_none(), "another message");
        let mut filler = Vec::new();
        message(2, None, b"").put_filler(1, &mut filler);
        assert!(PartedGroup::join([&filler[..]].into_iter()).is_none(), "nothing to fill behind");
        assert!(PartedGroup::join([all[3], &filler].into_iter()).is_some());
        // Whatever a flipped bit makes of the records, what is joined gives the same bytes back.
        let mut prng = Prng::new(5);
        for _ in 0..20_000 {
            let mut flipped = records.clone();
            flipped.extend_from_slice(&filler);
            for _ in 0..1 + prng.below(2) {
                let at = prng.below(flipped.len() as u64) as usize;
                flipped[at] ^= 1 << prng.below(8);
            }
            let Some(group) = PartedGroup::join(flipped.chunks(RECORD)) else { continue };
            let mut again = Vec::new();
            for JoinedMessage { message, records, .. } in group.messages() {
                message.put(&mut again);
                message.put_filler(records as usize - message.records(), &mut again);
            }
            assert!(again == flipped);
        }
    }

    #[test]
    fn a_reader_gives_up_what_was_cut_short_and_begins_with_no_later_part() {
        for (kind, number, open, step) in [
            (PartKind::Whole, 5, None, PartStep::End),
            (PartKind::First, 5, None, PartStep::Extend),
            (PartKind::Middle, 5, Some(5), PartStep::Extend),
            (PartKind::Last, 5, Some(5), PartStep::End),
            (PartKind::Middle, 5, None, PartStep::Pass),
            (PartKind::Last, 5, None, PartStep::Pass),
            (PartKind::Filler, 5, None, PartStep::Pass),
            (PartKind::Whole, 5, Some(5), PartStep::Cut),
            (PartKind::First, 5, Some(5), PartStep::Cut),
            (PartKind::Filler, 5, Some(5), PartStep::Cut),
            (PartKind::Last, 6, Some(5), PartStep::Cut),
        ] {
            assert_eq!(kind.step_of(number, open), step, "{kind:?} {number} {open:?}");
        }
    }

    #[test]
    fn two_records_tell_the_messages_between_them() {
        let record = |number, missed| {
            let mut records = Vec::new();
            PartedMessage { missed, ..message(number, None, b"") }.put(&mut records);
            records
        };
        assert_eq!(messages_between(&record(10, 0), &record(20, 0)), 10);
        assert_eq!(messages_between(&record(10, 4), &record(20, 7)), 7);
        assert_eq!(messages_between(&record(10, u32::MAX), &record(20, 1)), 8);
        assert_eq!(messages_between(&record(10, 0), &record(5, 0)), 0);
    }
}
