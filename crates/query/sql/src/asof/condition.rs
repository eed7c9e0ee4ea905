//! What `MATCH_CONDITION` says: which times are compared, how, and how far apart they may be.
//!
//! ```text
//! MATCH_CONDITION (a.ts >= b.ts)                          the last b at or before a
//! MATCH_CONDITION (a.ts <= b.ts)                          the first b at or after a
//! MATCH_CONDITION (a.ts >= b.ts AND a.ts - b.ts <= 1000)  and at most 1,000 before it
//! MATCH_CONDITION (nearest(a.ts, b.ts))                   the nearer of both; a tie: the earlier
//! ```

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::{DFSchema, Result, ScalarValue, internal_err, plan_err};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{
    BinaryExpr, Cast, ColumnarValue, Expr, ExprSchemable as _, Operator, ScalarFunctionArgs,
    ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::merge::AsOfRule;
use crate::syntax::MARK;

/// The function that asks for the nearer of two matches.
pub(crate) const NEAREST: &str = "nearest";

/// A function that exists for the planner and is never called.
#[derive(Debug, PartialEq, Eq, Hash)]
struct PlanOnly {
    name: &'static str,
    signature: Signature,
}

impl ScalarUDFImpl for PlanOnly {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        plan_err!("{} stands in MATCH_CONDITION of an ASOF JOIN, and nowhere else", self.name)
    }
}

/// The functions of this module. They are volatile, so that no rule moves or evaluates them before
/// the as-of join is planned.
pub(crate) fn match_functions() -> Vec<ScalarUDF> {
    let mark = Signature::exact(vec![DataType::Boolean], Volatility::Volatile);
    let nearest = Signature::comparable(2, Volatility::Volatile);
    [PlanOnly { name: MARK, signature: mark }, PlanOnly { name: NEAREST, signature: nearest }]
        .map(ScalarUDF::from)
        .into()
}

/// The condition inside the mark.
pub(super) fn marked_condition(part: &Expr) -> Option<&Expr> {
    match part {
        Expr::ScalarFunction(ScalarFunction { func, args }) if func.name() == MARK => args.first(),
        _ => None,
    }
}

/// Whether an expression names columns, all of them of this side.
pub(super) fn is_of(expr: &Expr, side: &DFSchema) -> bool {
    let columns = expr.column_refs();
    !columns.is_empty() && columns.iter().all(|column| side.has_column(column))
}

/// Whether and how `nearest` was asked for beside the ordinary rules.
pub(super) struct MatchCondition {
    pub(super) left: Expr,
    pub(super) right: Expr,
    pub(super) rule: AsOfRule,
    pub(super) is_nearest: bool,
}

impl MatchCondition {
    pub(super) fn parse(condition: &Expr, left: &DFSchema, right: &DFSchema) -> Result<Self> {
        let mut found: Option<Self> = None;
        let mut limits = Vec::new();
        for part in split_conjunction(condition) {
            match Self::parse_comparison(part, left, right) {
                Some(one) if found.is_none() => found = Some(one),
                _ => limits.push(part),
            }
        }
        let Some(mut found) = found else {
            return plan_err!(
                "MATCH_CONDITION compares a time of the left table with one of the right: \
                 a.ts >= b.ts (or >, <=, <), or nearest(a.ts, b.ts); found {condition}"
            );
        };
        for limit in limits {
            let Some(most) = found.distance_limit(limit, left)? else {
                return plan_err!(
                    "the second term of MATCH_CONDITION limits the distance of the same two \
                     times, as in {} - {} <= 10000000; found {limit}",
                    found.left,
                    found.right
                );
            };
            let before = found.rule.tolerance.unwrap_or(i64::MAX);
            found.rule.tolerance = Some(most.min(before));
        }
        Ok(found)
    }

    fn parse_comparison(part: &Expr, left: &DFSchema, right: &DFSchema) -> Option<Self> {
        let (a, op, b, is_nearest) = match part {
            Expr::BinaryExpr(BinaryExpr { left: a, op, right: b }) => {
                (a.as_ref(), *op, b.as_ref(), false)
            }
            Expr::ScalarFunction(ScalarFunction { func, args }) if func.name() == NEAREST => {
                let [a, b] = args.as_slice() else { return None };
                (a, Operator::GtEq, b, true)
            }
            _ => return None,
        };
        let (a, op, b) = if is_of(a, left) && is_of(b, right) {
            (a, op, b)
        } else if is_of(b, left) && is_of(a, right) {
            (b, op.swap()?, a)
        } else {
            return None;
        };
        let (looks_forward, is_strict) = match op {
            Operator::GtEq => (false, false),
            Operator::Gt => (false, true),
            Operator::LtEq => (true, false),
            Operator::Lt => (true, true),
            _ => return None,
        };
        let rule = AsOfRule { looks_forward, is_strict, tolerance: None };
        Some(Self { left: a.clone(), right: b.clone(), rule, is_nearest })
    }

