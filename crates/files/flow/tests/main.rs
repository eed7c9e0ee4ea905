//! What the thesis computes by hand, and what the model promises, joined in one program.
#![forbid(unsafe_code)]

mod model;
mod selector;
mod thesis;
