#![no_main]
//! See `evenfall_node::fuzzing::runlog`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_node::fuzzing::runlog(data));
