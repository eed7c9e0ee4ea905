//! Rows that are messages of a recording, as columns that people query.
//!
//! | column | type | of a record |
//! |---|---|---|
//! | `seq` | 64 bits | its number, counted from 1 |
//! | `time` | nanoseconds | the venue's clock at the time that the message states, or was recorded |
//! | `recorded_offset` | 64 bits | the time under which it is recorded (UTC), less `time` |
//! | `format` | 8 bits | the tag of its format |
//! | `type`, `side`, `symbol` | text or null | |
//! | `locate`, `tracking` | 32 bits or null | |
//! | `order_ref`, `new_order_ref`, `shares`, `match` | 64 bits or null | |
//! | `price` | decimal or null | |
//! | `length` | 16 bits or null | null when the message was shredded; else the field `length` |
//! | `rest` | bytes or null | what no column has: all of a message with a `length` |
//!
//! `recorded_offset` is one number over a whole chunk of a feed that was recorded under its own
//! times, and takes no bytes then. The recorded time itself would take as many as `time` does.

mod cells;
mod layouts;

use evenfall_store_format::Result;
use evenfall_store_format::columnar::{GROUPS_PER_CHUNK, ShreddedColumns};
use evenfall_store_format::layout::record_time;
use evenfall_store_format::messages::{
    FORMAT_AT, FormatLayout, LENGTH_AT, MESSAGE_AT, MessageField, MessageLayouts, MessageShredder,
    NUMBER_AT, OWN_TIME, PART, PRICE_DECIMALS, ShreddedMessage, is_message_record,
};
use parquet::basic::{LogicalType, Repetition, TimeUnit};
use parquet::errors::ParquetError;
use parquet::schema::types::{Type, TypePtr};
use std::ops::Range;

use self::cells::{Cells, CellsReader};
use self::layouts::{OffsetClock, chosen_layouts};
use crate::damaged;
use crate::decode::{GroupReader, Segments, StoredChunk};
use crate::encode::{About, BareFile, FileLayout, MESSAGES_VERSION, Rows, Sample, choose};
use crate::plan::{ColumnKind, parquet_schema};

/// Digits of a price in Parquet.
const PRICE_DIGITS: i32 = 18;
/// Rows of each of the two parts of a sample.
const SAMPLE_ROWS: usize = 4_096;

/// A column of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkField {
    Seq,
    Time,
    RecordedOffset,
    Format,
    Value(MessageField),
    Length,
    Rest,
}

/// The columns, in order.
const COLUMNS: [ChunkField; 16] = [
    ChunkField::Seq,
    ChunkField::Time,
    ChunkField::RecordedOffset,
    ChunkField::Format,
    ChunkField::Value(MessageField::Type),
    ChunkField::Value(MessageField::Locate),
    ChunkField::Value(MessageField::Tracking),
    ChunkField::Value(MessageField::OrderRef),
    ChunkField::Value(MessageField::NewOrderRef),
    ChunkField::Value(MessageField::Side),
    ChunkField::Value(MessageField::Shares),
    ChunkField::Value(MessageField::Symbol),
    ChunkField::Value(MessageField::Price),
    ChunkField::Value(MessageField::Match),
    ChunkField::Length,
    ChunkField::Rest,
];

