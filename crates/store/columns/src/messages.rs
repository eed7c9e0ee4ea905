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
//! | `missed` | 32 bits | numbers without a message, since the file began |
//! | `records` | 32 bits | records of the store up to the next message |
//!
//! The last two are of messages in parts
//! ([`parts`](evenfall_store_format::messages::parts)), which are put together first: a message is
//! one row, however long it is. Its `length` is that of its bytes, and its own time, where it has
//! one, follows them in `rest`. Without these columns a record has a message of its size or less,
//! or a part of a longer one.
//!
//! `recorded_offset` is one number over a whole chunk of a feed that was recorded under its own
//! times, and takes no bytes then. The recorded time itself would take as many as `time` does.

mod cells;
mod layouts;
mod records;
mod rows;

use evenfall_store_format::Result;
use evenfall_store_format::columnar::{GROUPS_PER_CHUNK, ShreddedColumns};
use evenfall_store_format::messages::parts::is_parted;
use evenfall_store_format::messages::{
    FormatLayout, MessageField, MessageLayouts, MessageShredder, PRICE_DECIMALS, ShreddedMessage,
    is_message_record,
};
use parquet::basic::{LogicalType, Repetition, TimeUnit};
use parquet::errors::ParquetError;
use parquet::schema::types::{Type, TypePtr};
use std::ops::Range;

use self::cells::{Cells, CellsReader};
use self::layouts::{OffsetClock, chosen_layouts};
pub(crate) use self::records::ChunkMessages;
use self::records::MessageRecord;
pub(crate) use self::rows::read_rows;
use crate::damaged;
use crate::decode::{GroupReader, StoredChunk};
use crate::encode::{
    About, BareFile, FileLayout, MESSAGES_VERSION, PARTED_VERSION, Sample, choose,
};
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
    Missed,
    Records,
}

/// The columns, in order. The last two are of messages in parts.
const COLUMNS: [ChunkField; 18] = [
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
    ChunkField::Missed,
    ChunkField::Records,
];

