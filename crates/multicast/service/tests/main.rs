//! The tests of the services over sockets, joined in one program:
//! each program of tests is linked by itself, which takes seconds.
#![forbid(unsafe_code)]

mod common;
mod live_feed;
mod publisher;
