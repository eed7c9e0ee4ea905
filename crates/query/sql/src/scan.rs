//! A table of the store as DataFusion reads it: one snapshot, cut into parts, by columns and times.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, SchemaRef, TimeUnit};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, ScalarValue, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{
    Between, BinaryExpr, Expr, Operator, TableProviderFilterPushDown, TableType,
};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{EquivalenceProperties, LexOrdering, PhysicalSortExpr};
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::{RecordBatchReceiverStream, RecordBatchStreamAdapter};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PhysicalExpr, PlanProperties,
    ReplaceChildrenOptions,
};
use futures_util::StreamExt as _;

use evenfall_store_recording::RowSelection;
use evenfall_store_recording::tables::{Snapshot, TableInfo};

use crate::faults::{BrokenScan, scan_error, table_error};

/// Key of a column's metadata: the column numbers rows in the order in which they were appended.
pub(crate) const APPEND_ORDER: &str = "evenfall.append_order";

/// Batches that wait for the query. Two, so that the store reads the next one meanwhile.
const BATCHES_WAITING: usize = 2;

/// One moment of a table.
pub(crate) struct SnapshotTable {
    snapshot: Arc<dyn Snapshot>,
    schema: SchemaRef,
    /// The column by whose times rows are found.
    time_column: Option<usize>,
}

impl fmt::Debug for SnapshotTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SnapshotTable({})", self.snapshot.info().name)
    }
}

/// The names of the column by whose times the store finds rows: of users' files, of `messages` and
/// its kin, and of `raw`.
const TIME_COLUMNS: [&str; 3] = ["recorded", "time_ns", "time"];

impl SnapshotTable {
    pub(crate) fn new(snapshot: Arc<dyn Snapshot>) -> Self {
        let schema = Arc::clone(&snapshot.info().schema);
        let time_column = TIME_COLUMNS.iter().find_map(|name| schema.index_of(name).ok());
        Self { schema: with_append_order(schema), snapshot, time_column }
    }

    /// The times that a filter leaves.
    fn times(&self, filters: &[Expr]) -> Option<TimeRange> {
        let column = self.schema.field(self.time_column?);
        let mut times = TimeRange::all();
        for part in filters.iter().flat_map(|filter| split_conjunction(filter)) {
            times.narrow(part, column.name());
        }
        (times != TimeRange::all()).then_some(times)
    }
}

/// The same schema with the mark at the column `seq`.
fn with_append_order(schema: SchemaRef) -> SchemaRef {
    let Ok(at) = schema.index_of("seq") else { return schema };
    let mut fields: Vec<_> = schema.fields().iter().cloned().collect();
    let mut field = fields[at].as_ref().clone();
    let mut metadata = field.metadata().clone();
    metadata.insert(APPEND_ORDER.to_owned(), String::new());
    field.set_metadata(metadata);
    fields[at] = Arc::new(field);
    let metadata = schema.metadata().clone();
    Arc::new(arrow::datatypes::Schema::new_with_metadata(fields, metadata))
}

#[async_trait]
impl TableProvider for SnapshotTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let rows = match self.times(filters) {
            None => self.snapshot.rows(),
            Some(times) if times.from_ns > times.to_ns => RowSelection::of(Vec::new()),
            Some(times) => {
                let snapshot = Arc::clone(&self.snapshot);
                let found = move || snapshot.between(times.from_ns, times.to_ns);
                let found = tokio::task::spawn_blocking(found).await;
                found
                    .map_err(|error| DataFusionError::External(Box::new(error)))?
                    .map_err(|error| table_error(&self.snapshot.info().name, error))?
            }
        };
        // A limit without a filter is met by the first rows.
        let rows = match limit {
            Some(limit) if filters.is_empty() && numbers_are_rows(&*self.snapshot) => {
                first_rows(rows, limit as u64)
            }
            _ => rows,
        };
        let columns = projection.cloned();
        let columns = columns.unwrap_or_else(|| (0..self.schema.fields().len()).collect());
        let parts = self.snapshot.parts(&rows, state.config().target_partitions());
        Ok(Arc::new(SnapshotExec::new(self, columns, parts, filters.is_empty())?))
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>> {
        let time_column = self.time_column.map(|at| self.schema.field(at).name());
        let pushed = filters.iter().map(|filter| {
            let is_time = |name: &String| {
                split_conjunction(filter).into_iter().any(|part| {
                    let mut times = TimeRange::all();
                    times.narrow(part, name)
                })
            };
            match time_column.is_some_and(is_time) {
                // The filter stays above the scan: what skips segments need not be exact.
                true => TableProviderFilterPushDown::Inexact,
                false => TableProviderFilterPushDown::Unsupported,
            }
        });
        Ok(pushed.collect())
    }

    fn statistics(&self) -> Option<Statistics> {
        // A table that is made while it is read does not know its rows.
        let rows = self.snapshot.info().rows.filter(|_| numbers_are_rows(&*self.snapshot));
        let rows = rows.map_or(Precision::Absent, |rows| Precision::Exact(rows as usize));
        let statistics = Statistics::new_unknown(&self.schema);
        Some(Statistics { num_rows: rows, ..statistics })
    }
}

