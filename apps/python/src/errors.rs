//! Errors as exceptions of `evenfall.errors`, by their kind.

use evenfall::embedded_root::EmbeddedRootError;
use evenfall::publisher::PublisherError;
use evenfall::recording::TableName;
use evenfall::store::StoreError;
use evenfall::subscriber::{RoleError, SubscribeError};
use evenfall_feed_service::input::InputError;
use evenfall_multicast_service::report::ReportError;
use evenfall_runtime::SettingsError;
use evenfall_store_recording::intake::IntakeFailure;
use evenfall_store_recording::tables::TableError;
use pyo3::PyErr;

/// The classes of exceptions, which Python defines, because some have two bases.
pub(crate) mod kinds {
    use pyo3::import_exception;

    import_exception!(evenfall.errors, FeedError);
    import_exception!(evenfall.errors, ForkedError);
    import_exception!(evenfall.errors, NotFoundError);
    import_exception!(evenfall.errors, QueryError);
    import_exception!(evenfall.errors, RunError);
    import_exception!(evenfall.errors, SettingsError);
    import_exception!(evenfall.errors, StoreError);
    import_exception!(evenfall.errors, TooSlowError);
}

pub(crate) use evenfall_runtime::causes::with_causes as sentence;

/// What a mistake in an argument raises.
pub(crate) fn wrong_argument(words: impl Into<String>) -> PyErr {
    kinds::SettingsError::new_err(words.into())
}

/// What a name raises that nothing has.
pub(crate) fn not_found(words: impl Into<String>) -> PyErr {
    kinds::NotFoundError::new_err(words.into())
}

/// Why rows could not be read.
#[derive(Debug)]
pub(crate) enum RowsError {
    /// An error of a table.
    Table(TableError),
    /// A run could not be judged.
    Report(ReportError),
    /// A name that nothing has, in words.
    NotFound(String),
    /// A statement or its program failed, in words.
    Query(String),
}

impl std::fmt::Display for RowsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Table(error) => f.write_str(&sentence(error)),
            Self::Report(error) => f.write_str(&sentence(error)),
            Self::NotFound(words) | Self::Query(words) => f.write_str(words),
        }
    }
}

impl<E: Into<TableError>> From<E> for RowsError {
    fn from(error: E) -> Self {
        Self::Table(error.into())
    }
}

impl From<RowsError> for PyErr {
    fn from(error: RowsError) -> Self {
        let words = error.to_string();
        match error {
            RowsError::Table(TableError::UnknownTable(TableName { .. }))
            | RowsError::NotFound(_) => not_found(words),
            RowsError::Table(_) => kinds::StoreError::new_err(words),
            RowsError::Report(_) => kinds::RunError::new_err(words),
            RowsError::Query(_) => kinds::QueryError::new_err(words),
        }
    }
}

/// An error of the store.
pub(crate) fn store_error(error: &StoreError) -> PyErr {
    kinds::StoreError::new_err(sentence(error))
}

/// An error of a feed file or of its recording.
pub(crate) fn intake_error(error: &IntakeFailure) -> PyErr {
    let words = sentence(error);
    match error {
        IntakeFailure::Store(_) => kinds::StoreError::new_err(words),
        IntakeFailure::UnknownDay
        | IntakeFailure::NameTaken(_)
        | IntakeFailure::WrongName { .. } => wrong_argument(words),
        _ => kinds::FeedError::new_err(words),
    }
}

/// An error of opening a feed file.
pub(crate) fn input_error(error: &InputError) -> PyErr {
    let words = sentence(error);
    match error {
        InputError::Open(_, cause) if cause.kind() == std::io::ErrorKind::NotFound => {
            not_found(words)
        }
        InputError::Format(_) | InputError::Setting(_) => wrong_argument(words),
        _ => kinds::FeedError::new_err(words),
    }
}

/// An error of settings.
pub(crate) fn settings_error(error: &SettingsError) -> PyErr {
    wrong_argument(sentence(error))
}

fn role_error(error: &RoleError) -> PyErr {
    kinds::RunError::new_err(sentence(error))
}

/// An error of a subscription.
pub(crate) fn subscribe_error(error: &SubscribeError) -> PyErr {
    match error {
        SubscribeError::Role(error) => role_error(error),
        SubscribeError::TooSlow { .. } => kinds::TooSlowError::new_err(sentence(error)),
        _ => wrong_argument(sentence(error)),
    }
}

/// An error of a root in a program.
pub(crate) fn root_error(error: &EmbeddedRootError) -> PyErr {
    match error {
        EmbeddedRootError::TooLong { .. } | EmbeddedRootError::NotARoot(_) => {
            wrong_argument(sentence(error))
        }
        EmbeddedRootError::Role(error) => role_error(error),
        _ => kinds::RunError::new_err(sentence(error)),
    }
}

/// An error of a publisher.
pub(crate) fn publisher_error(error: &PublisherError) -> PyErr {
    match error {
        PublisherError::TooLong { .. } => wrong_argument(sentence(error)),
        PublisherError::Role(error) => role_error(error),
        _ => kinds::RunError::new_err(sentence(error)),
    }
}
