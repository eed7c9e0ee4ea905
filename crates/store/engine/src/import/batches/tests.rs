use std::sync::Arc;

use arrow_array::types::Int8Type;
use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, Decimal128Array, DictionaryArray, Float32Array,
    Float64Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray,
    TimestampNanosecondArray, UInt8Array, UInt64Array,
};

use super::*;
use crate::columns::record_batch;

/// 2025-11-29 12:00:00.123 UTC.
const AT_NS: i64 = 1_764_417_600_123_000_000;

fn schema() -> Schema {
    let mut schema = Schema::of(&[
        ("time", FieldType::Time),
        ("px", FieldType::Price),
        ("size", FieldType::U32),
        ("delta", FieldType::I64),
        ("ratio", FieldType::F64),
    ]);
    schema.price_decimals = 4;
    let (name, kind) = ("symbol".to_owned(), FieldType::Bytes);
    let offset = schema.record_bytes;
    schema.fields.push(Field { name, offset, len: 8, kind, aggregate: false });
    schema.record_bytes += 8;
    schema
}

/// Two rows as the store itself gives them.
fn columns() -> Vec<(&'static str, ArrayRef)> {
    let prices = Decimal128Array::from(vec![1_012_500, -1]).with_precision_and_scale(19, 4);
    vec![
        ("time", Arc::new(TimestampNanosecondArray::from(vec![AT_NS, AT_NS + 1]))),
        ("px", Arc::new(prices.unwrap())),
        ("size", Arc::new(UInt64Array::from(vec![7, u64::from(u32::MAX)]))),
        ("delta", Arc::new(Int64Array::from(vec![-5, i64::MAX]))),
        ("ratio", Arc::new(Float64Array::from(vec![0.5, -2.0]))),
        ("symbol", Arc::new(StringArray::from(vec!["AAPL", "GOOGLE  "]))),
    ]
}

fn batch_with(name: &'static str, column: ArrayRef) -> RecordBatch {
    let columns = columns();
    let put = |(field, values)| (field, if field == name { Arc::clone(&column) } else { values });
    RecordBatch::try_from_iter(columns.into_iter().map(put)).unwrap()
}

fn batch() -> RecordBatch {
    RecordBatch::try_from_iter(columns()).unwrap()
}

fn read(batch: &RecordBatch) -> ReadRecords {
    let schema = schema();
    BatchReader::new(&schema, &batch.schema()).unwrap().records(batch)
}

#[test]
fn rows_become_records_that_read_back_as_the_same_rows() {
    let (schema, read) = (schema(), read(&batch()));
    assert_eq!(read.wrong, None);
    let back = record_batch(&schema, &read.records).unwrap();
    assert_eq!(read.records.len(), 2 * usize::from(schema.record_bytes));
    assert_eq!(back.column(1), batch().column(1));
    assert_eq!(back.column(3), batch().column(3));
    assert_eq!(back.column(4), batch().column(4));
    assert_eq!(back.column(5).as_fixed_size_binary().value(0), b"AAPL    ");
    // What the store gives, it takes again, in any order of columns.
    let order: Vec<usize> = (0..back.num_columns()).rev().collect();
    let turned = back.project(&order).unwrap();
    let reader = BatchReader::new(&schema, &turned.schema()).unwrap();
    assert_eq!(reader.records(&turned), ReadRecords { records: read.records, wrong: None });
}

#[test]
fn columns_of_other_types_with_the_same_values_give_the_same_records() {
    let wanted = read(&batch());
    let us = vec![AT_NS / 1_000, AT_NS / 1_000];
    let same: [(&str, ArrayRef); 7] = [
        ("px", Arc::new(Float64Array::from(vec![101.25, -0.0001]))),
        ("px", Arc::new(Float32Array::from(vec![101.25, -0.0001]))),
        ("size", Arc::new(Int64Array::from(vec![7, i64::from(u32::MAX)]))),
        ("ratio", Arc::new(Float32Array::from(vec![0.5, -2.0]))),
        ("symbol", Arc::new(BinaryArray::from(vec![&b"AAPL    "[..], b"GOOGLE  "]))),
        (
            "symbol",
            Arc::new(vec!["AAPL", "GOOGLE"].into_iter().collect::<DictionaryArray<Int8Type>>()),
        ),
        ("time", Arc::new(Int64Array::from(vec![AT_NS, AT_NS + 1]))),
    ];
    for (name, column) in same {
        let kind = column.data_type().clone();
        assert_eq!(read(&batch_with(name, column)), wanted, "{name} of {kind}");
    }
    let read_us = read(&batch_with("time", Arc::new(TimestampMicrosecondArray::from(us))));
    assert_eq!(read_us.records[..8], AT_NS.to_le_bytes());
    let whole = read(&batch_with("px", Arc::new(Int64Array::from(vec![101, 0]))));
    assert_eq!(whole.records[8..16], 1_010_000i64.to_le_bytes());
}

