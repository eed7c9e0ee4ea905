//! Functions whose answer may be far longer than what they are given.
//!
//! The memory of a query is counted by its operators, and a function is none: `repeat('x',
//! 2000000000)` would take two gigabytes before any operator sees them. The functions here are
//! asked first how many bytes they will make, and take them out of the same memory while they run.
//!
//! A function that only joins its arguments is one of them: thirty subqueries, each of which joins
//! the text of the one below to itself, make a gigabyte out of one letter.
//!
//! | module | what |
//! |---|---|
//! | `constants` | constants that are columns of a result, once for each row |
//! | `operators` | the operator for joining two texts or lists, and lists in brackets |

mod constants;
mod operators;

use std::sync::Arc;

pub(crate) use constants::CountConstants;
pub(crate) use operators::GrowingOperators;

use arrow::array::{Array, ArrayRef, AsArray as _, Int64Array};
use arrow::datatypes::{DataType, FieldRef, Int64Type, IntervalMonthDayNanoType, TimeUnit};
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::execution::SessionStateDefaults;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};

/// How the bytes of an answer follow from the arguments of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Growth {
    /// The bytes of the first argument, as often as the second says.
    Times,
    /// As many characters as the second argument says.
    Length,
    /// The bytes of the first argument, in which each byte may become the third argument.
    Replaced,
    /// A number for each step from the first argument to the second.
    Steps,
    /// The bytes of all arguments.
    Together,
    /// The bytes of all arguments, and the separator between any two values. The place of the
    /// separator among the arguments follows.
    Separated(usize),
    /// Two bytes for each byte.
    Doubled,
    /// As many values as the second argument says, each with the bytes of the third.
    Filled,
}

/// The functions that grow, with their other names.
const GROWING: [(&str, Growth, &[&str]); 20] = [
    ("repeat", Growth::Times, &[]),
    ("array_repeat", Growth::Times, &["list_repeat"]),
    ("lpad", Growth::Length, &[]),
    ("rpad", Growth::Length, &[]),
    ("replace", Growth::Replaced, &[]),
    ("regexp_replace", Growth::Replaced, &[]),
    ("range", Growth::Steps, &[]),
    ("generate_series", Growth::Steps, &[]),
    ("concat", Growth::Together, &[]),
    ("concat_ws", Growth::Separated(0), &[]),
    ("overlay", Growth::Together, &[]),
    ("array_concat", Growth::Together, &["array_cat", "list_concat", "list_cat"]),
    ("array_append", Growth::Together, &["list_append", "array_push_back", "list_push_back"]),
    ("array_prepend", Growth::Together, &["list_prepend", "array_push_front", "list_push_front"]),
    ("make_array", Growth::Together, &["make_list"]),
    ("struct", Growth::Together, &["row"]),
    ("named_struct", Growth::Together, &[]),
    ("array_to_string", Growth::Separated(1), &["list_to_string", "array_join", "list_join"]),
    ("array_resize", Growth::Filled, &["list_resize"]),
    ("encode", Growth::Doubled, &[]),
];

/// The functions that grow, each behind its limit.
pub(crate) fn growing_functions(pool: &Arc<dyn MemoryPool>) -> Vec<ScalarUDF> {
    let standard = SessionStateDefaults::default_scalar_functions();
    let known = |name: &str| standard.iter().find(|function| function.name() == name).cloned();
    let bounded = GROWING.into_iter().filter_map(|(name, growth, other_names)| {
        let bounded = BoundedFunction { inner: known(name)?, growth, pool: Arc::clone(pool) };
        Some(ScalarUDF::from(bounded).with_aliases(other_names.iter().copied()))
    });
    let joined = BoundedFunction {
        inner: Arc::new(operators::text_concat()),
        growth: Growth::Together,
        pool: Arc::clone(pool),
    };
    bounded.chain([ScalarUDF::from(joined)]).collect()
}

/// A function that takes its memory before it runs.
#[derive(Debug)]
struct BoundedFunction {
    inner: Arc<ScalarUDF>,
    growth: Growth,
    pool: Arc<dyn MemoryPool>,
}

