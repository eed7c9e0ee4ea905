//! `messages` of formats that have columns of their own: what the codec reads, row by row.
//!
//! A datagram of a venue may make several statements about several securities. It has a row for
//! each of them, so that rows have the numbers of messages, and a number has one row or several.
//! Messages that the codec does not read, and messages of other formats, have one row with their
//! place and, where it is known, their type.
//!
//! A venue may name a security once and only number it from then on. Where a column needs such
//! names, the messages of the stream in front of the rows are read for names, and a part of the
//! rows is never less than a stream.

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Schema, SchemaRef};
use evenfall_feed_formats::Format;
use evenfall_feed_formats::codec::{self, Codec};
use evenfall_feed_formats::columns::{
    ColumnBuffers, ColumnKind, ColumnSink as _, ColumnValues, MessageColumn,
};
use evenfall_feed_formats::itch::Symbols;

use super::books::UNHEARD_MESSAGES;
use super::columns::{
    MessagePlace, TableColumn, boolean_array, decimal_array, ints, longs, place_array,
    price_type_of, schema_of, signed, texts,
};
use super::{BATCH_ROWS, Snapshot, TableError, TableInfo, TableName, check_columns, of_rows};
use crate::records::RecordedMessage;
use crate::rows::MessageRow;
use crate::snapshot::{ALL_TIMES, RecordingSnapshot, RowSelection, StreamSnapshot};

/// The columns in front of those of the codec: place and times of the message.
const PLACE_COLUMNS: [TableColumn; 6] = [
    TableColumn::Time,
    TableColumn::Utc,
    TableColumn::Recorded,
    TableColumn::Ts,
    TableColumn::Stream,
    TableColumn::Seq,
];

/// Whole numbers of more bits than this are 64 bits wide in tables, because databases have signed
/// numbers alone.
const SHORT_BITS: u8 = 16;

/// A column of a codec as Arrow has it. Unit, length and origin of the values are metadata.
fn field_of(column: &MessageColumn) -> Field {
    let data_type = match column.kind {
        ColumnKind::Unsigned { bits } if bits <= SHORT_BITS => DataType::Int32,
        ColumnKind::Unsigned { .. } => DataType::Int64,
        ColumnKind::Decimal { scale } => price_type_of(scale),
        ColumnKind::Boolean => DataType::Boolean,
        ColumnKind::Text => DataType::Utf8,
    };
    let unit = column.unit.map(|unit| ("unit", unit.to_owned()));
    let length = column.bytes_max.map(|bytes| ("bytes_max", bytes.to_string()));
    let derived = column.is_derived.then(|| ("derived", "true".to_owned()));
    let metadata = [unit, length, derived].into_iter().flatten();
    let metadata = metadata.map(|(key, value)| (key.to_owned(), value)).collect();
    Field::new(column.name, data_type, true).with_metadata(metadata)
}

/// The columns of `messages` of a codec.
fn coded_schema(codec: &dyn Codec) -> SchemaRef {
    let places = schema_of(&PLACE_COLUMNS);
    let own = codec.columns().iter().map(|column| Arc::new(field_of(column)));
    let fields: Vec<FieldRef> = places.fields().iter().cloned().chain(own).collect();
    Arc::new(Schema::new(fields))
}

/// The values of a codec's column as Arrow has them.
fn values_array(column: &MessageColumn, values: &ColumnValues) -> ArrayRef {
    match (values, column.kind) {
        (ColumnValues::Unsigned(values), ColumnKind::Unsigned { bits }) if bits <= SHORT_BITS => {
            ints(values.iter().map(|value| value.and_then(|value| i32::try_from(value).ok())))
        }
        (ColumnValues::Unsigned(values), _) => longs(values.iter().map(|value| signed(*value))),
        (ColumnValues::Decimal(values), ColumnKind::Decimal { scale }) => {
            decimal_array(values.iter().copied(), scale)
        }
        (ColumnValues::Decimal(values), _) => decimal_array(values.iter().copied(), 0),
        (ColumnValues::Boolean(values), _) => boolean_array(values.iter().copied()),
        (ColumnValues::Text(values), _) => texts(values.iter()),
    }
}

