//! Records for other programs: CSV, and Parquet or Arrow that DuckDB, Polars and Spark open.
//! Messages of a recording are in [`messages`](super::messages).

use std::io::Write;
#[cfg(feature = "arrow")]
use std::sync::Arc;

use evenfall_store::{Field, FieldType, Schema};

#[cfg(feature = "arrow")]
use super::sheet::{Kind, Sheet};

/// The head line of a CSV.
pub fn csv_header(schema: &Schema) -> String {
    let names: Vec<&str> = schema.fields.iter().map(|field| field.name.as_str()).collect();
    names.join(",")
}

/// Writes records as CSV: times and numbers in decimals, prices with their decimals, bytes in hex.
///
/// # Errors
/// What `out` says.
pub fn csv(schema: &Schema, records: &[u8], out: &mut impl Write) -> std::io::Result<()> {
    for record in records.chunks_exact(usize::from(schema.record_bytes)) {
        for (at, field) in schema.fields.iter().enumerate() {
            if at > 0 {
                out.write_all(b",")?;
            }
            csv_field(schema, field, record, out)?;
        }
        out.write_all(b"\n")?;
    }
    Ok(())
}

fn csv_field(
    schema: &Schema,
    field: &Field,
    record: &[u8],
    out: &mut impl Write,
) -> std::io::Result<()> {
    match field.kind {
        FieldType::Bytes => field.of(record).iter().try_for_each(|byte| write!(out, "{byte:02x}")),
        FieldType::F64 => {
            let bytes = field.of(record).try_into().unwrap_or([0; 8]);
            write!(out, "{}", f64::from_le_bytes(bytes))
        }
        FieldType::Price if schema.price_decimals > 0 => {
            let (value, scale) = (field.whole(record), 10i128.pow(schema.price_decimals.into()));
            let sign = if value < 0 { "-" } else { "" };
            let (units, rest) = (value.abs() / scale, value.abs() % scale);
            let width = usize::from(schema.price_decimals);
            write!(out, "{sign}{units}.{rest:0width$}")
        }
        _ => write!(out, "{}", field.whole(record)),
    }
}

/// Writes records that come in parts as Parquet or Arrow.
#[cfg(feature = "arrow")]
pub struct RecordSheet<W: Write + Send> {
    schema: Schema,
    arrow: arrow_schema::SchemaRef,
    sheet: Sheet<W>,
}

#[cfg(feature = "arrow")]
fn arrow_type(schema: &Schema, field: &Field) -> arrow_schema::DataType {
    use arrow_schema::{DataType, TimeUnit};
    match field.kind {
        FieldType::Time => DataType::Timestamp(TimeUnit::Nanosecond, None),
        FieldType::U8 => DataType::UInt8,
        FieldType::U16 => DataType::UInt16,
        FieldType::U32 => DataType::UInt32,
        FieldType::U64 => DataType::UInt64,
        FieldType::I64 => DataType::Int64,
        // Nineteen digits are what an i64 can have at most.
        FieldType::Price => DataType::Decimal128(19, schema.price_decimals as i8),
        FieldType::F64 => DataType::Float64,
        FieldType::Bytes => DataType::FixedSizeBinary(i32::from(field.len)),
    }
}

/// One column of records.
#[cfg(feature = "arrow")]
fn column(
    schema: &Schema,
    field: &Field,
    records: &[u8],
) -> Result<arrow_array::ArrayRef, arrow_schema::ArrowError> {
    use arrow_array::{
        ArrayRef, Decimal128Array, FixedSizeBinaryArray, Float64Array, Int64Array,
        TimestampNanosecondArray, UInt8Array, UInt16Array, UInt32Array, UInt64Array,
    };
    let rows = || records.chunks_exact(usize::from(schema.record_bytes));
    let whole = || rows().map(|record| field.whole(record));
    let column: ArrayRef = match field.kind {
        FieldType::Time => {
            Arc::new(TimestampNanosecondArray::from_iter_values(whole().map(|v| v as i64)))
        }
        FieldType::U8 => Arc::new(UInt8Array::from_iter_values(whole().map(|v| v as u8))),
        FieldType::U16 => Arc::new(UInt16Array::from_iter_values(whole().map(|v| v as u16))),
        FieldType::U32 => Arc::new(UInt32Array::from_iter_values(whole().map(|v| v as u32))),
        FieldType::U64 => Arc::new(UInt64Array::from_iter_values(whole().map(|v| v as u64))),
        FieldType::I64 => Arc::new(Int64Array::from_iter_values(whole().map(|v| v as i64))),
        FieldType::Price => {
            let prices = Decimal128Array::from_iter_values(whole());
            Arc::new(prices.with_precision_and_scale(19, schema.price_decimals as i8)?)
        }
        FieldType::F64 => Arc::new(Float64Array::from_iter_values(
            rows().map(|record| f64::from_le_bytes(field.of(record).try_into().unwrap_or([0; 8]))),
        )),
        FieldType::Bytes => {
            Arc::new(FixedSizeBinaryArray::try_from_iter(rows().map(|record| field.of(record)))?)
        }
    };
    Ok(column)
}

#[cfg(feature = "arrow")]
impl<W: Write + Send> RecordSheet<W> {
    /// Begins one.
    ///
    /// # Errors
    /// What Parquet, Arrow or `out` says.
    pub fn new(kind: Kind, schema: &Schema, out: W) -> Result<Self, parquet::errors::ParquetError> {
        let fields: Vec<arrow_schema::Field> = schema
            .fields
            .iter()
            .map(|f| arrow_schema::Field::new(&f.name, arrow_type(schema, f), false))
            .collect();
        let arrow = Arc::new(arrow_schema::Schema::new(fields));
        let sheet = Sheet::new(kind, &arrow, out)?;
        Ok(Self { schema: schema.clone(), arrow, sheet })
    }

    /// Adds whole records.
    ///
    /// # Errors
    /// What Parquet or the file says.
    pub fn write(&mut self, records: &[u8]) -> Result<(), parquet::errors::ParquetError> {
        let columns: Result<Vec<_>, _> =
            self.schema.fields.iter().map(|field| column(&self.schema, field, records)).collect();
        let batch = arrow_array::RecordBatch::try_new(Arc::clone(&self.arrow), columns?)?;
        self.sheet.write(&batch)
    }

    /// Ends it.
    ///
    /// # Errors
    /// What Parquet or the file says.
    pub fn finish(self) -> Result<(), parquet::errors::ParquetError> {
        self.sheet.finish()
    }
}
