//! Reads records from Arrow batches, as Polars, pandas, PyArrow and DuckDB give them.
//!
//! The columns are named as the fields of the schema, in any order. A cell becomes the bytes of its
//! field only when nothing of it is lost: a price with more digits than the schema keeps, a number
//! that does not fit and a missing value are refused, with their row and column.
//!
//! | a field of | takes a column of |
//! |---|---|
//! | `time` | timestamps of any unit (without a zone they are UTC), or whole nanoseconds since 1970 |
//! | `u8` to `u64`, `i64` | whole numbers and booleans |
//! | `f64` | floats, and whole numbers that a double states exactly |
//! | `price` | decimals, whole numbers, and floats by their shortest decimal form |
//! | `bytes` | bytes of the field's length, and text of at most that length, filled up with spaces |
//!
//! Columns of a dictionary (Polars' categories, pandas' categories) are read as their values.

use std::fmt;

use arrow_array::cast::AsArray as _;
use arrow_array::types::{
    Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, Float32Type, Float64Type,
    Int8Type, Int16Type, Int32Type, Int64Type, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, RecordBatch};
use arrow_schema::{DataType, Schema as ArrowSchema, TimeUnit};
use evenfall_store_format::{Field, FieldType, Schema};

use super::{ImportError, likely_unit, names, price};

/// Reads batches into records of one schema.
pub struct BatchReader<'a> {
    schema: &'a Schema,
    /// The place in the batches of each field's column.
    places: Vec<usize>,
}

/// The first row of a batch that gives no record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongRow {
    /// The row within the batch, from 0.
    pub row: usize,
    /// The wrong column and the reason.
    pub why: ImportError,
}

/// The records of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRecords {
    /// The records of all rows, or of the rows before the wrong one, one behind the other.
    pub records: Vec<u8>,
    /// The row that gives no record.
    pub wrong: Option<WrongRow>,
}