/// The first of these rows.
fn first_rows(rows: RowSelection, mut limit: u64) -> RowSelection {
    let ranges = rows.ranges.into_iter().map(|range| {
        let end = range.end.min(range.start.saturating_add(limit));
        limit -= end - range.start;
        range.start..end
    });
    RowSelection { ranges: ranges.filter(|range| !range.is_empty()).collect(), times: rows.times }
}

/// Whether each number of a selection is one row. A lost message leaves its number unused, and a
/// table that is made out of messages has no row, one or several of a message.
fn numbers_are_rows(snapshot: &dyn Snapshot) -> bool {
    snapshot.info().rows == Some(count_rows(&snapshot.rows()))
}

fn count_rows(rows: &RowSelection) -> u64 {
    rows.ranges.iter().map(|range| range.end - range.start).sum()
}

/// Times that comparisons with literals leave, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TimeRange {
    from_ns: i64,
    to_ns: i64,
}

impl TimeRange {
    fn all() -> Self {
        Self { from_ns: i64::MIN, to_ns: i64::MAX }
    }

    /// Narrows the range by one condition. Returns whether the condition is one of this column.
    fn narrow(&mut self, part: &Expr, column: &str) -> bool {
        match part {
            Expr::Between(Between { expr, negated: false, low, high })
                if is_named(expr, column) =>
            {
                let (Some(low), Some(high)) = (literal_ns(low), literal_ns(high)) else {
                    return false;
                };
                self.keep_from(low);
                self.keep_to(high);
                true
            }
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
                let (op, ns) = if is_named(left, column) {
                    (Some(*op), literal_ns(right))
                } else if is_named(right, column) {
                    (op.swap(), literal_ns(left))
                } else {
                    return false;
                };
                let (Some(op), Some(ns)) = (op, ns) else { return false };
                self.narrow_by(op, ns)
            }
            _ => false,
        }
    }

    fn narrow_by(&mut self, op: Operator, ns: i64) -> bool {
        match op {
            Operator::Eq => {
                self.keep_from(ns);
                self.keep_to(ns);
            }
            Operator::GtEq => self.keep_from(ns),
            Operator::Gt => self.keep_from(ns.saturating_add(1)),
            Operator::LtEq => self.keep_to(ns),
            Operator::Lt => self.keep_to(ns.saturating_sub(1)),
            _ => return false,
        }
        true
    }

    fn keep_from(&mut self, ns: i64) {
        self.from_ns = self.from_ns.max(ns);
    }

    fn keep_to(&mut self, ns: i64) {
        self.to_ns = self.to_ns.min(ns);
    }
}

fn is_named(expr: &Expr, name: &str) -> bool {
    matches!(expr, Expr::Column(column) if column.name == name)
}

/// Nanoseconds of a literal timestamp, in the type that the planner gave it.
fn literal_ns(expr: &Expr) -> Option<i64> {
    let Expr::Literal(value, _) = expr else { return None };
    let kind = DataType::Timestamp(TimeUnit::Nanosecond, None);
    let value = match value.data_type() {
        DataType::Timestamp(..) => value.cast_to(&kind).ok()?,
        DataType::Int64 => return value.clone().try_into().ok(),
        _ => return None,
    };
    match value {
        ScalarValue::TimestampNanosecond(ns, _) => ns,
        _ => None,
    }
}

