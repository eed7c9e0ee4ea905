//! The tests of the machine, joined in one program.
#![forbid(unsafe_code)]

mod example;
mod log;
mod model;
mod wire;
