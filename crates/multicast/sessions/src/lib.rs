//! The sessions of a feed: publishers that are processes of their own, and roots that may die.
//!
//! The overlay ([`evenfall_multicast_machine`]) has one root and takes its messages from the root's
//! owner. This crate puts machines without IO before and around that root.
//!
//! | module | what it holds |
//! |---|---|
//! | [`producer`] | publishers that are processes of their own, and outlive a root |
//! | [`standby`] | what voters agree on before a frame leaves, so that a root may die |
//! | [`replicated_root`] | a root and its voter among the voters, as one machine |
#![forbid(unsafe_code)]

#[cfg(any(fuzzing, test))]
pub mod fuzzing;
pub mod producer;
pub mod replicated_root;
pub mod standby;

pub use evenfall_consensus_machine::ConsensusError;
pub use producer::{
    ProducerEvent, ProducerIngress, ProducerList, ProducerSession, ProducerTable, SessionChange,
    letter_key,
};
pub use replicated_root::{ReplicatedRoot, ReplicatedRootEvent, VoterConfig};
pub use standby::{AgreedFeed, FeedEntry, MembershipChange};
