#![no_main]
//! See `evenfall_node::fuzzing::settings`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_node::fuzzing::settings(data));
