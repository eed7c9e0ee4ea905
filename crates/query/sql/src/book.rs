//! `book(recording, symbol, time, levels)`: the order book of a symbol at a time, as a table.
//!
//! The books of a recording are known only by taking all of its messages up to a time. A function
//! says that time in its arguments, so that messages after it are not read.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::array::{Decimal128Array, Int64Array, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::streaming::StreamingTable;
use datafusion::catalog::{TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::{Result, ScalarValue, exec_err, plan_datafusion_err, plan_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::streaming::PartitionStream;
use evenfall_store_recording::depth::{self, BookDepth, PriceLevel};
use evenfall_store_recording::tables::{BookRequest, TableName, Tables};
use evenfall_store_recording::times::TimeArg;

use crate::faults::table_error;

/// An example for errors.
const USAGE: &str = "book takes a recording, a symbol, a time and a number of levels, as in \
                     book('day', 'AAPL', TIMESTAMP '2019-12-30 09:36:00', 5)";

/// The place of the price among the columns of a book.
const PRICE_AT: usize = 2;

/// The table function.
pub(crate) struct BookFunction {
    tables: Arc<dyn Tables>,
}

impl std::fmt::Debug for BookFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BookFunction")
    }
}

impl BookFunction {
    pub(crate) fn new(tables: Arc<dyn Tables>) -> Self {
        Self { tables }
    }
}

impl TableFunctionImpl for BookFunction {
    fn call_with_args(&self, args: TableFunctionArgs<'_, '_>) -> Result<Arc<dyn TableProvider>> {
        let [recording, symbol, time, levels] = args.exprs() else {
            return plan_err!("{USAGE}; found {} arguments", args.exprs().len());
        };
        let Some(recording) = text(recording)? else {
            return plan_err!("{USAGE}; the recording is null");
        };
        let asked = BookRequest {
            recording,
            symbol: text(symbol)?,
            time: time_argument(time)?,
            levels: level_count(levels)?,
        };
        let price = price_type_in(&*self.tables, &asked.recording);
        let (tables, schema) = (Arc::clone(&self.tables), book_schema(price));
        let book = BookTable { tables, asked, schema: Arc::clone(&schema) };
        Ok(Arc::new(StreamingTable::try_new(schema, vec![Arc::new(book)])?))
    }
}

fn literal_value(expr: &Expr) -> Result<&ScalarValue> {
    match expr {
        Expr::Literal(value, _) => Ok(value),
        other => plan_err!("{USAGE}; found {other}, which is no constant"),
    }
}

fn text(expr: &Expr) -> Result<Option<String>> {
    let value = literal_value(expr)?;
    match value.try_as_str() {
        Some(text) => Ok(text.map(str::to_owned)),
        None if value.is_null() => Ok(None),
        None => plan_err!("{USAGE}; found {value} in the place of a name"),
    }
}

fn level_count(expr: &Expr) -> Result<usize> {
    let value = literal_value(expr)?;
    let count = match value.cast_to(&DataType::Int64) {
        Ok(ScalarValue::Int64(Some(count))) => usize::try_from(count).ok(),
        _ => None,
    };
    match count.filter(|count| *count > 0 && value.data_type().is_integer()) {
        Some(count) => Ok(count),
        None => plan_err!("{USAGE}; found {value} levels: ask for 1 or more"),
    }
}

/// A timestamp without a zone is what the venue's wall clock shows.
fn time_argument(expr: &Expr) -> Result<TimeArg> {
    let value = literal_value(expr)?;
    if let Some(Some(text)) = value.try_as_str() {
        return text.parse().map_err(|error| plan_datafusion_err!("the time of a book: {error}"));
    }
    let in_ns = |zone: Option<Arc<str>>| -> Option<i64> {
        let kind = DataType::Timestamp(arrow::datatypes::TimeUnit::Nanosecond, zone);
        match value.cast_to(&kind) {
            Ok(ScalarValue::TimestampNanosecond(ns, _)) => ns,
            _ => None,
        }
    };
    let time = match value.data_type() {
        DataType::Timestamp(_, Some(zone)) => in_ns(Some(zone)).map(TimeArg::Instant),
        DataType::Timestamp(_, None) | DataType::Date32 | DataType::Date64 => {
            in_ns(None).and_then(TimeArg::of_wall_ns)
        }
        _ => None,
    };
    time.ok_or_else(|| plan_datafusion_err!("{USAGE}; found {value} in the place of a time"))
}

/// The type of the prices of a recording, as its quotes have it. A recording that cannot be opened
/// is named when the statement runs.
fn price_type_in(tables: &dyn Tables, recording: &str) -> DataType {
    // A statement is planned on a thread of the runtime, where a store must not wait for objects.
    let opened = std::thread::scope(|scope| {
        let quotes = TableName::of_recording(recording, "quotes");
        scope.spawn(move || tables.open(&quotes)).join()
    });
    let Ok(Ok(quotes)) = opened else { return depth::price_type() };
    let schema = &quotes.info().schema;
    schema
        .field_with_name("bid")
        .map_or_else(|_| depth::price_type(), |bid| bid.data_type().clone())
}

fn book_schema(price: DataType) -> SchemaRef {
    let field = |name, kind| Field::new(name, kind, false);
    Arc::new(Schema::new(vec![
        field("side", DataType::Utf8),
        field("level", DataType::Int64),
        field("price", price),
        field("size", DataType::Int64),
        field("orders", DataType::Int64),
    ]))
}

fn levels_batch(found: &BookDepth, schema: SchemaRef) -> Result<RecordBatch> {
    let sides = [("B", &found.bids), ("S", &found.asks)];
    let levels = sides.iter().flat_map(|(side, of_side)| {
        (1..).zip(of_side.iter()).map(|(level, at)| (*side, level, *at))
    });
    let levels: Vec<(&str, i64, PriceLevel)> = levels.collect();
    let rows = || levels.iter();
    let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let price = schema.field(PRICE_AT).data_type().clone();
    if !levels.is_empty() && found.price_type() != price {
        return exec_err!("the recording was made anew while the statement was planned: ask again");
    }
    let prices = Decimal128Array::from_iter_values(rows().map(|(_, _, at)| at.price.into()));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(rows().map(|(side, _, _)| side))),
        Arc::new(Int64Array::from_iter_values(rows().map(|(_, level, _)| *level))),
        Arc::new(prices.with_data_type(price)),
        Arc::new(Int64Array::from_iter_values(rows().map(|(_, _, at)| whole(at.shares)))),
        Arc::new(Int64Array::from_iter_values(rows().map(|(_, _, at)| whole(at.orders)))),
    ];
    Ok(RecordBatch::try_new(schema, columns)?)
}

/// A book that is made when a statement runs.
struct BookTable {
    tables: Arc<dyn Tables>,
    asked: BookRequest,
    schema: SchemaRef,
}

impl std::fmt::Debug for BookTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BookTable({:?})", self.asked)
    }
}

impl PartitionStream for BookTable {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (tables, asked) = (Arc::clone(&self.tables), self.asked.clone());
        let schema = Arc::clone(&self.schema);
        let mut reader = RecordBatchReceiverStream::builder(Arc::clone(&schema), 1);
        let sender = reader.tx();
        reader.spawn_blocking(move || {
            // Nobody listens any more when the query has ended or was cancelled.
            let found = tables.read_book(&asked, &|| !sender.is_closed());
            let found = found.map_err(|error| {
                table_error(&TableName::of_recording(&asked.recording, "messages"), error)
            })?;
            let rows = levels_batch(&found, schema);
            let _ = sender.blocking_send(rows);
            Ok(())
        });
        reader.build()
    }
}