/// The value of a cell.
enum Cell<'a> {
    Null,
    /// A whole number.
    Whole(i128),
    /// A number of so many digits behind the point.
    Decimal(i128, i8),
    Single(f32),
    Double(f64),
    /// Nanoseconds since 1970; `None` when they do not fit 64 bits.
    Instant(Option<i64>),
    Bytes(&'a [u8]),
    Text(&'a str),
}

impl<'a> BatchReader<'a> {
    /// A reader of batches with these columns, which name every field once, in any order.
    ///
    /// # Errors
    /// The column that is missing, that no field has or whose type the field does not take.
    pub fn new(schema: &'a Schema, table: &ArrowSchema) -> Result<Self, ImportError> {
        let fields = || names(schema);
        let columns = table.fields();
        for (place, column) in columns.iter().enumerate() {
            let name = column.name();
            if schema.field(name).is_none() {
                let fields = fields();
                return Err(ImportError(format!("no field {name}: the fields are {fields}")));
            }
            if columns[..place].iter().any(|other| other.name() == name) {
                return Err(ImportError(format!("column {name} twice")));
            }
        }
        let mut places = Vec::with_capacity(schema.fields.len());
        for field in &schema.fields {
            let place = columns.iter().position(|column| *column.name() == field.name);
            let place = place.ok_or_else(|| {
                let (name, fields) = (&field.name, fields());
                ImportError(format!("no column {name}: the fields are {fields}"))
            })?;
            let kind = values_type(columns[place].data_type());
            if !takes(field.kind, kind) {
                let (name, wanted) = (&field.name, wanted_column(field));
                return Err(ImportError(format!(
                    "column {name} is of type {kind}, and the field takes {wanted}"
                )));
            }
            places.push(place);
        }
        Ok(Self { schema, places })
    }

    /// The records of a batch with the columns that the reader was made for.
    pub fn records(&self, batch: &RecordBatch) -> ReadRecords {
        let size = usize::from(self.schema.record_bytes);
        let mut records = vec![0; size * batch.num_rows()];
        let mut wrong: Option<WrongRow> = None;
        for (field, &place) in self.schema.fields.iter().zip(&self.places) {
            let column = batch.column(place);
            let from = usize::from(field.offset);
            // Rows behind a wrong row are not needed, whatever is in their other columns.
            let rows = wrong.as_ref().map_or(batch.num_rows(), |wrong| wrong.row);
            for (row, record) in records.chunks_exact_mut(size).enumerate().take(rows) {
                let bytes = &mut record[from..from + usize::from(field.len)];
                if let Err(why) = self.put(field, cell(column, row), bytes) {
                    wrong =
                        Some(WrongRow { row, why: ImportError(format!("{}: {why}", field.name)) });
                    break;
                }
            }
        }
        if let Some(wrong) = &wrong {
            records.truncate(wrong.row * size);
        }
        ReadRecords { records, wrong }
    }

    fn put(&self, field: &Field, cell: Cell<'_>, place: &mut [u8]) -> Result<(), String> {
        match field.kind {
            FieldType::Time => place.copy_from_slice(&stamp(&cell)?.to_le_bytes()),
            FieldType::U8 | FieldType::U16 | FieldType::U32 | FieldType::U64 | FieldType::I64 => {
                put_whole(field, &cell, place)?;
            }
            FieldType::F64 => place.copy_from_slice(&double_of(&cell)?.to_le_bytes()),
            FieldType::Price => {
                let decimals = self.schema.price_decimals;
                let units = price_units(&cell, decimals)
                    .ok_or_else(|| format!("{cell} is no price of {decimals} decimals"))?;
                place.copy_from_slice(&units.to_le_bytes());
            }
            FieldType::Bytes => put_bytes(&cell, place)?,
        }
        Ok(())
    }
}

/// The type of a column's values, also where a dictionary has them.
fn values_type(kind: &DataType) -> &DataType {
    match kind {
        DataType::Dictionary(_, values) => values,
        kind => kind,
    }
}

/// Whether cells of a column's type can be values of a field.
fn takes(field: FieldType, column: &DataType) -> bool {
    let is_whole = column.is_integer() || *column == DataType::Boolean;
    let is_float = matches!(column, DataType::Float32 | DataType::Float64);
    match field {
        FieldType::Time => {
            matches!(column, DataType::Timestamp(..) | DataType::Int64 | DataType::UInt64)
        }
        FieldType::U8 | FieldType::U16 | FieldType::U32 | FieldType::U64 | FieldType::I64 => {
            is_whole
        }
        FieldType::F64 => column.is_integer() || is_float,
        FieldType::Price => column.is_integer() || is_float || column.is_decimal(),
        FieldType::Bytes => matches!(
            column,
            DataType::Binary
                | DataType::LargeBinary
                | DataType::BinaryView
                | DataType::FixedSizeBinary(_)
                | DataType::Utf8
                | DataType::LargeUtf8
                | DataType::Utf8View
        ),
    }
}

/// The columns that a field takes, in words.
fn wanted_column(field: &Field) -> String {
    match field.kind {
        FieldType::Time => "timestamps, or whole nanoseconds since 1970".into(),
        FieldType::U8 | FieldType::U16 | FieldType::U32 | FieldType::U64 | FieldType::I64 => {
            "whole numbers".into()
        }
        FieldType::F64 => "floats".into(),
        FieldType::Price => "decimals, whole numbers or floats".into(),
        FieldType::Bytes => format!("bytes or text, {} bytes each", field.len),
    }
}

/// The cell of a row. A type that [`takes`] refuses is never asked for, and would be null.
fn cell(column: &dyn Array, row: usize) -> Cell<'_> {
    if column.is_null(row) {
        return Cell::Null;
    }
    macro_rules! value {
        ($kind:ty) => {
            column.as_primitive::<$kind>().value(row)
        };
    }
    match column.data_type() {
        DataType::Boolean => Cell::Whole(column.as_boolean().value(row).into()),
        DataType::Int8 => Cell::Whole(value!(Int8Type).into()),
        DataType::Int16 => Cell::Whole(value!(Int16Type).into()),
        DataType::Int32 => Cell::Whole(value!(Int32Type).into()),
        DataType::Int64 => Cell::Whole(value!(Int64Type).into()),
        DataType::UInt8 => Cell::Whole(value!(UInt8Type).into()),
        DataType::UInt16 => Cell::Whole(value!(UInt16Type).into()),
        DataType::UInt32 => Cell::Whole(value!(UInt32Type).into()),
        DataType::UInt64 => Cell::Whole(value!(UInt64Type).into()),
        DataType::Float32 => Cell::Single(value!(Float32Type)),
        DataType::Float64 => Cell::Double(value!(Float64Type)),
        DataType::Decimal32(_, scale) => Cell::Decimal(value!(Decimal32Type).into(), *scale),
        DataType::Decimal64(_, scale) => Cell::Decimal(value!(Decimal64Type).into(), *scale),
        DataType::Decimal128(_, scale) => Cell::Decimal(value!(Decimal128Type), *scale),
        DataType::Decimal256(_, scale) => match value!(Decimal256Type).to_i128() {
            Some(value) => Cell::Decimal(value, *scale),
            // Far above every price, which is then refused as such.
            None => Cell::Decimal(i128::MAX, *scale),
        },
        DataType::Timestamp(unit, _) => {
            let (value, ns) = match unit {
                TimeUnit::Second => (value!(TimestampSecondType), 1_000_000_000),
                TimeUnit::Millisecond => (value!(TimestampMillisecondType), 1_000_000),
                TimeUnit::Microsecond => (value!(TimestampMicrosecondType), 1_000),
                TimeUnit::Nanosecond => (value!(TimestampNanosecondType), 1),
            };
            Cell::Instant(value.checked_mul(ns))
        }
        DataType::Binary => Cell::Bytes(column.as_binary::<i32>().value(row)),
        DataType::LargeBinary => Cell::Bytes(column.as_binary::<i64>().value(row)),
        DataType::BinaryView => Cell::Bytes(column.as_binary_view().value(row)),
        DataType::FixedSizeBinary(_) => Cell::Bytes(column.as_fixed_size_binary().value(row)),
        DataType::Utf8 => Cell::Text(column.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => Cell::Text(column.as_string::<i64>().value(row)),
        DataType::Utf8View => Cell::Text(column.as_string_view().value(row)),
        DataType::Dictionary(..) => cell_of_dictionary(column, row),
        _ => Cell::Null,
    }
}

fn cell_of_dictionary(column: &dyn Array, row: usize) -> Cell<'_> {
    let dictionary = column.as_any_dictionary();
    let Cell::Whole(key) = cell(dictionary.keys(), row) else { return Cell::Null };
    let key = usize::try_from(key).ok().filter(|key| *key < dictionary.values().len());
    key.map_or(Cell::Null, |key| cell(dictionary.values(), key))
}

