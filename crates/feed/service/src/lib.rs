//! Where the messages of a running root come from, and a feed played for tests.
//!
//! | module | what it holds |
//! |---|---|
//! | [`intake`] | replay, live MoldUDP64, a program that publishes |
//! | `settings` | the section `[feed]` (feature `feeds`) |
//! | `input` | feed files and the generator, by a schedule (feature `feeds`) |
//! | `player` | a feed played as a live MoldUDP64 session (feature `feeds`) |
//!
//! A program that publishes its own messages leaves the feature `feeds` out.
#![forbid(unsafe_code)]

mod error;
#[cfg(feature = "feeds")]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(feature = "feeds")]
pub mod input;
pub mod intake;
#[cfg(feature = "feeds")]
pub mod player;
#[cfg(feature = "feeds")]
pub mod settings;

pub use error::IntakeError;
#[cfg(feature = "feeds")]
pub use settings::{Feed, Synthetic};
