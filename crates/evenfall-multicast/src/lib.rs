//! Fair multicast over cloud machines.
//!
//! | module | what it holds |
//! |---|---|
//! | [`fairness`] | the ledger that says how fair a run was |
#![forbid(unsafe_code)]

pub mod fairness;
