//! Arrow's PyCapsule interface: streams and schemas out of the module, and streams into it.
//!
//! The interface is the C data interface of Arrow in capsules, so that no package of Python has to
//! know another: <https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html>.

use arrow_array::RecordBatchReader;
use arrow_array::ffi_stream::{ArrowArrayStreamReader, FFI_ArrowArrayStream};
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

/// The rows of another package's frame, which this call takes over.
///
/// # Errors
/// An object without the method `__arrow_c_stream__`, and an error of that method.
pub(crate) fn take_stream(rows: &Bound<'_, PyAny>) -> PyResult<ArrowArrayStreamReader> {
    if !rows.hasattr("__arrow_c_stream__")? {
        let kind = rows.get_type().name()?;
        return Err(wrong_argument(format!(
            "rows: {kind} is no Arrow stream (__arrow_c_stream__): give a frame of Polars or \
             pandas, a table of PyArrow, a relation of DuckDB or Rows"
        )));
    }
    let capsule = rows.call_method0("__arrow_c_stream__")?;
    let stream = capsule.cast::<PyCapsule>().map_err(|_| wrong_argument(NO_STREAM))?;
    let pointer = stream.pointer_checked(Some(c"arrow_array_stream"))?.as_ptr();
    // SAFETY: a capsule of this name points to a stream of the C interface, which lives as long as
    // the capsule does. The call moves the stream out and leaves a released one, as the interface
    // says that consumers do.
    let reader = unsafe { ArrowArrayStreamReader::from_raw(pointer.cast()) };
    reader.map_err(|error| wrong_argument(format!("rows: {error}")))
}

/// What is wrong with an object whose method gives no capsule.
const NO_STREAM: &str = "rows: its method __arrow_c_stream__ gives no capsule of a stream";
