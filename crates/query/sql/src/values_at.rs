//! The value of the row with the least or the greatest time of each group.
//!
//! DataFusion's `first_value` and `last_value` order rows by values of any types, and compare
//! boxed values one by one. Here the order is one number. A group then takes its value, the number
//! and a byte. [`ValuesAtTimes`] finds the calls of `first_value(value ORDER BY time)` whose types
//! allow this.

use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{
    Array as _, ArrayRef, ArrowPrimitiveType, AsArray as _, BooleanArray, Int64Array,
    PrimitiveArray, downcast_primitive, new_empty_array,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult as _, TreeNode as _};
use datafusion::common::{DFSchema, Result, ScalarValue, internal_err};
use datafusion::logical_expr::expr::{AggregateFunction, NullTreatment};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, Expr, ExprSchemable as _,
    GroupsAccumulator, LogicalPlan, Signature, Volatility,
};
use datafusion::optimizer::AnalyzerRule;

/// Plans `first_value` and `last_value` over one number or timestamp by [`ValueAtTime`].
#[derive(Debug)]
pub(crate) struct ValuesAtTimes;

impl AnalyzerRule for ValuesAtTimes {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let planned = plan.transform_up_with_subqueries(|plan| {
            let LogicalPlan::Aggregate(aggregate) = &plan else {
                return Ok(Transformed::no(plan));
            };
            let (schema, names) = (Arc::clone(aggregate.input.schema()), NamePreserver::new(&plan));
            plan.map_expressions(|expr| {
                let name = names.save(&expr);
                let expr = expr.transform_up(|expr| at_time(expr, &schema))?;
                Ok(expr.update_data(|expr| name.restore(expr)))
            })
        });
        planned.data()
    }

    fn name(&self) -> &str {
        "values_at_times"
    }
}

/// The same aggregate by [`ValueAtTime`], where its types and clauses allow it.
fn at_time(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let Expr::AggregateFunction(AggregateFunction { func, params }) = &expr else {
        return Ok(Transformed::no(expr));
    };
    let is_last = match func.name() {
        "first_value" => false,
        "last_value" => true,
        _ => return Ok(Transformed::no(expr)),
    };
    let ([value], [order]) = (params.args.as_slice(), params.order_by.as_slice()) else {
        return Ok(Transformed::no(expr));
    };
    let keeps_nulls = params.null_treatment != Some(NullTreatment::IgnoreNulls);
    if params.distinct || !keeps_nulls || !order.asc || order.nulls_first {
        return Ok(Transformed::no(expr));
    }
    let is_number = |kind| matches!(kind, DataType::Int64 | DataType::Timestamp(..));
    if !value.get_type(schema)?.is_primitive() || !is_number(order.expr.get_type(schema)?) {
        return Ok(Transformed::no(expr));
    }
    let signature = Signature::any(2, Volatility::Immutable);
    let function = Arc::new(AggregateUDF::from(ValueAtTime { is_last, signature }));
    let args = vec![value.clone(), order.expr.clone()];
    let filter = params.filter.clone();
    let planned = AggregateFunction::new_udf(function, args, false, filter, Vec::new(), None);
    Ok(Transformed::yes(Expr::AggregateFunction(planned)))
}

/// The value of the row with the least or the greatest time. A null counts as the greatest time. Of
/// equal times the first one is first, and the last one last.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ValueAtTime {
    is_last: bool,
    signature: Signature,
}

impl ValueAtTime {
    fn groups(&self, args: &AccumulatorArgs<'_>) -> Result<Box<dyn GroupsAccumulator>> {
        let [value, _] = args.expr_fields else {
            return internal_err!("{} takes a value and a time", self.name());
        };
        let (kind, is_last) = (value.data_type(), self.is_last);
        macro_rules! of_type {
            ($primitive:ty, $is_last:expr) => {
                Box::new(GroupValues::<$primitive>::new(kind.clone(), $is_last))
            };
        }
        let groups: Box<dyn GroupsAccumulator> = downcast_primitive! {
            kind => (of_type, is_last),
            other => return internal_err!("{} of {other}", self.name())
        };
        Ok(groups)
    }
}

impl AggregateUDFImpl for ValueAtTime {
    fn name(&self) -> &str {
        if self.is_last { "last_at_time" } else { "first_at_time" }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, args: &[DataType]) -> Result<DataType> {
        Ok(args[0].clone())
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        let mut groups = self.groups(&args)?;
        // There is an answer also without rows.
        groups.merge_batch(&empty_state(args.return_field.data_type()), &[], 1)?;
        Ok(Box::new(OneGroup { groups: Mutex::new(groups) }))
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        let field = |part: &str, kind: DataType| {
            Arc::new(Field::new(format!("{}[{part}]", args.name), kind, true))
        };
        Ok(vec![
            field("value", args.return_field.data_type().clone()),
            field("time", DataType::Int64),
            field("is_set", DataType::Boolean),
        ])
    }

