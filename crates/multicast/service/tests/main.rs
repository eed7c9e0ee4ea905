//! The tests of the services over sockets, joined in one program, because linking each program of
//! tests takes seconds.
#![forbid(unsafe_code)]

mod common;
mod embedded_root;
mod live_feed;
mod publisher;
#[cfg(feature = "signing")]
mod signed_feed;
mod tree_threads;
