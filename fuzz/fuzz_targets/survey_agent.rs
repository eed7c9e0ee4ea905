#![no_main]
//! See `evenfall_placement_machine::fuzzing::survey_agent`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| evenfall_placement_machine::fuzzing::survey_agent(data));
