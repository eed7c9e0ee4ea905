//! The exchange of everything with everyone: the all-to-all that bounds sorts and joins, and the
//! operations that group communication is made of.
//!
//! The protocol is that of a thesis on low-latency shuffles (chapters 3.1 to 3.5). Senders send
//! from the message with the greatest remaining fraction, so that all end together; receivers
//! grant, more than one round trip ahead, in windows in proportion to what is missing. What is lost
//! is asked for again by the receiver. An operation ends whole and once, or fails and names a rank.
//!
//! | module | what it holds |
//! |---|---|
//! | [`Exchange`] | the machine: operations, staging, ended ones, pace |
//! | [`group`] | broadcast, gather, all-gather, all-reduce, barrier, shuffle: as calls |
//! | [`config`] | every knob, also those that make rivals of it |
//! | [`wire`] | the datagrams, drawn |
//! | [`matrix`] | who sends what to whom, and what that takes at least |
//! | [`workload`] | matrices to measure with |
//!
//! Over UDP, with blocking calls: `evenfall_node::group`; four processes that shuffle are in
//! `crates/evenfall-node/examples/shuffle.rs`.
//!
//! One rank alone gets its own message back; with more, a driver carries the datagrams:
//!
//! ```
//! use bytes::Bytes;
//! use evenfall_core::{Machine, Timestamp};
//! use evenfall_shuffle::{Config, Event, Exchange, Plan};
//!
//! let mut exchange = Exchange::new(Config::default());
//! let members = vec!["127.0.0.1:7000".parse()?];
//! let plan = Plan::shuffle(1, 0, members, vec![Bytes::from_static(b"to myself")]);
//! exchange.start(Timestamp::ZERO, plan)?;
//! let body = Bytes::from_static(b"to myself");
//! assert_eq!(exchange.poll_event(), Some(Event::Message { operation: 1, from: 0, body }));
//! assert_eq!(exchange.poll_event(), Some(Event::Completed { operation: 1 }));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod config;
pub mod error;
mod exchange;
pub mod group;
pub mod matrix;
mod operation;
mod priority;
mod receiver;
mod reduce;
mod sender;
pub mod wire;
pub mod workload;

pub use config::{Config, Pace, Policy, Unscheduled, Window};
pub use error::{Failure, StartError};
pub use exchange::{Counters, Event, Exchange, Outbound, Plan};
pub use matrix::{Links, Matrix, MatrixError};
pub use workload::Normal;
