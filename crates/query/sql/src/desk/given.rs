//! Positions and fills out of a table of the store or of a user's file.
//!
//! The rows go through the text form, so that a table and a file of `evenfall burst` are read by
//! one reader, with the same refusals.

use std::sync::Arc;

use arrow::array::{Array as _, AsArray as _, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::{ExecutionPlan, collect_partitioned};
use evenfall_query_member::desk::nbbo::{DeskFill, read_fills};
use evenfall_query_member::desk::reprice::{DeskPosition, read_positions};
use evenfall_store_recording::depth::price_type;

use super::arguments::AnswerKind;

/// Positions or fills of a call at most. Their text is in memory beside them: some 60 MB.
pub(super) const GIVEN_ROWS_MAX: usize = 1_000_000;

/// The rows of the table that a call names.
#[derive(Default)]
pub(super) struct GivenRows {
    pub(super) positions: Vec<DeskPosition>,
    pub(super) fills: Vec<DeskFill>,
}

/// Reads positions or fills.
///
/// # Errors
/// A missing column, a row that is no position or fill, and too many rows.
pub(super) async fn read_given(
    kind: AnswerKind,
    plan: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
) -> Result<GivenRows> {
    let columns = kind.given_columns();
    // In the order of parts, because fills are numbered by their place.
    let parts = collect_partitioned(plan, context).await?;
    let mut text = columns.join(",") + "\n";
    let mut count = 0;
    for batch in parts.iter().flatten() {
        count += batch.num_rows();
        if count > GIVEN_ROWS_MAX {
            return exec_err!("a question takes {GIVEN_ROWS_MAX} positions or fills at most");
        }
        write_rows(batch, columns, &mut text)?;
    }
    let wrong = |error| DataFusionError::External(Box::new(error));
    let mut given = GivenRows::default();
    match kind {
        AnswerKind::Accounts => given.positions = read_positions(&text).map_err(wrong)?,
        AnswerKind::Fills => given.fills = read_fills(&text).map_err(wrong)?,
        AnswerKind::Symbols => {}
    }
    Ok(given)
}

/// Appends the rows of a batch as lines.
fn write_rows(batch: &RecordBatch, columns: &[&str], text: &mut String) -> Result<()> {
    let mut cells = Vec::new();
    for name in columns {
        let missing = || exec_datafusion_err!("the table has no column {name}");
        let column = batch.column_by_name(name).ok_or_else(missing)?;
        let typed = match *name {
            "price" => Some(cast(column, &price_type())?),
            "time_ns" => match column.data_type() {
                DataType::Timestamp(_, zone) => {
                    let in_ns = DataType::Timestamp(TimeUnit::Nanosecond, zone.clone());
                    Some(cast(&cast(column, &in_ns)?, &DataType::Int64)?)
                }
                _ => None,
            },
            _ => None,
        };
        cells.push(cast(typed.as_ref().unwrap_or(column), &DataType::Utf8)?);
    }
    for row in 0..batch.num_rows() {
        for (at, cell) in cells.iter().enumerate() {
            let cell = cell.as_string::<i32>();
            text.push_str(if at > 0 { "," } else { "" });
            // A null is an empty cell, which the reader refuses with the number of its line.
            let value = if cell.is_valid(row) { cell.value(row) } else { "" };
            if value.contains([',', '\n', '\r']) {
                return exec_err!("{} {value:?} has a comma or a line break", columns[at]);
            }
            text.push_str(value);
        }
        text.push('\n');
    }
    Ok(())
}