    fn groups_accumulator_supported(&self, _: AccumulatorArgs<'_>) -> bool {
        true
    }

    fn create_groups_accumulator(
        &self,
        args: AccumulatorArgs<'_>,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        self.groups(&args)
    }
}

fn empty_state(kind: &DataType) -> [ArrayRef; 3] {
    [kind.clone(), DataType::Int64, DataType::Boolean].map(|kind| new_empty_array(&kind))
}

/// What a group has.
mod flags {
    pub(super) const HAS_ROW: u8 = 1;
    pub(super) const HAS_TIME: u8 = 2;
    pub(super) const HAS_VALUE: u8 = 4;
}

/// The value of each group, with its time.
struct GroupValues<T: ArrowPrimitiveType> {
    kind: DataType,
    is_last: bool,
    values: Vec<T::Native>,
    times: Vec<i64>,
    flags: Vec<u8>,
}

impl<T: ArrowPrimitiveType> GroupValues<T> {
    fn new(kind: DataType, is_last: bool) -> Self {
        Self { kind, is_last, values: Vec::new(), times: Vec::new(), flags: Vec::new() }
    }

    fn grow(&mut self, groups: usize) {
        self.values.resize(groups, T::default_value());
        self.times.resize(groups, 0);
        self.flags.resize(groups, 0);
    }

    fn take(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        is_taken: impl Fn(usize) -> bool,
    ) -> Result<()> {
        let times = arrow::compute::cast(&values[1], &DataType::Int64)?;
        let (times, values) = (times.as_primitive::<Int64Type>(), values[0].as_primitive::<T>());
        for (row, &group) in groups.iter().enumerate().filter(|(row, _)| is_taken(*row)) {
            // A null is later than all times.
            let time = (times.is_null(row), if times.is_null(row) { 0 } else { times.value(row) });
            let flags = self.flags[group];
            let known = (flags & flags::HAS_TIME == 0, self.times[group]);
            let is_better = match self.is_last {
                true => time >= known,
                false => time < known,
            };
            if flags & flags::HAS_ROW != 0 && !is_better {
                continue;
            }
            let has_value = values.is_valid(row);
            self.values[group] = if has_value { values.value(row) } else { T::default_value() };
            self.times[group] = time.1;
            self.flags[group] = flags::HAS_ROW
                | if time.0 { 0 } else { flags::HAS_TIME }
                | if has_value { flags::HAS_VALUE } else { 0 };
        }
        Ok(())
    }

    /// The values and their times, with the flags of the groups.
    fn emit(&mut self, emitted: EmitTo) -> (ArrayRef, Int64Array, Vec<u8>) {
        let flags = emitted.take_needed(&mut self.flags);
        let nulls = |flag: u8| -> NullBuffer { flags.iter().map(|has| has & flag != 0).collect() };
        let values = emitted.take_needed(&mut self.values);
        let values = PrimitiveArray::<T>::new(values.into(), Some(nulls(flags::HAS_VALUE)));
        let times = emitted.take_needed(&mut self.times);
        let times = Int64Array::new(times.into(), Some(nulls(flags::HAS_TIME)));
        (Arc::new(values.with_data_type(self.kind.clone())), times, flags)
    }
}

impl<T: ArrowPrimitiveType> GroupsAccumulator for GroupValues<T> {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        group_count: usize,
    ) -> Result<()> {
        self.grow(group_count);
        match filter {
            None => self.take(values, groups, |_| true),
            Some(filter) => {
                self.take(values, groups, |row| filter.is_valid(row) && filter.value(row))
            }
        }
    }

    fn evaluate(&mut self, emitted: EmitTo) -> Result<ArrayRef> {
        Ok(self.emit(emitted).0)
    }

    fn state(&mut self, emitted: EmitTo) -> Result<Vec<ArrayRef>> {
        let (values, times, flags) = self.emit(emitted);
        let set: BooleanArray = flags.iter().map(|has| Some(has & flags::HAS_ROW != 0)).collect();
        Ok(vec![values, Arc::new(times), Arc::new(set)])
    }

    fn merge_batch(
        &mut self,
        states: &[ArrayRef],
        groups: &[usize],
        group_count: usize,
    ) -> Result<()> {
        self.grow(group_count);
        let set = states[2].as_boolean();
        self.take(&states[..2], groups, |row| set.is_valid(row) && set.value(row))
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let times = arrow::compute::cast(&values[1], &DataType::Int64)?;
        let is_taken = |row| filter.is_none_or(|filter| filter.is_valid(row) && filter.value(row));
        let set: BooleanArray = (0..times.len()).map(|row| Some(is_taken(row))).collect();
        Ok(vec![Arc::clone(&values[0]), times, Arc::new(set)])
    }

    fn size(&self) -> usize {
        self.values.capacity() * size_of::<T::Native>()
            + self.times.capacity() * size_of::<i64>()
            + self.flags.capacity()
    }
}

