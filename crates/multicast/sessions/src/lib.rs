//! The sessions of a feed: publishers that are processes of their own, and roots that may die.
//!
//! The overlay ([`evenfall_multicast_machine`]) has one root and takes its messages from the root's
//! owner. This crate puts machines without IO before and around that root.
//!
//! | module | what it holds |
//! |---|---|
//! | [`mod@line`] | publishers that are processes of their own, and outlive a root |
//! | [`standby`] | what voters agree on before a frame leaves, so that a root may die |
//! | [`candidate`] | a root and its voice among the voters, as one machine |
#![forbid(unsafe_code)]

pub mod candidate;
#[doc(hidden)]
pub mod fuzzing;
pub mod line;
pub mod standby;

pub use candidate::{Ballot, Candidate, CandidateEvent};
pub use evenfall_consensus_machine::ConsensusError;
pub use line::{Author, AuthorEvent, AuthorList, Lines, Reception, Wish};
pub use standby::{Entry, Sequence, Turnout};
