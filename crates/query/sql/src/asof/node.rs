//! A join of time as a node of the logical plan, and the rules that make it and push filters below.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode as _, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, DFSchemaRef, JoinType, Result, plan_err};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::utils::{conjunction, split_conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    BinaryExpr, Expr, Extension, Filter, Join, LogicalPlan, Operator, UserDefinedLogicalNodeCore,
    build_join_schema,
};
use datafusion::optimizer::analyzer::AnalyzerRule;
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use super::condition::{self, MatchCondition};
use super::merge::AsOfRule;
use super::nearest;
use super::window::{WindowCondition, WindowRule};
use crate::scan::APPEND_ORDER;

/// Which right rows stand beside a left row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd)]
pub enum TimeRule {
    /// The row that was last (or is next) at the time of the left row.
    AsOf(AsOfRule),
    /// All rows within a window around the time of the left row.
    Window(WindowRule),
}

impl TimeRule {
    /// Whether both sides are read from the latest time to the earliest.
    pub(super) fn is_descending(self) -> bool {
        matches!(self, Self::AsOf(rule) if rule.looks_forward)
    }
}

/// Left rows beside right rows of times near to their own. Each left row comes at least once.
#[derive(Clone, Debug)]
pub struct TimeJoin {
    pub(super) left: Arc<LogicalPlan>,
    pub(super) right: Arc<LogicalPlan>,
    pub(super) keys: Vec<KeyPair>,
    pub(super) left_time: Expr,
    pub(super) right_time: Expr,
    pub(super) rule: TimeRule,
    schema: DFSchemaRef,
}

/// An equality of keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd)]
pub(super) struct KeyPair {
    pub(super) left: Expr,
    pub(super) right: Expr,
}

impl TimeJoin {
    fn new(
        left: Arc<LogicalPlan>,
        right: Arc<LogicalPlan>,
        keys: Vec<KeyPair>,
        times: KeyPair,
        rule: TimeRule,
    ) -> Result<Self> {
        let schema = build_join_schema(left.schema(), right.schema(), &JoinType::Left)?;
        let schema = Arc::new(schema);
        Ok(Self { left, right, keys, left_time: times.left, right_time: times.right, rule, schema })
    }

    /// The node as a plan.
    pub(super) fn plan(
        left: Arc<LogicalPlan>,
        right: Arc<LogicalPlan>,
        keys: Vec<KeyPair>,
        times: KeyPair,
        rule: TimeRule,
    ) -> Result<LogicalPlan> {
        let node = Arc::new(Self::new(left, right, keys, times, rule)?);
        Ok(LogicalPlan::Extension(Extension { node }))
    }

    /// Right columns that order rows of equal times as they were appended.
    pub(super) fn append_order(&self) -> Vec<usize> {
        let fields = self.right.schema().fields().iter().enumerate();
        let ordered = fields.filter(|(_, field)| field.metadata().contains_key(APPEND_ORDER));
        ordered.map(|(at, _)| at).collect()
    }

    fn left_width(&self) -> usize {
        self.left.schema().fields().len()
    }
}

impl PartialEq for TimeJoin {
    fn eq(&self, other: &Self) -> bool {
        self.left == other.left
            && self.right == other.right
            && self.rule == other.rule
            && self.expressions() == other.expressions()
    }
}

impl Eq for TimeJoin {}

impl Hash for TimeJoin {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.left, &self.right, self.rule, self.expressions()).hash(state);
    }
}

impl PartialOrd for TimeJoin {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        // Plans are compared for equality only.
        (self == other).then_some(Ordering::Equal)
    }
}

impl UserDefinedLogicalNodeCore for TimeJoin {
    fn name(&self) -> &str {
        match self.rule {
            TimeRule::AsOf(_) => "AsOfJoin",
            TimeRule::Window(_) => "WindowJoin",
        }
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.left, &self.right]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    /// Both times, then the left and the right side of each key.
    fn expressions(&self) -> Vec<Expr> {
        let times = [self.left_time.clone(), self.right_time.clone()];
        let keys = self.keys.iter().flat_map(|key| [key.left.clone(), key.right.clone()]);
        times.into_iter().chain(keys).collect()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rule {
            TimeRule::AsOf(rule) => {
                let sign = rule.comparison_sign();
                write!(f, "AsOfJoin: {} {sign} {}", self.left_time, self.right_time)?;
                if let Some(most) = rule.tolerance {
                    write!(f, " within {most}")?;
                }
            }
            TimeRule::Window(WindowRule { from, to }) => {
                let (left, right) = (&self.left_time, &self.right_time);
                write!(f, "WindowJoin: {right} - {left} BETWEEN {from} AND {to}")?;
            }
        }
        for key in &self.keys {
            write!(f, ", {} = {}", key.left, key.right)?;
        }
        Ok(())
    }

