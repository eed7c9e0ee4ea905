//! Reads records from text of other programs: CSV with a header, as [`export`](super::export)
//! writes it.

use std::fmt;

use evenfall_store_format::{Field, FieldType, Schema};

/// A header or a line that gives no record. The text names the wrong column and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportError(String);

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ImportError {}

/// Reads lines into records of one schema.
pub struct Table<'a> {
    schema: &'a Schema,
    /// The field of each column.
    columns: Vec<&'a Field>,
}

impl<'a> Table<'a> {
    /// A table with this header, which names every field once, in any order.
    ///
    /// # Errors
    /// What is wrong with the header, in words.
    pub fn new(schema: &'a Schema, header: &str) -> Result<Self, ImportError> {
        let field = |name: &str| {
            let known = || {
                let fields = names(schema);
                ImportError(format!("no field {name}: the fields are {fields}"))
            };
            schema.field(name.trim()).ok_or_else(known)
        };
        let columns = header.split(',').map(field).collect::<Result<Vec<_>, _>>()?;
        let absent = |field: &&Field| !columns.iter().any(|column| column.name == field.name);
        if let Some(field) = schema.fields.iter().find(absent) {
            let (column, fields) = (&field.name, names(schema));
            return Err(ImportError(format!("no column {column}: the fields are {fields}")));
        }
        if columns.len() > schema.fields.len() {
            return Err(ImportError("a column twice".into()));
        }
        Ok(Self { schema, columns })
    }

    /// The record of a line.
    ///
    /// # Errors
    /// The wrong column and the reason, in words.
    pub fn record(&self, line: &str) -> Result<Vec<u8>, ImportError> {
        let mut record = vec![0; usize::from(self.schema.record_bytes)];
        let mut cells = line.split(',');
        for field in &self.columns {
            let none = || ImportError(format!("no {}: too few columns", field.name));
            let cell = cells.next().ok_or_else(none)?;
            let from = usize::from(field.offset);
            let place = &mut record[from..from + usize::from(field.len)];
            put(self.schema, field, cell.trim(), place)
                .map_err(|why| ImportError(format!("{}: {cell:?} {why}", field.name)))?;
        }
        match cells.next() {
            Some(_) => Err(ImportError(format!("more than {} columns", self.columns.len()))),
            None => Ok(record),
        }
    }
}

fn names(schema: &Schema) -> String {
    super::export::csv_header(schema)
}

fn put(schema: &Schema, field: &Field, cell: &str, place: &mut [u8]) -> Result<(), &'static str> {
    match field.kind {
        FieldType::Bytes => return put_hex(cell, place),
        FieldType::F64 => {
            let value: f64 = cell.parse().map_err(|_| "is no number")?;
            place.copy_from_slice(&value.to_le_bytes());
        }
        FieldType::Time | FieldType::I64 => {
            let value: i64 = cell.parse().map_err(|_| "is no whole number of 64 bits")?;
            place.copy_from_slice(&value.to_le_bytes());
        }
        FieldType::Price => {
            let value = price(cell, schema.price_decimals).ok_or("is no price of this scale")?;
            place.copy_from_slice(&value.to_le_bytes());
        }
        FieldType::U8 | FieldType::U16 | FieldType::U32 | FieldType::U64 => {
            let value: u64 = cell.parse().map_err(|_| "is no whole number without sign")?;
            let bytes = value.to_le_bytes();
            let (low, high) = bytes.split_at(place.len());
            if high.iter().any(|byte| *byte != 0) {
                return Err("does not fit the field");
            }
            place.copy_from_slice(low);
        }
    }
    Ok(())
}

fn put_hex(cell: &str, place: &mut [u8]) -> Result<(), &'static str> {
    if cell.len() != 2 * place.len() || !cell.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err("is not the field's bytes in hex");
    }
    for (at, byte) in place.iter_mut().enumerate() {
        let digits = cell.get(2 * at..2 * at + 2).unwrap_or_default();
        *byte = u8::from_str_radix(digits, 16).map_err(|_| "is no hex")?;
    }
    Ok(())
}

/// A price in units of the schema's scale. `None` when a digit would be lost.
fn price(cell: &str, decimals: u8) -> Option<i64> {
    let (digits, is_negative) = match cell.strip_prefix('-') {
        Some(rest) => (rest, true),
        None => (cell, false),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let width = usize::from(decimals);
    let is_plain = |text: &str| text.bytes().all(|digit| digit.is_ascii_digit());
    if whole.is_empty() || fraction.len() > width || !is_plain(whole) || !is_plain(fraction) {
        return None;
    }
    let value: i128 = format!("{whole}{fraction:0<width$}").parse().ok()?;
    i64::try_from(if is_negative { -value } else { value }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::{csv, csv_header};

    fn schema() -> Schema {
        let mut schema = Schema::of(&[
            ("time", FieldType::Time),
            ("px", FieldType::Price),
            ("size", FieldType::U32),
            ("side", FieldType::U8),
            ("ratio", FieldType::F64),
        ]);
        schema.price_decimals = 4;
        let (name, kind) = ("tag".to_owned(), FieldType::Bytes);
        schema.fields.push(Field { name, offset: 29, len: 3, kind, aggregate: false });
        schema.record_bytes = 32;
        schema
    }

    #[test]
    fn what_is_printed_is_read_back_as_the_same_bytes() {
        let schema = schema();
        schema.check().unwrap();
        let mut prng = evenfall_core::Prng::new(4);
        let mut records: Vec<u8> = (0..32 * 200).map(|_| prng.next_u64() as u8).collect();
        for record in records.chunks_exact_mut(32) {
            let ratio = (prng.next_u64() as i64) as f64 / 3.0;
            record[21..29].copy_from_slice(&ratio.to_le_bytes());
        }
        let mut text = Vec::new();
        csv(&schema, &records, &mut text).unwrap();
        let table = Table::new(&schema, &csv_header(&schema)).unwrap();
        let lines = std::str::from_utf8(&text).unwrap().lines();
        let read: Vec<u8> = lines.flat_map(|line| table.record(line).unwrap()).collect();
        assert!(read == records);
    }

    #[test]
    fn columns_may_come_in_any_order_and_what_is_wrong_is_named() {
        let schema = schema();
        let table = Table::new(&schema, "tag,time,px,size,side,ratio").unwrap();
        let record = table.record("0a0b0c,-5,-0.05,7,1,2.5").unwrap();
        assert_eq!(record[..16], [(-5i64).to_le_bytes(), (-500i64).to_le_bytes()].concat());
        for (line, word) in [
            ("0a0b0c,1,2,3,4", "ratio"),
            ("0a0b0c,1,2,3,4,5,6", "more than 6 columns"),
            ("0a0b,1,2,3,4,5", "tag"),
            ("0a0b0c,x,2,3,4,5", "time"),
            ("0a0b0c,1,2.00001,3,4,5", "px"),
            ("0a0b0c,1,.5,3,4,5", "px"),
            ("0a0b0c,1,922337203685477.5808,3,4,5", "px"),
            ("0a0b0c,1,2,3,256,5", "side"),
            ("0a0b0c,1,2,-3,4,5", "size"),
        ] {
            let why = table.record(line).unwrap_err().to_string();
            assert!(why.contains(word), "{line}: {why}");
        }
        for header in ["time,px", "time,px,size,side,ratio,tag,tag", "time,price"] {
            assert!(Table::new(&schema, header).is_err(), "{header}");
        }
    }
}