impl PartialEq for BoundedFunction {
    fn eq(&self, other: &Self) -> bool {
        self.inner == other.inner
    }
}

impl Eq for BoundedFunction {}

impl std::hash::Hash for BoundedFunction {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
    }
}

/// The place of a row's value. An array of one value is a constant.
fn place_of(values: &dyn Array, row: usize) -> usize {
    if values.len() == 1 { 0 } else { row }
}

/// The bytes of a row's value; those of a list are all of its elements together.
fn value_bytes(array: &ArrayRef, row: usize) -> u64 {
    let row = place_of(array, row);
    match array.data_type() {
        _ if array.is_null(row) => 0,
        DataType::Utf8 => array.as_string::<i32>().value_length(row).unsigned_abs().into(),
        DataType::LargeUtf8 => array.as_string::<i64>().value_length(row).unsigned_abs(),
        DataType::Utf8View => array.as_string_view().value(row).len() as u64,
        DataType::Binary => array.as_binary::<i32>().value_length(row).unsigned_abs().into(),
        DataType::LargeBinary => array.as_binary::<i64>().value_length(row).unsigned_abs(),
        DataType::BinaryView => array.as_binary_view().value(row).len() as u64,
        DataType::Struct(_) => {
            let fields = array.as_struct().columns().iter();
            fields.fold(0, |sum: u64, field| sum.saturating_add(value_bytes(field, row)))
        }
        kind => match elements_of(array, row) {
            Some(values) => (0..values.len())
                .fold(0, |sum: u64, at| sum.saturating_add(value_bytes(&values, at))),
            None => kind.primitive_width().unwrap_or(size_of::<i64>()) as u64,
        },
    }
}

/// The elements of a row that is a list or a map.
fn elements_of(array: &ArrayRef, row: usize) -> Option<ArrayRef> {
    match array.data_type() {
        DataType::List(_) => Some(array.as_list::<i32>().value(row)),
        DataType::LargeList(_) => Some(array.as_list::<i64>().value(row)),
        DataType::FixedSizeList(..) => Some(array.as_fixed_size_list().value(row)),
        DataType::Map(..) => Some(Arc::new(array.as_map().value(row))),
        _ => None,
    }
}

/// How many values a row has: the elements of a list, or one.
fn value_count(array: &ArrayRef, row: usize) -> u64 {
    let row = place_of(array, row);
    let elements = array.is_valid(row).then(|| elements_of(array, row)).flatten();
    elements.map_or(1, |values| values.len() as u64)
}

/// The arguments of a function for a batch of rows.
struct GivenArguments {
    arrays: Vec<ArrayRef>,
    rows: usize,
}

impl GivenArguments {
    fn new(args: &ScalarFunctionArgs) -> Result<Self> {
        // An answer to constants is one value, whatever the number of rows.
        let is_constant = args.args.iter().all(|value| matches!(value, ColumnarValue::Scalar(_)));
        let arrays = args.args.iter().map(|value| match value {
            // A constant stays one value. A copy for each row would be counted by nobody.
            ColumnarValue::Scalar(one) => one.to_array(),
            ColumnarValue::Array(values) => Ok(Arc::clone(values)),
        });
        let arrays = arrays.collect::<Result<_>>()?;
        Ok(Self { arrays, rows: if is_constant { 1 } else { args.number_rows } })
    }

    fn array(&self, at: usize) -> Option<&ArrayRef> {
        self.arrays.get(at)
    }

    /// The bytes of a value, or none where there is no such argument.
    fn bytes(&self, at: usize, row: usize) -> u64 {
        self.array(at).map_or(0, |values| value_bytes(values, row))
    }

    fn numbers(&self, at: usize) -> Option<Int64Array> {
        let values = arrow::compute::cast(self.array(at)?, &DataType::Int64).ok()?;
        Some(values.as_primitive::<Int64Type>().clone())
    }

    /// The sum of what each row takes.
    fn sum_rows(&self, bytes: impl Fn(usize) -> u64) -> u64 {
        (0..self.rows).fold(0, |sum: u64, row| sum.saturating_add(bytes(row)))
    }