/// Reads parts of a snapshot, one part a partition.
pub(crate) struct SnapshotExec {
    snapshot: Arc<dyn Snapshot>,
    columns: Vec<usize>,
    parts: Vec<RowSelection>,
    is_whole: bool,
    schema: SchemaRef,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl SnapshotExec {
    fn new(
        table: &SnapshotTable,
        columns: Vec<usize>,
        mut parts: Vec<RowSelection>,
        is_whole: bool,
    ) -> Result<Self> {
        if parts.is_empty() {
            // A plan needs a partition, also over a table without rows.
            parts.push(RowSelection::of(Vec::new()));
        }
        let schema = Arc::new(table.schema.project(&columns)?);
        let ordering = row_order(table.snapshot.info(), &schema);
        let properties = PlanProperties::new(
            EquivalenceProperties::new_with_orderings(Arc::clone(&schema), ordering),
            Partitioning::UnknownPartitioning(parts.len()),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        let properties = properties.with_scheduling_type(SchedulingType::Cooperative);
        Ok(Self {
            snapshot: Arc::clone(&table.snapshot),
            columns,
            parts,
            is_whole,
            schema,
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
        })
    }
}

impl SnapshotExec {
    /// The same rows as one part, where they are in order of time.
    pub(crate) fn in_one_part(&self) -> Option<Self> {
        let order = self.properties.output_ordering().cloned()?;
        let first = order.first().expr.data_type(&self.schema).ok()?;
        if !matches!(first, DataType::Timestamp(..)) {
            return None;
        }
        let times = self.parts.first().filter(|_| self.parts.len() > 1)?.times.clone();
        let ranges = self.parts.iter().flat_map(|part| part.ranges.iter().cloned()).collect();
        let properties = PlanProperties::new(
            EquivalenceProperties::new_with_orderings(Arc::clone(&self.schema), Some(order)),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Some(Self {
            snapshot: Arc::clone(&self.snapshot),
            columns: self.columns.clone(),
            parts: vec![RowSelection { ranges, times }],
            is_whole: self.is_whole,
            schema: Arc::clone(&self.schema),
            properties: Arc::new(properties.with_scheduling_type(SchedulingType::Cooperative)),
            metrics: ExecutionPlanMetricsSet::new(),
        })
    }

    /// Rows of the table that lie in no part.
    pub(crate) fn rows_skipped(&self) -> usize {
        let read: u64 = self.parts.iter().map(count_rows).sum();
        self.snapshot.info().rows.map_or(0, |rows| rows.saturating_sub(read) as usize)
    }
}

/// The order of a part's rows, as far as its columns are read.
fn row_order(info: &TableInfo, schema: &SchemaRef) -> Option<LexOrdering> {
    let options = SortOptions { descending: false, nulls_first: false };
    let columns = info.sorted_by.iter().map_while(|name| {
        let at = schema.index_of(name).ok()?;
        let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(name, at));
        Some(PhysicalSortExpr::new(column, options))
    });
    LexOrdering::new(columns)
}

impl fmt::Debug for SnapshotExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SnapshotExec({})", self.snapshot.info().name)
    }
}

impl DisplayAs for SnapshotExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: u64 = self.parts.iter().map(count_rows).sum();
        let names: Vec<_> =
            self.schema.fields().iter().map(|field| field.name().as_str()).collect();
        write!(
            f,
            "SnapshotExec: {}, {rows} rows in {} parts, columns=[{}]",
            self.snapshot.info().name,
            self.parts.len(),
            names.join(", ")
        )
    }
}

impl ExecutionPlan for SnapshotExec {
    fn name(&self) -> &'static str {
        "SnapshotExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match children.is_empty() {
            true => Ok(self),
            false => internal_err!("a scan has no children"),
        }
    }

    fn with_new_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, partition: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let rows = self.parts[partition].clone();
        let (snapshot, columns) = (Arc::clone(&self.snapshot), self.columns.clone());
        let schema = Arc::clone(&self.schema);
        let mut reader =
            RecordBatchReceiverStream::builder(Arc::clone(&self.schema), BATCHES_WAITING);
        let sender = reader.tx();
        reader.spawn_blocking(move || {
            let mut rows_read = 0;
            let scanned = snapshot.scan(&rows, &columns, &mut |batch| {
                rows_read += batch.num_rows() as u64;
                let is_heard = match batch.num_rows() {
                    0 => !sender.is_closed(),
                    // The columns are those of the table's schema; the mark of the append order
                    // is added here.
                    _ => {
                        let batch = batch.with_schema(Arc::clone(&schema)).map_err(Into::into);
                        sender.blocking_send(batch).is_ok()
                    }
                };
                // Without a listener, the query has ended or was cancelled.
                if is_heard { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            scanned.map_err(|error| {
                let info = snapshot.info();
                let ends = rows.ranges.first().zip(rows.ranges.last());
                let numbers = ends.map_or(0..0, |(first, last)| first.start..last.end);
                let numbered = if numbers_are_rows(&*snapshot) { "rows" } else { "messages" };
                scan_error(&info.name, BrokenScan { numbers, numbered, rows_read }, error)
            })
        });
        let metrics = BaselineMetrics::new(&self.metrics, partition);
        let batches = reader.build().map(move |batch| {
            if let Ok(batch) = &batch {
                metrics.record_output(batch.num_rows());
            }
            batch
        });
        let stream = RecordBatchStreamAdapter::new(Arc::clone(&self.schema), batches);
        Ok(make_cooperative(Box::pin(stream)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn partition_statistics(&self, partition: Option<usize>) -> Result<Arc<Statistics>> {
        let parts = match partition {
            Some(at) => &self.parts[at..=at],
            None => &self.parts[..],
        };
        let rows: u64 = parts.iter().map(count_rows).sum();
        let rows = rows as usize;
        // A filter above may leave fewer rows. The selection of a table that is made while it is
        // read counts the messages behind the rows.
        let is_exact = self.is_whole && numbers_are_rows(&*self.snapshot);
        let rows = if is_exact { Precision::Exact(rows) } else { Precision::Inexact(rows) };
        let statistics = Statistics::new_unknown(&self.schema);
        Ok(Arc::new(Statistics { num_rows: rows, ..statistics }))
    }
}
