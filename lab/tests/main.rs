//! Commands and pages, joined in one program: each program of tests is linked by itself, which
//! takes seconds.
#![forbid(unsafe_code)]

mod campaigns;
mod pages;
mod rival;