/// All rows as one group. An [`Accumulator`] can be shared by threads and a [`GroupsAccumulator`]
/// cannot, so a lock is around it. Nothing ever waits for the lock.
struct OneGroup {
    groups: Mutex<Box<dyn GroupsAccumulator>>,
}

impl OneGroup {
    fn groups(&mut self) -> &mut dyn GroupsAccumulator {
        self.groups.get_mut().unwrap_or_else(PoisonError::into_inner).as_mut()
    }
}

impl std::fmt::Debug for OneGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OneGroup")
    }
}

impl Accumulator for OneGroup {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.groups().update_batch(values, &vec![0; values[0].len()], None, 1)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        ScalarValue::try_from_array(&self.groups().evaluate(EmitTo::All)?, 0)
    }

    fn size(&self) -> usize {
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        size_of_val(self) + groups.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let state = self.groups().state(EmitTo::All)?;
        state.iter().map(|part| ScalarValue::try_from_array(part, 0)).collect()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.groups().merge_batch(states, &vec![0; states[0].len()], 1)
    }
}

#[cfg(test)]
mod tests {
    use arrow::util::pretty::pretty_format_batches;
    use datafusion::execution::SessionStateBuilder;
    use datafusion::prelude::{SessionConfig, SessionContext};

    use super::*;

    fn context() -> SessionContext {
        let mut analyzers = datafusion::optimizer::Analyzer::new().rules;
        analyzers.push(Arc::new(ValuesAtTimes));
        let config = SessionConfig::new().with_target_partitions(3).with_batch_size(64);
        let state = SessionStateBuilder::new()
            .with_config(config)
            .with_default_features()
            .with_analyzer_rules(analyzers)
            .build();
        SessionContext::new_with_state(state)
    }

    /// Rows in 37 groups, with nulls among values and times. No two times are equal.
    const ROWS: &str = "SELECT v * 7919 % 37 AS g, nullif(v % 11, 5) AS v,
        CASE WHEN v % 97 = 13 THEN NULL ELSE v * 7907 % 10007 END AS t
        FROM generate_series(1, 5000) rows(v)";

    async fn table(context: &SessionContext, sql: &str) -> String {
        let batches = context.sql(sql).await.unwrap().collect().await.unwrap();
        pretty_format_batches(&batches).unwrap().to_string()
    }

    #[tokio::test]
    async fn first_and_last_are_those_of_the_general_functions() {
        let context = context();
        for value in ["v", "v::decimal(18, 4)", "v::double", "to_timestamp_nanos(v)"] {
            // Two terms are beyond the rule, and the general functions answer them.
            let by = |order: &str| {
                format!(
                    "SELECT g, first_value({value} ORDER BY {order}) AS a, \
                     last_value({value} ORDER BY {order}) FILTER (WHERE t IS NOT NULL) AS b \
                     FROM ({ROWS}) GROUP BY g ORDER BY g"
                )
            };
            let plan = context.sql(&by("t")).await.unwrap().into_optimized_plan().unwrap();
            assert!(plan.to_string().contains("last_at_time"), "{plan}");
            assert_eq!(table(&context, &by("t")).await, table(&context, &by("t, g")).await);
            let times = |order: &str| {
                by(order).replace("FILTER (WHERE t IS NOT NULL)", "FILTER (WHERE t > 9000)")
            };
            let stamps = times("to_timestamp_nanos(t)");
            assert_eq!(table(&context, &stamps).await, table(&context, &times("t, g")).await);
        }
    }

    #[tokio::test]
    async fn all_rows_no_rows_nulls_and_equal_times() {
        let context = context();
        for (what, rows, expected) in [
            ("first_value(v ORDER BY t)", "(1, 5), (2, 3), (3, 4)", "2"),
            ("last_value(v ORDER BY t)", "(1, 5), (2, 3), (3, 4)", "1"),
            ("first_value(v ORDER BY t)", "(1, 5), (2, 5)", "1"),
            ("last_value(v ORDER BY t)", "(1, 5), (2, 5)", "2"),
            ("last_value(v ORDER BY t)", "(1, 5), (2, NULL)", "2"),
            ("first_value(v ORDER BY t)", "(1, NULL), (2, 9)", "2"),
            ("first_value(v ORDER BY t)", "(NULL, 1), (2, 9)", "NULL"),
            ("first_value(v ORDER BY t) FILTER (WHERE t > 100)", "(1, 1), (2, 9)", "NULL"),
        ] {
            let sql =
                format!("SELECT coalesce(({what})::text, 'NULL') FROM (VALUES {rows}) r(v, t)");
            let found = table(&context, &sql).await;
            assert!(found.lines().nth(3).unwrap().contains(expected), "{sql}: {found}");
        }
    }
}
