//! Answers as rows.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Decimal128Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{Result, exec_err};
use evenfall_query_member::desk::DeskAnswer;
use evenfall_query_member::desk::nbbo::{BestSide, DeskFill, FillSide, JudgedFill, SymbolNbbo};
use evenfall_query_member::desk::reprice::AccountChange;
use evenfall_store_recording::depth::price_type;

use super::arguments::AnswerKind;

/// A sum in 1/20,000 dollar, in units of its fifth digit behind the point.
const CHANGE_STEP: i128 = 5;

/// A change in dollars: exact, because 1/20,000 dollar has five digits behind the point.
fn change_type() -> DataType {
    DataType::Decimal128(38, 5)
}

/// The venues of an answer, and the workers that have no part in the answer.
pub(super) struct AnswerSource {
    /// Names of the venues, from venue 1 on.
    pub(super) venues: Vec<String>,
    /// The workers that have no part in the answer, with the reason of each; empty when all have.
    pub(super) missing: String,
}

/// The columns of an answer. The last one names the workers that have no part in it.
pub(super) fn answer_schema(kind: AnswerKind) -> SchemaRef {
    let field = |name: &str, kind: DataType| Field::new(name, kind, true);
    let fields = match kind {
        AnswerKind::Accounts => vec![
            field("account", DataType::Utf8),
            field("change_dollars", change_type()),
            field("positions", DataType::Int64),
            field("unpriced", DataType::Int64),
        ],
        AnswerKind::Symbols => vec![
            field("symbol", DataType::Utf8),
            field("bid", price_type()),
            field("bid_size", DataType::Int64),
            field("bid_venue", DataType::Utf8),
            field("ask", price_type()),
            field("ask_size", DataType::Int64),
            field("ask_venue", DataType::Utf8),
            field("quotes", DataType::Int64),
            field("changes", DataType::Int64),
            field("trades", DataType::Int64),
            field("traded_through", DataType::Int64),
        ],
        AnswerKind::Fills => vec![
            field("fill", DataType::Int64),
            field("time_ns", DataType::Int64),
            field("symbol", DataType::Utf8),
            field("side", DataType::Utf8),
            field("price", price_type()),
            field("shares", DataType::Int64),
            field("bid", price_type()),
            field("ask", price_type()),
            field("traded_through", DataType::Boolean),
            field("markout_dollars", change_type()),
        ],
    };
    let missing = field("missing", DataType::Utf8);
    Arc::new(Schema::new(fields.into_iter().chain([missing]).collect::<Vec<_>>()))
}

/// The rows of an answer.
///
/// # Errors
/// Missing workers of an answer without rows, which has no place to name them.
pub(super) fn encode_answer(
    kind: AnswerKind,
    answer: &DeskAnswer,
    fills: &[DeskFill],
    source: &AnswerSource,
    schema: SchemaRef,
) -> Result<RecordBatch> {
    let mut columns = match (kind, answer) {
        (AnswerKind::Accounts, DeskAnswer::Reprice(answer)) => account_columns(&answer.worst),
        (AnswerKind::Symbols, DeskAnswer::Nbbo(answer)) => {
            symbol_columns(&answer.symbols, &source.venues)
        }
        (AnswerKind::Fills, DeskAnswer::Nbbo(answer)) => fill_columns(&answer.fills, fills),
        _ => return exec_err!("the answer is that of another question"),
    };
    let rows = columns.first().map_or(0, |column| column.len());
    let missing = Some(source.missing.as_str()).filter(|missing| !missing.is_empty());
    if let (0, Some(missing)) = (rows, missing) {
        return exec_err!("the answer has no rows, and workers are missing: {missing}");
    }
    columns.push(Arc::new((0..rows).map(|_| missing).collect::<StringArray>()));
    Ok(RecordBatch::try_new(schema, columns)?)
}

/// A name without its padding; `None` where the messages name no security.
fn unpad_name(name: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(name);
    Some(text.trim_end().to_owned()).filter(|text| !text.is_empty())
}

fn text_column<'a, T: 'a>(rows: &'a [T], text: impl Fn(&'a T) -> Option<String>) -> ArrayRef {
    Arc::new(rows.iter().map(text).collect::<StringArray>())
}

fn long_column<T>(rows: &[T], number: impl Fn(&T) -> Option<i64>) -> ArrayRef {
    Arc::new(rows.iter().map(number).collect::<Int64Array>())
}

fn decimal_column<T>(rows: &[T], kind: DataType, value: impl Fn(&T) -> Option<i128>) -> ArrayRef {
    Arc::new(rows.iter().map(value).collect::<Decimal128Array>().with_data_type(kind))
}

fn account_columns(rows: &[AccountChange]) -> Vec<ArrayRef> {
    vec![
        text_column(rows, |row| unpad_name(&row.account)),
        decimal_column(rows, change_type(), |row| row.change.checked_mul(CHANGE_STEP)),
        long_column(rows, |row| Some(row.positions.into())),
        long_column(rows, |row| Some(row.unpriced.into())),
    ]
}

fn symbol_columns(rows: &[SymbolNbbo], venues: &[String]) -> Vec<ArrayRef> {
    let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    // Whoever asked is rank 0, so that venues count from 1.
    let venue = |side: BestSide| venues.get(usize::from(side.venue).wrapping_sub(1)).cloned();
    let side = |of: fn(&SymbolNbbo) -> Option<BestSide>| {
        [
            decimal_column(rows, price_type(), |row| Some(of(row)?.price.into())),
            long_column(rows, |row| Some(whole(of(row)?.shares))),
            text_column(rows, |row| venue(of(row)?)),
        ]
    };
    let mut columns = vec![text_column(rows, |row| unpad_name(&row.symbol))];
    columns.extend(side(|row| row.bid));
    columns.extend(side(|row| row.ask));
    let counts: [fn(&SymbolNbbo) -> u32; 4] =
        [|row| row.quotes, |row| row.changes, |row| row.trades, |row| row.through];
    columns.extend(counts.map(|count| long_column(rows, |row| Some(count(row).into()))));
    columns
}

fn fill_columns(judged: &[JudgedFill], fills: &[DeskFill]) -> Vec<ArrayRef> {
    // The answer has each fill by its place in the list that was sent.
    let rows: Vec<(&JudgedFill, &DeskFill)> = judged
        .iter()
        .filter_map(|judged| Some((judged, fills.get(judged.fill as usize)?)))
        .collect();
    let side = |side: FillSide| if side == FillSide::Buy { "buy" } else { "sell" }.to_owned();
    let through = rows.iter().map(|(judged, _)| judged.through);
    vec![
        long_column(&rows, |(judged, _)| Some(judged.fill.into())),
        long_column(&rows, |(_, fill)| Some(fill.time_ns)),
        text_column(&rows, |(_, fill)| unpad_name(&fill.symbol)),
        text_column(&rows, |(_, fill)| Some(side(fill.side))),
        decimal_column(&rows, price_type(), |(_, fill)| Some(fill.price.into())),
        long_column(&rows, |(_, fill)| Some(fill.shares.into())),
        decimal_column(&rows, price_type(), |(judged, _)| Some(judged.bid?.into())),
        decimal_column(&rows, price_type(), |(judged, _)| Some(judged.ask?.into())),
        Arc::new(through.collect::<BooleanArray>()),
        decimal_column(&rows, change_type(), |(judged, _)| {
            Some(i128::from(judged.markout?) * CHANGE_STEP)
        }),
    ]
}