impl ChunkField {
    fn name(self) -> &'static str {
        match self {
            Self::Seq => "seq",
            Self::Time => "time",
            Self::RecordedOffset => "recorded_offset",
            Self::Format => "format",
            Self::Value(field) => field.name(),
            Self::Length => "length",
            Self::Rest => "rest",
        }
    }

    fn kind(self) -> ColumnKind {
        match self {
            Self::Seq | Self::Time | Self::RecordedOffset => ColumnKind::Long,
            Self::Format | Self::Length => ColumnKind::Word,
            Self::Rest => ColumnKind::Text,
            Self::Value(field) if MessageField::TEXTS.contains(&field) => ColumnKind::Text,
            Self::Value(field) if field.is_narrow() => ColumnKind::Word,
            Self::Value(_) => ColumnKind::Long,
        }
    }

    /// Whether a row may have no value.
    fn is_optional(self) -> bool {
        matches!(self, Self::Value(_) | Self::Length | Self::Rest)
    }

    fn logical_type(self) -> Option<LogicalType> {
        match self {
            Self::Time => Some(LogicalType::timestamp(false, TimeUnit::NANOS)),
            Self::Format => Some(LogicalType::integer(8, false)),
            Self::Length => Some(LogicalType::integer(16, false)),
            Self::Value(MessageField::Price) => {
                Some(LogicalType::decimal(PRICE_DECIMALS.into(), PRICE_DIGITS))
            }
            Self::Value(field) if MessageField::TEXTS.contains(&field) => Some(LogicalType::String),
            Self::Seq | Self::RecordedOffset | Self::Value(_) | Self::Rest => None,
        }
    }

    fn parquet_type(self) -> Result<TypePtr, ParquetError> {
        let repetition =
            if self.is_optional() { Repetition::OPTIONAL } else { Repetition::REQUIRED };
        let mut builder = Type::primitive_type_builder(self.name(), self.kind().physical_type())
            .with_repetition(repetition);
        if self == Self::Value(MessageField::Price) {
            builder = builder.with_precision(PRICE_DIGITS).with_scale(PRICE_DECIMALS.into());
        }
        Ok(std::sync::Arc::new(builder.with_logical_type(self.logical_type()).build()?))
    }
}

/// A record of a recording.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageRecord<'a> {
    number: u64,
    recorded_ns: i64,
    length: u16,
    tag: u8,
    /// All bytes behind the head.
    body: &'a [u8],
}

impl<'a> MessageRecord<'a> {
    fn of(row: &'a [u8]) -> Self {
        let number = row[NUMBER_AT..LENGTH_AT].try_into().expect("eight bytes");
        Self {
            number: u64::from_le_bytes(number),
            recorded_ns: record_time(row),
            length: u16::from_le_bytes([row[LENGTH_AT], row[LENGTH_AT + 1]]),
            tag: row[FORMAT_AT],
            body: &row[MESSAGE_AT..],
        }
    }

    /// The message, when it lies whole in this record and only zeros follow it.
    fn plain_message(&self) -> Option<&'a [u8]> {
        let (message, after) = self.body.split_at_checked(usize::from(self.length))?;
        after.iter().all(|byte| *byte == 0).then_some(message)
    }

    /// The message, when it lies whole in this record.
    fn stated_message(&self) -> Option<&'a [u8]> {
        let len = usize::from(self.length & !OWN_TIME);
        self.body.get(..len).filter(|_| self.length & PART == 0)
    }

    /// The bytes of this part of a message: as many as the record states, and at least those up to
    /// the last byte that is not zero.
    fn stated_body(&self) -> &'a [u8] {
        let zeros = self.body.iter().rev().take_while(|byte| **byte == 0).count();
        let stated = usize::from(self.length & !OWN_TIME & !PART);
        let len = if stated <= self.body.len() { stated } else { 0 };
        &self.body[..len.max(self.body.len() - zeros)]
    }

    /// The message's own time, which follows its bytes when it is not the recorded time.
    fn own_ns(&self) -> i64 {
        let own = self.body.get(usize::from(self.length & !OWN_TIME & !PART)..);
        let own = own.and_then(|bytes| bytes.first_chunk()).map(|bytes| i64::from_le_bytes(*bytes));
        own.filter(|_| self.length & OWN_TIME != 0).unwrap_or(self.recorded_ns)
    }
}

/// The columns of the messages of a group.
struct ShreddedGroup {
    cells: Vec<Cells>,
}

