//! A join of time as an operator: partitions by key, both sides in order of time.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch};
use arrow::compute::{BatchCoalescer, SortOptions};
use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::projection::ProjectionMapping;
use datafusion::physical_expr::{
    Distribution, EquivalenceProperties, LexOrdering, OrderingRequirements, PhysicalSortExpr,
};
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::execution_plan::SchedulingType;
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::projection::{
    EmbeddedProjection, ProjectionExec, try_embed_projection,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties,
    InputDistributionRequirements, PhysicalExpr, PlanProperties, ReplaceChildrenOptions,
};
use futures_util::{TryStreamExt as _, stream};

use super::condition;
use super::merge::{AsOfMerge, KeyNumbers, SideBatch, Step, TimeMerge};
use super::node::TimeRule;
use super::window::WindowMerge;

/// One side of the join: its input, its time and its keys.
#[derive(Clone, Debug)]
pub(super) struct JoinSide {
    pub(super) input: Arc<dyn ExecutionPlan>,
    pub(super) time: Arc<dyn PhysicalExpr>,
    pub(super) keys: Vec<Arc<dyn PhysicalExpr>>,
    /// Columns that order rows of equal times as they were appended.
    pub(super) append_order: Vec<Arc<dyn PhysicalExpr>>,
}

impl JoinSide {
    /// The order that the merge needs: by time, rows without a time last.
    fn required_order(&self, descending: bool) -> Option<OrderingRequirements> {
        let options = SortOptions { descending, nulls_first: false };
        let time = PhysicalSortExpr::new(Arc::clone(&self.time), options);
        // Whatever the direction of time, the row that was appended last comes last.
        let appended = self.append_order.iter().map(|column| {
            PhysicalSortExpr::new(Arc::clone(column), SortOptions::new(false, false))
        });
        LexOrdering::new(std::iter::once(time).chain(appended)).map(OrderingRequirements::from)
    }
}

/// The columns that leave a join. Only these are copied, and held.
#[derive(Clone, Debug)]
struct JoinedColumns {
    /// Places among all columns of both sides, the left ones first, in the order of the output.
    places: Vec<usize>,
    /// The same places in ascending order: the columns of the merge.
    merged: Vec<usize>,
    /// For each column of the output its place among those of the merge.
    order: Vec<usize>,
    /// How many of `merged` are of the left side.
    left: usize,
}

impl JoinedColumns {
    fn new(places: Vec<usize>, left_columns: usize) -> Self {
        let merged: BTreeSet<usize> = places.iter().copied().collect();
        let merged: Vec<usize> = merged.into_iter().collect();
        let order = places.iter().filter_map(|place| merged.binary_search(place).ok()).collect();
        let left = merged.partition_point(|place| *place < left_columns);
        Self { places, merged, order, left }
    }

    fn of_left(&self) -> Vec<usize> {
        self.merged[..self.left].to_vec()
    }

    fn of_right(&self, left_columns: usize) -> Vec<usize> {
        self.merged[self.left..].iter().map(|place| place - left_columns).collect()
    }
}

