//! The physical plan of a join of time.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::{DFSchema, Result};
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNode};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, ExecutionPlan, PhysicalExpr, ReplaceChildrenOptions,
};
use datafusion::physical_planner::{DefaultPhysicalPlanner, ExtensionPlanner, PhysicalPlanner};

use super::exec::{JoinSide, TimeJoinExec};
use super::node::TimeJoin;
use crate::scan::SnapshotExec;

/// DataFusion's planner, and joins of time.
#[derive(Debug)]
pub(crate) struct TimeJoinPlanner;

#[async_trait]
impl QueryPlanner for TimeJoinPlanner {
    async fn create_physical_plan(
        &self,
        logical_plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let planner = DefaultPhysicalPlanner::with_extension_planners(vec![Arc::new(TimeJoins)]);
        planner.create_physical_plan(logical_plan, session).await
    }
}

/// Reads a table that is in order of time as one part. Its parts follow each other in time, so that
/// a join which takes rows in order of time reads one after the other in any case, and would
/// compare their rows to find out.
fn read_in_one_part(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(scan) = plan.downcast_ref::<SnapshotExec>() {
        let one = scan.in_one_part();
        return Ok(one.map_or(plan, |one| Arc::new(one)));
    }
    let children = plan.children();
    let ([child], [true]) = (children.as_slice(), plan.maintains_input_order().as_slice()) else {
        return Ok(plan);
    };
    let read = read_in_one_part(Arc::clone(child))?;
    match Arc::ptr_eq(&read, child) {
        true => Ok(plan),
        false => {
            let recompute = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
            plan.replace_children(vec![read], recompute)
        }
    }
}

struct TimeJoins;

#[async_trait]
impl ExtensionPlanner for TimeJoins {
    async fn plan_extension(
        &self,
        planner: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        _logical_inputs: &[&LogicalPlan],
        physical_inputs: &[Arc<dyn ExecutionPlan>],
        session: &dyn Session,
        planning_ctx: &PhysicalPlanningContext,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let Some(join) = node.as_any().downcast_ref::<TimeJoin>() else { return Ok(None) };
        let [left, right] = physical_inputs else { return Ok(None) };
        let physical = |expr: &Expr, schema: &DFSchema| -> Result<Arc<dyn PhysicalExpr>> {
            planner.create_physical_expr(expr, schema, session, planning_ctx)
        };
        let left_keys = join.keys.iter().map(|key| physical(&key.left, join.left.schema()));
        let right_keys = join.keys.iter().map(|key| physical(&key.right, join.right.schema()));
        let append_order = join.append_order().into_iter().map(|at| {
            let name = join.right.schema().field(at).name();
            Arc::new(Column::new(name, at)) as Arc<dyn PhysicalExpr>
        });
        let left = JoinSide {
            input: read_in_one_part(Arc::clone(left))?,
            time: physical(&join.left_time, join.left.schema())?,
            keys: left_keys.collect::<Result<_>>()?,
            append_order: Vec::new(),
        };
        let right = JoinSide {
            input: read_in_one_part(Arc::clone(right))?,
            time: physical(&join.right_time, join.right.schema())?,
            keys: right_keys.collect::<Result<_>>()?,
            append_order: append_order.collect(),
        };
        let schema = Arc::clone(node.schema().inner());
        Ok(Some(Arc::new(TimeJoinExec::new(left, right, join.rule, schema)?)))
    }
}
