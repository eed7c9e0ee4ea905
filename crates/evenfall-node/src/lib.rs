//! What one evenfall process runs.
//!
//! | module | what it holds |
//! |---|---|
//! | [`runlog`] | the binary file in which each process of a run writes down what it did and when |
//! | [`report`] | reads the run logs of all processes, judges the run, writes `report.html` |
#![forbid(unsafe_code)]

pub mod report;
pub mod runlog;
