//! Rows as arrow-pg writes them, and values that it writes otherwise or not at all.

use arrow::array::{Date32Array, Float64Array, Int16Array, Int32Array};
use arrow_pg::datatypes::{arrow_schema_to_pg_fields, encode_recordbatch};
use pgwire::api::portal::Format;

use super::*;

/// The texts of a batch's rows, one string a value.
fn texts(batch: &RecordBatch, zone: &str) -> Vec<Vec<Option<String>>> {
    let fields = arrow_schema_to_pg_fields(batch.schema_ref(), &Format::UnifiedText, None).unwrap();
    let writer = RowWriter::new(Arc::new(fields), PrintedZone::parse(zone).unwrap());
    let rows = writer.write_batch(batch).into_iter().map(|row| {
        let mut values = Vec::new();
        let row = row.unwrap();
        assert_eq!(row.field_count as usize, batch.num_columns());
        let mut rest = &row.data[..];
        while let Some((length, after)) = rest.split_first_chunk() {
            let length = i32::from_be_bytes(*length);
            let (value, after) = after.split_at(length.max(0) as usize);
            values.push((length >= 0).then(|| String::from_utf8(value.to_vec()).unwrap()));
            rest = after;
        }
        values
    });
    rows.collect()
}

fn one_column(column: ArrayRef, zone: &str) -> Vec<String> {
    let batch = RecordBatch::try_from_iter_with_nullable([("c", column, true)]).unwrap();
    texts(&batch, zone).into_iter().map(|row| row[0].clone().unwrap_or("null".into())).collect()
}

/// Numbers of every size, from a counter.
fn spread(count: usize) -> impl Iterator<Item = Option<i64>> {
    let mut state = 7u64;
    (0..count).map(move |row| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let number = (state as i64) >> ((state >> 33) % 64);
        (row % 11 != 5).then_some(number)
    })
}

#[test]
fn rows_are_those_of_arrow_pg_byte_for_byte() {
    const ROWS: usize = 3_000;
    // Times whose year has four digits, which is as far as the two agree.
    let times = || spread(ROWS).map(|us| us.map(|us| us % (200 * 365 * DAY_US)));
    let decimals = spread(ROWS).map(|units| units.map(i128::from));
    let decimals: Decimal128Array = decimals.collect();
    let texts = spread(ROWS).map(|number| number.map(|number| format!("ü{number}")));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("bool", Arc::new(spread(ROWS).map(|n| n.map(|n| n % 2 == 0)).collect::<BooleanArray>())),
        ("small", Arc::new(spread(ROWS).map(|n| n.map(|n| n as i16)).collect::<Int16Array>())),
        ("int", Arc::new(spread(ROWS).map(|n| n.map(|n| n as i32)).collect::<Int32Array>())),
        ("long", Arc::new(spread(ROWS).collect::<Int64Array>())),
        ("price", Arc::new(decimals.clone().with_precision_and_scale(28, 4).unwrap())),
        ("whole", Arc::new(decimals.with_precision_and_scale(28, 0).unwrap())),
        ("time", Arc::new(times().collect::<TimestampMicrosecondArray>())),
        ("utc", Arc::new(times().collect::<TimestampMicrosecondArray>().with_timezone("UTC"))),
        ("text", Arc::new(texts.collect::<StringArray>())),
        // Columns that arrow-pg writes, between those that are written here.
        (
            "date",
            Arc::new(spread(ROWS).map(|n| n.map(|n| n as i32 % 50_000)).collect::<Date32Array>()),
        ),
        (
            "float",
            Arc::new(spread(ROWS).map(|n| n.map(|n| n as f64 / 7.0)).collect::<Float64Array>()),
        ),
    ];
    let nullable = columns.into_iter().map(|(name, column)| (name, column, true));
    let batch = RecordBatch::try_from_iter_with_nullable(nullable).unwrap();
    for format in [Format::UnifiedText, Format::UnifiedBinary] {
        let fields = arrow_schema_to_pg_fields(batch.schema_ref(), &format, None).unwrap();
        let fields = Arc::new(fields);
        let expected = encode_recordbatch(Arc::clone(&fields), batch.clone());
        let written = RowWriter::new(fields, PrintedZone::UTC).write_batch(&batch);
        assert_eq!(written.len(), ROWS);
        for (row, (expected, written)) in expected.zip(written).enumerate() {
            let (expected, written) = (expected.unwrap(), written.unwrap());
            assert_eq!(written.data, expected.data, "row {row}, {format:?}");
        }
    }
}

#[test]
fn instants_are_written_in_the_zone_of_the_connection() {
    // Half past nine in New York, in winter and in summer, and a moment before 1970.
    let instants = [1_795_185_000_000_001, 1_784_554_200_000_000, -1];
    let column = TimestampMicrosecondArray::from(instants.to_vec()).with_timezone("UTC");
    let column: ArrayRef = Arc::new(column);
    let expected = [
        "2026-11-20 09:30:00.000001-05",
        "2026-07-20 09:30:00.000000-04",
        "1969-12-31 18:59:59.999999-05",
    ];
    assert_eq!(one_column(Arc::clone(&column), "America/New_York"), expected);
    let kolkata = one_column(Arc::clone(&column), "Asia/Kolkata");
    assert_eq!(kolkata[0], "2026-11-20 20:00:00.000001+05:30");
    assert_eq!(one_column(column, "-3.5")[0], "2026-11-20 11:00:00.000001-03:30");
}

#[test]
fn times_of_all_years_and_decimals_of_all_digits_have_a_text() {
    let years = [
        ("0001-01-01 00:00:00.000000", -62_135_596_800_000_000),
        ("0001-12-31 23:59:59.999999 BC", -62_135_596_800_000_001),
        ("10000-01-01 00:00:00.000000", 253_402_300_800_000_000),
        ("2000-02-29 00:00:00.000000", 951_782_400_000_000),
        ("294247-01-10 04:00:54.775807", i64::MAX),
        ("290309-12-21 19:59:05.224192 BC", i64::MIN),
    ];
    let column: TimestampMicrosecondArray = years.iter().map(|(_, us)| Some(*us)).collect();
    assert_eq!(one_column(Arc::new(column), "UTC"), years.map(|(text, _)| text));
    let greatest = 10i128.pow(38) - 1;
    let decimals = |scale: i8, units: &[i128]| -> ArrayRef {
        let units = Decimal128Array::from(units.to_vec());
        Arc::new(units.with_precision_and_scale(38, scale).unwrap())
    };
    let texts = one_column(decimals(4, &[greatest, -greatest, 0, -1, 10_000]), "UTC");
    let nines = "9999999999999999999999999999999999.9999";
    assert_eq!(texts, [nines, &format!("-{nines}"), "0.0000", "-0.0001", "1.0000"]);
    let texts = one_column(decimals(38, &[greatest, 1]), "UTC");
    assert_eq!(texts, [format!("0.{}", "9".repeat(38)), format!("0.{}1", "0".repeat(37))]);
}
