//! Parameters that come in, and rows that go out.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use datafusion::common::{ParamValues, ScalarValue};
use pgwire::api::Type;
use pgwire::api::portal::Portal;
use pgwire::error::{PgWireError, PgWireResult};

use crate::errors::plain_error;
use crate::prepared::Prepared;

/// The type that a column leaves by. PostgreSQL has no unsigned integers, and a driver that reads
/// nanoseconds as digits of its own would be wrong: psycopg reads `.000155705` as `.155705`.
fn leaves_as(kind: &DataType) -> DataType {
    match kind {
        DataType::UInt8 | DataType::UInt16 => DataType::Int32,
        DataType::UInt32 | DataType::UInt64 => DataType::Int64,
        DataType::Utf8View | DataType::LargeUtf8 => DataType::Utf8,
        DataType::BinaryView | DataType::LargeBinary | DataType::FixedSizeBinary(_) => {
            DataType::Binary
        }
        DataType::Timestamp(_, zone) => DataType::Timestamp(TimeUnit::Microsecond, zone.clone()),
        DataType::Null => DataType::Utf8,
        other => other.clone(),
    }
}

/// The schema that a client sees.
pub(crate) fn outgoing_schema(schema: &Schema) -> SchemaRef {
    let fields = schema.fields().iter().map(|field| {
        let kind = leaves_as(field.data_type());
        Field::clone(field).with_data_type(kind)
    });
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// A batch in the schema that a client sees. Digits beyond the sixth are cut, not rounded, so that
/// a row never moves to a later moment.
///
/// # Errors
/// An unsigned number above the greatest bigint.
pub(crate) fn outgoing_batch(batch: &RecordBatch, schema: &SchemaRef) -> PgWireResult<RecordBatch> {
    let columns = batch.columns().iter().zip(schema.fields());
    let columns = columns.map(|(column, field)| -> PgWireResult<ArrayRef> {
        if column.data_type() == field.data_type() {
            return Ok(Arc::clone(column));
        }
        if let DataType::Timestamp(TimeUnit::Nanosecond, _) = column.data_type() {
            return microseconds(column, field.data_type());
        }
        let options = arrow::compute::CastOptions { safe: false, ..Default::default() };
        arrow::compute::cast_with_options(column, field.data_type(), &options)
            .map_err(|error| plain_error("22003", error))
    });
    let columns = columns.collect::<PgWireResult<Vec<_>>>()?;
    let rows = arrow::array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &rows)
        .map_err(|error| plain_error("XX000", error))
}

fn microseconds(column: &ArrayRef, kind: &DataType) -> PgWireResult<ArrayRef> {
    use arrow::array::{Array as _, AsArray as _, Int64Array};
    use arrow::datatypes::Int64Type;
    let failed = |error| plain_error("XX000", error);
    let ns = arrow::compute::cast(column, &DataType::Int64).map_err(failed)?;
    // Times before 1970 are cut towards the past as well.
    let us: Int64Array = ns.as_primitive::<Int64Type>().unary(|ns| ns.div_euclid(1_000));
    arrow::compute::cast(&(Arc::new(us) as ArrayRef), kind).map_err(failed).inspect(|times| {
        debug_assert_eq!(times.len(), column.len());
    })
}

/// The values of a bound statement's parameters.
///
/// # Errors
/// A value that does not have the type of its parameter.
pub(crate) fn bind_parameters(portal: &Portal<Prepared>) -> PgWireResult<ParamValues> {
    let stored = &portal.statement;
    let values = (0..portal.parameters.len()).map(|at| {
        // The client's word for a type goes before the statement's: its bytes are of that type.
        let said = stored.parameter_types.get(at).cloned().flatten();
        let said = said.filter(|kind| *kind != Type::UNKNOWN);
        let kind = said.or_else(|| stored.statement.parameter_types.get(at).cloned());
        bind_parameter(portal, at, &kind.unwrap_or(Type::TEXT))
    });
    let values = values.collect::<PgWireResult<Vec<ScalarValue>>>()?;
    Ok(ParamValues::from(values))
}

fn bind_parameter(portal: &Portal<Prepared>, at: usize, kind: &Type) -> PgWireResult<ScalarValue> {
    Ok(match *kind {
        Type::BOOL => ScalarValue::Boolean(portal.parameter::<bool>(at, kind)?),
        Type::INT2 => ScalarValue::Int16(portal.parameter::<i16>(at, kind)?),
        Type::INT4 => ScalarValue::Int32(portal.parameter::<i32>(at, kind)?),
        Type::INT8 => ScalarValue::Int64(portal.parameter::<i64>(at, kind)?),
        Type::FLOAT4 => ScalarValue::Float32(portal.parameter::<f32>(at, kind)?),
        Type::FLOAT8 => ScalarValue::Float64(portal.parameter::<f64>(at, kind)?),
        Type::TIMESTAMP => {
            let time = portal.parameter::<chrono::NaiveDateTime>(at, kind)?;
            ScalarValue::TimestampMicrosecond(
                time.map(|time| time.and_utc().timestamp_micros()),
                None,
            )
        }
        Type::TIMESTAMPTZ => {
            let time = portal.parameter::<chrono::DateTime<chrono::FixedOffset>>(at, kind)?;
            let us = time.map(|time| time.timestamp_micros());
            ScalarValue::TimestampMicrosecond(us, Some("UTC".into()))
        }
        Type::DATE => {
            let day = portal.parameter::<chrono::NaiveDate>(at, kind)?;
            let epoch = chrono::NaiveDate::from_ymd_opt(1970, 1, 1).expect("a day");
            ScalarValue::Date32(day.map(|day| (day - epoch).num_days() as i32))
        }
        Type::NUMERIC => {
            let number = portal.parameter::<rust_decimal::Decimal>(at, kind)?;
            // 38 digits hold every decimal of the client's type, whose scale is 28 at most.
            let digits = number.map(|number| number.mantissa());
            ScalarValue::Decimal128(digits, 38, number.map_or(0, |number| number.scale() as i8))
        }
        // Whatever else a client sends is text, which the planner casts where it can.
        _ => ScalarValue::Utf8(portal.parameter::<String>(at, &Type::TEXT)?),
    })
}

/// The type in which a parameter is asked for.
pub(crate) fn parameter_type(kind: &DataType) -> Type {
    match kind {
        DataType::Boolean => Type::BOOL,
        DataType::Int8 | DataType::UInt8 | DataType::Int16 => Type::INT2,
        DataType::UInt16 | DataType::Int32 => Type::INT4,
        DataType::UInt32 | DataType::Int64 | DataType::UInt64 => Type::INT8,
        DataType::Float32 => Type::FLOAT4,
        DataType::Float64 => Type::FLOAT8,
        DataType::Timestamp(_, None) => Type::TIMESTAMP,
        DataType::Timestamp(_, Some(_)) => Type::TIMESTAMPTZ,
        DataType::Date32 => Type::DATE,
        DataType::Decimal128(..) => Type::NUMERIC,
        _ => Type::TEXT,
    }
}

/// An error in another layer's words.
pub(crate) fn wrap_error(error: impl std::error::Error + Send + Sync + 'static) -> PgWireError {
    PgWireError::ApiError(Box::new(error))
}
