//! Reads records from text of other programs: CSV with a header, as [`export`](super::export)
//! writes it, and as databases and venues write it: quoted cells, prices with further zeros or an
//! exponent, stamps in other units or as text, columns that the schema lacks, floats without a
//! value, text in fields of bytes.
//!
//! `batches` reads records from Arrow batches, by the same rules, but for two: a program chooses
//! its columns and fills missing values before it gives a batch, and both are refused there.

#[cfg(feature = "arrow")]
mod batches;

use std::fmt;

use evenfall_store_format::{Field, FieldType, Schema};

#[cfg(feature = "arrow")]
pub use self::batches::{BatchReader, ReadRecords, WrongRow};

/// A header or a line that gives no record. The text names the wrong column and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportError(String);

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ImportError {}

/// The unit of stamps that are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StampUnit {
    /// Nanoseconds.
    Nanoseconds,
    /// Microseconds.
    Microseconds,
    /// Milliseconds.
    Milliseconds,
    /// Seconds.
    Seconds,
}

impl StampUnit {
    const ALL: [Self; 4] =
        [Self::Nanoseconds, Self::Microseconds, Self::Milliseconds, Self::Seconds];

    /// The unit's word on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Nanoseconds => "ns",
            Self::Microseconds => "us",
            Self::Milliseconds => "ms",
            Self::Seconds => "s",
        }
    }

    /// The unit of a word.
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.word() == word)
    }

    fn nanoseconds(self) -> i64 {
        match self {
            Self::Nanoseconds => 1,
            Self::Microseconds => 1_000,
            Self::Milliseconds => 1_000_000,
            Self::Seconds => 1_000_000_000,
        }
    }
}

/// The years 1990 and 2100. A stamp that lies between them in another unit than nanoseconds, and
/// before 1990 in nanoseconds, was probably meant in the other unit.
const SENSIBLE_NS: std::ops::Range<i64> = 631_152_000_000_000_000..4_102_444_800_000_000_000;

/// Reads lines into records of one schema.
pub struct CsvReader<'a> {
    schema: &'a Schema,
    /// The field of each column; `None` for a column that the schema lacks.
    columns: Vec<Option<&'a Field>>,
    /// The names of the columns that the schema lacks.
    ignored: Vec<String>,
    /// The unit of stamps, when the user stated one.
    unit: Option<StampUnit>,
}

impl<'a> CsvReader<'a> {
    /// A reader of lines under this header, which names every field once, in any order. Columns
    /// that the schema lacks are left out ([`ignored_columns`](Self::ignored_columns)).
    ///
    /// # Errors
    /// What is wrong with the header, in words.
    pub fn new(schema: &'a Schema, header: &str) -> Result<Self, ImportError> {
        // Programs of Windows put a mark of the byte order in front.
        let header = header.strip_prefix('\u{feff}').unwrap_or(header);
        if header.trim().is_empty() {
            let fields = names(schema);
            return Err(ImportError(format!("it is empty: the first line names {fields}")));
        }
        let titles: Vec<&str> = header.split(',').map(|name| unquoted(name.trim())).collect();
        let columns: Vec<_> = titles.iter().map(|name| schema.field(name)).collect();
        for Field { name, .. } in &schema.fields {
            match titles.iter().filter(|title| *title == name).count() {
                0 => {
                    let fields = names(schema);
                    return Err(ImportError(format!("no column {name}: the fields are {fields}")));
                }
                1 => {}
                _ => return Err(ImportError(format!("column {name} twice"))),
            }
        }
        let unknown = titles.into_iter().filter(|title| schema.field(title).is_none());
        let ignored = unknown.map(str::to_owned).collect();
        Ok(Self { schema, columns, ignored, unit: None })
    }

    /// The names of the columns that the schema lacks, whose cells are left out.
    pub fn ignored_columns(&self) -> &[String] {
        &self.ignored
    }

