//! Scenarios, checkers and studies: the machines of evenfall, run in its simulator.
//!
//! A scenario builds a world and runs it; what comes out is a value. Checkers are separate from
//! scenarios and watch the same events; a study is a function that returns a table.
//!
//! | module | what it holds |
//! |---|---|
//! | [`multicast`] | the overlay: measured runs, fault campaigns, transcripts |
#![forbid(unsafe_code)]

pub mod multicast;
