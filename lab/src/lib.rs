//! Scenarios, checkers and studies: the machines of evenfall, run in its simulator.
//!
//! A scenario builds a world and runs it, and its result is a value. Checkers are separate from
//! scenarios and watch the same events. A study is a function that returns a table.
//!
//! | module | what it holds |
//! |---|---|
//! | [`campaigns`] | the list of all fault campaigns |
//! | [`clock`] | clock synchronisation: errors and bounds of clocks, beside rivals |
//! | [`files`] | bulk reads: the choice of copy and path, beside rivals and a lower bound |
//! | [`multicast`] | the overlay: measured runs, fault campaigns, transcripts |
//! | [`order`] | Canopus under faults: one order, equal tables, linearizable reads |
//! | [`placement`] | pools of machines, and planners compared on them |
//! | [`model`] | models of clouds for studies: a file each, with the source of every number |
//! | [`published`] | published measurements, to fit models and to judge them |
//! | [`survey`] | live measurement: agents and a surveyor under faults |
//! | [`store`] | fault campaign of the store: torn disks and failing objects |
//! | [`shuffle`] | the exchange on a fat tree, its rivals, fault campaigns |
//! | `commands`, `fanout` | the program, with the feature `program` |
//! | [`studies`] | tables: hedging, shapes, modes, fairness by size, the price of P(F) |
#![forbid(unsafe_code)]

#[cfg(feature = "program")]
#[macro_use]
extern crate evenfall_runtime;

pub mod campaigns;
pub mod clock;
#[cfg(feature = "program")]
pub mod commands;
#[cfg(feature = "program")]
pub mod fanout;
pub mod files;
pub mod model;
pub mod multicast;
pub mod order;
pub mod placement;
pub mod published;
pub mod shuffle;
pub mod store;
pub mod studies;
pub mod survey;
