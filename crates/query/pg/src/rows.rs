//! Rows as text, as PostgreSQL writes them.
//!
//! arrow-pg writes any column. For each value it looks its type up, parses the name of a zone and a
//! pattern of digits, and it knows no zone but the column's. The columns that answers of traders
//! have are written here: a column is looked at once a batch, and its values go digit by digit into
//! the bytes of the row. arrow-pg writes all others, and whatever leaves in binary.

use std::sync::Arc;

use arrow::array::{
    Array as _, ArrayRef, AsArray as _, BooleanArray, Decimal128Array, Int64Array, RecordBatch,
    StringArray, TimestampMicrosecondArray,
};
use arrow::datatypes::{DataType, Field, TimeUnit};
use arrow_pg::encoder::encode_value;
use bytes::{BufMut as _, BytesMut};
use pgwire::api::Type;
use pgwire::api::results::{DataRowEncoder, FieldFormat, FieldInfo};
use pgwire::error::PgWireResult;
use pgwire::messages::data::DataRow;

use crate::zones::PrintedZone;

const DAY_US: i64 = 86_400_000_000;
/// Bytes of a value for which room is made. Times have 29 with their zone, prices 8.
const VALUE_BYTES: usize = 24;

/// Writes batches as rows.
pub(crate) struct RowWriter {
    fields: Arc<Vec<FieldInfo>>,
    /// The zone in which instants are written.
    zone: PrintedZone,
}

impl RowWriter {
    pub(crate) fn new(fields: Arc<Vec<FieldInfo>>, zone: PrintedZone) -> Self {
        Self { fields, zone }
    }

    /// The rows of a batch, each by itself or with its error.
    pub(crate) fn write_batch(&self, batch: &RecordBatch) -> Vec<PgWireResult<DataRow>> {
        let schema = batch.schema_ref();
        let columns = batch.columns().iter().zip(schema.fields()).zip(self.fields.iter());
        let mut columns: Vec<_> = columns
            .map(|((array, arrow), sent)| WrittenColumn::of(array, arrow, sent, self.zone))
            .collect();
        let rows = batch.num_rows();
        let mut bytes = BytesMut::with_capacity(rows * columns.len() * VALUE_BYTES);
        let write_row = |row| -> PgWireResult<DataRow> {
            for column in &mut columns {
                column.write(row, &mut bytes).inspect_err(|_| bytes.clear())?;
            }
            Ok(DataRow::new(bytes.split(), columns.len() as i16))
        };
        (0..rows).map(write_row).collect()
    }
}