    fn with_exprs_and_inputs(&self, exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        let mut inputs = inputs.into_iter().map(Arc::new);
        let mut exprs = exprs.into_iter();
        let (Some(left), Some(right)) = (inputs.next(), inputs.next()) else {
            return plan_err!("a join of time has two inputs");
        };
        let (Some(left_time), Some(right_time)) = (exprs.next(), exprs.next()) else {
            return plan_err!("a join of time has two times");
        };
        let mut keys = Vec::with_capacity(self.keys.len());
        while let (Some(left), Some(right)) = (exprs.next(), exprs.next()) {
            keys.push(KeyPair { left, right });
        }
        let times = KeyPair { left: left_time, right: right_time };
        Self::new(left, right, keys, times, self.rule)
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        let width = self.left_width();
        let mut left: HashSet<usize> =
            output_columns.iter().copied().filter(|at| *at < width).collect();
        let mut right: HashSet<usize> =
            output_columns.iter().filter(|at| **at >= width).map(|at| at - width).collect();
        let add = |expr: &Expr, schema: &DFSchema, into: &mut HashSet<usize>| {
            for column in expr.column_refs() {
                into.extend(schema.maybe_index_of_column(column));
            }
        };
        add(&self.left_time, self.left.schema(), &mut left);
        add(&self.right_time, self.right.schema(), &mut right);
        for key in &self.keys {
            add(&key.left, self.left.schema(), &mut left);
            add(&key.right, self.right.schema(), &mut right);
        }
        right.extend(self.append_order());
        let sorted = |set: HashSet<usize>| {
            let mut columns: Vec<usize> = set.into_iter().collect();
            columns.sort_unstable();
            columns
        };
        Some(vec![sorted(left), sorted(right)])
    }
}

/// Makes [`TimeJoin`] of a left join whose condition carries the mark of `ASOF JOIN`, and of a left
/// join whose condition is a window of time. Other joins are left as they are.
#[derive(Debug)]
pub struct PlanTimeJoins;

impl AnalyzerRule for PlanTimeJoins {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(|plan| match plan {
            LogicalPlan::Join(join) if has_mark(&join) => Ok(Transformed::yes(plan_as_of(join)?)),
            LogicalPlan::Join(join) => plan_window(join),
            other => Ok(Transformed::no(other)),
        })
        .map(|transformed| transformed.data)
    }

    fn name(&self) -> &str {
        "plan_joins_of_time"
    }
}

fn has_mark(join: &Join) -> bool {
    join.filter.as_ref().is_some_and(|filter| {
        split_conjunction(filter)
            .into_iter()
            .any(|part| condition::marked_condition(part).is_some())
    })
}

fn plan_as_of(join: Join) -> Result<LogicalPlan> {
    let (left, right) = (join.left, join.right);
    let mut keys: Vec<KeyPair> =
        join.on.into_iter().map(|(left, right)| KeyPair { left, right }).collect();
    let mut found = None;
    for part in join.filter.map(split_conjunction_owned).unwrap_or_default() {
        if let Some(inner) = condition::marked_condition(&part) {
            found = Some(MatchCondition::parse(inner, left.schema(), right.schema())?);
        } else if let Some(key) = key_pair(&part, left.schema(), right.schema()) {
            keys.push(key);
        } else {
            return plan_err!(
                "ON of an ASOF JOIN takes equalities of the two tables, joined by AND; \
                 found {part}. Put other conditions into WHERE or into a subquery"
            );
        }
    }
    let Some(found) = found else { return plan_err!("an ASOF JOIN without MATCH_CONDITION") };
    condition::check_time(&found.left, left.schema())?;
    condition::check_time(&found.right, right.schema())?;
    let times = KeyPair { left: found.left, right: found.right };
    if found.is_nearest {
        return nearest::plan_nearest(left, right, keys, times, found.rule.tolerance);
    }
    TimeJoin::plan(left, right, keys, times, TimeRule::AsOf(found.rule))
}

