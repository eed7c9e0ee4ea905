#![no_main]
//! See `evenfall_placement_survey::fuzzing::experiment`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_placement_survey::fuzzing::experiment(data));
