#![no_main]
//! See `evenfall_node::fuzzing::experiment`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_node::fuzzing::experiment(data));
