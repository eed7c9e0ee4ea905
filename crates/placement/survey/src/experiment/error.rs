//! Errors of placement experiments.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::SurveyError;

/// Why an experiment cannot begin or continue.
#[derive(Debug)]
#[non_exhaustive]
pub enum ExperimentError {
    /// A file of the experiment cannot be read or written.
    File(PathBuf, io::Error),
    /// A file of the experiment is not what this version writes.
    Json(PathBuf, serde_json::Error),
    /// The agents cannot be asked.
    Survey(SurveyError),
    /// The experiment, its pool or its results are not as they must be: where, what, what to do.
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

impl fmt::Display for ExperimentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Json(path, error) => {
                write!(f, "{}: {error}; remove the file to run it again", path.display())
            }
            Self::Survey(error) => write!(f, "{error}"),
            Self::Refused(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for ExperimentError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::File(_, error) => std::error::Error::source(error),
            Self::Json(_, error) => std::error::Error::source(error),
            Self::Survey(error) => std::error::Error::source(error),
            Self::Refused(_) => None,
        }
    }
}

impl From<String> for ExperimentError {
    fn from(why: String) -> Self {
        Self::Refused(why)
    }
}

impl From<SurveyError> for ExperimentError {
    fn from(error: SurveyError) -> Self {
        Self::Survey(error)
    }
}
