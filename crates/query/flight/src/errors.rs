//! Errors of the engine as states of gRPC, in the engine's own sentences.

use arrow_flight::error::FlightError;
use datafusion::common::DataFusionError;
use evenfall_query_sql::statement_error;
use tonic::{Code, Status};

/// An error of a statement, with the line that it points at.
pub(crate) fn statement_status(error: &DataFusionError, sql: &str) -> Status {
    Status::new(code_of(error.find_root()), statement_error(error, sql))
}

fn code_of(root: &DataFusionError) -> Code {
    match root {
        DataFusionError::SQL(..)
        | DataFusionError::Plan(_)
        | DataFusionError::SchemaError(..)
        | DataFusionError::ArrowError(..)
        | DataFusionError::Execution(_) => Code::InvalidArgument,
        DataFusionError::NotImplemented(_) => Code::Unimplemented,
        DataFusionError::ResourcesExhausted(_) => Code::ResourceExhausted,
        // The store, or a server that is gone.
        DataFusionError::External(_) | DataFusionError::IoError(_) => Code::Unavailable,
        _ => Code::Internal,
    }
}

/// An error of encoding or decoding Arrow data.
pub(crate) fn arrow_status(error: FlightError) -> Status {
    match error {
        FlightError::Tonic(status) => *status,
        other => Status::invalid_argument(other.to_string()),
    }
}
