//! The survey of a pool of machines as processes, and placement experiments.
//!
//! | module | what it holds |
//! |---|---|
//! | [`settings`] | the section `[survey]`, and nodes with the role of an agent |
//! | [`agent`] | measures what surveyors order |
//! | [`surveyor`] | orders measurements, and hears their results |
//! | [`carrier`] | gRPC as a carrier of control messages |
//! | [`experiment`] | placement experiments: runs, their records, their report |
#![forbid(unsafe_code)]

pub mod agent;
pub mod carrier;
mod error;
pub mod experiment;
#[doc(hidden)]
pub mod fuzzing;
pub mod settings;
pub mod surveyor;

pub use error::SurveyError;
pub use settings::Settings;
