//! Where the messages of a running root come from, and a feed played for tests.
//!
//! | module | what it holds |
//! |---|---|
//! | [`settings`] | the section `[feed]` |
//! | [`input`] | feed files and the generator, by a schedule |
//! | [`intake`] | replay, live MoldUDP64, a program that publishes |
//! | [`player`] | a feed played as a live MoldUDP64 session |
#![forbid(unsafe_code)]

mod error;
#[doc(hidden)]
pub mod fuzzing;
pub mod input;
pub mod intake;
pub mod player;
pub mod settings;

pub use error::IntakeError;
pub use settings::{Feed, Synthetic};
