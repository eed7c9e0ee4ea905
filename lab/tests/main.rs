//! Campaigns, checkers, stories and corpora, joined in one program:
//! each program of tests is linked by itself, which takes seconds.
#![forbid(unsafe_code)]

mod campaigns;
mod cores;
mod corpus;
mod files;
mod linearizable;
mod moderation;
mod noise;
mod pages;
mod pool_model;
mod repair;
mod rival;
mod shuffle_thesis;
mod transcripts;
