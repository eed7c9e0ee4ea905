//! Campaigns, checkers, scenes and stories, joined in one program: each program of tests is linked
//! by itself, which takes seconds. The library has no unit tests, because a library with unit tests
//! is compiled a second time, and this one is the largest of the workspace.
#![forbid(unsafe_code)]

mod campaigns;
mod circles;
mod cores;
mod keepers;
mod linearizable;
mod lone_shuffle;
mod matrices;
mod model;
mod moderation;
mod noise;
mod pool_model;
mod preempt;
mod repair;
mod seeds;
mod transcripts;
mod wide;
