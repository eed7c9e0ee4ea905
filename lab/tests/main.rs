//! Campaigns, checkers, stories and corpora, joined in one program:
//! each program of tests is linked by itself, which takes seconds.
#![forbid(unsafe_code)]

mod corpus;
mod faults;
mod group;
mod moderation;
mod mutants;
mod recorder;
mod repair;
mod shuffle;
mod shuffle_thesis;
mod store;
mod survey;
mod transcripts;
