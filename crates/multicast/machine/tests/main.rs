//! The tests of the machine from outside, joined in one program:
//! each program of tests is linked by itself, which takes seconds.
#![forbid(unsafe_code)]

mod membership;
mod offload;
mod pace;