/// Rows that wait for their batch.
struct CodedRows {
    codec: &'static dyn Codec,
    values: ColumnBuffers,
    /// The place of each row.
    places: Vec<MessagePlace>,
}

impl CodedRows {
    fn new(codec: &'static dyn Codec) -> Self {
        let values = ColumnBuffers::new(codec.columns());
        Self { codec, values, places: Vec::with_capacity(BATCH_ROWS) }
    }

    /// Adds the rows of a message.
    fn add_message(&mut self, stream: u32, recorded: &RecordedMessage, symbols: &mut Symbols) {
        let format = recorded.format.unwrap_or(Format::OPAQUE);
        let before = self.values.rows();
        if format == self.codec.format() {
            self.codec.put_rows(&recorded.bytes, symbols, &mut self.values);
        }
        if self.values.rows() == before {
            let kind = codec::of(format).and_then(|codec| codec.type_name(&recorded.bytes));
            if let Some(kind) = kind {
                self.values.put_text(0, kind);
            }
            self.values.end_row();
        }
        self.places.resize(self.values.rows(), MessagePlace::of(stream, recorded, format));
    }

    /// Gives the rows the venue's times, where the codec has a column of them.
    fn state_times(&mut self) {
        let times = self.codec.time_column().and_then(|column| self.values.values(column));
        let Some(ColumnValues::Unsigned(times)) = times else { return };
        for (place, time_ns) in self.places.iter_mut().zip(times) {
            *place = place.with_event_time(*time_ns);
        }
    }

    fn array_of(&self, column: usize) -> Result<ArrayRef, ArrowError> {
        let place = PLACE_COLUMNS.get(column).copied();
        let of_place = place.and_then(|column| place_array(column, self.places.iter().copied()));
        let own = || {
            let (column, values) = self.values.columns().nth(column - PLACE_COLUMNS.len())?;
            Some(values_array(column, values))
        };
        let array = of_place.or_else(own);
        array.ok_or_else(|| ArrowError::SchemaError(format!("no column at place {column}")))
    }

    /// Takes the rows out as a batch of these columns.
    fn take_batch(
        &mut self,
        schema: &SchemaRef,
        columns: &[usize],
    ) -> Result<RecordBatch, ArrowError> {
        let batch = if columns.is_empty() {
            of_rows(self.places.len())?
        } else {
            self.state_times();
            let arrays = columns.iter().map(|column| self.array_of(*column));
            RecordBatch::try_new(Arc::clone(schema), arrays.collect::<Result<_, _>>()?)?
        };
        self.values.clear();
        self.places.clear();
        Ok(batch)
    }
}

/// Messages as rows of `messages`, with all columns of the codec. `symbols` has the names that
/// earlier messages gave.
pub(super) fn coded_batch(
    rows: &[MessageRow],
    codec: &'static dyn Codec,
    symbols: &mut Symbols,
) -> Result<RecordBatch, ArrowError> {
    let mut gathered = CodedRows::new(codec);
    for row in rows {
        gathered.add_message(row.stream, &row.recorded, symbols);
    }
    let schema = coded_schema(codec);
    let columns: Vec<usize> = (0..schema.fields().len()).collect();
    gathered.take_batch(&schema, &columns)
}

/// `messages` of a recording at one moment, in the columns of its codec.
pub(super) struct CodedSnapshot {
    info: TableInfo,
    recording: Arc<RecordingSnapshot>,
    codec: &'static dyn Codec,
}

/// Gives a batch to the reader.
type GiveRows<'a> = dyn FnMut(&mut CodedRows) -> Result<ControlFlow<()>, TableError> + 'a;

impl CodedSnapshot {
    pub(super) fn open(
        recording: Arc<RecordingSnapshot>,
        codec: &'static dyn Codec,
    ) -> Result<Self, TableError> {
        let info = TableInfo {
            name: TableName::of_recording(recording.name(), "messages"),
            schema: coded_schema(codec),
            sorted_by: Vec::from(["stream", "seq"]),
            // Only reading tells how many statements are in a message.
            rows: None,
            times: recording.span()?,
        };
        Ok(Self { info, recording, codec })
    }

