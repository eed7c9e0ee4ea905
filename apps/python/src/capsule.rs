//! Arrow's PyCapsule interface: streams and schemas out of the module.
//!
//! The interface is the C data interface of Arrow in capsules, so that no package of Python has to
//! know another: <https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html>.

use arrow_array::RecordBatchReader;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_schema::{Schema, ffi::FFI_ArrowSchema};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::errors::wrong_argument;

/// A stream that a consumer takes over. An untaken stream is released with its capsule.
pub(crate) fn stream_capsule<'py>(
    py: Python<'py>,
    reader: Box<dyn RecordBatchReader + Send>,
) -> PyResult<Bound<'py, PyCapsule>> {
    let stream = FFI_ArrowArrayStream::new(reader);
    PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
}

/// A schema that a consumer takes over.
pub(crate) fn schema_capsule<'py>(
    py: Python<'py>,
    schema: &Schema,
) -> PyResult<Bound<'py, PyCapsule>> {
    let schema = FFI_ArrowSchema::try_from(schema).map_err(|e| wrong_argument(e.to_string()))?;
    PyCapsule::new_with_value(py, schema, c"arrow_schema")
}
