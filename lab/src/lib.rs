//! Scenarios, checkers and studies: the machines of evenfall, run in its simulator.
//!
//! A scenario builds a world and runs it; what comes out is a value. Checkers are separate from
//! scenarios and watch the same events; a study is a function that returns a table.
//!
//! | module | what it holds |
//! |---|---|
//! | [`campaigns`] | the list of all fault campaigns |
//! | [`multicast`] | the overlay: measured runs, fault campaigns, transcripts |
//! | [`placement`] | pools of machines, planners compared on them |
//! | [`model`] | the clouds that studies run on: a file each, every number with its source |
//! | [`published`] | what others have measured, to fit models to and to judge them |
//! | [`survey`] | live measurement: agents and a surveyor under faults |
//! | [`store`] | the store on disks that tear and objects that fail: acknowledged means readable |
//! | [`shuffle`] | the exchange on a fat tree, its rivals, fault campaigns |
//! | [`studies`] | tables: hedging, shapes, modes, fairness by size, the price of P(F) |
#![forbid(unsafe_code)]

#[macro_use]
extern crate evenfall_runtime;

pub mod campaigns;
pub mod commands;
pub mod fanout;
pub mod model;
pub mod multicast;
pub mod placement;
pub mod published;
pub mod shuffle;
pub mod store;
pub mod studies;
pub mod survey;
