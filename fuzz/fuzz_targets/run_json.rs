#![no_main]
//! See `evenfall_node::fuzzing::run_json`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_node::fuzzing::run_json(data));
