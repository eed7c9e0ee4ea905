#![no_main]
//! See `evenfall_files_flow::fuzzing::openflow`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_files_flow::fuzzing::openflow(data));
