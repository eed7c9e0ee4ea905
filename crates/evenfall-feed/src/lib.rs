//! x
#![forbid(unsafe_code)]
pub mod arbiter;
pub mod error;
pub mod framed;
mod input;
pub mod itch;
pub mod lobster;
pub mod mold;
pub mod pace;
pub mod pcap;
pub mod sharding;
pub mod source;
pub mod synthetic;
mod zip;
pub use error::{Fault, FeedError};
pub use source::{Message, Source, open};
