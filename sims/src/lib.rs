//! Scenarios, checkers and studies: the machines of evenfall, run in its simulator.
//!
//! A scenario builds a world and runs it; what comes out is a value. Checkers are separate from
//! scenarios and watch the same events; a study is a function that returns a table.
//!
//! | module | what it holds |
//! |---|---|
//! | [`multicast`] | the overlay: measured runs, fault campaigns, transcripts |
//! | [`profile`] | the cloud that studies run on, and where its constants come from |
//! | [`shuffle`] | the exchange on a fat tree, its rivals, fault campaigns |
//! | [`studies`] | tables: hedging, shapes, modes, fairness by size, the price of P(F) |
#![forbid(unsafe_code)]

pub mod multicast;
pub mod profile;
pub mod shuffle;
pub mod studies;
