//! Functions of time that traders ask for and DataFusion lacks.

use std::sync::Arc;

use arrow::array::{Array as _, ArrayRef, AsArray as _, Float64Array, Int64Array, ListArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, FieldRef, Float64Type, Int64Type, IntervalUnit, TimeUnit};
use datafusion::common::{Result, ScalarValue, exec_err, plan_err};
use datafusion::functions::datetime::date_bin;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, ColumnarValue, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};

/// The scalar functions.
pub(crate) fn scalar_functions() -> Vec<ScalarUDF> {
    vec![TimeBucket { signature: Signature::user_defined(Volatility::Immutable) }.into()]
}

/// The aggregates.
pub(crate) fn aggregate_functions() -> Vec<AggregateUDF> {
    vec![Twap { signature: Signature::user_defined(Volatility::Immutable) }.into()]
}

/// `time_bucket(width, time)`: the beginning of the bucket that a time lies in, counted from 1970.
///
/// Of a timestamp the width is an interval; of whole numbers (`ts`) it is a whole number.
#[derive(Debug, PartialEq, Eq, Hash)]
struct TimeBucket {
    signature: Signature,
}

impl ScalarUDFImpl for TimeBucket {
    fn name(&self) -> &str {
        "time_bucket"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, args: &[DataType]) -> Result<DataType> {
        Ok(args[1].clone())
    }

    fn coerce_types(&self, args: &[DataType]) -> Result<Vec<DataType>> {
        let [_, time] = args else {
            return plan_err!(
                "time_bucket takes a width and a time, as in time_bucket('1 minute', time)"
            );
        };
        match time {
            kind if kind.is_integer() => Ok(vec![DataType::Int64, DataType::Int64]),
            DataType::Timestamp(_, zone) => Ok(vec![
                DataType::Interval(IntervalUnit::MonthDayNano),
                DataType::Timestamp(TimeUnit::Nanosecond, zone.clone()),
            ]),
            other => plan_err!("time_bucket takes a timestamp or a whole number, not {other}"),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if !matches!(args.args[1].data_type(), DataType::Int64) {
            return date_bin().inner().invoke_with_args(args);
        }
        let ColumnarValue::Scalar(ScalarValue::Int64(Some(width))) = args.args[0] else {
            return exec_err!("time_bucket takes one width for all rows");
        };
        if width <= 0 {
            return exec_err!("the width of time_bucket is {width}: it must be 1 or more");
        }
        let times = args.args[1].to_array(args.number_rows)?;
        let buckets = times.as_primitive::<Int64Type>();
        let buckets: Int64Array = buckets.unary(|time| time - time.rem_euclid(width));
        Ok(ColumnarValue::Array(Arc::new(buckets)))
    }
}

/// `twap(price, time)`: the mean price, weighted by how long each price stood until the next one.
///
/// The last price stood for no time that is known, so it has no weight. When all times are equal,
/// the last price is the answer.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Twap {
    signature: Signature,
}

fn list_field(name: &str, kind: DataType) -> FieldRef {
    let item = Arc::new(Field::new_list_field(kind, true));
    Arc::new(Field::new(name, DataType::List(item), true))
}

impl AggregateUDFImpl for Twap {
    fn name(&self) -> &str {
        "twap"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Float64)
    }

    fn coerce_types(&self, args: &[DataType]) -> Result<Vec<DataType>> {
        let [price, time] = args else { return plan_err!("twap takes a price and a time") };
        if !price.is_numeric() {
            return plan_err!("twap takes a price that is a number, not {price}");
        }
        match time {
            kind if kind.is_integer() => Ok(vec![DataType::Float64, DataType::Int64]),
            DataType::Timestamp(_, zone) => {
                Ok(vec![DataType::Float64, DataType::Timestamp(TimeUnit::Nanosecond, zone.clone())])
            }
            other => plan_err!("twap takes a timestamp or a whole number as time, not {other}"),
        }
    }

    fn accumulator(&self, _: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(TimedPrices::default()))
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        let name = |part: &str| format!("{}[{part}]", args.name);
        Ok(vec![
            list_field(&name("times"), DataType::Int64),
            list_field(&name("prices"), DataType::Float64),
        ])
    }
}

/// Prices with their times, sorted when the answer is asked for.
///
/// The rows of a group come in any order, so all of them are kept until then: 16 bytes a row,
/// counted against the memory of the query.
#[derive(Debug, Default)]
struct TimedPrices {
    rows: Vec<(i64, f64)>,
}

impl TimedPrices {
    fn add(&mut self, times: &Int64Array, prices: &Float64Array) {
        let pairs = times.iter().zip(prices.iter());
        self.rows.extend(pairs.filter_map(|(time, price)| Some((time?, price?))));
    }
}

impl Accumulator for TimedPrices {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let times = arrow::compute::cast(&values[1], &DataType::Int64)?;
        self.add(times.as_primitive(), values[0].as_primitive());
        Ok(())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        // The sort is stable, so that the last of equal times is the one that stood.
        self.rows.sort_by_key(|(time, _)| *time);
        let (mut weighted, mut total) = (0.0, 0.0);
        for pair in self.rows.windows(2) {
            let span = (i128::from(pair[1].0) - i128::from(pair[0].0)) as f64;
            weighted += pair[0].1 * span;
            total += span;
        }
        let last = self.rows.last().map(|(_, price)| *price);
        Ok(ScalarValue::Float64(if total > 0.0 { Some(weighted / total) } else { last }))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.rows.capacity() * size_of::<(i64, f64)>()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let times: Int64Array = self.rows.iter().map(|(time, _)| Some(*time)).collect();
        let prices: Float64Array = self.rows.iter().map(|(_, price)| Some(*price)).collect();
        let one_list = |values: ArrayRef| -> Result<ScalarValue> {
            let item = Arc::new(Field::new_list_field(values.data_type().clone(), true));
            let offsets = OffsetBuffer::from_lengths([values.len()]);
            Ok(ScalarValue::List(Arc::new(ListArray::try_new(item, offsets, values, None)?)))
        };
        Ok(vec![one_list(Arc::new(times))?, one_list(Arc::new(prices))?])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let (times, prices) = (states[0].as_list::<i32>(), states[1].as_list::<i32>());
        for row in (0..times.len()).filter(|row| times.is_valid(*row)) {
            let (times, prices) = (times.value(row), prices.value(row));
            self.add(times.as_primitive::<Int64Type>(), prices.as_primitive::<Float64Type>());
        }
        Ok(())
    }
}
