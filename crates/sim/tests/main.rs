//! The tests of the simulator, joined in one program:
//! each program of tests is linked by itself, which takes seconds.
#![forbid(unsafe_code)]

mod campaign;
mod clocks;
mod common;
mod cores;
mod durable;
mod faults;
mod fluid;
mod hosts;
mod network;
mod runs;
