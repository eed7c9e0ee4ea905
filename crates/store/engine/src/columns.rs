//! Records as Arrow columns, for Parquet files, IPC streams and programs that compute in columns.
//!
//! Records lie one after the other, and Arrow wants each field by itself. A segment fits into the
//! first cache of a core, so the code walks over it once for each field while it is there. Values
//! go straight to the end of the column's own memory, and no row is ever allocated.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, Decimal128Array, FixedSizeBinaryArray, Float64Array, Int64Array, RecordBatch,
    TimestampNanosecondArray, UInt8Array, UInt16Array, UInt32Array, UInt64Array,
};
use arrow_schema::{ArrowError, DataType, SchemaRef, TimeUnit};
use evenfall_store_format::{Field, FieldType, Schema};

/// An i64 has at most nineteen digits.
const PRICE_DIGITS: u8 = 19;

/// The zone of instants. Readers then compare them with other instants, whatever their own zone is.
const UTC: &str = "UTC";

/// The Arrow schema of these records. No field is ever null.
pub fn arrow_schema(schema: &Schema) -> SchemaRef {
    let fields = schema.fields.iter();
    let fields = fields.map(|f| arrow_schema::Field::new(&f.name, arrow_type(schema, f), false));
    Arc::new(arrow_schema::Schema::new(fields.collect::<Vec<_>>()))
}

fn arrow_type(schema: &Schema, field: &Field) -> DataType {
    match field.kind {
        FieldType::Time => DataType::Timestamp(TimeUnit::Nanosecond, Some(UTC.into())),
        FieldType::U8 => DataType::UInt8,
        FieldType::U16 => DataType::UInt16,
        FieldType::U32 => DataType::UInt32,
        FieldType::U64 => DataType::UInt64,
        FieldType::I64 => DataType::Int64,
        FieldType::Price => DataType::Decimal128(PRICE_DIGITS, schema.price_decimals as i8),
        FieldType::F64 => DataType::Float64,
        FieldType::Bytes => DataType::FixedSizeBinary(i32::from(field.len)),
    }
}

/// The values of one column so far.
enum Values {
    Time(Vec<i64>),
    U8(Vec<u8>),
    U16(Vec<u16>),
    U32(Vec<u32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    Price(Vec<i128>),
    F64(Vec<f64>),
    Bytes(Vec<u8>),
}

impl Values {
    fn new(field: &Field, rows: usize) -> Self {
        match field.kind {
            FieldType::Time => Self::Time(Vec::with_capacity(rows)),
            FieldType::U8 => Self::U8(Vec::with_capacity(rows)),
            FieldType::U16 => Self::U16(Vec::with_capacity(rows)),
            FieldType::U32 => Self::U32(Vec::with_capacity(rows)),
            FieldType::U64 => Self::U64(Vec::with_capacity(rows)),
            FieldType::I64 => Self::I64(Vec::with_capacity(rows)),
            FieldType::Price => Self::Price(Vec::with_capacity(rows)),
            FieldType::F64 => Self::F64(Vec::with_capacity(rows)),
            FieldType::Bytes => Self::Bytes(Vec::with_capacity(rows * usize::from(field.len))),
        }
    }

    fn extend(&mut self, field: &Field, size: usize, records: &[u8]) {
        let at = usize::from(field.offset);
        match self {
            Self::Time(out) | Self::I64(out) => {
                out.extend(words(records, size, at).map(i64::from_le_bytes));
            }
            Self::U8(out) => out.extend(words(records, size, at).map(u8::from_le_bytes)),
            Self::U16(out) => out.extend(words(records, size, at).map(u16::from_le_bytes)),
            Self::U32(out) => out.extend(words(records, size, at).map(u32::from_le_bytes)),
            Self::U64(out) => out.extend(words(records, size, at).map(u64::from_le_bytes)),
            Self::Price(out) => {
                let prices = words(records, size, at).map(i64::from_le_bytes);
                out.extend(prices.map(i128::from));
            }
            Self::F64(out) => out.extend(words(records, size, at).map(f64::from_le_bytes)),
            Self::Bytes(out) => match field.len {
                // Eight bytes are copied as one word.
                8 => out.extend(words::<8>(records, size, at).flatten()),
                len => records
                    .chunks_exact(size)
                    .for_each(|record| out.extend_from_slice(&record[at..at + usize::from(len)])),
            },
        }
    }

