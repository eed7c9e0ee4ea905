//! A user's file as a table.

use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::ArrowError;
use evenfall_store_engine::columns::{Columns, arrow_schema, record_batch};
use evenfall_store_engine::{FieldColumns, FileListing, RecordSource, StoreError};
use evenfall_store_format::{Field, Schema};

use super::{
    BATCH_ROWS, ColumnSummary, READ_BYTES, RowSummary, Snapshot, TableError, TableInfo, TableName,
    check_columns, of_rows,
};
use crate::replay::records_of_times;
use crate::snapshot::{ALL_TIMES, RowSelection};

/// A user's file at one moment.
pub(super) struct FileSnapshot {
    pub(super) info: TableInfo,
    source: Arc<dyn RecordSource>,
    file: FileListing,
    numbers: std::ops::Range<u64>,
}

impl FileSnapshot {
    pub(super) fn open(
        source: &Arc<dyn RecordSource>,
        file: &FileListing,
    ) -> Result<Self, StoreError> {
        let numbers = source.between(&file.name, i64::MIN, i64::MAX)?;
        let time = |number: u64| -> Result<i64, StoreError> {
            let record = source.numbers(&file.name, number..number + 1)?;
            Ok(evenfall_store_format::layout::record_time(&record))
        };
        let times = match numbers.is_empty() {
            true => None,
            false => Some((time(numbers.start)?, time(numbers.end - 1)?)),
        };
        let info = TableInfo {
            name: TableName::of_file(&file.name),
            schema: arrow_schema(&file.schema),
            sorted_by: Vec::from(["time"]),
            rows: Some(numbers.end - numbers.start),
            times,
        };
        Ok(Self { info, source: Arc::clone(source), file: file.clone(), numbers })
    }

    fn records_of_times(
        &self,
        times: &RangeInclusive<i64>,
    ) -> Result<std::ops::Range<u64>, StoreError> {
        records_of_times(&*self.source, &self.file.name, self.numbers.clone(), times)
    }

    /// The numbers of records that are selected.
    fn selected(&self, rows: &RowSelection) -> Result<Vec<std::ops::Range<u64>>, StoreError> {
        let within = match rows.times == ALL_TIMES {
            true => self.numbers.clone(),
            false => self.records_of_times(&rows.times)?,
        };
        let cut = |range: &std::ops::Range<u64>| {
            range.start.max(within.start).max(self.numbers.start)
                ..range.end.min(within.end).min(self.numbers.end)
        };
        Ok(rows.ranges.iter().map(cut).filter(|range| !range.is_empty()).collect())
    }
}

impl Snapshot for FileSnapshot {
    fn info(&self) -> &TableInfo {
        &self.info
    }

    fn rows(&self) -> RowSelection {
        RowSelection::of(Vec::from([self.numbers.clone()]))
    }

    fn between(&self, from_ns: i64, to_ns: i64) -> Result<RowSelection, TableError> {
        // Records that were appended since the snapshot are no part of it.
        let numbers = self.records_of_times(&(from_ns..=to_ns))?;
        Ok(RowSelection::of(Vec::from([numbers])))
    }

    fn parts(&self, rows: &RowSelection, n: usize) -> Vec<RowSelection> {
        let layout = self.file.schema.layout();
        rows.parts(n, layout.map_or(1, |layout| layout.records_per_segment()))
    }

    fn summary(&self, rows: &RowSelection) -> Result<RowSummary, TableError> {
        let mut all: Option<evenfall_store_format::index::IndexSummary> = None;
        for numbers in self.selected(rows)? {
            match (&mut all, self.source.summary(&self.file.name, numbers)?) {
                (Some(all), Some(more)) => all.merge(&more),
                (none, more) => *none = more.or(none.take()),
            }
        }
        let none = RowSummary { count: Some(0), ..RowSummary::default() };
        let Some(all) = all else { return Ok(none) };
        let kept = self.file.schema.fields.iter().enumerate().filter(|(_, field)| field.aggregate);
        let columns = kept.zip(&all.aggregates).map(|((column, _), aggregate)| ColumnSummary {
            column,
            sum: aggregate.sum,
            least: aggregate.min,
            greatest: aggregate.max,
        });
        let times = Some((all.min_ns, all.max_ns));
        Ok(RowSummary { count: Some(all.count), times, columns: columns.collect() })
    }

    fn scan(
        &self,
        rows: &RowSelection,
        columns: &[usize],
        each: &mut dyn FnMut(RecordBatch) -> ControlFlow<()>,
    ) -> Result<(), TableError> {
        check_columns(&self.info, columns)?;
        let mut schema = self.file.schema.clone();
        schema.fields = columns.iter().map(|at| self.file.schema.fields[*at].clone()).collect();
        let size = u64::from(schema.record_bytes);
        let at_once = (READ_BYTES / size).clamp(1, BATCH_ROWS as u64);
        for numbers in self.selected(rows)? {
            let mut next = numbers.start;
            while next < numbers.end {
                let found = self.source.read_fields(&self.file.name, next..numbers.end, columns)?;
                if let Some(found) = found {
                    next += found.records;
                    if give_fields(&schema, &found, each)?.is_break() {
                        return Ok(());
                    }
                    continue;
                }
                let until = (next + at_once).min(numbers.end);
                let batch = if columns.is_empty() {
                    of_rows((until - next) as usize)?
                } else {
                    let mut values = Columns::new(&schema, (until - next) as usize);
                    values.extend(&self.source.numbers(&self.file.name, next..until)?);
                    values.take()?
                };
                next = until;
                if each(batch).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// Gives records whose fields lie field by field, in batches.
fn give_fields(
    schema: &Schema,
    found: &FieldColumns,
    each: &mut dyn FnMut(RecordBatch) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, TableError> {
    let arrow = arrow_schema(schema);
    // A field by itself is a record that has nothing else.
    let alone = |field: &Field| {
        let (record_bytes, field) = (field.len, Field { offset: 0, ..field.clone() });
        Schema { record_bytes, fields: Vec::from([field]), ..schema.clone() }
    };
    let alone: Vec<Schema> = schema.fields.iter().map(alone).collect();
    let records = found.records as usize;
    for from in (0..records).step_by(BATCH_ROWS) {
        let to = (from + BATCH_ROWS).min(records);
        let columns = alone.iter().zip(&found.fields).map(|(schema, bytes)| {
            let len = usize::from(schema.record_bytes);
            let batch = record_batch(schema, &bytes[from * len..to * len])?;
            Ok(Arc::clone(batch.column(0)))
        });
        let columns = columns.collect::<Result<Vec<_>, ArrowError>>()?;
        if each(RecordBatch::try_new(Arc::clone(&arrow), columns)?).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}