/// The operator.
#[derive(Debug)]
pub struct TimeJoinExec {
    left: JoinSide,
    right: JoinSide,
    rule: TimeRule,
    /// All columns of both sides.
    all: SchemaRef,
    columns: JoinedColumns,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl TimeJoinExec {
    /// A join with all columns of both sides, the left ones first. `all` is their schema.
    pub(super) fn new(
        left: JoinSide,
        right: JoinSide,
        rule: TimeRule,
        all: SchemaRef,
    ) -> Result<Self> {
        let places = (0..all.fields().len()).collect();
        Self::with_columns(left, right, rule, all, places)
    }

    fn with_columns(
        left: JoinSide,
        right: JoinSide,
        rule: TimeRule,
        all: SchemaRef,
        places: Vec<usize>,
    ) -> Result<Self> {
        // Left rows keep their order.
        let order = left.input.output_ordering().cloned();
        let equal = EquivalenceProperties::new_with_orderings(Arc::clone(&all), order);
        let mapping = ProjectionMapping::from_indices(&places, &all)?;
        let partitioning = left.input.output_partitioning().project(&mapping, &equal);
        let properties = PlanProperties::new(
            equal.project(&mapping, Arc::new(all.project(&places)?)),
            partitioning,
            left.input.pipeline_behavior(),
            left.input.boundedness(),
        );
        let properties = properties.with_scheduling_type(SchedulingType::Cooperative);
        let columns = JoinedColumns::new(places, left.input.schema().fields().len());
        let metrics = ExecutionPlanMetricsSet::new();
        Ok(Self { left, right, rule, all, columns, properties: Arc::new(properties), metrics })
    }
}

impl EmbeddedProjection for TimeJoinExec {
    fn with_projection(&self, projection: Option<Vec<usize>>) -> Result<Self> {
        let places = match projection {
            Some(chosen) => chosen.iter().map(|at| self.columns.places[*at]).collect(),
            None => self.columns.places.clone(),
        };
        let (left, right) = (self.left.clone(), self.right.clone());
        Self::with_columns(left, right, self.rule, Arc::clone(&self.all), places)
    }
}

impl DisplayAs for TimeJoinExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.left.keys.iter().zip(&self.right.keys);
        let keys: Vec<_> = keys.map(|(left, right)| format!("{left} = {right}")).collect();
        write!(
            f,
            "TimeJoinExec: {} with {}, {:?}, on=[{}], {} of {} columns",
            self.left.time,
            self.right.time,
            self.rule,
            keys.join(", "),
            self.columns.places.len(),
            self.all.fields().len()
        )
    }
}