#[test]
fn columns_that_do_not_fit_the_schema_are_named() {
    let schema = schema();
    let wrong = |batch: RecordBatch| {
        BatchReader::new(&schema, &batch.schema()).err().expect("a wrong column").to_string()
    };
    let missing = batch().project(&[0, 1, 2, 3, 4]).unwrap();
    assert!(wrong(missing).contains("no column symbol: the fields are time,px,"));
    let mut extra = columns();
    extra.push(("venue", Arc::new(UInt8Array::from(vec![1, 2]))));
    let extra = RecordBatch::try_from_iter(extra).unwrap();
    assert!(wrong(extra).contains("no field venue: the fields are time,px,"));
    let twice = batch().project(&[0, 1, 2, 3, 4, 5, 1]).unwrap();
    assert!(wrong(twice).contains("column px twice"));
    let text: ArrayRef = Arc::new(StringArray::from(vec!["1", "2"]));
    for (name, words) in [
        ("time", "column time is of type Utf8, and the field takes timestamps"),
        ("px", "column px is of type Utf8, and the field takes decimals"),
        ("size", "takes whole numbers"),
        ("ratio", "takes floats"),
    ] {
        let why = wrong(batch_with(name, Arc::clone(&text)));
        assert!(why.contains(words), "{name}: {why}");
    }
    let real: ArrayRef = Arc::new(Float64Array::from(vec![1.0, 2.0]));
    assert!(wrong(batch_with("size", real)).contains("size is of type Float64"));
}

#[test]
fn a_cell_that_would_lose_something_is_named_and_the_rows_before_it_are_read() {
    let good = read(&batch()).records;
    let size = good.len() / 2;
    let wide = Decimal128Array::from(vec![10_125_000, 10_125_001]).with_precision_and_scale(20, 5);
    let wrong: [(&str, ArrayRef, &str); 9] = [
        ("px", Arc::new(wide.unwrap()), "px: 101.25001 is no price of 4 decimals"),
        ("px", Arc::new(Float64Array::from(vec![101.25, 0.1 + 0.2])), "px: 0.30000000000000004"),
        ("px", Arc::new(Float64Array::from(vec![101.25, f64::NAN])), "px: NaN is no price"),
        ("px", Arc::new(Float64Array::from(vec![Some(101.25), None])), "px: a missing value"),
        ("size", Arc::new(Int64Array::from(vec![7, -1])), "size: -1 does not fit"),
        ("size", Arc::new(Int64Array::from(vec![7, 1 << 32])), "size: 4294967296 does not fit"),
        ("ratio", Arc::new(Int64Array::from(vec![0, (1 << 53) + 1])), "ratio: 9007199254740993"),
        ("symbol", Arc::new(StringArray::from(vec!["AAPL", "MICROSOFT"])), "symbol: \"MICROSOFT\""),
        ("time", Arc::new(Int64Array::from(vec![AT_NS, AT_NS / 1_000])), "time: 1764417600123000"),
    ];
    for (name, column, words) in wrong {
        let read = read(&batch_with(name, column));
        let wrong = read.wrong.expect(words);
        assert_eq!((wrong.row, read.records.len()), (1, size), "{words}");
        assert!(wrong.why.to_string().starts_with(words), "{} is not {words}", wrong.why);
        assert!(name == "ratio" || name == "px" || read.records == good[..size], "{words}");
    }
    // Of two wrong rows, the first one counts, in whichever column it is.
    let two = batch_with("px", Arc::new(Float64Array::from(vec![Some(1.0), None])));
    let flags: ArrayRef = Arc::new(BooleanArray::from(vec![None, Some(true)]));
    let fields = two.schema();
    let columns = fields.fields().iter().zip(two.columns()).map(|(field, column)| {
        let is_size = field.name() == "size";
        (field.name().clone(), if is_size { Arc::clone(&flags) } else { Arc::clone(column) })
    });
    let read = read(&RecordBatch::try_from_iter(columns.collect::<Vec<_>>()).unwrap());
    let wrong = read.wrong.unwrap();
    assert_eq!((wrong.row, read.records.len()), (0, 0));
    assert_eq!(wrong.why.to_string(), "size: a missing value is no whole number");
}
