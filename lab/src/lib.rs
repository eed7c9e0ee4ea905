//! The program `evenfall-lab`: commands for campaigns and studies, and benchmarks of this machine.
//!
//! | module | what it holds |
//! |---|---|
//! | [`commands`] | the commands of the program |
//! | [`controller`] | rules and counters of real switches by OpenFlow |
//! | [`fanout`] | the cost of a copy of a message |
//! | [`product`] | where the program evenfall is, for instruments that measure its processes |
//! | [`signed`] | a signed feed under attack, and what signatures cost |
//! | [`sockets`] | bulk reads over TCP through namespaces of this machine |
#![forbid(unsafe_code)]

#[macro_use]
extern crate evenfall_runtime;

pub mod commands;
pub mod controller;
pub mod fanout;
pub mod product;
pub mod signed;
pub mod sockets;
