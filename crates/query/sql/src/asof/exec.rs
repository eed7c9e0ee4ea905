//! A join of time as an operator: partitions by key, both sides in order of time.

use std::fmt;
use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch};
use arrow::compute::{BatchCoalescer, SortOptions};
use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{
    Distribution, EquivalenceProperties, LexOrdering, OrderingRequirements, PhysicalSortExpr,
};
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::execution_plan::SchedulingType;
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties,
    InputDistributionRequirements, PhysicalExpr, PlanProperties, ReplaceChildrenOptions,
};
use futures_util::{TryStreamExt as _, stream};

use super::condition;
use super::merge::{AsOfMerge, KeyEncoder, SideBatch, Step, TimeMerge};
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

/// The operator.
#[derive(Debug)]
pub struct TimeJoinExec {
    left: JoinSide,
    right: JoinSide,
    rule: TimeRule,
    schema: SchemaRef,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl TimeJoinExec {
    pub(super) fn new(left: JoinSide, right: JoinSide, rule: TimeRule, schema: SchemaRef) -> Self {
        // Left columns come first in the output, and left rows keep their order.
        let order = left.input.output_ordering().cloned();
        let properties = PlanProperties::new(
            EquivalenceProperties::new_with_orderings(Arc::clone(&schema), order),
            left.input.output_partitioning().clone(),
            left.input.pipeline_behavior(),
            left.input.boundedness(),
        );
        let properties = properties.with_scheduling_type(SchedulingType::Cooperative);
        let metrics = ExecutionPlanMetricsSet::new();
        Self { left, right, rule, schema, properties: Arc::new(properties), metrics }
    }
}

impl DisplayAs for TimeJoinExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.left.keys.iter().zip(&self.right.keys);
        let keys: Vec<_> = keys.map(|(left, right)| format!("{left} = {right}")).collect();
        write!(
            f,
            "TimeJoinExec: {} with {}, {:?}, on=[{}]",
            self.left.time,
            self.right.time,
            self.rule,
            keys.join(", ")
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
        Ok(Arc::new(Self::new(left, right, self.rule, Arc::clone(&self.schema))))
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
        let (right_schema, output) = (self.right.input.schema(), Arc::clone(&self.schema));
        let has_keys = !types.is_empty();
        let merge: Box<dyn TimeMerge> = match self.rule {
            TimeRule::AsOf(rule) => Box::new(AsOfMerge::new(rule, &right_schema, output, has_keys)),
            TimeRule::Window(rule) => {
                Box::new(WindowMerge::new(rule, &right_schema, output, has_keys, rows))
            }
        };
        let running = RunningJoin {
            merge,
            encoder: KeyEncoder::new(&types)?,
            left: SideStream { stream: left, side: self.left.clone() },
            right: SideStream { stream: right, side: self.right.clone() },
            reservation,
            joined: BatchCoalescer::new(Arc::clone(&self.schema), rows),
            metrics: BaselineMetrics::new(&self.metrics, partition),
            has_ended: false,
        };
        let batches = stream::try_unfold(running, RunningJoin::next_batch);
        // A left row may have millions of pairs, for which no input is read. The stream gives the
        // thread back between them, so that a cancel is heard.
        let adapter = RecordBatchStreamAdapter::new(Arc::clone(&self.schema), batches);
        Ok(make_cooperative(Box::pin(adapter)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

struct SideStream {
    stream: SendableRecordBatchStream,
    side: JoinSide,
}

impl SideStream {
    async fn next(&mut self, encoder: &mut KeyEncoder) -> Result<Option<SideBatch>> {
        loop {
            let Some(batch) = self.stream.try_next().await? else { return Ok(None) };
            if batch.num_rows() > 0 {
                return self.encode_batch(batch, encoder).map(Some);
            }
        }
    }

    fn encode_batch(&self, batch: RecordBatch, encoder: &mut KeyEncoder) -> Result<SideBatch> {
        let rows = batch.num_rows();
        let times = self.side.time.evaluate(&batch)?.into_array(rows)?;
        let times: Int64Array = condition::whole_numbers(&times)?;
        let keys = self.side.keys.iter().map(|key| key.evaluate(&batch)?.into_array(rows));
        let keys = keys.collect::<Result<Vec<_>>>()?;
        Ok(encoder.side(batch, times, &keys)?)
    }
}

/// One partition at work.
struct RunningJoin {
    merge: Box<dyn TimeMerge>,
    encoder: KeyEncoder,
    left: SideStream,
    right: SideStream,
    reservation: MemoryReservation,
    joined: BatchCoalescer,
    metrics: BaselineMetrics,
    has_ended: bool,
}

impl RunningJoin {
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
                Step::Joined(batch) => self.joined.push_batch(batch)?,
                Step::NeedRight => {
                    self.reservation.try_resize(self.merge.memory_bytes())?;
                    let side = self.right.next(&mut self.encoder).await?;
                    self.merge.add_right(side);
                }
                Step::NeedLeft => match self.left.next(&mut self.encoder).await? {
                    Some(side) => self.merge.add_left(side),
                    None => {
                        self.has_ended = true;
                        self.joined.finish_buffered_batch()?;
                    }
                },
            }
        }
    }
}
