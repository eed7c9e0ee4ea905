//! The tests of the formats, joined in one program:
//! each program of tests is linked by itself, which takes seconds.
#![forbid(unsafe_code)]

mod damage;
mod feed_files;
mod field;
mod oracles;
mod real_files;