    fn finish(self, schema: &Schema, field: &Field) -> Result<ArrayRef, ArrowError> {
        Ok(match self {
            Self::Time(values) => {
                Arc::new(TimestampNanosecondArray::from(values).with_timezone(UTC))
            }
            Self::U8(values) => Arc::new(UInt8Array::from(values)),
            Self::U16(values) => Arc::new(UInt16Array::from(values)),
            Self::U32(values) => Arc::new(UInt32Array::from(values)),
            Self::U64(values) => Arc::new(UInt64Array::from(values)),
            Self::I64(values) => Arc::new(Int64Array::from(values)),
            Self::Price(values) => Arc::new(
                Decimal128Array::from(values)
                    .with_precision_and_scale(PRICE_DIGITS, schema.price_decimals as i8)?,
            ),
            Self::F64(values) => Arc::new(Float64Array::from(values)),
            Self::Bytes(values) => {
                Arc::new(FixedSizeBinaryArray::try_new(i32::from(field.len), values.into(), None)?)
            }
        })
    }
}

/// The bytes of one field, record by record.
fn words<const N: usize>(
    records: &[u8],
    size: usize,
    at: usize,
) -> impl ExactSizeIterator<Item = [u8; N]> + '_ {
    records.chunks_exact(size).map(move |record| {
        // `at` and `N` come from a checked schema. Wrong values would give zeros and no panic.
        record.get(at..at + N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
    })
}

/// Columns that are filled segment by segment.
pub struct Columns {
    schema: Schema,
    arrow: SchemaRef,
    values: Vec<Values>,
    rows: usize,
    rows_hint: usize,
}

impl Columns {
    /// Empty columns with room for this many records.
    pub fn new(schema: &Schema, rows_hint: usize) -> Self {
        let values = schema.fields.iter().map(|field| Values::new(field, rows_hint)).collect();
        let arrow = arrow_schema(schema);
        Self { schema: schema.clone(), arrow, values, rows: 0, rows_hint }
    }

    /// Schema of the columns.
    pub fn arrow_schema(&self) -> &SchemaRef {
        &self.arrow
    }

    /// Records in the columns.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Adds whole records.
    pub fn extend(&mut self, records: &[u8]) {
        let size = usize::from(self.schema.record_bytes).max(1);
        for (values, field) in self.values.iter_mut().zip(&self.schema.fields) {
            values.extend(field, size, records);
        }
        self.rows += records.len() / size;
    }

    /// Returns the records so far as one batch, and begins an empty batch.
    ///
    /// # Errors
    /// The error of Arrow for columns that do not fit its schema.
    pub fn take(&mut self) -> Result<RecordBatch, ArrowError> {
        let fresh = self.schema.fields.iter().map(|field| Values::new(field, self.rows_hint));
        let values = std::mem::replace(&mut self.values, fresh.collect());
        self.rows = 0;
        let columns = values.into_iter().zip(&self.schema.fields);
        let columns = columns.map(|(values, field)| values.finish(&self.schema, field));
        let columns: Vec<ArrayRef> = columns.collect::<Result<_, _>>()?;
        RecordBatch::try_new(Arc::clone(&self.arrow), columns)
    }
}

/// Turns records that lie one after the other into one batch.
///
/// # Errors
/// As [`Columns::take`].
pub fn record_batch(schema: &Schema, records: &[u8]) -> Result<RecordBatch, ArrowError> {
    let rows = records.len() / usize::from(schema.record_bytes).max(1);
    let mut columns = Columns::new(schema, rows);
    columns.extend(records);
    columns.take()
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::Array as _;
    use arrow_array::cast::AsArray as _;
    use arrow_array::types::{Decimal128Type, TimestampNanosecondType, UInt16Type};

    #[test]
    fn parts_of_any_size_give_the_columns_of_the_whole() {
        let kinds = [
            ("time", FieldType::Time),
            ("venue", FieldType::U16),
            ("price", FieldType::Price),
            ("rate", FieldType::F64),
        ];
        let mut schema = Schema::of(&kinds);
        let body = Field {
            name: "text".into(),
            offset: schema.record_bytes,
            len: 5,
            kind: FieldType::Bytes,
            aggregate: false,
        };
        (schema.record_bytes, schema.price_decimals) = (schema.record_bytes + 5, 2);
        schema.fields.push(body);
        let record = |n: i64| -> Vec<u8> {
            let mut bytes = n.to_le_bytes().to_vec();
            bytes.extend((n as u16).to_le_bytes());
            bytes.extend((-n).to_le_bytes());
            bytes.extend((n as f64 / 2.0).to_le_bytes());
            bytes.extend([n as u8; 5]);
            bytes
        };
        let all: Vec<u8> = (0..1_000).flat_map(record).collect();
        let whole = record_batch(&schema, &all).unwrap();
        let mut columns = Columns::new(&schema, 0);
        for part in all.chunks(7 * usize::from(schema.record_bytes)) {
            columns.extend(part);
        }
        assert_eq!((columns.rows(), columns.take().unwrap()), (1_000, whole.clone()));
        assert_eq!(columns.rows(), 0);
        assert_eq!(whole.column(0).as_primitive::<TimestampNanosecondType>().value(999), 999);
        assert_eq!(whole.column(1).as_primitive::<UInt16Type>().value(300), 300);
        assert_eq!(whole.column(2).as_primitive::<Decimal128Type>().value(7), -7);
        assert_eq!(whole.column(4).as_fixed_size_binary().value(3), [3; 5]);
        assert_eq!(whole.column(3).len(), 1_000);
    }
}