    /// The sum of what each row takes with the number in its second argument.
    fn sum_counted(&self, bytes: impl Fn(usize, u64) -> u64) -> u64 {
        let counts = self.numbers(1);
        let count = |row| u64::try_from(number_at(counts.as_ref(), row)).unwrap_or(0);
        self.sum_rows(|row| bytes(row, count(row)))
    }

    /// The bytes of all arguments of a row.
    fn joined_bytes(&self, row: usize) -> u64 {
        self.arrays.iter().map(|values| value_bytes(values, row)).fold(0, u64::saturating_add)
    }

    /// The bytes of the separator, which is one of the arguments, beside each value of a row.
    fn separator_bytes(&self, row: usize, separator: usize) -> u64 {
        let places = self.arrays.iter().map(|values| value_count(values, row)).sum::<u64>();
        self.bytes(separator, row).saturating_mul(places)
    }

    /// The bytes of series of whole numbers.
    fn number_series_bytes(&self) -> u64 {
        let (first, second, step) = (self.numbers(0), self.numbers(1), self.numbers(2));
        self.sum_rows(|row| {
            // One argument is the end, and the beginning is 0.
            let (from, to) = match &second {
                Some(_) => (number_at(first.as_ref(), row), number_at(second.as_ref(), row)),
                None => (0, number_at(first.as_ref(), row)),
            };
            let step = step.as_ref().map_or(1, |_| number_at(step.as_ref(), row).unsigned_abs());
            (from.abs_diff(to) / step.max(1)).saturating_mul(8)
        })
    }

    /// The bytes of series of days or times, whose steps are intervals.
    fn time_series_bytes(&self) -> Result<u64> {
        // Microseconds reach over all years.
        let kind = DataType::Timestamp(TimeUnit::Microsecond, None);
        let micros = |at: usize| -> Result<Option<Int64Array>> {
            let Some(times) = self.array(at) else { return Ok(None) };
            let times =
                arrow::compute::cast(&arrow::compute::cast(times, &kind)?, &DataType::Int64)?;
            Ok(Some(times.as_primitive::<Int64Type>().clone()))
        };
        let (Some(from), Some(to)) = (micros(0)?, micros(1)?) else { return Ok(0) };
        let steps = self.array(2).and_then(|s| s.as_primitive_opt::<IntervalMonthDayNanoType>());
        Ok(self.sum_rows(|row| {
            let (from_at, to_at) = (place_of(&from, row), place_of(&to, row));
            if from.is_null(from_at) || to.is_null(to_at) {
                return 0;
            }
            let step_ns = steps.map_or(1, |steps| {
                let step = steps.value(place_of(steps, row));
                let days = i128::from(step.months) * 28 + i128::from(step.days);
                (days * 86_400_000_000_000 + i128::from(step.nanoseconds)).unsigned_abs()
            });
            let span_ns = u128::from(from.value(from_at).abs_diff(to.value(to_at))) * 1_000;
            let count = u64::try_from(span_ns / step_ns.max(1) + 1).unwrap_or(u64::MAX);
            count.saturating_mul(8)
        }))
    }
}

/// The number of a row, or 0 where there is none.
fn number_at(values: Option<&Int64Array>, row: usize) -> i64 {
    let Some(values) = values else { return 0 };
    let place = place_of(values, row);
    if values.is_valid(place) { values.value(place) } else { 0 }
}