    /// Whether one of these columns has values out of earlier messages.
    fn needs_names(&self, mut columns: impl Iterator<Item = usize>) -> bool {
        let own = self.codec.columns();
        columns.any(|at| {
            let own = at.checked_sub(PLACE_COLUMNS.len()).and_then(|at| own.get(at));
            own.is_some_and(|column| column.is_derived)
        })
    }

    /// Learns the names in the messages of a stream in front of this one.
    fn learn_names_before(
        &self,
        stream: &StreamSnapshot,
        number: u64,
        symbols: &mut Symbols,
        give: &mut GiveRows<'_>,
    ) -> Result<ControlFlow<()>, TableError> {
        let before = stream.numbers().start..number;
        if before.is_empty() {
            return Ok(ControlFlow::Continue(()));
        }
        let mut none = CodedRows::new(self.codec);
        let mut replay = stream.replay(&**self.recording.source(), before, &ALL_TIMES)?;
        let mut taken = 0_usize;
        while let Some(recorded) = replay.next_message()? {
            taken += 1;
            if taken.is_multiple_of(UNHEARD_MESSAGES) && give(&mut none)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            if recorded.format == Some(self.codec.format()) {
                self.codec.learn_names(&recorded.bytes, symbols);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn read_rows(
        &self,
        rows: &RowSelection,
        needs_names: bool,
        give: &mut GiveRows<'_>,
    ) -> Result<(), TableError> {
        let source = &**self.recording.source();
        let mut gathered = CodedRows::new(self.codec);
        for (stream, numbers) in self.recording.selected(rows) {
            let mut symbols = Symbols::new();
            if needs_names {
                let learned = self.learn_names_before(stream, numbers.start, &mut symbols, give)?;
                if learned.is_break() {
                    return Ok(());
                }
            }
            let mut replay = stream.replay(source, numbers, &rows.times)?;
            while let Some(recorded) = replay.next_message()? {
                gathered.add_message(stream.stream(), &recorded, &mut symbols);
                if gathered.places.len() >= BATCH_ROWS && give(&mut gathered)?.is_break() {
                    return Ok(());
                }
            }
        }
        if !gathered.places.is_empty() {
            let _ = give(&mut gathered)?;
        }
        Ok(())
    }
}

impl Snapshot for CodedSnapshot {
    fn info(&self) -> &TableInfo {
        &self.info
    }

    fn rows(&self) -> RowSelection {
        self.recording.rows()
    }

    fn between(&self, from_ns: i64, to_ns: i64) -> Result<RowSelection, TableError> {
        Ok(self.recording.between(from_ns..=to_ns)?)
    }

    fn parts(&self, rows: &RowSelection, n: usize) -> Vec<RowSelection> {
        match self.needs_names(0..self.info.schema.fields().len()) {
            true => self.recording.stream_parts(rows, n),
            false => rows.parts(n, 1),
        }
    }

    fn scan(
        &self,
        rows: &RowSelection,
        columns: &[usize],
        each: &mut dyn FnMut(RecordBatch) -> ControlFlow<()>,
    ) -> Result<(), TableError> {
        check_columns(&self.info, columns)?;
        let schema: SchemaRef = Arc::new(self.info.schema.project(columns)?);
        let mut give = |gathered: &mut CodedRows| -> Result<ControlFlow<()>, TableError> {
            let batch = gathered.take_batch(&schema, columns)?;
            // The last datagram may have brought more rows than a batch takes.
            let mut from = 0;
            loop {
                let len = BATCH_ROWS.min(batch.num_rows() - from);
                if each(batch.slice(from, len)).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                from += len;
                if from >= batch.num_rows() {
                    return Ok(ControlFlow::Continue(()));
                }
            }
        };
        self.read_rows(rows, self.needs_names(columns.iter().copied()), &mut give)
    }
}
