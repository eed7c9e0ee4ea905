//! Studies: tables and figures out of runs in the simulator, beside published numbers.
//!
//! A study is a function that returns a table. The scenes that it runs are those of
//! `evenfall-campaigns`, and four of its own: clocks, bulk reads, orders and trading.
//!
//! | module | what it holds |
//! |---|---|
//! | [`clock`] | clock synchronisation: errors and bounds of clocks, beside rivals |
//! | [`files`] | bulk reads: the choice of copy and path, beside rivals and a lower bound |
//! | [`orders`] | whose order is first at the exchange: sequencers, delivery clocks |
//! | [`placement`] | pools of machines, and planners compared on them |
//! | [`published`] | published measurements, to fit models and to judge them |
//! | [`shuffle`] | the figures of the shuffle |
//! | [`sort`] | the tables and figures of MilliSort and its queries |
//! | [`survey`] | what a plan costs in probes and time |
//! | [`tables`] | tables: hedging, shapes, modes, fairness by size, the price of P(F), one order |
//! | [`trading`] | four participants trade on a feed: what uneven delivery is worth |
#![forbid(unsafe_code)]

pub mod clock;
pub mod files;
pub mod orders;
pub mod placement;
pub mod published;
pub mod shuffle;
pub mod sort;
pub mod survey;
pub mod tables;
pub mod trading;