/// A column of a batch.
enum WrittenColumn<'a> {
    Boolean(&'a BooleanArray),
    Whole(Int64Array),
    Decimal { units: &'a Decimal128Array, scale: usize },
    Time { us: &'a TimestampMicrosecondArray, zone: Option<PrintedZone> },
    Text(&'a StringArray),
    Other { array: &'a ArrayRef, arrow: &'a Field, sent: &'a FieldInfo, encoder: DataRowEncoder },
}

impl<'a> WrittenColumn<'a> {
    fn of(array: &'a ArrayRef, arrow: &'a Field, sent: &'a FieldInfo, zone: PrintedZone) -> Self {
        // Columns of the catalogue say by their metadata that they are more than their type.
        let is_plain = sent.format() == FieldFormat::Text && arrow.metadata().is_empty();
        let known = is_plain.then(|| match (array.data_type(), sent.datatype()) {
            (DataType::Boolean, &Type::BOOL) => Some(Self::Boolean(array.as_boolean())),
            (DataType::Int16, &Type::INT2)
            | (DataType::Int32, &Type::INT4)
            | (DataType::Int64, &Type::INT8) => {
                let whole = arrow::compute::cast(array, &DataType::Int64).ok()?;
                Some(Self::Whole(whole.as_primitive_opt()?.clone()))
            }
            (DataType::Decimal128(_, scale), &Type::NUMERIC) => {
                let scale = usize::try_from(*scale).ok()?;
                Some(Self::Decimal { units: array.as_primitive_opt()?, scale })
            }
            (DataType::Timestamp(TimeUnit::Microsecond, None), &Type::TIMESTAMP) => {
                Some(Self::Time { us: array.as_primitive_opt()?, zone: None })
            }
            (DataType::Timestamp(TimeUnit::Microsecond, Some(_)), &Type::TIMESTAMPTZ) => {
                Some(Self::Time { us: array.as_primitive_opt()?, zone: Some(zone) })
            }
            (DataType::Utf8, &(Type::TEXT | Type::VARCHAR)) => {
                Some(Self::Text(array.as_string_opt()?))
            }
            _ => None,
        });
        known.flatten().unwrap_or_else(|| {
            let encoder = DataRowEncoder::new(Arc::new(vec![sent.clone()]));
            Self::Other { array, arrow, sent, encoder }
        })
    }

    /// Writes a value with its length in front.
    fn write(&mut self, row: usize, bytes: &mut BytesMut) -> PgWireResult<()> {
        if let Self::Other { array, arrow, sent, encoder } = self {
            let encoded = encode_value(encoder, array, row, arrow, sent);
            // A value that failed leaves nothing for the next row.
            bytes.extend_from_slice(&encoder.take_row().data);
            return encoded;
        }
        let start = bytes.len();
        // The length of null.
        bytes.put_i32(-1);
        if self.write_known(row, bytes) {
            let length = (bytes.len() - start - 4) as i32;
            bytes[start..start + 4].copy_from_slice(&length.to_be_bytes());
        }
        Ok(())
    }

    /// Writes a value. Returns whether there is one.
    fn write_known(&self, row: usize, bytes: &mut BytesMut) -> bool {
        match self {
            Self::Boolean(values) if values.is_valid(row) => {
                bytes.put_u8(if values.value(row) { b't' } else { b'f' });
            }
            Self::Whole(values) if values.is_valid(row) => {
                put_decimal(values.value(row).into(), 0, bytes);
            }
            Self::Decimal { units, scale } if units.is_valid(row) => {
                put_decimal(units.value(row), *scale, bytes);
            }
            Self::Time { us, zone } if us.is_valid(row) => put_time(us.value(row), *zone, bytes),
            Self::Text(values) if values.is_valid(row) => {
                bytes.extend_from_slice(values.value(row).as_bytes());
            }
            _ => return false,
        }
        true
    }
}

/// Puts a number of units, of which 10 to the power of `scale` are one.
fn put_decimal(units: i128, scale: usize, bytes: &mut BytesMut) {
    if units < 0 {
        bytes.put_u8(b'-');
    }
    // From the last digit on: 39 digits of an i128, and a point.
    let mut text = [0; 48];
    let mut start = text.len();
    let mut put = |digit: u8| {
        start -= 1;
        text[start] = digit;
    };
    let mut left = units.unsigned_abs();
    for place in 0.. {
        if place == scale && place > 0 {
            put(b'.');
        }
        if left == 0 && place > scale {
            break;
        }
        let digit;
        // A division of 64 bits takes a part of the time of one of 128.
        (left, digit) = match u64::try_from(left) {
            Ok(short) => (u128::from(short / 10), (short % 10) as u8),
            Err(_) => (left / 10, (left % 10) as u8),
        };
        put(b'0' + digit);
    }
    bytes.extend_from_slice(&text[start..]);
}

/// Puts a time with six digits, and its zone where it has one.
fn put_time(us: i64, zone: Option<PrintedZone>, bytes: &mut BytesMut) {
    let offset_s = zone.map(|zone| zone.offset_s(us));
    let local = i128::from(us) + i128::from(offset_s.unwrap_or(0)) * 1_000_000;
    let (day, of_day) = (local.div_euclid(DAY_US.into()), local.rem_euclid(DAY_US.into()));
    let (year, month, day) = civil_date(day as i64);
    // There is no year 0: the year before 1 is 1 BC.
    let shown = if year > 0 { year } else { 1 - year };
    put_padded(shown as u64, 4, bytes);
    for (sign, part) in [(b'-', month), (b'-', day)] {
        bytes.put_u8(sign);
        put_padded(part, 2, bytes);
    }
    let of_day = of_day as u64;
    let (seconds, us) = (of_day / 1_000_000, of_day % 1_000_000);
    for (sign, part) in [(b' ', seconds / 3_600), (b':', seconds / 60 % 60), (b':', seconds % 60)] {
        bytes.put_u8(sign);
        put_padded(part, 2, bytes);
    }
    bytes.put_u8(b'.');
    put_padded(us, 6, bytes);
    if let Some(offset_s) = offset_s {
        put_offset(offset_s, bytes);
    }
    if year <= 0 {
        bytes.extend_from_slice(b" BC");
    }
}

/// Puts an offset from UTC: hours, and minutes and seconds where it has any.
fn put_offset(offset_s: i32, bytes: &mut BytesMut) {
    bytes.put_u8(if offset_s < 0 { b'-' } else { b'+' });
    let all = u64::from(offset_s.unsigned_abs());
    put_padded(all / 3_600, 2, bytes);
    let (minutes, seconds) = (all / 60 % 60, all % 60);
    if minutes > 0 || seconds > 0 {
        bytes.put_u8(b':');
        put_padded(minutes, 2, bytes);
    }
    if seconds > 0 {
        bytes.put_u8(b':');
        put_padded(seconds, 2, bytes);
    }
}

/// Puts a number with at least so many digits, up to 20.
fn put_padded(number: u64, digits: usize, bytes: &mut BytesMut) {
    let mut text = [b'0'; 20];
    let (mut left, mut start) = (number, text.len());
    while left > 0 || text.len() - start < digits {
        start -= 1;
        text[start] = b'0' + (left % 10) as u8;
        left /= 10;
    }
    bytes.extend_from_slice(&text[start..]);
}

/// Year, month and day of a day since 1970, by the calendar of today.
///
/// Years begin in March here, so that the day after a leap day is the last of its year; 400 years
/// have 146,097 days (Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`).
fn civil_date(day: i64) -> (i64, u64, u64) {
    let from_march = day + 719_468;
    let era = from_march.div_euclid(146_097);
    let of_era = from_march.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day_of_month = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month as u64, day_of_month as u64)
}

#[cfg(test)]
mod tests;
