//! Errors of placement experiments.

use std::io;
use std::path::{Path, PathBuf};

use crate::SurveyError;

/// Why an experiment cannot begin or continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExperimentError {
    /// A file of the experiment cannot be read or written.
    #[error("{}: {error}", .0.display(), error = .1)]
    File(PathBuf, io::Error),
    /// A file of the experiment is not what this version writes.
    #[error("{}: {error}; remove the file to run it again", .0.display(), error = .1)]
    Json(PathBuf, serde_json::Error),
    /// The agents cannot be asked.
    #[error(transparent)]
    Survey(#[from] SurveyError),
    /// The experiment, its pool or its results are not as they must be: where, what, what to do.
    #[error("{0}")]
    Refused(String),
}

impl ExperimentError {
    /// For `map_err`: what the system says of this file.
    pub(super) fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::File(path.to_owned(), error)
    }

    /// For `map_err`: what the reader of JSON says of this file.
    pub(super) fn json(path: &Path) -> impl FnOnce(serde_json::Error) -> Self {
        move |error| Self::Json(path.to_owned(), error)
    }
}

impl From<String> for ExperimentError {
    fn from(why: String) -> Self {
        Self::Refused(why)
    }
}
