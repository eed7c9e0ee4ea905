//! The C library of evenfall: `include/evenfall.h`.
//!
//! A program of C or C++ subscribes to a feed, publishes a feed as its root, or publishes through
//! roots that may die. The three are the faces `Subscriber`, `EmbeddedRoot` and `Publisher` of the
//! crate `evenfall`; this crate has only what C needs beside them:
//!
//! - A call returns a [`CallStatus`], and `evenfall_last_error` has the command line's sentence.
//! - Messages are lent until the next call of `evenfall_feed_poll`, so that no byte is copied.
//! - A descriptor that can be polled says that messages wait, for programs with their own loop.
//! - No panic crosses the border: it becomes `EVENFALL_PANICKED`.
//! - A handle that two threads use at once, or that a forked child uses, is refused.

mod feed;
mod guard;
mod publisher;
mod root;
mod shared;
mod status;
mod text;

pub use feed::{FeedHandle, FeedOptions, UpdateKind, UpdateView};
pub use publisher::{PublisherHandle, PublisherOptions};
pub use root::{ReceiverAddress, RootHandle, RootOptions};
pub use status::CallStatus;

/// The version of the library, such as "0.2.0".
#[unsafe(no_mangle)]
pub extern "C" fn evenfall_version() -> *const core::ffi::c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
