//! The nearer of the last row before and the first row after: two as-of joins and a choice.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode as _};
use datafusion::common::{Column, DFSchema, Result};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, when};

use super::merge::AsOfRule;
use super::node::{KeyPair, TimeJoin, TimeRule};

/// Names of the two copies of the right side. A name in a statement cannot begin so by accident.
const BEFORE: &str = "__row_before";
const AFTER: &str = "__row_after";

/// The plan of `nearest`. Of two rows at equal distances the earlier one is taken.
pub(super) fn plan_nearest(
    left: Arc<LogicalPlan>,
    right: Arc<LogicalPlan>,
    keys: Vec<KeyPair>,
    times: KeyPair,
    tolerance: Option<i64>,
) -> Result<LogicalPlan> {
    let (left_schema, right_schema) = (Arc::clone(left.schema()), Arc::clone(right.schema()));
    let mut plan = left;
    for (name, looks_forward) in [(BEFORE, false), (AFTER, true)] {
        let copy = LogicalPlanBuilder::from(right.as_ref().clone()).alias(name)?.build()?;
        let of_copy = |expr: &Expr| rename_columns(expr, &right_schema, name);
        let keys = keys
            .iter()
            .map(|key| Ok(KeyPair { left: key.left.clone(), right: of_copy(&key.right)? }))
            .collect::<Result<Vec<_>>>()?;
        let times = KeyPair { left: times.left.clone(), right: of_copy(&times.right)? };
        let rule = TimeRule::AsOf(AsOfRule { looks_forward, is_strict: false, tolerance });
        plan = Arc::new(TimeJoin::plan(plan, Arc::new(copy), keys, times, rule)?);
    }
    let before = rename_columns(&times.right, &right_schema, BEFORE)?;
    let after = rename_columns(&times.right, &right_schema, AFTER)?;
    let is_nearer = (after.clone() - times.left.clone()).lt(times.left - before.clone());
    let takes_after = after.is_not_null().and(before.is_null().or(is_nearer));
    let kept = left_schema.columns().into_iter().map(Expr::Column);
    let chosen = right_schema.iter().map(|(qualifier, field)| {
        let of = |copy: &str| Expr::Column(Column::new(Some(copy), field.name()));
        let choice = when(takes_after.clone(), of(AFTER)).otherwise(of(BEFORE))?;
        Ok(choice.alias_qualified(qualifier.cloned(), field.name()))
    });
    let columns = kept.map(Ok).chain(chosen).collect::<Result<Vec<_>>>()?;
    LogicalPlanBuilder::from(Arc::unwrap_or_clone(plan)).project(columns)?.build()
}

/// An expression over the right side, over the copy of this name.
fn rename_columns(expr: &Expr, right: &DFSchema, name: &str) -> Result<Expr> {
    let moved = expr.clone().transform(|expr| match &expr {
        Expr::Column(column) if right.has_column(column) => {
            let column = Column::new(Some(name), column.name());
            Ok(Transformed::yes(Expr::Column(column)))
        }
        _ => Ok(Transformed::no(expr)),
    });
    moved.map(|moved| moved.data)
}
