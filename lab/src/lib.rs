//! The program `evenfall-lab`: commands for campaigns and studies, and benchmarks of this machine.
//!
//! | module | what it holds |
//! |---|---|
//! | [`commands`] | the commands of the program |
//! | [`controller`] | rules and counters of real switches by OpenFlow |
//! | [`fanout`] | the cost of a copy of a message |
//! | [`laboratory`] | nodes with planted clocks on this machine, where the truth is known |
//! | [`networks`] | hosts of this machine in racks and fat trees, with links of limited rate |
//! | [`openflow`] | what the controller says to a switch: messages and a session |
//! | [`product`] | where the program evenfall is, for instruments that measure its processes |
//! | [`receiving`] | what a message costs a receiver, and how often a role calls the allocator |
//! | [`signed`] | a signed feed under attack, and what signatures cost |
//! | [`sockets`] | bulk reads over TCP through namespaces of this machine |
#![forbid(unsafe_code)]
// `println!` would end the program with a panic when nobody reads; `say!` and `aside!` do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
extern crate evenfall_runtime;

use evenfall_host::allocations::CountingAllocator;

pub mod commands;
pub mod controller;
pub mod fanout;
pub mod laboratory;
pub mod networks;
pub mod openflow;
pub mod product;
pub mod receiving;
pub mod signed;
pub mod sockets;

/// Counts the calls of the allocator, for measurements of a frame.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
