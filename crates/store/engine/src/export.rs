//! Records for other programs: CSV, and Parquet or Arrow for DuckDB, Polars and Spark. The
//! crate `evenfall-store-recording` exports the messages of a recording.

use evenfall_store_format::{Field, FieldType, Schema};
use std::io::Write;

#[cfg(feature = "arrow")]
use super::columns::Columns;
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
/// The errors of `out`.
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

/// Records of a batch.
#[cfg(feature = "arrow")]
const ROWS: usize = 65_536;

/// Writes records as Parquet or Arrow. The records may come in parts.
#[cfg(feature = "arrow")]
pub struct RecordSheet<W: Write + Send> {
    columns: Columns,
    sheet: Sheet<W>,
}

#[cfg(feature = "arrow")]
impl<W: Write + Send> RecordSheet<W> {
    /// Begins a sheet.
    ///
    /// # Errors
    /// The errors of Parquet, Arrow or `out`.
    pub fn new(kind: Kind, schema: &Schema, out: W) -> Result<Self, parquet::errors::ParquetError> {
        let columns = Columns::new(schema, ROWS);
        let sheet = Sheet::new(kind, columns.arrow_schema(), out)?;
        Ok(Self { columns, sheet })
    }

    /// Adds whole records.
    ///
    /// # Errors
    /// The errors of Parquet or the file.
    pub fn write(&mut self, records: &[u8]) -> Result<(), parquet::errors::ParquetError> {
        self.columns.extend(records);
        if self.columns.rows() < ROWS { Ok(()) } else { self.write_rows() }
    }

    fn write_rows(&mut self) -> Result<(), parquet::errors::ParquetError> {
        self.sheet.write(&self.columns.take()?)
    }

    /// Ends the sheet.
    ///
    /// # Errors
    /// The errors of Parquet or the file.
    pub fn finish(mut self) -> Result<(), parquet::errors::ParquetError> {
        self.write_rows()?;
        self.sheet.finish()
    }
}
