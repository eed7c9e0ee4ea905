//! Statements that end early: cancelled, over their time, or asked by a client that has gone.
//!
//! A query is a tree of streams on the threads of a runtime. Dropping the stream at the top ends
//! the query at the next place where its tasks yield. Most operators yield, because the scans at
//! the bottom do. Joins do not: a join holds one side in memory and compares it with each batch of
//! the other side, so that a single poll may compare for hours and find nothing. Two changes of the
//! plan end a join as well:
//!
//! - the condition of a join looks at a flag each time it is evaluated, which is once for some
//!   thousands of pairs of rows, and fails when the flag is set;
//! - the rows of a join consume the budget of their task, so that an operator above the join that
//!   drops all of them (a filter, an aggregate) yields as if it read from a scan.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::RecordBatch;
use arrow::datatypes::{FieldRef, Schema};
use datafusion::common::tree_node::{Transformed, TreeNode as _};
use datafusion::common::{DataFusionError, Result, exec_err};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, HashJoinExecBuilder, NestedLoopJoinExec,
    NestedLoopJoinExecBuilder, SortMergeJoinExec,
};
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr};

/// The words of an error that a stop makes. A door that stopped the query has its own answer.
const STOPPED: &str = "the query was stopped";

/// A flag that ends a query, inside its joins as well.
#[derive(Clone, Debug, Default)]
pub struct QueryStop(Arc<AtomicBool>);

impl QueryStop {
    /// Ends the query. Its stream gives an error, or ends.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn check(&self) -> Result<()> {
        match self.0.load(Ordering::Relaxed) {
            true => exec_err!("{STOPPED}"),
            false => Ok(()),
        }
    }
}

/// The same plan, whose joins hear of a stop.
///
/// # Errors
/// A join that cannot be made again, which is a fault of the engine.
pub(crate) fn hear_stops(
    plan: Arc<dyn ExecutionPlan>,
    stop: &QueryStop,
) -> Result<Arc<dyn ExecutionPlan>> {
    let heard = plan.transform_up(|plan| {
        let Some(join) = with_check(&plan, stop)? else { return Ok(Transformed::no(plan)) };
        let join: Arc<dyn ExecutionPlan> = Arc::new(CooperativeExec::new(join));
        Ok(Transformed::yes(join))
    });
    heard.map(|heard| heard.data)
}

/// A join whose condition looks at the flag; `None` for every other operator.
fn with_check(
    plan: &Arc<dyn ExecutionPlan>,
    stop: &QueryStop,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let check = |filter: Option<&JoinFilter>| filter.map(|filter| checked(filter, stop));
    if let Some(join) = plan.downcast_ref::<NestedLoopJoinExec>() {
        let filter = check(join.filter());
        let join = NestedLoopJoinExecBuilder::from(join).with_filter(filter).build()?;
        return Ok(Some(Arc::new(join)));
    }
    if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        let filter = check(join.filter());
        let join = HashJoinExecBuilder::from(join).with_filter(filter).build()?;
        return Ok(Some(Arc::new(join)));
    }
    if let Some(join) = plan.downcast_ref::<SortMergeJoinExec>() {
        let join = SortMergeJoinExec::try_new(
            Arc::clone(join.left()),
            Arc::clone(join.right()),
            join.on().to_vec(),
            check(join.filter().as_ref()),
            join.join_type(),
            join.sort_options().to_vec(),
            join.null_equality(),
        )?;
        return Ok(Some(Arc::new(join)));
    }
    // A cross join has no condition, and gives rows at every poll.
    Ok(plan.downcast_ref::<CrossJoinExec>().map(|_| Arc::clone(plan)))
}

fn checked(filter: &JoinFilter, stop: &QueryStop) -> JoinFilter {
    let condition =
        CheckedCondition { condition: Arc::clone(filter.expression()), stop: stop.clone() };
    let columns = filter.column_indices().to_vec();
    JoinFilter::new(Arc::new(condition), columns, Arc::clone(filter.schema()))
}

/// The condition of a join, evaluated until the query is stopped.
#[derive(Debug)]
struct CheckedCondition {
    condition: Arc<dyn PhysicalExpr>,
    stop: QueryStop,
}

impl PartialEq for CheckedCondition {
    fn eq(&self, other: &Self) -> bool {
        self.condition.eq(&other.condition)
    }
}

impl Eq for CheckedCondition {}

impl Hash for CheckedCondition {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.condition.hash(state);
    }
}

impl fmt::Display for CheckedCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.condition, f)
    }
}

impl PhysicalExpr for CheckedCondition {
    fn return_field(&self, input_schema: &Schema) -> Result<FieldRef> {
        self.condition.return_field(input_schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        self.stop.check()?;
        self.condition.evaluate(batch)
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.condition]
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let Some(condition) = children.pop() else { return Ok(self) };
        Ok(Arc::new(Self { condition, stop: self.stop.clone() }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.condition.fmt_sql(f)
    }
}

/// The words of a panic, as an error of a statement: other statements go on.
pub(crate) fn panic_error(panic: Box<dyn Any + Send>) -> DataFusionError {
    let words = panic.downcast_ref::<String>().map(String::as_str);
    let words = words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no words");
    DataFusionError::Internal(format!("the statement met a fault of the program: {words}"))
}
