//! Placement experiments. One file states which trees are built, by which strategies, from which
//! roots and how often. Every run leaves a JSON file with all of its measurements, and a report
//! draws the runs.
//!
//! ```text
//!  experiment.toml --Experiment--> RunPlan, RunPlan, ...      (run x strategy x root x repetition)
//!                                     |
//!        recorded | simulated | live  v
//!            Field  <--Want--  ExperimentRun  --> RunRecord --> runs/<id>.json --> report.html
//!                   --Found-->
//! ```
//!
//! A [`ExperimentRun`] is one run. A course asks for measurements and takes their results, like the
//! tree builder inside it. A [`RunField`] is the source of the delays: a recorded file
//! ([`Recorded`]), running agents ([`Live`]), or the simulator, which drives the same
//! [`SurveyedRuns`] as the agents do.
//!
//! | module | what it holds |
//! |---|---|
//! | [`mod@file`] | the experiment file, checked, and the runs that follow from it |
//! | [`course`] | one run, from its first measurement to its record |
//! | [`field`] | where runs take place |
//! | [`record`] | the JSON of a run |
//! | [`execute`] | runs one after another, those that are complete left out |
//! | [`error`] | [`ExperimentError`] |
//! | [`report`] | the page of an experiment |
//! | [`served`] | the runs of another machine, and how they come home |

#[cfg(feature = "program")]
pub mod command;
pub mod course;
pub mod error;
pub mod execute;
pub mod field;
pub mod file;
pub mod record;
pub mod report;
pub mod served;
#[cfg(test)]
mod tests;

pub use course::{ExperimentRun, Want};
pub use error::ExperimentError;
pub use execute::{ExecutionCounts, RunsDirectory};
pub use field::{Live, Recorded, RunField, SurveyedRuns};
pub use file::{Experiment, RunPlan};
pub use record::RunRecord;
