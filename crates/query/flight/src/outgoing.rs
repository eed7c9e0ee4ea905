//! Rows and schemas as they leave: the engine's types, but for views.
//!
//! The engine holds text as views into shared buffers. Several drivers do not know that layout, so
//! that text leaves as utf8. Everything else leaves as it is.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::error::ArrowError;

/// The type that a column leaves by.
fn leaves_as(kind: &DataType) -> DataType {
    match kind {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::ListView(item) | DataType::List(item) => DataType::List(field_leaves_as(item)),
        DataType::LargeListView(item) | DataType::LargeList(item) => {
            DataType::LargeList(field_leaves_as(item))
        }
        DataType::FixedSizeList(item, size) => {
            DataType::FixedSizeList(field_leaves_as(item), *size)
        }
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(field_leaves_as).collect()),
        DataType::Dictionary(_, value) => leaves_as(value),
        other => other.clone(),
    }
}

fn field_leaves_as(field: &FieldRef) -> FieldRef {
    let kind = leaves_as(field.data_type());
    Arc::new(Field::new(field.name(), kind, field.is_nullable()))
}

/// The schema that a client sees. Marks of the engine stay inside.
pub(crate) fn outgoing_schema(schema: &Schema) -> SchemaRef {
    Arc::new(Schema::new(schema.fields().iter().map(field_leaves_as).collect::<Vec<_>>()))
}

/// A batch in the schema that a client sees.
///
/// # Errors
/// Text that does not fit: more than 2 GiB in a column of a batch.
pub(crate) fn outgoing_batch(
    batch: &RecordBatch,
    schema: &SchemaRef,
) -> Result<RecordBatch, ArrowError> {
    let columns = batch.columns().iter().zip(schema.fields());
    let columns = columns.map(|(column, field)| {
        if column.data_type() == field.data_type() {
            return Ok(Arc::clone(column));
        }
        arrow::compute::cast(column, field.data_type())
    });
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    let rows = arrow::array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &rows)
}