impl BoundedFunction {
    /// Bytes of the answer, at most.
    fn answer_bytes(&self, args: &ScalarFunctionArgs) -> Result<u64> {
        let given = GivenArguments::new(args)?;
        let Some(first) = given.array(0) else { return Ok(0) };
        Ok(match self.growth {
            Growth::Times => {
                given.sum_counted(|row, count| given.bytes(0, row).max(1).saturating_mul(count))
            }
            Growth::Length => {
                // A character that is no space may have four bytes.
                let each = if given.array(2).is_some() { 4 } else { 1 };
                given.sum_counted(|row, count| {
                    count.saturating_mul(each).saturating_add(given.bytes(0, row))
                })
            }
            Growth::Filled => {
                given.sum_counted(|row, count| count.saturating_mul(given.bytes(2, row).max(8)))
            }
            Growth::Replaced => given.sum_rows(|row| {
                // One replacement before each byte, and one at the end.
                let places = given.bytes(0, row).saturating_add(1);
                given.bytes(2, row).max(1).saturating_mul(places)
            }),
            Growth::Together => given.sum_rows(|row| given.joined_bytes(row)),
            Growth::Separated(at) => given.sum_rows(|row| {
                given.joined_bytes(row).saturating_add(given.separator_bytes(row, at))
            }),
            Growth::Doubled => given.sum_rows(|row| given.bytes(0, row).saturating_mul(2)),
            Growth::Steps if first.data_type().is_integer() => given.number_series_bytes(),
            Growth::Steps => given.time_series_bytes()?,
        })
    }
}

impl ScalarUDFImpl for BoundedFunction {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(arg_types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        self.inner.return_field_from_args(args)
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.coerce_types(arg_types)
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        self.inner.schema_name(args)
    }

    fn with_updated_config(&self, config: &ConfigOptions) -> Option<ScalarUDF> {
        let inner = Arc::new(self.inner.inner().with_updated_config(config)?);
        let (growth, pool) = (self.growth, Arc::clone(&self.pool));
        Some(ScalarUDF::from(Self { inner, growth, pool }))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let bytes = usize::try_from(self.answer_bytes(&args)?).unwrap_or(usize::MAX);
        // The share is held while the answer is made. What is made is then in the batches, which
        // the operators count.
        let share = MemoryConsumer::new(format!("{}()", self.name())).register(&self.pool);
        share.try_grow(bytes)?;
        self.inner.invoke_with_args(args)
    }
}

#[cfg(test)]
mod tests {
    use datafusion::common::ScalarValue;
    use datafusion::execution::SessionStateBuilder;
    use datafusion::execution::memory_pool::GreedyMemoryPool;
    use datafusion::prelude::SessionContext;

    use super::*;