    /// The same with a stated unit of stamps. Without it, a stamp that was probably meant in
    /// another unit than nanoseconds is refused.
    pub fn with_unit(mut self, unit: Option<StampUnit>) -> Self {
        self.unit = unit;
        self
    }

    /// The record of a line.
    ///
    /// # Errors
    /// The wrong column and the reason, in words.
    pub fn record(&self, line: &str) -> Result<Vec<u8>, ImportError> {
        let mut record = vec![0; usize::from(self.schema.record_bytes)];
        let mut cells = line.split(',');
        for column in &self.columns {
            let none = || {
                let name =
                    column.map_or("column that the header names", |field| field.name.as_str());
                ImportError(format!("no {name}: too few columns"))
            };
            let cell = cells.next().ok_or_else(none)?;
            let Some(field) = column else { continue };
            let from = usize::from(field.offset);
            let place = &mut record[from..from + usize::from(field.len)];
            let text = unquoted(cell.trim());
            let is_missing = match field.kind {
                // Text may be the symbol NA.
                FieldType::Bytes => text.is_empty(),
                _ => says_nothing(text),
            };
            let done = match field.kind {
                // A float has a value that says that there is none.
                FieldType::F64 if is_missing => {
                    place.copy_from_slice(&f64::NAN.to_le_bytes());
                    Ok(())
                }
                _ if is_missing => Err(MISSING.to_owned()),
                FieldType::Time => stamp(text, self.unit).map(|time_ns| {
                    place.copy_from_slice(&time_ns.to_le_bytes());
                }),
                _ => put(self.schema, field, text, place).map_err(str::to_owned),
            };
            done.map_err(|why| ImportError(format!("{}: {cell:?} {why}", field.name)))?;
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

/// A cell without the quotes around it.
fn unquoted(cell: &str) -> &str {
    let inner = cell.strip_prefix('"').and_then(|cell| cell.strip_suffix('"'));
    inner.unwrap_or(cell)
}

/// Why a cell without a value is refused.
const MISSING: &str = "is no value, and only a field of type f64 can lack one, as NaN: give the \
                       row a value or leave it out";

/// Whether a cell says that there is no value, as pandas, Polars, R and databases write it.
fn says_nothing(cell: &str) -> bool {
    cell.is_empty() || ["nan", "null", "na"].iter().any(|word| cell.eq_ignore_ascii_case(word))
}

/// Nanoseconds of a stamp: a number, text such as `2026-11-21T09:30:00.5Z`, or a date, whose
/// midnight is meant. Text without a zone is UTC.
fn stamp(cell: &str, unit: Option<StampUnit>) -> Result<i64, String> {
    let Ok(value) = cell.parse::<i64>() else {
        let time = humantime::parse_rfc3339_weak(cell)
            .or_else(|_| humantime::parse_rfc3339_weak(&format!("{cell} 00:00:00")))
            .map_err(|_| "is no number of 64 bits and no time such as 2026-11-21T09:30:00.5Z")?;
        let since = time.duration_since(std::time::UNIX_EPOCH).map_err(|e| e.to_string())?;
        return i64::try_from(since.as_nanos()).map_err(|error| error.to_string());
    };
    if let Some(unit) = unit {
        let time_ns = value.checked_mul(unit.nanoseconds());
        return time_ns.ok_or_else(|| "does not fit 64 bits of nanoseconds".to_owned());
    }
    match likely_unit(value) {
        Some(unit) => {
            let word = unit.word();
            Err(format!("looks like {word}, not ns: say --time-unit {word}, or --time-unit ns"))
        }
        None => Ok(value),
    }
}

/// The unit in which a stamp was probably meant, when that is not nanoseconds.
fn likely_unit(value: i64) -> Option<StampUnit> {
    let is_meant = |unit: &StampUnit| {
        let time_ns = value.checked_mul(unit.nanoseconds());
        *unit != StampUnit::Nanoseconds && time_ns.is_some_and(|ns| SENSIBLE_NS.contains(&ns))
    };
    StampUnit::ALL.into_iter().find(is_meant).filter(|_| value < SENSIBLE_NS.start)
}

fn put(schema: &Schema, field: &Field, cell: &str, place: &mut [u8]) -> Result<(), &'static str> {
    match field.kind {
        FieldType::Bytes => return put_bytes(cell, place),
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

/// Puts the field's bytes in hex, as they are printed, or text of at most as many bytes, filled up
/// with spaces. Hex has twice as many letters as the field has bytes, so that no text is hex.
fn put_bytes(cell: &str, place: &mut [u8]) -> Result<(), &'static str> {
    if cell.len() <= place.len() {
        place.fill(b' ');
        place[..cell.len()].copy_from_slice(cell.as_bytes());
        return Ok(());
    }
    if cell.len() != 2 * place.len() || !cell.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err("is neither the field's bytes in hex nor text of at most as many bytes");
    }
    for (at, byte) in place.iter_mut().enumerate() {
        let digits = cell.get(2 * at..2 * at + 2).unwrap_or_default();
        *byte = u8::from_str_radix(digits, 16).map_err(|_| "is no hex")?;
    }
    Ok(())
}

/// A price in units of the schema's scale, of plain digits or with an exponent. `None` when a digit
/// would be lost.
fn price(cell: &str, decimals: u8) -> Option<i64> {
    let (digits, is_negative) = match cell.strip_prefix('-') {
        Some(rest) => (rest, true),
        None => (cell.strip_prefix('+').unwrap_or(cell), false),
    };
    let (digits, exponent) = match digits.split_once(['e', 'E']) {
        Some((digits, exponent)) => (digits, exponent.parse::<i32>().ok()?),
        None => (digits, 0),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_plain = |text: &str| text.bytes().all(|digit| digit.is_ascii_digit());
    if whole.is_empty() || !is_plain(whole) || !is_plain(fraction) {
        return None;
    }
    // Zeros at the end say nothing, however many a program writes.
    let fraction = fraction.trim_end_matches('0');
    let mut value: i128 = format!("{whole}{fraction}").parse().ok()?;
    let shift = i32::from(decimals) + exponent - i32::try_from(fraction.len()).ok()?;
    for _ in 0..shift.unsigned_abs().min(40) {
        value = match shift > 0 {
            true => value.checked_mul(10)?,
            false if value % 10 == 0 => value / 10,
            false => return None,
        };
    }
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
        let table = CsvReader::new(&schema, &csv_header(&schema)).unwrap();
        // Stamps of any size: in tables of one's own they are nanoseconds.
        let table = table.with_unit(Some(StampUnit::Nanoseconds));
        let lines = std::str::from_utf8(&text).unwrap().lines();
        let read: Vec<u8> = lines.flat_map(|line| table.record(line).unwrap()).collect();
        assert!(read == records);
    }

    #[test]
    fn columns_may_come_in_any_order_and_what_is_wrong_is_named() {
        let schema = schema();
        let table = CsvReader::new(&schema, "tag,time,px,size,side,ratio").unwrap();
        let record = table.record("0a0b0c,-5,-0.05,7,1,2.5").unwrap();
        assert_eq!(record[..16], [(-5i64).to_le_bytes(), (-500i64).to_le_bytes()].concat());
        for (line, word) in [
            ("0a0b0c,1,2,3,4", "ratio"),
            ("0a0b0c,1,2,3,4,5,6", "more than 6 columns"),
            ("0a0b,1,2,3,4,5", "tag"),
            ("0a0b0c,x,2,3,4,5", "time"),
            ("0a0b0c,1,2.00001,3,4,5", "px"),
            ("0a0b0c,1,2.5e-5,3,4,5", "px"),
            ("0a0b0c,1,2e99,3,4,5", "px"),
            ("0a0b0c,1764417600123,2,3,4,5", "--time-unit ms"),
            ("0a0b0c,1764417600123456,2,3,4,5", "--time-unit us"),
            ("0a0b0c,1764417600,2,3,4,5", "--time-unit s"),
            ("0a0b0c,2026-11,2,3,4,5", "time"),
            ("0a0b0c,2026-13-41,2,3,4,5", "time"),
            ("0a0b0c,1,,3,4,5", "px: \"\" is no value"),
            ("0a0b0c,1,NaN,3,4,5", "px"),
            (",1,2,3,4,5", "tag: \"\" is no value"),
            ("0a0b0c,1,2,null,4,5", "size"),
            ("0a0b0c,1,.5,3,4,5", "px"),
            ("0a0b0c,1,922337203685477.5808,3,4,5", "px"),
            ("0a0b0c,1,2,3,256,5", "side"),
            ("0a0b0c,1,2,-3,4,5", "size"),
        ] {
            let why = table.record(line).unwrap_err().to_string();
            assert!(why.contains(word), "{line}: {why}");
        }
        for header in ["time,px", "time,px,size,side,ratio,tag,tag", "time,price"] {
            assert!(CsvReader::new(&schema, header).is_err(), "{header}");
        }
    }

    #[test]
    fn what_other_programs_write_is_read() {
        let schema = schema();
        let header = "\u{feff}\"time\",px,size,side,ratio,tag";
        let table = CsvReader::new(&schema, header).unwrap();
        let read = |table: &CsvReader<'_>, time: &str, px: &str| {
            let record = table.record(&format!("{time},{px},7,1,2.5,0a0b0c")).unwrap();
            let long = |at: usize| i64::from_le_bytes(record[at..at + 8].try_into().unwrap());
            (long(0), long(8))
        };
        for px in ["101.25", "\"101.25\"", "101.250000000", "1.0125e2", "10125E-2", "+101.25"] {
            assert_eq!(read(&table, "5", px), (5, 1_012_500), "{px}");
        }
        assert_eq!(read(&table, "5", "-0.00010"), (5, -1));
        let at_ns = 1_764_417_600_123_000_000;
        for time in ["2025-11-29T12:00:00.123Z", "2025-11-29 12:00:00.123", "1764417600123000000"] {
            assert_eq!(read(&table, time, "1").0, at_ns, "{time}");
        }
        // A date alone is its midnight.
        assert_eq!(read(&table, "2025-11-29", "1").0, 1_764_374_400_000_000_000);
        // Bytes may be text.
        for (tag, bytes) in [("0A0b0C", b"\x0a\x0b\x0c"), ("AB", b"AB "), ("\"NA\"", b"NA ")] {
            let record = table.record(&format!("5,1,7,1,2.5,{tag}")).unwrap();
            assert_eq!(record[29..], bytes[..], "{tag}");
        }
        // Times of day of a file that counts from midnight.
        assert_eq!(read(&table, "34200000000000", "1").0, 34_200_000_000_000);
        let table = table.with_unit(Some(StampUnit::Milliseconds));
        assert_eq!(read(&table, "1764417600123", "1").0, at_ns);
        // A float without a value is NaN, and columns that the schema lacks are left out.
        let header = "time,px,venue,size,side,ratio,tag,note";
        let table = CsvReader::new(&schema, header).unwrap();
        assert_eq!(table.ignored_columns(), ["venue", "note"]);
        for ratio in ["", "NaN", "null", "NA", "\"\""] {
            let record = table.record(&format!("5,1,XNAS,7,1,{ratio},0a0b0c,")).unwrap();
            assert_eq!(record[21..29], f64::NAN.to_le_bytes(), "{ratio}");
            assert_eq!(record[29..], [10, 11, 12], "{ratio}");
        }
        let short = table.record("5,1,XNAS,7,1,2.5,0a0b0c").unwrap_err().to_string();
        assert!(short.contains("too few columns"), "{short}");
        let empty = CsvReader::new(&schema, "\n").err().unwrap().to_string();
        assert!(empty.contains("it is empty"), "{empty}");
    }
}