impl fmt::Display for Cell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("a missing value"),
            Self::Whole(value) => value.fmt(f),
            Self::Decimal(value, scale) => {
                let digits = usize::try_from(*scale).unwrap_or(0);
                let all = format!("{:0width$}", value.unsigned_abs(), width = digits + 1);
                let (whole, fraction) = all.split_at(all.len() - digits);
                let sign = if *value < 0 { "-" } else { "" };
                write!(f, "{sign}{whole}.{fraction}")
            }
            Self::Single(value) => value.fmt(f),
            Self::Double(value) => value.fmt(f),
            Self::Instant(Some(ns)) => write!(f, "{ns} ns"),
            Self::Instant(None) => f.write_str("an instant beyond 64 bits of nanoseconds"),
            Self::Bytes(bytes) => write!(f, "a value of {} bytes", bytes.len()),
            Self::Text(text) => write!(f, "{text:?}"),
        }
    }
}

fn stamp(cell: &Cell<'_>) -> Result<i64, String> {
    match cell {
        Cell::Instant(Some(ns)) => Ok(*ns),
        Cell::Whole(value) => {
            let ns = i64::try_from(*value).map_err(|_| format!("{value} is no time in 64 bits"))?;
            match likely_unit(ns) {
                None => Ok(ns),
                Some(unit) => Err(format!(
                    "{ns} looks like {}, not ns: give a column of timestamps, or nanoseconds",
                    unit.word()
                )),
            }
        }
        cell => Err(format!("{cell} is no time")),
    }
}

fn put_whole(field: &Field, cell: &Cell<'_>, place: &mut [u8]) -> Result<(), String> {
    let Cell::Whole(value) = cell else { return Err(format!("{cell} is no whole number")) };
    let fits = match field.kind {
        FieldType::I64 => i64::try_from(*value).is_ok(),
        _ => *value >= 0 && *value >> (8 * place.len()) == 0,
    };
    if !fits {
        return Err(format!("{value} does not fit the field"));
    }
    let bytes = value.to_le_bytes();
    place.copy_from_slice(&bytes[..place.len()]);
    Ok(())
}

fn double_of(cell: &Cell<'_>) -> Result<f64, String> {
    match cell {
        Cell::Double(value) => Ok(*value),
        Cell::Single(value) => Ok(f64::from(*value)),
        Cell::Whole(value) if (*value as f64) as i128 == *value => Ok(*value as f64),
        Cell::Whole(value) => Err(format!("{value} has no exact double")),
        cell => Err(format!("{cell} is no number")),
    }
}

/// A price in units of the schema's scale; `None` when a digit would be lost.
fn price_units(cell: &Cell<'_>, decimals: u8) -> Option<i64> {
    let (mut value, scale) = match cell {
        Cell::Whole(value) => (*value, 0),
        Cell::Decimal(value, scale) => (*value, i32::from(*scale)),
        // The shortest decimal that reads back as the float is what its writer meant: 101.1, and
        // not 101.099999999999994.
        Cell::Double(value) => return price(&value.to_string(), decimals),
        Cell::Single(value) => return price(&value.to_string(), decimals),
        _ => return None,
    };
    let shift = i32::from(decimals) - scale;
    // Beyond 40 digits, every value but 0 has overflowed or lost a digit.
    for _ in 0..shift.unsigned_abs().min(40) {
        value = match shift > 0 {
            true => value.checked_mul(10)?,
            false if value % 10 == 0 => value / 10,
            false => return None,
        };
    }
    i64::try_from(value).ok()
}

fn put_bytes(cell: &Cell<'_>, place: &mut [u8]) -> Result<(), String> {
    let size = place.len();
    match cell {
        Cell::Bytes(bytes) if bytes.len() == size => place.copy_from_slice(bytes),
        Cell::Text(text) if text.len() <= size => {
            let (front, rest) = place.split_at_mut(text.len());
            front.copy_from_slice(text.as_bytes());
            rest.fill(b' ');
        }
        Cell::Text(text) => {
            return Err(format!("{text:?} has {} bytes, and the field has {size}", text.len()));
        }
        cell => return Err(format!("{cell}, and the field has {size} bytes")),
    }
    Ok(())
}

#[cfg(test)]
mod tests;