    /// A context whose growing functions have a mebibyte.
    fn bounded_context() -> SessionContext {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1 << 20));
        let growing = growing_functions(&pool);
        let state = SessionStateBuilder::new()
            .with_expr_planners(vec![Arc::new(GrowingOperators { functions: growing.clone() })])
            .with_default_features()
            .with_physical_optimizer_rule(Arc::new(CountConstants { pool }))
            .build();
        let context = SessionContext::new_with_state(state);
        growing.into_iter().for_each(|function| context.register_udf(function));
        context
    }

    async fn answer(context: &SessionContext, sql: &str) -> Result<Option<ScalarValue>> {
        let batches = context.sql(sql).await?.collect().await?;
        batches.first().map(|batch| ScalarValue::try_from_array(batch.column(0), 0)).transpose()
    }

    #[tokio::test]
    async fn what_a_function_makes_is_counted_before_it_is_made() {
        let context = bounded_context();
        for (sql, length) in [
            ("SELECT length(repeat('ab', 3))", 6),
            ("SELECT length(lpad('ab', 7, 'x'))", 7),
            ("SELECT length(rpad('ab', 7))", 7),
            ("SELECT length(replace('aaa', 'a', 'bcd'))", 9),
            ("SELECT cardinality(array_repeat(1, 4))", 4),
            ("SELECT cardinality(range(10))", 10),
            ("SELECT cardinality(generate_series(1, 10, 3))", 4),
            (
                "SELECT cardinality(generate_series(TIMESTAMP '2026-01-01', TIMESTAMP \
                 '2026-01-02', INTERVAL '1 hour'))",
                25,
            ),
            ("SELECT cardinality(array_repeat(make_array(1, 2, 3), 4))", 12),
            (
                "SELECT max(length(repeat('x', v))) FROM (VALUES (1), (500000), (NULL)) t(v)",
                500_000,
            ),
            ("SELECT length('ab' || 'c' || 4)", 4),
            ("SELECT length(concat('ab', NULL, 'c'))", 3),
            ("SELECT length(concat_ws('--', 'a', 'b'))", 4),
            ("SELECT max(length(t.v || 'x')) FROM (VALUES ('a'), (NULL)) t(v)", 2),
            ("SELECT cardinality([1, 2] || [3])", 3),
            ("SELECT cardinality([1, 2] || 3)", 3),
            ("SELECT length(array_to_string(['a', 'b'], ', '))", 4),
            ("SELECT cardinality(array_resize([1], 5, 0))", 5),
            ("SELECT length(encode('ab', 'hex'))", 4),
        ] {
            let found = answer(&context, sql).await.unwrap().unwrap();
            let found = found.cast_to(&DataType::Int64).unwrap();
            assert_eq!(found, ScalarValue::Int64(Some(length)), "{sql}");
        }
        for sql in [
            "SELECT length(repeat('x', 2000000000))",
            "SELECT length(repeat('x', v)) FROM (VALUES (2000000000)) t(v)",
            "SELECT length(repeat('x', v)) FROM (VALUES (400000), (400000), (400000)) t(v)",
            "SELECT length(lpad('x', 2000000000, 'y'))",
            "SELECT length(rpad('x', v)) FROM (VALUES (2000000000)) t(v)",
            "SELECT cardinality(array_repeat('x', 2000000000))",
            "SELECT cardinality(range(2000000000))",
            "SELECT cardinality(generate_series(1, v)) FROM (VALUES (2000000000)) t(v)",
            "SELECT length(replace(repeat('x', 900000), 'x', 'yyyyyyyyyyyyyyyyyyyyyyyy'))",
            "SELECT cardinality(list_repeat('x', 2000000000))",
            "SELECT cardinality(generate_series(TIMESTAMP '1970-01-01', TIMESTAMP '2026-01-01', \
             INTERVAL '1 microsecond'))",
            "SELECT length(repeat(repeat('x', 600000), v)) FROM (VALUES (1), (2)) t(v)",
            "SELECT length(rpad('x', 300000, '\u{1F980}'))",
            "SELECT length(concat(s, s)) FROM (SELECT repeat(v, 600000) s FROM (VALUES ('x')) \
             t(v))",
            "SELECT length(concat_ws(s, 'a', 'b', 'c')) FROM (SELECT repeat('x', 500000) s)",
            "SELECT cardinality([s, s]) FROM (SELECT repeat(v, 600000) s FROM (VALUES ('x')) \
             t(v))",
            "SELECT named_struct('a', s, 'b', s) FROM (SELECT repeat('x', 600000) s)",
            "SELECT cardinality(array_resize([1], 2000000000, 0))",
            "SELECT length(array_to_string([1, 2, 3], repeat('x', 500000)))",
            "SELECT length(encode(repeat('x', 600000), 'hex'))",
            "SELECT repeat('x', 2000), v FROM generate_series(1, 8000) t(v)",
        ] {
            let refused = answer(&context, sql).await.expect_err(sql).to_string();
            assert!(refused.contains("Resources exhausted"), "{sql}: {refused}");
        }
    }

    #[test]
    fn a_text_joined_to_itself_in_every_subquery_meets_the_limit() {
        // As deep statements run in the product: on a stack that they fit on.
        let asked = std::thread::Builder::new().stack_size(crate::QUERY_STACK_BYTES).spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            for joined in ["s || s", "concat(s, s)", "array_to_string([s, s], '')"] {
                let below = "SELECT 'x' AS s FROM (VALUES (1)) t(v)".to_owned();
                let sql = (0..22).fold(below, |below, level| {
                    format!("SELECT {joined} AS s FROM ({below}) AS q{level}")
                });
                let refused = runtime.block_on(answer(&bounded_context(), &sql));
                let refused = refused.expect_err(&sql).to_string();
                assert!(refused.contains("Resources exhausted"), "{joined}: {refused}");
            }
        });
        asked.unwrap().join().unwrap();
    }

    #[tokio::test]
    async fn the_column_of_an_operator_has_the_name_of_the_operator() {
        let context = bounded_context();
        let plan = context.sql("SELECT a || 'x' FROM (VALUES ('y')) t(a)").await.unwrap();
        assert_eq!(plan.schema().field(0).name(), "t.a || Utf8(\"x\")");
    }
}