impl ShreddedGroup {
    fn of(rows: &Rows<'_>, shredder: &MessageShredder, clock: &mut OffsetClock<'_>) -> Self {
        let count = rows.rows().count();
        let mut cells: Vec<Cells> =
            COLUMNS.iter().map(|one| Cells::new(one.kind(), one.is_optional(), count)).collect();
        let (mut values, mut scratch) = (ShreddedMessage::default(), Vec::new());
        for row in rows.rows() {
            let record = MessageRecord::of(row);
            let plain = record.plain_message();
            let mut is_whole = plain.is_some_and(|message| {
                shredder.shred_message(record.tag, message, &mut values, &mut scratch)
            });
            let stated = values.day_ns.filter(|_| is_whole);
            let time = clock.wall_ns(record.tag, record.own_ns(), stated);
            // On the day of a change of clocks the venue's clock may show another time of day.
            is_whole &= stated.is_none_or(|day_ns| day_ns_of(time) == day_ns);
            for (field, cells) in COLUMNS.iter().zip(&mut cells) {
                match field {
                    ChunkField::Seq => {
                        cells.push_number(Some(record.number.wrapping_add(1) as i64))
                    }
                    ChunkField::Time => cells.push_number(Some(time)),
                    ChunkField::RecordedOffset => {
                        cells.push_number(Some(record.recorded_ns.wrapping_sub(time)));
                    }
                    ChunkField::Format => cells.push_number(Some(record.tag.into())),
                    ChunkField::Length => {
                        cells.push_number((!is_whole).then_some(record.length.into()));
                    }
                    ChunkField::Rest if !is_whole => cells.push_text(Some(record.stated_body())),
                    ChunkField::Rest => {
                        cells.push_text(Some(&values.rest[..]).filter(|rest| !rest.is_empty()));
                    }
                    ChunkField::Value(MessageField::Type) if !is_whole => {
                        let message = record.stated_message();
                        let name = message.and_then(|message| {
                            clock.message_layouts().type_name(record.tag, message)
                        });
                        cells.push_text(name.map(str::as_bytes));
                    }
                    ChunkField::Value(_) if !is_whole => cells.push_null(),
                    ChunkField::Value(field) if MessageField::TEXTS.contains(field) => {
                        cells.push_text(values.text(*field));
                    }
                    ChunkField::Value(field) => cells.push_number(values.number(*field)),
                }
            }
        }
        Self { cells }
    }
}

/// The time of day of a time of the venue's clock.
fn day_ns_of(wall_ns: i64) -> u64 {
    wall_ns.rem_euclid(evenfall_store_format::messages::DAY_NS as i64) as u64
}

/// The messages of a chunk as a Parquet file.
pub(crate) fn write(
    rows: &Rows<'_>,
    known: &dyn MessageLayouts,
    candidates: Vec<FormatLayout>,
    about: &mut About,
) -> Result<BareFile, ParquetError> {
    let general = |error: evenfall_store_format::Error| ParquetError::General(error.to_string());
    let layouts = chosen_layouts(rows, candidates).map_err(general)?;
    let shredder = MessageShredder::new(&layouts).map_err(general)?;
    (about.messages, about.version) = (Some(layouts), MESSAGES_VERSION);
    let mut clock = OffsetClock::new(known);
    let groups = (0..GROUPS_PER_CHUNK).map(|group| rows.group(group));
    let groups: Vec<ShreddedGroup> =
        groups.map(|rows| ShreddedGroup::of(&rows, &shredder, &mut clock)).collect();
    let schema = parquet_schema(COLUMNS.iter().map(|column| column.parquet_type()))?;
    let mut codings = Vec::with_capacity(COLUMNS.len());
    for (at, column) in COLUMNS.iter().enumerate() {
        let parts = [&groups[0], &groups[groups.len() - 1]].map(|group| &group.cells[at]);
        let (values, levels) = Cells::sample(&parts, SAMPLE_ROWS);
        let rows = 2 * SAMPLE_ROWS;
        let sample = Sample { name: column.name(), kind: column.kind(), values, levels, rows };
        codings.push((sample.name, sample.kind, choose(&sample, &schema, at)?));
    }
    let file = FileLayout { schema: &schema, codings: &codings, about };
    file.write(rows.group(0).rows().count(), |group, at| {
        Ok(groups[group as usize].cells[at].finish())
    })
}

/// The cells of a column of a group.
fn read_cells(group: &GroupReader<'_>, column: ChunkField, rows: usize) -> Result<CellsReader> {
    let at = COLUMNS.iter().position(|other| *other == column).unwrap_or_default();
    group.read(at, column.name(), |reader, of| {
        CellsReader::read(reader, of, column.kind(), column.is_optional(), rows)
    })
}

/// The shredder by which the messages of a chunk were taken apart.
fn shredder_of(chunk: &StoredChunk<'_>) -> Result<MessageShredder> {
    if !is_message_record(&chunk.about.schema) {
        return Err(damaged(chunk.place, "its rows are no messages"));
    }
    let layouts = chunk.about.messages.as_deref().unwrap_or_default();
    MessageShredder::new(layouts).map_err(|error| damaged(chunk.place, error))
}

