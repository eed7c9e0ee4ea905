//! The survey of a pool of machines as processes, and placement experiments.
//!
//! | module | what it holds |
//! |---|---|
//! | [`settings`] | the section `[survey]`, and nodes with the role of an agent |
//! | [`service`] | agents among the roles of a settings file |
//! | `agent` | measures what surveyors order |
//! | `surveyor` | orders measurements, and hears their results |
//! | `carrier` | gRPC as a carrier of control messages |
//! | `experiment` | placement experiments: runs, their records, their report |
//!
//! All but the settings need the feature `agents`, which brings gRPC.
#![forbid(unsafe_code)]

#[cfg(feature = "agents")]
pub mod agent;
#[cfg(feature = "agents")]
pub mod carrier;
#[cfg(feature = "agents")]
mod error;
#[cfg(feature = "agents")]
pub mod experiment;
#[cfg(all(feature = "agents", any(fuzzing, test)))]
pub mod fuzzing;
pub mod service;
pub mod settings;
#[cfg(feature = "agents")]
pub mod surveyor;

#[cfg(feature = "agents")]
pub use error::{CarrierError, SurveyError};
pub use settings::Settings;