impl ExecutionPlan for TimeJoinExec {
    fn name(&self) -> &'static str {
        "TimeJoinExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        if self.left.keys.is_empty() {
            return InputDistributionRequirements::new(vec![
                Distribution::SinglePartition,
                Distribution::SinglePartition,
            ]);
        }
        InputDistributionRequirements::co_partitioned(vec![
            Distribution::KeyPartitioned(self.left.keys.clone()),
            Distribution::KeyPartitioned(self.right.keys.clone()),
        ])
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        let descending = self.rule.is_descending();
        vec![self.left.required_order(descending), self.right.required_order(descending)]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true, false]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.left.input, &self.right.input]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        for side in [&self.left, &self.right] {
            for expr in std::iter::once(&side.time).chain(&side.keys).chain(&side.append_order) {
                if f(expr)? == TreeNodeRecursion::Stop {
                    return Ok(TreeNodeRecursion::Stop);
                }
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Ok([left, right]) = <[_; 2]>::try_from(children) else {
            return internal_err!("a join of time has two inputs");
        };
        let left = JoinSide { input: left, ..self.left.clone() };
        let right = JoinSide { input: right, ..self.right.clone() };
        let (all, places) = (Arc::clone(&self.all), self.columns.places.clone());
        Ok(Arc::new(Self::with_columns(left, right, self.rule, all, places)?))
    }

    fn try_swapping_with_projection(
        &self,
        projection: &ProjectionExec,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        try_embed_projection(projection, self)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let recompute = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        self.replace_children(children, recompute)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let left = self.left.input.execute(partition, Arc::clone(&context))?;
        let right = self.right.input.execute(partition, Arc::clone(&context))?;
        let types = self.left.keys.iter().map(|key| key.data_type(&self.left.input.schema()));
        let types = types.collect::<Result<Vec<_>>>()?;
        let reservation =
            MemoryConsumer::new(format!("TimeJoin[{partition}]")).register(context.memory_pool());
        let rows = context.session_config().batch_size();
        let left_columns = self.left.input.schema().fields().len();
        let of_right = self.columns.of_right(left_columns);
        let right_schema = Arc::new(self.right.input.schema().project(&of_right)?);
        let merged = Arc::new(self.all.project(&self.columns.merged)?);
        let merge: Box<dyn TimeMerge> = match self.rule {
            TimeRule::AsOf(rule) => Box::new(AsOfMerge::new(rule, &right_schema, merged)),
            TimeRule::Window(rule) => Box::new(WindowMerge::new(rule, &right_schema, merged, rows)),
        };
        let running = RunningJoin {
            merge,
            keys: KeyNumbers::new(&types)?,
            left: SideStream::new(left, &self.left, self.columns.of_left()),
            right: SideStream::new(right, &self.right, of_right),
            order: self.columns.order.clone(),
            reservation,
            joined: BatchCoalescer::new(self.schema(), rows),
            metrics: BaselineMetrics::new(&self.metrics, partition),
            has_ended: false,
        };
        let batches = stream::try_unfold(running, RunningJoin::next_batch);
        // A left row may have millions of pairs, for which no input is read. The stream gives the
        // thread back between them, so that a cancel is heard.
        let adapter = RecordBatchStreamAdapter::new(self.schema(), batches);
        Ok(make_cooperative(Box::pin(adapter)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

struct SideStream {
    stream: SendableRecordBatchStream,
    side: JoinSide,
    /// The columns that leave the join.
    columns: Vec<usize>,
}

impl SideStream {
    fn new(stream: SendableRecordBatchStream, side: &JoinSide, columns: Vec<usize>) -> Self {
        Self { stream, side: side.clone(), columns }
    }

    async fn next(&mut self, numbers: &mut KeyNumbers) -> Result<Option<SideBatch>> {
        loop {
            let Some(batch) = self.stream.try_next().await? else { return Ok(None) };
            if batch.num_rows() > 0 {
                return self.number_batch(batch, numbers).map(Some);
            }
        }
    }

    fn number_batch(&self, batch: RecordBatch, numbers: &mut KeyNumbers) -> Result<SideBatch> {
        let rows = batch.num_rows();
        let times = self.side.time.evaluate(&batch)?.into_array(rows)?;
        let times: Int64Array = condition::whole_numbers(&times)?;
        let keys = self.side.keys.iter().map(|key| key.evaluate(&batch)?.into_array(rows));
        let keys = keys.collect::<Result<Vec<_>>>()?;
        Ok(numbers.number_batch(batch.project(&self.columns)?, times, &keys)?)
    }
}

/// One partition at work.
struct RunningJoin {
    merge: Box<dyn TimeMerge>,
    keys: KeyNumbers,
    left: SideStream,
    right: SideStream,
    /// The places of the output's columns in a batch of the merge.
    order: Vec<usize>,
    reservation: MemoryReservation,
    joined: BatchCoalescer,
    metrics: BaselineMetrics,
    has_ended: bool,
}

impl RunningJoin {
    fn reserve_memory(&self) -> Result<()> {
        self.reservation.try_resize(self.merge.memory_bytes() + self.keys.memory_bytes())
    }

    async fn next_batch(mut self) -> Result<Option<(RecordBatch, Self)>> {
        loop {
            if let Some(batch) = self.joined.next_completed_batch() {
                self.metrics.record_output(batch.num_rows());
                return Ok(Some((batch, self)));
            }
            if self.has_ended {
                self.metrics.done();
                return Ok(None);
            }
            let timer = self.metrics.elapsed_compute().timer();
            let step = self.merge.advance()?;
            timer.done();
            match step {
                Step::Joined(batch) => self.joined.push_batch(batch.project(&self.order)?)?,
                Step::NeedRight => {
                    let side = self.right.next(&mut self.keys).await?;
                    self.merge.add_right(side);
                    self.reserve_memory()?;
                }
                Step::NeedLeft => match self.left.next(&mut self.keys).await? {
                    Some(side) => {
                        self.merge.add_left(side);
                        self.reserve_memory()?;
                    }
                    None => {
                        self.has_ended = true;
                        self.joined.finish_buffered_batch()?;
                    }
                },
            }
        }
    }
}
