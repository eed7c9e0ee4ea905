//! Records as text for other programs. The crate `evenfall-store-recording` gives records and
//! messages as columns.

use evenfall_store_format::{Field, FieldType, Schema};
use std::io::Write;

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
        _ => write_whole(schema, field, field.whole(record), out),
    }
}

/// Writes a value of a field of whole numbers, or a sum of such values, in decimals. Prices have
/// their decimals.
///
/// # Errors
/// The errors of `out`.
pub fn write_whole(
    schema: &Schema,
    field: &Field,
    value: i128,
    out: &mut impl Write,
) -> std::io::Result<()> {
    if field.kind != FieldType::Price || schema.price_decimals == 0 {
        return write!(out, "{value}");
    }
    let scale = 10u128.pow(schema.price_decimals.into());
    let sign = if value < 0 { "-" } else { "" };
    let (units, rest) = (value.unsigned_abs() / scale, value.unsigned_abs() % scale);
    let width = usize::from(schema.price_decimals);
    write!(out, "{sign}{units}.{rest:0width$}")
}
