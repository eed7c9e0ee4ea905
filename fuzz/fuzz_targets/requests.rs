#![no_main]
//! See `evenfall_node::fuzzing::requests`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_node::fuzzing::requests(data));
