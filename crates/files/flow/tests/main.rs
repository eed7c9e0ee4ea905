//! Tests of the selector and the model, beside the worked example of the thesis.
#![forbid(unsafe_code)]

mod model;
mod selector;
mod thesis;
