//! Studies, joined in one program: each program of tests is linked by itself, which takes seconds.
#![forbid(unsafe_code)]

mod files;
mod shuffle_thesis;