/// The columns of messages in parts, or of others.
fn columns_of(are_parted: bool) -> &'static [ChunkField] {
    if are_parted { &COLUMNS } else { &COLUMNS[..COLUMNS.len() - 2] }
}

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
            Self::Missed => "missed",
            Self::Records => "records",
        }
    }

    fn kind(self) -> ColumnKind {
        match self {
            Self::Seq | Self::Time | Self::RecordedOffset => ColumnKind::Long,
            Self::Format | Self::Length | Self::Missed | Self::Records => ColumnKind::Word,
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
            Self::Missed | Self::Records => Some(LogicalType::integer(32, false)),
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

/// The columns of the messages of a group.
struct ShreddedGroup {
    cells: Vec<Cells>,
}

impl ShreddedGroup {
    fn of<'a>(
        records: impl Iterator<Item = MessageRecord<'a>>,
        columns: &[ChunkField],
        shredder: &MessageShredder,
        clock: &mut OffsetClock<'_>,
    ) -> Self {
        let new = |one: &ChunkField| Cells::new(one.kind(), one.is_optional(), 0);
        let mut cells: Vec<Cells> = columns.iter().map(new).collect();
        let (mut values, mut scratch) = (ShreddedMessage::default(), Vec::new());
        for record in records {
            let mut is_whole = record.plain.is_some_and(|message| {
                shredder.shred_message(record.tag, message, &mut values, &mut scratch)
            });
            let stated = values.day_ns.filter(|_| is_whole);
            let time = clock.wall_ns(record.tag, record.own_ns, stated);
            // On the day of a change of clocks the venue's clock may show another time of day.
            is_whole &= stated.is_none_or(|day_ns| day_ns_of(time) == day_ns);
            for (field, cells) in columns.iter().zip(&mut cells) {
                match (field, is_whole) {
                    (ChunkField::Rest, true) => {
                        cells.push_text(Some(&values.rest[..]).filter(|rest| !rest.is_empty()));
                    }
                    (ChunkField::Rest, false) => cells.push_text(Some(record.kept)),
                    (ChunkField::Value(MessageField::Type), false) => {
                        let name = record.stated.and_then(|message| {
                            clock.message_layouts().type_name(record.tag, message)
                        });
                        cells.push_text(name.map(str::as_bytes));
                    }
                    (ChunkField::Value(_), false) => cells.push_null(),
                    (ChunkField::Value(field), true) if MessageField::TEXTS.contains(field) => {
                        cells.push_text(values.text(*field));
                    }
                    (ChunkField::Value(field), true) => cells.push_number(values.number(*field)),
                    (field, _) => cells.push_number(number_of(*field, &record, time, is_whole)),
                }
            }
        }
        Self { cells }
    }

    fn rows(&self) -> usize {
        self.cells.first().map_or(0, Cells::rows)
    }
}

/// A number that is not a value of the message.
fn number_of(
    field: ChunkField,
    record: &MessageRecord<'_>,
    time: i64,
    is_whole: bool,
) -> Option<i64> {
    Some(match field {
        ChunkField::Seq => record.number.wrapping_add(1) as i64,
        ChunkField::Time => time,
        ChunkField::RecordedOffset => record.recorded_ns.wrapping_sub(time),
        ChunkField::Format => record.tag.into(),
        ChunkField::Length if is_whole => return None,
        ChunkField::Length => record.length.into(),
        ChunkField::Missed => record.missed.into(),
        ChunkField::Records => record.records.into(),
        ChunkField::Value(_) | ChunkField::Rest => return None,
    })
}

/// The time of day of a time of the venue's clock.
fn day_ns_of(wall_ns: i64) -> u64 {
    wall_ns.rem_euclid(evenfall_store_format::messages::DAY_NS as i64) as u64
}

/// The messages of a chunk as a Parquet file.
pub(crate) fn write(
    messages: &ChunkMessages<'_>,
    known: &dyn MessageLayouts,
    candidates: Vec<FormatLayout>,
    about: &mut About,
) -> Result<BareFile, ParquetError> {
    let general = |error: evenfall_store_format::Error| ParquetError::General(error.to_string());
    let layouts = chosen_layouts(messages, candidates).map_err(general)?;
    let shredder = MessageShredder::new(&layouts).map_err(general)?;
    let version = if messages.is_parted() { PARTED_VERSION } else { MESSAGES_VERSION };
    (about.messages, about.version) = (Some(layouts), version);
    let columns = columns_of(messages.is_parted());
    let mut clock = OffsetClock::new(known);
    let mut shred =
        |group| ShreddedGroup::of(messages.group(group), columns, &shredder, &mut clock);
    let groups: Vec<ShreddedGroup> = (0..GROUPS_PER_CHUNK).map(&mut shred).collect();
    let schema = parquet_schema(columns.iter().map(|column| column.parquet_type()))?;
    let mut codings = Vec::with_capacity(columns.len());
    for (at, column) in columns.iter().enumerate() {
        let parts = [&groups[0], &groups[groups.len() - 1]].map(|group| &group.cells[at]);
        let (values, levels) = Cells::sample(&parts, SAMPLE_ROWS);
        let rows = 2 * SAMPLE_ROWS;
        let sample = Sample { name: column.name(), kind: column.kind(), values, levels, rows };
        codings.push((sample.name, sample.kind, choose(&sample, &schema, at)?));
    }
    let file = FileLayout { schema: &schema, codings: &codings, about };
    let rows = groups.iter().map(ShreddedGroup::rows).max().unwrap_or_default();
    file.write(rows, |group, at| Ok(groups[group as usize].cells[at].finish()))
}

/// The cells of a column of a group.
fn read_cells(group: &GroupReader<'_>, column: ChunkField) -> Result<CellsReader> {
    let at = COLUMNS.iter().position(|other| *other == column).unwrap_or_default();
    group.read(at, column.name(), |reader, of| {
        CellsReader::read(reader, of, column.kind(), column.is_optional(), group.rows())
    })
}

/// Whether the messages of a chunk were put together out of their parts.
fn has_parts(chunk: &StoredChunk<'_>) -> bool {
    chunk.about.version == PARTED_VERSION
}

/// The shredder by which the messages of a chunk were taken apart.
fn shredder_of(chunk: &StoredChunk<'_>) -> Result<MessageShredder> {
    let fits = if has_parts(chunk) { is_parted } else { is_message_record };
    if !fits(&chunk.about.schema) {
        return Err(damaged(chunk.place, "its rows are no messages"));
    }
    let layouts = chunk.about.messages.as_deref().unwrap_or_default();
    MessageShredder::new(layouts).map_err(|error| damaged(chunk.place, error))
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
        let of = chunk.group(group, columns_of(has_parts(chunk)).len())?;
        let read = |column| read_cells(&of, column);
        let seq = read(ChunkField::Seq)?;
        found.numbers.extend(seq.longs().iter().map(|seq| (*seq as u64).wrapping_sub(1)));
        if has_parts(chunk) {
            let records = read(ChunkField::Records)?;
            let all: u64 = records.words().iter().map(|records| u64::from(*records as u32)).sum();
            if all != chunk.rows() as u64 {
                return Err(damaged(chunk.place, "its messages have another number of records"));
            }
            found.records.extend(records.words().iter().map(|records| *records as u32));
        } else {
            found.records.extend(std::iter::repeat_n(1, of.rows()));
        }
        let (time, offset) = (read(ChunkField::Time)?, read(ChunkField::RecordedOffset)?);
        found.wall_ns.extend_from_slice(time.longs());
        let recorded = time.longs().iter().zip(offset.longs());
        found.recorded_ns.extend(recorded.map(|(time, offset)| time.wrapping_add(*offset)));
        let format = read(ChunkField::Format)?;
        found.tags.extend(format.words().iter().map(|tag| *tag as u8));
        let length = read(ChunkField::Length)?;
        let mut lengths = length.first_row();
        found.is_shredded.extend((0..of.rows()).map(|_| lengths.next_number().is_none()));
        for (field, values) in fields.iter().zip(&mut found.values) {
            read(ChunkField::Value(*field))?.append_to(values, of.rows());
        }
    }
    Ok(found)
}