/// A window join where the condition says one, and the same join otherwise.
fn plan_window(join: Join) -> Result<Transformed<LogicalPlan>> {
    let Some(found) = WindowCondition::parse(&join)? else {
        return Ok(Transformed::no(LogicalPlan::Join(join)));
    };
    let right = filter_plan(join.right, found.of_right)?;
    let times = KeyPair { left: found.left, right: found.right };
    let rule = TimeRule::Window(found.rule);
    TimeJoin::plan(join.left, right, found.keys, times, rule).map(Transformed::yes)
}

pub(super) fn key_pair(part: &Expr, left: &DFSchema, right: &DFSchema) -> Option<KeyPair> {
    let Expr::BinaryExpr(BinaryExpr { left: a, op: Operator::Eq, right: b }) = part else {
        return None;
    };
    let pair = |a: &Expr, b: &Expr| KeyPair { left: a.clone(), right: b.clone() };
    match () {
        () if condition::is_of(a, left) && condition::is_of(b, right) => Some(pair(a, b)),
        () if condition::is_of(b, left) && condition::is_of(a, right) => Some(pair(b, a)),
        () => None,
    }
}

/// Pushes filters on left columns below a join of time, and filters on keys to both sides.
///
/// Every left row stays whatever the right side has, so a filter on left columns may come
/// first. A filter that names keys alone also holds for the right rows of the left rows that stay.
#[derive(Debug)]
pub struct PushFiltersBelowTimeJoins;

impl OptimizerRule for PushFiltersBelowTimeJoins {
    fn name(&self) -> &str {
        "push_filters_below_joins_of_time"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Filter(filter) = &plan else { return Ok(Transformed::no(plan)) };
        let LogicalPlan::Extension(extension) = filter.input.as_ref() else {
            return Ok(Transformed::no(plan));
        };
        let Some(join) = extension.node.as_any().downcast_ref::<TimeJoin>() else {
            return Ok(Transformed::no(plan));
        };
        let parts = split_conjunction_owned(filter.predicate.clone());
        let (below, above): (Vec<_>, Vec<_>) = parts
            .into_iter()
            .partition(|part| condition::is_of(part, join.left.schema()) && !part.is_volatile());
        if below.is_empty() {
            return Ok(Transformed::no(plan));
        }
        let on_right: Vec<Expr> =
            below.iter().filter_map(|part| for_right_keys(part, &join.keys)).collect();
        let mut join = join.clone();
        join.left = filter_plan(join.left, below)?;
        join.right = filter_plan(join.right, on_right)?;
        let node = LogicalPlan::Extension(Extension { node: Arc::new(join) });
        let plan = Arc::unwrap_or_clone(filter_plan(Arc::new(node), above)?);
        Ok(Transformed::yes(plan))
    }
}

fn filter_plan(plan: Arc<LogicalPlan>, parts: Vec<Expr>) -> Result<Arc<LogicalPlan>> {
    match conjunction(parts) {
        Some(predicate) => Ok(Arc::new(LogicalPlan::Filter(Filter::try_new(predicate, plan)?))),
        None => Ok(plan),
    }
}

/// The same condition over the right sides of the keys, where it names left keys alone.
fn for_right_keys(part: &Expr, keys: &[KeyPair]) -> Option<Expr> {
    let names: HashMap<&Column, &Expr> = keys
        .iter()
        .filter_map(|key| match &key.left {
            Expr::Column(column) => Some((column, &key.right)),
            _ => None,
        })
        .collect();
    let columns = part.column_refs();
    if columns.is_empty() || !columns.iter().all(|column| names.contains_key(column)) {
        return None;
    }
    let mut has_subquery = false;
    part.apply(|expr| {
        has_subquery |= matches!(
            expr,
            Expr::Exists(_)
                | Expr::InSubquery(_)
                | Expr::ScalarSubquery(_)
                | Expr::OuterReferenceColumn(..)
        );
        Ok(TreeNodeRecursion::Continue)
    })
    .ok()?;
    if has_subquery {
        return None;
    }
    let moved = part.clone().transform(|expr| match &expr {
        Expr::Column(column) => Ok(Transformed::yes(names[column].clone())),
        _ => Ok(Transformed::no(expr)),
    });
    moved.ok().map(|moved| moved.data)
}
