//! The tests of the machine from outside, joined in one program, because linking each program of
//! tests takes seconds.
#![forbid(unsafe_code)]

mod membership;
mod node_keys;
mod offload;
mod pace;
