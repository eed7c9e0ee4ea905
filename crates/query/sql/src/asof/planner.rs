//! The physical plan of an as-of join.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::{DFSchema, Result};
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNode};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr};
use datafusion::physical_planner::{DefaultPhysicalPlanner, ExtensionPlanner, PhysicalPlanner};

use super::exec::{AsOfJoinExec, JoinSide};
use super::node::AsOfJoin;

/// DataFusion's planner, and as-of joins.
#[derive(Debug)]
pub(crate) struct TimeJoinPlanner;

#[async_trait]
impl QueryPlanner for TimeJoinPlanner {
    async fn create_physical_plan(
        &self,
        logical_plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let planner = DefaultPhysicalPlanner::with_extension_planners(vec![Arc::new(AsOfPlanner)]);
        planner.create_physical_plan(logical_plan, session).await
    }
}

struct AsOfPlanner;

#[async_trait]
impl ExtensionPlanner for AsOfPlanner {
    async fn plan_extension(
        &self,
        planner: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        _logical_inputs: &[&LogicalPlan],
        physical_inputs: &[Arc<dyn ExecutionPlan>],
        session: &dyn Session,
        planning_ctx: &PhysicalPlanningContext,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let Some(join) = node.as_any().downcast_ref::<AsOfJoin>() else { return Ok(None) };
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
            input: Arc::clone(left),
            time: physical(&join.left_time, join.left.schema())?,
            keys: left_keys.collect::<Result<_>>()?,
            append_order: Vec::new(),
        };
        let right = JoinSide {
            input: Arc::clone(right),
            time: physical(&join.right_time, join.right.schema())?,
            keys: right_keys.collect::<Result<_>>()?,
            append_order: append_order.collect(),
        };
        let schema = Arc::clone(node.schema().inner());
        Ok(Some(Arc::new(AsOfJoinExec::new(left, right, join.rule, schema))))
    }
}
