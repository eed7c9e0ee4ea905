#![no_main]
//! See `evenfall_placement::fuzzing::delays`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_placement::fuzzing::delays(data));