/// Puts the rows of a group together.
pub(crate) fn read_rows(
    chunk: &StoredChunk<'_>,
    group: u32,
    segments: &mut Segments,
) -> Result<()> {
    let (shredder, rows) = (shredder_of(chunk)?, chunk.rows());
    let of = chunk.group(group, COLUMNS.len())?;
    let mut cells = Vec::with_capacity(COLUMNS.len());
    for column in COLUMNS {
        cells.push((column, read_cells(&of, column, rows)?));
    }
    let mut cells: Vec<_> =
        cells.iter().map(|(column, cells)| (*column, cells.first_row())).collect();
    let (mut message, mut values) = (Vec::new(), ShreddedMessage::default());
    for (number, row) in segments.rows().enumerate() {
        let (mut time, mut length) = (0, None);
        values.rest.clear();
        for (column, cells) in &mut cells {
            match *column {
                ChunkField::Value(field) if MessageField::TEXTS.contains(&field) => {
                    values.set_text(field, cells.next_text());
                }
                ChunkField::Value(field) => values.set_number(field, cells.next_number()),
                ChunkField::Rest => {
                    values.rest.extend_from_slice(cells.next_text().unwrap_or_default());
                }
                ChunkField::Length => length = cells.next_number(),
                ChunkField::Seq => {
                    let seq = cells.next_number().unwrap_or_default() as u64;
                    row[NUMBER_AT..LENGTH_AT].copy_from_slice(&seq.wrapping_sub(1).to_le_bytes());
                }
                ChunkField::Time => time = cells.next_number().unwrap_or_default(),
                ChunkField::RecordedOffset => {
                    let recorded = time.wrapping_add(cells.next_number().unwrap_or_default());
                    row[..NUMBER_AT].copy_from_slice(&recorded.to_le_bytes());
                }
                ChunkField::Format => {
                    row[FORMAT_AT] = cells.next_number().unwrap_or_default() as u8
                }
            }
        }
        message.clear();
        let is_whole = match length {
            Some(_) => {
                message.extend_from_slice(&values.rest);
                true
            }
            None => {
                values.day_ns = Some(day_ns_of(time));
                shredder.assemble_message(row[FORMAT_AT], &values, &mut message)
            }
        };
        let length = length.map_or(message.len() as u16, |length| length as u16);
        row[LENGTH_AT..FORMAT_AT].copy_from_slice(&length.to_le_bytes());
        match row[MESSAGE_AT..].get_mut(..message.len()).filter(|_| is_whole) {
            Some(room) => room.copy_from_slice(&message),
            None => {
                return Err(damaged(
                    chunk.place,
                    format!("row {number}: its values are no message"),
                ));
            }
        }
    }
    Ok(())
}

/// These values of the messages of some groups.
pub(crate) fn read_values(
    chunk: &StoredChunk<'_>,
    groups: Range<u32>,
    fields: &[MessageField],
) -> Result<ShreddedColumns> {
    shredder_of(chunk)?;
    let mut found = ShreddedColumns::new(fields);
    for group in groups {
        let of = chunk.group(group, COLUMNS.len())?;
        let read = |column| read_cells(&of, column, chunk.rows());
        let seq = read(ChunkField::Seq)?;
        found.numbers.extend(seq.longs().iter().map(|seq| (*seq as u64).wrapping_sub(1)));
        let (time, offset) = (read(ChunkField::Time)?, read(ChunkField::RecordedOffset)?);
        found.wall_ns.extend_from_slice(time.longs());
        let recorded = time.longs().iter().zip(offset.longs());
        found.recorded_ns.extend(recorded.map(|(time, offset)| time.wrapping_add(*offset)));
        let format = read(ChunkField::Format)?;
        found.tags.extend(format.words().iter().map(|tag| *tag as u8));
        let length = read(ChunkField::Length)?;
        let mut lengths = length.first_row();
        found.is_shredded.extend((0..chunk.rows()).map(|_| lengths.next_number().is_none()));
        for (field, values) in fields.iter().zip(&mut found.values) {
            let cells = read(ChunkField::Value(*field))?;
            cells.append_to(values, chunk.rows());
        }
    }
    Ok(found)
}
