#![no_main]
//! See `evenfall_placement_planner::fuzzing::survey_agent`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_placement_planner::fuzzing::survey_agent(data));