    /// The limit in units of the times, where a term is `later - earlier <= limit`.
    fn distance_limit(&self, term: &Expr, left: &DFSchema) -> Result<Option<i64>> {
        let Expr::BinaryExpr(BinaryExpr { left: distance, op, right: limit }) = term else {
            return Ok(None);
        };
        let is_below = match op {
            Operator::LtEq => false,
            Operator::Lt => true,
            _ => return Ok(None),
        };
        let Expr::BinaryExpr(BinaryExpr { left: later, op: Operator::Minus, right: earlier }) =
            without_casts(distance)
        else {
            return Ok(None);
        };
        let (l, r) = (without_casts(&self.left), without_casts(&self.right));
        let (later, earlier) = (without_casts(later), without_casts(earlier));
        let fits = if self.rule.looks_forward {
            later == r && earlier == l
        } else {
            later == l && earlier == r
        };
        // The nearer row may lie on either side.
        let fits = fits || (self.is_nearest && later == r && earlier == l);
        if !fits {
            return Ok(None);
        }
        let Expr::Literal(value, _) = without_casts(limit) else { return Ok(None) };
        let Some(most) = in_units(value, &self.left.get_type(left)?) else { return Ok(None) };
        if most < 0 {
            return plan_err!("the limit {most} of MATCH_CONDITION is below 0: nothing can match");
        }
        // Times are whole numbers, so that "below 10" is "at most 9".
        Ok(Some(if is_below { most - 1 } else { most }))
    }
}

fn without_casts(expr: &Expr) -> &Expr {
    match expr {
        Expr::Cast(Cast { expr, .. }) => without_casts(expr),
        other => other,
    }
}

/// A limit as whole units of a time's type: numbers for integers, durations for timestamps.
pub(super) fn in_units(value: &ScalarValue, time: &DataType) -> Option<i64> {
    let unit_ns = match time {
        DataType::Timestamp(TimeUnit::Nanosecond, _) => 1,
        DataType::Timestamp(TimeUnit::Microsecond, _) => 1_000,
        DataType::Timestamp(TimeUnit::Millisecond, _) => 1_000_000,
        DataType::Timestamp(TimeUnit::Second, _) => 1_000_000_000,
        _ => {
            let number = value.cast_to(&DataType::Int64).ok()?;
            return match number {
                ScalarValue::Int64(number) => number,
                _ => None,
            };
        }
    };
    Some(span_ns(value)? / unit_ns)
}

/// A span of time in nanoseconds; `None` for months, whose lengths differ, and for other values.
pub(crate) fn span_ns(value: &ScalarValue) -> Option<i64> {
    match value {
        ScalarValue::IntervalMonthDayNano(Some(span)) if span.months == 0 => {
            span.nanoseconds.checked_add(i64::from(span.days).checked_mul(86_400_000_000_000)?)
        }
        ScalarValue::IntervalDayTime(Some(span)) => {
            let ms = i64::from(span.days) * 86_400_000 + i64::from(span.milliseconds);
            ms.checked_mul(1_000_000)
        }
        ScalarValue::DurationNanosecond(Some(ns)) => Some(*ns),
        ScalarValue::DurationMicrosecond(Some(us)) => us.checked_mul(1_000),
        ScalarValue::DurationMillisecond(Some(ms)) => ms.checked_mul(1_000_000),
        ScalarValue::DurationSecond(Some(s)) => s.checked_mul(1_000_000_000),
        _ => None,
    }
}

/// Refuses a time that is no whole number.
pub(super) fn check_time(time: &Expr, side: &DFSchema) -> Result<()> {
    let kind = time.get_type(side)?;
    if is_time(&kind) {
        return Ok(());
    }
    plan_err!(
        "MATCH_CONDITION compares {time}, which is {kind}. It takes timestamps, dates and \
         integers; floating-point numbers have no exact order of equal times"
    )
}

pub(super) fn is_time(kind: &DataType) -> bool {
    kind.is_integer() || matches!(kind, DataType::Timestamp(..) | DataType::Date32)
}

/// The times of one batch as whole numbers.
pub(super) fn whole_numbers(times: &dyn arrow::array::Array) -> Result<arrow::array::Int64Array> {
    use arrow::array::AsArray as _;
    let numbers = match times.data_type() {
        // A cast of dates to Int64 is not there in one step.
        DataType::Date32 => {
            let days = arrow::compute::cast(times, &DataType::Int32)?;
            arrow::compute::cast(&days, &DataType::Int64)?
        }
        _ => arrow::compute::cast(times, &DataType::Int64)?,
    };
    match numbers.as_primitive_opt::<arrow::datatypes::Int64Type>() {
        Some(numbers) => Ok(numbers.clone()),
        None => internal_err!("times of a join of time are no whole numbers"),
    }
}
