//! The intakes of a running root, and a player that sends a feed for tests.
//!
//! | module | what it holds |
//! |---|---|
//! | [`intake`] | replay, live MoldUDP64, a program that publishes |
//! | `settings` | the section `[feed]` (feature `feeds`) |
//! | `input` | feed files and the generator, by a schedule (feature `feeds`) |
//! | `player` | a feed played as a live MoldUDP64 session (feature `feeds`) |
//! | `tap` | a participant behind a gateway or a venue: takes a feed, asks again (feature `feeds`) |
//!
//! A program that publishes its own messages leaves the feature `feeds` out.
#![forbid(unsafe_code)]

mod error;
#[cfg(all(feature = "feeds", any(fuzzing, test)))]
pub mod fuzzing;
#[cfg(feature = "feeds")]
pub mod input;
pub mod intake;
#[cfg(feature = "feeds")]
pub mod player;
#[cfg(feature = "feeds")]
pub mod settings;
#[cfg(feature = "feeds")]
pub mod tap;

pub use error::IntakeError;
#[cfg(feature = "feeds")]
pub use settings::{Feed, Synthetic};
