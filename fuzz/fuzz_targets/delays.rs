#![no_main]
//! See `evenfall_placement_planner::fuzzing::delays`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_placement_planner::fuzzing::delays(data));
